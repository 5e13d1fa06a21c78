//! `gantry verify`: sends numbered messages under load, reads every queue back, and compares with what was acknowledged.
//!
//! It may run while a leader is killed: a send is repeated on other brokers for some seconds, as real clients do, and
//! reading back waits for leaders. Exit code 6 says that an acknowledged message is missing.

mod ledger;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use client::{Message, Producer, PullConsumer, PullOptions, Queue};
use parking_lot::Mutex;
use protocol::TopicName;
use protocol::message::iter_records;
use serde::Serialize;

use self::ledger::{Checker, Found, Outcome, Place, Report, SenderLog};
use crate::cluster::{ClusterArgs, explain};
use crate::command::progress_bar;
use crate::command::send::{start_client, start_producer};
use crate::command::topic::create_everywhere;
use crate::exit_code::ExitCode;
use crate::output::{self, Format};

const QUEUES_OF_NEW_TOPIC: i32 = 4;
/// A cluster that lost a leader gets this long to answer reads.
const READ_PATIENCE: Duration = Duration::from_secs(60);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
const PULL_COUNT: i32 = 256;

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The topic; it is created if it is not there
    #[arg(long, default_value = "gantry-verify")]
    topic: String,
    /// Messages to send
    #[arg(long, default_value_t = 10_000)]
    count: u64,
    /// Messages a second, all senders together [default: as fast as they are answered]
    #[arg(long)]
    rate: Option<f64>,
    /// Senders; each has one message in flight
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    senders: u32,
    /// Bytes of a body
    #[arg(long, default_value_t = 256)]
    size: usize,
    /// Write every outcome as it is known, one line `sender:number outcome` each
    #[arg(long, value_name = "FILE")]
    ack_log: Option<PathBuf>,
}

#[derive(Serialize)]
struct Verdict {
    #[serde(flatten)]
    report: Report,
    seconds: f64,
    /// The longest single send.
    longest_send_ms: f64,
    /// The longest time in which nothing at all was acknowledged.
    longest_silence_ms: f64,
    verdict: &'static str,
}

/// What the senders share.
struct Sending {
    producer: Producer,
    topic: TopicName,
    run: u32,
    size: usize,
    started: Instant,
    interval: Option<Duration>,
    acked: AtomicU64,
    pace: Mutex<Pace>,
    ack_log: Option<Mutex<BufWriter<File>>>,
    used: Mutex<BTreeSet<Arc<str>>>,
}

struct Pace {
    last_ack: Instant,
    longest_silence: Duration,
    longest_send: Duration,
}

pub(crate) async fn run(args: VerifyArgs, cluster_args: &ClusterArgs, format: Format) -> Result<()> {
    let topic = TopicName::parse(&args.topic).context("the name of the topic")?;
    ensure!(args.rate.is_none_or(|rate| rate > 0.0 && rate.is_finite()), "--rate must be above 0");
    ensure!(args.count <= u64::from(u32::MAX), "--count is too large");
    let cluster = cluster_args.connect()?;
    if cluster.find_route(&topic).await?.is_none() {
        create_everywhere(&cluster, &topic, QUEUES_OF_NEW_TOPIC).await?;
    }
    let mut starts = BTreeMap::new();
    let reader = cluster.reader(None);
    for queue in reader.queues(&topic).await.map_err(explain)? {
        let end = reader.max_offset(&queue).await.map_err(explain)?;
        starts.insert(queue, end);
    }
    ensure!(!starts.is_empty(), "{topic} has no queue");

    let started = Instant::now();
    let (logs, pace) = send_all(&args, cluster_args, &topic, started).await?;
    let seconds = started.elapsed().as_secs_f64();
    let mut checker = Checker::new(&logs.logs);
    // A group that was not in the route at the start may be by now, and hold messages from its first one on.
    for queue in all_queues(&reader, &topic, &logs.used).await? {
        let start = starts.get(&queue).copied().unwrap_or(0);
        checker.queue(&queue.broker_name, queue.queue_id, read_back(&reader, &queue, start, logs.run).await?);
    }
    let report = checker.finish();
    let (verdict, code) = match &report {
        Report { lost: 1.., .. } => ("LOST", Some(ExitCode::Lost)),
        Report { phantom: 1.., .. } | Report { moved: 1.., .. } => ("DAMAGED", Some(ExitCode::Lost)),
        Report { out_of_order: 1.., .. } => ("OUT OF ORDER", Some(ExitCode::OutOfOrder)),
        _ => ("ok", None),
    };
    let verdict = Verdict {
        report,
        seconds,
        longest_send_ms: pace.longest_send.as_secs_f64() * 1e3,
        longest_silence_ms: pace.longest_silence.as_secs_f64() * 1e3,
        verdict,
    };
    match format {
        Format::Json => output::json(&verdict)?,
        Format::Table => output::line(&verdict.to_text())?,
    }
    match code {
        None => Ok(()),
        Some(code) => Err(anyhow::Error::new(code)),
    }
}

struct Logs {
    run: u32,
    /// Every broker group that acknowledged something.
    used: BTreeSet<Arc<str>>,
    logs: Vec<SenderLog>,
}

async fn send_all(
    args: &VerifyArgs,
    cluster: &ClusterArgs,
    topic: &TopicName,
    started: Instant,
) -> Result<(Logs, Pace)> {
    let client = start_client(cluster)?;
    let producer = start_producer(&client)?;
    let ack_log = match &args.ack_log {
        None => None,
        Some(path) => {
            let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
            Some(Mutex::new(BufWriter::new(file)))
        }
    };
    let sending = Arc::new(Sending {
        producer: producer.clone(),
        topic: topic.clone(),
        run: rand::random(),
        size: args.size,
        started,
        interval: args.rate.map(|rate| Duration::from_secs_f64(f64::from(args.senders) / rate)),
        acked: AtomicU64::new(0),
        pace: Mutex::new(Pace { last_ack: started, longest_silence: Duration::ZERO, longest_send: Duration::ZERO }),
        ack_log,
        used: Mutex::default(),
    });
    let bar = progress_bar(args.count);
    let shown = (bar.clone(), Arc::clone(&sending));
    let ticker = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(250)).await;
            shown.0.set_position(shown.1.acked.load(Ordering::Relaxed));
        }
    });
    let mut senders = tokio::task::JoinSet::new();
    for sender in 0..args.senders {
        let count =
            args.count / u64::from(args.senders) + u64::from(u64::from(sender) < args.count % u64::from(args.senders));
        senders.spawn(send(Arc::clone(&sending), sender, args.senders, u32::try_from(count).context("--count")?));
    }
    let mut logs: Vec<_> = (0..args.senders).map(|_| SenderLog::default()).collect();
    while let Some(log) = senders.join_next().await {
        let (sender, log) = log.context("a sender panicked")??;
        logs[sender as usize] = log;
    }
    ticker.abort();
    let _ = ticker.await;
    bar.finish_and_clear();
    producer.shutdown().await;
    client.shutdown().await;
    let sending = Arc::into_inner(sending).context("the senders have ended")?;
    if let Some(log) = sending.ack_log {
        log.into_inner().flush().context("writing the ack log")?;
    }
    let used = sending.used.into_inner();
    Ok((Logs { run: sending.run, used, logs }, sending.pace.into_inner()))
}

/// The queues of the topic, once the route shows every group that has to be read.
async fn all_queues(reader: &PullConsumer, topic: &TopicName, needed: &BTreeSet<Arc<str>>) -> Result<Vec<Queue>> {
    let started = Instant::now();
    loop {
        let queues = reader.queues(topic).await.unwrap_or_default();
        let missing = needed.iter().find(|broker| !queues.iter().any(|queue| queue.broker_name == **broker));
        match missing {
            None => return Ok(queues),
            Some(broker) => ensure!(started.elapsed() < READ_PATIENCE, "no route shows the queues of {broker}"),
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Sends `count` messages, one after the other.
async fn send(sending: Arc<Sending>, sender: u32, senders: u32, count: u32) -> Result<(u32, SenderLog)> {
    let mut log = SenderLog::default();
    for number in 0..count {
        if let Some(interval) = sending.interval {
            // Senders take turns, so that their messages are spread evenly.
            let due = sending.started + interval.mul_f64(f64::from(number) + f64::from(sender) / f64::from(senders));
            tokio::time::sleep_until(due.into()).await;
        }
        let message = Message::new(sending.topic.clone(), body(sending.run, sender, number, sending.size));
        let sent = Instant::now();
        let result = sending.producer.send(message).await;
        let now = Instant::now();
        let outcome = match &result {
            Ok(receipt) => {
                let broker = Arc::clone(&receipt.queue.broker_name);
                sending.used.lock().insert(Arc::clone(&broker));
                Outcome::Acked(Place { broker, queue: receipt.queue.queue_id, queue_offset: receipt.queue_offset })
            }
            Err(_) => Outcome::Unknown,
        };
        {
            let mut pace = sending.pace.lock();
            pace.longest_send = pace.longest_send.max(now - sent);
            if result.is_ok() {
                pace.longest_silence = pace.longest_silence.max(now.saturating_duration_since(pace.last_ack));
                pace.last_ack = now;
                sending.acked.fetch_add(1, Ordering::Relaxed);
            }
        }
        if let Some(log) = &sending.ack_log {
            let word = if result.is_ok() { "acked" } else { "unknown" };
            writeln!(log.lock(), "{sender}:{number} {word}").context("writing the ack log")?;
        }
        log.push(outcome);
    }
    Ok((sender, log))
}

/// `gantry-verify RUN SENDER NUMBER `, filled up to `size` bytes.
fn body(run: u32, sender: u32, number: u32, size: usize) -> Vec<u8> {
    let mut body = format!("gantry-verify {run:08x} {sender} {number} ").into_bytes();
    if body.len() < size {
        body.resize(size, b'.');
    }
    body
}

/// Sender and number.
fn parse_body(body: &[u8], run: u32) -> Option<(u32, u32)> {
    let head = body.get(..body.len().min(64))?;
    let mut words = head.split(|&b| b == b' ').map(std::str::from_utf8);
    let mut word = || words.next()?.ok();
    if word()? != "gantry-verify" || u32::from_str_radix(word()?, 16).ok()? != run {
        return None;
    }
    Some((word()?.parse().ok()?, word()?.parse().ok()?))
}

/// All messages of this run in one queue. A queue whose leader is gone is asked again for a minute.
async fn read_back(reader: &PullConsumer, queue: &Queue, start: i64, run: u32) -> Result<Vec<Found>> {
    let options = PullOptions { messages_max: PULL_COUNT, hold: Duration::ZERO, ..PullOptions::default() };
    let mut found = Vec::new();
    let mut offset = start;
    let mut end = None;
    let mut failing_since = None;
    loop {
        let step = async {
            let end = match end {
                Some(end) => end,
                None => reader.max_offset(queue).await?,
            };
            let pulled = if offset < end { Some(reader.pull_records(queue, offset, &options).await?) } else { None };
            client::Result::Ok((end, pulled))
        };
        match step.await {
            Ok((known_end, pulled)) => {
                (end, failing_since) = (Some(known_end), None);
                let Some(pulled) = pulled else { return Ok(found) };
                for record in iter_records(&pulled.records) {
                    let record = record.with_context(|| format!("a damaged message in {queue}"))?;
                    if let Some((sender, number)) = parse_body(record.body(), run) {
                        found.push(Found { sender, number, queue_offset: record.queue_offset() });
                    }
                }
                if pulled.next_offset <= offset {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                offset = pulled.next_offset;
            }
            Err(error) => {
                let since = *failing_since.get_or_insert_with(Instant::now);
                if since.elapsed() > READ_PATIENCE {
                    return Err(explain(error).context("reading back"));
                }
                // The reader looks the leader up again.
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

impl Verdict {
    fn to_text(&self) -> String {
        let report = &self.report;
        let mut lines = vec![
            format!("sent           {} in {:.1} s", report.sent, self.seconds),
            format!("acknowledged   {}", report.acked),
            format!("unknown        {} failed or unanswered, {} of them stored", report.unknown, report.stored_unknown),
            format!("stored         {}", report.stored),
            format!("lost           {}", report.lost),
            format!("duplicated     {}", report.duplicated),
            format!("out of order   {}", report.out_of_order),
            format!("moved          {}", report.moved),
            format!("longest send   {:.0} ms", self.longest_send_ms),
            format!("longest time without any acknowledgement: {:.0} ms", self.longest_silence_ms),
        ];
        if report.phantom > 0 {
            lines.push(format!("never sent     {}", report.phantom));
        }
        if !report.lost_examples.is_empty() {
            lines.push(format!("lost messages  {}", report.lost_examples.join(" ")));
        }
        lines.push(format!("verdict        {}", self.verdict));
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_read_back() {
        let bytes = body(0xab, 3, 77, 256);
        assert_eq!(bytes.len(), 256);
        assert_eq!(parse_body(&bytes, 0xab), Some((3, 77)));
        assert_eq!(parse_body(&bytes, 0xac), None);
        assert_eq!(parse_body(&body(1, 2, 3, 0), 1), Some((2, 3)));
        assert_eq!(parse_body(b"something else", 1), None);
    }
}
