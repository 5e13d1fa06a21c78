//! What to do with a message that a producer sends: the checks, in the order in which clients know their codes.
//!
//! Nothing here reads a clock, a socket or the log. The caller looks names up through [`Lookup`] and acts on the
//! [`Plan`]: it creates the missing topic and asks again, or it stores.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use protocol::header::SendRequest;
use protocol::message::{Properties, property};
use protocol::{GroupName, ResponseCode, TopicName};

use crate::delay_levels::DelayLevels;
use crate::processor::answer::Failure;
use crate::processor::stats::MessageKind;
use crate::state_machine::topic::{PERM_INHERIT, PERM_READ, PERM_WRITE};
use crate::state_machine::{GroupConfig, TopicConfig, TopicFilter};

/// Longest properties of a message, in bytes: their length is a positive `i16` in the record.
pub(crate) const PROPERTIES_BYTES_MAX: usize = i16::MAX as usize;

/// First client version that names its own limit of deliveries.
pub(crate) const OWN_RETRY_LIMIT_VERSION: i32 = 121;

const RETRY_LIMIT_DEFAULT: i32 = 16;

/// What the checks look up.
pub(crate) trait Lookup {
    /// A topic's configuration.
    fn topic(&self, topic: &str) -> Option<Arc<TopicConfig>>;
    /// A subscription group's configuration.
    fn group(&self, group: &str) -> Option<Arc<GroupConfig>>;
    /// Whether a member of the group holds a queue now.
    fn holds_queue(&self, group: &GroupName) -> bool;
}

/// What an operator has set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendRules<'a> {
    pub(crate) broker_name: &'a str,
    pub(crate) auto_create_topics: bool,
    pub(crate) auto_create_queues: u32,
    pub(crate) message_bytes_max: usize,
    /// What the broker allows its topics at most.
    pub(crate) permission: u32,
    pub(crate) delay_levels: &'a DelayLevels,
    /// No message waits longer for a time of its own.
    pub(crate) timer_delay_max: Duration,
}

/// The request as far as the checks care.
#[derive(Debug)]
pub(crate) struct Sent<'a> {
    pub(crate) request: &'a SendRequest<'a>,
    pub(crate) properties: &'a Scan<'a>,
    pub(crate) body_bytes: usize,
    pub(crate) client_version: i32,
    /// For the remark, as clients know it.
    pub(crate) producer_ip: IpAddr,
    /// The leader's time.
    pub(crate) now_ms: i64,
}

/// Where a message goes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Target {
    pub(crate) topic: TopicName,
    pub(crate) queue_id: u32,
    pub(crate) multi_tag: bool,
    /// It was retried too often.
    pub(crate) dead_letter: bool,
    /// It waits on this delay level before it goes there.
    pub(crate) delay_level: Option<u32>,
    /// It waits for the end of its transaction before it goes there.
    pub(crate) half: bool,
    /// It waits for this time before it goes there.
    pub(crate) due_ms: Option<i64>,
    /// Its producer keeps it in order with others of the same sharding key.
    pub(crate) ordered: bool,
}

impl Target {
    /// Whether it is stored elsewhere first.
    pub(crate) const fn waits(&self) -> bool {
        self.delay_level.is_some() || self.half || self.due_ms.is_some()
    }

    /// As metrics count it.
    pub(crate) const fn kind(&self) -> MessageKind {
        if self.half {
            MessageKind::Transaction
        } else if self.waits() {
            MessageKind::Delay
        } else if self.ordered {
            MessageKind::Fifo
        } else {
            MessageKind::Normal
        }
    }
}

/// What to do.
#[derive(Debug, PartialEq)]
pub(crate) enum Plan {
    /// Store it there.
    Store(Target),
    /// Create this topic, then look again.
    Create(TopicConfig),
}

/// What a look at the properties says, taken once.
#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
pub(crate) struct Scan<'a> {
    pub(crate) unique_key: Option<&'a str>,
    /// The delay level asked for, 0 if none.
    pub(crate) delay_level: i64,
    /// It is a copy of a message that waited once, and says where that was to go.
    pub(crate) names_real_topic: bool,
    pub(crate) timer: TimerScan<'a>,
    pub(crate) transaction: bool,
    pub(crate) has_sharding_key: bool,
    /// The producer group that ends its transaction.
    pub(crate) producer_group: Option<&'a str>,
    /// Some property is one that the broker sets or takes out.
    pub(crate) needs_rewrite: bool,
}

/// The properties that ask for a time of delivery, as they stand there.
#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
pub(crate) struct TimerScan<'a> {
    delay_sec: Option<&'a str>,
    delay_ms: Option<&'a str>,
    deliver_ms: Option<&'a str>,
    cancels: bool,
}

impl TimerScan<'_> {
    const fn is_some(&self) -> bool {
        self.delay_sec.is_some() || self.delay_ms.is_some() || self.deliver_ms.is_some() || self.cancels
    }

    /// When the message is due; none if that is not later than now.
    fn due_ms(&self, now_ms: i64, delay_max: Duration) -> Result<Option<i64>, Failure> {
        let illegal = |why: String| Failure::refused(ResponseCode::MESSAGE_ILLEGAL, why);
        if self.cancels {
            return Err(illegal(format!(
                "{} does not cancel a message here: recall it by the handle that its send was answered with",
                property::TIMER_DEL_UNIQKEY
            )));
        }
        let number = |name: &str, value: &str| {
            let parsed: Result<i64, _> = value.parse();
            parsed.map_err(|_| illegal(format!("{name} is `{value}`, and should be a number")))
        };
        let due_ms = match *self {
            Self { delay_sec: Some(value), .. } => {
                now_ms.saturating_add(number(property::TIMER_DELAY_SEC, value)?.saturating_mul(1_000))
            }
            Self { delay_ms: Some(value), .. } => now_ms.saturating_add(number(property::TIMER_DELAY_MS, value)?),
            Self { deliver_ms: Some(value), .. } => number(property::TIMER_DELIVER_MS, value)?,
            _ => return Ok(None),
        };
        let wait_ms = due_ms.saturating_sub(now_ms);
        let max_ms = i64::try_from(delay_max.as_millis()).unwrap_or(i64::MAX);
        if wait_ms > max_ms {
            return Err(illegal(format!(
                "the message would wait {wait_ms} ms for its delivery, and broker.timer_delay_max allows {max_ms} ms"
            )));
        }
        Ok((wait_ms > 0).then_some(due_ms))
    }
}

/// Properties that the broker takes out before it stores a message, because it sets them or they are not for storing.
const REPLACED: [&str; 4] = ["MSG_REGION", "TRACE_ON", "CLUSTER", "POP_CK"];

/// Where and when a message goes that waits elsewhere first.
const REAL: [&str; 3] = [property::REAL_TOPIC, property::REAL_QID, property::TIMER_OUT_MS];

impl<'a> Scan<'a> {
    pub(crate) fn of(text: &'a str) -> Self {
        let mut scan = Self::default();
        for (name, value) in Properties::new(text).iter() {
            match name {
                "UNIQ_KEY" => scan.unique_key = Some(value),
                "DELAY" => scan.delay_level = value.parse().unwrap_or(0),
                "REAL_TOPIC" | "REAL_QID" | "__transactionId__" | "TIMER_OUT_MS" => scan.names_real_topic = true,
                "TIMER_DELAY_SEC" => scan.timer.delay_sec = Some(value),
                "TIMER_DELAY_MS" => scan.timer.delay_ms = Some(value),
                "TIMER_DELIVER_MS" => scan.timer.deliver_ms = Some(value),
                "TIMER_DEL_UNIQKEY" => scan.timer.cancels = true,
                "__SHARDINGKEY" => scan.has_sharding_key = true,
                "PGROUP" => scan.producer_group = Some(value),
                "TRAN_MSG" => scan.transaction = value.eq_ignore_ascii_case("true"),
                _ => scan.needs_rewrite |= REPLACED.contains(&name),
            }
        }
        scan
    }

    /// Whether the message wants to be delivered later.
    pub(crate) fn is_delayed(&self) -> bool {
        self.timer.is_some() || self.delay_level > 0
    }
}

/// Properties that the broker adds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Additions<'a> {
    pub(crate) cluster_name: &'a str,
    pub(crate) region: &'a str,
    /// Given to a message that has none.
    pub(crate) unique_key: Option<&'a str>,
    /// Topic and queue of a message that waits elsewhere first.
    pub(crate) real: Option<(&'a str, u32)>,
    /// The id of the transaction it is sent in.
    pub(crate) transaction_id: Option<&'a str>,
    /// When it is due, if it waits for that.
    pub(crate) due_ms: Option<i64>,
}

/// Writes the properties of a message as they are stored: what the producer wrote, without what the broker sets, then
/// what the broker sets.
pub(crate) fn complete_properties(text: &str, scan: &Scan<'_>, additions: Additions<'_>, out: &mut String) {
    let renames = additions.real.is_some() && scan.names_real_topic;
    if scan.needs_rewrite || renames {
        for (name, value) in Properties::new(text).iter() {
            let renamed = renames && REAL.contains(&name)
                || additions.transaction_id.is_some() && name == property::TRANSACTION_ID;
            if !REPLACED.contains(&name) && !renamed {
                push_property(name, value, out);
            }
        }
    } else {
        out.push_str(text);
        // Some clients leave the last separator out.
        if !text.is_empty() && !text.ends_with('\u{2}') {
            out.push('\u{2}');
        }
    }
    push_property("MSG_REGION", additions.region, out);
    if let Some(unique_key) = additions.unique_key {
        push_property("UNIQ_KEY", unique_key, out);
    }
    push_property("CLUSTER", additions.cluster_name, out);
    push_property("TRACE_ON", "true", out);
    if let Some(id) = additions.transaction_id {
        push_property(property::TRANSACTION_ID, id, out);
    }
    if let Some((topic, queue_id)) = additions.real {
        push_property(REAL[0], topic, out);
        push_property(REAL[1], &queue_id.to_string(), out);
    }
    if let Some(due_ms) = additions.due_ms {
        push_property(property::TIMER_OUT_MS, &due_ms.to_string(), out);
    }
}

/// Adds one property to a property text.
pub(crate) fn push_property(name: &str, value: &str, out: &mut String) {
    out.push_str(name);
    out.push('\u{1}');
    out.push_str(value);
    out.push('\u{2}');
}

/// Checks a send. `pick` chooses one of so many queues, when the producer leaves that to the broker.
pub(crate) fn plan(
    sent: &Sent<'_>,
    rules: &SendRules<'_>,
    lookup: &impl Lookup,
    pick: impl FnOnce(u32) -> u32,
) -> Result<Plan, Failure> {
    let request = sent.request;
    let topic = &request.topic;
    if topic.is_send_forbidden() || topic.starts_with("rmq_sys_") {
        return Err(Failure::refused(
            ResponseCode::NO_PERMISSION,
            format!("Sending message to topic[{topic}] is forbidden."),
        ));
    }
    let (config, is_new) = match lookup.topic(topic) {
        Some(config) => (config, false),
        None => (Arc::new(config_to_create(request, rules, lookup)?), true),
    };
    if !config.is_writable() {
        return Err(Failure::refused(
            ResponseCode::NO_PERMISSION,
            format!("the topic[{topic}] of broker[{}] is not writable", rules.broker_name),
        ));
    }
    // Producers of ordered messages choose their queues: they are told at once. Others go on until their routes say so.
    if rules.permission & PERM_WRITE == 0 && config.order {
        return Err(Failure::refused(
            ResponseCode::NO_PERMISSION,
            format!("the broker[{}] sending message is forbidden", rules.broker_name),
        ));
    }
    check_queue(request.queue_id, &config, sent.producer_ip)?;

    let retry_group = topic.retry_group();
    let dead_letter = match &retry_group {
        Some(group) => is_spent(request, group, sent.client_version, lookup)?,
        None => false,
    };
    if sent.body_bytes > rules.message_bytes_max || request.properties.len() > PROPERTIES_BYTES_MAX {
        return Err(too_large(rules.message_bytes_max));
    }
    // A message to be consumed again has its transaction behind it.
    let half = sent.properties.transaction && retry_group.is_none();
    if half {
        check_half(sent)?;
    }
    if request.batch && (topic.is_retry() || topic.is_dlq()) {
        return Err(Failure::refused(
            ResponseCode::MESSAGE_ILLEGAL,
            format!("batch request does not support retry group {topic}"),
        ));
    }
    let delay_level = rules.delay_levels.level(sent.properties.delay_level);
    let due_ms = match delay_level {
        Some(_) => None,
        None => sent.properties.timer.due_ms(sent.now_ms, rules.timer_delay_max)?,
    };
    if request.batch && sent.properties.is_delayed() {
        return Err(Failure::refused(
            ResponseCode::MESSAGE_ILLEGAL,
            "a batch cannot be delayed; send its messages alone",
        ));
    }
    if is_new {
        return Ok(Plan::Create(Arc::unwrap_or_clone(config)));
    }
    if let (true, Some(group)) = (dead_letter, retry_group) {
        let topic = group.dlq_topic();
        return Ok(match lookup.topic(&topic) {
            Some(_) => Plan::Store(Target {
                topic,
                queue_id: 0,
                multi_tag: false,
                dead_letter: true,
                delay_level: None,
                half: false,
                due_ms: None,
                ordered: false,
            }),
            None => Plan::Create(dead_letter_topic(topic)),
        });
    }
    let queue_id = match u32::try_from(request.queue_id) {
        Ok(queue_id) => queue_id,
        Err(_) => pick(config.write_queues.max(1)),
    };
    let multi_tag = config.filter == TopicFilter::MultiTag;
    Ok(Plan::Store(Target {
        topic: topic.clone(),
        queue_id,
        multi_tag,
        dead_letter: false,
        delay_level,
        half,
        due_ms,
        ordered: sent.properties.has_sharding_key,
    }))
}

/// Refuses a half message that nobody could end, or that would have to wait once more.
fn check_half(sent: &Sent<'_>) -> Result<(), Failure> {
    let illegal = |why: &str| Err(Failure::refused(ResponseCode::MESSAGE_ILLEGAL, why));
    if sent.request.batch || sent.properties.is_delayed() {
        return illegal("a message of a transaction can be neither delayed nor part of a batch");
    }
    match sent.properties.producer_group.map(GroupName::parse) {
        Some(Ok(_)) => Ok(()),
        Some(Err(error)) => illegal(&format!("property PGROUP of a message of a transaction: {error}")),
        None => illegal("a message of a transaction names its producer group in the property PGROUP"),
    }
}

/// The topic of a group's dead letters.
pub(crate) fn dead_letter_topic(topic: TopicName) -> TopicConfig {
    TopicConfig::new(topic, 1, PERM_READ | PERM_WRITE)
}

/// The topic of a group's messages to be consumed again.
pub(crate) fn retry_topic(group: &GroupConfig) -> TopicConfig {
    TopicConfig::new(group.name.retry_topic(), group.retry_queues.max(1), PERM_READ | PERM_WRITE)
}

/// A message or its properties are larger than allowed.
pub(crate) fn too_large(message_bytes_max: usize) -> Failure {
    Failure::refused(
        ResponseCode::MESSAGE_ILLEGAL,
        format!(
            "the message is illegal, maybe msg body or properties length not matched. \
             msg body length limit {message_bytes_max}B, msg properties length limit 32KB."
        ),
    )
}

fn config_to_create(
    request: &SendRequest<'_>,
    rules: &SendRules<'_>,
    lookup: &impl Lookup,
) -> Result<TopicConfig, Failure> {
    let topic = &request.topic;
    if let Some(group) = topic.retry_group() {
        let group = lookup.group(&group).ok_or_else(|| Failure::no_group(&group))?;
        return Ok(retry_topic(&group));
    }
    let template = lookup.topic(request.default_topic).filter(|template| template.is_inheritable());
    match template {
        Some(template) if rules.auto_create_topics && !topic.is_dlq() => {
            let wanted = u32::try_from(request.default_topic_queue_nums).unwrap_or(0);
            let queues = wanted.min(template.write_queues).min(rules.auto_create_queues).max(1);
            Ok(TopicConfig::new(topic.clone(), queues, template.perm & !PERM_INHERIT))
        }
        _ => Err(Failure::no_topic(topic)),
    }
}

fn check_queue(queue_id: i32, config: &TopicConfig, producer_ip: IpAddr) -> Result<(), Failure> {
    if queue_id == -1 || u32::try_from(queue_id).is_ok_and(|queue_id| queue_id < config.queues()) {
        return Ok(());
    }
    Err(Failure::refused(
        ResponseCode::INVALID_PARAMETER,
        format!("request queueId[{queue_id}] is illegal, {} Producer: {producer_ip}", describe(config)),
    ))
}

/// A topic in the words of a remark that tools print.
fn describe(config: &TopicConfig) -> String {
    let perm = |bit, letter| if config.perm & bit != 0 { letter } else { '-' };
    let attributes: Vec<String> = config.attributes.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!(
        "TopicConfig [topicName={}, readQueueNums={}, writeQueueNums={}, perm={}{}{}, topicFilterType={}, \
         topicSysFlag={}, order={}, attributes={{{}}}]",
        config.name,
        config.read_queues,
        config.write_queues,
        perm(PERM_READ, 'R'),
        perm(PERM_WRITE, 'W'),
        perm(PERM_INHERIT, 'X'),
        match config.filter {
            TopicFilter::SingleTag => "SINGLE_TAG",
            TopicFilter::MultiTag => "MULTI_TAG",
        },
        config.sys_flag,
        config.order,
        attributes.join(", "),
    )
}

/// Whether a message sent to a retry topic goes to the dead letters instead.
fn is_spent(
    request: &SendRequest<'_>,
    group: &GroupName,
    client_version: i32,
    lookup: &impl Lookup,
) -> Result<bool, Failure> {
    let config = lookup.group(group).ok_or_else(|| Failure::no_group(group))?;
    let own_limit = request.max_reconsume_times.filter(|_| client_version >= OWN_RETRY_LIMIT_VERSION);
    let limit = match own_limit {
        Some(limit) if limit >= 0 => limit,
        Some(_) => RETRY_LIMIT_DEFAULT,
        None => config.retry_max_times,
    };
    // An orderly consumer sends a message here only when it gives up on it.
    Ok(request.reconsume_times > limit || lookup.holds_queue(group))
}

#[cfg(test)]
mod tests;
