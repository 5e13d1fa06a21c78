//! What the cluster promises, in a form that a checker can decide, and within which time.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A promise. Stated for synchronous flush; in asynchronous flush "synced" reads "in the page cache".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Promise {
    K1,
    K2,
    K3,
    K4,
    K5,
    K6,
    K7,
    K8,
    K9,
    K10,
}

impl Promise {
    pub const ALL: [Self; 10] =
        [Self::K1, Self::K2, Self::K3, Self::K4, Self::K5, Self::K6, Self::K7, Self::K8, Self::K9, Self::K10];

    /// The promise in one sentence.
    pub fn text(self) -> &'static str {
        match self {
            Self::K1 => "a send answered SEND_OK is committed: a voter majority synced it, and the leader applied it",
            Self::K2 => "the offsets of a queue are dense from 0 and never used twice",
            Self::K3 => "one log position holds one record, the same bytes on every replica, up to committed",
            Self::K4 => "a pull returns only what is committed and applied; maximum and group offsets are current",
            Self::K5 => "a committed group offset is a replicated register: the last write wins",
            Self::K6 => "groups get everything at least once; orderly groups in order, one owner for each queue",
            Self::K7 => "a half message is invisible until it is committed, and for ever after a rollback",
            Self::K8 => "a delayed message is never early, never lost, and delivered once",
            Self::K9 => "name servers name the new leader soon, and clients and brokers survive without any of them",
            Self::K10 => "a node whose sync failed acknowledges nothing; what is corrupt is never served",
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// How long things may take. A run with other Raft timers carries its own in its first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// From the new leader's first sign to every name server naming it.
    pub route_ms: u64,
    /// The longest stall of sends while a minority is bad.
    pub available_ms: u64,
    /// From the last heal to an acknowledgement of every queue.
    pub recover_ms: u64,
    /// From the last heal until throughput is back.
    pub throughput_ms: u64,
    /// How late a delayed message may be.
    pub delay_late_ms: u64,
    /// After this an open half message is asked about.
    pub tx_check_ms: u64,
    /// How many deliveries one event (rebalance, crash, failover) may repeat.
    pub repeats_per_event: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            route_ms: 1_200,
            available_ms: 3_000,
            recover_ms: 5_000,
            throughput_ms: 20_000,
            delay_late_ms: 5_000,
            tx_check_ms: 30_000,
            repeats_per_event: 1_024,
        }
    }
}

impl Limits {
    pub fn route(&self) -> Duration {
        Duration::from_millis(self.route_ms)
    }

    pub fn available(&self) -> Duration {
        Duration::from_millis(self.available_ms)
    }

    pub fn recover(&self) -> Duration {
        Duration::from_millis(self.recover_ms)
    }

    pub fn throughput(&self) -> Duration {
        Duration::from_millis(self.throughput_ms)
    }

    pub fn delay_late(&self) -> Duration {
        Duration::from_millis(self.delay_late_ms)
    }

    pub fn tx_check(&self) -> Duration {
        Duration::from_millis(self.tx_check_ms)
    }
}
