//! Why a call was not carried out, in JSON whatever it was that refused it.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Json, Response};
use futures::FutureExt;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What an own refusal of axum says, at most.
const REFUSAL_BYTES_MAX: usize = 16 << 10;
/// Set on an answer that says: nothing was done, another node must answer.
pub(super) const ELSEWHERE: &str = "gantry-elsewhere";

/// Why an admin call changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// A value is out of range, or does not fit the others.
    #[error("{0}")]
    Invalid(String),
    /// No such group, node or member.
    #[error("{0}")]
    NotFound(String),
    /// The call makes no sense in the present state.
    #[error("{0}")]
    Conflict(String),
    /// Not now; trying again may help.
    #[error("{0}")]
    Unavailable(String),
    /// Another node must answer, and this one does not know which, or was asked in its place.
    #[error("{0}")]
    NotHere(String),
    /// The call may have been carried out.
    #[error("{0}")]
    Unknown(String),
}

/// The body of every answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// A word for programs.
    pub code: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub advice: String,
}

impl ErrorBody {
    pub(super) fn answer(status: StatusCode, code: &str, message: impl Into<String>, advice: &str) -> Response {
        let body = Self { code: code.to_owned(), message: message.into(), advice: advice.to_owned() };
        (status, Json(body)).into_response()
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        let (status, code, advice) = match &self {
            Self::Invalid(_) => (StatusCode::BAD_REQUEST, "invalid", "see /v1/openapi.json for what is allowed"),
            Self::NotFound(_) => {
                (StatusCode::NOT_FOUND, "not_found", "GET /v1/cluster lists groups, nodes and members")
            }
            Self::Conflict(_) => (StatusCode::CONFLICT, "conflict", "GET /v1/cluster shows the present state"),
            Self::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "try again in a second"),
            Self::NotHere(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "no_leader",
                "nothing was done: try again in a second; GET /v1/cluster shows who leads",
            ),
            Self::Unknown(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "outcome_unknown",
                "look at the present state before you try again, or try again with the same Idempotency-Key",
            ),
        };
        let mut answer = ErrorBody::answer(status, code, self.to_string(), advice);
        if matches!(self, Self::NotHere(_)) {
            answer.headers_mut().insert(ELSEWHERE, HeaderValue::from_static("yes"));
        }
        answer
    }
}

/// Gives every refusal the form of [`ErrorBody`], those of axum and a panic of ours too.
pub(super) async fn all_in_json(request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let Ok(answer) = std::panic::AssertUnwindSafe(next.run(request)).catch_unwind().await else {
        tracing::error!(%method, path, "an admin call panicked");
        return ErrorBody::answer(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the node made a mistake of its own",
            "its log says more; please report it",
        );
    };
    let status = answer.status();
    let is_json = answer.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes() == b"application/json");
    if is_json || !(status.is_client_error() || status.is_server_error()) {
        return answer;
    }
    let (mut parts, body) = answer.into_parts();
    let text = to_bytes(body, REFUSAL_BYTES_MAX).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let (code, message, advice) = match status {
        StatusCode::NOT_FOUND => {
            ("no_such_path", format!("there is no {path}"), "GET /v1/openapi.json lists every path".to_owned())
        }
        StatusCode::METHOD_NOT_ALLOWED => {
            let allowed = parts.headers.get(header::ALLOW).and_then(|allow| allow.to_str().ok()).unwrap_or_default();
            ("method_not_allowed", format!("{path} takes no {method}"), format!("use {allowed}"))
        }
        StatusCode::PAYLOAD_TOO_LARGE => ("too_large", text, "a body has at most 1 MiB".to_owned()),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            ("not_json", text, "send JSON with Content-Type: application/json".to_owned())
        }
        status if status.is_client_error() => ("invalid", text, "see /v1/openapi.json for what is allowed".to_owned()),
        _ => ("internal", text, "the node's log says more".to_owned()),
    };
    let body = ErrorBody { code: code.to_owned(), message, advice };
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Response::from_parts(parts, Body::from(serde_json::to_vec(&body).unwrap_or_default()))
}
