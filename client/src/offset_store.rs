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

#[derive(Debug, Clone, Copy)]
struct Offset {
    consumed: i64,
    is_written: bool,
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
            Some(offset) => *offset = Offset { consumed, is_written: false },
            None => drop(offsets.insert(queue.clone(), Offset { consumed, is_written: false })),
        }
    }

    /// Sets an offset, back if need be.
    pub(crate) fn reset(&self, queue: &Queue, consumed: i64) {
        self.offsets.lock().insert(queue.clone(), Offset { consumed, is_written: false });
    }

    /// The offset known here.
    pub(crate) fn get(&self, queue: &Queue) -> Option<i64> {
        Some(self.offsets.lock().get(queue)?.consumed)
    }

    /// Forgets a queue that others consume from now on.
    pub(crate) fn remove(&self, queue: &Queue) {
        self.offsets.lock().remove(queue);
    }

    /// Writes what has changed since it was last written. What fails is tried again with the next call.
    pub(crate) async fn write_all(&self) {
        let changed: Vec<(Queue, i64)> = {
            let offsets = self.offsets.lock();
            let changed = offsets.iter().filter(|(_, offset)| !offset.is_written);
            changed.map(|(queue, offset)| (queue.clone(), offset.consumed)).collect()
        };
        if changed.is_empty() {
            return;
        }
        match &self.place {
            Place::Brokers(consumer) => {
                for (queue, consumed) in changed {
                    match consumer.commit_oneway(&queue, consumed).await {
                        // A one-way commit may be lost, so it is not final: the next change repeats it, and the
                        // one that ends the consumption of the queue waits for an answer.
                        Ok(()) => self.mark_written(&queue, consumed),
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

    fn mark_written(&self, queue: &Queue, consumed: i64) {
        if let Some(offset) = self.offsets.lock().get_mut(queue)
            && offset.consumed == consumed
        {
            offset.is_written = true;
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
