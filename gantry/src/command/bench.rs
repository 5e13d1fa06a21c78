//! `gantry bench`: how fast a cluster takes and gives messages, what that costs, and how it bears large numbers.

mod catch_up;
mod clients;
mod holds;
mod restart;
mod routes;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use client::{PullConsumer, PullOptions, Queue};
use hdrhistogram::Histogram;
use protocol::TopicName;
use protocol::header::Perm;
use protocol::message::iter_records;
use remoting::{Channel, ChannelOptions, Ignore};
use serde::Serialize;

use super::progress_bar;
use super::topic::{create_everywhere, leader_addr};
use super::wake::{WakeArgs, wake};
use crate::cluster::{Cluster, ClusterArgs, explain};
use crate::load::cpu::cpu_time;
use crate::load::made_up_body;
use crate::load::produce::{Loop, Outcome, Plan, Run, Target};
use crate::output::{self, Format};

/// For how long messages are produced when nothing else is said.
const TIME: Duration = Duration::from_secs(10);
/// And when they are counted: a cluster that answers no more must not hold a test up for ever.
const COUNTED_TIME_MAX: Duration = Duration::from_secs(3_600);
const QUEUES_OF_NEW_TOPIC: i32 = 4;
const CALL_TIME_MAX: Duration = Duration::from_secs(10);
/// The longest latency that is told apart; longer ones count as this.
const LATENCY_MICROS_MAX: u64 = 120_000_000;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Send as fast as said, and measure answers
    Produce(ProduceArgs),
    /// Read everything a topic holds, every queue at once
    Consume(ConsumeArgs),
    /// Let a consumer wait, and measure how soon it gets what is sent
    Wake(WakeArgs),
    /// Measure what producers feel while a follower of a `gantry dev` is sent gigabytes that it lacks
    CatchUp(catch_up::CatchUpArgs),
    /// Fill the log of a `gantry dev` of one node, stop and kill it, and measure how soon it serves again
    Restart(restart::RestartArgs),
    /// Ask every name server for the routes of all topics
    Routes(routes::RoutesArgs),
    /// Connect many consumers, and see that they stay
    Clients(clients::ClientsArgs),
    /// Hold many pulls, and wake them one after the other
    Holds(holds::HoldsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CostArgs {
    /// Processes whose CPU time counts, separated by commas
    #[arg(long, value_delimiter = ',')]
    pids: Vec<u32>,
    /// Count the processes of the `gantry dev` that runs in this directory
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "data/dev", conflicts_with = "pids")]
    dev: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ProduceArgs {
    /// The topic, or several separated by commas, whose queues are sent to in turn; created if they are not there
    #[arg(long, default_value = "gantry-bench", value_delimiter = ',')]
    topic: Vec<String>,
    /// Bytes of a body
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Messages a second, due at fixed moments: latency counts from then, so a stall is not hidden
    #[arg(long, conflicts_with = "inflight")]
    rate: Option<f64>,
    /// Messages in flight, the next when one is answered [default: 64, unless --rate is given]
    #[arg(long)]
    inflight: Option<u64>,
    /// Time to send in, at most [default: 10s; 1h if --count is given]
    #[arg(long, value_parser = broker::config::parse_duration)]
    time: Option<Duration>,
    /// Messages to send, at most
    #[arg(long)]
    count: Option<u64>,
    /// Connections to each broker group
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: u16,
    /// Only these broker groups, by name
    #[arg(long, value_delimiter = ',')]
    brokers: Vec<String>,
    #[command(flatten)]
    cost: CostArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ConsumeArgs {
    /// The topic
    #[arg(long, default_value = "gantry-bench")]
    topic: String,
    /// Messages to read at most
    #[arg(long)]
    count: Option<u64>,
    /// Messages asked for at a time
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(i32).range(1..=1024))]
    batch: i32,
    #[command(flatten)]
    cost: CostArgs,
}

pub(crate) async fn run(command: BenchCommand, cluster: &ClusterArgs, format: Format) -> Result<()> {
    let cluster = cluster.connect()?;
    match command {
        BenchCommand::Produce(args) => produce(&cluster, args, format).await,
        BenchCommand::Consume(args) => consume(&cluster, args, format).await,
        BenchCommand::Wake(args) => wake(&cluster, args, format).await,
        BenchCommand::CatchUp(args) => catch_up::run(&cluster, args, format).await,
        BenchCommand::Restart(args) => restart::run(&cluster, args, format).await,
        BenchCommand::Routes(args) => routes::run(&cluster, &args, format).await,
        BenchCommand::Clients(args) => clients::run(&cluster, args, format).await,
        BenchCommand::Holds(args) => holds::run(&cluster, args, format).await,
    }
}

/// CPU time of the cluster's processes and of this one, at one moment.
struct Cpu {
    pids: Vec<u32>,
    cluster: Duration,
    own: Duration,
}

impl Cpu {
    fn start(args: &CostArgs) -> Result<Self> {
        let pids = match &args.dev {
            Some(dir) => crate::dev::pids(dir)?,
            None => args.pids.clone(),
        };
        let (cluster, own) = (cpu_time(&pids)?, cpu_time(&[std::process::id()])?);
        Ok(Self { pids, cluster, own })
    }

    fn used(&self) -> Result<(Option<Duration>, Duration)> {
        let cluster = (!self.pids.is_empty()).then(|| cpu_time(&self.pids)).transpose()?;
        Ok((
            cluster.map(|now| now.saturating_sub(self.cluster)),
            cpu_time(&[std::process::id()])?.saturating_sub(self.own),
        ))
    }
}

#[derive(Serialize)]
struct ProduceReport {
    topic: String,
    queues: usize,
    body_bytes: usize,
    /// `open` counts latency from the moment a message was due, `closed` from the moment it was sent.
    generator: &'static str,
    rate: Option<f64>,
    in_flight: Option<u64>,
    acked: u64,
    failed: BTreeMap<String, u64>,
    seconds: f64,
    per_second: f64,
    mib_per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    max_ms: f64,
    /// Over all processes named.
    cluster_cpu_micros_per_message: Option<f64>,
    generator_cpu_micros_per_message: f64,
}

async fn produce(cluster: &Cluster, args: ProduceArgs, format: Format) -> Result<()> {
    ensure!(args.rate.is_none_or(|rate| rate > 0.0 && rate.is_finite()), "--rate must be above 0");
    let mut topics = Vec::new();
    for topic in &args.topic {
        let topic = TopicName::parse(topic).context("the name of the topic")?;
        if cluster.find_route(&topic).await?.is_none() {
            create_everywhere(cluster, &topic, QUEUES_OF_NEW_TOPIC).await?;
        }
        topics.push(topic);
    }
    let (channels, targets) = targets_of(cluster, &topics, &args.brokers, args.connections).await?;
    let queues = targets.len() / usize::from(args.connections);
    let mode = match (args.rate, args.inflight) {
        (Some(per_second), _) => Loop::Open { per_second, in_flight_max: 100_000 },
        (None, in_flight) => Loop::Closed { in_flight: in_flight.unwrap_or(64).max(1) },
    };
    let time_max = if args.count.is_some() { COUNTED_TIME_MAX } else { TIME };
    let time = args.time.unwrap_or(time_max);
    let run = Run::new(Plan {
        channels,
        targets,
        body: made_up_body(args.size),
        mode,
        count: args.count.unwrap_or(u64::MAX),
        time,
        call_time_max: CALL_TIME_MAX,
    })?;
    let cpu = Cpu::start(&args.cost)?;
    let bar = progress_bar(args.count.unwrap_or_else(|| {
        args.rate.map_or(0, |rate| {
            // A rough length is enough for a bar.
            (rate * time.as_secs_f64()) as u64
        })
    }));
    let shown = (bar.clone(), Arc::clone(&run));
    let ticker = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(250)).await;
            shown.0.set_position(shown.1.acked());
        }
    });
    let outcome = run.carry_out().await;
    ticker.abort();
    bar.finish_and_clear();
    let outcome = outcome?;
    let (cluster_cpu, own_cpu) = cpu.used()?;
    let report = report(&args, queues, mode, &outcome, cluster_cpu, own_cpu);
    if format == Format::Json {
        return output::json(&report);
    }
    output::line(&report.to_text())
}

/// The connections, and the queues of `topics` that they lead to, on the groups in `brokers` or on all.
async fn targets_of(
    cluster: &Cluster,
    topics: &[TopicName],
    brokers: &[String],
    connections: u16,
) -> Result<(Vec<Channel>, Vec<Target>)> {
    let mut channels: Vec<Channel> = Vec::new();
    // By address, the first of its connections.
    let mut by_address: BTreeMap<String, usize> = BTreeMap::new();
    let mut targets = Vec::new();
    for topic in topics {
        let route = cluster.route(topic).await?;
        for data in route.queue_datas.iter().filter(|data| Perm::is_writable(data.perm)) {
            if !brokers.is_empty() && !brokers.contains(&data.broker_name) {
                continue;
            }
            let broker = route.broker_datas.iter().find(|broker| broker.broker_name == data.broker_name);
            let addr = leader_addr(broker.context("the route has queues of a broker it does not know")?)?;
            let first = *by_address.entry(addr.to_owned()).or_insert_with(|| {
                let first = channels.len();
                let channel = |_| Channel::new(addr, ChannelOptions::default(), Arc::new(Ignore));
                channels.extend((0..connections).map(channel));
                first
            });
            let broker_name: Arc<str> = data.broker_name.as_str().into();
            for channel in first..first + usize::from(connections) {
                targets.extend((0..data.write_queue_nums).map(|queue_id| Target {
                    channel,
                    topic: topic.clone(),
                    broker_name: Arc::clone(&broker_name),
                    queue_id,
                }));
            }
        }
    }
    // Queue by queue over all brokers, so that a short run touches each of them.
    targets.sort_by_key(|target| target.queue_id);
    Ok((channels, targets))
}

fn report(
    args: &ProduceArgs,
    queues: usize,
    mode: Loop,
    outcome: &Outcome,
    cluster_cpu: Option<Duration>,
    own_cpu: Duration,
) -> ProduceReport {
    let seconds = outcome.elapsed.as_secs_f64().max(f64::EPSILON);
    let per_second = outcome.acked as f64 / seconds;
    let per_message = |time: Duration| time.as_secs_f64() * 1e6 / (outcome.acked.max(1) as f64);
    let (generator, rate, in_flight) = match mode {
        Loop::Open { per_second, .. } => ("open", Some(per_second), None),
        Loop::Closed { in_flight } => ("closed", None, Some(in_flight)),
    };
    ProduceReport {
        topic: if let [topic] = &args.topic[..] { topic.clone() } else { format!("{} topics", args.topic.len()) },
        queues,
        body_bytes: args.size,
        generator,
        rate,
        in_flight,
        acked: outcome.acked,
        failed: outcome.failed.clone(),
        seconds,
        per_second,
        mib_per_second: per_second * args.size as f64 / f64::from(1 << 20),
        p50_ms: quantile_ms(&outcome.latency, 0.5),
        p99_ms: quantile_ms(&outcome.latency, 0.99),
        p999_ms: quantile_ms(&outcome.latency, 0.999),
        max_ms: outcome.latency.max() as f64 / 1e3,
        cluster_cpu_micros_per_message: cluster_cpu.map(per_message),
        generator_cpu_micros_per_message: per_message(own_cpu),
    }
}

fn quantile_ms(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e3
}

impl ProduceReport {
    fn to_text(&self) -> String {
        let how = match (self.rate, self.in_flight) {
            (Some(rate), _) => format!("open loop, {rate:.0} a second, latency from the moment each was due"),
            (None, Some(in_flight)) => format!("closed loop, {in_flight} in flight"),
            (None, None) => String::new(),
        };
        let failed: u64 = self.failed.values().sum();
        let mut lines = vec![
            format!("{} bytes to {}, {} queues: {how}", self.body_bytes, self.topic, self.queues),
            format!(
                "acknowledged  {} in {:.2} s: {:.0} a second, {:.1} MiB/s",
                self.acked, self.seconds, self.per_second, self.mib_per_second
            ),
            format!(
                "latency       p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, max {:.2} ms",
                self.p50_ms, self.p99_ms, self.p999_ms, self.max_ms
            ),
        ];
        if failed > 0 {
            let kinds: Vec<_> = self.failed.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
            lines.push(format!("failed        {failed}: {}", kinds.join(", ")));
        }
        if let Some(micros) = self.cluster_cpu_micros_per_message {
            lines.push(format!("cpu           {micros:.1} us a message over all processes of the cluster"));
        }
        lines.push(format!("generator     {:.1} us of cpu a message", self.generator_cpu_micros_per_message));
        lines.join("\n")
    }
}

#[derive(Serialize)]
struct ConsumeReport {
    topic: String,
    messages: u64,
    body_bytes: u64,
    seconds: f64,
    per_second: f64,
    mib_per_second: f64,
    cluster_cpu_micros_per_message: Option<f64>,
}

#[derive(Clone, Copy, Default)]
struct Read {
    messages: u64,
    body_bytes: u64,
}

async fn consume(cluster: &Cluster, args: ConsumeArgs, format: Format) -> Result<()> {
    let topic = TopicName::parse(&args.topic).context("the name of the topic")?;
    let reader = cluster.reader(None);
    let queues = reader.queues(&topic).await.map_err(explain)?;
    ensure!(!queues.is_empty(), "{topic} has no queue to read");
    let mut ranges = Vec::new();
    for queue in queues {
        let from = reader.min_offset(&queue).await.map_err(explain)?;
        let end = reader.max_offset(&queue).await.map_err(explain)?;
        ranges.push((queue, from, end));
    }
    let total: i64 = ranges.iter().map(|(_, from, end)| end - from).sum();
    let limit = args.count.unwrap_or(u64::MAX);
    let bar = progress_bar(u64::try_from(total).unwrap_or(0).min(limit));
    let cpu = Cpu::start(&args.cost)?;
    let started = Instant::now();
    let mut readers = tokio::task::JoinSet::new();
    for (queue, from, end) in ranges {
        readers.spawn(read(reader.clone(), queue, from, end, args.batch, bar.clone(), limit));
    }
    let mut sum = Read::default();
    while let Some(read) = readers.join_next().await {
        let read = read.context("a reader panicked")??;
        sum.messages += read.messages;
        sum.body_bytes += read.body_bytes;
    }
    let seconds = started.elapsed().as_secs_f64().max(f64::EPSILON);
    bar.finish_and_clear();
    let (cluster_cpu, _) = cpu.used()?;
    let report = ConsumeReport {
        topic: args.topic,
        messages: sum.messages,
        body_bytes: sum.body_bytes,
        seconds,
        per_second: sum.messages as f64 / seconds,
        mib_per_second: sum.body_bytes as f64 / seconds / f64::from(1 << 20),
        cluster_cpu_micros_per_message: cluster_cpu.map(|time| time.as_secs_f64() * 1e6 / (sum.messages.max(1) as f64)),
    };
    if format == Format::Json {
        return output::json(&report);
    }
    let cost = report
        .cluster_cpu_micros_per_message
        .map_or_else(String::new, |micros| format!("\ncpu           {micros:.1} us a message over all processes"));
    output::line(&format!(
        "read          {} in {:.2} s: {:.0} a second, {:.1} MiB/s{cost}",
        report.messages, report.seconds, report.per_second, report.mib_per_second
    ))
}

/// Reads one queue; the bar, which all readers share, also counts towards `limit`.
async fn read(
    reader: PullConsumer,
    queue: Queue,
    from: i64,
    end: i64,
    batch: i32,
    bar: indicatif::ProgressBar,
    limit: u64,
) -> Result<Read> {
    let options = PullOptions { messages_max: batch, hold: Duration::ZERO, ..PullOptions::default() };
    let mut read = Read::default();
    let mut offset = from;
    while offset < end && bar.position() < limit {
        let pulled = reader.pull_records(&queue, offset, &options).await.map_err(explain)?;
        let mut count = 0;
        for record in iter_records(&pulled.records) {
            let record = record.with_context(|| format!("a damaged message in {queue}"))?;
            count += 1;
            read.body_bytes += record.body().len() as u64;
        }
        read.messages += count;
        bar.inc(count);
        ensure!(count > 0 || pulled.next_offset > offset, "{queue} gives nothing at {offset}");
        offset = pulled.next_offset;
    }
    Ok(read)
}
