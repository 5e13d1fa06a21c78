//! The one error type of this crate.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::ids::{ClusterId, LogIndex, LogPosition};

/// What can go wrong with a store.
///
/// Four kinds are kept apart: a refusal at start names what was found and what to do;
/// [`Error::Io`], [`Error::NoSpace`] and [`Error::Damaged`] end one operation; [`Error::Purged`] and
/// [`Error::NotStored`] ask for what the log does not hold; [`Error::Latched`] and
/// [`Error::Closed`] end this store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option makes no sense by itself or together with another.
    #[error("store options: {0}")]
    Options(String),

    /// Another process, or another store in this one, holds the directory.
    #[error("{} is in use by another process: one directory serves one store at a time", dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
    },

    /// There is no store here, and none may be created.
    #[error(
        "{} holds no store: a voter that lost its log must not start empty; \
         check the path, start with --bootstrap if this group is new, or with --rejoin if its disk was lost", dir.display()
    )]
    NoStore {
        /// The directory.
        dir: PathBuf,
    },

    /// The file system does not promise that an allocated block can be written.
    #[error(
        "{} lies on {found}, where allocating a file reserves nothing, so that a full disk would kill the \
         process: use ext4 or xfs, or set storage.allow_unproven_fs = true", dir.display()
    )]
    UnprovenFileSystem {
        /// The directory.
        dir: PathBuf,
        /// The file system's name, or its number.
        found: String,
    },

    /// The store was written for another cluster.
    #[error(
        "{} belongs to cluster {found}, this node is configured for {expected}: correct the path or the cluster id",
        file.display()
    )]
    ForeignCluster {
        /// The file that says so.
        file: PathBuf,
        /// The cluster it names.
        found: ClusterId,
        /// The cluster configured.
        expected: ClusterId,
    },

    /// The store was written by another node.
    #[error("{} belongs to node {found}, this node is {expected}: correct the path or the node id", file.display())]
    ForeignNode {
        /// The file that says so.
        file: PathBuf,
        /// The node it names.
        found: u64,
        /// The node configured.
        expected: u64,
    },

    /// The store was written for another group.
    #[error(
        "{} holds the log of group {found}, expected is that of {expected}: put the directory back in its place",
        file.display()
    )]
    ForeignGroup {
        /// The file that says so.
        file: PathBuf,
        /// The group it names.
        found: String,
        /// The group configured.
        expected: String,
    },

    /// The file is of a format version this program does not know.
    #[error(
        "{} has format version {found}, this program reads version {expected}: use the program that wrote it, or newer",
        file.display()
    )]
    FormatVersion {
        /// The file.
        file: PathBuf,
        /// The version found.
        found: u16,
        /// The version known.
        expected: u16,
    },

    /// A file that no store writes.
    #[error("{} is not part of a store: move it away, or correct the path", file.display())]
    ForeignFile {
        /// The file.
        file: PathBuf,
    },

    /// A file is longer or shorter than it was created.
    #[error(
        "{} has {found} bytes, expected {expected}: it was cut or extended from outside, or segment_bytes changed; \
         restore it or replace this replica", file.display()
    )]
    WrongSize {
        /// The file.
        file: PathBuf,
        /// Its length.
        found: u64,
        /// The length it was created with.
        expected: u64,
    },

    /// A segment is missing.
    #[error(
        "{}: no segment starts at {expected}, the next one starts at {found}: restore the missing file or replace \
         this replica", dir.display()
    )]
    Gap {
        /// The directory.
        dir: PathBuf,
        /// Where a segment should start.
        expected: LogPosition,
        /// Where the next one starts.
        found: LogPosition,
    },

    /// The process may not use a file.
    #[error(
        "no permission for {}: {owner}, and this process runs as user {user}: give it to that user, or start as the owner",
        file.display()
    )]
    NoPermission {
        /// The file.
        file: PathBuf,
        /// Whose it is, in words.
        owner: String,
        /// The number of the user this process runs as, or a question mark.
        user: String,
    },

    /// A small file can be read in neither of its two slots.
    #[error("{}: neither slot can be read ({found}): {consequence}", file.display())]
    UnreadableSlots {
        /// The file.
        file: PathBuf,
        /// What was found.
        found: String,
        /// Why this stops the store, and the way out.
        consequence: &'static str,
    },

    /// Recovery found damage that it must not cut, and there is nobody to repair it from yet.
    #[error(
        "{}: damaged from {from} to {to} ({found}): {consequence}", file.display()
    )]
    Unrecoverable {
        /// The file.
        file: PathBuf,
        /// First damaged position.
        from: LogPosition,
        /// End of the damage, as far as it is known.
        to: LogPosition,
        /// What was found.
        found: String,
        /// Why it is not cut, and the way out.
        consequence: &'static str,
        /// Whether peers may have what is damaged.
        repairable: bool,
    },

    /// A damaged range could not be fetched from any other member.
    #[error("{}: damaged from {from} to {to}, and not to be had from the others: {answers}", file.display())]
    NotRepaired {
        /// The damaged file.
        file: PathBuf,
        /// Start of the range.
        from: LogPosition,
        /// Its end.
        to: LogPosition,
        /// What each of them said.
        answers: String,
        /// Whether all of them have answered: there is no good copy.
        everywhere: bool,
        /// Whether some had records there that do not lead to the one behind the range.
        unfit: bool,
        /// Whether all have answered, and some have dropped the range as too old: it may be dropped here as well.
        purged: bool,
    },

    /// Stored bytes fail their checks.
    #[error("{}: damaged record at {position}: expected {expected}, found {found}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The position of the record.
        position: LogPosition,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },

    /// A body has no valid byte form.
    #[error("entry body: {what}")]
    Body {
        /// What is wrong with it.
        what: &'static str,
    },

    /// The payload is larger than a record may be.
    #[error("entry {index} has {found} bytes, at most {limit} fit a record")]
    TooLarge {
        /// The entry.
        index: LogIndex,
        /// Its payload's size.
        found: u64,
        /// The largest payload.
        limit: u64,
    },

    /// The entry has been purged.
    #[error("entry {index} has been purged")]
    Purged {
        /// The entry.
        index: LogIndex,
    },

    /// The log does not hold these bytes.
    #[error("position {position} ({bytes} bytes) is not stored")]
    NotStored {
        /// First position asked for.
        position: LogPosition,
        /// How many bytes were asked for.
        bytes: u64,
    },

    /// The disk is full.
    #[error("no space left for {}", file.display())]
    NoSpace {
        /// The file that could not be allocated.
        file: PathBuf,
    },

    /// The operating system refused.
    #[error("{doing} {}", file.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The file.
        file: PathBuf,
        /// The refusal.
        source: io::Error,
    },

    /// An earlier write or sync failed. Nothing is acknowledged any more; the process must restart.
    #[error("the log has latched after a failed write: {reason}")]
    Latched {
        /// The first failure.
        reason: String,
    },

    /// The store has been closed.
    #[error("the log is closed")]
    Closed,
}

/// The result of a store operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the bytes of this one store are damaged, or files of it gone. A process that serves several stores goes on
    /// with the others; everything else that a start refuses is for whoever configures the process.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. }
            | Self::Unrecoverable { .. }
            | Self::NotRepaired { .. }
            | Self::UnreadableSlots { .. }
            | Self::Gap { .. } => true,
            Self::WrongSize { found, expected, .. } => found < expected,
            _ => false,
        }
    }

    pub(crate) fn io(doing: &'static str, file: impl Into<PathBuf>, source: io::Error) -> Self {
        let file = file.into();
        match source.kind() {
            io::ErrorKind::PermissionDenied => {
                // The kernel says whose a file is even to those who may not open it, if they may look into its directory.
                let owner = std::fs::metadata(&file).map(|found| found.uid());
                let owner = owner
                    .map_or_else(|_| "its directory is closed".to_owned(), |uid| format!("it belongs to user {uid}"));
                let user =
                    std::fs::metadata("/proc/self").map_or_else(|_| "?".to_owned(), |this| this.uid().to_string());
                Self::NoPermission { file, owner, user }
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace { file },
            _ => Self::Io { doing, file, source },
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Io { source, .. } => source.kind(),
            Error::NoSpace { .. } => io::ErrorKind::StorageFull,
            Error::NoPermission { .. } => io::ErrorKind::PermissionDenied,
            Error::Damaged { .. } | Error::Unrecoverable { .. } | Error::NotRepaired { .. } => {
                io::ErrorKind::InvalidData
            }
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
