//! The leader dies when it has proposed an entry and not answered yet: the entry is on its own disk alone, or on all
//! disks without its knowing. Whoever leads next does the work, or finds it done: never twice.

use std::net::SocketAddr;

use broker::processor::DelayedMessages;
use protocol::header::TransactionEnd;
use protocol::message::RecordView;
use protocol::{RemotingCommand, RequestCode};

use crate::cluster::{Client, Cluster, Node, soon};
use crate::delay::{now_ms, read};
use crate::link::Passes;
use crate::requests::{check, group_exists, heartbeat, message, pull, request, settled};
use crate::timer::{recall, send};
use crate::transaction::{end, send_half};

/// Where the entry is when the leader dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// It is lost with the leader.
    OnlyHere,
    /// It outlives the leader, which never learned that.
    Everywhere,
}

const MOMENTS: [Moment; 2] = [Moment::OnlyHere, Moment::Everywhere];

/// Lets the leader propose one entry more, and kills it at that moment. Returns the address of the dead leader.
async fn kill(cluster: &mut Cluster, moment: Moment, provoke: impl AsyncFnOnce(&Client)) -> SocketAddr {
    let (leader, addr) = {
        let leader = cluster.leader().await;
        (leader.id, leader.addr)
    };
    let client = cluster.nodes[&leader].client();
    let last = |node: &Node| node.raft.metrics().last;
    let before = last(&cluster.nodes[&leader]);
    let all_have = |wanted: &dyn Fn(&Node) -> bool| cluster.nodes.values().all(wanted);
    let equal = async {
        while !all_have(&|node| last(node) >= before) {
            tokio::task::yield_now().await;
        }
    };
    soon("all have the same log", equal).await;
    let passes = match moment {
        Moment::OnlyHere => Passes::OnlyAnswers,
        Moment::Everywhere => Passes::OnlyRequests,
    };
    for (_, link) in cluster.links.iter().filter(|(id, _)| **id != leader) {
        link.cut(passes);
    }
    provoke(&client).await;
    let reached = async {
        while !all_have(&|node| last(node) > before || (moment == Moment::OnlyHere && node.id != leader)) {
            tokio::task::yield_now().await;
        }
    };
    soon("the entry is where it should be", reached).await;
    if moment == Moment::OnlyHere {
        let others = cluster.nodes.values().filter(|node| node.id != leader);
        assert!(others.into_iter().all(|node| last(node) == before), "the others do not have it");
    }
    cluster.nodes.remove(&leader).unwrap().stop().await;
    // The others hear each other again before they see it dead, so they can agree at once that it is.
    for link in cluster.links.values() {
        link.mend();
    }
    drop(cluster.links.remove(&leader));
    addr
}

/// The only message of a queue, which the one who made the entry has stored: the dead leader or the next one.
async fn check_single(cluster: &Cluster, moment: Moment, dead: SocketAddr, queue: (&str, i32), body: &str) {
    let (topic, queue_id) = queue;
    let leader = cluster.leader().await;
    let client = leader.client();
    let stored_by = if moment == Moment::Everywhere { dead } else { leader.addr };
    read(&client, topic, queue_id, 1, |record: &RecordView<'_>| {
        assert_eq!(record.body(), body.as_bytes());
        assert_eq!(record.store_host(), stored_by, "{moment:?}");
    })
    .await;
    settled(&client).await;
    check(&client.call(pull(topic, queue_id, 1, 4, 0)).await, 19, &[]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_message_is_moved_once() {
    for moment in MOMENTS {
        let mut cluster = Cluster::start_linked(3).await;
        let client = cluster.leader().await.client();
        check(&client.call(message("T", 0, "later", "DELAY\u{1}1\u{2}")).await, 0, &[]);
        let dead = kill(&mut cluster, moment, async |_| {}).await;
        check_single(&cluster, moment, dead, ("T", 0), "later").await;
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_message_is_moved_once() {
    for moment in MOMENTS {
        let mut cluster = Cluster::start_linked(3).await;
        let client = cluster.leader().await.client();
        let handle = send(&client, 0, "later", "TIMER_DELAY_MS\u{1}1000\u{2}").await;
        let dead = kill(&mut cluster, moment, async |_| {}).await;
        check_single(&cluster, moment, dead, ("T", 0), "later").await;
        check(&cluster.leader().await.client().call(recall("T", &handle)).await, 604, &[]);
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retried_message_is_moved_once() {
    for moment in MOMENTS {
        let mut cluster = Cluster::start_linked(3).await;
        let client = cluster.leader().await.client();
        check(&client.call(heartbeat("c", "g", "T")).await, 0, &[]);
        group_exists(&client, "g").await;
        check(&client.call(message("T", 0, "again", "")).await, 0, &[]);
        let mut place = 0;
        read(&client, "T", 0, 1, |record| place = record.physical_offset()).await;
        let back = request(RequestCode::CONSUMER_SEND_MSG_BACK, &[("group", "g"), ("originTopic", "T")])
            .with_ext("offset", place)
            .with_ext("delayLevel", 0)
            .with_ext("maxReconsumeTimes", 16);
        check(&client.call(back).await, 0, &[]);
        let dead = kill(&mut cluster, moment, async |_| {}).await;
        check_single(&cluster, moment, dead, ("%RETRY%g", 0), "again").await;
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_is_committed_once() {
    for moment in MOMENTS {
        let mut cluster = Cluster::start_linked(3).await;
        let client = cluster.leader().await.client();
        let place = send_half(&client, "p", "1").await;
        let commit: RemotingCommand = end("p", place, TransactionEnd::COMMIT);
        let oneway = commit.clone();
        let dead = kill(&mut cluster, moment, async |client| client.send_oneway(oneway).await).await;
        // The producer, which had no answer, says it again; and it might say something else.
        let client = cluster.leader().await.client();
        let code = if moment == Moment::Everywhere { 1 } else { 0 };
        check(&client.call(commit).await, code, &[]);
        check(&client.call(end("p", place, TransactionEnd::ROLLBACK)).await, 1, &[]);
        check_single(&cluster, moment, dead, ("T", 2), "1").await;
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_is_rolled_back_once() {
    for moment in MOMENTS {
        let mut cluster = Cluster::start_linked(3).await;
        let client = cluster.leader().await.client();
        let place = send_half(&client, "p", "1").await;
        let rollback: RemotingCommand = end("p", place, TransactionEnd::ROLLBACK);
        kill(&mut cluster, moment, async |client| client.send_oneway(rollback).await).await;
        let client = cluster.leader().await.client();
        // What the dead leader did stands; what it could not do is still open.
        let committed = client.call(end("p", place, TransactionEnd::COMMIT)).await;
        let expected = if moment == Moment::Everywhere { (1, 19) } else { (0, 0) };
        check(&committed, expected.0, &[]);
        settled(&client).await;
        check(&client.call(pull("T", 2, 0, 4, 0)).await, expected.1, &[]);
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_message_is_recalled_or_comes() {
    for moment in MOMENTS {
        let mut cluster = Cluster::start_linked(3).await;
        let client = cluster.leader().await.client();
        let due = now_ms() + 3_600_000;
        let handle = send(&client, 0, "later", &format!("TIMER_DELIVER_MS\u{1}{due}\u{2}")).await;
        let taken_back = recall("T", &handle);
        let again = taken_back.clone();
        kill(&mut cluster, moment, async |client| client.send_oneway(taken_back).await).await;
        let leader = cluster.leader().await;
        let waiting = leader.group.delayed_messages().timers;
        assert_eq!(waiting, if moment == Moment::Everywhere { 0 } else { 1 });
        // Who had no answer asks again, and learns that it does not come.
        check(&leader.client().call(again).await, 0, &[("msgId", "Ulater")]);
        assert_eq!(leader.group.delayed_messages().timers, 0);
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_moves_within_the_log_comes_once() {
    for (moment, waits) in MOMENTS
        .into_iter()
        .flat_map(|moment| ["TIMER_DELAY_MS\u{1}6000\u{2}", "DELAY\u{1}5\u{2}"].map(|waits| (moment, waits)))
    {
        let mut cluster = Cluster::start_linked(3).await;
        let leader = cluster.leader().await;
        let client = leader.client();
        let due = now_ms() + 6_000;
        check(&client.call(message("T", 0, "later", waits)).await, 0, &[]);
        settled(&client).await;
        let group = leader.group.clone();
        kill(&mut cluster, moment, async |_| drop(tokio::spawn(async move { group.carry_waiting(u64::MAX).await })))
            .await;
        let client = cluster.leader().await.client();
        read(&client, "T", 0, 1, |record| {
            assert_eq!(record.body(), b"later");
            assert!(record.store_timestamp() >= due, "{moment:?} {waits:?}: it came early");
        })
        .await;
        settled(&client).await;
        check(&client.call(pull("T", 0, 1, 4, 0)).await, 19, &[]);
        assert_eq!(cluster.leader().await.group.delayed_messages(), DelayedMessages::default());
        cluster.stop().await;
    }
}
