//! ConsumeQueue: the messages of one queue, by queue offset.
//!
//! | Bytes of an entry | Field |
//! | --- | --- |
//! | 0-7 | physical offset |
//! | 8-11 | size of the message record |
//! | 12-19 | tags code |
//!
//! All big-endian, entry `n` at byte `20 n`, in files of 300,000 entries named by their first byte. The newest entries
//! stay in memory as well: a consumer that keeps up causes no file read, and a queue that gets a message now and then
//! causes no write of 20 bytes. A checkpoint is written only after everything below it is in the files or in the mark of
//! its queue ([`super::queue_marks`]), and synced; what is behind it when the process dies is derived again from the log.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bincode::{Decode, Encode};
use parking_lot::Mutex;
use raft_store::durable;

use super::error::{Error, Result};
use super::file_pool::{FileKey, FilePool};
use super::queue_marks::QueueMark;

/// Size of an entry.
pub(crate) const ENTRY_BYTES: u64 = 20;

/// One entry of a ConsumeQueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    /// Where the message is in the log.
    pub physical_offset: u64,
    /// Bytes of its record.
    pub size: u32,
    /// Hash of its tags.
    pub tags_code: i64,
}

impl QueueEntry {
    fn encode(&self) -> [u8; ENTRY_BYTES as usize] {
        let mut out = [0; ENTRY_BYTES as usize];
        out[..8].copy_from_slice(&self.physical_offset.to_be_bytes());
        out[8..12].copy_from_slice(&self.size.to_be_bytes());
        out[12..].copy_from_slice(&self.tags_code.to_be_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8; ENTRY_BYTES as usize]) -> Self {
        let [p0, p1, p2, p3, p4, p5, p6, p7, s0, s1, s2, s3, tags @ ..] = *bytes;
        Self {
            physical_offset: u64::from_be_bytes([p0, p1, p2, p3, p4, p5, p6, p7]),
            size: u32::from_be_bytes([s0, s1, s2, s3]),
            tags_code: i64::from_be_bytes(tags),
        }
    }
}

/// Where a ConsumeQueue's files are and how large they grow.
#[derive(Debug)]
pub(crate) struct QueueFiles {
    pub(crate) pool: Arc<FilePool>,
    pub(crate) entries_per_file: u64,
}

/// The ConsumeQueue of one queue.
///
/// Only reput appends and flushes; anyone reads.
#[derive(Debug)]
pub(crate) struct ConsumeQueue {
    files: Arc<QueueFiles>,
    /// Its number in the file pool.
    owner: u64,
    dir: PathBuf,
    /// First offset with a message: those below are gone from the log. Raised by retention.
    kept_from: AtomicU64,
    /// Messages below are hidden though the log may still hold them. Raised by entries of the log.
    hidden_end: AtomicU64,
    /// The offset the next message gets. Raised by reput once the entry below can be read.
    max_offset: AtomicU64,
    tail: Mutex<Tail>,
}

/// A stretch of entries in one file, and the checksum of their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Stretch {
    /// The first offset.
    pub(crate) from: u64,
    /// The offset after the last.
    pub(crate) to: u64,
    /// CRC-32 of the entries as they stand in the file.
    pub(crate) crc: u32,
}

/// first <= written <= first + entries.len() = max_offset
#[derive(Debug, Default)]
struct Tail {
    /// Offset of the first entry held in memory.
    first: u64,
    entries: VecDeque<QueueEntry>,
    /// Entries below this offset are in the files.
    written: u64,
    /// What has been written, one stretch for each file, oldest first.
    stretches: Vec<Stretch>,
    /// Files with lower numbers are removed, or being removed.
    files_from: u64,
}

/// What a queue holds in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Entries not in the files yet.
    pub(crate) unwritten: usize,
    /// Entries, those not written included.
    pub(crate) in_memory: usize,
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cached {
    /// In memory.
    Entry(QueueEntry),
    /// In a file.
    OnDisk,
    /// Nowhere: the queue ends before it.
    Beyond,
}

/// A queue file that holds writes not yet synced.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct UnsyncedFile {
    pub(crate) path: PathBuf,
    /// Whether its directory must be synced too.
    pub(crate) created: bool,
}

impl Tail {
    /// The entries that are not in the files, as they will be there.
    fn unwritten(&self) -> Vec<u8> {
        let skip = (self.written - self.first) as usize;
        let mut bytes = Vec::with_capacity((self.entries.len() - skip) * ENTRY_BYTES as usize);
        self.entries.iter().skip(skip).for_each(|entry| bytes.extend_from_slice(&entry.encode()));
        bytes
    }

    /// `bytes`, entries from `from` to `to` of one file, have been written.
    fn note_written(&mut self, from: u64, to: u64, bytes: &[u8], per_file: u64) {
        assert_eq!(from, self.written, "entries are written in order");
        self.written = to;
        match self.stretches.last_mut() {
            Some(last) if last.to == from && last.from / per_file == from / per_file => {
                let mut hasher = crc32fast::Hasher::new_with_initial(last.crc);
                hasher.update(bytes);
                *last = Stretch { from: last.from, to, crc: hasher.finalize() };
            }
            _ => self.stretches.push(Stretch { from, to, crc: crc32fast::hash(bytes) }),
        }
    }
}

impl ConsumeQueue {
    /// The queue below `dir`, holding `min_offset..max_offset` in its files.
    pub(crate) fn new(files: Arc<QueueFiles>, dir: PathBuf, min_offset: u64, max_offset: u64) -> Self {
        assert!(min_offset <= max_offset, "a queue ends after its start");
        let owner = files.pool.new_owner();
        let files_from = min_offset / files.entries_per_file;
        Self {
            files,
            owner,
            dir,
            kept_from: AtomicU64::new(min_offset),
            hidden_end: AtomicU64::new(0),
            max_offset: AtomicU64::new(max_offset),
            tail: Mutex::new(Tail { first: max_offset, written: max_offset, files_from, ..Tail::default() }),
        }
    }

    /// First offset that may be read.
    pub(crate) fn min_offset(&self) -> u64 {
        self.kept_from().max(self.hidden_end.load(Ordering::Acquire))
    }

    fn kept_from(&self) -> u64 {
        self.kept_from.load(Ordering::Acquire)
    }

    /// Hides the messages below `end`, which is at most the end of the queue. The files stay as they are.
    pub(crate) fn hide_below(&self, end: u64) {
        self.hidden_end.fetch_max(end, Ordering::AcqRel);
    }

    pub(crate) fn max_offset(&self) -> u64 {
        self.max_offset.load(Ordering::Acquire)
    }

    /// Raises the first readable offset, never lowers it, and removes the files that lie wholly below it.
    ///
    /// What is not in the files yet still goes there, and is removed by a later call.
    pub(crate) fn raise_min_offset(&self, min_offset: u64) -> Result<()> {
        let min_offset = min_offset.min(self.max_offset());
        self.kept_from.fetch_max(min_offset, Ordering::AcqRel);
        let file_nos = {
            let mut tail = self.tail.lock();
            let from = tail.files_from;
            tail.files_from = from.max(min_offset.min(tail.written) / self.files.entries_per_file);
            from..tail.files_from
        };
        self.remove_files(file_nos)
    }

    /// Removes files below the first readable offset that a crash has left behind.
    pub(crate) fn remove_left_over(&self) -> Result<()> {
        let end = self.kept_from() / self.files.entries_per_file;
        // Files go oldest first, so what is left reaches up to the first one in use.
        let missing = (0..end).rev().find(|file_no| !self.path(*file_no).exists());
        self.remove_files(missing.map_or(0, |missing| missing + 1)..end)
    }

    fn remove_files(&self, file_nos: Range<u64>) -> Result<()> {
        if file_nos.is_empty() {
            return Ok(());
        }
        file_nos.clone().for_each(|file_no| self.files.pool.forget_file(self.key(file_no)));
        let per_file = self.files.entries_per_file;
        self.tail.lock().stretches.retain(|stretch| stretch.from / per_file >= file_nos.end);
        let paths: Vec<PathBuf> = file_nos.map(|file_no| self.path(file_no)).collect();
        Ok(durable::remove_files(paths.iter().map(PathBuf::as_path))?)
    }

    /// Adds the entry of `queue_offset`, which is the next one, and publishes it.
    pub(crate) fn append(&self, queue_offset: u64, entry: QueueEntry) -> Held {
        let mut tail = self.tail.lock();
        assert_eq!(queue_offset, tail.first + tail.entries.len() as u64, "queue entries are dispatched in order");
        tail.entries.push_back(entry);
        let unwritten = (queue_offset + 1 - tail.written) as usize;
        let in_memory = tail.entries.len();
        drop(tail);
        self.max_offset.store(queue_offset + 1, Ordering::Release);
        Held { unwritten, in_memory }
    }

    /// Writes what is not in the files yet and notes the files it went into. After an error it goes on where it failed.
    pub(crate) fn flush(&self, unsynced: &mut Vec<UnsyncedFile>) -> Result<()> {
        let (mut at, bytes) = {
            let tail = self.tail.lock();
            (tail.written, tail.unwritten())
        };
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let file_no = at / self.files.entries_per_file;
            let in_file = at % self.files.entries_per_file;
            let room = ((self.files.entries_per_file - in_file) * ENTRY_BYTES) as usize;
            let (now, later) = rest.split_at(room.min(rest.len()));
            let path = || self.path(file_no);
            let (file, created) = self
                .files
                .pool
                .or_create(self.key(file_no), &path)
                .map_err(|source| self.io("opening", file_no, source))?;
            // First, because only the first of several attempts creates the file.
            unsynced.push(UnsyncedFile { path: path(), created });
            file.write_all_at(now, in_file * ENTRY_BYTES).map_err(|source| self.io("writing", file_no, source))?;
            let next = at + now.len() as u64 / ENTRY_BYTES;
            self.tail.lock().note_written(at, next, now, self.files.entries_per_file);
            at = next;
            rest = later;
        }
        Ok(())
    }

    /// Drops entries from memory that are in the files, but for the newest `keep`. Returns how many are left.
    pub(crate) fn trim(&self, keep: usize) -> usize {
        let mut tail = self.tail.lock();
        let droppable = (tail.written - tail.first) as usize;
        let excess = tail.entries.len().saturating_sub(keep).min(droppable);
        tail.entries.drain(..excess);
        tail.first += excess as u64;
        if tail.entries.capacity() > 4 * tail.entries.len().max(16) {
            let fit = tail.entries.len() * 2;
            tail.entries.shrink_to(fit);
        }
        tail.entries.len()
    }

    /// Up to `count` entries from `from` on, fewer at the end of the queue, and none if `from` lies below its start.
    ///
    /// # Errors
    /// A file that should hold them is missing or short.
    pub(crate) fn read(&self, from: u64, count: usize, out: &mut Vec<QueueEntry>) -> Result<()> {
        let end = self.max_offset().min(from.saturating_add(count as u64));
        let mut at = from;
        while at < end {
            let first = {
                let tail = self.tail.lock();
                if at >= tail.first {
                    let skip = (at - tail.first) as usize;
                    let take = (end - at) as usize;
                    out.extend(tail.entries.iter().skip(skip).take(take));
                    return Ok(());
                }
                tail.first
            };
            at = match self.read_files(at, end.min(first), out) {
                Ok(next) => next,
                // Retention has been here: what was asked for is gone, as if it had been asked for a moment later.
                Err(_) if at < self.kept_from() => return Ok(()),
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    /// The entry at `queue_offset`, if that takes no read.
    pub(crate) fn cached_entry(&self, queue_offset: u64) -> Cached {
        let tail = self.tail.lock();
        let Some(at) = queue_offset.checked_sub(tail.first) else { return Cached::OnDisk };
        tail.entries.get(at as usize).map_or(Cached::Beyond, |entry| Cached::Entry(*entry))
    }

    /// The entry at `queue_offset`.
    pub(crate) fn entry(&self, queue_offset: u64) -> Result<Option<QueueEntry>> {
        let mut one = Vec::with_capacity(1);
        self.read(queue_offset, 1, &mut one)?;
        Ok(one.first().copied())
    }

    /// The first offset whose entry makes `is_before` false; the entries must be sorted by it.
    pub(crate) fn partition_point(&self, mut is_before: impl FnMut(&QueueEntry) -> Result<bool>) -> Result<u64> {
        let (mut low, mut high) = (self.min_offset(), self.max_offset());
        while low < high {
            let middle = low + (high - low) / 2;
            let Some(entry) = self.entry(middle)? else {
                if middle < self.min_offset() {
                    low = middle + 1;
                    continue;
                }
                let what = format!("no entry at queue offset {middle}");
                return Err(Error::Damaged { path: self.dir.clone(), what });
            };
            if is_before(&entry)? {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// What the queue holds now.
    pub(crate) fn mark(&self) -> QueueMark {
        let tail = self.tail.lock();
        QueueMark { stretches: tail.stretches.clone(), unwritten_from: tail.written, unwritten: tail.unwritten() }
    }

    /// How many entries are in memory.
    pub(crate) fn in_memory(&self) -> usize {
        self.tail.lock().entries.len()
    }

    /// Checks that files and mark hold what was there when a checkpoint was made: every entry from the start of the
    /// queue to its end, byte by byte, and the last one names `last_physical_offset`. If so, goes on from there.
    pub(crate) fn matches(&self, last_physical_offset: u64, mark: &QueueMark) -> Result<bool> {
        let (min, max) = (self.kept_from(), self.max_offset());
        if min == max {
            return Ok(true);
        }
        let per_file = self.files.entries_per_file;
        let kept: Vec<Stretch> = mark.stretches.iter().filter(|stretch| stretch.to > min).copied().collect();
        let mut at = min;
        for stretch in &kept {
            let in_one_file = stretch.from < stretch.to && stretch.from / per_file == (stretch.to - 1) / per_file;
            let follows = stretch.from <= at && (stretch.from == at || at == min);
            if !in_one_file || !follows || !self.holds(stretch)? {
                return Ok(false);
            }
            at = stretch.to;
        }
        let Some(unwritten) = mark.entries(at, max) else { return Ok(false) };
        {
            let mut tail = self.tail.lock();
            tail.stretches = kept;
            (tail.first, tail.written) = (at, at);
            tail.entries = unwritten;
        }
        Ok(self.entry(max - 1)?.is_some_and(|last| last.physical_offset == last_physical_offset))
    }

    fn holds(&self, stretch: &Stretch) -> Result<bool> {
        let file_no = stretch.from / self.files.entries_per_file;
        let mut bytes = vec![0; ((stretch.to - stretch.from) * ENTRY_BYTES) as usize];
        let in_file = (stretch.from % self.files.entries_per_file) * ENTRY_BYTES;
        // Not through the pool: each file is looked at once.
        let read = File::open(self.path(file_no)).and_then(|file| file.read_exact_at(&mut bytes, in_file));
        match read {
            Ok(()) => Ok(crc32fast::hash(&bytes) == stretch.crc),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof) => Ok(false),
            Err(error) => Err(self.io("reading", file_no, error)),
        }
    }

    /// Closes its files.
    pub(crate) fn close(&self) {
        self.files.pool.forget(self.owner);
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// A number no other queue has.
    pub(crate) fn number(&self) -> u64 {
        self.owner
    }

    /// Reads entries of one file and returns the offset after the last one read.
    fn read_files(&self, from: u64, end: u64, out: &mut Vec<QueueEntry>) -> Result<u64> {
        let per_file = self.files.entries_per_file;
        let file_no = from / per_file;
        let end = end.min((file_no + 1) * per_file);
        let path = || self.path(file_no);
        let file = self
            .files
            .pool
            .existing(self.key(file_no), &path)
            .map_err(|source| self.io("opening", file_no, source))?
            .ok_or_else(|| Error::Damaged { path: path(), what: "the file is missing".to_owned() })?;
        let mut bytes = vec![0; ((end - from) * ENTRY_BYTES) as usize];
        file.read_exact_at(&mut bytes, (from % per_file) * ENTRY_BYTES).map_err(|source| {
            if source.kind() == io::ErrorKind::UnexpectedEof {
                Error::Damaged { path: path(), what: format!("the file ends before queue offset {end}") }
            } else {
                self.io("reading", file_no, source)
            }
        })?;
        let (entries, _) = bytes.as_chunks::<{ ENTRY_BYTES as usize }>();
        out.extend(entries.iter().map(QueueEntry::decode));
        Ok(end)
    }

    fn key(&self, file_no: u64) -> FileKey {
        FileKey { owner: self.owner, file: file_no }
    }

    fn path(&self, file_no: u64) -> PathBuf {
        self.dir.join(format!("{:020}", file_no * self.files.entries_per_file * ENTRY_BYTES))
    }

    fn io(&self, action: &'static str, file_no: u64, source: io::Error) -> Error {
        Error::Io { action, path: self.path(file_no), source }
    }
}
