//! What orderly consumers ask for when they lock queues, and the time by which their leases end.
//!
//! The leases themselves are replicated state; see [`Command::LockQueues`](crate::state_machine::Command::LockQueues).

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use protocol::TopicName;
use protocol::body::MessageQueue;

use crate::state_machine::command::QueueKey;

/// How long a lock lasts unless it is renewed. Clients renew every 20 s.
pub const LEASE: Duration = Duration::from_secs(60);

/// The time by which a leader grants leases and lets them end.
///
/// It goes on from the last lease that any leader granted, and runs with the monotonic clock. So a lease lasts its whole
/// time, whatever the clocks of the machines say and however they jump: a queue never has two owners. One that nobody
/// renews ends at most [`LEASE`] after a takeover.
#[derive(Debug)]
pub(crate) struct LeaseClock {
    /// What it showed, and when.
    shown: Mutex<(i64, Instant)>,
}

impl LeaseClock {
    /// Shows `wall_ms` at `now`.
    pub(crate) fn new(wall_ms: i64, now: Instant) -> Self {
        Self { shown: Mutex::new((wall_ms, now)) }
    }

    /// Goes on from the lease that ends last, or from the wall clock if there is none. To be called by a new leader once
    /// all leases of earlier terms are applied, before it grants any.
    pub(crate) fn take_over(&self, last_end_ms: Option<i64>, wall_ms: i64, now: Instant) {
        let lease_ms = i64::try_from(LEASE.as_millis()).unwrap_or(i64::MAX);
        let granted_ms = last_end_ms.map(|end_ms| end_ms.saturating_sub(lease_ms));
        *self.shown.lock() = (granted_ms.unwrap_or(wall_ms), now);
    }

    /// What it shows at `now`.
    pub(crate) fn ms(&self, now: Instant) -> i64 {
        let (shown_ms, at) = *self.shown.lock();
        let since = i64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(i64::MAX);
        shown_ms.saturating_add(since)
    }
}

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
    fn a_lease_lasts_its_time_whatever_the_clock_of_the_next_leader_says() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let granted_ms = 1_000_000;
        let end_ms = granted_ms + 60_000;
        // The next leader's clock is an hour ahead, or behind: the lease begins again with it.
        for wall_ms in [granted_ms + 3_600_000, granted_ms - 3_600_000] {
            let clock = LeaseClock::new(wall_ms, start);
            clock.take_over(Some(end_ms), wall_ms, after(10));
            assert!(clock.ms(after(10)) < end_ms);
            assert!(clock.ms(after(69)) < end_ms);
            assert!(clock.ms(after(70)) >= end_ms);
        }
    }

    #[test]
    fn without_leases_the_clock_begins_with_the_wall_clock() {
        let start = Instant::now();
        let clock = LeaseClock::new(5, start);
        assert_eq!(clock.ms(start + Duration::from_millis(2)), 7);
        clock.take_over(None, 1_000, start + Duration::from_secs(1));
        assert_eq!(clock.ms(start + Duration::from_secs(2)), 2_000);
        assert_eq!(clock.ms(start), 1_000);
    }

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
