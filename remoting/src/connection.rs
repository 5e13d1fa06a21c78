//! One framed stream, the same on both ends.
//!
//! ```text
//!            read task                                   any thread
//! socket -> bytes -> frames --request--> Handler   Responder, call, send_oneway
//!                       \----response--> Pending            |
//!                                                           v
//! socket <------------- write task <----------------- Outbound (encoded, under a lock)
//! ```
//!
//! Reading stops while too much is in flight or, on the side that accepted, while too much is queued; the side that
//! dialled reads on, or two full queues could wait for each other for ever.

mod reading;
mod writing;

use std::fmt;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use protocol::RemotingCommand;
use tokio::sync::Notify;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::Admission;
use crate::Error;
use crate::Handler;
use crate::LogLimit;
use crate::Options;
use crate::Result;
use crate::outbound;
use crate::outbound::Outbound;
use crate::pending::Callback;
use crate::pending::Pending;
use crate::pending::Waiter;
use crate::stream::Stream;

/// How late the time-out of a callback may be.
const CALLBACK_TICK: Duration = Duration::from_millis(100);

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Names a connection, uniquely in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(u64);

impl ConnectionId {
    /// The name as a number.
    #[must_use]
    pub fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which side of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Accepted,
    Dialled,
}

/// A handle to one connection; clones are the same connection.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    id: ConnectionId,
    side: Side,
    peer: SocketAddr,
    local: SocketAddr,
    options: Arc<Options>,
    admission: Option<Arc<Admission>>,
    log: Arc<LogLimit>,
    principal: Mutex<Option<Arc<str>>>,

    outbound: Mutex<Outbound>,
    /// Frames and bytes pushed and not yet written: what is in `outbound` plus what the writer holds.
    queued_frames: AtomicUsize,
    queued_bytes: AtomicUsize,
    room: Notify,
    room_wanted: AtomicUsize,

    in_flight_requests: AtomicUsize,
    in_flight_bytes: AtomicUsize,

    reader: AtomicWaker,
    reader_gated: AtomicBool,
    draining: AtomicBool,
    drained_reader: AtomicBool,
    closed: AtomicBool,
    ended: Notify,
    release_buffer: AtomicBool,

    pending: Mutex<Pending>,
    next_opaque: AtomicI32,
    callbacks: AtomicBool,
    callback_started: Notify,

    began: Instant,
    /// Milliseconds since `began`.
    read_at: AtomicU64,
    written_at: AtomicU64,
    /// When the frame began that is not yet complete, plus one; zero without such a frame.
    partial_since: AtomicU64,
    partial_bytes: AtomicUsize,
    reads: AtomicU64,
    frames_read: AtomicU64,
    holds_buffer: AtomicBool,
}

impl Connection {
    pub(crate) fn new(
        side: Side,
        peer: SocketAddr,
        local: SocketAddr,
        options: Arc<Options>,
        admission: Option<Arc<Admission>>,
        log: Arc<LogLimit>,
    ) -> Self {
        let inner = Inner {
            id: ConnectionId(NEXT_ID.fetch_add(1, Ordering::Relaxed)),
            side,
            peer,
            local,
            options,
            admission,
            log,
            principal: Mutex::new(None),
            outbound: Mutex::new(Outbound::default()),
            queued_frames: AtomicUsize::new(0),
            queued_bytes: AtomicUsize::new(0),
            room: Notify::new(),
            room_wanted: AtomicUsize::new(0),
            in_flight_requests: AtomicUsize::new(0),
            in_flight_bytes: AtomicUsize::new(0),
            reader: AtomicWaker::new(),
            reader_gated: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            drained_reader: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            ended: Notify::new(),
            release_buffer: AtomicBool::new(false),
            pending: Mutex::new(Pending::default()),
            next_opaque: AtomicI32::new(1),
            callbacks: AtomicBool::new(false),
            callback_started: Notify::new(),
            began: Instant::now(),
            read_at: AtomicU64::new(0),
            written_at: AtomicU64::new(0),
            partial_since: AtomicU64::new(0),
            partial_bytes: AtomicUsize::new(0),
            reads: AtomicU64::new(0),
            frames_read: AtomicU64::new(0),
            holds_buffer: AtomicBool::new(false),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Its name in this process.
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        self.inner.id
    }

    /// The address of the other end.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.peer
    }

    /// The address of this end.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local
    }

    /// Whether frames can still be sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.inner.closed.load(Ordering::Acquire)
    }

    /// Who was authenticated on this connection, if anybody was.
    #[must_use]
    pub fn principal(&self) -> Option<Arc<str>> {
        self.inner.principal.lock().clone()
    }

    /// Remembers who was authenticated on this connection.
    pub fn set_principal(&self, principal: Arc<str>) {
        *self.inner.principal.lock() = Some(principal);
    }

    /// Requests of the peer that are not yet answered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.inner.in_flight_requests.load(Ordering::Relaxed)
    }

    /// Bytes queued and not yet written.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.inner.queued_bytes.load(Ordering::Relaxed)
    }

    /// Sends `request` under an opaque of its own and waits for the answer.
    ///
    /// Dropping the future gives the call up; a late answer is then ignored.
    ///
    /// # Errors
    /// [`Error::not_sent`] tells whether the peer can have seen the request. When the connection closes, the call
    /// fails at once.
    pub async fn call(&self, mut request: RemotingCommand, timeout: Duration) -> Result<RemotingCommand> {
        let started = Instant::now();
        let reads = self.inner.reads.load(Ordering::Relaxed);
        self.wait_for_room(timeout).await?;
        let (sender, receiver) = oneshot::channel();
        let opaque = self.start(&mut request, Waiter::Task(sender)).map_err(|_| self.closed_error())?;
        let _entry = Entry { connection: self, opaque };
        let left = timeout.saturating_sub(started.elapsed());
        match tokio::time::timeout(left, receiver).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Error::Lost { peer: self.inner.peer.to_string() }),
            Err(_) => {
                self.close_if_silent_since(reads);
                Err(Error::Timeout { peer: self.inner.peer.to_string(), after: timeout })
            }
        }
    }

    /// Sends `request` and calls `done` with the answer, on the connection's read task or wherever it ends.
    ///
    /// No task and no timer is made for it; [`Self::expire_calls`] has to be called for its time-out.
    pub(crate) fn call_with(&self, mut request: RemotingCommand, timeout: Duration, done: Callback) {
        if !self.has_room() {
            return done(Err(Error::OutboundFull { peer: self.inner.peer.to_string() }));
        }
        let waiter = Waiter::Callback { done, started: Instant::now(), timeout };
        match self.start(&mut request, waiter) {
            Ok(_) => {
                if !self.inner.callbacks.swap(true, Ordering::SeqCst) {
                    self.inner.callback_started.notify_one();
                }
            }
            Err(waiter) => waiter.finish(Err(self.closed_error())),
        }
    }

    /// Ends callbacks whose time is over, as long as the connection lives; sleeps while there are none.
    pub(crate) async fn expire_callbacks(&self) {
        loop {
            self.inner.callback_started.notified().await;
            loop {
                tokio::time::sleep(CALLBACK_TICK).await;
                self.inner.callbacks.store(false, Ordering::SeqCst);
                if self.expire_calls() == 0 {
                    break;
                }
                self.inner.callbacks.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Ends the calls of [`Self::call_with`] whose time is over, and returns how many calls still wait.
    fn expire_calls(&self) -> usize {
        let (expired, left) = {
            let mut pending = self.inner.pending.lock();
            (pending.expired(Instant::now()), pending.len())
        };
        for waiter in expired {
            let after = waiter.timeout();
            waiter.finish(Err(Error::Timeout { peer: self.inner.peer.to_string(), after }));
        }
        left
    }

    /// Queues `request` and wants no answer.
    ///
    /// # Errors
    /// [`Error::Closed`] or [`Error::OutboundFull`]: nothing was sent.
    pub fn send_oneway(&self, mut request: RemotingCommand) -> Result<()> {
        if !self.has_room() {
            return Err(Error::OutboundFull { peer: self.inner.peer.to_string() });
        }
        request.opaque = self.next_opaque();
        request.mark_oneway();
        if self.push(&request, Vec::new()) { Ok(()) } else { Err(self.closed_error()) }
    }

    /// Closes at once; what is queued is lost and calls in flight fail.
    pub fn close(&self) {
        self.inner.closed.store(true, Ordering::Release);
        self.inner.reader.wake();
    }

    /// Waits until fewer than the permitted frames and bytes are queued.
    ///
    /// # Errors
    /// [`Error::OutboundFull`] when that takes longer than `timeout`, [`Error::Closed`].
    pub async fn wait_for_room(&self, timeout: Duration) -> Result<()> {
        if self.has_room() {
            return Ok(());
        }
        let waiting = async {
            loop {
                let room = self.inner.room.notified();
                tokio::pin!(room);
                room.as_mut().enable();
                self.inner.room_wanted.fetch_add(1, Ordering::SeqCst);
                let _wanted = Wanted(&self.inner.room_wanted);
                if self.has_room() || !self.is_open() {
                    return;
                }
                room.await;
            }
        };
        match tokio::time::timeout(timeout, waiting).await {
            Ok(()) if self.is_open() => Ok(()),
            Ok(()) => Err(self.closed_error()),
            Err(_) => Err(Error::OutboundFull { peer: self.inner.peer.to_string() }),
        }
    }

    fn has_room(&self) -> bool {
        let s = &self.inner.options.settings;
        self.inner.queued_frames.load(Ordering::SeqCst) < s.outbound_frames_max
            && self.inner.queued_bytes.load(Ordering::SeqCst) < s.outbound_bytes_max
    }

    /// Queues `request` for `waiter`, which comes back if the connection is closed.
    fn start(&self, request: &mut RemotingCommand, waiter: Waiter) -> std::result::Result<i32, Waiter> {
        request.opaque = self.next_opaque();
        let opaque = request.opaque;
        self.inner.pending.lock().insert(opaque, waiter)?;
        // The waiter must be there before the answer can come; so it has to be taken back if nothing was sent.
        if !self.push(request, Vec::new())
            && let Some(waiter) = self.inner.pending.lock().remove(opaque)
        {
            return Err(waiter);
        }
        Ok(opaque)
    }

    fn next_opaque(&self) -> i32 {
        self.inner.next_opaque.fetch_add(1, Ordering::Relaxed)
    }

    fn closed_error(&self) -> Error {
        Error::Closed { peer: self.inner.peer.to_string() }
    }

    pub(crate) fn answer(&self, head: &RemotingCommand, parts: Vec<Bytes>) {
        self.push(head, parts);
    }

    /// Queues a frame; false when the connection is closed.
    fn push(&self, head: &RemotingCommand, parts: Vec<Bytes>) -> bool {
        let inner = &*self.inner;
        if inner.closed.load(Ordering::Acquire) {
            return false;
        }
        let writer = {
            let mut outbound = inner.outbound.lock();
            let Some(pushed) = outbound.push(head, parts) else { return false };
            // Counted under the lock: the end of the connection takes back exactly what was counted before it.
            inner.queued_frames.fetch_add(1, Ordering::SeqCst);
            inner.queued_bytes.fetch_add(pushed.bytes, Ordering::SeqCst);
            if let Some(admission) = &inner.admission {
                admission.add_outbound(pushed.bytes);
            }
            pushed.writer
        };
        outbound::wake(writer);
        true
    }

    pub(crate) fn request_done(&self, bytes: usize) {
        let inner = &*self.inner;
        inner.in_flight_requests.fetch_sub(1, Ordering::SeqCst);
        inner.in_flight_bytes.fetch_sub(bytes, Ordering::SeqCst);
        if let Some(admission) = &inner.admission {
            admission.sub_in_flight(bytes);
        }
        self.resume_reader();
        if inner.drained_reader.load(Ordering::SeqCst) {
            self.finish_if_drained();
        }
    }

    /// Stops reading requests; closes once those in flight are answered and everything is written.
    pub(crate) fn drain(&self) {
        self.inner.draining.store(true, Ordering::SeqCst);
        self.inner.reader.wake();
    }

    fn finish_if_drained(&self) {
        if self.inner.in_flight_requests.load(Ordering::SeqCst) == 0 {
            let writer = self.inner.outbound.lock().close();
            outbound::wake(writer);
        }
    }

    /// Waits until both tasks of the connection are gone and the handler was told.
    pub(crate) async fn ended(&self) {
        self.inner.ended.notified().await;
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.inner.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Gives up a connection that brought not a byte while a call ran into its time-out.
    fn close_if_silent_since(&self, reads: u64) {
        if self.inner.side == Side::Dialled && self.inner.reads.load(Ordering::Relaxed) == reads {
            tracing::debug!(peer = %self.inner.peer, "closing a connection that gave no sign of life during a call");
            self.close();
        }
    }

    /// Whether the peer has not sent a single frame yet.
    pub(crate) fn is_fresh(&self) -> bool {
        self.inner.frames_read.load(Ordering::Relaxed) == 0
    }

    /// Runs the connection to its end.
    pub(crate) async fn run(self, stream: Stream, handler: Arc<dyn Handler>) {
        let (reading, writing) = stream.split();
        let writer = tokio::spawn({
            let connection = self.clone();
            async move {
                if let Err(error) = connection.write_all(writing).await {
                    connection.log_end(&error);
                }
                connection.close();
            }
        });
        let ended = AssertUnwindSafe(async {
            handler.opened(&self);
            self.read_all(reading, &*handler).await
        })
        .catch_unwind()
        .await;
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.log_end(&error),
            Err(_) => tracing::error!(peer = %self.inner.peer, "handler panicked: closing its connection"),
        }
        self.close();
        writer.abort();
        // Aborted or done: either way its half of the stream is gone after this.
        drop(writer.await);
        self.take_back_queued();
        let waiters = self.inner.pending.lock().close();
        for waiter in waiters {
            waiter.finish(Err(Error::Lost { peer: self.inner.peer.to_string() }));
        }
        self.inner.room.notify_waiters();
        if std::panic::catch_unwind(AssertUnwindSafe(|| handler.closed(&self))).is_err() {
            tracing::error!(peer = %self.inner.peer, "handler panicked at the end of a connection");
        }
        self.inner.ended.notify_one();
    }

    fn log_end(&self, error: &Error) {
        let peer = self.inner.peer;
        let cause = match error {
            Error::Malformed(_) => "malformed frame",
            Error::Io { doing, .. } => doing,
            _ => "connection failed",
        };
        let Some(suppressed) = self.inner.log.allows(cause, peer.ip()) else { return };
        match error {
            // Texts of decode errors may quote the peer's bytes.
            Error::Malformed(source) => {
                let detail = source.to_string().escape_debug().to_string();
                tracing::warn!(%peer, detail, suppressed, "closing connection: malformed frame");
            }
            Error::Io { doing, source } => tracing::debug!(%peer, %source, suppressed, "closing connection: {doing}"),
            other => tracing::warn!(%peer, error = %other, suppressed, "closing connection"),
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("id", &self.inner.id.0)
            .field("peer", &self.inner.peer)
            .field("open", &self.is_open())
            .finish_non_exhaustive()
    }
}

/// Takes a waiter back when its caller is gone.
struct Entry<'a> {
    connection: &'a Connection,
    opaque: i32,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        drop(self.connection.inner.pending.lock().remove(self.opaque));
    }
}

struct Wanted<'a>(&'a AtomicUsize);

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
