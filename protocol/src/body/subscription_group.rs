//! Configurations of consumer groups (200, 201, 225, 352).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::dialect::{integer, or_default};
use super::heartbeat::SubscriptionData;
use super::json_body;
use super::topic_config::DataVersion;

/// How a consumer group is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionGroupConfig {
    /// Further settings.
    #[serde(deserialize_with = "or_default")]
    pub attributes: BTreeMap<String, String>,
    /// Replica that its consumers read first.
    #[serde(deserialize_with = "integer")]
    pub broker_id: i64,
    /// Whether its members may broadcast.
    pub consume_broadcast_enable: bool,
    /// Whether it may consume.
    pub consume_enable: bool,
    /// Whether it may start at the beginning.
    pub consume_from_min_enable: bool,
    /// Whether it consumes in order.
    pub consume_message_orderly: bool,
    /// Minutes after which an ordered consumer counts as stuck.
    #[serde(deserialize_with = "integer")]
    pub consume_timeout_minute: i32,
    /// The group, not checked as a name.
    pub group_name: String,
    /// How delays between deliveries grow.
    #[serde(deserialize_with = "or_default")]
    pub group_retry_policy: GroupRetryPolicy,
    /// Bits.
    #[serde(deserialize_with = "integer")]
    pub group_sys_flag: i32,
    /// Whether members are told of each other.
    pub notify_consumer_ids_changed_enable: bool,
    /// Most deliveries of one message.
    #[serde(deserialize_with = "integer")]
    pub retry_max_times: i32,
    /// Queues of its retry topic.
    #[serde(deserialize_with = "integer")]
    pub retry_queue_nums: i32,
    /// What its members are set to consume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription_data_set: Option<Vec<SimpleSubscription>>,
    /// Replica for consumers that are far behind.
    #[serde(deserialize_with = "integer")]
    pub which_broker_when_consume_slowly: i64,
}

/// How delays between deliveries grow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupRetryPolicy {
    /// `CUSTOMIZED`, `EXPONENTIAL`.
    #[serde(rename = "type")]
    pub kind: String,
}

impl Default for GroupRetryPolicy {
    fn default() -> Self {
        Self { kind: "CUSTOMIZED".to_owned() }
    }
}

/// A topic and the filter set for it.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SimpleSubscription {
    /// The topic.
    pub topic: String,
    /// `TAG` or `SQL92`.
    #[serde(deserialize_with = "or_default")]
    pub expression_type: String,
    /// The filter expression.
    #[serde(deserialize_with = "or_default")]
    pub expression: String,
    /// Version of the expression.
    #[serde(deserialize_with = "integer")]
    pub version: i64,
}

impl From<&SubscriptionData> for SimpleSubscription {
    fn from(data: &SubscriptionData) -> Self {
        Self {
            topic: data.topic.clone(),
            expression_type: data.expression_type.clone(),
            expression: data.expression.clone(),
            version: data.version,
        }
    }
}

impl Default for SubscriptionGroupConfig {
    /// What a group gets that nobody configured. The name is empty.
    fn default() -> Self {
        Self {
            attributes: BTreeMap::new(),
            broker_id: 0,
            consume_broadcast_enable: true,
            consume_enable: true,
            consume_from_min_enable: true,
            consume_message_orderly: false,
            consume_timeout_minute: 15,
            group_name: String::new(),
            group_retry_policy: GroupRetryPolicy::default(),
            group_sys_flag: 0,
            notify_consumer_ids_changed_enable: true,
            retry_max_times: 16,
            retry_queue_nums: 1,
            subscription_data_set: None,
            which_broker_when_consume_slowly: 1,
        }
    }
}

impl SubscriptionGroupConfig {
    /// The configuration of a group that nobody configured.
    #[must_use]
    pub fn new(group_name: &str) -> Self {
        Self { group_name: group_name.to_owned(), ..Self::default() }
    }
}

/// All groups of a broker (201).
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionGroupTable {
    /// State of the table.
    #[serde(deserialize_with = "or_default")]
    pub data_version: DataVersion,
    /// Topics closed to groups.
    #[serde(deserialize_with = "or_default")]
    pub forbidden_table: BTreeMap<String, BTreeMap<String, i32>>,
    /// Groups by name.
    #[serde(deserialize_with = "or_default")]
    pub subscription_group_table: BTreeMap<String, SubscriptionGroupConfig>,
}

/// Several groups to create (225).
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionGroupList {
    /// The groups.
    #[serde(deserialize_with = "or_default")]
    pub group_config_list: Vec<SubscriptionGroupConfig>,
}

json_body!(SubscriptionGroupConfig: CLIENT, SubscriptionGroupTable: SERVER, SubscriptionGroupList: CLIENT);
