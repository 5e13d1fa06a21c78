//! What is known to be damaged in a log that is in use.
//!
//! A read or the scrubber notes it; whoever repairs it takes it off. Meanwhile Raft's readers wait, since an error would
//! end the replica for good, and everybody else is told.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::ids::LogPosition;
use crate::options::Layout;
use crate::scan::{Piece, Read, Scan};
use crate::segment::{self, Content, Segment};
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

/// Reads the records of a segment that holds `content`: what of them is damaged, and in which way.
pub(crate) fn gaps(
    segment: &Segment,
    content: &Content,
    layout: &Layout,
    read: &Read<'_>,
) -> Vec<(LogPosition, LogPosition, String)> {
    let mut scan = Scan::new(read, layout, segment.base, content.opening).until(content.end);
    let mut found = Vec::new();
    while let Some(piece) = scan.next() {
        if let Piece::Gap(gap) = piece {
            found.push((gap.from, gap.to, gap.found));
        }
    }
    let ends = scan.position() == content.end && scan.behind().is_some_and(|behind| behind.chain == content.chain);
    if found.is_empty() && !ends {
        found.push((scan.position().min(content.end), content.end, "records that end too early".into()));
    }
    found
}

impl DamagedRange {
    /// The range that an error is about, if it is about one of a segment.
    #[must_use]
    pub fn of(error: &Error) -> Option<Self> {
        let (file, from, to) = match error {
            Error::Unrecoverable { file, from, to, .. } | Error::NotRepaired { file, from, to, .. } => {
                (file, *from, *to)
            }
            Error::Damaged { file, position, .. } => (file, *position, position.plus(crate::record::ALIGN)),
            _ => return None,
        };
        let base = segment::parse_file_name(file.file_name()?.to_str()?)?;
        Some(Self { base, file: file.clone(), from, to, found: error.to_string() })
    }

    /// The error of whoever had to read the range.
    #[must_use]
    pub fn into_error(self) -> Error {
        Error::Damaged {
            file: self.file,
            position: self.from,
            expected: "a valid record".to_owned(),
            found: self.found,
        }
    }
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

    /// Reads the segment at `base`, if the log has it and it has records, and takes note of what is damaged.
    pub(crate) fn look_for_damage(&self, base: LogPosition) {
        let segment = {
            let state = self.state();
            let at = state.segments.binary_search_by_key(&base, |segment| segment.base);
            at.ok().and_then(|at| state.segments.get(at)).cloned()
        };
        let Some(segment) = segment else { return };
        let content = segment.content().clone();
        if content.opening.is_none() {
            return;
        }
        let read = |offset: u64, into: &mut [u8]| segment.region.read(offset, into);
        for (from, to, found) in gaps(&segment, &content, &self.layout, &read) {
            self.note_damage(DamagedRange { base, file: segment.region.path().to_owned(), from, to, found });
        }
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
