//! Appends with many writers that wait, and what a roll adds to the one that meets it.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use raft_store::{FlushMode, LogEntry, Opened};

use crate::measure::{Latencies, Start, pattern, report};
use crate::support::{Config, entry, raft_id};
use crate::{RUN, SEGMENT_BYTES, directory, options};

/// Appends of `bytes` bytes, `writers` of them waiting at any time, at most 256 in one call, as Raft's core merges them.
pub(crate) async fn append(name: &str, flush: FlushMode, bytes: usize, writers: usize) -> f64 {
    let dir = directory();
    let Opened { mut storage, view, .. } = raft_store::open::<Config>(options(dir.path(), flush)).unwrap();
    let payload = Bytes::from(pattern(bytes));
    let mut waiting: VecDeque<(Instant, u64, _)> = VecDeque::new();
    let (mut in_flight, mut next) = (0, 0);
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
    let rate = report(name, next, next * bytes as u64, &started, &mut latencies);
    tokio::task::spawn_blocking(move || view.close()).await.unwrap().unwrap();
    rate
}

/// Appends of 64 KiB, one at a time, through many segments: those that meet a roll beside those that do not. The pause
/// between them leaves the disk and the preparation of segments time, so that nothing else is measured.
pub(crate) async fn roll(mode: &str, flush: FlushMode, rolls: usize) {
    const BYTES: usize = 64 << 10;
    let dir = directory();
    let mut options = options(dir.path(), flush);
    options.segment_bytes = SEGMENT_BYTES / 8;
    let segment_bytes = options.segment_bytes;
    let Opened { mut storage, view, .. } = raft_store::open::<Config>(options).unwrap();
    let payload = Bytes::from(pattern(BYTES));
    let (mut plain, mut rolled) = (Latencies::default(), Latencies::default());
    let mut segment = 0;
    for index in 0.. {
        let (sender, receiver) = Config::oneshot();
        let entries = vec![entry(1, index, payload.clone())];
        let since = Instant::now();
        storage.append(entries, IOFlushed::signal(sender)).await.unwrap();
        receiver.await.unwrap().unwrap();
        let elapsed = since.elapsed();
        let now = (view.watermarks().end.get() - 1) / segment_bytes;
        if now > segment { &mut rolled } else { &mut plain }.0.push(elapsed);
        segment = now;
        storage.save_committed(Some(raft_id(1, index))).await.unwrap();
        if rolled.0.len() == rolls {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_micros(500)).await;
    }
    for (what, latencies) in [("without a roll", &mut plain), ("with a roll", &mut rolled)] {
        println!(
            "{:<44} {:>9} appends   us p50 {:>8.1} p90 {:>8.1} p99 {:>8.1} worst {:>9.1}",
            format!("append: {mode}, 64 KiB, {what}"),
            latencies.0.len(),
            latencies.quantile(0.5),
            latencies.quantile(0.9),
            latencies.quantile(0.99),
            latencies.quantile(1.0),
        );
    }
    tokio::task::spawn_blocking(move || view.close()).await.unwrap().unwrap();
}
