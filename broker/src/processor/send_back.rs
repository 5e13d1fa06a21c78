//! Messages that a consumer could not handle: code 36.
//!
//! The message is stored again in the group's dead-letter topic once it was delivered too often. Before, the copy waits
//! on a delay level that grows with each attempt, and then goes to the group's retry topic. A message whose properties
//! leave no room for what says where the copy is to go is dead at once: a refusal would come back for ever.

use bytes::BytesMut;
use protocol::header::SendBackRequest;
use protocol::message::{NewMessage, OffsetMessageId, PropertiesBuilder, RecordView, encode_record, property};
use protocol::{GroupName, RemotingCommand, ResponseCode};

use super::Group;
use super::answer::{Failure, Outcome, success};
use super::send::{OWN_RETRY_LIMIT_VERSION, appended, dead_letter_topic, retry_topic, wire_queue};
use super::stats::MessageKind;
use super::waiting::WAITING_PROPERTIES_BYTES_MAX;
use crate::delay_levels::SCHEDULE_TOPIC;

const RETRY_LIMIT_DEFAULT: i32 = 16;

/// The delay level of the first attempt, if the consumer leaves it to the broker; each one after it waits a level longer.
const FIRST_RETRY_LEVEL: i32 = 3;

/// How often a group may be given a message, by what its client and its configuration say.
fn retry_limit(own: Option<i32>, client_version: i32, configured: i32) -> i32 {
    match own.filter(|_| client_version >= OWN_RETRY_LIMIT_VERSION) {
        Some(limit) if limit >= 0 => limit,
        Some(_) => RETRY_LIMIT_DEFAULT,
        None => configured,
    }
}

impl Group {
    pub(super) async fn send_back(&self, request: &RemotingCommand) -> Outcome {
        self.check_room()?;
        let header = SendBackRequest::decode(request)?;
        let group = self.0.state.group(&header.group).ok_or_else(|| Failure::no_group(&header.group))?;
        if group.retry_queues == 0 {
            return Ok(success(request));
        }
        let physical_offset = u64::try_from(header.physical_offset).unwrap_or(u64::MAX);
        let look = || {
            let found = self.0.store.message_at(physical_offset);
            found.map_err(|error| Failure::error(format!("reading the message: {error}")))
        };
        let mut found = look()?;
        if found.is_none() {
            // The consumer may have got it from a replica that was further on.
            self.be_sure_to_lead().await?;
            found = look()?;
        }
        let bytes = found
            .ok_or_else(|| Failure::error(format!("look message by offset failed, {}", header.physical_offset)))?;
        let record = RecordView::parse(&bytes).map_err(|error| Failure::error(error.to_string()))?;

        let delivered = record.reconsume_times();
        let limit = retry_limit(header.max_reconsume_times, request.version, group.retry_max_times);
        let is_dead = header.delay_level < 0 || delivered >= limit || !has_room_to_wait(&record, &header.group)?;
        let config = if is_dead { dead_letter_topic(header.group.dlq_topic()) } else { retry_topic(&group) };
        let topic = match self.0.state.topic(&config.name) {
            Some(topic) => topic,
            None => {
                self.create_topic(config.clone()).await?;
                self.0.state.topic(&config.name).ok_or_else(|| Failure::error("the retry topic was deleted"))?
            }
        };
        if !topic.is_writable() {
            return Err(Failure::refused(
                ResponseCode::NO_PERMISSION,
                format!("the topic[{}] sending message is forbidden", topic.name),
            ));
        }
        let queue_id = if is_dead { 0 } else { self.next_queue(topic.write_queues) };
        let wanted = match header.delay_level {
            0 => FIRST_RETRY_LEVEL.saturating_add(delivered),
            level => level,
        };
        let delay_level = self.0.settings.delay_levels.level(i64::from(wanted)).filter(|_| !is_dead);
        let mut properties = retried_properties(&record, is_dead)?;
        if let Some(level) = delay_level {
            set(&mut properties, property::DELAY, &level.to_string())?;
            set(&mut properties, property::REAL_TOPIC, &topic.name)?;
            set(&mut properties, property::REAL_QID, &queue_id.to_string())?;
        }
        let message = NewMessage {
            topic: if delay_level.is_some() { SCHEDULE_TOPIC } else { &topic.name },
            queue_id: wire_queue(delay_level.map_or(queue_id, |level| level - 1)),
            // A transaction that was committed is over.
            sys_flag: record.sys_flag().without_transaction(),
            store_timestamp: self.stamp_ms(),
            store_host: self.0.settings.client_addr,
            reconsume_times: delivered.saturating_add(1),
            prepared_transaction_offset: 0,
            properties: properties.as_str(),
            ..record.to_new_message()
        };
        let mut records = BytesMut::with_capacity(bytes.len() + 256);
        encode_record(&message, &mut records).map_err(|error| Failure::error(error.to_string()))?;
        let size = records.len() as u64;
        let outcomes = self.append(records, 1).await?;
        for outcome in &outcomes {
            appended(outcome, &topic.name)?;
        }
        self.0.stats.count_put(&topic.name, MessageKind::Normal, 1, size);
        Ok(success(request))
    }
}

/// The properties of the copy: where the message came from, unless an earlier copy says so already. What there is no
/// room for is left out; consumers of a copy that comes again rely on its topic ([`has_room_to_wait`]).
pub(super) fn retried_properties(record: &RecordView<'_>, is_dead: bool) -> Result<PropertiesBuilder, Failure> {
    let mut properties = PropertiesBuilder::from_text(record.properties().as_str());
    let id = OffsetMessageId { store_host: record.store_host(), physical_offset: record.physical_offset() }.to_string();
    let before = record.properties();
    if is_dead {
        properties.remove(property::DELAY);
    }
    if before.get(property::RETRY_TOPIC).is_none() {
        set(&mut properties, property::RETRY_TOPIC, record.topic())?;
    }
    if before.get(property::ORIGIN_MESSAGE_ID).is_none() {
        set(&mut properties, property::ORIGIN_MESSAGE_ID, &id)?;
    }
    if is_dead {
        set(&mut properties, property::DLQ_ORIGIN_TOPIC, record.topic())?;
        set(&mut properties, property::DLQ_ORIGIN_MESSAGE_ID, &id)?;
    }
    Ok(properties)
}

/// Whether a copy of the message can say all that it must say while it waits to come again.
fn has_room_to_wait(record: &RecordView<'_>, group: &GroupName) -> Result<bool, Failure> {
    let mut properties = retried_properties(record, false)?;
    let longest = i32::MAX.to_string();
    Ok(properties.get(property::RETRY_TOPIC).is_some()
        && set(&mut properties, property::DELAY, &longest)?
        && set(&mut properties, property::REAL_TOPIC, &group.retry_topic())?
        && set(&mut properties, property::REAL_QID, &longest)?
        && properties.as_str().len() <= WAITING_PROPERTIES_BYTES_MAX)
}

/// Sets a property if there is room, and says whether there was.
fn set(properties: &mut PropertiesBuilder, name: &str, value: &str) -> Result<bool, Failure> {
    properties.set_if_it_fits(name, value).map_err(|error| Failure::error(format!("property {name}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_clients_name_their_own_limit() {
        assert_eq!(retry_limit(Some(3), 479, 16), 3);
        assert_eq!(retry_limit(Some(-1), 479, 5), 16);
        assert_eq!(retry_limit(None, 479, 5), 5);
        assert_eq!(retry_limit(Some(3), 63, 5), 5);
    }
}
