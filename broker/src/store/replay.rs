//! How far a start has come with applying the log again.
//!
//! Most starts apply a part of one segment. A start whose derived files are gone, damaged or stale builds them from all
//! of the log, which takes a while: this says how long.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::log::Log;
use super::reput::Dispatched;

/// Follows what a start applies again. Cheap to clone.
#[derive(Clone)]
pub struct Replay {
    inner: Arc<Inner>,
}

struct Inner {
    log: Arc<dyn Log>,
    dispatched: Arc<Dispatched>,
    /// Index after the last entry dispatched.
    dispatched_end: watch::Receiver<u64>,
    rebuilds: bool,
    /// Positions between which the log is applied again.
    from: u64,
    to: u64,
    /// The last entry in the log at the start.
    last: Option<u64>,
    started: Instant,
}

/// A moment of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayProgress {
    /// Queues and index are built from nothing. If not, only what they lack is added to them.
    pub rebuilds: bool,
    /// Bytes of the log gone through.
    pub done_bytes: u64,
    /// Bytes of the log to go through in all.
    pub total_bytes: u64,
    /// Messages put into their queues.
    pub messages: u64,
    /// Since the replay began.
    pub elapsed: Duration,
}

impl Replay {
    /// `last` is the last entry in the log, and `from` the position behind the entry that the state is as of.
    pub(crate) fn new(
        log: Arc<dyn Log>,
        dispatched: Arc<Dispatched>,
        dispatched_end: watch::Receiver<u64>,
        rebuilds: bool,
        from: u64,
    ) -> Self {
        let (last, to) = (log.last_index(), log.end());
        let from = from.max(log.start().unwrap_or(0)).min(to);
        let started = Instant::now();
        Self { inner: Arc::new(Inner { log, dispatched, dispatched_end, rebuilds, from, to, last, started }) }
    }

    /// How far it is, or none once everything in the log at the start can be read, or has left the log again.
    ///
    /// The last entries of a log may wait for a leader to commit them.
    pub fn progress(&self, now: Instant) -> Option<ReplayProgress> {
        let inner = &*self.inner;
        // What a new leader has cut off is not waited for.
        let last = inner.last.min(inner.log.last_index())?;
        if *inner.dispatched_end.borrow() > last {
            return None;
        }
        let reached = inner.dispatched.physical_end.load(Ordering::Acquire).clamp(inner.from, inner.to);
        Some(ReplayProgress {
            rebuilds: inner.rebuilds,
            done_bytes: reached - inner.from,
            total_bytes: inner.to - inner.from,
            messages: inner.dispatched.messages.load(Ordering::Relaxed),
            elapsed: now.saturating_duration_since(inner.started),
        })
    }
}

impl ReplayProgress {
    /// Of a hundred; never a hundred while something is left.
    pub fn percent(&self) -> u8 {
        let percent = u128::from(self.done_bytes) * 100 / u128::from(self.total_bytes.max(1));
        u8::try_from(percent).unwrap_or(u8::MAX).min(99)
    }

    /// Bytes of the log still to go through.
    pub fn left_bytes(&self) -> u64 {
        self.total_bytes - self.done_bytes
    }

    /// On average so far.
    pub fn messages_per_second(&self) -> u64 {
        self.per_second(self.messages)
    }

    /// On average so far.
    pub fn bytes_per_second(&self) -> u64 {
        self.per_second(self.done_bytes)
    }

    /// How long the rest takes at the rate so far, once there is one.
    pub fn left(&self) -> Option<Duration> {
        let rate = self.bytes_per_second();
        (rate > 0).then(|| Duration::from_millis(self.left_bytes().saturating_mul(1_000) / rate))
    }

    fn per_second(&self, count: u64) -> u64 {
        let millis = self.elapsed.as_millis().max(1);
        u64::try_from(u128::from(count) * 1_000 / millis).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for ReplayProgress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.rebuilds { "queues and index are built again from the log" } else { "log is applied again" };
        write!(
            out,
            "{what}: {} %, {} messages/s, {} MiB/s, {} MiB left",
            self.percent(),
            self.messages_per_second(),
            self.bytes_per_second() >> 20,
            self.left_bytes() >> 20
        )?;
        match self.left() {
            Some(left) => write!(out, ", about {} s", left.as_millis().div_ceil(1_000)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(done_mib: u64, elapsed_ms: u64) -> ReplayProgress {
        ReplayProgress {
            rebuilds: true,
            done_bytes: done_mib << 20,
            total_bytes: 1000 << 20,
            messages: done_mib * 900,
            elapsed: Duration::from_millis(elapsed_ms),
        }
    }

    #[test]
    fn a_line_says_what_is_done_how_fast_and_what_is_left() {
        let line = progress(250, 500).to_string();
        assert_eq!(
            line,
            "queues and index are built again from the log: 25 %, 450000 messages/s, 500 MiB/s, 750 MiB left, about 2 s"
        );
        let line = ReplayProgress { rebuilds: false, ..progress(0, 0) }.to_string();
        assert_eq!(line, "log is applied again: 0 %, 0 messages/s, 0 MiB/s, 1000 MiB left");
    }

    #[test]
    fn it_is_never_complete_while_something_is_left() {
        assert_eq!(progress(1000, 10).percent(), 99);
        let nothing = ReplayProgress { done_bytes: 0, total_bytes: 0, ..progress(0, 10) };
        assert_eq!((nothing.percent(), nothing.left()), (0, None));
    }
}
