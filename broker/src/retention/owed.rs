//! What the log still owes: messages that wait in it for their time.

use raft_store::{LogPosition, LogView};

use crate::delay_levels::{LEVELS_MAX, SCHEDULE_TOPIC, mark_of};
use crate::state_machine::StateReader;
use crate::store::{self, MessageStore};

/// The first entry that holds a delayed message not delivered yet; none if there is no such message. Reads files.
pub(super) fn first_owed(state: &StateReader, store: &MessageStore, log: &LogView) -> store::Result<Option<u64>> {
    let mut first: Option<u64> = None;
    for queue_id in 0..u32::try_from(LEVELS_MAX).expect("18") {
        let next = state.progress_mark(&mark_of(queue_id + 1)).max(store.min_offset(SCHEDULE_TOPIC, queue_id));
        let waiting =
            store.queue_entries(SCHEDULE_TOPIC, queue_id, next, 1)?.first().map(|entry| entry.physical_offset);
        first = first.into_iter().chain(waiting).min();
    }
    let Some(first) = first else { return Ok(None) };
    Ok(log.record_containing(LogPosition::new(first))?.map(|record| record.id.index.get()))
}
