package gantry.compat;

import static gantry.compat.Env.check;
import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.sent;
import static gantry.compat.Env.text;
import static gantry.compat.Sending.numbered;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers that ask: the plain pull consumer and the lite one. */
final class Pulling {
    private Pulling() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        scenarios.put("pull", Pulling::pull);
        scenarios.put("pull_offsets", Pulling::offsets);
        scenarios.put("lite_pull", Pulling::litePull);
        scenarios.put("lite_pull_assign", Pulling::litePullAssign);
    }

    private static MessageQueue fill(Env env, String topic, int count) throws Exception {
        DefaultMQProducer producer = env.producer();
        MessageQueue queue = producer.fetchPublishMessageQueues(topic).stream().sorted().findFirst().orElseThrow();
        int number = 0;
        for (String body : numbered(0, count)) {
            Message message = message(topic, body);
            message.setTags(number++ % 2 == 0 ? "Even" : "Odd");
            SendResult result = sent(producer.send(message, queue));
            equal(queue, result.getMessageQueue(), "queue of a message sent to a chosen one");
        }
        return queue;
    }

    /** Every status that a pull can answer with. */
    @SuppressWarnings("deprecation")
    private static void pull(Env env) throws Exception {
        String topic = env.topic("t", 2);
        MessageQueue queue = fill(env, topic, 100);
        DefaultMQPullConsumer consumer = env.pullConsumer(env.name("g"));
        Env.await("the queue to end at 100", 10, () -> consumer.maxOffset(queue) == 100);
        List<String> bodies = new ArrayList<>();
        long offset = 0;
        while (bodies.size() < 100) {
            PullResult result = consumer.pull(queue, "*", offset, 7);
            equal(PullStatus.FOUND, result.getPullStatus(), "status at " + offset);
            check(result.getMsgFoundList().size() <= 7, "asked for 7 messages, got " + result.getMsgFoundList().size());
            equal(100L, result.getMaxOffset(), "max offset in a pull result");
            result.getMsgFoundList().forEach(m -> bodies.add(text(m)));
            offset = result.getNextBeginOffset();
        }
        equal(numbered(0, 100), bodies, "pulled bodies");

        PullResult end = consumer.pull(queue, "*", 100, 7);
        equal(PullStatus.NO_NEW_MSG, end.getPullStatus(), "status at the end");
        equal(100L, end.getNextBeginOffset(), "next offset at the end");
        PullResult beyond = consumer.pull(queue, "*", 5000, 7);
        equal(PullStatus.OFFSET_ILLEGAL, beyond.getPullStatus(), "status far beyond the end");
        equal(100L, beyond.getNextBeginOffset(), "next offset from far beyond the end");
        PullResult none = consumer.pull(queue, "Neither", 0, 32);
        equal(PullStatus.NO_MATCHED_MSG, none.getPullStatus(), "status when the filter selects nothing");
        PullResult odd = consumer.pull(queue, "Odd", 0, 32);
        equal(PullStatus.FOUND, odd.getPullStatus(), "status when the filter selects some");
        odd.getMsgFoundList().forEach(m -> equal("Odd", m.getTags(), "tag of a selected message"));
    }

    /** Limits of a queue, offsets by time, and the group's own place. */
    @SuppressWarnings("deprecation")
    private static void offsets(Env env) throws Exception {
        String topic = env.topic("t", 2);
        String group = env.name("g");
        MessageQueue queue = fill(env, topic, 20);
        DefaultMQPullConsumer consumer = env.pullConsumer(group);
        equal(0L, consumer.minOffset(queue), "min offset");
        Env.await("the queue to end at 20", 10, () -> consumer.maxOffset(queue) == 20);
        List<MessageExt> stored = env.readAll(topic).queues().get(queue);
        equal(0L, consumer.searchOffset(queue, stored.get(0).getStoreTimestamp() - 1000), "offset by a time before the first message");
        long tenth = consumer.searchOffset(queue, stored.get(10).getStoreTimestamp());
        equal(stored.get(10).getStoreTimestamp(), stored.get((int) tenth).getStoreTimestamp(), "store time found by time");
        equal(20L, consumer.searchOffset(queue, System.currentTimeMillis() + 60_000), "offset by a time after the last message");

        // A broker may say "none", or 0 as long as the queue still has its first message.
        check(consumer.fetchConsumeOffset(queue, true) <= 0, "a group that never committed has a place beyond the first message");
        // A broker takes offsets only of groups that it knows; 4.x otherwise makes itself known within 30 s, and says
        // nothing more while its own heartbeat is under way.
        Env.await("the broker to take the group's offset", 40, () -> {
            consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory().sendHeartbeatToAllBrokerWithLock();
            try {
                consumer.getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(queue, 13, false);
                return true;
            } catch (MQBrokerException e) {
                equal(26, e.getResponseCode(), "refusal of an offset");
                return false;
            }
        });
        Env.await("the committed offset", 20, () -> consumer.fetchConsumeOffset(queue, true) == 13L);
        consumer.shutdown();
        equal(13L, env.pullConsumer(group).fetchConsumeOffset(queue, true), "place of the group for another member");
    }

    private static void litePull(Env env) throws Exception {
        String topic = env.topic("t", 4);
        String group = env.name("g");
        DefaultMQProducer producer = env.producer();
        for (String body : numbered(0, 300)) {
            sent(producer.send(message(topic, body)));
        }
        DefaultLitePullConsumer consumer = env.litePullConsumer(group);
        consumer.subscribe(topic, "*");
        consumer.start();
        equal(numbered(0, 300), poll(consumer, 300), "polled bodies");
        consumer.commitSync();
        consumer.shutdown();

        for (String body : numbered(300, 400)) {
            sent(producer.send(message(topic, body)));
        }
        DefaultLitePullConsumer next = env.litePullConsumer(group);
        next.subscribe(topic, "*");
        next.start();
        equal(numbered(300, 400), poll(next, 100), "bodies polled after a restart");
    }

    private static void litePullAssign(Env env) throws Exception {
        String topic = env.topic("t", 2);
        MessageQueue queue = fill(env, topic, 60);
        DefaultLitePullConsumer consumer = env.litePullConsumer(env.name("g"));
        consumer.setAutoCommit(false);
        consumer.start();
        MessageQueue mine = consumer.fetchMessageQueues(topic).stream().filter(queue::equals).findFirst().orElseThrow();
        consumer.assign(List.of(mine));
        consumer.seek(mine, 25);
        equal(numbered(25, 60), poll(consumer, 35), "bodies from offset 25 on");
        consumer.seekToBegin(mine);
        equal(numbered(0, 60), poll(consumer, 60), "bodies from the beginning");
    }

    /** Polls until `count` messages came, then once more for what must not come. */
    private static List<String> poll(DefaultLitePullConsumer consumer, int count) {
        List<String> bodies = new ArrayList<>();
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (bodies.size() < count && System.nanoTime() < deadline) {
            consumer.poll(1000).forEach(m -> bodies.add(text(m)));
        }
        consumer.poll(1000).forEach(m -> bodies.add(text(m)));
        return bodies.stream().sorted().toList();
    }
}
