//! Nodes of one process that talk over loopback, can be killed, and start again on the same address and log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use raft_store::Member;
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout};

use super::stores::{MemLog, MemState};
use crate::peer::{GroupIdentity, PeerHub, PeerHubOptions};
use crate::raft::{CatchUpRate, GroupRaft, GroupRaftOptions, Role, Timing};

pub(crate) const CLUSTER: [u8; 16] = *b"cluster-of-tests";
pub(crate) const GROUP: &str = "broker-a";
/// Every wait in these tests ends by then, with a failure.
pub(crate) const LONG: Duration = Duration::from_secs(20);

pub(crate) struct Replica {
    pub(crate) hub: PeerHub,
    pub(crate) raft: GroupRaft<MemState>,
    pub(crate) state: MemState,
}

pub(crate) struct Cluster {
    pub(crate) members: BTreeMap<u64, Member>,
    pub(crate) logs: BTreeMap<u64, MemLog>,
    starts: BTreeMap<u64, u64>,
    pub(crate) running: BTreeMap<u64, Replica>,
    pub(crate) preferred: Option<u64>,
    /// For replicas started from now on.
    pub(crate) catch_up: Option<Arc<CatchUpRate>>,
    timing: Timing,
}

pub(crate) fn identity(node_id: u64, start_counter: u64) -> GroupIdentity {
    GroupIdentity { group: GROUP.to_owned(), node_id, store_uuid: [node_id as u8; 16], start_counter, generation: 0 }
}

pub(crate) fn member(node_id: u64, raft_addr: impl ToString) -> Member {
    Member { node: format!("n{node_id}"), raft_addr: raft_addr.to_string(), client_addr: String::new() }
}

pub(crate) async fn hub(node_id: u64, listener: TcpListener) -> PeerHub {
    let options = PeerHubOptions { cluster_id: CLUSTER, node: format!("n{node_id}"), groups: vec![GROUP.to_owned()] };
    PeerHub::start(options, listener).unwrap()
}

impl Cluster {
    /// Starts `count` nodes; node 1 starts the group.
    pub(crate) async fn start(count: u64) -> Self {
        let cluster = Self::prepare(count, None, None, Timing::default()).await;
        cluster.running[&1].raft.initialize().await.unwrap();
        cluster.leader().await;
        cluster
    }

    /// As [`Cluster::start`], with a rate for members that are far behind, and a leader that stays however busy the
    /// machine is.
    pub(crate) async fn start_with_rate(count: u64, bytes_per_second: u64) -> Self {
        let rate = Arc::new(CatchUpRate::new(bytes_per_second));
        let timing = Timing {
            heartbeat_interval: Duration::from_millis(100),
            election_timeout_min: LONG,
            election_timeout_max: 2 * LONG,
        };
        let cluster = Self::prepare(count, None, Some(rate), timing).await;
        cluster.running[&1].raft.initialize().await.unwrap();
        cluster.leader().await;
        cluster
    }

    async fn prepare(count: u64, preferred: Option<u64>, catch_up: Option<Arc<CatchUpRate>>, timing: Timing) -> Self {
        let mut listeners = Vec::new();
        let mut members = BTreeMap::new();
        for id in 1..=count {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            members.insert(id, member(id, listener.local_addr().unwrap()));
            listeners.push((id, listener));
        }
        let logs = members.keys().map(|id| (*id, MemLog::default())).collect();
        let mut cluster =
            Self { members, logs, starts: BTreeMap::new(), running: BTreeMap::new(), preferred, catch_up, timing };
        for (id, listener) in listeners {
            cluster.start_on(id, listener, false).await;
        }
        cluster
    }

    async fn start_on(&mut self, id: u64, listener: TcpListener, restarted: bool) {
        let hub = hub(id, listener).await;
        let starts = self.starts.entry(id).or_insert(0);
        *starts += 1;
        let options = GroupRaftOptions {
            identity: identity(id, *starts),
            members: self.members.clone(),
            preferred_leader: self.preferred.map(|id| format!("n{id}")),
            restarted,
            started: Instant::now(),
            timing: self.timing,
            propose_timeout: Duration::from_secs(5).max(self.timing.election_timeout_min),
            catch_up: self.catch_up.clone(),
        };
        let state = MemState::default();
        let raft = GroupRaft::start(options, &hub, self.logs[&id].clone(), state.clone()).await.unwrap();
        self.running.insert(id, Replica { hub, raft, state });
    }

    /// A node that was killed starts again on its address and log.
    pub(crate) async fn restart(&mut self, id: u64) {
        let listener = TcpListener::bind(&self.members[&id].raft_addr).await.unwrap();
        self.start_on(id, listener, true).await;
    }

    /// Ends a node as `kill -9` does: sockets close, nothing is said.
    pub(crate) async fn kill(&mut self, id: u64) -> Replica {
        let replica = self.running.remove(&id).unwrap();
        replica.hub.shutdown_now();
        replica.raft.shutdown().await;
        replica.hub.shutdown().await;
        replica
    }

    /// The leader whose gates are open.
    pub(crate) async fn leader(&self) -> u64 {
        let waits = self.running.iter().map(|(id, replica)| {
            let mut role = replica.raft.role();
            let id = *id;
            Box::pin(async move {
                role.wait_for(Role::is_ready_leader).await.unwrap();
                id
            })
        });
        timeout(LONG, futures::future::select_all(waits)).await.expect("no leader").0
    }

    pub(crate) fn raft(&self, id: u64) -> &GroupRaft<MemState> {
        &self.running[&id].raft
    }

    pub(crate) fn followers(&self, leader: u64) -> Vec<u64> {
        self.running.keys().copied().filter(|id| *id != leader).collect()
    }

    pub(crate) async fn stop(mut self) {
        for (_, replica) in std::mem::take(&mut self.running) {
            replica.raft.shutdown().await;
            replica.hub.shutdown().await;
        }
    }
}

/// Waits for `future`, and fails instead of waiting for ever.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(LONG, future).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}
