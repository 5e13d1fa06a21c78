//! Leaders that go while clients are at work: what was answered holds, at whatever moment that happens.
//!
//! Five nodes lose two leaders, one after the other. Each worker below does one thing over and over through all nodes
//! that are left, and keeps what it was told; whatever was answered with success must be true from then on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use protocol::body::{LockRequest, LockResponse, MessageQueue, SubscriptionGroupConfig, TopicConfig};
use protocol::message::iter_records;
use protocol::{RemotingCommand, RequestCode};

use crate::cluster::{BROKER, Client, Cluster, soon};
use crate::requests::{check, heartbeat, message, offsets, pull, request};

const NODES: u64 = 5;
const KILLS: usize = 2;
/// Successes of each worker before a leader goes, and after.
const STEPS: usize = 12;
const QUEUES: i32 = 4;

/// All nodes, those that have gone included, and what the workers have done.
#[derive(Clone)]
struct Load {
    clients: Arc<Vec<Client>>,
    over: Arc<AtomicBool>,
}

impl Load {
    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::SeqCst)
    }

    /// Asks one node after the other until one answers with success.
    async fn call(&self, turn: &mut usize, request: &RemotingCommand) -> RemotingCommand {
        let work = async {
            loop {
                *turn += 1;
                let client = &self.clients[*turn % self.clients.len()];
                match client.try_call(request.clone()).await {
                    Some(answer) if answer.is_success() => return answer,
                    // Gone, or nobody leads: the outcome is not known.
                    _ => tokio::task::yield_now().await,
                }
            }
        };
        soon("a node answers", work).await
    }
}

/// Has `work` done, step by step, while leaders go; returns the cluster and what `work` kept.
async fn through_kills<T: Send + 'static>(
    work: impl FnOnce(Load, Arc<AtomicUsize>) -> BoxFuture<'static, T>,
) -> (Cluster, T) {
    let mut cluster = Cluster::start(NODES).await;
    let first = cluster.leader().await.client();
    check(&first.call(message("T", 0, "first", "")).await, 0, &[]);
    for node in cluster.nodes.values() {
        check(&node.client().call(heartbeat("c1", "g", "T")).await, 0, &[]);
    }
    let clients = cluster.nodes.values().map(|node| node.client()).collect();
    let load = Load { clients: Arc::new(clients), over: Arc::default() };
    let steps = Arc::new(AtomicUsize::new(0));
    let worker = tokio::spawn(work(load.clone(), Arc::clone(&steps)));
    let more_steps = async || {
        let enough = steps.load(Ordering::SeqCst) + STEPS;
        let wait = async {
            while steps.load(Ordering::SeqCst) < enough && !worker.is_finished() {
                tokio::task::yield_now().await;
            }
        };
        soon("the worker gets on", wait).await;
    };
    for _ in 0..KILLS {
        more_steps().await;
        cluster.lose_leader().await;
    }
    more_steps().await;
    load.over.store(true, Ordering::SeqCst);
    let kept = soon("the worker ends", worker).await.unwrap();
    (cluster, kept)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_are_dense_and_never_used_twice() {
    let (cluster, kept) = through_kills(|load, steps| {
        // Several senders, so that a leader goes with messages of each state on their way.
        let senders = (0..4).map(move |sender| {
            let (load, steps) = (load.clone(), Arc::clone(&steps));
            tokio::spawn(async move {
                let mut kept = BTreeMap::new();
                let mut turn = sender;
                for number in 0.. {
                    if !load.goes_on() {
                        break;
                    }
                    let body = format!("{sender}:{number}");
                    let answer = load.call(&mut turn, &message("T", 1, &body, "")).await;
                    let offset: i64 = answer.ext.get("queueOffset").unwrap().parse().unwrap();
                    assert_eq!(kept.insert(offset, body), None, "an offset was given out twice");
                    steps.fetch_add(1, Ordering::SeqCst);
                }
                kept
            })
        });
        futures::future::join_all(senders).boxed()
    })
    .await;
    let mut acknowledged = BTreeMap::new();
    for (offset, body) in kept.into_iter().flat_map(Result::unwrap) {
        assert_eq!(acknowledged.insert(offset, body), None, "an offset was given out twice");
    }
    cluster.leader().await;
    // Every node that is left has the same messages.
    for node in cluster.nodes.values() {
        let client = node.client();
        let last = *acknowledged.last_key_value().unwrap().0;
        let mut found = BTreeMap::new();
        let mut offset = 0;
        while offset <= last {
            let pulled = client.call(pull("T", 1, offset, 6, 10_000)).await;
            check(&pulled, 0, &[]);
            for record in iter_records(&pulled.body) {
                let record = record.unwrap();
                assert_eq!(record.queue_offset(), offset, "offsets have no holes");
                found.insert(offset, String::from_utf8(record.body().to_vec()).unwrap());
                offset += 1;
            }
        }
        for (offset, body) in &acknowledged {
            assert_eq!(found.get(offset), Some(body), "node {} at {offset}", node.id);
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_offsets_never_go_back() {
    let (cluster, ()) = through_kills(|load, steps| {
        async move {
            let mut turn = 0;
            let commit = offsets(RequestCode::UPDATE_CONSUMER_OFFSET, "g", "T", 2);
            let query = offsets(RequestCode::QUERY_CONSUMER_OFFSET, "g", "T", 2);
            while load.goes_on() {
                let sent = load.call(&mut turn, &message("T", 2, "x", "")).await;
                let place: i64 = sent.ext.get("queueOffset").unwrap().parse::<i64>().unwrap() + 1;
                load.call(&mut turn, &commit.clone().with_ext("commitOffset", place)).await;
                // Whoever is asked, leader or not, and however soon after the last one went.
                for _ in 0..load.clients.len() {
                    let answer = load.call(&mut turn, &query).await;
                    let found: i64 = answer.ext.get("offset").unwrap().parse().unwrap();
                    assert_eq!(found, place, "the only consumer committed {place}");
                }
                steps.fetch_add(1, Ordering::SeqCst);
            }
        }
        .boxed()
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_and_groups_that_were_answered_stay() {
    let (cluster, kept) = through_kills(|load, steps| {
        async move {
            let mut turn = 0;
            let put = |topic: &str, queues: i32| {
                request(RequestCode::UPDATE_AND_CREATE_TOPIC, &[("topic", topic), ("perm", "6")])
                    .with_ext("readQueueNums", queues)
                    .with_ext("writeQueueNums", queues)
            };
            let mut number = 0;
            while load.goes_on() {
                number += 1;
                // One is new each time, one changes each time, and one goes again.
                load.call(&mut turn, &put(&format!("new{number}"), 3)).await;
                load.call(&mut turn, &put("changes", 1 + number)).await;
                load.call(&mut turn, &put(&format!("gone{number}"), 3)).await;
                let gone = format!("gone{number}");
                let gone = request(RequestCode::DELETE_TOPIC_IN_BROKER, &[("topic", gone.as_str())]);
                load.call(&mut turn, &gone).await;
                let group = SubscriptionGroupConfig {
                    retry_max_times: number,
                    ..SubscriptionGroupConfig::new(&format!("group{number}"))
                };
                let request = RemotingCommand::request(RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP);
                load.call(&mut turn, &request.with_body(group.encode())).await;
                steps.fetch_add(1, Ordering::SeqCst);
            }
            number
        }
        .boxed()
    })
    .await;
    let client = cluster.leader().await.client();
    let topic = async |name: &str| {
        let answer = client.call(request(RequestCode::GET_TOPIC_CONFIG, &[("topic", name)])).await;
        answer.is_success().then(|| TopicConfig::decode(&answer.body).unwrap().write_queue_nums)
    };
    assert_eq!(topic("changes").await, Some(1 + kept));
    for number in 1..=kept {
        assert_eq!(topic(&format!("new{number}")).await, Some(3), "new{number}");
        assert_eq!(topic(&format!("gone{number}")).await, None, "gone{number}");
        let name = format!("group{number}");
        let answer = client.call(request(RequestCode::GET_SUBSCRIPTIONGROUP_CONFIG, &[("group", name.as_str())])).await;
        check(&answer, 0, &[]);
        assert_eq!(SubscriptionGroupConfig::decode(&answer.body).unwrap().retry_max_times, number);
    }
    cluster.stop().await;
}

fn lock_body(client_id: &str) -> LockRequest {
    let queue = |queue_id| MessageQueue { broker_name: BROKER.to_owned(), topic: "T".to_owned(), queue_id };
    LockRequest {
        consumer_group: "g".to_owned(),
        client_id: client_id.to_owned(),
        mq_set: (0..QUEUES).map(queue).collect(),
        only_this_broker: false,
    }
}

/// The queues that `client_id` holds after it asked for all of them.
async fn lock(load: &Load, turn: &mut usize, client_id: &str) -> Vec<i32> {
    let request = RemotingCommand::request(RequestCode::LOCK_BATCH_MQ).with_body(lock_body(client_id).encode());
    let answer = load.call(turn, &request).await;
    let mut held: Vec<i32> =
        LockResponse::decode(&answer.body).unwrap().locked.iter().map(|queue| queue.queue_id).collect();
    held.sort_unstable();
    held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_never_has_two_owners() {
    let (cluster, ()) = through_kills(|load, steps| {
        async move {
            let all: Vec<i32> = (0..QUEUES).collect();
            let (mut owner, mut other) = ("c1", "c2");
            let mut turn = 0;
            assert_eq!(lock(&load, &mut turn, owner).await, all);
            while load.goes_on() {
                // A lease is good at every node, also at one that leads since a moment ago.
                for _ in 0..load.clients.len() {
                    assert_eq!(lock(&load, &mut turn, other).await, Vec::<i32>::new(), "{owner} holds all queues");
                }
                assert_eq!(lock(&load, &mut turn, owner).await, all, "they are still those of {owner}");
                // Handed over, they are the other's, and only its.
                let unlock = RemotingCommand::request(RequestCode::UNLOCK_BATCH_MQ);
                load.call(&mut turn, &unlock.with_body(lock_body(owner).encode())).await;
                std::mem::swap(&mut owner, &mut other);
                assert_eq!(lock(&load, &mut turn, owner).await, all, "they were unlocked for {owner}");
                steps.fetch_add(1, Ordering::SeqCst);
            }
        }
        .boxed()
    })
    .await;
    cluster.stop().await;
}
