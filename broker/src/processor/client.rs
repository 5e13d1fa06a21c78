//! Who is connected: codes 34, 35, 38, 46, 203, 204, 328, and what is passed on to a client: 221, 223, 307, 309.
//!
//! Every replica answers these from its own table of clients. What a heartbeat needs to exist, a subscription group and
//! its retry topic, only the leader creates, and never before the heartbeat is answered: a client that is not answered
//! gives up the connection.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::body::{
    CheckClientConfig, Connection as ConnectionBody, ConsumerConnection, ConsumerData, ConsumerList, ConsumerStatus,
    HeartbeatData, MessageModel, ProducerConnection, ProducerInfo, ProducerTable, SubscriptionData,
};
use protocol::header::{
    ConsumeDirectlyRequest, ConsumerGroupRequest, ConsumerRunningInfoRequest, ConsumerStatusRequest,
    ProducerGroupRequest, UnregisterClientRequest,
};
use protocol::message::OffsetMessageId;
use protocol::{GroupName, LanguageCode, RemotingCommand, RequestCode, ResponseCode, TopicName};
use remoting::{Connection, Responder};

use super::answer::{Failure, Outcome, success};
use super::filter;
use super::pull::filter_failure;
use super::{Group, now, send};
use crate::client_table::{ClientView, ConsumerBeat, Heartbeat, Link, Members, Subscription, TableCopy};
use crate::forward::Place;
use crate::state_machine::command::PutMode;
use crate::state_machine::{Command, GroupConfig};

/// How long a client may take for a request that is passed on to it.
const RELAY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a change of a group's members is kept before they are told.
///
/// A client tells the leaders of broker groups one after the other that it comes or goes, and a member that is told asks
/// any one of them who the others are. Told at once, it asks one that does not know yet, and takes back for a moment what
/// it has just given away; the C++ client does not survive that when a pull of such a queue is held.
const NOTICE_DELAY: Duration = Duration::from_millis(100);

/// Longest client id.
const CLIENT_ID_BYTES_MAX: usize = 512;

impl Group {
    pub(super) fn heartbeat(&self, request: &RemotingCommand, responder: &Responder) -> Outcome {
        let body = HeartbeatData::decode(&request.body)?;
        if body.client_id.is_empty() || body.client_id.len() > CLIENT_ID_BYTES_MAX {
            return Err(Failure::error("the heartbeat has no client id, or one that is too long"));
        }
        let connection = responder.connection().ok_or_else(|| Failure::error("a heartbeat is not passed on"))?;
        let link = Link {
            connection: connection.id().as_u64(),
            handle: connection.clone(),
            remote: connection.peer_addr(),
            language: request.language.name().to_owned(),
            version: request.version,
        };
        let beat = read_heartbeat(body)?;
        let consumers: Vec<GroupName> = beat.consumers.iter().map(|consumer| consumer.group.clone()).collect();
        let changed = self.0.clients.heartbeat(beat, &link, now());
        let changed = changed.map_err(|error| {
            Failure::refused(ResponseCode::SERVICE_NOT_AVAILABLE, format!("not registered: {error}"))
        })?;
        self.notify(&changed);
        for group in consumers {
            self.ensure_group(group);
        }
        // Asking for subscriptions again each time keeps clients off the short form of heartbeats.
        Ok(success(request).with_ext("IS_SUPPORT_HEART_BEAT_V2", "false").with_ext("IS_SUB_CHANGE", "true"))
    }

    pub(super) fn unregister_client(&self, request: &RemotingCommand) -> Outcome {
        let header = UnregisterClientRequest::decode(request)?;
        let (producer, consumer) = (header.producer_group.as_ref(), header.consumer_group.as_ref());
        let changed = self.0.clients.unregister(&header.client_id, producer, consumer, now());
        self.notify(&changed);
        Ok(success(request))
    }

    /// Forgets the clients and the held pulls of a connection.
    pub(super) fn connection_closed(&self, connection: &Connection) {
        let id = connection.id().as_u64();
        self.0.holds.closed(id);
        let changed = self.0.clients.closed(id, now());
        self.notify(&changed);
    }

    /// Tells the members of groups, [`NOTICE_DELAY`] from now, that they must share out their queues anew. Only the leader
    /// does, so that each is told once.
    pub(super) fn notify(&self, groups: &[GroupName]) {
        for group in groups {
            if !self.0.noticing.lock().insert(group.clone()) {
                continue;
            }
            let (this, group) = (self.clone(), group.clone());
            self.0.tasks.spawn(async move {
                tokio::select! {
                    () = this.0.stop.cancelled() => return,
                    () = tokio::time::sleep(NOTICE_DELAY) => {}
                }
                // First this: a change after the members were read gives another notice.
                this.0.noticing.lock().remove(&group);
                this.tell_members(group);
            });
        }
    }

    fn tell_members(&self, group: GroupName) {
        if !matches!(self.place(), Place::Here { .. }) {
            return;
        }
        let wanted = self.0.state.group(&group).is_none_or(|config| config.notify_consumer_ids_changed_enable);
        let Some((MessageModel::Clustering, members)) = self.0.clients.handles(&group).filter(|_| wanted) else {
            return;
        };
        let mut notice = RemotingCommand::oneway(RequestCode::NOTIFY_CONSUMER_IDS_CHANGED);
        ConsumerGroupRequest { group }.encode_into(&mut notice.ext);
        for member in members {
            // A member that cannot be told finds out by itself within 20 s.
            let _ = member.send_oneway(notice.clone());
        }
    }

    /// Sees to it that a consumer group and its retry topic exist, if this replica leads.
    pub(super) fn ensure_group(&self, group: GroupName) {
        if group.is_system() || !matches!(self.place(), Place::Here { .. }) {
            return;
        }
        let config = self.0.state.group(&group);
        let has_topic = self.0.state.topic(&group.retry_topic()).is_some();
        let complete = config.as_ref().is_some_and(|config| has_topic || config.retry_queues == 0);
        if complete || (config.is_none() && !self.live().auto_create_groups) {
            return;
        }
        if !self.0.creating.lock().insert(group.clone()) {
            return;
        }
        let this = self.clone();
        self.0.tasks.spawn(async move {
            if let Err(failure) = this.create_group(&group, config).await {
                tracing::debug!(%group, ?failure, "consumer group is not created now: its next heartbeat tries again");
            }
            this.0.creating.lock().remove(&group);
        });
    }

    /// Creates a consumer group, if `config` does not say that it is there, and its retry topic.
    pub(super) async fn create_group(
        &self,
        group: &GroupName,
        config: Option<Arc<GroupConfig>>,
    ) -> Result<(), Failure> {
        let config = match config {
            Some(config) => config,
            None => {
                let config = GroupConfig::new(group.clone());
                let (groups, stamped_ms) = (vec![config.clone()], self.stamp_ms());
                self.propose(Command::PutGroups { groups, mode: PutMode::CreateOnly, stamped_ms }).await?;
                tracing::info!(%group, "consumer group is created on demand");
                Arc::new(config)
            }
        };
        if config.retry_queues > 0 {
            self.create_topic(send::retry_topic(&config)).await?;
        }
        Ok(())
    }

    pub(super) fn consumer_list(&self, request: &RemotingCommand) -> Outcome {
        let header = ConsumerGroupRequest::decode(request)?;
        let remark = match self.0.clients.members(&header.group, now().instant) {
            Members::Known(consumer_id_list) => {
                return Ok(success(request).with_body(ConsumerList { consumer_id_list }.encode()));
            }
            Members::Nobody => format!("no consumer for this group, {}", header.group),
            Members::Unknown => format!("the consumers of this group are not known yet, {}", header.group),
        };
        // Go takes any answer without a list for an empty list, and gives up its queues; without an answer it skips
        // the round. The others skip it on this code.
        if request.language == LanguageCode::Go {
            return Err(Failure::Silence);
        }
        Err(Failure::error(remark))
    }

    pub(super) fn check_client_config(&self, request: &RemotingCommand) -> Outcome {
        let body = CheckClientConfig::decode(&request.body)?;
        let subscription = body.subscription_data;
        filter::parse(&subscription.expression, Some(&subscription.expression_type)).map_err(filter_failure)?;
        Ok(success(request))
    }

    pub(super) fn consumer_connections(&self, request: &RemotingCommand) -> Outcome {
        let header = ConsumerGroupRequest::decode(request)?;
        let group = self.0.clients.consumer_group(&header.group).ok_or_else(|| {
            Failure::refused(
                ResponseCode::CONSUMER_NOT_ONLINE,
                format!("the consumer group[{}] not online", header.group),
            )
        })?;
        let subscriptions = group.subscriptions.iter();
        let body = ConsumerConnection {
            connection_set: group.members.iter().map(connection_body).collect(),
            consume_from_where: group.consume_from_where,
            consume_type: group.consume_type,
            message_model: group.message_model,
            subscription_table: subscriptions.map(|s| (s.topic.as_str().to_owned(), subscription_body(s))).collect(),
        };
        Ok(success(request).with_body(body.encode()))
    }

    pub(super) fn producer_connections(&self, request: &RemotingCommand) -> Outcome {
        let header = ProducerGroupRequest::decode(request)?;
        let members = self.0.clients.producer_group(&header.group);
        if members.is_empty() {
            return Err(Failure::error(format!("the producer group[{}] not exist", header.group)));
        }
        let body = ProducerConnection { connection_set: members.iter().map(connection_body).collect() };
        Ok(success(request).with_body(body.encode()))
    }

    pub(super) fn all_producers(&self, request: &RemotingCommand) -> Outcome {
        let info = |client: ClientView<Connection>| ProducerInfo {
            remote_ip: format!("/{}", client.remote),
            client_id: client.client_id,
            language: client.language,
            last_update_timestamp: client.last_heartbeat_ms,
            version: client.version,
        };
        let groups = self.0.clients.producer_groups().into_iter();
        let data = groups.map(|(group, members)| (group.as_str().to_owned(), members.into_iter().map(info).collect()));
        Ok(success(request).with_body(ProducerTable { data: data.collect() }.encode()))
    }

    /// Whether a request is answered by a client and not by the broker.
    pub(super) fn is_relayed(code: RequestCode) -> bool {
        matches!(
            code,
            RequestCode::GET_CONSUMER_RUNNING_INFO
                | RequestCode::CONSUME_MESSAGE_DIRECTLY
                | RequestCode::GET_CONSUMER_STATUS_FROM_CLIENT
                | RequestCode::INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        )
    }

    pub(super) async fn relay(&self, request: &RemotingCommand) -> Outcome {
        match request.request_code() {
            RequestCode::GET_CONSUMER_RUNNING_INFO => {
                let header = ConsumerRunningInfoRequest::decode(request)?;
                self.ask_client(request, &header.group, &header.client_id, request.ext.clone(), Bytes::new()).await
            }
            RequestCode::CONSUME_MESSAGE_DIRECTLY => self.consume_directly(request).await,
            _ => self.consumer_status(request).await,
        }
    }

    async fn consume_directly(&self, request: &RemotingCommand) -> Outcome {
        let header = ConsumeDirectlyRequest::decode(request)?;
        let client_id = header.client_id.as_deref().unwrap_or_default();
        let id: Option<OffsetMessageId> = header.msg_id.as_deref().and_then(|id| id.parse().ok());
        let place = id.and_then(|id| u64::try_from(id.physical_offset).ok());
        let body = match place {
            Some(place) => {
                let found = self.0.store.message_at(place).map_err(|error| Failure::error(error.to_string()))?;
                found.ok_or_else(|| Failure::error(format!("can not find message by the offset, {place}")))?
            }
            None => request.body.clone(),
        };
        let mut ext = request.ext.clone();
        ext.push("brokerName", &self.0.settings.broker_name);
        self.ask_client(request, &header.group, client_id, ext, body).await
    }

    /// Passes a request on to one consumer and its answer back.
    async fn ask_client(
        &self,
        request: &RemotingCommand,
        group: &GroupName,
        client_id: &str,
        ext: protocol::ExtFields,
        body: Bytes,
    ) -> Outcome {
        let handle = self.0.clients.consumer(group, client_id).and_then(|client| client.handle);
        let Some(handle) = handle else {
            return Err(Failure::error(format!("The Consumer <{group}> <{client_id}> not online")));
        };
        let mut question = RemotingCommand::request(request.request_code());
        question.ext = ext;
        question.body = body;
        match handle.call(question, RELAY_TIMEOUT).await {
            Ok(mut answer) => {
                answer.opaque = request.opaque;
                answer.form = request.form;
                Ok(answer)
            }
            Err(error) => Err(Failure::refused(
                ResponseCode::CONSUME_MSG_TIMEOUT,
                format!("consumer <{group}> <{client_id}>: {error}"),
            )),
        }
    }

    /// What the members of a group say they have consumed.
    async fn consumer_status(&self, request: &RemotingCommand) -> Outcome {
        let header = ConsumerStatusRequest::decode(request)?;
        let wanted = header.client_addr.as_deref().filter(|client_id| !client_id.is_empty());
        let group = self.0.clients.consumer_group(&header.group);
        let Some(group) = group else {
            return Err(Failure::error(format!("The consumer group <{}> not exist", header.group)));
        };
        let members = group.members.into_iter();
        let asked = members.filter(|member| wanted.is_none_or(|client_id| client_id == member.client_id));
        let calls = asked.filter_map(|member| {
            let handle = member.handle?;
            let mut question = RemotingCommand::request(RequestCode::GET_CONSUMER_STATUS_FROM_CLIENT);
            header.encode_into(&mut question.ext);
            Some(async move { (member.client_id, handle.call(question, RELAY_TIMEOUT).await) })
        });
        let mut consumer_table = BTreeMap::new();
        for (client_id, answer) in futures::future::join_all(calls).await {
            let Ok(answer) = answer else { continue };
            if let Ok(status) = ConsumerStatus::decode(&answer.body) {
                consumer_table.insert(client_id, status.message_queue_table);
            }
        }
        if consumer_table.is_empty() {
            return Err(Failure::error(format!("no member of the consumer group <{}> has answered", header.group)));
        }
        let body = ConsumerStatus { consumer_table, ..ConsumerStatus::default() };
        Ok(success(request).with_body(body.encode()))
    }

    /// The table of clients for a replica that has just started; empty while this one may be partial itself.
    pub(super) fn export_clients(&self) -> Bytes {
        let copy = self.0.clients.export(now().instant);
        copy.and_then(|copy| serde_json::to_vec(&copy).ok()).map_or_else(Bytes::new, Bytes::from)
    }

    /// Copies the table of clients of a peer; says whether it had one.
    pub(super) async fn import_clients(&self, from: u64) -> bool {
        const COPY_TIMEOUT: Duration = Duration::from_secs(2);
        let group = &self.0.settings.broker_name;
        let copied = self.0.peers.copy_client_table(group, from, Bytes::new(), COPY_TIMEOUT).await;
        let Ok(copy) = copied else { return false };
        match serde_json::from_slice::<TableCopy>(&copy) {
            Ok(copy) => {
                let changed = self.0.clients.import(copy, now());
                self.notify(&changed);
                true
            }
            Err(error) => {
                if !copy.is_empty() {
                    tracing::warn!(from, %error, "a peer's table of clients cannot be read");
                }
                false
            }
        }
    }
}

/// Checks the names in a heartbeat.
fn read_heartbeat(body: HeartbeatData) -> Result<Heartbeat, Failure> {
    let mut producers = Vec::with_capacity(body.producers.len());
    for producer in body.producers {
        // Clients make up names for producers of their own; one that is too long matters to nobody.
        producers.extend(GroupName::parse(&producer.group));
    }
    let mut consumers = Vec::with_capacity(body.consumers.len());
    for consumer in body.consumers {
        consumers.push(read_consumer(consumer)?);
    }
    Ok(Heartbeat { client_id: body.client_id, producers, consumers })
}

fn read_consumer(consumer: ConsumerData) -> Result<ConsumerBeat, Failure> {
    let mut topics = HashSet::new();
    let mut subscriptions = Vec::with_capacity(consumer.subscriptions.len());
    for data in consumer.subscriptions {
        let topic = TopicName::parse(&data.topic)?;
        if !topics.insert(topic.clone()) {
            continue;
        }
        let filter = filter::parse(&data.expression, Some(&data.expression_type)).ok();
        subscriptions.push(Subscription {
            topic,
            expression: data.expression,
            expression_type: data.expression_type,
            version: data.version,
            filter,
        });
    }
    Ok(ConsumerBeat {
        group: GroupName::parse(&consumer.group)?,
        consume_type: consumer.consume_type,
        message_model: consumer.message_model,
        consume_from_where: consumer.consume_from_where,
        subscriptions,
    })
}

fn connection_body(client: &ClientView<Connection>) -> ConnectionBody {
    ConnectionBody {
        client_addr: plain(client.remote),
        client_id: client.client_id.clone(),
        language: client.language.clone(),
        version: client.version,
    }
}

fn plain(address: SocketAddr) -> String {
    send::plain_address(address).to_string()
}

/// A subscription in the form clients sent it.
pub(super) fn subscription_body(subscription: &Subscription) -> SubscriptionData {
    let topic = subscription.topic.as_str();
    let mut data = SubscriptionData::by_tags(topic, &subscription.expression, subscription.version);
    if !filter::is_tag_type(Some(&subscription.expression_type)) {
        data.expression_type.clone_from(&subscription.expression_type);
        data.tags.clear();
    }
    data
}
