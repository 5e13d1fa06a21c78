//! Changes to directories that survive a power cut.
//!
//! Creating, renaming or removing a file is durable only once its directory has been synced. All
//! code that changes a directory it relies on goes through here.
//!
//! The order of the steps is written once, over `Steps`, so that tests can put a disk behind it that
//! forgets what was not synced.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The ending of files that are not yet complete. What is found under it at start is left over.
pub const TEMPORARY: &str = "tmp";

/// The single steps of a change. None of them is durable by itself.
pub(crate) trait Steps {
    /// On return the contents and the size of the file are on disk, but perhaps not its name.
    fn sync_file(&self, path: &Path) -> io::Result<()>;

    /// Gives a file another name in the same directory, and takes that name from the file that has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Takes a file's name away.
    fn unlink(&self, path: &Path) -> io::Result<()>;

    /// On return all names in `dir` are on disk as they are.
    fn sync_directory(&self, dir: &Path) -> io::Result<()>;
}

/// The operating system's own.
pub(crate) struct System;

impl Steps for System {
    fn sync_file(&self, path: &Path) -> io::Result<()> {
        File::options().write(true).open(path)?.sync_all()
    }

    #[expect(clippy::disallowed_methods, reason = "its only callers are those that sync the directory as well")]
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_directory(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }
}

/// Puts a file at `path` that `fill` writes, under the name it is given. That name is gone if anything fails.
pub(crate) fn put(steps: &impl Steps, path: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let temporary = temporary_name(path);
    let sync = || steps.sync_file(&temporary).map_err(|e| Error::io("syncing", &temporary, e));
    let made = fill(&temporary).and_then(|()| sync()).and_then(|()| rename_by(steps, &temporary, path));
    if made.is_err() {
        // What is left over is removed at the next start at the latest.
        let _ = steps.unlink(&temporary);
    }
    made
}

/// See [`rename`].
pub(crate) fn rename_by(steps: &impl Steps, from: &Path, to: &Path) -> Result<()> {
    steps.rename(from, to).map_err(|e| Error::io("renaming", from, e))?;
    sync_directory_of(steps, to)
}

/// See [`remove_files`].
pub(crate) fn remove_by<'a>(steps: &impl Steps, paths: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    let mut last = None;
    for path in paths {
        match steps.unlink(path) {
            Ok(()) => last = Some(path),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io("removing", path, e)),
        }
    }
    last.map_or(Ok(()), |path| sync_directory_of(steps, path))
}

/// Replaces the file at `path` by one that holds `contents`.
///
/// On return a crash at any later time leaves the new contents; a crash before that leaves either
/// the old file or the new one, whole.
///
/// # Errors
/// Whatever the operating system refuses. The old file is then still there.
pub fn write_file(path: &Path, contents: &[u8]) -> Result<()> {
    put(&System, path, |temporary| {
        let mut file = File::create(temporary).map_err(|e| Error::io("creating", temporary, e))?;
        file.write_all(contents).map_err(|e| Error::io("writing", temporary, e))
    })
}

/// Gives the synced file at `from` the name `to` in the same directory.
///
/// # Errors
/// Whatever the operating system refuses.
pub fn rename(from: &Path, to: &Path) -> Result<()> {
    rename_by(&System, from, to)
}

/// Removes files, then syncs their directory. A crash before the return leaves any of them.
///
/// # Errors
/// Whatever the operating system refuses; a file that is not there is no error.
pub fn remove_files<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    remove_by(&System, paths)
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
        Ok(()) => sync_directory_of(&System, path),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(Error::io("creating", path, e)),
    }
}

/// Makes the entries of `dir` durable.
///
/// # Errors
/// Whatever the operating system refuses.
pub fn sync_directory(dir: &Path) -> Result<()> {
    System.sync_directory(dir).map_err(|e| Error::io("syncing", dir, e))
}

fn sync_directory_of(steps: &impl Steps, path: &Path) -> Result<()> {
    let dir = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    steps.sync_directory(dir).map_err(|e| Error::io("syncing", dir, e))
}

/// The name a file has until it is complete.
fn temporary_name(path: &Path) -> PathBuf {
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

    /// The system, but for one step that fails.
    struct Failing(&'static str);

    impl Failing {
        fn or(&self, step: &str, done: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
            if self.0 == step { Err(io::Error::other("on demand")) } else { done() }
        }
    }

    impl Steps for Failing {
        fn sync_file(&self, path: &Path) -> io::Result<()> {
            self.or("sync", || System.sync_file(path))
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.or("rename", || System.rename(from, to))
        }

        fn unlink(&self, path: &Path) -> io::Result<()> {
            self.or("unlink", || System.unlink(path))
        }

        fn sync_directory(&self, dir: &Path) -> io::Result<()> {
            self.or("directory", || System.sync_directory(dir))
        }
    }

    #[test]
    fn whichever_step_fails_nothing_half_made_is_left_and_the_next_try_works() {
        for step in ["fill", "sync", "rename", "directory"] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("segment");
            let fill = |path: &Path| {
                fs::write(path, "half").map_err(|e| Error::io("writing", path, e))?;
                if step == "fill" {
                    return Err(Error::NoSpace { file: path.to_owned() });
                }
                fs::write(path, "whole").map_err(|e| Error::io("writing", path, e))
            };
            assert!(put(&Failing(step), &path, fill).is_err(), "{step}");
            let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            match step {
                // It is there, and may be gone after a power cut: whoever made it has been told.
                "directory" => assert_eq!(fs::read(&path).unwrap(), b"whole"),
                _ => assert!(names.is_empty(), "{step}: {names:?}"),
            }
            put(&System, &path, |path| fs::write(path, "again").map_err(|e| Error::io("writing", path, e))).unwrap();
            assert_eq!((fs::read(&path).unwrap(), fs::read_dir(dir.path()).unwrap().count()), (b"again".to_vec(), 1));
        }
    }
}
