//! Who is connected: codes 38, 203, 204, 300, 328, 345.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::dialect::{integer, or_default};
use super::heartbeat::{ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData};
use super::json_body;

/// The members of a consumer group (38).
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerList {
    /// Their client ids. Clients share the queues by this list, so every replica must give the same.
    #[serde(deserialize_with = "or_default")]
    pub consumer_id_list: Vec<String>,
}

/// One connected client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// `ip:port` it connects from.
    pub client_addr: String,
    /// The client.
    pub client_id: String,
    /// Name of its language.
    pub language: String,
    /// Its version.
    #[serde(deserialize_with = "integer")]
    pub version: i32,
}

/// A consumer group that is online (203).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsumerConnection {
    /// Its members.
    #[serde(default, deserialize_with = "or_default")]
    pub connection_set: Vec<Connection>,
    /// Where it started.
    pub consume_from_where: ConsumeFromWhere,
    /// Who decides when.
    pub consume_type: ConsumeType,
    /// Whether the members share the messages.
    pub message_model: MessageModel,
    /// What it consumes, by topic.
    #[serde(default, deserialize_with = "or_default")]
    pub subscription_table: BTreeMap<String, SubscriptionData>,
}

/// A producer group that is online (204).
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProducerConnection {
    /// Its members.
    #[serde(deserialize_with = "or_default")]
    pub connection_set: Vec<Connection>,
}

/// All producers (328).
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProducerTable {
    /// Members by group.
    #[serde(deserialize_with = "or_default")]
    pub data: BTreeMap<String, Vec<ProducerInfo>>,
}

/// One producer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProducerInfo {
    /// The client.
    pub client_id: String,
    /// Name of its language.
    pub language: String,
    /// When it was heard of, in milliseconds.
    #[serde(deserialize_with = "integer")]
    pub last_update_timestamp: i64,
    /// Where it connects from, as Java prints an address: with a leading slash.
    #[serde(rename = "remoteIP")]
    pub remote_ip: String,
    /// Its version.
    #[serde(deserialize_with = "integer")]
    pub version: i32,
}

/// Names of groups (300).
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupList {
    /// The groups.
    #[serde(deserialize_with = "or_default")]
    pub group_list: Vec<String>,
}

/// What a group consumes of a topic (345).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QuerySubscription {
    /// The group.
    pub group: String,
    /// Absent if it does not consume it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription_data: Option<SubscriptionData>,
    /// The topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
}

json_body!(
    ConsumerList: SERVER,
    ConsumerConnection: SERVER,
    ProducerConnection: SERVER,
    ProducerTable: SERVER,
    GroupList: SERVER,
    QuerySubscription: SERVER,
);
