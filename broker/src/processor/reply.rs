//! Replies to requests between clients: codes 324 and 325, and 326, by which a requester gets its reply.
//!
//! A request is an ordinary message that names its requester. The consumer that handles it sends the reply to the
//! broker, which hands it to the requester on the connection that its heartbeats came in on. That may be a connection of
//! another replica, when the leader has just changed: then it goes through that replica.

use std::net::SocketAddr;
use std::time::Duration;

use protocol::header::{DEFAULT_REGION, PushReplyRequest, SendRequest, SendResponse};
use protocol::message::{OffsetMessageId, PropertiesBuilder, property};
use protocol::{RemotingCommand, RequestCode, ResponseCode};

use super::answer::{Failure, Outcome, success};
use super::send::{Prepared, Ready, appended, plain_address, wire_offset, wire_queue};
use super::stats::MessageKind;
use super::{Group, now};

/// Time for the requester to take its reply. The responder waits 3 s for all of it.
const PUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The field by which a leader tells another replica whose reply it is.
const RELAYED_CLIENT: &str = "relayedClient";

impl Group {
    /// Stores a reply and hands it to the client that waits for it. It succeeds if that client takes it.
    pub(super) async fn send_reply(&self, request: &RemotingCommand, origin: SocketAddr) -> Outcome {
        let sent = SendRequest::decode(request)?;
        let ready = loop {
            match self.prepare_send(request, origin) {
                Ok(Prepared::Ready(ready)) => break ready,
                Ok(Prepared::Create(topic)) => self.create_topic(topic).await?,
                Err(failure) => return Self::with_region(request, failure),
            }
        };
        let properties = PropertiesBuilder::from_text(sent.properties);
        let client_id = properties.get(property::REPLY_TO_CLIENT).unwrap_or_default().to_owned();
        if client_id.is_empty() {
            return Self::with_region(
                request,
                Failure::error(format!(
                    "the reply does not say whose it is: it has no property {}",
                    property::REPLY_TO_CLIENT
                )),
            );
        }
        let push = self.push_command(&sent, properties, origin)?.with_body(request.body.clone());
        let Ready { records, count, target, .. } = ready;
        let bytes = records.len() as u64;
        let (pushed, stored) = tokio::join!(self.push_reply(&client_id, push), self.append(records, count));
        let stored = stored?
            .first()
            .ok_or_else(|| Failure::error("nothing was stored"))
            .and_then(|outcome| appended(outcome, &target.topic))?;
        self.0.stats.count_put(&target.topic, MessageKind::Normal, 1, bytes);
        let mut answer = match pushed {
            Ok(()) => success(request),
            Err(why) => RemotingCommand::response_to(request, ResponseCode::SYSTEM_ERROR)
                .with_remark(format!("push reply message to {client_id} fail: {why}")),
        };
        let id = OffsetMessageId {
            store_host: self.0.settings.client_addr,
            physical_offset: wire_offset(stored.physical_offset),
        };
        SendResponse {
            msg_id: &id.to_string(),
            queue_id: wire_queue(target.queue_id),
            queue_offset: wire_offset(stored.queue_offset),
            transaction_id: None,
            region: Some(DEFAULT_REGION),
            trace_on: Some(true),
            recall_handle: None,
        }
        .encode_into(&mut answer.ext);
        Ok(answer)
    }

    /// The request that hands a reply to its requester.
    fn push_command(
        &self,
        sent: &SendRequest<'_>,
        mut properties: PropertiesBuilder,
        origin: SocketAddr,
    ) -> Result<RemotingCommand, Failure> {
        let store_timestamp = self.stamp_ms();
        let push_time = now().wall_ms.to_string();
        for (name, value) in [
            (property::MSG_REGION, DEFAULT_REGION),
            (property::TRACE_ON, "true"),
            (property::PUSH_REPLY_TIME, &push_time),
        ] {
            properties.set(name, value).map_err(|error| Failure::error(format!("property {name}: {error}")))?;
        }
        let header = PushReplyRequest {
            producer_group: sent.producer_group.to_owned(),
            topic: sent.topic.clone(),
            default_topic: sent.default_topic.to_owned(),
            default_topic_queue_nums: sent.default_topic_queue_nums,
            queue_id: sent.queue_id,
            sys_flag: sent.sys_flag,
            born_timestamp: sent.born_timestamp,
            flag: sent.flag,
            properties: Some(properties.into_text()),
            reconsume_times: sent.reconsume_times,
            unit_mode: sent.unit_mode,
            born_host: plain_address(origin).to_string(),
            store_host: self.0.settings.client_addr.to_string(),
            store_timestamp,
        };
        let mut push = RemotingCommand::request(RequestCode::PUSH_REPLY_MESSAGE_TO_CLIENT);
        header.encode_into(&mut push.ext);
        Ok(push)
    }

    /// Hands a reply to its requester, wherever it is connected.
    async fn push_reply(&self, client_id: &str, push: RemotingCommand) -> Result<(), String> {
        if let Some(pushed) = self.push_here(client_id, &push).await {
            return pushed;
        }
        let mut relayed = push;
        relayed.ext.push(RELAYED_CLIENT, client_id);
        let mut why = "the client is not connected to this broker".to_owned();
        for member in self.other_members() {
            let (name, origin) = (&self.0.settings.broker_name, self.0.settings.client_addr);
            match self.0.peers.forward(name, member, origin, &relayed, PUSH_TIMEOUT).await {
                Ok(answer) if answer.is_success() => return Ok(()),
                Ok(answer) if answer.response_code() == ResponseCode::CONSUMER_NOT_ONLINE => {}
                Ok(answer) => return Err(answer.remark.unwrap_or_default()),
                Err(error) => why = error.to_string(),
            }
        }
        Err(why)
    }

    /// Hands a reply to a requester that is connected here; none if it is not.
    async fn push_here(&self, client_id: &str, push: &RemotingCommand) -> Option<Result<(), String>> {
        let client = self.0.clients.producer_by_id(client_id)?;
        Some(match client.call(push.clone(), PUSH_TIMEOUT).await {
            Ok(answer) if answer.is_success() => Ok(()),
            Ok(answer) => Err(format!("the client answers {}: {}", answer.code, answer.remark.unwrap_or_default())),
            Err(error) => Err(error.to_string()),
        })
    }

    /// Passes a reply on to a requester that is connected here, for the leader.
    pub(super) async fn pass_reply_on(&self, request: &RemotingCommand) -> Outcome {
        let client_id = request.ext.get(RELAYED_CLIENT).unwrap_or_default();
        let mut push = RemotingCommand::request(RequestCode::PUSH_REPLY_MESSAGE_TO_CLIENT);
        push.body = request.body.clone();
        for (name, value) in request.ext.iter().filter(|(name, _)| *name != RELAYED_CLIENT) {
            push.ext.push(name, value);
        }
        match self.push_here(client_id, &push).await {
            Some(Ok(())) => Ok(success(request)),
            Some(Err(why)) => Err(Failure::error(why)),
            None => Err(Failure::refused(ResponseCode::CONSUMER_NOT_ONLINE, "the client is not connected here")),
        }
    }
}
