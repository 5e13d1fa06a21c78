//! The peer port: how the nodes of a cluster talk to each other.
//!
//! A node has one peer port for all its groups. Whoever connects first says who it is and for what (`handshake`), and
//! is turned away with a logged reason if anything does not fit; only then is another frame read. Each group has its own
//! connections for its append stream, its heartbeats and votes, forwarded client requests, and snapshots, so that no
//! long transfer delays a heartbeat. One idle connection between each two nodes tells when the other process ends.
//!
//! ```text
//!  raft::network -- Link (calls in flight by sequence) --+                +-- GroupService (raft)
//!  processors ----- forward() --------------------------+== frames ======+-- ForwardHandler (processors)
//!  raft::network -- append stream (its own socket) -----+                +-- CopyHandler (client table)
//! ```
//!
//! This module knows frames, connections and identities. What a Raft message says is known to `raft` alone.

mod admin;
mod error;
mod forward;
pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod join;
pub(crate) mod link;
mod liveness;
mod outbox;
pub(crate) mod range;
pub(crate) mod rejoin;
mod server;
pub(crate) mod service;
pub(crate) mod stream;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, RwLock};
use protocol::RemotingCommand;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::admin::{AdminCall, AdminHandler, AdminReply};
pub(crate) use self::error::FrameError;
pub use self::error::{ForwardError, PeerError};
pub(crate) use self::forward::RelayLink;
pub use self::forward::{CopyHandler, ForwardHandler, ForwardReply, Forwarder};
use self::frame::{Envelope, FrameWriter, Kind};
use self::handshake::{Class, Greeting, GroupGreeting, Outcast};
pub use self::handshake::{GroupIdentity, LogMark, VoteMark};
pub(crate) use self::join::JoinHandler;
pub use self::join::JoinToken;
use self::link::Link;
use self::range::RangeHandler;
use self::service::GroupService;
use self::stream::{LARGE_CHUNK_BYTES, PeerStream, SMALL_CHUNK_BYTES};
use crate::state_machine::members::Removed;

/// Time for a peer's machine to answer a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Time for a peer to answer the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);

/// Where a member of a group is reached by its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// The node's name.
    pub node: String,
    /// Its peer port: a host name or an IP address with a port.
    pub raft_addr: String,
}

/// What a hub needs to know about its node.
#[derive(Clone, Debug)]
pub struct PeerHubOptions {
    /// The cluster; peers of another one are turned away.
    pub cluster_id: [u8; 16],
    /// This node's name.
    pub node: String,
    /// The groups that this node hosts, while their replicas run.
    pub groups: Vec<String>,
}

/// What a peer was like when it last introduced itself.
struct Seen {
    store_uuid: [u8; 16],
    start_counter: u64,
    /// Of its process.
    incarnation: u64,
}

/// Tells the identity that a retired one was replaced by.
pub(crate) type Leads = Arc<dyn Fn() -> u32 + Send + Sync>;
pub(crate) type SuccessorOf = Arc<dyn Fn(u64) -> Option<u64> + Send + Sync>;

/// Tells how an identity ceased to be a member, if it was removed.
pub(crate) type RemovalOf = Arc<dyn Fn(u64) -> Option<Removed> + Send + Sync>;

/// The peer port of a node. Cheap to clone.
#[derive(Clone)]
pub struct PeerHub(Arc<Hub>);

pub(crate) struct Hub {
    options: PeerHubOptions,
    incarnation: u64,
    local_addr: SocketAddr,
    groups: RwLock<HashMap<String, Arc<Group>>>,
    admin_handler: RwLock<Option<Arc<dyn AdminHandler>>>,
    /// Tells how many groups this node leads.
    leads: RwLock<Option<Leads>>,
    liveness: liveness::Liveness,
    /// Nodes that this one is to begin a cluster with, while no replica runs here.
    expected: RwLock<BTreeMap<String, PeerAddress>>,
    /// Ends what serves peers and the groups' links.
    cancel: CancellationToken,
    /// Ends the listener, after everything else.
    cancel_listener: CancellationToken,
    tasks: TaskTracker,
    listener_tasks: TaskTracker,
}

/// One group on this node.
pub(crate) struct Group {
    pub(crate) identity: GroupIdentity,
    name: Bytes,
    members: RwLock<BTreeMap<u64, PeerAddress>>,
    service: RwLock<Option<Arc<dyn GroupService>>>,
    forward_handler: RwLock<Option<Arc<dyn ForwardHandler>>>,
    copy_handler: RwLock<Option<Arc<dyn CopyHandler>>>,
    range_handler: RwLock<Option<Arc<dyn RangeHandler>>>,
    join_handler: RwLock<Option<Arc<dyn JoinHandler>>>,
    links: Mutex<HashMap<(u64, Class), Link>>,
    /// Latest start seen of each other identity: an older one is a rolled-back disk.
    seen: Mutex<HashMap<u64, Seen>>,
    breaks: Mutex<HashMap<u64, watch::Sender<u64>>>,
    /// The names of all nodes that are, or were, known to hold a replica.
    nodes: RwLock<BTreeSet<String>>,
    /// Tells the identity that a retired one was replaced by.
    successor_of: RwLock<Option<SuccessorOf>>,
    /// Tells which identities were removed.
    removal_of: RwLock<Option<RemovalOf>>,
    /// Why peers do not accept this replica's identity any more.
    outcast: watch::Sender<Option<String>>,
    cancel: CancellationToken,
}

impl fmt::Debug for PeerHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerHub").field("node", &self.0.options.node).field("local_addr", &self.0.local_addr).finish()
    }
}

impl PeerHub {
    /// Serves the peer port on `listener`, which must have been bound by this process and not inherited: peers take a
    /// refused connection as proof that the process is gone.
    ///
    /// # Errors
    /// If the listener has no local address.
    pub fn start(options: PeerHubOptions, listener: TcpListener) -> std::io::Result<Self> {
        let local_addr = listener.local_addr()?;
        let hub = Self(Arc::new(Hub {
            options,
            incarnation: rand::random(),
            local_addr,
            groups: RwLock::default(),
            admin_handler: RwLock::default(),
            leads: RwLock::default(),
            liveness: liveness::Liveness::default(),
            expected: RwLock::default(),
            cancel: CancellationToken::new(),
            cancel_listener: CancellationToken::new(),
            tasks: TaskTracker::new(),
            listener_tasks: TaskTracker::new(),
        }));
        hub.0.listener_tasks.spawn(server::accept(Arc::clone(&hub.0), listener));
        Ok(hub)
    }

    /// Who tells how many groups this node leads.
    pub(crate) fn set_leads(&self, leads: Leads) {
        *self.0.leads.write() = Some(leads);
    }

    /// The bound address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr
    }

    /// This node's name.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.0.options.node
    }

    /// Announces a group hosted here, with the members it is configured with, this node's replica among them. Peers are
    /// let in for it once its replica runs.
    pub fn add_group(&self, identity: GroupIdentity, members: BTreeMap<u64, PeerAddress>) {
        let group = Arc::new(Group {
            name: Bytes::copy_from_slice(identity.group.as_bytes()),
            members: RwLock::default(),
            service: RwLock::default(),
            forward_handler: RwLock::default(),
            copy_handler: RwLock::default(),
            range_handler: RwLock::default(),
            join_handler: RwLock::default(),
            links: Mutex::default(),
            seen: Mutex::default(),
            breaks: Mutex::default(),
            nodes: RwLock::default(),
            successor_of: RwLock::default(),
            removal_of: RwLock::default(),
            outcast: watch::Sender::new(None),
            cancel: self.0.cancel.child_token(),
            identity,
        });
        let name = group.identity.group.clone();
        if let Some(before) = self.0.groups.write().insert(name.clone(), group) {
            before.cancel.cancel();
        }
        self.set_members(&name, members);
    }

    /// Stops serving a group and drops its connections.
    pub fn remove_group(&self, group: &str) {
        if let Some(group) = self.0.groups.write().remove(group) {
            group.cancel.cancel();
            *group.service.write() = None;
        }
    }

    /// Adds members to those known of a group, or moves them.
    pub(crate) fn set_members(&self, group: &str, members: BTreeMap<u64, PeerAddress>) {
        let Some(group) = self.0.group(group) else { return };
        self.know(&group, &members);
        group.members.write().extend(members);
    }

    /// Makes `members` all there are: who is not among them is out.
    pub(crate) fn replace_members(&self, group: &str, members: BTreeMap<u64, PeerAddress>) {
        let Some(group) = self.0.group(group) else { return };
        self.know(&group, &members);
        *group.members.write() = members;
    }

    fn know(&self, group: &Group, members: &BTreeMap<u64, PeerAddress>) {
        for address in members.values() {
            if address.node != self.0.options.node {
                self.0.watch_peer(address);
            }
            group.nodes.write().insert(address.node.clone());
        }
    }

    /// Lets peers reach the replica behind `group`; `None` shuts them out again.
    pub(crate) fn set_service(&self, group: &str, service: Option<Arc<dyn GroupService>>) {
        if let Some(group) = self.0.group(group) {
            *group.service.write() = service;
        }
    }

    /// Who handles client requests that other replicas of `group` forward here.
    pub fn set_forward_handler(&self, group: &str, handler: Arc<dyn ForwardHandler>) {
        if let Some(group) = self.0.group(group) {
            *group.forward_handler.write() = Some(handler);
        }
    }

    /// Who serves copies of the client table of `group`.
    pub fn set_copy_handler(&self, group: &str, handler: Arc<dyn CopyHandler>) {
        if let Some(group) = self.0.group(group) {
            *group.copy_handler.write() = Some(handler);
        }
    }

    /// Who serves stretches of the log of `group`.
    pub(crate) fn set_range_handler(&self, group: &str, handler: Arc<dyn RangeHandler>) {
        if let Some(group) = self.0.group(group) {
            *group.range_handler.write() = Some(handler);
        }
    }

    /// Who answers calls of the HTTP side that other nodes pass on.
    pub fn set_admin_handler(&self, handler: Arc<dyn AdminHandler>) {
        *self.0.admin_handler.write() = Some(handler);
    }

    /// Nodes that this one is to begin a cluster with: calls of the HTTP side go to them, and are taken from them, although
    /// no replica runs here yet.
    pub fn expect(&self, nodes: impl IntoIterator<Item = PeerAddress>) {
        *self.0.expected.write() = nodes.into_iter().map(|address| (address.node.clone(), address)).collect();
    }

    /// The nodes that share a group with this one.
    #[must_use]
    pub fn other_nodes(&self) -> Vec<String> {
        self.0.other_nodes()
    }

    /// The same, and whether a connection to each stands.
    #[must_use]
    pub fn reachable(&self) -> BTreeMap<String, bool> {
        self.0.reachable()
    }

    /// Has another node answer a call of the HTTP side.
    ///
    /// # Errors
    /// [`ForwardError`] says whether it may have done what was asked.
    pub async fn pass_on(&self, node: &str, call: &AdminCall, limit: Duration) -> Result<AdminReply, ForwardError> {
        self.0.pass_on(node, call, limit).await
    }

    /// Passes a client's request on to member `to` of `group` and calls `done` once with its answer.
    ///
    /// Never blocks. Requests to one member share a connection and are answered in any order.
    pub fn forward_with(
        &self,
        group: &str,
        to: u64,
        origin: SocketAddr,
        request: &RemotingCommand,
        timeout: Duration,
        done: impl FnOnce(Result<RemotingCommand, ForwardError>) + Send + 'static,
    ) {
        let link = match self.0.link(group, to, Class::Forward) {
            Ok(link) => link,
            Err(error) => return done(Err(ForwardError::NotSent { reason: error.to_string() })),
        };
        forward::over(&link, origin, request, timeout, done);
    }

    /// Passes a client's request on to member `to` of `group` and waits for its answer.
    ///
    /// # Errors
    /// [`ForwardError`] says whether the request may have taken effect.
    pub async fn forward(
        &self,
        group: &str,
        to: u64,
        origin: SocketAddr,
        request: &RemotingCommand,
        timeout: Duration,
    ) -> Result<RemotingCommand, ForwardError> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        self.forward_with(group, to, origin, request, timeout, move |result| drop(answer.send(result)));
        answered.await.unwrap_or_else(|_| Err(ForwardError::Unknown { reason: "hub was dropped".to_owned() }))
    }

    /// Passes a one-way request on. It may get lost, as one-way requests may.
    ///
    /// # Errors
    /// [`ForwardError::NotSent`] if it surely gets lost.
    pub fn forward_oneway(
        &self,
        group: &str,
        to: u64,
        origin: SocketAddr,
        request: &RemotingCommand,
    ) -> Result<(), ForwardError> {
        let link = self
            .0
            .link(group, to, Class::Forward)
            .map_err(|error| ForwardError::NotSent { reason: error.to_string() })?;
        let mut fields = BytesMut::with_capacity(20);
        forward::put_address(&mut fields, origin);
        link.notify(Kind::ForwardOneway, &fields, forward::encode_command(request, Vec::new()))?;
        Ok(())
    }

    /// A way to pass client requests of `group` on to a member while no replica runs here.
    pub(crate) fn relay_link(&self, group: &str, member: PeerAddress) -> RelayLink {
        let hub = Arc::clone(&self.0);
        let name = Bytes::copy_from_slice(group.as_bytes());
        let envelope = Envelope { group: name, ..hub.node_envelope() };
        let link = Link::new(envelope.clone());
        let driven = link.clone();
        self.0.tasks.spawn(async move {
            let dial = || async {
                let greeting = hub.greeting(Class::Relay, &member.node, &[]);
                hub.dial(&member, &envelope, &greeting).await.map(|(stream, _)| stream)
            };
            driven.drive(dial, hub.cancel.clone()).await;
        });
        RelayLink(link)
    }

    /// Asks member `to` of `group` for a copy of its client table. Request and answer are opaque here.
    ///
    /// # Errors
    /// If that member does not answer in time, or has no table yet.
    pub async fn copy_client_table(
        &self,
        group: &str,
        to: u64,
        request: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, ForwardError> {
        let link = self
            .0
            .link(group, to, Class::Forward)
            .map_err(|error| ForwardError::NotSent { reason: error.to_string() })?;
        Ok(link.ask(Kind::CopyClientTable, &[], vec![request], timeout).await?.tail)
    }

    /// Breaks this node's append stream to a member of `group`. A stalled stream holds purging back; a broken one
    /// does not, and the follower heals by another stream or by snapshot.
    pub fn break_stream(&self, group: &str, node_id: u64) {
        if let Some(group) = self.0.group(group)
            && let Some(breaks) = group.breaks.lock().get(&node_id)
        {
            breaks.send_modify(|count| *count += 1);
        }
    }

    /// Ends all connections, and the listener last: a closed port means a gone process to the peers.
    pub async fn shutdown(&self) {
        self.0.cancel.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.0.cancel_listener.cancel();
        self.0.listener_tasks.close();
        self.0.listener_tasks.wait().await;
    }

    /// Closes listener and connections at once, as the end of the process does.
    #[cfg(test)]
    pub(crate) fn shutdown_now(&self) {
        self.0.cancel_listener.cancel();
        self.0.cancel.cancel();
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.0
    }
}

impl Hub {
    pub(crate) fn group(&self, group: &str) -> Option<Arc<Group>> {
        self.groups.read().get(group).cloned()
    }

    fn all_groups(&self) -> Vec<Arc<Group>> {
        self.groups.read().values().cloned().collect()
    }

    /// Runs `task` until the hub shuts down.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let cancel = self.cancel.clone();
        self.tasks.spawn(async move {
            let _ = cancel.run_until_cancelled(task).await;
        });
    }

    /// The link of `class` to a member of a group, made and driven from its first use on.
    pub(crate) fn link(self: &Arc<Self>, group: &str, to: u64, class: Class) -> Result<Link, PeerError> {
        let group =
            self.group(group).ok_or_else(|| PeerError::Unavailable(format!("group {group} is not hosted here")))?;
        let mut links = group.links.lock();
        if let Some(link) = links.get(&(to, class)) {
            return Ok(link.clone());
        }
        if group.address(to).is_none() {
            return Err(PeerError::Unavailable(format!("node {to} is no member of group {}", group.identity.group)));
        }
        let link = Link::new(group.envelope(self, to));
        links.insert((to, class), link.clone());
        drop(links);
        let hub = Arc::clone(self);
        let cancel = group.cancel.clone();
        let driven = link.clone();
        self.tasks.spawn(async move {
            let dial = || async { hub.dial_group(&group, to, class).await.map(|(stream, _)| stream) };
            driven.drive(dial, cancel).await;
        });
        Ok(link)
    }

    /// Connects to a member of a group and introduces this node.
    pub(crate) async fn dial_group(
        &self,
        group: &Group,
        to: u64,
        class: Class,
    ) -> Result<(PeerStream, Greeting), PeerError> {
        let address = group.address(to).ok_or_else(|| {
            PeerError::Unavailable(format!("node {to} is no member of group {}", group.identity.group))
        })?;
        let envelope = group.envelope(self, to);
        let greeting = self.greeting(class, &address.node, std::slice::from_ref(&group.greeting()));
        let (stream, welcome) =
            self.dial(&address, &envelope, &greeting).await.inspect_err(|error| group.note_refusal(error))?;
        let Some(theirs) = welcome.group(&group.identity.group) else {
            return Err(PeerError::Protocol(format!("peer says nothing about group {}", group.identity.group)));
        };
        if class == Class::Repair {
            return Ok((stream, welcome));
        }
        if theirs.identity.node_id != to {
            return Err(PeerError::Protocol(format!("peer is node {}, not {to}", theirs.identity.node_id)));
        }
        group.note_generation(&theirs.identity);
        group.remember(&theirs.identity, welcome.incarnation).map_err(PeerError::Protocol)?;
        Ok((stream, welcome))
    }

    /// Connects to a node, outside any group.
    async fn dial_node(&self, address: &PeerAddress) -> Result<(PeerStream, Greeting), PeerError> {
        let envelope = self.node_envelope();
        let groups: Vec<GroupGreeting> = self.all_groups().iter().map(|group| group.greeting()).collect();
        let greeting = self.greeting(Class::Control, &address.node, &groups);
        self.dial(address, &envelope, &greeting).await
    }

    async fn dial(
        &self,
        address: &PeerAddress,
        envelope: &Envelope,
        greeting: &Greeting,
    ) -> Result<(PeerStream, Greeting), PeerError> {
        let mut stream = stream::connect(&address.raft_addr, CONNECT_TIMEOUT).await?;
        let mut hello = FrameWriter::new(Kind::Hello, 0, envelope, 256);
        greeting.encode(hello.fields());
        let exchange = async {
            stream.send(hello).await?;
            stream.reader.next().await
        };
        let frame = tokio::time::timeout(HANDSHAKE_TIMEOUT, exchange)
            .await
            .map_err(|_| PeerError::Timeout("shaking hands with a peer"))??;
        let welcome = match frame.kind {
            Kind::Welcome => Greeting::decode(&frame)?,
            Kind::Refused => return Err(PeerError::Refused(frame.fields().text("reason")?)),
            kind => return Err(PeerError::Protocol(format!("{kind:?} instead of a welcome"))),
        };
        if frame.envelope.cluster_id != self.options.cluster_id {
            return Err(PeerError::Protocol("peer belongs to another cluster".to_owned()));
        }
        if welcome.node != address.node {
            return Err(PeerError::Protocol(format!("peer is node {}, not {}", welcome.node, address.node)));
        }
        stream.admitted(chunk_bytes(greeting.class));
        Ok((stream, welcome))
    }

    /// The envelope of what concerns no group.
    fn node_envelope(&self) -> Envelope {
        Envelope { cluster_id: self.options.cluster_id, group: Bytes::new(), sender: 0, target: 0 }
    }

    fn greeting(&self, class: Class, target_node: &str, groups: &[GroupGreeting]) -> Greeting {
        Greeting {
            class,
            node: self.options.node.clone(),
            target_node: target_node.to_owned(),
            incarnation: self.incarnation,
            groups: groups.to_vec(),
        }
    }
}

impl Group {
    pub(crate) fn address(&self, node_id: u64) -> Option<PeerAddress> {
        self.members.read().get(&node_id).cloned()
    }

    /// The envelope of what this replica sends to another.
    pub(crate) fn envelope(&self, hub: &Hub, target: u64) -> Envelope {
        Envelope { cluster_id: hub.options.cluster_id, group: self.name.clone(), sender: self.identity.node_id, target }
    }

    pub(crate) fn service(&self) -> Option<Arc<dyn GroupService>> {
        self.service.read().clone()
    }

    /// Counts the requests to break this node's append stream to `node_id`.
    pub(crate) fn breaks(&self, node_id: u64) -> watch::Receiver<u64> {
        self.breaks.lock().entry(node_id).or_insert_with(|| watch::Sender::new(0)).subscribe()
    }

    fn greeting(&self) -> GroupGreeting {
        let (last_log, vote) = self.service().map_or((None, None), |service| service.marks());
        GroupGreeting { identity: self.identity.clone(), last_log, vote }
    }

    /// Notes who speaks for a member, and refuses whoever shows an older state than was seen before. Each start of a
    /// store has a number of its own, so a number that comes again from another process is as telling as a lower one.
    fn remember(&self, theirs: &GroupIdentity, incarnation: u64) -> Result<(), String> {
        let GroupIdentity { group, node_id, store_uuid, start_counter, .. } = theirs;
        let now = Seen { store_uuid: *store_uuid, start_counter: *start_counter, incarnation };
        let mut seen = self.seen.lock();
        match seen.get(node_id) {
            Some(before) if before.store_uuid != *store_uuid => {
                return Err(format!(
                    "node {node_id} of group {group} shows another store than before: its disk was replaced"
                ));
            }
            Some(before)
                if before.start_counter > *start_counter
                    || before.start_counter == *start_counter && before.incarnation != incarnation =>
            {
                return Err(format!(
                    "{}: node {node_id} of group {group} shows start {start_counter} after start {}",
                    Outcast::RolledBack.word(),
                    before.start_counter
                ));
            }
            _ => {}
        }
        seen.insert(*node_id, now);
        Ok(())
    }
}

fn chunk_bytes(class: Class) -> usize {
    match class {
        Class::Control | Class::Rpc | Class::Rejoin | Class::Join => SMALL_CHUNK_BYTES,
        Class::Append | Class::Forward | Class::Relay | Class::Snapshot | Class::Repair | Class::Admin => {
            LARGE_CHUNK_BYTES
        }
    }
}

#[cfg(test)]
mod tests;
