//! What state machine and store want of the log.
//!
//! The one implementation outside tests is [`LogView`]. Tests keep a log in memory, whose end they can lose.

use bytes::Bytes;
use raft_store::{Body, LogId, LogIndex, LogPosition, LogView, ResumePoint, Term};

use crate::state_machine::snapshot::ResumeImage;
use crate::state_machine::state::EntryId;

use super::error::Result;

/// A log of applied entries, by position.
pub(crate) trait Log: Send + Sync + 'static {
    /// `len` bytes from `position`, within one payload. None if the log does not hold them any more.
    fn read(&self, position: u64, len: u64) -> Result<Option<Bytes>>;
    /// The record whose header or payload covers `position`.
    fn record_around(&self, position: u64) -> Result<Option<RecordPlace>>;
    /// Start of the segment that covers `position`.
    fn segment_base(&self, position: u64) -> u64;
    /// Where the log goes on after entry `index`.
    fn resume_after(&self, index: u64) -> Result<ResumeImage>;
    /// Tells a log that is about to be purged up to entry `last` where it goes on.
    fn set_resume(&self, last: EntryId, resume: ResumeImage);
    /// Where the first record held starts; the end of an empty log.
    fn start(&self) -> Result<u64>;
    /// Where the last record held ends.
    fn end(&self) -> u64;
    /// The first entry held.
    fn first_index(&self) -> Option<u64>;
    /// The payload of entry `index`, if the log holds it and it has one.
    fn payload(&self, index: u64) -> Result<Option<Bytes>>;
    /// The last entry.
    fn last_index(&self) -> Option<u64>;
    /// The last entry no longer held.
    fn purged_index(&self) -> Option<u64>;
}

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordPlace {
    pub(crate) id: EntryId,
    pub(crate) payload_start: u64,
    pub(crate) payload_len: u64,
}

impl Log for LogView {
    fn read(&self, position: u64, len: u64) -> Result<Option<Bytes>> {
        match Self::read(self, LogPosition::new(position), len) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(raft_store::Error::NotStored { .. } | raft_store::Error::Purged { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn record_around(&self, position: u64) -> Result<Option<RecordPlace>> {
        let range = self.record_containing(LogPosition::new(position))?;
        Ok(range.map(|range| RecordPlace {
            id: EntryId { term: range.id.term.get(), index: range.id.index.get() },
            payload_start: range.payload_start.get(),
            payload_len: range.payload_bytes,
        }))
    }

    fn segment_base(&self, position: u64) -> u64 {
        Self::segment_base(self, LogPosition::new(position)).get()
    }

    fn resume_after(&self, index: u64) -> Result<ResumeImage> {
        let resume = self.resume_point_after(LogIndex::new(index))?;
        Ok(ResumeImage { position: resume.position.get(), chain: resume.chain })
    }

    fn set_resume(&self, last: EntryId, resume: ResumeImage) {
        let resume = ResumePoint { position: LogPosition::new(resume.position), chain: resume.chain };
        self.set_resume_point(LogId::new(Term::new(last.term), LogIndex::new(last.index)), resume);
    }

    fn start(&self) -> Result<u64> {
        Ok(self.extent()?.start.get())
    }

    fn end(&self) -> u64 {
        self.watermarks().end.get()
    }

    fn first_index(&self) -> Option<u64> {
        let marks = self.watermarks();
        let first = marks.purged.map_or(0, |id| id.index.get() + 1);
        marks.last.filter(|last| last.index.get() >= first).map(|_| first)
    }

    fn payload(&self, index: u64) -> Result<Option<Bytes>> {
        let index = LogIndex::new(index);
        Ok(match self.entries(index, index).next().transpose()?.map(|entry| entry.body) {
            Some(Body::Normal(payload)) => Some(payload.0),
            _ => None,
        })
    }

    fn last_index(&self) -> Option<u64> {
        self.watermarks().last.map(|id| id.index.get())
    }

    fn purged_index(&self) -> Option<u64> {
        self.watermarks().purged.map(|id| id.index.get())
    }
}
