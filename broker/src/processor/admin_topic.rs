//! Topics as tools see them: codes 17, 18, 21, 202, 215, 300, 305, 351.

use std::collections::BTreeMap;

use protocol::body::{
    self, DataVersion, GroupList, MessageQueue, TopicConfigList, TopicConfigTable, TopicList, TopicOffset, TopicStats,
};
use protocol::header::{CreateTopicRequest, TopicRequest};
use protocol::{RemotingCommand, ResponseCode, TopicName};

use super::Group;
use super::answer::{Failure, Outcome, success};
use super::send::{wire_offset, wire_queue};
use crate::state_machine::command::PutMode;
use crate::state_machine::{self, Command, TopicConfig};

/// Topics in one request.
const TOPICS_MAX: usize = 1_024;

impl Group {
    pub(super) async fn put_topic(&self, request: &RemotingCommand) -> Outcome {
        let header = CreateTopicRequest::decode(request)?;
        let before = self.0.state.topic(&header.topic);
        let mut attributes = before.map(|config| config.attributes.clone()).unwrap_or_default();
        change_attributes(&mut attributes, header.attributes.as_deref().unwrap_or_default())?;
        let topic = checked_topic(&body::TopicConfig {
            attributes,
            order: header.order,
            perm: header.perm,
            read_queue_nums: header.read_queue_nums,
            topic_filter_type: header.topic_filter_type.unwrap_or_default(),
            topic_name: header.topic.as_str().to_owned(),
            topic_sys_flag: header.topic_sys_flag,
            write_queue_nums: header.write_queue_nums,
        })?;
        self.put_all(request, vec![topic]).await
    }

    pub(super) async fn put_topics(&self, request: &RemotingCommand) -> Outcome {
        let list = TopicConfigList::decode(&request.body)?.topic_config_list;
        if list.is_empty() || list.len() > TOPICS_MAX {
            return Err(invalid(format!("between 1 and {TOPICS_MAX} topics may be changed at once")));
        }
        let topics: Result<Vec<TopicConfig>, Failure> = list.iter().map(checked_topic).collect();
        self.put_all(request, topics?).await
    }

    async fn put_all(&self, request: &RemotingCommand, topics: Vec<TopicConfig>) -> Outcome {
        self.store_topics(topics).await?;
        Ok(success(request))
    }

    /// Creates topics, or replaces what they are, and waits until name servers know.
    pub(crate) async fn store_topics(&self, topics: Vec<TopicConfig>) -> Result<(), Failure> {
        if let Some(topic) = topics.iter().find(|topic| self.is_own_topic(&topic.name)) {
            return Err(invalid(format!("The topic[{}] is conflict with system topic.", topic.name)));
        }
        for topic in &topics {
            tracing::info!(topic = %topic.name, read = topic.read_queues, write = topic.write_queues, perm = topic.perm,
                "topic is put");
        }
        let command = Command::PutTopics { topics, mode: PutMode::Replace, stamped_ms: self.stamp_ms() };
        self.propose(command).await?;
        self.wait_for_registration().await;
        Ok(())
    }

    pub(super) async fn delete_topic(&self, request: &RemotingCommand) -> Outcome {
        self.remove_topic(TopicRequest::decode(request)?.topic).await?;
        Ok(success(request))
    }

    /// Deletes a topic, if there is one, and waits until name servers know.
    pub(crate) async fn remove_topic(&self, topic: TopicName) -> Result<(), Failure> {
        if self.is_own_topic(&topic) {
            return Err(invalid(format!("The topic[{topic}] is conflict with system topic.")));
        }
        self.be_sure_to_lead().await?;
        if self.0.state.topic(&topic).is_some() {
            tracing::info!(%topic, "topic is deleted");
            self.propose(Command::DeleteTopic { topic: topic.clone(), stamped_ms: self.stamp_ms() }).await?;
            self.0.stats.forget_topic(&topic);
            self.0.holds.disturb(&topic, None);
            self.wait_for_registration().await;
        }
        Ok(())
    }

    /// Whether a topic belongs to the broker, so that tools may not change it.
    pub(crate) fn is_own_topic(&self, topic: &TopicName) -> bool {
        let settings = &self.0.settings;
        topic.is_system() || *topic == settings.cluster_name.as_str() || *topic == settings.broker_name.as_str()
    }

    pub(super) fn all_topics(&self, request: &RemotingCommand) -> Outcome {
        let topics = self.0.state.topics();
        let body = TopicConfigTable {
            data_version: wire_version(self.0.state.topic_version()),
            mapping_data_version: Some(DataVersion::default()),
            topic_config_table: topics.iter().map(|topic| (topic.name.as_str().to_owned(), topic.to_body())).collect(),
        };
        Ok(success(request).with_body(body.encode()))
    }

    pub(super) fn one_topic(&self, request: &RemotingCommand) -> Outcome {
        let name = TopicRequest::decode(request)?.topic;
        match self.0.state.topic(&name) {
            Some(topic) => Ok(success(request).with_body(topic.to_body().encode())),
            None => {
                Err(Failure::refused(ResponseCode::TOPIC_NOT_EXIST, format!("No topic in this broker. topic: {name}")))
            }
        }
    }

    pub(super) fn system_topics(&self, request: &RemotingCommand) -> Outcome {
        let topics = self.0.state.topics();
        let own = topics.iter().filter(|topic| self.is_own_topic(&topic.name));
        let topic_list = own.map(|topic| topic.name.as_str().to_owned()).collect();
        Ok(success(request).with_body(TopicList { topic_list, ..TopicList::default() }.encode()))
    }

    pub(super) fn topic_stats(&self, request: &RemotingCommand) -> Outcome {
        let name = TopicRequest::decode(request)?.topic;
        let topic = self
            .0
            .state
            .topic(&name)
            .ok_or_else(|| Failure::refused(ResponseCode::TOPIC_NOT_EXIST, format!("topic[{name}] not exist")))?;
        let queue = |queue_id| {
            let min_offset = self.0.store.min_offset(&name, queue_id);
            let max_offset = self.0.store.max_offset(&name, queue_id);
            let newest = max_offset.checked_sub(1).and_then(|newest| self.store_time_of(&name, queue_id, newest));
            let offsets = TopicOffset {
                last_update_timestamp: newest.unwrap_or(0),
                max_offset: wire_offset(max_offset),
                min_offset: wire_offset(min_offset),
            };
            (self.queue(&name, queue_id), offsets)
        };
        let body = TopicStats {
            offset_table: (0..topic.queues()).map(queue).collect(),
            topic_put_tps: self.0.stats.topic(&name).map_or(0.0, |meter| meter.minute().per_second),
        };
        Ok(success(request).with_body(body.encode()))
    }

    pub(super) fn readers_of_topic(&self, request: &RemotingCommand) -> Outcome {
        let topic = TopicRequest::decode(request)?.topic;
        let mut groups = self.0.clients.readers_of(&topic);
        groups.extend(self.0.state.groups_consuming(&topic));
        groups.sort();
        groups.dedup();
        let group_list = groups.iter().map(|group| group.as_str().to_owned()).collect();
        Ok(success(request).with_body(GroupList { group_list }.encode()))
    }

    /// A queue of this group as tools name it.
    pub(super) fn queue(&self, topic: &TopicName, queue_id: u32) -> MessageQueue {
        MessageQueue {
            broker_name: self.0.settings.broker_name.clone(),
            queue_id: wire_queue(queue_id),
            topic: topic.as_str().to_owned(),
        }
    }
}

fn invalid(remark: String) -> Failure {
    Failure::refused(ResponseCode::INVALID_PARAMETER, remark)
}

/// A topic as the log keeps it, if it may be.
fn checked_topic(config: &body::TopicConfig) -> Result<TopicConfig, Failure> {
    TopicConfig::from_body(config).map_err(|error| invalid(error.to_string()))
}

/// Changes attributes by a list like `+key=value,-key`.
fn change_attributes(attributes: &mut BTreeMap<String, String>, changes: &str) -> Result<(), Failure> {
    for change in changes.split(',').map(str::trim).filter(|change| !change.is_empty()) {
        let bad = || invalid(format!("attribute change [{change}] is none: +key=value or -key"));
        if let Some(added) = change.strip_prefix('+') {
            let (key, value) = added.split_once('=').ok_or_else(bad)?;
            if key.is_empty() || value.is_empty() {
                return Err(bad());
            }
            attributes.insert(key.to_owned(), value.to_owned());
        } else {
            let key = change.strip_prefix('-').filter(|key| !key.is_empty()).ok_or_else(bad)?;
            attributes.remove(key);
        }
    }
    Ok(())
}

/// A data version as the wire has it.
pub(super) fn wire_version(version: state_machine::DataVersion) -> DataVersion {
    DataVersion { counter: wire_offset(version.counter), state_version: 0, timestamp: version.stamped_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_added_and_removed() {
        let mut attributes = BTreeMap::from([("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())]);
        change_attributes(&mut attributes, "+message.type=NORMAL, -a,+b=3").unwrap();
        let found: Vec<_> = attributes.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(found, ["b=3", "message.type=NORMAL"]);
        for bad in ["a=1", "+a", "+=1", "-"] {
            assert!(change_attributes(&mut attributes, bad).is_err(), "{bad}");
        }
    }
}
