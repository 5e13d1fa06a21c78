//! All ConsumeQueues, and their directories.
//!
//! `consumequeue/{topic}/{queue id}/` belongs to the topic of that name that lives now. When a topic is deleted its
//! directory moves to `consumequeue/.deleted/{topic}.{index of the entry}`, and is removed once a checkpoint after that
//! entry is durable: a start from an older checkpoint takes it back and applies the deletion again. No topic name holds
//! a dot.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use protocol::TopicName;
use raft_store::durable;

use crate::state_machine::snapshot::Image;
use crate::state_machine::state::TopicHandle;

use super::consume_queue::{ConsumeQueue, QueueFiles};
use super::error::{Error, Result};
use super::queue_marks::{QueueMark, QueueMarks};

const DELETED: &str = ".deleted";
/// A note that the files must not be trusted.
pub(super) const DISTRUSTED: &str = ".distrusted";

/// The ConsumeQueues of one group.
#[derive(Debug)]
pub(crate) struct QueueTable {
    dir: PathBuf,
    files: Arc<QueueFiles>,
    topics: RwLock<HashMap<TopicName, Arc<TopicQueues>>>,
}

/// The ConsumeQueues of one topic.
#[derive(Debug)]
pub(crate) struct TopicQueues {
    name: TopicName,
    born: u64,
    /// By queue id; a queue without messages has none.
    queues: RwLock<Vec<Option<Arc<ConsumeQueue>>>>,
}

/// Where each queue starts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Minimums<'a> {
    /// At its first message.
    Zero,
    /// Where this checkpoint left it: what was before has left the log.
    Of(&'a Image),
}

impl QueueTable {
    pub(crate) fn new(dir: PathBuf, files: Arc<QueueFiles>) -> Self {
        Self { dir, files, topics: RwLock::default() }
    }

    /// The ConsumeQueue of a queue, if it ever had a message.
    pub(crate) fn queue(&self, topic: &str, queue_id: u32) -> Option<Arc<ConsumeQueue>> {
        let topic = self.topics.read().get(topic).cloned()?;
        topic.queue(queue_id)
    }

    /// The queues of a topic, made on its first message.
    pub(crate) fn topic(&self, handle: &TopicHandle) -> Arc<TopicQueues> {
        if let Some(topic) = self.topics.read().get(handle.name.as_str()) {
            assert_eq!(topic.born, handle.born, "a topic ends before it starts again");
            return Arc::clone(topic);
        }
        let topic = Arc::new(TopicQueues { name: handle.name.clone(), born: handle.born, queues: RwLock::default() });
        self.topics.write().insert(handle.name.clone(), Arc::clone(&topic));
        topic
    }

    /// The queue that a message with `queue_offset` goes to.
    pub(crate) fn queue_for(&self, topic: &TopicQueues, queue_id: u32, queue_offset: u64) -> Arc<ConsumeQueue> {
        if let Some(queue) = topic.queue(queue_id) {
            return queue;
        }
        assert_eq!(queue_offset, 0, "a queue is known from its first message");
        let queue = Arc::new(self.make(&topic.name, queue_id, 0, 0));
        topic.set(queue_id, Arc::clone(&queue));
        queue
    }

    /// Ends a topic. Returns the queues it had: they take no more writes. [`QueueTable::set_aside`] comes next.
    pub(crate) fn remove(&self, handle: &TopicHandle) -> Vec<Arc<ConsumeQueue>> {
        let removed = self.topics.write().remove(handle.name.as_str());
        let queues: Vec<Arc<ConsumeQueue>> =
            removed.map(|topic| topic.queues.read().iter().flatten().cloned().collect()).unwrap_or_default();
        queues.iter().for_each(|queue| queue.close());
        queues
    }

    /// Sets the files of a topic aside that entry `index` ended.
    pub(crate) fn set_aside(&self, handle: &TopicHandle, index: u64) -> Result<()> {
        let from = self.dir.join(handle.name.as_str());
        if !from.exists() {
            return Ok(());
        }
        let aside = self.dir.join(DELETED);
        durable::create_directory(&aside)?;
        durable::rename(&from, &aside.join(format!("{}.{index}", handle.name)))?;
        Ok(durable::sync_directory(&self.dir)?)
    }

    /// Removes what was set aside up to entry `index`.
    pub(crate) fn remove_deleted(&self, index: u64) -> Result<()> {
        for (path, _, deleted_at) in self.deleted()? {
            if deleted_at <= index {
                remove_dir(&path)?;
            }
        }
        Ok(())
    }

    /// Makes the table what it was at a checkpoint, from the files. Says whether the files agree; if not, the table
    /// is empty.
    pub(crate) fn restore(&self, image: &Image, minimums: Minimums<'_>) -> Result<bool> {
        durable::create_directory(&self.dir)?;
        if self.dir.join(DISTRUSTED).exists() {
            return Ok(false);
        }
        // Empty queues need none.
        let marks = QueueMarks::read(&self.dir, image.applied.index)?.unwrap_or_default();
        let none = QueueMark::default();
        self.take_back(image.applied.index)?;
        self.remove_unknown(image)?;
        let mut topics = HashMap::with_capacity(image.queues.len());
        for topic in &image.queues {
            let before = match minimums {
                Minimums::Zero => None,
                Minimums::Of(image) => image
                    .queues
                    .binary_search_by(|other| other.name.cmp(&topic.name))
                    .ok()
                    .map(|at| &image.queues[at])
                    .filter(|other| other.born == topic.born),
            };
            let mut queues = Vec::with_capacity(topic.counters.len());
            for (queue_id, counter) in (0..).zip(&topic.counters) {
                if counter.next_offset == 0 {
                    queues.push(None);
                    continue;
                }
                let min_offset = before
                    .and_then(|before| before.counters.get(queue_id as usize))
                    .map_or(0, |before| before.next_offset);
                let queue = self.make(&topic.name, queue_id, min_offset, counter.next_offset);
                queue.remove_left_over()?;
                let mark = marks.of(&topic.name, queue_id).unwrap_or(&none);
                if !queue.matches(counter.last_physical_offset, mark)? {
                    tracing::warn!(dir = %queue.dir().display(), "the queue does not hold what its checkpoint says");
                    self.topics.write().clear();
                    return Ok(false);
                }
                queue.hide_below(counter.hidden_end);
                queues.push(Some(Arc::new(queue)));
            }
            let born = topic.born;
            let queues = TopicQueues { name: topic.name.clone(), born, queues: RwLock::new(queues) };
            topics.insert(topic.name.clone(), Arc::new(queues));
        }
        *self.topics.write() = topics;
        Ok(true)
    }

    /// Removes every file. If there is an image, its queues are known and empty: their next messages follow it.
    pub(crate) fn reset(&self, image: Option<&Image>) -> Result<()> {
        for topic in self.topics.write().drain() {
            topic.1.queues.read().iter().flatten().for_each(|queue| queue.close());
        }
        remove_dir(&self.dir)?;
        durable::create_directory(&self.dir)?;
        let Some(image) = image else { return Ok(()) };
        let agrees = self.restore(image, Minimums::Of(image))?;
        assert!(agrees, "empty queues agree with any checkpoint that starts them");
        Ok(())
    }

    /// Raises the first readable offset of each queue to where a checkpoint left it, and removes files below.
    pub(crate) fn raise_minimums(&self, image: &Image) -> Result<()> {
        for topic in &image.queues {
            let Some(queues) = self.topics.read().get(topic.name.as_str()).cloned() else { continue };
            if queues.born != topic.born {
                continue;
            }
            for (queue_id, counter) in (0..).zip(&topic.counters) {
                if let Some(queue) = queues.queue(queue_id) {
                    queue.raise_min_offset(counter.next_offset)?;
                }
            }
        }
        Ok(())
    }

    /// What all queues hold now. Reput, which alone adds to them, calls this between two entries.
    pub(crate) fn marks(&self) -> QueueMarks {
        let mut marks = QueueMarks::default();
        for topic in self.all() {
            let queues = topic.queues.read();
            let of = |queue: &Option<Arc<ConsumeQueue>>| queue.as_ref().map_or_else(QueueMark::default, |q| q.mark());
            marks.put(&topic.name, queues.iter().map(of).collect());
        }
        marks
    }

    /// The queues that hold entries in memory, and how many.
    pub(crate) fn in_memory(&self) -> Vec<(Arc<ConsumeQueue>, usize)> {
        let mut all = Vec::new();
        for topic in self.all() {
            let held = topic.queues.read().iter().flatten().map(|q| (Arc::clone(q), q.in_memory())).collect::<Vec<_>>();
            all.extend(held.into_iter().filter(|(_, count)| *count > 0));
        }
        all
    }

    fn all(&self) -> Vec<Arc<TopicQueues>> {
        self.topics.read().values().cloned().collect()
    }

    /// Has all queues built again at the next start, because an entry was found to be wrong.
    pub(crate) fn distrust(&self, error: &Error) {
        tracing::error!(%error, "the ConsumeQueues are built again at the next start");
        if let Err(error) = durable::write_file(&self.dir.join(DISTRUSTED), b"") {
            tracing::error!(%error, "this could not be noted");
        }
    }

    /// The directory of all queues.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory of a queue.
    pub(crate) fn dir_of(&self, topic: &str, queue_id: u32) -> PathBuf {
        self.dir.join(topic).join(queue_id.to_string())
    }

    fn make(&self, topic: &TopicName, queue_id: u32, min_offset: u64, max_offset: u64) -> ConsumeQueue {
        let dir = self.dir_of(topic, queue_id);
        ConsumeQueue::new(Arc::clone(&self.files), dir, min_offset, max_offset)
    }

    /// Gives topics deleted after entry `index` their files back, and removes those of topics deleted before.
    fn take_back(&self, index: u64) -> Result<()> {
        let mut deleted = self.deleted()?;
        // The oldest one after the entry is the one that lived then; it is taken back last.
        deleted.sort_unstable_by_key(|(_, _, deleted_at)| std::cmp::Reverse(*deleted_at));
        for (path, topic, deleted_at) in deleted {
            if deleted_at > index {
                let live = self.dir.join(&topic);
                remove_dir(&live)?;
                durable::rename(&path, &live)?;
            } else {
                remove_dir(&path)?;
            }
        }
        Ok(())
    }

    /// Removes the files of topics that the checkpoint does not know: replay makes them again.
    fn remove_unknown(&self, image: &Image) -> Result<()> {
        for (path, name) in directories(&self.dir)? {
            let known = image.queues.binary_search_by(|topic| topic.name.as_str().cmp(&name)).is_ok();
            if !known && name != DELETED {
                remove_dir(&path)?;
            }
        }
        Ok(())
    }

    /// Path, topic, and index of the deletion.
    fn deleted(&self) -> Result<Vec<(PathBuf, String, u64)>> {
        let all = directories(&self.dir.join(DELETED))?.into_iter().filter_map(|(path, name)| {
            let (topic, index) = name.rsplit_once('.')?;
            Some((path, topic.to_owned(), index.parse().ok()?))
        });
        Ok(all.collect())
    }
}

impl TopicQueues {
    fn queue(&self, queue_id: u32) -> Option<Arc<ConsumeQueue>> {
        self.queues.read().get(queue_id as usize)?.clone()
    }

    fn set(&self, queue_id: u32, queue: Arc<ConsumeQueue>) {
        let mut queues = self.queues.write();
        let at = queue_id as usize;
        if queues.len() <= at {
            queues.resize(at + 1, None);
        }
        queues[at] = Some(queue);
    }
}

fn directories(dir: &Path) -> Result<Vec<(PathBuf, String)>> {
    let io = |source| Error::Io { action: "listing", path: dir.to_owned(), source };
    let items = match fs::read_dir(dir) {
        Ok(items) => items,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io(error)),
    };
    let mut all = Vec::new();
    for item in items {
        let item = item.map_err(io)?;
        if !item.file_type().map_err(io)?.is_dir() {
            continue;
        }
        all.push((item.path(), item.file_name().to_string_lossy().into_owned()));
    }
    Ok(all)
}

fn remove_dir(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(Error::Io { action: "removing", path: dir.to_owned(), source }),
    }
}
