//! Request code -> answer.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fmt;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;
use std::time::Instant;

use parking_lot::Mutex;
use protocol::BodyError;
use protocol::FieldError;
use protocol::RemotingCommand;
use protocol::RequestCode;
use protocol::ResponseCode;
use protocol::body::BrokerData;
use protocol::body::BrokerMemberGroup;
use protocol::body::ClusterInfo;
use protocol::body::DataVersion;
use protocol::body::KvTable;
use protocol::body::QueueData;
use protocol::body::RegisterBrokerBody;
use protocol::body::TopicList;
use protocol::body::TopicRouteData;
use protocol::body::encode_config_text;
use protocol::header::AddWritePermResponse;
use protocol::header::BrokerHeartbeatRequest;
use protocol::header::BrokerIdentityRequest;
use protocol::header::BrokerMemberGroupRequest;
use protocol::header::BrokerNameRequest;
use protocol::header::ClusterRequest;
use protocol::header::DeleteTopicInNamesrvRequest;
use protocol::header::KvListRequest;
use protocol::header::KvRequest;
use protocol::header::KvResponse;
use protocol::header::PutKvRequest;
use protocol::header::QueryDataVersionResponse;
use protocol::header::RegisterBrokerRequest;
use protocol::header::RegisterBrokerResponse;
use protocol::header::RegisterTopicRequest;
use protocol::header::RouteRequest;
use protocol::header::WipeWritePermResponse;
use remoting::Connection;
use remoting::Handler;
use remoting::Responder;

use crate::figures::Figures;
use crate::figures::Requests;
use crate::kv_config::KvConfig;
use crate::kv_config::ORDER_TOPIC_CONFIG;
use crate::route_table::Broker;
use crate::route_table::Link;
use crate::route_table::Rank;
use crate::route_table::Registered;
use crate::route_table::Registration;
use crate::route_table::RouteTable;
use crate::route_table::Table;
use crate::route_table::Topic;
use crate::route_table::Version;

/// Where Java clients send people whose topic is not there.
const NO_ROUTE: &str = "No topic route info in name server for the topic: ";

/// `topicSysFlag` bits.
const UNIT: u32 = 1;
const UNIT_SUB: u32 = 2;

/// Answers the requests of clients, tools and brokers.
pub(crate) struct Processor {
    state: Mutex<State>,
    broker_silent_max: Duration,
    address: OnceLock<SocketAddr>,
    requests: Requests,
}

#[derive(Debug, Default)]
struct State {
    routes: RouteTable,
    kv: KvConfig,
}

/// Why a request is answered with an error.
struct Refusal {
    code: ResponseCode,
    remark: String,
}

impl Refusal {
    fn new(code: ResponseCode, remark: impl Display) -> Self {
        Self { code, remark: remark.to_string() }
    }
}

impl From<FieldError> for Refusal {
    fn from(error: FieldError) -> Self {
        Self::new(ResponseCode::SYSTEM_ERROR, error)
    }
}

impl From<BodyError> for Refusal {
    fn from(error: BodyError) -> Self {
        Self::new(ResponseCode::SYSTEM_ERROR, error)
    }
}

type Answer = Result<RemotingCommand, Refusal>;

impl Processor {
    pub(crate) fn new(broker_silent_max: Duration) -> Self {
        Self {
            state: Mutex::new(State::default()),
            broker_silent_max,
            address: OnceLock::new(),
            requests: Requests::default(),
        }
    }

    /// Tells where this name server listens, for tools that ask for its settings.
    pub(crate) fn set_address(&self, address: SocketAddr) {
        self.address.get_or_init(|| address);
    }

    /// What is known and was done, with so many open connections.
    pub(crate) fn figures(&self, connections: usize, now: Instant) -> Figures {
        let held = self.state.lock().routes.held(now);
        self.requests.figures(held, connections)
    }

    /// Removes brokers that were silent for too long.
    pub(crate) fn scan(&self, now: Instant) {
        self.state.lock().routes.scan(now);
    }

    /// The answer to `request`, which came over `link` at `now`.
    pub(crate) fn answer(&self, request: &RemotingCommand, link: Option<Link>, now: Instant) -> RemotingCommand {
        self.process(request, link, now)
            .unwrap_or_else(|refusal| RemotingCommand::response_to(request, refusal.code).with_remark(refusal.remark))
    }

    fn process(&self, request: &RemotingCommand, link: Option<Link>, now: Instant) -> Answer {
        match request.request_code() {
            RequestCode::GET_ROUTEINFO_BY_TOPIC => self.route(request, now),
            RequestCode::GET_BROKER_CLUSTER_INFO => Ok(success(request).with_body(self.cluster_info(now).encode())),
            RequestCode::GET_ALL_TOPIC_LIST_FROM_NAMESERVER => Ok(self.topics(request, None, now, |_| true)),
            RequestCode::GET_TOPICS_BY_CLUSTER => {
                let cluster = ClusterRequest::decode(request)?.cluster;
                Ok(self.topics(request, Some(&cluster), now, |_| true))
            }
            RequestCode::GET_UNIT_TOPIC_LIST => {
                Ok(self.topics(request, None, now, |topic| topic.topic_sys_flag & UNIT != 0))
            }
            RequestCode::GET_HAS_UNIT_SUB_TOPIC_LIST => {
                Ok(self.topics(request, None, now, |topic| topic.topic_sys_flag & UNIT_SUB != 0))
            }
            RequestCode::GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST => {
                Ok(self.topics(request, None, now, |topic| topic.topic_sys_flag & (UNIT | UNIT_SUB) == UNIT_SUB))
            }
            RequestCode::GET_SYSTEM_TOPIC_LIST_FROM_NS => Ok(self.system_topics(request, now)),
            RequestCode::PUT_KV_CONFIG => self.put_kv(request),
            RequestCode::GET_KV_CONFIG => self.get_kv(request),
            RequestCode::DELETE_KV_CONFIG => {
                let KvRequest { namespace, key } = KvRequest::decode(request)?;
                self.state.lock().kv.delete(&namespace, &key);
                Ok(success(request))
            }
            RequestCode::GET_KVLIST_BY_NAMESPACE => self.list_kv(request),
            RequestCode::REGISTER_BROKER => self.register(request, link, now),
            RequestCode::UNREGISTER_BROKER => {
                let broker = BrokerIdentityRequest::decode(request)?;
                self.state.lock().routes.unregister(&broker.broker_name, &broker.broker_addr, now);
                Ok(success(request))
            }
            RequestCode::QUERY_DATA_VERSION => self.query_data_version(request, now),
            RequestCode::BROKER_HEARTBEAT => {
                let broker = BrokerHeartbeatRequest::decode(request)?;
                self.state.lock().routes.seen(&broker.broker_name, &broker.broker_addr, now);
                Ok(success(request))
            }
            RequestCode::GET_BROKER_MEMBER_GROUP => self.member_group(request, now),
            RequestCode::REGISTER_TOPIC_IN_NAMESRV => self.register_topic(request),
            RequestCode::DELETE_TOPIC_IN_NAMESRV => {
                let DeleteTopicInNamesrvRequest { topic, cluster_name } = DeleteTopicInNamesrvRequest::decode(request)?;
                let cluster = cluster_name.filter(|name| !name.is_empty());
                self.state.lock().routes.delete_topic(&topic, cluster.as_deref());
                Ok(success(request))
            }
            RequestCode::WIPE_WRITE_PERM_OF_BROKER => {
                let broker_name = BrokerNameRequest::decode(request)?.broker_name;
                let count = self.state.lock().routes.wipe_write_perm(&broker_name);
                let mut answer = success(request);
                WipeWritePermResponse { wipe_topic_count: small(count) }.encode_into(&mut answer.ext);
                Ok(answer)
            }
            RequestCode::ADD_WRITE_PERM_OF_BROKER => {
                let broker_name = BrokerNameRequest::decode(request)?.broker_name;
                let count = self.state.lock().routes.add_write_perm(&broker_name);
                let mut answer = success(request);
                AddWritePermResponse { add_topic_count: small(count) }.encode_into(&mut answer.ext);
                Ok(answer)
            }
            RequestCode::UPDATE_NAMESRV_CONFIG => Err(Refusal::new(
                ResponseCode::NO_PERMISSION,
                "a name server's settings are not changed while it runs: change conf/namesrv.toml or its command line and start \
                 it again",
            )),
            RequestCode::CONTROLLER_ELECT_MASTER
            | RequestCode::CONTROLLER_GET_REPLICA_INFO
            | RequestCode::CONTROLLER_GET_METADATA_INFO
            | RequestCode::CONTROLLER_GET_SYNC_STATE_DATA
            | RequestCode::UPDATE_CONTROLLER_CONFIG
            | RequestCode::GET_CONTROLLER_CONFIG
            | RequestCode::CLEAN_BROKER_DATA => Err(Refusal::new(
                ResponseCode::NO_PERMISSION,
                "there is no controller: the replicas of a broker group elect their leader themselves; `gantry status` \
                 shows who leads",
            )),
            RequestCode::GET_NAMESRV_CONFIG => Ok(success(request).with_body(self.config_text())),
            _ => Err(Refusal::new(
                ResponseCode::REQUEST_CODE_NOT_SUPPORTED,
                format_args!(" request type {} not supported", request.code),
            )),
        }
    }

    fn route(&self, request: &RemotingCommand, now: Instant) -> Answer {
        let RouteRequest { topic, .. } = RouteRequest::decode(request)?;
        let state = self.state.lock();
        let Some(route) = state.routes.route(&topic, now) else {
            return Err(Refusal::new(ResponseCode::TOPIC_NOT_EXIST, format_args!("{NO_ROUTE}{topic}")));
        };
        let order_topic_conf = state.kv.get(ORDER_TOPIC_CONFIG, &topic).map(str::to_owned);
        drop(state);
        let queue_datas = route.queues.into_iter().map(|(broker_name, topic)| queue_data(broker_name, &topic));
        let body = TopicRouteData {
            broker_datas: route.brokers.into_iter().map(broker_data).collect(),
            filter_server_table: BTreeMap::new(),
            order_topic_conf,
            queue_datas: queue_datas.collect(),
        };
        Ok(success(request).with_body(body.encode()))
    }

    fn cluster_info(&self, now: Instant) -> ClusterInfo {
        let mut info = ClusterInfo::default();
        for broker in self.state.lock().routes.brokers(now) {
            info.cluster_addr_table.entry(broker.cluster.clone()).or_default().push(broker.broker_name.clone());
            info.broker_addr_table.insert(broker.broker_name.clone(), broker_data(broker));
        }
        info
    }

    fn topics(
        &self,
        request: &RemotingCommand,
        cluster: Option<&str>,
        now: Instant,
        wanted: impl Fn(&Topic) -> bool,
    ) -> RemotingCommand {
        let topics = self.state.lock().routes.topics(cluster, now, wanted);
        let body = TopicList { broker_addr: None, topic_list: topics.into_iter().collect() };
        success(request).with_body(body.encode())
    }

    fn system_topics(&self, request: &RemotingCommand, now: Instant) -> RemotingCommand {
        let brokers = self.state.lock().routes.brokers(now);
        let broker_addr = brokers.iter().find_map(|broker| broker.addresses.values().next()).cloned();
        let clusters: BTreeSet<_> = brokers.iter().map(|broker| broker.cluster.clone()).collect();
        let names = brokers.into_iter().map(|broker| broker.broker_name);
        let body = TopicList { broker_addr, topic_list: clusters.into_iter().chain(names).collect() };
        success(request).with_body(body.encode())
    }

    fn put_kv(&self, request: &RemotingCommand) -> Answer {
        let PutKvRequest { namespace, key, value } = PutKvRequest::decode(request)?;
        if self.state.lock().kv.put(namespace, key, value) {
            Ok(success(request))
        } else {
            Err(Refusal::new(ResponseCode::SYSTEM_ERROR, "too many values"))
        }
    }

    fn get_kv(&self, request: &RemotingCommand) -> Answer {
        let KvRequest { namespace, key } = KvRequest::decode(request)?;
        let value = self.state.lock().kv.get(&namespace, &key).map(str::to_owned);
        if value.is_none() {
            let remark = format!("No config item, Namespace: {namespace} Key: {key}");
            return Err(Refusal::new(ResponseCode::QUERY_NOT_FOUND, remark));
        }
        let mut answer = success(request);
        KvResponse { value }.encode_into(&mut answer.ext);
        Ok(answer)
    }

    fn list_kv(&self, request: &RemotingCommand) -> Answer {
        let namespace = KvListRequest::decode(request)?.namespace;
        let Some(table) = self.state.lock().kv.list(&namespace).cloned() else {
            let remark = format!("No config item, Namespace: {namespace}");
            return Err(Refusal::new(ResponseCode::QUERY_NOT_FOUND, remark));
        };
        Ok(success(request).with_body(KvTable { table }.encode()))
    }

    fn register(&self, request: &RemotingCommand, link: Option<Link>, now: Instant) -> Answer {
        let header = RegisterBrokerRequest::decode(request)?;
        if header.body_crc32 != 0 && header.body_crc32 != protocol::message::body_crc(&request.body) {
            return Err(Refusal::new(ResponseCode::SYSTEM_ERROR, "crc32 not match"));
        }
        let table = if request.body.is_empty() {
            None
        } else {
            let body = if header.compressed {
                RegisterBrokerBody::decode_compressed(&request.body)?
            } else {
                RegisterBrokerBody::decode(&request.body)?
            };
            Some(table(body, header.gantry_base, header.gantry_gone.as_deref()))
        };
        let rank = match header.gantry_node {
            Some(0) => return Err(Refusal::new(ResponseCode::SYSTEM_ERROR, "member numbers begin with 1")),
            Some(number) => Rank::Member {
                number,
                term: header.gantry_term.unwrap_or(0),
                leader: header.gantry_leader.filter(|leader| *leader != 0),
            },
            None => Rank::Plain {
                id: u64::try_from(header.broker_id)
                    .map_err(|_| Refusal::new(ResponseCode::SYSTEM_ERROR, "broker ids are not negative"))?,
                acting_master: header.enable_acting_master.unwrap_or(false),
            },
        };
        let silent_max = header
            .heartbeat_timeout_millis
            .and_then(|millis| u64::try_from(millis).ok())
            .filter(|millis| *millis > 0)
            .map_or(self.broker_silent_max, Duration::from_millis);
        let is_master = header.broker_id == 0;
        let is_ours = header.gantry_node.is_some();
        let registration = Registration {
            cluster: header.cluster_name,
            broker_name: header.broker_name,
            address: header.broker_addr,
            ha_address: header.ha_server_addr,
            rank,
            table,
            silent_max,
            connection: link,
        };
        let mut state = self.state.lock();
        let (master, gantry_whole_table) = match state.routes.register(registration, now) {
            Registered::Accepted { master, whole_table_wanted } => (master, whole_table_wanted),
            Registered::Refused(why) => return Err(Refusal::new(ResponseCode::SYSTEM_ERROR, why)),
        };
        let order = state.kv.list(ORDER_TOPIC_CONFIG).cloned();
        drop(state);
        let mut answer = success(request);
        // A master has nobody to copy from.
        if let Some((address, ha_address)) = master.filter(|_| !is_master) {
            answer.ext.write("haServerAddr", &ha_address);
            answer.ext.write("masterAddr", &Some(address));
        }
        if is_ours {
            answer.ext.write("gantryWholeTable", &gantry_whole_table);
        }
        if let Some(table) = order {
            answer.body = KvTable { table }.encode();
        }
        debug_assert!(RegisterBrokerResponse::decode(&answer).is_ok());
        Ok(answer)
    }

    fn query_data_version(&self, request: &RemotingCommand, now: Instant) -> Answer {
        let broker = BrokerIdentityRequest::decode(request)?;
        let told = DataVersion::decode(&request.body)?;
        let mut state = self.state.lock();
        state.routes.seen(&broker.broker_name, &broker.broker_addr, now);
        let known = state.routes.version(&broker.broker_name);
        drop(state);
        let mut answer = success(request);
        let changed = known != Some(version(&told));
        QueryDataVersionResponse { changed }.encode_into(&mut answer.ext);
        if let Some(Version { state_version, timestamp, counter }) = known {
            answer.body = DataVersion { state_version, timestamp, counter }.encode();
        }
        Ok(answer)
    }

    fn member_group(&self, request: &RemotingCommand, now: Instant) -> Answer {
        let BrokerMemberGroupRequest { cluster_name, broker_name } = BrokerMemberGroupRequest::decode(request)?;
        let broker = self.state.lock().routes.broker(&broker_name, now);
        let broker = broker.filter(|broker| broker.cluster == cluster_name).unwrap_or_else(|| Broker {
            cluster: cluster_name,
            broker_name,
            addresses: BTreeMap::new(),
        });
        let body = BrokerMemberGroup { broker_member_group: broker_data(broker) };
        Ok(success(request).with_body(body.encode()))
    }

    fn register_topic(&self, request: &RemotingCommand) -> Answer {
        let topic = RegisterTopicRequest::decode(request)?.topic;
        let body = TopicRouteData::decode(&request.body)?;
        let mut state = self.state.lock();
        for data in body.queue_datas {
            let queues = Topic {
                read_queue_nums: unsigned(data.read_queue_nums),
                write_queue_nums: unsigned(data.write_queue_nums),
                perm: unsigned(data.perm),
                topic_sys_flag: unsigned(data.topic_sys_flag),
            };
            state.routes.put_topic(&data.broker_name, &topic, queues);
        }
        Ok(success(request))
    }

    fn config_text(&self) -> String {
        let mut entries = vec![("brokerSilentMaxMillis", self.broker_silent_max.as_millis().to_string())];
        if let Some(address) = self.address.get() {
            entries.push(("listenAddress", address.to_string()));
            entries.push(("listenPort", address.port().to_string()));
        }
        encode_config_text(entries.iter().map(|(key, value)| (*key, value.as_str())))
    }
}

impl Handler for Processor {
    fn handle(&self, request: RemotingCommand, responder: Responder) {
        let link = responder.connection().map(|connection| connection.id().as_u64());
        let answer = self.answer(&request, link, tokio::time::Instant::now().into_std());
        self.requests.count(request.request_code(), answer.response_code());
        responder.send(answer);
    }

    fn closed(&self, connection: &Connection) {
        let now = tokio::time::Instant::now().into_std();
        self.state.lock().routes.connection_closed(connection.id().as_u64(), now);
    }
}

impl fmt::Debug for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Processor").field("address", &self.address).finish_non_exhaustive()
    }
}

fn success(request: &RemotingCommand) -> RemotingCommand {
    RemotingCommand::response_to(request, ResponseCode::SUCCESS)
}

fn table(body: RegisterBrokerBody, base: Option<i64>, gone: Option<&str>) -> Table {
    let topics = body.topics.topic_config_table.into_values().map(|topic| {
        let queues = Topic {
            read_queue_nums: unsigned(topic.read_queue_nums),
            write_queue_nums: unsigned(topic.write_queue_nums),
            perm: unsigned(topic.perm),
            topic_sys_flag: unsigned(topic.topic_sys_flag),
        };
        (topic.topic_name, queues)
    });
    let gone = gone.into_iter().flat_map(|names| names.split(',')).map(str::to_owned).collect();
    Table { version: version(&body.topics.data_version), topics: topics.collect(), gone, base }
}

fn version(version: &DataVersion) -> Version {
    Version { state_version: version.state_version, timestamp: version.timestamp, counter: version.counter }
}

fn queue_data(broker_name: String, topic: &Topic) -> QueueData {
    QueueData {
        broker_name,
        perm: signed(topic.perm),
        read_queue_nums: signed(topic.read_queue_nums),
        topic_sys_flag: signed(topic.topic_sys_flag),
        write_queue_nums: signed(topic.write_queue_nums),
    }
}

fn broker_data(broker: Broker) -> BrokerData {
    let addresses = broker.addresses.into_iter();
    BrokerData {
        broker_addrs: addresses.map(|(id, address)| (i64::try_from(id).unwrap_or(i64::MAX), address)).collect(),
        broker_name: broker.broker_name,
        cluster: broker.cluster,
        enable_acting_master: false,
    }
}

/// A count of queues or bits; nobody has a use for negative ones.
fn unsigned(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn signed(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

fn small(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
