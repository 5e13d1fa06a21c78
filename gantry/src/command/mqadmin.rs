//! `gantry mqadmin`: the most used commands of RocketMQ's tool, with their names and flags, so that runbooks keep working.
//!
//! What they do is what `gantry`'s own commands do; what they print is in `gantry`'s form, not in that of RocketMQ's tool.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use protocol::body::{ProducerConnection, ResetOffsetTable, TopicConfig, decode_config_text, encode_config_text};
use protocol::header::{CreateTopicRequest, ProducerGroupRequest, ResetOffsetRequest};
use protocol::{GroupName, RemotingCommand, RequestCode, TopicName};
use serde::Serialize;

use super::group::{self, GroupCommand};
use super::msg::{self, MsgCommand};
use super::topic::{self, TopicCommand};
use super::{ListArgs, send, status};
use crate::cluster::{Cluster, ClusterArgs, explain};
use crate::exit_code::ExitCode;
use crate::output::{self, Format};

#[derive(Debug, Subcommand)]
#[command(rename_all = "camelCase")]
pub(crate) enum MqadminCommand {
    /// Create a topic or change it
    UpdateTopic(UpdateTopic),
    /// Delete a topic
    DeleteTopic(TopicOfCluster),
    /// List topics
    TopicList(TopicList),
    /// Show where a topic's queues are
    TopicRoute(Topic),
    /// Show the offsets of a topic's queues
    TopicStatus(Topic),
    /// Create a consumer group or change it
    UpdateSubGroup(UpdateSubGroup),
    /// Delete a consumer group
    DeleteSubGroup(DeleteSubGroup),
    /// Show how far consumer groups are
    ConsumerProgress(ConsumerProgress),
    /// Show the members of a consumer group
    ConsumerConnection(Consumer),
    /// Show the members of a producer group
    ProducerConnection(Producer),
    /// Show brokers and who leads
    ClusterList(ClusterList),
    /// Show what a broker tells about itself
    BrokerStatus(Target),
    /// Show the settings of brokers
    GetBrokerConfig(Target),
    /// Change a setting of brokers while they run
    UpdateBrokerConfig(UpdateBrokerConfig),
    /// Show a message by its offset id, or in a topic by its sender's id
    QueryMsgById(QueryById),
    /// Show messages by key
    QueryMsgByKey(QueryByKey),
    /// Show a message by its sender's id
    QueryMsgByUniqueKey(QueryByUniqueKey),
    /// Have a consumer group go on from another time
    ResetOffsetByTime(ResetByTime),
    /// Send one message
    SendMessage(SendMessage),
}

/// Which brokers.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Target {
    /// Address of a broker
    #[arg(short = 'b', long = "brokerAddr")]
    broker: Option<String>,
    /// Name of a cluster: all its brokers
    #[arg(short = 'c', long = "clusterName")]
    cluster: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Topic {
    /// The topic
    #[arg(short = 't', long = "topic")]
    topic: String,
}

#[derive(Debug, Args)]
pub(crate) struct TopicOfCluster {
    #[command(flatten)]
    topic: Topic,
    /// Name of the cluster
    #[arg(short = 'c', long = "clusterName")]
    cluster: String,
}

#[derive(Debug, Args)]
pub(crate) struct TopicList {
    /// With the broker groups that hold them; always shown here
    #[arg(short = 'c', long = "clusterModel")]
    cluster_model: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UpdateTopic {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    topic: Topic,
    /// Queues to read
    #[arg(short = 'r', long = "readQueueNums", default_value_t = 8)]
    read_queues: i32,
    /// Queues to write
    #[arg(short = 'w', long = "writeQueueNums", default_value_t = 8)]
    write_queues: i32,
    /// 2 (write), 4 (read) or 6 (both)
    #[arg(short = 'p', long = "perm", default_value_t = 6)]
    perm: i32,
    /// Meant for ordered messages
    #[arg(short = 'o', long = "order", num_args = 0..=1, default_missing_value = "true", default_value_t = false,
          action = clap::ArgAction::Set)]
    order: bool,
    /// Changes of attributes: +key=value and -key, separated by commas
    #[arg(short = 'a', long = "attributes", allow_hyphen_values = true)]
    attributes: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct UpdateSubGroup {
    #[command(flatten)]
    target: Target,
    /// The group
    #[arg(short = 'g', long = "groupName")]
    group: String,
    /// Whether it may consume
    #[arg(short = 's', long = "consumeEnable")]
    consume: Option<bool>,
    /// Whether it may start at the beginning
    #[arg(short = 'm', long = "consumeFromMinEnable")]
    from_min: Option<bool>,
    /// Whether its members may broadcast
    #[arg(short = 'd', long = "consumeBroadcastEnable")]
    broadcast: Option<bool>,
    /// Whether it consumes in order
    #[arg(short = 'o', long = "consumeMessageOrderly")]
    orderly: Option<bool>,
    /// Queues of its retry topic
    #[arg(short = 'q', long = "retryQueueNums")]
    retry_queues: Option<i32>,
    /// Most deliveries of one message
    #[arg(short = 'r', long = "retryMaxTimes")]
    retries: Option<i32>,
    /// Replica that it reads first
    #[arg(short = 'i', long = "brokerId")]
    broker_id: Option<i64>,
    /// Replica for members that are far behind
    #[arg(short = 'w', long = "whichBrokerWhenConsumeSlowly")]
    slow_broker_id: Option<i64>,
    /// Whether members are told of each other
    #[arg(short = 'a', long = "notifyConsumerIdsChanged")]
    notify: Option<bool>,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteSubGroup {
    #[command(flatten)]
    target: Target,
    /// The group
    #[arg(short = 'g', long = "groupName")]
    group: String,
    /// Its offsets too
    #[arg(short = 'r', long = "removeOffset", num_args = 0..=1, default_missing_value = "true", default_value_t = false,
          action = clap::ArgAction::Set)]
    remove_offset: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ConsumerProgress {
    /// The group [default: all, in one line each]
    #[arg(short = 'g', long = "groupName")]
    group: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Consumer {
    /// The group
    #[arg(short = 'g', long = "consumerGroup")]
    group: String,
}

#[derive(Debug, Args)]
pub(crate) struct Producer {
    /// The group
    #[arg(short = 'g', long = "producerGroup")]
    group: String,
    #[command(flatten)]
    topic: Topic,
}

#[derive(Debug, Args)]
pub(crate) struct ClusterList {
    /// More figures; always shown here
    #[arg(short = 'm', long = "moreStats")]
    more: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UpdateBrokerConfig {
    #[command(flatten)]
    target: Target,
    /// The setting
    #[arg(short = 'k', long = "key")]
    key: String,
    /// Its value
    #[arg(short = 'v', long = "value")]
    value: String,
}

#[derive(Debug, Args)]
pub(crate) struct QueryById {
    /// The ids, separated by commas
    #[arg(short = 'i', long = "msgId", value_delimiter = ',', required = true)]
    ids: Vec<String>,
    /// The topic, for ids of senders
    #[arg(short = 't', long = "topic")]
    topic: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct QueryByKey {
    #[command(flatten)]
    topic: Topic,
    /// The key
    #[arg(short = 'k', long = "msgKey")]
    key: String,
}

#[derive(Debug, Args)]
pub(crate) struct QueryByUniqueKey {
    #[command(flatten)]
    topic: Topic,
    /// The sender's id
    #[arg(short = 'i', long = "msgId")]
    id: String,
}

#[derive(Debug, Args)]
pub(crate) struct ResetByTime {
    /// The group
    #[arg(short = 'g', long = "group")]
    group: String,
    #[command(flatten)]
    topic: Topic,
    /// Milliseconds since 1970, `now`, or a time as 2026-11-30#23:59:59:000 in UTC
    #[arg(short = 's', long = "timestamp")]
    time: String,
    /// Also forward
    #[arg(short = 'f', long = "force", num_args = 0..=1, default_missing_value = "true", default_value_t = true,
          action = clap::ArgAction::Set)]
    force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SendMessage {
    #[command(flatten)]
    topic: Topic,
    /// The body
    #[arg(short = 'p', long = "body")]
    body: String,
    /// Keys
    #[arg(short = 'k', long = "key")]
    key: Option<String>,
    /// Tags
    #[arg(short = 'c', long = "tags")]
    tags: Option<String>,
}

pub(crate) async fn run(command: MqadminCommand, args: &ClusterArgs, format: Format) -> Result<()> {
    use MqadminCommand as C;
    let cluster = args.connect()?;
    match command {
        C::UpdateTopic(command) => update_topic(&cluster, command, format).await,
        C::DeleteTopic(command) => delete_topic(&cluster, &command, format).await,
        C::TopicList(_) => {
            let all = ListArgs { all: true, ..ListArgs::default() };
            topic::run(TopicCommand::List(all.into()), args, format).await
        }
        C::TopicRoute(command) => topic_route(&cluster, &command.topic, format).await,
        C::TopicStatus(command) => {
            topic::run(TopicCommand::Describe(topic::NameArgs { name: command.topic }), args, format).await
        }
        C::UpdateSubGroup(command) => update_group(&cluster, &command, format).await,
        C::DeleteSubGroup(command) => delete_group(&cluster, &command, format).await,
        C::ConsumerProgress(ConsumerProgress { group: None }) => {
            group::run(GroupCommand::List(ListArgs::default()), args, format).await
        }
        C::ConsumerProgress(ConsumerProgress { group: Some(name) })
        | C::ConsumerConnection(Consumer { group: name }) => {
            group::run(GroupCommand::Describe(group::NameArgs { name }), args, format).await
        }
        C::ProducerConnection(command) => producers(&cluster, &command, format).await,
        C::ClusterList(_) => status::run(args, format).await,
        C::BrokerStatus(target) => broker_status(&cluster, &target, format).await,
        C::GetBrokerConfig(target) => broker_config(&cluster, &target, format).await,
        C::UpdateBrokerConfig(command) => update_config(&cluster, &command, format).await,
        C::QueryMsgById(command) => {
            for id in command.ids {
                let get = msg::GetArgs::by_id(id, command.topic.clone());
                msg::run(MsgCommand::Get(get), args, format).await?;
            }
            Ok(())
        }
        C::QueryMsgByKey(command) => {
            msg::run(MsgCommand::Get(msg::GetArgs::by_key(command.key, command.topic.topic)), args, format).await
        }
        C::QueryMsgByUniqueKey(command) => {
            msg::run(MsgCommand::Get(msg::GetArgs::by_id(command.id, Some(command.topic.topic))), args, format).await
        }
        C::ResetOffsetByTime(command) => reset(&cluster, &command, format).await,
        C::SendMessage(command) => {
            let SendMessage { topic, body, key, tags } = command;
            send::run(send::SendArgs::one(topic.topic, body, key, tags), args, format).await
        }
    }
}

impl Target {
    /// Names, where they are known, and addresses of the brokers that are meant: leaders, or the one that was named.
    async fn brokers(&self, cluster: &Cluster) -> Result<Vec<(String, String)>> {
        if let Some(addr) = &self.broker {
            return Ok(vec![(addr.clone(), addr.clone())]);
        }
        let name = self.cluster.as_deref().unwrap_or_default();
        if !cluster.info().await?.cluster_addr_table.contains_key(name) {
            return Err(anyhow::anyhow!("there is no cluster {name}").context(ExitCode::NotFound));
        }
        cluster.admin().leaders(Some(name)).await.map_err(explain)
    }
}

/// What a change did, broker by broker.
#[derive(Serialize)]
struct Done<'a> {
    done: &'a str,
    brokers: Vec<String>,
}

fn told(done: &str, brokers: &[(String, String)], format: Format) -> Result<()> {
    let brokers: Vec<_> = brokers.iter().map(|(name, _)| name.clone()).collect();
    if format == Format::Json {
        return output::json(&Done { done, brokers });
    }
    output::line(&format!("{done}: {}", brokers.join(", ")))
}

fn topic_name(name: &str) -> Result<TopicName> {
    TopicName::parse(name).context("the name of the topic")
}

fn group_name(name: &str) -> Result<GroupName> {
    GroupName::parse(name).context("the name of the group")
}

async fn update_topic(cluster: &Cluster, command: UpdateTopic, format: Format) -> Result<()> {
    ensure!([2, 4, 6].contains(&command.perm), "-p is {}, expected 2, 4 or 6", command.perm);
    let topic = topic_name(&command.topic.topic)?;
    let brokers = command.target.brokers(cluster).await?;
    let header = CreateTopicRequest {
        topic,
        default_topic: Some(TopicName::AUTO_CREATE.to_owned()),
        read_queue_nums: command.read_queues,
        write_queue_nums: command.write_queues,
        perm: command.perm,
        topic_filter_type: Some(TopicConfig::SINGLE_TAG.to_owned()),
        topic_sys_flag: 0,
        order: command.order,
        attributes: command.attributes,
    };
    for (name, addr) in &brokers {
        let mut request = RemotingCommand::request(RequestCode::UPDATE_AND_CREATE_TOPIC);
        header.encode_into(&mut request.ext);
        cluster.call(addr, request).await.with_context(|| format!("at {name}"))?;
    }
    told("create topic success", &brokers, format)
}

async fn delete_topic(cluster: &Cluster, command: &TopicOfCluster, format: Format) -> Result<()> {
    let topic = topic_name(&command.topic.topic)?;
    cluster.route(&topic).await?;
    let brokers = cluster.admin().leaders(Some(&command.cluster)).await.map_err(explain)?;
    cluster.admin().delete_topic(Some(&command.cluster), &topic).await.map_err(explain)?;
    told("delete topic success", &brokers, format)
}

async fn topic_route(cluster: &Cluster, name: &str, format: Format) -> Result<()> {
    let route = cluster.route(&topic_name(name)?).await?;
    if format == Format::Json {
        return output::json(&route);
    }
    let rows = route.queue_datas.iter().map(|queues| {
        let broker = route.broker_datas.iter().find(|broker| broker.broker_name == queues.broker_name);
        let addrs = broker.map(|broker| {
            let addrs = broker.broker_addrs.iter().map(|(id, addr)| format!("{id}: {addr}"));
            addrs.collect::<Vec<_>>().join(", ")
        });
        [
            queues.broker_name.clone(),
            queues.read_queue_nums.to_string(),
            queues.write_queue_nums.to_string(),
            queues.perm.to_string(),
            addrs.unwrap_or_default(),
        ]
    });
    output::line(&output::table(&["broker", "read queues", "write queues", "perm", "addresses"], rows))
}

async fn update_group(cluster: &Cluster, command: &UpdateSubGroup, format: Format) -> Result<()> {
    let group = group_name(&command.group)?;
    let brokers = command.target.brokers(cluster).await?;
    for (name, addr) in &brokers {
        // What is not said stays as it is.
        let known = cluster.admin().group_configs(addr).await.map_err(explain)?.remove(group.as_str());
        let mut config = known.unwrap_or_else(|| protocol::body::SubscriptionGroupConfig::new(&group));
        put(&mut config.consume_enable, command.consume);
        put(&mut config.consume_from_min_enable, command.from_min);
        put(&mut config.consume_broadcast_enable, command.broadcast);
        put(&mut config.consume_message_orderly, command.orderly);
        put(&mut config.retry_queue_nums, command.retry_queues);
        put(&mut config.retry_max_times, command.retries);
        put(&mut config.broker_id, command.broker_id);
        put(&mut config.which_broker_when_consume_slowly, command.slow_broker_id);
        put(&mut config.notify_consumer_ids_changed_enable, command.notify);
        let request = RemotingCommand::request(RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP);
        cluster.call(addr, request.with_body(config.encode())).await.with_context(|| format!("at {name}"))?;
    }
    told("create subscription group success", &brokers, format)
}

fn put<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

async fn delete_group(cluster: &Cluster, command: &DeleteSubGroup, format: Format) -> Result<()> {
    let group = group_name(&command.group)?;
    let brokers = command.target.brokers(cluster).await?;
    for (name, addr) in &brokers {
        let mut request = RemotingCommand::request(RequestCode::DELETE_SUBSCRIPTIONGROUP);
        let header = protocol::header::DeleteSubscriptionGroupRequest {
            group: group.clone(),
            clean_offset: command.remove_offset,
        };
        header.encode_into(&mut request.ext);
        cluster.call(addr, request).await.with_context(|| format!("at {name}"))?;
    }
    told("delete subscription group success", &brokers, format)
}

async fn producers(cluster: &Cluster, command: &Producer, format: Format) -> Result<()> {
    let group = group_name(&command.group)?;
    let route = cluster.route(&topic_name(&command.topic.topic)?).await?;
    let mut members = BTreeMap::new();
    for broker in &route.broker_datas {
        let mut request = RemotingCommand::request(RequestCode::GET_PRODUCER_CONNECTION_LIST);
        ProducerGroupRequest { group: group.clone() }.encode_into(&mut request.ext);
        let answer = match cluster.call(topic::leader_addr(broker)?, request).await {
            Err(error) if crate::cluster::refusal(&error).is_some() => continue,
            answer => answer?,
        };
        let found = ProducerConnection::decode(&answer.body).context("reading the members")?;
        members.extend(found.connection_set.into_iter().map(|member| (member.client_id.clone(), member)));
    }
    if members.is_empty() {
        return Err(anyhow::anyhow!("no producer of {group} is connected").context(ExitCode::NotFound));
    }
    if format == Format::Json {
        return output::json(&members.into_values().collect::<Vec<_>>());
    }
    let rows = members.into_values().map(|member| [member.client_id, member.client_addr, member.language]);
    output::line(&output::table(&["member", "address", "language"], rows))
}

async fn broker_status(cluster: &Cluster, target: &Target, format: Format) -> Result<()> {
    let mut all = BTreeMap::new();
    for (name, addr) in target.brokers(cluster).await? {
        all.insert(name, cluster.admin().runtime_info(&addr).await.map_err(explain)?);
    }
    by_broker(&all, format)
}

async fn broker_config(cluster: &Cluster, target: &Target, format: Format) -> Result<()> {
    let mut all = BTreeMap::new();
    for (name, addr) in target.brokers(cluster).await? {
        let answer = cluster.call(&addr, RemotingCommand::request(RequestCode::GET_BROKER_CONFIG)).await?;
        all.insert(name, decode_config_text(&answer.body).context("reading the settings")?);
    }
    by_broker(&all, format)
}

fn by_broker(all: &BTreeMap<String, BTreeMap<String, String>>, format: Format) -> Result<()> {
    if format == Format::Json {
        return output::json(all);
    }
    let rows = all.iter().flat_map(|(broker, values)| {
        values.iter().map(move |(key, value)| [broker.clone(), key.clone(), value.clone()])
    });
    output::line(&output::table(&["broker", "key", "value"], rows))
}

async fn update_config(cluster: &Cluster, command: &UpdateBrokerConfig, format: Format) -> Result<()> {
    let brokers = command.target.brokers(cluster).await?;
    let text = encode_config_text([(command.key.as_str(), command.value.as_str())]);
    for (name, addr) in &brokers {
        let request = RemotingCommand::request(RequestCode::UPDATE_BROKER_CONFIG).with_body(text.clone());
        cluster.call(addr, request).await.with_context(|| format!("at {name}"))?;
    }
    told("update broker config success", &brokers, format)
}

#[derive(Serialize)]
struct ResetLine {
    broker: String,
    queue: i32,
    offset: i64,
}

async fn reset(cluster: &Cluster, command: &ResetByTime, format: Format) -> Result<()> {
    let (group, topic) = (group_name(&command.group)?, topic_name(&command.topic.topic)?);
    let timestamp = parse_time(&command.time)?;
    let route = cluster.route(&topic).await?;
    let mut lines = Vec::new();
    for broker in &route.broker_datas {
        let mut request = RemotingCommand::request(RequestCode::INVOKE_BROKER_TO_RESET_OFFSET);
        let header = ResetOffsetRequest {
            group: group.clone(),
            topic: topic.clone(),
            timestamp,
            is_force: command.force,
            queue_id: -1,
            queue_offset: -1,
        };
        header.encode_into(&mut request.ext);
        let answer = cluster.call(topic::leader_addr(broker)?, request).await;
        let answer = answer.with_context(|| format!("at {}", broker.broker_name))?;
        let table = ResetOffsetTable::decode(&answer.body).context("reading the offsets")?;
        lines.extend(table.offset_table.iter().map(|(queue, offset)| ResetLine {
            broker: queue.broker_name.clone(),
            queue: queue.queue_id,
            offset: *offset,
        }));
    }
    if format == Format::Json {
        return output::json(&lines);
    }
    let rows = lines.into_iter().map(|line| [line.broker, line.queue.to_string(), line.offset.to_string()]);
    output::line(&output::table(&["broker", "queue", "offset"], rows))
}

/// A time as RocketMQ's tool takes it, in milliseconds since 1970; -1 for now.
fn parse_time(text: &str) -> Result<i64> {
    if text == "now" {
        return Ok(-1);
    }
    if let Ok(millis) = text.parse() {
        return Ok(millis);
    }
    let wrong = || format!("-s is {text}, expected milliseconds since 1970, now, or 2026-11-30#23:59:59:000");
    let parts: Vec<i64> =
        text.split(['-', '#', ':']).map(str::parse).collect::<Result<_, _>>().ok().with_context(wrong)?;
    let [year, month, day, hour, minute, second, milli] = parts[..] else { bail!(wrong()) };
    let in_range = (1970..10_000).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..60).contains(&second)
        && (0..1_000).contains(&milli);
    ensure!(in_range, wrong());
    // Days since 1970 of a year that begins in March, whose months before any month have 153 days in five.
    let (shifted_year, shifted_month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = shifted_year / 4 - shifted_year / 100 + shifted_year / 400;
    let days = shifted_year * 365 + leap_days + (153 * shifted_month + 2) / 5 + day - 1 - 719_468;
    Ok((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000 + milli)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_rocketmq_writes_them() {
        assert_eq!(parse_time("now").unwrap(), -1);
        assert_eq!(parse_time("1700000000000").unwrap(), 1_700_000_000_000);
        assert_eq!(parse_time("1970-01-01#00:00:00:000").unwrap(), 0);
        assert_eq!(parse_time("2000-02-29#12:00:00:001").unwrap(), 951_825_600_001);
        assert_eq!(parse_time("2026-12-01#00:00:00:000").unwrap(), 1_796_083_200_000);
        for wrong in ["yesterday", "2026-13-01#00:00:00:000", "2026-12-01", "2026-12-01#25:00:00:000"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
