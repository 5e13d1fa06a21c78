//! Repair of a store that does not start: its log is damaged in a place that must not be cut.
//!
//! Raft does not run meanwhile, so the replica neither votes nor leads. What it has it still gives to peers that are
//! damaged elsewhere.

use std::io;
use std::sync::Arc;

use super::rebuild::{Known, Rebuild, Right};
use super::serve::{Stretch, look};
use super::{PeerRange, RangeAnswer, RangeSource, Repaired};
use crate::error::{Error, Result};
use crate::hard_state::HardState;
use crate::identity::{self, DirLock, NodeFile};
use crate::ids::{LogId, LogPosition};
use crate::options::{Layout, Options};
use crate::progress::{Hints, Progress, Purged, PurgedFile};
use crate::record::Kind;
use crate::region::{Directory, Files};
use crate::scan::{Behind, Piece, Scan};
use crate::segment::{self, Opening, OpeningFound, Segment};
use crate::view::ResumePoint;

/// A store that is held for repair.
#[derive(Debug)]
pub struct StoppedStore {
    files: Arc<dyn Files>,
    layout: Layout,
    purged: Option<Purged>,
    hints: Option<Hints>,
    node_id: Option<u64>,
    store_uuid: [u8; 16],
    start_counter: u64,
    _lock: Option<DirLock>,
}

impl StoppedStore {
    /// The segment that kept the store from starting, if peers may have what is damaged in it.
    #[must_use]
    pub fn damaged_segment(error: &Error) -> Option<LogPosition> {
        let file = match error {
            Error::Unrecoverable { file, repairable: true, .. }
            | Error::Damaged { file, .. }
            | Error::ForeignFile { file } => file,
            Error::WrongSize { file, found, expected } if found < expected => file,
            _ => return None,
        };
        segment::parse_file_name(file.file_name()?.to_str()?)
    }

    /// Takes the store in `options.dir`, which must be this node's.
    ///
    /// # Errors
    /// If it is in use, somebody else's, or its small files cannot be read.
    pub fn open(options: &Options) -> Result<Self> {
        let lock = identity::lock(&options.dir)?;
        Self::over(options, Arc::new(Directory::new(options.dir.clone())), Some(lock))
    }

    pub(crate) fn over(options: &Options, files: Arc<dyn Files>, lock: Option<DirLock>) -> Result<Self> {
        let node = NodeFile::open(&*files)?;
        node.check(&*files, options)?;
        let identity = node.identity();
        Ok(Self {
            layout: Layout { segment_bytes: identity.segment_bytes, cluster_id: identity.cluster_id },
            purged: PurgedFile::open(&*files)?.1,
            hints: Progress::open(&*files).ok().map(|progress| progress.hints()),
            node_id: identity.node_id,
            store_uuid: identity.store_uuid,
            start_counter: identity.start_counter,
            files,
            _lock: lock,
        })
    }

    /// Names the directory for ever.
    #[must_use]
    pub fn store_uuid(&self) -> [u8; 16] {
        self.store_uuid
    }

    /// The Raft identity, unless it was given up.
    #[must_use]
    pub fn node_id(&self) -> Option<u64> {
        self.node_id
    }

    /// How often the store was started.
    #[must_use]
    pub fn start_counter(&self) -> u64 {
        self.start_counter
    }

    /// Makes the segment at `base` whole. Blocks.
    ///
    /// # Errors
    /// [`Error::NotRepaired`] says what the peers answered. Nothing has changed then. [`Error::ForeignFile`] if nothing
    /// in the file shows that it ever was this segment.
    pub fn repair(&self, base: LogPosition, source: &dyn RangeSource) -> Result<Repaired> {
        let old = self.files.open(&segment::file_name(base))?;
        let segment = Segment::empty(&self.layout, base, Arc::clone(&old));
        let opening = match segment.read_opening(&self.layout) {
            Ok(OpeningFound::Opening(opening)) => Some(opening),
            _ => None,
        };
        let head = segment.check_head(&self.layout);
        if matches!(head, Err(Error::ForeignFile { .. })) && opening.is_none() && !self.holds_records(&segment) {
            return head.map(|()| Repaired { ranges: Vec::new(), fetched_bytes: 0 });
        }
        let opening = opening.or_else(|| self.opening_of(&segment));
        let right = match self.opening_behind(base) {
            Some(next) => Right::Next(next),
            None => {
                Right::Unknown { flushed: self.hints.map_or(LogPosition::new(u64::MAX), |hints| hints.flushed_end) }
            }
        };
        let known = Known { opening, behind: self.behind(base)?, right };
        let rebuild = Rebuild::begin(&*self.files, &self.layout, base, old, source)?;
        let (replacement, repaired) = rebuild.run(known)?;
        let end = replacement.content.end;
        self.files.rename(&replacement.name, &segment::file_name(base))?;
        if matches!(right, Right::Unknown { .. }) {
            self.lower_flushed(end)?;
        }
        Ok(repaired)
    }

    /// Lets the log begin behind the last entry of a checkpoint, which is of this group and later than what is damaged:
    /// everything before goes. Says whether it may. What stands behind `resume` stays.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn begin_behind(&self, id: LogId, resume: ResumePoint) -> Result<bool> {
        if self.purged.is_some_and(|purged| purged.id >= id) {
            return Ok(false);
        }
        let begins_in = segment::file_name(self.layout.segment_base(resume.position));
        // A log that does not reach that far holds nothing that the checkpoint does not stand for.
        let reset = !self.files.list()?.iter().any(|listed| listed.name == begins_in);
        let term = HardState::open(&*self.files)?.1.map_or(0, |vote| vote.term);
        if term < id.term.get() {
            // Raft never holds an entry of a term it has not voted in. A leader brings both.
            return Ok(false);
        }
        PurgedFile::open(&*self.files)?.0.save(Purged { id, resume, reset })?;
        Ok(true)
    }

    /// What stands behind the new end was never chosen, so that it was on disk counts no more.
    fn lower_flushed(&self, end: LogPosition) -> Result<()> {
        let Ok(mut progress) = Progress::open(&*self.files) else { return Ok(()) };
        let hints = progress.hints();
        if hints.flushed_end <= end {
            return Ok(());
        }
        progress.save(Hints { flushed_end: end, ..hints })
    }

    fn holds_records(&self, segment: &Segment) -> bool {
        let read = |offset: u64, into: &mut [u8]| segment.region.read(offset, into);
        let mut scan = Scan::new(&read, &self.layout, segment.base, None);
        std::iter::from_fn(|| scan.next()).any(|piece| matches!(piece, Piece::Record(..)))
    }

    /// Where the records of a segment without a readable opening start, if it is where the log goes on after a snapshot.
    fn opening_of(&self, segment: &Segment) -> Option<Opening> {
        let purged = self.purged?;
        let first = segment.base.plus(segment::HEADER_BYTES);
        let resumes_here = self.layout.segment_base(purged.resume.position) == segment.base;
        let read = |offset: u64, into: &mut [u8]| segment.region.read(offset, into);
        let mut scan = Scan::new(&read, &self.layout, segment.base, None).until(purged.resume.position.max(first));
        let before = std::iter::from_fn(|| scan.next()).any(|piece| matches!(piece, Piece::Record(..)));
        (resumes_here && purged.resume.position > first && !before).then(|| Opening {
            first_index: purged.id.index.next(),
            first_offset: u32::try_from(segment.offset(purged.resume.position)).unwrap_or(u32::MAX),
            chain: purged.resume.chain,
        })
    }

    fn opening_behind(&self, base: LogPosition) -> Option<Opening> {
        let next = self.layout.next_base(base);
        let region = self.files.open(&segment::file_name(next)).ok()?;
        match Segment::empty(&self.layout, next, region).read_opening(&self.layout) {
            Ok(OpeningFound::Opening(opening)) => Some(opening),
            _ => None,
        }
    }

    /// What the first record of the segment at `base` follows.
    fn behind(&self, base: LogPosition) -> Result<Option<Behind>> {
        let before = match base.get().checked_sub(self.layout.segment_bytes) {
            Some(before) => LogPosition::new(before),
            None => return Ok(None),
        };
        let first = self.purged.map(|purged| purged.resume.position);
        if first.is_some_and(|first| self.layout.segment_base(first) > before) {
            let purged = self.purged.filter(|purged| purged.resume.position == base.plus(segment::HEADER_BYTES));
            return Ok(purged.map(|purged| Behind {
                next_index: purged.id.index.next(),
                term: purged.id.term,
                chain: purged.resume.chain,
            }));
        }
        let segment = Segment::empty(&self.layout, before, self.files.open(&segment::file_name(before))?);
        let OpeningFound::Opening(opening) = segment.read_opening(&self.layout)? else { return Ok(None) };
        if let Some(content) = segment.read_footer(&self.layout, opening)? {
            let chain = content.chain;
            return Ok(content.last.map(|last| Behind { next_index: last.index.next(), term: last.term, chain }));
        }
        // It was closed a moment before the process ended.
        let read = |offset: u64, into: &mut [u8]| segment.region.read(offset, into);
        let mut scan = Scan::new(&read, &self.layout, before, Some(opening));
        let mut is_closed = false;
        while let Some(Piece::Record(header, _)) = scan.next() {
            is_closed = header.kind == Kind::Pad;
        }
        Ok(scan.behind().filter(|_| is_closed))
    }

    /// What this store has of a range, for a peer that is damaged elsewhere. It never says that it never had something:
    /// being damaged itself, it cannot know.
    ///
    /// # Errors
    /// If the segment cannot be opened.
    pub fn serve_range(&self, from: LogPosition, to: LogPosition, bytes_max: usize) -> Result<PeerRange> {
        let base = self.layout.segment_base(from);
        let answer = |answer| Ok(PeerRange { answer, last: None, is_last_certain: false });
        if self.purged.is_some_and(|purged| from < purged.resume.position) {
            return answer(RangeAnswer::Purged);
        }
        let Ok(region) = self.files.open(&segment::file_name(base)) else { return answer(RangeAnswer::Damaged) };
        let read = |offset: u64, into: &mut [u8]| -> io::Result<()> { region.read(offset, into) };
        let end = self.layout.records_end(base);
        let stretch = Stretch { base, start: base.plus(segment::HEADER_BYTES), from, to, end, bytes_max };
        match look(&read, &self.layout, &stretch).0 {
            found @ RangeAnswer::Have(_) => answer(found),
            _ => answer(RangeAnswer::Damaged),
        }
    }
}
