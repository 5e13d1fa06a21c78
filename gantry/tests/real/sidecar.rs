//! A sidecar between clients and a cluster whose leaders go.

use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::cluster::{Cluster, free_base_port, gantry, http, poll};

/// A running `gantry sidecar`.
struct Sidecar {
    process: Child,
    listen: String,
    http: String,
}

impl Sidecar {
    fn start(cluster: &Cluster) -> Self {
        let port = free_base_port();
        let (listen, http) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", port + 90));
        let mut command = gantry();
        command.args(["sidecar", "--listen", &listen, "--http", &http, "--namesrv", &cluster.namesrv()]);
        let sidecar = Self { process: command.stderr(Stdio::null()).spawn().unwrap(), listen, http };
        poll(Duration::from_secs(20), "the sidecar to be ready", || {
            TcpStream::connect(&sidecar.http).ok()?;
            (sidecar.get("/health/ready").0 == 200).then_some(())
        });
        sidecar
    }

    fn get(&self, path: &str) -> (u16, String) {
        http(&self.http, &format!("GET {path}"), &self.http)
    }

    fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics").1;
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}: {text}"));
        line.trim().parse().unwrap()
    }

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        assert!(self.process.wait().unwrap().success());
    }
}

#[test]
fn clients_of_a_sidecar_are_served_while_leaders_are_killed_and_paused() {
    let mut cluster = Cluster::start(&[]);
    let sidecar = Sidecar::start(&cluster);
    let through = |args: &[&str]| {
        let mut command = gantry();
        command.args(args).args(["-n", &sidecar.listen, "--output", "json"]).stdout(Stdio::piped());
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    cluster.run(&["topic", "create", "checked", "--queues", "2"]);
    let verify = through(&["verify", "--topic", "checked", "--count", "2400", "--rate", "300"]);
    let stored = |least: i64| {
        poll(Duration::from_secs(40), "messages under way", || {
            let topic: Value = cluster.try_json(&["topic", "describe", "checked"])?;
            let stored: i64 = topic.as_array()?.iter().map(|queue| queue["max_offset"].as_i64().unwrap()).sum();
            (stored > least).then_some(())
        });
    };
    stored(300);
    let killed = cluster.leader_of("broker-a");
    cluster.dev(&["kill", "--leader", "broker-a"]);
    stored(700);
    cluster.dev(&["start", &killed]);
    cluster.await_view("all replicas follow", |view| {
        view["groups"].as_array().unwrap().iter().all(|group| group["followers"] == 2)
    });
    let paused = cluster.leader_of("broker-b");
    cluster.dev(&["pause", "--leader", "broker-b"]);
    // It has more to relay than what it knew before.
    let output = verify.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let verdict: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&verdict["acked"], &verdict["lost"], &verdict["phantom"]), (&2400.into(), &0.into(), &0.into()));
    cluster.dev(&["resume", &paused]);
    assert!(sidecar.metric("gantry_sidecar_requests_total{done=\"relayed\"}") >= 2400);
    sidecar.stop();
    cluster.stop();
}

#[test]
fn a_sidecar_says_what_it_will_not_do() {
    let said = |args: &[&str]| {
        let output = gantry().arg("sidecar").args(args).output().unwrap();
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let public = said(&["--listen", "0.0.0.0:19876", "--namesrv", "127.0.0.1:1"]);
    assert!(public.contains("0.0.0.0:19876 is not a loopback address"), "{public}");
    let itself = said(&["--listen", "127.0.0.1:19876", "--namesrv", "127.0.0.1:1;127.0.0.1:19876"]);
    assert!(itself.contains("is one of the name servers themselves"), "{itself}");
    let ports = said(&["--listen", "127.0.0.1:0", "--namesrv", "127.0.0.1:1", "--broker-ports", "65530"]);
    assert!(ports.contains("first port for brokers is 65530"), "{ports}");
}
