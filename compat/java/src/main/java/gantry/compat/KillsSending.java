package gantry.compat;

import static gantry.compat.Env.await;
import static gantry.compat.Env.check;
import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.sent;
import static gantry.compat.Env.text;
import static gantry.compat.Kills.PACE_MS;
import static gantry.compat.Kills.SETTLE_SECONDS;
import static gantry.compat.Kills.again;
import static gantry.compat.Kills.isOver;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.exception.RemotingException;

/** Ways to send other than one message at a time, and topics that are made and changed, while leaders are killed. */
final class KillsSending {
    private static final int BATCH = 8;

    private KillsSending() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        scenarios.put("kills_send_batch", KillsSending::batch);
        scenarios.put("kills_send_oneway", KillsSending::oneway);
        scenarios.put("kills_topics", KillsSending::topics);
    }

    /** A batch that was acknowledged lies whole where its answer said. */
    private static void batch(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        DefaultMQProducer producer = env.producer();
        Kills.Ledger ledger = new Kills.Ledger();
        int batches = 0;
        for (; !isOver(); batches++) {
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < BATCH; i++) {
                batch.add(message(topic, "batch " + batches + " message " + i));
            }
            SendResult result = sent(again(() -> producer.send(batch)));
            for (int i = 0; i < BATCH; i++) {
                ledger.note(result.getMessageQueue(), result.getQueueOffset() + i, text(batch.get(i)));
            }
            Thread.sleep(PACE_MS);
        }
        Stored stored = ledger.checkStored(env, topic);
        env.note(batches + " batches of " + BATCH + " acknowledged, " + stored.messages().size() + " messages stored");
    }

    /** A message that the client sends once, without asking for an answer, is never stored twice. Some are lost in a kill. */
    private static void oneway(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        DefaultMQProducer producer = env.producer();
        int sent = 0;
        int refused = 0;
        for (; !isOver(); sent++) {
            Message message = message(topic, "message " + sent);
            try {
                producer.sendOneway(message);
            } catch (MQClientException | RemotingException e) {
                refused++;
            }
            Thread.sleep(PACE_MS);
        }
        int total = sent;
        // The last ones may still be under way. Later ones than these are sent when no leader is killed, so they come.
        String last = "last one";
        again(() -> sent(producer.send(message(topic, last))));
        List<MessageExt> stored = again(() -> env.readAll(topic)).messages();
        Set<String> texts = new HashSet<>();
        for (MessageExt message : stored) {
            check(texts.add(text(message)) || text(message).equals(last), text(message) + ", sent once, is stored twice");
        }
        texts.remove(last);
        check(texts.size() > total / 2, "of " + total + " messages only " + texts.size() + " arrived");
        env.note(total + " sent once each, " + refused + " of them refused by the client, " + texts.size() + " arrived");
    }

    /** A topic that is there stays, and so does a change of its number of queues. */
    private static void topics(Env env) throws Exception {
        DefaultMQProducer admin = env.producer();
        int groups = again(() -> env.groups(admin));
        Map<String, Integer> made = new TreeMap<>();
        for (int i = 0; !isOver(); i++) {
            String topic = env.name("t" + i);
            make(admin, topic, 1, groups);
            made.put(topic, 1);
            if (i % 2 == 0) {
                make(admin, topic, 3, groups);
                made.put(topic, 3);
            }
            Thread.sleep(PACE_MS);
        }
        for (Map.Entry<String, Integer> topic : made.entrySet()) {
            int wanted = topic.getValue() * groups;
            await(topic.getKey() + " to have " + wanted + " queues", SETTLE_SECONDS, () -> queues(admin, topic.getKey()) == wanted);
            SendResult result = again(() -> admin.send(message(topic.getKey(), "a message")));
            equal(topic.getKey(), sent(result).getMessageQueue().getTopic(), "the topic of a message");
        }
        env.note(made.size() + " topics, " + made.values().stream().filter(queues -> queues == 3).count() + " of them changed");
    }

    /** Creates or changes a topic until all broker groups have it: the client is content with one of them. */
    private static void make(DefaultMQProducer admin, String topic, int queues, int groups) throws Exception {
        again(() -> {
            Env.createTopic(admin, topic, queues);
            check(queues(admin, topic) <= queues * groups, topic + " has more queues than anybody asked for");
            if (queues(admin, topic) < queues * groups) {
                throw new IllegalStateException("not all broker groups have " + topic);
            }
            return null;
        });
    }

    /** How many queues a topic has, 0 where its route is not known. */
    private static int queues(DefaultMQProducer client, String topic) {
        try {
            return client.fetchPublishMessageQueues(topic).size();
        } catch (MQClientException e) {
            return 0;
        }
    }
}
