//! Reads of stored messages: by queue, by place, by time, by key.
//!
//! A record in the log has both its offsets zero, the same bytes on every replica. They are filled in here, on the way
//! to a client. Nothing here sees a message before reput has put it into its queue.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use protocol::message::{RecordView, SysFlag, iter_records, patch_offsets};
use tokio::sync::watch;

use crate::state_machine::command::records_start;

use super::consume_queue::{Cached, ConsumeQueue, QueueEntry};
use super::error::{Error, Result};
use super::key_index::{IndexProgress, KeyIndex};
use super::log::Log;
use super::queue_table::QueueTable;
use super::reput::{self, Dispatched};

/// Queue entries looked at per request, unless more messages are wanted.
const SCAN_ENTRIES_MIN: usize = 800;
/// Queue entries read at once.
const SCAN_STEP: usize = 64;
/// Bytes of a record up to its store time, whatever its hosts. No record is shorter.
const RECORD_HEAD_BYTES: u64 = 76;
/// The first message of the log is looked for in so many entries: those without messages are few between them.
const FIRST_MESSAGE_ENTRIES_MAX: u64 = 1000;
/// The most messages a query by key returns.
pub(crate) const KEY_QUERY_MAX: usize = 64;

/// How much one pull may return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullLimits {
    /// Messages in memory.
    pub hot_messages_max: usize,
    /// Their bytes.
    pub hot_bytes_max: usize,
    /// Messages on disk.
    pub cold_messages_max: usize,
    /// Their bytes.
    pub cold_bytes_max: usize,
    /// The newest bytes of the log that count as in memory.
    pub hot_log_bytes: u64,
}

/// What a pull found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullOutcome {
    /// What became of it.
    pub status: PullStatus,
    /// Where the next pull starts.
    pub next_begin_offset: u64,
    /// First offset of the queue.
    pub min_offset: u64,
    /// The offset the queue's next message will get.
    pub max_offset: u64,
    /// How many messages there are in `parts`.
    pub messages: usize,
    /// Message records back to back, both offsets filled in.
    pub parts: Vec<Bytes>,
}

/// What became of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullStatus {
    /// There are messages.
    Found,
    /// There were entries, none of which passed the filter.
    NoMatchedMessage,
    /// There were entries whose messages have left the log.
    MessageWasRemoving,
    /// The queue never had a message.
    NoMessageInQueue,
    /// The offset is that of the next message.
    OffsetOverflowOne,
    /// The offset lies further beyond the end.
    OffsetOverflowBadly,
    /// The offset lies below the first message.
    OffsetTooSmall,
}

impl PullStatus {
    /// Its name in an answer's remark.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Found => "FOUND",
            Self::NoMatchedMessage => "NO_MATCHED_MESSAGE",
            Self::MessageWasRemoving => "MESSAGE_WAS_REMOVING",
            Self::NoMessageInQueue => "NO_MESSAGE_IN_QUEUE",
            Self::OffsetOverflowOne => "OFFSET_OVERFLOW_ONE",
            Self::OffsetOverflowBadly => "OFFSET_OVERFLOW_BADLY",
            Self::OffsetTooSmall => "OFFSET_TOO_SMALL",
        }
    }
}

/// Which of several entries of one time a search returns, and what it returns if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeBoundary {
    /// The first of them, else the next later one.
    Lower,
    /// The last of them, else the one before.
    Upper,
}

/// What a query by key found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyQueryOutcome {
    /// Message records, newest first, both offsets filled in.
    pub messages: Vec<Bytes>,
    /// When and where the index was last added to.
    pub index_progress: IndexProgress,
}

/// Reads of stored messages. Cheap to clone.
///
/// Reads of old messages wait for the disk: ask [`MessageStore::is_hot`] first where that matters.
#[derive(Clone)]
pub struct MessageStore {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) log: Arc<dyn Log>,
    pub(crate) table: Arc<QueueTable>,
    pub(crate) index: Arc<KeyIndex>,
    pub(crate) dispatched: Arc<Dispatched>,
    /// Index after the last entry dispatched.
    pub(crate) dispatched_end: watch::Receiver<u64>,
    pub(crate) limits: PullLimits,
    /// Index of the first entry, and the time of the first message from there on.
    pub(crate) earliest: parking_lot::Mutex<Option<(u64, i64)>>,
}

impl MessageStore {
    pub(crate) fn new(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// Messages of a queue from `from_offset` on, as many as limits allow, and at least one if there is one.
    ///
    /// `filter` is asked about each entry, and about the message of each that may pass. At most [`PullLimits`], `messages_max` and `bytes_max` are
    /// returned, the first message excepted from the bytes.
    ///
    /// # Errors
    /// The log or a queue file cannot be read: nothing is known about the queue then.
    pub fn get_messages(
        &self,
        topic: &str,
        queue_id: u32,
        from_offset: i64,
        messages_max: usize,
        bytes_max: usize,
        filter: &dyn PullFilter,
    ) -> Result<PullOutcome> {
        let queue = self.inner.table.queue(topic, queue_id);
        let (min_offset, max_offset) = queue.as_ref().map_or((0, 0), |queue| (queue.min_offset(), queue.max_offset()));
        let empty = |status, next_begin_offset| PullOutcome {
            status,
            next_begin_offset,
            min_offset,
            max_offset,
            messages: 0,
            parts: Vec::new(),
        };
        let Some(queue) = queue.filter(|_| max_offset > 0) else {
            return Ok(empty(PullStatus::NoMessageInQueue, 0));
        };
        let from = match u64::try_from(from_offset) {
            Ok(from) if from >= min_offset => from,
            _ => return Ok(empty(PullStatus::OffsetTooSmall, min_offset)),
        };
        if from == max_offset {
            return Ok(empty(PullStatus::OffsetOverflowOne, from));
        }
        if from > max_offset {
            return Ok(empty(PullStatus::OffsetOverflowBadly, max_offset));
        }
        let mut pull = Pull {
            store: &self.inner,
            topic,
            queue_id,
            max_offset,
            messages_max: messages_max.max(1),
            bytes_max,
            filter,
            out: BytesMut::new(),
            messages: 0,
            removed: 0,
        };
        let next_begin_offset = pull.scan(&queue, from)?;
        let status = match (pull.messages, pull.removed) {
            (0, 0) => PullStatus::NoMatchedMessage,
            (0, _) => PullStatus::MessageWasRemoving,
            _ => PullStatus::Found,
        };
        let parts = if pull.messages > 0 { vec![pull.out.freeze()] } else { Vec::new() };
        Ok(PullOutcome { messages: pull.messages, parts, ..empty(status, next_begin_offset) })
    }

    /// Whether messages from this offset on are in memory, so that a pull does not wait for the disk. Offsets without
    /// a message count as in memory.
    pub fn is_hot(&self, topic: &str, queue_id: u32, from_offset: i64) -> bool {
        let Some(queue) = self.inner.table.queue(topic, queue_id) else { return true };
        let Ok(from) = u64::try_from(from_offset) else { return true };
        match queue.cached_entry(from) {
            Cached::Entry(entry) => self.inner.is_hot(entry.physical_offset),
            Cached::OnDisk => false,
            Cached::Beyond => true,
        }
    }

    /// First offset that may be read.
    pub fn min_offset(&self, topic: &str, queue_id: u32) -> u64 {
        self.inner.table.queue(topic, queue_id).map_or(0, |queue| queue.min_offset())
    }

    /// The offset the next message will get. Each message below can be pulled.
    pub fn max_offset(&self, topic: &str, queue_id: u32) -> u64 {
        self.inner.table.queue(topic, queue_id).map_or(0, |queue| queue.max_offset())
    }

    /// The offset that a search for a store time ends at.
    ///
    /// # Errors
    /// The log or a queue file cannot be read.
    pub fn offset_by_time(&self, topic: &str, queue_id: u32, time_ms: i64, boundary: TimeBoundary) -> Result<u64> {
        let Some(queue) = self.inner.table.queue(topic, queue_id) else { return Ok(0) };
        loop {
            let (min_offset, max_offset) = (queue.min_offset(), queue.max_offset());
            if min_offset == max_offset {
                return Ok(min_offset);
            }
            let after = queue.partition_point(|entry| {
                let stored = self.inner.store_time(entry)?;
                Ok(stored < time_ms || (boundary == TimeBoundary::Upper && stored == time_ms))
            });
            match (after, boundary) {
                // Retention took the messages that were being looked at.
                (Err(_), _) if queue.min_offset() > min_offset => {}
                (Err(error), _) => return Err(error),
                (Ok(after), TimeBoundary::Lower) => return Ok(after.max(queue.min_offset())),
                (Ok(after), TimeBoundary::Upper) => return Ok(after.saturating_sub(1).max(queue.min_offset())),
            }
        }
    }

    /// Store time of the first message that may be read.
    ///
    /// # Errors
    /// The log or a queue file cannot be read.
    pub fn earliest_store_time(&self, topic: &str, queue_id: u32) -> Result<Option<i64>> {
        self.store_time(topic, queue_id, self.min_offset(topic, queue_id))
    }

    /// Store time of the message at `queue_offset`.
    ///
    /// # Errors
    /// The log or a queue file cannot be read.
    pub fn store_time(&self, topic: &str, queue_id: u32, queue_offset: u64) -> Result<Option<i64>> {
        let Some(queue) = self.inner.table.queue(topic, queue_id) else { return Ok(None) };
        if queue_offset < queue.min_offset() {
            return Ok(None);
        }
        let time = queue.entry(queue_offset)?.map(|entry| self.inner.store_time(&entry)).transpose();
        if time.is_err() && queue_offset < queue.min_offset() { Ok(None) } else { time }
    }

    /// The message at `queue_offset`, both offsets filled in.
    ///
    /// # Errors
    /// The log or a queue file cannot be read.
    pub fn message(&self, topic: &str, queue_id: u32, queue_offset: u64) -> Result<Option<Bytes>> {
        let Some(queue) = self.inner.table.queue(topic, queue_id) else { return Ok(None) };
        if queue_offset < queue.min_offset() {
            return Ok(None);
        }
        let Some(entry) = queue.entry(queue_offset)? else { return Ok(None) };
        let mut out = BytesMut::with_capacity(entry.size as usize);
        let read = self.inner.copy_message(topic, queue_id, queue_offset, &entry, &mut out)?;
        Ok(read.then(|| out.freeze()))
    }

    /// The message that starts at `physical_offset`, both offsets filled in; none if none starts exactly there, or it
    /// is in no queue.
    ///
    /// # Errors
    /// The log or a queue file cannot be read.
    pub fn message_at(&self, physical_offset: u64) -> Result<Option<Bytes>> {
        if physical_offset >= self.inner.dispatched.physical_end.load(Ordering::Acquire) {
            return Ok(None);
        }
        let Some(around) = self.inner.log.record_around(physical_offset)? else { return Ok(None) };
        let Some(place) = physical_offset.checked_sub(around.payload_start) else { return Ok(None) };
        let Some(payload) = self.inner.log.read(around.payload_start, around.payload_len)? else { return Ok(None) };
        let Some(first) = records_start(&payload) else { return Ok(None) };
        let mut at = first as u64;
        for record in iter_records(&payload[first..]) {
            let Ok(record) = record else { return Ok(None) };
            if at == place {
                return self.with_offsets(&record, physical_offset);
            }
            if at > place {
                break;
            }
            at += record.size() as u64;
        }
        Ok(None)
    }

    /// Messages whose keys, or whose unique key, include `key`, stored between two times, newest first.
    ///
    /// # Errors
    /// The log or a file cannot be read.
    pub fn query_by_key(
        &self,
        topic: &str,
        key: &str,
        messages_max: usize,
        begin_ms: i64,
        end_ms: i64,
    ) -> Result<KeyQueryOutcome> {
        let messages_max = messages_max.min(KEY_QUERY_MAX);
        let mut messages = Vec::new();
        let mut last = None;
        self.inner.index.visit(reput::key_hash(topic, key), begin_ms, end_ms, &mut |physical_offset| {
            if messages.len() >= messages_max {
                return Ok(ControlFlow::Break(()));
            }
            // Two keys of a message may share a hash.
            if last.replace(physical_offset) == Some(physical_offset) {
                return Ok(ControlFlow::Continue(()));
            }
            if let Some(bytes) = self.message_at(physical_offset)? {
                let record = RecordView::parse(&bytes).expect("a message read from the store parses");
                let in_range = (begin_ms..=end_ms).contains(&record.store_timestamp());
                if in_range && record.topic() == topic && reput::describe(&record).include(key) {
                    messages.push(bytes);
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(KeyQueryOutcome { messages, index_progress: self.inner.index.progress() })
    }

    /// Up to `count` entries of a ConsumeQueue from `from_offset` on.
    ///
    /// # Errors
    /// A queue file cannot be read.
    pub fn queue_entries(&self, topic: &str, queue_id: u32, from_offset: u64, count: usize) -> Result<Vec<QueueEntry>> {
        let mut entries = Vec::new();
        if let Some(queue) = self.inner.table.queue(topic, queue_id) {
            queue.read(from_offset.max(queue.min_offset()), count, &mut entries)?;
        }
        Ok(entries)
    }

    /// Where the log starts: what lay before has been dropped.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn physical_start(&self) -> Result<u64> {
        self.inner.log.start()
    }

    /// When the first message that the log still holds was stored; none if it holds none. Reads the log once after each
    /// drop.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn earliest_message_time(&self) -> Result<Option<i64>> {
        let log = &*self.inner.log;
        let Some(first) = log.first_index() else { return Ok(None) };
        let known = *self.inner.earliest.lock();
        if let Some((index, time)) = known
            && index == first
        {
            return Ok(Some(time));
        }
        for index in first..first.saturating_add(FIRST_MESSAGE_ENTRIES_MAX) {
            let Some(payload) = log.payload(index)? else { continue };
            let records = records_start(&payload).and_then(|start| payload.get(start..)).unwrap_or_default();
            if let Some(Ok(record)) = iter_records(records).next() {
                let time = record.store_timestamp();
                *self.inner.earliest.lock() = Some((first, time));
                return Ok(Some(time));
            }
        }
        Ok(None)
    }

    /// Where the log ends, as far as its messages can be read.
    pub fn physical_end(&self) -> u64 {
        self.inner.dispatched.physical_end.load(Ordering::Acquire)
    }

    /// Index after the last entry whose messages can be read.
    pub fn dispatched_end(&self) -> u64 {
        *self.inner.dispatched_end.borrow()
    }

    /// Returns once the messages of entry `index` can be read.
    ///
    /// # Errors
    /// [`Error::Stopped`] if they never will.
    pub async fn wait_dispatched(&self, index: u64) -> Result<()> {
        let mut dispatched_end = self.inner.dispatched_end.clone();
        dispatched_end.wait_for(|end| *end > index).await.map_err(|_| Error::Stopped)?;
        Ok(())
    }

    /// Fills in the offsets of a record of the log.
    fn with_offsets(&self, record: &RecordView<'_>, physical_offset: u64) -> Result<Option<Bytes>> {
        let Ok(queue_id) = u32::try_from(record.queue_id()) else { return Ok(None) };
        let Some(queue) = self.inner.table.queue(record.topic(), queue_id) else { return Ok(None) };
        let queue_offset = queue.partition_point(|entry| Ok(entry.physical_offset < physical_offset))?;
        match queue.entry(queue_offset)? {
            Some(entry) if entry.physical_offset == physical_offset => {
                Ok(Some(patched(record.bytes(), queue_offset, physical_offset)))
            }
            _ => Ok(None),
        }
    }
}

impl Inner {
    fn is_hot(&self, physical_offset: u64) -> bool {
        let end = self.dispatched.physical_end.load(Ordering::Relaxed);
        physical_offset.saturating_add(self.limits.hot_log_bytes) >= end
    }

    /// Appends a message of a queue to `out`, both offsets filled in. `false` if it has left the log.
    fn copy_message(
        &self,
        topic: &str,
        queue_id: u32,
        queue_offset: u64,
        entry: &QueueEntry,
        out: &mut BytesMut,
    ) -> Result<bool> {
        let Some(bytes) = self.log.read(entry.physical_offset, u64::from(entry.size))? else { return Ok(false) };
        let agrees = RecordView::parse(&bytes).is_ok_and(|record| {
            record.size() == bytes.len()
                && record.topic() == topic
                && i64::from(record.queue_id()) == i64::from(queue_id)
        });
        if !agrees {
            return Err(self.wrong_entry(topic, queue_id, queue_offset));
        }
        let start = out.len();
        out.extend_from_slice(&bytes);
        patch(&mut out[start..], queue_offset, entry.physical_offset);
        Ok(true)
    }

    /// Store time of the message behind an entry, from the head of its record.
    fn store_time(&self, entry: &QueueEntry) -> Result<i64> {
        let missing = || Error::NoRecord { position: entry.physical_offset };
        let head = self.log.read(entry.physical_offset, RECORD_HEAD_BYTES)?.ok_or_else(missing)?;
        let field = |at: usize| head.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied();
        let sys_flag = SysFlag(i32::from_be_bytes(field(36).ok_or_else(missing)?));
        let at = if sys_flag.has(SysFlag::BORN_HOST_V6) { 48 + 20 } else { 48 + 8 };
        let time = head.get(at..).and_then(|rest| rest.first_chunk::<8>()).ok_or_else(missing)?;
        Ok(i64::from_be_bytes(*time))
    }

    fn wrong_entry(&self, topic: &str, queue_id: u32, queue_offset: u64) -> Error {
        let error = Error::Damaged {
            path: self.table.dir_of(topic, queue_id),
            what: format!("the entry of queue offset {queue_offset} names no message of this queue"),
        };
        self.table.distrust(&error);
        error
    }
}

/// Which messages of a queue are wanted.
///
/// A closure over tags codes is one that knows nothing else.
pub trait PullFilter {
    /// Whether a message may pass whose queue entry has this tags code.
    fn may_pass(&self, tags_code: i64) -> bool;

    /// Whether the message passes whose record this is, given that it may.
    fn passes(&self, _record: &[u8]) -> bool {
        true
    }
}

impl<F: Fn(i64) -> bool> PullFilter for F {
    fn may_pass(&self, tags_code: i64) -> bool {
        self(tags_code)
    }
}

/// One pull under way.
struct Pull<'a> {
    store: &'a Inner,
    topic: &'a str,
    queue_id: u32,
    max_offset: u64,
    messages_max: usize,
    bytes_max: usize,
    filter: &'a dyn PullFilter,
    out: BytesMut,
    messages: usize,
    removed: usize,
}

impl Pull<'_> {
    /// Goes through the queue and returns the offset after the last entry dealt with.
    fn scan(&mut self, queue: &ConsumeQueue, from: u64) -> Result<u64> {
        let scan_end = from.saturating_add(SCAN_ENTRIES_MIN.max(self.messages_max) as u64).min(self.max_offset);
        let mut entries = Vec::with_capacity(SCAN_STEP);
        let mut at = from;
        while at < scan_end {
            entries.clear();
            queue.read(at, SCAN_STEP.min((scan_end - at) as usize), &mut entries)?;
            if entries.is_empty() {
                // The topic has been deleted meanwhile.
                break;
            }
            for entry in &entries {
                if self.filter.may_pass(entry.tags_code) {
                    if !self.has_room(at, entry) {
                        return Ok(at);
                    }
                    let before = self.out.len();
                    if !self.store.copy_message(self.topic, self.queue_id, at, entry, &mut self.out)? {
                        self.removed += 1;
                    } else if self.filter.passes(&self.out[before..]) {
                        self.messages += 1;
                    } else {
                        self.out.truncate(before);
                    }
                }
                at += 1;
            }
        }
        Ok(at)
    }

    fn has_room(&mut self, at: u64, entry: &QueueEntry) -> bool {
        let limits = &self.store.limits;
        let (messages_max, bytes_max) = if self.store.is_hot(entry.physical_offset) {
            (limits.hot_messages_max, limits.hot_bytes_max)
        } else {
            (limits.cold_messages_max, limits.cold_bytes_max)
        };
        let (messages_max, bytes_max) = (messages_max.min(self.messages_max), bytes_max.min(self.bytes_max));
        let size = entry.size as usize;
        if self.messages == 0 {
            // Room for as many of this size as may come, so that they are copied once.
            let left = self.max_offset.saturating_sub(at);
            let expected = messages_max.min(usize::try_from(left).unwrap_or(usize::MAX));
            self.out.reserve(size.max(size.saturating_mul(expected).min(bytes_max)));
            return true;
        }
        self.messages < messages_max && self.out.len() + size <= bytes_max
    }
}

fn patch(record: &mut [u8], queue_offset: u64, physical_offset: u64) {
    patch_offsets(record, queue_offset.cast_signed(), physical_offset.cast_signed())
        .expect("the record has been parsed, so it is long enough");
}

fn patched(record: &[u8], queue_offset: u64, physical_offset: u64) -> Bytes {
    let mut out = BytesMut::from(record);
    patch(&mut out, queue_offset, physical_offset);
    out.freeze()
}
