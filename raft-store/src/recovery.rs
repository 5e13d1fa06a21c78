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
        let progress = Progress::create(files, Hints { flushed_end: start_of_log(), ..Hints::default() })?;
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
fn start_of_log() -> LogPosition {
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
    let mut survey = Survey::make(&options, &layout, &files, &now)?;
    let end = survey.find_end(&layout)?;
    let erase = survey.judge(&options, &layout, &files, &end)?;
    // From here on the directory changes.
    let mut segments = survey.repair(&layout, &files, &end, erase)?;
    let preparer = Preparer::new(Arc::clone(&files), layout, options.preparation);
    survey.complete_segments(&options, &layout, &end, &preparer, &mut segments)?;
    survey.finish(options, layout, files, now, end, preparer, segments)
}

/// What was found in the directory. Made without changing it.
struct Survey {
    small: Small,
    /// Whether a failed write left a note.
    noted: bool,
    hints: Option<Hints>,
    /// Where the first entry that is not purged starts.
    start: ResumePoint,
    /// Everything below is on disk. `None` if nothing tells.
    flushed: Option<LogPosition>,
    /// A truncation to this end has begun.
    cut: Option<LogPosition>,
    /// Segments with records, in order.
    opened: Vec<(Arc<Segment>, Opening)>,
    /// Segments behind them that hold none, or whose opening is damaged.
    unopened: Vec<Arc<Segment>>,
    broken_opening: bool,
    stop: StopClass,
    /// Files that go, whatever the judgement.
    remove: Vec<String>,
    report: Vec<String>,
}

/// Where the log ends.
struct End {
    end: LogPosition,
    /// The chain value the next record carries.
    chain: u32,
    last: Option<LogId>,
    /// What is wrong there, if it is not simply zeros.
    wrong: Option<(Shape, String)>,
    /// What the opened segments hold, in order, up to the one with the end in it.
    contents: Vec<Content>,
    /// How many of them were not read in full.
    by_footer: usize,
}

impl Survey {
    fn make(options: &Options, layout: &Layout, files: &Arc<dyn Files>, now: &Evidence) -> Result<Self> {
        let listed = files.list()?;
        check_names(&**files, &listed)?;
        let small = open_small(&**files, options, &listed, now)?;
        let noted = listed.iter().any(|listed| listed.name == LATCH_NOTE);
        let mut report = Vec::new();

        let reset = small.purged.is_some_and(|purged| purged.reset);
        let unpurged = ResumePoint { position: start_of_log(), chain: 0 };
        let start = small.purged.map_or(unpurged, |purged| purged.resume);
        let (mut segments, mut remove) = open_segments(&**files, layout, &listed, start.position, reset)?;
        let hints = small.progress.as_ref().map(Progress::hints);
        let flushed = match hints {
            _ if reset => Some(start.position),
            Some(hints) => Some(hints.flushed_end.max(start.position)),
            None => None,
        };
        let cut = hints.and_then(|hints| hints.cut).filter(|_| !reset);

        // Whatever the operating system still holds back of the window, it must bring to the disk
        // before it is read, or say that it cannot.
        let proven = flushed.unwrap_or(start.position);
        let mut sync_failed = false;
        for segment in segments.iter().filter(|segment| layout.next_base(segment.base) > proven) {
            if let Err(error) = segment.region.sync() {
                report.push(format!("{}: sync at start failed: {error}", segment.region.path().display()));
                sync_failed = true;
            }
        }
        let stop = small.node.stop_class(now, noted || sync_failed);

        let half_made = format!(".{}", crate::durable::TEMPORARY);
        remove.extend(listed.iter().map(|listed| listed.name.clone()).filter(|name| name.ends_with(&half_made)));
        // A truncation that has begun takes whole segments with it.
        let kept = segments.partition_point(|segment| cut.is_none_or(|cut| segment.base <= layout.segment_base(cut)));
        remove.extend(segments.drain(kept..).map(|segment| segment::file_name(segment.base)));

        let mut survey = Self {
            small,
            noted,
            hints,
            start,
            flushed,
            cut,
            opened: Vec::new(),
            unopened: Vec::new(),
            broken_opening: false,
            stop,
            remove,
            report,
        };
        for segment in segments {
            match segment.read_opening(layout)? {
                OpeningFound::Opening(opening) if survey.unopened.is_empty() => survey.opened.push((segment, opening)),
                OpeningFound::None => survey.unopened.push(segment),
                // Damaged, or behind one that has none.
                OpeningFound::Opening(_) | OpeningFound::Damaged => {
                    survey.broken_opening = true;
                    survey.unopened.push(segment);
                }
            }
        }
        Ok(survey)
    }

    /// Reads the log up to where it stops being valid.
    fn find_end(&self, layout: &Layout) -> Result<End> {
        let proven = self.flushed.unwrap_or(self.start.position);
        let (mut contents, walk) = read_opened(&self.opened, proven, self.cut, layout)?;
        let by_footer = contents.len();
        let purged = self.small.purged.map(|purged| purged.id);
        let Some(walk) = walk else {
            let ResumePoint { position, chain } = self.start;
            return Ok(End { end: position, chain, last: purged, wrong: None, contents, by_footer });
        };
        let closed = walk.contents.last().is_some_and(|content| content.sealed);
        contents.extend(walk.contents);
        let mut end = walk.end;
        if closed && walk.wrong.is_none() && self.cut != Some(end) {
            // The segment is closed: the next record goes into the next one.
            end = layout.next_base(layout.segment_base(end)).plus(segment::HEADER_BYTES);
        }
        Ok(End { end, chain: walk.chain, last: walk.last.max(purged), wrong: walk.wrong, contents, by_footer })
    }

    /// Decides whether what lies behind the end goes, or whether the store must not start.
    fn judge(&self, options: &Options, layout: &Layout, files: &Arc<dyn Files>, end: &End) -> Result<bool> {
        let finding = if self.cut == Some(end.end) { Finding::Nothing } else { self.finding(options, layout, end)? };
        let decision = decide(finding, self.stop, options.flush == FlushMode::Sync);
        let found = end.found();
        let erase = act_on(decision, options, end.last, self.noted, files, end.end, found)?;
        let vote = self.small.vote.map_or(0, |vote| vote.term);
        if let Some(last) = end.last.filter(|last| last.term.get() > vote) {
            return Err(Error::UnreadableSlots {
                file: files.path(hard_state::KIND.name),
                found: format!("a vote of term {vote}, older than the log's last entry {last}"),
                consequence: hard_state::KIND.if_unreadable,
            });
        }
        Ok(erase || self.cut.is_some())
    }

    fn finding(&self, options: &Options, layout: &Layout, end: &End) -> Result<Finding> {
        let base = layout.segment_base(end.end);
        let behind: Vec<Arc<Segment>> = self
            .opened
            .iter()
            .skip(end.by_footer)
            .map(|(segment, _)| segment)
            .chain(&self.unopened)
            .filter(|segment| segment.base >= base)
            .cloned()
            .collect();
        let from = end.end.max(self.flushed.unwrap_or(end.end));
        let until = from.plus(WINDOW_BYTES).plus(options.payload_bytes_max);
        let found = look_behind(&behind, end.end, until, layout)?;
        let later_opened = self.opened.iter().any(|(segment, _)| segment.base > base);
        let shape = match &end.wrong {
            Some((shape, _)) => Some(*shape),
            // Zeros, and then something: a write in between was lost.
            None if found.anything || later_opened || self.broken_opening => Some(Shape::Torn),
            None => None,
        };
        let below = self.flushed.is_none_or(|flushed| end.end < flushed);
        Ok(match shape {
            None if self.flushed.is_some() && below => Finding::EndsBelowFlushed,
            None => Finding::Nothing,
            Some(_) if below => Finding::DamageBelowFlushed,
            Some(Shape::Rot) => Finding::Rot,
            Some(Shape::Torn) if found.valid_record || later_opened => Finding::TornBeforeValid,
            Some(Shape::Torn) => Finding::Torn,
        })
    }

    /// Makes the files what the judgement says, and the log durable up to its end.
    ///
    /// In an order that lets a crash on the way leave the same judgement to the next start: later
    /// segments go before earlier ones, and what is erased goes from its end backwards.
    fn repair(&mut self, layout: &Layout, files: &Arc<dyn Files>, end: &End, erase: bool) -> Result<Vec<Arc<Segment>>> {
        let base = layout.segment_base(end.end);
        let mut segments: Vec<Arc<Segment>> = Vec::new();
        for (at, (segment, _)) in self.opened.iter().enumerate() {
            match end.contents.get(at) {
                Some(content) if segment.base <= base => {
                    segment.set_content(content.clone());
                    segments.push(Arc::clone(segment));
                }
                _ => self.remove.push(segment::file_name(segment.base)),
            }
        }
        if erase {
            let (kept, gone) = std::mem::take(&mut self.unopened).into_iter().partition(|other| other.base <= base);
            self.unopened = kept;
            self.remove.extend(gone.iter().map(|segment: &Arc<Segment>| segment::file_name(segment.base)));
        }
        let open = segments.last().filter(|segment| segment.base == base).cloned();
        if erase
            && self.cut.is_none()
            && let Some(open) = &open
        {
            keep_aside(&**files, open, end.end, &mut self.report, end.found());
        }
        self.remove.sort();
        self.remove.reverse();
        self.remove.dedup();
        files.remove(&self.remove)?;
        if erase {
            if let Some(open) = &open {
                let empty = open.content().last.is_none();
                if empty {
                    // A segment whose first record is cut is as good as new.
                    let content = Content { opening: None, ..open.content().clone() };
                    open.set_content(content);
                }
                erase_behind(layout, open, end.end, !empty)?;
            }
            for segment in self.unopened.iter().filter(|segment| segment.base == base) {
                erase_behind(layout, segment, base.plus(segment::HEADER_BYTES), false)?;
            }
        }
        rewrite_tail(&segments, self.flushed.unwrap_or(self.start.position), end.end)?;
        complete_footers(&segments, layout)?;
        Ok(segments)
    }

    /// Adds the segment the log goes on in, and maps the newest ones.
    fn complete_segments(
        &mut self,
        options: &Options,
        layout: &Layout,
        end: &End,
        preparer: &Preparer,
        segments: &mut Vec<Arc<Segment>>,
    ) -> Result<()> {
        let base = layout.segment_base(end.end);
        let open_exists = segments.last().is_some_and(|last| last.base == base);
        for segment in std::mem::take(&mut self.unopened) {
            if segment.base == base && !open_exists {
                segments.push(segment);
            } else {
                // At most one lies further on; another one than the next is replaced when it is needed.
                preparer.adopt(segment.base, Arc::clone(&segment.region));
            }
        }
        if segments.last().is_none_or(|last| last.base != base) {
            segments.push(Arc::new(Segment::empty(layout, base, preparer.take(base)?)));
        }
        for (newer, segment) in segments.iter().rev().enumerate() {
            if newer < options.maps_hot {
                segment.region.warm().map_err(|e| Error::io("mapping", segment.region.path(), e))?;
            } else {
                segment.region.cool();
            }
        }
        Ok(())
    }

    /// Writes the small files and puts the log together.
    #[expect(clippy::too_many_arguments, reason = "takes everything that the steps before made")]
    fn finish(
        mut self,
        options: Options,
        layout: Layout,
        files: Arc<dyn Files>,
        now: Evidence,
        end: End,
        preparer: Preparer,
        segments: Vec<Arc<Segment>>,
    ) -> Result<Recovery> {
        let purged = self.small.purged;
        let committed_hint = self.hints.and_then(|hints| hints.committed);
        let (committed, committed_end) = clamp_committed(&segments, committed_hint, end.last, purged, end.end)?;
        let applied = self.hints.and_then(|hints| hints.applied);
        let hints = Hints { flushed_end: end.end, committed, applied, cut: None };
        let progress = match self.small.progress {
            Some(mut progress) => {
                progress.save(hints)?;
                progress
            }
            None => Progress::create(&*files, hints)?,
        };
        let reset = purged.is_some_and(|purged| purged.reset);
        let purged = purged.map(|purged| Purged { reset: false, ..purged });
        if let Some(purged) = purged.filter(|_| reset) {
            self.small.purged_file.save(purged)?;
        }
        self.small.node.mark_running(&options, now)?;
        if self.noted {
            files.remove(&[LATCH_NOTE.to_owned()])?;
        }
        for line in &self.report {
            tracing::warn!(dir = %options.dir.display(), "{line}");
        }

        let open = Arc::clone(segments.last().expect("the open segment was added"));
        let first_held = segments.first().and_then(|segment| segment.first_index()).unwrap_or(LogIndex::ZERO);
        let first = purged.map_or(first_held, |purged| purged.id.index.next());
        let state = State {
            segments,
            tail: Default::default(),
            tail_bytes: 0,
            purged: purged.map(|purged| purged.id),
            first,
            last: end.last,
            end: end.end,
            written_next: end.last.map_or(first, |last| last.index.next()),
            flushed_end: end.end,
            committed,
            committed_end,
            epoch: 0,
            vote: self.small.vote,
            resume: None,
            applied,
        };
        let identity = self.small.node.identity();
        let (store_uuid, start_counter) = (identity.store_uuid, identity.start_counter);
        let log = Arc::new(Log::new(options, layout, files, state));
        let small_files = SmallFiles {
            node: self.small.node,
            hard_state: self.small.hard_state,
            purged_file: self.small.purged_file,
            purged,
        };
        let End { end, chain, last, .. } = end;
        Ok(Recovery {
            log,
            start: Start { segment: open, end, chain, last, preparer, files: small_files, progress },
            stop: self.stop,
            vote: self.small.vote,
            store_uuid,
            start_counter,
            report: self.report,
        })
    }
}

impl End {
    /// What stands at the end, for messages.
    fn found(&self) -> &str {
        self.wrong.as_ref().map_or("zeros", |(_, text)| text)
    }
}

/// Reads the opened segments: footers of the older ones, every record of the newest two and of all
/// that are not proven to be on disk.
fn read_opened(
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
    let walk = if rest.is_empty() { None } else { Some(walk(rest, before, cut, layout)?) };
    Ok((sealed, walk))
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

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

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

        /// Where the log ends if it is read from entry `index` on.
        pub(crate) fn end_from(&self, index: u64, start: LogPosition) -> LogPosition {
            let opening = Opening {
                first_index: LogIndex::new(index),
                first_offset: u32::try_from(start.get()).unwrap(),
                chain: self.chains[usize::try_from(index).unwrap()],
            };
            walk(&[(Arc::clone(&self.segment), opening)], None, None, &self.layout).unwrap().end
        }
    }
}
