//! Topics that keep their messages for less time than the log does.
//!
//! A segment holds messages of all topics, so those of one topic alone cannot be dropped. They are hidden instead: the
//! leader finds, by the store times of the messages, where each queue of such a topic should begin, and says so in an
//! entry of the log. Queues therefore begin at the same place on every replica, and never further back than they did.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::state_machine::command::QueueKey;
use crate::state_machine::{Command, StateReader, TopicConfig};
use crate::store::{self, MessageStore, TimeBoundary};

/// Queues in one entry.
const QUEUES_MAX: usize = 4096;

/// Finds what topics of one group have kept for long enough.
#[derive(Debug, Default)]
pub(super) struct TopicRetention {
    /// Offset and store time of the first message of queues that were looked at.
    firsts: Mutex<HashMap<QueueKey, (u64, i64)>>,
}

impl TopicRetention {
    /// What is to be hidden at `now_ms`, as commands. Reads the first message of a queue once, and searches a queue only
    /// when its first message is too old.
    pub(super) fn expired(
        &self,
        state: &StateReader,
        store: &MessageStore,
        now_ms: i64,
    ) -> store::Result<Vec<Command>> {
        let mut firsts = self.firsts.lock();
        let mut known = HashMap::new();
        let mut queues = Vec::new();
        for topic in state.topics() {
            let Some(time) = topic.retention() else { continue };
            let horizon = now_ms.saturating_sub(i64::try_from(time.as_millis()).unwrap_or(i64::MAX));
            for queue in queues_of(&topic) {
                let min = store.min_offset(&queue.topic, queue.queue_id);
                let first = match firsts.remove(&queue).filter(|(offset, _)| *offset == min) {
                    Some(first) => Some(first),
                    None => store.store_time(&queue.topic, queue.queue_id, min)?.map(|stored| (min, stored)),
                };
                let Some((_, stored)) = first else { continue };
                if stored >= horizon {
                    known.insert(queue, (min, stored));
                    continue;
                }
                let end = store.offset_by_time(&queue.topic, queue.queue_id, horizon, TimeBoundary::Lower)?;
                queues.push((queue, end));
            }
        }
        *firsts = known;
        let commands = queues.chunks(QUEUES_MAX);
        Ok(commands.map(|queues| Command::HideMessages { queues: queues.to_vec(), stamped_ms: now_ms }).collect())
    }
}

fn queues_of(topic: &TopicConfig) -> impl Iterator<Item = QueueKey> {
    (0..topic.queues()).map(|queue_id| QueueKey { topic: topic.name.clone(), queue_id })
}
