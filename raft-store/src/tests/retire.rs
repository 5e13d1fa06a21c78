//! Identities that are given up, the flush mode that decides when, and a configuration begun without a majority.

use std::collections::{BTreeMap, BTreeSet};

use super::damage::{lazy, unflushed, zero};
use super::*;
use crate::entry::{Body, Member, Membership};
use crate::error::Error;
use crate::ids::LogIndex;
use crate::view::StopClass;

/// What a group says in its log to flush synchronously.
const BE_SYNC: &[u8] = b"be sync";

fn told_to_sync() -> Options {
    let mut options = lazy();
    options.starts_sync = |payload| payload == BE_SYNC;
    options
}

fn retired_ids(store: &Store) -> Vec<u64> {
    store.recovered.retired.iter().map(|retired| retired.node_id).collect()
}

#[test]
fn a_retired_identity_stays_retired_until_another_is_given_out() {
    let disk = unflushed();
    let before = open_at(&disk, lazy(), "boot").unwrap();
    let old_uuid = before.recovered.store_uuid;
    before.kill();
    let mut store = open_at(&disk, lazy(), "another boot").unwrap();
    assert_eq!((StopClass::Os, None), (store.recovered.stop, store.recovered.node_id));
    assert_eq!(old_uuid, store.recovered.retired[0].store_uuid);
    assert_ne!(old_uuid, store.recovered.store_uuid);
    assert_eq!(10, store.entries(0, 100).unwrap().len(), "what is there is kept");
    let uuid = store.recovered.store_uuid;
    store.kill();
    for boot in ["another boot", "boot 2", "boot 3"] {
        let store = open_at(&disk, lazy(), boot).unwrap();
        assert_eq!((None, vec![1]), (store.recovered.node_id, retired_ids(&store)));
        assert_eq!(uuid, store.recovered.store_uuid, "a leader that has given an id to this name gives the same again");
        store.kill();
    }
    let store = open_at(&disk, lazy(), "boot 3").unwrap();
    store.view.adopt_identity(77, 0).unwrap();
    store.kill();
    let store = open_at(&disk, lazy(), "boot 3").unwrap();
    assert_eq!((Some(77), vec![1], uuid), (store.recovered.node_id, retired_ids(&store), store.recovered.store_uuid));
    store.kill();
    // Lost once more.
    let store = open_at(&disk, lazy(), "boot 4").unwrap();
    assert_eq!((None, vec![1, 77]), (store.recovered.node_id, retired_ids(&store)));
    drop(store);
    let mut other = lazy();
    other.node_id = 77;
    let error = open_at(&disk, other, "boot 4").err().unwrap();
    assert!(matches!(error, Error::ForeignNode { found: 1, expected: 77, .. }), "{error}");
}

#[test]
fn a_torn_tail_is_cut_under_a_retired_identity() {
    let disk = unflushed();
    zero(&disk, offset(9) + 64 + 300, offset(10));
    let mut store = open_at(&disk, lazy(), "another boot").unwrap();
    assert_eq!((None, 9), (store.recovered.node_id, store.entries(0, 100).unwrap().len()), "nothing behind the tear");
    let disk = unflushed();
    zero(&disk, offset(5), offset(6));
    let mut store = open_at(&disk, lazy(), "another boot").unwrap();
    assert_eq!((None, 5), (store.recovered.node_id, store.entries(0, 100).unwrap().len()), "valid records behind it");
    for index in 5..8 {
        store.append(vec![entry(4, index, payload(index))]).unwrap();
    }
    store.kill();
    // No identity, so nothing to lose: a hole is cut however the process ended.
    zero(&disk, offset(6), offset(7));
    let mut store = open_at(&disk, lazy(), "another boot").unwrap();
    assert_eq!((None, vec![1]), (store.recovered.node_id, retired_ids(&store)));
    assert!(store.entries(0, 100).unwrap().len() >= 5);
}

#[test]
fn changed_bytes_after_a_power_cut_cost_the_identity_in_asynchronous_mode() {
    let disk = unflushed();
    disk.damage(FIRST, |bytes| bytes[offset(9) + 100] ^= 1);
    let mut store = open_at(&disk, lazy(), "another boot").unwrap();
    // What may have been acknowledged here comes from the leader, to another identity.
    assert_eq!((None, vec![1]), (store.recovered.node_id, retired_ids(&store)));
    assert_eq!(9, store.entries(0, 100).unwrap().len());
}

#[test]
fn an_identity_is_given_up_on_demand_and_in_either_mode() {
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, FlushMode::Sync);
    ten_entries(&mut store);
    store.view.close().unwrap();
    drop(store);
    let mut told = options(FlushMode::Sync);
    told.retire = true;
    let mut store = open_at(&disk, told, "boot").unwrap();
    assert_eq!((StopClass::Clean, None, vec![1]), (store.recovered.stop, store.recovered.node_id, retired_ids(&store)));
    assert_eq!(10, store.entries(0, 100).unwrap().len());
}

#[test]
fn an_empty_store_in_place_of_a_lost_one_waits_for_an_identity() {
    let disk = SimulatedDisk::new();
    let mut lost = options(FlushMode::Sync);
    (lost.create, lost.rejoin) = (false, true);
    for _ in 0..2 {
        let store = open_at(&disk, lost.clone(), "boot").unwrap();
        assert_eq!((None, vec![1]), (store.recovered.node_id, retired_ids(&store)));
        assert_eq!(crate::LOST_STORE, store.recovered.retired[0].store_uuid);
        assert_ne!(crate::LOST_STORE, store.recovered.store_uuid);
        store.kill();
        // From now on it is a store like any other.
        lost.rejoin = false;
    }
    let store = open_at(&disk, lost.clone(), "boot").unwrap();
    store.view.adopt_identity(77, 0).unwrap();
    store.kill();
    lost.rejoin = true;
    let store = open_at(&disk, lost, "boot").unwrap();
    assert_eq!((Some(77), vec![1]), (store.recovered.node_id, retired_ids(&store)), "what is there counts");
}

#[test]
fn the_file_and_not_the_options_say_how_an_existing_store_flushes() {
    let disk = unflushed();
    let store = open_at(&disk, options(FlushMode::Sync), "boot").unwrap();
    assert!(!store.view.flush_is_sync());
    store.kill();
    let store = open_at(&disk, options(FlushMode::Sync), "another boot").unwrap();
    assert_eq!(None, store.recovered.node_id, "it had acknowledged from memory");
}

#[test]
fn an_entry_that_announces_synchronous_flush_is_obeyed_before_it_is_answered() {
    let disk = SimulatedDisk::new();
    let mut store = open_at(&disk, told_to_sync(), "boot").unwrap();
    ten_entries(&mut store);
    assert!(!store.view.flush_is_sync());
    store.append(vec![entry(4, 10, BE_SYNC)]).unwrap();
    assert!(store.view.flush_is_sync());
    let marks = store.view.watermarks();
    assert_eq!(marks.end, marks.flushed_end, "everything before is on disk as well");
    store.append(vec![entry(4, 11, payload(11))]).unwrap();
    store.kill();
    let mut store = open_at(&disk.power_cut(|| false), told_to_sync(), "another boot").unwrap();
    assert_eq!((StopClass::Os, Some(1)), (store.recovered.stop, store.recovered.node_id));
    assert_eq!(12, store.entries(0, 100).unwrap().len());
}

#[test]
fn the_mode_changes_at_the_entry_that_says_so_and_a_late_call_weakens_nothing() {
    let disk = SimulatedDisk::new();
    let mut store = open_at(&disk, told_to_sync(), "boot").unwrap();
    ten_entries(&mut store);
    store.view.set_flush_is_sync(true, LogIndex::new(3)).unwrap();
    let marks = store.view.watermarks();
    assert_eq!((true, marks.end), (store.view.flush_is_sync(), marks.flushed_end));
    store.view.set_flush_is_sync(false, LogIndex::new(9)).unwrap();
    assert!(!store.view.flush_is_sync());
    store.append(vec![entry(4, 10, BE_SYNC)]).unwrap();
    store.view.set_flush_is_sync(false, LogIndex::new(9)).unwrap();
    assert!(store.view.flush_is_sync(), "entry 10 said otherwise");
    store.view.set_flush_is_sync(false, LogIndex::new(12)).unwrap();
    assert!(!store.view.flush_is_sync());
    store.kill();
    // The weaker mode was on disk before it held.
    let store = open_at(&disk.power_cut(|| false), told_to_sync(), "another boot").unwrap();
    assert_eq!(None, store.recovered.node_id);
}

#[test]
fn a_configuration_begun_without_a_majority_survives_any_crash_on_the_way() {
    let member = |node: &str| Member { node: node.into(), ..Member::default() };
    let nodes = BTreeMap::from([(2, member("n2")), (900, member("n1"))]);
    let membership = Membership::new(vec![BTreeSet::from([900])], nodes).unwrap();
    let mut crashes = 0;
    loop {
        let disk = unflushed();
        let store = open_at(&disk, lazy(), "another boot").unwrap();
        disk.die_after(crashes);
        let begun = store.block_on(store.view.begin_configuration(900, 1, 104, &membership));
        let done = begun.is_ok();
        store.kill();
        let disk = disk.power_cut(|| false);
        let store = open_at(&disk, lazy(), "a third boot").unwrap();
        let vote = store.view.vote().unwrap();
        if !done {
            // Without an identity it is the operator's turn again, whatever the crash has left.
            if store.recovered.node_id.is_none() {
                let term = vote.term.max(store.recovered.last.map_or(0, |last| last.term.get())) + 100;
                store.block_on(store.view.begin_configuration(900, 1, term, &membership)).unwrap();
            }
            crashes += 1;
            assert!(crashes < 100, "it never succeeds");
            continue;
        }
        assert_eq!((None, vec![1, 900]), (store.recovered.node_id, retired_ids(&store)), "async, so retired again");
        assert_eq!((1, 104, 900, false), (store.recovered.generation, vote.term, vote.node_id, vote.committed));
        assert_eq!(Some(id(104, 10)), store.recovered.last);
        let mut store = store;
        assert_eq!(Body::Membership(membership), store.entries(10, 11).unwrap()[0].body);
        break;
    }
    assert!(crashes > 3, "{crashes}");
}
