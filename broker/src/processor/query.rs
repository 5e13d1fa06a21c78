//! Looking messages up: codes 12, 33 and 321.
//!
//! Any replica answers that has caught up with its leader and finds all that was asked for. What a replica does not find,
//! another one may have: only a leader that is sure to lead says so. While nobody leads, what was found is better than
//! nothing.

use bytes::Bytes;
use protocol::body::{ConsumeQueueEntry, QueryConsumeQueueBody};
use protocol::header::{QueryConsumeQueueRequest, QueryMessageRequest, QueryMessageResponse, ViewMessageRequest};
use protocol::{RemotingCommand, RequestCode, ResponseCode};
use remoting::Responder;

use super::Group;
use super::answer::{Failure, Outcome, success, unsupported};
use super::client::subscription_body;
use super::filter::MessageFilter;
use super::send::wire_offset;
use crate::client_table::SubscriptionLookup;
use crate::forward::{Patience, Source};

/// Messages found by a unique key, whatever the client asks for.
const UNIQUE_KEY_MESSAGES_MAX: usize = 32;
/// Messages found by any key.
const KEY_MESSAGES_MAX: usize = 64;
/// Bytes of messages in one answer; well below the largest frame that clients read.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Entries of a consume queue in one answer.
const ENTRIES_MAX: usize = 1_024;

/// What a replica finds by itself.
enum Found {
    /// All that there can be.
    All(RemotingCommand),
    /// There may be more.
    Some(RemotingCommand),
    /// Nothing, in the words that say so.
    Nothing(Outcome),
}

impl Found {
    fn into_outcome(self) -> Outcome {
        match self {
            Self::All(answer) | Self::Some(answer) => Ok(answer),
            Self::Nothing(outcome) => outcome,
        }
    }
}

impl Group {
    pub(super) fn serve_query(&self, request: RemotingCommand, responder: Responder, source: Source) {
        let Some(patience) = Patience::of(request.request_code(), request.language) else {
            return self.reply(&request, responder, Ok(unsupported(&request)));
        };
        if source.is_node() || !self.shows_all() {
            self.serve_at_leader(request, responder, source, patience);
            return;
        }
        let group = self.clone();
        self.0.tasks.spawn(async move {
            let asked = request.clone();
            let here = group.clone();
            let own = match tokio::task::spawn_blocking(move || here.look_up(&asked)).await {
                Ok(Ok(Found::All(answer))) => return responder.send(answer),
                Ok(Ok(Found::Some(answer))) => Some(answer),
                Ok(Ok(Found::Nothing(_))) => None,
                Ok(Err(failure)) => return group.reply(&request, responder, Err(failure)),
                Err(error) => {
                    return group.reply(&request, responder, Err(Failure::error(format!("looking it up: {error}"))));
                }
            };
            let origin = responder.peer_addr();
            let leaders = Box::pin(group.at_leader(&request, origin, source, patience)).await;
            let leaders =
                leaders.filter(|answer| own.is_none() || answer.response_code() != ResponseCode::SERVICE_NOT_AVAILABLE);
            match leaders.or(own) {
                Some(answer) => responder.send(answer),
                None => responder.forget(),
            }
        });
    }

    /// Looks up as the leader, whose word on what is not there counts.
    pub(super) async fn query_for_certain(&self, request: &RemotingCommand) -> Outcome {
        self.be_sure_to_lead().await?;
        let (group, asked) = (self.clone(), request.clone());
        let found = tokio::task::spawn_blocking(move || group.look_up(&asked)).await;
        found.map_err(|error| Failure::error(format!("looking it up: {error}")))??.into_outcome()
    }

    fn look_up(&self, request: &RemotingCommand) -> Result<Found, Failure> {
        match request.request_code() {
            RequestCode::VIEW_MESSAGE_BY_ID => self.view_message(request),
            RequestCode::QUERY_MESSAGE => self.query_message(request),
            _ => self.query_consume_queue(request),
        }
    }

    fn view_message(&self, request: &RemotingCommand) -> Result<Found, Failure> {
        let header = ViewMessageRequest::decode(request)?;
        let found = u64::try_from(header.physical_offset).ok().map(|place| self.0.store.message_at(place));
        let found = found.transpose().map_err(|error| Failure::error(format!("reading the message: {error}")))?;
        Ok(match found.flatten() {
            Some(message) => Found::All(success(request).with_body(message)),
            None => Found::Nothing(Err(Failure::error(format!(
                "can not find message by the offset, {}",
                header.physical_offset
            )))),
        })
    }

    fn query_message(&self, request: &RemotingCommand) -> Result<Found, Failure> {
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
        let is_all = header.unique_key_query || found.messages.len() >= messages_max;
        Ok(match (is_hit, is_all) {
            (true, true) => Found::All(answer),
            (true, false) => Found::Some(answer),
            (false, _) => Found::Nothing(Ok(answer)),
        })
    }

    fn query_consume_queue(&self, request: &RemotingCommand) -> Result<Found, Failure> {
        let header = QueryConsumeQueueRequest::decode(request)?;
        let topic = self.0.state.topic(&header.topic);
        let queue_id = u32::try_from(header.queue_id).ok();
        let queue_id = queue_id.filter(|queue_id| topic.as_ref().is_some_and(|topic| *queue_id < topic.queues()));
        let Some(queue_id) = queue_id else {
            let unknown = Failure::error(format!("{}@{} is not exist!", header.queue_id, header.topic));
            return Ok(Found::Nothing(Err(unknown)));
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
        let answer = success(request).with_body(body.encode());
        Ok(match entries.len() {
            found if found == count => Found::All(answer),
            _ => Found::Some(answer),
        })
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
