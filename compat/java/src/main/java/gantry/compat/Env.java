package gantry.compat;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Collection;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.impl.MQAdminImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What a scenario works with: names of its own, and clients that are shut down when it ends. */
final class Env implements AutoCloseable {
    /** The template of topics that are made on demand; every broker group has it. */
    private static final String TEMPLATE_TOPIC = "TBW102";
    private static final AtomicInteger INSTANCES = new AtomicInteger();

    private final String namesrv;
    private final String run;
    private final String scenario;
    private final Deque<Runnable> cleanups = new ArrayDeque<>();
    private volatile String note = "";

    Env(String namesrv, String scenario) {
        this.namesrv = namesrv;
        this.scenario = scenario;
        this.run = Long.toString(System.currentTimeMillis(), 36);
    }

    /** A name that no other scenario and no earlier run has. */
    String name(String kind) {
        return "java_" + scenario + "_" + kind + "_" + run;
    }

    /** Adds a figure to the scenario's result line. */
    void note(String text) {
        note = note.isEmpty() ? text : note + "; " + text;
    }

    String note() {
        return note;
    }

    /** A client of this cluster, with connections of its own. */
    private <C extends ClientConfig> C ours(C client) {
        client.setNamesrvAddr(namesrv);
        client.setInstanceName("compat" + INSTANCES.incrementAndGet());
        return client;
    }

    DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = ours(new DefaultMQProducer(name("pg") + "_" + INSTANCES.incrementAndGet()));
        producer.start();
        later(producer::shutdown);
        return producer;
    }

    /** A producer that writes a trace of what it sends. */
    DefaultMQProducer tracedProducer() throws Exception {
        DefaultMQProducer producer = ours(new DefaultMQProducer(name("pg") + "_" + INSTANCES.incrementAndGet(), true, null));
        producer.start();
        later(producer::shutdown);
        return producer;
    }

    /** As {@link #pushConsumer}, and it writes a trace of what it is given. */
    DefaultMQPushConsumer tracedPushConsumer(String group) {
        return reading(new DefaultMQPushConsumer(group, true, null));
    }

    TransactionMQProducer transactionProducer(TransactionListener listener) throws Exception {
        TransactionMQProducer producer = ours(new TransactionMQProducer(name("pg") + "_" + INSTANCES.incrementAndGet()));
        producer.setTransactionListener(listener);
        producer.start();
        later(producer::shutdown);
        return producer;
    }

    /** A push consumer, not started, that reads its topics from the first message on. */
    DefaultMQPushConsumer pushConsumer(String group) {
        return reading(new DefaultMQPushConsumer(group));
    }

    private DefaultMQPushConsumer reading(DefaultMQPushConsumer client) {
        DefaultMQPushConsumer consumer = ours(client);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(4);
        later(consumer::shutdown);
        return consumer;
    }

    @SuppressWarnings("deprecation")
    DefaultMQPullConsumer pullConsumer(String group) throws Exception {
        DefaultMQPullConsumer consumer = ours(new DefaultMQPullConsumer(group));
        consumer.start();
        later(consumer::shutdown);
        return consumer;
    }

    /** A lite pull consumer, not started. */
    DefaultLitePullConsumer litePullConsumer(String group) {
        DefaultLitePullConsumer consumer = ours(new DefaultLitePullConsumer(group));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullThreadNums(2);
        later(consumer::shutdown);
        return consumer;
    }

    /** Creates a topic with `queues` queues on every broker group and waits until its whole route is known. */
    String topic(String kind, int queues) throws Exception {
        return topic(kind, queues, Map.of());
    }

    /** The same with attributes, as `+name` to value. */
    @SuppressWarnings("deprecation")
    String topic(String kind, int queues, Map<String, String> attributes) throws Exception {
        String topic = name(kind);
        DefaultMQProducer admin = producer();
        int groups = groups(admin);
        if (attributes.isEmpty()) {
            createTopic(admin, topic, queues);
        } else {
            MQAdminImpl impl = pullConsumer(name("admin")).getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory().getMQAdminImpl();
            createWithAttributes().orElseThrow().invoke(impl, TEMPLATE_TOPIC, topic, queues, 0, attributes);
        }
        await("the route of " + topic, 30, () -> {
            try {
                return admin.fetchPublishMessageQueues(topic).size() == groups * queues;
            } catch (Exception e) {
                return false;
            }
        });
        return topic;
    }

    /** How many broker groups there are. */
    int groups(DefaultMQProducer client) throws Exception {
        return brokerNames(client.fetchPublishMessageQueues(TEMPLATE_TOPIC)).size();
    }

    /** Waits until a topic is there that the broker makes. */
    static void awaitTopic(DefaultMQProducer client, String topic) throws Exception {
        await("the topic " + topic, 90, () -> {
            try {
                return !client.fetchPublishMessageQueues(topic).isEmpty();
            } catch (Exception e) {
                return false;
            }
        });
    }

    /** Whether this client can create a topic with attributes. */
    static boolean setsAttributes() {
        return createWithAttributes().isPresent();
    }

    /** Producers of 5.x take attributes, and forget them; what they call does not. */
    private static Optional<Method> createWithAttributes() {
        return Arrays.stream(MQAdminImpl.class.getMethods())
            .filter(m -> m.getName().equals("createTopic") && m.getParameterCount() == 5 && m.getParameterTypes()[4] == Map.class)
            .findFirst();
    }

    /** The method's arguments differ between 4.x and 5.x. */
    static void createTopic(DefaultMQProducer admin, String topic, int queues) throws Exception {
        try {
            for (Method method : DefaultMQProducer.class.getMethods()) {
                Class<?>[] types = method.getParameterTypes();
                if (!method.getName().equals("createTopic")) {
                    continue;
                }
                if (types.length == 4 && types[3] == Map.class) {
                    method.invoke(admin, TEMPLATE_TOPIC, topic, queues, Map.of());
                    return;
                }
                if (types.length == 3) {
                    method.invoke(admin, TEMPLATE_TOPIC, topic, queues);
                    return;
                }
            }
        } catch (InvocationTargetException e) {
            throw e.getCause() instanceof Exception cause ? cause : e;
        }
        throw new AssertionError("this client has no createTopic that we know");
    }

    static Set<String> brokerNames(Collection<MessageQueue> queues) {
        return queues.stream().map(MessageQueue::getBrokerName).collect(Collectors.toSet());
    }

    /** Runs `cleanup` when the scenario is over, latest first. */
    void later(Runnable cleanup) {
        synchronized (cleanups) {
            cleanups.push(cleanup);
        }
    }

    @Override
    public void close() {
        synchronized (cleanups) {
            for (Runnable cleanup : cleanups) {
                try {
                    cleanup.run();
                } catch (RuntimeException e) {
                    System.err.println("while closing " + scenario + ": " + e);
                }
            }
            cleanups.clear();
        }
    }

    /** Everything that a topic holds now, queue by queue, read by pulls from the first message on. */
    @SuppressWarnings("deprecation")
    Stored readAll(String topic) throws Exception {
        DefaultMQPullConsumer reader = pullConsumer(name("reader") + INSTANCES.incrementAndGet());
        Stored stored = new Stored();
        for (MessageQueue queue : reader.fetchSubscribeMessageQueues(topic)) {
            long offset = reader.minOffset(queue);
            long end = reader.maxOffset(queue);
            while (offset < end) {
                PullResult result = reader.pull(queue, "*", offset, 32, 10_000);
                check(result.getPullStatus() == PullStatus.FOUND, "a pull at " + offset + " of " + queue + ", which ends at " + end + ", answered " + result);
                for (MessageExt message : result.getMsgFoundList()) {
                    equal(offset, message.getQueueOffset(), "offsets of " + queue + " in a row");
                    stored.add(queue, message);
                    offset++;
                }
                equal(offset, result.getNextBeginOffset(), "the next offset after a pull from " + queue);
            }
        }
        return stored;
    }

    static Message message(String topic, String body) {
        return new Message(topic, body.getBytes(StandardCharsets.UTF_8));
    }

    static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    /** The answer of a send that must have worked. */
    static SendResult sent(SendResult result) {
        check(result != null && result.getSendStatus() == SendStatus.SEND_OK, "a send answered " + result);
        return result;
    }

    static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    static void equal(Object expected, Object found, String what) {
        if (!expected.equals(found)) {
            throw new AssertionError(what + ": expected " + brief(expected) + ", found " + brief(found));
        }
    }

    private static String brief(Object value) {
        if (value instanceof Collection<?> all && all.size() > 20) {
            return all.size() + " elements " + List.copyOf(all).subList(0, 20) + "...";
        }
        return String.valueOf(value);
    }

    /** Waits until `condition` holds; `what` says for what when it never does. */
    static void await(String what, int seconds, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + seconds * 1_000_000_000L;
        while (!condition.call()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("waited " + seconds + " s for " + what);
            }
            Thread.sleep(20);
        }
    }
}
