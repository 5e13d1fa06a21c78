//! Health, metrics and log of a name server over HTTP.
//!
//! | Request | Answer |
//! | --- | --- |
//! | `GET /health/live` | 200 while the process answers |
//! | `GET /health/ready` | 200 once every broker it knows has a leader, else 503 and why |
//! | `GET /metrics` | Prometheus text |
//! | `GET`, `POST /v1/log` | see `broker::http::LogControl` |

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use broker::http::{MetricsText, collect_process};
use namesrv::{Figures, NamesrvHandle};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::plain_http;

/// Serves `listener` until `stop` is cancelled.
///
/// # Errors
/// When the listener fails for good.
pub(crate) async fn serve(
    listener: TcpListener,
    server: Arc<NamesrvHandle>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let routes = Router::new().route("/health/ready", get(ready)).route("/metrics", get(metrics)).with_state(server);
    plain_http::serve(listener, routes, stop).await
}

async fn ready(State(server): State<Arc<NamesrvHandle>>) -> Response {
    plain_http::readiness(problem(&server.figures()), "every broker has a leader")
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
    plain_http::metrics(|metrics| collect(&server.figures(), metrics))
}

fn collect(figures: &Figures, metrics: &mut MetricsText) {
    plain_http::collect_build("namesrv", metrics);
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
        plain_http::tests::check_page("namesrv", |metrics| collect(&Figures::default(), metrics));
    }
}
