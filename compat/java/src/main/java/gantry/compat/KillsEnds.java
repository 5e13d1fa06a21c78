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

import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The last check of a transaction, and what was popped and is acknowledged by the batch, while leaders are killed. */
final class KillsEnds {
    private static final int CHECKS_MAX = 6;
    private static final int BATCH = 8;
    private static final long INVISIBLE_MS = 5_000;

    private KillsEnds() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        scenarios.put("kills_last_check", KillsEnds::lastCheck);
        if (Popping.isKnown()) {
            scenarios.put("kills_pop_batch", KillsEnds::popBatch);
        }
    }

    /** A transaction whose producer never knows is given up after its last check, once for each time that it was prepared. */
    private static void lastCheck(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 1));
        String run = env.name("tx");
        Map<String, Integer> checks = new ConcurrentHashMap<>();
        TransactionMQProducer producer = env.transactionProducer(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checks.merge(text(message), 1, Integer::sum);
                return LocalTransactionState.UNKNOW;
            }
        });
        configure(producer, topic, "1000", "1000", String.valueOf(CHECKS_MAX));
        Set<String> prepared = new TreeSet<>();
        try {
            for (int i = 0; !isOver(); i++) {
                Message message = message(topic, run + " " + i);
                again(() -> sent(producer.sendMessageInTransaction(message, null)));
                prepared.add(text(message));
                Thread.sleep(PACE_MS * 4);
            }
            Map<String, Integer> copies = ours(env, "RMQ_SYS_TRANS_HALF_TOPIC", run);
            check(copies.keySet().containsAll(prepared), "not everything that was prepared is there");
            await("every transaction to be given up", SETTLE_SECONDS, () -> {
                Map<String, Integer> given = ours(env, "TRANS_CHECK_MAX_TIME_TOPIC", run);
                given.forEach((text, count) -> check(count <= copies.getOrDefault(text, 0), text + " was prepared " + copies.get(text) + " times and given up " + count + " times"));
                return given.equals(copies);
            });
        } finally {
            configure(producer, topic, "", "", "");
        }
        equal(Map.of(), ours(env, topic, run), "messages of transactions that nobody committed");
        Map<String, Integer> unasked = new HashMap<>();
        prepared.forEach(text -> unasked.put(text, checks.getOrDefault(text, 0)));
        unasked.values().removeIf(count -> count > 0);
        equal(Map.of(), unasked, "transactions that nobody was asked about");
        env.note(prepared.size() + " prepared and given up, " + checks.values().stream().mapToInt(n -> n).sum() + " checks");
    }

    /** What `mqadmin updateBrokerConfig` does on every broker. */
    private static void configure(DefaultMQProducer client, String topic, String timeout, String interval, String max) throws Exception {
        Properties settings = new Properties();
        settings.setProperty("transactionTimeOut", timeout);
        settings.setProperty("transactionCheckInterval", interval);
        settings.setProperty("transactionCheckMax", max);
        again(() -> {
            Leaders leaders = Leaders.of(client, topic);
            for (String leader : leaders.addresses()) {
                leaders.api().updateBrokerConfig(leader, settings, Leaders.TIMEOUT_MS);
            }
            return null;
        });
    }

    /** How often each text of this run is stored in a topic, which may not be there yet. */
    private static Map<String, Integer> ours(Env env, String topic, String run) throws Exception {
        Map<String, Integer> copies = new HashMap<>();
        for (MessageExt message : again(() -> env.readAll(topic)).messages()) {
            if (text(message).startsWith(run)) {
                copies.merge(text(message), 1, Integer::sum);
            }
        }
        return copies;
    }

    /** What was popped and acknowledged with others by one call never comes again, and everything comes. */
    private static void popBatch(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 1));
        String group = env.name("g");
        DefaultMQProducer producer = env.producer();
        again(() -> {
            Popping.popMode(producer, topic, group, 1_000);
            return null;
        });
        List<MessageQueue> queues = List.copyOf(again(() -> producer.fetchPublishMessageQueues(topic)));
        OrderPop pops = new OrderPop(env.producer(), topic, group);
        Kills.Sending sending = new Kills.Sending(producer, topic);
        Set<String> texts = new HashSet<>();
        Map<MessageQueue, Set<Long>> acknowledged = new HashMap<>();
        int batches = 0;
        while (!sending.isRead(ledger -> texts.containsAll(ledger.texts()))) {
            for (MessageQueue queue : queues) {
                Set<Long> before = acknowledged.computeIfAbsent(queue, q -> new HashSet<>());
                long asked = System.nanoTime();
                try {
                    OrderPop.Given given = pops.popAny(queue, BATCH, INVISIBLE_MS);
                    for (MessageExt message : given.messages()) {
                        texts.add(text(message));
                        check(!before.contains(message.getQueueOffset()), message.getQueueOffset() + " of " + queue + " comes again, though it was acknowledged");
                    }
                    if (given.messages().isEmpty() || !pops.acknowledgeBatch(queue, given.messages())) {
                        continue;
                    }
                    // One that took longer may have come when they were given again.
                    if (System.nanoTime() - asked < INVISIBLE_MS * 1_000_000) {
                        given.messages().forEach(message -> before.add(message.getQueueOffset()));
                        batches++;
                    }
                } catch (InterruptedException e) {
                    throw e;
                } catch (Exception e) {
                    // What was given comes again when its time is over.
                }
            }
            Thread.sleep(PACE_MS);
        }
        check(batches > 0, "no batch was acknowledged");
        env.note(sending.ledger().texts().size() + " acknowledged by the broker, " + batches + " batches by the member");
    }
}
