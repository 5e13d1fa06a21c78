//! Identities, lost majorities and the flush mode, over HTTP.
//!
//! All but the flush mode are about one node's replica. `gantry recover` and `gantry flush` call these.

use std::fmt;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::change::{Change, Changed};
use super::{Admin, AdminError, Nothing};

/// Term and index of a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct EntryStatus {
    /// The term it was proposed in.
    pub term: u64,
    /// Its index.
    pub index: u64,
}

impl fmt::Display for EntryStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {} of term {}", self.index, self.term)
    }
}

/// What a node holds of a group whose majority may be lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RecoveryStatus {
    /// The group.
    pub group: String,
    /// The node.
    pub node: String,
    /// All nodes the group is configured with.
    pub nodes: Vec<String>,
    /// The replica's identity; none while it waits for the next one.
    pub node_id: Option<u64>,
    /// Identities it has given up.
    pub retired: Vec<u64>,
    /// How often the group has gone on without its majority, as far as this node knows.
    pub generation: u64,
    /// The newest term it knows.
    pub term: u64,
    /// The last entry of its log.
    pub last: Option<EntryStatus>,
    /// The last entry it knows to be committed.
    pub committed: Option<EntryStatus>,
    /// The node that leads, if one is known: then there is nothing to recover.
    pub leader: Option<String>,
}

/// What an operator has seen, and agreed to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoverOrder {
    /// Entries behind the end of this log may be lost, and that is accepted.
    pub accept_loss: bool,
    /// Term of the last entry, as it was seen.
    pub last_term: u64,
    /// Index of the last entry, as it was seen.
    pub last_index: u64,
    /// The term to go on in, above that of every node.
    pub term: u64,
    /// The generation that begins, above that of every node.
    pub generation: u64,
}

/// What may be gone after a group has gone on without its majority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LossReport {
    /// The group.
    pub group: String,
    /// The node it goes on from.
    pub node: String,
    /// The identity of that node's replica now.
    pub node_id: u64,
    /// The generation that has begun.
    pub generation: u64,
    /// The last entry that was there: all up to it are kept.
    pub last: EntryStatus,
    /// The entry that the group goes on with.
    pub goes_on_at: EntryStatus,
    /// The file on that node with this report.
    pub file: String,
    /// All queues of the group.
    pub queues: Vec<QueueLoss>,
}

/// One queue in a [`LossReport`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueLoss {
    /// The topic.
    pub topic: String,
    /// The queue.
    pub queue_id: u32,
    /// Whatever was acknowledged at this offset or a higher one is lost; all below is kept.
    pub first_offset_at_risk: u64,
}

/// When a message counts as acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FlushMode {
    /// Once it is on the disks of a majority.
    Sync,
    /// Once it is in the memory of a majority.
    Async,
}

/// What a change of the flush mode has come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlushStatus {
    /// The mode.
    pub mode: FlushMode,
    /// The entry that says so.
    pub entry: u64,
    /// Nodes that have not synced their logs up to it: they were asked, and did not answer in time. Their older entries
    /// count as on disk only once they have.
    pub waiting_for: Vec<String>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct FlushQuery {
    /// When messages count as acknowledged.
    mode: FlushMode,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct RecoverQuery {
    /// Entries behind the end of this log may be lost, and that is accepted.
    accept_loss: bool,
    /// Term of the last entry, as it was seen.
    last_term: u64,
    /// Index of the last entry, as it was seen.
    last_index: u64,
    /// The term to go on in, above that of every node.
    term: u64,
    /// The generation that begins, above that of every node.
    generation: u64,
}

/// What one node answers about itself.
pub(super) fn node_routes() -> OpenApiRouter<Arc<dyn Admin>> {
    OpenApiRouter::new().routes(routes!(recovery)).routes(routes!(retire)).routes(routes!(recover))
}

/// What the leader answers.
pub(super) fn leader_routes() -> OpenApiRouter<Arc<dyn Admin>> {
    OpenApiRouter::new().routes(routes!(flush))
}

/// What a node holds of a group, for an operator who has to decide where it goes on.
#[utoipa::path(get, path = "/v1/groups/{group}/recovery", tag = "recover",
    params(("group" = String, Path, description = "The broker group")),
    responses((status = 200, body = RecoveryStatus)))]
async fn recovery(
    State(admin): State<Arc<dyn Admin>>,
    Path(group): Path<String>,
    Query(_): Query<Nothing>,
) -> Result<Json<RecoveryStatus>, AdminError> {
    admin.recovery(&group).map(Json)
}

/// Stops the replica on a node and has it come back under another identity.
#[utoipa::path(post, path = "/v1/groups/{group}/retire", tag = "recover",
    params(("group" = String, Path, description = "The broker group"), Change::<Nothing>),
    responses((status = 200, body = Changed<RecoveryStatus>)))]
async fn retire(
    State(admin): State<Arc<dyn Admin>>,
    Path(group): Path<String>,
    Change { dry_run, .. }: Change,
) -> Result<Json<Changed<RecoveryStatus>>, AdminError> {
    if dry_run {
        let found = admin.recovery(&group)?;
        let identity = found.node_id.map_or_else(|| "none".to_owned(), |id| id.to_string());
        return Ok(Changed::planned(format!(
            "the replica of {group} on {} would stop, give up its identity ({identity}), and come back under another",
            found.node
        )));
    }
    admin.retire(group).await.map(Changed::done)
}

/// Goes on from a node's log of a group without a majority.
#[utoipa::path(post, path = "/v1/groups/{group}/recover", tag = "recover",
    params(("group" = String, Path, description = "The broker group"), Change::<RecoverQuery>),
    responses((status = 200, body = Changed<LossReport>)))]
async fn recover(
    State(admin): State<Arc<dyn Admin>>,
    Path(group): Path<String>,
    Change { dry_run, query }: Change<RecoverQuery>,
) -> Result<Json<Changed<LossReport>>, AdminError> {
    let RecoverQuery { accept_loss, last_term, last_index, term, generation } = query;
    let order = RecoverOrder { accept_loss, last_term, last_index, term, generation };
    if dry_run {
        admin.check_recover(&group, &order)?;
        return Ok(Changed::planned(format!(
            "{group} would go on from {} alone, behind {}, in term {term} and generation {generation}",
            admin.node(),
            EntryStatus { term: last_term, index: last_index }
        )));
    }
    admin.recover(group, order).await.map(Changed::done)
}

/// Changes when messages of a group count as acknowledged.
#[utoipa::path(post, path = "/v1/groups/{group}/flush", tag = "groups",
    params(("group" = String, Path, description = "The broker group"), Change::<FlushQuery>),
    responses((status = 200, body = Changed<FlushStatus>)))]
async fn flush(
    State(admin): State<Arc<dyn Admin>>,
    Path(group): Path<String>,
    Change { dry_run, query }: Change<FlushQuery>,
) -> Result<Json<Changed<FlushStatus>>, AdminError> {
    if dry_run {
        let mode = if query.mode == FlushMode::Sync { "on the disks" } else { "in the memory" };
        return Ok(Changed::planned(format!(
            "messages of {group} would count as acknowledged once they are {mode} of a majority"
        )));
    }
    admin.set_flush(group, query.mode).await.map(Changed::done)
}
