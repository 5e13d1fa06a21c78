//! The seam between the log and the disk.
//!
//! A [`Region`] is one file of fixed size, [`Files`] is the directory. Everything the log does to a
//! disk goes through these two, so that a test can put a disk behind them that fails, or that loses
//! what was not synced.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::RwLock;

use crate::durable;
use crate::error::{Error, Result};
use crate::ids::LogPosition;
use crate::mapped_file::{self, FileAdvice, MappedFile};
use crate::options::Preparation;
use crate::read_budget::ReadBudget;
use crate::segment;
use crate::sigbus::{self, NotesFile, Registered};

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

    /// `bytes` bytes from `offset` on, both multiples of a page, as the disk has them: not from memory.
    fn read_from_disk(&self, offset: u64, bytes: usize) -> io::Result<Vec<u8>>;

    /// A slice without copying, if the region is hot and the range lies below `stable_end`. The
    /// caller vouches that nothing below `stable_end` changes again.
    fn lend(&self, offset: u64, bytes: u64, stable_end: u64) -> io::Result<Option<Bytes>>;

    /// Where the next byte lies that may be other than zero, at or behind `offset`.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>>;

    /// Takes note that nothing more is written to the file.
    fn seal(&self);

    /// Keeps the file open, and mapped if it may be.
    fn warm(&self) -> io::Result<()>;

    /// Whether it is.
    fn is_warm(&self) -> bool;

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

    /// Gives a synced file another name, and takes that name from the file that has it.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Removes files. A crash before the return leaves any of them.
    fn remove(&self, names: &[String]) -> Result<()>;

    /// Removes files one after another: a crash before the return leaves those at the end of the list.
    fn remove_in_order(&self, names: &[String]) -> Result<()> {
        names.iter().try_for_each(|name| self.remove(std::slice::from_ref(name)))
    }

    /// On return all names are on disk as they are.
    fn sync_names(&self) -> Result<()>;

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
    shared: Arc<Shared>,
}

/// What all files of a directory know.
#[derive(Debug)]
struct Shared {
    budget: Arc<ReadBudget>,
    /// Where it is noted that a page could not be read.
    notes: OnceLock<Arc<NotesFile>>,
    /// Segments that are not mapped any more, because of their notes.
    unmapped: OnceLock<BTreeSet<LogPosition>>,
}

impl Directory {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self::with_budget(dir, Arc::new(ReadBudget::new(0)))
    }

    /// A directory whose cold files are read within `budget`.
    pub(crate) fn with_budget(dir: PathBuf, budget: Arc<ReadBudget>) -> Self {
        let shared = Shared { budget, notes: OnceLock::new(), unmapped: OnceLock::new() };
        Self { dir, shared: Arc::new(shared) }
    }

    /// Reads what earlier runs noted about pages that could not be read, tries them again, and says what was found.
    /// Changes nothing but a file of notes that is full.
    pub(crate) fn read_notes(&self) -> (Vec<String>, BTreeSet<LogPosition>) {
        let path = self.path(sigbus::NOTES);
        let notes = match open_file(&path).and_then(NotesFile::open) {
            Ok(notes) => Arc::new(notes),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Default::default(),
            Err(e) => return (vec![format!("{}: the notes cannot be read: {e}", path.display())], BTreeSet::new()),
        };
        let mut report = Vec::new();
        let mut unmapped = BTreeSet::new();
        for note in notes.notes() {
            let segment = self.path(&segment::file_name(note.base));
            if !segment.exists() {
                continue;
            }
            const PAGE: u64 = 4096;
            let at = note.offset / PAGE * PAGE;
            let mut page = vec![0; PAGE as usize];
            match File::open(&segment).and_then(|file| file.read_exact_at(&mut page, at)) {
                Ok(()) => {}
                Err(e) => {
                    report.push(format!("{}: the page at {at} still cannot be read: {e}", segment.display()));
                    unmapped.insert(note.base);
                }
            }
            if notes.must_not_map(note.base) && unmapped.insert(note.base) {
                report.push(format!(
                    "{}: a page could not be read three times within ten minutes: it is not mapped any more",
                    segment.display()
                ));
            }
        }
        let suspects = notes.notes().iter().map(|note| note.base).collect();
        let _ = self.shared.unmapped.set(unmapped);
        let _ = self.shared.notes.set(notes);
        (report, suspects)
    }

    /// Makes a file for notes, unless there is one. Says whether it did.
    pub(crate) fn make_notes(&self) -> Result<bool> {
        if self.shared.notes.get().is_some() {
            return Ok(false);
        }
        let path = self.path(sigbus::NOTES);
        let bytes = vec![0; usize::try_from(sigbus::NOTES_BYTES).expect("a few notes")];
        durable::write_file(&path, &bytes)?;
        let notes = open_file(&path).and_then(NotesFile::open).map_err(|e| Error::io("opening", &path, e))?;
        Ok(self.shared.notes.set(Arc::new(notes)).is_ok())
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
        durable::put(&durable::System, &path, |temporary| {
            fill_new(temporary, bytes, head, preparation, mapped_file::allocate)
        })?;
        self.open(name)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Region>> {
        let path = self.path(name);
        let file = open_file(&path).map_err(|e| Error::io("opening", &path, e))?;
        let bytes = file.metadata().map_err(|e| Error::io("looking at", &path, e))?.len();
        let state = RwLock::new(Open { file: Some(Arc::new(file)), mapped: None });
        Ok(Arc::new(FileRegion {
            path,
            base: segment::parse_file_name(name),
            bytes,
            shared: Arc::clone(&self.shared),
            state,
            sealed: AtomicBool::new(false),
            stable: AtomicU64::new(0),
            written_from: AtomicU64::new(u64::MAX),
        }))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        durable::rename(&self.path(from), &self.path(to))
    }

    fn remove(&self, names: &[String]) -> Result<()> {
        let paths: Vec<PathBuf> = names.iter().map(|name| self.path(name)).collect();
        durable::remove_files(paths.iter().map(PathBuf::as_path))
    }

    fn sync_names(&self) -> Result<()> {
        durable::sync_directory(&self.dir)
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

/// `allocate` reserves blocks for the file.
fn fill_new(
    path: &Path,
    bytes: u64,
    head: &[u8],
    preparation: Preparation,
    allocate: impl Fn(&File, u64) -> io::Result<()>,
) -> Result<()> {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .map_err(|e| Error::io("creating", path, e))?;
    let reserved = match allocate(&file, bytes) {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => false,
        result => result.map(|()| true).map_err(|e| Error::io("allocating", path, e))?,
    };
    if !reserved || preparation == Preparation::Prewrite {
        write_zeros(&file, 0, bytes).map_err(|e| Error::io("writing zeros to", path, e))?;
    }
    file.write_all_at(head, 0).map_err(|e| Error::io("writing", path, e))
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

/// Reads past the page cache. A file system that cannot do so has no disk behind it, such as tmpfs.
fn read_direct(path: &Path, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
    const ALIGN: usize = 4096;
    let unsupported = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(path);
    let mut buffer = vec![0; bytes + ALIGN];
    let start = buffer.as_ptr().align_offset(ALIGN).min(ALIGN);
    let place = buffer.get_mut(start..start + bytes).ok_or(io::ErrorKind::InvalidInput)?;
    let read = direct.and_then(|file| file.read_exact_at(place, offset));
    match read {
        Err(error) if unsupported(&error) => File::open(path)?.read_exact_at(place, offset)?,
        read => read?,
    }
    buffer.truncate(start + bytes);
    buffer.drain(..start);
    Ok(buffer)
}

/// A real file.
#[derive(Debug)]
struct FileRegion {
    path: PathBuf,
    /// Of a segment.
    base: Option<LogPosition>,
    bytes: u64,
    shared: Arc<Shared>,
    state: RwLock<Open>,
    sealed: AtomicBool,
    /// Bytes below may be in somebody's hands and never change again. Moved up only, by `lend`, before
    /// it hands anything out; `write` and `zero` refuse to go below it.
    stable: AtomicU64,
    /// Bytes from here on were written by this process into the cache, so they are in memory.
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
        let hot = self.state.read().file.clone();
        if let Some(file) = hot {
            return file.read_exact_at(into, offset);
        }
        // Whoever reads history pays for it, and leaves the cache to what is read by everybody.
        let bytes = into.len() as u64;
        let _reading = self.shared.budget.spend(bytes);
        let file = open_file(&self.path)?;
        mapped_file::advise_file(&file, offset, bytes, FileAdvice::Sequential);
        let result = file.read_exact_at(into, offset);
        mapped_file::advise_file(&file, offset, bytes, FileAdvice::DontNeed);
        result
    }

    fn read_from_disk(&self, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        read_direct(&self.path, offset, bytes)
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

    fn seal(&self) {
        self.sealed.store(true, Ordering::Relaxed);
        if let Some(mapped) = &self.state.read().mapped {
            mapped.advise_random();
        }
    }

    fn warm(&self) -> io::Result<()> {
        let mut state = self.state.write();
        if state.mapped.is_none() {
            let file = match &state.file {
                Some(file) => Arc::clone(file),
                None => Arc::new(open_file(&self.path)?),
            };
            let base = self.base.unwrap_or(LogPosition::ZERO);
            let may_map = self.shared.unmapped.get().is_none_or(|unmapped| !unmapped.contains(&base));
            // With as many mappings as there may be, reads copy instead.
            let registered =
                may_map.then(|| Registered::reserve(base, self.shared.notes.get().map(Arc::clone))).flatten();
            if let Some(registered) = registered {
                let mapped = MappedFile::map(&file, registered)?;
                if self.sealed.load(Ordering::Relaxed) {
                    mapped.advise_random();
                }
                state.mapped = Some(Arc::new(mapped));
            }
            state.file = Some(file);
        }
        Ok(())
    }

    fn is_warm(&self) -> bool {
        self.state.read().mapped.is_some()
    }

    fn cool(&self) {
        *self.state.write() = Open { file: None, mapped: None };
    }
}

#[cfg(test)]
pub(crate) mod simulated;

#[cfg(test)]
mod tests;
