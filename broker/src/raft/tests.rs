//! Replicas of one process over loopback: replication, takeover, transfer, membership.

pub(crate) mod cluster;
mod repair;
pub(crate) mod stores;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use openraft::alias::LogIdOf;
use openraft::raft::VoteRequest;
use tokio::net::TcpListener;
use tokio::time::Instant;

use self::cluster::{Cluster, GROUP, hub, identity, member, soon};
use self::stores::{MemLog, MemState, record};
use super::wire;
use super::*;
use crate::peer::VoteMark;
use crate::peer::frame::Kind;
use crate::peer::handshake::Class;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replica_applies_the_same_in_the_same_order() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    for id in 0..50 {
        let bytes = if id % 10 == 0 { 200_000 } else { 100 };
        let (reply, _) = cluster.raft(leader).propose(record(id, bytes)).await.unwrap();
        assert!(matches!(reply, ApplyReply::Pack(_)));
    }
    for replica in cluster.running.values() {
        soon("replicas apply", replica.state.wait_for(50)).await;
        assert_eq!(replica.state.records(), (0..50).collect::<Vec<u64>>());
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follower_refuses_a_proposal_and_names_the_leader() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let follower = cluster.followers(leader)[0];
    let mut role = cluster.raft(follower).role();
    soon("follower knows the leader", role.wait_for(|role| role.leader().is_some())).await.unwrap();
    let error = cluster.raft(follower).propose(record(1, 20)).await.unwrap_err();
    assert!(error.is_not_proposed());
    let ProposeError::NotProposed { leader: Some((id, member)), .. } = error else { panic!("{error}") };
    assert_eq!((id, member.node), (leader, format!("n{leader}")));
    assert!(cluster.raft(follower).read_index().await.is_err());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_share_rounds_and_prove_leadership() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let reads = (0..100).map(|_| cluster.raft(leader).read_index());
    let results = soon("reads", futures::future::join_all(reads)).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    cluster.stop().await;
}

/// A record that was acknowledged: its id, who led, and when.
#[derive(Clone, Copy)]
struct Acknowledged {
    id: u64,
    leader: u64,
    at: Instant,
}

/// Keeps proposing on whoever leads and notes what was acknowledged.
#[derive(Default)]
struct Load {
    acknowledged: tokio_watch::Sender<Vec<Acknowledged>>,
    ids: Arc<AtomicU64>,
}

impl Load {
    fn start(cluster: &Cluster) -> Self {
        let load = Self::default();
        cluster.running.values().for_each(|replica| load.attach(&replica.raft));
        load
    }

    /// Proposes on `raft` whenever it leads, until it stops.
    fn attach(&self, raft: &GroupRaft<MemState>) {
        let (raft, acknowledged, ids) = (raft.clone(), self.acknowledged.clone(), Arc::clone(&self.ids));
        tokio::spawn(async move {
            let mut role = raft.role();
            while role.wait_for(Role::is_ready_leader).await.is_ok() {
                let id = ids.fetch_add(1, Ordering::Relaxed);
                if raft.propose(record(id, 1024)).await.is_ok() {
                    let leader = raft.node_id();
                    acknowledged.send_modify(|all| all.push(Acknowledged { id, leader, at: Instant::now() }));
                } else {
                    tokio::task::yield_now().await;
                }
            }
        });
    }

    fn ids(&self) -> Vec<u64> {
        self.acknowledged.borrow().iter().map(|acknowledged| acknowledged.id).collect()
    }

    /// Waits for an acknowledgement after `moment` by another than `except`.
    async fn next_after(&self, moment: Instant, except: Option<u64>) -> Instant {
        let is_wanted = |next: &&Acknowledged| next.at > moment && Some(next.leader) != except;
        let mut acknowledged = self.acknowledged.subscribe();
        let all = acknowledged.wait_for(|all| all.last().is_some_and(|last| is_wanted(&last))).await.unwrap();
        all.iter().find(is_wanted).unwrap().at
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_leader_is_replaced_before_any_timer_and_loses_nothing() {
    let mut cluster = Cluster::start(3).await;
    let load = Load::start(&cluster);
    let kills = if std::env::var_os("SLOW_TESTS").is_some() { 50 } else { 5 };
    let mut gaps = Vec::new();
    for _ in 0..kills {
        let leader = cluster.leader().await;
        // All are caught up and watched, as in a cluster at rest.
        let before = load.next_after(Instant::now(), None).await;
        let count = load.ids().len();
        for replica in cluster.running.values() {
            soon("replicas keep up", replica.state.wait_for(count)).await;
        }
        load.next_after(before + Duration::from_millis(300), None).await;
        let killed = Instant::now();
        cluster.kill(leader).await;
        let first = soon("next leader", load.next_after(killed, Some(leader))).await;
        gaps.push(first - killed);
        cluster.restart(leader).await;
        load.attach(cluster.raft(leader));
        let mut role = cluster.raft(leader).role();
        soon("restarted node follows", role.wait_for(|role| role.leader().is_some())).await.unwrap();
    }
    let acknowledged = load.ids();
    let leader = cluster.leader().await;
    cluster.raft(leader).read_index().await.unwrap();
    let stored: BTreeSet<u64> = cluster.running[&leader].state.records().into_iter().collect();
    let lost: Vec<u64> = acknowledged.iter().copied().filter(|id| !stored.contains(id)).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    gaps.sort();
    println!("{kills} kills: median {:?}, worst {:?}, all {gaps:?}", gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    // The timers alone need at least the lease and the shortest election time-out.
    assert!(gaps[gaps.len() / 2] < Duration::from_millis(800), "{gaps:?}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_moves_to_the_chosen_replica_without_a_lost_proposal() {
    let cluster = Cluster::start(3).await;
    let load = Load::start(&cluster);
    for _ in 0..3 {
        let leader = cluster.leader().await;
        load.next_after(Instant::now(), None).await;
        let to = cluster.followers(leader)[0];
        assert_eq!(cluster.raft(leader).transfer_leader(Some(to)).await.unwrap(), to);
        let mut role = cluster.raft(to).role();
        soon("new leader is ready", role.wait_for(Role::is_ready_leader)).await.unwrap();
    }
    soon("writes go on", load.next_after(Instant::now(), None)).await;
    let leader = cluster.leader().await;
    cluster.raft(leader).hand_over().await;
    let mut role = cluster.raft(leader).role();
    soon("old leader follows", role.wait_for(|role| role.leader().is_some())).await.unwrap();
    assert!(matches!(cluster.raft(leader).transfer_leader(None).await, Err(AdminError::NotLeader { .. })));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_proposal_is_left_in_doubt_when_leadership_moves() {
    let cluster = Cluster::start(3).await;
    let stop = CancellationToken::new();
    let doubted = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let applied = Arc::new(AtomicU64::new(0));
    let tasks = TaskTracker::new();
    for replica in cluster.running.values() {
        for _ in 0..16 {
            let (raft, stop) = (replica.raft.clone(), stop.clone());
            let (doubted, applied) = (Arc::clone(&doubted), Arc::clone(&applied));
            tasks.spawn(async move {
                while !stop.is_cancelled() {
                    match raft.propose(record(0, 1024)).await {
                        Ok(_) => drop(applied.fetch_add(1, Ordering::Relaxed)),
                        Err(error) if error.is_not_proposed() => tokio::task::yield_now().await,
                        Err(error) => doubted.lock().push(error.to_string()),
                    }
                }
            });
        }
    }
    for _ in 0..6 {
        let leader = cluster.leader().await;
        let before = applied.load(Ordering::Relaxed);
        while applied.load(Ordering::Relaxed) < before + 100 {
            tokio::task::yield_now().await;
        }
        let to = cluster.followers(leader)[0];
        assert_eq!(cluster.raft(leader).transfer_leader(Some(to)).await.unwrap(), to);
    }
    stop.cancel();
    tasks.close();
    soon("proposers end", tasks.wait()).await;
    assert_eq!(*doubted.lock(), Vec::<String>::new());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_without_a_quorum_closes_its_gates_and_opens_them_again() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let followers = cluster.followers(leader);
    for follower in &followers {
        cluster.kill(*follower).await;
    }
    let mut role = cluster.raft(leader).role();
    soon("gates close", role.wait_for(|role| !role.is_ready_leader())).await.unwrap();
    assert!(cluster.raft(leader).read_index().await.is_err());
    for follower in &followers {
        cluster.restart(*follower).await;
    }
    let leader = cluster.leader().await;
    cluster.raft(leader).propose(record(1, 20)).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_a_deposed_leader_give_way() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    for id in 0..10 {
        cluster.raft(leader).propose(record(id, 100)).await.unwrap();
    }
    let followers = cluster.followers(leader);
    for follower in &followers {
        soon("followers keep up", cluster.running[follower].state.wait_for(10)).await;
        cluster.kill(*follower).await;
    }
    // Appended here, and nowhere else.
    let orphans: Vec<_> = (100..140)
        .map(|id| {
            let raft = cluster.raft(leader).clone();
            tokio::spawn(async move { raft.propose(record(id, 100)).await })
        })
        .collect();
    let log = cluster.logs[&leader].clone();
    soon("orphans are appended", async {
        while log.entries().len() < 12 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    cluster.kill(leader).await;
    for orphan in orphans {
        let error = orphan.await.unwrap().unwrap_err();
        if let ProposeError::NotProposed { reason, .. } = &error {
            assert!(reason.contains("LeaseExpired") || reason.contains("lease"), "{error}");
        }
    }
    for follower in &followers {
        cluster.restart(*follower).await;
    }
    let next = cluster.leader().await;
    for id in 10..30 {
        cluster.raft(next).propose(record(id, 100)).await.unwrap();
    }
    cluster.restart(leader).await;
    soon("old leader catches up", cluster.running[&leader].state.wait_for(30)).await;
    assert_eq!(cluster.running[&leader].state.records(), (0..30).collect::<Vec<u64>>());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_stream_is_opened_again() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    for id in 0..40 {
        if id % 10 == 0 {
            for follower in cluster.followers(leader) {
                cluster.raft(leader).break_stream(follower);
            }
        }
        cluster.raft(leader).propose(record(id, 100)).await.unwrap();
    }
    for replica in cluster.running.values() {
        soon("replicas apply", replica.state.wait_for(40)).await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn learner_gets_the_snapshot_and_the_rest_of_the_log_and_becomes_a_voter() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    for id in 0..30 {
        cluster.raft(leader).propose(record(id, 1000)).await.unwrap();
    }
    cluster.raft(leader).trigger_snapshot().await.unwrap();
    let mut metrics = cluster.raft(leader).0.raft.metrics();
    soon("snapshot", async {
        while metrics.borrow_and_update().snapshot.is_none() {
            metrics.changed().await.unwrap();
        }
    })
    .await;
    cluster.raft(leader).purge_log(25).await.unwrap();
    soon("purge", async {
        while metrics.borrow_and_update().purged.is_none() {
            metrics.changed().await.unwrap();
        }
    })
    .await;
    for id in 30..40 {
        cluster.raft(leader).propose(record(id, 1000)).await.unwrap();
    }
    // The newcomer.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let newcomer = member(4, listener.local_addr().unwrap());
    cluster.members.insert(4, newcomer.clone());
    for replica in cluster.running.values() {
        replica.hub.set_members(GROUP, addresses(&cluster.members));
    }
    cluster.logs.insert(4, MemLog::default());
    drop(listener);
    cluster.restart(4).await;
    cluster.raft(leader).add_learner(4, newcomer).await.unwrap();
    soon("newcomer catches up", cluster.running[&4].state.wait_for(40)).await;
    assert_eq!(cluster.running[&4].state.records(), (0..40).collect::<Vec<u64>>());
    assert!(cluster.raft(4).metrics().snapshot.is_some());
    cluster.raft(leader).change_voters(BTreeSet::from([1, 2, 3, 4])).await.unwrap();
    assert_eq!(cluster.raft(leader).metrics().voters, vec![BTreeSet::from([1, 2, 3, 4])]);
    cluster.stop().await;
}

/// A leader of three with `COUNT` records, and a fourth node without any that is a learner from the moment on that is
/// returned as well.
async fn with_a_newcomer(bytes_per_second: u64) -> (Cluster, u64, Instant) {
    let mut cluster = Cluster::start_with_rate(3, bytes_per_second).await;
    let leader = cluster.leader().await;
    // So few at a time that nobody falls far behind.
    const STEP: usize = 500;
    for first in (0..COUNT).step_by(STEP) {
        let fill = (first..first + STEP).map(|id| cluster.raft(leader).propose(record(id as u64, BYTES)));
        assert!(soon("fill", futures::future::join_all(fill)).await.iter().all(Result::is_ok));
        for replica in cluster.running.values() {
            soon("replicas apply", replica.state.wait_for(first + STEP)).await;
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let newcomer = member(4, listener.local_addr().unwrap());
    cluster.members.insert(4, newcomer.clone());
    for replica in cluster.running.values() {
        replica.hub.set_members(GROUP, addresses(&cluster.members));
    }
    cluster.logs.insert(4, MemLog::default());
    drop(listener);
    cluster.restart(4).await;
    let added = Instant::now();
    cluster.raft(leader).add_learner(4, newcomer).await.unwrap();
    (cluster, leader, added)
}

const COUNT: usize = 8000;
const BYTES: usize = 4096;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_is_sent_the_log_at_its_rate() {
    const RATE: u64 = 6 << 20;
    let (cluster, leader, added) = with_a_newcomer(RATE).await;
    soon("newcomer catches up", cluster.running[&4].state.wait_for(COUNT)).await;
    assert!(cluster.running[&4].state.records() == cluster.running[&leader].state.records());
    // Nobody counts the first request's time, and what lies in between is close enough in the end.
    let least = Duration::from_secs_f64((COUNT * BYTES) as f64 / RATE as f64 / 2.0);
    assert!(added.elapsed() >= least, "{:?}, at least {least:?}", added.elapsed());
    let mut metrics = cluster.raft(leader).0.raft.metrics();
    soon("it is not far behind any more", async {
        while !cluster.raft(leader).metrics().catching_up.is_empty() {
            metrics.changed().await.unwrap();
        }
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producers_do_not_wait_for_a_newcomer() {
    // At this rate it would take the newcomer more than an hour.
    let (cluster, leader, _) = with_a_newcomer(8 << 10).await;
    soon("some arrives", cluster.running[&4].state.wait_for(1)).await;
    soon("an answer", cluster.raft(leader).propose(record(COUNT as u64, BYTES))).await.unwrap();
    assert_eq!(cluster.raft(leader).metrics().catching_up, BTreeSet::from([4]));
    let behind = cluster.running[&4].state.records().len();
    assert!(behind < COUNT - 1000, "the newcomer has {behind} already");
    cluster.stop().await;
}

/// A replica of node 2 that has never been in a group, and a hub of node 1 that asks it.
async fn asker_and_voter(restarted: bool) -> (PeerHub, PeerHub, GroupRaft<MemState>) {
    let one = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let two = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let members =
        BTreeMap::from([(1, member(1, one.local_addr().unwrap())), (2, member(2, two.local_addr().unwrap()))]);
    let (asker, voter) = (hub(1, one).await, hub(2, two).await);
    asker.add_group(identity(1, 1), addresses(&members));
    let options = GroupRaftOptions {
        identity: identity(2, 1),
        members,
        preferred_leader: None,
        restarted,
        started: Instant::now(),
        // Long, so that the test need not hurry.
        timing: Timing {
            heartbeat_interval: Duration::from_millis(100),
            election_timeout_min: Duration::from_secs(3),
            election_timeout_max: Duration::from_secs(5),
        },
        propose_timeout: Duration::from_secs(5),
        catch_up: None,
    };
    let raft = GroupRaft::start(options, &voter, MemLog::default(), MemState::default()).await.unwrap();
    (asker, voter, raft)
}

async fn ask_for_vote(asker: &PeerHub, kind: Kind, term: u64, leadership_transfer: bool) -> bool {
    let vote = wire::vote_from_mark(VoteMark { term, node_id: 1, committed: false });
    let mut request = VoteRequest::<TypeConfig>::new(vote, None::<LogIdOf<TypeConfig>>);
    request.leadership_transfer = leadership_transfer;
    let mut fields = BytesMut::new();
    wire::put_vote_request(&mut fields, &request);
    let link = asker.hub().link(GROUP, 2, Class::Rpc).unwrap();
    let answer = link.ask(kind, &fields, Vec::new(), Duration::from_secs(5)).await.unwrap();
    wire::vote_response(&answer).unwrap().vote_granted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_that_hands_over_wants_no_leadership_brought_home() {
    let (asker, voter, raft) = asker_and_voter(false).await;
    let link = asker.hub().link(GROUP, 2, Class::Rpc).unwrap();
    let mut answers = Vec::new();
    for _ in 0..2 {
        let answer = link.ask(Kind::WouldLead, &[], Vec::new(), Duration::from_secs(5)).await.unwrap();
        answers.push(wire::would_lead(&answer).unwrap().0);
        raft.hand_over().await;
    }
    assert_eq!(answers, [true, false]);
    raft.shutdown().await;
    asker.shutdown().await;
    voter.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_replica_grants_no_vote_at_first_unless_it_is_authorised() {
    let (asker, voter, raft) = asker_and_voter(true).await;
    assert!(!ask_for_vote(&asker, Kind::PreVote, 5, false).await);
    assert!(!ask_for_vote(&asker, Kind::Vote, 5, false).await);
    assert_eq!(raft.metrics().term, 0, "a refused vote leaves no trace");
    assert!(ask_for_vote(&asker, Kind::Vote, 5, true).await);
    raft.shutdown().await;
    asker.shutdown().await;
    voter.shutdown().await;

    let (asker, voter, raft) = asker_and_voter(false).await;
    assert!(ask_for_vote(&asker, Kind::PreVote, 5, false).await);
    assert!(ask_for_vote(&asker, Kind::Vote, 5, false).await);
    assert!(!ask_for_vote(&asker, Kind::Vote, 100_000, false).await, "an absurd term");
    raft.shutdown().await;
    asker.shutdown().await;
    voter.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_of_one_leads_alone() {
    let cluster = Cluster::start(1).await;
    let (_, log_id) = cluster.raft(1).propose(Bytes::from_static(b"")).await.unwrap();
    assert!(log_id.index.get() > 0);
    cluster.raft(1).read_index().await.unwrap();
    assert!(matches!(cluster.raft(1).transfer_leader(None).await, Err(AdminError::Refused(_))));
    cluster.stop().await;
}

#[tokio::test]
async fn a_replica_that_starts_again_shows_at_once_what_it_had() {
    let mut cluster = Cluster::start(1).await;
    cluster.raft(1).propose(Bytes::from_static(b"a")).await.unwrap();
    let before = cluster.raft(1).metrics();
    cluster.kill(1).await;
    cluster.restart(1).await;
    // Nothing else has run since it started.
    let (role, now) = (cluster.raft(1).role().borrow().clone(), cluster.raft(1).metrics());
    assert!(role.term() >= before.term, "{role:?}");
    assert!(now.term >= before.term && now.last >= before.last, "{now:?}");
    cluster.stop().await;
}
