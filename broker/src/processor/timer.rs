//! Messages that are delivered at a time of their own, and their recall: code 370.
//!
//! Such a message is stored in [`TIMER_TOPIC`], with its time and with the topic and queue where it is to go. Which of
//! them are pending is replicated state, in the order in which they are due. The leader appends what is due to its topic
//! by an entry that ends the timers and carries the copies; a recall ends one and carries nothing. Either is refused
//! unless all it names is pending, so each message is delivered once or recalled, whoever leads.
//!
//! A recall that is repeated, since its answer was lost, is answered as the first one: the message had waited, is pending
//! no more, and is not in its topic.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use protocol::header::{DEFAULT_REGION, RecallMessageRequest, RecallMessageResponse};
use protocol::message::{RecallHandle, RecordView, property};
use protocol::{RemotingCommand, ResponseCode};

use super::answer::{Failure, Outcome, success};
use super::delay::{LOOK_INTERVAL, RETRY};
use super::waiting::{BATCH_BYTES_MAX, BATCH_MAX};
use super::{Group, now};
use crate::state_machine::timer::{TIMER_TOPIC, Timer, due_of};
use crate::state_machine::{ApplyReply, Command, CommandRefused, CommandReply};
use crate::store::{self, KEY_QUERY_MAX};

/// Most timers that may be pending in a group.
const PENDING_MAX: usize = 1 << 21;
/// A message that moves while it is recalled is looked for again, so many times in all.
const LOOKS_MAX: usize = 8;

/// How a recall ended.
enum Recall {
    /// The message does not come any more.
    Done,
    /// It has come.
    TooLate,
    /// There is no such message, or it is so old that nothing is left of it.
    Unknown,
}

/// What the log holds of a message that waits or has waited.
struct Traces {
    /// All its places: it moves, and a producer that had no answer sends it once more.
    waited: Vec<Timer>,
    /// Whether it is in its topic, or may be.
    delivered: bool,
}

impl Traces {
    /// What became of a message that is pending nowhere.
    fn verdict(&self) -> Recall {
        match self {
            Self { delivered: true, .. } => Recall::TooLate,
            Self { waited, .. } if waited.is_empty() => Recall::Unknown,
            // Recalled before, or its topic was gone when its time came.
            Self { .. } => Recall::Done,
        }
    }
}

impl Group {
    /// Refuses a timer message while too many are pending.
    pub(super) fn check_timer_room(&self) -> Result<(), Failure> {
        if self.0.state.timer_count() < PENDING_MAX {
            return Ok(());
        }
        Err(Failure::refused(
            ResponseCode::SERVICE_NOT_AVAILABLE,
            format!("not proposed: {PENDING_MAX} timer messages of this broker are pending, and more are not allowed"),
        ))
    }

    /// The handle by which a timer message can be recalled.
    pub(super) fn recall_handle(&self, topic: &str, due_ms: i64, unique_key: &str) -> String {
        let (topic, broker_name) = (topic.to_owned(), self.0.settings.broker_name.clone());
        RecallHandle { topic, broker_name, due_ms, unique_key: unique_key.to_owned() }.encode()
    }

    /// Delivers timer messages that are due for as long as this replica serves as leader.
    pub(super) async fn run_timers(&self) {
        self.while_leading(|group| async move {
            match group.deliver_timers().await {
                Ok(until_due) => until_due,
                Err(failure) => {
                    tracing::warn!(group = group.name(), ?failure, "timer messages are not delivered yet");
                    RETRY
                }
            }
        })
        .await;
    }

    /// Delivers timer messages that are due, and says when to look again.
    async fn deliver_timers(&self) -> Result<Duration, Failure> {
        loop {
            let due = self.0.state.timers_due(now().wall_ms, BATCH_MAX);
            if due.is_empty() {
                let next_due_ms = self.0.state.next_timer_ms().unwrap_or(i64::MAX);
                let until = u64::try_from(next_due_ms.saturating_sub(now().wall_ms)).unwrap_or(0);
                return Ok(Duration::from_millis(until).min(LOOK_INTERVAL));
            }
            let read = self.read_timers(due).await?;
            let mut records = BytesMut::new();
            let mut timers = Vec::with_capacity(read.len());
            let mut count = 0;
            for (timer, bytes) in read {
                count += u64::from(self.copy_due(&bytes, &mut records));
                timers.push(timer);
                if records.len() >= BATCH_BYTES_MAX {
                    break;
                }
            }
            if self.fire(timers, &records).await? {
                self.0.stats.put.add(count);
                self.0.stats.put_bytes.add(records.len() as u64);
            }
        }
    }

    /// Ends timers by one entry with the messages that follow. Returns false if one of them has ended before, or a
    /// topic has changed.
    async fn fire(&self, timers: Vec<Timer>, records: &[u8]) -> Result<bool, Failure> {
        let command = Command::FireTimers { timers, stamped_ms: self.stamp_ms() };
        match self.0.raft.propose(command.encode_with(records)).await? {
            (ApplyReply::Command { reply: CommandReply::Done, .. }, _) => Ok(true),
            (
                ApplyReply::Command {
                    reply: CommandReply::Refused(CommandRefused::TimerNotPending { .. } | CommandRefused::NoQueue),
                    ..
                },
                _,
            ) => Ok(false),
            (other, _) => Err(Failure::error(format!("the end of timers was answered with {other:?}"))),
        }
    }

    /// Reads the messages of timers.
    async fn read_timers(&self, timers: Vec<Timer>) -> Result<Vec<(Timer, Bytes)>, Failure> {
        self.read_applied("reading timer messages", move |group| {
            let mut read = Vec::with_capacity(timers.len());
            for timer in timers {
                match group.0.store.message_at(timer.physical_offset)? {
                    Some(bytes) => read.push((timer, bytes)),
                    // One that has ended meanwhile may have left the log.
                    None if !group.0.state.is_timer_pending(timer) => {}
                    None => return Err(store::Error::NoRecord { position: timer.physical_offset }),
                }
            }
            Ok(read)
        })
        .await
    }

    /// Takes a timer message back: code 370. Doing it twice is the same as doing it once.
    pub(super) async fn recall_message(&self, request: &RemotingCommand) -> Outcome {
        let header = RecallMessageRequest::decode(request)?;
        let illegal = |why: String| Failure::refused(ResponseCode::ILLEGAL_OPERATION, why);
        if self.0.state.topic(&header.topic).is_none() {
            return Err(Failure::no_topic(&header.topic));
        }
        let handle = RecallHandle::decode(&header.recall_handle).map_err(|error| illegal(error.to_string()))?;
        if handle.topic != *header.topic {
            return Err(illegal(format!("the handle is of topic {}, not of {}", handle.topic, header.topic)));
        }
        let broker_name = &self.0.settings.broker_name;
        if handle.broker_name != *broker_name {
            return Err(illegal(format!("the handle is of broker {}, and this is {broker_name}", handle.broker_name)));
        }
        match self.recall(&handle).await? {
            Recall::Done => {
                let mut answer = success(request).with_ext("MSG_REGION", DEFAULT_REGION);
                RecallMessageResponse { msg_id: handle.unique_key }.encode_into(&mut answer.ext);
                Ok(answer)
            }
            Recall::TooLate => Err(illegal(format!("message {} was delivered before", handle.unique_key))),
            Recall::Unknown => Err(illegal(format!("no message {} waits here", handle.unique_key))),
        }
    }

    async fn recall(&self, handle: &RecallHandle) -> Result<Recall, Failure> {
        // Where the message had waited at the last look, if it was pending nowhere.
        let mut ended = None;
        for _ in 0..LOOKS_MAX {
            let traces = self.traces_of(handle).await?;
            let is_pending = |timer: &Timer| self.0.state.is_timer_pending(*timer);
            let pending: Vec<Timer> = traces.waited.iter().copied().filter(is_pending).collect();
            if !pending.is_empty() {
                // Refused if it has come meanwhile, or was moved.
                if self.fire(pending, &[]).await? {
                    return Ok(Recall::Done);
                }
            } else if ended.as_ref() == Some(&traces.waited) {
                return Ok(traces.verdict());
            } else {
                // The next look finds the delivery, if that ended it, and what another replica did that has led since.
                self.be_sure_to_lead().await?;
                ended = Some(traces.waited);
            }
        }
        Err(Failure::Unknown("the message moves within the log just now".to_owned()))
    }

    /// Looks for a message where it waits and where it goes.
    async fn traces_of(&self, handle: &RecallHandle) -> Result<Traces, Failure> {
        let handle = handle.clone();
        self.read_applied("looking for the message", move |group| {
            let waited = group.stored_for(&handle, TIMER_TOPIC)?;
            let waited: Vec<Timer> = waited.iter().filter_map(|bytes| handle_timer(&handle, bytes)).collect();
            let came = group.stored_for(&handle, &handle.topic)?;
            // Among so many with the same key there may be more.
            let delivered =
                came.len() >= KEY_QUERY_MAX || came.iter().any(|bytes| handle_timer(&handle, bytes).is_some());
            Ok(Traces { waited, delivered })
        })
        .await
    }

    /// Messages of a topic with the unique key of a handle, newest first. Reads files.
    fn stored_for(&self, handle: &RecallHandle, topic: &str) -> store::Result<Vec<Bytes>> {
        Ok(self.0.store.query_by_key(topic, &handle.unique_key, KEY_QUERY_MAX, 0, i64::MAX)?.messages)
    }
}

/// The message that a handle names as a timer, if that is what is stored here.
fn handle_timer(handle: &RecallHandle, bytes: &[u8]) -> Option<Timer> {
    let record = RecordView::parse(bytes).ok()?;
    let properties = record.properties();
    let is_it = properties.get(property::UNIQ_KEY) == Some(handle.unique_key.as_str())
        && properties.get(property::REAL_TOPIC) == Some(handle.topic.as_str())
        && due_of(&record) == Some(handle.due_ms);
    is_it.then_some(Timer { due_ms: handle.due_ms, physical_offset: u64::try_from(record.physical_offset()).ok()? })
}
