package gantry.compat;

import static gantry.compat.Tool.await;
import static gantry.compat.Tool.check;
import static gantry.compat.Tool.equal;
import static gantry.compat.Tool.rows;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;

/** Commands about the cluster, its brokers and its name servers. */
final class Brokers {
    private final Fixture on;
    private final Tool tool;

    Brokers(Fixture on) {
        this.on = on;
        this.tool = on.tool;
    }

    /** Before anything else: the others ask what is found here. */
    void addFirstTo(Map<String, Mqadmin.Step> steps) {
        steps.put("clusterList", this::clusterList);
    }

    void addTo(Map<String, Mqadmin.Step> steps) {
        steps.put("brokerStatus", this::brokerStatus);
        steps.put("getBrokerConfig", this::getBrokerConfig);
        steps.put("updateBrokerConfig", this::updateBrokerConfig);
        steps.put("getNamesrvConfig", this::getNamesrvConfig);
        steps.put("updateKvConfig, deleteKvConfig", this::kvConfig);
        steps.put("wipeWritePerm, addWritePerm", this::writePerm);
        steps.put("cleanExpiredCQ, cleanUnusedTopic, deleteExpiredCommitLog", this::cleanUp);
        steps.put("producer, producerConnection", this::producers);
        steps.put("statsAll", this::statsAll);
        steps.put("exportMetadata, exportConfigs, exportMetrics", this::exports);
        steps.put("clusterRT", this::clusterRt);
        steps.put("startMonitoring", this::startMonitoring);
    }

    private void clusterList() throws Exception {
        String printed = tool.run("clusterList");
        // Cluster, broker name, id, address, version.
        List<String[]> masters = rows(printed, row -> row.length > 4 && row[2].equals("0") && row[3].matches("[0-9.]+:[0-9]+"));
        check(!masters.isEmpty(), "no broker with id 0", printed);
        check(masters.stream().allMatch(row -> row[4].startsWith("V5_")), "no version that the tool knows", printed);
        on.cluster = masters.get(0)[0];
        on.brokerNames = masters.stream().map(row -> row[1]).sorted().distinct().toList();
        on.leaders = on.brokerNames.stream().map(name -> masters.stream().filter(row -> row[1].equals(name)).findFirst().orElseThrow()[3]).toList();
        String more = tool.run("clusterList", "-m");
        // Cluster, broker name, and four numbers.
        List<String[]> counts = rows(more, row -> row.length == 6 && on.brokerNames.contains(row[1]));
        check(counts.size() >= on.brokerNames.size() && counts.stream().allMatch(row -> row[2].matches("\\d+") && row[5].matches("\\d+")), "counts", more);
        on.isApache = tool.run("getBrokerConfig", "-b", on.leaders.get(0)).contains("storePathRootDir");
    }

    private void brokerStatus() throws Exception {
        String printed = tool.run("brokerStatus", "-b", on.leaders.get(0));
        for (String key : List.of("bootTimestamp", "brokerVersionDesc", "commitLogDiskRatio", "commitLogMaxOffset", "commitLogMinOffset",
            "consumeQueueDiskRatio", "dispatchBehindBytes", "earliestMessageTimeStamp", "getFoundTps", "getMissTps", "getTotalTps",
            "msgGetTotalTodayNow", "msgPutTotalTodayNow", "msgPutTotalTodayMorning", "pageCacheLockTimeMills", "putMessageAverageSize",
            "putMessageTimesTotal", "putTps", "remainHowManyDataToFlush", "runtime", "sendThreadPoolQueueSize")) {
            check(printed.lines().anyMatch(line -> line.matches(key + " *: *\\S.*")), "no " + key, printed);
        }
        String all = tool.run("brokerStatus", "-c", on.cluster);
        for (String leader : on.leaders) {
            check(all.contains(leader), "no " + leader, all);
        }
    }

    private void getBrokerConfig() throws Exception {
        String printed = tool.run("getBrokerConfig", "-b", on.leaders.get(0));
        equal(on.brokerNames.get(0), setting(printed, "brokerName"), "brokerName", printed);
        equal(on.cluster, setting(printed, "brokerClusterName"), "brokerClusterName", printed);
        String all = tool.run("getBrokerConfig", "-c", on.cluster);
        for (String name : on.brokerNames) {
            check(all.matches("(?s).*brokerName +=  " + name + "\\s.*"), "no " + name, all);
        }
    }

    private void updateBrokerConfig() throws Exception {
        String before = setting(tool.run("getBrokerConfig", "-b", on.leaders.get(0)), "transactionCheckMax");
        String printed = tool.run("updateBrokerConfig", "-c", on.cluster, "-k", "transactionCheckMax", "-v", "14");
        equal((long) on.leaders.size(), printed.lines().filter(line -> line.matches("update broker config success, .*")).count(), "brokers changed", printed);
        for (String leader : on.leaders) {
            String now = tool.run("getBrokerConfig", "-b", leader);
            equal("14", setting(now, "transactionCheckMax"), "after the change", now);
        }
        tool.run("updateBrokerConfig", "-c", on.cluster, "-k", "transactionCheckMax", "-v", before);
        if (!on.isApache) {
            tool.refused("allowed are 1 to 1000", "updateBrokerConfig", "-b", on.leaders.get(0), "-k", "transactionCheckMax", "-v", "0");
            tool.refused("conf/broker.toml", "updateBrokerConfig", "-b", on.leaders.get(0), "-k", "storePathRootDir", "-v", "/tmp");
        }
    }

    private static String setting(String printed, String key) {
        return printed.lines().map(line -> line.split("=", 2)).filter(line -> line.length == 2 && line[0].trim().equals(key))
            .map(line -> line[1].trim()).findFirst().orElseThrow(() -> new AssertionError("no " + key + "; printed: " + printed));
    }

    private void getNamesrvConfig() throws Exception {
        String printed = tool.run("getNamesrvConfig");
        check(printed.matches("(?s).*listenPort +=  \\d+\\s.*"), "no port", printed);
    }

    private void kvConfig() throws Exception {
        String put = tool.run("updateKvConfig", "-s", "MQADMIN_" + on.run, "-k", "key", "-v", "value");
        check(put.contains("create or update kv config to namespace success"), "not put", put);
        String deleted = tool.run("deleteKvConfig", "-s", "MQADMIN_" + on.run, "-k", "key");
        check(deleted.contains("delete kv config from namespace success"), "not deleted", deleted);
    }

    private void writePerm() throws Exception {
        String name = on.brokerNames.get(0);
        try {
            String wiped = tool.run("wipeWritePerm", "-b", name);
            check(wiped.matches("(?s).*wipe write perm of broker\\[" + name + "\\] in name server\\[.*\\] OK, [1-9]\\d*\\s.*"), "not wiped", wiped);
            String route = tool.run("topicRoute", "-t", on.topic);
            equal(4, permission(route, name), "permission", route);
        } finally {
            String added = tool.run("addWritePerm", "-b", name);
            check(added.matches("(?s).*add write perm of broker\\[" + name + "\\] in name server\\[.*\\] OK, [1-9]\\d*\\s.*"), "not added", added);
        }
        String route = tool.run("topicRoute", "-t", on.topic);
        equal(6, permission(route, name), "permission", route);
    }

    /** The permission that a printed route has for a broker. */
    private static int permission(String route, String broker) {
        java.util.regex.Matcher found = java.util.regex.Pattern.compile("\"brokerName\":\"" + broker + "\",\\s*\"perm\":(\\d)").matcher(route);
        check(found.find(), "no " + broker, route);
        return Integer.parseInt(found.group(1));
    }

    private void cleanUp() throws Exception {
        for (String command : List.of("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog")) {
            for (String[] where : List.of(new String[] {"-b", on.leaders.get(0)}, new String[] {"-c", on.cluster})) {
                String printed = tool.run(command, where[0], where[1]);
                check(printed.contains("success"), "no success", printed);
            }
        }
    }

    private void producers() throws Exception {
        String printed = tool.run("producer", "-b", on.leaders.get(0));
        check(printed.lines().anyMatch(line -> line.contains("(" + on.producerGroup + ")") && line.contains("language=JAVA")), "the producer is missing", printed);
        String connections = tool.run("producerConnection", "-g", on.producerGroup, "-t", on.topic);
        check(connections.lines().anyMatch(line -> line.contains(on.producer.buildMQClientId()) && line.contains("JAVA")), "no connection", connections);
    }

    private void statsAll() throws Exception {
        // Topic, group, accumulation, in and out a second, in and out in a day. Counts of the last seconds are not in yet.
        await("what was sent and consumed to be counted", 40, () -> rows(tool.run("statsAll", "-t", on.topic), row -> row.length == 7
            && row[0].equals(on.topic) && row[1].equals(on.group) && row[2].equals("0")
            && Long.parseLong(row[5]) >= on.sent.size() && Long.parseLong(row[6]) >= on.sent.size()).size() == 1);
        String all = tool.run("statsAll");
        check(rows(all, row -> row[0].equals("TBW102") && row[row.length - 1].equals("NO_CONSUMER")).size() == 1, "a topic without a group", all);
        String active = tool.run("statsAll", "-a");
        check(!rows(active, row -> row[0].equals(on.topic)).isEmpty(), "the topic is active", active);
    }

    private void exports() throws Exception {
        Path dir = Files.createTempDirectory("mqadmin");
        tool.run("exportMetadata", "-c", on.cluster, "-f", dir.toString());
        String metadata = Files.readString(dir.resolve("metadata.json"));
        check(metadata.contains("\"" + on.topic + "\"") && metadata.contains("\"" + on.group + "\""), "topic or group is missing", metadata);
        tool.run("exportConfigs", "-c", on.cluster, "-f", dir.toString());
        String configs = Files.readString(dir.resolve("configs.json"));
        for (String key : List.of("flushDiskType", "fileReservedTime", "messageDelayLevel", "slaveReadEnable", "traceTopicEnable", "useTLS")) {
            check(configs.contains("\"" + key + "\""), "no " + key, configs);
        }
        tool.run("exportMetrics", "-c", on.cluster, "-f", dir.toString());
        String metrics = Files.readString(dir.resolve("metrics.json"));
        for (String name : on.brokerNames) {
            check(metrics.contains("\"" + name + "\""), "no " + name, metrics);
        }
        try (var files = Files.list(dir)) {
            for (Path file : files.toList()) {
                Files.delete(file);
            }
        }
        Files.delete(dir);
    }

    private void clusterRt() throws Exception {
        // Cluster, broker name, mean time, successes, failures.
        String name = on.brokerNames.get(0);
        tool.firstLine(60, line -> line.trim().matches(on.cluster + " +" + name + " +\\d+\\.\\d+ +3 +0"), "clusterRT", "-a", "3", "-s", "64", "-i", "1");
    }

    /** It watches what groups leave behind, and says so in its log only. */
    private void startMonitoring() throws Exception {
        tool.runsFor(10, "startMonitoring");
    }
}
