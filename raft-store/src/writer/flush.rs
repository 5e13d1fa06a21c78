//! What is written and what is flushed: group commit, the latch, and the flusher.
//!
//! The writer syncs through [`Flush::sync`] in synchronous mode, the flusher in asynchronous mode; one at a time.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::queue::Done;
use crate::error::{Error, Result};
use crate::ids::LogPosition;
use crate::latch_note::LatchNote;
use crate::options::FlushMode;
use crate::progress::{Hints, Progress};
use crate::segment::Segment;
use crate::segmented_log::Log;

/// Syncing `progress`: at the latest this long after it changed, or this long after it last changed.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
const PROGRESS_IDLE: Duration = Duration::from_millis(100);
/// And at the latest this far behind.
const PROGRESS_LAG_BYTES: u64 = 64 << 20;

#[derive(Default)]
struct FlushState {
    written_end: LogPosition,
    flushed_end: LogPosition,
    /// Segments with bytes that are not flushed, in order.
    dirty: Vec<Arc<Segment>>,
    /// When the oldest byte that is not flushed was written.
    oldest: Option<Instant>,
    /// Appends that are written, and whose answer waits for the disk to come closer.
    held: VecDeque<Done>,
    progress_dirty: bool,
    /// Segments that were closed and have no footer yet, in order.
    closed: Vec<Arc<Segment>>,
    /// A segment was closed, and the disk has it.
    rolled: bool,
    stop: bool,
}

impl FlushState {
    /// The first segment that has no footer although it is closed and on disk.
    fn footer_due(&self) -> Option<Arc<Segment>> {
        let closed = self.closed.first()?;
        let content = closed.content();
        (content.sealed && content.end <= self.flushed_end).then(|| Arc::clone(closed))
    }
}

/// What is written and what is flushed, shared by the writer and the flusher.
pub(super) struct Flush {
    log: Arc<Log>,
    /// Held across each sync.
    progress: Mutex<Progress>,
    /// Held while a footer is written and synced.
    footer: Mutex<()>,
    state: Mutex<FlushState>,
    wake: Condvar,
}

impl Flush {
    pub(super) fn new(log: Arc<Log>, progress: Progress, end: LogPosition) -> Self {
        let state = FlushState { written_end: end, flushed_end: end, ..FlushState::default() };
        let (progress, footer) = (Mutex::new(progress), Mutex::new(()));
        Self { log, progress, footer, state: Mutex::new(state), wake: Condvar::new() }
    }

    /// Closes the log, tells everybody who waits, and leaves a note for the next start.
    pub(super) fn fail(&self, error: &Error) {
        let reason = error.to_string();
        let reason = match error {
            Error::Io { source, .. } => format!("{reason}: {source}"),
            _ => reason,
        };
        let first = self.log.latch(&reason);
        let held = std::mem::take(&mut self.state.lock().held);
        for done in held {
            done(Err(self.latch_error()));
        }
        // Last: a disk that hangs holds up whoever writes to it.
        if first {
            self.leave_note(&reason);
        }
    }

    pub(super) fn latch_error(&self) -> io::Error {
        self.log.check_latch().map_or_else(io::Error::from, |()| io::Error::other("the log failed"))
    }

    fn leave_note(&self, reason: &str) {
        let (last, committed) = {
            let state = self.log.state();
            (state.last, state.committed)
        };
        let note = LatchNote { reason: reason.to_owned(), last, committed };
        note.leave(&*self.log.files, &self.log.options, &self.log.store_uuid);
    }

    /// Takes note of bytes that have just been written to `segment`.
    pub(super) fn note_written(&self, segment: &Arc<Segment>, end: LogPosition) {
        let mut state = self.state.lock();
        state.written_end = end;
        if state.dirty.last().is_none_or(|last| last.base != segment.base) {
            state.dirty.push(Arc::clone(segment));
        }
        if state.oldest.is_none() {
            state.oldest = Some(Instant::now());
            if self.log.flush_mode() != FlushMode::Sync {
                self.wake.notify_all();
            }
        }
    }

    pub(super) fn unflushed_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.written_end.get() - state.flushed_end.get()
    }

    /// On return everything written before the call is on disk.
    ///
    /// The hints are written before anybody is told: a file system that was shut down under the sync refuses that write,
    /// whatever the sync said.
    pub(super) fn sync(&self) -> Result<()> {
        let mut progress = self.progress.lock();
        self.log.check_latch()?;
        let (end, dirty) = {
            let state = self.state.lock();
            (state.written_end, state.dirty.clone())
        };
        if dirty.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        for segment in &dirty {
            let began = Instant::now();
            if let Err(e) = segment.region.sync() {
                let error = Error::io("syncing", segment.region.path(), e);
                self.fail(&error);
                return Err(error);
            }
            self.log.sync_times.note(began.elapsed());
        }
        // It may have hung for so long that the log was closed meanwhile: then it counts for nothing.
        self.log.check_latch()?;
        let newest = dirty.last().map(|segment| segment.base);
        {
            let mut state = self.state.lock();
            state.flushed_end = end;
            let clean = state.written_end == end;
            // Sealed segments that were synced are done. The newest one may have got more bytes since.
            state.dirty.retain(|segment| Some(segment.base) >= newest && !(clean && Some(segment.base) == newest));
            state.oldest = (!clean).then_some(started);
            if state.footer_due().is_some() || dirty.len() > 1 {
                state.rolled = true;
                self.wake.notify_all();
            }
        }
        self.log.note_flushed(end);
        self.note_progress(&mut progress, end, None)
    }

    /// Takes note of a segment that is about to be closed.
    pub(super) fn owe_footer(&self, segment: &Arc<Segment>) {
        segment.set_owes_footer(true);
        self.state.lock().closed.push(Arc::clone(segment));
    }

    /// On return no footer is written any more to the segments whose base `goes`.
    pub(super) fn forget_footers(&self, goes: impl Fn(LogPosition) -> bool) {
        let _none_under_way = self.footer.lock();
        self.state.lock().closed.retain(|segment| {
            let stays = !goes(segment.base);
            segment.set_owes_footer(stays);
            stays
        });
    }

    /// On return the closed segments that are on disk have their footers there, too.
    ///
    /// Nothing but the footer is unsynced in them, so nobody else is told of a failure.
    pub(super) fn write_footers(&self) -> Result<()> {
        loop {
            let _under_way = self.footer.lock();
            let Some(segment) = self.state.lock().footer_due() else { return Ok(()) };
            self.log.check_latch()?;
            let written = segment.write_footer(&self.log.layout).and_then(|()| segment.region.sync());
            if let Err(e) = written {
                let error = Error::io("writing the footer of", segment.region.path(), e);
                self.fail(&error);
                return Err(error);
            }
            segment.set_owes_footer(false);
            self.state.lock().closed.retain(|closed| !Arc::ptr_eq(closed, &segment));
        }
    }

    /// Writes the hints without a sync.
    fn note_progress(&self, progress: &mut Progress, flushed_end: LogPosition, cut: Option<LogPosition>) -> Result<()> {
        let hints = self.hints(flushed_end, cut);
        let written = progress
            .note(hints)
            .and_then(|()| if progress.lag_bytes() >= PROGRESS_LAG_BYTES { progress.sync() } else { Ok(()) });
        if let Err(error) = written {
            self.fail(&error);
            return Err(error);
        }
        if progress.is_dirty() {
            let mut state = self.state.lock();
            if !state.progress_dirty {
                state.progress_dirty = true;
                self.wake.notify_all();
            }
        }
        Ok(())
    }

    fn hints(&self, flushed_end: LogPosition, cut: Option<LogPosition>) -> Hints {
        let state = self.log.state();
        Hints { flushed_end, committed: state.committed, applied: state.applied, cut }
    }

    /// Writes and syncs the hints.
    pub(super) fn save_progress(&self, flushed_end: LogPosition, cut: Option<LogPosition>) -> Result<()> {
        let mut progress = self.progress.lock();
        self.log.check_latch()?;
        let hints = self.hints(flushed_end, cut);
        progress.save(hints).inspect_err(|error| self.fail(error))
    }

    /// Starts over at `end`, where everything is on disk.
    pub(super) fn restart_at(&self, end: LogPosition) {
        let mut state = self.state.lock();
        state.written_end = end;
        state.flushed_end = end;
        state.dirty.clear();
        state.oldest = None;
    }

    /// Answers written appends, or holds the answers while the disk is too far behind.
    pub(super) fn answer_written(&self, done: Vec<Done>) {
        let mut state = self.state.lock();
        let late = state.oldest.is_some_and(|oldest| oldest.elapsed() > self.log.options.flush_lag_max);
        if late || !state.held.is_empty() {
            // Whoever closed the log a moment ago has told those that were held then, and comes back for nobody.
            if self.log.check_latch().is_ok() {
                state.held.extend(done);
                return;
            }
            drop(state);
            return done.into_iter().for_each(|done| done(Err(self.latch_error())));
        }
        drop(state);
        done.into_iter().for_each(|done| done(Ok(())));
    }

    pub(super) fn answer_held(&self) {
        let held = std::mem::take(&mut self.state.lock().held);
        held.into_iter().for_each(|done| done(Ok(())));
    }

    /// The flusher: syncs at an interval in asynchronous mode, and `progress` in both.
    pub(super) fn run(&self) {
        let mut progress_changed: Option<Instant> = None;
        let mut last_end = LogPosition::ZERO;
        loop {
            let due = {
                let mut state = self.state.lock();
                loop {
                    if state.stop {
                        return;
                    }
                    let now = Instant::now();
                    let sync_at = match self.log.flush_mode() {
                        FlushMode::Async { interval } => state.oldest.map(|oldest| oldest + interval),
                        FlushMode::Sync => None,
                    };
                    if state.progress_dirty && progress_changed.is_none() {
                        progress_changed = Some(now);
                        last_end = state.flushed_end;
                    }
                    let idle_at = progress_changed.map(|_| now + PROGRESS_IDLE);
                    let wake_at = [sync_at, idle_at].into_iter().flatten().min();
                    match wake_at {
                        None => self.wake.wait(&mut state),
                        Some(at) if at <= now => {}
                        Some(at) => {
                            let _ = self.wake.wait_until(&mut state, at);
                            if state.stop {
                                return;
                            }
                        }
                    }
                    let now = Instant::now();
                    let sync = sync_at.is_some_and(|at| at <= now);
                    let idle = progress_changed.is_some() && state.flushed_end == last_end;
                    let old = progress_changed.is_some_and(|since| now - since >= PROGRESS_INTERVAL);
                    let progress = idle_at.is_some_and(|at| at <= now) && (idle || old);
                    last_end = state.flushed_end;
                    let rolled = std::mem::take(&mut state.rolled);
                    if sync || progress || rolled {
                        break (sync, progress, rolled);
                    }
                }
            };
            let (sync, progress, rolled) = due;
            if sync && self.sync().is_ok() {
                self.answer_held();
            }
            // A failure has closed the log.
            if rolled && self.write_footers().is_ok() {
                // Takes long for one that was read a lot, so the writer does not do it.
                self.log.cool_old_segments();
            }
            if progress {
                progress_changed = None;
                self.state.lock().progress_dirty = false;
                let end = self.state.lock().flushed_end;
                // The hints may have moved since the last group commit. A failure has closed the log.
                let _ = self.save_progress(end, None);
            }
            if self.log.check_latch().is_err() {
                // Nothing is left to do: whatever comes is refused by the writer.
                let mut state = self.state.lock();
                while !state.stop {
                    self.wake.wait(&mut state);
                }
                return;
            }
        }
    }

    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_all();
    }
}
