//! The seam between the log and the disk.
//!
//! A [`Region`] is one file of fixed size, [`Files`] is the directory. Everything the log does to a
//! disk goes through these two, so that a test can put a disk behind them that fails, or that loses
//! what was not synced.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;

use crate::durable;
use crate::error::{Error, Result};
use crate::mapped_file::{self, MappedFile};
use crate::options::Preparation;

/// One file of fixed size.
///
/// Written and synced by one owner; read by anybody at any time.
pub(crate) trait Region: Send + Sync + Debug {
    /// For messages.
    fn path(&self) -> &Path;

    /// The file's size.
    fn bytes(&self) -> u64;

    /// Writes all of `bytes`. The range must not have been lent.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes a range read as zeros, keeping its blocks. The range must not have been lent.
    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()>;

    /// On return everything written before the call is on disk.
    fn sync(&self) -> io::Result<()>;

    /// Fills `into` from `offset` on.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// A slice without copying, if the region is hot and the range lies below `stable_end`. The
    /// caller vouches that nothing below `stable_end` changes again.
    fn lend(&self, offset: u64, bytes: u64, stable_end: u64) -> io::Result<Option<Bytes>>;

    /// Where the next byte lies that may be other than zero, at or behind `offset`.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>>;

    /// Keeps the file open and mapped.
    fn warm(&self) -> io::Result<()>;

    /// Closes and unmaps the file. Later reads open it again, each for itself.
    fn cool(&self);
}

/// One name in the directory.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) directory: bool,
}

/// The store's directory. Every change is durable on return.
pub(crate) trait Files: Send + Sync + Debug {
    /// For messages.
    fn path(&self, name: &str) -> PathBuf;

    /// All names, in order.
    fn list(&self) -> Result<Vec<Listed>>;

    /// Creates a file of `bytes` bytes of zeros behind `head`, its blocks reserved. It appears under
    /// its name only once it is complete.
    fn create(&self, name: &str, bytes: u64, head: &[u8], preparation: Preparation) -> Result<Arc<dyn Region>>;

    /// Opens a file that exists.
    fn open(&self, name: &str) -> Result<Arc<dyn Region>>;

    /// Removes files in the order given.
    fn remove(&self, names: &[String]) -> Result<()>;

    /// Replaces a small file by one that holds `contents`.
    fn write_note(&self, name: &str, contents: &[u8]) -> Result<()>;

    /// All of a small file.
    fn read_note(&self, name: &str) -> Result<Vec<u8>>;

    /// Writes a copy for people to look at. Nothing relies on it.
    fn keep_aside(&self, name: &str, contents: &[u8]) -> Result<()>;
}

/// A real directory.
#[derive(Debug)]
pub(crate) struct Directory {
    dir: PathBuf,
}

impl Directory {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }
}

/// Where [`Files::keep_aside`] puts its copies, and how much it keeps.
pub(crate) const QUARANTINE: &str = "quarantine";
const QUARANTINE_BYTES_MAX: u64 = 1 << 30;

impl Files for Directory {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn list(&self) -> Result<Vec<Listed>> {
        let wrong = |e| Error::io("listing", &self.dir, e);
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            let meta = entry.metadata().map_err(wrong)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            found.push(Listed { name, bytes: meta.len(), directory: meta.is_dir() });
        }
        found.sort();
        Ok(found)
    }

    fn create(&self, name: &str, bytes: u64, head: &[u8], preparation: Preparation) -> Result<Arc<dyn Region>> {
        let path = self.path(name);
        let temporary = durable::temporary_name(&path);
        let result = fill_new(&temporary, bytes, head, preparation).and_then(|()| durable::rename(&temporary, &path));
        if let Err(error) = result {
            // What is left over is removed at the next start at the latest.
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        self.open(name)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Region>> {
        let path = self.path(name);
        let file = open_file(&path).map_err(|e| Error::io("opening", &path, e))?;
        let bytes = file.metadata().map_err(|e| Error::io("looking at", &path, e))?.len();
        let state = RwLock::new(Open { file: Some(Arc::new(file)), mapped: None });
        Ok(Arc::new(FileRegion {
            path,
            bytes,
            state,
            stable: AtomicU64::new(0),
            written_from: AtomicU64::new(u64::MAX),
        }))
    }

    fn remove(&self, names: &[String]) -> Result<()> {
        let paths: Vec<PathBuf> = names.iter().map(|name| self.path(name)).collect();
        durable::remove_files(paths.iter().map(PathBuf::as_path))
    }

    fn write_note(&self, name: &str, contents: &[u8]) -> Result<()> {
        durable::write_file(&self.path(name), contents)
    }

    fn read_note(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.path(name);
        fs::read(&path).map_err(|e| Error::io("reading", path, e))
    }

    fn keep_aside(&self, name: &str, contents: &[u8]) -> Result<()> {
        let dir = self.path(QUARANTINE);
        durable::create_directory(&dir)?;
        let used = Self::new(dir.clone()).list()?.iter().map(|listed| listed.bytes).sum::<u64>();
        if used + contents.len() as u64 > QUARANTINE_BYTES_MAX {
            return Err(Error::NoSpace { file: dir });
        }
        durable::write_file(&dir.join(name), contents)
    }
}

fn fill_new(path: &Path, bytes: u64, head: &[u8], preparation: Preparation) -> Result<()> {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .map_err(|e| Error::io("creating", path, e))?;
    let reserved = match mapped_file::allocate(&file, bytes) {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => false,
        result => result.map(|()| true).map_err(|e| Error::io("allocating", path, e))?,
    };
    if !reserved || preparation == Preparation::Prewrite {
        write_zeros(&file, 0, bytes).map_err(|e| Error::io("writing zeros to", path, e))?;
    }
    file.write_all_at(head, 0).map_err(|e| Error::io("writing", path, e))?;
    file.sync_all().map_err(|e| Error::io("syncing", path, e))
}

fn write_zeros(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    let mut done = 0;
    while done < bytes {
        let step = (bytes - done).min(ZEROS.len() as u64);
        let piece = ZEROS.get(..usize::try_from(step).map_err(io::Error::other)?).unwrap_or(&ZEROS);
        file.write_all_at(piece, offset + done)?;
        done += step;
    }
    Ok(())
}

fn open_file(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}

/// A real file.
#[derive(Debug)]
struct FileRegion {
    path: PathBuf,
    bytes: u64,
    state: RwLock<Open>,
    /// Bytes below may be in somebody's hands and never change again. Moved up only, by `lend`, before
    /// it hands anything out; `write` and `zero` refuse to go below it.
    stable: AtomicU64,
    /// Bytes from here on were written by this process, so they are in memory.
    written_from: AtomicU64,
}

struct Open {
    file: Option<Arc<File>>,
    mapped: Option<Arc<MappedFile>>,
}

impl Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "open: {}, mapped: {}", self.file.is_some(), self.mapped.is_some())
    }
}

impl FileRegion {
    fn file(&self) -> io::Result<Arc<File>> {
        if let Some(file) = &self.state.read().file {
            return Ok(Arc::clone(file));
        }
        open_file(&self.path).map(Arc::new)
    }

    fn check_not_lent(&self, offset: u64) {
        let stable = self.stable.load(Ordering::Acquire);
        assert!(offset >= stable, "{}: write at {offset}, below the stable mark {stable}", self.path.display());
    }
}

impl Region for FileRegion {
    fn path(&self) -> &Path {
        &self.path
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(offset + bytes.len() as u64 <= self.bytes);
        self.check_not_lent(offset);
        self.file()?.write_all_at(bytes, offset)?;
        self.written_from.fetch_min(offset, Ordering::AcqRel);
        Ok(())
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        assert!(offset + bytes <= self.bytes);
        self.check_not_lent(offset);
        let file = self.file()?;
        match mapped_file::zero_range(&file, offset, bytes) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => write_zeros(&file, offset, bytes),
            result => result,
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file()?.sync_data()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file()?.read_exact_at(into, offset)
    }

    fn lend(&self, offset: u64, bytes: u64, stable_end: u64) -> io::Result<Option<Bytes>> {
        let Some(mapped) = self.state.read().mapped.clone() else { return Ok(None) };
        if offset + bytes > stable_end {
            return Ok(None);
        }
        if offset < self.written_from.load(Ordering::Acquire) {
            mapped.populate(offset, bytes)?;
        }
        self.stable.fetch_max(stable_end, Ordering::AcqRel);
        Ok(Some(mapped.lend(offset, bytes, stable_end)))
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        mapped_file::next_data(&*self.file()?, offset)
    }

    fn warm(&self) -> io::Result<()> {
        let mut state = self.state.write();
        if state.mapped.is_none() {
            let file = match &state.file {
                Some(file) => Arc::clone(file),
                None => Arc::new(open_file(&self.path)?),
            };
            state.mapped = Some(Arc::new(MappedFile::map(&file)?));
            state.file = Some(file);
        }
        Ok(())
    }

    fn cool(&self) {
        *self.state.write() = Open { file: None, mapped: None };
    }
}

#[cfg(test)]
pub(crate) mod simulated;
