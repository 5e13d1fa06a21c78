//! Retention on a node: one look at all its replicas, every few seconds.
//!
//! Age is each replica's own matter. Room on the disk is not: all replicas share it, so a filling disk takes the oldest
//! segment of them all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

use super::group::{NodeGroup, Running};
use crate::config::RetentionOptions;
use crate::http::{RetentionPressure, RetentionStatus};
use crate::processor::now;
use crate::retention::{Pressure, Survey, WatchedClock, is_hour};

/// Time between two looks while the disk fills.
const FORCED_INTERVAL: Duration = Duration::from_secs(2);

/// Says what the disk asks for now.
pub(super) type PressureProbe = Arc<dyn Fn() -> Pressure + Send + Sync>;

pub(super) struct NodeRetention {
    options: RetentionOptions,
    pressure: PressureProbe,
    clock: Arc<Mutex<WatchedClock>>,
    started: Instant,
    /// Told when somebody wants a look that does not wait for an hour of the day.
    wanted: Arc<Notify>,
}

impl NodeRetention {
    pub(super) fn new(
        options: RetentionOptions,
        clock: WatchedClock,
        started: Instant,
        pressure: PressureProbe,
    ) -> Self {
        Self { options, pressure, clock: Arc::new(Mutex::new(clock)), started, wanted: Arc::default() }
    }

    /// To ask for a look that does not wait for an hour of the day.
    pub(super) fn wanted(&self) -> Arc<Notify> {
        Arc::clone(&self.wanted)
    }

    /// Looks until it is cancelled.
    pub(super) async fn run(&self, groups: &[Arc<NodeGroup>]) {
        let mut tick = tokio::time::interval(self.options.check_interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let pressed = (self.pressure)() == Pressure::Forced;
            let hours: &[u8] = tokio::select! {
                _ = tick.tick() => &self.options.delete_hours,
                () = tokio::time::sleep(FORCED_INTERVAL), if pressed => &self.options.delete_hours,
                () = self.wanted.notified() => &[],
            };
            self.look(groups, now().wall_ms, hours).await;
        }
    }

    /// One look, at the time that the wall clock says. What is old goes in these hours only; none named means any.
    pub(super) async fn look(&self, groups: &[Arc<NodeGroup>], wall_ms: i64, hours: &[u8]) {
        let usable = self.with_clock(move |clock, uptime| clock.look(wall_ms, uptime)).await;
        let pressure = (self.pressure)();
        if let Some(now_ms) = usable {
            for running in groups.iter().filter_map(|group| group.running()) {
                if let Err(error) = running.retention.hide_expired(now_ms).await {
                    tracing::error!(%error, "cannot look for old messages of topics");
                }
            }
        }
        let mut surveys = Vec::new();
        for running in groups.iter().filter_map(|group| group.running()) {
            match running.retention.survey().await {
                Ok(survey) => surveys.push((running, survey)),
                Err(error) => tracing::error!(%error, "cannot look for old segments"),
            }
        }
        let mut dropped = false;
        if let Some(now_ms) = usable
            && (pressure >= Pressure::Early || is_hour(hours, now_ms))
        {
            for (running, survey) in &surveys {
                if let Some(choice) = survey.by_age(now_ms, self.options.time, pressure) {
                    dropped |= running.retention.carry_out(choice, pressure).await;
                }
            }
        }
        if pressure == Pressure::Forced && !dropped {
            for (running, choice) in oldest_first(&surveys) {
                dropped = running.retention.carry_out(choice, pressure).await;
                if dropped {
                    break;
                }
            }
            if !dropped {
                tracing::warn!("the disk is filling and there is no whole segment to drop");
            }
        }
    }

    pub(super) fn status(&self) -> RetentionStatus {
        RetentionStatus {
            time_ms: u64::try_from(self.options.time.as_millis()).unwrap_or(u64::MAX),
            delete_hours: self.options.delete_hours.clone(),
            pressure: match (self.pressure)() {
                Pressure::None => RetentionPressure::None,
                Pressure::Early => RetentionPressure::Early,
                Pressure::Forced => RetentionPressure::Forced,
            },
            clock_ahead_ms: self.clock.lock().ahead_ms(),
        }
    }

    pub(super) async fn accept_clock(&self) {
        self.with_clock(|clock, uptime| clock.accept(now().wall_ms, uptime)).await;
    }

    /// Uses the clock where a file may be written.
    async fn with_clock<T: Default + Send + 'static>(
        &self,
        look: impl FnOnce(&mut WatchedClock, Duration) -> T + Send + 'static,
    ) -> T {
        let (clock, uptime) = (Arc::clone(&self.clock), self.started.elapsed());
        tokio::task::spawn_blocking(move || look(&mut clock.lock(), uptime)).await.unwrap_or_default()
    }
}

/// The oldest segment of each replica, the oldest of them first.
fn oldest_first(surveys: &[(Arc<Running>, Survey)]) -> impl Iterator<Item = (&Running, crate::retention::Choice)> {
    let offers = surveys.iter().filter_map(|(running, survey)| Some((&**running, survey.by_disk()?)));
    let mut offers: Vec<_> = offers.collect();
    offers.sort_by_key(|(_, (_, stamped_ms))| *stamped_ms);
    offers.into_iter().map(|(running, (choice, _))| (running, choice))
}
