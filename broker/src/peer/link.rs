//! The calling side of a peer connection: many calls in flight, answered in any order.
//!
//! A link belongs to one peer, one group and one class. It connects when there is something to send. When its
//! connection ends, every call in flight fails at once, and each failure says whether the peer may have received the
//! call. Calls that wait are written together; there is no task and no channel per call.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::PeerError;
use super::frame::{Envelope, Frame, FrameWriter, Kind};
use super::stream::PeerStream;

/// Bytes that may wait for a connection or for the socket.
const QUEUED_BYTES_MAX: usize = 64 << 20;
/// Calls without an answer.
const PENDING_CALLS_MAX: usize = 64 << 10;
/// A peer that has said nothing for so long while calls are open is asked whether it lives.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// And when it does not answer that for so long, the connection is given up.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// How exactly time limits are kept.
const SWEEP_INTERVAL: Duration = Duration::from_millis(20);

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// The peer surely did not act on it.
    #[error("{0}")]
    NotSent(String),
    /// The peer may have acted on it.
    #[error("{0}")]
    Unknown(String),
}

/// Called once with the answer.
pub(crate) type Done = Box<dyn FnOnce(Result<Frame, CallError>) + Send>;

struct Pending {
    deadline: Instant,
    done: Done,
}

struct State {
    /// Refuses every call once set.
    closed: Option<String>,
    next_sequence: u64,
    /// Calls below this sequence have been handed to a socket.
    sent_below: u64,
    queued: Vec<Bytes>,
    queued_bytes: usize,
    pending: HashMap<u64, Pending>,
}

struct Shared {
    envelope: Envelope,
    state: Mutex<State>,
    wake: Notify,
}

/// A handle to a link; the task that drives it is spawned by the hub.
#[derive(Clone)]
pub(crate) struct Link(Arc<Shared>);

impl Link {
    pub(crate) fn new(envelope: Envelope) -> Self {
        Self(Arc::new(Shared {
            envelope,
            state: Mutex::new(State {
                closed: None,
                next_sequence: 1,
                sent_below: 1,
                queued: Vec::new(),
                queued_bytes: 0,
                pending: HashMap::new(),
            }),
            wake: Notify::new(),
        }))
    }

    /// Queues a call and returns. `done` is called once: with the answer, or with the reason why there is none.
    pub(crate) fn call(&self, kind: Kind, fields: &[u8], tail: Vec<Bytes>, timeout: Duration, done: Done) {
        let deadline = Instant::now() + timeout;
        if let Err((reason, done)) = self.enqueue(kind, fields, tail, Some((deadline, done)))
            && let Some((_, done)) = done
        {
            done(Err(CallError::NotSent(reason)));
        }
    }

    /// Queues a frame that nobody answers.
    pub(crate) fn notify(&self, kind: Kind, fields: &[u8], tail: Vec<Bytes>) -> Result<(), CallError> {
        self.enqueue(kind, fields, tail, None).map_err(|(reason, _)| CallError::NotSent(reason))
    }

    /// [`Link::call`] for callers that can wait.
    pub(crate) async fn ask(
        &self,
        kind: Kind,
        fields: &[u8],
        tail: Vec<Bytes>,
        timeout: Duration,
    ) -> Result<Frame, CallError> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        self.call(kind, fields, tail, timeout, Box::new(move |result| drop(answer.send(result))));
        answered.await.unwrap_or_else(|_| Err(CallError::Unknown("link was dropped".to_owned())))
    }

    /// On failure the callback goes back to the caller, who calls it without the lock.
    fn enqueue(
        &self,
        kind: Kind,
        fields: &[u8],
        tail: Vec<Bytes>,
        mut waiting: Option<(Instant, Done)>,
    ) -> Result<(), (String, Option<(Instant, Done)>)> {
        let bytes = fields.len() + tail.iter().map(Bytes::len).sum::<usize>();
        {
            let mut state = self.0.state.lock();
            if let Some(reason) = &state.closed {
                return Err((reason.clone(), waiting));
            }
            if state.queued_bytes + bytes > QUEUED_BYTES_MAX || state.pending.len() >= PENDING_CALLS_MAX {
                return Err(("too much waits for this peer".to_owned(), waiting));
            }
            let sequence = state.next_sequence;
            let mut writer = FrameWriter::new(kind, sequence, &self.0.envelope, fields.len());
            writer.fields().extend_from_slice(fields);
            if let Err(error) = writer.finish(tail, &mut state.queued) {
                return Err((error.to_string(), waiting));
            }
            state.next_sequence += 1;
            state.queued_bytes += bytes;
            if let Some((deadline, done)) = waiting.take() {
                state.pending.insert(sequence, Pending { deadline, done });
            }
        }
        self.0.wake.notify_one();
        Ok(())
    }

    /// Connects whenever something waits, and serves the calls until `cancel`. Fails what is left on return.
    pub(crate) async fn drive<D, F>(self, dial: D, cancel: CancellationToken)
    where
        D: Fn() -> F + Send,
        F: Future<Output = Result<PeerStream, PeerError>> + Send,
    {
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                () = self.wait_for_work() => {}
            }
            let mut dialling = std::pin::pin!(dial());
            let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
            let dialled = loop {
                tokio::select! {
                    () = cancel.cancelled() => break Err(PeerError::Unavailable("node is stopping".to_owned())),
                    dialled = &mut dialling => break dialled,
                    _ = sweep.tick() => self.sweep(),
                }
            };
            let error = match dialled {
                Ok(mut stream) => self.run(&mut stream, &cancel).await,
                Err(error) => error,
            };
            self.fail_all(&error.to_string());
        }
        self.0.state.lock().closed = Some("node is stopping".to_owned());
        self.fail_all("node is stopping");
    }

    async fn wait_for_work(&self) {
        loop {
            if !self.0.state.lock().queued.is_empty() {
                return;
            }
            self.0.wake.notified().await;
        }
    }

    /// Moves frames both ways until the connection ends.
    async fn run(&self, stream: &mut PeerStream, cancel: &CancellationToken) -> PeerError {
        let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
        sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let PeerStream { reader, sender } = stream;
        let mut pulse = Pulse::new(Instant::now());
        loop {
            let waiting = {
                let mut state = self.0.state.lock();
                if sender.queue.is_empty() && !state.queued.is_empty() {
                    sender.queue.extend(std::mem::take(&mut state.queued));
                    state.queued_bytes = 0;
                    state.sent_below = state.next_sequence;
                    pulse.sent(Instant::now());
                }
                !state.pending.is_empty() || pulse.pinged.is_some()
            };
            tokio::select! {
                biased;
                frame = reader.next() => match frame {
                    Ok(frame) => {
                        pulse.heard(Instant::now());
                        self.answer(frame);
                    }
                    Err(error) => return error,
                },
                written = sender.write_some(), if !sender.queue.is_empty() => if let Err(error) = written {
                    return error;
                },
                () = self.0.wake.notified(), if sender.queue.is_empty() => {}
                _ = sweep.tick(), if waiting => {
                    self.sweep();
                    match pulse.check(Instant::now()) {
                        Check::Fine => {}
                        Check::Ping => {
                            // Sequence zero is no call's, so its answer only shows that the peer lives.
                            let ping = FrameWriter::new(Kind::Ping, 0, &self.0.envelope, 0);
                            if let Err(error) = sender.queue.push(ping, Vec::new()) {
                                return error.into();
                            }
                        }
                        Check::Dead => return PeerError::Timeout("waiting for a sign of life"),
                    }
                }
                () = cancel.cancelled() => return PeerError::Unavailable("node is stopping".to_owned()),
            }
        }
    }

    fn answer(&self, frame: Frame) {
        let Some(pending) = self.0.state.lock().pending.remove(&frame.sequence) else {
            return; // its time was up
        };
        (pending.done)(match frame.kind {
            Kind::Answer => Ok(frame),
            Kind::Failed => Err(failure(&frame)),
            kind => Err(CallError::Unknown(format!("answered by {kind:?}"))),
        });
    }

    /// Fails the calls whose time is up. Their frames may still leave, so the outcome is unknown.
    fn sweep(&self) {
        let now = Instant::now();
        let expired: Vec<Pending> = {
            let mut state = self.0.state.lock();
            state.pending.extract_if(|_, pending| pending.deadline <= now).map(|(_, pending)| pending).collect()
        };
        for pending in expired {
            (pending.done)(Err(CallError::Unknown("no answer in time".to_owned())));
        }
    }

    fn fail_all(&self, reason: &str) {
        let (pending, sent_below) = {
            let mut state = self.0.state.lock();
            state.queued.clear();
            state.queued_bytes = 0;
            let sent_below = state.sent_below;
            state.sent_below = state.next_sequence;
            (std::mem::take(&mut state.pending), sent_below)
        };
        for (sequence, pending) in pending {
            let reason = reason.to_owned();
            (pending.done)(Err(if sequence < sent_below {
                CallError::Unknown(reason)
            } else {
                CallError::NotSent(reason)
            }));
        }
    }
}

/// Whether the other side of a connection still lives. A call may rightly take long; a ping may not.
#[derive(Debug)]
struct Pulse {
    /// When something was last heard, or sent after a rest.
    at: Instant,
    /// Something was sent and nothing heard since.
    waiting: bool,
    pinged: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum Check {
    Fine,
    Ping,
    Dead,
}

impl Pulse {
    fn new(now: Instant) -> Self {
        Self { at: now, waiting: false, pinged: None }
    }

    fn sent(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.waiting, true) {
            self.at = now;
        }
    }

    fn heard(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    fn check(&mut self, now: Instant) -> Check {
        match self.pinged {
            Some(at) if now.duration_since(at) >= PING_TIMEOUT => Check::Dead,
            None if now.duration_since(self.at) >= SILENCE_MAX => {
                self.pinged = Some(now);
                Check::Ping
            }
            _ => Check::Fine,
        }
    }
}

/// Fields of `Failed`: whether the call may have had an effect (bool), reason (text).
pub(crate) fn put_failure(out: &mut BytesMut, unknown: bool, reason: &str) {
    use bytes::BufMut;
    out.put_u8(u8::from(unknown));
    super::frame::put_text(out, reason);
}

pub(super) fn failure(frame: &Frame) -> CallError {
    let mut fields = frame.fields();
    match (fields.bool("unknown outcome"), fields.text("reason")) {
        (Ok(false), Ok(reason)) => CallError::NotSent(reason),
        (Ok(true), Ok(reason)) => CallError::Unknown(reason),
        _ => CallError::Unknown("peer failed the call without a reason".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_peer_is_asked_and_then_given_up() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let mut pulse = Pulse::new(start);
        pulse.sent(after(5_000));
        assert_eq!(pulse.check(after(5_900)), Check::Fine);
        pulse.sent(after(5_950));
        assert_eq!(pulse.check(after(6_000)), Check::Ping);
        assert_eq!(pulse.check(after(7_900)), Check::Fine);
        assert_eq!(pulse.check(after(8_000)), Check::Dead);
        pulse.heard(after(8_001));
        assert_eq!(pulse.check(after(9_000)), Check::Fine);
        assert_eq!(pulse.check(after(9_001)), Check::Ping, "a call is still open");
    }
}
