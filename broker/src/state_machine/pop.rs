//! What consumers in POP mode have taken and not acknowledged.
//!
//! A queue that a group pops from has a line, `next`: messages from it on were never given to the group. Below it,
//! what was given and not acknowledged is listed with the time until which nobody else gets it. So the state knows
//! exactly what is under way, and a message whose time is over is given again from where it lies, whoever leads.
//!
//! ```text
//!   [acknowledged ..][taken][ack][taken, time over][ack] | never given ...
//!                    ^ committed                         ^ next
//! ```
//!
//! The leader chooses what is taken, since only it can read tags and properties, and says in the entry what it saw. The
//! entry is refused unless that is still so: a message is in the hands of one consumer at a time.
//!
//! What is under way is bounded, for each queue of a group and in all: beyond it nothing new is taken.

use std::collections::{BTreeMap, BTreeSet};

use bincode::{Decode, Encode};
use protocol::{GroupName, TopicName};

use super::command::GroupQueue;

/// So many messages of one queue may be under way to one group.
pub const TAKEN_PER_QUEUE_MAX: usize = 20_000;
/// So many messages may be under way in all.
pub const TAKEN_MAX: usize = 1_000_000;

/// A message that was given and not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Taken {
    /// When it was given, or hidden again: with its place this names one giving.
    pub popped_ms: i64,
    /// Until then nobody else gets it.
    pub until_ms: i64,
    /// How often it had been given before.
    pub times: u32,
}

/// One queue as one group pops from it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PopQueue {
    /// The first message that was never given.
    pub(crate) next: u64,
    /// What is under way, by place.
    pub(crate) taken: BTreeMap<u64, Taken>,
    /// The same by the time at which it may be given again.
    by_time: BTreeSet<(i64, u64)>,
    /// Which attempt took them, if the consumer said so.
    pub(crate) attempt: Option<String>,
}

/// How members of a group get the messages of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum RequestMode {
    /// Each queue belongs to one member, which pulls from it.
    Pull,
    /// Members pop from queues they share.
    Pop {
        /// With how many others, where there are more members; 0 and less: with all.
        share_queues: i32,
    },
}

/// What happens to messages of one queue.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PopStep {
    /// The group and its queue.
    pub queue: GroupQueue,
    /// What.
    pub action: PopAction,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum PopAction {
    /// Messages are given.
    Take(Take),
    /// Messages are consumed. Those that were acknowledged before count too.
    Acknowledge {
        /// The giving it belongs to.
        popped_ms: i64,
        /// The messages.
        queue_offsets: Vec<u64>,
    },
    /// A message stays hidden for another time from now on.
    Hide {
        /// The message.
        queue_offset: u64,
        /// The giving it belongs to.
        popped_ms: i64,
        /// The time of the leader, which names the giving from now on.
        hidden_ms: i64,
        /// For how long.
        invisible_ms: i64,
    },
}

/// Messages that are given to one consumer.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Take {
    /// How the queue stood when they were chosen.
    pub seen: Seen,
    /// The line afterwards: what lies below and is not listed does not fit the consumer's subscription.
    pub next: u64,
    /// What lies below is gone from the log.
    pub floor: u64,
    /// Messages never given before, ascending, below `next`.
    pub fresh: Vec<u64>,
    /// Messages whose time is over, ascending.
    pub again: Vec<u64>,
    /// The time of the leader.
    pub popped_ms: i64,
    /// For how long nobody else gets them.
    pub invisible_ms: i64,
    /// Set if they are given in order: nothing while an earlier one is under way.
    pub order: Option<Order>,
}

/// Messages are given in order.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Order {
    /// A consumer that asks again for want of an answer gets the same messages.
    pub attempt: Option<String>,
}

/// How a queue stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Seen {
    /// The group has not popped from it since its offset was set otherwise; this is the offset.
    Committed(Option<u64>),
    /// Its line.
    Next(u64),
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PopOutcome {
    /// It took effect.
    Done,
    /// Of what was to be acknowledged, so many are not under way by that giving: they were given again.
    Stale {
        /// How many.
        count: u32,
    },
    /// Nothing changed.
    Refused(PopRefused),
}

/// Why a step changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PopRefused {
    /// There is no such queue, or it ends before.
    #[error("the queue does not exist, or ends before")]
    NoQueue,
    /// The queue does not stand where the leader saw it.
    #[error("the queue was popped from meanwhile")]
    Moved,
    /// Too much is under way.
    #[error("too many messages are under way: {TAKEN_PER_QUEUE_MAX} of a queue or {TAKEN_MAX} in all")]
    Full,
    /// The step contradicts itself.
    #[error("what is to be taken is not in order")]
    Invalid,
}

impl PopQueue {
    fn starting_at(next: u64) -> Self {
        Self { next, ..Self::default() }
    }

    /// The first message that is not acknowledged.
    pub(crate) fn committed(&self) -> u64 {
        self.taken.first_key_value().map_or(self.next, |(first, _)| *first)
    }

    /// Messages that may be given again at `now_ms`, the first `count` of them by place.
    pub(crate) fn due(&self, now_ms: i64, count: usize) -> Vec<(u64, Taken)> {
        let mut due: Vec<u64> = self.by_time.range(..=(now_ms, u64::MAX)).map(|(_, offset)| *offset).collect();
        due.sort_unstable();
        due.truncate(count);
        due.into_iter().map(|offset| (offset, self.taken[&offset])).collect()
    }

    /// When the next message may be given again.
    pub(crate) fn next_due_ms(&self) -> Option<i64> {
        self.by_time.first().map(|(until_ms, _)| *until_ms)
    }

    fn put(&mut self, queue_offset: u64, taken: Taken) {
        if let Some(before) = self.taken.insert(queue_offset, taken) {
            self.by_time.remove(&(before.until_ms, queue_offset));
        }
        self.by_time.insert((taken.until_ms, queue_offset));
    }

    fn remove(&mut self, queue_offset: u64) -> Option<Taken> {
        let taken = self.taken.remove(&queue_offset)?;
        self.by_time.remove(&(taken.until_ms, queue_offset));
        if self.taken.is_empty() {
            self.attempt = None;
        }
        Some(taken)
    }

    /// Whether `take` fits how the queue stands.
    fn check(&self, take: &Take, all_taken: usize) -> Result<(), PopRefused> {
        let ascends = |offsets: &[u64]| offsets.windows(2).all(|pair| pair[0] < pair[1]);
        let fresh_fit = take.fresh.first().is_none_or(|first| *first >= self.next)
            && take.fresh.last().is_none_or(|last| *last < take.next);
        if take.next < self.next
            || !fresh_fit
            || !ascends(&take.fresh)
            || !ascends(&take.again)
            || take.invisible_ms < 1
        {
            return Err(PopRefused::Invalid);
        }
        let same_attempt = match &take.order {
            Some(Order { attempt: Some(attempt) }) => self.attempt.as_ref() == Some(attempt),
            _ => false,
        };
        let is_due =
            |offset: &u64| self.taken.get(offset).is_some_and(|taken| same_attempt || taken.until_ms <= take.popped_ms);
        if !take.again.iter().all(is_due) {
            return Err(PopRefused::Moved);
        }
        if take.order.is_some() {
            let first = self.taken.first_key_value().map(|(first, _)| first);
            // What is under way is given again from its first message on, and nothing new before it is acknowledged.
            if first.is_some()
                && (!take.fresh.is_empty() || take.again.first().is_some_and(|again| Some(again) != first))
            {
                return Err(PopRefused::Moved);
            }
        }
        let grown = self.taken.len() + take.fresh.len();
        let all_grown = all_taken + take.fresh.len();
        if !take.fresh.is_empty() && (grown > TAKEN_PER_QUEUE_MAX || all_grown > TAKEN_MAX) {
            return Err(PopRefused::Full);
        }
        Ok(())
    }

    fn take(&mut self, take: Take) {
        let Take { next, floor, fresh, again, popped_ms, invisible_ms, order, .. } = take;
        let until_ms = popped_ms.saturating_add(invisible_ms);
        self.next = next;
        while let Some((first, _)) = self.taken.first_key_value().filter(|(first, _)| **first < floor) {
            let first = *first;
            self.remove(first);
        }
        let attempt = order.and_then(|order| order.attempt);
        let same_attempt = attempt.is_some() && attempt == self.attempt;
        for queue_offset in again {
            // Unless it lay below the floor.
            if let Some(before) = self.taken.get(&queue_offset) {
                let times = before.times.saturating_add(u32::from(!same_attempt));
                self.put(queue_offset, Taken { popped_ms, until_ms, times });
            }
        }
        for queue_offset in fresh.into_iter().filter(|queue_offset| *queue_offset >= floor) {
            self.put(queue_offset, Taken { popped_ms, until_ms, times: 0 });
        }
        self.attempt = attempt.filter(|_| !self.taken.is_empty());
    }
}

/// Queues of a group, by topic.
type TopicQueues = BTreeMap<TopicName, BTreeMap<u32, PopQueue>>;

/// What all groups have under way, and which of them pop.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pops {
    groups: BTreeMap<GroupName, TopicQueues>,
    modes: BTreeMap<GroupName, BTreeMap<TopicName, RequestMode>>,
    /// Messages under way in all.
    all_taken: usize,
}

impl Pops {
    /// A queue as a group pops from it; none if it never did, or its offset was set otherwise since.
    pub(crate) fn queue(&self, group: &str, topic: &str, queue_id: u32) -> Option<&PopQueue> {
        self.groups.get(group)?.get(topic)?.get(&queue_id)
    }

    /// The queues of a topic that a group pops from.
    pub(crate) fn queues(&self, group: &str, topic: &str) -> impl Iterator<Item = (u32, &PopQueue)> {
        let queues = self.groups.get(group).and_then(|topics| topics.get(topic));
        queues.into_iter().flatten().map(|(queue_id, queue)| (*queue_id, queue))
    }

    /// How many messages are under way in all.
    pub(crate) fn taken_count(&self) -> usize {
        self.all_taken
    }

    /// How members of a group are to get the messages of a topic, if somebody has said so.
    pub(crate) fn mode(&self, group: &str, topic: &str) -> Option<RequestMode> {
        self.modes.get(group)?.get(topic).copied()
    }

    /// Every mode that was set.
    pub(crate) fn modes(&self) -> impl Iterator<Item = (&GroupName, &TopicName, RequestMode)> {
        self.modes.iter().flat_map(|(group, topics)| topics.iter().map(move |(topic, mode)| (group, topic, *mode)))
    }

    pub(super) fn set_mode(&mut self, group: GroupName, topic: TopicName, mode: RequestMode) {
        self.modes.entry(group).or_default().insert(topic, mode);
    }

    /// Does one step. `end` is the offset that the queue's next message gets, none if there is no such queue;
    /// `committed` is the offset stored for the group.
    pub(super) fn step(&mut self, step: PopStep, end: Option<u64>, committed: Option<u64>) -> PopOutcome {
        let PopStep { queue: key, action } = step;
        match action {
            PopAction::Take(take) => match self.take(&key, take, end, committed) {
                Ok(()) => PopOutcome::Done,
                Err(refused) => PopOutcome::Refused(refused),
            },
            PopAction::Acknowledge { popped_ms, queue_offsets } => {
                let mut stale = 0;
                let mut removed = 0;
                let mut queue = self.queue_mut(&key);
                // Without a list, what lies below the stored offset is consumed.
                let line = queue.as_ref().map_or_else(|| committed.unwrap_or(0), |queue| queue.next);
                for queue_offset in queue_offsets {
                    match queue.as_mut().and_then(|queue| queue.taken.get(&queue_offset)) {
                        Some(taken) if taken.popped_ms == popped_ms => {
                            removed += 1;
                            queue.as_mut().and_then(|queue| queue.remove(queue_offset));
                        }
                        None if queue_offset < line => {}
                        _ => stale += 1,
                    }
                }
                self.all_taken -= removed;
                if stale > 0 { PopOutcome::Stale { count: stale } } else { PopOutcome::Done }
            }
            PopAction::Hide { queue_offset, popped_ms, hidden_ms, invisible_ms } => {
                let found = self.queue_mut(&key).and_then(|queue| {
                    let taken = *queue.taken.get(&queue_offset)?;
                    Some((queue, taken)).filter(|(_, taken)| taken.popped_ms == popped_ms)
                });
                let Some((queue, taken)) = found else { return PopOutcome::Stale { count: 1 } };
                let until_ms = hidden_ms.saturating_add(invisible_ms.max(1));
                queue.put(queue_offset, Taken { popped_ms: hidden_ms, until_ms, ..taken });
                PopOutcome::Done
            }
        }
    }

    fn take(
        &mut self,
        key: &GroupQueue,
        take: Take,
        end: Option<u64>,
        committed: Option<u64>,
    ) -> Result<(), PopRefused> {
        if end.is_none_or(|end| take.next > end) {
            return Err(PopRefused::NoQueue);
        }
        let queues = self.groups.get(&key.group).and_then(|topics| topics.get(&key.topic));
        let queue = queues.and_then(|queues| queues.get(&key.queue_id));
        let new = match (take.seen, queue) {
            (Seen::Next(next), Some(queue)) if queue.next == next => None,
            (Seen::Committed(seen), None) if seen == committed => {
                let start = take.fresh.first().copied().unwrap_or(take.next);
                Some(PopQueue::starting_at(start))
            }
            _ => return Err(PopRefused::Moved),
        };
        let queue = new.as_ref().or(queue).expect("there is one or a new one");
        queue.check(&take, self.all_taken)?;
        let topics = self.groups.entry(key.group.clone()).or_default();
        let queue = topics.entry(key.topic.clone()).or_default().entry(key.queue_id).or_default();
        if let Some(new) = new {
            *queue = new;
        }
        let before = queue.taken.len();
        queue.take(take);
        self.all_taken = self.all_taken - before + queue.taken.len();
        Ok(())
    }

    /// Whether all of `queue_offsets` are under way with their time over at `now_ms`.
    pub(super) fn are_due(&self, key: &GroupQueue, queue_offsets: &[u64], now_ms: i64) -> bool {
        self.queue(&key.group, &key.topic, key.queue_id).is_some_and(|queue| {
            let is_due = |offset: &u64| queue.taken.get(offset).is_some_and(|taken| taken.until_ms <= now_ms);
            queue_offsets.windows(2).all(|pair| pair[0] < pair[1]) && queue_offsets.iter().all(is_due)
        })
    }

    /// Messages are not under way any more, without an acknowledgement.
    pub(super) fn remove(&mut self, key: &GroupQueue, queue_offsets: &[u64]) {
        if let Some(queue) = self.queue_mut(key) {
            let before = queue.taken.len();
            for queue_offset in queue_offsets {
                queue.remove(*queue_offset);
            }
            let removed = before - queue.taken.len();
            self.all_taken -= removed;
        }
    }

    /// The first message of a queue that a group has not acknowledged, if it pops from it.
    pub(super) fn committed(&self, key: &GroupQueue) -> Option<u64> {
        self.queue(&key.group, &key.topic, key.queue_id).map(PopQueue::committed)
    }

    fn queue_mut(&mut self, key: &GroupQueue) -> Option<&mut PopQueue> {
        self.groups.get_mut(&key.group)?.get_mut(&key.topic)?.get_mut(&key.queue_id)
    }

    /// The offset of a queue was set otherwise: what is under way does not count any more.
    pub(super) fn forget_queue(&mut self, group: &GroupName, topic: &TopicName, queue_id: u32) {
        let Some(topics) = self.groups.get_mut(group) else { return };
        let Some(queues) = topics.get_mut(topic) else { return };
        if let Some(queue) = queues.remove(&queue_id) {
            self.all_taken -= queue.taken.len();
        }
        if queues.is_empty() {
            topics.remove(topic);
        }
        if topics.is_empty() {
            self.groups.remove(group);
        }
    }

    /// All offsets of a group in a topic, or in all, were set otherwise.
    pub(super) fn forget_offsets(&mut self, group: &GroupName, topic: Option<&TopicName>) {
        let Some(topics) = self.groups.get_mut(group) else { return };
        let forgotten: TopicQueues = match topic {
            None => std::mem::take(topics),
            Some(topic) => topics.remove_entry(topic).into_iter().collect(),
        };
        self.all_taken -= forgotten.values().flat_map(BTreeMap::values).map(|queue| queue.taken.len()).sum::<usize>();
        if topics.is_empty() {
            self.groups.remove(group);
        }
    }

    /// A topic was deleted.
    pub(super) fn forget_topic(&mut self, topic: &TopicName) {
        let groups: Vec<GroupName> = self.groups.keys().cloned().collect();
        for group in groups {
            self.forget_offsets(&group, Some(topic));
        }
        self.modes.retain(|_, topics| {
            topics.remove(topic);
            !topics.is_empty()
        });
    }

    /// A group was deleted.
    pub(super) fn forget_group(&mut self, group: &GroupName) {
        self.forget_offsets(group, None);
        self.modes.remove(group);
    }
}

/// The part of a checkpoint that holds [`Pops`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(super) struct PopsImage {
    queues: Vec<QueueImage>,
    modes: Vec<ModeImage>,
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
struct QueueImage {
    queue: GroupQueue,
    next: u64,
    taken: Vec<(u64, Taken)>,
    attempt: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
struct ModeImage {
    #[bincode(with_serde)]
    group: GroupName,
    #[bincode(with_serde)]
    topic: TopicName,
    mode: RequestMode,
}

impl PopsImage {
    pub(super) fn of(pops: &Pops) -> Self {
        let mut queues = Vec::new();
        for (group, topics) in &pops.groups {
            for (topic, of_topic) in topics {
                for (queue_id, queue) in of_topic {
                    queues.push(QueueImage {
                        queue: GroupQueue { group: group.clone(), topic: topic.clone(), queue_id: *queue_id },
                        next: queue.next,
                        taken: queue.taken.iter().map(|(offset, taken)| (*offset, *taken)).collect(),
                        attempt: queue.attempt.clone(),
                    });
                }
            }
        }
        let modes = pops.modes();
        let modes = modes.map(|(group, topic, mode)| ModeImage { group: group.clone(), topic: topic.clone(), mode });
        Self { queues, modes: modes.collect() }
    }

    pub(super) fn to_pops(&self) -> Pops {
        let mut pops = Pops::default();
        for image in &self.queues {
            let mut queue = PopQueue::starting_at(image.next);
            for (queue_offset, taken) in &image.taken {
                queue.put(*queue_offset, *taken);
            }
            queue.attempt.clone_from(&image.attempt);
            pops.all_taken += queue.taken.len();
            let GroupQueue { group, topic, queue_id } = image.queue.clone();
            pops.groups.entry(group).or_default().entry(topic).or_default().insert(queue_id, queue);
        }
        for image in &self.modes {
            pops.set_mode(image.group.clone(), image.topic.clone(), image.mode);
        }
        pops
    }
}

#[cfg(test)]
mod log_tests;
#[cfg(test)]
mod tests;
