//! Damage of any kind in any place, bytes that the disk cannot read among it.

use std::ops::Range;

use super::crash::Numbers;
use super::damage::segment_name;
use super::repair::{ENTRIES, Peer, Peers, SEGMENT, all, record, replica, same_records, segments, start};
use super::*;
use crate::error::{Error, Result};

/// Reads the whole log, and has whatever that meets repaired.
fn read_all(store: &mut Store, peers: &Peers) -> Result<u64> {
    for _ in 0..5 {
        if let Ok(entries) = store.entries(0, u64::MAX) {
            return Ok(entries.len() as u64);
        }
        let damaged = store.view.damage().borrow().clone();
        assert!(!damaged.is_empty(), "an error that is not noted as damage");
        for range in damaged {
            store.view.repair(range.base, peers)?;
        }
    }
    panic!("repaired again and again")
}

#[test]
fn bytes_that_cannot_be_read_are_fetched_whether_the_store_runs_or_not() {
    let (healthy, peer) = replica(ENTRIES);
    let peers = Peers::of([Peer::Running(peer)]);
    let parts = [
        ("a page of records", 8192..12288),
        ("the head", 0..512),
        ("the opening", 512..1024),
        ("the whole header", 0..4096),
        ("the footer", SEGMENT - 4096..SEGMENT),
    ];
    for (what, gone) in parts {
        for number in 0..3 {
            let (disk, mut store) = replica(ENTRIES);
            disk.make_unreadable(&segment_name(number), gone.clone());
            assert_eq!(ENTRIES, read_all(&mut store, &peers).unwrap(), "{what} of {number}");
            store.close();
            // What nobody reads of a running store, its next start finds.
            let mut store = start(&disk, &peers).unwrap_or_else(|error| panic!("{what} of {number}: {error}"));
            assert_eq!(ENTRIES, read_all(&mut store, &peers).unwrap(), "{what} of {number}");
            same_records(what, &segments(&healthy), &segments(&disk));
        }
    }
}

/// Damages a replica somewhere. Returns which bytes, and what was done to them.
fn damage_somewhere(disk: &SimulatedDisk, random: &mut Numbers) -> (Range<u64>, String) {
    let number = random.below(3);
    let name = segment_name(number);
    // What records are made of and found by. What lies behind a closed segment's pad only its digests cover.
    let written = if number == 2 { record(10) } else { record(52) + 64 };
    let at = usize::try_from(random.below(written as u64)).unwrap();
    // The rest of the header is used for nothing.
    let at = if (1024..4096).contains(&at) { at % 1024 } else { at };
    let sector = at / 512 * 512..at / 512 * 512 + 512;
    let (what, range) = match random.below(4) {
        0 => {
            disk.damage(&name, |bytes| bytes[at] ^= 1 << (at % 8));
            ("a flipped bit", at..at + 1)
        }
        1 => {
            disk.damage(&name, |bytes| bytes[sector.clone()].fill(0));
            ("a sector of zeros", sector)
        }
        2 => {
            disk.make_unreadable(&name, at / 4096 * 4096..at / 4096 * 4096 + 4096);
            ("a page that cannot be read", at / 4096 * 4096..at / 4096 * 4096 + 4096)
        }
        _ => {
            let range = at..(at + 70).min(written);
            disk.damage(&name, |bytes| bytes[range.clone()].fill(0x5a));
            ("other bytes", range)
        }
    };
    let base = number * SEGMENT as u64;
    let range = base + range.start as u64..base + range.end as u64;
    let text = format!("{what} at {range:?}");
    (range, text)
}

/// A thousand times: one replica is damaged somewhere, and another somewhere else. Every byte comes back, whether a start
/// or a read meets the damage. Only what both have lost is not to be had while the third member does not answer; that is
/// named, and nothing else is.
#[test]
fn a_thousand_random_damages_are_each_repaired_or_named() {
    const ROUNDS: u64 = 1000;
    let (healthy, mut third) = replica(ENTRIES);
    assert_eq!(ENTRIES, all(&mut third).len() as u64);
    let expected = segments(&healthy);
    let mut third = Some(third);
    let mut random = Numbers::new(7);
    let (mut repaired, mut named) = (0, 0);
    for round in 0..ROUNDS {
        let (disk, other) = (healthy.after_kill(), healthy.after_kill());
        // It runs already when it is damaged: it knows its log, and learns of the damage when it is asked.
        let peer = open(&other, FlushMode::Sync);
        let (range, what) = damage_somewhere(&disk, &mut random);
        let (_, others) = damage_somewhere(&other, &mut random);
        let context = format!("round {round}: {what}; the other has {others}");
        let silent = random.below(2) == 0;
        let last = if silent { Peer::Silent } else { Peer::Running(third.take().unwrap()) };
        let mut peers = Peers::of([Peer::Running(peer), last]);

        let outcome = start(&disk, &peers).and_then(|mut store| read_all(&mut store, &peers));
        // What is beside the records is found by the start after that.
        let outcome = outcome.and_then(|entries| start(&disk, &peers).map(|_| entries));
        match outcome {
            Ok(entries) => {
                repaired += 1;
                assert_eq!(ENTRIES, entries, "{context}");
                for (expected, found) in expected.iter().zip(segments(&disk)) {
                    assert!(expected[4096..SEGMENT - 4096] == found[4096..SEGMENT - 4096], "{context}");
                }
            }
            Err(Error::NotRepaired { from, to, .. }) => {
                named += 1;
                assert!(silent, "{context}: {from} to {to} was to be had");
                // To the record that the damage begins in, and the first whole one behind it.
                let near = from.get() <= range.end && range.start < to.get() + 1088;
                assert!(near, "{context}: {from} to {to} is named");
            }
            Err(error) => panic!("{context}: {error}"),
        }
        if let Some(Peer::Running(running)) = peers.0.remove(&3) {
            third = Some(running);
        }
    }
    assert_eq!(ROUNDS, repaired + named);
    assert!(named > 0 && repaired > ROUNDS / 2, "{repaired} repaired, {named} named");
}
