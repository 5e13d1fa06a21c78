//! Checkpoints over more queues than are flushed for one.

use std::fs;
use std::path::{Path, PathBuf};

use raft_store::LogId;

use super::*;
use crate::state_machine::testing::{CLUSTER, Message};

const TOPICS: usize = 40;
const QUEUES: i32 = 8;
/// So many entries of a queue are written at once.
const WRITTEN_AT_ONCE: usize = 256;

fn topic_name(at: usize) -> String {
    format!("topic-{at:02}")
}

/// A group with 320 queues and room for the whole log in one segment.
async fn many_queues(change: impl FnOnce(&mut StoreOptions)) -> Group {
    let group = Group::over(MemoryLog::new(1 << 30), change);
    for at in 0..TOPICS {
        group.put_topic(&topic_name(at), QUEUES as u32).await;
    }
    group
}

/// Sends `count` messages to each queue.
async fn send_to_all(group: &Group, count: usize) {
    for _ in 0..count {
        for at in 0..TOPICS {
            let name = topic_name(at);
            let messages: Vec<Message<'_>> = (0..QUEUES).map(|queue_id| message(&name, queue_id, "x")).collect();
            group.pack(&messages).await;
        }
    }
}

/// Every message of every queue, and where each queue begins.
async fn contents(group: &Group) -> Vec<(u64, Vec<bytes::Bytes>)> {
    group.dispatched().await;
    let mut all = Vec::new();
    for at in 0..TOPICS {
        for queue_id in 0..QUEUES as u32 {
            let (min, max) = (
                group.store().min_offset(&topic_name(at), queue_id),
                group.store().max_offset(&topic_name(at), queue_id),
            );
            let message = |offset| group.store().message(&topic_name(at), queue_id, offset).unwrap().unwrap();
            all.push((min, (min..max).map(message).collect()));
        }
    }
    all
}

/// The queue files of a group.
fn queue_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![dir.join("consumequeue")];
    while let Some(dir) = left.pop() {
        for item in fs::read_dir(dir).unwrap().map(|item| item.unwrap()) {
            if item.file_type().unwrap().is_dir() {
                left.push(item.path());
            } else if !item.file_name().to_string_lossy().starts_with(".marks.") {
                found.push(item.path());
            }
        }
    }
    found
}

#[tokio::test]
async fn a_checkpoint_of_many_queues_writes_no_queue_file_and_a_start_goes_on_from_it() {
    let mut group = many_queues(|_| {}).await;
    send_to_all(&group, 3).await;
    group.checkpoint().await;
    assert_eq!(queue_files(group.path()), Vec::<PathBuf>::new());
    let checkpoint = group.state().applied_index();
    send_to_all(&group, 1).await;
    let before = contents(&group).await;
    for _ in 0..2 {
        group.kill();
        group.start().await;
        assert_eq!(group.started_behind(), checkpoint, "nothing is built again");
        assert_eq!(contents(&group).await, before);
    }
    // A queue that has got enough is written, entries from before the start included.
    for _ in 0..WRITTEN_AT_ONCE {
        group.send(message(&topic_name(5), 2, "x")).await;
    }
    let before = contents(&group).await;
    assert!(!queue_files(group.path()).is_empty());
    group.checkpoint().await;
    let checkpoint = group.state().applied_index();
    group.kill();
    group.start().await;
    assert_eq!(group.started_behind(), checkpoint);
    assert_eq!(contents(&group).await, before);
    // A stop leaves everything in the files.
    group.stop().await;
    let dirs: std::collections::BTreeSet<_> =
        queue_files(group.path()).into_iter().map(|file| file.parent().unwrap().to_owned()).collect();
    assert_eq!(dirs.len(), TOPICS * QUEUES as usize);
    group.start().await;
    assert_eq!(contents(&group).await, before);
}

#[tokio::test]
async fn memory_for_entries_that_a_start_found_is_bounded_too() {
    let mut group = many_queues(|options| options.cached_entries_max = 1000).await;
    send_to_all(&group, 3).await;
    group.checkpoint().await;
    group.kill();
    group.start().await;
    assert!(group.store().is_hot(&topic_name(7), 3, 0));
    let before = contents(&group).await;
    for _ in 0..50 {
        group.send(message(&topic_name(0), 0, "x")).await;
    }
    group.dispatched().await;
    assert!(!group.store().is_hot(&topic_name(7), 3, 0), "an idle queue has given its memory back");
    assert_eq!(contents(&group).await[1..], before[1..]);
}

#[tokio::test]
async fn retention_passes_entries_that_are_in_no_file_yet() {
    let mut group = many_queues(|_| {}).await;
    send_to_all(&group, 3).await;
    group.checkpoint().await;
    let chosen = group.state().applied_index().unwrap();
    send_to_all(&group, 2).await;
    group.dispatched().await;
    group.drop_through(chosen);
    assert_eq!((group.store().min_offset(&topic_name(9), 1), group.store().max_offset(&topic_name(9), 1)), (3, 5));
    let before = contents(&group).await;
    group.checkpoint().await;
    let last = group.state().applied_index();
    group.kill();
    group.start().await;
    assert_eq!(group.started_behind(), last);
    assert_eq!(contents(&group).await, before);
    send_to_all(&group, 1).await;
    group.stop().await;
    group.start().await;
    assert!(group.store().message(&topic_name(9), 1, 5).unwrap().is_some());
}

/// What a comparison of the stopped group with its log finds, and how many queue entries it has seen.
fn checked(group: &Group) -> (Vec<DerivedFinding>, u64) {
    let mut check = DerivedCheck::open(group.path(), CLUSTER);
    for entry in group.log.entries(0) {
        let id = LogId::new(entry.log_term(), entry.log_index());
        check.entry(id, entry.payload_position().unwrap(), &entry.body.encode().1);
    }
    let count = check.checked_entries();
    (check.finish(true), count)
}

#[tokio::test]
async fn a_stopped_replica_is_checked_with_what_is_in_no_file_yet() {
    let usual = StoreOptions::new("", CLUSTER, 1 << 30);
    let mut group = many_queues(|options| {
        options.entries_per_queue_file = usual.entries_per_queue_file;
        options.index_sizes = usual.index_sizes;
    })
    .await;
    send_to_all(&group, 3).await;
    for _ in 0..WRITTEN_AT_ONCE {
        group.send(message(&topic_name(1), 1, "busy")).await;
    }
    group.checkpoint().await;
    let index = group.state().applied_index().unwrap();
    send_to_all(&group, 1).await;
    group.kill();
    let in_checkpoint = (3 * TOPICS * QUEUES as usize + WRITTEN_AT_ONCE) as u64;
    assert_eq!(checked(&group), (Vec::new(), in_checkpoint));
    let marks = group.path().join(format!("consumequeue/.marks.{index:020}"));
    fs::remove_file(marks).unwrap();
    let (findings, _) = checked(&group);
    assert_eq!(findings.len(), TOPICS * QUEUES as usize, "{findings:?}");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for item in fs::read_dir(from).unwrap().map(|item| item.unwrap()) {
        if item.file_type().unwrap().is_dir() {
            copy(&item.path(), &to.join(item.file_name()));
        } else {
            fs::copy(item.path(), to.join(item.file_name())).unwrap();
        }
    }
}

/// What is done to files, and its name.
type Harm<'a> = (&'a str, &'a dyn Fn(&Path));

/// What a checkpoint writes, in the order in which it becomes durable.
const STEPS: [&str; 4] = ["queue files", "index", "marks", "checkpoint"];

/// Replaces what `step` wrote in `dir`, as of `from`.
fn redo(step: &str, from: &Path, dir: &Path) {
    match step {
        "index" => copy(&from.join("index"), &dir.join("index")),
        "checkpoint" => copy(&from.join("checkpoints"), &dir.join("checkpoints")),
        _ => {
            for item in fs::read_dir(from.join("consumequeue")).unwrap().map(|item| item.unwrap()) {
                let to = dir.join("consumequeue").join(item.file_name());
                match (step, item.file_type().unwrap().is_dir()) {
                    ("queue files", true) => copy(&item.path(), &to),
                    ("marks", false) => {
                        fs::copy(item.path(), to).unwrap();
                    }
                    _ => {}
                }
            }
        }
    }
}

#[tokio::test]
async fn whatever_a_power_cut_leaves_of_a_checkpoint_every_message_is_found_and_nothing_is_built_again() {
    let mut group = many_queues(|_| {}).await;
    send_to_all(&group, 2).await;
    for _ in 0..WRITTEN_AT_ONCE {
        group.send(message(&topic_name(1), 1, "busy")).await;
    }
    group.checkpoint().await;
    let first = group.state().applied_index();
    let (at_first, at_second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    copy(group.path(), at_first.path());
    send_to_all(&group, 2).await;
    for _ in 0..2 * WRITTEN_AT_ONCE {
        group.send(message(&topic_name(2), 2, "busy")).await;
    }
    group.checkpoint().await;
    let second = group.state().applied_index();
    copy(group.path(), at_second.path());
    send_to_all(&group, 1).await;
    let before = contents(&group).await;

    let mut check = async |what: &str, behind: Option<u64>, change: &dyn Fn(&Path)| {
        group.kill();
        for part in ["consumequeue", "index", "checkpoints"] {
            fs::remove_dir_all(group.path().join(part)).unwrap();
        }
        copy(at_first.path(), group.path());
        change(group.path());
        group.start().await;
        assert_eq!(group.started_behind(), behind, "{what}");
        assert_eq!(contents(&group).await, before, "{what}");
    };
    for done in 0..=STEPS.len() {
        let behind = if done == STEPS.len() { second } else { first };
        let steps = |dir: &Path| STEPS[..done].iter().for_each(|step| redo(step, at_second.path(), dir));
        check(&format!("steps {:?}", &STEPS[..done]), behind, &steps).await;
    }
    let newest_mark = |dir: &Path| dir.join(format!("consumequeue/.marks.{:020}", second.unwrap()));
    let all = |dir: &Path| STEPS.iter().for_each(|step| redo(step, at_second.path(), dir));
    // A mark that was damaged later: the one before it counts.
    let harms: [Harm<'_>; 3] = [
        ("mark gone", &|dir| fs::remove_file(newest_mark(dir)).unwrap()),
        ("mark cut", &|dir| fs::OpenOptions::new().write(true).open(newest_mark(dir)).unwrap().set_len(5000).unwrap()),
        ("a bit of an entry", &|dir| {
            let mut bytes = fs::read(newest_mark(dir)).unwrap();
            let at = bytes.len() / 2;
            bytes[at] ^= 16;
            fs::write(newest_mark(dir), bytes).unwrap();
        }),
    ];
    for (what, harm) in harms {
        let harmed = |dir: &Path| {
            all(dir);
            harm(dir);
        };
        check(what, first, &harmed).await;
    }
}
