//! Wires, starts and drains one node.
//!
//! Accepting, recovering and leading are separate steps, so that clients never find a closed door while a log is read:
//!
//! ```text
//!  bind all ports, or inherit those of clients
//!                 -> serve client ports, health: starting     (requests wait in `late_handler`)
//!                 -> tell name servers that this node is there
//!                 -> recover each group's log and files        (all groups at once)
//!                 -> start Raft, let peers in                  (requests are handed over)
//!                    or, without an identity, ask for one       (requests wait on)
//!                    or, with a damaged log, have it repaired   (the other groups go on)
//!                 -> lead or follow, as Raft decides           (health: ready once every group has a leader)
//! ```
//!
//! A stop goes the other way: offsets into the log, leadership to others, name servers told, requests forwarded for a
//! while, client ports closed, groups flushed and marked clean, and last the Raft port: peers take a closed Raft port as
//! proof that this process is gone.

mod balance;
mod begin;
mod damaged;
mod descriptors;
mod drain;
mod events;
mod failure;
mod flush;
mod group;
mod join;
mod known_members;
mod late_handler;
mod member_orders;
mod members;
mod metrics;
mod recover;
mod rejoin;
mod replay;
mod retention;
mod status;
mod topics;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use remoting::ServerHandle;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::begin::Begin;
use self::damaged::describe_failure;
use self::drain::Drain;
use self::events::EventLog;
use self::group::NodeGroup;
use self::retention::NodeRetention;
use crate::config::Options;
use crate::disk::DiskLevel;
use crate::disk::{Ballast, DiskSpace};
use crate::http::{Api, NodeState, RefusedCalls};
use crate::peer::{PeerHub, PeerHubOptions};
use crate::raft::CatchUpRate;
use crate::registration::{Registration, RegistrationHandle, RegistrationOptions};
use crate::retention::{Pressure, WatchedClock};
use crate::trace::Tracer;

/// How often requests that wait for a starting group are looked at.
const EXPIRE_INTERVAL: Duration = Duration::from_millis(100);
/// Moving all leaderships away takes at most this long.
const HAND_OVER_TIME_MAX: Duration = Duration::from_secs(5);
/// The same when a disk has failed.
const FAILED_HAND_OVER_TIME_MAX: Duration = Duration::from_secs(2);
/// Client requests in flight are answered within this time.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(3);
/// Putting consumer offsets into the log takes at most this long.
const OFFSETS_TIME_MAX: Duration = Duration::from_secs(1);
/// HTTP requests in flight are answered within this time.
const HTTP_TIME_MAX: Duration = Duration::from_secs(1);
/// When the whole cluster stops, a node helps the others to commit their last entries for so long.
const LAST_ENTRIES_TIME: Duration = Duration::from_millis(300);

/// What a start is told besides the configuration.
#[derive(Clone, Copy, Debug)]
pub struct StartOptions {
    /// Whether an empty directory may become a new replica.
    pub bootstrap: Bootstrap,
    /// An empty directory comes back under another identity: the one it had went with its disk. Only for a member of a
    /// group that has others.
    pub rejoin: bool,
    /// When the process started.
    pub started: Instant,
}

/// Whether empty directories may become replicas of new groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bootstrap {
    /// No: they are lost disks.
    Forbidden,
    /// Yes. Only for the first start of a new cluster.
    Allowed,
    /// Once an operator has said so by `POST /v1/cluster/bootstrap`; if all of them are empty, the start waits for that.
    WhenCalled,
}

/// Client ports that the process was given, and who wants to know when they are served.
#[derive(Debug, Default)]
pub struct ClientPorts {
    /// Listening sockets that outlive this process. Each is for the group that has its address; other groups get one of
    /// this process's own.
    pub inherited: Vec<std::net::TcpListener>,
    /// Told once clients are accepted.
    pub accepting: Option<oneshot::Sender<()>>,
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A port is taken, or the address is not this machine's.
    #[error("cannot listen on {addr} for {purpose}")]
    Listen {
        /// What the port is for.
        purpose: String,
        /// The address.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A listening socket was passed to the process that no group listens on.
    #[error(
        "inherited a listening socket on {addr}, which is no group's client_listen ({wanted}): let the socket unit and \
         the configuration name the same addresses"
    )]
    Inherited {
        /// Where the socket listens.
        addr: SocketAddr,
        /// Where the groups listen.
        wanted: String,
    },
    /// The process may open too few files.
    #[error(
        "this process may open {limit} files, and needs {needed} for its groups, peers and clients: raise the limit \
         (LimitNOFILE= of a systemd unit, or ulimit -n)"
    )]
    Descriptors {
        /// The limit.
        limit: u64,
        /// What is needed.
        needed: u64,
    },
    /// The data directory cannot be made.
    #[error("cannot create {}", dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A group's log cannot be used.
    #[error("group {group}: log")]
    Log {
        /// The group.
        group: String,
        /// Why.
        source: raft_store::Error,
    },
    /// A group's derived files cannot be used.
    #[error("group {group}: derived files")]
    Store {
        /// The group.
        group: String,
        /// Why.
        source: crate::store::Error,
    },
    /// Raft did not start.
    #[error("group {group}: raft")]
    Raft {
        /// The group.
        group: String,
        /// Why.
        source: Box<crate::raft::AdminError>,
    },
    /// Messages cannot be traced.
    #[error("{why}")]
    Tracing {
        /// Why.
        why: String,
    },
    /// A task that started a group ended without a result.
    #[error("group {group}: its start panicked")]
    Panicked {
        /// The group.
        group: String,
    },
}

/// How much of the cluster stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopKind {
    /// This node: others take over, and requests are forwarded to them for a while.
    Node,
    /// All nodes: there is nobody to hand over to.
    Cluster,
}

/// A running node.
pub struct Node {
    shared: Arc<Shared>,
    hub: PeerHub,
    registration: Registration,
    client_servers: Vec<ServerHandle>,
    http: tokio::task::JoinHandle<()>,
    http_stop: CancellationToken,
    stop: CancellationToken,
    tasks: TaskTracker,
    tracer: Option<Tracer>,
}

/// What HTTP, tasks and the node itself look at.
struct Shared {
    /// For calls that go on after their caller has left.
    own: Weak<Self>,
    options: Options,
    groups: Vec<Arc<NodeGroup>>,
    registration: RegistrationHandle,
    hub: PeerHub,
    state: Mutex<NodeState>,
    started: Instant,
    /// Milliseconds plus one; 0: not yet.
    ready_after: AtomicU64,
    retention: Arc<NodeRetention>,
    events: EventLog,
    drain: Drain,
    begin: Begin,
    refused_calls: RefusedCalls,
    /// The first failure of a group.
    failure: watch::Sender<Option<String>>,
}

struct Listeners {
    clients: Vec<std::net::TcpListener>,
    raft: tokio::net::TcpListener,
    http: tokio::net::TcpListener,
    watch: Option<tokio::net::TcpListener>,
}

impl Node {
    /// Starts the node: on return clients are accepted and every group's replica runs, but for those that have lost
    /// their identity and ask for another, and those whose stored bytes are damaged.
    ///
    /// Whether a group has a leader depends on its other replicas; `/health/ready` tells.
    ///
    /// # Errors
    /// [`StartError`]; everything that was started has been stopped then.
    pub async fn start(options: Options, start: StartOptions, ports: ClientPorts) -> Result<Self, StartError> {
        if options.node.insecure_public {
            tracing::warn!(
                "insecure_public is set: whoever reaches the ports can read, write and administer everything"
            );
        }
        descriptors::ensure(options.groups.len())
            .map_err(|(limit, needed)| StartError::Descriptors { limit, needed })?;
        let dir = &options.node.data_dir;
        std::fs::create_dir_all(dir).map_err(|source| StartError::Directory { dir: dir.clone(), source })?;
        let tracer = Tracer::start(&options.tracing, &options.node.name).map_err(|why| StartError::Tracing { why })?;
        let listeners = bind(&options, ports.inherited)?;
        make_ballast(&options);
        let cold_reads = Arc::new(raft_store::ReadBudget::new(options.storage.cold_read_rate));

        let groups: Vec<_> = options.groups.iter().map(|group| Arc::new(NodeGroup::new(group.clone(), dir))).collect();
        let registration = Registration::start(
            &RegistrationOptions { cluster: options.cluster.name.clone(), name_servers: options.node.namesrv.clone() },
            groups.iter().map(|group| Arc::clone(group) as _).collect(),
        );
        let hub_options = PeerHubOptions {
            cluster_id: options.cluster.id,
            node: options.node.name.clone(),
            groups: options.groups.iter().map(|group| group.name.clone()).collect(),
        };
        let hub = PeerHub::start(hub_options, listeners.raft).map_err(|source| StartError::Listen {
            purpose: "peers".to_owned(),
            addr: options.node.raft_listen,
            source,
        })?;
        let clock = WatchedClock::open(options.node.data_dir.join("clock"));
        let pressure = pressure_probe(groups.clone());
        let retention = NodeRetention::new(options.retention.clone(), clock, start.started, pressure);
        let shared = Arc::new_cyclic(|own| Shared {
            own: own.clone(),
            groups,
            registration: registration.handle(),
            hub: hub.clone(),
            state: Mutex::new(NodeState::Starting),
            started: start.started,
            ready_after: AtomicU64::new(0),
            failure: watch::Sender::new(None),
            retention: Arc::new(retention),
            events: EventLog::new(&options.node.name),
            drain: Drain::open(&options.node.data_dir),
            begin: Begin::new(),
            refused_calls: RefusedCalls::default(),
            options,
        });
        let weak = Arc::downgrade(&shared);
        hub.set_leads(Arc::new(move || weak.upgrade().map_or(0, |shared| shared.leads_or_will())));
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let mut node = Self {
            client_servers: Vec::new(),
            http_stop: CancellationToken::new(),
            http: tokio::spawn(std::future::ready(())),
            shared,
            hub,
            registration,
            stop,
            tasks,
            tracer,
        };
        let started = match node.serve_clients(listeners.clients) {
            Ok(()) => {
                if let Some(accepting) = ports.accepting {
                    // Whoever wanted to know may have gone.
                    let _ = accepting.send(());
                }
                node.serve_http(listeners.http, listeners.watch);
                let start = node.await_begin(start).await;
                let started = node.start_groups(start, &cold_reads).await;
                // From now on the groups know whom to talk to.
                node.hub.expect([]);
                started
            }
            Err(error) => Err(error),
        };
        match started {
            Ok(()) => {
                *node.shared.state.lock() = NodeState::Running;
                node.shared.begin.ended(None);
                tracing::info!(after = ?start.started.elapsed(), "every replica runs");
                node.spawn(note_ready(Arc::clone(&node.shared)));
                let watched = Arc::clone(&node.shared);
                node.spawn(async move { match events::watch(watched).await {} });
                if let Some(after) = node.shared.options.raft.balance_after {
                    let balanced = Arc::clone(&node.shared);
                    node.spawn(async move { match balance::run(balanced, after).await {} });
                }
                let (retention, groups) = (Arc::clone(&node.shared.retention), node.shared.groups.clone());
                node.spawn(async move { retention.run(&groups).await });
                Ok(node)
            }
            Err(error) => {
                node.shared.begin.ended(Some(describe_failure(&error)));
                node.close().await;
                Err(error)
            }
        }
    }

    /// Waits until the node may begin with its empty directories, if it is to wait for that.
    async fn await_begin(&self, start: StartOptions) -> StartOptions {
        let groups = &self.shared.groups;
        if start.bootstrap != Bootstrap::WhenCalled {
            return start;
        }
        if groups.iter().any(|group| group.options().joins() || group.has_files()) {
            return StartOptions { bootstrap: Bootstrap::Forbidden, ..start };
        }
        let own = &self.shared.options.node.name;
        self.hub.expect(groups.iter().flat_map(|group| group.known_members().others(own)));
        tracing::info!("has nothing: waits for `gantry cluster bootstrap`, on this node or on another one");
        self.shared.begin.wait().await;
        tracing::info!("told to begin a new cluster");
        StartOptions { bootstrap: Bootstrap::Allowed, ..start }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let _ = stop.run_until_cancelled(task).await;
        });
    }

    fn serve_clients(&mut self, listeners: Vec<std::net::TcpListener>) -> Result<(), StartError> {
        let remoting = remoting::Options::default();
        let admission = Arc::new(remoting::Admission::new(&remoting));
        for (group, listener) in self.shared.groups.iter().zip(listeners) {
            let server =
                remoting::Server::new(remoting.clone(), group.handler()).with_admission(Arc::clone(&admission));
            let server = server.start(listener).map_err(|error| StartError::Listen {
                purpose: format!("clients of {}", group.name()),
                addr: group.options().client_listen,
                source: io::Error::other(error),
            })?;
            self.client_servers.push(server);
        }
        let groups = self.shared.groups.clone();
        self.spawn(async move {
            loop {
                tokio::time::sleep(EXPIRE_INTERVAL).await;
                groups.iter().for_each(|group| group.expire_waiting(Instant::now()));
            }
        });
        Ok(())
    }

    fn serve_http(&mut self, listener: tokio::net::TcpListener, watch: Option<tokio::net::TcpListener>) {
        let (options, admin) = (&self.shared.options, Arc::clone(&self.shared));
        let per_second = options.http.requests_per_second;
        let api = Api::new(admin, options.http.tokens.clone(), per_second, options.node.http_listen);
        self.hub.set_admin_handler(Arc::new(api.clone()));
        let mut served = vec![(api, listener)];
        if let (Some(listener), Some(own)) = (watch, options.http.watch_listen) {
            served.push((Api::watching(Arc::clone(&self.shared) as _, per_second, own), listener));
        }
        let stop = self.http_stop.clone();
        self.http = tokio::spawn(async move {
            let served = served.into_iter().map(|(api, listener)| api.serve(listener, stop.clone()));
            for error in futures::future::join_all(served).await.into_iter().filter_map(Result::err) {
                tracing::error!(%error, "http has ended");
            }
        });
    }

    async fn start_groups(
        &self,
        start: StartOptions,
        cold_reads: &Arc<raft_store::ReadBudget>,
    ) -> Result<(), StartError> {
        let catch_up = self.shared.options.raft.catch_up_rate.map(|rate| Arc::new(CatchUpRate::new(rate)));
        let context = group::Context {
            cluster: self.shared.options.cluster.clone(),
            node: self.shared.options.node.clone(),
            storage: self.shared.options.storage.clone(),
            cold_reads: Arc::clone(cold_reads),
            derived_files_max: descriptors::derived_files_max(self.shared.groups.len()),
            raft: self.shared.options.raft.clone(),
            broker: self.shared.options.broker.clone(),
            start,
            hub: self.hub.clone(),
            catch_up,
            registration: self.registration.handle(),
            retention_time: self.shared.options.retention.time,
            metric_names_max: self.shared.options.metrics.names_max,
            drop_expired: self.shared.retention.wanted(),
            events: self.shared.events.clone(),
            drained: self.shared.drain.subscribe(),
            tracer: self.tracer.clone(),
        };
        let mut starting = tokio::task::JoinSet::new();
        for group in &self.shared.groups {
            let for_replay = Arc::clone(group);
            self.spawn(async move { match for_replay.follow_replay().await {} });
            let (group, context) = (Arc::clone(group), context.clone());
            starting.spawn(async move { group.start(&context).await.map(|()| group) });
        }
        let mut result = Ok(());
        while let Some(joined) = starting.join_next().await {
            let started = joined.unwrap_or_else(|_| Err(StartError::Panicked { group: "one of this node".to_owned() }));
            match started {
                // Looked after from now on, however long the others take.
                Ok(group) => self.look_after(group, context.clone()),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    fn look_after(&self, group: Arc<NodeGroup>, context: group::Context) {
        let shared = Arc::clone(&self.shared);
        self.spawn(async move {
            let reason = Box::pin(group.supervise(context)).await;
            tracing::error!(group = group.name(), reason, "replica has failed");
            shared.failure.send_if_modified(|first| {
                let is_first = first.is_none();
                first.get_or_insert(format!("group {}: {reason}", group.name()));
                is_first
            });
        });
    }

    /// Resolves when a replica has failed for good, and says why. The process must end: call [`Node::abandon`].
    pub async fn failed(&self) -> String {
        let mut failure = self.shared.failure.subscribe();
        match failure.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Hands the leaderships of the groups that still work to other nodes, within two seconds, and ends. Health says
    /// failed meanwhile.
    pub async fn abandon(self) {
        *self.shared.state.lock() = NodeState::Failed;
        if tokio::time::timeout(FAILED_HAND_OVER_TIME_MAX, self.hand_over()).await.is_err() {
            tracing::warn!("not every leadership could be handed over in time");
        }
        // Nothing else is closed: what is left must not be marked as clean, and peers must see the process go at once.
    }

    /// Stops the node and marks its data as clean.
    ///
    /// With [`StopKind::Node`] it forwards requests for the configured time after its leaderships have moved, unless
    /// `hurry` resolves before.
    pub async fn stop(self, kind: StopKind, hurry: impl Future<Output = ()>) {
        *self.shared.state.lock() = NodeState::Stopping;
        match kind {
            StopKind::Node => {
                if tokio::time::timeout(HAND_OVER_TIME_MAX, self.hand_over()).await.is_err() {
                    tracing::warn!("not every leadership could be handed over in time");
                }
            }
            StopKind::Cluster => {
                self.flush_offsets().await;
                tokio::time::sleep(LAST_ENTRIES_TIME).await;
            }
        }
        let forward = kind == StopKind::Node && self.shared.groups.iter().any(|group| group.is_led_elsewhere());
        if forward {
            let time = self.shared.options.node.stop_forward_time;
            // Clients that ask for a route from now on do not get to know this node.
            self.shared.registration.withdraw();
            tracing::info!(?time, "forwarding requests until clients know the new leaders");
            tokio::select! {
                () = tokio::time::sleep(time) => {}
                () = hurry => tracing::info!("asked again: stopping now"),
            }
            // Another node may have died meanwhile, and its groups have come here.
            if tokio::time::timeout(HAND_OVER_TIME_MAX, self.hand_over()).await.is_err() {
                tracing::warn!("stopping as a leader");
            }
        }
        self.close().await;
        tracing::info!("stopped");
    }

    async fn flush_offsets(&self) {
        let flushes = self.shared.groups.iter().map(|group| group.flush_offsets());
        if tokio::time::timeout(OFFSETS_TIME_MAX, futures::future::join_all(flushes)).await.is_err() {
            tracing::warn!("consumer offsets of the last moments are not stored");
        }
    }

    async fn hand_over(&self) {
        self.flush_offsets().await;
        futures::future::join_all(self.shared.groups.iter().map(|group| group.hand_over())).await;
    }

    async fn close(mut self) {
        self.registration.stop().await;
        // Held pulls are answered while the servers wait for what is in flight.
        let servers = self.client_servers.into_iter().map(|server| server.shutdown(DRAIN_TIME_MAX));
        let groups = self.shared.groups.iter().map(|group| group.quiesce());
        futures::join!(futures::future::join_all(servers), futures::future::join_all(groups));
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        futures::future::join_all(self.shared.groups.iter().map(|group| group.close())).await;
        self.hub.shutdown().await;
        if let Some(tracer) = &self.tracer {
            tracer.close().await;
        }
        self.http_stop.cancel();
        if tokio::time::timeout(HTTP_TIME_MAX, &mut self.http).await.is_err() {
            self.http.abort();
        }
    }
}

/// Makes sure of the ballast file. Nothing depends on it, so a node starts without one.
fn make_ballast(options: &Options) {
    let dir = &options.node.data_dir;
    let keep_free = DiskSpace::of(dir).map_or(0, |space| 2 * options.storage.disk.free_bytes_min(&space));
    match Ballast::ensure(dir, options.storage.ballast_bytes, keep_free) {
        Ok(Ballast::NoRoom) => tracing::warn!(dir = %dir.display(), "too little room for a ballast file"),
        Ok(Ballast::Present | Ballast::Unwanted) => {}
        Err(error) => tracing::warn!(%error, "no ballast file"),
    }
}

fn bind(options: &Options, mut inherited: Vec<std::net::TcpListener>) -> Result<Listeners, StartError> {
    let listen = |purpose: &str, addr: SocketAddr| {
        let bound = remoting::bind(addr).map_err(io::Error::other).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        bound.map_err(|source| StartError::Listen { purpose: purpose.to_owned(), addr, source })
    };
    let to_tokio = |purpose: &str, addr: SocketAddr| {
        listen(purpose, addr).and_then(|listener| {
            tokio::net::TcpListener::from_std(listener).map_err(|source| StartError::Listen {
                purpose: purpose.to_owned(),
                addr,
                source,
            })
        })
    };
    let clients = options
        .groups
        .iter()
        .map(|group| {
            let own = |listener: &std::net::TcpListener| listener.local_addr().ok() == Some(group.client_listen);
            match inherited.iter().position(own) {
                Some(found) => Ok(inherited.swap_remove(found)),
                None => listen(&format!("clients of {}", group.name), group.client_listen),
            }
        })
        .collect::<Result<_, _>>()?;
    if let Some(addr) = inherited.first().and_then(|stray| stray.local_addr().ok()) {
        let wanted: Vec<_> = options.groups.iter().map(|group| group.client_listen.to_string()).collect();
        return Err(StartError::Inherited { addr, wanted: wanted.join(", ") });
    }
    Ok(Listeners {
        clients,
        raft: to_tokio("peers", options.node.raft_listen)?,
        http: to_tokio("http", options.node.http_listen)?,
        watch: options.http.watch_listen.map(|addr| to_tokio("health and metrics", addr)).transpose()?,
    })
}

/// What the disk asks of retention: the fullest of those that replicas have seen, which is one and the same.
fn pressure_probe(groups: Vec<Arc<NodeGroup>>) -> retention::PressureProbe {
    Arc::new(move || {
        let levels = groups.iter().filter_map(|group| Some(group.running()?.disk.subscribe().borrow().level));
        match levels.max() {
            None | Some(DiskLevel::Calm) => Pressure::None,
            Some(DiskLevel::Early) => Pressure::Early,
            Some(DiskLevel::Forced | DiskLevel::Full) => Pressure::Forced,
        }
    })
}

/// Notes when every group has had a leader for the first time.
async fn note_ready(shared: Arc<Shared>) {
    futures::future::join_all(shared.groups.iter().map(|group| group.led())).await;
    let elapsed = shared.started.elapsed();
    shared.ready_after.store(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX - 1) + 1, Ordering::Release);
    tracing::info!(after = ?elapsed, "ready: every group has a leader");
}

#[cfg(test)]
mod tests;
