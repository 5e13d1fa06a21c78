//! Looking messages up: codes 12, 33 and 321. Any replica answers from what it has applied.

use bytes::Bytes;
use protocol::body::{ConsumeQueueEntry, QueryConsumeQueueBody};
use protocol::header::{QueryConsumeQueueRequest, QueryMessageRequest, QueryMessageResponse, ViewMessageRequest};
use protocol::{RemotingCommand, ResponseCode};

use super::Group;
use super::answer::{Failure, Outcome, success};
use super::client::subscription_body;
use super::filter::MessageFilter;
use super::send::wire_offset;
use crate::client_table::SubscriptionLookup;

/// Messages found by a unique key, whatever the client asks for.
const UNIQUE_KEY_MESSAGES_MAX: usize = 32;
/// Messages found by any key.
const KEY_MESSAGES_MAX: usize = 64;
/// Bytes of messages in one answer; well below the largest frame that clients read.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Entries of a consume queue in one answer.
const ENTRIES_MAX: usize = 1_024;

impl Group {
    pub(super) fn view_message(&self, request: &RemotingCommand) -> Outcome {
        let header = ViewMessageRequest::decode(request)?;
        let found = u64::try_from(header.physical_offset).ok().map(|place| self.0.store.message_at(place));
        let found = found.transpose().map_err(|error| Failure::error(format!("reading the message: {error}")))?;
        match found.flatten() {
            Some(message) => Ok(success(request).with_body(message)),
            None => Err(Failure::error(format!("can not find message by the offset, {}", header.physical_offset))),
        }
    }

    pub(super) fn query_message(&self, request: &RemotingCommand) -> Outcome {
        let header = QueryMessageRequest::decode(request)?;
        let messages_max = if header.unique_key_query {
            UNIQUE_KEY_MESSAGES_MAX
        } else {
            usize::try_from(header.max_num).unwrap_or(0).clamp(1, KEY_MESSAGES_MAX)
        };
        let found = self
            .0
            .store
            .query_by_key(&header.topic, &header.key, messages_max, header.begin_timestamp, header.end_timestamp)
            .map_err(|error| Failure::error(format!("searching the index: {error}")))?;
        let mut answer = if found.messages.is_empty() {
            RemotingCommand::response_to(request, ResponseCode::QUERY_NOT_FOUND)
                .with_remark("can not find message, maybe time range not correct")
        } else {
            success(request).with_body(join(&found.messages))
        };
        let is_hit = !found.messages.is_empty();
        QueryMessageResponse {
            index_last_update_timestamp: if is_hit { found.index_progress.last_time_ms } else { 0 },
            index_last_update_physical_offset: if is_hit {
                wire_offset(found.index_progress.last_physical_offset)
            } else {
                0
            },
        }
        .encode_into(&mut answer.ext);
        Ok(answer)
    }

    pub(super) fn query_consume_queue(&self, request: &RemotingCommand) -> Outcome {
        let header = QueryConsumeQueueRequest::decode(request)?;
        let topic = self.0.state.topic(&header.topic);
        let queue_id = u32::try_from(header.queue_id).ok();
        let queue_id = queue_id.filter(|queue_id| topic.as_ref().is_some_and(|topic| *queue_id < topic.queues()));
        let Some(queue_id) = queue_id else {
            return Err(Failure::error(format!("{}@{} is not exist!", header.queue_id, header.topic)));
        };
        let subscription = match &header.group {
            Some(group) => match self.0.clients.subscription(group, &header.topic) {
                SubscriptionLookup::Found(_, subscription) => Some(subscription),
                SubscriptionLookup::NoTopic(_) | SubscriptionLookup::NoGroup => None,
            },
            None => None,
        };
        let filter = subscription.as_ref().and_then(|subscription| subscription.filter.clone());
        let from = u64::try_from(header.queue_offset).unwrap_or(0);
        let count = usize::try_from(header.count).unwrap_or(0).min(ENTRIES_MAX);
        let entries = self.0.store.queue_entries(&header.topic, queue_id, from, count);
        let entries = entries.map_err(|error| Failure::error(format!("reading the queue: {error}")))?;
        let body = QueryConsumeQueueBody {
            filter_data: None,
            max_queue_index: wire_offset(self.0.store.max_offset(&header.topic, queue_id)),
            min_queue_index: wire_offset(self.0.store.min_offset(&header.topic, queue_id)),
            queue_data: entries
                .iter()
                .map(|entry| ConsumeQueueEntry {
                    eval: filter.as_ref().is_some_and(|filter: &MessageFilter| filter.may_pass(entry.tags_code)),
                    msg: None,
                    physical_offset: wire_offset(entry.physical_offset),
                    message_bytes: i32::try_from(entry.size).unwrap_or(i32::MAX),
                    tags_code: entry.tags_code,
                })
                .collect(),
            subscription_data: subscription.map(|subscription| subscription_body(&subscription)),
        };
        Ok(success(request).with_body(body.encode()))
    }
}

/// Messages back to back, as many as fit one answer.
fn join(messages: &[Bytes]) -> Bytes {
    let mut joined = Vec::new();
    for message in messages {
        if !joined.is_empty() && joined.len() + message.len() > ANSWER_BYTES_MAX {
            break;
        }
        joined.extend_from_slice(message);
    }
    joined.into()
}
