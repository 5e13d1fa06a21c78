//! Health, metrics and log of a name server over HTTP.
//!
//! | Request | Answer |
//! | --- | --- |
//! | `GET /health/live` | 200 while the process answers |
//! | `GET /health/ready` | 200 once every broker it knows has a leader, else 503 and why |
//! | `GET /metrics` | Prometheus text |
//! | `GET`, `POST /v1/log` | see `broker::http::LogControl` |

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use broker::http::{MetricsText, collect_process, log_routes};
use namesrv::{Figures, NamesrvHandle};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Nothing here takes a body.
const BODY_BYTES_MAX: usize = 1 << 10;

/// Serves `listener` until `stop` is cancelled.
///
/// # Errors
/// When the listener fails for good.
pub(crate) async fn serve(
    listener: TcpListener,
    server: Arc<NamesrvHandle>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let own = listener.local_addr()?;
    let router = Router::new()
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .route("/metrics", get(metrics))
        .merge(log_routes())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(axum::middleware::from_fn_with_state(own, check_host))
        .with_state(server);
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
}

/// Refuses names that only a rebound DNS record would send here.
async fn check_host(
    State(own): State<SocketAddr>,
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if broker::http::is_allowed_host(host, own.ip()) {
        return next.run(request).await;
    }
    (StatusCode::MISDIRECTED_REQUEST, "the Host header names another host: use the literal address\n").into_response()
}

#[derive(Serialize)]
struct Health {
    health: String,
}

async fn live() -> Json<Health> {
    Json(Health { health: "answers".to_owned() })
}

async fn ready(State(server): State<Arc<NamesrvHandle>>) -> Response {
    match problem(&server.figures()) {
        None => Json(Health { health: "every broker has a leader".to_owned() }).into_response(),
        Some(health) => (StatusCode::SERVICE_UNAVAILABLE, Json(Health { health })).into_response(),
    }
}

/// Why clients do not get everything here that they need, in one sentence.
fn problem(figures: &Figures) -> Option<String> {
    if figures.brokers == 0 {
        return Some("no broker has registered".to_owned());
    }
    let without = figures.brokers - figures.led;
    (without > 0).then(|| format!("{without} of {} brokers have no leader", figures.brokers))
}

async fn metrics(State(server): State<Arc<NamesrvHandle>>) -> Response {
    let mut metrics = MetricsText::default();
    collect(&server.figures(), &mut metrics);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics.into_text()).into_response()
}

fn collect(figures: &Figures, metrics: &mut MetricsText) {
    metrics
        .gauge("gantry_build_info", "Always 1; what runs here.")
        .sample(&[("version", env!("CARGO_PKG_VERSION")), ("node", "namesrv"), ("cluster", "")], 1);
    let mut gauge = |name: &str, help: &str, value: usize| {
        metrics.gauge(name, help).sample(&[], value);
    };
    gauge("gantry_namesrv_brokers", "Broker names that can be reached.", figures.brokers);
    gauge("gantry_namesrv_brokers_led", "Of these, those whose leader lives.", figures.led);
    gauge("gantry_namesrv_replicas", "Replicas that live.", figures.replicas);
    gauge("gantry_namesrv_topics", "Topics that some broker has.", figures.topics);
    gauge("gantry_namesrv_connections", "Open connections.", figures.connections);
    let mut requests = metrics.counter("gantry_namesrv_requests_total", "Requests answered, by kind.");
    requests.sample(&[("kind", "route")], figures.route_requests);
    requests.sample(&[("kind", "registration")], figures.registrations);
    requests.sample(&[("kind", "other")], figures.other_requests);
    metrics
        .counter("gantry_namesrv_routes_missing_total", "Routes asked for that no broker has.")
        .sample(&[], figures.routes_missing);
    collect_process(metrics);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn it_is_ready_once_every_broker_is_led() {
        let figures = |brokers, led| Figures { brokers, led, ..Figures::default() };
        assert_eq!(problem(&figures(0, 0)).as_deref(), Some("no broker has registered"));
        assert_eq!(problem(&figures(3, 1)).as_deref(), Some("2 of 3 brokers have no leader"));
        assert_eq!(problem(&figures(3, 3)), None);
    }

    /// `UPDATE_DOCS=1` writes the table anew.
    #[test]
    fn the_page_lists_what_is_exported() {
        let mut metrics = MetricsText::default();
        collect(&Figures::default(), &mut metrics);
        let text = metrics.into_text();
        let mut rows = Vec::new();
        let mut lines = text.lines().filter(|line| line.starts_with('#'));
        while let (Some(help), Some(kind)) = (lines.next(), lines.next()) {
            let (name, help) = help.strip_prefix("# HELP ").unwrap().split_once(' ').unwrap();
            let kind = kind.strip_prefix(&format!("# TYPE {name} ")).unwrap();
            rows.push(format!("| `{name}` | {kind} | {help} |\n"));
        }
        rows.sort();
        let table = format!("| Metric | Kind | Meaning |\n| --- | --- | --- |\n{}", rows.concat());
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
        let page = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = page.split_once("<!-- namesrv -->\n").expect("the mark before the table");
        let (shown, after) = rest.split_once("<!-- end -->").expect("the mark after the table");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, format!("{before}<!-- namesrv -->\n{table}<!-- end -->{after}")).unwrap();
        } else {
            assert_eq!(shown, table, "UPDATE_DOCS=1 writes the table anew");
        }
    }
}
