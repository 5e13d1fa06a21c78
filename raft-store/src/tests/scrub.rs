//! Digests of sealed segments, and passes over them.

use std::time::Duration;

use super::damage::segment_name;
use super::*;
use crate::inspect::FooterSeen;
use crate::scrub::ScrubOptions;

const FOOTER: usize = 60 << 10;

fn scrubbed() -> Options {
    let mut options = options(FlushMode::Sync);
    options.scrub = Some(ScrubOptions { bytes_per_second: 1 << 30, interval: Duration::from_millis(1) });
    options
}

fn fill(disk: &Arc<SimulatedDisk>, options: Options) -> Store {
    let mut store = open_at(disk, options, "boot").unwrap();
    store.vote(4).unwrap();
    for index in 0..130 {
        store.append(vec![entry(4, index, payload(index))]).unwrap();
    }
    store.commit(raft_id(4, 129));
    store
}

/// Waits for what the scrubber does in its own time.
#[track_caller]
fn soon(what: &str, is_so: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "not in time: {what}");
        std::thread::yield_now();
    }
}

fn kind(disk: &SimulatedDisk, number: u64) -> FooterSeen {
    match disk.contents(&segment_name(number))[FOOTER..].get(10..12) {
        Some([0, 1]) => FooterSeen::Digests,
        _ => FooterSeen::Plain,
    }
}

#[test]
fn sealed_segments_get_the_same_digests_on_every_replica() {
    let disks = [SimulatedDisk::new(), SimulatedDisk::new()];
    // One of them gets its digests long after it was written.
    let late = fill(&disks[0], options(FlushMode::Sync));
    assert_eq!(FooterSeen::Plain, kind(&disks[0], 0));
    late.close();
    let stores = [open_at(&disks[0], scrubbed(), "boot").unwrap(), fill(&disks[1], scrubbed())];
    for disk in &disks {
        soon("digests", || (0..2).all(|number| kind(disk, number) == FooterSeen::Digests));
    }
    stores.into_iter().for_each(Store::close);
    for number in 0..2 {
        assert!(disks[0].contents(&segment_name(number)) == disks[1].contents(&segment_name(number)));
    }
    // And the next start reads them.
    assert_eq!(130, open(&disks[0], FlushMode::Sync).entries(0, 1000).unwrap().len());
}

#[test]
fn a_pass_finds_what_only_the_disk_has_lost() {
    for at in [4096 + 7 * 1088 + 500, 4096 + 7 * 1088 + 9, 2000, FOOTER - 5, FOOTER + 30] {
        let disk = SimulatedDisk::new();
        let store = fill(&disk, scrubbed());
        soon("digests", || (0..2).all(|number| kind(&disk, number) == FooterSeen::Digests));
        soon("a pass", || store.view.scrub().unwrap().segments >= 2);
        assert!(store.view.damage().borrow().is_empty());
        // The cache still has the right bytes.
        disk.damage_disk(&segment_name(1), |bytes| bytes[at] ^= 1);
        soon("damage", || !store.view.damage().borrow().is_empty());
        let found = store.view.damage().borrow()[0].clone();
        let place = (64 << 10) + at as u64;
        assert!(found.from.get() <= place && place < found.to.get(), "{found:?}");
        assert_eq!(1, store.view.scrub().unwrap().faults);
    }
}

#[test]
fn passes_are_counted_and_remembered() {
    let disk = SimulatedDisk::new();
    let mut options = scrubbed();
    let store = fill(&disk, options.clone());
    soon("a pass", || store.view.scrub().unwrap().last_pass_ms.is_some());
    let before = store.view.scrub().unwrap().last_pass_ms;
    store.close();
    options.scrub = Some(ScrubOptions { bytes_per_second: 1 << 30, interval: Duration::from_secs(3600) });
    let store = open_at(&disk, options, "boot").unwrap();
    let status = store.view.scrub().unwrap();
    assert!(status.last_pass_ms >= before);
    assert_eq!(None, status.pass_started_ms, "the next one is not due");
}

#[test]
fn damage_is_found_before_digests_are_made_of_it() {
    let disk = SimulatedDisk::new();
    fill(&disk, options(FlushMode::Sync)).close();
    disk.damage(FIRST, |bytes| bytes[4096 + 7 * 1088 + 500] ^= 1);
    let store = open_at(&disk, scrubbed(), "boot").unwrap();
    soon("damage", || !store.view.damage().borrow().is_empty());
    assert_eq!(FooterSeen::Plain, kind(&disk, 0));
}
