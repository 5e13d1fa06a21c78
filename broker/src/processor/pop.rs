//! Popping: codes 200050 to 200055 and 200151.
//!
//! A consumer in POP mode has no queues of its own. It asks for messages of any queue, gets some that nobody else gets
//! for a time it names, and acknowledges each. All of that is replicated state, so only the leader serves it, each step
//! through the log; see [`crate::state_machine::pop`].
//!
//! ```text
//!  pop --> choose from the queues --> steps --> log --> applied: answer with the messages
//!             |  nothing there
//!             '--> parked with its group --> a message arrives, or one may be given again --> once more
//! ```
//!
//! A request that reaches another replica waits there for the leader's answer. One that is parked when the leadership is
//! lost goes on to the new leader.

mod acknowledge;
mod choose;
mod steps;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use protocol::header::{
    ANY_QUEUE, NotificationRequest, NotificationResponse, ORDER_REVIVE_QUEUE, PeekRequest, PollingInfoRequest,
    PollingInfoResponse, PopRequest, PopResponse,
};
use protocol::message::{NewMessage, RecordView, encode_record};
use protocol::{
    GroupName, PoppedQueue, RemotingCommand, RequestCode, ResponseCode, TopicName, msg_offset_info, order_count_info,
    start_offset_info,
};
use remoting::Responder;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::answer::{Failure, Outcome, success};
use super::filter::{self, MATCH_ALL, MessageFilter};
use super::journey::{GivenPop, PullTimes};
use super::pull::{Held, filter_failure, no_permission};
use super::send::{dead_letter_topic, wire_offset, wire_queue};
use super::send_back::retried_properties;
use super::stats::MessageKind;
use super::{Group, now};
use crate::forward::{Patience, Place, Repeat, Source};
use crate::pull_hold::{Wait, Wanted};
use crate::state_machine::command::GroupQueue;
use crate::state_machine::pop::{Order, PopOutcome, PopRefused};
use crate::state_machine::topic::PERM_READ;
use crate::state_machine::{ApplyReply, Command, CommandRefused, CommandReply};

pub(super) use self::choose::BusyQueues;
use self::choose::{Choice, Chosen, bytes_left};
pub(super) use self::steps::PopSteps;

/// Most messages of one pop, as RocketMQ has it.
const MESSAGES_MAX: i32 = 32;
/// Longest time that a pop is held.
const HOLD_MAX: Duration = Duration::from_secs(30);
/// So much longer a client waits for the answer than it lets the broker hold the request; Java: 10 s.
const ANSWER_ALLOWANCE: Duration = Duration::from_secs(2);
/// After so long without a leader a pop counts anew how long it may still be held.
const LEADER_HOLD: Duration = Duration::from_millis(500);
/// Longest attempt id.
const ATTEMPT_BYTES_MAX: usize = 128;
/// How often a pop chooses anew when others take what it saw.
const CHOICES_MAX: usize = 8;
/// Deliveries before a message is dead, for a group that does not say.
const RETRIES_DEFAULT: u32 = 16;

/// A pop that has passed all checks.
#[derive(Debug, Clone)]
pub(crate) struct PopTask {
    group: GroupName,
    topic: TopicName,
    /// None: any of them.
    queue_id: Option<u32>,
    /// So many there are.
    queues: u32,
    messages_max: usize,
    invisible_ms: i64,
    /// See [`protocol::header::PopStart`].
    start: i32,
    filter: MessageFilter,
    order: Option<Order>,
    /// So often a message is given again before it is dead.
    retries_max: u32,
}

/// What a request looks at, whatever it does with it.
struct Wish<'a> {
    group: &'a GroupName,
    topic: &'a TopicName,
    queue_id: i32,
    order: bool,
    attempt_id: Option<String>,
}

/// What was given of one queue.
type Given = (GroupQueue, Vec<Chosen>);

/// What a pop has taken.
struct Popped {
    popped_ms: i64,
    given: Vec<Given>,
    /// It knew what to take.
    read: std::time::Instant,
}

/// Why waiting has ended.
enum Woken {
    /// There may be something now, or the time is over.
    Look,
    /// Too many wait.
    Full,
    /// Nobody wants an answer any more.
    Gone,
}

impl Group {
    /// Serves a pop or a notification, which may be held for long.
    pub(super) fn serve_pop(&self, request: RemotingCommand, responder: Responder, source: Source) {
        let poll_time = match request.request_code() {
            RequestCode::POP_MESSAGE => PopRequest::decode(&request).map(|header| header.poll_time),
            _ => NotificationRequest::decode(&request).map(|header| header.poll_time),
        };
        let budget = match poll_time {
            Ok(poll_time) => held_for(poll_time),
            Err(error) => return self.reply(&request, responder, Err(error.into())),
        };
        let group = self.clone();
        self.0.tasks.spawn(async move {
            let mut request = request;
            let deadline = Instant::now() + budget;
            let connection = responder.connection().map(|connection| connection.id().as_u64());
            if matches!(group.place(), Place::Here { .. }) {
                let mut given = None;
                let outcome = Box::pin(group.pop_until(&request, deadline, connection, &mut given)).await;
                // Leadership that is lost meanwhile is another's work.
                if source.is_node() || !matches!(outcome, Err(Failure::NotLeading(_))) {
                    group.reply(&request, responder, outcome);
                    return given.iter().for_each(|given| group.end_pop(given));
                }
            }
            let origin = responder.peer_addr();
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                // The leader holds it as long as the client would still wait.
                request.ext.push("pollTime", &left.as_millis().to_string());
                let patience = Patience { hold: LEADER_HOLD, total: left + ANSWER_ALLOWANCE, repeat: Repeat::Harmless };
                let answer = Box::pin(group.at_leader(&request, origin, source, patience)).await;
                let is_held = source == Source::Client && !group.0.stop.is_cancelled() && Instant::now() < deadline;
                match answer {
                    Some(answer) if is_held && answer.response_code() == ResponseCode::SERVICE_NOT_AVAILABLE => {}
                    Some(answer) => return responder.send(answer),
                    None => return responder.forget(),
                }
            }
        });
    }

    /// Serves a pop or a notification as the leader.
    pub(super) async fn pop(&self, request: &RemotingCommand) -> Outcome {
        let poll_time = match request.request_code() {
            RequestCode::POP_MESSAGE => PopRequest::decode(request)?.poll_time,
            _ => NotificationRequest::decode(request)?.poll_time,
        };
        let mut given = None;
        let outcome = self.pop_until(request, Instant::now() + held_for(poll_time), None, &mut given).await;
        // Who asked for it passes the answer on.
        given.iter().for_each(|given| self.end_pop(given));
        outcome
    }

    /// What was given is told to `told`, if anybody follows messages.
    async fn pop_until(
        &self,
        request: &RemotingCommand,
        deadline: Instant,
        connection: Option<u64>,
        told: &mut Option<GivenPop>,
    ) -> Outcome {
        match request.request_code() {
            RequestCode::POP_MESSAGE => {
                self.give(request, &PopRequest::decode(request)?, deadline, connection, told).await
            }
            _ => self.tell(request, &NotificationRequest::decode(request)?, deadline, connection).await,
        }
    }

    async fn give(
        &self,
        request: &RemotingCommand,
        header: &PopRequest,
        deadline: Instant,
        connection: Option<u64>,
        told: &mut Option<GivenPop>,
    ) -> Outcome {
        let mut parked = None;
        loop {
            // What it asks for may be changed or deleted while it waits.
            let task = self.check_pop(header)?;
            for _ in 0..CHOICES_MAX {
                let began = now().instant;
                let Popped { popped_ms, given, read } = self.take_and_stir(&task).await?;
                if !given.is_empty() {
                    let taken = Some(now().instant);
                    let answer = self.given(request, &task, popped_ms, &given);
                    *told = self.0.tracer.is_some().then(|| GivenPop {
                        topic: task.topic,
                        group: task.group,
                        records: answer.body.clone(),
                        times: PullTimes { parked, began, read, taken },
                    });
                    return Ok(answer);
                }
                if !self.has_something(&task) {
                    break;
                }
            }
            if Instant::now() >= deadline {
                return Ok(self.given_nothing(request, &task, ResponseCode::POLLING_TIMEOUT));
            }
            parked.get_or_insert_with(|| now().instant);
            match self.wait_for_some(&task, deadline, connection).await? {
                Woken::Look => {}
                Woken::Full => return Ok(self.given_nothing(request, &task, ResponseCode::POLLING_FULL)),
                Woken::Gone => return Err(Failure::Silence),
            }
        }
    }

    /// Whether there is something to pop: code 200054.
    async fn tell(
        &self,
        request: &RemotingCommand,
        header: &NotificationRequest,
        deadline: Instant,
        connection: Option<u64>,
    ) -> Outcome {
        let answer = |has_msg, polling_full| {
            let mut answer = success(request);
            NotificationResponse { has_msg, polling_full }.encode_into(&mut answer.ext);
            Ok(answer)
        };
        loop {
            let task = self.check_wish(&Wish {
                group: &header.group,
                topic: &header.topic,
                queue_id: header.queue_id,
                order: header.order,
                attempt_id: header.attempt_id.clone(),
            })?;
            if self.has_something(&task) {
                return answer(true, false);
            }
            if Instant::now() >= deadline {
                return answer(false, false);
            }
            match self.wait_for_some(&task, deadline, connection).await? {
                Woken::Look => {}
                Woken::Full => return answer(false, true),
                Woken::Gone => return Err(Failure::Silence),
            }
        }
    }

    /// The messages that a pop would give: code 200052.
    pub(super) async fn peek(&self, request: &RemotingCommand) -> Outcome {
        let header = PeekRequest::decode(request)?;
        check_count(header.max_msg_nums)?;
        self.be_sure_to_lead().await?;
        let wish = Wish {
            group: &header.group,
            topic: &header.topic,
            queue_id: header.queue_id,
            order: false,
            attempt_id: None,
        };
        let task =
            PopTask { messages_max: usize::try_from(header.max_msg_nums).unwrap_or(0), ..self.check_wish(&wish)? };
        let (_, choices) = self.choose_some(&task).await?;
        let (mut body, mut count) = (BytesMut::new(), 0);
        for message in choices.iter().flat_map(|choice| &choice.messages) {
            body.extend_from_slice(&message.record);
            count += 1;
        }
        drop(choices);
        self.stir(&header.group, &header.topic);
        let code = if count > 0 { ResponseCode::SUCCESS } else { ResponseCode::PULL_NOT_FOUND };
        let remark = if count > 0 { "FOUND" } else { "NO_MESSAGE_IN_QUEUE" };
        let mut answer = RemotingCommand::response_to(request, code).with_remark(remark).with_body(body.freeze());
        let rest_num = wire_offset(self.rest(&task).saturating_sub(count));
        PopResponse { rest_num, ..nothing(0, 0, None) }.encode_into(&mut answer.ext);
        Ok(answer)
    }

    /// How many requests wait: code 200055.
    pub(super) fn polling_info(&self, request: &RemotingCommand) -> Outcome {
        let header = PollingInfoRequest::decode(request)?;
        let waiting = self.0.holds.waiting_of_group(&header.topic, &header.group);
        let mut answer = success(request);
        let polling_num = i32::try_from(waiting).unwrap_or(i32::MAX);
        PollingInfoResponse { polling_num }.encode_into(&mut answer.ext);
        Ok(answer)
    }

    /// The checks before a queue is read, in the order in which clients know their codes.
    fn check_pop(&self, header: &PopRequest) -> Result<PopTask, Failure> {
        check_count(header.max_msg_nums)?;
        let task = self.check_wish(&Wish {
            group: &header.group,
            topic: &header.topic,
            queue_id: header.queue_id,
            order: header.order,
            attempt_id: header.attempt_id.clone(),
        })?;
        let expression = header.expression.as_deref().unwrap_or(MATCH_ALL);
        let filter = filter::parse(expression, header.expression_type.as_deref()).map_err(filter_failure)?;
        Ok(PopTask {
            messages_max: usize::try_from(header.max_msg_nums).unwrap_or(0).max(1),
            invisible_ms: header.invisible_time.max(1),
            start: header.init_mode,
            filter,
            ..task
        })
    }

    fn check_wish(&self, wish: &Wish<'_>) -> Result<PopTask, Failure> {
        let live = self.live();
        if live.permission & PERM_READ == 0 {
            return Err(no_permission(format!("the broker[{}] popping message is forbidden", self.name())));
        }
        let topic = self.0.state.topic(wish.topic).ok_or_else(|| Failure::no_topic(wish.topic))?;
        if !topic.is_readable() {
            return Err(no_permission(format!("the topic[{}] popping message is forbidden", wish.topic)));
        }
        let queue_id = match wish.queue_id {
            ANY_QUEUE => None,
            wanted => {
                let queue_id = u32::try_from(wanted).ok().filter(|queue_id| *queue_id < topic.read_queues);
                Some(queue_id.ok_or_else(|| {
                    Failure::refused(
                        ResponseCode::INVALID_PARAMETER,
                        format!(
                            "queueId[{wanted}] is illegal, topic:[{}] topicConfig.readQueueNums:[{}] consumer:[{}]",
                            wish.topic, topic.read_queues, wish.group
                        ),
                    )
                })?)
            }
        };
        let group = self.0.state.group(wish.group);
        if group.is_none() && !live.auto_create_groups && !wish.group.is_system() {
            return Err(Failure::no_group(wish.group));
        }
        if group.as_ref().is_some_and(|group| !group.consume_enable) {
            return Err(no_permission(format!("subscription group no permission, {}", wish.group)));
        }
        let attempt = wish.attempt_id.clone().filter(|attempt| !attempt.is_empty());
        if attempt.as_ref().is_some_and(|attempt| attempt.len() > ATTEMPT_BYTES_MAX) {
            let remark = format!("attemptId is longer than {ATTEMPT_BYTES_MAX} bytes");
            return Err(Failure::refused(ResponseCode::INVALID_PARAMETER, remark));
        }
        let retries = group.and_then(|group| u32::try_from(group.retry_max_times).ok());
        Ok(PopTask {
            group: wish.group.clone(),
            topic: wish.topic.clone(),
            queue_id,
            queues: topic.read_queues,
            messages_max: 1,
            invisible_ms: 1,
            start: protocol::header::PopStart::FIRST,
            filter: MessageFilter::All,
            order: wish.order.then_some(Order { attempt }),
            retries_max: retries.unwrap_or(RETRIES_DEFAULT),
        })
    }

    /// Chooses from the queues of a task; the leader's time comes along.
    async fn choose_some(&self, task: &PopTask) -> Result<(i64, Vec<Choice>), Failure> {
        let popped_ms = self.stamp_ms();
        let queues = self.queues_of(task);
        let is_hot = |queue: &GroupQueue| {
            let committed = self.0.state.consumer_offset(&queue.group, &queue.topic, queue.queue_id);
            self.0.store.is_hot(&queue.topic, queue.queue_id, wire_offset(committed.unwrap_or(0)))
        };
        if queues.iter().all(is_hot) {
            return Ok((popped_ms, self.choose_from(task, &queues, popped_ms)?));
        }
        let (group, task) = (self.clone(), task.clone());
        let chosen = self.0.tasks.spawn_blocking(move || group.choose_from(&task, &queues, popped_ms)).await;
        let chosen = chosen.map_err(|error| Failure::error(format!("reading the queue: {error}")))?;
        Ok((popped_ms, chosen?))
    }

    fn choose_from(&self, task: &PopTask, queues: &[GroupQueue], popped_ms: i64) -> Result<Vec<Choice>, Failure> {
        let mut choices = Vec::new();
        let (mut count, mut bytes) = (0, 0);
        for queue in queues {
            if count >= task.messages_max || bytes_left(bytes) == 0 {
                break;
            }
            let wanted = task.messages_max - count;
            let Some(choice) = self.choose(task, queue, wanted, bytes_left(bytes), popped_ms)? else { continue };
            count += choice.messages.len();
            bytes += choice.messages.iter().map(|message| message.record.len()).sum::<usize>();
            if choice.changes() || !choice.dead.is_empty() {
                choices.push(choice);
            }
        }
        Ok(choices)
    }

    /// Takes what there is, and lets others have what is left.
    async fn take_and_stir(&self, task: &PopTask) -> Result<Popped, Failure> {
        let taken = self.take_some(task).await;
        if self.0.holds.waiting_of_group(&task.topic, &task.group) > 0 {
            // Someone may have to look again sooner than it thought.
            let is_short = task.invisible_ms < i64::try_from(HOLD_MAX.as_millis()).unwrap_or(i64::MAX)
                && taken.as_ref().is_ok_and(|popped| !popped.given.is_empty());
            if is_short || self.has_something(task) {
                self.0.holds.wake_one(&task.topic, &task.group);
            }
        }
        taken
    }

    /// Takes what there is, through the log. Empty if there is nothing, or others were quicker.
    async fn take_some(&self, task: &PopTask) -> Result<Popped, Failure> {
        let (popped_ms, mut choices) = self.choose_some(task).await?;
        let read = now().instant;
        for choice in &mut choices {
            let dead = std::mem::take(&mut choice.dead);
            if !dead.is_empty() {
                self.bury(&choice.queue, dead).await?;
            }
        }
        choices.retain(Choice::changes);
        if choices.is_empty() {
            return Ok(Popped { popped_ms, given: Vec::new(), read });
        }
        let outcomes = self.do_steps(choices.iter().map(Choice::step).collect()).await?;
        let mut given = Vec::with_capacity(choices.len());
        for (choice, outcome) in choices.into_iter().zip(outcomes) {
            match outcome {
                PopOutcome::Done if choice.messages.is_empty() => {}
                PopOutcome::Done => given.push(choice.into_given()),
                // Others were quicker, or the topic or its queues have gone.
                PopOutcome::Refused(PopRefused::Moved | PopRefused::NoQueue) => {}
                refused => {
                    tracing::warn!(group = self.name(), queue = ?choice.queue, ?refused, "nothing can be popped now");
                }
            }
        }
        Ok(Popped { popped_ms, given, read })
    }

    /// Moves messages that were given too often to the group's dead letters: one entry does both.
    async fn bury(&self, queue: &GroupQueue, dead: Vec<Chosen>) -> Result<(), Failure> {
        let name = queue.group.dlq_topic();
        if self.0.state.topic(&name).is_none() {
            self.create_topic(dead_letter_topic(name.clone())).await?;
        }
        let mut records = BytesMut::new();
        for message in &dead {
            let record = RecordView::parse(&message.record).map_err(|error| Failure::error(error.to_string()))?;
            let properties = retried_properties(&record, true)?;
            let copy = NewMessage {
                topic: &name,
                queue_id: 0,
                store_timestamp: self.stamp_ms(),
                store_host: self.0.settings.client_addr,
                reconsume_times: record.reconsume_times().saturating_add_unsigned(message.times),
                properties: properties.as_str(),
                ..record.to_new_message()
            };
            encode_record(&copy, &mut records).map_err(|error| Failure::error(error.to_string()))?;
        }
        let queue_offsets: Vec<u64> = dead.iter().map(|message| message.queue_offset).collect();
        let (count, bytes) = (queue_offsets.len() as u64, records.len() as u64);
        let command = Command::BuryPopped { queue: queue.clone(), queue_offsets, stamped_ms: self.stamp_ms() };
        match self.0.raft.propose(command.encode_with(&records)).await? {
            (ApplyReply::Command { reply: CommandReply::Done, .. }, _) => {
                self.0.stats.count_put(&name, MessageKind::Normal, count, bytes);
                Ok(())
            }
            // Acknowledged, given again or buried by another leader; or the topic has just been deleted.
            (
                ApplyReply::Command {
                    reply: CommandReply::Refused(CommandRefused::NotDue | CommandRefused::NoQueue),
                    ..
                },
                _,
            ) => Ok(()),
            (other, _) => Err(Failure::error(format!("dead letters were answered with {other:?}"))),
        }
    }

    /// Waits until there may be something to pop.
    async fn wait_for_some(
        &self,
        task: &PopTask,
        deadline: Instant,
        connection: Option<u64>,
    ) -> Result<Woken, Failure> {
        let mut until = deadline.into_std();
        if let Some(due_ms) = self.next_due_ms(task) {
            let now = now();
            let left = u64::try_from(due_ms.saturating_sub(self.stamp_ms())).unwrap_or(0);
            // A message that others are about to take, or that waits for one before it, is looked at again soon.
            until = until.min(now.instant + Duration::from_millis(left.max(10)));
        }
        let wait = Wait {
            topic: task.topic.clone(),
            wanted: Wanted::Shared { group: task.group.clone(), queue_id: task.queue_id },
            filter: task.filter.clone(),
            deadline: until,
            connection,
        };
        let (wake, woken) = oneshot::channel();
        let Ok(id) = self.0.holds.park(wait, Held::Pop(wake)) else {
            return if self.0.stop.is_cancelled() {
                Err(Failure::NotLeading("this replica stops".to_owned()))
            } else {
                Ok(Woken::Full)
            };
        };
        // Something may have arrived between the look and the parking, or the leadership may be gone.
        if (self.has_something(task) || !matches!(self.place(), Place::Here { .. }))
            && let Some(held) = self.0.holds.take(id)
        {
            drop(held);
        } else if woken.await.is_err() {
            return Ok(Woken::Gone);
        }
        if self.0.stop.is_cancelled() || !matches!(self.place(), Place::Here { .. }) {
            return Err(Failure::NotLeading("leadership was lost".to_owned()));
        }
        Ok(Woken::Look)
    }

    fn given(&self, request: &RemotingCommand, task: &PopTask, popped_ms: i64, given: &[Given]) -> RemotingCommand {
        let mut body = BytesMut::new();
        let mut queues = Vec::with_capacity(given.len());
        let mut count = 0;
        for (queue, chosen) in given {
            let mut messages = Vec::with_capacity(chosen.len());
            for message in chosen {
                body.extend_from_slice(&message.record);
                messages.push((wire_offset(message.queue_offset), i32::try_from(message.times).unwrap_or(i32::MAX)));
            }
            count += messages.len() as u64;
            queues.push(PoppedQueue { queue_id: wire_queue(queue.queue_id), messages });
        }
        self.0.stats.count_got(&task.topic, &task.group, count, body.len() as u64);
        let mut answer = success(request).with_remark("FOUND").with_body(body.freeze());
        PopResponse {
            rest_num: wire_offset(self.rest(task)),
            start_offset_info: Some(start_offset_info(&queues)),
            msg_offset_info: Some(msg_offset_info(&queues)),
            order_count_info: task.order.is_some().then(|| order_count_info(&queues)),
            ..nothing(popped_ms, task.invisible_ms, task.order.as_ref())
        }
        .encode_into(&mut answer.ext);
        answer
    }

    fn given_nothing(&self, request: &RemotingCommand, task: &PopTask, code: ResponseCode) -> RemotingCommand {
        self.0.stats.missed.add(1);
        let full = code == ResponseCode::POLLING_FULL;
        let remark = if full { "too many requests wait for messages" } else { "NO_MESSAGE_IN_QUEUE" };
        let mut answer = RemotingCommand::response_to(request, code).with_remark(remark).with_body(Bytes::new());
        PopResponse {
            start_offset_info: Some(String::new()),
            msg_offset_info: Some(String::new()),
            ..nothing(self.stamp_ms(), task.invisible_ms, task.order.as_ref())
        }
        .encode_into(&mut answer.ext);
        answer
    }

    /// Lets a waiting member of a group look again, if there is something for it.
    fn stir(&self, group: &GroupName, topic: &TopicName) {
        if self.0.holds.waiting_of_group(topic, group) == 0 {
            return;
        }
        let wish = Wish { group, topic, queue_id: ANY_QUEUE, order: false, attempt_id: None };
        if self.check_wish(&wish).is_ok_and(|task| self.has_something(&task)) {
            self.0.holds.wake_one(topic, group);
        }
    }
}

/// How long a request is held that allows so many milliseconds.
fn held_for(poll_time: i64) -> Duration {
    Duration::from_millis(u64::try_from(poll_time).unwrap_or(0)).min(HOLD_MAX)
}

fn check_count(count: i32) -> Result<(), Failure> {
    if count <= MESSAGES_MAX {
        return Ok(());
    }
    let remark = format!("the number of messages to pop, {count}, is greater than {MESSAGES_MAX}");
    Err(Failure::refused(ResponseCode::INVALID_PARAMETER, remark))
}

fn nothing(pop_time: i64, invisible_time: i64, order: Option<&Order>) -> PopResponse {
    PopResponse {
        pop_time,
        invisible_time,
        revive_queue_id: revive_queue(order.is_some()),
        rest_num: 0,
        start_offset_info: None,
        msg_offset_info: None,
        order_count_info: None,
    }
}

/// RocketMQ's clients know by this number that messages were given in order.
fn revive_queue(in_order: bool) -> i32 {
    if in_order { ORDER_REVIVE_QUEUE } else { 0 }
}
