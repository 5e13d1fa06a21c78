//! Real processes: a cluster as `gantry dev` runs it, killed, stopped and started again.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod bootstrap;
mod cluster;
mod full_disk;
mod join;
mod members;
mod operate;
mod power;
mod scripts;
mod sidecar;
mod supervised;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cluster::{Cluster, gantry, http, is_alive, poll};
use serde_json::Value;

#[test]
fn nothing_acknowledged_is_lost_when_a_leader_is_killed() {
    let mut cluster = Cluster::start(&[]);
    cluster.run(&["topic", "create", "orders", "--queues", "2"]);
    let sent: Value = cluster.run_json(&["send", "orders", "hello", "--key", "k1", "--tag", "a"]);
    assert_eq!(sent["summary"]["sent"], 1);

    let verify =
        cluster.spawn(&["verify", "--topic", "checked", "--count", "1500", "--rate", "300", "--output", "json"]);
    // Half way through, whoever leads broker-b goes without a word.
    poll(Duration::from_secs(30), "messages under way", || {
        let topic: Value = cluster.try_json(&["topic", "describe", "checked"])?;
        let stored: i64 = topic.as_array()?.iter().map(|queue| queue["max_offset"].as_i64().unwrap()).sum();
        (stored > 400).then_some(())
    });
    let killed = cluster.leader_of("broker-b");
    cluster.dev(&["kill", "--leader", "broker-b"]);
    assert_eq!(cluster.state_of(&killed), "stopped");
    let output = verify.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let verdict: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&verdict["acked"], &verdict["lost"], &verdict["phantom"]), (&1500.into(), &0.into(), &0.into()));
    assert_eq!(verdict["out_of_order"], 0, "{verdict}");

    // It comes back, catches up, and what was sent before is still there.
    cluster.dev(&["start", &killed]);
    cluster.await_view("all replicas follow", |view| {
        view["groups"].as_array().unwrap().iter().all(|group| group["followers"] == 2)
    });
    let tail = cluster.run(&["tail", "orders", "--from", "earliest", "--count", "1"]);
    assert!(tail.contains("hello"), "{tail}");

    // A second run finds the data of the first.
    cluster.stop();
    cluster.resume();
    let found: Value = cluster.run_json(&["msg", "get", "--topic", "orders", "--key", "k1"]);
    assert_eq!(found[0]["body"], "hello");
    cluster.stop();
}

#[test]
fn a_node_that_is_stopped_hands_over_and_a_paused_one_is_replaced() {
    let mut cluster = Cluster::start(&["--groups", "1"]);
    let first = cluster.leader_of("broker-a");
    cluster.dev(&["stop", &first]);
    cluster.await_view("another leader", |view| {
        view["groups"][0]["leader"].as_str().is_some_and(|leader| leader != first)
    });
    cluster.run(&["send", "t", "after the stop"]);
    cluster.dev(&["start", &first]);
    cluster.await_view("both follow again", |view| view["groups"][0]["followers"] == 2);

    // Leadership goes home to the preferred node meanwhile, and no send may feel it.
    let produced: Value =
        cluster.run_json(&["bench", "produce", "--count", "300", "--inflight", "16", "--size", "100"]);
    assert_eq!((&produced["acked"], &produced["failed"]), (&300.into(), &serde_json::json!({})));
    let open: Value = cluster.run_json(&["bench", "produce", "--count", "100", "--rate", "100", "--size", "100"]);
    assert_eq!(open["acked"], 100);
    let read: Value = cluster.run_json(&["bench", "consume"]);
    assert_eq!((&read["messages"], &read["body_bytes"]), (&400.into(), &40_000.into()));
    assert!(cluster.run(&["status"]).contains("leader"));
    assert!(cluster.run(&["topic", "list"]).contains("gantry-bench"));
    assert!(!cluster.run(&["topic", "list"]).contains("TBW102"));
    cluster.run(&["tail", "t", "--from", "earliest", "--count", "1", "--group", "readers"]);
    let group: Value = cluster.run_json(&["group", "describe", "readers"]);
    assert!(group["queues"].as_array().unwrap().iter().any(|queue| queue["consumed"] == 1), "{group}");

    let second = cluster.leader_of("broker-a");
    cluster.dev(&["pause", &second]);
    cluster.await_view("a leader in place of the silent one", |view| {
        view["groups"][0]["leader"].as_str().is_some_and(|leader| leader != second)
    });
    cluster.dev(&["resume", &second]);
    cluster.await_view("both follow again", |view| view["groups"][0]["followers"] == 2);
    let tail = cluster.run(&["tail", "t", "--from", "earliest", "--count", "1"]);
    assert!(tail.contains("after the stop"), "{tail}");
    cluster.stop();
}

#[test]
fn http_tells_health_and_moves_leadership() {
    let mut cluster = Cluster::start(&["--groups", "1"]);
    let leader = cluster.leader_of("broker-a");
    let addr = cluster.http_of(&leader);
    assert_eq!(http(&addr, "GET /health/live", &addr).0, 200);
    cluster.await_view("ready", |view| {
        view["processes"].as_array().unwrap().iter().filter(|process| process["state"] == "ready").count() == 3
    });
    assert_eq!(http(&addr, "GET /health/ready", &addr).0, 200);
    assert_eq!(http(&addr, "GET /health/ready", "gantry.example").0, 421);
    assert_eq!(http(&addr, "GET /no/such/page", &addr).0, 404);
    let (_, metrics) = http(&addr, "GET /metrics", &addr);
    assert!(metrics.contains("gantry_raft_is_leader{group=\"broker-a\"} 1"), "{metrics}");
    let syncs =
        metrics.lines().find_map(|line| line.strip_prefix("gantry_log_sync_seconds_count{group=\"broker-a\"} "));
    assert!(syncs.is_some_and(|count| count.parse::<u64>().unwrap() > 0), "{metrics}");

    let other = if leader == "n1" { "n2" } else { "n1" };
    let transfer = |to: &str| format!("POST /v1/groups/broker-a/transfer-leader?to={to}");
    let (code, answer) = http(&cluster.http_of(other), &transfer(&leader), "localhost");
    assert_eq!((code, &serde_json::from_str::<Value>(&answer).unwrap()["node"]), (200, &leader.as_str().into()));
    assert_eq!(http(&addr, &transfer("n9"), "localhost").0, 404);
    assert_eq!(http(&addr, "GET /v1/groups/broker-a/transfer-leader", "localhost").0, 405);
    let (code, answer) = http(&addr, &transfer(other), "localhost");
    assert_eq!(code, 200, "{answer}");
    assert_eq!(serde_json::from_str::<Value>(&answer).unwrap()["node"], other);
    cluster.await_view("it moves", |view| view["groups"][0]["leader"] == other);
    cluster.stop();
}

#[test]
fn tools_see_what_was_sent_and_consumed_and_a_reset_removes_it() {
    let mut cluster = Cluster::start(&["--nodes", "1"]);
    cluster.run(&["topic", "create", "t", "--queues", "1"]);
    cluster.run(&["send", "t", "x", "--count", "3"]);
    cluster.run(&["tail", "t", "--from", "earliest", "--count", "2", "--group", "readers"]);
    let group = cluster.run_json(&["group", "describe", "readers"]);
    let queue = &group["queues"][0];
    assert_eq!((&queue["topic"], &queue["consumed"], &queue["stored"]), (&"t".into(), &2.into(), &3.into()), "{group}");
    let groups = cluster.run_json(&["group", "list", "read"]);
    assert_eq!((&groups[0]["group"], &groups[0]["lag"]), (&"readers".into(), &1.into()), "{groups}");
    cluster.run(&["tail", "t", "--from", "earliest", "--count", "1", "--group", "auditors"]);
    let names = |args: &[&str]| -> Vec<String> {
        let found = cluster.run_json(&[&["group", "list"], args].concat());
        found.as_array().unwrap().iter().map(|group| group["group"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&[]), ["auditors", "readers"]);
    assert_eq!(names(&["--limit", "1"]), ["auditors"]);
    assert_eq!(names(&["--limit", "1", "--after", "auditors"]), ["readers"]);
    assert!(cluster.run(&["group", "list", "--limit", "1"]).contains("1 of 2 consumer groups"));
    let rest = cluster.run(&["tail", "t", "--count", "1", "--group", "readers"]);
    assert!(rest.starts_with("broker-a:0:2 "), "the group goes on where it stopped, not at the end: {rest}");

    // Offsets are moved as a plan first, then as planned.
    let nodes = cluster.http_of("n1");
    let reset = |to: &str, args: &[&str]| {
        let plan = ["group", "reset", "readers", "--topic", "t", "--to", to, "--nodes", &nodes];
        cluster.run_json(&[&plan[..], args].concat())
    };
    let consumed = || cluster.run_json(&["group", "describe", "readers"])["queues"][0]["consumed"].as_i64().unwrap();
    poll(Duration::from_secs(30), "what was read is committed", || (consumed() == 3).then_some(()));
    let queue = |lines: &Value| -> Value {
        let lines = lines.as_array().unwrap();
        lines.iter().find(|line| line["broker"] == "broker-a").unwrap()["plan"]["queues"][0].clone()
    };
    let planned = queue(&reset("earliest", &[]));
    assert_eq!(planned, serde_json::json!({ "queue_id": 0, "from": 3, "to": 0, "again": 3, "skipped": 0 }));
    assert_eq!(consumed(), 3, "a plan has changed something");
    assert_eq!(queue(&reset("earliest", &["--apply"])), planned);
    assert_eq!(consumed(), 0);
    assert_eq!(queue(&reset("latest", &[]))["skipped"], 3);
    cluster.run(&["bench", "produce", "--topic", "b", "--count", "200", "--time", "30s"]);
    assert_eq!(cluster.run_json(&["bench", "consume", "--topic", "b"])["messages"], 200);
    assert_eq!(cluster.run_json(&["topic", "list", "b"]).as_array().unwrap().len(), 1);
    assert_eq!(cluster.run_json(&["topic", "list", "--limit", "1", "--after", "b"])[0]["topic"], "t");
    // The nodes themselves say the same.
    let at_nodes = |args: &[&str]| cluster.run_json(&[&["topic", "list", "--nodes", nodes.as_str()], args].concat());
    assert_eq!(at_nodes(&[]), cluster.run_json(&["topic", "list"]));
    assert_eq!(at_nodes(&["B"]).as_array().unwrap().len(), 1);
    assert_eq!(at_nodes(&["--limit", "1", "--after", "b"])[0]["topic"], "t");
    cluster.run(&["topic", "delete", "b"]);
    assert_eq!(cluster.run_json(&["topic", "list", "b"]).as_array().unwrap().len(), 0);
    for missing in
        [["topic", "describe", "b"], ["topic", "delete", "b"], ["group", "describe", "b"], ["tail", "b", "--count=1"]]
    {
        let output = cluster.spawn(&missing).wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(5), "{missing:?}: {output:?}");
    }

    cluster.stop();
    std::fs::write(cluster.data().join("notes.txt"), "mine").unwrap();
    cluster.dev(&["reset"]);
    let left: Vec<_> = std::fs::read_dir(cluster.data()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"]);
}

#[test]
fn children_end_with_their_parent_however_it_ends() {
    let mut cluster = Cluster::start(&["--nodes", "1"]);
    let pids: Vec<u64> = cluster.view()["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|process| process["pid"].as_u64().unwrap())
        .collect();
    assert_eq!(pids.len(), 4);
    cluster.kill_parent();
    poll(Duration::from_secs(20), "every child ends", || pids.iter().all(|&pid| !is_alive(pid)).then_some(()));
    let output = gantry().args(["dev", "status", "--data"]).arg(cluster.data()).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no `gantry dev` runs"), "{output:?}");
}

#[test]
fn a_voter_with_an_empty_directory_does_not_start() {
    let cluster = Cluster::start(&["--nodes", "1"]);
    let mut other = gantry();
    let dir = tempfile::tempdir().unwrap();
    let config = std::fs::read_to_string(cluster.data().join("n1/broker.toml")).unwrap();
    let config: String = config
        .lines()
        .map(|line| match line.split_once(" = ") {
            Some(("data_dir", _)) => format!("data_dir = {:?}\n", dir.path().join("n1")),
            // Ports nobody uses.
            Some((key @ ("raft_listen" | "http_listen" | "client_listen"), _)) => {
                let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
                format!("{key} = \"{port}\"\n")
            }
            _ => format!("{line}\n"),
        })
        .collect();
    let path = dir.path().join("broker.toml");
    std::fs::write(&path, config).unwrap();
    let output = other.args(["broker", "--config"]).arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("--bootstrap"), "{error}");
}

#[test]
fn wrong_input_ends_with_its_own_code() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broker.toml");
    std::fs::write(&path, "[nodes]\n").unwrap();
    let output = gantry().args(["broker", "--config"]).arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("broker.toml:1: unknown key `nodes`; did you mean `node`?")
    );

    // Nobody listens there.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let output = gantry().args(["status", "-n", &nobody]).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    // A reader that has seen enough is no failure.
    let mut child = gantry().args(["completions", "bash"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(gantry().args(["no-such-command"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn a_stopped_nodes_store_is_shown_checked_and_measured_without_a_change() {
    let mut cluster = Cluster::start(&["--groups", "1"]);
    for number in 0..20 {
        cluster.run(&["send", "orders", &format!("body {number}"), "--key", &format!("k{number}"), "--tag", "a"]);
    }
    let dir = cluster.data().join("n2/data");
    let dir = dir.to_str().unwrap();
    let store = |args: &[&str]| gantry().arg("store").args(args).output().unwrap();
    let refused = store(&["check", dir]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("in use by another process"), "{refused:?}");
    assert_eq!(refused.status.code(), Some(1));
    cluster.stop();

    let before = bytes_below(Path::new(dir));
    let json = |args: &[&str]| -> Vec<Value> {
        let output = store(args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let report = &json(&["check", dir, "--output", "json"])[0][0];
    assert_eq!((&report["group"], &report["ok"]), (&"broker-a".into(), &true.into()), "{report}");
    let found = json(&["dump", dir, "--key", "k7", "--topic", "orders", "--output", "json"]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0]["kind"], &found[0]["messages"][0]["tags"]), (&"messages".into(), &"a".into()));
    let index = found[0]["index"].to_string();
    let one = json(&["dump", dir, "--from-index", &index, "--limit", "1", "--output", "json"]);
    assert_eq!(one[0]["messages"][0]["keys"][0], "k7");
    let text = store(&["dump", dir]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("keys=k7"), "{text:?}");
    let stats = &json(&["stats", dir, "--output", "json"])[0][0];
    let orders = stats["topics"].as_array().unwrap().iter().find(|space| space["topic"] == "orders").unwrap();
    assert_eq!(orders["messages"], 20, "{stats}");
    assert_eq!(before, bytes_below(Path::new(dir)), "looking has changed something");

    // A program that is older than the data, which says that a newer one wrote it, does not start.
    let segment = Path::new(dir).join("broker-a/log/00000000000000000000");
    let version = [8, 9].map(|at| set(&segment, at, 0xff));
    let config = cluster.data().join("n2/broker.toml");
    let older = gantry().args(["broker", "--config"]).arg(&config).output().unwrap();
    let error = String::from_utf8_lossy(&older.stderr).into_owned();
    assert_eq!(older.status.code(), Some(1), "{error}");
    assert!(error.contains("format version") && error.contains("use the program that wrote it, or newer"), "{error}");
    for (at, byte) in [8, 9].into_iter().zip(version) {
        set(&segment, at, byte);
    }

    // One bit of one record, then of nothing but a derived file.
    let position = found[0]["position"].as_u64().unwrap();
    let log = Path::new(dir).join("broker-a/log/00000000000000000000");
    flip(&log, position + 70);
    let damaged = store(&["check", dir]);
    assert_eq!(damaged.status.code(), Some(8), "{damaged:?}");
    let stderr = String::from_utf8_lossy(&damaged.stderr).into_owned();
    assert!(stderr.contains(&format!("from {position} to ")) && stderr.contains("checksum"), "{stderr}");
    flip(&log, position + 70);
    assert!(store(&["check", dir]).status.success());
}

/// Name, contents and time of change of every file below `dir`.
fn bytes_below(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let mut found = BTreeMap::new();
    for item in std::fs::read_dir(dir).unwrap() {
        let path = item.unwrap().path();
        if path.is_dir() {
            found.extend(bytes_below(&path));
        } else {
            let changed = path.metadata().unwrap().modified().unwrap();
            found.insert(path.clone(), (std::fs::read(&path).unwrap(), changed));
        }
    }
    found
}

fn flip(file: &Path, at: u64) {
    let before = set(file, at, 0);
    set(file, at, before ^ 1);
}

/// Writes a byte, and returns what stood there.
fn set(file: &Path, at: u64, byte: u8) -> u8 {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let mut before = [0];
    file.read_exact_at(&mut before, at).unwrap();
    file.write_all_at(&[byte], at).unwrap();
    before[0]
}

#[test]
fn restarts_are_measured_after_a_stop_and_after_a_kill() {
    let mut cluster = Cluster::start(&["--nodes", "1", "--groups", "1"]);
    let data = cluster.data().display().to_string();
    let args = ["bench", "restart", "--dev", &data, "--log", "1MiB", "--more", "100KiB", "--rounds", "1"];
    let report: Value = cluster.run_json(&args);
    let starts = report["starts"].as_array().unwrap();
    assert_eq!(starts.iter().map(|start| start["after"].as_str().unwrap()).collect::<Vec<_>>(), ["stop", "kill"]);
    for start in starts {
        assert!(start["log_bytes"].as_u64().unwrap() > 1 << 20, "{start}");
        assert!(start["acknowledged_ms"].as_u64() >= start["ready_ms"].as_u64(), "{start}");
    }
    // What was sent is all there: the log's length, what came before each end, and one message after each start.
    let read: Value = cluster.run_json(&["bench", "consume", "--topic", "gantry-bench-restart"]);
    let sent = |bytes: u64| bytes / 1024;
    assert!(read["messages"].as_u64().unwrap() >= 2 * sent(100 << 10) + 2, "{read}");
    cluster.stop();
}
