//! What one message costs behind Raft: apply, reput, and a pull.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and fails loudly")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::raft::TypeConfig;
use broker::state_machine::command::PutMode;
use broker::state_machine::{Command, StateMachine, TopicConfig};
use broker::store::{ArrivalListener, StoreOptions};
use bytes::{Bytes, BytesMut};
use openraft::storage::RaftStateMachine;
use protocol::TopicName;
use protocol::message::{NewMessage, SysFlag, encode_record};
use raft_store::{Body, ClusterId, LogEntry, LogId, LogIndex, LogPosition, Options, Payload, Term};

const PER_PACK: usize = 56;
const PACKS: usize = 500;
const ROUNDS: usize = 20;
const QUEUES: u32 = 8;

struct Silent;

impl ArrivalListener for Silent {
    fn arrived(&self, _: &TopicName, _: u32, _: u64, _: i64) {}
}

/// A pack of 1 KiB messages for the queues in turn.
fn pack() -> Bytes {
    let host = "127.0.0.1:10911".parse().unwrap();
    let body = vec![7; 1024];
    let mut out = BytesMut::new();
    for at in 0..PER_PACK {
        let properties = format!(
            "UNIQ_KEY\u{1}7F0000017DF54E0E2F2A95E869BE{at:04}\u{2}TAGS\u{1}TagA\u{2}CLUSTER\u{1}DefaultCluster\u{2}\
             TRACE_ON\u{1}true\u{2}MSG_REGION\u{1}DefaultRegion\u{2}WAIT\u{1}true"
        );
        let message = NewMessage {
            topic: "bench_topic",
            queue_id: (at as u32 % QUEUES).cast_signed(),
            flag: 0,
            sys_flag: SysFlag(0),
            born_timestamp: 1_700_000_000_000,
            born_host: host,
            store_timestamp: 1_700_000_000_000,
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

/// Entries as the log would hand them to apply. Their bytes need not be in the log for that.
struct Entries {
    next: u64,
    end: u64,
}

impl Entries {
    fn make(&mut self, payload: Bytes) -> LogEntry {
        let len = payload.len() as u64;
        let id = LogId::new(Term::new(1), LogIndex::new(self.next));
        let mut entry = LogEntry::new(id, Body::Normal(Payload(payload)));
        entry.position = Some(LogPosition::new(self.end));
        self.next += 1;
        self.end += 64 + len.next_multiple_of(64);
        entry
    }
}

async fn apply(machine: &mut StateMachine, entries: Vec<LogEntry>) {
    let entries = futures::stream::iter(entries.into_iter().map(|entry| Ok((entry, None))));
    RaftStateMachine::<TypeConfig>::apply(machine, entries).await.unwrap();
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    runtime.block_on(run());
}

async fn run() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::new(dir.path().join("log"), ClusterId::new([1; 16]), 1);
    options.create = true;
    options.allow_unproven_fs = true;
    let log = raft_store::open::<TypeConfig>(options).unwrap();
    let mut store_options = StoreOptions::new(dir.path(), [1; 16], 1 << 30);
    store_options.reput_queue_max = PACKS + 1;
    let mut opened = broker::state_machine::open(&store_options, &log.view, Arc::new(Silent)).unwrap();

    let mut entries = Entries { next: 0, end: 4096 };
    let topics = vec![TopicConfig::new("bench_topic".parse().unwrap(), QUEUES, 6)];
    let put = Command::PutTopics { topics, mode: PutMode::CreateOnly, stamped_ms: 1 };
    apply(&mut opened.state_machine, vec![entries.make(put.encode())]).await;

    let payload = pack();
    let (mut applied, mut dispatched) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        let batch: Vec<LogEntry> = (0..PACKS).map(|_| entries.make(payload.clone())).collect();
        let start = Instant::now();
        apply(&mut opened.state_machine, batch).await;
        applied = applied.min(start.elapsed());
        opened.store.wait_dispatched(entries.next - 1).await.unwrap();
        dispatched = dispatched.min(start.elapsed());
    }
    let per_message = |time: Duration| time.as_nanos() / (PACKS * PER_PACK) as u128;
    println!("apply, until answered              {:>6} ns a message", per_message(applied));
    println!("apply and reput, until readable    {:>6} ns a message", per_message(dispatched));

    let mut commits = Duration::MAX;
    for _ in 0..ROUNDS {
        let batch: Vec<LogEntry> = (0..PACKS)
            .map(|at| {
                let commits = (0..QUEUES)
                    .map(|queue_id| broker::state_machine::command::OffsetCommit {
                        group: "bench_group".parse().unwrap(),
                        topic: "bench_topic".parse().unwrap(),
                        queue_id,
                        queue_offset: at as u64,
                    })
                    .collect();
                entries.make(Command::CommitOffsets { commits, stamped_ms: 1 }.encode())
            })
            .collect();
        let start = Instant::now();
        apply(&mut opened.state_machine, batch).await;
        commits = commits.min(start.elapsed());
    }
    println!("committed consumer offset          {:>6} ns", commits.as_nanos() / (PACKS * QUEUES as usize) as u128);
}
