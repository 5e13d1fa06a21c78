package gantry.compat;

import static gantry.compat.Env.await;
import static gantry.compat.Env.check;
import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.sent;
import static gantry.compat.Env.text;
import static gantry.compat.Pushing.awaitCover;
import static gantry.compat.Pushing.exactlyOnce;
import static gantry.compat.Pushing.send;
import static gantry.compat.Sending.numbered;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Push consumers in POP mode, which leave the sharing of queues to the broker. Only clients of 5.x can. */
final class Popping {
    /** The broker says who reads what when a member asks, every 20 s. */
    private static final int REBALANCE_SECONDS = 60;
    /** The client's own pause before the first further try. */
    private static final long FIRST_PAUSE_MS = 10_000;
    /** The shortest that the client allows. */
    private static final long INVISIBLE_MS = 5_000;

    /** So long that it does not end while a scenario looks. */
    private static final long ORDER_INVISIBLE_MS = 120_000;

    private Popping() {
    }

    /** Whether this client can pop. */
    static boolean isKnown() {
        return List.of(DefaultMQPushConsumer.class.getMethods()).stream().anyMatch(m -> m.getName().equals("setClientRebalance"));
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        if (isKnown()) {
            scenarios.put("pop_cluster", Popping::cluster);
            scenarios.put("pop_orderly", Popping::orderly);
            scenarios.put("pop_order", Popping::inOrder);
            scenarios.put("pop_retry", Popping::retry);
            scenarios.put("pop_timeout", Popping::timeout);
            scenarios.put("pop_dead_letters", Popping::deadLetters);
            scenarios.put("pop_restart", Popping::restart);
        }
    }

    /** Two members share every queue: each message comes to one of them, once, also when one of them leaves. */
    private static void cluster(Env env) throws Exception {
        Ground on = ground(env, 4, 16);

        Inbox first = new Inbox();
        Inbox second = new Inbox();
        member(env, on.group(), on.topic(), first);
        DefaultMQPushConsumer leaver = member(env, on.group(), on.topic(), second);
        send(on.producer(), on.topic(), numbered(0, 20));
        awaitCover(numbered(0, 20), first, second);
        int round = 0;
        while ((first.size() < 50 || second.size() < 50) && round < 20) {
            send(on.producer(), on.topic(), numbered(20 + round * 40, 60 + round * 40));
            round++;
            awaitCover(numbered(0, 20 + round * 40), first, second);
        }
        check(first.size() >= 50 && second.size() >= 50, "members of one group got " + first.size() + " and " + second.size() + " messages");
        int sent = 20 + round * 40;
        // It acknowledges what its listener has seen, a moment later.
        Thread.sleep(1_000);
        leaver.shutdown();
        send(on.producer(), on.topic(), numbered(sent, sent + 100));
        awaitCover(numbered(0, sent + 100), first, second);
        exactlyOnce(numbered(0, sent + 100), first, second);
        check(popped(first), "messages came without the property of a pop: this client pulls");
        env.note(first.size() + " and " + second.size() + " messages");
    }

    /**
     * An orderly listener of a group in POP mode is given each order in its order, also when one of its messages fails at
     * first. The client pulls for it.
     */
    private static void orderly(Env env) throws Exception {
        Ground on = ground(env, 2, 16);
        Inbox inbox = new Inbox();
        Set<String> failed = ConcurrentHashMap.newKeySet();
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer consumer = popper(env, on.group());
            consumer.subscribe(on.topic(), "*");
            consumer.registerMessageListener((List<MessageExt> batch, ConsumeOrderlyContext context) -> {
                if (text(batch.get(0)).endsWith(":7") && failed.add(text(batch.get(0)))) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                return inbox.orderly().consumeMessage(batch, context);
            });
            consumer.start();
        }
        Pushing.sendOrdered(on.producer(), on.topic(), 0, 20);
        Pushing.awaitOrdered(inbox, 20);
        env.note(popped(inbox) ? "popped" : "pulled");
        check(!failed.isEmpty(), "no message failed at first");
    }

    /** What is popped in order is given to one at a time: nothing more of its queue while one of its messages is under way. */
    private static void inOrder(Env env) throws Exception {
        Ground on = ground(env, 1, 16);
        MessageQueue queue = on.producer().fetchPublishMessageQueues(on.topic()).stream().sorted().findFirst().orElseThrow();
        List<String> bodies = numbered(0, 6);
        for (String body : bodies) {
            sent(on.producer().send(message(on.topic(), body), queue));
        }
        await("all of them to be there", 30, () -> env.readAll(on.topic()).messages().size() == bodies.size());
        OrderPop pops = new OrderPop(on.producer(), on.topic(), on.group());
        OrderPop.Given lost = pops.pop(queue, "first", 2, ORDER_INVISIBLE_MS);
        equal(bodies.subList(0, 2), texts(lost), "the first two");
        equal(List.of(), texts(pops.pop(queue, "second", 2, ORDER_INVISIBLE_MS)), "what another one is given");
        OrderPop.Given first = pops.pop(queue, "first", 2, ORDER_INVISIBLE_MS);
        equal(bodies.subList(0, 2), texts(first), "what one is given who asks again for want of an answer");
        equal(List.of(0, 0), counts(first), "their counts");
        check(!pops.acknowledge(queue, lost.messages().get(0)), "the giving that got lost is acknowledged");

        check(pops.acknowledge(queue, first.messages().get(1)), "the second one is not acknowledged");
        equal(List.of(), texts(pops.pop(queue, "second", 2, ORDER_INVISIBLE_MS)), "what is given while the first one is under way");
        long changed = System.currentTimeMillis();
        check(pops.giveAgainIn(1_000, queue, first.messages().get(0)), "the time of the first one is not changed");
        OrderPop.Given again = awaitGiven(pops, queue, "second", ORDER_INVISIBLE_MS);
        check(System.currentTimeMillis() - changed >= 1_000, "it came again after " + (System.currentTimeMillis() - changed) + " ms");
        equal(bodies.subList(0, 1), texts(again), "what comes again");
        equal(List.of(1), counts(again), "its count");
        check(pops.acknowledge(queue, again.messages().get(0)), "the first one is not acknowledged");

        long popped = System.currentTimeMillis();
        OrderPop.Given next = pops.pop(queue, "third", 2, INVISIBLE_MS);
        equal(bodies.subList(2, 4), texts(next), "the next two");
        OrderPop.Given late = awaitGiven(pops, queue, "fourth", ORDER_INVISIBLE_MS);
        check(System.currentTimeMillis() - popped >= INVISIBLE_MS, "they came again after " + (System.currentTimeMillis() - popped) + " ms");
        equal(bodies.subList(2, 4), texts(late), "what comes when its time is over");
        equal(List.of(1, 1), counts(late), "their counts");
        for (MessageExt message : late.messages()) {
            check(pops.acknowledge(queue, message), "it is not acknowledged");
        }
        OrderPop.Given last = pops.pop(queue, "fifth", 9, ORDER_INVISIBLE_MS);
        equal(bodies.subList(4, 6), texts(last), "the last two");
        for (MessageExt message : last.messages()) {
            check(pops.acknowledge(queue, message), "it is not acknowledged");
        }
        equal(List.of(), texts(pops.pop(queue, "sixth", 9, ORDER_INVISIBLE_MS)), "what is left");
    }

    private static OrderPop.Given awaitGiven(OrderPop pops, MessageQueue queue, String attempt, long invisibleMs) throws Exception {
        List<OrderPop.Given> given = new ArrayList<>();
        await("messages to come again", 30, () -> {
            OrderPop.Given now = pops.pop(queue, attempt, 2, invisibleMs);
            return !now.messages().isEmpty() && given.add(now);
        });
        return given.get(0);
    }

    private static List<String> texts(OrderPop.Given given) {
        return given.messages().stream().map(Env::text).toList();
    }

    private static List<Integer> counts(OrderPop.Given given) {
        return given.messages().stream().map(MessageExt::getReconsumeTimes).toList();
    }

    /** A message that fails comes again, each time after a pause and with its count, until it succeeds. */
    private static void retry(Env env) throws Exception {
        Ground on = ground(env, 2, 16);
        List<MessageExt> tries = new CopyOnWriteArrayList<>();
        List<Long> times = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = popper(env, on.group());
        consumer.subscribe(on.topic(), "*");
        consumer.registerMessageListener((List<MessageExt> batch, ConsumeConcurrentlyContext context) -> {
            times.add(System.currentTimeMillis());
            tries.addAll(batch);
            return batch.get(0).getReconsumeTimes() < 1 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Message message = message(on.topic(), "hard");
        message.setKeys("key");
        String id = sent(on.producer().send(message)).getMsgId();
        await("two tries", 90, () -> tries.size() == 2);
        for (int i = 0; i < 2; i++) {
            MessageExt attempt = tries.get(i);
            equal(i, attempt.getReconsumeTimes(), "the count of try " + i);
            equal(on.topic(), attempt.getTopic(), "the topic of try " + i);
            equal("key", attempt.getKeys(), "the key of try " + i);
            equal(id, attempt.getMsgId(), "the id of try " + i);
        }
        againAfter(env, times, FIRST_PAUSE_MS, 2_500);
    }

    /** A message whose listener takes too long is given to another member when its time is over. */
    private static void timeout(Env env) throws Exception {
        Ground on = ground(env, 1, 16);
        List<Long> times = new CopyOnWriteArrayList<>();
        List<Integer> counts = new CopyOnWriteArrayList<>();
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer consumer = popper(env, on.group());
            consumer.getClass().getMethod("setPopInvisibleTime", long.class).invoke(consumer, INVISIBLE_MS);
            consumer.subscribe(on.topic(), "*");
            consumer.registerMessageListener((List<MessageExt> batch, ConsumeConcurrentlyContext context) -> {
                boolean isFirst = times.isEmpty();
                times.add(System.currentTimeMillis());
                counts.add(batch.get(0).getReconsumeTimes());
                if (isFirst) {
                    try {
                        Thread.sleep(INVISIBLE_MS * 2);
                    } catch (InterruptedException e) {
                        Thread.currentThread().interrupt();
                    }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }
        sent(on.producer().send(message(on.topic(), "slow")));
        await("two tries", 90, () -> times.size() == 2);
        equal(List.of(0, 1), counts, "the counts of both tries");
        check(againAfter(env, times, INVISIBLE_MS, INVISIBLE_MS + 2_000) < INVISIBLE_MS * 2, "it came only when the first listener was done");
    }

    /** A message that fails more often than its group allows goes to the dead letters, once. */
    private static void deadLetters(Env env) throws Exception {
        Ground on = ground(env, 1, 1);
        Inbox tries = new Inbox();
        DefaultMQPushConsumer consumer = popper(env, on.group());
        consumer.subscribe(on.topic(), "*");
        consumer.registerMessageListener((List<MessageExt> batch, ConsumeConcurrentlyContext context) -> {
            tries.concurrently().consumeMessage(batch, context);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        sent(on.producer().send(message(on.topic(), "hopeless")));
        await("two tries", 90, () -> tries.size() == 2);
        String dead = "%DLQ%" + on.group();
        Env.awaitTopic(on.producer(), dead);
        DefaultMQPushConsumer reader = env.pushConsumer(env.name("reader"));
        reader.subscribe(dead, "*");
        Inbox letters = new Inbox();
        reader.registerMessageListener(letters.concurrently());
        reader.start();
        letters.awaitExactly(List.of("hopeless"), 60);
        Thread.sleep(2_500);
        equal(2, tries.size(), "tries of a group that takes a message twice");
    }

    /** A group that comes back gets what is new: nothing twice, nothing left out. */
    private static void restart(Env env) throws Exception {
        Ground on = ground(env, 2, 16);
        Inbox before = new Inbox();
        DefaultMQPushConsumer consumer = member(env, on.group(), on.topic(), before);
        send(on.producer(), on.topic(), numbered(0, 100));
        before.awaitExactly(numbered(0, 100), REBALANCE_SECONDS);
        // The last acknowledgements are on their way.
        Thread.sleep(1_000);
        consumer.shutdown();
        send(on.producer(), on.topic(), numbered(100, 200));
        Inbox after = new Inbox();
        member(env, on.group(), on.topic(), after);
        after.awaitExactly(numbered(100, 200), REBALANCE_SECONDS);
    }

    /** A topic, a group that pops from it, and a producer. */
    private record Ground(String topic, String group, DefaultMQProducer producer) {
    }

    private static Ground ground(Env env, int queues, int retries) throws Exception {
        Ground on = new Ground(env.topic("t", queues), env.name("g"), env.producer());
        popMode(on.producer(), on.topic(), on.group(), retries);
        return on;
    }

    /** The second of two tries came no sooner than that, and is the last. How long it took. */
    private static long againAfter(Env env, List<Long> times, long pauseMs, long quietMs) throws Exception {
        long pause = times.get(1) - times.get(0);
        check(pause >= pauseMs - 500, "the second try came after " + pause + " ms");
        Thread.sleep(quietMs);
        equal(2, times.size(), "tries after one that succeeded");
        env.note("again after " + pause + " ms");
        return pause;
    }

    private static DefaultMQPushConsumer member(Env env, String group, String topic, Inbox inbox) throws Exception {
        DefaultMQPushConsumer consumer = popper(env, group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.concurrently());
        consumer.start();
        return consumer;
    }

    /** A consumer, not started, that lets the broker say how it gets its messages. */
    static DefaultMQPushConsumer popper(Env env, String group) throws Exception {
        DefaultMQPushConsumer consumer = env.pushConsumer(group);
        leaveQueuesToBroker(consumer);
        return consumer;
    }

    static void leaveQueuesToBroker(DefaultMQPushConsumer consumer) throws Exception {
        consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
    }

    /** Lets a group, which is made for it, pop from a topic on every broker: what mqadmin does with two commands. */
    static void popMode(DefaultMQProducer client, String topic, String group, int retries) throws Exception {
        Leaders leaders = Leaders.of(client, topic);
        MQClientAPIImpl api = leaders.api();
        for (String leader : leaders.addresses()) {
            Method create = Leaders.method(api, "createSubscriptionGroup");
            Object config = create.getParameterTypes()[1].getConstructor().newInstance();
            config.getClass().getMethod("setGroupName", String.class).invoke(config, group);
            config.getClass().getMethod("setRetryMaxTimes", int.class).invoke(config, retries);
            Leaders.call(create, api, leader, config, Leaders.TIMEOUT_MS);
            Method set = Leaders.method(api, "setMessageRequestMode");
            Object pop = set.getParameterTypes()[3].getMethod("valueOf", String.class).invoke(null, "POP");
            Leaders.call(set, api, leader, topic, group, pop, 8, Leaders.TIMEOUT_MS);
        }
    }

    static boolean popped(Inbox inbox) {
        return inbox.messages().stream().allMatch(m -> m.getProperty("POP_CK") != null);
    }
}
