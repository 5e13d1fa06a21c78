//! The bodies of requests and answers that are not messages: JSON, in the dialects of several clients.
//!
//! What is read: numeric keys without quotes, objects as keys, numbers inside strings, enums as names or numbers, missing and
//! unknown fields, `null` for an empty list. What is written: compact JSON with quoted keys, except that maps keyed by queue
//! have objects as keys, because Java reads nothing else there.

mod admin;
mod connection;
mod dialect;
mod heartbeat;
mod kv;
mod lock;
mod pop;
mod queue;
mod register;
mod route;
mod running_info;
mod stats;
mod subscription_group;
mod topic_config;
mod writer;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::BodyError;
use crate::json::{BodyLimits, normalize};

/// Bodies that clients send.
const CLIENT: BodyLimits = BodyLimits { bytes_max: 1024 * 1024, entries_max: 4096 };
/// Bodies that brokers, name servers and administrators send: as long as a frame.
const SERVER: BodyLimits = BodyLimits { bytes_max: 16 * 1024 * 1024, entries_max: usize::MAX };

fn decode<T: DeserializeOwned>(body: &[u8], limits: &BodyLimits) -> Result<T, BodyError> {
    if body.len() > limits.bytes_max {
        return Err(BodyError::Length { found: body.len(), max: limits.bytes_max });
    }
    let text = std::str::from_utf8(body).map_err(|_| BodyError::Layout("not utf-8"))?;
    Ok(serde_json::from_str(&normalize(text, limits)?)?)
}

fn encode<T: Serialize>(value: &T) -> Bytes {
    let mut out = Vec::with_capacity(256);
    writer::write(value, &mut out).expect("no body has values that cannot be written");
    out.into()
}

/// Gives body types their two functions.
macro_rules! json_body {
    ($($type:ident: $limits:ident),* $(,)?) => {
        $(
            impl $type {
                /// Reads a body.
                ///
                /// # Errors
                /// [`BodyError`](crate::BodyError) says whether it is too long, no JSON, or JSON of another shape.
                pub fn decode(body: &[u8]) -> Result<Self, crate::BodyError> {
                    crate::body::decode(body, &crate::body::$limits)
                }

                /// Writes a body.
                #[must_use]
                pub fn encode(&self) -> bytes::Bytes {
                    crate::body::encode(self)
                }
            }
        )*
    };
}
use json_body;

pub use admin::{ConsumeQueueEntry, QueryConsumeQueueBody, decode_config_text, encode_config_text};
pub use connection::{
    Connection, ConsumerConnection, ConsumerList, GroupList, ProducerConnection, ProducerInfo, ProducerTable,
    QuerySubscription,
};
pub use heartbeat::{
    CheckClientConfig, ConsumeFromWhere, ConsumeType, ConsumerData, HeartbeatData, MessageModel, ProducerData,
    SubscriptionData,
};
pub use kv::KvTable;
pub use lock::{LockRequest, LockResponse};
pub use pop::{
    Assignment, AssignmentRequest, Assignments, BatchAck, MessageRequestMode, QueueAcks, RequestModeSetting,
    RequestModes,
};
pub use queue::{MessageQueue, QueueTable};
pub use register::RegisterBrokerBody;
pub use route::{BrokerData, BrokerMemberGroup, ClusterInfo, QueueData, TopicList, TopicRouteData};
pub use running_info::{ConsumeDirectlyResult, ConsumeResult, ConsumeStatus, ConsumerRunningInfo, ProcessQueueInfo};
pub use stats::{
    BrokerConsumeStats, BrokerStatsData, BrokerStatsItem, ConsumeStats, ConsumeTimeSpans, ConsumerOffsets,
    ConsumerStatus, CorrectionOffsets, DelayOffsets, OffsetWrapper, QueueOffsetEntry, QueueTimeSpan, ResetOffsetList,
    ResetOffsetTable, TopicOffset, TopicStats,
};
pub use subscription_group::{
    GroupRetryPolicy, SimpleSubscription, SubscriptionGroupConfig, SubscriptionGroupList, SubscriptionGroupTable,
};
pub use topic_config::{DataVersion, TopicConfig, TopicConfigList, TopicConfigTable};
