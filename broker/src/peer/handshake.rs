//! The first frames of every peer connection: each side says who it is before anything else is read.
//!
//! Fields of `Hello` (from the side that dialled) and `Welcome` (from the side that accepted):
//!
//! | Field | Form |
//! | --- | --- |
//! | class of the connection | u8, see [`Class`] |
//! | speaker's node name | name |
//! | the node the speaker believes to talk to | name |
//! | incarnation of the speaker's process | u64 |
//! | number of groups | u8 |
//! | per group: name, node id, store uuid, start counter | name, u64, 16 bytes, u64 |
//! | per group: last log id | bool, then term and index u64 |
//! | per group: vote | bool, then term and node id u64, committed bool |
//! | per group, all or none: generation | u64, none if all are 0 |
//!
//! On a connection of class `Rejoin` the group speaks through its retired identity: node id and store uuid are those it
//! had, the start counter is the present one.
//!
//! `Refused` holds a text, see [`Outcast`] for those that begin with a fixed word. A name is a length byte and UTF-8. The version, the cluster id, the group and both node ids
//! are in the envelope of each frame.

use bytes::{BufMut, BytesMut};

use super::error::FrameError;
use super::frame::{Fields, Frame, Kind, put_name};

/// What a connection is for. Each class has its own connection, so that a long transfer never delays a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// Node to node, idle: its end is how a dead process is noticed.
    Control = 1,
    /// The append stream of a group.
    Append = 2,
    /// Heartbeats, votes, leader transfer and death notices of a group.
    Rpc = 3,
    /// Client requests for the leader of a group, and copies of the client table.
    Forward = 4,
    /// Snapshots of a group.
    Snapshot = 5,
    /// Stretches of the log of a group, for a replica that is damaged.
    Repair = 6,
    /// A node whose identity in a group was retired, to ask for another.
    Rejoin = 8,
    /// Client requests that a node passes on which is starting: it speaks for no identity.
    Relay = 9,
    /// A node that is no member yet, to be let in.
    Join = 10,
    /// Calls of the HTTP side, node to node.
    Admin = 12,
}

impl Class {
    /// Whether a frame belongs on a connection of this class that serves calls. What decides about the log is taken only
    /// from a peer that has introduced itself by a member's identity.
    pub(crate) fn serves(self, kind: Kind) -> bool {
        match kind {
            Kind::Ping => true,
            Kind::Forward => matches!(self, Self::Forward | Self::Relay),
            Kind::ForwardOneway | Kind::CopyClientTable => self == Self::Forward,
            Kind::FetchRange | Kind::FetchCheckpoint | Kind::FetchDigests => self == Self::Repair,
            Kind::Snapshot => self == Self::Snapshot,
            Kind::Heartbeat
            | Kind::Vote
            | Kind::PreVote
            | Kind::TransferLeader
            | Kind::DeathNotice
            | Kind::WouldLead => self == Self::Rpc,
            // They have connections of another kind, or are answers.
            Kind::Hello
            | Kind::Welcome
            | Kind::Refused
            | Kind::Append
            | Kind::Appended
            | Kind::Replace
            | Kind::Join
            | Kind::Admin
            | Kind::Answer
            | Kind::Failed => false,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Control,
            2 => Self::Append,
            3 => Self::Rpc,
            4 => Self::Forward,
            5 => Self::Snapshot,
            6 => Self::Repair,
            8 => Self::Rejoin,
            9 => Self::Relay,
            10 => Self::Join,
            12 => Self::Admin,
            _ => return None,
        })
    }
}

/// Term and index of a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogMark {
    /// Term the entry was proposed in.
    pub term: u64,
    /// Its index.
    pub index: u64,
}

/// A vote, as Raft saves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VoteMark {
    /// Term voted in.
    pub term: u64,
    /// Who is voted for.
    pub node_id: u64,
    /// Whether a majority granted it: that node leads.
    pub committed: bool,
}

/// One replica's identity: a node that hosts three groups has three.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupIdentity {
    /// The group's name.
    pub group: String,
    /// This replica's Raft node id.
    pub node_id: u64,
    /// Names the store directory; an empty disk under a known id has another one.
    pub store_uuid: [u8; 16],
    /// How often the replica was started.
    pub start_counter: u64,
    /// How often the group has gone on without its majority. Members of an older one are out.
    pub generation: u64,
}

/// Why a replica's own identity is not accepted any more. Whoever is told so gives it up, and unless its node was removed,
/// returns under another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcast {
    /// The peer has seen a later start of this identity: the disk was rolled back.
    RolledBack,
    /// The group has gone on without its majority, under members chosen then.
    Superseded,
    /// The group has given the node another identity.
    Retired,
    /// The node is no member any more. It does not come back by itself.
    Removed,
}

impl Outcast {
    /// The word that a refusal begins with.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::RolledBack => "rolled_back",
            Self::Superseded => "superseded",
            Self::Retired => "retired",
            Self::Removed => "removed",
        }
    }

    /// Whether a refusal says so about whoever was refused.
    pub(crate) fn of(reason: &str) -> Option<Self> {
        let word = reason.split_once(": ")?.0;
        [Self::RolledBack, Self::Superseded, Self::Retired, Self::Removed]
            .into_iter()
            .find(|outcast| outcast.word() == word)
    }
}

/// What a replica tells about itself when a connection starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupGreeting {
    pub(crate) identity: GroupIdentity,
    pub(crate) last_log: Option<LogMark>,
    pub(crate) vote: Option<VoteMark>,
}

/// `Hello` and `Welcome`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) class: Class,
    pub(crate) node: String,
    pub(crate) target_node: String,
    /// Differs between any two processes of a node.
    pub(crate) incarnation: u64,
    pub(crate) groups: Vec<GroupGreeting>,
}

impl Greeting {
    pub(crate) fn encode(&self, out: &mut BytesMut) {
        out.put_u8(self.class as u8);
        put_name(out, &self.node);
        put_name(out, &self.target_node);
        out.put_u64(self.incarnation);
        let groups = self.groups.get(..usize::from(u8::MAX)).unwrap_or(&self.groups);
        out.put_u8(groups.len() as u8);
        for group in groups {
            put_name(out, &group.identity.group);
            out.put_u64(group.identity.node_id);
            out.put_slice(&group.identity.store_uuid);
            out.put_u64(group.identity.start_counter);
            put_log_mark(out, group.last_log);
            out.put_u8(u8::from(group.vote.is_some()));
            if let Some(vote) = group.vote {
                put_vote_mark(out, vote);
            }
        }
        if groups.iter().any(|group| group.identity.generation > 0) {
            groups.iter().for_each(|group| out.put_u64(group.identity.generation));
        }
    }

    pub(crate) fn decode(frame: &Frame) -> Result<Self, FrameError> {
        let mut fields = frame.fields();
        let class = Class::from_byte(fields.u8("class")?).ok_or(FrameError::Field("class"))?;
        let node = fields.name("node name")?;
        let target_node = fields.name("target node name")?;
        let incarnation = fields.u64("incarnation")?;
        let count = usize::from(fields.u8("group count")?);
        let mut groups: Vec<GroupGreeting> = Vec::new();
        for _ in 0..count {
            let identity = GroupIdentity {
                group: fields.name("group name")?,
                node_id: fields.u64("node id")?,
                store_uuid: fields.array("store uuid")?,
                start_counter: fields.u64("start counter")?,
                generation: 0,
            };
            let last_log = log_mark(&mut fields)?;
            let vote = if fields.bool("vote")? { Some(vote_mark(&mut fields)?) } else { None };
            groups.push(GroupGreeting { identity, last_log, vote });
        }
        if fields.remaining() > 0 {
            for group in &mut groups {
                group.identity.generation = fields.u64("generation")?;
            }
        }
        fields.finish("end of greeting")?;
        Ok(Self { class, node, target_node, incarnation, groups })
    }

    /// What the speaker says about `group`.
    pub(crate) fn group(&self, group: &str) -> Option<&GroupGreeting> {
        self.groups.iter().find(|greeting| greeting.identity.group == group)
    }
}

pub(crate) fn put_log_mark(out: &mut BytesMut, mark: Option<LogMark>) {
    out.put_u8(u8::from(mark.is_some()));
    if let Some(mark) = mark {
        out.put_u64(mark.term);
        out.put_u64(mark.index);
    }
}

pub(crate) fn log_mark(fields: &mut Fields) -> Result<Option<LogMark>, FrameError> {
    if !fields.bool("log id")? {
        return Ok(None);
    }
    Ok(Some(LogMark { term: fields.u64("log term")?, index: fields.u64("log index")? }))
}

pub(crate) fn put_vote_mark(out: &mut BytesMut, vote: VoteMark) {
    out.put_u64(vote.term);
    out.put_u64(vote.node_id);
    out.put_u8(u8::from(vote.committed));
}

pub(crate) fn vote_mark(fields: &mut Fields) -> Result<VoteMark, FrameError> {
    Ok(VoteMark {
        term: fields.u64("vote term")?,
        node_id: fields.u64("vote node id")?,
        committed: fields.bool("vote committed")?,
    })
}
