package gantry.compat;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The messages of a topic as its queues hold them. */
final class Stored {
    private final Map<MessageQueue, List<MessageExt>> queues = new LinkedHashMap<>();

    void add(MessageQueue queue, MessageExt message) {
        queues.computeIfAbsent(queue, q -> new ArrayList<>()).add(message);
    }

    Map<MessageQueue, List<MessageExt>> queues() {
        return queues;
    }

    List<MessageExt> messages() {
        return queues.values().stream().flatMap(List::stream).toList();
    }

    /** The bodies as text, sorted. */
    List<String> texts() {
        return messages().stream().map(Env::text).sorted().toList();
    }
}
