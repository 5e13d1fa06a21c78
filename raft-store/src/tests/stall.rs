//! A disk that hangs, and one that fails while nobody writes.

use std::time::Duration;

use super::*;
use crate::stall::{PROBE, Pace, StallLimits};
use crate::view::Health;

/// Limits in milliseconds instead of seconds.
fn quick() -> Options {
    let mut options = options(FlushMode::Sync);
    let [warn, slow, dead, probe_interval] = [4, 20, 80, 3_600_000].map(Duration::from_millis);
    options.stall = StallLimits { warn, slow, dead, probe_interval };
    options
}

/// Writes whenever nobody else has for a millisecond, and has much patience.
fn probing() -> Options {
    let mut options = options(FlushMode::Sync);
    options.stall.probe_interval = Duration::from_millis(1);
    options
}

fn wait_for_latch(store: &Store) -> String {
    let mut health = store.view.health();
    store.block_on(async {
        let health = health.wait_for(|health| *health != Health::Good).await.unwrap();
        match &*health {
            Health::Latched { reason } => reason.clone(),
            Health::Good => unreachable!(),
        }
    })
}

#[test]
fn a_sync_that_hangs_makes_the_disk_slow_and_then_closes_the_log() {
    let disk = SimulatedDisk::new();
    let mut store = open_at(&disk, quick(), "boot").unwrap();
    store.append(vec![entry(1, 0, "zero")]).unwrap();
    assert_eq!(Pace::Normal, *store.view.pace().borrow());
    disk.hold_syncs(FIRST);
    let appending = store.start_append(vec![entry(1, 1, "one")]);
    let mut pace = store.view.pace();
    store.block_on(async { pace.wait_for(|pace| *pace == Pace::Slow).await.map(|_| ()) }).unwrap();
    let reason = wait_for_latch(&store);
    assert!(reason.contains("waiting for the disk of") && reason.contains(FIRST), "{reason}");
    // What hangs is not answered with success even if it comes back after all.
    disk.release_syncs();
    store.wait(appending).unwrap_err();
    store.kill();
    assert!(disk.names().contains(&"latched".to_owned()));
}

#[test]
fn an_idle_log_notices_that_its_disk_takes_no_more_writes() {
    for fail in [SimulatedDisk::fail_next_write, SimulatedDisk::fail_next_sync] {
        let disk = SimulatedDisk::new();
        let mut store = open_at(&disk, probing(), "boot").unwrap();
        store.append(vec![entry(1, 0, "zero")]).unwrap();
        fail(&disk, PROBE);
        let reason = wait_for_latch(&store);
        assert!(reason.contains(PROBE), "{reason}");
        store.runtime_append(vec![entry(1, 1, "one")]).unwrap_err();
    }
}

#[test]
fn a_full_disk_is_not_taken_for_a_broken_one() {
    let disk = SimulatedDisk::new();
    open(&disk, FlushMode::Sync).close();
    disk.fail_creates(true);
    let store = open_at(&disk, probing(), "boot").unwrap();
    for _ in 0..2 {
        assert!(disk.wait_for_refused_create(PROBE), "nothing is tried any more");
    }
    assert_eq!(Health::Good, *store.view.health().borrow());
}
