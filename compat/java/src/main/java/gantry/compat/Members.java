package gantry.compat;

import static gantry.compat.Env.await;
import static gantry.compat.Env.check;
import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.sent;
import static gantry.compat.Env.text;
import static gantry.compat.Sending.numbered;

import java.time.Instant;
import java.time.ZoneId;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Members of a group: how soon they hear of each other, where a new group starts, and a member that pauses. */
final class Members {
    private static final int QUEUES = 4;
    /** A member that is told shares its queues at once; one that is not looks every 20 s. */
    private static final int NOTICE_SECONDS = 6;

    private Members() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        scenarios.put("rebalance_notice", Members::notice);
        scenarios.put("consume_from_where", Members::fromWhere);
        scenarios.put("push_suspend", Members::suspend);
        scenarios.put("push_strategies", Members::strategies);
        scenarios.put("push_orderly_dead_letters", Members::orderlyDeadLetters);
    }

    private static DefaultMQPushConsumer started(DefaultMQPushConsumer consumer, String topic, Inbox inbox) throws Exception {
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.concurrently());
        consumer.start();
        return consumer;
    }

    private static long owned(DefaultMQPushConsumer consumer, String topic) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream().filter(q -> q.getTopic().equals(topic)).count();
    }

    /** Five joins and five leaves, each of them noticed long before the first member would have looked. */
    private static void notice(Env env) throws Exception {
        String topic = env.topic("t", QUEUES);
        String group = env.name("g");
        long all = env.producer().fetchPublishMessageQueues(topic).size();
        DefaultMQPushConsumer first = started(env.pushConsumer(group), topic, new Inbox());
        await("the first member to own all queues", 60, () -> owned(first, topic) == all);
        for (int round = 0; round < 5; round++) {
            DefaultMQPushConsumer second = started(env.pushConsumer(group), topic, new Inbox());
            // A client may skip its first heartbeat, and is then unknown for 30 s.
            await("the second member to own half of the queues", 60, () -> owned(second, topic) == all / 2);
            await("the first member to give half of its queues away", NOTICE_SECONDS, () -> owned(first, topic) == all / 2);
            second.shutdown();
            await("the first member to take them back", NOTICE_SECONDS, () -> owned(first, topic) == all);
        }
    }

    private static void fromWhere(Env env) throws Exception {
        String topic = env.topic("t", QUEUES);
        DefaultMQProducer producer = env.producer();
        for (String body : numbered(0, 20)) {
            sent(producer.send(message(topic, body)));
        }
        // Times are given by the second.
        Thread.sleep(2_100);
        long between = System.currentTimeMillis();
        Thread.sleep(2_100);
        for (String body : numbered(20, 40)) {
            sent(producer.send(message(topic, body)));
        }
        Inbox first = new Inbox();
        started(env.pushConsumer(env.name("first")), topic, first);
        first.awaitExactly(numbered(0, 40), 60);

        // From the end, but for a topic whose first messages are still in memory: there a new group gets them all.
        Inbox last = new Inbox();
        DefaultMQPushConsumer fromLast = env.pushConsumer(env.name("last"));
        fromLast.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        started(fromLast, topic, last);
        last.awaitExactly(numbered(0, 40), 60);

        // A group that has a place goes on there, whatever it says now.
        fromLast.shutdown();
        for (String body : numbered(40, 50)) {
            sent(producer.send(message(topic, body)));
        }
        Inbox again = new Inbox();
        DefaultMQPushConsumer fromTime = env.pushConsumer(env.name("last"));
        fromTime.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
        fromTime.setConsumeTimestamp(DateTimeFormatter.ofPattern("yyyyMMddHHmmss").withZone(ZoneId.systemDefault()).format(Instant.ofEpochMilli(between)));
        started(fromTime, topic, again);
        again.awaitExactly(numbered(40, 50), 60);
    }

    /** A member that pauses keeps its queues, and goes on where it was. */
    private static void suspend(Env env) throws Exception {
        String topic = env.topic("t", QUEUES);
        DefaultMQProducer producer = env.producer();
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = started(env.pushConsumer(env.name("g")), topic, inbox);
        sent(producer.send(message(topic, "before")));
        inbox.awaitExactly(List.of("before"), 60);
        consumer.suspend();
        for (String body : numbered(0, 100)) {
            sent(producer.send(message(topic, body)));
        }
        Thread.sleep(3_000);
        // Pulls that waited when it paused still bring what they bring.
        int paused = inbox.size();
        check(paused < 101, "all messages came while it paused");
        Thread.sleep(2_000);
        equal(paused, inbox.size(), "messages while it pauses");
        consumer.resume();
        await("all messages", 30, () -> inbox.covers(numbered(0, 100)));
        equal(101, inbox.size(), "messages that came");
    }

    /** Whatever way members agree on to share queues out, each queue has one of them, and each message comes once. */
    private static void strategies(Env env) throws Exception {
        for (Callable<AllocateMessageQueueStrategy> strategy : List.<Callable<AllocateMessageQueueStrategy>>of(
            AllocateMessageQueueAveragely::new, AllocateMessageQueueAveragelyByCircle::new, AllocateMessageQueueConsistentHash::new)) {
            String kind = strategy.call().getName();
            String topic = env.topic(kind.toLowerCase(), QUEUES);
            String group = env.name(kind.toLowerCase());
            DefaultMQProducer producer = env.producer();
            long all = producer.fetchPublishMessageQueues(topic).size();
            Inbox inbox = new Inbox();
            List<DefaultMQPushConsumer> members = new ArrayList<>();
            for (int i = 0; i < 2; i++) {
                DefaultMQPushConsumer member = env.pushConsumer(group);
                member.setAllocateMessageQueueStrategy(strategy.call());
                members.add(started(member, topic, inbox));
            }
            await(kind + " to give every queue to one of two members", 60,
                () -> owned(members.get(0), topic) > 0 && owned(members.get(1), topic) > 0 && owned(members.get(0), topic) + owned(members.get(1), topic) == all);
            for (String body : numbered(0, 100)) {
                sent(producer.send(message(topic, body)));
            }
            inbox.awaitExactly(numbered(0, 100), 60);
        }
    }

    /** In order, a message that fails holds its queue up until it has failed too often; then it is dead and the next one comes. */
    private static void orderlyDeadLetters(Env env) throws Exception {
        String topic = env.topic("t", 1);
        String group = env.name("g");
        DefaultMQProducer producer = env.producer();
        MessageQueue queue = producer.fetchPublishMessageQueues(topic).get(0);
        List<String> tries = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = env.pushConsumer(group);
        consumer.setMaxReconsumeTimes(2);
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((List<MessageExt> batch, ConsumeOrderlyContext context) -> {
            tries.add(text(batch.get(0)));
            return text(batch.get(0)).equals("hopeless") ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        for (String body : List.of("before", "hopeless", "after")) {
            sent(producer.send(message(topic, body), queue));
        }
        await("the message behind the hopeless one", 60, () -> tries.contains("after"));
        equal(List.of("before", "hopeless", "hopeless", "hopeless", "after"), List.copyOf(tries), "what the consumer was given");
        String dead = "%DLQ%" + group;
        Env.awaitTopic(producer, dead);
        Inbox letters = new Inbox();
        started(env.pushConsumer(env.name("reader")), dead, letters);
        letters.awaitExactly(List.of("hopeless"), 60);
        Thread.sleep(2_500);
        equal(5, tries.size(), "tries after the message was dead");
    }
}
