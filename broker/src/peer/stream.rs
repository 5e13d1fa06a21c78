//! One peer connection: frames in, frames out, with few wake-ups and few copies.
//!
//! Incoming frames are slices of chunks that are used again once nothing refers to them any more. Outgoing slices wait
//! in a queue and leave by vectored writes, so that everything that is ready goes in one system call.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::error::{FrameError, PeerError};
use super::frame::{self, FRAME_BYTES_MAX, Frame, FrameWriter, HELLO_BYTES_MAX, PREFIX_BYTES};

/// Chunk of a connection that carries log records.
pub(crate) const LARGE_CHUNK_BYTES: usize = 1 << 20;
/// Chunk of a connection that carries small calls.
pub(crate) const SMALL_CHUNK_BYTES: usize = 16 << 10;
/// Used chunks kept for later.
const SPARE_CHUNKS_MAX: usize = 8;
/// A read is not worth a system call for less room than this.
const READ_ROOM_BYTES: usize = 4 << 10;
/// When and how often the kernel asks a silent peer.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Slices of one vectored write.
const WRITE_SLICES_MAX: usize = 64;

/// The receiving half.
#[derive(Debug)]
pub(crate) struct FrameReader {
    socket: OwnedReadHalf,
    current: BytesMut,
    /// Exhausted chunks, oldest first; one is usable again when the last slice of it is dropped.
    spare: VecDeque<BytesMut>,
    chunk_bytes: usize,
    frame_bytes_max: usize,
}

impl FrameReader {
    /// The next frame. Dropping the returned future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Frame, PeerError> {
        loop {
            let wanted = match frame::frame_bytes(&self.current, self.frame_bytes_max)? {
                Some(total) if self.current.len() >= total => {
                    return Ok(frame::decode(self.current.split_to(total).freeze())?);
                }
                Some(total) => total - self.current.len(),
                None => PREFIX_BYTES,
            };
            self.make_room(wanted);
            let read = self.socket.read_buf(&mut self.current).await.map_err(reading)?;
            if read == 0 {
                return Err(PeerError::Closed);
            }
        }
    }

    /// A frame that has already arrived, without waiting.
    pub(crate) fn next_ready(&mut self) -> Result<Option<Frame>, PeerError> {
        match frame::frame_bytes(&self.current, self.frame_bytes_max)? {
            Some(total) if self.current.len() >= total => {
                Ok(Some(frame::decode(self.current.split_to(total).freeze())?))
            }
            _ => Ok(None),
        }
    }

    fn make_room(&mut self, wanted: usize) {
        let wanted = wanted.max(READ_ROOM_BYTES);
        if self.current.capacity() - self.current.len() >= wanted || self.current.try_reclaim(wanted) {
            return;
        }
        let size = self.chunk_bytes.max(self.current.len() + wanted);
        let reusable = (size == self.chunk_bytes)
            .then(|| self.spare.iter_mut().position(|spare| spare.try_reclaim(self.chunk_bytes)))
            .flatten();
        let mut fresh = match reusable.and_then(|at| self.spare.remove(at)) {
            Some(chunk) => chunk,
            None => BytesMut::with_capacity(size),
        };
        fresh.extend_from_slice(&self.current);
        let mut used = std::mem::replace(&mut self.current, fresh);
        used.clear();
        if self.spare.len() == SPARE_CHUNKS_MAX {
            self.spare.pop_front();
        }
        self.spare.push_back(used);
    }
}

fn reading(source: io::Error) -> PeerError {
    PeerError::Io { what: "reading from a peer", source }
}

/// Slices that wait to be written, in order.
#[derive(Debug, Default)]
pub(crate) struct FrameQueue {
    slices: VecDeque<Bytes>,
    bytes: usize,
}

impl FrameQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Queues a frame.
    pub(crate) fn push(&mut self, writer: FrameWriter, tail: Vec<Bytes>) -> Result<(), FrameError> {
        writer.finish(tail, self)
    }
}

impl Extend<Bytes> for FrameQueue {
    fn extend<T: IntoIterator<Item = Bytes>>(&mut self, slices: T) {
        for slice in slices {
            if !slice.is_empty() {
                self.bytes += slice.len();
                self.slices.push_back(slice);
            }
        }
    }
}

/// The sending half.
#[derive(Debug)]
pub(crate) struct FrameSender {
    socket: OwnedWriteHalf,
    pub(crate) queue: FrameQueue,
}

impl FrameSender {
    /// Writes once, as much as the socket takes. Dropping the returned future loses nothing.
    pub(crate) async fn write_some(&mut self) -> Result<(), PeerError> {
        let slices: Vec<IoSlice<'_>> =
            self.queue.slices.iter().take(WRITE_SLICES_MAX).map(|slice| IoSlice::new(slice)).collect();
        let mut written = self
            .socket
            .write_vectored(&slices)
            .await
            .map_err(|source| PeerError::Io { what: "writing to a peer", source })?;
        if written == 0 && !slices.is_empty() {
            return Err(PeerError::Closed);
        }
        self.queue.bytes -= written;
        while let Some(first) = self.queue.slices.front_mut() {
            if written < first.len() {
                first.advance(written);
                break;
            }
            written -= first.len();
            self.queue.slices.pop_front();
        }
        Ok(())
    }

    /// Writes everything that is queued.
    pub(crate) async fn flush(&mut self) -> Result<(), PeerError> {
        while !self.queue.is_empty() {
            self.write_some().await?;
        }
        Ok(())
    }
}

/// Both halves of a connection.
#[derive(Debug)]
pub(crate) struct PeerStream {
    pub(crate) reader: FrameReader,
    pub(crate) sender: FrameSender,
}

impl PeerStream {
    /// Wraps a connected socket. Until [`PeerStream::admitted`] only small frames are accepted.
    pub(crate) fn new(socket: TcpStream) -> Self {
        // Without the first, every small answer would wait for the peer's delayed acknowledgement; without the second, a
        // connection from a machine that lost its power would stay for ever.
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
        let set = socket.set_nodelay(true).and_then(|()| SockRef::from(&socket).set_tcp_keepalive(&keepalive));
        if let Err(error) = set {
            tracing::debug!(%error, "cannot set the options of a peer's socket");
        }
        let (read, write) = socket.into_split();
        Self {
            reader: FrameReader {
                socket: read,
                current: BytesMut::new(),
                spare: VecDeque::new(),
                chunk_bytes: SMALL_CHUNK_BYTES,
                frame_bytes_max: HELLO_BYTES_MAX,
            },
            sender: FrameSender { socket: write, queue: FrameQueue::default() },
        }
    }

    /// Lifts the limits after the handshake.
    pub(crate) fn admitted(&mut self, chunk_bytes: usize) {
        self.reader.chunk_bytes = chunk_bytes;
        self.reader.frame_bytes_max = FRAME_BYTES_MAX;
    }

    /// Sends one frame and waits until the socket has taken it.
    pub(crate) async fn send(&mut self, writer: FrameWriter) -> Result<(), PeerError> {
        self.sender.queue.push(writer, Vec::new())?;
        self.sender.flush().await
    }
}

/// Connects to `address`, a host name or an IP address with a port.
///
/// # Errors
/// [`PeerError::ConnectionRefused`] only if the peer's machine answered that nothing listens on the port.
pub(crate) async fn connect(address: &str, timeout: Duration) -> Result<PeerStream, PeerError> {
    match tokio::time::timeout(timeout, TcpStream::connect(address)).await {
        Ok(Ok(socket)) => Ok(PeerStream::new(socket)),
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Err(PeerError::ConnectionRefused { address: address.to_owned() })
        }
        Ok(Err(source)) => Err(PeerError::Io { what: "connecting to a peer", source }),
        Err(_) => Err(PeerError::Timeout("connecting to a peer")),
    }
}
