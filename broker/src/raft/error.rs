//! Why a proposal has no answer, and what that says about its fate.

use openraft::errors::{ClientWriteError, ForwardToLeader, LinearizableReadError, RaftError};
use raft_store::Member;

use super::type_config::TypeConfig;

/// Why a proposal has no result.
///
/// The two kinds must never be confused: a proposal that was not proposed may be tried again elsewhere, one with an
/// unknown outcome may still be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProposeError {
    /// It surely never entered the log.
    #[error("not proposed: {reason}")]
    NotProposed {
        /// Why.
        reason: String,
        /// Whom to ask instead, if known.
        leader: Option<(u64, Member)>,
    },
    /// It may be in the log, and may be applied later.
    #[error("outcome unknown: {reason}")]
    Unknown {
        /// Why.
        reason: String,
    },
    /// This replica has stopped before it took the proposal. It surely never entered the log.
    #[error("not proposed: replica has stopped")]
    Stopped,
}

impl ProposeError {
    /// Whether the proposal surely never entered the log.
    #[must_use]
    pub fn is_not_proposed(&self) -> bool {
        !matches!(self, Self::Unknown { .. })
    }

    pub(crate) fn not_proposed(reason: impl Into<String>) -> Self {
        Self::NotProposed { reason: reason.into(), leader: None }
    }

    pub(crate) fn unknown(reason: impl Into<String>) -> Self {
        Self::Unknown { reason: reason.into() }
    }
}

impl From<ForwardToLeader<TypeConfig>> for ProposeError {
    fn from(forward: ForwardToLeader<TypeConfig>) -> Self {
        Self::NotProposed { reason: forward.to_string(), leader: forward.leader_id.zip(forward.leader_node) }
    }
}

impl From<ClientWriteError<TypeConfig>> for ProposeError {
    fn from(error: ClientWriteError<TypeConfig>) -> Self {
        match error {
            ClientWriteError::ForwardToLeader(forward) => forward.into(),
            ClientWriteError::ChangeMembershipError(error) => Self::not_proposed(error.to_string()),
            ClientWriteError::PreconditionFailed(error) => Self::not_proposed(error.to_string()),
            // It was appended here; another leader may have kept it all the same.
            ClientWriteError::LogEntryDiscarded(error) => Self::unknown(error.to_string()),
        }
    }
}

impl From<RaftError<TypeConfig, ClientWriteError<TypeConfig>>> for ProposeError {
    fn from(error: RaftError<TypeConfig, ClientWriteError<TypeConfig>>) -> Self {
        match error {
            RaftError::APIError(error) => error.into(),
            RaftError::Fatal(error) => Self::unknown(error.to_string()),
        }
    }
}

/// This replica cannot vouch for the newest state just now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not ready: {reason}")]
pub struct NotReady {
    /// Why.
    pub reason: String,
    /// Who leads instead, if known.
    pub leader: Option<(u64, Member)>,
}

impl NotReady {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), leader: None }
    }
}

impl From<RaftError<TypeConfig, LinearizableReadError<TypeConfig>>> for NotReady {
    fn from(error: RaftError<TypeConfig, LinearizableReadError<TypeConfig>>) -> Self {
        match error {
            RaftError::APIError(LinearizableReadError::ForwardToLeader(forward)) => {
                Self { reason: forward.to_string(), leader: forward.leader_id.zip(forward.leader_node) }
            }
            error => Self::new(error.to_string()),
        }
    }
}

/// Why a call about membership or leadership failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// This replica does not lead.
    #[error("not the leader: {reason}")]
    NotLeader {
        /// Why.
        reason: String,
        /// Who leads, if known.
        leader: Option<(u64, Member)>,
    },
    /// It cannot be done as asked.
    #[error("refused: {0}")]
    Refused(String),
    /// It did not finish in time, and may still.
    #[error("not finished in time: {0}")]
    Timeout(String),
    /// The replica has stopped.
    #[error("replica has stopped: {0}")]
    Stopped(String),
}
