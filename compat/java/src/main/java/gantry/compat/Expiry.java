package gantry.compat;

import static gantry.compat.Env.await;
import static gantry.compat.Env.check;
import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.sent;
import static gantry.compat.Sending.numbered;

import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Messages that have outlived their topic's retention. Needs a client that can set attributes of a topic, 5.x. */
final class Expiry {
    private static final int KEPT_SECONDS = 20;

    private Expiry() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        if (Env.setsAttributes()) {
            scenarios.put("topic_retention", Expiry::topicRetention);
        }
    }

    @SuppressWarnings("deprecation")
    private static void topicRetention(Env env) throws Exception {
        String topic = env.topic("t", 1, Map.of("+reserve.time", KEPT_SECONDS + "s"));
        String group = env.name("g");
        DefaultMQProducer producer = env.producer();
        MessageQueue queue = producer.fetchPublishMessageQueues(topic).stream().sorted().findFirst().orElseThrow();
        SendResult first = null;
        for (String body : numbered(0, 10)) {
            Message message = message(topic, body);
            message.setKeys("key" + body);
            SendResult result = sent(producer.send(message, queue));
            first = first == null ? result : first;
        }
        DefaultMQPullConsumer consumer = env.pullConsumer(group);
        equal(PullStatus.FOUND, consumer.pull(queue, "*", 4, 1).getPullStatus(), "status while the message is there");
        check(producer.viewMessage(topic, first.getMsgId()) != null, "the first message is not found by its id");
        // 4 was the last one consumed.
        await("the broker to take the group's offset", 40, () -> {
            consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory().sendHeartbeatToAllBrokerWithLock();
            try {
                consumer.getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(queue, 4, false);
                return true;
            } catch (MQBrokerException e) {
                return false;
            }
        });

        // The broker looks every ten seconds.
        await("the messages to expire", KEPT_SECONDS + 30, () -> consumer.minOffset(queue) == 10);
        equal(10L, consumer.maxOffset(queue), "end of a queue whose messages have expired");
        PullResult expired = consumer.pull(queue, "*", 4, 32);
        equal(PullStatus.OFFSET_ILLEGAL, expired.getPullStatus(), "status at an expired offset");
        equal(10L, expired.getNextBeginOffset(), "where a consumer at an expired offset goes on");
        equal(10L, expired.getMinOffset(), "min offset in the answer");
        equal(10L, consumer.searchOffset(queue, 0), "offset by a time before everything");
        try {
            producer.viewMessage(topic, first.getMsgId());
            throw new AssertionError("an expired message is found by its id");
        } catch (MQClientException | MQBrokerException e) {
            // As it must be.
        }
        consumer.shutdown();

        for (String body : numbered(10, 15)) {
            equal(Long.parseLong(body.replaceAll("\\D", "")), sent(producer.send(message(topic, body), queue)).getQueueOffset(), "offset after those that expired");
        }
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer next = env.pushConsumer(group);
        next.subscribe(topic, "*");
        next.registerMessageListener(inbox.concurrently());
        next.start();
        inbox.awaitExactly(numbered(10, 15), KEPT_SECONDS);
    }
}
