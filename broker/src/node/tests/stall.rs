//! A disk that stops answering, or fails.

use super::retire::{Cluster, send, soon, stored};
use super::*;
use crate::node::group::Running;

/// Whoever leads with its gates open and is not `former`.
async fn another_leader(cluster: &Cluster, former: u64) -> Arc<Running> {
    loop {
        let running = (1..=3).filter_map(|at| cluster.group(at).running());
        let mut others = running.filter(|running| running.node_id() != former);
        if let Some(next) = others.find(|running| running.raft.role().borrow().is_ready_leader()) {
            return next;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Its network is fine and its process lives, so nobody else would ever notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_does_not_answer_hands_over_and_nothing_is_lost() {
    let cluster = Cluster::start("sync").await;
    let leader = cluster.leader().await;
    assert_eq!(Some(0), send(&leader, 0).await);
    leader.log.hold_syncs(true);
    // This makes it write. The others have it, so it may be acknowledged or not.
    let written = tokio::spawn({
        let leader = Arc::clone(&leader);
        async move { send(&leader, 1).await }
    });
    let next = soon("another one leads", another_leader(&cluster, leader.node_id())).await;
    let after = send(&next, 2).await.expect("the others are a majority");
    leader.log.hold_syncs(false);
    let written = soon("an answer", written).await.unwrap();
    let last = next.log.watermarks().last.unwrap().index.get();
    soon("dispatch", next.store.wait_dispatched(last)).await.unwrap();
    let found = stored(&next);
    assert_eq!((Some(&0), Some(&2)), (found.get(&0), found.get(&after)));
    assert!(written.is_none_or(|offset| found.get(&offset) == Some(&1)), "{written:?} {found:?}");
    drop((leader, next));
    cluster.stop().await;
}

/// A sync that fails is the end of this process: it acknowledges nothing any more, says why, gives away what it leads,
/// and others go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_fails_acknowledges_nothing_and_the_others_go_on() {
    let mut cluster = Cluster::start("sync").await;
    let leader = cluster.leader().await;
    let at = usize::try_from(leader.node_id()).unwrap();
    assert_eq!(Some(0), send(&leader, 0).await);
    leader.log.fail_next_sync();
    // The others have it, so it may be acknowledged or not.
    let written = send(&leader, 1).await;
    let node = cluster.running.remove(&at).unwrap();
    let reason = soon("the node fails", node.failed()).await;
    assert!(reason.starts_with("group broker-a: ") && reason.contains("os error 5"), "{reason}");
    let status = node.shared.status();
    assert_eq!((NodeState::Failed, &reason, false), (status.state, &status.health, status.ready));
    assert_eq!(None, send(&leader, 2).await, "acknowledged after a failed sync");
    drop(leader);
    node.abandon().await;
    let next = cluster.leader().await;
    let after = send(&next, 3).await.expect("the others are a majority");
    let last = next.log.watermarks().last.unwrap().index.get();
    soon("dispatch", next.store.wait_dispatched(last)).await.unwrap();
    let found = stored(&next);
    assert_eq!((Some(&0), Some(&3)), (found.get(&0), found.get(&after)));
    assert!(written.is_none_or(|offset| found.get(&offset) == Some(&1)), "{written:?} {found:?}");
    assert!(!found.values().any(|id| *id == 2), "{found:?}");
    drop(next);
    cluster.stop().await;
}

/// Nobody writes, and Raft is told of nothing: only the log itself can notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_node_whose_disk_fails_says_so() {
    let mut cluster = Cluster::start("sync").await;
    let leader = cluster.leader().await;
    cluster.synced(&[1, 2, 3]).await;
    leader.log.fail_next_sync();
    let node = cluster.running.remove(&usize::try_from(leader.node_id()).unwrap()).unwrap();
    let reason = soon("the node fails", node.failed()).await;
    assert!(reason.starts_with("group broker-a: ") && reason.contains("os error 5"), "{reason}");
    drop(leader);
    node.abandon().await;
    cluster.stop().await;
}

/// A node that ends because one of its groups has failed gives away first what it leads in the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_fails_hands_over_what_still_works() {
    let mut cluster = Cluster::start("sync").await;
    let leader = cluster.leader().await;
    let node = cluster.running.remove(&usize::try_from(leader.node_id()).unwrap()).unwrap();
    node.abandon().await;
    // Moved already, and by nobody's timer.
    assert!(!leader.raft.role().borrow().is_leader(), "it leads still");
    let next = cluster.leader().await;
    assert_ne!(next.node_id(), leader.node_id());
    drop((leader, next));
    cluster.stop().await;
}
