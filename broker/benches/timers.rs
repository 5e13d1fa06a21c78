//! The memory that pending timers take: a replica that has applied a million timer messages, beside one that has applied
//! as many plain messages. Each runs in a process of its own; what is counted is anonymous memory, `RssAnon`.
//!
//! `TIMERS` says how many (1,000,000; 300 MB of disk in `BENCH_DIR`).
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and fails loudly")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use broker::raft::TypeConfig;
use broker::state_machine::command::PutMode;
use broker::state_machine::timer::TIMER_TOPIC;
use broker::state_machine::{Command, TopicConfig};
use broker::store::{ArrivalListener, StoreOptions};
use bytes::{Bytes, BytesMut};
use openraft::storage::{IOFlushed, RaftLogStorage, RaftStateMachine};
use openraft::type_config::TypeConfigExt;
use protocol::TopicName;
use protocol::message::{NewMessage, SysFlag, encode_record};
use raft_store::{Body, ClusterId, FlushMode, LogEntry, LogId, LogIndex, Opened, Options, Payload, Term};

const PER_PACK: u64 = 200;
/// Entries applied at once.
const CHUNK: u64 = 50;
const CLUSTER: [u8; 16] = [1; 16];
const BEGIN_MS: i64 = 1_800_000_000_000;
/// The longest wait there is.
const WAIT_MAX_MS: u64 = 40 * 86_400_000;
/// Names the topic in the processes that measure.
const VARIANT: &str = "TIMER_BENCH_TOPIC";
const PLAIN_TOPIC: &str = "bench_topic";

struct Silent;

impl ArrivalListener for Silent {
    fn arrived(&self, _: &TopicName, _: u32, _: u64, _: i64) {}
}

/// Anonymous memory of this process, in KiB.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Messages `first..first + PER_PACK`, due in no order within forty days.
fn pack(topic: &str, first: u64) -> Bytes {
    let host = "127.0.0.1:10911".parse().unwrap();
    let mut out = BytesMut::new();
    for at in first..first + PER_PACK {
        let due_ms = BEGIN_MS + (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) % WAIT_MAX_MS).cast_signed();
        let properties = format!(
            "UNIQ_KEY\u{1}7F0000017DF54E0E2F2A95{at:010X}\u{2}REAL_TOPIC\u{1}T\u{2}REAL_QID\u{1}0\u{2}TIMER_OUT_MS\u{1}{due_ms}\u{2}"
        );
        let message = NewMessage {
            topic,
            queue_id: 0,
            flag: 0,
            sys_flag: SysFlag(0),
            born_timestamp: BEGIN_MS,
            born_host: host,
            store_timestamp: BEGIN_MS + at.cast_signed() / 100,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &[7; 64],
            properties: &properties,
        };
        encode_record(&message, &mut out).unwrap();
    }
    out.freeze()
}

fn main() {
    let count = std::env::var("TIMERS").map_or(1_000_000, |text| text.parse::<u64>().unwrap());
    let Ok(topic) = std::env::var(VARIANT) else {
        let measure = |topic: &str| {
            let this = std::env::current_exe().unwrap();
            let output = std::process::Command::new(this).env(VARIANT, topic).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8(output.stdout).unwrap();
            text.split_whitespace().map(|figure| figure.parse::<f64>().unwrap()).collect::<Vec<f64>>()
        };
        let (plain, timers) = (measure(PLAIN_TOPIC), measure(TIMER_TOPIC));
        println!("{count} messages           plain   timers   difference (MB)");
        for (at, name) in ["applied", "while a checkpoint is cut"].into_iter().enumerate() {
            println!("{name:<26} {:>6.1} {:>8.1} {:>8.1}", plain[at], timers[at], timers[at] - plain[at]);
        }
        println!("cut and saved in            {:>5.0} ms {:>5.0} ms", plain[2], timers[2]);
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    runtime.block_on(measure(&topic, count.div_ceil(PER_PACK)));
}

async fn measure(topic: &str, packs: u64) {
    let megabytes = |kib: u64| kib as f64 * 1024.0 / 1e6;
    let dir = match std::env::var_os("BENCH_DIR") {
        Some(dir) => tempfile::tempdir_in(dir).unwrap(),
        None => tempfile::tempdir().unwrap(),
    };
    let mut options = Options::new(dir.path().join("log"), ClusterId::new(CLUSTER), 1);
    options.create = true;
    options.allow_unproven_fs = true;
    options.flush = FlushMode::ASYNC;
    let Opened { mut storage, view, .. } = raft_store::open::<TypeConfig>(options).unwrap();
    let store_options = StoreOptions::new(dir.path(), CLUSTER, 1 << 30);
    let mut opened = broker::state_machine::open(&store_options, &view, Arc::new(Silent)).unwrap();
    let before = anonymous();

    let topics = vec![TopicConfig::new(topic.parse().unwrap(), 1, 6)];
    let put = Command::PutTopics { topics, mode: PutMode::CreateOnly, stamped_ms: 1 };
    let mut next = 0;
    while next <= packs {
        let indexes = next..=packs.min(next + CHUNK - 1);
        next = *indexes.end() + 1;
        let entries: Vec<_> = indexes
            .clone()
            .map(|index| {
                let payload = if index == 0 { put.encode() } else { pack(topic, (index - 1) * PER_PACK) };
                LogEntry::new(LogId::new(Term::new(1), LogIndex::new(index)), Body::Normal(Payload(payload)))
            })
            .collect();
        let (sender, written) = TypeConfig::oneshot();
        storage.append(entries, IOFlushed::signal(sender)).await.unwrap();
        written.await.unwrap().unwrap();
        let (start, end) = (LogIndex::new(*indexes.start()), LogIndex::new(*indexes.end()));
        let applied: Vec<_> = view.entries(start, end).map(|entry| Ok((entry.unwrap(), None))).collect();
        let applied = futures::stream::iter(applied);
        RaftStateMachine::<TypeConfig>::apply(&mut opened.state_machine, applied).await.unwrap();
    }
    opened.store.wait_dispatched(packs).await.unwrap();
    let expected = if topic == TIMER_TOPIC { packs * PER_PACK } else { 0 };
    assert_eq!(opened.state.timer_count() as u64, expected);
    let applied = anonymous().saturating_sub(before);

    let done = Arc::new(AtomicBool::new(false));
    let watched = Arc::clone(&done);
    let watch = std::thread::spawn(move || {
        let mut most = 0;
        while !watched.load(Ordering::Relaxed) {
            most = most.max(anonymous());
            std::thread::sleep(Duration::from_micros(200));
        }
        most
    });
    let started = Instant::now();
    opened.control.checkpoint().await.unwrap();
    let cut = started.elapsed();
    done.store(true, Ordering::Relaxed);
    let most = watch.join().unwrap().saturating_sub(before);
    opened.control.stop().await.unwrap();
    drop(opened);
    println!("{:.1} {:.1} {}", megabytes(applied), megabytes(most), cut.as_millis());
    tokio::task::spawn_blocking(move || view.close()).await.unwrap().unwrap();
}
