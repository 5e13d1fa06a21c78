//! Subscription groups and their offsets as tools see them: codes 43, 45, 200, 201, 207, 222, 225, 314, 343, 345, 352,
//! 402.

use std::collections::BTreeMap;

use protocol::body::{
    ConsumerOffsets, QuerySubscription, ResetOffsetTable, SubscriptionGroupConfig, SubscriptionGroupList,
    SubscriptionGroupTable, TopicList,
};
use protocol::header::{
    Boundary, CloneGroupOffsetRequest, DeleteSubscriptionGroupRequest, GroupRequest, ResetOffsetRequest,
    SubscriptionRequest,
};
use protocol::{GroupName, RemotingCommand, ResponseCode, TopicName};

use super::Group;
use super::admin_topic::wire_version;
use super::answer::{Failure, Outcome, success};
use super::client::subscription_body;
use super::send::{wire_offset, wire_queue};
use crate::client_table::SubscriptionLookup;
use crate::state_machine::command::{OffsetsOfDeleted, PutMode, ResetHold};
use crate::state_machine::{Command, GroupConfig};

/// Groups in one request.
const GROUPS_MAX: usize = 1_024;

/// Where consumer offsets are to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reset {
    /// This offset.
    Offset(u64),
    /// Behind the last message.
    Latest,
    /// The first message stored at this time or later, in milliseconds since 1970.
    Time(i64),
}

impl Group {
    pub(super) async fn put_group(&self, request: &RemotingCommand) -> Outcome {
        let config = checked_group(&SubscriptionGroupConfig::decode(&request.body)?)?;
        self.put_all_groups(request, vec![config]).await
    }

    pub(super) async fn put_groups(&self, request: &RemotingCommand) -> Outcome {
        let list = SubscriptionGroupList::decode(&request.body)?.group_config_list;
        if list.is_empty() || list.len() > GROUPS_MAX {
            return Err(invalid(format!("between 1 and {GROUPS_MAX} groups may be changed at once")));
        }
        let groups: Result<Vec<GroupConfig>, Failure> = list.iter().map(checked_group).collect();
        self.put_all_groups(request, groups?).await
    }

    async fn put_all_groups(&self, request: &RemotingCommand, groups: Vec<GroupConfig>) -> Outcome {
        self.store_groups(groups).await?;
        Ok(success(request))
    }

    /// Creates groups, or replaces what they are.
    pub(crate) async fn store_groups(&self, groups: Vec<GroupConfig>) -> Result<(), Failure> {
        for group in &groups {
            tracing::info!(group = %group.name, "subscription group is put");
        }
        let command = Command::PutGroups { groups, mode: PutMode::Replace, stamped_ms: self.stamp_ms() };
        self.propose(command).await?;
        Ok(())
    }

    pub(super) async fn delete_group(&self, request: &RemotingCommand) -> Outcome {
        let header = DeleteSubscriptionGroupRequest::decode(request)?;
        // Tools of 4.9 have another name for it.
        let clean_offset = header.clean_offset || request.ext.get("removeOffset") == Some("true");
        self.remove_group(header.group, clean_offset).await?;
        Ok(success(request))
    }

    /// Deletes a group, if there is one, and its offsets if they are to go as well.
    pub(crate) async fn remove_group(&self, group: GroupName, clean_offset: bool) -> Result<(), Failure> {
        self.be_sure_to_lead().await?;
        if self.0.state.group(&group).is_some() {
            tracing::info!(%group, offsets = clean_offset, "subscription group is deleted");
            let offsets = if clean_offset { OffsetsOfDeleted::Delete } else { OffsetsOfDeleted::Keep };
            let stamped_ms = self.stamp_ms();
            self.propose(Command::DeleteGroup { group: group.clone(), offsets, stamped_ms }).await?;
        } else if clean_offset {
            self.propose(Command::ClearOffsets { group: group.clone(), topic: None }).await?;
        }
        if clean_offset {
            self.0.offsets.forget(&group, None);
        }
        self.0.stats.forget_group(&group);
        Ok(())
    }

    pub(super) fn all_groups(&self, request: &RemotingCommand) -> Outcome {
        let groups = self.0.state.groups();
        let body = SubscriptionGroupTable {
            data_version: wire_version(self.0.state.group_version()),
            forbidden_table: BTreeMap::new(),
            subscription_group_table: groups
                .iter()
                .map(|group| (group.name.as_str().to_owned(), group.to_body()))
                .collect(),
        };
        Ok(success(request).with_body(body.encode()))
    }

    pub(super) fn one_group(&self, request: &RemotingCommand) -> Outcome {
        let name = GroupRequest::decode(request)?.group;
        match self.0.state.group(&name) {
            Some(group) => Ok(success(request).with_body(group.to_body().encode())),
            None => Err(Failure::refused(
                ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST,
                format!("No group in this broker. group: {name}"),
            )),
        }
    }

    pub(super) fn topics_of_group(&self, request: &RemotingCommand) -> Outcome {
        let group = GroupRequest::decode(request)?.group;
        let topics = self.0.state.topics_consumed_by(&group);
        let body = TopicList {
            topic_list: topics.iter().map(|topic| topic.as_str().to_owned()).collect(),
            broker_addr: Some(self.0.settings.client_addr.to_string()),
        };
        Ok(success(request).with_body(body.encode()))
    }

    pub(super) fn subscription_of_group(&self, request: &RemotingCommand) -> Outcome {
        let header = SubscriptionRequest::decode(request)?;
        let subscription =
            header.topic.as_ref().and_then(|topic| match self.0.clients.subscription(&header.group, topic) {
                SubscriptionLookup::Found(_, subscription) => Some(subscription_body(&subscription)),
                SubscriptionLookup::NoTopic(_) | SubscriptionLookup::NoGroup => None,
            });
        let body = QuerySubscription {
            group: header.group.as_str().to_owned(),
            subscription_data: subscription,
            topic: header.topic.map(|topic| topic.as_str().to_owned()),
        };
        Ok(success(request).with_body(body.encode()))
    }

    pub(super) async fn reset_offset(&self, request: &RemotingCommand) -> Outcome {
        let header = ResetOffsetRequest::decode(request)?;
        self.be_sure_to_lead().await?;
        let queue = (header.queue_id != -1).then_some(header.queue_id);
        let to = match u64::try_from(header.queue_offset) {
            Ok(wanted) => Reset::Offset(wanted),
            Err(_) if header.timestamp < 0 => Reset::Latest,
            Err(_) => Reset::Time(header.timestamp),
        };
        let offsets = self.reset_targets(&header.group, &header.topic, queue, to).await?;
        let table = offsets
            .iter()
            .map(|(queue_id, queue_offset)| (self.queue(&header.topic, *queue_id), wire_offset(*queue_offset)));
        let body = ResetOffsetTable { offset_table: table.collect() };
        self.reset_to(&header.group, &header.topic, offsets).await?;
        Ok(success(request).with_body(body.encode()))
    }

    /// Where a reset takes each queue, or the one that is named.
    pub(crate) async fn reset_targets(
        &self,
        group: &GroupName,
        topic: &TopicName,
        queue: Option<i32>,
        to: Reset,
    ) -> Result<Vec<(u32, u64)>, Failure> {
        let config =
            self.0.state.topic(topic).ok_or_else(|| {
                Failure::refused(ResponseCode::TOPIC_NOT_EXIST, format!("Topic {topic} does not exist"))
            })?;
        if self.0.state.group(group).is_none() {
            return Err(Failure::refused(
                ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST,
                format!("Group {group} does not exist"),
            ));
        }
        let queues = match queue {
            None => 0..config.read_queues,
            Some(queue) => {
                let queue_id = u32::try_from(queue).ok().filter(|queue_id| *queue_id < config.read_queues);
                let queue_id = queue_id.ok_or_else(|| invalid(format!("queueId[{queue}] is illegal")))?;
                queue_id..queue_id + 1
            }
        };
        let mut offsets = Vec::new();
        for queue_id in queues {
            let min_offset = self.0.store.min_offset(topic, queue_id);
            let max_offset = self.0.store.max_offset(topic, queue_id);
            let queue_offset = match to {
                Reset::Offset(wanted) if !(min_offset..=max_offset).contains(&wanted) => {
                    return Err(Failure::error(format!(
                        "Target offset {wanted} not in consume queue range [{min_offset}-{max_offset}]"
                    )));
                }
                Reset::Offset(wanted) => wanted,
                Reset::Latest => max_offset,
                Reset::Time(timestamp) => self.offset_by_time(topic, queue_id, timestamp, Boundary::Lower).await?,
            };
            offsets.push((queue_id, queue_offset));
        }
        Ok(offsets)
    }

    /// Moves the offsets of a group. Its members learn it at their next pull, and their commits are ignored until then.
    pub(crate) async fn reset_to(
        &self,
        group: &GroupName,
        topic: &TopicName,
        offsets: Vec<(u32, u64)>,
    ) -> Result<(), Failure> {
        // Without a member there is nobody to tell, and nobody whose commits could undo it.
        let is_online = self.0.clients.is_online(group);
        let hold = if is_online { ResetHold::UntilReleased } else { ResetHold::None };
        tracing::info!(%group, %topic, ?offsets, "consumer offsets are reset");
        self.0.offsets.forget(group, Some(topic));
        let (group, stamped_ms) = (group.clone(), self.stamp_ms());
        self.propose(Command::ResetOffsets { group, topic: topic.clone(), offsets, hold, stamped_ms }).await?;
        // A pull that waits at the old offset must not go on waiting.
        self.0.holds.disturb(topic, None);
        Ok(())
    }

    /// How many members of a group are connected.
    pub(crate) fn member_count(&self, group: &GroupName) -> usize {
        self.0.clients.consumer_group(group).map_or(0, |found| found.members.len())
    }

    pub(super) async fn clone_offsets(&self, request: &RemotingCommand) -> Outcome {
        let header = CloneGroupOffsetRequest::decode(request)?;
        if self.0.clients.is_online(&header.dest_group) {
            return Err(Failure::error(format!("the consumer group [{}] is online", header.dest_group)));
        }
        self.be_sure_to_lead().await?;
        let topics = match header.topic {
            Some(topic) => vec![topic],
            None => self.0.state.topics_consumed_by(&header.src_group),
        };
        for topic in topics {
            let (from, to) = (header.src_group.clone(), header.dest_group.clone());
            self.propose(Command::CloneOffsets { from, to, topic }).await?;
        }
        Ok(success(request))
    }

    pub(super) fn all_consumer_offsets(&self, request: &RemotingCommand) -> Outcome {
        let mut offset_table = BTreeMap::new();
        for (group, topics) in self.0.state.all_consumer_offsets() {
            for (topic, queues) in topics {
                let queues = queues.iter().map(|(queue_id, offset)| (wire_queue(*queue_id), wire_offset(*offset)));
                offset_table.insert(format!("{topic}@{group}"), queues.collect());
            }
        }
        let body = ConsumerOffsets { data_version: wire_version(self.0.state.offset_version()), offset_table };
        Ok(success(request).with_body(body.encode()))
    }
}

fn invalid(remark: String) -> Failure {
    Failure::refused(ResponseCode::INVALID_PARAMETER, remark)
}

/// A group as the log keeps it, if it may be.
fn checked_group(config: &SubscriptionGroupConfig) -> Result<GroupConfig, Failure> {
    GroupConfig::from_body(config).map_err(|error| invalid(error.to_string()))
}
