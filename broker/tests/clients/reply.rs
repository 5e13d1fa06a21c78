//! Requests between clients: the reply finds its requester.

use protocol::header::PushReplyRequest;
use protocol::message::{Properties, RecordView};
use protocol::{RemotingCommand, RequestCode};

use crate::cluster::{Client, Cluster};
use crate::requests::{check, message, pull};
use crate::transaction::producer;

const TOPIC: &str = "DefaultCluster_REPLY_TOPIC";

fn reply(to: &str, body: &str) -> RemotingCommand {
    let properties =
        format!("CORRELATION_ID\u{1}i\u{2}REPLY_TO_CLIENT\u{1}{to}\u{2}MSG_TYPE\u{1}reply\u{2}TTL\u{1}4000\u{2}");
    let mut reply = message(TOPIC, 0, body, &properties);
    reply.code = RequestCode::SEND_REPLY_MESSAGE_V2.0;
    reply
}

/// What the requester got.
async fn pushed(requester: &Client) -> (PushReplyRequest, RemotingCommand) {
    let push = requester.asked(RequestCode::PUSH_REPLY_MESSAGE_TO_CLIENT).await;
    (PushReplyRequest::decode(&push).unwrap(), push)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_is_pushed_to_its_requester_and_stored() {
    let cluster = Cluster::start(1).await;
    let node = cluster.leader().await;
    let requester = node.client();
    check(&requester.call(producer("requester", "askers")).await, 0, &[]);
    let responder = node.client();
    let answer = responder.call(reply("requester", "the answer")).await;
    let fields = [("queueId", "0"), ("queueOffset", "0"), ("MSG_REGION", "DefaultRegion"), ("TRACE_ON", "true")];
    check(&answer, 0, &fields);
    assert_eq!(answer.ext.get("transactionId"), None);
    let (header, push) = pushed(&requester).await;
    assert_eq!(push.body, "the answer");
    assert!(!push.is_oneway());
    assert_eq!((header.topic.as_str(), header.producer_group.as_str()), (TOPIC, "p"));
    assert_eq!((header.queue_id, header.flag, header.born_timestamp), (0, 5, 1_700_000_000_000));
    assert_eq!(header.store_host, node.addr.to_string());
    assert!(header.born_host.starts_with("127.0.0.1:"));
    let properties = header.properties.unwrap();
    let properties = Properties::new(&properties);
    let names = ["CORRELATION_ID", "REPLY_TO_CLIENT", "MSG_TYPE", "TTL", "MSG_REGION", "TRACE_ON"];
    let found = names.map(|name| properties.get(name).unwrap_or_default());
    assert_eq!(found, ["i", "requester", "reply", "4000", "DefaultRegion", "true"]);
    assert!(properties.get("PUSH_REPLY_TIME").unwrap().parse::<i64>().unwrap() >= header.store_timestamp);
    assert_eq!(properties.get("CLUSTER"), None);

    let pulled = responder.call(pull(TOPIC, 0, 0, 6, 10_000)).await;
    check(&pulled, 0, &[]);
    assert_eq!(RecordView::parse(&pulled.body).unwrap().body(), b"the answer");

    // The long form, and nothing to say.
    let mut empty = reply("requester", "");
    let long = [
        ("a", "producerGroup"),
        ("b", "topic"),
        ("c", "defaultTopic"),
        ("d", "defaultTopicQueueNums"),
        ("e", "queueId"),
        ("f", "sysFlag"),
        ("g", "bornTimestamp"),
        ("h", "flag"),
        ("i", "properties"),
    ];
    for (letter, name) in long {
        let value = empty.ext.get(letter).unwrap().to_owned();
        empty.ext.push(name, &value);
    }
    empty.code = RequestCode::SEND_REPLY_MESSAGE.0;
    check(&responder.call(empty).await, 0, &[("queueOffset", "1")]);
    assert_eq!(pushed(&requester).await.1.body, "");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_to_nobody_is_an_error_and_stored_all_the_same() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    let answer = client.call(reply("nobody", "x")).await;
    check(&answer, 1, &[("queueId", "0"), ("queueOffset", "0")]);
    assert!(answer.remark.unwrap().contains("nobody fail: the client is not connected"));
    // One that was connected once is nobody too.
    let requester = cluster.leader().await.client();
    check(&requester.call(producer("gone", "askers")).await, 0, &[]);
    let unregister = [("clientID", "gone"), ("producerGroup", "askers")];
    check(&requester.call(crate::requests::request(RequestCode::UNREGISTER_CLIENT, &unregister)).await, 0, &[]);
    check(&client.call(reply("gone", "x")).await, 1, &[("queueOffset", "1")]);
    let mut lost = reply("nobody", "x");
    lost.ext.push("i", "MSG_TYPE\u{1}reply\u{2}");
    let answer = client.call(lost).await;
    check(&answer, 1, &[]);
    assert_eq!(answer.ext.get("msgId"), None);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_finds_a_requester_of_any_replica_though_the_leader_goes() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await.id;
    let follower = cluster.follower().await.id;
    let requester = cluster.nodes[&follower].client();
    check(&requester.call(producer("requester", "askers")).await, 0, &[]);
    for sent_to in [leader, follower] {
        let answer = cluster.nodes[&sent_to].client().call(reply("requester", "before")).await;
        check(&answer, 0, &[]);
        let (_, push) = pushed(&requester).await;
        assert_eq!(push.body, "before");
        assert_eq!(push.ext.get("relayedClient"), None);
    }
    check(&cluster.nodes[&follower].client().call(reply("nobody", "x")).await, 1, &[("queueOffset", "2")]);
    cluster.nodes.remove(&leader).unwrap().stop().await;
    // Whoever leads now, and through whatever replica it comes.
    for node in cluster.nodes.values() {
        let answer = node.client().call(reply("requester", "after")).await;
        check(&answer, 0, &[]);
        assert_eq!(pushed(&requester).await.1.body, "after");
    }
    cluster.stop().await;
}
