//! The types Raft is configured with. Nothing outside this module, the log storage and the state-machine adapter names
//! openraft.

use bytes::Bytes;
use openraft::raft::responder::Responder;
use raft_store::{Body, LogEntry, Member, Payload};

use crate::state_machine::ApplyReply;

/// The types of a broker group's Raft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TypeConfig {}

impl openraft::RaftTypeConfig for TypeConfig {
    type D = Payload;
    type R = ApplyReply;
    type NodeId = u64;
    type Node = Member;
    type Term = u64;
    // One leader a term, so a log id is a term and an index.
    type LeaderId = openraft::vote::leader_id_std::LeaderId<u64, u64>;
    type Vote = openraft::Vote<Self::LeaderId>;
    type Payload = Body;
    type Entry = LogEntry;
    type AsyncRuntime = openraft_rt_tokio::TokioRuntime;
    type Responder<T>
        = Done<T>
    where
        T: Send + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: Send + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// The body of a snapshot: the state machine's checkpoint, a few megabytes of metadata. The messages follow as log
/// entries.
pub type SnapshotData = Bytes;

/// openraft's log id here.
pub type RaftLogId = openraft::alias::LogIdOf<TypeConfig>;
/// openraft's vote here.
pub type RaftVote = openraft::alias::VoteOf<TypeConfig>;

/// Gets the result of one write, called where the entry is applied: no task and no channel lies between.
///
/// Dropped without a result, it reports `None`: the outcome is unknown.
pub struct Done<T: Send + 'static>(Option<Box<dyn FnOnce(Option<T>) + Send>>);

impl<T: Send + 'static> Done<T> {
    /// Calls `done` once.
    pub fn new(done: impl FnOnce(Option<T>) + Send + 'static) -> Self {
        Self(Some(Box::new(done)))
    }
}

impl<T: Send + 'static> Responder<TypeConfig, T> for Done<T> {
    fn on_complete(mut self, result: T) {
        if let Some(done) = self.0.take() {
            done(Some(result));
        }
    }
}

impl<T: Send + 'static> Drop for Done<T> {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(None);
        }
    }
}
