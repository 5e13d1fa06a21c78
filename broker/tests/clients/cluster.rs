//! Nodes of one broker group in this process: real sockets, real files.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use broker::delay_levels::DelayLevels;
use broker::disk::{DiskLevel, DiskSpace, DiskState};
use broker::peer::{GroupIdentity, PeerAddress, PeerHub, PeerHubOptions};
use broker::processor::{Group, GroupHandler, GroupParts, GroupSettings, Holds, Registrar, TransactionSettings};
use broker::raft::{GroupRaft, GroupRaftOptions, Role, Timing};
use broker::sequencer::{Sequencer, SequencerOptions};
use broker::state_machine::{self, StoreControl};
use broker::store::StoreOptions;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use protocol::body::{QueueData, TopicRouteData};
use protocol::header::Perm;
use protocol::{RemotingCommand, RequestCode, TopicName};
use raft_store::{ClusterId, FlushMode, LogView, Member};
use remoting::{Channel, ChannelOptions, Connection, Handler, Responder, Server, ServerHandle};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{MutexGuard, Notify, watch};

use crate::link::Link;

pub(crate) const CLUSTER: &str = "DefaultCluster";
pub(crate) const BROKER: &str = "broker-a";
const CLUSTER_ID: [u8; 16] = [7; 16];
/// The first attempt to consume a message again waits on level 3.
const DELAY_LEVELS: &str = "1s 2s 1s 1s 6s";

/// As RocketMQ has it when nothing else is set.
pub(crate) const TIMER_DELAY_MAX: Duration = Duration::from_secs(3 * 86_400);

/// Producers are asked soon, and give-ups come soon.
pub(crate) const TRANSACTIONS: TransactionSettings = TransactionSettings {
    timeout: Duration::from_millis(1_000),
    check_interval: Duration::from_millis(200),
    // Time enough to answer many checks one after the other before the first is given up.
    check_max: 15,
};

/// Clocks for a machine that is busy with other things: nothing here waits for them, since a node that stops is seen
/// to be gone.
const TIMING: Timing = Timing {
    heartbeat_interval: Duration::from_millis(200),
    election_timeout_min: Duration::from_millis(1_500),
    election_timeout_max: Duration::from_millis(2_500),
};

/// The same with elections only where a process has ended: a link that is cut lasts less long.
const PATIENT: Timing = Timing {
    heartbeat_interval: Duration::from_millis(200),
    election_timeout_min: Duration::from_secs(5),
    election_timeout_max: Duration::from_secs(8),
};

/// Clusters of several nodes run one after the other, or they starve each other of time.
static SEVERAL_NODES: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Longer than anything here takes; a test that needs it has failed.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) group: Group,
    pub(crate) raft: GroupRaft,
    pub(crate) addr: SocketAddr,
    /// How full its disk seems to be.
    pub(crate) disk: watch::Sender<DiskState>,
    hub: PeerHub,
    sequencer: Sequencer,
    store: StoreControl,
    log: LogView,
    server: Option<ServerHandle>,
    disk_of: Disk,
}

/// What a node leaves behind when it stops.
pub(crate) struct Disk {
    dir: TempDir,
    /// How often it was started.
    starts: u64,
}

pub(crate) struct Cluster {
    pub(crate) nodes: BTreeMap<u64, Node>,
    members: BTreeMap<u64, Member>,
    /// The ways to nodes that are reached through links, by node.
    pub(crate) links: BTreeMap<u64, Link>,
    timing: Timing,
    _alone: Option<MutexGuard<'static, ()>>,
    /// Ports of nodes that were not started yet: peers and clients.
    ports: BTreeMap<u64, (TcpListener, std::net::TcpListener)>,
}

/// Whether nodes are reached through links.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    None,
    All,
}

/// A name server that has always heard everything.
struct Registered;

impl Registrar for Registered {
    fn topics_changed(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn route(&self, _topic: &TopicName) -> BoxFuture<'static, Option<TopicRouteData>> {
        let queues = QueueData {
            broker_name: BROKER.to_owned(),
            perm: Perm::READ | Perm::WRITE,
            read_queue_nums: 4,
            write_queue_nums: 4,
            topic_sys_flag: 0,
        };
        let route = TopicRouteData { queue_datas: vec![queues], ..TopicRouteData::default() };
        Box::pin(std::future::ready(Some(route)))
    }
}

impl Cluster {
    /// Starts a group on `size` nodes and waits until it serves.
    pub(crate) async fn start(size: u64) -> Self {
        Self::start_some(size, size).await
    }

    /// Starts the first `running` nodes of a group with `size` members and waits until it serves.
    pub(crate) async fn start_some(size: u64, running: u64) -> Self {
        Self::start_with(size, running, TIMING, Links::None).await
    }

    /// Starts a group whose nodes reach each other through links.
    pub(crate) async fn start_linked(size: u64) -> Self {
        Self::start_with(size, size, PATIENT, Links::All).await
    }

    async fn start_with(size: u64, running: u64, timing: Timing, linked: Links) -> Self {
        let alone = if size > 1 { Some(SEVERAL_NODES.lock().await) } else { None };
        let mut ports = BTreeMap::new();
        let mut members = BTreeMap::new();
        let mut links = BTreeMap::new();
        for id in 1..=size {
            let peers = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let clients = remoting::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let mut raft_addr = peers.local_addr().unwrap();
            if linked == Links::All {
                let link = Link::start(raft_addr).await;
                raft_addr = link.addr;
                links.insert(id, link);
            }
            let member = Member {
                node: format!("n{id}"),
                raft_addr: raft_addr.to_string(),
                client_addr: clients.local_addr().unwrap().to_string(),
            };
            members.insert(id, member);
            ports.insert(id, (peers, clients));
        }
        let mut cluster = Self { nodes: BTreeMap::new(), members, links, timing, _alone: alone, ports };
        for id in 1..=running {
            cluster.start_node(id).await;
        }
        cluster.nodes[&1].raft.initialize().await.unwrap();
        cluster.leader().await;
        cluster
    }

    /// Starts a node that has not run yet.
    pub(crate) async fn start_node(&mut self, id: u64) {
        let ports = self.ports.remove(&id).unwrap();
        let disk = Disk { dir: tempfile::tempdir().unwrap(), starts: 0 };
        self.nodes.insert(id, Node::start(id, &self.members, self.timing, ports, disk).await);
    }

    /// Starts a node again that was stopped and is reached through a link.
    pub(crate) async fn start_again(&mut self, id: u64, disk: Disk) {
        let peers = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let clients = remoting::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        self.links[&id].lead_to(peers.local_addr().unwrap());
        self.nodes.insert(id, Node::start(id, &self.members, self.timing, (peers, clients), disk).await);
    }

    /// The node that serves as leader, when there is one.
    pub(crate) async fn leader(&self) -> &Node {
        let roles = self.nodes.values().map(|node| {
            let mut role = node.raft.role();
            let state = node.group.clone();
            Box::pin(async move {
                role.wait_for(Role::is_ready_leader).await.unwrap();
                state.serving().await;
                node
            })
        });
        let (node, _, _) = soon("somebody leads", futures::future::select_all(roles)).await;
        node
    }

    /// A node that does not lead.
    pub(crate) async fn follower(&self) -> &Node {
        let leader = self.leader().await.id;
        let node = self.nodes.values().find(|node| node.id != leader).unwrap();
        let mut role = node.raft.role();
        soon("the leader is known", role.wait_for(|role| role.leader().is_some())).await.unwrap();
        node
    }

    /// Ends the node that leads, and returns a client of the next one that does.
    pub(crate) async fn lose_leader(&mut self) -> Client {
        let leader = self.leader().await.id;
        self.nodes.remove(&leader).unwrap().stop().await;
        self.leader().await.client()
    }

    pub(crate) async fn stop(self) {
        for node in self.nodes.into_values() {
            node.stop().await;
        }
    }
}

impl Node {
    async fn start(
        id: u64,
        members: &BTreeMap<u64, Member>,
        timing: Timing,
        (peers, clients): (TcpListener, std::net::TcpListener),
        mut disk_of: Disk,
    ) -> Self {
        let dir = disk_of.dir.path();
        disk_of.starts += 1;
        let addr = clients.local_addr().unwrap();
        let mut log = raft_store::Options::new(dir.join("log"), ClusterId::new(CLUSTER_ID), id);
        log.create = disk_of.starts == 1;
        log.segment_bytes = 64 << 20;
        log.flush = FlushMode::ASYNC;
        log.allow_unproven_fs = true;
        let opened = raft_store::open(log).unwrap();
        let view = opened.view.clone();

        let holds = Holds::new();
        let mut store_options = StoreOptions::new(dir.join("store"), CLUSTER_ID, 64 << 20);
        store_options.delay_levels = DelayLevels::parse(DELAY_LEVELS).unwrap();
        let store = state_machine::open(&store_options, &opened.view, Arc::new(holds.clone())).unwrap();

        let hub_options =
            PeerHubOptions { cluster_id: CLUSTER_ID, node: format!("n{id}"), groups: vec![BROKER.to_owned()] };
        let hub = PeerHub::start(hub_options, peers).unwrap();
        let identity = GroupIdentity {
            group: BROKER.to_owned(),
            node_id: id,
            store_uuid: [id as u8; 16],
            start_counter: disk_of.starts,
            generation: 0,
        };
        let addresses = members
            .iter()
            .map(|(id, member)| (*id, PeerAddress { node: member.node.clone(), raft_addr: member.raft_addr.clone() }));
        hub.add_group(identity.clone(), addresses.collect());
        let options = GroupRaftOptions {
            identity,
            members: members.clone(),
            preferred_leader: None,
            restarted: disk_of.starts > 1,
            started: tokio::time::Instant::now(),
            timing,
            propose_timeout: Duration::from_secs(3),
            catch_up: None,
        };
        let raft = GroupRaft::start(options, &hub, opened.storage, store.state_machine).await.unwrap();
        let sequencer = Sequencer::start(SequencerOptions::default(), raft.clone());
        let space = DiskSpace { total_bytes: 100 << 30, free_bytes: 40 << 30 };
        let calm = DiskState { level: DiskLevel::Calm, space: Some(space), log_is_short: false, free_bytes_min: 0 };
        let disk = watch::Sender::new(calm);
        let group = Group::start(GroupParts {
            settings: GroupSettings {
                cluster_name: CLUSTER.to_owned(),
                broker_name: BROKER.to_owned(),
                node_id: id,
                client_addr: addr,
                auto_create_topics: true,
                auto_create_groups: true,
                auto_create_queues: 8,
                delay_levels: DelayLevels::parse(DELAY_LEVELS).unwrap(),
                timer_delay_max: TIMER_DELAY_MAX,
                transactions: TRANSACTIONS,
                message_bytes_max: 4 << 20,
                retention_time: Duration::from_secs(72 * 3_600),
                metric_names_max: 1_000,
            },
            state: store.state,
            store: store.store,
            raft: raft.clone(),
            sequencer: sequencer.clone(),
            holds,
            peers: hub.clone(),
            registrar: Arc::new(Registered),
            disk: disk.subscribe(),
            drop_expired: Arc::default(),
            tracer: None,
        });
        let handler = GroupHandler::new(group.clone());
        hub.set_forward_handler(BROKER, Arc::new(handler.clone()));
        hub.set_copy_handler(BROKER, Arc::new(handler.clone()));
        let server = Server::new(remoting::Options::default(), Arc::new(handler)).start(clients).unwrap();
        Self {
            id,
            group,
            raft,
            addr,
            disk,
            hub,
            sequencer,
            store: store.control,
            log: view,
            server: Some(server),
            disk_of,
        }
    }

    /// A client of this node.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.addr)
    }

    /// Cuts a checkpoint, and says of which entry.
    pub(crate) async fn checkpoint(&self) -> u64 {
        self.store.checkpoint().await.unwrap();
        *self.store.checkpoints().unwrap().last().unwrap()
    }

    /// Drops the log up to a checkpoint, as retention does.
    pub(crate) async fn drop_through(&self, checkpoint: u64) {
        self.store.choose_snapshot(checkpoint).unwrap();
        self.raft.trigger_snapshot().await.unwrap();
        let purged = async {
            while self.raft.metrics().snapshot < Some(checkpoint) {
                tokio::task::yield_now().await;
            }
            self.raft.purge_log(checkpoint).await.unwrap();
            while self.raft.metrics().purged < Some(checkpoint) {
                tokio::task::yield_now().await;
            }
        };
        soon("the log is dropped", purged).await;
    }

    /// Ends the node the hard way, as far as that is possible within one process: its clients are cut off and its
    /// peers see it gone.
    pub(crate) async fn stop(mut self) -> Disk {
        if let Some(server) = self.server.take() {
            server.shutdown(Duration::ZERO).await;
        }
        self.group.shutdown().await;
        self.sequencer.shutdown().await;
        self.raft.shutdown().await;
        self.hub.shutdown().await;
        self.store.stop().await.unwrap();
        tokio::task::spawn_blocking(move || self.log.close()).await.unwrap().unwrap();
        self.disk_of
    }
}

/// A connection of a client, and what the broker has asked of it.
#[derive(Clone)]
pub(crate) struct Client {
    channel: Channel,
    asked: Arc<Asked>,
}

#[derive(Default)]
struct Asked {
    requests: Mutex<Vec<RemotingCommand>>,
    more: Notify,
}

impl Handler for Asked {
    fn handle(&self, request: RemotingCommand, responder: Responder) {
        if !request.is_oneway() {
            let body = format!("answer to {}", request.code);
            responder.send(RemotingCommand::response_to(&request, protocol::ResponseCode::SUCCESS).with_body(body));
        }
        self.requests.lock().push(request);
        self.more.notify_waiters();
    }

    fn closed(&self, _connection: &Connection) {}
}

struct Shared(Arc<Asked>);

impl Handler for Shared {
    fn handle(&self, request: RemotingCommand, responder: Responder) {
        self.0.handle(request, responder);
    }
}

impl Client {
    pub(crate) fn new(addr: SocketAddr) -> Self {
        let asked: Arc<Asked> = Arc::default();
        let handler = Arc::new(Shared(Arc::clone(&asked)));
        Self { channel: Channel::new(addr.to_string(), ChannelOptions::default(), handler), asked }
    }

    /// The answer to a request.
    pub(crate) async fn call(&self, request: RemotingCommand) -> RemotingCommand {
        let code = request.code;
        match self.channel.call(request, SOON).await {
            Ok(answer) => answer,
            Err(error) => panic!("request {code}: {error}"),
        }
    }

    /// The answer to a request; none if the node is gone, or goes meanwhile.
    pub(crate) async fn try_call(&self, request: RemotingCommand) -> Option<RemotingCommand> {
        self.channel.call(request, SOON).await.ok()
    }

    pub(crate) async fn send_oneway(&self, request: RemotingCommand) {
        self.channel.send_oneway(request, SOON).await.unwrap();
    }

    pub(crate) async fn close(&self) {
        self.channel.close(SOON).await;
    }

    /// Waits until the broker has sent a request with this code, and takes it.
    pub(crate) async fn asked(&self, code: RequestCode) -> RemotingCommand {
        let wait = async {
            loop {
                let more = self.asked.more.notified();
                tokio::pin!(more);
                more.as_mut().enable();
                {
                    let mut requests = self.asked.requests.lock();
                    if let Some(at) = requests.iter().position(|request| request.request_code() == code) {
                        return requests.remove(at);
                    }
                }
                more.await;
            }
        };
        soon("the broker asks its client", wait).await
    }
}

/// The result of something that happens soon, or the test fails.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SOON, future).await {
        Ok(value) => value,
        Err(_) => panic!("not in time: {what}"),
    }
}
