package gantry.compat;

import static gantry.compat.Env.await;
import static gantry.compat.Env.check;
import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.sent;
import static gantry.compat.Env.text;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What a message may be at most, how its body may be packed, and the trace that clients write about it. */
final class Limits {
    private static final String TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC";
    private static final char FIELD = 1;
    private static final char ENTRY = 2;

    private Limits() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        scenarios.put("send_compressed", Limits::compressed);
        scenarios.put("send_limits", Limits::limits);
        scenarios.put("trace", Limits::trace);
    }

    /** Bodies that the producer packs reach the consumer as they were, whatever packs them. */
    private static void compressed(Env env) throws Exception {
        String topic = env.topic("t", 4);
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = env.pushConsumer(env.name("g"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.concurrently());
        consumer.start();
        List<String> bodies = new ArrayList<>();
        for (String kind : List.of("ZLIB", "LZ4", "ZSTD")) {
            DefaultMQProducer producer = packing(env, kind);
            for (int i = 0; i < 4; i++) {
                String body = kind + i + " " + ("a body of " + kind + " that repeats itself; ").repeat(500 + i);
                Message message = message(topic, body);
                message.putUserProperty("kind", kind);
                sent(producer.send(message));
                bodies.add(body);
            }
        }
        inbox.awaitExactly(bodies, 60);
        Map<String, Integer> sizes = new TreeMap<>();
        for (MessageExt message : inbox.messages()) {
            check(message.getStoreSize() < text(message).length(), "it is not stored as it was packed: " + message.getStoreSize() + " bytes");
            sizes.merge(message.getUserProperty("kind"), message.getStoreSize(), Math::min);
        }
        // Were all packed by one kind, two of the sizes would be equal.
        equal(3, Set.copyOf(sizes.values()).size(), "sizes of three kinds " + sizes);
    }

    /** A producer that packs large bodies this way; it learns of that as it is made. */
    static synchronized DefaultMQProducer packing(Env env, String kind) throws Exception {
        System.setProperty("rocketmq.message.compressType", kind);
        try {
            return env.producer();
        } finally {
            System.clearProperty("rocketmq.message.compressType");
        }
    }

    private static int codeOf(Callable<SendResult> send) throws Exception {
        try {
            SendResult result = send.call();
            throw new AssertionError("sent, though it is beyond a limit: " + result);
        } catch (MQBrokerException e) {
            return e.getResponseCode();
        } catch (MQClientException e) {
            return e.getResponseCode();
        }
    }

    private static void limits(Env env) throws Exception {
        String topic = env.topic("t", 2);
        DefaultMQProducer producer = env.producer();
        MessageQueue queue = producer.fetchPublishMessageQueues(topic).get(0);

        // Properties up to the limit of 32767 bytes, the broker's own among them.
        Message full = message(topic, "full");
        full.putUserProperty("p", "x".repeat(32_000));
        sent(producer.send(full));
        Message over = message(topic, "over");
        over.putUserProperty("p", "x".repeat(32_768));
        equal(13, codeOf(() -> producer.send(over, queue)), "code for properties beyond the limit");

        // As many keys as fit, each of which finds the message.
        Message keyed = message(topic, "keyed");
        List<String> keys = new ArrayList<>();
        for (int i = 0; i < 40; i++) {
            keys.add(env.name("key") + i);
        }
        keyed.setKeys(keys);
        sent(producer.send(keyed));
        for (String key : List.of(keys.get(0), keys.get(19), keys.get(39))) {
            await("the message by its key " + key, 10, () -> {
                try {
                    List<MessageExt> found = producer.queryMessage(topic, key, 32, 0, Long.MAX_VALUE).getMessageList();
                    return found.size() == 1 && text(found.get(0)).equals("keyed");
                } catch (MQClientException e) {
                    return false;
                }
            });
        }

        // The client's own checks use the same codes.
        Message large = new Message(topic, new byte[(4 << 20) + 1]);
        equal(13, codeOf(() -> producer.send(large)), "code for a body beyond the limit");
        producer.setMaxMessageSize(8 << 20);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        equal(13, codeOf(() -> producer.send(large, queue)), "the broker's code for a body beyond the limit");
        Message fits = new Message(topic, new byte[4 << 20]);
        sent(producer.send(fits));

        equal(29, codeOf(() -> producer.send(message(topic, "x"), new MessageQueue(topic, queue.getBrokerName(), 2))), "code for a queue that is not there");
        Stored stored = env.readAll(topic);
        equal(3, stored.messages().size(), "messages that were stored");
        MessageExt first = stored.messages().stream().filter(m -> text(m).equals("full")).findFirst().orElseThrow();
        equal(32_000, first.getUserProperty("p").length(), "the long property");
    }

    /** Traces are messages of a topic of their own, found by the id of the message that they tell of. */
    private static void trace(Env env) throws Exception {
        String topic = env.topic("t", 2);
        DefaultMQProducer producer = env.tracedProducer();
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = env.tracedPushConsumer(env.name("g"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.concurrently());
        consumer.start();
        List<SendResult> results = new ArrayList<>();
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            Message message = message(topic, "traced " + i);
            message.setKeys("traced" + i);
            results.add(sent(producer.send(message)));
            bodies.add("traced " + i);
        }
        inbox.awaitExactly(bodies, 60);
        DefaultMQProducer reader = env.producer();
        for (SendResult result : results) {
            await("what was traced of " + result.getMsgId(), 30, () -> kinds(reader, result.getMsgId()).containsAll(Set.of("Pub", "SubBefore", "SubAfter")));
        }
    }

    /** The kinds of entries that the traces have about a message. */
    static Set<String> kinds(DefaultMQProducer reader, String id) throws Exception {
        Set<String> kinds = new HashSet<>();
        try {
            for (MessageExt trace : reader.queryMessage(TRACE_TOPIC, id, 64, 0, Long.MAX_VALUE).getMessageList()) {
                for (String entry : new String(trace.getBody(), StandardCharsets.UTF_8).split(String.valueOf(ENTRY))) {
                    String[] fields = entry.split(String.valueOf(FIELD));
                    if (List.of(fields).contains(id) || fields[0].equals("SubAfter")) {
                        kinds.add(fields[0]);
                    }
                }
            }
        } catch (MQClientException e) {
            // Nothing yet.
        }
        return kinds;
    }
}
