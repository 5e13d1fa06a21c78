//! Reads a segment past its damage: verified records, and the gaps between them.
//!
//! Recovery stops where the log stops being valid. Whoever looks at a damaged segment, to show it, to check it or to
//! repair it, wants to know what stands behind the damage as well. A header proves its own place, so the next 64-byte
//! boundary with a header of that very position, and a payload that fits it, is where the log goes on.

use std::io;

use crate::ids::{LogId, LogIndex, LogPosition, Term};
use crate::options::Layout;
use crate::record::{self, Fault, Header, HeaderBytes, Kind, Seed};
use crate::segment::{self, Opening};

const BLOCK_BYTES: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;
/// What stands in for bytes that the disk cannot read: no record begins or verifies with it.
const UNREADABLE: u8 = 0xEE;

/// Fills a buffer with the bytes of a segment from an offset on.
pub(crate) type Read<'a> = dyn Fn(u64, &mut [u8]) -> io::Result<()> + 'a;

/// Fills `into` from `offset` on. Pages that the disk cannot return hold bytes then with which no record begins or
/// verifies.
///
/// # Errors
/// Another one than that bytes are lost.
pub(crate) fn read_past_faults(read: &Read<'_>, offset: u64, into: &mut [u8]) -> io::Result<()> {
    match read(offset, into) {
        Err(error) if segment::is_lost(&error) => {}
        done => return done,
    }
    let mut at = offset;
    for part in split_pages(offset, into) {
        let bytes = part.len() as u64;
        match read(at, part) {
            Err(error) if segment::is_lost(&error) => part.fill(UNREADABLE),
            done => done?,
        }
        at += bytes;
    }
    Ok(())
}

/// The parts of `bytes`, which lie at `offset` in a file, page by page.
fn split_pages(offset: u64, bytes: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    let first = usize::try_from(offset.next_multiple_of(PAGE_BYTES) - offset).unwrap_or(0).min(bytes.len());
    let (first, rest) = bytes.split_at_mut(first);
    std::iter::once(first).filter(|first| !first.is_empty()).chain(rest.chunks_mut(PAGE_BYTES as usize))
}

/// Whether these are bytes that the disk could not return.
pub(crate) fn is_unreadable(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == UNREADABLE)
}

/// One piece of a segment's record area, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Piece {
    /// A record that verifies and follows the one before, as far as that is known.
    Record(Header, Vec<u8>),
    /// No valid record.
    Gap(Gap),
}

/// Bytes that are no valid record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Gap {
    pub(crate) from: LogPosition,
    /// The next valid record, or the end of what is not zero.
    pub(crate) to: LogPosition,
    /// Whether a valid record stands at `to`.
    pub(crate) bounded: bool,
    pub(crate) found: String,
}

/// What must follow: index and chain value. Unknown behind a gap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Behind {
    pub(crate) next_index: LogIndex,
    pub(crate) term: Term,
    pub(crate) chain: u32,
}

/// Walks the records of one segment.
pub(crate) struct Scan<'a> {
    read: &'a Read<'a>,
    base: LogPosition,
    seed: Seed,
    at: u64,
    end: u64,
    behind: Option<Behind>,
    last: Option<LogId>,
    done: bool,
    /// Whether only the range walked can be read.
    exact: bool,
    block: Vec<u8>,
    block_at: u64,
}

impl<'a> Scan<'a> {
    /// Starts at the first record of the segment at `base`. `end` bounds the walk: the end of the records if it is
    /// known, else that of the room for them.
    pub(crate) fn new(read: &'a Read<'a>, layout: &Layout, base: LogPosition, opening: Option<Opening>) -> Self {
        let at = opening.map_or(segment::HEADER_BYTES, |opening| u64::from(opening.first_offset));
        let behind =
            opening.map(|opening| Behind { next_index: opening.first_index, term: Term::ZERO, chain: opening.chain });
        Self {
            read,
            base,
            seed: Seed::new(&layout.cluster_id, base),
            at,
            end: layout.records_end(base).since(base),
            behind,
            last: None,
            done: false,
            exact: false,
            block: Vec::new(),
            block_at: 0,
        }
    }

    /// Walks no further than `end`, where the records are known to end.
    pub(crate) fn until(mut self, end: LogPosition) -> Self {
        self.end = self.end.min(end.since(self.base));
        self
    }

    /// The same, and nothing before the start or behind `end` can be read.
    pub(crate) fn within(mut self, end: LogPosition) -> Self {
        self.exact = true;
        self.until(end)
    }

    /// Starts at `position` instead, with nothing known about what stands before.
    pub(crate) fn starting_at(mut self, position: LogPosition, behind: Option<Behind>) -> Self {
        self.at = position.since(self.base);
        self.behind = behind;
        self
    }

    /// Where the walk stands.
    pub(crate) fn position(&self) -> LogPosition {
        self.base.plus(self.at)
    }

    /// What the next record must be.
    pub(crate) fn behind(&self) -> Option<Behind> {
        self.behind
    }

    fn has(&self, offset: u64, bytes: u64) -> bool {
        offset >= self.block_at && offset + bytes <= self.block_at + self.block.len() as u64
    }

    fn bytes(&mut self, offset: u64, bytes: u64) -> &[u8] {
        if !self.has(offset, bytes) {
            let align = if self.exact { 1 } else { PAGE_BYTES };
            let start = offset / align * align;
            let want = BLOCK_BYTES.max((offset + bytes - start).next_multiple_of(align));
            let limit = self.end.next_multiple_of(align).max(offset + bytes);
            let want = want.min(limit - start);
            self.block.resize(usize::try_from(want).expect("a block fits memory"), 0);
            self.block_at = start;
            if read_past_faults(self.read, start, &mut self.block).is_err() {
                self.block.fill(UNREADABLE);
            }
        }
        let start = usize::try_from(offset - self.block_at).expect("inside the block");
        &self.block[start..start + usize::try_from(bytes).expect("inside the block")]
    }

    /// The record at `offset`, checked by itself.
    fn record_at(&mut self, offset: u64) -> Result<Header, String> {
        if offset + record::HEADER_BYTES > self.end {
            return Err("the end of the segment".into());
        }
        let (seed, position, end) = (self.seed, self.base.plus(offset), self.end);
        let bytes: &HeaderBytes = self.bytes(offset, record::HEADER_BYTES).try_into().expect("64 bytes");
        let unreadable = is_unreadable(bytes);
        let header = Header::decode(seed, position, bytes).map_err(|fault| match fault {
            _ if unreadable => "bytes the disk cannot read".to_owned(),
            Fault::Zero => ZEROS.to_owned(),
            fault => fault.to_string(),
        })?;
        if offset + header.stored_bytes() > end {
            return Err("a record longer than its segment".into());
        }
        let payload_bytes = header.payload_bytes as usize;
        let stored = self.bytes(offset + record::HEADER_BYTES, header.stored_bytes() - record::HEADER_BYTES);
        let (payload, padding) = stored.split_at(payload_bytes);
        if !header.verifies(seed, payload) {
            return Err("a payload whose checksum does not hold".into());
        }
        if padding.iter().any(|byte| *byte != 0) {
            return Err("padding that is not zero".into());
        }
        Ok(header)
    }

    fn follows(&self, header: &Header) -> Result<(), String> {
        let Some(behind) = self.behind else {
            return match self.last {
                Some(last) if header.id.index <= last.index => Err(format!("entry {} behind entry {last}", header.id)),
                _ => Ok(()),
            };
        };
        if header.chain != behind.chain {
            return Err("a record that does not follow the one before it".into());
        }
        if header.id.index != behind.next_index || header.id.term < behind.term {
            return Err(format!("entry {} where {} belongs", header.id, behind.next_index));
        }
        Ok(())
    }

    /// The next piece; `None` behind the last record, where there are only zeros, and behind a pad.
    pub(crate) fn next(&mut self) -> Option<Piece> {
        if self.done || self.at + record::HEADER_BYTES > self.end {
            return None;
        }
        let found = match self.record_at(self.at).and_then(|header| self.follows(&header).map(|()| header)) {
            Ok(header) => return Some(self.take(&header)),
            Err(found) => found,
        };
        let from = self.at;
        let gap = self.resync(from, found.as_str() == ZEROS);
        match gap {
            None => {
                self.done = true;
                None
            }
            Some((to, bounded)) => {
                self.at = to;
                self.behind = None;
                self.done = !bounded;
                let (from, to) = (self.base.plus(from), self.base.plus(to));
                Some(Piece::Gap(Gap { from, to, bounded, found }))
            }
        }
    }

    fn take(&mut self, header: &Header) -> Piece {
        let payload = self.bytes(self.at + record::HEADER_BYTES, u64::from(header.payload_bytes)).to_vec();
        self.at += header.stored_bytes();
        let pad = header.kind == Kind::Pad;
        self.done = pad;
        if !pad {
            self.last = Some(header.id);
        }
        let next_index = if pad { header.id.index } else { header.id.index.next() };
        self.behind = Some(Behind { next_index, term: header.id.term, chain: header.payload_crc });
        Piece::Record(*header, payload)
    }

    /// Where a valid record stands behind `from`; else the end of what is not zero, if anything is.
    fn resync(&mut self, from: u64, zeros: bool) -> Option<(u64, bool)> {
        let mut data_end = if zeros { None } else { Some(from + record::ALIGN) };
        let mut offset = from + record::ALIGN;
        while offset + record::HEADER_BYTES <= self.end {
            let header = self.bytes(offset, record::HEADER_BYTES);
            if header.iter().any(|byte| *byte != 0) {
                data_end = Some(offset + record::ALIGN);
                if header.starts_with(&record::MAGIC)
                    && let Ok(header) = self.record_at(offset)
                    && self.last.is_none_or(|last| header.id.index > last.index)
                {
                    return Some((offset, true));
                }
            }
            offset += record::ALIGN;
        }
        data_end.map(|end| (end, false))
    }
}

const ZEROS: &str = "zeros";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::BodyKind;
    use crate::ids::ClusterId;
    use crate::record::Draft;

    const SEGMENT_BYTES: u64 = 64 << 10;

    fn layout() -> Layout {
        Layout { segment_bytes: SEGMENT_BYTES, cluster_id: ClusterId::new([7; 16]) }
    }

    /// A segment of `count` records of 300 bytes, and where each starts.
    fn segment(count: u64) -> (Vec<u8>, Vec<u64>) {
        let mut bytes = vec![0; SEGMENT_BYTES as usize];
        let seed = Seed::new(&layout().cluster_id, LogPosition::ZERO);
        let (mut at, mut chain, mut starts) = (4096, 5, Vec::new());
        for index in 0..count {
            let payload = vec![index as u8 + 1; 300];
            let id = LogId::new(Term::new(3), LogIndex::new(index));
            let position = LogPosition::new(at);
            let draft = Draft { position, id, kind: Kind::Body(BodyKind::Normal), chain, payload: &payload };
            let (header, head) = draft.seal(seed);
            let start = at as usize;
            bytes[start..start + 64].copy_from_slice(&head);
            bytes[start + 64..start + 364].copy_from_slice(&payload);
            starts.push(at);
            chain = header.payload_crc;
            at += header.stored_bytes();
        }
        (bytes, starts)
    }

    fn check(bytes: &[u8], expected: &str) {
        let read = |offset: u64, into: &mut [u8]| {
            let start = offset as usize;
            match bytes.get(start..start + into.len()) {
                Some(found) => {
                    into.copy_from_slice(found);
                    Ok(())
                }
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        };
        let opening = Opening { first_index: LogIndex::ZERO, first_offset: 4096, chain: 5 };
        let mut scan = Scan::new(&read, &layout(), LogPosition::ZERO, Some(opening));
        let mut found = Vec::new();
        while let Some(piece) = scan.next() {
            found.push(match piece {
                Piece::Record(header, _) => header.id.index.to_string(),
                Piece::Gap(gap) if gap.bounded => format!("({}-{} {})", gap.from, gap.to, gap.found),
                Piece::Gap(gap) => format!("({}- {})", gap.from, gap.found),
            });
        }
        assert_eq!(expected, found.join(" "));
    }

    #[test]
    fn the_walk_goes_on_behind_damage() {
        let (whole, starts) = segment(6);
        assert_eq!(starts[2], 4096 + 2 * 384);
        check(&whole, "0 1 2 3 4 5");
        let mut bytes = whole.clone();
        bytes[starts[2] as usize + 100] ^= 1;
        check(&bytes, "0 1 (4864-5248 a payload whose checksum does not hold) 3 4 5");
        let mut bytes = whole.clone();
        bytes[starts[2] as usize..starts[4] as usize].fill(0);
        check(&bytes, "0 1 (4864-5632 zeros) 4 5");
        let mut bytes = whole.clone();
        bytes[starts[5] as usize + 9] ^= 1;
        check(&bytes, "0 1 2 3 4 (6016- a header checksum that does not hold)");
        let mut bytes = whole.clone();
        let copy = bytes[starts[1] as usize..starts[2] as usize].to_vec();
        bytes[starts[3] as usize..starts[4] as usize].copy_from_slice(&copy);
        check(&bytes, "0 1 2 (5248-5632 the header of position 4480) 4 5");
        // A file that was cut, in the middle of record 10.
        check(&segment(15).0[..8192], "0 1 2 3 4 5 6 7 8 9 (7936- a payload whose checksum does not hold)");
        check(&whole[..4096], "(4096- bytes the disk cannot read)");
        check(&segment(0).0, "");
    }
}
