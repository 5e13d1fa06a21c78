//! What an append takes from the heap: something for each call, nothing for each record.
#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(unsafe_code, reason = "an allocator that counts is unsafe by its trait; it only passes calls on")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use raft_store::{FlushMode, LogEntry};
use support::{Store, entry, options};

/// Counts what all threads ask for.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is done by the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: `place` comes from the system's allocator, with this layout.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `place` comes from the system's allocator, with this layout.
        unsafe { System.realloc(place, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of 500 calls, each with this many records, the records themselves aside.
fn allocations(flush: FlushMode, records: u64) -> u64 {
    const CALLS: u64 = 500;
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), flush);
    options.segment_bytes = 256 << 20;
    options.tail_bytes = 1 << 20;
    let mut store = Store::open(options).unwrap();
    let payload = Bytes::from(vec![7; 1024]);
    let mut sum = 0;
    for call in 0..100 + CALLS {
        let batch: Vec<LogEntry> =
            (call * records..(call + 1) * records).map(|index| entry(1, index, payload.clone())).collect();
        let last = batch.last().unwrap().id();
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        store.append(batch).unwrap();
        // At first some things grow to their size, such as the tail and the queue.
        if call >= 100 {
            sum += ALLOCATIONS.load(Ordering::Relaxed) - before;
        }
        store.commit(last.to_raft());
    }
    sum
}

#[test]
fn an_append_allocates_nothing_for_each_record() {
    for flush in [FlushMode::ASYNC, FlushMode::Sync] {
        let (one, many) = (allocations(flush, 1), allocations(flush, 101));
        let per_record = (many as f64 - one as f64) / (500.0 * 100.0);
        // A segment's sparse index and other things that grow with the log, once in a thousand records.
        assert!(per_record < 0.005, "{flush:?}: {one} and {many} allocations, {per_record} for each record");
        assert!(one < 500 * 20, "{flush:?}: {one} allocations in 500 calls");
    }
}
