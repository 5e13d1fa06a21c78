//! What all ConsumeQueues held as of a checkpoint.
//!
//! RocketMQ's layout has no checksums, and its files need not hold everything yet. So both stand beside the queues, in
//! `consumequeue/.marks.{20 digits}`, one file for each of the newest checkpoints, named by its entry and written before
//! it: checksums of what the files hold, and the entries behind it. A start believes the queues only if every byte is
//! what it was then. However many queues got a message since the last checkpoint, this is one file.
//!
//! | Bytes | Field |
//! | --- | --- |
//! | 0-7 | `GNTRYCQM` |
//! | 8-11 | format version, 1 |
//! | 12.. | the mark of each queue, by topic and queue id, bincode 2 (standard configuration) |
//! | last 4 | CRC-32 over all before |

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bincode::{Decode, Encode};
use raft_store::durable;

use super::consume_queue::{ENTRY_BYTES, QueueEntry, Stretch};
use super::error::{Error, Result};

const MAGIC: [u8; 8] = *b"GNTRYCQM";
const VERSION: u32 = 1;
const PREFIX: &str = ".marks.";
/// The checkpoints that have marks. A start from an older one builds the queues again.
const KEPT: usize = 3;

const CONFIG: bincode::config::Configuration = bincode::config::standard();

/// What one queue held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(crate) struct QueueMark {
    /// What its files held, one stretch for each, oldest first.
    pub(crate) stretches: Vec<Stretch>,
    /// Offset of the first entry that was not in the files yet, or of the next entry to come.
    pub(crate) unwritten_from: u64,
    /// The entries from there on, as they are laid out in files.
    pub(crate) unwritten: Vec<u8>,
}

impl QueueMark {
    /// The entries from `from` to `to`, if it has them all and none behind.
    pub(crate) fn entries(&self, from: u64, to: u64) -> Option<VecDeque<QueueEntry>> {
        let (entries, rest) = self.unwritten.as_chunks::<{ ENTRY_BYTES as usize }>();
        let skip = usize::try_from(from.checked_sub(self.unwritten_from)?).ok()?;
        let ends_there = self.unwritten_from.checked_add(entries.len() as u64) == Some(to);
        (rest.is_empty() && ends_there).then(|| entries.iter().skip(skip).map(QueueEntry::decode).collect())
    }
}

/// The mark of each queue of each topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueMarks {
    topics: BTreeMap<String, Vec<QueueMark>>,
}

impl QueueMarks {
    /// Adds a topic; its queues by id.
    pub(crate) fn put(&mut self, topic: &str, queues: Vec<QueueMark>) {
        self.topics.insert(topic.to_owned(), queues);
    }

    /// The mark of a queue; none if it had no message.
    pub(crate) fn of(&self, topic: &str, queue_id: u32) -> Option<&QueueMark> {
        self.topics.get(topic)?.get(queue_id as usize)
    }

    /// Writes the marks as of entry `index`, durably, and removes those that are not needed any more.
    pub(crate) fn write(&self, dir: &Path, index: u64) -> Result<()> {
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
        let topics = bincode::encode_to_vec(&self.topics, CONFIG).expect("encoding into memory cannot fail");
        out.extend_from_slice(&topics);
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_be_bytes());
        durable::write_file(&path(dir, index), &out)?;
        let mut all = list(dir)?;
        let old = all.len().saturating_sub(KEPT);
        all.truncate(old);
        let old: Vec<PathBuf> = all.into_iter().map(|index| path(dir, index)).collect();
        Ok(durable::remove_files(old.iter().map(PathBuf::as_path))?)
    }

    /// The marks as of entry `index`; none if there are none, or they are damaged themselves.
    pub(crate) fn read(dir: &Path, index: u64) -> Result<Option<Self>> {
        let path = path(dir, index);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::Io { action: "reading", path, source }),
        };
        let marks = Self::decode(&bytes);
        if marks.is_none() {
            tracing::warn!(path = %path.display(), "the marks of the queues are damaged");
        }
        Ok(marks)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        if crc32fast::hash(body) != u32::from_be_bytes(*crc) {
            return None;
        }
        let topics = body.strip_prefix(&MAGIC)?.strip_prefix(&VERSION.to_be_bytes())?;
        let (topics, used) = bincode::decode_from_slice(topics, CONFIG).ok()?;
        (used + MAGIC.len() + 4 == body.len()).then_some(Self { topics })
    }
}

fn path(dir: &Path, index: u64) -> PathBuf {
    dir.join(format!("{PREFIX}{index:020}"))
}

/// The entries there are marks of, oldest first.
fn list(dir: &Path) -> Result<Vec<u64>> {
    let io = |source| Error::Io { action: "listing", path: dir.to_owned(), source };
    let mut all = Vec::new();
    for item in fs::read_dir(dir).map_err(io)? {
        let name = item.map_err(io)?.file_name();
        let index = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        all.extend(index.filter(|digits| digits.len() == 20).and_then(|digits| digits.parse::<u64>().ok()));
    }
    all.sort_unstable();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_marks_are_kept_and_a_damaged_file_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut marks = QueueMarks::default();
        let mark = QueueMark {
            stretches: vec![Stretch { from: 3, to: 9, crc: 7 }],
            unwritten_from: 9,
            unwritten: vec![1; 40],
        };
        marks.put("A", vec![mark.clone(), QueueMark::default()]);
        for index in [5, 70, 600, 8000] {
            marks.write(dir.path(), index).unwrap();
        }
        assert_eq!(list(dir.path()).unwrap(), [70, 600, 8000]);
        let read = QueueMarks::read(dir.path(), 600).unwrap().unwrap();
        assert_eq!(read, marks);
        assert_eq!(read.of("A", 0), Some(&mark));
        assert_eq!((read.of("A", 1), read.of("A", 2), read.of("B", 0)), (Some(&QueueMark::default()), None, None));
        assert_eq!(QueueMarks::read(dir.path(), 5).unwrap(), None);
        let path = path(dir.path(), 70);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            fs::write(&path, bytes).unwrap();
            assert_eq!(QueueMarks::read(dir.path(), 70).unwrap(), None, "{at}");
        }
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(QueueMarks::read(dir.path(), 70).unwrap(), None);
    }
}
