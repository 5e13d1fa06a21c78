//! Calls that were refused, counted for whoever watches the node.
//!
//! There is one series for each kind of call and each status that a refusal has. Nothing that a caller sends makes another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use super::access::is_watched;
use super::place::PassedOn;
use super::{Admin, MetricsText};

/// What refusals have, see `docs/http.md`; the last one stands for all others.
const STATUSES: [&str; 14] =
    ["400", "401", "403", "404", "405", "409", "413", "415", "421", "422", "429", "500", "503", "other"];
/// Health and metrics; everything else that changes nothing; what changes something.
const KINDS: [&str; 3] = ["watch", "look", "change"];

/// How many calls a node has refused since it started.
#[derive(Debug, Default)]
pub struct RefusedCalls([[AtomicU64; STATUSES.len()]; KINDS.len()]);

impl RefusedCalls {
    /// Adds the metric.
    pub fn collect(&self, metrics: &mut MetricsText) {
        let help = "Calls over HTTP that were refused, where they came in: health and metrics (watch), others that change \
                    nothing (look), changes (change).";
        let mut family = metrics.counter("gantry_http_refused_calls_total", help);
        for (kind, counts) in KINDS.iter().zip(&self.0) {
            for (status, count) in STATUSES.iter().zip(counts) {
                family.sample(&[("kind", kind), ("status", status)], count.load(Ordering::Relaxed));
            }
        }
    }

    fn note(&self, path: &str, method: &Method, status: StatusCode) {
        let is_refusal = status.is_client_error() || status.is_server_error();
        // That a node is not ready is what was asked for.
        let is_answer = status == StatusCode::SERVICE_UNAVAILABLE && path.starts_with("/health/");
        if !is_refusal || is_answer {
            return;
        }
        let kind = match (is_watched(path), method.is_safe()) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        };
        let other = STATUSES.len() - 1;
        let status = STATUSES.iter().position(|known| *known == status.as_str()).unwrap_or(other);
        if let Some(count) = self.0.get(kind).and_then(|counts| counts.get(status)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Counts what is refused in the end, whoever refused it. What another node passes on is counted there.
pub(super) async fn count(State(admin): State<Arc<dyn Admin>>, request: Request, next: Next) -> Response {
    if request.extensions().get::<PassedOn>().is_some() {
        return next.run(request).await;
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let answer = next.run(request).await;
    admin.refused_calls().note(&path, &method, answer.status());
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_by_kind_and_status_and_nothing_else_is() {
        let calls = RefusedCalls::default();
        for (method, path, status) in [
            (Method::GET, "/v1/status", 200),
            (Method::GET, "/health/ready", 503),
            (Method::GET, "/health/ready", 429),
            (Method::GET, "/metrics", 401),
            (Method::GET, "/v1/cluster", 401),
            (Method::HEAD, "/no/such/path", 404),
            (Method::POST, "/v1/cluster/balance", 503),
            (Method::DELETE, "/no/such/path", 404),
            (Method::from_bytes(b"BREW").unwrap(), "/coffee", 418),
        ] {
            calls.note(path, &method, StatusCode::from_u16(status).unwrap());
        }
        let mut metrics = MetricsText::default();
        calls.collect(&mut metrics);
        let text = metrics.into_text();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines.len(), KINDS.len() * STATUSES.len());
        let counted: Vec<&str> = lines
            .into_iter()
            .filter(|line| !line.ends_with(" 0"))
            .map(|line| line.strip_prefix("gantry_http_refused_calls_total").unwrap())
            .collect();
        let expected = [
            "{kind=\"watch\",status=\"401\"} 1",
            "{kind=\"watch\",status=\"429\"} 1",
            "{kind=\"look\",status=\"401\"} 1",
            "{kind=\"look\",status=\"404\"} 1",
            "{kind=\"change\",status=\"404\"} 1",
            "{kind=\"change\",status=\"503\"} 1",
            "{kind=\"change\",status=\"other\"} 1",
        ];
        assert_eq!(counted, expected);
    }
}
