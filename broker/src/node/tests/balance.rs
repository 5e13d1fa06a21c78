//! Leaders of groups that prefer no node are spread over the nodes that may lead.

use std::collections::BTreeMap;

use tempfile::TempDir;

use super::retire::{ONE_AT_A_TIME, keep_all, soon};
use super::*;

const GROUPS: [&str; 3] = ["broker-a", "broker-b", "broker-c"];

/// Three nodes with three groups, each of which prefers the node that `homes` names, if it names one.
async fn start_three(balance_after: Option<Duration>, homes: [Option<u64>; 3]) -> (Vec<Node>, Vec<TempDir>) {
    let raft: [SocketAddr; 3] = std::array::from_fn(|_| free_addr());
    let clients: [[SocketAddr; 3]; 3] = std::array::from_fn(|_| std::array::from_fn(|_| free_addr()));
    let mut options = Vec::new();
    let mut dirs = Vec::new();
    for at in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let groups: String = GROUPS
            .iter()
            .zip(&clients)
            .zip(homes)
            .map(|((group, clients), home)| {
                let member = |of: usize| {
                    format!(
                        "[[group.member]]\nnode = \"n{0}\"\nid = {0}\nraft_addr = \"{1}\"\nclient_addr = \"{2}\"\n",
                        of + 1,
                        raft[of],
                        clients[of]
                    )
                };
                let members: String = (0..3).map(member).collect();
                let home = home.map_or_else(String::new, |home| format!("preferred_leader = \"n{home}\"\n"));
                format!("[[group]]\nname = \"{group}\"\n{home}client_listen = \"{}\"\n{members}", clients[at])
            })
            .collect();
        let text = format!(
            "[cluster]\nid = \"00112233445566778899aabbccddeeff\"\n[node]\nname = \"n{}\"\ndata_dir = {:?}\n\
             raft_listen = \"{}\"\nhttp_listen = \"{}\"\nnamesrv = [\"127.0.0.1:1\"]\n\
             [storage]\nsegment_bytes = \"16MiB\"\nallow_unproven_filesystem = true\n\
             [raft]\nelection_timeout_min = \"600ms\"\nelection_timeout_max = \"1000ms\"\n{groups}",
            at + 1,
            dir.path().display().to_string(),
            raft[at],
            free_addr()
        );
        let mut parsed = Options::parse(Path::new("test.toml"), &text).unwrap();
        keep_all(&mut parsed);
        parsed.raft.balance_after = balance_after;
        options.push(parsed);
        dirs.push(dir);
    }
    let nodes = futures::future::join_all(options.into_iter().map(|options| start(options, true))).await;
    (nodes.into_iter().map(Result::unwrap).collect(), dirs)
}

/// Groups by the node that leads them.
fn leaders(nodes: &[Node]) -> BTreeMap<String, usize> {
    let mut leaders = BTreeMap::new();
    for (at, node) in (1..).zip(nodes) {
        for group in &node.shared.groups {
            if group.running().is_some_and(|running| running.raft.role().borrow().is_ready_leader()) {
                leaders.insert(group.name().to_owned(), at);
            }
        }
    }
    leaders
}

async fn until(what: &str, nodes: &[Node], holds: impl Fn(&BTreeMap<String, usize>) -> bool) {
    let looking = async {
        while !holds(&leaders(nodes)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(what, looking).await;
}

/// How many groups each node leads, once all have a leader.
fn counts(leaders: &BTreeMap<String, usize>) -> Option<[usize; 3]> {
    let count = |at| leaders.values().filter(|leader| **leader == at).count();
    (leaders.len() == 3).then(|| [count(1), count(2), count(3)])
}

/// Has one node lead everything.
async fn gather(nodes: &[Node], at: usize) {
    let all_there = |leaders: &BTreeMap<String, usize>| leaders.len() == 3 && leaders.values().all(|to| *to == at);
    let gathering = async {
        while !all_there(&leaders(nodes)) {
            for group in nodes.iter().flat_map(|node| &node.shared.groups) {
                if let Some(running) = group.running()
                    && running.raft.role().borrow().is_ready_leader()
                {
                    // Tried again if it did not work.
                    let _ = running.raft.transfer_leader(Some(at as u64)).await;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("all leaders on one node", gathering).await;
}

async fn stop_all(nodes: Vec<Node>) {
    futures::future::join_all(nodes.into_iter().map(Node::close)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_without_a_home_are_spread_by_themselves() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let (nodes, _dirs) = start_three(Some(Duration::from_millis(300)), [None; 3]).await;
    until("leaders everywhere", &nodes, |leaders| counts(leaders) == Some([1, 1, 1])).await;
    // An operator can still put them anywhere, and so can elections.
    for node in &nodes {
        node.shared.drain.set(node.shared.options.node.name != "n1").await.unwrap();
    }
    gather(&nodes, 1).await;
    for node in &nodes {
        node.shared.drain.set(false).await.unwrap();
    }
    until("leaders everywhere again", &nodes, |leaders| counts(leaders) == Some([1, 1, 1])).await;
    stop_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_node_is_offered_nothing() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let (nodes, _dirs) = start_three(None, [None; 3]).await;
    until("leaders", &nodes, |leaders| leaders.len() == 3).await;
    gather(&nodes, 1).await;
    let offered = async || -> Vec<u64> {
        let mut to: Vec<u64> = nodes[0].shared.offers().await.into_iter().map(|offer| offer.to).collect();
        to.sort_unstable();
        to.dedup();
        to
    };
    let all_are_close = async {
        while offered().await != [2, 3] {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("both others offered", all_are_close).await;
    assert!(nodes[1].shared.offers().await.is_empty(), "it leads nothing");
    nodes[1].shared.drain.set(true).await.unwrap();
    let drained = async {
        while offered().await != [3] {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("one left", drained).await;
    nodes[0].shared.drain.set(true).await.unwrap();
    assert!(nodes[0].shared.offers().await.is_empty(), "a drained node gives away in another way");
    stop_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_with_a_home_counts_there_and_is_not_offered() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let (nodes, _dirs) = start_three(None, [Some(1), Some(2), None]).await;
    until("leaders", &nodes, |leaders| leaders.len() == 3).await;
    gather(&nodes, 1).await;
    let both_are_close = async {
        loop {
            let mut offers = nodes[0].shared.offers().await;
            offers.sort_by_key(|offer| offer.to);
            if [2, 3].iter().all(|to| offers.iter().any(|offer| offer.to == *to)) {
                return offers;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let offers = soon("both others offered", both_are_close).await;
    // Whether broker-b has gone home meanwhile or not.
    let offers: Vec<_> = offers.iter().map(|offer| (offer.group.as_str(), offer.to, offer.leads)).collect();
    assert_eq!(offers, [("broker-c", 2, 1), ("broker-c", 3, 0)]);
    assert_eq!(nodes[0].shared.leads_or_will(), 2);
    stop_all(nodes).await;
}
