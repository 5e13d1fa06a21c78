package gantry.compat;

import static gantry.compat.Tool.await;
import static gantry.compat.Tool.check;
import static gantry.compat.Tool.equal;
import static gantry.compat.Tool.rows;

import java.io.IOException;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.client.impl.consumer.PullAPIWrapper;

/** Commands about consumer groups and their offsets. */
final class Groups {
    private final Fixture on;
    private final Tool tool;

    Groups(Fixture on) {
        this.on = on;
        this.tool = on.tool;
    }

    void addTo(Map<String, Mqadmin.Step> steps) {
        steps.put("updateSubGroup, getConsumerConfig, deleteSubGroup", this::subGroup);
        if (Tool.FIVE) {
            steps.put("updateSubGroupList", this::updateSubGroupList);
        }
        steps.put("consumerProgress", this::consumerProgress);
        steps.put("consumerConnection", this::consumerConnection);
        steps.put("consumerStatus", this::consumerStatus);
        steps.put("brokerConsumeStats", this::brokerConsumeStats);
        steps.put("cloneGroupOffset", this::cloneGroupOffset);
        steps.put("resetOffsetByTime", this::resetOnline);
        steps.put("skipAccumulatedMessage", this::skipAccumulated);
        steps.put("updateSubGroup, group paused", this::pausedGroup);
        if (Tool.FIVE) {
            steps.put("setConsumeMode", this::setConsumeMode);
        }
    }

    /** After statistics were looked at: a follower counts by itself what it gives away. Then the consumer is stopped. */
    void addLastTo(Map<String, Mqadmin.Step> steps) {
        steps.put("updateSubGroup, read from a follower", this::readFromFollower);
        steps.put("resetOffsetByTime, group offline", this::resetOffline);
    }

    private void subGroup() throws Exception {
        String name = on.group + "_x";
        String printed = tool.run("updateSubGroup", "-c", on.cluster, "-g", name, "-s", "true", "-m", "true", "-d", "false", "-r", "7", "-q", "2", "-i", "0", "-w", "2");
        equal((long) on.leaders.size(), printed.lines().filter(line -> line.matches("create subscription group to .* success\\.")).count(), "groups", printed);
        String config = tool.run("getConsumerConfig", "-g", name);
        for (String line : List.of("retryMaxTimes +=  7", "retryQueueNums +=  2", "consumeBroadcastEnable +=  false", "whichBrokerWhenConsumeSlowly +=  2")) {
            equal((long) on.leaders.size(), config.lines().filter(found -> found.matches(line)).count(), line, config);
        }
        String deleted = tool.run("deleteSubGroup", "-c", on.cluster, "-g", name, "-r", "true");
        equal((long) on.leaders.size(), deleted.lines().filter(line -> line.startsWith("delete subscription group [" + name + "] from broker [")).count(), "brokers", deleted);
        String gone = tool.attempt("getConsumerConfig", "-g", name);
        check(!gone.contains("retryMaxTimes"), "it is still there", gone);
        for (String bad : List.of("a.b", "a/b")) {
            String refused = tool.attempt("updateSubGroup", "-c", on.cluster, "-g", bad);
            check(on.isApache || !refused.contains("success"), bad + " is no name of a group", refused);
        }
    }

    private void updateSubGroupList() throws Exception {
        Path file = Files.createTempFile("groups", ".json");
        String name = on.group + "_y";
        Files.writeString(file, "[{\"groupName\":\"" + name + "\",\"consumeEnable\":true,\"retryMaxTimes\":5,\"retryQueueNums\":1}]");
        tool.run("updateSubGroupList", "-c", on.cluster, "-f", file.toString());
        Files.delete(file);
        String config = tool.run("getConsumerConfig", "-g", name);
        equal((long) on.leaders.size(), config.lines().filter(line -> line.matches("retryMaxTimes +=  5")).count(), "groups", config);
        tool.run("deleteSubGroup", "-c", on.cluster, "-g", name);
    }

    /** Topic, broker name, queue, broker offset, consumer offset, difference: the rows of the group's topic. */
    private List<String[]> progress(String group) throws Exception {
        return rows(tool.run("consumerProgress", "-g", group), row -> row[0].equals(on.topic));
    }

    private static int sum(List<String[]> rows, int column) {
        return rows.stream().mapToInt(row -> Integer.parseInt(row[column])).sum();
    }

    private void consumerProgress() throws Exception {
        // A queue has a row once the client has said where it is, at first 10 s after its start.
        await("the group to have consumed everything", 20, () -> {
            List<String[]> rows = progress(on.group);
            return rows.size() == on.brokerNames.size() * Fixture.QUEUES && sum(rows, 4) == on.sent.size() && rows.stream().allMatch(row -> row[5].equals("0"));
        });
        String shown = tool.run("consumerProgress", "-g", on.group, "-s", "true");
        String host = on.clientId().split("@")[0];
        equal(on.brokerNames.size() * Fixture.QUEUES, rows(shown, row -> row[0].equals(on.topic) && row[5].equals(host)).size(), "rows with the client", shown);
        String all = tool.run("consumerProgress");
        // Group, count, version, type, model, messages a second, difference.
        equal(1, rows(all, row -> row.length == 7 && row[0].equals(on.group) && row[1].equals("1") && row[3].equals("PUSH")
            && row[4].equals("CLUSTERING") && row[6].equals("0")).size(), "the group in the list of all", all);
    }

    private void consumerConnection() throws Exception {
        String printed = tool.run("consumerConnection", "-g", on.group);
        check(rows(printed, row -> row[0].equals(on.clientId()) && row[2].equals("JAVA")).size() == 1, "the client", printed);
        check(rows(printed, row -> row.length == 2 && row[0].equals(on.topic) && row[1].equals("*")).size() == 1, "the subscription", printed);
        for (String line : List.of("ConsumeType: CONSUME_PASSIVELY", "MessageModel: CLUSTERING", "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET")) {
            check(printed.lines().anyMatch(line::equals), "no " + line, printed);
        }
    }

    private void consumerStatus() throws Exception {
        String printed = tool.run("consumerStatus", "-g", on.group);
        check(rows(printed, row -> row.length > 2 && row[1].equals(on.clientId())).size() == 1, "the client", printed);
        check(printed.contains("Rebalance OK"), "rebalanced", printed);
        String one = tool.attempt("consumerStatus", "-g", on.group, "-i", on.clientId(), "-s");
        equal(on.brokerNames.size() * Fixture.QUEUES, rows(one, row -> row.length == 4 && row[0].equals(on.topic)).size(), "offsets of queues", one);
        check(one.contains("#Consumer jstack#") && one.contains("ConsumeMessageThread_"), "threads of the client", one);
        deleteFiles(printed, on.clientId());
    }

    /** Deletes what consumerStatus has written about a client, as it says. */
    static void deleteFiles(String printed, String clientId) throws IOException {
        for (String[] row : rows(printed, row -> row.length > 3 && row[1].equals(clientId))) {
            Path file = Path.of(row[3]);
            Files.deleteIfExists(file);
            Files.deleteIfExists(file.getParent());
        }
    }

    private void brokerConsumeStats() throws Exception {
        int found = 0;
        for (String leader : on.leaders) {
            String printed = tool.run("brokerConsumeStats", "-b", leader);
            // Topic, group, broker name, queue, broker offset, consumer offset, difference.
            found += rows(printed, row -> row.length > 6 && row[0].equals(on.topic) && row[1].equals(on.group) && row[6].equals("0")).size();
            check(printed.contains("Diff Total: "), "no total", printed);
        }
        equal(on.brokerNames.size() * Fixture.QUEUES, found, "queues", "");
    }

    private void cloneGroupOffset() throws Exception {
        String name = on.group + "_clone";
        tool.run("updateSubGroup", "-c", on.cluster, "-g", name);
        String printed = tool.run("cloneGroupOffset", "-s", on.group, "-d", name, "-t", on.topic, "-o", "true");
        check(printed.contains("clone group offset success."), "not cloned", printed);
        // A group that was never online has no retry topic to be found by: its places show once the topic is named.
        List<String[]> rows = Tool.FIVE ? rows(tool.run("consumerProgress", "-g", name, "-t", on.topic), row -> row[0].equals(on.topic)) : List.of();
        if (Tool.FIVE) {
            equal(on.sent.size(), sum(rows, 4), "consumer offsets", "");
        }
        if (!on.isApache) {
            tool.refused("mqadmin updateSubGroup -g nobody_" + on.run, "cloneGroupOffset", "-s", on.group, "-d", "nobody_" + on.run, "-t", on.topic);
        }
        tool.run("deleteSubGroup", "-c", on.cluster, "-g", name, "-r", "true");
    }

    /** The consumer is told, and gets everything again, without being started anew. */
    private void resetOnline() throws Exception {
        String printed = tool.run("resetOffsetByTime", "-g", on.group, "-t", on.topic, "-s", "0");
        equal(on.brokerNames.size() * Fixture.QUEUES, rows(printed, row -> row.length == 3 && on.brokerNames.contains(row[0]) && row[2].equals("0")).size(), "queues that go back to 0", printed);
        on.awaitConsumed(2);
        await("the group to be done again", 20, () -> sum(progress(on.group), 4) == on.sent.size());
        String now = tool.run("resetOffsetByTime", "-g", on.group, "-t", on.topic, "-s", "now");
        equal(on.sent.size(), sum(rows(now, row -> row.length == 3 && on.brokerNames.contains(row[0])), 2), "places of now", now);
    }

    private void skipAccumulated() throws Exception {
        String printed = tool.run("skipAccumulatedMessage", "-g", on.group, "-t", on.topic);
        equal(on.sent.size(), sum(rows(printed, row -> row.length == 3 && on.brokerNames.contains(row[0])), 2), "sum of the queues' ends", printed);
        await("the group to be at the end", 20, () -> sum(progress(on.group), 5) == 0);
    }

    /** A group that may not consume is refused its pulls, and goes on where it was. */
    private void pausedGroup() throws Exception {
        // A client of the 4.9 line takes up to 30 s for each offset that it is told to go to, and was told two.
        int resumed = on.consumed.size();
        on.send(12);
        await("the consumer to go on after the resets", 90, () -> on.consumed.size() >= resumed + 12);
        int before = on.consumed.size();
        tool.run("updateSubGroup", "-c", on.cluster, "-g", on.group, "-s", "false");
        await("the pause to be seen", 10, () -> tool.run("getConsumerConfig", "-g", on.group).contains("consumeEnable                           =  false"));
        // Pulls that wait already are answered once more.
        Thread.sleep(20_000);
        on.send(6);
        Thread.sleep(3_000);
        check(on.consumed.size() <= before + 6, "more came than was sent", "");
        int during = on.consumed.size();
        on.send(6);
        Thread.sleep(3_000);
        equal(during, on.consumed.size(), "messages consumed in the pause", "");
        tool.run("updateSubGroup", "-c", on.cluster, "-g", on.group, "-s", "true", "-m", "true", "-d", "true");
        await("what was sent meanwhile to be consumed", 30, () -> on.consumed.size() >= before + 12);
    }

    /** Ids of the replicas that the consumer pulls its queues from. */
    private Set<Long> pulledFrom() throws Exception {
        DefaultMQPushConsumerImpl inside = on.consumer.getDefaultMQPushConsumerImpl();
        Field field = DefaultMQPushConsumerImpl.class.getDeclaredField("pullAPIWrapper");
        field.setAccessible(true);
        PullAPIWrapper pulls = (PullAPIWrapper) field.get(inside);
        return inside.getRebalanceImpl().getProcessQueueTable().keySet().stream().filter(queue -> queue.getTopic().equals(on.topic))
            .map(pulls::recalculatePullFromWhichNode).collect(Collectors.toSet());
    }

    /** The consumer does as the broker suggests, and gets everything from there. */
    private void readFromFollower() throws Exception {
        for (String id : List.of("2", "1", "0")) {
            tool.run("updateSubGroup", "-c", on.cluster, "-g", on.group, "-s", "true", "-m", "true", "-d", "true", "-i", id);
            for (int round = 0; round < 2; round++) {
                int before = on.consumed.size();
                on.send(12);
                await("messages to be consumed", 30, () -> on.consumed.size() >= before + 12);
            }
            if (!on.isApache) {
                // Id 0 of one group is replica 2 of another, so a queue may be read from the next one.
                await("the consumer to pull from where it should, not " + pulledFrom(), 40, () -> {
                    on.send(12);
                    return pulledFrom().stream().allMatch(from -> id.equals("0") ? from == 0 : from != 0);
                });
            }
        }
    }

    /** Says how the group gets messages of the topic, on every broker. */
    private void consumeMode(String mode, String queues) throws Exception {
        String printed = tool.run("setConsumeMode", "-c", on.cluster, "-t", on.topic, "-g", on.group, "-m", mode, "-q", queues);
        equal((long) on.leaders.size(), printed.lines().filter(line -> line.matches("set consume mode to .* success\\.")).count(), "brokers", printed);
    }

    /** The group's member pops once it is told to, and pulls again once it is told that. */
    private void setConsumeMode() throws Exception {
        for (boolean pops : new boolean[] {true, false}) {
            on.consumer.shutdown();
            on.consumer = null;
            consumeMode(pops ? "POP" : "PULL", pops ? "8" : "0");
            on.startConsumer(consumer -> consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false));
            int before = on.consumed.size();
            int poppedBefore = on.popped.get();
            on.send(24);
            await("what was sent to be consumed", 60, () -> on.consumed.size() >= before + 24);
            int popped = on.popped.get() - poppedBefore;
            check(pops ? popped >= 24 : popped == 0, popped + " of " + (on.consumed.size() - before) + " messages were popped", "");
            await("the group to be done", 30, () -> sum(progress(on.group), 5) == 0);
        }
        on.consumer.shutdown();
        on.startConsumer();
    }

    private void resetOffline() throws Exception {
        on.consumer.shutdown();
        on.consumer = null;
        await("the group to be offline", 60, () -> !tool.attempt("consumerConnection", "-g", on.group).contains(on.topic));
        String printed = tool.run("resetOffsetByTime", "-g", on.group, "-t", on.topic, "-s", "0");
        check(!printed.isBlank(), "nothing printed", printed);
        await("the places to be 0", 10, () -> sum(progress(on.group), 4) == 0);
        if (Tool.FIVE) {
            String one = tool.run("resetOffsetByTime", "-g", on.group, "-t", on.topic, "-b", on.leaders.get(0), "-q", "1", "-o", "1", "-s", "-1");
            check(one.contains("reset consumer offset to 1"), "one queue", one);
            await("one place to be 1", 10, () -> sum(progress(on.group), 4) == 1);
        }
        tool.run("skipAccumulatedMessage", "-g", on.group, "-t", on.topic);
        await("the places to be at the end", 10, () -> sum(progress(on.group), 5) == 0);
        int before = on.consumed.size();
        on.startConsumer();
        on.send(4);
        await("what came after the reset to be consumed", 60, () -> on.consumed.size() >= before + 4);
        equal(before + 4, on.consumed.size(), "messages consumed after the reset", "");
    }
}
