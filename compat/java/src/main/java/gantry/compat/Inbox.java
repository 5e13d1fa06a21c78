package gantry.compat;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.MessageExt;

/** What listeners were given, in that order; one inbox can serve several consumers. */
final class Inbox {
    private final List<MessageExt> messages = new ArrayList<>();

    MessageListenerConcurrently concurrently() {
        return (batch, context) -> {
            add(batch);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    MessageListenerOrderly orderly() {
        return (batch, context) -> {
            add(batch);
            return ConsumeOrderlyStatus.SUCCESS;
        };
    }

    private synchronized void add(List<MessageExt> batch) {
        messages.addAll(batch);
    }

    synchronized List<MessageExt> messages() {
        return List.copyOf(messages);
    }

    synchronized int size() {
        return messages.size();
    }

    /** The bodies as text, sorted, with those that came twice twice. */
    List<String> texts() {
        return messages().stream().map(Env::text).sorted().toList();
    }

    /** Whether each of `expected` came, once or more. */
    boolean covers(Collection<String> expected) {
        return Set.copyOf(texts()).containsAll(expected);
    }

    /** Waits for all of `expected`, then checks that nothing else came and nothing came twice. */
    void awaitExactly(Collection<String> expected, int seconds) throws Exception {
        List<String> sorted = expected.stream().sorted().toList();
        try {
            Env.await(sorted.size() + " messages", seconds, () -> covers(sorted));
        } catch (AssertionError e) {
            Set<String> missing = new TreeSet<>(sorted);
            texts().forEach(missing::remove);
            throw new AssertionError(e.getMessage() + ", " + missing.size() + " of them missing, such as " + missing.stream().limit(5).toList());
        }
        Env.equal(sorted, texts(), "what the consumer was given");
    }
}
