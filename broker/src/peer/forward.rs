//! Client requests that one replica passes to another, and copies of the client table.
//!
//! A follower forwards what only the leader may answer. The leader handles the request as if it had come from the
//! client's own address, and the answer goes back by sequence, so a slow request delays no other.
//!
//! Fields of `Forward` and `ForwardOneway`: the client's address as family (u8: 4 or 6), the address bytes, port (u16).
//! The tail is the request as the client wire knows it; the tail of `Answer` is the response. The tail of
//! `CopyClientTable` and of its answer is opaque here.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use protocol::{FrameLimits, RemotingCommand, decode_frame, encode_head};

use super::error::{ForwardError, FrameError};
use super::frame::{Envelope, Fields, Frame, FrameWriter, Kind};
use super::link::{CallError, Link, put_failure};
use super::outbox::Outbox;

/// Handles the requests that other replicas forward to this one.
pub trait ForwardHandler: Send + Sync + 'static {
    /// Handles `request` as if `origin`, a client of another replica, had sent it here.
    ///
    /// Called on the connection's task: it must not block. `reply` may be used later, from any thread.
    fn forwarded(&self, origin: SocketAddr, request: RemotingCommand, from: Forwarder, reply: ForwardReply);
}

/// Who passes a request on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarder {
    /// A replica that takes this one for the leader.
    Replica,
    /// A node that is starting and does not know who leads.
    Starting,
}

/// The way of a starting node to a member of a group.
pub(crate) struct RelayLink(pub(super) Link);

impl RelayLink {
    /// Passes a client's request on and waits for the answer.
    ///
    /// # Errors
    /// [`ForwardError`] says whether the request may have taken effect.
    pub(crate) async fn forward(
        &self,
        origin: SocketAddr,
        request: &RemotingCommand,
        timeout: Duration,
    ) -> Result<RemotingCommand, ForwardError> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        over(&self.0, origin, request, timeout, move |result| drop(answer.send(result)));
        answered.await.unwrap_or_else(|_| Err(ForwardError::Unknown { reason: "link was dropped".to_owned() }))
    }
}

/// Passes a client's request on over `link` and calls `done` once with its answer.
pub(super) fn over(
    link: &Link,
    origin: SocketAddr,
    request: &RemotingCommand,
    timeout: Duration,
    done: impl FnOnce(Result<RemotingCommand, ForwardError>) + Send + 'static,
) {
    let mut fields = BytesMut::with_capacity(20);
    put_address(&mut fields, origin);
    let answered = Box::new(move |answer: Result<Frame, CallError>| {
        done(match answer {
            Ok(frame) => {
                decode_command(frame.tail).map_err(|error| ForwardError::Unknown { reason: error.to_string() })
            }
            Err(error) => Err(error.into()),
        });
    });
    link.call(Kind::Forward, &fields, encode_command(request, Vec::new()), timeout, answered);
}

/// Serves copies of the client table to replicas that have just started.
pub trait CopyHandler: Send + Sync + 'static {
    /// Answers `request`; both are opaque to the peer port.
    fn copy(&self, request: Bytes) -> BoxFuture<'static, Bytes>;
}

/// The way back for one forwarded request.
///
/// Dropped unsent, the other replica is told that the outcome is unknown.
pub struct ForwardReply {
    pub(super) outbox: Arc<Outbox>,
    pub(super) envelope: Envelope,
    pub(super) sequence: u64,
    /// Nobody waits for an answer.
    pub(super) oneway: bool,
    pub(super) sent: bool,
}

impl ForwardReply {
    /// Sends the answer.
    pub fn send(self, answer: &RemotingCommand) {
        self.send_parts(answer, Vec::new());
    }

    /// Sends `head` with a body made of the body of `head` and then `parts`, none of which is copied if it is large.
    pub fn send_parts(mut self, head: &RemotingCommand, parts: Vec<Bytes>) {
        self.sent = true;
        if self.oneway {
            return;
        }
        let tail = encode_command(head, parts);
        let writer = FrameWriter::new(Kind::Answer, self.sequence, &self.envelope, 0);
        if let Err(error) = self.outbox.push(writer, tail) {
            tracing::debug!(%error, "answer to a forwarded request cannot be sent");
            self.fail(&error.to_string());
        }
    }

    /// Whether the other side waits for an answer.
    #[must_use]
    pub fn is_oneway(&self) -> bool {
        self.oneway
    }

    fn fail(&self, reason: &str) {
        let mut writer = FrameWriter::new(Kind::Failed, self.sequence, &self.envelope, 64);
        put_failure(writer.fields(), true, reason);
        let _ = self.outbox.push(writer, Vec::new());
    }
}

impl Drop for ForwardReply {
    fn drop(&mut self) {
        if !self.sent && !self.oneway {
            self.fail("the request was not answered");
        }
    }
}

/// The slices of a command as it stands on the client wire.
pub(super) fn encode_command(head: &RemotingCommand, parts: Vec<Bytes>) -> Vec<Bytes> {
    let body_bytes = head.body.len() + parts.iter().map(Bytes::len).sum::<usize>();
    let mut out = BytesMut::with_capacity(256);
    encode_head(head, body_bytes, &mut out);
    let mut slices = Vec::with_capacity(2 + parts.len());
    slices.push(out.freeze());
    slices.push(head.body.clone());
    slices.extend(parts);
    slices
}

pub(super) fn decode_command(tail: Bytes) -> Result<RemotingCommand, FrameError> {
    let mut buffer = BytesMut::from(tail);
    // The answer to a batch that was passed on may be longer than any request.
    match decode_frame(&mut buffer, &FrameLimits::ANSWERS) {
        Ok(Some(command)) if buffer.is_empty() => Ok(command),
        _ => Err(FrameError::Field("forwarded command")),
    }
}

pub(super) fn put_address(out: &mut BytesMut, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.put_u8(4);
            out.put_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.put_u8(6);
            out.put_slice(&ip.octets());
        }
    }
    out.put_u16(address.port());
}

pub(super) fn address(fields: &mut Fields) -> Result<SocketAddr, FrameError> {
    let ip = match fields.u8("address family")? {
        4 => IpAddr::from(fields.array::<4>("address")?),
        6 => IpAddr::from(fields.array::<16>("address")?),
        _ => return Err(FrameError::Field("address family")),
    };
    Ok(SocketAddr::new(ip, fields.u16("port")?))
}

impl From<CallError> for ForwardError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::NotSent(reason) => Self::NotSent { reason },
            CallError::Unknown(reason) => Self::Unknown { reason },
        }
    }
}
