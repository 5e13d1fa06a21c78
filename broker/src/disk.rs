//! How full the disk is, and what follows from it.
//!
//! | Level | When | What follows |
//! | --- | --- | --- |
//! | [`DiskLevel::Calm`] | below | nothing |
//! | [`DiskLevel::Early`] | 75 % used | retention may run before its hour |
//! | [`DiskLevel::Forced`] | 85 % used | retention makes room, whatever the retention time |
//! | [`DiskLevel::Full`] | less free than 10 % or four segments and 64 MiB | messages of clients are refused |
//!
//! A level is left only when the disk is five points below its mark, so that a disk at the mark does not open and close
//! the gate with every segment. What is refused is what fills the disk; reads, offset commits, deletions and Raft's own
//! entries go on from the segment that the log always has allocated ahead.

mod ballast;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

pub use self::ballast::{Ballast, BallastError};

/// How often the disk is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// By how many points of a hundred the disk must be below a mark before its level is left.
const HYSTERESIS_PERCENT: u64 = 5;
/// The segments that must fit what is free, and what must be free besides.
const FREE_SEGMENTS_MIN: u64 = 4;
const FREE_BYTES_MIN: u64 = 64 << 20;

/// How full a disk is, as far as this process may use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// What is used and what is free together.
    pub total_bytes: u64,
    /// What is left of it.
    pub free_bytes: u64,
}

impl DiskSpace {
    /// Looks at the file system of `dir`; `None` when that cannot be said.
    #[must_use]
    pub fn of(dir: &Path) -> Option<Self> {
        let stat = rustix::fs::statvfs(dir).ok()?;
        let free_bytes = stat.f_bavail.checked_mul(stat.f_frsize)?;
        // Without the blocks that only root may use: a disk is full when this process cannot write any more.
        let used_bytes = stat.f_blocks.checked_sub(stat.f_bfree)?.checked_mul(stat.f_frsize)?;
        Some(Self { total_bytes: used_bytes.checked_add(free_bytes)?, free_bytes })
    }

    /// What is used.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.free_bytes)
    }

    /// The used part, from 0 to 1.
    #[must_use]
    pub fn used_ratio(&self) -> f64 {
        self.used_bytes() as f64 / self.total_bytes.max(1) as f64
    }

    fn percent(&self, percent: u64) -> u64 {
        u64::try_from(u128::from(self.total_bytes) * u128::from(percent) / 100).unwrap_or(u64::MAX)
    }
}

/// What the fullness of a disk asks for, in rising order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DiskLevel {
    /// There is room.
    Calm,
    /// Retention may run early.
    Early,
    /// Retention must make room.
    Forced,
    /// Messages of clients are refused.
    Full,
}

impl DiskLevel {
    /// The word for logs, status and metrics.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::Early => "early",
            Self::Forced => "forced",
            Self::Full => "full",
        }
    }
}

/// Where the levels begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskLimits {
    /// From this much used on retention may run early.
    pub early_percent: u8,
    /// From this much used on retention must make room.
    pub forced_percent: u8,
    /// With less free than this, messages are refused.
    pub free_percent_min: u8,
    /// The size of a segment: four of them must fit what is free, and 64 MiB more.
    pub segment_bytes: u64,
}

impl DiskLimits {
    /// The free bytes below which messages are refused.
    #[must_use]
    pub fn free_bytes_min(&self, space: &DiskSpace) -> u64 {
        let segments = self.segment_bytes.saturating_mul(FREE_SEGMENTS_MIN).saturating_add(FREE_BYTES_MIN);
        space.percent(u64::from(self.free_percent_min)).max(segments)
    }

    /// The level of a disk that was at `before`.
    #[must_use]
    pub fn level(&self, before: DiskLevel, space: &DiskSpace) -> DiskLevel {
        let slack = space.percent(HYSTERESIS_PERCENT);
        let reaches = |level: DiskLevel, used_mark: u64| {
            let mark = if before >= level { used_mark.saturating_sub(slack) } else { used_mark };
            space.used_bytes() >= mark
        };
        let full = {
            let min = self.free_bytes_min(space);
            space.free_bytes < if before == DiskLevel::Full { min.saturating_add(slack) } else { min }
        };
        if full {
            DiskLevel::Full
        } else if reaches(DiskLevel::Forced, space.percent(u64::from(self.forced_percent))) {
            DiskLevel::Forced
        } else if reaches(DiskLevel::Early, space.percent(u64::from(self.early_percent))) {
            DiskLevel::Early
        } else {
            DiskLevel::Calm
        }
    }
}

/// A disk as it was last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskState {
    /// What its fullness asks for.
    pub level: DiskLevel,
    /// How full it is; `None` while nobody could say.
    pub space: Option<DiskSpace>,
    /// Whether the log has no segment allocated ahead, because there was no room for one.
    pub log_is_short: bool,
    /// The free bytes below which messages are refused.
    pub free_bytes_min: u64,
}

impl DiskState {
    /// Why messages of clients are refused; `None` while they are taken.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        const MIB: u64 = 1 << 20;
        let free = self.space.map_or(0, |space| space.free_bytes);
        if self.log_is_short {
            return Some(format!("disk full: no room for another segment of the log, {} MiB free", free / MIB));
        }
        (self.level == DiskLevel::Full).then(|| {
            format!("disk almost full: {} MiB free, {} MiB are kept free", free / MIB, self.free_bytes_min / MIB)
        })
    }
}

/// Looks at one disk until it is dropped. What it saw is [`DiskWatch::subscribe`]d to.
#[derive(Debug)]
pub struct DiskWatch {
    state: Arc<watch::Sender<DiskState>>,
    task: tokio::task::AbortHandle,
}

impl DiskWatch {
    /// Looks at the disk of `dir` now and every second, and at whether the log in it is short of room.
    ///
    /// Must be called within a tokio runtime.
    #[must_use]
    pub fn start(dir: PathBuf, limits: DiskLimits, log_is_short: watch::Receiver<bool>) -> Self {
        let probe = move || DiskSpace::of(&dir);
        Self::with_probe(probe, limits, log_is_short)
    }

    /// As [`DiskWatch::start`], with another way to look.
    #[must_use]
    pub fn with_probe(
        probe: impl Fn() -> Option<DiskSpace> + Send + Sync + 'static,
        limits: DiskLimits,
        mut log_is_short: watch::Receiver<bool>,
    ) -> Self {
        let unknown = DiskState { level: DiskLevel::Calm, space: None, log_is_short: false, free_bytes_min: 0 };
        let first = look(unknown, probe(), limits, *log_is_short.borrow_and_update());
        let state = Arc::new(watch::Sender::new(first));
        let (told, probe) = (Arc::clone(&state), Arc::new(probe));
        let task = tokio::spawn(async move {
            let mut tick = tokio::time::interval(LOOK_INTERVAL);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = tick.tick() => {}
                    changed = log_is_short.changed() => if changed.is_err() { break },
                }
                // A disk that hangs holds up whoever asks.
                let probe = Arc::clone(&probe);
                let Ok(space) = tokio::task::spawn_blocking(move || probe()).await else { break };
                let before = *told.borrow();
                let now = look(before, space, limits, *log_is_short.borrow_and_update());
                note_change(&before, &now);
                told.send_if_modified(|state| std::mem::replace(state, now) != now);
            }
        });
        Self { state, task: task.abort_handle() }
    }

    /// What was last seen, and whatever is seen later.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<DiskState> {
        self.state.subscribe()
    }
}

impl Drop for DiskWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn look(before: DiskState, space: Option<DiskSpace>, limits: DiskLimits, log_is_short: bool) -> DiskState {
    // What cannot be said now is as it was.
    let Some(space) = space else { return DiskState { log_is_short, ..before } };
    let level = limits.level(before.level, &space);
    DiskState { level, space: Some(space), log_is_short, free_bytes_min: limits.free_bytes_min(&space) }
}

fn note_change(before: &DiskState, now: &DiskState) {
    let (was, is) = (before.refusal(), now.refusal());
    match (was, is) {
        (None, Some(reason)) => tracing::error!(reason, "messages of clients are refused"),
        (Some(_), None) => tracing::info!("messages of clients are taken again: the disk has room"),
        _ if before.level < now.level => {
            tracing::warn!(level = now.level.word(), free = ?now.space.map(|space| space.free_bytes), "disk fills up");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
