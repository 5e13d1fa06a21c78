//! Who leads what: draining nodes, and spreading leaders over them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method};
use axum::response::Json;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::change::{Change, Changed};
use super::cluster::{self, ClusterStatus, GroupView};
use super::relay::Relay;
use super::{Admin, AdminError, NodeState, Nothing};

/// A leadership moves within this time.
const MOVE_TIME_MAX: Duration = Duration::from_secs(10);
/// Who is this close behind can take over at once.
const LAG_MAX: u64 = 256;

/// What a change of whether a node is drained has come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DrainStatus {
    /// The node.
    pub node: String,
    /// It leads nothing as long as others can.
    pub drained: bool,
    /// The groups that it leads all the same, because nobody else can just now.
    pub still_leads: Vec<String>,
}

/// What balancing has done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BalanceReport {
    /// Leaderships that were to move; none, if all is balanced.
    pub moves: Vec<Move>,
}

/// One leadership that is to move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Move {
    /// The group.
    pub group: String,
    /// The node that leads it.
    pub from: String,
    /// The node that is to.
    pub to: String,
    /// Why it has not moved, if it has not.
    pub error: Option<String>,
}

/// Answered by the node in the path.
pub(super) fn named_node_routes() -> OpenApiRouter<Arc<dyn Admin>> {
    OpenApiRouter::new().routes(routes!(drain)).routes(routes!(undrain))
}

/// Answered where they come in.
pub(super) fn routes() -> OpenApiRouter<Arc<dyn Admin>> {
    OpenApiRouter::new().routes(routes!(balance))
}

/// Moves all leaderships away from a node, and gives it none until it is undrained, over restarts too.
#[utoipa::path(post, path = "/v1/nodes/{node}/drain", tag = "nodes",
    params(("node" = String, Path, description = "The node"), Change::<Nothing>),
    responses((status = 200, body = Changed<DrainStatus>)))]
async fn drain(
    State(admin): State<Arc<dyn Admin>>,
    Path(node): Path<String>,
    Change { dry_run, .. }: Change,
) -> Result<Json<Changed<DrainStatus>>, AdminError> {
    if dry_run {
        let leads = admin.leads();
        let what = if leads.is_empty() { "nothing just now".to_owned() } else { leads.join(", ") };
        return Ok(Changed::planned(format!("{node} would give away what it leads ({what}) and be given nothing")));
    }
    admin.set_drained(true).await.map(Changed::done)
}

/// Lets a node lead again.
#[utoipa::path(post, path = "/v1/nodes/{node}/undrain", tag = "nodes",
    params(("node" = String, Path, description = "The node"), Change::<Nothing>),
    responses((status = 200, body = Changed<DrainStatus>)))]
async fn undrain(
    State(admin): State<Arc<dyn Admin>>,
    Path(node): Path<String>,
    Change { dry_run, .. }: Change,
) -> Result<Json<Changed<DrainStatus>>, AdminError> {
    if dry_run {
        return Ok(Changed::planned(format!("{node} could lead again")));
    }
    admin.set_drained(false).await.map(Changed::done)
}

/// Moves leaderships to preferred leaders, and spreads those of groups without one over the nodes.
#[utoipa::path(post, path = "/v1/cluster/balance", tag = "cluster", params(Change::<Nothing>),
    responses((status = 200, body = Changed<BalanceReport>)))]
async fn balance(
    State(admin): State<Arc<dyn Admin>>,
    headers: HeaderMap,
    Change { dry_run, .. }: Change,
) -> Result<Json<Changed<BalanceReport>>, AdminError> {
    let relay = Relay::new(&*admin, &headers);
    let mut moves = plan(&cluster::look(relay).await);
    if dry_run {
        let lines: Vec<_> =
            moves.iter().map(|planned| format!("{} from {} to {}", planned.group, planned.from, planned.to)).collect();
        let text = if lines.is_empty() { "nothing: all is balanced".to_owned() } else { lines.join(", ") };
        return Ok(Changed::planned(format!("leadership would move: {text}")));
    }
    for planned in &mut moves {
        planned.error = carry_out(relay, planned).await.err();
    }
    Ok(Changed::done(BalanceReport { moves }))
}

async fn carry_out(relay: Relay<'_>, planned: &Move) -> Result<(), String> {
    let Move { group, from, to, .. } = planned;
    if *from == relay.admin.node() {
        let moved = relay.admin.transfer_leader(group.clone(), Some(to.clone()), false).await;
        return moved.map(drop).map_err(|error| error.to_string());
    }
    let target = format!("/v1/groups/{group}/transfer-leader?to={to}");
    relay.call(Method::POST, from, target, MOVE_TIME_MAX).await.map(drop)
}

/// Which leaderships should move, and where to.
///
/// A preferred leader that can lead comes first. Then, among groups whose preferred leader cannot or that have none, one
/// after the other moves from the node that leads most to the one that leads least, until they differ by one at most.
fn plan(status: &ClusterStatus) -> Vec<Move> {
    let fit: Vec<&str> = status
        .nodes
        .iter()
        .filter(|node| node.state == Some(NodeState::Running) && !node.drained)
        .map(|node| node.node.as_str())
        .collect();
    let can_lead = |group: &GroupView, node: &str| {
        fit.contains(&node)
            && group.members.iter().any(|member| {
                let close = member.lag_entries.is_some_and(|lag| lag <= LAG_MAX);
                member.node == node && member.voter && close && !member.damaged && !member.returning
            })
    };
    let mut leads: BTreeMap<&str, &str> = BTreeMap::new();
    let mut fixed = Vec::new();
    for group in &status.groups {
        let Some(leader) = group.leader.as_deref() else { continue };
        let home = group.preferred_leader.as_deref().filter(|preferred| can_lead(group, preferred));
        leads.insert(&group.name, home.unwrap_or(leader));
        if home.is_some() {
            fixed.push(group.name.as_str());
        }
    }
    loop {
        let count = |node: &str| leads.values().filter(|leader| **leader == node).count();
        let step = status.groups.iter().filter(|group| !fixed.contains(&group.name.as_str())).find_map(|group| {
            let from = *leads.get(group.name.as_str())?;
            let to = *fit.iter().filter(|node| can_lead(group, node)).min_by_key(|node| count(node))?;
            // A node that should not lead gives away in any case.
            let gains = !fit.contains(&from) || count(from) >= count(to) + 2;
            (gains && from != to).then_some((group.name.as_str(), to))
        });
        let Some((group, to)) = step else { break };
        leads.insert(group, to);
    }
    let moves = status.groups.iter().filter_map(|group| {
        let (from, to) = (group.leader.clone()?, *leads.get(group.name.as_str())?);
        let planned = Move { group: group.name.clone(), to: to.to_owned(), error: None, from };
        (planned.from != to).then_some(planned)
    });
    moves.collect()
}

#[cfg(test)]
mod tests {
    use super::super::cluster::{NodeView, ReplicaView};
    use super::*;

    /// `groups` are name, leader and preferred leader; each has a member on every node that is named.
    fn status(nodes: &[&str], groups: &[(&str, &str, &str)]) -> ClusterStatus {
        let node = |node: &&str| NodeView {
            node: (*node).to_owned(),
            error: None,
            state: Some(NodeState::Running),
            ready: true,
            drained: false,
            health: None,
            version: None,
            uptime_ms: None,
            pid: None,
            leads: Vec::new(),
            disk: None,
        };
        let member = |node: &&str| ReplicaView {
            node: (*node).to_owned(),
            id: 1,
            voter: true,
            role: None,
            last: None,
            flushed: None,
            committed: None,
            applied: None,
            lag_entries: Some(0),
            lag_bytes: None,
            catching_up: false,
            damaged: false,
            returning: false,
            sync: None,
        };
        let group = |(name, leader, preferred): &(&str, &str, &str)| GroupView {
            name: (*name).to_owned(),
            leader: (!leader.is_empty()).then(|| (*leader).to_owned()),
            preferred_leader: (!preferred.is_empty()).then(|| (*preferred).to_owned()),
            term: 1,
            members: nodes.iter().map(member).collect(),
        };
        ClusterStatus {
            cluster: String::new(),
            cluster_id: String::new(),
            seen_by: String::new(),
            healthy: true,
            health: String::new(),
            nodes: nodes.iter().map(node).collect(),
            groups: groups.iter().map(group).collect(),
        }
    }

    fn check(status: &ClusterStatus, expected: &str) {
        let moves: Vec<_> =
            plan(status).iter().map(|planned| format!("{} {}>{}", planned.group, planned.from, planned.to)).collect();
        assert_eq!(moves.join(" "), expected);
    }

    const NODES: [&str; 3] = ["n1", "n2", "n3"];

    #[test]
    fn preferred_leaders_come_first() {
        check(&status(&NODES, &[("a", "n1", "n1"), ("b", "n1", "n2"), ("c", "n1", "n3")]), "b n1>n2 c n1>n3");
        check(&status(&NODES, &[("a", "n1", "n1"), ("b", "n2", "n2"), ("c", "", "n3")]), "");
    }

    #[test]
    fn others_are_spread_and_left_alone_once_they_are() {
        check(&status(&NODES, &[("a", "n1", ""), ("b", "n1", ""), ("c", "n1", "")]), "a n1>n2 b n1>n3");
        check(&status(&NODES, &[("a", "n1", ""), ("b", "n1", ""), ("c", "n2", "")]), "a n1>n3");
        check(&status(&NODES, &[("a", "n1", ""), ("b", "n2", "")]), "");
        check(&status(&["n1", "n2"], &[("a", "n1", ""), ("b", "n1", ""), ("c", "n2", "")]), "");
    }

    #[test]
    fn who_is_drained_silent_or_behind_is_given_nothing() {
        let groups = [("a", "n1", "n2"), ("b", "n1", "n3"), ("c", "n1", "n1")];
        let mut drained = status(&NODES, &groups);
        drained.nodes[1].drained = true;
        check(&drained, "b n1>n3");
        let mut silent = status(&NODES, &groups);
        silent.nodes[2].state = None;
        check(&silent, "a n1>n2");
        let mut behind = status(&NODES, &groups);
        for group in &mut behind.groups {
            group.members[1].lag_entries = Some(LAG_MAX + 1);
        }
        check(&behind, "b n1>n3");
        // One that is drained and leads gives away.
        let mut leads = status(&NODES, &[("a", "n1", "n1"), ("b", "n2", "n2")]);
        leads.nodes[0].drained = true;
        check(&leads, "a n1>n3");
    }
}
