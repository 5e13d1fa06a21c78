//! Checkpoint files: the state as of the last entry of each sealed segment.
//!
//! `checkpoints/{20 digits}` is named by the index of its entry. `current` names the one that is Raft's snapshot: eight
//! bytes index, four bytes CRC-32 of them. Every file is replaced whole and its directory synced, so a file that is
//! there is complete, and one that fails its checks has been damaged since.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use raft_store::durable;

use crate::state_machine::snapshot::{Image, SnapshotError};

use super::error::{Error, Result};

const CURRENT: &str = "current";

/// The checkpoints of one group.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    dir: PathBuf,
}

impl Checkpoints {
    /// The checkpoints in `dir`, which is created if need be.
    pub(crate) fn open(dir: PathBuf) -> Result<Self> {
        durable::create_directory(&dir)?;
        let this = Self { dir };
        let left_over = this.names()?.into_iter().filter(|name| name.ends_with(durable::TEMPORARY));
        let paths: Vec<PathBuf> = left_over.map(|name| this.dir.join(name)).collect();
        durable::remove_files(paths.iter().map(PathBuf::as_path))?;
        Ok(this)
    }

    /// The checkpoints in `dir`, which is left as it is.
    pub(crate) fn look(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// The indexes there is a file for, ascending.
    pub(crate) fn list(&self) -> Result<Vec<u64>> {
        let names = self.names()?;
        let mut all: Vec<u64> =
            names.iter().filter(|name| name.len() == 20).filter_map(|name| name.parse().ok()).collect();
        all.sort_unstable();
        Ok(all)
    }

    fn names(&self) -> Result<Vec<String>> {
        let items = fs::read_dir(&self.dir).map_err(|e| self.io("listing", &self.dir, e))?;
        let name = |item: io::Result<fs::DirEntry>| Ok(item?.file_name().to_string_lossy().into_owned());
        items.map(name).collect::<io::Result<_>>().map_err(|e| self.io("listing", &self.dir, e))
    }

    /// Writes the checkpoint of entry `index` and makes it durable.
    pub(crate) fn write(&self, index: u64, bytes: &[u8]) -> Result<()> {
        Ok(durable::write_file(&self.path(index), bytes)?)
    }

    /// Reads and checks the checkpoint of entry `index`.
    pub(crate) fn read(&self, index: u64) -> Result<(Image, Bytes)> {
        // One that is gone or cannot be read is replaced like one with wrong bytes.
        let bytes =
            fs::read(self.path(index)).map_err(|error| self.damaged(index, format!("it cannot be read: {error}")))?;
        let image = Image::decode(&bytes).map_err(|error| match error {
            SnapshotError::Version { .. } => {
                let what = format!("{error}: use the program that wrote it, or newer");
                Error::Foreign { path: self.path(index), what }
            }
            error => self.damaged(index, error.to_string()),
        })?;
        if image.applied.index != index {
            let what = format!("it is of entry {}", image.applied.index);
            return Err(self.damaged(index, what));
        }
        Ok((image, bytes.into()))
    }

    /// The first sound checkpoint of entry `index` or a later one, behind which the log goes on at `resume` or later.
    pub(crate) fn first_from(&self, index: u64, resume: u64) -> Result<Option<(Image, Bytes)>> {
        for candidate in self.list()?.into_iter().filter(|candidate| *candidate >= index) {
            match self.read(candidate) {
                Ok(found) if found.0.resume.position >= resume => return Ok(Some(found)),
                Ok(_) => {}
                Err(error) => tracing::error!(%error, "a peer is given another checkpoint"),
            }
        }
        Ok(None)
    }

    /// Puts a checkpoint that a peer has sent in the place of the current one, which is damaged or no longer of use.
    /// Those before it are removed.
    pub(crate) fn replace_current(&self, index: u64, bytes: &[u8]) -> Result<()> {
        self.write(index, bytes)?;
        self.name_current(index)?;
        self.remove(self.list()?.into_iter().filter(|older| *older < index))
    }

    /// Which checkpoint was Raft's snapshot, if the file that says so is damaged: the oldest that covers what was purged,
    /// since those before it are removed whenever another is chosen. Named again.
    pub(crate) fn find_current(&self, purged: u64) -> Result<Option<u64>> {
        let oldest = self.list()?.into_iter().find(|index| *index >= purged);
        if let Some(index) = oldest {
            self.name_current(index)?;
        }
        Ok(oldest)
    }

    /// Forgets the current snapshot: the log is whole from its first entry.
    pub(crate) fn forget_current(&self, index: Option<u64>) -> Result<()> {
        let paths = [Some(self.dir.join(CURRENT)), index.map(|index| self.path(index))];
        Ok(durable::remove_files(paths.iter().flatten().map(PathBuf::as_path))?)
    }

    fn name_current(&self, index: u64) -> Result<()> {
        let mut bytes = index.to_be_bytes().to_vec();
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_be_bytes());
        Ok(durable::write_file(&self.dir.join(CURRENT), &bytes)?)
    }

    /// The index of the checkpoint that is Raft's snapshot.
    pub(crate) fn current(&self) -> Result<Option<u64>> {
        let path = self.dir.join(CURRENT);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.io("reading", &path, error)),
        };
        let parts = bytes.split_first_chunk::<8>().and_then(|(index, crc)| Some((index, crc.first_chunk::<4>()?)));
        match parts {
            Some((index, crc)) if bytes.len() == 12 && crc32fast::hash(index) == u32::from_be_bytes(*crc) => {
                Ok(Some(u64::from_be_bytes(*index)))
            }
            _ => {
                let what = "the name of the current snapshot is damaged".to_owned();
                Err(Error::Checkpoint { path, index: None, what })
            }
        }
    }

    /// Makes the checkpoint of entry `index`, which is there and durable, Raft's snapshot. It never goes back.
    ///
    /// Checkpoints before it are removed: nothing starts from them any more.
    pub(crate) fn set_current(&self, index: u64) -> Result<()> {
        let before = self.current()?;
        assert!(before.is_none_or(|before| before <= index), "the current snapshot never goes back");
        self.name_current(index)?;
        self.remove(self.list()?.into_iter().filter(|older| *older < index))
    }

    /// Removes checkpoints.
    pub(crate) fn remove(&self, indexes: impl IntoIterator<Item = u64>) -> Result<()> {
        let paths: Vec<PathBuf> = indexes.into_iter().map(|index| self.path(index)).collect();
        Ok(durable::remove_files(paths.iter().map(PathBuf::as_path))?)
    }

    pub(crate) fn path(&self, index: u64) -> PathBuf {
        self.dir.join(format!("{index:020}"))
    }

    /// The error of a checkpoint that cannot be used.
    pub(crate) fn damaged(&self, index: u64, what: String) -> Error {
        Error::Checkpoint { path: self.path(index), index: Some(index), what }
    }

    fn io(&self, action: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io { action, path: path.to_owned(), source }
    }
}
