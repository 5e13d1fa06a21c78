//! A sidecar between a client and a cluster that is not there: both ends are bare connections.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed, which is what it is for")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use bytes::Bytes;
use protocol::body::{BrokerData, ClusterInfo, HeartbeatData, ProducerData, QueueData, TopicRouteData};
use protocol::{RemotingCommand, RequestCode, ResponseCode};
use remoting::{Channel, ChannelOptions, Connection, Handler, Ignore, Responder, Server, ServerHandle};
use sidecar::{Options, SidecarHandle};
use tokio::sync::watch;

const LONG: Duration = Duration::from_secs(20);
/// How long nothing may come that must not come.
const A_WHILE: Duration = Duration::from_millis(300);

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn serve(address: SocketAddr, handler: Arc<dyn Handler>) -> ServerHandle {
    Server::new(remoting::Options::default(), handler).start(remoting::bind(address).unwrap()).unwrap()
}

/// What a replica does with what it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Answers,
    /// As a replica without a leader.
    Refuses,
    /// As a process that is paused.
    Silent,
}

/// A replica that remembers what it was asked.
struct Replica {
    seen: watch::Sender<Vec<RemotingCommand>>,
    mood: watch::Sender<Mood>,
    clients: watch::Sender<Vec<Connection>>,
    unanswered: parking_lot::Mutex<Vec<Responder>>,
}

impl Replica {
    fn new(mood: Mood) -> Arc<Self> {
        Arc::new(Self {
            seen: watch::Sender::new(Vec::new()),
            mood: watch::Sender::new(mood),
            clients: watch::Sender::new(Vec::new()),
            unanswered: parking_lot::Mutex::default(),
        })
    }

    fn count(&self, code: RequestCode) -> usize {
        self.seen.borrow().iter().filter(|request| request.request_code() == code).count()
    }

    /// Waits until it was asked so often.
    async fn asked(&self, code: RequestCode, times: usize) -> RemotingCommand {
        let of = |seen: &Vec<RemotingCommand>| {
            let of_code: Vec<_> = seen.iter().filter(|request| request.request_code() == code).cloned().collect();
            (of_code.len() >= times).then(|| of_code.last().cloned()).flatten()
        };
        let mut seen = self.seen.subscribe();
        let waited = tokio::time::timeout(LONG, seen.wait_for(|seen| of(seen).is_some())).await;
        let seen = waited.unwrap_or_else(|_| panic!("not asked {code} {times} times")).unwrap();
        of(&seen).unwrap()
    }
}

struct Asked(Arc<Replica>);

impl Handler for Asked {
    fn handle(&self, request: RemotingCommand, responder: Responder) {
        let mood = *self.0.mood.borrow();
        self.0.seen.send_modify(|seen| seen.push(request.clone()));
        match mood {
            Mood::Silent => self.0.unanswered.lock().push(responder),
            Mood::Refuses => {
                responder.send(RemotingCommand::response_to(&request, ResponseCode::SERVICE_NOT_AVAILABLE));
            }
            Mood::Answers => {
                responder.send(RemotingCommand::response_to(&request, ResponseCode::SUCCESS).with_body(request.body));
            }
        }
    }

    fn opened(&self, connection: &Connection) {
        self.0.clients.send_modify(|clients| clients.push(connection.clone()));
    }
}

/// A name server that knows one broker and one topic.
struct Directory(watch::Sender<BTreeMap<i64, String>>);

struct Named(Arc<Directory>);

impl Handler for Named {
    fn handle(&self, request: RemotingCommand, responder: Responder) {
        let broker = BrokerData {
            broker_addrs: self.0.0.borrow().clone(),
            broker_name: "broker-a".into(),
            cluster: "c".into(),
            enable_acting_master: false,
        };
        let answer = RemotingCommand::response_to(&request, ResponseCode::SUCCESS);
        responder.send(match request.request_code() {
            RequestCode::GET_BROKER_CLUSTER_INFO => {
                let mut info = ClusterInfo::default();
                info.broker_addr_table.insert("broker-a".into(), broker);
                answer.with_body(info.encode())
            }
            RequestCode::GET_ROUTEINFO_BY_TOPIC => {
                let queues = QueueData {
                    broker_name: "broker-a".into(),
                    perm: 6,
                    read_queue_nums: 4,
                    topic_sys_flag: 0,
                    write_queue_nums: 4,
                };
                let route = TopicRouteData {
                    broker_datas: vec![broker],
                    queue_datas: vec![queues],
                    ..TopicRouteData::default()
                };
                answer.with_body(route.encode())
            }
            _ => answer.with_remark("passed on"),
        });
    }
}

/// A cluster of two replicas, the first of which leads, behind a sidecar.
struct Stage {
    leader: Arc<Replica>,
    other: Arc<Replica>,
    servers: Vec<Option<ServerHandle>>,
    addresses: Vec<SocketAddr>,
    name_server: Option<ServerHandle>,
    sidecar: SidecarHandle,
}

/// Ports for the brokers of sidecars: below those that the kernel gives away.
static NEXT_PORT: AtomicU16 = AtomicU16::new(21_000);

impl Stage {
    async fn new(leader: Mood) -> Self {
        let (leader, other) = (Replica::new(leader), Replica::new(Mood::Answers));
        let serve_replica = |replica: &Arc<Replica>| serve(loopback(0), Arc::new(Asked(Arc::clone(replica))));
        let servers = vec![Some(serve_replica(&leader)), Some(serve_replica(&other))];
        let addresses: Vec<_> = servers.iter().flatten().map(ServerHandle::local_addr).collect();
        let replicas = (0..).zip(addresses.iter().map(ToString::to_string)).collect();
        let directory = Arc::new(Directory(watch::Sender::new(replicas)));
        let name_server = serve(loopback(0), Arc::new(Named(directory)));
        let mut options = Options::new(vec![name_server.local_addr().to_string()], loopback(0));
        options.first_broker_port = NEXT_PORT.fetch_add(20, Ordering::Relaxed);
        let sidecar = sidecar::start(options).unwrap();
        let stage = Self { leader, other, servers, addresses, name_server: Some(name_server), sidecar };
        while stage.route().await.broker_datas.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stage
    }

    /// What a client is told of the topic.
    async fn route(&self) -> TopicRouteData {
        let answer = self.names().call(route_request(), LONG).await.unwrap();
        assert!(answer.is_success(), "{:?}", answer.remark);
        TopicRouteData::decode(&answer.body).unwrap()
    }

    fn names(&self) -> Channel {
        channel(self.sidecar.local_addr().to_string(), Arc::new(Ignore))
    }

    /// A client of the broker, as its route says.
    async fn client(&self) -> Channel {
        self.client_that(Arc::new(Ignore)).await
    }

    async fn client_that(&self, handler: Arc<dyn Handler>) -> Channel {
        let route = self.route().await;
        channel(route.broker_datas[0].broker_addrs[&0].clone(), handler)
    }

    /// The process of the leader is gone, with its connections and its port.
    async fn kill_leader(&mut self) {
        drop(self.servers[0].take());
        // Its port is closed when its task has noticed.
        while tokio::net::TcpStream::connect(self.addresses[0]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn start_leader(&mut self) {
        let handler = Arc::new(Asked(Arc::clone(&self.leader)));
        self.servers[0] = Some(serve(self.addresses[0], handler));
    }
}

fn channel(address: String, handler: Arc<dyn Handler>) -> Channel {
    Channel::new(address, ChannelOptions::default(), handler)
}

fn route_request() -> RemotingCommand {
    RemotingCommand::request(RequestCode::GET_ROUTEINFO_BY_TOPIC).with_ext("topic", "T")
}

fn send(body: &'static [u8]) -> RemotingCommand {
    RemotingCommand::request(RequestCode::SEND_MESSAGE_V2)
        .with_ext("n", "broker-a")
        .with_ext("signature", "kept")
        .with_body(Bytes::from_static(body))
}

fn heartbeat(groups: &[&str]) -> RemotingCommand {
    let data = HeartbeatData {
        client_id: "c1".into(),
        producers: groups.iter().map(|group| ProducerData { group: (*group).to_owned() }).collect(),
        consumers: Vec::new(),
        fingerprint: 0,
        without_subscriptions: false,
    };
    RemotingCommand::request(RequestCode::HEART_BEAT).with_body(data.encode())
}

#[tokio::test]
async fn routes_name_the_sidecar_and_requests_pass_through_it_unchanged() {
    let stage = Stage::new(Mood::Answers).await;
    let route = stage.route().await;
    let addresses = &route.broker_datas[0].broker_addrs;
    assert_eq!(addresses.keys().collect::<Vec<_>>(), [&0]);
    assert!(!stage.addresses.iter().any(|address| address.to_string() == addresses[&0]));
    assert_eq!(route.queue_datas[0].write_queue_nums, 4);
    let answer = stage.client().await.call(send(b"body"), LONG).await.unwrap();
    assert!(answer.is_success());
    assert_eq!(answer.body, b"body"[..]);
    let asked = stage.leader.asked(RequestCode::SEND_MESSAGE_V2, 1).await;
    assert_eq!(asked.ext.get("signature"), Some("kept"));
    assert_eq!(stage.other.count(RequestCode::SEND_MESSAGE_V2), 0);
    let other = RemotingCommand::request(RequestCode::GET_KV_CONFIG);
    assert_eq!(stage.names().call(other, LONG).await.unwrap().remark.as_deref(), Some("passed on"));
}

#[tokio::test]
async fn what_was_in_flight_at_a_killed_leader_is_sent_again_if_the_client_would() {
    let mut stage = Stage::new(Mood::Silent).await;
    let client = stage.client().await;
    let sending = tokio::spawn({
        let client = client.clone();
        async move { client.call(send(b"again"), LONG).await }
    });
    let acknowledging = tokio::spawn({
        let client = client.clone();
        async move { client.call(RemotingCommand::request(RequestCode::ACK_MESSAGE), LONG).await }
    });
    stage.leader.asked(RequestCode::SEND_MESSAGE_V2, 1).await;
    stage.leader.asked(RequestCode::ACK_MESSAGE, 1).await;
    stage.kill_leader().await;
    assert_eq!(sending.await.unwrap().unwrap().body, b"again"[..]);
    let acknowledged = acknowledging.await.unwrap().unwrap();
    assert_eq!(acknowledged.response_code(), ResponseCode::SERVICE_NOT_AVAILABLE);
    assert!(acknowledged.remark.as_ref().unwrap().contains("unknown whether this was done"), "{acknowledged:?}");
    assert_eq!(stage.other.count(RequestCode::ACK_MESSAGE), 0);
    // What is new goes to whoever lives, once or not.
    assert!(client.call(RemotingCommand::request(RequestCode::ACK_MESSAGE), LONG).await.unwrap().is_success());
    let figures = stage.sidecar.figures();
    assert!(figures.repeated >= 1 && figures.failed == 1, "{figures:?}");
}

#[tokio::test]
async fn a_one_way_request_is_sent_once() {
    let mut stage = Stage::new(Mood::Silent).await;
    let client = stage.client().await;
    client.send_oneway(send(b"first"), LONG).await.unwrap();
    stage.leader.asked(RequestCode::SEND_MESSAGE_V2, 1).await;
    stage.kill_leader().await;
    client.send_oneway(send(b"second"), LONG).await.unwrap();
    assert_eq!(stage.other.asked(RequestCode::SEND_MESSAGE_V2, 1).await.body, b"second"[..]);
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(stage.other.count(RequestCode::SEND_MESSAGE_V2), 1);
    assert_eq!(stage.sidecar.figures().dropped, 0);
}

#[tokio::test]
async fn a_replica_that_does_not_answer_is_left_and_what_must_not_be_repeated_stays_there() {
    let stage = Stage::new(Mood::Silent).await;
    let client = stage.client().await;
    let acknowledging = tokio::spawn({
        let client = client.clone();
        async move { client.call(RemotingCommand::request(RequestCode::ACK_MESSAGE), LONG).await }
    });
    stage.leader.asked(RequestCode::ACK_MESSAGE, 1).await;
    assert!(client.call(send(b"moved"), LONG).await.unwrap().is_success());
    stage.other.asked(RequestCode::SEND_MESSAGE_V2, 1).await;
    assert!(stage.sidecar.figures().stalled >= 1);
    // It wakes up and answers what it has.
    stage.leader.mood.send_replace(Mood::Answers);
    for responder in stage.leader.unanswered.lock().drain(..) {
        responder.send(RemotingCommand::response(0, protocol::HeaderForm::Json, ResponseCode::SUCCESS));
    }
    assert!(acknowledging.await.unwrap().unwrap().is_success());
    assert_eq!(stage.other.count(RequestCode::ACK_MESSAGE), 0);
}

#[tokio::test]
async fn a_replica_that_holds_a_pull_and_lives_keeps_it() {
    let stage = Stage::new(Mood::Answers).await;
    let client = stage.client().await;
    stage.leader.mood.send_replace(Mood::Silent);
    let pulling = tokio::spawn({
        let client = client.clone();
        async move { client.call(RemotingCommand::request(RequestCode::PULL_MESSAGE), LONG).await }
    });
    stage.leader.asked(RequestCode::PULL_MESSAGE, 1).await;
    stage.leader.mood.send_replace(Mood::Answers);
    // It is asked whether it lives, twice, and does.
    stage.leader.asked(RequestCode::GET_CONSUMER_LIST_BY_GROUP, 2).await;
    assert_eq!(stage.other.count(RequestCode::PULL_MESSAGE), 0);
    let held = stage.leader.unanswered.lock().pop().unwrap();
    held.send(RemotingCommand::response(0, protocol::HeaderForm::Json, ResponseCode::SUCCESS));
    assert!(pulling.await.unwrap().unwrap().is_success());
}

#[tokio::test]
async fn a_send_refused_for_want_of_a_leader_is_held_until_there_is_one() {
    let stage = Stage::new(Mood::Refuses).await;
    stage.other.mood.send_replace(Mood::Refuses);
    let client = stage.client().await;
    let sending = tokio::spawn({
        let client = client.clone();
        async move { client.call(send(b"held"), LONG).await }
    });
    stage.leader.asked(RequestCode::SEND_MESSAGE_V2, 2).await;
    stage.other.asked(RequestCode::SEND_MESSAGE_V2, 1).await;
    stage.leader.mood.send_replace(Mood::Answers);
    assert!(sending.await.unwrap().unwrap().is_success());
    // Other requests get the answer that there is.
    stage.leader.mood.send_replace(Mood::Refuses);
    let asked = client.call(RemotingCommand::request(RequestCode::QUERY_CONSUMER_OFFSET), LONG).await.unwrap();
    assert_eq!(asked.response_code(), ResponseCode::SERVICE_NOT_AVAILABLE);
}

#[tokio::test]
async fn a_send_that_nobody_takes_gets_an_error_before_the_client_gives_up() {
    let mut stage = Stage::new(Mood::Answers).await;
    let client = stage.client().await;
    stage.kill_leader().await;
    drop(stage.servers[1].take());
    let answer = client.call(send(b"lost"), Duration::from_secs(10)).await.unwrap();
    assert_eq!(answer.response_code(), ResponseCode::SERVICE_NOT_AVAILABLE);
    assert!(answer.remark.unwrap().contains("no replica of this broker answers"));
}

#[tokio::test]
async fn every_replica_knows_the_client_and_one_that_comes_back_is_told_again() {
    let mut stage = Stage::new(Mood::Answers).await;
    let client = stage.client().await;
    assert!(client.call(heartbeat(&["p1", "p2"]), LONG).await.unwrap().is_success());
    stage.leader.asked(RequestCode::HEART_BEAT, 1).await;
    stage.other.asked(RequestCode::HEART_BEAT, 1).await;
    let leave = RemotingCommand::request(RequestCode::UNREGISTER_CLIENT)
        .with_ext("clientID", "c1")
        .with_ext("producerGroup", "p1");
    assert!(client.call(leave, LONG).await.unwrap().is_success());
    stage.other.asked(RequestCode::UNREGISTER_CLIENT, 1).await;
    let before = stage.leader.count(RequestCode::HEART_BEAT);
    stage.kill_leader().await;
    stage.start_leader().await;
    let replayed = stage.leader.asked(RequestCode::HEART_BEAT, before + 1).await;
    let groups: Vec<_> = HeartbeatData::decode(&replayed.body).unwrap().producers;
    assert_eq!(groups, [ProducerData { group: "p2".into() }]);
}

struct Answers;

impl Handler for Answers {
    fn handle(&self, request: RemotingCommand, responder: Responder) {
        responder.send(RemotingCommand::response_to(&request, ResponseCode::SUCCESS).with_remark("from the client"));
    }
}

#[tokio::test]
async fn what_a_broker_asks_reaches_the_client_and_its_answer_the_broker() {
    let stage = Stage::new(Mood::Answers).await;
    let client = stage.client_that(Arc::new(Answers)).await;
    assert!(client.call(send(b"hello"), LONG).await.unwrap().is_success());
    let connection = stage.leader.clients.borrow()[0].clone();
    let asked = RemotingCommand::request(RequestCode::GET_CONSUMER_RUNNING_INFO);
    let answer = connection.call(asked, LONG).await.unwrap();
    assert_eq!(answer.remark.as_deref(), Some("from the client"));
    assert_eq!(stage.sidecar.figures().pushed, 1);
}

#[tokio::test]
async fn a_quiet_connection_that_ends_casts_no_doubt_on_its_replica() {
    let stage = Stage::new(Mood::Answers).await;
    let client = stage.client().await;
    assert!(client.call(heartbeat(&["p1"]), LONG).await.unwrap().is_success());
    stage.leader.asked(RequestCode::HEART_BEAT, 1).await;
    let before = stage.leader.count(RequestCode::HEART_BEAT);
    let connection = stage.leader.clients.borrow()[0].clone();
    connection.close();
    stage.leader.asked(RequestCode::HEART_BEAT, before + 1).await;
    assert_eq!(stage.sidecar.figures().reachable, 1);
    assert!(client.call(send(b"next"), LONG).await.unwrap().is_success());
    assert_eq!(stage.other.count(RequestCode::SEND_MESSAGE_V2), 0);
}

#[tokio::test]
async fn routes_are_remembered_while_no_name_server_answers() {
    let mut stage = Stage::new(Mood::Answers).await;
    let before = stage.route().await;
    stage.name_server.take().unwrap().shutdown(Duration::ZERO).await;
    assert_eq!(stage.route().await, before);
    assert!(stage.sidecar.figures().routes_remembered >= 1);
    let unknown = RemotingCommand::request(RequestCode::GET_ROUTEINFO_BY_TOPIC).with_ext("topic", "U");
    let answer = stage.names().call(unknown, LONG).await.unwrap();
    assert_eq!(answer.response_code(), ResponseCode::SYSTEM_ERROR);
    assert!(answer.remark.unwrap().contains("no name server"));
    assert!(stage.client().await.call(send(b"on"), LONG).await.unwrap().is_success());
}

#[tokio::test]
async fn a_request_for_another_broker_is_not_given_to_this_one() {
    let stage = Stage::new(Mood::Answers).await;
    let astray = RemotingCommand::request(RequestCode::PULL_MESSAGE).with_ext("bname", "broker-b");
    let answer = stage.client().await.call(astray, LONG).await.unwrap();
    assert_eq!(answer.response_code(), ResponseCode::SERVICE_NOT_AVAILABLE);
    assert!(answer.remark.unwrap().contains("port of broker broker-a"));
    assert_eq!(stage.leader.count(RequestCode::PULL_MESSAGE), 0);
    // Go names nobody when it answers a check of a transaction.
    let unnamed = RemotingCommand::request(RequestCode::END_TRANSACTION).with_ext("bname", "");
    assert!(stage.client().await.call(unnamed, LONG).await.unwrap().is_success());
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_at_the_start() {
    let why = |options| sidecar::start(options).err().unwrap().to_string();
    assert_eq!(why(Options::new(Vec::new(), loopback(0))), "no name server is given; name at least one as HOST:PORT");
    let mut high = Options::new(vec!["127.0.0.1:1".to_owned()], loopback(0));
    high.first_broker_port = 65_000;
    assert!(why(high).contains("first port for brokers is 65000"));
    let taken = remoting::bind(loopback(0)).unwrap();
    let address = taken.local_addr().unwrap();
    assert!(why(Options::new(vec!["127.0.0.1:1".to_owned()], address)).contains("listening on"));
}
