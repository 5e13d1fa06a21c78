//! What can go wrong between two nodes.

use std::io;

/// A frame that is not one of ours, or is damaged. The connection it came on is closed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("frame of {bytes} bytes exceeds the limit of {bytes_max}")]
    TooLarge { bytes: usize, bytes_max: usize },
    #[error("head of {head} bytes does not fit a frame of {total}")]
    HeadLength { head: usize, total: usize },
    #[error("frame ends early")]
    Short,
    #[error("checksum of the {0} does not match")]
    Checksum(&'static str),
    #[error("version {0} is unknown")]
    Version(u8),
    #[error("kind {0} is unknown")]
    Kind(u8),
    #[error("field `{0}` is missing or out of range")]
    Field(&'static str),
}

/// Why a connection to a peer could not be made or has ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The peer's port answered with a reset: no process listens there.
    #[error("connection refused by {address}")]
    ConnectionRefused {
        /// The address that was dialled.
        address: String,
    },
    /// The operating system could not connect, read or write.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The peer did not answer in time.
    #[error("no answer in time while {0}")]
    Timeout(&'static str),
    /// The peer turned this node away in the handshake.
    #[error("peer refused the handshake: {0}")]
    Refused(String),
    /// The peer is not who it should be, or speaks a damaged or unknown format.
    #[error("peer broke the protocol: {0}")]
    Protocol(String),
    /// The peer closed the connection.
    #[error("connection closed by the peer")]
    Closed,
    /// This node's hub is shut down, or does not know the group or the member.
    #[error("{0}")]
    Unavailable(String),
}

impl From<FrameError> for PeerError {
    fn from(error: FrameError) -> Self {
        Self::Protocol(error.to_string())
    }
}

/// Why a forwarded request has no answer, and what that says about its fate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// The request surely did not reach a handler: it may be sent again.
    #[error("not forwarded: {reason}")]
    NotSent {
        /// Why.
        reason: String,
    },
    /// The request may have been received and may still take effect.
    #[error("outcome unknown: {reason}")]
    Unknown {
        /// Why.
        reason: String,
    },
}

impl ForwardError {
    /// Whether the request surely had no effect.
    #[must_use]
    pub fn is_not_sent(&self) -> bool {
        matches!(self, Self::NotSent { .. })
    }
}
