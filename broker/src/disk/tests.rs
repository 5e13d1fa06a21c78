//! When a level is reached, and when it is left.

use super::*;

const GIB: u64 = 1 << 30;
const LIMITS: DiskLimits =
    DiskLimits { early_percent: 75, forced_percent: 85, free_percent_min: 10, segment_bytes: 16 << 20 };

fn used(percent: u64) -> DiskSpace {
    DiskSpace { total_bytes: 100 * GIB, free_bytes: (100 - percent) * GIB }
}

#[test]
fn levels_are_reached_at_their_marks_and_left_five_points_below() {
    use DiskLevel::{Calm, Early, Forced, Full};
    let steps = [
        (0, Calm),
        (74, Calm),
        (75, Early),
        (71, Early),
        (69, Calm),
        (74, Calm),
        (85, Forced),
        (80, Forced),
        (79, Early),
        (84, Early),
        (90, Forced),
        (91, Full),
        (90, Full),
        (86, Full),
        (85, Forced),
        (79, Early),
        (10, Calm),
        (100, Full),
        (0, Calm),
    ];
    let mut level = Calm;
    for (number, (percent, expected)) in steps.into_iter().enumerate() {
        level = LIMITS.level(level, &used(percent));
        assert_eq!(level, expected, "step {number}, {percent} %");
    }
}

#[test]
fn four_segments_must_fit_even_where_a_tenth_is_less() {
    let limits = DiskLimits { segment_bytes: GIB, ..LIMITS };
    let space = |free_bytes| DiskSpace { total_bytes: 20 * GIB, free_bytes };
    let min = 4 * GIB + (64 << 20);
    assert_eq!(limits.free_bytes_min(&space(0)), min);
    assert_eq!(limits.level(DiskLevel::Calm, &space(min)), DiskLevel::Early);
    assert_eq!(limits.level(DiskLevel::Calm, &space(min - 1)), DiskLevel::Full);
    assert_eq!(limits.level(DiskLevel::Full, &space(min + GIB - 1)), DiskLevel::Full);
    assert_eq!(limits.level(DiskLevel::Full, &space(min + GIB)), DiskLevel::Early);
}

#[test]
fn the_refusal_says_how_much_is_free_and_how_much_must_be() {
    let state =
        |level, log_is_short| DiskState { level, space: Some(used(95)), log_is_short, free_bytes_min: 10 * GIB };
    assert_eq!(state(DiskLevel::Forced, false).refusal(), None);
    let text = state(DiskLevel::Full, false).refusal().unwrap();
    assert_eq!(text, "disk almost full: 5120 MiB free, 10240 MiB are kept free");
    let text = state(DiskLevel::Early, true).refusal().unwrap();
    assert_eq!(text, "disk full: no room for another segment of the log, 5120 MiB free");
}

#[tokio::test(start_paused = true)]
async fn the_watch_tells_of_a_disk_that_fills_and_of_a_log_without_room() {
    let percent = Arc::new(std::sync::atomic::AtomicU64::new(20));
    let seen = Arc::clone(&percent);
    let probe = move || Some(used(seen.load(std::sync::atomic::Ordering::Relaxed)));
    let (short, log_is_short) = watch::channel(false);
    let watch = DiskWatch::with_probe(probe, LIMITS, log_is_short);
    let mut state = watch.subscribe();
    assert_eq!(state.borrow().level, DiskLevel::Calm);
    percent.store(97, std::sync::atomic::Ordering::Relaxed);
    let full = *state.wait_for(|state| state.level == DiskLevel::Full).await.unwrap();
    assert!(full.refusal().is_some());
    percent.store(50, std::sync::atomic::Ordering::Relaxed);
    state.wait_for(|state| state.level == DiskLevel::Calm).await.unwrap();
    short.send_replace(true);
    let short = *state.wait_for(|state| state.log_is_short).await.unwrap();
    assert_eq!(short.level, DiskLevel::Calm);
    assert!(short.refusal().is_some());
}

#[test]
fn ballast_is_made_once_replaced_by_another_size_and_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let ballast = dir.path().join(ballast::NAME);
    assert_eq!(Ballast::ensure(dir.path(), 1 << 20, 0).unwrap(), Ballast::Present);
    assert_eq!(std::fs::metadata(&ballast).unwrap().len(), 1 << 20);
    assert_eq!(Ballast::ensure(dir.path(), 2 << 20, 0).unwrap(), Ballast::Present);
    assert_eq!(std::fs::metadata(&ballast).unwrap().len(), 2 << 20);
    std::fs::remove_file(&ballast).unwrap();
    // Nothing is taken from a disk that is about to be full.
    assert_eq!(Ballast::ensure(dir.path(), 1 << 20, u64::MAX).unwrap(), Ballast::NoRoom);
    assert!(!ballast.exists());
    Ballast::ensure(dir.path(), 1 << 20, 0).unwrap();
    assert_eq!(Ballast::ensure(dir.path(), 0, 0).unwrap(), Ballast::Unwanted);
    assert!(!ballast.exists());
}
