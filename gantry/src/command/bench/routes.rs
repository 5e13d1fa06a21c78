//! `gantry bench routes`: how fast name servers say where topics live.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use hdrhistogram::Histogram;
use protocol::header::RouteRequest;
use protocol::{RemotingCommand, RequestCode, TopicName};
use remoting::{Channel, ChannelOptions, Ignore};
use serde::Serialize;

use super::{CALL_TIME_MAX, LATENCY_MICROS_MAX, quantile_ms};
use crate::cluster::{Cluster, explain};
use crate::output::{self, Format};

/// Topics between one question and the next, so that neighbours in memory are not asked for in a row.
const STRIDE: usize = 7_919;

#[derive(Debug, Args)]
pub(crate) struct RoutesArgs {
    /// Questions in flight at the name server, the next when one is answered
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    inflight: u16,
    /// Time to ask each name server in
    #[arg(long, default_value = "10s", value_parser = broker::config::parse_duration)]
    time: Duration,
}

#[derive(Serialize)]
struct RouteLine {
    name_server: String,
    topics: usize,
    answers: u64,
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    max_ms: f64,
}

/// Asks one name server after the other for the routes of all topics.
pub(super) async fn run(cluster: &Cluster, args: &RoutesArgs, format: Format) -> Result<()> {
    let names = cluster.admin().topics().await.map_err(explain)?;
    let topics: Result<Vec<TopicName>, _> = names.iter().map(|name| TopicName::parse(name)).collect();
    let topics: Arc<[TopicName]> = topics.context("the name of a topic")?.into();
    ensure!(!topics.is_empty(), "the cluster has no topic");
    let mut lines = Vec::new();
    for name_server in cluster.name_servers() {
        lines.push(ask(name_server, &topics, args).await?);
    }
    if format == Format::Json {
        return output::json(&lines);
    }
    let rows = lines.into_iter().map(|line| {
        [
            line.name_server,
            line.topics.to_string(),
            line.answers.to_string(),
            format!("{:.0}", line.per_second),
            format!("{:.3}", line.p50_ms),
            format!("{:.3}", line.p99_ms),
            format!("{:.3}", line.p999_ms),
            format!("{:.3}", line.max_ms),
        ]
    });
    let head = ["name server", "topics", "answers", "a second", "p50 ms", "p99 ms", "p99.9 ms", "max ms"];
    output::line(&output::table(&head, rows))
}

async fn ask(name_server: &str, topics: &Arc<[TopicName]>, args: &RoutesArgs) -> Result<RouteLine> {
    let channel = Channel::new(name_server, ChannelOptions::default(), Arc::new(Ignore));
    channel.connect(CALL_TIME_MAX).await.with_context(|| format!("connecting to {name_server}"))?;
    let started = Instant::now();
    let end = started + args.time;
    let mut askers = tokio::task::JoinSet::new();
    for first in 0..usize::from(args.inflight) {
        askers.spawn(ask_until(channel.clone(), Arc::clone(topics), first, end));
    }
    let mut latency = Histogram::<u64>::new_with_max(LATENCY_MICROS_MAX, 3).context("making a histogram")?;
    while let Some(one) = askers.join_next().await {
        latency.add(one.context("an asker panicked")??).context("adding histograms")?;
    }
    let seconds = started.elapsed().as_secs_f64().max(f64::EPSILON);
    Ok(RouteLine {
        name_server: name_server.to_owned(),
        topics: topics.len(),
        answers: latency.len(),
        per_second: latency.len() as f64 / seconds,
        p50_ms: quantile_ms(&latency, 0.5),
        p99_ms: quantile_ms(&latency, 0.99),
        p999_ms: quantile_ms(&latency, 0.999),
        max_ms: latency.max() as f64 / 1e3,
    })
}

async fn ask_until(channel: Channel, topics: Arc<[TopicName]>, first: usize, end: Instant) -> Result<Histogram<u64>> {
    let mut latency = Histogram::new_with_max(LATENCY_MICROS_MAX, 3).context("making a histogram")?;
    let mut at = first;
    while Instant::now() < end {
        let topic = &topics[at % topics.len()];
        at = at.wrapping_add(STRIDE);
        let mut request = RemotingCommand::request(RequestCode::GET_ROUTEINFO_BY_TOPIC);
        RouteRequest { topic: topic.as_str().to_owned(), accept_standard_json_only: true }
            .encode_into(&mut request.ext);
        let asked = Instant::now();
        let answer = channel.call(request, CALL_TIME_MAX).await.context("asking for a route")?;
        ensure!(answer.is_success(), "the route of {topic} is answered with code {}", answer.code);
        latency.saturating_record(u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
    Ok(latency)
}
