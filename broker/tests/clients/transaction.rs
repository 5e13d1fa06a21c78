//! Transactions: half messages, their ends, and what happens to those that nobody ends.

use std::collections::BTreeMap;

use protocol::body::{HeartbeatData, ProducerData};
use protocol::header::{CheckTransactionRequest, TransactionEnd};
use protocol::message::{OffsetMessageId, RecordView, SysFlag, iter_records, property};
use protocol::{RemotingCommand, RequestCode};

use crate::cluster::{Client, Cluster, TRANSACTIONS};
use crate::requests::{check, message, pull, request, settled};

const GIVEN_UP: &str = "TRANS_CHECK_MAX_TIME_TOPIC";

/// Both places of a half message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) queue_offset: i64,
    pub(crate) physical_offset: i64,
}

impl Place {
    pub(crate) fn of_answer(answer: &RemotingCommand) -> Self {
        let id: OffsetMessageId = answer.ext.get("msgId").unwrap().parse().unwrap();
        let queue_offset = answer.ext.get("queueOffset").unwrap().parse().unwrap();
        Self { queue_offset, physical_offset: id.physical_offset }
    }

    pub(crate) fn of_check(check: &RemotingCommand) -> Self {
        let header = CheckTransactionRequest::decode(check).unwrap();
        Self { queue_offset: header.half_queue_offset, physical_offset: header.half_physical_offset }
    }
}

pub(crate) fn half(group: &str, body: &str, more: &str) -> RemotingCommand {
    let properties = format!("TRAN_MSG\u{1}true\u{2}PGROUP\u{1}{group}\u{2}UNIQ_KEY\u{1}U{body}\u{2}{more}");
    let mut sent = message("T", 2, body, &properties);
    sent.ext.push("f", "4");
    sent
}

pub(crate) async fn send_half(client: &Client, group: &str, body: &str) -> Place {
    let sent = client.call(half(group, body, "")).await;
    check(&sent, 0, &[("queueId", "2"), ("transactionId", &format!("U{body}"))]);
    Place::of_answer(&sent)
}

pub(crate) fn end(group: &str, place: Place, how: i32) -> RemotingCommand {
    request(RequestCode::END_TRANSACTION, &[("producerGroup", group), ("msgId", "any"), ("transactionId", "any")])
        .with_ext("tranStateTableOffset", place.queue_offset)
        .with_ext("commitLogOffset", place.physical_offset)
        .with_ext("commitOrRollback", how)
        .with_ext("fromTransactionCheck", false)
}

/// A heartbeat of a client that only produces.
pub(crate) fn producer(client_id: &str, group: &str) -> RemotingCommand {
    let beat = HeartbeatData {
        client_id: client_id.to_owned(),
        producers: vec![ProducerData { group: group.to_owned() }],
        consumers: Vec::new(),
        fingerprint: 0,
        without_subscriptions: false,
    };
    RemotingCommand::request(RequestCode::HEART_BEAT).with_body(beat.encode())
}

/// The bodies in a queue, read from its start until there are `count`, which are all.
pub(crate) async fn all(client: &Client, topic: &str, queue_id: i32, count: i64) -> Vec<String> {
    let mut bodies = Vec::new();
    while (bodies.len() as i64) < count {
        let pulled = client.call(pull(topic, queue_id, bodies.len() as i64, 6, 10_000)).await;
        check(&pulled, 0, &[]);
        let records = iter_records(&pulled.body).map(Result::unwrap);
        bodies.extend(records.map(|record| String::from_utf8(record.body().to_vec()).unwrap()));
    }
    check(&client.call(pull(topic, queue_id, count, 4, 0)).await, 19, &[]);
    bodies
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_message_is_seen_once_it_is_committed() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    let sent = client.call(half("p", "1", "TAGS\u{1}A\u{2}REAL_QID\u{1}7\u{2}")).await;
    check(&sent, 0, &[("queueId", "2"), ("queueOffset", "0"), ("transactionId", "U1"), ("TRACE_ON", "true")]);
    let place = Place::of_answer(&sent);
    settled(&client).await;
    check(&client.call(pull("T", 2, 0, 4, 0)).await, 19, &[("maxOffset", "0")]);
    let by_key = request(RequestCode::QUERY_MESSAGE, &[("topic", "T"), ("key", "U1"), ("maxNum", "9")])
        .with_ext("beginTimestamp", 0)
        .with_ext("endTimestamp", i64::MAX)
        .with_ext("_UNIQUE_KEY_QUERY", true);
    check(&client.call(by_key).await, 22, &[]);

    check(&client.call(end("p", place, TransactionEnd::COMMIT)).await, 0, &[]);
    let pulled = client.call(pull("T", 2, 0, 6, 10_000)).await;
    check(&pulled, 0, &[("maxOffset", "1")]);
    let record = RecordView::parse(&pulled.body).unwrap();
    assert_eq!((record.topic(), record.queue_id(), record.body()), ("T", 2, b"1".as_slice()));
    assert_eq!(record.sys_flag(), SysFlag(SysFlag::TRANSACTION_COMMIT));
    assert_eq!(record.prepared_transaction_offset(), place.physical_offset);
    let names = ["TAGS", "UNIQ_KEY", "PGROUP", "TRAN_MSG", "__transactionId__", "REAL_TOPIC", "REAL_QID"];
    let found = names.map(|name| record.properties().get(name).unwrap());
    assert_eq!(found, ["A", "U1", "p", "true", "U1", "T", "2"]);

    // Its end is its end.
    for again in [TransactionEnd::COMMIT, TransactionEnd::ROLLBACK] {
        check(&client.call(end("p", place, again)).await, 1, &[]);
    }
    assert_eq!(all(&client, "T", 2, 1).await, ["1"]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_is_ended_by_who_knows_it() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    let place = send_half(&client, "p", "1").await;
    let other = send_half(&client, "q", "2").await;
    let refused = |request: RemotingCommand, code: i32, words: &'static str| {
        let client = client.clone();
        async move {
            let answer = client.call(request).await;
            check(&answer, code, &[]);
            let remark = answer.remark.unwrap_or_default();
            assert!(remark.contains(words), "{remark}");
        }
    };
    let commit = TransactionEnd::COMMIT;
    refused(end("q", place, commit), 1, "producer group is wrong").await;
    refused(end("p", Place { queue_offset: other.queue_offset, ..place }, commit), 1, "producer group").await;
    refused(end("p", Place { queue_offset: 9, ..place }, commit), 1, "no transaction is pending at offset 9").await;
    refused(end("p", Place { queue_offset: -1, ..place }, commit), 1, "no transaction is pending").await;
    refused(end("p", Place { physical_offset: 1, ..place }, commit), 1, "commit log offset is wrong").await;
    refused(end("p", place, 5), 29, "commitOrRollback is 5").await;
    // Of a message that says how long its producer has, measured from its birth.
    let answer = client.call(half("p", "3", "CHECK_IMMUNITY_TIME_IN_SECONDS\u{1}60\u{2}")).await;
    let late = Place::of_answer(&answer);
    refused(end("p", late, commit), 604, "asked instead").await;
    let mut asked = end("p", late, commit);
    asked.ext.push("fromTransactionCheck", "true");
    check(&client.call(asked).await, 0, &[]);

    check(&client.call(end("p", place, TransactionEnd::UNKNOWN)).await, 0, &[]);
    check(&client.call(end("p", place, TransactionEnd::ROLLBACK)).await, 0, &[]);
    check(&client.call(end("q", other, commit)).await, 0, &[]);
    assert_eq!(all(&client, "T", 2, 2).await, ["3", "2"]);
    // Nobody but a transaction writes there.
    check(&client.call(message("RMQ_SYS_TRANS_HALF_TOPIC", 0, "x", "")).await, 16, &[]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producers_are_asked_until_it_is_given_up_and_it_can_be_resumed() {
    let cluster = Cluster::start(1).await;
    let node = cluster.leader().await;
    let client = node.client();
    // Its producer is never here: it is neither asked nor given up.
    let alone = send_half(&client, "absent", "alone").await;
    let place = send_half(&client, "p", "1").await;
    check(&client.call(producer("c", "p")).await, 0, &[]);
    for times in 1..=TRANSACTIONS.check_max {
        let asked = client.asked(RequestCode::CHECK_TRANSACTION_STATE).await;
        assert!(asked.is_oneway());
        assert_eq!(Place::of_check(&asked), place);
        let id = OffsetMessageId { store_host: node.addr, physical_offset: place.physical_offset }.to_string();
        let fields =
            [("topic", "RMQ_SYS_TRANS_HALF_TOPIC"), ("msgId", "U1"), ("transactionId", "U1"), ("bname", "broker-a")];
        for (key, value) in fields.into_iter().chain([("offsetMsgId", id.as_str())]) {
            assert_eq!(asked.ext.get(key), Some(value), "{key}");
        }
        let record = RecordView::parse(&asked.body).unwrap();
        assert_eq!((record.topic(), record.queue_id(), record.body()), ("T", 2, b"1".as_slice()));
        assert_eq!((record.queue_offset(), record.physical_offset()), (place.queue_offset, place.physical_offset));
        let count = record.properties().get(property::TRANSACTION_CHECK_TIMES);
        assert_eq!(count, Some(times.to_string().as_str()));
    }
    let pulled = client.call(pull(GIVEN_UP, 0, 0, 6, 10_000)).await;
    check(&pulled, 0, &[("maxOffset", "1")]);
    let copy = RecordView::parse(&pulled.body).unwrap();
    assert_eq!(copy.body(), b"1");
    check(&client.call(end("p", place, TransactionEnd::COMMIT)).await, 1, &[]);
    check(&client.call(end("absent", alone, TransactionEnd::COMMIT)).await, 0, &[]);

    let id = OffsetMessageId { store_host: node.addr, physical_offset: copy.physical_offset() }.to_string();
    let resume = |id: &str| request(RequestCode::RESUME_CHECK_HALF_MESSAGE, &[("topic", "T"), ("msgId", id)]);
    check(&client.call(resume("nonsense")).await, 1, &[]);
    check(&client.call(resume(&id)).await, 0, &[]);
    check(&client.call(resume(&id)).await, 1, &[]);
    check(&client.call(resume("U1")).await, 1, &[]);
    let asked = client.asked(RequestCode::CHECK_TRANSACTION_STATE).await;
    let again = Place::of_check(&asked);
    assert!(again > place);
    check(&client.call(end("p", again, TransactionEnd::COMMIT)).await, 0, &[]);
    assert_eq!(all(&client, "T", 2, 2).await, ["alone", "1"]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_messages_move_to_the_end_of_the_log() {
    let cluster = Cluster::start(1).await;
    let node = cluster.leader().await;
    let client = node.client();
    let places = [send_half(&client, "p", "1").await, send_half(&client, "p", "2").await];
    let last = send_half(&client, "p", "3").await;
    let below = u64::try_from(last.physical_offset).unwrap();
    assert_eq!(node.group.carry_waiting(below).await.unwrap(), 2);
    assert_eq!(node.group.carry_waiting(below).await.unwrap(), 0);
    for place in places {
        check(&client.call(end("p", place, TransactionEnd::COMMIT)).await, 1, &[]);
    }
    check(&client.call(end("p", last, TransactionEnd::COMMIT)).await, 0, &[]);
    check(&client.call(producer("c", "p")).await, 0, &[]);
    let mut moved = BTreeMap::new();
    while moved.len() < 2 {
        let asked = client.asked(RequestCode::CHECK_TRANSACTION_STATE).await;
        moved.insert(Place::of_check(&asked), RecordView::parse(&asked.body).unwrap().body().to_vec());
    }
    assert_eq!(moved.values().collect::<Vec<_>>(), [b"1", b"2"]);
    for place in moved.into_keys() {
        assert!(place > last);
        check(&client.call(end("p", place, TransactionEnd::COMMIT)).await, 0, &[]);
    }
    assert_eq!(all(&client, "T", 2, 3).await, ["3", "1", "2"]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_of_another_replica_is_asked_and_heard() {
    let cluster = Cluster::start(3).await;
    let follower = cluster.follower().await.client();
    check(&follower.call(producer("c", "p")).await, 0, &[]);
    // All of it through a replica that does not lead.
    let place = send_half(&follower, "p", "1").await;
    let asked = follower.asked(RequestCode::CHECK_TRANSACTION_STATE).await;
    assert!(asked.is_oneway());
    assert_eq!(Place::of_check(&asked), place);
    assert_eq!(asked.ext.get("relayedGroup"), None);
    check(&follower.call(end("p", place, TransactionEnd::COMMIT)).await, 0, &[]);
    assert_eq!(all(&cluster.leader().await.client(), "T", 2, 1).await, ["1"]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_transaction_ends_once_though_the_leader_goes_between_end_and_answer() {
    const COUNT: usize = 60;
    let mut cluster = Cluster::start(3).await;
    let client = cluster.leader().await.client();
    let mut places = Vec::new();
    for number in 0..COUNT {
        places.push(send_half(&client, "p", &number.to_string()).await);
    }
    // A third is committed, a third is rolled back, and all of that may or may not have happened when the leader goes.
    for (number, place) in places.iter().enumerate() {
        match number % 3 {
            0 => client.send_oneway(end("p", *place, TransactionEnd::COMMIT)).await,
            1 => client.send_oneway(end("p", *place, TransactionEnd::ROLLBACK)).await,
            _ => {}
        }
    }
    let client = cluster.lose_leader().await;
    // The producer says it all again, to the new leader, and what it has not said when it is asked.
    for (number, place) in places.iter().enumerate() {
        let (how, known) = match number % 3 {
            0 => (TransactionEnd::COMMIT, true),
            1 => (TransactionEnd::ROLLBACK, true),
            _ => (TransactionEnd::UNKNOWN, false),
        };
        let answer = client.call(end("p", *place, how)).await;
        assert!(answer.code == 0 || known && answer.code == 1, "{answer:?}");
    }
    check(&client.call(producer("c", "p")).await, 0, &[]);
    let mut asked = BTreeMap::new();
    while asked.len() < COUNT / 3 {
        let check = client.asked(RequestCode::CHECK_TRANSACTION_STATE).await;
        let place = Place::of_check(&check);
        let number = places.iter().position(|known| *known == place).unwrap();
        assert_eq!(number % 3, 2, "{number} has ended");
        if asked.insert(place, number).is_none() {
            let answer = client.call(end("p", place, TransactionEnd::COMMIT)).await;
            assert_eq!(answer.code, 0, "{answer:?}");
        }
    }
    let expected: Vec<usize> = (0..COUNT).filter(|number| number % 3 != 1).collect();
    let found = all(&client, "T", 2, expected.len() as i64).await;
    let mut found: Vec<usize> = found.iter().map(|body| body.parse().unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, expected);
    check(&client.call(pull(GIVEN_UP, 0, 0, 4, 0)).await, 19, &[]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_goes_on_counting_checks() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.leader().await.client();
    let place = send_half(&client, "p", "1").await;
    check(&client.call(producer("c", "p")).await, 0, &[]);
    // The second check says that the first one is in the log.
    for _ in 0..2 {
        client.asked(RequestCode::CHECK_TRANSACTION_STATE).await;
    }
    let client = cluster.lose_leader().await;
    check(&client.call(producer("c", "p")).await, 0, &[]);
    let asked = client.asked(RequestCode::CHECK_TRANSACTION_STATE).await;
    assert_eq!(Place::of_check(&asked), place);
    let times = RecordView::parse(&asked.body).unwrap().properties().get(property::TRANSACTION_CHECK_TIMES).unwrap();
    assert!(["2", "3"].contains(&times), "asked for the {times}th time");
    check(&client.call(end("p", place, TransactionEnd::COMMIT)).await, 0, &[]);
    assert_eq!(all(&client, "T", 2, 1).await, ["1"]);
    cluster.stop().await;
}
