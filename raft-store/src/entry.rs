//! What a log holds: entries, their bodies, and the members named in a membership entry.
//!
//! A body is stored as a kind and some bytes. For a normal entry these are the application's, kept
//! as they came. A membership has one canonical byte form, so that segments stay equal on all
//! replicas:
//!
//! | Part | Bytes |
//! | --- | --- |
//! | version, 1 | 1 |
//! | number of configs | 2 |
//! | each config: number of voters, then their ids in ascending order | 2, 8 each |
//! | number of nodes | 2 |
//! | each node in ascending order: id, then three strings, each as length and UTF-8 | 8, (2 + n) x 3 |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use openraft::entry::{RaftEntry, RaftPayload};
use openraft::vote::leader_id_std::CommittedLeaderId;

use crate::error::{Error, Result};
use crate::ids::{LogId, LogIndex, LogPosition, RaftLogId, Term};

/// The application's bytes in a normal entry.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Payload(pub Bytes);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A member of a broker group, as the log knows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Member {
    /// The node's name.
    pub node: String,
    /// Where its peers reach it.
    pub raft_addr: String,
    /// Where the clients of this group reach it.
    pub client_addr: String,
}

/// The members of a broker group: voters, perhaps in two configs at once, and learners.
pub type Membership = openraft::Membership<u64, Member>;

/// What an entry carries.
#[derive(Clone, PartialEq)]
pub enum Body {
    /// Nothing: the first entry of a leader.
    Blank,
    /// The application's bytes.
    Normal(Payload),
    /// A change of members.
    Membership(Membership),
}

impl Body {
    /// The stored form: a kind and its bytes.
    pub fn encode(&self) -> (BodyKind, Bytes) {
        match self {
            Self::Blank => (BodyKind::Blank, Bytes::new()),
            Self::Normal(payload) => (BodyKind::Normal, payload.0.clone()),
            Self::Membership(membership) => (BodyKind::Membership, encode_membership(membership)),
        }
    }

    /// Reads the stored form. The bytes of a normal body are kept, not copied.
    ///
    /// # Errors
    /// [`Error::Body`] if the bytes are not what [`Body::encode`] writes for this kind.
    pub fn decode(kind: BodyKind, bytes: Bytes) -> Result<Self> {
        match kind {
            BodyKind::Normal => Ok(Self::Normal(Payload(bytes))),
            BodyKind::Blank if bytes.is_empty() => Ok(Self::Blank),
            BodyKind::Blank => Err(Error::Body { what: "a blank entry has no bytes" }),
            BodyKind::Membership => decode_membership(bytes).map(Self::Membership),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blank => f.write_str("blank"),
            Self::Normal(payload) => write!(f, "normal, {payload}"),
            Self::Membership(membership) => write!(f, "membership, {membership}"),
        }
    }
}

impl fmt::Display for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl RaftPayload for Body {
    type D = Payload;
    type NodeId = u64;
    type Node = Member;

    fn blank() -> Self {
        Self::Blank
    }

    fn with_normal(self, data: Payload) -> Self {
        Self::Normal(data)
    }

    fn with_membership(self, membership: Membership) -> Self {
        Self::Membership(membership)
    }

    fn get_membership(&self) -> Option<Membership> {
        match self {
            Self::Membership(membership) => Some(membership.clone()),
            Self::Blank | Self::Normal(_) => None,
        }
    }
}

/// The kinds of body, as written into a record header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyKind {
    /// The application's bytes.
    Normal,
    /// No bytes.
    Blank,
    /// A canonical membership.
    Membership,
}

/// One entry of the log.
#[derive(Clone, PartialEq)]
pub struct LogEntry {
    leader: CommittedLeaderId<u64>,
    index: u64,
    /// What it carries.
    pub body: Body,
    /// Where its record starts. The payload follows [`RECORD_HEADER_BYTES`] later. `None` until the
    /// log has taken it.
    pub position: Option<LogPosition>,
}

/// The size of a record header: a payload starts this far behind its record's position.
pub const RECORD_HEADER_BYTES: u64 = 64;

impl LogEntry {
    /// An entry that no log has taken yet.
    pub fn new(id: LogId, body: Body) -> Self {
        Self { leader: CommittedLeaderId { term: id.term.get() }, index: id.index.get(), body, position: None }
    }

    /// Its identity.
    pub fn id(&self) -> LogId {
        LogId::new(self.log_term(), self.log_index())
    }

    /// Its number.
    pub fn log_index(&self) -> LogIndex {
        LogIndex::new(self.index)
    }

    /// The term of the leader that proposed it.
    pub fn log_term(&self) -> Term {
        Term::new(self.leader.term)
    }

    /// Where the payload starts, once the log has taken the entry.
    pub fn payload_position(&self) -> Option<LogPosition> {
        self.position.map(|position| position.plus(RECORD_HEADER_BYTES))
    }
}

impl fmt::Debug for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id(), self.body)
    }
}

impl fmt::Display for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl RaftEntry for LogEntry {
    type CommittedLeaderId = CommittedLeaderId<u64>;
    type Payload = Body;

    fn new(log_id: RaftLogId, body: Body) -> Self {
        Self { leader: log_id.leader_id, index: log_id.index, body, position: None }
    }

    fn log_id_parts(&self) -> (&CommittedLeaderId<u64>, u64) {
        (&self.leader, self.index)
    }

    fn set_log_id(&mut self, new: RaftLogId) {
        self.leader = new.leader_id;
        self.index = new.index;
        self.position = None;
    }

    fn get_membership(&self) -> Option<Membership> {
        self.body.get_membership()
    }
}

const MEMBERSHIP_VERSION: u8 = 1;

fn encode_membership(membership: &Membership) -> Bytes {
    let mut out = BytesMut::with_capacity(256);
    out.put_u8(MEMBERSHIP_VERSION);
    put_count(&mut out, membership.get_joint_config().len());
    for config in membership.get_joint_config() {
        put_count(&mut out, config.len());
        config.iter().for_each(|id| out.put_u64(*id));
    }
    put_count(&mut out, membership.nodes().count());
    for (id, member) in membership.nodes() {
        out.put_u64(*id);
        for text in [&member.node, &member.raft_addr, &member.client_addr] {
            put_count(&mut out, text.len());
            out.put_slice(text.as_bytes());
        }
    }
    out.freeze()
}

fn put_count(out: &mut BytesMut, count: usize) {
    out.put_u16(u16::try_from(count).expect("a group has few members, and their names are short"));
}

fn decode_membership(mut bytes: Bytes) -> Result<Membership> {
    if take_u8(&mut bytes)? != MEMBERSHIP_VERSION {
        return Err(Error::Body { what: "the membership version is unknown" });
    }
    let configs = take_u16(&mut bytes)?;
    let mut joint = Vec::new();
    for _ in 0..configs {
        let voters = take_u16(&mut bytes)?;
        let mut config = BTreeSet::new();
        for _ in 0..voters {
            config.insert(take_u64(&mut bytes)?);
        }
        joint.push(config);
    }
    let members = take_u16(&mut bytes)?;
    let mut nodes = BTreeMap::new();
    for _ in 0..members {
        let id = take_u64(&mut bytes)?;
        let node = take_text(&mut bytes)?;
        let raft_addr = take_text(&mut bytes)?;
        let client_addr = take_text(&mut bytes)?;
        nodes.insert(id, Member { node, raft_addr, client_addr });
    }
    if bytes.has_remaining() {
        return Err(Error::Body { what: "bytes follow the membership" });
    }
    if joint.is_empty() && nodes.is_empty() {
        return Ok(Membership::default());
    }
    Membership::new(joint, nodes).map_err(|_| Error::Body { what: "the membership contradicts itself" })
}

const SHORT: Error = Error::Body { what: "the membership is cut short" };

fn take_u8(bytes: &mut Bytes) -> Result<u8> {
    bytes.try_get_u8().map_err(|_| SHORT)
}

fn take_u16(bytes: &mut Bytes) -> Result<u16> {
    bytes.try_get_u16().map_err(|_| SHORT)
}

fn take_u64(bytes: &mut Bytes) -> Result<u64> {
    bytes.try_get_u64().map_err(|_| SHORT)
}

fn take_text(bytes: &mut Bytes) -> Result<String> {
    let len = usize::from(take_u16(bytes)?);
    if bytes.remaining() < len {
        return Err(SHORT);
    }
    let text = bytes.split_to(len);
    String::from_utf8(text.to_vec()).map_err(|_| Error::Body { what: "a member's text is not UTF-8" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_membership_survives_its_byte_form() {
        let members: BTreeMap<u64, Member> = [1u64, 2, 3, 9]
            .into_iter()
            .map(|id| {
                let member = Member {
                    node: format!("n{id}"),
                    raft_addr: format!("127.0.0.1:1100{id}"),
                    client_addr: format!("127.0.0.1:1091{id}"),
                };
                (id, member)
            })
            .collect();
        let joint = vec![BTreeSet::from([1, 2, 3]), BTreeSet::from([2, 3])];
        let before = Body::Membership(Membership::new(joint, members).unwrap());
        let (kind, bytes) = before.encode();
        assert_eq!(before, Body::decode(kind, bytes.clone()).unwrap());
        for cut in 0..bytes.len() {
            assert!(Body::decode(kind, bytes.slice(..cut)).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn debug_output_never_prints_a_payload() {
        let id = LogId::new(Term::new(3), LogIndex::new(7));
        let entry = LogEntry::new(id, Body::Normal(Payload(Bytes::from(vec![b'x'; 1 << 20]))));
        assert_eq!("3-7: normal, 1048576 bytes", format!("{entry:?}"));
    }
}
