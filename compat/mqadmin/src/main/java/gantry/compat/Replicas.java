package gantry.compat;

import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** Asks single replicas what they have, without a tool between. Codes and fields are named differently in 4.x and 5.x. */
final class Replicas {
    private static final int TIMEOUT_MS = 3_000;
    private static final int TOPIC_NOT_EXIST = 17;
    private static final int GROUP_NOT_EXIST = 26;

    private final NettyRemotingClient client = new NettyRemotingClient(new NettyClientConfig());
    /** The broker of each address. */
    private final Map<String, String> brokers;

    /** Something that a broker keeps. */
    record Fact(Kind kind, String name) {
        @Override
        public String toString() {
            return kind.name().toLowerCase() + " " + name;
        }
    }

    enum Kind { TOPIC, GROUP, SETTING, PLACES, MODE }

    Replicas(Map<String, String> brokers) {
        this.brokers = brokers;
        client.start();
    }

    void stop() {
        client.shutdown();
    }

    Map<String, String> brokers() {
        return brokers;
    }

    /** What the replica at an address has by itself, in words. Fails if it does not answer. */
    String ask(String address, Fact fact) throws Exception {
        String name = fact.name();
        return switch (fact.kind()) {
            case TOPIC -> {
                String body = body(address, 351, Map.of("topic", name), TOPIC_NOT_EXIST);
                yield body == null ? "none" : topic(number(body, "perm"), number(body, "writeQueueNums"));
            }
            case GROUP -> {
                String body = body(address, 352, Map.of("group", name), GROUP_NOT_EXIST);
                yield body == null ? "none" : group(number(body, "retryMaxTimes"));
            }
            case SETTING -> body(address, 26, Map.of(), 0).lines().filter(line -> line.startsWith(name + "=")).map(line -> line.substring(name.length() + 1))
                .findFirst().orElse("none");
            // By topic@group.
            case PLACES -> places(body(address, 43, Map.of(), 0), name);
            // By topic and group.
            case MODE -> {
                String body = body(address, 402, Map.of(), 0);
                String[] parts = name.split("@");
                Matcher found = Pattern.compile("\"" + parts[0] + "\":\\{[^@]*?\"" + parts[1] + "\":(\\{[^}]*\\})").matcher(body);
                yield found.find() ? mode(word(found.group(1), "mode"), number(found.group(1), "popShareQueueNum")) : "none";
            }
        };
    }

    static String topic(int perm, int queues) {
        return "permission " + perm + ", " + queues + " queues";
    }

    static String group(int tries) {
        return tries + " tries";
    }

    static String mode(String mode, int share) {
        return mode + " by " + share;
    }

    /** The place in each queue, by its number. */
    static String places(Map<Integer, Long> places) {
        return places.isEmpty() ? "none" : new TreeMap<>(places).entrySet().stream().map(one -> one.getKey() + ":" + one.getValue()).collect(Collectors.joining(","));
    }

    private static String places(String body, String name) {
        Matcher found = Pattern.compile("\"" + Pattern.quote(name) + "\":\\{([^}]*)\\}").matcher(body);
        Map<Integer, Long> places = new TreeMap<>();
        if (found.find()) {
            Matcher place = Pattern.compile("\"?(\\d+)\"?:(\\d+)").matcher(found.group(1));
            while (place.find()) {
                places.put(Integer.valueOf(place.group(1)), Long.valueOf(place.group(2)));
            }
        }
        return places(places);
    }

    private static int number(String json, String key) {
        return Integer.parseInt(word(json, key));
    }

    private static String word(String json, String key) {
        Matcher found = Pattern.compile("\"" + key + "\":\"?(\\w+)").matcher(json);
        Tool.check(found.find(), "no " + key, json);
        return found.group(1);
    }

    /** What is answered, or null if the answer has the code for what is not there. */
    private String body(String address, int code, Map<String, String> fields, int absent) throws Exception {
        RemotingCommand request = RemotingCommand.createRequestCommand(code, null);
        fields.forEach(request::addExtField);
        RemotingCommand answer = client.invokeSync(address, request, TIMEOUT_MS);
        if (answer.getCode() == absent && absent != 0) {
            return null;
        }
        if (answer.getCode() != 0) {
            throw new IllegalStateException(address + " answered " + answer.getCode() + " " + answer.getRemark());
        }
        return new String(answer.getBody());
    }
}
