//! A replica whose identity was retired asks for another, and goes on asking until it votes under it.
//!
//! Which step is due is the leader's to say (`raft::replace`): the same question is asked until the answer is "voter". So
//! a crash of either side anywhere on the way costs nothing but time.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use raft_store::Recovered;

use super::group::{Context, NodeGroup, Running};
use crate::peer::rejoin::{ReplaceRequest, Replaced};
use crate::peer::{GroupIdentity, PeerAddress};
use crate::raft::replace::STEP_TIME_MAX;

/// Pause before everybody is asked again.
const ROUND_PAUSE: Duration = Duration::from_millis(200);
/// What a leader may need, and the way.
const ANSWER_TIME_MAX: Duration = STEP_TIME_MAX.saturating_add(Duration::from_secs(1));

/// The identity that a replica had, and the name of its store since it has given it up.
pub(super) struct Former {
    identity: GroupIdentity,
    store_uuid: [u8; 16],
}

/// What a leader has given out.
pub(super) struct Given {
    pub(super) node_id: u64,
    pub(super) generation: u64,
}

impl Former {
    /// None if no identity was ever retired.
    pub(super) fn of(recovered: &Recovered, group: &str) -> Option<Self> {
        let last = recovered.retired.last()?;
        let identity = GroupIdentity {
            group: group.to_owned(),
            node_id: last.node_id,
            store_uuid: last.store_uuid,
            start_counter: recovered.start_counter,
            generation: recovered.generation,
        };
        Some(Self { identity, store_uuid: recovered.store_uuid })
    }

    fn request(&self, group: &NodeGroup, running: Option<&Running>) -> ReplaceRequest {
        let own = group.options().own_member();
        ReplaceRequest {
            former: (self.identity.node_id, self.identity.store_uuid),
            store_uuid: self.store_uuid,
            present: running.map(Running::node_id),
            raft_addr: own.raft_addr.clone(),
            client_addr: own.client_addr.to_string(),
        }
    }
}

/// Asks until a leader has given an identity out.
pub(super) async fn ask(group: &NodeGroup, context: &Context, former: &Former) -> Given {
    let mut said = String::new();
    loop {
        match round(group, context, former, None).await {
            Ok(Replaced::Learner { node_id, generation } | Replaced::Voter { node_id, generation }) => {
                tracing::info!(group = group.name(), node_id, "identity given out");
                return Given { node_id, generation };
            }
            Ok(Replaced::NotLeader { .. }) => {}
            Err(reason) if reason != said => {
                tracing::info!(group = group.name(), reason, "no identity yet");
                said = reason;
            }
            Err(_) => {}
        }
        tokio::time::sleep(ROUND_PAUSE).await;
    }
}

/// Asks until the replica votes and its former identities are gone, and then waits for ever.
pub(super) async fn until_voter(group: &NodeGroup, context: &Context, running: &Running) -> Infallible {
    let Some(former) = Former::of(&running.recovered, group.name()) else { return std::future::pending().await };
    while !is_settled(group, running) {
        group.set_returning(true);
        if let Err(reason) = round(group, context, &former, Some(running)).await {
            tracing::debug!(group = group.name(), reason, "does not vote yet");
        }
        tokio::time::sleep(ROUND_PAUSE).await;
    }
    if group.is_returning() {
        tracing::info!(group = group.name(), node_id = running.node_id(), "back: votes under its new identity");
        group.set_returning(false);
    }
    std::future::pending().await
}

fn is_settled(group: &NodeGroup, running: &Running) -> bool {
    let metrics = running.raft.metrics();
    let own_node = &group.options().own_member().node;
    let alone = metrics.members.iter().all(|(id, member)| *id == metrics.node_id || member.node != *own_node);
    let [voters] = metrics.voters.as_slice() else { return false };
    alone && voters.contains(&metrics.node_id)
}

/// Asks every other node once, whoever is said to lead first.
async fn round(
    group: &NodeGroup,
    context: &Context,
    former: &Former,
    running: Option<&Running>,
) -> Result<Replaced, String> {
    let request = former.request(group, running);
    let own_node = &group.options().own_member().node;
    if let Some(running) = running
        && running.raft.role().borrow().is_leader()
    {
        return running.raft.replace(own_node, request).await;
    }
    let mut peers: BTreeMap<String, String> =
        group.known_members().members.into_values().map(|member| (member.node, member.raft_addr)).collect();
    if let Some(running) = running {
        let members = running.raft.metrics().members;
        peers.extend(members.into_values().map(|member| (member.node, member.raft_addr)));
    }
    peers.remove(own_node);
    let fields = request.encode();
    let mut last = Err("there is nobody to ask".to_owned());
    let mut said_to_lead: Option<String> = None;
    while let Some(node) =
        said_to_lead.take().filter(|node| peers.contains_key(node)).or_else(|| peers.keys().next().cloned())
    {
        let raft_addr = peers.remove(&node).unwrap_or_default();
        let address = PeerAddress { node: node.clone(), raft_addr };
        let asked = context.hub.ask_to_rejoin(&address, &former.identity, &fields, ANSWER_TIME_MAX).await;
        last = match asked {
            Ok(frame) => Replaced::decode(&frame).map_err(|error| error.to_string()),
            Err(error) => Err(format!("{node}: {error}")),
        };
        match &last {
            Ok(Replaced::NotLeader { node }) => said_to_lead = Some(node.clone()),
            Ok(_) => return last,
            Err(_) => {}
        }
    }
    last
}
