//! `gantry bench restart`: how soon a node with a large log serves again, after a clean stop and after a kill.
//!
//! The log of a `gantry dev` cluster of one node is filled. Then the node is stopped or killed, and started again; the
//! time runs from the moment it is started until it says that it is ready, and until it has acknowledged a message. More
//! messages are sent before each round, so that the log ends somewhere else in its last segment each time: the part
//! behind the newest checkpoint is what is applied again.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use broker::http::{LogStatus, NodeStatus};
use clap::Args;
use protocol::TopicName;
use serde::Serialize;

use super::{CALL_TIME_MAX, COUNTED_TIME_MAX, QUEUES_OF_NEW_TOPIC, targets_of};
use crate::cluster::Cluster;
use crate::command::topic::create_everywhere;
use crate::dev::Driver;
use crate::http_get::get_json;
use crate::load::made_up_body;
use crate::load::produce::{Loop, Plan, Run};
use crate::output::{self, Format};

const TOPIC: &str = "gantry-bench-restart";
/// In flight while the log is filled.
const FILL_IN_FLIGHT: u64 = 1024;
/// Bytes sent at a time until the log is long enough.
const FILL_STEP_BYTES: u64 = 256 << 20;
/// How often a starting node is asked.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
const STATUS_TIME_MAX: Duration = Duration::from_secs(5);
/// A node that is not ready by then never will be.
const READY_TIME_MAX: Duration = Duration::from_secs(600);

#[derive(Debug, Args)]
pub(crate) struct RestartArgs {
    /// Directory of the `gantry dev` to use; start it with --nodes 1 --groups 1 --set storage.segment_bytes=1GiB
    #[arg(long, default_value = "data/dev")]
    dev: PathBuf,
    /// How long the log is made before the first round
    #[arg(long, default_value = "2GiB", value_parser = broker::config::parse_bytes)]
    log: u64,
    /// What is sent before each stop and each kill
    #[arg(long, default_value = "200MiB", value_parser = broker::config::parse_bytes)]
    more: u64,
    /// Rounds, each with a clean stop and a kill
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Bytes of a body
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    size: u32,
}

/// How the node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum End {
    Stop,
    Kill,
}

/// One start.
#[derive(Clone, Copy, Debug, Serialize)]
struct Start {
    after: End,
    /// What the log held.
    log_bytes: u64,
    segments: u64,
    /// From the start of the process, by its own clock, until its group was led.
    led_ms: u64,
    /// Until it said that it was ready: everything is applied, and a name server knows it.
    ready_ms: u64,
    /// Until a message was acknowledged.
    acknowledged_ms: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    body_bytes: u32,
    starts: Vec<Start>,
}

struct Bench<'a> {
    args: &'a RestartArgs,
    driver: Driver,
    cluster: &'a Cluster,
    topic: TopicName,
    node: String,
    http: std::net::SocketAddr,
}

pub(super) async fn run(cluster: &Cluster, args: RestartArgs, format: Format) -> Result<()> {
    let driver = Driver::new(args.dev.clone());
    let (node, http) = driver.only_node()?;
    let topic = TopicName::parse(TOPIC).context("the name of the topic")?;
    if cluster.find_route(&topic).await?.is_none() {
        create_everywhere(cluster, &topic, QUEUES_OF_NEW_TOPIC).await?;
    }
    let bench = Bench { args: &args, driver, cluster, topic, node, http };
    bench.fill().await?;
    let mut starts = Vec::new();
    for round in 1..=args.rounds {
        for after in [End::Stop, End::Kill] {
            bench.send_bytes(args.more).await?;
            eprintln!("round {round} of {}: {}", args.rounds, after.word());
            starts.push(bench.restart(after).await?);
        }
    }
    let report = Report { body_bytes: args.size, starts };
    if format == Format::Json {
        return output::json(&report);
    }
    output::line(&report.to_text())
}

impl Bench<'_> {
    async fn status(&self) -> Result<NodeStatus> {
        get_json(self.http, "/v1/status", STATUS_TIME_MAX).await
    }

    async fn log(&self) -> Result<LogStatus> {
        let group = self.status().await?.groups.into_iter().next().context("the node has no group")?;
        group.log.context("the log is not open")
    }

    /// Sends until the log has the length that is wanted.
    async fn fill(&self) -> Result<()> {
        let mut before = None;
        loop {
            let held = held_bytes(&self.log().await?);
            // A disk that fills up makes retention drop what was sent.
            ensure!(before.is_none_or(|before| held > before), "the log does not grow beyond {} MiB", held >> 20);
            before = Some(held);
            eprintln!("the log holds {} of {} MiB", held >> 20, self.args.log >> 20);
            if held >= self.args.log {
                return Ok(());
            }
            self.send_bytes(FILL_STEP_BYTES.min(self.args.log - held)).await?;
        }
    }

    /// Sends messages of so many bytes together, or one.
    async fn send_bytes(&self, bytes: u64) -> Result<()> {
        self.send((bytes / u64::from(self.args.size)).max(1)).await
    }

    async fn send(&self, count: u64) -> Result<()> {
        let (channels, targets) = targets_of(self.cluster, std::slice::from_ref(&self.topic), &[], 1).await?;
        let plan = Plan {
            channels,
            targets,
            body: made_up_body(self.args.size as usize),
            mode: Loop::Closed { in_flight: FILL_IN_FLIGHT.min(count) },
            count,
            time: COUNTED_TIME_MAX,
            call_time_max: CALL_TIME_MAX,
        };
        let outcome = Run::new(plan)?.carry_out().await?;
        ensure!(outcome.acked > 0, "no message was taken: {:?}", outcome.failed);
        Ok(())
    }

    async fn restart(&self, after: End) -> Result<Start> {
        let before = self.log().await?;
        match after {
            End::Stop => self.driver.stop(&self.node)?,
            End::Kill => self.driver.kill(&self.node)?,
        }
        let started = Instant::now();
        self.driver.start(&self.node)?;
        let ready = loop {
            // Before it listens there is nobody to ask.
            if let Ok(status) = self.status().await
                && status.ready
            {
                break status;
            }
            if started.elapsed() > READY_TIME_MAX {
                bail!("{} was not ready within {READY_TIME_MAX:?}", self.node);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        let ready_ms = millis(started);
        self.send(1).await?;
        Ok(Start {
            after,
            log_bytes: held_bytes(&before),
            segments: before.segments,
            led_ms: ready.start_to_ready_ms.unwrap_or(ready_ms),
            ready_ms,
            acknowledged_ms: millis(started),
        })
    }
}

fn held_bytes(log: &LogStatus) -> u64 {
    log.end_position.saturating_sub(log.start_position)
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl End {
    fn word(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Kill => "kill",
        }
    }
}

impl Report {
    fn to_text(&self) -> String {
        let rows = self.starts.iter().map(|start| {
            [
                start.after.word().to_owned(),
                (start.log_bytes >> 20).to_string(),
                start.segments.to_string(),
                start.led_ms.to_string(),
                start.ready_ms.to_string(),
                start.acknowledged_ms.to_string(),
            ]
        });
        let head = ["after", "log MiB", "segments", "led ms", "ready ms", "acknowledged ms"];
        let worst = |after| self.starts.iter().filter(|start| start.after == after).map(|start| start.ready_ms).max();
        format!(
            "{}\n\nslowest start: {} ms after a stop, {} ms after a kill",
            output::table(&head, rows),
            worst(End::Stop).unwrap_or(0),
            worst(End::Kill).unwrap_or(0)
        )
    }
}
