//! The one error of this crate.

use std::net::SocketAddr;

/// Why a sidecar does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No name server was given.
    #[error("no name server is given; name at least one as HOST:PORT")]
    NoNameServer,
    /// The address cannot be listened on.
    #[error("listening on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: remoting::Error,
    },
    /// There is no room for ports of brokers above the first one.
    #[error(
        "the first port for brokers is {first}, which leaves room for {room}; choose one that leaves room for 1,000"
    )]
    BrokerPorts {
        /// The port asked for.
        first: u16,
        /// Ports from there on.
        room: u16,
    },
}

/// The result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;
