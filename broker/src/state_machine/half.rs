//! Half messages: sent in a transaction whose end is not known yet.
//!
//! A message stored in [`HALF_TOPIC`] is pending from the entry that stores it. An entry that names it decides it, or
//! moves it to another place in the log, and carries the message that follows from that. Such an entry is refused unless
//! all it names is pending where it says, so a half message is decided once, whoever leads and however often it is asked.
//!
//! ```text
//!   stored -----------> pending --- committed: its message goes to the topic it names
//!                       |  ^  ^ \-- rolled back: nothing follows
//!              checked -+--'  |  \- given up: its copy goes to GIVEN_UP_TOPIC
//!                             '------ resumed --'
//! ```

use std::collections::{BTreeMap, BTreeSet};

use bincode::{Decode, Encode};
use protocol::GroupName;
use protocol::message::{RecordView, property};

/// Holds half messages, in queue 0.
pub const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
/// Holds half messages that nobody would decide, in queue 0.
pub const GIVEN_UP_TOPIC: &str = "TRANS_CHECK_MAX_TIME_TOPIC";

/// So many messages given up can be resumed, the newest.
const GIVEN_UP_MAX: usize = 65_536;

/// A half message that is not decided.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Half {
    /// Where it is.
    pub physical_offset: u64,
    /// The producer group that may decide it.
    #[bincode(with_serde)]
    pub group: GroupName,
    /// The leader's time when it was sent. It stays when the message moves.
    pub stored_ms: i64,
    /// For so long its producer is not asked, if the message says how long.
    pub immunity_ms: Option<i64>,
    /// How often its producer was asked.
    pub checks: u32,
}

/// Names a half message by both of its places, of which a client tells both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct HalfPlace {
    /// Its number in [`HALF_TOPIC`].
    pub queue_offset: u64,
    /// Its place in the log.
    pub physical_offset: u64,
}

/// How a half message ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum HalfEnd {
    /// The record that follows is its message.
    Commit,
    /// No record follows.
    Rollback,
    /// The record that follows is its copy in [`GIVEN_UP_TOPIC`].
    GiveUp,
}

impl Half {
    /// What a record of [`HALF_TOPIC`] says; none if no producer group could decide it. Its place is not known yet.
    pub(super) fn of(record: &RecordView<'_>) -> Option<Self> {
        let properties = record.properties();
        Some(Self {
            physical_offset: 0,
            group: GroupName::parse(properties.get(property::PGROUP)?).ok()?,
            stored_ms: record.store_timestamp(),
            immunity_ms: properties
                .get(property::CHECK_IMMUNITY_TIME_IN_SECONDS)
                .and_then(|seconds| seconds.parse::<u32>().ok())
                .map(|seconds| i64::from(seconds) * 1_000),
            checks: 0,
        })
    }
}

/// All half messages that are not decided, and those given up.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Halves {
    /// By number in [`HALF_TOPIC`]. Places grow with it.
    pub(crate) pending: BTreeMap<u64, Half>,
    /// Places of the copies in [`GIVEN_UP_TOPIC`] that were not resumed.
    pub(crate) given_up: BTreeSet<u64>,
}

impl Halves {
    /// The first of `places` at which no half message is pending.
    pub(super) fn not_pending(&self, places: &[HalfPlace]) -> Option<HalfPlace> {
        places
            .iter()
            .copied()
            .enumerate()
            .find(|(at, place)| {
                let pending = self.pending.get(&place.queue_offset);
                pending.is_none_or(|half| half.physical_offset != place.physical_offset)
                    || places[..*at].contains(place)
            })
            .map(|(_, place)| place)
    }

    /// A half message was stored.
    pub(super) fn stored(&mut self, place: HalfPlace, half: Half) {
        let half = Half { physical_offset: place.physical_offset, ..half };
        let before = self.pending.insert(place.queue_offset, half);
        assert!(before.is_none(), "a queue offset belongs to one message");
    }

    /// A copy of a half message was given up.
    pub(super) fn gave_up(&mut self, physical_offset: u64) {
        self.given_up.insert(physical_offset);
        while self.given_up.len() > GIVEN_UP_MAX {
            self.given_up.pop_first();
        }
    }
}

#[cfg(test)]
mod tests;
