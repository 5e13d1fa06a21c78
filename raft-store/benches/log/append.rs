//! Appends with many writers that wait, and what a roll adds to the one that meets it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use raft_store::{FlushMode, LogEntry, LogStorage, LogView, Opened};

use crate::measure::{Latencies, Start, pattern, report};
use crate::support::{Appending, Config, entry, raft_id};
use crate::{RUN, directory, options};

/// How long appends go on, in one go or with pauses in which the disk catches up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    Steady,
    /// Less than may wait for its sync, then a pause that is not counted.
    Bursts,
}

const BURST_BYTES: u64 = 32 << 20;

/// A store, and writers that wait.
struct Writers {
    storage: LogStorage<Config>,
    view: LogView,
    payload: Bytes,
    waiting: VecDeque<(Instant, u64, usize, Appending)>,
    in_flight: usize,
    next: u64,
    latencies: Latencies,
}

impl Writers {
    fn open(options: raft_store::Options, bytes: usize) -> Self {
        let Opened { storage, view, .. } = raft_store::open::<Config>(options).unwrap();
        Self {
            storage,
            view,
            payload: Bytes::from(pattern(bytes)),
            waiting: VecDeque::new(),
            in_flight: 0,
            next: 0,
            latencies: Latencies::default(),
        }
    }

    async fn start(&mut self, count: usize) {
        let entries: Vec<LogEntry> =
            (self.next..self.next + count as u64).map(|index| entry(1, index, self.payload.clone())).collect();
        self.next += count as u64;
        self.in_flight += count;
        let since = Instant::now();
        let (sender, receiver) = Config::oneshot();
        self.storage.append(entries, IOFlushed::signal(sender)).await.unwrap();
        self.waiting.push_back((since, self.next - 1, count, receiver));
    }

    async fn finish_one(&mut self) -> Option<Duration> {
        let (since, last, count, receiver) = self.waiting.pop_front()?;
        receiver.await.unwrap().unwrap();
        let elapsed = since.elapsed();
        self.in_flight -= count;
        self.storage.save_committed(Some(raft_id(1, last))).await.unwrap();
        Some(elapsed)
    }

    /// Appends until `bytes` are appended or the time is over, `writers` of them waiting at any time, at most 256 in
    /// one call, as Raft's core merges them.
    async fn run(&mut self, writers: usize, bytes: u64, until: Instant) {
        let last = self.next + bytes / self.payload.len() as u64;
        while Instant::now() < until && self.next < last {
            let room = (writers - self.in_flight).min(256);
            if room > 0 {
                self.start(room).await;
            }
            if self.in_flight == writers {
                let latency = self.finish_one().await.expect("somebody waits");
                self.latencies.0.push(latency);
            }
        }
        while self.finish_one().await.is_some() {}
    }

    /// Waits until the disk has everything.
    async fn flushed(&self) {
        while self.view.watermarks().flushed_end < self.view.watermarks().end {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn close(self) {
        let view = self.view;
        tokio::task::spawn_blocking(move || view.close()).await.unwrap().unwrap();
    }
}

/// Appends of `bytes` bytes. Returns how many a second.
pub(crate) async fn append(name: &str, flush: FlushMode, bytes: usize, writers: usize, pattern: Pattern) -> f64 {
    let dir = directory();
    let mut log = Writers::open(options(dir.path(), flush), bytes);
    let mut started = Start::now();
    match pattern {
        Pattern::Steady => log.run(writers, u64::MAX, Instant::now() + RUN).await,
        Pattern::Bursts => {
            while started.elapsed() < RUN / 2 && started.paused() < 4 * RUN {
                log.run(writers, BURST_BYTES, Instant::now() + RUN).await;
                let pause = started.pause();
                log.flushed().await;
                started.resume(pause);
            }
        }
    }
    let rate = report(name, log.next, log.next * bytes as u64, &started, &mut log.latencies);
    log.close().await;
    rate
}

/// Appends of 64 KiB, one at a time, around the ends of segments of the usual size: those that meet a roll, those that
/// come in the moments behind it, in which the next segment is made, and all others. The pause between them leaves the
/// disk time, so that nothing else is measured.
pub(crate) async fn roll(mode: &str, flush: FlushMode, rolls: u64) {
    const BYTES: usize = 64 << 10;
    const NEAR: u64 = 64;
    let dir = directory();
    let mut options = options(dir.path(), flush);
    options.segment_bytes = 1 << 30;
    let segment_bytes = options.segment_bytes;
    let mut log = Writers::open(options, BYTES);
    let (mut plain, mut rolled, mut behind) = (Latencies::default(), Latencies::default(), Latencies::default());
    for segment in 0..rolls {
        let near = (segment + 1) * segment_bytes - NEAR * BYTES as u64;
        let far = near.saturating_sub(log.view.watermarks().end.get());
        log.run(64, far, Instant::now() + Duration::from_secs(60)).await;
        log.flushed().await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut since_roll = None;
        while since_roll.is_none_or(|since| since < NEAR) {
            let before = (log.view.watermarks().end.get() - 1) / segment_bytes;
            log.start(1).await;
            let latency = log.finish_one().await.expect("it was started");
            let after = (log.view.watermarks().end.get() - 1) / segment_bytes;
            since_roll = if after > before { Some(0) } else { since_roll.map(|since| since + 1) };
            match since_roll {
                None => plain.0.push(latency),
                Some(0) => rolled.0.push(latency),
                Some(_) => behind.0.push(latency),
            }
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
    }
    for (what, latencies) in
        [("before a roll", &mut plain), ("with a roll", &mut rolled), ("behind a roll", &mut behind)]
    {
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
    log.close().await;
}
