//! What tools ask of a cluster.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use protocol::GroupName;
use protocol::RemotingCommand;
use protocol::RequestCode;
use protocol::ResponseCode;
use protocol::TopicName;
use protocol::body::BrokerData;
use protocol::body::ClusterInfo;
use protocol::body::ConsumeStats;
use protocol::body::ConsumerConnection;
use protocol::body::KvTable;
use protocol::body::OffsetWrapper;
use protocol::body::SubscriptionGroupConfig;
use protocol::body::SubscriptionGroupTable;
use protocol::body::TopicConfig;
use protocol::body::TopicConfigList;
use protocol::body::TopicList;
use protocol::body::TopicOffset;
use protocol::body::TopicRouteData;
use protocol::body::TopicStats;
use protocol::header::ConsumeStatsRequest;
use protocol::header::ConsumerGroupRequest;
use protocol::header::CreateTopicRequest;
use protocol::header::DeleteSubscriptionGroupRequest;
use protocol::header::DeleteTopicInNamesrvRequest;
use protocol::header::Perm;
use protocol::header::QueryMessageRequest;
use protocol::header::RouteRequest;
use protocol::header::TopicRequest;
use protocol::header::ViewMessageRequest;
use protocol::message::OffsetMessageId;

use crate::Client;
use crate::Error;
use crate::Queue;
use crate::ReceivedMessage;
use crate::Result;

/// Tools wait longer than producers.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Topics that a broker takes in one request.
pub const TOPICS_MAX: usize = 1_024;

/// A topic to create or change.
#[derive(Debug, Clone)]
pub struct NewTopic {
    /// The topic.
    pub topic: TopicName,
    /// Queues at each broker.
    pub queues: i32,
    /// [`Perm`] bits.
    pub perm: i32,
    /// Whether it is meant for ordered messages.
    pub order: bool,
    /// Changes of attributes: `+key=value` and `-key`, separated by commas.
    pub attributes: String,
}

impl NewTopic {
    /// A topic to read and write, with `queues` queues at each broker.
    #[must_use]
    pub fn new(topic: TopicName, queues: i32) -> Self {
        Self { topic, queues, perm: Perm::READ | Perm::WRITE, order: false, attributes: String::new() }
    }
}

/// Which messages of a topic are looked for.
#[derive(Debug, Clone)]
pub struct MessageQuery {
    /// The topic.
    pub topic: TopicName,
    /// The key, or the id that the sender gave it.
    pub key: String,
    /// Whether the key is such an id.
    pub is_message_id: bool,
    /// Most messages of each broker.
    pub messages_max: i32,
    /// Earliest and latest store time in milliseconds.
    pub stored: (i64, i64),
}

/// Asks brokers and name servers on behalf of an operator. Clones are the same.
#[derive(Debug, Clone)]
pub struct Admin {
    client: Client,
}

impl Admin {
    /// Tools on top of `client`.
    #[must_use]
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone() }
    }

    // Clusters and brokers.

    /// All brokers of all clusters.
    ///
    /// # Errors
    /// Why no name server could say.
    pub async fn clusters(&self) -> Result<ClusterInfo> {
        let request = self.client.request(RequestCode::GET_BROKER_CLUSTER_INFO);
        Ok(ClusterInfo::decode(&self.client.call_name_server(request).await?.body)?)
    }

    /// Counters and settings that the broker at `address` tells of itself.
    ///
    /// # Errors
    /// Why it did not say.
    pub async fn runtime_info(&self, address: &str) -> Result<BTreeMap<String, String>> {
        let request = self.client.request(RequestCode::GET_BROKER_RUNTIME_INFO);
        Ok(KvTable::decode(&self.client.call(address, request, CALL_TIMEOUT).await?.body)?.table)
    }

    /// The leaders of `cluster`, or of all clusters: broker name and address.
    ///
    /// # Errors
    /// As [`Self::clusters`]; [`Error::NoBroker`] if there is none.
    pub async fn leaders(&self, cluster: Option<&str>) -> Result<Vec<(String, String)>> {
        let info = self.clusters().await?;
        let leaders: Vec<_> = info
            .broker_addr_table
            .into_iter()
            .filter(|(_, broker)| cluster.is_none_or(|cluster| broker.cluster == cluster))
            .filter_map(|(name, mut broker)| Some((name, broker.broker_addrs.remove(&0)?)))
            .collect();
        if leaders.is_empty() { Err(Error::NoBroker(cluster.unwrap_or("*").to_owned())) } else { Ok(leaders) }
    }

    // Topics.

    /// Creates or changes a topic at every broker of `cluster`, or of all clusters.
    ///
    /// # Errors
    /// The first broker that refused; earlier ones have the topic then.
    pub async fn create_topic(&self, cluster: Option<&str>, topic: &NewTopic) -> Result<()> {
        for (_, address) in self.leaders(cluster).await? {
            self.create_topic_at(&address, topic).await?;
        }
        Ok(())
    }

    /// Creates or changes a topic at the broker with this address.
    ///
    /// # Errors
    /// Why it refused.
    pub async fn create_topic_at(&self, address: &str, topic: &NewTopic) -> Result<()> {
        let mut request = self.client.request(RequestCode::UPDATE_AND_CREATE_TOPIC);
        CreateTopicRequest {
            topic: topic.topic.clone(),
            default_topic: Some(TopicName::AUTO_CREATE.to_owned()),
            read_queue_nums: topic.queues,
            write_queue_nums: topic.queues,
            perm: topic.perm,
            topic_filter_type: Some(TopicConfig::SINGLE_TAG.to_owned()),
            topic_sys_flag: 0,
            order: topic.order,
            attributes: Some(topic.attributes.clone()),
        }
        .encode_into(&mut request.ext);
        self.client.call(address, request, CALL_TIMEOUT).await.map(drop)
    }

    /// Creates or changes several topics at the broker with this address, all by one request: all of them or none.
    ///
    /// # Errors
    /// Why it refused. A broker takes [`TOPICS_MAX`] topics at a time. Attributes that are taken away
    /// are left out: it has all that a topic is to have.
    pub async fn create_topics_at(&self, address: &str, topics: &[NewTopic]) -> Result<()> {
        let config = |topic: &NewTopic| TopicConfig {
            order: topic.order,
            attributes: added(&topic.attributes),
            ..TopicConfig::new(topic.topic.as_str(), topic.queues, topic.perm)
        };
        let body = TopicConfigList { topic_config_list: topics.iter().map(config).collect() };
        let request = self.client.request(RequestCode::UPDATE_AND_CREATE_TOPIC_LIST).with_body(body.encode());
        self.client.call(address, request, CALL_TIMEOUT).await.map(drop)
    }

    /// Deletes a topic at every broker of `cluster`, or of all clusters, and at every name server.
    ///
    /// A name server that is away learns it from the brokers.
    ///
    /// # Errors
    /// The first broker that refused, or how the last name server failed if none could be told.
    pub async fn delete_topic(&self, cluster: Option<&str>, topic: &TopicName) -> Result<()> {
        for (_, address) in self.leaders(cluster).await? {
            let mut request = self.client.request(RequestCode::DELETE_TOPIC_IN_BROKER);
            TopicRequest { topic: topic.clone() }.encode_into(&mut request.ext);
            self.client.call(&address, request, CALL_TIMEOUT).await?;
        }
        let mut told = Err(Error::NoNameServer);
        for address in self.client.name_servers() {
            let mut request = self.client.request(RequestCode::DELETE_TOPIC_IN_NAMESRV);
            DeleteTopicInNamesrvRequest { topic: topic.clone(), cluster_name: cluster.map(str::to_owned) }
                .encode_into(&mut request.ext);
            let answer = self.client.call(address, request, CALL_TIMEOUT).await;
            told = told.or_else(|_| answer.map(drop));
        }
        told
    }

    /// Names of all topics, retry and dead-letter topics included.
    ///
    /// # Errors
    /// Why no name server could say.
    pub async fn topics(&self) -> Result<Vec<String>> {
        let request = self.client.request(RequestCode::GET_ALL_TOPIC_LIST_FROM_NAMESERVER);
        Ok(TopicList::decode(&self.client.call_name_server(request).await?.body)?.topic_list)
    }

    /// Queues and brokers of a topic, as the name servers tell it.
    ///
    /// # Errors
    /// [`Error::NoRoute`] if they do not know it.
    pub async fn topic_route(&self, topic: &TopicName) -> Result<TopicRouteData> {
        let mut request = self.client.request(RequestCode::GET_ROUTEINFO_BY_TOPIC);
        RouteRequest { topic: topic.to_string(), accept_standard_json_only: true }.encode_into(&mut request.ext);
        match self.client.call_name_server(request).await {
            Ok(answer) => Ok(TopicRouteData::decode(&answer.body)?),
            Err(error) if error.code() == Some(ResponseCode::TOPIC_NOT_EXIST) => Err(Error::NoRoute(topic.to_string())),
            Err(error) => Err(error),
        }
    }

    /// How a topic is set up at the broker with this address; `None` if it is not there.
    ///
    /// # Errors
    /// Why it did not say.
    pub async fn topic_config(&self, address: &str, topic: &TopicName) -> Result<Option<TopicConfig>> {
        let mut request = self.client.request(RequestCode::GET_TOPIC_CONFIG);
        TopicRequest { topic: topic.clone() }.encode_into(&mut request.ext);
        match self.client.call(address, request, CALL_TIMEOUT).await {
            Ok(answer) => Ok(Some(TopicConfig::decode(&answer.body)?)),
            Err(error) if error.code() == Some(ResponseCode::TOPIC_NOT_EXIST) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Offsets of all queues of a topic, at all its brokers.
    ///
    /// # Errors
    /// [`Error::NoRoute`], or the first broker that did not say.
    pub async fn topic_stats(&self, topic: &TopicName) -> Result<BTreeMap<Queue, TopicOffset>> {
        let mut all = BTreeMap::new();
        for broker in self.topic_route(topic).await?.broker_datas {
            let mut request = self.client.request(RequestCode::GET_TOPIC_STATS_INFO);
            TopicRequest { topic: topic.clone() }.encode_into(&mut request.ext);
            let answer = self.client.call(&any_address(&broker)?, request, CALL_TIMEOUT).await?;
            for (queue, offset) in TopicStats::decode(&answer.body)?.offset_table.iter() {
                all.insert(Queue::from_wire(queue)?, *offset);
            }
        }
        Ok(all)
    }

    // Consumer groups.

    /// Names of all groups that were not made by the brokers for themselves.
    ///
    /// # Errors
    /// As [`Self::topics`], or the first broker that did not say.
    pub async fn groups(&self) -> Result<Vec<GroupName>> {
        let topics = self.topics().await?;
        let mut groups: BTreeSet<_> =
            topics.iter().filter_map(|topic| TopicName::parse(topic).ok()?.retry_group()).collect();
        // A group that only ever committed offsets has no retry topic.
        for (_, address) in self.leaders(None).await? {
            let configs = self.group_configs(&address).await?;
            groups.extend(configs.keys().filter_map(|name| GroupName::parse(name).ok()));
        }
        Ok(groups.into_iter().filter(|group| !group.is_system()).collect())
    }

    /// How far `group` has come in the queues of `topic`, or of all topics that it consumes.
    ///
    /// # Errors
    /// The first broker that did not say.
    pub async fn consume_stats(
        &self,
        group: &GroupName,
        topic: Option<&TopicName>,
    ) -> Result<BTreeMap<Queue, OffsetWrapper>> {
        let mut all = BTreeMap::new();
        for broker in self.group_brokers(group, topic).await? {
            let mut request = self.client.request(RequestCode::GET_CONSUME_STATS);
            ConsumeStatsRequest { group: group.clone(), topic: topic.cloned(), topic_list: None }
                .encode_into(&mut request.ext);
            let answer = self.client.call(&any_address(&broker)?, request, CALL_TIMEOUT).await?;
            for (queue, offset) in ConsumeStats::decode(&answer.body)?.offset_table.iter() {
                all.insert(Queue::from_wire(queue)?, *offset);
            }
        }
        Ok(all)
    }

    /// The members of `group`; `None` if none is connected.
    ///
    /// # Errors
    /// The first broker that did not say.
    pub async fn consumer_connection(&self, group: &GroupName) -> Result<Option<ConsumerConnection>> {
        for broker in self.group_brokers(group, None).await? {
            let mut request = self.client.request(RequestCode::GET_CONSUMER_CONNECTION_LIST);
            ConsumerGroupRequest { group: group.clone() }.encode_into(&mut request.ext);
            match self.client.call(&any_address(&broker)?, request, CALL_TIMEOUT).await {
                Ok(answer) => return Ok(Some(ConsumerConnection::decode(&answer.body)?)),
                Err(error) if error.code() == Some(ResponseCode::CONSUMER_NOT_ONLINE) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The brokers that may know `group`: those of its retry topic, else those of `topic`, else all.
    async fn group_brokers(&self, group: &GroupName, topic: Option<&TopicName>) -> Result<Vec<BrokerData>> {
        match (self.topic_route(&group.retry_topic()).await, topic) {
            (Err(Error::NoRoute(_)), Some(topic)) => Ok(self.topic_route(topic).await?.broker_datas),
            (Err(Error::NoRoute(_)), None) => Ok(self.clusters().await?.broker_addr_table.into_values().collect()),
            (route, _) => Ok(route?.broker_datas),
        }
    }

    /// Settings of all groups at the broker with this address.
    ///
    /// # Errors
    /// Why it did not say.
    pub async fn group_configs(&self, address: &str) -> Result<BTreeMap<String, SubscriptionGroupConfig>> {
        let request = self.client.request(RequestCode::GET_ALL_SUBSCRIPTIONGROUP_CONFIG);
        let answer = self.client.call(address, request, CALL_TIMEOUT).await?;
        Ok(SubscriptionGroupTable::decode(&answer.body)?.subscription_group_table)
    }

    /// Creates or changes a group at every broker of `cluster`, or of all clusters.
    ///
    /// # Errors
    /// The first broker that refused.
    pub async fn create_group(&self, cluster: Option<&str>, config: &SubscriptionGroupConfig) -> Result<()> {
        for (_, address) in self.leaders(cluster).await? {
            let request = self.client.request(RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP);
            self.client.call(&address, request.with_body(config.encode()), CALL_TIMEOUT).await?;
        }
        Ok(())
    }

    /// Deletes a group at every broker of `cluster`, or of all clusters.
    ///
    /// # Errors
    /// The first broker that refused.
    pub async fn delete_group(&self, cluster: Option<&str>, group: &GroupName, clean_offset: bool) -> Result<()> {
        for (_, address) in self.leaders(cluster).await? {
            let mut request = self.client.request(RequestCode::DELETE_SUBSCRIPTIONGROUP);
            DeleteSubscriptionGroupRequest { group: group.clone(), clean_offset }.encode_into(&mut request.ext);
            self.client.call(&address, request, CALL_TIMEOUT).await?;
        }
        Ok(())
    }

    // Messages.

    /// The message with this offset id; `None` if it is no longer there.
    ///
    /// # Errors
    /// The id is none, or the broker in it did not say.
    pub async fn message_by_offset_id(&self, id: &str) -> Result<Option<ReceivedMessage>> {
        let id: OffsetMessageId = id.parse().map_err(|_| Error::Message("this is no offset message id"))?;
        self.message_at(&id.store_host.to_string(), id.physical_offset).await
    }

    /// The message at a place in the log of the broker with this address; `None` if it is no longer there.
    ///
    /// # Errors
    /// Why the broker did not say.
    pub async fn message_at(&self, address: &str, physical_offset: i64) -> Result<Option<ReceivedMessage>> {
        let mut request = self.client.request(RequestCode::VIEW_MESSAGE_BY_ID);
        ViewMessageRequest { physical_offset }.encode_into(&mut request.ext);
        match self.client.call(address, request, CALL_TIMEOUT).await {
            Ok(answer) => Ok(ReceivedMessage::read_all(&answer.body, &Arc::from(""))?.pop()),
            Err(error) if error.code() == Some(ResponseCode::SYSTEM_ERROR) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The message with this id: the sender's, in `topic`, or an offset id.
    ///
    /// # Errors
    /// Why no broker could say.
    pub async fn message(&self, id: &str, topic: Option<&TopicName>) -> Result<Option<ReceivedMessage>> {
        // Both kinds of ids look alike, so the sender's is tried first, where there is a topic to try it in.
        if let Some(topic) = topic {
            let query = MessageQuery {
                topic: topic.clone(),
                key: id.to_owned(),
                is_message_id: true,
                messages_max: 32,
                stored: (0, i64::MAX),
            };
            if let Some(message) = self.messages(&query).await?.into_iter().next() {
                return Ok(Some(message));
            }
        }
        let id: OffsetMessageId = id.parse().map_err(|_| Error::Message("this is no offset message id"))?;
        let address = id.store_host.to_string();
        // An id of a sender reads as a nonsense address: only brokers that exist are asked.
        let is_broker = |broker: &BrokerData| broker.broker_addrs.values().any(|known| *known == address);
        let clusters = self.clusters().await?;
        if clusters.broker_addr_table.values().any(is_broker) {
            self.message_at(&address, id.physical_offset).await
        } else {
            Ok(None)
        }
    }

    /// Messages with a key, oldest first.
    ///
    /// # Errors
    /// [`Error::NoRoute`], or the first broker that did not say.
    pub async fn messages(&self, query: &MessageQuery) -> Result<Vec<ReceivedMessage>> {
        let mut found = Vec::new();
        for broker in self.topic_route(&query.topic).await?.broker_datas {
            let mut request = self.client.request(RequestCode::QUERY_MESSAGE);
            QueryMessageRequest {
                topic: query.topic.clone(),
                key: query.key.clone(),
                max_num: query.messages_max,
                begin_timestamp: query.stored.0,
                end_timestamp: query.stored.1,
                unique_key_query: query.is_message_id,
            }
            .encode_into(&mut request.ext);
            match self.client.call(&any_address(&broker)?, request, CALL_TIMEOUT).await {
                Ok(answer) => {
                    let broker_name = Arc::from(broker.broker_name.as_str());
                    found.extend(ReceivedMessage::read_all(&answer.body, &broker_name)?);
                }
                Err(error) if error.code() == Some(ResponseCode::QUERY_NOT_FOUND) => {}
                Err(error) => return Err(error),
            }
        }
        // The index knows hashes of keys only.
        found.retain(|message| {
            if query.is_message_id {
                message.message_id() == query.key
            } else {
                message.keys().any(|key| key == query.key) && query.topic == *message.topic
            }
        });
        found.sort_by_key(|message| message.store_timestamp);
        Ok(found)
    }

    /// Sends any request to any server: for what has no call of its own.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn call(&self, address: &str, request: RemotingCommand) -> Result<RemotingCommand> {
        self.client.call(address, request, CALL_TIMEOUT).await
    }
}

/// The leader's address, else that of any replica.
fn any_address(broker: &BrokerData) -> Result<String> {
    let address = broker.broker_addrs.get(&0).or_else(|| broker.broker_addrs.values().next());
    address.cloned().ok_or_else(|| Error::NoBroker(broker.broker_name.clone()))
}

/// The attributes that a list of changes, such as `+key=value,-key`, adds.
fn added(changes: &str) -> BTreeMap<String, String> {
    let added = changes.split(',').filter_map(|change| change.trim().strip_prefix('+')?.split_once('='));
    added.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}
