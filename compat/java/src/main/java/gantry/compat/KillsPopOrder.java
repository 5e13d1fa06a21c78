package gantry.compat;

import static gantry.compat.Env.check;
import static gantry.compat.Env.text;
import static gantry.compat.Kills.PACE_MS;
import static gantry.compat.Kills.again;
import static gantry.compat.Kills.awaitAll;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.FutureTask;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Two members pop queues in order while leaders are killed. */
final class KillsPopOrder {
    private static final int COUNT = 4;
    private static final long INVISIBLE_MS = 5_000;
    private static final long PAUSE_MS = 300;
    private static final int MEMBERS = 2;

    private final Inbox done = new Inbox();
    private final Map<String, Integer> failed = new ConcurrentHashMap<>();
    private final List<Giving> givings = new ArrayList<>();
    private volatile boolean isEnough;

    private KillsPopOrder() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        if (Popping.isKnown()) {
            scenarios.put("kills_pop_order", env -> new KillsPopOrder().run(env));
        }
    }

    /** What a member was given, and when, by this machine's clock, it first said that a message may pass on. */
    private record Giving(OrderPop.Given given, long receivedNs, Map<Long, Long> releasedNs) {
        void release(MessageExt message) {
            releasedNs.putIfAbsent(message.getQueueOffset(), System.nanoTime());
        }
    }

    /**
     * Each order is given in its order, though some messages fail at first. Nothing of a queue is given while something
     * else of it is under way.
     */
    private void run(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 1));
        String group = env.name("g");
        DefaultMQProducer producer = env.producer();
        again(() -> {
            Popping.popMode(producer, topic, group, 1_000);
            return null;
        });
        List<MessageQueue> queues = List.copyOf(again(() -> producer.fetchPublishMessageQueues(topic)));
        List<FutureTask<Integer>> members = new ArrayList<>();
        for (int i = 0; i < MEMBERS; i++) {
            OrderPop pops = new OrderPop(env.producer(), topic, group);
            FutureTask<Integer> member = new FutureTask<>(() -> consume(pops, queues));
            members.add(member);
            new Thread(member).start();
        }
        Kills.Ledger ledger = new Kills.Ledger();
        int unanswered = 0;
        int steps;
        try {
            steps = Kills.sendSteps(producer, topic, ledger);
            awaitAll(ledger.texts(), done, ledger.texts());
        } finally {
            isEnough = true;
        }
        for (FutureTask<Integer> member : members) {
            unanswered += member.get();
        }
        Kills.checkSteps(done.messages(), steps);
        check(!failed.isEmpty(), "no message failed at first");
        synchronized (givings) {
            for (MessageQueue queue : queues) {
                checkOneAtATime(givings.stream().filter(one -> one.given().queue().equals(queue)).toList());
            }
            env.note(ledger.texts().size() + " acknowledged, " + givings.size() + " pops, " + unanswered + " made again, " + done.size() + " succeeded, "
                + failed.size() + " of them failed at first");
        }
    }

    /** Pops one queue after the other; how many pops were not answered. */
    private int consume(OrderPop pops, List<MessageQueue> queues) throws Exception {
        Map<MessageQueue, String> attempts = new HashMap<>();
        int unanswered = 0;
        while (!isEnough) {
            boolean isIdle = true;
            for (MessageQueue queue : queues) {
                // One that is not answered is made again, to be given the same.
                String attempt = attempts.computeIfAbsent(queue, q -> UUID.randomUUID().toString());
                OrderPop.Given given;
                try {
                    given = pops.pop(queue, attempt, COUNT, INVISIBLE_MS);
                } catch (InterruptedException e) {
                    throw e;
                } catch (Exception e) {
                    unanswered++;
                    continue;
                }
                attempts.remove(queue);
                if (!given.messages().isEmpty()) {
                    isIdle = false;
                    consume(pops, given);
                }
            }
            if (isIdle) {
                Thread.sleep(PACE_MS);
            }
        }
        return unanswered;
    }

    private void consume(OrderPop pops, OrderPop.Given given) throws Exception {
        Giving giving = new Giving(given, System.nanoTime(), new ConcurrentHashMap<>());
        synchronized (givings) {
            givings.add(giving);
        }
        boolean hasFailed = false;
        for (MessageExt message : given.messages()) {
            String text = text(message);
            hasFailed |= text.endsWith("2") && failed.merge(text, 1, Integer::sum) == 1;
            if (!hasFailed) {
                Thread.sleep(2);
                done.orderly().consumeMessage(List.of(message), null);
            }
            giving.release(message);
            try {
                // What lies behind one that failed waits as long.
                if (hasFailed) {
                    pops.giveAgainIn(PAUSE_MS, given.queue(), message);
                } else {
                    pops.acknowledge(given.queue(), message);
                }
            } catch (InterruptedException e) {
                throw e;
            } catch (Exception e) {
                // It is given again when its time is over.
            }
        }
    }

    /** While a message was under way to one who did not let go of it, nothing of its queue was given. */
    private static void checkOneAtATime(List<Giving> ofQueue) {
        List<Giving> sorted = ofQueue.stream().sorted(Comparator.comparingLong(one -> one.given().popMs())).toList();
        for (int i = 0; i < sorted.size(); i++) {
            Giving later = sorted.get(i);
            for (int k = i - 1; k >= 0; k--) {
                Giving earlier = sorted.get(k);
                if (earlier.given().untilMs() <= later.given().popMs()) {
                    break;
                }
                if (earlier.given().popMs() == later.given().popMs() || earlier.given().attempt().equals(later.given().attempt())) {
                    continue;
                }
                for (MessageExt message : earlier.given().messages()) {
                    Long released = earlier.releasedNs().get(message.getQueueOffset());
                    check(released != null && released < later.receivedNs(), "messages of " + later.given().queue() + " from "
                        + later.given().messages().get(0).getQueueOffset() + " on were given while " + message.getQueueOffset() + " was under way");
                }
            }
        }
    }
}
