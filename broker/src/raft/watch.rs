//! Turns what openraft reports into the role that opens and closes the gates, and brings leadership home.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use openraft::Instant as _;
use openraft::Raft;
use openraft::async_runtime::WatchReceiver;
use openraft::metrics::{RaftMetrics, RaftServerMetrics};
use openraft::storage::RaftStateMachine;
use parking_lot::Mutex;
use raft_store::LogId;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use super::Timing;
use super::catch_up::FarBehind;
use super::error::NotReady;
use super::fitness::{Fitness, Unfit};
use super::hand_over::{HandOver, Urgency};
use super::read_index::confirm;
use super::role::{Gaps, Role};
use super::type_config::{RaftLogId, SnapshotData, TypeConfig};
use super::{voter_on, wire};
use crate::peer::frame::Kind;
use crate::peer::handshake::Class;
use crate::peer::{Hub, PeerAddress, PeerHub};

/// How often the quorum and the preferred leader are looked at.
const TICK: Duration = Duration::from_millis(50);
/// Pause after a confirmation that failed.
const CONFIRM_RETRY: Duration = Duration::from_millis(10);
/// A leader has led so long before it hands over to the preferred replica.
const LEADER_STABLE_FOR: Duration = Duration::from_secs(10);
/// The preferred replica has been close behind for so long.
const PREFERRED_CLOSE_FOR: Duration = Duration::from_secs(5);
/// A log this short is of a group that has just been made: there is no work to disturb, and leaders are spread at once.
const NEW_GROUP_ENTRIES: u64 = 32;
/// How long all must have been calm in such a group.
const NEW_GROUP_CALM_FOR: Duration = Duration::from_millis(300);
/// Entries it may be behind.
const PREFERRED_LAG_MAX: u64 = 256;
/// Pause after a hand-over that did not succeed.
const RESTORE_RETRY: Duration = Duration::from_secs(30);
/// The same for a leader that should not lead.
const UNFIT_RETRY: Duration = Duration::from_secs(2);
/// A leader whose own disk has flushed nothing for so long, with entries waiting, hands over.
const FLUSH_STALL_MAX: Duration = Duration::from_secs(5);

/// How long a replica may take to say whether it would lead.
const WOULD_LEAD_TIMEOUT: Duration = Duration::from_secs(1);

type Confirming = Pin<Box<dyn Future<Output = Result<(), NotReady>> + Send>>;

/// Watches one replica until it stops.
pub(super) struct Watcher<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> {
    pub(super) raft: Raft<TypeConfig, SM>,
    pub(super) hand_over: HandOver<SM>,
    pub(super) hub: PeerHub,
    pub(super) group: String,
    pub(super) timing: Timing,
    pub(super) preferred: Option<String>,
    pub(super) role: watch::Sender<Role>,
    pub(super) gaps: Arc<Mutex<Gaps>>,
    pub(super) fitness: Arc<Fitness>,
    pub(super) far_behind: watch::Sender<FarBehind>,
}

impl<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> Watcher<SM> {
    pub(super) async fn run(self) {
        let mut changes = self.raft.server_metrics();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut members_of: Option<LogId> = None;
        let mut confirming: Option<Confirming> = None;
        let mut home = Home::default();
        let mut silent = false;
        loop {
            let server = changes.borrow_and_update().clone();
            self.learn_members(&server, &mut members_of);
            let role = self.present_role(&server);
            if !matches!(role, Role::Leader { ready: true, .. }) && role.is_leader() {
                if confirming.is_none() {
                    confirming = Some(self.confirm());
                }
            } else {
                confirming = None;
            }
            self.gaps.lock().note(&role, Instant::now());
            self.role.send_if_modified(|before| {
                let changed = *before != role;
                if changed {
                    log_change(&self.group, before, &role);
                    before.clone_from(&role);
                }
                changed
            });
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { break },
                confirmed = async { match confirming.as_mut() {
                    Some(confirming) => confirming.await,
                    None => std::future::pending().await,
                } } => {
                    confirming = None;
                    if confirmed.is_ok() {
                        self.open(role.term());
                    }
                }
                _ = tick.tick() => {
                    let metrics = self.raft.metrics().borrow_watched().clone();
                    if metrics.running_state.is_err() {
                        break;
                    }
                    self.far_behind.send_replace(FarBehind::of(&metrics));
                    self.look_home(&metrics, &mut home).await;
                    self.follow_pace(&metrics, &mut silent);
                }
            }
        }
        let term = self.role.borrow().term();
        self.role.send_replace(Role::Follower { term, leader: None });
    }

    /// The role that follows from what openraft reports; a ready leader stays ready while it hears its quorum.
    fn present_role(&self, server: &RaftServerMetrics<TypeConfig>) -> Role {
        let vote = &server.vote;
        let term = vote.leader_id.term;
        if server.state.is_leader() && vote.committed && vote.leader_id.voted_for == server.id {
            let was_ready = matches!(*self.role.borrow(), Role::Leader { term: before, ready: true } if before == term);
            return Role::Leader { term, ready: was_ready && self.hears_quorum(server) };
        }
        let leader = server
            .current_leader
            .filter(|leader| *leader != server.id)
            .and_then(|leader| Some((leader, server.membership_config.membership().get_node(&leader)?.clone())));
        Role::Follower { term, leader }
    }

    fn hears_quorum(&self, server: &RaftServerMetrics<TypeConfig>) -> bool {
        if server.membership_config.voter_ids().all(|voter| voter == server.id) {
            return true;
        }
        let acknowledged = self.raft.data_metrics().borrow_watched().last_quorum_acked.map(|at| at.into_inner());
        acknowledged.is_some_and(|at| at.elapsed() < self.timing.election_timeout_max)
    }

    fn confirm(&self) -> Confirming {
        let raft = self.raft.clone();
        let timeout = self.timing.election_timeout_max;
        Box::pin(async move {
            let confirmed = confirm(&raft, timeout).await;
            if let Err(error) = &confirmed {
                tracing::debug!(%error, "leadership is not confirmed yet");
                tokio::time::sleep(CONFIRM_RETRY).await;
            }
            confirmed
        })
    }

    /// Opens the gates of `term`, unless leadership has moved on meanwhile.
    fn open(&self, term: u64) {
        let server = self.raft.server_metrics().borrow_watched().clone();
        if server.state.is_leader() && server.vote.committed && server.vote.leader_id.term == term {
            let role = Role::Leader { term, ready: true };
            self.gaps.lock().note(&role, Instant::now());
            self.role.send_if_modified(|before| {
                log_change(&self.group, before, &role);
                *before = role.clone();
                true
            });
        }
    }

    fn learn_members(&self, server: &RaftServerMetrics<TypeConfig>, members_of: &mut Option<LogId>) {
        let log_id = server.membership_config.log_id().as_ref().map(LogId::from_raft);
        if log_id == *members_of {
            return;
        }
        *members_of = log_id;
        let members: BTreeMap<u64, PeerAddress> = server
            .membership_config
            .nodes()
            .map(|(id, member)| (*id, PeerAddress { node: member.node.clone(), raft_addr: member.raft_addr.clone() }))
            .collect();
        // Before its first membership a replica knows those it was configured with.
        if log_id.is_some() {
            self.hub.replace_members(&self.group, members);
        }
    }

    /// Lets the others elect somebody if this replica's disk hardly writes and nobody took over: it sends no heartbeats
    /// and stands for no election.
    fn follow_pace(&self, metrics: &RaftMetrics<TypeConfig>, silent: &mut bool) {
        let alone = metrics.membership_config.voter_ids().all(|voter| voter == metrics.id);
        let is_slow = self.fitness.has(Unfit::DiskSlow) && !alone;
        if *silent != is_slow {
            *silent = is_slow;
            self.raft.runtime_config().heartbeat(!is_slow);
            self.raft.runtime_config().elect(!is_slow);
            tracing::warn!(group = self.group, is_slow, "a slow disk decides whether this replica tries to lead");
        }
    }

    /// Hands over to the preferred replica once that is safe and calm, or to anybody if the own disk stalls.
    async fn look_home(&self, metrics: &RaftMetrics<TypeConfig>, home: &mut Home) {
        let flushed = self.raft.watch_log_progress().get().and_then(|point| point.last_log_id).map(|id| id.index());
        let now = Instant::now();
        let (to, retry, urgency) =
            if home.flush_stalled(now, metrics.state.is_leader(), flushed, metrics.last_log_index) {
                tracing::warn!(group = self.group, "own disk has stalled: handing leadership over");
                (by_progress(metrics), RESTORE_RETRY, Urgency::Leaving)
            } else if metrics.state.is_leader() && self.fitness.should_hand_over() && home.may_try(now) {
                // What is in flight may never get through a disk that hardly writes.
                let urgency = if self.fitness.has(Unfit::DiskSlow) { Urgency::Leaving } else { Urgency::Calm };
                (close_behind(metrics), UNFIT_RETRY, urgency)
            } else {
                let preferred = voter_on(metrics, self.preferred.as_deref());
                let home = preferred.filter(|preferred| home.should_hand_over(now, metrics, *preferred));
                (home.into_iter().collect(), RESTORE_RETRY, Urgency::Calm)
            };
        if !to.is_empty() {
            home.not_before = Some(now + retry);
            let (hand_over, hub, group) = (self.hand_over.clone(), Arc::clone(self.hub.hub()), self.group.clone());
            self.hub.hub().spawn(async move {
                for to in to {
                    // A replica that is about to stop follows as closely as any other.
                    match would_lead(&hub, &group, to).await {
                        Ok(true) => {
                            tracing::info!(group, to, "handing leadership over");
                            if let Err(error) = hand_over.to(Some(to), urgency).await {
                                tracing::warn!(group, to, %error, "leadership not handed over");
                            }
                            return;
                        }
                        Ok(false) => tracing::debug!(group, to, "would not lead"),
                        Err(reason) => tracing::debug!(group, to, reason, "cannot say whether it would lead"),
                    }
                }
            });
        }
    }
}

pub(super) async fn would_lead(hub: &Arc<Hub>, group: &str, to: u64) -> Result<bool, String> {
    Ok(ask_would_lead(hub, group, to, &[]).await?.0)
}

/// How many groups the node of a replica leads that would take over; none if it would not, or does not say.
pub(super) async fn would_lead_besides(hub: &Arc<Hub>, group: &str, to: u64) -> Option<u32> {
    let (yes, leads) = ask_would_lead(hub, group, to, &[1]).await.ok()?;
    leads.filter(|_| yes)
}

async fn ask_would_lead(hub: &Arc<Hub>, group: &str, to: u64, fields: &[u8]) -> Result<(bool, Option<u32>), String> {
    let link = hub.link(group, to, Class::Rpc).map_err(|error| error.to_string())?;
    let answer = link.ask(Kind::WouldLead, fields, Vec::new(), WOULD_LEAD_TIMEOUT).await;
    wire::would_lead(&answer.map_err(|error| error.to_string())?).map_err(|error| error.to_string())
}

/// The other voters, the one that misses least first.
pub(super) fn by_progress(metrics: &RaftMetrics<TypeConfig>) -> Vec<u64> {
    let mut voters: Vec<u64> = metrics.membership_config.voter_ids().filter(|voter| *voter != metrics.id).collect();
    voters.sort_by_key(|voter| std::cmp::Reverse(matched(metrics, *voter).map(|id| id.index())));
    voters
}

/// The same, without those that could not take over at once.
pub(super) fn close_behind(metrics: &RaftMetrics<TypeConfig>) -> Vec<u64> {
    let mut voters = by_progress(metrics);
    voters.retain(|voter| is_close(metrics, *voter));
    voters
}

fn matched(metrics: &RaftMetrics<TypeConfig>, voter: u64) -> Option<RaftLogId> {
    metrics.replication.as_ref().and_then(|all| all.get(&voter).copied().flatten())
}

/// Whether a replica has been heard of just now and misses little.
fn is_close(metrics: &RaftMetrics<TypeConfig>, voter: u64) -> bool {
    let heard = metrics.heartbeat.as_ref().and_then(|all| all.get(&voter).copied().flatten());
    matched(metrics, voter).map_or(0, |id| id.index() + 1) + PREFERRED_LAG_MAX
        >= metrics.last_log_index.map_or(0, |index| index + 1)
        && heard.is_some_and(|at| at.into_inner().elapsed() < Duration::from_secs(1))
}

/// What the way home depends on: time led, time the preferred replica was close, time the disk stood still.
#[derive(Debug, Default)]
struct Home {
    leading: Option<(u64, Instant)>,
    close_since: Option<Instant>,
    not_before: Option<Instant>,
    flushed: Option<(Option<u64>, Instant)>,
}

impl Home {
    fn should_hand_over(&mut self, now: Instant, metrics: &RaftMetrics<TypeConfig>, preferred: u64) -> bool {
        let term = metrics.current_term;
        if !metrics.state.is_leader() || preferred == metrics.id {
            self.leading = None;
            self.close_since = None;
            return false;
        }
        let (led_term, led_since) = *self.leading.get_or_insert((term, now));
        if led_term != term {
            self.leading = Some((term, now));
        }
        let is_voter = metrics.membership_config.voter_ids().any(|voter| voter == preferred);
        if !is_close(metrics, preferred) || !is_voter {
            self.close_since = None;
            return false;
        }
        let close_since = *self.close_since.get_or_insert(now);
        let new = metrics.last_log_index.is_none_or(|last| last < NEW_GROUP_ENTRIES);
        let (led_for, close_for) =
            if new { (NEW_GROUP_CALM_FOR, NEW_GROUP_CALM_FOR) } else { (LEADER_STABLE_FOR, PREFERRED_CLOSE_FOR) };
        led_term == term
            && now.duration_since(led_since) >= led_for
            && now.duration_since(close_since) >= close_for
            && self.may_try(now)
    }

    /// Whether the last attempt is long enough ago.
    fn may_try(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| now >= at)
    }

    /// Whether entries have waited for the own disk for too long.
    fn flush_stalled(&mut self, now: Instant, leader: bool, flushed: Option<u64>, last: Option<u64>) -> bool {
        if !leader || flushed >= last {
            self.flushed = None;
            return false;
        }
        match self.flushed {
            Some((before, since)) if before == flushed => {
                now.duration_since(since) >= FLUSH_STALL_MAX && self.may_try(now)
            }
            _ => {
                self.flushed = Some((flushed, now));
                false
            }
        }
    }
}

fn log_change(group: &str, before: &Role, now: &Role) {
    match now {
        Role::Leader { term, ready: true } => tracing::info!(group, term, "leads, gates open"),
        Role::Leader { term, ready: false } if before.is_ready_leader() => {
            tracing::warn!(group, term, "hears no quorum, gates closed");
        }
        Role::Leader { term, .. } => tracing::info!(group, term, "elected"),
        Role::Follower { term, leader: Some((id, _)) } => tracing::info!(group, term, leader = id, "follows"),
        Role::Follower { term, leader: None } => tracing::info!(group, term, "no leader known"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use openraft::Instant as _;
    use openraft::metrics::SerdeInstant;
    use openraft_rt_tokio::TokioInstant;

    use super::*;
    use crate::peer::LogMark;
    use crate::raft::wire::log_from_mark;

    /// Node 1 leads; node 2 is preferred and has entries up to `matched`.
    fn leading(term: u64, last: u64, matched: u64) -> RaftMetrics<TypeConfig> {
        let mut metrics = RaftMetrics::new_initial(1);
        metrics.state = openraft::ServerState::Leader;
        metrics.current_term = term;
        metrics.last_log_index = Some(last);
        let membership = openraft::Membership::new_with_defaults(vec![BTreeSet::from([1, 2, 3])], []);
        metrics.membership_config = Arc::new(openraft::StoredMembership::new(None, membership));
        let at = |index| Some(log_from_mark(LogMark { term, index }));
        metrics.replication = Some(BTreeMap::from([(2, at(matched)), (3, at(last))]));
        let heard = Some(SerdeInstant::new(TokioInstant::now()));
        metrics.heartbeat = Some(BTreeMap::from([(2, heard), (3, heard)]));
        metrics
    }

    #[tokio::test(start_paused = true)]
    async fn leadership_goes_home_only_when_all_has_been_calm_for_long() {
        let mut home = Home::default();
        let mut hand_over = async |seconds, metrics: fn() -> RaftMetrics<TypeConfig>, preferred| {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            home.should_hand_over(Instant::now(), &metrics(), preferred)
        };
        assert!(!hand_over(0, || leading(3, 1000, 1000), 2).await);
        assert!(!hand_over(8, || leading(3, 2000, 2000), 2).await, "has not led long enough");
        assert!(!hand_over(1, || leading(3, 3000, 1000), 2).await, "is too far behind");
        assert!(!hand_over(2, || leading(3, 3000, 2900), 2).await, "has only just caught up");
        assert!(!hand_over(4, || leading(3, 3100, 3000), 2).await);
        assert!(!hand_over(9, || leading(3, 3100, 3000), 1).await, "is home already");
        assert!(!hand_over(0, || leading(3, 3100, 3100), 2).await, "time starts again");
        assert!(!hand_over(9, || leading(4, 3100, 3100), 2).await, "another term");
        assert!(!hand_over(9, || leading(4, 3100, 3100), 7).await, "is no voter");
        assert!(!hand_over(0, || leading(4, 3100, 3100), 2).await);
        assert!(hand_over(6, || leading(4, 3100, 3000), 2).await);
    }

    #[tokio::test(start_paused = true)]
    async fn leaders_of_new_groups_are_spread_at_once() {
        let mut home = Home::default();
        assert!(!home.should_hand_over(Instant::now(), &leading(1, 3, 3), 2));
        tokio::time::advance(NEW_GROUP_CALM_FOR).await;
        assert!(home.should_hand_over(Instant::now(), &leading(1, 4, 3), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn leader_whose_disk_stands_still_is_noticed() {
        let mut home = Home::default();
        let mut stalled = async |seconds, leader, flushed, last| {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            home.flush_stalled(Instant::now(), leader, Some(flushed), Some(last))
        };
        assert!(!stalled(0, true, 5, 9).await);
        assert!(!stalled(4, true, 6, 9).await, "it moves");
        assert!(!stalled(4, true, 6, 99).await);
        assert!(stalled(1, true, 6, 99).await);
        assert!(!stalled(0, false, 6, 99).await, "followers need not care");
        assert!(!stalled(9, true, 99, 99).await, "nothing waits");
        assert!(!stalled(9, true, 99, 100).await);
    }
}
