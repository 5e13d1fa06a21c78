//! Repairs a damaged log from the other members, and keeps a replica whose log is damaged from leading.
//!
//! ```text
//!  read, scrubber, peer's question -> LogView::damage -> Repairer -> set_complete(false): no election, no lead
//!                                                           |        FetchRange to each peer, LogView::repair
//!                                                           +------> set_complete(true)
//! ```
//!
//! Damage that keeps the store from starting is repaired before there is a Raft: see [`repair_stopped`].

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::BytesMut;
use futures::FutureExt;
use futures::future::BoxFuture;
use openraft::storage::RaftStateMachine;
use raft_store::{DamagedRange, LogPosition, LogView, PeerRange, RangeSource, Repaired, StoppedStore};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::GroupRaft;
use super::type_config::{SnapshotData, TypeConfig};
use crate::peer::PeerHub;
use crate::peer::frame::Kind;
use crate::peer::handshake::Class;
use crate::peer::range::{self, RangeHandler};

/// Bytes of one answer, a single larger record excepted.
const ANSWER_BYTES: usize = 1 << 20;
/// Time for a peer to read and send that much.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Ranges served to peers at a time, per group: they are read from the disk.
const SERVED_MAX: usize = 2;
/// Pause after an attempt that failed.
const RETRY: Duration = Duration::from_secs(1);
/// The same when every copy is damaged: only a person can change that.
const HOPELESS_RETRY: Duration = Duration::from_secs(30);

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

impl RangeSource for Peers {
    fn peers(&self) -> Vec<u64> {
        self.hub.others(&self.group)
    }

    fn fetch(&self, peer: u64, from: LogPosition, to: LogPosition) -> Result<PeerRange, String> {
        let link = self.hub.hub().link(&self.group, peer, Class::Repair).map_err(|error| error.to_string())?;
        let mut fields = BytesMut::with_capacity(16);
        range::put_request(&mut fields, from, to);
        let answer = self.runtime.block_on(link.ask(Kind::FetchRange, &fields, Vec::new(), FETCH_TIMEOUT));
        let frame = answer.map_err(|error| error.to_string())?;
        range::decode(&frame).map_err(|error| error.to_string())
    }
}

/// Serves ranges of a store, running or not.
pub(crate) struct Ranges {
    store: Served,
    permits: Arc<Semaphore>,
}

#[derive(Clone)]
enum Served {
    Running(LogView),
    /// Let go of as soon as its repair ends: the store is then opened again.
    Stopped(Weak<StoppedStore>),
}

impl Ranges {
    pub(crate) fn running(log: LogView) -> Arc<Self> {
        Arc::new(Self { store: Served::Running(log), permits: Arc::new(Semaphore::new(SERVED_MAX)) })
    }

    fn stopped(store: &Arc<StoppedStore>) -> Arc<Self> {
        let store = Served::Stopped(Arc::downgrade(store));
        Arc::new(Self { store, permits: Arc::new(Semaphore::new(SERVED_MAX)) })
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

/// Watches a log for damage and has it repaired.
pub(crate) struct Repairer {
    status: watch::Receiver<RepairStatus>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Repairer {
    /// Starts to watch. The range handler of the group must be set for others to repair themselves.
    pub(crate) fn start<SM>(raft: GroupRaft<SM>, log: LogView, peers: Peers) -> Self
    where
        SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>,
    {
        let (sender, status) = watch::channel(RepairStatus::default());
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let stopped = stop.clone();
        tasks.spawn(async move {
            let _ = stopped.run_until_cancelled(watch_log(raft, log, peers, sender)).await;
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

async fn watch_log<SM>(raft: GroupRaft<SM>, log: LogView, peers: Peers, status: watch::Sender<RepairStatus>)
where
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
/// The group must have been announced to the hub. Peers that do not answer are asked again and again: until it is
/// repaired, this replica can do nothing.
///
/// # Errors
/// If nobody has what is damaged here.
pub(crate) async fn repair_stopped(
    store: StoppedStore,
    base: LogPosition,
    peers: &Peers,
    note: impl Fn(&raft_store::Error),
) -> Result<Repaired, raft_store::Error> {
    let store = Arc::new(store);
    peers.hub.set_range_handler(&peers.group, Ranges::stopped(&store));
    loop {
        let (held, source) = (Arc::clone(&store), peers.clone());
        let result = tokio::task::spawn_blocking(move || held.repair(base, &source)).await;
        match result.unwrap_or(Err(raft_store::Error::Closed)) {
            Err(error @ raft_store::Error::NotRepaired { everywhere: false, .. }) => note(&error),
            result => return result,
        }
        tokio::time::sleep(RETRY).await;
    }
}
