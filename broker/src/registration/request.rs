//! One group's registration with one name server: what to send, and what the answer means.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use protocol::body::{self, RegisterBrokerBody, TopicConfigTable};
use protocol::header::{BrokerIdentityRequest, RegisterBrokerRequest, RegisterBrokerResponse};
use protocol::{RemotingCommand, RequestCode, TopicName};
use remoting::Channel;

use crate::state_machine::{DataVersion, TopicChanges, TopicConfig, TopicFilter};

/// Deleted topics named in one request: with names of full length a quarter of the longest header.
const GONE_MAX: usize = 512;

/// A group of this node, asked at every registration.
pub trait RegisteredGroup: Send + Sync + 'static {
    /// What is true now.
    fn record(&self) -> GroupRecord;

    /// Whether this node holds a replica at all. One that does not is in no route.
    fn is_member(&self) -> bool {
        true
    }

    /// All topics, by name; none if the group does not run.
    fn topics(&self) -> Option<Vec<Arc<TopicConfig>>>;

    /// What changed since the table with this counter; none if that is not known.
    fn topic_changes(&self, counter: u64) -> Option<TopicChanges>;
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
    /// Version of the group's topics. Only a leader's are sent.
    pub version: DataVersion,
}

/// What a name server has confirmed of one group.
#[derive(Clone, Debug)]
pub(super) struct Confirmed {
    leads: bool,
    term: u64,
    leader: Option<u64>,
    version: DataVersion,
}

impl Confirmed {
    fn of(record: &GroupRecord) -> Self {
        Self { leads: record.leads, term: record.term, leader: record.leader, version: record.version }
    }

    fn is(&self, record: &GroupRecord) -> bool {
        (self.leads, self.term, self.leader) == (record.leads, record.term, record.leader)
            && (!record.leads || self.version == record.version)
    }
}

/// What a request says of topics.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    /// All that there are.
    Whole(Vec<Arc<TopicConfig>>),
    /// What happened to the table with this counter. With the counter of now, and no changes, it asks whether the name
    /// server knows the table.
    Changed { base: u64, changes: TopicChanges },
}

/// What brings a name server from `confirmed` to `record`, unless the name server finds that it needs everything.
///
/// One that does not say that it takes changes, as RocketMQ's own, is always told everything.
fn content(
    group: &dyn RegisteredGroup,
    record: &GroupRecord,
    confirmed: Option<&Confirmed>,
    takes_changes: bool,
) -> Result<Content, String> {
    if !record.leads {
        // What a follower knows may be old: it says that it is there.
        return Ok(Content::Whole(Vec::new()));
    }
    if !takes_changes {
        return whole(group);
    }
    let unchanged = Content::Changed { base: record.version.counter, changes: TopicChanges::default() };
    Ok(match confirmed {
        Some(confirmed) if confirmed.leads && confirmed.term == record.term => {
            let base = confirmed.version.counter;
            let changes = group.topic_changes(base).filter(|changes| changes.gone.len() <= GONE_MAX);
            changes.map_or(unchanged, |changes| Content::Changed { base, changes })
        }
        // Another leader, or this one on another connection, may have told it everything.
        _ => unchanged,
    })
}

fn whole(group: &dyn RegisteredGroup) -> Result<Content, String> {
    Ok(Content::Whole(group.topics().ok_or("the group has stopped")?))
}

/// Sends what is needed, if anything is, and notes what was confirmed.
pub(super) async fn bring_up_to_date(
    channel: &Channel,
    cluster: &str,
    group: &dyn RegisteredGroup,
    confirmed: &mut Option<Confirmed>,
    takes_changes: &AtomicBool,
    limit: Duration,
) -> Result<(), String> {
    // Topics are read after their version: those that are newer than it are sent again with the next one.
    let record = group.record();
    if !group.is_member() {
        if confirmed.is_some() {
            let answer = channel.call(unregister(cluster, &record), limit).await.map_err(|error| error.to_string())?;
            if !answer.is_success() {
                return Err(format!("code {}: {}", answer.code, answer.remark.unwrap_or_default()));
            }
            *confirmed = None;
        }
        return Ok(());
    }
    if confirmed.as_ref().is_some_and(|confirmed| confirmed.is(&record)) {
        return Ok(());
    }
    let content = content(group, &record, confirmed.take().as_ref(), takes_changes.load(Ordering::Relaxed))?;
    let mut answer = call(channel, register(cluster, &record, &content), limit).await?;
    if answer.gantry_whole_table == Some(true) && matches!(content, Content::Changed { .. }) {
        answer = call(channel, register(cluster, &record, &whole(group)?), limit).await?;
    }
    takes_changes.store(answer.gantry_whole_table.is_some(), Ordering::Relaxed);
    if answer.gantry_whole_table == Some(true) {
        return Err("the name server asks for the whole table again and again".to_owned());
    }
    *confirmed = Some(Confirmed::of(&record));
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
    let (topics, base, gone): (_, _, &[TopicName]) = match content {
        Content::Whole(topics) => (topics, None, &[]),
        Content::Changed { base, changes } => (&changes.put, Some(saturating_i64(*base)), &changes.gone),
    };
    let gone: Vec<&str> = gone.iter().map(TopicName::as_str).collect();
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
        gantry_base: base,
        gantry_gone: (!gone.is_empty()).then(|| gone.join(",")),
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
    use super::*;

    fn topic(name: &str, queues: u32) -> Arc<TopicConfig> {
        Arc::new(TopicConfig::new(TopicName::parse(name).unwrap(), queues, 6))
    }

    /// A group whose table with counter 7 was changed.
    struct Group(TopicChanges);

    impl RegisteredGroup for Group {
        fn record(&self) -> GroupRecord {
            record(9)
        }

        fn topics(&self) -> Option<Vec<Arc<TopicConfig>>> {
            Some(vec![topic("all", 1)])
        }

        fn topic_changes(&self, counter: u64) -> Option<TopicChanges> {
            (counter == 7).then(|| self.0.clone())
        }
    }

    fn record(counter: u64) -> GroupRecord {
        GroupRecord {
            name: "broker-a".to_owned(),
            client_addr: "127.0.0.1:10911".parse().unwrap(),
            id: 2,
            leads: true,
            term: 5,
            leader: Some(2),
            version: DataVersion { counter, stamped_ms: 1 },
        }
    }

    #[test]
    fn only_what_changed_is_sent_and_after_a_change_of_leader_nothing() {
        let changes = TopicChanges { put: vec![topic("a", 2)], gone: vec![TopicName::parse("b").unwrap()] };
        let group = Group(changes.clone());
        let now = record(9);
        let unchanged = Ok(Content::Changed { base: 9, changes: TopicChanges::default() });
        let since_7 = Content::Changed { base: 7, changes };
        let confirmed = |counter| Confirmed::of(&record(counter));
        assert_eq!(content(&group, &now, Some(&confirmed(7)), true), Ok(since_7));
        // The changes since 6 are not known any more: the name server will ask for everything.
        assert_eq!(content(&group, &now, Some(&confirmed(6)), true), unchanged);
        assert_eq!(content(&group, &now, None, true), unchanged);
        let other_term = Confirmed { term: 4, ..confirmed(7) };
        assert_eq!(content(&group, &now, Some(&other_term), true), unchanged);
        let follower = Confirmed { leads: false, ..confirmed(7) };
        assert_eq!(content(&group, &now, Some(&follower), true), unchanged);
        let too_many = vec![TopicName::parse("b").unwrap(); GONE_MAX + 1];
        let group = Group(TopicChanges { put: Vec::new(), gone: too_many });
        assert_eq!(content(&group, &now, Some(&confirmed(7)), true), unchanged);
        // One that takes no changes gets everything, each time.
        assert_eq!(content(&group, &now, Some(&confirmed(7)), false), Ok(Content::Whole(vec![topic("all", 1)])));
    }

    #[test]
    fn a_request_names_what_is_put_and_what_is_gone() {
        let gone = vec![TopicName::parse("b").unwrap(), TopicName::parse("c").unwrap()];
        let changes = TopicChanges { put: vec![topic("a", 2)], gone };
        let request = register("DefaultCluster", &record(9), &Content::Changed { base: 7, changes });
        assert_eq!(request.ext.get("brokerId"), Some("0"));
        assert_eq!(request.ext.get("gantryBase"), Some("7"));
        assert_eq!(request.ext.get("gantryGone"), Some("b,c"));
        let body = RegisterBrokerBody::decode(&request.body).unwrap();
        assert_eq!(body.topics.data_version.counter, 9);
        assert_eq!(body.topics.topic_config_table.keys().collect::<Vec<_>>(), ["a"]);
        let whole = register("DefaultCluster", &record(9), &Content::Whole(vec![topic("a", 2)]));
        assert_eq!((whole.ext.get("gantryBase"), whole.ext.get("gantryGone")), (None, None));
    }

    #[test]
    fn a_follower_says_nothing_of_topics_and_keeps_its_number() {
        let group = Group(TopicChanges::default());
        let follower = GroupRecord { leads: false, leader: Some(1), ..record(7) };
        let content = content(&group, &follower, Some(&Confirmed::of(&record(7))), true).unwrap();
        let request = register("DefaultCluster", &follower, &content);
        assert_eq!(request.ext.get("brokerId"), Some("2"));
        assert_eq!(request.ext.get("gantryLeader"), Some("1"));
        let body = RegisterBrokerBody::decode(&request.body).unwrap();
        assert!(body.topics.topic_config_table.is_empty());
        // Its topics may change without a word.
        assert!(Confirmed::of(&follower).is(&GroupRecord { version: record(9).version, ..follower }));
    }
}
