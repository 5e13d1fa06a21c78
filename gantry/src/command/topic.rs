//! `gantry topic`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use broker::http::ClusterTopics;
use clap::{Args, Subcommand};
use client::NewTopic;
use protocol::TopicName;
use protocol::body::{BrokerData, ClusterInfo};
use protocol::header::Perm;
use serde::Serialize;

use super::{ListArgs, ago, page_text, progress_bar};
use crate::cluster::{Cluster, ClusterArgs, explain};
use crate::exit_code::ExitCode;
use crate::http_get::NodesArgs;
use crate::output::{self, Format};

/// Topics on a page that nodes are asked for; they give no more.
const PAGE_TOPICS: usize = 1_000;
/// A page is there within this time.
const PAGE_TIME_MAX: Duration = Duration::from_secs(15);

#[derive(Debug, Subcommand)]
pub(crate) enum TopicCommand {
    /// Create topics, or change them
    Create(CreateArgs),
    /// List topics, as the name servers know them, or with --nodes as the leaders of all broker groups do
    List(TopicListArgs),
    /// Show a topic's queues and what is in them
    Describe(NameArgs),
    /// Delete a topic and what is stored about it
    Delete(NameArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// The topic
    #[arg(required_unless_present = "file")]
    name: Option<String>,
    /// Create every topic that this file names, one a line; - is the standard input
    #[arg(long, conflicts_with = "name")]
    file: Option<PathBuf>,
    /// Queues on each broker group
    #[arg(short, long, default_value_t = 4, value_parser = clap::value_parser!(i32).range(1..=8192))]
    queues: i32,
    /// Broker groups that hold it, by name [default: all]
    #[arg(long, value_delimiter = ',')]
    brokers: Vec<String>,
    /// r, w or rw
    #[arg(long, default_value = "rw", value_parser = parse_perm)]
    perm: i32,
    /// How long its messages are kept, with a unit such as 12h or 3d, if that is less than the log keeps them; `log` for
    /// as long as the log does [default: as it is, a new topic as the log]
    #[arg(long)]
    retention: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TopicListArgs {
    #[command(flatten)]
    names: ListArgs,
    /// HTTP addresses (`node.http_listen`) of nodes, separated by commas; the first that answers is asked. Needs no name
    /// server, and is quick with many topics
    #[arg(long, value_delimiter = ',')]
    nodes: Vec<SocketAddr>,
}

impl From<ListArgs> for TopicListArgs {
    fn from(names: ListArgs) -> Self {
        Self { names, nodes: Vec::new() }
    }
}

#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// The topic
    pub(super) name: String,
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
    let command = match command {
        TopicCommand::List(args) if !args.nodes.is_empty() => return list_at_nodes(args, format).await,
        command => command,
    };
    let cluster = cluster.connect()?;
    match command {
        TopicCommand::Create(args) => create(&cluster, args, format).await,
        TopicCommand::List(args) => list(&cluster, args.names, format).await,
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
    let info = cluster.info().await?;
    let brokers = named_brokers(&info, &args.brokers)?;
    let attributes = args
        .retention
        .as_deref()
        .map_or_else(String::new, |time| format!("+reserve.time={}", if time == "log" { "-1" } else { time }));
    let new = |topic: &TopicName| NewTopic {
        perm: args.perm,
        attributes: attributes.clone(),
        ..NewTopic::new(topic.clone(), args.queues)
    };
    if let Some(file) = &args.file {
        let topics: Vec<NewTopic> = names_in(file)?.iter().map(new).collect();
        return create_many(cluster, &topics, &brokers, format).await;
    }
    let topic = TopicName::parse(args.name.as_deref().unwrap_or_default()).context("the name of the topic")?;
    create_on(cluster, &new(&topic), &brokers).await?;
    let names: Vec<_> = brokers.iter().map(|broker| broker.broker_name.as_str()).collect();
    if format == Format::Json {
        return output::json(&Created { topic: topic.as_str(), queues: args.queues, brokers: names });
    }
    output::line(&format!("{topic}: {} queues on each of {}", args.queues, names.join(", ")))
}

/// The topics that a file names, one a line.
fn names_in(file: &Path) -> Result<Vec<TopicName>> {
    let is_stdin = file == Path::new("-");
    let shown = if is_stdin { "the standard input".to_owned() } else { file.display().to_string() };
    let text = if is_stdin { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(file) };
    let text = text.with_context(|| format!("reading {shown}"))?;
    let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty());
    let names: Vec<TopicName> = lines
        .map(|(number, line)| {
            TopicName::parse(line).with_context(|| format!("line {number} of {shown} names no topic: {line:?}"))
        })
        .collect::<Result<_>>()?;
    ensure!(!names.is_empty(), "{shown} names no topic");
    Ok(names)
}

/// Creates topics on some broker groups, many at a time; done again after a failure it goes through all of them again.
async fn create_many(cluster: &Cluster, topics: &[NewTopic], brokers: &[&BrokerData], format: Format) -> Result<()> {
    let bar = progress_bar(topics.len() as u64);
    for topics in topics.chunks(client::TOPICS_MAX) {
        let calls = brokers.iter().map(|broker| async {
            let created = cluster.admin().create_topics_at(leader_addr(broker)?, topics).await;
            let first = &topics[0].topic;
            created
                .map_err(explain)
                .with_context(|| format!("creating {} topics from {first} on, on {}", topics.len(), broker.broker_name))
        });
        futures::future::try_join_all(calls).await?;
        bar.inc(topics.len() as u64);
    }
    bar.finish_and_clear();
    let queues = topics.first().map_or(0, |topic| topic.queues);
    let brokers: Vec<_> = brokers.iter().map(|broker| broker.broker_name.as_str()).collect();
    if format == Format::Json {
        return output::json(&CreatedMany { topics: topics.len(), queues, brokers });
    }
    output::line(&format!("{} topics: {queues} queues on each of {}", topics.len(), brokers.join(", ")))
}

#[derive(Serialize)]
struct CreatedMany<'a> {
    topics: usize,
    queues: i32,
    brokers: Vec<&'a str>,
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
    create_on(cluster, &NewTopic::new(topic.clone(), queues), &brokers).await
}

async fn create_on(cluster: &Cluster, new: &NewTopic, brokers: &[&BrokerData]) -> Result<()> {
    for broker in brokers {
        let created = cluster.admin().create_topic_at(leader_addr(broker)?, new).await;
        created.map_err(explain).with_context(|| format!("creating {} on {}", new.topic, broker.broker_name))?;
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
    let names: BTreeSet<String> = cluster.admin().topics().await.map_err(explain)?.into_iter().collect();
    let info = cluster.info().await?;
    let own: BTreeSet<&String> = info.broker_addr_table.keys().chain(info.cluster_addr_table.keys()).collect();
    let wanted = names.into_iter().filter(|name| {
        let is_system = own.contains(name)
            || TopicName::parse(name).is_ok_and(|name| name.is_system() || name.is_retry() || name.is_dlq())
            || name.ends_with("_REPLY_TOPIC");
        args.shows(name, is_system)
    });
    let wanted: Vec<String> = wanted.collect();
    let total = wanted.len();
    let mut lines = Vec::new();
    for name in args.page(wanted.into_iter(), |name| name) {
        // It may be deleted between the two calls.
        let Some(route) = cluster.find_route(&TopicName::parse(&name)?).await? else { continue };
        lines.push(TopicLine {
            topic: name,
            brokers: route.queue_datas.iter().map(|queues| queues.broker_name.clone()).collect(),
            queues: route.queue_datas.iter().map(|queues| queues.read_queue_nums).sum(),
        });
    }
    if format == Format::Json {
        return output::json(&lines);
    }
    output::line(&topics_text(lines, total))
}

fn topics_text(lines: Vec<TopicLine>, total: usize) -> String {
    let shown = lines.len();
    let rows = lines.into_iter().map(|line| [line.topic, line.queues.to_string(), line.brokers.join(" ")]);
    page_text(&output::table(&["topic", "queues", "brokers"], rows), shown, total, "topics")
}

/// Asks for all pages, or for as many as hold what is wanted.
async fn list_at_nodes(args: TopicListArgs, format: Format) -> Result<()> {
    let TopicListArgs { names, nodes } = args;
    let nodes = NodesArgs { nodes };
    let (mut left, mut after) = (names.limit.unwrap_or(usize::MAX), names.after);
    let (mut lines, mut total, mut missing) = (Vec::new(), 0, Vec::new());
    while left > 0 {
        let mut path = format!("/v1/topics?limit={}&system={}", left.min(PAGE_TOPICS), names.all);
        for (key, value) in [("search", &names.filter), ("after", &after)] {
            if let Some(value) = value {
                path += &format!("&{key}={}", in_query(value));
            }
        }
        let page: ClusterTopics = nodes.call("GET", &path, None, PAGE_TIME_MAX).await?;
        left -= page.items.len().min(left);
        total = page.total;
        missing = page.missing;
        lines.extend(page.items.into_iter().map(|topic| TopicLine {
            topic: topic.topic,
            brokers: topic.groups.into_iter().map(|place| place.group).collect(),
            queues: i32::try_from(topic.read_queues).unwrap_or(i32::MAX),
        }));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    for group in &missing {
        eprintln!("not listed: {group}");
    }
    if format == Format::Json {
        return output::json(&lines);
    }
    output::line(&topics_text(lines, total))
}

/// Text as it stands in a query.
fn in_query(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
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
    let stats = cluster.admin().topic_stats(&topic).await.map_err(explain)?;
    // In the order of broker and number.
    let lines: Vec<_> = stats
        .into_iter()
        .map(|(queue, offsets)| QueueLine {
            broker: queue.broker_name.to_string(),
            queue: queue.queue_id,
            min_offset: offsets.min_offset,
            max_offset: offsets.max_offset,
            last_stored_ms: offsets.last_update_timestamp,
        })
        .collect();
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
    cluster.route(&topic).await?;
    cluster.admin().delete_topic(None, &topic).await.map_err(explain)?;
    if format == Format::Json {
        return output::json(&serde_json::json!({ "deleted": topic.as_str() }));
    }
    output::line(&format!("deleted {topic}"))
}
