//! What a sidecar is told.

use std::net::SocketAddr;
use std::time::Duration;

/// How a sidecar behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// The cluster's name servers, each as `host:port`.
    pub name_servers: Vec<String>,
    /// Where the application asks for routes.
    pub listen: SocketAddr,
    /// Brokers get this port and those after it, in the order of their names. The same after a restart, so that
    /// clients find them again.
    pub first_broker_port: u16,
    /// How often name servers are asked who leads, while everybody answers.
    pub poll_interval: Duration,
    /// A replica that owes an answer and says nothing for so long is asked whether it lives.
    pub quiet_max: Duration,
    /// How long it may think about that, and how long a dial takes at most.
    pub probe_timeout: Duration,
}

impl Options {
    /// The defaults: brokers follow the port of the name server; a silent replica is left after 800 ms.
    #[must_use]
    pub fn new(name_servers: Vec<String>, listen: SocketAddr) -> Self {
        Self {
            name_servers,
            listen,
            first_broker_port: listen.port().saturating_add(1),
            poll_interval: Duration::from_secs(1),
            quiet_max: Duration::from_millis(300),
            probe_timeout: Duration::from_millis(400),
        }
    }
}
