//! Sizes and limits of a store, checked once, together.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::ids::{ClusterId, LogPosition};
use crate::read_budget::ReadBudget;
use crate::record;
use crate::scrub::ScrubOptions;
use crate::segment;
use crate::stall::StallLimits;

/// When an append counts as done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushMode {
    /// When the disk has it. Many appends share one sync.
    Sync,
    /// When the operating system has it; the disk follows within `interval`.
    Async {
        /// How long written bytes may wait for their sync.
        interval: Duration,
    },
}

impl FlushMode {
    /// Asynchronous flush at its usual interval.
    pub const ASYNC: Self = Self::Async { interval: Duration::from_millis(200) };
}

/// What is done to a segment's blocks before it is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preparation {
    /// Reserve them.
    Allocate,
    /// Reserve them and write zeros over all of them, so that later syncs change no extents.
    Prewrite,
}

/// How a store is laid out and behaves.
///
/// `segment_bytes` and `record_bytes_max` decide where records lie, so they must be equal on all
/// replicas of a group.
#[derive(Clone, Debug)]
pub struct Options {
    /// The store's own directory.
    pub dir: PathBuf,
    /// The cluster this store belongs to.
    pub cluster_id: ClusterId,
    /// The Raft identity that owns the log. 0: none is configured. An empty directory then begins without an identity,
    /// which is as safe as [`Self::rejoin`], and another one's is whatever was given out for it.
    pub node_id: u64,
    /// Whose log this is among those of the node, such as the name of its Raft group. Another one's directory is refused.
    pub group: String,
    /// The node's name, for people.
    pub node_name: String,
    /// Whether an empty directory may become a store. A replica that once voted must never start
    /// empty, so this is set for a new group or an explicit join only.
    pub create: bool,
    /// The size of one segment file.
    pub segment_bytes: u64,
    /// The largest payload of one record. Lowered to what one segment holds.
    pub payload_bytes_max: u64,
    /// When an append counts as done in a new store. An existing one goes on as the group last said.
    pub flush: FlushMode,
    /// How long written bytes may wait for their sync whenever the mode is asynchronous.
    pub flush_interval: Duration,
    /// In asynchronous mode, appends are held back once the oldest unflushed byte is this old.
    pub flush_lag_max: Duration,
    /// The writer waits for the disk once this many bytes are not flushed.
    pub unflushed_bytes_max: u64,
    /// What is queued for the writer before `append` waits.
    pub queued_bytes_max: u64,
    /// How many of the newest segments stay mapped.
    pub maps_hot: usize,
    /// How much of what has been written and committed is kept in memory as well, for the readers
    /// that run just behind the writer.
    pub tail_bytes: u64,
    /// The most one read for replication returns, a single larger entry excepted.
    pub read_bytes_max: u64,
    /// What is done to a segment before it is used.
    pub preparation: Preparation,
    /// Accepts file systems other than ext4 and xfs.
    pub allow_unproven_fs: bool,
    /// Whether a new mount counts as a new start of the operating system. A container gets a new mount
    /// with each start although the page cache survives; there this is switched off.
    pub mount_identity: bool,
    /// Tells which payloads are synced before they count as done, in asynchronous mode too.
    /// Membership and blank entries always are.
    pub must_sync: fn(&[u8]) -> bool,
    /// Whether this is the only replica of its group. Nobody can then replace what is lost, so in
    /// asynchronous mode the log goes on after a crash of the operating system with what is there.
    pub alone: bool,
    /// How fast segments are read that are not mapped. To be shared by all stores of the process.
    pub cold_reads: Arc<ReadBudget>,
    /// How slow the disk may be.
    pub stall: StallLimits,
    /// Whether somebody repairs what turns out to be damaged. Raft's readers then wait for it; else they get an error,
    /// which ends the replica.
    pub repaired: bool,
    /// How sealed segments are re-read. `None`: they are not, and get no digests.
    pub scrub: Option<ScrubOptions>,
    /// Whether the node id is given up at this start, whatever is found: somebody has proved that this store is
    /// older than what was acknowledged from it.
    pub retire: bool,
    /// Whether an empty directory is begun without a node id: the disk that belonged to `node_id` is lost, and the store
    /// is to be given another. As safe as [`Self::create`] is not.
    pub rejoin: bool,
    /// Tells which payloads announce that the group flushes synchronously from that entry on. They are obeyed as soon
    /// as they are appended: to be stricter is always safe.
    pub starts_sync: fn(&[u8]) -> bool,
    /// Where a note about a failed write goes besides the store's directory, which may be what
    /// failed.
    pub runtime_dir: Option<PathBuf>,
}

impl Options {
    /// The usual sizes.
    pub fn new(dir: impl Into<PathBuf>, cluster_id: ClusterId, node_id: u64) -> Self {
        Self {
            dir: dir.into(),
            cluster_id,
            node_id,
            group: String::new(),
            node_name: String::new(),
            create: false,
            segment_bytes: 1 << 30,
            payload_bytes_max: 16 << 20,
            flush: FlushMode::Sync,
            flush_interval: Duration::from_millis(200),
            flush_lag_max: Duration::from_secs(1),
            unflushed_bytes_max: 64 << 20,
            queued_bytes_max: 256 << 20,
            maps_hot: 4,
            tail_bytes: 4 << 20,
            read_bytes_max: 1 << 20,
            preparation: Preparation::Allocate,
            allow_unproven_fs: false,
            mount_identity: true,
            must_sync: |_| false,
            alone: false,
            cold_reads: Arc::new(ReadBudget::new(0)),
            stall: StallLimits::default(),
            repaired: false,
            scrub: None,
            retire: false,
            rejoin: false,
            starts_sync: |_| false,
            runtime_dir: None,
        }
    }

    /// Whether an empty directory may become a store, with or without an identity.
    pub(crate) fn may_begin(&self) -> bool {
        self.create || self.rejoin || self.node_id == 0
    }

    /// The mode with its interval.
    pub(crate) fn flush_mode(&self, is_sync: bool) -> FlushMode {
        match self.flush {
            _ if is_sync => FlushMode::Sync,
            FlushMode::Async { interval } => FlushMode::Async { interval },
            FlushMode::Sync => FlushMode::Async { interval: self.flush_interval },
        }
    }

    /// Checks every option and their relations.
    ///
    /// # Errors
    /// [`Error::Options`] names the first that cannot be.
    pub(crate) fn check(mut self) -> Result<(Self, Layout)> {
        let wrong = |text: String| Err(Error::Options(text));
        let page = segment::HEADER_BYTES;
        if !self.segment_bytes.is_multiple_of(page) || self.segment_bytes < segment::BYTES_MIN {
            return wrong(format!(
                "segment_bytes = {} must be a multiple of {page} and at least {}",
                self.segment_bytes,
                segment::BYTES_MIN
            ));
        }
        if self.segment_bytes > segment::BYTES_MAX {
            return wrong(format!("segment_bytes = {} exceeds {}", self.segment_bytes, segment::BYTES_MAX));
        }
        if self.payload_bytes_max == 0 {
            return wrong("payload_bytes_max must not be 0".into());
        }
        if self.maps_hot == 0 {
            return wrong("maps_hot must not be 0: the newest segment is always mapped".into());
        }
        if self.read_bytes_max == 0 || self.unflushed_bytes_max == 0 || self.queued_bytes_max == 0 {
            return wrong("a limit of 0 bytes stops the log".into());
        }
        let FlushMode::Async { interval } = self.flush_mode(false) else { unreachable!("asked for") };
        if interval.is_zero() || interval >= self.flush_lag_max {
            return wrong("flush interval must be above 0 and below flush_lag_max".into());
        }
        if let Some(text) = self.stall.wrong() {
            return wrong(text);
        }
        if self.scrub.is_some_and(|scrub| scrub.bytes_per_second == 0 || scrub.interval.is_zero()) {
            return wrong("a scrub rate or interval of 0 scrubs nothing: leave scrub out instead".into());
        }
        let layout = Layout { segment_bytes: self.segment_bytes, cluster_id: self.cluster_id };
        self.payload_bytes_max = self.payload_bytes_max.min(layout.payload_bytes_max());
        Ok((self, layout))
    }
}

/// Where things lie: pure arithmetic over positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) segment_bytes: u64,
    pub(crate) cluster_id: ClusterId,
}

impl Layout {
    /// Start of the segment that covers `position`.
    pub(crate) fn segment_base(&self, position: LogPosition) -> LogPosition {
        LogPosition::new(position.get() / self.segment_bytes * self.segment_bytes)
    }

    pub(crate) fn next_base(&self, base: LogPosition) -> LogPosition {
        base.plus(self.segment_bytes)
    }

    /// First position behind the records of the segment at `base`.
    pub(crate) fn records_end(&self, base: LogPosition) -> LogPosition {
        base.plus(self.segment_bytes - segment::footer_bytes(self.segment_bytes))
    }

    /// The largest payload that fits a segment, room for the closing pad included.
    pub(crate) fn payload_bytes_max(&self) -> u64 {
        let records = self.segment_bytes - segment::footer_bytes(self.segment_bytes) - segment::HEADER_BYTES;
        records - 2 * record::HEADER_BYTES
    }

    /// Where a record with `payload_bytes` goes if the log ends at `end`.
    ///
    /// It depends on nothing but these two, so that all replicas place a record alike.
    pub(crate) fn place(&self, end: LogPosition, payload_bytes: u64) -> LogPosition {
        let base = self.segment_base(end);
        let start = if end == base { base.plus(segment::HEADER_BYTES) } else { end };
        let need = record::padded(payload_bytes) + 2 * record::HEADER_BYTES;
        if start.plus(need) <= self.records_end(base) {
            start
        } else {
            self.next_base(base).plus(segment::HEADER_BYTES)
        }
    }
}
