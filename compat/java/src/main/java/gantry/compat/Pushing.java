package gantry.compat;

import static gantry.compat.Env.await;
import static gantry.compat.Env.check;
import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.sent;
import static gantry.compat.Env.text;
import static gantry.compat.Sending.numbered;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Push consumers: groups, broadcast, order, filters, restarts, latency. */
final class Pushing {
    /** Members hear of each other by a notice; without it they look every 20 s. */
    private static final int REBALANCE_SECONDS = 60;

    private Pushing() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        scenarios.put("push_cluster", Pushing::cluster);
        scenarios.put("push_broadcast", Pushing::broadcast);
        scenarios.put("push_orderly", Pushing::orderly);
        scenarios.put("push_tag_filter", Pushing::tagFilter);
        scenarios.put("push_sql_filter", Pushing::sqlFilter);
        scenarios.put("push_restart", Pushing::restart);
        scenarios.put("push_latency", Pushing::latency);
    }

    /** Members join and leave; the queues are shared out again each time, and no message is left out. */
    private static void cluster(Env env) throws Exception {
        String topic = env.topic("t", 4);
        String group = env.name("g");
        DefaultMQProducer producer = env.producer();
        Set<MessageQueue> queues = new HashSet<>(producer.fetchPublishMessageQueues(topic));

        Inbox first = new Inbox();
        DefaultMQPushConsumer firstMember = member(env, group, topic, first);
        await("the only member to own all queues", REBALANCE_SECONDS, () -> owned(firstMember, topic).equals(queues));
        send(producer, topic, numbered(0, 200));
        first.awaitExactly(numbered(0, 200), 30);

        // Messages sent while the queues change hands come at least once, all others exactly once.
        Inbox second = new Inbox();
        DefaultMQPushConsumer secondMember = member(env, group, topic, second);
        send(producer, topic, numbered(200, 300));
        awaitEvenShares(queues, topic, firstMember, secondMember);
        awaitCover(numbered(0, 300), first, second);
        send(producer, topic, numbered(300, 600));
        awaitCover(numbered(0, 600), first, second);
        exactlyOnce(numbered(300, 600), first, second);
        check(!Collections.disjoint(first.texts(), numbered(300, 600)), "the first member got nothing of what came after the second joined");
        check(!Collections.disjoint(second.texts(), numbered(300, 600)), "the second member got nothing");

        firstMember.shutdown();
        send(producer, topic, numbered(600, 700));
        await("the remaining member to own all queues", REBALANCE_SECONDS, () -> owned(secondMember, topic).equals(queues));
        awaitCover(numbered(0, 700), first, second);
        send(producer, topic, numbered(700, 800));
        awaitCover(numbered(0, 800), second, first);
        exactlyOnce(numbered(700, 800), second, first);
        Set<String> twice = new HashSet<>();
        Set<String> once = new HashSet<>();
        all(first, second).forEach(t -> {
            if (!once.add(t)) {
                twice.add(t);
            }
        });
        env.note(twice.size() + " of 800 came twice, all while queues moved");
    }

    private static void awaitEvenShares(Set<MessageQueue> queues, String topic, DefaultMQPushConsumer a, DefaultMQPushConsumer b) throws Exception {
        await("two members to share " + queues.size() + " queues", REBALANCE_SECONDS, () -> {
            Set<MessageQueue> ofA = owned(a, topic);
            Set<MessageQueue> ofB = owned(b, topic);
            Set<MessageQueue> both = new HashSet<>(ofA);
            both.addAll(ofB);
            return both.equals(queues) && ofA.size() + ofB.size() == queues.size() && Math.abs(ofA.size() - ofB.size()) <= 1;
        });
    }

    static void awaitCover(List<String> expected, Inbox... inboxes) throws Exception {
        try {
            await(expected.size() + " messages at all members", 40, () -> new HashSet<>(all(inboxes)).containsAll(expected));
        } catch (AssertionError e) {
            List<String> missing = new ArrayList<>(expected);
            missing.removeAll(new HashSet<>(all(inboxes)));
            throw new AssertionError(e.getMessage() + ", " + missing.size() + " missing, such as " + missing.stream().limit(5).toList());
        }
    }

    static void exactlyOnce(List<String> expected, Inbox... inboxes) {
        Set<String> wanted = new HashSet<>(expected);
        equal(expected, all(inboxes).stream().filter(wanted::contains).sorted().toList(), "messages while no queue moved");
    }

    static List<String> all(Inbox... inboxes) {
        List<String> texts = new ArrayList<>();
        for (Inbox inbox : inboxes) {
            texts.addAll(inbox.texts());
        }
        return texts;
    }

    private static Set<MessageQueue> owned(DefaultMQPushConsumer consumer, String topic) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(q -> q.getTopic().equals(topic)).collect(Collectors.toSet());
    }

    private static DefaultMQPushConsumer member(Env env, String group, String topic, Inbox inbox) throws Exception {
        DefaultMQPushConsumer consumer = env.pushConsumer(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.concurrently());
        consumer.start();
        return consumer;
    }

    static void send(DefaultMQProducer producer, String topic, List<String> bodies) throws Exception {
        for (String body : bodies) {
            sent(producer.send(message(topic, body)));
        }
    }

    /** Each member gets every message. */
    private static void broadcast(Env env) throws Exception {
        String topic = env.topic("t", 4);
        String group = env.name("g");
        List<Inbox> inboxes = List.of(new Inbox(), new Inbox());
        for (Inbox inbox : inboxes) {
            DefaultMQPushConsumer consumer = env.pushConsumer(group);
            setBroadcasting(consumer);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(inbox.concurrently());
            consumer.start();
        }
        send(env.producer(), topic, numbered(0, 200));
        for (Inbox inbox : inboxes) {
            inbox.awaitExactly(numbered(0, 200), 60);
        }
    }

    /** The enum's package differs between 4.x and 5.x. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    static void setBroadcasting(DefaultMQPushConsumer consumer) throws Exception {
        for (Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                Class<? extends Enum> model = (Class<? extends Enum>) method.getParameterTypes()[0];
                method.invoke(consumer, Enum.valueOf(model, "BROADCASTING"));
                return;
            }
        }
        throw new AssertionError("this client has no setMessageModel");
    }

    /** With queue locks, every queue is consumed in its order, also when it changes hands. */
    private static void orderly(Env env) throws Exception {
        String topic = env.topic("t", 4);
        String group = env.name("g");
        DefaultMQProducer producer = env.producer();
        Set<MessageQueue> queues = new HashSet<>(producer.fetchPublishMessageQueues(topic));
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer first = orderlyMember(env, group, topic, inbox);
        DefaultMQPushConsumer second = orderlyMember(env, group, topic, inbox);
        awaitEvenShares(queues, topic, first, second);
        sendOrdered(producer, topic, 0, 40);
        awaitOrdered(inbox, 40);
        first.shutdown();
        sendOrdered(producer, topic, 40, 80);
        await("the remaining member to own all queues", REBALANCE_SECONDS, () -> owned(second, topic).equals(queues));
        awaitOrdered(inbox, 80);
    }

    private static DefaultMQPushConsumer orderlyMember(Env env, String group, String topic, Inbox inbox) throws Exception {
        DefaultMQPushConsumer consumer = env.pushConsumer(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.orderly());
        consumer.start();
        return consumer;
    }

    private static final int ORDERS = 8;

    static void sendOrdered(DefaultMQProducer producer, String topic, int fromStep, int toStep) throws Exception {
        for (int step = fromStep; step < toStep; step++) {
            for (int order = 0; order < ORDERS; order++) {
                sent(producer.send(message(topic, order + ":" + step), (queues, message, arg) -> queues.get((Integer) arg % queues.size()), order));
            }
        }
    }

    static void awaitOrdered(Inbox inbox, int steps) throws Exception {
        await(ORDERS * steps + " messages, of which " + inbox.size() + " are there", 60, () -> new HashSet<>(inbox.texts()).size() >= ORDERS * steps);
        Map<String, Integer> nextStep = new HashMap<>();
        for (MessageExt message : inbox.messages()) {
            String[] parts = text(message).split(":");
            equal(nextStep.merge(parts[0], 1, Integer::sum) - 1, Integer.valueOf(parts[1]), "next step of order " + parts[0]);
        }
    }

    private static void tagFilter(Env env) throws Exception {
        String topic = env.topic("t", 4);
        DefaultMQProducer producer = env.producer();
        List<String> wanted = new ArrayList<>();
        for (int i = 0; i < 300; i++) {
            String tag = List.of("TagA", "TagB", "TagC").get(i % 3);
            Message message = message(topic, tag + " " + i);
            message.setTags(tag);
            sent(producer.send(message));
            if (i % 3 != 1) {
                wanted.add(tag + " " + i);
            }
        }
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = env.pushConsumer(env.name("g"));
        consumer.subscribe(topic, "TagA || TagC");
        consumer.registerMessageListener(inbox.concurrently());
        consumer.start();
        inbox.awaitExactly(wanted, 60);
    }

    /** Messages are selected by an expression over their properties, which the broker alone looks at. */
    private static void sqlFilter(Env env) throws Exception {
        String topic = env.topic("t", 4);
        DefaultMQProducer producer = env.producer();
        List<String> wanted = new ArrayList<>();
        for (int i = 0; i < 300; i++) {
            Message message = message(topic, "message " + i);
            message.setTags(i % 2 == 0 ? "even" : "odd");
            if (i % 3 != 0) {
                message.putUserProperty("number", Integer.toString(i));
            }
            sent(producer.send(message));
            if (i % 3 != 0 && i >= 100 && i <= 200 && i % 2 == 0 || i == 7) {
                wanted.add("message " + i);
            }
        }
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = env.pushConsumer(env.name("g"));
        consumer.subscribe(topic, MessageSelector.bySql("(number BETWEEN 100 AND 200 AND TAGS = 'even') OR number IN ('7')"));
        consumer.registerMessageListener(inbox.concurrently());
        consumer.start();
        inbox.awaitExactly(wanted, 60);

        DefaultMQPushConsumer mistaken = env.pushConsumer(env.name("mistaken"));
        mistaken.subscribe(topic, MessageSelector.bySql("number >>> 1"));
        mistaken.registerMessageListener(new Inbox().concurrently());
        try {
            mistaken.start();
        } catch (Exception e) {
            check(String.valueOf(e).matches("(?s).*at (character|line) \\d+.*"), "a wrong expression was refused with " + e);
            return;
        }
        throw new AssertionError("a consumer started with an expression that means nothing");
    }

    /** Waits until a consumer has noted the end of each queue as its place, which it does after its listener has returned. */
    static void awaitDone(DefaultMQPushConsumer consumer, DefaultMQProducer producer, String topic) throws Exception {
        for (MessageQueue queue : owned(consumer, topic)) {
            await("the consumer to be done with " + queue, 60, () -> {
                long place = consumer.getDefaultMQPushConsumerImpl().getOffsetStore().readOffset(queue, ReadOffsetType.READ_FROM_MEMORY);
                return Math.max(place, 0) >= producer.maxOffset(queue);
            });
        }
    }

    /** A group that comes back goes on where it stopped: nothing again, nothing left out. */
    private static void restart(Env env) throws Exception {
        String topic = env.topic("t", 4);
        String group = env.name("g");
        DefaultMQProducer producer = env.producer();
        send(producer, topic, numbered(0, 300));
        Inbox before = new Inbox();
        DefaultMQPushConsumer consumer = member(env, group, topic, before);
        before.awaitExactly(numbered(0, 300), 60);
        awaitDone(consumer, producer, topic);
        consumer.shutdown();
        send(producer, topic, numbered(300, 500));
        Inbox after = new Inbox();
        member(env, group, topic, after);
        after.awaitExactly(numbered(300, 500), 60);
    }

    /** An idle consumer has its pull waiting at the broker, so a message reaches it at once. */
    private static void latency(Env env) throws Exception {
        String topic = env.topic("t", 2);
        DefaultMQProducer producer = env.producer();
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = member(env, env.name("g"), topic, inbox);
        await("queues", REBALANCE_SECONDS, () -> !owned(consumer, topic).isEmpty());
        // A client that makes out a new subscription while another of its threads sends a heartbeat leaves its own out,
        // and its pulls are refused until the next one, 30 s later. So every queue must flow before the time is taken.
        int queues = producer.fetchPublishMessageQueues(topic).size();
        int first = 2 * queues;
        send(producer, topic, numbered(0, first));
        inbox.awaitExactly(numbered(0, first), 60);
        List<Long> millis = new ArrayList<>();
        for (int i = first; i < first + 10; i++) {
            Thread.sleep(300); // so that the next message finds an idle consumer
            long sentAt = System.nanoTime();
            send(producer, topic, numbered(i, i + 1));
            inbox.awaitExactly(numbered(0, i + 1), 5);
            millis.add((System.nanoTime() - sentAt) / 1_000_000);
        }
        Collections.sort(millis);
        env.note("median " + millis.get(5) + " ms, longest " + millis.get(9) + " ms");
    }
}
