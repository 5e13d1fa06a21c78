//! Reput: takes applied entries to ConsumeQueue and index, and says that messages have arrived.
//!
//! Apply hands over each entry through a bounded queue and goes on. The reput thread reads tags and keys of its
//! messages, adds them to their queues, and then tells whoever waits: the queue's end, a listener for parked pulls, and
//! the `dispatched` watermark. So consumers see committed messages only, and a message is seen in its queue before
//! anyone is told of it.
//!
//! A write that finds the disk full waits for room ([`Room`]); any other failure ends the thread, and the replica.
//!
//! A second thread, the saver, makes checkpoints durable: first the derived files up to it, then the checkpoint itself.
//! A checkpoint that is there therefore vouches for the derived files below it. Entries of a few queues are written to
//! their files for it. With many queues that would be as many small writes, so entries that are not written yet go into
//! the marks of the checkpoint, all in one file.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc as blocking;
use std::thread::JoinHandle;

use bytes::Bytes;
use protocol::TopicName;
use protocol::message::{Properties, RecordView, index_key_hash, java_hash_code, property};
use raft_store::durable;
use tokio::sync::{mpsc, oneshot, watch};

use crate::delay_levels::{DelayLevels, SCHEDULE_TOPIC};
use crate::state_machine::apply::{Assigned, Hidden};
use crate::state_machine::snapshot::Image;
use crate::state_machine::state::TopicHandle;

use super::checkpoint::Checkpoints;
use super::consume_queue::{ConsumeQueue, QueueEntry, UnsyncedFile};
use super::error::{Error, Result};
use super::key_index::{self, KeyIndex};
use super::queue_marks::QueueMarks;
use super::queue_table::{QueueTable, TopicQueues};
use super::room::Room;

/// Entries of a queue gathered before they are written.
const UNWRITTEN_MAX: usize = 256;
/// Entries of a queue kept in memory though they are written.
const KEPT_MAX: usize = 2048;
/// Files synced one by one; more are synced by one call for all that the file system holds. So many queues at most are
/// flushed for a checkpoint.
const SINGLE_SYNCS_MAX: usize = 256;
/// Entries taken from apply before the watermark moves.
const ROUND_MAX: usize = 16;

/// Hears of each message that can be read from now on.
pub trait ArrivalListener: Send + Sync + 'static {
    /// A message is in its queue: the queue now ends at `max_offset`. Called on the reput thread: it must not block.
    fn arrived(&self, topic: &TopicName, queue_id: u32, max_offset: u64, tags_code: i64);
}

/// What apply hands over.
pub(crate) enum Job {
    /// An applied entry.
    Entry(EntryJob),
    /// A checkpoint as of the entry handed over last.
    Checkpoint(CheckpointJob),
    /// The state has been replaced by a snapshot: all derived data before it goes.
    Reset { image: Arc<Image>, done: oneshot::Sender<Result<()>> },
    /// Write everything and end.
    Stop { done: oneshot::Sender<()> },
}

pub(crate) struct EntryJob {
    pub(crate) index: u64,
    pub(crate) payload: Bytes,
    pub(crate) payload_position: u64,
    pub(crate) assigned: Vec<Assigned>,
    pub(crate) deleted: Vec<Arc<TopicHandle>>,
    pub(crate) hidden: Vec<Hidden>,
}

pub(crate) struct CheckpointJob {
    pub(crate) index: u64,
    pub(crate) bytes: Bytes,
    /// Every message before this position has been handed over.
    pub(crate) resume_position: u64,
    /// Told when it is durable.
    pub(crate) done: Option<oneshot::Sender<Result<()>>>,
}

/// How far derived data reaches.
#[derive(Debug, Default)]
pub(crate) struct Dispatched {
    /// Messages below this physical offset are in their queues.
    pub(crate) physical_end: AtomicU64,
    /// How many messages have been put into their queues since the start.
    pub(crate) messages: AtomicU64,
}

pub(crate) struct ReputOptions {
    pub(crate) queue_max: usize,
    pub(crate) cached_entries_max: usize,
    pub(crate) delay_levels: DelayLevels,
}

/// Feeds reput.
#[derive(Clone)]
pub(crate) struct ReputHandle {
    jobs: mpsc::Sender<Job>,
}

impl ReputHandle {
    /// Hands a job over, waiting while the queue is full.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the thread has ended.
    pub(crate) async fn send(&self, job: Job) -> Result<()> {
        self.jobs.send(job).await.map_err(|_| Error::Stopped)
    }
}

/// The threads behind a [`ReputHandle`].
pub(crate) struct ReputThreads {
    reput: JoinHandle<()>,
    saver: JoinHandle<()>,
}

impl ReputThreads {
    /// Waits until both have ended. Blocks.
    pub(crate) fn join(self) {
        for thread in [self.reput, self.saver] {
            if thread.join().is_err() {
                tracing::error!("a store thread has panicked");
            }
        }
    }
}

/// Starts the threads. The queues and the index hold everything up to entry `dispatched`.
#[expect(clippy::too_many_arguments, reason = "each is a part of the store, handed over once")]
pub(crate) fn start(
    options: &ReputOptions,
    table: Arc<QueueTable>,
    index: Arc<KeyIndex>,
    checkpoints: Arc<Checkpoints>,
    listener: Arc<dyn ArrivalListener>,
    dispatched: Arc<Dispatched>,
    dispatched_end: watch::Sender<u64>,
    room: Arc<Room>,
) -> Result<(ReputHandle, ReputThreads)> {
    let (jobs, received) = mpsc::channel(options.queue_max);
    // One being written, one waiting; beyond that a checkpoint is skipped.
    let (saves, saves_received) = blocking::sync_channel(1);
    let saver = Saver { table: Arc::clone(&table), index: Arc::clone(&index), checkpoints, unsynced: BTreeMap::new() };
    let reached = *dispatched_end.borrow();
    let in_memory = table.in_memory();
    let cached_entries = in_memory.iter().map(|(_, count)| count).sum();
    let reput = Reput {
        table,
        index,
        listener,
        dispatched,
        told: Told { reached, dispatched_end, room },
        topics: HashMap::new(),
        cached: in_memory.into_iter().map(|(queue, _)| (queue.number(), queue)).collect(),
        cached_entries,
        cached_entries_max: options.cached_entries_max,
        delay_levels: options.delay_levels.clone(),
        unsynced: Vec::new(),
        saves,
    };
    let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new().name(name.to_owned()).spawn(run).map_err(|source| Error::Io {
            action: "starting thread",
            path: PathBuf::from(name),
            source,
        })
    };
    let saver = spawn("saver", Box::new(move || saver.run(&saves_received)))?;
    let reput = spawn("reput", Box::new(move || reput.run(received)))?;
    Ok((ReputHandle { jobs }, ReputThreads { reput, saver }))
}

struct Reput {
    table: Arc<QueueTable>,
    index: Arc<KeyIndex>,
    listener: Arc<dyn ArrivalListener>,
    dispatched: Arc<Dispatched>,
    told: Told,
    /// By slot of the topic in the state.
    topics: HashMap<usize, Arc<TopicQueues>>,
    /// Queues with entries in memory, by their number.
    cached: HashMap<u64, Arc<ConsumeQueue>>,
    /// At least how many entries they hold.
    cached_entries: usize,
    cached_entries_max: usize,
    delay_levels: DelayLevels,
    /// Files written since the last checkpoint.
    unsynced: Vec<UnsyncedFile>,
    saves: blocking::SyncSender<SaverJob>,
}

/// How far reput has come, and what others have been told of it.
struct Told {
    /// Index after the last entry dispatched, as told to whoever waits.
    dispatched_end: watch::Sender<u64>,
    /// Index after the last entry dispatched; runs ahead of what has been told.
    reached: u64,
    room: Arc<Room>,
}

impl Told {
    fn publish(&self) {
        if self.reached > *self.dispatched_end.borrow() {
            self.dispatched_end.send_replace(self.reached);
        }
    }

    /// Writes, and waits for room on the disk if need be. Nobody waits meanwhile for what is dispatched.
    fn write<T>(&self, attempt: impl FnMut() -> Result<T>) -> Result<T> {
        self.room.wait(|| self.publish(), attempt)
    }
}

/// Why the reput thread ends.
enum Stop {
    Ordered(Option<oneshot::Sender<()>>),
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Reput {
    fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let stop = loop {
            if let Err(stop) = self.round(&mut jobs) {
                break stop;
            }
        };
        match stop {
            Stop::Ordered(done) => {
                self.told.publish();
                if let Some(done) = done {
                    // Whoever ordered it may have gone.
                    let _ = done.send(());
                }
            }
            // Apply finds its queue closed and ends this replica; the next start derives the files again.
            Stop::Failed(error) => tracing::error!(%error, "derived files cannot be written: the store stops"),
        }
    }

    fn round(&mut self, jobs: &mut mpsc::Receiver<Job>) -> Result<(), Stop> {
        let mut job = jobs.blocking_recv().ok_or(Stop::Ordered(None))?;
        for _ in 1..ROUND_MAX {
            self.handle(job)?;
            match jobs.try_recv() {
                Ok(next) => job = next,
                Err(_) => {
                    self.told.publish();
                    return Ok(());
                }
            }
        }
        self.handle(job)?;
        self.told.publish();
        Ok(())
    }

    fn handle(&mut self, job: Job) -> Result<(), Stop> {
        match job {
            Job::Entry(entry) => {
                self.dispatch(&entry)?;
                self.told.reached = entry.index + 1;
            }
            Job::Checkpoint(checkpoint) => self.checkpoint(checkpoint)?,
            Job::Reset { image, done } => {
                self.topics.clear();
                self.cached.clear();
                self.cached_entries = 0;
                self.unsynced.clear();
                self.wait_for_saver()?;
                self.told.write(|| self.table.reset(Some(&image)))?;
                self.told.write(|| self.index.reset(image.resume.position))?;
                self.dispatched.physical_end.store(image.resume.position, Ordering::Release);
                self.told.reached = image.applied.index + 1;
                self.told.publish();
                let _ = done.send(Ok(()));
            }
            Job::Stop { done } => {
                self.flush_all()?;
                return Err(Stop::Ordered(Some(done)));
            }
        }
        Ok(())
    }

    fn dispatch(&mut self, entry: &EntryJob) -> Result<()> {
        for topic in &entry.deleted {
            self.topics.remove(&topic.slot);
            for queue in self.table.remove(topic) {
                self.cached.remove(&queue.number());
            }
            self.told.write(|| self.table.set_aside(topic, entry.index))?;
        }
        for hidden in &entry.hidden {
            // What a checkpoint before this entry knew is hidden by the table, as it is restored.
            if let Some(queue) = self.table.queue(&hidden.topic.name, hidden.queue_id) {
                queue.hide_below(hidden.end);
            }
        }
        let mut hashes = Vec::new();
        for assigned in &entry.assigned {
            let physical_offset = entry.payload_position + u64::from(assigned.at);
            let record = entry.payload.get(assigned.at as usize..).unwrap_or_default();
            let record = RecordView::parse(record).expect("apply has parsed this record");
            let keys = describe(&record);
            let tags_code = self.delivery_time(assigned, &record).unwrap_or(keys.tags_code);
            let queue_entry = QueueEntry { physical_offset, size: assigned.size, tags_code };
            self.append(assigned, queue_entry)?;
            hashes.clear();
            keys.hashes(&assigned.topic.name, &mut hashes);
            let mut hashes = &hashes[..];
            self.told.write(|| self.index.add(physical_offset, record.store_timestamp(), &mut hashes))?;
        }
        let end = entry.payload_position + entry.payload.len() as u64;
        self.dispatched.physical_end.store(end, Ordering::Release);
        self.dispatched.messages.fetch_add(entry.assigned.len() as u64, Ordering::Relaxed);
        if self.cached_entries > self.cached_entries_max {
            self.shrink()?;
        }
        Ok(())
    }

    /// When a message that waits on a delay level is due, as its queue entry holds it in place of a tags code.
    fn delivery_time(&self, assigned: &Assigned, record: &RecordView<'_>) -> Option<i64> {
        (assigned.topic.name == SCHEDULE_TOPIC)
            .then(|| record.store_timestamp().saturating_add(self.delay_levels.wait_ms(assigned.queue_id + 1)))
    }

    fn append(&mut self, assigned: &Assigned, entry: QueueEntry) -> Result<()> {
        let topic = self.topics.entry(assigned.topic.slot).or_insert_with(|| self.table.topic(&assigned.topic));
        let queue = self.table.queue_for(topic, assigned.queue_id, assigned.queue_offset);
        let held = queue.append(assigned.queue_offset, entry);
        self.cached_entries += 1;
        if held.unwritten >= UNWRITTEN_MAX {
            self.told.write(|| queue.flush(&mut self.unsynced))?;
            if held.in_memory > 2 * KEPT_MAX {
                self.cached_entries -= held.in_memory - queue.trim(KEPT_MAX);
            }
        }
        if held.in_memory == 1 {
            self.cached.insert(queue.number(), queue);
        }
        self.listener.arrived(&assigned.topic.name, assigned.queue_id, assigned.queue_offset + 1, entry.tags_code);
        Ok(())
    }

    /// Writes everything and leaves each queue its share of half the memory.
    fn shrink(&mut self) -> Result<()> {
        self.flush_all()?;
        let share = self.cached_entries_max / 2 / self.cached.len().max(1);
        let mut left = 0;
        self.cached.retain(|_, queue| {
            let held = queue.trim(share);
            left += held;
            held > 0
        });
        self.cached_entries = left;
        Ok(())
    }

    fn flush_all(&mut self) -> Result<()> {
        for queue in self.cached.values() {
            self.told.write(|| queue.flush(&mut self.unsynced))?;
        }
        Ok(())
    }

    fn checkpoint(&mut self, job: CheckpointJob) -> Result<()> {
        if self.cached.len() <= SINGLE_SYNCS_MAX {
            self.flush_all()?;
        }
        let save = Save {
            index: job.index,
            bytes: job.bytes,
            unsynced: std::mem::take(&mut self.unsynced),
            marks: self.table.marks(),
            flushed: self.told.write(|| self.index.flush(job.resume_position))?,
            done: job.done,
        };
        if save.done.is_some() {
            // Somebody waits for this one; better late than skipped.
            return self.saves.send(SaverJob::Save(save)).map_err(|_| Error::Stopped);
        }
        match self.saves.try_send(SaverJob::Save(save)) {
            Ok(()) => Ok(()),
            Err(blocking::TrySendError::Full(SaverJob::Save(save))) => {
                tracing::warn!(index = save.index, "the disk is too slow for checkpoints: one is skipped");
                self.unsynced = save.unsynced;
                Ok(())
            }
            Err(_) => Err(Error::Stopped),
        }
    }

    /// Returns once no checkpoint is being saved.
    fn wait_for_saver(&self) -> Result<()> {
        let (passed, wait) = blocking::channel();
        self.saves.send(SaverJob::Barrier(passed)).map_err(|_| Error::Stopped)?;
        wait.recv().map_err(|_| Error::Stopped)
    }
}

/// What queue and index want to know of a message.
pub(crate) struct Keys<'a> {
    pub(crate) tags_code: i64,
    unique_key: Option<&'a str>,
    keys: &'a str,
}

/// Reads tag and keys of a message in one pass over its properties.
pub(crate) fn describe<'a>(record: &RecordView<'a>) -> Keys<'a> {
    let mut tags = None;
    let mut keys = Keys { tags_code: 0, unique_key: None, keys: "" };
    let properties: Properties<'a> = record.properties();
    for (name, value) in properties.iter() {
        match name {
            property::TAGS => tags = Some(value),
            property::UNIQ_KEY => keys.unique_key = Some(value),
            property::KEYS => keys.keys = value,
            _ => {}
        }
    }
    keys.tags_code = tags.map_or(0, |tags| i64::from(java_hash_code(tags)));
    keys
}

impl Keys<'_> {
    /// Whether the message is found by `key`.
    pub(crate) fn include(&self, key: &str) -> bool {
        self.unique_key == Some(key) || self.keys.split(' ').any(|known| known == key)
    }

    /// The hashes the message is indexed under.
    pub(crate) fn hashes(&self, topic: &str, out: &mut Vec<u32>) {
        let keys = self.keys.split(' ').filter(|key| !key.is_empty());
        out.extend(self.unique_key.into_iter().chain(keys).map(|key| key_hash(topic, key)));
    }
}

/// The hash under which the index keeps `key` of `topic`.
pub(crate) fn key_hash(topic: &str, key: &str) -> u32 {
    index_key_hash(topic, key).unsigned_abs()
}

enum SaverJob {
    Save(Save),
    /// Told when everything before it is done.
    Barrier(blocking::Sender<()>),
}

/// A checkpoint to be made durable.
struct Save {
    index: u64,
    bytes: Bytes,
    unsynced: Vec<UnsyncedFile>,
    marks: QueueMarks,
    flushed: key_index::Flushed,
    done: Option<oneshot::Sender<Result<()>>>,
}

struct Saver {
    table: Arc<QueueTable>,
    index: Arc<KeyIndex>,
    checkpoints: Arc<Checkpoints>,
    /// Files to be synced, and whether they are new in their directory. Kept while a save fails.
    unsynced: BTreeMap<PathBuf, bool>,
}

impl Saver {
    fn run(mut self, jobs: &blocking::Receiver<SaverJob>) {
        while let Ok(job) = jobs.recv() {
            let mut save = match job {
                SaverJob::Save(save) => save,
                SaverJob::Barrier(passed) => {
                    // Reput waits for it, or has ended.
                    let _ = passed.send(());
                    continue;
                }
            };
            for file in save.unsynced.drain(..) {
                *self.unsynced.entry(file.path).or_default() |= file.created;
            }
            let result = self.save(&save);
            if let Err(error) = &result {
                tracing::error!(index = save.index, %error, "a checkpoint could not be written");
            }
            if let Some(done) = save.done {
                let _ = done.send(result);
            }
        }
    }

    fn save(&mut self, save: &Save) -> Result<()> {
        if self.unsynced.len() > SINGLE_SYNCS_MAX {
            sync_file_system(self.table.dir())?;
        } else {
            self.sync_files()?;
        }
        self.unsynced.clear();
        self.index.sync(&save.flushed)?;
        save.marks.write(self.table.dir(), save.index)?;
        self.checkpoints.write(save.index, &save.bytes)?;
        self.table.remove_deleted(save.index)
    }

    fn sync_files(&self) -> Result<()> {
        let mut directories = BTreeSet::new();
        for (path, created) in &self.unsynced {
            if sync_file(path)? && *created {
                // The queue's, the topic's, and the one of all topics.
                directories.extend(path.ancestors().skip(1).take(3).map(Path::to_path_buf));
            }
        }
        directories.iter().try_for_each(|dir| Ok(durable::sync_directory(dir)?))
    }
}

/// Syncs everything on the file system that `dir` is on.
fn sync_file_system(dir: &Path) -> Result<()> {
    let io = |source| Error::Io { action: "syncing the file system of", path: dir.to_owned(), source };
    let dir = File::open(dir).map_err(io)?;
    rustix::fs::syncfs(dir).map_err(|error| io(error.into()))
}

/// Says whether the file is there: that of a topic deleted since is not.
fn sync_file(path: &Path) -> Result<bool> {
    let io = |source| Error::Io { action: "syncing", path: path.to_owned(), source };
    match File::open(path) {
        Ok(file) => file.sync_data().map(|()| true).map_err(io),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io(error)),
    }
}
