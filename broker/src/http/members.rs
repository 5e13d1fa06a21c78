//! Members of a group, and the operations that change them, over HTTP.
//!
//! What is said of a group's members and operations is the leader's to say. A dry run says step by step what
//! would be done.

use std::sync::Arc;

use axum::extract::{Extension, Path, Query, State};
use axum::response::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::Caller;
use super::change::{Change, Changed};
use super::{Admin, AdminError, Nothing};

/// The word that allows an operation to leave a group with less safety than before.
pub const FORCE_WORD: &str = "reduced-redundancy";

/// A node that is to become a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinerOrder {
    /// Its name.
    pub node: String,
    /// Where its peers reach it, `host:port`.
    pub raft_addr: String,
    /// Where clients of the group reach it: a literal address and a port.
    pub client_addr: String,
}

/// Nodes that are to become members, all at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddOrder {
    /// The nodes.
    pub nodes: Vec<JoinerOrder>,
}

/// How a change of members is ordered, besides what is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub struct MemberQuery {
    /// The word `reduced-redundancy`, to allow less safety than before.
    pub force: Option<String>,
    /// Who orders it, for those who look later; without it the name of the caller's token.
    pub started_by: Option<String>,
}

/// What is wanted of the members of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberOrder {
    /// New members.
    Add(Vec<JoinerOrder>),
    /// One member less.
    Remove(String),
    /// Another member in place of one.
    Replace(String, JoinerOrder),
}

/// What an order has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberAnswer {
    /// What has begun.
    pub operation: OperationStatus,
    /// What is done, step by step.
    pub steps: Vec<String>,
    /// The tokens of the nodes that come. They are shown this once.
    pub join_tokens: Vec<NodeToken>,
}

/// What a new node has to show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeToken {
    /// The node.
    pub node: String,
    /// The line for the file that its `node.join_tokens` names.
    pub line: String,
}

/// Where an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OperationState {
    /// Under way.
    Running,
    /// Under way back to what was before.
    Returning,
    /// What was wanted is so.
    Done,
    /// Everything is as it was before.
    Undone,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperationStatus {
    /// Its name: the group and the entry that began it.
    pub id: String,
    /// The group.
    pub group: String,
    /// What is wanted, in words.
    pub what: String,
    /// Where it is.
    pub state: OperationState,
    /// What it waits for, as its leader knows; none on other nodes.
    pub waits_for: Option<String>,
    /// How far new members are with the log, on the leader.
    pub progress: Option<ProgressStatus>,
    /// Who ordered it.
    pub started_by: String,
    /// When, in milliseconds since 1970.
    pub started_ms: i64,
    /// When it ended.
    pub ended_ms: Option<i64>,
    /// How it ended, or why it is being turned back.
    pub result: Option<String>,
}

/// How far new members are with the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProgressStatus {
    /// Bytes they hold, together.
    pub done_bytes: u64,
    /// Bytes they are to hold.
    pub total_bytes: u64,
    /// How fast they come closer.
    pub bytes_per_second: u64,
    /// How long the rest takes at that rate, once there is one.
    pub left_ms: Option<u64>,
}

/// All operations that a node knows of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Operations {
    /// Oldest first, group by group.
    pub operations: Vec<OperationStatus>,
}

/// The members of a group as its leader knows them, or as one member does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MembersStatus {
    /// The group.
    pub group: String,
    /// The node that leads, if known.
    pub leader: Option<String>,
    /// All members.
    pub members: Vec<MemberDetail>,
    /// The voters of before and after, by node, in the middle of a change; else none.
    pub joint: Option<(Vec<String>, Vec<String>)>,
    /// The operation under way.
    pub operation: Option<OperationStatus>,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberDetail {
    /// Raft identity.
    pub id: u64,
    /// Node name.
    pub node: String,
    /// Where peers reach it.
    pub raft_addr: String,
    /// Where clients reach it.
    pub client_addr: String,
    /// It votes; a learner does not.
    pub voter: bool,
    /// Whether the leader has heard of it lately; none if this node does not lead.
    pub heard: Option<bool>,
    /// The last entry on it, as the leader knows.
    pub matched: Option<u64>,
    /// Entries that it lacks, as the leader knows.
    pub lag_entries: Option<u64>,
}

/// How a change that is stuck ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Settle {
    /// With the voters of after.
    Finish,
    /// With the voters of before.
    TurnBack,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct SettleQuery {
    /// How it ends.
    #[param(inline)]
    to: Settle,
}

/// What the leader answers.
pub(super) fn leader_routes() -> OpenApiRouter<Arc<dyn Admin>> {
    OpenApiRouter::new()
        .routes(routes!(members, add))
        .routes(routes!(settle))
        .routes(routes!(remove))
        .routes(routes!(replace))
        .routes(routes!(operation))
        .routes(routes!(cancel))
}

/// What one node answers about itself.
pub(super) fn node_routes() -> OpenApiRouter<Arc<dyn Admin>> {
    OpenApiRouter::new().routes(routes!(operations))
}

type AdminState = State<Arc<dyn Admin>>;

/// The members of a group.
#[utoipa::path(get, path = "/v1/groups/{group}/members", tag = "members",
    params(("group" = String, Path, description = "The broker group")),
    responses((status = 200, body = MembersStatus)))]
async fn members(
    State(admin): AdminState,
    Path(group): Path<String>,
    Query(_): Query<Nothing>,
) -> Result<Json<MembersStatus>, AdminError> {
    admin.members(&group).map(Json)
}

/// Adds nodes to a group: they become voters together, once each has come with its token and holds the log.
#[utoipa::path(post, path = "/v1/groups/{group}/members", tag = "members",
    params(("group" = String, Path, description = "The broker group"), Change::<MemberQuery>),
    request_body = AddOrder,
    responses((status = 200, body = Changed<MemberAnswer>)))]
async fn add(
    State(admin): AdminState,
    caller: Option<Extension<Caller>>,
    Path(group): Path<String>,
    Change { dry_run, query }: Change<MemberQuery>,
    Json(order): Json<AddOrder>,
) -> Result<Json<Changed<MemberAnswer>>, AdminError> {
    admin.change_members(group, MemberOrder::Add(order.nodes), by(query, caller), dry_run).await.map(Json)
}

/// Removes a node from a group.
#[utoipa::path(delete, path = "/v1/groups/{group}/members/{member}", tag = "members",
    params(("group" = String, Path, description = "The broker group"),
        ("member" = String, Path, description = "The node that leaves"), Change::<MemberQuery>),
    responses((status = 200, body = Changed<MemberAnswer>)))]
async fn remove(
    State(admin): AdminState,
    caller: Option<Extension<Caller>>,
    Path((group, member)): Path<(String, String)>,
    Change { dry_run, query }: Change<MemberQuery>,
) -> Result<Json<Changed<MemberAnswer>>, AdminError> {
    admin.change_members(group, MemberOrder::Remove(member), by(query, caller), dry_run).await.map(Json)
}

/// Puts another node, with an empty disk, in the place of one.
#[utoipa::path(post, path = "/v1/groups/{group}/members/{member}/replace", tag = "members",
    params(("group" = String, Path, description = "The broker group"),
        ("member" = String, Path, description = "The node that leaves"), Change::<MemberQuery>),
    request_body = JoinerOrder,
    responses((status = 200, body = Changed<MemberAnswer>)))]
async fn replace(
    State(admin): AdminState,
    caller: Option<Extension<Caller>>,
    Path((group, member)): Path<(String, String)>,
    Change { dry_run, query }: Change<MemberQuery>,
    Json(order): Json<JoinerOrder>,
) -> Result<Json<Changed<MemberAnswer>>, AdminError> {
    admin.change_members(group, MemberOrder::Replace(member, order), by(query, caller), dry_run).await.map(Json)
}

/// Ends a change of the members that stands in the middle, when no operation goes on with it.
#[utoipa::path(post, path = "/v1/groups/{group}/settle-members", tag = "members",
    params(("group" = String, Path, description = "The broker group"), Change::<SettleQuery>),
    responses((status = 200, body = Changed<MembersStatus>)))]
async fn settle(
    State(admin): AdminState,
    Path(group): Path<String>,
    Change { dry_run, query }: Change<SettleQuery>,
) -> Result<Json<Changed<MembersStatus>>, AdminError> {
    admin.settle_members(group, query.to, dry_run).await.map(Json)
}

/// The operations of all groups on a node.
#[utoipa::path(get, path = "/v1/operations", tag = "members", responses((status = 200, body = Operations)))]
async fn operations(State(admin): AdminState, Query(_): Query<Nothing>) -> Json<Operations> {
    Json(Operations { operations: admin.operations() })
}

/// One operation.
#[utoipa::path(get, path = "/v1/operations/{operation}", tag = "members",
    params(("operation" = String, Path, description = "Its name, such as broker-a-812")),
    responses((status = 200, body = OperationStatus)))]
async fn operation(
    State(admin): AdminState,
    Path(operation): Path<String>,
    Query(_): Query<Nothing>,
) -> Result<Json<OperationStatus>, AdminError> {
    admin.operation(&operation).map(Json)
}

/// Turns an operation back.
#[utoipa::path(post, path = "/v1/operations/{operation}/cancel", tag = "members",
    params(("operation" = String, Path, description = "Its name, such as broker-a-812"), Change::<Nothing>),
    responses((status = 200, body = Changed<OperationStatus>)))]
async fn cancel(
    State(admin): AdminState,
    Path(operation): Path<String>,
    Change { dry_run, .. }: Change,
) -> Result<Json<Changed<OperationStatus>>, AdminError> {
    admin.cancel_operation(operation, dry_run).await.map(Json)
}

/// Whoever calls is named if nobody else is.
fn by(query: MemberQuery, caller: Option<Extension<Caller>>) -> MemberQuery {
    let name = caller.map(|Extension(Caller(name))| name).filter(|name| !name.is_empty());
    MemberQuery { started_by: query.started_by.or(name), ..query }
}
