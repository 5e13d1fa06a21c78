//! Administration, health, status and metrics over HTTP.
//!
//! ```text
//!  a caller ----> errors in JSON -> host -> token -> place -> once -> handler -> Admin (the node)
//!                                                     |
//!                                         another node must answer: over the peer port
//!                                                     v
//!  a peer ------> errors in JSON ---------> token -> place -> once -> handler -> Admin (that node)
//! ```
//!
//! `place` decides which node answers, `once` keeps a change from being carried out twice, `openapi` describes all calls.
//! `docs/http.md` is the page for operators.

#![allow(unused_qualifications, reason = "the macro that describes a call writes names out in full")]

mod access;
mod all_topics;
mod bootstrap;
mod change;
mod cluster;
mod error;
mod events;
mod lead;
mod log;
mod members;
mod metrics;
mod once;
mod openapi;
mod place;
mod process;
mod rate;
mod recovery;
mod refused;
mod relay;
mod status;
mod topics;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{DefaultBodyLimit, Extension, Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Response};
use bytes::Bytes;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use access::{Role, TokenHash, Tokens, hash_token};
pub use all_topics::{ClusterTopic, ClusterTopics, TopicNames, TopicPlace};
pub(crate) use bootstrap::not_waiting;
pub use bootstrap::{BeginGroup, BeginMember, BeginState, BeginStatus, BootstrapReport};
use change::Change;
pub use change::{Changed, Plan};
pub use cluster::{ClusterStatus, GroupView, NodeView, ReplicaView};
pub use error::{AdminError, ErrorBody};
pub use events::{Event, EventKind, Events};
pub use lead::{BalanceReport, DrainStatus, Move};
pub use log::{LogControl, LogFilter, install_log_control, log_routes};
pub use members::{
    AddOrder, FORCE_WORD, JoinerOrder, MemberAnswer, MemberDetail, MemberOrder, MemberQuery, MembersStatus, NodeToken,
    OperationState, OperationStatus, Operations, ProgressStatus, Settle,
};
pub use metrics::{MetricFamily, MetricsText};
pub use place::Place;
pub use process::collect_process;
use rate::Rate;
pub use recovery::{EntryStatus, FlushMode, FlushStatus, LossReport, QueueLoss, RecoverOrder, RecoveryStatus};
pub use refused::RefusedCalls;
pub use status::{
    DamageStatus, DiskStatus, GroupStatus, LeaderStatus, LogStatus, MemberStatus, NameServerStatus, NodeState,
    NodeStatus, ReplayStatus, ReplicaRole, RetentionPressure, RetentionStatus, ScrubStatus, SyncStatus,
};

pub use topics::{
    ConsumedQueue, ConsumerGroupDetails, ConsumerGroupSpec, ConsumerGroupView, Deleted, ListQuery, Page, Perm,
    QueueView, ResetOffset, ResetOrder, ResetPlan, ResetQueue, ResetTo, TopicDetails, TopicSpec, TopicView,
};

use crate::peer::{AdminCall, AdminHandler, AdminReply, ForwardError};

/// A body of a call.
const BODY_BYTES_MAX: usize = 1 << 20;
/// An answer that another node waits for.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// What the HTTP side asks of the node.
pub trait Admin: Send + Sync + 'static {
    /// The node's name.
    fn node(&self) -> String;

    /// The nodes that share a group with this one.
    fn other_nodes(&self) -> Vec<String>;

    /// Who leads `group`. While nobody does, it is waited for, at most for `wait`.
    ///
    /// # Errors
    /// If nobody leads.
    fn place_of(&self, group: String, wait: Duration) -> BoxFuture<'static, Result<Place, AdminError>>;

    /// Has another node answer a call within `limit`.
    ///
    /// # Errors
    /// If it does not; the error says whether it may have done what was asked.
    fn ask(
        &self,
        node: String,
        call: AdminCall,
        limit: Duration,
    ) -> BoxFuture<'static, Result<AdminReply, ForwardError>>;

    /// The node as it is now.
    fn status(&self) -> NodeStatus;

    /// Adds every metric of the node.
    fn collect(&self, metrics: &mut MetricsText);

    /// Where calls are counted that were refused.
    fn refused_calls(&self) -> &RefusedCalls;

    /// Hands the leadership of `group` to the node named `to`, or to the best replica; or only says to which it would.
    fn transfer_leader(
        &self,
        group: String,
        to: Option<String>,
        dry_run: bool,
    ) -> BoxFuture<'static, Result<LeaderStatus, AdminError>>;

    /// A page of the topics of `group`, which this node leads.
    ///
    /// # Errors
    /// If the group does not run here.
    fn topics(&self, group: &str, query: &ListQuery) -> Result<Page<TopicView>, AdminError>;

    /// The names of all topics of `group`, which this node leads, that fit a search; in order.
    ///
    /// # Errors
    /// If the group does not run here.
    fn topic_names(&self, group: &str, query: &ListQuery) -> Result<Vec<String>, AdminError>;

    /// One topic.
    fn topic(&self, group: String, topic: String) -> BoxFuture<'static, Result<TopicDetails, AdminError>>;

    /// Creates or changes a topic.
    fn put_topic(
        &self,
        group: String,
        topic: String,
        spec: TopicSpec,
    ) -> BoxFuture<'static, Result<TopicDetails, AdminError>>;

    /// Deletes a topic.
    fn delete_topic(&self, group: String, topic: String) -> BoxFuture<'static, Result<(), AdminError>>;

    /// A page of consumer groups.
    ///
    /// # Errors
    /// If the group does not run here.
    fn consumer_groups(&self, group: &str, query: &ListQuery) -> Result<Page<ConsumerGroupView>, AdminError>;

    /// One consumer group.
    ///
    /// # Errors
    /// If the broker group does not run here, or has no such consumer group.
    fn consumer_group(&self, group: &str, consumer: &str) -> Result<ConsumerGroupDetails, AdminError>;

    /// Creates or changes a consumer group.
    fn put_consumer_group(
        &self,
        group: String,
        consumer: String,
        spec: ConsumerGroupSpec,
    ) -> BoxFuture<'static, Result<ConsumerGroupDetails, AdminError>>;

    /// Deletes a consumer group and its offsets.
    fn delete_consumer_group(&self, group: String, consumer: String) -> BoxFuture<'static, Result<(), AdminError>>;

    /// Moves the offsets of a consumer group, or only says how.
    fn reset(
        &self,
        group: String,
        consumer: String,
        order: ResetOrder,
        dry_run: bool,
    ) -> BoxFuture<'static, Result<ResetPlan, AdminError>>;

    /// What this node saw in the last hour, the oldest first.
    fn events(&self) -> Vec<Event>;

    /// The groups that this node leads.
    fn leads(&self) -> Vec<String>;

    /// How far this node is with a new cluster.
    fn begin_status(&self) -> BeginStatus;

    /// Lets this node, which waits for that with empty directories, begin a new cluster. Waits until it has.
    fn begin(&self) -> BoxFuture<'static, Result<BeginStatus, AdminError>>;

    /// Has this node lead nothing from now on as long as others can, or lets it lead again. Waits until leadership has
    /// moved, for a bounded time.
    fn set_drained(&self, drained: bool) -> BoxFuture<'static, Result<DrainStatus, AdminError>>;

    /// The operator says that the node's clock is right.
    fn accept_clock(&self) -> BoxFuture<'static, RetentionStatus>;

    /// What this node holds of `group`, for an operator who has to decide where it goes on.
    ///
    /// # Errors
    /// If the group is not here or not recovered yet.
    fn recovery(&self, group: &str) -> Result<RecoveryStatus, AdminError>;

    /// Stops the replica of `group` here and has it come back under another identity.
    fn retire(&self, group: String) -> BoxFuture<'static, Result<RecoveryStatus, AdminError>>;

    /// Whether `order` could be carried out now.
    ///
    /// # Errors
    /// Why not.
    fn check_recover(&self, group: &str, order: &RecoverOrder) -> Result<(), AdminError>;

    /// Goes on from this node's log of `group` without a majority.
    fn recover(&self, group: String, order: RecoverOrder) -> BoxFuture<'static, Result<LossReport, AdminError>>;

    /// Changes when messages of `group` count as acknowledged.
    fn set_flush(&self, group: String, mode: FlushMode) -> BoxFuture<'static, Result<FlushStatus, AdminError>>;

    /// The members of `group`, as this node knows them.
    ///
    /// # Errors
    /// If the group is not here or not recovered yet.
    fn members(&self, group: &str) -> Result<MembersStatus, AdminError>;

    /// Begins to change the members of `group`, or says what would be done.
    fn change_members(
        &self,
        group: String,
        order: MemberOrder,
        query: MemberQuery,
        dry_run: bool,
    ) -> BoxFuture<'static, Result<Changed<MemberAnswer>, AdminError>>;

    /// Ends a change of the members of `group` that is stuck in the middle, or says how it would.
    fn settle_members(
        &self,
        group: String,
        to: Settle,
        dry_run: bool,
    ) -> BoxFuture<'static, Result<Changed<MembersStatus>, AdminError>>;

    /// All operations that this node knows of.
    fn operations(&self) -> Vec<OperationStatus>;

    /// One operation.
    ///
    /// # Errors
    /// If this node knows of no such operation.
    fn operation(&self, id: &str) -> Result<OperationStatus, AdminError>;

    /// Turns an operation back, or says that it would.
    fn cancel_operation(
        &self,
        id: String,
        dry_run: bool,
    ) -> BoxFuture<'static, Result<Changed<OperationStatus>, AdminError>>;
}

/// All calls of a node: what its listener serves, and what other nodes pass on. Cheap to clone.
#[derive(Clone)]
pub struct Api(axum::Router);

impl Api {
    /// The calls of the node behind `admin`, which listens on `own`, as often as `per_second` for each who calls.
    ///
    /// # Panics
    /// If no call is allowed.
    pub fn new(admin: Arc<dyn Admin>, tokens: Tokens, per_second: u32, own: SocketAddr) -> Self {
        let (router, description) = described();
        let router = router
            .merge(openapi::page())
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .layer(middleware::from_fn(note_change))
            .layer(middleware::from_fn_with_state((tokens, Arc::new(Rate::new(per_second))), access::check))
            .layer(middleware::from_fn_with_state(own, check_host))
            .layer(middleware::from_fn(error::all_in_json))
            .layer(middleware::from_fn_with_state(Arc::clone(&admin), refused::count))
            .layer(Extension(openapi::finish(&description)))
            .layer(Extension(once::Kept::default()))
            .layer(Extension(place::Methods::of(&description)))
            .layer(Extension(Arc::clone(&admin)))
            .with_state(admin);
        Self(router)
    }

    /// Health and metrics alone, for a listener of their own at `own`: nobody needs a token, nothing can be changed, and no
    /// topic or consumer group is named.
    ///
    /// # Panics
    /// If no call is allowed.
    pub fn watching(admin: Arc<dyn Admin>, per_second: u32, own: SocketAddr) -> Self {
        let (router, _) = watched().split_for_parts();
        let router = router
            .layer(Extension(Nameless))
            .layer(middleware::from_fn_with_state((Tokens::default(), Arc::new(Rate::new(per_second))), access::check))
            .layer(middleware::from_fn_with_state(own, check_host))
            .layer(middleware::from_fn(error::all_in_json))
            .layer(middleware::from_fn_with_state(Arc::clone(&admin), refused::count))
            .with_state(admin);
        Self(router)
    }

    /// Serves `listener` until `stop` is cancelled.
    ///
    /// # Errors
    /// When the listener fails for good.
    pub async fn serve(self, listener: tokio::net::TcpListener, stop: CancellationToken) -> std::io::Result<()> {
        axum::serve(listener, self.0).with_graceful_shutdown(stop.cancelled_owned()).await
    }
}

impl AdminHandler for Api {
    fn passed_on(&self, call: AdminCall) -> BoxFuture<'static, AdminReply> {
        let router = self.0.clone();
        Box::pin(async move {
            let answer = match place::to_request(call) {
                Some(request) => router.oneshot(request).await.unwrap_or_else(|never| match never {}),
                None => AdminError::Invalid("a call that cannot be read was passed on".to_owned()).into_response(),
            };
            let (parts, body) = answer.into_parts();
            let text = |name: header::HeaderName| {
                parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
            };
            AdminReply {
                status: parts.status.as_u16(),
                content_type: text(header::CONTENT_TYPE),
                elsewhere: parts.headers.contains_key(error::ELSEWHERE),
                body: to_bytes(body, ANSWER_BYTES_MAX).await.unwrap_or_else(|_| Bytes::new()),
            }
        })
    }
}

/// What programs ask again and again.
fn watched() -> OpenApiRouter<Arc<dyn Admin>> {
    OpenApiRouter::new().routes(routes!(live)).routes(routes!(ready)).routes(routes!(metrics_text))
}

/// Every call with its description.
fn described() -> (axum::Router<Arc<dyn Admin>>, utoipa::openapi::OpenApi) {
    let here = OpenApiRouter::with_openapi(openapi::base())
        .merge(watched())
        .merge(openapi::routes())
        .merge(cluster::routes())
        .merge(all_topics::routes())
        .merge(events::routes());
    let changes = lead::routes().merge(bootstrap::routes());
    let named_node = lead::named_node_routes().merge(events::named_node_routes()).merge(bootstrap::named_node_routes());
    let about_a_node = OpenApiRouter::new()
        .routes(routes!(node_status))
        .routes(routes!(accept_clock))
        .merge(log::described())
        .merge(recovery::node_routes())
        .merge(members::node_routes());
    let at_leader = OpenApiRouter::new()
        .routes(routes!(transfer_leader))
        .merge(recovery::leader_routes())
        .merge(members::leader_routes())
        .merge(topics::leader_routes())
        .merge(all_topics::leader_routes());
    let about_a_node = openapi::answered_by_node(about_a_node);
    let once = || middleware::from_fn(once::check);
    here.merge(changes.route_layer(once()))
        .merge(about_a_node.route_layer(once()).route_layer(middleware::from_fn(place::at_node)))
        .merge(named_node.route_layer(once()).route_layer(middleware::from_fn(place::at_named_node)))
        .merge(at_leader.route_layer(once()).route_layer(middleware::from_fn(place::at_leader)))
        .split_for_parts()
}

/// Marks calls of whoever need not show a token, and is shown no names that clients have given.
#[derive(Clone, Copy)]
struct Nameless;

/// Writes down who changed what.
async fn note_change(request: Request, next: Next) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    let caller = request.extensions().get::<access::Caller>().map_or_else(String::new, |caller| caller.0.clone());
    let (method, target) = (request.method().clone(), request.uri().clone());
    let answer = next.run(request).await;
    tracing::info!(caller, %method, %target, status = answer.status().as_u16(), "admin call");
    answer
}

/// Refuses names that only a rebound DNS record would send here: the host must be an address or `localhost`.
async fn check_host(State(own): State<SocketAddr>, request: Request, next: Next) -> Response {
    if request.extensions().get::<place::PassedOn>().is_some() {
        return next.run(request).await;
    }
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if is_allowed_host(host, own.ip()) {
        return next.run(request).await;
    }
    let text = "the Host header names another host";
    ErrorBody::answer(StatusCode::MISDIRECTED_REQUEST, "wrong_host", text, "use the node's literal address")
}

/// Whether a `Host` header may name a listener at `own`: an address of it, or `localhost`.
#[must_use]
pub fn is_allowed_host(host: &str, own: IpAddr) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    match name.parse::<IpAddr>() {
        Ok(addr) => own.is_unspecified() || addr == own || addr.is_loopback(),
        Err(_) => name == "localhost",
    }
}

/// The query of a call that takes none.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// 200 while the process can do its work at all; 503 once its storage has failed.
#[utoipa::path(get, path = "/health/live", tag = "health",
    responses((status = 200, body = Health), (status = 503, body = Health)))]
async fn live(State(admin): State<Arc<dyn Admin>>) -> Response {
    let status = admin.status();
    let code = if status.state == NodeState::Failed { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (code, Json(Health { state: status.state, health: status.health })).into_response()
}

/// 200 when clients find this node and every group here is ready for them, else 503 and why.
#[utoipa::path(get, path = "/health/ready", tag = "health",
    responses((status = 200, body = Health), (status = 503, body = Health)))]
async fn ready(State(admin): State<Arc<dyn Admin>>) -> Response {
    let status = admin.status();
    let code = if status.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(Health { state: status.state, health: status.health })).into_response()
}

/// Whether a node is well, in one sentence.
#[derive(Serialize, ToSchema)]
struct Health {
    state: NodeState,
    health: String,
}

/// A node as it is now: groups, roles, terms, watermarks, addresses.
#[utoipa::path(get, path = "/v1/status", tag = "nodes", responses((status = 200, body = NodeStatus)))]
async fn node_status(State(admin): State<Arc<dyn Admin>>, Query(_): Query<Nothing>) -> Json<NodeStatus> {
    Json(admin.status())
}

/// Every figure of this node for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "health",
    responses((status = 200, body = String, content_type = "text/plain")))]
async fn metrics_text(State(admin): State<Arc<dyn Admin>>, nameless: Option<Extension<Nameless>>) -> Response {
    let mut metrics = if nameless.is_some() { MetricsText::without_names() } else { MetricsText::default() };
    // Looking up how long messages wait reads from the disk.
    let collected = tokio::task::spawn_blocking(move || {
        admin.collect(&mut metrics);
        metrics
    });
    let Ok(metrics) = collected.await else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics.into_text()).into_response()
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct TransferQuery {
    /// The node that is to lead; the best replica, if none is named.
    to: Option<String>,
}

/// Hands over the leadership of a group.
#[utoipa::path(post, path = "/v1/groups/{group}/transfer-leader", tag = "groups",
    params(("group" = String, Path, description = "The broker group"), Change::<TransferQuery>),
    responses((status = 200, body = Changed<LeaderStatus>)))]
async fn transfer_leader(
    State(admin): State<Arc<dyn Admin>>,
    Path(group): Path<String>,
    Change { dry_run, query }: Change<TransferQuery>,
) -> Result<Json<Changed<LeaderStatus>>, AdminError> {
    let leader = admin.transfer_leader(group.clone(), query.to, dry_run).await?;
    if dry_run {
        return Ok(Changed::planned(format!("node {} would lead {group}", leader.node)));
    }
    Ok(Changed::done(leader))
}

/// Says that a node's clock is right although it ran ahead.
#[utoipa::path(post, path = "/v1/retention/accept-clock", tag = "nodes", params(Change::<Nothing>),
    responses((status = 200, body = Changed<RetentionStatus>)))]
async fn accept_clock(
    State(admin): State<Arc<dyn Admin>>,
    Change { dry_run, .. }: Change,
) -> Result<Json<Changed<RetentionStatus>>, AdminError> {
    if dry_run {
        let node = admin.node();
        return Ok(Changed::planned(format!("messages on {node} would be dropped for their age again")));
    }
    Ok(Changed::done(admin.accept_clock().await))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_localhost_are_hosts() {
        let own: IpAddr = "127.0.0.1".parse().unwrap();
        for host in ["127.0.0.1", "127.0.0.1:8081", "localhost:8081", "[::1]:80"] {
            assert!(is_allowed_host(host, own), "{host}");
        }
        for host in ["", "evil.example", "evil.example:8081", "10.0.0.1:8081", "localhost.evil.example"] {
            assert!(!is_allowed_host(host, own), "{host}");
        }
        assert!(is_allowed_host("10.0.0.1:8081", "0.0.0.0".parse().unwrap()));
    }
}
