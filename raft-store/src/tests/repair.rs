//! Damaged replicas made whole by the others.

use std::collections::BTreeMap;

use super::damage::{powerless, segment_name};
use super::*;
use crate::entry::LogEntry;
use crate::error::{Error, Result};
use crate::ids::LogPosition;
use crate::repair::{PeerRange, RangeAnswer, RangeSource, StoppedStore};

pub(super) const ENTRIES: u64 = 130;
pub(super) const SEGMENT: usize = 64 << 10;

/// A replica that answers, or says why it does not.
pub(super) enum Peer {
    Running(Store),
    Stopped(StoppedStore),
    Silent,
}

/// The other members, in order of their ids.
pub(super) struct Peers(pub(super) BTreeMap<u64, Peer>);

impl Peers {
    pub(super) fn of(peers: impl IntoIterator<Item = Peer>) -> Self {
        Self((2..).zip(peers).collect())
    }
}

impl RangeSource for Peers {
    fn peers(&self) -> Vec<u64> {
        self.0.keys().copied().collect()
    }

    fn fetch(&self, peer: u64, from: LogPosition, to: LogPosition) -> std::result::Result<PeerRange, String> {
        let text = |error: Error| error.to_string();
        // So little that a gap takes several answers.
        match &self.0[&peer] {
            Peer::Running(store) => store.view.serve_range(from, to, 1500).map_err(text),
            Peer::Stopped(store) => store.serve_range(from, to, 1500).map_err(text),
            Peer::Silent => Err("no answer".into()),
        }
    }
}

/// A replica with three segments, the last of them open.
pub(super) fn replica(entries: u64) -> (Arc<SimulatedDisk>, Store) {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    store.vote(4).unwrap();
    for index in 0..entries {
        store.append(vec![entry(4, index, payload(index))]).unwrap();
    }
    store.commit(raft_id(4, entries - 1));
    (disk, store)
}

pub(super) fn segments(disk: &SimulatedDisk) -> Vec<Vec<u8>> {
    (0..3).map(|number| disk.contents(&segment_name(number))).collect()
}

pub(super) fn record(number: usize) -> usize {
    4096 + number * 1088
}

type Damage = (&'static str, fn(&mut [u8]));

/// Everything a disk may do to the middle of a segment.
const SHAPES: [Damage; 7] = [
    ("a flipped bit of a payload", |bytes| bytes[record(7) + 500] ^= 4),
    ("a flipped bit of a header", |bytes| bytes[record(7) + 9] ^= 4),
    ("a page of zeros", |bytes| bytes[8192..12288].fill(0)),
    ("swapped pages", |bytes| {
        let (one, other) = bytes[8192..24576].split_at_mut(8192);
        one[..4096].swap_with_slice(&mut other[..4096]);
    }),
    ("a valid record elsewhere", |bytes| bytes.copy_within(record(3)..record(4), record(5))),
    ("a lost header", |bytes| bytes[..4096].fill(0)),
    ("a lost header and first record", |bytes| bytes[..4096 + 70].fill(0x5a)),
];

/// What is not record or opening may differ: a footer gets its digests with the repair.
#[track_caller]
pub(super) fn same_records(what: &str, expected: &[Vec<u8>], found: &[Vec<u8>]) {
    for (number, (expected, found)) in expected.iter().zip(found).enumerate() {
        assert_eq!(expected.len(), found.len(), "{what}, segment {number}");
        let footer = SEGMENT - 4096;
        assert!(expected[..footer] == found[..footer], "{what}, segment {number}");
    }
}

pub(super) fn all(store: &mut Store) -> Vec<LogEntry> {
    store.entries(0, u64::MAX).unwrap()
}

#[test]
fn a_running_replica_is_made_whole_whatever_the_damage() {
    let (healthy, peer) = replica(ENTRIES);
    let peers = Peers::of([Peer::Silent, Peer::Running(peer)]);
    for (what, damage) in SHAPES {
        for number in 0..3 {
            let (disk, mut store) = replica(ENTRIES);
            let name = segment_name(number);
            disk.damage(&name, damage);
            let base = LogPosition::new(number * SEGMENT as u64);
            let repaired = store.view.repair(base, &peers).unwrap();
            let header_only = what == "a lost header";
            assert_eq!(header_only, repaired.ranges.is_empty(), "{what} in {number}: {repaired:?}");
            same_records(what, &segments(&healthy), &segments(&disk));
            assert_eq!(ENTRIES, all(&mut store).len() as u64, "{what} in {number}");
            // The log goes on in it, and survives a start.
            store.append(vec![entry(4, ENTRIES, payload(1))]).unwrap();
            store.close();
            let mut store = open(&disk, FlushMode::Sync);
            assert_eq!(ENTRIES + 1, all(&mut store).len() as u64, "{what} in {number}");
        }
    }
}

#[test]
fn damage_found_by_a_read_is_noted_until_it_is_repaired() {
    let (_, peer) = replica(ENTRIES);
    let peers = Peers::of([Peer::Running(peer)]);
    let (disk, mut store) = replica(ENTRIES);
    disk.damage(FIRST, |bytes| bytes[record(7) + 500] ^= 4);
    assert!(store.entries(0, 20).is_err());
    let damage = store.view.damage();
    assert_eq!(1, damage.borrow().len());
    assert_eq!(record(7) as u64, damage.borrow()[0].from.get());
    // A read of a message finds it as well, before a byte of it is handed out.
    let (_, mut other) = replica(ENTRIES);
    let position = all(&mut other)[7].payload_position().unwrap();
    assert!(matches!(store.view.read(position, 10), Err(Error::Damaged { .. })));
    let damaged = disk.contents(FIRST)[record(7)..record(8)].to_vec();
    store.view.repair(LogPosition::ZERO, &peers).unwrap();
    assert!(damage.borrow().is_empty());
    let aside = disk.aside();
    assert_eq!(Some(&damaged), aside.get(&format!("{:020}-damaged", record(7))), "what is replaced is kept");
    assert_eq!(payload(7)[..10], store.view.read(position, 10).unwrap());
    assert_eq!(20, store.entries(0, 20).unwrap().len());
}

fn stopped(disk: &Arc<SimulatedDisk>) -> (LogPosition, StoppedStore) {
    let error = open_at(disk, options(FlushMode::Sync), "boot").err().expect("the start is refused");
    let base = StoppedStore::damaged_segment(&error).unwrap_or_else(|| panic!("not to be repaired: {error}"));
    (base, StoppedStore::over(&options(FlushMode::Sync), disk.clone(), None).unwrap())
}

/// Repairs until the store starts.
pub(super) fn start(disk: &Arc<SimulatedDisk>, peers: &Peers) -> Result<Store> {
    for _ in 0..5 {
        match open_at(disk, options(FlushMode::Sync), "boot") {
            Err(error) => {
                let Some(base) = StoppedStore::damaged_segment(&error) else { return Err(error) };
                let store = StoppedStore::over(&options(FlushMode::Sync), disk.clone(), None)?;
                store.repair(base, peers)?;
            }
            started => return started,
        }
    }
    panic!("repaired again and again");
}

#[test]
fn a_replica_that_does_not_start_is_made_whole_whatever_the_damage() {
    let (healthy, peer) = replica(ENTRIES);
    let peers = Peers::of([Peer::Running(peer), Peer::Silent]);
    for (what, damage) in SHAPES {
        // Of older segments a start reads no more than head and footer.
        for number in 1..3 {
            let (disk, store) = replica(ENTRIES);
            store.close();
            disk.damage(&segment_name(number), damage);
            let mut store = start(&disk, &peers).unwrap_or_else(|error| panic!("{what} in {number}: {error}"));
            assert_eq!(ENTRIES, all(&mut store).len() as u64, "{what} in {number}");
            same_records(what, &segments(&healthy), &segments(&disk));
        }
    }
}

#[test]
fn a_file_that_was_cut_is_written_anew() {
    let (healthy, peer) = replica(ENTRIES);
    let peers = Peers::of([Peer::Running(peer)]);
    for bytes in [0, 100, 5000, 20_000, 64_000] {
        let (disk, store) = replica(ENTRIES);
        store.close();
        disk.shorten(&segment_name(1), bytes);
        assert_eq!(ENTRIES, all(&mut start(&disk, &peers).unwrap()).len() as u64);
        same_records("cut", &segments(&healthy), &segments(&disk));
    }
    // A longer one, and one in which nothing shows that it ever was a segment, are somebody else's.
    let (disk, store) = replica(ENTRIES);
    store.close();
    disk.damage(&segment_name(1), |bytes| bytes.fill(0x5a));
    assert!(matches!(start(&disk, &peers).err(), Some(Error::ForeignFile { .. })));
}

#[test]
fn replicas_that_are_damaged_in_different_places_repair_each_other() {
    let (healthy, store) = replica(ENTRIES);
    drop(store);
    let disks: Vec<_> = (0..3).map(|_| replica(ENTRIES)).map(|(disk, store)| (store.close(), disk).1).collect();
    for (number, disk) in disks.iter().enumerate() {
        disk.damage(&segment_name(1), |bytes| bytes[record(3 * number) + 80..record(3 * number) + 90].fill(7));
    }
    let (base, first) = stopped(&disks[0]);
    let others = || disks[1..].iter().map(|disk| Peer::Stopped(stopped(disk).1));
    first.repair(base, &Peers::of(others())).unwrap();
    drop(first);
    let mut repaired = open(&disks[0], FlushMode::Sync);
    assert_eq!(ENTRIES, all(&mut repaired).len() as u64);
    let mut second = start(&disks[1], &Peers::of([Peer::Running(repaired)])).unwrap();
    assert_eq!(ENTRIES, all(&mut second).len() as u64);
    same_records("both", &segments(&healthy), &segments(&disks[1]));
}

#[test]
fn a_record_damaged_on_every_copy_is_named_and_nothing_changes() {
    let flip = |disk: &SimulatedDisk| disk.damage(FIRST, |bytes| bytes[record(7) + 500] ^= 4);
    let (disk, store) = replica(ENTRIES);
    let others = [replica(ENTRIES), replica(ENTRIES)].map(|(disk, store)| {
        flip(&disk);
        Peer::Running(store)
    });
    flip(&disk);
    let before = disk.contents(FIRST);
    let error = store.view.repair(LogPosition::ZERO, &Peers::of(others)).unwrap_err();
    let Error::NotRepaired { from, to, everywhere, .. } = &error else { panic!("{error}") };
    assert_eq!((record(7) as u64, record(8) as u64, true), (from.get(), to.get(), *everywhere));
    assert!(error.to_string().contains("node 2: is damaged there too; node 3: is damaged there too"), "{error}");
    assert_eq!(before, disk.contents(FIRST));
    assert!(disk.names().iter().all(|name| !name.contains("repair")));
    // While one has not answered, it may have a good copy.
    let (_, other) = replica(ENTRIES);
    let peers = Peers::of([Peer::Silent, Peer::Running(other)]);
    store.view.repair(LogPosition::ZERO, &peers).unwrap();
    assert!(store.view.damage().borrow().is_empty());
}

#[test]
fn records_of_another_history_are_not_accepted() {
    // The same entries, one of them with other contents, as after a mix-up of clusters with one id.
    let other_at = |other: u64| {
        let mut store = open(&SimulatedDisk::new(), FlushMode::Sync);
        store.vote(4).unwrap();
        for index in 0..ENTRIES {
            let contents = if index == other { vec![9; 1024] } else { payload(index) };
            store.append(vec![entry(4, index, contents)]).unwrap();
        }
        Peers::of([Peer::Running(store)])
    };
    let peers = other_at(7);
    let (disk, store) = replica(ENTRIES);
    disk.damage(FIRST, |bytes| bytes[record(7) + 500] ^= 4);
    let before = disk.contents(FIRST);
    let error = store.view.repair(LogPosition::ZERO, &peers).unwrap_err();
    assert!(matches!(error, Error::NotRepaired { unfit: true, .. }), "{error}");
    assert_eq!(before, disk.contents(FIRST));

    // Behind the damage is nothing that it could lead to, but it must follow what stands before.
    let (disk, store) = replica(ENTRIES);
    store.close();
    let last = usize::try_from(ENTRIES - 1 - 104).unwrap();
    disk.damage(&segment_name(2), |bytes| bytes[record(last) + 100] ^= 1);
    let mut store = start(&disk, &other_at(ENTRIES - 2)).unwrap();
    assert_eq!(ENTRIES - 1, all(&mut store).len() as u64);
}

#[test]
fn a_damaged_end_is_what_the_most_up_to_date_of_all_others_has() {
    // Entry 129 is the last one here, and damaged.
    let damaged = || {
        let (disk, store) = replica(ENTRIES);
        store.close();
        let end = usize::try_from(ENTRIES - 104).unwrap();
        disk.damage(&segment_name(2), |bytes| bytes[record(end - 1) + 100] ^= 1);
        disk
    };
    let peer = |entries| Peer::Running(replica(entries).1);
    let check = |peers: Peers, expected: std::result::Result<u64, &str>| {
        let disk = damaged();
        match (start(&disk, &peers), expected) {
            (Ok(mut store), Ok(entries)) => {
                assert_eq!(entries, all(&mut store).len() as u64);
                let next = entry(4, entries, payload(entries));
                store.append(vec![next]).unwrap();
            }
            (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
            (Ok(_), Err(text)) => panic!("started instead of: {text}"),
            (Err(error), Ok(_)) => panic!("{error}"),
        }
    };
    // One of them has it: it may have been chosen.
    check(Peers::of([peer(ENTRIES - 1), peer(ENTRIES)]), Ok(ENTRIES));
    check(Peers::of([peer(ENTRIES + 3), peer(ENTRIES)]), Ok(ENTRIES + 3));
    // Nobody has it: it never was.
    check(Peers::of([peer(ENTRIES - 1), peer(ENTRIES - 1)]), Ok(ENTRIES - 1));
    // Whoever is silent may be the one that has it.
    check(Peers::of([peer(ENTRIES - 1), Peer::Silent]), Err("no answer"));
    let (disk, store) = replica(ENTRIES);
    store.close();
    disk.damage(&segment_name(1), |bytes| bytes[record(7) + 500] ^= 4);
    check(Peers::of([peer(ENTRIES - 1), Peer::Stopped(stopped(&disk).1)]), Err("does not know where its own log ends"));
    // Of two that end alike, one is damaged there as well.
    let also_damaged = || {
        let (disk, store) = replica(ENTRIES);
        let end = usize::try_from(ENTRIES - 104).unwrap();
        disk.damage(&segment_name(2), |bytes| bytes[record(end - 1) + 200] ^= 1);
        Peer::Running(store)
    };
    check(Peers::of([peer(ENTRIES), also_damaged()]), Ok(ENTRIES));
    check(Peers::of([also_damaged(), peer(ENTRIES)]), Ok(ENTRIES));
    check(Peers::of([also_damaged(), also_damaged()]), Err("node 3: is damaged there too"));
}

/// Bytes that changed in what a power cut left, not proven to be on disk, in synchronous mode: this node may have
/// acknowledged them, and its copy may be the last. So they are fetched; or go, if they were never chosen; or stay.
#[test]
fn rot_that_a_power_cut_left_is_fetched_or_kept_and_costs_no_identity() {
    let start = |disk: &Arc<SimulatedDisk>| open_at(disk, options(FlushMode::Sync), "another boot");
    let repair = |disk: &Arc<SimulatedDisk>, peers: &Peers| {
        let base = StoppedStore::damaged_segment(&start(disk).err().expect("refused")).expect("to be repaired");
        StoppedStore::over(&options(FlushMode::Sync), disk.clone(), None).unwrap().repair(base, peers)
    };
    let rotten = || {
        let disk = powerless(10);
        disk.damage(FIRST, |bytes| bytes[record(9) + 100] ^= 1);
        disk
    };
    let peer = |entries| Peer::Running(replica(entries).1);
    for (peers, left) in [([peer(9), peer(10)], 10), ([peer(9), peer(9)], 9)] {
        let disk = rotten();
        repair(&disk, &Peers::of(peers)).unwrap();
        let mut store = start(&disk).unwrap();
        assert_eq!((left, Some(1)), (all(&mut store).len(), store.recovered.node_id));
    }
    let disk = rotten();
    let before = disk.contents(FIRST);
    let (other, store) = replica(10);
    other.damage(FIRST, |bytes| bytes[record(9) + 300] ^= 1);
    let error = repair(&disk, &Peers::of([peer(9), Peer::Running(store)])).unwrap_err();
    let Error::NotRepaired { from, everywhere, .. } = &error else { panic!("{error}") };
    assert_eq!((record(9) as u64, true), (from.get(), *everywhere), "{error}");
    assert_eq!(before, disk.contents(FIRST));
    // Nothing was given up: with a peer that is put right it goes on as the one it was.
    repair(&disk, &Peers::of([peer(9), peer(10)])).unwrap();
    let mut store = start(&disk).unwrap();
    assert_eq!((10, Some(1)), (all(&mut store).len(), store.recovered.node_id));
}

#[test]
fn a_peer_tells_what_it_has_and_what_not() {
    let (disk, mut store) = replica(ENTRIES);
    let ask = |store: &Store, from: usize| {
        store.view.serve_range(LogPosition::new(from as u64), LogPosition::new(u64::MAX), 100).unwrap().answer
    };
    let at = |number: usize| record(number);
    assert!(matches!(ask(&store, at(3)), RangeAnswer::Have(bytes) if bytes.len() == 1088));
    assert_eq!(RangeAnswer::Other, ask(&store, at(3) + 64));
    assert_eq!(RangeAnswer::NeverHad, ask(&store, 2 * SEGMENT + at(26)));
    assert_eq!(RangeAnswer::NeverHad, ask(&store, 9 * SEGMENT));
    disk.damage(FIRST, |bytes| bytes[record(7) + 500] ^= 4);
    assert_eq!(RangeAnswer::Damaged, ask(&store, at(7)));
    assert_eq!(1, store.view.damage().borrow().len(), "what is damaged here is noted here");
    assert!(matches!(ask(&store, at(8)), RangeAnswer::Have(_)));
    store.purge(raft_id(4, 60)).unwrap();
    store.vote(5).unwrap();
    assert_eq!(RangeAnswer::Purged, ask(&store, at(3)));
}

#[test]
fn a_failed_repair_leaves_the_log_in_use() {
    let (_, peer) = replica(ENTRIES);
    let peers = Peers::of([Peer::Running(peer)]);
    let (disk, mut store) = replica(ENTRIES);
    disk.damage(FIRST, |bytes| bytes[record(7) + 500] ^= 4);
    for fault in [SimulatedDisk::fail_next_write, SimulatedDisk::fail_next_sync] {
        fault(&disk, &format!("{FIRST}.repair"));
        store.view.repair(LogPosition::ZERO, &peers).unwrap_err();
        let last = store.log_state().1.unwrap().index.get();
        store.append(vec![entry(4, last + 1, "goes on")]).unwrap();
    }
    store.view.repair(LogPosition::ZERO, &peers).unwrap();
    assert_eq!(20, store.entries(0, 20).unwrap().len());
}
