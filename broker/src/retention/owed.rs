//! What the log still owes: messages that wait in it for their time, or for the end of their transaction.

use raft_store::{LogPosition, LogView};

use crate::delay_levels::{LEVELS_MAX, SCHEDULE_TOPIC, mark_of};
use crate::state_machine::StateReader;
use crate::store::{self, MessageStore};

/// The first entry that holds a delayed message not delivered yet or a half message not decided yet; none if there is no
/// such message. Reads files.
pub(super) fn first_owed(state: &StateReader, store: &MessageStore, log: &LogView) -> store::Result<Option<u64>> {
    // Half messages lie in the log in the order of their numbers.
    let mut first = state.halves_from(0, 1).first().map(|(_, half)| half.physical_offset);
    for queue_id in 0..u32::try_from(LEVELS_MAX).expect("18") {
        let next = state.progress_mark(&mark_of(queue_id + 1)).max(store.min_offset(SCHEDULE_TOPIC, queue_id));
        let waiting =
            store.queue_entries(SCHEDULE_TOPIC, queue_id, next, 1)?.first().map(|entry| entry.physical_offset);
        first = first.into_iter().chain(waiting).min();
    }
    let Some(first) = first else { return Ok(None) };
    Ok(log.record_containing(LogPosition::new(first))?.map(|record| record.id.index.get()))
}
