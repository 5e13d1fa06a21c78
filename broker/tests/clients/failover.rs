//! Several nodes: who answers what, and what happens when the leader goes.

use bytes::BytesMut;
use protocol::body::ConsumerList;
use protocol::message::{BatchItem, OffsetMessageId, RecordView, encode_batch_item, iter_records};
use protocol::{RemotingCommand, RequestCode};

use crate::cluster::{Client, Cluster, Node, soon};
use crate::requests::{check, heartbeat, message, offsets, pull, request, settled};

/// Waits until a node has a message of a queue to read, and reads it.
async fn first_message(client: &Client, topic: &str, queue_id: i32) -> RemotingCommand {
    // A follower holds the pull until it has applied the message.
    client.call(pull(topic, queue_id, 0, 6, 10_000)).await
}

async fn members(client: &Client, group: &str) -> Option<Vec<String>> {
    let answer = client.call(request(RequestCode::GET_CONSUMER_LIST_BY_GROUP, &[("consumerGroup", group)])).await;
    answer.is_success().then(|| ConsumerList::decode(&answer.body).unwrap().consumer_id_list)
}

/// Tells every node of a consumer, as consumers do.
async fn beat_everywhere(cluster: &Cluster) -> Vec<Client> {
    let consumers: Vec<Client> = cluster.nodes.values().map(Node::client).collect();
    for consumer in &consumers {
        check(&consumer.call(heartbeat("c1", "g", "T")).await, 0, &[]);
    }
    consumers
}

async fn knows(node: &Node, group: &str, ids: &[&str]) {
    let client = node.client();
    let wait = async {
        while members(&client, group).await.is_none_or(|found| found != ids) {
            tokio::task::yield_now().await;
        }
    };
    soon("the member list is known", wait).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_passes_on_what_only_the_leader_may_answer() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let follower = cluster.follower().await;
    let (at_leader, at_follower) = (leader.client(), follower.client());

    // The message carries the address of the client, not of the follower that passed it on.
    let sent = at_follower.call(message("T", 1, "hello", "UNIQ_KEY\u{1}U\u{2}")).await;
    check(&sent, 0, &[("queueId", "1"), ("queueOffset", "0"), ("transactionId", "U")]);
    let pulled = first_message(&at_follower, "T", 1).await;
    check(&pulled, 0, &[("suggestWhichBrokerId", "0"), ("nextBeginOffset", "1")]);
    let record = RecordView::parse(&pulled.body).unwrap();
    assert_ne!(record.born_host(), follower.addr);
    assert_ne!(record.born_host(), leader.addr);
    assert_eq!(record.store_host(), leader.addr);
    settled(&at_leader).await;
    let same = at_leader.call(pull("T", 1, 0, 4, 0)).await;
    assert_eq!(same.body, pulled.body, "the same bytes everywhere");

    // The ids of a large batch make the longest of all headers.
    let mut items = BytesMut::new();
    for _ in 0..2_500 {
        encode_batch_item(&BatchItem { flag: 0, body: b"x", properties: "" }, &mut items).unwrap();
    }
    let batch = message("B", 0, "", "").with_ext("m", "true").with_body(items.freeze());
    let sent = at_follower.call(batch).await;
    check(&sent, 0, &[("queueOffset", "0")]);
    assert_eq!(sent.ext.get("msgId").unwrap().split(',').count(), 2_500);

    // Offsets, locks and administration are the leader's too.
    let consumers = beat_everywhere(&cluster).await;
    let wait = async {
        let config = request(RequestCode::GET_SUBSCRIPTIONGROUP_CONFIG, &[("group", "g")]);
        while !at_leader.call(config.clone()).await.is_success() {
            tokio::task::yield_now().await;
        }
    };
    soon("the group is created", wait).await;
    let commit = offsets(RequestCode::UPDATE_CONSUMER_OFFSET, "g", "T", 1).with_ext("commitOffset", 1);
    check(&at_follower.call(commit).await, 0, &[]);
    let query = offsets(RequestCode::QUERY_CONSUMER_OFFSET, "g", "T", 1);
    check(&at_follower.call(query.clone()).await, 0, &[("offset", "1")]);
    check(&at_leader.call(query).await, 0, &[("offset", "1")]);
    let none = offsets(RequestCode::QUERY_CONSUMER_OFFSET, "g", "T", 2);
    check(&at_follower.call(none).await, 22, &[]);
    let max = request(RequestCode::GET_MAX_OFFSET, &[("topic", "T"), ("queueId", "1")]);
    check(&at_follower.call(max).await, 0, &[("offset", "1")]);
    let create = request(
        RequestCode::UPDATE_AND_CREATE_TOPIC,
        &[("topic", "new"), ("readQueueNums", "2"), ("writeQueueNums", "2"), ("perm", "6")],
    );
    check(&at_follower.call(create).await, 0, &[]);
    check(&at_leader.call(request(RequestCode::GET_TOPIC_CONFIG, &[("topic", "new")])).await, 0, &[]);

    // Only what the leader says moves a consumer; an end that is not reached yet is waited for.
    check(&at_follower.call(pull("T", 1, 9, 4, 0)).await, 21, &[("nextBeginOffset", "1")]);
    check(&at_follower.call(pull("T", 1, 1, 4, 0)).await, 19, &[("nextBeginOffset", "1")]);
    check(&at_follower.call(pull("nowhere", 0, 0, 4, 0)).await, 17, &[]);
    let waiting = at_follower.clone();
    let held = tokio::spawn(async move { waiting.call(pull("T", 1, 1, 6, 15_000)).await });
    let wait = async {
        while follower.group.held_pulls() == 0 {
            tokio::task::yield_now().await;
        }
    };
    soon("the follower holds the pull", wait).await;
    at_leader.call(message("T", 1, "more", "")).await;
    check(&soon("the follower wakes the pull", held).await.unwrap(), 0, &[("nextBeginOffset", "2")]);
    drop(consumers);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_held_through_an_election_and_nothing_is_lost() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.leader().await.client();
    let mut expected = Vec::new();
    for index in 0..5 {
        let body = format!("before {index}");
        check(&client.call(message("T", 0, &body, "")).await, 0, &[]);
        expected.push(body);
    }
    let leader = cluster.leader().await.id;
    let leader = cluster.nodes.remove(&leader).unwrap();
    let client = cluster.nodes.values().next().unwrap().client();
    let kill = tokio::spawn(leader.stop());
    // Sent into the gap: held by the follower until somebody leads.
    for index in 0..5 {
        let body = format!("after {index}");
        let sent = client.call(message("T", 0, &body, "")).await;
        if sent.is_success() {
            expected.push(body);
        } else {
            // Sent to the old leader while it died: a client would send it again.
            assert_eq!(sent.code, 14, "{sent:?}");
        }
    }
    kill.await.unwrap();
    cluster.leader().await;
    check(&client.call(message("T", 0, "last", "")).await, 0, &[]);
    expected.push("last".to_owned());

    let mut found = Vec::new();
    let mut offset = 0;
    while found.last().is_none_or(|body| body != "last") {
        let pulled = client.call(pull("T", 0, offset, 6, 10_000)).await;
        check(&pulled, 0, &[]);
        for record in iter_records(&pulled.body) {
            let record = record.unwrap();
            assert_eq!(record.queue_offset(), offset, "offsets have no holes");
            offset += 1;
            found.push(String::from_utf8(record.body().to_vec()).unwrap());
        }
    }
    found.retain(|body| expected.contains(body));
    assert_eq!(found, expected, "what was acknowledged is there once, in order");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_sends_are_refused_and_offsets_come_from_what_is_stored() {
    let mut cluster = Cluster::start(3).await;
    let follower = cluster.follower().await.id;
    let client = cluster.nodes[&follower].client();
    check(&client.call(message("T", 0, "x", "")).await, 0, &[]);
    let consumers = beat_everywhere(&cluster).await;
    knows(&cluster.nodes[&follower], "g", &["c1"]).await;
    let commit = offsets(RequestCode::UPDATE_CONSUMER_OFFSET, "g", "T", 0).with_ext("commitOffset", 1);
    let wait = async {
        while !client.call(commit.clone()).await.is_success() {
            tokio::task::yield_now().await;
        }
    };
    soon("the offset is committed", wait).await;
    soon("the follower has caught up", cluster.nodes[&follower].group.caught_up()).await;
    first_message(&client, "T", 0).await;
    let others: Vec<u64> = cluster.nodes.keys().copied().filter(|id| *id != follower).collect();
    for id in others {
        cluster.nodes.remove(&id).unwrap().stop().await;
    }
    let node = &cluster.nodes[&follower];
    let mut role = node.raft.role();
    soon("nobody leads", role.wait_for(|role| !role.is_ready_leader() && role.leader().is_none())).await.unwrap();

    let refused = client.call(message("T", 0, "y", "")).await;
    check(&refused, 14, &[]);
    assert!(refused.remark.unwrap().starts_with("not proposed: "));
    let query = |queue_id| offsets(RequestCode::QUERY_CONSUMER_OFFSET, "g", "T", queue_id);
    let (stored, none) = tokio::join!(client.call(query(0)), client.call(query(1)));
    check(&stored, 0, &[("offset", "1")]);
    check(&none, 14, &[]);
    // What is committed can be read, and the end is not beyond doubt: no 21.
    check(&client.call(pull("T", 0, 0, 4, 0)).await, 0, &[]);
    check(&client.call(pull("T", 0, 5, 4, 0)).await, 19, &[("nextBeginOffset", "5")]);
    check(&client.call(heartbeat("c1", "g", "T")).await, 0, &[]);
    assert_eq!(members(&client, "g").await, Some(vec!["c1".to_owned()]));
    drop(consumers);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replica_gives_the_same_member_list() {
    let mut cluster = Cluster::start_some(3, 2).await;
    let mut consumers = beat_everywhere(&cluster).await;
    // A node that starts late was told nothing, and asks its peers.
    cluster.start_node(3).await;
    for node in cluster.nodes.values() {
        knows(node, "g", &["c1"]).await;
    }
    consumers.push(cluster.nodes[&3].client());
    consumers[2].call(heartbeat("c1", "g", "T")).await;
    let leader = cluster.leader().await.id;
    cluster.nodes.remove(&leader).unwrap().stop().await;
    let now = cluster.leader().await;
    knows(now, "g", &["c1"]).await;
    // The new leader creates what the old one may not have had the time for.
    let client = now.client();
    let wait = async {
        while !client.call(request(RequestCode::GET_TOPIC_CONFIG, &[("topic", "%RETRY%g")])).await.is_success() {
            tokio::task::yield_now().await;
        }
    };
    soon("the retry topic is there", wait).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replica_finds_messages_by_place_and_key() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let (leader_id, at_leader) = (leader.id, leader.client());
    let sent = at_leader.call(message("T", 0, "sought", "KEYS\u{1}one two\u{2}UNIQ_KEY\u{1}U1\u{2}")).await;
    check(&sent, 0, &[]);
    let id: OffsetMessageId = sent.ext.get("msgId").unwrap().parse().unwrap();
    let view = request(RequestCode::VIEW_MESSAGE_BY_ID, &[]).with_ext("offset", id.physical_offset);
    let query = |key: &str| {
        request(RequestCode::QUERY_MESSAGE, &[("topic", "T"), ("key", key), ("maxNum", "8")])
            .with_ext("beginTimestamp", 0)
            .with_ext("endTimestamp", i64::MAX)
    };
    let stored = first_message(&at_leader, "T", 0).await.body;
    let finds = async |client: &Client| {
        // A replica has it within moments of its leader, and its keys behind its place.
        for (what, asked) in
            [("place", view.clone()), ("one", query("one")), ("two", query("two")), ("U1", query("U1"))]
        {
            let wait = async {
                loop {
                    let found = client.call(asked.clone()).await;
                    if found.is_success() {
                        return found;
                    }
                    tokio::task::yield_now().await;
                }
            };
            assert_eq!(soon(what, wait).await.body, stored, "{what}: the bytes of the leader");
        }
    };
    for node in cluster.nodes.values() {
        finds(&node.client()).await;
        // It has the message itself, and its keys.
        let own = async {
            node.group.caught_up().await;
            check(&first_message(&node.client(), "T", 0).await, 0, &[]);
        };
        soon("each has it", own).await;
    }
    // With one of two that are left gone as well, nobody leads, and the last one still finds them.
    cluster.nodes.remove(&leader_id).unwrap().stop().await;
    let second = *cluster.nodes.keys().next().unwrap();
    cluster.nodes.remove(&second).unwrap().stop().await;
    let last = cluster.nodes.values().next().unwrap().client();
    finds(&last).await;
    cluster.stop().await;
}
