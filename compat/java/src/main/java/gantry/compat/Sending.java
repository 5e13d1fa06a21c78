package gantry.compat;

import static gantry.compat.Env.check;
import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.sent;
import static gantry.compat.Env.text;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.hook.SendMessageContext;
import org.apache.rocketmq.client.hook.SendMessageHook;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Ways to send, each checked by reading the topic back. */
final class Sending {
    private Sending() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        scenarios.put("send_sync", Sending::sync);
        scenarios.put("send_async", Sending::async);
        scenarios.put("send_oneway", Sending::oneway);
        scenarios.put("send_batch", Sending::batch);
        if (gathers()) {
            scenarios.put("send_auto_batch", Sending::autoBatch);
        }
        scenarios.put("send_ordered", Sending::ordered);
        scenarios.put("auto_created_topic", Sending::autoCreated);
    }

    /** Texts that name a message by its number. */
    static List<String> numbered(int from, int to) {
        return IntStream.range(from, to).mapToObj(i -> String.format("message %06d", i)).toList();
    }

    /** Each answer names the queue and the offset at which the message is then found. */
    private static void sync(Env env) throws Exception {
        String topic = env.topic("t", 4);
        DefaultMQProducer producer = env.producer();
        Map<MessageQueue, Map<Long, String>> answered = new HashMap<>();
        for (String body : numbered(0, 300)) {
            SendResult result = sent(producer.send(message(topic, body)));
            String before = answered.computeIfAbsent(result.getMessageQueue(), q -> new HashMap<>()).put(result.getQueueOffset(), body);
            check(before == null, "offset " + result.getQueueOffset() + " of " + result.getMessageQueue() + " was given twice");
        }
        Stored stored = env.readAll(topic);
        Map<MessageQueue, Map<Long, String>> found = new HashMap<>();
        stored.queues().forEach((queue, messages) -> {
            Map<Long, String> byOffset = new HashMap<>();
            messages.forEach(m -> byOffset.put(m.getQueueOffset(), text(m)));
            found.put(queue, byOffset);
        });
        equal(answered, found, "bodies by queue and offset");
    }

    private static void async(Env env) throws Exception {
        String topic = env.topic("t", 4);
        DefaultMQProducer producer = env.producer();
        List<String> bodies = numbered(0, 1000);
        CountDownLatch done = new CountDownLatch(bodies.size());
        Semaphore inFlight = new Semaphore(100);
        ConcurrentLinkedQueue<Throwable> faults = new ConcurrentLinkedQueue<>();
        for (String body : bodies) {
            inFlight.acquire();
            producer.send(message(topic, body), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    try {
                        sent(result);
                    } catch (AssertionError e) {
                        faults.add(e);
                    }
                    finish();
                }

                @Override
                public void onException(Throwable e) {
                    faults.add(e);
                    finish();
                }

                private void finish() {
                    inFlight.release();
                    done.countDown();
                }
            });
        }
        check(done.await(30, TimeUnit.SECONDS), done.getCount() + " sends were never answered");
        check(faults.isEmpty(), faults.size() + " sends failed, first with " + faults.peek());
        equal(bodies, env.readAll(topic).texts(), "stored bodies");
    }

    private static void oneway(Env env) throws Exception {
        String topic = env.topic("t", 4);
        DefaultMQProducer producer = env.producer();
        List<String> bodies = numbered(0, 300);
        for (String body : bodies) {
            producer.sendOneway(message(topic, body));
        }
        Env.await("300 one-way messages", 20, () -> env.readAll(topic).messages().size() >= bodies.size());
        equal(bodies, env.readAll(topic).texts(), "stored bodies");
    }

    /** A batch lies in one queue, in its order, and each message keeps its own properties. */
    private static void batch(Env env) throws Exception {
        String topic = env.topic("t", 4);
        DefaultMQProducer producer = env.producer();
        for (int n = 0; n < 5; n++) {
            List<Message> batch = new ArrayList<>();
            for (String body : numbered(n * 100, n * 100 + 100)) {
                Message message = message(topic, body);
                message.setTags("Batch" + n);
                message.setKeys("key-" + body.substring(8));
                message.putUserProperty("number", body.substring(8));
                batch.add(message);
            }
            SendResult result = sent(producer.send(batch));
            equal(100, result.getMsgId().split(",").length, "message ids of a batch");
            equal(100, new HashSet<>(List.of(result.getOffsetMsgId().split(","))).size(), "different offset message ids of a batch");
        }
        Stored stored = env.readAll(topic);
        equal(numbered(0, 500), stored.texts(), "stored bodies");
        for (List<MessageExt> queue : stored.queues().values()) {
            for (int i = 0; i < queue.size(); i++) {
                MessageExt message = queue.get(i);
                int number = Integer.parseInt(message.getUserProperty("number"));
                equal(String.format("message %06d", number), text(message), "body beside its property");
                equal("Batch" + number / 100, message.getTags(), "tag of a message in a batch");
                equal(String.format("key-%06d", number), message.getKeys(), "key of a message in a batch");
                if (number % 100 != 0) {
                    equal(String.format("message %06d", number - 1), text(queue.get(i - 1)), "the message before " + number);
                }
            }
        }
    }

    /** Whether this client gathers batches by itself. */
    static boolean gathers() {
        return List.of(DefaultMQProducer.class.getMethods()).stream().anyMatch(m -> m.getName().equals("setAutoBatch"));
    }

    static DefaultMQProducer gathering(Env env) throws Exception {
        DefaultMQProducer producer = env.producer();
        DefaultMQProducer.class.getMethod("setAutoBatch", boolean.class).invoke(producer, true);
        return producer;
    }

    private static final int SENDERS = 8;

    /** The producer itself gathers what several threads send; each answer names the id and the place of its own message. */
    private static void autoBatch(Env env) throws Exception {
        String topic = env.topic("t", 2);
        DefaultMQProducer producer = gathering(env);
        AtomicInteger requests = new AtomicInteger();
        producer.getDefaultMQProducerImpl().registerSendMessageHook(new SendMessageHook() {
            @Override
            public String hookName() {
                return "count";
            }

            @Override
            public void sendMessageBefore(SendMessageContext context) {
                requests.incrementAndGet();
            }

            @Override
            public void sendMessageAfter(SendMessageContext context) {
            }
        });
        List<String> bodies = numbered(0, 1600);
        ConcurrentLinkedQueue<Throwable> faults = new ConcurrentLinkedQueue<>();
        Map<String, SendResult> answers = new ConcurrentHashMap<>();
        CountDownLatch done = new CountDownLatch(bodies.size());
        List<Thread> threads = new ArrayList<>();
        for (int n = 0; n < SENDERS; n++) {
            int first = n;
            threads.add(new Thread(() -> {
                for (int i = first; i < bodies.size(); i += SENDERS) {
                    String body = bodies.get(i);
                    Message message = message(topic, body);
                    message.putUserProperty("number", body.substring(8));
                    try {
                        if (i % 2 == 0) {
                            answers.put(body, sent(producer.send(message)));
                            done.countDown();
                            continue;
                        }
                        producer.send(message, new SendCallback() {
                            @Override
                            public void onSuccess(SendResult result) {
                                answers.put(body, result);
                                done.countDown();
                            }

                            @Override
                            public void onException(Throwable e) {
                                faults.add(e);
                                done.countDown();
                            }
                        });
                    } catch (Exception | AssertionError e) {
                        faults.add(e);
                        done.countDown();
                    }
                }
            }));
        }
        threads.forEach(Thread::start);
        check(done.await(60, TimeUnit.SECONDS), done.getCount() + " sends were never answered");
        check(faults.isEmpty(), faults.size() + " sends failed, first with " + faults.peek());
        Stored stored = env.readAll(topic);
        equal(bodies, stored.texts(), "stored bodies");
        stored.queues().forEach((queue, messages) -> {
            for (MessageExt message : messages) {
                SendResult answer = answers.get(text(message));
                equal(queue, sent(answer).getMessageQueue(), "the queue that was answered for " + text(message));
                equal(message.getQueueOffset(), answer.getQueueOffset(), "the offset that was answered for " + text(message));
                equal(message.getMsgId(), answer.getMsgId(), "the id that was answered for " + text(message));
                equal(text(message).substring(8), message.getUserProperty("number"), "the property of " + text(message));
            }
        });
        check(requests.get() < bodies.size() / 2, requests + " requests for " + bodies.size() + " messages: nothing was gathered");
        env.note(bodies.size() + " messages in " + requests + " requests");
    }

    /** Messages of one order, all sent to one queue, lie there in the order of sending. */
    private static void ordered(Env env) throws Exception {
        String topic = env.topic("t", 4);
        DefaultMQProducer producer = env.producer();
        Map<Integer, MessageQueue> chosen = new HashMap<>();
        for (int step = 0; step < 50; step++) {
            for (int order = 0; order < 8; order++) {
                SendResult result = sent(producer.send(message(topic, order + ":" + step),
                    (queues, message, arg) -> queues.get((Integer) arg % queues.size()), order));
                MessageQueue before = chosen.put(order, result.getMessageQueue());
                check(before == null || before.equals(result.getMessageQueue()), "order " + order + " moved from " + before + " to " + result.getMessageQueue());
            }
        }
        Map<String, Integer> nextStep = new HashMap<>();
        Set<MessageQueue> used = new HashSet<>();
        env.readAll(topic).queues().forEach((queue, messages) -> {
            for (MessageExt message : messages) {
                String[] parts = text(message).split(":");
                used.add(queue);
                equal(queue, chosen.get(Integer.valueOf(parts[0])), "queue of order " + parts[0]);
                equal(nextStep.merge(parts[0], 1, Integer::sum) - 1, Integer.valueOf(parts[1]), "next step of order " + parts[0]);
            }
        });
        equal(400, nextStep.values().stream().mapToInt(Integer::intValue).sum(), "stored messages");
        check(used.size() > 1, "all orders lie in one queue");
    }

    /** The first send to an unknown topic makes it. */
    private static void autoCreated(Env env) throws Exception {
        String topic = env.name("t");
        DefaultMQProducer producer = env.producer();
        List<String> bodies = numbered(0, 50);
        for (String body : bodies) {
            sent(producer.send(message(topic, body)));
        }
        Inbox inbox = new Inbox();
        var consumer = env.pushConsumer(env.name("g"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.concurrently());
        consumer.start();
        inbox.awaitExactly(bodies, 60);
    }
}
