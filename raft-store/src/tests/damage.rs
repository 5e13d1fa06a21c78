//! What recovery finds, and what it makes of it.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::error::{Error, Result};
use crate::ids::ClusterId;
use crate::recovery::judgement::{Decision, Finding, decide};
use crate::view::StopClass;

/// Asynchronous mode in which nothing is flushed unless something asks for it.
pub(super) fn lazy() -> Options {
    let mut options = options(FlushMode::Async { interval: Duration::from_secs(3600) });
    options.flush_lag_max = Duration::from_secs(7200);
    options
}

/// Ten entries that were written and not flushed, the process killed.
pub(super) fn unflushed() -> Arc<SimulatedDisk> {
    let disk = SimulatedDisk::new();
    let mut store = open_at(&disk, lazy(), "boot").unwrap();
    ten_entries(&mut store);
    store.kill();
    disk.after_kill()
}

/// Ten entries that were flushed, the process killed.
fn flushed() -> Arc<SimulatedDisk> {
    let disk = SimulatedDisk::new();
    ten_entries(&mut open(&disk, FlushMode::Sync));
    disk.after_kill()
}

/// Entries that were flushed, and a power cut before `progress` was synced.
pub(super) fn powerless(entries: u64) -> Arc<SimulatedDisk> {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    store.vote(4).unwrap();
    for index in 0..entries {
        store.append(vec![entry(4, index, payload(index))]).unwrap();
    }
    let after = disk.power_cut(|| false);
    // Whatever the background had time to sync, the hint is as old as can be.
    let fresh = SimulatedDisk::new();
    drop(open(&fresh, FlushMode::Sync));
    let hint = fresh.contents("progress");
    after.damage("progress", |bytes| bytes.copy_from_slice(&hint));
    after
}

pub(super) fn reopen(disk: &Arc<SimulatedDisk>, options: Options, boot: &str) -> Result<Store> {
    open_at(disk, options, boot)
}

#[track_caller]
fn holds(store: &mut Store, entries: u64) {
    let found = store.entries(0, u64::MAX).unwrap();
    assert_eq!(entries, found.len() as u64, "{:?}", store.recovered.report);
    assert_eq!((None, entries.checked_sub(1).map(|last| id(4, last))), store.log_state());
    for (index, entry) in found.iter().enumerate() {
        let expected = support::entry(4, index as u64, payload(index as u64)).body;
        assert_eq!(expected, entry.body);
    }
}

/// Cuts must leave a log that takes appends and survives another start.
#[track_caller]
fn goes_on(mut store: Store, disk: &Arc<SimulatedDisk>, options: Options, from: u64) {
    for index in from..from + 5 {
        store.append(vec![entry(4, index, payload(index))]).unwrap();
    }
    store.view.close().unwrap();
    drop(store);
    let mut store = open_at(disk, options, "a later boot").unwrap();
    assert_eq!(StopClass::Clean, store.recovered.stop);
    holds(&mut store, from + 5);
}

pub(super) fn zero(disk: &SimulatedDisk, from: usize, to: usize) {
    disk.damage(FIRST, |bytes| bytes[from..to].fill(0));
}

fn flip(disk: &SimulatedDisk, at: usize) {
    disk.damage(FIRST, |bytes| bytes[at] ^= 0x10);
}

#[track_caller]
fn refused(result: Result<Store>, text: &str) {
    let error = result.err().expect("the start must be refused");
    assert!(matches!(error, Error::Unrecoverable { .. }), "{error}");
    assert!(error.to_string().contains(text), "{error}");
}

// ---- the matrix ----

#[test]
fn every_cell_of_the_damage_matrix() {
    use Decision::{
        Go, GoIfNotedReached, NewIdentity, NewIdentityThenRepair, Repair, Stop, Truncate, TruncateUnderNewIdentity,
    };
    let rows = [
        // finding, [clean, process, os sync, os async, latched async, latched sync]
        (Finding::DamageBelowFlushed, [Repair, Repair, Repair, Repair, Repair, Repair]),
        (Finding::Torn, [Repair, Truncate, Truncate, TruncateUnderNewIdentity, TruncateUnderNewIdentity, Truncate]),
        (
            Finding::TornBeforeValid,
            [Repair, Repair, Truncate, TruncateUnderNewIdentity, TruncateUnderNewIdentity, Truncate],
        ),
        (Finding::Rot, [Repair, Repair, Repair, NewIdentityThenRepair, NewIdentity, NewIdentity]),
        (Finding::Nothing, [Go, Go, Go, NewIdentity, GoIfNotedReached, GoIfNotedReached]),
        (Finding::EndsBelowFlushed, [Stop, Stop, NewIdentity, NewIdentity, NewIdentity, NewIdentity]),
    ];
    let columns = [
        (StopClass::Clean, true),
        (StopClass::Process, true),
        (StopClass::Os, true),
        (StopClass::Os, false),
        (StopClass::Latched, false),
        (StopClass::Latched, true),
    ];
    for (finding, decisions) in rows {
        for ((stop, sync), expected) in columns.iter().zip(decisions) {
            assert_eq!(expected, decide(finding, *stop, *sync), "{finding:?} {stop:?} sync {sync}");
        }
    }
}

// ---- nothing wrong ----

#[test]
fn a_killed_process_finds_everything_it_had_written() {
    for disk in [unflushed(), flushed()] {
        let options = options_of(&disk);
        let mut store = reopen(&disk, options, "boot").unwrap();
        assert_eq!(StopClass::Process, store.recovered.stop);
        holds(&mut store, 10);
        let marks = store.view.watermarks();
        assert_eq!(marks.end, marks.flushed_end);
    }
}

/// The options a disk was made with: the mode is written in its node file.
fn options_of(disk: &Arc<SimulatedDisk>) -> Options {
    let fits = |options: &Options| open_at(&disk.after_kill(), options.clone(), "boot").is_ok();
    [options(FlushMode::Sync), lazy()].into_iter().find(fits).unwrap()
}

#[test]
fn a_clean_stop_is_told_from_a_kill_and_from_a_crash_of_the_system() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, FlushMode::Sync);
    assert_eq!(StopClass::New, store.recovered.stop);
    assert_eq!(1, store.recovered.start_counter);
    store.close();
    let store = open_at(&disk, options(FlushMode::Sync), "another boot").unwrap();
    assert_eq!(StopClass::Clean, store.recovered.stop);
    store.kill();
    let store = open_at(&disk, options(FlushMode::Sync), "another boot").unwrap();
    assert_eq!(StopClass::Process, store.recovered.stop);
    store.kill();
    let store = open_at(&disk, options(FlushMode::Sync), "a third boot").unwrap();
    assert_eq!(StopClass::Os, store.recovered.stop);
    assert_eq!(4, store.recovered.start_counter);
}

#[test]
fn the_unproven_tail_is_written_again_and_synced_before_it_counts() {
    use crate::region::simulated::Event;
    let disk = unflushed();
    disk.take_events();
    let store = reopen(&disk, lazy(), "boot").unwrap();
    let events = disk.take_events();
    let of_log: Vec<&Event> = events
        .iter()
        .filter(|event| matches!(event, Event::Write(name) | Event::Sync(name) if name == FIRST))
        .collect();
    let sync = Event::Sync(FIRST.into());
    assert_eq!(Some(&&sync), of_log.first(), "synced before it is read: {events:?}");
    assert_eq!(Some(&&sync), of_log.last(), "{events:?}");
    assert!(of_log.contains(&&Event::Write(FIRST.into())), "{events:?}");
    drop(store);
    // All of it survives a power cut now.
    let after = disk.power_cut(|| false);
    let mut alone = lazy();
    alone.alone = true;
    holds(&mut reopen(&after, alone, "another boot").unwrap(), 10);
}

#[test]
fn a_sync_that_fails_at_the_start_counts_as_one_that_failed_before() {
    let disk = unflushed();
    // The kernel tells the next process of a failed write-back, once, and reads go on giving what is not on disk.
    disk.fail_next_sync(FIRST);
    let mut store = reopen(&disk, lazy(), "boot").unwrap();
    assert_eq!(StopClass::Latched, store.recovered.stop);
    assert!(store.recovered.report.iter().any(|line| line.contains("sync at start failed")));
    holds(&mut store, 10);
    drop(store);
    let mut alone = lazy();
    alone.alone = true;
    holds(&mut reopen(&disk.power_cut(|| false), alone, "another boot").unwrap(), 10);
}

#[test]
fn a_system_crash_in_asynchronous_mode_retires_the_node_even_if_nothing_seems_wrong() {
    let mut store = reopen(&unflushed(), lazy(), "another boot").unwrap();
    assert_eq!(None, store.recovered.node_id);
    holds(&mut store, 10);
    let mut alone = lazy();
    alone.alone = true;
    let mut store = reopen(&unflushed(), alone, "another boot").unwrap();
    assert_eq!(Some(1), store.recovered.node_id);
    holds(&mut store, 10);
}

// ---- torn ----

#[test]
fn torn_tail_is_cut_at_last_valid_record() {
    let disk = unflushed();
    zero(&disk, offset(9) + 64 + 300, offset(10));
    let mut store = reopen(&disk, lazy(), "boot").unwrap();
    holds(&mut store, 9);
    assert_eq!(1, store.recovered.report.len());
    goes_on(store, &disk, lazy(), 9);
}

#[test]
fn a_tail_torn_at_any_page_is_cut_at_the_last_whole_record() {
    for page in 1..=(offset(10) / 4096) {
        let disk = unflushed();
        let torn = page * 4096;
        zero(&disk, torn, offset(10).max(torn));
        let whole = (0..10).take_while(|index| offset(*index) + 64 + 1024 <= torn).count() as u64;
        let mut store = reopen(&disk, lazy(), "boot").unwrap();
        holds(&mut store, whole);
        if whole > 0 {
            goes_on(store, &disk, lazy(), whole);
        }
    }
}

#[test]
fn a_hole_before_valid_records_is_damage_after_a_kill_and_ordinary_after_a_power_cut() {
    let disk = unflushed();
    zero(&disk, offset(5), offset(6));
    refused(reopen(&disk, lazy(), "boot"), "must not be cut");

    let disk = powerless(10);
    zero(&disk, offset(5), offset(6));
    let mut store = reopen(&disk, options(FlushMode::Sync), "another boot").unwrap();
    holds(&mut store, 5);
    goes_on(store, &disk, options(FlushMode::Sync), 5);
}

#[test]
fn a_torn_tail_after_a_power_cut_is_cut() {
    let disk = powerless(10);
    zero(&disk, offset(9) + 64 + 300, offset(10));
    let mut store = reopen(&disk, options(FlushMode::Sync), "another boot").unwrap();
    holds(&mut store, 9);
    goes_on(store, &disk, options(FlushMode::Sync), 9);
}

// ---- rot ----

#[test]
fn damage_below_the_proven_end_is_never_cut() {
    for boot in ["boot", "another boot"] {
        let disk = flushed();
        zero(&disk, offset(9) + 64 + 300, offset(10));
        refused(reopen(&disk, options(FlushMode::Sync), boot), "must not be cut");
        let disk = flushed();
        flip(&disk, offset(4) + 100);
        refused(reopen(&disk, options(FlushMode::Sync), boot), "must not be cut");
    }
}

#[test]
fn changed_bytes_in_the_window_are_never_cut() {
    let disk = unflushed();
    flip(&disk, offset(9) + 100);
    refused(reopen(&disk, lazy(), "boot"), "must not be cut");
    let disk = unflushed();
    flip(&disk, offset(9) + 20);
    refused(reopen(&disk, lazy(), "boot"), "must not be cut");
}

#[test]
fn a_log_that_ends_below_the_proven_end_stops() {
    let disk = flushed();
    zero(&disk, offset(9), offset(10));
    refused(reopen(&disk.after_kill(), options(FlushMode::Sync), "boot"), "changed or rolled back");
    // With a crash of the system in between it is the disk that has lost it, and this replica may have acknowledged it.
    let mut store = reopen(&disk, options(FlushMode::Sync), "another boot").unwrap();
    assert_eq!((None, true), (store.recovered.node_id, store.recovered.disk_lost_flushed));
    assert!(store.recovered.report.iter().any(|line| line.contains("it has lost that")));
    holds(&mut store, 9);
}

#[test]
fn with_no_readable_hint_damage_is_never_cut_but_a_whole_log_goes_on() {
    for damaged in [false, true] {
        let disk = unflushed();
        disk.damage("progress", |bytes| bytes.fill(0xee));
        if damaged {
            zero(&disk, offset(9) + 64 + 300, offset(10));
            refused(reopen(&disk, lazy(), "boot"), "must not be cut");
        } else {
            holds(&mut reopen(&disk, lazy(), "boot").unwrap(), 10);
        }
    }
}

// ---- what is kept ----

#[test]
fn a_start_that_is_refused_changes_nothing() {
    let rotten = unflushed();
    flip(&rotten, offset(9) + 100);
    let below = flushed();
    zero(&below, offset(9), offset(10));
    let voteless = flushed();
    voteless.damage("hard_state", |bytes| bytes.fill(0xee));
    let no_room = unflushed();
    flip(&no_room, offset(9) + 100);
    no_room.fail_creates(true);
    for (disk, options) in
        [(rotten, lazy()), (below, options(FlushMode::Sync)), (voteless, options(FlushMode::Sync)), (no_room, lazy())]
    {
        let files = |disk: &SimulatedDisk| -> Vec<_> {
            disk.names().into_iter().map(|name| (disk.contents(&name), name)).collect()
        };
        let before = files(&disk);
        disk.take_events();
        reopen(&disk, options, "boot").err().expect("refused");
        let events = disk.take_events();
        use crate::region::simulated::Event;
        assert!(events.iter().all(|event| matches!(event, Event::Sync(_))), "{events:?}");
        assert!(before == files(&disk));
    }
}

#[test]
fn what_is_cut_is_kept_aside() {
    let disk = unflushed();
    zero(&disk, offset(9) + 64 + 300, offset(10));
    let torn = disk.contents(FIRST)[offset(9)..offset(9) + 64 + 300].to_vec();
    let mut store = reopen(&disk, lazy(), "boot").unwrap();
    holds(&mut store, 9);
    assert_eq!(vec![(format!("{:020}-cut", offset(9)), torn)], Vec::from_iter(disk.aside()));
    assert!(store.recovered.report[0].contains("kept in quarantine"), "{:?}", store.recovered.report);
    assert!(store.recovered.has_cut && !store.recovered.disk_lost_flushed);
}

// ---- the chain ----

/// Brings back what stood in a file's range before a truncation that a crash undid in part.
fn bring_back(disk: &SimulatedDisk, old: &[u8], from: usize, to: usize) {
    disk.damage(FIRST, |bytes| bytes[from..to].copy_from_slice(&old[from..to]));
}

#[test]
fn remnants_of_a_longer_log_do_not_come_back_after_a_truncation() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    ten_entries(&mut store);
    let old = disk.contents(FIRST);
    store.vote(5).unwrap();
    store.truncate_after(Some(raft_id(4, 5))).unwrap();
    store.append(vec![entry(5, 6, payload(6))]).unwrap();
    store.kill();
    let after = disk.power_cut(|| true);
    bring_back(&after, &old, offset(7), offset(10));
    let mut store = reopen(&after, options(FlushMode::Sync), "another boot").unwrap();
    let found = store.entries(0, 100).unwrap();
    assert_eq!(7, found.len());
    assert_eq!(id(5, 6), found[6].id());
}

#[test]
fn a_record_of_a_higher_term_does_not_follow_one_of_a_lower_term_it_never_followed() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    store.vote(4).unwrap();
    for index in 0..6 {
        store.append(vec![entry(4, index, payload(index))]).unwrap();
    }
    store.vote(6).unwrap();
    store.append(vec![entry(6, 6, payload(6)), entry(6, 7, payload(7))]).unwrap();
    let old = disk.contents(FIRST);
    store.vote(7).unwrap();
    store.truncate_after(Some(raft_id(4, 5))).unwrap();
    store.append(vec![entry(5, 6, payload(6))]).unwrap();
    store.kill();
    let after = disk.power_cut(|| true);
    bring_back(&after, &old, offset(7), offset(8));
    let mut store = reopen(&after, options(FlushMode::Sync), "another boot").unwrap();
    let found = store.entries(0, 100).unwrap();
    assert_eq!(7, found.len());
    assert_eq!(id(5, 6), found[6].id());
}

#[test]
fn a_truncation_that_was_answered_is_never_undone() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    ten_entries(&mut store);
    store.truncate_after(Some(raft_id(4, 2))).unwrap();
    holds(&mut store, 3);
    for boot in ["boot", "another boot"] {
        let after = if boot == "boot" { disk.after_kill() } else { disk.power_cut(|| false) };
        holds(&mut reopen(&after, options(FlushMode::Sync), boot).unwrap(), 3);
    }
}

// ---- segments ----

/// Entries over several segments.
fn long(count: u64, flush: FlushMode) -> Arc<SimulatedDisk> {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, flush);
    store.vote(4).unwrap();
    for index in 0..count {
        store.append(vec![entry(4, index, payload(index))]).unwrap();
    }
    store.kill();
    disk.after_kill()
}

pub(super) fn segment_name(number: u64) -> String {
    format!("{:020}", number * (64 << 10))
}

#[test]
fn a_log_over_many_segments_comes_back_whole() {
    let disk = long(300, FlushMode::Sync);
    let mut store = reopen(&disk, options(FlushMode::Sync), "boot").unwrap();
    holds(&mut store, 300);
    goes_on(store, &disk, options(FlushMode::Sync), 300);
}

#[test]
fn a_missing_segment_stops() {
    let disk = long(300, FlushMode::Sync);
    disk.forget(&segment_name(1));
    let error = reopen(&disk, options(FlushMode::Sync), "boot").err().unwrap();
    assert!(matches!(error, Error::Gap { .. }), "{error}");
    let disk = long(300, FlushMode::Sync);
    disk.forget(&segment_name(0));
    let error = reopen(&disk, options(FlushMode::Sync), "boot").err().unwrap();
    assert!(matches!(error, Error::Gap { .. }), "{error}");
}

#[test]
fn a_missing_newest_segment_stops() {
    let disk = long(300, FlushMode::Sync);
    let last = (0..).take_while(|number| disk.names().contains(&segment_name(*number))).last().unwrap();
    disk.forget(&segment_name(last));
    disk.forget(&segment_name(last - 1));
    refused(reopen(&disk, options(FlushMode::Sync), "boot"), "changed or rolled back");
}

#[test]
fn a_segment_of_another_cluster_stops() {
    let disk = long(100, FlushMode::Sync);
    let other = SimulatedDisk::new();
    let mut foreign = options(FlushMode::Sync);
    foreign.cluster_id = ClusterId::new([9; 16]);
    let mut store = open_at(&other, foreign.clone(), "boot").unwrap();
    ten_entries(&mut store);
    let bytes = other.contents(FIRST);
    disk.damage(FIRST, |place| place.copy_from_slice(&bytes));
    let error = reopen(&disk, options(FlushMode::Sync), "boot").err().unwrap();
    assert!(matches!(error, Error::ForeignCluster { .. }), "{error}");
    let error = reopen(&disk, foreign, "boot").err().unwrap();
    assert!(matches!(error, Error::ForeignCluster { .. }), "{error}");
}

#[test]
fn a_lost_footer_is_written_again() {
    let disk = long(100, FlushMode::Sync);
    let footer = 60 << 10;
    let whole = disk.contents(&segment_name(0));
    disk.damage(&segment_name(0), |bytes| bytes[footer..].fill(0));
    holds(&mut reopen(&disk, options(FlushMode::Sync), "boot").unwrap(), 100);
    assert_eq!(whole, disk.contents(&segment_name(0)));
}

#[test]
fn a_damaged_footer_of_an_old_segment_costs_a_scan_and_nothing_else() {
    let disk = long(400, FlushMode::Sync);
    disk.damage(&segment_name(1), |bytes| bytes[61 << 10] ^= 1);
    holds(&mut reopen(&disk, options(FlushMode::Sync), "boot").unwrap(), 400);
}

#[test]
fn swapped_segments_are_found() {
    let disk = long(400, FlushMode::Sync);
    let one = disk.contents(&segment_name(1));
    disk.damage(&segment_name(2), |bytes| bytes.copy_from_slice(&one));
    let error = reopen(&disk, options(FlushMode::Sync), "boot").err().unwrap();
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
}

#[test]
fn a_torn_tail_across_a_roll_is_cut_in_the_segment_where_it_tore() {
    let disk = SimulatedDisk::new();
    let mut store = open_at(&disk, lazy(), "boot").unwrap();
    store.vote(4).unwrap();
    for index in 0..80 {
        store.append(vec![entry(4, index, payload(index))]).unwrap();
    }
    store.kill();
    let disk = disk.after_kill();
    // The kernel lost the second segment's pages and kept the first one's.
    disk.damage(&segment_name(1), |bytes| bytes[512..].fill(0));
    let mut store = reopen(&disk, lazy(), "boot").unwrap();
    let held = store.log_state().1.unwrap().index.get() + 1;
    assert!(held < 80);
    holds(&mut store, held);
    goes_on(store, &disk, lazy(), held);
}

// ---- refusals ----

#[test]
fn an_empty_directory_is_refused_unless_it_may_become_a_store() {
    let mut options = options(FlushMode::Sync);
    options.create = false;
    let error = open_at(&SimulatedDisk::new(), options, "boot").err().unwrap();
    assert!(matches!(error, Error::NoStore { .. }), "{error}");
    assert!(error.to_string().contains("--bootstrap"));
}

#[test]
fn a_directory_of_somebody_else_is_refused() {
    let disk = flushed();
    let mut other = options(FlushMode::Sync);
    other.cluster_id = ClusterId::new([9; 16]);
    let error = open_at(&disk, other, "boot").err().unwrap();
    assert!(matches!(error, Error::ForeignCluster { .. }), "{error}");
    let mut other = options(FlushMode::Sync);
    other.node_id = 2;
    let error = open_at(&disk, other, "boot").err().unwrap();
    assert!(matches!(error, Error::ForeignNode { found: 1, expected: 2, .. }), "{error}");
    let mut other = options(FlushMode::Sync);
    other.segment_bytes *= 2;
    let error = open_at(&disk, other, "boot").err().unwrap();
    assert!(error.to_string().contains("segment_bytes"), "{error}");
}

#[test]
fn a_lost_vote_stops() {
    let disk = flushed();
    disk.forget("hard_state");
    let error = reopen(&disk, options(FlushMode::Sync), "boot").err().unwrap();
    assert!(matches!(error, Error::UnreadableSlots { .. }), "{error}");
    let disk = flushed();
    disk.damage("hard_state", |bytes| bytes.fill(0x55));
    let error = reopen(&disk, options(FlushMode::Sync), "boot").err().unwrap();
    assert!(matches!(error, Error::UnreadableSlots { .. }), "{error}");
    // Nor does a log without entries start, which an older vote would fit.
    let disk = SimulatedDisk::new();
    open(&disk, FlushMode::Sync).vote(4).unwrap();
    disk.damage("hard_state", |bytes| bytes.fill(0x55));
    let error = reopen(&disk.after_kill(), options(FlushMode::Sync), "boot").err().unwrap();
    assert!(matches!(error, Error::UnreadableSlots { .. }), "{error}");
    // Half of it is enough, if it is the newer one.
    let disk = flushed();
    disk.damage("hard_state", |bytes| bytes[4096..].fill(0x55));
    holds(&mut reopen(&disk, options(FlushMode::Sync), "boot").unwrap(), 10);
}

#[test]
fn a_vote_older_than_the_log_stops() {
    let disk = flushed();
    let fresh = SimulatedDisk::new();
    drop(open(&fresh, FlushMode::Sync));
    let old = fresh.contents("hard_state");
    disk.damage("hard_state", |bytes| bytes.copy_from_slice(&old));
    let error = reopen(&disk, options(FlushMode::Sync), "boot").err().unwrap();
    assert!(error.to_string().contains("older than the log"), "{error}");
}

// ---- after a latch ----

#[test]
fn after_a_failed_sync_the_next_start_goes_by_the_note() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    ten_entries(&mut store);
    disk.fail_next_sync(FIRST);
    store.append(vec![entry(4, 10, payload(10))]).unwrap_err();
    store.kill();
    // The cache still reads well, the disk has nothing of it: the tail is written again.
    let after = disk.after_kill();
    let mut store = reopen(&after, options(FlushMode::Sync), "boot").unwrap();
    assert_eq!(StopClass::Latched, store.recovered.stop);
    holds(&mut store, 11);
    store.kill();
    let cut = after.power_cut(|| false);
    holds(&mut reopen(&cut, options(FlushMode::Sync), "another boot").unwrap(), 11);
    // With the power gone as well, what was never acknowledged is gone, and nothing else.
    let gone = disk.power_cut(|| false);
    holds(&mut reopen(&gone, options(FlushMode::Sync), "another boot").unwrap(), 10);
}

#[test]
fn a_latched_log_without_the_end_that_was_noted_gives_its_identity_up_in_asynchronous_mode() {
    let disk = SimulatedDisk::new();
    let mut store = open_at(&disk, lazy(), "boot").unwrap();
    ten_entries(&mut store);
    disk.fail_next_sync(FIRST);
    store.vote(5).unwrap_err();
    store.kill();
    // The cache still has all that was acknowledged from memory, and it is written again.
    let mut store = reopen(&disk.after_kill(), lazy(), "boot").unwrap();
    assert_eq!((StopClass::Latched, Some(1)), (store.recovered.stop, store.recovered.node_id));
    holds(&mut store, 10);
    // Here it is gone.
    let mut store = reopen(&disk.power_cut(|| false), lazy(), "another boot").unwrap();
    assert_eq!((StopClass::Latched, None), (store.recovered.stop, store.recovered.node_id));
    holds(&mut store, 0);
}

#[test]
fn committed_is_clamped_to_the_end_that_was_recovered() {
    let disk = SimulatedDisk::new();
    let mut store = open_at(&disk, lazy(), "boot").unwrap();
    ten_entries(&mut store);
    store.commit(raft_id(4, 9));
    // The vote syncs what is there, so the hint is written; then the tail tears.
    store.append(vec![entry(4, 10, payload(10))]).unwrap();
    store.commit(raft_id(4, 10));
    store.vote(5).unwrap();
    store.kill();
    let disk = disk.after_kill();
    let mut alone = lazy();
    alone.alone = true;
    // As an old hint, or none, would leave it.
    let fresh = SimulatedDisk::new();
    drop(open_at(&fresh, lazy(), "boot").unwrap());
    let flushed_nothing = {
        let mut file = crate::progress::Progress::open(&*fresh).unwrap();
        let mut hints = file.hints();
        hints.committed = Some(id(4, 10));
        file.save(hints).unwrap();
        fresh.contents("progress")
    };
    disk.damage("progress", |bytes| bytes.copy_from_slice(&flushed_nothing));
    zero(&disk, offset(9) + 64 + 300, offset(11));
    let mut store = reopen(&disk, alone, "boot").unwrap();
    holds(&mut store, 9);
    assert_eq!(Some(id(4, 8)), store.recovered.committed);
    assert_eq!(Some(id(4, 8)), store.view.watermarks().committed);
}

// ---- every bit ----

/// Every single bit of a region of 64 KiB: whatever changes, the log ends at the record it lies in, never behind it.
///
/// Record by record, since a record's checksums do not depend on those that stand before it: the walk begins at the
/// record with the flipped bit. In four parts, which run side by side.
fn every_flipped_bit_is_found(part: usize) {
    const RECORDS: u64 = 64;
    let disk = SimulatedDisk::new();
    let mut options = options(FlushMode::Sync);
    options.segment_bytes = 128 << 10;
    let mut store = open_at(&disk, options.clone(), "boot").unwrap();
    store.vote(4).unwrap();
    for index in 0..RECORDS {
        let bytes = usize::try_from(900 + index % 60).unwrap();
        store.append(vec![entry(4, index, payload(index)[..bytes].to_vec())]).unwrap();
    }
    let starts: Vec<_> = store.entries(0, RECORDS).unwrap().iter().map(|entry| entry.position.unwrap()).collect();
    let end = store.view.watermarks().end;
    assert_eq!(64 << 10, end.since(starts[0]), "the region is as large as it is said to be");
    drop(store);
    let walker = crate::recovery::walk::testing::Walker::new(&*disk, &options);
    for (at, start) in starts.iter().enumerate().skip(part * 16).take(16) {
        let next = starts.get(at + 1).copied().unwrap_or(end);
        let bits = (next.since(*start) * 8).try_into().unwrap();
        for bit in 0..bits {
            let byte = usize::try_from(start.get()).unwrap() + bit / 8;
            let flip = |bytes: &mut [u8]| bytes[byte] ^= 1 << (bit % 8);
            disk.damage_live(FIRST, flip);
            let found = walker.end_of(at as u64, *start, next);
            disk.damage_live(FIRST, flip);
            assert_eq!(*start, found, "bit {bit} of entry {at}");
        }
        assert_eq!(next, walker.end_of(at as u64, *start, next));
    }
}

#[test]
fn every_flipped_bit_of_a_log_region_is_found_first_quarter() {
    every_flipped_bit_is_found(0);
}

#[test]
fn every_flipped_bit_of_a_log_region_is_found_second_quarter() {
    every_flipped_bit_is_found(1);
}

#[test]
fn every_flipped_bit_of_a_log_region_is_found_third_quarter() {
    every_flipped_bit_is_found(2);
}

#[test]
fn every_flipped_bit_of_a_log_region_is_found_last_quarter() {
    every_flipped_bit_is_found(3);
}

/// A write that got no further than any byte of the region: the log ends with the last record that is whole.
#[test]
fn a_log_region_torn_at_any_byte_ends_with_the_last_whole_record() {
    let disk = flushed();
    let options = options(FlushMode::Sync);
    let walker = crate::recovery::walk::testing::Walker::new(&*disk, &options);
    let whole = disk.contents(FIRST);
    for at in 0..10 {
        let (start, end) = (offset(at), offset(at + 1));
        let position = |offset: usize| crate::ids::LogPosition::new(offset as u64);
        for torn in start..end {
            disk.damage_live(FIRST, |bytes| bytes[torn..end].fill(0));
            let found = walker.end_of(at as u64, position(start), position(end));
            disk.damage_live(FIRST, |bytes| bytes[torn..end].copy_from_slice(&whole[torn..end]));
            assert_eq!(position(start), found, "torn at {torn}");
        }
    }
}

/// The same through a whole start, for every part of the file that a store writes.
#[test]
fn a_flipped_bit_anywhere_in_a_segment_stops_the_start() {
    let whole = flushed();
    for bit in (0..offset(10) * 8).step_by(997) {
        let byte = bit / 8;
        // The unused rest of the header is not covered.
        if (1024..4096).contains(&byte) {
            continue;
        }
        let disk = whole.after_kill();
        disk.damage(FIRST, |bytes| bytes[byte] ^= 1 << (bit % 8));
        assert!(reopen(&disk, options(FlushMode::Sync), "boot").is_err(), "bit {bit} of byte {byte}");
    }
}
