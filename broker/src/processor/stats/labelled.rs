//! Totals by topic, and by topic and group, with a bound on how many of them metrics name.
//!
//! A topic that is counted while there is a label left keeps it until it is deleted. All others are summed under one
//! name, [`OTHER`]. Who has a label is decided once, when it is first counted, and what a deleted topic without a label
//! had counted stays in the sum: so no series ever falls, as it would if labels went to whoever is busiest now.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use protocol::{GroupName, TopicName};

use super::Meter;

/// The name under which metrics sum everything that has none of its own. No topic can be called that.
pub(crate) const OTHER: &str = "(other)";

/// What a producer sent, in the words of RocketMQ's metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// Nothing special about it.
    Normal,
    /// It has a sharding key.
    Fifo,
    /// It waits before it is delivered.
    Delay,
    /// It was sent in a transaction.
    Transaction,
}

impl MessageKind {
    const ALL: [Self; 4] = [Self::Normal, Self::Fifo, Self::Delay, Self::Transaction];

    /// The word in metrics.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Fifo => "fifo",
            Self::Delay => "delay",
            Self::Transaction => "transaction",
        }
    }
}

/// Messages and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sum {
    messages: u64,
    bytes: u64,
}

impl std::ops::AddAssign for Sum {
    fn add_assign(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

#[derive(Debug, Default)]
struct Counter {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    fn add(&self, messages: u64, bytes: u64) {
        self.messages.fetch_add(messages, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    fn sum(&self) -> Sum {
        Sum { messages: self.messages.load(Relaxed), bytes: self.bytes.load(Relaxed) }
    }
}

/// Whether something is named in metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Label {
    /// By its own name.
    Own,
    /// Summed with others.
    Other,
}

/// What is counted by kind or in all.
pub(super) trait Counts {
    /// By kind, in the order of [`MessageKind::ALL`]; only the first if there are no kinds.
    fn all(&self) -> [Sum; 4];
}

/// What was put into one topic.
#[derive(Debug)]
pub(super) struct TopicCount {
    pub(super) meter: Arc<Meter>,
    pub(super) label: Label,
    by_kind: [Counter; 4],
}

impl TopicCount {
    pub(super) fn new(meter: Meter, label: Label) -> Self {
        Self { meter: Arc::new(meter), label, by_kind: Default::default() }
    }

    pub(super) fn add(&self, kind: MessageKind, messages: u64, bytes: u64) {
        self.meter.add_sized(messages, bytes);
        self.by_kind[kind as usize].add(messages, bytes);
    }
}

impl Counts for TopicCount {
    fn all(&self) -> [Sum; 4] {
        std::array::from_fn(|kind| self.by_kind[kind].sum())
    }
}

/// What one group was given of one topic.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) meter: Arc<Meter>,
    pub(super) label: Label,
    counter: Counter,
}

impl Reader {
    pub(super) fn new(meter: Meter, label: Label) -> Self {
        Self { meter: Arc::new(meter), label, counter: Counter::default() }
    }

    pub(super) fn add(&self, messages: u64, bytes: u64) {
        self.meter.add_sized(messages, bytes);
        self.counter.add(messages, bytes);
    }
}

impl Counts for Reader {
    fn all(&self) -> [Sum; 4] {
        let mut all = [Sum::default(); 4];
        all[0] = self.counter.sum();
        all
    }
}

/// The labels that are left, and what those counted that had none and are gone.
#[derive(Debug)]
pub(super) struct Labels {
    left: AtomicUsize,
    gone: Mutex<[Sum; 4]>,
}

impl Labels {
    pub(super) fn new(max: usize) -> Self {
        Self { left: AtomicUsize::new(max), gone: Mutex::default() }
    }

    /// A label, while there is one.
    pub(super) fn take(&self) -> Label {
        match self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Label::Own,
            Err(_) => Label::Other,
        }
    }

    /// Takes a label back, or keeps what was counted without one.
    pub(super) fn give_back(&self, label: Label, counted: [Sum; 4]) {
        match label {
            Label::Own => {
                self.left.fetch_add(1, Relaxed);
            }
            Label::Other => add(&mut self.gone.lock(), counted),
        }
    }
}

fn add(to: &mut [Sum; 4], counted: [Sum; 4]) {
    for (to, sum) in to.iter_mut().zip(counted) {
        *to += sum;
    }
}

/// What was put into a topic, or into all that have no name of their own.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PutTotals {
    /// None: all others.
    pub(crate) topic: Option<TopicName>,
    /// Of which kind.
    pub(crate) kind: MessageKind,
    /// How many.
    pub(crate) messages: u64,
    /// Their bytes in the log.
    pub(crate) bytes: u64,
}

/// What a group was given of a topic, or all pairs that have no name of their own.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GotTotals {
    /// None: all others.
    pub(crate) of: Option<(TopicName, GroupName)>,
    /// How many.
    pub(crate) messages: u64,
    /// Their bytes in the log.
    pub(crate) bytes: u64,
}

pub(super) fn put_totals(by_topic: &HashMap<TopicName, Arc<TopicCount>>, labels: &Labels) -> Vec<PutTotals> {
    let mut totals = Vec::new();
    let mut others = *labels.gone.lock();
    let mut put = |topic: Option<&TopicName>, sums: [Sum; 4]| {
        for (kind, sum) in MessageKind::ALL.into_iter().zip(sums).filter(|(_, sum)| sum.messages > 0) {
            totals.push(PutTotals { topic: topic.cloned(), kind, messages: sum.messages, bytes: sum.bytes });
        }
    };
    for (topic, count) in by_topic {
        match count.label {
            Label::Own => put(Some(topic), count.all()),
            Label::Other => add(&mut others, count.all()),
        }
    }
    put(None, others);
    totals
}

pub(super) fn got_totals(
    by_reader: &HashMap<TopicName, HashMap<GroupName, Arc<Reader>>>,
    labels: &Labels,
) -> Vec<GotTotals> {
    let mut totals = Vec::new();
    let mut others = *labels.gone.lock();
    for (topic, groups) in by_reader {
        for (group, reader) in groups {
            let all = reader.all();
            match reader.label {
                Label::Own => {
                    let of = Some((topic.clone(), group.clone()));
                    totals.push(GotTotals { of, messages: all[0].messages, bytes: all[0].bytes });
                }
                Label::Other => add(&mut others, all),
            }
        }
    }
    if others[0].messages > 0 {
        totals.push(GotTotals { of: None, messages: others[0].messages, bytes: others[0].bytes });
    }
    totals
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::Stats;
    use super::*;

    fn topic(name: &str) -> TopicName {
        TopicName::parse(name).unwrap()
    }

    fn shown(stats: &Stats) -> Vec<(String, &'static str, u64, u64)> {
        let name = |of: Option<TopicName>| of.map_or_else(|| OTHER.to_owned(), |topic| topic.to_string());
        let totals = stats.put_totals().into_iter();
        let mut shown: Vec<_> =
            totals.map(|total| (name(total.topic), total.kind.word(), total.messages, total.bytes)).collect();
        shown.sort();
        shown
    }

    #[test]
    fn topics_beyond_the_labels_are_summed_and_no_series_falls() {
        let stats = Stats::new(Instant::now(), 2);
        for (number, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            stats.count_put(&topic(name), MessageKind::Normal, 1 + number as u64, 10);
        }
        stats.count_put(&topic("a"), MessageKind::Delay, 1, 5);
        let before = shown(&stats);
        let expected: [(&str, &str, u64, u64); 4] =
            [("(other)", "normal", 7, 20), ("a", "delay", 1, 5), ("a", "normal", 1, 10), ("b", "normal", 2, 10)];
        assert_eq!(before, expected.map(|(name, kind, messages, bytes)| (name.to_owned(), kind, messages, bytes)));
        // The busiest is deleted: what it counted stays in the sum, and its label-less place goes to nobody.
        stats.forget_topic(&topic("d"));
        assert_eq!(shown(&stats), before);
        // A deleted topic's label goes to the next new topic, not to one that was summed so far.
        stats.forget_topic(&topic("b"));
        stats.count_put(&topic("c"), MessageKind::Normal, 1, 10);
        stats.count_put(&topic("e"), MessageKind::Normal, 9, 90);
        let names: Vec<_> = shown(&stats).into_iter().map(|(name, _, messages, _)| (name, messages)).collect();
        let expected = [("(other)", 8), ("a", 1), ("a", 1), ("e", 9)];
        assert_eq!(names, expected.map(|(name, messages)| (name.to_owned(), messages)));
    }

    #[test]
    fn pairs_of_topic_and_group_are_bounded_together() {
        let stats = Stats::new(Instant::now(), 3);
        for name in ["a", "b"] {
            for group in ["g", "h", "i"] {
                stats.count_got(&topic(name), &GroupName::parse(group).unwrap(), 2, 7);
            }
        }
        let totals = stats.got_totals();
        assert_eq!(totals.len(), 4);
        let others = totals.iter().find(|total| total.of.is_none()).unwrap();
        assert_eq!((others.messages, others.bytes), (6, 21));
        stats.forget_group(&GroupName::parse("i").unwrap());
        assert_eq!(stats.got_totals().iter().filter(|total| total.of.is_none()).map(|t| t.messages).sum::<u64>(), 6);
    }

    #[test]
    fn sizes_count_each_message_of_a_batch() {
        let stats = Stats::new(Instant::now(), 1);
        for (count, bytes) in [(1, 1_024), (10, 20_000), (1, 5 << 20)] {
            stats.count_put(&topic("a"), MessageKind::Normal, count, bytes);
        }
        let seen = stats.sizes.seen();
        assert_eq!(
            seen.at_most,
            [(1 << 10, 1), (4 << 10, 11), (512 << 10, 11), (1 << 20, 11), (2 << 20, 11), (4 << 20, 11)]
        );
        assert_eq!((seen.count, seen.sum), (12, 1_024 + 20_000 + (5 << 20)));
    }
}
