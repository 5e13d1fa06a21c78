//! Which payloads were compared with their checksums a moment ago.
//!
//! A consumer reads the messages of one record one after the other. Each read compares the record's checksum before
//! anything of it is handed out; remembering the last few records makes that once a record and not once a message.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::ids::LogPosition;

const REMEMBERED: usize = 64;

/// The payloads' ranges, newest last.
#[derive(Debug, Default)]
pub(crate) struct Verified(Mutex<VecDeque<(LogPosition, LogPosition)>>);

impl Verified {
    pub(crate) fn covers(&self, from: LogPosition, to: LogPosition) -> bool {
        self.0.lock().iter().rev().any(|(start, end)| *start <= from && to <= *end)
    }

    pub(crate) fn add(&self, from: LogPosition, to: LogPosition) {
        let mut ranges = self.0.lock();
        if ranges.len() == REMEMBERED {
            ranges.pop_front();
        }
        ranges.push_back((from, to));
    }

    pub(crate) fn forget(&self) {
        self.0.lock().clear();
    }
}
