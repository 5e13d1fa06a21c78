package gantry.compat;

import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Watches whom the name servers call the leader of each broker, all the time. */
final class Leadership {
    private static final int LOOK_MS = 10;
    /** Until the name servers know of a kill. */
    private static final int NOTICE_SECONDS = 5;

    private final DefaultMQAdminExt admin;
    private final Set<String> names;
    private final Map<String, String> leaders = new ConcurrentHashMap<>();
    /** When a broker had no leader, or another one, most lately. */
    private final Map<String, Long> disturbedNs = new ConcurrentHashMap<>();
    private final Thread thread;
    private volatile boolean stopped;

    Leadership(String namesrv, Set<String> names) throws Exception {
        this.names = names;
        admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("leadership");
        admin.start();
        look();
        thread = new Thread(this::watch, "leadership");
        thread.setDaemon(true);
        thread.start();
    }

    void stop() throws Exception {
        stopped = true;
        thread.join();
        admin.shutdown();
    }

    /** The leader's address, as last known. */
    String leader(String broker) {
        return leaders.get(broker);
    }

    /** Whether the broker changed hands since then. */
    boolean wasDisturbed(String broker, long sinceNs) throws InterruptedException {
        long deadline = System.nanoTime() + NOTICE_SECONDS * 1_000_000_000L;
        while (disturbedNs.getOrDefault(broker, Long.MIN_VALUE) < sinceNs) {
            if (System.nanoTime() > deadline) {
                return false;
            }
            Thread.sleep(LOOK_MS);
        }
        return true;
    }

    private void watch() {
        while (!stopped) {
            try {
                look();
                Thread.sleep(LOOK_MS);
            } catch (Exception e) {
                // Nobody kills name servers, but one may be slow.
                names.forEach(name -> disturbedNs.put(name, System.nanoTime()));
            }
        }
    }

    private void look() throws Exception {
        var table = admin.examineBrokerClusterInfo().getBrokerAddrTable();
        for (String name : names) {
            String leader = table.containsKey(name) ? table.get(name).getBrokerAddrs().get(0L) : null;
            if (leader == null || !leader.equals(leaders.getOrDefault(name, leader))) {
                disturbedNs.put(name, System.nanoTime());
            }
            if (leader != null) {
                leaders.put(name, leader);
            }
        }
    }
}
