//! What the writer is asked to do, in the order it was asked.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::error::Result;
use crate::ids::{LogId, LogIndex};
use crate::progress::Purged;
use crate::repair::Replacement;
use crate::segmented_log::{Log, Record};
use crate::view::Vote;

/// Told once that an append is durable, or never will be.
pub(crate) type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// Where an answer goes.
pub(crate) type Reply = Box<dyn FnOnce(Result<()>) + Send>;

/// One append.
pub(crate) struct Write {
    pub(crate) records: Vec<Record>,
    pub(crate) must_sync: bool,
    /// The last entry that announces synchronous flush, if there is one.
    pub(crate) starts_sync: Option<LogIndex>,
    pub(crate) done: Done,
}

/// What the writer is asked to do.
pub(crate) enum Op {
    Write(Write),
    SaveVote(Vote, Reply),
    /// Cut everything behind this entry, or everything.
    Truncate(Option<LogIndex>, Reply),
    /// Make a purge durable that readers see already, and free what it freed.
    Purge(LogId),
    /// Drop the whole log and go on behind an entry it never held.
    Reset(Purged, Reply),
    /// Put a new file in the place of a damaged one.
    Replace(Replacement, Reply),
    /// Take a new node id.
    Adopt {
        node_id: u64,
        generation: u64,
        reply: Reply,
    },
    /// Flush as the group says in an entry.
    SetFlush {
        is_sync: bool,
        said_at: LogIndex,
        reply: Reply,
    },
    Close(Reply),
}

#[derive(Default)]
struct QueueState {
    ops: VecDeque<Op>,
    bytes: u64,
    closed: bool,
}

/// What waits for the writer.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    filled: Condvar,
    drained: Notify,
}

impl Queue {
    /// Adds an operation. After a close it is dropped instead, and with it what it would have answered.
    pub(crate) fn push(&self, op: Op) -> bool {
        let mut state = self.state.lock();
        if state.closed {
            return false;
        }
        if let Op::Write(write) = &op {
            state.bytes += write.records.iter().map(Record::stored_bytes).sum::<u64>();
        }
        state.ops.push_back(op);
        if state.ops.len() == 1 {
            self.filled.notify_one();
        }
        true
    }

    /// Waits until no more than `bytes_max` bytes wait.
    pub(crate) async fn room(&self, bytes_max: u64) {
        loop {
            let drained = self.drained.notified();
            {
                let state = self.state.lock();
                if state.closed || state.bytes <= bytes_max {
                    return;
                }
            }
            drained.await;
        }
    }

    /// Takes everything that waits. `None` once closed.
    pub(super) fn take(&self) -> Option<VecDeque<Op>> {
        let mut state = self.state.lock();
        while state.ops.is_empty() && !state.closed {
            self.filled.wait(&mut state);
        }
        if state.closed {
            return None;
        }
        state.bytes = 0;
        let ops = std::mem::take(&mut state.ops);
        drop(state);
        self.drained.notify_waiters();
        Some(ops)
    }

    /// Takes no more. Returns what nobody will do.
    pub(super) fn close(&self) -> VecDeque<Op> {
        let mut state = self.state.lock();
        state.closed = true;
        let left = std::mem::take(&mut state.ops);
        drop(state);
        self.filled.notify_all();
        self.drained.notify_waiters();
        left
    }
}

/// Closes the log if its thread panics, so that nobody waits for it.
pub(super) struct PanicGuard {
    pub(super) log: Arc<Log>,
    pub(super) queue: Arc<Queue>,
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.log.latch("a thread of the log panicked");
            for op in self.queue.close() {
                if let Op::Write(write) = op {
                    (write.done)(Err(io::Error::other("a thread of the log panicked")));
                }
            }
        }
    }
}
