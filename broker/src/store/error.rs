//! What can go wrong with derived files and checkpoints.

use std::io;
use std::path::PathBuf;

/// An error of the store behind the log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// The refusal.
        source: io::Error,
    },
    /// A derived file contradicts the log or itself. It is rebuilt at the next start.
    #[error("derived file {}: {what}", path.display())]
    Damaged {
        /// The file or its directory.
        path: PathBuf,
        /// What was expected and found.
        what: String,
    },
    /// A checkpoint cannot be used.
    #[error("checkpoint {}: {what}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// The entry it is of, if it is a checkpoint itself and not the name of one.
        index: Option<u64>,
        /// What is wrong with it.
        what: String,
    },
    /// A checkpoint that somebody else wrote: another cluster, or a newer program.
    #[error("checkpoint {}: {what}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Who wrote it, and what to do.
        what: String,
    },
    /// The log refused a read.
    #[error("reading the log: {0}")]
    Log(#[from] raft_store::Error),
    /// An applied entry that should be in the log is not.
    #[error("no record at log position {position}")]
    NoRecord {
        /// The position.
        position: u64,
    },
    /// Reput has ended, by order or by an error reported before.
    #[error("the store is stopped")]
    Stopped,
}

/// A result of the store behind the log.
pub type Result<T, E = Error> = std::result::Result<T, E>;
