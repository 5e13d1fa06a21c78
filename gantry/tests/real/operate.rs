//! What an operator does to a cluster that works: looks, moves leaders, restarts node by node.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::cluster::{Cluster, gantry, http, is_alive, poll};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Runs `gantry cluster ...`, which is given the HTTP addresses of all nodes.
fn cluster_command(cluster: &Cluster, args: &[&str]) -> std::process::Output {
    let nodes = NODES.map(|node| cluster.http_of(node)).join(",");
    gantry().arg("cluster").args(args).args(["--nodes", &nodes]).output().unwrap()
}

fn cluster_json(cluster: &Cluster, args: &[&str]) -> Value {
    let output = cluster_command(cluster, &[args, &["--output", "json"]].concat());
    assert!(output.status.success(), "{args:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn leaders_are_seen_moved_drained_and_balanced() {
    let mut cluster = Cluster::start(&[]);
    // Each group has a preferred leader of its own.
    let status = poll(Duration::from_secs(60), "leaders at home and all well", || {
        let status = cluster_json(&cluster, &["status"]);
        let spread =
            status["nodes"].as_array().unwrap().iter().all(|node| node["leads"].as_array().unwrap().len() == 1);
        (spread && status["healthy"] == true).then_some(status)
    });
    assert_eq!(status["groups"].as_array().unwrap().len(), 3);
    let text = cluster_command(&cluster, &["status"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("all is well") && text.contains("broker-c") && text.contains("follower"), "{text}");
    // Shown again and again until the one who watches goes.
    let nodes = NODES.map(|node| cluster.http_of(node)).join(",");
    let args = ["cluster", "status", "--watch", "--output", "json", "--nodes", &nodes];
    let mut watching = gantry().args(args).stdout(Stdio::piped()).spawn().unwrap();
    let shown = serde_json::Deserializer::from_reader(watching.stdout.take().unwrap()).into_iter::<Value>();
    let groups: Vec<usize> = shown.take(2).map(|status| status.unwrap()["groups"].as_array().unwrap().len()).collect();
    assert_eq!(groups, [3, 3]);
    watching.kill().unwrap();
    watching.wait().unwrap();

    // All that follows is under load, and no send may fail.
    let args = ["verify", "--topic", "checked", "--count", "2000", "--rate", "150", "--output", "json"];
    let verify = cluster.spawn(&args);
    poll(Duration::from_secs(60), "messages under way", || {
        let topic: Value = cluster.try_json(&["topic", "describe", "checked"])?;
        let stored: i64 = topic.as_array()?.iter().map(|queue| queue["max_offset"].as_i64().unwrap()).sum();
        (stored > 100).then_some(())
    });

    let drained = cluster_command(&cluster, &["drain", "n1"]);
    assert!(drained.status.success(), "{drained:?}");
    let leads = |node: usize| {
        let status = cluster_json(&cluster, &["status"]);
        status["nodes"][node]["leads"].as_array().unwrap().len()
    };
    assert_eq!(leads(0), 0);
    let refused = cluster_command(&cluster, &["transfer", "broker-a", "--to", "n1"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && error.contains("drained"), "{refused:?}");
    assert_eq!(cluster_command(&cluster, &["drain", "n9"]).status.code(), Some(5));
    assert!(cluster_command(&cluster, &["undrain", "n1"]).status.success());
    let planned = cluster_json(&cluster, &["balance", "--dry-run"]);
    assert!(planned["would"].as_str().unwrap().contains("to n1"), "{planned}");
    assert_eq!(leads(0), 0, "a dry run has changed something");
    // It comes home by itself as well, so this may find nothing left to do.
    assert!(cluster_command(&cluster, &["balance"]).status.success());
    assert_eq!(leads(0), 1);
    let events = cluster_json(&cluster, &["events"]);
    let drains = events["events"].as_array().unwrap().iter().filter(|event| event["kind"] == "drained").count();
    assert_eq!(drains, 2, "{events}");
    let output = verify.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let verdict: Value = serde_json::from_slice(&output.stdout).unwrap();
    let figures = ["acked", "unknown", "lost"].map(|name| verdict[name].as_u64());
    assert_eq!(figures, [Some(2_000), Some(0), Some(0)], "{verdict}");
    cluster.stop();
}

/// Forwarding lasts until the second signal.
const FORWARD_FOR_EVER: &str = "node.stop_forward_time=1h";

#[test]
fn a_node_that_stops_under_load_is_alive_and_not_ready_until_it_ends() {
    let mut cluster = Cluster::start(&["--groups", "1", "--set", FORWARD_FOR_EVER]);
    let node = cluster.leader_of("broker-a");
    let (addr, pid) = (cluster.http_of(&node), cluster.pid_of(&node).unwrap());
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    poll(Duration::from_secs(60), "ready", || (http(&addr, "GET /health/ready", &addr).0 == 200).then_some(()));
    let args = ["verify", "--topic", "checked", "--count", "2000", "--rate", "200", "--output", "json"];
    let verify = cluster.spawn(&args);
    poll(Duration::from_secs(60), "messages under way", || {
        let topic: Value = cluster.try_json(&["topic", "describe", "checked"])?;
        let stored: i64 = topic.as_array()?.iter().map(|queue| queue["max_offset"].as_i64().unwrap()).sum();
        (stored > 100).then_some(())
    });

    kill_process(pid, Signal::TERM).unwrap();
    let health = |path: &str| {
        let (code, body) = http(&addr, &format!("GET /health/{path}"), &addr);
        (code, serde_json::from_str::<Value>(&body).unwrap()["health"].as_str().unwrap().to_owned())
    };
    poll(Duration::from_secs(60), "not ready", || (health("ready").0 == 503).then_some(()));
    // From now on until it ends.
    let drains = || {
        let (live, ready) = (health("live"), health("ready"));
        assert_eq!((live.0, ready.0), (200, 503), "{live:?} {ready:?}");
        assert!(live.1.contains("stopping: requests are forwarded") && ready.1 == live.1, "{live:?} {ready:?}");
    };
    drains();
    let next = poll(Duration::from_secs(60), "another leader", || {
        drains();
        Some(cluster.leader_of("broker-a")).filter(|leader| *leader != node)
    });
    assert_eq!(http(&cluster.http_of(&next), "GET /health/ready", "localhost").0, 200);
    let output = verify.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let verdict: Value = serde_json::from_slice(&output.stdout).unwrap();
    let figures = ["acked", "unknown", "lost"].map(|name| verdict[name].as_u64());
    assert_eq!(figures, [Some(2_000), Some(0), Some(0)], "{verdict}");
    drains();

    kill_process(pid, Signal::TERM).unwrap();
    let number = u64::from(pid.as_raw_nonzero().get().unsigned_abs());
    poll(Duration::from_secs(60), "it ends", || (!is_alive(number)).then_some(()));
    cluster.stop();
}

#[test]
fn a_cluster_is_restarted_node_by_node_without_a_failed_send() {
    let mut cluster = Cluster::start(&[]);
    let program = env!("CARGO_BIN_EXE_gantry");
    let data = cluster.data().display().to_string();
    let command =
        format!("'{program}' dev stop {{node}} --data '{data}' && '{program}' dev start {{node}} --data '{data}'");
    let before = NODES.map(|node| cluster.pid_of(node).unwrap());
    let rolled = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut rounds = 0;
            // A round begins before the first node stops and one goes on after the last has started.
            while rounds == 0 || !rolled.load(Ordering::Acquire) {
                let args = ["verify", "--topic", "checked", "--count", "1000", "--rate", "150", "--output", "json"];
                let output = cluster.spawn(&args).wait_with_output().unwrap();
                assert!(output.status.success(), "{output:?}");
                let verdict: Value = serde_json::from_slice(&output.stdout).unwrap();
                let figures = ["acked", "unknown", "lost"].map(|name| verdict[name].as_u64());
                assert_eq!(figures, [Some(1_000), Some(0), Some(0)], "{verdict}");
                rounds += 1;
            }
        });
        let args = ["roll", "--command", &command, "--wait", "240", "--output", "json"];
        let output = cluster_command(&cluster, &args);
        // First of all, or the load goes on for ever when something is wrong.
        rolled.store(true, Ordering::Release);
        load.join().unwrap();
        assert!(output.status.success(), "{output:?}");
        let restarted: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(restarted.as_array().unwrap().len(), 3, "{restarted}");
    });
    for (node, before) in NODES.iter().zip(before) {
        assert_ne!(cluster.pid_of(node).unwrap(), before, "{node} was not restarted");
    }
    let status = cluster_json(&cluster, &["status"]);
    assert!(status["nodes"].as_array().unwrap().iter().all(|node| node["drained"] == false), "{status}");

    // A restart that does not happen is not taken for one, and what was drained for it is said.
    let output = cluster_command(&cluster, &["roll", "--command", "false", "--only", "n2"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("n2, which is left drained"), "{output:?}");
    assert!(cluster_command(&cluster, &["undrain", "n2"]).status.success());
    cluster.stop();
}
