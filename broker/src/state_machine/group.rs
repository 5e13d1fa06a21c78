//! Subscription groups as the log keeps them.

use std::collections::BTreeMap;

use bincode::{Decode, Encode};
use protocol::{GroupName, NameError, body};

use super::topic::QUEUES_MAX;

/// One subscription group.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GroupConfig {
    /// Its name.
    #[bincode(with_serde)]
    pub name: GroupName,
    /// Whether it may pull.
    pub consume_enable: bool,
    /// Informational: whether it starts at the smallest offset.
    pub consume_from_min_enable: bool,
    /// Whether its members may consume in broadcast mode.
    pub consume_broadcast_enable: bool,
    /// Informational: whether it consumes orderly.
    pub consume_message_orderly: bool,
    /// Queues of its retry topic.
    pub retry_queues: u32,
    /// Deliveries before a message goes to the dead letter topic.
    pub retry_max_times: i32,
    /// How delays between deliveries grow: `CUSTOMIZED` or `EXPONENTIAL`.
    pub retry_policy: String,
    /// Which broker id its members should pull from.
    pub broker_id: i64,
    /// Which broker id its members should pull from when they lag.
    pub which_broker_when_consume_slowly: i64,
    /// Whether members are told that the member list changed.
    pub notify_consumer_ids_changed_enable: bool,
    /// Bits for clients; the broker stores them.
    pub group_sys_flag: i32,
    /// Minutes a client may take for one message.
    pub consume_timeout_minutes: i32,
    /// Subscriptions set by an administrator.
    pub subscriptions: Option<Vec<FixedSubscription>>,
    /// Attributes.
    pub attributes: BTreeMap<String, String>,
}

/// A topic and the filter set for it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FixedSubscription {
    /// The topic, not checked as a name.
    pub topic: String,
    /// `TAG` or `SQL92`.
    pub expression_type: String,
    /// The filter expression.
    pub expression: String,
    /// Version of the expression.
    pub version: i64,
}

/// Why a configuration in a request is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupConfigError {
    /// The name.
    #[error("group name: {0}")]
    Name(#[from] NameError),
    /// The number of retry queues.
    #[error("{0} retry queues, allowed are 0 to {QUEUES_MAX}")]
    RetryQueues(i32),
}

impl GroupConfig {
    /// Reads a configuration from a request.
    ///
    /// # Errors
    /// A name or a number of queues that no group has.
    pub fn from_body(body: &body::SubscriptionGroupConfig) -> Result<Self, GroupConfigError> {
        let retry_queues = u32::try_from(body.retry_queue_nums).ok().filter(|queues| *queues <= QUEUES_MAX);
        let subscription = |from: &body::SimpleSubscription| FixedSubscription {
            topic: from.topic.clone(),
            expression_type: from.expression_type.clone(),
            expression: from.expression.clone(),
            version: from.version,
        };
        Ok(Self {
            name: GroupName::parse(&body.group_name)?,
            consume_enable: body.consume_enable,
            consume_from_min_enable: body.consume_from_min_enable,
            consume_broadcast_enable: body.consume_broadcast_enable,
            consume_message_orderly: body.consume_message_orderly,
            retry_queues: retry_queues.ok_or(GroupConfigError::RetryQueues(body.retry_queue_nums))?,
            retry_max_times: body.retry_max_times,
            retry_policy: body.group_retry_policy.kind.clone(),
            broker_id: body.broker_id,
            which_broker_when_consume_slowly: body.which_broker_when_consume_slowly,
            notify_consumer_ids_changed_enable: body.notify_consumer_ids_changed_enable,
            group_sys_flag: body.group_sys_flag,
            consume_timeout_minutes: body.consume_timeout_minute,
            subscriptions: body.subscription_data_set.as_ref().map(|all| all.iter().map(subscription).collect()),
            attributes: body.attributes.clone(),
        })
    }

    /// The configuration as answers have it.
    pub fn to_body(&self) -> body::SubscriptionGroupConfig {
        let subscription = |from: &FixedSubscription| body::SimpleSubscription {
            topic: from.topic.clone(),
            expression_type: from.expression_type.clone(),
            expression: from.expression.clone(),
            version: from.version,
        };
        body::SubscriptionGroupConfig {
            attributes: self.attributes.clone(),
            broker_id: self.broker_id,
            consume_broadcast_enable: self.consume_broadcast_enable,
            consume_enable: self.consume_enable,
            consume_from_min_enable: self.consume_from_min_enable,
            consume_message_orderly: self.consume_message_orderly,
            consume_timeout_minute: self.consume_timeout_minutes,
            group_name: self.name.to_string(),
            group_retry_policy: body::GroupRetryPolicy { kind: self.retry_policy.clone() },
            group_sys_flag: self.group_sys_flag,
            notify_consumer_ids_changed_enable: self.notify_consumer_ids_changed_enable,
            retry_max_times: self.retry_max_times,
            retry_queue_nums: self.retry_queues.cast_signed(),
            subscription_data_set: self.subscriptions.as_ref().map(|all| all.iter().map(subscription).collect()),
            which_broker_when_consume_slowly: self.which_broker_when_consume_slowly,
        }
    }

    /// A group as it is created on demand.
    pub fn new(name: GroupName) -> Self {
        Self {
            name,
            consume_enable: true,
            consume_from_min_enable: true,
            consume_broadcast_enable: true,
            consume_message_orderly: false,
            retry_queues: 1,
            retry_max_times: 16,
            retry_policy: "CUSTOMIZED".to_owned(),
            broker_id: 0,
            which_broker_when_consume_slowly: 1,
            notify_consumer_ids_changed_enable: true,
            group_sys_flag: 0,
            consume_timeout_minutes: 15,
            subscriptions: None,
            attributes: BTreeMap::new(),
        }
    }
}
