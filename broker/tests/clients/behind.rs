//! A replica that is behind its leader denies nothing that the leader has, and shows nothing that the leader hides.

use broker::state_machine::Command;
use broker::state_machine::command::QueueKey;
use protocol::body::QueryConsumeQueueBody;
use protocol::message::{OffsetMessageId, iter_records};
use protocol::{RemotingCommand, RequestCode};

use crate::cluster::{Client, Cluster, Node, soon};
use crate::link::Passes;
use crate::requests::{check, message, pull, request};

fn view(physical_offset: i64) -> RemotingCommand {
    request(RequestCode::VIEW_MESSAGE_BY_ID, &[]).with_ext("offset", physical_offset)
}

fn query(key: &str) -> RemotingCommand {
    request(RequestCode::QUERY_MESSAGE, &[("topic", "T"), ("key", key), ("maxNum", "8")])
        .with_ext("beginTimestamp", 0)
        .with_ext("endTimestamp", i64::MAX)
}

fn entries(from: u64) -> RemotingCommand {
    request(RequestCode::QUERY_CONSUME_QUEUE, &[("topic", "T"), ("queueId", "0"), ("count", "4")])
        .with_ext("index", from)
}

/// Sends a message and says where it lies.
async fn send(client: &Client, body: &str, keys: &str) -> i64 {
    let sent = client.call(message("T", 0, body, &format!("KEYS\u{1}{keys}\u{2}UNIQ_KEY\u{1}U{body}\u{2}"))).await;
    check(&sent, 0, &[]);
    let id: OffsetMessageId = sent.ext.get("msgId").unwrap().parse().unwrap();
    id.physical_offset
}

/// Waits until a replica by itself shows so many messages.
async fn shows(node: &Node, messages: i64) {
    soon("the replica has caught up", node.group.caught_up()).await;
    let client = node.client();
    for queue_offset in 0..messages {
        check(&client.call(pull("T", 0, queue_offset, 6, 15_000)).await, 0, &[]);
    }
}

fn bodies(answer: &RemotingCommand) -> Vec<String> {
    check(answer, 0, &[]);
    let records = iter_records(&answer.body).map(Result::unwrap);
    records.map(|record| String::from_utf8(record.body().to_vec()).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_asks_its_leader_for_what_it_does_not_find() {
    let cluster = Cluster::start_linked(3).await;
    let at_leader = cluster.leader().await.client();
    let follower = cluster.follower().await;
    let first = send(&at_leader, "first", "key").await;
    shows(follower, 1).await;

    cluster.links[&follower.id].cut(Passes::OnlyAnswers);
    let second = send(&at_leader, "second", "key other").await;
    let client = follower.client();
    assert_eq!(bodies(&client.call(view(second)).await), ["second"]);
    assert_eq!(bodies(&client.call(query("other")).await), ["second"]);
    let mut by_key = bodies(&client.call(query("key")).await);
    by_key.sort();
    assert_eq!(by_key, ["first", "second"], "all of them, though it has one itself");
    let unique = query("Usecond").with_ext("_UNIQUE_KEY_QUERY", "true");
    assert_eq!(bodies(&client.call(unique).await), ["second"]);
    let queue = client.call(entries(0)).await;
    check(&queue, 0, &[]);
    let places = QueryConsumeQueueBody::decode(&queue.body).unwrap().queue_data;
    let places: Vec<_> = places.into_iter().map(|entry| entry.physical_offset).collect();
    assert_eq!(places, [first, second]);

    // What is not there is denied by who knows.
    check(&client.call(view(second + 1)).await, 1, &[]);
    check(&client.call(query("none")).await, 22, &[]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_has_just_started_shows_nothing_that_is_hidden_by_now() {
    let mut cluster = Cluster::start_linked(3).await;
    let at_leader = cluster.leader().await.client();
    let mut places = Vec::new();
    for index in 0..4 {
        places.push(send(&at_leader, &format!("m{index}"), &format!("key{index}")).await);
    }
    let id = cluster.follower().await.id;
    shows(&cluster.nodes[&id], 4).await;
    let disk = cluster.nodes.remove(&id).unwrap().stop().await;
    let queue = QueueKey { topic: "T".parse().unwrap(), queue_id: 0 };
    let hide = Command::HideMessages { queues: vec![(queue, 3)], stamped_ms: 1 };
    cluster.leader().await.raft.propose_command(&hide).await.unwrap();

    // It hears nothing of its leader, but reaches it.
    cluster.links[&id].cut(Passes::OnlyAnswers);
    cluster.start_again(id, disk).await;
    let node = &cluster.nodes[&id];
    let mut role = node.raft.role();
    soon("it knows the leader", role.wait_for(|role| role.leader().is_some())).await.unwrap();
    let client = node.client();
    let check_all = async || {
        check(&client.call(pull("T", 0, 0, 4, 0)).await, 21, &[("nextBeginOffset", "3"), ("minOffset", "3")]);
        check(&client.call(pull("T", 0, 1, 6, 15_000)).await, 21, &[("nextBeginOffset", "3")]);
        assert_eq!(bodies(&client.call(pull("T", 0, 3, 4, 0)).await), ["m3"]);
        check(&client.call(view(places[0])).await, 1, &[]);
        check(&client.call(query("key1")).await, 22, &[]);
        assert_eq!(bodies(&client.call(view(places[3])).await), ["m3"]);
        assert_eq!(bodies(&client.call(query("key3")).await), ["m3"]);
    };
    check_all().await;
    cluster.links[&id].mend();
    soon("it catches up", node.group.caught_up()).await;
    check_all().await;
    cluster.stop().await;
}
