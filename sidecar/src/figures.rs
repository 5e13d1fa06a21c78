//! What a sidecar counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// How a sidecar fares, at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Brokers of the cluster, as far as name servers have said.
    pub brokers: usize,
    /// Of these, those with a replica that is not known to be gone.
    pub reachable: usize,
    /// Connections of clients to brokers' ports.
    pub sessions: usize,
    /// Requests relayed to brokers.
    pub relayed: u64,
    /// Requests sent again because a replica went away or did not answer, or nobody led.
    pub repeated: u64,
    /// Requests answered with an error of our own, because no replica answered them.
    pub failed: u64,
    /// One-way requests that no replica took.
    pub dropped: u64,
    /// Requests of brokers relayed to clients.
    pub pushed: u64,
    /// Heartbeats replayed to a replica that was turned to.
    pub replayed: u64,
    /// Times a replica was left because it did not answer.
    pub stalled: u64,
    /// Routes given to clients.
    pub routes: u64,
    /// Of these, those that no name server was there to give.
    pub routes_remembered: u64,
}

/// The counters behind it.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) relayed: Counter,
    pub(crate) repeated: Counter,
    pub(crate) failed: Counter,
    pub(crate) dropped: Counter,
    pub(crate) pushed: Counter,
    pub(crate) replayed: Counter,
    pub(crate) stalled: Counter,
    pub(crate) routes: Counter,
    pub(crate) routes_remembered: Counter,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
