//! Calls of the HTTP side that another node must answer.
//!
//! Each call has a connection of its own: they are rare, some take long, and none may delay another. What a call says is
//! known to `http` alone; the answering node checks its bearer token again, so that a peer can do no more than whoever
//! called it.
//!
//! Fields of `Admin`: method, target, authorization, idempotency key and content type, each two length bytes and UTF-8; the
//! tail is the body. Fields of its `Answer`: status (u16), content type, and whether the node says that another one must
//! answer (bool); the tail is the body.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;

use super::Hub;
use super::error::{ForwardError, FrameError, PeerError};
use super::frame::{Envelope, Frame, FrameWriter, Kind};
use super::handshake::{Class, GroupGreeting};
use super::link::{failure, put_failure};
use super::stream::PeerStream;

/// Bytes of each text of a call.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// A call as it came in over HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminCall {
    /// `GET`, `POST`, `PUT` or `DELETE`.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The header `Authorization`, empty if there is none.
    pub authorization: String,
    /// The header `Idempotency-Key`, empty if there is none.
    pub idempotency_key: String,
    /// The header `Content-Type`, empty if there is none.
    pub content_type: String,
    /// The body.
    pub body: Bytes,
}

/// What the other node answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminReply {
    /// HTTP's status code.
    pub status: u16,
    /// The header `Content-Type`.
    pub content_type: String,
    /// Nothing was done, because another node must answer the call.
    pub elsewhere: bool,
    /// The body.
    pub body: Bytes,
}

/// Answers calls that another node passes on.
pub trait AdminHandler: Send + Sync + 'static {
    /// Answers `call` here, or says that another node must.
    fn passed_on(&self, call: AdminCall) -> BoxFuture<'static, AdminReply>;
}

impl AdminCall {
    fn encode(&self, out: &mut BytesMut) -> Result<(), FrameError> {
        for text in [&self.method, &self.target, &self.authorization, &self.idempotency_key, &self.content_type] {
            put_long(out, text)?;
        }
        Ok(())
    }

    fn decode(frame: Frame) -> Result<Self, FrameError> {
        let mut fields = frame.fields();
        let call = Self {
            method: fields.text("method")?,
            target: fields.text("target")?,
            authorization: fields.text("authorization")?,
            idempotency_key: fields.text("idempotency key")?,
            content_type: fields.text("content type")?,
            body: frame.tail,
        };
        fields.finish("end of admin call")?;
        Ok(call)
    }
}

impl AdminReply {
    fn encode(&self, out: &mut BytesMut) -> Result<(), FrameError> {
        out.put_u16(self.status);
        put_long(out, &self.content_type)?;
        out.put_u8(u8::from(self.elsewhere));
        Ok(())
    }

    fn decode(frame: Frame) -> Result<Self, FrameError> {
        let mut fields = frame.fields();
        let reply = Self {
            status: fields.u16("status")?,
            content_type: fields.text("content type")?,
            elsewhere: fields.bool("elsewhere")?,
            body: frame.tail,
        };
        fields.finish("end of admin reply")?;
        Ok(reply)
    }
}

fn put_long(out: &mut BytesMut, text: &str) -> Result<(), FrameError> {
    match u16::try_from(text.len()) {
        Ok(length) if text.len() <= TEXT_BYTES_MAX => {
            out.put_u16(length);
            out.put_slice(text.as_bytes());
            Ok(())
        }
        _ => Err(FrameError::Field("too long a text in an admin call")),
    }
}

impl Hub {
    /// The nodes that share a group with this one.
    pub(crate) fn other_nodes(&self) -> Vec<String> {
        self.known_peers().into_keys().collect()
    }

    /// Has `node` answer a call.
    pub(crate) async fn pass_on(
        &self,
        node: &str,
        call: &AdminCall,
        limit: Duration,
    ) -> Result<AdminReply, ForwardError> {
        let not_sent = |error: PeerError| ForwardError::NotSent { reason: error.to_string() };
        let address = self.known_peers().remove(node);
        let address =
            address.ok_or_else(|| ForwardError::NotSent { reason: format!("node {node} is not known here") })?;
        let envelope = self.node_envelope();
        let groups: Vec<GroupGreeting> = self.all_groups().iter().map(|group| group.greeting()).collect();
        let greeting = self.greeting(Class::Admin, &address.node, &groups);
        let (stream, _) = self.dial(&address, &envelope, &greeting).await.map_err(not_sent)?;
        let mut writer = FrameWriter::new(Kind::Admin, 1, &envelope, 256);
        call.encode(writer.fields()).map_err(|error| not_sent(error.into()))?;
        let asked = tokio::time::timeout(limit, ask(stream, writer, call.body.clone())).await;
        let unknown = |reason: String| ForwardError::Unknown { reason };
        asked.map_err(|_| unknown(format!("no answer in {limit:?}")))?.map_err(|error| unknown(error.to_string()))
    }
}

async fn ask(mut stream: PeerStream, writer: FrameWriter, body: Bytes) -> Result<AdminReply, PeerError> {
    stream.sender.queue.push(writer, vec![body])?;
    stream.sender.flush().await?;
    let frame = stream.reader.next().await?;
    match frame.kind {
        Kind::Answer => Ok(AdminReply::decode(frame)?),
        Kind::Failed => Err(PeerError::Unavailable(failure(&frame).to_string())),
        kind => Err(PeerError::Protocol(format!("{kind:?} in answer to an admin call"))),
    }
}

/// Serves the calls of another node, one after the other. A call that has come goes on to its end, whoever still waits.
pub(super) async fn serve(hub: &Arc<Hub>, mut stream: PeerStream, envelope: &Envelope) -> Result<(), PeerError> {
    loop {
        let frame = stream.reader.next().await?;
        if frame.kind != Kind::Admin || frame.envelope.cluster_id != envelope.cluster_id {
            return Err(PeerError::Protocol(format!("{:?} on a connection for admin calls", frame.kind)));
        }
        let sequence = frame.sequence;
        let call = AdminCall::decode(frame)?;
        let handler = hub.admin_handler.read().clone();
        let Some(handler) = handler else {
            let mut writer = FrameWriter::new(Kind::Failed, sequence, envelope, 64);
            put_failure(writer.fields(), false, "this node does not answer admin calls yet");
            stream.send(writer).await?;
            continue;
        };
        let reply = handler.passed_on(call).await;
        let mut writer = FrameWriter::new(Kind::Answer, sequence, envelope, 64);
        reply.encode(writer.fields())?;
        stream.sender.queue.push(writer, vec![reply.body])?;
        stream.sender.flush().await?;
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame;
    use super::*;

    fn envelope() -> Envelope {
        Envelope { cluster_id: [7; 16], group: Bytes::new(), sender: 0, target: 0 }
    }

    fn sent(kind: Kind, fields: &BytesMut, tail: Bytes) -> Frame {
        let mut writer = FrameWriter::new(kind, 1, &envelope(), 64);
        writer.fields().extend_from_slice(fields);
        let mut out: Vec<Bytes> = Vec::new();
        writer.finish(vec![tail], &mut out).unwrap();
        frame::decode(Bytes::from(out.concat())).unwrap()
    }

    #[test]
    fn calls_and_replies_come_back_as_they_were_written() {
        let call = AdminCall {
            method: "POST".to_owned(),
            target: "/v1/groups/a/flush?mode=sync".to_owned(),
            authorization: "Bearer x".to_owned(),
            idempotency_key: "k".to_owned(),
            content_type: "application/json".to_owned(),
            body: Bytes::from_static(b"{}"),
        };
        let mut fields = BytesMut::new();
        call.encode(&mut fields).unwrap();
        assert_eq!(AdminCall::decode(sent(Kind::Admin, &fields, call.body.clone())).unwrap(), call);

        let reply =
            AdminReply { status: 503, content_type: "t".to_owned(), elsewhere: true, body: Bytes::from_static(b"no") };
        let mut fields = BytesMut::new();
        reply.encode(&mut fields).unwrap();
        assert_eq!(AdminReply::decode(sent(Kind::Answer, &fields, reply.body.clone())).unwrap(), reply);

        fields.put_u8(0);
        assert!(AdminReply::decode(sent(Kind::Answer, &fields, Bytes::new())).is_err(), "a byte too many");
    }

    #[test]
    fn a_text_that_the_other_side_would_refuse_is_not_sent() {
        let call = AdminCall { target: "x".repeat(TEXT_BYTES_MAX + 1), ..AdminCall::default() };
        assert!(call.encode(&mut BytesMut::new()).is_err());
    }
}
