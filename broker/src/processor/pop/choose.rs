//! Which messages a pop gives: those whose time is over first, then new ones that fit the subscription.
//!
//! A queue is looked at by one pop at a time of each group; others go on to the next queue. What was looked at is only
//! taken once the log says so.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use protocol::header::PopStart;
use protocol::message::{RecordView, patch_reconsume_times};

use super::PopTask;
use crate::processor::Group;
use crate::processor::answer::Failure;
use crate::state_machine::command::GroupQueue;
use crate::state_machine::pop::{
    Order, PopAction, PopQueue, PopStep, Seen, TAKEN_MAX, TAKEN_PER_QUEUE_MAX, Take, Taken,
};
use crate::store::PullFilter;

/// Entries of a queue that are read at a time.
const ENTRIES_AT_A_TIME: usize = 256;
/// Entries of a queue that one look reads at most when few of them fit.
const ENTRIES_MAX: usize = 8_192;
/// Most bytes in one answer, but for a single larger message.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Queues that a pop looks at now.
#[derive(Clone, Default)]
pub(crate) struct BusyQueues(Arc<Mutex<HashSet<GroupQueue>>>);

/// A queue that nobody else looks at until this is dropped.
pub(super) struct Busy {
    queues: BusyQueues,
    queue: GroupQueue,
}

impl BusyQueues {
    fn enter(&self, queue: &GroupQueue) -> Option<Busy> {
        let entered = self.0.lock().insert(queue.clone());
        entered.then(|| Busy { queues: self.clone(), queue: queue.clone() })
    }

    fn is_busy(&self, queue: &GroupQueue) -> bool {
        self.0.lock().contains(queue)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.queues.0.lock().remove(&self.queue);
    }
}

/// What is to be given from one queue.
pub(super) struct Choice {
    pub(super) queue: GroupQueue,
    /// Held until the log has said yes or no.
    _busy: Busy,
    take: Take,
    /// Some of what is under way has left the log.
    has_lost: bool,
    /// A record for each message, ascending, and how often it was given before.
    pub(super) messages: Vec<Chosen>,
    /// Messages that were given too often, ascending.
    pub(super) dead: Vec<Chosen>,
}

/// One message.
pub(super) struct Chosen {
    pub(super) queue_offset: u64,
    pub(super) times: u32,
    pub(super) record: Bytes,
}

impl Choice {
    pub(super) fn step(&self) -> PopStep {
        PopStep { queue: self.queue.clone(), action: PopAction::Take(self.take.clone()) }
    }

    /// What was given, once the queue is free for others.
    pub(super) fn into_given(self) -> (GroupQueue, Vec<Chosen>) {
        (self.queue, self.messages)
    }

    /// Whether the state changes by it.
    pub(super) fn changes(&self) -> bool {
        let Take { seen, next, fresh, again, .. } = &self.take;
        self.has_lost || !fresh.is_empty() || !again.is_empty() || *seen != Seen::Next(*next)
    }
}

/// How a queue stands, copied out of the state.
struct Standing {
    seen: Seen,
    next: u64,
    again: Vec<(u64, Taken)>,
    /// So many may be added.
    room: usize,
}

impl Group {
    /// The queues a pop may take from, in the order in which it looks at them.
    pub(super) fn queues_of(&self, task: &PopTask) -> Vec<GroupQueue> {
        let queue = |queue_id| GroupQueue { group: task.group.clone(), topic: task.topic.clone(), queue_id };
        match task.queue_id {
            Some(queue_id) => vec![queue(queue_id)],
            None => {
                let first = self.next_queue(task.queues);
                (0..task.queues).map(|number| queue((first + number) % task.queues.max(1))).collect()
            }
        }
    }

    /// Looks at one queue for up to `count` messages of `bytes_max` bytes, unless another pop does. Reads files.
    pub(super) fn choose(
        &self,
        task: &PopTask,
        queue: &GroupQueue,
        count: usize,
        bytes_max: usize,
        now_ms: i64,
    ) -> Result<Option<Choice>, Failure> {
        let Some(busy) = self.0.busy_queues.enter(queue) else { return Ok(None) };
        let GroupQueue { topic, queue_id, .. } = queue;
        let read = |error: crate::store::Error| Failure::error(format!("reading the queue: {error}"));
        let min_offset = self.0.store.min_offset(topic, *queue_id);
        let standing = self.standing(task, queue, count, now_ms);
        let (mut messages, mut dead) = (Vec::new(), Vec::new());
        let mut again = Vec::new();
        let mut bytes = 0;
        let mut has_lost = false;
        for (queue_offset, taken) in standing.again {
            let same_attempt = taken.until_ms > now_ms;
            let times = taken.times.saturating_add(u32::from(!same_attempt));
            let Some(record) = self.0.store.message(topic, *queue_id, queue_offset).map_err(read)? else {
                has_lost |= queue_offset < min_offset;
                continue;
            };
            if times > task.retries_max {
                dead.push(Chosen { queue_offset, times, record });
                continue;
            }
            if !messages.is_empty() && bytes + record.len() > bytes_max {
                break;
            }
            bytes += record.len();
            again.push(queue_offset);
            messages.push(Chosen { queue_offset, times, record: counted(&record, times)? });
        }

        let mut next = standing.next.max(min_offset);
        let mut fresh = Vec::new();
        let may_add = task.order.is_none() || (messages.is_empty() && dead.is_empty());
        let mut room = if may_add { standing.room.min(count.saturating_sub(messages.len())) } else { 0 };
        let mut looked_at = 0;
        'looking: while room > 0 && looked_at < ENTRIES_MAX {
            let entries = self.0.store.queue_entries(topic, *queue_id, next, ENTRIES_AT_A_TIME).map_err(read)?;
            if entries.is_empty() {
                break;
            }
            looked_at += entries.len();
            for entry in entries {
                if task.filter.may_pass(entry.tags_code)
                    && let Some(record) = self.0.store.message(topic, *queue_id, next).map_err(read)?
                    && task.filter.passes(&record)
                {
                    if !messages.is_empty() && bytes + record.len() > bytes_max {
                        break 'looking;
                    }
                    bytes += record.len();
                    fresh.push(next);
                    messages.push(Chosen { queue_offset: next, times: 0, record });
                    room -= 1;
                }
                next += 1;
                if room == 0 {
                    break 'looking;
                }
            }
        }
        let take = Take {
            seen: standing.seen,
            next,
            floor: min_offset,
            fresh,
            again,
            popped_ms: now_ms,
            invisible_ms: task.invisible_ms,
            order: task.order.clone(),
        };
        Ok(Some(Choice { queue: queue.clone(), _busy: busy, take, has_lost, messages, dead }))
    }

    fn standing(&self, task: &PopTask, queue: &GroupQueue, count: usize, now_ms: i64) -> Standing {
        let GroupQueue { group, topic, queue_id } = queue;
        let max_offset = self.0.store.max_offset(topic, *queue_id);
        let room_in_all = {
            let pops = self.0.state.pops();
            let room_in_all = TAKEN_MAX.saturating_sub(pops.taken_count());
            if let Some(known) = pops.queue(group, topic, *queue_id) {
                let (mut again, room) = given_again(known, task, count, now_ms);
                // A leader may have applied more than it can read yet.
                again.retain(|(queue_offset, _)| *queue_offset < max_offset);
                let room = room.min(room_in_all);
                return Standing { seen: Seen::Next(known.next), next: known.next, again, room };
            }
            room_in_all
        };
        let committed = self.0.state.consumer_offset(group, topic, *queue_id);
        let next = match committed {
            Some(committed) => committed.min(max_offset),
            // It may have subscribed before the first message was sent.
            None if task.start == PopStart::NEXT && !self.is_young(topic, *queue_id) => max_offset,
            None => 0,
        };
        Standing {
            seen: Seen::Committed(committed),
            next,
            again: Vec::new(),
            room: room_in_all.min(TAKEN_PER_QUEUE_MAX),
        }
    }

    /// Whether a pop would find something now in a queue that no other pop looks at.
    pub(super) fn has_something(&self, task: &PopTask) -> bool {
        let now_ms = self.stamp_ms();
        self.queues_of(task).iter().any(|queue| {
            let standing = self.standing(task, queue, 1, now_ms);
            let GroupQueue { topic, queue_id, .. } = queue;
            let has_new = standing.room > 0 && standing.next < self.0.store.max_offset(topic, *queue_id);
            (has_new || !standing.again.is_empty()) && !self.0.busy_queues.is_busy(queue)
        })
    }

    /// When a message may be given again at the earliest.
    pub(super) fn next_due_ms(&self, task: &PopTask) -> Option<i64> {
        let pops = self.0.state.pops();
        let queues = pops.queues(&task.group, &task.topic);
        let wanted = queues.filter(|(queue_id, _)| task.queue_id.is_none_or(|wanted| wanted == *queue_id));
        let due = wanted.filter_map(|(_, queue)| match task.order {
            None => queue.next_due_ms(),
            Some(_) => queue.taken.values().next().map(|first| first.until_ms),
        });
        due.min()
    }

    /// Messages that were never given to the group.
    pub(super) fn rest(&self, task: &PopTask) -> u64 {
        let queues = self.queues_of(task);
        let rest = queues.iter().map(|queue| {
            let next = self.standing(task, queue, 0, 0).next;
            self.0.store.max_offset(&queue.topic, queue.queue_id).saturating_sub(next)
        });
        rest.sum()
    }
}

/// What may be given again, and how many new messages may be given besides.
fn given_again(queue: &PopQueue, task: &PopTask, count: usize, now_ms: i64) -> (Vec<(u64, Taken)>, usize) {
    let Some(order) = &task.order else {
        return (queue.due(now_ms, count), TAKEN_PER_QUEUE_MAX.saturating_sub(queue.taken.len()));
    };
    let Some((_, first)) = queue.taken.first_key_value() else { return (Vec::new(), TAKEN_PER_QUEUE_MAX) };
    let Order { attempt } = order;
    if attempt.is_some() && *attempt == queue.attempt {
        return (queue.taken.iter().take(count).map(|(offset, taken)| (*offset, *taken)).collect(), 0);
    }
    // Those behind the first one wait for it.
    let is_due = first.until_ms <= now_ms;
    (if is_due { queue.due(now_ms, count) } else { Vec::new() }, 0)
}

/// The record with how often it was delivered before.
fn counted(record: &Bytes, times: u32) -> Result<Bytes, Failure> {
    if times == 0 {
        return Ok(record.clone());
    }
    let damaged = |error: protocol::message::RecordError| Failure::error(error.to_string());
    let before = RecordView::parse(record).map_err(damaged)?.reconsume_times();
    let mut counted = BytesMut::from(&record[..]);
    patch_reconsume_times(&mut counted, before.saturating_add_unsigned(times)).map_err(damaged)?;
    Ok(counted.freeze())
}

/// Bytes that a pop may still answer with.
pub(super) fn bytes_left(used: usize) -> usize {
    ANSWER_BYTES_MAX.saturating_sub(used)
}
