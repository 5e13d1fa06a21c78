//! The tasks that work for a group as long as it runs.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};

use super::stats::SAMPLE_INTERVAL;
use super::{Group, now};
use crate::forward::Place;
use crate::raft::Unfit;
use crate::state_machine::Command;

/// How often silent clients are looked for.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(10);
/// How often the table of a peer is copied while entries of it stand unconfirmed.
const COPY_INTERVAL: Duration = Duration::from_secs(5);
/// How often a peer is asked while none has answered.
const COPY_RETRY: Duration = Duration::from_millis(200);
/// Changes of members so long before a takeover are told again by the new leader: the old one may not have.
const CHANGES_TOLD_AGAIN: Duration = Duration::from_secs(10);
/// Pause before a failed bootstrap is tried again.
const BOOTSTRAP_RETRY: Duration = Duration::from_millis(50);

pub(super) fn spawn_all(group: &Group) {
    let tasks = &group.0.tasks;
    let run = |group: &Group| group.clone();
    let this = run(group);
    tasks.spawn(async move { Box::pin(this.follow_role()).await });
    let this = run(group);
    tasks.spawn(async move { Box::pin(this.run_offset_flusher()).await });
    let this = run(group);
    tasks.spawn(async move { Box::pin(this.run_pop_steps()).await });
    let this = run(group);
    tasks.spawn(async move { Box::pin(this.run_delays()).await });
    let this = run(group);
    tasks.spawn(async move { Box::pin(this.run_timers()).await });
    let this = run(group);
    tasks.spawn(async move { Box::pin(this.run_transaction_checks()).await });
    let this = run(group);
    tasks.spawn(async move { this.run_holds().await });
    let this = run(group);
    tasks.spawn(async move { this.run_clock().await });
    let this = run(group);
    tasks.spawn(async move { Box::pin(this.copy_clients()).await });
    let this = run(group);
    tasks.spawn(async move { this.watch_disk().await });
    let this = run(group);
    tasks.spawn(async move { Box::pin(this.catch_up()).await });
}

impl Group {
    /// Takes one step after the other for as long as this replica serves as leader. Each says how long to pause then.
    pub(super) async fn while_leading<F: Future<Output = Duration>>(&self, step: impl Fn(Self) -> F) {
        let mut place = self.0.place.subscribe();
        loop {
            let leads = matches!(*place.borrow_and_update(), Place::Here { .. });
            let pause = async {
                if leads {
                    let pause = step(self.clone()).await;
                    tokio::time::sleep(pause).await;
                } else {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = self.0.stop.cancelled() => return,
                changed = place.changed() => if changed.is_err() { return },
                () = pause => {}
            }
        }
    }

    /// Turns the role of the replica into the place of leader's work, and does what a takeover asks for.
    async fn follow_role(&self) {
        let mut roles = self.0.raft.role();
        loop {
            let role = roles.borrow_and_update().clone();
            let is_named = self.0.state.names().is_some();
            if role.is_ready_leader() && !is_named {
                if !self.bootstrap().await {
                    let changed = tokio::time::timeout(BOOTSTRAP_RETRY, roles.changed());
                    tokio::select! {
                        () = self.0.stop.cancelled() => return,
                        changed = changed => if matches!(changed, Ok(Err(_))) { return },
                    }
                }
                continue;
            }
            let place = Place::of(&role, is_named);
            let takes_over = matches!(place, Place::Here { .. }) && place != self.place();
            if takes_over {
                self.go_on_in_time();
            }
            match place {
                Place::Here { .. } if takes_over => self.0.caught_up.lead(),
                Place::There { .. } if place != self.place() => self.0.caught_up.follow_another(),
                _ => {}
            }
            let before = self.0.place.send_replace(place);
            if matches!(before, Place::Here { .. }) && before != place {
                // Whoever waits here for messages goes to the new leader.
                self.0.holds.wake_groups();
            }
            if let Place::Here { term } = place
                && takes_over
            {
                tracing::info!(group = self.name(), term, "serving as leader");
                self.take_over();
            }
            tokio::select! {
                () = self.0.stop.cancelled() => return,
                changed = roles.changed() => if changed.is_err() {
                    self.0.place.send_replace(Place::Nowhere);
                    return;
                },
            }
        }
    }

    /// Lets others lead while this replica's disk takes no messages.
    async fn watch_disk(&self) {
        let mut disk = self.0.disk.clone();
        loop {
            let is_full = disk.borrow_and_update().refusal().is_some();
            self.0.raft.set_unfit(Unfit::DiskFull, is_full);
            tokio::select! {
                () = self.0.stop.cancelled() => return,
                changed = disk.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Names the group, which creates the topics that always exist.
    async fn bootstrap(&self) -> bool {
        let settings = &self.0.settings;
        let command = match Command::bootstrap(&settings.cluster_name, &settings.broker_name, self.stamp_ms()) {
            Ok(command) => command,
            Err(error) => {
                tracing::error!(%error, "the names of cluster and group cannot be topic names");
                return false;
            }
        };
        match self.propose(command).await {
            Ok(_) => {
                // Nobody can have spoken to a group that did not exist.
                self.0.clients.assume_complete();
                self.register_topics();
                true
            }
            Err(failure) => {
                tracing::debug!(?failure, "the group is not named yet");
                false
            }
        }
    }

    /// Has the clocks of a new leader go on from those of the leaders before it. To come before its first request.
    fn go_on_in_time(&self) {
        let state = &self.0.state;
        let versions = [state.topic_version(), state.group_version(), state.offset_version()];
        self.stamp_after(versions.into_iter().map(|version| version.stamped_ms).max().unwrap_or(0));
        let time = now();
        self.0.lease_clock.take_over(state.last_lease_end(), time.wall_ms, time.instant);
    }

    /// What a new leader owes to clients that spoke to this replica before.
    fn take_over(&self) {
        for group in self.0.clients.consumer_groups() {
            self.ensure_group(group);
        }
        if let Some(since) = now().instant.checked_sub(CHANGES_TOLD_AGAIN) {
            self.notify(&self.0.clients.changed_since(since));
        }
    }

    /// Runs parked pulls that were woken or are due.
    async fn run_holds(&self) {
        loop {
            for held in self.0.holds.take_woken() {
                self.resume(held);
            }
            for held in self.0.holds.take_due(now().instant) {
                self.resume(held);
            }
            let due = async {
                match self.0.holds.next_deadline() {
                    Some(deadline) => tokio::time::sleep_until(Instant::from_std(deadline)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.0.stop.cancelled() => return,
                () = self.0.holds.changed() => {}
                () = due => {}
            }
        }
    }

    /// Expires silent clients and samples the counters.
    async fn run_clock(&self) {
        let mut expiry = tokio::time::interval(EXPIRY_INTERVAL);
        let mut sample = tokio::time::interval_at(Instant::now() + SAMPLE_INTERVAL, SAMPLE_INTERVAL);
        for interval in [&mut expiry, &mut sample] {
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        loop {
            tokio::select! {
                () = self.0.stop.cancelled() => return,
                _ = expiry.tick() => {
                    let changed = self.0.clients.expire(now());
                    self.notify(&changed);
                }
                _ = sample.tick() => {
                    let now = now();
                    self.0.stats.sample(now.instant);
                    self.0.stats.look_at_day(now.wall_ms);
                }
            }
        }
    }

    /// Copies the table of clients of a peer, at the start and for as long as entries of it stand unconfirmed.
    async fn copy_clients(&self) {
        let own = self.0.settings.node_id;
        let heartbeat_interval = crate::client_table::TableLimits::default().heartbeat_interval;
        let complete_at = now().instant + heartbeat_interval;
        let mut copied = false;
        while !self.0.stop.is_cancelled() {
            let metrics = self.0.raft.metrics();
            let mut peers: Vec<u64> = metrics.members.keys().copied().filter(|peer| *peer != own).collect();
            // The leader's table is the one that clients have been told about.
            peers.sort_by_key(|peer| Some(*peer) != metrics.leader);
            if peers.is_empty() && !metrics.members.is_empty() {
                self.0.clients.assume_complete();
                return;
            }
            for peer in peers {
                if self.import_clients(peer).await {
                    copied = true;
                    break;
                }
            }
            // Without a peer that knows, every client has spoken to this replica after one heartbeat interval.
            if !copied && now().instant >= complete_at || copied && !self.0.clients.has_copied_entries() {
                return;
            }
            let pause = if copied { COPY_INTERVAL } else { COPY_RETRY };
            tokio::select! {
                () = self.0.stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}
