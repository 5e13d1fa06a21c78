//! Routes, clusters, lists of topics.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::dialect::{integer, or_default};
use super::json_body;

/// Where a topic lives (105).
///
/// Go clients cut the text of `brokerAddrs` themselves: it must be there, compact, and without commas inside addresses.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicRouteData {
    /// The brokers, one entry for each name in `queue_datas`.
    #[serde(deserialize_with = "or_default")]
    pub broker_datas: Vec<BrokerData>,
    /// Retired, always empty.
    #[serde(deserialize_with = "or_default")]
    pub filter_server_table: BTreeMap<String, Vec<String>>,
    /// Queue counts of an ordered topic: `broker-a:4;broker-b:4`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_topic_conf: Option<String>,
    /// The queues, one entry for each broker name.
    #[serde(deserialize_with = "or_default")]
    pub queue_datas: Vec<QueueData>,
}

/// Queues of a topic at one broker name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueData {
    /// The broker name.
    pub broker_name: String,
    /// [`Perm`](crate::header::Perm) bits.
    #[serde(deserialize_with = "integer")]
    pub perm: i32,
    /// Queues to read.
    #[serde(deserialize_with = "integer")]
    pub read_queue_nums: i32,
    /// Unit bits.
    #[serde(default, deserialize_with = "integer")]
    pub topic_sys_flag: i32,
    /// Queues to write.
    #[serde(deserialize_with = "integer")]
    pub write_queue_nums: i32,
}

/// The replicas behind one broker name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BrokerData {
    /// Address of each broker id; 0 leads.
    #[serde(default, deserialize_with = "or_default")]
    pub broker_addrs: BTreeMap<i64, String>,
    /// The broker name.
    pub broker_name: String,
    /// Its cluster.
    #[serde(default, deserialize_with = "or_default")]
    pub cluster: String,
    /// Whether another replica may be shown as id 0.
    #[serde(default, deserialize_with = "or_default")]
    pub enable_acting_master: bool,
}

/// All brokers (106).
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterInfo {
    /// Replicas by broker name.
    #[serde(deserialize_with = "or_default")]
    pub broker_addr_table: BTreeMap<String, BrokerData>,
    /// Broker names by cluster.
    #[serde(deserialize_with = "or_default")]
    pub cluster_addr_table: BTreeMap<String, Vec<String>>,
}

/// A list of topics (206, 224, 304, 305, 311 to 313, 343).
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicList {
    /// A broker to ask for more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_addr: Option<String>,
    /// The topics.
    #[serde(deserialize_with = "or_default")]
    pub topic_list: Vec<String>,
}

/// The replicas that share a broker name (901).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BrokerMemberGroup {
    /// The replicas.
    pub broker_member_group: BrokerData,
}

json_body!(TopicRouteData: SERVER, ClusterInfo: SERVER, TopicList: SERVER, BrokerMemberGroup: SERVER);
