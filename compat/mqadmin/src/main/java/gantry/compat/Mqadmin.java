package gantry.compat;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs mqadmin's commands as its script does and checks what they print; exits with 1 if any fails. */
public final class Mqadmin {
    private static final int MESSAGES = 24;
    private static final int QUEUES = 4;

    private final PrintStream console = System.out;
    private final String run = Long.toString(System.currentTimeMillis(), 36);
    private final String topic = "mqadmin_t_" + run;
    private final String group = "mqadmin_g_" + run;
    private final String namesrv;
    private List<String> brokerNames = List.of();
    private SendResult lastSent;

    private interface Step {
        void run() throws Exception;
    }

    private Mqadmin(String namesrv) {
        this.namesrv = namesrv;
    }

    public static void main(String[] args) {
        if (args.length != 1) {
            System.err.println("usage: Mqadmin NAMESRV");
            System.exit(2);
        }
        System.exit(new Mqadmin(args[0]).runAll() ? 0 : 1);
    }

    /** The steps build on each other: a topic is made, filled, consumed, looked at, and deleted. */
    private boolean runAll() {
        Map<String, Step> steps = new LinkedHashMap<>();
        steps.put("clusterList", this::clusterList);
        steps.put("updateTopic", this::updateTopic);
        steps.put("topicRoute", this::topicRoute);
        steps.put("topicList", this::topicList);
        steps.put("topicStatus", this::topicStatus);
        steps.put("consumerProgress", this::consumerProgress);
        steps.put("queryMsgById", this::queryMsgById);
        steps.put("queryMsgByKey", this::queryMsgByKey);
        steps.put("deleteTopic", this::deleteTopic);
        boolean passed = true;
        for (Map.Entry<String, Step> step : steps.entrySet()) {
            long started = System.nanoTime();
            Throwable fault = null;
            try {
                step.getValue().run();
            } catch (Exception | AssertionError e) {
                fault = e;
                passed = false;
            }
            double seconds = (System.nanoTime() - started) / 1e9;
            if (fault == null) {
                console.printf("PASS %s (%.1f s)%n", step.getKey(), seconds);
            } else {
                console.printf("FAIL %s %s (%.1f s)%n", step.getKey(), String.valueOf(fault.getMessage()).replaceAll("\\s+", " "), seconds);
                fault.printStackTrace();
            }
        }
        return passed;
    }

    private void clusterList() throws Exception {
        String printed = admin("clusterList");
        // Cluster, broker name, id, address, version.
        brokerNames = printed.lines().map(line -> line.trim().split("\\s+"))
            .filter(row -> row.length > 4 && row[2].equals("0") && row[3].matches("[0-9.]+:[0-9]+")).map(row -> row[1]).sorted().distinct().toList();
        check(!brokerNames.isEmpty(), "no broker with id 0", printed);
        check(printed.contains("V5_"), "no version that the tool knows", printed);
    }

    private void updateTopic() throws Exception {
        String cluster = admin("clusterList").lines().map(line -> line.trim().split("\\s+"))
            .filter(row -> row.length > 4 && row[2].equals("0")).findFirst().orElseThrow()[0];
        String printed = admin("updateTopic", "-c", cluster, "-t", topic, "-r", "" + QUEUES, "-w", "" + QUEUES);
        equal((long) brokerNames.size(), printed.lines().filter(l -> l.matches("create topic to .* success\\.")).count(), "groups that took the topic", printed);
        check(printed.contains("TopicConfig [topicName=" + topic), "no topic printed", printed);
        String kept = admin("updateTopic", "-c", cluster, "-t", topic, "-r", "" + QUEUES, "-w", "" + QUEUES, "-a", "+reserve.time=72");
        equal((long) brokerNames.size(), kept.lines().filter(l -> l.matches("create topic to .* success\\.")).count(), "groups that took the topic's retention", kept);
        sendAndConsume();
    }

    /** Leaves messages in every queue, and a group that has consumed them all. */
    private void sendAndConsume() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("mqadmin_pg_" + run);
        producer.setNamesrvAddr(namesrv);
        producer.start();
        for (int i = 0; i < MESSAGES; i++) {
            lastSent = producer.send(new Message(topic, "Tag", "key" + i, ("body " + i).getBytes(StandardCharsets.UTF_8)));
        }
        producer.shutdown();
        CountDownLatch consumed = new CountDownLatch(MESSAGES);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            batch.forEach(m -> consumed.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean all = consumed.await(60, TimeUnit.SECONDS);
        // The client notes its place after the listener has returned.
        await("the consumer to be done", 10, () -> consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl()
            .getProcessQueueTable().values().stream().allMatch(q -> q.getMsgCount().get() == 0));
        consumer.shutdown();
        check(all, consumed.getCount() + " messages were not consumed", "");
    }

    private void topicRoute() throws Exception {
        String printed = admin("topicRoute", "-t", topic);
        for (String name : brokerNames) {
            check(printed.contains("\"brokerName\":\"" + name + "\""), "no " + name, printed);
        }
        equal((long) brokerNames.size(), Pattern.compile("\"writeQueueNums\":" + QUEUES).matcher(printed).results().count(), "queue data", printed);
    }

    private void topicList() throws Exception {
        String printed = admin("topicList");
        check(printed.lines().anyMatch(topic::equals), "the topic is missing", printed);
        check(printed.lines().anyMatch(("%RETRY%" + group)::equals), "the group's retry topic is missing", printed);
    }

    private void topicStatus() throws Exception {
        String printed = admin("topicStatus", "-t", topic);
        // Broker name, queue, min offset, max offset, date and time.
        List<String[]> rows = printed.lines().map(line -> line.trim().split("\\s+")).filter(row -> brokerNames.contains(row[0])).toList();
        equal(brokerNames.size() * QUEUES, rows.size(), "rows", printed);
        equal(MESSAGES, rows.stream().mapToInt(row -> Integer.parseInt(row[3])).sum(), "sum of max offsets", printed);
        equal(0, rows.stream().mapToInt(row -> Integer.parseInt(row[2])).sum(), "sum of min offsets", printed);
    }

    private void consumerProgress() throws Exception {
        await("the group to have consumed everything", 20, () -> {
            String printed = admin("consumerProgress", "-g", group);
            List<String[]> rows = printed.lines().map(line -> line.trim().split("\\s+")).filter(row -> row[0].equals(topic)).toList();
            // Topic, broker name, queue, broker offset, consumer offset, difference.
            equal(brokerNames.size() * QUEUES, rows.size(), "rows", printed);
            return rows.stream().mapToInt(row -> Integer.parseInt(row[4])).sum() == MESSAGES
                && rows.stream().allMatch(row -> row[5].equals("0")) && printed.contains("Diff Total: 0");
        });
        String all = admin("consumerProgress");
        check(all.lines().anyMatch(line -> line.startsWith(group + " ")), "the group is missing in the list of all", all);
    }

    private void queryMsgById() throws Exception {
        String printed = admin("queryMsgById", "-t", topic, "-i", lastSent.getOffsetMsgId());
        check(printed.matches("(?s).*Topic:\\s+" + topic + "\\s.*"), "wrong topic", printed);
        check(printed.matches("(?s).*Keys:\\s+\\[?key" + (MESSAGES - 1) + "\\]?\\s.*"), "wrong key", printed);
        check(printed.matches("(?s).*Queue Offset:\\s+" + lastSent.getQueueOffset() + "\\s.*"), "wrong queue offset", printed);
    }

    private void queryMsgByKey() throws Exception {
        String printed = admin("queryMsgByKey", "-t", topic, "-k", "key" + (MESSAGES - 1));
        List<String> rows = printed.lines().filter(line -> line.startsWith(lastSent.getMsgId())).toList();
        equal(1, rows.size(), "rows that start with the message's id", printed);
        String[] row = rows.get(0).trim().split("\\s+");
        equal("" + lastSent.getMessageQueue().getQueueId(), row[1], "queue", printed);
        equal("" + lastSent.getQueueOffset(), row[2], "queue offset", printed);
    }

    private void deleteTopic() throws Exception {
        String cluster = admin("clusterList").lines().map(line -> line.trim().split("\\s+"))
            .filter(row -> row.length > 4 && row[2].equals("0")).findFirst().orElseThrow()[0];
        String printed = admin("deleteTopic", "-c", cluster, "-t", topic);
        check(printed.contains("delete topic [" + topic + "] from cluster [" + cluster + "] success."), "not deleted from the cluster", printed);
        check(printed.contains("delete topic [" + topic + "] from NameServer success."), "not deleted from the name server", printed);
        await("the topic to leave the list", 40, () -> admin("topicList").lines().noneMatch(topic::equals));
    }

    /** What a command prints. */
    private String admin(String... command) throws Exception {
        String[] args = Arrays.copyOf(command, command.length + 2);
        args[command.length] = "-n";
        args[command.length + 1] = namesrv;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream err = System.err;
        try (PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8)) {
            System.setOut(capture);
            System.setErr(capture);
            MQAdminStartup.main(args);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return printed.toString(StandardCharsets.UTF_8);
    }

    private static void check(boolean holds, String otherwise, String printed) {
        if (!holds) {
            throw new AssertionError(otherwise + "; printed: " + printed);
        }
    }

    private static void equal(Object expected, Object found, String what, String printed) {
        check(expected.equals(found), what + ": expected " + expected + ", found " + found, printed);
    }

    private static void await(String what, int seconds, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        while (!condition.call()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("waited " + seconds + " s for " + what);
            }
            Thread.sleep(500);
        }
    }
}
