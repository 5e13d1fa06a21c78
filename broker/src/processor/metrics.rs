//! What metrics say about topics and consumer groups.
//!
//! The most that is named is an operator's to say; what does not fit is summed, and nothing is left out of a sum.

use std::collections::BTreeMap;
use std::sync::Arc;

use protocol::body::ConsumeType;
use protocol::{GroupName, TopicName};

use super::stats::{GotTotals, Meter, Morning, PutTotals, SpreadSeen};
use super::{Group, now};
use crate::forward::Place;
use raft_store::TimeHistogram;

pub(crate) use super::stats::OTHER;

/// Most consumers whose oldest waiting message is looked up for one answer.
const WAITS_MAX: usize = 100;
/// Most messages read for that.
const READS_MAX: usize = 256;

/// How far a consumer group is in a topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Lag {
    /// None: all pairs that are not named.
    pub(crate) of: Option<(TopicName, GroupName)>,
    /// Messages that are not consumed: those under way too.
    pub(crate) messages: u64,
    /// Of these, taken by members in POP mode and not acknowledged.
    pub(crate) in_flight: u64,
    /// The offsets committed in all queues, added together.
    pub(crate) committed: u64,
    /// For how long the oldest of them has been stored, where that was looked up.
    pub(crate) waits_ms: Option<i64>,
    /// The same of the oldest that no member was given.
    pub(crate) queues_ms: Option<i64>,
}

/// What RocketMQ calls the runtime of a broker. Rates are those of the last 10 s, minute and 10 minutes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Runtime {
    /// Messages put a second.
    pub(crate) put: [f64; 3],
    /// Messages given a second.
    pub(crate) got: [f64; 3],
    /// Pulls a second that found something.
    pub(crate) found: [f64; 3],
    /// Pulls a second that found nothing.
    pub(crate) missed: [f64; 3],
    /// All pulls a second.
    pub(crate) pulled: [f64; 3],
    /// Messages since the start.
    pub(crate) now: Morning,
    /// The same when yesterday and today began.
    pub(crate) mornings: [Morning; 2],
    /// Bytes put since the start.
    pub(crate) put_bytes: u64,
}

/// Clients of one kind in a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientKind {
    /// Consumers: their group; none for all groups that are not named.
    pub(crate) group: Option<GroupName>,
    /// Consumers: how they consume.
    pub(crate) consume_mode: &'static str,
    /// Their language; a word for the rest where a group has many kinds.
    pub(crate) language: String,
    /// Their version.
    pub(crate) version: String,
    /// How many there are.
    pub(crate) count: usize,
}

/// Kinds of clients that are told apart in a group; clients say themselves what they are.
const KINDS_MAX: usize = 16;

/// A topic and the end of its queues, added together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicEnd {
    /// None: all topics that are not named.
    pub(crate) topic: Option<TopicName>,
    /// The sum of the offsets at which the next messages go.
    pub(crate) end: u64,
}

impl Group {
    /// What producers put here since the start.
    pub(crate) fn put_by_topic(&self) -> Vec<PutTotals> {
        self.0.stats.put_totals()
    }

    /// What consumers were given here since the start.
    pub(crate) fn got_by_reader(&self) -> Vec<GotTotals> {
        self.0.stats.got_totals()
    }

    /// Sizes of messages put here since the start.
    pub(crate) fn sizes(&self) -> SpreadSeen {
        self.0.stats.sizes.seen()
    }

    /// Seconds from the birth of a transaction's message to its commit here, since the start.
    pub(crate) fn commit_seconds(&self) -> SpreadSeen {
        self.0.stats.commit_seconds.seen()
    }

    /// What RocketMQ calls the broker's runtime.
    pub(crate) fn runtime(&self) -> Runtime {
        let stats = &self.0.stats;
        let (found, missed) = (stats.found.recent(), stats.missed.recent());
        Runtime {
            put: stats.put.recent(),
            got: stats.got.recent(),
            found,
            missed,
            pulled: std::array::from_fn(|span| found[span] + missed[span]),
            now: Morning { put: stats.put.total(), got: stats.got.total() },
            mornings: stats.mornings(),
            put_bytes: stats.put_bytes.total(),
        }
    }

    /// From the request of a producer to its answer.
    pub(crate) fn send_times(&self) -> TimeHistogram {
        self.0.stats.send_times.histogram()
    }

    /// From a pull that could be answered to its answer.
    pub(crate) fn pull_times(&self) -> TimeHistogram {
        self.0.stats.pull_times.histogram()
    }

    /// Transactions committed and rolled back here since the start.
    pub(crate) fn transaction_totals(&self) -> (u64, u64) {
        use std::sync::atomic::Ordering::Relaxed;
        (self.0.stats.committed.load(Relaxed), self.0.stats.rolled_back.load(Relaxed))
    }

    /// Sends that failed here since the start.
    pub(crate) fn failed_sends(&self) -> u64 {
        self.0.stats.put_failed.total()
    }

    /// Messages put and given a second, over the last minute.
    pub(crate) fn rates(&self) -> (f64, f64) {
        (self.0.stats.put.minute().per_second, self.0.stats.got.minute().per_second)
    }

    /// Messages put into a topic a second and their bytes, over the last minute.
    pub(crate) fn put_rate(&self, topic: &str) -> (f64, f64) {
        rate_of(self.0.stats.topic(topic))
    }

    /// Messages of a topic given to a group a second and their bytes, over the last minute.
    pub(crate) fn got_rate(&self, topic: &str, group: &str) -> (f64, f64) {
        rate_of(self.0.stats.reader(topic, group))
    }

    /// Whether this replica serves as leader: only then do figures about all of the group come from here.
    pub(crate) fn serves(&self) -> bool {
        matches!(self.place(), Place::Here { .. })
    }

    /// What the broker allows its topics: RocketMQ's permission bits.
    pub(crate) fn permission(&self) -> u32 {
        self.live().permission
    }

    /// Members of consumer groups: the largest groups by name, and all others together.
    pub(crate) fn consumer_counts(&self) -> Vec<(Option<GroupName>, usize)> {
        let mut counts = self.0.clients.consumer_counts();
        counts.sort_by(|(name_a, a), (name_b, b)| b.cmp(a).then_with(|| name_a.cmp(name_b)));
        let rest: usize = counts.iter().skip(self.names_max()).map(|(_, count)| count).sum();
        let named = counts.into_iter().take(self.names_max()).map(|(name, count)| (Some(name), count));
        named.chain((rest > 0).then_some((None, rest))).collect()
    }

    /// Members of consumer groups by what they are: of the largest groups by name, and of all others together.
    pub(crate) fn consumer_kinds(&self) -> Vec<ClientKind> {
        let named: std::collections::HashSet<GroupName> =
            self.consumer_counts().into_iter().filter_map(|(name, _)| name).collect();
        let mut kinds: BTreeMap<Option<GroupName>, BTreeMap<Kind, usize>> = BTreeMap::new();
        for (group, consume_type, language, version) in self.0.clients.consumer_clients() {
            let group = Some(group).filter(|group| named.contains(group));
            let kind = (consume_mode(consume_type), language, version_text(version));
            *kinds.entry(group).or_default().entry(kind).or_default() += 1;
        }
        kinds.into_iter().flat_map(|(group, kinds)| bounded(group.as_ref(), kinds)).collect()
    }

    /// Producers by what they are, once in each of their groups.
    pub(crate) fn producer_kinds(&self) -> Vec<ClientKind> {
        let mut kinds: BTreeMap<Kind, usize> = BTreeMap::new();
        for (language, version) in self.0.clients.producer_clients() {
            *kinds.entry(("", language, version_text(version))).or_default() += 1;
        }
        bounded(None, kinds)
    }

    /// The ends of all topics: those with most messages by name, and all others together.
    pub(crate) fn topic_ends(&self) -> Vec<TopicEnd> {
        let topics = self.0.state.topics().into_iter();
        let mut ends: Vec<_> = topics
            .map(|config| {
                let queues = 0..config.queues();
                let end = queues.map(|queue_id| self.0.store.max_offset(&config.name, queue_id)).sum();
                TopicEnd { topic: Some(config.name.clone()), end }
            })
            .collect();
        ends.sort_by(|a, b| b.end.cmp(&a.end).then_with(|| a.topic.cmp(&b.topic)));
        if ends.len() > self.names_max() {
            let end = ends.drain(self.names_max()..).map(|topic| topic.end).sum();
            ends.push(TopicEnd { topic: None, end });
        }
        ends
    }

    /// How far behind consumer groups are: those furthest behind by name, and all others together.
    ///
    /// Reads from the disk, at most [`READS_MAX`] messages.
    pub(crate) fn lags(&self) -> Vec<Lag> {
        let mut lags = Vec::new();
        for group in self.0.state.groups_with_offsets() {
            for topic in self.0.state.topics_consumed_by(&group) {
                lags.extend(self.lag(topic, group.clone()));
            }
        }
        let mut lags = name_furthest(lags, self.names_max());
        let mut reads_left = READS_MAX;
        for lag in lags.iter_mut().take(WAITS_MAX).filter(|lag| lag.messages > 0) {
            let Some((topic, group)) = &lag.of else { continue };
            lag.waits_ms = self.oldest_wait(topic, group, Behind::Consumed, &mut reads_left);
            lag.queues_ms = match lag.in_flight {
                0 => lag.waits_ms,
                _ => self.oldest_wait(topic, group, Behind::Given, &mut reads_left),
            };
        }
        lags
    }

    /// None if there is no such topic any more.
    fn lag(&self, topic: TopicName, group: GroupName) -> Option<Lag> {
        let config = self.0.state.topic(&topic)?;
        let offsets = self.0.state.consumer_offsets(&group, &topic);
        let mut lag = Lag::default();
        for queue_id in 0..config.read_queues {
            let (consumed, given) = self.popped(&group, &topic, queue_id).unwrap_or_else(|| {
                let consumed = offsets.get(&queue_id).copied().unwrap_or(0);
                (consumed, consumed)
            });
            // What retention has dropped waits for nobody.
            let consumed = consumed.max(self.0.store.min_offset(&topic, queue_id));
            lag.messages += self.0.store.max_offset(&topic, queue_id).saturating_sub(consumed);
            lag.in_flight += given.saturating_sub(consumed);
            lag.committed += consumed;
        }
        lag.of = Some((topic, group));
        Some(lag)
    }

    fn oldest_wait(&self, topic: &TopicName, group: &GroupName, behind: Behind, reads_left: &mut usize) -> Option<i64> {
        let config = self.0.state.topic(topic)?;
        let offsets = self.0.state.consumer_offsets(group, topic);
        let mut oldest: Option<i64> = None;
        for queue_id in 0..config.read_queues {
            let consumed = match self.popped(group, topic, queue_id) {
                Some((consumed, _)) if behind == Behind::Consumed => consumed,
                Some((_, given)) => given,
                None => offsets.get(&queue_id).copied().unwrap_or(0),
            };
            let first = consumed.max(self.0.store.min_offset(topic, queue_id));
            if first >= self.0.store.max_offset(topic, queue_id) {
                continue;
            }
            *reads_left = reads_left.checked_sub(1)?;
            // What cannot be read now is missing from one answer.
            if let Ok(Some(stored_ms)) = self.0.store.store_time(topic, queue_id, first) {
                oldest = Some(oldest.map_or(stored_ms, |other| other.min(stored_ms)));
            }
        }
        oldest.map(|stored_ms| now().wall_ms.saturating_sub(stored_ms).max(0))
    }

    fn names_max(&self) -> usize {
        self.0.settings.metric_names_max
    }
}

/// Which messages count as waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    /// Those that are not consumed.
    Consumed,
    /// Of these, those that no member was given.
    Given,
}

/// How a client consumes, its language and its version.
type Kind = (&'static str, String, String);

fn rate_of(meter: Option<Arc<Meter>>) -> (f64, f64) {
    let minute = meter.map(|meter| meter.minute()).unwrap_or_default();
    (minute.per_second, minute.bytes_per_second)
}

const fn consume_mode(consume_type: ConsumeType) -> &'static str {
    match consume_type {
        ConsumeType::Actively => "pull",
        ConsumeType::Passively => "push",
        ConsumeType::Pop => "pop",
    }
}

/// The version that a client's number stands for, as RocketMQ writes it; from version 4 on the numbers follow a rule.
fn version_text(number: i32) -> String {
    const FIRST_OF_4: i32 = 212;
    const BEHIND_5_9_9: i32 = 612;
    match number {
        FIRST_OF_4..BEHIND_5_9_9 => {
            let release = (number - FIRST_OF_4) / 2;
            let snapshot = if number % 2 == 0 { "_snapshot" } else { "" };
            format!("v{}_{}_{}{snapshot}", 4 + release / 100, release / 10 % 10, release % 10)
        }
        ..FIRST_OF_4 => "v3".to_owned(),
        _ => "higher_version".to_owned(),
    }
}

/// The most frequent kinds of a group, and the rest together.
fn bounded(group: Option<&GroupName>, kinds: BTreeMap<Kind, usize>) -> Vec<ClientKind> {
    let mut kinds: Vec<ClientKind> = kinds
        .into_iter()
        .map(|((consume_mode, language, version), count)| ClientKind {
            group: group.cloned(),
            consume_mode,
            language,
            version,
            count,
        })
        .collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.count));
    if kinds.len() > KINDS_MAX {
        let count = kinds.drain(KINDS_MAX - 1..).map(|kind| kind.count).sum();
        let other = || OTHER.to_owned();
        kinds.push(ClientKind {
            group: group.cloned(),
            consume_mode: OTHER,
            language: other(),
            version: other(),
            count,
        });
    }
    kinds
}

/// Keeps the `max` that are furthest behind, and sums the others.
fn name_furthest(mut lags: Vec<Lag>, max: usize) -> Vec<Lag> {
    lags.sort_by(|a, b| b.messages.cmp(&a.messages).then_with(|| a.of.cmp(&b.of)));
    if lags.len() <= max {
        return lags;
    }
    let mut others = Lag::default();
    for lag in lags.drain(max..) {
        others.messages += lag.messages;
        others.in_flight += lag.in_flight;
        others.committed += lag.committed;
    }
    lags.push(others);
    lags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_named_as_rocketmq_names_them() {
        let cases = [(317, "v4_5_2"), (401, "v4_9_4"), (473, "v5_3_0"), (479, "v5_3_3"), (478, "v5_3_3_snapshot")];
        for (number, name) in cases {
            assert_eq!(version_text(number), name);
        }
        assert_eq!(version_text(213), "v4_0_0");
        assert_eq!([0, -1, 211].map(version_text), ["v3", "v3", "v3"]);
        assert_eq!((version_text(611), version_text(i32::MAX)), ("v5_9_9".to_owned(), "higher_version".to_owned()));
    }

    #[test]
    fn many_kinds_of_clients_are_summed_and_none_is_lost() {
        let kinds = |count: usize| (0..count).map(|n| (("push", "JAVA".to_owned(), n.to_string()), n + 1)).collect();
        let all = bounded(None, kinds(KINDS_MAX));
        assert_eq!((all.len(), all[0].count), (KINDS_MAX, KINDS_MAX));
        let summed = bounded(None, kinds(40));
        assert_eq!((summed.len(), summed.last().unwrap().language.as_str()), (KINDS_MAX, OTHER));
        assert_eq!(summed.iter().map(|kind| kind.count).sum::<usize>(), (1..=40).sum::<usize>());
    }

    #[test]
    fn those_furthest_behind_are_named_and_nothing_is_lost_from_the_sum() {
        let lag = |name: &str, messages| {
            let of = Some((TopicName::parse(name).unwrap(), GroupName::parse("g").unwrap()));
            Lag { of, messages, in_flight: 1, committed: 10, ..Lag::default() }
        };
        let all = vec![lag("a", 1), lag("b", 5), lag("c", 3), lag("d", 5)];
        let named = name_furthest(all.clone(), 2);
        let names: Vec<_> = named.iter().map(|lag| lag.of.as_ref().map(|(topic, _)| topic.to_string())).collect();
        assert_eq!(names, [Some("b".to_owned()), Some("d".to_owned()), None]);
        assert_eq!((named[2].messages, named[2].in_flight, named[2].committed), (4, 2, 20));
        assert_eq!(name_furthest(all, 4).len(), 4);
    }
}
