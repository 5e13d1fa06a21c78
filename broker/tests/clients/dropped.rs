//! What clients see of messages that retention has dropped.

use protocol::body::KvTable;
use protocol::message::iter_records;
use protocol::{RemotingCommand, RequestCode};

use crate::cluster::{Client, Cluster};
use crate::requests::{check, heartbeat, message, offsets, pull, request, settled};

/// Log position and store time of the first message of queue 0 from `queue_offset` on.
async fn place_of(client: &Client, queue_offset: i64) -> (i64, i64) {
    let pulled = client.call(pull("T", 0, queue_offset, 4, 0)).await;
    check(&pulled, 0, &[]);
    let record = iter_records(&pulled.body).next().unwrap().unwrap();
    assert_eq!(record.queue_offset(), queue_offset);
    (record.physical_offset(), record.store_timestamp())
}

/// Where the log starts, and when its first message was stored.
async fn log_start(client: &Client) -> (i64, i64) {
    let runtime = client.call(request(RequestCode::GET_BROKER_RUNTIME_INFO, &[])).await;
    let table = KvTable::decode(&runtime.body).unwrap().table;
    let number = |key: &str| table[key].parse().unwrap();
    (number("commitLogMinOffset"), number("earliestMessageTimeStamp"))
}

fn commit(group: &str, queue_offset: i64) -> RemotingCommand {
    offsets(RequestCode::UPDATE_CONSUMER_OFFSET, group, "T", 0).with_ext("commitOffset", queue_offset)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_messages_move_consumed_offsets_and_the_start_of_the_log() {
    let cluster = Cluster::start(1).await;
    let node = cluster.leader().await;
    let client = node.client();
    for body in ["a", "b", "c"] {
        check(&client.call(message("T", 0, body, "")).await, 0, &[]);
    }
    let checkpoint = node.checkpoint().await;
    for body in ["d", "e"] {
        check(&client.call(message("T", 0, body, "")).await, 0, &[]);
    }
    settled(&client).await;
    for (group, consumed) in [("behind", 1), ("ahead", 4)] {
        check(&client.call(heartbeat("c1", group, "T")).await, 0, &[]);
        check(&client.call(commit(group, consumed)).await, 0, &[]);
    }
    let query = |group| client.call(offsets(RequestCode::QUERY_CONSUMER_OFFSET, group, "T", 0));
    check(&query("behind").await, 0, &[("offset", "1")]);
    let first = place_of(&client, 0).await;
    let last_dropped = place_of(&client, 2).await;
    let first_kept = place_of(&client, 3).await;
    let (start, earliest) = log_start(&client).await;
    assert!(start < first.0, "{start} {first:?}");
    assert_eq!(earliest, first.1);

    node.drop_through(checkpoint).await;
    let min = request(RequestCode::GET_MIN_OFFSET, &[("topic", "T"), ("queueId", "0")]);
    check(&client.call(min).await, 0, &[("offset", "3")]);
    // What is gone cannot be consumed any more: such a consumer goes on at the start.
    check(&query("behind").await, 0, &[("offset", "3")]);
    check(&query("ahead").await, 0, &[("offset", "4")]);
    check(&client.call(commit("ahead", 2)).await, 0, &[]);
    check(&query("ahead").await, 0, &[("offset", "3")]);
    let (start, earliest) = log_start(&client).await;
    assert!((last_dropped.0 + 1..=first_kept.0).contains(&start), "{start} {last_dropped:?} {first_kept:?}");
    assert_eq!(earliest, first_kept.1);
    cluster.stop().await;
}
