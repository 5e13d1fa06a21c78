//! The one error of this crate.

use std::io;
use std::time::Duration;

use protocol::DecodeError;

/// What can go wrong on a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address could not be dialled. Nothing was sent.
    #[error("connect to {address}")]
    Connect {
        /// Who was dialled.
        address: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The address did not answer a dial in time. Nothing was sent.
    #[error("connect to {address}: no answer within {after:?}")]
    ConnectTimeout {
        /// Who was dialled.
        address: String,
        /// How long it was tried.
        after: Duration,
    },
    /// The connection was closed before the frame was queued. Nothing was sent.
    #[error("connection to {peer} is closed")]
    Closed {
        /// The other end.
        peer: String,
    },
    /// The connection was closed while an answer was awaited: whether the request had an effect is unknown.
    #[error("connection to {peer} was closed before the answer came")]
    Lost {
        /// The other end.
        peer: String,
    },
    /// No answer came in time: whether the request had an effect is unknown.
    #[error("no answer from {peer} within {after:?}")]
    Timeout {
        /// The other end.
        peer: String,
        /// How long it was awaited.
        after: Duration,
    },
    /// Too much is queued for this peer. Nothing was sent.
    #[error("outbound queue to {peer} is full")]
    OutboundFull {
        /// The other end.
        peer: String,
    },
    /// The peer sent bytes that are no frame.
    #[error("malformed frame")]
    Malformed(#[from] DecodeError),
    /// A read, a write or a socket option failed.
    #[error("{doing}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A limit makes no sense.
    #[error("option {name}: {reason}")]
    Option {
        /// The field of [`Settings`](crate::Settings).
        name: &'static str,
        /// What is wrong with its value.
        reason: &'static str,
    },
}

impl Error {
    /// Whether it is certain that the peer never saw the request.
    #[must_use]
    pub fn not_sent(&self) -> bool {
        matches!(
            self,
            Self::Connect { .. } | Self::ConnectTimeout { .. } | Self::Closed { .. } | Self::OutboundFull { .. }
        )
    }
}

/// The result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;
