//! What a group's Raft replica offers to its peers.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;

use super::error::PeerError;
use super::frame::{Envelope, Frame};
use super::handshake::{LogMark, VoteMark};
use super::stream::PeerStream;

/// Fields and tail of an answer.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) fields: BytesMut,
    pub(crate) tail: Vec<Bytes>,
}

/// The Raft replica behind a group, as the peer port sees it: frames in, frames out.
pub(crate) trait GroupService: Send + Sync + 'static {
    /// What the handshake tells about the replica.
    fn marks(&self) -> (Option<LogMark>, Option<VoteMark>);

    /// Serves one call. The error is told to the peer.
    fn call(self: Arc<Self>, frame: Frame) -> BoxFuture<'static, Result<Answer, String>>;

    /// Does the next step of the return of `node`, whose identity was retired, and says how far it is. The error is told
    /// to the node.
    fn replace(self: Arc<Self>, node: String, frame: Frame) -> BoxFuture<'static, Result<Answer, String>>;

    /// Serves an append stream until it ends. `envelope` is the one of the answers.
    fn serve_append(self: Arc<Self>, stream: PeerStream, envelope: Envelope) -> BoxFuture<'static, PeerError>;

    /// The process behind `node` is proved gone, or has been replaced by a new one.
    fn peer_gone(self: Arc<Self>, node: &str);

    /// A connection to `node` stands again.
    fn peer_back(self: Arc<Self>, node: &str);
}
