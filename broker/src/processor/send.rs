//! Sending: codes 10, 310 and 320.
//!
//! On the leader a send is checked, encoded and handed to the sequencer on the task that read it; the answer is written
//! by whoever applies the entry. Nothing is spawned and nothing waits, unless a topic has to be created first. On any
//! other replica the request goes to the leader, or is held until there is one.

mod plan;

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use protocol::header::{DEFAULT_REGION, SendRequest, SendResponse};
use protocol::message::{NewMessage, OffsetMessageId, SysFlag, decode_batch, encode_record, inflate};
use protocol::{GroupName, RemotingCommand, ResponseCode};
use remoting::Responder;
use tokio::sync::oneshot;

pub(super) use self::plan::Target;
use self::plan::{Additions, Lookup, Plan, Scan, SendRules, Sent};
pub(crate) use self::plan::{OWN_RETRY_LIMIT_VERSION, PROPERTIES_BYTES_MAX, dead_letter_topic, retry_topic, too_large};
use super::Group;
use super::answer::{Failure, Outcome, success};
use super::journey::FollowedSend;
use super::waiting::WAITING_PROPERTIES_BYTES_MAX;
use crate::delay_levels::SCHEDULE_TOPIC;
use crate::forward::{Place, SEND_PATIENCE, Source};
use crate::sequencer::{AppendError, AppendResult};
use crate::state_machine::command::PutMode;
use crate::state_machine::half::HALF_TOPIC;
use crate::state_machine::timer::TIMER_TOPIC;
use crate::state_machine::{Appended, Command, GroupConfig, MessageOutcome, MessageRefused, TopicConfig};
use crate::trace::{FOLLOWED_MAX, Followed, FollowedMessage, Passage, said_by_client};

/// Bits of a producer's sysFlag that are stored as they come: compressed, and how.
const SYS_FLAG_KEPT: i32 = SysFlag::COMPRESSED | 0x700;

/// Most messages in one batch.
const BATCH_MESSAGES_MAX: u32 = 16_384;

/// Room in a record for everything but body, topic and the producer's properties.
const RECORD_ROOM: usize = 256;

/// Messages ready for the sequencer, and what their answer needs.
pub(crate) struct Ready {
    pub(super) records: BytesMut,
    pub(super) count: u32,
    pub(super) target: Target,
    pub(super) unique_key: Option<String>,
    /// Those whose way is noted.
    pub(super) followed: Vec<FollowedMessage>,
}

/// What the messages of a batch say about being followed.
#[derive(Default)]
struct Members {
    followed: Vec<FollowedMessage>,
    /// Any of them says something.
    said: bool,
}

impl Members {
    fn note(&mut self, properties: &str, at: usize, bytes: usize) {
        let Some(parent) = said_by_client(properties) else { return };
        self.said = true;
        if parent.sampled && self.followed.len() < FOLLOWED_MAX {
            self.followed.push(FollowedMessage { followed: Followed(Some(parent)), at, bytes: Some(bytes as u64) });
        }
    }
}

impl Lookup for Group {
    fn topic(&self, topic: &str) -> Option<Arc<TopicConfig>> {
        self.0.state.topic(topic)
    }

    fn group(&self, group: &str) -> Option<Arc<GroupConfig>> {
        self.0.state.group(group)
    }

    fn holds_queue(&self, group: &GroupName) -> bool {
        self.0.state.holds_queue(group, self.lease_ms())
    }
}

impl Group {
    pub(super) fn serve_send(&self, request: RemotingCommand, responder: Responder, source: Source) {
        let began = Instant::now();
        if !matches!(self.place(), Place::Here { .. }) {
            self.serve_at_leader(request, responder, source, SEND_PATIENCE);
            return;
        }
        match self.prepare_send(&request, responder.peer_addr()) {
            Ok(Prepared::Ready(ready)) => {
                let group = self.clone();
                let Ready { records, count, target, unique_key, followed } = ready;
                let bytes = records.len() as u64;
                let followed = FollowedSend::new(followed, began);
                let passage = followed.as_ref().map(|send| Arc::clone(&send.passage));
                self.0.sequencer.append_followed(records.freeze(), count, passage, move |result| {
                    let followed = followed.map(|send| (send, result.clone()));
                    if let Some((send, Ok(_))) = &followed {
                        group.note_applied(&send.passage);
                    }
                    group.finish_send(request, responder, source, &target, unique_key, bytes, result);
                    group.0.stats.send_times.note(began.elapsed());
                    match followed {
                        None => {}
                        // It goes on elsewhere, and is followed there.
                        Some((_, Err(error))) if error.is_not_proposed() => {}
                        Some((send, fate)) => {
                            group.end_send(send, &target, bytes, fate.as_deref());
                        }
                    }
                });
            }
            Ok(Prepared::Create(_)) => self.serve_at_leader(request, responder, source, SEND_PATIENCE),
            Err(failure) => {
                self.0.stats.put_failed.add(1);
                self.reply(&request, responder, Err(failure).or_else(|f| Self::with_region(&request, f)));
            }
        }
    }

    /// Runs where the entry was applied, or where it became clear that it will not be.
    #[expect(clippy::too_many_arguments, reason = "it is the tail of one function, cut off by a callback")]
    fn finish_send(
        &self,
        request: RemotingCommand,
        responder: Responder,
        source: Source,
        target: &Target,
        unique_key: Option<String>,
        bytes: u64,
        result: AppendResult<'_>,
    ) {
        match result {
            Err(error) if error.is_not_proposed() => {
                // Leadership has moved on, or too much is in flight: whoever leads now may still take it.
                self.serve_at_leader(request, responder, source, SEND_PATIENCE);
            }
            result => {
                let outcome = self.send_outcome(&request, target, unique_key, bytes, result);
                self.reply(&request, responder, outcome);
            }
        }
    }

    fn send_outcome(
        &self,
        request: &RemotingCommand,
        target: &Target,
        unique_key: Option<String>,
        bytes: u64,
        result: AppendResult<'_>,
    ) -> Outcome {
        let stored = result.map_err(Failure::from).and_then(|outcomes| {
            let mut first = None;
            let mut msg_id = String::with_capacity(33 * outcomes.len());
            for outcome in outcomes {
                let Appended { queue_offset, physical_offset } = appended(outcome, &target.topic)?;
                first.get_or_insert(queue_offset);
                let separator = if msg_id.is_empty() { "" } else { "," };
                let id = OffsetMessageId {
                    store_host: self.0.settings.client_addr,
                    physical_offset: wire_offset(physical_offset),
                };
                let _ = write!(msg_id, "{separator}{id}");
            }
            if !target.half {
                self.0.stats.count_put(&target.topic, target.kind(), outcomes.len() as u64, bytes);
            }
            Ok((first.ok_or_else(|| Failure::error("nothing was stored"))?, msg_id))
        });
        let (first_offset, msg_id) = stored.inspect_err(|_| self.0.stats.put_failed.add(1))?;
        let mut answer = success(request);
        let recall_handle = target
            .due_ms
            .zip(unique_key.as_deref())
            .map(|(due_ms, unique_key)| self.recall_handle(&target.topic, due_ms, unique_key));
        SendResponse {
            msg_id: &msg_id,
            queue_id: wire_queue(target.queue_id),
            queue_offset: wire_offset(first_offset),
            transaction_id: unique_key.as_deref(),
            region: Some(DEFAULT_REGION),
            trace_on: Some(true),
            recall_handle: recall_handle.as_deref(),
        }
        .encode_into(&mut answer.ext);
        Ok(answer)
    }

    /// Does a send on the leader, with time to create what is missing.
    pub(super) async fn send_patiently(&self, request: &RemotingCommand, origin: SocketAddr) -> Outcome {
        let began = Instant::now();
        // A topic and its dead-letter topic at most.
        for _ in 0..3 {
            let ready = match self.prepare_send(request, origin) {
                Ok(Prepared::Ready(ready)) => ready,
                Ok(Prepared::Create(topic)) => {
                    self.create_topic(topic).await?;
                    continue;
                }
                Err(failure) => {
                    self.0.stats.put_failed.add(1);
                    return Self::with_region(request, failure);
                }
            };
            let Ready { records, count, target, unique_key, followed } = ready;
            let bytes = records.len() as u64;
            let followed = FollowedSend::new(followed, began);
            let passage = followed.as_ref().map(|send| Arc::clone(&send.passage));
            let result = self.append_followed(records, count, passage).await;
            let fate = result.as_deref().map_err(Clone::clone);
            let outcome = self.send_outcome(request, &target, unique_key, bytes, fate);
            self.0.stats.send_times.note(began.elapsed());
            if let Some(send) = followed {
                self.end_send(send, &target, bytes, result.as_deref());
            }
            return outcome;
        }
        Err(Failure::error("the topic was deleted while it was being created"))
    }

    /// Puts records into the log and waits until they are applied.
    pub(crate) async fn append(&self, records: BytesMut, count: u32) -> Result<Vec<MessageOutcome>, AppendError> {
        self.append_followed(records, count, None).await
    }

    async fn append_followed(
        &self,
        records: BytesMut,
        count: u32,
        passage: Option<Arc<Passage>>,
    ) -> Result<Vec<MessageOutcome>, AppendError> {
        let (sender, receiver) = oneshot::channel();
        let (group, noted) = (self.clone(), passage.clone());
        self.0.sequencer.append_followed(records.freeze(), count, passage, move |result| {
            if let (Some(passage), Ok(_)) = (&noted, &result) {
                group.note_applied(passage);
            }
            let _ = sender.send(result.map(<[MessageOutcome]>::to_vec));
        });
        receiver.await.unwrap_or_else(|_| Err(AppendError::Unknown { reason: "the group has stopped".to_owned() }))
    }

    /// Creates a topic that a request needs, and lets the name servers know.
    pub(crate) async fn create_topic(&self, topic: TopicConfig) -> Result<(), Failure> {
        let name = topic.name.clone();
        let command =
            Command::PutTopics { topics: vec![topic], mode: PutMode::CreateOnly, stamped_ms: self.stamp_ms() };
        self.propose(command).await?;
        tracing::info!(topic = %name, "topic is created on demand");
        self.register_topics();
        Ok(())
    }

    /// Refuses a message of a client while the disk has no room for it.
    pub(super) fn check_room(&self) -> Result<(), Failure> {
        match self.0.disk.borrow().refusal() {
            None => Ok(()),
            Some(reason) => {
                Err(Failure::refused(ResponseCode::SERVICE_NOT_AVAILABLE, format!("not proposed: {reason}")))
            }
        }
    }

    pub(super) fn prepare_send(&self, request: &RemotingCommand, origin: SocketAddr) -> Result<Prepared, Failure> {
        self.check_room()?;
        let sent = SendRequest::decode(request)?;
        let properties = Scan::of(sent.properties);
        let (settings, live) = (&self.0.settings, self.live());
        let store_timestamp = self.stamp_ms();
        let plan = plan::plan(
            &Sent {
                request: &sent,
                properties: &properties,
                body_bytes: request.body.len(),
                client_version: request.version,
                producer_ip: origin.ip(),
                now_ms: store_timestamp,
            },
            &SendRules {
                broker_name: &settings.broker_name,
                auto_create_topics: live.auto_create_topics,
                auto_create_queues: live.auto_create_queues,
                message_bytes_max: live.message_bytes_max,
                permission: live.permission,
                delay_levels: &settings.delay_levels,
                timer_delay_max: settings.timer_delay_max,
            },
            self,
            |queues| self.next_queue(queues),
        )?;
        let target = match plan {
            Plan::Store(target) => target,
            Plan::Create(topic) => return Ok(Prepared::Create(topic)),
        };
        if target.half {
            self.check_transaction_room()?;
        }
        if target.due_ms.is_some() {
            self.check_timer_room()?;
        }
        let tracer = self.0.tracer.as_ref();
        let kept = SysFlag(sent.sys_flag & SYS_FLAG_KEPT);
        let (stored_topic, stored_queue) = match target.delay_level {
            Some(level) => (SCHEDULE_TOPIC, level - 1),
            None if target.half => (HALF_TOPIC, 0),
            None if target.due_ms.is_some() => (TIMER_TOPIC, 0),
            None => (target.topic.as_str(), target.queue_id),
        };
        let waits = target.waits();
        let template = NewMessage {
            topic: stored_topic,
            queue_id: wire_queue(stored_queue),
            flag: sent.flag,
            sys_flag: if target.multi_tag { kept.with(SysFlag::MULTI_TAGS) } else { kept },
            born_timestamp: sent.born_timestamp,
            born_host: plain_address(origin),
            store_timestamp,
            store_host: settings.client_addr,
            reconsume_times: sent.reconsume_times.max(0),
            prepared_transaction_offset: 0,
            body: &request.body,
            properties: "",
        };
        let mut additions = Additions {
            cluster_name: &settings.cluster_name,
            region: DEFAULT_REGION,
            unique_key: None,
            real: waits.then_some((target.topic.as_str(), target.queue_id)),
            transaction_id: None,
            due_ms: target.due_ms,
        };
        let mut text = String::with_capacity(sent.properties.len() + RECORD_ROOM);
        if sent.batch {
            let inflated = inflate_batch(kept, &request.body, live.message_bytes_max)?;
            let template = match &inflated {
                Some(body) => NewMessage { body, sys_flag: template.sys_flag.without(SYS_FLAG_KEPT), ..template },
                None => template,
            };
            let (records, count, members) = self.encode_batch(&template, additions, &mut text)?;
            let Members { followed, said } = members;
            let followed =
                tracer.map(|tracer| tracer.follow_batch(sent.properties, followed, said)).unwrap_or_default();
            let unique_key = properties.unique_key.map(str::to_owned);
            return Ok(Prepared::Ready(Ready { records, count, target, unique_key, followed }));
        }
        let followed = tracer.and_then(|tracer| tracer.follow(sent.properties)).map(FollowedMessage::whole);
        let followed = followed.into_iter().collect();
        let unique_key = match properties.unique_key {
            Some(key) => key.to_owned(),
            None => self.new_unique_key(store_timestamp),
        };
        if properties.unique_key.is_none() {
            additions.unique_key = Some(&unique_key);
        }
        additions.transaction_id = target.half.then_some(&unique_key);
        plan::complete_properties(sent.properties, &properties, additions, &mut text);
        if text.len() > if waits { WAITING_PROPERTIES_BYTES_MAX } else { PROPERTIES_BYTES_MAX } {
            return Err(too_large(live.message_bytes_max));
        }
        let message = NewMessage { properties: &text, ..template };
        let mut records = BytesMut::with_capacity(request.body.len() + text.len() + RECORD_ROOM);
        encode_record(&message, &mut records)
            .map_err(|error| Failure::refused(ResponseCode::MESSAGE_ILLEGAL, error.to_string()))?;
        Ok(Prepared::Ready(Ready { records, count: 1, target, unique_key: Some(unique_key), followed }))
    }

    fn encode_batch(
        &self,
        template: &NewMessage<'_>,
        additions: Additions<'_>,
        text: &mut String,
    ) -> Result<(BytesMut, u32, Members), Failure> {
        let mut records = BytesMut::with_capacity(template.body.len() * 2);
        let mut members = Members::default();
        let mut count = 0;
        for item in decode_batch(template.body) {
            let item = item.map_err(|error| illegal_batch(&error))?;
            if count == BATCH_MESSAGES_MAX {
                return Err(illegal_batch(&format_args!("more than {BATCH_MESSAGES_MAX} messages")));
            }
            let scan = Scan::of(item.properties);
            if scan.is_delayed() || scan.transaction {
                return Err(illegal_batch(&"its messages may be neither delayed nor transactional"));
            }
            text.clear();
            plan::complete_properties(item.properties, &scan, additions, text);
            if text.len() > PROPERTIES_BYTES_MAX {
                return Err(too_large(self.live().message_bytes_max));
            }
            let message = NewMessage { flag: item.flag, body: item.body, properties: text, ..*template };
            let before = records.len();
            encode_record(&message, &mut records).map_err(|error| illegal_batch(&error))?;
            if self.0.tracer.is_some() {
                members.note(item.properties, count as usize, records.len() - before);
            }
            count += 1;
        }
        if count == 0 { Err(illegal_batch(&"it is empty")) } else { Ok((records, count, members)) }
    }

    /// The answer for a refused send, with the two fields that clients get even then.
    pub(super) fn with_region(request: &RemotingCommand, failure: Failure) -> Outcome {
        match failure {
            Failure::Refused(code, remark) => Ok(RemotingCommand::response_to(request, code)
                .with_remark(remark)
                .with_ext("MSG_REGION", DEFAULT_REGION)
                .with_ext("TRACE_ON", "true")),
            other => Err(other),
        }
    }
}

fn illegal_batch(error: &dyn std::fmt::Display) -> Failure {
    Failure::refused(ResponseCode::MESSAGE_ILLEGAL, format!("the batch is illegal: {error}"))
}

/// The messages of a batch that its client compressed as a whole, as the Python client does; none if it did not.
fn inflate_batch(sys_flag: SysFlag, body: &[u8], bytes_max: usize) -> Result<Option<Vec<u8>>, Failure> {
    if !sys_flag.is_compressed() {
        return Ok(None);
    }
    let inflated = inflate(sys_flag, body).map_err(|error| illegal_batch(&error))?;
    if inflated.len() > bytes_max { Err(too_large(bytes_max)) } else { Ok(Some(inflated)) }
}

/// What a send amounts to.
pub(super) enum Prepared {
    Ready(Ready),
    Create(TopicConfig),
}

/// Where a message is, or why it is nowhere.
pub(crate) fn appended(outcome: &MessageOutcome, topic: &str) -> Result<Appended, Failure> {
    match outcome {
        MessageOutcome::Appended(appended) => Ok(*appended),
        MessageOutcome::Refused(MessageRefused::NoTopic) => Err(Failure::no_topic(topic)),
        MessageOutcome::Refused(why) => Err(Failure::refused(ResponseCode::INVALID_PARAMETER, why.to_string())),
    }
}

/// An address as records hold it: one that only looks like version 6 is version 4.
pub(crate) fn plain_address(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => SocketAddr::from((ip, address.port())),
            None => address,
        },
        IpAddr::V4(_) => address,
    }
}

/// An offset as the wire has it.
///
/// # Panics
/// If it is beyond what a log can hold.
pub(crate) fn wire_offset(offset: u64) -> i64 {
    i64::try_from(offset).expect("offsets stay below 2^63")
}

/// A queue id as the wire has it.
///
/// # Panics
/// If it is beyond what a topic can have.
pub(crate) fn wire_queue(queue_id: u32) -> i32 {
    i32::try_from(queue_id).expect("a topic has fewer than 2^31 queues")
}
