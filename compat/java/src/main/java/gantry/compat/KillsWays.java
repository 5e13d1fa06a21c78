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
import static gantry.compat.Kills.awaitAll;
import static gantry.compat.Kills.isOver;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Sends by callback, packed and gathered, traces, and queues that come and go, while leaders are killed. */
final class KillsWays {
    private static final int READ_WRITE = 6;
    /** Between two changes of a topic's number of queues. */
    private static final int CHANGE_PACE_MS = 1_500;

    private KillsWays() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        scenarios.put("kills_send_ways", KillsWays::ways);
        scenarios.put("kills_queue_numbers", KillsWays::queueNumbers);
        scenarios.put("kills_trace", KillsWays::trace);
    }

    /** The answer of a send by callback. */
    private static SendResult async(DefaultMQProducer producer, Message message) throws Exception {
        CompletableFuture<SendResult> answer = new CompletableFuture<>();
        AtomicInteger calls = new AtomicInteger();
        producer.send(message, new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                calls.incrementAndGet();
                answer.complete(result);
            }

            @Override
            public void onException(Throwable e) {
                calls.incrementAndGet();
                answer.completeExceptionally(e);
            }
        });
        try {
            SendResult result = answer.get(60, TimeUnit.SECONDS);
            equal(1, calls.get(), "calls back for " + text(message).substring(0, 12));
            return result;
        } catch (ExecutionException e) {
            throw new Exception(e.getCause());
        }
    }

    /**
     * One thread for each way of packing sends by callback, and several through a producer that gathers batches (5.x): all
     * of it lies where its answer said, and comes as it was.
     */
    private static void ways(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        Inbox inbox = new Inbox();
        Kills.member(env, env.name("g"), topic, inbox);
        Kills.Ledger ledger = new Kills.Ledger();
        Map<String, Integer> sent = new ConcurrentHashMap<>();
        List<FutureTask<Void>> senders = new ArrayList<>();
        for (String kind : List.of("ZLIB", "LZ4", "ZSTD")) {
            DefaultMQProducer producer = Limits.packing(env, kind);
            senders.add(new FutureTask<>(() -> {
                for (int i = 0; !isOver(); i++) {
                    Message message = message(topic, kind + " " + i + " " + ("a body of " + kind + " that repeats itself; ").repeat(200));
                    message.putUserProperty("kind", kind);
                    ledger.note(again(() -> async(producer, message)), text(message));
                    sent.merge(kind, 1, Integer::sum);
                    Thread.sleep(PACE_MS);
                }
                return null;
            }));
        }
        if (Sending.gathers()) {
            DefaultMQProducer gathering = Sending.gathering(env);
            for (int n = 0; n < 4; n++) {
                int number = n;
                senders.add(new FutureTask<>(() -> {
                    for (int i = 0; !isOver(); i++) {
                        Message message = message(topic, "gathered " + number + " " + i);
                        ledger.note(again(() -> gathering.send(message)), text(message));
                        sent.merge("gathered", 1, Integer::sum);
                        Thread.sleep(PACE_MS);
                    }
                    return null;
                }));
            }
        }
        senders.forEach(sender -> new Thread(sender).start());
        for (FutureTask<Void> sender : senders) {
            sender.get();
        }
        Set<String> texts = ledger.texts();
        awaitAll(texts, inbox, texts);
        for (MessageExt message : ledger.checkStored(env, topic).messages()) {
            String kind = message.getUserProperty("kind");
            check(kind == null || message.getStoreSize() < text(message).length() / 4, "a message of " + kind + " is stored with " + message.getStoreSize() + " bytes");
        }
        env.note(texts.size() + " acknowledged: " + sent);
    }

    /** The number of queues grows and shrinks, first those for writing: nothing that was acknowledged is lost. */
    private static void queueNumbers(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = Kills.member(env, env.name("g"), topic, inbox);
        DefaultMQProducer producer = env.producer();
        Kills.Sending sending = new Kills.Sending(producer, topic);
        Set<Integer> seen = new TreeSet<>();
        int changes = 0;
        do {
            for (int[] queues : new int[][] {{4, 4}, {4, 2}, {2, 2}}) {
                resize(producer, consumer, topic, queues[0], queues[1]);
                changes++;
                Thread.sleep(CHANGE_PACE_MS);
            }
        } while (!isOver());
        resize(producer, consumer, topic, 4, 4);
        Set<String> texts = sending.ledger().texts();
        awaitAll(texts, inbox, texts);
        sending.ledger().checkStored(env, topic);
        inbox.messages().forEach(message -> seen.add(message.getQueueId()));
        equal(Set.of(0, 1, 2, 3), seen, "queues that had messages");
        env.note(texts.size() + " acknowledged, " + changes + " changes");
    }

    private static void resize(DefaultMQProducer producer, DefaultMQPushConsumer consumer, String topic, int read, int write) throws Exception {
        again(() -> {
            Leaders leaders = Leaders.of(producer, topic);
            for (String leader : leaders.addresses()) {
                leaders.api().createTopic(leader, "TBW102", new TopicConfig(topic, read, write, READ_WRITE), Leaders.TIMEOUT_MS);
            }
            return null;
        });
        // Clients would look after 30 s.
        await("the route of " + write + " queues", SETTLE_SECONDS, () -> {
            Leaders leaders = again(() -> Leaders.of(producer, topic));
            return producer.fetchPublishMessageQueues(topic).size() == write * leaders.byBroker().size();
        });
        consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().updateTopicRouteInfoFromNameServer(topic);
        consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().rebalanceImmediately();
    }

    /**
     * Clients write their traces by themselves and do not repeat them, so some get lost in a kill: most are there. Of what is
     * sent when no leader is killed any more, all.
     */
    private static void trace(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 1));
        DefaultMQProducer producer = again(env::tracedProducer);
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = env.tracedPushConsumer(env.name("g"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.concurrently());
        consumer.start();
        List<String> during = new ArrayList<>();
        Set<String> texts = new TreeSet<>();
        for (int i = 0; !isOver(); i++) {
            Message message = message(topic, "traced " + i);
            during.add(sent(again(() -> producer.send(message))).getMsgId());
            texts.add(text(message));
            Thread.sleep(PACE_MS * 10);
        }
        awaitAll(texts, inbox, texts);
        DefaultMQProducer reader = env.producer();
        Set<String> untraced = new TreeSet<>(during);
        await("most of the traces", SETTLE_SECONDS, () -> {
            untraced.removeIf(id -> isTraced(reader, id));
            return untraced.size() < during.size() / 2;
        });
        for (int i = 0; i < 5; i++) {
            Message message = message(topic, "calm " + i);
            String id = sent(again(() -> producer.send(message))).getMsgId();
            await("what was traced of " + text(message), SETTLE_SECONDS, () -> isTraced(reader, id));
        }
        env.note(during.size() + " acknowledged, " + (during.size() - untraced.size()) + " traced");
    }

    private static boolean isTraced(DefaultMQProducer reader, String id) {
        try {
            return Limits.kinds(reader, id).containsAll(Set.of("Pub", "SubBefore", "SubAfter"));
        } catch (Exception e) {
            return false;
        }
    }
}
