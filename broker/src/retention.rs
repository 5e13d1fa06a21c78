//! Retention: drops the oldest segments of the log.
//!
//! Each replica decides for itself, from the same times, which are those that leaders stamped into the entries:
//!
//! ```text
//!  sealed segments, with their stamps and checkpoints --+
//!  clock (believed?), hour, pressure of the disk -------+--> decide --> checkpoint of the last entry to go
//!  what healthy replicas still lack (leader only) ------+                  |  becomes Raft's snapshot, durably
//!  delayed messages, transactions that are pending -----'                  |  (a leader appends these again first)
//!                                                                          |  minimums of queues rise, derived files go
//!                                                                          v
//!                                                                      Raft purges: mark synced, then segments unlinked
//! ```
//!
//! A crash between any two of these steps leaves a snapshot at or behind the purge point, which is what Raft wants; the
//! next look goes on. Nothing that Raft does by itself drops anything.
//!
//! Topics that keep messages for less time than the log are another matter: see `topics`.

mod clock;
mod decide;
mod owed;
mod topics;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use raft_store::{Extent, LogIndex, LogPosition, LogView, SealedSegment};

pub(crate) use self::clock::WatchedClock;
pub(crate) use self::decide::Choice;
pub use self::decide::Pressure;
use self::decide::{Candidate, Cause, View};
use self::topics::TopicRetention;
use crate::raft::GroupRaft;
use crate::raft::repair::DropsOld;
use crate::state_machine::{StateReader, StoreControl};
use crate::store::{self, MessageStore};

/// A member that was heard of so lately is waited for.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Making a checkpoint the snapshot takes at most this long.
const SNAPSHOT_TIME_MAX: Duration = Duration::from_secs(30);
/// A purge that nobody holds back happens at once.
const PURGE_TIME_MAX: Duration = Duration::from_secs(5);
/// While the disk fills, at most this part of what goes may have to be appended again.
const FORCED_SHARE: u64 = 2;
/// Streams that hold a purge back are broken so many times before it is left to the next look.
const BREAKS_MAX: usize = 10;

/// Appends messages again that wait in a part of the log that is to go.
pub(crate) trait Carrier: Send + Sync {
    /// Appends again what waits before `below` in the log, and says how many messages that were.
    ///
    /// # Errors
    /// This replica does not lead, or the log cannot be read or written. What was moved stays moved.
    fn carry(&self, below: u64) -> BoxFuture<'_, io::Result<u64>>;
}

/// Drops segments of one replica.
pub(crate) struct GroupRetention {
    group: String,
    raft: GroupRaft,
    log: LogView,
    control: StoreControl,
    /// Stamps found, by the last entry of their segment.
    stamps: Mutex<BTreeMap<u64, Option<i64>>>,
    /// Checkpoints that were refused: they are not chosen again.
    refused: Mutex<BTreeSet<u64>>,
    store: MessageStore,
    state: StateReader,
    /// Moves what is owed when this replica leads; none: what is owed stays, and all behind it.
    carrier: Mutex<Option<Arc<dyn Carrier>>>,
    figures: Mutex<Figures>,
    dropped: AtomicU64,
    topics: TopicRetention,
}

/// A moment of a replica, for the decision.
pub(crate) struct Survey {
    sealed: Vec<Candidate>,
    applied: u64,
    needed_after: Option<u64>,
    /// The first entry that keeps its segment because of what waits in it.
    owed_from: Option<u64>,
}

impl Survey {
    fn view(&self, pressure: Pressure) -> View<'_> {
        View {
            sealed: &self.sealed,
            applied: self.applied,
            needed_after: self.needed_after,
            owed_from: self.owed_from,
            pressure,
        }
    }

    /// What has outlived `time`.
    pub(crate) fn by_age(&self, now_ms: i64, time: Duration, pressure: Pressure) -> Option<Choice> {
        decide::by_age(&self.view(pressure), now_ms, time)
    }

    /// What a filling disk takes first, and how old it is.
    pub(crate) fn by_disk(&self) -> Option<(Choice, Option<i64>)> {
        let drop = decide::by_disk(&self.view(Pressure::Forced))?;
        let stamps = self.sealed.iter().take(drop.segments).filter_map(|candidate| candidate.stamped_ms);
        Some((drop, stamps.max()))
    }
}

/// What a replica keeps, for status and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// What the log holds.
    pub(crate) extent: Extent,
    /// When the first message of the log was stored.
    pub(crate) earliest_ms: Option<i64>,
    /// Segments dropped since the start.
    pub(crate) dropped: u64,
}

impl GroupRetention {
    pub(crate) fn new(
        group: String,
        raft: GroupRaft,
        log: LogView,
        control: StoreControl,
        store: MessageStore,
        state: StateReader,
    ) -> Self {
        Self {
            group,
            raft,
            log,
            control,
            stamps: Mutex::default(),
            refused: Mutex::default(),
            store,
            state,
            carrier: Mutex::default(),
            figures: Mutex::default(),
            dropped: AtomicU64::new(0),
            topics: TopicRetention::default(),
        }
    }

    /// Lets what waits in old segments be moved by `carrier` from now on.
    pub(crate) fn carry_by(&self, carrier: Arc<dyn Carrier>) {
        *self.carrier.lock() = Some(carrier);
    }

    /// What moves messages that wait, if this replica can have them moved.
    fn carrier(&self) -> Option<Arc<dyn Carrier>> {
        let metrics = self.raft.metrics();
        self.carrier.lock().clone().filter(|_| metrics.leader == Some(metrics.node_id))
    }

    /// As of the last look.
    pub(crate) fn figures(&self) -> Figures {
        Figures { dropped: self.dropped.load(Ordering::Relaxed), ..*self.figures.lock() }
    }

    /// Looks at the replica. Reads the end of each segment once, so it may wait for the disk.
    pub(crate) async fn survey(self: &Arc<Self>) -> store::Result<Survey> {
        let this = Arc::clone(self);
        let looked = tokio::task::spawn_blocking(move || {
            // First what is owed: what is delivered meanwhile is kept until the next look.
            let owed_from = owed::first_owed(&this.state, &this.store, &this.log)?;
            Ok::<_, store::Error>((owed_from, this.candidates()?))
        });
        let (owed_from, sealed) = looked.await.map_err(|_| store::Error::Stopped)??;
        let metrics = self.raft.metrics();
        let leads = metrics.leader == Some(metrics.node_id);
        let others = if leads { self.raft.others(SILENCE_MAX) } else { Vec::new() };
        let healthy = others.iter().filter(|other| other.healthy);
        Ok(Survey {
            sealed,
            applied: metrics.applied.unwrap_or(0),
            // What can be moved holds nothing up.
            owed_from: owed_from.filter(|_| self.carrier().is_none()),
            needed_after: healthy.map(|other| other.matched.unwrap_or(0)).min(),
        })
    }

    fn candidates(&self) -> store::Result<Vec<Candidate>> {
        let figures =
            Figures { extent: self.log.extent()?, earliest_ms: self.store.earliest_message_time()?, dropped: 0 };
        *self.figures.lock() = figures;
        let purged = self.log.watermarks().purged.map_or(0, |id| id.index.get());
        let sealed: Vec<SealedSegment> =
            self.log.sealed_segments().into_iter().filter(|segment| segment.last.index.get() > purged).collect();
        let checkpoints: BTreeSet<u64> = self.control.checkpoints()?.into_iter().collect();
        let refused = self.refused.lock().clone();
        let mut known = std::mem::take(&mut *self.stamps.lock());
        let mut stamps = BTreeMap::new();
        let mut candidates = Vec::with_capacity(sealed.len());
        for segment in &sealed {
            let last = segment.last.index.get();
            let stamped_ms = match known.remove(&last) {
                Some(stamp) => stamp,
                None => self.control.stamp_at(last)?,
            };
            stamps.insert(last, stamped_ms);
            let has_checkpoint = checkpoints.contains(&last) && !refused.contains(&last);
            candidates.push(Candidate { last, stamped_ms, has_checkpoint });
        }
        *self.stamps.lock() = stamps;
        Ok(candidates)
    }

    /// Hides what topics with a retention of their own have kept for long enough, if this replica leads.
    pub(crate) async fn hide_expired(self: &Arc<Self>, now_ms: i64) -> store::Result<()> {
        if !self.raft.role().borrow().is_ready_leader() {
            return Ok(());
        }
        let this = Arc::clone(self);
        let found = tokio::task::spawn_blocking(move || this.topics.expired(&this.state, &this.store, now_ms));
        for command in found.await.map_err(|_| store::Error::Stopped)?? {
            if let Err(error) = self.raft.propose_command(&command).await {
                // The next look, here or on another leader, finds the same.
                tracing::debug!(group = self.group, %error, "old messages are hidden later");
                break;
            }
        }
        Ok(())
    }

    /// Drops what was chosen, once nothing waits there any more. Says whether it is gone; if not, it goes later or is
    /// chosen again.
    pub(crate) async fn carry_out(&self, choice: Choice, pressure: Pressure) -> bool {
        self.carry_owed(choice.through, pressure).await && self.drop_chosen(choice, pressure).await
    }

    async fn drop_chosen(&self, choice: Choice, pressure: Pressure) -> bool {
        let Choice { through, segments, cause } = choice;
        let (control, log) = (self.control.clone(), self.log.clone());
        let choose = move || {
            let resume = log.resume_point_after(LogIndex::new(through))?;
            control.choose_boundary(through, resume.position.get())
        };
        match tokio::task::spawn_blocking(choose).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!(group = self.group, %error, "a checkpoint cannot be used: more is kept than need be");
                self.refused.lock().insert(through);
                return false;
            }
            Err(_) => return false,
        }
        if self.raft.trigger_snapshot().await.is_err() {
            return false;
        }
        if !self.raft.snapshot_reaches(through, SNAPSHOT_TIME_MAX).await {
            tracing::warn!(group = self.group, through, "the checkpoint has not become the snapshot");
            return false;
        }
        if self.raft.purge_log(through).await.is_err() {
            return false;
        }
        let mut gone = self.raft.purge_reaches(through, PURGE_TIME_MAX).await;
        if !gone && pressure == Pressure::Forced {
            gone = self.break_what_holds(through).await;
        }
        if gone {
            self.dropped.fetch_add(segments as u64, Ordering::Relaxed);
            tracing::info!(group = self.group, through, segments, ?cause, "segments dropped");
        } else {
            tracing::warn!(group = self.group, through, "replication still reads what is to be dropped");
        }
        gone
    }

    /// Drops the segment at `base`, with all up to the next checkpoint: it is damaged, and the others have dropped it.
    async fn drop_damaged(&self, base: LogPosition) -> bool {
        let Ok(checkpoints) = self.control.checkpoints() else { return false };
        let refused = self.refused.lock().clone();
        let purged = self.log.watermarks().purged.map_or(0, |id| id.index.get());
        let sealed = self.log.sealed_segments().into_iter().filter(|segment| segment.last.index.get() > purged);
        let has_checkpoint = |last: u64| checkpoints.contains(&last) && !refused.contains(&last);
        let found = sealed
            .map(|segment| (segment.base, segment.last.index.get()))
            .enumerate()
            .find(|(_, (start, last))| *start >= base && has_checkpoint(*last));
        let Some((before, (_, through))) = found else { return false };
        self.carry_out(Choice { through, segments: before + 1, cause: Cause::Damage }, Pressure::Forced).await
    }

    /// Has everything moved that waits in entries up to `through`. Says whether nothing waits there any more.
    async fn carry_owed(&self, through: u64, pressure: Pressure) -> bool {
        let owed = || async {
            let (state, store, log) = (self.state.clone(), self.store.clone(), self.log.clone());
            let look = move || owed::first_owed(&state, &store, &log);
            tokio::task::spawn_blocking(look).await.map_err(|_| store::Error::Stopped)?
        };
        let is_owed = |found: Option<u64>| found.is_some_and(|first| first <= through);
        let moved = async {
            if !is_owed(owed().await.map_err(io::Error::other)?) {
                return Ok(true);
            }
            let Some(carrier) = self.carrier() else { return Ok(false) };
            let (state, store, log) = (self.state.clone(), self.store.clone(), self.log.clone());
            let look = move || -> store::Result<(u64, u64, u64)> {
                let below = log.resume_point_after(LogIndex::new(through))?.position.get();
                let freed = below.saturating_sub(log.extent()?.start.get());
                Ok((below, freed, owed::owed_bytes(&state, &store, below)?))
            };
            let looked = tokio::task::spawn_blocking(look).await.map_err(io::Error::other)?;
            let (below, freed, bytes) = looked.map_err(io::Error::other)?;
            if pressure == Pressure::Forced && bytes > freed / FORCED_SHARE {
                let why =
                    format!("{bytes} of {freed} bytes wait: dropping them would free too little of a filling disk");
                return Err(io::Error::other(why));
            }
            let messages = carrier.carry(below).await?;
            tracing::info!(group = self.group, through, messages, "messages that wait were appended again");
            Ok::<_, io::Error>(!is_owed(owed().await.map_err(io::Error::other)?))
        };
        moved.await.unwrap_or_else(|error| {
            tracing::warn!(group = self.group, through, %error, "what waits in old segments cannot be moved now");
            false
        })
    }

    /// Breaks the streams to members that lack what must go. They come back by snapshot.
    async fn break_what_holds(&self, through: u64) -> bool {
        for _ in 0..BREAKS_MAX {
            for other in self.raft.others(SILENCE_MAX) {
                if other.matched.is_none_or(|matched| matched < through) {
                    tracing::warn!(
                        group = self.group,
                        node = other.node_id,
                        "the disk is filling: a slow replica is cut off"
                    );
                    self.raft.break_stream(other.node_id);
                }
            }
            if self.raft.purge_reaches(through, Duration::from_secs(1)).await {
                return true;
            }
        }
        false
    }
}

impl DropsOld for GroupRetention {
    fn drop_through(&self, base: LogPosition) -> BoxFuture<'_, bool> {
        self.drop_damaged(base).boxed()
    }
}

/// Whether what is old may be dropped at this hour: any hour if none is named. Hours are UTC.
pub(crate) fn is_hour(hours: &[u8], now_ms: i64) -> bool {
    let hour = now_ms.div_euclid(3_600_000).rem_euclid(24);
    hours.is_empty() || hours.iter().any(|wanted| i64::from(*wanted) == hour)
}

#[cfg(test)]
mod tests;
