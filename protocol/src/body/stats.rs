//! Positions of queues and groups, and counters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::dialect::{integer, or_default};
use super::json_body;
use super::queue::{MessageQueue, QueueTable};
use super::topic_config::DataVersion;

/// The queues of a topic (202).
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicStats {
    /// By queue.
    pub offset_table: QueueTable<TopicOffset>,
    /// Messages stored in a second.
    #[serde(deserialize_with = "or_default")]
    pub topic_put_tps: f64,
}

/// One queue of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicOffset {
    /// Store time of the newest message in milliseconds; 0 if there is none.
    #[serde(deserialize_with = "integer")]
    pub last_update_timestamp: i64,
    /// Queue offset that the next message gets.
    #[serde(deserialize_with = "integer")]
    pub max_offset: i64,
    /// First queue offset there is.
    #[serde(deserialize_with = "integer")]
    pub min_offset: i64,
}

/// The progress of a group (208).
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumeStats {
    /// Messages consumed in a second.
    #[serde(deserialize_with = "or_default")]
    pub consume_tps: f64,
    /// By queue.
    pub offset_table: QueueTable<OffsetWrapper>,
}

/// The progress of a group in one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OffsetWrapper {
    /// Queue offset that the next message gets.
    #[serde(deserialize_with = "integer")]
    pub broker_offset: i64,
    /// Queue offset to consume next.
    #[serde(deserialize_with = "integer")]
    pub consumer_offset: i64,
    /// Store time of the message consumed last, in milliseconds; 0 if unknown.
    #[serde(deserialize_with = "integer")]
    pub last_timestamp: i64,
    /// Queue offset to pull next.
    #[serde(deserialize_with = "integer")]
    pub pull_offset: i64,
}

/// The progress of all groups (317).
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerConsumeStats {
    /// Address of the broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_addr: Option<String>,
    /// Each entry maps one group to its progress, one item for each topic.
    #[serde(deserialize_with = "or_default")]
    pub consume_stats_list: Vec<BTreeMap<String, Vec<ConsumeStats>>>,
    /// Messages not consumed.
    #[serde(deserialize_with = "integer")]
    pub total_diff: i64,
    /// Messages pulled and not consumed.
    #[serde(deserialize_with = "integer")]
    pub total_inflight_diff: i64,
}

/// The oldest and newest messages of queues, and where a group stands (303).
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumeTimeSpans {
    /// One for each queue.
    #[serde(deserialize_with = "or_default")]
    pub consume_time_span_set: Vec<QueueTimeSpan>,
}

/// Times of one queue, in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueTimeSpan {
    /// Store time of the message to be consumed next.
    #[serde(deserialize_with = "integer")]
    pub consume_time_stamp: i64,
    /// How long that message has been waiting.
    #[serde(deserialize_with = "integer")]
    pub delay_time: i64,
    /// Store time of the newest message.
    #[serde(deserialize_with = "integer")]
    pub max_time_stamp: i64,
    /// The queue.
    pub message_queue: MessageQueue,
    /// Store time of the oldest message.
    #[serde(deserialize_with = "integer")]
    pub min_time_stamp: i64,
}

/// A counter over three spans (315).
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerStatsData {
    /// The last day.
    #[serde(deserialize_with = "or_default")]
    pub stats_day: BrokerStatsItem,
    /// The last hour.
    #[serde(deserialize_with = "or_default")]
    pub stats_hour: BrokerStatsItem,
    /// The last minute.
    #[serde(deserialize_with = "or_default")]
    pub stats_minute: BrokerStatsItem,
}

/// A counter over one span.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BrokerStatsItem {
    /// Average amount in one count.
    pub avgpt: f64,
    /// The amount.
    #[serde(deserialize_with = "integer")]
    pub sum: i64,
    /// Amount in a second.
    pub tps: f64,
}

/// New consumed offsets, for Java and Go clients (220) and tools (222).
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResetOffsetTable {
    /// By queue.
    pub offset_table: QueueTable<i64>,
}

/// New consumed offsets, for C++ and Python clients (220).
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResetOffsetList {
    /// One entry for each queue.
    #[serde(deserialize_with = "or_default")]
    pub offset_table: Vec<QueueOffsetEntry>,
}

/// A queue and a queue offset in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueOffsetEntry {
    /// The broker name.
    pub broker_name: String,
    /// The queue offset.
    #[serde(rename = "offset", deserialize_with = "integer")]
    pub queue_offset: i64,
    /// The queue.
    #[serde(deserialize_with = "integer")]
    pub queue_id: i32,
    /// The topic.
    pub topic: String,
}

impl From<&ResetOffsetTable> for ResetOffsetList {
    fn from(table: &ResetOffsetTable) -> Self {
        let entry = |(queue, queue_offset): (&MessageQueue, &i64)| QueueOffsetEntry {
            broker_name: queue.broker_name.clone(),
            queue_offset: *queue_offset,
            queue_id: queue.queue_id,
            topic: queue.topic.clone(),
        };
        Self { offset_table: table.offset_table.iter().map(entry).collect() }
    }
}

/// What clients have consumed (221, 223).
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerStatus {
    /// By client and queue: what a broker answers.
    #[serde(deserialize_with = "or_default")]
    pub consumer_table: BTreeMap<String, QueueTable<i64>>,
    /// By queue: what a client answers.
    pub message_queue_table: QueueTable<i64>,
}

/// Consumed offsets of all groups (43).
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerOffsets {
    /// State of the table.
    #[serde(deserialize_with = "or_default")]
    pub data_version: DataVersion,
    /// By `topic@group` and queue.
    #[serde(deserialize_with = "or_default")]
    pub offset_table: BTreeMap<String, BTreeMap<i32, i64>>,
}

/// How far the delay levels are (45).
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DelayOffsets {
    /// State of the table.
    #[serde(deserialize_with = "or_default")]
    pub data_version: DataVersion,
    /// By level, the offset of the next message to deliver.
    #[serde(deserialize_with = "or_default")]
    pub offset_table: BTreeMap<i32, i64>,
}

/// Smallest offsets over several groups (308).
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CorrectionOffsets {
    /// By queue.
    #[serde(deserialize_with = "or_default")]
    pub correction_offsets: BTreeMap<i32, i64>,
}

json_body!(
    TopicStats: SERVER,
    ConsumeStats: SERVER,
    BrokerConsumeStats: SERVER,
    ConsumeTimeSpans: SERVER,
    BrokerStatsData: SERVER,
    ResetOffsetTable: SERVER,
    ResetOffsetList: SERVER,
    ConsumerStatus: CLIENT,
    ConsumerOffsets: SERVER,
    CorrectionOffsets: SERVER,
    DelayOffsets: SERVER,
);
