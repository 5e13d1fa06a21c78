package gantry.compat;

import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.sent;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Finding one message again: by offset message id, unique id, key and time. */
final class Lookup {
    private Lookup() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        scenarios.put("query_by_id_and_key", Lookup::query);
    }

    private static void query(Env env) throws Exception {
        String topic = env.topic("t", 4);
        String other = env.topic("other", 1);
        DefaultMQProducer producer = env.producer();
        long start = System.currentTimeMillis();
        List<SendResult> results = new ArrayList<>();
        for (int i = 0; i < 30; i++) {
            Message message = message(topic, "body " + i);
            message.setKeys(List.of("unique" + i, "tens" + i / 10));
            results.add(sent(producer.send(message)));
        }
        Message stranger = message(other, "other topic");
        stranger.setKeys("unique0");
        sent(producer.send(stranger));

        // The index of each broker follows its log, so the last messages may need a moment.
        for (int i = 0; i < 30; i++) {
            await(producer, topic, "unique" + i);
        }
        await(producer, other, "unique0");
        for (int i = 0; i < 30; i++) {
            SendResult result = results.get(i);
            isMessage(result, i, producer.viewMessage(topic, result.getOffsetMsgId()));
            isMessage(result, i, producer.viewMessage(topic, result.getMsgId()));
            equal(List.of("body " + i), bodies(producer, topic, "unique" + i, 32, 0, Long.MAX_VALUE), "bodies by key unique" + i);
        }
        equal(10, bodies(producer, topic, "tens1", 32, 0, Long.MAX_VALUE).size(), "messages that share a key");
        equal(List.of("other topic"), bodies(producer, other, "unique0", 32, 0, Long.MAX_VALUE), "bodies by the same key in another topic");
        equal(List.of("body 3"), bodies(producer, topic, "unique3", 32, start - 1000, System.currentTimeMillis() + 1000), "bodies by key and time");
        equal(List.of(), bodies(producer, topic, "unique3", 32, 0, start - 60_000), "bodies by key and a time before");
        equal(List.of(), bodies(producer, topic, "no-such-key", 32, 0, Long.MAX_VALUE), "bodies by an unknown key");

        String id = results.get(0).getOffsetMsgId();
        String beyond = id.substring(0, id.length() - 16) + "00000FFFFFFFFFFF";
        try {
            producer.viewMessage(topic, beyond);
            throw new AssertionError("an id beyond the log found a message");
        } catch (MQBrokerException | MQClientException e) {
            // as it must be
        }
    }

    private static void isMessage(SendResult result, int number, MessageExt found) {
        equal("body " + number, Env.text(found), "body by id");
        equal(result.getQueueOffset(), found.getQueueOffset(), "queue offset by id");
        equal(result.getMessageQueue().getQueueId(), found.getQueueId(), "queue by id");
    }

    private static void await(DefaultMQProducer producer, String topic, String key) throws Exception {
        Env.await("key " + key + " to be indexed", 20, () -> !bodies(producer, topic, key, 1, 0, Long.MAX_VALUE).isEmpty());
    }

    /** The client throws when it finds nothing. */
    private static List<String> bodies(DefaultMQProducer producer, String topic, String key, int max, long begin, long end) throws InterruptedException {
        try {
            return producer.queryMessage(topic, key, max, begin, end).getMessageList().stream().map(Env::text).sorted().toList();
        } catch (MQClientException e) {
            return List.of();
        }
    }
}
