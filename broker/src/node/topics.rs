//! Topics and consumer groups for the HTTP side: the same steps that requests of tools take.

use std::sync::Arc;

use protocol::{GroupName, TopicName, body};

use super::group::Running;
use crate::http::{
    AdminError, ConsumedQueue, ConsumerGroupDetails, ConsumerGroupSpec, ConsumerGroupView, ListQuery, Page, Perm,
    QueueView, ResetOffset, ResetOrder, ResetPlan, ResetQueue, ResetTo, TopicDetails, TopicSpec, TopicView,
};
use crate::processor::answer::Failure;
use crate::processor::{Reset, now};
use crate::state_machine::topic::{PERM_READ, PERM_WRITE};
use crate::state_machine::{GroupConfig, TopicConfig};

impl From<Failure> for AdminError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(code, text) if code == protocol::ResponseCode::TOPIC_NOT_EXIST => Self::NotFound(text),
            Failure::Refused(code, text) if code == protocol::ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST => {
                Self::NotFound(text)
            }
            Failure::Refused(_, text) => Self::Invalid(text),
            Failure::NotLeading(text) => Self::NotHere(text),
            Failure::Unknown(text) => Self::Unknown(text),
            Failure::Silence => Self::Unavailable("there is no answer to that just now".to_owned()),
        }
    }
}

fn topic_name(text: &str) -> Result<TopicName, AdminError> {
    TopicName::parse(text).map_err(|error| AdminError::Invalid(format!("topic: {error}")))
}

fn group_name(text: &str) -> Result<GroupName, AdminError> {
    GroupName::parse(text).map_err(|error| AdminError::Invalid(format!("consumer group: {error}")))
}

fn found_topic(running: &Running, name: &TopicName) -> Result<Arc<TopicConfig>, AdminError> {
    let found = running.state.topic(name);
    found.ok_or_else(|| AdminError::NotFound(format!("there is no topic {name} in {}", running.group.name())))
}

fn found_group(running: &Running, name: &GroupName) -> Result<Arc<GroupConfig>, AdminError> {
    let found = running.state.group(name);
    found.ok_or_else(|| AdminError::NotFound(format!("there is no consumer group {name} in {}", running.group.name())))
}

/// A page of topics.
pub(super) fn list(running: &Running, query: &ListQuery) -> Page<TopicView> {
    let mut topics: Vec<TopicView> = running.state.topics().iter().map(|topic| view(running, topic)).collect();
    topics.retain(|topic| query.system || !topic.system);
    topics.sort_by(|a, b| a.topic.cmp(&b.topic));
    let (items, total, next) = query.page(&topics, |topic| &topic.topic);
    Page { items: items.into_iter().cloned().collect(), total, next }
}

/// The names of all topics that fit a search, in order.
pub(super) fn names(running: &Running, query: &ListQuery) -> Vec<String> {
    let fits = query.fits();
    let mut topics = running.state.topics();
    topics.retain(|topic| (query.system || !is_own(running, topic)) && fits(topic.name.as_str()));
    let mut names: Vec<String> = topics.iter().map(|topic| topic.name.as_str().to_owned()).collect();
    names.sort_unstable();
    names
}

fn is_own(running: &Running, topic: &TopicConfig) -> bool {
    running.group.is_own_topic(&topic.name) || topic.name.is_retry() || topic.name.is_dlq()
}

fn view(running: &Running, topic: &TopicConfig) -> TopicView {
    TopicView {
        topic: topic.name.as_str().to_owned(),
        read_queues: topic.read_queues,
        write_queues: topic.write_queues,
        perm: match (topic.perm & PERM_READ != 0, topic.perm & PERM_WRITE != 0) {
            (true, true) => Perm::ReadWrite,
            (true, false) => Perm::Read,
            (false, true) => Perm::Write,
            (false, false) => Perm::None,
        },
        order: topic.order,
        system: is_own(running, topic),
        attributes: topic.attributes.clone(),
    }
}

/// One topic with its queues.
pub(super) fn details(running: &Running, name: &str) -> Result<TopicDetails, AdminError> {
    let name = topic_name(name)?;
    let topic = found_topic(running, &name)?;
    let queue = |queue_id| QueueView {
        queue_id,
        min_offset: running.store.min_offset(&name, queue_id),
        max_offset: running.store.max_offset(&name, queue_id),
    };
    Ok(TopicDetails {
        config: view(running, &topic),
        queues: (0..topic.queues()).map(queue).collect(),
        consumer_groups: running.state.groups_consuming(&name).iter().map(ToString::to_string).collect(),
    })
}

/// Creates or changes a topic.
pub(super) async fn put(running: &Running, name: &str, spec: TopicSpec) -> Result<TopicDetails, AdminError> {
    let name = topic_name(name)?;
    let before = running.state.topic(&name);
    let mut config = before.map_or_else(|| TopicConfig::new(name.clone(), 0, 0).to_body(), |before| before.to_body());
    let queues = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    config.read_queue_nums = queues(spec.read_queues);
    config.write_queue_nums = queues(spec.write_queues);
    let perm = match spec.perm {
        Perm::None => 0,
        Perm::Read => PERM_READ,
        Perm::Write => PERM_WRITE,
        Perm::ReadWrite => PERM_READ | PERM_WRITE,
    };
    config.perm = perm.cast_signed();
    config.order = spec.order;
    if let Some(attributes) = spec.attributes {
        if attributes.iter().any(|(key, value)| key.is_empty() || value.is_empty() || (key.len() + value.len()) > 1_024)
        {
            return Err(AdminError::Invalid("an attribute has a name and a value, of 1 KiB together".to_owned()));
        }
        config.attributes = attributes;
    }
    let config = TopicConfig::from_body(&config).map_err(|error| AdminError::Invalid(error.to_string()))?;
    running.group.store_topics(vec![config]).await?;
    details(running, &name)
}

/// Deletes a topic.
pub(super) async fn delete(running: &Running, name: &str) -> Result<(), AdminError> {
    Ok(running.group.remove_topic(topic_name(name)?).await?)
}

/// A page of consumer groups.
pub(super) fn list_groups(running: &Running, query: &ListQuery) -> Page<ConsumerGroupView> {
    let mut groups = running.state.groups();
    groups.retain(|group| query.system || !group.name.is_system());
    groups.sort_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
    let (items, total, next) = query.page(&groups, |group| group.name.as_str());
    Page { items: items.into_iter().map(|group| group_view(running, group).0).collect(), total, next }
}

fn group_view(running: &Running, group: &GroupConfig) -> (ConsumerGroupView, Vec<ConsumedQueue>) {
    let queues: Vec<ConsumedQueue> = running
        .state
        .topics_consumed_by(&group.name)
        .iter()
        .flat_map(|topic| {
            running.group.progress(&group.name, topic).into_iter().map(|(queue_id, consumed, max_offset)| {
                let lag = max_offset.saturating_sub(consumed);
                ConsumedQueue { topic: topic.as_str().to_owned(), queue_id, consumed, max_offset, lag }
            })
        })
        .collect();
    let view = ConsumerGroupView {
        group: group.name.as_str().to_owned(),
        members: running.group.member_count(&group.name),
        lag: queues.iter().map(|queue| queue.lag).sum(),
        consume_enable: group.consume_enable,
        broadcast_enable: group.consume_broadcast_enable,
        retry_max_times: group.retry_max_times,
        retry_queues: group.retry_queues,
    };
    (view, queues)
}

/// One consumer group and how far it is.
pub(super) fn group_details(running: &Running, name: &str) -> Result<ConsumerGroupDetails, AdminError> {
    let group = found_group(running, &group_name(name)?)?;
    let (config, queues) = group_view(running, &group);
    Ok(ConsumerGroupDetails { config, queues })
}

/// Creates or changes a consumer group.
pub(super) async fn put_group(
    running: &Running,
    name: &str,
    spec: &ConsumerGroupSpec,
) -> Result<ConsumerGroupDetails, AdminError> {
    let name = group_name(name)?;
    let before = running.state.group(&name);
    let mut config: body::SubscriptionGroupConfig =
        before.map_or_else(|| GroupConfig::new(name.clone()).to_body(), |before| before.to_body());
    config.consume_enable = spec.consume_enable;
    config.consume_broadcast_enable = spec.broadcast_enable;
    config.retry_max_times = spec.retry_max_times;
    config.retry_queue_nums = i32::try_from(spec.retry_queues).unwrap_or(i32::MAX);
    let config = GroupConfig::from_body(&config).map_err(|error| AdminError::Invalid(error.to_string()))?;
    running.group.store_groups(vec![config]).await?;
    group_details(running, &name)
}

/// Deletes a consumer group and its offsets.
pub(super) async fn delete_group(running: &Running, name: &str) -> Result<(), AdminError> {
    Ok(running.group.remove_group(group_name(name)?, true).await?)
}

/// Moves the offsets of a consumer group, or says how it would.
pub(super) async fn reset(
    running: &Running,
    name: &str,
    order: ResetOrder,
    dry_run: bool,
) -> Result<ResetPlan, AdminError> {
    let (group, topic) = (group_name(name)?, topic_name(&order.topic)?);
    found_group(running, &group)?;
    let config = found_topic(running, &topic)?;
    // Whoever leads no more would plan from what is old.
    running.raft.read_index().await.map_err(|error| AdminError::NotHere(error.to_string()))?;
    let queues = 0..config.read_queues;
    let targets = match &order.to {
        ResetTo::Earliest => queues.map(|queue_id| (queue_id, running.store.min_offset(&topic, queue_id))).collect(),
        ResetTo::Latest => running.group.reset_targets(&group, &topic, None, Reset::Latest).await?,
        ResetTo::TimeMs(time_ms) => {
            if !(0..=now().wall_ms).contains(time_ms) {
                return Err(AdminError::Invalid(format!("time_ms is {time_ms}, which is not between 1970 and now")));
            }
            running.group.reset_targets(&group, &topic, None, Reset::Time(*time_ms)).await?
        }
        ResetTo::Offsets(offsets) => named_targets(running, &topic, config.read_queues, offsets)?,
    };
    let consumed = running.state.consumer_offsets(&group, &topic);
    let queue = |&(queue_id, to): &(u32, u64)| {
        let from = consumed.get(&queue_id).copied();
        let from_here = from.unwrap_or(to);
        let (again, skipped) = (from_here.saturating_sub(to), to.saturating_sub(from_here));
        ResetQueue { queue_id, from, to, again, skipped }
    };
    let queues: Vec<ResetQueue> = targets.iter().map(queue).collect();
    let (again, skipped) = queues.iter().fold((0_u64, 0_u64), |(again, skipped), queue| {
        (again.saturating_add(queue.again), skipped.saturating_add(queue.skipped))
    });
    let would = || {
        let moved = queues.len();
        format!("{group} would move in {moved} queues of {topic}: it gets {again} messages again and {skipped} never")
    };
    let plan = ResetPlan {
        dry_run,
        would: dry_run.then(would),
        group: group.as_str().to_owned(),
        topic: topic.as_str().to_owned(),
        members: running.group.member_count(&group),
        queues,
        apply: ResetOrder {
            topic: topic.as_str().to_owned(),
            to: ResetTo::Offsets(targets.iter().map(|&(queue_id, offset)| ResetOffset { queue_id, offset }).collect()),
        },
    };
    if !dry_run && !targets.is_empty() {
        running.group.reset_to(&group, &topic, targets).await?;
    }
    Ok(plan)
}

/// Offsets that the order names, if there are such.
fn named_targets(
    running: &Running,
    topic: &TopicName,
    queues: u32,
    offsets: &[ResetOffset],
) -> Result<Vec<(u32, u64)>, AdminError> {
    let mut targets = std::collections::BTreeMap::new();
    for &ResetOffset { queue_id, offset } in offsets {
        if queue_id >= queues {
            return Err(AdminError::Invalid(format!("topic {topic} has no queue {queue_id}: it has {queues}")));
        }
        let (min, max) = (running.store.min_offset(topic, queue_id), running.store.max_offset(topic, queue_id));
        if !(min..=max).contains(&offset) {
            let text = format!("offset {offset} of queue {queue_id} is not between {min} and {max}: plan again");
            return Err(AdminError::Conflict(text));
        }
        if targets.insert(queue_id, offset).is_some() {
            return Err(AdminError::Invalid(format!("queue {queue_id} is named twice")));
        }
    }
    Ok(targets.into_iter().collect())
}
