package gantry.compat;

import static gantry.compat.Env.await;
import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.sent;
import static gantry.compat.Env.text;
import static gantry.compat.Kills.SETTLE_SECONDS;
import static gantry.compat.Kills.again;
import static gantry.compat.Kills.isOver;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What an operator does to the places of groups, while leaders are killed. */
final class KillsGroups {
    private static final int ROUND_MESSAGES = 12;
    private static final int CLONE_PACE_MS = 1_000;

    private KillsGroups() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        scenarios.put("kills_reset", KillsGroups::reset);
        scenarios.put("kills_clone", KillsGroups::copy);
    }

    /** A group at work that was set back to the first message, and the call was answered, is given everything once more. */
    private static void reset(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        String group = env.name("g");
        Inbox inbox = new Inbox();
        Kills.member(env, group, topic, inbox);
        DefaultMQProducer producer = env.producer();
        int rounds = 0;
        for (; !isOver(); rounds++) {
            for (int i = 0; i < ROUND_MESSAGES; i++) {
                Message message = message(topic, "round " + rounds + " message " + i);
                sent(again(() -> producer.send(message)));
            }
            int wanted = (rounds + 1) * ROUND_MESSAGES;
            await("all of round " + rounds, SETTLE_SECONDS, () -> counts(inbox).size() == wanted);
            Map<String, Integer> before = counts(inbox);
            again(() -> {
                Leaders leaders = Leaders.of(producer, topic);
                for (String address : leaders.addresses()) {
                    leaders.api().invokeBrokerToResetOffset(address, topic, group, 0L, true, Leaders.TIMEOUT_MS);
                }
                return null;
            });
            await("everything once more after reset " + rounds, SETTLE_SECONDS, () -> {
                Map<String, Integer> now = counts(inbox);
                return before.entrySet().stream().allMatch(one -> now.get(one.getKey()) > one.getValue());
            });
        }
        env.note(rounds + " resets, " + inbox.size() + " delivered");
    }

    private static Map<String, Integer> counts(Inbox inbox) {
        Map<String, Integer> counts = new HashMap<>();
        for (MessageExt message : inbox.messages()) {
            counts.merge(text(message), 1, Integer::sum);
        }
        return counts;
    }

    /** The places of one group given to another are there, and stay. */
    @SuppressWarnings("deprecation")
    private static void copy(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 1));
        String source = env.name("g");
        DefaultMQProducer producer = env.producer();
        DefaultMQPullConsumer consumer = env.pullConsumer(source);
        List<MessageQueue> queues = List.copyOf(again(() -> consumer.fetchSubscribeMessageQueues(topic)));
        Map<String, Map<MessageQueue, Long>> copies = new HashMap<>();
        List<DefaultMQPullConsumer> readers = new ArrayList<>();
        for (int i = 0; !isOver(); i++) {
            Map<MessageQueue, Long> places = new HashMap<>();
            for (MessageQueue queue : queues) {
                Message message = message(topic, "message " + i);
                SendResult result = sent(again(() -> producer.send(message, queue)));
                long place = result.getQueueOffset() + 1;
                again(() -> {
                    consumer.getOffsetStore().updateConsumeOffsetToBroker(queue, place, false);
                    return null;
                });
                places.put(queue, place);
            }
            String copy = env.name("copy" + i);
            again(() -> {
                Leaders leaders = Leaders.of(producer, topic);
                for (String address : leaders.addresses()) {
                    leaders.api().cloneGroupOffset(address, source, copy, topic, false, Leaders.TIMEOUT_MS);
                }
                return null;
            });
            DefaultMQPullConsumer reader = env.pullConsumer(copy);
            readers.add(reader);
            copies.put(copy, places);
            checkPlaces(reader, places);
            Thread.sleep(CLONE_PACE_MS);
        }
        for (DefaultMQPullConsumer reader : readers) {
            checkPlaces(reader, copies.get(reader.getConsumerGroup()));
        }
        env.note(copies.size() + " groups with the places of another");
    }

    @SuppressWarnings("deprecation")
    private static void checkPlaces(DefaultMQPullConsumer reader, Map<MessageQueue, Long> places) throws Exception {
        for (Map.Entry<MessageQueue, Long> place : places.entrySet()) {
            // It answers -2 when the broker could not be asked.
            long found = again(() -> {
                long answer = reader.fetchConsumeOffset(place.getKey(), true);
                if (answer == -2) {
                    throw new IllegalStateException("the broker could not be asked");
                }
                return answer;
            });
            equal(place.getValue(), found, "the place of " + reader.getConsumerGroup() + " in " + place.getKey());
        }
    }
}
