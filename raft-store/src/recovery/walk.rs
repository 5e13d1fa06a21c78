//! Reads segments record by record, and says where they stop being valid and what stands there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::ids::{LogId, LogPosition};
use crate::options::Layout;
use crate::record::{self, Fault, Header, HeaderBytes, Kind};
use crate::scan::{is_unreadable, read_past_faults};
use crate::segment::{self, Content, Opening, Segment};

const UNREADABLE_BYTES: &str = "bytes the disk cannot read";

/// Where the verified records end, and what stands there.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    /// Scanned segments in order, with what they hold.
    pub(super) contents: Vec<Content>,
    pub(super) end: LogPosition,
    pub(super) chain: u32,
    pub(super) last: Option<LogId>,
    /// What is wrong at `end`. `None` if there are zeros.
    pub(super) wrong: Option<(Shape, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    Torn,
    Rot,
}

/// Reads the opened segments: footers of the older ones, every record of the newest two and of all
/// that are not proven to be on disk.
pub(super) fn read_opened(
    opened: &[(Arc<Segment>, Opening)],
    proven: LogPosition,
    cut: Option<LogPosition>,
    layout: &Layout,
) -> Result<(Vec<Content>, Option<Walk>)> {
    const SCANNED: usize = 2;
    let mut sealed = Vec::new();
    let mut before = None;
    let newest = opened.len().saturating_sub(SCANNED);
    for (at, (segment, opening)) in opened.iter().enumerate().take(newest) {
        let holds_cut = cut.is_some_and(|cut| layout.segment_base(cut) == segment.base);
        let in_window = layout.next_base(segment.base) > proven;
        let content = if holds_cut || in_window { None } else { segment.read_footer(layout, *opening)? };
        // Without a footer its records are read like those of the newest.
        let Some(content) = content else { break };
        if let Some((next, next_opening)) = opened.get(at + 1) {
            let follows = content.last.is_some_and(|last| last.index.next() == next_opening.first_index);
            if !follows || content.chain != next_opening.chain {
                let (expected, found) = (format!("what follows {:?}", content.last), next_opening.first_index);
                return Err(next.damaged(next.base, expected, found));
            }
        }
        before = content.last;
        sealed.push(content);
    }
    let rest = &opened[sealed.len()..];
    let walk = match rest {
        [] => None,
        rest => Some(while_reading_ahead(rest, proven, layout, || walk(rest, before, cut, layout))?),
    };
    Ok((sealed, walk))
}

/// Runs `walk` while other threads bring what it reads into memory: new pages of the cache cost the processor more than
/// all of its checks, and one reader does not keep a disk busy.
fn while_reading_ahead<T>(
    segments: &[(Arc<Segment>, Opening)],
    proven: LogPosition,
    layout: &Layout,
    walk: impl FnOnce() -> T,
) -> T {
    const BLOCK_BYTES: u64 = 1 << 20;
    const WORTH_BYTES: u64 = 64 << 20;
    if layout.segment_bytes < WORTH_BYTES {
        return walk();
    }
    let done = AtomicBool::new(false);
    let read = |segment: &Segment, from: u64, to: u64| {
        let mut block = vec![0; usize::try_from(BLOCK_BYTES).expect("a block fits memory")];
        let mut at = from;
        while at + BLOCK_BYTES <= to && !done.load(Ordering::Relaxed) && segment.region.read(at, &mut block).is_ok() {
            at += BLOCK_BYTES;
        }
    };
    std::thread::scope(|scope| {
        // The walk itself is where the first piece would start.
        let newest = segments.iter().take(2).flat_map(|(segment, _)| [(segment, 0), (segment, 1)]).skip(1);
        for (segment, half) in newest {
            let end = layout.records_end(segment.base).min(proven).max(segment.base);
            let (length, read) = (end.since(segment.base), &read);
            let (from, to) = (half * length / 2, (half + 1) * length / 2);
            // Failing, the walk reads it all by itself.
            let name = std::thread::Builder::new().name("log-recover".into());
            let _ = name.spawn_scoped(scope, move || read(segment, from, to));
        }
        let walked = walk();
        done.store(true, Ordering::Relaxed);
        walked
    })
}

/// Walks the records of `segments` in order and verifies each against the one before.
fn walk(
    segments: &[(Arc<Segment>, Opening)],
    before: Option<LogId>,
    cut: Option<LogPosition>,
    layout: &Layout,
) -> Result<Walk> {
    let mut walk = Walk { contents: Vec::new(), end: LogPosition::ZERO, chain: 0, last: before, wrong: None };
    for (at, (segment, opening)) in segments.iter().enumerate() {
        let first = segment.base.plus(u64::from(opening.first_offset));
        if at > 0 {
            let expected = walk.last.map(|last| last.index.next());
            if Some(opening.first_index) != expected || opening.chain != walk.chain {
                walk.wrong = Some((Shape::Torn, "a segment that does not follow the one before".into()));
                walk.end = first;
                walk.contents.push(empty_content(*opening, first));
                return Ok(walk);
            }
        }
        walk.end = first;
        walk.chain = opening.chain;
        let mut content = empty_content(*opening, first);
        let step = walk_segment(segment, opening, &mut content, &mut walk, cut, layout);
        let closed = content.sealed;
        walk.contents.push(content);
        step?;
        if !closed || walk.wrong.is_some() {
            break;
        }
    }
    Ok(walk)
}

fn empty_content(opening: Opening, first: LogPosition) -> Content {
    Content {
        opening: Some(opening),
        last: None,
        end: first,
        chain: opening.chain,
        entries: 0,
        sealed: false,
        index: Default::default(),
    }
}

fn walk_segment(
    segment: &Segment,
    opening: &Opening,
    content: &mut Content,
    walk: &mut Walk,
    cut: Option<LogPosition>,
    layout: &Layout,
) -> Result<()> {
    const BLOCK_BYTES: u64 = 1 << 20;
    let records_end = layout.records_end(segment.base);
    let reading = |e| Error::io("reading", segment.region.path(), e);
    let mut block = vec![0; 0];
    let mut block_at = LogPosition::ZERO;
    let mut next_index = opening.first_index;
    loop {
        let position = walk.end;
        if cut == Some(position) || position.plus(record::HEADER_BYTES) > records_end {
            return Ok(());
        }
        // Make sure the block covers the header, then the whole record.
        let mut need = record::HEADER_BYTES;
        let header = loop {
            let have = block_at.plus(block.len() as u64);
            if position < block_at || position.plus(need) > have {
                // Behind a cut there is nothing to look at.
                let ahead = cut.filter(|cut| *cut > position).map_or(records_end, |cut| cut.min(records_end));
                let bytes = BLOCK_BYTES.min(ahead.since(position)).max(need);
                block.resize(usize::try_from(bytes).expect("a block fits memory"), 0);
                // What the disk cannot read does not verify, and the next record may be whole.
                let read = |offset: u64, into: &mut [u8]| segment.region.read(offset, into);
                read_past_faults(&read, segment.offset(position), &mut block).map_err(reading)?;
                block_at = position;
            }
            let start = usize::try_from(position.since(block_at)).expect("inside the block");
            let bytes: &HeaderBytes = block[start..start + 64].try_into().expect("64 bytes");
            match Header::decode(segment.seed, position, bytes) {
                Ok(header) if header.end() > records_end => {
                    walk.wrong = Some((Shape::Rot, "a record longer than its segment".into()));
                    return Ok(());
                }
                Ok(header) if need < header.stored_bytes() => need = header.stored_bytes(),
                Ok(header) => break header,
                Err(Fault::Zero) => return Ok(()),
                Err(fault) => {
                    let found = if is_unreadable(bytes) { UNREADABLE_BYTES.to_owned() } else { fault.to_string() };
                    walk.wrong = Some((Shape::Rot, found));
                    return Ok(());
                }
            }
        };
        let start = usize::try_from(position.since(block_at)).expect("inside the block") + 64;
        let payload_bytes = header.payload_bytes as usize;
        let stored = usize::try_from(header.stored_bytes()).expect("inside the block");
        let payload = &block[start..start + payload_bytes];
        let padding = &block[start + payload_bytes..start - 64 + stored];
        if !header.verifies(segment.seed, payload) {
            let shape = if has_zero_sector(segment, &header)? { Shape::Torn } else { Shape::Rot };
            walk.wrong = Some((shape, "a payload whose checksum does not hold".into()));
            return Ok(());
        }
        if header.chain != walk.chain {
            walk.wrong = Some((Shape::Torn, "a record that does not follow the one before it".into()));
            return Ok(());
        }
        let pad = header.kind == Kind::Pad;
        let falls = walk.last.is_some_and(|last| header.id.term < last.term);
        if header.id.index != next_index || falls {
            walk.wrong = Some((Shape::Torn, format!("entry {} where {next_index} belongs", header.id)));
            return Ok(());
        }
        if padding.iter().any(|byte| *byte != 0) {
            walk.wrong = Some((Shape::Rot, "padding that is not zero".into()));
            return Ok(());
        }
        content.note(segment.base, &header);
        walk.end = header.end();
        walk.chain = header.payload_crc;
        if pad {
            return Ok(());
        }
        walk.last = Some(header.id);
        next_index = next_index.next();
    }
}

/// Whether a whole sector of the file that the payload reaches into is zero, as after an interrupted
/// write.
fn has_zero_sector(segment: &Segment, header: &Header) -> Result<bool> {
    const SECTOR: u64 = 512;
    let start = segment.offset(header.position) / SECTOR * SECTOR;
    let end = segment.offset(header.end()).next_multiple_of(SECTOR).min(segment.region.bytes());
    let mut sectors = vec![0; usize::try_from(end - start).expect("a record fits memory")];
    let read = |offset: u64, into: &mut [u8]| segment.region.read(offset, into);
    read_past_faults(&read, start, &mut sectors).map_err(|e| Error::io("reading", segment.region.path(), e))?;
    Ok(sectors.chunks_exact(512).any(|sector| sector.iter().all(|byte| *byte == 0)))
}

/// What lies behind the end: anything at all, and any valid record?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Behind {
    pub(super) anything: bool,
    pub(super) valid_record: bool,
    data_end: LogPosition,
}

pub(super) fn look_behind(
    segments: &[Arc<Segment>],
    from: LogPosition,
    until: LogPosition,
    layout: &Layout,
) -> Result<Behind> {
    const BLOCK_BYTES: u64 = 1 << 20;
    let mut behind = Behind::default();
    for segment in segments {
        let reading = |e| Error::io("reading", segment.region.path(), e);
        let records_end = layout.records_end(segment.base).min(until);
        let mut position = from.max(segment.base.plus(segment::HEADER_BYTES));
        while position < records_end {
            // Blocks that were never written cost nothing.
            match segment.region.next_data(segment.offset(position)).map_err(reading)? {
                None => break,
                Some(data) => position = position.max(segment.base.plus(data / record::ALIGN * record::ALIGN)),
            }
            if position >= records_end {
                break;
            }
            let bytes = BLOCK_BYTES.min(records_end.since(position));
            let mut block = vec![0; usize::try_from(bytes).expect("a block fits memory")];
            let read = |offset: u64, into: &mut [u8]| segment.region.read(offset, into);
            read_past_faults(&read, segment.offset(position), &mut block).map_err(reading)?;
            for (at, header) in block.chunks_exact(64).enumerate() {
                if header.iter().all(|byte| *byte == 0) {
                    continue;
                }
                let place = position.plus(at as u64 * record::ALIGN);
                behind.anything = true;
                behind.data_end = place.plus(record::ALIGN);
                let bytes: &HeaderBytes = header.try_into().expect("64 bytes");
                behind.valid_record |= place != from && Header::decode(segment.seed, place, bytes).is_ok();
            }
            position = position.plus(bytes);
        }
    }
    Ok(behind)
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::ids::LogIndex;
    use crate::options::Options;
    use crate::region::Files;
    use crate::segment::OpeningFound;

    /// Walks the first segment of a disk from any record on.
    pub(crate) struct Walker {
        segment: Arc<Segment>,
        chains: Vec<u32>,
        layout: Layout,
    }

    impl Walker {
        pub(crate) fn new(files: &dyn Files, options: &Options) -> Self {
            let (_, layout) = options.clone().check().unwrap();
            let base = LogPosition::ZERO;
            let segment = Arc::new(Segment::empty(&layout, base, files.open(&segment::file_name(base)).unwrap()));
            let OpeningFound::Opening(opening) = segment.read_opening(&layout).unwrap() else { panic!() };
            let walk = walk(&[(Arc::clone(&segment), opening)], None, None, &layout).unwrap();
            let mut cursor = segment.cursor(4096, walk.end, LogPosition::ZERO, 1 << 20);
            let mut chains = Vec::new();
            while let Some(header) = cursor.header().unwrap() {
                chains.push(header.chain);
                cursor.skip(&header);
            }
            Self { segment, chains, layout }
        }

        /// Where the log ends if it is read from entry `index` on, and no further than `until`.
        pub(crate) fn end_of(&self, index: u64, start: LogPosition, until: LogPosition) -> LogPosition {
            let opening = Opening {
                first_index: LogIndex::new(index),
                first_offset: u32::try_from(start.get()).unwrap(),
                chain: self.chains[usize::try_from(index).unwrap()],
            };
            walk(&[(Arc::clone(&self.segment), opening)], None, Some(until), &self.layout).unwrap().end
        }
    }
}
