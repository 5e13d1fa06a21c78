//! A cluster that belongs to one test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const START_TIME_MAX: Duration = Duration::from_secs(40);
const CHANGE_TIME_MAX: Duration = Duration::from_secs(40);

/// The program under test.
pub(crate) fn gantry() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command.env_remove("GANTRY_NAMESRV").env_remove("GANTRY_BOOTSTRAP").env_remove("GANTRY_LOG").stdin(Stdio::null());
    command
}

/// A running `gantry dev`. Dropping it kills the parent, which ends the rest.
pub(crate) struct Cluster {
    dir: TempDir,
    args: Vec<String>,
    base_port: u16,
    parent: Child,
}

impl Cluster {
    /// Starts a cluster and waits until every group has a leader.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), args)
    }

    /// The same in a directory that may hold something already.
    pub(crate) fn start_in(dir: TempDir, args: &[&str]) -> Self {
        let base_port = free_base_port();
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        let parent = start_parent(dir.path(), base_port, &args);
        let cluster = Self { dir, args, base_port, parent };
        cluster.await_leaders();
        cluster
    }

    /// Starts it again on the same data.
    pub(crate) fn resume(&mut self) {
        self.parent = start_parent(self.dir.path(), self.base_port, &self.args);
        self.await_leaders();
    }

    /// What the next run is started with.
    pub(crate) fn set_args(&mut self, args: &[&str]) {
        self.args = args.iter().map(ToString::to_string).collect();
    }

    /// Ctrl-C, and waits for the end.
    pub(crate) fn stop(&mut self) {
        kill_process(self.parent_pid(), Signal::INT).unwrap();
        let status = self.parent.wait().unwrap();
        assert!(status.success(), "{status}, logs: {}", self.logs());
        for node in ["n1", "n2", "n3"] {
            let log = self.dir.path().join("log").join(format!("{node}.log"));
            if let Ok(log) = std::fs::read_to_string(log) {
                let last = log.lines().last().unwrap_or_default();
                assert!(last.contains("stopped"), "{node} ended with {last:?}");
            }
        }
    }

    pub(crate) fn kill_parent(&mut self) {
        self.parent.kill().unwrap();
        self.parent.wait().unwrap();
    }

    fn parent_pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.parent.id()).unwrap()).unwrap()
    }

    pub(crate) fn data(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn namesrv(&self) -> String {
        (0..3).map(|n| format!("127.0.0.1:{}", self.base_port + n)).collect::<Vec<_>>().join(";")
    }

    /// Starts a tool against this cluster.
    pub(crate) fn spawn(&self, args: &[&str]) -> Child {
        let mut command = gantry();
        command.args(args).args(["-n", &self.namesrv()]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Runs a tool, which must succeed.
    pub(crate) fn run(&self, args: &[&str]) -> String {
        let output = self.spawn(args).wait_with_output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}, logs: {}", self.logs());
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn run_json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[args, &["--output", "json"]].concat())).unwrap()
    }

    /// As [`Self::run_json`], if it succeeds.
    pub(crate) fn try_json(&self, args: &[&str]) -> Option<Value> {
        let output = self.spawn(&[args, &["--output", "json"]].concat()).wait_with_output().unwrap();
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    /// Runs a `gantry dev` command of a second terminal, which must succeed.
    pub(crate) fn dev(&self, args: &[&str]) {
        let output = gantry().arg("dev").args(args).arg("--data").arg(self.data()).output().unwrap();
        assert!(output.status.success(), "dev {args:?}: {output:?}, logs: {}", self.logs());
    }

    /// Processes and leaders.
    pub(crate) fn view(&self) -> Value {
        let output = gantry().args(["dev", "status", "--output", "json", "--data"]).arg(self.data()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub(crate) fn await_view(&self, what: &str, is_reached: impl Fn(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let view = self.view();
            if is_reached(&view) {
                return view;
            }
            assert!(started.elapsed() < CHANGE_TIME_MAX, "{what}: not reached: {view}, logs: {}", self.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn await_leaders(&self) {
        self.await_view("every group has a leader", |view| {
            view["groups"].as_array().unwrap().iter().all(|group| group["leader"].is_string())
        });
    }

    pub(crate) fn leader_of(&self, group: &str) -> String {
        let found = |view: &Value| {
            let group = view["groups"].as_array().unwrap().iter().find(|found| found["name"] == group).cloned();
            group.and_then(|group| group["leader"].as_str().map(ToOwned::to_owned))
        };
        found(&self.await_view("a leader", |view| found(view).is_some())).unwrap()
    }

    /// What the view says of one process.
    pub(crate) fn process(&self, name: &str) -> Value {
        let view = self.view();
        view["processes"].as_array().unwrap().iter().find(|found| found["name"] == name).unwrap().clone()
    }

    pub(crate) fn state_of(&self, process: &str) -> String {
        self.process(process)["state"].as_str().unwrap().to_owned()
    }

    pub(crate) fn http_of(&self, node: &str) -> String {
        self.process(node)["http"].as_str().unwrap().to_owned()
    }

    /// The number of the process that does the work, while there is one.
    pub(crate) fn pid_of(&self, node: &str) -> Option<u64> {
        self.process(node)["pid"].as_u64()
    }

    /// The ends of all logs, for a message.
    fn logs(&self) -> String {
        let mut text = String::new();
        for entry in std::fs::read_dir(self.dir.path().join("log")).into_iter().flatten().flatten() {
            let log = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let lines: Vec<_> = log.lines().filter(|line| !line.contains("openraft")).collect();
            let last = &lines[lines.len().saturating_sub(15)..];
            text.push_str(&format!("\n== {}\n{}", entry.path().display(), last.join("\n")));
        }
        text
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.parent.kill();
        let _ = self.parent.wait();
    }
}

/// Starts `gantry dev` and waits for its table.
fn start_parent(dir: &Path, base_port: u16, args: &[String]) -> Child {
    let mut parent = gantry()
        .args(["dev", "--json", "--base-port", &base_port.to_string(), "--data"])
        .arg(dir)
        .args(args)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let started = Instant::now();
    let mut line = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "gantry dev ended early");
    assert!(started.elapsed() < START_TIME_MAX);
    parent
}

/// Sends `request`, a method and a path, and returns code and body of the answer.
pub(crate) fn http(addr: &str, request: &str, host: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(addr).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, body.to_owned())
}

/// The first group as a node sees it, if the node runs.
pub(crate) fn group_status(cluster: &Cluster, node: &str) -> Option<Value> {
    let addr = cluster.http_of(node);
    if ["stopped", "dead", "silent"].contains(&cluster.state_of(node).as_str()) {
        return None;
    }
    let (code, body) = http(&addr, "GET /v1/status", &addr);
    let status: Value = serde_json::from_str(&body).ok().filter(|_| code == 200)?;
    status["groups"].as_array()?.first().cloned()
}

/// Asks again and again until there is an answer.
pub(crate) fn poll<T>(limit: Duration, what: &str, ask: impl Fn() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(started.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whether the process exists and is no zombie that nobody waits for.
pub(crate) fn is_alive(pid: u64) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !stat.rsplit_once(')').is_some_and(|(_, state)| state.trim_start().starts_with('Z'))
}

/// A base port whose whole range is free just now.
pub(crate) fn free_base_port() -> u16 {
    for _ in 0..200 {
        let base = 11_000 + rand::random::<u16>() % 18_000;
        let distances = (0..3).chain(25..30).chain(35..40).chain((1_035..1_500).step_by(10));
        if distances.into_iter().all(|distance| TcpListener::bind(("127.0.0.1", base + distance)).is_ok()) {
            return base;
        }
    }
    panic!("no free range of ports");
}
