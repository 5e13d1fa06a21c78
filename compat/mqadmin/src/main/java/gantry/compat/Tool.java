package gantry.compat;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs mqadmin's commands as its script does, and says what they print. */
final class Tool {
    /** Whether these are the tools of the 5.x line. */
    static final boolean FIVE = MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION).startsWith("V5");

    private final String namesrv;
    /** Commands that were run. */
    private final Set<String> used = new TreeSet<>();

    Tool(String namesrv) {
        this.namesrv = namesrv;
    }

    /** What a command prints; it must not fail. */
    String run(String... command) throws Exception {
        String printed = attempt(command);
        check(!printed.contains("\tat org.apache.rocketmq") && !printed.startsWith("usage:"), "mqadmin " + String.join(" ", command) + " failed", printed);
        return printed;
    }

    /** What a command prints that the cluster refuses; it must say {@code words}. */
    String refused(String words, String... command) throws Exception {
        String printed = attempt(command);
        check(printed.contains(words), "mqadmin " + String.join(" ", command) + " does not say '" + words + "'", printed);
        return printed;
    }

    /** What a command prints, whatever becomes of it. */
    String attempt(String... command) throws Exception {
        used.add(command[0]);
        forgetCommands();
        return capture(() -> MQAdminStartup.main(withNamesrv(command)));
    }

    /** The first line that {@code wanted} accepts, of a command that goes on for ever; it is ended then. */
    String firstLine(int seconds, Predicate<String> wanted, String... command) throws Exception {
        StringBuilder printed = new StringBuilder();
        String found = watch(seconds, wanted, printed, command);
        check(found != null, "mqadmin " + String.join(" ", command) + " did not print what was expected", printed.toString());
        return found;
    }

    /** Lets a command that goes on for ever run so long; it must neither fail nor end by itself. */
    void runsFor(int seconds, String... command) throws Exception {
        long started = System.nanoTime();
        StringBuilder printed = new StringBuilder();
        String fault = watch(seconds, line -> line.contains("Exception"), printed, command);
        boolean lasted = System.nanoTime() - started >= TimeUnit.SECONDS.toNanos(seconds);
        check(fault == null && lasted, "mqadmin " + String.join(" ", command) + " failed", printed + String.valueOf(fault));
    }

    /** Runs a command in a process of its own until it prints a line that {@code wanted} accepts, or for so long. */
    private String watch(int seconds, Predicate<String> wanted, StringBuilder printed, String... command) throws Exception {
        used.add(command[0]);
        List<String> java = new ArrayList<>(List.of(System.getProperty("java.home") + "/bin/java", "-Xmx128m", "-XX:+UseSerialGC",
            "-Drocketmq.home.dir=" + System.getProperty("rocketmq.home.dir"), "-Duser.home=" + System.getProperty("user.home"),
            "-cp", System.getProperty("java.class.path"), MQAdminStartup.class.getName()));
        java.addAll(Arrays.asList(withNamesrv(command)));
        Process process = new ProcessBuilder(java).redirectErrorStream(true).start();
        Thread timeout = new Thread(() -> {
            try {
                TimeUnit.SECONDS.sleep(seconds);
                process.destroyForcibly();
            } catch (InterruptedException e) {
                // It is over in time.
            }
        });
        timeout.setDaemon(true);
        timeout.start();
        try (BufferedReader lines = process.inputReader()) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                if (wanted.test(line)) {
                    return line;
                }
                printed.append(line).append('\n');
            }
            return null;
        } catch (IOException e) {
            // It was ended while a line was read.
            return null;
        } finally {
            timeout.interrupt();
            process.destroyForcibly().waitFor();
        }
    }

    /** The commands that these tools have. */
    Set<String> all() throws Exception {
        forgetCommands();
        String printed = capture(() -> MQAdminStartup.main(new String[0]));
        return printed.lines().filter(line -> line.matches("   [a-z]\\w+ .*")).map(line -> line.trim().split("\\s+")[0])
            .collect(Collectors.toCollection(TreeSet::new));
    }

    Set<String> used() {
        return used;
    }

    /** Columns of the printed lines that {@code wanted} accepts. */
    static List<String[]> rows(String printed, Predicate<String[]> wanted) {
        return printed.lines().map(line -> line.trim().split("\\s+")).filter(wanted).toList();
    }

    static void check(boolean holds, String otherwise, String printed) {
        if (!holds) {
            throw new AssertionError(otherwise + "; printed: " + printed);
        }
    }

    static void equal(Object expected, Object found, String what, String printed) {
        check(expected.equals(found), what + ": expected " + expected + ", found " + found, printed);
    }

    static void await(String what, int seconds, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        while (!condition.call()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("waited " + seconds + " s for " + what);
            }
            Thread.sleep(500);
        }
    }

    private interface Body {
        void run() throws Exception;
    }

    private static String capture(Body body) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream err = System.err;
        try (PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8)) {
            System.setOut(capture);
            System.setErr(capture);
            body.run();
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return printed.toString(StandardCharsets.UTF_8);
    }

    private String[] withNamesrv(String[] command) {
        String[] args = Arrays.copyOf(command, command.length + 2);
        args[command.length] = "-n";
        args[command.length + 1] = namesrv;
        return args;
    }

    /** Some commands can be run once only: those of the next run are new ones, as in a new process. */
    private static void forgetCommands() throws IllegalAccessException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }
}
