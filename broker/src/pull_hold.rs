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
//! A consumer in POP mode waits for messages of any queue, and shares them with its group: each message wakes one of the
//! group, the one that has waited longest. If that one leaves something behind, [`PullHold::wake_one`] wakes the next.
//!
//! Waking costs as much as the requests waiting on that one queue, however many wait elsewhere. A message may arrive
//! between the read that found nothing and the call of [`PullHold::park`]: whoever parks looks at the queue once more
//! afterwards and takes the request back if there is something to read. Nothing here reads a clock.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Instant;

use parking_lot::Mutex;
use protocol::{GroupName, TopicName};
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

/// For what a request waits.
#[derive(Debug, Clone)]
pub enum Wanted {
    /// A message of one queue, for a consumer that it belongs to.
    Queue {
        /// The queue's number.
        queue_id: u32,
        /// The queue offset wanted; a message below it wakes nobody.
        queue_offset: u64,
    },
    /// A message for any one member of a group.
    Shared {
        /// The group.
        group: GroupName,
        /// Of this queue only.
        queue_id: Option<u32>,
    },
}

/// Where and for what a request waits.
#[derive(Debug, Clone)]
pub struct Wait {
    /// The topic.
    pub topic: TopicName,
    /// The message.
    pub wanted: Wanted,
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
    /// Those that share messages, the longest waiting first.
    by_group: HashMap<TopicName, HashMap<GroupName, VecDeque<HoldId>>>,
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
                by_group: HashMap::new(),
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
        match &wait.wanted {
            Wanted::Queue { queue_id, .. } => {
                let queues = match inner.by_queue.get_mut(&wait.topic) {
                    Some(queues) => queues,
                    None => inner.by_queue.entry(wait.topic.clone()).or_default(),
                };
                queues.entry(*queue_id).or_default().push(id);
            }
            Wanted::Shared { group, .. } => {
                let groups = inner.by_group.entry(wait.topic.clone()).or_default();
                groups.entry(group.clone()).or_default().push_back(id);
            }
        }
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
        let of_queue = inner.by_queue.get(topic).and_then(|queues| queues.get(&queue_id));
        let of_groups = inner.by_group.get(topic);
        if of_queue.is_none() && of_groups.is_none() {
            return;
        }
        let fits = |id: &&HoldId| {
            inner.parked.get(id).is_some_and(|parked| {
                let wait = &parked.wait;
                let wanted = match wait.wanted {
                    Wanted::Queue { queue_offset, .. } => queue_offset < max_offset,
                    Wanted::Shared { queue_id: wanted, .. } => wanted.is_none_or(|wanted| wanted == queue_id),
                };
                wanted && wait.filter.may_pass(tags_code)
            })
        };
        let mut ready: Vec<HoldId> = of_queue.into_iter().flatten().filter(fits).copied().collect();
        ready.extend(of_groups.into_iter().flat_map(HashMap::values).filter_map(|waiting| waiting.iter().find(fits)));
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

    /// Wakes the member of a group that has waited longest for messages of a topic. Returns false if none waits.
    pub fn wake_one(&self, topic: &TopicName, group: &GroupName) -> bool {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let first = inner.by_group.get(topic).and_then(|groups| groups.get(group)).and_then(VecDeque::front).copied();
        let Some(parked) = first.and_then(|id| inner.remove(id)) else { return false };
        inner.woken.push(parked.item);
        drop(guard);
        self.changed.notify_one();
        true
    }

    /// Wakes everyone who waits for messages that a group shares.
    pub fn wake_groups(&self) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let all: Vec<HoldId> = inner.by_group.values().flat_map(HashMap::values).flatten().copied().collect();
        for id in all {
            if let Some(parked) = inner.remove(id) {
                inner.woken.push(parked.item);
            }
        }
        drop(guard);
        self.changed.notify_one();
    }

    /// How many members of a group wait for messages of a topic.
    pub fn waiting_of_group(&self, topic: &TopicName, group: &GroupName) -> usize {
        self.inner.lock().by_group.get(topic).and_then(|groups| groups.get(group)).map_or(0, VecDeque::len)
    }

    /// Wakes every request of one queue, whatever it waits for: its topic was deleted, or its offset was reset.
    pub fn disturb(&self, topic: &TopicName, queue_id: Option<u32>) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let queues = inner.by_queue.get(topic).into_iter().flatten();
        let queues = queues.filter(|(id, _)| queue_id.is_none_or(|wanted| wanted == **id));
        let mut ready: Vec<HoldId> = queues.flat_map(|(_, waiting)| waiting.iter().copied()).collect();
        ready.extend(inner.by_group.get(topic).into_iter().flat_map(HashMap::values).flatten());
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
        inner.by_group.clear();
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
        match &wait.wanted {
            Wanted::Queue { queue_id, .. } => {
                if let Some(queues) = self.by_queue.get_mut(&wait.topic) {
                    if let Some(waiting) = queues.get_mut(queue_id) {
                        waiting.retain(|other| *other != id);
                        if waiting.is_empty() {
                            queues.remove(queue_id);
                        }
                    }
                    if queues.is_empty() {
                        self.by_queue.remove(&wait.topic);
                    }
                }
            }
            Wanted::Shared { group, .. } => {
                if let Some(groups) = self.by_group.get_mut(&wait.topic) {
                    if let Some(waiting) = groups.get_mut(group) {
                        waiting.retain(|other| *other != id);
                        if waiting.is_empty() {
                            groups.remove(group);
                        }
                    }
                    if groups.is_empty() {
                        self.by_group.remove(&wait.topic);
                    }
                }
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
            Self::with_limits(HoldLimits { total_max: 4, per_connection_max: 2 })
        }

        fn with_limits(limits: HoldLimits) -> Self {
            Self { hold: PullHold::new(limits), start: Instant::now() }
        }

        fn wait(&self, queue_id: u32, queue_offset: u64, tags: &str, millis: u64, connection: u64) -> Wait {
            Wait {
                topic: topic("T"),
                wanted: Wanted::Queue { queue_id, queue_offset },
                filter: parse_tags(tags).unwrap(),
                deadline: self.start + Duration::from_millis(millis),
                connection: Some(connection),
            }
        }

        fn share(&self, group: &str, queue_id: Option<u32>, tags: &str) -> Wait {
            let wanted = Wanted::Shared { group: GroupName::parse(group).unwrap(), queue_id };
            Wait { wanted, ..self.wait(0, 0, tags, 100, 1) }
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
    fn a_message_wakes_one_of_each_group() {
        let bench = Bench::with_limits(HoldLimits { total_max: 9, per_connection_max: 9 });
        bench.hold.park(bench.share("g", None, "TagB"), "g tag b").unwrap();
        bench.hold.park(bench.share("g", Some(3), "*"), "g queue 3").unwrap();
        bench.hold.park(bench.share("g", None, "*"), "g first").unwrap();
        bench.hold.park(bench.share("g", None, "*"), "g second").unwrap();
        bench.hold.park(bench.share("h", None, "*"), "h").unwrap();
        bench.hold.arrived(&topic("T"), 0, 1, 2_598_919);
        let mut woken = bench.hold.take_woken();
        woken.sort_unstable();
        assert_eq!(woken, ["g first", "h"]);
        bench.hold.arrived(&topic("T"), 3, 1, 2_598_919);
        assert_eq!(bench.hold.take_woken(), ["g queue 3"]);
        let group = GroupName::parse("g").unwrap();
        assert_eq!(bench.hold.waiting_of_group(&topic("T"), &group), 2);
        assert!(bench.hold.wake_one(&topic("T"), &group));
        assert_eq!(bench.hold.take_woken(), ["g tag b"]);
        bench.hold.wake_groups();
        assert_eq!(bench.hold.take_woken(), ["g second"]);
        assert!(!bench.hold.wake_one(&topic("T"), &group));
        assert!(bench.hold.is_empty());
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
