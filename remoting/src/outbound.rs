//! What a connection has still to write.
//!
//! Whoever sends encodes its frame here, under a short lock. Small frames and small bodies pile up in one buffer;
//! a large body becomes a slice of its own, so it is never copied:
//!
//! ```text
//! slices: [small frames | large body | small frames | large body]   buffer: [small frames not yet sealed]
//! ```
//!
//! The writer takes all of it at once and hands it to the kernel in vectored writes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;
use bytes::BytesMut;
use protocol::RemotingCommand;
use tokio::time::Instant;

/// A part of at least this many bytes travels as a slice of its own; copying less is cheaper than one more slice.
const SLICE_BYTES_MIN: usize = 2_048;

/// Free space the buffer of small frames is given when it has none.
const BUFFER_BYTES: usize = 16 << 10;

/// Frames queued and not yet taken by the writer.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    slices: VecDeque<Bytes>,
    buffer: BytesMut,
    frames: usize,
    bytes: usize,
    /// When the first of them was queued.
    since: Option<Instant>,
    closing: bool,
    ended: bool,
    writer: Option<Waker>,
}

/// Everything that was queued at one moment.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) slices: VecDeque<Bytes>,
    pub(crate) frames: usize,
    pub(crate) bytes: usize,
    /// When the first of them was queued.
    pub(crate) since: Instant,
}

/// What the writer has to do next.
pub(crate) enum Next {
    Write(Taken),
    Finish,
    Wait,
}

/// A frame was queued: its bytes, and the writer if it sleeps.
pub(crate) struct Pushed {
    pub(crate) bytes: usize,
    pub(crate) writer: Option<Waker>,
}

impl Outbound {
    /// Queues `head`, whose own body comes first, and then `parts` as the rest of its body. `None` after the end.
    pub(crate) fn push(&mut self, head: &RemotingCommand, parts: Vec<Bytes>) -> Option<Pushed> {
        if self.ended {
            return None;
        }
        let parts_len = parts.iter().map(Bytes::len).sum::<usize>();
        let before = self.buffer.len();
        if self.buffer.capacity() - self.buffer.len() < 512 {
            self.buffer.reserve(BUFFER_BYTES);
        }
        protocol::encode_head(head, head.body.len() + parts_len, &mut self.buffer);
        let mut bytes = self.buffer.len() - before;
        bytes += head.body.len() + parts_len;
        self.push_part(head.body.clone());
        for part in parts {
            self.push_part(part);
        }
        self.frames += 1;
        self.bytes += bytes;
        self.since.get_or_insert_with(Instant::now);
        Some(Pushed { bytes, writer: self.writer.take() })
    }

    fn push_part(&mut self, part: Bytes) {
        if part.len() < SLICE_BYTES_MIN {
            self.buffer.extend_from_slice(&part);
        } else {
            self.seal();
            self.slices.push_back(part);
        }
    }

    fn seal(&mut self) {
        if !self.buffer.is_empty() {
            self.slices.push_back(self.buffer.split().freeze());
        }
    }

    /// Takes everything; with nothing queued, remembers `waker` for the next push.
    pub(crate) fn take(&mut self, waker: &Waker) -> Next {
        if self.frames == 0 {
            if self.closing {
                return Next::Finish;
            }
            match &self.writer {
                Some(writer) if writer.will_wake(waker) => {}
                _ => self.writer = Some(waker.clone()),
            }
            return Next::Wait;
        }
        self.seal();
        Next::Write(Taken {
            slices: std::mem::take(&mut self.slices),
            frames: std::mem::take(&mut self.frames),
            bytes: std::mem::take(&mut self.bytes),
            since: self.since.take().unwrap_or_else(Instant::now),
        })
    }

    /// Lets the writer finish once everything queued is written.
    pub(crate) fn close(&mut self) -> Option<Waker> {
        self.closing = true;
        self.writer.take()
    }

    /// Drops what is queued and refuses everything from now on.
    pub(crate) fn end(&mut self) {
        *self = Self { ended: true, ..Self::default() };
    }
}

thread_local! {
    /// Writers to wake when the outermost `cork` of this thread ends; `None` outside.
    static CORKED: RefCell<Option<Vec<Waker>>> = const { RefCell::new(None) };
}

/// Runs `work`, and only then wakes the writers of the connections it sent on.
///
/// So the frames that `work` sends on one connection leave in one write. Worth it around a loop that answers many
/// requests; `work` must not block. Nesting is allowed: the outermost call wakes.
pub fn cork<R>(work: impl FnOnce() -> R) -> R {
    struct Uncork(bool);
    impl Drop for Uncork {
        fn drop(&mut self) {
            if self.0 {
                let wakers = CORKED.with_borrow_mut(Option::take);
                wakers.into_iter().flatten().for_each(Waker::wake);
            }
        }
    }
    let outermost = CORKED.with_borrow_mut(|corked| {
        let outermost = corked.is_none();
        if outermost {
            *corked = Some(Vec::new());
        }
        outermost
    });
    let _uncork = Uncork(outermost);
    work()
}

/// Wakes `writer`, at the end of the enclosing [`cork`] if there is one.
pub(crate) fn wake(writer: Option<Waker>) {
    let Some(writer) = writer else { return };
    let at_once = CORKED.with_borrow_mut(|corked| match corked {
        Some(wakers) => {
            wakers.push(writer);
            None
        }
        None => Some(writer),
    });
    if let Some(writer) = at_once {
        writer.wake();
    }
}
