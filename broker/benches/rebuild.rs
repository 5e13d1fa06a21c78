//! Building ConsumeQueue and IndexFile again from a log, beside only reading and parsing that log.
//!
//! `REBUILD_MESSAGES` says of how many messages (200,000; 1.25 GB of disk for each million), `BENCH_DIR` names a
//! directory on the disk to be measured.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and fails loudly")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::raft::TypeConfig;
use broker::state_machine::command::PutMode;
use broker::state_machine::{Command, TopicConfig};
use broker::store::{ArrivalListener, StoreOptions};
use bytes::{Bytes, BytesMut};
use openraft::RaftLogReader;
use openraft::storage::{IOFlushed, RaftLogStorage, RaftStateMachine};
use openraft::type_config::TypeConfigExt;
use protocol::TopicName;
use protocol::message::{NewMessage, SysFlag, encode_record, iter_records};
use raft_store::{Body, ClusterId, FlushMode, LogEntry, LogId, LogIndex, LogStorage, Opened, Options, Payload, Term};

const BODY_BYTES: usize = 1024;
const PER_PACK: u64 = 48;
const QUEUES: u64 = 8;
const ROUNDS: usize = 3;
/// As many entries as Raft reads and applies at once when it starts.
const CHUNK: u64 = 64;
/// Entries handed to the log at once.
const APPENDED: u64 = 64;
const CLUSTER: [u8; 16] = [1; 16];

struct Silent;

impl ArrivalListener for Silent {
    fn arrived(&self, _: &TopicName, _: u32, _: u64, _: i64) {}
}

/// Processor time of all threads so far, user and system.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

struct Run(Instant, Duration);

impl Run {
    fn start() -> Self {
        Self(Instant::now(), processor_time())
    }

    fn report(&self, name: &str, messages: u64) {
        let seconds = self.0.elapsed().as_secs_f64();
        let processor = (processor_time() - self.1).as_secs_f64();
        println!(
            "{name:<28} {:>10.0} messages/s {seconds:>8.2} s {:>8.0} ns of processor a message",
            messages as f64 / seconds,
            processor * 1e9 / messages as f64,
        );
    }
}

/// Messages `first..first + PER_PACK`, each with a tag, a unique key and a key, for the queues in turn.
fn pack(first: u64) -> Bytes {
    let host = "127.0.0.1:10911".parse().unwrap();
    let body = vec![7; BODY_BYTES];
    let mut out = BytesMut::new();
    for at in first..first + PER_PACK {
        let properties = format!(
            "UNIQ_KEY\u{1}7F0000017DF54E0E2F2A95{at:010X}\u{2}TAGS\u{1}TagA\u{2}KEYS\u{1}order-{at}\u{2}WAIT\u{1}true"
        );
        let message = NewMessage {
            topic: "bench_topic",
            queue_id: i32::try_from(at % QUEUES).unwrap(),
            flag: 0,
            sys_flag: SysFlag(0),
            born_timestamp: 1_700_000_000_000,
            born_host: host,
            store_timestamp: 1_700_000_000_000 + at.cast_signed() / 100,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &body,
            properties: &properties,
        };
        encode_record(&message, &mut out).unwrap();
    }
    out.freeze()
}

fn id(index: u64) -> LogId {
    LogId::new(Term::new(1), LogIndex::new(index))
}

/// The log: the topic, then `packs` packs. On return all of it has been written.
async fn write_log(storage: &mut LogStorage<TypeConfig>, packs: u64) {
    let topics = vec![TopicConfig::new("bench_topic".parse().unwrap(), u32::try_from(QUEUES).unwrap(), 6)];
    let put = Command::PutTopics { topics, mode: PutMode::CreateOnly, stamped_ms: 1 };
    let mut next = 0;
    while next <= packs {
        let entries: Vec<_> = (next..=packs.min(next + APPENDED - 1))
            .map(|index| {
                let payload = if index == 0 { put.encode() } else { pack((index - 1) * PER_PACK) };
                LogEntry::new(id(index), Body::Normal(Payload(payload)))
            })
            .collect();
        next += entries.len() as u64;
        let (sender, written) = TypeConfig::oneshot();
        storage.append(entries, IOFlushed::signal(sender)).await.unwrap();
        written.await.unwrap().unwrap();
    }
    storage.save_committed(Some(id(packs).to_raft())).await.unwrap();
}

/// Reads entries `0..=packs` as Raft does at a start.
async fn chunk(storage: &mut LogStorage<TypeConfig>, from: u64, packs: u64) -> Vec<LogEntry> {
    let mut reader = storage.get_log_reader().await;
    reader.try_get_log_entries(from..(from + CHUNK).min(packs + 1)).await.unwrap()
}

async fn read_and_parse(storage: &mut LogStorage<TypeConfig>, packs: u64) {
    let run = Run::start();
    let (mut messages, mut bytes) = (0, 0);
    for from in (0..=packs).step_by(CHUNK as usize) {
        for entry in chunk(storage, from, packs).await {
            let Body::Normal(Payload(payload)) = &entry.body else { continue };
            if entry.log_index().get() == 0 {
                continue;
            }
            for record in iter_records(payload) {
                bytes += record.unwrap().body().len();
                messages += 1;
            }
        }
    }
    assert_eq!((messages, bytes as u64), (packs * PER_PACK, packs * PER_PACK * BODY_BYTES as u64));
    run.report("only read and parsed", messages);
}

async fn rebuild(storage: &mut LogStorage<TypeConfig>, log: &raft_store::LogView, dir: &Path, packs: u64) {
    let options = StoreOptions::new(dir, CLUSTER, 1 << 30);
    let run = Run::start();
    let mut opened = broker::state_machine::open(&options, log, Arc::new(Silent)).unwrap();
    assert_eq!(opened.started_behind, None);
    for from in (0..=packs).step_by(CHUNK as usize) {
        let entries = chunk(storage, from, packs).await.into_iter().map(|entry| Ok((entry, None)));
        let entries = futures::stream::iter(entries);
        RaftStateMachine::<TypeConfig>::apply(&mut opened.state_machine, entries).await.unwrap();
    }
    opened.store.wait_dispatched(packs).await.unwrap();
    run.report("queues and index rebuilt", packs * PER_PACK);
    for queue_id in 0..QUEUES {
        let end = opened.store.max_offset("bench_topic", u32::try_from(queue_id).unwrap());
        assert_eq!(end, packs * PER_PACK / QUEUES, "queue {queue_id}");
    }
    opened.control.stop().await.unwrap();
    run.report("the same, saved and synced", packs * PER_PACK);
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    runtime.block_on(run());
}

async fn run() {
    let wanted = std::env::var("REBUILD_MESSAGES").map_or(200_000, |text| text.parse::<u64>().unwrap());
    let packs = wanted.div_ceil(PER_PACK).max(1);
    let dir = match std::env::var_os("BENCH_DIR") {
        Some(dir) => tempfile::tempdir_in(dir).unwrap(),
        None => tempfile::tempdir().unwrap(),
    };
    let mut options = Options::new(dir.path().join("log"), ClusterId::new(CLUSTER), 1);
    options.create = true;
    options.allow_unproven_fs = true;
    options.flush = FlushMode::ASYNC;
    let Opened { mut storage, view, .. } = raft_store::open::<TypeConfig>(options).unwrap();
    write_log(&mut storage, packs).await;
    println!("{} messages of {BODY_BYTES} bytes in {packs} entries", packs * PER_PACK);
    for round in 0..ROUNDS {
        read_and_parse(&mut storage, packs).await;
        let derived = dir.path().join(format!("derived-{round}"));
        rebuild(&mut storage, &view, &derived, packs).await;
        std::fs::remove_dir_all(derived).unwrap();
    }
    tokio::task::spawn_blocking(move || view.close()).await.unwrap().unwrap();
}
