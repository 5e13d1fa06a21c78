package gantry.compat;

import static gantry.compat.Env.check;
import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.text;
import static gantry.compat.Kills.PACE_MS;
import static gantry.compat.Kills.again;
import static gantry.compat.Kills.awaitAll;
import static gantry.compat.Kills.isOver;
import static gantry.compat.Kills.sendUntilOver;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Ways to read other than by a plain push consumer, while leaders are killed. */
final class KillsReading {
    private KillsReading() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        scenarios.put("kills_pull", KillsReading::pull);
        scenarios.put("kills_lite_pull", KillsReading::litePull);
        scenarios.put("kills_push_filter", KillsReading::filter);
        scenarios.put("kills_push_broadcast", KillsReading::broadcast);
        scenarios.put("kills_orderly_retry", KillsReading::orderlyRetry);
        scenarios.put("kills_query", KillsReading::query);
        if (Popping.isKnown()) {
            scenarios.put("kills_pop", KillsReading::pop);
        }
    }

    /** One reader goes through every queue: each pull goes on where the one before ended, none is told of another place. */
    @SuppressWarnings("deprecation")
    private static void pull(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        DefaultMQPullConsumer reader = env.pullConsumer(env.name("g"));
        List<MessageQueue> queues = List.copyOf(again(() -> reader.fetchSubscribeMessageQueues(topic)));
        DefaultMQProducer producer = env.producer();
        Kills.Sending sending = new Kills.Sending(producer, topic);
        Map<MessageQueue, List<String>> read = new HashMap<>();
        queues.forEach(queue -> read.put(queue, new ArrayList<>()));
        int pulls = 0;
        while (!sending.isRead(ledger -> ledger.isCoveredBy(read))) {
            for (MessageQueue queue : queues) {
                List<String> texts = read.get(queue);
                long place = texts.size();
                PullResult result = again(() -> reader.pull(queue, "*", place, 32, 5_000));
                pulls++;
                check(result.getPullStatus() == PullStatus.FOUND || result.getPullStatus() == PullStatus.NO_NEW_MSG,
                    "a pull at " + place + " of " + queue + ", which is the next place, answered " + result);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        equal((long) texts.size(), message.getQueueOffset(), "offsets of " + queue + " in a row");
                        texts.add(text(message));
                    }
                }
                equal((long) texts.size(), result.getNextBeginOffset(), "the next place in " + queue);
            }
            Thread.sleep(PACE_MS);
        }
        env.note(sending.ledger().texts().size() + " acknowledged, " + pulls + " pulls, " + read.values().stream().mapToInt(List::size).sum() + " messages");
    }

    /** A lite consumer that commits by itself is given everything. */
    private static void litePull(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        DefaultLitePullConsumer consumer = env.litePullConsumer(env.name("g"));
        consumer.subscribe(topic, "*");
        consumer.start();
        DefaultMQProducer producer = env.producer();
        Kills.Sending sending = new Kills.Sending(producer, topic);
        Set<String> polled = new HashSet<>();
        int messages = 0;
        while (!sending.isRead(ledger -> polled.containsAll(ledger.texts()))) {
            for (MessageExt message : consumer.poll(500)) {
                polled.add(text(message));
                messages++;
            }
        }
        equal(sending.ledger().texts(), new TreeSet<>(polled), "what was polled");
        env.note(polled.size() + " acknowledged, " + messages + " polled");
    }

    /** Two groups, one that selects by an expression, one by tags: each is given all that it selects, and nothing else. */
    private static void filter(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        Inbox byProperties = new Inbox();
        DefaultMQPushConsumer first = env.pushConsumer(env.name("sql"));
        first.subscribe(topic, MessageSelector.bySql("number BETWEEN 3 AND 5 OR kind = 'odd' AND number > 7"));
        first.registerMessageListener(byProperties.concurrently());
        first.start();
        Inbox byTags = new Inbox();
        DefaultMQPushConsumer second = env.pushConsumer(env.name("tags"));
        second.subscribe(topic, "even || seven");
        second.registerMessageListener(byTags.concurrently());
        second.start();
        DefaultMQProducer producer = env.producer();
        Set<String> selected = new TreeSet<>();
        Set<String> tagged = new TreeSet<>();
        int sent = 0;
        for (; !isOver(); sent++) {
            int number = sent % 10;
            Message message = message(topic, "message " + sent);
            message.putUserProperty("number", Integer.toString(number));
            message.putUserProperty("kind", number % 2 == 0 ? "even" : "odd");
            message.setTags(number == 7 ? "seven" : number % 2 == 0 ? "even" : "odd");
            Env.sent(again(() -> producer.send(message)));
            if (number >= 3 && number <= 5 || number == 9) {
                selected.add(text(message));
            }
            if (number % 2 == 0 || number == 7) {
                tagged.add(text(message));
            }
            Thread.sleep(PACE_MS);
        }
        awaitAll(selected, byProperties, selected);
        awaitAll(tagged, byTags, tagged);
        env.note(sent + " acknowledged, " + byProperties.size() + " selected by properties, " + byTags.size() + " by tags");
    }

    /** Each member is given everything. */
    private static void broadcast(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        String group = env.name("g");
        List<Inbox> inboxes = List.of(new Inbox(), new Inbox());
        for (Inbox inbox : inboxes) {
            DefaultMQPushConsumer consumer = env.pushConsumer(group);
            Pushing.setBroadcasting(consumer);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(inbox.concurrently());
            consumer.start();
        }
        Kills.Ledger ledger = sendUntilOver(env.producer(), topic, "message");
        for (Inbox inbox : inboxes) {
            awaitAll(ledger.texts(), inbox, ledger.texts());
        }
        env.note(ledger.texts().size() + " acknowledged, " + inboxes.get(0).size() + " and " + inboxes.get(1).size() + " delivered");
    }

    /** Some messages of an order fail at first: what comes behind them waits. */
    private static void orderlyRetry(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        Inbox done = new Inbox();
        Map<String, Integer> failed = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = env.pushConsumer(env.name("g"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((List<MessageExt> batch, ConsumeOrderlyContext context) -> {
            String text = text(batch.get(0));
            if (text.endsWith("2") && failed.merge(text, 1, Integer::sum) == 1) {
                context.setSuspendCurrentQueueTimeMillis(50);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            return done.orderly().consumeMessage(batch, context);
        });
        consumer.start();
        Kills.Ledger ledger = new Kills.Ledger();
        int steps = Kills.sendSteps(env.producer(), topic, ledger);
        awaitAll(ledger.texts(), done, ledger.texts());
        Kills.checkSteps(done.messages(), steps);
        check(!failed.isEmpty(), "no message failed at first");
        env.note(ledger.texts().size() + " acknowledged, " + done.size() + " succeeded, " + failed.size() + " of them failed at first");
    }

    /** What was acknowledged is found by both ids and by its key, at its place, at once and at the end. */
    private static void query(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        DefaultMQProducer producer = env.producer();
        Map<String, SendResult> results = new HashMap<>();
        String run = env.name("key");
        int number = 0;
        for (; !isOver(); number++) {
            Message message = message(topic, run + number);
            message.setKeys(text(message));
            results.put(text(message), again(() -> producer.send(message)));
            find(producer, topic, text(message), results);
            find(producer, topic, run + number / 2, results);
            Thread.sleep(PACE_MS);
        }
        for (String text : results.keySet()) {
            find(producer, topic, text, results);
        }
        env.note(number + " acknowledged, all found three times");
    }

    @SuppressWarnings("deprecation")
    private static void find(DefaultMQProducer producer, String topic, String text, Map<String, SendResult> results) throws Exception {
        SendResult result = results.get(text);
        for (String id : List.of(result.getOffsetMsgId(), result.getMsgId())) {
            MessageExt found = again(() -> producer.viewMessage(topic, id));
            equal(text, text(found), "what is found by " + id);
        }
        MessageExt byId = again(() -> producer.viewMessage(topic, result.getOffsetMsgId()));
        equal(result.getQueueOffset(), byId.getQueueOffset(), "the place of " + text);
        // A message that was sent again may lie there twice.
        List<MessageExt> byKey = again(() -> producer.queryMessage(topic, text, 32, 0, Long.MAX_VALUE).getMessageList());
        check(!byKey.isEmpty() && byKey.stream().allMatch(m -> text(m).equals(text)), byKey + " is found by " + text);
    }

    /** Two members pop; one leaves in the middle, another joins, and some messages fail at first. */
    private static void pop(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        String group = env.name("g");
        DefaultMQProducer producer = env.producer();
        again(() -> {
            Popping.popMode(producer, topic, group, 16);
            return null;
        });
        Inbox done = new Inbox();
        Map<String, Integer> failed = new ConcurrentHashMap<>();
        DefaultMQPushConsumer first = popper(env, group, topic, done, failed);
        popper(env, group, topic, done, failed);
        Thread change = new Thread(() -> {
            try {
                while (!isOver()) {
                    Thread.sleep(PACE_MS);
                    if (failed.size() >= 3) {
                        break;
                    }
                }
                first.shutdown();
                popper(env, group, topic, done, failed);
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        });
        change.start();
        Kills.Ledger ledger = sendUntilOver(producer, topic, "message");
        change.join();
        awaitAll(ledger.texts(), done, ledger.texts());
        check(!failed.isEmpty(), "no message failed at first");
        check(Popping.popped(done), "messages came without the property of a pop: this client pulls");
        ledger.checkStored(env, topic);
        env.note(ledger.texts().size() + " acknowledged, " + done.size() + " succeeded, " + failed.size() + " of them failed at first");
    }

    private static DefaultMQPushConsumer popper(Env env, String group, String topic, Inbox done, Map<String, Integer> failed) throws Exception {
        DefaultMQPushConsumer consumer = Popping.popper(env, group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((List<MessageExt> batch, ConsumeConcurrentlyContext context) -> {
            String text = text(batch.get(0));
            if (text.endsWith("2") && failed.merge(text, 1, Integer::sum) == 1) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return done.concurrently().consumeMessage(batch, context);
        });
        consumer.start();
        return consumer;
    }
}
