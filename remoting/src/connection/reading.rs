//! The reading half: takes frames off the stream, as long as the limits allow, and hands them on.

use std::future::poll_fn;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;

use super::Connection;
use super::Side;
use crate::Error;
use crate::Handler;
use crate::Responder;
use crate::Result;
use crate::outbound;
use crate::stream::Reading;

/// First and smallest receive buffer. Held requests keep their buffer alive, so quiet connections get small ones.
const READ_BYTES_MIN: usize = 8 << 10;
/// Largest receive buffer that is asked for at once.
const READ_BYTES_MAX: usize = 256 << 10;
/// A connection without traffic for so long gives its empty receive buffer back.
const BUFFER_IDLE: Duration = Duration::from_secs(5);

impl Connection {
    pub(super) async fn read_all(&self, mut reading: Reading, handler: &dyn Handler) -> Result<()> {
        let inner = &*self.inner;
        let mut buffer = BytesMut::new();
        let mut read_bytes = READ_BYTES_MIN;
        loop {
            // All complete frames first: their answers then leave together.
            let frames_before = inner.frames_read.load(Ordering::Relaxed);
            while !outbound::cork(|| self.handle_frames(&mut buffer, handler))? {
                if !self.gate().await {
                    return Ok(());
                }
            }
            if buffer.is_empty() {
                inner.partial_since.store(0, Ordering::Relaxed);
            } else {
                inner.partial_bytes.store(buffer.len(), Ordering::Relaxed);
                let advanced = inner.frames_read.load(Ordering::Relaxed) != frames_before;
                if advanced || inner.partial_since.load(Ordering::Relaxed) == 0 {
                    inner.partial_since.store(self.elapsed_ms() + 1, Ordering::Relaxed);
                }
            }

            let read = poll_fn(|cx| {
                inner.reader.register(cx.waker());
                if inner.closed.load(Ordering::Acquire) {
                    return Poll::Ready(Ok(None));
                }
                if inner.draining.load(Ordering::Relaxed) {
                    return Poll::Ready(Ok(Some(0)));
                }
                if inner.release_buffer.swap(false, Ordering::Relaxed) && buffer.is_empty() {
                    buffer = BytesMut::new();
                    read_bytes = READ_BYTES_MIN;
                }
                if buffer.capacity() == 0 {
                    // No memory for a connection that says nothing.
                    std::task::ready!(reading.poll_ready(cx))?;
                }
                if buffer.capacity() - buffer.len() < read_bytes / 4 {
                    buffer.reserve(read_bytes);
                }
                let space = buffer.capacity() - buffer.len();
                let count = std::task::ready!(reading.poll_read(cx, &mut buffer))?;
                if count == space {
                    read_bytes = (read_bytes * 2).min(READ_BYTES_MAX);
                } else if count < read_bytes / 8 {
                    read_bytes = (read_bytes - read_bytes / 8).max(READ_BYTES_MIN);
                }
                Poll::Ready(if count == 0 { Ok(None) } else { Ok(Some(count)) })
            })
            .await
            .map_err(|source| Error::Io { doing: "read", source })?;
            match read {
                None => return Ok(()),
                Some(0) => {}
                Some(_) => {
                    inner.holds_buffer.store(true, Ordering::Relaxed);
                    inner.reads.fetch_add(1, Ordering::Relaxed);
                    inner.read_at.store(self.elapsed_ms(), Ordering::Relaxed);
                }
            }
        }
    }

    /// Handles the complete frames of `buffer`. False: the limits forbid to handle the next one now.
    fn handle_frames(&self, buffer: &mut BytesMut, handler: &dyn Handler) -> Result<bool> {
        let inner = &*self.inner;
        let limits = &inner.options.settings.frame;
        loop {
            if !self.may_handle() {
                return Ok(false);
            }
            let before = buffer.len();
            let Some(command) = protocol::decode_frame(buffer, limits)? else { return Ok(true) };
            let bytes = before - buffer.len();
            inner.frames_read.fetch_add(1, Ordering::Relaxed);
            if command.is_response() {
                let waiter = inner.pending.lock().remove(command.opaque);
                if let Some(waiter) = waiter {
                    waiter.finish(Ok(command));
                }
            } else {
                inner.in_flight_requests.fetch_add(1, Ordering::SeqCst);
                inner.in_flight_bytes.fetch_add(bytes, Ordering::SeqCst);
                if let Some(admission) = &inner.admission {
                    admission.add_in_flight(bytes);
                }
                let responder = Responder::new(self.clone(), &command, bytes);
                handler.handle(command, responder);
            }
        }
    }

    /// Whether reading must stop, by the limits times `numerator / 2`: it stops at the limit, resumes at half of it.
    fn is_over(&self, numerator: usize) -> bool {
        let inner = &*self.inner;
        let s = &inner.options.settings;
        let reached = |used: &AtomicUsize, max: usize| used.load(Ordering::SeqCst) >= (max * numerator).div_ceil(2);
        reached(&inner.in_flight_requests, s.in_flight_requests_max)
            || reached(&inner.in_flight_bytes, s.in_flight_bytes_max)
            || (inner.side == Side::Accepted
                && (reached(&inner.queued_frames, s.outbound_frames_max)
                    || reached(&inner.queued_bytes, s.outbound_bytes_max)))
    }

    pub(super) fn resume_reader(&self) {
        if self.inner.reader_gated.load(Ordering::SeqCst)
            && !self.is_over(1)
            && self.inner.reader_gated.swap(false, Ordering::SeqCst)
        {
            self.inner.reader.wake();
        }
    }

    /// Whether the next frame may be handled now.
    fn may_handle(&self) -> bool {
        let inner = &*self.inner;
        !self.is_over(2)
            && !inner.draining.load(Ordering::Relaxed)
            && inner.admission.as_ref().is_none_or(|admission| admission.has_room())
    }

    /// Waits until the limits allow to handle another frame. Returns false when the connection is closed.
    async fn gate(&self) -> bool {
        let inner = &*self.inner;
        inner.partial_since.store(0, Ordering::Relaxed);
        poll_fn(|cx| {
            inner.reader.register(cx.waker());
            if inner.closed.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            if inner.draining.load(Ordering::SeqCst) {
                // From here on no request is added, so the last answer may close the connection.
                inner.drained_reader.store(true, Ordering::SeqCst);
                self.finish_if_drained();
                return Poll::Pending;
            }
            inner.reader_gated.store(true, Ordering::SeqCst);
            if self.is_over(1) {
                return Poll::Pending;
            }
            inner.reader_gated.store(false, Ordering::SeqCst);
            Poll::Ready(())
        })
        .await;
        if let Some(admission) = &inner.admission
            && !admission.has_room()
        {
            let closed = poll_fn(|cx| {
                inner.reader.register(cx.waker());
                if inner.closed.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
            });
            tokio::select! {
                () = admission.wait_for_room() => {}
                () = closed => {}
            }
        }
        self.is_open()
    }

    /// Why a server must close this connection now, if it must.
    pub(crate) fn overdue(&self) -> Option<&'static str> {
        let inner = &*self.inner;
        let s = &inner.options.settings;
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let now = self.elapsed_ms();
        let quiet =
            now.saturating_sub(inner.read_at.load(Ordering::Relaxed).max(inner.written_at.load(Ordering::Relaxed)));
        if inner.frames_read.load(Ordering::Relaxed) == 0
            && now >= ms(s.first_frame_within)
            && !inner.reader_gated.load(Ordering::Relaxed)
        {
            return Some("no frame in time");
        }
        if quiet >= ms(s.idle_max) {
            return Some("idle");
        }
        let partial_since = inner.partial_since.load(Ordering::Relaxed);
        if partial_since > 0 {
            let since = now.saturating_sub(partial_since - 1);
            if since >= ms(s.frame_within) {
                return Some("frame takes too long");
            }
            let wanted = u64::try_from(s.frame_bytes_per_second_min).unwrap_or(u64::MAX).saturating_mul(since) / 1_000;
            let got = u64::try_from(inner.partial_bytes.load(Ordering::Relaxed)).unwrap_or(u64::MAX);
            if since >= ms(s.first_frame_within) && got < wanted {
                return Some("frame comes too slowly");
            }
        }
        if quiet >= ms(BUFFER_IDLE) && inner.holds_buffer.swap(false, Ordering::Relaxed) {
            inner.release_buffer.store(true, Ordering::Relaxed);
            inner.reader.wake();
        }
        None
    }
}
