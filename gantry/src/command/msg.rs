//! `gantry msg`: one message by its id or key.

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use protocol::header::{QueryMessageRequest, ViewMessageRequest};
use protocol::message::{OffsetMessageId, iter_records};
use protocol::{RemotingCommand, RequestCode, ResponseCode, TopicName};

use super::topic::leader_addr;
use crate::cluster::{Cluster, ClusterArgs, refusal};
use crate::exit_code::ExitCode;
use crate::message_view::MessageView;
use crate::output::{self, Format};

#[derive(Debug, Subcommand)]
pub(crate) enum MsgCommand {
    /// Show messages by id or by key
    Get(GetArgs),
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// An offset id, or with --topic the sender's own id
    #[arg(required_unless_present = "key", conflicts_with = "key")]
    id: Option<String>,
    /// A key the sender gave to the message; needs --topic
    #[arg(long, requires = "topic")]
    key: Option<String>,
    /// Where to look
    #[arg(long)]
    topic: Option<String>,
    /// Show at most this many
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(i32).range(1..=64))]
    max: i32,
}

impl GetArgs {
    /// The message with an offset id, or in `topic` with its sender's id.
    pub(super) fn by_id(id: String, topic: Option<String>) -> Self {
        Self { id: Some(id), key: None, topic, max: 32 }
    }

    /// Messages of `topic` with a key.
    pub(super) fn by_key(key: String, topic: String) -> Self {
        Self { id: None, key: Some(key), topic: Some(topic), max: 64 }
    }
}

pub(crate) async fn run(command: MsgCommand, cluster: &ClusterArgs, format: Format) -> Result<()> {
    let cluster = cluster.connect()?;
    let MsgCommand::Get(args) = command;
    let found = match (&args.id, &args.topic, &args.key) {
        (Some(id), None, _) => match id.parse::<OffsetMessageId>() {
            Ok(id) => vec![by_offset_id(&cluster, &id).await?],
            Err(_) => bail!("{id} is not an offset id; a sender's own id needs --topic"),
        },
        (Some(id), Some(topic), _) => by_key(&cluster, topic, id, Key::Unique, args.max).await?,
        (None, Some(topic), Some(key)) => by_key(&cluster, topic, key, Key::Given, args.max).await?,
        _ => bail!("name an id, or --key and --topic"),
    };
    if found.is_empty() {
        return Err(anyhow::anyhow!("there is no such message").context(ExitCode::NotFound));
    }
    if format == Format::Json {
        return output::json(&found);
    }
    let texts: Vec<_> = found.iter().map(MessageView::to_text).collect();
    output::line(&texts.join("\n\n"))
}

async fn by_offset_id(cluster: &Cluster, id: &OffsetMessageId) -> Result<MessageView> {
    let mut request = RemotingCommand::request(RequestCode::VIEW_MESSAGE_BY_ID);
    ViewMessageRequest { physical_offset: id.physical_offset }.encode_into(&mut request.ext);
    let answer = match cluster.call(&id.store_host.to_string(), request.clone()).await {
        // Every replica of the group has the message, but the id names only one of them.
        Err(error) if refusal(&error).is_none() => ask_replicas(cluster, id, &request).await?.ok_or(error)?,
        answer => answer.context(ExitCode::NotFound)?,
    };
    views(&answer.body)?.pop().context("the broker answered without a message")
}

/// Asks the other replicas of the group that stores at the address in the id.
async fn ask_replicas(
    cluster: &Cluster,
    id: &OffsetMessageId,
    request: &RemotingCommand,
) -> Result<Option<RemotingCommand>> {
    let info = cluster.info().await?;
    let store_host = id.store_host.to_string();
    // A dead node is not in the route, so a group without the address may be the one too; all others hold it still.
    let groups = info.broker_addr_table.values();
    let (named, others): (Vec<_>, Vec<_>) =
        groups.partition(|broker| broker.broker_addrs.values().any(|addr| *addr == store_host));
    for broker in named.into_iter().chain(others) {
        for addr in broker.broker_addrs.values().filter(|addr| **addr != store_host) {
            if let Ok(answer) = cluster.call(addr, request.clone()).await {
                let same_host = iter_records(&answer.body).flatten().all(|record| record.store_host() == id.store_host);
                if same_host {
                    return Ok(Some(answer));
                }
            }
        }
    }
    Ok(None)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    Unique,
    Given,
}

async fn by_key(cluster: &Cluster, topic: &str, key: &str, kind: Key, max: i32) -> Result<Vec<MessageView>> {
    let name = TopicName::parse(topic).context("the name of the topic")?;
    let route = cluster.route(&name).await?;
    let mut found = Vec::new();
    for broker in &route.broker_datas {
        let mut request = RemotingCommand::request(RequestCode::QUERY_MESSAGE);
        QueryMessageRequest {
            topic: name.clone(),
            key: key.to_owned(),
            max_num: max,
            begin_timestamp: 0,
            end_timestamp: i64::MAX,
            unique_key_query: kind == Key::Unique,
        }
        .encode_into(&mut request.ext);
        // RocketMQ's clients do not list the flag in the header but add it; both ways are the same field.
        match cluster.call(leader_addr(broker)?, request).await {
            Ok(answer) => found.extend(views(&answer.body)?),
            Err(error) if refusal(&error) == Some(ResponseCode::QUERY_NOT_FOUND) => {}
            Err(error) => return Err(error),
        }
    }
    found.sort_by_key(|message| message.stored_ms);
    found.truncate(usize::try_from(max).unwrap_or(usize::MAX));
    Ok(found)
}

fn views(records: &[u8]) -> Result<Vec<MessageView>> {
    iter_records(records)
        .map(|record| Ok(MessageView::of(&record.context("the broker answered with a damaged message")?)))
        .collect()
}
