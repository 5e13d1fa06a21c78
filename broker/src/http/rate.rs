//! How many calls a second a node takes.
//!
//! Whoever calls has a share of its own: each token, those without one, those whose token is wrong, and each of these once
//! more for health and metrics. So a program that asks too often locks out nobody else, and whoever has no token cannot
//! keep an operator out.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use parking_lot::Mutex;

use super::error::ErrorBody;

/// A share is used up by so much at once.
const BURST: Duration = Duration::from_secs(1);

/// Whose share a call counts for. There are as many as tokens, times two, and four.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Share {
    /// The caller's name; none if it was refused.
    pub(super) caller: Option<String>,
    /// It asks for health or metrics.
    pub(super) watches: bool,
}

/// The limit, and what is used of it.
pub(super) struct Rate {
    per_second: u32,
    /// When each share would be whole again.
    whole_at: Mutex<HashMap<Share, Instant>>,
}

impl Rate {
    pub(super) fn new(per_second: u32) -> Self {
        assert!(per_second > 0);
        Self { per_second, whole_at: Mutex::default() }
    }

    /// Takes one call from a share.
    ///
    /// # Errors
    /// It is used up, and for how long.
    fn take(&self, share: Share, now: Instant) -> Result<(), Duration> {
        let mut all = self.whole_at.lock();
        let whole_at = all.entry(share).or_insert(now);
        let after = (*whole_at).max(now) + Duration::from_secs(1) / self.per_second;
        match after.checked_duration_since(now + BURST) {
            Some(wait) if !wait.is_zero() => Err(wait),
            _ => {
                *whole_at = after;
                Ok(())
            }
        }
    }

    /// Takes one call from a share.
    ///
    /// # Errors
    /// The answer, if it is used up.
    pub(super) fn admit(&self, share: Share) -> Result<(), Box<Response>> {
        self.take(share, tokio::time::Instant::now().into_std()).map_err(|_| {
            let text = format!("more than {} requests in a second", self.per_second);
            let advice = "wait a second, and ask less often; http.requests_per_second is the limit";
            let mut answer = ErrorBody::answer(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", text, advice);
            // No share is used up for longer.
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            Box::new(answer)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(caller: &str, watches: bool) -> Share {
        Share { caller: Some(caller.to_owned()), watches }
    }

    #[test]
    fn a_share_lasts_for_a_second_and_comes_back_evenly() {
        let (rate, start) = (Rate::new(50), tokio::time::Instant::now().into_std());
        let taken = |caller: &str, watches, millis: u64, tries: u32| {
            let now = start + Duration::from_millis(millis);
            (0..tries).filter(|_| rate.take(share(caller, watches), now).is_ok()).count()
        };
        assert_eq!(taken("ops", false, 0, 60), 50);
        // Others, and the caller's own probes, have theirs.
        assert_eq!((taken("prom", false, 0, 60), taken("ops", true, 0, 60)), (50, 50));
        assert_eq!(taken("ops", false, 19, 60), 0);
        assert_eq!(taken("ops", false, 20, 60), 1);
        assert_eq!(taken("ops", false, 520, 60), 25);
        assert_eq!(taken("ops", false, 1_519, 60), 49);
        assert_eq!(taken("ops", false, 60_000, 60), 50, "no more than a second's worth is saved");
        let wait = rate.take(share("ops", false), start + Duration::from_secs(60)).unwrap_err();
        assert_eq!(wait, Duration::from_millis(20));
    }
}
