package gantry.compat;

import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/**
 * Runs mqadmin's commands as its script does and checks what they print; exits with 1 if any fails. With
 * -Dcompat.kills=SECONDS it does so in a cluster whose leaders are killed for so long.
 */
public final class Mqadmin {
    /** Commands that look into files of RocketMQ's own and ask no broker. */
    private static final Set<String> LOCAL = Set.of("dumpCompactionLog", "exportMetadataInRocksDB");

    private final PrintStream console = System.out;
    private final Fixture on;

    interface Step {
        void run() throws Exception;
    }

    private Mqadmin(String namesrv) {
        on = new Fixture(namesrv);
    }

    public static void main(String[] args) throws Exception {
        if (args.length != 1) {
            System.err.println("usage: Mqadmin NAMESRV");
            System.exit(2);
        }
        // The 4.9 line does not start without a file that says where it logs to.
        Path home = Files.createTempDirectory("mqadmin-home");
        Files.createDirectory(home.resolve("conf"));
        Files.writeString(home.resolve("conf/logback_tools.xml"), "<configuration><root level=\"OFF\"/></configuration>\n");
        System.setProperty("rocketmq.home.dir", home.toString());
        Mqadmin mqadmin = new Mqadmin(args[0]);
        boolean passed = Integer.getInteger("compat.kills") == null ? mqadmin.runAll() : mqadmin.runWithKills();
        Files.delete(home.resolve("conf/logback_tools.xml"));
        Files.delete(home.resolve("conf"));
        Files.delete(home);
        System.exit(passed ? 0 : 1);
    }

    private boolean runWithKills() {
        long started = System.nanoTime();
        try {
            String figures = new Kills(on).run();
            console.printf("PASS kills_admin (%.1f s; %s)%n", (System.nanoTime() - started) / 1e9, figures);
            return true;
        } catch (Exception | AssertionError e) {
            console.printf("FAIL kills_admin %s (%.1f s)%n", String.valueOf(e.getMessage()).replaceAll("\\s+", " "), (System.nanoTime() - started) / 1e9);
            e.printStackTrace();
            return false;
        } finally {
            on.stop();
        }
    }

    /** The steps build on each other: a topic is made, filled, consumed, looked at, and deleted. */
    private boolean runAll() {
        Brokers brokers = new Brokers(on);
        Topics topics = new Topics(on);
        Groups groups = new Groups(on);
        Map<String, Step> steps = new LinkedHashMap<>();
        brokers.addFirstTo(steps);
        topics.addFirstTo(steps);
        topics.addTo(steps);
        groups.addTo(steps);
        new Messages(on).addTo(steps);
        brokers.addTo(steps);
        new QueueNumbers(on).addTo(steps);
        groups.addLastTo(steps);
        new Refused(on).addTo(steps);
        topics.addLastTo(steps);
        steps.put("every command", this::everyCommand);
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
                if (on.sent.isEmpty()) {
                    // Without a topic and messages in it there is nothing to look at.
                    break;
                }
            }
        }
        on.stop();
        return passed;
    }

    /** Each command that the tools have was run above. */
    private void everyCommand() throws Exception {
        Set<String> missing = new TreeSet<>(on.tool.all());
        Tool.check(missing.size() > 40, "only these commands were found", missing.toString());
        missing.removeAll(on.tool.used());
        missing.removeAll(LOCAL);
        if (on.isApache) {
            return;
        }
        Tool.check(missing.isEmpty(), "commands that were not run", missing.toString());
    }
}
