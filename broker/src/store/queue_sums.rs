//! Checksums of all ConsumeQueues as of a checkpoint.
//!
//! RocketMQ's layout has none, so they stand beside the queues, in `consumequeue/.sums.{20 digits}`, one file for each
//! of the newest checkpoints, named by its entry and written before it. A start believes the queues only if every byte
//! is what it was then.
//!
//! | Bytes | Field |
//! | --- | --- |
//! | 0-7 | `GNTRYSUM` |
//! | 8-11 | format version, 1 |
//! | 12.. | the stretches of each queue, by topic and queue id, bincode 2 (standard configuration) |
//! | last 4 | CRC-32 over all before |

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use raft_store::durable;

use super::consume_queue::Stretch;
use super::error::{Error, Result};

const MAGIC: [u8; 8] = *b"GNTRYSUM";
const VERSION: u32 = 1;
const PREFIX: &str = ".sums.";
/// The checkpoints that have checksums. A start from an older one builds the queues again.
const KEPT: usize = 3;

const CONFIG: bincode::config::Configuration = bincode::config::standard();

/// The stretches of each queue of each topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueSums {
    topics: BTreeMap<String, Vec<Vec<Stretch>>>,
}

impl QueueSums {
    /// Adds a topic; its queues by id.
    pub(crate) fn put(&mut self, topic: &str, queues: Vec<Vec<Stretch>>) {
        self.topics.insert(topic.to_owned(), queues);
    }

    /// The stretches of a queue.
    pub(crate) fn of(&self, topic: &str, queue_id: u32) -> &[Stretch] {
        self.topics.get(topic).and_then(|queues| queues.get(queue_id as usize)).map_or(&[], Vec::as_slice)
    }

    /// Writes the checksums as of entry `index`, durably, and removes those that are not needed any more.
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

    /// The checksums as of entry `index`; none if there are none, or they are damaged themselves.
    pub(crate) fn read(dir: &Path, index: u64) -> Result<Option<Self>> {
        let path = path(dir, index);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::Io { action: "reading", path, source }),
        };
        let sums = Self::decode(&bytes);
        if sums.is_none() {
            tracing::warn!(path = %path.display(), "the checksums of the queues are damaged");
        }
        Ok(sums)
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

/// The entries there are checksums of, oldest first.
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
    fn only_the_newest_checksums_are_kept_and_a_damaged_file_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut sums = QueueSums::default();
        sums.put("A", vec![vec![Stretch { from: 3, to: 9, crc: 7 }], vec![]]);
        for index in [5, 70, 600, 8000] {
            sums.write(dir.path(), index).unwrap();
        }
        assert_eq!(list(dir.path()).unwrap(), [70, 600, 8000]);
        let read = QueueSums::read(dir.path(), 600).unwrap().unwrap();
        assert_eq!(read, sums);
        assert_eq!(read.of("A", 0), [Stretch { from: 3, to: 9, crc: 7 }]);
        assert_eq!((read.of("A", 1), read.of("A", 2), read.of("B", 0)), (&[][..], &[][..], &[][..]));
        assert_eq!(QueueSums::read(dir.path(), 5).unwrap(), None);
        let path = path(dir.path(), 70);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            fs::write(&path, bytes).unwrap();
            assert_eq!(QueueSums::read(dir.path(), 70).unwrap(), None, "{at}");
        }
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(QueueSums::read(dir.path(), 70).unwrap(), None);
    }
}
