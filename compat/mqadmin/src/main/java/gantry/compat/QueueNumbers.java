package gantry.compat;

import static gantry.compat.Tool.await;
import static gantry.compat.Tool.check;
import static gantry.compat.Tool.equal;
import static gantry.compat.Tool.rows;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * A topic gets more queues and fewer while messages are sent and consumed. Fewer in two steps: first those that are
 * written, and once the others are empty those that are read. Nothing is lost, and no send fails.
 */
final class QueueNumbers {
    private final Fixture on;
    private final Tool tool;
    private final String topic;
    private final ConcurrentLinkedQueue<SendResult> sent = new ConcurrentLinkedQueue<>();
    private final Set<String> consumed = ConcurrentHashMap.newKeySet();
    private volatile Throwable fault;
    private volatile boolean sending = true;
    private DefaultMQProducer producer;

    QueueNumbers(Fixture on) {
        this.on = on;
        this.tool = on.tool;
        this.topic = on.topic + "_queues";
    }

    void addTo(Map<String, Mqadmin.Step> steps) {
        steps.put("updateTopic, queues come and go under load", this::change);
    }

    private void put(int read, int write) throws Exception {
        tool.run("updateTopic", "-c", on.cluster, "-t", topic, "-r", "" + read, "-w", "" + write);
    }

    private long sentTo(int from, long since) {
        return sent.stream().skip(since).filter(result -> result.getMessageQueue().getQueueId() >= from).count();
    }

    private void change() throws Exception {
        put(4, 4);
        producer = new DefaultMQProducer(on.producerGroup + "_queues");
        producer.setNamesrvAddr(on.namesrv);
        producer.setInstanceName(topic + "_p");
        producer.setPollNameServerInterval(1_000);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(on.group + "_queues");
        consumer.setNamesrvAddr(on.namesrv);
        consumer.setInstanceName(topic + "_c");
        consumer.setPollNameServerInterval(1_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            batch.forEach(message -> consumed.add(message.getMsgId()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        producer.start();
        consumer.start();
        Thread load = new Thread(this::send, "load");
        load.setUncaughtExceptionHandler((thread, e) -> fault = e);
        load.start();
        try {
            await("messages", 60, () -> sent.size() > 200);
            put(8, 8);
            await("the new queues to be written", 40, () -> sentTo(7, 0) > 0);
            await("the new queues to be read", 60, () -> sent.stream().filter(r -> r.getMessageQueue().getQueueId() == 7).limit(1).allMatch(r -> consumed.contains(r.getMsgId())));
            put(8, 2);
            await("only the first queues to be written", 40, () -> {
                long before = sent.size();
                Thread.sleep(2_000);
                return sent.size() > before && sentTo(2, before) == 0;
            });
            await("the other queues to be empty", 60, () -> sent.stream().filter(r -> r.getMessageQueue().getQueueId() >= 2).allMatch(r -> consumed.contains(r.getMsgId())));
            String full = tool.run("topicStatus", "-t", topic);
            put(2, 2);
            int reached = sent.size();
            await("more messages", 40, () -> sent.size() > reached + 200);
            sending = false;
            load.join();
            check(fault == null, "a send failed: " + fault, "");
            await("all messages to be consumed", 60, () -> sent.stream().allMatch(r -> consumed.contains(r.getMsgId())));
            equal(sent.size(), consumed.size(), "messages consumed", "");
            // A queue that comes back goes on where it was.
            put(8, 8);
            String again = tool.run("topicStatus", "-t", topic);
            for (String name : on.brokerNames) {
                equal(end(full, name, 5), end(again, name, 5), "end of queue 5 of " + name, again);
            }
        } finally {
            sending = false;
            consumer.shutdown();
            producer.shutdown();
            tool.attempt("deleteTopic", "-c", on.cluster, "-t", topic);
        }
    }

    private void send() {
        try {
            while (sending) {
                sent.add(producer.send(new Message(topic, new byte[100])));
                Thread.sleep(5);
            }
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    private static String end(String status, String broker, int queue) {
        List<String[]> found = rows(status, row -> row.length > 3 && row[0].equals(broker) && row[1].equals("" + queue));
        check(found.size() == 1, "no queue " + queue + " of " + broker, status);
        return found.get(0)[3];
    }
}
