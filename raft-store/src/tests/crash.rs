//! A scripted workload, crashed after each single change to the disk.
//!
//! Invariants: nothing acknowledged is lost, nothing truncated comes back, vote and log never go
//! back, there is no hole, and the log goes on.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::view::StopClass;

/// A small generator: the same numbers for the same seed, everywhere.
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// What the disk may hold after a crash.
#[derive(Default)]
struct Promises {
    /// Every entry that may be at an index: the acknowledged one, and those on their way.
    possible: BTreeMap<u64, Vec<crate::LogEntry>>,
    /// Entries up to here must be there.
    floor: Option<u64>,
    purged: Option<u64>,
    vote: u64,
    vote_asked: u64,
}

fn small_options(flush: FlushMode) -> Options {
    let mut options = options(flush);
    options.segment_bytes = 16 << 10;
    options
}

/// Runs a script until it ends or the disk dies. Returns what was promised by then.
fn run(store: &mut Store, seed: u64) -> Promises {
    let mut numbers = Numbers::new(seed);
    let mut promises = Promises::default();
    let mut term = 1;
    let mut next = 0;
    let mut committed = None::<u64>;
    let terms = |promises: &Promises, index: u64| promises.possible[&index].last().unwrap().log_term().get();
    promises.vote_asked = term;
    if store.vote(term).is_err() {
        return promises;
    }
    promises.vote = term;
    for _ in 0..30 {
        match numbers.below(10) {
            0..=5 => {
                let count = numbers.below(4) + 1;
                let entries: Vec<_> = (next..next + count)
                    .map(|index| {
                        let bytes = usize::try_from(numbers.below(3000)).unwrap();
                        entry(term, index, vec![u8::try_from(numbers.below(255) + 1).unwrap(); bytes])
                    })
                    .collect();
                for entry in &entries {
                    promises.possible.entry(entry.log_index().get()).or_default().push(entry.clone());
                }
                if store.append(entries).is_err() {
                    return promises;
                }
                next += count;
                for index in next - count..next {
                    let possible = promises.possible.get_mut(&index).unwrap();
                    possible.drain(..possible.len() - 1);
                }
                promises.floor = next.checked_sub(1);
            }
            6 => {
                term += 1;
                promises.vote_asked = term;
                if store.vote(term).is_err() {
                    return promises;
                }
                promises.vote = term;
            }
            7 => {
                let least = committed.map_or(0, |committed| committed + 1);
                let end = least + numbers.below(next - least + 1);
                if end == next || next == 0 {
                    continue;
                }
                promises.floor = promises.floor.min(end.checked_sub(1));
                if end == 0 {
                    promises.floor = None;
                }
                let keep = end.checked_sub(1).map(|keep| raft_id(terms(&promises, keep), keep));
                if store.truncate_after(keep).is_err() {
                    return promises;
                }
                promises.possible.retain(|index, _| *index < end);
                next = end;
            }
            8 => {
                let Some(last) = next.checked_sub(1) else { continue };
                committed = Some(committed.unwrap_or(0).max(numbers.below(last + 1)));
                let committed = committed.unwrap();
                store.commit(raft_id(terms(&promises, committed), committed));
            }
            _ => {
                let Some(limit) = committed else { continue };
                let through = numbers.below(limit + 1);
                if promises.purged.is_some_and(|purged| purged >= through) {
                    continue;
                }
                promises.purged = Some(through);
                if store.purge(raft_id(terms(&promises, through), through)).is_err() {
                    return promises;
                }
            }
        }
    }
    promises
}

fn check(store: &mut Store, promises: &Promises, what: &str) {
    let vote = store.recovered.vote.map_or(0, |vote| vote.term);
    assert!((promises.vote..=promises.vote_asked).contains(&vote), "{what}: vote {vote}");
    let (purged, last) = store.log_state();
    let last = last.map(|last| last.index.get());
    let purged = purged.map(|purged| purged.index.get());
    assert!(last >= promises.floor, "{what}: {last:?} of {:?}", promises.floor);
    assert!(purged <= promises.purged, "{what}: purged {purged:?} of {:?}", promises.purged);
    let entries = store.entries(0, u64::MAX).unwrap();
    let first = purged.map_or(0, |purged| purged + 1);
    for (at, entry) in entries.iter().enumerate() {
        let index = first + at as u64;
        assert_eq!(index, entry.log_index().get(), "{what}: a hole");
        let possible = promises.possible.get(&index).unwrap_or_else(|| panic!("{what}: entry {index} came back"));
        let same = possible.iter().any(|one| one.id() == entry.id() && one.body == entry.body);
        assert!(same, "{what}: entry {index} is {entry:?}, not one of {possible:?}");
    }
    let next = last.map_or(first, |last| last + 1);
    let term = vote.max(promises.vote_asked) + 1;
    store.vote(term).unwrap();
    store.append(vec![entry(term, next, "one more")]).unwrap();
    assert_eq!(1, store.entries(next, next + 1).unwrap().len(), "{what}");
}

/// Crashes one script after every change. Returns how many changes it makes.
fn crash_everywhere(seed: u64, flush: FlushMode, cuts: u64) -> usize {
    for changes in 0.. {
        let disk = SimulatedDisk::new();
        let mut store = open_at(&disk, small_options(flush), "boot").unwrap();
        disk.die_after(changes);
        let promises = run(&mut store, seed);
        let died = disk.is_dead();
        drop(store);
        let mut disks = vec![(disk.after_kill(), "boot", StopClass::Process)];
        if flush == FlushMode::Sync {
            for cut in 0..cuts {
                let mut numbers = Numbers::new(seed ^ (cut << 32) ^ changes as u64);
                let survives = || match cut {
                    0 => false,
                    1 => true,
                    _ => numbers.below(2) == 0,
                };
                disks.push((disk.power_cut(survives), "another boot", StopClass::Os));
            }
        }
        for (at, (after, boot, stop)) in disks.into_iter().enumerate() {
            let what = format!("seed {seed}, {flush:?}, after {changes} changes, image {at}");
            let mut store = open_at(&after, small_options(flush), boot).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(stop, store.recovered.stop, "{what}");
            check(&mut store, &promises, &what);
            drop(store);
            // And once more: what the first start left is as good.
            let mut store = open_at(&after.after_kill(), small_options(flush), boot).unwrap();
            assert!(store.entries(0, u64::MAX).is_ok());
        }
        if !died {
            return changes;
        }
    }
    unreachable!("a script ends")
}

#[test]
fn a_crash_after_any_change_keeps_every_promise_in_synchronous_mode() {
    let slow = std::env::var_os("SLOW_TESTS").is_some();
    let (seeds, cuts) = if slow { (1..200, 8) } else { (1..5, 3) };
    for seed in seeds {
        let changes = crash_everywhere(seed, FlushMode::Sync, cuts);
        assert!(changes > 20, "seed {seed}");
    }
}

#[test]
fn a_kill_after_any_change_keeps_every_promise_in_asynchronous_mode() {
    let slow = std::env::var_os("SLOW_TESTS").is_some();
    let seeds = if slow { 1..200 } else { 1..5 };
    for seed in seeds {
        crash_everywhere(seed, FlushMode::ASYNC, 0);
    }
}

/// A snapshot that replaces the whole log, crashed after every change. The log goes on far behind the
/// old one, or in the midst of it, where the old one held what the leader never had.
#[test]
fn a_crash_while_a_snapshot_replaces_the_log_leaves_the_old_log_or_the_new_start() {
    replace_by_snapshot((16 << 10) * 40 + 4096 + 640);
    replace_by_snapshot((16 << 10) + 4096 + 640);
}

fn replace_by_snapshot(resume_at: u64) {
    use crate::ids::LogPosition;
    use crate::view::ResumePoint;
    for changes in 0.. {
        let disk = SimulatedDisk::new();
        let mut store = open_at(&disk, small_options(FlushMode::Sync), "boot").unwrap();
        store.vote(4).unwrap();
        for index in 0..30 {
            store.append(vec![entry(4, index, payload(index))]).unwrap();
        }
        let resume = ResumePoint { position: LogPosition::new(resume_at), chain: 77 };
        store.view.set_resume_point(id(4, 500), resume);
        disk.die_after(changes);
        let purged = store.purge(raft_id(4, 500));
        let appended = purged.is_ok().then(|| store.append(vec![entry(4, 501, "after")]));
        let died = disk.is_dead();
        drop(store);
        for (after, boot) in [
            (disk.after_kill(), "boot"),
            (disk.power_cut(|| false), "another boot"),
            (disk.power_cut(|| true), "another boot"),
        ] {
            let mut store = open_at(&after, small_options(FlushMode::Sync), boot)
                .unwrap_or_else(|e| panic!("after {changes} changes: {e}"));
            let (purged_now, last) = store.log_state();
            if purged.is_ok() || purged_now.is_some() {
                assert_eq!(Some(id(4, 500)), purged_now);
                if matches!(appended, Some(Ok(()))) {
                    assert_eq!(Some(id(4, 501)), last);
                    let found = store.entries(0, 1000).unwrap();
                    assert_eq!(Some(resume.position), found[0].position);
                }
            } else {
                assert_eq!(30, store.entries(0, 100).unwrap().len());
            }
        }
        if !died {
            assert!(changes > 5);
            return;
        }
    }
}

/// Starts on `disk`, with the start dying after every change in turn; each time the next start must
/// come to the same end.
fn die_while_starting(disk: &Arc<SimulatedDisk>, options: &Options, boots: [&str; 2], held: u64) {
    for changes in 0.. {
        let crashed = disk.after_kill();
        crashed.die_after(changes);
        drop(open_at(&crashed, options.clone(), boots[0]));
        let died = crashed.is_dead();
        let next = match boots[0] == boots[1] {
            true => crashed.after_kill(),
            false => crashed.power_cut(|| changes % 2 == 0),
        };
        let mut store = open_at(&next, options.clone(), boots[1])
            .unwrap_or_else(|e| panic!("{boots:?} after {changes} changes: {e}"));
        assert_eq!(held, store.entries(0, 1000).unwrap().len() as u64, "{boots:?} after {changes} changes");
        store.append(vec![entry(4, held, "one more")]).unwrap();
        if !died {
            assert!(changes > 5);
            return;
        }
    }
}

#[test]
fn a_start_that_dies_leaves_the_same_judgement_to_the_next() {
    use super::damage::{lazy, powerless, segment_name, unflushed, zero};
    // A torn tail, the process killed again and again.
    let disk = unflushed();
    zero(&disk, offset(9) + 64 + 300, offset(10));
    die_while_starting(&disk, &lazy(), ["boot", "boot"], 9);
    // A hole far from the end, with whole segments behind it, after a power cut.
    let disk = powerless(250);
    assert!(disk.names().contains(&segment_name(3)));
    zero(&disk, offset(20), offset(21));
    die_while_starting(&disk, &options(FlushMode::Sync), ["another boot", "a third boot"], 20);
    die_while_starting(&disk, &options(FlushMode::Sync), ["another boot", "another boot"], 20);
}
