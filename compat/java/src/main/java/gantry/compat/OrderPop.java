package gantry.compat;

import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Pops queues in order. A Java consumer with an orderly listener pulls, so this calls what lies below it, as RocketMQ's
 * proxy does for its clients. All of it is of 5.x, hence asked for by name.
 */
final class OrderPop {
    private static final String HEADERS = "org.apache.rocketmq.remoting.protocol.header.";

    private final DefaultMQProducer client;
    private final String topic;
    private final String group;
    private Leaders leaders;

    /** What a pop was given; nothing if there was nothing to give. Times are the leader's. */
    record Given(MessageQueue queue, String attempt, List<MessageExt> messages, long popMs, long untilMs) {
    }

    OrderPop(DefaultMQProducer client, String topic, String group) {
        this.client = client;
        this.topic = topic;
        this.group = group;
    }

    /** A pop that is made again for want of an answer has the same `attempt`. */
    Given pop(MessageQueue queue, String attempt, int count, long invisibleMs) throws Exception {
        return pop(queue, attempt, count, invisibleMs, true);
    }

    /** The same in any order. */
    Given popAny(MessageQueue queue, int count, long invisibleMs) throws Exception {
        return pop(queue, "", count, invisibleMs, false);
    }

    private Given pop(MessageQueue queue, String attempt, int count, long invisibleMs, boolean isOrderly) throws Exception {
        Object header = header("PopMessage", queue);
        set(header, "setMaxMsgNums", count);
        set(header, "setInvisibleTime", invisibleMs);
        set(header, "setPollTime", 0L);
        set(header, "setBornTime", System.currentTimeMillis());
        set(header, "setInitMode", 0);
        set(header, "setExpType", "TAG");
        set(header, "setExp", "*");
        set(header, "setOrder", isOrderly);
        if (isOrderly) {
            set(header, "setAttemptId", attempt);
        }
        CompletableFuture<Object> answer = new CompletableFuture<>();
        Method pop = method("popMessageAsync", 5);
        call(pop, queue.getBrokerName(), leader(queue), header, Leaders.TIMEOUT_MS, callback(pop.getParameterTypes()[4], answer));
        Object result = result(answer);
        if (!get(result, "getPopStatus").toString().equals("FOUND")) {
            return new Given(queue, attempt, List.of(), 0, 0);
        }
        @SuppressWarnings("unchecked")
        List<MessageExt> messages = (List<MessageExt>) get(result, "getMsgFoundList");
        long popMs = (Long) get(result, "getPopTime");
        return new Given(queue, attempt, messages, popMs, popMs + (Long) get(result, "getInvisibleTime"));
    }

    /** Whether the message was still under way by the giving that it names. */
    boolean acknowledge(MessageQueue queue, MessageExt message) throws Exception {
        Object header = header("AckMessage", queue);
        setGiving(header, message);
        CompletableFuture<Object> answer = new CompletableFuture<>();
        Method acknowledge = method("ackMessageAsync", 4);
        call(acknowledge, leader(queue), Leaders.TIMEOUT_MS, callback(acknowledge.getParameterTypes()[2], answer), header);
        return isDone(answer);
    }

    /** Whether messages of one queue, acknowledged by one call, were all still under way by the givings that they name. */
    boolean acknowledgeBatch(MessageQueue queue, List<MessageExt> messages) throws Exception {
        List<String> givings = messages.stream().map(message -> message.getProperty("POP_CK")).toList();
        CompletableFuture<Object> answer = new CompletableFuture<>();
        Method acknowledge = List.of(leaders().api().getClass().getMethods()).stream()
            .filter(m -> m.getName().equals("batchAckMessageAsync") && m.getParameterCount() == 6).findFirst().orElseThrow();
        call(acknowledge, leader(queue), Leaders.TIMEOUT_MS, callback(acknowledge.getParameterTypes()[2], answer), topic, group, givings);
        return isDone(answer);
    }

    /** Has a message given again that much later, if it is still under way. */
    boolean giveAgainIn(long invisibleMs, MessageQueue queue, MessageExt message) throws Exception {
        Object header = header("ChangeInvisibleTime", queue);
        setGiving(header, message);
        set(header, "setInvisibleTime", invisibleMs);
        CompletableFuture<Object> answer = new CompletableFuture<>();
        Method change = method("changeInvisibleTimeAsync", 5);
        call(change, queue.getBrokerName(), leader(queue), header, Leaders.TIMEOUT_MS, callback(change.getParameterTypes()[4], answer));
        return isDone(answer);
    }

    private Object header(String request, MessageQueue queue) throws Exception {
        Object header = Class.forName(HEADERS + request + "RequestHeader").getConstructor().newInstance();
        set(header, "setConsumerGroup", group);
        set(header, "setTopic", topic);
        set(header, "setQueueId", queue.getQueueId());
        return header;
    }

    private static void setGiving(Object header, MessageExt message) throws Exception {
        set(header, "setOffset", message.getQueueOffset());
        set(header, "setExtraInfo", message.getProperty("POP_CK"));
    }

    private boolean isDone(CompletableFuture<Object> answer) throws Exception {
        return get(result(answer), "getStatus").toString().equals("OK");
    }

    /** Those known, or found anew after a failure. */
    private Leaders leaders() throws Exception {
        if (leaders == null) {
            leaders = Leaders.of(client, topic);
        }
        return leaders;
    }

    private String leader(MessageQueue queue) throws Exception {
        return leaders().byBroker().get(queue.getBrokerName());
    }

    private Method method(String name, int parameters) throws Exception {
        return List.of(leaders().api().getClass().getMethods()).stream()
            .filter(m -> m.getName().equals(name) && m.getParameterCount() == parameters && m.getParameterTypes()[parameters - 1].getName().matches(".*(Header|Callback)"))
            .findFirst().orElseThrow();
    }

    private void call(Method method, Object... arguments) throws Exception {
        try {
            Leaders.call(method, leaders().api(), arguments);
        } catch (Exception e) {
            leaders = null;
            throw e;
        }
    }

    private Object result(CompletableFuture<Object> answer) throws Exception {
        try {
            return answer.get(Leaders.TIMEOUT_MS * 2, TimeUnit.MILLISECONDS);
        } catch (ExecutionException e) {
            leaders = null;
            throw e.getCause() instanceof Exception cause ? cause : e;
        }
    }

    /** Both kinds of callback have `onSuccess` and `onException`. */
    private static Object callback(Class<?> kind, CompletableFuture<Object> answer) {
        return Proxy.newProxyInstance(kind.getClassLoader(), new Class<?>[] {kind}, (proxy, method, arguments) -> {
            switch (method.getName()) {
            case "onSuccess" -> answer.complete(arguments[0]);
            case "onException" -> answer.completeExceptionally((Throwable) arguments[0]);
            default -> throw new UnsupportedOperationException(method.getName());
            }
            return null;
        });
    }

    private static void set(Object target, String setter, Object value) throws Exception {
        for (Method method : target.getClass().getMethods()) {
            if (method.getName().equals(setter) && method.getParameterCount() == 1) {
                method.invoke(target, value);
                return;
            }
        }
        throw new NoSuchMethodException(setter);
    }

    private static Object get(Object target, String getter) throws Exception {
        return target.getClass().getMethod(getter).invoke(target);
    }
}
