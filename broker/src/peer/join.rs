//! How a node that is no member yet proves that it was meant, and is told its identity and whom it will meet.
//!
//! The token is sent only after the peer has shown the right cluster id. Whether it is the right one is the leader's to
//! say; any other member names the leader.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use raft_store::{LOST_STORE, Member};
use sha2::{Digest, Sha256};

use super::error::{FrameError, PeerError};
use super::frame::{Envelope, Frame, FrameWriter, Kind, put_name, put_text};
use super::handshake::{Class, GroupGreeting, GroupIdentity};
use super::rejoin::failure_text;
use super::{PeerAddress, PeerHub};

/// Members that an answer may list.
const MEMBERS_MAX: usize = 64;

/// What a node shows to be let into a group, once. 64 hexadecimal digits as text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct JoinToken([u8; 32]);

impl JoinToken {
    /// Another one each time.
    pub(crate) fn random() -> Self {
        Self(rand::random())
    }

    /// What the log knows of it.
    pub(crate) fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.0).into()
    }

    /// Reads what [`JoinToken::to_text`] writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 2 * bytes.len() || !text.is_ascii() {
            return None;
        }
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// For the operator, who takes it to the node.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinToken(..)")
    }
}

/// The fields of a `Join` and of its answer.
///
/// | Frame | Fields |
/// | --- | --- |
/// | `Join` | token (32 bytes), store uuid (16 bytes), peer address, client address (texts) |
/// | its answer | code (u8): 0 does not lead, with the leader's node (name, may be empty); 1 admitted, with node id, generation (u64, u64), number of members (u8), and for each node id, node, peer address, client address (u64, name, texts) |
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JoinRequest {
    pub(crate) token: JoinToken,
    pub(crate) store_uuid: [u8; 16],
    pub(crate) raft_addr: String,
    pub(crate) client_addr: String,
}

/// What became of a wish to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// Somebody else leads, on this node if that is known.
    NotLeader {
        /// The leader's node; empty if unknown.
        node: String,
    },
    /// It has an identity.
    Admitted {
        /// The identity.
        node_id: u64,
        /// The group's generation.
        generation: u64,
        /// The present members.
        members: Vec<(u64, Member)>,
    },
}

impl JoinRequest {
    pub(crate) fn encode(&self) -> BytesMut {
        let mut out = BytesMut::with_capacity(128);
        out.put_slice(&self.token.0);
        out.put_slice(&self.store_uuid);
        put_text(&mut out, &self.raft_addr);
        put_text(&mut out, &self.client_addr);
        out
    }

    pub(crate) fn decode(frame: &Frame) -> Result<Self, FrameError> {
        let mut fields = frame.fields();
        let request = Self {
            token: JoinToken(fields.array("token")?),
            store_uuid: fields.array("store uuid")?,
            raft_addr: fields.text("peer address")?,
            client_addr: fields.text("client address")?,
        };
        fields.finish("end of join")?;
        if request.store_uuid == LOST_STORE {
            return Err(FrameError::Field("store uuid"));
        }
        Ok(request)
    }
}

impl Joined {
    pub(crate) fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::NotLeader { node } => {
                out.put_u8(0);
                put_name(out, node);
            }
            Self::Admitted { node_id, generation, members } => {
                out.put_u8(1);
                out.put_u64(*node_id);
                out.put_u64(*generation);
                let members = members.get(..MEMBERS_MAX).unwrap_or(members);
                out.put_u8(u8::try_from(members.len()).expect("cut above"));
                for (id, member) in members {
                    out.put_u64(*id);
                    put_name(out, &member.node);
                    put_text(out, &member.raft_addr);
                    put_text(out, &member.client_addr);
                }
            }
        }
    }

    pub(crate) fn decode(frame: &Frame) -> Result<Self, FrameError> {
        let mut fields = frame.fields();
        let joined = match fields.u8("code")? {
            0 => Self::NotLeader { node: fields.name("leader's node")? },
            1 => {
                let (node_id, generation) = (fields.u64("node id")?, fields.u64("generation")?);
                let mut members = Vec::new();
                for _ in 0..fields.u8("number of members")? {
                    let id = fields.u64("member's node id")?;
                    let node = fields.name("member's node")?;
                    let raft_addr = fields.text("member's peer address")?;
                    members
                        .push((id, Member { node, raft_addr, client_addr: fields.text("member's client address")? }));
                }
                if node_id == 0 {
                    return Err(FrameError::Field("node id"));
                }
                Self::Admitted { node_id, generation, members }
            }
            _ => return Err(FrameError::Field("code")),
        };
        fields.finish("end of the answer to a join")?;
        Ok(joined)
    }
}

/// Lets nodes into a group.
pub(crate) trait JoinHandler: Send + Sync + 'static {
    /// Lets `node` in if it was meant. The error is told to the node.
    fn join(self: Arc<Self>, node: String, request: JoinRequest) -> BoxFuture<'static, Result<Joined, String>>;
}

impl PeerHub {
    /// Who lets nodes into `group`.
    pub(crate) fn set_join_handler(&self, group: &str, handler: Arc<dyn JoinHandler>) {
        if let Some(group) = self.0.group(group) {
            *group.join_handler.write() = Some(handler);
        }
    }

    /// Asks the replica of `group` on another node to be let in.
    pub(crate) async fn ask_to_join(
        &self,
        address: &PeerAddress,
        group: &str,
        request: &JoinRequest,
        timeout: Duration,
    ) -> Result<Joined, PeerError> {
        let envelope = Envelope { group: Bytes::copy_from_slice(group.as_bytes()), ..self.0.node_envelope() };
        let identity = GroupIdentity {
            group: group.to_owned(),
            node_id: 0,
            store_uuid: request.store_uuid,
            start_counter: 0,
            generation: 0,
        };
        let greeting = GroupGreeting { identity, last_log: None, vote: None };
        let greeting = self.0.greeting(Class::Join, &address.node, std::slice::from_ref(&greeting));
        let (mut stream, _) = self.0.dial(address, &envelope, &greeting).await?;
        let fields = request.encode();
        let mut frame = FrameWriter::new(Kind::Join, 1, &envelope, fields.len());
        frame.fields().extend_from_slice(&fields);
        let exchange = async {
            stream.send(frame).await?;
            stream.reader.next().await
        };
        let answer =
            tokio::time::timeout(timeout, exchange).await.map_err(|_| PeerError::Timeout("asking to be let in"))??;
        match answer.kind {
            Kind::Answer => Ok(Joined::decode(&answer)?),
            Kind::Failed => Err(PeerError::Refused(failure_text(&answer)?)),
            kind => Err(PeerError::Protocol(format!("{kind:?} instead of an answer"))),
        }
    }

    /// Shakes hands with a member of `group`, for nothing but to hear whether it still accepts this replica's identity.
    /// What it says otherwise is noted, see [`PeerHub::outcast`].
    pub(crate) async fn ask_whether_member(&self, group: &str, member: u64) {
        let Some(group) = self.0.group(group) else { return };
        if let Err(error) = self.0.dial_group(&group, member, Class::Rpc).await {
            tracing::debug!(member, %error, "asked whether this replica is still a member");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(kind: Kind, fields: &BytesMut) -> Frame {
        let envelope = Envelope { cluster_id: [1; 16], group: Bytes::from_static(b"g"), sender: 0, target: 0 };
        let mut writer = FrameWriter::new(kind, 1, &envelope, fields.len());
        writer.fields().extend_from_slice(fields);
        let mut out: Vec<Bytes> = Vec::new();
        writer.finish(Vec::new(), &mut out).unwrap();
        super::super::frame::decode(Bytes::from(out.concat())).unwrap()
    }

    #[test]
    fn a_token_is_text_and_back_and_is_never_logged() {
        let token = JoinToken::random();
        assert_eq!(JoinToken::parse(&token.to_text()), Some(token));
        assert!(!format!("{token:?}").contains(&token.to_text()[..8]));
        for wrong in ["", "12", &"g".repeat(64), &"1".repeat(63), &"\u{e4}".repeat(32)] {
            assert_eq!(JoinToken::parse(wrong), None, "{wrong}");
        }
        assert_ne!(JoinToken::random().hash(), token.hash());
    }

    #[test]
    fn requests_and_answers_come_back_as_they_were_sent() {
        let request = JoinRequest {
            token: JoinToken::random(),
            store_uuid: [3; 16],
            raft_addr: "h:1".to_owned(),
            client_addr: "127.0.0.1:2".to_owned(),
        };
        assert_eq!(JoinRequest::decode(&sent(Kind::Join, &request.encode())).unwrap(), request);
        let member = Member { node: "n1".to_owned(), raft_addr: "h:1".to_owned(), client_addr: "h:2".to_owned() };
        for joined in [
            Joined::NotLeader { node: "n2".to_owned() },
            Joined::Admitted { node_id: 9, generation: 1, members: vec![(1, member)] },
        ] {
            let mut out = BytesMut::new();
            joined.encode(&mut out);
            assert_eq!(Joined::decode(&sent(Kind::Answer, &out)).unwrap(), joined);
            let cut = out.split_to(out.len() - 1);
            assert!(Joined::decode(&sent(Kind::Answer, &cut)).is_err());
        }
    }
}
