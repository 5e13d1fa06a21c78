//! A disk without room for another segment.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;

use super::*;
use crate::segment::parse_file_name;
use crate::support::Config;
use crate::view::Health;

fn segments(disk: &SimulatedDisk) -> usize {
    disk.names().iter().filter(|name| parse_file_name(name).is_some()).count()
}

/// Waits until the log has tried in vain to allocate its next segment, or has done so.
fn wait_until_short(store: &Store, short: bool) {
    let mut room = store.view.is_short_of_room();
    store.block_on(async { room.wait_for(|is_short| *is_short == short).await.map(|_| ()) }).unwrap();
}

/// Appends until an append waits for room, and returns how many entries were stored before it. What waits is dropped,
/// as with a Raft that is stopped.
fn fill(store: &mut Store, from: u64) -> u64 {
    let mut index = from;
    loop {
        let view = store.view.clone();
        let waits = store.with_storage(async |storage| {
            let (sender, receiver) = Config::oneshot();
            let mut append = pin!(storage.append(vec![entry(4, index, payload(index))], IOFlushed::signal(sender)));
            match poll_fn(|cx| Poll::Ready(append.as_mut().poll(cx))).await {
                Poll::Ready(result) => {
                    result.unwrap();
                    receiver.await.unwrap().unwrap();
                    false
                }
                Poll::Pending => true,
            }
        });
        if waits {
            let last = view.watermarks().last;
            assert_eq!(index.checked_sub(1).map(|last| id(4, last)), last, "what waits has no place yet");
            return index;
        }
        index += 1;
    }
}

#[test]
fn the_next_segment_is_allocated_before_it_is_needed() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    store.vote(4).unwrap();
    store.append(vec![entry(4, 0, payload(0))]).unwrap();
    // A thread of its own makes it, whenever it gets to run.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while segments(&disk) < 2 {
        assert!(std::time::Instant::now() < until, "nothing is allocated ahead");
        std::thread::yield_now();
    }
    store.view.close().unwrap();
    assert_eq!(2, segments(&disk));
    drop(store);
    // And the one that a run left is used by the next.
    let mut store = open(&disk, FlushMode::Sync);
    disk.fail_creates(true);
    for index in 1..100 {
        store.append(vec![entry(4, index, payload(index))]).unwrap();
    }
    assert!(store.view.watermarks().end.get() > 64 << 10);
}

#[test]
fn an_append_waits_for_room_before_it_has_a_place_and_goes_on_when_there_is_some() {
    for flush in [FlushMode::Sync, FlushMode::ASYNC] {
        let disk = SimulatedDisk::new();
        let mut store = open(&disk, flush);
        store.vote(4).unwrap();
        disk.fail_creates(true);
        let stored = fill(&mut store, 0);
        wait_until_short(&store, true);
        // The log is not closed: what needs no room goes on.
        assert_eq!(Health::Good, *store.view.health().borrow());
        store.vote(5).unwrap();
        assert_eq!(stored, store.entries(0, u64::MAX).unwrap().len() as u64);
        disk.fail_creates(false);
        store.append(vec![entry(4, stored, payload(stored))]).unwrap();
        wait_until_short(&store, false);
        assert_eq!(stored + 1, store.entries(0, u64::MAX).unwrap().len() as u64);
        store.kill();
        let mut store = open(&disk.after_kill(), flush);
        assert_eq!(stored + 1, store.entries(0, u64::MAX).unwrap().len() as u64);
    }
}

#[test]
fn an_append_over_several_segments_waits_for_all_of_them() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    store.vote(4).unwrap();
    let entries = (0..300).map(|index| entry(4, index, payload(index))).collect();
    store.append(entries).unwrap();
    assert_eq!(300, store.entries(0, 300).unwrap().len());
    assert!(segments(&disk) >= 6);
}

#[test]
fn a_truncation_frees_what_was_allocated_ahead_and_appends_go_on() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    store.vote(4).unwrap();
    for index in 0..150 {
        store.append(vec![entry(4, index, payload(index))]).unwrap();
    }
    disk.fail_creates(true);
    store.truncate_after(Some(raft_id(4, 9))).unwrap();
    let stored = fill(&mut store, 10);
    disk.fail_creates(false);
    for index in stored..stored + 100 {
        store.append(vec![entry(4, index, payload(index))]).unwrap();
    }
    store.kill();
    let mut store = open(&disk.after_kill(), FlushMode::Sync);
    assert_eq!(stored + 100, store.entries(0, u64::MAX).unwrap().len() as u64);
}

#[test]
fn a_log_that_ends_with_a_closed_segment_starts_without_room_and_can_be_read() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    store.vote(4).unwrap();
    // The second segment gets one entry, which is taken back by losing the file: the first is closed and the last.
    let mut stored = 0;
    while store.view.watermarks().end.get() < 64 << 10 {
        store.append(vec![entry(4, stored, payload(stored))]).unwrap();
        stored += 1;
    }
    stored -= 1;
    store.kill();
    let disk = disk.after_kill();
    for name in disk.names().iter().filter(|name| parse_file_name(name).is_some() && *name != FIRST) {
        disk.forget(name);
    }
    // What was flushed ended with the first segment.
    let fresh = SimulatedDisk::new();
    drop(open(&fresh, FlushMode::Sync));
    let hint = fresh.contents("progress");
    disk.damage("progress", |bytes| bytes.copy_from_slice(&hint));

    disk.fail_creates(true);
    let mut store = open(&disk, FlushMode::Sync);
    assert_eq!(stored, store.entries(0, u64::MAX).unwrap().len() as u64);
    store.vote(5).unwrap();
    wait_until_short(&store, true);
    assert_eq!(stored, fill(&mut store, stored));
    disk.fail_creates(false);
    for index in stored..stored + 100 {
        store.append(vec![entry(4, index, payload(index))]).unwrap();
    }
    store.kill();
    let mut store = open(&disk.after_kill(), FlushMode::Sync);
    assert_eq!(stored + 100, store.entries(0, u64::MAX).unwrap().len() as u64);
}

#[test]
fn whoever_waits_for_room_is_let_go_when_the_store_stops() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    store.vote(4).unwrap();
    disk.fail_creates(true);
    let stored = fill(&mut store, 0);
    let view = store.view.clone();
    let error = store.with_storage(async |storage| {
        let (sender, _receiver) = Config::oneshot();
        let mut append = pin!(storage.append(vec![entry(4, stored, payload(stored))], IOFlushed::signal(sender)));
        assert!(poll_fn(|cx| Poll::Ready(append.as_mut().poll(cx))).await.is_pending());
        view.stop_waiting_for_room();
        append.await.unwrap_err()
    });
    assert_eq!("the log is closed", error.to_string());
    store.view.close().unwrap();
}

#[test]
fn a_segment_that_cannot_be_made_for_another_reason_closes_the_log() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    store.vote(4).unwrap();
    disk.break_creates();
    let mut index = 0;
    let error = loop {
        match store.append(vec![entry(4, index, payload(index))]) {
            Ok(()) => index += 1,
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("latched"), "{error}");
    assert!(matches!(&*store.view.health().borrow(), Health::Latched { .. }));
    let (_, last) = store.log_state();
    assert!(last.is_some_and(|last| last.index.get() >= index.saturating_sub(1)));
}
