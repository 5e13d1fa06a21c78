//! Retention of whole replicas: Raft, a log on disk, derived files.

use std::collections::BTreeMap;
use std::path::Path;

use futures::future::BoxFuture;
use raft_store::Member;

use super::*;
use crate::peer::frame::{Envelope, Frame};
use crate::peer::service::{Answer, GroupService};
use crate::peer::stream::PeerStream;
use crate::peer::{LogMark, PeerError, VoteMark};
use crate::raft::tests::cluster::{GROUP, member};
use crate::raft::{Role, Timing};
use crate::state_machine::replica_tests::{CALM, Replica, bind, create_topic, soon, start};
use crate::store::{PullStatus, TimeBoundary};

const HOUR: i64 = 3_600_000;
const BEGIN: i64 = 1_700_000_000_000;
const TIME: Duration = Duration::from_secs(72 * 3600);

fn retention(replica: &Replica) -> Arc<GroupRetention> {
    let (raft, control, store) = (replica.raft.clone(), replica.control.clone(), replica.store.clone());
    let state = replica.state.clone();
    Arc::new(GroupRetention::new("broker-a".to_owned(), raft, replica.view.clone(), control, store, state))
}

/// Segment files, by name.
fn segments(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    std::fs::read_dir(dir.join("log"))
        .unwrap()
        .map(|file| file.unwrap())
        .filter(|file| file.file_name().len() == 20)
        .map(|file| (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap()))
        .collect()
}

/// Everything sent so far can be read, and each full segment has its checkpoint.
async fn settle(replica: &Replica) {
    replica.applied(replica.state.applied_index().unwrap()).await;
    replica.control.checkpoint().await.unwrap();
}

/// Sends a thousand messages, which are about a segment, in each of some hours. Nothing has to hurry, so that each
/// replica has a checkpoint of each segment.
async fn send_hours(leader: &Replica, others: &[&Replica], hours: std::ops::Range<i64>) {
    for hour in hours {
        leader.send_at(1000, BEGIN + hour * HOUR).await;
        let applied = leader.state.applied_index().unwrap();
        for replica in std::iter::once(&leader).chain(others) {
            replica.applied(applied).await;
            settle(replica).await;
        }
    }
}

fn sealed_count(replica: &Replica) -> usize {
    replica.view.sealed_segments().len()
}

async fn single(dir: &Path) -> (Replica, std::net::SocketAddr, BTreeMap<u64, Member>) {
    let listener = bind().await;
    let address = listener.local_addr().unwrap();
    let members = BTreeMap::from([(1, member(1, address))]);
    let replica = start(dir, 1, &members, listener, Timing::default()).await;
    replica.raft.initialize().await.unwrap();
    replica.lead().await;
    create_topic(&replica).await;
    (replica, address, members)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_segments_go_and_clients_see_where_queues_start_now() {
    let dir = tempfile::tempdir().unwrap();
    let (replica, address, members) = single(dir.path()).await;
    send_hours(&replica, &[], 0..6).await;
    let retention = retention(&replica);
    let survey = retention.survey().await.unwrap();
    let sealed = sealed_count(&replica);
    assert!(sealed >= 5, "{sealed}");
    assert_eq!(retention.figures().earliest_ms, Some(BEGIN));
    assert_eq!(survey.by_age(BEGIN + 71 * HOUR, TIME, Pressure::None), None);

    let choice = survey.by_age(BEGIN + 74 * HOUR, TIME, Pressure::None).unwrap();
    assert!(choice.segments >= 1 && choice.segments < sealed, "{choice:?}");
    assert!(retention.carry_out(choice, Pressure::None).await);
    soon("unlink", async {
        while dir.path().join("log/00000000000000000000").exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    retention.survey().await.unwrap();
    let figures = retention.figures();
    assert_eq!(figures.dropped, choice.segments as u64);
    assert_eq!(figures.extent.segments as usize, sealed + 1 - choice.segments);
    assert_eq!(figures.extent.first.map(|first| first.get()), Some(choice.through + 1));

    // What clients see.
    let store = &replica.store;
    let min = store.min_offset("A", 0);
    assert!((1000..3000).contains(&min), "{min}");
    assert_eq!(store.physical_start().unwrap(), figures.extent.start.get());
    let first_time = store.earliest_store_time("A", 0).unwrap().unwrap();
    assert!(first_time > BEGIN, "{first_time}");
    assert_eq!(figures.earliest_ms, Some(first_time));
    let below = store.get_messages("A", 0, min as i64 - 1, 32, 1 << 20, &|_| true).unwrap();
    assert_eq!((below.status, below.next_begin_offset, below.min_offset), (PullStatus::OffsetTooSmall, min, min));
    let at = store.get_messages("A", 0, min as i64, 32, 1 << 20, &|_| true).unwrap();
    assert_eq!(at.status, PullStatus::Found);
    for boundary in [TimeBoundary::Lower, TimeBoundary::Upper] {
        assert_eq!(store.offset_by_time("A", 0, BEGIN, boundary).unwrap(), min);
    }
    assert_eq!(store.offset_by_time("A", 0, BEGIN + 4 * HOUR, TimeBoundary::Lower).unwrap(), 4000);
    assert_eq!(store.message("A", 0, min - 1).unwrap(), None);
    // Queue files hold a thousand entries here.
    assert!(!dir.path().join("consumequeue/A/0/00000000000000000000").exists());
    assert!(dir.path().join(format!("consumequeue/A/0/{:020}", min / 1000 * 20_000)).exists());
    replica.check_queue();

    // A start finds the same, whatever was lost.
    drop(retention);
    replica.stop(false).await;
    std::fs::remove_dir_all(dir.path().join("consumequeue")).unwrap();
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let replica = start(dir.path(), 1, &members, listener, Timing::default()).await;
    replica.lead().await;
    settle(&replica).await;
    assert_eq!((replica.store.min_offset("A", 0), replica.store.max_offset("A", 0)), (min, 6000));
    replica.check_queue();
    replica.stop(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_a_queue_may_go_and_it_goes_on_with_its_next_offset() {
    let dir = tempfile::tempdir().unwrap();
    let (replica, ..) = single(dir.path()).await;
    replica.send_at(1000, BEGIN).await;
    // Other messages fill the segments behind.
    let other = vec![crate::state_machine::TopicConfig::new("B".parse().unwrap(), 1, 6)];
    let put = crate::state_machine::command::PutMode::CreateOnly;
    replica.command(crate::state_machine::Command::PutTopics { topics: other, mode: put, stamped_ms: 1 }).await;
    let body = "y".repeat(1000);
    for _ in 0..150 {
        let message = crate::state_machine::testing::message("B", 0, &body).stored_at(BEGIN + HOUR);
        replica.raft.propose(crate::state_machine::testing::pack(&[message; 20])).await.unwrap();
    }
    settle(&replica).await;
    let retention = retention(&replica);
    let choice = retention.survey().await.unwrap().by_age(BEGIN + 100 * HOUR, TIME, Pressure::None).unwrap();
    assert!(retention.carry_out(choice, Pressure::None).await);
    assert_eq!((replica.store.min_offset("A", 0), replica.store.max_offset("A", 0)), (1000, 1000));
    assert_eq!(replica.store.earliest_store_time("A", 0).unwrap(), None);
    assert_eq!(replica.store.offset_by_time("A", 0, BEGIN, TimeBoundary::Lower).unwrap(), 1000);
    let pull = |from| replica.store.get_messages("A", 0, from, 32, 1 << 20, &|_| true).unwrap();
    assert_eq!((pull(0).status, pull(0).next_begin_offset), (PullStatus::OffsetTooSmall, 1000));
    assert_eq!(pull(1000).status, PullStatus::OffsetOverflowOne);
    assert_eq!(replica.send_at(20, BEGIN + 2 * HOUR).await, 1019);
    settle(&replica).await;
    assert_eq!(pull(1000).messages, 20);
    replica.check_queue();
    replica.stop(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_keeps_less_than_the_log_begins_later_on_every_replica() {
    let dirs: Vec<tempfile::TempDir> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let (mut replicas, leader, members, late) = two_of_three(&dirs, CALM).await;
    replicas.push(start(dirs[2].path(), 3, &members, late, CALM).await);
    let put = |time: &str| {
        let mut topic = crate::state_machine::TopicConfig::new("A".parse().unwrap(), 1, 6);
        topic.attributes.insert("reserve.time".to_owned(), time.to_owned());
        let mode = crate::state_machine::command::PutMode::Replace;
        crate::state_machine::Command::PutTopics { topics: vec![topic], mode, stamped_ms: 1 }
    };
    for hour in 0..4 {
        replicas[leader].send_at(100, BEGIN + hour * HOUR).await;
    }
    let retentions: Vec<_> = replicas.iter().map(retention).collect();
    let look = async |now_ms| {
        for retention in &retentions {
            retention.hide_expired(now_ms).await.unwrap();
        }
        let applied = replicas[leader].state.applied_index().unwrap();
        let mut starts = Vec::new();
        for replica in &replicas {
            replica.applied(applied).await;
            starts.push(replica.store.min_offset("A", 0));
        }
        starts.dedup();
        (starts, applied)
    };
    let (starts, nothing) = look(BEGIN + 100 * HOUR).await;
    let first = replicas[leader].store.queue_entries("A", 0, 0, 1).unwrap()[0].physical_offset;
    assert!(replicas[leader].store.message_at(first).unwrap().is_some());
    assert_eq!(starts, [0], "the topic has no time of its own");
    replicas[leader].command(put("2")).await;
    let (starts, told) = look(BEGIN + 3 * HOUR).await;
    assert_eq!((starts, told), (vec![100], nothing + 2));
    let (starts, again) = look(BEGIN + 3 * HOUR).await;
    assert_eq!((starts, again), (vec![100], told), "what is known takes no entry");

    for replica in &replicas {
        let store = &replica.store;
        let below = store.get_messages("A", 0, 99, 32, 1 << 20, &|_| true).unwrap();
        assert_eq!((below.status, below.next_begin_offset), (PullStatus::OffsetTooSmall, 100));
        assert_eq!(store.get_messages("A", 0, 100, 32, 1 << 20, &|_| true).unwrap().status, PullStatus::Found);
        assert_eq!(store.message("A", 0, 99).unwrap(), None);
        assert_eq!(store.earliest_store_time("A", 0).unwrap(), Some(BEGIN + HOUR));
        assert_eq!(store.offset_by_time("A", 0, BEGIN, TimeBoundary::Lower).unwrap(), 100);
        assert_eq!(store.message_at(first).unwrap(), None);
        let held = replica.view.record_containing(LogPosition::new(first)).unwrap();
        assert!(held.is_some(), "what is hidden is still in the log");
        replica.check_queue();
    }

    // Longer again, or a clock that was set back: what is hidden stays so.
    replicas[leader].command(put("-1")).await;
    assert_eq!(look(BEGIN + 100 * HOUR).await.0, [100]);
    replicas[leader].command(put("48h")).await;
    assert_eq!(look(BEGIN).await.0, [100]);
    // All of it.
    assert_eq!(look(BEGIN + 100 * HOUR).await.0, [400]);
    assert_eq!(replicas[leader].send_at(20, BEGIN + 101 * HOUR).await, 419);
    assert_eq!(look(BEGIN + 102 * HOUR).await.0, [400]);
    for replica in replicas {
        replica.stop(true).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_message_stays_until_it_is_delivered() {
    use crate::delay_levels::{SCHEDULE_TOPIC, mark_of};
    use crate::state_machine::command::{ProgressMove, PutMode};
    use crate::state_machine::testing::{message, pack};
    use crate::state_machine::{Command, TopicConfig};

    let dir = tempfile::tempdir().unwrap();
    let (replica, ..) = single(dir.path()).await;
    let topics = vec![TopicConfig::new(SCHEDULE_TOPIC.parse().unwrap(), 18, 6)];
    replica.command(Command::PutTopics { topics, mode: PutMode::CreateOnly, stamped_ms: 1 }).await;
    send_hours(&replica, &[], 0..2).await;
    let waiting = message(SCHEDULE_TOPIC, 17, "later").stored_at(BEGIN + 2 * HOUR);
    replica.raft.propose(pack(&[waiting])).await.unwrap();
    send_hours(&replica, &[], 2..5).await;
    let retention = retention(&replica);
    let far = BEGIN + 1000 * HOUR;
    let before = retention.survey().await.unwrap().by_age(far, TIME, Pressure::Forced).unwrap();
    assert!(before.segments < sealed_count(&replica), "{before:?}");
    assert!(retention.carry_out(before, Pressure::Forced).await);
    assert_eq!(retention.survey().await.unwrap().by_age(far, TIME, Pressure::Forced), None);
    assert!(replica.store.message(SCHEDULE_TOPIC, 17, 0).unwrap().is_some());

    let moves = vec![ProgressMove { mark: mark_of(18), from: 0, to: 1 }];
    replica.command(Command::Append { moves, stamped_ms: 1 }).await;
    assert!(retention.survey().await.unwrap().by_age(far, TIME, Pressure::None).is_some());
    replica.stop(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_message_stays_until_its_transaction_ends() {
    use crate::state_machine::command::PutMode;
    use crate::state_machine::half::{HALF_TOPIC, HalfEnd, HalfPlace};
    use crate::state_machine::testing::{message, pack};
    use crate::state_machine::{Command, TopicConfig};

    let dir = tempfile::tempdir().unwrap();
    let (replica, ..) = single(dir.path()).await;
    let topics = vec![TopicConfig::new(HALF_TOPIC.parse().unwrap(), 1, 6)];
    replica.command(Command::PutTopics { topics, mode: PutMode::CreateOnly, stamped_ms: 1 }).await;
    send_hours(&replica, &[], 0..2).await;
    let half = message(HALF_TOPIC, 0, "half").properties("PGROUP\u{1}p\u{2}").stored_at(BEGIN + 2 * HOUR);
    replica.raft.propose(pack(&[half])).await.unwrap();
    send_hours(&replica, &[], 2..5).await;
    let retention = retention(&replica);
    let far = BEGIN + 1000 * HOUR;
    let before = retention.survey().await.unwrap().by_age(far, TIME, Pressure::Forced).unwrap();
    assert!(retention.carry_out(before, Pressure::Forced).await);
    assert_eq!(retention.survey().await.unwrap().by_age(far, TIME, Pressure::Forced), None);
    let physical_offset = replica.state.half(0).unwrap().physical_offset;
    assert!(replica.store.message_at(physical_offset).unwrap().is_some());

    let halves = vec![HalfPlace { queue_offset: 0, physical_offset }];
    replica.command(Command::EndHalves { halves, end: HalfEnd::Rollback, stamped_ms: 1 }).await;
    assert!(retention.survey().await.unwrap().by_age(far, TIME, Pressure::None).is_some());
    replica.stop(true).await;
}

/// Moves a timer as a leader does, once, if it is told to.
struct MovesTimer {
    raft: GroupRaft,
    state: StateReader,
    moves: std::sync::atomic::AtomicBool,
}

impl Carrier for MovesTimer {
    fn carry(&self, below: u64) -> BoxFuture<'_, io::Result<u64>> {
        use crate::state_machine::testing::{message, pack};
        use crate::state_machine::timer::TIMER_TOPIC;

        Box::pin(async move {
            let timers = self.state.timers_due(i64::MAX, 1);
            assert!(timers[0].physical_offset < below, "only what is in the way moves");
            if self.moves.swap(true, Ordering::Relaxed) {
                let copy =
                    message(TIMER_TOPIC, 0, "later").properties("TIMER_OUT_MS\u{1}5\u{2}").stored_at(BEGIN + 5 * HOUR);
                let command = crate::state_machine::Command::CarryTimers { timers, stamped_ms: 1 };
                self.raft.propose(command.encode_with(&pack(&[copy]))).await.unwrap();
                Ok(1)
            } else {
                Err(io::Error::other("not now"))
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_has_timers_moved_out_of_the_way_and_drops_what_held_them() {
    use crate::state_machine::testing::{message, pack};
    use crate::state_machine::timer::TIMER_TOPIC;

    let dir = tempfile::tempdir().unwrap();
    let (replica, address, members) = single(dir.path()).await;
    send_hours(&replica, &[], 0..2).await;
    let timer = message(TIMER_TOPIC, 0, "later").properties("TIMER_OUT_MS\u{1}5\u{2}").stored_at(BEGIN + 2 * HOUR);
    replica.raft.propose(pack(&[timer])).await.unwrap();
    send_hours(&replica, &[], 2..5).await;
    let far = BEGIN + 1000 * HOUR;
    let retention = retention(&replica);
    // Nobody moves it: it stays, and what lies behind it.
    let before = retention.survey().await.unwrap().by_age(far, TIME, Pressure::Forced).unwrap();
    assert!(before.segments < sealed_count(&replica), "{before:?}");
    let carrier = MovesTimer { raft: replica.raft.clone(), state: replica.state.clone(), moves: false.into() };
    retention.carry_by(Arc::new(carrier));
    let all = retention.survey().await.unwrap().by_age(far, TIME, Pressure::Forced).unwrap();
    assert_eq!(all.segments, sealed_count(&replica));
    // What cannot be moved is not dropped.
    assert!(!retention.carry_out(all, Pressure::Forced).await);
    let place = replica.state.timer_places(1)[0];
    assert!(replica.store.message_at(place).unwrap().is_some());
    assert!(retention.carry_out(all, Pressure::Forced).await);
    assert_eq!(replica.view.watermarks().purged.map(|id| id.index.get()), Some(all.through));
    let moved = replica.state.timers_due(i64::MAX, 9);
    assert_eq!(moved.len(), 1);
    assert!(moved[0].physical_offset > place && moved[0].due_ms == 5, "{moved:?}");

    // The snapshot knows the timer at its old place, and the log behind it moves it: a start finds the same.
    drop(retention);
    replica.stop(false).await;
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let replica = start(dir.path(), 1, &members, listener, Timing::default()).await;
    replica.lead().await;
    settle(&replica).await;
    assert_eq!(replica.state.timers_due(i64::MAX, 9), moved);
    let bytes = replica.store.message_at(moved[0].physical_offset).unwrap().unwrap();
    assert_eq!(protocol::message::RecordView::parse(&bytes).unwrap().body(), b"later");
    replica.stop(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_keeps_all_it_has_until_it_knows_where_a_message_waits() {
    use crate::state_machine::testing::{message, pack};
    use crate::state_machine::timer::TIMER_TOPIC;

    let dir = tempfile::tempdir().unwrap();
    let (replica, ..) = single(dir.path()).await;
    let timer = message(TIMER_TOPIC, 0, "later").properties("TIMER_OUT_MS\u{1}5\u{2}").stored_at(BEGIN);
    replica.raft.propose(pack(&[timer])).await.unwrap();
    send_hours(&replica, &[], 0..3).await;
    let follows = retention(&replica);
    let leads = retention(&replica);
    leads.carry_by(Arc::new(MovesTimer {
        raft: replica.raft.clone(),
        state: replica.state.clone(),
        moves: true.into(),
    }));
    let far = BEGIN + 1000 * HOUR;
    let choice = leads.survey().await.unwrap().by_age(far, TIME, Pressure::Forced).unwrap();
    // The log begins behind the message, which is still known at its old place: as on a replica that began behind a
    // snapshot and has not caught up.
    assert!(leads.drop_chosen(choice, Pressure::Forced).await);
    send_hours(&replica, &[], 3..6).await;
    let more = leads.survey().await.unwrap().by_age(far, TIME, Pressure::Forced).unwrap();
    assert_eq!(follows.survey().await.unwrap().by_age(far, TIME, Pressure::Forced), None);
    assert!(!follows.carry_out(more, Pressure::Forced).await);
    // Once it has applied the move, there is nothing to wait for.
    leads.carrier().unwrap().carry(u64::MAX).await.unwrap();
    settle(&replica).await;
    assert!(follows.carry_out(more, Pressure::Forced).await);
    replica.stop(true).await;
}

/// Is not to be asked.
struct MovesNothing;

impl Carrier for MovesNothing {
    fn carry(&self, below: u64) -> BoxFuture<'_, io::Result<u64>> {
        panic!("all below {below} is to be moved");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filling_disk_leaves_alone_what_is_full_of_messages_that_wait() {
    use crate::state_machine::testing::{message, pack};
    use crate::state_machine::timer::TIMER_TOPIC;

    let dir = tempfile::tempdir().unwrap();
    let (replica, ..) = single(dir.path()).await;
    let body = "y".repeat(1000);
    for _ in 0..150 {
        let timer = message(TIMER_TOPIC, 0, &body).properties("TIMER_OUT_MS\u{1}5\u{2}").stored_at(BEGIN);
        replica.raft.propose(pack(&[timer; 20])).await.unwrap();
    }
    settle(&replica).await;
    let retention = retention(&replica);
    retention.carry_by(Arc::new(MovesNothing));
    let (choice, _) = retention.survey().await.unwrap().by_disk().unwrap();
    assert!(!retention.carry_out(choice, Pressure::Forced).await);
    assert_eq!(replica.state.timer_count(), 3_000);
    replica.stop(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_checkpoint_keeps_its_segments_and_does_not_stop_retention() {
    let dir = tempfile::tempdir().unwrap();
    let (replica, ..) = single(dir.path()).await;
    send_hours(&replica, &[], 0..5).await;
    let retention = retention(&replica);
    let now = BEGIN + 76 * HOUR;
    let wanted = retention.survey().await.unwrap().by_age(now, TIME, Pressure::None).unwrap();
    let path = dir.path().join(format!("checkpoints/{:020}", wanted.through));
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert!(!retention.carry_out(wanted, Pressure::None).await);
    assert_eq!(replica.store.min_offset("A", 0), 0);
    // The next look takes the one before.
    let next = retention.survey().await.unwrap().by_age(now, TIME, Pressure::None).unwrap();
    assert_eq!(next.segments, wanted.segments - 1);
    assert!(retention.carry_out(next, Pressure::None).await);
    replica.check_queue();
    replica.stop(true).await;
}

/// Three replicas of which the third has not started, and one that leads.
async fn two_of_three(
    dirs: &[tempfile::TempDir],
    timing: Timing,
) -> (Vec<Replica>, usize, BTreeMap<u64, Member>, tokio::net::TcpListener) {
    let mut listeners = Vec::new();
    let mut members = BTreeMap::new();
    for node_id in 1..=3 {
        let listener = bind().await;
        members.insert(node_id, member(node_id, listener.local_addr().unwrap()));
        listeners.push(listener);
    }
    let late = listeners.pop().unwrap();
    let second = start(dirs[1].path(), 2, &members, listeners.pop().unwrap(), timing).await;
    let first = start(dirs[0].path(), 1, &members, listeners.pop().unwrap(), timing).await;
    first.raft.initialize().await.unwrap();
    let (mut first_role, mut second_role) = (first.raft.role(), second.raft.role());
    let leader = tokio::select! {
        role = first_role.wait_for(Role::is_ready_leader) => role.map(|_| 0).unwrap(),
        role = second_role.wait_for(Role::is_ready_leader) => role.map(|_| 1).unwrap(),
    };
    let replicas = vec![first, second];
    create_topic(&replicas[leader]).await;
    (replicas, leader, members, late)
}

/// Drops what is older than `TIME` at `now` on every replica, whoever lacks it.
async fn drop_on(replicas: &[&Replica], now: i64) -> u64 {
    let mut through = Vec::new();
    for replica in replicas {
        settle(replica).await;
        let retention = retention(replica);
        let choice = retention.survey().await.unwrap().by_age(now, TIME, Pressure::Forced).unwrap();
        soon("purge", async { while !retention.carry_out(choice, Pressure::Forced).await {} }).await;
        through.push(choice.through);
    }
    through.dedup();
    assert_eq!(through.len(), 1, "replicas drop the same by themselves: {through:?}");
    through[0]
}

/// Compares the segments that both replicas hold. One of them may have some entries more at its end.
fn check_equal_segments(of: &Path, and: &Path) {
    let (left, right) = (segments(of), segments(and));
    let used = |bytes: &[u8]| bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let newest_full = left.keys().rev().nth(2).unwrap();
    let common: Vec<&String> = left.keys().filter(|name| right.contains_key(*name)).collect();
    assert!(common.iter().filter(|name| **name <= newest_full).count() >= 2, "{:?} {:?}", left.keys(), right.keys());
    for name in common {
        let same = if name <= newest_full { usize::MAX } else { used(&left[name]).min(used(&right[name])) };
        let part = |bytes: &'_ Vec<u8>| bytes.get(..same.min(bytes.len())).map(<[u8]>::to_vec);
        assert!(part(&left[name]) == part(&right[name]), "segment {name} differs");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_replica_under_a_new_identity_gets_snapshot_and_log_and_equal_segments() {
    let dirs: Vec<tempfile::TempDir> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let (mut replicas, leader, mut members, late) = two_of_three(&dirs, CALM).await;
    send_hours(&replicas[leader], &[&replicas[1 - leader]], 0..5).await;
    let applied = replicas[leader].state.applied_index().unwrap();
    drop_on(&replicas.iter().collect::<Vec<_>>(), BEGIN + 74 * HOUR).await;
    let min = replicas[leader].store.min_offset("A", 0);
    assert!(min > 1000);

    // Node 3 never came; what comes in its place is node 4, with an empty disk.
    drop(late);
    let listener = bind().await;
    let newcomer = member(4, listener.local_addr().unwrap());
    members.insert(4, newcomer.clone());
    let fourth = start(dirs[3].path(), 4, &members, listener, CALM).await;
    replicas[leader].raft.add_learner(4, newcomer).await.unwrap();
    let voters = replicas[leader].raft.metrics().voters;
    assert_eq!(voters, vec![BTreeSet::from([1, 2, 3])], "a learner does not vote");
    fourth.applied(applied).await;
    assert_eq!((fourth.store.min_offset("A", 0), fourth.store.max_offset("A", 0)), (min, 5000));
    fourth.check_queue();
    replicas[leader].send_at(1500, BEGIN + 6 * HOUR).await;
    let applied = replicas[leader].state.applied_index().unwrap();
    fourth.applied(applied).await;
    fourth.check_queue();
    let changed = replicas[leader].raft.change_voters(BTreeSet::from([1, 2, 4])).await;
    changed.unwrap();
    // The change is an entry too.
    let applied = replicas[leader].state.applied_index().unwrap();
    replicas.push(fourth);
    for replica in &replicas {
        replica.applied(applied).await;
    }
    for replica in replicas {
        replica.stop(true).await;
    }
    check_equal_segments(dirs[0].path(), dirs[1].path());
    check_equal_segments(dirs[0].path(), dirs[3].path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_was_away_for_too_long_comes_back_by_snapshot() {
    let dirs: Vec<tempfile::TempDir> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let (mut replicas, leader, members, late) = two_of_three(&dirs, CALM).await;
    let third = start(dirs[2].path(), 3, &members, late, CALM).await;
    replicas[leader].send_at(1500, BEGIN).await;
    third.applied(replicas[leader].state.applied_index().unwrap()).await;
    third.stop(true).await;
    send_hours(&replicas[leader], &[&replicas[1 - leader]], 1..6).await;
    let applied = replicas[leader].state.applied_index().unwrap();
    drop_on(&replicas.iter().collect::<Vec<_>>(), BEGIN + 75 * HOUR).await;
    let min = replicas[leader].store.min_offset("A", 0);
    assert!(min > 1500, "what it lacks is gone: {min}");

    let listener = tokio::net::TcpListener::bind(&members[&3].raft_addr).await.unwrap();
    let third = start(dirs[2].path(), 3, &members, listener, CALM).await;
    third.applied(applied).await;
    assert_eq!((third.store.min_offset("A", 0), third.store.max_offset("A", 0)), (min, 6500));
    third.check_queue();
    replicas.push(third);
    for replica in replicas {
        replica.stop(true).await;
    }
    check_equal_segments(dirs[leader].path(), dirs[2].path());
}

/// A replica that answers calls, heartbeats among them, and takes nothing from its append streams.
struct Stuck(Arc<dyn GroupService>);

impl GroupService for Stuck {
    fn marks(&self) -> (Option<LogMark>, Option<VoteMark>) {
        self.0.marks()
    }

    fn call(self: Arc<Self>, frame: Frame) -> BoxFuture<'static, Result<Answer, String>> {
        Arc::clone(&self.0).call(frame)
    }

    fn replace(self: Arc<Self>, node: String, frame: Frame) -> BoxFuture<'static, Result<Answer, String>> {
        Arc::clone(&self.0).replace(node, frame)
    }

    fn serve_append(self: Arc<Self>, stream: PeerStream, _: Envelope) -> BoxFuture<'static, PeerError> {
        Box::pin(async move {
            let _held = stream;
            std::future::pending().await
        })
    }

    fn peer_gone(self: Arc<Self>, node: &str) {
        Arc::clone(&self.0).peer_gone(node);
    }

    fn peer_back(self: Arc<Self>, node: &str) {
        Arc::clone(&self.0).peer_back(node);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_replica_in_good_health_lacks_is_dropped_only_from_a_filling_disk() {
    // A stream without answers is given up only after two of these, long after the test.
    let patient = Timing { election_timeout_max: Duration::from_secs(60), ..CALM };
    let dirs: Vec<tempfile::TempDir> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let (mut replicas, leader, members, late) = two_of_three(&dirs, patient).await;
    let third = start(dirs[2].path(), 3, &members, late, patient).await;
    send_hours(&replicas[leader], &[], 0..3).await;
    third.applied(replicas[leader].state.applied_index().unwrap()).await;
    let service = third.hub.hub().group(GROUP).unwrap().service().unwrap();
    third.hub.set_service(GROUP, Some(Arc::new(Stuck(Arc::clone(&service)))));
    replicas[leader].raft.break_stream(3);
    send_hours(&replicas[leader], &[], 3..8).await;
    let retention = retention(&replicas[leader]);
    let has = || {
        let others = replicas[leader].raft.others(SILENCE_MAX);
        others.into_iter().find(|other| other.node_id == 3).filter(|third| third.healthy).unwrap().matched.unwrap()
    };
    let now = BEGIN + 1000 * HOUR;
    let sealed = sealed_count(&replicas[leader]);
    for pressure in [Pressure::None, Pressure::Early] {
        let kept = retention.survey().await.unwrap().by_age(now, TIME, pressure).unwrap();
        assert!(kept.through <= has() && kept.segments < sealed, "{kept:?} of {sealed}, it has {}", has());
    }
    // The oldest segments go one by one, whoever lacks them.
    let mut gone = 0;
    while gone <= has() {
        let (choice, _) = retention.survey().await.unwrap().by_disk().unwrap();
        assert!(retention.carry_out(choice, Pressure::Forced).await, "a stuck replica held up a purge");
        gone = choice.through;
    }
    assert!(replicas[leader].store.min_offset("A", 0) > 3000);
    // Once it takes something again it comes back by snapshot.
    third.hub.set_service(GROUP, Some(service));
    replicas[leader].raft.break_stream(3);
    third.applied(replicas[leader].state.applied_index().unwrap()).await;
    assert_eq!(third.store.min_offset("A", 0), replicas[leader].store.min_offset("A", 0));
    third.check_queue();
    replicas.push(third);
    for replica in replicas {
        replica.stop(true).await;
    }
}
