//! Makes a damaged segment whole with what peers have.
//!
//! A repair never touches the damaged file. It writes another one: head and opening from what is known, every record
//! that still verifies, and for each gap the bytes that a peer sends. They are accepted if index, term and checksums fit
//! the chain on both sides of the gap, so it matters little who sent them. The new file is synced and takes the old
//! one's name; the damaged bytes are kept aside before.
//!
//! Where the log's end itself is damaged there is no right side to fit. This node may have acknowledged what stood
//! there, and a majority with it. So every other member is asked, and the most up-to-date log among them decides:
//! whatever was chosen is in it, and what is not in it never was.

mod rebuild;
mod serve;
mod stopped;

use std::sync::Arc;

use bytes::Bytes;

pub(crate) use self::rebuild::Replacement;
use self::rebuild::{Known, Rebuild, Right};
pub use self::stopped::StoppedStore;
use crate::error::{Error, Result};
use crate::ids::{LogId, LogPosition};
use crate::segmented_log::Log;
use crate::view::LogView;
use crate::writer::Op;

/// What a peer has of a range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RangeAnswer {
    /// Whole records as they are stored, the first of them at the range's start; perhaps not all of them.
    Have(Bytes),
    /// Its log ends before the range.
    NeverHad,
    /// Its log holds other records there: none starts where the range does.
    Other,
    /// It is damaged there as well.
    Damaged,
    /// It holds the range no longer.
    Purged,
}

/// A peer's answer, and where its log ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerRange {
    /// The answer.
    pub answer: RangeAnswer,
    /// Its last entry.
    pub last: Option<LogId>,
    /// Whether that is certain. A store that is damaged itself and does not run cannot tell.
    pub is_last_certain: bool,
}

/// The other members of the group. Calls block.
pub trait RangeSource {
    /// Their ids, all of them, best first.
    fn peers(&self) -> Vec<u64>;

    /// Asks one of them for the records from `from` on, up to `to` at most.
    ///
    /// # Errors
    /// Why there is no answer, for people.
    fn fetch(&self, peer: u64, from: LogPosition, to: LogPosition) -> std::result::Result<PeerRange, String>;
}

/// What a repair has done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repaired {
    /// The ranges that were fetched.
    pub ranges: Vec<(LogPosition, LogPosition)>,
    /// Bytes that came from peers.
    pub fetched_bytes: u64,
}

impl LogView {
    /// Makes the segment at `base` whole, and blocks until it is.
    ///
    /// On return readers and writer use the new file. Without an error and without ranges nothing was wrong with it.
    ///
    /// # Errors
    /// [`Error::NotRepaired`] says what the peers answered. Nothing has changed then.
    pub fn repair(&self, base: LogPosition, source: &dyn RangeSource) -> Result<Repaired> {
        let log = &self.shared.log;
        let result = self.repair_segment(log, base, source);
        if matches!(result, Err(Error::NotStored { .. })) {
            // Purged or cut meanwhile: the damage went with it.
            log.clear_damage(base);
            return Ok(Repaired { ranges: Vec::new(), fetched_bytes: 0 });
        }
        result
    }

    fn repair_segment(&self, log: &Arc<Log>, base: LogPosition, source: &dyn RangeSource) -> Result<Repaired> {
        let missing = || Error::NotStored { position: base, bytes: log.layout.segment_bytes };
        let segment = {
            let state = log.state();
            let at = state.segments.binary_search_by_key(&base, |segment| segment.base).map_err(|_| missing())?;
            Arc::clone(state.segments.get(at).ok_or_else(missing)?)
        };
        let content = segment.content().clone();
        let opening = content.opening.ok_or_else(missing)?;
        let known = Known {
            opening: Some(opening),
            behind: None,
            right: Right::End { end: content.end, chain: content.chain },
        };
        let rebuild = Rebuild::begin(&*log.files, &log.layout, base, Arc::clone(&segment.region), source)?;
        let (replacement, repaired) = rebuild.run(known)?;
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        let reply = Box::new(move |result| {
            let _ = answer.send(result);
        });
        self.shared.queue.push(Op::Replace(replacement, reply));
        answered.recv().unwrap_or(Err(Error::Closed))?;
        Ok(repaired)
    }
}
