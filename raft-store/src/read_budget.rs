//! How fast cold segments may be read, by everybody in the process together.
//!
//! Whoever catches up with days of history reads as fast as the disk allows, and would push what is being written, and
//! read right after it, out of the disk's queue. Each such read opens its file, so their number is bounded as well.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// What may be read at once after a pause, in time at the full rate.
const BURST: Duration = Duration::from_millis(100);

/// A rate that readers share.
#[derive(Debug)]
pub struct ReadBudget {
    bytes_per_second: u64,
    /// When all that has been read is paid for.
    paid_at: Mutex<Option<Instant>>,
    reading: Mutex<usize>,
    finished: Condvar,
}

/// One read that is under way.
#[derive(Debug)]
pub(crate) struct Reading<'a>(&'a ReadBudget);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        *self.0.reading.lock() -= 1;
        self.0.finished.notify_one();
    }
}

impl ReadBudget {
    /// So many reads at a time, each with a file of its own.
    pub const READS_MAX: usize = 256;

    /// At most `bytes_per_second` on average; 0 sets no limit.
    #[must_use]
    pub fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, paid_at: Mutex::new(None), reading: Mutex::new(0), finished: Condvar::new() }
    }

    /// Waits until `bytes` may be read. Blocks the thread.
    #[must_use]
    pub(crate) fn spend(&self, bytes: u64) -> Reading<'_> {
        {
            let mut reading = self.reading.lock();
            while *reading >= Self::READS_MAX {
                self.finished.wait(&mut reading);
            }
            *reading += 1;
        }
        let reading = Reading(self);
        let wait = self.charge(Instant::now(), bytes);
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        reading
    }

    /// When all that has been read is paid for; `None` if it cost nothing.
    #[cfg(test)]
    pub(crate) fn paid_at(&self) -> Option<Instant> {
        *self.paid_at.lock()
    }

    /// How long to wait before a read of `bytes` that is asked for at `now`.
    fn charge(&self, now: Instant, bytes: u64) -> Duration {
        if self.bytes_per_second == 0 {
            return Duration::ZERO;
        }
        let cost = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        let mut paid_at = self.paid_at.lock();
        let before = paid_at.unwrap_or(now).max(now);
        *paid_at = Some(before + cost);
        // What was asked for before is waited for; a read waits for itself only in what comes after it.
        (before.saturating_duration_since(now)).saturating_sub(BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_the_rate_and_a_pause_saves_up_no_more_than_a_burst() {
        let budget = ReadBudget::new(1000);
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let steps = [
            // asked at, bytes, wait
            (0, 1000, 0),
            (0, 500, 900),
            (1000, 100, 400),
            (1600, 100, 0),
            (9000, 1000, 0),
            (9000, 1, 900),
        ];
        for (now, bytes, wait) in steps {
            assert_eq!(Duration::from_millis(wait), budget.charge(at(now), bytes), "{bytes} bytes at {now} ms");
        }
        assert_eq!(Duration::ZERO, ReadBudget::new(0).charge(start, u64::MAX));
    }

    #[test]
    fn no_more_than_so_many_read_at_a_time() {
        let budget = ReadBudget::new(0);
        let mut reading: Vec<_> = (0..ReadBudget::READS_MAX).map(|_| budget.spend(1)).collect();
        let (told, is_through) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _one_more = budget.spend(1);
                told.send(()).unwrap();
            });
            assert!(is_through.recv_timeout(Duration::from_millis(20)).is_err());
            reading.pop();
            is_through.recv().unwrap();
        });
    }
}
