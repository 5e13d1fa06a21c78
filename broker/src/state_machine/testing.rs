//! A group without Raft: a log in memory, applied as soon as it is appended, with real derived files.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use protocol::TopicName;
use protocol::message::{NewMessage, SysFlag, encode_record};
use raft_store::{Body, LogEntry, LogId, LogIndex, LogPosition, Membership, Payload, Term};

use crate::store::log::{Log, RecordPlace};
use crate::store::{ArrivalListener, MessageStore, Result, StoreOptions};

use super::command::{Command, PutMode};
use super::reply::{Appended, ApplyReply, CommandReply, MessageOutcome, PackReply};
use super::snapshot::{Image, ResumeImage};
use super::state::EntryId;
use super::topic::TopicConfig;
use super::{Opened, StateReader, open_over};

const RECORD_HEADER: u64 = 64;
const SEGMENT_HEADER: u64 = 128;

/// A log in memory, laid out like a real one.
pub(crate) struct MemoryLog {
    segment_bytes: u64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    entries: Vec<LogEntry>,
    purged: Option<EntryId>,
    /// Where the next record goes if there is room in its segment.
    end: u64,
}

impl MemoryLog {
    pub(crate) fn new(segment_bytes: u64) -> Self {
        Self { segment_bytes, inner: Mutex::default() }
    }

    /// Appends the next entry.
    pub(crate) fn append(&self, term: u64, body: Body) -> LogEntry {
        let mut inner = self.inner.lock();
        let last = inner.entries.last().map(|entry| entry.log_index().get());
        let index = last.or_else(|| inner.purged.map(|id| id.index)).map_or(0, |index| index + 1);
        let len = body.encode().1.len() as u64;
        let base = inner.end / self.segment_bytes * self.segment_bytes;
        let start = if inner.end == base { base + SEGMENT_HEADER } else { inner.end };
        let need = RECORD_HEADER + len.next_multiple_of(64);
        assert!(need + SEGMENT_HEADER <= self.segment_bytes, "the entry fits no segment");
        let fits = start + need <= base + self.segment_bytes;
        let position = if fits { start } else { base + self.segment_bytes + SEGMENT_HEADER };
        let mut entry = LogEntry::new(LogId::new(Term::new(term), LogIndex::new(index)), body);
        entry.position = Some(LogPosition::new(position));
        inner.end = position + need;
        inner.entries.push(entry.clone());
        entry
    }

    /// The entries from `index` on.
    pub(crate) fn entries(&self, index: u64) -> Vec<LogEntry> {
        self.inner.lock().entries.iter().filter(|entry| entry.log_index().get() >= index).cloned().collect()
    }

    /// Loses the entries from `index` on.
    pub(crate) fn truncate(&self, index: u64) {
        let mut inner = self.inner.lock();
        inner.entries.retain(|entry| entry.log_index().get() < index);
        inner.end = inner.entries.last().map_or(0, end_of);
    }

    /// Drops the entries up to `index`. Past the end, the log goes on where [`Log::set_resume`] said.
    pub(crate) fn purge(&self, index: u64) {
        let mut inner = self.inner.lock();
        if let Some(entry) = inner.entries.iter().find(|entry| entry.log_index().get() == index) {
            inner.purged = Some(EntryId { term: entry.log_term().get(), index });
        }
        inner.entries.retain(|entry| entry.log_index().get() > index);
    }
}

fn payload_len(entry: &LogEntry) -> u64 {
    entry.body.encode().1.len() as u64
}

fn end_of(entry: &LogEntry) -> u64 {
    entry.position.unwrap().get() + RECORD_HEADER + payload_len(entry).next_multiple_of(64)
}

impl Log for MemoryLog {
    fn read(&self, position: u64, len: u64) -> Result<Option<Bytes>> {
        let inner = self.inner.lock();
        let found = inner.entries.iter().rfind(|entry| entry.payload_position().unwrap().get() <= position);
        Ok(found.and_then(|entry| {
            let bytes = entry.body.encode().1;
            let at = (position - entry.payload_position().unwrap().get()) as usize;
            (at + len as usize <= bytes.len()).then(|| bytes.slice(at..at + len as usize))
        }))
    }

    fn record_around(&self, position: u64) -> Result<Option<RecordPlace>> {
        let inner = self.inner.lock();
        let found = inner.entries.iter().rfind(|entry| entry.position.unwrap().get() <= position);
        Ok(found.filter(|entry| position < end_of(entry)).map(|entry| RecordPlace {
            id: EntryId { term: entry.log_term().get(), index: entry.log_index().get() },
            payload_start: entry.payload_position().unwrap().get(),
            payload_len: payload_len(entry),
        }))
    }

    fn segment_base(&self, position: u64) -> u64 {
        position / self.segment_bytes * self.segment_bytes
    }

    fn resume_after(&self, index: u64) -> Result<ResumeImage> {
        let inner = self.inner.lock();
        let entry = inner.entries.iter().find(|entry| entry.log_index().get() == index).unwrap();
        Ok(ResumeImage { position: end_of(entry), chain: index as u32 })
    }

    fn set_resume(&self, last: EntryId, resume: ResumeImage) {
        let mut inner = self.inner.lock();
        inner.entries.clear();
        inner.purged = Some(last);
        inner.end = resume.position;
    }

    fn start(&self) -> Result<u64> {
        let inner = self.inner.lock();
        Ok(inner.entries.first().map_or(inner.end, |entry| entry.position.unwrap().get()))
    }

    fn end(&self) -> u64 {
        self.inner.lock().end
    }

    fn first_index(&self) -> Option<u64> {
        self.inner.lock().entries.first().map(|entry| entry.log_index().get())
    }

    fn payload(&self, index: u64) -> Result<Option<Bytes>> {
        let inner = self.inner.lock();
        let found = inner.entries.iter().find(|entry| entry.log_index().get() == index);
        Ok(found.and_then(|entry| match &entry.body {
            Body::Normal(payload) => Some(payload.0.clone()),
            Body::Blank | Body::Membership(_) => None,
        }))
    }

    fn last_index(&self) -> Option<u64> {
        let inner = self.inner.lock();
        inner.entries.last().map(|entry| entry.log_index().get()).or_else(|| inner.purged.map(|id| id.index))
    }

    fn purged_index(&self) -> Option<u64> {
        self.inner.lock().purged.map(|id| id.index)
    }
}

/// Remembers every arrival.
#[derive(Default)]
pub(crate) struct Arrivals(pub(crate) Mutex<Vec<(String, u32, u64, i64)>>);

impl ArrivalListener for Arrivals {
    fn arrived(&self, topic: &TopicName, queue_id: u32, max_offset: u64, tags_code: i64) {
        self.0.lock().push((topic.to_string(), queue_id, max_offset, tags_code));
    }
}

/// A group under test.
pub(crate) struct Group {
    pub(crate) log: Arc<MemoryLog>,
    pub(crate) options: StoreOptions,
    pub(crate) arrivals: Arc<Arrivals>,
    pub(crate) term: u64,
    opened: Option<Opened>,
    dir: tempfile::TempDir,
}

pub(crate) const CLUSTER: [u8; 16] = [7; 16];

impl Group {
    /// An empty group with segments of 8 KiB and small derived files.
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut StoreOptions)) -> Self {
        Self::over(MemoryLog::new(8192), change)
    }

    pub(crate) fn over(log: MemoryLog, change: impl FnOnce(&mut StoreOptions)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = StoreOptions::new(dir.path(), CLUSTER, 1 << 30);
        options.entries_per_queue_file = 8;
        options.index_sizes.slots = 7;
        options.index_sizes.entries = 20;
        options.open_files_max = 4;
        change(&mut options);
        let mut group = Self { log: Arc::new(log), options, arrivals: Arc::default(), term: 1, opened: None, dir };
        group.open();
        group
    }

    /// Starts again, and applies nothing yet.
    pub(crate) fn open(&mut self) {
        let log: Arc<dyn Log> = Arc::<MemoryLog>::clone(&self.log);
        let listener: Arc<dyn ArrivalListener> = Arc::<Arrivals>::clone(&self.arrivals);
        self.opened = Some(open_over(&self.options, log, listener).unwrap());
    }

    pub(crate) fn opened(&self) -> &Opened {
        self.opened.as_ref().unwrap()
    }

    pub(crate) fn store(&self) -> &MessageStore {
        &self.opened().store
    }

    pub(crate) fn state(&self) -> &StateReader {
        &self.opened().state
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// The index the group started behind.
    pub(crate) fn started_behind(&self) -> Option<u64> {
        self.opened().started_behind.map(|id| id.index)
    }

    /// Appends an entry and applies it.
    pub(crate) async fn append(&self, body: Body) -> ApplyReply {
        let entry = self.log.append(self.term, body);
        self.apply(entry).await.unwrap()
    }

    pub(crate) async fn apply(&self, entry: LogEntry) -> std::io::Result<ApplyReply> {
        let shared = &self.opened().state_machine.shared;
        let mut core = shared.core.lock().await;
        shared.apply_entry(&mut core, entry).await
    }

    pub(crate) async fn command(&self, command: Command) -> CommandReply {
        match self.append(Body::Normal(Payload(command.encode()))).await {
            ApplyReply::Command { reply, .. } => reply,
            other => panic!("a command is answered as one, not by {other:?}"),
        }
    }

    /// A command and the messages that it carries.
    pub(crate) async fn command_with(&self, command: Command, messages: &[Message<'_>]) -> (CommandReply, PackReply) {
        match self.append(Body::Normal(Payload(command.encode_with(&pack(messages))))).await {
            ApplyReply::Command { reply, messages } => (reply, messages),
            other => panic!("a command is answered as one, not by {other:?}"),
        }
    }

    pub(crate) async fn put_topic(&self, name: &str, queues: u32) {
        let topics = vec![TopicConfig::new(topic(name), queues, 6)];
        self.command(Command::PutTopics { topics, mode: PutMode::Replace, stamped_ms: 1 }).await;
    }

    pub(crate) async fn pack(&self, messages: &[Message<'_>]) -> PackReply {
        match self.append(Body::Normal(Payload(pack(messages)))).await {
            ApplyReply::Pack(reply) => reply,
            other => panic!("a pack is answered as one, not by {other:?}"),
        }
    }

    /// Sends one message and says where it went.
    pub(crate) async fn send(&self, message: Message<'_>) -> Appended {
        match self.pack(&[message]).await.outcomes[..] {
            [MessageOutcome::Appended(appended)] => appended,
            ref other => panic!("not appended: {other:?}"),
        }
    }

    pub(crate) async fn membership(&self, membership: Membership) {
        self.append(Body::Membership(membership)).await;
    }

    /// Returns once everything applied can be read.
    pub(crate) async fn dispatched(&self) {
        if let Some(index) = self.state().applied_index() {
            self.store().wait_dispatched(index).await.unwrap();
        }
    }

    /// The end of a queue, once everything applied can be read.
    pub(crate) async fn end_of(&self, topic: &str, queue_id: u32) -> u64 {
        self.dispatched().await;
        self.store().max_offset(topic, queue_id)
    }

    /// The whole state as bytes.
    pub(crate) async fn digest(&self) -> Bytes {
        self.image().await.encode()
    }

    pub(crate) async fn image(&self) -> Image {
        let shared = &self.opened().state_machine.shared;
        let core = shared.core.lock().await;
        let resume = self.log.resume_after(core.state.applied.unwrap().index).unwrap();
        core.state.to_image(CLUSTER, resume).unwrap()
    }

    /// Stops cleanly.
    pub(crate) async fn stop(&mut self) {
        let opened = self.opened.take().unwrap();
        opened.control.stop().await.unwrap();
    }

    /// Ends as if killed: what is in memory is lost.
    pub(crate) fn kill(&mut self) {
        let opened = self.opened.take().unwrap();
        let threads = opened.control.threads.lock().take().unwrap();
        drop(opened);
        threads.join();
    }

    /// Starts again and applies the rest of the log.
    pub(crate) async fn start(&mut self) {
        self.open();
        for entry in self.log.entries(self.started_behind().map_or(0, |index| index + 1)) {
            self.apply(entry).await.unwrap();
        }
        self.dispatched().await;
    }

    /// Closes the files of a queue, so that the next write opens them by name.
    pub(crate) fn close_queue_files(&self, topic: &str, queue_id: u32) {
        self.opened().state_machine.shared.table.queue(topic, queue_id).unwrap().close();
    }

    /// Drops what lies before a checkpoint, as retention does.
    pub(crate) fn drop_through(&self, checkpoint: u64) {
        let shared = &self.opened().state_machine.shared;
        let (image, _) = shared.checkpoints.read(checkpoint).unwrap();
        shared.checkpoints.set_current(checkpoint).unwrap();
        shared.table.raise_minimums(&image).unwrap();
        shared.index.drop_below(image.resume.position).unwrap();
        self.log.purge(checkpoint);
    }

    /// Cuts a checkpoint now.
    pub(crate) async fn checkpoint(&self) {
        self.opened().control.checkpoint().await.unwrap();
    }
}

pub(crate) fn topic(name: &str) -> TopicName {
    TopicName::parse(name).unwrap()
}

/// A message for tests.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) topic: &'a str,
    pub(crate) queue_id: i32,
    pub(crate) body: &'a [u8],
    pub(crate) properties: &'a str,
    pub(crate) store_ms: i64,
}

pub(crate) fn message<'a>(topic: &'a str, queue_id: i32, body: &'a str) -> Message<'a> {
    Message { topic, queue_id, body: body.as_bytes(), properties: "", store_ms: 1_700_000_000_000 }
}

impl<'a> Message<'a> {
    pub(crate) fn properties(self, properties: &'a str) -> Self {
        Self { properties, ..self }
    }

    pub(crate) fn stored_at(self, store_ms: i64) -> Self {
        Self { store_ms, ..self }
    }
}

/// The records of a pack.
pub(crate) fn pack(messages: &[Message<'_>]) -> Bytes {
    let host = "127.0.0.1:10911".parse().unwrap();
    let mut out = BytesMut::new();
    for message in messages {
        let record = NewMessage {
            topic: message.topic,
            queue_id: message.queue_id,
            flag: 0,
            sys_flag: SysFlag(0),
            born_timestamp: 1,
            born_host: host,
            store_timestamp: message.store_ms,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: message.body,
            properties: message.properties,
        };
        encode_record(&record, &mut out).unwrap();
    }
    out.freeze()
}
