//! Groups whose stored bytes are damaged, beside groups that are not.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::mpsc;

use protocol::{RemotingCommand, RequestCode};
use raft_store::LogPosition;
use remoting::Responder;

use super::retire::{Cluster, keep_all, send, soon, stored};
use super::*;
use crate::node::group::Running;
use crate::raft::repair::DropsOld;
use crate::state_machine::command::PutMode;
use crate::state_machine::testing::{message, pack, topic};
use crate::state_machine::{Command, TopicConfig};

pub(super) const SEGMENT: u64 = 64 << 10;

/// A single node with two groups and small segments.
fn small(dir: &Path) -> Options {
    let mut options = options(dir);
    options.storage.segment_bytes = SEGMENT;
    keep_all(&mut options);
    options
}

async fn running(node: &Node, group: usize) -> Arc<Running> {
    soon("a leader", node.shared.groups[group].led()).await;
    let running = node.shared.groups[group].running().unwrap();
    let mut role = running.raft.role();
    soon("open gates", role.wait_for(|role| role.is_ready_leader())).await.unwrap();
    running
}

/// Fills the log of a group with messages of four kilobytes.
pub(super) async fn fill(running: &Running, messages: usize) {
    let topics = vec![TopicConfig::new(topic("A"), 1, 6)];
    let put = Command::PutTopics { topics, mode: PutMode::CreateOnly, stamped_ms: 1 };
    let (_, mut last) = running.raft.propose_command(&put).await.unwrap();
    for _ in 0..messages {
        (_, last) = running.raft.propose(pack(&[message("A", 0, &"x".repeat(4 << 10))])).await.unwrap();
    }
    soon("consumers see all of it", running.store.wait_dispatched(last.index.get())).await.unwrap();
}

fn segment(dir: &Path, group: &str, number: u64) -> PathBuf {
    dir.join(group).join("log").join(format!("{:020}", number * SEGMENT))
}

/// Flips a bit in the middle of a segment's records.
fn flip(file: &Path, at: u64) {
    let open = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    open.read_exact_at(&mut byte, at).unwrap();
    open.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// What a client of a group is answered: code and remark.
pub(super) fn ask(group: &NodeGroup, code: RequestCode) -> (i32, String) {
    let (answer, answers) = mpsc::channel();
    let request = RemotingCommand::request(code);
    let responder = Responder::detached(&request, ([127, 0, 0, 1], 1).into(), move |got: RemotingCommand| {
        answer.send((got.code, got.remark.unwrap_or_default().to_string())).unwrap();
    });
    group.handler().handle(request, responder);
    answers.recv_timeout(Duration::from_secs(10)).unwrap()
}

async fn failed(node: &Node, group: usize) -> GroupStatus {
    let status = || node.shared.status().groups[group].clone();
    let failed = async {
        while status().role != ReplicaRole::Failed {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(20), failed).await.is_err() {
        panic!("it has not failed: {:?}", status());
    }
    status()
}

/// The second group has failed at `position` of its log, everybody is told, and the first one serves.
async fn only_the_second_has_failed(node: &Node, position: u64) {
    let first = running(node, 0).await;
    fill(&first, 1).await;
    let status = failed(node, 1).await;
    let range = status.damaged.first().expect("the range is named");
    assert!(range.from <= position && position < range.from + 8192, "{range:?}, damaged at {position}");
    let reason = status.repair_error.clone().unwrap();
    assert!(reason.contains("broker-b") && reason.contains(&range.from.to_string()), "{reason}");
    let whole = node.shared.status();
    assert!(!whole.ready && whole.health == format!("failed: {reason}"), "{}", whole.health);
    assert_eq!(whole.state, NodeState::Running);
    let mut metrics = MetricsText::default();
    node.shared.collect(&mut metrics);
    let text = metrics.into_text();
    for line in [
        "gantry_group_failed{group=\"broker-a\"} 0\n",
        "gantry_group_failed{group=\"broker-b\"} 1\n",
        "gantry_log_damaged_ranges{group=\"broker-b\"} 1\n",
    ] {
        assert!(text.contains(line), "{line} {text}");
    }
    for code in [RequestCode::SEND_MESSAGE, RequestCode::PULL_MESSAGE] {
        assert_eq!(ask(&node.shared.groups[1], code), (14, format!("not proposed: {reason}")));
    }
    // Orders are answered, and change nothing.
    let refused = node.shared.retire("broker-b".to_owned()).await.unwrap_err();
    assert!(refused.to_string().contains("must be repaired first"), "{refused}");
    assert!(node.shared.failure.borrow().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_does_not_open_fails_its_group_alone() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(small(dir.path()), true).await.unwrap();
    fill(&*running(&node, 1).await, 3).await;
    stop(node).await;
    flip(&segment(dir.path(), "broker-b", 0), 10_000);
    let node = start(small(dir.path()), false).await.unwrap();
    only_the_second_has_failed(&node, 10_000).await;
    stop(node).await;
    // The other group's clean mark is not lost over it.
    let node = start(small(dir.path()), false).await.unwrap();
    assert_eq!(running(&node, 0).await.recovered.stop, raft_store::StopClass::Clean);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_that_a_replay_meets_fails_its_group_alone() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(small(dir.path()), true).await.unwrap();
    fill(&*running(&node, 1).await, 90).await;
    stop(node).await;
    // Old segments are not read at a start, unless what is derived from them is gone.
    let group = dir.path().join("broker-b");
    for derived in ["consumequeue", "index", "checkpoints"] {
        std::fs::remove_dir_all(group.join(derived)).unwrap();
    }
    flip(&segment(dir.path(), "broker-b", 1), 30_000);
    let node = start(small(dir.path()), false).await.unwrap();
    only_the_second_has_failed(&node, SEGMENT + 30_000).await;
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vote_that_cannot_be_read_fails_its_group_alone() {
    let dir = tempfile::tempdir().unwrap();
    stop(start(small(dir.path()), true).await.unwrap()).await;
    std::fs::write(dir.path().join("broker-b/log/hard_state"), [7; 8192]).unwrap();
    let node = start(small(dir.path()), false).await.unwrap();
    fill(&*running(&node, 0).await, 1).await;
    let status = failed(&node, 1).await;
    assert!(status.repair_error.unwrap().contains("hard_state: neither slot can be read"));
    assert!(!status.damaged_everywhere && status.damaged.is_empty());
    assert_eq!(ask(&node.shared.groups[1], RequestCode::SEND_MESSAGE).0, 14);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_damaged_on_every_node_fails_until_one_of_them_is_put_right() {
    let mut cluster = Cluster::start("sync").await;
    let leader = cluster.leader().await;
    for id in 0..9 {
        assert_eq!(Some(id), send(&leader, id).await);
    }
    let file = |cluster: &Cluster, at| cluster.log_dir(at).join(format!("{:020}", 0));
    // In the middle: what stood at the very end nobody could tell.
    let middle = 4096 + (leader.log.watermarks().committed_end.get() - 4096) / 2;
    drop(leader);
    for at in 1..=3 {
        cluster.stop_node(at).await;
    }
    let whole = std::fs::read(file(&cluster, 2)).unwrap();
    for at in 1..=3 {
        flip(&file(&cluster, at), middle);
    }
    for at in 1..=3 {
        cluster.start_node(at, false).await;
    }
    for at in 1..=3 {
        let status = failed(&cluster.running[&at], 0).await;
        assert!(status.damaged_everywhere && status.repair_error.unwrap().contains("damaged there too"));
        assert_eq!(ask(cluster.group(at), RequestCode::SEND_MESSAGE).0, 14);
    }
    cluster.stop_node(2).await;
    std::fs::write(file(&cluster, 2), whole).unwrap();
    cluster.start_node(2, false).await;
    // The others ask again by themselves.
    let leader = cluster.leader().await;
    assert_eq!(Some(9), send(&leader, 9).await);
    let marks = leader.log.watermarks();
    for at in 1..=3 {
        soon("a replica that runs", cluster.group(at).led()).await;
        let running = cluster.group(at).running().unwrap();
        soon("dispatch", running.store.wait_dispatched(marks.last.unwrap().index.get())).await.unwrap();
        assert_eq!(stored(&running), (0..=9).map(|id| (id, id)).collect());
        assert_eq!(cluster.running[&at].shared.status().groups[0].repair_error, None);
    }
    cluster.stop().await;
}

/// What a replica has for consumers: from the first offset to the last, each of them there.
fn offsets(running: &Running) -> (u64, u64) {
    let (first, end) = (running.store.min_offset("A", 0), running.store.max_offset("A", 0));
    for offset in first..end {
        assert!(running.store.message("A", 0, offset).unwrap().is_some(), "offset {offset} of {first} to {end}");
    }
    (first, end)
}

/// Waits until there is a checkpoint as of the end of each closed segment.
async fn checkpointed(cluster: &Cluster, at: usize) {
    let log = cluster.group(at).log().unwrap();
    let dir = cluster.log_dir(at).parent().unwrap().join("checkpoints");
    let has_one = |last: u64| dir.join(format!("{last:020}")).exists();
    while !log.sealed_segments().iter().all(|segment| has_one(segment.last.index.get())) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Three nodes with seven segments, of which some have dropped the first two.
async fn with_dropped_segments(dropped_on: &[usize]) -> Cluster {
    let cluster = Cluster::start_with("sync", SEGMENT).await;
    let leader = cluster.leader().await;
    for _ in 0..9 {
        fill(&leader, 10).await;
        let last = leader.log.watermarks().last.unwrap().index.get();
        for at in 1..=3 {
            let running = cluster.group(at).running().unwrap();
            soon("everything is applied", running.store.wait_dispatched(last)).await.unwrap();
            // One that comes while others are still being written is left out.
            soon("each segment has its checkpoint", checkpointed(&cluster, at)).await;
        }
    }
    for at in dropped_on {
        let running = cluster.group(*at).running().unwrap();
        let dropped = running.retention.drop_through(LogPosition::new(SEGMENT));
        assert!(soon("segments are dropped", dropped).await, "node {at}");
        assert_eq!(running.log.extent().unwrap().start.get() / SEGMENT, 2);
    }
    cluster
}

/// The file of the current checkpoint.
fn current_checkpoint(cluster: &Cluster, at: usize) -> PathBuf {
    let dir = cluster.log_dir(at).parent().unwrap().join("checkpoints");
    let name = std::fs::read(dir.join("current")).unwrap();
    let index = u64::from_be_bytes(name[..8].try_into().unwrap());
    dir.join(format!("{index:020}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_checkpoint_is_fetched_from_a_peer() {
    let mut cluster = with_dropped_segments(&[1, 2, 3]).await;
    let expected = offsets(&cluster.group(1).running().unwrap());
    let file = current_checkpoint(&cluster, 2);
    let whole = std::fs::read(&file).unwrap();
    let name = file.parent().unwrap().join("current");
    type Damage<'a> = (&'a str, Box<dyn Fn() + 'a>);
    let damages: [Damage<'_>; 4] = [
        ("a flipped bit", Box::new(|| flip(&file, whole.len() as u64 / 2))),
        ("a file that is gone", Box::new(|| std::fs::remove_file(&file).unwrap())),
        ("a damaged name of the current one", Box::new(|| std::fs::write(&name, [7; 12]).unwrap())),
        ("all of them gone", Box::new(|| std::fs::remove_dir_all(file.parent().unwrap()).unwrap())),
    ];
    for (what, damage) in damages {
        cluster.stop_node(2).await;
        damage();
        cluster.start_node(2, false).await;
        let led = cluster.group(2).led();
        soon(what, led).await;
        let running = cluster.group(2).running().unwrap();
        let last = running.log.watermarks().last.unwrap().index.get();
        soon("everything is applied", running.store.wait_dispatched(last)).await.unwrap();
        assert_eq!(offsets(&running), expected, "{what}");
        assert_eq!(current_checkpoint(&cluster, 2), file, "{what}");
        assert!(std::fs::read(&file).unwrap() == whole, "{what}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_that_the_others_have_dropped_is_dropped_too_by_a_running_replica() {
    let cluster = with_dropped_segments(&[1, 3]).await;
    let running = cluster.group(2).running().unwrap();
    flip(&cluster.log_dir(2).join(format!("{SEGMENT:020}")), 30_000);
    let log = running.log.clone();
    // As when a peer asks for it: readers of a young log are served from memory.
    let from = LogPosition::new(SEGMENT + 4096);
    let read = tokio::task::spawn_blocking(move || log.serve_range(from, LogPosition::new(2 * SEGMENT), 1 << 20));
    read.await.unwrap().unwrap();
    soon("it is noted", running.repairer.until(|status| !status.damaged.is_empty())).await;
    soon("whole again", running.log.damage().wait_for(Vec::is_empty)).await.unwrap();
    // Up to the next checkpoint it has.
    assert!(running.log.extent().unwrap().start.get() / SEGMENT >= 2);
    soon("the status follows", running.repairer.until(|status| status.damaged.is_empty())).await;
    let (first, end) = offsets(&running);
    let (others_first, others_end) = offsets(&cluster.group(1).running().unwrap());
    assert!(first >= others_first && end == others_end, "{first} to {end}, elsewhere {others_first} to {others_end}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_that_the_others_have_dropped_does_not_keep_a_replica_from_starting() {
    let mut cluster = with_dropped_segments(&[1, 3]).await;
    cluster.stop_node(2).await;
    // Whatever is derived is built again, and that reads the old segments.
    let group = cluster.log_dir(2).parent().unwrap().to_owned();
    for derived in ["consumequeue", "index", "checkpoints"] {
        std::fs::remove_dir_all(group.join(derived)).unwrap();
    }
    flip(&cluster.log_dir(2).join(format!("{SEGMENT:020}")), 30_000);
    cluster.start_node(2, false).await;
    soon("a start", cluster.group(2).led()).await;
    let running = cluster.group(2).running().unwrap();
    let last = running.log.watermarks().last.unwrap().index.get();
    soon("everything is applied", running.store.wait_dispatched(last)).await.unwrap();
    assert_eq!(running.log.extent().unwrap().start.get() / SEGMENT, 2);
    assert_eq!(offsets(&running), offsets(&cluster.group(1).running().unwrap()));
    // It goes on like the others.
    fill(&*cluster.leader().await, 3).await;
    let last = cluster.leader().await.log.watermarks().last.unwrap().index.get();
    soon("everything is applied", running.store.wait_dispatched(last)).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_whole_needs_no_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(small(dir.path()), true).await.unwrap();
    let running = running(&node, 1).await;
    fill(&running, 40).await;
    let expected = offsets(&running);
    assert_eq!((running.log.watermarks().purged, expected), (None, (0, 40)));
    drop(running);
    stop(node).await;
    let checkpoints = dir.path().join("broker-b/checkpoints");
    std::fs::write(checkpoints.join("current"), [7; 12]).unwrap();
    let node = start(small(dir.path()), false).await.unwrap();
    let again = self::running(&node, 1).await;
    let last = again.log.watermarks().last.unwrap().index.get();
    soon("everything is applied", again.store.wait_dispatched(last)).await.unwrap();
    assert_eq!(offsets(&again), expected);
    drop(again);
    stop(node).await;
}

/// Raft looks at single entries of old segments while it starts, of which nothing before it has read more than the ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_that_raft_itself_meets_while_it_starts_is_repaired() {
    let mut cluster = Cluster::start_with("sync", SEGMENT).await;
    let leader = cluster.leader().await;
    fill(&leader, 90).await;
    let last = leader.log.watermarks().last.unwrap().index.get();
    drop(leader);
    let running = cluster.group(2).running().unwrap();
    soon("everything is applied", running.store.wait_dispatched(last)).await.unwrap();
    drop(running);
    cluster.stop_node(2).await;
    let file = cluster.log_dir(2).join(format!("{:020}", 0));
    let whole = std::fs::read(&file).unwrap();
    // The first entry of all.
    flip(&file, 4096 + 64 + 3);
    cluster.start_node(2, false).await;
    soon("a replica that runs", cluster.group(2).led()).await;
    let records = usize::try_from(SEGMENT).unwrap() - 4096;
    assert!(whole[..records] == std::fs::read(&file).unwrap()[..records], "the segment is what it was");
    cluster.stop().await;
}
