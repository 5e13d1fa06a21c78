//! How far a consumer has come: kept by the brokers for a group that shares messages, in a file for one that does not.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::io::Write as _;
use std::path::Path;
use std::path::PathBuf;

use parking_lot::Mutex;

use crate::Error;
use crate::PullConsumer;
use crate::Queue;
use crate::Result;

/// Consumed offsets that are collected and written now and then.
#[derive(Debug)]
pub(crate) struct OffsetStore {
    place: Place,
    offsets: Mutex<HashMap<Queue, Offset>>,
}

#[derive(Debug)]
pub(crate) enum Place {
    Brokers(PullConsumer),
    File(PathBuf),
    /// Gone with the process.
    Memory,
}

/// A one-way commit may get lost, as those on their way to a leader that changes do. So each offset is committed in so
/// many rounds.
const ROUNDS: u8 = 2;

#[derive(Debug, Clone, Copy)]
struct Offset {
    consumed: i64,
    /// Rounds in which it is still to be committed; none once it is known to be.
    rounds_left: u8,
}

impl Offset {
    fn new(consumed: i64) -> Self {
        Self { consumed, rounds_left: ROUNDS }
    }
}

impl OffsetStore {
    pub(crate) fn new(place: Place) -> Self {
        Self { place, offsets: Mutex::new(HashMap::new()) }
    }

    /// What was committed for `queue`.
    pub(crate) async fn read(&self, queue: &Queue) -> Result<Option<i64>> {
        match &self.place {
            Place::Brokers(consumer) => consumer.committed_offset(queue).await,
            Place::File(path) => Ok(read_file(path)?.get(&queue.to_string()).copied()),
            Place::Memory => Ok(None),
        }
    }

    /// Everything of `queue` before `consumed` is consumed. Offsets only grow here.
    pub(crate) fn update(&self, queue: &Queue, consumed: i64) {
        let mut offsets = self.offsets.lock();
        match offsets.get_mut(queue) {
            Some(offset) if offset.consumed >= consumed => {}
            Some(offset) => *offset = Offset::new(consumed),
            None => drop(offsets.insert(queue.clone(), Offset::new(consumed))),
        }
    }

    /// Sets an offset, back if need be.
    pub(crate) fn reset(&self, queue: &Queue, consumed: i64) {
        self.offsets.lock().insert(queue.clone(), Offset::new(consumed));
    }

    /// The offset known here.
    pub(crate) fn get(&self, queue: &Queue) -> Option<i64> {
        Some(self.offsets.lock().get(queue)?.consumed)
    }

    /// Forgets a queue that others consume from now on.
    pub(crate) fn remove(&self, queue: &Queue) {
        self.offsets.lock().remove(queue);
    }

    /// What is still to be written.
    fn due(&self) -> Vec<(Queue, i64)> {
        let offsets = self.offsets.lock();
        let due = offsets.iter().filter(|(_, offset)| offset.rounds_left > 0);
        due.map(|(queue, offset)| (queue.clone(), offset.consumed)).collect()
    }

    /// Writes what is not known to be written. What fails is tried again with the next call.
    pub(crate) async fn write_all(&self) {
        let changed = self.due();
        if changed.is_empty() {
            return;
        }
        match &self.place {
            Place::Brokers(consumer) => {
                for (queue, consumed) in changed {
                    match consumer.commit_oneway(&queue, consumed).await {
                        // The one that ends the consumption of the queue waits for an answer.
                        Ok(()) => self.mark_sent(&queue, consumed),
                        Err(error) => tracing::debug!(%queue, %error, "consumed offset is not committed yet"),
                    }
                }
            }
            Place::File(path) => {
                let written = self.write_file(path);
                match written {
                    Ok(()) => changed.iter().for_each(|(queue, consumed)| self.mark_written(queue, *consumed)),
                    Err(error) => tracing::warn!(path = %path.display(), %error, "consumed offsets are not written"),
                }
            }
            Place::Memory => {}
        }
    }

    /// Writes the offset of one queue and waits until it is known.
    pub(crate) async fn write(&self, queue: &Queue) {
        let Some(consumed) = self.get(queue) else { return };
        match &self.place {
            Place::Brokers(consumer) => match consumer.commit(queue, consumed).await {
                Ok(()) => self.mark_written(queue, consumed),
                Err(error) => tracing::debug!(%queue, %error, "consumed offset is not committed"),
            },
            _ => self.write_all().await,
        }
    }

    /// `consumed` has been sent and may arrive.
    fn mark_sent(&self, queue: &Queue, consumed: i64) {
        if let Some(offset) = self.offsets.lock().get_mut(queue).filter(|offset| offset.consumed == consumed) {
            offset.rounds_left = offset.rounds_left.saturating_sub(1);
        }
    }

    /// `consumed` is where it belongs.
    fn mark_written(&self, queue: &Queue, consumed: i64) {
        if let Some(offset) = self.offsets.lock().get_mut(queue).filter(|offset| offset.consumed == consumed) {
            offset.rounds_left = 0;
        }
    }

    fn write_file(&self, path: &Path) -> Result<()> {
        let mut all = read_file(path)?;
        for (queue, offset) in self.offsets.lock().iter() {
            all.insert(queue.to_string(), offset.consumed);
        }
        let write = || {
            if let Some(directory) = path.parent() {
                std::fs::create_dir_all(directory)?;
            }
            let text = serde_json::to_vec_pretty(&all)?;
            let mut file = std::fs::File::create(path.with_extension("new"))?;
            file.write_all(&text)?;
            file.sync_all()?;
            #[expect(clippy::disallowed_methods, reason = "a lost file makes a broadcast consumer start anew, no more")]
            std::fs::rename(path.with_extension("new"), path)
        };
        write().map_err(Error::OffsetFile)
    }
}

fn read_file(path: &Path) -> Result<BTreeMap<String, i64>> {
    match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|error| Error::OffsetFile(error.into())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(Error::OffsetFile(error)),
    }
}

#[cfg(test)]
mod tests {
    use protocol::TopicName;

    use super::*;

    fn queue(queue_id: i32) -> Queue {
        Queue { topic: TopicName::parse("T").unwrap(), broker_name: "b".into(), queue_id }
    }

    #[test]
    fn offsets_grow_unless_they_are_reset() {
        let store = OffsetStore::new(Place::Memory);
        store.update(&queue(0), 5);
        store.update(&queue(0), 3);
        assert_eq!(store.get(&queue(0)), Some(5));
        store.reset(&queue(0), 3);
        assert_eq!(store.get(&queue(0)), Some(3));
        store.remove(&queue(0));
        assert_eq!(store.get(&queue(0)), None);
    }

    #[test]
    fn a_commit_that_may_get_lost_is_repeated() {
        let store = OffsetStore::new(Place::Memory);
        store.update(&queue(0), 5);
        store.mark_sent(&queue(0), 5);
        assert_eq!(store.due(), [(queue(0), 5)]);
        store.mark_sent(&queue(0), 5);
        assert_eq!(store.due(), []);
        store.update(&queue(0), 6);
        // That was about what it was before.
        store.mark_written(&queue(0), 5);
        assert_eq!(store.due(), [(queue(0), 6)]);
        store.mark_written(&queue(0), 6);
        assert_eq!(store.due(), []);
    }

    #[tokio::test]
    async fn file_keeps_the_offsets_of_all_queues() {
        let directory = std::env::temp_dir().join(format!("gantry-offsets-{}", std::process::id()));
        let path = directory.join("group.json");
        let store = OffsetStore::new(Place::File(path.clone()));
        assert_eq!(store.read(&queue(0)).await.unwrap(), None);
        store.update(&queue(0), 5);
        store.write_all().await;
        let other = OffsetStore::new(Place::File(path));
        other.update(&queue(1), 7);
        other.write_all().await;
        assert_eq!(store.read(&queue(0)).await.unwrap(), Some(5));
        assert_eq!(store.read(&queue(1)).await.unwrap(), Some(7));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
