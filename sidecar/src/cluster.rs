//! What is known of the cluster: its brokers, who leads each, and who does not answer.
//!
//! Name servers are asked every second, and as often as every 50 ms while some replica is doubted. Then all of them are
//! asked, since one of them may be cut off with the replica that is doubted.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use protocol::body::ClusterInfo;
use protocol::{RemotingCommand, RequestCode};
use remoting::{Channel, ChannelOptions, Ignore};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// A replica that went away is tried again after so long, if there is another to turn to.
const DOUBT_TIME: Duration = Duration::from_secs(2);
/// What only a leader may do is kept for so long while the leader is silent and no other one is known: replicas would
/// give it to the leader, and be left without an answer as we were.
const SUCCESSION_TIME: Duration = Duration::from_millis(1_200);
const DOUBTFUL_POLL: Duration = Duration::from_millis(50);
const POLL_TIMEOUT: Duration = Duration::from_millis(500);
/// An answer for a client may take longer; clients wait 3 s and more.
const PASS_TIMEOUT: Duration = Duration::from_millis(2_500);

/// The cluster as seen from here.
pub(crate) struct Cluster {
    name_servers: Vec<Channel>,
    /// Index of the name server that answered last.
    answered: AtomicUsize,
    brokers: watch::Sender<BTreeMap<String, Arc<Broker>>>,
    /// The next look is wanted now.
    look: Arc<Notify>,
    interval: Duration,
}

/// A broker name, with its replicas.
pub(crate) struct Broker {
    pub(crate) name: String,
    state: Mutex<State>,
    look: Arc<Notify>,
    /// The address of id 0.
    leader: watch::Sender<Option<String>>,
}

#[derive(Default)]
struct State {
    /// The addresses by broker id: 0 leads.
    replicas: BTreeMap<i64, String>,
    doubted: HashMap<String, Doubt>,
}

#[derive(Clone, Copy)]
struct Doubt {
    /// The last reason for it.
    last: Instant,
    /// Since when it was silent, if that is why.
    silent: Option<Instant>,
}

/// Why a replica is doubted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its connection ended or it cannot be dialled: the others see that too.
    Gone,
    /// It owes an answer and says nothing.
    Silent,
}

impl Broker {
    fn new(name: &str, look: Arc<Notify>) -> Self {
        Self { name: name.to_owned(), state: Mutex::default(), look, leader: watch::Sender::new(None) }
    }

    /// Whom to ask: the leader, unless there is reason to doubt that it lives; then another replica, which forwards or
    /// waits for an election. `avoid` is taken only if there is nobody else.
    pub(crate) fn choose(&self, avoid: Option<&str>) -> Option<String> {
        let state = &mut *self.state.lock();
        let now = Instant::now();
        state.doubted.retain(|_, doubt| now.duration_since(doubt.last) < DOUBT_TIME);
        let rank = |address: &&String| (Some(address.as_str()) == avoid, state.doubted.contains_key(*address));
        // The first of the best: ids go up from the leader's.
        state.replicas.values().min_by_key(rank).cloned()
    }

    /// The addresses of all replicas.
    pub(crate) fn replicas(&self) -> Vec<String> {
        self.state.lock().replicas.values().cloned().collect()
    }

    /// Notes that a replica is gone or does not answer.
    pub(crate) fn doubt(&self, address: &str, why: Why) {
        let now = Instant::now();
        let before = {
            let mut state = self.state.lock();
            let before = state.doubted.get(address).copied();
            let silent = (why == Why::Silent).then(|| before.and_then(|before| before.silent).unwrap_or(now));
            state.doubted.insert(address.to_owned(), Doubt { last: now, silent });
            before
        };
        if before.is_none() {
            tracing::info!(broker = %self.name, address, ?why, "this replica is doubted");
        }
        self.look.notify_one();
    }

    /// Waits, for a while, until a leader is known that is not silent.
    pub(crate) async fn succession(&self) {
        let mut leader = self.leader.subscribe();
        let until = self.silent_leader_until();
        let known = leader.wait_for(|_| self.silent_leader_until().is_none());
        if let Some(until) = until {
            drop(tokio::time::timeout_at(until, known).await);
        }
    }

    /// Whether the leader known is silent, and how long it is worth to wait for another.
    pub(crate) fn silent_leader_until(&self) -> Option<Instant> {
        let state = self.state.lock();
        let doubt = state.replicas.get(&0).and_then(|leader| state.doubted.get(leader))?;
        let until = doubt.silent? + SUCCESSION_TIME;
        (Instant::now() < until).then_some(until)
    }

    /// Notes that a replica has answered.
    pub(crate) fn trust(&self, address: &str) {
        let mut state = self.state.lock();
        if state.doubted.remove(address).is_some() {
            drop(state);
            // Who waits for a leader may find this one.
            self.leader.send_modify(|_| {});
        }
    }

    pub(crate) fn is_reachable(&self) -> bool {
        let state = self.state.lock();
        state.replicas.values().any(|address| !state.doubted.contains_key(address))
    }

    fn is_doubted(&self) -> bool {
        let now = Instant::now();
        self.state.lock().doubted.values().any(|doubt| now.duration_since(doubt.last) < DOUBT_TIME)
    }

    /// Takes what the name servers say, those first that are to be believed first: of several leaders the first that is
    /// not doubted.
    fn learn(&self, said: &[BTreeMap<i64, String>]) {
        let mut state = self.state.lock();
        let is_led = |replicas: &&BTreeMap<i64, String>| {
            replicas.get(&0).is_some_and(|leader| !state.doubted.contains_key(leader))
        };
        let Some(best) = said.iter().find(is_led).or_else(|| said.first()) else { return };
        let leader = best.get(&0).cloned();
        let is_new = state.replicas.get(&0) != leader.as_ref();
        state.replicas.clone_from(best);
        drop(state);
        if is_new {
            tracing::info!(broker = %self.name, leader = leader.as_deref(), "leader");
            self.leader.send_replace(leader);
        }
    }
}

impl Cluster {
    pub(crate) fn new(name_servers: &[String], interval: Duration, dial: Duration) -> Self {
        let options = ChannelOptions { connect_timeout: dial, ..ChannelOptions::default() };
        let channel = |address: &String| Channel::new(address.clone(), options.clone(), Arc::new(Ignore));
        Self {
            name_servers: name_servers.iter().map(channel).collect(),
            answered: AtomicUsize::new(0),
            brokers: watch::Sender::new(BTreeMap::new()),
            look: Arc::new(Notify::new()),
            interval,
        }
    }

    /// The brokers known, and when there are new ones.
    pub(crate) fn watch(&self) -> watch::Receiver<BTreeMap<String, Arc<Broker>>> {
        self.brokers.subscribe()
    }

    /// Asks the name server that answered last, then each of the others, until one answers.
    pub(crate) async fn ask(&self, request: &RemotingCommand) -> remoting::Result<RemotingCommand> {
        let first = self.answered.load(Ordering::Relaxed);
        let count = self.name_servers.len();
        let until = Instant::now() + PASS_TIMEOUT;
        let mut failed = None;
        for at in (0..count).map(|step| (first + step) % count) {
            // One that does not answer must leave time for the others.
            let left = until.saturating_duration_since(Instant::now());
            match self.name_servers[at].call(request.clone(), left.min(PASS_TIMEOUT / 2)).await {
                Ok(answer) => {
                    self.answered.store(at, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| remoting::Error::Closed { peer: "any name server".to_owned() }))
    }

    /// Passes a one-way request to the first name server that takes it.
    pub(crate) async fn tell(&self, request: RemotingCommand) {
        let first = self.answered.load(Ordering::Relaxed);
        let count = self.name_servers.len();
        for at in (0..count).map(|step| (first + step) % count) {
            if self.name_servers[at].send_oneway(request.clone(), POLL_TIMEOUT).await.is_ok() {
                return;
            }
        }
    }

    /// Keeps looking until it is dropped.
    pub(crate) async fn keep_looking(&self) {
        loop {
            let doubtful = self.brokers.borrow().values().any(|broker| broker.is_doubted());
            if doubtful || self.brokers.borrow().is_empty() {
                self.look_everywhere().await;
                tokio::time::sleep(DOUBTFUL_POLL).await;
            } else {
                if let Ok(answer) = self.ask(&RemotingCommand::request(RequestCode::GET_BROKER_CLUSTER_INFO)).await {
                    self.learn(&[answer]);
                }
                tokio::select! {
                    () = tokio::time::sleep(self.interval) => {}
                    () = self.look.notified() => {}
                }
            }
        }
    }

    async fn look_everywhere(&self) {
        let request = RemotingCommand::request(RequestCode::GET_BROKER_CLUSTER_INFO);
        let calls = self.name_servers.iter().map(|server| server.call(request.clone(), POLL_TIMEOUT));
        let answers: Vec<_> = join_all(calls).await.into_iter().flatten().collect();
        self.learn(&answers);
    }

    fn learn(&self, answers: &[RemotingCommand]) {
        let answers = answers.iter().filter(|answer| answer.is_success());
        let infos: Vec<_> = answers.filter_map(|answer| ClusterInfo::decode(&answer.body).ok()).collect();
        let mut said: BTreeMap<&str, Vec<BTreeMap<i64, String>>> = BTreeMap::new();
        for (name, data) in infos.iter().flat_map(|info| &info.broker_addr_table) {
            if !data.broker_addrs.is_empty() {
                said.entry(name).or_default().push(data.broker_addrs.clone());
            }
        }
        for (name, said) in said {
            self.broker(name).learn(&said);
        }
    }

    /// The broker of that name, noted if it is new.
    pub(crate) fn broker(&self, name: &str) -> Arc<Broker> {
        if let Some(broker) = self.brokers.borrow().get(name) {
            return Arc::clone(broker);
        }
        let broker = Arc::new(Broker::new(name, Arc::clone(&self.look)));
        self.brokers.send_modify(|brokers| drop(brokers.insert(name.to_owned(), Arc::clone(&broker))));
        broker
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replicas(addresses: &[(i64, &str)]) -> BTreeMap<i64, String> {
        addresses.iter().map(|(id, address)| (*id, (*address).to_owned())).collect()
    }

    fn broker(addresses: &[(i64, &str)]) -> Broker {
        let broker = Broker::new("b", Arc::new(Notify::new()));
        broker.learn(&[replicas(addresses)]);
        broker
    }

    #[tokio::test(start_paused = true)]
    async fn the_leader_is_chosen_until_it_is_doubted_and_again_some_time_later() {
        let broker = broker(&[(0, "a"), (1, "b"), (2, "c")]);
        assert_eq!(broker.choose(None).unwrap(), "a");
        broker.doubt("a", Why::Gone);
        assert_eq!(broker.choose(None).unwrap(), "b");
        broker.trust("a");
        assert_eq!(broker.choose(None).unwrap(), "a");
        assert_eq!(broker.choose(Some("a")).unwrap(), "b");
        broker.doubt("a", Why::Gone);
        tokio::time::sleep(DOUBT_TIME).await;
        assert_eq!(broker.choose(None).unwrap(), "a");
    }

    #[tokio::test(start_paused = true)]
    async fn if_all_are_doubted_somebody_is_asked_all_the_same() {
        let broker = broker(&[(0, "a"), (1, "b")]);
        assert!(broker.is_reachable());
        broker.doubt("a", Why::Gone);
        broker.doubt("b", Why::Gone);
        assert!(!broker.is_reachable());
        assert_eq!(broker.choose(Some("a")).unwrap(), "b");
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_leaders_the_one_is_believed_that_is_not_doubted() {
        let broker = broker(&[(0, "a"), (1, "b")]);
        broker.doubt("a", Why::Gone);
        broker.learn(&[replicas(&[(0, "a"), (1, "b")]), replicas(&[(0, "b"), (1, "a")])]);
        assert_eq!(broker.choose(None).unwrap(), "b");
        // Nobody knows better.
        broker.doubt("b", Why::Gone);
        broker.learn(&[replicas(&[(0, "a"), (1, "b")])]);
        assert_eq!(broker.replicas(), ["a", "b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_leader_is_waited_for_until_there_is_another_or_it_speaks_or_for_a_while() {
        let (a, b) = (replicas(&[(0, "a"), (1, "b")]), replicas(&[(0, "b"), (1, "a")]));
        let broker = broker(&[(0, "a"), (1, "b")]);
        broker.doubt("a", Why::Gone);
        let started = Instant::now();
        broker.succession().await;
        broker.doubt("a", Why::Silent);
        tokio::join!(broker.succession(), async { broker.learn(&[b]) });
        broker.learn(&[a]);
        broker.doubt("a", Why::Silent);
        tokio::join!(broker.succession(), async { broker.trust("a") });
        assert_eq!(started.elapsed(), Duration::ZERO);
        broker.doubt("a", Why::Silent);
        broker.succession().await;
        assert_eq!(started.elapsed(), SUCCESSION_TIME);
        assert_eq!(broker.silent_leader_until(), None);
    }
}
