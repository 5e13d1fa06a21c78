//! Where a call is answered: any node takes every call and passes it on to the node that must answer it.
//!
//! | Call | Answered by |
//! | --- | --- |
//! | about the leader's work | the leader of its group; during an election it waits, for a bounded time |
//! | about one node | that node: `{node}` in the path, `?node=NAME`, or the one that was called |
//! | everything else | the node that was called |
//!
//! A call is passed on once. Who gets one that is for somebody else says so, and nothing was done.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Extension, MatchedPath, Path, Request};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use super::change;
use super::error::{AdminError, ELSEWHERE, ErrorBody};
use super::once::{self, IDEMPOTENCY_KEY};
use super::{Admin, BODY_BYTES_MAX};
use crate::peer::{AdminCall, AdminReply, ForwardError};

/// How long a call waits for a leader.
const LEADER_TIME_MAX: Duration = Duration::from_secs(3);
/// Pause before a leader that has just moved is looked for again.
const LEADER_RETRY: Duration = Duration::from_millis(50);
/// Another node answers a question within this time.
const LOOK_TIME_MAX: Duration = Duration::from_secs(5);
/// Another node carries a change out within this time.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(60);
/// The node that answered, if it is another.
const ANSWERED_BY: &str = "gantry-answered-by";

/// Who leads a group, as a node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The node itself, and it is ready.
    Here,
    /// Another node.
    Node(String),
    /// The group does not run on the node.
    Unknown,
}

/// Marks a call that another node has passed on.
#[derive(Clone, Copy)]
pub(super) struct PassedOn;

/// A body that is too long.
pub(super) fn too_large() -> Response {
    let text = "the body is longer than 1 MiB";
    ErrorBody::answer(StatusCode::PAYLOAD_TOO_LARGE, "too_large", text, "a body has at most 1 MiB")
}

/// Whether a call asks only what it would do.
pub(super) fn is_dry_run(uri: &Uri) -> bool {
    uri.query().unwrap_or_default().split('&').any(change::is_dry_run)
}

/// For calls that the leader of `{group}` answers.
pub(super) async fn at_leader(
    Extension(admin): Extension<Arc<dyn Admin>>,
    Path(params): Path<HashMap<String, String>>,
    request: Request,
    next: Next,
) -> Response {
    if !is_described(&request) {
        return next.run(request).await;
    }
    // An operation is named by its group and a number.
    let of_operation = || Some(params.get("operation")?.rsplit_once('-')?.0);
    let group = params.get("group").map(String::as_str).or_else(of_operation).unwrap_or_default().to_owned();
    let passed_on = request.extensions().get::<PassedOn>().is_some();
    let place = match admin.place_of(group.clone(), if passed_on { Duration::ZERO } else { LEADER_TIME_MAX }).await {
        Ok(place) => place,
        Err(error) => return error.into_response(),
    };
    match place {
        Place::Here => next.run(request).await,
        Place::Node(node) if passed_on => {
            AdminError::NotHere(format!("node {node} leads group {group}")).into_response()
        }
        Place::Unknown if passed_on => {
            let mut answer = AdminError::NotFound(format!("no node here has a group {group}")).into_response();
            answer.headers_mut().insert(ELSEWHERE, HeaderValue::from_static("yes"));
            answer
        }
        Place::Node(_) | Place::Unknown => match to_call(request).await {
            Ok(call) => pass_to_leader(&*admin, &group, &call, place).await.unwrap_or_else(AdminError::into_response),
            Err(refused) => refused,
        },
    }
}

/// Passes a call on to whoever leads, again when leadership has just moved, as long as nothing was done.
async fn pass_to_leader(
    admin: &dyn Admin,
    group: &str,
    call: &AdminCall,
    mut place: Place,
) -> Result<Response, AdminError> {
    let deadline = Instant::now() + LEADER_TIME_MAX;
    loop {
        let failed = match &place {
            Place::Unknown => return Ok(pass_to_any(admin, group, call).await),
            // It has come here meanwhile; the caller need not know how.
            Place::Here => AdminError::NotHere(format!("leadership of group {group} is moving")),
            Place::Node(node) => match admin.ask(node.clone(), call.clone(), limit_of(call)).await {
                Ok(reply) if reply.elsewhere => {
                    AdminError::NotHere(format!("leadership of group {group} is moving away from node {node}"))
                }
                Ok(reply) => return Ok(to_response(reply, node)),
                Err(ForwardError::NotSent { reason }) => AdminError::NotHere(format!(
                    "node {node} led group {group} when it was last heard of, and does not answer: {reason}"
                )),
                Err(error) => return Err(unknown(call, node, &error)),
            },
        };
        if Instant::now() >= deadline || place == Place::Here {
            return Err(failed);
        }
        tokio::time::sleep(LEADER_RETRY).await;
        place = admin.place_of(group.to_owned(), deadline.saturating_duration_since(Instant::now())).await?;
    }
}

/// Asks all others for a group that does not run here: one of them may lead it.
async fn pass_to_any(admin: &dyn Admin, group: &str, call: &AdminCall) -> Response {
    let mut found = None;
    for node in admin.other_nodes() {
        match admin.ask(node.clone(), call.clone(), limit_of(call)).await {
            Ok(reply) if reply.elsewhere && reply.status == StatusCode::NOT_FOUND.as_u16() => {}
            Ok(reply) if reply.elsewhere => found = Some(to_response(reply, &node)),
            Ok(reply) => return to_response(reply, &node),
            Err(ForwardError::NotSent { .. }) => {}
            Err(error) => return unknown(call, &node, &error).into_response(),
        }
    }
    let nobody = || AdminError::NotFound(format!("no node that answers has a group {group}")).into_response();
    found.unwrap_or_else(nobody)
}

/// For calls about one node, which `?node=` may name.
pub(super) async fn at_node(Extension(admin): Extension<Arc<dyn Admin>>, mut request: Request, next: Next) -> Response {
    if !is_described(&request) {
        return next.run(request).await;
    }
    match take_node(request.uri()) {
        Ok((node, uri)) => {
            let wanted = node.unwrap_or_else(|| admin.node());
            if wanted == admin.node() {
                *request.uri_mut() = uri;
                return next.run(request).await;
            }
            pass_to_node(&*admin, wanted, request).await
        }
        Err(error) => error.into_response(),
    }
}

/// For calls about `{node}`.
pub(super) async fn at_named_node(
    Extension(admin): Extension<Arc<dyn Admin>>,
    Path(params): Path<HashMap<String, String>>,
    request: Request,
    next: Next,
) -> Response {
    let wanted = params.get("node").cloned().unwrap_or_default();
    if wanted == admin.node() || !is_described(&request) {
        return next.run(request).await;
    }
    pass_to_node(&*admin, wanted, request).await
}

async fn pass_to_node(admin: &dyn Admin, node: String, request: Request) -> Response {
    if request.extensions().get::<PassedOn>().is_some() {
        return AdminError::NotHere(format!("node {} is not node {node}", admin.node())).into_response();
    }
    let known = admin.other_nodes();
    if !known.contains(&node) {
        let text = format!("there is no node {node}: known are {} and {}", admin.node(), known.join(", "));
        return AdminError::NotFound(text).into_response();
    }
    let call = match to_call(request).await {
        Ok(call) => call,
        Err(refused) => return refused,
    };
    match admin.ask(node.clone(), call.clone(), limit_of(&call)).await {
        Ok(reply) => to_response(reply, &node),
        Err(ForwardError::NotSent { reason }) => {
            AdminError::Unavailable(format!("node {node} does not answer: {reason}")).into_response()
        }
        Err(error) => unknown(&call, &node, &error).into_response(),
    }
}

/// Takes `node=NAME` out of the query.
fn take_node(uri: &Uri) -> Result<(Option<String>, Uri), AdminError> {
    let Some(query) = uri.query() else { return Ok((None, uri.clone())) };
    let named: Vec<&str> = query.split('&').filter_map(|pair| pair.strip_prefix("node=")).collect();
    if named.len() > 1 {
        return Err(AdminError::Invalid("node is given twice".to_owned()));
    }
    let rest: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with("node=")).collect();
    let target = if rest.is_empty() { uri.path().to_owned() } else { format!("{}?{}", uri.path(), rest.join("&")) };
    let uri = target.parse().map_err(|_| AdminError::Invalid("the query cannot be read".to_owned()))?;
    Ok((named.first().map(ToString::to_string), uri))
}

/// The methods of each path, as they are described.
#[derive(Clone)]
pub(super) struct Methods(Arc<HashMap<String, Vec<Method>>>);

impl Methods {
    pub(super) fn of(description: &utoipa::openapi::OpenApi) -> Self {
        let methods = |item: &utoipa::openapi::PathItem| {
            let described = [
                (item.get.is_some(), Method::GET),
                (item.get.is_some(), Method::HEAD),
                (item.put.is_some(), Method::PUT),
                (item.post.is_some(), Method::POST),
                (item.delete.is_some(), Method::DELETE),
            ];
            described.into_iter().filter(|(is_there, _)| *is_there).map(|(_, method)| method).collect()
        };
        Self(Arc::new(description.paths.paths.iter().map(|(path, item)| (path.clone(), methods(item))).collect()))
    }
}

/// Whether the path takes the method. If not, the call is refused where it came in, whoever would have to answer.
fn is_described(request: &Request) -> bool {
    let (methods, path) = (request.extensions().get::<Methods>(), request.extensions().get::<MatchedPath>());
    let taken = methods.zip(path).and_then(|(methods, path)| methods.0.get(path.as_str()));
    taken.is_none_or(|taken| taken.contains(request.method()))
}

fn is_safe(call: &AdminCall) -> bool {
    call.method == Method::GET.as_str() || call.method == Method::HEAD.as_str()
}

fn limit_of(call: &AdminCall) -> Duration {
    if is_safe(call) { LOOK_TIME_MAX } else { CHANGE_TIME_MAX }
}

fn unknown(call: &AdminCall, node: &str, error: &ForwardError) -> AdminError {
    let text = format!("node {node} was asked and did not answer: {error}");
    if is_safe(call) { AdminError::Unavailable(text) } else { AdminError::Unknown(text) }
}

async fn to_call(request: Request) -> Result<AdminCall, Response> {
    let (parts, body) = request.into_parts();
    let idempotency_key = match parts.method.is_safe() {
        true => String::new(),
        false => once::key_of(&parts.headers).map_err(|refused| *refused)?.unwrap_or_default(),
    };
    let body = to_bytes(body, BODY_BYTES_MAX).await.map_err(|_| too_large())?;
    let text = |name: &str| {
        let value = parts.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    Ok(AdminCall {
        method: parts.method.to_string(),
        target: parts.uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string),
        authorization: text(header::AUTHORIZATION.as_str()),
        idempotency_key,
        content_type: text(header::CONTENT_TYPE.as_str()),
        body,
    })
}

/// The request that another node got, as it is answered here.
pub(super) fn to_request(call: AdminCall) -> Option<Request> {
    let mut request = Request::builder().method(call.method.as_str()).uri(call.target);
    for (name, value) in [
        (header::AUTHORIZATION.as_str(), call.authorization),
        (IDEMPOTENCY_KEY, call.idempotency_key),
        (header::CONTENT_TYPE.as_str(), call.content_type),
    ] {
        if !value.is_empty() {
            request = request.header(name, value);
        }
    }
    let mut request = request.body(Body::from(call.body)).ok()?;
    request.extensions_mut().insert(PassedOn);
    Some(request)
}

fn to_response(reply: AdminReply, node: &str) -> Response {
    let mut response = Response::new(Body::from(reply.body));
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::BAD_GATEWAY);
    for (name, value) in
        [(header::CONTENT_TYPE, reply.content_type.as_str()), (HeaderName::from_static(ANSWERED_BY), node)]
    {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_taken_out_of_the_query() {
        let take = |uri: &str| {
            let taken = take_node(&uri.parse().unwrap());
            taken.map(|(node, uri)| (node.unwrap_or_default(), uri.to_string()))
        };
        let ok = |node: &str, uri: &str| Ok((node.to_owned(), uri.to_owned()));
        assert_eq!(take("/v1/status"), ok("", "/v1/status"));
        assert_eq!(take("/v1/status?node=n2"), ok("n2", "/v1/status"));
        assert_eq!(take("/v1/status?a=1&node=n2&b=2"), ok("n2", "/v1/status?a=1&b=2"));
        assert_eq!(take("/v1/status?nodes=n2"), ok("", "/v1/status?nodes=n2"));
        assert!(take("/v1/status?node=n1&node=n2").is_err());
    }
}
