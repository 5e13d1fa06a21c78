//! Who a client is and what it consumes: codes 34 and 46.

use serde::{Deserialize, Serialize};

use super::dialect::{integer, or_default, wire_enum};
use super::json_body;
use crate::message::java_hash_code;

wire_enum! {
    /// Who decides when a message is consumed.
    pub enum ConsumeType {
        /// The caller.
        Actively = 0 "CONSUME_ACTIVELY",
        /// The client library.
        Passively = 1 "CONSUME_PASSIVELY",
        /// The broker assigns messages.
        Pop = 2 "CONSUME_POP",
    }
}

wire_enum! {
    /// Whether each member of a group gets every message.
    pub enum MessageModel {
        /// It does.
        Broadcasting = 0 "BROADCASTING",
        /// The members share them.
        Clustering = 1 "CLUSTERING",
    }
}

wire_enum! {
    /// Where a new group starts.
    pub enum ConsumeFromWhere {
        /// At the end.
        LastOffset = 0 "CONSUME_FROM_LAST_OFFSET",
        /// Retired; at the end.
        LastOffsetAndMinWhenBootFirst = 1 "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        /// Retired; at the end.
        MinOffset = 2 "CONSUME_FROM_MIN_OFFSET",
        /// Retired; at the end.
        MaxOffset = 3 "CONSUME_FROM_MAX_OFFSET",
        /// At the beginning.
        FirstOffset = 4 "CONSUME_FROM_FIRST_OFFSET",
        /// At a time.
        Timestamp = 5 "CONSUME_FROM_TIMESTAMP",
    }
}

/// The groups that a client belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatData {
    /// The client.
    #[serde(rename = "clientID")]
    pub client_id: String,
    /// Groups it produces in.
    #[serde(default, rename = "producerDataSet", deserialize_with = "or_default")]
    pub producers: Vec<ProducerData>,
    /// Groups it consumes in.
    #[serde(default, rename = "consumerDataSet", deserialize_with = "or_default")]
    pub consumers: Vec<ConsumerData>,
    /// Hash of the subscriptions, for the short form; 0: not used.
    #[serde(default, rename = "heartbeatFingerprint", deserialize_with = "integer")]
    pub fingerprint: i32,
    /// Whether this is the short form, which leaves the subscriptions out.
    #[serde(default, rename = "withoutSub", alias = "isWithoutSub", deserialize_with = "or_default")]
    pub without_subscriptions: bool,
}

/// A group that a client produces in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProducerData {
    /// The group, not checked as a name.
    #[serde(rename = "groupName")]
    pub group: String,
}

/// A group that a client consumes in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsumerData {
    /// The group, not checked as a name.
    #[serde(rename = "groupName")]
    pub group: String,
    /// Who decides when.
    pub consume_type: ConsumeType,
    /// Whether the members share the messages.
    pub message_model: MessageModel,
    /// Where a new group starts.
    pub consume_from_where: ConsumeFromWhere,
    /// What it consumes.
    #[serde(default, rename = "subscriptionDataSet", deserialize_with = "or_default")]
    pub subscriptions: Vec<SubscriptionData>,
    /// Unit mode.
    #[serde(default, deserialize_with = "or_default")]
    pub unit_mode: bool,
}

/// What a group consumes of a topic.
///
/// The hash codes that clients send are dropped, because C++ and Go clients compute others than Java's: see
/// [`SubscriptionData::codes`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "SubscriptionWire", into = "SubscriptionWire")]
pub struct SubscriptionData {
    /// The topic, not checked as a name.
    pub topic: String,
    /// The filter expression.
    pub expression: String,
    /// The tags in the expression.
    pub tags: Vec<String>,
    /// Grows with each change of the expression. Its unit differs by client.
    pub version: i64,
    /// `TAG` or `SQL92`.
    pub expression_type: String,
    /// Retired.
    pub class_filter_mode: bool,
}

/// The expression type that is meant when there is none.
const TAG: &str = "TAG";
/// The expression that everything matches.
const MATCH_ALL: &str = "*";

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SubscriptionWire {
    #[serde(default, deserialize_with = "or_default")]
    class_filter_mode: bool,
    #[serde(default, skip_deserializing)]
    code_set: Vec<i32>,
    #[serde(default, deserialize_with = "or_default")]
    expression_type: String,
    #[serde(default, deserialize_with = "or_default")]
    sub_string: String,
    #[serde(default, deserialize_with = "integer")]
    sub_version: i64,
    #[serde(default, deserialize_with = "or_default")]
    tags_set: Vec<String>,
    topic: String,
}

impl From<SubscriptionWire> for SubscriptionData {
    fn from(wire: SubscriptionWire) -> Self {
        let expression_type = if wire.expression_type.is_empty() { TAG.to_owned() } else { wire.expression_type };
        Self {
            topic: wire.topic,
            expression: wire.sub_string,
            tags: wire.tags_set,
            version: wire.sub_version,
            expression_type,
            class_filter_mode: wire.class_filter_mode,
        }
    }
}

impl From<SubscriptionData> for SubscriptionWire {
    fn from(data: SubscriptionData) -> Self {
        Self {
            class_filter_mode: data.class_filter_mode,
            code_set: data.codes(),
            expression_type: data.expression_type,
            sub_string: data.expression,
            sub_version: data.version,
            tags_set: data.tags,
            topic: data.topic,
        }
    }
}

impl SubscriptionData {
    /// A subscription by tags: `*`, or tags joined by `||`.
    #[must_use]
    pub fn by_tags(topic: &str, expression: &str, version: i64) -> Self {
        let expression = if expression.trim().is_empty() { MATCH_ALL } else { expression };
        let tags =
            if expression == MATCH_ALL { Vec::new() } else { split_tags(expression).map(str::to_owned).collect() };
        Self {
            topic: topic.to_owned(),
            expression: expression.to_owned(),
            tags,
            version,
            expression_type: TAG.to_owned(),
            class_filter_mode: false,
        }
    }

    /// Whether the expression is one of tags.
    #[must_use]
    pub fn is_tag_type(&self) -> bool {
        self.expression_type == TAG
    }

    /// Whether every message passes.
    #[must_use]
    pub fn matches_all(&self) -> bool {
        self.is_tag_type() && (self.expression.is_empty() || self.expression == MATCH_ALL)
    }

    /// Java's hash codes of the tags, as they stand in ConsumeQueues. Empty if every message passes.
    #[must_use]
    pub fn codes(&self) -> Vec<i32> {
        if !self.is_tag_type() || self.matches_all() {
            return Vec::new();
        }
        let mut codes: Vec<i32> = if self.tags.is_empty() {
            split_tags(&self.expression).map(java_hash_code).collect()
        } else {
            self.tags.iter().map(|tag| java_hash_code(tag)).collect()
        };
        codes.sort_unstable();
        codes.dedup();
        codes
    }
}

fn split_tags(expression: &str) -> impl Iterator<Item = &str> {
    expression.split("||").map(str::trim).filter(|tag| !tag.is_empty())
}

/// Asks whether a consumer's filter can be used (46).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckClientConfig {
    /// The client.
    pub client_id: String,
    /// Its group.
    pub group: String,
    /// The subscription with the filter.
    pub subscription_data: SubscriptionData,
    /// Namespace of the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

json_body!(HeartbeatData: CLIENT, CheckClientConfig: CLIENT);
