//! `gantry group`: consumer groups.

mod reset;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use protocol::body::{ConsumeStats, ConsumerConnection};
use protocol::header::{ConsumeStatsRequest, ConsumerGroupRequest};
use protocol::{GroupName, RemotingCommand, RequestCode};
use serde::Serialize;

use super::topic::leader_addr;
use super::{ListArgs, ago, page_text};
use crate::cluster::{Cluster, ClusterArgs, explain, refusal};
use crate::exit_code::ExitCode;
use crate::output::{self, Format};

#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// List consumer groups
    List(ListArgs),
    /// Show a group's members, and how far it is in every queue
    Describe(NameArgs),
    /// Move a group's offsets in a topic: shows a plan, and with --apply carries it out
    Reset(reset::ResetArgs),
}

#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// The consumer group
    pub(super) name: String,
}

pub(crate) async fn run(command: GroupCommand, cluster: &ClusterArgs, format: Format) -> Result<()> {
    match command {
        GroupCommand::List(args) => list(&cluster.connect()?, args, format).await,
        GroupCommand::Describe(args) => describe(&cluster.connect()?, &args.name, format).await,
        GroupCommand::Reset(args) => reset::run(args, format).await,
    }
}

#[derive(Serialize)]
struct GroupLine {
    group: String,
    members: usize,
    lag: i64,
    brokers: Vec<String>,
}

async fn list(cluster: &Cluster, args: ListArgs, format: Format) -> Result<()> {
    let info = cluster.info().await?;
    let mut groups: BTreeMap<String, GroupLine> = BTreeMap::new();
    for broker in info.broker_addr_table.values() {
        let configs = cluster.admin().group_configs(leader_addr(broker)?).await.map_err(explain)?;
        for name in configs.into_keys() {
            let is_system = GroupName::parse(&name).is_ok_and(|name| name.is_system());
            if args.shows(&name, is_system) {
                let line = GroupLine { group: name.clone(), members: 0, lag: 0, brokers: Vec::new() };
                groups.entry(name).or_insert(line).brokers.push(broker.broker_name.clone());
            }
        }
    }
    let total = groups.len();
    let mut groups = args.page(groups.into_values(), |line| &line.group);
    for line in &mut groups {
        let details = Details::read(cluster, &line.group).await?;
        line.members = details.members.len();
        line.lag = details.queues.iter().map(QueueLine::lag).sum();
    }
    if format == Format::Json {
        return output::json(&groups);
    }
    let shown = groups.len();
    let rows = groups
        .into_iter()
        .map(|line| [line.group, line.members.to_string(), line.lag.to_string(), line.brokers.join(" ")]);
    let table = output::table(&["group", "members", "lag", "brokers"], rows);
    output::line(&page_text(&table, shown, total, "consumer groups"))
}

#[derive(Serialize)]
struct Details {
    group: String,
    members: Vec<MemberLine>,
    subscriptions: BTreeMap<String, String>,
    queues: Vec<QueueLine>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct MemberLine {
    client: String,
    address: String,
    language: String,
    version: i32,
}

#[derive(Serialize)]
struct QueueLine {
    topic: String,
    broker: String,
    queue: i32,
    consumed: i64,
    stored: i64,
    last_consumed_ms: i64,
}

impl QueueLine {
    fn lag(&self) -> i64 {
        self.stored - self.consumed
    }
}

impl Details {
    async fn read(cluster: &Cluster, name: &str) -> Result<Self> {
        let group = GroupName::parse(name).context("the name of the group")?;
        let info = cluster.info().await?;
        let mut members = BTreeSet::new();
        let mut details =
            Self { group: name.to_owned(), members: Vec::new(), subscriptions: BTreeMap::new(), queues: Vec::new() };
        for broker in info.broker_addr_table.values() {
            let addr = leader_addr(broker)?;
            let mut request = RemotingCommand::request(RequestCode::GET_CONSUMER_CONNECTION_LIST);
            ConsumerGroupRequest { group: group.clone() }.encode_into(&mut request.ext);
            if let Some(answer) = unless_refused(cluster.call(addr, request).await)? {
                let connections = ConsumerConnection::decode(&answer.body).context("reading the members")?;
                members.extend(connections.connection_set.into_iter().map(|connection| MemberLine {
                    client: connection.client_id,
                    address: connection.client_addr,
                    language: connection.language,
                    version: connection.version,
                }));
                let subscriptions = connections.subscription_table.into_iter();
                details.subscriptions.extend(subscriptions.map(|(topic, data)| (topic, data.expression)));
            }
            let mut request = RemotingCommand::request(RequestCode::GET_CONSUME_STATS);
            let header = ConsumeStatsRequest { group: group.clone(), topic: None, topic_list: None };
            header.encode_into(&mut request.ext);
            if let Some(answer) = unless_refused(cluster.call(addr, request).await)? {
                let stats = ConsumeStats::decode(&answer.body).context("reading the offsets")?;
                details.queues.extend(stats.offset_table.iter().map(|(queue, offsets)| QueueLine {
                    topic: queue.topic.clone(),
                    broker: queue.broker_name.clone(),
                    queue: queue.queue_id,
                    consumed: offsets.consumer_offset,
                    stored: offsets.broker_offset,
                    last_consumed_ms: offsets.last_timestamp,
                }));
            }
        }
        // A consumer is connected to every broker, from another port each time.
        let mut seen = BTreeSet::new();
        details.members = members.into_iter().filter(|member| seen.insert(member.client.clone())).collect();
        details.queues.sort_by(|a, b| (&a.topic, &a.broker, a.queue).cmp(&(&b.topic, &b.broker, b.queue)));
        Ok(details)
    }
}

/// A broker that knows nothing of a group says so with an error.
fn unless_refused(answer: Result<RemotingCommand>) -> Result<Option<RemotingCommand>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if refusal(&error).is_some() => Ok(None),
        Err(error) => Err(error),
    }
}

async fn describe(cluster: &Cluster, name: &str, format: Format) -> Result<()> {
    let details = Details::read(cluster, name).await?;
    if details.members.is_empty() && details.queues.is_empty() {
        let known = cluster.find_route(&GroupName::parse(name)?.retry_topic()).await?;
        known.with_context(|| format!("there is no consumer group {name}")).context(ExitCode::NotFound)?;
    }
    if format == Format::Json {
        return output::json(&details);
    }
    let members =
        details.members.iter().map(|member| [member.client.clone(), member.address.clone(), member.language.clone()]);
    let queues = details.queues.iter().map(|queue| {
        [
            queue.topic.clone(),
            queue.broker.clone(),
            queue.queue.to_string(),
            queue.consumed.to_string(),
            queue.stored.to_string(),
            queue.lag().to_string(),
            ago(queue.last_consumed_ms),
        ]
    });
    let lag: i64 = details.queues.iter().map(QueueLine::lag).sum();
    let subscriptions: Vec<_> = details.subscriptions.iter().map(|(topic, tags)| format!("{topic} ({tags})")).collect();
    output::line(&format!(
        "{} members, subscribed to {}\n{}\n\n{}\n\nlag {lag}",
        details.members.len(),
        if subscriptions.is_empty() { "nothing".to_owned() } else { subscriptions.join(", ") },
        output::table(&["member", "address", "language"], members),
        output::table(&["topic", "broker", "queue", "consumed", "stored", "lag", "last consumed"], queues),
    ))
}
