package gantry.compat;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** What the commands look at: a cluster, a topic with messages in every queue, and a group that has consumed them. */
final class Fixture {
    static final int MESSAGES = 24;
    static final int QUEUES = 4;

    final Tool tool;
    final String namesrv;
    final String run = Long.toString(System.currentTimeMillis(), 36);
    final String topic = "mqadmin_t_" + run;
    final String group = "mqadmin_g_" + run;
    final String producerGroup = "mqadmin_pg_" + run;
    /** Ids of the messages that the consumer was given, as often as it was. */
    final ConcurrentLinkedQueue<String> consumed = new ConcurrentLinkedQueue<>();
    /** How many of them it had popped. */
    final AtomicInteger popped = new AtomicInteger();

    String cluster;
    /** Name and leader's address of each broker. */
    List<String> brokerNames = List.of();
    List<String> leaders = List.of();
    boolean isApache;
    List<SendResult> sent = new ArrayList<>();
    DefaultMQProducer producer;
    DefaultMQPushConsumer consumer;

    Fixture(String namesrv) {
        this.namesrv = namesrv;
        this.tool = new Tool(namesrv);
    }

    SendResult last() {
        return sent.get(sent.size() - 1);
    }

    void send(int count) throws Exception {
        if (producer == null) {
            producer = new DefaultMQProducer(producerGroup);
            producer.setNamesrvAddr(namesrv);
            producer.setInstanceName(producerGroup);
            producer.start();
        }
        for (int i = 0; i < count; i++) {
            int number = sent.size();
            Message message = new Message(topic, number % 2 == 0 ? "Even" : "Odd", "key" + number, ("body " + number).getBytes(StandardCharsets.UTF_8));
            sent.add(producer.send(message));
        }
    }

    /** Something to be done with a consumer before it is started. */
    interface Setting {
        void set(DefaultMQPushConsumer consumer) throws Exception;
    }

    /** Starts the group's one member. */
    void startConsumer() throws Exception {
        startConsumer(consumer -> { });
    }

    void startConsumer(Setting setting) throws Exception {
        consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            popped.addAndGet((int) batch.stream().filter(message -> message.getProperty("POP_CK") != null).count());
            batch.forEach(message -> consumed.add(message.getMsgId()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        setting.set(consumer);
        consumer.start();
    }

    /** Waits until every message has come {@code times} times, and the client is done with them. It says where it is later. */
    void awaitConsumed(int times) throws Exception {
        Tool.await("every message to come " + times + " times", 60, () -> consumed.size() >= sent.size() * times
            && sent.stream().allMatch(s -> consumed.stream().filter(s.getMsgId()::equals).count() >= times));
        Tool.await("the consumer to be done", 10, () -> consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl()
            .getProcessQueueTable().values().stream().allMatch(q -> q.getMsgCount().get() == 0));
    }

    String clientId() {
        return consumer.buildMQClientId();
    }

    void stop() {
        if (consumer != null) {
            consumer.shutdown();
            consumer = null;
        }
        if (producer != null) {
            producer.shutdown();
            producer = null;
        }
    }
}
