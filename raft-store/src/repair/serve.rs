//! The other side of a repair: what this replica has of a range that a peer asks for.

use std::io;

use bytes::{BufMut, BytesMut};

use super::{PeerRange, RangeAnswer};
use crate::damage::DamagedRange;
use crate::error::{Error, Result};
use crate::ids::LogPosition;
use crate::options::Layout;
use crate::record::Seed;
use crate::scan::{Gap, Piece, Read, Scan};
use crate::segment::Opening;
use crate::view::LogView;

/// A stretch of one segment that a peer asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    pub(super) base: LogPosition,
    /// A record that starts at or before `from`.
    pub(super) start: LogPosition,
    pub(super) from: LogPosition,
    pub(super) to: LogPosition,
    /// Where the records end.
    pub(super) end: LogPosition,
    pub(super) bytes_max: usize,
}

/// What stands there, and what turned out to be damaged on the way.
pub(super) fn look(read: &Read<'_>, layout: &Layout, stretch: &Stretch) -> (RangeAnswer, Option<Gap>) {
    let Stretch { base, start, from, to, end, bytes_max } = *stretch;
    let seed = Seed::new(&layout.cluster_id, base);
    let mut scan = Scan::new(read, layout, base, None::<Opening>).starting_at(start, None).until(end);
    let mut found = BytesMut::new();
    let mut damaged = None;
    while let Some(piece) = scan.next() {
        match piece {
            Piece::Record(header, _) if header.end() <= from => {}
            Piece::Record(header, _) if header.position < from || (found.is_empty() && header.position > from) => {
                return (RangeAnswer::Other, damaged);
            }
            Piece::Record(header, payload) => {
                if header.end() > to {
                    break;
                }
                found.put_slice(&header.encode(seed));
                found.put_slice(&payload);
                let padded = found.len().next_multiple_of(64);
                found.resize(padded, 0);
                if found.len() >= bytes_max || header.end() == to {
                    break;
                }
            }
            Piece::Gap(gap) => {
                let covers = found.is_empty() && gap.to > from;
                damaged = Some(gap);
                if covers {
                    return (RangeAnswer::Damaged, damaged);
                }
                if !found.is_empty() {
                    break;
                }
            }
        }
    }
    match (found.is_empty(), scan.position() > from) {
        (false, _) => (RangeAnswer::Have(found.freeze()), damaged),
        (true, false) => (RangeAnswer::NeverHad, damaged),
        (true, true) => (RangeAnswer::Other, damaged),
    }
}

impl LogView {
    /// What this log has from `from` on, up to `to` and about `bytes_max` bytes, for a peer to repair itself with. Each
    /// record is verified; one that is not is noted as damaged here. Blocks.
    ///
    /// # Errors
    /// If that cannot be said just now.
    pub fn serve_range(&self, from: LogPosition, to: LogPosition, bytes_max: usize) -> Result<PeerRange> {
        let log = &self.shared.log;
        let (last, segment, first) = {
            let state = log.state();
            let base = log.layout.segment_base(from);
            let segment = state.segments.binary_search_by_key(&base, |segment| segment.base);
            let segment = segment.ok().and_then(|at| state.segments.get(at)).cloned();
            (state.last, segment, state.segments.first().map(|first| first.base))
        };
        let answer = |answer| Ok(PeerRange { answer, last, is_last_certain: true });
        let Some(segment) = segment else {
            let gone = first.is_some_and(|first| from < first);
            return answer(if gone { RangeAnswer::Purged } else { RangeAnswer::NeverHad });
        };
        let content = segment.content().clone();
        let Some(opening) = content.opening else { return answer(RangeAnswer::NeverHad) };
        let first = segment.base.plus(u64::from(opening.first_offset));
        if from < first {
            return answer(RangeAnswer::Purged);
        }
        if from >= content.end {
            let waits = !content.sealed && from < log.state().end;
            if waits {
                return Err(Error::NotStored { position: from, bytes: 0 });
            }
            return answer(if content.sealed { RangeAnswer::Other } else { RangeAnswer::NeverHad });
        }
        let hint = content.index.offset_at_or_before(segment.offset(from));
        let start = hint.map_or(first, |offset| segment.base.plus(u64::from(offset)));
        let stretch = Stretch { base: segment.base, start, from, to, end: content.end, bytes_max };
        let read = |offset: u64, into: &mut [u8]| -> io::Result<()> { segment.region.read(offset, into) };
        let (found, gap) = look(&read, &log.layout, &stretch);
        if let Some(gap) = gap {
            log.note_damage(DamagedRange {
                base: segment.base,
                file: segment.region.path().to_owned(),
                from: gap.from,
                to: gap.to,
                found: gap.found,
            });
        }
        answer(found)
    }
}
