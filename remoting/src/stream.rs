//! The byte stream under a connection: plain TCP today, anything that reads and writes tomorrow.

use std::future::Future;
use std::io;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::pin::Pin;
use std::pin::pin;
use std::task::Context;
use std::task::Poll;

use bytes::BytesMut;
use tokio::io::AsyncRead;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWrite;
use tokio::io::ReadHalf;
use tokio::io::WriteHalf;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::tcp::OwnedWriteHalf;

/// What a boxed stream must be able to do.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// A connected stream.
pub enum Stream {
    /// TCP as it is.
    Plain(TcpStream),
    /// A stream wrapped in something, such as TLS.
    Boxed(Box<dyn Transport>),
}

/// Turns an accepted TCP stream into the stream that carries frames. The seam for TLS.
pub trait Acceptor: Send + Sync + 'static {
    /// Performs the handshake. Dropping the future gives the connection up.
    fn accept(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> Pin<Box<dyn Future<Output = io::Result<Stream>> + Send + '_>>;
}

impl Stream {
    pub(crate) fn split(self) -> (Reading, Writing) {
        match self {
            Self::Plain(stream) => {
                let (read, write) = stream.into_split();
                (Reading::Plain(read), Writing::Plain(write))
            }
            Self::Boxed(stream) => {
                let (read, write) = tokio::io::split(stream);
                (Reading::Boxed(read), Writing::Boxed(write))
            }
        }
    }
}

/// The half that a connection's read task owns.
pub(crate) enum Reading {
    Plain(OwnedReadHalf),
    Boxed(ReadHalf<Box<dyn Transport>>),
}

impl Reading {
    /// Reads into the free space of `buffer`, which must not be full. Zero bytes mean the end of the stream.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut BytesMut) -> Poll<io::Result<usize>> {
        debug_assert!(buffer.capacity() > buffer.len());
        match self {
            // `read_buf` keeps no state between polls, so it can be made anew for each.
            Self::Plain(half) => pin!(half.read_buf(buffer)).poll(cx),
            Self::Boxed(half) => pin!(half.read_buf(buffer)).poll(cx),
        }
    }

    /// Whether there is something to read, as far as that can be told without a buffer.
    pub(crate) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(half) => half.as_ref().poll_read_ready(cx),
            Self::Boxed(_) => Poll::Ready(Ok(())),
        }
    }
}

/// The half that a connection's write task owns. Dropping it closes the sending direction.
pub(crate) enum Writing {
    Plain(OwnedWriteHalf),
    Boxed(WriteHalf<Box<dyn Transport>>),
}

impl Writing {
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(half) => Pin::new(half).poll_write_vectored(cx, slices),
            Self::Boxed(half) => Pin::new(half).poll_write_vectored(cx, slices),
        }
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(half) => Pin::new(half).poll_flush(cx),
            Self::Boxed(half) => Pin::new(half).poll_flush(cx),
        }
    }

    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(half) => Pin::new(half).poll_shutdown(cx),
            Self::Boxed(half) => Pin::new(half).poll_shutdown(cx),
        }
    }
}
