//! Client ports over the death of a broker, and what becomes of them when nobody comes back.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::cluster::{Cluster, http, is_alive, poll};

const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_crashed_broker_refuses_nobody_and_a_killed_node_everybody() {
    let mut cluster = Cluster::start(&["--groups", "1"]);
    let leader = cluster.leader_of("broker-a");
    let port = client_port(&cluster, &leader);
    let before = cluster.pid_of(&leader).unwrap();
    let verify = cluster.spawn(&["verify", "--topic", "t", "--count", "1500", "--rate", "300", "--output", "json"]);
    let knocking = Knocking::start(port);
    poll(SOON, "messages under way", || {
        let topic: Value = cluster.try_json(&["topic", "describe", "t"])?;
        let stored: i64 = topic.as_array()?.iter().map(|queue| queue["max_offset"].as_i64().unwrap()).sum();
        (stored > 300).then_some(())
    });
    cluster.dev(&["crash", &leader]);
    let after = poll(SOON, "another broker", || cluster.pid_of(&leader).filter(|pid| *pid != before));
    cluster.await_view("all replicas follow", |view| view["groups"][0]["followers"] == 2);
    let verify = verify.wait_with_output().unwrap();
    let verdict: Value = serde_json::from_slice(&verify.stdout).unwrap();
    assert_eq!((&verdict["acked"], &verdict["lost"]), (&1500.into(), &0.into()), "{verdict}");
    assert_eq!(knocking.refusals(), 0);

    // The loss of the machine is another thing.
    cluster.dev(&["kill", &leader]);
    await_refusal(port);
    assert!(!is_alive(after));
    assert_eq!(cluster.state_of(&leader), "stopped");
    cluster.dev(&["start", &leader]);
    cluster.await_view("all replicas follow", |view| view["groups"][0]["followers"] == 2);
    // A stop leaves neither supervisor nor broker nor port.
    let pids = (cluster.pid_of(&leader).unwrap(), supervisor_of(cluster.pid_of(&leader).unwrap()));
    cluster.dev(&["stop", &leader]);
    assert_eq!(knock(port), Err(ErrorKind::ConnectionRefused));
    assert!(!is_alive(pids.0) && !is_alive(pids.1));
    cluster.stop();
}

#[test]
fn a_paused_node_is_paused_whole() {
    let mut cluster = Cluster::start(&["--groups", "1"]);
    let leader = cluster.leader_of("broker-a");
    cluster.dev(&["pause", &leader]);
    let pid = cluster.pid_of(&leader).unwrap();
    assert_eq!((run_state(pid), run_state(supervisor_of(pid))), (Some('T'), Some('T')));
    cluster.dev(&["resume", &leader]);
    cluster.await_view("all replicas follow", |view| view["groups"][0]["followers"] == 2);
    cluster.stop();
}

#[test]
fn a_killed_broker_ends_the_streams_of_its_clients_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::new(dir.path());
    let mut supervisor = node.supervise(Path::new(env!("CARGO_BIN_EXE_gantry")), &["--bootstrap"]);
    let broker = node.await_broker(&supervisor);
    let closer = poll(SOON, "the process that closes what is left", || child_of(broker));
    let name = std::fs::read_to_string(format!("/proc/{closer}/comm")).unwrap();
    assert_eq!(name, "gantry-closer\n");
    // A group's signal must end the broker first.
    let closer_pid = Pid::from_raw(i32::try_from(closer).unwrap());
    assert_eq!(rustix::process::getpgid(closer_pid).ok(), closer_pid);

    let mut clients = [node.client, node.client].map(|port| TcpStream::connect(port).unwrap());
    let mut peer = TcpStream::connect(node.raft).unwrap();
    for stream in clients.iter().chain([&peer]) {
        stream.set_read_timeout(Some(SOON)).unwrap();
    }
    // Whoever is answered has been accepted, and does not wait for the next broker.
    for client in &mut clients {
        let header = br#"{"code":0,"flag":0,"language":"JAVA","opaque":1,"version":0}"#;
        let length = u8::try_from(header.len()).unwrap();
        client.write_all(&[&[0, 0, 0, length + 4, 0, 0, 0, length], header.as_slice()].concat()).unwrap();
        let mut length = [0; 4];
        client.read_exact(&mut length).unwrap();
        client.read_exact(&mut vec![0; u32::from_be_bytes(length) as usize]).unwrap();
    }
    // What it has not read when it dies makes the kernel reset the connection.
    signal(broker, Signal::STOP);
    for client in &mut clients {
        client.write_all(&[0, 0]).unwrap();
    }
    kill(broker);
    for client in &mut clients {
        let mut last = Vec::new();
        client.read_to_end(&mut last).unwrap();
        // One frame that is none, at which a Java client closes by itself.
        assert_eq!(last, b"\0\0\0\x06\0\0\0\x02][");
        // Whoever has not seen it yet still writes.
        client.write_all(&[0, 0]).unwrap();
    }
    let ended = peer.read(&mut [0]).map_err(|error| error.kind());
    assert!(matches!(ended, Ok(0) | Err(ErrorKind::ConnectionReset)), "{ended:?}");
    drop(clients);
    poll(SOON, "it ends", || (!is_alive(closer)).then_some(()));

    // Clients that never close do not keep it.
    let broker = node.await_broker(&supervisor);
    let closer = poll(SOON, "another one", || child_of(broker));
    let client = TcpStream::connect(node.client).unwrap();
    kill(broker);
    poll(SOON, "it ends", || (!is_alive(closer)).then_some(()));
    drop(client);

    // A broker that ends by itself has no use for it.
    let broker = node.await_broker(&supervisor);
    let closer = poll(SOON, "another one", || child_of(broker));
    kill_process(Pid::from_child(&supervisor), Signal::TERM).unwrap();
    assert!(supervisor.wait().unwrap().success());
    assert!(!is_alive(closer));
}

#[test]
fn a_broker_goes_with_its_supervisor() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::new(dir.path());
    let mut supervisor = node.supervise(Path::new(env!("CARGO_BIN_EXE_gantry")), &["--bootstrap"]);
    let broker = node.await_broker(&supervisor);
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    poll(SOON, "the broker ends as well", || (!is_alive(broker)).then_some(()));
    await_refusal(node.client);

    // By a signal, in order; the exit code is the broker's.
    let mut supervisor = node.supervise(Path::new(env!("CARGO_BIN_EXE_gantry")), &[]);
    let broker = node.await_broker(&supervisor);
    kill_process(Pid::from_child(&supervisor), Signal::TERM).unwrap();
    assert!(supervisor.wait().unwrap().success());
    assert!(!is_alive(broker));
    assert_eq!(knock(node.client), Err(ErrorKind::ConnectionRefused));
}

#[test]
fn ports_close_while_there_is_no_program_to_start() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::new(dir.path());
    let program = dir.path().join("gantry");
    std::fs::copy(env!("CARGO_BIN_EXE_gantry"), &program).unwrap();
    let mut supervisor = node.supervise(&program, &["--bootstrap"]);
    let broker = node.await_broker(&supervisor);
    let away = dir.path().join("elsewhere");
    rename(&program, &away);
    kill(broker);
    await_refusal(node.client);
    rename(&away, &program);
    let other = node.await_broker(&supervisor);
    assert_ne!(other, broker);
    kill_process(Pid::from_child(&supervisor), Signal::TERM).unwrap();
    assert!(supervisor.wait().unwrap().success());
}

#[test]
fn ports_close_while_the_broker_dies_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::new(dir.path());
    let mut supervisor = node.supervise(Path::new(env!("CARGO_BIN_EXE_gantry")), &["--bootstrap"]);
    let broker = node.await_broker(&supervisor);
    // A queue that cannot be opened ends every broker.
    let (queues, away) = (dir.path().join("data/broker-a/consumequeue"), dir.path().join("queues"));
    rename(&queues, &away);
    std::fs::write(&queues, "no directory").unwrap();
    kill(broker);
    await_refusal(node.client);
    assert!(supervisor.try_wait().unwrap().is_none(), "it goes on trying");
    std::fs::remove_file(&queues).unwrap();
    rename(&away, &queues);
    node.await_broker(&supervisor);
    kill_process(Pid::from_child(&supervisor), Signal::TERM).unwrap();
    assert!(supervisor.wait().unwrap().success());
}

#[test]
fn a_broker_that_says_why_it_does_not_start_is_not_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::new(dir.path());
    // It would be its first start.
    let output = node.command(Path::new(env!("CARGO_BIN_EXE_gantry")), &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(knock(node.client), Err(ErrorKind::ConnectionRefused));
    std::fs::write(&node.config, "[nodes]\n").unwrap();
    let output = node.command(Path::new(env!("CARGO_BIN_EXE_gantry")), &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

/// One node of a group of one.
struct Node {
    config: PathBuf,
    client: SocketAddr,
    http: SocketAddr,
    raft: SocketAddr,
}

impl Node {
    fn new(dir: &Path) -> Self {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap();
        let listeners: [TcpListener; 3] = std::array::from_fn(|_| free());
        let [client, http, raft] = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
        let config = dir.join("broker.toml");
        let text = format!(
            "[cluster]\nid = \"00112233445566778899aabbccddeeff\"\n[node]\nname = \"n1\"\ndata_dir = {:?}\n\
             raft_listen = \"{raft}\"\nhttp_listen = \"{http}\"\nnamesrv = [\"127.0.0.1:1\"]\n\
             [storage]\nsegment_bytes = \"16MiB\"\nallow_unproven_filesystem = true\nballast_bytes = \"0B\"\n\
             [[group]]\nname = \"broker-a\"\nclient_listen = \"{client}\"\n[[group.member]]\nnode = \"n1\"\nid = 1\n\
             raft_addr = \"{raft}\"\nclient_addr = \"{client}\"\n",
            dir.join("data")
        );
        std::fs::write(&config, text).unwrap();
        Self { config, client, http, raft }
    }

    fn command(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(["broker", "--supervise", "--config"]).arg(&self.config).args(args);
        command.env_remove("GANTRY_BOOTSTRAP").stdin(Stdio::null());
        command
    }

    fn supervise(&self, program: &Path, args: &[&str]) -> Supervisor {
        Supervisor(self.command(program, args).spawn().unwrap())
    }

    /// Waits until the broker leads, and returns its process.
    fn await_broker(&self, supervisor: &Child) -> u64 {
        let addr = self.http.to_string();
        poll(SOON, "the broker leads", || {
            TcpStream::connect(self.http).ok()?;
            let (_, status) = http(&addr, "GET /v1/status", &addr);
            let status: Value = serde_json::from_str(&status).ok()?;
            (status["groups"][0]["gates_open"] == true).then_some(())
        });
        TcpStream::connect(self.client).unwrap();
        let supervisor = u64::from(supervisor.id());
        let numbers =
            std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
        let mut processes = numbers.filter_map(|number| number.parse::<u64>().ok());
        processes.find(|process| stat(*process).is_some_and(|stat| stat.1 == supervisor && stat.0 != 'Z')).unwrap()
    }
}

/// Ends with the test, whatever becomes of that.
struct Supervisor(Child);

impl Deref for Supervisor {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Supervisor {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let _ = self.kill();
        let _ = self.wait();
    }
}

/// Tries a port again and again from another thread.
struct Knocking {
    over: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<usize>,
}

impl Knocking {
    fn start(port: SocketAddr) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let over = Arc::clone(&over);
            move || {
                let mut refusals = 0;
                while !over.load(Ordering::Relaxed) {
                    refusals += usize::from(knock(port) == Err(ErrorKind::ConnectionRefused));
                    std::thread::sleep(Duration::from_millis(2));
                }
                refusals
            }
        });
        Self { over, thread }
    }

    fn refusals(self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn knock(port: SocketAddr) -> Result<(), ErrorKind> {
    TcpStream::connect(port).map(drop).map_err(|error| error.kind())
}

#[expect(clippy::disallowed_methods, reason = "no crash follows that would have to find it")]
fn rename(from: &Path, to: &Path) {
    std::fs::rename(from, to).unwrap();
}

fn kill(process: u64) {
    signal(process, Signal::KILL);
}

fn signal(process: u64, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(process).unwrap()).unwrap(), signal).unwrap();
}

/// What a killed broker had open is closed a little after its death.
fn await_refusal(port: SocketAddr) {
    poll(SOON, "the port closes", || (knock(port) == Err(ErrorKind::ConnectionRefused)).then_some(()));
}

fn client_port(cluster: &Cluster, node: &str) -> SocketAddr {
    let port = cluster.process(node)["client_ports"][0].as_u64().unwrap();
    SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).unwrap()))
}

/// State and parent of a process.
fn stat(process: u64) -> Option<(char, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn run_state(process: u64) -> Option<char> {
    Some(stat(process)?.0)
}

fn child_of(process: u64) -> Option<u64> {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.into_iter().find(|child| stat(*child).is_some_and(|(_, parent)| parent == process))
}

fn supervisor_of(broker: u64) -> u64 {
    stat(broker).unwrap().1
}
