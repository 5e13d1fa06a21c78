//! The leader's part when a node comes back under another identity.
//!
//! The node asks again and again, and each time the leader does the next step that is missing: give the identity out by
//! an entry, take it in as a learner, and once it holds the log, make it a voter and drop the node's former identities,
//! by one change of membership. Every step leaves its mark in the log, so it does not matter which leader does the next,
//! or whether the one before has died in the middle.
//!
//! Why this is safe: the change needs a majority of the voters without the node that asks, and whoever leads with such a
//! majority holds every entry that a lost acknowledgement of that node helped to commit.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use openraft::Instant as _;
use openraft::async_runtime::WatchReceiver;
use openraft::metrics::RaftMetrics;
use openraft::storage::RaftStateMachine;
use openraft::{ChangeMembers, Raft};
use raft_store::{LOST_STORE, Member, Payload};

use super::Timing;
use super::type_config::{SnapshotData, TypeConfig};
use crate::peer::PeerHub;
use crate::peer::rejoin::{ReplaceRequest, Replaced};
use crate::state_machine::command::IdentityWanted;
use crate::state_machine::{ApplyReply, Command, CommandReply};

/// How long one step may take before the node is told to ask again.
pub(crate) const STEP_TIME_MAX: Duration = Duration::from_secs(5);
/// How long a learner is waited for before the node is told to ask again.
const CATCH_UP_WAIT: Duration = Duration::from_secs(1);

/// Serves nodes that come back.
pub(super) struct Replacing<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> {
    pub(super) raft: Raft<TypeConfig, SM>,
    pub(super) hub: PeerHub,
    pub(super) group: String,
    pub(super) generation: u64,
    pub(super) timing: Timing,
}

impl<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> Replacing<SM> {
    /// Does the next step for `node`.
    ///
    /// # Errors
    /// The reason, in words, why the node has no place in this group, or why the step did not succeed this time.
    pub(super) async fn step(&self, node: &str, request: ReplaceRequest) -> Result<Replaced, String> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        if !self.leads(&metrics) {
            let leader = metrics.current_leader.filter(|leader| *leader != metrics.id);
            let member = leader.and_then(|id| metrics.membership_config.membership().get_node(&id).cloned());
            return Ok(Replaced::NotLeader { node: member.map(|member| member.node).unwrap_or_default() });
        }
        let step = self.next_step(&metrics, node, request);
        tokio::time::timeout(STEP_TIME_MAX, step).await.map_err(|_| "not finished in time; ask again".to_owned())?
    }

    fn leads(&self, metrics: &RaftMetrics<TypeConfig>) -> bool {
        metrics.state.is_leader() && metrics.vote.committed && metrics.vote.leader_id.voted_for == metrics.id
    }

    async fn next_step(
        &self,
        metrics: &RaftMetrics<TypeConfig>,
        node: &str,
        request: ReplaceRequest,
    ) -> Result<Replaced, String> {
        let membership = metrics.membership_config.membership();
        if membership.nodes().all(|(_, member)| member.node != node) {
            return Err(format!("node {node} is no member of group {}: it must be added as a new one", self.group));
        }
        // Which identity a lost store had last is not known where it was lost.
        let is_lost = request.former.1 == LOST_STORE;
        let ids = membership.nodes().filter(|(_, member)| is_lost && member.node == node).map(|(id, _)| *id);
        for id in ids.chain([request.former.0]).filter(|id| Some(*id) != request.present) {
            let heard = metrics.heartbeat.as_ref().and_then(|all| all.get(&id).copied().flatten());
            if heard.is_some_and(|at| at.into_inner().elapsed() < self.timing.election_timeout_max) {
                return Err(format!(
                    "node {id} of group {} was heard a moment ago: its own process has not retired it",
                    self.group
                ));
            }
        }
        let node_id = self.give_identity(node, &request).await?;
        let generation = self.generation;
        if membership.get_node(&node_id).is_none() {
            let member = Member {
                node: node.to_owned(),
                raft_addr: request.raft_addr.clone(),
                client_addr: request.client_addr.clone(),
            };
            self.hub.set_members(&self.group, super::addresses(&BTreeMap::from([(node_id, member.clone())])));
            self.raft.add_learner(node_id, member, false).await.map_err(|error| error.to_string())?;
            tracing::info!(
                group = self.group,
                node,
                node_id,
                "node has come back under another identity, as a learner"
            );
            return Ok(Replaced::Learner { node_id, generation });
        }
        let former: BTreeSet<u64> = membership
            .nodes()
            .filter(|(id, member)| member.node == node && **id != node_id)
            .map(|(id, _)| *id)
            .collect();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        if former.is_empty() && voters.contains(&node_id) && membership.get_joint_config().len() == 1 {
            return Ok(Replaced::Voter { node_id, generation });
        }
        if !self.has_caught_up(metrics, node_id).await {
            return Ok(Replaced::Learner { node_id, generation });
        }
        let (former_voters, former_learners) = former.iter().partition(|id| voters.contains(id));
        let change = ChangeMembers::Batch(vec![
            ChangeMembers::AddVoterIds(BTreeSet::from([node_id])),
            ChangeMembers::RemoveVoters(former_voters),
            ChangeMembers::RemoveNodes(former_learners),
        ]);
        self.raft.change_membership(change, false).await.map_err(|error| error.to_string())?;
        tracing::info!(group = self.group, node, node_id, ?former, "node votes under its new identity");
        Ok(Replaced::Voter { node_id, generation })
    }

    async fn give_identity(&self, node: &str, request: &ReplaceRequest) -> Result<u64, String> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let command = Command::GiveIdentity(IdentityWanted {
            node_name: node.to_owned(),
            store_uuid: request.store_uuid,
            former: request.former.0,
            former_uuid: request.former.1,
            stamped_ms: i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        });
        let written = self.raft.client_write(Payload(command.encode())).await.map_err(|error| error.to_string())?;
        match written.data {
            ApplyReply::Command { reply: CommandReply::Identity { node_id }, .. } => Ok(node_id),
            ApplyReply::Command { reply: CommandReply::Refused(refused), .. } => Err(refused.to_string()),
            other => Err(format!("{other:?} is no identity")),
        }
    }

    /// Whether the learner holds what this leader held when it was asked.
    async fn has_caught_up(&self, metrics: &RaftMetrics<TypeConfig>, node_id: u64) -> bool {
        let target = metrics.last_log_index;
        let holds = |now: &RaftMetrics<TypeConfig>| {
            let matched = now.replication.as_ref().and_then(|all| all.get(&node_id).copied().flatten());
            matched.map(|id| id.index()) >= target
        };
        let wait = CATCH_UP_WAIT.max(self.timing.election_timeout_max);
        self.raft.wait(Some(wait)).metrics(holds, "a returning node holds the log").await.is_ok()
    }
}
