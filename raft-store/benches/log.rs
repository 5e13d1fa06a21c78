//! What the store reaches, beside the plain system calls that bound it, in one run.
//!
//! `cargo bench -p raft-store` runs everything; an argument selects the cases whose name contains it.
//! `BENCH_DIR` names a directory on the disk to be measured.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a program for the terminal")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::VecDeque;
use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use openraft::RaftLogReader;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use raft_store::{FlushMode, LogEntry, LogIndex, Opened, Options};
use support::{Config, entry, raft_id};

const RUN: Duration = Duration::from_millis(1500);
const SEGMENT_BYTES: u64 = 128 << 20;

fn directory() -> tempfile::TempDir {
    match std::env::var_os("BENCH_DIR") {
        Some(dir) => tempfile::tempdir_in(dir).unwrap(),
        None => tempfile::tempdir().unwrap(),
    }
}

fn options(dir: &Path, flush: FlushMode) -> Options {
    let mut options = support::options(dir, flush);
    options.segment_bytes = SEGMENT_BYTES;
    options.tail_bytes = 4 << 20;
    options
}

/// Latencies, to be asked for quantiles.
#[derive(Default)]
struct Latencies(Vec<Duration>);

impl Latencies {
    fn quantile(&mut self, share: f64) -> f64 {
        self.0.sort_unstable();
        let at = ((self.0.len() as f64 * share) as usize).min(self.0.len().saturating_sub(1));
        self.0.get(at).map_or(0.0, |latency| latency.as_secs_f64() * 1e6)
    }
}

/// Processor time of all threads so far, user and system. Less moved by what else runs than the clock.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// When a case began.
struct Start(Instant, Duration);

impl Start {
    fn now() -> Self {
        Self(Instant::now(), processor_time())
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

fn report(name: &str, count: u64, bytes: u64, start: &Start, latencies: &mut Latencies) {
    let seconds = start.elapsed().as_secs_f64();
    let processor = (processor_time() - start.1).as_secs_f64();
    println!(
        "{name:<42} {:>9.0} /s {:>6.0} MB/s {:>8.2} cpu us each   us p50 {:>8.1} p99 {:>8.1} worst {:>9.1}",
        count as f64 / seconds,
        bytes as f64 / seconds / 1e6,
        processor * 1e6 / count as f64,
        latencies.quantile(0.5),
        latencies.quantile(0.99),
        latencies.quantile(1.0),
    );
}

/// Appends of `bytes` bytes, `writers` of them waiting at any time, at most 256 in one call, as Raft's
/// core merges them.
async fn append(name: &str, flush: FlushMode, bytes: usize, writers: usize) {
    let dir = directory();
    let Opened { mut storage, view, .. } = raft_store::open::<Config>(options(dir.path(), flush)).unwrap();
    let payload = Bytes::from((0..bytes).map(|at| (at * 131 % 251) as u8).collect::<Vec<_>>());
    let mut waiting: VecDeque<(Instant, u64, _)> = VecDeque::new();
    let mut in_flight = 0;
    let mut next = 0;
    let mut latencies = Latencies::default();
    let started = Start::now();
    while started.elapsed() < RUN {
        let room = (writers - in_flight).min(256);
        if room > 0 {
            let entries: Vec<LogEntry> =
                (next..next + room as u64).map(|index| entry(1, index, payload.clone())).collect();
            next += room as u64;
            in_flight += room;
            let (sender, receiver) = Config::oneshot();
            storage.append(entries, IOFlushed::signal(sender)).await.unwrap();
            waiting.push_back((Instant::now(), next - 1, (room, receiver)));
        }
        if in_flight == writers {
            let (since, last, (room, receiver)) = waiting.pop_front().unwrap();
            receiver.await.unwrap().unwrap();
            in_flight -= room;
            latencies.0.push(since.elapsed());
            storage.save_committed(Some(raft_id(1, last))).await.unwrap();
        }
    }
    for (_, _, (_, receiver)) in waiting {
        receiver.await.unwrap().unwrap();
    }
    report(name, next, next * bytes as u64, &started, &mut latencies);
    tokio::task::spawn_blocking(move || view.close()).await.unwrap().unwrap();
}

/// The plain calls: one `pwrite` of a batch, and perhaps one `fdatasync`, into an allocated file.
fn bare(name: &str, batch: usize, sync: bool) {
    let dir = directory();
    let file = File::create_new(dir.path().join("bare")).unwrap();
    file.set_len(1 << 30).unwrap();
    let block = vec![7u8; 1 << 20];
    (0..1u64 << 10).for_each(|at| file.write_all_at(&block, at << 20).unwrap());
    file.sync_all().unwrap();
    let bytes: Vec<u8> = (0..batch).map(|at| (at * 131 % 251) as u8).collect();
    let mut latencies = Latencies::default();
    let mut offset = 0;
    let mut count = 0;
    let started = Start::now();
    while started.elapsed() < RUN {
        let since = Instant::now();
        file.write_all_at(&bytes, offset).unwrap();
        if sync {
            file.sync_data().unwrap();
        }
        latencies.0.push(since.elapsed());
        count += 1;
        offset = (offset + batch as u64) % ((1 << 30) - batch as u64);
    }
    report(name, count, count * batch as u64, &started, &mut latencies);
}

/// A log of `bytes` bytes in entries of 64 KiB.
async fn filled(dir: &Path, bytes: u64) -> u64 {
    let Opened { mut storage, view, .. } = raft_store::open::<Config>(options(dir, FlushMode::ASYNC)).unwrap();
    storage.save_vote(&openraft::Vote::new_committed(1, 1)).await.unwrap();
    let payload = Bytes::from((0..65536).map(|at| (at * 131 % 251) as u8).collect::<Vec<_>>());
    let count = bytes / 65536;
    for first in (0..count).step_by(64) {
        let (sender, receiver) = Config::oneshot();
        let entries: Vec<_> = (first..(first + 64).min(count)).map(|index| entry(1, index, payload.clone())).collect();
        storage.append(entries, IOFlushed::signal(sender)).await.unwrap();
        receiver.await.unwrap().unwrap();
    }
    storage.save_committed(Some(raft_id(1, count - 1))).await.unwrap();
    drop(storage);
    tokio::task::spawn_blocking(move || view.close()).await.unwrap().unwrap();
    count
}

async fn reads(bytes: u64) {
    let dir = directory();
    let count = filled(dir.path(), bytes).await;
    let Opened { mut storage, view, .. } = raft_store::open::<Config>(options(dir.path(), FlushMode::ASYNC)).unwrap();
    let mut reader = storage.get_log_reader().await;
    for (name, from) in
        [("read: entries in order, cold segments", 0), ("read: entries in order, mapped", count * 3 / 4)]
    {
        let started = Start::now();
        let mut next = from;
        let mut read = 0;
        let end = if from == 0 { count / 4 } else { count };
        while next < end {
            let entries = reader.limited_get_log_entries(next, end).await.unwrap();
            next += entries.len() as u64;
            read += entries.len() as u64;
            black_box(&entries);
        }
        report(name, read, read * 65536, &started, &mut Latencies::default());
    }
    for (name, from, to) in
        [("read: 1 KiB anywhere, cold segments", 0, count / 4), ("read: 1 KiB anywhere, mapped", count * 3 / 4, count)]
    {
        let starts: Vec<_> =
            (from..to).map(|index| view.start_position_of(LogIndex::new(index)).unwrap().unwrap().plus(64)).collect();
        let mut latencies = Latencies::default();
        let started = Start::now();
        let mut count = 0u64;
        while started.elapsed() < RUN / 2 {
            let since = Instant::now();
            let start = starts[(count.wrapping_mul(0x9e37_79b9) as usize) % starts.len()];
            black_box(view.read(start.plus(count % 60 * 1024), 1024).unwrap());
            latencies.0.push(since.elapsed());
            count += 1;
        }
        report(name, count, count * 1024, &started, &mut latencies);
    }
}

async fn recovery(bytes: u64) {
    let dir = directory();
    filled(dir.path(), bytes).await;
    for (name, clean) in [("recovery after a clean stop", true), ("recovery after a kill", false)] {
        if !clean {
            drop(raft_store::open::<Config>(options(dir.path(), FlushMode::ASYNC)).unwrap());
        }
        let started = Instant::now();
        let opened = raft_store::open::<Config>(options(dir.path(), FlushMode::ASYNC)).unwrap();
        let elapsed = started.elapsed();
        println!("{name:<48} {:>10.1} ms for {} MB", elapsed.as_secs_f64() * 1e3, bytes / 1_000_000);
        tokio::task::spawn_blocking(move || opened.view.close()).await.unwrap().unwrap();
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let only: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|part| name.contains(part.as_str()));
    let kib = 1024;
    for (name, batch, sync) in [
        ("bare: pwrite 1 KiB", kib, false),
        ("bare: pwrite 64 KiB", 64 * kib, false),
        ("bare: pwrite 1 MiB", 1024 * kib, false),
        ("bare: pwrite + fdatasync 1 KiB", kib, true),
        ("bare: pwrite + fdatasync 64 KiB", 64 * kib, true),
        ("bare: pwrite + fdatasync 1 MiB", 1024 * kib, true),
        ("bare: pwrite + fdatasync 8 MiB", 8192 * kib, true),
    ] {
        if wanted(name) {
            bare(name, batch, sync);
        }
    }
    for (mode, flush) in [("async", FlushMode::ASYNC), ("sync", FlushMode::Sync)] {
        for (size, bytes) in [("1 KiB", kib), ("64 KiB", 64 * kib)] {
            for writers in [1, 64, 1024] {
                let name = format!("append: {mode}, {size}, {writers} waiting");
                if wanted(&name) && bytes * writers <= 64 << 20 {
                    append(&name, flush, bytes, writers).await;
                }
            }
        }
    }
    if wanted("read") {
        reads(2 << 30).await;
    }
    if wanted("recovery") {
        recovery(2 << 30).await;
    }
    std::io::stdout().flush().unwrap();
}
