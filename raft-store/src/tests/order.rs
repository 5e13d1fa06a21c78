//! What is on disk before what is answered.

use std::time::Duration;

use parking_lot::Mutex;

use super::damage::segment_name;
use super::*;
use crate::entry::BodyKind;
use crate::ids::LogIndex;
use crate::region::simulated::Event;
use crate::support::Appending;
use crate::view::Health;
use crate::writer::{Op, Write};

fn names(events: &[Event]) -> Vec<String> {
    let short = |name: &String| if name == FIRST { "log".to_owned() } else { name.clone() };
    events
        .iter()
        .map(|event| match event {
            Event::Write(name) => format!("write {}", short(name)),
            Event::Sync(name) => format!("sync {}", short(name)),
            Event::Create(name) => format!("create {}", short(name)),
            Event::Remove(name) => format!("remove {}", short(name)),
            Event::Close(name) => format!("close {}", short(name)),
        })
        // None in the background, at any time: hints, the next segment, and old ones.
        .filter(|text| !text.contains("progress") && !text.starts_with("create ") && !text.starts_with("close "))
        .collect()
}

#[test]
fn an_append_is_readable_at_once_and_answered_after_the_sync() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    store.append(vec![entry(1, 0, "zero")]).unwrap();
    disk.hold_syncs(FIRST);
    let mut one = store.start_append(vec![entry(1, 1, "one")]);
    disk.wait_for_held_sync();
    let mut two = store.start_append(vec![entry(1, 2, "two")]);
    // The disk has neither; readers have both.
    assert_eq!(3, store.entries(0, 9).unwrap().len());
    assert_eq!(Some(id(1, 2)), store.view.watermarks().last);
    assert!(one.try_recv().is_err());
    assert!(two.try_recv().is_err());
    disk.release_syncs();
    store.wait(one).unwrap();
    store.wait(two).unwrap();
}

#[test]
fn appends_that_wait_share_one_write_and_one_sync() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    store.append(vec![entry(1, 0, "zero")]).unwrap();
    disk.hold_syncs(FIRST);
    let first = store.start_append(vec![entry(1, 1, "one")]);
    disk.wait_for_held_sync();
    let rest: Vec<_> = (2..50).map(|index| store.start_append(vec![entry(1, index, "more")])).collect();
    disk.take_events();
    disk.release_syncs();
    store.wait(first).unwrap();
    for appending in rest {
        store.wait(appending).unwrap();
    }
    assert_eq!(vec!["sync log", "write log", "sync log"], names(&disk.take_events()));
}

#[test]
fn a_vote_is_saved_after_the_log_bytes_before_it_in_both_modes() {
    for flush in [FlushMode::Sync, FlushMode::ASYNC] {
        let disk = SimulatedDisk::new();
        let mut store = open(&disk, flush);
        store.append(vec![entry(1, 0, "zero")]).unwrap();
        disk.take_events();
        let appending = store.start_append(vec![entry(1, 1, "one")]);
        store.vote(2).unwrap();
        store.wait(appending).unwrap();
        let events = names(&disk.take_events());
        let at = |what: &str| events.iter().rposition(|event| event == what).unwrap();
        assert!(at("write log") < at("sync log"), "{flush:?} {events:?}");
        assert!(at("sync log") < at("write hard_state"), "{flush:?} {events:?}");
        assert_eq!("sync hard_state", events.last().unwrap());
    }
}

#[test]
fn a_vote_is_not_saved_if_the_log_before_it_cannot_be_synced() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::ASYNC);
    store.vote(1).unwrap();
    store.append(vec![entry(1, 0, "zero")]).unwrap();
    // Written and answered, not synced.
    store.append(vec![entry(1, 1, "one")]).unwrap();
    disk.fail_next_sync(FIRST);
    store.vote(2).unwrap_err();
    // The log could not be synced, so the vote must not be there.
    drop(store);
    let after = disk.after_kill();
    let reopened = open_at(&after, options(FlushMode::ASYNC), "boot").unwrap();
    assert_eq!(Some(1), reopened.recovered.vote.map(|vote| vote.term));
}

#[test]
fn asynchronous_appends_are_answered_once_written_but_membership_once_synced() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::ASYNC);
    store.append(vec![entry(1, 0, "zero")]).unwrap();
    disk.hold_syncs(FIRST);
    store.append(vec![entry(1, 1, "one")]).unwrap();
    let membership = crate::LogEntry::new(id(1, 2), crate::Body::Membership(support::membership(&[1, 2, 3])));
    let mut appending = store.start_append(vec![membership]);
    disk.wait_for_held_sync();
    assert!(appending.try_recv().is_err());
    disk.release_syncs();
    store.wait(appending).unwrap();
}

#[test]
fn payloads_that_insist_are_synced_in_asynchronous_mode_too() {
    let disk = SimulatedDisk::new();
    let mut options = options(FlushMode::ASYNC);
    options.must_sync = |payload| payload.first() == Some(&b'!');
    let mut store = open_at(&disk, options, "boot").unwrap();
    store.append(vec![entry(1, 0, "zero")]).unwrap();
    disk.take_events();
    store.append(vec![entry(1, 1, "!one")]).unwrap();
    assert_eq!(vec!["write log", "sync log"], names(&disk.take_events()));
}

#[test]
fn the_first_failed_sync_closes_the_log_for_ever() {
    for flush in [FlushMode::Sync, FlushMode::ASYNC] {
        let disk = SimulatedDisk::new();
        let mut store = open(&disk, flush);
        store.vote(1).unwrap();
        store.append(vec![entry(1, 0, "zero")]).unwrap();
        disk.fail_next_sync(FIRST);
        let appended = store.append(vec![entry(1, 1, "one")]);
        // In asynchronous mode the answer comes before the sync; what follows it must fail.
        assert_eq!(flush == FlushMode::Sync, appended.is_err());
        store.vote(2).unwrap_err();
        disk.take_events();
        assert!(store.runtime_append(vec![entry(1, 2, "two")]).is_err());
        store.vote(3).unwrap_err();
        store.truncate_after(None).unwrap_err();
        assert!(matches!(&*store.view.health().borrow(), Health::Latched { .. }));
        // Nobody asks the disk again.
        assert_eq!(Vec::<String>::new(), names(&disk.take_events()));
        store.view.close().unwrap_err();
    }
}

#[test]
fn a_failed_write_closes_the_log_and_tells_everybody_who_waits() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    store.append(vec![entry(1, 0, "zero")]).unwrap();
    disk.hold_syncs(FIRST);
    let one = store.start_append(vec![entry(1, 1, "one")]);
    disk.wait_for_held_sync();
    let two = store.start_append(vec![entry(1, 2, "two")]);
    let three = store.start_append(vec![entry(1, 3, "three")]);
    disk.fail_next_write(FIRST);
    disk.release_syncs();
    store.wait(one).unwrap();
    store.wait(two).unwrap_err();
    store.wait(three).unwrap_err();
    let flushed = store.view.watermarks();
    assert!(flushed.flushed_end < flushed.end);
    // And whoever comes later.
    assert!(matches!(&*store.view.health().borrow(), Health::Latched { .. }));
    store.runtime_append(vec![entry(1, 4, "four")]).unwrap_err();
    store.vote(2).unwrap_err();
}

#[test]
fn a_failed_sync_in_the_background_holds_for_everybody() {
    let disk = SimulatedDisk::new();
    let mut options = options(FlushMode::Async { interval: Duration::from_millis(1) });
    options.flush_lag_max = Duration::from_millis(2);
    let mut store = open_at(&disk, options, "boot").unwrap();
    store.append(vec![entry(1, 0, "zero")]).unwrap();
    disk.fail_next_sync(FIRST);
    // Answered before the disk failed, or told of it: but answered.
    let _ = store.append(vec![entry(1, 1, "one")]);
    let mut health = store.view.health();
    store.block_on(async { health.wait_for(|health| *health != Health::Good).await.map(|_| ()) }).unwrap();
    assert!(store.runtime_append(vec![entry(1, 2, "two")]).is_err());
}

/// Returns once the writer is through with everything that it was asked before.
fn pass_through_writer(store: &Store) {
    let (answer, answered) = std::sync::mpsc::channel();
    let reply = Box::new(move |result| answer.send(result).unwrap());
    // This changes nothing.
    store.view.shared.queue.push(Op::SetFlush { is_sync: false, said_at: LogIndex::ZERO, reply });
    answered.recv().unwrap().unwrap();
}

/// A store whose first append has waited longer for the disk than any may: what comes now is held back.
fn too_far_behind() -> (Arc<SimulatedDisk>, Store, Appending) {
    let disk = SimulatedDisk::new();
    let lag = Duration::from_millis(2);
    let mut options = options(FlushMode::Async { interval: Duration::from_millis(1) });
    options.flush_lag_max = lag;
    let mut store = open_at(&disk, options, "boot").unwrap();
    disk.hold_syncs(FIRST);
    let first = store.start_append(vec![entry(1, 0, "zero")]);
    disk.wait_for_held_sync();
    let since = std::time::Instant::now();
    while since.elapsed() <= lag {
        std::thread::yield_now();
    }
    (disk, store, first)
}

#[test]
fn asynchronous_appends_are_held_back_once_the_disk_is_too_far_behind() {
    let (disk, mut store, first) = too_far_behind();
    let mut held = store.start_append(vec![entry(1, 1, "one")]);
    pass_through_writer(&store);
    assert_eq!(2, store.entries(0, 9).unwrap().len());
    let is_held = held.try_recv().is_err();
    disk.release_syncs();
    assert!(is_held);
    store.wait(first).unwrap();
    store.wait(held).unwrap();
}

#[test]
fn what_is_held_back_is_told_when_the_disk_fails() {
    let (disk, mut store, first) = too_far_behind();
    let held = store.start_append(vec![entry(1, 1, "one")]);
    pass_through_writer(&store);
    disk.fail_next_sync(FIRST);
    disk.release_syncs();
    store.wait(held).unwrap_err();
    // This one was answered before, unless it was held as well.
    let _ = store.wait(first);
    assert!(matches!(&*store.view.health().borrow(), Health::Latched { .. }));
}

#[test]
fn no_more_than_the_window_is_ever_unflushed() {
    let disk = SimulatedDisk::new();
    let mut options = options(FlushMode::Async { interval: Duration::from_secs(3600) });
    options.flush_lag_max = Duration::from_secs(7200);
    options.unflushed_bytes_max = 8 << 10;
    let mut store = open_at(&disk, options, "boot").unwrap();
    for index in 0..100 {
        store.append(vec![entry(1, index, payload(index))]).unwrap();
        let marks = store.view.watermarks();
        assert!(marks.end.since(marks.flushed_end) <= (8 << 10) + 2048 + 4096 + 4096, "{marks:?}");
    }
}

#[test]
fn committed_is_stored_without_touching_the_disk() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    ten_entries(&mut store);
    disk.hold_syncs("");
    disk.take_events();
    store.commit(raft_id(4, 7));
    assert_eq!(Some(id(4, 7)), store.view.watermarks().committed);
    assert_eq!(Vec::<String>::new(), names(&disk.take_events()));
    disk.release_syncs();
}

/// The writer hangs in a sync, and with it whoever waits for the writer.
#[test]
fn nothing_but_votes_and_truncations_waits_for_a_sync() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    ten_entries(&mut store);
    disk.hold_syncs(FIRST);
    let mut hanging = store.start_append(vec![entry(4, 10, "ten")]);
    disk.wait_for_held_sync();
    let mut next = store.start_append(vec![entry(4, 11, "eleven")]);
    store.commit(raft_id(4, 8));
    store.purge(raft_id(4, 5)).unwrap();
    assert_eq!((Some(id(4, 5)), Some(id(4, 11))), store.log_state());
    assert_eq!(6, store.entries(0, 20).unwrap().len());
    assert_eq!(6, store.stream(6, 20).unwrap().len());
    assert_eq!(Some(id(4, 8)), store.view.watermarks().committed);
    // Whoever had waited would have done so until the sync was over.
    let is_held = hanging.try_recv().is_err() && next.try_recv().is_err();
    disk.release_syncs();
    assert!(is_held);
    store.wait(hanging).unwrap();
    store.wait(next).unwrap();
}

#[test]
fn a_purge_is_seen_at_once_and_durable_before_any_segment_goes() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    store.vote(1).unwrap();
    for index in 0..200 {
        store.append(vec![entry(1, index, payload(index))]).unwrap();
    }
    store.commit(raft_id(1, 199));
    disk.take_events();
    store.purge(raft_id(1, 150)).unwrap();
    assert_eq!((Some(id(1, 150)), Some(id(1, 199))), store.log_state());
    assert_eq!(49, store.entries(0, 1000).unwrap().len());
    assert!(store.limited(150, 160).unwrap().is_empty());
    // The next answer of the writer tells that it is through with the purge.
    store.vote(1).unwrap();
    let events = names(&disk.take_events());
    let synced = events.iter().position(|event| event == "sync purged").unwrap();
    let removed = events.iter().position(|event| event.starts_with("remove")).unwrap();
    assert!(synced < removed, "{events:?}");
    store.kill();
    let mut store = open(&disk.after_kill(), FlushMode::Sync);
    assert_eq!((Some(id(1, 150)), Some(id(1, 199))), store.log_state());
    assert_eq!(49, store.entries(0, 1000).unwrap().len());
}

#[test]
fn answers_come_in_the_order_of_the_appends() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    store.append(vec![entry(1, 0, "zero")]).unwrap();
    disk.hold_syncs(FIRST);
    let first = store.start_append(vec![entry(1, 1, "one")]);
    disk.wait_for_held_sync();
    // All of these share the next sync.
    let answered = Arc::new(Mutex::new(Vec::new()));
    let shared = &store.view.shared;
    for index in 2..50 {
        let records = shared.log.take(vec![(id(1, index), BodyKind::Normal, "more".into())]).unwrap();
        let answered = Arc::clone(&answered);
        let done = Box::new(move |result: std::io::Result<()>| answered.lock().push(result.map(|()| index).unwrap()));
        assert!(shared.queue.push(Op::Write(Write { records, must_sync: false, starts_sync: None, done })));
    }
    disk.release_syncs();
    store.wait(first).unwrap();
    // The writer's next answer tells that it is through with them.
    store.vote(2).unwrap();
    assert_eq!((2..50).collect::<Vec<_>>(), *answered.lock());
}

/// Asynchronous flush at once, however far behind the disk is.
fn eager() -> Options {
    let mut options = options(FlushMode::Async { interval: Duration::from_millis(1) });
    options.flush_lag_max = Duration::from_secs(3600);
    options
}

#[test]
fn a_sync_proves_only_what_was_written_before_it_began() {
    let disk = SimulatedDisk::new();
    let mut store = open_at(&disk, eager(), "boot").unwrap();
    disk.hold_syncs(FIRST);
    store.append(vec![entry(1, 0, payload(0))]).unwrap();
    disk.wait_for_held_sync();
    let before = store.view.watermarks().end;
    store.append(vec![entry(1, 1, payload(1))]).unwrap();
    disk.release_one_sync();
    // What came meanwhile needs a sync of its own, before which it does not count.
    disk.wait_for_held_sync();
    let flushed = store.view.watermarks().flushed_end;
    disk.release_syncs();
    assert_eq!(before, flushed);
    store.view.close().unwrap();
    assert_eq!(store.view.watermarks().end, store.view.watermarks().flushed_end);
}

#[test]
fn a_roll_waits_for_the_records_of_two_segments_and_for_no_footer() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    let (second, mut next) = (segment_name(1), 0);
    while store.view.watermarks().end.get() < (64 << 10) - 8192 {
        store.append(vec![entry(1, next, payload(next))]).unwrap();
        next += 1;
    }
    disk.take_events();
    disk.hold_syncs(FIRST);
    let appending = store.start_append(vec![entry(1, next, vec![7; 8192])]);
    disk.wait_for_held_sync();
    // The pad; in the other segment the opening and the record.
    let before = ["write log".to_owned(), format!("write {second}"), format!("write {second}")];
    assert_eq!(before.as_slice(), names(&disk.take_events()));
    disk.release_one_sync();
    store.wait(appending).unwrap();
    // The footer comes behind the answer, and nobody waits for it.
    disk.wait_for_held_sync();
    store.append(vec![entry(1, next + 1, "more")]).unwrap();
    store.vote(2).unwrap();
    let footer = |disk: &SimulatedDisk| disk.contents(FIRST)[60 << 10..].iter().any(|byte| *byte != 0);
    assert!(footer(&disk));
    assert!(!footer(&disk.power_cut(|| false)));
    disk.release_syncs();
    store.view.close().unwrap();
    assert!(footer(&disk.power_cut(|| false)));
}

#[test]
fn no_segment_is_closed_before_the_disk_has_all_of_it() {
    let disk = SimulatedDisk::new();
    let mut options = eager();
    options.maps_hot = 1;
    let mut store = open_at(&disk, options, "boot").unwrap();
    let mut next = 0;
    let mut fill_up_to = |store: &mut Store, end: u64| {
        while store.view.watermarks().end.get() < end {
            store.append(vec![entry(1, next, payload(next))]).unwrap();
            next += 1;
        }
    };
    const SEGMENT: u64 = 64 << 10;
    let next_sync = || {
        disk.release_one_sync();
        disk.wait_for_held_sync();
    };
    disk.hold_syncs("0");
    fill_up_to(&mut store, 8192);
    disk.wait_for_held_sync();
    fill_up_to(&mut store, SEGMENT + 8192);
    // One that is about both segments, the second of them not complete. When it is done old segments may be closed.
    next_sync();
    next_sync();
    fill_up_to(&mut store, SEGMENT + 12288);
    // One that comes before they are. The second segment is completed meanwhile.
    next_sync();
    disk.take_events();
    fill_up_to(&mut store, 2 * SEGMENT + 8192);
    next_sync();
    // The footer of the first segment.
    next_sync();
    let events = disk.take_events();
    disk.release_syncs();
    let at = |event: Event| events.iter().rposition(|other| *other == event);
    let footer = at(Event::Sync(segment_name(0)));
    assert!(footer.is_some() && footer < at(Event::Close(segment_name(0))), "{events:?}");
    assert_eq!(None, at(Event::Close(segment_name(1))), "{events:?}");
    store.view.close().unwrap();
}

/// Every sync in turn, of the log, the vote, the hints and the purged mark.
#[test]
fn whichever_sync_fails_nothing_counts_afterwards_and_nothing_that_counted_is_lost() {
    for number in 0.. {
        let disk = SimulatedDisk::new();
        let mut store = open(&disk, FlushMode::Sync);
        disk.fail_sync_after(number);
        let (mut entries, mut term) = (0, 0);
        let mut closed = false;
        for turn in 0..150 {
            let vote = turn % 10 == 0;
            let done = match vote {
                true => store.vote(term + 1),
                false => store.runtime_append(vec![entry(term, entries, payload(entries))]),
            };
            assert!(!(closed && done.is_ok()), "turn {turn} counts after sync {number} failed");
            match done {
                Ok(()) if vote => term += 1,
                Ok(()) => entries += 1,
                Err(_) => closed = true,
            }
        }
        store.kill();
        for (image, boot) in [(disk.after_kill(), "boot"), (disk.power_cut(|| false), "another boot")] {
            let mut store = open_at(&image, options(FlushMode::Sync), boot)
                .unwrap_or_else(|error| panic!("after sync {number} failed, {boot}: {error}"));
            let (held, vote) = (store.entries(0, u64::MAX).unwrap().len() as u64, store.recovered.vote);
            assert!(held >= entries, "after sync {number} failed, {boot}: {held} of {entries}");
            assert!(vote.map_or(0, |vote| vote.term) >= term, "after sync {number} failed, {boot}: {vote:?}");
        }
        if disk.has_sync_to_fail() {
            assert!(number > 150, "only {number} syncs");
            return;
        }
    }
}
