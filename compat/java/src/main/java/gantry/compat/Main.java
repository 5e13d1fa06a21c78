package gantry.compat;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Runs the scenarios named on the command line, or all, two at a time; exits with 1 if any fails. With
 * -Dcompat.kills=SECONDS it runs those for a cluster whose leaders are killed for so long, all at once.
 */
public final class Main {
    private static final long SCENARIO_LIMIT_SECONDS = 240;
    /** They wait most of the time. */
    private static final int AT_ONCE = 2;

    /** One thing that an application does with the client, and what it must see. */
    interface Scenario {
        void run(Env env) throws Exception;
    }

    private Main() {
    }

    public static void main(String[] args) throws Exception {
        if (args.length < 1) {
            System.err.println("usage: Main NAMESRV [SCENARIO...]");
            System.exit(2);
        }
        Map<String, Scenario> scenarios = new LinkedHashMap<>();
        boolean kills = Integer.getInteger("compat.kills") != null;
        if (kills) {
            Kills.register(scenarios);
        } else {
            registerAll(scenarios);
        }

        List<String> names = new ArrayList<>(List.of(args).subList(1, args.length));
        if (names.isEmpty()) {
            names.addAll(scenarios.keySet());
        }
        for (String name : names) {
            if (!scenarios.containsKey(name)) {
                System.err.println("no such scenario: " + name + "; there are " + scenarios.keySet());
                System.exit(2);
            }
        }
        ExecutorService pool = Executors.newFixedThreadPool(kills ? names.size() : AT_ONCE);
        List<Callable<Boolean>> runs = new ArrayList<>();
        names.forEach(name -> runs.add(() -> passes(name, scenarios.get(name), args[0])));
        boolean good = true;
        for (Future<Boolean> run : pool.invokeAll(runs)) {
            good &= run.get();
        }
        System.exit(good ? 0 : 1);
    }

    private static void registerAll(Map<String, Scenario> scenarios) {
        Sending.register(scenarios);
        Bodies.register(scenarios);
        Pushing.register(scenarios);
        Later.register(scenarios);
        Popping.register(scenarios);
        Timers.register(scenarios);
        Exchanges.register(scenarios);
        Pulling.register(scenarios);
        Lookup.register(scenarios);
        Limits.register(scenarios);
        Members.register(scenarios);
        if (System.getenv("COMPAT_GANTRY") != null) {
            Expiry.register(scenarios);
        }
    }

    private static boolean passes(String name, Scenario scenario, String namesrv) {
        long started = System.nanoTime();
        ExecutorService runner = Executors.newSingleThreadExecutor(r -> {
            Thread thread = new Thread(r, name);
            thread.setDaemon(true);
            return thread;
        });
        Throwable fault = null;
        String note = "";
        try (Env env = new Env(namesrv, name)) {
            Future<?> run = runner.submit(() -> {
                scenario.run(env);
                return null;
            });
            try {
                run.get(SCENARIO_LIMIT_SECONDS, TimeUnit.SECONDS);
            } catch (ExecutionException e) {
                fault = e.getCause();
            } catch (TimeoutException e) {
                fault = new AssertionError("still running after " + SCENARIO_LIMIT_SECONDS + " s");
            }
            note = env.note();
        } catch (Exception e) {
            fault = e;
        } finally {
            runner.shutdownNow();
        }
        double seconds = (System.nanoTime() - started) / 1e9;
        if (fault == null) {
            System.out.printf("PASS %s (%.1f s%s)%n", name, seconds, note.isEmpty() ? "" : "; " + note);
            return true;
        }
        System.out.printf("FAIL %s %s (%.1f s)%n", name, oneLine(fault), seconds);
        fault.printStackTrace();
        return false;
    }

    private static String oneLine(Throwable fault) {
        String text = fault instanceof AssertionError ? String.valueOf(fault.getMessage()) : fault.toString();
        text = text.replaceAll("\\s+", " ");
        return text.length() > 300 ? text.substring(0, 300) + "..." : text;
    }
}
