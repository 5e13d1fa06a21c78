//! What every process but a broker answers over HTTP: that it lives, how it fares, and its log.
//!
//! Nothing here changes more than what is logged, so there are no tokens; addresses are loopback unless the process was
//! told otherwise.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use broker::http::{MetricsText, log_routes};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Nothing here takes a body.
const BODY_BYTES_MAX: usize = 1 << 10;

/// Serves `routes`, `/health/live` and the log on `listener` until `stop` is cancelled.
///
/// # Errors
/// When the listener fails for good.
pub(crate) async fn serve(listener: TcpListener, routes: Router, stop: CancellationToken) -> std::io::Result<()> {
    let own = listener.local_addr()?;
    let router = routes
        .route("/health/live", get(live))
        .merge(log_routes())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(axum::middleware::from_fn_with_state(own, check_host));
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

/// The answer of `/health/ready`: 503 with the problem if there is one.
pub(crate) fn readiness(problem: Option<String>, good: &str) -> Response {
    match problem {
        None => Json(Health { health: good.to_owned() }).into_response(),
        Some(health) => (StatusCode::SERVICE_UNAVAILABLE, Json(Health { health })).into_response(),
    }
}

/// The answer of `/metrics`.
pub(crate) fn metrics(collect: impl FnOnce(&mut MetricsText)) -> Response {
    let mut metrics = MetricsText::default();
    collect(&mut metrics);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics.into_text()).into_response()
}

/// Says what runs here.
pub(crate) fn collect_build(node: &str, metrics: &mut MetricsText) {
    metrics
        .gauge("gantry_build_info", "Always 1; what runs here.")
        .sample(&[("version", env!("CARGO_PKG_VERSION")), ("node", node), ("cluster", "")], 1);
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::*;

    /// Checks the table between the marks `<!-- name -->` and `<!-- end -->` of the page of metrics; with `UPDATE_DOCS` in
    /// the environment, writes it anew.
    pub(crate) fn check_page(name: &str, collect: impl FnOnce(&mut MetricsText)) {
        let mut metrics = MetricsText::default();
        collect(&mut metrics);
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
        let mark = format!("<!-- {name} -->\n");
        let (before, rest) = page.split_once(&mark).expect("the mark before the table");
        let (shown, after) = rest.split_once("<!-- end -->").expect("the mark after the table");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, format!("{before}{mark}{table}<!-- end -->{after}")).unwrap();
        } else {
            assert_eq!(shown, table, "UPDATE_DOCS=1 writes the table anew");
        }
    }
}
