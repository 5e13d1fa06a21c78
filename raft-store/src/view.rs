//! The broker's view of the log: reads, watermarks, notices.

use bytes::Bytes;
use tokio::sync::watch;

use crate::entry::LogEntry;
use crate::error::{Error, Result};
use crate::ids::{LogId, LogIndex, LogPosition};

/// A cheap handle for everything but Raft's own access to the log.
#[derive(Clone)]
pub struct LogView {
    health: watch::Receiver<Health>,
    sealed: watch::Receiver<Option<SealedSegment>>,
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
    /// Reads `bytes` bytes from `position` on, all of them inside one record's payload.
    ///
    /// Below the committed end of a mapped segment the result is a slice of the mapping; everything
    /// else is a copy, or shares the buffer it was appended from.
    ///
    /// # Errors
    /// [`Error::NotStored`] if the log does not hold the range.
    pub fn read(&self, position: LogPosition, bytes: u64) -> Result<Bytes> {
        Err(Error::NotStored { position, bytes })
    }

    /// The record whose header or payload covers `position`, if the log holds it.
    ///
    /// # Errors
    /// If a cold segment cannot be read.
    pub fn record_containing(&self, position: LogPosition) -> Result<Option<RecordRange>> {
        let _ = position;
        Err(Error::Closed)
    }

    /// Where the record of entry `index` starts, if the log holds it.
    ///
    /// # Errors
    /// If a cold segment cannot be read.
    pub fn start_position_of(&self, index: LogIndex) -> Result<Option<LogPosition>> {
        let _ = index;
        Err(Error::Closed)
    }

    /// Where a log that starts behind entry `index` goes on.
    ///
    /// # Errors
    /// [`Error::Purged`] if the log does not hold the entry any more.
    pub fn resume_point_after(&self, index: LogIndex) -> Result<ResumePoint> {
        Err(Error::Purged { index })
    }

    /// Tells where the log goes on behind `last`, before Raft purges up to it.
    ///
    /// An installed snapshot replaces the log up to its last entry; the position where the next
    /// entry goes is known only to the replica that made the snapshot. Called by the state machine
    /// when it installs a snapshot, before it returns.
    pub fn set_resume_point(&self, last: LogId, resume: ResumePoint) {
        let _ = (last, resume);
    }

    /// The entries from `from` on, up to and including `through`, in order, for replay.
    pub fn entries(&self, from: LogIndex, through: LogIndex) -> LogEntries {
        LogEntries { view: self.clone(), next: from, through }
    }

    /// Start of the segment that covers `position`.
    pub fn segment_base(&self, position: LogPosition) -> LogPosition {
        position
    }

    /// The largest payload one entry may carry.
    pub fn payload_bytes_max(&self) -> u64 {
        0
    }

    /// All watermarks of one moment.
    pub fn watermarks(&self) -> Watermarks {
        Watermarks::default()
    }

    /// The newest sealed segment.
    pub fn sealed(&self) -> watch::Receiver<Option<SealedSegment>> {
        self.sealed.clone()
    }

    /// Whether the log still takes appends.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// Writes a lower bound of what has been applied, without a sync. A hint for people and for the
    /// next start, nothing rests on it.
    pub fn set_applied_hint(&self, applied: LogId) {
        let _ = applied;
    }

    /// Writes and syncs what is queued, marks the stop as clean and ends the log's threads.
    ///
    /// Blocks. Call it once Raft is shut down.
    ///
    /// # Errors
    /// If the disk refuses; the stop is then not marked as clean.
    pub fn close(&self) -> Result<()> {
        Err(Error::Closed)
    }
}

/// Entries in order. See [`LogView::entries`].
pub struct LogEntries {
    view: LogView,
    next: LogIndex,
    through: LogIndex,
}

impl Iterator for LogEntries {
    type Item = Result<LogEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let _ = (&self.view, self.next, self.through);
        None
    }
}
