//! The writing half: brings what is queued onto the stream.

use std::future::poll_fn;
use std::io::IoSlice;
use std::sync::atomic::Ordering;
use std::task::Poll;

use bytes::Buf;
use tokio::time::Instant;

use super::Connection;
use crate::Error;
use crate::Result;
use crate::outbound::Next;
use crate::stream::Writing;

/// Slices given to one vectored write.
const SLICES_PER_WRITE: usize = 64;

impl Connection {
    pub(super) async fn write_all(&self, mut writing: Writing) -> Result<()> {
        let inner = &*self.inner;
        let settings = &inner.options.settings;
        let failed = |source| Error::Io { doing: "write", source };
        loop {
            let next = poll_fn(|cx| match inner.outbound.lock().take(cx.waker()) {
                Next::Wait => Poll::Pending,
                next => Poll::Ready(next),
            })
            .await;
            let Next::Write(mut taken) = next else {
                poll_fn(|cx| writing.poll_flush(cx)).await.map_err(failed)?;
                drop(poll_fn(|cx| writing.poll_shutdown(cx)).await);
                return Ok(());
            };
            let oldest_until = taken.since + settings.queued_max;
            while !taken.slices.is_empty() {
                let write = poll_fn(|cx| {
                    let mut slices = [IoSlice::new(&[]); SLICES_PER_WRITE];
                    let mut count = 0;
                    for (slot, bytes) in slices.iter_mut().zip(&taken.slices) {
                        *slot = IoSlice::new(bytes);
                        count += 1;
                    }
                    writing.poll_write(cx, &slices[..count])
                });
                let until = oldest_until.min(Instant::now() + settings.write_stall_max);
                let mut written = match tokio::time::timeout_at(until, write).await {
                    Ok(result) => result.map_err(failed)?,
                    Err(_) => return Err(failed(std::io::ErrorKind::TimedOut.into())),
                };
                if written == 0 {
                    return Err(failed(std::io::ErrorKind::WriteZero.into()));
                }
                inner.written_at.store(self.elapsed_ms(), Ordering::Relaxed);
                while let Some(front) = taken.slices.front_mut() {
                    if written < front.len() {
                        front.advance(written);
                        break;
                    }
                    written -= front.len();
                    taken.slices.pop_front();
                }
            }
            poll_fn(|cx| writing.poll_flush(cx)).await.map_err(failed)?;
            self.written(taken.frames, taken.bytes);
        }
    }

    fn written(&self, frames: usize, bytes: usize) {
        let inner = &*self.inner;
        inner.queued_frames.fetch_sub(frames, Ordering::SeqCst);
        inner.queued_bytes.fetch_sub(bytes, Ordering::SeqCst);
        if let Some(admission) = &inner.admission {
            admission.sub_outbound(bytes);
        }
        self.resume_reader();
        if inner.room_wanted.load(Ordering::SeqCst) > 0 && self.has_room() {
            inner.room.notify_waiters();
        }
    }

    pub(super) fn take_back_queued(&self) {
        let inner = &*self.inner;
        let mut outbound = inner.outbound.lock();
        outbound.end();
        let bytes = inner.queued_bytes.swap(0, Ordering::SeqCst);
        inner.queued_frames.store(0, Ordering::SeqCst);
        if let Some(admission) = &inner.admission {
            admission.sub_outbound(bytes);
        }
    }
}
