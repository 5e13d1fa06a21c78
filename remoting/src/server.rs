//! Accepts connections within limits, ends those that are too slow, drains all of them on shutdown.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::Domain;
use socket2::Protocol;
use socket2::Socket;
use socket2::Type;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Acceptor;
use crate::Admission;
use crate::Connection;
use crate::ConnectionId;
use crate::Error;
use crate::Handler;
use crate::LogLimit;
use crate::Options;
use crate::Result;
use crate::Stream;
use crate::connection::Side;

/// Connections that the kernel completes before they are accepted. They also wait here while no process listens
/// on an inherited socket.
const BACKLOG: i32 = 1_024;

/// How long the listening socket of a process that has ended may still be there: what it had open is closed a little after
/// its death.
const RELEASE_TIME: Duration = Duration::from_secs(1);
const RELEASE_POLL: Duration = Duration::from_millis(1);

/// A listening socket at `address` that a restarted process can bind again at once. Waits up to a second, without giving
/// the thread away, for one that is still there.
///
/// # Errors
/// [`Error::Io`] when the address cannot be bound.
pub fn bind(address: SocketAddr) -> Result<std::net::TcpListener> {
    let bind = || -> io::Result<std::net::TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    let asked = Instant::now();
    loop {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && asked.elapsed() < RELEASE_TIME => {
                std::thread::sleep(RELEASE_POLL);
            }
            bound => return bound.map_err(|source| Error::Io { doing: "bind a listening socket", source }),
        }
    }
}

/// A server that is not started yet.
pub struct Server {
    options: Arc<Options>,
    handler: Arc<dyn Handler>,
    admission: Option<Arc<Admission>>,
    acceptor: Option<Arc<dyn Acceptor>>,
}

/// A running server. Dropping it closes everything at once; [`Self::shutdown`] drains.
#[derive(Debug)]
pub struct ServerHandle {
    local: SocketAddr,
    running: Arc<Running>,
    tasks: TaskTracker,
}

#[derive(Debug)]
struct Running {
    connections: Mutex<HashMap<ConnectionId, Connection>>,
    admission: Arc<Admission>,
    log: Arc<LogLimit>,
    /// No new connections.
    stop: CancellationToken,
}

impl Server {
    /// A server that hands requests to `handler`.
    pub fn new(options: Options, handler: Arc<dyn Handler>) -> Self {
        Self { options: Arc::new(options), handler, admission: None, acceptor: None }
    }

    /// Shares the limits of all connections with other servers of the process.
    #[must_use]
    pub fn with_admission(mut self, admission: Arc<Admission>) -> Self {
        self.admission = Some(admission);
        self
    }

    /// Wraps accepted streams, such as in TLS.
    #[must_use]
    pub fn with_acceptor(mut self, acceptor: Arc<dyn Acceptor>) -> Self {
        self.acceptor = Some(acceptor);
        self
    }

    /// Starts to accept on `listener`, inside a tokio runtime.
    ///
    /// # Errors
    /// [`Error::Io`] when the socket cannot be used.
    pub fn start(self, listener: std::net::TcpListener) -> Result<ServerHandle> {
        let failed = |source| Error::Io { doing: "listen", source };
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        let admission = self.admission.clone().unwrap_or_else(|| Arc::new(Admission::new(&self.options)));
        let running = Arc::new(Running {
            connections: Mutex::new(HashMap::new()),
            admission,
            log: Arc::new(LogLimit::default()),
            stop: CancellationToken::new(),
        });
        let tasks = TaskTracker::new();
        tasks.spawn(sweep(Arc::clone(&running), self.options.sweep_interval()));
        tasks.spawn(accept(self, listener, Arc::clone(&running), tasks.clone()));
        Ok(ServerHandle { local, running, tasks })
    }
}

impl ServerHandle {
    /// The address it listens on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The connections that are open now.
    #[must_use]
    pub fn connections(&self) -> Vec<Connection> {
        self.running.connections.lock().values().cloned().collect()
    }

    /// Stops to accept and to read, answers what is in flight, closes every connection.
    ///
    /// On return no task of the server is left. Requests not answered within `drain_within` never are.
    pub async fn shutdown(self, drain_within: Duration) {
        self.running.stop.cancel();
        self.tasks.close();
        let drained = async {
            // A connection that was being accepted may appear after the first look.
            loop {
                for connection in self.connections() {
                    connection.drain();
                }
                tokio::select! {
                    () = self.tasks.wait() => return,
                    () = tokio::time::sleep(Duration::from_millis(50)) => {}
                }
            }
        };
        if tokio::time::timeout(drain_within, drained).await.is_err() {
            for connection in self.connections() {
                tracing::debug!(peer = %connection.peer_addr(), in_flight = connection.in_flight(), "closing undrained");
                connection.close();
            }
            self.tasks.wait().await;
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.running.stop.cancel();
        for connection in self.connections() {
            connection.close();
        }
    }
}

async fn accept(server: Server, listener: TcpListener, running: Arc<Running>, tasks: TaskTracker) {
    loop {
        let accepted = tokio::select! {
            () = running.stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => admit(&server, stream, peer, &running, &tasks),
            Err(error) if is_about_one_connection(&error) => {}
            Err(error) => {
                if let Some(suppressed) = running.log.allows("accept", [0, 0, 0, 0].into()) {
                    tracing::warn!(%error, suppressed, "cannot accept connections");
                }
                running.shed_oldest_fresh();
                tokio::select! {
                    () = running.stop.cancelled() => return,
                    () = tokio::time::sleep(server.options.settings.accept_pause) => {}
                }
            }
        }
    }
}

/// Errors of `accept` that say nothing about the next connection.
fn is_about_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

fn admit(server: &Server, stream: TcpStream, peer: SocketAddr, running: &Arc<Running>, tasks: &TaskTracker) {
    if let Err(refused) = running.admission.enter(peer.ip(), Instant::now()) {
        if let Some(suppressed) = running.log.allows(refused.0, peer.ip()) {
            tracing::warn!(%peer, suppressed, "connection refused: {}", refused.0);
        }
        return;
    }
    let entered = Entered { running: Arc::clone(running), peer };
    let options = Arc::clone(&server.options);
    let handler = Arc::clone(&server.handler);
    let acceptor = server.acceptor.clone();
    tasks.spawn(async move {
        let running = Arc::clone(&entered.running);
        let connected = async {
            stream.set_nodelay(true)?;
            let local = stream.local_addr()?;
            let stream = match acceptor {
                None => Stream::Plain(stream),
                Some(acceptor) => {
                    let handshake = acceptor.accept(stream, peer);
                    tokio::select! {
                        stream = tokio::time::timeout(options.settings.handshake_within, handshake) => stream??,
                        () = running.stop.cancelled() => return Err(io::Error::from(io::ErrorKind::Interrupted)),
                    }
                }
            };
            Ok((stream, local))
        };
        let (stream, local) = match connected.await {
            Ok(connected) => connected,
            Err(error) => {
                if let Some(suppressed) = running.log.allows("handshake", peer.ip()) {
                    tracing::debug!(%peer, %error, suppressed, "connection failed before its first frame");
                }
                return;
            }
        };
        let admission = Some(Arc::clone(&running.admission));
        let log = Arc::clone(&running.log);
        let connection = Connection::new(Side::Accepted, peer, local, options, admission, log);
        let id = connection.id();
        running.connections.lock().insert(id, connection.clone());
        if running.stop.is_cancelled() {
            connection.drain();
        }
        connection.run(stream, handler).await;
        running.connections.lock().remove(&id);
        drop(entered);
    });
}

/// A connection counted by `Admission`.
struct Entered {
    running: Arc<Running>,
    peer: SocketAddr,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.running.admission.leave(self.peer.ip(), Instant::now());
    }
}

impl Running {
    /// Makes room when descriptors are short: the oldest connection that never sent a frame goes.
    fn shed_oldest_fresh(&self) {
        let connections = self.connections.lock();
        let oldest = connections.values().filter(|connection| connection.is_fresh()).min_by_key(|c| c.id());
        if let Some(connection) = oldest {
            connection.close();
        }
    }
}

async fn sweep(running: Arc<Running>, every: Duration) {
    loop {
        tokio::select! {
            () = running.stop.cancelled() => return,
            () = tokio::time::sleep(every) => {}
        }
        running.admission.sweep(Instant::now());
        let connections: Vec<_> = running.connections.lock().values().cloned().collect();
        for connection in connections {
            let Some(cause) = connection.overdue() else { continue };
            let peer = connection.peer_addr();
            if let Some(suppressed) = running.log.allows(cause, peer.ip()) {
                tracing::info!(%peer, suppressed, "closing connection: {cause}");
            }
            connection.close();
        }
    }
}
