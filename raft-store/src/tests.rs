//! Tests of the whole store over a simulated disk.

mod anywhere;
mod crash;
mod damage;
mod full;
mod model;
mod notes;
mod order;
mod power;
mod repair;
mod retire;
mod scrub;
mod stall;

use std::sync::Arc;

use crate::identity::Evidence;
use crate::log_storage::open_locked;
use crate::options::{FlushMode, Options};
use crate::region::simulated::SimulatedDisk;
use crate::support::{self, Store, entry, id, raft_id};

pub(super) const FIRST: &str = "00000000000000000000";

pub(super) fn evidence(boot: &str) -> Evidence {
    Evidence { boot_id: boot.into(), disk_sequence: 1, mount_id: 1 }
}

pub(super) fn options(flush: FlushMode) -> Options {
    support::options(std::path::Path::new("/simulated"), flush)
}

pub(super) fn open_at(disk: &Arc<SimulatedDisk>, options: Options, boot: &str) -> crate::Result<Store> {
    open_locked(options, disk.clone(), evidence(boot), None).map(Store::new)
}

pub(super) fn open(disk: &Arc<SimulatedDisk>, flush: FlushMode) -> Store {
    open_at(disk, options(flush), "boot").unwrap()
}

/// Ten entries of term 4, a kilobyte each, indexes 0 to 9.
pub(super) fn ten_entries(store: &mut Store) {
    store.vote(4).unwrap();
    for index in 0..10 {
        store.append(vec![entry(4, index, payload(index))]).unwrap();
    }
}

/// A kilobyte without zeros.
pub(super) fn payload(index: u64) -> Vec<u8> {
    vec![u8::try_from(index % 200).unwrap() + 1; 1024]
}

/// Offset of entry `index` of [`ten_entries`].
pub(super) fn offset(index: usize) -> usize {
    4096 + index * (64 + 1024)
}
