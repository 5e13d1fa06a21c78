//! Makes segments before they are needed, so that going on in one costs no append anything and a full disk is known
//! before a record has its place.
//!
//! One segment behind the open one is always allocated. An append first [`reserve`](Preparer::reserve)s the segment that
//! its last record will lie in; while the disk is full it waits there, with no record placed and nothing half written.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, watch};

use crate::error::{Error, Result};
use crate::ids::LogPosition;
use crate::options::{Layout, Preparation};
use crate::region::{Files, Region};
use crate::segment;

/// How long a failed attempt keeps from the next one.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Owns the segments that are not in use yet.
#[derive(Debug)]
pub(crate) struct Preparer {
    files: Arc<dyn Files>,
    layout: Layout,
    preparation: Preparation,
    state: Mutex<State>,
    changed: Condvar,
    /// Base of the newest segment there is, the open one included.
    newest: AtomicU64,
    /// Told when `newest` moves, and at the end.
    moved: Notify,
    /// Whether there was no room for the next segment at the last attempt.
    short: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    /// In order, without a gap, up to the newest.
    ready: VecDeque<(LogPosition, Arc<dyn Region>)>,
    /// Segments up to this base are wanted.
    wanted: LogPosition,
    /// Whether the helper thread runs, which makes them.
    running: bool,
    /// Making one failed for another reason than a full disk: whoever needs it next is told.
    broken: bool,
    stopped: bool,
}

impl Preparer {
    pub(crate) fn new(files: Arc<dyn Files>, layout: Layout, preparation: Preparation) -> Self {
        Self {
            files,
            layout,
            preparation,
            state: Mutex::default(),
            changed: Condvar::new(),
            newest: AtomicU64::new(0),
            moved: Notify::new(),
            short: watch::Sender::new(false),
        }
    }

    /// Whether there was no room for the next segment when it was last tried to make it.
    pub(crate) fn short(&self) -> watch::Receiver<bool> {
        self.short.subscribe()
    }

    /// Takes a segment that was prepared by an earlier run. It must follow the newest.
    pub(crate) fn adopt(&self, base: LogPosition, region: Arc<dyn Region>) {
        self.state.lock().ready.push_back((base, region));
        self.set_newest(base);
    }

    /// Takes note that the log's own segments end with the one at `base`.
    pub(crate) fn set_newest(&self, base: LogPosition) {
        self.newest.store(base.get(), Ordering::Release);
        self.moved.notify_waiters();
    }

    /// Whether the segment at `base` is allocated.
    pub(crate) fn has(&self, base: LogPosition) -> bool {
        self.newest.load(Ordering::Acquire) >= base.get()
    }

    /// Starts to make what is missing up to the segment at `base`.
    pub(crate) fn prepare(self: &Arc<Self>, base: LogPosition) {
        if self.has(base) {
            return;
        }
        let mut state = self.state.lock();
        state.wanted = state.wanted.max(base);
        if state.running || state.broken || state.stopped {
            return;
        }
        state.running = true;
        drop(state);
        let this = Arc::clone(self);
        if std::thread::Builder::new().name("log-prepare".into()).spawn(move || this.run()).is_err() {
            self.state.lock().running = false;
        }
    }

    /// The helper thread: ends when there is nothing left to make.
    fn run(&self) {
        let mut state = self.state.lock();
        while !state.stopped && !state.broken && !self.has(state.wanted) {
            let base = self.layout.next_base(LogPosition::new(self.newest.load(Ordering::Acquire)));
            drop(state);
            let made = self.create(base);
            state = self.state.lock();
            match made {
                Ok(region) => {
                    self.short.send_if_modified(|short| std::mem::replace(short, false));
                    state.ready.push_back((base, region));
                    self.set_newest(base);
                }
                Err(Error::NoSpace { .. }) => {
                    if !self.short.send_replace(true) {
                        tracing::warn!(%base, "there is no room for the next segment of the log");
                    }
                    if !state.stopped {
                        self.changed.wait_for(&mut state, RETRY_INTERVAL);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "the next segment cannot be prepared");
                    state.broken = true;
                    self.moved.notify_waiters();
                }
            }
        }
        state.running = false;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until the segment at `base` is allocated, however long the disk is full.
    ///
    /// # Errors
    /// [`Error::Closed`] once nothing is made any more.
    pub(crate) async fn reserve(self: &Arc<Self>, base: LogPosition) -> Result<()> {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.has(base) {
                return Ok(());
            }
            {
                let state = self.state.lock();
                if state.stopped {
                    return Err(Error::Closed);
                }
                if state.broken {
                    // The writer tries once more itself, and closes the log if that fails too.
                    return Ok(());
                }
            }
            self.prepare(base);
            moved.await;
        }
    }

    /// Whether nothing is made any more.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// The segment at `base`: the prepared one, or one made now.
    pub(crate) fn take(&self, base: LogPosition) -> Result<Arc<dyn Region>> {
        if let Some(region) = self.pop(base) {
            return Ok(region);
        }
        self.settle();
        if let Some(region) = self.pop(base) {
            return Ok(region);
        }
        self.remove_ready()?;
        let region = self.create(base)?;
        self.state.lock().broken = false;
        self.set_newest(base);
        Ok(region)
    }

    fn pop(&self, base: LogPosition) -> Option<Arc<dyn Region>> {
        let mut state = self.state.lock();
        if state.ready.front().is_none_or(|(ready, _)| *ready != base) {
            return None;
        }
        state.ready.pop_front().map(|(_, region)| region)
    }

    /// Removes what is prepared: the log's own segments end with the one at `newest`.
    pub(crate) fn discard(&self, newest: LogPosition) -> Result<()> {
        self.settle();
        self.set_newest(newest);
        self.remove_ready()
    }

    fn remove_ready(&self) -> Result<()> {
        let ready = std::mem::take(&mut self.state.lock().ready);
        let names: Vec<String> = ready.iter().rev().map(|(base, _)| segment::file_name(*base)).collect();
        self.files.remove_in_order(&names)
    }

    /// Waits until nothing is being made. What waits for room is given up until it is wanted again.
    fn settle(&self) {
        let mut state = self.state.lock();
        state.wanted = LogPosition::ZERO;
        self.changed.notify_all();
        while state.running {
            self.changed.wait(&mut state);
        }
    }

    /// Makes no more and lets go of whoever waits.
    pub(crate) fn give_up(&self) {
        self.state.lock().stopped = true;
        self.moved.notify_waiters();
        // Whoever waits for room looks again.
        self.short.send_modify(|_| ());
        self.changed.notify_all();
    }

    /// The same, and waits until nothing is being made: nobody may touch the directory once the store has let go of it.
    pub(crate) fn stop(&self) {
        self.give_up();
        self.settle();
    }

    fn create(&self, base: LogPosition) -> Result<Arc<dyn Region>> {
        let head = segment::encode_head(&self.layout.cluster_id, base, self.layout.segment_bytes);
        self.files.create(&segment::file_name(base), self.layout.segment_bytes, &head, self.preparation)
    }
}
