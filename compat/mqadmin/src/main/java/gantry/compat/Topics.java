package gantry.compat;

import static gantry.compat.Tool.await;
import static gantry.compat.Tool.check;
import static gantry.compat.Tool.equal;
import static gantry.compat.Tool.rows;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.common.message.Message;

/** Commands about topics. */
final class Topics {
    private final Fixture on;
    private final Tool tool;

    Topics(Fixture on) {
        this.on = on;
        this.tool = on.tool;
    }

    void addFirstTo(Map<String, Mqadmin.Step> steps) {
        steps.put("updateTopic", this::updateTopic);
    }

    void addTo(Map<String, Mqadmin.Step> steps) {
        steps.put("topicRoute", this::topicRoute);
        steps.put("topicClusterList", this::topicClusterList);
        steps.put("topicList", this::topicList);
        steps.put("topicStatus", this::topicStatus);
        steps.put("updateTopicPerm", this::updateTopicPerm);
        steps.put("updateOrderConf", this::updateOrderConf);
        steps.put("allocateMQ", this::allocateMq);
        if (Tool.FIVE) {
            steps.put("updateTopicList", this::updateTopicList);
        }
    }

    void addLastTo(Map<String, Mqadmin.Step> steps) {
        steps.put("deleteTopic", this::deleteTopic);
    }

    private void updateTopic() throws Exception {
        String printed = tool.run("updateTopic", "-c", on.cluster, "-t", on.topic, "-r", "" + Fixture.QUEUES, "-w", "" + Fixture.QUEUES);
        equal((long) on.brokerNames.size(), printed.lines().filter(l -> l.matches("create topic to .* success\\.")).count(), "groups that took the topic", printed);
        check(printed.contains("TopicConfig [topicName=" + on.topic), "no topic printed", printed);
        if (Tool.FIVE) {
            String kept = tool.run("updateTopic", "-c", on.cluster, "-t", on.topic, "-r", "" + Fixture.QUEUES, "-w", "" + Fixture.QUEUES, "-a", "+reserve.time=72");
            equal((long) on.brokerNames.size(), kept.lines().filter(l -> l.matches("create topic to .* success\\.")).count(), "groups that took the topic's retention", kept);
        }
        // An ordered topic has its queues written down at the name servers.
        String ordered = on.topic + "_ordered";
        String one = tool.attempt("updateTopic", "-b", on.leaders.get(0), "-t", ordered, "-r", "2", "-w", "2", "-o", "true");
        check(one.contains("create topic to " + on.leaders.get(0) + " success."), "not created", one);
        String conf = tool.run("updateOrderConf", "-t", ordered, "-m", "get");
        check(conf.contains("orderConf=[" + on.brokerNames.get(0) + ":2]"), "the order of " + ordered, conf);
        tool.run("deleteTopic", "-c", on.cluster, "-t", ordered);
        for (String bad : List.of("a.b", "a/b", "TBW102")) {
            String refused = tool.attempt("updateTopic", "-c", on.cluster, "-t", bad);
            check(!refused.contains("success"), bad + " is not a topic that may be made", refused);
        }
        on.send(Fixture.MESSAGES);
        on.startConsumer();
        on.awaitConsumed(1);
    }

    private void topicRoute() throws Exception {
        String printed = tool.run("topicRoute", "-t", on.topic);
        for (String name : on.brokerNames) {
            check(printed.contains("\"brokerName\":\"" + name + "\""), "no " + name, printed);
        }
        equal((long) on.brokerNames.size(), Pattern.compile("\"writeQueueNums\":" + Fixture.QUEUES).matcher(printed).results().count(), "queue data", printed);
        if (Tool.FIVE) {
            String list = tool.run("topicRoute", "-l", "-t", on.topic);
            equal(on.brokerNames.size(), rows(list, row -> row[0].equals(on.cluster)).size(), "rows", list);
        }
    }

    private void topicClusterList() throws Exception {
        String printed = tool.run("topicClusterList", "-t", on.topic);
        check(printed.lines().anyMatch(on.cluster::equals), "the cluster is missing", printed);
    }

    private void topicList() throws Exception {
        // Brokers tell name servers of it soon after the consumer's first heartbeat.
        await("the group's retry topic to be listed", 10, () -> tool.run("topicList").lines().anyMatch(("%RETRY%" + on.group)::equals));
        String printed = tool.run("topicList");
        check(printed.lines().anyMatch(on.topic::equals), "the topic is missing", printed);
        String groups = tool.run("topicList", "-c");
        equal(1, rows(groups, row -> row.length == 3 && row[0].equals(on.cluster) && row[1].equals(on.topic) && row[2].equals(on.group)).size(), "rows with the group", groups);
    }

    private void topicStatus() throws Exception {
        String printed = tool.run("topicStatus", "-t", on.topic);
        // Broker name, queue, min offset, max offset, date and time.
        List<String[]> rows = rows(printed, row -> on.brokerNames.contains(row[0]));
        equal(on.brokerNames.size() * Fixture.QUEUES, rows.size(), "rows", printed);
        equal(on.sent.size(), rows.stream().mapToInt(row -> Integer.parseInt(row[3])).sum(), "sum of max offsets", printed);
        equal(0, rows.stream().mapToInt(row -> Integer.parseInt(row[2])).sum(), "sum of min offsets", printed);
    }

    private void updateTopicPerm() throws Exception {
        String printed = tool.run("updateTopicPerm", "-c", on.cluster, "-t", on.topic, "-p", "4");
        equal((long) on.brokerNames.size(), printed.lines().filter(line -> line.startsWith("update topic perm from 6 to 4 in ")).count(), "groups", printed);
        await("the route to allow reading only", 10, () -> count(tool.run("topicRoute", "-t", on.topic), "\"perm\":4") == on.brokerNames.size());
        if (!on.isApache) {
            // RocketMQ leaves it to producers, which look at the route.
            try {
                on.producer.send(new Message(on.topic, new byte[] {1}), on.last().getMessageQueue());
                check(false, "a message was sent to a topic that may only be read", "");
            } catch (MQBrokerException e) {
                equal(16, e.getResponseCode(), "code of the refusal", e.getMessage());
            }
        }
        for (String leader : on.leaders) {
            tool.run("updateTopicPerm", "-b", leader, "-t", on.topic, "-p", "6");
        }
        await("the route to allow both again", 10, () -> count(tool.run("topicRoute", "-t", on.topic), "\"perm\":6") == on.brokerNames.size());
    }

    private static int count(String text, String part) {
        return (int) Pattern.compile(Pattern.quote(part)).matcher(text).results().count();
    }

    private void updateOrderConf() throws Exception {
        String conf = on.brokerNames.get(0) + ":4";
        String put = tool.run("updateOrderConf", "-t", on.topic, "-m", "put", "-v", conf);
        check(put.contains("update orderConf success."), "not put", put);
        String got = tool.run("updateOrderConf", "-t", on.topic, "-m", "get");
        check(got.contains("orderConf=[" + conf + "]"), "not got", got);
        String route = tool.run("topicRoute", "-t", on.topic);
        // A RocketMQ name server shows it only if it is told to.
        check(on.isApache || route.contains("\"orderTopicConf\":\"" + conf + "\""), "the route does not have it", route);
        String deleted = tool.run("updateOrderConf", "-t", on.topic, "-m", "delete");
        check(deleted.contains("delete orderConf success."), "not deleted", deleted);
    }

    private void allocateMq() throws Exception {
        String printed = tool.run("allocateMQ", "-t", on.topic, "-i", "10.0.0.1,10.0.0.2");
        equal(on.brokerNames.size() * Fixture.QUEUES, count(printed, "\"queueId\""), "queues shared out", printed);
        check(printed.contains("\"10.0.0.1\"") && printed.contains("\"10.0.0.2\""), "both have some", printed);
    }

    private void updateTopicList() throws Exception {
        Path file = Files.createTempFile("topics", ".json");
        List<String> names = List.of(on.topic + "_x", on.topic + "_y");
        String list = "[" + String.join(",", names.stream().map(name -> "{\"topicName\":\"" + name
            + "\",\"readQueueNums\":3,\"writeQueueNums\":3,\"perm\":6,\"topicFilterType\":\"SINGLE_TAG\",\"topicSysFlag\":0,\"order\":false}").toList()) + "]";
        Files.writeString(file, list);
        tool.run("updateTopicList", "-c", on.cluster, "-f", file.toString());
        Files.delete(file);
        for (String name : names) {
            await(name + " to have a route", 10, () -> count(tool.attempt("topicRoute", "-t", name), "\"writeQueueNums\":3") == on.brokerNames.size());
            tool.run("deleteTopic", "-c", on.cluster, "-t", name);
        }
    }

    private void deleteTopic() throws Exception {
        String printed = tool.run("deleteTopic", "-c", on.cluster, "-t", on.topic);
        check(printed.contains("delete topic [" + on.topic + "] from cluster [" + on.cluster + "] success."), "not deleted from the cluster", printed);
        check(printed.contains("delete topic [" + on.topic + "] from NameServer success."), "not deleted from the name server", printed);
        await("the topic to leave the list", 40, () -> tool.run("topicList").lines().noneMatch(on.topic::equals));
    }
}
