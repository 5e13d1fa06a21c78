//! Clocks, quantiles and one line of output.

use std::time::{Duration, Instant};

/// Latencies, to be asked for quantiles.
#[derive(Default)]
pub(crate) struct Latencies(pub(crate) Vec<Duration>);

impl Latencies {
    /// In microseconds.
    pub(crate) fn quantile(&mut self, share: f64) -> f64 {
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

/// When a case began, and how much of the time since does not count.
pub(crate) struct Start {
    clock: Instant,
    processor: Duration,
    paused: (Duration, Duration),
}

/// When a pause began.
pub(crate) struct Pause(Instant, Duration);

impl Start {
    pub(crate) fn now() -> Self {
        Self { clock: Instant::now(), processor: processor_time(), paused: Default::default() }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.elapsed() - self.paused.0
    }

    pub(crate) fn paused(&self) -> Duration {
        self.paused.0
    }

    pub(crate) fn pause(&self) -> Pause {
        Pause(Instant::now(), processor_time())
    }

    pub(crate) fn resume(&mut self, pause: Pause) {
        self.paused.0 += pause.0.elapsed();
        self.paused.1 += processor_time() - pause.1;
    }
}

/// Prints a line about `count` things of `bytes` bytes together. Returns how many a second.
pub(crate) fn report(name: &str, count: u64, bytes: u64, start: &Start, latencies: &mut Latencies) -> f64 {
    let seconds = start.elapsed().as_secs_f64();
    let processor = (processor_time() - start.processor - start.paused.1).as_secs_f64();
    println!(
        "{name:<44} {:>9.0} /s {:>6.0} MB/s {:>8.2} cpu us each   us p50 {:>8.1} p99 {:>8.1} worst {:>9.1}",
        count as f64 / seconds,
        bytes as f64 / seconds / 1e6,
        processor * 1e6 / count as f64,
        latencies.quantile(0.5),
        latencies.quantile(0.99),
        latencies.quantile(1.0),
    );
    count as f64 / seconds
}

/// Bytes that do not compress to nothing.
pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 131 % 251) as u8).collect()
}
