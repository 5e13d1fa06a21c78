//! `gantry tail`: prints messages as they come.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use client::{PullConsumer, PullOptions, Queue};
use protocol::message::iter_records;
use protocol::{GroupName, TopicName};
use tokio::sync::mpsc;

use crate::cluster::{ClusterArgs, explain};
use crate::message_view::MessageView;
use crate::output::{self, Format};

const HOLD: Duration = Duration::from_secs(15);
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Messages read ahead of printing.
const READ_AHEAD_MAX: usize = 256;
const PULL_COUNT: i32 = 32;

#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// The topic
    topic: String,
    /// earliest, latest, or a time in milliseconds since 1970
    #[arg(long, default_value = "latest", value_parser = parse_from)]
    from: From,
    /// Go on where this consumer group stopped, and store how far it is
    #[arg(long)]
    group: Option<String>,
    /// End after this many messages
    #[arg(long)]
    count: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Earliest,
    Latest,
    Timestamp(i64),
}

fn parse_from(text: &str) -> Result<From, String> {
    match text {
        "earliest" => Ok(From::Earliest),
        "latest" => Ok(From::Latest),
        _ => text
            .parse()
            .map(From::Timestamp)
            .map_err(|_| "expected earliest, latest or milliseconds since 1970".to_owned()),
    }
}

struct Message {
    queue: usize,
    view: MessageView,
}

pub(crate) async fn run(args: TailArgs, cluster: &ClusterArgs, format: Format) -> Result<()> {
    let topic = TopicName::parse(&args.topic).context("the name of the topic")?;
    let group = args.group.as_deref().map(GroupName::parse).transpose().context("the name of the group")?;
    let goes_on = group.is_some();
    let reader = cluster.connect()?.reader(group);
    let queues = reader.queues(&topic).await.map_err(explain)?;
    ensure!(!queues.is_empty(), "{topic} has no queue to read");

    let (sender, mut messages) = mpsc::channel::<Message>(READ_AHEAD_MAX);
    let mut readers = tokio::task::JoinSet::new();
    for (number, queue) in queues.iter().enumerate() {
        let offset = start_offset(&reader, queue, goes_on, args.from).await.map_err(explain)?;
        readers.spawn(read(reader.clone(), queue.clone(), number, offset, sender.clone()));
    }
    drop(sender);
    let mut printed = 0;
    while args.count.is_none_or(|count| printed < count) {
        let message = tokio::select! {
            message = messages.recv() => message,
            _ = tokio::signal::ctrl_c() => None,
        };
        let Some(Message { queue, view }) = message else { break };
        match format {
            Format::Json => output::json(&view)?,
            Format::Table => {
                let (broker, id) = (&queues[queue].broker_name, view.queue);
                output::line(&format!("{broker}:{id}:{}  {}", view.queue_offset, view.body_line()))?;
            }
        }
        printed += 1;
        if goes_on {
            reader.commit(&queues[queue], view.queue_offset + 1).await.map_err(explain)?;
        }
    }
    readers.shutdown().await;
    Ok(())
}

async fn start_offset(reader: &PullConsumer, queue: &Queue, goes_on: bool, from: From) -> client::Result<i64> {
    if goes_on && let Some(queue_offset) = reader.committed_offset(queue).await? {
        return Ok(queue_offset);
    }
    match from {
        From::Earliest => reader.min_offset(queue).await,
        From::Latest => reader.max_offset(queue).await,
        From::Timestamp(timestamp_ms) => reader.offset_at(queue, timestamp_ms).await,
    }
}

/// Reads one queue until nobody wants more. After a failure the reader looks the leader up again.
async fn read(reader: PullConsumer, queue: Queue, number: usize, mut offset: i64, messages: mpsc::Sender<Message>) {
    let options = PullOptions { messages_max: PULL_COUNT, hold: HOLD, ..PullOptions::default() };
    loop {
        match reader.pull_records(&queue, offset, &options).await {
            Ok(pulled) => {
                for record in iter_records(&pulled.records) {
                    let view = match record {
                        Ok(record) => MessageView::of(&record),
                        Err(error) => {
                            eprintln!("gantry: {queue} holds a damaged message: {error}");
                            break;
                        }
                    };
                    if messages.send(Message { queue: number, view }).await.is_err() {
                        return;
                    }
                }
                offset = pulled.next_offset;
            }
            Err(error) => {
                eprintln!("gantry: {:#}", anyhow::Error::from(error));
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }
}
