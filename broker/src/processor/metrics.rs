//! What metrics say about topics and consumer groups.
//!
//! The most that is named is an operator's to say; what does not fit is summed, and nothing is left out of a sum.

use protocol::{GroupName, TopicName};

use super::stats::{GotTotals, PutTotals, SizesSeen};
use super::{Group, now};
use crate::forward::Place;
use raft_store::TimeHistogram;

pub(crate) use super::stats::OTHER;

/// Most consumers whose oldest waiting message is looked up for one answer.
const WAITS_MAX: usize = 100;
/// Most messages read for that.
const READS_MAX: usize = 256;

/// How far a consumer group is in a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
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
}

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
    pub(crate) fn sizes(&self) -> SizesSeen {
        self.0.stats.sizes.seen()
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

    /// Messages put into a topic a second, over the last minute.
    pub(crate) fn put_rate(&self, topic: &str) -> f64 {
        self.0.stats.topic(topic).map_or(0.0, |meter| meter.minute().per_second)
    }

    /// Messages of a topic given to a group a second, over the last minute.
    pub(crate) fn got_rate(&self, topic: &str, group: &str) -> f64 {
        self.0.stats.reader(topic, group).map_or(0.0, |meter| meter.minute().per_second)
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
            lag.waits_ms = self.oldest_wait(topic, group, &mut reads_left);
        }
        lags
    }

    /// None if there is no such topic any more.
    fn lag(&self, topic: TopicName, group: GroupName) -> Option<Lag> {
        let config = self.0.state.topic(&topic)?;
        let offsets = self.0.state.consumer_offsets(&group, &topic);
        let mut lag = Lag { of: None, messages: 0, in_flight: 0, committed: 0, waits_ms: None };
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

    fn oldest_wait(&self, topic: &TopicName, group: &GroupName, reads_left: &mut usize) -> Option<i64> {
        let config = self.0.state.topic(topic)?;
        let offsets = self.0.state.consumer_offsets(group, topic);
        let mut oldest: Option<i64> = None;
        for queue_id in 0..config.read_queues {
            let consumed = match self.popped(group, topic, queue_id) {
                Some((consumed, _)) => consumed,
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

/// Keeps the `max` that are furthest behind, and sums the others.
fn name_furthest(mut lags: Vec<Lag>, max: usize) -> Vec<Lag> {
    lags.sort_by(|a, b| b.messages.cmp(&a.messages).then_with(|| a.of.cmp(&b.of)));
    if lags.len() <= max {
        return lags;
    }
    let mut others = Lag { of: None, messages: 0, in_flight: 0, committed: 0, waits_ms: None };
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
    fn those_furthest_behind_are_named_and_nothing_is_lost_from_the_sum() {
        let lag = |name: &str, messages| {
            let of = Some((TopicName::parse(name).unwrap(), GroupName::parse("g").unwrap()));
            Lag { of, messages, in_flight: 1, committed: 10, waits_ms: None }
        };
        let all = vec![lag("a", 1), lag("b", 5), lag("c", 3), lag("d", 5)];
        let named = name_furthest(all.clone(), 2);
        let names: Vec<_> = named.iter().map(|lag| lag.of.as_ref().map(|(topic, _)| topic.to_string())).collect();
        assert_eq!(names, [Some("b".to_owned()), Some("d".to_owned()), None]);
        assert_eq!((named[2].messages, named[2].in_flight, named[2].committed), (4, 2, 20));
        assert_eq!(name_furthest(all, 4).len(), 4);
    }
}
