//! The way to a node, which can be cut in one direction.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

/// What passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passes {
    All,
    /// Nothing reaches the node.
    OnlyAnswers,
    /// Nothing comes back from it.
    OnlyRequests,
}

/// Listens in place of a node and passes on what comes. Dropped, it refuses connections like a process that has ended.
pub(crate) struct Link {
    pub(crate) addr: SocketAddr,
    node: watch::Sender<SocketAddr>,
    passes: watch::Sender<Passes>,
    /// Ends the connections there are.
    connections: watch::Sender<CancellationToken>,
    _stop: DropGuard,
}

impl Link {
    /// A link to the node that listens at `node`.
    pub(crate) async fn start(node: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let node = watch::Sender::new(node);
        let passes = watch::Sender::new(Passes::All);
        let connections = watch::Sender::new(stop.child_token());
        let (passing, current, stopped) = (passes.subscribe(), connections.subscribe(), stop.clone());
        let target = node.subscribe();
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            let mut pumps = JoinSet::new();
            while let Ok((from, _)) = listener.accept().await {
                let cut = current.borrow().clone();
                let node = *target.borrow();
                pumps.spawn(cut.run_until_cancelled_owned(connect(from, node, passing.clone())));
            }
        }));
        Self { addr, node, passes, connections, _stop: stopped.drop_guard() }
    }

    /// New connections lead to `node` from now on.
    pub(crate) fn lead_to(&self, node: SocketAddr) {
        self.node.send_replace(node);
    }

    /// Lets only this pass from now on. What does not is lost.
    pub(crate) fn cut(&self, passes: Passes) {
        self.passes.send_replace(passes);
    }

    /// Lets everything pass again, on new connections.
    pub(crate) fn mend(&self) {
        self.passes.send_replace(Passes::All);
        self.connections.send_replace(CancellationToken::new()).cancel();
    }
}

async fn connect(from: TcpStream, node: SocketAddr, passes: watch::Receiver<Passes>) {
    let Ok(to) = TcpStream::connect(node).await else { return };
    for stream in [&from, &to] {
        stream.set_nodelay(true).unwrap();
    }
    let ((from_read, from_write), (to_read, to_write)) = (from.into_split(), to.into_split());
    tokio::select! {
        () = pump(from_read, to_write, passes.clone(), Passes::OnlyAnswers) => {}
        () = pump(to_read, from_write, passes, Passes::OnlyRequests) => {}
    }
}

/// Copies until either side ends, and loses what comes while the link is cut.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, passes: watch::Receiver<Passes>, lost_if: Passes) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if *passes.borrow() != lost_if && to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
