//! How operations end, and the answers that follow.

use protocol::{FieldError, NameError, RemotingCommand, ResponseCode};

use crate::raft::ProposeError;

/// Why an operation has no success to report.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request is answered with this code and remark.
    Refused(ResponseCode, String),
    /// Nothing happened, and here is not where it can: the request goes to whoever leads.
    NotLeading(String),
    /// It may or may not have happened.
    Unknown(String),
    /// No answer is better than any: the client skips its round when it gets none.
    Silence,
}

impl From<ProposeError> for Failure {
    /// The reason alone: the answer says which kind of failure it is.
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::NotProposed { reason, .. } => Self::NotLeading(reason),
            ProposeError::Unknown { reason } => Self::Unknown(reason),
            ProposeError::Stopped => Self::NotLeading("this replica has stopped".to_owned()),
        }
    }
}

/// The answer of an operation, or why there is none.
pub(crate) type Outcome = Result<RemotingCommand, Failure>;

impl Failure {
    /// A refusal.
    pub(crate) fn refused(code: ResponseCode, remark: impl Into<String>) -> Self {
        Self::Refused(code, remark.into())
    }

    /// A refusal with the code that means "something is wrong".
    pub(crate) fn error(remark: impl Into<String>) -> Self {
        Self::Refused(ResponseCode::SYSTEM_ERROR, remark.into())
    }

    /// The topic does not exist, in the words clients know.
    pub(crate) fn no_topic(topic: &str) -> Self {
        Self::refused(
            ResponseCode::TOPIC_NOT_EXIST,
            format!(
                "topic[{topic}] not exist, apply first please!\n\
                 See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
            ),
        )
    }

    /// The subscription group does not exist.
    pub(crate) fn no_group(group: &str) -> Self {
        Self::refused(
            ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST,
            format!("subscription group [{group}] does not exist"),
        )
    }
}

impl From<FieldError> for Failure {
    fn from(error: FieldError) -> Self {
        match error {
            FieldError::Name { .. } => Self::refused(ResponseCode::INVALID_PARAMETER, error.to_string()),
            _ => Self::error(error.to_string()),
        }
    }
}

impl From<NameError> for Failure {
    fn from(error: NameError) -> Self {
        Self::refused(ResponseCode::INVALID_PARAMETER, error.to_string())
    }
}

impl From<protocol::BodyError> for Failure {
    fn from(error: protocol::BodyError) -> Self {
        Self::error(error.to_string())
    }
}

/// An answer with a code and a remark.
pub(crate) fn refusal(request: &RemotingCommand, code: ResponseCode, remark: impl Into<String>) -> RemotingCommand {
    RemotingCommand::response_to(request, code).with_remark(remark)
}

/// A plain success.
pub(crate) fn success(request: &RemotingCommand) -> RemotingCommand {
    RemotingCommand::response_to(request, ResponseCode::SUCCESS)
}

/// The answer to a request code that nobody here serves.
pub(crate) fn unsupported(request: &RemotingCommand) -> RemotingCommand {
    refusal(request, ResponseCode::REQUEST_CODE_NOT_SUPPORTED, format!(" request type {} not supported", request.code))
}

/// The answer when no replica took the request: it is safe to send it again.
pub(crate) fn not_proposed(request: &RemotingCommand, reason: &str) -> RemotingCommand {
    refusal(request, ResponseCode::SERVICE_NOT_AVAILABLE, format!("not proposed: {reason}"))
}

/// The answer when a replica may have taken the request.
pub(crate) fn unknown_outcome(request: &RemotingCommand, reason: &str) -> RemotingCommand {
    refusal(request, ResponseCode::SERVICE_NOT_AVAILABLE, format!("outcome unknown: {reason}"))
}
