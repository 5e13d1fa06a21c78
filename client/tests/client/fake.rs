//! A broker that keeps everything in memory and fails on demand, behind a real name server.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Weak;
use std::time::Duration;

use bytes::Bytes;
use bytes::BytesMut;
use client::Client;
use client::ClientOptions;
use namesrv::NamesrvHandle;
use parking_lot::Mutex;
use protocol::GroupName;
use protocol::RemotingCommand;
use protocol::RequestCode;
use protocol::ResponseCode;
use protocol::TopicName;
use protocol::body::ConsumerList;
use protocol::body::HeartbeatData;
use protocol::body::LockRequest;
use protocol::body::LockResponse;
use protocol::body::RegisterBrokerBody;
use protocol::body::TopicConfig;
use protocol::header::ConsumerGroupRequest;
use protocol::header::PullRequest;
use protocol::header::PullResponse;
use protocol::header::QueryConsumerOffsetRequest;
use protocol::header::QueueRequest;
use protocol::header::SendBackRequest;
use protocol::header::SendRequest;
use protocol::header::SendResponse;
use protocol::header::UnregisterClientRequest;
use protocol::header::UpdateConsumerOffsetRequest;
use protocol::message::NewMessage;
use protocol::message::OffsetMessageId;
use protocol::message::RecordView;
use protocol::message::SysFlag;
use protocol::message::decode_batch;
use protocol::message::encode_record;
use remoting::Channel;
use remoting::ChannelOptions;
use remoting::Connection;
use remoting::Handler;
use remoting::Ignore;
use remoting::Options;
use remoting::Responder;
use remoting::Server;
use remoting::ServerHandle;

pub(crate) const LONG: Duration = Duration::from_secs(20);
const QUEUES: i32 = 2;

/// A name server and brokers `broker-0`, `broker-1`, ...
pub(crate) struct Cluster {
    pub(crate) namesrv: NamesrvHandle,
    pub(crate) brokers: Vec<Broker>,
}

pub(crate) struct Broker {
    pub(crate) state: Arc<Mutex<State>>,
    name: String,
    address: SocketAddr,
    server: Option<ServerHandle>,
    registration: Channel,
    topics: BTreeSet<String>,
}

type QueueKey = (String, i32);

/// What happens to the next sends, first in first out.
pub(crate) enum Fault {
    /// Answer this code with this remark.
    Refuse(ResponseCode, &'static str),
    /// Store it and close the connection.
    StoreAndHangUp,
}

#[derive(Default)]
pub(crate) struct State {
    this: Option<Weak<Mutex<State>>>,
    store_host: Option<SocketAddr>,
    pub(crate) queues: HashMap<QueueKey, Vec<Bytes>>,
    log: i64,
    pub(crate) offsets: HashMap<(String, String, i32), i64>,
    pub(crate) members: BTreeMap<String, BTreeMap<String, Connection>>,
    pub(crate) sent_back: Vec<String>,
    locks: HashMap<(String, String, i32), String>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) sends: usize,
    held: Vec<(RemotingCommand, Responder)>,
}

impl Cluster {
    pub(crate) async fn start(brokers: usize, topics: &[&str]) -> Self {
        let local = || remoting::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let namesrv = namesrv::serve(local(), namesrv::Options::default()).unwrap();
        let mut cluster = Self { brokers: Vec::new(), namesrv };
        for number in 0..brokers {
            let listener = local();
            let address = listener.local_addr().unwrap();
            let state = Arc::new(Mutex::new(State::default()));
            state.lock().this = Some(Arc::downgrade(&state));
            state.lock().store_host = Some(address);
            let server = serve(&state, listener);
            let registration =
                Channel::new(cluster.namesrv.local_addr().to_string(), ChannelOptions::default(), Arc::new(Ignore));
            let topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
            let name = format!("broker-{number}");
            let mut broker = Broker { state, name, address, server: Some(server), registration, topics };
            broker.register().await;
            cluster.brokers.push(broker);
        }
        cluster
    }

    pub(crate) fn options(&self) -> ClientOptions {
        ClientOptions::new(&self.namesrv.local_addr().to_string()).unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        Client::start(self.options())
    }

    /// Bodies of everything stored in `topic`, by broker and queue.
    pub(crate) fn stored(&self, topic: &str) -> Vec<Vec<String>> {
        let mut all = Vec::new();
        for broker in &self.brokers {
            let state = broker.state.lock();
            for queue in 0..QUEUES {
                let records = state.queues.get(&(topic.to_owned(), queue)).cloned().unwrap_or_default();
                all.push(records.iter().map(body).collect());
            }
        }
        all
    }
}

fn body(record: &Bytes) -> String {
    String::from_utf8(RecordView::parse(record).unwrap().body().to_vec()).unwrap()
}

fn serve(state: &Arc<Mutex<State>>, listener: std::net::TcpListener) -> ServerHandle {
    Server::new(Options::default(), Arc::new(Handle(Arc::clone(state)))).start(listener).unwrap()
}

impl Broker {
    pub(crate) async fn register(&mut self) {
        let mut body = RegisterBrokerBody::default();
        body.topics.data_version.counter = i64::try_from(self.topics.len()).unwrap();
        for topic in &self.topics {
            let queues = if topic.starts_with("%RETRY%") { 1 } else { QUEUES };
            let perm = if topic == TopicName::AUTO_CREATE { 7 } else { 6 };
            body.topics.topic_config_table.insert(topic.clone(), TopicConfig::new(topic, queues, perm));
        }
        let request = RemotingCommand::request(RequestCode::REGISTER_BROKER)
            .with_ext("brokerName", &self.name)
            .with_ext("brokerAddr", self.address)
            .with_ext("clusterName", "C")
            .with_ext("brokerId", 0)
            .with_ext("gantryTerm", 1)
            .with_ext("gantryNode", 1)
            .with_ext("gantryLeader", 1)
            .with_body(body.encode());
        assert!(self.registration.call(request, LONG).await.unwrap().is_success());
    }

    pub(crate) async fn add_topic(&mut self, topic: &str) {
        self.topics.insert(topic.to_owned());
        self.register().await;
    }

    pub(crate) async fn stop(&mut self) {
        self.state.lock().held.clear();
        self.server.take().unwrap().shutdown(LONG).await;
    }

    pub(crate) fn start_again(&mut self) {
        let listener = remoting::bind(self.address).unwrap();
        self.server = Some(serve(&self.state, listener));
    }
}

struct Handle(Arc<Mutex<State>>);

impl Handler for Handle {
    fn handle(&self, request: RemotingCommand, responder: Responder) {
        self.0.lock().process(request, responder);
    }

    fn closed(&self, connection: &Connection) {
        let mut state = self.0.lock();
        state.held.retain(|(_, responder)| responder.is_wanted());
        for members in state.members.values_mut() {
            members.retain(|_, member| member.id() != connection.id());
        }
    }
}

impl State {
    fn process(&mut self, request: RemotingCommand, responder: Responder) {
        let success = || RemotingCommand::response_to(&request, ResponseCode::SUCCESS);
        match request.request_code() {
            RequestCode::SEND_MESSAGE_V2 | RequestCode::SEND_BATCH_MESSAGE => self.send(&request, responder),
            RequestCode::PULL_MESSAGE => {
                // Only now: when a held pull goes on, its offset may be old.
                let header = PullRequest::decode(&request).unwrap();
                if header.commits_offset() {
                    let key = (header.group.to_string(), header.topic.to_string(), header.queue_id);
                    self.offsets.insert(key, header.commit_offset);
                }
                self.pull(request, responder);
            }
            RequestCode::QUERY_CONSUMER_OFFSET => {
                let header = QueryConsumerOffsetRequest::decode(&request).unwrap();
                let key = (header.group.to_string(), header.topic.to_string(), header.queue_id);
                responder.send(match self.offsets.get(&key) {
                    Some(offset) => success().with_ext("offset", offset),
                    None => RemotingCommand::response_to(&request, ResponseCode::QUERY_NOT_FOUND),
                });
            }
            RequestCode::UPDATE_CONSUMER_OFFSET => {
                let header = UpdateConsumerOffsetRequest::decode(&request).unwrap();
                let key = (header.group.to_string(), header.topic.to_string(), header.queue_id);
                self.offsets.insert(key, header.commit_offset);
                responder.send(success());
            }
            RequestCode::GET_MIN_OFFSET => responder.send(success().with_ext("offset", 0)),
            RequestCode::GET_MAX_OFFSET => {
                let QueueRequest { topic, queue_id } = QueueRequest::decode(&request).unwrap();
                let max = self.queues.get(&(topic.to_string(), queue_id)).map_or(0, Vec::len);
                responder.send(success().with_ext("offset", max));
            }
            RequestCode::HEART_BEAT => {
                let data = HeartbeatData::decode(&request.body).unwrap();
                let connection = responder.connection().unwrap().clone();
                for consumer in data.consumers {
                    let members = self.members.entry(consumer.group.clone()).or_default();
                    if members.insert(data.client_id.clone(), connection.clone()).is_none() {
                        notify(&consumer.group, members);
                    }
                }
                responder.send(success());
            }
            RequestCode::UNREGISTER_CLIENT => {
                let header = UnregisterClientRequest::decode(&request).unwrap();
                if let Some(group) = header.consumer_group {
                    let members = self.members.entry(group.to_string()).or_default();
                    members.remove(&header.client_id);
                    notify(&group, members);
                }
                responder.send(success());
            }
            RequestCode::GET_CONSUMER_LIST_BY_GROUP => {
                let group = ConsumerGroupRequest::decode(&request).unwrap().group;
                let members = self.members.get(&*group).map(|members| members.keys().cloned().collect());
                let body = ConsumerList { consumer_id_list: members.unwrap_or_default() };
                responder.send(success().with_body(body.encode()));
            }
            RequestCode::CONSUMER_SEND_MSG_BACK => {
                let header = SendBackRequest::decode(&request).unwrap();
                let record = self
                    .queues
                    .values()
                    .flatten()
                    .find(|record| RecordView::parse(record).unwrap().physical_offset() == header.physical_offset);
                let record = record.unwrap().clone();
                let view = RecordView::parse(&record).unwrap();
                self.sent_back.push(body(&record));
                let retry = header.group.retry_topic();
                let message = NewMessage {
                    topic: &retry,
                    queue_id: 0,
                    reconsume_times: view.reconsume_times() + 1,
                    properties: &format!("{}RETRY_TOPIC\u{1}{}\u{2}", view.properties().as_str(), view.topic()),
                    ..view.to_new_message()
                };
                self.append(&message);
                responder.send(success());
            }
            RequestCode::LOCK_BATCH_MQ => {
                let body = LockRequest::decode(&request.body).unwrap();
                let mut locked = Vec::new();
                for queue in body.mq_set {
                    let key = (body.consumer_group.clone(), queue.topic.clone(), queue.queue_id);
                    if *self.locks.entry(key).or_insert_with(|| body.client_id.clone()) == body.client_id {
                        locked.push(queue);
                    }
                }
                responder.send(success().with_body(LockResponse { locked }.encode()));
            }
            RequestCode::UNLOCK_BATCH_MQ => {
                let body = LockRequest::decode(&request.body).unwrap();
                for queue in body.mq_set {
                    self.locks.remove(&(body.consumer_group.clone(), queue.topic, queue.queue_id));
                }
                responder.send(success());
            }
            _ => panic!("the fake broker does not know {}", request.code),
        }
    }

    fn send(&mut self, request: &RemotingCommand, responder: Responder) {
        self.sends += 1;
        let fault = (!self.faults.is_empty()).then(|| self.faults.remove(0));
        if let Some(Fault::Refuse(code, remark)) = fault {
            return responder.send(RemotingCommand::response_to(request, code).with_remark(remark));
        }
        let header = SendRequest::decode(request).unwrap();
        let now = NewMessage {
            topic: &header.topic,
            queue_id: header.queue_id,
            flag: header.flag,
            sys_flag: SysFlag(header.sys_flag),
            born_timestamp: header.born_timestamp,
            born_host: responder.peer_addr(),
            store_timestamp: header.born_timestamp,
            store_host: self.store_host.unwrap(),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &request.body,
            properties: header.properties,
        };
        let (queue_offset, physical_offset) = if header.batch {
            let mut first = None;
            for item in decode_batch(&request.body) {
                let item = item.unwrap();
                let stored = self.append(&NewMessage { body: item.body, properties: item.properties, ..now });
                first.get_or_insert(stored);
            }
            first.unwrap()
        } else {
            self.append(&now)
        };
        if matches!(fault, Some(Fault::StoreAndHangUp)) {
            return responder.connection().unwrap().close();
        }
        let id = OffsetMessageId { store_host: self.store_host.unwrap(), physical_offset }.to_string();
        let mut answer = RemotingCommand::response_to(request, ResponseCode::SUCCESS);
        SendResponse {
            msg_id: &id,
            queue_id: header.queue_id,
            queue_offset,
            transaction_id: None,
            region: None,
            trace_on: None,
            recall_handle: None,
        }
        .encode_into(&mut answer.ext);
        responder.send(answer);
    }

    fn append(&mut self, message: &NewMessage<'_>) -> (i64, i64) {
        let queue = self.queues.entry((message.topic.to_owned(), message.queue_id)).or_default();
        let queue_offset = i64::try_from(queue.len()).unwrap();
        let physical_offset = self.log;
        let mut record = BytesMut::new();
        self.log += i64::try_from(encode_record(message, &mut record).unwrap()).unwrap();
        protocol::message::patch_offsets(&mut record, queue_offset, physical_offset).unwrap();
        queue.push(record.freeze());
        for (request, responder) in std::mem::take(&mut self.held) {
            self.pull(request, responder);
        }
        (queue_offset, physical_offset)
    }

    fn pull(&mut self, request: RemotingCommand, responder: Responder) {
        let header = PullRequest::decode(&request).unwrap();
        let queue = self.queues.get(&(header.topic.to_string(), header.queue_id)).map_or(&[][..], Vec::as_slice);
        let max_offset = i64::try_from(queue.len()).unwrap();
        let answer = |code, next_begin_offset| {
            let mut answer = RemotingCommand::response_to(&request, code);
            PullResponse { suggest_which_broker_id: 0, next_begin_offset, min_offset: 0, max_offset }
                .encode_into(&mut answer.ext);
            answer
        };
        if header.queue_offset > max_offset {
            return responder.send(answer(ResponseCode::PULL_OFFSET_MOVED, max_offset));
        }
        if header.queue_offset == max_offset {
            if header.may_suspend() {
                let this = self.this.clone().unwrap();
                let hold = Duration::from_millis(u64::try_from(header.suspend_timeout_millis).unwrap());
                let (opaque, peer) = (request.opaque, responder.peer_addr());
                tokio::spawn(async move {
                    tokio::time::sleep(hold).await;
                    let Some(this) = this.upgrade() else { return };
                    let mut state = this.lock();
                    let is_it = |(request, responder): &mut (RemotingCommand, Responder)| {
                        request.opaque == opaque && responder.peer_addr() == peer
                    };
                    let due: Vec<_> = state.held.extract_if(.., is_it).collect();
                    for (request, responder) in due {
                        let answer = RemotingCommand::response_to(&request, ResponseCode::PULL_NOT_FOUND);
                        let header = PullRequest::decode(&request).unwrap();
                        let mut answer = answer;
                        PullResponse {
                            suggest_which_broker_id: 0,
                            next_begin_offset: header.queue_offset,
                            min_offset: 0,
                            max_offset: header.queue_offset,
                        }
                        .encode_into(&mut answer.ext);
                        responder.send(answer);
                    }
                });
                return self.held.push((request, responder));
            }
            return responder.send(answer(ResponseCode::PULL_NOT_FOUND, max_offset));
        }
        let first = usize::try_from(header.queue_offset).unwrap();
        let count = usize::try_from(header.max_msg_nums).unwrap();
        let parts: Vec<_> = queue[first..].iter().take(count).cloned().collect();
        let next = header.queue_offset + i64::try_from(parts.len()).unwrap();
        responder.send_parts(answer(ResponseCode::SUCCESS, next), parts);
    }
}

fn notify(group: &str, members: &BTreeMap<String, Connection>) {
    for member in members.values() {
        let request = RemotingCommand::request(RequestCode::NOTIFY_CONSUMER_IDS_CHANGED);
        drop(member.send_oneway(request.with_ext("consumerGroup", group)));
    }
}

pub(crate) fn topic(name: &str) -> TopicName {
    TopicName::parse(name).unwrap()
}

pub(crate) fn group(name: &str) -> GroupName {
    GroupName::parse(name).unwrap()
}
