//! The whole cluster, as the nodes that answer see it.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::Json;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::relay::Relay;
use super::{Admin, DiskStatus, GroupStatus, NodeState, NodeStatus, Nothing, ReplicaRole, SyncStatus};

/// Entries that a member may be behind while all is well.
const LAG_MAX: u64 = 1_000;

/// All nodes and groups that share a group with the node that was asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClusterStatus {
    /// RocketMQ's cluster name.
    pub cluster: String,
    /// The cluster's identity in hex.
    pub cluster_id: String,
    /// The node that asked all others.
    pub seen_by: String,
    /// Nothing needs a person.
    pub healthy: bool,
    /// One sentence.
    pub health: String,
    /// All nodes, by name.
    pub nodes: Vec<NodeView>,
    /// All groups, by name.
    pub groups: Vec<GroupView>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// Its name.
    pub node: String,
    /// Why nothing is known of it, if it does not answer.
    pub error: Option<String>,
    /// Where it is in its life.
    pub state: Option<NodeState>,
    /// Whether `/health/ready` says yes there.
    pub ready: bool,
    /// It leads nothing as long as others can.
    pub drained: bool,
    /// Its own sentence.
    pub health: Option<String>,
    /// Version of the program.
    pub version: Option<String>,
    /// Since its process started.
    pub uptime_ms: Option<u64>,
    /// The number of its process.
    pub pid: Option<u32>,
    /// The groups that it leads.
    pub leads: Vec<String>,
    /// The fullest disk of its groups.
    pub disk: Option<DiskStatus>,
}

/// One group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GroupView {
    /// RocketMQ's broker name.
    pub name: String,
    /// The node that leads and answers clients.
    pub leader: Option<String>,
    /// The node that leads whenever it can.
    pub preferred_leader: Option<String>,
    /// The newest term that any member knows.
    pub term: u64,
    /// All members.
    pub members: Vec<ReplicaView>,
}

/// One member of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaView {
    /// The node.
    pub node: String,
    /// Raft identity.
    pub id: u64,
    /// It votes; a learner does not.
    pub voter: bool,
    /// What it is; none if its node does not answer.
    pub role: Option<ReplicaRole>,
    /// Last entry in its log; of a silent node, the last one that the leader knows of.
    pub last: Option<u64>,
    /// Last entry on its disk.
    pub flushed: Option<u64>,
    /// Last entry that it knows a majority has.
    pub committed: Option<u64>,
    /// Last entry that its state machine has seen.
    pub applied: Option<u64>,
    /// Entries that the leader has and it does not.
    pub lag_entries: Option<u64>,
    /// Their bytes.
    pub lag_bytes: Option<u64>,
    /// It is far behind, and sent what it lacks.
    pub catching_up: bool,
    /// A part of its log is damaged.
    pub damaged: bool,
    /// It has given up its identity and does not vote under the next one yet.
    pub returning: bool,
    /// How long syncs of its log take.
    pub sync: Option<SyncStatus>,
}

/// What each node says of itself, or why it says nothing.
pub(super) type Answers = BTreeMap<String, Result<NodeStatus, String>>;

pub(super) fn routes() -> OpenApiRouter<Arc<dyn Admin>> {
    OpenApiRouter::new().routes(routes!(cluster))
}

/// All nodes and groups: who leads, how far each member is, and whether anything needs a person.
#[utoipa::path(get, path = "/v1/cluster", tag = "cluster", responses((status = 200, body = ClusterStatus)))]
async fn cluster(
    State(admin): State<Arc<dyn Admin>>,
    headers: HeaderMap,
    Query(_): Query<Nothing>,
) -> Json<ClusterStatus> {
    Json(look(Relay::new(&*admin, &headers)).await)
}

/// Asks everybody.
pub(super) async fn look(relay: Relay<'_>) -> ClusterStatus {
    let mut answers: Answers = relay.get_of_others(|_| "/v1/status".to_owned()).await;
    let own = relay.admin.status();
    answers.insert(own.node.clone(), Ok(own));
    assemble(&relay.admin.node(), &answers)
}

/// Puts together what the nodes say.
pub(super) fn assemble(seen_by: &str, answers: &Answers) -> ClusterStatus {
    let statuses: BTreeMap<&str, &NodeStatus> =
        answers.iter().filter_map(|(node, answer)| Some((node.as_str(), answer.as_ref().ok()?))).collect();
    let mut names: Vec<&str> =
        statuses.values().flat_map(|status| &status.groups).map(|group| group.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let groups: Vec<GroupView> = names.into_iter().map(|name| group_view(name, &statuses)).collect();
    let nodes: Vec<NodeView> = answers.iter().map(|(node, answer)| node_view(node, answer, &groups)).collect();
    let any = statuses.values().next();
    let problem = problem(&nodes, &groups);
    ClusterStatus {
        cluster: any.map_or_else(String::new, |status| status.cluster.clone()),
        cluster_id: any.map_or_else(String::new, |status| status.cluster_id.clone()),
        seen_by: seen_by.to_owned(),
        healthy: problem.is_none(),
        health: problem.unwrap_or_else(|| {
            let replicas: usize = groups.iter().map(|group| group.members.len()).sum();
            format!(
                "all is well: {} nodes answer, {} groups have a leader, {replicas} replicas keep up",
                nodes.len(),
                groups.len()
            )
        }),
        nodes,
        groups,
    }
}

fn node_view(node: &str, answer: &Result<NodeStatus, String>, groups: &[GroupView]) -> NodeView {
    let status = answer.as_ref().ok();
    let disks = status.into_iter().flat_map(|status| &status.groups).filter_map(|group| group.disk.clone());
    NodeView {
        node: node.to_owned(),
        error: answer.as_ref().err().cloned(),
        state: status.map(|status| status.state),
        ready: status.is_some_and(|status| status.ready),
        drained: status.is_some_and(|status| status.drained),
        health: status.map(|status| status.health.clone()),
        version: status.map(|status| status.version.clone()),
        uptime_ms: status.map(|status| status.uptime_ms),
        pid: status.map(|status| status.pid),
        leads: groups
            .iter()
            .filter(|group| group.leader.as_deref() == Some(node))
            .map(|group| group.name.clone())
            .collect(),
        disk: disks.min_by_key(|disk| disk.free_bytes),
    }
}

fn group_view(name: &str, statuses: &BTreeMap<&str, &NodeStatus>) -> GroupView {
    let replicas: BTreeMap<&str, &GroupStatus> = statuses
        .iter()
        .filter_map(|(node, status)| Some((*node, status.groups.iter().find(|group| group.name == name)?)))
        .collect();
    let leader = replicas
        .iter()
        .filter(|(_, group)| group.role == ReplicaRole::Leader && group.gates_open)
        .max_by_key(|(_, group)| group.term);
    // Who knows the newest term knows the members best.
    let newest = leader.or_else(|| replicas.iter().max_by_key(|(_, group)| (group.term, group.committed)));
    let members = newest.map_or_else(Vec::new, |(_, newest)| {
        let view = |member: &super::MemberStatus| {
            let own = replicas.get(member.node.as_str());
            let leader = leader.map(|(_, leader)| leader);
            let last = own.map_or(member.matched, |own| own.last);
            let end = |group: &GroupStatus| group.log.map(|log| log.end_position);
            ReplicaView {
                node: member.node.clone(),
                id: member.id,
                voter: member.voter,
                role: own.map(|own| own.role),
                last,
                flushed: own.and_then(|own| own.flushed),
                committed: own.and_then(|own| own.committed),
                applied: own.and_then(|own| own.applied),
                lag_entries: leader.and_then(|leader| Some(leader.last?.saturating_sub(last.unwrap_or(0)))),
                lag_bytes: leader.zip(own).and_then(|(leader, own)| Some(end(leader)?.saturating_sub(end(own)?))),
                catching_up: member.catching_up,
                damaged: own.is_some_and(|own| !own.damaged.is_empty()),
                returning: own.is_some_and(|own| own.returning),
                sync: own.and_then(|own| own.sync),
            }
        };
        newest.members.iter().map(view).collect()
    });
    GroupView {
        name: name.to_owned(),
        leader: leader.map(|(node, _)| (*node).to_owned()),
        preferred_leader: replicas.values().find_map(|group| group.preferred_leader.clone()),
        term: replicas.values().map(|group| group.term).max().unwrap_or(0),
        members,
    }
}

/// What needs a person most, in one sentence.
fn problem(nodes: &[NodeView], groups: &[GroupView]) -> Option<String> {
    let leaderless: Vec<&GroupView> = groups.iter().filter(|group| group.leader.is_none()).collect();
    if let Some(first) = leaderless.first() {
        let answering = first.members.iter().filter(|member| member.role.is_some()).count();
        let more =
            if leaderless.len() > 1 { format!(", nor have {} others", leaderless.len() - 1) } else { String::new() };
        return Some(format!(
            "group {} has no leader ({answering} of its {} members answer){more}",
            first.name,
            first.members.len()
        ));
    }
    let silent: Vec<&str> = nodes.iter().filter(|node| node.error.is_some()).map(|node| node.node.as_str()).collect();
    if !silent.is_empty() {
        return Some(format!("{} of {} nodes do not answer: {}", silent.len(), nodes.len(), silent.join(", ")));
    }
    let member = |text: &str, holds: &dyn Fn(&ReplicaView) -> bool| {
        groups.iter().find_map(|group| {
            let found = group.members.iter().find(|member| holds(member))?;
            Some(format!("the replica of {} on {} {text}", group.name, found.node))
        })
    };
    member("has failed", &|member| member.role == Some(ReplicaRole::Failed))
        .or_else(|| member("is damaged and does not lead", &|member| member.damaged))
        .or_else(|| member("does not vote until it has come back under another identity", &|member| member.returning))
        .or_else(|| member("is being recovered", &|member| member.role == Some(ReplicaRole::Recovering)))
        .or_else(|| member("is catching up", &|member| member.catching_up))
        .or_else(|| member("is behind the leader", &|member| member.lag_entries.is_some_and(|lag| lag > LAG_MAX)))
        .or_else(|| {
            nodes.iter().find(|node| !node.ready).map(|node| {
                let own = node.health.as_deref().unwrap_or("it is not ready");
                format!("node {}: {own}", node.node)
            })
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A node of three with one group, which n1 leads.
    fn node(name: &str, change: impl Fn(&mut Value)) -> (String, Result<NodeStatus, String>) {
        let members: Vec<Value> = ["n1", "n2", "n3"]
            .iter()
            .enumerate()
            .map(|(at, node)| {
                json!({ "id": at + 1, "node": node, "client_addr": "127.0.0.1:1", "voter": true, "matched": 80,
                    "catching_up": false })
            })
            .collect();
        let leads = name == "n1";
        let log = json!({ "first": 1, "start_position": 0, "end_position": 9_000, "segments": 1, "file_bytes": 1,
            "earliest_message_ms": null, "snapshot": null, "dropped_segments": 0 });
        let mut status = json!({
            "cluster": "c", "cluster_id": "00", "node": name, "version": "1", "state": "running", "ready": true,
            "health": "every group has a leader", "uptime_ms": 1, "start_to_ready_ms": 1, "name_servers": [],
            "retention": { "time_ms": 1, "delete_hours": [], "pressure": "none", "clock_ahead_ms": null },
            "groups": [{
                "name": "a", "client_addr": "127.0.0.1:1", "id": 1, "role": if leads { "leader" } else { "follower" },
                "gates_open": leads, "term": 7, "leader": null, "last": 100, "flushed": 100, "committed": 100,
                "applied": 100, "members": members, "log": log,
            }],
        });
        change(&mut status);
        (name.to_owned(), Ok(serde_json::from_value(status).unwrap()))
    }

    fn check(nodes: [(String, Result<NodeStatus, String>); 3], healthy: bool, health: &str) -> ClusterStatus {
        let status = assemble("n1", &nodes.into());
        assert_eq!((status.healthy, status.health.as_str()), (healthy, health));
        status
    }

    #[test]
    fn members_show_how_far_they_are_behind_the_leader() {
        let behind = |status: &mut Value| {
            status["groups"][0]["last"] = 90.into();
            status["groups"][0]["log"]["end_position"] = 8_000.into();
        };
        let nodes = [node("n1", |_| {}), node("n2", behind), ("n3".to_owned(), Err("gone".to_owned()))];
        let status = check(nodes, false, "1 of 3 nodes do not answer: n3");
        assert_eq!((status.groups[0].leader.as_deref(), status.groups[0].term), (Some("n1"), 7));
        let lags: Vec<_> =
            status.groups[0].members.iter().map(|member| (member.lag_entries, member.lag_bytes)).collect();
        assert_eq!(lags, [(Some(0), Some(0)), (Some(10), Some(1_000)), (Some(20), None)]);
        assert_eq!(
            (&status.nodes[0].leads[..], status.nodes[2].error.as_deref()),
            (&["a".to_owned()][..], Some("gone"))
        );
    }

    #[test]
    fn health_says_what_needs_a_person_most() {
        let well = |name: &str| node(name, |_| {});
        let all_well = "all is well: 3 nodes answer, 1 groups have a leader, 3 replicas keep up";
        check([well("n1"), well("n2"), well("n3")], true, all_well);
        let closed = |name: &str| node(name, |status| status["groups"][0]["gates_open"] = false.into());
        let gone = |name: &str| (name.to_owned(), Err("gone".to_owned()));
        check([closed("n1"), well("n2"), gone("n3")], false, "group a has no leader (2 of its 3 members answer)");
        let damage = json!([{ "file": "f", "from": 1, "to": 2, "found": "x" }]);
        let damaged = node("n3", |status| status["groups"][0]["damaged"] = damage.clone());
        check([well("n1"), well("n2"), damaged], false, "the replica of a on n3 is damaged and does not lead");
        let late = node("n3", |status| status["groups"][0]["members"][2]["catching_up"] = true.into());
        check([well("n1"), well("n2"), late], true, all_well);
        let sees_late = node("n1", |status| status["groups"][0]["members"][2]["catching_up"] = true.into());
        check([sees_late, well("n2"), well("n3")], false, "the replica of a on n3 is catching up");
        let unready = node("n2", |status| {
            status["ready"] = false.into();
            status["health"] = "no name server knows this node".into();
        });
        check([well("n1"), unready, well("n3")], false, "node n2: no name server knows this node");
    }
}
