//! Three nodes with empty directories, started without a word, become a cluster by one call.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Output};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::cluster::{gantry, http, poll};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const GROUPS: [&str; 2] = ["broker-a", "broker-b"];
const CLUSTER: &str = "00112233445566778899aabbccddeeff";
const SOON: Duration = Duration::from_secs(60);

/// Processes that end with the test.
struct Machines {
    dir: TempDir,
    namesrv: SocketAddr,
    /// Peers, HTTP, and clients of each group.
    addrs: BTreeMap<&'static str, [SocketAddr; 4]>,
    running: BTreeMap<&'static str, Child>,
}

impl Drop for Machines {
    fn drop(&mut self) {
        for child in self.running.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Machines {
    fn new() -> Self {
        let free: Vec<TcpListener> = (0..13).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let mut free = free.iter().map(|listener| listener.local_addr().unwrap());
        let namesrv = free.next().unwrap();
        let addrs = NODES.map(|node| (node, std::array::from_fn(|_| free.next().unwrap())));
        let mut machines =
            Self { dir: tempfile::tempdir().unwrap(), namesrv, addrs: addrs.into(), running: BTreeMap::new() };
        let server = gantry().args(["namesrv", "--listen", &namesrv.to_string()]).spawn().unwrap();
        machines.running.insert("namesrv", server);
        machines
    }

    fn data(&self, node: &str) -> PathBuf {
        self.dir.path().join(node)
    }

    fn http(&self, node: &str) -> String {
        self.addrs[node][1].to_string()
    }

    fn start(&mut self, node: &'static str, cluster: &str) {
        let [raft, http, clients @ ..] = self.addrs[node];
        let mut text = format!(
            "[cluster]\nid = \"{cluster}\"\n[node]\nname = \"{node}\"\ndata_dir = {:?}\nraft_listen = \"{raft}\"\n\
             http_listen = \"{http}\"\nnamesrv = [\"{}\"]\nstop_forward_time = \"1s\"\n[storage]\n\
             segment_bytes = \"16MiB\"\nallow_unproven_filesystem = true\nballast_bytes = \"0B\"\n",
            self.data(node),
            self.namesrv,
        );
        for (at, group) in GROUPS.iter().enumerate() {
            let _ = write!(text, "[[group]]\nname = \"{group}\"\nclient_listen = \"{}\"\n", clients[at]);
            for (id, (name, addrs)) in (1..).zip(&self.addrs) {
                let _ = write!(
                    text,
                    "[[group.member]]\nnode = \"{name}\"\nid = {id}\nraft_addr = \"{}\"\nclient_addr = \"{}\"\n",
                    addrs[0],
                    addrs[2 + at]
                );
            }
        }
        let path = self.dir.path().join(format!("{node}.toml"));
        std::fs::write(&path, text).unwrap();
        let child = gantry().args(["broker", "--await-bootstrap", "--log", "warn", "--config"]).arg(&path).spawn();
        self.running.insert(node, child.unwrap());
        poll(SOON, "it answers", || std::net::TcpStream::connect(http).ok().map(drop));
    }

    fn kill(&mut self, node: &str) {
        let mut child = self.running.remove(node).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn bootstrap(&self, at: &str, args: &[&str]) -> Output {
        gantry().args(["cluster", "bootstrap", "--nodes", &self.http(at)]).args(args).output().unwrap()
    }

    /// Refused, in these words, and nobody has begun anything.
    fn is_refused(&self, at: &str, says: &str) {
        for args in [&[][..], &["--dry-run"]] {
            let output = self.bootstrap(at, args);
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && error.contains(says), "{error:?} lacks {says:?}");
        }
    }

    fn is_empty(&self, node: &str) -> bool {
        GROUPS.iter().all(|group| !self.data(node).join(group).exists())
    }

    fn waits(&self, node: &str) {
        let addr = self.http(node);
        poll(SOON, "it waits", || {
            let (code, body) = http(&addr, "GET /health/ready", &addr);
            (code == 503 && body.contains("waits for `gantry cluster bootstrap`")).then_some(())
        });
        assert_eq!(http(&addr, "GET /health/live", &addr).0, 200);
    }

    fn run(&self, args: &[&str]) -> String {
        let output = gantry().args(args).args(["-n", &self.namesrv.to_string()]).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn three_empty_nodes_become_a_cluster_by_one_call_and_only_they() {
    let mut machines = Machines::new();
    machines.start("n1", CLUSTER);
    machines.start("n2", CLUSTER);
    for node in ["n1", "n2"] {
        machines.waits(node);
    }
    // One is not there, then it is one of another cluster.
    machines.is_refused("n1", "node n3 does not answer, and a new cluster begins with all its nodes");
    machines.start("n3", &CLUSTER.replace("00", "77"));
    machines.waits("n3");
    machines.is_refused("n2", "node n3 does not answer, and a new cluster begins with all its nodes");
    let why = String::from_utf8_lossy(&machines.bootstrap("n2", &[]).stderr).into_owned();
    assert!(why.contains("another cluster"), "{why}");
    machines.kill("n3");
    machines.start("n3", CLUSTER);
    machines.waits("n3");
    let planned = machines.bootstrap("n3", &["--dry-run"]);
    let text = String::from_utf8_lossy(&planned.stdout).into_owned();
    assert!(planned.status.success() && text.contains("n2, n3, n1 would begin a new cluster"), "{planned:?}");
    assert!(NODES.iter().all(|node| machines.is_empty(node)), "something has begun");

    let begun = machines.bootstrap("n3", &["--output", "json"]);
    assert!(begun.status.success(), "{begun:?}");
    let report: Value = serde_json::from_slice(&begun.stdout).unwrap();
    assert_eq!(report["begun"], serde_json::json!(["n2", "n3", "n1"]));
    for node in NODES {
        let addr = machines.http(node);
        poll(SOON, "ready", || (http(&addr, "GET /health/ready", &addr).0 == 200).then_some(()));
    }
    // Made again it finds nothing to do, wherever it comes in.
    for node in NODES {
        let again = machines.bootstrap(node, &["--output", "json"]);
        let report: Value = serde_json::from_slice(&again.stdout).unwrap();
        assert_eq!((&report["begun"], again.status.success()), (&serde_json::json!([]), true), "{again:?}");
    }
    machines.run(&["topic", "create", "orders", "--queues", "1"]);
    machines.run(&["send", "orders", "kept"]);

    // A disk that is lost later is no new cluster: its node may wait as it likes.
    machines.kill("n2");
    std::fs::remove_dir_all(machines.data("n2")).unwrap();
    machines.start("n2", CLUSTER);
    machines.waits("n2");
    for node in NODES {
        machines.is_refused(node, "n2 cannot begin anew: there is data on n1, n3.");
    }
    assert!(machines.is_empty("n2"));
    let tail = machines.run(&["tail", "orders", "--from", "earliest", "--count", "1"]);
    assert!(tail.contains("kept"), "{tail}");
}
