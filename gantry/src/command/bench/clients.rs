//! `gantry bench clients`: what many connected consumers cost.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use futures::StreamExt;
use futures::future::join_all;
use hdrhistogram::Histogram;
use protocol::body::{
    ConsumeFromWhere, ConsumeType, ConsumerData, ConsumerList, HeartbeatData, MessageModel, SubscriptionData,
};
use protocol::header::{ConsumerGroupRequest, UpdateConsumerOffsetRequest};
use protocol::{GroupName, RemotingCommand, RequestCode, TopicName};
use remoting::{Channel, ChannelOptions, Ignore};
use serde::Serialize;

use super::{CALL_TIME_MAX, CostArgs, Cpu, LATENCY_MICROS_MAX, QUEUES_OF_NEW_TOPIC, quantile_ms};
use crate::cluster::Cluster;
use crate::command::topic::{create_everywhere, leader_addr};
use crate::load::memory::largest_resident;
use crate::output::{self, Format};

/// Clients that connect at the same time.
const CONNECTING_MAX: usize = 64;
/// A broker takes so many connections of one address at most, and clients on one machine have one. So clients of a
/// cluster on loopback are given addresses of their own.
const CLIENTS_PER_ADDRESS: u32 = 100;

#[derive(Debug, Args)]
pub(crate) struct ClientsArgs {
    /// Clients; each has a connection to the leader of every broker group, as a consumer has
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    count: u32,
    /// Consumer groups that they are members of
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    groups: u32,
    /// The topic that they consume; it is created if it is not there
    #[arg(long, default_value = "gantry-bench")]
    topic: String,
    /// How long they stay once all are there
    #[arg(long, default_value = "30s", value_parser = broker::config::parse_duration)]
    time: Duration,
    /// How often each of them sends its heartbeat and commits an offset
    #[arg(long, default_value = "30s", value_parser = broker::config::parse_duration)]
    heartbeat: Duration,
    #[command(flatten)]
    cost: CostArgs,
}

struct Client {
    id: String,
    group: GroupName,
    channels: Vec<Channel>,
}

#[derive(Serialize)]
struct ClientsReport {
    clients: u32,
    connections: usize,
    groups: u32,
    /// Clients that could not connect to every broker group, or whose first heartbeat was not answered.
    failed_to_join: usize,
    joined_in_seconds: f64,
    heartbeats: u64,
    failed_heartbeats: u64,
    lost_connections: usize,
    heartbeat_p50_ms: f64,
    heartbeat_p99_ms: f64,
    /// Members that brokers name of all groups, of those that joined.
    members_known: usize,
    largest_process_mib: Option<f64>,
    cluster_cpu_percent: Option<f64>,
}

pub(super) async fn run(cluster: &Cluster, args: ClientsArgs, format: Format) -> Result<()> {
    ensure!(args.heartbeat >= Duration::from_secs(1), "--heartbeat must be at least 1s");
    let topic = TopicName::parse(&args.topic).context("the name of the topic")?;
    if cluster.find_route(&topic).await?.is_none() {
        create_everywhere(cluster, &topic, QUEUES_OF_NEW_TOPIC).await?;
    }
    let info = cluster.info().await?;
    let leaders: Vec<String> =
        info.broker_addr_table.values().map(|broker| leader_addr(broker).map(str::to_owned)).collect::<Result<_>>()?;
    raise_descriptor_limit();

    let started = Instant::now();
    let joined: Vec<Result<Client>> = futures::stream::iter(0..args.count)
        .map(|number| join(number, &args, &topic, &leaders))
        .buffer_unordered(CONNECTING_MAX)
        .collect()
        .await;
    let joined_in_seconds = started.elapsed().as_secs_f64();
    let mut failed_to_join = 0;
    let mut clients = Vec::new();
    for client in joined {
        match client {
            Ok(client) => clients.push(client),
            Err(error) => {
                if failed_to_join == 0 {
                    tracing::warn!("a client cannot join: {error:#}");
                }
                failed_to_join += 1;
            }
        }
    }
    ensure!(!clients.is_empty(), "no client could join");

    let cpu = Cpu::start(&args.cost)?;
    let stay = stay(&clients, &args, &topic).await?;
    let seconds = args.time.as_secs_f64().max(f64::EPSILON);
    let (cluster_cpu, _) = cpu.used()?;
    let memory = (!cpu.pids.is_empty()).then(|| largest_resident(&cpu.pids)).transpose()?;
    let members_known = members(&clients, &args).await?;
    let channels = || clients.iter().flat_map(|client| &client.channels);
    let report = ClientsReport {
        clients: args.count,
        connections: channels().count(),
        groups: args.groups,
        failed_to_join,
        joined_in_seconds,
        heartbeats: stay.latency.len(),
        failed_heartbeats: stay.failed,
        lost_connections: channels().filter(|channel| channel.connected().is_none()).count(),
        heartbeat_p50_ms: quantile_ms(&stay.latency, 0.5),
        heartbeat_p99_ms: quantile_ms(&stay.latency, 0.99),
        members_known,
        largest_process_mib: memory.map(|bytes| bytes as f64 / f64::from(1 << 20)),
        cluster_cpu_percent: cluster_cpu.map(|time| time.as_secs_f64() * 100.0 / seconds),
    };
    if format == Format::Json {
        return output::json(&report);
    }
    output::line(&report.to_text())
}

impl ClientsReport {
    fn to_text(&self) -> String {
        let mut lines = vec![
            format!(
                "joined        {} clients of {} groups, {} connections, in {:.2} s; {} could not",
                self.clients, self.groups, self.connections, self.joined_in_seconds, self.failed_to_join
            ),
            format!(
                "heartbeats    {} answered, p50 {:.2} ms, p99 {:.2} ms; {} failed",
                self.heartbeats, self.heartbeat_p50_ms, self.heartbeat_p99_ms, self.failed_heartbeats
            ),
            format!("in the end    {} members known, {} connections lost", self.members_known, self.lost_connections),
        ];
        if let (Some(mib), Some(percent)) = (self.largest_process_mib, self.cluster_cpu_percent) {
            lines.push(format!(
                "cost          {percent:.1} % of a cpu over all processes, the largest has {mib:.0} MiB"
            ));
        }
        lines.join("\n")
    }
}

/// Connects a client to every leader and has it known there.
async fn join(number: u32, args: &ClientsArgs, topic: &TopicName, leaders: &[String]) -> Result<Client> {
    let group = GroupName::parse(&format!("gantry_bench_{}", number % args.groups)).context("the name of a group")?;
    let channel = |address: &String| {
        let local_address = own_address(address, number, args.count);
        let options = ChannelOptions { local_address, ..ChannelOptions::default() };
        Channel::new(address.clone(), options, Arc::new(Ignore))
    };
    let client = Client { id: format!("bench@{number}"), group, channels: leaders.iter().map(channel).collect() };
    for channel in &client.channels {
        channel.connect(CALL_TIME_MAX).await?;
        let answer = channel.call(heartbeat(&client, topic), CALL_TIME_MAX).await?;
        ensure!(answer.is_success(), "a heartbeat is answered with code {}", answer.code);
    }
    Ok(client)
}

/// On loopback any address of 127/8 is ours.
fn own_address(server: &str, number: u32, count: u32) -> Option<IpAddr> {
    let is_loopback = server.parse::<SocketAddr>().is_ok_and(|addr| addr.ip() == Ipv4Addr::LOCALHOST);
    let addresses = count.div_ceil(CLIENTS_PER_ADDRESS).min(250);
    let last = u8::try_from(1 + number % addresses).ok()?;
    is_loopback.then(|| Ipv4Addr::new(127, 0, 1, last).into())
}

fn heartbeat(client: &Client, topic: &TopicName) -> RemotingCommand {
    let consumer = ConsumerData {
        group: client.group.to_string(),
        consume_type: ConsumeType::Passively,
        message_model: MessageModel::Clustering,
        consume_from_where: ConsumeFromWhere::LastOffset,
        subscriptions: vec![
            SubscriptionData::by_tags(topic, "*", 1),
            SubscriptionData::by_tags(&client.group.retry_topic(), "*", 1),
        ],
        unit_mode: false,
    };
    let beat = HeartbeatData {
        client_id: client.id.clone(),
        producers: Vec::new(),
        consumers: vec![consumer],
        fingerprint: 0,
        without_subscriptions: false,
    };
    RemotingCommand::request(RequestCode::HEART_BEAT).with_body(beat.encode())
}

struct Stay {
    latency: Histogram<u64>,
    failed: u64,
}

/// Heartbeats at an even pace until the time is over.
async fn stay(clients: &[Client], args: &ClientsArgs, topic: &TopicName) -> Result<Stay> {
    let mut stay =
        Stay { latency: Histogram::new_with_max(LATENCY_MICROS_MAX, 3).context("making a histogram")?, failed: 0 };
    let started = Instant::now();
    let pace = args.heartbeat.div_f64(clients.len() as f64);
    let mut turn: u32 = 0;
    loop {
        let due = pace * turn;
        if due >= args.time {
            break;
        }
        tokio::time::sleep_until((started + due).into()).await;
        let client = &clients[turn as usize % clients.len()];
        let commit = UpdateConsumerOffsetRequest {
            group: client.group.clone(),
            topic: topic.clone(),
            queue_id: 0,
            commit_offset: 0,
        };
        for result in join_all(client.channels.iter().map(|channel| beat(channel, client, topic, &commit))).await {
            match result {
                Ok(latency) => {
                    stay.latency.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
                }
                Err(_) => stay.failed += 1,
            }
        }
        turn += 1;
    }
    tokio::time::sleep_until((started + args.time).into()).await;
    Ok(stay)
}

async fn beat(
    channel: &Channel,
    client: &Client,
    topic: &TopicName,
    commit: &UpdateConsumerOffsetRequest,
) -> Result<Duration> {
    let mut request = RemotingCommand::oneway(RequestCode::UPDATE_CONSUMER_OFFSET);
    commit.encode_into(&mut request.ext);
    channel.send_oneway(request, CALL_TIME_MAX).await?;
    let asked = Instant::now();
    let answer = channel.call(heartbeat(client, topic), CALL_TIME_MAX).await?;
    ensure!(answer.is_success(), "a heartbeat is answered with code {}", answer.code);
    Ok(asked.elapsed())
}

/// Asks one broker for the members of every group.
async fn members(clients: &[Client], args: &ClientsArgs) -> Result<usize> {
    let Some(channel) = clients.first().and_then(|client| client.channels.first()) else { return Ok(0) };
    let mut known = 0;
    for number in 0..args.groups.min(args.count) {
        let group = GroupName::parse(&format!("gantry_bench_{number}")).context("the name of a group")?;
        let mut request = RemotingCommand::request(RequestCode::GET_CONSUMER_LIST_BY_GROUP);
        ConsumerGroupRequest { group }.encode_into(&mut request.ext);
        let answer = channel.call(request, CALL_TIME_MAX).await.context("asking for members")?;
        if answer.is_success() {
            known += ConsumerList::decode(&answer.body).context("reading members")?.consumer_id_list.len();
        }
    }
    Ok(known)
}

/// As many descriptors as this process may have.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).is_err() {
        tracing::debug!("the limit of open files cannot be raised");
    }
}
