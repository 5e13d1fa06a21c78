//! A directory from which nothing but reading is possible.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::options::Preparation;
use crate::region::{Directory, Files, Listed, Region};

/// The directory.
#[derive(Debug)]
pub(super) struct ReadOnly {
    dir: Directory,
}

impl ReadOnly {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir: Directory::new(dir) }
    }
}

/// What a file takes on the disk.
pub(super) fn allocated_bytes(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |meta| meta.blocks() * 512)
}

fn refused(file: PathBuf) -> Error {
    Error::io("changing, though it was opened for reading,", file, io::ErrorKind::ReadOnlyFilesystem.into())
}

impl Files for ReadOnly {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path(name)
    }

    fn list(&self) -> Result<Vec<Listed>> {
        self.dir.list()
    }

    fn create(&self, name: &str, _: u64, _: &[u8], _: Preparation) -> Result<Arc<dyn Region>> {
        Err(refused(self.path(name)))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Region>> {
        let path = self.path(name);
        let file = File::open(&path).map_err(|e| Error::io("opening", &path, e))?;
        let bytes = file.metadata().map_err(|e| Error::io("looking at", &path, e))?.len();
        Ok(Arc::new(ReadOnlyFile { path, file, bytes }))
    }

    fn rename(&self, from: &str, _: &str) -> Result<()> {
        Err(refused(self.path(from)))
    }

    fn remove(&self, names: &[String]) -> Result<()> {
        names.first().map_or(Ok(()), |name| Err(refused(self.path(name))))
    }

    fn sync_names(&self) -> Result<()> {
        Err(refused(self.path("")))
    }

    fn write_note(&self, name: &str, _: &[u8]) -> Result<()> {
        Err(refused(self.path(name)))
    }

    fn read_note(&self, name: &str) -> Result<Vec<u8>> {
        self.dir.read_note(name)
    }

    fn keep_aside(&self, name: &str, _: &[u8]) -> Result<()> {
        Err(refused(self.path(name)))
    }
}

#[derive(Debug)]
struct ReadOnlyFile {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Region for ReadOnlyFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn zero(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    /// Nothing was written. A real sync would take the report of a failed write-back from the next start.
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    fn read_from_disk(&self, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut into = vec![0; bytes];
        self.file.read_exact_at(&mut into, offset).map(|()| into)
    }

    fn lend(&self, _: u64, _: u64, _: u64) -> io::Result<Option<Bytes>> {
        Ok(None)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok(Some(offset))
    }

    fn seal(&self) {}

    fn warm(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_warm(&self) -> bool {
        false
    }

    fn cool(&self) {}
}
