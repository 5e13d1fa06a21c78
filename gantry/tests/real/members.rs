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

    /// It asks this node too: the one that it knew may be gone.
    fn knows(&self, other: &Self) {
        let path = self.dir.join("broker.toml");
        let member = format!(
            "\n[[group.member]]\nnode = \"{}\"\nid = {}\nraft_addr = \"{}\"\nclient_addr = \"{}\"\n",
            other.name,
            other.group().unwrap()["id"],
            other.addrs[0],
            other.addrs[2]
        );
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + &member).unwrap();
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
/// Waits until an operation is done. All that was said of it meanwhile.
fn watch(id: &str, nodes: &str, brokers: &[&Broker]) -> Vec<Value> {
    let (code, text) = tool(&["operation", "watch", id], nodes);
    let logs: String = brokers.iter().map(|broker| broker.log()).collect();
    assert_eq!(code, Some(0), "{text}, logs: {logs}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.last().unwrap()["state"], "done", "{text}");
    lines
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
    // Slow enough to be watched.
    let mut cluster = Cluster::start(&["--nodes", "1", "--set", "raft.catch_up_rate=16MiB"]);
    let first = cluster.http_of("n1");
    let dir = tempfile::tempdir().unwrap();
    let [mut b, mut c, mut d] = ["n2", "n3", "n4"].map(|name| Broker::new(&cluster, dir.path(), name));
    cluster.run(&["topic", "create", "checked", "--queues", "4"]);
    // Each is an entry of its own. Who lacks so many counts as far behind.
    let before = ["bench", "produce", "--topic", "before", "--size", "40000", "--count", "1300", "--inflight", "8"];
    assert_eq!(cluster.run_json(&[&before[..], &["--time", "2m"]].concat())["acked"], 1300);
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
    let seen = watch(&id, &first, &[&b, &c]);
    assert_eq!(member_names(&first), ["n1", "n2", "n3"]);
    // How far they were, and how long the rest would take, while they caught up.
    let progress: Vec<&Value> = seen.iter().map(|line| &line["progress"]).filter(|at| at.is_object()).collect();
    let done: Vec<u64> = progress.iter().map(|at| at["done_bytes"].as_u64().unwrap()).collect();
    assert!(done.len() > 2 && done.is_sorted() && done[0] < done[done.len() - 1], "{seen:?}");
    let tells_time = |at: &&Value| {
        let [total, done, rate] =
            ["total_bytes", "done_bytes", "bytes_per_second"].map(|name| at[name].as_u64().unwrap());
        let left = at["left_ms"].as_u64();
        total > 2 * 1300 * 40_000 && done < total && rate > 0 && left.is_some_and(|left| (1..600_000).contains(&left))
    };
    assert!(progress.iter().any(tells_time), "{seen:?}");

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

    // Nothing is stuck, so there is nothing to settle.
    let (code, text) = tool(&["member", "settle", GROUP, "finish", "--dry-run"], &first);
    assert!(code == Some(1) && text.contains("is stuck"), "{text}");

    // The machine it began on is given back, while it leads.
    poll(SOON, "the first node leads", || {
        let (_, text) = tool(&["member", "list", GROUP], &first);
        let leads = serde_json::from_str::<Value>(&text).ok()?["leader"] == "n1";
        if !leads {
            // Looked at again in a moment, whatever comes of it.
            tool(&["cluster", "transfer", GROUP, "--to", "n1"], &first);
        }
        leads.then_some(())
    });
    let (_, plan) = tool(&["member", "remove", GROUP, "n1", "--force", "reduced-redundancy", "--dry-run"], &first);
    assert!(plan.contains("node n1 hands its leadership over"), "{plan}");
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
    // One that was let in dies before all have come: the change waits for it, and can be turned back.
    let [mut e, f] = ["n5", "n6"].map(|name| Broker::new(&cluster, dir.path(), name));
    let tokens = dir.path().join("more-tokens");
    let add = ["member", "add", GROUP, "--node", &e.as_joiner(), "--node", &f.as_joiner()];
    let id = begin(&[&add[..], &["--tokens-to", tokens.to_str().unwrap()]].concat(), &rest);
    keep_token(&e, std::fs::read_to_string(&tokens).unwrap().lines().next().unwrap());
    e.knows(&c);
    e.knows(&d);
    e.start();
    let is_member = || -> Option<bool> {
        let (code, text) = tool(&["member", "list", GROUP], &rest);
        let status: Value = serde_json::from_str(&text).ok().filter(|_| code == Some(0))?;
        Some(status["members"].as_array()?.iter().any(|member| member["node"] == "n5"))
    };
    poll(SOON, "it is let in", || is_member()?.then_some(()));
    e.kill();
    let (code, text) = tool(&["member", "remove", GROUP, "n3", "--force", "reduced-redundancy"], &rest);
    assert!(code == Some(1) && text.contains(&id), "the one under way is named: {text}");
    let (code, text) = tool(&["operation", "cancel", &id, "--dry-run"], &rest);
    assert!(code == Some(0) && text.contains("would be turned back"), "{text}");
    let (code, text) = tool(&["operation", "cancel", &id], &rest);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = tool(&["operation", "watch", &id], &rest);
    assert!(code == Some(1) && text.contains("was turned back: cancelled"), "{text}");
    assert_eq!((member_names(&rest), is_member()), (vec!["n3".to_owned(), "n4".to_owned()], Some(false)));
    cluster.run(&["send", "checked", "after the change was turned back"]);
    // It comes back and is not taken.
    e.start();
    let left = poll(SOON, "it is told", || e.group().filter(|group| group["outside"].is_string()));
    assert!(left["outside"].as_str().unwrap().contains("was removed by operation"), "{left}");
    e.stop();
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
