package gantry.compat;

import static gantry.compat.Tool.check;
import static gantry.compat.Tool.rows;

import gantry.compat.Replicas.Fact;
import gantry.compat.Replicas.Kind;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.producer.SendResult;

/**
 * What mqadmin changes and shows while leaders are killed.
 *
 * <p>A change that a command says was made is there at once, and in the end on every replica. A command that fails says
 * why, in bounded time, and works once the cluster is whole again. What a command shows is true.
 */
final class Kills {
    private static final int SECONDS = Integer.getInteger("compat.kills", 0);
    private static final int COMMAND_SECONDS = 60;
    private static final int SETTLE_SECONDS = 120;
    private static final int REPLICAS = 3;
    /** How many rounds later a topic and a group are deleted. */
    private static final int LIFE = 1;
    private static final String SETTING = "transactionCheckMax";

    private final Fixture on;
    private final Tool tool;
    private final long started = System.nanoTime();
    private final ExecutorService runner = Executors.newSingleThreadExecutor(command -> {
        Thread thread = new Thread(command, "mqadmin");
        thread.setDaemon(true);
        return thread;
    });
    private final String perm;
    private final String grown;
    private final String reader;
    private final Map<Fact, Change> changes = new LinkedHashMap<>();
    private final Map<Fact, Map<String, String>> facts = new LinkedHashMap<>();
    private final Map<String, Integer> failures = new TreeMap<>();
    private Replicas replicas;
    private Leadership leadership;
    private int commands;
    private int silent;
    private double longest;

    Kills(Fixture on) {
        this.on = on;
        this.tool = on.tool;
        perm = on.topic + "_perm";
        grown = on.topic + "_grown";
        reader = on.group + "_reader";
    }

    /** A command that changes facts, and the brokers that took the change by what it prints. */
    private record Change(Map<Fact, Function<String, String>> expected, Function<String, Set<String>> told, String[] command) {
        @Override
        public String toString() {
            return String.join(" ", command);
        }

        /** Whether it says which brokers it has asked. */
        boolean saysWhom() {
            return !Set.of("deleteTopic", "cloneGroupOffset").contains(command[0]);
        }
    }

    /** Runs until the time is over, then checks everything; the figures. */
    String run() throws Exception {
        Map<String, String> brokers = new HashMap<>();
        Tool.await("every broker to be there with a leader and two followers", SETTLE_SECONDS, () -> {
            List<String[]> all = rows(tool.attempt("clusterList"), row -> row.length > 4 && row[2].matches("\\d+") && row[3].matches("[0-9.]+:[0-9]+"));
            all.forEach(row -> brokers.put(row[3], row[1]));
            on.cluster = all.isEmpty() ? null : all.get(0)[0];
            on.brokerNames = all.stream().filter(row -> row[2].equals("0")).map(row -> row[1]).sorted().distinct().toList();
            return !all.isEmpty() && all.size() == brokers.size() && all.size() == REPLICAS * on.brokerNames.size();
        });
        replicas = new Replicas(brokers);
        leadership = new Leadership(on.namesrv, Set.copyOf(on.brokerNames));
        try {
            prepare();
            int rounds = 0;
            for (; rounds <= LIFE || System.nanoTime() - started < SECONDS * 1_000_000_000L; rounds++) {
                change(rounds);
                show(rounds);
            }
            int repeated = settle();
            return rounds + " rounds of " + commands / Math.max(rounds, 1) + " commands, " + failures.values().stream().mapToInt(n -> n).sum()
                + " failed " + failures + ", " + silent + " times a broker without a leader was left out or shown as it had been, "
                + repeated + " made again, the longest took " + Math.round(longest * 10) / 10.0 + " s";
        } finally {
            leadership.stop();
            replicas.stop();
        }
    }

    private void prepare() throws Exception {
        for (String topic : List.of(on.topic, perm, grown)) {
            again("updateTopic", "-c", on.cluster, "-t", topic, "-r", "2", "-w", "2");
        }
        again("updateSubGroup", "-c", on.cluster, "-g", reader);
        Tool.await("the routes", SETTLE_SECONDS, () -> count(tool.attempt("topicRoute", "-t", on.topic), "\"writeQueueNums\":2") == on.brokerNames.size());
        Tool.await("messages in every queue", SETTLE_SECONDS, () -> {
            try {
                on.send(1);
            } catch (Exception e) {
                // A leader was killed.
            }
            return ends().size() == 2 * on.brokerNames.size();
        });
        on.startConsumer();
        on.awaitConsumed(1);
        // Clients say every 5 s where they are.
        for (String broker : on.brokerNames) {
            Tool.await("the places of the group in " + broker, SETTLE_SECONDS,
                () -> Replicas.places(endsOf(broker)).equals(ask(leadership.leader(broker), new Fact(Kind.PLACES, on.topic + "@" + on.group))));
        }
    }

    /** Runs a command until all brokers have it. */
    private void again(String... command) throws Exception {
        Tool.await(String.join(" ", command), SETTLE_SECONDS, () -> count(tool.attempt(command), " success.") == on.brokerNames.size());
    }

    /** Where each queue of the topic ends, at the least. */
    private Map<String, Long> ends() {
        Map<String, Long> ends = new TreeMap<>();
        for (SendResult sent : on.sent) {
            ends.merge(sent.getMessageQueue().getBrokerName() + " " + sent.getMessageQueue().getQueueId(), sent.getQueueOffset() + 1, Math::max);
        }
        return ends;
    }

    private Map<Integer, Long> endsOf(String broker) {
        Map<Integer, Long> ends = new TreeMap<>();
        ends().forEach((queue, end) -> {
            if (queue.startsWith(broker + " ")) {
                ends.put(Integer.valueOf(queue.substring(broker.length() + 1)), end);
            }
        });
        return ends;
    }

    private static int count(String text, String part) {
        return (int) Pattern.compile(Pattern.quote(part)).matcher(text).results().count();
    }

    // What is changed.

    private void change(int round) throws Exception {
        String topic = on.topic + "_" + round;
        String group = on.group + "_" + round;
        change(facts(Kind.TOPIC, topic, Replicas.topic(6, 2)), byAddress("create topic to (\\S+) success\\."),
            "updateTopic", "-c", on.cluster, "-t", topic, "-r", "2", "-w", "2");
        int queues = 3 + round;
        change(facts(Kind.TOPIC, grown, Replicas.topic(6, queues)), byAddress("create topic to (\\S+) success\\."),
            "updateTopic", "-c", on.cluster, "-t", grown, "-r", "" + queues, "-w", "" + queues);
        int permission = round % 2 == 0 ? 4 : 6;
        change(facts(Kind.TOPIC, perm, Replicas.topic(permission, 2)), byAddress("update topic perm from \\d to " + permission + " in (\\S+) success\\."),
            "updateTopicPerm", "-c", on.cluster, "-t", perm, "-p", "" + permission);
        change(facts(Kind.GROUP, group, Replicas.group(5)), byAddress("create subscription group to (\\S+) success\\."),
            "updateSubGroup", "-c", on.cluster, "-g", group, "-r", "5");
        change(facts(Kind.GROUP, reader, Replicas.group(3 + round)), byAddress("create subscription group to (\\S+) success\\."),
            "updateSubGroup", "-c", on.cluster, "-g", reader, "-r", "" + (3 + round));
        int checks = 20 + round;
        change(facts(Kind.SETTING, SETTING, "" + checks), byAddress("update broker config success, (\\S+)"),
            "updateBrokerConfig", "-c", on.cluster, "-k", SETTING, "-v", "" + checks);
        reset(round % 2 == 0 ? "0" : "now");
        if (isWhole(new Fact(Kind.GROUP, group))) {
            // The online group has consumed everything.
            Map<Fact, Function<String, String>> cloned = new LinkedHashMap<>();
            cloned.put(new Fact(Kind.PLACES, on.topic + "@" + group), broker -> Replicas.places(endsOf(broker)));
            change(cloned, printed -> allIf(printed, "clone group offset success."), "cloneGroupOffset", "-s", on.group, "-d", group, "-t", on.topic, "-o", "true");
        }
        if (Tool.FIVE) {
            int share = 4 + round;
            change(facts(Kind.MODE, on.topic + "@" + reader, Replicas.mode("POP", share)), byAddress("set consume mode to (\\S+) success\\."),
                "setConsumeMode", "-c", on.cluster, "-t", on.topic, "-g", reader, "-m", "POP", "-q", "" + share);
        }
        if (round >= LIFE) {
            String oldGroup = on.group + "_" + (round - LIFE);
            Map<Fact, Function<String, String>> gone = facts(Kind.GROUP, oldGroup, "none");
            gone.putAll(facts(Kind.PLACES, on.topic + "@" + oldGroup, "none"));
            change(gone, byAddress("delete subscription group \\[" + oldGroup + "\\] from broker \\[(\\S+)\\]"),
                "deleteSubGroup", "-c", on.cluster, "-g", oldGroup, "-r", "true");
            String oldTopic = on.topic + "_" + (round - LIFE);
            change(facts(Kind.TOPIC, oldTopic, "none"), printed -> allIf(printed, "delete topic [" + oldTopic + "] from cluster [" + on.cluster + "] success."),
                "deleteTopic", "-c", on.cluster, "-t", oldTopic);
        }
        nameServers(round);
    }

    /** The places that the tool prints are those that the group has then. */
    private void reset(String time) throws Exception {
        Map<String, Map<Integer, Long>> places = new HashMap<>();
        Function<String, Set<String>> told = printed -> {
            for (String[] row : rows(printed, row -> row.length >= 3 && on.brokerNames.contains(row[0]))) {
                places.computeIfAbsent(row[0], broker -> new TreeMap<>()).put(Integer.valueOf(row[1]), Long.valueOf(row[row.length - 1]));
            }
            places.values().removeIf(of -> of.size() < 2);
            return places.keySet();
        };
        change(Map.of(new Fact(Kind.PLACES, on.topic + "@" + reader), broker -> Replicas.places(places.get(broker))), told,
            "resetOffsetByTime", "-g", reader, "-t", on.topic, "-s", time);
        Map<String, Long> ends = ends();
        places.forEach((broker, of) -> of.forEach((queue, place) -> {
            long wanted = time.equals("0") ? 0 : ends.get(broker + " " + queue);
            check(place == wanted, "queue " + queue + " of " + broker + " was reset to " + place + " rather than " + wanted, "");
        }));
    }

    /** What only name servers keep, which nobody kills. */
    private void nameServers(int round) throws Exception {
        String broker = on.brokerNames.get(round % on.brokerNames.size());
        said("update orderConf success.", "updateOrderConf", "-t", on.topic, "-m", "put", "-v", broker + ":2");
        said("orderConf=[" + broker + ":2]", "updateOrderConf", "-t", on.topic, "-m", "get");
        said("create or update kv config to namespace success", "updateKvConfig", "-s", "MQADMIN_" + on.run, "-k", "key", "-v", "" + round);
        said("delete kv config from namespace success", "deleteKvConfig", "-s", "MQADMIN_" + on.run, "-k", "key");
        said("wipe write perm of broker[" + broker + "]", "wipeWritePerm", "-b", broker);
        said("add write perm of broker[" + broker + "]", "addWritePerm", "-b", broker);
    }

    private void said(String words, String... command) throws Exception {
        String printed = attempt(command);
        check(printed.contains(words), String.join(" ", command) + " does not say '" + words + "'", printed);
    }

    private Map<Fact, Function<String, String>> facts(Kind kind, String name, String value) {
        Map<Fact, Function<String, String>> one = new LinkedHashMap<>();
        one.put(new Fact(kind, name), broker -> value);
        return one;
    }

    /** The brokers whose addresses a pattern finds. */
    private Function<String, Set<String>> byAddress(String pattern) {
        return printed -> {
            Set<String> told = new TreeSet<>();
            Matcher found = Pattern.compile(pattern).matcher(printed);
            while (found.find()) {
                check(replicas.brokers().containsKey(found.group(1)), found.group(1) + " is no broker", printed);
                told.add(replicas.brokers().get(found.group(1)));
            }
            return told;
        };
    }

    private Set<String> allIf(String printed, String words) {
        return printed.contains(words) && !isFailure(printed) ? new TreeSet<>(on.brokerNames) : Set.of();
    }

    private boolean isWhole(Fact fact) {
        return facts.getOrDefault(fact, Map.of()).size() == on.brokerNames.size();
    }

    private static boolean isFailure(String printed) {
        return printed.contains("Exception") || printed.contains("\tat org.apache.rocketmq");
    }

    private void change(Map<Fact, Function<String, String>> expected, Function<String, Set<String>> told, String... command) throws Exception {
        Change change = new Change(expected, told, command);
        expected.keySet().forEach(fact -> changes.put(fact, change));
        make(change);
    }

    /** Runs a command; what it says was changed is there at once. */
    private void make(Change change) throws Exception {
        long since = System.nanoTime();
        Map<Fact, Map<String, String>> before = new HashMap<>();
        change.expected().keySet().forEach(fact -> before.put(fact, facts.put(fact, new TreeMap<>())));
        String printed = attempt(change.command());
        if (printed.contains("new perm equals to the old one!")) {
            // It looks at one broker only and changes none.
            facts.putAll(before);
            return;
        }
        Set<String> told = change.told().apply(printed);
        for (String broker : on.brokerNames) {
            if (!told.contains(broker)) {
                if (!isFailure(printed)) {
                    check(leadership.wasDisturbed(broker, since), change + " leaves out " + broker + ", which had its leader", printed);
                    silent++;
                }
                continue;
            }
            for (Map.Entry<Fact, Function<String, String>> fact : change.expected().entrySet()) {
                String wanted = fact.getValue().apply(broker);
                if (wanted != null && isThere(fact.getKey(), broker, wanted, change, since)) {
                    facts.get(fact.getKey()).put(broker, wanted);
                }
            }
        }
        if (told.size() < on.brokerNames.size()) {
            failures.merge(change.command()[0], 1, Integer::sum);
        }
    }

    /** Whether a broker has what it was told, which it must, unless it was not asked. */
    private boolean isThere(Fact fact, String broker, String wanted, Change change, long since) throws Exception {
        String[] answer = new String[1];
        Tool.await(broker + " to answer", SETTLE_SECONDS, () -> (answer[0] = ask(leadership.leader(broker), fact)) != null);
        String found = answer[0];
        if (wanted.equals(found)) {
            return true;
        }
        check(leadership.wasDisturbed(broker, since), "after " + change + ", " + broker + " has " + fact + ": " + found + ", not " + wanted, "");
        if (!change.saysWhom()) {
            // It asks the leaders that there are, and says nothing of a broker without one.
            silent++;
            return false;
        }
        Tool.await(broker + " to have " + fact + ": " + wanted + " after " + change + ", it has " + found, SETTLE_SECONDS, () -> wanted.equals(ask(leadership.leader(broker), fact)));
        return true;
    }

    /** What a replica has, or null if it does not answer. */
    private String ask(String address, Fact fact) throws InterruptedException {
        try {
            return replicas.ask(address, fact);
        } catch (InterruptedException e) {
            throw e;
        } catch (Exception e) {
            return null;
        }
    }

    /** What a command prints, in bounded time. */
    private String attempt(String... command) throws Exception {
        commands++;
        long since = System.nanoTime();
        try {
            return runner.submit(() -> tool.attempt(command)).get(COMMAND_SECONDS, TimeUnit.SECONDS);
        } catch (TimeoutException e) {
            throw new AssertionError(String.join(" ", command) + " still runs after " + COMMAND_SECONDS + " s");
        } finally {
            longest = Math.max(longest, (System.nanoTime() - since) / 1e9);
        }
    }

    // What is shown.

    private void show(int round) throws Exception {
        clusterList();
        topicRoute();
        topicStatus();
        consumerProgress();
        message(on.sent.get(round * 7 % on.sent.size()));
        consumer();
        shown("brokerStatus", "commitLogMaxOffset", "brokerStatus", "-c", on.cluster);
    }

    private void clusterList() throws Exception {
        String printed = attempt("clusterList");
        List<String[]> all = rows(printed, row -> row.length > 4 && row[2].matches("\\d+") && row[3].matches("[0-9.]+:[0-9]+"));
        Set<String> leaders = new TreeSet<>();
        for (String[] row : all) {
            check(row[1].equals(replicas.brokers().get(row[3])), row[3] + " is no replica of " + row[1], printed);
            check(!row[2].equals("0") || leaders.add(row[1]), row[1] + " has two leaders", printed);
        }
    }

    /** A route shows the number of queues that was answered, if not at once: a broker waits for name servers, but not long. */
    private void topicRoute() throws Exception {
        Map<String, String> known = facts.get(new Fact(Kind.TOPIC, grown));
        Map<String, String> shown = new TreeMap<>();
        Tool.await("the route of " + grown + " to show " + known, SETTLE_SECONDS, () -> {
            shown.clear();
            Matcher found = Pattern.compile("\"brokerName\":\"([^\"]+)\",\\s*\"perm\":(\\d),\\s*\"readQueueNums\":(\\d+)").matcher(attempt("topicRoute", "-t", grown));
            while (found.find()) {
                shown.put(found.group(1), Replicas.topic(Integer.parseInt(found.group(2)), Integer.parseInt(found.group(3))));
            }
            return shown.entrySet().containsAll(known.entrySet());
        });
    }

    private void topicStatus() throws Exception {
        long since = System.nanoTime();
        String printed = attempt("topicStatus", "-t", on.topic);
        Map<String, Long> ends = ends();
        List<String[]> rows = rows(printed, row -> on.brokerNames.contains(row[0]));
        for (String[] row : rows) {
            isSo(row[2], "0", row[0], since, printed);
            isSo(Boolean.toString(Long.parseLong(row[3]) >= ends.get(row[0] + " " + row[1])), "true", row[0], since, printed);
        }
        complete(rows.size(), ends.size(), printed, since, "topicStatus");
    }

    private void consumerProgress() throws Exception {
        long since = System.nanoTime();
        String[] command = Tool.FIVE ? new String[] {"consumerProgress", "-g", reader, "-t", on.topic} : new String[] {"consumerProgress", "-g", on.group};
        String printed = attempt(command);
        List<String[]> rows = rows(printed, row -> row.length > 5 && row[0].equals(on.topic));
        Map<String, Map<Integer, Long>> places = new HashMap<>();
        rows.forEach(row -> places.computeIfAbsent(row[1], broker -> new TreeMap<>()).put(Integer.valueOf(row[2]), Long.valueOf(row[4])));
        if (Tool.FIVE) {
            for (Map.Entry<String, String> known : facts.get(new Fact(Kind.PLACES, on.topic + "@" + reader)).entrySet()) {
                if (places.containsKey(known.getKey())) {
                    isSo(Replicas.places(places.get(known.getKey())), known.getValue(), known.getKey(), since, printed);
                }
            }
        }
        complete(rows.size(), ends().size(), printed, since, "consumerProgress");
    }

    /** What is shown of a broker is what it has, unless it had no leader, so that any replica was asked. */
    private void isSo(String shown, String known, String broker, long since, String printed) throws Exception {
        if (!shown.equals(known)) {
            check(leadership.wasDisturbed(broker, since), "of " + broker + " " + shown + " is shown rather than " + known, printed);
            silent++;
        }
    }

    /** A message that is there is found, or it is said why not. */
    private void message(SendResult sent) throws Exception {
        String[] byId = Tool.FIVE ? new String[] {"queryMsgById", "-i", sent.getOffsetMsgId(), "-t", on.topic} : new String[] {"queryMsgById", "-i", sent.getOffsetMsgId()};
        shown("queryMsgById", "Queue Offset:\\s+" + sent.getQueueOffset(), byId);
        shown("queryMsgByUniqueKey", "Queue Offset:\\s+" + sent.getQueueOffset(), "queryMsgByUniqueKey", "-t", on.topic, "-i", sent.getMsgId());
        shown("queryMsgByKey", sent.getMsgId() + "\\s+" + sent.getMessageQueue().getQueueId() + "\\s+" + sent.getQueueOffset(),
            "queryMsgByKey", "-t", on.topic, "-k", "key" + on.sent.indexOf(sent));
    }

    private void consumer() throws Exception {
        shown("consumerConnection", Pattern.quote(on.clientId()), "consumerConnection", "-g", on.group);
        Groups.deleteFiles(shown("consumerStatus", Pattern.quote(on.clientId()), "consumerStatus", "-g", on.group), on.clientId());
    }

    /** A command shows what is so, fails, or has left out a broker that had no leader; what it prints. */
    private String shown(String name, String pattern, String... command) throws Exception {
        long since = System.nanoTime();
        String printed = attempt(command);
        complete(Pattern.compile(pattern).matcher(printed).find() ? 1 : 0, 1, printed, since, name);
        return printed;
    }

    private void complete(int found, int wanted, String printed, long since, String name) throws Exception {
        if (found == wanted) {
            return;
        }
        check(found < wanted, name + " shows " + found + " instead of " + wanted, printed);
        if (!isFailure(printed)) {
            boolean disturbed = false;
            for (String broker : on.brokerNames) {
                disturbed |= leadership.wasDisturbed(broker, since);
            }
            check(disturbed, name + " shows " + found + " instead of " + wanted + ", though every broker had its leader", printed);
            silent++;
        }
        failures.merge(name, 1, Integer::sum);
    }

    // The end.

    /** Commands that failed work now, and every replica has what was answered. How many were made again. */
    private int settle() throws Exception {
        for (String address : replicas.brokers().keySet()) {
            Tool.await(address + " to answer", SETTLE_SECONDS, () -> ask(address, new Fact(Kind.SETTING, SETTING)) != null);
        }
        // By id, with or without quotes.
        Pattern leader = Pattern.compile("[{,\\s]\"?0\"?:\\s*\"");
        Tool.await("every broker to have a leader", SETTLE_SECONDS, () -> leader.matcher(attempt("topicRoute", "-t", perm)).results().count() == on.brokerNames.size());
        checkReplicas();
        int repeated = 0;
        for (Map.Entry<Fact, Change> change : Map.copyOf(changes).entrySet()) {
            if (!isWhole(change.getKey())) {
                if (change.getKey().name().equals(perm)) {
                    // It compares with one broker, so two different ones reach all.
                    attempt("updateTopicPerm", "-c", on.cluster, "-t", perm, "-p", "2");
                }
                make(change.getValue());
                check(isWhole(change.getKey()), change.getValue() + ", made again in the end, has reached " + facts.get(change.getKey()), "");
                repeated++;
            }
        }
        checkReplicas();
        return repeated;
    }

    private void checkReplicas() throws Exception {
        for (Map.Entry<Fact, Map<String, String>> fact : facts.entrySet()) {
            List<String> waiting = new ArrayList<>(replicas.brokers().keySet());
            Map<String, String> found = new TreeMap<>();
            try {
                Tool.await("all replicas", SETTLE_SECONDS, () -> {
                    waiting.removeIf(address -> {
                        String wanted = fact.getValue().get(replicas.brokers().get(address));
                        try {
                            found.put(address, String.valueOf(ask(address, fact.getKey())));
                        } catch (InterruptedException e) {
                            throw new IllegalStateException(e);
                        }
                        return wanted == null || wanted.equals(found.get(address));
                    });
                    return waiting.isEmpty();
                });
            } catch (AssertionError e) {
                throw new AssertionError(fact.getKey() + " is in the end " + found + ", and was to be " + fact.getValue());
            }
        }
    }
}
