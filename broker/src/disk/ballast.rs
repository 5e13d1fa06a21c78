//! A file that is of no use until the disk is full: then an operator deletes it, and there is room to act in.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::DiskSpace;

/// Its name in the data directory.
pub(super) const NAME: &str = "ballast";

/// The ballast file cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make {}: {source}", path.display())]
pub struct BallastError {
    path: PathBuf,
    source: std::io::Error,
}

/// What became of the ballast file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ballast {
    /// It is there.
    Present,
    /// It is not wanted.
    Unwanted,
    /// There is too little room to take some away.
    NoRoom,
}

impl Ballast {
    /// Makes sure of a ballast file of `bytes` in `dir`, if so much can be spared: `keep_free_bytes` stay free.
    ///
    /// With 0 `bytes` it is removed. A file of another size is made anew.
    ///
    /// # Errors
    /// If the file system refuses. A full disk is no error: it is [`Ballast::NoRoom`].
    pub fn ensure(dir: &Path, bytes: u64, keep_free_bytes: u64) -> Result<Self, BallastError> {
        let path = dir.join(NAME);
        let failed = |source| BallastError { path: path.clone(), source };
        let found = std::fs::metadata(&path).ok().map(|found| found.len());
        if found == Some(bytes) && bytes > 0 {
            return Ok(Self::Present);
        }
        if found.is_some() {
            std::fs::remove_file(&path).map_err(failed)?;
        }
        if bytes == 0 {
            return Ok(Self::Unwanted);
        }
        let room = DiskSpace::of(dir).is_some_and(|space| space.free_bytes >= bytes.saturating_add(keep_free_bytes));
        if !room {
            return Ok(Self::NoRoom);
        }
        let file = File::create(&path).map_err(failed)?;
        let mode = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(&file, mode, 0, bytes) {
            Ok(()) => Ok(Self::Present),
            Err(error) => {
                drop(file);
                let _ = std::fs::remove_file(&path);
                // A file system that reserves nothing has no use for ballast.
                let refused = matches!(error, rustix::io::Errno::NOSPC | rustix::io::Errno::OPNOTSUPP);
                if refused { Ok(Self::NoRoom) } else { Err(failed(error.into())) }
            }
        }
    }
}
