//! Messages that wait in a part of the log that is to be dropped: they are appended again.
//!
//! Each moves by an entry that carries its copy together with its new place or with the progress of its level, so it is
//! neither lost nor doubled, whoever leads. A message on a delay level becomes a timer that is due when it was.

use std::io;

use bytes::BytesMut;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use protocol::message::{PropertiesBuilder, RecordView, property};

use super::Group;
use super::answer::Failure;
use super::waiting::{BATCH_BYTES_MAX, BATCH_MAX};
use crate::delay_levels::{LEVELS_MAX, SCHEDULE_TOPIC, mark_of};
use crate::retention::Carrier;
use crate::state_machine::command::ProgressMove;
use crate::state_machine::timer::{TIMER_TOPIC, Timer, due_of};
use crate::state_machine::{ApplyReply, Command, CommandRefused, CommandReply};
use crate::store;

/// Copies ready to be appended.
struct Copies<T> {
    /// What they are copies of.
    of: T,
    records: BytesMut,
    count: u64,
}

impl Carrier for Group {
    fn carry(&self, below: u64) -> BoxFuture<'_, io::Result<u64>> {
        self.carry_waiting(below).boxed()
    }
}

impl Group {
    /// Appends every message again that waits below `below` in the log, so that this part of the log can be dropped.
    /// Returns how many were moved.
    ///
    /// # Errors
    /// This replica does not lead, or the log cannot be read or written. What was moved stays moved.
    pub async fn carry_waiting(&self, below: u64) -> io::Result<u64> {
        let failed = |failure: Failure| io::Error::other(format!("moving messages that wait: {failure:?}"));
        // The copies lie behind that, and stay.
        let below = below.min(self.0.store.physical_end());
        let halves = self.carry_half_messages(below).await.map_err(failed)?;
        let from_levels = self.carry_levels(below).await.map_err(failed)?;
        let timers = self.carry_timers(below).await.map_err(failed)?;
        Ok(halves + from_levels + timers)
    }

    /// Moves timers whose messages lie below `below` in the log. Returns how many.
    async fn carry_timers(&self, below: u64) -> Result<u64, Failure> {
        let mut moved = 0;
        loop {
            let mut places = self.0.state.timer_places(BATCH_MAX);
            places.retain(|place| *place < below);
            if places.is_empty() {
                return Ok(moved);
            }
            let copies = self.read_applied("reading timer messages", move |group| group.copy_timers(&places)).await?;
            let Copies { of, records, count } = copies;
            if of.is_empty() {
                return Err(Failure::error("some timer messages cannot be found in the log"));
            }
            let command = Command::CarryTimers { timers: of, stamped_ms: self.stamp_ms() };
            moved += self.move_waiting(&command, &records, count).await?;
        }
    }

    /// Copies timer messages, oldest first, as many as an entry holds. Reads files.
    fn copy_timers(&self, places: &[u64]) -> store::Result<Copies<Vec<Timer>>> {
        let mut copies = Copies { of: Vec::new(), records: BytesMut::new(), count: 0 };
        for place in places {
            let Some(bytes) = self.0.store.message_at(*place)? else { continue };
            let record = RecordView::parse(&bytes).expect("a message read from the store parses");
            let Some(due_ms) = due_of(&record) else { continue };
            let properties = record.properties().as_str();
            if let Err(failure) = self.copy(&record, TIMER_TOPIC, 0, properties, &mut copies.records) {
                tracing::error!(group = self.name(), place, ?failure, "a timer message cannot be copied");
                continue;
            }
            copies.of.push(Timer { due_ms, physical_offset: *place });
            copies.count += 1;
            if copies.records.len() >= BATCH_BYTES_MAX {
                break;
            }
        }
        Ok(copies)
    }

    /// Makes timers of messages on delay levels that lie below `below` in the log. Returns how many.
    async fn carry_levels(&self, below: u64) -> Result<u64, Failure> {
        let mut moved = 0;
        for queue_id in 0..u32::try_from(LEVELS_MAX).expect("18") {
            loop {
                let read = move |group: &Self| group.copy_level(queue_id, below);
                let Copies { of, records, count } = self.read_applied("reading delayed messages", read).await?;
                if of.from == of.to {
                    break;
                }
                let command = Command::Append { moves: vec![of], stamped_ms: self.stamp_ms() };
                moved += self.move_waiting(&command, &records, count).await?;
            }
        }
        Ok(moved)
    }

    /// Copies the next messages of a delay level as timers, as many as an entry holds. Reads files.
    fn copy_level(&self, queue_id: u32, below: u64) -> store::Result<Copies<ProgressMove>> {
        let mark = mark_of(queue_id + 1);
        let from = self.0.state.progress_mark(&mark);
        // Retention has taken what lies before.
        let mut to = from.max(self.0.store.min_offset(SCHEDULE_TOPIC, queue_id));
        let mut records = BytesMut::new();
        let mut count = 0;
        for entry in self.0.store.queue_entries(SCHEDULE_TOPIC, queue_id, to, BATCH_MAX)? {
            if entry.physical_offset >= below || records.len() >= BATCH_BYTES_MAX {
                break;
            }
            let Some(bytes) = self.0.store.message(SCHEDULE_TOPIC, queue_id, to)? else {
                return Err(store::Error::NoRecord { position: entry.physical_offset });
            };
            let record = RecordView::parse(&bytes).expect("a message read from the store parses");
            let mut properties = PropertiesBuilder::from_text(record.properties().as_str());
            properties.set(property::TIMER_OUT_MS, &entry.tags_code.to_string()).expect("a number has no separator");
            if let Err(failure) = self.copy(&record, TIMER_TOPIC, 0, properties.as_str(), &mut records) {
                tracing::error!(group = self.name(), ?failure, "a delayed message cannot be copied");
                break;
            }
            to += 1;
            count += 1;
        }
        let to = if count == 0 { from } else { to };
        Ok(Copies { of: ProgressMove { mark, from, to }, records, count })
    }

    /// Proposes an entry that moves `count` messages, and says how many it moved.
    pub(super) async fn move_waiting(&self, command: &Command, records: &[u8], count: u64) -> Result<u64, Failure> {
        match self.0.raft.propose(command.encode_with(records)).await? {
            (ApplyReply::Command { reply: CommandReply::Done, .. }, _) => Ok(count),
            // One of them was delivered, recalled or decided meanwhile.
            (
                ApplyReply::Command {
                    reply:
                        CommandReply::Refused(
                            CommandRefused::MarkMoved { .. }
                            | CommandRefused::TimerNotPending { .. }
                            | CommandRefused::NotPending { .. },
                        ),
                    ..
                },
                _,
            ) => Ok(0),
            (other, _) => Err(Failure::error(format!("moving was answered with {other:?}"))),
        }
    }
}
