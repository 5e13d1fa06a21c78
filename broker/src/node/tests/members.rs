//! Groups that grow, shrink and change nodes, with load, over changes of their leader and starts with old configurations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::Ordering;

use tempfile::TempDir;

use super::retire::{Load, ONE_AT_A_TIME, caught_up, keep_all, leads, soon, stored};
use super::*;
use crate::http::{
    AdminError, Changed, JoinerOrder, MemberAnswer, MemberOrder, MemberQuery, OperationState, OperationStatus, Plan,
    Settle,
};
use crate::node::group::Running;
use crate::state_machine::command::PutMode;
use crate::state_machine::members::JOIN_TOKEN_TIME_MS;
use crate::state_machine::testing::topic;
use crate::state_machine::{Command, TopicConfig};

const GROUP: &str = "broker-a";
const CLUSTER: &str = "00112233445566778899aabbccddeeff";

/// Nodes by number, each with one group.
struct Nodes {
    addrs: BTreeMap<u64, [SocketAddr; 3]>,
    dirs: BTreeMap<u64, TempDir>,
    running: BTreeMap<u64, Node>,
    load: Arc<Load>,
    groups: Arc<Mutex<Vec<Arc<NodeGroup>>>>,
    sending: Option<tokio::task::JoinHandle<()>>,
    _alone: tokio::sync::MutexGuard<'static, ()>,
}

impl Nodes {
    /// A new group of nodes 1 to `count`, and load on it.
    async fn start(count: u64) -> Self {
        let mut nodes = Self {
            addrs: BTreeMap::new(),
            dirs: BTreeMap::new(),
            running: BTreeMap::new(),
            load: Arc::new(Load::new()),
            groups: Arc::default(),
            sending: None,
            _alone: ONE_AT_A_TIME.lock().await,
        };
        let all: Vec<u64> = (1..=count).collect();
        for at in (1..=count).rev() {
            let options = nodes.options(at, CLUSTER, &all, Some(at));
            nodes.run(at, options, true).await;
        }
        let leader = nodes.leader().await;
        let topics = vec![TopicConfig::new(topic("A"), 1, 6)];
        let put = Command::PutTopics { topics, mode: PutMode::CreateOnly, stamped_ms: 1 };
        leader.raft.propose_command(&put).await.unwrap();
        let (load, groups) = (Arc::clone(&nodes.load), Arc::clone(&nodes.groups));
        nodes.sending = Some(tokio::spawn(async move { load.run(&groups).await }));
        nodes
    }

    fn addrs(&mut self, at: u64) -> [SocketAddr; 3] {
        *self.addrs.entry(at).or_insert_with(|| std::array::from_fn(|_| free_addr()))
    }

    /// The configuration of a node that knows `others`, and itself as `own_id`, or as one that joins.
    fn options(&mut self, at: u64, cluster: &str, others: &[u64], own_id: Option<u64>) -> Options {
        let mut members = String::new();
        for other in others.iter().copied().filter(|other| *other != at).chain([at]) {
            let [raft, _, client] = self.addrs(other);
            let id = if other == at { own_id } else { Some(other) };
            let id = id.map_or_else(String::new, |id| format!("id = {id}\n"));
            let _ = write!(
                members,
                "[[group.member]]\nnode = \"n{other}\"\n{id}raft_addr = \"{raft}\"\nclient_addr = \"{client}\"\n"
            );
        }
        let [raft, http, client] = self.addrs(at);
        let dir = self.dirs.entry(at).or_insert_with(|| tempfile::tempdir().unwrap()).path().display().to_string();
        let text = format!(
            "[cluster]\nid = \"{cluster}\"\n[node]\nname = \"n{at}\"\ndata_dir = {dir:?}\nraft_listen = \"{raft}\"\n\
             http_listen = \"{http}\"\nnamesrv = [\"127.0.0.1:1\"]\n[http]\nrequests_per_second = 10000\n[storage]\nsegment_bytes = \"16MiB\"\n\
             allow_unproven_filesystem = true\n[raft]\nheartbeat_interval = \"100ms\"\nelection_timeout_min = \"600ms\"\n\
             election_timeout_max = \"1000ms\"\n[[group]]\nname = \"{GROUP}\"\nclient_listen = \"{client}\"\n{members}"
        );
        let mut options = Options::parse(Path::new("test.toml"), &text).unwrap();
        keep_all(&mut options);
        options
    }

    async fn run(&mut self, at: u64, options: Options, bootstrap: bool) {
        let node = start(options, bootstrap).await.unwrap();
        self.groups.lock().push(Arc::clone(&node.shared.groups[0]));
        self.running.insert(at, node);
    }

    /// Starts a node that joins by what `token` says, and knows `others`.
    async fn join(&mut self, at: u64, others: &[u64], token: &str) {
        let options = self.options(at, CLUSTER, others, None);
        std::fs::write(&options.node.join_tokens, format!("{token}\n")).unwrap();
        std::fs::set_permissions(&options.node.join_tokens, std::fs::Permissions::from_mode(0o600)).unwrap();
        self.run(at, options, false).await;
    }

    async fn stop(&mut self, at: u64) {
        let node = self.running.remove(&at).unwrap();
        self.groups.lock().retain(|group| !Arc::ptr_eq(group, &node.shared.groups[0]));
        node.close().await;
    }

    fn group(&self, at: u64) -> &Arc<NodeGroup> {
        &self.running[&at].shared.groups[0]
    }

    async fn leader(&self) -> Arc<Running> {
        let waits = self.running.keys().map(|at| Box::pin(leads(Arc::clone(self.group(*at)))));
        soon("a leader", futures::future::select_all(waits)).await.0
    }

    /// The number of the node that leads.
    async fn leader_node(&self) -> u64 {
        let leader = self.leader().await;
        let is_it = |at: &&u64| self.group(**at).running().is_some_and(|running| Arc::ptr_eq(&running, &leader));
        *self.running.keys().find(is_it).unwrap()
    }

    fn joiner(&mut self, at: u64) -> JoinerOrder {
        let [raft, _, client] = self.addrs(at);
        JoinerOrder { node: format!("n{at}"), raft_addr: raft.to_string(), client_addr: client.to_string() }
    }

    /// Gives an order to whoever leads.
    async fn order(&self, order: MemberOrder, query: MemberQuery) -> Result<MemberAnswer, AdminError> {
        let at = self.leader_node().await;
        match self.running[&at].shared.change_members(GROUP.to_owned(), order, query, false).await? {
            Changed::Done(answer) => Ok(answer),
            Changed::Planned(plan) => panic!("it was no dry run: {plan:?}"),
        }
    }

    /// What whoever leads says that an order would do.
    async fn dry_run(&self, order: MemberOrder) -> Plan {
        let at = self.leader_node().await;
        let query = MemberQuery::default();
        match self.running[&at].shared.change_members(GROUP.to_owned(), order, query, true).await.unwrap() {
            Changed::Planned(plan) => plan,
            Changed::Done(answer) => panic!("it was a dry run: {answer:?}"),
        }
    }

    async fn begin(&self, order: MemberOrder) -> MemberAnswer {
        self.order(order, MemberQuery::default()).await.unwrap()
    }

    /// Waits until an operation has ended, wherever that is known.
    async fn ended(&self, id: &str) -> OperationStatus {
        let ended = async {
            loop {
                let all = self.running.values().flat_map(|node| node.shared.operations());
                if let Some(ended) = all.into_iter().find(|status| status.id == id && status.ended_ms.is_some()) {
                    return ended;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        soon("the end of an operation", ended).await
    }

    /// Waits until a node's replica is outside its group, for a reason with `text` in it.
    async fn is_outside(&self, at: u64, text: &str) {
        let group = Arc::clone(self.group(at));
        let outside = async {
            loop {
                let reason = group.outside();
                if reason.is_some_and(|reason| reason.contains(text)) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        soon(text, outside).await;
    }

    /// Waits until a node has shown its token and has been made a learner.
    async fn is_let_in(&self, at: u64) {
        let name = format!("n{at}");
        let let_in = async {
            while !self.leader().await.raft.metrics().members.values().any(|member| member.node == name) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        soon("it is let in", let_in).await;
    }

    /// The names of the voters, as the leader knows them.
    async fn voters(&self) -> BTreeSet<String> {
        let metrics = self.leader().await.raft.metrics();
        let [voters] = metrics.voters.as_slice() else { panic!("in the middle of a change: {metrics:?}") };
        voters.iter().map(|id| metrics.members[id].node.clone()).collect()
    }

    /// Ends the load, and checks that each of these nodes has everything that was acknowledged.
    async fn check(&mut self, holders: &[u64]) {
        self.load.more(20).await;
        self.load.stop.store(true, Ordering::Release);
        self.sending.take().unwrap().await.unwrap();
        let leader = self.leader().await;
        leader.raft.read_index().await.unwrap();
        let last = leader.state.applied_index().unwrap();
        let acknowledged = self.load.acknowledged.borrow().clone();
        for at in holders {
            let running = self.group(*at).running().unwrap();
            caught_up(&running, last).await;
            let stored = stored(&running);
            let lost: Vec<_> = acknowledged.iter().filter(|(offset, id)| stored.get(offset) != Some(id)).collect();
            assert!(lost.is_empty(), "node {at} misses {lost:?} of {}", acknowledged.len());
        }
        drop(leader);
        for (_, node) in std::mem::take(&mut self.running) {
            node.close().await;
        }
    }
}

fn names(numbers: &[u64]) -> BTreeSet<String> {
    numbers.iter().map(|number| format!("n{number}")).collect()
}

fn id_of(answer: &MemberAnswer) -> String {
    answer.operation.id.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_one_grows_to_three_under_load_and_old_configurations_do_not_matter() {
    let mut nodes = Nodes::start(1).await;
    nodes.load.more(50).await;
    let order = MemberOrder::Add(vec![nodes.joiner(2), nodes.joiner(3)]);
    let plan = nodes.dry_run(order.clone()).await;
    assert!(plan.dry_run && plan.would.contains("; then one change of membership: from n1 to n1, n2, n3"), "{plan:?}");
    assert_eq!(plan.would.split("; then ").collect::<Vec<_>>(), plan.steps);
    assert_eq!(nodes.running[&1].shared.operations(), []);

    let begun = nodes.begin(order.clone()).await;
    let id = id_of(&begun);
    // A second one is refused, and says what is under way.
    let refused = nodes.order(order, MemberQuery::default()).await.unwrap_err();
    assert!(matches!(&refused, AdminError::Conflict(text) if text.contains(&id)), "{refused}");
    let [second, third] = [0, 1].map(|at| begun.join_tokens[at].line.clone());
    nodes.join(2, &[1], &second).await;
    let holds_the_log = async {
        loop {
            let waits_for = nodes.running[&1].shared.operations()[0].waits_for.clone();
            let metrics = nodes.leader().await.raft.metrics();
            let second = metrics.members.iter().find(|(_, member)| member.node == "n2").map(|(id, _)| *id);
            let matched = second.and_then(|id| metrics.matched.get(&id).copied().flatten());
            if waits_for.is_some_and(|text| text.contains("node n3 to come")) && matched >= metrics.applied {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("n2 holds the log and n3 is waited for", holds_the_log).await;
    nodes.load.more(50).await;
    // One of two does not vote alone: the group would stop when either fails.
    assert_eq!(nodes.voters().await, names(&[1]));
    nodes.join(3, &[1], &third).await;
    let ended = nodes.ended(&id).await;
    assert_eq!((ended.state, ended.started_by.as_str()), (OperationState::Done, "unknown"));
    assert_eq!(nodes.voters().await, names(&[1, 2, 3]));

    // Each is started again with the configuration it had, while the others go on.
    nodes.load.more(20).await;
    for at in [1, 3, 2] {
        nodes.stop(at).await;
        nodes.load.more(20).await;
        let own_id = (at == 1).then_some(1);
        let options = nodes.options(at, CLUSTER, &[1], own_id);
        nodes.run(at, options, false).await;
        let running = soon("it runs", async {
            nodes.group(at).led().await;
            nodes.group(at).running().unwrap()
        });
        let running = running.await;
        let last = nodes.leader().await.raft.metrics().last.unwrap();
        caught_up(&running, last).await;
        // Whatever its file says: alone it would go on after a crash with what its own disk has.
        assert!(nodes.group(at).has_peers());
    }
    assert_eq!(nodes.voters().await, names(&[1, 2, 3]));
    nodes.check(&[1, 2, 3]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_another_cluster_no_token_or_a_used_one_stays_outside_and_says_why() {
    let mut nodes = Nodes::start(1).await;
    let order = MemberOrder::Add(vec![nodes.joiner(2)]);
    let begun = nodes.begin(order).await;
    let line = begun.join_tokens[0].line.clone();

    let other_cluster = nodes.options(4, &CLUSTER.replace("00", "77"), &[1], None);
    std::fs::write(&other_cluster.node.join_tokens, &line).unwrap();
    std::fs::set_permissions(&other_cluster.node.join_tokens, std::fs::Permissions::from_mode(0o600)).unwrap();
    nodes.run(4, other_cluster, false).await;
    nodes.is_outside(4, "another cluster").await;
    // The right token under another name, and the right name with another token.
    nodes.join(3, &[1], &line).await;
    nodes.is_outside(3, "a node of this name is not to be added").await;
    nodes.join(2, &[1], &format!("{GROUP} {}", "ab".repeat(32))).await;
    nodes.is_outside(2, "the join token is not the one that was given out for it").await;
    let status = nodes.running[&2].shared.status();
    assert_eq!((status.ready, status.groups[0].role), (false, ReplicaRole::Joining));
    assert!(status.health.contains("waits to be let in"), "{}", status.health);
    assert_eq!(nodes.voters().await, names(&[1]));

    // The right one is taken from the file while the node runs.
    let file = nodes.running[&2].shared.options.node.join_tokens.clone();
    std::fs::write(file, &line).unwrap();
    assert_eq!(nodes.ended(&id_of(&begun)).await.state, OperationState::Done);
    // Its disk is lost, and with it its identity: neither the token nor its name let an empty one in.
    nodes.stop(2).await;
    nodes.dirs.remove(&2);
    nodes.join(2, &[1], &line).await;
    nodes.is_outside(2, "does not lead").await;
    for at in [2, 3, 4] {
        nodes.stop(at).await;
    }
    // A majority is gone by this: what the test asked for has been seen.
    nodes.load.stop.store(true, Ordering::Release);
    nodes.stop(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_goes_on_under_another_leader_and_is_turned_back_on_request() {
    let mut nodes = Nodes::start(3).await;
    let order = MemberOrder::Add(vec![nodes.joiner(4), nodes.joiner(5)]);
    let begun = nodes.begin(order.clone()).await;
    let id = id_of(&begun);
    nodes.join(4, &[1], &begun.join_tokens[0].line).await;
    nodes.is_let_in(4).await;
    nodes.load.more(20).await;
    // Another leader goes on with what the log says.
    let first = nodes.leader_node().await;
    let other = first % 3 + 1;
    let (group, to) = (GROUP.to_owned(), Some(format!("n{other}")));
    nodes.running[&first].shared.transfer_leader(group, to, false).await.unwrap();
    nodes.load.more(20).await;
    assert_eq!(nodes.leader_node().await, other);
    let under_way = nodes.running[&other].shared.operation(&id).unwrap();
    assert_eq!(under_way.state, OperationState::Running);

    let planned = nodes.running[&other].shared.cancel_operation(id.clone(), true).await.unwrap();
    assert!(matches!(planned, Changed::Planned(_)), "{planned:?}");
    assert_eq!(nodes.running[&other].shared.operation(&id).unwrap().state, OperationState::Running);
    let cancelled = nodes.running[&other].shared.cancel_operation(id.clone(), false).await.unwrap();
    assert!(matches!(&cancelled, Changed::Done(now) if now.state == OperationState::Returning), "{cancelled:?}");
    let ended = nodes.ended(&id).await;
    assert_eq!((ended.state, ended.result.as_deref()), (OperationState::Undone, Some("cancelled")));
    let again = nodes.running[&other].shared.cancel_operation(id.clone(), false).await.unwrap_err();
    assert!(again.to_string().contains("has ended"), "{again}");
    nodes.is_outside(4, "was removed by operation").await;
    assert_eq!(nodes.leader().await.raft.metrics().members.len(), 3);

    // Nothing is left of it: five are five by the next one. A disk that was turned away is not taken again.
    let begun = nodes.begin(order).await;
    nodes.stop(4).await;
    nodes.dirs.remove(&4);
    for (at, token) in [4, 5].into_iter().zip(&begun.join_tokens) {
        nodes.join(at, &[2], &token.line).await;
    }
    assert_eq!(nodes.ended(&id_of(&begun)).await.state, OperationState::Done);
    assert_eq!(nodes.voters().await, names(&[1, 2, 3, 4, 5]));
    nodes.check(&[1, 2, 3, 4, 5]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_dies_once_it_was_let_in_does_not_vote_and_the_change_can_be_turned_back() {
    let mut nodes = Nodes::start(3).await;
    let order = MemberOrder::Add(vec![nodes.joiner(4), nodes.joiner(5)]);
    let begun = nodes.begin(order).await;
    let id = id_of(&begun);
    nodes.join(4, &[1], &begun.join_tokens[0].line).await;
    nodes.is_let_in(4).await;
    let leader = nodes.leader().await;
    let four = leader.raft.metrics().members.iter().find(|(_, member)| member.node == "n4").map(|(id, _)| *id).unwrap();
    // It has all there is, and nothing more comes that it could lack.
    nodes.load.stop.store(true, Ordering::Release);
    nodes.sending.take().unwrap().await.unwrap();
    let last = leader.raft.metrics().last.unwrap();
    leader.raft.wait_for_member(four, last, Duration::from_secs(60)).await.unwrap();
    nodes.stop(4).await;
    let unheard = async {
        while leader.raft.others(Duration::from_secs(3)).iter().any(|other| other.node_id == four && other.healthy) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("it is missed", unheard).await;
    drop(leader);

    // Now the last one comes, and all that is missing is the dead one.
    nodes.join(5, &[1], &begun.join_tokens[1].line).await;
    let waits = async {
        loop {
            let at = nodes.leader_node().await;
            let status = nodes.running[&at].shared.operation(&id).unwrap();
            assert_eq!(status.state, OperationState::Running, "{status:?}");
            if status.waits_for.is_some_and(|text| text.contains("node n4, which was let in and does not answer now")) {
                return at;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let at = soon("it is said what is missing", waits).await;
    assert_eq!(nodes.voters().await, names(&[1, 2, 3]));
    let order = MemberOrder::Remove("n3".to_owned());
    let refused = nodes.order(order, MemberQuery::default()).await.unwrap_err();
    assert!(refused.to_string().contains(&format!("POST /v1/operations/{id}/cancel")), "{refused}");
    nodes.running[&at].shared.cancel_operation(id.clone(), false).await.unwrap();
    let ended = nodes.ended(&id).await;
    assert_eq!((ended.state, ended.result.as_deref()), (OperationState::Undone, Some("cancelled")));
    nodes.is_outside(5, "was removed by operation").await;
    let members = async {
        while nodes.leader().await.raft.metrics().members.len() != 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("three members", members).await;
    assert_eq!(nodes.voters().await, names(&[1, 2, 3]));

    // The dead one comes back with its disk, and is not taken. One with another disk is.
    nodes.join(4, &[1], &begun.join_tokens[0].line).await;
    nodes.is_outside(4, "was removed by operation").await;
    nodes.stop(4).await;
    nodes.dirs.remove(&4);
    let order = MemberOrder::Add(vec![nodes.joiner(4)]);
    let begun = nodes.begin(order).await;
    nodes.join(4, &[1], &begun.join_tokens[0].line).await;
    assert_eq!(nodes.ended(&id_of(&begun)).await.state, OperationState::Done);
    assert_eq!(nodes.voters().await, names(&[1, 2, 3, 4]));
    for (_, node) in std::mem::take(&mut nodes.running) {
        node.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_node_is_replaced_a_leader_removed_and_neither_comes_back() {
    let mut nodes = Nodes::start(3).await;
    nodes.load.more(50).await;
    let dead = nodes.leader_node().await % 3 + 1;
    nodes.stop(dead).await;
    let order = MemberOrder::Replace(format!("n{dead}"), nodes.joiner(4));
    let begun = nodes.begin(order).await;
    let others: Vec<u64> = (1..=3).filter(|at| *at != dead).collect();
    nodes.join(4, &others, &begun.join_tokens[0].line).await;
    assert_eq!(nodes.ended(&id_of(&begun)).await.state, OperationState::Done);
    assert_eq!(nodes.voters().await, names(&[others[0], others[1], 4]));

    // Its disk comes back, with the configuration it had.
    let options = nodes.options(dead, CLUSTER, &[1, 2, 3], Some(dead));
    nodes.run(dead, options.clone(), false).await;
    nodes.is_outside(dead, "was replaced by node n4").await;
    let status = nodes.running[&dead].shared.status();
    assert_eq!(status.groups[0].role, ReplicaRole::Removed, "{status:?}");
    // It is known at the next start without asking anybody.
    nodes.stop(dead).await;
    nodes.run(dead, options, false).await;
    assert!(nodes.group(dead).outside().unwrap().contains("was replaced by node n4"));
    assert!(nodes.group(dead).running().is_none());
    nodes.stop(dead).await;

    // Three are two only when that is said.
    let leader = nodes.leader_node().await;
    let remove = MemberOrder::Remove(format!("n{leader}"));
    let refused = nodes.order(remove.clone(), MemberQuery::default()).await.unwrap_err();
    assert!(refused.to_string().contains("stops when one more fails"), "{refused}");
    let force = Some("reduced-redundancy".to_owned());
    let begun = nodes.order(remove, MemberQuery { force, ..MemberQuery::default() }).await.unwrap();
    assert!(begun.steps[0].contains("hands its leadership over"), "{begun:?}");
    assert_eq!(nodes.ended(&id_of(&begun)).await.state, OperationState::Done);
    nodes.is_outside(leader, "was removed by operation").await;
    let left: Vec<u64> = [others[0], others[1], 4].into_iter().filter(|at| *at != leader).collect();
    assert_eq!(nodes.voters().await, names(&left));
    nodes.check(&left).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_stands_in_the_middle_is_shown_and_ended_either_way() {
    let mut nodes = Nodes::start(3).await;
    for to in [Settle::TurnBack, Settle::Finish] {
        let at = nodes.leader_node().await;
        let leader = nodes.leader().await;
        let gone = at % 3 + 1;
        let mut rest = leader.raft.metrics().voters[0].clone();
        rest.remove(&gone);
        // Whoever makes a change and dies before its second entry leaves it like this.
        let change = leader.raft.change_voters(rest);
        let joint = async {
            while leader.raft.metrics().voters.len() < 2 {
                tokio::time::sleep(Duration::from_micros(50)).await;
            }
        };
        tokio::select! {
            biased;
            () = joint => {}
            changed = change => panic!("it went through at once: {changed:?}"),
        }
        let committed = async {
            while leader.raft.metrics().committed < leader.raft.metrics().membership_at.map(|at| at.index.get()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("the middle is committed", committed).await;
        let shared = Arc::clone(&nodes.running[&at].shared);
        let stuck = shared.members(GROUP).unwrap();
        assert_eq!(stuck.joint.as_ref().map(|(before, after)| (before.len(), after.len())), Some((3, 2)), "{stuck:?}");
        assert!(shared.status().groups[0].joint);
        let order = MemberOrder::Remove(format!("n{gone}"));
        let refused = nodes.order(order, MemberQuery::default()).await.unwrap_err();
        assert!(refused.to_string().contains("settle-members"), "{refused}");
        let planned = shared.settle_members(GROUP.to_owned(), to, true).await.unwrap();
        assert!(matches!(planned, Changed::Planned(_)), "{planned:?}");
        let settled = shared.settle_members(GROUP.to_owned(), to, false).await.unwrap();
        let Changed::Done(settled) = settled else { panic!("{settled:?}") };
        assert_eq!((settled.joint, settled.members.len()), (None, if to == Settle::Finish { 2 } else { 3 }));
        let again = shared.settle_members(GROUP.to_owned(), to, false).await.unwrap_err();
        assert!(again.to_string().contains("no change"), "{again}");
        drop(leader);
        if to == Settle::Finish {
            nodes.stop(gone).await;
        }
    }
    let left: Vec<u64> = nodes.running.keys().copied().collect();
    nodes.check(&left).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_node_does_not_come_within_the_hour_goes_back_by_itself() {
    let mut nodes = Nodes::start(1).await;
    let order = MemberOrder::Add(vec![nodes.joiner(2), nodes.joiner(3)]);
    let begun = nodes.begin(order).await;
    let id = id_of(&begun);
    // One of two comes; that is not enough.
    nodes.join(2, &[1], &begun.join_tokens[0].line).await;
    let group = Arc::clone(nodes.group(1));
    let looked = async |says: &str| {
        // Said anew each time the leader has looked.
        group.set_change_waits(None);
        let said = async {
            loop {
                if group.change_waits().is_some_and(|text| text.contains(says)) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        soon("the leader looks", said).await;
    };
    looked("node n3 to come with its join token").await;

    // Five minutes before the hour is over, by the leader's clock, it is waited for.
    let leader = nodes.leader().await;
    let hour_over = begun.operation.started_ms + JOIN_TOKEN_TIME_MS;
    leader.group.stamp_after(hour_over - 300_000);
    looked("node n3 to come with its join token").await;
    looked("node n3 to come with its join token").await;
    assert_eq!(nodes.running[&1].shared.operation(&id).unwrap().state, OperationState::Running);

    leader.group.stamp_after(hour_over + 1);
    let ended = nodes.ended(&id).await;
    assert_eq!(ended.state, OperationState::Undone, "{ended:?}");
    assert!(ended.result.unwrap().contains("node n3 has not come before its join token expired"));
    assert_eq!(nodes.voters().await, names(&[1]));
    // The one that had come is no learner any more, and the other's token is worth nothing.
    assert_eq!(nodes.leader().await.raft.metrics().members.len(), 1);
    nodes.join(3, &[1], &begun.join_tokens[1].line).await;
    nodes.is_outside(3, "no node is to be added now").await;
    // Nothing is in the way of the next change.
    let order = MemberOrder::Add(vec![nodes.joiner(4)]);
    let begun = nodes.begin(order).await;
    nodes.join(4, &[1], &begun.join_tokens[0].line).await;
    assert_eq!(nodes.ended(&id_of(&begun)).await.state, OperationState::Done);
    assert_eq!(nodes.voters().await, names(&[1, 4]));
    for at in [2, 3] {
        nodes.stop(at).await;
    }
    nodes.check(&[1, 4]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_orders_are_refused_in_words_and_change_nothing() {
    let mut nodes = Nodes::start(1).await;
    let addr = nodes.addrs(1)[1];
    let members = "/v1/groups/broker-a/members";
    let json = "\nContent-Type: application/json";
    let node = |name: &str| format!("{{\"node\":\"{name}\",\"raft_addr\":\"h:1\",\"client_addr\":\"127.0.0.1:9\"}}");
    let nodes_of = |all: &[String]| format!("{{\"nodes\":[{}]}}", all.join(","));
    let good = nodes_of(&[node("n2")]);
    let many: Vec<String> = (10..20).map(|at| node(&format!("n{at}"))).collect();
    for (head, body, code) in [
        (format!("POST {members}"), good.as_str(), 415),
        (format!("POST {members}{json}"), "", 400),
        (format!("POST {members}{json}"), "{", 400),
        (format!("POST {members}{json}"), "{}", 422),
        (format!("POST {members}{json}"), "{\"nodes\":7}", 422),
        (format!("POST {members}{json}"), "{\"nodes\":[],\"nodes\":[]}", 422),
        (format!("POST {members}{json}"), "{\"nodes\":[],\"node\":1}", 422),
        (format!("POST {members}{json}"), "{\"nodes\":[]}", 400),
        (format!("POST {members}{json}"), &nodes_of(&many), 400),
        (format!("POST {members}{json}"), &nodes_of(&[node(&"x".repeat(65))]), 400),
        (format!("POST {members}{json}"), &nodes_of(&[node("../n2")]), 400),
        (format!("POST {members}{json}"), &nodes_of(&[node("n2"), node("n2")]), 400),
        (format!("POST {members}{json}"), &nodes_of(&[node("n1")]), 409),
        (format!("POST {members}?dry_run=maybe{json}"), &good, 400),
        (format!("POST {members}?force=please{json}"), &good, 400),
        (format!("POST {members}?started_by={}{json}", "x".repeat(65)), &good, 400),
        (format!("POST {members}?dryrun=true{json}"), &good, 400),
        (format!("POST /v1/groups/broker-z/members{json}"), &good, 404),
        (format!("DELETE {members}/n9"), "", 404),
        (format!("DELETE {members}/n1?force=reduced-redundancy"), "", 409),
        (format!("POST {members}/n9/replace{json}"), &node("n2"), 404),
        (format!("POST {members}/n1/replace{json}"), &node("n1"), 409),
        (format!("POST {members}/n1/replace{json}"), &good, 422),
        ("POST /v1/groups/broker-a/settle-members?to=later".to_owned(), "", 400),
        ("POST /v1/groups/broker-a/settle-members".to_owned(), "", 400),
        ("POST /v1/groups/broker-a/settle-members?to=finish".to_owned(), "", 409),
        ("GET /v1/operations/broker-a-7".to_owned(), "", 404),
        ("GET /v1/operations/7".to_owned(), "", 404),
        ("POST /v1/operations/broker-a-7/cancel".to_owned(), "", 404),
        ("GET /v1/operations?all=1".to_owned(), "", 400),
    ] {
        let answer = http::ask(addr, &head, body).await;
        assert_eq!(answer.code, code, "{head} {body}: {}", answer.body);
        let found = answer.json();
        assert!(found["message"].as_str().is_some_and(|text| text.len() > 10), "{head} {body}: {found}");
    }
    assert_eq!(nodes.running[&1].shared.operations(), []);
    assert_eq!(nodes.leader().await.raft.metrics().members.len(), 1);

    // The right one is answered with what it begins, and named by the operations.
    let answer = http::ask(addr, &format!("POST {members}?started_by=me{json}"), &good).await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    let id = answer.json()["operation"]["id"].as_str().unwrap().to_owned();
    let token = answer.json()["join_tokens"][0]["line"].as_str().unwrap().to_owned();
    assert_eq!(token.split(' ').map(str::len).collect::<Vec<_>>(), [GROUP.len(), 64]);
    let found = http::ask(addr, &format!("GET /v1/operations/{id}"), "").await;
    assert_eq!((found.code, &found.json()["started_by"]), (200, &"me".into()), "{}", found.body);
    assert!(!found.body.contains(&token[GROUP.len() + 1..]), "the token is shown once");
    let again = http::ask(addr, &format!("DELETE {members}/n1"), "").await;
    assert!(again.code == 409 && again.body.contains(&id), "{}", again.body);
    nodes.check(&[1]).await;
}
