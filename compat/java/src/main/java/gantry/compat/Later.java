package gantry.compat;

import static gantry.compat.Env.await;
import static gantry.compat.Env.check;
import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.sent;
import static gantry.compat.Env.text;

import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages that come later: delay levels, further tries, dead letters. */
final class Later {
    private static final int DELAY_LEVEL = 2;
    private static final long DELAY_MS = 5_000;

    private Later() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        scenarios.put("delay_levels", Later::delayLevels);
        scenarios.put("retry", Later::retry);
        scenarios.put("dead_letters", Later::deadLetters);
    }

    /** Each message comes once, not before its time and not long after it. */
    private static void delayLevels(Env env) throws Exception {
        Arrivals arrivals = new Arrivals(env);
        for (int i = 0; i < 100; i++) {
            Message message = message(arrivals.topic, "later-" + i);
            message.setDelayTimeLevel(DELAY_LEVEL);
            message.setTags("tag");
            arrivals.send(message, System.currentTimeMillis() + DELAY_MS);
        }
        arrivals.awaitAll(env);
        for (MessageExt message : arrivals.inbox.messages()) {
            if (text(message).startsWith("later")) {
                equal("tag", message.getTags(), "the tag of " + text(message));
            }
        }
    }

    /** A message that fails comes again, each time after a pause and with its count, until it succeeds. */
    private static void retry(Env env) throws Exception {
        String topic = env.topic("t", 2);
        List<MessageExt> tries = new CopyOnWriteArrayList<>();
        List<Long> times = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = env.pushConsumer(env.name("g"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((List<MessageExt> batch, ConsumeConcurrentlyContext context) -> {
            times.add(System.currentTimeMillis());
            tries.addAll(batch);
            // The broker's own choice for the first pause would be 10 s.
            context.setDelayLevelWhenNextConsume(1);
            return batch.get(0).getReconsumeTimes() < 2 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Message message = message(topic, "hard");
        message.setKeys("key");
        String id = sent(env.producer().send(message)).getMsgId();
        await("three tries", 90, () -> tries.size() == 3);
        for (int i = 0; i < 3; i++) {
            MessageExt attempt = tries.get(i);
            equal(i, attempt.getReconsumeTimes(), "the count of try " + i);
            equal(topic, attempt.getTopic(), "the topic of try " + i);
            equal("key", attempt.getKeys(), "the key of try " + i);
            equal(id, attempt.getMsgId(), "the id of try " + i);
            check(i == 0 || times.get(i) - times.get(i - 1) >= 1_000, "try " + i + " came after " + (i == 0 ? 0 : times.get(i) - times.get(i - 1)) + " ms");
        }
        Thread.sleep(2_500);
        equal(3, tries.size(), "tries after one that succeeded");
    }

    /** A message that fails too often goes to the dead letters, once. */
    private static void deadLetters(Env env) throws Exception {
        String topic = env.topic("t", 1);
        String group = env.name("g");
        Inbox tries = new Inbox();
        DefaultMQPushConsumer consumer = env.pushConsumer(group);
        consumer.setMaxReconsumeTimes(1);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((List<MessageExt> batch, ConsumeConcurrentlyContext context) -> {
            context.setDelayLevelWhenNextConsume(1);
            tries.concurrently().consumeMessage(batch, context);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        DefaultMQProducer producer = env.producer();
        sent(producer.send(message(topic, "hopeless")));
        String dead = "%DLQ%" + group;
        Inbox letters = new Inbox();
        await("two tries", 60, () -> tries.size() == 2);
        await("the topic of dead letters", 60, () -> {
            try {
                return !producer.fetchPublishMessageQueues(dead).isEmpty();
            } catch (Exception e) {
                return false;
            }
        });
        DefaultMQPushConsumer reader = env.pushConsumer(env.name("reader"));
        reader.subscribe(dead, "*");
        reader.registerMessageListener(letters.concurrently());
        reader.start();
        letters.awaitExactly(List.of("hopeless"), 60);
        Thread.sleep(2_500);
        equal(2, tries.size(), "tries of a group that takes a message twice");
    }
}
