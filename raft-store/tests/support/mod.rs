//! What the tests of this crate share: a type configuration, a small state machine, and a log driven
//! without Raft.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io;
use std::path::Path;

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt};
use openraft::alias::{OneshotReceiverOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::entry::RaftEntry;
use openraft::impls::leader_id_std::LeaderId;
use openraft::storage::{EntryResponder, IOFlushed, RaftLogStorage, RaftStateMachine};
use openraft::type_config::TypeConfigExt;
use openraft::{OptionalSend, RaftLogReader, RaftSnapshotBuilder};
use raft_store::{
    Body, ClusterId, FlushMode, LogEntry, LogId, LogIndex, LogStorage, LogView, Member, Membership, Opened, Options,
    Payload, RaftLogId, Recovered, Result, Term,
};

openraft::declare_raft_types!(
    pub Config:
        D = Payload,
        R = (),
        NodeId = u64,
        Node = Member,
        Term = u64,
        LeaderId = LeaderId<u64, u64>,
        Vote = openraft::Vote<LeaderId<u64, u64>>,
        Payload = Body,
        Entry = LogEntry,
        AsyncRuntime = openraft_rt_tokio::TokioRuntime,
);

pub const CLUSTER: ClusterId = ClusterId::new(*b"a cluster's name");

pub fn options(dir: &Path, flush: FlushMode) -> Options {
    let mut options = Options::new(dir, CLUSTER, 1);
    options.create = true;
    options.allow_unproven_fs = true;
    options.segment_bytes = 64 << 10;
    options.tail_bytes = 4 << 10;
    options.flush = flush;
    // Nothing is written that a test did not ask for.
    options.stall.probe_interval = std::time::Duration::from_secs(3600);
    options
}

pub fn id(term: u64, index: u64) -> LogId {
    LogId::new(Term::new(term), LogIndex::new(index))
}

pub fn raft_id(term: u64, index: u64) -> RaftLogId {
    id(term, index).to_raft()
}

pub fn entry(term: u64, index: u64, payload: impl Into<Bytes>) -> LogEntry {
    LogEntry::new(id(term, index), Body::Normal(Payload(payload.into())))
}

/// A store driven without Raft, each call waited for.
pub struct Store {
    pub storage: LogStorage<Config>,
    pub view: LogView,
    pub recovered: Recovered,
    runtime: Runtime,
}

/// Runs what does not block, one thing at a time.
struct Runtime(tokio::runtime::Runtime);

/// What takes longer never ends: the test has failed.
const LONG: std::time::Duration = std::time::Duration::from_secs(120);

impl Runtime {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.block_on(async { tokio::time::timeout(LONG, future).await.expect("it never ends") })
    }
}

impl Store {
    pub fn open(options: Options) -> Result<Self> {
        raft_store::open(options).map(Self::new)
    }

    pub fn new(opened: Opened<Config>) -> Self {
        let Opened { storage, view, recovered } = opened;
        let runtime = Runtime(tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
        Self { storage, view, recovered, runtime }
    }

    /// Appends and waits until it counts as done.
    pub fn append(&mut self, entries: Vec<LogEntry>) -> io::Result<()> {
        self.runtime.block_on(async {
            let (sender, receiver) = Config::oneshot();
            self.storage.append(entries, IOFlushed::signal(sender)).await?;
            receiver.await.unwrap_or_else(|_| Err(io::Error::other("never answered")))
        })
    }

    /// Appends; also fails if the append is refused at once.
    pub fn runtime_append(&mut self, entries: Vec<LogEntry>) -> io::Result<()> {
        self.append(entries)
    }

    /// Runs something on the store's own runtime.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Does something to the storage on the store's own runtime.
    pub fn with_storage<T>(&mut self, work: impl AsyncFnOnce(&mut LogStorage<Config>) -> T) -> T {
        self.runtime.block_on(work(&mut self.storage))
    }

    /// Appends without waiting.
    pub fn start_append(&mut self, entries: Vec<LogEntry>) -> Appending {
        self.try_start_append(entries).unwrap()
    }

    /// The same, if it is not refused at once.
    pub fn try_start_append(&mut self, entries: Vec<LogEntry>) -> io::Result<Appending> {
        let (sender, receiver) = Config::oneshot();
        self.runtime.block_on(self.storage.append(entries, IOFlushed::signal(sender)))?;
        Ok(receiver)
    }

    /// Waits for the answer to an append.
    pub fn wait(&self, appending: Appending) -> io::Result<()> {
        self.runtime.block_on(async { appending.await.unwrap_or_else(|_| Err(io::Error::other("never answered"))) })
    }

    pub fn vote(&mut self, term: u64) -> io::Result<()> {
        let vote = openraft::Vote::new_committed(term, 1);
        self.runtime.block_on(self.storage.save_vote(&vote))
    }

    pub fn truncate_after(&mut self, last: Option<RaftLogId>) -> io::Result<()> {
        self.runtime.block_on(self.storage.truncate_after(last))
    }

    pub fn purge(&mut self, through: RaftLogId) -> io::Result<()> {
        self.runtime.block_on(self.storage.purge(through))
    }

    pub fn commit(&mut self, committed: RaftLogId) {
        self.runtime.block_on(self.storage.save_committed(Some(committed))).unwrap();
    }

    pub fn entries(&mut self, from: u64, until: u64) -> io::Result<Vec<LogEntry>> {
        self.runtime.block_on(async {
            let mut reader = self.storage.get_log_reader().await;
            reader.try_get_log_entries(from..until).await
        })
    }

    pub fn limited(&mut self, from: u64, until: u64) -> io::Result<Vec<LogEntry>> {
        self.runtime.block_on(async {
            let mut reader = self.storage.get_log_reader().await;
            reader.limited_get_log_entries(from, until).await
        })
    }

    pub fn stream(&mut self, from: u64, until: u64) -> io::Result<Vec<LogEntry>> {
        self.runtime.block_on(async {
            let mut reader = self.storage.get_log_reader().await;
            let stream = reader.entries_stream(from..until).await;
            Box::pin(stream).try_collect().await
        })
    }

    /// A reader as Raft's tasks have them.
    pub fn reader(&mut self) -> raft_store::LogReader<Config> {
        self.runtime.block_on(self.storage.get_log_reader())
    }

    /// The last purged and the last id.
    pub fn log_state(&mut self) -> (Option<LogId>, Option<LogId>) {
        let state = self.runtime.block_on(self.storage.get_log_state()).unwrap();
        let ours = |id: Option<RaftLogId>| id.as_ref().map(LogId::from_raft);
        (ours(state.last_purged_log_id), ours(state.last_log_id))
    }

    /// Stops as a kill would: nothing is finished, nothing marked.
    pub fn kill(self) {
        drop(self);
    }

    /// Stops in order.
    pub fn close(self) {
        self.view.close().unwrap();
    }
}

/// The answer to an append that was not waited for.
pub type Appending = OneshotReceiverOf<Config, io::Result<()>>;

/// A state machine that only counts.
#[derive(Default)]
pub struct Counter {
    applied: Option<RaftLogId>,
    membership: StoredMembershipOf<Config>,
    snapshot: Option<SnapshotMetaOf<Config>>,
}

pub struct Builder(Option<SnapshotMetaOf<Config>>, std::sync::Arc<std::sync::Mutex<Option<SnapshotMetaOf<Config>>>>);

/// The counter, its snapshot shared with its builder.
#[derive(Default)]
pub struct Machine {
    counter: Counter,
    built: std::sync::Arc<std::sync::Mutex<Option<SnapshotMetaOf<Config>>>>,
}

impl RaftSnapshotBuilder<Config> for Builder {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Config, ()>> {
        let meta = self.0.clone().unwrap();
        *self.1.lock().unwrap() = Some(meta.clone());
        Ok(SnapshotOf::<Config, ()> { meta, snapshot: () })
    }
}

impl RaftStateMachine<Config> for Machine {
    type SnapshotData = ();
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<RaftLogId>, StoredMembershipOf<Config>)> {
        Ok((self.counter.applied, self.counter.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Config>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.next().await.transpose()? {
            let log_id = entry.id().to_raft();
            self.counter.applied = Some(log_id);
            if let Some(membership) = RaftEntry::get_membership(&entry) {
                self.counter.membership = StoredMembershipOf::<Config>::new(Some(log_id), membership);
            }
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, _force: bool) -> Option<Builder> {
        let meta = SnapshotMetaOf::<Config> {
            last_log_id: self.counter.applied,
            last_membership: self.counter.membership.clone(),
        };
        Some(Builder(Some(meta), self.built.clone()))
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        self.try_create_snapshot_builder(true).await.unwrap()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMetaOf<Config>, (): ()) -> io::Result<()> {
        self.counter.applied = meta.last_log_id;
        self.counter.membership = meta.last_membership.clone();
        *self.built.lock().unwrap() = Some(meta.clone());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Config, ()>>> {
        let meta = self.built.lock().unwrap().clone();
        Ok(meta.map(|meta| SnapshotOf::<Config, ()> { meta, snapshot: () }))
    }
}

/// A membership of default members.
pub fn membership(voters: &[u64]) -> Membership {
    Membership::new_with_defaults(vec![voters.iter().copied().collect()], [])
}
