//! A segmented log on disk, and openraft's log storage over it.
//!
//! The log holds opaque payloads: it knows no topics, messages or sockets. One writer thread appends,
//! syncs and saves the vote; readers take slices of mapped segments. Everything an acknowledgement
//! rests on is checked again on the way back from the disk.
#![warn(missing_docs)]

mod damage;
pub mod durable;
mod entry;
mod error;
mod hard_state;
mod identity;
mod ids;
mod inspect;
mod latch_note;
mod log_index;
mod log_storage;
mod mapped_file;
mod options;
mod preparer;
mod progress;
mod read_budget;
#[warn(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]
mod record;
mod recovery;
mod region;
mod repair;
mod scan;
mod scrub;
mod segment;
mod segmented_log;
mod sigbus;
mod slots;
mod stall;
mod times;
mod verified;
mod view;
mod writer;

pub use damage::DamagedRange;
pub use entry::{Body, BodyKind, LogEntry, Member, Membership, Payload, RECORD_HEADER_BYTES};
pub use error::{Error, Result};
pub use identity::{LOST_STORE, Retired};
pub use ids::{ClusterId, LogId, LogIndex, LogPosition, RaftLogId, Term};
pub use inspect::{Finding, FooterSeen, Inspection, Overview, RecordSeen, Seen, SegmentSeen};
pub use log_storage::{LogReader, LogStorage, Opened, Recovered, StoreConfig, open};
pub use options::{FlushMode, Options, Preparation};
pub use read_budget::ReadBudget;
pub use repair::{PeerRange, RangeAnswer, RangeSource, Repaired, StoppedStore};
pub use scrub::{ScrubOptions, ScrubStatus};
pub use stall::{Pace, StallLimits};
pub use times::{TimeHistogram, Times};
pub use view::{
    Extent, Health, LogEntries, LogView, RecordRange, ResumePoint, SealedSegment, StopClass, Vote, Watermarks,
};

#[cfg(test)]
extern crate self as raft_store;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
#[cfg(test)]
mod tests;
