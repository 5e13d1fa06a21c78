package gantry.compat;

import static gantry.compat.Env.check;
import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.sent;

import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** What a message carries: bodies of every size, text of every script. */
final class Bodies {
    private static final int MIB = 1024 * 1024;
    private static final int BODY_MAX = 4 * MIB;
    private static final int TOTAL_MIN = 100_000_000;
    private static final int[] SIZES = {
        1, 2, 3, 7, 100, 1000, 1023, 1024, 1025, 4095, 4096, 4097, 16_383, 65_535, 65_536, 65_537,
        262_144, MIB - 1, MIB, 2 * MIB, BODY_MAX - 1, BODY_MAX,
    };

    private Bodies() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        scenarios.put("bodies_100_mb", Bodies::hundredMegabytes);
        scenarios.put("utf8_properties", Bodies::utf8);
    }

    /** Random bodies travel as they are, text bodies compressed by the client; all come back byte for byte. */
    private static void hundredMegabytes(Env env) throws Exception {
        String topic = env.topic("t", 1);
        DefaultMQProducer plain = env.producer();
        plain.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        DefaultMQProducer compressing = env.producer();
        for (DefaultMQProducer producer : List.of(plain, compressing)) {
            producer.setSendMsgTimeout(20_000);
            refuses(producer, new Message(topic, new byte[0]), "an empty body");
            refuses(producer, new Message(topic, new byte[BODY_MAX + 1]), "a body of 4 MiB and one byte");
        }

        Map<String, Boolean> waiting = new ConcurrentHashMap<>();
        ConcurrentLinkedQueue<String> faults = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = env.pushConsumer(env.name("g"));
        consumer.setPullThresholdSizeForQueue(16);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                String key = message.getKeys();
                if (!key.equals(describe(message.getUserProperty("number"), message.getBody()))) {
                    faults.add(key + " came as " + describe(message.getUserProperty("number"), message.getBody()));
                }
                waiting.remove(key);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();

        Random random = new Random(1);
        long total = 0;
        int number = 0;
        for (int round = 0; total < TOTAL_MIN; round++) {
            for (int size : SIZES) {
                boolean text = round % 2 == 1;
                byte[] body = text ? textBody(size, random) : randomBody(size, random);
                String key = describe(Integer.toString(number), body);
                Message message = new Message(topic, "", key, body);
                message.putUserProperty("number", Integer.toString(number++));
                waiting.put(key, true);
                sent((text ? compressing : plain).send(message));
                total += size;
            }
        }
        Env.await("all bodies to arrive", 120, () -> waiting.isEmpty() || !faults.isEmpty());
        check(faults.isEmpty(), faults.size() + " bodies differ: " + faults.peek());
        env.note(number + " messages, " + total / 1_000_000 + " MB");
    }

    private static void refuses(DefaultMQProducer producer, Message message, String what) throws Exception {
        try {
            producer.send(message);
        } catch (MQClientException e) {
            return;
        }
        throw new AssertionError("the client sent " + what);
    }

    /** Names a message by number, size and checksum. */
    private static String describe(String number, byte[] body) {
        CRC32 crc = new CRC32();
        crc.update(body);
        return String.format("n%s-size%d-crc%08x", number, body.length, crc.getValue());
    }

    private static byte[] randomBody(int size, Random random) {
        byte[] body = new byte[size];
        random.nextBytes(body);
        return body;
    }

    private static byte[] textBody(int size, Random random) {
        byte[] body = new byte[size];
        for (int i = 0; i < size; i++) {
            body[i] = (byte) (i % 61 == 0 ? 'A' + random.nextInt(26) : "the quick brown fox ".charAt(i % 20));
        }
        return body;
    }

    /** Tags, keys, property names and values of any script arrive as sent, and a tag of any script selects. */
    private static void utf8(Env env) throws Exception {
        String topic = env.topic("t", 2);
        String tag = "\u6807\u7b7e\u00e9";
        List<String> values = List.of("\u4e2d\u6587\u5c5e\u6027", "\u043a\u043b\u044e\u0447 \u0438 \u0437\u043d\u0430\u0447\u0435\u043d\u0438\u0435",
            "\ud83d\ude80 beyond the basic plane", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629", "quote \" backslash \\ slash / tab \t line \n end", "{\"json\":[1,2]}", "\u00fcml\u00e4ut");
        DefaultMQProducer producer = env.producer();
        for (int i = 0; i < values.size(); i++) {
            Message message = message(topic, values.get(i));
            message.setTags(tag);
            message.setKeys(List.of("\u952e" + i, "\u043a\u043b\u044e\u0447" + i));
            message.putUserProperty("\u540d\u5b57", values.get(i));
            message.putUserProperty("index", Integer.toString(i));
            sent(producer.send(message));
            Message other = message(topic, "not selected");
            other.setTags("\u522b\u7684");
            sent(producer.send(other));
        }
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = env.pushConsumer(env.name("g"));
        consumer.subscribe(topic, "Other || " + tag);
        consumer.registerMessageListener(inbox.concurrently());
        consumer.start();
        inbox.awaitExactly(values, 60);
        for (MessageExt message : inbox.messages()) {
            int i = Integer.parseInt(message.getUserProperty("index"));
            equal(values.get(i), message.getUserProperty("\u540d\u5b57"), "property of message " + i);
            equal(tag, message.getTags(), "tag of message " + i);
            equal("\u952e" + i + " \u043a\u043b\u044e\u0447" + i, message.getKeys(), "keys of message " + i);
        }
        long now = System.currentTimeMillis();
        for (int i = 0; i < values.size(); i++) {
            List<MessageExt> found = producer.queryMessage(topic, "\u952e" + i, 10, 0, now + 60_000).getMessageList();
            equal(List.of(values.get(i)), found.stream().map(Env::text).toList(), "messages with key " + i);
        }
    }
}
