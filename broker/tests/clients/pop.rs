//! Consumers in POP mode.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use protocol::body::{
    AssignmentRequest, Assignments, BatchAck, ConsumeStats, MessageModel, MessageQueue, MessageRequestMode, QueueAcks,
    RequestModeSetting, RequestModes, SubscriptionGroupConfig,
};
use protocol::message::iter_records;
use protocol::{PopHandle, RemotingCommand, RequestCode};

use crate::cluster::{BROKER, Client, Cluster, soon};
use crate::requests::{check, heartbeat, message, offsets, pull, request, settled};

fn now_ms() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

pub(crate) fn pop(topic: &str, count: i32, invisible_ms: i64, poll_ms: i64) -> RemotingCommand {
    request(RequestCode::POP_MESSAGE, &[("consumerGroup", "g"), ("topic", topic), ("expType", "TAG"), ("exp", "*")])
        .with_ext("queueId", -1)
        .with_ext("maxMsgNums", count)
        .with_ext("invisibleTime", invisible_ms)
        .with_ext("pollTime", poll_ms)
        .with_ext("bornTime", 1)
        .with_ext("initMode", 0)
        .with_ext("order", false)
}

fn with(mut request: RemotingCommand, field: &str, value: &str) -> RemotingCommand {
    request.ext.push(field, value);
    request
}

/// A message as a consumer sees it that popped it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Popped {
    body: String,
    queue_id: i32,
    queue_offset: i64,
    times: i32,
    pop_time: i64,
    invisible_ms: i64,
}

impl Popped {
    fn handle(&self) -> String {
        PopHandle {
            start_offset: self.queue_offset,
            pop_time: self.pop_time,
            invisible_time: self.invisible_ms,
            revive_queue_id: 0,
            topic_kind: 0,
            broker_name: BROKER.to_owned(),
            queue_id: self.queue_id,
            queue_offset: Some(self.queue_offset),
        }
        .to_string()
    }

    fn request(&self, code: RequestCode, topic: &str) -> RemotingCommand {
        request(code, &[("consumerGroup", "g"), ("topic", topic), ("extraInfo", &self.handle())])
            .with_ext("queueId", self.queue_id)
            .with_ext("offset", self.queue_offset)
    }
}

/// The messages of an answer, checked against what it says of them.
#[track_caller]
pub(crate) fn popped(answer: &RemotingCommand) -> Vec<Popped> {
    check(answer, 0, &[]);
    let number = |field: &str| answer.ext.get(field).unwrap().parse::<i64>().unwrap();
    let mut all = Vec::new();
    let mut named: BTreeMap<i32, Vec<String>> = BTreeMap::new();
    for record in iter_records(&answer.body) {
        let record = record.unwrap();
        named.entry(record.queue_id()).or_default().push(record.queue_offset().to_string());
        all.push(Popped {
            body: String::from_utf8_lossy(record.body()).into_owned(),
            queue_id: record.queue_id(),
            queue_offset: record.queue_offset(),
            times: record.reconsume_times(),
            pop_time: number("popTime"),
            invisible_ms: number("invisibleTime"),
        });
    }
    let mut said: Vec<&str> = answer.ext.get("msgOffsetInfo").unwrap().split(';').collect();
    said.sort_unstable();
    let found: Vec<String> = named.iter().map(|(queue, offsets)| format!("0 {queue} {}", offsets.join(","))).collect();
    assert_eq!(said, found);
    all
}

/// Sends messages and waits until all of them can be popped, which is later than their acknowledgement.
async fn send(client: &Client, messages: impl IntoIterator<Item = RemotingCommand>) {
    for message in messages {
        check(&client.call(message).await, 0, &[]);
    }
    settled(client).await;
}

async fn acknowledge(client: &Client, topic: &str, message: &Popped) -> i32 {
    client.call(message.request(RequestCode::ACK_MESSAGE, topic)).await.code
}

/// How many messages of a topic the group has not acknowledged, and how many of them are under way.
async fn lag(client: &Client, topic: &str) -> (i64, i64) {
    let fields = [("consumerGroup", "g"), ("topic", topic)];
    let answer = client.call(request(RequestCode::GET_CONSUME_STATS, &fields)).await;
    check(&answer, 0, &[]);
    let stats = ConsumeStats::decode(&answer.body).unwrap();
    let queues = stats.offset_table.values();
    queues.fold((0, 0), |(left, under_way), queue| {
        (left + queue.broker_offset - queue.consumer_offset, under_way + queue.pull_offset - queue.consumer_offset)
    })
}

pub(crate) async fn put_group(client: &Client, retry_max_times: i32) {
    let config =
        SubscriptionGroupConfig { group_name: "g".to_owned(), retry_max_times, ..SubscriptionGroupConfig::default() };
    let put = request(RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, &[]).with_body(config.encode());
    check(&client.call(put).await, 0, &[]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_comes_back_until_it_is_acknowledged() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    send(&client, (0..3).map(|queue_id| message("T", queue_id, &queue_id.to_string(), ""))).await;
    let answer = client.call(pop("T", 32, 3_000, 10_000)).await;
    check(&answer, 0, &[("restNum", "0"), ("reviveQid", "0"), ("invisibleTime", "3000")]);
    let mut first = popped(&answer);
    first.sort_by_key(|message| message.queue_id);
    assert_eq!(
        first.iter().map(|message| (&*message.body, message.times)).collect::<Vec<_>>(),
        [("0", 0), ("1", 0), ("2", 0)]
    );
    assert_eq!(lag(&client, "T").await, (3, 3));
    assert_eq!(acknowledge(&client, "T", &first[1]).await, 0);
    assert_eq!(acknowledge(&client, "T", &first[1]).await, 0, "once more");
    let hide = first[2].request(RequestCode::CHANGE_MESSAGE_INVISIBLETIME, "T").with_ext("invisibleTime", 6_000);
    let hidden = client.call(hide.clone()).await;
    check(&hidden, 0, &[("invisibleTime", "6000"), ("reviveQid", "0")]);
    check(&client.call(hide).await, 208, &[]);
    assert_eq!(lag(&client, "T").await, (2, 2));

    // Who waits gets what comes back, when its time is over and not before.
    let again = popped(&client.call(pop("T", 32, 60_000, 10_000)).await);
    assert!(now_ms() >= first[0].pop_time + 3_000);
    assert_eq!(again.iter().map(|message| (&*message.body, message.times)).collect::<Vec<_>>(), [("0", 1)]);
    assert_eq!(acknowledge(&client, "T", &first[0]).await, 208, "another has it now");
    assert_eq!(acknowledge(&client, "T", &again[0]).await, 0);
    let last = popped(&client.call(pop("T", 32, 60_000, 10_000)).await);
    let hidden_at: i64 = hidden.ext.get("popTime").unwrap().parse().unwrap();
    assert!(now_ms() >= hidden_at + 6_000);
    assert_eq!(last.iter().map(|message| (&*message.body, message.times)).collect::<Vec<_>>(), [("2", 1)]);
    assert_eq!(acknowledge(&client, "T", &last[0]).await, 0);
    assert_eq!(lag(&client, "T").await, (0, 0));
    check(&client.call(pop("T", 32, 60_000, 0)).await, 210, &[("msgOffsetInfo", ""), ("startOffsetInfo", "")]);
    for queue_id in 0..3 {
        let stored = client.call(offsets(RequestCode::QUERY_CONSUMER_OFFSET, "g", "T", queue_id)).await;
        check(&stored, 0, &[("offset", "1")]);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_given_too_often_goes_to_the_dead_letters_once() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    put_group(&client, 1).await;
    send(&client, [message("T", 0, "hopeless", "KEYS\u{1}k\u{2}")]).await;
    for times in 0..2 {
        let given = popped(&client.call(pop("T", 32, 1, 10_000)).await);
        assert_eq!(
            given.iter().map(|message| (&*message.body, message.times)).collect::<Vec<_>>(),
            [("hopeless", times)]
        );
    }
    send(&client, [message("T", 0, "next", "")]).await;
    let next = popped(&client.call(pop("T", 32, 60_000, 10_000)).await);
    assert_eq!(next.iter().map(|message| &*message.body).collect::<Vec<_>>(), ["next"]);
    let dead = client.call(pull("%DLQ%g", 0, 0, 6, 10_000)).await;
    check(&dead, 0, &[("nextBeginOffset", "1"), ("maxOffset", "1")]);
    let record = iter_records(&dead.body).next().unwrap().unwrap();
    assert_eq!((record.body(), record.reconsume_times()), (&b"hopeless"[..], 2));
    assert_eq!(record.properties().get("KEYS"), Some("k"));
    assert_eq!(record.properties().get("DLQ_ORIGIN_TOPIC"), Some("T"));
    assert_eq!(lag(&client, "T").await, (1, 1));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_under_way_survives_the_leader() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let (leader_id, client) = (leader.id, leader.client());
    send(&client, (0..10).map(|number| message("T", 0, &number.to_string(), ""))).await;
    let given = popped(&client.call(pop("T", 8, 4_000, 10_000)).await);
    assert_eq!(given.len(), 8);
    for message in &given[..3] {
        assert_eq!(acknowledge(&client, "T", message).await, 0);
    }
    cluster.nodes.remove(&leader_id).unwrap().stop().await;

    let client = cluster.leader().await.client();
    // An acknowledgement that is repeated for want of an answer, and one of what the old leader gave.
    for message in &given[2..5] {
        assert_eq!(acknowledge(&client, "T", message).await, 0);
    }
    assert_eq!(lag(&client, "T").await, (5, 3));
    let fresh = popped(&client.call(pop("T", 32, 60_000, 0)).await);
    let fresh_bodies: Vec<_> = fresh.iter().map(|message| &*message.body).collect();
    // Fast or slow, no message of the first eight is among them before its time.
    if now_ms() < given[0].pop_time + 4_000 {
        assert_eq!(fresh_bodies, ["8", "9"]);
    }
    let mut again: Vec<Popped> = fresh.into_iter().filter(|message| message.times > 0).collect();
    while again.len() < 3 {
        again.extend(popped(&client.call(pop("T", 32, 60_000, 10_000)).await));
    }
    assert!(now_ms() >= given[0].pop_time + 4_000);
    assert_eq!(
        again.iter().map(|message| (&*message.body, message.times)).collect::<Vec<_>>(),
        [("5", 1), ("6", 1), ("7", 1)]
    );
    check(&client.call(pop("T", 32, 60_000, 0)).await, 210, &[]);
    for message in &again {
        assert_eq!(acknowledge(&client, "T", message).await, 0);
    }
    assert_eq!(lag(&client, "T").await, (2, 2));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pop_waits_at_a_follower_though_leaders_go() {
    let mut cluster = Cluster::start(3).await;
    let (leader, follower) = (cluster.leader().await.id, cluster.follower().await.id);
    let third = *cluster.nodes.keys().find(|id| ![leader, follower].contains(id)).unwrap();
    let client = cluster.nodes[&follower].client();
    send(&client, [message("T", 0, "first", "")]).await;
    let first = popped(&client.call(pop("T", 32, 60_000, 10_000)).await);
    assert_eq!(acknowledge(&client, "T", &first[0]).await, 0);

    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.call(pop("T", 32, 60_000, 18_000)).await }
    });
    let polling = request(RequestCode::POLLING_INFO, &[("consumerGroup", "g"), ("topic", "T"), ("queueId", "-1")]);
    let is_held = async { while client.call(polling.clone()).await.ext.get("pollingNum") != Some("1") {} };
    soon("the pop is held", is_held).await;
    cluster.nodes.remove(&leader).unwrap().stop().await;
    cluster.leader().await;
    let other = cluster.nodes[&third].client();
    send(&other, [message("T", 1, "second", "")]).await;
    let second = popped(&soon("the pop is answered", waiting).await.unwrap());
    assert_eq!(second.iter().map(|message| (&*message.body, message.times)).collect::<Vec<_>>(), [("second", 0)]);
    assert_eq!(acknowledge(&other, "T", &second[0]).await, 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_never_get_the_same_message() {
    const COUNT: usize = 400;
    let cluster = Cluster::start(1).await;
    let node = cluster.leader().await;
    let sender = node.client();
    let members = (0..4).map(|_| {
        let client = node.client();
        tokio::spawn(async move {
            let mut got = Vec::new();
            loop {
                let answer = client.call(pop("T", 7, 60_000, 1_500)).await;
                if answer.code == 210 {
                    return got;
                }
                let given = popped(&answer);
                for message in &given {
                    assert_eq!(acknowledge(&client, "T", message).await, 0);
                }
                got.extend(given);
            }
        })
    });
    check(&sender.call(message("T", 0, "0", "")).await, 0, &[]);
    let members: Vec<_> = members.collect();
    for number in 1..COUNT {
        check(&sender.call(message("T", (number % 4) as i32, &number.to_string(), "")).await, 0, &[]);
    }
    let mut bodies: Vec<usize> = Vec::new();
    for member in members {
        bodies.extend(member.await.unwrap().into_iter().map(|message| message.body.parse::<usize>().unwrap()));
    }
    bodies.sort_unstable();
    assert_eq!(bodies, (0..COUNT).collect::<Vec<_>>());
    assert_eq!(lag(&sender, "T").await, (0, 0));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_order_nothing_comes_before_what_is_under_way() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    send(&client, (0..4).map(|number| message("T", 0, &number.to_string(), ""))).await;
    let ordered =
        |count, poll_ms, attempt| with(with(pop("T", count, 60_000, poll_ms), "order", "true"), "attemptId", attempt);
    let answer = client.call(ordered(2, 10_000, "a")).await;
    check(&answer, 0, &[("reviveQid", "999"), ("orderCountInfo", "0 0 0;0 qo0%0 0;0 qo0%1 0"), ("restNum", "2")]);
    let first = popped(&answer);
    check(&client.call(ordered(2, 0, "b")).await, 210, &[("reviveQid", "999")]);
    // Its answer got lost.
    let repeated = popped(&client.call(ordered(2, 0, "a")).await);
    assert_eq!(
        repeated.iter().map(|message| (&*message.body, message.times)).collect::<Vec<_>>(),
        [("0", 0), ("1", 0)]
    );
    assert_eq!(acknowledge(&client, "T", &first[0]).await, 208, "it is another giving");
    assert_eq!(acknowledge(&client, "T", &repeated[1]).await, 0);
    check(&client.call(ordered(2, 0, "c")).await, 210, &[]);
    let hide = repeated[0].request(RequestCode::CHANGE_MESSAGE_INVISIBLETIME, "T").with_ext("invisibleTime", 100);
    check(&client.call(hide).await, 0, &[]);
    let answer = client.call(ordered(2, 10_000, "d")).await;
    check(&answer, 0, &[("orderCountInfo", "0 0 1;0 qo0%0 1")]);
    let again = popped(&answer);
    assert_eq!(again.iter().map(|message| (&*message.body, message.times)).collect::<Vec<_>>(), [("0", 1)]);

    // The acknowledgement lets the next ones go at once, to who waits for them.
    let waiting = tokio::spawn({
        let (client, pop) = (client.clone(), ordered(2, 18_000, "e"));
        async move { client.call(pop).await }
    });
    let polling = request(RequestCode::POLLING_INFO, &[("consumerGroup", "g"), ("topic", "T"), ("queueId", "-1")]);
    let is_held = async { while client.call(polling.clone()).await.ext.get("pollingNum") != Some("1") {} };
    soon("the pop is held", is_held).await;
    assert_eq!(acknowledge(&client, "T", &again[0]).await, 0);
    let last = popped(&soon("the pop is answered", waiting).await.unwrap());
    assert_eq!(last.iter().map(|message| (&*message.body, message.times)).collect::<Vec<_>>(), [("2", 0), ("3", 0)]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_leaves_out_what_it_does_not_want() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    let properties = ["TAGS\u{1}A\u{2}n\u{1}1\u{2}", "TAGS\u{1}B\u{2}n\u{1}2\u{2}"];
    send(&client, (0..6).map(|number| message("T", 0, &number.to_string(), properties[number % 2]))).await;
    let tagged = with(pop("T", 2, 60_000, 10_000), "exp", "B");
    let given = popped(&client.call(tagged.clone()).await);
    assert_eq!(given.iter().map(|message| &*message.body).collect::<Vec<_>>(), ["1", "3"]);
    assert_eq!(lag(&client, "T").await, (4, 2));
    let sql = with(with(pop("T", 32, 60_000, 10_000), "expType", "SQL92"), "exp", "n = 2");
    let given = popped(&client.call(sql).await);
    assert_eq!(given.iter().map(|message| &*message.body).collect::<Vec<_>>(), ["5"]);
    check(&client.call(with(pop("T", 2, 60_000, 0), "exp", " || ")).await, 23, &[]);

    send(&client, [message("T", 0, "6", "TAGS\u{1}A\u{2}")]).await;
    check(&client.call(with(pop("T", 2, 60_000, 0), "exp", "B")).await, 210, &[]);
    // What was left out is consumed.
    assert_eq!(lag(&client, "T").await, (3, 3));
    check(&client.call(pop("T", 33, 60_000, 0)).await, 29, &[]);
    check(&client.call(pop("unknown", 3, 60_000, 0)).await, 17, &[]);
    check(&client.call(with(pop("T", 3, 60_000, 0), "queueId", "9")).await, 29, &[]);
    check(&client.call(with(given[0].request(RequestCode::ACK_MESSAGE, "T"), "extraInfo", "what")).await, 29, &[]);
    check(&client.call(with(given[0].request(RequestCode::ACK_MESSAGE, "T"), "offset", "99")).await, 208, &[]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_goes_on_where_it_is_set() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    send(&client, (0..6).map(|number| message("T", 0, &number.to_string(), ""))).await;
    put_group(&client, 16).await;
    let commit = offsets(RequestCode::UPDATE_CONSUMER_OFFSET, "g", "T", 0).with_ext("commitOffset", 4);
    check(&client.call(commit.clone()).await, 0, &[]);
    let given = popped(&client.call(pop("T", 1, 60_000, 10_000)).await);
    assert_eq!(given[0].body, "4", "where it stopped pulling");
    check(&client.call(offsets(RequestCode::QUERY_CONSUMER_OFFSET, "g", "T", 0)).await, 0, &[("offset", "4")]);
    check(&client.call(with(commit, "commitOffset", "2")).await, 0, &[]);
    assert_eq!(lag(&client, "T").await, (4, 0), "nothing is under way any more");
    let given = popped(&client.call(pop("T", 32, 60_000, 10_000)).await);
    assert_eq!(given.iter().map(|message| &*message.body).collect::<Vec<_>>(), ["2", "3", "4", "5"]);

    // A batch acknowledges several of one giving.
    let acks = QueueAcks {
        group: "g".to_owned(),
        topic: "T".to_owned(),
        retry_flag: "0".to_owned(),
        start_offset: 2,
        queue_id: 0,
        revive_queue_id: 0,
        pop_time: given[0].pop_time,
        invisible_time: 60_000,
        bits: "Cw==".to_owned(),
    };
    let batch = BatchAck { broker_name: BROKER.to_owned(), acks: vec![acks] };
    check(&client.call(request(RequestCode::BATCH_ACK_MESSAGE, &[]).with_body(batch.encode())).await, 0, &[]);
    assert_eq!(lag(&client, "T").await, (1, 1));
    check(&client.call(offsets(RequestCode::QUERY_CONSUMER_OFFSET, "g", "T", 0)).await, 0, &[("offset", "4")]);

    // A new group that wants what comes next has it from its first pop on.
    let late = |poll_ms| with(with(pop("T", 32, 60_000, poll_ms), "consumerGroup", "late"), "initMode", "1");
    let peek = [("consumerGroup", "late"), ("topic", "T"), ("queueId", "-1"), ("maxMsgNums", "4")];
    let peeked = client.call(request(RequestCode::PEEK_MESSAGE, &peek)).await;
    check(&peeked, 0, &[("popTime", "0"), ("restNum", "2")]);
    assert_eq!(iter_records(&peeked.body).count(), 4);
    let notification =
        |topic| request(RequestCode::NOTIFICATION, &[("consumerGroup", "late"), ("topic", topic), ("queueId", "-1")]);
    check(&client.call(notification("T")).await, 0, &[("hasMsg", "true"), ("pollingFull", "false")]);
    assert_eq!(popped(&client.call(late(10_000)).await).len(), 6, "the queue still has its first message");
    check(&client.call(notification("T")).await, 0, &[("hasMsg", "false"), ("pollingFull", "false")]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_broker_says_who_reads_which_queue_and_how() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    send(&client, [message("T", 0, "any", "")]).await;
    put_group(&client, 16).await;
    check(&client.call(heartbeat("c1", "g", "T")).await, 0, &[]);
    check(&client.call(heartbeat("c2", "g", "T")).await, 0, &[]);
    let ask = async |client_id: &str, topic: &str| {
        let body = AssignmentRequest {
            topic: topic.to_owned(),
            consumer_group: "g".to_owned(),
            client_id: client_id.to_owned(),
            strategy_name: "AVG".to_owned(),
            message_model: MessageModel::Clustering,
        };
        let answer = client.call(request(RequestCode::QUERY_ASSIGNMENT, &[]).with_body(body.encode())).await;
        let assignments = Assignments::decode(&answer.body).map(|body| body.message_queue_assignments);
        (answer.code, assignments.unwrap_or_default())
    };
    let queues = |mode, assignments: Vec<protocol::body::Assignment>| {
        assert!(assignments.iter().all(|assignment| assignment.mode == mode), "{assignments:?}");
        assignments.into_iter().map(|assignment| assignment.message_queue.queue_id).collect::<Vec<_>>()
    };
    let (_, pulled) = ask("c2", "T").await;
    assert_eq!(queues(MessageRequestMode::Pull, pulled), [2, 3]);
    assert_eq!(ask("stranger", "T").await.0, 1);

    let set = async |topic: &str, group: &str, mode| {
        let setting = RequestModeSetting {
            topic: topic.to_owned(),
            consumer_group: group.to_owned(),
            mode,
            pop_share_queue_num: 8,
        };
        client.call(request(RequestCode::SET_MESSAGE_REQUEST_MODE, &[]).with_body(setting.encode())).await.code
    };
    assert_eq!(set("T", "g", MessageRequestMode::Pop).await, 0);
    assert_eq!(set("T", "h", MessageRequestMode::Pop).await, 26);
    assert_eq!(set("U", "g", MessageRequestMode::Pop).await, 17);
    assert_eq!(set("%RETRY%g", "g", MessageRequestMode::Pop).await, 16);
    let (_, popped) = ask("c2", "T").await;
    assert_eq!(
        popped[0].message_queue,
        MessageQueue { broker_name: BROKER.to_owned(), queue_id: -1, topic: "T".to_owned() }
    );
    assert_eq!(queues(MessageRequestMode::Pop, popped), [-1]);
    let (_, retried) = ask("c1", "%RETRY%g").await;
    assert_eq!(queues(MessageRequestMode::Pull, retried), [0, 1]);
    let modes = client.call(request(RequestCode::GET_ALL_MESSAGE_REQUEST_MODE, &[])).await;
    let modes = RequestModes::decode(&modes.body).unwrap().message_request_mode_map;
    assert_eq!(modes["T"]["g"].mode, MessageRequestMode::Pop);
    cluster.stop().await;
}
