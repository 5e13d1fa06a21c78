//! Topic configs (17, 18, 21, 103, 351).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::dialect::{integer, or_default};
use super::json_body;

/// Tells two states of a table apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DataVersion {
    /// Counts the changes.
    #[serde(deserialize_with = "integer")]
    pub counter: i64,
    /// Counts the leaderships.
    #[serde(deserialize_with = "integer")]
    pub state_version: i64,
    /// When it changed, in milliseconds.
    #[serde(deserialize_with = "integer")]
    pub timestamp: i64,
}

/// How a topic is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopicConfig {
    /// Further settings.
    #[serde(default, deserialize_with = "or_default")]
    pub attributes: BTreeMap<String, String>,
    /// Whether the topic is ordered.
    #[serde(default, deserialize_with = "or_default")]
    pub order: bool,
    /// [`Perm`](crate::header::Perm) bits.
    #[serde(default = "default_perm", deserialize_with = "integer")]
    pub perm: i32,
    /// Queues to read.
    #[serde(default = "default_queues", deserialize_with = "integer")]
    pub read_queue_nums: i32,
    /// `SINGLE_TAG` or `MULTI_TAG`.
    #[serde(default = "default_filter")]
    pub topic_filter_type: String,
    /// The topic, not checked as a name.
    pub topic_name: String,
    /// Unit bits.
    #[serde(default, deserialize_with = "integer")]
    pub topic_sys_flag: i32,
    /// Queues to write.
    #[serde(default = "default_queues", deserialize_with = "integer")]
    pub write_queue_nums: i32,
}

const fn default_perm() -> i32 {
    6
}

const fn default_queues() -> i32 {
    16
}

fn default_filter() -> String {
    TopicConfig::SINGLE_TAG.to_owned()
}

impl TopicConfig {
    /// The usual filter type.
    pub const SINGLE_TAG: &str = "SINGLE_TAG";

    /// A topic with as many queues to read as to write, and nothing special.
    #[must_use]
    pub fn new(topic_name: &str, queues: i32, perm: i32) -> Self {
        Self {
            attributes: BTreeMap::new(),
            order: false,
            perm,
            read_queue_nums: queues,
            topic_filter_type: default_filter(),
            topic_name: topic_name.to_owned(),
            topic_sys_flag: 0,
            write_queue_nums: queues,
        }
    }
}

/// All topics of a broker: the answer of 21, and part of 103.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicConfigTable {
    /// State of the table.
    #[serde(deserialize_with = "or_default")]
    pub data_version: DataVersion,
    /// State of the static topics, which we do not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mapping_data_version: Option<DataVersion>,
    /// Topics by name.
    #[serde(deserialize_with = "or_default")]
    pub topic_config_table: BTreeMap<String, TopicConfig>,
}

/// Several topics to create (18).
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicConfigList {
    /// The topics.
    #[serde(deserialize_with = "or_default")]
    pub topic_config_list: Vec<TopicConfig>,
}

json_body!(TopicConfig: CLIENT, TopicConfigTable: SERVER, TopicConfigList: CLIENT, DataVersion: CLIENT);
