package gantry.compat;

import static gantry.compat.Env.await;
import static gantry.compat.Env.check;
import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.sent;
import static gantry.compat.Env.text;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Predicate;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * What must hold while leaders are killed: each scenario is at work for the whole time, all of them at once.
 *
 * <p>A call that failed is made again, since nobody knows what became of it. So a message may be stored twice, and
 * messages are told apart by their texts.
 */
final class Kills {
    /** For how long leaders are killed. */
    private static final int SECONDS = Integer.getInteger("compat.kills", 0);
    /** Until everything has arrived afterwards; an orderly consumer may wait for a lease of 60 s. */
    static final int SETTLE_SECONDS = 120;
    /** Between two messages of a scenario. */
    static final int PACE_MS = 30;
    private static final long STARTED = System.nanoTime();

    private Kills() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        scenarios.put("kills_send", Kills::send);
        scenarios.put("kills_send_ordered", Kills::sendOrdered);
        scenarios.put("kills_push", Kills::push);
        scenarios.put("kills_push_orderly", Kills::orderly);
        scenarios.put("kills_offsets", Kills::offsets);
        scenarios.put("kills_retry", Kills::retry);
        scenarios.put("kills_dead_letters", Kills::deadLetters);
        scenarios.put("kills_delay_levels", Kills::delayLevels);
        scenarios.put("kills_timers", Kills::timers);
        scenarios.put("kills_transaction", Kills::transaction);
        scenarios.put("kills_request_reply", Kills::requestReply);
        KillsReading.register(scenarios);
        KillsSending.register(scenarios);
        KillsGroups.register(scenarios);
        KillsPopOrder.register(scenarios);
        KillsRetention.register(scenarios);
        KillsWays.register(scenarios);
        KillsMembers.register(scenarios);
        KillsEnds.register(scenarios);
    }

    static boolean isOver() {
        return System.nanoTime() - STARTED > SECONDS * 1_000_000_000L;
    }

    /** The result of a call that is made until it works. */
    static <T> T again(Callable<T> call) throws Exception {
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (true) {
            try {
                return call.call();
            } catch (InterruptedException e) {
                throw e;
            } catch (Exception e) {
                if (System.nanoTime() > deadline) {
                    throw e;
                }
                Thread.sleep(100);
            }
        }
    }

    /** What was acknowledged, and the place that the answer named. */
    static final class Ledger {
        private final Map<MessageQueue, Map<Long, String>> places = new HashMap<>();
        private final Set<String> texts = new TreeSet<>();

        void note(SendResult result, String text) {
            sent(result);
            note(result.getMessageQueue(), result.getQueueOffset(), text);
        }

        synchronized void note(MessageQueue queue, long offset, String text) {
            String before = places.computeIfAbsent(queue, q -> new HashMap<>()).put(offset, text);
            check(before == null, "offset " + offset + " of " + queue + " was given to " + before + " and to " + text);
            texts.add(text);
        }

        synchronized Set<String> texts() {
            return new TreeSet<>(texts);
        }

        /** Whether everything acknowledged is among the texts read from each queue, in which case it is at its place. */
        synchronized boolean isCoveredBy(Map<MessageQueue, List<String>> read) {
            boolean isWhole = true;
            for (Map.Entry<MessageQueue, Map<Long, String>> queue : places.entrySet()) {
                List<String> texts = read.get(queue.getKey());
                for (Map.Entry<Long, String> place : queue.getValue().entrySet()) {
                    if (place.getKey() < texts.size()) {
                        equal(place.getValue(), texts.get(place.getKey().intValue()), "what lies at " + place.getKey() + " of " + queue.getKey());
                    } else {
                        isWhole = false;
                    }
                }
            }
            return isWhole;
        }

        /** Everything acknowledged lies where its answer said; offsets are dense, which reading checks. */
        synchronized Stored checkStored(Env env, String topic) throws Exception {
            Stored stored = again(() -> env.readAll(topic));
            Map<MessageQueue, Map<Long, String>> found = new HashMap<>();
            stored.queues().forEach((queue, messages) ->
                messages.forEach(m -> found.computeIfAbsent(queue, q -> new HashMap<>()).put(m.getQueueOffset(), text(m))));
            places.forEach((queue, byOffset) -> byOffset.forEach((offset, text) ->
                equal(text, String.valueOf(found.getOrDefault(queue, Map.of()).get(offset)), "what lies at " + offset + " of " + queue)));
            return stored;
        }
    }

    /** Sends one numbered message after the other until the time is over. */
    static Ledger sendUntilOver(DefaultMQProducer producer, String topic, String kind) throws Exception {
        Ledger ledger = new Ledger();
        for (int i = 0; !isOver(); i++) {
            Message message = message(topic, kind + " " + i);
            ledger.note(again(() -> producer.send(message)), text(message));
            Thread.sleep(PACE_MS);
        }
        return ledger;
    }

    /** What is sent beside a scenario that reads in its own thread. */
    static final class Sending {
        private final FutureTask<Ledger> task;
        private long deadline = Long.MAX_VALUE;

        Sending(DefaultMQProducer producer, String topic) {
            task = new FutureTask<>(() -> sendUntilOver(producer, topic, "message"));
            new Thread(task).start();
        }

        /** Whether all is sent, and read as `covers` says; fails when reading takes too long after the last message. */
        boolean isRead(Predicate<Ledger> covers) throws Exception {
            if (!task.isDone()) {
                return false;
            }
            if (deadline == Long.MAX_VALUE) {
                deadline = System.nanoTime() + SETTLE_SECONDS * 1_000_000_000L;
            }
            boolean isRead = covers.test(task.get());
            check(isRead || System.nanoTime() < deadline, "not everything acknowledged was read within " + SETTLE_SECONDS + " s");
            return isRead;
        }

        Ledger ledger() throws Exception {
            return task.get();
        }
    }

    /** Waits until everything acknowledged has come, once or more; nothing else may. */
    static void awaitAll(Set<String> expected, Inbox inbox, Set<String> possible) throws Exception {
        try {
            await(expected.size() + " messages", SETTLE_SECONDS, () -> inbox.covers(expected));
        } catch (AssertionError e) {
            Set<String> missing = new TreeSet<>(expected);
            missing.removeAll(inbox.texts());
            throw new AssertionError(e.getMessage() + ", " + missing.size() + " of them missing, such as " + missing.stream().limit(5).toList());
        }
        Set<String> others = new TreeSet<>(inbox.texts());
        others.removeAll(possible);
        check(others.isEmpty(), "nobody sent " + others);
    }

    static DefaultMQPushConsumer member(Env env, String group, String topic, Inbox inbox) throws Exception {
        DefaultMQPushConsumer consumer = env.pushConsumer(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.concurrently());
        consumer.start();
        return consumer;
    }

    private static void send(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 4));
        Ledger ledger = sendUntilOver(env.producer(), topic, "message");
        Stored stored = ledger.checkStored(env, topic);
        env.note(ledger.texts().size() + " acknowledged, " + stored.messages().size() + " stored");
    }

    /** The next message of an order is sent when the one before is acknowledged; a copy may lie behind it, never a later one before it. */
    private static void sendOrdered(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        DefaultMQProducer producer = env.producer();
        Ledger ledger = new Ledger();
        int steps = sendSteps(producer, topic, ledger);
        List<MessageExt> all = new ArrayList<>();
        ledger.checkStored(env, topic).queues().values().forEach(all::addAll);
        checkSteps(all, steps);
        env.note(ORDERS + " orders of " + steps + " steps");
    }

    private static final int ORDERS = 6;

    static int sendSteps(DefaultMQProducer producer, String topic, Ledger ledger) throws Exception {
        int step = 0;
        for (; !isOver(); step++) {
            for (int order = 0; order < ORDERS; order++) {
                int number = order;
                Message message = message(topic, order + ":" + step);
                ledger.note(again(() -> producer.send(message, (queues, m, arg) -> queues.get((Integer) arg % queues.size()), number)), text(message));
            }
            Thread.sleep(PACE_MS);
        }
        return step;
    }

    /** The first copies of an order's messages come in their order. */
    static void checkSteps(List<MessageExt> messages, int steps) {
        Map<String, Integer> nextStep = new HashMap<>();
        for (MessageExt message : messages) {
            String[] parts = text(message).split(":");
            int next = nextStep.getOrDefault(parts[0], 0);
            int step = Integer.parseInt(parts[1]);
            check(step <= next, "order " + parts[0] + ": step " + step + " comes before step " + next);
            nextStep.put(parts[0], Math.max(next, step + 1));
        }
        nextStep.forEach((order, next) -> equal(steps, next, "steps of order " + order));
        equal(ORDERS, nextStep.size(), "orders");
    }

    /** Two members share what comes; one leaves in the middle, and another joins. */
    private static void push(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 4));
        String group = env.name("g");
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer first = member(env, group, topic, inbox);
        member(env, group, topic, inbox);
        Thread change = new Thread(() -> {
            try {
                Thread.sleep(SECONDS * 500L);
                first.shutdown();
                member(env, group, topic, inbox);
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        });
        change.start();
        Ledger ledger = sendUntilOver(env.producer(), topic, "message");
        change.join();
        awaitAll(ledger.texts(), inbox, ledger.texts());
        ledger.checkStored(env, topic);
        env.note(ledger.texts().size() + " acknowledged, " + inbox.size() + " delivered");
    }

    /** Members lock queues, leave and join; a queue never has two of them at work, and its messages come in order. */
    private static void orderly(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        String group = env.name("g");
        Inbox inbox = new Inbox();
        Map<MessageQueue, Integer> owners = new ConcurrentHashMap<>();
        AtomicReference<String> fault = new AtomicReference<>();
        AtomicInteger numbers = new AtomicInteger();
        Callable<DefaultMQPushConsumer> join = () -> {
            int number = numbers.incrementAndGet();
            DefaultMQPushConsumer consumer = env.pushConsumer(group);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((List<MessageExt> batch, ConsumeOrderlyContext context) -> {
                Integer other = owners.putIfAbsent(context.getMessageQueue(), number);
                if (other != null) {
                    fault.compareAndSet(null, "members " + other + " and " + number + " were at work in " + context.getMessageQueue());
                }
                try {
                    Thread.sleep(5);
                    return inbox.orderly().consumeMessage(batch, context);
                } catch (InterruptedException e) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                } finally {
                    if (other == null) {
                        owners.remove(context.getMessageQueue());
                    }
                }
            });
            consumer.start();
            return consumer;
        };
        DefaultMQPushConsumer first = join.call();
        join.call();
        Thread change = new Thread(() -> {
            try {
                Thread.sleep(SECONDS * 400L);
                first.shutdown();
                Thread.sleep(SECONDS * 200L);
                join.call();
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        });
        change.start();
        Ledger ledger = new Ledger();
        int steps = sendSteps(env.producer(), topic, ledger);
        change.join();
        awaitAll(ledger.texts(), inbox, ledger.texts());
        check(fault.get() == null, fault.get());
        checkSteps(inbox.messages(), steps);
        env.note(ORDERS + " orders of " + steps + " steps, " + inbox.size() + " delivered");
    }

    /** What a committed place is asked for after its commit was answered, it is that place or a later one. */
    private static void offsets(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 1));
        Ledger ledger = new Ledger();
        DefaultMQProducer producer = env.producer();
        DefaultMQPullConsumer consumer = env.pullConsumer(env.name("g"));
        List<MessageQueue> queues = List.copyOf(again(() -> consumer.fetchSubscribeMessageQueues(topic)));
        Map<MessageQueue, Long> committed = new HashMap<>();
        int commits = 0;
        for (int i = 0; !isOver(); i++) {
            MessageQueue queue = queues.get(i % queues.size());
            Message message = message(topic, "message " + i);
            SendResult result = again(() -> producer.send(message, queue));
            ledger.note(result, text(message));
            long place = result.getQueueOffset() + 1;
            again(() -> {
                consumer.getOffsetStore().updateConsumeOffsetToBroker(queue, place, false);
                return null;
            });
            committed.put(queue, place);
            commits++;
            for (MessageQueue one : queues) {
                if (!committed.containsKey(one)) {
                    continue;
                }
                // It answers -1 when there is no place, and -2 when the broker could not be asked.
                long found = again(() -> {
                    long answer = consumer.fetchConsumeOffset(one, true);
                    if (answer == -2) {
                        throw new IllegalStateException("the broker could not be asked");
                    }
                    return answer;
                });
                check(found >= committed.get(one), "the place in " + one + " went back from " + committed.get(one) + " to " + found);
            }
            Thread.sleep(PACE_MS);
        }
        env.note(commits + " commits");
    }

    /** Messages fail twice, and come again until they succeed. */
    private static void retry(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        Inbox done = new Inbox();
        DefaultMQPushConsumer consumer = env.pushConsumer(env.name("g"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((List<MessageExt> batch, ConsumeConcurrentlyContext context) -> {
            // The broker's own choice for the first pause would be 10 s.
            context.setDelayLevelWhenNextConsume(1);
            return batch.get(0).getReconsumeTimes() < 2 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : done.concurrently().consumeMessage(batch, context);
        });
        consumer.start();
        Ledger ledger = sendUntilOver(env.producer(), topic, "hard");
        awaitAll(ledger.texts(), done, ledger.texts());
        env.note(ledger.texts().size() + " acknowledged, " + done.size() + " succeeded in the end");
    }

    private static void deadLetters(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 1));
        String group = env.name("g");
        DefaultMQPushConsumer consumer = env.pushConsumer(group);
        consumer.setMaxReconsumeTimes(1);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((List<MessageExt> batch, ConsumeConcurrentlyContext context) -> {
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        Ledger ledger = sendUntilOver(env.producer(), topic, "hopeless");
        Inbox letters = new Inbox();
        member(env, env.name("reader"), "%DLQ%" + group, letters);
        awaitAll(ledger.texts(), letters, ledger.texts());
        env.note(ledger.texts().size() + " acknowledged, " + letters.size() + " dead letters");
    }

    /** How often each text of a topic is stored. */
    private static Map<String, Integer> copies(Env env, String topic) throws Exception {
        Map<String, Integer> copies = new HashMap<>();
        again(() -> env.readAll(topic)).messages().forEach(m -> copies.merge(text(m), 1, Integer::sum));
        return copies;
    }

    /** Makes a message wait, and says when it may come, in milliseconds since 1970. */
    private interface Wait {
        long ask(Message message) throws Exception;
    }

    private static void delayLevels(Env env) throws Exception {
        waiting(env, "SCHEDULE_TOPIC_XXXX", message -> {
            message.setDelayTimeLevel(2);
            return System.currentTimeMillis() + 5_000;
        });
    }

    private static void timers(Env env) throws Exception {
        waiting(env, "rmq_sys_wheel_timer", message -> Timers.Way.TIME.ask(message, 5_000));
    }

    /**
     * No message comes before its time, and each that waits is moved to its topic once. Where a message can be recalled,
     * every fourth one is, and if that works it never comes.
     */
    private static void waiting(Env env, String waitingTopic, Wait wait) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        Inbox inbox = new Inbox();
        member(env, env.name("g"), topic, inbox);
        DefaultMQProducer producer = env.producer();
        Map<String, Long> due = new ConcurrentHashMap<>();
        Set<String> expected = new TreeSet<>();
        Set<String> recalled = new TreeSet<>();
        String run = env.name("later");
        for (int i = 0; !isOver(); i++) {
            Message message = message(topic, run + " " + i);
            // Each call has a time of its own. One that is over when the call arrives would not make the message wait.
            SendResult result = sent(again(() -> {
                due.merge(text(message), wait.ask(message), Math::min);
                return producer.send(message);
            }));
            boolean comes = i % 4 != 0 || !again(() -> Timers.isRecalled(producer, result));
            (comes ? expected : recalled).add(text(message));
            Thread.sleep(PACE_MS);
        }
        Map<String, Integer> waited = copies(env, waitingTopic);
        waited.keySet().removeIf(text -> !text.startsWith(run));
        // Of a message that was sent again several copies wait, and the last one is recalled.
        recalled.forEach(text -> waited.computeIfPresent(text, (t, count) -> count == 1 ? null : count - 1));
        awaitAll(expected, inbox, waited.keySet());
        for (MessageExt message : inbox.messages()) {
            long early = due.get(text(message)) - message.getStoreTimestamp();
            check(early <= 0, text(message) + " was stored in its topic " + early + " ms before its time");
        }
        awaitCopies(env, topic, waited);
        env.note(expected.size() + " acknowledged, " + waited.values().stream().mapToInt(n -> n).sum() + " waited and were moved once each, "
            + recalled.size() + " recalled");
    }

    /** Waits until a topic holds as many copies of each message as wanted; it never holds more. */
    private static void awaitCopies(Env env, String topic, Map<String, Integer> wanted) throws Exception {
        await("each message to be in " + topic + " as often as it waited", SETTLE_SECONDS, () -> {
            Map<String, Integer> found = copies(env, topic);
            found.forEach((text, count) -> check(count <= wanted.getOrDefault(text, 0),
                text + " waited " + wanted.get(text) + " times and was moved " + count + " times"));
            return found.equals(wanted);
        });
    }

    /** What is committed comes, as often as it was prepared; what is rolled back never does. */
    private static void transaction(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        Inbox inbox = new Inbox();
        member(env, env.name("g"), topic, inbox);
        String run = env.name("tx");
        // By the word at the end: commit and rollback are known at once, "later" when the broker asks.
        TransactionMQProducer producer = env.transactionProducer(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return text(message).endsWith("later commit") ? LocalTransactionState.UNKNOW : checkLocalTransaction(message);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return checkLocalTransaction((Message) message);
            }

            private LocalTransactionState checkLocalTransaction(Message message) {
                return text(message).endsWith("commit") ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        Set<String> expected = new TreeSet<>();
        String[] kinds = {"commit", "rollback", "commit", "later commit"};
        for (int i = 0; !isOver(); i++) {
            Message message = message(topic, run + " " + i + " " + kinds[i % kinds.length]);
            sent(again(() -> producer.sendMessageInTransaction(message, null)));
            if (text(message).endsWith("commit")) {
                expected.add(text(message));
            }
            Thread.sleep(PACE_MS);
        }
        awaitAll(expected, inbox, expected);
        Map<String, Integer> prepared = copies(env, "RMQ_SYS_TRANS_HALF_TOPIC");
        prepared.keySet().removeIf(text -> !text.startsWith(run) || !text.endsWith("commit"));
        awaitCopies(env, topic, prepared);
        env.note(expected.size() + " committed, " + prepared.values().stream().mapToInt(n -> n).sum() + " prepared and resolved once each");
    }

    /** Each request gets its own reply, though it may have to be made again. */
    private static void requestReply(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        DefaultMQProducer replier = env.producer();
        DefaultMQPushConsumer consumer = env.pushConsumer(env.name("g"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((List<MessageExt> batch, ConsumeConcurrentlyContext context) -> {
            for (MessageExt request : batch) {
                try {
                    replier.send(MessageUtil.createReplyMessage(request, ("re: " + text(request)).getBytes()));
                } catch (Exception e) {
                    // The requester asks again.
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer requester = env.producer();
        // Until the replier has its queues, and the brokers know the requester, a request waits in vain.
        again(() -> request(requester, message(topic, "the first request"), 3_000));
        AtomicInteger repeated = new AtomicInteger();
        List<FutureTask<Integer>> requesters = new ArrayList<>();
        for (int n = 0; n < REQUESTERS; n++) {
            int number = n;
            FutureTask<Integer> requests = new FutureTask<>(() -> {
                int i = 0;
                do {
                    String text = "request " + number + " " + i;
                    AtomicInteger tries = new AtomicInteger();
                    String reply = again(() -> {
                        repeated.addAndGet(tries.getAndIncrement() > 0 ? 1 : 0);
                        return request(requester, message(topic, text), 3_000);
                    });
                    equal("re: " + text, reply, "the reply to " + text);
                    i++;
                    Thread.sleep(PACE_MS);
                } while (!isOver());
                return i;
            });
            requesters.add(requests);
            new Thread(requests).start();
        }
        int requests = 0;
        for (FutureTask<Integer> one : requesters) {
            requests += one.get();
        }
        env.note(requests + " requests, " + repeated + " made again");
    }

    private static final int REQUESTERS = 8;

    /** The blocking call of some 5.x clients gives up as soon as its message is stored. */
    private static String request(DefaultMQProducer requester, Message message, long timeoutMs) throws Exception {
        AtomicReference<Object> outcome = new AtomicReference<>();
        requester.request(message, new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                outcome.set(text(reply));
            }

            @Override
            public void onException(Throwable e) {
                outcome.set(e);
            }
        }, timeoutMs);
        await("an answer or a failure", 20, () -> outcome.get() != null);
        if (outcome.get() instanceof Throwable e) {
            throw new Exception(e);
        }
        return (String) outcome.get();
    }
}
