//! `gantry bench wake`: how soon a consumer that waits gets what is sent.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use client::{Message, PullOptions, PullStatus};
use hdrhistogram::Histogram;
use protocol::TopicName;
use serde::Serialize;

use super::send::start_producer;
use super::topic::create_everywhere;
use crate::cluster::{Cluster, explain};
use crate::load::made_up_body;
use crate::output::{self, Format};

#[derive(Debug, Args)]
pub(crate) struct WakeArgs {
    /// The topic; it is created if it is not there
    #[arg(long, default_value = "gantry-bench")]
    topic: String,
    /// Bytes of a body
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Messages to send, one after the other
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// How long the consumer waits before each
    #[arg(long, default_value = "5ms", value_parser = broker::config::parse_duration)]
    pause: Duration,
}

#[derive(Serialize)]
struct WakeReport {
    topic: String,
    messages: u32,
    /// From the moment a message was sent to the producer's answer.
    acked_p50_ms: f64,
    acked_p99_ms: f64,
    /// From the producer's answer, which says that the message is committed, to the consumer's; 0 where the consumer's
    /// came first.
    woken_p50_ms: f64,
    woken_p99_ms: f64,
    woken_max_ms: f64,
}

pub(super) async fn wake(cluster: &Cluster, args: WakeArgs, format: Format) -> Result<()> {
    let topic = TopicName::parse(&args.topic).context("the name of the topic")?;
    if cluster.find_route(&topic).await?.is_none() {
        create_everywhere(cluster, &topic, 1).await?;
    }
    let reader = cluster.reader(None);
    let queue = reader.queues(&topic).await.map_err(explain)?.into_iter().next().context("the topic has no queue")?;
    let producer = start_producer(cluster.client())?;
    let mut acked = Histogram::<u64>::new(3)?;
    let mut woken = Histogram::<u64>::new(3)?;
    let mut next = reader.max_offset(&queue).await.map_err(explain)?;
    for _ in 0..args.count {
        let (waiting, at) = (reader.clone(), queue.clone());
        let pull = tokio::spawn(async move {
            let options = PullOptions { messages_max: 1, hold: Duration::from_secs(10), ..PullOptions::default() };
            let pulled = waiting.pull_records(&at, next, &options).await;
            (pulled, Instant::now())
        });
        tokio::time::sleep(args.pause).await;
        let message = Message::new(topic.clone(), made_up_body(args.size));
        let sent_at = Instant::now();
        let receipt = producer.send_to(message, &queue).await.map_err(explain)?;
        let acked_at = Instant::now();
        let (pulled, woken_at) = pull.await.context("the consumer panicked")?;
        let pulled = pulled.map_err(explain)?;
        ensure!(
            pulled.status == PullStatus::Found && receipt.queue_offset == next,
            "somebody else sends to {queue}: measure with a topic of your own"
        );
        acked.record(micros(acked_at - sent_at))?;
        woken.record(micros(woken_at.saturating_duration_since(acked_at)))?;
        next = pulled.next_offset;
    }
    producer.shutdown().await;
    let ms = |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    let report = WakeReport {
        topic: args.topic,
        messages: args.count,
        acked_p50_ms: ms(&acked, 0.5),
        acked_p99_ms: ms(&acked, 0.99),
        woken_p50_ms: ms(&woken, 0.5),
        woken_p99_ms: ms(&woken, 0.99),
        woken_max_ms: ms(&woken, 1.0),
    };
    if format == Format::Json {
        return output::json(&report);
    }
    output::line(&format!(
        "acknowledged  p50 {:.2} ms, p99 {:.2} ms after it was sent\n\
         woken         p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms after it was acknowledged",
        report.acked_p50_ms, report.acked_p99_ms, report.woken_p50_ms, report.woken_p99_ms, report.woken_max_ms
    ))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
