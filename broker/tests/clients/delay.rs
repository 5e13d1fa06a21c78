//! Messages that are delivered later.

use std::time::{SystemTime, UNIX_EPOCH};

use protocol::RequestCode;
use protocol::body::{DelayOffsets, KvTable};
use protocol::message::{RecordView, iter_records};

use crate::cluster::{Client, Cluster};
use crate::requests::{check, message, pull, request};

pub(crate) fn now_ms() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// Reads a queue from its start until it has given `count` messages, and hands each to `look`.
pub(crate) async fn read(
    client: &Client,
    topic: &str,
    queue_id: i32,
    count: i64,
    mut look: impl FnMut(&RecordView<'_>),
) {
    let mut offset = 0;
    while offset < count {
        let pulled = client.call(pull(topic, queue_id, offset, 6, 10_000)).await;
        check(&pulled, 0, &[]);
        for record in iter_records(&pulled.body) {
            let record = record.unwrap();
            assert_eq!(record.queue_offset(), offset, "offsets have no holes");
            offset += 1;
            look(&record);
        }
    }
}

/// Reads the first messages of queue 0 of T, which are numbers. None was stored there before its time.
pub(crate) async fn read_numbered(client: &Client, count: i64, due: &[i64]) -> Vec<i64> {
    let mut found = Vec::new();
    read(client, "T", 0, count, |record| {
        let number: usize = std::str::from_utf8(record.body()).unwrap().parse().unwrap();
        assert!(record.store_timestamp() >= due[number], "{number} came early");
        found.push(number as i64);
    })
    .await;
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_message_goes_to_its_queue_when_its_time_has_come() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    let sent_at = now_ms();
    let properties = "TAGS\u{1}A\u{2}DELAY\u{1}1\u{2}REAL_TOPIC\u{1}of an earlier life\u{2}UNIQ_KEY\u{1}U\u{2}";
    let sent = client.call(message("T", 2, "later", properties)).await;
    check(&sent, 0, &[("queueId", "2"), ("queueOffset", "0"), ("transactionId", "U")]);
    check(&client.call(message("T", 2, "now", "")).await, 0, &[("queueOffset", "0")]);
    let mut found = Vec::new();
    read(&client, "T", 2, 2, |record| {
        let properties = record.properties();
        if record.body() == b"later" {
            assert!(record.store_timestamp() >= sent_at + 1_000, "it came early");
            let kept = ["TAGS", "DELAY", "REAL_TOPIC", "REAL_QID", "UNIQ_KEY"].map(|name| properties.get(name));
            assert_eq!(kept, [Some("A"), Some("1"), Some("T"), Some("2"), Some("U")]);
        }
        found.push(String::from_utf8_lossy(record.body()).into_owned());
    })
    .await;
    assert_eq!(found, ["now", "later"]);
    let offsets = client.call(request(RequestCode::GET_ALL_DELAY_OFFSET, &[])).await;
    let table = DelayOffsets::decode(&offsets.body).unwrap().offset_table;
    assert_eq!(table.into_iter().collect::<Vec<_>>(), [(1, 1)]);
    let runtime = client.call(request(RequestCode::GET_BROKER_RUNTIME_INFO, &[])).await;
    assert_eq!(KvTable::decode(&runtime.body).unwrap().table["scheduleMessageOffset_1"], "1,1");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_messages_are_delivered_once_and_in_order_though_leaders_go() {
    const COUNT: i64 = 600;
    let mut cluster = Cluster::start(3).await;
    let client = cluster.leader().await.client();
    let mut due = Vec::new();
    for number in 0..COUNT {
        due.push(now_ms() + 2_000);
        check(&client.call(message("T", 0, &number.to_string(), "DELAY\u{1}2\u{2}")).await, 0, &[]);
    }
    // The first ones are due, the last ones are not: deliveries are under way.
    let follower = cluster.follower().await.id;
    read(&cluster.nodes[&follower].client(), "T", 0, 1, |_| {}).await;
    let client = cluster.lose_leader().await;
    assert_eq!(read_numbered(&client, COUNT, &due).await, (0..COUNT).collect::<Vec<_>>());
    // Nothing comes after them.
    check(&client.call(pull("T", 0, COUNT, 4, 0)).await, 19, &[]);
    cluster.stop().await;
}
