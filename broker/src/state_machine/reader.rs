//! What request processors see of the replicated state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{RwLock, RwLockReadGuard};
use protocol::{GroupName, TopicName};
use raft_store::{TimeHistogram, Times};
use tokio::sync::watch;

use super::command::{IdentityRecord, QueueKey};
use super::group::GroupConfig;
use super::half::{Half, Halves};
use super::members::{Change, Removed};
use super::pop::Pops;
use super::state::{DataVersion, Names, QueueLease, Registry, State};
use super::timer::{Timer, Timers};
use super::topic::TopicConfig;

/// How the group flushes, and since which entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushSetting {
    /// Acknowledged messages are on disk, not only in memory.
    pub is_sync: bool,
    /// The entry that says so, or a later one.
    pub said_at: u64,
}

/// What became of some topics, each named once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicChanges {
    /// New, or another configuration.
    pub put: Vec<Arc<TopicConfig>>,
    /// Deleted.
    pub gone: Vec<TopicName>,
}

/// A shared view of the state. Cheap to clone, never stale by more than the entry being applied.
///
/// No call holds a lock on return, and none of them waits for a pack of messages. What is read is as of the last entry
/// applied *here*: on a follower it may be old, and a leader that must not answer from the past asks for a read index
/// first.
#[derive(Clone, Debug)]
pub struct StateReader {
    registry: Arc<RwLock<Registry>>,
    halves: Arc<RwLock<Halves>>,
    pops: Arc<RwLock<Pops>>,
    timers: Arc<RwLock<Timers>>,
    applying: Applying,
    flush: watch::Receiver<Option<FlushSetting>>,
}

/// How far entries are applied, and when.
#[derive(Clone, Debug)]
pub(super) struct Applying {
    /// Index of the last entry applied, plus one.
    pub(super) end: Arc<AtomicU64>,
    pub(super) times: Arc<Times>,
    pub(super) began: Arc<Mark>,
}

/// When something began last, for other threads.
#[derive(Debug)]
pub(super) struct Mark {
    first: Instant,
    nanos: AtomicU64,
}

impl Default for Mark {
    fn default() -> Self {
        Self { first: Instant::now(), nanos: AtomicU64::new(0) }
    }
}

impl Mark {
    pub(super) fn note(&self, at: Instant) {
        let nanos = u64::try_from(at.saturating_duration_since(self.first).as_nanos()).unwrap_or(u64::MAX);
        self.nanos.store(nanos, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        self.first + Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}

impl StateReader {
    pub(super) fn new(state: &State, applying: Applying, flush: watch::Receiver<Option<FlushSetting>>) -> Self {
        let State { registry, halves, pops, timers, .. } = state;
        Self {
            registry: Arc::clone(registry),
            halves: Arc::clone(halves),
            pops: Arc::clone(pops),
            timers: Arc::clone(timers),
            applying,
            flush,
        }
    }

    /// How the group flushes, now and as it changes; none before anybody has said so.
    pub fn flush(&self) -> watch::Receiver<Option<FlushSetting>> {
        self.flush.clone()
    }

    /// Index of the last entry applied.
    pub fn applied_index(&self) -> Option<u64> {
        self.applying.end.load(Ordering::Acquire).checked_sub(1)
    }

    /// How long applying each entry took since the start.
    pub fn apply_times(&self) -> TimeHistogram {
        self.applying.times.histogram()
    }

    /// When applying an entry began last: whoever is called while one is applied learns when that began.
    pub(crate) fn apply_began(&self) -> Instant {
        self.applying.began.last()
    }

    /// The cluster's and the group's name; none before the bootstrap command is applied.
    pub fn names(&self) -> Option<Arc<Names>> {
        self.registry.read().names.clone()
    }

    /// The configuration of a topic. `topic` may be any text, a name that cannot exist included.
    pub fn topic(&self, topic: &str) -> Option<Arc<TopicConfig>> {
        self.registry.read().topics.get(topic).cloned()
    }

    /// All topics, by name.
    pub fn topics(&self) -> Vec<Arc<TopicConfig>> {
        let mut all: Vec<_> = self.registry.read().topics.values().cloned().collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// What happened to the topics since their table had this counter; none if that is too long ago to be known.
    pub fn topic_changes(&self, counter: u64) -> Option<TopicChanges> {
        let registry = self.registry.read();
        let mut changes = TopicChanges::default();
        for topic in registry.topic_log.since(counter)? {
            match registry.topics.get(topic) {
                Some(config) => changes.put.push(Arc::clone(config)),
                None => changes.gone.push(topic.clone()),
            }
        }
        Some(changes)
    }

    /// How many topics there are.
    pub fn topic_count(&self) -> usize {
        self.registry.read().topics.len()
    }

    /// Version of the topic table.
    pub fn topic_version(&self) -> DataVersion {
        self.registry.read().topic_version
    }

    /// The configuration of a subscription group.
    pub fn group(&self, group: &str) -> Option<Arc<GroupConfig>> {
        self.registry.read().groups.get(group).cloned()
    }

    /// All subscription groups, by name.
    pub fn groups(&self) -> Vec<Arc<GroupConfig>> {
        let mut all: Vec<_> = self.registry.read().groups.values().cloned().collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// How many subscription groups there are.
    pub fn group_count(&self) -> usize {
        self.registry.read().groups.len()
    }

    /// Version of the group table.
    pub fn group_version(&self) -> DataVersion {
        self.registry.read().group_version
    }

    /// The offset a group has committed for a queue.
    pub fn consumer_offset(&self, group: &str, topic: &str, queue_id: u32) -> Option<u64> {
        self.registry.read().offsets.get(group)?.get(topic)?.get(&queue_id).copied()
    }

    /// The offsets a group has committed for a topic, by queue id.
    pub fn consumer_offsets(&self, group: &str, topic: &str) -> BTreeMap<u32, u64> {
        let registry = self.registry.read();
        registry.offsets.get(group).and_then(|topics| topics.get(topic)).cloned().unwrap_or_default()
    }

    /// Every offset stored, by group, topic and queue id.
    pub fn all_consumer_offsets(&self) -> BTreeMap<GroupName, BTreeMap<TopicName, BTreeMap<u32, u64>>> {
        self.registry.read().offsets.clone()
    }

    /// Version of the offset table.
    pub fn offset_version(&self) -> DataVersion {
        self.registry.read().offset_version
    }

    /// The topics a group has offsets for, by name.
    pub fn topics_consumed_by(&self, group: &str) -> Vec<TopicName> {
        self.registry.read().offsets.get(group).map(|topics| topics.keys().cloned().collect()).unwrap_or_default()
    }

    /// The groups that have offsets for any topic, by name.
    pub fn groups_with_offsets(&self) -> Vec<GroupName> {
        self.registry.read().offsets.keys().cloned().collect()
    }

    /// The groups that have offsets for a topic, by name.
    pub fn groups_consuming(&self, topic: &str) -> Vec<GroupName> {
        let registry = self.registry.read();
        let consuming = registry.offsets.iter().filter(|(_, topics)| topics.contains_key(topic));
        consuming.map(|(group, _)| group.clone()).collect()
    }

    /// The offset an administrator set, while it holds off commits.
    pub fn held_reset(&self, group: &str, topic: &str, queue_id: u32) -> Option<u64> {
        self.registry.read().resets.get(group)?.get(topic)?.get(&queue_id).copied()
    }

    /// The lease on a queue, though it may have ended.
    pub fn queue_lease(&self, group: &str, queue: &QueueKey) -> Option<QueueLease> {
        self.registry.read().locks.get(group)?.get(queue).cloned()
    }

    /// When the lease ends that ends last.
    pub fn last_lease_end(&self) -> Option<i64> {
        let registry = self.registry.read();
        registry.locks.values().flat_map(BTreeMap::values).map(|lease| lease.until_ms).max()
    }

    /// Whether a member of a group holds a lease on any queue at `now_ms`.
    pub fn holds_queue(&self, group: &str, now_ms: i64) -> bool {
        self.registry.read().locks.get(group).is_some_and(|leases| leases.values().any(|lease| lease.until_ms > now_ms))
    }

    /// A setting every replica agrees on.
    pub fn setting(&self, name: &str) -> Option<String> {
        self.registry.read().settings.get(name).cloned()
    }

    /// All settings that every replica agrees on. The same map as long as none is changed.
    pub fn settings(&self) -> Arc<BTreeMap<String, String>> {
        Arc::clone(&self.registry.read().settings)
    }

    /// Where a progress mark stands; 0 if it was never moved.
    pub fn progress_mark(&self, mark: &str) -> u64 {
        self.registry.read().marks.get(mark).copied().unwrap_or(0)
    }

    /// The newest identity of the node that `node_id` was an identity of, if that is another one now.
    pub fn successor_of(&self, node_id: u64) -> Option<u64> {
        let registry = self.registry.read();
        let node = &registry.identities.get(&node_id)?.node_name;
        let newest = registry.identities.iter().rev().find(|(_, identity)| identity.node_name == *node)?;
        Some(*newest.0).filter(|newest| *newest != node_id)
    }

    /// The half message with this number, if it is pending.
    pub fn half(&self, queue_offset: u64) -> Option<Half> {
        self.halves.read().pending.get(&queue_offset).cloned()
    }

    /// Up to `count` pending half messages from number `from` on, in their order.
    pub fn halves_from(&self, from: u64, count: usize) -> Vec<(u64, Half)> {
        let halves = self.halves.read();
        halves.pending.range(from..).take(count).map(|(number, half)| (*number, half.clone())).collect()
    }

    /// How many half messages are pending.
    pub fn half_count(&self) -> usize {
        self.halves.read().pending.len()
    }

    /// Whether a half message was given up, its copy is at `physical_offset`, and it was not resumed since.
    pub fn is_given_up(&self, physical_offset: u64) -> bool {
        self.halves.read().given_up.contains(&physical_offset)
    }

    /// What consumers in POP mode have under way. Not to be kept: apply waits for it.
    pub(crate) fn pops(&self) -> RwLockReadGuard<'_, Pops> {
        self.pops.read()
    }

    /// Up to `count` timers that are due at `until_ms`, in that order.
    pub fn timers_due(&self, until_ms: i64, count: usize) -> Vec<Timer> {
        self.timers.read().iter().take_while(|timer| timer.due_ms <= until_ms).take(count).collect()
    }

    /// When the next timer is due.
    pub fn next_timer_ms(&self) -> Option<i64> {
        self.timers.read().iter().next().map(|timer| timer.due_ms)
    }

    /// Up to `count` places of pending timers in the log, in its order.
    pub fn timer_places(&self, count: usize) -> Vec<u64> {
        self.timers.read().places().take(count).collect()
    }

    /// Whether a timer is pending.
    pub fn is_timer_pending(&self, timer: Timer) -> bool {
        self.timers.read().contains(timer)
    }

    /// How many timers are pending.
    pub fn timer_count(&self) -> usize {
        self.timers.read().len()
    }

    /// The change of members under way, if there is one.
    pub fn running_change(&self) -> Option<Change> {
        self.registry.read().changes.running().cloned()
    }

    /// Why a node must not join at `now_ms`, if it must not.
    pub(crate) fn may_admit(
        &self,
        node: &str,
        addrs: &(String, String),
        store_uuid: [u8; 16],
        token_hash: [u8; 32],
        now_ms: i64,
    ) -> Result<(), &'static str> {
        self.registry.read().changes.may_admit(node, addrs, store_uuid, token_hash, now_ms).map(drop)
    }

    /// A change of members that is remembered.
    pub fn change(&self, id: u64) -> Option<Change> {
        self.registry.read().changes.get(id).cloned()
    }

    /// All changes of members that are remembered, oldest first.
    pub fn changes(&self) -> Vec<Change> {
        self.registry.read().changes.all().cloned().collect()
    }

    /// How an identity ceased to be a member, if a change of members removed it.
    pub fn removed(&self, node_id: u64) -> Option<Removed> {
        self.registry.read().changes.removed(node_id).cloned()
    }

    /// The identities given out so far.
    pub fn identities(&self) -> Vec<IdentityRecord> {
        self.registry.read().identities.values().cloned().collect()
    }
}
