//! The one thread that writes the log, and the group commit.
//!
//! Everything that changes the disk is an operation in one queue: appends, votes, truncations,
//! purges. The writer takes what is waiting, puts neighbouring records into one write, syncs once
//! for all of them, and answers in order. It is the only place that writes, so "log bytes before the
//! vote" and "answers for a durable prefix only" are plain program order here.
//!
//! In asynchronous mode an append is answered once it is written, and a second thread syncs at an
//! interval. Both sync through [`Flush::sync`], one at a time: the kernel reports a failed write-back
//! once, so whoever is told must have closed the log before anybody else asks.
//!
//! The first failure closes the log for ever: nothing is answered with success afterwards, and no
//! sync is tried again.

mod flush;
mod queue;
mod replace;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use self::flush::Flush;
use self::queue::{Done, PanicGuard};
pub(crate) use self::queue::{Op, Queue, Reply, Write};
use crate::error::{Error, Result};
use crate::hard_state::HardState;
use crate::identity::NodeFile;
use crate::ids::{LogId, LogIndex, LogPosition};
use crate::options::{FlushMode, Layout};
use crate::progress::{Progress, Purged, PurgedFile};
use crate::record::{self, Draft, Header, Kind};
use crate::segment::{self, Opening, Segment};
use crate::segmented_log::{Log, Record};
use crate::stall::{StallWatch, UnderWay, Watched};
use crate::view::{ResumePoint, SealedSegment, Vote};

/// The most that goes to the disk in one call, a single larger record excepted.
const STAGE_BYTES_MAX: usize = 1 << 20;
/// The most that is written before a sync, so that no single sync takes long.
const SYNC_BYTES_MAX: u64 = 8 << 20;

/// The small files the writer owns.
pub(crate) struct SmallFiles {
    pub(crate) node: NodeFile,
    pub(crate) hard_state: HardState,
    pub(crate) purged_file: PurgedFile,
    pub(crate) purged: Option<Purged>,
}

struct Writer {
    log: Arc<Log>,
    flush: Arc<Flush>,
    files: SmallFiles,
    /// The open segment.
    segment: Arc<Segment>,
    /// Where the next record goes, but for a segment's end.
    end: LogPosition,
    chain: u32,
    last: Option<LogId>,
    /// Records laid out for the next write, and where it goes.
    stage: Vec<u8>,
    stage_at: LogPosition,
    staged: Vec<Header>,
    /// Appends of this round, in order, and whether one of them insists on a sync.
    round: Vec<Done>,
    round_must_sync: bool,
    /// The last entry that announced synchronous flush.
    sync_since: Option<LogIndex>,
    closed: bool,
}

/// The running threads. Dropping it stops them without finishing what is queued, as a kill would.
pub(crate) struct Threads {
    log: Arc<Log>,
    queue: Arc<Queue>,
    flush: Arc<Flush>,
    stall: Option<StallWatch>,
    writer: Option<JoinHandle<()>>,
    flusher: Option<JoinHandle<()>>,
}

/// What the writer goes on from.
pub(crate) struct Start {
    pub(crate) segment: Arc<Segment>,
    pub(crate) end: LogPosition,
    pub(crate) chain: u32,
    pub(crate) last: Option<LogId>,
    pub(crate) files: SmallFiles,
    pub(crate) progress: Progress,
}

/// Starts the threads.
pub(crate) fn spawn(log: Arc<Log>, queue: Arc<Queue>, start: Start, under_way: Arc<UnderWay>) -> Result<Threads> {
    let flush = Arc::new(Flush::new(Arc::clone(&log), start.progress, start.end));
    let writer = Writer {
        log: Arc::clone(&log),
        flush: Arc::clone(&flush),
        files: start.files,
        segment: start.segment,
        end: start.end,
        chain: start.chain,
        last: start.last,
        stage: Vec::with_capacity(STAGE_BYTES_MAX),
        stage_at: LogPosition::ZERO,
        staged: Vec::new(),
        round: Vec::new(),
        round_must_sync: false,
        sync_since: None,
        closed: false,
    };
    let mut threads = Threads {
        log: Arc::clone(&log),
        queue: Arc::clone(&queue),
        flush: Arc::clone(&flush),
        writer: None,
        flusher: None,
        stall: None,
    };
    let failed = |e| Error::io("starting a thread for", &log.options.dir, e);
    let name = |what| std::thread::Builder::new().name(format!("log-{what}"));
    let guard = || PanicGuard { log: Arc::clone(&log), queue: Arc::clone(&queue) };
    let (for_failure, for_latch) = (Arc::clone(&flush), Arc::clone(&log));
    let watched = Watched {
        files: Arc::clone(&log.files),
        under_way,
        limits: log.options.stall,
        pace: Arc::clone(&log.pace),
        fail: Arc::new(move |error| for_failure.fail(error)),
        is_closed: Arc::new(move || for_latch.check_latch().is_err()),
    };
    let (flusher_guard, writer_guard) = (guard(), guard());
    let run_flusher = move || {
        let _guard = flusher_guard;
        flush.run();
    };
    let run_writer = move || {
        let guard = writer_guard;
        writer.run(&guard.queue);
    };
    threads.flusher = Some(name("flush").spawn(run_flusher).map_err(failed)?);
    threads.stall = Some(StallWatch::start(watched).map_err(failed)?);
    threads.writer = Some(name("write").spawn(run_writer).map_err(failed)?);
    Ok(threads)
}

impl Threads {
    fn join(&mut self) {
        drop(self.queue.close());
        self.log.preparer.give_up();
        drop(self.stall.take());
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
        self.flush.stop();
        if let Some(flusher) = self.flusher.take() {
            let _ = flusher.join();
        }
        self.log.preparer.stop();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.join();
    }
}

impl Writer {
    fn run(mut self, queue: &Queue) {
        self.prepare_next();
        while let Some(ops) = queue.take() {
            for op in ops {
                self.perform(op);
                if self.closed {
                    drop(queue.close());
                    return;
                }
            }
            self.settle();
        }
    }

    fn perform(&mut self, op: Op) {
        match op {
            Op::Write(write) => self.write(write),
            Op::SaveVote(vote, reply) => {
                self.settle();
                let result = self.save_vote(vote);
                reply(result);
            }
            Op::Truncate(keep, reply) => {
                self.settle();
                let result = self.truncate(keep);
                reply(result);
            }
            Op::Purge(id) => {
                self.settle();
                if let Err(error) = self.purge(id) {
                    // Readers no longer see the entries; the next start frees the space.
                    tracing::warn!(%error, "purged segments could not be freed");
                }
            }
            Op::Reset(purged, reply) => {
                self.settle();
                let result = self.reset(purged);
                reply(result);
            }
            Op::Replace(replacement, reply) => {
                self.settle();
                let result = self.replace(replacement);
                reply(result);
            }
            Op::Adopt { node_id, generation, reply } => {
                self.settle();
                let result = self.guarded(|this| this.files.node.adopt(node_id, generation));
                reply(result);
            }
            Op::SetFlush { is_sync, said_at, reply } => {
                self.settle();
                let result = if is_sync { self.start_sync() } else { self.end_sync(said_at) };
                reply(result);
            }
            Op::Close(reply) => {
                self.settle();
                let result = self.close();
                self.closed = true;
                reply(result);
            }
        }
    }

    /// Runs a step; a failure of a write or sync in it closes the log.
    fn guarded(&mut self, step: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.log.check_latch()?;
        step(self).inspect_err(|error| self.flush.fail(error))
    }

    // ---- appends ----

    fn write(&mut self, write: Write) {
        self.round.push(write.done);
        self.round_must_sync |= write.must_sync;
        let starts_sync = write.starts_sync;
        for record in &write.records {
            if self.guarded(|this| this.stage(record)).is_err() {
                return self.refuse_round();
            }
        }
        if self.flush.unflushed_bytes() + self.stage.len() as u64 > self.sync_bytes_max() {
            self.round_must_sync = true;
            self.settle();
        }
        if starts_sync.is_some() && self.sync_since < starts_sync {
            self.sync_since = starts_sync;
            // Whoever hears that this entry is here may rely on its being obeyed, so that comes first. A failure closes
            // the log, and the answers say so.
            let _ = self.start_sync();
            self.settle();
        }
    }

    /// From here on nothing counts as done that is not on disk, nor does anything before.
    fn start_sync(&mut self) -> Result<()> {
        if self.log.flush_mode() == FlushMode::Sync {
            return Ok(());
        }
        self.guarded(Self::write_stage)?;
        self.log.set_flush_is_sync(true);
        self.flush.sync()?;
        // The file last: before, this store may have acknowledged what is not on disk.
        self.guarded(|this| this.files.node.set_flush(true))
    }

    fn end_sync(&mut self, said_at: LogIndex) -> Result<()> {
        if self.log.flush_mode() != FlushMode::Sync || self.sync_since.is_some_and(|since| since > said_at) {
            return Ok(());
        }
        // The file first: from then on a crash of the operating system costs the identity.
        self.guarded(|this| this.files.node.set_flush(false))?;
        self.log.set_flush_is_sync(false);
        Ok(())
    }

    fn sync_bytes_max(&self) -> u64 {
        match self.log.flush_mode() {
            FlushMode::Sync => SYNC_BYTES_MAX.min(self.log.options.unflushed_bytes_max),
            FlushMode::Async { .. } => self.log.options.unflushed_bytes_max,
        }
    }

    /// Lays out one record behind those that wait, writing them first if it does not fit.
    fn stage(&mut self, record: &Record) -> Result<()> {
        let base = self.log.layout.segment_base(record.position);
        if base != self.segment.base {
            assert_eq!(base, self.log.layout.next_base(self.segment.base));
            self.roll()?;
        }
        self.open_segment(record.id.index)?;
        assert_eq!(record.position, self.end, "a record goes where the log ends");
        assert!(self.last.is_none_or(|last| last.index.next() == record.id.index));
        let size = usize::try_from(record.stored_bytes()).expect("a record fits a segment");
        if !self.stage.is_empty() && self.stage.len() + size > STAGE_BYTES_MAX {
            self.write_stage()?;
        }
        let draft = Draft {
            position: record.position,
            id: record.id,
            kind: Kind::Body(record.kind),
            chain: self.chain,
            payload: &record.payload,
        };
        self.put(&draft)?;
        self.last = Some(record.id);
        Ok(())
    }

    fn put(&mut self, draft: &Draft<'_>) -> Result<()> {
        let (header, bytes) = draft.seal(self.segment.seed);
        if self.stage.is_empty() {
            self.stage_at = draft.position;
        }
        self.stage.extend_from_slice(&bytes);
        self.stage.extend_from_slice(draft.payload);
        let padded = self.stage.len().next_multiple_of(record::ALIGN as usize);
        self.stage.resize(padded, 0);
        self.chain = header.payload_crc;
        self.end = header.end();
        self.staged.push(header);
        Ok(())
    }

    /// Writes where the records of a fresh segment start.
    fn open_segment(&mut self, first_index: LogIndex) -> Result<()> {
        if self.segment.content().opening.is_some() {
            return Ok(());
        }
        if self.end == self.segment.base {
            self.end = self.segment.base.plus(segment::HEADER_BYTES);
        }
        let offset = self.segment.offset(self.end);
        let first_offset = u32::try_from(offset).expect("an offset in a segment fits 32 bits");
        self.segment
            .write_opening(Opening { first_index, first_offset, chain: self.chain })
            .map_err(|e| Error::io("writing", self.segment.region.path(), e))
    }

    /// Brings the laid out records to the operating system, in one call.
    fn write_stage(&mut self) -> Result<()> {
        if self.staged.is_empty() {
            return Ok(());
        }
        self.segment
            .region
            .write(self.segment.offset(self.stage_at), &self.stage)
            .map_err(|e| Error::io("writing", self.segment.region.path(), e))?;
        self.segment.note_written(&self.staged);
        self.flush.note_written(&self.segment, self.end);
        let last = self.staged.iter().rev().find(|header| header.kind != Kind::Pad);
        if let Some(last) = last {
            self.log.note_written(last.id.index.next());
        }
        self.stage.clear();
        // A single large record must not keep its room for ever.
        self.stage.shrink_to(STAGE_BYTES_MAX);
        self.staged.clear();
        Ok(())
    }

    /// Has the segment behind the open one allocated, if it is not.
    fn prepare_next(&self) {
        self.log.preparer.prepare(self.log.layout.next_base(self.segment.base));
    }

    /// Closes the open segment and goes on in the next.
    fn roll(&mut self) -> Result<()> {
        let next_base = self.log.layout.next_base(self.segment.base);
        if self.segment.content().sealed {
            // Closed by an earlier run, which found no room for another.
            self.segment = self.add_segment(next_base)?;
            return Ok(());
        }
        let last = self.last.expect("a segment is closed only behind an entry");
        self.open_segment(last.index.next())?;
        let pad = Draft::pad(self.end, last, self.chain);
        self.put(&pad)?;
        // Behind the answers: whoever waits for this roll waits for the records of two segments, and for nothing else.
        self.flush.owe_footer(&self.segment);
        self.write_stage()?;
        let resume = ResumePoint { position: next_base.plus(segment::HEADER_BYTES), chain: self.chain };
        self.segment.region.seal();
        let sealed = SealedSegment { base: self.segment.base, last, resume };
        self.segment = self.add_segment(next_base)?;
        self.end = resume.position;
        self.log.sealed.send_replace(Some(sealed));
        Ok(())
    }

    /// Takes a prepared segment into the log.
    fn add_segment(&mut self, base: LogPosition) -> Result<Arc<Segment>> {
        let region = self.log.preparer.take(base)?;
        region.warm().map_err(|e| Error::io("mapping", region.path(), e))?;
        let segment = Arc::new(Segment::empty(&self.log.layout, base, region));
        self.log.add_segment(Arc::clone(&segment));
        Ok(segment)
    }

    /// Ends a round: writes what is laid out, syncs as the mode asks, answers.
    fn settle(&mut self) {
        let written = self.guarded(Self::write_stage);
        let must_sync = self.log.flush_mode() == FlushMode::Sync || self.round_must_sync;
        self.round_must_sync = false;
        if self.round.is_empty() {
            return;
        }
        let result = match written {
            Ok(()) if must_sync => self.flush.sync(),
            result => result,
        };
        if result.is_err() {
            return self.refuse_round();
        }
        let round = std::mem::take(&mut self.round);
        if must_sync {
            self.flush.answer_held();
            round.into_iter().for_each(|done| done(Ok(())));
        } else {
            self.flush.answer_written(round);
        }
        // Behind the answers: it may start a thread.
        self.prepare_next();
    }

    fn refuse_round(&mut self) {
        self.round_must_sync = false;
        for done in std::mem::take(&mut self.round) {
            done(Err(self.flush.latch_error()));
        }
    }

    // ---- everything else ----

    fn save_vote(&mut self, vote: Vote) -> Result<()> {
        self.flush.sync()?;
        self.guarded(|this| this.files.hard_state.save(vote))?;
        self.log.set_vote(vote);
        Ok(())
    }

    fn truncate(&mut self, keep: Option<LogIndex>) -> Result<()> {
        // What remains must not become less durable than it was.
        self.flush.sync()?;
        self.guarded(|this| this.cut_behind(keep))
    }

    fn cut_behind(&mut self, keep: Option<LogIndex>) -> Result<()> {
        let (purged, segments, committed_end) = {
            let state = self.log.state();
            (state.purged, state.segments.clone(), state.committed_end)
        };
        let keep = keep.filter(|keep| purged.is_none_or(|purged| *keep > purged.index));
        let (last, end, chain) = match keep {
            Some(index) => {
                let segment = segments
                    .iter()
                    .rfind(|segment| segment.first_index().is_some_and(|first| first <= index))
                    .expect("the entry to keep is held");
                let header = segment.find(index, committed_end)?;
                (Some(header.id), header.end(), header.payload_crc)
            }
            None => {
                let resume = match purged {
                    Some(id) => self.resume_behind_purged(id)?,
                    None => ResumePoint { position: LogPosition::new(segment::HEADER_BYTES), chain: 0 },
                };
                (purged, resume.position, resume.chain)
            }
        };
        let old_end = self.end;
        if end >= old_end {
            return Ok(());
        }
        assert!(self.stage.is_empty());
        let base = self.log.layout.segment_base(end);
        // What is cut open again is not closed, and a footer would tell the next start that it is.
        self.flush.forget_footers(|closed| closed >= base);
        // First the intention: from here on a crash cannot bring any of it back.
        self.flush.save_progress(end, Some(end))?;
        let gone = self.log.cut(last, end, chain);
        self.log.preparer.discard(base)?;
        let names: Vec<String> = gone.iter().rev().map(|segment| segment::file_name(segment.base)).collect();
        self.log.files.remove_in_order(&names)?;
        let open = self.log.state().segments.last().filter(|segment| segment.base == base).cloned();
        match open {
            Some(open) => {
                let keep_opening = open.content().opening.is_some();
                erase_written_behind(&self.log.layout, &open, end, keep_opening)?;
                self.segment = open;
            }
            None => self.segment = self.add_segment(base)?,
        }
        self.segment.region.warm().map_err(|e| Error::io("mapping", self.segment.region.path(), e))?;
        self.end = end;
        self.chain = chain;
        self.last = last;
        self.flush.restart_at(end);
        self.prepare_next();
        self.flush.save_progress(end, None)
    }

    /// Where the log goes on behind the purged entry, whether or not that is durable yet.
    fn resume_behind_purged(&self, id: LogId) -> Result<ResumePoint> {
        match self.files.purged.filter(|purged| purged.id == id) {
            Some(purged) => Ok(purged.resume),
            None => self.log.resume_point_after(id.index),
        }
    }

    fn purge(&mut self, id: LogId) -> Result<()> {
        self.log.check_latch()?;
        if self.files.purged.is_some_and(|purged| purged.id.index >= id.index) {
            return Ok(());
        }
        // What the mark points behind must be there as surely as the mark.
        self.flush.sync()?;
        let resume = self.log.resume_point_after(id.index)?;
        // The open segment is never dropped, so the mark must not point beyond it.
        let purged = Purged { id, resume, reset: false };
        self.guarded(|this| {
            this.files.purged_file.save(purged)?;
            this.files.purged = Some(purged);
            Ok(())
        })?;
        let gone = self.log.drop_segments_below(resume.position);
        self.flush.forget_footers(|closed| gone.iter().any(|segment| segment.base == closed));
        let names: Vec<String> = gone.iter().map(|segment| segment::file_name(segment.base)).collect();
        self.log.files.remove(&names)
    }

    fn reset(&mut self, purged: Purged) -> Result<()> {
        self.flush.sync()?;
        self.guarded(|this| {
            // A start that finds the first mark throws all segments away; one that finds the second
            // relies on their being gone.
            let intent = Purged { reset: true, ..purged };
            this.files.purged_file.save(intent)?;
            this.files.purged = Some(intent);
            let gone = this.log.reset(purged);
            this.flush.forget_footers(|_| true);
            this.log.preparer.discard(LogPosition::ZERO)?;
            let names: Vec<String> = gone.iter().map(|segment| segment::file_name(segment.base)).collect();
            this.log.files.remove(&names)?;
            this.end = purged.resume.position;
            this.chain = purged.resume.chain;
            this.last = Some(purged.id);
            this.flush.restart_at(this.end);
            this.flush.save_progress(this.end, None)?;
            this.segment = this.add_segment(this.log.layout.segment_base(this.end))?;
            this.prepare_next();
            this.files.purged_file.save(purged)?;
            this.files.purged = Some(purged);
            Ok(())
        })
    }

    fn close(&mut self) -> Result<()> {
        self.flush.sync()?;
        self.flush.write_footers()?;
        let end = self.log.state().flushed_end;
        self.flush.save_progress(end, None)?;
        self.log.preparer.stop();
        self.guarded(|this| this.files.node.mark_clean())
    }
}

/// Makes everything behind `end` in an open segment read as never written, durably.
///
/// For a start, which cannot tell zeros on disk from zeros that were lost on their way there.
pub(crate) fn erase_behind(layout: &Layout, segment: &Segment, end: LogPosition, keep_opening: bool) -> Result<()> {
    erase(layout, segment, end, keep_opening, |_, _| Ok(true))
}

/// The same, for whoever wrote the segment: what was never written costs nothing.
fn erase_written_behind(layout: &Layout, segment: &Segment, end: LogPosition, keep_opening: bool) -> Result<()> {
    let region = &segment.region;
    erase(layout, segment, end, keep_opening, |start, to| Ok(region.next_data(start)?.is_some_and(|data| data < to)))
}

/// From the end backwards and in steps, so that whatever a crash leaves is a prefix of the records
/// and then zeros.
fn erase(
    layout: &Layout,
    segment: &Segment,
    end: LogPosition,
    keep_opening: bool,
    holds_data: impl Fn(u64, u64) -> io::Result<bool>,
) -> Result<()> {
    const STEP: u64 = 1 << 20;
    let failed = |e| Error::io("zeroing", segment.region.path(), e);
    let from = segment.offset(end);
    let mut to = layout.segment_bytes;
    while to > from {
        let start = to.saturating_sub(STEP).max(from);
        if holds_data(start, to).map_err(failed)? {
            segment.region.zero(start, to - start).map_err(failed)?;
        }
        to = start;
    }
    if !keep_opening {
        segment.region.zero(512, 512).map_err(failed)?;
    }
    segment.region.sync().map_err(|e| Error::io("syncing", segment.region.path(), e))
}
