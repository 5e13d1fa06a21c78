//! The log as its readers see it: segments on disk, and a tail in memory.
//!
//! ```text
//!   purged          first                                 written        last
//!     v               v                                      v             v
//!  ...|  gone         | segment | segment |  open segment    |             |
//!                                              [ tail: newest records, in memory ]
//! ```
//!
//! An append first goes to the tail, where every reader finds it at once; the writer brings it into
//! the open segment later. A record leaves the tail once it is written, known to be chosen, and the
//! tail holds enough without it. So whoever reads just behind the writer, replication and apply,
//! shares the buffers that were appended and touches no file.
//!
//! Truncation changes bytes that a reader may be looking at. Such a reader holds no slice, since
//! slices are lent below the committed end only; it has a copy whose checks fail. It then looks at
//! [`State::epoch`]: if that has moved, it starts again, else the bytes are damaged.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::damage::DamagedRange;
use crate::entry::{Body, BodyKind, LogEntry};
use crate::error::{Error, Result};
use crate::ids::{LogId, LogIndex, LogPosition};
use crate::options::{FlushMode, Layout, Options};
use crate::preparer::Preparer;
use crate::progress::Purged;
use crate::record::{self, Draft, Header, Kind, Seed};
use crate::region::Files;
use crate::segment::{HEADER_BYTES, Segment};
use crate::stall::Pace;
use crate::times::Times;
use crate::verified::Verified;
use crate::view::{Extent, Health, RecordRange, ResumePoint, SealedSegment, Vote, Watermarks};

/// One record on its way to the disk, and in the tail.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) position: LogPosition,
    pub(crate) id: LogId,
    pub(crate) kind: BodyKind,
    pub(crate) payload: Bytes,
}

impl Record {
    pub(crate) fn stored_bytes(&self) -> u64 {
        record::HEADER_BYTES + record::padded(self.payload.len() as u64)
    }

    pub(crate) fn end(&self) -> LogPosition {
        self.position.plus(self.stored_bytes())
    }

    fn entry(&self) -> Result<LogEntry> {
        let mut entry = LogEntry::new(self.id, Body::decode(self.kind, self.payload.clone())?);
        entry.position = Some(self.position);
        Ok(entry)
    }
}

/// Everything that moves, under one lock that is held for moments only.
#[derive(Debug)]
pub(crate) struct State {
    /// In order. The last one is open. All but perhaps the last hold a record.
    pub(crate) segments: Vec<Arc<Segment>>,
    /// The newest records, without a gap up to `last`.
    pub(crate) tail: VecDeque<Record>,
    pub(crate) tail_bytes: u64,
    /// The last entry no longer held. May be ahead of the durable mark.
    pub(crate) purged: Option<LogId>,
    /// The first entry held. Meaningless while the log is empty.
    pub(crate) first: LogIndex,
    /// The last entry; the purged one if there is none.
    pub(crate) last: Option<LogId>,
    /// The end of the last record.
    pub(crate) end: LogPosition,
    /// Below this index everything has been written to its segment.
    pub(crate) written_next: LogIndex,
    /// The disk has everything below. Moved by whoever synced.
    pub(crate) flushed_end: LogPosition,
    pub(crate) committed: Option<LogId>,
    /// The end of the last committed record. Bytes below never change.
    pub(crate) committed_end: LogPosition,
    /// Moved by truncation and purge.
    pub(crate) epoch: u64,
    pub(crate) vote: Option<Vote>,
    /// Where the log will go on behind a snapshot that is being installed.
    pub(crate) resume: Option<(LogId, ResumePoint)>,
    pub(crate) applied: Option<LogId>,
}

impl State {
    fn is_empty(&self) -> bool {
        self.last == self.purged
    }

    /// The index the next entry must have; any, for a log that never had one.
    fn next_index(&self) -> Option<LogIndex> {
        self.last.map(|last| last.index.next())
    }

    /// The watermarks, their order checked. The one place that knows it.
    fn watermarks(&self) -> Watermarks {
        let marks = Watermarks {
            purged: self.purged,
            committed: self.committed,
            last: self.last,
            flushed_end: self.flushed_end,
            committed_end: self.committed_end,
            end: self.end,
        };
        let index = |id: Option<LogId>| id.map(|id| id.index);
        assert!(index(marks.purged) <= index(marks.committed), "{marks:?}");
        assert!(index(marks.committed) <= index(marks.last), "{marks:?}");
        assert!(marks.committed_end <= marks.end, "{marks:?}");
        assert!(marks.flushed_end <= marks.end, "{marks:?}");
        marks
    }

    fn tail_at(&self, index: LogIndex) -> Option<&Record> {
        let front = self.tail.front()?.id.index;
        let at = index.get().checked_sub(front.get())?;
        self.tail.get(usize::try_from(at).ok()?)
    }

    fn tail_covering(&self, position: LogPosition) -> Option<&Record> {
        let behind = self.tail.partition_point(|record| record.position <= position);
        let record = self.tail.get(behind.checked_sub(1)?)?;
        (position < record.end()).then_some(record)
    }

    /// The segment that holds entry `index`, and the first index beyond what can be read from it.
    fn segment_of(&self, index: LogIndex) -> Option<(Arc<Segment>, LogIndex)> {
        let at = self.segments.iter().rposition(|segment| segment.first_index().is_some_and(|first| first <= index))?;
        let next = self.segments.get(at + 1).and_then(|next| next.first_index());
        let limit = next.unwrap_or(self.written_next).min(self.written_next);
        Some((Arc::clone(self.segments.get(at)?), limit))
    }

    fn segment_covering(&self, layout: &Layout, position: LogPosition) -> Option<Arc<Segment>> {
        let base = layout.segment_base(position);
        let at = self.segments.binary_search_by_key(&base, |segment| segment.base).ok()?;
        self.segments.get(at).cloned()
    }

    /// Drops records from the tail that are safely elsewhere.
    fn trim_tail(&mut self, options: &Options) {
        while let Some(front) = self.tail.front() {
            let written = front.id.index < self.written_next;
            let committed = self.committed.is_some_and(|committed| front.id.index <= committed.index);
            let full = self.tail_bytes > options.tail_bytes;
            let overfull = self.tail_bytes > options.tail_bytes + options.unflushed_bytes_max;
            if !(written && full && (committed || overfull)) {
                break;
            }
            self.tail_bytes -= front.stored_bytes();
            self.tail.pop_front();
        }
    }
}

/// What a read starts from.
enum Source {
    /// These records, from the tail.
    Tail(Vec<Record>),
    /// A segment, up to but not including an index, and the committed end.
    Segment(Arc<Segment>, LogIndex, LogPosition),
    /// Nothing: the range is empty, or begins with what is no longer or not yet held.
    Nothing,
}

/// The log, shared by readers, Raft's adapter and the writer.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) options: Options,
    pub(crate) layout: Layout,
    pub(crate) files: Arc<dyn Files>,
    /// Names the store's directory for ever.
    pub(crate) store_uuid: [u8; 16],
    state: RwLock<State>,
    latched: OnceLock<String>,
    /// What is known to be damaged, by segment.
    pub(crate) damage: watch::Sender<Vec<DamagedRange>>,
    /// Records whose checksums were checked a moment ago.
    verified: Verified,
    pub(crate) health: watch::Sender<Health>,
    pub(crate) sealed: watch::Sender<Option<SealedSegment>>,
    pub(crate) sync_times: Times,
    pub(crate) preparer: Arc<Preparer>,
    pub(crate) pace: Arc<watch::Sender<Pace>>,
    /// Whether appends count as done once the disk has them. Changed by the writer alone.
    flush_is_sync: AtomicBool,
}

impl Log {
    pub(crate) fn new(
        options: Options,
        layout: Layout,
        files: Arc<dyn Files>,
        store_uuid: [u8; 16],
        state: State,
        preparer: Arc<Preparer>,
    ) -> Self {
        let sealed = watch::Sender::new(None);
        let health = watch::Sender::new(Health::Good);
        let pace = Arc::new(watch::Sender::new(Pace::Normal));
        let (state, latched, sync_times) = (RwLock::new(state), OnceLock::new(), Times::default());
        let (damage, verified) = (watch::Sender::new(Vec::new()), Verified::default());
        let flush_is_sync = AtomicBool::new(options.flush == FlushMode::Sync);
        Self {
            options,
            layout,
            files,
            store_uuid,
            state,
            latched,
            damage,
            verified,
            health,
            sealed,
            sync_times,
            preparer,
            pace,
            flush_is_sync,
        }
    }

    /// When an append counts as done, at present.
    pub(crate) fn flush_mode(&self) -> FlushMode {
        self.options.flush_mode(self.flush_is_sync.load(Ordering::Acquire))
    }

    pub(crate) fn set_flush_is_sync(&self, is_sync: bool) {
        self.flush_is_sync.store(is_sync, Ordering::Release);
    }

    /// The saved vote.
    pub(crate) fn vote(&self) -> Option<Vote> {
        self.state.read().vote
    }

    pub(crate) fn state(&self) -> parking_lot::RwLockReadGuard<'_, State> {
        self.state.read()
    }

    // ---- the latch ----

    /// The first failure of a write or sync, if there was one.
    pub(crate) fn check_latch(&self) -> Result<()> {
        match self.latched.get() {
            None => Ok(()),
            Some(reason) => Err(Error::Latched { reason: reason.clone() }),
        }
    }

    /// Closes the log to writes for ever. Returns whether this was the first failure.
    pub(crate) fn latch(&self, reason: &str) -> bool {
        let first = self.latched.set(reason.to_owned()).is_ok();
        if first {
            tracing::error!(dir = %self.options.dir.display(), reason, "the log has latched: nothing is acknowledged any more");
            self.health.send_replace(Health::Latched { reason: reason.to_owned() });
            self.preparer.give_up();
        }
        first
    }

    // ---- moved by Raft's adapter ----

    /// Waits until the segments are allocated that `entries` will lie in.
    ///
    /// # Errors
    /// If one of them fits no record, or the log takes no more.
    pub(crate) async fn reserve(&self, entries: &[(LogId, BodyKind, Bytes)]) -> Result<()> {
        self.check_latch()?;
        let mut end = self.state.read().end;
        for (id, _, payload) in entries {
            let (found, limit) = (payload.len() as u64, self.options.payload_bytes_max);
            if found > limit {
                return Err(Error::TooLarge { index: id.index, found, limit });
            }
            end = self.layout.place(end, found).plus(record::HEADER_BYTES + record::padded(found));
        }
        let reserved = self.preparer.reserve(self.layout.segment_base(end)).await;
        self.check_latch()?;
        reserved
    }

    /// Gives entries their places, which are reserved, and shows them to readers.
    ///
    /// # Panics
    /// If the entries would leave a hole.
    pub(crate) fn take(&self, entries: Vec<(LogId, BodyKind, Bytes)>) -> Result<Vec<Record>> {
        self.check_latch()?;
        let mut records = Vec::with_capacity(entries.len());
        let mut state = self.state.write();
        for (id, kind, payload) in entries {
            match state.next_index() {
                Some(next) => assert_eq!(id.index, next, "an append must follow the last entry"),
                None => {
                    state.first = id.index;
                    state.written_next = id.index;
                }
            }
            let record = Record { position: self.layout.place(state.end, payload.len() as u64), id, kind, payload };
            state.end = record.end();
            state.last = Some(id);
            state.tail_bytes += record.stored_bytes();
            state.tail.push_back(record.clone());
            records.push(record);
        }
        Ok(records)
    }

    /// Remembers what has been chosen. Never waits for the disk.
    pub(crate) fn commit(&self, committed: Option<LogId>) -> Result<()> {
        let Some(committed) = committed else { return Ok(()) };
        let (known_end, id) = {
            let state = self.state.read();
            let last = state.last.filter(|last| last.index < committed.index);
            let id = last.unwrap_or(committed);
            if state.committed.is_some_and(|old| old.index >= id.index) || state.last.is_none() {
                return Ok(());
            }
            (state.tail_at(id.index).map(Record::end), id)
        };
        let end = match known_end {
            Some(end) => end,
            None => match self.header_of(id.index) {
                Ok(Some(header)) => header.end(),
                // Reporting too little is always right, and the damage has been noted.
                Ok(None) | Err(Error::Damaged { .. }) => return Ok(()),
                Err(error) => return Err(error),
            },
        };
        let mut state = self.state.write();
        if state.committed.is_none_or(|old| old.index < id.index) {
            state.committed = Some(id);
            state.committed_end = state.committed_end.max(end);
            state.trim_tail(&self.options);
        }
        Ok(())
    }

    /// Hides entries up to `id`, which the log holds.
    pub(crate) fn hide_through(&self, id: LogId) {
        let mut state = self.state.write();
        if state.purged.is_some_and(|purged| purged.index >= id.index) {
            return;
        }
        assert!(state.last.is_some_and(|last| id.index <= last.index));
        state.purged = Some(id);
        state.first = id.index.next();
        state.epoch += 1;
        if state.committed.is_none_or(|committed| committed.index < id.index) {
            state.committed = Some(id);
        }
    }

    /// Where the log goes on behind an entry it does not hold.
    ///
    /// Without word from the snapshot that brought the entry, in a fresh segment: then the layout
    /// differs from that of the other replicas, which only tests may live with.
    pub(crate) fn resume_point_for(&self, id: LogId) -> ResumePoint {
        let state = self.state.read();
        match state.resume {
            Some((last, resume)) if last == id => resume,
            _ => {
                tracing::warn!(%id, "no snapshot told where the log goes on: positions may differ between replicas");
                let base = self.layout.segment_base(state.end);
                let unused = state.last.is_none();
                let base = if unused { base } else { self.layout.next_base(base) };
                ResumePoint { position: base.plus(HEADER_BYTES), chain: 0 }
            }
        }
    }

    pub(crate) fn set_resume_point(&self, last: LogId, resume: ResumePoint) {
        self.state.write().resume = Some((last, resume));
    }

    pub(crate) fn set_applied(&self, applied: LogId) {
        self.state.write().applied = Some(applied);
    }

    // ---- moved by the writer ----

    /// Takes note that everything below `next` has been written.
    pub(crate) fn note_written(&self, next: LogIndex) {
        let mut state = self.state.write();
        assert!(next >= state.written_next);
        state.written_next = next;
        state.trim_tail(&self.options);
    }

    pub(crate) fn note_flushed(&self, end: LogPosition) {
        let mut state = self.state.write();
        state.flushed_end = state.flushed_end.max(end);
    }

    pub(crate) fn set_vote(&self, vote: Vote) {
        self.state.write().vote = Some(vote);
    }

    pub(crate) fn add_segment(&self, segment: Arc<Segment>) {
        let mut state = self.state.write();
        assert!(state.segments.last().is_none_or(|last| last.base < segment.base));
        state.segments.push(segment);
    }

    /// Cuts everything behind `last`, which ends at `end`. Returns the segments that go.
    ///
    /// # Panics
    /// If a committed entry would go.
    pub(crate) fn cut(&self, last: Option<LogId>, end: LogPosition, chain: u32) -> Vec<Arc<Segment>> {
        let mut state = self.state.write();
        let index = last.map(|last| last.index);
        assert!(index >= state.committed.map(|committed| committed.index), "a committed entry is never cut");
        while state.tail.back().is_some_and(|record| Some(record.id.index) > index) {
            let record = state.tail.pop_back().expect("there is a last one");
            state.tail_bytes -= record.stored_bytes();
        }
        state.last = last;
        state.end = end;
        state.written_next = last.map_or(LogIndex::ZERO, |last| last.index.next());
        state.flushed_end = state.flushed_end.min(end);
        state.epoch += 1;
        let base = self.layout.segment_base(end);
        let gone = state.segments.iter().position(|segment| segment.base > base);
        let gone = gone.map_or_else(Vec::new, |at| state.segments.split_off(at));
        if let Some(open) = state.segments.last() {
            let held = open.first_index().filter(|first| Some(*first) <= index).and(last);
            open.note_cut(end, held, chain);
        }
        gone
    }

    /// Drops all entries: the log goes on behind `purged`. Returns the segments that go.
    pub(crate) fn reset(&self, purged: Purged) -> Vec<Arc<Segment>> {
        let mut state = self.state.write();
        state.tail.clear();
        state.tail_bytes = 0;
        state.purged = Some(purged.id);
        state.last = Some(purged.id);
        state.first = purged.id.index.next();
        state.written_next = state.first;
        state.end = purged.resume.position;
        state.flushed_end = purged.resume.position;
        if state.committed.is_none_or(|committed| committed.index <= purged.id.index) {
            state.committed = Some(purged.id);
        }
        state.committed_end = purged.resume.position;
        state.epoch += 1;
        state.resume = None;
        std::mem::take(&mut state.segments)
    }

    /// Puts a segment in the place of the one with the same base. Who reads the old one starts again.
    pub(crate) fn replace_segment(&self, segment: &Arc<Segment>) {
        {
            let mut state = self.state.write();
            let at = state.segments.binary_search_by_key(&segment.base, |other| other.base);
            let place = at.ok().and_then(|at| state.segments.get_mut(at)).expect("only the writer takes segments away");
            *place = Arc::clone(segment);
            state.epoch += 1;
        }
        self.verified.forget();
        self.clear_damage(segment.base);
    }

    /// Takes whole segments off the front that lie below `position`.
    pub(crate) fn drop_segments_below(&self, position: LogPosition) -> Vec<Arc<Segment>> {
        let base = self.layout.segment_base(position);
        let mut state = self.state.write();
        let keep = state.segments.partition_point(|segment| segment.base < base);
        // The open segment stays, whatever happens.
        let keep = keep.min(state.segments.len().saturating_sub(1));
        state.segments.drain(..keep).collect()
    }

    /// Maps the newest segments once more, so that they are known to a file of notes that is new.
    ///
    /// Only for a log that has just been opened: everything in it is on disk.
    pub(crate) fn map_again(&self) {
        let hot: Vec<Arc<Segment>> =
            self.state.read().segments.iter().rev().take(self.options.maps_hot).cloned().collect();
        for segment in hot {
            segment.region.cool();
            // Failing, reads copy.
            let _ = segment.region.warm();
        }
    }

    /// Unmaps and closes all but the newest segments, as far as the disk has them.
    pub(crate) fn cool_old_segments(&self) {
        let cold: Vec<Arc<Segment>> = {
            let state = self.state.read();
            let hot = state.segments.len().saturating_sub(self.options.maps_hot);
            let flushed = state.flushed_end;
            let is_done = |segment: &&Arc<Segment>| segment.content().end <= flushed && !segment.owes_footer();
            state.segments.iter().take(hot).filter(is_done).cloned().collect()
        };
        cold.iter().for_each(|segment| segment.region.cool());
    }

    // ---- reads ----

    pub(crate) fn watermarks(&self) -> Watermarks {
        self.state.read().watermarks()
    }

    /// The log state as openraft asks for it: last purged and last id.
    pub(crate) fn purged_and_last(&self) -> (Option<LogId>, Option<LogId>) {
        let state = self.state.read();
        (state.purged, state.last)
    }

    /// The segments that take no more records, oldest first.
    pub(crate) fn sealed_segments(&self) -> Vec<SealedSegment> {
        let state = self.state.read();
        let sealed = state.segments.len().saturating_sub(1);
        let describe = |segment: &Arc<Segment>| {
            let content = segment.content();
            let position = self.layout.next_base(segment.base).plus(HEADER_BYTES);
            let last = content.last.filter(|_| content.sealed)?;
            Some(SealedSegment { base: segment.base, last, resume: ResumePoint { position, chain: content.chain } })
        };
        state.segments.iter().take(sealed).filter_map(describe).collect()
    }

    /// What the log holds, and the room it takes.
    pub(crate) fn extent(&self) -> Result<Extent> {
        let (first, segments, end) = {
            let state = self.state.read();
            ((!state.is_empty()).then_some(state.first), state.segments.len(), state.end)
        };
        let place = match first {
            Some(first) => self.locate(first)?,
            None => None,
        };
        let start = place.map(|range| LogPosition::new(range.payload_start.get() - record::HEADER_BYTES));
        Ok(Extent {
            first: first.filter(|_| start.is_some()),
            start: start.unwrap_or(end),
            end,
            segments: segments as u64,
            file_bytes: segments as u64 * self.layout.segment_bytes,
        })
    }

    fn source(&self, from: LogIndex, until: LogIndex, bytes_max: u64) -> (u64, Source) {
        let state = self.state.read();
        let source = self.source_in(&state, from, until, bytes_max);
        (state.epoch, source)
    }

    fn source_in(&self, state: &State, from: LogIndex, until: LogIndex, bytes_max: u64) -> Source {
        let Some(next) = state.next_index() else { return Source::Nothing };
        let until = until.min(next);
        if state.is_empty() || from < state.first || from >= until {
            return Source::Nothing;
        }
        if state.tail_at(from).is_none() {
            return match state.segment_of(from) {
                Some((segment, limit)) => Source::Segment(segment, limit.min(until), state.committed_end),
                None => Source::Nothing,
            };
        }
        let mut taken = Vec::new();
        let mut bytes = 0;
        let mut index = from;
        while index < until
            && let Some(record) = state.tail_at(index)
        {
            bytes += record.payload.len() as u64;
            if bytes > bytes_max && !taken.is_empty() {
                break;
            }
            taken.push(record.clone());
            index = index.next();
        }
        Source::Tail(taken)
    }

    /// The part of `from..until` that the log holds now.
    pub(crate) fn held(&self, from: LogIndex, until: LogIndex) -> (LogIndex, LogIndex) {
        let state = self.state.read();
        match state.next_index() {
            Some(next) if !state.is_empty() => (from.max(state.first), until.min(next)),
            _ => (from, from),
        }
    }

    /// Whether a read from `from` on may have to wait for a disk.
    pub(crate) fn is_cold(&self, from: LogIndex) -> bool {
        let state = self.state.read();
        if from < state.first || state.tail_at(from).is_some() {
            return false;
        }
        let hot = state.segments.len().saturating_sub(self.options.maps_hot);
        let first_hot = state.segments.get(hot).and_then(|segment| segment.first_index());
        first_hot.is_some_and(|first| from < first)
    }

    /// A prefix of the entries `from..until`: at least one if the log holds `from`, and no more than
    /// `bytes_max` unless it is one.
    ///
    /// Empty if `from` is purged or not yet there: never the entries behind a missing one.
    pub(crate) fn read_some(&self, from: LogIndex, until: LogIndex, bytes_max: u64) -> Result<Vec<LogEntry>> {
        loop {
            let (epoch, source) = self.source(from, until, bytes_max);
            let result = match source {
                Source::Nothing => return Ok(Vec::new()),
                Source::Tail(records) => return records.iter().map(Record::entry).collect(),
                Source::Segment(segment, limit, stable_end) => {
                    read_segment(&segment, from, limit, stable_end, bytes_max)
                }
            };
            match result {
                Ok(entries) => {
                    assert!(entries.first().is_none_or(|first| first.log_index() == from));
                    return Ok(entries);
                }
                Err(error) if self.state.read().epoch == epoch => return self.noting(Err(error)),
                Err(_) => {}
            }
        }
    }

    /// All entries the log holds in `from..until`, as of one moment.
    pub(crate) fn read_all(&self, from: LogIndex, until: LogIndex) -> Result<Vec<LogEntry>> {
        'again: loop {
            let (epoch, mut next, end) = {
                let state = self.state.read();
                let Some(behind) = state.next_index() else { return Ok(Vec::new()) };
                if state.is_empty() {
                    return Ok(Vec::new());
                }
                (state.epoch, from.max(state.first), until.min(behind))
            };
            let mut entries = Vec::new();
            while next < end {
                let some = self.read_some(next, end, u64::MAX)?;
                if self.state.read().epoch != epoch {
                    continue 'again;
                }
                let Some(last) = some.last() else {
                    return Err(Error::NotStored { position: LogPosition::ZERO, bytes: 0 });
                };
                next = last.log_index().next();
                entries.extend(some);
            }
            return Ok(entries);
        }
    }

    /// The header of the record of entry `index`, read from its segment.
    fn header_of(&self, index: LogIndex) -> Result<Option<Header>> {
        loop {
            let (epoch, source) = self.source_on_disk(index);
            let Some((segment, stable_end)) = source else { return Ok(None) };
            match segment.find(index, stable_end) {
                Ok(header) => return Ok(Some(header)),
                Err(error) if self.state.read().epoch == epoch => return self.noting(Err(error)),
                Err(_) => {}
            }
        }
    }

    fn source_on_disk(&self, index: LogIndex) -> (u64, Option<(Arc<Segment>, LogPosition)>) {
        let state = self.state.read();
        let found = state.segment_of(index).filter(|(_, limit)| index < *limit);
        (state.epoch, found.map(|(segment, _)| (segment, state.committed_end)))
    }

    /// Where entry `index` lies.
    pub(crate) fn locate(&self, index: LogIndex) -> Result<Option<RecordRange>> {
        {
            let state = self.state.read();
            if state.is_empty() || index < state.first {
                return Ok(None);
            }
            if let Some(record) = state.tail_at(index) {
                return Ok(Some(range_of_record(record)));
            }
        }
        Ok(self.header_of(index)?.as_ref().map(range_of_header))
    }

    /// The record that covers `position`.
    pub(crate) fn locate_position(&self, position: LogPosition) -> Result<Option<RecordRange>> {
        loop {
            let (epoch, segment, stable_end) = {
                let state = self.state.read();
                if let Some(record) = state.tail_covering(position) {
                    return Ok(Some(range_of_record(record)));
                }
                (state.epoch, state.segment_covering(&self.layout, position), state.committed_end)
            };
            let Some(segment) = segment else { return Ok(None) };
            match segment.find_at(position, stable_end) {
                Ok(found) => {
                    let first = self.state.read().first;
                    return Ok(found.as_ref().map(range_of_header).filter(|range| range.id.index >= first));
                }
                Err(error) if self.state.read().epoch == epoch => return self.noting(Err(error)),
                Err(_) => {}
            }
        }
    }

    /// Bytes from anywhere inside one record.
    pub(crate) fn read_bytes(&self, position: LogPosition, bytes: u64) -> Result<Bytes> {
        if bytes == 0 {
            return Ok(Bytes::new());
        }
        let missing = || Error::NotStored { position, bytes };
        let end = LogPosition::new(position.get().checked_add(bytes).ok_or_else(missing)?);
        loop {
            let (epoch, segment, stable_end) = {
                let state = self.state.read();
                if let Some(record) = state.tail_covering(position) {
                    let payload = record.position.plus(record::HEADER_BYTES);
                    let inside = position >= payload && end <= payload.plus(record.payload.len() as u64);
                    if !inside {
                        return Err(missing());
                    }
                    let start = usize::try_from(position.since(payload)).map_err(|_| missing())?;
                    let length = usize::try_from(bytes).map_err(|_| missing())?;
                    return Ok(record.payload.slice(start..start + length));
                }
                let segment = state.segment_covering(&self.layout, position).ok_or_else(missing)?;
                (state.epoch, segment, state.committed_end)
            };
            let (first, written_end) = {
                let content = segment.content();
                (content.opening.ok_or_else(missing)?.first_offset, content.end)
            };
            let offset = segment.offset(position);
            if end > written_end || offset < u64::from(first) {
                return Err(missing());
            }
            let stable_end = stable_end.min(written_end);
            let read = self.read_checked(&segment, position, bytes, stable_end);
            if (end > stable_end || read.is_err()) && self.state.read().epoch != epoch {
                continue;
            }
            return match read {
                Ok(Some(bytes)) => Ok(bytes),
                Ok(None) => Err(missing()),
                // A purge took the file away.
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Err(missing()),
                Err(error) => self.noting(Err(error)),
            };
        }
    }

    /// Bytes from inside one payload, whose checksum has been compared. `None` if they do not lie in one.
    fn read_checked(
        &self,
        segment: &Segment,
        position: LogPosition,
        bytes: u64,
        stable_end: LogPosition,
    ) -> Result<Option<Bytes>> {
        let end = position.plus(bytes);
        let stable = stable_end.get().saturating_sub(segment.base.get());
        let block = |offset: u64, bytes: u64| {
            segment.block(offset, bytes, stable).map_err(|error| segment.read_failed(offset, error))
        };
        if self.verified.covers(position, end) {
            return block(segment.offset(position), bytes).map(Some);
        }
        let Some(header) = segment.find_at(position, stable_end)? else { return Ok(None) };
        let start = header.position.plus(record::HEADER_BYTES);
        let payload_end = start.plus(u64::from(header.payload_bytes));
        if position < start || end > payload_end {
            return Ok(None);
        }
        let payload = block(segment.offset(start), u64::from(header.payload_bytes))?;
        if !header.verifies(segment.seed, &payload) {
            return Err(segment.damaged(header.position, "a payload", "one whose checksum does not hold"));
        }
        if payload_end <= stable_end {
            self.verified.add(start, payload_end);
        }
        let from = usize::try_from(position.since(start)).expect("inside a payload");
        Ok(Some(payload.slice(from..from + usize::try_from(bytes).expect("inside a payload"))))
    }

    /// Where a log that starts behind entry `index` goes on.
    pub(crate) fn resume_point_after(&self, index: LogIndex) -> Result<ResumePoint> {
        {
            let state = self.state.read();
            if state.purged.is_some_and(|purged| index < purged.index) {
                return Err(Error::Purged { index });
            }
            if let Some(record) = state.tail_at(index) {
                let next_base = state.tail_at(index.next()).map(|next| self.layout.segment_base(next.position));
                return Ok(self.resume_behind(record, next_base));
            }
        }
        let missing = || Error::Purged { index };
        loop {
            let (epoch, source) = self.source_on_disk(index);
            let (segment, stable_end) = source.ok_or_else(missing)?;
            let sealed = {
                let content = segment.content();
                let last_here = content.sealed && content.last.is_some_and(|last| last.index == index);
                last_here.then_some(content.chain)
            };
            if let Some(chain) = sealed {
                let position = self.layout.next_base(segment.base).plus(HEADER_BYTES);
                return Ok(ResumePoint { position, chain });
            }
            match segment.find(index, stable_end) {
                Ok(header) => return Ok(ResumePoint { position: header.end(), chain: header.payload_crc }),
                Err(error) if self.state.read().epoch == epoch => return self.noting(Err(error)),
                Err(_) => {}
            }
        }
    }

    /// What stands behind a record that is perhaps not written yet.
    fn resume_behind(&self, record: &Record, next_base: Option<LogPosition>) -> ResumePoint {
        let base = self.layout.segment_base(record.position);
        let seed = Seed::new(&self.layout.cluster_id, base);
        let kind = Kind::Body(record.kind);
        let draft = Draft { position: record.position, id: record.id, kind, chain: 0, payload: &record.payload };
        let (header, _) = draft.seal(seed);
        match next_base.filter(|next| *next != base) {
            None => ResumePoint { position: header.end(), chain: header.payload_crc },
            Some(next) => {
                let (pad, _) = Draft::pad(header.end(), record.id, header.payload_crc).seal(seed);
                ResumePoint { position: next.plus(HEADER_BYTES), chain: pad.payload_crc }
            }
        }
    }
}

fn read_segment(
    segment: &Segment,
    from: LogIndex,
    limit: LogIndex,
    stable_end: LogPosition,
    bytes_max: u64,
) -> Result<Vec<LogEntry>> {
    let (start, end) = {
        let content = segment.content();
        (content.index.at_or_before(from), content.end)
    };
    let Some((_, offset)) = start else {
        return Err(segment.damaged(segment.base, format!("entry {from}"), "a segment that starts behind it"));
    };
    let mut cursor = segment.cursor(u64::from(offset), end, stable_end, bytes_max.min(1 << 20));
    let mut entries = Vec::new();
    let mut bytes = 0;
    let mut next = from;
    while next < limit {
        let Some(header) = cursor.header()? else {
            return Err(segment.damaged(end, format!("entry {next}"), "the end of the segment"));
        };
        if header.kind == Kind::Pad || header.id.index < from {
            cursor.skip(&header);
            continue;
        }
        if header.id.index != next {
            return Err(segment.damaged(
                header.position,
                format!("entry {next}"),
                format!("entry {}", header.id.index),
            ));
        }
        bytes += u64::from(header.payload_bytes);
        if bytes > bytes_max && !entries.is_empty() {
            break;
        }
        entries.extend(cursor.entry(&header)?);
        next = next.next();
    }
    Ok(entries)
}

fn range_of_record(record: &Record) -> RecordRange {
    RecordRange {
        id: record.id,
        payload_start: record.position.plus(record::HEADER_BYTES),
        payload_bytes: record.payload.len() as u64,
    }
}

fn range_of_header(header: &Header) -> RecordRange {
    RecordRange {
        id: header.id,
        payload_start: header.position.plus(record::HEADER_BYTES),
        payload_bytes: u64::from(header.payload_bytes),
    }
}
