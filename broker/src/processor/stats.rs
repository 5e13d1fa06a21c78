//! Counters that tools read: messages put by topic, messages got by topic and group, and their rates.
//!
//! A meter counts for ever; a sampler reads it now and then into short rings, and a rate is the difference between the
//! newest and the oldest sample of a ring. Counting takes a read lock and an atomic addition.

mod labelled;
mod spread;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use protocol::{GroupName, TopicName};
use raft_store::Times;

use self::labelled::{Counts, Labels, Reader, TopicCount};
pub(crate) use self::labelled::{GotTotals, MessageKind, OTHER, PutTotals};
use self::spread::{COMMIT_SECONDS_BOUNDS, SIZE_BOUNDS};
pub(crate) use self::spread::{Spread, SpreadSeen};

/// How often [`Stats::sample`] is to be called.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);

/// Samples 10 s apart; enough for ten minutes.
const FINE_SAMPLES: usize = 61;
/// Samples 10 s apart that make a minute.
const MINUTE_SAMPLES: usize = 7;
/// Samples 10 min apart that make an hour.
const HOUR_SAMPLES: usize = 7;
/// Samples an hour apart that make a day.
const DAY_SAMPLES: usize = 25;
const FINE_PER_COARSE: u64 = 60;
const COARSE_PER_HOUR: u64 = 6;
const DAY_MS: i64 = 24 * 3_600 * 1_000;

/// What happened within a window.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Rate {
    /// How many.
    pub(crate) sum: u64,
    /// How many a second.
    pub(crate) per_second: f64,
    /// How many for each time something was counted.
    pub(crate) per_time: f64,
    /// Their bytes a second, where those are counted.
    pub(crate) bytes_per_second: f64,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    value: u64,
    times: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Ring {
    samples: VecDeque<Sample>,
    max: usize,
}

impl Ring {
    fn new(max: usize) -> Self {
        Self { samples: VecDeque::new(), max }
    }

    fn push(&mut self, sample: Sample) {
        if self.samples.len() == self.max {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    /// Over the newest `count` samples.
    fn rate(&self, count: usize) -> Rate {
        self.rate_until(count, self.samples.back())
    }

    /// From the oldest of the newest `count` samples to `last`, which may be one of another ring.
    fn rate_until(&self, count: usize, last: Option<&Sample>) -> Rate {
        let skipped = self.samples.len().saturating_sub(count);
        let (Some(first), Some(last)) = (self.samples.get(skipped), last) else {
            return Rate::default();
        };
        let sum = last.value - first.value;
        let times = last.times - first.times;
        let seconds = last.at.saturating_duration_since(first.at).as_secs_f64();
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        Rate {
            sum,
            per_second: per_second(sum),
            bytes_per_second: per_second(last.bytes - first.bytes),
            per_time: if times > 0 { sum as f64 / times as f64 } else { 0.0 },
        }
    }
}

#[derive(Debug)]
struct Rings {
    taken: u64,
    fine: Ring,
    ten_minutes: Ring,
    hours: Ring,
}

/// One counter and its recent past.
#[derive(Debug)]
pub(crate) struct Meter {
    value: AtomicU64,
    times: AtomicU64,
    bytes: AtomicU64,
    rings: Mutex<Rings>,
}

impl Meter {
    /// A counter whose past begins now, at nothing.
    fn new(now: Instant) -> Self {
        let meter = Self {
            value: AtomicU64::new(0),
            times: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            rings: Mutex::new(Rings {
                taken: 0,
                fine: Ring::new(FINE_SAMPLES),
                ten_minutes: Ring::new(HOUR_SAMPLES),
                hours: Ring::new(DAY_SAMPLES),
            }),
        };
        meter.sample(now);
        meter
    }

    /// Counts `count` things at once.
    pub(crate) fn add(&self, count: u64) {
        self.value.fetch_add(count, Relaxed);
        self.times.fetch_add(1, Relaxed);
    }

    /// Counts `count` things of `bytes` in all at once.
    pub(crate) fn add_sized(&self, count: u64, bytes: u64) {
        self.add(count);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Everything counted so far.
    pub(crate) fn total(&self) -> u64 {
        self.value.load(Relaxed)
    }

    fn sample(&self, now: Instant) {
        let sample = Sample {
            at: now,
            value: self.value.load(Relaxed),
            times: self.times.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        };
        let mut rings = self.rings.lock();
        if rings.taken.is_multiple_of(FINE_PER_COARSE) {
            rings.ten_minutes.push(sample);
        }
        if rings.taken.is_multiple_of(FINE_PER_COARSE * COARSE_PER_HOUR) {
            rings.hours.push(sample);
        }
        rings.fine.push(sample);
        rings.taken += 1;
    }

    /// The last minute.
    pub(crate) fn minute(&self) -> Rate {
        self.rings.lock().fine.rate(MINUTE_SAMPLES)
    }

    /// The last hour, up to the newest sample.
    pub(crate) fn hour(&self) -> Rate {
        let rings = self.rings.lock();
        rings.ten_minutes.rate_until(HOUR_SAMPLES, rings.fine.samples.back())
    }

    /// The last day, up to the newest sample.
    pub(crate) fn day(&self) -> Rate {
        let rings = self.rings.lock();
        rings.hours.rate_until(DAY_SAMPLES, rings.fine.samples.back())
    }

    /// Rates a second over the last 10 s, minute and 10 minutes.
    pub(crate) fn recent(&self) -> [f64; 3] {
        let rings = self.rings.lock();
        [2, MINUTE_SAMPLES, FINE_SAMPLES].map(|count| rings.fine.rate(count).per_second)
    }
}

/// What had been counted when a day began, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Morning {
    /// Messages put.
    pub(crate) put: u64,
    /// Messages given to consumers.
    pub(crate) got: u64,
}

/// The mornings of yesterday and of today.
#[derive(Debug, Default)]
struct Mornings {
    /// Days since 1970, as of the last look.
    day: i64,
    last_two: [Morning; 2],
}

impl Mornings {
    /// Notes the counts when a day has begun since the last look.
    fn look(&mut self, wall_ms: i64, counted: Morning) {
        let day = wall_ms.div_euclid(DAY_MS);
        if self.day == 0 {
            // The first day began before the process did.
            self.day = day;
        } else if day > self.day {
            let yesterday = if day == self.day + 1 { self.last_two[1] } else { counted };
            (self.day, self.last_two) = (day, [yesterday, counted]);
        }
    }
}

/// Counts of one broker group on this node.
#[derive(Debug)]
pub(crate) struct Stats {
    started: Instant,
    /// Messages put.
    pub(crate) put: Meter,
    /// Bytes put.
    pub(crate) put_bytes: Meter,
    /// Sends that failed.
    pub(crate) put_failed: Meter,
    /// Messages given to consumers.
    pub(crate) got: Meter,
    /// Pulls that found something.
    pub(crate) found: Meter,
    /// Pulls that found nothing.
    pub(crate) missed: Meter,
    /// Transactions committed here.
    pub(crate) committed: AtomicU64,
    /// Transactions rolled back here.
    pub(crate) rolled_back: AtomicU64,
    /// From the request of a producer to its answer, on the leader.
    pub(crate) send_times: Times,
    /// From a pull, or from when it was woken, to its answer.
    pub(crate) pull_times: Times,
    /// Sizes of messages put.
    pub(crate) sizes: Spread,
    /// Seconds from the birth of a transaction's message to its commit.
    pub(crate) commit_seconds: Spread,
    mornings: Mutex<Mornings>,
    by_topic: RwLock<HashMap<TopicName, Arc<TopicCount>>>,
    by_reader: RwLock<HashMap<TopicName, HashMap<GroupName, Arc<Reader>>>>,
    put_labels: Labels,
    got_labels: Labels,
}

impl Stats {
    /// All zero. So many topics, and so many pairs of topic and group, are named in metrics; the others are summed.
    pub(crate) fn new(now: Instant, names_max: usize) -> Self {
        Self {
            started: now,
            put: Meter::new(now),
            put_bytes: Meter::new(now),
            put_failed: Meter::new(now),
            got: Meter::new(now),
            found: Meter::new(now),
            missed: Meter::new(now),
            committed: AtomicU64::new(0),
            rolled_back: AtomicU64::new(0),
            send_times: Times::default(),
            pull_times: Times::default(),
            sizes: Spread::new(&SIZE_BOUNDS),
            commit_seconds: Spread::new(&COMMIT_SECONDS_BOUNDS),
            mornings: Mutex::default(),
            by_topic: RwLock::new(HashMap::new()),
            by_reader: RwLock::new(HashMap::new()),
            put_labels: Labels::new(names_max),
            got_labels: Labels::new(names_max),
        }
    }

    /// When counting began.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// Counts `count` messages of `bytes` in all, put into `topic` by one request.
    pub(crate) fn count_put(&self, topic: &TopicName, kind: MessageKind, count: u64, bytes: u64) {
        self.put.add(count);
        self.put_bytes.add(bytes);
        // They count as equally large, which those of a batch need not be.
        self.sizes.note(count, bytes / count.max(1), bytes);
        if let Some(found) = self.by_topic.read().get(topic) {
            found.add(kind, count, bytes);
            return;
        }
        let mut by_topic = self.by_topic.write();
        let new = || Arc::new(TopicCount::new(Meter::new(self.put.newest()), self.put_labels.take()));
        by_topic.entry(topic.clone()).or_insert_with(new).add(kind, count, bytes);
    }

    /// Counts `count` messages of `topic`, `bytes` in all, given to `group` by one answer.
    pub(crate) fn count_got(&self, topic: &TopicName, group: &GroupName, count: u64, bytes: u64) {
        self.got.add(count);
        self.found.add(1);
        if let Some(found) = self.by_reader.read().get(topic).and_then(|groups| groups.get(group)) {
            found.add(count, bytes);
            return;
        }
        let mut by_reader = self.by_reader.write();
        let groups = by_reader.entry(topic.clone()).or_default();
        let new = || Arc::new(Reader::new(Meter::new(self.got.newest()), self.got_labels.take()));
        groups.entry(group.clone()).or_insert_with(new).add(count, bytes);
    }

    /// The meter of messages put into a topic, if there were any.
    pub(crate) fn topic(&self, topic: &str) -> Option<Arc<Meter>> {
        self.by_topic.read().get(topic).map(|count| Arc::clone(&count.meter))
    }

    /// The meter of messages of a topic given to a group, if there were any.
    pub(crate) fn reader(&self, topic: &str, group: &str) -> Option<Arc<Meter>> {
        self.by_reader.read().get(topic)?.get(group).map(|reader| Arc::clone(&reader.meter))
    }

    /// What was put, by topic and kind; all topics without a name of their own together, last.
    pub(crate) fn put_totals(&self) -> Vec<PutTotals> {
        let by_topic = self.by_topic.read();
        labelled::put_totals(&by_topic, &self.put_labels)
    }

    /// What was given, by topic and group; all pairs without a name of their own together, last.
    pub(crate) fn got_totals(&self) -> Vec<GotTotals> {
        let by_reader = self.by_reader.read();
        labelled::got_totals(&by_reader, &self.got_labels)
    }

    /// Forgets a deleted topic.
    pub(crate) fn forget_topic(&self, topic: &TopicName) {
        if let Some(count) = self.by_topic.write().remove(topic) {
            self.put_labels.give_back(count.label, count.all());
        }
        for reader in self.by_reader.write().remove(topic).unwrap_or_default().into_values() {
            self.got_labels.give_back(reader.label, reader.all());
        }
    }

    /// Forgets a deleted group.
    pub(crate) fn forget_group(&self, group: &GroupName) {
        for groups in self.by_reader.write().values_mut() {
            if let Some(reader) = groups.remove(group) {
                self.got_labels.give_back(reader.label, reader.all());
            }
        }
    }

    /// What had been counted on the mornings of yesterday and of today.
    pub(crate) fn mornings(&self) -> [Morning; 2] {
        self.mornings.lock().last_two
    }

    /// Notes the counts if a day has begun. Called every [`SAMPLE_INTERVAL`].
    pub(crate) fn look_at_day(&self, wall_ms: i64) {
        self.mornings.lock().look(wall_ms, Morning { put: self.put.total(), got: self.got.total() });
    }

    /// Reads every meter into its rings. Called every [`SAMPLE_INTERVAL`].
    pub(crate) fn sample(&self, now: Instant) {
        for meter in [&self.put, &self.put_bytes, &self.put_failed, &self.got, &self.found, &self.missed] {
            meter.sample(now);
        }
        for count in self.by_topic.read().values() {
            count.meter.sample(now);
        }
        for reader in self.by_reader.read().values().flat_map(HashMap::values) {
            reader.meter.sample(now);
        }
    }
}

impl Meter {
    /// When the newest sample was taken: a meter made between two samples begins there.
    fn newest(&self) -> Instant {
        let rings = self.rings.lock();
        rings.fine.samples.back().map(|sample| sample.at).expect("a meter takes a sample when it is made")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_differences_between_samples() {
        let start = Instant::now();
        let stats = Stats::new(start, 100);
        let topic = TopicName::parse("T").unwrap();
        stats.count_put(&topic, MessageKind::Normal, 5, 50);
        stats.count_put(&topic, MessageKind::Normal, 15, 150);
        stats.sample(start + Duration::from_secs(10));
        let meter = stats.topic("T").unwrap();
        assert_eq!(meter.minute(), Rate { sum: 20, per_second: 2.0, per_time: 10.0, bytes_per_second: 20.0 });
        assert_eq!(stats.put.recent(), [2.0, 2.0, 2.0]);
        for tick in 2..=8 {
            stats.sample(start + Duration::from_secs(10 * tick));
        }
        assert_eq!(meter.minute(), Rate::default(), "a minute later it is quiet");
        assert_eq!(stats.put.recent(), [0.0, 0.0, 0.25]);
        assert_eq!(meter.total(), 20);
    }

    #[test]
    fn a_day_counts_from_its_first_minute_on() {
        let start = Instant::now();
        let stats = Stats::new(start, 100);
        stats.count_put(&TopicName::parse("T").unwrap(), MessageKind::Normal, 5, 50);
        for tick in 1..=12 {
            stats.sample(start + Duration::from_secs(10 * tick));
        }
        let meter = stats.topic("T").unwrap();
        assert_eq!((meter.minute().sum, meter.hour().sum, meter.day().sum), (0, 5, 5));
    }

    #[test]
    fn counts_are_noted_when_a_day_begins() {
        let mut mornings = Mornings::default();
        let mut look = |day: i64, hour: i64, put: u64| {
            mornings.look(day * DAY_MS + hour * 3_600_000, Morning { put, got: 0 });
            mornings.last_two.map(|morning| morning.put)
        };
        assert_eq!(look(20_000, 9, 0), [0, 0], "since the start, whatever the hour");
        assert_eq!(look(20_000, 23, 7), [0, 0]);
        assert_eq!(look(20_001, 0, 8), [0, 8]);
        assert_eq!(look(20_002, 0, 20), [8, 20]);
        assert_eq!(look(20_002, 5, 30), [8, 20]);
        assert_eq!(look(20_009, 5, 40), [40, 40], "nothing is known of days it slept through");
        assert_eq!(look(20_008, 5, 50), [40, 40], "a clock that goes back begins no day");
    }

    #[test]
    fn an_hour_is_seen_through_coarse_samples() {
        let start = Instant::now();
        let stats = Stats::new(start, 100);
        let (topic, group) = (TopicName::parse("T").unwrap(), GroupName::parse("g").unwrap());
        stats.count_got(&topic, &group, 1, 10);
        for tick in 1..=60 {
            stats.sample(start + Duration::from_secs(10 * tick));
        }
        let meter = stats.reader("T", "g").unwrap();
        assert_eq!(meter.hour().sum, 1);
        assert!(stats.reader("T", "h").is_none());
        stats.forget_group(&group);
        assert!(stats.reader("T", "g").is_none());
    }
}
