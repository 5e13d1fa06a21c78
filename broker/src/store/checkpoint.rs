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

use crate::state_machine::snapshot::Image;

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
        let path = self.path(index);
        let bytes = fs::read(&path).map_err(|e| self.io("reading", &path, e))?;
        let image =
            Image::decode(&bytes).map_err(|error| Error::Checkpoint { path: path.clone(), what: error.to_string() })?;
        if image.applied.index != index {
            let what = format!("it is of entry {}", image.applied.index);
            return Err(Error::Checkpoint { path, what });
        }
        Ok((image, bytes.into()))
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
            _ => Err(Error::Checkpoint { path, what: "the name of the current snapshot is damaged".to_owned() }),
        }
    }

    /// Makes the checkpoint of entry `index`, which is there and durable, Raft's snapshot. It never goes back.
    ///
    /// Checkpoints before it are removed: nothing starts from them any more.
    pub(crate) fn set_current(&self, index: u64) -> Result<()> {
        let before = self.current()?;
        assert!(before.is_none_or(|before| before <= index), "the current snapshot never goes back");
        let mut bytes = index.to_be_bytes().to_vec();
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_be_bytes());
        durable::write_file(&self.dir.join(CURRENT), &bytes)?;
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

    fn io(&self, action: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io { action, path: path.to_owned(), source }
    }
}
