//! `gantry send`.

use std::io::{BufRead, Read};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use client::{Client, Message, Producer, ProducerOptions, SendReceipt};
use protocol::{GroupName, TopicName};
use serde::Serialize;

use super::progress_bar;
use crate::cluster::ClusterArgs;
use crate::load::made_up_body;
use crate::output::{self, Format};

/// Sends that wait for their answers.
const IN_FLIGHT_MAX: usize = 64;
/// Receipts that are printed; of more, only the sum is.
const RECEIPTS_SHOWN_MAX: u64 = 10;
const BODY_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// The topic
    topic: String,
    /// The body
    #[arg(conflicts_with_all = ["file", "stdin", "size"])]
    body: Option<String>,
    /// Send the content of a file
    #[arg(long, conflicts_with_all = ["stdin", "size"])]
    file: Option<PathBuf>,
    /// Send each line of standard input
    #[arg(long, conflicts_with_all = ["size", "count"])]
    stdin: bool,
    /// Send a made-up body of so many bytes
    #[arg(long)]
    size: Option<usize>,
    /// Send so many times
    #[arg(long, default_value_t = 1)]
    count: u64,
    /// Messages a second at most
    #[arg(long)]
    rate: Option<f64>,
    /// Keys of the message, separated by blanks
    #[arg(long)]
    key: Option<String>,
    /// Tag of the message
    #[arg(long)]
    tag: Option<String>,
}

impl SendArgs {
    /// One message with this body.
    pub(super) fn one(topic: String, body: String, key: Option<String>, tag: Option<String>) -> Self {
        Self { topic, body: Some(body), file: None, stdin: false, size: None, count: 1, rate: None, key, tag }
    }
}

#[derive(Serialize)]
struct Receipt {
    message_id: String,
    offset_id: String,
    broker: String,
    queue: i32,
    queue_offset: i64,
    attempts: u32,
}

impl From<SendReceipt> for Receipt {
    fn from(receipt: SendReceipt) -> Self {
        Self {
            message_id: receipt.message_id,
            offset_id: receipt.offset_message_id,
            broker: receipt.queue.broker_name.to_string(),
            queue: receipt.queue.queue_id,
            queue_offset: receipt.queue_offset,
            attempts: receipt.attempts,
        }
    }
}

#[derive(Serialize)]
struct Summary {
    sent: u64,
    failed: u64,
    seconds: f64,
}

pub(crate) async fn run(args: SendArgs, cluster: &ClusterArgs, format: Format) -> Result<()> {
    let topic = TopicName::parse(&args.topic).context("the name of the topic")?;
    ensure!(args.rate.is_none_or(|rate| rate > 0.0), "--rate must be above 0");
    let client = start_client(cluster)?;
    let producer = start_producer(&client)?;
    let message = |body: bytes::Bytes| -> Result<Message> {
        let mut message = Message::new(topic.clone(), body);
        if let Some(tag) = &args.tag {
            message = message.with_tag(tag)?;
        }
        if let Some(key) = &args.key {
            message = message.with_keys(key)?;
        }
        Ok(message)
    };
    let mut bodies: Box<dyn Iterator<Item = std::io::Result<bytes::Bytes>>> = if args.stdin {
        Box::new(std::io::stdin().lock().lines().map(|line| line.map(bytes::Bytes::from)))
    } else {
        let body = one_body(&args)?;
        let count = usize::try_from(args.count).context("--count is too large")?;
        Box::new(std::iter::repeat_n(body, count).map(Ok))
    };

    let bar = progress_bar(if args.stdin { 0 } else { args.count });
    let started = Instant::now();
    let mut summary = Summary { sent: 0, failed: 0, seconds: 0.0 };
    let mut receipts = Vec::new();
    let mut in_flight = tokio::task::JoinSet::new();
    let mut started_sends = 0_u64;
    loop {
        // Standard input may be slow: what has been answered meanwhile is noted after the next line.
        let body = if in_flight.len() < IN_FLIGHT_MAX { bodies.next().transpose()? } else { None };
        if let Some(body) = body {
            if let Some(rate) = args.rate {
                let due = started + Duration::from_secs_f64(started_sends as f64 / rate);
                tokio::time::sleep_until(due.into()).await;
            }
            let (producer, message) = (producer.clone(), message(body)?);
            in_flight.spawn(async move { producer.send(message).await });
            started_sends += 1;
            if in_flight.len() < IN_FLIGHT_MAX && !args.stdin {
                continue;
            }
        }
        let Some(result) = in_flight.join_next().await else { break };
        bar.inc(1);
        match result.context("a send panicked")? {
            Ok(receipt) => {
                summary.sent += 1;
                if summary.sent <= RECEIPTS_SHOWN_MAX {
                    receipts.push(Receipt::from(receipt));
                }
            }
            Err(error) => {
                summary.failed += 1;
                if summary.failed <= RECEIPTS_SHOWN_MAX {
                    bar.suspend(|| eprintln!("gantry: {error}"));
                }
            }
        }
    }
    bar.finish_and_clear();
    summary.seconds = started.elapsed().as_secs_f64();
    producer.shutdown().await;
    client.shutdown().await;
    if format == Format::Json {
        output::json(&serde_json::json!({ "receipts": receipts, "summary": summary }))?;
    } else {
        print(&summary, receipts)?;
    }
    if summary.failed > 0 {
        bail!("{} of {} sends failed", summary.failed, summary.failed + summary.sent);
    }
    Ok(())
}

pub(crate) fn start_client(cluster: &ClusterArgs) -> Result<Client> {
    Ok(Client::start(cluster.client_options()?))
}

pub(crate) fn start_producer(client: &Client) -> Result<Producer> {
    let group = GroupName::parse("gantry_tools").context("the producer's group")?;
    Ok(Producer::new(client, group, ProducerOptions::default()))
}

fn one_body(args: &SendArgs) -> Result<bytes::Bytes> {
    match (&args.body, &args.file, args.size) {
        (Some(body), _, _) => Ok(body.clone().into()),
        (None, Some(path), _) => {
            let mut body = Vec::new();
            let file = std::fs::File::open(path).with_context(|| format!("opening {}", path.display()))?;
            file.take(BODY_BYTES_MAX).read_to_end(&mut body).with_context(|| format!("reading {}", path.display()))?;
            Ok(body.into())
        }
        (None, None, Some(size)) => Ok(made_up_body(size)),
        (None, None, None) => bail!("name a body, --file, --stdin or --size"),
    }
}

fn print(summary: &Summary, receipts: Vec<Receipt>) -> Result<()> {
    let hidden = summary.sent.saturating_sub(RECEIPTS_SHOWN_MAX);
    if !receipts.is_empty() {
        let rows = receipts.into_iter().map(|receipt| {
            [
                receipt.message_id,
                receipt.offset_id,
                receipt.broker,
                receipt.queue.to_string(),
                receipt.queue_offset.to_string(),
            ]
        });
        output::line(&output::table(&["message id", "offset id", "broker", "queue", "offset"], rows))?;
    }
    if hidden > 0 {
        output::line(&format!("and {hidden} more"))?;
    }
    if summary.sent > 1 {
        output::line(&format!(
            "{} messages in {:.2} s, {:.0} a second",
            summary.sent,
            summary.seconds,
            summary.sent as f64 / summary.seconds.max(f64::EPSILON)
        ))?;
    }
    Ok(())
}
