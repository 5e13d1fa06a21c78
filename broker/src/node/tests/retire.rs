//! Power cuts in asynchronous mode: identities that are retired, come back as others, and a majority that does not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures::future::select_all;
use protocol::message::RecordView;
use tempfile::TempDir;

use super::*;
use crate::config::FlushOptions;
use crate::http::{EntryStatus, FlushMode, LossReport, RecoverOrder};
use crate::node::group::Running;
use crate::state_machine::command::PutMode;
use crate::state_machine::testing::{message, pack, topic};
use crate::state_machine::{ApplyReply, Command, MessageOutcome, TopicConfig};

#[path = "../../../../raft-store/tests/support/power_cut.rs"]
mod power_cut;

const GROUP: &str = "broker-a";
/// Longer than anything here takes; a test that needs it has failed.
const LONG: Duration = Duration::from_secs(60);

/// Test messages are stamped with a time long ago, and the machine's disk may be nearly full: nothing is dropped for
/// either.
pub(super) fn keep_all(options: &mut Options) {
    options.retention.time = Duration::from_secs(1 << 32);
    (options.storage.disk.early_percent, options.storage.disk.forced_percent) = (100, 100);
    options.storage.disk.free_percent_min = 0;
}

/// Clusters of several nodes run one after the other, or they starve each other of time.
pub(super) static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

pub(super) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// Three nodes with one group.
pub(super) struct Cluster {
    dirs: BTreeMap<usize, TempDir>,
    options: BTreeMap<usize, Options>,
    pub(super) running: BTreeMap<usize, Node>,
    _alone: tokio::sync::MutexGuard<'static, ()>,
}

impl Cluster {
    pub(super) async fn start(flush: &str) -> Self {
        Self::start_with(flush, 16 << 20).await
    }

    pub(super) async fn start_with(flush: &str, segment_bytes: u64) -> Self {
        let alone = ONE_AT_A_TIME.lock().await;
        let addrs: [SocketAddr; 9] = std::array::from_fn(|_| free_addr());
        let members: String = (0..3)
            .map(|at| {
                format!(
                    "[[group.member]]\nnode = \"n{}\"\nid = {}\nraft_addr = \"{}\"\nclient_addr = \"{}\"\n",
                    at + 1,
                    at + 1,
                    addrs[at],
                    addrs[6 + at]
                )
            })
            .collect();
        let mut cluster =
            Self { dirs: BTreeMap::new(), options: BTreeMap::new(), running: BTreeMap::new(), _alone: alone };
        for at in 0..3 {
            let dir = tempfile::tempdir().unwrap();
            let text = format!(
                "[cluster]\nid = \"00112233445566778899aabbccddeeff\"\n[node]\nname = \"n{}\"\ndata_dir = {:?}\n\
                 raft_listen = \"{}\"\nhttp_listen = \"{}\"\nnamesrv = [\"127.0.0.1:1\"]\n\
                 [http]\nrequests_per_second = 10000\n[storage]\nsegment_bytes = \"16MiB\"\nallow_unproven_filesystem = true\nflush = \"{flush}\"\n\
                 [raft]\nheartbeat_interval = \"100ms\"\nelection_timeout_min = \"600ms\"\n\
                 election_timeout_max = \"1000ms\"\n\
                 [[group]]\nname = \"{GROUP}\"\nclient_listen = \"{}\"\n{members}",
                at + 1,
                dir.path().display().to_string(),
                addrs[at],
                addrs[3 + at],
                addrs[6 + at]
            );
            let mut options = Options::parse(Path::new("test.toml"), &text).unwrap();
            options.storage.segment_bytes = segment_bytes;
            keep_all(&mut options);
            if let FlushOptions::Async { interval } = &mut options.storage.flush {
                // Longer than a busy machine takes between what a test writes and the cut.
                *interval = Duration::from_secs(5);
                options.storage.flush_interval = *interval;
            }
            cluster.options.insert(at + 1, options);
            cluster.dirs.insert(at + 1, dir);
        }
        for at in [3, 2, 1] {
            cluster.start_node(at, true).await;
        }
        let leader = cluster.leader().await;
        let topics = vec![TopicConfig::new(topic("A"), 1, 6)];
        let put = Command::PutTopics { topics, mode: PutMode::CreateOnly, stamped_ms: 1 };
        leader.raft.propose_command(&put).await.unwrap();
        cluster
    }

    pub(super) async fn start_node(&mut self, at: usize, bootstrap: bool) {
        let node = start(self.options[&at].clone(), bootstrap).await.unwrap();
        self.running.insert(at, node);
    }

    pub(super) async fn rejoin_node(&mut self, at: usize) {
        let start = StartOptions { bootstrap: Bootstrap::Forbidden, rejoin: true, started: Instant::now() };
        let node = Node::start(self.options[&at].clone(), start, ClientPorts::default()).await.unwrap();
        self.running.insert(at, node);
    }

    pub(super) fn http(&self, at: usize) -> SocketAddr {
        self.options[&at].node.http_listen
    }

    /// Who may call a node from its next start on.
    pub(super) fn set_tokens(&mut self, at: usize, tokens: crate::http::Tokens) {
        self.options.get_mut(&at).unwrap().http.tokens = tokens;
    }

    pub(super) fn group(&self, at: usize) -> &Arc<NodeGroup> {
        &self.running[&at].shared.groups[0]
    }

    pub(super) fn log_dir(&self, at: usize) -> PathBuf {
        self.dirs[&at].path().join(GROUP).join("log")
    }

    /// The replica that leads with its gates open, once there is one.
    pub(super) async fn leader(&self) -> Arc<Running> {
        let waits = self.running.keys().map(|at| Box::pin(leads(Arc::clone(self.group(*at)))));
        soon("a leader", select_all(waits)).await.0
    }

    /// Cuts a node's power: what its disk has is what was synced. Returns the bytes it lost.
    async fn cut_power(&mut self, at: usize) -> u64 {
        self.cut_powers(&[at]).await
    }

    /// Cuts the power of several nodes at one moment. Returns the bytes that the luckiest of them lost.
    async fn cut_powers(&mut self, nodes: &[usize]) -> u64 {
        self.cut_powers_leaving(nodes, |flushed_end| flushed_end).await
    }

    /// The same of disks that hold records up to where `survivors` says, which is told up to where they are synced.
    async fn cut_powers_leaving(&mut self, nodes: &[usize], survivors: impl Fn(u64) -> u64) -> u64 {
        let mut cut = Vec::new();
        for at in nodes {
            let node = self.running.remove(at).unwrap();
            node.hub.shutdown_now();
            if let Some(running) = node.shared.groups[0].running() {
                running.raft.shutdown().await;
            }
            let image = tempfile::tempdir().unwrap();
            copy(self.dirs[at].path(), image.path());
            cut.push((*at, node, image));
        }
        let mut lost = u64::MAX;
        for (at, node, image) in cut {
            node.close().await;
            let kept = &self.dirs[&at];
            std::fs::remove_dir_all(kept.path().join(GROUP)).unwrap();
            copy(image.path(), kept.path());
            lost = lost.min(power_cut::power_cut(&self.log_dir(at), &survivors));
        }
        lost
    }

    /// Waits until nodes have synced everything: what they write from now on stays in memory for a while.
    pub(super) async fn synced(&self, nodes: &[usize]) {
        for at in nodes {
            let log = self.group(*at).log().unwrap();
            let synced = async {
                while log.watermarks().flushed_end < log.watermarks().end {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            soon("everything is on disk", synced).await;
        }
    }

    pub(super) async fn stop_node(&mut self, at: usize) {
        let node = self.running.remove(&at).unwrap();
        node.close().await;
    }

    /// Waits until a node's replica votes, and returns its identity.
    async fn votes(&self, at: usize) -> u64 {
        let group = Arc::clone(self.group(at));
        let voting = async {
            loop {
                if let Some(running) = group.running()
                    && !group.is_returning()
                    && running.raft.metrics().voters.iter().all(|voters| voters.contains(&running.node_id()))
                    && !running.raft.metrics().voters.is_empty()
                {
                    return running.node_id();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("a voter", voting).await
    }

    pub(super) async fn stop(mut self) {
        for (_, node) in std::mem::take(&mut self.running) {
            node.close().await;
        }
    }
}

pub(super) async fn leads(group: Arc<NodeGroup>) -> Arc<Running> {
    loop {
        if let Some(running) = group.running()
            && running.raft.role().borrow().is_ready_leader()
            && running.state.names().is_some()
        {
            return running;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Sends one message with `id` in it. Returns its queue offset if it was acknowledged.
pub(super) async fn send(leader: &Running, id: u64) -> Option<u64> {
    let body = format!("{id:>200}");
    match leader.raft.propose(pack(&[message("A", 0, &body)])).await {
        Ok((ApplyReply::Pack(reply), _)) => match reply.outcomes[..] {
            [MessageOutcome::Appended(appended)] => Some(appended.queue_offset),
            _ => None,
        },
        _ => None,
    }
}

/// All ids a replica holds in its queue, by offset.
pub(super) fn stored(running: &Running) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    for offset in 0..running.store.max_offset("A", 0) {
        let bytes = running.store.message("A", 0, offset).unwrap().unwrap();
        let body = RecordView::parse(&bytes).unwrap().body().to_vec();
        found.insert(offset, String::from_utf8(body).unwrap().trim().parse().unwrap());
    }
    found
}

pub(super) async fn caught_up(running: &Running, index: u64) {
    soon("dispatch", running.store.wait_dispatched(index)).await.unwrap();
}

/// Sends until it is told to stop, on whoever leads, and keeps what was acknowledged: offset and id.
pub(super) struct Load {
    pub(super) acknowledged: watch::Sender<BTreeMap<u64, u64>>,
    pub(super) stop: AtomicBool,
    ids: AtomicU64,
}

impl Load {
    pub(super) fn new() -> Self {
        Self { acknowledged: watch::Sender::default(), stop: AtomicBool::new(false), ids: AtomicU64::new(1) }
    }

    pub(super) async fn run(&self, groups: &Mutex<Vec<Arc<NodeGroup>>>) {
        while !self.stop.load(Ordering::Acquire) {
            let leader = groups
                .lock()
                .iter()
                .filter_map(|group| group.running())
                .find(|running| running.raft.role().borrow().is_ready_leader());
            let Some(leader) = leader else {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            };
            let id = self.ids.fetch_add(1, Ordering::Relaxed);
            if let Some(offset) = send(&leader, id).await {
                self.acknowledged.send_modify(|all| {
                    let before = all.insert(offset, id);
                    assert_eq!(before, None, "offset {offset} was given to {before:?} and to {id}");
                });
            }
        }
    }

    pub(super) async fn more(&self, count: usize) {
        let target = self.acknowledged.borrow().len() + count;
        let mut acknowledged = self.acknowledged.subscribe();
        soon("acknowledgements", acknowledged.wait_for(|all| all.len() >= target)).await.unwrap();
    }
}

/// One of three loses its power at random times, with load, and comes back under another identity: nothing that was
/// acknowledged is lost, and no identity is used twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_loses_its_power_again_and_again_and_nothing_is_lost() {
    let mut cluster = Cluster::start("async").await;
    let rounds = if std::env::var_os("SLOW_TESTS").is_some() { 60 } else { 5 };
    let seed: u64 = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    println!("SEED={seed}");
    let mut numbers = seed;
    let mut below = |limit: u64| {
        numbers = numbers.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (numbers >> 33) % limit
    };
    let load = Arc::new(Load::new());
    let groups = Arc::new(Mutex::new((1..=3).map(|at| Arc::clone(cluster.group(at))).collect()));
    let sending = {
        let (load, groups) = (Arc::clone(&load), Arc::clone(&groups));
        tokio::spawn(async move { load.run(&groups).await })
    };
    let mut identities = BTreeSet::from([1, 2, 3]);
    let mut lost_bytes = 0;
    for round in 0..rounds {
        load.more(20 + usize::try_from(below(300)).unwrap()).await;
        let victim = 1 + usize::try_from(below(3)).unwrap();
        let old = cluster.group(victim).node_id();
        lost_bytes += cluster.cut_power(victim).await;
        cluster.start_node(victim, false).await;
        *groups.lock() = (1..=3).map(|at| Arc::clone(cluster.group(at))).collect();
        let new = cluster.votes(victim).await;
        assert!(identities.insert(new), "round {round}: identity {new} was used before");
        for at in 1..=3 {
            let group = Arc::clone(cluster.group(at));
            let forgotten = async {
                while group.running().is_none_or(|running| running.raft.metrics().members.contains_key(&old)) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            soon("the former identity is no member", forgotten).await;
        }
    }
    load.more(20).await;
    load.stop.store(true, Ordering::Release);
    sending.await.unwrap();
    assert!(lost_bytes > 0, "no cut has hit");
    let leader = cluster.leader().await;
    leader.raft.read_index().await.unwrap();
    let last = leader.state.applied_index().unwrap();
    let acknowledged = load.acknowledged.borrow().clone();
    for at in 1..=3 {
        let running = cluster.group(at).running().unwrap();
        caught_up(&running, last).await;
        let stored = stored(&running);
        let lost: Vec<_> = acknowledged.iter().filter(|(offset, id)| stored.get(offset) != Some(id)).collect();
        assert!(
            lost.is_empty(),
            "node {at} misses {lost:?} of {} after {lost_bytes} bytes were lost",
            acknowledged.len()
        );
    }
    cluster.stop().await;
}

/// The row that costs others their data: acknowledged by A and B, B loses it, A is gone, B and C must not go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lost_its_tail_elects_nobody_while_the_other_that_has_it_is_gone() {
    let mut cluster = Cluster::start("async").await;
    let leader = cluster.leader().await;
    let a = usize::try_from(leader.node_id()).unwrap();
    let [b, c] = (1..=3).filter(|at| *at != a).collect::<Vec<_>>()[..] else { unreachable!() };
    send(&leader, 1).await.unwrap();
    cluster.stop_node(c).await;
    let mut acknowledged = BTreeMap::new();
    cluster.synced(&[a, b]).await;
    for id in 2..20 {
        acknowledged.insert(send(&leader, id).await.unwrap(), id);
    }
    drop(leader);
    assert!(cluster.cut_power(b).await > 0);
    cluster.stop_node(a).await;
    cluster.start_node(b, false).await;
    cluster.start_node(c, false).await;
    assert!(cluster.group(b).running().is_none(), "no identity, so no replica that could vote");
    // Several of the longest election time-outs.
    let elected = tokio::time::timeout(Duration::from_secs(4), leads(Arc::clone(cluster.group(c)))).await;
    assert!(elected.is_err(), "one voter of three has elected somebody");
    cluster.start_node(a, false).await;
    assert!(cluster.votes(b).await > 3);
    let leader = cluster.leader().await;
    leader.raft.read_index().await.unwrap();
    let last = leader.state.applied_index().unwrap();
    for at in [a, b, c] {
        let running = cluster.group(at).running().unwrap();
        caught_up(&running, last).await;
        let stored = stored(&running);
        assert!(acknowledged.iter().all(|(offset, id)| stored.get(offset) == Some(id)), "node {at}: {stored:?}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_synchronous_mode_a_power_cut_costs_neither_data_nor_identity() {
    let mut cluster = Cluster::start("sync").await;
    let leader = cluster.leader().await;
    let at = usize::try_from(leader.node_id()).unwrap();
    for id in 1..20 {
        send(&leader, id).await.unwrap();
    }
    drop(leader);
    for at in 1..=3 {
        cluster.cut_power(at).await;
    }
    for at in 1..=3 {
        cluster.start_node(at, false).await;
        assert_eq!(cluster.group(at).node_id(), at as u64);
    }
    let leader = cluster.leader().await;
    assert!(cluster.group(at).recovered().unwrap().retired.is_empty());
    caught_up(&leader, leader.state.applied_index().unwrap()).await;
    assert_eq!(stored(&leader).into_values().collect::<Vec<_>>(), (1..20).collect::<Vec<_>>());
    cluster.stop().await;
}

/// What an operator does: looks at all nodes, and has the one with the longest log go on.
async fn recover(cluster: &Cluster) -> (usize, LossReport) {
    let statuses: BTreeMap<usize, _> =
        cluster.running.iter().map(|(at, node)| (*at, node.shared.recovery(GROUP).unwrap())).collect();
    let (at, best) = statuses.iter().max_by_key(|(_, status)| status.last).unwrap();
    let EntryStatus { term: last_term, index: last_index } = best.last.unwrap();
    let order = RecoverOrder {
        accept_loss: true,
        last_term,
        last_index,
        term: statuses.values().map(|status| status.term).max().unwrap() + 100,
        generation: statuses.values().map(|status| status.generation).max().unwrap() + 1,
    };
    let refused = RecoverOrder { accept_loss: false, ..order.clone() };
    assert!(cluster.running[at].shared.recover(GROUP.to_owned(), refused).await.is_err());
    let moved = RecoverOrder { last_index: last_index + 1, ..order.clone() };
    assert!(cluster.running[at].shared.recover(GROUP.to_owned(), moved).await.is_err());
    (*at, soon("recovery", cluster.running[at].shared.recover(GROUP.to_owned(), order)).await.unwrap())
}

/// Two of three lose their power at once: nobody is elected until an operator says so, and every lost message is in the
/// report, and no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_majority_gone_nothing_happens_until_an_operator_recovers_and_the_report_has_all_that_is_lost() {
    let mut cluster = Cluster::start("async").await;
    let leader = cluster.leader().await;
    let a = usize::try_from(leader.node_id()).unwrap();
    let [b, c] = (1..=3).filter(|at| *at != a).collect::<Vec<_>>()[..] else { unreachable!() };
    let mut acknowledged = BTreeMap::new();
    for id in 1..30 {
        acknowledged.insert(send(&leader, id).await.unwrap(), id);
    }
    cluster.stop_node(c).await;
    cluster.synced(&[a, b]).await;
    for id in 30..60 {
        acknowledged.insert(send(&leader, id).await.unwrap(), id);
    }
    drop(leader);
    assert!(cluster.cut_powers(&[a, b]).await > 0, "the cut has not hit");
    for at in 1..=3 {
        cluster.start_node(at, false).await;
    }
    let waits = (1..=3).map(|at| Box::pin(leads(Arc::clone(cluster.group(at)))));
    let elected = tokio::time::timeout(Duration::from_secs(4), select_all(waits)).await;
    assert!(elected.is_err(), "elected without a majority");

    let (at, report) = recover(&cluster).await;
    assert!(Path::new(&report.file).exists(), "{report:?}");
    let risk = report.queues.iter().find(|queue| queue.topic == "A").unwrap().first_offset_at_risk;
    let survivors = stored(&cluster.group(at).running().unwrap());
    let lost: BTreeMap<_, _> = acknowledged.iter().filter(|(offset, id)| survivors.get(offset) != Some(id)).collect();
    assert!(!lost.is_empty(), "a run that loses nothing proves nothing");
    assert!(lost.keys().all(|offset| **offset >= risk), "from {risk} on are {lost:?}");
    assert!(survivors.keys().all(|offset| *offset < risk), "{survivors:?}");

    // The others come back by themselves, the one that kept its identity once it hears that it is out.
    for node in [a, b, c] {
        assert!(cluster.votes(node).await > 1 << 40, "node {node}");
    }
    let leader = cluster.leader().await;
    assert_eq!(send(&leader, 1000).await, Some(risk));
    let last = leader.state.applied_index().unwrap();
    for node in [a, b, c] {
        let running = cluster.group(node).running().unwrap();
        caught_up(&running, last).await;
        assert_eq!(stored(&running).last_key_value(), Some((&risk, &1000)));
        assert_eq!(running.raft.metrics().members.len(), 3, "nobody is left of before");
    }
    cluster.stop().await;
}

/// What a node counts of a power cut, at the start after it: that an end that was not whole is gone, or that its disk has
/// lost what it said it had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_power_cut_took_is_counted() {
    fn count(cluster: &Cluster, at: usize, name: &str) -> String {
        let mut metrics = MetricsText::default();
        cluster.running[&at].shared.collect(&mut metrics);
        let text = metrics.into_text();
        let sample = format!("{name}{{group=\"{GROUP}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&sample)).unwrap_or_else(|| panic!("{name}: {text}")).to_owned()
    }
    const CUTS: &str = "gantry_log_cuts_total";
    const LOST: &str = "gantry_log_disk_lost_flushed_total";
    let mut cluster = Cluster::start("async").await;
    let leader = cluster.leader().await;
    let at = usize::try_from(leader.node_id()).unwrap();
    let [torn, lost] = (1..=3).filter(|other| *other != at).collect::<Vec<_>>()[..] else { unreachable!() };
    for at in [torn, lost] {
        assert_eq!(("0", "0"), (&*count(&cluster, at, CUTS), &*count(&cluster, at, LOST)));
    }
    cluster.synced(&[torn, lost]).await;
    let synced_end = cluster.group(lost).log().unwrap().watermarks().end.get();
    leader.raft.propose(pack(&[message("A", 0, &"x".repeat(16 << 10))])).await.unwrap();
    let last = leader.state.applied_index().unwrap();
    for at in [torn, lost] {
        caught_up(&cluster.group(at).running().unwrap(), last).await;
    }
    // Half a record survives.
    assert!(cluster.cut_powers_leaving(&[torn], |flushed_end| flushed_end + 2048).await > 0);
    cluster.start_node(torn, false).await;
    assert!(cluster.votes(torn).await > 3, "another identity");
    assert_eq!(("1", "0"), (&*count(&cluster, torn, CUTS), &*count(&cluster, torn, LOST)));

    cluster.synced(&[lost]).await;
    assert!(cluster.cut_powers_leaving(&[lost], |_| synced_end).await > 0);
    cluster.start_node(lost, false).await;
    assert!(cluster.votes(lost).await > 3, "another identity");
    assert_eq!(("0", "1"), (&*count(&cluster, lost, CUTS), &*count(&cluster, lost, LOST)));
    drop(leader);
    cluster.stop().await;
}

/// A disk that was rolled back has forgotten what its identity promised, whatever mode it runs in and however cleanly it
/// was stopped: peers that have seen a later start of it say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_was_rolled_back_costs_the_identity_and_nothing_else() {
    let mut cluster = Cluster::start("sync").await;
    let leader = cluster.leader().await;
    let victim = 1 + usize::try_from(leader.node_id()).unwrap() % 3;
    send(&leader, 1).await.unwrap();
    cluster.stop_node(victim).await;
    let image = tempfile::tempdir().unwrap();
    copy(cluster.dirs[&victim].path(), image.path());
    cluster.start_node(victim, false).await;
    let follower = cluster.group(victim).running().unwrap();
    for id in 2..30 {
        send(&leader, id).await.unwrap();
    }
    caught_up(&follower, leader.state.applied_index().unwrap()).await;
    drop(follower);
    cluster.stop_node(victim).await;
    std::fs::remove_dir_all(cluster.dirs[&victim].path().join(GROUP)).unwrap();
    copy(image.path(), cluster.dirs[&victim].path());
    cluster.start_node(victim, false).await;
    assert_eq!(cluster.group(victim).recovered().unwrap().stop, raft_store::StopClass::Clean);
    let group = Arc::clone(cluster.group(victim));
    let retired = async {
        while group.recovered().is_none_or(|recovered| recovered.retired.is_empty()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("the identity is retired", retired).await;
    assert!(cluster.votes(victim).await > 3);
    send(&leader, 30).await.unwrap();
    let running = cluster.group(victim).running().unwrap();
    caught_up(&running, leader.state.applied_index().unwrap()).await;
    assert_eq!(stored(&running).into_values().collect::<Vec<_>>(), (1..31).collect::<Vec<_>>());
    drop((leader, running));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_flush_mode_is_the_clusters_and_changes_on_every_replica() {
    let mut cluster = Cluster::start("async").await;
    let leader = cluster.leader().await;
    let at = usize::try_from(leader.node_id()).unwrap();
    let follower = 1 + at % 3;
    let refused = cluster.running[&follower].shared.set_flush(GROUP.to_owned(), FlushMode::Sync).await;
    assert!(matches!(refused, Err(crate::http::AdminError::Conflict(_))), "{refused:?}");
    send(&leader, 1).await.unwrap();
    let changed = cluster.running[&at].shared.set_flush(GROUP.to_owned(), FlushMode::Sync).await.unwrap();
    assert!(changed.waiting_for.is_empty(), "{changed:?}");
    for at in 1..=3 {
        let log = cluster.group(at).log().unwrap();
        assert!(log.flush_is_sync(), "node {at}");
    }
    send(&leader, 2).await.unwrap();
    drop(leader);
    // The file of every node still says async, and nobody minds: nothing is lost, no identity either.
    for at in 1..=3 {
        cluster.cut_power(at).await;
    }
    for at in 1..=3 {
        cluster.start_node(at, false).await;
        assert_eq!(cluster.group(at).node_id(), at as u64);
    }
    let leader = cluster.leader().await;
    caught_up(&leader, leader.state.applied_index().unwrap()).await;
    assert_eq!(stored(&leader).into_values().collect::<Vec<_>>(), [1, 2]);

    let at = usize::try_from(leader.node_id()).unwrap();
    cluster.running[&at].shared.set_flush(GROUP.to_owned(), FlushMode::Async).await.unwrap();
    for at in 1..=3 {
        let log = cluster.group(at).log().unwrap();
        let changed = async {
            while log.flush_is_sync() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("asynchronous again", changed).await;
    }
    drop(leader);
    cluster.stop().await;
}
