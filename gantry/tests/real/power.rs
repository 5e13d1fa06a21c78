//! Power cuts under real processes: each is killed, and its files become what a power cut leaves in the worst case.

use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, group_status, poll};

#[path = "../../../raft-store/tests/support/power_cut.rs"]
mod power_cut;

const GROUP: &str = "broker-a";
const SOON: Duration = Duration::from_secs(60);

/// Kills a node and takes everything from its disk that was not synced.
fn cut_power(cluster: &Cluster, nodes: &[&str]) -> u64 {
    for node in nodes {
        cluster.dev(&["kill", node]);
    }
    let log = |node: &&str| cluster.data().join(node).join("data").join(GROUP).join("log");
    nodes.iter().map(|node| power_cut::power_cut(&log(node), |flushed_end| flushed_end)).sum()
}

/// Waits until a node votes under another identity than those in `before`, and returns it.
fn comes_back(cluster: &Cluster, node: &str, before: &[u64]) -> u64 {
    poll(SOON, "the node votes again", || {
        let group = group_status(cluster, node)?;
        let id = group["id"].as_u64().filter(|id| !before.contains(id))?;
        let votes = group["members"].as_array()?.iter().any(|member| member["id"] == id && member["voter"] == true);
        (votes && group["returning"] == false && group["role"] != "electing").then_some(id)
    })
}

/// Where each queue of the topic ends, by its number.
fn ends(cluster: &Cluster, topic: &str) -> Option<Vec<u64>> {
    let topic: Value = cluster.try_json(&["topic", "describe", topic])?;
    topic.as_array()?.iter().map(|queue| queue["max_offset"].as_u64()).collect()
}

#[test]
fn a_single_node_loses_only_what_its_last_flush_had_no_time_for_and_says_so() {
    // What is promised to be on the disk after this time: the flush interval, and a second for the disk.
    let interval = Duration::from_secs(1);
    let kept_after = interval + Duration::from_secs(1);
    let settings = ["--nodes", "1", "--groups", "1", "--flush", "async", "--set", "storage.flush_interval=1s"];
    let cluster = Cluster::start(&settings);
    cluster.run(&["topic", "create", "t", "--queues", "2"]);
    let report = |start: u64| cluster.data().join(format!("n1/data/{GROUP}/loss-report-start-{start}.json"));
    for start in 2..10 {
        let mut load = cluster.spawn(&["bench", "produce", "--topic", "t", "--size", "100", "--rate", "300"]);
        let before = ends(&cluster, "t").unwrap();
        let safe = poll(SOON, "messages under way", || {
            ends(&cluster, "t").filter(|now| now.iter().zip(&before).all(|(now, before)| now > before))
        });
        // Not a wait for something to happen: the promise is about messages of this age.
        std::thread::sleep(kept_after);
        let sent = ends(&cluster, "t").unwrap();
        let lost_bytes = cut_power(&cluster, &["n1"]);
        load.kill().unwrap();
        load.wait().unwrap();
        cluster.dev(&["start", "n1"]);
        let now = poll(SOON, "the node is back", || ends(&cluster, "t"));
        assert!(
            now.iter().zip(&safe).all(|(now, safe)| now >= safe),
            "older than {kept_after:?} is lost: {safe:?} {now:?}"
        );
        let report: Value = serde_json::from_slice(&std::fs::read(report(start)).unwrap()).unwrap();
        let at_risk = report["queues"].as_array().unwrap().iter().filter(|queue| queue["topic"] == "t");
        let at_risk: Vec<u64> = at_risk.map(|queue| queue["first_offset_at_risk"].as_u64().unwrap()).collect();
        assert_eq!(at_risk, now, "nothing was added meanwhile: {report}");
        // A round in which the cut has not hit proves nothing.
        if lost_bytes > 0 && now.iter().zip(&sent).any(|(now, sent)| now < sent) {
            return;
        }
    }
    panic!("no cut has hit anything that was acknowledged");
}

#[test]
fn a_node_that_lost_its_power_comes_back_by_itself_and_a_lost_majority_by_gantry_recover() {
    let mut cluster = Cluster::start(&["--groups", "1", "--flush", "async"]);
    let verify =
        cluster.spawn(&["verify", "--topic", "checked", "--count", "1500", "--rate", "300", "--output", "json"]);
    poll(Duration::from_secs(30), "messages under way", || {
        let topic: Value = cluster.try_json(&["topic", "describe", "checked"])?;
        let stored: i64 = topic.as_array()?.iter().map(|queue| queue["max_offset"].as_i64().unwrap()).sum();
        (stored > 400).then_some(())
    });
    let leader = cluster.leader_of(GROUP);
    cut_power(&cluster, &[&leader]);
    cluster.dev(&["start", &leader]);
    let next = comes_back(&cluster, &leader, &[1, 2, 3]);
    let output = verify.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let verdict: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&verdict["acked"], &verdict["lost"], &verdict["phantom"]), (&1500.into(), &0.into(), &0.into()));

    // Now two at once. Which messages go with them depends on the moment; that they stop, and how they go on, does not.
    cut_power(&cluster, &["n1", "n2"]);
    cluster.dev(&["start", "n1"]);
    cluster.dev(&["start", "n2"]);
    let addrs = ["n1", "n2", "n3"].map(|node| cluster.http_of(node)).join(",");
    let recover = ["recover", GROUP, "--nodes", &addrs];
    let plan: Value = poll(SOON, "every node tells what it has, and knows no leader", || {
        cluster.try_json(&[recover.as_slice(), &["--dry-run"]].concat())
    });
    assert_eq!(plan["report"], Value::Null);
    assert_eq!(plan["nodes"].as_array().unwrap().iter().filter(|node| node["node_id"].is_null()).count(), 2, "{plan}");
    let asked = cluster.spawn(&recover).wait_with_output().unwrap();
    assert!(!asked.status.success(), "neither look nor leap: {asked:?}");
    let done: Value = cluster.run_json(&[recover.as_slice(), &["--accept-loss"]].concat());
    assert_eq!(done["report"]["node"], plan["plan"]["node"], "{done}");
    assert!(done["report"]["queues"].as_array().unwrap().iter().any(|queue| queue["topic"] == "checked"), "{done}");
    for node in ["n1", "n2", "n3"] {
        comes_back(&cluster, node, &[1, 2, 3, next]);
    }
    cluster.run(&["send", "checked", "after the recovery"]);

    let changed: Value = cluster.run_json(&["flush", GROUP, "sync", "--nodes", &addrs]);
    assert_eq!((&changed["mode"], &changed["waiting_for"]), (&"sync".into(), &serde_json::json!([])), "{changed}");
    for node in ["n1", "n2", "n3"] {
        assert_eq!(group_status(&cluster, node).unwrap()["flush"], "sync");
    }
    cluster.stop();
}
