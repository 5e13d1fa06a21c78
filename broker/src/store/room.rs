//! Waits for room when the disk is full.
//!
//! The log has its own reserve, derived files have none: they may find the disk full although the log goes on. Nothing
//! is lost by waiting, because all of it is in the log, so reput waits until somebody makes room. Consumers see what
//! was dispatched before; apply stands still once its queue to reput is full.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use super::error::{Error, Result};

/// How often a write that found no room is tried again.
const PAUSE: Duration = Duration::from_millis(250);

/// Tries again what found no room, until it is given up.
#[derive(Debug, Default)]
pub(crate) struct Room {
    is_given_up: Mutex<bool>,
    given_up: Condvar,
    /// What is waited for, in words.
    waits_for: watch::Sender<Option<String>>,
}

impl Room {
    /// Calls `attempt` until it no longer fails for want of room. It must go on where it failed. Calls `before_pause`
    /// whenever it is going to wait.
    ///
    /// # Errors
    /// That of `attempt` if it is of another kind, or after [`Room::give_up`].
    pub(crate) fn wait<T>(&self, before_pause: impl Fn(), mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            let error = match attempt() {
                Err(error) if error.lacks_room() => error,
                result => {
                    if self.waits_for.borrow().is_some() {
                        self.waits_for.send_replace(None);
                        tracing::info!("derived files are written again");
                    }
                    return result;
                }
            };
            before_pause();
            if self.waits_for.send_replace(Some(error.to_string())).is_none() {
                tracing::warn!(%error, "no room for derived files: consumers see nothing new until there is some");
            }
            let mut is_given_up = self.is_given_up.lock();
            if !*is_given_up {
                self.given_up.wait_for(&mut is_given_up, PAUSE);
            }
            if *is_given_up {
                return Err(error);
            }
        }
    }

    /// Lets no write wait any more, now or later: the store is to stop.
    pub(crate) fn give_up(&self) {
        *self.is_given_up.lock() = true;
        self.given_up.notify_all();
    }

    /// The write that waits for room, if one does.
    pub(crate) fn waits_for(&self) -> watch::Receiver<Option<String>> {
        self.waits_for.subscribe()
    }
}

impl Error {
    /// Whether a write found the disk, or a quota, full. A sync that says so is another thing: it is never repeated.
    fn lacks_room(&self) -> bool {
        match self {
            Self::Io { action, source, .. } => {
                let full = [std::io::ErrorKind::StorageFull, std::io::ErrorKind::QuotaExceeded];
                full.contains(&source.kind()) && !action.starts_with("syncing")
            }
            Self::Log(raft_store::Error::NoSpace { .. }) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
