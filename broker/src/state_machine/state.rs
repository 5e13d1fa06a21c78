//! The replicated state, as plain data.
//!
//! It is in four parts. The [`Registry`] holds what requests look up: topics, groups, offsets, locks. It changes by
//! commands only, so it stands behind a lock that packs of messages never take. [`Counters`] hold the next offset of
//! each queue. They change with every message and belong to apply alone. [`Halves`] are the transactions that are pending,
//! [`Timers`] the messages that wait for their time: they change with some messages too, so each stands behind a lock of
//! its own. So do [`Pops`], what consumers in POP mode have under way, which changes with every message they consume.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bincode::{Decode, Encode};
use parking_lot::RwLock;
use protocol::{GroupName, TopicName};

use super::command::{IdentityRecord, QueueKey};
use super::group::GroupConfig;
use super::half::Halves;
use super::members::Changes;
use super::pop::Pops;
use super::timer::Timers;
use super::topic::TopicConfig;
use super::topic_log::TopicLog;

/// Term and index of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct EntryId {
    /// The term it was proposed in.
    pub term: u64,
    /// Its index.
    pub index: u64,
}

/// How often a table changed, and when last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct DataVersion {
    /// Changes so far.
    pub counter: u64,
    /// The leader's time at the last one.
    pub stamped_ms: i64,
}

impl DataVersion {
    /// The version as bodies have it.
    pub fn to_body(self) -> protocol::body::DataVersion {
        protocol::body::DataVersion {
            counter: i64::try_from(self.counter).unwrap_or(i64::MAX),
            state_version: 0,
            timestamp: self.stamped_ms,
        }
    }

    pub(super) fn bump(&mut self, stamped_ms: i64) {
        self.counter += 1;
        self.stamped_ms = stamped_ms;
    }
}

/// The cluster's and the group's name.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Names {
    /// The cluster's.
    pub cluster: String,
    /// The broker group's.
    pub broker: String,
}

/// A lease on a queue.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct QueueLease {
    /// Who holds it.
    pub client_id: String,
    /// The leader's time at which it ends.
    pub until_ms: i64,
}

/// Offsets of a group: topic, then queue.
pub(crate) type TopicOffsets = BTreeMap<TopicName, BTreeMap<u32, u64>>;

/// What requests look up.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Registry {
    pub(crate) names: Option<Arc<Names>>,
    pub(crate) topics: HashMap<TopicName, Arc<TopicConfig>>,
    pub(crate) topic_version: DataVersion,
    pub(crate) topic_log: TopicLog,
    pub(crate) groups: HashMap<GroupName, Arc<GroupConfig>>,
    pub(crate) group_version: DataVersion,
    pub(crate) offsets: BTreeMap<GroupName, TopicOffsets>,
    pub(crate) offset_version: DataVersion,
    /// Resets that hold off commits.
    pub(crate) resets: BTreeMap<GroupName, TopicOffsets>,
    pub(crate) locks: BTreeMap<GroupName, BTreeMap<QueueKey, QueueLease>>,
    pub(crate) settings: Arc<BTreeMap<String, String>>,
    pub(crate) marks: BTreeMap<String, u64>,
    pub(crate) identities: BTreeMap<u64, IdentityRecord>,
    pub(crate) changes: Changes,
}

/// A topic for as long as it lives: one that is deleted and created again gets a new one.
#[derive(Debug)]
pub(crate) struct TopicHandle {
    pub(crate) name: TopicName,
    /// Index of the entry that created it, the same on every replica.
    pub(crate) born: u64,
    /// Its place in [`Counters`]; not the same on every replica.
    pub(crate) slot: usize,
}

/// One queue's counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(crate) struct QueueCounter {
    /// The offset its next message gets.
    pub(crate) next_offset: u64,
    /// Where its last message is; meaningless while `next_offset` is 0.
    pub(crate) last_physical_offset: u64,
    /// Messages below are hidden: they have outlived what their topic keeps. At most `next_offset`.
    pub(crate) hidden_end: u64,
}

#[derive(Debug)]
pub(crate) struct TopicCounters {
    pub(crate) handle: Arc<TopicHandle>,
    /// Queue ids are below this number.
    pub(crate) queues: u32,
    /// Grown to the highest queue used. A topic that is made smaller keeps its counters, for it may grow again.
    pub(crate) counters: Vec<QueueCounter>,
}

/// The next offset of each queue.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    by_name: HashMap<TopicName, usize>,
    slots: Vec<Option<TopicCounters>>,
}

impl Counters {
    pub(crate) fn slot_of(&self, topic: &str) -> Option<usize> {
        self.by_name.get(topic).copied()
    }

    pub(crate) fn slot(&self, slot: usize) -> Option<&TopicCounters> {
        self.slots.get(slot)?.as_ref()
    }

    pub(crate) fn slot_mut(&mut self, slot: usize) -> Option<&mut TopicCounters> {
        self.slots.get_mut(slot)?.as_mut()
    }

    pub(crate) fn topic(&self, topic: &str) -> Option<&TopicCounters> {
        self.slot(self.slot_of(topic)?)
    }

    /// Sets the number of queues of a topic, which begins here if it is new.
    pub(crate) fn put(&mut self, name: &TopicName, queues: u32, born: u64) {
        if let Some(slot) = self.slot_of(name) {
            self.slot_mut(slot).expect("by_name names live slots").queues = queues;
            return;
        }
        self.insert(name.clone(), queues, born, Vec::new());
    }

    pub(crate) fn insert(&mut self, name: TopicName, queues: u32, born: u64, counters: Vec<QueueCounter>) {
        // Slots are not used twice: an item under way to reput may still name the old topic.
        let slot = self.slots.len();
        let handle = Arc::new(TopicHandle { name: name.clone(), born, slot });
        self.slots.push(Some(TopicCounters { handle, queues, counters }));
        let before = self.by_name.insert(name, slot);
        assert!(before.is_none(), "a topic has one slot");
    }

    /// Forgets a topic.
    pub(crate) fn remove(&mut self, name: &str) -> Option<Arc<TopicHandle>> {
        let slot = self.by_name.remove(name)?;
        self.slots[slot].take().map(|topic| topic.handle)
    }

    /// All topics, by name.
    pub(crate) fn sorted(&self) -> Vec<&TopicCounters> {
        let mut all: Vec<&TopicCounters> = self.slots.iter().flatten().collect();
        all.sort_unstable_by(|a, b| a.handle.name.cmp(&b.handle.name));
        all
    }
}

/// Members of the Raft group as of some entry, without openraft's types.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(crate) struct MembershipImage {
    pub(crate) entry: Option<EntryId>,
    pub(crate) configs: Vec<Vec<u64>>,
    pub(crate) nodes: Vec<(u64, MemberImage)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(crate) struct MemberImage {
    pub(crate) node: String,
    pub(crate) raft_addr: String,
    pub(crate) client_addr: String,
}

/// Everything the log says.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) registry: Arc<RwLock<Registry>>,
    pub(crate) halves: Arc<RwLock<Halves>>,
    pub(crate) pops: Arc<RwLock<Pops>>,
    pub(crate) timers: Arc<RwLock<Timers>>,
    pub(crate) counters: Counters,
    /// The last entry applied.
    pub(crate) applied: Option<EntryId>,
    /// Where its log record starts.
    pub(crate) last_position: u64,
    pub(crate) membership: MembershipImage,
}
