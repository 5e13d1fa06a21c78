//! Starts and stops a name server.

use std::net::SocketAddr;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use remoting::Server;
use remoting::ServerHandle;
use tokio_util::task::AbortOnDropHandle;

use crate::Figures;
use crate::Options;
use crate::Result;
use crate::liveness;
use crate::processor::Processor;

/// A running name server. Dropping it ends it at once.
#[derive(Debug)]
pub struct NamesrvHandle {
    server: ServerHandle,
    processor: Arc<Processor>,
    scan: AbortOnDropHandle<()>,
}

/// Answers requests on `listener`, inside a tokio runtime.
///
/// # Errors
/// The listener cannot be used.
pub fn serve(listener: TcpListener, options: Options) -> Result<NamesrvHandle> {
    let settings = options.settings;
    let processor = Arc::new(Processor::new(settings.broker_silent_max));
    let server = Server::new(settings.remoting, processor.clone()).start(listener)?;
    processor.set_address(server.local_addr());
    let scan = AbortOnDropHandle::new(tokio::spawn(liveness::scan(Arc::clone(&processor), settings.scan_interval)));
    tracing::info!(address = %server.local_addr(), "name server is ready");
    Ok(NamesrvHandle { server, processor, scan })
}

impl NamesrvHandle {
    /// The address it listens on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// What it knows and has done.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.processor.figures(self.server.connections().len(), tokio::time::Instant::now().into_std())
    }

    /// Answers what is in flight, for at most `within`, and ends.
    pub async fn shutdown(self, within: Duration) {
        self.server.shutdown(within).await;
        drop(self.scan);
    }
}
