package gantry.compat;

import static gantry.compat.Env.await;
import static gantry.compat.Env.check;
import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.text;
import static gantry.compat.Kills.PACE_MS;
import static gantry.compat.Kills.SETTLE_SECONDS;
import static gantry.compat.Kills.again;
import static gantry.compat.Kills.isOver;

import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.FutureTask;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A topic that keeps its messages for a short time only, while leaders are killed. Needs a client that can make one, 5.x. */
@SuppressWarnings("deprecation")
final class KillsRetention {
    private static final int KEPT_SECONDS = 20;
    /** Where the group stands in every queue until its place has expired. */
    private static final long STOOD = 3;
    private static final int LAST_PACE_MS = 500;

    private final String topic;
    private final DefaultMQProducer producer;
    private final String group;
    private final DefaultMQPullConsumer reader;
    private final List<Watched> queues;

    private KillsRetention(Env env) throws Exception {
        topic = again(() -> env.topic("t", 1, Map.of("+reserve.time", KEPT_SECONDS + "s")));
        producer = env.producer();
        group = env.name("g");
        reader = env.pullConsumer(env.name("reader"));
        queues = again(() -> reader.fetchSubscribeMessageQueues(topic)).stream().sorted().map(Watched::new).toList();
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        if (Env.setsAttributes()) {
            scenarios.put("kills_retention", env -> new KillsRetention(env).run(env));
        }
    }

    /** A message that was acknowledged. It was stored after its call began. */
    private record Acknowledged(String text, String offsetId, long sinceMs) {
        boolean mayHaveExpired(long nowMs) {
            return sinceMs + KEPT_SECONDS * 1_000L <= nowMs;
        }
    }

    /** A queue, and what is known of it. */
    private static final class Watched {
        final MessageQueue queue;
        /** What was acknowledged, by its place. */
        final NavigableMap<Long, Acknowledged> acknowledged = new ConcurrentSkipListMap<>();
        /** What the group was given, by its place, and when first. */
        final NavigableMap<Long, Long> givenMs = new ConcurrentSkipListMap<>();
        /** The queue has begun here or later. */
        long min;
        /** Where it had begun when the group's member came. */
        long minOfMember;

        Watched(MessageQueue queue) {
            this.queue = queue;
        }

        /** The queue is said to begin here: never further back than before, and nothing is left out too early. */
        void beginsAt(long found, String who) {
            check(found >= min, who + " says that " + queue + " begins at " + found + ", after it began at " + min);
            min = found;
            Map.Entry<Long, Acknowledged> last = acknowledged.lowerEntry(found);
            check(last == null || last.getValue().mayHaveExpired(System.currentTimeMillis()),
                who + " says that " + queue + " begins at " + found + ", though what lies before was sent less than " + KEPT_SECONDS + " s ago");
        }

        void isAt(MessageExt message) {
            Acknowledged here = acknowledged.get(message.getQueueOffset());
            check(here == null || here.text().equals(text(message)), "what lies at " + message.getQueueOffset() + " of " + queue + " was " + here + ", and is " + text(message));
        }

        /** The group was given everything from its place on but for what had expired when it got something behind it. */
        int checkGiven() {
            Map.Entry<Long, Long> first = givenMs.firstEntry();
            check(first.getKey() >= minOfMember, "the group was given " + first.getKey() + " of " + queue + ", which began at " + minOfMember);
            int left = 0;
            long nextMs = Long.MAX_VALUE;
            for (long place = givenMs.lastKey(); place >= STOOD; place--) {
                Long given = givenMs.get(place);
                Acknowledged here = acknowledged.get(place);
                if (given != null) {
                    nextMs = Math.min(nextMs, given);
                } else if (here != null) {
                    check(here.mayHaveExpired(nextMs), "the group was not given " + here + " at " + place + " of " + queue + ", which had not expired");
                    left++;
                }
            }
            return left;
        }
    }

    private void send(Watched on, String text) throws Exception {
        Message message = message(topic, text);
        long[] since = new long[1];
        SendResult result = Env.sent(again(() -> {
            since[0] = System.currentTimeMillis();
            return producer.send(message, on.queue);
        }));
        Acknowledged before = on.acknowledged.put(result.getQueueOffset(), new Acknowledged(text, result.getOffsetMsgId(), since[0]));
        check(before == null, "offset " + result.getQueueOffset() + " of " + on.queue + " was given to " + before + " and to " + text);
    }

    private int sendUntilOver() throws Exception {
        int sent = 0;
        for (; !isOver() || queues.stream().anyMatch(one -> one.givenMs.isEmpty()); sent++) {
            send(queues.get(sent % queues.size()), "message " + sent);
            Thread.sleep(PACE_MS);
        }
        return sent;
    }

    private void run(Env env) throws Exception {
        DefaultMQPullConsumer before = env.pullConsumer(group);
        for (Watched on : queues) {
            for (int i = 0; i <= STOOD; i++) {
                send(on, "first " + i);
            }
            again(() -> {
                before.getOffsetStore().updateConsumeOffsetToBroker(on.queue, STOOD, false);
                return null;
            });
        }
        before.shutdown();
        FutureTask<Integer> sending = new FutureTask<>(this::sendUntilOver);
        new Thread(sending).start();
        int looks = 0;
        boolean hasMember = false;
        long deadline = Long.MAX_VALUE;
        while (!sending.isDone()) {
            for (Watched on : queues) {
                look(on);
                looks++;
            }
            if (!hasMember && queues.stream().allMatch(on -> on.min > STOOD)) {
                hasMember = true;
                startMember(env);
            }
            if (isOver() && deadline == Long.MAX_VALUE) {
                deadline = System.nanoTime() + SETTLE_SECONDS * 1_000_000_000L;
            }
            check(System.nanoTime() < deadline, "the group was not given anything of each queue within " + SETTLE_SECONDS + " s");
            Thread.sleep(PACE_MS);
        }
        int sent = sending.get();
        awaitMember(deadline);
        int left = 0;
        int read = 0;
        for (Watched on : queues) {
            left += on.checkGiven();
            check(on.min > STOOD, on.queue + " begins at " + on.min + " in the end");
            read += readToTheEnd(on);
            // Ids name a replica.
            Acknowledged gone = on.acknowledged.lowerEntry(on.min).getValue();
            await(gone + " of " + on.queue + " to be found by its id no more", SETTLE_SECONDS, () -> !isFound(gone.offsetId()));
        }
        env.note(sent + " acknowledged, " + looks + " looks, " + left + " expired before the group was given them, "
            + queues.stream().mapToInt(on -> on.givenMs.size()).sum() + " delivered, " + read + " there in the end");
    }

    /** The queue is looked at in every way that shows where it begins. */
    private void look(Watched on) throws Exception {
        on.beginsAt(ask(() -> reader.minOffset(on.queue)), "the broker");
        if (on.min == 0) {
            return;
        }
        PullResult expired = ask(() -> reader.pull(on.queue, "*", 0, 32));
        equal(PullStatus.OFFSET_ILLEGAL, expired.getPullStatus(), "status at the first place of " + on.queue + ", which has expired");
        on.beginsAt(expired.getNextBeginOffset(), "an answer at an expired place");
        equal(expired.getNextBeginOffset(), expired.getMinOffset(), "the least place of " + on.queue + " in that answer");
        readFrom(on, expired.getNextBeginOffset());
        long oldest = ask(() -> reader.searchOffset(on.queue, 0));
        check(oldest >= on.min, "the first message by time is " + oldest + " of " + on.queue + ", which begins at " + on.min);
    }

    /** A replica that has just started shows what has expired until it has caught up, so the leader is asked. */
    private <T> T ask(Callable<T> call) throws Exception {
        return again(() -> {
            reader.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory().updateTopicRouteInfoFromNameServer(topic);
            return call.call();
        });
    }

    private boolean isFound(String id) throws Exception {
        try {
            return producer.viewMessage(topic, id) != null;
        } catch (MQClientException | MQBrokerException | org.apache.rocketmq.remoting.exception.RemotingException e) {
            // As it must be, though it may also be that a broker could not be asked.
            return false;
        }
    }

    /** One pull: what it finds lies in a row from there on. Where to go on, which is further on if that place has expired. */
    private long readFrom(Watched on, long place) throws Exception {
        PullResult result = ask(() -> reader.pull(on.queue, "*", place, 32));
        long next = place;
        switch (result.getPullStatus()) {
        case FOUND -> {
            for (MessageExt message : result.getMsgFoundList()) {
                equal(next, message.getQueueOffset(), "offsets of " + on.queue + " in a row");
                on.isAt(message);
                next++;
            }
            equal(next, result.getNextBeginOffset(), "the next offset after a pull from " + on.queue);
        }
        case OFFSET_ILLEGAL -> {
            next = result.getNextBeginOffset();
            check(next > place, "a pull at " + place + " of " + on.queue + ", where it goes on, answered " + result);
            on.beginsAt(next, "an answer at a place that has just expired");
        }
        default -> equal(place, result.getNextBeginOffset(), "where a pull from " + on.queue + " goes on that has found nothing");
        }
        return next;
    }

    /** How many messages there are. */
    private int readToTheEnd(Watched on) throws Exception {
        long end = ask(() -> reader.maxOffset(on.queue));
        check(end > on.acknowledged.lastKey(), on.queue + " ends at " + end);
        long place = on.min;
        int read = 0;
        while (place < end) {
            long next = readFrom(on, place);
            read += next - place;
            place = next;
        }
        return read;
    }

    /** The group's member goes on where the queues begin. */
    private void startMember(Env env) throws Exception {
        queues.forEach(on -> on.minOfMember = on.min);
        DefaultMQPushConsumer member = env.pushConsumer(group);
        member.setPollNameServerInterval(1_000);
        member.subscribe(topic, "*");
        member.registerMessageListener((List<MessageExt> batch, ConsumeConcurrentlyContext context) -> {
            Watched on = queues.stream().filter(one -> one.queue.equals(context.getMessageQueue())).findFirst().orElseThrow();
            for (MessageExt message : batch) {
                on.isAt(message);
                on.givenMs.putIfAbsent(message.getQueueOffset(), System.currentTimeMillis());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        member.start();
    }

    /** Waits until the member is given something behind everything sent so far. It may all expire, so more is sent. */
    private void awaitMember(long deadline) throws Exception {
        for (Watched on : queues) {
            long last = on.acknowledged.lastKey();
            for (int i = 0; on.givenMs.lastKey() <= last; i++) {
                check(System.nanoTime() < deadline, "the group was not given anything of " + on.queue + " behind " + last);
                send(on, "last " + i);
                Thread.sleep(LAST_PACE_MS);
            }
        }
    }
}
