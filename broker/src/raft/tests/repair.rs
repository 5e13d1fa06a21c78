//! Three replicas over real stores, of which one or more are damaged.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use raft_store::{ClusterId, FlushMode, LogPosition, LogView, Member, Options, ScrubOptions, StoppedStore};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::cluster::{CLUSTER, GROUP, hub, member, soon};
use super::stores::{MemState, record};
use crate::peer::range::{CheckpointWanted, RangeHandler};
use crate::peer::{GroupIdentity, PeerHub};
use crate::raft::digests::{self, Difference};
use crate::raft::repair::{DropsOld, Peers, Ranges, Repairer, repair_stopped};
use crate::raft::{GroupRaft, GroupRaftOptions, ProposeError, Role, Timing, TypeConfig, addresses};

const SEGMENT: u64 = 64 << 10;
/// Entries of a kilobyte: three segments and a part of a fourth.
const RECORDS: u64 = 170;

struct Replica {
    hub: PeerHub,
    raft: GroupRaft<MemState>,
    log: LogView,
    repairer: Repairer,
    state: MemState,
}

struct Nodes {
    dir: tempfile::TempDir,
    members: BTreeMap<u64, Member>,
    running: BTreeMap<u64, Replica>,
    scrub: Option<ScrubOptions>,
}

impl Nodes {
    /// Three nodes with the same log, all of it applied everywhere.
    async fn start(scrub: Option<ScrubOptions>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut nodes = Self { dir, members: BTreeMap::new(), running: BTreeMap::new(), scrub };
        let mut listeners = Vec::new();
        for id in 1..=3 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            nodes.members.insert(id, member(id, listener.local_addr().unwrap()));
            listeners.push((id, listener));
        }
        for (id, listener) in listeners {
            nodes.start_on(id, listener).await.unwrap();
        }
        nodes.running[&1].raft.initialize().await.unwrap();
        for id in 0..RECORDS {
            nodes.propose(id).await;
        }
        nodes.all_applied(RECORDS).await;
        nodes
    }

    /// On a busy machine the lead may move while records are proposed.
    async fn propose(&self, id: u64) {
        loop {
            let leader = self.leader().await;
            match self.running[&leader].raft.propose(record(id, 1000)).await {
                Err(ProposeError::NotProposed { .. }) => {}
                done => break drop(done.unwrap()),
            }
        }
    }

    async fn all_applied(&self, records: u64) {
        for replica in self.running.values() {
            soon("replicas apply", replica.state.wait_for(usize::try_from(records).unwrap())).await;
        }
    }

    fn options(&self, id: u64) -> Options {
        let mut options = Options::new(self.dir.path().join(id.to_string()), ClusterId::new(CLUSTER), id);
        options.create = true;
        options.allow_unproven_fs = true;
        options.segment_bytes = SEGMENT;
        // Little stays in memory, so that reads go to the files.
        options.tail_bytes = 4 << 10;
        options.flush = FlushMode::Sync;
        options.repaired = true;
        options.scrub = self.scrub;
        options
    }

    /// As a node does it: opens, repairs what keeps the store from opening, starts Raft, watches for damage.
    ///
    /// The error is that every copy is damaged.
    async fn start_on(&mut self, id: u64, listener: TcpListener) -> Result<(), String> {
        let hub = hub(id, listener).await;
        let peers = || Peers::new(hub.clone(), GROUP);
        let opened = loop {
            let error = match raft_store::open::<TypeConfig>(self.options(id)) {
                Ok(opened) => break opened,
                Err(error) => error,
            };
            let base = StoppedStore::damaged_segment(&error).unwrap_or_else(|| panic!("{error}"));
            let store = Arc::new(StoppedStore::open(&self.options(id)).unwrap());
            hub.add_group(group_identity(id, store.store_uuid(), store.start_counter()), addresses(&self.members));
            let peers = peers();
            hub.set_range_handler(GROUP, Ranges::stopped(&store, PathBuf::new()));
            let (note, hopeless) = (parking_lot::Mutex::new(None), tokio::sync::Notify::new());
            let failed = |error: &raft_store::Error| {
                if let raft_store::Error::NotRepaired { everywhere: true, .. } = error {
                    *note.lock() = Some(error.to_string());
                    hopeless.notify_one();
                }
            };
            let repaired = tokio::select! {
                repaired = repair_stopped(&store, base, &peers, failed) => repaired.map_err(|error| error.to_string()),
                () = hopeless.notified() => Err(note.lock().take().unwrap()),
            };
            hub.remove_group(GROUP);
            if let Err(error) = repaired {
                hub.shutdown().await;
                return Err(error);
            }
        };
        let recovered = &opened.recovered;
        let options = GroupRaftOptions {
            identity: group_identity(id, recovered.store_uuid, recovered.start_counter),
            members: self.members.clone(),
            preferred_leader: None,
            restarted: recovered.last.is_some(),
            started: Instant::now(),
            timing: Timing::default(),
            catch_up: None,
            propose_timeout: Duration::from_secs(5),
        };
        let (log, state) = (opened.view.clone(), MemState::default());
        let raft = GroupRaft::start(options, &hub, opened.storage, state.clone()).await.unwrap();
        hub.set_range_handler(GROUP, Ranges::running(log.clone(), PathBuf::new()));
        let repairer = Repairer::start(raft.clone(), log.clone(), peers(), Arc::new(KeepsAll));
        self.running.insert(id, Replica { hub, raft, log, repairer, state });
        Ok(())
    }

    async fn restart(&mut self, id: u64) -> Result<(), String> {
        let listener = TcpListener::bind(&self.members[&id].raft_addr).await.unwrap();
        self.start_on(id, listener).await
    }

    async fn stop_node(&mut self, id: u64) {
        let Replica { hub, raft, log, repairer, .. } = self.running.remove(&id).unwrap();
        repairer.shutdown().await;
        raft.shutdown().await;
        hub.remove_group(GROUP);
        hub.shutdown().await;
        drop((raft, repairer));
        tokio::task::spawn_blocking(move || log.close()).await.unwrap().unwrap();
    }

    async fn stop(mut self) {
        for id in self.running.keys().copied().collect::<Vec<_>>() {
            self.stop_node(id).await;
        }
    }

    async fn leader(&self) -> u64 {
        let waits = self.running.iter().map(|(id, replica)| {
            let (mut role, id) = (replica.raft.role(), *id);
            Box::pin(async move {
                role.wait_for(Role::is_ready_leader).await.unwrap();
                id
            })
        });
        soon("a leader", futures::future::select_all(waits)).await.0
    }

    fn path(&self, id: u64, segment: u64) -> PathBuf {
        self.dir.path().join(id.to_string()).join(format!("{:020}", segment * SEGMENT))
    }

    fn bytes(&self, id: u64, segment: u64) -> Vec<u8> {
        std::fs::read(self.path(id, segment)).unwrap()
    }

    fn damage(&self, id: u64, segment: u64, change: impl Fn(&mut Vec<u8>)) {
        let mut bytes = self.bytes(id, segment);
        let before = bytes.len();
        change(&mut bytes);
        let file = std::fs::File::options().write(true).open(self.path(id, segment)).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        if bytes.len() < before {
            file.set_len(bytes.len() as u64).unwrap();
        }
        file.sync_all().unwrap();
    }

    /// The records of a segment, without the footer: that gets its digests at different times.
    fn records(&self, id: u64, segment: u64) -> Vec<u8> {
        let mut bytes = self.bytes(id, segment);
        bytes.truncate(60 << 10);
        bytes
    }

    /// Reads the whole log of a node, as a start that replays it would.
    async fn read_all(&self, id: u64) -> raft_store::Result<u64> {
        let log = self.running[&id].log.clone();
        let last = log.watermarks().last.unwrap().index;
        let read = move || log.entries(raft_store::LogIndex::ZERO, last).try_fold(0, |n, entry| entry.map(|_| n + 1));
        tokio::task::spawn_blocking(read).await.unwrap()
    }

    async fn whole(&self, id: u64) {
        let mut damage = self.running[&id].log.damage();
        soon("a repair", damage.wait_for(Vec::is_empty)).await.unwrap();
        let repairer = &self.running[&id].repairer;
        soon("the status follows", repairer.until(|status| status.damaged.is_empty())).await;
    }
}

/// A log that is never shortened.
struct KeepsAll;

impl DropsOld for KeepsAll {
    fn drop_through(&self, _: LogPosition) -> BoxFuture<'_, bool> {
        std::future::ready(false).boxed()
    }
}

fn group_identity(node_id: u64, store_uuid: [u8; 16], start_counter: u64) -> GroupIdentity {
    GroupIdentity { group: GROUP.to_owned(), node_id, store_uuid, start_counter, generation: 0 }
}

/// Where record `number` of a segment of equal records starts.
fn at(number: usize) -> usize {
    4096 + number * 1088
}

type Damage = (&'static str, fn(&mut Vec<u8>));

const SHAPES: [Damage; 6] = [
    ("a flipped bit", |bytes| bytes[at(9) + 300] ^= 1),
    ("a page of zeros", |bytes| bytes[8192..12288].fill(0)),
    ("swapped pages", |bytes| {
        let (one, other) = bytes[8192..24576].split_at_mut(8192);
        one[..4096].swap_with_slice(&mut other[..4096]);
    }),
    ("a valid record elsewhere", |bytes| bytes.copy_within(at(3)..at(4), at(5))),
    ("a cut file", |bytes| bytes.truncate(20_480)),
    ("a lost header", |bytes| bytes[..4096].fill(0)),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_replica_is_repaired_before_it_votes_or_leads() {
    let mut nodes = Nodes::start(None).await;
    for (number, (what, damage)) in SHAPES.into_iter().enumerate() {
        let id = number as u64 % 3 + 1;
        nodes.stop_node(id).await;
        // The newest two segments are read in full at a start.
        nodes.damage(id, 2, damage);
        soon(what, nodes.restart(id)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let other = id % 3 + 1;
        assert!(nodes.records(id, 2) == nodes.records(other, 2), "{what}");
        nodes.all_applied(RECORDS).await;
        assert_eq!(nodes.running[&id].state.records(), (0..RECORDS).collect::<Vec<_>>(), "{what}");
    }
    assert!(nodes.dir.path().join("1/quarantine").exists());
    nodes.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_finds_damage_by_a_read_hands_over_and_repairs_itself() {
    let nodes = Nodes::start(None).await;
    let leader = nodes.leader().await;
    let entries = nodes.read_all(leader).await.unwrap();
    let term = nodes.running[&leader].raft.metrics().term;
    nodes.damage(leader, 1, |bytes| bytes[at(9) + 300] ^= 1);
    assert!(nodes.read_all(leader).await.is_err(), "damage is found before its bytes are served");
    nodes.whole(leader).await;
    let mut role = nodes.running[&leader].raft.role();
    soon("hand-over", role.wait_for(|role| role.term() > term)).await.unwrap();
    assert!(nodes.records(leader, 1) == nodes.records(leader % 3 + 1, 1));
    // And by now perhaps the first entry of the next leader.
    assert!(nodes.read_all(leader).await.unwrap() >= entries);
    let status = nodes.running[&leader].repairer.status();
    assert_eq!((1, 1088, None), (status.repaired_ranges, status.repaired_bytes, status.last_error));
    // It may lead again.
    let next = nodes.leader().await;
    assert_ne!(next, leader);
    assert_eq!(nodes.running[&next].raft.transfer_leader(Some(leader)).await.unwrap(), leader);
    nodes.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incomplete_replica_is_given_no_leadership() {
    let mut nodes = Nodes::start(None).await;
    let leader = nodes.leader().await;
    let (incomplete, whole) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    nodes.running[&incomplete].raft.set_complete(false).await;
    let moved = nodes.running[&leader].raft.transfer_leader(Some(incomplete)).await;
    assert_ne!(moved.ok(), Some(incomplete));
    // Whatever the refused transfer led to: now that node dies, and of the two that are left only one may follow it.
    let leader = nodes.leader().await;
    assert_ne!(leader, incomplete);
    if leader == whole {
        let other = (1..=3).find(|id| *id != incomplete && *id != whole).unwrap();
        nodes.running[&leader].raft.transfer_leader(Some(other)).await.unwrap();
    }
    let dying = (1..=3).find(|id| *id != incomplete && *id != whole).unwrap();
    let mut role = nodes.running[&dying].raft.role();
    soon("it leads", role.wait_for(Role::is_ready_leader)).await.unwrap();
    // What only the incomplete one had could not be elected.
    let last = nodes.running[&dying].raft.metrics().last.unwrap();
    nodes.running[&dying].raft.wait_for_member(whole, last, Duration::from_secs(20)).await.unwrap();
    nodes.stop_node(dying).await;
    let mut role = nodes.running[&whole].raft.role();
    soon("the whole replica leads", role.wait_for(Role::is_ready_leader)).await.unwrap();
    nodes.running[&whole].raft.propose(record(RECORDS, 100)).await.unwrap();
    nodes.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_that_are_damaged_in_different_places_are_both_repaired() {
    let mut nodes = Nodes::start(None).await;
    nodes.stop_node(2).await;
    nodes.stop_node(3).await;
    nodes.damage(2, 2, |bytes| bytes[at(9) + 300] ^= 1);
    nodes.damage(3, 2, |bytes| bytes[at(12)..at(14)].fill(0x33));
    soon("node 2", nodes.restart(2)).await.unwrap();
    soon("node 3", nodes.restart(3)).await.unwrap();
    nodes.all_applied(RECORDS).await;
    for id in [2, 3] {
        assert!(nodes.records(id, 2) == nodes.records(1, 2));
    }
    let leader = nodes.leader().await;
    nodes.running[&leader].raft.propose(record(RECORDS, 100)).await.unwrap();
    nodes.all_applied(RECORDS + 1).await;
    nodes.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_damaged_on_every_copy_stops_the_group_and_is_named() {
    let nodes = Nodes::start(None).await;
    for id in 1..=3 {
        nodes.damage(id, 1, |bytes| bytes[at(9) + 300] ^= 1);
    }
    let leader = nodes.leader().await;
    let error = nodes.read_all(leader).await.unwrap_err();
    assert!(matches!(error, raft_store::Error::Damaged { .. }), "no wrong byte is served: {error}");
    for (id, replica) in &nodes.running {
        // Each learns of its own copy when another asks for it.
        soon("every replica knows", replica.repairer.until(|status| status.hopeless)).await;
        let status = replica.repairer.status();
        let from = LogPosition::new(SEGMENT + at(9) as u64);
        assert_eq!(status.damaged.iter().map(|range| range.from).collect::<Vec<_>>(), [from], "node {id}");
        assert!(status.last_error.unwrap().contains("is damaged there too"));
        let mut role = replica.raft.role();
        soon("gates close", role.wait_for(|role| !role.is_ready_leader())).await.unwrap();
    }
    for id in 1..=3 {
        assert!(nodes.read_all(id).await.is_err());
    }
    nodes.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_whose_damage_is_everywhere_does_not_start() {
    let mut nodes = Nodes::start(None).await;
    nodes.stop_node(3).await;
    for id in 1..=3 {
        nodes.damage(id, 2, |bytes| bytes[at(9) + 300] ^= 1);
    }
    let error = soon("a refusal", nodes.restart(3)).await.unwrap_err();
    assert!(error.contains(&(2 * SEGMENT + at(9) as u64).to_string()), "{error}");
    nodes.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scrubber_finds_rot_that_nobody_reads_and_has_it_repaired() {
    let scrub = ScrubOptions { bytes_per_second: 64 << 20, interval: Duration::from_millis(1) };
    let nodes = Nodes::start(Some(scrub)).await;
    let follower = nodes.leader().await % 3 + 1;
    let mut passes = tokio::time::interval(Duration::from_millis(10));
    soon("a pass", async {
        while nodes.running[&follower].log.scrub().unwrap().segments < 3 {
            passes.tick().await;
        }
    })
    .await;
    nodes.damage(follower, 0, |bytes| bytes[at(9) + 300] ^= 1);
    soon("repair", nodes.running[&follower].repairer.until(|status| status.repaired_ranges == 1)).await;
    assert_eq!(1, nodes.running[&follower].log.scrub().unwrap().faults);
    nodes.whole(follower).await;
    // Footers and digests as well.
    assert!(nodes.bytes(follower, 0) == nodes.bytes(follower % 3 + 1, 0));
    nodes.stop().await;
}

/// Has other digests than everybody else.
struct Liar(Arc<Ranges>);

impl RangeHandler for Liar {
    fn fetch(&self, from: LogPosition, to: LogPosition) -> BoxFuture<'static, Result<raft_store::PeerRange, String>> {
        self.0.fetch(from, to)
    }

    fn checkpoint(&self, wanted: CheckpointWanted) -> BoxFuture<'static, Result<bytes::Bytes, String>> {
        self.0.checkpoint(wanted)
    }

    fn digests(&self, base: LogPosition) -> BoxFuture<'static, Result<bytes::Bytes, String>> {
        let honest = self.0.digests(base);
        async move {
            let mut digests = honest.await?.to_vec();
            if base.get() == SEGMENT {
                digests[3] ^= 1;
            }
            Ok(digests.into())
        }
        .boxed()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn digests_are_compared_with_one_member_after_the_other_and_what_differs_is_named() {
    let scrub = ScrubOptions { bytes_per_second: 64 << 20, interval: Duration::from_millis(1) };
    let nodes = Nodes::start(Some(scrub)).await;
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    soon("all segments are digested everywhere", async {
        let is_digested = |log: &LogView| {
            let sealed = log.sealed_segments();
            sealed.len() == 3 && sealed.iter().all(|segment| log.digests(segment.base).unwrap().is_some())
        };
        while !nodes.running.values().all(|replica| is_digested(&replica.log)) {
            ticks.tick().await;
        }
    })
    .await;
    let Replica { hub, log, .. } = &nodes.running[&1];
    let peers = Peers::new(hub.clone(), GROUP);
    let others = hub.others(GROUP);
    let compare = async |pass| soon("a comparison", digests::compare(GROUP, log, &peers, pass)).await.unwrap();
    assert_eq!((3, Vec::new()), compare(0).await);
    let liar = Arc::new(Liar(Ranges::running(nodes.running[&others[1]].log.clone(), PathBuf::new())));
    nodes.running[&others[1]].hub.set_range_handler(GROUP, liar);
    assert_eq!((3, Vec::new()), compare(2).await, "it is the turn of the first again");
    let (from, to) = (LogPosition::new(SEGMENT), LogPosition::new(2 * SEGMENT));
    assert_eq!((3, vec![Difference { peer: others[1], from, to }]), compare(1).await);
    nodes.stop().await;
}
