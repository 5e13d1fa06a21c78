//! What committed entries mean: topics, groups, offsets, queues, transactions, timers.
//!
//! [`apply`] is pure: it takes the state and an entry and says what changes. Around it stands what openraft wants of a
//! state machine. It answers each proposal, hands messages to reput, and cuts a checkpoint as of the last entry of each
//! segment: the moment an entry of the next segment arrives, the state is exactly that.
//!
//! ```text
//!  committed entries --> apply --> reply to the proposer
//!                          |------> registry (topics, groups, offsets, locks), read by processors
//!                          '------> reput --> ConsumeQueue, index --> consumers
//!                                     '-----> saver: files synced, then checkpoints/{index}
//! ```
//!
//! Starting, the newest checkpoint that the log still reaches, and with which the derived files agree, becomes the
//! state; openraft then applies the rest of the log again. Where the files do not agree, an older checkpoint does, in
//! the end the oldest: then all of them are built anew.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use openraft::alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{OptionalSend, RaftSnapshotBuilder, RaftTypeConfig};
use raft_store::{Body, LogId, LogIndex, LogView, Member, Membership, StoreConfig, Term, Times};
use tokio::sync::{Mutex, oneshot, watch};

pub mod apply;
pub mod command;
pub mod group;
pub mod half;
pub mod members;
pub mod pop;
mod reader;
mod reply;
pub mod snapshot;
pub(crate) mod state;
#[cfg(test)]
pub(crate) mod testing;
pub mod timer;
pub mod topic;
mod topic_log;

#[cfg(test)]
pub(crate) mod replica_tests;
#[cfg(test)]
mod tests;

pub use command::Command;
pub use group::GroupConfig;
use reader::{Applying, Mark};
pub use reader::{FlushSetting, StateReader, TopicChanges};
pub use reply::{Appended, ApplyReply, CommandRefused, CommandReply, MessageOutcome, MessageRefused, PackReply};
pub use state::{DataVersion, EntryId, Names, QueueLease};
pub use topic::{TopicConfig, TopicFilter};

use crate::store::checkpoint::Checkpoints;
use crate::store::commit_log::Inner as StoreInner;
use crate::store::consume_queue::QueueFiles;
use crate::store::file_pool::FilePool;
use crate::store::key_index::KeyIndex;
use crate::store::log::Log;
use crate::store::queue_table::{Minimums, QueueTable};
use crate::store::reput::{self, CheckpointJob, Dispatched, EntryJob, Job, ReputHandle, ReputOptions, ReputThreads};
use crate::store::room::Room;
use crate::store::{self, ArrivalListener, MessageStore, Replay, StoreOptions};
use apply::{BodyView, EntryView};
use snapshot::Image;
use state::{MemberImage, MembershipImage, State};

/// A time is looked for in so many entries: nearly all carry one.
const STAMP_ENTRIES_MAX: u64 = 100;

/// A state machine and its store, ready for Raft.
pub struct Opened {
    /// For `Raft::build`.
    pub state_machine: StateMachine,
    /// The replicated state, for processors.
    pub state: StateReader,
    /// The messages, for processors.
    pub store: MessageStore,
    /// Stops it, and chooses snapshots.
    pub control: StoreControl,
    /// The entry it starts behind. Later ones are applied again.
    pub started_behind: Option<EntryId>,
    /// How far that has come.
    pub replay: Replay,
}

/// What openraft drives. See the module.
pub struct StateMachine {
    shared: Arc<Shared>,
}

/// Stops the store, and chooses which checkpoint becomes Raft's snapshot.
#[derive(Clone)]
pub struct StoreControl {
    shared: Arc<Shared>,
    threads: Arc<parking_lot::Mutex<Option<ReputThreads>>>,
}

/// Returns a stored checkpoint: nothing has to be built.
pub struct SnapshotBuilder {
    shared: Arc<Shared>,
    chosen: u64,
}

struct Shared {
    core: Mutex<Core>,
    reput: ReputHandle,
    room: Arc<Room>,
    table: Arc<QueueTable>,
    index: Arc<KeyIndex>,
    checkpoints: Arc<Checkpoints>,
    log: Arc<dyn Log>,
    cluster_id: [u8; 16],
    applied_end: Arc<AtomicU64>,
    apply_times: Arc<Times>,
    apply_began: Arc<Mark>,
    flush: watch::Sender<Option<FlushSetting>>,
    /// The checkpoint that the next snapshot is to be.
    chosen: parking_lot::Mutex<Option<u64>>,
}

struct Core {
    state: State,
    /// The newest checkpoint cut; it may not be durable yet.
    cut: Option<Cut>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Cut {
    index: u64,
    /// Whether it says where the next segment starts. One cut before that was known is cut again.
    ends_segment: bool,
}

impl Cut {
    fn of(image: &Image, log: &dyn Log) -> Self {
        let ends_segment = log.segment_base(image.last_position) != log.segment_base(image.resume.position);
        Self { index: image.applied.index, ends_segment }
    }
}

/// Opens the derived files in `options.dir` on top of `log`, which has been recovered.
///
/// On return the state is that of a checkpoint no later than the end of the log, and files agree with it.
///
/// # Errors
/// A file or the log cannot be read or written, or the checkpoint that is Raft's snapshot is damaged.
pub fn open(options: &StoreOptions, log: &LogView, listener: Arc<dyn ArrivalListener>) -> store::Result<Opened> {
    open_over(options, Arc::new(log.clone()), listener)
}

fn open_over(options: &StoreOptions, log: Arc<dyn Log>, listener: Arc<dyn ArrivalListener>) -> store::Result<Opened> {
    let pool = Arc::new(FilePool::new(options.open_files_max));
    let files = QueueFiles { pool: Arc::clone(&pool), entries_per_file: options.entries_per_queue_file };
    let table = Arc::new(QueueTable::new(options.dir.join("consumequeue"), Arc::new(files)));
    let index = Arc::new(KeyIndex::open(options.dir.join("index"), options.index_sizes, pool)?);
    let checkpoints = Arc::new(Checkpoints::open(options.dir.join("checkpoints"))?);

    let Start { image: start, rebuilds } = choose_start(&checkpoints, &table, &index, &*log, &options.cluster_id)?;
    if let Some(image) = &start
        && log.last_index().is_none_or(|last| last < image.applied.index)
    {
        // Raft drops the whole of such a log, and it goes on behind the checkpoint.
        log.set_resume(image.applied, image.resume);
    }
    let state = start.as_ref().map_or_else(State::default, State::from_image);
    let started_behind = state.applied;
    let cut = start.as_ref().map(|image| Cut::of(image, &*log));
    let applied_end = Arc::new(AtomicU64::new(started_behind.map_or(0, |id| id.index + 1)));
    let flush = watch::Sender::new(flush_setting(&state));
    let apply_times = Arc::new(Times::default());
    let apply_began = Arc::new(Mark::default());
    let applying =
        Applying { end: Arc::clone(&applied_end), times: Arc::clone(&apply_times), began: Arc::clone(&apply_began) };
    let reader = StateReader::new(&state, applying, flush.subscribe());

    let dispatched = Arc::new(Dispatched::default());
    let physical_end = start.as_ref().map_or(0, |image| image.resume.position);
    dispatched.physical_end.store(physical_end, Ordering::Release);
    let (dispatched_sender, dispatched_end) = watch::channel(applied_end.load(Ordering::Acquire));
    let reput_options = ReputOptions {
        queue_max: options.reput_queue_max,
        cached_entries_max: options.cached_entries_max,
        delay_levels: options.delay_levels.clone(),
    };
    let replay = Replay::new(Arc::clone(&log), Arc::clone(&dispatched), dispatched_end.clone(), rebuilds, physical_end);
    let room = Arc::new(Room::default());
    let (reput, threads) = reput::start(
        &reput_options,
        Arc::clone(&table),
        Arc::clone(&index),
        Arc::clone(&checkpoints),
        listener,
        Arc::clone(&dispatched),
        dispatched_sender,
        Arc::clone(&room),
    )?;
    let store = MessageStore::new(StoreInner {
        log: Arc::clone(&log),
        table: Arc::clone(&table),
        index: Arc::clone(&index),
        dispatched,
        dispatched_end,
        limits: options.pull_limits,
        earliest: parking_lot::Mutex::default(),
    });
    let shared = Arc::new(Shared {
        core: Mutex::new(Core { state, cut }),
        reput,
        room,
        table,
        index,
        checkpoints,
        log,
        cluster_id: options.cluster_id,
        applied_end,
        apply_times,
        apply_began,
        flush,
        chosen: parking_lot::Mutex::new(None),
    });
    let control =
        StoreControl { shared: Arc::clone(&shared), threads: Arc::new(parking_lot::Mutex::new(Some(threads))) };
    Ok(Opened { state_machine: StateMachine { shared }, state: reader, store, control, started_behind, replay })
}

/// Where a state machine starts.
struct Start {
    /// None: from nothing.
    image: Option<Image>,
    /// No file agreed with any checkpoint: all are built anew.
    rebuilds: bool,
}

/// How the group flushes, as of the last entry applied.
fn flush_setting(state: &State) -> Option<FlushSetting> {
    let registry = state.registry.read();
    let mode = registry.settings.get(command::FLUSH_SETTING)?;
    Some(FlushSetting { is_sync: mode == command::FLUSH_SYNC, said_at: state.applied.map_or(0, |id| id.index) })
}

/// Finds the newest checkpoint that log and derived files agree with, and restores the files to it.
fn choose_start(
    checkpoints: &Checkpoints,
    table: &QueueTable,
    index: &KeyIndex,
    log: &dyn Log,
    cluster_id: &[u8; 16],
) -> store::Result<Start> {
    let last = log.last_index();
    let none_left = |purged| checkpoints.damaged(purged, "no checkpoint stands for what has left the log".to_owned());
    let current = match (checkpoints.current(), log.purged_index()) {
        (Ok(None), Some(purged)) => return Err(none_left(purged)),
        (Err(error @ store::Error::Checkpoint { .. }), Some(purged)) => {
            tracing::error!(%error, "looking for the oldest checkpoint instead");
            Some(checkpoints.find_current(purged)?.ok_or_else(|| none_left(purged))?)
        }
        (Err(error @ store::Error::Checkpoint { .. }), None) => {
            tracing::error!(%error, "the log is whole, so no checkpoint is needed");
            checkpoints.forget_current(None)?;
            None
        }
        (current, _) => current?,
    };
    let base = match current.map(|current| (current, read_checkpoint(checkpoints, current, cluster_id))) {
        None => None,
        Some((_, Ok(base))) => Some(base),
        Some((current, Err(error @ store::Error::Checkpoint { .. }))) if log.purged_index().is_none() => {
            tracing::error!(%error, "the log is whole, so no checkpoint is needed");
            checkpoints.forget_current(Some(current))?;
            None
        }
        Some((_, Err(error))) => return Err(error),
    };
    let base_index = base.as_ref().map(|image| image.applied.index);
    let mut unusable = Vec::new();
    let later = checkpoints.list()?.into_iter().rev().filter(|index| base_index.is_none_or(|base| *index > base));
    for candidate in later {
        let usable = last.is_some_and(|last| candidate <= last);
        let image = match read_checkpoint(checkpoints, candidate, cluster_id) {
            Ok(image) if usable && is_in_log(log, &image)? => image,
            Ok(_) => {
                // Of a log whose end was lost: the entry will be another one.
                unusable.push(candidate);
                continue;
            }
            Err(error @ store::Error::Checkpoint { .. }) => {
                tracing::error!(%error, "starting from an older checkpoint");
                unusable.push(candidate);
                continue;
            }
            Err(error) => return Err(error),
        };
        let minimums = base.as_ref().map_or(Minimums::Zero, Minimums::Of);
        if index.indexed_end() >= image.resume.position && table.restore(&image, minimums)? {
            checkpoints.remove(unusable)?;
            return Ok(Start { image: Some(image), rebuilds: false });
        }
        // It vouches for files that are not there. The files will be, but only the next checkpoint can know it.
        unusable.push(candidate);
    }
    checkpoints.remove(unusable)?;
    if let Some(base) = &base
        && index.indexed_end() >= base.resume.position
        && table.restore(base, Minimums::Of(base))?
    {
        return Ok(Start { image: Some(base.clone()), rebuilds: false });
    }
    if last.is_some() {
        tracing::warn!("derived files are built again from the log");
    }
    index.reset(base.as_ref().map_or(0, |image| image.resume.position))?;
    table.reset(base.as_ref())?;
    Ok(Start { image: base, rebuilds: true })
}

fn read_checkpoint(checkpoints: &Checkpoints, index: u64, cluster_id: &[u8; 16]) -> store::Result<Image> {
    let (image, _) = checkpoints.read(index)?;
    if image.cluster_id != *cluster_id {
        let what = "it belongs to another cluster: correct the path or the cluster id".to_owned();
        return Err(store::Error::Foreign { path: checkpoints.path(index), what });
    }
    Ok(image)
}

/// Whether the log holds the very entry that a checkpoint was cut at.
fn is_in_log(log: &dyn Log, image: &Image) -> store::Result<bool> {
    Ok(log.record_around(image.last_position)?.is_some_and(|record| record.id == image.applied))
}

impl Shared {
    /// Cuts a checkpoint as of the last entry applied and sends it on its way to the disk.
    async fn cut(&self, core: &mut Core, done: Option<oneshot::Sender<store::Result<()>>>) -> store::Result<()> {
        let Some(applied) = core.state.applied else { return Ok(()) };
        let resume = self.log.resume_after(applied.index)?;
        let image = core.state.to_image(self.cluster_id, resume).expect("an entry has been applied");
        let job = CheckpointJob { index: applied.index, bytes: image.encode(), resume_position: resume.position, done };
        self.reput.send(Job::Checkpoint(job)).await?;
        core.cut = Some(Cut::of(&image, &*self.log));
        Ok(())
    }

    /// Cuts a checkpoint and waits until it is durable.
    async fn cut_and_wait(&self, core: &mut Core) -> store::Result<()> {
        let (done, wait) = oneshot::channel();
        self.cut(core, Some(done)).await?;
        wait.await.map_err(|_| store::Error::Stopped)?
    }

    async fn apply_entry(&self, core: &mut Core, entry: raft_store::LogEntry) -> io::Result<ApplyReply> {
        let index = entry.log_index().get();
        let (Some(position), Some(payload_position)) = (entry.position, entry.payload_position()) else {
            return Err(io::Error::other(apply::ApplyError::NoPosition { index }));
        };
        let id = EntryId { term: entry.log_term().get(), index };
        let is_cut = |applied: EntryId| core.cut == Some(Cut { index: applied.index, ends_segment: true });
        if core.state.applied.is_some_and(|applied| !is_cut(applied)) {
            let before = self.log.segment_base(core.state.last_position);
            if before != self.log.segment_base(position.get()) {
                self.cut(core, None).await.map_err(io::Error::other)?;
            }
        }
        let body = match &entry.body {
            Body::Blank => BodyView::Blank,
            Body::Membership(membership) => BodyView::Membership(membership_image(id, membership)),
            Body::Normal(payload) => BodyView::Payload(&payload.0),
        };
        let view = EntryView { id, position: position.get(), payload_position: payload_position.get(), body };
        let applied = core.state.apply(&view).map_err(io::Error::other)?;
        if applied.says_flush {
            self.flush.send_replace(flush_setting(&core.state));
        }
        let payload = match entry.body {
            Body::Normal(payload) => payload.0,
            Body::Blank | Body::Membership(_) => Bytes::new(),
        };
        self.applied_end.store(index + 1, Ordering::Release);
        let job = EntryJob {
            index,
            payload,
            payload_position: payload_position.get(),
            assigned: applied.assigned,
            deleted: applied.deleted,
            hidden: applied.hidden,
        };
        self.reput.send(Job::Entry(job)).await.map_err(io::Error::other)?;
        Ok(applied.reply)
    }
}

/// A type configuration this state machine serves.
pub trait MachineConfig: StoreConfig + RaftTypeConfig<R = ApplyReply> {}

impl<C: StoreConfig + RaftTypeConfig<R = ApplyReply>> MachineConfig for C {}

impl<C: MachineConfig> RaftStateMachine<C> for StateMachine {
    /// The bytes of a checkpoint file.
    type SnapshotData = Bytes;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogIdOf<C>>, StoredMembershipOf<C>)> {
        let core = self.shared.core.lock().await;
        let applied = core.state.applied.map(|id| log_id(id).to_raft());
        Ok((applied, stored_membership::<C>(&core.state.membership)?))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<C>>> + Unpin + OptionalSend,
    {
        let mut core = self.shared.core.lock().await;
        while let Some((entry, responder)) = entries.try_next().await? {
            let began = Instant::now();
            self.shared.apply_began.note(began);
            let reply = self.shared.apply_entry(&mut core, entry).await?;
            self.shared.apply_times.note(began.elapsed());
            if let Some(responder) = responder {
                responder.send(reply);
            }
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<SnapshotBuilder> {
        let chosen = self.shared.chosen.lock().take();
        if let Some(chosen) = chosen {
            return Some(SnapshotBuilder { shared: Arc::clone(&self.shared), chosen });
        }
        if force { Some(self.make_builder().await) } else { None }
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        self.make_builder().await
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMetaOf<C>, snapshot: Bytes) -> io::Result<()> {
        let image = Image::decode(&snapshot).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("snapshot refused: {what}"));
        if image.cluster_id != self.shared.cluster_id {
            return Err(wrong("it belongs to another cluster"));
        }
        if meta.last_log_id != Some(log_id(image.applied).to_raft()) {
            return Err(wrong("its entry is not the one announced"));
        }
        let mut core = self.shared.core.lock().await;
        let installed = self.shared.install(&mut core, image, snapshot).await.map_err(io::Error::other);
        self.shared.flush.send_replace(flush_setting(&core.state));
        installed
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<C, Bytes>>> {
        let checkpoints = Arc::clone(&self.shared.checkpoints);
        let read = move || -> store::Result<Option<(Image, Bytes)>> {
            checkpoints.current()?.map(|index| checkpoints.read(index)).transpose()
        };
        let found = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?.map_err(io::Error::other)?;
        found.map(|(image, bytes)| snapshot_of::<C>(&image, bytes)).transpose()
    }
}

impl StateMachine {
    /// A builder that always has something to return: the oldest checkpoint after the current one, else one cut now.
    async fn make_builder(&mut self) -> SnapshotBuilder {
        let chosen = match self.shared.oldest_checkpoint() {
            Some(index) => index,
            None => {
                let mut core = self.shared.core.lock().await;
                if let Err(error) = self.shared.cut_and_wait(&mut core).await {
                    // The builder finds no file and reports that.
                    tracing::error!(%error, "no checkpoint for a snapshot");
                }
                core.state.applied.map_or(0, |id| id.index)
            }
        };
        SnapshotBuilder { shared: Arc::clone(&self.shared), chosen }
    }
}

impl Shared {
    /// The current snapshot's checkpoint, or the oldest one that covers what has been purged.
    fn oldest_checkpoint(&self) -> Option<u64> {
        let purged = self.log.purged_index();
        let covers = |index: &u64| purged.is_none_or(|purged| *index >= purged);
        match self.checkpoints.current() {
            Ok(Some(current)) => Some(current),
            Ok(None) => self.checkpoints.list().ok()?.into_iter().find(covers),
            Err(_) => None,
        }
    }

    async fn install(&self, core: &mut Core, image: Image, bytes: Bytes) -> store::Result<()> {
        let image = Arc::new(image);
        let (done, wait) = oneshot::channel();
        // Old files go first: a start in between finds none, and builds them from whatever is current then.
        self.reput.send(Job::Reset { image: Arc::clone(&image), done }).await?;
        wait.await.map_err(|_| store::Error::Stopped)??;
        self.log.set_resume(image.applied, image.resume);
        let checkpoints = Arc::clone(&self.checkpoints);
        let index = image.applied.index;
        let write = move || -> store::Result<()> {
            checkpoints.write(index, &bytes)?;
            checkpoints.set_current(index)?;
            // Any later one is of entries that the snapshot has replaced.
            let later: Vec<u64> = checkpoints.list()?.into_iter().filter(|later| *later > index).collect();
            checkpoints.remove(later)
        };
        tokio::task::spawn_blocking(write).await.map_err(|_| store::Error::Stopped)??;
        core.state.load(&image);
        core.cut = Some(Cut::of(&image, &*self.log));
        self.applied_end.store(index + 1, Ordering::Release);
        Ok(())
    }
}

impl<C: MachineConfig> RaftSnapshotBuilder<C> for SnapshotBuilder {
    type SnapshotData = Bytes;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<C, Bytes>> {
        let shared = Arc::clone(&self.shared);
        let chosen = self.chosen;
        let promote = move || -> store::Result<(Image, Bytes)> {
            let current = shared.checkpoints.current()?;
            // A snapshot installed since the choice is newer.
            let chosen = current.map_or(chosen, |current| current.max(chosen));
            let (image, bytes) = shared.checkpoints.read(chosen)?;
            if current != Some(chosen) {
                shared.checkpoints.set_current(chosen)?;
                shared.table.raise_minimums(&image)?;
                shared.index.drop_below(image.resume.position)?;
            }
            Ok((image, bytes))
        };
        let (image, bytes) =
            tokio::task::spawn_blocking(promote).await.map_err(io::Error::other)?.map_err(io::Error::other)?;
        snapshot_of::<C>(&image, bytes)
    }
}

impl StoreControl {
    /// The indexes there is a checkpoint for, ascending.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn checkpoints(&self) -> store::Result<Vec<u64>> {
        self.shared.checkpoints.list()
    }

    /// Makes the checkpoint of entry `index` the next snapshot that Raft asks for. Messages before it are gone for
    /// consumers once Raft has it. Reads the checkpoint, so it waits for the disk.
    ///
    /// # Errors
    /// There is no sound checkpoint of that entry.
    pub fn choose_snapshot(&self, index: u64) -> store::Result<()> {
        read_checkpoint(&self.shared.checkpoints, index, &self.shared.cluster_id)?;
        *self.shared.chosen.lock() = Some(index);
        Ok(())
    }

    /// The same for the last entry of a segment, behind which the log goes on at `resume_position`.
    ///
    /// # Errors
    /// There is no sound checkpoint of that entry, or it does not know that its segment was full.
    pub(crate) fn choose_boundary(&self, index: u64, resume_position: u64) -> store::Result<()> {
        let image = read_checkpoint(&self.shared.checkpoints, index, &self.shared.cluster_id)?;
        if image.resume.position != resume_position {
            let what = format!("it lets the log go on at {}, not at {resume_position}", image.resume.position);
            return Err(self.shared.checkpoints.damaged(index, what));
        }
        *self.shared.chosen.lock() = Some(index);
        Ok(())
    }

    /// The newest time stamped into an entry not after `index`, looking back over a few entries; none if none of them
    /// carries one. Reads the log, so it may wait for the disk.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(crate) fn stamp_at(&self, index: u64) -> store::Result<Option<i64>> {
        for index in (index.saturating_sub(STAMP_ENTRIES_MAX)..=index).rev() {
            if let Some(payload) = self.shared.log.payload(index)?
                && let Some(stamp) = command::stamp_of(&payload)
            {
                return Ok(Some(stamp));
            }
        }
        Ok(None)
    }

    /// Cuts a checkpoint as of the last entry applied and waits until it is durable.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn checkpoint(&self) -> store::Result<()> {
        let mut core = self.shared.core.lock().await;
        self.shared.cut_and_wait(&mut core).await
    }

    /// The write of a derived file that waits for room on the disk, if one does.
    pub fn waits_for_room(&self) -> watch::Receiver<Option<String>> {
        self.shared.room.waits_for()
    }

    /// Lets nothing wait for room on the disk any more: what finds none ends the store. Call it before Raft is stopped,
    /// which waits for entries being applied.
    pub fn stop_waiting_for_room(&self) {
        self.shared.room.give_up();
    }

    /// Writes everything, with a checkpoint so that the next start replays nothing, and ends the threads.
    ///
    /// Call it after Raft has stopped, and before the log is closed.
    ///
    /// # Errors
    /// The checkpoint could not be written. The threads have ended all the same.
    pub async fn stop(&self) -> store::Result<()> {
        let mut core = self.shared.core.lock().await;
        // One that was cut may have been skipped, so what counts is what is there.
        let saved = self.shared.checkpoints.list().unwrap_or_default();
        let is_saved = core.state.applied.is_none_or(|applied| saved.contains(&applied.index));
        let written = if is_saved { Ok(()) } else { self.shared.cut_and_wait(&mut core).await };
        let (done, wait) = oneshot::channel();
        if self.shared.reput.send(Job::Stop { done }).await.is_ok() {
            // An error says that the thread ended first.
            let _ = wait.await;
        }
        let threads = self.threads.lock().take();
        if let Some(threads) = threads {
            tokio::task::spawn_blocking(move || threads.join()).await.map_err(|_| store::Error::Stopped)?;
        }
        written
    }
}

fn log_id(id: EntryId) -> LogId {
    LogId::new(Term::new(id.term), LogIndex::new(id.index))
}

fn membership_image(entry: EntryId, membership: &Membership) -> MembershipImage {
    let member = |member: &Member| MemberImage {
        node: member.node.clone(),
        raft_addr: member.raft_addr.clone(),
        client_addr: member.client_addr.clone(),
    };
    MembershipImage {
        entry: Some(entry),
        configs: membership.get_joint_config().iter().map(|config| config.iter().copied().collect()).collect(),
        nodes: membership.nodes().map(|(id, node)| (*id, member(node))).collect(),
    }
}

fn stored_membership<C: MachineConfig>(image: &MembershipImage) -> io::Result<StoredMembershipOf<C>> {
    let Some(entry) = image.entry else { return Ok(StoredMembershipOf::<C>::default()) };
    let configs = image.configs.iter().map(|config| config.iter().copied().collect()).collect();
    let nodes: std::collections::BTreeMap<u64, Member> = image
        .nodes
        .iter()
        .map(|(id, member)| {
            let MemberImage { node, raft_addr, client_addr } = member.clone();
            (*id, Member { node, raft_addr, client_addr })
        })
        .collect();
    let membership = Membership::new(configs, nodes).map_err(io::Error::other)?;
    Ok(StoredMembershipOf::<C>::new(Some(log_id(entry).to_raft()), membership))
}

fn snapshot_of<C: MachineConfig>(image: &Image, bytes: Bytes) -> io::Result<SnapshotOf<C, Bytes>> {
    let meta = SnapshotMetaOf::<C> {
        last_log_id: Some(log_id(image.applied).to_raft()),
        last_membership: stored_membership::<C>(&image.membership)?,
    };
    Ok(SnapshotOf::<C, Bytes> { meta, snapshot: bytes })
}
