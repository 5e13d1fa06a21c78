//! What is known to be damaged in a log that is in use.
//!
//! A read or the scrubber notes it; whoever repairs it takes it off. Meanwhile Raft's readers wait, since an error would
//! end the replica for good, and everybody else is told.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::ids::LogPosition;
use crate::segmented_log::Log;

/// A damaged part of one segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DamagedRange {
    /// The segment.
    pub base: LogPosition,
    /// Its file.
    pub file: PathBuf,
    /// First damaged position.
    pub from: LogPosition,
    /// End of the damage, as far as it is known.
    pub to: LogPosition,
    /// What was found.
    pub found: String,
}

impl Log {
    /// Takes note of damage. One range is kept for each segment, for a repair looks at all of it.
    pub(crate) fn note_damage(&self, range: DamagedRange) {
        self.damage.send_if_modified(|known| match known.iter_mut().find(|known| known.base == range.base) {
            Some(known) => {
                let (from, to) = (known.from.min(range.from), known.to.max(range.to));
                let wider = (from, to) != (known.from, known.to);
                (known.from, known.to) = (from, to);
                wider
            }
            None => {
                tracing::error!(
                    file = %range.file.display(), from = %range.from, to = %range.to, found = range.found,
                    "the log is damaged here"
                );
                known.push(range);
                known.sort_by_key(|range| range.base);
                true
            }
        });
    }

    /// The segment at `base` is whole again, or gone.
    pub(crate) fn clear_damage(&self, base: LogPosition) {
        self.damage.send_if_modified(|known| {
            let before = known.len();
            known.retain(|range| range.base != base);
            known.len() != before
        });
    }

    /// Passes a read's result on, and takes note if it is that bytes are damaged.
    pub(crate) fn noting<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(Error::Damaged { file, position, expected, found }) = &result {
            let base = self.layout.segment_base(*position);
            self.note_damage(DamagedRange {
                base,
                file: file.clone(),
                from: *position,
                to: position.plus(crate::record::ALIGN).min(self.layout.next_base(base)),
                found: format!("expected {expected}, found {found}"),
            });
        }
        result
    }
}
