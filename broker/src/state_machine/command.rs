//! What an entry of the log tells the state machine.
//!
//! A payload is either a *pack*, message records back to back, or a *command*, which may be followed by message
//! records of its own. The first byte tells them apart: a record starts with its size, an `i32` below 32 MiB, so
//! its first byte is 0 or 1.
//!
//! | Bytes | Field of a command payload |
//! | --- | --- |
//! | 0 | `0xC1` |
//! | 1 | version, 1 |
//! | 2-3 | zero, checked |
//! | 4-7 | length of the encoded command, big-endian |
//! | 8.. | the command, bincode 2 (standard configuration) |
//! | .. | message records back to back, may be none |
//!
//! Command and records are applied together or not at all: when the command is refused, so is each record. Commands
//! that move progress and append the message it stands for use [`Command::Append`] (delay levels),
//! [`Command::EndHalves`] (transactions), [`Command::BuryPopped`] (dead letters in POP mode) or
//! [`Command::FireTimers`] (timers).
//!
//! The variants and their fields are a disk format. Variants are appended, never reordered; a changed field is a new
//! variant or a new version.

use std::collections::BTreeMap;

use bincode::{Decode, Encode};
use bytes::{BufMut, Bytes, BytesMut};
use protocol::{GroupName, NameError, TopicName};

use super::group::GroupConfig;
use super::half::{HalfEnd, HalfPlace};
use super::members::MemberStep;
use super::pop::{PopStep, RequestMode};
use super::timer::Timer;
use super::topic::TopicConfig;

/// The setting that says how the group flushes: [`FLUSH_SYNC`] or [`FLUSH_ASYNC`].
pub const FLUSH_SETTING: &str = "storage.flush";
/// Acknowledged messages are on the disks of a majority.
pub const FLUSH_SYNC: &str = "sync";
/// Acknowledged messages are in the memory of a majority, and on disk soon after.
pub const FLUSH_ASYNC: &str = "async";

/// The setting that limits what routes allow: bits of a topic's permission.
pub const PERMISSION_SETTING: &str = "broker.brokerPermission";

/// First byte of a command payload.
pub const COMMAND_MAGIC: u8 = 0xC1;
/// The version this code writes.
pub const COMMAND_VERSION: u8 = 1;
/// Bytes in front of the encoded command.
pub const COMMAND_HEADER_BYTES: usize = 8;
/// The longest encoded command that is written or read.
pub const COMMAND_BYTES_MAX: usize = 8 * 1024 * 1024;

const CONFIG: bincode::config::Configuration<
    bincode::config::LittleEndian,
    bincode::config::Varint,
    bincode::config::Limit<COMMAND_BYTES_MAX>,
> = bincode::config::standard().with_limit::<COMMAND_BYTES_MAX>();

/// A change of replicated state.
///
/// Everything that depends on time carries the time of the leader that proposed it, in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Command {
    /// The first command of a group: names the cluster and the group and creates the topics that always exist.
    Bootstrap(Bootstrap),
    /// Creates or replaces topic configurations.
    PutTopics {
        /// Whole configurations; all are put or, if one is refused, none.
        topics: Vec<TopicConfig>,
        /// What happens to a topic that exists.
        mode: PutMode,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// Deletes a topic, its queue counters and every consumer offset stored for it.
    DeleteTopic {
        /// The topic.
        #[bincode(with_serde)]
        topic: TopicName,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// Creates or replaces subscription groups.
    PutGroups {
        /// Whole configurations.
        groups: Vec<GroupConfig>,
        /// What happens to a group that exists.
        mode: PutMode,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// Deletes a subscription group.
    DeleteGroup {
        /// The group.
        #[bincode(with_serde)]
        group: GroupName,
        /// Whether its stored offsets go with it.
        offsets: OffsetsOfDeleted,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// Stores consumer offsets, many groups and queues in one entry.
    CommitOffsets {
        /// The offsets. A later one for the same queue wins.
        commits: Vec<OffsetCommit>,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// Sets offsets of a group whatever it has committed.
    ResetOffsets {
        /// The group.
        #[bincode(with_serde)]
        group: GroupName,
        /// The topic.
        #[bincode(with_serde)]
        topic: TopicName,
        /// (queue id, offset).
        offsets: Vec<(u32, u64)>,
        /// Whether commits for these queues are ignored until [`Command::ReleaseResets`].
        hold: ResetHold,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// Ends the hold that a reset put on queues of a group.
    ReleaseResets {
        /// The group.
        #[bincode(with_serde)]
        group: GroupName,
        /// The topic.
        #[bincode(with_serde)]
        topic: TopicName,
        /// Queue ids.
        queues: Vec<u32>,
    },
    /// Forgets the stored offsets of a group: of one topic, or of all.
    ClearOffsets {
        /// The group.
        #[bincode(with_serde)]
        group: GroupName,
        /// The topic, or all topics.
        #[bincode(with_serde)]
        topic: Option<TopicName>,
    },
    /// Copies the stored offsets of a topic from one group to another.
    CloneOffsets {
        /// The group that has them.
        #[bincode(with_serde)]
        from: GroupName,
        /// The group that gets them.
        #[bincode(with_serde)]
        to: GroupName,
        /// The topic.
        #[bincode(with_serde)]
        topic: TopicName,
    },
    /// Leases queues to one client of a group.
    LockQueues {
        /// The group.
        #[bincode(with_serde)]
        group: GroupName,
        /// The client that wants them.
        client_id: String,
        /// The queues.
        queues: Vec<QueueKey>,
        /// When the leader proposed it: the lease runs from here.
        stamped_ms: i64,
        /// Length of the lease.
        lease_ms: i64,
    },
    /// Ends leases held by one client of a group.
    UnlockQueues {
        /// The group.
        #[bincode(with_serde)]
        group: GroupName,
        /// The client that gives them up.
        client_id: String,
        /// The queues.
        queues: Vec<QueueKey>,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// Settings of the group that every replica must agree on.
    PutSettings {
        /// Name to value; an empty value removes the name.
        settings: BTreeMap<String, String>,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// What a node says of itself when it joins under an identity.
    PutIdentity(IdentityRecord),
    /// Moves progress marks and appends the records that follow the command.
    ///
    /// Refused, with its records, unless every mark stands where the command says it does and every record has a queue
    /// to go to. So work that is proposed twice, by an old and a new leader, happens once, and no progress is made
    /// without its message.
    Append {
        /// The marks, compared first, then all set.
        moves: Vec<ProgressMove>,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// Gives a node the next identity, and retires those it had. Answered with the identity; asked again for the same
    /// store, with the same one.
    GiveIdentity(IdentityWanted),
    /// Ends half messages and appends the records that follow the command, one for each unless they are rolled back.
    ///
    /// Refused, with its records, unless all of them are pending and every record has a queue to go to.
    EndHalves {
        /// The half messages.
        halves: Vec<HalfPlace>,
        /// How they end.
        end: HalfEnd,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// Counts one more check of each half message that is pending still.
    CountChecks {
        /// The half messages whose producers were asked.
        halves: Vec<HalfPlace>,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// Moves half messages to the end of the log: the records that follow the command, one for each in their order.
    ///
    /// Refused, with its records, unless all of them are pending.
    CarryHalves {
        /// The half messages.
        halves: Vec<HalfPlace>,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// Takes a half message up again that was given up: the one record that follows the command.
    ///
    /// Refused, with its record, unless the copy stands among those given up.
    ResumeHalf {
        /// Place of the copy in the topic of those given up.
        given_up: u64,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// Hides the first messages of queues, which have outlived what their topics keep. Nothing that is hidden shows again.
    HideMessages {
        /// Each queue, and the first offset that stays.
        queues: Vec<(QueueKey, u64)>,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// Gives messages to consumers in POP mode, and takes their acknowledgements. Each step is done or refused alone.
    Pop {
        /// The steps, in their order.
        steps: Vec<PopStep>,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// Moves messages to the dead letters of a group: they are not under way any more, and their copies follow the
    /// command.
    ///
    /// Refused, with its records, unless the time of all of them is over and every record has a queue to go to.
    BuryPopped {
        /// The group and the queue.
        queue: GroupQueue,
        /// The messages, ascending.
        queue_offsets: Vec<u64>,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// Says how members of a group get the messages of a topic.
    PutRequestMode {
        /// The group.
        #[bincode(with_serde)]
        group: GroupName,
        /// The topic.
        #[bincode(with_serde)]
        topic: TopicName,
        /// How.
        mode: RequestMode,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// Ends timers and appends the records that follow the command: their messages. None follows one that is recalled,
    /// or that has nowhere to go.
    ///
    /// Refused, with its records, unless all of them are pending and every record has a queue to go to.
    FireTimers {
        /// The timers.
        timers: Vec<Timer>,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// Moves timers to the end of the log: the records that follow the command, one for each in their order.
    ///
    /// Refused, with its records, unless all of them are pending and each record is due when its timer is.
    CarryTimers {
        /// The timers.
        timers: Vec<Timer>,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
    /// A step of a change of the group's members.
    ChangeMembers {
        /// The step.
        step: MemberStep,
        /// When the leader proposed it.
        stamped_ms: i64,
    },
}

/// A node that cannot go on under the identity it had.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct IdentityWanted {
    /// The node's name.
    pub node_name: String,
    /// What its store is called from now on.
    pub store_uuid: [u8; 16],
    /// The identity it gives up.
    pub former: u64,
    /// What its store was called; [`raft_store::LOST_STORE`] if it is lost.
    pub former_uuid: [u8; 16],
    /// When the leader proposed it.
    pub stamped_ms: i64,
}

/// The names of a group and what exists from its start.
///
/// The topics are listed, not implied, so that a later version with other defaults applies an old log alike.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Bootstrap {
    /// The cluster's name.
    pub cluster_name: String,
    /// The broker group's name.
    pub broker_name: String,
    /// The topics that always exist.
    pub topics: Vec<TopicConfig>,
    /// The subscription groups that always exist.
    pub groups: Vec<GroupConfig>,
    /// When the leader proposed it.
    pub stamped_ms: i64,
}

/// What a put does when the name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum PutMode {
    /// The new configuration replaces the old one.
    Replace,
    /// The old configuration stays: used where the broker creates on demand.
    CreateOnly,
}

/// Whether a deleted group takes its offsets along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum OffsetsOfDeleted {
    /// They stay stored.
    Keep,
    /// They are deleted.
    Delete,
}

/// Whether a reset holds off later commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ResetHold {
    /// The next commit overwrites the reset.
    None,
    /// Commits are ignored, and pulls told the new offset, until the hold is released.
    UntilReleased,
}

/// One consumer offset.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OffsetCommit {
    /// The group.
    #[bincode(with_serde)]
    pub group: GroupName,
    /// The topic.
    #[bincode(with_serde)]
    pub topic: TopicName,
    /// The queue.
    pub queue_id: u32,
    /// Offset of the next message to consume.
    pub queue_offset: u64,
}

/// A queue of this broker group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct QueueKey {
    /// The topic.
    #[bincode(with_serde)]
    pub topic: TopicName,
    /// The queue.
    pub queue_id: u32,
}

/// A queue of this broker group as a consumer group reads it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct GroupQueue {
    /// The group.
    #[bincode(with_serde)]
    pub group: GroupName,
    /// The topic.
    #[bincode(with_serde)]
    pub topic: TopicName,
    /// The queue.
    pub queue_id: u32,
}

/// A node under a Raft identity.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct IdentityRecord {
    /// The identity.
    pub node_id: u64,
    /// The node's name.
    pub node_name: String,
    /// The store it was given to. An identity never moves to another store.
    pub store_uuid: [u8; 16],
    /// When the leader proposed it.
    pub stamped_ms: i64,
}

/// Moves a named mark from one value to another.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ProgressMove {
    /// The mark's name, for example `delay/3`.
    pub mark: String,
    /// Where it must stand. A mark never set stands at 0.
    pub from: u64,
    /// Where it stands afterwards.
    pub to: u64,
}

/// A payload taken apart.
#[derive(Debug)]
pub enum Parsed {
    /// Message records from the first byte on.
    Pack,
    /// A command, and where its records start.
    Command {
        /// The command.
        command: Command,
        /// Offset in the payload of the first record; the payload's length if there is none.
        records_at: usize,
    },
}

/// A payload that cannot be applied. Apply stops at it; it is never skipped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// Neither a pack nor a command.
    #[error("unknown payload kind {0:#04x}")]
    Kind(u8),
    /// Written by a newer version.
    #[error("unknown command version {found}, this version reads up to {COMMAND_VERSION}")]
    Version {
        /// The version found.
        found: u8,
    },
    /// The header contradicts the payload.
    #[error("bad command header: {0}")]
    Header(&'static str),
    /// The command does not decode.
    #[error("decoding a command: {0}")]
    Decode(#[from] bincode::error::DecodeError),
    /// The command does not fill its length.
    #[error("command of {length} bytes ends after {used}")]
    Trailing {
        /// The length in the header.
        length: usize,
        /// Bytes the command took.
        used: usize,
    },
}

impl Command {
    /// The payload of an entry that carries this command and no records.
    ///
    /// # Panics
    /// If the command is longer than [`COMMAND_BYTES_MAX`]: whoever builds a command bounds what goes into it.
    pub fn encode(&self) -> Bytes {
        self.encode_with(&[])
    }

    /// The payload of an entry that carries this command and `records`, encoded messages back to back.
    ///
    /// # Panics
    /// If the command is longer than [`COMMAND_BYTES_MAX`].
    pub fn encode_with(&self, records: &[u8]) -> Bytes {
        let command = bincode::encode_to_vec(self, CONFIG).expect("encoding a command into memory cannot fail");
        assert!(command.len() <= COMMAND_BYTES_MAX, "command of {} bytes is too long", command.len());
        let mut out = BytesMut::with_capacity(COMMAND_HEADER_BYTES + command.len() + records.len());
        out.put_u8(COMMAND_MAGIC);
        out.put_u8(COMMAND_VERSION);
        out.put_u16(0);
        out.put_u32(u32::try_from(command.len()).expect("bounded above"));
        out.put_slice(&command);
        out.put_slice(records);
        out.freeze()
    }

    /// When the leader proposed it, if it says so.
    pub(crate) fn stamped_ms(&self) -> Option<i64> {
        match self {
            Self::Bootstrap(Bootstrap { stamped_ms, .. })
            | Self::PutTopics { stamped_ms, .. }
            | Self::DeleteTopic { stamped_ms, .. }
            | Self::PutGroups { stamped_ms, .. }
            | Self::DeleteGroup { stamped_ms, .. }
            | Self::CommitOffsets { stamped_ms, .. }
            | Self::ResetOffsets { stamped_ms, .. }
            | Self::LockQueues { stamped_ms, .. }
            | Self::UnlockQueues { stamped_ms, .. }
            | Self::PutSettings { stamped_ms, .. }
            | Self::PutIdentity(IdentityRecord { stamped_ms, .. })
            | Self::GiveIdentity(IdentityWanted { stamped_ms, .. })
            | Self::Append { stamped_ms, .. }
            | Self::EndHalves { stamped_ms, .. }
            | Self::CountChecks { stamped_ms, .. }
            | Self::CarryHalves { stamped_ms, .. }
            | Self::ResumeHalf { stamped_ms, .. }
            | Self::HideMessages { stamped_ms, .. }
            | Self::Pop { stamped_ms, .. }
            | Self::BuryPopped { stamped_ms, .. }
            | Self::PutRequestMode { stamped_ms, .. }
            | Self::FireTimers { stamped_ms, .. }
            | Self::CarryTimers { stamped_ms, .. }
            | Self::ChangeMembers { stamped_ms, .. } => Some(*stamped_ms),
            Self::ReleaseResets { .. } | Self::ClearOffsets { .. } | Self::CloneOffsets { .. } => None,
        }
    }

    /// The command that starts a group: `cluster_name` and `broker_name` and the topics every broker has.
    ///
    /// # Errors
    /// A cluster or broker name that cannot be a topic name.
    pub fn bootstrap(cluster_name: &str, broker_name: &str, stamped_ms: i64) -> Result<Self, NameError> {
        Ok(Self::Bootstrap(Bootstrap {
            cluster_name: cluster_name.to_owned(),
            broker_name: broker_name.to_owned(),
            topics: super::topic::system_topics(cluster_name, broker_name)?,
            groups: Vec::new(),
            stamped_ms,
        }))
    }
}

/// Takes a payload apart.
///
/// # Errors
/// Anything this version does not know in full.
pub fn parse_payload(payload: &[u8]) -> Result<Parsed, PayloadError> {
    match payload.first() {
        Some(0 | 1) => return Ok(Parsed::Pack),
        Some(&COMMAND_MAGIC) => {}
        Some(&other) => return Err(PayloadError::Kind(other)),
        None => return Err(PayloadError::Header("empty payload")),
    }
    let (header, rest) =
        payload.split_at_checked(COMMAND_HEADER_BYTES).ok_or(PayloadError::Header("shorter than a header"))?;
    if header[1] != COMMAND_VERSION {
        return Err(PayloadError::Version { found: header[1] });
    }
    if header[2] != 0 || header[3] != 0 {
        return Err(PayloadError::Header("reserved bytes are not zero"));
    }
    let length = u32::from_be_bytes([header[4], header[5], header[6], header[7]]) as usize;
    let body = rest.get(..length).ok_or(PayloadError::Header("length exceeds the payload"))?;
    let (command, used) = bincode::decode_from_slice(body, CONFIG)?;
    if used != length {
        return Err(PayloadError::Trailing { length, used });
    }
    Ok(Parsed::Command { command, records_at: COMMAND_HEADER_BYTES + length })
}

/// Whether a payload says that the group flushes synchronously from its entry on. Obeyed as soon as it is in the log.
pub(crate) fn starts_sync(payload: &[u8]) -> bool {
    payload.first() == Some(&COMMAND_MAGIC)
        && matches!(parse_payload(payload), Ok(Parsed::Command { command: Command::PutSettings { settings, .. }, .. })
            if settings.get(FLUSH_SETTING).is_some_and(|mode| mode == FLUSH_SYNC))
}

/// Where the message records of a payload start, without decoding its command.
pub(crate) fn records_start(payload: &[u8]) -> Option<usize> {
    match payload.first()? {
        0 | 1 => Some(0),
        &COMMAND_MAGIC => {
            let length = payload.get(4..8)?;
            let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize;
            Some(COMMAND_HEADER_BYTES + length).filter(|start| *start <= payload.len())
        }
        _ => None,
    }
}

/// The time stamped into a payload: that of its last record, else that of its command.
pub(crate) fn stamp_of(payload: &[u8]) -> Option<i64> {
    let records = payload.get(records_start(payload)?..)?;
    let last = protocol::message::iter_records(records).map_while(Result::ok).last();
    match last {
        Some(record) => Some(record.store_timestamp()),
        None => match parse_payload(payload).ok()? {
            Parsed::Command { command, .. } => command.stamped_ms(),
            Parsed::Pack => None,
        },
    }
}
