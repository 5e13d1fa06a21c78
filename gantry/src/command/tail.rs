//! `gantry tail`: prints messages as they come.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use protocol::body::SubscriptionGroupConfig;
use protocol::header::{QueryConsumerOffsetRequest, QueueOffsetResponse, UpdateConsumerOffsetRequest};
use protocol::message::iter_records;
use protocol::{GroupName, RemotingCommand, RequestCode, ResponseCode, TopicName};
use tokio::sync::mpsc;

use crate::cluster::{Cluster, ClusterArgs, Refusal};
use crate::message_view::MessageView;
use crate::output::{self, Format};
use crate::queue_reader::{Queue, queues_of};

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
    let cluster = std::sync::Arc::new(cluster.connect());
    let topic = TopicName::parse(&args.topic).context("the name of the topic")?;
    let group = args.group.as_deref().map(GroupName::parse).transpose().context("the name of the group")?;
    let queues = queues_of(&topic, &cluster.route(&args.topic).await?)?;
    ensure!(!queues.is_empty(), "{topic} has no queue to read");

    let (sender, mut messages) = mpsc::channel::<Message>(READ_AHEAD_MAX);
    let mut readers = tokio::task::JoinSet::new();
    for (number, queue) in queues.iter().enumerate() {
        let offset = start_offset(&cluster, queue, group.as_ref(), args.from).await?;
        readers.spawn(read(std::sync::Arc::clone(&cluster), queue.clone(), number, offset, sender.clone()));
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
                let (broker, id) = (&queues[queue].broker, view.queue);
                output::line(&format!("{broker}:{id}:{}  {}", view.queue_offset, view.body_line()))?;
            }
        }
        printed += 1;
        if let Some(group) = &group {
            commit(&cluster, &queues[queue], group, view.queue_offset + 1).await?;
        }
    }
    readers.shutdown().await;
    Ok(())
}

async fn start_offset(cluster: &Cluster, queue: &Queue, group: Option<&GroupName>, from: From) -> Result<i64> {
    if let Some(group) = group {
        let mut request = RemotingCommand::request(RequestCode::QUERY_CONSUMER_OFFSET);
        QueryConsumerOffsetRequest {
            group: group.clone(),
            topic: queue.topic.clone(),
            queue_id: queue.id,
            set_zero_if_not_found: None,
        }
        .encode_into(&mut request.ext);
        match cluster.call(&queue.addr, request).await {
            Ok(answer) => return Ok(QueueOffsetResponse::decode(&answer).context("reading an offset")?.queue_offset),
            Err(error) => match error.downcast_ref::<Refusal>() {
                Some(refusal) if refusal.code == ResponseCode::QUERY_NOT_FOUND => {}
                _ => return Err(error),
            },
        }
    }
    match from {
        From::Earliest => queue.min_offset(cluster).await,
        From::Latest => queue.max_offset(cluster).await,
        From::Timestamp(timestamp_ms) => queue.offset_at(cluster, timestamp_ms).await,
    }
}

async fn commit(cluster: &Cluster, queue: &Queue, group: &GroupName, offset: i64) -> Result<()> {
    let mut request = RemotingCommand::request(RequestCode::UPDATE_CONSUMER_OFFSET);
    UpdateConsumerOffsetRequest {
        group: group.clone(),
        topic: queue.topic.clone(),
        queue_id: queue.id,
        commit_offset: offset,
    }
    .encode_into(&mut request.ext);
    let Err(error) = cluster.call(&queue.addr, request.clone()).await else { return Ok(()) };
    let refusal = error.downcast_ref::<Refusal>();
    if refusal.is_none_or(|refusal| refusal.code != ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST) {
        return Err(error);
    }
    // Brokers create a group when they hear of a member; who only pulls is none.
    let create = RemotingCommand::request(RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP);
    cluster.call(&queue.addr, create.with_body(SubscriptionGroupConfig::new(group).encode())).await?;
    cluster.call(&queue.addr, request).await.map(drop)
}

/// Reads one queue until nobody wants more. An address that does not answer is looked up again.
async fn read(
    cluster: std::sync::Arc<Cluster>,
    mut queue: Queue,
    number: usize,
    mut offset: i64,
    messages: mpsc::Sender<Message>,
) {
    loop {
        match queue.pull(&cluster, offset, PULL_COUNT, HOLD).await {
            Ok(pulled) => {
                for record in iter_records(&pulled.records) {
                    let view = match record {
                        Ok(record) => MessageView::of(&record),
                        Err(error) => {
                            eprintln!("gantry: {}:{} holds a damaged message: {error}", queue.broker, queue.id);
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
                eprintln!("gantry: {error:#}");
                tokio::time::sleep(RETRY_INTERVAL).await;
                if let Ok(route) = cluster.route(queue.topic.as_str()).await
                    && let Ok(queues) = queues_of(&queue.topic, &route)
                    && let Some(found) = queues.into_iter().find(|q| q.broker == queue.broker && q.id == queue.id)
                {
                    queue = found;
                }
            }
        }
    }
}
