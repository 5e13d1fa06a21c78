//! Takes a group's requests from the first moment on, and hands them over in order once the group can answer.
//!
//! Accepting, recovering and leading are separate: a client that connects to a node that is still reading its log waits
//! instead of being refused. The same holds while a replica is stopped and started again. What waits too long is answered
//! "not now", before the client's own time is up. While the group cannot start at all, the same answer comes at once.
//!
//! What only the leader may answer need not wait: it is passed on to the other members.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use protocol::{LanguageCode, RemotingCommand, RequestCode, ResponseCode};
use remoting::{Connection, ConnectionId, Handler, Responder};

use crate::forward::Relay;

const REQUESTS_MAX: usize = 10_000;
const BYTES_MAX: usize = 64 << 20;
/// Clients give a send 3 s.
const SEND_WAIT_MAX: Duration = Duration::from_secs(2);
/// Clients give an offset query 3 s (Go) or 5 s.
const OTHER_WAIT_MAX: Duration = Duration::from_millis(2_500);

/// A handler whose real one comes later.
#[derive(Default)]
pub(super) struct LateHandler {
    /// Changed under the lock of `waiting` only.
    real: Arc<RwLock<Option<Arc<dyn Handler>>>>,
    waiting: Mutex<Waiting>,
    /// The way to the other members, once it is known, if there are any.
    relay: RwLock<Option<Option<Relay>>>,
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<WaitingRequest>,
    bytes: usize,
    /// Every connection there is, for the next real handler.
    open: HashMap<ConnectionId, Connection>,
    /// Why nothing is waited for.
    refusal: Option<String>,
    /// Why nothing is waited for that cannot be passed on.
    left: Option<String>,
}

struct WaitingRequest {
    since: Instant,
    request: RemotingCommand,
    responder: Responder,
}

impl LateHandler {
    /// Hands over what waits, and everything from now on.
    pub(super) fn install(&self, real: Arc<dyn Handler>) {
        // Requests that arrive now wait for the lock, so the order of each connection is kept.
        let mut waiting = self.waiting.lock();
        waiting.open.values().for_each(|connection| real.opened(connection));
        for WaitingRequest { request, responder, .. } in std::mem::take(&mut waiting.requests) {
            real.handle(request, responder);
        }
        waiting.bytes = 0;
        waiting.refusal = None;
        *self.real.write() = Some(real);
    }

    /// Refuses what waits, and everything until [`Self::install`]: the group cannot start.
    pub(super) fn refuse(&self, reason: &str) {
        let mut waiting = self.waiting.lock();
        waiting.refusal = Some(reason.to_owned());
        let refused = std::mem::take(&mut waiting.requests);
        waiting.bytes = 0;
        drop(waiting);
        for WaitingRequest { request, responder, .. } in refused {
            refuse(&request, responder, &format!("not proposed: {reason}"));
        }
    }

    /// Passes on what need not wait, from now on. The first call decides how.
    pub(super) fn relay_by(&self, relay: impl FnOnce() -> Option<Relay>) {
        self.relay.write().get_or_insert_with(relay);
    }

    /// Passes on by `relay` what can be, and refuses the rest, from now on: the replica here is gone.
    pub(super) fn leave(&self, relay: Option<Relay>, reason: &str) {
        *self.relay.write() = Some(relay);
        let mut waiting = self.waiting.lock();
        waiting.left = Some(reason.to_owned());
        let refused = std::mem::take(&mut waiting.requests);
        waiting.bytes = 0;
        drop(waiting);
        for WaitingRequest { request, responder, .. } in refused {
            refuse(&request, responder, &format!("not proposed: {reason}"));
        }
    }

    /// Lets requests wait again.
    pub(super) fn uninstall(&self) {
        let _waiting = self.waiting.lock();
        *self.real.write() = None;
    }

    fn real(&self) -> Option<Arc<dyn Handler>> {
        self.real.read().clone()
    }

    /// Answers what has waited too long at `now`. Call it a few times a second until [`Self::install`].
    pub(super) fn expire(&self, now: Instant) {
        let mut waiting = self.waiting.lock();
        let (expired, kept) =
            std::mem::take(&mut waiting.requests).into_iter().partition::<VecDeque<_>, _>(|waiting| {
                now.saturating_duration_since(waiting.since) >= wait_max(&waiting.request)
            });
        waiting.requests = kept;
        waiting.bytes -= expired.iter().map(|expired| size(&expired.request)).sum::<usize>();
        drop(waiting);
        for WaitingRequest { request, responder, .. } in expired {
            refuse(&request, responder, "not proposed: the broker is starting");
        }
    }
}

impl Handler for LateHandler {
    fn handle(&self, request: RemotingCommand, responder: Responder) {
        if let Some(real) = self.real() {
            return real.handle(request, responder);
        }
        let mut waiting = self.waiting.lock();
        if let Some(real) = self.real() {
            drop(waiting);
            return real.handle(request, responder);
        }
        if let Some(reason) = waiting.refusal.clone() {
            drop(waiting);
            return refuse(&request, responder, &format!("not proposed: {reason}"));
        }
        let relay = self.relay.read().clone().flatten();
        if let Some(relay) = relay
            && let Some(patience) = Relay::patience(&request)
        {
            drop(waiting);
            let real = Arc::clone(&self.real);
            return relay.pass(request, responder, patience, move || real.read().clone());
        }
        if let Some(reason) = waiting.left.clone() {
            drop(waiting);
            return refuse(&request, responder, &format!("not proposed: {reason}"));
        }
        if waiting.requests.len() >= REQUESTS_MAX || waiting.bytes + size(&request) > BYTES_MAX {
            drop(waiting);
            return refuse(&request, responder, "not proposed: the broker is starting, and too many requests wait");
        }
        waiting.bytes += size(&request);
        waiting.requests.push_back(WaitingRequest { since: Instant::now(), request, responder });
    }

    fn opened(&self, connection: &Connection) {
        let mut waiting = self.waiting.lock();
        waiting.open.insert(connection.id(), connection.clone());
        if let Some(real) = self.real() {
            real.opened(connection);
        }
    }

    fn closed(&self, connection: &Connection) {
        let mut waiting = self.waiting.lock();
        waiting.open.remove(&connection.id());
        if let Some(real) = self.real() {
            real.closed(connection);
        }
    }
}

fn size(request: &RemotingCommand) -> usize {
    // The header's fields are bounded by the frame limits; a fixed share stands for them.
    request.body.len() + 1_024
}

fn wait_max(request: &RemotingCommand) -> Duration {
    match request.request_code() {
        RequestCode::SEND_MESSAGE | RequestCode::SEND_MESSAGE_V2 | RequestCode::SEND_BATCH_MESSAGE => SEND_WAIT_MAX,
        _ => OTHER_WAIT_MAX,
    }
}

/// Go drops all its queues when a member list comes back without members, whatever the code says: better no answer.
fn refuse(request: &RemotingCommand, responder: Responder, remark: &str) {
    if request.request_code() == RequestCode::GET_CONSUMER_LIST_BY_GROUP && request.language == LanguageCode::Go {
        return responder.forget();
    }
    let answer = RemotingCommand::response_to(request, ResponseCode::SERVICE_NOT_AVAILABLE).with_remark(remark);
    responder.send(answer);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    struct Recorder(mpsc::Sender<i32>);

    impl Handler for Recorder {
        fn handle(&self, request: RemotingCommand, responder: Responder) {
            self.0.send(request.opaque).unwrap();
            responder.send(RemotingCommand::response_to(&request, ResponseCode::SUCCESS));
        }
    }

    fn send(handler: &LateHandler, code: RequestCode, opaque: i32, answers: &mpsc::Sender<(i32, i32)>) {
        let mut request = RemotingCommand::request(code);
        request.opaque = opaque;
        let answers = answers.clone();
        let responder = Responder::detached(&request, ([127, 0, 0, 1], 1).into(), move |answer| {
            answers.send((answer.opaque, answer.code)).unwrap();
        });
        handler.handle(request, responder);
    }

    #[test]
    fn requests_are_handed_over_in_order() {
        let (handler, (sender, answers), (seen, handled)) = (LateHandler::default(), mpsc::channel(), mpsc::channel());
        send(&handler, RequestCode::SEND_MESSAGE, 1, &sender);
        send(&handler, RequestCode::HEART_BEAT, 2, &sender);
        handler.install(Arc::new(Recorder(seen)));
        send(&handler, RequestCode::SEND_MESSAGE, 3, &sender);
        assert_eq!(handled.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [(1, 0), (2, 0), (3, 0)]);
    }

    #[test]
    fn requests_wait_again_while_there_is_no_handler() {
        let (handler, (sender, answers), (seen, handled)) = (LateHandler::default(), mpsc::channel(), mpsc::channel());
        handler.install(Arc::new(Recorder(seen.clone())));
        send(&handler, RequestCode::SEND_MESSAGE, 1, &sender);
        handler.uninstall();
        send(&handler, RequestCode::SEND_MESSAGE, 2, &sender);
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [(1, 0)]);
        handler.install(Arc::new(Recorder(seen)));
        assert_eq!(handled.try_iter().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn what_waits_too_long_is_refused_and_never_handled() {
        let (handler, (sender, answers), (seen, handled)) = (LateHandler::default(), mpsc::channel(), mpsc::channel());
        send(&handler, RequestCode::SEND_MESSAGE, 1, &sender);
        send(&handler, RequestCode::QUERY_CONSUMER_OFFSET, 2, &sender);
        handler.expire(Instant::now() + SEND_WAIT_MAX);
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [(1, 14)]);
        handler.install(Arc::new(Recorder(seen)));
        assert_eq!(handled.try_iter().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn nothing_waits_for_a_group_that_cannot_start_until_it_can() {
        let (handler, (sender, answers), (seen, handled)) = (LateHandler::default(), mpsc::channel(), mpsc::channel());
        send(&handler, RequestCode::SEND_MESSAGE, 1, &sender);
        handler.refuse("group broker-a has failed");
        send(&handler, RequestCode::PULL_MESSAGE, 2, &sender);
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [(1, 14), (2, 14)]);
        handler.install(Arc::new(Recorder(seen)));
        handler.uninstall();
        send(&handler, RequestCode::SEND_MESSAGE, 3, &sender);
        assert_eq!((answers.try_iter().count(), handled.try_iter().count()), (0, 0));
    }

    #[test]
    fn too_many_are_refused_at_once() {
        let (handler, (sender, answers)) = (LateHandler::default(), mpsc::channel());
        for opaque in 0..=i32::try_from(REQUESTS_MAX).unwrap() {
            send(&handler, RequestCode::SEND_MESSAGE, opaque, &sender);
        }
        assert_eq!(answers.try_iter().count(), 1);
    }
}
