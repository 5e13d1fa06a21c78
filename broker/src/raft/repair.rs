//! Repairs a damaged log from the other members, and keeps a replica whose log is damaged from leading.
//!
//! ```text
//!  read, scrubber, peer's question -> LogView::damage -> Repairer -> set_complete(false): no election, no lead
//!                                                           |        FetchRange to each peer, LogView::repair
//!                                                           +------> set_complete(true)
//! ```
//!
//! Damage that keeps the store from starting is repaired before there is a Raft: see [`repair_stopped`].

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use futures::future::BoxFuture;
use openraft::storage::RaftStateMachine;
use raft_store::{DamagedRange, LogPosition, LogView, PeerRange, RangeSource, Repaired, StoppedStore};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::GroupRaft;
use super::digests;
use super::type_config::{SnapshotData, TypeConfig};
use crate::peer::PeerHub;
use crate::peer::frame::{Frame, Kind};
use crate::peer::handshake::Class;
use crate::peer::range::{self, CheckpointWanted, RangeHandler};
use crate::store::checkpoint::Checkpoints;

/// Bytes of one answer, a single larger record excepted.
const ANSWER_BYTES: usize = 1 << 20;
/// Time for a peer to read and send that much.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Ranges served to peers at a time, per group: they are read from the disk.
const SERVED_MAX: usize = 2;
/// Pause after an attempt that failed.
pub(crate) const RETRY: Duration = Duration::from_secs(1);
/// The same when every copy is damaged: only a person can change that.
pub(crate) const HOPELESS_RETRY: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 30 });

/// The other members of a group, to fetch from. Its calls block, so they belong on a blocking thread.
#[derive(Clone)]
pub(crate) struct Peers {
    hub: PeerHub,
    group: String,
    runtime: tokio::runtime::Handle,
}

impl Peers {
    /// To be called on the runtime.
    pub(crate) fn new(hub: PeerHub, group: &str) -> Self {
        Self { hub, group: group.to_owned(), runtime: tokio::runtime::Handle::current() }
    }
}

impl Peers {
    /// A checkpoint that one of the other members has.
    ///
    /// # Errors
    /// What each of them answered, and whether all of them did.
    pub(crate) async fn checkpoint(&self, wanted: CheckpointWanted) -> Result<Bytes, (String, bool)> {
        let (mut answers, mut everywhere) = (Vec::new(), true);
        for peer in self.hub.others(&self.group) {
            match self.ask_for_checkpoint(peer, wanted).await {
                Ok(found) if !found.is_empty() => return Ok(found),
                Ok(_) => answers.push(format!("node {peer}: has none")),
                Err(reason) => {
                    everywhere = false;
                    answers.push(format!("node {peer}: {reason}"));
                }
            }
        }
        Err((answers.join("; "), everywhere))
    }

    async fn ask_for_checkpoint(&self, peer: u64, wanted: CheckpointWanted) -> Result<Bytes, String> {
        let mut fields = BytesMut::with_capacity(16);
        range::put_checkpoint_request(&mut fields, wanted);
        self.ask(peer, Kind::FetchCheckpoint, &fields).await.map(|frame| frame.tail)
    }

    /// The digests of a segment as another member has them; empty if it has none.
    pub(super) async fn digests(&self, peer: u64, base: LogPosition) -> Result<Bytes, String> {
        let mut fields = BytesMut::with_capacity(8);
        range::put_digest_request(&mut fields, base);
        self.ask(peer, Kind::FetchDigests, &fields).await.map(|frame| frame.tail)
    }

    pub(super) fn others(&self) -> Vec<u64> {
        self.hub.others(&self.group)
    }

    async fn ask(&self, peer: u64, kind: Kind, fields: &[u8]) -> Result<Frame, String> {
        let link = self.hub.hub().link(&self.group, peer, Class::Repair).map_err(|error| error.to_string())?;
        link.ask(kind, fields, Vec::new(), FETCH_TIMEOUT).await.map_err(|error| error.to_string())
    }
}

impl RangeSource for Peers {
    fn peers(&self) -> Vec<u64> {
        self.hub.others(&self.group)
    }

    fn fetch(&self, peer: u64, from: LogPosition, to: LogPosition) -> Result<PeerRange, String> {
        let mut fields = BytesMut::with_capacity(16);
        range::put_request(&mut fields, from, to);
        let frame = self.runtime.block_on(self.ask(peer, Kind::FetchRange, &fields))?;
        range::decode(&frame).map_err(|error| error.to_string())
    }
}

/// Serves ranges of a store, running or not.
pub(crate) struct Ranges {
    store: Served,
    /// The directory of the checkpoints.
    checkpoints: PathBuf,
    permits: Arc<Semaphore>,
}

#[derive(Clone)]
enum Served {
    Running(LogView),
    /// Let go of as soon as its repair ends: the store is then opened again.
    Stopped(Weak<StoppedStore>),
}

impl Ranges {
    pub(crate) fn running(log: LogView, checkpoints: PathBuf) -> Arc<Self> {
        Arc::new(Self { store: Served::Running(log), checkpoints, permits: Arc::new(Semaphore::new(SERVED_MAX)) })
    }

    pub(crate) fn stopped(store: &Arc<StoppedStore>, checkpoints: PathBuf) -> Arc<Self> {
        let store = Served::Stopped(Arc::downgrade(store));
        Arc::new(Self { store, checkpoints, permits: Arc::new(Semaphore::new(SERVED_MAX)) })
    }
}

impl RangeHandler for Ranges {
    fn fetch(&self, from: LogPosition, to: LogPosition) -> BoxFuture<'static, Result<PeerRange, String>> {
        let (store, permits) = (self.store.clone(), Arc::clone(&self.permits));
        async move {
            let permit = permits.acquire_owned().await.map_err(|error| error.to_string())?;
            let read = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                match store {
                    Served::Running(log) => log.serve_range(from, to, ANSWER_BYTES).map_err(|error| error.to_string()),
                    Served::Stopped(store) => match store.upgrade() {
                        Some(store) => store.serve_range(from, to, ANSWER_BYTES).map_err(|error| error.to_string()),
                        None => Err("the store is starting".to_owned()),
                    },
                }
            });
            read.await.unwrap_or_else(|error| Err(error.to_string()))
        }
        .boxed()
    }

    fn digests(&self, base: LogPosition) -> BoxFuture<'static, Result<Bytes, String>> {
        let (store, permits) = (self.store.clone(), Arc::clone(&self.permits));
        async move {
            let permit = permits.acquire_owned().await.map_err(|error| error.to_string())?;
            let read = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                match store {
                    Served::Running(log) => digests::serve(&log, base).map_err(|error| error.to_string()),
                    Served::Stopped(_) => Err("the store does not run".to_owned()),
                }
            });
            read.await.unwrap_or_else(|error| Err(error.to_string())).map(Bytes::from)
        }
        .boxed()
    }

    fn checkpoint(&self, wanted: CheckpointWanted) -> BoxFuture<'static, Result<Bytes, String>> {
        let (checkpoints, permits) = (Checkpoints::look(self.checkpoints.clone()), Arc::clone(&self.permits));
        async move {
            let permit = permits.acquire_owned().await.map_err(|error| error.to_string())?;
            let read = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                let found = checkpoints.first_from(wanted.index, wanted.resume.get());
                found.map(|found| found.map_or_else(Bytes::new, |(_, bytes)| bytes)).map_err(|error| error.to_string())
            });
            read.await.unwrap_or_else(|error| Err(error.to_string()))
        }
        .boxed()
    }
}

/// How the repair of one replica goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RepairStatus {
    /// What is damaged and not repaired yet.
    pub damaged: Vec<DamagedRange>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
    /// Every copy is damaged: the group stands still until a person acts.
    pub hopeless: bool,
    /// Ranges repaired since the start of the process.
    pub repaired_ranges: u64,
    /// Their bytes.
    pub repaired_bytes: u64,
}

/// Drops the oldest part of a log.
pub(crate) trait DropsOld: Send + Sync + 'static {
    /// Drops the segment at `base` and all before it; says whether they are gone.
    fn drop_through(&self, base: LogPosition) -> BoxFuture<'_, bool>;
}

/// Watches a log for damage and has it repaired.
pub(crate) struct Repairer {
    status: watch::Receiver<RepairStatus>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Repairer {
    /// Starts to watch. The range handler of the group must be set for others to repair themselves.
    pub(crate) fn start<SM>(raft: GroupRaft<SM>, log: LogView, peers: Peers, drops: Arc<dyn DropsOld>) -> Self
    where
        SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>,
    {
        let (sender, status) = watch::channel(RepairStatus::default());
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let stopped = stop.clone();
        tasks.spawn(async move {
            let _ = stopped.run_until_cancelled(watch_log(raft, log, peers, drops, sender)).await;
        });
        Self { status, stop, tasks }
    }

    pub(crate) fn status(&self) -> RepairStatus {
        self.status.borrow().clone()
    }

    /// Waits until the status is as wanted.
    #[cfg(test)]
    pub(crate) async fn until(&self, is_so: impl Fn(&RepairStatus) -> bool) {
        let _ = self.status.clone().wait_for(|status| is_so(status)).await;
    }

    /// Stops watching. A repair under way is finished by its thread.
    pub(crate) async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

async fn watch_log<SM>(
    raft: GroupRaft<SM>,
    log: LogView,
    peers: Peers,
    drops: Arc<dyn DropsOld>,
    status: watch::Sender<RepairStatus>,
) where
    SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>,
{
    let mut damage = log.damage();
    loop {
        let Ok(damaged) = damage.wait_for(|damaged| !damaged.is_empty()).await.map(|damaged| damaged.clone()) else {
            return;
        };
        let first = damaged.first().map_or(LogPosition::ZERO, |range| range.base);
        status.send_modify(|status| status.damaged = damaged);
        raft.set_complete(false).await;
        let (view, source) = (log.clone(), peers.clone());
        let repaired = tokio::task::spawn_blocking(move || view.repair(first, &source)).await;
        let pause = match repaired {
            Ok(Ok(repaired)) => {
                note_repaired(&status, &repaired);
                Duration::ZERO
            }
            Ok(Err(error)) => {
                let is_purged = matches!(error, raft_store::Error::NotRepaired { purged: true, .. });
                if is_purged && drops.drop_through(first).await {
                    tracing::warn!(group = raft.group(), %error, "what is damaged is too old for the others, and dropped");
                    // The damage has gone with its segment, which the next attempt finds.
                    continue;
                }
                let hopeless = matches!(error, raft_store::Error::NotRepaired { everywhere: true, .. });
                note_failed(&raft, &status, &error, hopeless);
                if hopeless { HOPELESS_RETRY } else { RETRY }
            }
            Err(error) => {
                tracing::error!(group = raft.group(), %error, "a repair has panicked");
                HOPELESS_RETRY
            }
        };
        let left = damage.borrow_and_update().clone();
        let complete = left.is_empty();
        status.send_modify(|status| status.damaged = left);
        if complete {
            status.send_modify(|status| (status.last_error, status.hopeless) = (None, false));
            raft.set_complete(true).await;
        } else {
            tokio::time::sleep(pause).await;
        }
    }
}

fn note_repaired(status: &watch::Sender<RepairStatus>, repaired: &Repaired) {
    status.send_modify(|status| {
        status.repaired_ranges += repaired.ranges.len() as u64;
        status.repaired_bytes += repaired.fetched_bytes;
    });
}

fn note_failed<SM>(
    raft: &GroupRaft<SM>,
    status: &watch::Sender<RepairStatus>,
    error: &raft_store::Error,
    hopeless: bool,
) where
    SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>,
{
    let text = error.to_string();
    let before = status.borrow().last_error.clone();
    if before.as_ref() != Some(&text) {
        if hopeless {
            tracing::error!(group = raft.group(), error = text, "no replica has a good copy: this group stands still");
        } else {
            tracing::warn!(group = raft.group(), error = text, "not repaired yet");
        }
    }
    if hopeless {
        raft.stand_still();
    }
    status.send_modify(|status| {
        status.last_error = Some(text);
        status.hopeless = hopeless;
    });
}

/// Repairs a store whose segment at `base` keeps it from starting, and returns when it has been.
///
/// The group must have been announced to the hub. Peers are asked again and again, for until it is repaired this replica
/// can do nothing: those that do not answer soon, and where every copy is damaged now and then, for a member may be put
/// right by a person. `note` is told of each attempt that failed.
///
/// # Errors
/// [`raft_store::Error::NotRepaired`] if the others have dropped the range. Else if the store cannot be read or written.
pub(crate) async fn repair_stopped(
    store: &Arc<StoppedStore>,
    base: LogPosition,
    peers: &Peers,
    note: impl Fn(&raft_store::Error),
) -> Result<Repaired, raft_store::Error> {
    loop {
        let (held, source) = (Arc::clone(store), peers.clone());
        let result = tokio::task::spawn_blocking(move || held.repair(base, &source)).await;
        match result.unwrap_or(Err(raft_store::Error::Closed)) {
            Err(error @ raft_store::Error::NotRepaired { everywhere, purged: false, .. }) => {
                note(&error);
                tokio::time::sleep(if everywhere { HOPELESS_RETRY } else { RETRY }).await;
            }
            result => return result,
        }
    }
}
