//! Replicas that lack what the others have dropped, or everything: they join by snapshot and log while producers send.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, group_status, http, poll};

const GROUP: &str = "broker-a";
const NODES: [&str; 3] = ["n1", "n2", "n3"];
const SOON: Duration = Duration::from_secs(90);

fn number(status: &Value, pointer: &str) -> u64 {
    status.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// Sends so many MiB, in messages of 8 KiB.
fn produce(cluster: &Cluster, mebibytes: usize) {
    let count = (mebibytes * 128).to_string();
    let sent: Value = cluster.run_json(&[
        "bench",
        "produce",
        "--topic",
        "t",
        "--size",
        "8192",
        "--count",
        &count,
        "--time",
        "5m",
        "--inflight",
        "64",
    ]);
    assert_eq!((sent["acked"].to_string(), &sent["failed"]), (count, &serde_json::json!({})));
}

/// Waits until every node has applied the same entries and holds the log from the same entry on.
fn settle(cluster: &Cluster) {
    poll(SOON, "all replicas hold the same", || {
        let mut found = NODES.iter().map(|node| {
            let status = group_status(cluster, node)?;
            let first = status.pointer("/log/first")?.as_u64()?;
            Some((first, status["applied"].as_u64()?, status["last"].as_u64()?))
        });
        let first = found.next()??;
        (first.1 == first.2 && found.all(|other| other == Some(first))).then_some(())
    });
}

fn group_dir(cluster: &Cluster, node: &str) -> PathBuf {
    cluster.data().join(node).join("data").join(GROUP)
}

/// The segments of a stopped node, by name.
fn segments(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(dir.join("log")).unwrap().map(|file| file.unwrap());
    let named = files.filter_map(|file| Some((file.file_name().into_string().ok()?, file.path())));
    named.filter(|(name, _)| name.len() == 20).map(|(name, path)| (name, std::fs::read(path).unwrap())).collect()
}

/// Ends of the topic's queues, as the leader says them.
fn queues(cluster: &Cluster) -> Vec<(i64, i64)> {
    let topic: Value = cluster.run_json(&["topic", "describe", "t"]);
    let ends = |queue: &Value| (queue["min_offset"].as_i64().unwrap(), queue["max_offset"].as_i64().unwrap());
    topic.as_array().unwrap().iter().map(ends).collect()
}

#[test]
fn nodes_that_lack_much_or_everything_join_under_load_and_end_with_equal_files() {
    let mut settings = vec!["--groups", "1"];
    // Digests get into sealed segments at another time on each node.
    for setting in ["storage.segment_bytes=16MiB", "retention.check_interval=100ms", "storage.scrub_rate=0B"] {
        settings.extend(["--set", setting]);
    }
    let mut cluster = Cluster::start(&[settings.as_slice(), &["--set", "retention.time=1s"]].concat());
    cluster.run(&["topic", "create", "t", "--queues", "3"]);
    produce(&cluster, 20);
    let leader = cluster.leader_of(GROUP);
    let late = NODES.into_iter().find(|node| *node != leader).unwrap();

    // While it is away the others drop what it lacks.
    let before = poll(SOON, "it follows", || group_status(&cluster, late));
    cluster.dev(&["kill", late]);
    produce(&cluster, 40);
    let first_kept = poll(SOON, "the others drop", || {
        let first = number(&group_status(&cluster, &leader)?, "/log/first");
        (first > number(&before, "/last") + 1).then_some(first)
    });
    cluster.dev(&["start", late]);
    produce(&cluster, 20);
    settle(&cluster);
    let status = group_status(&cluster, late).unwrap();
    assert!(number(&status, "/log/first") >= first_kept, "it begins where the others do: {status}");
    assert_eq!(status["id"], before["id"]);

    // Again with a longer memory, so that much is to be sent, and with nothing left of it.
    cluster.stop();
    cluster.set_args(&[settings.as_slice(), &["--set", "retention.time=72h"]].concat());
    cluster.resume();
    produce(&cluster, 60);
    if cluster.leader_of(GROUP) == late {
        cluster.dev(&["stop", late]);
    } else {
        cluster.dev(&["kill", late]);
    }
    std::fs::remove_dir_all(group_dir(&cluster, late)).unwrap();
    cluster.dev(&["start", late]);
    poll(SOON, "a voter without its directory does not start", || (cluster.state_of(late) == "dead").then_some(()));
    assert!(!group_dir(&cluster, late).join("log/node").exists());
    let load = cluster.spawn(&[
        "bench", "produce", "--topic", "t", "--size", "1024", "--rate", "200", "--time", "8s", "--output", "json",
    ]);
    cluster.dev(&["start", late, "--rejoin"]);
    let joined = poll(SOON, "it votes under another identity", || {
        let status = group_status(&cluster, late)?;
        let id = status["id"].as_u64().filter(|id| *id > 3)?;
        let votes = status["members"].as_array()?.iter().any(|member| member["id"] == id && member["voter"] == true);
        (votes && status["returning"] == false).then_some(status)
    });
    assert_eq!(joined["members"].as_array().unwrap().len(), 3, "its former identity is gone: {joined}");
    let load = load.wait_with_output().unwrap();
    let sent: Value = serde_json::from_slice(&load.stdout).unwrap();
    assert_eq!(sent["failed"], serde_json::json!({}), "nobody felt it: {sent}");
    settle(&cluster);
    let ends = queues(&cluster);
    assert!(ends.iter().all(|(min, max)| *min > 0 && min < max), "{ends:?}");
    cluster.stop();

    // Every segment that was sent is the leader's, byte by byte, and the derived files agree with it.
    let all = NODES.map(|node| segments(&group_dir(&cluster, node)));
    let names = NODES.map(|node| segments(&group_dir(&cluster, node)).into_keys().collect::<Vec<_>>());
    assert!(all[0].len() >= 5, "{names:?}");
    for other in &all[1..] {
        for (name, bytes) in &all[0] {
            // The one that is prepared ahead may not be there yet.
            let Some(others) = other.get(name) else { continue };
            let used = |bytes: &[u8]| bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            let same = used(bytes).min(used(others));
            assert!(bytes[..same] == others[..same], "segment {name} differs");
            // Only what was written while the nodes stopped may be missing, at the very end.
            let is_sealed = all[0].keys().rev().nth(2).is_some_and(|newest| name <= newest);
            assert!(!is_sealed || bytes == others, "segment {name} differs behind {same}");
        }
    }
    for node in NODES {
        let dir = group_dir(&cluster, node);
        let checked = crate::cluster::gantry().args(["store", "check"]).arg(&dir).output().unwrap();
        assert!(checked.status.success(), "{node}: {checked:?}");
    }

    // It serves what it was sent.
    cluster.resume();
    let leader = cluster.leader_of(GROUP);
    if leader != late {
        let addr = cluster.http_of(&leader);
        let (code, answer) = http(&addr, &format!("POST /v1/groups/{GROUP}/transfer-leader?to={late}"), "localhost");
        assert_eq!(code, 200, "{answer}");
        cluster.await_view("it leads", |view| view["groups"][0]["leader"] == late);
    }
    assert_eq!(queues(&cluster), ends);
    let read: Value = cluster.run_json(&["bench", "consume", "--topic", "t"]);
    assert_eq!(read["messages"].as_i64().unwrap(), ends.iter().map(|(min, max)| max - min).sum::<i64>());
    cluster.stop();
}
