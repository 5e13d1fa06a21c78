//! What is on disk before what is answered.

use super::*;
use crate::region::simulated::Event;
use crate::view::Health;

fn names(events: &[Event]) -> Vec<String> {
    let short = |name: &String| if name == FIRST { "log".to_owned() } else { name.clone() };
    events
        .iter()
        .map(|event| match event {
            Event::Write(name) => format!("write {}", short(name)),
            Event::Sync(name) => format!("sync {}", short(name)),
            Event::Create(name) => format!("create {}", short(name)),
            Event::Remove(name) => format!("remove {}", short(name)),
        })
        // Neither in the background, at any time: hints, and the next segment.
        .filter(|text| !text.contains("progress") && !text.starts_with("create "))
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
}

#[test]
fn a_failed_sync_in_the_background_holds_for_everybody() {
    let disk = SimulatedDisk::new();
    let mut options = options(FlushMode::Async { interval: std::time::Duration::from_millis(1) });
    options.flush_lag_max = std::time::Duration::from_millis(2);
    let mut store = open_at(&disk, options, "boot").unwrap();
    store.append(vec![entry(1, 0, "zero")]).unwrap();
    disk.fail_next_sync(FIRST);
    store.append(vec![entry(1, 1, "one")]).unwrap();
    let mut health = store.view.health();
    store.block_on(async { health.wait_for(|health| *health != Health::Good).await.map(|_| ()) }).unwrap();
    assert!(store.runtime_append(vec![entry(1, 2, "two")]).is_err());
}

#[test]
fn asynchronous_appends_are_held_back_once_the_disk_is_too_far_behind() {
    let disk = SimulatedDisk::new();
    let mut options = options(FlushMode::Async { interval: std::time::Duration::from_millis(1) });
    options.flush_lag_max = std::time::Duration::from_millis(2);
    let mut store = open_at(&disk, options, "boot").unwrap();
    store.append(vec![entry(1, 0, "zero")]).unwrap();
    disk.hold_syncs(FIRST);
    // Until the lag is reached appends are answered; then one is not.
    let mut index = 1;
    let mut held = loop {
        let mut appending = store.start_append(vec![entry(1, index, "more")]);
        index += 1;
        let deadline = std::time::Instant::now() + std::time::Duration::from_millis(50);
        let answered = loop {
            match appending.try_recv() {
                Ok(answer) => break Some(answer),
                Err(_) if std::time::Instant::now() > deadline => break None,
                Err(_) => std::thread::yield_now(),
            }
        };
        match answered {
            Some(answer) => answer.unwrap(),
            None => break appending,
        }
    };
    assert!(held.try_recv().is_err());
    disk.release_syncs();
    store.wait(held).unwrap();
}

#[test]
fn no_more_than_the_window_is_ever_unflushed() {
    let disk = SimulatedDisk::new();
    let mut options = options(FlushMode::Async { interval: std::time::Duration::from_secs(3600) });
    options.flush_lag_max = std::time::Duration::from_secs(7200);
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
