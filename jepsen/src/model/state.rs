//! What the model's brokers hold, and what each operation does to it in one moment.

use std::collections::BTreeMap;
use std::time::Duration;

use super::cluster::Leader;
use crate::history::{
    Answer, BodyHash, Call, Consume, Decision, Found, FoundAt, Got, Nanos, Offset, Process, Pull, Pulled, QueueName,
    Queues, Send, Sent, Unique, accepts, topic_of,
};

/// Messages that one pull returns at most.
const PULL_MAX: usize = 8;

pub(super) struct Stored {
    pub(super) unique: Unique,
    pub(super) hash: BodyHash,
    pub(super) tag: Option<Box<str>>,
    pub(super) position: u64,
}

pub(super) struct State {
    pub(super) queues: Vec<(QueueName, Vec<Stored>)>,
    /// Delayed messages in the order of their sends; none once delivered.
    pub(super) delayed: Vec<Option<Send>>,
    /// Half messages that are not ended.
    pub(super) halves: BTreeMap<Unique, Send>,
    pub(super) offsets: BTreeMap<(Box<str>, QueueName), u64>,
    locks: BTreeMap<(Box<str>, QueueName), (Process, Nanos)>,
    topics: BTreeMap<Box<str>, u32>,
    end_position: u64,
}

impl State {
    pub(super) fn new(queues: u32) -> Self {
        Self {
            queues: (0..queues).map(|id| (format!("t1/broker-a/{id}").into(), Vec::new())).collect(),
            delayed: Vec::new(),
            halves: BTreeMap::new(),
            offsets: BTreeMap::new(),
            locks: BTreeMap::new(),
            topics: BTreeMap::new(),
            end_position: 4096,
        }
    }

    pub(super) fn queue(&self, name: &str) -> &[Stored] {
        self.queues.iter().find(|(known, _)| **known == *name).map_or(&[], |(_, stored)| stored)
    }

    /// The effect of `call`, and its answer; none if it is refused.
    pub(super) fn apply(
        &mut self,
        call: &Call,
        process: Process,
        invoked: Nanos,
        now: Nanos,
        leader: Leader,
    ) -> Option<Answer> {
        Some(match call {
            Call::Send(send) => {
                let (queue_offset, position) = self.append(&send.queue, send.unique, send.hash, send.tag.clone());
                Answer::Sent(sent(queue_offset, Some(position), leader))
            }
            Call::Batch(batch) => {
                let placed: Vec<_> =
                    batch.items.iter().map(|(unique, hash)| self.append(&batch.queue, *unique, *hash, None)).collect();
                let (queue_offset, position) = placed.first().copied()?;
                Answer::Sent(sent(queue_offset, Some(position), leader))
            }
            Call::SendDelay(send) => {
                self.delayed.push(Some(send.clone()));
                Answer::Sent(sent(0, None, leader))
            }
            Call::SendHalf(send) => {
                self.halves.insert(send.unique, send.clone());
                Answer::Sent(sent(0, None, leader))
            }
            Call::EndTx(end) => {
                let half = self.halves.remove(&end.unique)?;
                if end.decision == Decision::Commit {
                    self.append(&half.queue, half.unique, half.hash, half.tag);
                }
                Answer::Done
            }
            Call::Pull(pull) | Call::FinalRead(pull) => Answer::Pulled(self.pull(pull)),
            Call::Consume(_) | Call::Subscribe(_) | Call::Unsubscribe(_) | Call::Seek(_) => Answer::Done,
            Call::Commit(commit) => {
                self.offsets.insert((commit.group.clone(), commit.queue.clone()), commit.queue_offset);
                Answer::Done
            }
            Call::QueryOffset(query) => {
                let queue_offset = self.offsets.get(&(query.group.clone(), query.queue.clone())).copied();
                Answer::Offset(Offset { queue_offset })
            }
            Call::MaxOffset(read) => {
                Answer::Offset(Offset { queue_offset: Some(self.queue(&read.queue).len() as u64) })
            }
            Call::Lock(lock) => {
                let held = self.locks.entry((lock.group.clone(), lock.queue.clone())).or_insert((process, now));
                if held.0 != process && held.1 > now {
                    return None;
                }
                // A server counts the lease from its own moment, which is not before the request.
                debug_assert!(invoked <= now);
                *held = (process, now.plus(Duration::from_millis(lock.lease_ms)));
                Answer::Done
            }
            Call::Unlock(unlock) => {
                let key = (unlock.group.clone(), unlock.queue.clone());
                if self.locks.get(&key).is_some_and(|(holder, _)| *holder == process) {
                    self.locks.remove(&key);
                }
                Answer::Done
            }
            Call::CreateTopic(topic) | Call::UpdateTopic(topic) => {
                self.topics.insert(topic.topic.clone(), topic.queues);
                Answer::Done
            }
            Call::DeleteTopic(topic) => {
                self.topics.remove(&topic.topic);
                Answer::Done
            }
            Call::ReadTopic(topic) => Answer::Queues(Queues { queues: self.topics.get(&topic.topic).copied() }),
            Call::QueryMsg(query) => Answer::Found(Found { found: self.find(query.unique) }),
            Call::AddLearner(_) | Call::Promote(_) | Call::Remove(_) | Call::TransferLeader(_) => Answer::Done,
        })
    }

    pub(super) fn deliver_delayed(&mut self, nth: usize) {
        if let Some(send) = self.delayed.get_mut(nth).and_then(Option::take) {
            self.append(&send.queue, send.unique, send.hash, send.tag);
        }
    }

    fn append(&mut self, queue: &str, unique: Unique, hash: BodyHash, tag: Option<Box<str>>) -> (u64, u64) {
        let position = self.end_position;
        self.end_position += 256;
        let Some((_, stored)) = self.queues.iter_mut().find(|(known, _)| **known == *queue) else {
            return (0, position);
        };
        stored.push(Stored { unique, hash, tag, position });
        (stored.len() as u64 - 1, position)
    }

    fn pull(&self, pull: &Pull) -> Pulled {
        let stored = self.queue(&pull.queue);
        let max = stored.len() as u64;
        let from = usize::try_from(pull.from.min(max)).unwrap_or(usize::MAX);
        let mut next = from;
        let mut got = Vec::new();
        for (at, message) in stored.iter().enumerate().skip(from) {
            if got.len() == PULL_MAX {
                break;
            }
            next = at + 1;
            if accepts(pull.tag.as_deref(), message.tag.as_deref()) {
                got.push(as_got(at, message));
            }
        }
        Pulled { next: next as u64, min: 0, max, got, corrupt: Vec::new() }
    }

    fn find(&self, unique: Unique) -> Option<FoundAt> {
        self.queues.iter().find_map(|(queue, stored)| {
            let at = stored.iter().position(|message| message.unique == unique)?;
            let Got { queue_offset, unique, hash, physical_offset } = as_got(at, &stored[at]);
            Some(FoundAt { queue: queue.clone(), queue_offset, unique, hash, physical_offset })
        })
    }

    /// The next delivery to `group` from `queue_offset` on.
    pub(super) fn next_delivery(
        &self,
        group: &str,
        queue: &str,
        from: u64,
        tag: Option<&str>,
        orderly: bool,
    ) -> Option<Consume> {
        let stored = self.queue(queue).iter().enumerate().skip(usize::try_from(from).ok()?);
        let (at, message) = stored.into_iter().find(|(_, message)| accepts(tag, message.tag.as_deref()))?;
        let (unique, hash, queue_offset) = (message.unique, message.hash, at as u64);
        Some(Consume { group: group.into(), queue: queue.into(), queue_offset, unique, hash, orderly })
    }

    /// The queues of a topic.
    pub(super) fn queues_of(&self, topic: &str) -> Vec<QueueName> {
        self.queues.iter().map(|(name, _)| name.clone()).filter(|name| topic_of(name) == topic).collect()
    }
}

pub(super) fn as_got(at: usize, stored: &Stored) -> Got {
    Got { queue_offset: at as u64, unique: stored.unique, hash: stored.hash, physical_offset: stored.position }
}

fn sent(queue_offset: u64, physical_offset: Option<u64>, leader: Leader) -> Sent {
    let offset_id = physical_offset.map(|at| format!("7F00000100002A9F{at:016X}").into());
    Sent { queue_offset, physical_offset, offset_id, by: Some(leader.node.into()), term: Some(leader.term) }
}
