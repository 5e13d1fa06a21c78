//! One group's registration with one name server: what to send, and what the answer means.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use protocol::body::{self, RegisterBrokerBody, TopicConfigTable};
use protocol::header::{BrokerIdentityRequest, RegisterBrokerRequest, RegisterBrokerResponse};
use protocol::{RemotingCommand, RequestCode};
use remoting::Channel;

use crate::state_machine::{DataVersion, TopicConfig, TopicFilter};

/// A group of this node, asked at every registration.
pub trait RegisteredGroup: Send + Sync + 'static {
    /// What is true now.
    fn record(&self) -> GroupRecord;
}

/// What a name server is told about one replica.
#[derive(Clone, Debug)]
pub struct GroupRecord {
    /// RocketMQ's broker name.
    pub name: String,
    /// Where clients reach this replica.
    pub client_addr: SocketAddr,
    /// Its member number, never 0.
    pub id: u64,
    /// It leads and answers clients.
    pub leads: bool,
    /// The latest term it knows of.
    pub term: u64,
    /// Who leads in that term, if known.
    pub leader: Option<u64>,
    /// The group's topics, by name. Only a leader's are sent.
    pub topics: Vec<Arc<TopicConfig>>,
    /// State of the topics.
    pub version: DataVersion,
}

/// What a name server has confirmed of one group.
#[derive(Clone, Debug)]
pub(super) struct Confirmed {
    leads: bool,
    term: u64,
    leader: Option<u64>,
    version: DataVersion,
    topics: Vec<Arc<TopicConfig>>,
}

impl Confirmed {
    fn of(record: &GroupRecord) -> Self {
        Self {
            leads: record.leads,
            term: record.term,
            leader: record.leader,
            version: record.version,
            // A follower's topics are not sent, so they are not confirmed either.
            topics: if record.leads { record.topics.clone() } else { Vec::new() },
        }
    }

    fn is(&self, record: &GroupRecord) -> bool {
        (self.leads, self.term, self.leader) == (record.leads, record.term, record.leader)
            && (!record.leads || self.version == record.version)
    }
}

/// Which topics a request carries.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Whole,
    /// Those that are new or differ from the table with this counter.
    Changed {
        base: u64,
        topics: Vec<Arc<TopicConfig>>,
    },
}

/// What is needed to bring a name server from `confirmed` to `record`; nothing if it is there.
fn content(record: &GroupRecord, confirmed: Option<&Confirmed>) -> Option<Content> {
    let Some(confirmed) = confirmed else { return Some(Content::Whole) };
    if confirmed.is(record) {
        return None;
    }
    // An increment cannot say that a topic is gone, and it needs a table of the same leadership to stand on.
    if !record.leads || !confirmed.leads || confirmed.term != record.term {
        return Some(Content::Whole);
    }
    let old: BTreeMap<&str, &Arc<TopicConfig>> =
        confirmed.topics.iter().map(|topic| (topic.name.as_str(), topic)).collect();
    let mut kept = 0;
    let mut changed = Vec::new();
    for topic in &record.topics {
        let known = old.get(topic.name.as_str());
        kept += usize::from(known.is_some());
        if known.is_none_or(|known| !Arc::ptr_eq(known, topic) && ***known != **topic) {
            changed.push(Arc::clone(topic));
        }
    }
    if kept < old.len() {
        return Some(Content::Whole);
    }
    Some(Content::Changed { base: confirmed.version.counter, topics: changed })
}

/// Sends what is needed, and notes what was confirmed.
pub(super) async fn bring_up_to_date(
    channel: &Channel,
    cluster: &str,
    record: &GroupRecord,
    confirmed: &mut Option<Confirmed>,
    limit: Duration,
) -> Result<(), String> {
    let Some(content) = content(record, confirmed.as_ref()) else { return Ok(()) };
    let whole = content == Content::Whole;
    *confirmed = None;
    let mut answer = call(channel, register(cluster, record, &content), limit).await?;
    if !whole && answer.gantry_whole_table {
        answer = call(channel, register(cluster, record, &Content::Whole), limit).await?;
    }
    if answer.gantry_whole_table {
        return Err("the name server asks for the whole table again and again".to_owned());
    }
    *confirmed = Some(Confirmed::of(record));
    Ok(())
}

async fn call(channel: &Channel, request: RemotingCommand, limit: Duration) -> Result<RegisterBrokerResponse, String> {
    let answer = channel.call(request, limit).await.map_err(|error| error.to_string())?;
    if !answer.is_success() {
        return Err(format!("code {}: {}", answer.code, answer.remark.unwrap_or_default()));
    }
    RegisterBrokerResponse::decode(&answer).map_err(|error| error.to_string())
}

fn register(cluster: &str, record: &GroupRecord, content: &Content) -> RemotingCommand {
    let topics: &[Arc<TopicConfig>] = match content {
        Content::Whole if record.leads => &record.topics,
        Content::Whole => &[],
        Content::Changed { topics, .. } => topics,
    };
    let body = RegisterBrokerBody {
        filter_server_list: Vec::new(),
        topics: TopicConfigTable {
            data_version: body::DataVersion {
                counter: saturating_i64(record.version.counter),
                state_version: saturating_i64(record.term),
                timestamp: record.version.stamped_ms,
            },
            mapping_data_version: None,
            topic_config_table: topics.iter().map(|topic| (topic.name.to_string(), wire(topic))).collect(),
        },
    };
    let body = body.encode();
    let header = RegisterBrokerRequest {
        broker_name: record.name.clone(),
        broker_addr: record.client_addr.to_string(),
        cluster_name: cluster.to_owned(),
        ha_server_addr: Some(record.client_addr.to_string()),
        broker_id: route_id(record),
        heartbeat_timeout_millis: None,
        enable_acting_master: Some(false),
        compressed: false,
        body_crc32: i32::try_from(crc32fast::hash(&body) & 0x7fff_ffff).expect("the sign bit is masked"),
        gantry_term: Some(record.term),
        gantry_node: Some(record.id),
        gantry_leader: Some(record.leader.unwrap_or(0)),
        gantry_base: match content {
            Content::Whole => None,
            Content::Changed { base, .. } => Some(saturating_i64(*base)),
        },
    };
    let mut request = RemotingCommand::request(RequestCode::REGISTER_BROKER).with_body(body);
    header.encode_into(&mut request.ext);
    request
}

pub(super) fn unregister(cluster: &str, record: &GroupRecord) -> RemotingCommand {
    let header = BrokerIdentityRequest {
        broker_name: record.name.clone(),
        broker_addr: record.client_addr.to_string(),
        cluster_name: cluster.to_owned(),
        broker_id: route_id(record),
    };
    let mut request = RemotingCommand::request(RequestCode::UNREGISTER_BROKER);
    header.encode_into(&mut request.ext);
    request
}

/// The leader is 0 in routes, every other replica its member number.
fn route_id(record: &GroupRecord) -> i64 {
    if record.leads { 0 } else { saturating_i64(record.id) }
}

fn saturating_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn wire(topic: &TopicConfig) -> body::TopicConfig {
    let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    body::TopicConfig {
        attributes: topic.attributes.clone(),
        order: topic.order,
        perm: number(topic.perm),
        read_queue_nums: number(topic.read_queues),
        topic_filter_type: match topic.filter {
            TopicFilter::SingleTag => "SINGLE_TAG",
            TopicFilter::MultiTag => "MULTI_TAG",
        }
        .to_owned(),
        topic_name: topic.name.to_string(),
        topic_sys_flag: topic.sys_flag,
        write_queue_nums: number(topic.write_queues),
    }
}

#[cfg(test)]
mod tests {
    use protocol::TopicName;

    use super::*;

    fn topic(name: &str, queues: u32) -> Arc<TopicConfig> {
        Arc::new(TopicConfig::new(TopicName::parse(name).unwrap(), queues, 6))
    }

    fn record(counter: u64, topics: &[&Arc<TopicConfig>]) -> GroupRecord {
        GroupRecord {
            name: "broker-a".to_owned(),
            client_addr: "127.0.0.1:10911".parse().unwrap(),
            id: 2,
            leads: true,
            term: 5,
            leader: Some(2),
            topics: topics.iter().map(|&topic| Arc::clone(topic)).collect(),
            version: DataVersion { counter, stamped_ms: 1 },
        }
    }

    #[test]
    fn only_changed_topics_are_sent() {
        let (a, b, b2, c) = (topic("a", 1), topic("b", 1), topic("b", 2), topic("c", 1));
        let before = Confirmed::of(&record(7, &[&a, &b]));
        assert_eq!(content(&record(7, &[&a, &b]), None), Some(Content::Whole));
        assert_eq!(content(&record(7, &[&a, &b]), Some(&before)), None);
        let changed = content(&record(9, &[&a, &b2, &c]), Some(&before));
        assert_eq!(changed, Some(Content::Changed { base: 7, topics: vec![b2, c] }));
    }

    #[test]
    fn what_an_increment_cannot_say_sends_everything() {
        let (a, b) = (topic("a", 1), topic("b", 1));
        let before = Confirmed::of(&record(7, &[&a, &b]));
        assert_eq!(content(&record(8, &[&a]), Some(&before)), Some(Content::Whole));
        let later_term = GroupRecord { term: 6, ..record(7, &[&a, &b]) };
        assert_eq!(content(&later_term, Some(&before)), Some(Content::Whole));
        let follower = GroupRecord { leads: false, leader: Some(1), ..record(7, &[&a, &b]) };
        assert_eq!(content(&follower, Some(&before)), Some(Content::Whole));
        assert_eq!(content(&record(7, &[&a, &b]), Some(&Confirmed::of(&follower))), Some(Content::Whole));
    }

    #[test]
    fn a_follower_says_nothing_of_topics_and_keeps_its_number() {
        let follower = GroupRecord { leads: false, leader: Some(1), ..record(7, &[&topic("a", 1)]) };
        let request = register("DefaultCluster", &follower, &Content::Whole);
        assert_eq!(request.ext.get("brokerId"), Some("2"));
        assert_eq!(request.ext.get("gantryLeader"), Some("1"));
        let body = RegisterBrokerBody::decode(&request.body).unwrap();
        assert!(body.topics.topic_config_table.is_empty());
        // Its topics may change without a word.
        let confirmed = Confirmed::of(&follower);
        let changed = GroupRecord { version: DataVersion { counter: 9, stamped_ms: 2 }, ..follower };
        assert_eq!(content(&changed, Some(&confirmed)), None);
        assert_eq!(register("c", &record(1, &[]), &Content::Whole).ext.get("brokerId"), Some("0"));
    }
}
