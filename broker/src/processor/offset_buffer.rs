//! Consumer offsets on their way into the log.
//!
//! Consumers commit every few seconds for every queue they hold, far more often than it is worth an entry of the log.
//! So commits are collected here, a later one for the same queue replacing an earlier one, and a flusher makes one entry
//! of them at most every [`FLUSH_INTERVAL`]. Whoever wants to know when a commit is in force waits with it. Whoever reads
//! an offset first waits for what is on its way for that queue: a read never shows less than what was accepted before.
//!
//! # A commit belongs to the term in which it was accepted
//!
//! An offset is a register, and its consumer or an administrator may set it back, so commits must not overtake each
//! other, least of all one that was answered. Within a term one replica accepts them all and puts them into the log in
//! that order. Between terms the log decides: entries of an older term lie before those of a newer one, or nowhere.
//! Therefore a commit enters the log in the term in which it was accepted, or not at all. A replica that was paused, cut
//! off or deposed, and perhaps leads again, does not know what its clients did meanwhile, and no clock could tell it.
//!
//! What becomes of a commit that can no longer enter:
//!
//! | It came | It is | Because |
//! | --- | --- | --- |
//! | with somebody waiting | told to have never been proposed, and tried where the leader is now | its client waits, so this is still the same attempt; after the time that clients wait it is refused |
//! | one-way, or with a pull | dropped | nobody can say how old it is; and it would have been lost as well if the process had died |
//!
//! A dropped commit costs no message: a consumer that starts before the next one gets again what it had consumed. Java,
//! Go, C++ and Python clients commit the offset of each of their queues every five seconds, changed or not. The Rust
//! client commits each twice, five seconds apart, and waits for an answer when it gives a queue up. What a Java or C++ client
//! commits while it shuts down is repeated by nobody, which is why a leader that hands over puts everything into the log
//! before.
//!
//! What this cannot decide is how long a one-way commit was on its way to the replica that accepts it: it has no latest
//! moment at which it takes effect.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::{GroupName, TopicName};
use tokio::sync::{Notify, oneshot};

pub(crate) use crate::state_machine::command::GroupQueue as Key;
use crate::state_machine::command::OffsetCommit;

/// Two entries with offsets are at least so far apart.
pub(crate) const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// Commits in one entry. With names of full length that is less than half of the longest command.
const BATCH_COMMITS_MAX: usize = 8_192;

/// Commits waiting; beyond it new ones are refused.
const PENDING_COMMITS_MAX: usize = 262_144;

/// What became of a commit that someone waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// It is applied.
    Applied,
    /// It never entered the log.
    NotProposed,
    /// It may or may not be applied.
    Unknown(String),
}

/// Resolves when the commits it was given with are settled.
pub(crate) type Waiter = oneshot::Receiver<Flushed>;

/// Why a commit was not accepted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotAccepted {
    /// Too many wait.
    Full,
    /// A later term has begun.
    Overtaken,
}

impl NotAccepted {
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Full => "too many commits wait",
            Self::Overtaken => "another term has begun",
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    /// In which everything pending was accepted.
    term: u64,
    pending: HashMap<Key, u64>,
    waiting: Vec<(Key, oneshot::Sender<Flushed>)>,
    in_flight: HashMap<Key, u64>,
    in_flight_waiting: Vec<oneshot::Sender<Flushed>>,
}

impl Inner {
    /// Drops what was accepted in earlier terms.
    fn begin(&mut self, term: u64) {
        self.term = term;
        self.pending.clear();
        for (_, waiter) in self.waiting.drain(..) {
            // Whoever waited may have gone.
            let _ = waiter.send(Flushed::NotProposed);
        }
    }
}

/// The commits of one broker group that are not in the log yet.
#[derive(Debug, Default)]
pub(crate) struct OffsetBuffer {
    inner: Mutex<Inner>,
    filled: Notify,
}

/// Commits taken out to be made an entry. Goes back through [`OffsetBuffer::settle`].
#[derive(Debug)]
pub(crate) struct Batch {
    /// The one term in which it may enter the log.
    pub(crate) term: u64,
    pub(crate) commits: Vec<OffsetCommit>,
}

impl OffsetBuffer {
    /// Adds a commit that nobody waits for, accepted by the leader of `term`.
    pub(crate) fn put(&self, term: u64, key: Key, queue_offset: u64) -> Result<(), NotAccepted> {
        self.insert(term, key, queue_offset, None)
    }

    /// Adds a commit and waits for it.
    pub(crate) fn put_and_wait(&self, term: u64, key: Key, queue_offset: u64) -> Result<Waiter, NotAccepted> {
        let (sender, receiver) = oneshot::channel();
        self.insert(term, key, queue_offset, Some(sender))?;
        Ok(receiver)
    }

    fn insert(
        &self,
        term: u64,
        key: Key,
        queue_offset: u64,
        waiter: Option<oneshot::Sender<Flushed>>,
    ) -> Result<(), NotAccepted> {
        let mut inner = self.inner.lock();
        if term < inner.term {
            return Err(NotAccepted::Overtaken);
        }
        if term > inner.term {
            inner.begin(term);
        }
        if inner.pending.len() >= PENDING_COMMITS_MAX && !inner.pending.contains_key(&key) {
            return Err(NotAccepted::Full);
        }
        if let Some(waiter) = waiter {
            inner.waiting.push((key.clone(), waiter));
        }
        inner.pending.insert(key, queue_offset);
        drop(inner);
        self.filled.notify_one();
        Ok(())
    }

    /// Waits for whatever is on its way for this queue; `None` when nothing is.
    pub(crate) fn settled(&self, key: &Key) -> Option<Waiter> {
        let mut inner = self.inner.lock();
        let (sender, receiver) = oneshot::channel();
        if inner.pending.contains_key(key) {
            inner.waiting.push((key.clone(), sender));
        } else if inner.in_flight.contains_key(key) {
            inner.in_flight_waiting.push(sender);
        } else {
            return None;
        }
        Some(receiver)
    }

    /// Forgets what waits for a group: it was deleted or its offsets were set by hand.
    pub(crate) fn forget(&self, group: &GroupName, topic: Option<&TopicName>) {
        let mut inner = self.inner.lock();
        let concerns = |key: &Key| key.group == *group && topic.is_none_or(|topic| key.topic == *topic);
        inner.pending.retain(|key, _| !concerns(key));
        let mut kept = Vec::new();
        for (key, waiter) in std::mem::take(&mut inner.waiting) {
            if concerns(&key) {
                // It was overtaken, which is as good as applied and overwritten.
                let _ = waiter.send(Flushed::Applied);
            } else {
                kept.push((key, waiter));
            }
        }
        inner.waiting = kept;
    }

    /// Resolves once there is something to take.
    pub(crate) async fn filled(&self) {
        while self.is_empty() {
            self.filled.notified().await;
        }
    }

    /// Whether nothing waits to be taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.inner.lock().pending.is_empty()
    }

    /// Takes the commits for the next entry. One batch is out at a time.
    ///
    /// # Panics
    /// If the batch before was not settled.
    pub(crate) fn take(&self) -> Option<Batch> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        assert!(inner.in_flight.is_empty(), "one batch of offsets is in flight at a time");
        if inner.pending.is_empty() {
            return None;
        }
        let taken: Vec<(Key, u64)> = if inner.pending.len() <= BATCH_COMMITS_MAX {
            inner.pending.drain().collect()
        } else {
            let keys: Vec<Key> = inner.pending.keys().take(BATCH_COMMITS_MAX).cloned().collect();
            keys.into_iter().filter_map(|key| inner.pending.remove_entry(&key)).collect()
        };
        inner.in_flight = taken.iter().cloned().collect();
        let mut still_waiting = Vec::new();
        for (key, waiter) in std::mem::take(&mut inner.waiting) {
            if inner.in_flight.contains_key(&key) {
                inner.in_flight_waiting.push(waiter);
            } else {
                still_waiting.push((key, waiter));
            }
        }
        inner.waiting = still_waiting;
        let term = inner.term;
        drop(guard);
        let commits = taken.into_iter().map(|(key, queue_offset)| OffsetCommit {
            group: key.group,
            topic: key.topic,
            queue_id: key.queue_id,
            queue_offset,
        });
        Some(Batch { term, commits: commits.collect() })
    }

    /// Ends the batch that is out and tells everyone who waits for it.
    pub(crate) fn settle(&self, flushed: &Flushed) {
        let waiting = {
            let mut inner = self.inner.lock();
            inner.in_flight.clear();
            std::mem::take(&mut inner.in_flight_waiting)
        };
        for waiter in waiting {
            // Whoever waited may have gone.
            let _ = waiter.send(flushed.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(group: &str, queue_id: u32) -> Key {
        Key { group: GroupName::parse(group).unwrap(), topic: TopicName::parse("T").unwrap(), queue_id }
    }

    fn offsets(batch: &Batch) -> Vec<(u32, u64)> {
        let mut all: Vec<_> = batch.commits.iter().map(|commit| (commit.queue_id, commit.queue_offset)).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn later_commits_replace_earlier_ones() {
        let buffer = OffsetBuffer::default();
        buffer.put(1, key("g", 0), 1).unwrap();
        buffer.put(1, key("g", 1), 7).unwrap();
        buffer.put(1, key("g", 0), 2).unwrap();
        assert_eq!(offsets(&buffer.take().unwrap()), [(0, 2), (1, 7)]);
        buffer.settle(&Flushed::Applied);
        assert!(buffer.take().is_none());
    }

    #[test]
    fn everyone_who_waits_learns_the_outcome_of_their_own_batch() {
        let buffer = OffsetBuffer::default();
        let mut first = buffer.put_and_wait(1, key("g", 0), 1).unwrap();
        let mut reader = buffer.settled(&key("g", 0)).unwrap();
        assert!(buffer.settled(&key("g", 1)).is_none());
        buffer.take().unwrap();
        let mut second = buffer.put_and_wait(1, key("g", 0), 2).unwrap();
        buffer.settle(&Flushed::Applied);
        assert_eq!(first.try_recv(), Ok(Flushed::Applied));
        assert_eq!(reader.try_recv(), Ok(Flushed::Applied));
        assert!(second.try_recv().is_err());
        assert_eq!(offsets(&buffer.take().unwrap()), [(0, 2)]);
        let mut late = buffer.settled(&key("g", 0)).unwrap();
        buffer.settle(&Flushed::NotProposed);
        assert_eq!(second.try_recv(), Ok(Flushed::NotProposed));
        assert_eq!(late.try_recv(), Ok(Flushed::NotProposed));
    }

    #[test]
    fn a_term_takes_nothing_over_from_the_one_before() {
        let buffer = OffsetBuffer::default();
        buffer.put(1, key("g", 0), 1).unwrap();
        let mut waiter = buffer.put_and_wait(1, key("g", 1), 1).unwrap();
        let mut reader = buffer.settled(&key("g", 0)).unwrap();
        buffer.put(3, key("g", 2), 1).unwrap();
        assert_eq!(waiter.try_recv(), Ok(Flushed::NotProposed));
        assert_eq!(reader.try_recv(), Ok(Flushed::NotProposed));
        assert_eq!(buffer.put(2, key("g", 3), 1), Err(NotAccepted::Overtaken));
        let batch = buffer.take().unwrap();
        assert_eq!((batch.term, offsets(&batch)), (3, vec![(2, 1)]));
    }

    #[test]
    fn a_batch_that_is_out_stays_in_its_term() {
        let buffer = OffsetBuffer::default();
        let mut waiter = buffer.put_and_wait(1, key("g", 0), 1).unwrap();
        assert_eq!(buffer.take().unwrap().term, 1);
        buffer.put(2, key("g", 0), 2).unwrap();
        assert!(waiter.try_recv().is_err());
        buffer.settle(&Flushed::NotProposed);
        assert_eq!(waiter.try_recv(), Ok(Flushed::NotProposed));
        let batch = buffer.take().unwrap();
        assert_eq!((batch.term, offsets(&batch)), (2, vec![(0, 2)]));
    }

    #[test]
    fn large_buffers_go_in_several_entries() {
        let buffer = OffsetBuffer::default();
        for queue_id in 0..10_000 {
            buffer.put(1, key("g", queue_id), 1).unwrap();
        }
        assert_eq!(buffer.take().unwrap().commits.len(), BATCH_COMMITS_MAX);
        buffer.settle(&Flushed::Applied);
        assert_eq!(buffer.take().unwrap().commits.len(), 10_000 - BATCH_COMMITS_MAX);
    }

    #[test]
    fn a_forgotten_group_commits_nothing() {
        let buffer = OffsetBuffer::default();
        let mut waiter = buffer.put_and_wait(1, key("g", 0), 1).unwrap();
        buffer.put(1, key("h", 0), 1).unwrap();
        buffer.forget(&GroupName::parse("g").unwrap(), None);
        assert_eq!(waiter.try_recv(), Ok(Flushed::Applied));
        let batch = buffer.take().unwrap();
        assert_eq!(batch.commits.len(), 1);
        assert_eq!(batch.commits[0].group, "h");
    }
}
