//! Health, metrics and log of real processes.

use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, gantry, http, poll};

const LONG: Duration = Duration::from_secs(40);

fn health(addr: &str, which: &str) -> (u16, String) {
    let (code, body) = http(addr, &format!("GET /health/{which}"), addr);
    let health: Value = serde_json::from_str(&body).unwrap();
    (code, health["health"].as_str().unwrap().to_owned())
}

#[test]
fn health_tells_a_lost_majority_and_a_node_that_drains() {
    let mut cluster = Cluster::start(&["--groups", "1"]);
    let addrs = ["n1", "n2", "n3"].map(|node| cluster.http_of(node));
    for addr in &addrs {
        poll(LONG, "ready", || (health(addr, "ready").0 == 200).then_some(()));
    }
    // Two of three are gone: the third can do nothing for a client, and nothing is wrong with it.
    cluster.dev(&["kill", "n2"]);
    cluster.dev(&["kill", "n3"]);
    let said = poll(LONG, "not ready", || Some(health(&addrs[0], "ready")).filter(|(code, _)| *code == 503)).1;
    assert_eq!(said, "no leader that answers: broker-a");
    assert_eq!(health(&addrs[0], "live").0, 200);
    cluster.dev(&["start", "n2"]);
    poll(LONG, "ready again", || (health(&addrs[0], "ready").0 == 200).then_some(()));
    cluster.dev(&["start", "n3"]);
    cluster.await_view("all replicas follow", |view| view["groups"][0]["followers"] == 2);
    cluster.stop();
}

/// A process of its own, ended with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_name_server_is_watched_over_http_too() {
    let mut cluster = Cluster::start(&["--nodes", "1", "--groups", "1"]);
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (listen, addr) = (free(), free());
    let child = gantry().args(["namesrv", "--listen", &listen, "--http", &addr]).stderr(Stdio::null()).spawn().unwrap();
    let _process = Process(child);
    poll(LONG, "it listens", || std::net::TcpStream::connect(&addr).ok().map(drop));
    assert_eq!(health(&addr, "live").0, 200);
    assert_eq!(health(&addr, "ready"), (503, "no broker has registered".to_owned()));
    let (code, metrics) = http(&addr, "GET /metrics", &addr);
    assert!(code == 200 && metrics.contains("\ngantry_namesrv_brokers 0\n"), "{metrics}");
    assert_eq!(http(&addr, "GET /metrics", "gantry.example").0, 421);
    // Asking it for a route is counted as one that is missing.
    let output = gantry().args(["topic", "describe", "nothing", "-n", &listen]).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let (_, metrics) = http(&addr, "GET /metrics", &addr);
    let line = |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_ne!(line("gantry_namesrv_routes_missing_total"), "0", "{metrics}");
    assert_ne!(line("gantry_namesrv_requests_total{kind=\"route\"}"), "0", "{metrics}");
    cluster.stop();
}

#[test]
fn what_is_logged_changes_while_a_broker_runs() {
    let mut cluster = Cluster::start(&["--nodes", "1", "--groups", "1"]);
    let addr = cluster.http_of("n1");
    let log_level =
        |args: &[&str]| gantry().args(["log-level", "--nodes", &addr, "--output", "json"]).args(args).output().unwrap();
    let filter = |args: &[&str]| -> (String, Value) {
        let output = log_level(args);
        assert!(output.status.success(), "{output:?}");
        let lines: Value = serde_json::from_slice(&output.stdout).unwrap();
        (lines[0]["filter"].as_str().unwrap().to_owned(), lines[0]["was"].clone())
    };
    assert_eq!(filter(&[]), ("info".to_owned(), Value::Null));
    let lines = || std::fs::read_to_string(cluster.data().join("log/n1.log")).unwrap().matches("DEBUG").count();
    assert_eq!(lines(), 0);
    assert_eq!(filter(&["debug"]), ("debug".to_owned(), "info".into()));
    cluster.run(&["send", "t", "x"]);
    poll(LONG, "lines of the new level", || (lines() > 0).then_some(()));
    assert_eq!(filter(&["off"]).1, "debug");
    assert_eq!(filter(&["info,broker::raft=warn"]).1, "off");

    // What is no filter changes nothing, whoever sends it.
    assert_eq!(log_level(&["broker=loud"]).status.code(), Some(1));
    for wrong in ["filter=broker=loud", "filter=a&level=b", "level=info", ""] {
        let (code, body) = http(&addr, &format!("POST /v1/log?{wrong}"), "localhost");
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((code, &answer["code"]), (400, &"invalid".into()), "{wrong}: {body}");
    }
    let long = "x".repeat(5_000);
    assert_eq!(http(&addr, &format!("POST /v1/log?filter={long}"), "localhost").0, 400);
    assert_eq!(http(&addr, "PUT /v1/log?filter=info", "localhost").0, 405);
    assert!(filter(&[]).0.contains("broker::raft=warn"));
    let output = gantry().args(["log-level", "--nodes", "127.0.0.1:1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    cluster.stop();
}

#[test]
fn commands_of_mqadmin_do_what_they_say() {
    let mut cluster = Cluster::start(&["--nodes", "1", "--groups", "1"]);
    let run = |args: &str| cluster.run_json(&["mqadmin"].into_iter().chain(args.split(' ')).collect::<Vec<_>>());
    run("updateTopic -c DefaultCluster -t orders -r 4 -w 2 -p 6");
    let route = run("topicRoute -t orders");
    let queues = &route["queueDatas"][0];
    assert_eq!((&queues["readQueueNums"], &queues["writeQueueNums"]), (&4.into(), &2.into()), "{route}");
    let sent = run("sendMessage -t orders -p hello -k k1 -c tag");
    assert_eq!(sent["summary"]["sent"], 1);
    let id = sent["receipts"][0]["offset_id"].as_str().unwrap().to_owned();
    // What was acknowledged is in the queues a moment later.
    let found = poll(LONG, "the message", || {
        let args = ["mqadmin", "queryMsgByKey", "-t", "orders", "-k", "k1"];
        cluster.try_json(&args)
    });
    assert_eq!(found[0]["body"], "hello");
    assert_eq!(run(&format!("queryMsgById -i {id}"))[0]["body"], "hello");
    let status = run("topicStatus -t orders");
    let stored: i64 = status.as_array().unwrap().iter().map(|queue| queue["max_offset"].as_i64().unwrap()).sum();
    assert_eq!(stored, 1, "{status}");

    run("updateSubGroup -c DefaultCluster -g readers -r 7");
    run("updateSubGroup -c DefaultCluster -g readers -o true");
    let groups = run("consumerProgress");
    assert!(groups.as_array().unwrap().iter().any(|group| group["group"] == "readers"), "{groups}");
    cluster.run(&["tail", "orders", "--from", "earliest", "--count", "1", "--group", "readers"]);
    let consumed = |group: &Value| -> i64 {
        group["queues"].as_array().unwrap().iter().map(|queue| queue["consumed"].as_i64().unwrap()).sum()
    };
    assert_eq!(consumed(&run("consumerProgress -g readers")), 1);
    run("resetOffsetByTime -g readers -t orders -s 0");
    assert_eq!(consumed(&run("consumerProgress -g readers")), 0);

    run("updateBrokerConfig -c DefaultCluster -k maxMessageSize -v 2048");
    assert_eq!(run("getBrokerConfig -c DefaultCluster")["broker-a"]["maxMessageSize"], "2048");
    assert!(run("brokerStatus -c DefaultCluster")["broker-a"]["brokerVersionDesc"].is_string());
    run("deleteSubGroup -c DefaultCluster -g readers -r");
    run("deleteTopic -c DefaultCluster -t orders");
    let code = |args: &str| {
        let args: Vec<_> = ["mqadmin"].into_iter().chain(args.split(' ')).collect();
        cluster.spawn(&args).wait_with_output().unwrap().status.code()
    };
    assert_eq!(code("topicRoute -t orders"), Some(5));
    assert_eq!(code("brokerStatus -c NoSuchCluster"), Some(5));
    assert_eq!(code("producerConnection -g writers -t orders"), Some(5));
    cluster.stop();
}

#[test]
fn files_are_checked_and_shown_without_starting_anything() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let run = |args: &[&str]| gantry().arg("config").args(args).env_remove("GANTRY_LOG_FORMAT").output().unwrap();
    let reference = run(&["reference"]);
    let reference = String::from_utf8(reference.stdout).unwrap();
    let good = file("broker.toml", &reference);
    let namesrv = file("namesrv.toml", "listen = \"127.0.0.1:9876\"\nlog_format = \"json\"\n");
    let output = run(&["check", &good, &namesrv]);
    assert!(output.status.success(), "{output:?}");
    let bad = file("bad.toml", &reference.replacen("[log]\n", "[log]\nfilter = \"broker=loud\"\n", 1));
    let output = run(&["check", &good, &bad]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("log.filter: `broker=loud` is no log filter"),
        "{output:?}"
    );

    let conf = file("broker.conf", "brokerClusterName=prod\nbrokerId=0\naclEnable=true\nbrokerPermision=6\n");
    let output = run(&["check", &conf]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    for part in [
        "cluster.name = \"prod\"",
        "not needed: the leader is elected",
        "no counterpart:",
        "did it mean brokerPermission?",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }

    let shown = |env: Option<&str>, args: &[&str]| -> Vec<Value> {
        let mut command = gantry();
        if let Some(filter) = env {
            command.env("GANTRY_LOG", filter);
        }
        let output = command.args(["config", "show", &good, "--output", "json"]).args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let of = |all: &[Value], key: &str| {
        all.iter().find(|value| value["key"] == key).unwrap_or_else(|| panic!("{key}")).clone()
    };
    let all = shown(None, &[]);
    assert!(of(&all, "node.name")["origin"]["line"].as_u64().unwrap() > 0);
    assert_eq!(of(&all, "log.filter")["origin"], "default");
    let by_env = of(&shown(Some("warn"), &[]), "log.filter");
    assert_eq!((&by_env["value"], &by_env["origin"]["environment"]), (&"\"warn\"".into(), &"GANTRY_LOG".into()));
    let by_flag = of(&shown(Some("warn"), &["--log", "debug"]), "log.filter");
    assert_eq!((&by_flag["value"], &by_flag["origin"]["flag"]), (&"\"debug\"".into(), &"--log".into()));
    let set = shown(None, &["--set"]);
    assert!(set.iter().all(|value| value["origin"] != "default") && set.len() > 30, "{}", set.len());
    let schema: Value = serde_json::from_slice(&run(&["schema"]).stdout).unwrap();
    assert_eq!(schema["properties"]["storage"]["properties"]["flush"]["enum"], serde_json::json!(["sync", "async"]));
}
