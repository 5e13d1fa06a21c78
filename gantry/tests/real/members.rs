//! A group that moves from one machine to others under load, in real processes: it grows, a node of it dies and is replaced,
//! and the one it began on is removed.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::cluster::{Cluster, gantry, http, poll};

const GROUP: &str = "broker-a";
const SOON: Duration = Duration::from_secs(90);

/// A broker beside those of `gantry dev`. Dropping it kills it.
struct Broker {
    name: String,
    addrs: [SocketAddr; 3],
    dir: PathBuf,
    process: Option<Child>,
}

impl Broker {
    /// A node that joins, and knows the first node of the cluster.
    fn new(cluster: &Cluster, dir: &Path, name: &str) -> Self {
        let dir = dir.join(name);
        std::fs::create_dir(&dir).unwrap();
        let ports: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addrs: [SocketAddr; 3] = std::array::from_fn(|at| ports[at].local_addr().unwrap());
        let first = std::fs::read_to_string(cluster.data().join("n1/broker.toml")).unwrap();
        let [raft, own_http, client] = addrs;
        let config: String = first
            .lines()
            .map(|line| match line.split_once(" = ") {
                Some(("name", "\"n1\"")) => format!("name = \"{name}\"\n"),
                Some(("data_dir", _)) => format!("data_dir = {:?}\n", dir.join("data")),
                Some(("raft_listen", _)) => format!("raft_listen = \"{raft}\"\n"),
                Some(("http_listen", _)) => format!("http_listen = \"{own_http}\"\n"),
                Some(("client_listen", _)) => format!("client_listen = \"{client}\"\n"),
                Some(("preferred_leader", _)) => String::new(),
                _ => format!("{line}\n"),
            })
            .collect();
        let own =
            format!("\n[[group.member]]\nnode = \"{name}\"\nraft_addr = \"{raft}\"\nclient_addr = \"{client}\"\n");
        std::fs::write(dir.join("broker.toml"), config + &own).unwrap();
        Self { name: name.to_owned(), addrs, dir, process: None }
    }

    /// How it is named to `gantry member`.
    fn as_joiner(&self) -> String {
        format!("{},{},{}", self.name, self.addrs[0], self.addrs[2])
    }

    fn http(&self) -> String {
        self.addrs[1].to_string()
    }

    fn start(&mut self) {
        let log = std::fs::File::options().create(true).append(true).open(self.dir.join("log")).unwrap();
        let mut command = gantry();
        command.args(["broker", "--config"]).arg(self.dir.join("broker.toml"));
        command.stdout(log.try_clone().unwrap()).stderr(log).stdin(Stdio::null());
        self.process = Some(command.spawn().unwrap());
    }

    fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    fn stop(&mut self) {
        let mut process = self.process.take().unwrap();
        // The second one says: do not forward any longer.
        for _ in 0..2 {
            kill_process(Pid::from_child(&process), Signal::TERM).unwrap();
        }
        assert!(process.wait().unwrap().success(), "{}", self.log());
    }

    fn log(&self) -> String {
        let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().filter(|line| !line.contains("openraft")).collect();
        format!("{}:\n{}", self.name, lines[lines.len().saturating_sub(20)..].join("\n"))
    }

    /// What it says of its group.
    fn group(&self) -> Option<Value> {
        self.process.as_ref()?;
        let addr = self.http();
        std::net::TcpStream::connect(&addr).ok()?;
        let (code, body) = http(&addr, "GET /v1/status", &addr);
        let status: Value = serde_json::from_str(&body).ok().filter(|_| code == 200)?;
        status["groups"].as_array()?.first().cloned()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Runs a tool at these nodes; its exit code and what it printed, as JSON if it succeeded.
fn tool(args: &[&str], nodes: &str) -> (Option<i32>, String) {
    let output = gantry().args(args).args(["--nodes", nodes, "--output", "json"]).output().unwrap();
    let text = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn begin(args: &[&str], nodes: &str) -> String {
    let (code, text) = tool(args, nodes);
    assert_eq!(code, Some(0), "{args:?}: {text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    answer["operation"]["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// Waits for the end of an operation as an operator does.
fn watch(id: &str, nodes: &str, brokers: &[&Broker]) {
    let (code, text) = tool(&["operation", "watch", id], nodes);
    let logs: String = brokers.iter().map(|broker| broker.log()).collect();
    assert_eq!(code, Some(0), "{text}, logs: {logs}");
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["state"], "done", "{text}");
}

fn member_names(nodes: &str) -> Vec<String> {
    let (code, text) = tool(&["member", "list", GROUP], nodes);
    assert_eq!(code, Some(0), "{text}");
    let status: Value = serde_json::from_str(&text).unwrap();
    let voters = status["members"].as_array().unwrap().iter().filter(|member| member["voter"] == true);
    let mut names: Vec<_> = voters.map(|member| member["node"].as_str().unwrap().to_owned()).collect();
    // They are listed by identity, and who comes first has the lower one.
    names.sort();
    names
}

#[test]
fn a_group_moves_to_other_machines_under_load_and_no_acknowledged_message_is_lost() {
    let mut cluster = Cluster::start(&["--nodes", "1"]);
    let first = cluster.http_of("n1");
    let dir = tempfile::tempdir().unwrap();
    let [mut b, mut c, mut d] = ["n2", "n3", "n4"].map(|name| Broker::new(&cluster, dir.path(), name));
    cluster.run(&["topic", "create", "checked", "--queues", "4"]);
    let stored = || -> Option<i64> {
        let topic: Value = cluster.try_json(&["topic", "describe", "checked"])?;
        Some(topic.as_array()?.iter().map(|queue| queue["max_offset"].as_i64().unwrap()).sum())
    };
    let verify =
        cluster.spawn(&["verify", "--topic", "checked", "--count", "6000", "--rate", "200", "--output", "json"]);
    poll(SOON, "messages under way", || (stored()? > 300).then_some(()));

    // One to three.
    let add = ["member", "add", GROUP, "--node", &b.as_joiner(), "--node", &c.as_joiner()];
    let (code, text) = tool(&[&add[..], &["--dry-run"]].concat(), &first);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("from n1 to n1, n2, n3"), "{text}");
    assert_eq!(tool(&["operation", "list"], &first), (Some(0), "[]\n".to_owned()));
    let tokens = dir.path().join("tokens");
    let id = begin(&[&add[..], &["--tokens-to", tokens.to_str().unwrap()]].concat(), &first);
    let (code, text) = tool(&["member", "remove", GROUP, "n1"], &first);
    assert!(code == Some(1) && text.contains(&id), "the one under way is named: {text}");
    let lines = std::fs::read_to_string(&tokens).unwrap();
    let lines: Vec<&str> = lines.lines().collect();
    for (broker, line) in [&mut b, &mut c].into_iter().zip(lines) {
        keep_token(broker, line);
        broker.start();
    }
    watch(&id, &first, &[&b, &c]);
    assert_eq!(member_names(&first), ["n1", "n2", "n3"]);

    // One of them dies with its disk.
    b.kill();
    let replacing = ["member", "replace", GROUP, "n2", "--by", &d.as_joiner()];
    let tokens = dir.path().join("token");
    let id = begin(&[&replacing[..], &["--tokens-to", tokens.to_str().unwrap()]].concat(), &first);
    keep_token(&d, std::fs::read_to_string(&tokens).unwrap().trim());
    d.start();
    watch(&id, &first, &[&c, &d]);
    assert_eq!(member_names(&first), ["n1", "n3", "n4"]);
    // Its disk was not lost after all.
    b.start();
    let left = poll(SOON, "it stops its replica", || b.group().filter(|group| group["role"] == "removed"));
    assert!(left["outside"].as_str().unwrap().contains("was replaced by node n4"), "{left}");
    b.stop();

    // The machine it began on is given back.
    let refused = tool(&["member", "remove", GROUP, "n1"], &first);
    assert!(refused.0 == Some(1) && refused.1.contains("stops when one more fails"), "{refused:?}");
    let id = begin(&["member", "remove", GROUP, "n1", "--force", "reduced-redundancy"], &first);
    let rest = format!("{},{}", c.http(), d.http());
    watch(&id, &rest, &[&c, &d]);
    assert_eq!(member_names(&rest), ["n3", "n4"]);
    poll(SOON, "the first node stops its replica", || {
        let (_, body) = http(&first, "GET /v1/status", &first);
        let status: Value = serde_json::from_str(&body).ok()?;
        (status["groups"][0]["role"] == "removed").then_some(())
    });

    let verify = verify.wait_with_output().unwrap();
    let verdict: Value =
        serde_json::from_slice(&verify.stdout).unwrap_or_else(|_| panic!("{verify:?}, logs: {}, {}", c.log(), d.log()));
    assert_eq!((&verdict["lost"], &verdict["phantom"]), (&0.into(), &0.into()), "{verdict}");
    assert_eq!(verdict["acked"], 6000, "{verdict}");
    // It is all on the new machines.
    cluster.dev(&["kill", "n1"]);
    assert!(poll(SOON, "all messages", stored) >= 6000);
    for broker in [&mut c, &mut d] {
        broker.stop();
    }
    cluster.kill_parent();
}

fn keep_token(broker: &Broker, line: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let data = broker.dir.join("data");
    std::fs::create_dir(&data).unwrap();
    let file = data.join("join-tokens");
    std::fs::write(&file, line).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
}
