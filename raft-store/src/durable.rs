//! Changes to directories that survive a power cut.
//!
//! Creating, renaming or removing a file is durable only once its directory has been synced. All
//! code that changes a directory it relies on goes through here.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The ending of files that are not yet complete. What is found under it at start is left over.
pub const TEMPORARY: &str = "tmp";

/// Replaces the file at `path` by one that holds `contents`.
///
/// On return a crash at any later time leaves the new contents; a crash before that leaves either
/// the old file or the new one, whole.
///
/// # Errors
/// Whatever the operating system refuses. The old file is then still there.
pub fn write_file(path: &Path, contents: &[u8]) -> Result<()> {
    let temporary = temporary_name(path);
    let mut file = File::create(&temporary).map_err(|e| Error::io("creating", &temporary, e))?;
    file.write_all(contents).map_err(|e| Error::io("writing", &temporary, e))?;
    file.sync_all().map_err(|e| Error::io("syncing", &temporary, e))?;
    rename(&temporary, path)
}

/// Gives the synced file at `from` the name `to` in the same directory.
///
/// # Errors
/// Whatever the operating system refuses.
#[expect(clippy::disallowed_methods, reason = "this is the place that syncs the directory as well")]
pub fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|e| Error::io("renaming", from, e))?;
    sync_directory_of(to)
}

/// Removes files in the order given, then syncs their directory.
///
/// # Errors
/// Whatever the operating system refuses; a file that is not there is no error.
pub fn remove_files<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    let mut last = None;
    for path in paths {
        match fs::remove_file(path) {
            Ok(()) => last = Some(path),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io("removing", path, e)),
        }
    }
    last.map_or(Ok(()), sync_directory_of)
}

/// Creates a directory and those above it.
///
/// # Errors
/// Whatever the operating system refuses.
pub fn create_directory(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent()
        && !parent.as_os_str().is_empty()
    {
        create_directory(parent)?;
    }
    match fs::create_dir(path) {
        Ok(()) => sync_directory_of(path),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(Error::io("creating", path, e)),
    }
}

/// Makes the entries of `dir` durable.
///
/// # Errors
/// Whatever the operating system refuses.
pub fn sync_directory(dir: &Path) -> Result<()> {
    let file = File::open(dir).map_err(|e| Error::io("opening", dir, e))?;
    file.sync_all().map_err(|e| Error::io("syncing", dir, e))
}

fn sync_directory_of(path: &Path) -> Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_directory(parent),
        _ => sync_directory(Path::new(".")),
    }
}

/// The name a file has until it is complete.
pub(crate) fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(TEMPORARY);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_file_replaces_the_old_one_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/file");
        create_directory(path.parent().unwrap()).unwrap();
        write_file(&path, b"one").unwrap();
        write_file(&path, b"two").unwrap();
        assert_eq!(b"two".as_slice(), fs::read(&path).unwrap());
        assert_eq!(1, fs::read_dir(path.parent().unwrap()).unwrap().count());
        remove_files([path.as_path(), path.as_path()]).unwrap();
        assert!(!path.exists());
    }
}
