package gantry.compat;

import static gantry.compat.Env.await;
import static gantry.compat.Env.check;
import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.sent;
import static gantry.compat.Env.text;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** What takes more than one message: transactions, and requests with their replies. */
final class Exchanges {
    private Exchanges() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        scenarios.put("transaction", Exchanges::transaction);
        scenarios.put("transaction_check", Exchanges::transactionCheck);
        scenarios.put("request_reply", Exchanges::requestReply);
    }

    /** Ends transactions by the first letter of their message: c commits, r rolls back, all else is not known yet. */
    private static class ByLetter implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return switch (text(message).charAt(0)) {
                case 'c' -> LocalTransactionState.COMMIT_MESSAGE;
                case 'r' -> LocalTransactionState.ROLLBACK_MESSAGE;
                default -> LocalTransactionState.UNKNOW;
            };
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.UNKNOW;
        }
    }

    private static Inbox reader(Env env, String topic) throws Exception {
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = env.pushConsumer(env.name("g"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.concurrently());
        consumer.start();
        return inbox;
    }

    /** What is committed comes once, what is rolled back never. */
    private static void transaction(Env env) throws Exception {
        String topic = env.topic("t", 2);
        Inbox inbox = reader(env, topic);
        TransactionMQProducer producer = env.transactionProducer(new ByLetter());
        Map<String, String> ids = new ConcurrentHashMap<>();
        List<String> expected = new ArrayList<>();
        for (int i = 0; i < 60; i++) {
            boolean commits = i % 2 == 0;
            Message message = message(topic, (commits ? "commit " : "rollback ") + i);
            message.setKeys("key");
            TransactionSendResult result = producer.sendMessageInTransaction(message, null);
            sent(result);
            LocalTransactionState state = commits ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            equal(state, result.getLocalTransactionState(), "the state of " + text(message));
            if (commits) {
                expected.add(text(message));
                ids.put(text(message), result.getTransactionId());
            }
        }
        inbox.awaitExactly(expected, 60);
        for (MessageExt message : inbox.messages()) {
            equal(topic, message.getTopic(), "the topic of " + text(message));
            equal("key", message.getKeys(), "the key of " + text(message));
            equal(ids.get(text(message)), message.getTransactionId(), "the transaction of " + text(message));
        }
        Thread.sleep(2_000);
        equal(expected.size(), inbox.size(), "messages in the end");
    }

    /** A producer that does not know is asked until it does, by default every 30 s. */
    private static void transactionCheck(Env env) throws Exception {
        String topic = env.topic("t", 2);
        Inbox inbox = reader(env, topic);
        Map<String, AtomicInteger> asked = new ConcurrentHashMap<>();
        TransactionMQProducer producer = env.transactionProducer(new ByLetter() {
            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                equal(topic, message.getTopic(), "the topic of a check");
                int times = asked.computeIfAbsent(text(message), t -> new AtomicInteger()).incrementAndGet();
                return switch (text(message)) {
                    case "later: commit" -> LocalTransactionState.COMMIT_MESSAGE;
                    case "later: rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
                    default -> times < 2 ? LocalTransactionState.UNKNOW : LocalTransactionState.COMMIT_MESSAGE;
                };
            }
        });
        for (String text : List.of("later: commit", "later: rollback", "much later: commit")) {
            TransactionSendResult result = producer.sendMessageInTransaction(message(topic, text), null);
            sent(result);
            equal(LocalTransactionState.UNKNOW, result.getLocalTransactionState(), "the state of " + text);
        }
        inbox.awaitExactly(List.of("later: commit", "much later: commit"), 150);
        equal(1, asked.get("later: commit").get(), "checks of one that is committed at the first");
        equal(1, asked.get("later: rollback").get(), "checks of one that is rolled back at the first");
        equal(2, asked.get("much later: commit").get(), "checks of one that is committed at the second");
    }

    /** Each request gets its own reply. */
    private static void requestReply(Env env) throws Exception {
        String topic = env.topic("t", 2);
        DefaultMQProducer replier = env.producer();
        DefaultMQPushConsumer consumer = env.pushConsumer(env.name("g"));
        consumer.subscribe(topic, "*");
        AtomicReference<Throwable> fault = new AtomicReference<>();
        AtomicInteger got = new AtomicInteger();
        consumer.registerMessageListener((List<MessageExt> batch, ConsumeConcurrentlyContext context) -> {
            for (MessageExt request : batch) {
                got.incrementAndGet();
                if (text(request).equals("no request")) {
                    continue;
                }
                try {
                    sent(replier.send(MessageUtil.createReplyMessage(request, ("re: " + text(request)).getBytes())));
                } catch (Exception e) {
                    fault.set(e);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        sent(env.producer().send(message(topic, "no request")));
        await("the consumer to be at work", 60, () -> got.get() == 1);
        // A client sends its heartbeat with the first request to a topic it does not know yet, else within 30 s.
        DefaultMQProducer requester = env.producer();
        int count = 50;
        Map<String, String> replies = new ConcurrentHashMap<>();
        CountDownLatch done = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            String text = "request " + i;
            // The blocking call of some 5.x clients gives up as soon as its message is stored.
            requester.request(message(topic, text), new RequestCallback() {
                @Override
                public void onSuccess(Message reply) {
                    replies.put(text, text(reply));
                    done.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    fault.set(e);
                    done.countDown();
                }
            }, 10_000);
        }
        check(done.await(30, TimeUnit.SECONDS), "only " + replies.size() + " of " + count + " requests were answered");
        check(fault.get() == null, "a request or a reply failed: " + fault.get());
        for (int i = 0; i < count; i++) {
            equal("re: request " + i, replies.get("request " + i), "the reply to request " + i);
        }
    }
}
