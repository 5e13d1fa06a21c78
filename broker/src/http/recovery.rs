//! Identities, lost majorities and the flush mode, over HTTP.
//!
//! | Request | Answer |
//! | --- | --- |
//! | `GET /v1/groups/{group}/recovery` | [`RecoveryStatus`] |
//! | `POST /v1/groups/{group}/retire` | stops the replica here and has it come back under another identity |
//! | `POST /v1/groups/{group}/recover?accept_loss=true&...` | goes on from this replica's log alone: [`LossReport`] |
//! | `POST /v1/groups/{group}/flush?mode=sync` | changes the flush mode, from the leader's node only: [`FlushStatus`] |

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::response::Json;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};

use super::{Admin, AdminError};

/// Term and index of a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueLoss {
    /// The topic.
    pub topic: String,
    /// The queue.
    pub queue_id: u32,
    /// Whatever was acknowledged at this offset or a higher one is lost; all below is kept.
    pub first_offset_at_risk: u64,
}

/// When a message counts as acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlushMode {
    /// Once it is on the disks of a majority.
    Sync,
    /// Once it is in the memory of a majority.
    Async,
}

/// What a change of the flush mode has come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushStatus {
    /// The mode.
    pub mode: FlushMode,
    /// The entry that says so.
    pub entry: u64,
    /// Nodes that have not synced their logs up to it: they were asked, and did not answer in time. Their older entries
    /// count as on disk only once they have.
    pub waiting_for: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FlushQuery {
    mode: FlushMode,
}

pub(super) fn routes() -> Router<Arc<dyn Admin>> {
    Router::new()
        .route("/v1/groups/{group}/recovery", get(recovery))
        .route("/v1/groups/{group}/retire", post(retire))
        .route("/v1/groups/{group}/recover", post(recover))
        .route("/v1/groups/{group}/flush", post(flush))
}

async fn recovery(
    State(admin): State<Arc<dyn Admin>>,
    Path(group): Path<String>,
) -> Result<Json<RecoveryStatus>, AdminError> {
    admin.recovery(&group).map(Json)
}

async fn retire(
    State(admin): State<Arc<dyn Admin>>,
    Path(group): Path<String>,
) -> Result<Json<RecoveryStatus>, AdminError> {
    admin.retire(group).await.map(Json)
}

async fn recover(
    State(admin): State<Arc<dyn Admin>>,
    Path(group): Path<String>,
    Query(order): Query<RecoverOrder>,
) -> Result<Json<LossReport>, AdminError> {
    admin.recover(group, order).await.map(Json)
}

async fn flush(
    State(admin): State<Arc<dyn Admin>>,
    Path(group): Path<String>,
    Query(query): Query<FlushQuery>,
) -> Result<Json<FlushStatus>, AdminError> {
    admin.set_flush(group, query.mode).await.map(Json)
}
