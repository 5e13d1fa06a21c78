//! `gantry topic`.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use protocol::body::{BrokerData, ClusterInfo, TopicStats};
use protocol::header::{CreateTopicRequest, DeleteTopicInNamesrvRequest, Perm, TopicRequest};
use protocol::{RemotingCommand, RequestCode, TopicName};
use serde::Serialize;

use super::ago;
use crate::cluster::{Cluster, ClusterArgs};
use crate::exit_code::ExitCode;
use crate::output::{self, Format};

#[derive(Debug, Subcommand)]
pub(crate) enum TopicCommand {
    /// Create a topic, or change one
    Create(CreateArgs),
    /// List topics
    List(ListArgs),
    /// Show a topic's queues and what is in them
    Describe(NameArgs),
    /// Delete a topic and what is stored about it
    Delete(NameArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// The topic
    name: String,
    /// Queues on each broker group
    #[arg(short, long, default_value_t = 4, value_parser = clap::value_parser!(i32).range(1..=1024))]
    queues: i32,
    /// Broker groups that hold it, by name [default: all]
    #[arg(long, value_delimiter = ',')]
    brokers: Vec<String>,
    /// r, w or rw
    #[arg(long, default_value = "rw", value_parser = parse_perm)]
    perm: i32,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only names that hold this text
    filter: Option<String>,
    /// The system's own topics too
    #[arg(short, long)]
    all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// The topic
    name: String,
}

fn parse_perm(text: &str) -> Result<i32, String> {
    match text {
        "rw" | "wr" => Ok(Perm::READ | Perm::WRITE),
        "r" => Ok(Perm::READ),
        "w" => Ok(Perm::WRITE),
        _ => Err("expected r, w or rw".to_owned()),
    }
}

pub(crate) async fn run(command: TopicCommand, cluster: &ClusterArgs, format: Format) -> Result<()> {
    let cluster = cluster.connect();
    match command {
        TopicCommand::Create(args) => create(&cluster, args, format).await,
        TopicCommand::List(args) => list(&cluster, args, format).await,
        TopicCommand::Describe(args) => describe(&cluster, &args.name, format).await,
        TopicCommand::Delete(args) => delete(&cluster, &args.name, format).await,
    }
}

/// The address of the leader of a broker group, as the route says it.
pub(crate) fn leader_addr(broker: &BrokerData) -> Result<&str> {
    let leader = broker.broker_addrs.get(&0).or_else(|| broker.broker_addrs.values().next());
    leader.map(String::as_str).with_context(|| format!("{} has no replica that answers", broker.broker_name))
}

fn named_brokers<'a>(info: &'a ClusterInfo, names: &[String]) -> Result<Vec<&'a BrokerData>> {
    if names.is_empty() {
        ensure!(!info.broker_addr_table.is_empty(), "the cluster has no broker");
        return Ok(info.broker_addr_table.values().collect());
    }
    names
        .iter()
        .map(|name| info.broker_addr_table.get(name).with_context(|| format!("there is no broker {name}")))
        .collect::<Result<_>>()
        .context(ExitCode::NotFound)
}

async fn create(cluster: &Cluster, args: CreateArgs, format: Format) -> Result<()> {
    let topic = TopicName::parse(&args.name).context("the name of the topic")?;
    let info = cluster.info().await?;
    let brokers = named_brokers(&info, &args.brokers)?;
    create_on(cluster, &topic, args.queues, args.perm, &brokers).await?;
    let names: Vec<_> = brokers.iter().map(|broker| broker.broker_name.as_str()).collect();
    if format == Format::Json {
        return output::json(&Created { topic: topic.as_str(), queues: args.queues, brokers: names });
    }
    output::line(&format!("{topic}: {} queues on each of {}", args.queues, names.join(", ")))
}

#[derive(Serialize)]
struct Created<'a> {
    topic: &'a str,
    queues: i32,
    brokers: Vec<&'a str>,
}

/// Creates `topic` on every broker group of the cluster.
pub(crate) async fn create_everywhere(cluster: &Cluster, topic: &TopicName, queues: i32) -> Result<()> {
    let info = cluster.info().await?;
    let brokers = named_brokers(&info, &[])?;
    create_on(cluster, topic, queues, Perm::READ | Perm::WRITE, &brokers).await
}

async fn create_on(
    cluster: &Cluster,
    topic: &TopicName,
    queues: i32,
    perm: i32,
    brokers: &[&BrokerData],
) -> Result<()> {
    let mut request = RemotingCommand::request(RequestCode::UPDATE_AND_CREATE_TOPIC);
    CreateTopicRequest {
        topic: topic.clone(),
        default_topic: Some(TopicName::AUTO_CREATE.to_owned()),
        read_queue_nums: queues,
        write_queue_nums: queues,
        perm,
        topic_filter_type: Some("SINGLE_TAG".to_owned()),
        topic_sys_flag: 0,
        order: false,
        attributes: None,
    }
    .encode_into(&mut request.ext);
    for broker in brokers {
        let answer = cluster.call(leader_addr(broker)?, request.clone()).await;
        answer.with_context(|| format!("creating {topic} on {}", broker.broker_name))?;
    }
    Ok(())
}

#[derive(Serialize)]
struct TopicLine {
    topic: String,
    brokers: Vec<String>,
    queues: i32,
}

async fn list(cluster: &Cluster, args: ListArgs, format: Format) -> Result<()> {
    let names: BTreeSet<String> = cluster.topics().await?.topic_list.into_iter().collect();
    let info = cluster.info().await?;
    let own: BTreeSet<&String> = info.broker_addr_table.keys().chain(info.cluster_addr_table.keys()).collect();
    let wanted = names.into_iter().filter(|name| {
        let is_system = own.contains(name)
            || TopicName::parse(name).is_ok_and(|name| name.is_system() || name.is_retry() || name.is_dlq())
            || name.ends_with("_REPLY_TOPIC");
        (args.all || !is_system) && args.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    });
    let mut lines = Vec::new();
    for name in wanted {
        // It may be deleted between the two calls.
        let Some(route) = cluster.find_route(&name).await? else { continue };
        lines.push(TopicLine {
            topic: name,
            brokers: route.queue_datas.iter().map(|queues| queues.broker_name.clone()).collect(),
            queues: route.queue_datas.iter().map(|queues| queues.read_queue_nums).sum(),
        });
    }
    if format == Format::Json {
        return output::json(&lines);
    }
    let rows = lines.into_iter().map(|line| [line.topic, line.queues.to_string(), line.brokers.join(" ")]);
    output::line(&output::table(&["topic", "queues", "brokers"], rows))
}

#[derive(Serialize)]
struct QueueLine {
    broker: String,
    queue: i32,
    min_offset: i64,
    max_offset: i64,
    last_stored_ms: i64,
}

async fn describe(cluster: &Cluster, name: &str, format: Format) -> Result<()> {
    let topic = TopicName::parse(name).context("the name of the topic")?;
    let route = cluster.route(name).await?;
    let mut lines = Vec::new();
    for broker in &route.broker_datas {
        let mut request = RemotingCommand::request(RequestCode::GET_TOPIC_STATS_INFO);
        TopicRequest { topic: topic.clone() }.encode_into(&mut request.ext);
        let answer = cluster.call(leader_addr(broker)?, request).await?;
        let stats = TopicStats::decode(&answer.body).context("reading the topic's queues")?;
        lines.extend(stats.offset_table.iter().map(|(queue, offsets)| QueueLine {
            broker: broker.broker_name.clone(),
            queue: queue.queue_id,
            min_offset: offsets.min_offset,
            max_offset: offsets.max_offset,
            last_stored_ms: offsets.last_update_timestamp,
        }));
    }
    lines.sort_by(|a, b| (&a.broker, a.queue).cmp(&(&b.broker, b.queue)));
    if format == Format::Json {
        return output::json(&lines);
    }
    let messages: i64 = lines.iter().map(|line| line.max_offset - line.min_offset).sum();
    let rows = lines.into_iter().map(|line| {
        [
            line.broker,
            line.queue.to_string(),
            line.min_offset.to_string(),
            line.max_offset.to_string(),
            ago(line.last_stored_ms),
        ]
    });
    let table = output::table(&["broker", "queue", "min offset", "max offset", "last stored"], rows);
    output::line(&format!("{table}\n\n{messages} messages"))
}

async fn delete(cluster: &Cluster, name: &str, format: Format) -> Result<()> {
    let topic = TopicName::parse(name).context("the name of the topic")?;
    let route = cluster.route(name).await?;
    for broker in &route.broker_datas {
        let mut request = RemotingCommand::request(RequestCode::DELETE_TOPIC_IN_BROKER);
        TopicRequest { topic: topic.clone() }.encode_into(&mut request.ext);
        let answer = cluster.call(leader_addr(broker)?, request).await;
        answer.with_context(|| format!("deleting {topic} on {}", broker.broker_name))?;
    }
    let mut told = 0;
    for addr in cluster.name_servers() {
        let mut request = RemotingCommand::request(RequestCode::DELETE_TOPIC_IN_NAMESRV);
        DeleteTopicInNamesrvRequest { topic: topic.clone(), cluster_name: None }.encode_into(&mut request.ext);
        match cluster.call(addr, request).await {
            Ok(_) => told += 1,
            Err(error) => eprintln!("gantry: {error:#}"),
        }
    }
    if told == 0 {
        bail!("no name server could be told");
    }
    if format == Format::Json {
        return output::json(&serde_json::json!({ "deleted": topic.as_str() }));
    }
    output::line(&format!("deleted {topic}"))
}
