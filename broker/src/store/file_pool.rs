//! Open files of derived data, few at a time.
//!
//! Any number of queues may exist, but only so many descriptors. A file is opened when it is needed and closed when it
//! has been needed least recently of all; whoever is reading or writing it just then keeps it open until done.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

/// Names an open file: its owner, and which of the owner's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileKey {
    /// A number of its own for each queue and index.
    pub(crate) owner: u64,
    /// Number of the file among the owner's.
    pub(crate) file: u64,
}

/// A bounded set of open files.
#[derive(Debug)]
pub(crate) struct FilePool {
    open_max: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    files: HashMap<FileKey, (Arc<File>, u64)>,
    uses: u64,
    owners: u64,
}

impl FilePool {
    /// A pool of at most `open_max` files.
    pub(crate) fn new(open_max: usize) -> Self {
        assert!(open_max > 0, "a pool holds at least one file");
        Self { open_max, open: Mutex::new(Open::default()) }
    }

    /// A number no other owner has.
    pub(crate) fn new_owner(&self) -> u64 {
        let mut open = self.open.lock();
        open.owners += 1;
        open.owners
    }

    /// The file at `path`, if it exists.
    pub(crate) fn existing(
        &self,
        key: FileKey,
        path: &dyn Fn() -> std::path::PathBuf,
    ) -> io::Result<Option<Arc<File>>> {
        if let Some(file) = self.touch(key) {
            return Ok(Some(file));
        }
        match OpenOptions::new().read(true).write(true).open(path()) {
            Ok(file) => Ok(Some(self.put(key, file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The file at `path`, created together with its directory if need be. Says whether it was created.
    pub(crate) fn or_create(
        &self,
        key: FileKey,
        path: &dyn Fn() -> std::path::PathBuf,
    ) -> io::Result<(Arc<File>, bool)> {
        if let Some(file) = self.existing(key, path)? {
            return Ok((file, false));
        }
        let path = path();
        std::fs::create_dir_all(path.parent().unwrap_or_else(|| Path::new(".")))?;
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        Ok((self.put(key, file), true))
    }

    /// Closes one file.
    pub(crate) fn forget_file(&self, key: FileKey) {
        self.open.lock().files.remove(&key);
    }

    /// Closes all files of an owner.
    pub(crate) fn forget(&self, owner: u64) {
        self.open.lock().files.retain(|key, _| key.owner != owner);
    }

    fn touch(&self, key: FileKey) -> Option<Arc<File>> {
        let open = &mut *self.open.lock();
        open.uses += 1;
        let (file, used) = open.files.get_mut(&key)?;
        *used = open.uses;
        Some(Arc::clone(file))
    }

    fn put(&self, key: FileKey, file: File) -> Arc<File> {
        let file = Arc::new(file);
        let open = &mut *self.open.lock();
        open.uses += 1;
        if open.files.len() >= self.open_max && !open.files.contains_key(&key) {
            let oldest = open.files.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| *key);
            oldest.map(|key| open.files.remove(&key));
        }
        open.files.insert(key, (Arc::clone(&file), open.uses));
        file
    }

    #[cfg(test)]
    pub(crate) fn open_count(&self) -> usize {
        self.open.lock().files.len()
    }
}
