//! IndexFile: message key to physical offset.
//!
//! | Bytes | Field of a file |
//! | --- | --- |
//! | 0-7, 8-15 | store time of the first and last message indexed |
//! | 16-23, 24-31 | physical offset of the first and last message indexed |
//! | 32-35 | number of hash slots |
//! | 36-39 | number of the next entry; the first has number 1 |
//! | 40.. | the slots, `i32`: number of the newest entry of that slot, or 0 |
//! | .. | entries of 20 bytes, by number: `i32` key hash, `i64` physical offset, `i32` seconds since the file's first message, `i32` number of the slot's entry before |
//!
//! All big-endian. Only the newest file grows. Its slots are kept in memory and written when it is full, at a
//! checkpoint, and at a clean stop; its entries are appended. So indexing a key costs no system call of its own.
//!
//! `mark` says how far the index reached at the last checkpoint, and is written after everything below has been
//! synced. It holds a checksum of each full file, and one of the entries of the newest. A start trusts exactly that:
//! entries behind it are cut, and the newest file's slots computed again from its entries. Any doubt, and the whole
//! index is built again from the log.

use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use raft_store::durable;

use super::error::{Error, Result};
use super::file_pool::{FileKey, FilePool};

const HEADER_BYTES: u64 = 40;
const SLOT_BYTES: u64 = 4;
const ENTRY_BYTES: u64 = 20;
/// Entries gathered before they are written.
const PENDING_BYTES_MAX: usize = 64 * 1024;

/// Length of a file's name.
const NAME_BYTES: usize = 17;

const MARK: &str = "mark";
const MARK_MAGIC: u32 = 0x474d_5232;

/// Sizes of an index file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexSizes {
    /// Hash slots of a file.
    pub slots: u32,
    /// Entries of a file, the unused number 0 included.
    pub entries: u32,
}

/// Finds messages by key.
///
/// Only reput adds; anyone queries.
#[derive(Debug)]
pub(crate) struct KeyIndex {
    dir: PathBuf,
    sizes: IndexSizes,
    pool: Arc<FilePool>,
    /// Oldest first.
    full: RwLock<Vec<Arc<FullFile>>>,
    active: Mutex<Option<ActiveFile>>,
    /// Messages below this physical offset are indexed already; they come again when a start replays.
    indexed_end: Mutex<u64>,
    /// The mark on disk.
    mark: Mutex<Option<Mark>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Header {
    begin_time: i64,
    end_time: i64,
    begin_physical_offset: u64,
    end_physical_offset: u64,
    slots: u32,
    next_entry: u32,
}

#[derive(Debug)]
struct FullFile {
    path: PathBuf,
    owner: u64,
    header: Header,
    /// CRC-32 of the whole file, and of its entries.
    crc: u32,
    entries_crc: u32,
}

#[derive(Debug)]
struct ActiveFile {
    path: PathBuf,
    file: Arc<File>,
    header: Header,
    slots: Vec<u32>,
    /// CRC-32 of the entries in the file.
    entries_crc: crc32fast::Hasher,
    /// Encoded entries not yet in the file; the last of them has number `next_entry - 1`.
    pending: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IndexEntry {
    key_hash: u32,
    physical_offset: u64,
    seconds: i32,
    before: u32,
}

/// How far a synced index reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    indexed_end: u64,
    files: Option<MarkedFiles>,
}

/// The files a mark vouches for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MarkedFiles {
    /// Name and CRC-32 of each but the newest, oldest first.
    full: Vec<(String, u32)>,
    /// Name of the newest one.
    newest: String,
    /// The newest one's next entry.
    next_entry: u32,
    /// CRC-32 of its entries.
    entries_crc: u32,
    /// What of its header does not follow from its entries.
    begin_time: i64,
    begin_physical_offset: u64,
}

/// When and where the index was last added to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexProgress {
    /// Store time of the last message indexed; 0 if there is none.
    pub last_time_ms: i64,
    /// Its physical offset.
    pub last_physical_offset: u64,
}

impl KeyIndex {
    /// Opens the index in `dir` and cuts it back to its mark. An index without a usable mark is emptied.
    ///
    /// [`KeyIndex::indexed_end`] then says from where it must be fed: from that physical offset or any earlier one.
    pub(crate) fn open(dir: PathBuf, sizes: IndexSizes, pool: Arc<FilePool>) -> Result<Self> {
        assert!(sizes.slots > 0 && sizes.entries > 1, "an index file holds at least one entry");
        durable::create_directory(&dir)?;
        let index = Self {
            dir,
            sizes,
            pool,
            full: RwLock::default(),
            active: Mutex::default(),
            indexed_end: Mutex::new(0),
            mark: Mutex::default(),
        };
        match index.load() {
            Ok(true) => {}
            Ok(false) => index.clear()?,
            Err(Error::Damaged { path, what }) => {
                tracing::warn!(path = %path.display(), what, "the key index does not hold what it should: building it again");
                index.clear()?;
            }
            Err(error) => return Err(error),
        }
        Ok(index)
    }

    /// Every message below this physical offset is indexed.
    pub(crate) fn indexed_end(&self) -> u64 {
        *self.indexed_end.lock()
    }

    /// Indexes one message under `key_hashes` and empties them.
    ///
    /// # Errors
    /// A file cannot be written. `key_hashes` holds what is not indexed yet: a call with that goes on.
    pub(crate) fn add(&self, physical_offset: u64, store_time_ms: i64, key_hashes: &mut &[u32]) -> Result<()> {
        let mut indexed_end = self.indexed_end.lock();
        if physical_offset < *indexed_end {
            return Ok(());
        }
        if !key_hashes.is_empty() {
            let mut active = self.active.lock();
            while let [hash, rest @ ..] = *key_hashes {
                if let Some(full) = active.as_mut().filter(|file| file.header.next_entry >= self.sizes.entries) {
                    self.seal(full)?;
                    *active = None;
                }
                if active.is_none() {
                    *active = Some(self.create(physical_offset, store_time_ms)?);
                }
                let file = active.as_mut().expect("just created");
                file.put(*hash, physical_offset, store_time_ms);
                *key_hashes = rest;
                if file.pending.len() >= PENDING_BYTES_MAX {
                    file.write_pending()?;
                }
            }
        }
        *indexed_end = physical_offset + 1;
        Ok(())
    }

    /// Hands `visit` the physical offset of each message that may have this key, newest first, until it breaks.
    ///
    /// Different keys share hashes and times are kept in whole seconds: the caller looks at the message.
    pub(crate) fn visit(
        &self,
        hash: u32,
        begin_ms: i64,
        end_ms: i64,
        visit: &mut dyn FnMut(u64) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        // Copied under the lock: what is in memory only, and where the rest of the chain starts in the file.
        let mut found = Vec::new();
        let mut rest = None;
        if let Some(active) = &*self.active.lock()
            && active.header.covers(begin_ms, end_ms)
        {
            let mut number = active.slots[(hash % active.header.slots) as usize];
            while let Some(entry) = active.pending(number) {
                if entry.key_hash == hash && active.header.in_range(&entry, begin_ms, end_ms) {
                    found.push(entry.physical_offset);
                }
                number = entry.before;
            }
            rest = Some((Arc::clone(&active.file), active.path.clone(), active.header, number));
        }
        // A file sealed since is seen twice at worst.
        let full: Vec<Arc<FullFile>> = self.full.read().iter().rev().cloned().collect();
        for physical_offset in found {
            if visit(physical_offset)?.is_break() {
                return Ok(());
            }
        }
        if let Some((file, path, header, number)) = rest
            && follow(&file, &path, &header, hash, number, begin_ms, end_ms, visit)?.is_break()
        {
            return Ok(());
        }
        for index in full {
            if !index.header.covers(begin_ms, end_ms) {
                continue;
            }
            let key = FileKey { owner: index.owner, file: 0 };
            let opened =
                self.pool.existing(key, &|| index.path.clone()).map_err(|e| io_error("opening", &index.path, e))?;
            let Some(file) = opened else { continue };
            let mut slot = [0; SLOT_BYTES as usize];
            let at = HEADER_BYTES + u64::from(hash % index.header.slots) * SLOT_BYTES;
            file.read_exact_at(&mut slot, at).map_err(|e| io_error("reading", &index.path, e))?;
            let number = u32::from_be_bytes(slot);
            if follow(&file, &index.path, &index.header, hash, number, begin_ms, end_ms, visit)?.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// When and where the index was last added to.
    pub(crate) fn progress(&self) -> IndexProgress {
        let newest = self.active.lock().as_ref().map(|file| file.header);
        let newest = newest.or_else(|| self.full.read().last().map(|file| file.header));
        newest.map_or_else(IndexProgress::default, |header| IndexProgress {
            last_time_ms: header.end_time,
            last_physical_offset: header.end_physical_offset,
        })
    }

    /// Writes what is in memory to the newest file: every message below `indexed_end` has been added.
    ///
    /// Returns what [`KeyIndex::sync`] makes durable.
    pub(crate) fn flush(&self, indexed_end: u64) -> Result<Flushed> {
        let indexed_end = {
            let mut known = self.indexed_end.lock();
            *known = indexed_end.max(*known);
            *known
        };
        let mut active = self.active.lock();
        let newest = match active.as_mut() {
            Some(file) => {
                file.write_all()?;
                let crc = file.entries_crc.clone().finalize();
                Some((name_of(&file.path), file.header, crc, Arc::clone(&file.file)))
            }
            None => match self.full.read().last() {
                Some(full) => {
                    let file = File::open(&full.path).map_err(|e| io_error("opening", &full.path, e))?;
                    Some((name_of(&full.path), full.header, full.entries_crc, Arc::new(file)))
                }
                None => None,
            },
        };
        Ok(Flushed { indexed_end, newest })
    }

    /// Makes an earlier flush durable and moves the mark to it.
    pub(crate) fn sync(&self, flushed: &Flushed) -> Result<()> {
        if let Some((name, _, _, file)) = &flushed.newest {
            file.sync_data().map_err(|e| io_error("syncing", &self.dir.join(name), e))?;
        }
        durable::sync_directory(&self.dir)?;
        let mut mark = self.mark.lock();
        let files = flushed.newest.as_ref().map(|(newest, header, entries_crc, _)| {
            let full = self.full.read();
            let full = full.iter().map(|file| (name_of(&file.path), file.crc)).filter(|(name, _)| name < newest);
            MarkedFiles {
                full: full.collect(),
                newest: newest.clone(),
                next_entry: header.next_entry,
                entries_crc: *entries_crc,
                begin_time: header.begin_time,
                begin_physical_offset: header.begin_physical_offset,
            }
        });
        *mark = Some(Mark { indexed_end: flushed.indexed_end, files });
        self.write_mark(mark.as_ref())
    }

    fn write_mark(&self, mark: Option<&Mark>) -> Result<()> {
        let path = self.dir.join(MARK);
        match mark {
            Some(mark) => durable::write_file(&path, &mark.encode())?,
            None => durable::remove_files([path.as_path()])?,
        }
        Ok(())
    }

    /// Empties the index. Messages below `indexed_end` will not be indexed.
    pub(crate) fn reset(&self, indexed_end: u64) -> Result<()> {
        self.clear()?;
        *self.indexed_end.lock() = indexed_end;
        Ok(())
    }

    /// Removes files that only name messages below `physical_offset`.
    pub(crate) fn drop_below(&self, physical_offset: u64) -> Result<()> {
        let mut mark = self.mark.lock();
        let mut full = self.full.write();
        let keep =
            full.iter().position(|file| file.header.end_physical_offset >= physical_offset).unwrap_or(full.len());
        let gone: Vec<Arc<FullFile>> = full.drain(..keep).collect();
        drop(full);
        if gone.is_empty() {
            return Ok(());
        }
        // The mark stops vouching for them before they go.
        if let Some(files) = mark.as_mut().and_then(|mark| mark.files.as_mut()) {
            files.full.retain(|(name, _)| gone.iter().all(|file| name_of(&file.path) != *name));
        }
        self.write_mark(mark.as_ref())?;
        for file in &gone {
            self.pool.forget(file.owner);
        }
        durable::remove_files(gone.iter().map(|file| file.path.as_path()))?;
        Ok(())
    }

    fn clear(&self) -> Result<()> {
        // The mark goes first: without it nothing else is believed.
        let mut mark = self.mark.lock();
        *mark = None;
        self.write_mark(None)?;
        self.full.write().drain(..).for_each(|file| self.pool.forget(file.owner));
        *self.active.lock() = None;
        let names = list(&self.dir)?;
        let paths: Vec<PathBuf> = names.iter().map(|name| self.dir.join(name)).collect();
        durable::remove_files(paths.iter().map(PathBuf::as_path))?;
        *self.indexed_end.lock() = 0;
        Ok(())
    }

    /// Reads mark and files; `false` if there is no mark.
    fn load(&self) -> Result<bool> {
        let path = self.dir.join(MARK);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(io_error("reading", &path, error)),
        };
        let mark = Mark::decode(&bytes).ok_or_else(|| damaged(&path, "the mark is damaged"))?;
        let is_known = |name: &String| {
            let files = mark.files.as_ref();
            files.is_some_and(|files| files.newest == *name || files.full.iter().any(|(full, _)| full == name))
        };
        let (known, unknown): (Vec<String>, Vec<String>) = list(&self.dir)?.into_iter().partition(is_known);
        let unknown: Vec<PathBuf> = unknown.iter().map(|name| self.dir.join(name)).collect();
        durable::remove_files(unknown.iter().map(PathBuf::as_path))?;
        let Some(files) = &mark.files else {
            *self.indexed_end.lock() = mark.indexed_end;
            *self.mark.lock() = Some(mark);
            return Ok(true);
        };
        if known.len() != files.full.len() + 1 {
            return Err(damaged(&self.dir, "a file is missing"));
        }
        let mut full = Vec::with_capacity(files.full.len());
        for (name, crc) in &files.full {
            let path = self.dir.join(name);
            let header = read_full(&path, self.sizes, *crc)?;
            // Only the newest file of all is asked for that of its entries.
            full.push(Arc::new(FullFile { path, owner: self.pool.new_owner(), header, crc: *crc, entries_crc: 0 }));
        }
        let active = self.load_newest(files, mark.indexed_end)?;
        *self.full.write() = full;
        *self.active.lock() = Some(active);
        *self.indexed_end.lock() = mark.indexed_end;
        *self.mark.lock() = Some(mark);
        Ok(true)
    }

    /// Reads the newest file as far as it is marked and computes its slots again.
    fn load_newest(&self, marked: &MarkedFiles, indexed_end: u64) -> Result<ActiveFile> {
        let path = self.dir.join(&marked.newest);
        let file = File::options().read(true).write(true).open(&path).map_err(|e| io_error("opening", &path, e))?;
        let Newest { header, slots, entries_crc } = read_newest(&file, &path, self.sizes, marked, indexed_end)?;
        Ok(ActiveFile { path, file: Arc::new(file), header, slots, entries_crc, pending: Vec::new() })
    }

    fn create(&self, physical_offset: u64, store_time_ms: i64) -> Result<ActiveFile> {
        // Names sort like the files were made, whatever the clocks of past leaders said.
        let mut stamp = store_time_ms.max(0);
        if let Some(last) = self.full.read().last() {
            let last = name_of(&last.path);
            while file_name(stamp) <= last {
                let gap = if file_name(stamp + 86_400_000) <= last { 86_400_000 } else { 1 };
                stamp += gap;
            }
        }
        let path = self.dir.join(file_name(stamp));
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .map_err(|e| io_error("creating", &path, e))?;
        let header = Header {
            begin_time: store_time_ms,
            end_time: store_time_ms,
            begin_physical_offset: physical_offset,
            end_physical_offset: physical_offset,
            slots: self.sizes.slots,
            next_entry: 1,
        };
        let slots = vec![0; self.sizes.slots as usize];
        let entries_crc = crc32fast::Hasher::new();
        Ok(ActiveFile { path, file: Arc::new(file), header, slots, entries_crc, pending: Vec::new() })
    }

    fn seal(&self, file: &mut ActiveFile) -> Result<()> {
        file.write_all()?;
        file.file.sync_data().map_err(|e| io_error("syncing", &file.path, e))?;
        let entries_crc = file.entries_crc.clone().finalize();
        let full = FullFile {
            crc: file.crc(),
            path: file.path.clone(),
            owner: self.pool.new_owner(),
            header: file.header,
            entries_crc,
        };
        self.full.write().push(Arc::new(full));
        Ok(())
    }
}

/// The header of a file that is full, and whole: its bytes have this checksum.
fn read_full(path: &Path, sizes: IndexSizes, crc: u32) -> Result<Header> {
    let file = File::open(path).map_err(|e| io_error("opening", path, e))?;
    let header = read_header(&file, path)?;
    if header.next_entry != sizes.entries || header.slots != sizes.slots {
        return Err(damaged(path, "not full although a newer file exists, or of another size"));
    }
    if crc_of(&file, path)? != crc {
        return Err(damaged(path, "its checksum differs from that in the mark"));
    }
    Ok(header)
}

/// What is in the newest file.
struct Newest {
    header: Header,
    /// Computed from the entries.
    slots: Vec<u32>,
    entries_crc: crc32fast::Hasher,
}

/// Reads the newest file as far as it is marked.
fn read_newest(file: &File, path: &Path, sizes: IndexSizes, marked: &MarkedFiles, indexed_end: u64) -> Result<Newest> {
    let header = read_header(file, path)?;
    let next_entry = marked.next_entry;
    if (header.begin_time, header.begin_physical_offset) != (marked.begin_time, marked.begin_physical_offset) {
        return Err(damaged(path, "its header differs from the mark"));
    }
    if header.slots != sizes.slots || next_entry < 2 || next_entry > sizes.entries {
        return Err(damaged(path, "its sizes differ from the configured ones"));
    }
    let mut bytes = vec![0; (u64::from(next_entry - 1) * ENTRY_BYTES) as usize];
    match file.read_exact_at(&mut bytes, entry_at(header.slots, 1)) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(damaged(path, "shorter than its mark says"));
        }
        Err(error) => return Err(io_error("reading", path, error)),
    }
    let mut entries_crc = crc32fast::Hasher::new();
    entries_crc.update(&bytes);
    if entries_crc.clone().finalize() != marked.entries_crc {
        return Err(damaged(path, "the checksum of its entries differs from that in the mark"));
    }
    let mut slots = vec![0; header.slots as usize];
    let mut last_physical_offset = header.begin_physical_offset;
    let mut last_seconds = 0;
    let (entries, _) = bytes.as_chunks::<{ ENTRY_BYTES as usize }>();
    for (number, entry) in (1..).zip(entries) {
        let entry = IndexEntry::decode(entry);
        let slot = &mut slots[(entry.key_hash % header.slots) as usize];
        let in_order = entry.physical_offset >= last_physical_offset && entry.physical_offset < indexed_end;
        if entry.before != *slot || !in_order {
            return Err(damaged(path, "its entries do not follow from each other"));
        }
        *slot = number;
        last_physical_offset = entry.physical_offset;
        last_seconds = entry.seconds;
    }
    let header = Header {
        next_entry,
        end_physical_offset: last_physical_offset,
        end_time: header.begin_time + i64::from(last_seconds) * 1000,
        ..header
    };
    Ok(Newest { header, slots, entries_crc })
}

fn read_header(file: &File, path: &Path) -> Result<Header> {
    let mut bytes = [0; HEADER_BYTES as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|_| damaged(path, "shorter than a header"))?;
    Ok(Header::decode(&bytes))
}

/// Checks the index in `dir` against its mark, and changes nothing.
///
/// # Errors
/// The first contradiction, on account of which a start would build the index again.
pub(crate) fn check(dir: &Path, sizes: IndexSizes) -> Result<()> {
    let path = dir.join(MARK);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("reading", &path, error)),
    };
    let mark = Mark::decode(&bytes).ok_or_else(|| damaged(&path, "the mark is damaged"))?;
    let Some(files) = &mark.files else { return Ok(()) };
    for (name, crc) in &files.full {
        read_full(&dir.join(name), sizes, *crc)?;
    }
    let path = dir.join(&files.newest);
    let file = File::open(&path).map_err(|e| io_error("opening", &path, e))?;
    read_newest(&file, &path, sizes, files, mark.indexed_end).map(|_| ())
}

/// What a flush wrote. See [`KeyIndex::sync`].
#[derive(Debug)]
pub(crate) struct Flushed {
    indexed_end: u64,
    newest: Option<(String, Header, u32, Arc<File>)>,
}

/// Walks a chain of entries in a file.
#[expect(clippy::too_many_arguments, reason = "one chain in one file; a struct would only rename them")]
fn follow(
    file: &File,
    path: &Path,
    header: &Header,
    hash: u32,
    mut number: u32,
    begin_ms: i64,
    end_ms: i64,
    visit: &mut dyn FnMut(u64) -> Result<ControlFlow<()>>,
) -> Result<ControlFlow<()>> {
    let mut bound = header.next_entry;
    while number != 0 {
        // Chains lead to ever smaller numbers; anything else would not end.
        if number >= bound {
            return Err(damaged(path, "a chain does not lead backwards"));
        }
        bound = number;
        let mut bytes = [0; ENTRY_BYTES as usize];
        file.read_exact_at(&mut bytes, entry_at(header.slots, number)).map_err(|e| io_error("reading", path, e))?;
        let entry = IndexEntry::decode(&bytes);
        if entry.key_hash == hash
            && header.in_range(&entry, begin_ms, end_ms)
            && visit(entry.physical_offset)?.is_break()
        {
            return Ok(ControlFlow::Break(()));
        }
        number = entry.before;
    }
    Ok(ControlFlow::Continue(()))
}

impl ActiveFile {
    fn put(&mut self, key_hash: u32, physical_offset: u64, store_time_ms: i64) {
        let number = self.header.next_entry;
        let slot = &mut self.slots[(key_hash % self.header.slots) as usize];
        let seconds = store_time_ms.saturating_sub(self.header.begin_time).max(0) / 1000;
        let entry = IndexEntry {
            key_hash,
            physical_offset,
            seconds: i32::try_from(seconds).unwrap_or(i32::MAX),
            before: *slot,
        };
        self.pending.extend_from_slice(&entry.encode());
        *slot = number;
        self.header.next_entry = number + 1;
        self.header.end_physical_offset = physical_offset;
        self.header.end_time = self.header.end_time.max(store_time_ms);
    }

    /// An entry that is not in the file yet.
    fn pending(&self, number: u32) -> Option<IndexEntry> {
        let first = self.first_pending();
        let at = number.checked_sub(first)? as usize;
        let (entries, _) = self.pending.as_chunks::<{ ENTRY_BYTES as usize }>();
        entries.get(at).map(IndexEntry::decode)
    }

    fn first_pending(&self) -> u32 {
        self.header.next_entry - (self.pending.len() as u64 / ENTRY_BYTES) as u32
    }

    fn write_pending(&mut self) -> Result<()> {
        let at = entry_at(self.header.slots, self.first_pending());
        self.file.write_all_at(&self.pending, at).map_err(|e| io_error("writing", &self.path, e))?;
        self.entries_crc.update(&self.pending);
        self.pending.clear();
        Ok(())
    }

    fn head(&self) -> Vec<u8> {
        let mut head = Vec::with_capacity((HEADER_BYTES + self.slots.len() as u64 * SLOT_BYTES) as usize);
        head.extend_from_slice(&self.header.encode());
        self.slots.iter().for_each(|slot| head.extend_from_slice(&slot.to_be_bytes()));
        head
    }

    /// CRC-32 of the whole file, once everything is in it.
    fn crc(&self) -> u32 {
        assert!(self.pending.is_empty(), "the checksum is of what is in the file");
        let mut all = crc32fast::Hasher::new();
        all.update(&self.head());
        // Entry 0 is never used.
        all.update(&[0; ENTRY_BYTES as usize]);
        all.combine(&self.entries_crc);
        all.finalize()
    }

    fn write_all(&mut self) -> Result<()> {
        self.write_pending()?;
        self.file.write_all_at(&self.head(), 0).map_err(|e| io_error("writing", &self.path, e))
    }
}

impl Header {
    fn covers(&self, begin_ms: i64, end_ms: i64) -> bool {
        self.next_entry > 1 && self.begin_time <= end_ms && self.end_time.saturating_add(999) >= begin_ms
    }

    fn in_range(&self, entry: &IndexEntry, begin_ms: i64, end_ms: i64) -> bool {
        let time = self.begin_time.saturating_add(i64::from(entry.seconds) * 1000);
        time <= end_ms && time.saturating_add(999) >= begin_ms
    }

    fn encode(&self) -> [u8; HEADER_BYTES as usize] {
        let mut out = [0; HEADER_BYTES as usize];
        out[..8].copy_from_slice(&self.begin_time.to_be_bytes());
        out[8..16].copy_from_slice(&self.end_time.to_be_bytes());
        out[16..24].copy_from_slice(&self.begin_physical_offset.to_be_bytes());
        out[24..32].copy_from_slice(&self.end_physical_offset.to_be_bytes());
        out[32..36].copy_from_slice(&self.slots.to_be_bytes());
        out[36..].copy_from_slice(&self.next_entry.to_be_bytes());
        out
    }

    fn decode(bytes: &[u8; HEADER_BYTES as usize]) -> Self {
        let long = |at: usize| u64::from_be_bytes(*bytes[at..].first_chunk().expect("within the header"));
        let int = |at: usize| u32::from_be_bytes(*bytes[at..].first_chunk().expect("within the header"));
        Self {
            begin_time: long(0).cast_signed(),
            end_time: long(8).cast_signed(),
            begin_physical_offset: long(16),
            end_physical_offset: long(24),
            slots: int(32),
            next_entry: int(36),
        }
    }
}

impl IndexEntry {
    fn encode(&self) -> [u8; ENTRY_BYTES as usize] {
        let mut out = [0; ENTRY_BYTES as usize];
        out[..4].copy_from_slice(&self.key_hash.to_be_bytes());
        out[4..12].copy_from_slice(&self.physical_offset.to_be_bytes());
        out[12..16].copy_from_slice(&self.seconds.to_be_bytes());
        out[16..].copy_from_slice(&self.before.to_be_bytes());
        out
    }

    fn decode(bytes: &[u8; ENTRY_BYTES as usize]) -> Self {
        let int = |at: usize| u32::from_be_bytes(*bytes[at..].first_chunk().expect("within the entry"));
        Self {
            key_hash: int(0),
            physical_offset: u64::from_be_bytes(*bytes[4..].first_chunk().expect("within the entry")),
            seconds: int(12).cast_signed(),
            before: int(16),
        }
    }
}

impl Mark {
    /// Magic and indexed end; of the newest file the next entry, the checksum, the two fields and the name; name and
    /// checksum of each full file; CRC over all before.
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&MARK_MAGIC.to_be_bytes());
        out.extend_from_slice(&self.indexed_end.to_be_bytes());
        if let Some(files) = &self.files {
            out.extend_from_slice(&files.next_entry.to_be_bytes());
            out.extend_from_slice(&files.entries_crc.to_be_bytes());
            out.extend_from_slice(&files.begin_time.to_be_bytes());
            out.extend_from_slice(&files.begin_physical_offset.to_be_bytes());
            out.extend_from_slice(files.newest.as_bytes());
            for (name, crc) in &files.full {
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(&crc.to_be_bytes());
            }
        }
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_be_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        if crc32fast::hash(body) != u32::from_be_bytes(*crc) {
            return None;
        }
        let (magic, rest) = body.split_first_chunk::<4>()?;
        if u32::from_be_bytes(*magic) != MARK_MAGIC {
            return None;
        }
        let (indexed_end, rest) = rest.split_first_chunk::<8>()?;
        let indexed_end = u64::from_be_bytes(*indexed_end);
        if rest.is_empty() {
            return Some(Self { indexed_end, files: None });
        }
        let (next_entry, rest) = rest.split_first_chunk::<4>()?;
        let (entries_crc, rest) = rest.split_first_chunk::<4>()?;
        let (begin_time, rest) = rest.split_first_chunk::<8>()?;
        let (begin_physical_offset, rest) = rest.split_first_chunk::<8>()?;
        let (newest, rest) = rest.split_first_chunk::<NAME_BYTES>()?;
        let (full, left) = rest.as_chunks::<{ NAME_BYTES + 4 }>();
        if !left.is_empty() {
            return None;
        }
        let text = |name: &[u8]| Some(std::str::from_utf8(name).ok()?.to_owned());
        let name_and_crc = |bytes: &[u8; NAME_BYTES + 4]| {
            let (name, crc) = bytes.split_last_chunk::<4>()?;
            Some((text(name)?, u32::from_be_bytes(*crc)))
        };
        let files = MarkedFiles {
            full: full.iter().map(name_and_crc).collect::<Option<_>>()?,
            newest: text(newest)?,
            next_entry: u32::from_be_bytes(*next_entry),
            entries_crc: u32::from_be_bytes(*entries_crc),
            begin_time: i64::from_be_bytes(*begin_time),
            begin_physical_offset: u64::from_be_bytes(*begin_physical_offset),
        };
        Some(Self { indexed_end, files: Some(files) })
    }
}

fn entry_at(slots: u32, number: u32) -> u64 {
    HEADER_BYTES + u64::from(slots) * SLOT_BYTES + u64::from(number) * ENTRY_BYTES
}

/// CRC-32 of a whole file.
fn crc_of(mut file: &File, path: &Path) -> Result<u32> {
    let mut crc = crc32fast::Hasher::new();
    let mut bytes = vec![0; 1 << 20];
    loop {
        match file.read(&mut bytes).map_err(|e| io_error("reading", path, e))? {
            0 => return Ok(crc.finalize()),
            read => crc.update(&bytes[..read]),
        }
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().expect("index files have names").to_string_lossy().into_owned()
}

/// The names of the index files in `dir`: 17 digits each.
fn list(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for item in fs::read_dir(dir).map_err(|e| io_error("listing", dir, e))? {
        let name = item.map_err(|e| io_error("listing", dir, e))?.file_name().to_string_lossy().into_owned();
        if name.len() == NAME_BYTES && name.bytes().all(|byte| byte.is_ascii_digit()) {
            names.push(name);
        }
    }
    Ok(names)
}

/// Year, month, day, hour, minute, second and millisecond of a time, in UTC.
fn file_name(time_ms: i64) -> String {
    let (days, ms) = (time_ms.div_euclid(86_400_000), time_ms.rem_euclid(86_400_000));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{year:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}{:03}", ms % 1000)
}

/// The date that lies `days` after 1970-01-01, by counting years of 400-year cycles that start on 1 March.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let cycle = days.div_euclid(146_097);
    let day_of_cycle = days.rem_euclid(146_097);
    let year_of_cycle = (day_of_cycle - day_of_cycle / 1460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year = day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_cycle + cycle * 400 + i64::from(month <= 2);
    (year, month, day)
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io { action, path: path.to_owned(), source }
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::Damaged { path: path.to_owned(), what: what.to_owned() }
}
