//! Reads: in order and anywhere, of what is mapped, of what is not, and of what is not even in memory.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use openraft::RaftLogReader;
use openraft::storage::RaftLogStorage;
use raft_store::{FlushMode, LogIndex, LogView, Opened, Options};

use crate::measure::{Latencies, Start, report};
use crate::recovery::fill;
use crate::support::Config;
use crate::{RUN, bare, directory, options};

/// Segments so small that most of the log is not mapped.
fn small(dir: &Path) -> Options {
    Options { segment_bytes: 128 << 20, ..options(dir, FlushMode::ASYNC) }
}

/// All of it, over a log of `bytes` bytes.
pub(crate) async fn reads(bytes: u64) {
    let dir = directory();
    let count = fill(&small(dir.path()), bytes).await;
    let Opened { mut storage, view, .. } = raft_store::open::<Config>(small(dir.path())).unwrap();
    // The newest segments are mapped; the first quarter is not.
    for (what, cold, from, to) in [
        ("mapped", false, count * 3 / 4, count),
        ("not mapped", false, 0, count / 4),
        ("from the disk", true, 0, count / 4),
    ] {
        if cold {
            bare::make_cold(dir.path());
        }
        let mut reader = storage.get_log_reader().await;
        let started = Start::now();
        let (mut next, mut read) = (from, 0);
        while next < to && started.elapsed() < RUN {
            let entries = reader.limited_get_log_entries(next, to).await.unwrap();
            next += entries.len() as u64;
            read += entries.len() as u64;
            black_box(&entries);
        }
        report(&format!("read: in order, 1 MiB, {what}"), read, read * 65536, &started, &mut Latencies::default());
        if cold {
            bare::make_cold(dir.path());
        }
        anywhere(&format!("read: anywhere, 1 KiB, {what}"), &view, from, to);
    }
    tokio::task::spawn_blocking(move || view.close()).await.unwrap().unwrap();
    bare_reads(dir.path());
}

fn anywhere(name: &str, view: &LogView, from: u64, to: u64) {
    let starts: Vec<_> =
        (from..to).map(|index| view.start_position_of(LogIndex::new(index)).unwrap().unwrap().plus(64)).collect();
    let mut latencies = Latencies::default();
    let mut count = 0u64;
    let started = Start::now();
    while started.elapsed() < RUN {
        let since = Instant::now();
        let start = starts[(count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16) as usize % starts.len()];
        black_box(view.read(start.plus(count % 60 * 1024), 1024).unwrap());
        latencies.0.push(since.elapsed());
        count += 1;
    }
    report(name, count, count * 1024, &started, &mut latencies);
}

fn bare_reads(dir: &Path) {
    for (what, cold) in [("from memory", false), ("from the disk", true)] {
        for (how, bytes, in_order) in [("in order, 1 MiB", 1 << 20, true), ("anywhere, 1 KiB", 1024, false)] {
            if cold {
                bare::make_cold(dir);
            }
            bare::read(&format!("bare: pread {how}, {what}"), dir, bytes, in_order);
        }
    }
}
