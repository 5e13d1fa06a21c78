//! The one error of this crate.

use protocol::BodyError;
use protocol::FieldError;
use protocol::NameError;
use protocol::RemotingCommand;
use protocol::ResponseCode;
use protocol::message::PropertiesError;
use protocol::message::RecordError;

/// What can go wrong between us and a cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No address of a name server was given.
    #[error("no name server address is known")]
    NoNameServer,
    /// No name server answered; the last one failed like this.
    #[error("no name server answers")]
    NameServers(#[source] remoting::Error),
    /// The name servers know no broker with this topic.
    #[error("no route to topic {0}")]
    NoRoute(String),
    /// The route names no address for this broker.
    #[error("no address of broker {0} is known")]
    NoBroker(String),
    /// The topic has no queue that may be used so.
    #[error("topic {0} has no queue to use")]
    NoQueue(String),
    /// A request did not make it to a broker and back.
    #[error(transparent)]
    Transport(#[from] remoting::Error),
    /// A server refused a request.
    #[error("{by} answers {code:?}: {remark}")]
    Refused {
        /// The answer's code.
        code: ResponseCode,
        /// Its text.
        remark: String,
        /// The server's address.
        by: String,
    },
    /// Nothing worked within the time that was given. The last failure, if there was one.
    #[error("gave up after {attempts} attempts")]
    GaveUp {
        /// Attempts made.
        attempts: u32,
        /// Whether a broker may have stored the message although no attempt succeeded.
        may_be_stored: bool,
        /// How the last one failed.
        last: Option<Box<Error>>,
    },
    /// The message cannot be sent as it is.
    #[error("message: {0}")]
    Message(&'static str),
    /// A property cannot be written.
    #[error("message property is empty or holds a separator")]
    Property(#[from] PropertiesError),
    /// A topic or group name breaks the rules.
    #[error("name")]
    Name(#[from] NameError),
    /// An answer lacks a field.
    #[error("answer: {0}")]
    Field(#[from] FieldError),
    /// An answer's body cannot be read.
    #[error("answer: {0}")]
    Body(#[from] BodyError),
    /// A stored message cannot be read.
    #[error("stored message: {0}")]
    Record(#[from] RecordError),
    /// The compressed body of a message cannot be read, or would be larger than any body.
    #[error("message body cannot be decompressed: {0}")]
    Compression(&'static str),
    /// Consumed offsets could not be read or written.
    #[error("file of consumed offsets")]
    OffsetFile(#[source] std::io::Error),
    /// The client is shut down.
    #[error("the client is shut down")]
    Stopped,
}

impl Error {
    /// Whether it is certain that no broker stored anything.
    #[must_use]
    pub fn not_sent(&self) -> bool {
        match self {
            Self::Transport(error) => error.not_sent(),
            Self::Refused { code, remark, .. } => match *code {
                ResponseCode::SERVICE_NOT_AVAILABLE => remark.starts_with("not proposed"),
                ResponseCode::SYSTEM_ERROR => false,
                _ => true,
            },
            Self::GaveUp { may_be_stored, .. } => !may_be_stored,
            _ => true,
        }
    }

    /// The answer's code, if a server refused.
    #[must_use]
    pub fn code(&self) -> Option<ResponseCode> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::GaveUp { last: Some(last), .. } => last.code(),
            _ => None,
        }
    }

    pub(crate) fn refused(answer: &RemotingCommand, by: &str) -> Self {
        Self::Refused {
            code: answer.response_code(),
            remark: answer.remark.clone().unwrap_or_default(),
            by: by.to_owned(),
        }
    }
}

/// The result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;
