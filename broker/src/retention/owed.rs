//! What the log still owes: messages that wait in it for their time, or for the end of their transaction.
//!
//! They keep their segments until the leader has appended them again.

use raft_store::{LogPosition, LogView};

use crate::delay_levels::{LEVELS_MAX, SCHEDULE_TOPIC, mark_of};
use crate::state_machine::StateReader;
use crate::state_machine::half::HALF_TOPIC;
use crate::state_machine::timer::TIMER_TOPIC;
use crate::store::{self, MessageStore, QueueEntry};

/// Queue entries read at once.
const STEP: usize = 1_000;

/// The first entry that holds a delayed message not delivered yet or a half message not decided yet; none if there is no
/// such message. Reads files.
pub(super) fn first_owed(state: &StateReader, store: &MessageStore, log: &LogView) -> store::Result<Option<u64>> {
    // Half messages lie in the log in the order of their numbers.
    let half = state.halves_from(0, 1).first().map(|(_, half)| half.physical_offset);
    let timer = state.timer_places(1).first().copied();
    let mut first = half.into_iter().chain(timer).min();
    for (queue_id, next) in levels(state, store) {
        let waiting =
            store.queue_entries(SCHEDULE_TOPIC, queue_id, next, 1)?.first().map(|entry| entry.physical_offset);
        first = first.into_iter().chain(waiting).min();
    }
    let Some(first) = first else { return Ok(None) };
    // A replica that began behind a snapshot has not applied yet that a message was moved. Until then it keeps all it has:
    // what waits behind may be anything.
    if first < log.extent()?.start.get() {
        return Ok(Some(0));
    }
    Ok(log.record_containing(LogPosition::new(first))?.map(|record| record.id.index.get()))
}

/// The bytes of all such messages that lie below `below` in the log. Reads files.
pub(super) fn owed_bytes(state: &StateReader, store: &MessageStore, below: u64) -> store::Result<u64> {
    let mut bytes = 0;
    let mut add = |entry: &QueueEntry| bytes += u64::from(entry.size);
    for (number, half) in state.halves_from(0, usize::MAX) {
        if half.physical_offset >= below {
            break;
        }
        store.queue_entries(HALF_TOPIC, 0, number, 1)?.iter().for_each(&mut add);
    }
    // Those that are pending and those that were stored, both in the order of the log.
    let places = state.timer_places(usize::MAX);
    let mut places = places.iter().copied().take_while(|place| *place < below).peekable();
    if places.peek().is_some() {
        visit(store, TIMER_TOPIC, 0, store.min_offset(TIMER_TOPIC, 0), below, |entry| {
            if places.next_if_eq(&entry.physical_offset).is_some() {
                add(entry);
            }
        })?;
    }
    for (queue_id, next) in levels(state, store) {
        visit(store, SCHEDULE_TOPIC, queue_id, next, below, &mut add)?;
    }
    Ok(bytes)
}

/// The queue of each delay level, and its first message that is not delivered yet.
fn levels(state: &StateReader, store: &MessageStore) -> impl Iterator<Item = (u32, u64)> {
    (0..u32::try_from(LEVELS_MAX).expect("18")).map(|queue_id| {
        let next = state.progress_mark(&mark_of(queue_id + 1)).max(store.min_offset(SCHEDULE_TOPIC, queue_id));
        (queue_id, next)
    })
}

/// Hands the entries of a queue to `look`, from an offset on and while their messages lie below `below`.
fn visit(
    store: &MessageStore,
    topic: &str,
    queue_id: u32,
    mut from: u64,
    below: u64,
    mut look: impl FnMut(&QueueEntry),
) -> store::Result<()> {
    loop {
        let entries = store.queue_entries(topic, queue_id, from, STEP)?;
        for entry in &entries {
            if entry.physical_offset >= below {
                return Ok(());
            }
            look(entry);
        }
        if entries.len() < STEP {
            return Ok(());
        }
        from += entries.len() as u64;
    }
}
