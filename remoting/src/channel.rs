//! The side that dials: one connection to one address, made when it is needed.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::FrameLimits;
use protocol::RemotingCommand;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::Connection;
use crate::Error;
use crate::Handler;
use crate::LogLimit;
use crate::Options;
use crate::Result;
use crate::Settings;
use crate::Stream;
use crate::connection::Side;

/// How a [`Channel`] behaves.
#[derive(Debug, Clone)]
pub struct ChannelOptions {
    /// A dial takes at most this long, or the time of the call that needs it.
    pub connect_timeout: Duration,
    /// Limits of the connection. Callers wait while its queue is full.
    pub connection: Options,
    /// The address of this machine to dial from; `None` leaves the choice to the system.
    pub local_address: Option<IpAddr>,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        let settings = Settings {
            frame: FrameLimits::ANSWERS,
            outbound_frames_max: 65_536,
            outbound_bytes_max: 64 << 20,
            ..Settings::default()
        };
        Self {
            connect_timeout: Duration::from_secs(3),
            connection: Options::new(settings).expect("the defaults pass their own check"),
            local_address: None,
        }
    }
}

/// A connection to one address that is dialled on demand and again after it was lost. Clones share it.
#[derive(Clone)]
pub struct Channel {
    inner: Arc<Inner>,
}

struct Inner {
    address: String,
    connect_timeout: Duration,
    local_address: Option<IpAddr>,
    options: Arc<Options>,
    handler: Arc<dyn Handler>,
    log: Arc<LogLimit>,
    current: Mutex<Option<Live>>,
    dialling: tokio::sync::Mutex<()>,
}

struct Live {
    connection: Connection,
    _expire: AbortOnDropHandle<()>,
}

impl Channel {
    /// A channel to `address` (`host:port`), not yet connected. `handler` gets what the server asks of us.
    pub fn new(address: impl Into<String>, options: ChannelOptions, handler: Arc<dyn Handler>) -> Self {
        let inner = Inner {
            address: address.into(),
            connect_timeout: options.connect_timeout,
            local_address: options.local_address,
            options: Arc::new(options.connection),
            handler,
            log: Arc::new(LogLimit::default()),
            current: Mutex::new(None),
            dialling: tokio::sync::Mutex::new(()),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Where it leads.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// The connection, if there is an open one.
    #[must_use]
    pub fn connected(&self) -> Option<Connection> {
        let current = self.inner.current.lock();
        current.as_ref().map(|live| &live.connection).filter(|connection| connection.is_open()).cloned()
    }

    /// The connection, dialled if there is no open one. Concurrent callers share a dial.
    ///
    /// # Errors
    /// [`Error::Connect`] or [`Error::ConnectTimeout`].
    pub async fn connect(&self, timeout: Duration) -> Result<Connection> {
        if let Some(connection) = self.connected() {
            return Ok(connection);
        }
        let timeout = timeout.min(self.inner.connect_timeout);
        let address = &self.inner.address;
        match tokio::time::timeout(timeout, self.dial()).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(source)) => Err(Error::Connect { address: address.clone(), source }),
            Err(_) => Err(Error::ConnectTimeout { address: address.clone(), after: timeout }),
        }
    }

    async fn dial(&self) -> std::io::Result<Connection> {
        let _one_at_a_time = self.inner.dialling.lock().await;
        if let Some(connection) = self.connected() {
            return Ok(connection);
        }
        let stream = match self.inner.local_address {
            None => TcpStream::connect(&self.inner.address).await?,
            Some(local) => connect_from(local, &self.inner.address).await?,
        };
        stream.set_nodelay(true)?;
        let connection = Connection::new(
            Side::Dialled,
            stream.peer_addr()?,
            stream.local_addr()?,
            Arc::clone(&self.inner.options),
            None,
            Arc::clone(&self.inner.log),
        );
        tokio::spawn(connection.clone().run(Stream::Plain(stream), Arc::clone(&self.inner.handler)));
        let expire = AbortOnDropHandle::new(tokio::spawn({
            let connection = connection.clone();
            async move { connection.expire_callbacks().await }
        }));
        *self.inner.current.lock() = Some(Live { connection: connection.clone(), _expire: expire });
        Ok(connection)
    }

    /// Sends `request` and waits for the answer, `timeout` in all. Connects first if need be.
    ///
    /// # Errors
    /// [`Error::not_sent`] tells whether the server can have seen the request.
    pub async fn call(&self, request: RemotingCommand, timeout: Duration) -> Result<RemotingCommand> {
        let started = Instant::now();
        let connection = self.connect(timeout).await?;
        match connection.call(request.clone(), timeout.saturating_sub(started.elapsed())).await {
            // The connection broke between being found and being used: nothing was sent.
            Err(Error::Closed { .. }) => {
                let connection = self.connect(timeout.saturating_sub(started.elapsed())).await?;
                connection.call(request, timeout.saturating_sub(started.elapsed())).await
            }
            result => result,
        }
    }

    /// Sends `request` on the open connection and calls `done` once, with the answer or why there is none.
    ///
    /// For many requests at a time this is cheaper than [`Self::call`]: there is no task and no timer for each. `done`
    /// runs on the task that reads the answer, or here, when nothing could be sent ([`Error::Closed`] without an open
    /// connection, [`Error::OutboundFull`]). It must not block, and may send again. A time-out may be 100 ms late.
    pub fn call_with(
        &self,
        request: RemotingCommand,
        timeout: Duration,
        done: impl FnOnce(Result<RemotingCommand>) + Send + 'static,
    ) {
        match self.connected() {
            Some(connection) => connection.call_with(request, timeout, Box::new(done)),
            None => done(Err(Error::Closed { peer: self.inner.address.clone() })),
        }
    }

    /// Queues `request` and wants no answer. Connects first if need be, and waits for room in the queue.
    ///
    /// # Errors
    /// Nothing was sent.
    pub async fn send_oneway(&self, request: RemotingCommand, timeout: Duration) -> Result<()> {
        let started = Instant::now();
        let connection = self.connect(timeout).await?;
        connection.wait_for_room(timeout.saturating_sub(started.elapsed())).await?;
        connection.send_oneway(request)
    }

    /// Writes what is queued, closes the connection, and returns when it is gone. The next use dials again.
    pub async fn close(&self, within: Duration) {
        let live = self.inner.current.lock().take();
        if let Some(live) = live {
            live.connection.drain();
            if tokio::time::timeout(within, live.connection.ended()).await.is_err() {
                live.connection.close();
            }
        }
    }
}

async fn connect_from(local: IpAddr, address: &str) -> std::io::Result<TcpStream> {
    let of_kind = |found: &SocketAddr| found.is_ipv4() == local.is_ipv4();
    let found = tokio::net::lookup_host(address).await?.find(of_kind);
    let address = found.ok_or(std::io::ErrorKind::AddrNotAvailable)?;
    let socket = if local.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.bind(SocketAddr::new(local, 0))?;
    socket.connect(address).await
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(live) = self.current.get_mut() {
            live.connection.close();
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("address", &self.inner.address).finish_non_exhaustive()
    }
}
