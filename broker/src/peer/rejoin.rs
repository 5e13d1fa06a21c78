//! Who is no member any more, and how a node asks to come back under another identity.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use raft_store::LOST_STORE;

use super::error::{FrameError, PeerError};
use super::frame::{Envelope, Frame, FrameWriter, Kind, put_name, put_text};
use super::handshake::{Class, GroupGreeting, GroupIdentity, Outcast};
use super::{Group, PeerAddress, PeerHub, RemovalOf, SuccessorOf};

impl PeerHub {
    /// The members of `group` on other nodes, as they are known now.
    pub(crate) fn others(&self, group: &str) -> Vec<u64> {
        let Some(group) = self.0.group(group) else { return Vec::new() };
        let members = group.members.read();
        members.iter().filter(|(_, address)| address.node != self.node()).map(|(id, _)| *id).collect()
    }

    /// Who tells which identities of `group` were replaced.
    pub(crate) fn set_successors(&self, group: &str, successor_of: SuccessorOf) {
        if let Some(group) = self.0.group(group) {
            *group.successor_of.write() = Some(successor_of);
        }
    }

    /// Who tells which identities of `group` were removed.
    pub(crate) fn set_removals(&self, group: &str, removal_of: RemovalOf) {
        if let Some(group) = self.0.group(group) {
            *group.removal_of.write() = Some(removal_of);
        }
    }

    /// Resolves once a peer does not accept the identity of this node's replica any more, and says why.
    pub(crate) async fn outcast(&self, group: &str) -> String {
        let Some(group) = self.0.group(group) else { return std::future::pending().await };
        let mut outcast = group.outcast.subscribe();
        let reason = outcast.wait_for(Option::is_some).await.map(|reason| reason.clone().unwrap_or_default());
        match reason {
            Ok(reason) => reason,
            Err(_) => std::future::pending().await,
        }
    }

    /// Asks the replica of a group on another node for the next step of this node's return. `former` is the retired
    /// identity, with the present start counter.
    pub(crate) async fn ask_to_rejoin(
        &self,
        address: &PeerAddress,
        former: &GroupIdentity,
        fields: &[u8],
        timeout: Duration,
    ) -> Result<Frame, PeerError> {
        let name = Bytes::copy_from_slice(former.group.as_bytes());
        let envelope = Envelope { group: name, ..self.0.node_envelope() };
        let greeting = GroupGreeting { identity: former.clone(), last_log: None, vote: None };
        let greeting = self.0.greeting(Class::Rejoin, &address.node, std::slice::from_ref(&greeting));
        let (mut stream, _) = self.0.dial(address, &envelope, &greeting).await?;
        let mut request = FrameWriter::new(Kind::Replace, 1, &envelope, fields.len());
        request.fields().extend_from_slice(fields);
        let exchange = async {
            stream.send(request).await?;
            stream.reader.next().await
        };
        let frame = tokio::time::timeout(timeout, exchange)
            .await
            .map_err(|_| PeerError::Timeout("asking for another identity"))??;
        match frame.kind {
            Kind::Answer => Ok(frame),
            Kind::Failed => Err(PeerError::Refused(failure_text(&frame)?)),
            kind => Err(PeerError::Protocol(format!("{kind:?} instead of an answer"))),
        }
    }
}

pub(super) fn failure_text(frame: &Frame) -> Result<String, PeerError> {
    let mut fields = frame.fields();
    fields.bool("whether the outcome is unknown")?;
    Ok(fields.text("reason")?)
}

impl Group {
    /// The identity that replaced `node_id`, if it was retired.
    pub(super) fn successor(&self, node_id: u64) -> Option<u64> {
        let successor_of = self.successor_of.read().clone()?;
        successor_of(node_id)
    }

    /// Why `node_id` is no member any more, if it was removed.
    pub(super) fn removal(&self, node_id: u64) -> Option<String> {
        let removal_of = self.removal_of.read().clone()?;
        let removed = removal_of(node_id)?;
        let group = &self.identity.group;
        let what = match &removed.replaced_by {
            Some(by) => format!("was replaced by node {by}"),
            None => "was removed".to_owned(),
        };
        Some(format!(
            "{}: {}, member {node_id} of group {group}, {what} by operation {group}-{}",
            Outcast::Removed.word(),
            removed.node,
            removed.change
        ))
    }

    /// Whether a node of this name is, or was, known to hold a replica.
    pub(super) fn hosts(&self, node: &str) -> bool {
        self.nodes.read().contains(node)
    }

    /// Members of before the group went on without its majority are out.
    pub(super) fn check_generation(&self, theirs: &GroupIdentity) -> Result<(), String> {
        self.note_generation(theirs);
        if theirs.generation < self.identity.generation {
            return Err(format!(
                "{}: group {} has gone on without node {}, in generation {} after {}",
                Outcast::Superseded.word(),
                theirs.group,
                theirs.node_id,
                self.identity.generation,
                theirs.generation
            ));
        }
        Ok(())
    }

    /// If the peer is of a later generation, it is this replica that is out.
    pub(super) fn note_generation(&self, theirs: &GroupIdentity) {
        if theirs.generation > self.identity.generation {
            self.cast_out(format!("generation {} has begun, this is {}", theirs.generation, self.identity.generation));
        }
    }

    /// Takes note if a peer has refused this replica's identity for good.
    pub(super) fn note_refusal(&self, error: &PeerError) {
        if let PeerError::Refused(reason) = error
            && Outcast::of(reason).is_some()
        {
            self.cast_out(reason.clone());
        }
    }

    fn cast_out(&self, reason: String) {
        self.outcast.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert(reason);
            first
        });
    }

    /// Checks that whoever comes to replace an identity is the node that had it, with the store that had it unless that is
    /// lost. Whether that identity still speaks is the leader's to know.
    pub(super) fn check_rejoin(&self, node: &str, former: &GroupIdentity) -> Result<(), String> {
        if !self.hosts(node) {
            return Err(format!("node {node} holds no replica of group {}", former.group));
        }
        if let Some(member) = self.address(former.node_id)
            && member.node != node
        {
            return Err(format!("node {} of group {} is {}, not {node}", former.node_id, former.group, member.node));
        }
        match self.seen.lock().get(&former.node_id) {
            Some(seen) if former.store_uuid != LOST_STORE && seen.store_uuid != former.store_uuid => Err(format!(
                "node {} of group {} has another store than the one that asks to replace it",
                former.node_id, former.group
            )),
            _ => Ok(()),
        }
    }
}

/// The fields of a `Replace` and of its answer.
///
/// | Frame | Fields |
/// | --- | --- |
/// | `Replace` | former node id (u64), its store uuid (16 bytes), the present store uuid (16 bytes), the present node id or 0 (u64), peer address, client address (texts) |
/// | its answer | code (u8): 0 does not lead, with the leader's node (name, may be empty); 1 learner; 2 voter, each with the new node id and the generation (u64, u64) |
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplaceRequest {
    /// The identity that was retired.
    pub(crate) former: (u64, [u8; 16]),
    /// What the store is called now.
    pub(crate) store_uuid: [u8; 16],
    /// The identity that it speaks under already.
    pub(crate) present: Option<u64>,
    pub(crate) raft_addr: String,
    pub(crate) client_addr: String,
}

/// How far a return is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Replaced {
    /// Somebody else leads, on this node if that is known.
    NotLeader {
        /// The leader's node; empty if unknown.
        node: String,
    },
    /// The identity is given out and receives the log.
    Learner {
        /// The identity.
        node_id: u64,
        /// The group's generation.
        generation: u64,
    },
    /// The identity votes, and the former ones of this node are no members any more.
    Voter {
        /// The identity.
        node_id: u64,
        /// The group's generation.
        generation: u64,
    },
}

impl ReplaceRequest {
    pub(crate) fn encode(&self) -> BytesMut {
        let mut out = BytesMut::with_capacity(128);
        out.put_u64(self.former.0);
        out.put_slice(&self.former.1);
        out.put_slice(&self.store_uuid);
        out.put_u64(self.present.unwrap_or(0));
        put_text(&mut out, &self.raft_addr);
        put_text(&mut out, &self.client_addr);
        out
    }

    pub(crate) fn decode(frame: &Frame) -> Result<Self, FrameError> {
        let mut fields = frame.fields();
        let request = Self {
            former: (fields.u64("former node id")?, fields.array("former store uuid")?),
            store_uuid: fields.array("store uuid")?,
            present: Some(fields.u64("present node id")?).filter(|id| *id != 0),
            raft_addr: fields.text("peer address")?,
            client_addr: fields.text("client address")?,
        };
        fields.finish("end of replace")?;
        Ok(request)
    }
}

impl Replaced {
    pub(crate) fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::NotLeader { node } => {
                out.put_u8(0);
                put_name(out, node);
            }
            Self::Learner { node_id, generation } | Self::Voter { node_id, generation } => {
                out.put_u8(if matches!(self, Self::Learner { .. }) { 1 } else { 2 });
                out.put_u64(*node_id);
                out.put_u64(*generation);
            }
        }
    }

    pub(crate) fn decode(frame: &Frame) -> Result<Self, FrameError> {
        let mut fields = frame.fields();
        let code = fields.u8("code")?;
        let replaced = match code {
            0 => Self::NotLeader { node: fields.name("leader's node")? },
            1 | 2 => {
                let (node_id, generation) = (fields.u64("node id")?, fields.u64("generation")?);
                if code == 1 { Self::Learner { node_id, generation } } else { Self::Voter { node_id, generation } }
            }
            _ => return Err(FrameError::Field("code")),
        };
        fields.finish("end of the answer to a replace")?;
        Ok(replaced)
    }
}
