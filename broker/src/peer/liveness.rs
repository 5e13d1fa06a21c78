//! Who is gone: one idle connection to every other node, and what its end proves.
//!
//! When the connection to a node ends, its port is dialled at once. A refusal proves that no process listens there any
//! more; a greeting with another incarnation proves that a new process has taken its place. Anything less certain, a
//! time-out or an unreachable host, proves nothing and is left to the timers of Raft.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};

use super::error::PeerError;
use super::frame::{FrameWriter, Kind};
use super::stream::PeerStream;
use super::{Hub, PeerAddress};

/// First and longest pause between attempts to reach a node that is gone.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_millis(500);
/// After a connection has ended, the port is dialled this often for this long: the kernel closes the sockets of a killed
/// process one after another, and a connection may come before the listener.
const SETTLE_INTERVAL: Duration = Duration::from_millis(1);
const SETTLE_FOR: Duration = Duration::from_millis(200);
/// How often an idle connection is tried. A peer that does not answer by the next time has lost it.
const PING_INTERVAL: Duration = Duration::from_secs(2);

/// The watched nodes.
#[derive(Default)]
pub(super) struct Liveness {
    watched: Mutex<HashMap<String, Arc<Watched>>>,
}

#[derive(Default)]
struct Watched {
    address: Mutex<Option<PeerAddress>>,
    /// Dial now.
    nudge: Notify,
    gone: Mutex<bool>,
    /// A connection to it stands.
    connected: AtomicBool,
}

impl Hub {
    /// Keeps an eye on the process behind `address`, from now until the hub shuts down.
    pub(super) fn watch_peer(self: &Arc<Self>, address: &PeerAddress) {
        let mut watched = self.liveness.watched.lock();
        if let Some(known) = watched.get(&address.node) {
            *known.address.lock() = Some(address.clone());
            return;
        }
        let entry = Arc::new(Watched::default());
        *entry.address.lock() = Some(address.clone());
        watched.insert(address.node.clone(), Arc::clone(&entry));
        drop(watched);
        let hub = Arc::clone(self);
        let node = address.node.clone();
        self.spawn(async move { watch(&hub, &node, &entry).await });
    }

    /// The other nodes that are known, and where they are.
    pub(super) fn known_peers(&self) -> BTreeMap<String, PeerAddress> {
        let mut known = self.expected.read().clone();
        let watched = self.liveness.watched.lock();
        known.extend(watched.iter().filter_map(|(node, entry)| Some((node.clone(), entry.address.lock().clone()?))));
        known
    }

    /// The other nodes that are known, and whether a connection to them stands.
    pub(super) fn reachable(&self) -> BTreeMap<String, bool> {
        let watched = self.liveness.watched.lock();
        watched.iter().map(|(node, entry)| (node.clone(), entry.connected.load(Ordering::Acquire))).collect()
    }

    /// Dials `node` now if no connection to it stands.
    pub(crate) fn probe(&self, node: &str) {
        if let Some(watched) = self.liveness.watched.lock().get(node) {
            watched.nudge.notify_one();
        }
    }
}

impl Hub {
    /// Waits until an idle connection ends, or its peer falls silent: a machine that lost its power says nothing.
    async fn wait_for_end(&self, stream: &mut PeerStream) -> PeerError {
        let envelope = self.node_envelope();
        let mut ping = tokio::time::interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut unanswered = false;
        loop {
            tokio::select! {
                biased;
                frame = stream.reader.next() => match frame {
                    Ok(_) => unanswered = false,
                    Err(error) => return error,
                },
                _ = ping.tick() => {
                    if std::mem::replace(&mut unanswered, true) {
                        return PeerError::Timeout("waiting for a sign of life");
                    }
                    if let Err(error) = stream.send(FrameWriter::new(Kind::Ping, 0, &envelope, 0)).await {
                        return error;
                    }
                }
            }
        }
    }
}

async fn watch(hub: &Arc<Hub>, node: &str, watched: &Watched) {
    let mut last_incarnation: Option<u64> = None;
    let mut retry = RETRY_MIN;
    let mut ended: Option<Instant> = None;
    loop {
        let Some(address) = watched.address.lock().clone() else { return };
        let settling = ended.is_some_and(|at| at.elapsed() < SETTLE_FOR);
        match hub.dial_node(&address).await {
            Ok((mut stream, welcome)) => {
                let replaced = last_incarnation.is_some_and(|last| last != welcome.incarnation);
                last_incarnation = Some(welcome.incarnation);
                if replaced && !*watched.gone.lock() {
                    tracing::info!(node, "process of peer was replaced by a new one");
                    tell_gone(hub, node);
                }
                *watched.gone.lock() = false;
                watched.connected.store(true, Ordering::Release);
                for group in hub.all_groups() {
                    if let Some(service) = group.service() {
                        service.peer_back(node);
                    }
                }
                retry = RETRY_MIN;
                let error = hub.wait_for_end(&mut stream).await;
                watched.connected.store(false, Ordering::Release);
                tracing::debug!(node, %error, "control connection ended");
                ended = Some(Instant::now());
                continue;
            }
            Err(PeerError::ConnectionRefused { .. }) => {
                if last_incarnation.is_some() && !*watched.gone.lock() {
                    tracing::info!(node, "process of peer is gone: its port refuses");
                    *watched.gone.lock() = true;
                    tell_gone(hub, node);
                }
            }
            Err(error) if settling => {
                tracing::debug!(node, %error, "peer does not answer");
                tokio::time::sleep(SETTLE_INTERVAL).await;
                continue;
            }
            Err(error) => tracing::debug!(node, %error, "cannot reach peer"),
        }
        ended = None;
        tokio::select! {
            () = tokio::time::sleep(retry) => retry = (retry * 2).min(RETRY_MAX),
            () = watched.nudge.notified() => {}
        }
    }
}

fn tell_gone(hub: &Arc<Hub>, node: &str) {
    for group in hub.all_groups() {
        if let Some(service) = group.service() {
            service.peer_gone(node);
        }
    }
}
