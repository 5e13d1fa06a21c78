//! The broker's view of the log: reads, watermarks, notices.

use std::sync::{Arc, OnceLock, mpsc};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::damage::DamagedRange;
use crate::entry::{Body, LogEntry, Membership};
use crate::error::{Error, Result};
use crate::identity::DirLock;
use crate::ids::{LogId, LogIndex, LogPosition, Term};
use crate::options::FlushMode;
use crate::scrub::{ScrubStatus, Scrubber};
use crate::segment;
use crate::segmented_log::Log;
use crate::stall::Pace;
use crate::times::TimeHistogram;
use crate::writer::{Op, Queue, Reply, Threads, Write};

/// What all handles of one store share. The last one to go stops the store, as a kill would.
pub(crate) struct Shared {
    pub(crate) log: Arc<Log>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) scrubber: Mutex<Option<Scrubber>>,
    /// Dropped before the lock.
    pub(crate) threads: Mutex<Option<Threads>>,
    /// Let go when the store is closed: nothing is written afterwards.
    pub(crate) lock: Mutex<Option<DirLock>>,
    /// Who wants to know of each append that Raft is told of, if anybody does.
    pub(crate) stored: OnceLock<StoredFn>,
    #[cfg(feature = "faults")]
    pub(crate) under_way: Arc<crate::stall::UnderWay>,
}

/// Told of the last entry of an append.
pub(crate) type StoredFn = Arc<dyn Fn(LogIndex) + Send + Sync>;

impl std::fmt::Debug for LogView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogView").field("dir", &self.log().options.dir).finish_non_exhaustive()
    }
}

/// A cheap handle for everything but Raft's own access to the log.
#[derive(Clone)]
pub struct LogView {
    pub(crate) shared: Arc<Shared>,
}

#[cfg(feature = "faults")]
impl LogView {
    /// From now on the disk seems not to answer: syncs hang. `false` lets them go on.
    pub fn hold_syncs(&self, hold: bool) {
        self.shared.under_way.hold(hold);
    }

    /// The next sync fails, as with a disk that cannot write.
    pub fn fail_next_sync(&self) {
        self.shared.under_way.fail_next();
    }
}

/// Where one record lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordRange {
    /// Its entry.
    pub id: LogId,
    /// Where its payload starts.
    pub payload_start: LogPosition,
    /// The payload's length in bytes.
    pub payload_bytes: u64,
}

/// Where a log goes on behind an entry it need not hold itself.
///
/// A checkpoint carries it, so that a replica that starts from the checkpoint lays out its segments
/// like all others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResumePoint {
    /// Where the next record goes, or would go but for a segment's end.
    pub position: LogPosition,
    /// The checksum the next record is chained to.
    pub chain: u32,
}

/// A segment that takes no more records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SealedSegment {
    /// Where the segment starts.
    pub base: LogPosition,
    /// Its last entry.
    pub last: LogId,
    /// Where a log that starts behind that entry goes on.
    pub resume: ResumePoint,
}

/// What a log holds, and the room it takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extent {
    /// The first entry held; none while the log is empty.
    pub first: Option<LogIndex>,
    /// Where its record starts; the end of an empty log.
    pub start: LogPosition,
    /// The end of the last record.
    pub end: LogPosition,
    /// Segment files, the open one included.
    pub segments: u64,
    /// What they take on the disk: a segment has its full size from its first record on.
    pub file_bytes: u64,
}

/// The log's watermarks, taken at one moment.
///
/// purged <= committed <= last and flushed <= last. Committed may be ahead of flushed: a majority of
/// other replicas can have what this disk does not have yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watermarks {
    /// The last entry no longer held.
    pub purged: Option<LogId>,
    /// The last entry known to be chosen.
    pub committed: Option<LogId>,
    /// The last entry.
    pub last: Option<LogId>,
    /// The end of what the disk is known to have.
    pub flushed_end: LogPosition,
    /// The end of the records that are chosen. Bytes below it never change.
    pub committed_end: LogPosition,
    /// The end of the last record.
    pub end: LogPosition,
}

/// Whether the log still takes appends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Health {
    /// It does.
    Good,
    /// A write or sync failed: nothing is acknowledged any more, and the process must end.
    Latched {
        /// The first failure.
        reason: String,
    },
}

/// The saved vote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vote {
    /// The term voted in.
    pub term: u64,
    /// Whom the vote went to.
    pub node_id: u64,
    /// Whether a majority granted it.
    pub committed: bool,
}

/// How the store was stopped last time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopClass {
    /// There was none: this is the first start.
    New,
    /// Closed, everything flushed.
    Clean,
    /// The process ended, the operating system did not: its page cache is still there.
    Process,
    /// The operating system or the mount went: what was not flushed may be gone.
    Os,
    /// A write or sync had failed.
    Latched,
}

impl LogView {
    fn log(&self) -> &Log {
        &self.shared.log
    }

    /// From now on `stored` is told the last entry of every append, as soon as it is kept as the flush mode says and
    /// before Raft is told. It runs on the writer's thread, so it must be quick, and it must not hold this view. Only the first call counts.
    pub fn tell_stored(&self, stored: impl Fn(LogIndex) + Send + Sync + 'static) {
        // Whoever came first is told already.
        let _ = self.shared.stored.set(Arc::new(stored));
    }

    /// Reads `bytes` bytes from `position` on, all of them inside one record's payload.
    ///
    /// Below the committed end of a mapped segment the result is a slice of the mapping; everything
    /// else is a copy, or shares the buffer it was appended from.
    ///
    /// # Errors
    /// [`Error::NotStored`] if the log does not hold the range.
    pub fn read(&self, position: LogPosition, bytes: u64) -> Result<Bytes> {
        self.log().read_bytes(position, bytes)
    }

    /// The record whose header or payload covers `position`, if the log holds it.
    ///
    /// # Errors
    /// If a cold segment cannot be read.
    pub fn record_containing(&self, position: LogPosition) -> Result<Option<RecordRange>> {
        self.log().locate_position(position)
    }

    /// Where the record of entry `index` lies, if the log holds it.
    ///
    /// # Errors
    /// If a cold segment cannot be read.
    pub fn record_of(&self, index: LogIndex) -> Result<Option<RecordRange>> {
        self.log().locate(index)
    }

    /// Where the record of entry `index` starts, if the log holds it.
    ///
    /// # Errors
    /// If a cold segment cannot be read.
    pub fn start_position_of(&self, index: LogIndex) -> Result<Option<LogPosition>> {
        let range = self.log().locate(index)?;
        Ok(range.map(|range| LogPosition::new(range.payload_start.get() - crate::entry::RECORD_HEADER_BYTES)))
    }

    /// Where a log that starts behind entry `index` goes on.
    ///
    /// # Errors
    /// [`Error::Purged`] if the log does not hold the entry any more.
    pub fn resume_point_after(&self, index: LogIndex) -> Result<ResumePoint> {
        self.log().resume_point_after(index)
    }

    /// Tells where the log goes on behind `last`, before Raft purges up to it.
    ///
    /// An installed snapshot replaces the log up to its last entry; the position where the next
    /// entry goes is known only to the replica that made the snapshot. Called by the state machine
    /// when it installs a snapshot, before it returns.
    pub fn set_resume_point(&self, last: LogId, resume: ResumePoint) {
        self.log().set_resume_point(last, resume);
    }

    /// The entries from `from` on, up to and including `through`, in order, for replay.
    ///
    /// They end early, without an error, where the log ends.
    pub fn entries(&self, from: LogIndex, through: LogIndex) -> LogEntries {
        LogEntries { view: self.clone(), next: from, through, read: Vec::new().into_iter() }
    }

    /// Start of the segment that covers `position`.
    ///
    /// Two entries are in the same segment exactly if their positions have the same base, so the
    /// first entry with another base tells that the one before it was the last of its segment.
    pub fn segment_base(&self, position: LogPosition) -> LogPosition {
        self.log().layout.segment_base(position)
    }

    /// The segments that take no more records, oldest first. Retention drops whole ones, from the front.
    pub fn sealed_segments(&self) -> Vec<SealedSegment> {
        self.log().sealed_segments()
    }

    /// What the log holds, and the room it takes.
    ///
    /// # Errors
    /// If a cold segment cannot be read.
    pub fn extent(&self) -> Result<Extent> {
        self.log().extent()
    }

    /// The size of a segment.
    pub fn segment_bytes(&self) -> u64 {
        self.log().layout.segment_bytes
    }

    /// The largest payload one entry may carry.
    pub fn payload_bytes_max(&self) -> u64 {
        self.log().options.payload_bytes_max
    }

    /// All watermarks of one moment.
    pub fn watermarks(&self) -> Watermarks {
        self.log().watermarks()
    }

    /// How long the syncs of the segments took.
    pub fn sync_times(&self) -> TimeHistogram {
        self.log().sync_times.histogram()
    }

    /// The saved vote.
    pub fn vote(&self) -> Option<Vote> {
        self.log().vote()
    }

    /// The newest sealed segment. When segments are sealed quickly one may be overwritten unseen.
    pub fn sealed(&self) -> watch::Receiver<Option<SealedSegment>> {
        self.log().sealed.subscribe()
    }

    /// Whether the log still takes appends.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.log().health.subscribe()
    }

    /// How the disk keeps up.
    pub fn pace(&self) -> watch::Receiver<Pace> {
        self.log().pace.subscribe()
    }

    /// Whether there is no room on the disk for the segment behind the open one.
    ///
    /// The log goes on until the open segment is full. Whoever puts entries into it should stop before, with all
    /// but what makes room.
    pub fn is_short_of_room(&self) -> watch::Receiver<bool> {
        self.log().preparer.short()
    }

    /// The SHA-256 of each mebibyte of the sealed segment at `base`, as it was when it was closed: equal on all replicas.
    /// `None` if there is no such segment, or it has none yet. Reads the disk.
    ///
    /// # Errors
    /// If the footer cannot be read.
    pub fn digests(&self, base: LogPosition) -> Result<Option<Vec<[u8; 32]>>> {
        let log = self.log();
        let segment = {
            let state = log.state();
            let at = state.segments.binary_search_by_key(&base, |segment| segment.base);
            at.ok().and_then(|at| state.segments.get(at)).cloned()
        };
        let Some(segment) = segment else { return Ok(None) };
        let opening = segment.content().opening.filter(|_| segment.content().sealed);
        let Some(opening) = opening else { return Ok(None) };
        Ok(segment.read_footer_digests(&log.layout, opening)?.and_then(|(_, digests)| digests))
    }

    /// Waits while the disk is full and what is allocated cannot take `bytes` more. Says nothing about a log that takes no
    /// more at all: an append tells.
    pub async fn room_for(&self, bytes: u64) {
        let log = self.log();
        let mut short = log.preparer.short();
        while *short.borrow_and_update() && !log.preparer.is_stopped() {
            // Whatever does not fit a segment goes into the next.
            let margin = segment::HEADER_BYTES + segment::footer_bytes(log.layout.segment_bytes);
            let end = log.watermarks().end.plus(bytes).plus(margin);
            if log.preparer.has(log.layout.segment_base(end)) || short.changed().await.is_err() {
                return;
            }
        }
    }

    /// Makes an append that waits for room fail instead, and every later one that needs another segment.
    ///
    /// Raft waits for its appends, so a replica with a full disk could not be stopped otherwise.
    pub fn stop_waiting_for_room(&self) {
        self.log().preparer.give_up();
    }

    /// What is known to be damaged, by segment. While anything is, this replica should not lead.
    pub fn damage(&self) -> watch::Receiver<Vec<DamagedRange>> {
        self.log().damage.subscribe()
    }

    /// How scrubbing goes. `None` if the log is not scrubbed.
    pub fn scrub(&self) -> Option<ScrubStatus> {
        self.shared.scrubber.lock().as_ref().map(Scrubber::status)
    }

    /// Writes a lower bound of what has been applied, without a sync. A hint for people and for the
    /// next start, nothing rests on it.
    pub fn set_applied_hint(&self, applied: LogId) {
        self.log().set_applied(applied);
    }

    fn ask(&self, op: impl FnOnce(Reply) -> Op) -> Result<()> {
        let (answer, answered) = mpsc::sync_channel(1);
        let reply = Box::new(move |result| {
            let _ = answer.send(result);
        });
        self.shared.queue.push(op(reply));
        answered.recv().unwrap_or(Err(Error::Closed))
    }

    /// Takes the node id that a leader has given out for this store. On return it is on disk.
    ///
    /// Blocks.
    ///
    /// # Errors
    /// If the disk refuses or the store is closed.
    ///
    /// # Panics
    /// If the store has an identity, or had this one before.
    pub fn adopt_identity(&self, node_id: u64, generation: u64) -> Result<()> {
        self.ask(|reply| Op::Adopt { node_id, generation, reply })
    }

    /// Begins a new configuration behind the end of this log: `membership` becomes its last entry, in `term`, the vote
    /// of that term goes to `node_id`, and `node_id` becomes the identity of this store.
    ///
    /// This is what an operator does when a majority is gone for good. Whatever this log does not hold is lost.
    /// Raft must not run on the store. After a crash on the way it may be called again.
    ///
    /// # Errors
    /// If the disk refuses or the store is closed.
    ///
    /// # Panics
    /// If the store has an identity, or the term is not above everything in the store.
    pub async fn begin_configuration(
        &self,
        node_id: u64,
        generation: u64,
        term: u64,
        membership: &Membership,
    ) -> Result<LogId> {
        let log = self.log();
        let last = self.watermarks().last;
        assert!(last.is_none_or(|last| last.term.get() < term) && self.vote().is_none_or(|vote| vote.term < term));
        let id = LogId::new(Term::new(term), last.map_or(LogIndex::ZERO, |last| last.index.next()));
        // The vote first: a log that is ahead of its vote is one that a start refuses.
        self.ask_and_await(|reply| Op::SaveVote(Vote { term, node_id, committed: false }, reply)).await?;
        let (kind, payload) = Body::Membership(membership.clone()).encode();
        let entries = vec![(id, kind, payload)];
        log.reserve(&entries).await?;
        let records = log.take(entries)?;
        let (answer, answered) = oneshot::channel();
        let done = Box::new(move |result| {
            let _ = answer.send(result);
        });
        self.shared.queue.push(Op::Write(Write { records, must_sync: true, starts_sync: None, done }));
        match answered.await {
            Ok(Ok(())) => {}
            Ok(Err(source)) => return Err(Error::io("appending to", &log.options.dir, source)),
            Err(_) => return Err(Error::Closed),
        }
        self.ask_and_await(|reply| Op::Adopt { node_id, generation, reply }).await?;
        Ok(id)
    }

    async fn ask_and_await(&self, op: impl FnOnce(Reply) -> Op) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        let reply = Box::new(move |result| {
            let _ = answer.send(result);
        });
        self.shared.queue.push(op(reply));
        answered.await.unwrap_or(Err(Error::Closed))
    }

    /// Whether appends count as done only once the disk has them.
    pub fn flush_is_sync(&self) -> bool {
        self.log().flush_mode() == FlushMode::Sync
    }

    /// Makes appends count as done as the group says in entry `said_at`. On return this is on disk and holds; to become
    /// synchronous, everything appended before has been synced.
    ///
    /// A call to become asynchronous does nothing if a later entry has announced the opposite meanwhile. Blocks.
    ///
    /// # Errors
    /// If the disk refuses or the store is closed.
    pub fn set_flush_is_sync(&self, is_sync: bool, said_at: LogIndex) -> Result<()> {
        self.ask(|reply| Op::SetFlush { is_sync, said_at, reply })
    }

    /// Writes and syncs what is queued, marks the stop as clean, ends the log's threads and lets go of the directory.
    ///
    /// Blocks. Call it once Raft is shut down: what is appended later is refused.
    ///
    /// # Errors
    /// If the disk refuses; the stop is then not marked as clean. [`Error::Closed`] if the store was
    /// closed before.
    pub fn close(&self) -> Result<()> {
        // Before the stop is marked as clean: it writes, too.
        drop(self.shared.scrubber.lock().take());
        let result = self.ask(Op::Close);
        drop(self.shared.threads.lock().take());
        drop(self.shared.lock.lock().take());
        result
    }
}

/// Entries in order. See [`LogView::entries`].
pub struct LogEntries {
    view: LogView,
    next: LogIndex,
    through: LogIndex,
    read: std::vec::IntoIter<LogEntry>,
}

impl Iterator for LogEntries {
    type Item = Result<LogEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(entry) = self.read.next() {
            return Some(Ok(entry));
        }
        if self.next > self.through {
            return None;
        }
        let log = &self.view.shared.log;
        match log.read_some(self.next, self.through.next(), log.options.read_bytes_max) {
            Ok(entries) => {
                self.next = entries.last()?.log_index().next();
                self.read = entries.into_iter();
                self.read.next().map(Ok)
            }
            Err(error) => {
                self.next = self.through.next();
                Some(Err(error))
            }
        }
    }
}
