//! What is asked of the cluster, and what it answers.

use serde::{Deserialize, Serialize};

use super::value::{BodyHash, Unique};

/// A queue as `topic/broker name/queue id`.
pub type QueueName = Box<str>;

/// One request on the wire. A client never retries by itself: each attempt is a call of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "f", rename_all = "kebab-case")]
pub enum Call {
    Send(Send),
    /// Delivered into its queue only `delay_ms` later, so the answer carries no offset of that queue.
    SendDelay(Send),
    /// The half message of a transaction; its answer carries no offset of the queue either.
    SendHalf(Send),
    Batch(Batch),
    EndTx(EndTx),
    Pull(Pull),
    /// A pull by a fresh reader after everything healed. All of them together are the final content of the queues.
    FinalRead(Pull),
    /// One delivery to a member of a group: invoked when handed over, ok when processed, fail when given back.
    Consume(Consume),
    Commit(Commit),
    QueryOffset(GroupQueue),
    MaxOffset(OneQueue),
    Lock(Lock),
    Unlock(GroupQueue),
    Subscribe(Subscribe),
    Unsubscribe(Subscribe),
    Seek(Seek),
    CreateTopic(Topic),
    UpdateTopic(Topic),
    DeleteTopic(Topic),
    /// Asks a name server or a broker how many queues a topic has.
    ReadTopic(Topic),
    AddLearner(Node),
    Promote(Node),
    Remove(Node),
    TransferLeader(Node),
    QueryMsg(QueryMsg),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Send {
    #[serde(rename = "q")]
    pub queue: QueueName,
    #[serde(rename = "u")]
    pub unique: Unique,
    #[serde(rename = "h")]
    pub hash: BodyHash,
    pub mode: SendMode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<Box<str>>,
    /// The sharding key of an ordered message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// The message whose delivery made this process send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Unique>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SendMode {
    Sync,
    Async,
    Oneway,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    #[serde(rename = "q")]
    pub queue: QueueName,
    pub items: Vec<(Unique, BodyHash)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndTx {
    #[serde(rename = "u")]
    pub unique: Unique,
    pub decision: Decision,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    Commit,
    Rollback,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pull {
    #[serde(rename = "q")]
    pub queue: QueueName,
    pub from: u64,
    /// Pulls of one session are made one after the other, each from where the one before ended.
    pub sess: u64,
    /// The only tag wanted; everything if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<Box<str>>,
    pub read: Freshness,
}

/// What a read promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Freshness {
    /// A prefix of the truth: it may lag.
    Prefix,
    /// Everything acknowledged before the read was invoked.
    Realtime,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consume {
    pub group: Box<str>,
    #[serde(rename = "q")]
    pub queue: QueueName,
    #[serde(rename = "o")]
    pub queue_offset: u64,
    #[serde(rename = "u")]
    pub unique: Unique,
    #[serde(rename = "h")]
    pub hash: BodyHash,
    pub orderly: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    pub group: Box<str>,
    #[serde(rename = "q")]
    pub queue: QueueName,
    #[serde(rename = "o")]
    pub queue_offset: u64,
    /// A one-way commit promises nothing, so it always ends as unknown.
    pub oneway: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupQueue {
    pub group: Box<str>,
    #[serde(rename = "q")]
    pub queue: QueueName,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OneQueue {
    #[serde(rename = "q")]
    pub queue: QueueName,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    pub group: Box<str>,
    #[serde(rename = "q")]
    pub queue: QueueName,
    /// How long the lock holds without being renewed, shortened by what clocks may differ.
    pub lease_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscribe {
    pub group: Box<str>,
    pub topic: Box<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<Box<str>>,
}

/// Moves a pull session, or a whole group, to another offset of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seek {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sess: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Box<str>>,
    #[serde(rename = "q")]
    pub queue: QueueName,
    #[serde(rename = "o")]
    pub queue_offset: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    pub topic: Box<str>,
    #[serde(default)]
    pub queues: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub node: Box<str>,
}

/// Looks one acknowledged message up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryMsg {
    #[serde(rename = "u")]
    pub unique: Unique,
    pub by: LookUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LookUp {
    OffsetId,
    Key,
    Time,
    QueueOffset,
}

/// What an operation that ended well was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Sent(Sent),
    Pulled(Pulled),
    Offset(Offset),
    Queues(Queues),
    Found(Found),
    /// Ended well; there was nothing to tell.
    Done,
}

/// Of a batch these are the places of its first message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    #[serde(rename = "qo")]
    pub queue_offset: u64,
    #[serde(rename = "po", default, skip_serializing_if = "Option::is_none")]
    pub physical_offset: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset_id: Option<Box<str>>,
    /// The node that answered, and its term.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pulled {
    pub next: u64,
    pub min: u64,
    pub max: u64,
    #[serde(default)]
    pub got: Vec<Got>,
    /// Offsets of records that came with a wrong checksum of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub corrupt: Vec<u64>,
}

/// One record as read: queue offset, message, hash, physical offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "GotArray", into = "GotArray")]
pub struct Got {
    pub queue_offset: u64,
    pub unique: Unique,
    pub hash: BodyHash,
    pub physical_offset: u64,
}

type GotArray = (u64, Unique, BodyHash, u64);

impl From<GotArray> for Got {
    fn from((queue_offset, unique, hash, physical_offset): GotArray) -> Self {
        Self { queue_offset, unique, hash, physical_offset }
    }
}

impl From<Got> for GotArray {
    fn from(got: Got) -> Self {
        (got.queue_offset, got.unique, got.hash, got.physical_offset)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offset {
    /// None if there is none.
    #[serde(rename = "o")]
    pub queue_offset: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queues {
    /// None if the topic does not exist.
    pub queues: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    pub found: Option<FoundAt>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundAt {
    #[serde(rename = "q")]
    pub queue: QueueName,
    #[serde(rename = "o")]
    pub queue_offset: u64,
    #[serde(rename = "u")]
    pub unique: Unique,
    #[serde(rename = "h")]
    pub hash: BodyHash,
    #[serde(rename = "po")]
    pub physical_offset: u64,
}

/// Why an operation did not end well: an answer of the broker, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    #[serde(default)]
    pub why: Box<str>,
}

impl Call {
    /// The name in field `f` of a line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Send(_) => "send",
            Self::SendDelay(_) => "send-delay",
            Self::SendHalf(_) => "send-half",
            Self::Batch(_) => "batch",
            Self::EndTx(_) => "end-tx",
            Self::Pull(_) => "pull",
            Self::FinalRead(_) => "final-read",
            Self::Consume(_) => "consume",
            Self::Commit(_) => "commit",
            Self::QueryOffset(_) => "query-offset",
            Self::MaxOffset(_) => "max-offset",
            Self::Lock(_) => "lock",
            Self::Unlock(_) => "unlock",
            Self::Subscribe(_) => "subscribe",
            Self::Unsubscribe(_) => "unsubscribe",
            Self::Seek(_) => "seek",
            Self::CreateTopic(_) => "create-topic",
            Self::UpdateTopic(_) => "update-topic",
            Self::DeleteTopic(_) => "delete-topic",
            Self::ReadTopic(_) => "read-topic",
            Self::AddLearner(_) => "add-learner",
            Self::Promote(_) => "promote",
            Self::Remove(_) => "remove",
            Self::TransferLeader(_) => "transfer-leader",
            Self::QueryMsg(_) => "query-msg",
        }
    }

    /// Reads the call named `name` from a line; none if no call has that name.
    pub(super) fn parse(name: &str, line: &str) -> serde_json::Result<Option<Self>> {
        Ok(Some(match name {
            "send" => Self::Send(serde_json::from_str(line)?),
            "send-delay" => Self::SendDelay(serde_json::from_str(line)?),
            "send-half" => Self::SendHalf(serde_json::from_str(line)?),
            "batch" => Self::Batch(serde_json::from_str(line)?),
            "end-tx" => Self::EndTx(serde_json::from_str(line)?),
            "pull" => Self::Pull(serde_json::from_str(line)?),
            "final-read" => Self::FinalRead(serde_json::from_str(line)?),
            "consume" => Self::Consume(serde_json::from_str(line)?),
            "commit" => Self::Commit(serde_json::from_str(line)?),
            "query-offset" => Self::QueryOffset(serde_json::from_str(line)?),
            "max-offset" => Self::MaxOffset(serde_json::from_str(line)?),
            "lock" => Self::Lock(serde_json::from_str(line)?),
            "unlock" => Self::Unlock(serde_json::from_str(line)?),
            "subscribe" => Self::Subscribe(serde_json::from_str(line)?),
            "unsubscribe" => Self::Unsubscribe(serde_json::from_str(line)?),
            "seek" => Self::Seek(serde_json::from_str(line)?),
            "create-topic" => Self::CreateTopic(serde_json::from_str(line)?),
            "update-topic" => Self::UpdateTopic(serde_json::from_str(line)?),
            "delete-topic" => Self::DeleteTopic(serde_json::from_str(line)?),
            "read-topic" => Self::ReadTopic(serde_json::from_str(line)?),
            "add-learner" => Self::AddLearner(serde_json::from_str(line)?),
            "promote" => Self::Promote(serde_json::from_str(line)?),
            "remove" => Self::Remove(serde_json::from_str(line)?),
            "transfer-leader" => Self::TransferLeader(serde_json::from_str(line)?),
            "query-msg" => Self::QueryMsg(serde_json::from_str(line)?),
            _ => return Ok(None),
        }))
    }

    /// Reads the answer to this call from its `ok` line.
    pub(super) fn parse_answer(&self, line: &str) -> serde_json::Result<Answer> {
        Ok(match self {
            Self::Send(_) | Self::SendDelay(_) | Self::SendHalf(_) | Self::Batch(_) => {
                Answer::Sent(serde_json::from_str(line)?)
            }
            Self::Pull(_) | Self::FinalRead(_) => Answer::Pulled(serde_json::from_str(line)?),
            Self::QueryOffset(_) | Self::MaxOffset(_) => Answer::Offset(serde_json::from_str(line)?),
            Self::ReadTopic(_) => Answer::Queues(serde_json::from_str(line)?),
            Self::QueryMsg(_) => Answer::Found(serde_json::from_str(line)?),
            _ => Answer::Done,
        })
    }

    /// The single message that this call sends, if it sends one.
    pub fn message(&self) -> Option<&Send> {
        match self {
            Self::Send(send) | Self::SendDelay(send) | Self::SendHalf(send) => Some(send),
            _ => None,
        }
    }

    /// The pull that this call is, final or not.
    pub fn pull(&self) -> Option<&Pull> {
        match self {
            Self::Pull(pull) | Self::FinalRead(pull) => Some(pull),
            _ => None,
        }
    }
}

/// The name of the topic in the name of a queue.
pub fn topic_of(queue: &str) -> &str {
    queue.split_once('/').map_or(queue, |(topic, _)| topic)
}

/// Whether a reader that wants `filter` is given a message with `tag`.
pub fn accepts(filter: Option<&str>, tag: Option<&str>) -> bool {
    filter.is_none_or(|wanted| tag == Some(wanted))
}
