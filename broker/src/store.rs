//! Derived files and reads: ConsumeQueue, IndexFile, reput, checkpoints.
//!
//! Everything here follows from the log. Files are never repaired: what does not agree with its checkpoint, to the last
//! bit, is built again by replaying the log into it.

use std::path::PathBuf;

use crate::delay_levels::DelayLevels;

pub(crate) mod checkpoint;
pub(crate) mod commit_log;
pub(crate) mod consume_queue;
mod error;
pub(crate) mod file_pool;
mod inspect;
pub(crate) mod key_index;
pub(crate) mod log;
pub(crate) mod queue_marks;
pub(crate) mod queue_table;
pub(crate) mod replay;
pub(crate) mod reput;
pub(crate) mod room;

#[cfg(test)]
mod tests;

pub(crate) use commit_log::KEY_QUERY_MAX;
pub use commit_log::{KeyQueryOutcome, MessageStore, PullFilter, PullLimits, PullOutcome, PullStatus, TimeBoundary};
pub use consume_queue::QueueEntry;
pub use error::{Error, Result};
pub use inspect::{DerivedCheck, DerivedFinding};
pub use key_index::{IndexProgress, IndexSizes};
pub use replay::{Replay, ReplayProgress};
pub use reput::ArrivalListener;

/// Sizes and limits of the derived files of one group.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Holds `consumequeue/`, `index/` and `checkpoints/`.
    pub dir: PathBuf,
    /// The cluster, as checkpoints name it.
    pub cluster_id: [u8; 16],
    /// Entries of a ConsumeQueue file.
    pub entries_per_queue_file: u64,
    /// Sizes of an index file.
    pub index_sizes: IndexSizes,
    /// Open files.
    pub open_files_max: usize,
    /// Queue entries held in memory for consumers that keep up.
    pub cached_entries_max: usize,
    /// Applied entries waiting for reput.
    pub reput_queue_max: usize,
    /// How long messages wait on each delay level.
    pub delay_levels: DelayLevels,
    /// How much one pull may return.
    pub pull_limits: PullLimits,
}

impl StoreOptions {
    /// The usual sizes. `hot_log_bytes` is how much of the log's end is mapped.
    pub fn new(dir: impl Into<PathBuf>, cluster_id: [u8; 16], hot_log_bytes: u64) -> Self {
        Self {
            dir: dir.into(),
            cluster_id,
            entries_per_queue_file: 300_000,
            index_sizes: IndexSizes { slots: 1_000_000, entries: 4_000_000 },
            open_files_max: 256,
            cached_entries_max: 1 << 20,
            reput_queue_max: 1024,
            delay_levels: DelayLevels::default(),
            pull_limits: PullLimits {
                hot_messages_max: 32,
                hot_bytes_max: 256 * 1024,
                cold_messages_max: 8,
                cold_bytes_max: 64 * 1024,
                hot_log_bytes,
            },
        }
    }
}
