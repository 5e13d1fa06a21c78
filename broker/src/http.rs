//! Health, status and metrics over HTTP.
//!
//! | Request | Answer |
//! | --- | --- |
//! | `GET /health/live` | 200 while the process can do its work at all; 503 once its storage has failed |
//! | `GET /health/ready` | 200 when clients find this node and every group here is ready for them, else 503 and why |
//! | `GET /v1/status` | [`NodeStatus`] |
//! | `POST /v1/groups/{group}/transfer-leader?to=NODE` | hands leadership over, from the leader's node only |
//! | `POST /v1/retention/accept-clock` | says that the node's clock is right although it ran ahead; [`RetentionStatus`] |
//! | `GET /metrics` | Prometheus text |
//! | `/v1/groups/{group}/recovery`, `retire`, `recover`, `flush` | see `recovery` |

mod metrics;
mod recovery;
mod status;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

pub use metrics::{MetricFamily, MetricsText};
pub use recovery::{EntryStatus, FlushMode, FlushStatus, LossReport, QueueLoss, RecoverOrder, RecoveryStatus};
pub use status::{
    DamageStatus, DiskStatus, GroupStatus, LeaderStatus, LogStatus, MemberStatus, NameServerStatus, NodeState,
    NodeStatus, ReplayStatus, ReplicaRole, RetentionPressure, RetentionStatus, ScrubStatus,
};

const BODY_BYTES_MAX: usize = 1 << 20;

/// What the HTTP side asks of the node.
pub trait Admin: Send + Sync + 'static {
    /// The node as it is now.
    fn status(&self) -> NodeStatus;

    /// Adds every metric of the node.
    fn collect(&self, metrics: &mut MetricsText);

    /// Hands the leadership of `group` to the node named `to`, or to the best replica.
    fn transfer_leader(
        &self,
        group: String,
        to: Option<String>,
    ) -> BoxFuture<'static, Result<LeaderStatus, AdminError>>;

    /// The operator says that the node's clock is right.
    fn accept_clock(&self) -> BoxFuture<'static, RetentionStatus>;

    /// What this node holds of `group`, for an operator who has to decide where it goes on.
    ///
    /// # Errors
    /// If the group is not here or not recovered yet.
    fn recovery(&self, group: &str) -> Result<RecoveryStatus, AdminError>;

    /// Stops the replica of `group` here and has it come back under another identity.
    fn retire(&self, group: String) -> BoxFuture<'static, Result<RecoveryStatus, AdminError>>;

    /// Goes on from this node's log of `group` without a majority.
    fn recover(&self, group: String, order: RecoverOrder) -> BoxFuture<'static, Result<LossReport, AdminError>>;

    /// Changes when messages of `group` count as acknowledged.
    fn set_flush(&self, group: String, mode: FlushMode) -> BoxFuture<'static, Result<FlushStatus, AdminError>>;
}

/// Why an admin call changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// No such group, node or member.
    #[error("{0}")]
    NotFound(String),
    /// The call makes no sense in the present state.
    #[error("{0}")]
    Conflict(String),
    /// Not now; trying again may help.
    #[error("{0}")]
    Unavailable(String),
}

#[derive(Serialize)]
struct ErrorBody {
    code: &'static str,
    message: String,
    advice: &'static str,
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        let (status, code, advice) = match &self {
            Self::NotFound(_) => (StatusCode::NOT_FOUND, "not_found", "GET /v1/status lists groups and members"),
            Self::Conflict(_) => (StatusCode::CONFLICT, "conflict", "GET /v1/status shows who leads"),
            Self::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "try again in a second"),
        };
        (status, Json(ErrorBody { code, message: self.to_string(), advice })).into_response()
    }
}

/// Serves `listener` until `stop` is cancelled.
///
/// # Errors
/// When the listener fails for good.
pub async fn serve(
    listener: tokio::net::TcpListener,
    admin: Arc<dyn Admin>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let own = listener.local_addr()?;
    let router = Router::new()
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .route("/metrics", get(metrics_text))
        .route("/v1/status", get(node_status))
        .route("/v1/retention/accept-clock", post(accept_clock))
        .route("/v1/groups/{group}/transfer-leader", post(transfer_leader))
        .merge(recovery::routes())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(own, check_host))
        .with_state(admin);
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
}

/// Refuses names that only a rebound DNS record would send here: the host must be an address or `localhost`.
async fn check_host(State(own): State<SocketAddr>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if is_allowed_host(host, own.ip()) {
        return next.run(request).await;
    }
    let body = ErrorBody {
        code: "wrong_host",
        message: "the Host header names another host".to_owned(),
        advice: "use the node's literal address",
    };
    (StatusCode::MISDIRECTED_REQUEST, Json(body)).into_response()
}

fn is_allowed_host(host: &str, own: IpAddr) -> bool {
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

async fn live(State(admin): State<Arc<dyn Admin>>) -> Response {
    let status = admin.status();
    let code = if status.state == NodeState::Failed { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (code, Json(Health { state: status.state, health: status.health })).into_response()
}

async fn ready(State(admin): State<Arc<dyn Admin>>) -> Response {
    let status = admin.status();
    let code = if status.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(Health { state: status.state, health: status.health })).into_response()
}

#[derive(Serialize)]
struct Health {
    state: NodeState,
    health: String,
}

async fn node_status(State(admin): State<Arc<dyn Admin>>) -> Json<NodeStatus> {
    Json(admin.status())
}

async fn metrics_text(State(admin): State<Arc<dyn Admin>>) -> Response {
    let mut metrics = MetricsText::default();
    admin.collect(&mut metrics);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics.into_text()).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TransferQuery {
    to: Option<String>,
}

async fn transfer_leader(
    State(admin): State<Arc<dyn Admin>>,
    Path(group): Path<String>,
    Query(query): Query<TransferQuery>,
) -> Result<Json<LeaderStatus>, AdminError> {
    admin.transfer_leader(group, query.to).await.map(Json)
}

async fn accept_clock(State(admin): State<Arc<dyn Admin>>) -> Json<RetentionStatus> {
    Json(admin.accept_clock().await)
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
