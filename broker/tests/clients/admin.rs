//! What tools change while a broker runs.

use bytes::BytesMut;
use protocol::body::{SubscriptionGroupConfig, decode_config_text};
use protocol::message::{BatchItem, encode_batch_item};
use protocol::{RemotingCommand, RequestCode};

use crate::cluster::{Client, Cluster, TRANSACTIONS, soon};
use crate::requests::{check, message, pull, request, settled};

fn change(settings: &str) -> RemotingCommand {
    RemotingCommand::request(RequestCode::UPDATE_BROKER_CONFIG).with_body(settings.to_owned())
}

async fn setting(client: &Client, key: &str) -> String {
    let answer = client.call(RemotingCommand::request(RequestCode::GET_BROKER_CONFIG)).await;
    decode_config_text(&answer.body).unwrap().remove(key).unwrap_or_default()
}

/// Waits until a replica has a value.
async fn shows(client: &Client, key: &str, value: &str) {
    let wait = async {
        while setting(client, key).await != value {
            tokio::task::yield_now().await;
        }
    };
    soon("the setting is there", wait).await;
}

fn topic(name: &str, order: bool) -> RemotingCommand {
    request(
        RequestCode::UPDATE_AND_CREATE_TOPIC,
        &[("topic", name), ("defaultTopic", "TBW102"), ("perm", "6"), ("topicFilterType", "SINGLE_TAG")],
    )
    .with_ext("readQueueNums", 1)
    .with_ext("writeQueueNums", 1)
    .with_ext("order", order)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_setting_that_was_changed_is_in_force_everywhere_and_after_a_failover() {
    let mut cluster = Cluster::start(3).await;
    let clients: Vec<Client> = cluster.nodes.values().map(|node| node.client()).collect();
    let at_follower = cluster.follower().await.client();
    check(&at_follower.call(change("autoCreateTopicEnable=false\nmaxMessageSize=2000\n")).await, 0, &[]);
    for client in &clients {
        shows(client, "autoCreateTopicEnable", "false").await;
        shows(client, "maxMessageSize", "2000").await;
    }
    check(&at_follower.call(message("New", 0, "x", "")).await, 17, &[]);
    check(&at_follower.call(message("BenchmarkTest", 0, &"x".repeat(2_001), "")).await, 13, &[]);
    check(&at_follower.call(message("BenchmarkTest", 0, &"x".repeat(2_000), "")).await, 0, &[]);

    let client = cluster.lose_leader().await;
    assert_eq!(setting(&client, "maxMessageSize").await, "2000");
    check(&client.call(message("New", 0, "x", "")).await, 17, &[]);
    // An empty value takes the change back.
    check(&client.call(change("autoCreateTopicEnable=\nmaxMessageSize=")).await, 0, &[]);
    assert_eq!(setting(&client, "maxMessageSize").await, (4 << 20).to_string());
    check(&client.call(message("New", 0, "x", "")).await, 0, &[]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_are_changed_all_or_none_and_only_those_that_may_be() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    let refused = async |settings: &str, code: i32, words: &str| {
        let answer = client.call(change(settings)).await;
        check(&answer, code, &[]);
        let remark = answer.remark.unwrap_or_default();
        assert!(remark.contains(words), "{settings}: {remark}");
    };
    refused("", 29, "key=value").await;
    refused("transactionCheckMax=0", 29, "1 to 1000").await;
    refused("brokerPermission=3", 29, "2 (write), 4 (read) or 6 (both)").await;
    refused("defaultTopicQueueNums=many", 29, "1 to 1024").await;
    refused("transactionCheckMax=4\nautoCreateTopicEnable=yes", 29, "true or false").await;
    refused("transactionCheckMax=4\nstorePathRootDir=/tmp", 16, "conf/broker.toml").await;
    refused("flushDiskType=ASYNC_FLUSH", 16, "gantry flush").await;
    refused("timerMaxDelaySec=60", 16, "broker.timer_delay_max").await;
    assert_eq!(setting(&client, "transactionCheckMax").await, TRANSACTIONS.check_max.to_string());
    check(&client.call(change("transactionCheckMax=7\n# a comment\ntransactionTimeOut=700")).await, 0, &[]);
    assert_eq!(setting(&client, "transactionCheckMax").await, "7");
    assert_eq!(setting(&client, "transactionTimeOut").await, "700");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_may_be_closed_for_writing_or_for_reading() {
    let cluster = Cluster::start(1).await;
    let node = cluster.leader().await;
    let client = node.client();
    check(&client.call(topic("Plain", false)).await, 0, &[]);
    check(&client.call(topic("Ordered", true)).await, 0, &[]);
    assert_eq!(node.group.route_permission(6), 6);
    check(&client.call(change("brokerPermission=4")).await, 0, &[]);
    assert_eq!(node.group.route_permission(6), 4);
    // Producers that still have the old route go on; ordered ones would not notice otherwise.
    check(&client.call(message("Plain", 0, "x", "")).await, 0, &[]);
    check(&client.call(message("Ordered", 0, "x", "")).await, 16, &[]);
    settled(&client).await;
    check(&client.call(pull("Plain", 0, 0, 4, 0)).await, 0, &[]);
    check(&client.call(change("brokerPermission=2")).await, 0, &[]);
    check(&client.call(pull("Plain", 0, 0, 4, 0)).await, 16, &[]);
    check(&client.call(message("Ordered", 0, "x", "")).await, 0, &[]);
    settled(&client).await;
    check(&client.call(change("brokerPermission=6")).await, 0, &[]);
    check(&client.call(pull("Ordered", 0, 0, 4, 0)).await, 0, &[]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_reads_from_the_follower_that_its_configuration_names() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let (client, leader_id) = (leader.client(), leader.id);
    for body in ["a", "b"] {
        check(&client.call(message("T", 0, body, "")).await, 0, &[]);
    }
    settled(&client).await;
    let put = |broker_id: u64| {
        let config = SubscriptionGroupConfig {
            broker_id: broker_id.cast_signed(),
            which_broker_when_consume_slowly: 1,
            ..SubscriptionGroupConfig::new("g")
        };
        RemotingCommand::request(RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP).with_body(config.encode())
    };
    let followers: Vec<u64> = cluster.nodes.keys().copied().filter(|id| *id != leader_id).collect();
    for named in 1..=3 {
        check(&client.call(put(named)).await, 0, &[]);
        // The leader does not serve as a follower: the next one is meant.
        let meant = followers.iter().find(|id| **id >= named).unwrap_or(&followers[0]).to_string();
        let wait = async {
            // A follower is named once it has been heard of.
            loop {
                let answer = client.call(pull("T", 0, 0, 4, 0)).await;
                if answer.ext.get("suggestWhichBrokerId") != Some("0") {
                    return answer;
                }
                tokio::task::yield_now().await;
            }
        };
        let answer = soon("a follower is suggested", wait).await;
        check(&answer, 0, &[("suggestWhichBrokerId", &meant)]);
        let at_follower = cluster.nodes[&meant.parse().unwrap()].client();
        let wait = async {
            loop {
                let there = at_follower.call(pull("T", 0, 0, 4, 0)).await;
                if there.ext.get("suggestWhichBrokerId") == Some(&meant) {
                    return there;
                }
                tokio::task::yield_now().await;
            }
        };
        let there = soon("the follower has the group's configuration", wait).await;
        assert_eq!((there.code, &there.body), (0, &answer.body), "the same messages");
        // It waits there, too, and is woken by what the leader accepts.
        let next = 1 + i64::try_from(named).unwrap();
        let waiting = at_follower.call(pull("T", 0, next, 6, 10_000));
        let new = message("T", 0, "c", "");
        let (woken, sent) = tokio::join!(waiting, client.call(new));
        check(&sent, 0, &[]);
        check(&woken, 0, &[("suggestWhichBrokerId", &meant), ("nextBeginOffset", &(next + 1).to_string())]);
        settled(&client).await;
    }
    check(&client.call(put(0)).await, 0, &[]);
    check(&client.call(pull("T", 0, 0, 4, 0)).await, 0, &[("suggestWhichBrokerId", "0")]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_lags_far_behind_is_sent_to_a_follower_if_an_operator_wants_that() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let client = leader.client();
    // So many that the oldest have left the memory for queue entries.
    let mut items = BytesMut::new();
    for _ in 0..1_000 {
        encode_batch_item(&BatchItem { flag: 0, body: b"x", properties: "" }, &mut items).unwrap();
    }
    let items = items.freeze();
    for _ in 0..5 {
        check(&client.call(message("T", 0, "", "").with_ext("m", "true").with_body(items.clone())).await, 0, &[]);
    }
    settled(&client).await;
    let suggested = async |offset: i64| {
        let answer = client.call(pull("T", 0, offset, 4, 0)).await;
        check(&answer, 0, &[]);
        answer.ext.get("suggestWhichBrokerId").unwrap().to_owned()
    };
    let put = |when_slow: i64| {
        let config = SubscriptionGroupConfig {
            which_broker_when_consume_slowly: when_slow,
            ..SubscriptionGroupConfig::new("g")
        };
        RemotingCommand::request(RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP).with_body(config.encode())
    };
    let followers: Vec<u64> = cluster.nodes.keys().copied().filter(|id| *id != leader.id).collect();
    let named = followers[1];
    check(&client.call(put(named.cast_signed())).await, 0, &[]);
    assert_eq!(suggested(0).await, "0", "nobody allowed followers to serve consumers");
    check(&client.call(change("slaveReadEnable=true")).await, 0, &[]);
    let wait = async {
        // A follower is named once it has been heard of.
        while suggested(0).await == "0" {
            tokio::task::yield_now().await;
        }
    };
    soon("a follower is suggested", wait).await;
    assert_eq!(suggested(0).await, named.to_string());
    assert_eq!(suggested(4_960).await, "0", "whoever keeps up stays with the leader");
    let at_follower = cluster.nodes[&named].client();
    settled_at(&at_follower, 5_000).await;
    let (here, there) = (client.call(pull("T", 0, 0, 4, 0)).await, at_follower.call(pull("T", 0, 0, 4, 0)).await);
    assert_eq!((there.code, &there.body), (0, &here.body), "the same messages");
    check(&client.call(put(0)).await, 0, &[]);
    assert_eq!(suggested(0).await, "0");
    cluster.stop().await;
}

/// Waits until a replica shows `count` messages in the first queue.
async fn settled_at(client: &Client, count: i64) {
    let wait = async {
        while client.call(pull("T", 0, count - 1, 4, 0)).await.code != 0 {
            tokio::task::yield_now().await;
        }
    };
    soon("the follower has everything", wait).await;
}
