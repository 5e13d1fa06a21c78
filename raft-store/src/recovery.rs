//! From a directory to a log: what was the end, and may what lies behind it be cut?
//!
//! Nothing is written before everything has been judged. Then, in this order: a node id under which
//! something may have been acknowledged that is gone is given up, what must go is copied aside and zeroed, the part of the log that is not proven durable is written again and synced, and
//! only then the node file says `running`. A crash anywhere in between leaves the same judgement to
//! the next start.
//!
//! Why the tail is written again: after a failed write-back, or one that nobody was told of, the page
//! cache can hold clean pages that never reached the disk. They read back well, and a sync alone
//! returns success for them.

mod directory;
pub(crate) mod judgement;
mod tail;
pub(crate) mod walk;

use std::sync::Arc;

use self::directory::{Small, check_names, open_segments, open_small, start_of_log};
use self::judgement::{Finding, Verdict, act_on, decide};
use self::tail::{clamp_committed, complete_footers, keep_aside, rewrite_tail};
use self::walk::{Shape, look_behind, read_opened};
use crate::error::{Error, Result};
use crate::hard_state;
use crate::identity::{Evidence, Retired};
use crate::ids::{LogId, LogIndex, LogPosition};
use crate::latch_note::{self, LatchNotes};
use crate::options::{FlushMode, Layout, Options};
use crate::preparer::Preparer;
use crate::progress::{Hints, Progress, Purged};
use crate::region::Files;
use crate::segment::{self, Content, Opening, OpeningFound, Segment};
use crate::segmented_log::{Log, State};
use crate::view::{ResumePoint, StopClass, Vote};
use crate::writer::{SmallFiles, Start, erase_behind};

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
    pub(crate) node_id: Option<u64>,
    pub(crate) retired: Vec<Retired>,
    pub(crate) generation: u64,
    pub(crate) has_cut: bool,
    pub(crate) disk_lost_flushed: bool,
    pub(crate) report: Vec<String>,
}

/// Recovers the log in `options.dir`, which this process has locked.
pub(crate) fn recover(mut options: Options, layout: Layout, files: Arc<dyn Files>, now: Evidence) -> Result<Recovery> {
    let mut survey = Survey::make(&options, &layout, &files, &now)?;
    // How appends count as done is the group's to say; the file has what it said last.
    options.flush = options.flush_mode(survey.small.node.identity().flush_is_sync);
    let end = survey.find_end(&layout)?;
    let Verdict { erase, retire } = survey.judge(&options, &layout, &files, &end)?;
    // From here on the directory changes.
    if retire || options.retire {
        survey.small.node.retire()?;
    }
    let mut segments = survey.repair(&layout, &files, &end, erase)?;
    let preparer = Arc::new(Preparer::new(Arc::clone(&files), layout, options.preparation));
    survey.complete_segments(&options, &layout, &end, &preparer, &files, &mut segments)?;
    survey.finish(options, layout, files, now, end, preparer, segments)
}

/// What was found in the directory. Made without changing it.
struct Survey {
    small: Small,
    /// What a failed write left.
    notes: LatchNotes,
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
    /// Something behind the end is cut off.
    has_cut: bool,
    /// The log ends below what was proven durable.
    disk_lost_flushed: bool,
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
        let noted = listed.iter().any(|listed| listed.name == latch_note::NAME);
        let notes = LatchNotes::find(&**files, noted, options, &small.node.identity().store_uuid);
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
        let stop = small.node.stop_class(now, notes.is_any() || sync_failed);

        let half_made = format!(".{}", crate::durable::TEMPORARY);
        remove.extend(listed.iter().map(|listed| listed.name.clone()).filter(|name| name.ends_with(&half_made)));
        // A truncation that has begun takes whole segments with it.
        let kept = segments.partition_point(|segment| cut.is_none_or(|cut| segment.base <= layout.segment_base(cut)));
        remove.extend(segments.drain(kept..).map(|segment| segment::file_name(segment.base)));

        let mut survey = Self {
            small,
            notes,
            hints,
            start,
            flushed,
            cut,
            opened: Vec::new(),
            unopened: Vec::new(),
            broken_opening: false,
            stop,
            remove,
            has_cut: false,
            disk_lost_flushed: false,
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
    fn judge(&mut self, options: &Options, layout: &Layout, files: &Arc<dyn Files>, end: &End) -> Result<Verdict> {
        let finding = if self.cut == Some(end.end) { Finding::Nothing } else { self.finding(options, layout, end)? };
        let decision = match self.small.node.identity().node_id {
            Some(_) => decide(finding, self.stop, options.flush == FlushMode::Sync),
            // Nobody has acknowledged anything since the last identity was retired: there is nothing more to lose.
            None => decide(finding, StopClass::Os, false),
        };
        let found = end.found();
        let verdict = act_on(decision, finding, options, end.last, &self.notes, files, end.end, found)?;
        if let (Finding::EndsBelowFlushed, Some(flushed)) = (finding, self.flushed) {
            self.disk_lost_flushed = true;
            self.report.push(format!("the log ends at {}, the disk had it up to {flushed}: it has lost that", end.end));
        }
        let vote = self.small.vote.map_or(0, |vote| vote.term);
        if let Some(last) = end.last.filter(|last| last.term.get() > vote) {
            return Err(Error::UnreadableSlots {
                file: files.path(hard_state::KIND.name),
                found: format!("a vote of term {vote}, older than the log's last entry {last}"),
                consequence: hard_state::KIND.if_unreadable,
            });
        }
        Ok(Verdict { erase: verdict.erase || self.cut.is_some(), ..verdict })
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
        // A process that was killed may not have got to that.
        files.sync_names()?;
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
            self.has_cut = true;
            keep_aside(&**files, open, end.end, &mut self.report, end.found());
        }
        self.remove.sort();
        self.remove.reverse();
        self.remove.dedup();
        files.remove_in_order(&self.remove)?;
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
        files: &Arc<dyn Files>,
        segments: &mut Vec<Arc<Segment>>,
    ) -> Result<()> {
        let base = layout.segment_base(end.end);
        let mut ahead = std::mem::take(&mut self.unopened);
        if segments.last().is_none_or(|last| last.base != base) {
            let open = ahead.iter().position(|segment| segment.base == base).map(|at| ahead.remove(at));
            let open = match open {
                Some(open) => Ok(open),
                None => preparer.take(base).map(|region| Arc::new(Segment::empty(layout, base, region))),
            };
            match open {
                Ok(open) => segments.push(open),
                // A log that ends with a closed segment can be read; the writer goes on once there is room.
                Err(error @ Error::NoSpace { .. }) if !segments.is_empty() => self.report.push(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        let mut newest = segments.last().map_or(base, |last| last.base);
        preparer.set_newest(newest);
        for segment in ahead {
            if segment.base == layout.next_base(newest) {
                newest = segment.base;
                preparer.adopt(newest, Arc::clone(&segment.region));
            } else {
                files.remove(&[segment::file_name(segment.base)])?;
            }
        }
        for (newer, segment) in segments.iter().rev().enumerate() {
            if segment.content().sealed {
                segment.region.seal();
            }
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
        preparer: Arc<Preparer>,
        segments: Vec<Arc<Segment>>,
    ) -> Result<Recovery> {
        let purged = self.small.purged;
        let committed_hint = self.hints.and_then(|hints| hints.committed);
        let (committed, committed_end) = clamp_committed(&segments, committed_hint, end.last, purged, end.end)?;
        let applied = self.hints.and_then(|hints| hints.applied);
        let hints = Hints { flushed_end: end.end, committed, applied, cut: None };
        let progress = match self.small.progress {
            Some(mut progress) => {
                progress.save_again(hints)?;
                progress
            }
            None => Progress::create(&*files, hints)?,
        };
        // Whatever the log and its peers are told from here on must not be forgotten.
        self.small.hard_state.save_again(self.small.vote)?;
        let purged = purged.map(|purged| Purged { reset: false, ..purged });
        self.small.purged_file.save_again(purged)?;
        self.small.node.mark_running(&options, now)?;
        self.notes.remove(&*files)?;
        for line in &self.report {
            tracing::warn!(dir = %options.dir.display(), "{line}");
        }

        let open = Arc::clone(segments.last().expect("there is one"));
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
        let (node_id, retired, generation) = (identity.node_id, identity.retired.clone(), identity.generation);
        let log = Arc::new(Log::new(options, layout, files, store_uuid, state, preparer));
        let small_files = SmallFiles {
            node: self.small.node,
            hard_state: self.small.hard_state,
            purged_file: self.small.purged_file,
            purged,
        };
        let End { end, chain, last, .. } = end;
        Ok(Recovery {
            log,
            start: Start { segment: open, end, chain, last, files: small_files, progress },
            stop: self.stop,
            vote: self.small.vote,
            store_uuid,
            start_counter,
            node_id,
            retired,
            generation,
            has_cut: self.has_cut,
            disk_lost_flushed: self.disk_lost_flushed,
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
