package gantry.compat;

import static gantry.compat.Env.await;
import static gantry.compat.Env.check;
import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.sent;
import static gantry.compat.Env.text;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A topic whose consumer is at work, for messages that come later: when each may come, and when it did. */
final class Arrivals {
    final String topic;
    final Inbox inbox = new Inbox();
    final DefaultMQProducer producer;
    private final List<String> expected = new ArrayList<>();
    private final Map<String, Long> due = new ConcurrentHashMap<>();
    private final Map<String, Long> arrived = new ConcurrentHashMap<>();

    Arrivals(Env env) throws Exception {
        topic = env.topic("t", 2);
        DefaultMQPushConsumer consumer = env.pushConsumer(env.name("g"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((List<MessageExt> batch, ConsumeConcurrentlyContext context) -> {
            batch.forEach(m -> arrived.putIfAbsent(text(m), System.currentTimeMillis()));
            return inbox.concurrently().consumeMessage(batch, context);
        });
        consumer.start();
        producer = env.producer();
        // A client that makes out a new subscription while another of its threads sends a heartbeat leaves its own out, and
        // its pulls are refused until the next one, 30 s later. So every queue must flow before a time is taken.
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        for (MessageQueue queue : queues) {
            Message message = message(topic, "at once to " + queue.getBrokerName() + " " + queue.getQueueId());
            expected.add(text(message));
            sent(producer.send(message, queue));
        }
        await("the consumer to be at work", 60, () -> inbox.size() == queues.size());
    }

    /** Sends a message that may come at a time, in milliseconds since 1970, or soon after; 0: whenever. */
    SendResult send(Message message, long time) throws Exception {
        if (time > 0) {
            due.put(text(message), time);
        }
        expected.add(text(message));
        SendResult result = sent(producer.send(message));
        equal(topic, result.getMessageQueue().getTopic(), "the topic in the answer");
        return result;
    }

    /** A message that was sent is not to come. */
    void cancelled(Message message) {
        expected.remove(text(message));
        due.remove(text(message));
    }

    /** Waits until everything has come, each once and not before its time; how late is told as a figure. */
    void awaitAll(Env env) throws Exception {
        inbox.awaitExactly(expected, 30);
        long latest = 0;
        for (Map.Entry<String, Long> entry : due.entrySet()) {
            long late = arrived.get(entry.getKey()) - entry.getValue();
            check(late >= 0, entry.getKey() + " came " + -late + " ms before its time");
            latest = Math.max(latest, late);
        }
        for (MessageExt message : inbox.messages()) {
            equal(topic, message.getTopic(), "the topic of " + text(message));
        }
        env.note("at most " + latest + " ms late");
    }
}
