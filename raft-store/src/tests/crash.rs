//! A scripted workload, interrupted at every change of the disk.
//!
//! One run is recorded; each of its moments gives many disks: the process killed, the process killed in the midst of a
//! write, the process killed with writes that the operating system then lost, and power cuts. In a power cut every page
//! that was not synced survives, in whole or in part, or does not, and so does every name that was changed since its
//! directory was synced: all combinations while these are few, a sample with a seed once they are many. The store is
//! started on each of these disks, looked at, used, and then loses power again.
//!
//! Invariants: nothing acknowledged is lost, nothing truncated comes back, vote and log never go back, there is no hole,
//! a purged log has its checkpoint, what a start reports is on disk, and the log goes on. In asynchronous mode a power
//! cut may take what was acknowledged from memory: then the store does not start under its old id, and holds no less than
//! what was synced.
//!
//! Mutants that these tests were seen to find, each a few lines changed in the code they protect:
//!
//! * a sync of a segment, of the vote, of a new file or of a directory is left out, or an append is answered before it;
//! * of several segments that are not on disk only the newest is synced;
//! * the vote is saved before the log bytes before it are on disk;
//! * a truncation does not zero what it cuts, does not note its intention first, or removes earlier segments first;
//! * several segments are removed under one sync of the directory;
//! * segments are removed before the purged mark is on disk, or the mark runs ahead of the log;
//! * a start does not write the head of a segment that holds no record yet again, or trusts zeros that it reads;
//! * a start does not save the hints again, or does not sync the directory;
//! * the identity is kept after a power cut in asynchronous mode.

mod script;

use std::sync::Arc;

use self::script::{CHECKPOINTS, CURRENT, Promises, Script, contents_of};
use super::*;
use crate::LogEntry;
use crate::error::Error;
use crate::region::simulated::{Moment, Sectors, WHOLE};
use crate::view::StopClass;

/// A small generator: the same numbers for the same seed, everywhere.
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn new(seed: u64) -> Self {
        // Seeds that differ in few bits give numbers that differ in all.
        let mixed = (seed ^ seed >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

fn small_options(flush: FlushMode) -> Options {
    let mut options = match flush {
        FlushMode::Sync => options(flush),
        // Nothing is flushed unless something asks for it, or much is written.
        FlushMode::Async { .. } => damage::lazy(),
    };
    options.segment_bytes = 16 << 10;
    options.unflushed_bytes_max = 12 << 10;
    options
}

/// How a disk came to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Crash {
    Kill,
    PowerCut,
}

/// All disks that a crash at `moment` can leave, or a sample: of `one_in` of them one.
fn for_each_disk(
    moments: [Option<&Moment>; 2],
    seed: u64,
    one_in: u64,
    mut visit: impl FnMut(&str, Crash, Arc<SimulatedDisk>),
) {
    /// Up to so many things that may or may not survive, every combination is tried.
    const EVERY_SUBSET_UP_TO: usize = 5;
    const RANDOM_SUBSETS: u64 = 64;
    const RANDOM_TEARS: u64 = 16;
    let [before, moment] = moments;
    let moment = moment.unwrap();
    let mut numbers = Numbers::new(seed);
    if numbers.below(one_in.div_ceil(4)) == 0 {
        visit("killed", Crash::Kill, moment.kill());
    }
    if numbers.below(one_in.div_ceil(4)) == 0 {
        visit("killed, write-back lost", Crash::Kill, moment.kill_and_lose_write_back());
    }
    let mut chosen = || numbers.below(one_in) == 0;
    for disk in before.map_or_else(Vec::new, |before| moment.kills_on_the_way(before)) {
        if chosen() {
            visit("killed in a write", Crash::Kill, disk);
        }
    }
    let units = moment.units();
    let mut cut = |what: &str, survives: &mut dyn FnMut(usize) -> Sectors| {
        if chosen() {
            let mut at = 0;
            let disk = moment.power_cut(|| {
                at += 1;
                survives(at - 1)
            });
            assert_eq!(units, at);
            visit(what, Crash::PowerCut, disk);
        }
    };
    let if_so = |survives: bool| if survives { WHOLE } else { 0 };
    if units <= EVERY_SUBSET_UP_TO {
        for subset in 0..1u32 << units {
            cut(&format!("subset {subset:b} of {units}"), &mut |at| if_so(subset >> at & 1 == 1));
        }
    } else {
        for limit in 0..=units {
            cut(&format!("the first {limit} of {units}"), &mut |at| if_so(at < limit));
            cut(&format!("all of {units} but {limit}"), &mut |at| if_so(at != limit));
            cut(&format!("only {limit} of {units}"), &mut |at| if_so(at == limit));
        }
        for sample in 0..RANDOM_SUBSETS {
            let mut numbers = Numbers::new(seed ^ (sample + 1) << 40);
            cut(&format!("sample {sample} of {units}"), &mut |_| if_so(numbers.below(2) == 0));
        }
    }
    if units > 0 {
        for sample in 0..RANDOM_TEARS {
            let mut numbers = Numbers::new(seed ^ (sample + 1) << 48);
            cut(&format!("tear {sample} of {units}"), &mut |_| numbers.next().to_le_bytes()[3]);
        }
    }
}

/// Starts the store on what a crash left, and checks everything that was promised.
fn check(disk: &Arc<SimulatedDisk>, crash: Crash, flush: FlushMode, promises: &Promises, goes_on: bool, what: &str) {
    let mut options = small_options(flush);
    let boot = if crash == Crash::Kill { "boot" } else { "another boot" };
    let mut refused = false;
    let started = match open_at(disk, options.clone(), boot) {
        Err(error @ Error::Unrecoverable { .. }) if crash == Crash::PowerCut && flush != FlushMode::Sync => {
            assert!(error.to_string().contains("replace this replica under a new id"), "{what}: {error}");
            refused = true;
            // A lone replica goes on with what there is.
            options.alone = true;
            open_at(disk, options.clone(), boot)
        }
        started => started,
    };
    let mut store = started.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_ne!(StopClass::Latched, store.recovered.stop, "{what}");
    let vote = store.recovered.vote.map_or(0, |vote| vote.term);
    assert!((promises.voted..=promises.voting).contains(&vote), "{what}: vote {vote}");
    let (purged, last) = store.log_state();
    let last = last.map(|last| last.index.get());
    // An identity that is kept answers for everything that was acknowledged under it.
    let given_up = refused || store.recovered.node_id.is_none();
    assert!(!given_up || crash == Crash::PowerCut && flush != FlushMode::Sync, "{what}: the identity is given up");
    let floor = promises.floor(purged, given_up);
    assert!(last >= floor, "{what}: the log ends with {last:?}, below {floor:?}");
    assert!(promises.may_be_purged(purged), "{what}: purged {purged:?}");
    check_checkpoint(disk, purged.map(|purged| purged.index.get()), what);
    let entries = store.entries(0, u64::MAX).unwrap();
    let first = purged.map_or(0, |purged| purged.index.get() + 1);
    for (index, entry) in (first..).zip(&entries) {
        assert_eq!(index, entry.log_index().get(), "{what}: a hole");
        let possible = promises.possible.get(&index).unwrap_or_else(|| panic!("{what}: entry {index} came back"));
        let same = possible.iter().any(|one| one.id() == entry.id() && one.body == entry.body);
        assert!(same, "{what}: entry {index} is {entry:?}, not one of {possible:?}");
    }
    assert_eq!(last.map_or(first, |last| last + 1), first + entries.len() as u64, "{what}");

    // What the start reported is on disk, and the log goes on.
    let mut ids: Vec<_> = entries.iter().map(LogEntry::id).collect();
    let mut term = vote;
    if goes_on {
        let next = first + entries.len() as u64;
        store.append(vec![entry(vote, next, "one more")]).unwrap();
        ids.push(id(vote, next));
        term = promises.voting + 1;
        store.vote(term).unwrap();
    }
    store.kill();
    options.alone = true;
    let what = format!("{what}, {}and a power cut later", if goes_on { "one more entry, " } else { "" });
    let mut store =
        open_at(&disk.power_cut(|| false), options, "a later boot").unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(term, store.recovered.vote.map_or(0, |vote| vote.term), "{what}");
    assert_eq!(purged, store.log_state().0, "{what}");
    let later: Vec<_> = store.entries(0, u64::MAX).unwrap().iter().map(LogEntry::id).collect();
    assert_eq!(ids, later, "{what}");
}

/// What is purged is in a checkpoint.
fn check_checkpoint(disk: &SimulatedDisk, purged: Option<u64>, what: &str) {
    let Some(purged) = purged else { return };
    assert!(disk.names().iter().any(|name| name == CURRENT), "{what}: no checkpoint counts, {purged} are purged");
    let current: u64 = String::from_utf8(disk.contents(CURRENT)).unwrap().parse().unwrap();
    assert!(current >= purged, "{what}: the checkpoint {current} is older than what was purged, {purged}");
    let name = format!("{CHECKPOINTS}/{current}");
    assert!(disk.names().contains(&name), "{what}: the checkpoint {current} is gone");
    assert_eq!(contents_of(current), disk.contents(&name), "{what}: the checkpoint {current}");
}

/// Runs one script and crashes it everywhere. Returns how many disks were looked at.
fn crash_everywhere(seed: u64, flush: FlushMode, operations: usize, one_in: u64) -> usize {
    let disk = SimulatedDisk::new();
    disk.record();
    let script = Script::run(&disk, &small_options(flush), seed, operations);
    for what in ["roll", "truncation", "vote", "purge", "checkpoint", "replacement", "stop", "kill"] {
        let count = script.counts.get(what).copied().unwrap_or(0);
        assert!(count >= if what == "replacement" { 1 } else { 3 }, "seed {seed}: only {count} times {what}");
    }
    let promises = script.promises();
    drop(script);
    let moments = disk.take_moments();
    let mut disks = 0;
    for (at, moment) in moments.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| &moments[before]);
        let numbers = seed ^ (at as u64) << 20;
        for_each_disk([before, Some(moment)], numbers, one_in, |what, crash, disk| {
            let what = format!("seed {seed}, {flush:?}, moment {at} of {}, {what}", moments.len());
            check(&disk, crash, flush, &promises[moment.mark], disks % 2 == 0, &what);
            disks += 1;
        });
    }
    println!("seed {seed}, {flush:?}: {disks} disks after {} moments", moments.len());
    disks
}

/// How many operations, and of how many disks one is looked at.
fn extent() -> (std::ops::Range<u64>, usize, u64) {
    if std::env::var_os("SLOW_TESTS").is_some() { (1..9, 500, 1) } else { (1..2, 500, 20) }
}

#[test]
fn a_crash_at_any_moment_keeps_every_promise_in_synchronous_mode() {
    let (seeds, operations, one_in) = extent();
    for seed in seeds {
        let disks = crash_everywhere(seed, FlushMode::Sync, operations, one_in);
        assert!(disks > 1000, "only {disks} disks");
    }
}

#[test]
fn a_crash_at_any_moment_keeps_every_promise_in_asynchronous_mode() {
    let (seeds, operations, one_in) = extent();
    for seed in seeds {
        let disks = crash_everywhere(seed, FlushMode::ASYNC, operations, one_in);
        assert!(disks > 1000, "only {disks} disks");
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
