//! A whole node in one process: its start, its stop, and a replica that fails.

mod balance;
mod commits;
mod damaged;
mod health;
mod http;
mod members;
mod metrics;
mod rejoin;
mod retire;
mod stall;
#[cfg(feature = "otel")]
mod tracing;

use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::AtomicU16;

use protocol::header::PullRequest;
use protocol::{GroupName, RemotingCommand, RequestCode, TopicName};

use super::*;
use crate::http::{Admin, GroupStatus, MetricsText, ReplicaRole};
use crate::node::damaged::describe_failure;
use crate::raft::Unfit;

/// An address that nobody uses and that no connection is given: a node that is started again finds its ports free.
fn free_addr() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Below the ports that the system gives out, and each test process from a place of its own.
    let first = std::process::id() % 12_000;
    loop {
        let port = 20_000 + (first + u32::from(NEXT.fetch_add(1, Ordering::Relaxed))) % 12_000;
        let addr = SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).unwrap()));
        if TcpListener::bind(addr).is_ok() {
            return addr;
        }
    }
}

/// A pull of `readers` from queue 0, which commits the same offset and may be held for long, if the flags say so.
fn pull_request(topic: &TopicName, queue_offset: i64, max_msg_nums: i32, sys_flag: i32) -> RemotingCommand {
    let mut request = RemotingCommand::request(RequestCode::PULL_MESSAGE);
    let header = PullRequest {
        group: GroupName::parse("readers").unwrap(),
        topic: topic.clone(),
        queue_id: 0,
        queue_offset,
        max_msg_nums,
        sys_flag,
        commit_offset: queue_offset,
        suspend_timeout_millis: 20_000,
        subscription: Some("*".to_owned()),
        sub_version: 0,
        expression_type: None,
        max_msg_bytes: None,
        broker_name: None,
    };
    header.encode_into(&mut request.ext);
    request
}

/// A single node with two groups in `dir`, on ports that are free now.
fn options(dir: &Path) -> Options {
    let [raft, http, a, b] = std::array::from_fn(|_| free_addr());
    let group = |name: &str, addr: SocketAddr| {
        format!(
            "[[group]]\nname = \"{name}\"\nclient_listen = \"{addr}\"\n[[group.member]]\nnode = \"n1\"\nid = 1\n\
             raft_addr = \"{raft}\"\nclient_addr = \"{addr}\"\n"
        )
    };
    // Nobody is a name server there: a node must work without one.
    let text = format!(
        "[cluster]\nid = \"00112233445566778899aabbccddeeff\"\n[node]\nname = \"n1\"\ndata_dir = {:?}\n\
         raft_listen = \"{raft}\"\nhttp_listen = \"{http}\"\nnamesrv = [\"127.0.0.1:1\"]\n\
         [http]\nrequests_per_second = 10000\n[storage]\nsegment_bytes = \"16MiB\"\nallow_unproven_filesystem = true\n{}{}",
        dir.display().to_string(),
        group("broker-a", a),
        group("broker-b", b),
    );
    Options::parse(Path::new("test.toml"), &text).unwrap()
}

async fn start(options: Options, bootstrap: bool) -> Result<Node, StartError> {
    let bootstrap = if bootstrap { Bootstrap::Allowed } else { Bootstrap::Forbidden };
    Node::start(options, StartOptions { bootstrap, rejoin: false, started: Instant::now() }, ClientPorts::default())
        .await
}

async fn stop(node: Node) {
    node.stop(StopKind::Node, std::future::pending()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_is_found_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    let node = start(options.clone(), true).await.unwrap();
    for group in &node.shared.groups {
        group.led().await;
    }
    let status = node.shared.status();
    assert!(!status.ready, "no name server knows it");
    assert!(status.health.contains("name server"), "{}", status.health);
    stop(node).await;

    // Now without permission to begin with nothing: it does not begin with nothing.
    let node = start(options, false).await.unwrap();
    for group in &node.shared.groups {
        let running = group.running().unwrap();
        let recovered = &running.recovered;
        assert_eq!(recovered.stop, raft_store::StopClass::Clean, "{recovered:?}");
        assert_eq!(recovered.start_counter, 2);
        assert!(recovered.last.is_some());
    }
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_directory_is_refused_and_everything_is_closed_again() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    let error = start(options.clone(), false).await.err().unwrap();
    assert!(matches!(error, StartError::Log { source: raft_store::Error::NoStore { .. }, .. }), "{error:?}");
    // All ports are free for the start that is allowed.
    stop(start(options, true).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    let addr = options.groups[1].client_listen;
    let _owner = TcpListener::bind(addr).unwrap();
    let error = start(options, true).await.err().unwrap().to_string();
    assert_eq!(error, format!("cannot listen on {addr} for clients of broker-b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inherited_port_is_served_and_outlives_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    let start = StartOptions { bootstrap: Bootstrap::Allowed, rejoin: false, started: Instant::now() };
    let addr = options.groups[1].client_listen;
    let kept = remoting::bind(addr).unwrap();
    let (accepting, accepts) = oneshot::channel();
    let ports = ClientPorts { inherited: vec![kept.try_clone().unwrap()], accepting: Some(accepting) };
    let node = Node::start(options.clone(), start, ports).await.unwrap();
    accepts.await.unwrap();
    assert_eq!(node.client_servers[1].local_addr(), addr);
    stop(node).await;
    std::net::TcpStream::connect(addr).expect("somebody still holds it");
    drop(kept);

    let stray = remoting::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let stray_addr = stray.local_addr().unwrap();
    let ports = ClientPorts { inherited: vec![stray], accepting: None };
    let error = Node::start(options.clone(), start, ports).await.err().unwrap().to_string();
    assert!(
        error.starts_with(&format!("inherited a listening socket on {stray_addr}, which is no group's")),
        "{error}"
    );
    assert!(error.contains(&addr.to_string()), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_failed_replica_fails_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(options(dir.path()), true).await.unwrap();
    node.shared.groups[1].led().await;
    node.shared.groups[1].running().unwrap().raft.shutdown().await;
    let reason = node.failed().await;
    assert!(reason.starts_with("group broker-b: "), "{reason}");
    let status = node.shared.status();
    assert!(!status.ready);
    assert_eq!((status.state, &status.health), (NodeState::Failed, &reason));
    let shared = Arc::clone(&node.shared);
    node.abandon().await;
    assert_eq!(shared.status().state, NodeState::Failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_not_applied_yet_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let options = without_majority(options(dir.path()));
    stop(start(options.clone(), true).await.unwrap()).await;
    let node = start(options, false).await.unwrap();
    let status = node.shared.status();
    assert!(!status.ready);
    assert_eq!(status.health, "no leader that answers: broker-a");
    let replay = status.groups[0].replay.clone().unwrap();
    assert!(replay.rebuilds && replay.left_bytes > 0 && replay.done_bytes == 0, "{replay:?}");
    let mut metrics = MetricsText::default();
    node.shared.collect(&mut metrics);
    let text = metrics.into_text();
    let line = format!("gantry_replay_left_bytes{{group=\"broker-a\"}} {}\n", replay.left_bytes);
    assert!(text.contains(&line), "{text}");

    // With a leader, the sentence is about what is left.
    let mut group = status.groups[0].clone();
    group.role = ReplicaRole::Follower;
    let text = replay.text;
    assert!(text.starts_with("queues and index are built again from the log: 0 %, "), "{text}");
    let groups = [group];
    let expected = format!("group broker-a: {text}");
    assert_eq!(status::problem(NodeState::Running, &groups, None), Some(expected.clone()));
    let starting = format!("starting: 0 of 1 groups are being recovered; {expected}");
    assert_eq!(status::problem(NodeState::Starting, &groups, None), Some(starting));
    let done = GroupStatus { replay: None, ..groups[0].clone() };
    assert_eq!(status::problem(NodeState::Running, &[done], None), None);
    stop(node).await;
}

/// On one thread, so that nothing else can have told the replica meanwhile.
#[tokio::test]
async fn a_node_that_says_it_is_drained_would_take_no_leadership_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(without_majority(options(dir.path())), true).await.unwrap();
    let running = node.shared.groups[0].running().unwrap();
    for drained in [true, false, true] {
        node.shared.set_drained(drained).await.unwrap();
        assert_eq!(running.raft.is_unfit(Unfit::Drained), drained);
    }
    drop(running);
    stop(node).await;
}

/// The first group alone, with two more members that never run, so that nothing is ever committed.
fn without_majority(mut options: Options) -> Options {
    options.groups.truncate(1);
    let own = options.groups[0].members[0].clone();
    for id in [2, 3] {
        let mut member = own.clone();
        (member.id, member.node, member.raft_addr) = (id, format!("n{id}"), "127.0.0.1:1".to_owned());
        options.groups[0].members.push(member);
    }
    options
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_else_wrote_is_refused_with_what_was_found_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let right = options(dir.path());
    let node = start(right.clone(), true).await.unwrap();
    for group in &node.shared.groups {
        // Without an entry there is no checkpoint.
        group.led().await;
    }
    stop(node).await;
    let group = dir.path().join("broker-b");
    let segment = group.join("log").join(format!("{:020}", 0));
    let newer = |path: &Path, at: usize, bytes: &[u8]| {
        let mut file = std::fs::read(path).unwrap();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        std::fs::write(path, file).unwrap();
    };
    let refused = async |what: &str, options: &Options, texts: &[&str]| {
        let error = start(options.clone(), false).await.err().unwrap_or_else(|| panic!("{what}: it has started"));
        let text = describe_failure(&error);
        for expected in texts {
            assert!(text.contains(expected), "{what}: {text}");
        }
    };

    let mut other = right.clone();
    other.cluster.id = [7; 16];
    refused("another cluster", &other, &["belongs to cluster 00112233", "correct the path or the cluster id"]).await;

    let whole = std::fs::read(&segment).unwrap();
    newer(&segment, 8, &99_u16.to_be_bytes());
    refused("a newer segment", &right, &["format version 99", "use the program that wrote it, or newer"]).await;
    std::fs::write(&segment, &whole).unwrap();

    let checkpoints = std::fs::read_dir(group.join("checkpoints")).unwrap().map(|entry| entry.unwrap().path());
    let checkpoint = checkpoints.max().unwrap();
    let kept = std::fs::read(&checkpoint).unwrap();
    newer(&checkpoint, 8, &99_u32.to_be_bytes());
    refused("a newer checkpoint", &right, &["checkpoint version 99", "use the program that wrote it, or newer"]).await;
    std::fs::write(&checkpoint, kept).unwrap();

    let foreign = group.join("log").join("photo.jpg");
    std::fs::write(&foreign, "not ours").unwrap();
    refused("a foreign file", &right, &["photo.jpg is not part of a store", "move it away"]).await;
    std::fs::remove_file(&foreign).unwrap();

    let (a, b, aside) = (dir.path().join("broker-a"), &group, dir.path().join("aside"));
    let swap = || {
        for (from, to) in [(&a, &aside), (b, &a), (&aside, b)] {
            raft_store::durable::rename(from, to).unwrap();
        }
    };
    swap();
    refused("groups that changed places", &right, &["holds the log of group broker-", "back in its place"]).await;
    swap();

    let mut elsewhere = right.clone();
    elsewhere.storage.allow_unproven_filesystem = false;
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    if mounts.lines().any(|line| line.split(' ').skip(1).take(2).eq(["/dev/shm", "tmpfs"])) {
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        elsewhere.node.data_dir = memory.path().to_owned();
        let error = start(elsewhere, true).await.err().unwrap();
        let text = describe_failure(&error);
        assert!(text.contains("lies on tmpfs") && text.contains("use ext4 or xfs"), "{text}");
    } else {
        eprintln!("skipped: /dev/shm is no tmpfs here");
    }

    // None of this has changed anything.
    let node = start(right, false).await.unwrap();
    assert!(node.shared.groups.iter().all(|group| group.halted().is_none()));
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_can_have_old_segments_dropped_at_any_hour() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    retire::keep_all(&mut options);
    options.storage.segment_bytes = damaged::SEGMENT;
    // All messages of tests are older. The hour is another one than now, and nobody looks by himself.
    options.retention.time = Duration::from_secs(3_600);
    let wall_ms = crate::processor::now().wall_ms;
    options.retention.delete_hours = vec![u8::try_from((wall_ms / 3_600_000 + 12) % 24).unwrap()];
    options.retention.check_interval = Duration::from_secs(3_600);
    let node = start(options.clone(), true).await.unwrap();
    let group = &node.shared.groups[0];
    group.led().await;
    let running = group.running().unwrap();
    damaged::fill(&running, 90).await;
    let checkpoints = dir.path().join("broker-a/checkpoints");
    let until = async |done: &dyn Fn() -> bool| {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let cut = || std::fs::read_dir(&checkpoints).is_ok_and(|mut files| files.next().is_some());
    retire::soon("a segment has its checkpoint", until(&cut)).await;
    let start_of_log = || running.log.extent().unwrap().start;
    let begun = start_of_log();
    node.shared.retention.look(&node.shared.groups, wall_ms, &options.retention.delete_hours).await;
    assert_eq!(start_of_log(), begun, "not at this hour");
    assert_eq!(damaged::ask(group, RequestCode::DELETE_EXPIRED_COMMITLOG).0, 0);
    let dropped = || start_of_log() > begun;
    retire::soon("segments are dropped", until(&dropped)).await;
    assert!(running.store.min_offset("A", 0) > 0);
    stop(node).await;
}
