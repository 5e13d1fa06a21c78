package gantry.compat;

import static gantry.compat.Env.await;
import static gantry.compat.Env.check;
import static gantry.compat.Env.equal;
import static gantry.compat.Env.message;
import static gantry.compat.Env.sent;
import static gantry.compat.Env.text;
import static gantry.compat.Kills.SETTLE_SECONDS;
import static gantry.compat.Kills.again;
import static gantry.compat.Kills.awaitAll;
import static gantry.compat.Kills.isOver;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.client.impl.consumer.PullAPIWrapper;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Members of groups that share queues, pause, start somewhere, read from followers and are given messages by hand, while leaders are killed. */
final class KillsMembers {
    /** More members that join each group of two. */
    private static final int JOINS = 2;
    private static final int PAUSE_MS = 4_000;
    private static final int GROUP_PACE_MS = 5_000;
    private static final int DIRECT_PACE_MS = 300;

    private KillsMembers() {
    }

    static void register(Map<String, Main.Scenario> scenarios) {
        scenarios.put("kills_strategies", KillsMembers::strategies);
        scenarios.put("kills_new_groups", KillsMembers::newGroups);
        scenarios.put("kills_directly", KillsMembers::directly);
    }

    /** A group whose members share queues in one way. */
    private record Team(String group, Callable<AllocateMessageQueueStrategy> strategy, Inbox inbox, List<DefaultMQPushConsumer> members) {
        void join(Env env, String topic) throws Exception {
            DefaultMQPushConsumer member = env.pushConsumer(group);
            member.setAllocateMessageQueueStrategy(strategy.call());
            member.subscribe(topic, "*");
            member.registerMessageListener(inbox.concurrently());
            member.start();
            members.add(member);
        }

        void awaitShared(String topic, int all, int seconds) throws Exception {
            await(group + " to share " + all + " queues among " + members.size() + " members", seconds, () -> {
                Set<MessageQueue> owned = new HashSet<>();
                int sum = 0;
                for (DefaultMQPushConsumer member : members) {
                    Set<MessageQueue> own = owned(member, topic);
                    owned.addAll(own);
                    sum += own.size();
                }
                return sum == all && owned.size() == all;
            });
        }
    }

    private static Set<MessageQueue> owned(DefaultMQPushConsumer consumer, String topic) {
        Set<MessageQueue> owned = new HashSet<>(consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet());
        owned.removeIf(queue -> !queue.getTopic().equals(topic));
        return owned;
    }

    /** A room for each broker group; members are in that of the first one. */
    private static final class Rooms implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return queue.getBrokerName();
        }

        @Override
        public String consumerDeployIn(String client) {
            return "broker-a";
        }
    }

    /**
     * Whatever way members agree on: each queue has one of them again, though others join, and everything acknowledged is
     * delivered. A group that pauses is given nothing, and goes on.
     */
    private static void strategies(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        DefaultMQProducer producer = env.producer();
        int all = again(() -> producer.fetchPublishMessageQueues(topic)).size();
        List<Team> teams = new ArrayList<>();
        for (Callable<AllocateMessageQueueStrategy> strategy : List.<Callable<AllocateMessageQueueStrategy>>of(
            AllocateMessageQueueAveragelyByCircle::new, AllocateMessageQueueConsistentHash::new,
            () -> new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), new Rooms()))) {
            Team team = new Team(env.name("g" + teams.size()), strategy, new Inbox(), new ArrayList<>());
            team.join(env, topic);
            team.join(env, topic);
            teams.add(team);
        }
        Kills.Sending sending = new Kills.Sending(producer, topic);
        int joins = 0;
        int pauses = 0;
        do {
            if (joins < JOINS) {
                for (Team team : teams) {
                    team.join(env, topic);
                }
                joins++;
            }
            for (Team team : teams) {
                team.awaitShared(topic, all, SETTLE_SECONDS);
            }
            pause(teams.get(pauses % teams.size()));
            pauses++;
        } while (!isOver());
        Set<String> expected = sending.ledger().texts();
        for (Team team : teams) {
            awaitAll(expected, team.inbox(), expected);
            team.awaitShared(topic, all, SETTLE_SECONDS);
        }
        env.note(expected.size() + " acknowledged, " + joins + " joins and " + pauses + " pauses, " + teams.stream().mapToInt(team -> team.inbox().size()).sum() + " delivered");
    }

    /** All members of a group pause: after pulls that waited have ended, none is given anything. */
    private static void pause(Team team) throws Exception {
        team.members().forEach(DefaultMQPushConsumer::suspend);
        Thread.sleep(PAUSE_MS);
        int paused = team.inbox().size();
        Thread.sleep(500);
        equal(paused, team.inbox().size(), "messages of a group that pauses");
        team.members().forEach(DefaultMQPushConsumer::resume);
    }

    /** A group made while leaders are killed. */
    private record NewGroup(String name, Inbox inbox, DefaultMQPushConsumer consumer) {
    }

    /**
     * New groups, wherever they say that they start: while the first messages are in memory, each is given everything, and
     * its place is the end then. Every second one reads from followers.
     */
    @SuppressWarnings("deprecation")
    private static void newGroups(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 2));
        DefaultMQProducer producer = env.producer();
        Kills.Sending sending = new Kills.Sending(producer, topic);
        List<NewGroup> groups = new ArrayList<>();
        int followed = 0;
        do {
            boolean follows = groups.size() % 2 == 1;
            String group = env.name("g" + groups.size());
            if (follows) {
                again(() -> {
                    readFromFollower(producer, topic, group);
                    return null;
                });
            }
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer consumer = start(env, group, topic, STARTS.get(groups.size() % STARTS.size()), inbox);
            groups.add(new NewGroup(group, inbox, consumer));
            if (follows) {
                await(group + " to be sent to a follower", SETTLE_SECONDS, () -> readsFromFollower(consumer, topic));
                followed++;
            }
            Thread.sleep(GROUP_PACE_MS);
        } while (!isOver() || followed == 0);
        Set<String> texts = sending.ledger().texts();
        for (NewGroup group : groups) {
            awaitAll(texts, group.inbox(), texts);
        }
        for (NewGroup group : groups) {
            Pushing.awaitDone(group.consumer(), producer, topic);
            group.consumer().shutdown();
        }
        for (NewGroup group : groups) {
            DefaultMQPullConsumer reader = env.pullConsumer(group.name());
            for (MessageQueue queue : again(() -> producer.fetchPublishMessageQueues(topic))) {
                // A member that stops waits for no answer to its last commit.
                await("the place of " + group.name() + " in " + queue, SETTLE_SECONDS, () -> reader.fetchConsumeOffset(queue, true) == producer.maxOffset(queue));
            }
        }
        env.note(texts.size() + " acknowledged, " + groups.size() + " groups, " + followed + " of them by followers");
    }

    private static final List<ConsumeFromWhere> STARTS =
        List.of(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);

    private static DefaultMQPushConsumer start(Env env, String group, String topic, ConsumeFromWhere where, Inbox inbox) throws Exception {
        DefaultMQPushConsumer consumer = env.pushConsumer(group);
        consumer.setConsumeFromWhere(where);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(inbox.concurrently());
        consumer.start();
        return consumer;
    }

    /** The client keeps to itself which replica it pulls from. */
    private static boolean readsFromFollower(DefaultMQPushConsumer consumer, String topic) throws Exception {
        Field field = DefaultMQPushConsumerImpl.class.getDeclaredField("pullAPIWrapper");
        field.setAccessible(true);
        PullAPIWrapper pulls = (PullAPIWrapper) field.get(consumer.getDefaultMQPushConsumerImpl());
        return owned(consumer, topic).stream().anyMatch(queue -> pulls.recalculatePullFromWhichNode(queue) != 0);
    }

    /** What `mqadmin updateSubGroup -i 1` does on every broker. */
    private static void readFromFollower(DefaultMQProducer client, String topic, String group) throws Exception {
        Leaders leaders = Leaders.of(client, topic);
        for (String leader : leaders.addresses()) {
            Method create = Leaders.method(leaders.api(), "createSubscriptionGroup");
            Object config = create.getParameterTypes()[1].getConstructor().newInstance();
            config.getClass().getMethod("setGroupName", String.class).invoke(config, group);
            config.getClass().getMethod("setBrokerId", long.class).invoke(config, 1L);
            Leaders.call(create, leaders.api(), leader, config, Leaders.TIMEOUT_MS);
        }
    }

    /** A message that a tool has a member consume is given to that member, each time that the tool is told so. */
    private static void directly(Env env) throws Exception {
        String topic = again(() -> env.topic("t", 1));
        String group = env.name("g");
        DefaultMQProducer producer = env.producer();
        Map<String, Integer> given = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = env.pushConsumer(group);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((List<MessageExt> batch, ConsumeConcurrentlyContext context) -> {
            batch.forEach(message -> given.merge(text(message), 1, Integer::sum));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        String client = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
        int messages = 0;
        do {
            Message message = message(topic, "message " + messages++);
            SendResult result = again(() -> sent(producer.send(message)));
            await(text(message) + " to be delivered", SETTLE_SECONDS, () -> given.containsKey(text(message)));
            int before = given.get(text(message));
            again(() -> {
                Leaders leaders = Leaders.of(producer, topic);
                Method consume = Leaders.method(leaders.api(), "consumeMessageDirectly");
                String leader = leaders.byBroker().get(result.getMessageQueue().getBrokerName());
                Object told = consume.getParameterCount() == 6
                    ? Leaders.call(consume, leaders.api(), leader, group, client, topic, result.getOffsetMsgId(), Leaders.TIMEOUT_MS)
                    : Leaders.call(consume, leaders.api(), leader, group, client, result.getOffsetMsgId(), Leaders.TIMEOUT_MS);
                equal("CR_SUCCESS", String.valueOf(told.getClass().getMethod("getConsumeResult").invoke(told)), "what became of " + text(message));
                return null;
            });
            check(given.get(text(message)) > before, text(message) + " was not given again, though the tool was told so");
            Thread.sleep(DIRECT_PACE_MS);
        } while (!isOver());
        env.note(messages + " messages given by hand");
    }
}
