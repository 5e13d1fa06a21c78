//! Timer messages: each is to be delivered at a time of its own.
//!
//! A message stored in [`TIMER_TOPIC`] is pending from the entry that stores it. An entry that names it fires it, and
//! carries the message that its consumers get, or moves it to another place in the log. Such an entry is refused unless
//! all it names is pending, so a timer fires once, whoever leads and however often it is proposed. A timer that is
//! recalled fires too, only that nothing follows.
//!
//! ```text
//!   stored ----> pending --- fired: its message goes to the topic it names
//!                |    ^  \-- recalled: nothing follows
//!                '----'
//!                moved
//! ```
//!
//! A pending timer costs 24 bytes and the slack of two B-trees; its message stays in the log.

use std::collections::BTreeSet;

use bincode::{Decode, Encode};
use protocol::message::{RecordView, property};

/// Holds timer messages, in queue 0.
pub const TIMER_TOPIC: &str = "rmq_sys_wheel_timer";

/// Names a pending timer. The one that is due first is the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct Timer {
    /// When it is due, in milliseconds since 1970. It stays when the message moves.
    pub due_ms: i64,
    /// Where its message is.
    pub physical_offset: u64,
}

/// All timers that have not fired.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Timers {
    by_time: BTreeSet<Timer>,
    /// Their places.
    by_place: BTreeSet<u64>,
}

/// When a record of [`TIMER_TOPIC`] is due; none if it does not say.
pub(crate) fn due_of(record: &RecordView<'_>) -> Option<i64> {
    record.properties().get(property::TIMER_OUT_MS)?.parse().ok()
}

impl Timers {
    /// A timer message was stored.
    pub(super) fn stored(&mut self, timer: Timer) {
        let is_new = self.by_place.insert(timer.physical_offset);
        assert!(is_new, "a place in the log belongs to one message");
        self.by_time.insert(timer);
    }

    /// The first of `timers` that is not pending, or is named twice.
    pub(super) fn not_pending(&self, timers: &[Timer]) -> Option<Timer> {
        let mut named = BTreeSet::new();
        timers.iter().copied().find(|timer| !self.by_time.contains(timer) || !named.insert(*timer))
    }

    /// Timers that are pending are not any more.
    pub(super) fn remove(&mut self, timers: &[Timer]) {
        for timer in timers {
            let was_pending = self.by_time.remove(timer) && self.by_place.remove(&timer.physical_offset);
            assert!(was_pending, "only what is pending is removed");
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_time.len()
    }

    /// Whether this one is pending.
    pub(crate) fn contains(&self, timer: Timer) -> bool {
        self.by_time.contains(&timer)
    }

    /// In the order in which they are due.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Timer> {
        self.by_time.iter().copied()
    }

    /// Their places, in the order of the log.
    pub(crate) fn places(&self) -> impl Iterator<Item = u64> {
        self.by_place.iter().copied()
    }

    /// All of them in few bytes: for each the time since the one before, and its place, seven bits a byte.
    pub(super) fn pack(&self) -> Vec<u8> {
        // About what a timer takes.
        let mut packed = Vec::with_capacity(self.len() * 9);
        let mut before = 0_i64;
        for timer in &self.by_time {
            pack_number(timer.due_ms.abs_diff(before), &mut packed);
            pack_number(timer.physical_offset, &mut packed);
            before = timer.due_ms;
        }
        packed
    }

    /// What [`Timers::pack`] packed; none if that is something else.
    pub(super) fn unpack(mut packed: &[u8]) -> Option<Self> {
        let mut by_time = Vec::new();
        let mut before = 0_i64;
        while !packed.is_empty() {
            let since = unpack_number(&mut packed)?;
            let due_ms = before.checked_add_unsigned(since)?;
            by_time.push(Timer { due_ms, physical_offset: unpack_number(&mut packed)? });
            before = due_ms;
        }
        let by_place: BTreeSet<u64> = by_time.iter().map(|timer| timer.physical_offset).collect();
        let is_whole = by_place.len() == by_time.len() && by_time.is_sorted();
        is_whole.then(|| Self { by_time: by_time.into_iter().collect(), by_place })
    }
}

fn pack_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn unpack_number(packed: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = packed.split_first()?;
        *packed = rest;
        let part = u64::from(byte & 0x7f);
        if part << shift >> shift != part {
            return None;
        }
        number |= part << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests;
