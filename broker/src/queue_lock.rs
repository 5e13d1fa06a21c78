//! What orderly consumers ask for when they lock queues.
//!
//! The leases themselves are replicated state; see [`Command::LockQueues`](crate::state_machine::Command::LockQueues).

use std::time::Duration;

use protocol::TopicName;
use protocol::body::MessageQueue;

use crate::state_machine::command::QueueKey;

/// How long a lock lasts unless it is renewed. Clients renew every 20 s.
pub const LEASE: Duration = Duration::from_secs(60);

/// The queues of a request that are queues of this broker group: as the client named them, and as keys, in one order.
///
/// A queue of another group, or one that cannot be, is left out: a queue missing from the answer is not locked.
pub(crate) fn wanted(queues: Vec<MessageQueue>, broker_name: &str) -> (Vec<MessageQueue>, Vec<QueueKey>) {
    let of_this_group = |queue: &MessageQueue| queue.broker_name.is_empty() || queue.broker_name == broker_name;
    queues
        .into_iter()
        .filter(of_this_group)
        .filter_map(|queue| {
            let topic = TopicName::parse(&queue.topic).ok()?;
            let queue_id = u32::try_from(queue.queue_id).ok()?;
            Some((queue, QueueKey { topic, queue_id }))
        })
        .unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_queues_of_this_group_are_locked() {
        let queue = |broker: &str, topic: &str, queue_id| MessageQueue {
            broker_name: broker.to_owned(),
            topic: topic.to_owned(),
            queue_id,
        };
        let asked = vec![
            queue("a", "T", 1),
            queue("b", "T", 2),
            queue("a", "no/topic", 3),
            queue("a", "T", -1),
            queue("", "T", 4),
        ];
        let (named, keys) = wanted(asked, "a");
        assert_eq!(named.iter().map(|queue| queue.queue_id).collect::<Vec<_>>(), [1, 4]);
        assert_eq!(keys.iter().map(|key| key.queue_id).collect::<Vec<_>>(), [1, 4]);
    }
}
