//! What the process tells its caller.
//!
//! | Code | Meaning |
//! | --- | --- |
//! | 0 | done |
//! | 1 | failed, the message says why |
//! | 2 | the command line is wrong |
//! | 3 | a configuration file is wrong |
//! | 4 | no name server or broker answered |
//! | 5 | what was asked for does not exist |
//! | 6 | `verify`: an acknowledged message is missing |
//! | 7 | `verify`: nothing is missing, but messages are out of order |
//! | 8 | `store check`: the directory is damaged |
//! | 74 | a broker's disk failed; its other groups were handed over |

use std::fmt;

/// An exit code other than 0, 1 and 2, to hang on an error with [`anyhow::Error::context`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitCode {
    BadConfig,
    Unreachable,
    NotFound,
    Lost,
    OutOfOrder,
    Damaged,
    StorageFailed,
}

impl ExitCode {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::BadConfig => 3,
            Self::Unreachable => 4,
            Self::NotFound => 5,
            Self::Lost => 6,
            Self::OutOfOrder => 7,
            Self::Damaged => 8,
            Self::StorageFailed => 74,
        }
    }

    /// The code that `error` carries anywhere in its chain; 1 otherwise.
    pub(crate) fn of(error: &anyhow::Error) -> u8 {
        error.downcast_ref::<Self>().map_or(1, |code| code.number())
    }
}

impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BadConfig => "the configuration was refused",
            Self::Unreachable => "the cluster cannot be reached",
            Self::NotFound => "not found",
            Self::Lost => "acknowledged messages are missing",
            Self::OutOfOrder => "messages are out of order",
            Self::Damaged => "the store is damaged",
            Self::StorageFailed => "storage failed",
        })
    }
}

impl std::error::Error for ExitCode {}
