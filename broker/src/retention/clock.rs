//! Whether the wall clock may decide what is deleted.
//!
//! A clock that jumps ahead makes everything look old at once. So what the clock says is compared with what it must say:
//! what it said at the last look, plus the time that has passed on the clock that cannot be set. If it is more than a
//! day ahead of that, nothing is deleted for its age until it comes back or an operator accepts it. The last look is
//! kept in a file, because a jump may lie between two processes; a node that was off for more than a day is asked about
//! for the same reason.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use raft_store::durable;

/// The clock may be so far ahead of what is expected.
const AHEAD_MAX_MS: i64 = 24 * 3_600_000;
/// The file is this old at most while the process runs: well below what is forgiven.
const SAVE_INTERVAL: Duration = Duration::from_secs(600);

/// The wall clock, watched.
#[derive(Debug)]
pub(crate) struct WatchedClock {
    path: PathBuf,
    /// What the clock said at the last look at which it was believed, and when that was.
    believed: Option<(i64, Duration)>,
    saved_at: Option<Duration>,
    /// By how much it is ahead, while it is not believed.
    ahead_ms: Option<i64>,
}

impl WatchedClock {
    /// A clock whose last look is kept at `path`.
    pub(crate) fn open(path: PathBuf) -> Self {
        let kept = match std::fs::read_to_string(&path) {
            Ok(text) => {
                let parsed = text.trim().parse::<i64>().ok();
                if parsed.is_none() {
                    tracing::warn!(path = %path.display(), "the time of the last look is not readable: starting over");
                }
                parsed
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the time of the last look is not readable: starting over");
                None
            }
        };
        Self { path, believed: kept.map(|ms| (ms, Duration::ZERO)), saved_at: None, ahead_ms: None }
    }

    /// Looks at the clock: it says `wall_ms`, and `uptime` is what has passed since the process started. Returns the
    /// time that may be used, or none.
    pub(crate) fn look(&mut self, wall_ms: i64, uptime: Duration) -> Option<i64> {
        let expected = self.believed.map(|(ms, at)| ms.saturating_add(millis(uptime.saturating_sub(at))));
        let ahead = expected.map_or(0, |expected| wall_ms.saturating_sub(expected));
        if ahead > AHEAD_MAX_MS {
            if self.ahead_ms.is_none() {
                tracing::error!(
                    ahead_hours = ahead / 3_600_000,
                    "the clock ran ahead, or this node was off for long: nothing is deleted for its age until it is accepted"
                );
            }
            self.ahead_ms = Some(ahead);
            return None;
        }
        if self.ahead_ms.take().is_some() {
            tracing::info!("the clock is back: retention goes on");
        }
        // A clock that went back is no reason to be surprised when it is set right again.
        self.believed = Some((wall_ms.max(expected.unwrap_or(i64::MIN)), uptime));
        self.save(uptime);
        Some(wall_ms)
    }

    /// The operator says that the clock is right.
    pub(crate) fn accept(&mut self, wall_ms: i64, uptime: Duration) {
        tracing::info!(wall_ms, "the clock is accepted as it is");
        self.believed = Some((wall_ms, uptime));
        self.ahead_ms = None;
        self.saved_at = None;
        self.save(uptime);
    }

    /// By how many milliseconds the clock is ahead, while it is not believed.
    pub(crate) fn ahead_ms(&self) -> Option<i64> {
        self.ahead_ms
    }

    fn save(&mut self, uptime: Duration) {
        let due = self.saved_at.is_none_or(|at| uptime.saturating_sub(at) >= SAVE_INTERVAL);
        let Some((believed, _)) = self.believed.filter(|_| due) else { return };
        self.saved_at = Some(uptime);
        if let Err(error) = durable::write_file(&self.path, format!("{believed}\n").as_bytes()) {
            tracing::warn!(%error, "the time of this look is not kept");
        }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    fn hours(hours: i64) -> Duration {
        Duration::from_millis((hours * HOUR) as u64)
    }

    /// Looks at a clock that says so many hours, so many hours after the start.
    #[track_caller]
    fn check(clock: &mut WatchedClock, wall_h: i64, uptime_h: i64, believed: bool) {
        let seen = clock.look(wall_h * HOUR, hours(uptime_h));
        assert_eq!(seen, believed.then_some(wall_h * HOUR));
        assert_eq!(clock.ahead_ms().is_some(), !believed);
    }

    #[test]
    fn a_clock_more_than_a_day_ahead_is_not_believed_until_it_is_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut clock = WatchedClock::open(dir.path().join("clock"));
        check(&mut clock, 1000, 0, true);
        check(&mut clock, 1010, 10, true);
        check(&mut clock, 1046, 22, true);
        check(&mut clock, 1046 + 26, 23, false);
        check(&mut clock, 1046 + 29, 26, false);
        check(&mut clock, 1051, 27, true);
        check(&mut clock, 2000, 28, false);
        clock.accept(2000 * HOUR, hours(28));
        check(&mut clock, 2001, 29, true);
    }

    #[test]
    fn a_clock_that_was_behind_and_is_set_right_is_believed() {
        let dir = tempfile::tempdir().unwrap();
        let mut clock = WatchedClock::open(dir.path().join("clock"));
        check(&mut clock, 1000, 0, true);
        check(&mut clock, 5, 1, true);
        check(&mut clock, 1002, 2, true);
    }

    #[test]
    fn a_jump_between_two_processes_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clock");
        check(&mut WatchedClock::open(path.clone()), 1000, 0, true);
        check(&mut WatchedClock::open(path.clone()), 1020, 0, true);
        let mut clock = WatchedClock::open(path.clone());
        check(&mut clock, 1050, 0, false);
        clock.accept(1050 * HOUR, hours(1));
        check(&mut WatchedClock::open(path.clone()), 1051, 0, true);
        std::fs::write(&path, "yesterday").unwrap();
        check(&mut WatchedClock::open(path), 5000, 0, true);
    }
}
