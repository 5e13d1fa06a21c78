//! Whole replicas: Raft, a log on disk, this state machine and its files.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use raft_store::{ClusterId, Options, StopClass};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::command::PutMode;
use super::testing::{Arrivals, message, pack, topic};
use super::*;
use crate::peer::PeerHub;
use crate::raft::tests::cluster::{CLUSTER, hub, identity, member};
use crate::raft::{GroupRaft, GroupRaftOptions, Role, Timing, TypeConfig};

pub(crate) const SEGMENT_BYTES: u64 = 1 << 20;

/// Leadership stays where it is on a machine busy with other things: what is tested here is not elections.
pub(crate) const CALM: Timing = Timing {
    heartbeat_interval: Duration::from_millis(200),
    election_timeout_min: Duration::from_secs(3),
    election_timeout_max: Duration::from_secs(6),
};

/// Waits for `future`, and fails instead of waiting for ever.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), future).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

pub(crate) struct Replica {
    pub(crate) hub: PeerHub,
    pub(crate) raft: GroupRaft,
    pub(crate) view: LogView,
    pub(crate) state: StateReader,
    pub(crate) store: MessageStore,
    pub(crate) control: StoreControl,
    started_behind: Option<EntryId>,
    stop: StopClass,
}

pub(crate) async fn start(
    dir: &Path,
    node_id: u64,
    members: &BTreeMap<u64, Member>,
    listener: TcpListener,
    timing: Timing,
) -> Replica {
    let mut options = Options::new(dir.join("log"), ClusterId::new(CLUSTER), node_id);
    options.create = true;
    options.allow_unproven_fs = true;
    options.segment_bytes = SEGMENT_BYTES;
    options.payload_bytes_max = 256 * 1024;
    let log = raft_store::open::<TypeConfig>(options).unwrap();
    let mut store_options = StoreOptions::new(dir, CLUSTER, 4 * SEGMENT_BYTES);
    store_options.entries_per_queue_file = 1000;
    store_options.index_sizes.slots = 100;
    store_options.index_sizes.entries = 5000;
    let opened = open(&store_options, &log.view, Arc::new(Arrivals::default())).unwrap();
    let hub = hub(node_id, listener).await;
    let raft_options = GroupRaftOptions {
        identity: identity(node_id, log.recovered.start_counter),
        members: members.clone(),
        preferred_leader: None,
        restarted: log.recovered.vote.is_some(),
        started: Instant::now(),
        timing,
        propose_timeout: Duration::from_secs(60),
        catch_up: None,
    };
    let raft = GroupRaft::start(raft_options, &hub, log.storage, opened.state_machine).await.unwrap();
    Replica {
        hub,
        raft,
        view: log.view,
        state: opened.state,
        store: opened.store,
        control: opened.control,
        started_behind: opened.started_behind,
        stop: log.recovered.stop,
    }
}

impl Replica {
    pub(crate) async fn stop(self, clean: bool) {
        self.raft.shutdown().await;
        self.hub.shutdown().await;
        if clean {
            self.control.stop().await.unwrap();
        }
        let threads = self.control.threads.lock().take();
        let view = self.view.clone();
        drop(self);
        if let Some(threads) = threads {
            tokio::task::spawn_blocking(|| threads.join()).await.unwrap();
        }
        tokio::task::spawn_blocking(move || view.close().unwrap()).await.unwrap();
    }

    pub(crate) async fn lead(&self) {
        soon("leader", self.raft.role().wait_for(Role::is_ready_leader)).await.unwrap();
    }

    pub(crate) async fn command(&self, command: Command) -> CommandReply {
        match self.raft.propose(command.encode()).await.unwrap().0 {
            ApplyReply::Command { reply, .. } => reply,
            other => panic!("{other:?}"),
        }
    }

    /// Sends messages of about 1 KiB, and returns the offset of the last.
    pub(crate) async fn send(&self, count: usize) -> u64 {
        self.send_at(count, 1_700_000_000_000).await
    }

    /// The same, stored at a given time.
    pub(crate) async fn send_at(&self, count: usize, store_ms: i64) -> u64 {
        let body = "x".repeat(1000);
        let mut last = 0;
        for _ in 0..count / 20 {
            let payload = pack(&[message("A", 0, &body).stored_at(store_ms); 20]);
            let ApplyReply::Pack(reply) = self.raft.propose(payload).await.unwrap().0 else { panic!() };
            let Some(MessageOutcome::Appended(appended)) = reply.outcomes.last() else { panic!("{reply:?}") };
            last = appended.queue_offset;
        }
        last
    }

    pub(crate) async fn applied(&self, index: u64) {
        soon("dispatch", self.store.wait_dispatched(index)).await.unwrap();
    }

    pub(crate) fn check_queue(&self) {
        let (min, max) = (self.store.min_offset("A", 0), self.store.max_offset("A", 0));
        for at in min..max {
            let bytes = self.store.message("A", 0, at).unwrap().unwrap();
            let record = protocol::message::RecordView::parse(&bytes).unwrap();
            assert_eq!(record.queue_offset() as u64, at);
            let by_place = self.store.message_at(record.physical_offset() as u64).unwrap();
            assert_eq!(by_place.as_ref(), Some(&bytes));
        }
    }
}

pub(crate) async fn create_topic(replica: &Replica) {
    replica.command(Command::bootstrap("c", "broker-a", 1).unwrap()).await;
    let topics = vec![TopicConfig::new(topic("A"), 1, 6)];
    replica.command(Command::PutTopics { topics, mode: PutMode::CreateOnly, stamped_ms: 1 }).await;
}

pub(crate) async fn bind() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_restarts_from_its_checkpoint_whichever_way_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let listener = bind().await;
    let address = listener.local_addr().unwrap();
    let members = BTreeMap::from([(1, member(1, address))]);
    let replica = start(dir.path(), 1, &members, listener, Timing::default()).await;
    replica.raft.initialize().await.unwrap();
    replica.lead().await;
    create_topic(&replica).await;
    // Several segments.
    assert_eq!(replica.send(4000).await, 3999);
    let applied = replica.state.applied_index().unwrap();
    replica.applied(applied).await;
    replica.check_queue();
    replica.stop(true).await;

    let replica = start(dir.path(), 1, &members, TcpListener::bind(address).await.unwrap(), Timing::default()).await;
    assert_eq!(replica.started_behind.map(|id| id.index), Some(applied));
    assert_eq!(replica.stop, StopClass::Clean);
    replica.lead().await;
    assert_eq!(replica.store.max_offset("A", 0), 4000);
    replica.check_queue();
    assert_eq!(replica.send(1200).await, 5199);
    let applied = replica.state.applied_index().unwrap();
    replica.stop(false).await;

    let replica = start(dir.path(), 1, &members, TcpListener::bind(address).await.unwrap(), Timing::default()).await;
    let started_behind = replica.started_behind.unwrap().index;
    assert!(started_behind < applied);
    replica.lead().await;
    replica.applied(applied).await;
    assert_eq!(replica.store.max_offset("A", 0), 5200);
    replica.check_queue();

    // Retention: an early checkpoint becomes the snapshot, and the log before it goes.
    let chosen = replica.control.checkpoints().unwrap()[0];
    replica.control.choose_snapshot(chosen).unwrap();
    replica.raft.trigger_snapshot().await.unwrap();
    let reaches = async |what: fn(&crate::raft::GroupMetrics) -> Option<u64>| {
        while what(&replica.raft.metrics()) < Some(chosen) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon("snapshot", reaches(|metrics| metrics.snapshot)).await;
    replica.raft.purge_log(chosen).await.unwrap();
    soon("purge", reaches(|metrics| metrics.purged)).await;
    let min = replica.store.min_offset("A", 0);
    assert!((1..4000).contains(&min), "{min}");
    replica.check_queue();
    replica.stop(false).await;
    std::fs::remove_dir_all(dir.path().join("consumequeue")).unwrap();

    let replica = start(dir.path(), 1, &members, TcpListener::bind(address).await.unwrap(), Timing::default()).await;
    assert_eq!(replica.started_behind.map(|id| id.index), Some(chosen));
    replica.lead().await;
    replica.applied(replica.state.applied_index().unwrap()).await;
    assert_eq!((replica.store.min_offset("A", 0), replica.store.max_offset("A", 0)), (min, 5200));
    replica.check_queue();
    replica.stop(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_comes_late_starts_from_the_snapshot_and_agrees_from_there() {
    let dirs: Vec<tempfile::TempDir> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let mut listeners = Vec::new();
    let mut members = BTreeMap::new();
    for node_id in 1..=3 {
        let listener = bind().await;
        members.insert(node_id, member(node_id, listener.local_addr().unwrap()));
        listeners.push(listener);
    }
    let late = listeners.pop().unwrap();
    let second = start(dirs[1].path(), 2, &members, listeners.pop().unwrap(), CALM).await;
    let first = start(dirs[0].path(), 1, &members, listeners.pop().unwrap(), CALM).await;
    first.raft.initialize().await.unwrap();
    let (mut first_role, mut second_role) = (first.raft.role(), second.raft.role());
    let leader = tokio::select! {
        role = first_role.wait_for(Role::is_ready_leader) => role.map(|_| &first).unwrap(),
        role = second_role.wait_for(Role::is_ready_leader) => role.map(|_| &second).unwrap(),
    };
    create_topic(leader).await;
    leader.send(3000).await;
    let applied = leader.state.applied_index().unwrap();
    let both = [&first, &second];
    for replica in both {
        replica.applied(applied).await;
        replica.control.checkpoint().await.unwrap();
        let chosen = replica.control.checkpoints().unwrap()[1];
        replica.control.choose_snapshot(chosen).unwrap();
        replica.raft.trigger_snapshot().await.unwrap();
        let purged = async {
            while replica.raft.metrics().purged < Some(chosen) {
                replica.raft.purge_log(chosen).await.unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("purge", purged).await;
    }
    let min = leader.store.min_offset("A", 0);
    assert_eq!(first.store.min_offset("A", 0), second.store.min_offset("A", 0));
    assert!((1..3000).contains(&min), "{min}");

    let third = start(dirs[2].path(), 3, &members, late, CALM).await;
    third.applied(applied).await;
    assert_eq!((third.store.min_offset("A", 0), third.store.max_offset("A", 0)), (min, 3000));
    third.check_queue();
    let last = leader.send(100).await;
    let applied = leader.state.applied_index().unwrap();
    let mut images = Vec::new();
    for replica in [&first, &second, &third] {
        replica.applied(applied).await;
        assert_eq!(replica.store.max_offset("A", 0), last + 1);
        replica.check_queue();
        let core = replica.control.shared.core.lock().await;
        images.push(core.state.to_image(CLUSTER, Default::default()).unwrap());
    }
    assert_eq!(images[0], images[1]);
    assert_eq!(images[0], images[2]);
    for replica in [first, second, third] {
        replica.stop(true).await;
    }
}
