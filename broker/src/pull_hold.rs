//! Parked pulls: requests that found nothing yet and may wait for it.
//!
//! A consumer that has read everything asks for the next message with leave to wait. Its request is parked here under
//! its queue, with the tags it wants. Three things end the wait: a message that fits arrives, its time is over, or its
//! connection closes. The first two hand the request back to be run once more without leave to wait; the third drops it.
//!
//! ```text
//!   park ------> waiting[topic, queue] --arrived()--> woken --take_woken()--> run again, answer
//!                   |        |
//!                   |        +--take_due(now)--------------------------------> run again, answer
//!                   +--closed(connection)--> dropped
//! ```
//!
//! Waking costs as much as the requests waiting on that one queue, however many wait elsewhere. A message may arrive
//! between the read that found nothing and the call of [`PullHold::park`]: whoever parks looks at the queue once more
//! afterwards and takes the request back if there is something to read. Nothing here reads a clock.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use parking_lot::Mutex;
use protocol::TopicName;
use tokio::sync::Notify;

use crate::processor::filter::MessageFilter;

/// How many requests may wait.
#[derive(Debug, Clone, Copy)]
pub struct HoldLimits {
    /// In all.
    pub total_max: usize,
    /// On one connection.
    pub per_connection_max: usize,
}

impl Default for HoldLimits {
    fn default() -> Self {
        Self { total_max: 100_000, per_connection_max: 1_024 }
    }
}

/// Names one parked request, for [`PullHold::take`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HoldId(u64);

/// Where and for what a request waits.
#[derive(Debug, Clone)]
pub struct Wait {
    /// The queue's topic.
    pub topic: TopicName,
    /// The queue's number.
    pub queue_id: u32,
    /// The queue offset wanted; a message below it wakes nobody.
    pub queue_offset: u64,
    /// The tags wanted.
    pub filter: MessageFilter,
    /// When the wait ends at the latest.
    pub deadline: Instant,
    /// The connection that the request came in on; `None` for one that came from another node.
    pub connection: Option<u64>,
}

struct Parked<T> {
    wait: Wait,
    item: T,
}

struct Inner<T> {
    next_id: u64,
    parked: HashMap<HoldId, Parked<T>>,
    by_queue: HashMap<TopicName, HashMap<u32, Vec<HoldId>>>,
    by_deadline: BTreeSet<(Instant, HoldId)>,
    by_connection: HashMap<u64, Vec<HoldId>>,
    woken: Vec<T>,
    closed: bool,
}

/// The parked pulls of one broker group.
pub struct PullHold<T> {
    limits: HoldLimits,
    inner: Mutex<Inner<T>>,
    changed: Notify,
}

/// A request that cannot be parked, handed back.
#[derive(Debug)]
pub struct Full<T>(pub T);

impl<T> PullHold<T> {
    /// Holds nothing yet.
    pub fn new(limits: HoldLimits) -> Self {
        Self {
            limits,
            inner: Mutex::new(Inner {
                next_id: 0,
                parked: HashMap::new(),
                by_queue: HashMap::new(),
                by_deadline: BTreeSet::new(),
                by_connection: HashMap::new(),
                woken: Vec::new(),
                closed: false,
            }),
            changed: Notify::new(),
        }
    }

    /// Parks a request until a message arrives or `wait.deadline` passes.
    ///
    /// # Errors
    /// [`Full`] with the request when a limit of [`HoldLimits`] is reached or [`PullHold::release_all`] was called: it
    /// must be answered now.
    pub fn park(&self, wait: Wait, item: T) -> Result<HoldId, Full<T>> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if inner.closed || inner.parked.len() >= self.limits.total_max {
            return Err(Full(item));
        }
        let id = HoldId(inner.next_id);
        if let Some(connection) = wait.connection {
            let held = inner.by_connection.entry(connection).or_default();
            if held.len() >= self.limits.per_connection_max {
                return Err(Full(item));
            }
            held.push(id);
        }
        inner.next_id += 1;
        let sooner = inner.by_deadline.first().is_none_or(|(first, _)| wait.deadline < *first);
        inner.by_deadline.insert((wait.deadline, id));
        let queues = match inner.by_queue.get_mut(&wait.topic) {
            Some(queues) => queues,
            None => inner.by_queue.entry(wait.topic.clone()).or_default(),
        };
        queues.entry(wait.queue_id).or_default().push(id);
        inner.parked.insert(id, Parked { wait, item });
        drop(guard);
        if sooner {
            self.changed.notify_one();
        }
        Ok(id)
    }

    /// Takes one request back, unless it was woken, was due or was dropped meanwhile.
    pub fn take(&self, id: HoldId) -> Option<T> {
        self.inner.lock().remove(id).map(|parked| parked.item)
    }

    /// Wakes the requests that wait for a message like this one: in this queue, below `max_offset`, with this tag hash.
    pub fn arrived(&self, topic: &TopicName, queue_id: u32, max_offset: u64, tags_code: i64) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let Some(waiting) = inner.by_queue.get(topic).and_then(|queues| queues.get(&queue_id)) else {
            return;
        };
        let ready: Vec<HoldId> = waiting
            .iter()
            .filter(|id| {
                inner.parked.get(id).is_some_and(|parked| {
                    parked.wait.queue_offset < max_offset && parked.wait.filter.may_pass(tags_code)
                })
            })
            .copied()
            .collect();
        if ready.is_empty() {
            return;
        }
        for id in ready {
            if let Some(parked) = inner.remove(id) {
                inner.woken.push(parked.item);
            }
        }
        drop(guard);
        self.changed.notify_one();
    }

    /// Wakes every request of one queue, whatever it waits for: its topic was deleted, or its offset was reset.
    pub fn disturb(&self, topic: &TopicName, queue_id: Option<u32>) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let Some(queues) = inner.by_queue.get(topic) else { return };
        let ready: Vec<HoldId> = queues
            .iter()
            .filter(|(id, _)| queue_id.is_none_or(|wanted| wanted == **id))
            .flat_map(|(_, waiting)| waiting.iter().copied())
            .collect();
        for id in ready {
            if let Some(parked) = inner.remove(id) {
                inner.woken.push(parked.item);
            }
        }
        drop(guard);
        self.changed.notify_one();
    }

    /// Drops the requests of a connection that has closed.
    pub fn closed(&self, connection: u64) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let Some(dead) = inner.by_connection.remove(&connection) else { return };
        let dropped: Vec<_> = dead.into_iter().filter_map(|id| inner.remove(id)).collect();
        drop(guard);
        drop(dropped);
    }

    /// The requests woken since the last call, oldest first.
    pub fn take_woken(&self) -> Vec<T> {
        std::mem::take(&mut self.inner.lock().woken)
    }

    /// The requests whose time is over at `now`.
    pub fn take_due(&self, now: Instant) -> Vec<T> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let mut due = Vec::new();
        while let Some((deadline, id)) = inner.by_deadline.first().copied() {
            if deadline > now {
                break;
            }
            if let Some(parked) = inner.remove(id) {
                due.push(parked.item);
            }
        }
        due
    }

    /// When [`PullHold::take_due`] will have something next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.inner.lock().by_deadline.first().map(|(deadline, _)| *deadline)
    }

    /// Resolves once something was woken or an earlier deadline was parked since the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Hands every request back and parks none from now on.
    pub fn release_all(&self) -> Vec<T> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        inner.closed = true;
        let mut all = std::mem::take(&mut inner.woken);
        all.extend(inner.parked.drain().map(|(_, parked)| parked.item));
        inner.by_queue.clear();
        inner.by_deadline.clear();
        inner.by_connection.clear();
        all
    }

    /// How many requests wait.
    pub fn len(&self) -> usize {
        self.inner.lock().parked.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Inner<T> {
    fn remove(&mut self, id: HoldId) -> Option<Parked<T>> {
        let parked = self.parked.remove(&id)?;
        let wait = &parked.wait;
        self.by_deadline.remove(&(wait.deadline, id));
        if let Some(queues) = self.by_queue.get_mut(&wait.topic) {
            if let Some(waiting) = queues.get_mut(&wait.queue_id) {
                waiting.retain(|other| *other != id);
                if waiting.is_empty() {
                    queues.remove(&wait.queue_id);
                }
            }
            if queues.is_empty() {
                self.by_queue.remove(&wait.topic);
            }
        }
        if let Some(connection) = wait.connection
            && let Some(held) = self.by_connection.get_mut(&connection)
        {
            held.retain(|other| *other != id);
            if held.is_empty() {
                self.by_connection.remove(&connection);
            }
        }
        Some(parked)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::processor::filter::parse_tags;

    fn topic(name: &str) -> TopicName {
        TopicName::parse(name).unwrap()
    }

    struct Bench {
        hold: PullHold<&'static str>,
        start: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let limits = HoldLimits { total_max: 4, per_connection_max: 2 };
            Self { hold: PullHold::new(limits), start: Instant::now() }
        }

        fn wait(&self, queue_id: u32, queue_offset: u64, tags: &str, millis: u64, connection: u64) -> Wait {
            Wait {
                topic: topic("T"),
                queue_id,
                queue_offset,
                filter: parse_tags(tags).unwrap(),
                deadline: self.start + Duration::from_millis(millis),
                connection: Some(connection),
            }
        }

        fn now(&self, millis: u64) -> Instant {
            self.start + Duration::from_millis(millis)
        }
    }

    #[test]
    fn an_arrival_wakes_only_its_queue_and_its_tags() {
        let bench = Bench::new();
        bench.hold.park(bench.wait(0, 5, "*", 100, 1), "all").unwrap();
        bench.hold.park(bench.wait(0, 5, "TagA", 100, 1), "tag a").unwrap();
        bench.hold.park(bench.wait(1, 5, "*", 100, 2), "other queue").unwrap();
        bench.hold.arrived(&topic("U"), 0, 6, 0);
        bench.hold.arrived(&topic("T"), 0, 6, 2_598_920);
        assert_eq!(bench.hold.take_woken(), ["all"]);
        bench.hold.arrived(&topic("T"), 0, 7, 2_598_919);
        assert_eq!(bench.hold.take_woken(), ["tag a"]);
        assert_eq!(bench.hold.len(), 1);
    }

    #[test]
    fn an_arrival_below_the_offset_wanted_wakes_nobody() {
        let bench = Bench::new();
        bench.hold.park(bench.wait(0, 9, "*", 100, 1), "ahead").unwrap();
        bench.hold.arrived(&topic("T"), 0, 9, 0);
        assert!(bench.hold.take_woken().is_empty());
        bench.hold.arrived(&topic("T"), 0, 10, 0);
        assert_eq!(bench.hold.take_woken(), ["ahead"]);
    }

    #[test]
    fn requests_come_back_when_their_time_is_over() {
        let bench = Bench::new();
        bench.hold.park(bench.wait(0, 0, "*", 200, 1), "late").unwrap();
        bench.hold.park(bench.wait(0, 0, "*", 100, 1), "soon").unwrap();
        assert_eq!(bench.hold.next_deadline(), Some(bench.now(100)));
        assert!(bench.hold.take_due(bench.now(99)).is_empty());
        assert_eq!(bench.hold.take_due(bench.now(100)), ["soon"]);
        assert_eq!(bench.hold.next_deadline(), Some(bench.now(200)));
    }

    #[test]
    fn a_closed_connection_takes_its_requests_along() {
        let bench = Bench::new();
        bench.hold.park(bench.wait(0, 0, "*", 100, 1), "gone").unwrap();
        bench.hold.park(bench.wait(0, 0, "*", 100, 2), "here").unwrap();
        bench.hold.closed(1);
        bench.hold.arrived(&topic("T"), 0, 1, 0);
        assert_eq!(bench.hold.take_woken(), ["here"]);
        assert!(bench.hold.is_empty());
    }

    #[test]
    fn limits_hand_the_request_back() {
        let bench = Bench::new();
        bench.hold.park(bench.wait(0, 0, "*", 100, 1), "a").unwrap();
        let first = bench.hold.park(bench.wait(0, 0, "*", 100, 1), "b").unwrap();
        assert_eq!(bench.hold.park(bench.wait(0, 0, "*", 100, 1), "c").unwrap_err().0, "c");
        assert_eq!(bench.hold.take(first), Some("b"));
        assert_eq!(bench.hold.take(first), None);
        bench.hold.park(bench.wait(0, 0, "*", 100, 1), "c").unwrap();
        bench.hold.park(bench.wait(0, 0, "*", 100, 2), "d").unwrap();
        bench.hold.park(bench.wait(0, 0, "*", 100, 3), "e").unwrap();
        assert_eq!(bench.hold.park(bench.wait(0, 0, "*", 100, 4), "f").unwrap_err().0, "f");
    }

    #[test]
    fn a_released_hold_parks_nothing_more() {
        let bench = Bench::new();
        bench.hold.park(bench.wait(0, 0, "*", 100, 1), "a").unwrap();
        assert_eq!(bench.hold.release_all(), ["a"]);
        assert_eq!(bench.hold.park(bench.wait(0, 0, "*", 100, 1), "b").unwrap_err().0, "b");
        assert_eq!(bench.hold.next_deadline(), None);
    }

    #[test]
    fn a_disturbed_queue_lets_everyone_go() {
        let bench = Bench::new();
        bench.hold.park(bench.wait(0, 9, "TagA", 100, 1), "a").unwrap();
        bench.hold.park(bench.wait(1, 9, "TagA", 100, 1), "b").unwrap();
        bench.hold.disturb(&topic("T"), Some(1));
        assert_eq!(bench.hold.take_woken(), ["b"]);
        bench.hold.disturb(&topic("T"), None);
        assert_eq!(bench.hold.take_woken(), ["a"]);
    }
}
