//! Lets entries of the leader wait outside of Raft while the disk has no room for them.
//!
//! Raft does one thing after the other, so an append that waits for room would also keep it from hearing the leader and
//! from voting: a full disk would cost the group a voter. Entries wait on their stream instead. The leader sees a
//! follower that lives and falls behind.

use std::sync::OnceLock;

use openraft::raft::AppendEntriesRequest;
use raft_store::{Body, LogEntry, LogPosition, LogView};

use super::type_config::TypeConfig;

/// Header, padding, and what a membership takes at most.
const BESIDES_PAYLOAD: u64 = 4 << 10;
/// Raft has taken no more than so much that the log does not show yet.
const IN_FLIGHT_BYTES_MAX: u64 = 32 << 20;

/// The log whose room counts; without one nothing waits.
#[derive(Debug, Default)]
pub(super) struct Room(OnceLock<LogView>);

impl Room {
    pub(super) fn watch(&self, log: LogView) {
        // Told twice, it is the same one.
        let _ = self.0.set(log);
    }

    pub(super) fn stream(&self) -> StreamRoom {
        let log = self.0.get().cloned();
        let start = log.as_ref().map_or(LogPosition::ZERO, |log| log.watermarks().end);
        StreamRoom { log, start, admitted: 0 }
    }
}

/// What one stream has handed to Raft.
#[derive(Debug)]
pub(super) struct StreamRoom {
    log: Option<LogView>,
    /// The end of the log when the stream began.
    start: LogPosition,
    admitted: u64,
}

impl StreamRoom {
    /// Waits until the log can take the entries of a request.
    pub(super) async fn admit(&mut self, request: &AppendEntriesRequest<TypeConfig>) {
        let Some(log) = &self.log else { return };
        let bytes: u64 = request.entries.iter().map(bytes_max).sum();
        if bytes == 0 {
            return;
        }
        let appended = log.watermarks().end.get().saturating_sub(self.start.get());
        let in_flight = self.admitted.saturating_sub(appended).min(IN_FLIGHT_BYTES_MAX);
        log.room_for(in_flight + bytes).await;
        self.admitted += bytes;
    }
}

fn bytes_max(entry: &LogEntry) -> u64 {
    let payload = match &entry.body {
        Body::Normal(payload) => payload.0.len() as u64,
        Body::Blank | Body::Membership(_) => 0,
    };
    payload + BESIDES_PAYLOAD
}
