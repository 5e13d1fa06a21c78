//! Moves leadership on purpose: to a named replica, home to the preferred one, or away before the node stops.

use std::sync::Arc;
use std::time::Duration;

use openraft::Raft;
use openraft::async_runtime::WatchReceiver;
use openraft::metrics::RaftMetrics;
use openraft::storage::RaftStateMachine;

use super::error::AdminError;
use super::proposal_gate::ProposalGate;
use super::type_config::{SnapshotData, TypeConfig};
use super::{Timing, member, stopped};

/// What happens if proposals in flight do not meet their fate in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Leadership stays where it is.
    Calm,
    /// Leadership moves all the same, and senders of what is in flight learn that the outcome is unknown.
    Leaving,
}

/// Hands over the leadership of one replica. Cheap to clone.
pub(super) struct HandOver<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> {
    pub(super) raft: Raft<TypeConfig, SM>,
    pub(super) gate: Arc<ProposalGate>,
    pub(super) timing: Timing,
}

impl<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> Clone for HandOver<SM> {
    fn clone(&self) -> Self {
        Self { raft: self.raft.clone(), gate: Arc::clone(&self.gate), timing: self.timing }
    }
}

impl<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> HandOver<SM> {
    /// Who would lead if leadership were handed to `to`, or to the voter that misses least.
    pub(super) fn successor(&self, to: Option<u64>) -> Result<u64, AdminError> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        if !metrics.state.is_leader() {
            let leader = metrics.current_leader.and_then(|id| Some((id, member(&metrics, id)?)));
            return Err(AdminError::NotLeader { reason: "leadership is not here to hand over".to_owned(), leader });
        }
        match to {
            Some(to) if to == metrics.id || metrics.membership_config.voter_ids().any(|voter| voter == to) => Ok(to),
            Some(to) => Err(AdminError::Refused(format!("node {to} is no voter"))),
            None => most_caught_up(&metrics).ok_or_else(|| AdminError::Refused("there is no other voter".to_owned())),
        }
    }

    /// Hands leadership to `to`, or to the voter that misses least, and waits until it has moved.
    ///
    /// New proposals wait meanwhile. Leadership moves once those before are applied and `to` has the whole log, so that
    /// no sender is left with an unknown outcome; `urgency` says what happens if that takes longer than the shortest
    /// election time-out.
    pub(super) async fn to(&self, to: Option<u64>, urgency: Urgency) -> Result<u64, AdminError> {
        let to = self.successor(to)?;
        let metrics = self.raft.metrics().borrow_watched().clone();
        let me = metrics.id;
        if to == me {
            return Ok(me);
        }
        let closed = self
            .gate
            .close()
            .ok_or_else(|| AdminError::Refused("leadership is being handed over already".to_owned()))?;
        let wait = self.raft.wait(Some(self.timing.election_timeout_min));
        let drained = async {
            closed.emptied().await;
            wait.metrics(|now| has_everything(now, to), "the next leader has the whole log").await
        };
        match tokio::time::timeout(self.timing.election_timeout_min, drained).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) if urgency == Urgency::Calm => {
                return Err(AdminError::Timeout(format!(
                    "entries in flight were not on node {to} in time; leadership stays"
                )));
            }
            Ok(Err(_)) | Err(_) => tracing::warn!(to, "leadership moves with entries in flight"),
        }
        let term = metrics.current_term;
        self.raft.trigger().transfer_leader(to).await.map_err(stopped)?;
        let time_max: Duration = 2 * self.timing.election_timeout_max;
        let moved = self
            .raft
            .wait(Some(time_max))
            .metrics(
                |now| now.current_term > term && now.current_leader.is_some_and(|leader| leader != me),
                "leadership moves",
            )
            .await;
        match moved {
            Ok(now) => Ok(now.current_leader.unwrap_or(to)),
            Err(error) => Err(AdminError::Timeout(error.to_string())),
        }
    }
}

/// Whether `to` has every entry of this leader, or this replica leads no more.
fn has_everything(metrics: &RaftMetrics<TypeConfig>, to: u64) -> bool {
    let Some(replication) = &metrics.replication else { return true };
    let matched = replication.get(&to).and_then(|matched| matched.as_ref().map(|id| id.index()));
    matched >= metrics.last_log_index
}

/// The follower that misses least, among the voters.
pub(super) fn most_caught_up(metrics: &RaftMetrics<TypeConfig>) -> Option<u64> {
    let replication = metrics.replication.as_ref()?;
    metrics
        .membership_config
        .voter_ids()
        .filter(|voter| *voter != metrics.id)
        .max_by_key(|voter| replication.get(voter).and_then(|matched| matched.as_ref().map(|id| id.index())))
}
