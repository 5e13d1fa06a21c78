//! A group whose stored bytes are damaged: it alone stands still, and the node's other groups serve as always.
//!
//! ```text
//!  start meets damage --> halted: clients are refused, status names the range
//!                           |
//!                           '--> mend: what peers have is fetched into the stopped store --> start again
//!                                  they dropped it as too old: begin behind one of their checkpoints --> start again
//!                                  nobody has it: asked again now and then, a member may come back
//! ```
//!
//! There is no Raft meanwhile, so this replica neither votes nor leads. What its store still has it gives to peers.

use std::sync::Arc;
use std::time::Duration;

use raft_store::{DamagedRange, LogId, LogIndex, LogPosition, ResumePoint, StoppedStore, Term};
use tokio::sync::mpsc;

use super::StartError;
use super::group::{Context, NodeGroup, Order};
use crate::http::AdminError;
use crate::peer::range::CheckpointWanted;
use crate::peer::{GroupIdentity, PeerAddress};
use crate::raft::repair::{HOPELESS_RETRY, RETRY, Ranges, repair_stopped};
use crate::state_machine::snapshot::Image;
use crate::store::checkpoint::Checkpoints;

/// Why a group does not run although its node does.
#[derive(Clone, Debug)]
pub(super) struct Halted {
    /// For people: it names the file and the range.
    pub(super) reason: String,
    pub(super) damaged: Option<DamagedRange>,
    /// Nobody has what is missing, as far as is known: the group waits for a person.
    pub(super) failed: bool,
}

/// Something that peers may have a good copy of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The segment that starts there.
    Segment(LogPosition),
    /// The current checkpoint, of this entry.
    Checkpoint(u64),
}

impl StartError {
    /// Whether it is about the bytes of one group, which the others need not care about.
    pub(super) fn is_damage(&self, has_peers: bool) -> bool {
        match self {
            Self::Log { source, .. } => {
                source.is_damage() || (has_peers && StoppedStore::damaged_segment(source).is_some())
            }
            Self::Store { source: crate::store::Error::Log(source), .. } => source.is_damage(),
            Self::Store { source: crate::store::Error::Checkpoint { .. }, .. } => true,
            _ => false,
        }
    }

    fn log_error(&self) -> Option<&raft_store::Error> {
        match self {
            Self::Log { source, .. } | Self::Store { source: crate::store::Error::Log(source), .. } => Some(source),
            _ => None,
        }
    }

    /// What peers may have, of what is damaged.
    fn fault(&self) -> Option<Fault> {
        if let Self::Store { source: crate::store::Error::Checkpoint { index, .. }, .. } = self {
            return Some(Fault::Checkpoint(index.unwrap_or(0)));
        }
        StoppedStore::damaged_segment(self.log_error()?).map(Fault::Segment)
    }

    fn halts(&self, failed: bool) -> Halted {
        let damaged = self.log_error().and_then(DamagedRange::of);
        Halted { reason: describe_failure(self), damaged, failed }
    }
}

/// An error with its causes, in one line.
pub(super) fn describe_failure(error: &StartError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

impl NodeGroup {
    /// Makes a group that met damage start again, and carries out no orders meanwhile.
    pub(super) async fn mend(
        &self,
        context: &Context,
        error: StartError,
        ordered: &mut mpsc::Receiver<Order>,
    ) -> Result<(), StartError> {
        let mut mended = std::pin::pin!(self.mend_and_start(context, error));
        loop {
            tokio::select! {
                started = &mut mended => return started,
                Some(order) = ordered.recv() => {
                    let reason = self.halted().map_or_else(String::new, |halted| halted.reason);
                    order.refuse(AdminError::Unavailable(format!("{reason}: its store must be repaired first")));
                }
            }
        }
    }

    async fn mend_and_start(&self, context: &Context, mut error: StartError) -> Result<(), StartError> {
        let mut repaired = None;
        loop {
            let Some(fault) = error.fault().filter(|_| self.has_peers()) else {
                self.halt(error.halts(true));
                return std::future::pending().await;
            };
            if repaired == Some(fault) {
                // What peers sent did not make it start, so their next answer will hardly do.
                self.halt(error.halts(true));
                tokio::time::sleep(HOPELESS_RETRY).await;
            }
            self.halt(error.halts(false));
            while let Err(error) = self.repair(context, fault).await {
                self.halt(StartError::Log { group: self.name().to_owned(), source: error }.halts(true));
                tokio::time::sleep(HOPELESS_RETRY).await;
            }
            repaired = Some(fault);
            error = match self.start_once(context).await {
                Err(error) if error.is_damage(true) => error,
                started => return started,
            };
        }
    }

    /// Fetches what keeps the replica from starting from the other members, for as long as it takes.
    async fn repair(&self, context: &Context, fault: Fault) -> Result<(), raft_store::Error> {
        let store = Arc::new(StoppedStore::open(&self.log_options(context))?);
        let identity = GroupIdentity {
            group: self.name().to_owned(),
            node_id: store.node_id().unwrap_or_else(|| self.options().own_id),
            store_uuid: store.store_uuid(),
            start_counter: store.start_counter(),
            generation: 0,
        };
        let known = self.known_members();
        let addresses = known.members.into_iter().map(|(id, member)| {
            let address = PeerAddress { node: member.node, raft_addr: member.raft_addr };
            (id, address)
        });
        context.hub.add_group(identity, addresses.collect());
        // Meanwhile the store gives to peers what it has.
        context.hub.set_range_handler(self.name(), Ranges::stopped(&store, self.checkpoints()));
        let result = match fault {
            Fault::Segment(base) => self.repair_segment(context, &store, base).await,
            Fault::Checkpoint(index) => self.replace_checkpoint(context, index, LogPosition::ZERO).await.map(drop),
        };
        context.hub.remove_group(self.name());
        // A peer that reads from it just now holds it, and with it the lock that the next start needs.
        while Arc::strong_count(&store) > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        result
    }

    async fn repair_segment(
        &self,
        context: &Context,
        store: &Arc<StoppedStore>,
        base: LogPosition,
    ) -> Result<(), raft_store::Error> {
        let note = |error: &raft_store::Error| {
            let hopeless = matches!(error, raft_store::Error::NotRepaired { everywhere: true, .. });
            self.halt(Halted {
                reason: format!("group {}: {error}", self.name()),
                damaged: DamagedRange::of(error),
                failed: hopeless,
            });
        };
        match repair_stopped(store, base, &self.peers(context), note).await {
            Ok(repaired) => {
                tracing::info!(group = self.name(), ?repaired, "log is repaired");
                Ok(())
            }
            // The others have dropped it as too old. So may this replica, if it has a checkpoint to begin behind.
            Err(error @ raft_store::Error::NotRepaired { purged: true, .. }) => {
                note(&error);
                let behind = LogPosition::new(base.get() + context.storage.segment_bytes);
                let image = self.replace_checkpoint(context, 0, behind).await?;
                let id = LogId::new(Term::new(image.applied.term), LogIndex::new(image.applied.index));
                let resume =
                    ResumePoint { position: LogPosition::new(image.resume.position), chain: image.resume.chain };
                if !store.begin_behind(id, resume)? {
                    return Err(error);
                }
                tracing::warn!(
                    group = self.name(),
                    through = image.applied.index,
                    "what is damaged is too old, and dropped"
                );
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a checkpoint of a peer the current one: the first one of entry `index` or later that lets the log go on at
    /// `resume` or later. Peers are asked until one has it.
    async fn replace_checkpoint(
        &self,
        context: &Context,
        index: u64,
        resume: LogPosition,
    ) -> Result<Image, raft_store::Error> {
        let peers = self.peers(context);
        let cluster_id = context.cluster.id;
        loop {
            let (reason, everywhere) = match peers.checkpoint(CheckpointWanted { index, resume }).await {
                Ok(bytes) => match Image::decode(&bytes) {
                    Ok(image) if image.cluster_id == cluster_id && image.applied.index >= index => {
                        let written = {
                            let (dir, index) = (self.checkpoints(), image.applied.index);
                            tokio::task::spawn_blocking(move || Checkpoints::look(dir).replace_current(index, &bytes))
                        };
                        match written.await {
                            Ok(Ok(())) => {
                                tracing::info!(
                                    group = self.name(),
                                    index = image.applied.index,
                                    "checkpoint of a peer taken"
                                );
                                return Ok(image);
                            }
                            Ok(Err(error)) => (error.to_string(), true),
                            Err(error) => (error.to_string(), true),
                        }
                    }
                    Ok(_) => ("a peer sent a checkpoint that was not asked for".to_owned(), true),
                    Err(error) => (format!("a peer sent a damaged checkpoint: {error}"), false),
                },
                Err(refused) => refused,
            };
            let before = self.halted();
            let damaged = before.as_ref().and_then(|before| before.damaged.clone());
            let reason = format!("group {}: no usable checkpoint of entry {index} or later: {reason}", self.name());
            self.halt(Halted { reason, damaged, failed: everywhere });
            tokio::time::sleep(if everywhere { HOPELESS_RETRY } else { RETRY }).await;
        }
    }
}
