package gantry.compat;

import static gantry.compat.Env.check;
import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.text;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;

/** Messages that are delivered at a time of their own, and their recall. */
final class Timers {
    private static final int ILLEGAL_OPERATION = 604;
    /** Clients of 5.x have it. */
    private static final Optional<Method> RECALL = findRecall();

    private Timers() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        scenarios.put("timers", Timers::timers);
        scenarios.put("timer_recall", Timers::recall);
    }

    /** The three ways in which a message can ask for its time. A client of before timers writes the properties itself. */
    enum Way {
        SECONDS("setDelayTimeSec", "TIMER_DELAY_SEC"),
        MILLISECONDS("setDelayTimeMs", "TIMER_DELAY_MS"),
        TIME("setDeliverTimeMs", "TIMER_DELIVER_MS");

        private final String setter;
        private final String property;

        Way(String setter, String property) {
            this.setter = setter;
            this.property = property;
        }

        /** Makes a message ask for `wait` ms from now, and says when it is due at the earliest. */
        long ask(Message message, long wait) throws ReflectiveOperationException {
            long now = System.currentTimeMillis();
            long value = switch (this) {
                case SECONDS -> wait / 1_000;
                case MILLISECONDS -> wait;
                case TIME -> now + wait;
            };
            try {
                Message.class.getMethod(setter, long.class).invoke(message, value);
            } catch (NoSuchMethodException e) {
                MessageAccessor.putProperty(message, property, Long.toString(value));
            }
            return this == SECONDS ? now + wait / 1_000 * 1_000 : now + wait;
        }
    }

    /** Each message comes once, not before its time and not long after it. */
    private static void timers(Env env) throws Exception {
        Arrivals arrivals = new Arrivals(env);
        for (int i = 0; i < 90; i++) {
            Way way = Way.values()[i % 3];
            Message message = message(arrivals.topic, way + "-" + i);
            message.setTags("tag");
            // From 6 s down to 1.5 s: the last ones sent come first.
            arrivals.send(message, way.ask(message, 6_000 - i * 50L));
        }
        Message past = message(arrivals.topic, "past");
        Way.TIME.ask(past, -60_000);
        arrivals.send(past, 0);
        arrivals.awaitAll(env);
        Message beyond = message(arrivals.topic, "beyond");
        Way.TIME.ask(beyond, 41L * 86_400_000);
        try {
            arrivals.producer.send(beyond);
            check(false, "a message may wait for 41 days");
        } catch (MQBrokerException e) {
            equal(13, e.getResponseCode(), "the code for a message that would wait too long");
        }
    }

    /** A message that was recalled never comes; one that came cannot be recalled. */
    private static void recall(Env env) throws Exception {
        if (RECALL.isEmpty()) {
            env.note("this client cannot recall");
            return;
        }
        Arrivals arrivals = new Arrivals(env);
        List<SendResult> sent = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            Message message = message(arrivals.topic, "later-" + i);
            sent.add(arrivals.send(message, Way.MILLISECONDS.ask(message, 5_000)));
            if (i % 2 == 0) {
                check(isRecalled(arrivals.producer, sent.get(i)), text(message) + " came before it was recalled");
                arrivals.cancelled(message);
            }
        }
        arrivals.awaitAll(env);
        int came = arrivals.inbox.size();
        Thread.sleep(2_000);
        equal(came, arrivals.inbox.size(), "messages that came after some were recalled");
        for (int i = 0; i < sent.size(); i++) {
            equal(i % 2 == 0, isRecalled(arrivals.producer, sent.get(i)), "whether message " + i + " is recalled");
        }
    }

    /** Recalls a message, and says whether it does not come; false if it came before, or if it cannot be recalled. */
    static boolean isRecalled(DefaultMQProducer producer, SendResult sent) throws Exception {
        if (RECALL.isEmpty()) {
            return false;
        }
        Object handle = SendResult.class.getMethod("getRecallHandle").invoke(sent);
        if (handle == null) {
            return false;
        }
        try {
            Object id = RECALL.get().invoke(producer, sent.getMessageQueue().getTopic(), handle);
            equal(sent.getMsgId(), id, "the id of the message recalled");
            return true;
        } catch (InvocationTargetException e) {
            if (e.getCause() instanceof MQBrokerException refused && refused.getResponseCode() == ILLEGAL_OPERATION) {
                return false;
            }
            throw e.getCause() instanceof Exception cause ? cause : e;
        }
    }

    private static Optional<Method> findRecall() {
        try {
            return Optional.of(DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class));
        } catch (NoSuchMethodException e) {
            return Optional.empty();
        }
    }
}
