//! How values are spread over RocketMQ's buckets.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Sizes of messages, in bytes.
pub(super) const SIZE_BOUNDS: [u64; 6] = [1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
/// How long transactions last, in seconds.
pub(super) const COMMIT_SECONDS_BOUNDS: [u64; 6] = [5, 60, 600, 3_600, 12 * 3_600, 24 * 3_600];

/// Counts of values by size.
#[derive(Debug)]
pub(crate) struct Spread {
    bounds: &'static [u64],
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// What was noted so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SpreadSeen {
    /// How many are at most so large, for each bound in rising order.
    pub(crate) at_most: Vec<(u64, u64)>,
    /// How many there are.
    pub(crate) count: u64,
    /// All of them added together.
    pub(crate) sum: u64,
}

impl Spread {
    /// Nothing yet. `bounds` rise.
    pub(super) fn new(bounds: &'static [u64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, sum: AtomicU64::new(0) }
    }

    /// Counts `count` values that are `each` as large, and `sum` together.
    pub(crate) fn note(&self, count: u64, each: u64, sum: u64) {
        let bucket = self.bounds.partition_point(|&bound| bound < each);
        self.buckets[bucket].fetch_add(count, Relaxed);
        self.sum.fetch_add(sum, Relaxed);
    }

    /// Everything so far.
    pub(crate) fn seen(&self) -> SpreadSeen {
        let mut count = 0;
        let mut at_most = Vec::with_capacity(self.bounds.len());
        for (number, bucket) in self.buckets.iter().enumerate() {
            count += bucket.load(Relaxed);
            at_most.extend(self.bounds.get(number).map(|&bound| (bound, count)));
        }
        SpreadSeen { at_most, count, sum: self.sum.load(Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_up_to_its_bound_and_in_all_above() {
        let spread = Spread::new(&COMMIT_SECONDS_BOUNDS);
        for (count, each) in [(1, 0), (2, 5), (1, 6), (1, 90_000)] {
            spread.note(count, each, count * each);
        }
        let seen = spread.seen();
        assert_eq!(seen.at_most, [(5, 3), (60, 4), (600, 4), (3_600, 4), (43_200, 4), (86_400, 4)]);
        assert_eq!((seen.count, seen.sum), (5, 90_016));
    }
}
