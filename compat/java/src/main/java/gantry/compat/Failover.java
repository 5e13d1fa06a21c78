package gantry.compat;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.hook.SendMessageContext;
import org.apache.rocketmq.client.hook.SendMessageHook;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The Java side of a failover run: a producer that sends synchronously at a steady rate, and a push consumer, which pops
 * if the variable COMPAT_POP is set.
 *
 * <p>Both keep the client's defaults. What happens goes to standard output, one line each, fields apart by blanks, times
 * in microseconds since 1970: {@code A stream number broker queue offset start duration attempts} for an acknowledged
 * message, {@code F stream number start duration attempts reason} for a failed call, {@code R broker queue offset id}
 * for a message that the consumer was given. {@code stop} on standard input ends the sending, answered by
 * {@code STOPPED}; end of input ends the program.
 */
public final class Failover {
    private static final int STREAMS = 4;
    private static final String FILLER = " " + "x".repeat(180);

    private final LinkedBlockingQueue<String> lines = new LinkedBlockingQueue<>(100_000);
    private volatile boolean sending = true;

    private Failover() {
    }

    public static void main(String[] args) throws Exception {
        if (args.length != 4) {
            System.err.println("usage: Failover NAMESRV TOPIC GROUP RATE");
            System.exit(2);
        }
        new Failover().run(args[0], args[1], args[2], Integer.parseInt(args[3]));
        System.exit(0);
    }

    private void run(String namesrv, String topic, String group, int rate) throws Exception {
        Thread printer = new Thread(this::print, "printer");
        printer.setDaemon(true);
        printer.start();

        DefaultMQProducer producer = new DefaultMQProducer(group + "_p");
        producer.setNamesrvAddr(namesrv);
        Attempts attempts = new Attempts();
        producer.getDefaultMQProducerImpl().registerSendMessageHook(attempts);
        producer.start();

        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                say("R " + context.getMessageQueue().getBrokerName() + " " + message.getQueueId() + " " + message.getQueueOffset() + " " + body.split(" ", 2)[0]);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        if (System.getenv("COMPAT_POP") != null) {
            Popping.popMode(producer, topic, group, 16);
            Popping.leaveQueuesToBroker(consumer);
        }
        consumer.start();

        List<Thread> streams = new ArrayList<>();
        for (int i = 0; i < STREAMS; i++) {
            String stream = "java" + i;
            Thread thread = new Thread(() -> stream(producer, attempts, topic, stream, TimeUnit.SECONDS.toNanos(STREAMS) / rate), stream);
            thread.start();
            streams.add(thread);
        }
        say("STARTED");

        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String command = commands.readLine(); command != null; command = commands.readLine()) {
            if (command.equals("stop")) {
                sending = false;
                for (Thread thread : streams) {
                    thread.join();
                }
                say("STOPPED");
            }
        }
        sending = false;
        consumer.shutdown();
        producer.shutdown();
    }

    /** Sends one message after the other, at least `interval` apart; lost time is not made up for. */
    private void stream(DefaultMQProducer producer, Attempts attempts, String topic, String stream, long interval) {
        long next = System.nanoTime();
        for (int number = 0; sending; number++) {
            long now = System.nanoTime();
            if (now < next) {
                LockSupport.parkNanos(next - now);
            } else {
                next = now;
            }
            next += interval;
            Message message = Env.message(topic, stream + ":" + number + FILLER);
            attempts.begin();
            long started = System.nanoTime();
            long startedAt = TimeUnit.MILLISECONDS.toMicros(System.currentTimeMillis());
            String failure;
            try {
                SendResult result = producer.send(message);
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    say("A " + stream + " " + number + " " + result.getMessageQueue().getBrokerName() + " " + result.getMessageQueue().getQueueId() + " "
                        + result.getQueueOffset() + " " + startedAt + " " + (System.nanoTime() - started) / 1000 + " " + attempts.count());
                    continue;
                }
                failure = result.getSendStatus().toString();
            } catch (Exception e) {
                failure = e.toString();
            }
            say("F " + stream + " " + number + " " + startedAt + " " + (System.nanoTime() - started) / 1000 + " " + attempts.count() + " " + failure.replaceAll("\\s+", " "));
        }
    }

    private void say(String line) {
        try {
            lines.put(line);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void print() {
        PrintWriter out = new PrintWriter(new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8), 1 << 16));
        try {
            while (true) {
                String line = lines.poll(50, TimeUnit.MILLISECONDS);
                if (line == null) {
                    out.flush();
                    line = lines.take();
                }
                out.println(line);
            }
        } catch (InterruptedException e) {
            out.flush();
        }
    }

    /** Counts how often the client tries to send one message; a synchronous send stays on its caller's thread. */
    private static final class Attempts implements SendMessageHook {
        private final ThreadLocal<int[]> counts = ThreadLocal.withInitial(() -> new int[1]);

        void begin() {
            counts.get()[0] = 0;
        }

        int count() {
            return counts.get()[0];
        }

        @Override
        public String hookName() {
            return "attempts";
        }

        @Override
        public void sendMessageBefore(SendMessageContext context) {
            counts.get()[0]++;
        }

        @Override
        public void sendMessageAfter(SendMessageContext context) {
        }
    }
}
