//! Answers that wait to be written to one connection: anybody adds, the connection's task writes.

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::error::{FrameError, PeerError};
use super::frame::FrameWriter;
use super::stream::FrameQueue;

/// Answers one peer may leave unread before its connection is closed.
const OUTBOX_BYTES_MAX: usize = 128 << 20;

#[derive(Debug, Default)]
struct State {
    slices: Vec<Bytes>,
    bytes: usize,
    closed: bool,
}

/// The shared end of a connection's output.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    wake: Notify,
}

impl Outbox {
    /// Adds a frame. On a closed connection it is dropped, and that is no error: nobody can read it.
    pub(crate) fn push(&self, writer: FrameWriter, tail: Vec<Bytes>) -> Result<(), FrameError> {
        {
            let mut state = self.state.lock();
            if state.closed {
                return Ok(());
            }
            let before = state.slices.len();
            writer.finish(tail, &mut state.slices)?;
            state.bytes += state.slices.get(before..).unwrap_or_default().iter().map(Bytes::len).sum::<usize>();
            if state.bytes > OUTBOX_BYTES_MAX {
                state.closed = true;
                state.slices.clear();
            }
        }
        self.wake.notify_one();
        Ok(())
    }

    /// Waits until there may be something to take.
    pub(crate) async fn ready(&self) {
        self.wake.notified().await;
    }

    /// Moves everything into `queue`.
    ///
    /// # Errors
    /// If the peer left too much unread.
    pub(crate) fn take(&self, queue: &mut FrameQueue) -> Result<(), PeerError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(PeerError::Unavailable("peer reads its answers too slowly".to_owned()));
        }
        queue.extend(std::mem::take(&mut state.slices));
        state.bytes = 0;
        Ok(())
    }

    /// Drops what waits and everything that comes later.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.slices = Vec::new();
    }
}
