//! Messages that are delivered at a time of their own, and their recall.

use protocol::body::KvTable;
use protocol::message::{RecallHandle, property};
use protocol::{RemotingCommand, RequestCode};

use crate::cluster::{Client, Cluster};
use crate::delay::{now_ms, read, read_numbered};
use crate::requests::{check, message, pull, request, settled};

/// Sends a message that waits, and returns the handle to recall it.
pub(crate) async fn send(client: &Client, queue_id: i32, body: &str, properties: &str) -> String {
    let sent = client.call(message("T", queue_id, body, &format!("UNIQ_KEY\u{1}U{body}\u{2}{properties}"))).await;
    check(&sent, 0, &[("queueId", &queue_id.to_string()), ("transactionId", &format!("U{body}"))]);
    sent.ext.get("recallHandle").unwrap().to_owned()
}

pub(crate) fn recall(topic: &str, handle: &str) -> RemotingCommand {
    request(RequestCode::RECALL_MESSAGE, &[("producerGroup", "p"), ("topic", topic), ("recallHandle", handle)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_message_comes_at_its_time_and_not_before() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    check(&client.call(message("T", 0, "now", "TIMER_DELIVER_MS\u{1}1000\u{2}")).await, 0, &[("queueOffset", "0")]);
    let before = now_ms();
    let deliver_at = before + 900;
    let handle = send(&client, 0, "third", &format!("TIMER_DELIVER_MS\u{1}{deliver_at}\u{2}REAL_QID\u{1}9\u{2}")).await;
    let expected = RecallHandle {
        topic: "T".to_owned(),
        broker_name: "broker-a".to_owned(),
        due_ms: deliver_at,
        unique_key: "Uthird".to_owned(),
    };
    assert_eq!(RecallHandle::decode(&handle), Ok(expected));
    // What an earlier delivery left in a message does not count.
    send(&client, 0, "first", "TIMER_DELAY_MS\u{1}301\u{2}TIMER_OUT_MS\u{1}5\u{2}TAGS\u{1}A\u{2}").await;
    send(&client, 0, "fourth", "TIMER_DELAY_SEC\u{1}1\u{2}").await;
    send(&client, 0, "second", "TIMER_DELAY_MS\u{1}600\u{2}").await;
    let runtime = client.call(request(RequestCode::GET_BROKER_RUNTIME_INFO, &[])).await;
    assert_eq!(KvTable::decode(&runtime.body).unwrap().table["timerCongestNum"], "4");
    let mut found = Vec::new();
    read(&client, "T", 0, 5, |record| {
        let body = String::from_utf8_lossy(record.body()).into_owned();
        let wait = [("first", 301), ("second", 600), ("third", 900), ("fourth", 1_000)];
        if let Some((_, wait)) = wait.into_iter().find(|(name, _)| *name == body) {
            let due: i64 = record.properties().get(property::TIMER_OUT_MS).unwrap().parse().unwrap();
            assert!(due >= before + wait, "{body} is due early");
            assert!(record.store_timestamp() >= due && now_ms() >= due, "{body} came early");
            let named = [property::REAL_TOPIC, property::REAL_QID].map(|name| record.properties().get(name));
            assert_eq!(named, [Some("T"), Some("0")]);
        }
        found.push(body);
    })
    .await;
    assert_eq!(found, ["now", "first", "second", "third", "fourth"]);
    assert_eq!(cluster.leader().await.group.delayed_messages().timers, 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_message_is_recalled_once_and_never_comes() {
    let cluster = Cluster::start(1).await;
    let node = cluster.leader().await;
    let client = node.client();
    let far = "TIMER_DELAY_SEC\u{1}3600\u{2}";
    let handle = send(&client, 0, "away", far).await;
    let again = send(&client, 0, "away", "TIMER_DELAY_MS\u{1}3600000\u{2}").await;
    let kept = send(&client, 0, "kept", "TIMER_DELAY_MS\u{1}400\u{2}").await;
    let refused = |request: RemotingCommand, code: i32, words: &'static str| {
        let client = client.clone();
        async move {
            let answer = client.call(request).await;
            check(&answer, code, &[]);
            let remark = answer.remark.unwrap_or_default();
            assert!(remark.contains(words), "{remark}");
        }
    };
    let other = |change: fn(&mut RecallHandle)| {
        let mut other = RecallHandle::decode(&handle).unwrap();
        change(&mut other);
        other.encode()
    };
    refused(recall("nowhere", &handle), 17, "not exist").await;
    refused(recall("SELF_TEST_TOPIC", &handle), 604, "of topic T, not of SELF_TEST_TOPIC").await;
    refused(recall("T", "nonsense?"), 604, "Base64").await;
    refused(recall("T", &other(|handle| handle.broker_name = "broker-b".to_owned())), 604, "broker-b").await;
    let unknown = "waits here";
    refused(recall("T", &other(|handle| handle.due_ms -= 1)), 604, unknown).await;
    refused(recall("T", &other(|handle| handle.unique_key = "U".to_owned())), 604, unknown).await;

    // Whoever had no answer asks again.
    for _ in 0..2 {
        check(&client.call(recall("T", &handle)).await, 0, &[("msgId", "Uaway"), ("MSG_REGION", "DefaultRegion")]);
        assert_eq!(node.group.delayed_messages().timers, 2);
    }
    // The same key at another time is another message.
    check(&client.call(recall("T", &again)).await, 0, &[("msgId", "Uaway")]);
    read(&client, "T", 0, 1, |record| assert_eq!(record.body(), b"kept")).await;
    assert_eq!(node.group.delayed_messages().timers, 0);
    for _ in 0..2 {
        refused(recall("T", &kept), 604, "was delivered before").await;
    }
    check(&client.call(recall("T", &handle)).await, 0, &[]);
    check(&client.call(pull("T", 0, 1, 4, 0)).await, 19, &[]);
    // Beyond what is allowed here.
    refused(message("T", 0, "x", "TIMER_DELAY_SEC\u{1}259201\u{2}"), 13, "allows 259200000 ms").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recall_takes_back_what_its_producer_sent_once_more() {
    let cluster = Cluster::start(1).await;
    let node = cluster.leader().await;
    let client = node.client();
    let properties = format!("TIMER_DELIVER_MS\u{1}{}\u{2}", now_ms() + 3_600_000);
    let handle = send(&client, 0, "twice", &properties).await;
    assert_eq!(send(&client, 1, "twice", &properties).await, handle, "its first answer was lost");
    send(&client, 0, "other", &properties).await;
    assert_eq!(node.group.delayed_messages().timers, 3);
    check(&client.call(recall("T", &handle)).await, 0, &[("msgId", "Utwice")]);
    assert_eq!(node.group.delayed_messages().timers, 1);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timer_messages_come_once_though_leaders_go() {
    const COUNT: i64 = 300;
    let mut cluster = Cluster::start(3).await;
    let client = cluster.leader().await.client();
    // Every third one is recalled: some before, some after the leader goes.
    let mut handles = Vec::new();
    let mut due = Vec::new();
    let mut recalled = Vec::new();
    for number in 0..COUNT {
        due.push(now_ms() + 1_500 + number * 7 % 900);
        let properties = format!("TIMER_DELIVER_MS\u{1}{}\u{2}", due[number as usize]);
        handles.push(send(&client, 0, &number.to_string(), &properties).await);
        if number % 3 == 0
            && number < COUNT / 3
            && client.call(recall("T", &handles[number as usize])).await.is_success()
        {
            recalled.push(number);
        }
    }
    // The first ones are due, the last ones are not: deliveries are under way.
    let follower = cluster.follower().await.id;
    read(&cluster.nodes[&follower].client(), "T", 0, 1, |_| {}).await;
    let client = cluster.lose_leader().await;
    for number in (COUNT / 3..COUNT).step_by(3) {
        if client.call(recall("T", &handles[number as usize])).await.is_success() {
            recalled.push(number);
        }
    }
    let expected: Vec<i64> = (0..COUNT).filter(|number| !recalled.contains(number)).collect();
    let mut found = read_numbered(&client, expected.len() as i64, &due).await;
    found.sort_unstable();
    assert_eq!(found, expected);
    settled(&client).await;
    check(&client.call(pull("T", 0, expected.len() as i64, 4, 0)).await, 19, &[]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_outlives_its_part_of_the_log_on_every_replica() {
    let mut cluster = Cluster::start_some(3, 2).await;
    let client = cluster.leader().await.client();
    let due = now_ms() + 6_000;
    let handle = send(&client, 0, "recalled", "TIMER_DELAY_SEC\u{1}3600\u{2}").await;
    send(&client, 0, "timer", &format!("TIMER_DELIVER_MS\u{1}{due}\u{2}")).await;
    check(&client.call(message("T", 0, "level", "DELAY\u{1}5\u{2}")).await, 0, &[]);
    check(&client.call(message("T", 1, "last", "")).await, 0, &[]);
    settled(&client).await;
    let mut checkpoints = Vec::new();
    for node in cluster.nodes.values() {
        checkpoints.push(node.checkpoint().await);
    }

    // What waits moves behind the checkpoints, and the log before them goes. A replica that comes now starts from a
    // checkpoint in which everything is at its old place.
    check(&client.call(message("T", 1, "more", "")).await, 0, &[]);
    let leader = cluster.leader().await;
    // Three, unless the machine was so slow that some are due.
    assert!((1..=3).contains(&leader.group.carry_waiting(i64::MAX as u64).await.unwrap()));
    assert_eq!(leader.group.delayed_messages().on_levels, 0);
    for (node, checkpoint) in cluster.nodes.values().zip(checkpoints) {
        node.drop_through(checkpoint).await;
    }
    let leader = leader.id;
    cluster.start_node(3).await;
    // It has applied all of it once it has the last message.
    check(&client.call(message("T", 2, "end", "")).await, 0, &[]);
    let late = cluster.nodes[&3].client();
    read(&late, "T", 2, 1, |record| assert_eq!(record.body(), b"end")).await;
    cluster.nodes.remove(&leader).unwrap().stop().await;

    let client = cluster.leader().await.client();
    check(&client.call(recall("T", &handle)).await, 0, &[("msgId", "Urecalled")]);
    let mut found = Vec::new();
    read(&client, "T", 0, 2, |record| {
        assert!(record.store_timestamp() >= due, "it came early");
        found.push(String::from_utf8_lossy(record.body()).into_owned());
    })
    .await;
    found.sort_unstable();
    assert_eq!(found, ["level", "timer"]);
    check(&client.call(pull("T", 0, 2, 4, 0)).await, 19, &[]);
    assert_eq!(cluster.leader().await.group.delayed_messages().timers, 0);
    cluster.stop().await;
}
