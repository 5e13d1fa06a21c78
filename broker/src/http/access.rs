//! Who may call: bearer tokens, each with a role.
//!
//! A node without tokens serves anybody, and therefore listens on loopback only. Health, the description of the calls and
//! the page that shows it need no token. Tokens are kept as their hashes, and compared in constant time.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::error::ErrorBody;
use super::place::PassedOn;
use super::rate::{Rate, Share};

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// To look.
    Read,
    /// To change everything.
    Admin,
}

/// One bearer token, without the token.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenHash {
    /// Whose it is: it stands in the node's log beside what was changed.
    pub name: String,
    /// What it allows.
    pub role: Role,
    /// SHA-256 of the token.
    pub sha256: [u8; 32],
}

impl std::fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenHash").field("name", &self.name).field("role", &self.role).finish_non_exhaustive()
    }
}

/// All tokens of a node.
#[derive(Clone, Debug, Default)]
pub struct Tokens(pub Arc<[TokenHash]>);

/// The hash of a token, as the configuration has it.
#[must_use]
pub fn hash_token(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// The name of whoever calls, kept with the request.
#[derive(Clone, Debug)]
pub(super) struct Caller(pub(super) String);

impl Tokens {
    /// Whom a token belongs to. Every hash is looked at, whichever fits.
    fn owner(&self, token: &str) -> Option<&TokenHash> {
        let hash = hash_token(token);
        self.0.iter().fold(None, |found, known| if bool::from(known.sha256.ct_eq(&hash)) { Some(known) } else { found })
    }

    /// Whether a call may go on, and who calls.
    fn admit(&self, path: &str, method: &Method, authorization: Option<&HeaderValue>) -> Result<Caller, Denied> {
        if self.0.is_empty() || is_public(path) {
            return Ok(Caller("anybody".to_owned()));
        }
        let header = authorization.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let Some((scheme, token)) = header.split_once(' ') else { return Err(Denied::NoToken) };
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(Denied::NoToken);
        }
        let owner = self.owner(token.trim()).ok_or(Denied::WrongToken)?;
        let needed = if method.is_safe() { Role::Read } else { Role::Admin };
        if owner.role < needed { Err(Denied::ReadOnly(owner.name.clone())) } else { Ok(Caller(owner.name.clone())) }
    }
}

/// Why not.
#[derive(Debug, PartialEq, Eq)]
enum Denied {
    NoToken,
    WrongToken,
    ReadOnly(String),
}

/// What shows nothing of the cluster.
fn is_public(path: &str) -> bool {
    path == "/" || path.starts_with("/docs/") || matches!(path, "/health/live" | "/health/ready" | "/v1/openapi.json")
}

/// What programs ask for again and again.
pub(super) fn is_watched(path: &str) -> bool {
    matches!(path, "/health/live" | "/health/ready" | "/metrics")
}

/// Lets only those in who may do what they ask for, and not more often than is allowed. What another node passes on was
/// counted there.
pub(super) async fn check(
    State((tokens, rate)): State<(Tokens, Arc<Rate>)>,
    mut request: Request,
    next: Next,
) -> Response {
    let authorization = request.headers().get(header::AUTHORIZATION);
    let admitted = tokens.admit(request.uri().path(), request.method(), authorization);
    if request.extensions().get::<PassedOn>().is_none() {
        let watches = is_watched(request.uri().path());
        let caller = admitted.as_ref().ok().map(|Caller(name)| name.clone());
        if let Err(too_many) = rate.admit(Share { caller, watches }) {
            return *too_many;
        }
    }
    match admitted {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(denied) => {
            tracing::warn!(method = %request.method(), path = request.uri().path(), ?denied, "admin call denied");
            refuse(&denied)
        }
    }
}

fn refuse(denied: &Denied) -> Response {
    let (status, code, message, advice) = match denied {
        Denied::NoToken => (
            StatusCode::UNAUTHORIZED,
            "no_token",
            "this node wants a bearer token".to_owned(),
            "send Authorization: Bearer TOKEN; the gantry command takes --token or GANTRY_TOKEN",
        ),
        Denied::WrongToken => (
            StatusCode::UNAUTHORIZED,
            "wrong_token",
            "the token is none of this node's".to_owned(),
            "all nodes of a cluster should have the same [[http.token]] entries",
        ),
        Denied::ReadOnly(name) => (
            StatusCode::FORBIDDEN,
            "read_only",
            format!("the token of {name} may only read"),
            "use a token with role = \"admin\"",
        ),
    };
    let mut answer = ErrorBody::answer(status, code, message, advice);
    if status == StatusCode::UNAUTHORIZED {
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(header: Option<&str>, method: Method, path: &str) -> Result<String, Denied> {
        let token =
            |name: &str, role, token: &str| TokenHash { name: name.to_owned(), role, sha256: hash_token(token) };
        let tokens = Tokens([token("ops", Role::Admin, "secret-a"), token("prom", Role::Read, "secret-r")].into());
        let header = header.map(|text| HeaderValue::from_str(text).unwrap());
        tokens.admit(path, &method, header.as_ref()).map(|caller| caller.0)
    }

    #[test]
    fn tokens_open_what_their_role_allows() {
        let path = "/v1/cluster";
        let ok = |name: &str| Ok(name.to_owned());
        assert_eq!(check(Some("Bearer secret-r"), Method::GET, path), ok("prom"));
        assert_eq!(check(Some("bearer  secret-r "), Method::HEAD, path), ok("prom"));
        assert_eq!(check(Some("Bearer secret-a"), Method::POST, path), ok("ops"));
        assert_eq!(check(Some("Bearer secret-r"), Method::POST, path), Err(Denied::ReadOnly("prom".to_owned())));
        for method in [Method::PUT, Method::DELETE, Method::PATCH] {
            assert!(check(Some("Bearer secret-r"), method, path).is_err());
        }
    }

    #[test]
    fn whoever_has_none_of_the_tokens_is_refused() {
        let path = "/v1/cluster";
        assert_eq!(check(None, Method::GET, path), Err(Denied::NoToken));
        for wrong in ["Basic secret-a", "secret-a", "Bearer", "\u{e9}"] {
            assert_eq!(check(Some(wrong), Method::GET, path), Err(Denied::NoToken), "{wrong}");
        }
        for wrong in ["Bearer secret-", "Bearer secret-aa", "Bearer ", "Bearer SECRET-A"] {
            assert_eq!(check(Some(wrong), Method::GET, path), Err(Denied::WrongToken), "{wrong}");
        }
        for open in ["/", "/docs/page.js", "/health/live", "/health/ready", "/v1/openapi.json"] {
            assert!(check(None, Method::GET, open).is_ok(), "{open}");
        }
        for closed in ["/metrics", "/v1/status", "/docsx", "/health/live/x"] {
            assert!(check(None, Method::GET, closed).is_err(), "{closed}");
        }
    }

    #[test]
    fn a_hash_is_what_other_tools_make() {
        // printf %s abc | sha256sum
        let hex: String = hash_token("abc").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
