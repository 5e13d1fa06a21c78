//! What a consumer says of itself (307), and how it fared with one message (309).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::dialect::{integer, or_default, wire_enum};
use super::heartbeat::SubscriptionData;
use super::json_body;
use super::queue::QueueTable;

/// The state of one consumer. A broker hands the client's bytes on as they are.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerRunningInfo {
    /// Stacks of its threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jstack: Option<String>,
    /// Its queues.
    pub mq_table: QueueTable<ProcessQueueInfo>,
    /// Settings and times: the keys of [`ConsumerRunningInfo::CONSUME_TYPE`] and its neighbours.
    #[serde(deserialize_with = "or_default")]
    pub properties: BTreeMap<String, String>,
    /// Speed, by topic.
    #[serde(deserialize_with = "or_default")]
    pub status_table: BTreeMap<String, ConsumeStatus>,
    /// What it consumes.
    #[serde(deserialize_with = "or_default")]
    pub subscription_set: Vec<SubscriptionData>,
}

impl ConsumerRunningInfo {
    /// Property: addresses of the name servers.
    pub const NAMESERVER_ADDR: &str = "PROP_NAMESERVER_ADDR";
    /// Property: number of consuming threads.
    pub const THREADPOOL_CORE_SIZE: &str = "PROP_THREADPOOL_CORE_SIZE";
    /// Property: whether it consumes in order.
    pub const CONSUME_ORDERLY: &str = "PROP_CONSUMEORDERLY";
    /// Property: name of the [`ConsumeType`](super::ConsumeType).
    pub const CONSUME_TYPE: &str = "PROP_CONSUME_TYPE";
    /// Property: version of the client.
    pub const CLIENT_VERSION: &str = "PROP_CLIENT_VERSION";
    /// Property: when it started, in milliseconds.
    pub const CONSUMER_START_TIMESTAMP: &str = "PROP_CONSUMER_START_TIMESTAMP";
}

/// Messages of one queue that are pulled and not consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessQueueInfo {
    /// Messages waiting.
    #[serde(deserialize_with = "integer")]
    pub cached_msg_count: i64,
    /// Highest queue offset waiting.
    #[serde(deserialize_with = "integer")]
    pub cached_msg_max_offset: i64,
    /// Lowest queue offset waiting.
    #[serde(deserialize_with = "integer")]
    pub cached_msg_min_offset: i64,
    /// Size of what waits, in MiB.
    #[serde(deserialize_with = "integer")]
    pub cached_msg_size_in_mi_b: i64,
    /// Queue offset to consume next.
    #[serde(deserialize_with = "integer")]
    pub commit_offset: i64,
    /// Whether the queue was given up. Spelled so by all but Go.
    #[serde(rename = "droped", alias = "dropped")]
    pub dropped: bool,
    /// When something was consumed, in milliseconds.
    #[serde(deserialize_with = "integer")]
    pub last_consume_timestamp: i64,
    /// When the queue was locked, in milliseconds.
    #[serde(deserialize_with = "integer")]
    pub last_lock_timestamp: i64,
    /// When something was pulled, in milliseconds.
    #[serde(deserialize_with = "integer")]
    pub last_pull_timestamp: i64,
    /// Whether the queue is locked.
    pub locked: bool,
    /// Messages being consumed in order.
    #[serde(deserialize_with = "integer")]
    pub transaction_msg_count: i64,
    /// Highest queue offset being consumed in order.
    #[serde(deserialize_with = "integer")]
    pub transaction_msg_max_offset: i64,
    /// Lowest queue offset being consumed in order.
    #[serde(deserialize_with = "integer")]
    pub transaction_msg_min_offset: i64,
    /// How often it was tried to unlock the queue.
    #[serde(deserialize_with = "integer")]
    pub try_unlock_times: i64,
}

/// Speed of consuming one topic.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumeStatus {
    /// Messages that failed, within an hour.
    #[serde(rename = "consumeFailedMsgs", deserialize_with = "integer")]
    pub failed_messages: i64,
    /// Messages that failed, in a second.
    #[serde(rename = "consumeFailedTPS")]
    pub failed_tps: f64,
    /// Messages consumed, in a second.
    #[serde(rename = "consumeOKTPS")]
    pub ok_tps: f64,
    /// Milliseconds to consume one.
    #[serde(rename = "consumeRT")]
    pub consume_rt: f64,
    /// Milliseconds to pull.
    #[serde(rename = "pullRT")]
    pub pull_rt: f64,
    /// Messages pulled, in a second.
    #[serde(rename = "pullTPS")]
    pub pull_tps: f64,
}

wire_enum! {
    /// What a listener made of a message.
    pub enum ConsumeResult {
        /// Consumed.
        Success = 0 "CR_SUCCESS",
        /// To be delivered again.
        Later = 1 "CR_LATER",
        /// Ordered: not consumed.
        Rollback = 2 "CR_ROLLBACK",
        /// Ordered: consumed.
        Commit = 3 "CR_COMMIT",
        /// It failed.
        ThrowException = 4 "CR_THROW_EXCEPTION",
        /// It did not say.
        ReturnNull = 5 "CR_RETURN_NULL",
    }
}

/// How a consumer fared with one message (309).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsumeDirectlyResult {
    /// Whether the offset is committed by itself.
    #[serde(default, deserialize_with = "or_default")]
    pub auto_commit: bool,
    /// The outcome.
    pub consume_result: ConsumeResult,
    /// Whether it consumes in order.
    #[serde(default, deserialize_with = "or_default")]
    pub order: bool,
    /// Text for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// How long it took, in milliseconds.
    #[serde(default, rename = "spentTimeMills", deserialize_with = "integer")]
    pub spent_millis: i64,
}

json_body!(ConsumerRunningInfo: CLIENT, ConsumeDirectlyResult: CLIENT);
