//! Checkpoints and derived files of a stopped replica, compared with its log. Changes nothing.
//!
//! A start believes the newest checkpoint and what the files hold up to it; everything behind comes again from the
//! log. So that much is checked: each entry of a ConsumeQueue must name a message of that queue, in order and without a
//! hole, and the index must agree with its mark.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use protocol::message::iter_records;
use raft_store::{LogId, LogPosition};

use super::checkpoint::Checkpoints;
use super::consume_queue::{ENTRY_BYTES, QueueEntry};
use super::queue_marks::{QueueMark, QueueMarks};
use super::queue_table::DISTRUSTED;
use super::{StoreOptions, key_index, reput};
use crate::delay_levels::SCHEDULE_TOPIC;
use crate::state_machine::command::records_start;
use crate::state_machine::snapshot::Image;

/// Entries of a ConsumeQueue read at once.
const READ_ENTRIES: u64 = 4096;

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DerivedFinding {
    /// The file.
    pub file: PathBuf,
    /// What was found.
    pub found: String,
}

/// A comparison under way: the log is fed to it entry by entry.
pub struct DerivedCheck {
    findings: Vec<DerivedFinding>,
    /// Term and position that a checkpoint says an entry has.
    checkpoints: HashMap<u64, (u64, u64, PathBuf)>,
    queues: HashMap<String, HashMap<u32, Cursor>>,
    /// Where the log that is fed begins: older messages are gone.
    log_start: Option<u64>,
    /// Files in `consumequeue/` are behind this checkpoint only until they are built again.
    checked_entries: u64,
}

/// Reads the entries of one ConsumeQueue in order.
struct Cursor {
    dir: PathBuf,
    entries_per_file: u64,
    /// Offset of the first entry in `read`.
    next: u64,
    in_files_to: u64,
    /// The entries behind those in files, until they are read.
    unwritten: VecDeque<QueueEntry>,
    read: VecDeque<QueueEntry>,
    /// Nothing more is compared once something was wrong.
    broken: bool,
}

impl DerivedCheck {
    /// Reads the checkpoints in the group directory `dir` and gets ready for its log.
    #[must_use]
    pub fn open(dir: &Path, cluster_id: [u8; 16]) -> Self {
        let options = StoreOptions::new(dir, cluster_id, 0);
        let mut check = Self {
            findings: Vec::new(),
            checkpoints: HashMap::new(),
            queues: HashMap::new(),
            log_start: None,
            checked_entries: 0,
        };
        let newest = check.read_checkpoints(&options);
        if let Some(image) = newest
            && !dir.join("consumequeue").join(DISTRUSTED).exists()
        {
            check.open_queues(&options, &image);
        }
        if dir.join("index").is_dir()
            && let Err(error) = key_index::check(&dir.join("index"), options.index_sizes)
        {
            check.add(&dir.join("index"), error);
        }
        check
    }

    fn add(&mut self, file: &Path, found: impl ToString) {
        self.findings.push(DerivedFinding { file: file.to_owned(), found: found.to_string() });
    }

    fn read_checkpoints(&mut self, options: &StoreOptions) -> Option<Image> {
        let dir = options.dir.join("checkpoints");
        if !dir.is_dir() {
            return None;
        }
        let checkpoints = Checkpoints::look(dir.clone());
        let indexes = checkpoints.list().map_err(|error| self.add(&dir, error)).unwrap_or_default();
        let mut newest = None;
        for index in indexes.iter().copied() {
            let path = checkpoints.path(index);
            match checkpoints.read(index) {
                Err(error) => self.add(&path, error),
                Ok((image, _)) if image.cluster_id != options.cluster_id => {
                    self.add(&path, "it belongs to another cluster");
                }
                Ok((image, _)) => {
                    self.checkpoints.insert(index, (image.applied.term, image.last_position, path));
                    newest = Some(image);
                }
            }
        }
        match checkpoints.current() {
            Err(error) => self.add(&dir.join("current"), error),
            Ok(Some(current)) if !indexes.contains(&current) => {
                self.add(&dir.join("current"), format!("it names the checkpoint of entry {current}, which is missing"));
            }
            Ok(_) => {}
        }
        newest
    }

    fn open_queues(&mut self, options: &StoreOptions, image: &Image) {
        let all = options.dir.join("consumequeue");
        let marks = QueueMarks::read(&all, image.applied.index).map_err(|error| self.add(&all, error));
        let marks = marks.ok().flatten().unwrap_or_default();
        let none = QueueMark::default();
        for topic in &image.queues {
            for (queue_id, counter) in (0..).zip(&topic.counters) {
                if counter.next_offset == 0 {
                    continue;
                }
                let mark = marks.of(&topic.name, queue_id).unwrap_or(&none);
                let dir = options.dir.join("consumequeue").join(topic.name.as_str()).join(format!("{queue_id}"));
                let cursor = Cursor::open(dir, options.entries_per_queue_file, counter.next_offset, mark);
                self.queues.entry(topic.name.to_string()).or_default().insert(queue_id, cursor);
            }
        }
    }

    /// Compares one entry of the log, the next one. The payload starts behind the record's header.
    pub fn entry(&mut self, id: LogId, payload_start: LogPosition, payload: &[u8]) {
        let position = payload_start.get() - raft_store::RECORD_HEADER_BYTES;
        let log_start = *self.log_start.get_or_insert(position);
        if let Some((term, at, path)) = self.checkpoints.remove(&id.index.get())
            && (term, at) != (id.term.get(), position)
        {
            let found = format!("it says entry {term}-{} lies at {at}, but {id} does, at {position}", id.index);
            self.add(&path, found);
        }
        let Some(first) = records_start(payload) else { return };
        let mut at = payload_start.get() + first as u64;
        for record in iter_records(payload.get(first..).unwrap_or_default()) {
            let Ok(record) = record else { return };
            let queue_id = u32::try_from(record.queue_id()).unwrap_or(u32::MAX);
            if let Some(cursor) = self.queues.get_mut(record.topic()).and_then(|queues| queues.get_mut(&queue_id)) {
                let size = u32::try_from(record.size()).unwrap_or(u32::MAX);
                let tags_code = (record.topic() != SCHEDULE_TOPIC).then(|| reput::describe(&record).tags_code);
                match cursor.compare(at, size, tags_code, log_start) {
                    Ok(matched) => self.checked_entries += u64::from(matched),
                    Err(found) => {
                        let dir = cursor.dir.clone();
                        self.add(&dir, found);
                    }
                }
            }
            at += record.size() as u64;
        }
    }

    /// How many entries of ConsumeQueues named the message they should.
    #[must_use]
    pub fn checked_entries(&self) -> u64 {
        self.checked_entries
    }

    /// Ends the comparison behind the last entry. `whole` says that the log was fed without a gap.
    #[must_use]
    pub fn finish(mut self, whole: bool) -> Vec<DerivedFinding> {
        if whole && let Some(log_start) = self.log_start {
            let cursors = std::mem::take(&mut self.queues).into_values().flat_map(HashMap::into_values);
            for mut cursor in cursors {
                match cursor.peek() {
                    Ok(Some(entry)) if entry.physical_offset >= log_start => {
                        let found = format!("offset {} names no message of this queue", cursor.next);
                        self.add(&cursor.dir, found);
                    }
                    Ok(_) => {}
                    Err(found) => self.add(&cursor.dir, found),
                }
            }
        }
        self.findings
    }
}

impl Cursor {
    fn open(dir: PathBuf, entries_per_file: u64, end: u64, mark: &QueueMark) -> Self {
        let unwritten = mark.entries(mark.unwritten_from, end).unwrap_or_default();
        let in_files_to = end - unwritten.len() as u64;
        // Retention removes whole files from the front.
        let files = fs::read_dir(&dir).into_iter().flatten().flatten();
        let first = files.filter_map(|file| file.file_name().to_str()?.parse::<u64>().ok()).min();
        let marked = mark.stretches.first().map_or(mark.unwritten_from, |stretch| stretch.from);
        let next = first.map_or(marked, |byte| byte / ENTRY_BYTES).min(in_files_to);
        Self { dir, entries_per_file, next, in_files_to, unwritten, read: VecDeque::new(), broken: false }
    }

    /// The next entry that must be there, `None` behind the last one.
    fn peek(&mut self) -> Result<Option<QueueEntry>, String> {
        if self.broken {
            return Ok(None);
        }
        if self.read.is_empty() && self.next == self.in_files_to {
            self.read = std::mem::take(&mut self.unwritten);
        }
        if self.read.is_empty() && self.next < self.in_files_to {
            let (file_no, in_file) = (self.next / self.entries_per_file, self.next % self.entries_per_file);
            let count = READ_ENTRIES.min(self.in_files_to - self.next).min(self.entries_per_file - in_file);
            let name = format!("{:020}", file_no * self.entries_per_file * ENTRY_BYTES);
            let mut bytes = vec![0; usize::try_from(count * ENTRY_BYTES).expect("a few pages")];
            let read =
                File::open(self.dir.join(&name)).and_then(|file| file.read_exact_at(&mut bytes, in_file * ENTRY_BYTES));
            if let Err(error) = read {
                self.broken = true;
                let short = error.kind() == io::ErrorKind::UnexpectedEof;
                let what = if short { "the file is too short".to_owned() } else { error.to_string() };
                return Err(format!("{name}, offset {}: {what}", self.next));
            }
            let (entries, _) = bytes.as_chunks::<{ ENTRY_BYTES as usize }>();
            self.read.extend(entries.iter().map(QueueEntry::decode));
        }
        Ok(self.read.front().copied())
    }

    /// Takes the entry that names the message of `size` bytes at `at`, if it is the next. A message that was refused has
    /// none. Without `tags_code` any will do: the delivery time of a message that waits depends on the configuration.
    fn compare(&mut self, at: u64, size: u32, tags_code: Option<i64>, log_start: u64) -> Result<bool, String> {
        loop {
            let Some(entry) = self.peek()? else { return Ok(false) };
            if entry.physical_offset > at {
                return Ok(false);
            }
            let offset = self.next;
            self.read.pop_front();
            self.next += 1;
            let expected = QueueEntry { physical_offset: at, size, tags_code: tags_code.unwrap_or(entry.tags_code) };
            if entry == expected {
                return Ok(true);
            }
            if entry.physical_offset >= log_start {
                self.broken = true;
                return Err(format!(
                    "offset {offset} names {} bytes at {}, expected {} bytes at {}",
                    entry.size, entry.physical_offset, size, at
                ));
            }
        }
    }
}
