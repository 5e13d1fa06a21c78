//! A call that is made again with the same `Idempotency-Key` is not carried out again.
//!
//! What was answered is kept by the node that carried the call out, in memory, for ten minutes. Refusals and failures that
//! changed nothing are not kept: trying again means trying again. A call with a key goes on to its end even if the caller
//! hangs up, so that the second try finds what became of the first.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::error::ErrorBody;
use super::{BODY_BYTES_MAX, place};

/// How long an answer is kept.
const KEEP_FOR: Duration = Duration::from_secs(600);
/// Answers kept, and calls under way.
const KEYS_MAX: usize = 1_024;
/// A longer answer is not kept, nor promised to be.
const ANSWER_BYTES_MAX: usize = 1 << 20;
const KEY_BYTES_MAX: usize = 128;

/// The header.
pub(super) const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Set on an answer that was given before.
const REPLAYED: &str = "idempotency-replayed";

#[derive(Clone, Default)]
pub(super) struct Kept(Arc<Mutex<HashMap<String, Entry>>>);

struct Entry {
    call: [u8; 32],
    at: Instant,
    /// None while the call is under way.
    answer: Option<Answer>,
}

#[derive(Clone)]
struct Answer {
    status: StatusCode,
    content_type: Option<HeaderValue>,
    body: Bytes,
}

/// What becomes of a call with a key.
enum Turn {
    Go,
    Again(Answer),
    UnderWay,
    OtherCall,
    Full,
}

impl Kept {
    fn begin(&self, key: &str, call: [u8; 32], now: Instant) -> Turn {
        let mut entries = self.0.lock();
        if let Some(entry) = entries.get(key).filter(|entry| entry.answer.is_none() || now - entry.at < KEEP_FOR) {
            return match &entry.answer {
                _ if entry.call != call => Turn::OtherCall,
                Some(answer) => Turn::Again(answer.clone()),
                None => Turn::UnderWay,
            };
        }
        if entries.len() >= KEYS_MAX {
            entries.retain(|_, entry| entry.answer.is_none() || now - entry.at < KEEP_FOR);
        }
        if entries.len() >= KEYS_MAX {
            return Turn::Full;
        }
        entries.insert(key.to_owned(), Entry { call, at: now, answer: None });
        Turn::Go
    }

    fn end(&self, key: &str, answer: Option<Answer>, now: Instant) {
        let mut entries = self.0.lock();
        match answer {
            Some(answer) => {
                if let Some(entry) = entries.get_mut(key) {
                    (entry.at, entry.answer) = (now, Some(answer));
                }
            }
            None => drop(entries.remove(key)),
        }
    }
}

/// Forgets a call that ended without an answer: it panicked.
struct Open {
    kept: Kept,
    key: String,
    ended: bool,
}

impl Open {
    fn end(mut self, answer: Option<Answer>) {
        self.ended = true;
        self.kept.end(&self.key, answer, now());
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.ended {
            self.kept.end(&self.key, None, now());
        }
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The key of a call, if it has one.
pub(super) fn key_of(headers: &HeaderMap) -> Result<Option<String>, Box<Response>> {
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(key) = keys.next() else { return Ok(None) };
    let is_allowed = |key: &str| (1..=KEY_BYTES_MAX).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic());
    match key.to_str().ok().filter(|key| is_allowed(key)) {
        Some(key) if keys.next().is_none() => Ok(Some(key.to_owned())),
        _ => Err(Box::new(ErrorBody::answer(
            StatusCode::BAD_REQUEST,
            "invalid_key",
            format!("there is one Idempotency-Key, and it has 1 to {KEY_BYTES_MAX} visible ASCII characters"),
            "use a new random one for each thing to be done",
        ))),
    }
}

/// Carries a call that changes something out, unless its key says that this was done.
pub(super) async fn check(Extension(kept): Extension<Kept>, request: Request, next: Next) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    let key = match key_of(request.headers()) {
        Ok(Some(key)) => key,
        Ok(None) => return next.run(request).await,
        Err(refused) => return *refused,
    };
    if place::is_dry_run(request.uri()) {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, BODY_BYTES_MAX).await else { return place::too_large() };
    let mut hash = Sha256::new();
    for part in [parts.method.as_str(), parts.uri.path(), parts.uri.query().unwrap_or_default()] {
        hash.update(part);
        hash.update([0]);
    }
    hash.update(&body);
    let advice = "use a new random key for each thing to be done";
    match kept.begin(&key, hash.finalize().into(), now()) {
        Turn::Again(answer) => return answer.respond(true),
        Turn::UnderWay => {
            let text = "a call with this Idempotency-Key is under way";
            return ErrorBody::answer(StatusCode::CONFLICT, "under_way", text, "ask again in a second");
        }
        Turn::OtherCall => {
            let text = "this Idempotency-Key was used for another call";
            return ErrorBody::answer(StatusCode::UNPROCESSABLE_ENTITY, "key_reused", text, advice);
        }
        Turn::Full => {
            let text = "too many calls with an Idempotency-Key in the last ten minutes";
            return ErrorBody::answer(StatusCode::SERVICE_UNAVAILABLE, "too_many_keys", text, "try again later");
        }
        Turn::Go => {}
    }
    let open = Open { kept, key, ended: false };
    let request = Request::from_parts(parts, Body::from(body));
    let carried_out = tokio::spawn(async move {
        let (parts, body) = next.run(request).await.into_parts();
        let Ok(body) = to_bytes(body, ANSWER_BYTES_MAX).await else {
            open.end(None);
            let text = "the answer is too long to be kept; the call was carried out";
            return ErrorBody::answer(StatusCode::INTERNAL_SERVER_ERROR, "internal", text, "look at the present state");
        };
        let content_type = parts.headers.get(header::CONTENT_TYPE).cloned();
        let answer = Answer { status: parts.status, content_type, body: body.clone() };
        open.end(parts.status.is_success().then_some(answer));
        Response::from_parts(parts, Body::from(body))
    });
    carried_out.await.unwrap_or_else(|_| {
        let text = "the node made a mistake of its own";
        ErrorBody::answer(StatusCode::INTERNAL_SERVER_ERROR, "internal", text, "its log says more; please report it")
    })
}

impl Answer {
    fn respond(self, replayed: bool) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        if let Some(content_type) = self.content_type {
            response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        }
        if replayed {
            response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Answer {
        Answer { status: StatusCode::OK, content_type: None, body: Bytes::from_static(b"{}") }
    }

    fn word(turn: &Turn) -> &'static str {
        match turn {
            Turn::Go => "go",
            Turn::Again(_) => "again",
            Turn::UnderWay => "under way",
            Turn::OtherCall => "other call",
            Turn::Full => "full",
        }
    }

    #[test]
    fn the_second_try_finds_what_became_of_the_first() {
        let (kept, start) = (Kept::default(), Instant::now());
        let begin = |call: u8, at: Duration| word(&kept.begin("k", [call; 32], start + at));
        assert_eq!(begin(1, Duration::ZERO), "go");
        assert_eq!(begin(1, Duration::ZERO), "under way");
        assert_eq!(begin(1, KEEP_FOR * 2), "under way", "however long it takes");
        kept.end("k", None, start);
        assert_eq!(begin(1, Duration::ZERO), "go", "a failure is not kept");
        kept.end("k", Some(answer()), start);
        assert_eq!(begin(1, KEEP_FOR / 2), "again");
        assert_eq!(begin(2, KEEP_FOR / 2), "other call");
        assert_eq!(begin(2, KEEP_FOR), "go", "its time is over");
    }

    #[test]
    fn keys_are_bounded_and_old_ones_make_room() {
        let (kept, start) = (Kept::default(), Instant::now());
        for number in 0..KEYS_MAX {
            let key = number.to_string();
            assert_eq!(word(&kept.begin(&key, [0; 32], start)), "go");
            kept.end(&key, Some(answer()), start);
        }
        assert_eq!(word(&kept.begin("one more", [0; 32], start)), "full");
        assert_eq!(word(&kept.begin("one more", [0; 32], start + KEEP_FOR)), "go");
        assert_eq!(kept.0.lock().len(), 1);
    }
}
