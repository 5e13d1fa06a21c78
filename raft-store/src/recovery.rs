//! From a directory to a log: what was the end, and may what lies behind it be cut?
//!
//! Nothing is written before everything has been judged. Then, in this order: what must go is copied
//! aside and zeroed, the part of the log that is not proven durable is written again and synced, and
//! only then the node file says `running`. A crash anywhere in between leaves the same judgement to
//! the next start.
//!
//! Why the tail is written again: after a failed write-back, or one that nobody was told of, the page
//! cache can hold clean pages that never reached the disk. They read back well, and a sync alone
//! returns success for them.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::hard_state::{self, HardState};
use crate::identity::{self, Evidence, LATCH_NOTE, LOCK, NodeFile};
use crate::ids::{LogId, LogIndex, LogPosition};
use crate::options::{FlushMode, Layout, Options};
use crate::preparer::Preparer;
use crate::progress::{self, Hints, Progress, Purged, PurgedFile};
use crate::record::{self, Fault, Header, HeaderBytes, Kind};
use crate::region::{Files, Listed};
use crate::segment::{self, Content, Opening, OpeningFound, Segment};
use crate::segmented_log::{Log, State};
use crate::view::{ResumePoint, StopClass, Vote};
use crate::writer::{SmallFiles, Start, erase_behind};

/// How much of what is cut is kept aside.
const ASIDE_BYTES_MAX: u64 = 64 << 20;
/// Nothing can have been written further than this behind what is proven durable.
const WINDOW_BYTES: u64 = 128 << 20;

/// A recovered log and what its writer starts from.
pub(crate) struct Recovery {
    pub(crate) log: Arc<Log>,
    pub(crate) start: Start,
    pub(crate) stop: StopClass,
    pub(crate) vote: Option<Vote>,
    pub(crate) store_uuid: [u8; 16],
    pub(crate) start_counter: u64,
    pub(crate) report: Vec<String>,
}

// ---- the judgement ----

/// What stands at the log's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Finding {
    /// Zeros, and nothing behind them.
    Nothing,
    /// Zeros, but below what was proven durable.
    EndsBelowFlushed,
    /// Damage below what was proven durable, or nothing is known to be proven.
    DamageBelowFlushed,
    /// What an interrupted write looks like, and nothing valid behind it.
    Torn,
    /// What an interrupted write looks like, and valid records behind it.
    TornBeforeValid,
    /// Something else: bytes have changed.
    Rot,
}

/// What is to be done about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// Nothing: the log ends there.
    Go,
    /// Cut: this node cannot have acknowledged it.
    Truncate,
    /// Cut, but the node may have acknowledged what is gone: it must come back under a new id.
    TruncateUnderNewIdentity,
    /// Fetch the range from peers; this node does not lead until then.
    Repair,
    /// Fetch the range from peers; if none has it, come back under a new id.
    RepairOrNewIdentity,
    /// Come back under a new id.
    NewIdentity,
    /// Come back under a new id, then fetch the range.
    NewIdentityThenRepair,
    /// Go if the log still reaches what the note of the failure names, else as for rot.
    GoIfNotedReached,
    /// Cannot happen by a crash: somebody changed the files.
    Stop,
}

/// The damage matrix: one cell for each finding and each way the store was left.
pub(crate) fn decide(finding: Finding, stop: StopClass, flush_is_sync: bool) -> Decision {
    use Decision::{
        Go, GoIfNotedReached, NewIdentity, NewIdentityThenRepair, Repair, RepairOrNewIdentity, Stop, Truncate,
        TruncateUnderNewIdentity,
    };
    use StopClass::{Clean, Latched, New, Os, Process};
    match (finding, stop, flush_is_sync) {
        (Finding::DamageBelowFlushed, ..) => Repair,

        (Finding::Torn | Finding::TornBeforeValid, Clean | New, _) => Repair,
        (Finding::Torn, Process, _) => Truncate,
        (Finding::TornBeforeValid, Process, _) => Repair,
        // Without a sync the kernel writes pages in any order, so valid records behind a hole are
        // ordinary. And what latched in synchronous mode was never acknowledged by this node.
        (Finding::Torn | Finding::TornBeforeValid, Os | Latched, true) => Truncate,
        (Finding::Torn | Finding::TornBeforeValid, Os | Latched, false) => TruncateUnderNewIdentity,

        (Finding::Rot, Clean | New | Process, _) => Repair,
        (Finding::Rot, Os, true) => RepairOrNewIdentity,
        (Finding::Rot, Os, false) => NewIdentityThenRepair,
        (Finding::Rot, Latched, _) => NewIdentity,

        (Finding::Nothing, Clean | New | Process, _) => Go,
        (Finding::Nothing, Os, true) => Go,
        // What was acknowledged from memory may be gone without a trace.
        (Finding::Nothing, Os, false) => NewIdentity,
        (Finding::Nothing, Latched, _) => GoIfNotedReached,

        (Finding::EndsBelowFlushed, Clean | New | Process, _) => Stop,
        (Finding::EndsBelowFlushed, Os | Latched, _) => NewIdentity,
    }
}

// ---- the walk ----

/// Where the verified records end, and what stands there.
#[derive(Clone, Debug)]
struct Walk {
    /// Scanned segments in order, with what they hold.
    contents: Vec<Content>,
    /// The segment the walk ended in.
    at: usize,
    end: LogPosition,
    chain: u32,
    last: Option<LogId>,
    /// What is wrong at `end`. `None` if there are zeros.
    wrong: Option<(Shape, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    Torn,
    Rot,
}

/// Walks the records of `segments` in order and verifies each against the one before.
fn walk(
    segments: &[(Arc<Segment>, Opening)],
    before: Option<LogId>,
    cut: Option<LogPosition>,
    layout: &Layout,
) -> Result<Walk> {
    let mut walk = Walk { contents: Vec::new(), at: 0, end: LogPosition::ZERO, chain: 0, last: before, wrong: None };
    for (at, (segment, opening)) in segments.iter().enumerate() {
        let first = segment.base.plus(u64::from(opening.first_offset));
        if at > 0 {
            let expected = walk.last.map(|last| last.index.next());
            if Some(opening.first_index) != expected || opening.chain != walk.chain {
                walk.wrong = Some((Shape::Torn, "a segment that does not follow the one before".into()));
                walk.end = first;
                walk.at = at;
                walk.contents.push(empty_content(*opening, first));
                return Ok(walk);
            }
        }
        walk.at = at;
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
                let bytes = BLOCK_BYTES.max(need).min(records_end.since(position));
                block.resize(usize::try_from(bytes).expect("a block fits memory"), 0);
                segment.region.read(segment.offset(position), &mut block).map_err(reading)?;
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
                    walk.wrong = Some((Shape::Rot, fault.to_string()));
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
    segment.region.read(start, &mut sectors).map_err(|e| Error::io("reading", segment.region.path(), e))?;
    Ok(sectors.chunks_exact(512).any(|sector| sector.iter().all(|byte| *byte == 0)))
}

/// What lies behind the end: anything at all, and any valid record?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Behind {
    anything: bool,
    valid_record: bool,
    data_end: LogPosition,
}

fn look_behind(segments: &[Arc<Segment>], from: LogPosition, until: LogPosition, layout: &Layout) -> Result<Behind> {
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
            segment.region.read(segment.offset(position), &mut block).map_err(reading)?;
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

// ---- opening ----

/// The small files, opened or created.
struct Small {
    node: NodeFile,
    hard_state: HardState,
    vote: Option<Vote>,
    purged_file: PurgedFile,
    purged: Option<Purged>,
    /// `None` if it cannot be read: then nothing is known to be flushed.
    progress: Option<Progress>,
}

fn open_small(files: &dyn Files, options: &Options, listed: &[Listed], now: &Evidence) -> Result<Small> {
    let has = |name: &str| listed.iter().any(|listed| listed.name == name);
    let any_segment = listed.iter().any(|listed| segment::parse_file_name(&listed.name).is_some());
    if !has(identity::KIND.name) {
        if any_segment {
            return Err(Error::UnreadableSlots {
                file: files.path(identity::KIND.name),
                found: "the file is missing, segments are not".into(),
                consequence: identity::KIND.if_unreadable,
            });
        }
        if !options.create {
            return Err(Error::NoStore { dir: options.dir.clone() });
        }
        // The node file comes last: where it is, everything else is.
        let hard_state = HardState::create(files)?;
        let progress = Progress::create(files, Hints { flushed_end: options_start(), ..Hints::default() })?;
        let purged_file = PurgedFile::create(files)?;
        let node = NodeFile::create(files, options, now.clone())?;
        return Ok(Small { node, hard_state, vote: None, purged_file, purged: None, progress: Some(progress) });
    }
    let node = NodeFile::open(files)?;
    node.check(files, options)?;
    for kind in [hard_state::KIND, progress::PURGED] {
        if !has(kind.name) {
            let (file, found) = (files.path(kind.name), "the file is missing".into());
            return Err(Error::UnreadableSlots { file, found, consequence: kind.if_unreadable });
        }
    }
    let (hard_state, vote) = HardState::open(files)?;
    let (purged_file, purged) = PurgedFile::open(files)?;
    let progress = match Progress::open(files) {
        Ok(progress) => Some(progress),
        Err(Error::UnreadableSlots { .. }) => None,
        Err(_) if !has(progress::PROGRESS.name) => None,
        Err(error) => return Err(error),
    };
    Ok(Small { node, hard_state, vote, purged_file, purged, progress })
}

/// Where the first record of a new log goes.
fn options_start() -> LogPosition {
    LogPosition::new(segment::HEADER_BYTES)
}

/// Refuses a directory that holds what no store writes.
fn check_names(files: &dyn Files, listed: &[Listed]) -> Result<()> {
    let known = [LOCK, LATCH_NOTE, identity::KIND.name, hard_state::KIND.name, progress::PROGRESS.name];
    for file in listed.iter().filter(|listed| !listed.directory) {
        let name = file.name.as_str();
        let ours = known.contains(&name)
            || name == progress::PURGED.name
            || segment::parse_file_name(name).is_some()
            || name.ends_with(&format!(".{}", crate::durable::TEMPORARY));
        if !ours {
            return Err(Error::ForeignFile { file: files.path(name) });
        }
    }
    Ok(())
}

/// Opens the segments that belong to the log, in order. Those that a purge left over are returned by
/// name instead.
fn open_segments(
    files: &dyn Files,
    layout: &Layout,
    listed: &[Listed],
    start: LogPosition,
    reset: bool,
) -> Result<(Vec<Arc<Segment>>, Vec<String>)> {
    let mut segments: Vec<Arc<Segment>> = Vec::new();
    let mut left_over = Vec::new();
    let first_base = layout.segment_base(start);
    for file in listed.iter().filter(|listed| !listed.directory) {
        let Some(base) = segment::parse_file_name(&file.name) else { continue };
        if reset || base < first_base {
            left_over.push(file.name.clone());
            continue;
        }
        if file.bytes != layout.segment_bytes {
            let (file, found) = (files.path(&file.name), file.bytes);
            return Err(Error::WrongSize { file, found, expected: layout.segment_bytes });
        }
        let expected = segments.last().map_or(first_base, |last| layout.next_base(last.base));
        if base != expected {
            return Err(Error::Gap { dir: files.path(""), expected, found: base });
        }
        let segment = Segment::empty(layout, base, files.open(&file.name)?);
        segment.check_head(layout)?;
        segments.push(Arc::new(segment));
    }
    Ok((segments, left_over))
}

/// Recovers the log in `options.dir`, which this process has locked.
pub(crate) fn recover(options: Options, layout: Layout, files: Arc<dyn Files>, now: Evidence) -> Result<Recovery> {
    let listed = files.list()?;
    check_names(&*files, &listed)?;
    let mut small = open_small(&*files, &options, &listed, &now)?;
    let noted = listed.iter().any(|listed| listed.name == LATCH_NOTE);
    let mut report = Vec::new();

    let purged = small.purged;
    let unpurged = ResumePoint { position: options_start(), chain: 0 };
    let start = purged.map_or(unpurged, |purged| purged.resume);
    let reset = purged.is_some_and(|purged| purged.reset);
    let (segments, mut remove) = open_segments(&*files, &layout, &listed, start.position, reset)?;
    let hints = small.progress.as_ref().map(Progress::hints);
    let flushed = hints.map(|hints| hints.flushed_end.max(start.position)).filter(|_| !reset);
    let flushed = if reset { Some(start.position) } else { flushed };
    let cut = hints.and_then(|hints| hints.cut).filter(|_| !reset);

    // Whatever the operating system still holds back of the window, it must bring to the disk before
    // it is read, or say that it cannot.
    let proven = flushed.unwrap_or(start.position);
    let mut sync_failed = false;
    for segment in segments.iter().filter(|segment| layout.next_base(segment.base) > proven) {
        if let Err(error) = segment.region.sync() {
            report.push(format!("{}: sync at start failed: {error}", segment.region.path().display()));
            sync_failed = true;
        }
    }
    let stop = small.node.stop_class(&now, noted || sync_failed);

    // Which segments hold records, and which of them are read in full.
    let mut opened: Vec<(Arc<Segment>, Opening)> = Vec::new();
    let mut unopened: Vec<Arc<Segment>> = Vec::new();
    let mut broken_opening = None;
    for segment in &segments {
        let opening = segment.read_opening(&layout)?;
        match opening {
            OpeningFound::Opening(opening) if unopened.is_empty() && broken_opening.is_none() => {
                opened.push((Arc::clone(segment), opening));
            }
            OpeningFound::None if broken_opening.is_none() => unopened.push(Arc::clone(segment)),
            OpeningFound::Opening(_) | OpeningFound::None | OpeningFound::Damaged => {
                broken_opening.get_or_insert(segment.base);
                unopened.push(Arc::clone(segment));
            }
        }
    }
    let is_cut_from = |base: LogPosition| cut.is_some_and(|cut| base > layout.segment_base(cut));
    opened.retain(|(segment, _)| {
        let gone = is_cut_from(segment.base);
        if gone {
            remove.push(segment::file_name(segment.base));
        }
        !gone
    });
    unopened.retain(|segment| {
        let gone = is_cut_from(segment.base);
        if gone {
            remove.push(segment::file_name(segment.base));
        }
        !gone
    });
    let (sealed, walk) = read_opened(&opened, cut, &layout)?;

    // The log's end, and what is wrong with it.
    let mut end = walk.as_ref().map_or(start.position, |walk| walk.end);
    let mut chain = walk.as_ref().map_or(start.chain, |walk| walk.chain);
    let last_found = walk.as_ref().and_then(|walk| walk.last);
    let closed = walk.as_ref().is_some_and(|walk| walk.contents.last().is_some_and(|content| content.sealed));
    let wrong = walk.as_ref().and_then(|walk| walk.wrong.clone());
    if closed && wrong.is_none() && cut != Some(end) {
        // The segment is closed: the next record goes into the next one.
        end = layout.next_base(layout.segment_base(end)).plus(segment::HEADER_BYTES);
    }
    let last = last_found.max(purged.map(|purged| purged.id));
    let finding = if cut == Some(end) {
        Finding::Nothing
    } else {
        judge(&opened, &unopened, sealed.len(), end, flushed, wrong.as_ref(), broken_opening, &layout, stop)?
    };
    let decision = decide(finding, stop, options.flush == FlushMode::Sync);
    let found = wrong.map_or_else(|| "zeros".to_owned(), |(_, text)| text);
    let erase = act_on(decision, &options, last, noted, &files, end, &found)? || cut.is_some();

    // From here on the directory changes.
    if let Some(vote) = small.vote.map(|vote| vote.term).or(Some(0))
        && last.is_some_and(|last| last.term.get() > vote)
    {
        return Err(Error::UnreadableSlots {
            file: files.path(hard_state::KIND.name),
            found: format!("a vote of term {vote}, older than the log's last entry {last:?}"),
            consequence: hard_state::KIND.if_unreadable,
        });
    }
    for listed in &listed {
        if listed.name.ends_with(&format!(".{}", crate::durable::TEMPORARY)) {
            remove.push(listed.name.clone());
        }
    }
    let base = layout.segment_base(end);
    let mut all: Vec<Arc<Segment>> = Vec::new();
    for (at, (segment, opening)) in opened.iter().enumerate() {
        if segment.base > base {
            remove.push(segment::file_name(segment.base));
            unopened.retain(|other| other.base != segment.base);
            continue;
        }
        let content = match sealed.get(at) {
            Some(content) => content.clone(),
            None => {
                let walked = walk.as_ref().and_then(|walk| walk.contents.get(at - sealed.len()));
                walked.cloned().unwrap_or_else(|| empty_content(*opening, end))
            }
        };
        segment.set_content(content);
        all.push(Arc::clone(segment));
    }
    if erase && let Some(open) = all.last().filter(|segment| segment.base == base) {
        if cut.is_none() {
            keep_aside(&*files, open, end, &mut report, &found);
        }
        let content = open.content().clone();
        // A segment whose first record is cut is as good as new.
        let keep_opening = content.last.is_some() && content.end == end;
        if !keep_opening && content.last.is_none() {
            let mut emptied = content;
            emptied.opening = None;
            open.set_content(emptied);
        }
        let keep_opening = open.content().opening.is_some();
        erase_behind(&layout, open, end, keep_opening)?;
    }
    if erase {
        // Segments behind the cut hold nothing that counts.
        remove.extend(unopened.iter().filter(|s| s.base > base).map(|s| segment::file_name(s.base)));
        unopened.retain(|segment| segment.base <= base);
        for segment in unopened.iter().filter(|segment| segment.base == base) {
            erase_behind(&layout, segment, base.plus(segment::HEADER_BYTES), false)?;
        }
    }
    remove.sort();
    remove.dedup();
    files.remove(&remove)?;
    rewrite_tail(&all, proven, end)?;
    complete_footers(&all, &layout)?;

    let preparer = Preparer::new(Arc::clone(&files), layout, options.preparation);
    for segment in unopened {
        if segment.base == base && all.last().is_none_or(|last| last.base < base) {
            all.push(segment);
        } else if segment.base == layout.next_base(base) {
            preparer.adopt(segment.base, Arc::clone(&segment.region));
        } else {
            files.remove(&[segment::file_name(segment.base)])?;
        }
    }
    if all.last().is_none_or(|last| last.base != base) {
        let region = preparer.take(base)?;
        all.push(Arc::new(Segment::empty(&layout, base, region)));
    }
    for (newer, segment) in all.iter().rev().enumerate() {
        if newer < options.maps_hot {
            segment.region.warm().map_err(|e| Error::io("mapping", segment.region.path(), e))?;
        } else {
            segment.region.cool();
        }
    }

    let committed_hint = hints.and_then(|hints| hints.committed);
    let (committed, committed_end) = clamp_committed(&all, committed_hint, last, purged, end)?;
    let new_hints = Hints { flushed_end: end, committed, applied: hints.and_then(|hints| hints.applied), cut: None };
    let progress = match small.progress {
        Some(mut progress) => {
            progress.save(new_hints)?;
            progress
        }
        None => Progress::create(&*files, new_hints)?,
    };
    let purged_now = purged.map(|purged| Purged { reset: false, ..purged });
    if let Some(purged) = purged_now.filter(|_| reset) {
        small.purged_file.save(purged)?;
    }
    small.node.mark_running(&options, now)?;
    if noted {
        files.remove(&[LATCH_NOTE.to_owned()])?;
    }

    let open = Arc::clone(all.last().expect("there is always an open segment"));
    let first = match purged {
        Some(purged) => purged.id.index.next(),
        None => all.first().and_then(|segment| segment.first_index()).unwrap_or(LogIndex::ZERO),
    };
    if let Some(walk_chain) = open.content().last.map(|_| open.content().chain) {
        chain = walk_chain;
    }
    let state = State {
        segments: all,
        tail: Default::default(),
        tail_bytes: 0,
        purged: purged.map(|purged| purged.id),
        first,
        last,
        end,
        written_next: last.map_or(first, |last| last.index.next()),
        flushed_end: end,
        committed,
        committed_end,
        epoch: 0,
        vote: small.vote,
        resume: None,
        applied: hints.and_then(|hints| hints.applied),
    };
    let identity = small.node.identity();
    let (store_uuid, start_counter) = (identity.store_uuid, identity.start_counter);
    for line in &report {
        tracing::warn!(dir = %options.dir.display(), "{line}");
    }
    let log = Arc::new(Log::new(options, layout, files, state));
    let small_files = SmallFiles {
        node: small.node,
        hard_state: small.hard_state,
        purged_file: small.purged_file,
        purged: purged_now,
    };
    let start = Start { segment: open, end, chain, last, preparer, files: small_files, progress };
    Ok(Recovery { log, start, stop, vote: small.vote, store_uuid, start_counter, report })
}

/// Reads the opened segments: footers of the older ones, every record of the newest.
fn read_opened(
    opened: &[(Arc<Segment>, Opening)],
    cut: Option<LogPosition>,
    layout: &Layout,
) -> Result<(Vec<Content>, Option<Walk>)> {
    const SCANNED: usize = 2;
    let mut sealed = Vec::new();
    let mut before = None;
    let newest = opened.len().saturating_sub(SCANNED);
    for (at, (segment, opening)) in opened.iter().enumerate().take(newest) {
        let holds_cut = cut.is_some_and(|cut| layout.segment_base(cut) == segment.base);
        let content = if holds_cut { None } else { segment.read_footer(layout, *opening)? };
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
    let walk = if rest.is_empty() { None } else { Some(walk(rest, before, cut, layout)?) };
    Ok((sealed, walk))
}

#[expect(clippy::too_many_arguments, reason = "the whole evidence for one judgement")]
fn judge(
    opened: &[(Arc<Segment>, Opening)],
    unopened: &[Arc<Segment>],
    sealed: usize,
    end: LogPosition,
    flushed: Option<LogPosition>,
    wrong: Option<&(Shape, String)>,
    broken_opening: Option<LogPosition>,
    layout: &Layout,
    stop: StopClass,
) -> Result<Finding> {
    let base = layout.segment_base(end);
    let behind: Vec<Arc<Segment>> = opened
        .iter()
        .skip(sealed)
        .map(|(segment, _)| segment)
        .chain(unopened)
        .filter(|segment| segment.base >= base)
        .cloned()
        .collect();
    // After a clean stop nothing is written behind the end; a few pages are proof enough.
    let window = if stop == StopClass::Clean { 1 << 20 } else { WINDOW_BYTES };
    let from = end.max(flushed.unwrap_or(end));
    let until = from.plus(window).plus(layout.segment_bytes);
    let found = look_behind(&behind, end, until, layout)?;
    let later_opened = opened.iter().any(|(segment, _)| segment.base > base);
    let shape = match wrong {
        Some((shape, _)) => Some(*shape),
        // Zeros, and then something: a write in between was lost.
        None if found.anything || later_opened || broken_opening.is_some() => Some(Shape::Torn),
        None => None,
    };
    let below = flushed.is_none_or(|flushed| end < flushed);
    Ok(match shape {
        None if flushed.is_some() && below => Finding::EndsBelowFlushed,
        None => Finding::Nothing,
        Some(_) if below => Finding::DamageBelowFlushed,
        Some(Shape::Rot) => Finding::Rot,
        Some(Shape::Torn) if found.valid_record || later_opened => Finding::TornBeforeValid,
        Some(Shape::Torn) => Finding::Torn,
    })
}

/// Turns a decision into "go on, and erase what is behind the end or not", or into a refusal.
fn act_on(
    decision: Decision,
    options: &Options,
    last: Option<LogId>,
    noted: bool,
    files: &Arc<dyn Files>,
    end: LogPosition,
    found: &str,
) -> Result<bool> {
    let refuse = |consequence: &'static str| {
        Err(Error::Unrecoverable {
            file: files
                .path(&segment::file_name(LogPosition::new(end.get() / options.segment_bytes * options.segment_bytes))),
            from: end,
            to: end.plus(record::ALIGN),
            found: found.to_owned(),
            consequence,
        })
    };
    const REPAIR: &str =
        "this node may have acknowledged it, so it must not be cut: replace this replica under a new id";
    const RETIRE: &str = "this node may have acknowledged entries that are gone: replace this replica under a new id";
    match decision {
        Decision::Go => Ok(false),
        Decision::Truncate => Ok(true),
        Decision::GoIfNotedReached => {
            let reached = options.flush == FlushMode::Sync || options.alone || noted_last_reached(files, last, noted);
            if reached { Ok(false) } else { refuse(RETIRE) }
        }
        Decision::TruncateUnderNewIdentity if options.alone => Ok(true),
        Decision::NewIdentity if options.alone && options.flush != FlushMode::Sync => Ok(false),
        Decision::Repair | Decision::RepairOrNewIdentity => refuse(REPAIR),
        Decision::TruncateUnderNewIdentity | Decision::NewIdentity | Decision::NewIdentityThenRepair => refuse(RETIRE),
        Decision::Stop => refuse("no crash does this: the files were changed or rolled back from outside"),
    }
}

/// Whether the log still has what it had when it latched.
fn noted_last_reached(files: &Arc<dyn Files>, last: Option<LogId>, noted: bool) -> bool {
    let Ok(note) = files.read_note(LATCH_NOTE) else { return !noted };
    let note = String::from_utf8_lossy(&note);
    let line = note.lines().find_map(|line| line.strip_prefix("last: "));
    let reached = last.map_or_else(|| "None".to_owned(), |last| format!("Some({last})"));
    line == Some(reached.as_str())
}

fn keep_aside(files: &dyn Files, open: &Segment, end: LogPosition, report: &mut Vec<String>, found: &str) {
    let offset = open.offset(end);
    let bytes = (open.region.bytes() - offset).min(ASIDE_BYTES_MAX);
    let mut copy = vec![0; usize::try_from(bytes).unwrap_or(0)];
    let kept = open.region.read(offset, &mut copy).is_ok();
    let used = copy.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    copy.truncate(used);
    let name = format!("{end:020}-cut");
    let outcome = if kept && files.keep_aside(&name, &copy).is_ok() { "kept in quarantine" } else { "not kept" };
    report.push(format!("{}: cut at {end} ({found}), {used} bytes, {outcome}", open.region.path().display()));
}

/// Writes what is not proven durable once more, and syncs it.
fn rewrite_tail(segments: &[Arc<Segment>], proven: LogPosition, end: LogPosition) -> Result<()> {
    const BLOCK_BYTES: u64 = 1 << 20;
    for segment in segments {
        let (first, last) = {
            let content = segment.content();
            let first = content.opening.map(|opening| segment.base.plus(u64::from(opening.first_offset)));
            (first, content.end.min(end))
        };
        let Some(first) = first else { continue };
        let mut position = first.max(proven);
        if position >= last {
            continue;
        }
        let path = segment.region.path();
        while position < last {
            let bytes = BLOCK_BYTES.min(last.since(position));
            let mut block = vec![0; usize::try_from(bytes).expect("a block fits memory")];
            let offset = segment.offset(position);
            segment.region.read(offset, &mut block).map_err(|e| Error::io("reading", path, e))?;
            segment.region.write(offset, &block).map_err(|e| Error::io("writing", path, e))?;
            position = position.plus(bytes);
        }
        // The opening lies in the first page, which may be as little on disk as the records.
        let mut head = vec![0; 1024];
        segment.region.read(0, &mut head).map_err(|e| Error::io("reading", path, e))?;
        segment.region.write(0, &head).map_err(|e| Error::io("writing", path, e))?;
        segment.region.sync().map_err(|e| Error::io("syncing", path, e))?;
    }
    Ok(())
}

/// A crash between closing a segment and writing its footer leaves none.
fn complete_footers(segments: &[Arc<Segment>], layout: &Layout) -> Result<()> {
    for segment in segments {
        let (closed, opening) = {
            let content = segment.content();
            (content.sealed, content.opening)
        };
        let Some(opening) = opening.filter(|_| closed) else { continue };
        if segment.read_footer(layout, opening)?.is_none() {
            let footer = segment.encode_footer(layout);
            let path = segment.region.path();
            let offset = layout.segment_bytes - footer.len() as u64;
            segment.region.write(offset, &footer).map_err(|e| Error::io("writing", path, e))?;
            segment.region.sync().map_err(|e| Error::io("syncing", path, e))?;
        }
    }
    Ok(())
}

/// What is chosen may lawfully be ahead of this log after a crash; what is reported never is.
fn clamp_committed(
    segments: &[Arc<Segment>],
    hint: Option<LogId>,
    last: Option<LogId>,
    purged: Option<Purged>,
    end: LogPosition,
) -> Result<(Option<LogId>, LogPosition)> {
    let floor = purged.map(|purged| purged.id);
    let floor_end = purged.map_or(LogPosition::ZERO, |purged| purged.resume.position);
    let Some(hint) = hint.filter(|hint| floor.is_none_or(|floor| hint.index > floor.index)) else {
        return Ok((floor, floor_end));
    };
    match last {
        None => Ok((floor, floor_end)),
        Some(last) if last.index <= hint.index => Ok((Some(last), committed_end_of(segments, last, end)?)),
        Some(_) => {
            let end = committed_end_of(segments, hint, end)?;
            Ok((Some(hint), end))
        }
    }
}

fn committed_end_of(segments: &[Arc<Segment>], id: LogId, end: LogPosition) -> Result<LogPosition> {
    let holder = segments.iter().rfind(|segment| segment.first_index().is_some_and(|first| first <= id.index));
    match holder {
        Some(segment) => Ok(segment.find(id.index, LogPosition::ZERO)?.end()),
        None => Ok(end),
    }
}
