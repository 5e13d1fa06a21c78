//! Messages that wait on a delay level, and their delivery.
//!
//! Such a message is stored in the schedule topic, in the queue of its level, and says where it is to go. The levels are
//! queues in which the first message is due first, so a level's progress is one mark: the offset of its next message.
//!
//! ```text
//!  queue of level 3:  [delivered ...][due][due][waits ...
//!                                    ^ mark `delay/3` in the replicated state
//! ```
//!
//! The leader appends what is due to its topic by an entry that moves the mark and carries the copies. The entry is
//! refused unless the mark stands where its proposer saw it, so each message is delivered exactly once, whoever leads.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::BytesMut;
use protocol::RemotingCommand;
use protocol::body::{DataVersion, DelayOffsets};

use super::answer::{Failure, Outcome, success};
use super::send::{wire_offset, wire_queue};
use super::waiting::{BATCH_BYTES_MAX, BATCH_MAX};
use super::{Group, now};
use crate::delay_levels::{SCHEDULE_TOPIC, mark_of};
use crate::state_machine::command::ProgressMove;
use crate::state_machine::{ApplyReply, Command, CommandRefused, CommandReply};
use crate::store;

/// How often queues that hold nothing are looked at: far below the shortest wait.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Pause after a delivery that failed.
pub(super) const RETRY: Duration = Duration::from_millis(200);

/// What one look at a level found.
enum Found {
    /// Nothing is due. The first message, if any, is due then.
    Nothing { next_due_ms: Option<i64> },
    /// These are.
    Due(Delivery),
}

/// Copies of what is due on one level.
struct Delivery {
    records: BytesMut,
    count: usize,
    step: ProgressMove,
}

impl Group {
    /// Delivers what is due on delay levels for as long as this replica serves as leader.
    pub(super) async fn run_delays(&self) {
        self.while_leading(|group| async move { group.deliver_all().await }).await;
    }

    /// Delivers what is due on every level, and says when to look again.
    async fn deliver_all(&self) -> Duration {
        let mut pause = LOOK_INTERVAL;
        for level in 1..=self.0.settings.delay_levels.count() {
            loop {
                match self.deliver(level).await {
                    Ok(None) => {}
                    Ok(Some(until_due)) => {
                        pause = pause.min(until_due);
                        break;
                    }
                    Err(failure) => {
                        tracing::warn!(group = self.name(), level, ?failure, "delayed messages are not delivered yet");
                        pause = RETRY;
                        break;
                    }
                }
            }
        }
        pause
    }

    /// Delivers one entry of what is due on `level`. With nothing due, returns for how long.
    async fn deliver(&self, level: u32) -> Result<Option<Duration>, Failure> {
        let queue_id = level - 1;
        if self.0.state.progress_mark(&mark_of(level)) >= self.0.store.max_offset(SCHEDULE_TOPIC, queue_id) {
            return Ok(Some(LOOK_INTERVAL));
        }
        let group = self.clone();
        let looked = tokio::task::spawn_blocking(move || group.find_due(level)).await;
        let found = looked
            .map_err(|error| Failure::error(format!("looking for due messages: {error}")))?
            .map_err(|error| Failure::error(format!("reading delayed messages: {error}")))?;
        let delivery = match found {
            Found::Due(delivery) => delivery,
            Found::Nothing { next_due_ms } => {
                let until = next_due_ms.map_or(i64::MAX, |due| due.saturating_sub(now().wall_ms)).max(0);
                return Ok(Some(Duration::from_millis(u64::try_from(until).unwrap_or(0)).min(LOOK_INTERVAL)));
            }
        };
        let command = Command::Append { moves: vec![delivery.step], stamped_ms: self.stamp_ms() };
        let bytes = delivery.records.len() as u64;
        match self.0.raft.propose(command.encode_with(&delivery.records)).await? {
            (ApplyReply::Command { reply: CommandReply::Done, .. }, _) => {
                self.0.stats.put.add(delivery.count as u64);
                self.0.stats.put_bytes.add(bytes);
                Ok(None)
            }
            // What an earlier leader proposed has come after all, or a topic has changed: look again.
            (
                ApplyReply::Command {
                    reply: CommandReply::Refused(CommandRefused::MarkMoved { .. } | CommandRefused::NoQueue),
                    ..
                },
                _,
            ) => Ok(None),
            (other, _) => Err(Failure::error(format!("a delivery was answered with {other:?}"))),
        }
    }

    /// Copies what is due on `level`, oldest first. Reads files.
    fn find_due(&self, level: u32) -> store::Result<Found> {
        let queue_id = level - 1;
        let now_ms = now().wall_ms;
        let mark = mark_of(level);
        let from = self.0.state.progress_mark(&mark);
        // Retention has taken what lies before.
        let first = from.max(self.0.store.min_offset(SCHEDULE_TOPIC, queue_id));
        let mut to = first;
        let mut records = BytesMut::new();
        let mut count = 0;
        let mut next_due_ms = None;
        for entry in self.0.store.queue_entries(SCHEDULE_TOPIC, queue_id, first, BATCH_MAX)? {
            if entry.tags_code > now_ms {
                next_due_ms = Some(entry.tags_code);
                break;
            }
            let Some(waiting) = self.0.store.message(SCHEDULE_TOPIC, queue_id, to)? else { break };
            if self.copy_due(&waiting, &mut records) {
                count += 1;
            }
            to += 1;
            if records.len() >= BATCH_BYTES_MAX {
                break;
            }
        }
        if to == from {
            return Ok(Found::Nothing { next_due_ms });
        }
        Ok(Found::Due(Delivery { records, count, step: ProgressMove { mark, from, to } }))
    }

    /// For each level, the offset of its next message and the end of its queue.
    pub(super) fn delay_progress(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        (1..=self.0.settings.delay_levels.count()).map(|level| {
            let end = self.0.store.max_offset(SCHEDULE_TOPIC, level - 1);
            (level, self.0.state.progress_mark(&mark_of(level)), end)
        })
    }

    /// How far each level is: code 45.
    pub(super) fn all_delay_offsets(&self, request: &RemotingCommand) -> Outcome {
        let offset_table: BTreeMap<i32, i64> = self
            .delay_progress()
            .filter(|(_, _, end)| *end > 0)
            .map(|(level, next, _)| (wire_queue(level), wire_offset(next)))
            .collect();
        Ok(success(request).with_body(DelayOffsets { data_version: DataVersion::default(), offset_table }.encode()))
    }
}
