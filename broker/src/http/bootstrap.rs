//! A new cluster by one call: nodes that wait with empty directories are looked at, all of them, and told to begin.
//!
//! ```text
//!  gantry broker --await-bootstrap      on every node: waits, holds nothing, votes for nobody
//!  POST /v1/cluster/bootstrap           on one of them:
//!      every node named as a member ----> GET /v1/nodes/NODE/begin    all there, all empty, all of one mind?
//!      those who create no group, then the others -> POST /v1/nodes/NODE/begin
//! ```
//!
//! A node that is told to begin does what `--bootstrap` allows. It must be told while no other node has data: an empty
//! directory beside others that are full is a lost disk, which comes back in another way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, Method};
use axum::response::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::change::{Change, Changed};
use super::relay::Relay;
use super::{Admin, AdminError, Nothing};

/// What whoever lets one node begin has to say: that he has seen it of all others. A voter that begins anew beside others
/// that have data can lose what was acknowledged.
const CONFIRM_WORD: &str = "every-node-is-empty";
/// A node makes its files within this time.
const BEGIN_TIME_MAX: Duration = Duration::from_secs(40);

/// How far a node is with a new cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum BeginState {
    /// It has nothing and waits to be told.
    Waiting,
    /// It has begun, and its groups have no members yet.
    Begun,
    /// It has data, or was started in another way.
    Data,
}

/// What a node says before a cluster begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BeginStatus {
    /// The node.
    pub node: String,
    /// How far it is.
    pub state: BeginState,
    /// Its groups, as its configuration has them.
    pub groups: Vec<BeginGroup>,
}

/// A group that is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BeginGroup {
    /// Its name.
    pub name: String,
    /// Its members, in the order of their identities. The first one creates it.
    pub members: Vec<BeginMember>,
}

/// One of its members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BeginMember {
    /// Raft identity; 0 on a node that joins.
    pub id: u64,
    /// Node name.
    pub node: String,
    /// Where peers reach it.
    pub raft_addr: String,
    /// Where clients reach it.
    pub client_addr: String,
}

/// A cluster that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BootstrapReport {
    /// All its nodes.
    pub nodes: Vec<String>,
    /// Those that this call has told to begin; none, if all had begun before.
    pub begun: Vec<String>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct BeginQuery {
    /// The word `every-node-is-empty`, from somebody who has looked.
    confirm: String,
}

/// Answered where it comes in.
pub(super) fn routes() -> OpenApiRouter<Arc<dyn Admin>> {
    OpenApiRouter::new().routes(routes!(bootstrap))
}

/// Answered by the node in the path.
pub(super) fn named_node_routes() -> OpenApiRouter<Arc<dyn Admin>> {
    OpenApiRouter::new().routes(routes!(begin_status, begin))
}

/// Begins a new cluster from nodes that all wait for it with empty directories.
#[utoipa::path(post, path = "/v1/cluster/bootstrap", tag = "cluster", params(Change::<Nothing>),
    responses((status = 200, body = Changed<BootstrapReport>)))]
async fn bootstrap(
    State(admin): State<Arc<dyn Admin>>,
    headers: HeaderMap,
    Change { dry_run, .. }: Change,
) -> Result<Json<Changed<BootstrapReport>>, AdminError> {
    let relay = Relay::new(&*admin, &headers);
    let mut all = relay.get_of_others(|node| format!("/v1/nodes/{node}/begin")).await;
    let own = admin.begin_status();
    all.insert(own.node.clone(), Ok(own));
    let to_tell = plan(&admin.node(), &all)?;
    let nodes: Vec<String> = all.into_keys().collect();
    if dry_run {
        let would = match to_tell.as_slice() {
            [] => "nothing: every node has begun".to_owned(),
            _ => format!("{} would begin a new cluster, in this order", to_tell.join(", ")),
        };
        return Ok(Changed::planned(would));
    }
    for (at, node) in to_tell.iter().enumerate() {
        let begun = &to_tell[..at];
        tell(relay, node).await.map_err(|why| {
            AdminError::Unknown(format!(
                "node {node} was told to begin and has not said that it did: {why}; begun before it: {}",
                if begun.is_empty() { "none".to_owned() } else { begun.join(", ") }
            ))
        })?;
    }
    Ok(Changed::done(BootstrapReport { nodes, begun: to_tell }))
}

/// Whether a node waits to begin a new cluster, and with which groups.
#[utoipa::path(get, path = "/v1/nodes/{node}/begin", tag = "nodes",
    params(("node" = String, Path, description = "The node")),
    responses((status = 200, body = BeginStatus)))]
async fn begin_status(
    State(admin): State<Arc<dyn Admin>>,
    Path(_): Path<String>,
    Query(_): Query<Nothing>,
) -> Json<BeginStatus> {
    Json(admin.begin_status())
}

/// Lets one node that waits begin with its empty directory. `POST /v1/cluster/bootstrap` looks at all nodes first.
#[utoipa::path(post, path = "/v1/nodes/{node}/begin", tag = "nodes",
    params(("node" = String, Path, description = "The node"), Change::<BeginQuery>),
    responses((status = 200, body = Changed<BeginStatus>)))]
async fn begin(
    State(admin): State<Arc<dyn Admin>>,
    Path(node): Path<String>,
    Change { dry_run, query: BeginQuery { confirm } }: Change<BeginQuery>,
) -> Result<Json<Changed<BeginStatus>>, AdminError> {
    if confirm != CONFIRM_WORD {
        return Err(AdminError::Invalid(format!(
            "confirm is `{confirm}`; the word is {CONFIRM_WORD}, and POST /v1/cluster/bootstrap is the call that looks first"
        )));
    }
    if dry_run {
        return match admin.begin_status().state {
            BeginState::Waiting => Ok(Changed::planned(format!("{node} would begin with an empty directory"))),
            BeginState::Begun | BeginState::Data => Err(not_waiting(&node)),
        };
    }
    admin.begin().await.map(Changed::done)
}

/// The refusal of a node that does not wait.
pub(crate) fn not_waiting(node: &str) -> AdminError {
    AdminError::Conflict(format!("node {node} does not wait to begin a new cluster"))
}

async fn tell(relay: Relay<'_>, node: &str) -> Result<(), String> {
    if node == relay.admin.node() {
        return relay.admin.begin().await.map(drop).map_err(|error| error.to_string());
    }
    let target = format!("/v1/nodes/{node}/begin?confirm={CONFIRM_WORD}");
    relay.call(Method::POST, node, target, BEGIN_TIME_MAX).await.map(drop)
}

/// Who is to be told to begin, in which order, or why nobody must be.
fn plan(own: &str, all: &BTreeMap<String, Result<BeginStatus, String>>) -> Result<Vec<String>, AdminError> {
    let conflict = |text: String| Err(AdminError::Conflict(text));
    let mut nodes: BTreeMap<&str, &BeginStatus> = BTreeMap::new();
    for (node, status) in all {
        match status {
            Ok(status) => {
                nodes.insert(node.as_str(), status);
            }
            Err(why) => {
                let text = format!("node {node} does not answer, and a new cluster begins with all its nodes: {why}");
                return Err(AdminError::Unavailable(text));
            }
        }
    }
    for (node, group) in nodes.iter().flat_map(|(node, status)| status.groups.iter().map(move |group| (*node, group))) {
        for member in &group.members {
            let Some(status) = nodes.get(member.node.as_str()) else {
                return conflict(format!(
                    "node {node} has group {} on node {}, which node {own} does not know: call a node that shares a \
                     group with every other",
                    group.name, member.node
                ));
            };
            match status.groups.iter().find(|other| other.name == group.name) {
                Some(other) if other.members == group.members => {}
                Some(_) => {
                    return conflict(format!(
                        "group {} has other members in the configuration of node {} than in that of node {node}: \
                         `gantry config check` of both files says which",
                        group.name, member.node
                    ));
                }
                None => {
                    return conflict(format!(
                        "node {} is to be a member of group {}, and has no such group in its configuration",
                        member.node, group.name
                    ));
                }
            }
        }
    }
    let of = |state: BeginState| -> Vec<&str> {
        nodes.iter().filter(|(_, status)| status.state == state).map(|(node, _)| *node).collect()
    };
    let (waiting, begun, data) = (of(BeginState::Waiting), of(BeginState::Begun), of(BeginState::Data));
    if !data.is_empty() && !waiting.is_empty() {
        return conflict(format!(
            "{} cannot begin anew: there is data on {}. An empty directory beside others that are full is a lost disk: start \
             its node with --rejoin; if the data is to go, delete it there",
            waiting.join(", "),
            data.join(", ")
        ));
    }
    if waiting.is_empty() && data.is_empty() {
        return conflict(format!(
            "{} have begun, and none of them has made the groups: restart with --bootstrap the node with the lowest id of \
             each group",
            begun.join(", ")
        ));
    }
    // Whoever creates a group comes last: until then nobody has data, and the call can be made again.
    let creators: BTreeSet<&str> = nodes
        .values()
        .flat_map(|status| &status.groups)
        .filter_map(|group| Some(group.members.first()?.node.as_str()))
        .collect();
    let (last, first): (Vec<&str>, Vec<&str>) = waiting.into_iter().partition(|node| creators.contains(node));
    Ok(first.into_iter().chain(last).map(ToOwned::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(node: &str, state: BeginState, members: &[&str]) -> BeginStatus {
        let members = (1..).zip(members).map(|(id, node)| BeginMember {
            id,
            node: (*node).to_owned(),
            raft_addr: format!("{node}:1"),
            client_addr: format!("127.0.0.1:{id}"),
        });
        let group = BeginGroup { name: "a".to_owned(), members: members.collect() };
        BeginStatus { node: node.to_owned(), state, groups: vec![group] }
    }

    const ALL: [&str; 3] = ["n1", "n2", "n3"];

    #[track_caller]
    fn check(states: [BeginState; 3], change: impl Fn(&mut BTreeMap<String, Result<BeginStatus, String>>), says: &str) {
        let each = ALL.iter().zip(states).map(|(node, state)| ((*node).to_owned(), Ok(status(node, state, &ALL))));
        let mut all = each.collect();
        change(&mut all);
        match plan("n1", &all) {
            Ok(told) => assert_eq!(told.join(" "), says),
            Err(error) => assert!(!says.is_empty() && error.to_string().contains(says), "{error}"),
        }
    }

    #[test]
    fn all_are_told_when_all_wait_and_who_creates_the_group_last() {
        use BeginState::{Begun, Data, Waiting};
        check([Waiting; 3], |_| {}, "n2 n3 n1");
        check([Waiting, Begun, Waiting], |_| {}, "n3 n1");
        check([Waiting, Begun, Begun], |_| {}, "n1");
        // Made again, it finds nothing to do.
        check([Data, Begun, Begun], |_| {}, "");
        check([Data; 3], |_| {}, "");
        check([Begun; 3], |_| {}, "none of them has made the groups");
    }

    #[test]
    fn nobody_is_told_beside_data_or_silence_or_another_configuration() {
        use BeginState::{Data, Waiting};
        check([Waiting, Data, Data], |_| {}, "n1 cannot begin anew: there is data on n2, n3.");
        check([Data, Waiting, Waiting], |_| {}, "n2, n3 cannot begin anew");
        let silent =
            |all: &mut BTreeMap<String, _>| drop(all.insert("n3".to_owned(), Err("another cluster".to_owned())));
        check(
            [Waiting; 3],
            silent,
            "node n3 does not answer, and a new cluster begins with all its nodes: another cluster",
        );
        let fewer = |all: &mut BTreeMap<String, _>| {
            all.insert("n3".to_owned(), Ok(status("n3", Waiting, &ALL[..2])));
        };
        check([Waiting; 3], fewer, "group a has other members in the configuration of node n3");
        let more = |all: &mut BTreeMap<String, _>| {
            all.insert("n3".to_owned(), Ok(status("n3", Waiting, &["n1", "n2", "n3", "n4"])));
        };
        check([Waiting; 3], more, "has other members");
        let none = |all: &mut BTreeMap<String, _>| {
            all.insert("n2".to_owned(), Ok(BeginStatus { groups: vec![], ..status("n2", Waiting, &ALL) }));
        };
        check([Waiting; 3], none, "has no such group in its configuration");
        let unknown = |all: &mut BTreeMap<String, _>| drop(all.remove("n3"));
        check([Waiting; 3], unknown, "which node n1 does not know");
    }
}
