//! How long something takes: a histogram that any thread fills, without a lock, and anybody may read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of all buckets but the last, in microseconds: from a fast drive's sync to a stall.
const BOUNDS_MICROS: [u64; 13] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 2_500_000];
const BUCKETS: usize = BOUNDS_MICROS.len() + 1;

/// Counts since it was made. Noting a time is two atomic additions.
#[derive(Debug, Default)]
pub struct Times {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

/// All times noted so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimeHistogram {
    /// How many took at most so long, for each bound in rising order.
    pub at_most: Vec<(Duration, u64)>,
    /// How many there are.
    pub count: u64,
    /// What all of them took together.
    pub total: Duration,
}

impl Times {
    /// Counts one time.
    pub fn note(&self, took: Duration) {
        let bucket = BOUNDS_MICROS.partition_point(|&bound| Duration::from_micros(bound) < took);
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Everything so far. Bounds and counts fit together; the total may be of a moment later.
    #[must_use]
    pub fn histogram(&self) -> TimeHistogram {
        let mut count = 0;
        let mut at_most = Vec::with_capacity(BOUNDS_MICROS.len());
        for (number, bucket) in self.buckets.iter().enumerate() {
            count += bucket.load(Ordering::Relaxed);
            at_most.extend(BOUNDS_MICROS.get(number).map(|&bound| (Duration::from_micros(bound), count)));
        }
        TimeHistogram { at_most, count, total: Duration::from_nanos(self.nanos.load(Ordering::Relaxed)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_in_every_bucket_that_it_fits() {
        let times = Times::default();
        for micros in [100, 101, 1_000, 9_000_000] {
            times.note(Duration::from_micros(micros));
        }
        let found = times.histogram();
        let at_most =
            |micros| found.at_most.iter().find(|(bound, _)| *bound == Duration::from_micros(micros)).unwrap().1;
        assert_eq!([at_most(100), at_most(250), at_most(500), at_most(1_000), at_most(2_500_000)], [1, 2, 2, 3, 3]);
        assert_eq!((found.count, found.total), (4, Duration::from_micros(9_001_201)));
    }
}
