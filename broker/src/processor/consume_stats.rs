//! How far consumers are: codes 208, 303, 308, 317.

use std::collections::BTreeMap;

use protocol::body::{
    BrokerConsumeStats, ConsumeStats, ConsumeTimeSpans, CorrectionOffsets, OffsetWrapper, QueueTable, QueueTimeSpan,
};
use protocol::header::{ConsumeStatsRequest, ConsumeTimeSpanRequest, CorrectionOffsetRequest};
use protocol::{GroupName, RemotingCommand, TopicName};

use super::answer::{Failure, Outcome, success};
use super::send::{wire_offset, wire_queue};
use super::{Group, now};
use crate::client_table::SubscriptionLookup;

impl Group {
    pub(super) fn consume_stats(&self, request: &RemotingCommand) -> Outcome {
        let header = ConsumeStatsRequest::decode(request)?;
        let listed = header.topic_list.as_deref().unwrap_or_default().split(';').filter(|topic| !topic.is_empty());
        let mut topics: Vec<TopicName> = listed.filter_map(|topic| TopicName::parse(topic).ok()).collect();
        topics.extend(header.topic);
        if topics.is_empty() {
            topics = self.0.state.topics_consumed_by(&header.group);
        }
        topics.sort();
        topics.dedup();
        let mut stats = ConsumeStats::default();
        for topic in &topics {
            if let Some(of_topic) = self.stats_of(&header.group, topic) {
                stats.consume_tps += of_topic.consume_tps;
                stats.offset_table.extend(of_topic.offset_table.0);
            }
        }
        Ok(success(request).with_body(stats.encode()))
    }

    /// Where a group stands in a topic; none if there is no such topic or the group reads it no longer.
    fn stats_of(&self, group: &GroupName, topic: &TopicName) -> Option<ConsumeStats> {
        let config = self.0.state.topic(topic)?;
        if matches!(self.0.clients.subscription(group, topic), SubscriptionLookup::NoTopic(_)) {
            return None;
        }
        let offsets = self.0.state.consumer_offsets(group, topic);
        let mut offset_table = QueueTable::default();
        for queue_id in 0..config.read_queues {
            let (consumed, given) = self.popped(group, topic, queue_id).unwrap_or_else(|| {
                let consumed = offsets.get(&queue_id).copied().unwrap_or(0);
                (consumed, consumed)
            });
            let last = consumed.checked_sub(1).and_then(|last| self.store_time_of(topic, queue_id, last));
            let progress = OffsetWrapper {
                broker_offset: wire_offset(self.0.store.max_offset(topic, queue_id)),
                consumer_offset: wire_offset(consumed),
                last_timestamp: last.unwrap_or(0),
                pull_offset: wire_offset(given),
            };
            offset_table.insert(self.queue(topic, queue_id), progress);
        }
        let consume_tps = self.0.stats.reader(topic, group).map_or(0.0, |meter| meter.minute().per_second);
        Some(ConsumeStats { consume_tps, offset_table })
    }

    /// How far a group is in each queue of a topic: queue, offset it consumes next, offset behind the last message.
    pub(crate) fn progress(&self, group: &GroupName, topic: &TopicName) -> Vec<(u32, u64, u64)> {
        let Some(config) = self.0.state.topic(topic) else { return Vec::new() };
        let offsets = self.0.state.consumer_offsets(group, topic);
        let of_queue = |queue_id| {
            let popped = self.popped(group, topic, queue_id).map(|(consumed, _)| consumed);
            let consumed = popped.or_else(|| offsets.get(&queue_id).copied()).unwrap_or(0);
            (queue_id, consumed, self.0.store.max_offset(topic, queue_id))
        };
        (0..config.read_queues).map(of_queue).collect()
    }

    /// For a queue that a group pops from: an offset as far from the queue's end as messages are not acknowledged, and
    /// the first message that was never given. What lies between is under way, wherever it lies.
    pub(super) fn popped(&self, group: &GroupName, topic: &TopicName, queue_id: u32) -> Option<(u64, u64)> {
        let pops = self.0.state.pops();
        let queue = pops.queue(group, topic, queue_id)?;
        Some((queue.next.saturating_sub(queue.taken.len() as u64), queue.next))
    }

    pub(super) fn all_consume_stats(&self, request: &RemotingCommand) -> Outcome {
        let mut body = BrokerConsumeStats {
            broker_addr: Some(self.0.settings.client_addr.to_string()),
            ..BrokerConsumeStats::default()
        };
        for group in self.0.state.groups() {
            let topics = self.0.state.topics_consumed_by(&group.name);
            let all: Vec<ConsumeStats> = topics.iter().filter_map(|topic| self.stats_of(&group.name, topic)).collect();
            if all.is_empty() {
                continue;
            }
            for progress in all.iter().flat_map(|stats| stats.offset_table.values()) {
                body.total_diff += progress.broker_offset - progress.consumer_offset;
            }
            body.consume_stats_list.push(BTreeMap::from([(group.name.as_str().to_owned(), all)]));
        }
        Ok(success(request).with_body(body.encode()))
    }

    pub(super) fn consume_time_span(&self, request: &RemotingCommand) -> Outcome {
        let header = ConsumeTimeSpanRequest::decode(request)?;
        let topic = self.0.state.topic(&header.topic).ok_or_else(|| Failure::no_topic(&header.topic))?;
        let offsets = self.0.state.consumer_offsets(&header.group, &header.topic);
        let now_ms = now().wall_ms;
        let span = |queue_id| {
            let time_of = |queue_offset| self.store_time_of(&header.topic, queue_id, queue_offset).unwrap_or(-1);
            let min_offset = self.0.store.min_offset(&header.topic, queue_id);
            let max_offset = self.0.store.max_offset(&header.topic, queue_id);
            let consumed = offsets.get(&queue_id).copied();
            let consume_time_stamp = match consumed.and_then(|consumed| consumed.checked_sub(1)) {
                Some(last) => time_of(last),
                None => time_of(min_offset),
            };
            // The message to be consumed next has been waiting, if there is one.
            let waiting = time_of(consumed.unwrap_or(min_offset));
            QueueTimeSpan {
                consume_time_stamp,
                delay_time: if waiting >= 0 { (now_ms - waiting).max(0) } else { 0 },
                max_time_stamp: max_offset.checked_sub(1).map_or(-1, time_of),
                message_queue: self.queue(&header.topic, queue_id),
                min_time_stamp: time_of(min_offset),
            }
        };
        let body = ConsumeTimeSpans { consume_time_span_set: (0..topic.write_queues).map(span).collect() };
        Ok(success(request).with_body(body.encode()))
    }

    /// The smallest offsets that other groups have for each queue that the compared group has an offset for.
    pub(super) fn correction_offsets(&self, request: &RemotingCommand) -> Outcome {
        let header = CorrectionOffsetRequest::decode(request)?;
        let left_out: Vec<&str> = header.filter_groups.as_deref().unwrap_or_default().split(',').collect();
        let compared = self.0.state.consumer_offsets(&header.compare_group, &header.topic);
        let mut smallest: BTreeMap<u32, u64> = BTreeMap::new();
        for group in self.0.state.groups_consuming(&header.topic) {
            if left_out.contains(&group.as_str()) {
                continue;
            }
            for (queue_id, queue_offset) in self.0.state.consumer_offsets(&group, &header.topic) {
                let least = smallest.entry(queue_id).or_insert(queue_offset);
                *least = (*least).min(queue_offset);
            }
        }
        let corrected = smallest.iter().filter(|(queue_id, _)| compared.contains_key(queue_id));
        let correction_offsets = corrected.map(|(queue_id, offset)| (wire_queue(*queue_id), wire_offset(*offset)));
        Ok(success(request).with_body(CorrectionOffsets { correction_offsets: correction_offsets.collect() }.encode()))
    }
}
