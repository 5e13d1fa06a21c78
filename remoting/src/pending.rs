//! Requests that wait for an answer, by opaque.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::hash::Hasher;
use std::time::Duration;

use protocol::RemotingCommand;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::Result;

/// Called once with the answer, or with the reason why there will be none.
pub(crate) type Callback = Box<dyn FnOnce(Result<RemotingCommand>) + Send>;

/// Who waits.
pub(crate) enum Waiter {
    Task(oneshot::Sender<Result<RemotingCommand>>),
    Callback { done: Callback, started: Instant, timeout: Duration },
}

impl Waiter {
    /// The time that the caller gave; only callbacks are timed here.
    pub(crate) fn timeout(&self) -> Duration {
        match self {
            Self::Task(_) => Duration::ZERO,
            Self::Callback { timeout, .. } => *timeout,
        }
    }

    pub(crate) fn finish(self, result: Result<RemotingCommand>) {
        match self {
            // A caller that gave up has already taken its entry back; losing the race is fine.
            Self::Task(sender) => drop(sender.send(result)),
            Self::Callback { done, .. } => done(result),
        }
    }
}

/// The waiting requests of one connection.
#[derive(Default)]
pub(crate) struct Pending {
    waiters: HashMap<i32, Waiter, BuildHasherDefault<OpaqueHasher>>,
    closed: bool,
}

impl Pending {
    /// Adds a waiter; hands it back when the connection is closed already.
    pub(crate) fn insert(&mut self, opaque: i32, waiter: Waiter) -> std::result::Result<(), Waiter> {
        if self.closed {
            return Err(waiter);
        }
        let previous = self.waiters.insert(opaque, waiter);
        debug_assert!(previous.is_none(), "an opaque is used twice at a time");
        Ok(())
    }

    pub(crate) fn remove(&mut self, opaque: i32) -> Option<Waiter> {
        self.waiters.remove(&opaque)
    }

    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Removes the callbacks whose time is over.
    pub(crate) fn expired(&mut self, now: Instant) -> Vec<Waiter> {
        self.waiters
            .extract_if(|_, waiter| matches!(waiter, Waiter::Callback { started, timeout, .. } if now.duration_since(*started) >= *timeout))
            .map(|(_, waiter)| waiter)
            .collect()
    }

    /// Takes all waiters and refuses new ones.
    pub(crate) fn close(&mut self) -> Vec<Waiter> {
        self.closed = true;
        self.waiters.drain().map(|(_, waiter)| waiter).collect()
    }
}

/// Opaques are consecutive numbers that we choose, so they need spreading but no defence.
#[derive(Default)]
pub(crate) struct OpaqueHasher(u64);

impl Hasher for OpaqueHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 << 8) | u64::from(*byte);
        }
    }

    fn write_i32(&mut self, opaque: i32) {
        self.0 = u64::from(opaque.cast_unsigned()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
