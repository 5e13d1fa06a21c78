//! Pulling: codes 11 and 361.
//!
//! Any replica serves messages within what it has applied: they are committed, and the same everywhere. One that has not
//! caught up with its leader yet lets that decide, since it may show what the log has hidden further on. What lies at or
//! beyond the end is another matter. At the end the request waits, wherever it is, and is woken by the next message.
//! Beyond the end only a leader that is sure to lead can tell a wrong offset from one that it has not reached itself, so
//! code 21, which moves consumers, never comes from anyone else.

use std::time::{Duration, Instant};

use bytes::Bytes;
use protocol::body::MessageModel;
use protocol::header::{PullRequest, PullResponse, PullSysFlag};
use protocol::{GroupName, RemotingCommand, ResponseCode, TopicName};
use remoting::Responder;
use tokio::sync::oneshot;

use super::answer::{Failure, Outcome, not_proposed};
use super::filter::{self, FilterError, MessageFilter};
use super::follower_read::ReadFrom;
use super::journey::PullTimes;
use super::offset_buffer::Key;
use super::send::wire_offset;
use super::{Group, now};
use crate::client_table::{Subscription, SubscriptionLookup};
use crate::forward::{PULL_PATIENCE, Place, Source};
use crate::pull_hold::{Full, Wait, Wanted};
use crate::state_machine::topic::PERM_READ;
use crate::state_machine::{Command, GroupConfig};
use crate::store::{PullOutcome, PullStatus};

/// Most messages in one answer.
const MESSAGES_MAX: usize = 1_024;
/// Most bytes in one answer, whoever asks, but for a single larger message.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Most bytes in an answer to a client that names no limit.
const ANSWER_BYTES_DEFAULT: usize = 256 << 10;
/// Longest time that a pull is held.
const HOLD_MAX: Duration = Duration::from_secs(30);

/// A pull that has passed all checks.
#[derive(Debug, Clone)]
pub(crate) struct PullTask {
    group: GroupName,
    topic: TopicName,
    queue_id: u32,
    /// May be negative: clients ask for -1 when they know no better.
    queue_offset: i64,
    messages_max: usize,
    bytes_max: usize,
    read_from: ReadFrom,
    filter: MessageFilter,
    /// The expression behind `filter` and its kind, for a replica that does not know this client.
    expression: String,
    expression_type: String,
}

/// A parked request.
pub(crate) enum Held {
    /// A pull.
    Pull(Box<HeldPull>),
    /// A pop, which goes on when it is told so. Dropped, it ends without an answer.
    Pop(oneshot::Sender<()>),
}

/// A parked pull.
pub(crate) struct HeldPull {
    request: RemotingCommand,
    responder: Responder,
    task: PullTask,
    /// When it was parked.
    since: Instant,
}

impl PullTask {
    pub(super) fn topic(&self) -> &TopicName {
        &self.topic
    }

    pub(super) fn group(&self) -> &GroupName {
        &self.group
    }
}

/// What the reader of a queue may conclude from what it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Authority {
    /// A leader that has just made sure of it.
    Certain,
    /// Anyone else.
    Doubtful,
}

/// What to do about a pull.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Answer with this code, remark and next offset.
    Answer(ResponseCode, &'static str, i64),
    /// Nothing yet.
    Wait,
    /// Let a leader that is sure of it decide.
    Certify,
}

/// Decides on a pull from what the queue says.
fn judge(queue_offset: i64, found: &PullOutcome, authority: Authority) -> Verdict {
    let remark = found.status.name();
    let next = wire_offset(found.next_begin_offset);
    match found.status {
        PullStatus::Found => Verdict::Answer(ResponseCode::SUCCESS, remark, next),
        PullStatus::NoMatchedMessage | PullStatus::MessageWasRemoving => {
            Verdict::Answer(ResponseCode::PULL_RETRY_IMMEDIATELY, remark, next)
        }
        PullStatus::OffsetOverflowOne => Verdict::Wait,
        PullStatus::NoMessageInQueue if queue_offset == 0 => Verdict::Wait,
        PullStatus::NoMessageInQueue | PullStatus::OffsetOverflowBadly | PullStatus::OffsetTooSmall => {
            match authority {
                Authority::Certain => Verdict::Answer(ResponseCode::PULL_OFFSET_MOVED, remark, next),
                Authority::Doubtful => Verdict::Certify,
            }
        }
    }
}

/// The words for a pull at the end of its queue.
fn end_remark(max_offset: u64) -> &'static str {
    if max_offset == 0 { "NO_MESSAGE_IN_QUEUE" } else { "OFFSET_OVERFLOW_ONE" }
}

impl Group {
    pub(super) fn serve_pull(&self, request: RemotingCommand, responder: Responder, source: Source) {
        if source.is_node() {
            self.pull_at_leader(request, responder, source);
            return;
        }
        let is_leader = matches!(self.place(), Place::Here { .. });
        let header = match PullRequest::decode(&request) {
            Ok(header) => header,
            Err(error) => return self.reply(&request, responder, Err(error.into())),
        };
        let task = match self.check_pull(&header) {
            Ok(task) => task,
            // A name that is unknown here may have been created a moment ago.
            Err(Failure::Refused(ResponseCode::TOPIC_NOT_EXIST | ResponseCode::INVALID_PARAMETER, _)) if !is_leader => {
                self.pull_at_leader(request, responder, source);
                return;
            }
            Err(_) if !self.shows_all() => {
                self.pull_at_leader(request, responder, source);
                return;
            }
            Err(failure) => return self.reply(&request, responder, Err(failure)),
        };
        if header.commits_offset() && header.commit_offset >= 0 {
            self.commit_on_the_way(&task, header.commit_offset);
        }
        if self.0.state.held_reset(&task.group, &task.topic, task.queue_id).is_some() {
            self.certify_pull(request, responder, task, None);
            return;
        }
        let hold = header
            .may_suspend()
            .then(|| Duration::from_millis(u64::try_from(header.suspend_timeout_millis).unwrap_or(0)).min(HOLD_MAX));
        self.run_pull(request, responder, task, hold, None);
    }

    /// Reads, and answers, parks or asks further. A read that has to wait for the disk waits elsewhere.
    fn run_pull(
        &self,
        request: RemotingCommand,
        responder: Responder,
        task: PullTask,
        hold: Option<Duration>,
        parked: Option<Instant>,
    ) {
        if !self.shows_all() {
            return self.certify_pull(request, responder, task, hold);
        }
        let began = Instant::now();
        if self.0.store.is_hot(&task.topic, task.queue_id, task.queue_offset) {
            self.run_pull_here(request, responder, task, hold, parked, began);
        } else {
            let group = self.clone();
            self.0.tasks.spawn_blocking(move || group.run_pull_here(request, responder, task, hold, parked, began));
        }
    }

    fn run_pull_here(
        &self,
        request: RemotingCommand,
        responder: Responder,
        task: PullTask,
        hold: Option<Duration>,
        parked: Option<Instant>,
        began: Instant,
    ) {
        let found = match self.read_queue(&task) {
            Ok(found) => found,
            Err(failure) => return self.reply(&request, responder, Err(failure)),
        };
        match judge(task.queue_offset, &found, Authority::Doubtful) {
            Verdict::Answer(code, remark, next) => {
                let answer = self.pull_answer(&request, &task, &found, code, remark, next);
                let followed = self.0.tracer.as_ref().map(|_| (found.parts.clone(), Instant::now()));
                responder.send_parts(answer, found.parts);
                self.0.stats.pull_times.note(began.elapsed());
                if let Some((parts, read)) = followed {
                    self.end_pull(&task, &parts, &PullTimes { parked, began, read, taken: None });
                }
            }
            Verdict::Wait => match hold {
                Some(hold) => self.park(request, responder, task, hold),
                None => responder.send(self.nothing_yet(&request, &task, &found)),
            },
            Verdict::Certify => self.certify_pull(request, responder, task, hold),
        }
    }

    /// Runs a parked request once more, when something arrived or its time is over.
    pub(crate) fn resume(&self, held: Held) {
        match held {
            Held::Pull(held) => {
                let HeldPull { request, responder, task, since } = *held;
                if responder.is_wanted() {
                    self.run_pull(request, responder, task, None, Some(since));
                }
            }
            // Whoever waits may have given up.
            Held::Pop(wake) => drop(wake.send(())),
        }
    }

    fn park(&self, request: RemotingCommand, responder: Responder, task: PullTask, hold: Duration) {
        let queue_offset = u64::try_from(task.queue_offset).unwrap_or(0);
        let since = now().instant;
        let wait = Wait {
            topic: task.topic.clone(),
            wanted: Wanted::Queue { queue_id: task.queue_id, queue_offset },
            filter: task.filter.clone(),
            deadline: since + hold,
            connection: responder.connection().map(|connection| connection.id().as_u64()),
        };
        let (topic, queue_id) = (task.topic.clone(), task.queue_id);
        match self.0.holds.park(wait, Held::Pull(Box::new(HeldPull { request, responder, task, since }))) {
            Ok(id) => {
                // A message may have arrived between the read and the parking.
                if self.0.store.max_offset(&topic, queue_id) > queue_offset
                    && let Some(held) = self.0.holds.take(id)
                {
                    self.resume(held);
                }
            }
            Err(Full(Held::Pull(held))) => {
                let HeldPull { request, responder, .. } = *held;
                responder.send(not_proposed(&request, "too many pulls are held"));
            }
            Err(Full(Held::Pop(_))) => unreachable!("what is handed back is what was parked"),
        }
    }

    fn pull_at_leader(&self, request: RemotingCommand, responder: Responder, source: Source) {
        self.serve_at_leader(request, responder, source, PULL_PATIENCE);
    }

    /// Lets a leader that is sure of it decide; when it finds nothing yet either, the pull waits here.
    fn certify_pull(&self, request: RemotingCommand, responder: Responder, task: PullTask, hold: Option<Duration>) {
        let group = self.clone();
        self.0.tasks.spawn(async move {
            let question = certain_pull(&request, &task);
            let origin = responder.peer_addr();
            let answer = Box::pin(group.at_leader(&question, origin, Source::Client, PULL_PATIENCE)).await;
            match answer {
                Some(mut answer) if !is_undecided(&answer) => {
                    answer.opaque = request.opaque;
                    responder.send(answer);
                }
                // The queue ends there too, or nobody could be asked.
                _ => match hold {
                    Some(hold) => group.park(request, responder, task, hold),
                    None => match group.read_queue(&task) {
                        Ok(found) => responder.send(group.nothing_yet(&request, &task, &found)),
                        Err(failure) => group.reply(&request, responder, Err(failure)),
                    },
                },
            }
        });
    }

    /// Decides on a pull as the leader, and never lets it wait.
    pub(super) async fn pull_for_certain(&self, request: &RemotingCommand) -> Outcome {
        self.be_sure_to_lead().await?;
        let header = PullRequest::decode(request)?;
        let task = self.check_pull(&header)?;
        if header.commits_offset() && header.commit_offset >= 0 {
            self.commit_on_the_way(&task, header.commit_offset);
        }
        if let Some(queue_offset) = self.0.state.held_reset(&task.group, &task.topic, task.queue_id) {
            let found = self.read_queue(&task)?;
            self.release_reset(&task);
            let next = wire_offset(queue_offset);
            let code = ResponseCode::PULL_OFFSET_MOVED;
            return Ok(self.pull_answer(request, &task, &found, code, "OFFSET_RESET", next));
        }
        let found = self.read_queue(&task)?;
        match judge(task.queue_offset, &found, Authority::Certain) {
            Verdict::Answer(code, remark, next) => {
                let answer = self.pull_answer(request, &task, &found, code, remark, next);
                Ok(answer.with_body(join(found.parts)))
            }
            Verdict::Wait | Verdict::Certify => Ok(self.nothing_yet(request, &task, &found)),
        }
    }

    fn read_queue(&self, task: &PullTask) -> Result<PullOutcome, Failure> {
        let (messages_max, bytes_max) = (task.messages_max, task.bytes_max);
        self.0
            .store
            .get_messages(&task.topic, task.queue_id, task.queue_offset, messages_max, bytes_max, &task.filter)
            .map_err(|error| Failure::error(format!("reading the queue: {error}")))
    }

    /// The checks before a queue is read, in the order in which clients know their codes.
    fn check_pull(&self, header: &PullRequest) -> Result<PullTask, Failure> {
        let live = self.live();
        if live.permission & PERM_READ == 0 {
            return Err(no_permission(format!("the broker[{}] pulling message is forbidden", self.name())));
        }
        let group = self.0.state.group(&header.group);
        if group.is_none() && !live.auto_create_groups && !header.group.is_system() {
            return Err(Failure::no_group(&header.group));
        }
        if group.as_ref().is_some_and(|group| !group.consume_enable) {
            return Err(no_permission(format!("subscription group no permission, {}", header.group)));
        }
        let topic = self.0.state.topic(&header.topic).ok_or_else(|| Failure::no_topic(&header.topic))?;
        if !topic.is_readable() {
            return Err(no_permission(format!("the topic[{}] pulling message is forbidden", header.topic)));
        }
        let queue_id = u32::try_from(header.queue_id).ok().filter(|queue_id| *queue_id < topic.read_queues);
        let queue_id = queue_id.ok_or_else(|| {
            Failure::refused(
                ResponseCode::INVALID_PARAMETER,
                format!(
                    "queueId[{}] is illegal, topic:[{}] topicConfig.readQueueNums:[{}] consumer:[{}]",
                    header.queue_id, header.topic, topic.read_queues, header.group
                ),
            )
        })?;
        let (filter, expression, expression_type) = self.filter_of(header, group.as_deref())?;
        let bytes_max = header.max_msg_bytes.and_then(|bytes| usize::try_from(bytes).ok()).filter(|bytes| *bytes > 0);
        Ok(PullTask {
            group: header.group.clone(),
            topic: header.topic.clone(),
            queue_id,
            queue_offset: header.queue_offset,
            messages_max: usize::try_from(header.max_msg_nums).unwrap_or(0).clamp(1, MESSAGES_MAX),
            bytes_max: bytes_max.unwrap_or(ANSWER_BYTES_DEFAULT).min(ANSWER_BYTES_MAX),
            read_from: ReadFrom::of(group.as_deref()),
            filter,
            expression,
            expression_type,
        })
    }

    fn filter_of(
        &self,
        header: &PullRequest,
        group: Option<&GroupConfig>,
    ) -> Result<(MessageFilter, String, String), Failure> {
        if header.has_subscription() {
            let expression = header.subscription.clone().unwrap_or_default();
            let filter = filter::parse(&expression, header.expression_type.as_deref()).map_err(filter_failure)?;
            return Ok((filter, expression, header.expression_type.clone().unwrap_or_default()));
        }
        let refused = |code, remark: &str| Failure::refused(code, remark);
        let (model, subscription) = match self.0.clients.subscription(&header.group, &header.topic) {
            SubscriptionLookup::Found(model, subscription) => (model, Some(subscription)),
            SubscriptionLookup::NoTopic(model) => (model, None),
            SubscriptionLookup::NoGroup => {
                return Err(refused(ResponseCode::SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"));
            }
        };
        if model == MessageModel::Broadcasting && group.is_some_and(|group| !group.consume_broadcast_enable) {
            return Err(no_permission(format!(
                "the consumer group[{}] can not consume by broadcast way",
                header.group
            )));
        }
        let subscription = subscription
            .ok_or_else(|| refused(ResponseCode::SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"))?;
        if subscription.version < header.sub_version {
            return Err(refused(ResponseCode::SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"));
        }
        let Subscription { expression, expression_type, .. } = &*subscription;
        let filter = match &subscription.filter {
            Some(filter) => filter.clone(),
            // What the client's heartbeat said has been kept, and why it is of no use can be said again.
            None => filter::parse(expression, Some(expression_type)).map_err(filter_failure)?,
        };
        Ok((filter, expression.clone(), expression_type.clone()))
    }

    fn commit_on_the_way(&self, task: &PullTask, commit_offset: i64) {
        let key = Key { group: task.group.clone(), topic: task.topic.clone(), queue_id: task.queue_id };
        self.commit_quietly(key, u64::try_from(commit_offset).unwrap_or(0));
    }

    /// Ends the hold that a reset put on a queue, now that its consumer has been told.
    fn release_reset(&self, task: &PullTask) {
        let command = Command::ReleaseResets {
            group: task.group.clone(),
            topic: task.topic.clone(),
            queues: vec![task.queue_id],
        };
        let group = self.clone();
        self.0.tasks.spawn(async move {
            if let Err(failure) = group.propose(command).await {
                tracing::debug!(?failure, "a reset stays in force until the next pull");
            }
        });
    }

    fn pull_answer(
        &self,
        request: &RemotingCommand,
        task: &PullTask,
        found: &PullOutcome,
        code: ResponseCode,
        remark: &'static str,
        next_begin_offset: i64,
    ) -> RemotingCommand {
        if code == ResponseCode::SUCCESS {
            let bytes = found.parts.iter().map(|part| part.len() as u64).sum();
            self.0.stats.count_got(&task.topic, &task.group, found.messages as u64, bytes);
        } else {
            self.0.stats.missed.add(1);
        }
        let mut answer = RemotingCommand::response_to(request, code).with_remark(remark);
        let is_slow = || !self.0.store.is_hot(&task.topic, task.queue_id, next_begin_offset);
        PullResponse {
            suggest_which_broker_id: self.suggested_replica(task.read_from, is_slow),
            next_begin_offset,
            min_offset: wire_offset(found.min_offset),
            max_offset: wire_offset(found.max_offset),
        }
        .encode_into(&mut answer.ext);
        answer.ext.push("topicSysFlag", "0");
        answer.ext.push("groupSysFlag", "0");
        answer
    }

    /// The answer to a pull that may not wait any longer: ask again from the same place.
    fn nothing_yet(&self, request: &RemotingCommand, task: &PullTask, found: &PullOutcome) -> RemotingCommand {
        let remark = end_remark(found.max_offset);
        self.pull_answer(request, task, found, ResponseCode::PULL_NOT_FOUND, remark, task.queue_offset)
    }
}

/// The request by which a replica asks the leader: without leave to wait, without a commit, and with the expression.
fn certain_pull(request: &RemotingCommand, task: &PullTask) -> RemotingCommand {
    let mut question = request.clone();
    question.ext.push_display("sysFlag", PullSysFlag::SUBSCRIPTION);
    question.ext.push("subscription", &task.expression);
    question.ext.push("expressionType", &task.expression_type);
    question
}

/// Whether a leader's answer leaves the pull waiting.
fn is_undecided(answer: &RemotingCommand) -> bool {
    matches!(answer.response_code(), ResponseCode::PULL_NOT_FOUND | ResponseCode::SERVICE_NOT_AVAILABLE)
}

fn join(parts: Vec<Bytes>) -> Bytes {
    match parts.len() {
        0 => Bytes::new(),
        1 => parts.into_iter().next().unwrap_or_default(),
        _ => Bytes::from(parts.concat()),
    }
}

pub(super) fn no_permission(remark: String) -> Failure {
    Failure::refused(ResponseCode::NO_PERMISSION, remark)
}

pub(super) fn filter_failure(error: FilterError) -> Failure {
    let code = match error {
        FilterError::UnsupportedKind(_) => ResponseCode::SYSTEM_ERROR,
        _ => ResponseCode::SUBSCRIPTION_PARSE_FAILED,
    };
    Failure::refused(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(queue_offset: i64, status: PullStatus, authority: Authority, expected: &str) {
        let found =
            PullOutcome { status, next_begin_offset: 7, min_offset: 3, max_offset: 9, parts: Vec::new(), messages: 0 };
        let verdict = match judge(queue_offset, &found, authority) {
            Verdict::Answer(code, remark, next) => format!("{} {remark} {next}", code.0),
            other => format!("{other:?}"),
        };
        assert_eq!(verdict, expected, "{queue_offset}, {authority:?}");
    }

    #[test]
    fn what_was_read_is_answered_by_anyone() {
        for authority in [Authority::Certain, Authority::Doubtful] {
            check(5, PullStatus::Found, authority, "0 FOUND 7");
            check(5, PullStatus::NoMatchedMessage, authority, "20 NO_MATCHED_MESSAGE 7");
            check(5, PullStatus::MessageWasRemoving, authority, "20 MESSAGE_WAS_REMOVING 7");
        }
    }

    #[test]
    fn at_the_end_a_pull_waits() {
        for authority in [Authority::Certain, Authority::Doubtful] {
            check(9, PullStatus::OffsetOverflowOne, authority, "Wait");
            check(0, PullStatus::NoMessageInQueue, authority, "Wait");
        }
    }

    #[test]
    fn only_a_certain_leader_moves_a_consumer() {
        let cases = [
            (10, PullStatus::OffsetOverflowBadly, "21 OFFSET_OVERFLOW_BADLY 7"),
            (2, PullStatus::OffsetTooSmall, "21 OFFSET_TOO_SMALL 7"),
            (-1, PullStatus::OffsetTooSmall, "21 OFFSET_TOO_SMALL 7"),
            (4, PullStatus::NoMessageInQueue, "21 NO_MESSAGE_IN_QUEUE 7"),
        ];
        for (queue_offset, status, certain) in cases {
            check(queue_offset, status, Authority::Doubtful, "Certify");
            check(queue_offset, status, Authority::Certain, certain);
        }
    }
}
