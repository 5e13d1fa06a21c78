//! A store looked at from outside: for people, for tools, and for tests.
//!
//! The directory is opened for reading only, and not a byte of it changes: not even a sync is asked for, since the
//! kernel reports a failed write-back once, and the next start must be the one to hear of it. The store's lock is held
//! meanwhile, so that no node works on what is being looked at.

mod read_only;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use self::read_only::ReadOnly;
use crate::entry::BodyKind;
use crate::error::{Error, Result};
use crate::hard_state::HardState;
use crate::identity::{self, DirLock, NodeFile};
use crate::ids::{ClusterId, LogId, LogIndex, LogPosition};
use crate::options::Layout;
use crate::progress::{Hints, Progress, Purged, PurgedFile};
use crate::record::Kind;
use crate::region::{Files, Region};
use crate::scan::{Behind, Piece, Scan};
use crate::segment::{self, Opening, OpeningFound, Segment};
use crate::view::Vote;

/// The small files of a store, and what its node file says.
#[derive(Clone, Debug)]
pub struct Overview {
    /// The cluster the store belongs to.
    pub cluster_id: ClusterId,
    /// The Raft identity that owns the log; none while the store waits for its next one.
    pub node_id: Option<u64>,
    /// Identities it had before, oldest first.
    pub retired: Vec<u64>,
    /// The node's name.
    pub node_name: String,
    /// Names the directory for ever.
    pub store_uuid: [u8; 16],
    /// How often it was started.
    pub start_counter: u64,
    /// Whether it was closed with everything flushed.
    pub clean: bool,
    /// Whether its flush mode is `sync`.
    pub flush_is_sync: bool,
    /// The size of a segment.
    pub segment_bytes: u64,
    /// The saved vote.
    pub vote: Option<Vote>,
    /// The disk has everything below, if `progress` can be read.
    pub flushed_end: Option<LogPosition>,
    /// The last entry known to be chosen.
    pub committed: Option<LogId>,
    /// The last entry known to be applied.
    pub applied: Option<LogId>,
    /// The last entry no longer held.
    pub purged: Option<LogId>,
}

/// One segment file.
#[derive(Clone, Debug)]
pub struct SegmentSeen {
    /// Where it starts.
    pub base: LogPosition,
    /// The file.
    pub file: PathBuf,
    /// Bytes the file has on the disk.
    pub allocated_bytes: u64,
    /// Index of its first record, if it holds any.
    pub first_index: Option<LogIndex>,
    /// What stands in its footer.
    pub footer: FooterSeen,
}

/// What the footer of a segment holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FooterSeen {
    /// Nothing: the segment is not sealed, or its footer was lost.
    None,
    /// A footer without digests.
    Plain,
    /// A footer with the digest of each chunk.
    Digests,
}

/// One record.
#[derive(Clone, Debug)]
pub struct RecordSeen {
    /// Where it starts.
    pub position: LogPosition,
    /// Its entry. The pad at the end of a segment carries the index of the entry behind it.
    pub id: LogId,
    /// What it is. `None` for the pad.
    pub kind: Option<BodyKind>,
    /// Header, payload and padding.
    pub stored_bytes: u64,
    /// The payload.
    pub payload: Bytes,
}

/// Something that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The file.
    pub file: PathBuf,
    /// Where in the log.
    pub range: Option<(LogPosition, LogPosition)>,
    /// What was found.
    pub found: String,
    /// Whether it is what an interrupted write leaves, to be put right at the next start.
    pub harmless: bool,
}

/// What a walk over the log meets, in order.
#[derive(Clone, Debug)]
pub enum Seen {
    /// A segment begins.
    Segment(SegmentSeen),
    /// A record that verifies.
    Record(RecordSeen),
    /// Something that is not as it should be. The walk goes on behind it.
    Finding(Finding),
}

/// A store directory that is being looked at.
#[derive(Debug)]
pub struct Inspection {
    files: ReadOnly,
    layout: Layout,
    overview: Overview,
    progress: Option<Hints>,
    purged: Option<Purged>,
    findings: Vec<Finding>,
    _lock: Option<DirLock>,
}

impl Inspection {
    /// Opens the store in `dir` for reading.
    ///
    /// # Errors
    /// [`Error::Locked`] if a node has it open; [`Error::NoStore`] if there is none; whatever else keeps its node file
    /// from being read, without which nothing else can be understood.
    pub fn open(dir: &Path) -> Result<Self> {
        if !dir.join(identity::KIND.name).is_file() {
            return Err(Error::NoStore { dir: dir.to_owned() });
        }
        let lock = identity::lock_unchanged(dir)?;
        let files = ReadOnly::new(dir.to_owned());
        let node = NodeFile::open(&files)?;
        let identity = node.identity();
        let layout = Layout { segment_bytes: identity.segment_bytes, cluster_id: identity.cluster_id };
        let mut findings = Vec::new();
        let vote = note(&mut findings, dir, HardState::open(&files).map(|(_, vote)| vote)).flatten();
        let progress = note(&mut findings, dir, Progress::open(&files).map(|progress| progress.hints()));
        let purged = note(&mut findings, dir, PurgedFile::open(&files).map(|(_, purged)| purged)).flatten();
        let overview = Overview {
            cluster_id: identity.cluster_id,
            node_id: identity.node_id,
            retired: identity.retired.iter().map(|retired| retired.node_id).collect(),
            node_name: identity.node_name.clone(),
            store_uuid: identity.store_uuid,
            start_counter: identity.start_counter,
            clean: identity.clean,
            flush_is_sync: identity.flush_is_sync,
            segment_bytes: identity.segment_bytes,
            vote,
            flushed_end: progress.map(|hints| hints.flushed_end),
            committed: progress.and_then(|hints| hints.committed),
            applied: progress.and_then(|hints| hints.applied),
            purged: purged.map(|purged| purged.id),
        };
        Ok(Self { files, layout, overview, progress, purged, findings, _lock: lock })
    }

    /// What the small files say.
    pub fn overview(&self) -> &Overview {
        &self.overview
    }

    /// Walks the whole log and verifies everything in it: heads, openings, every record with its neighbours, footers,
    /// digests, and that the log reaches what was proven to be on disk.
    ///
    /// Small files that cannot be read are met first. The walk ends early when `visit` breaks.
    ///
    /// # Errors
    /// If the directory cannot be listed or a segment not be opened. Bytes that cannot be read are a [`Finding`].
    pub fn walk(&self, visit: &mut dyn FnMut(Seen) -> ControlFlow<()>) -> Result<()> {
        self.walk_from(LogPosition::ZERO, visit)
    }

    /// The same from the segment on that holds `from`; whether it follows the one before is not looked at.
    ///
    /// # Errors
    /// As [`Inspection::walk`].
    pub fn walk_from(&self, from: LogPosition, visit: &mut dyn FnMut(Seen) -> ControlFlow<()>) -> Result<()> {
        for finding in &self.findings {
            if visit(Seen::Finding(finding.clone())).is_break() {
                return Ok(());
            }
        }
        let mut walk = Walk { inspection: self, visit, last: None, end: None, expected_base: None, sealed: false };
        match walk.run(self.layout.segment_base(from))? {
            ControlFlow::Break(()) => Ok(()),
            ControlFlow::Continue(()) => walk.finish().map(|_| ()),
        }
    }
}

fn note<T>(findings: &mut Vec<Finding>, dir: &Path, read: Result<T>) -> Option<T> {
    match read {
        Ok(value) => Some(value),
        Err(error) => {
            let file = match &error {
                Error::UnreadableSlots { file, .. } | Error::WrongSize { file, .. } | Error::Io { file, .. } => file,
                _ => dir,
            };
            findings.push(Finding { file: file.into(), range: None, found: error.to_string(), harmless: false });
            None
        }
    }
}

struct Walk<'a> {
    inspection: &'a Inspection,
    visit: &'a mut dyn FnMut(Seen) -> ControlFlow<()>,
    /// The last record met, and what must follow it.
    last: Option<Behind>,
    end: Option<LogPosition>,
    expected_base: Option<LogPosition>,
    /// Whether a pad closed the segment before.
    sealed: bool,
}

impl Walk<'_> {
    fn finding(&mut self, file: &Path, range: Option<(LogPosition, LogPosition)>, found: String) -> ControlFlow<()> {
        let harmless = false;
        (self.visit)(Seen::Finding(Finding { file: file.to_owned(), range, found, harmless }))
    }

    fn run(&mut self, from: LogPosition) -> Result<ControlFlow<()>> {
        let layout = &self.inspection.layout;
        let start = self.inspection.purged.map(|purged| purged.resume);
        let first_base = start.map_or(LogPosition::ZERO, |start| layout.segment_base(start.position));
        if from <= first_base {
            self.expected_base = Some(first_base);
        }
        for listed in self.inspection.files.list()? {
            let Some(base) = segment::parse_file_name(&listed.name) else { continue };
            if base < first_base || base < from {
                // Left over from a purge, or not asked for.
                continue;
            }
            let file = self.inspection.files.path(&listed.name);
            if let Some(expected) = self.expected_base.filter(|expected| *expected != base) {
                let found = format!("no segment starts at {expected}, the next one starts at {base}");
                self.last = None;
                if self.finding(&file, Some((expected, base)), found).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            self.expected_base = Some(layout.next_base(base));
            let region = self.inspection.files.open(&listed.name)?;
            if self.segment(base, &file, region)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn segment(&mut self, base: LogPosition, file: &Path, region: Arc<dyn Region>) -> Result<ControlFlow<()>> {
        let layout = &self.inspection.layout;
        let segment = Segment::empty(layout, base, region);
        let mut broken = segment.check_head(layout).err().map(|error| error.to_string());
        let opening = match segment.read_opening(layout) {
            Ok(OpeningFound::Opening(opening)) => Some(opening),
            Ok(OpeningFound::None) => None,
            Ok(OpeningFound::Damaged) => {
                broken.get_or_insert_with(|| "the opening is damaged".into());
                None
            }
            Err(error) => {
                broken.get_or_insert_with(|| error.to_string());
                None
            }
        };
        let footer = opening.and_then(|opening| segment.read_footer_digests(layout, opening).ok().flatten());
        let seen = SegmentSeen {
            base,
            file: file.to_owned(),
            allocated_bytes: read_only::allocated_bytes(file),
            first_index: opening.map(|opening| opening.first_index),
            footer: match &footer {
                None => FooterSeen::None,
                Some((_, None)) => FooterSeen::Plain,
                Some((_, Some(_))) => FooterSeen::Digests,
            },
        };
        if (self.visit)(Seen::Segment(seen)).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        if let Some(found) = broken
            && self.finding(file, Some((base, base.plus(segment::HEADER_BYTES))), found).is_break()
        {
            return Ok(ControlFlow::Break(()));
        }
        if let (Some(opening), Some(last)) = (opening, self.last)
            && (opening.first_index != last.next_index || opening.chain != last.chain || !self.sealed)
        {
            let found = format!("begins with entry {}, which does not follow the segment before", opening.first_index);
            if self.finding(file, Some((base, base.plus(segment::HEADER_BYTES))), found).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        let records = self.records(&segment, file, opening)?;
        if records.is_break() {
            return Ok(records);
        }
        self.footer(&segment, file, opening, footer.as_ref())
    }

    fn records(&mut self, segment: &Segment, file: &Path, opening: Option<Opening>) -> Result<ControlFlow<()>> {
        let layout = &self.inspection.layout;
        let read = |offset: u64, into: &mut [u8]| segment.region.read(offset, into);
        let mut scan = Scan::new(&read, layout, segment.base, opening);
        if opening.is_none() {
            scan = scan.starting_at(segment.base.plus(segment::HEADER_BYTES), None);
        }
        self.sealed = false;
        let mut any = false;
        while let Some(piece) = scan.next() {
            let step = match piece {
                Piece::Gap(gap) => {
                    let window = self.inspection.progress.is_some_and(|hints| gap.from >= hints.flushed_end);
                    let harmless = window && !gap.bounded && !self.inspection.overview.clean;
                    let (range, found) = (Some((gap.from, gap.to)), gap.found);
                    (self.visit)(Seen::Finding(Finding { file: file.to_owned(), range, found, harmless }))
                }
                Piece::Record(header, payload) => {
                    let kind = match header.kind {
                        Kind::Body(kind) => Some(kind),
                        Kind::Pad => None,
                    };
                    any = true;
                    self.sealed = kind.is_none();
                    self.end = Some(header.end());
                    (self.visit)(Seen::Record(RecordSeen {
                        position: header.position,
                        id: header.id,
                        kind,
                        stored_bytes: header.stored_bytes(),
                        payload: payload.into(),
                    }))
                }
            };
            if step.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        if any {
            self.last = scan.behind();
        }
        Ok(ControlFlow::Continue(()))
    }

    fn footer(
        &mut self,
        segment: &Segment,
        file: &Path,
        opening: Option<Opening>,
        footer: Option<&(segment::Content, Option<segment::Digests>)>,
    ) -> Result<ControlFlow<()>> {
        let layout = &self.inspection.layout;
        let footer_at = layout.records_end(segment.base);
        let range = Some((footer_at, layout.next_base(segment.base)));
        let Some((content, digests)) = footer else {
            let written = self.sealed && opening.is_some() && !segment.footer_is_blank(layout);
            if written {
                let found = "the footer is damaged".to_owned();
                let harmless = !self.inspection.overview.clean;
                return Ok((self.visit)(Seen::Finding(Finding { file: file.to_owned(), range, found, harmless })));
            }
            return Ok(ControlFlow::Continue(()));
        };
        let last = self.last.map(|last| last.chain);
        if !self.sealed || Some(content.end) != self.end || Some(content.chain) != last {
            return Ok(self.finding(file, range, format!("the footer says the records end at {}", content.end)));
        }
        if let Some(digests) = digests {
            let read = |offset: u64, into: &mut [u8]| segment.region.read(offset, into);
            for (chunk, expected) in digests.iter().enumerate() {
                let (from, to) = segment::chunk(layout, chunk as u64);
                let found = segment::digest_of(&read, from, to);
                if found.as_ref().ok() != Some(expected) {
                    let range = Some((segment.base.plus(from), segment.base.plus(to)));
                    let step = self.finding(file, range, "a digest that does not hold".into());
                    if step.is_break() {
                        return Ok(step);
                    }
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Whether the log reaches what it must reach.
    fn finish(&mut self) -> Result<ControlFlow<()>> {
        let dir = self.inspection.files.path("");
        let start = self.inspection.purged.map(|purged| purged.resume.position);
        let fresh = start.unwrap_or(LogPosition::new(segment::HEADER_BYTES));
        let end = self.end.unwrap_or(fresh);
        let Some(hints) = self.inspection.progress else { return Ok(ControlFlow::Continue(())) };
        // Behind a pad the log may be known to go on in the next segment.
        let layout = &self.inspection.layout;
        let next = layout.next_base(layout.segment_base(end)).plus(segment::HEADER_BYTES);
        let reaches = if self.sealed { end.max(next) } else { end };
        if hints.flushed_end > reaches && hints.cut.is_none() {
            let found = format!("the log ends at {end}, but was on disk up to {}", hints.flushed_end);
            return Ok(self.finding(&dir, Some((end, hints.flushed_end)), found));
        }
        let vote = self.inspection.overview.vote.map_or(0, |vote| vote.term);
        if let Some(last) = self.last.filter(|last| last.term.get() > vote)
            && self.inspection.findings.is_empty()
        {
            let file = self.inspection.files.path(crate::hard_state::KIND.name);
            return Ok(self.finding(
                &file,
                None,
                format!("a vote of term {vote}, older than term {} in the log", last.term),
            ));
        }
        Ok(ControlFlow::Continue(()))
    }
}

#[cfg(test)]
mod tests;
