//! Locks on queues, for ordered consumption: codes 41 and 42.

use serde::{Deserialize, Serialize};

use super::dialect::or_default;
use super::json_body;
use super::queue::MessageQueue;

/// Queues to lock or unlock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LockRequest {
    /// The client.
    pub client_id: String,
    /// Its group.
    pub consumer_group: String,
    /// The queues.
    #[serde(default, deserialize_with = "or_default")]
    pub mq_set: Vec<MessageQueue>,
    /// Whether other replicas are to be left alone. The log tells them anyway.
    #[serde(default, deserialize_with = "or_default")]
    pub only_this_broker: bool,
}

/// Queues that are locked now.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LockResponse {
    /// The queues.
    #[serde(rename = "lockOKMQSet", deserialize_with = "or_default")]
    pub locked: Vec<MessageQueue>,
}

json_body!(LockRequest: CLIENT, LockResponse: SERVER);
