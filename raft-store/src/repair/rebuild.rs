//! Writes the new file of a damaged segment, record by record and gap by gap.

use std::sync::Arc;

use super::{RangeAnswer, RangeSource, Repaired};
use crate::error::{Error, Result};
use crate::ids::{LogIndex, LogPosition};
use crate::options::{Layout, Preparation};
use crate::record::{Header, Kind, Seed};
use crate::region::{Files, Region};
use crate::scan::{Behind, Gap, Piece, Scan};
use crate::segment::{self, Content, Opening, Segment};

/// Bytes gathered before they are written.
const WRITE_BYTES: usize = 1 << 20;
/// Bytes written before they are synced: a single sync of a whole segment would look like a disk that hangs.
const SYNC_BYTES: u64 = 32 << 20;
/// How much of one damaged range is kept aside.
const ASIDE_BYTES_MAX: u64 = 64 << 20;

/// What is known of a segment apart from its file.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// Where its records start.
    pub(super) opening: Option<Opening>,
    /// Without an opening: what the first record follows.
    pub(super) behind: Option<Behind>,
    pub(super) right: Right,
}

/// What stands behind the last record.
#[derive(Clone, Copy, Debug)]
pub(super) enum Right {
    /// The records end here, with this chain value.
    End { end: LogPosition, chain: u32 },
    /// A pad, and then the next segment with this opening.
    Next(Opening),
    /// Nobody can tell. Everything below was on disk.
    Unknown { flushed: LogPosition },
}

/// A new file, complete up to a position, that waits under another name.
pub(crate) struct Replacement {
    pub(crate) base: LogPosition,
    pub(crate) name: String,
    pub(crate) region: Arc<dyn Region>,
    pub(crate) content: Content,
}

pub(super) struct Rebuild<'a> {
    files: &'a dyn Files,
    layout: &'a Layout,
    base: LogPosition,
    seed: Seed,
    old: Arc<dyn Region>,
    new: Arc<dyn Region>,
    name: String,
    source: &'a dyn RangeSource,
    behind: Option<Behind>,
    headers: Vec<Header>,
    pending: Vec<u8>,
    pending_at: u64,
    unsynced: u64,
    repaired: Repaired,
}

/// Why a gap is not filled by a peer.
enum Refusal {
    /// What the peer has there is damaged or gone.
    Lost(&'static str),
    /// It has dropped it.
    Purged,
    /// It has something else there, or nothing.
    Differs(String),
    /// It may yet answer.
    NotNow(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost(reason) => f.write_str(reason),
            Self::Purged => f.write_str("has purged it"),
            Self::Differs(reason) | Self::NotNow(reason) => f.write_str(reason),
        }
    }
}

impl<'a> Rebuild<'a> {
    /// Creates the new file beside the old one.
    pub(super) fn begin(
        files: &'a dyn Files,
        layout: &'a Layout,
        base: LogPosition,
        old: Arc<dyn Region>,
        source: &'a dyn RangeSource,
    ) -> Result<Self> {
        let name = format!("{}.repair.{}", segment::file_name(base), crate::durable::TEMPORARY);
        let head = segment::encode_head(&layout.cluster_id, base, layout.segment_bytes);
        files.remove(std::slice::from_ref(&name))?;
        let new = files.create(&name, layout.segment_bytes, &head, Preparation::Allocate)?;
        let seed = Seed::new(&layout.cluster_id, base);
        let repaired = Repaired { ranges: Vec::new(), fetched_bytes: 0 };
        let (behind, headers, pending) = (None, Vec::new(), Vec::new());
        Ok(Self {
            files,
            layout,
            base,
            seed,
            old,
            new,
            name,
            source,
            behind,
            headers,
            pending,
            pending_at: 0,
            unsynced: 0,
            repaired,
        })
    }

    /// Fills and syncs the file. On failure it is removed.
    pub(super) fn run(mut self, known: Known) -> Result<(Replacement, Repaired)> {
        match self.fill(known) {
            Ok(content) => {
                let Self { base, name, new, repaired, .. } = self;
                Ok((Replacement { base, name, region: new, content }, repaired))
            }
            Err(error) => {
                if let Err(error) = self.files.remove(&[self.name]) {
                    tracing::warn!(%error, "an unfinished repair is left over until the next start");
                }
                Err(error)
            }
        }
    }

    fn io(&self, doing: &'static str, error: std::io::Error) -> Error {
        Error::io(doing, self.new.path(), error)
    }

    fn fill(&mut self, known: Known) -> Result<Content> {
        let old = Arc::clone(&self.old);
        let read = |offset: u64, into: &mut [u8]| old.read(offset, into);
        let first = known.opening.map_or(segment::HEADER_BYTES, |opening| u64::from(opening.first_offset));
        let first = self.base.plus(first);
        let mut scan = Scan::new(&read, self.layout, self.base, known.opening);
        if known.opening.is_none() {
            scan = scan.starting_at(first, known.behind);
        }
        if let Right::End { end, .. } = known.right {
            scan = scan.until(end);
        }
        self.behind = scan.behind();
        let mut at = first;
        let mut gap: Option<Gap> = None;
        let mut sealed = false;
        while let Some(piece) = scan.next() {
            match piece {
                Piece::Gap(found) => {
                    self.keep_aside(&found);
                    gap = Some(found);
                }
                Piece::Record(header, payload) => {
                    if gap.take().is_some() {
                        self.fill_gap(at, header.position, Some((header.chain, header.id.index)))?;
                    }
                    self.put(&header, &payload)?;
                    sealed = header.kind == Kind::Pad;
                    at = header.end();
                }
            }
        }
        if !sealed {
            at = self.fill_end(at, gap.is_some(), known.right)?;
        }
        self.check_end(at, known.right)?;
        self.flush()?;
        self.finish(known)
    }

    /// Copies what is damaged, as far as it can be read, before it is replaced.
    fn keep_aside(&self, gap: &Gap) {
        let bytes = gap.to.since(gap.from).min(ASIDE_BYTES_MAX);
        let mut copy = vec![0; usize::try_from(bytes).unwrap_or(0)];
        let offset = gap.from.since(self.base);
        for (at, page) in copy.chunks_mut(4096).enumerate() {
            let _ = self.old.read(offset + at as u64 * 4096, page);
        }
        let name = format!("{:020}-damaged", gap.from);
        if let Err(error) = self.files.keep_aside(&name, &copy) {
            tracing::warn!(%error, from = %gap.from, to = %gap.to, "damaged bytes are not kept in quarantine");
        }
    }

    // ---- writing ----

    fn put(&mut self, header: &Header, payload: &[u8]) -> Result<()> {
        let offset = header.position.since(self.base);
        let follows = offset == self.pending_at + self.pending.len() as u64;
        if !follows || self.pending.len() >= WRITE_BYTES {
            self.flush()?;
            self.pending_at = offset;
        }
        self.pending.extend_from_slice(&header.encode(self.seed));
        self.pending.extend_from_slice(payload);
        let padded = self.pending.len().next_multiple_of(64);
        self.pending.resize(padded, 0);
        self.behind = Some(behind(header));
        self.headers.push(*header);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if !self.pending.is_empty() {
            self.new.write(self.pending_at, &self.pending).map_err(|e| self.io("writing", e))?;
            self.unsynced += self.pending.len() as u64;
            self.pending.clear();
            if self.unsynced >= SYNC_BYTES {
                self.new.sync().map_err(|e| self.io("syncing", e))?;
                self.unsynced = 0;
            }
        }
        Ok(())
    }

    /// Opening, footer, sync.
    fn finish(&mut self, known: Known) -> Result<Content> {
        let segment = Segment::empty(self.layout, self.base, Arc::clone(&self.new));
        let Some(first) = self.headers.first() else {
            self.new.sync().map_err(|e| self.io("syncing", e))?;
            return Ok(segment.content().clone());
        };
        let first_offset = u32::try_from(first.position.since(self.base)).expect("an offset in a segment fits 32 bits");
        let made = Opening { first_index: first.id.index, first_offset, chain: first.chain };
        let opening = known.opening.unwrap_or(made);
        segment.write_opening(opening).map_err(|e| self.io("writing", e))?;
        segment.note_written(&self.headers);
        if segment.content().sealed {
            let read = |offset: u64, into: &mut [u8]| self.new.read(offset, into);
            segment.write_footer_with_digests(self.layout, &read).map_err(|e| self.io("writing", e))?;
        }
        self.new.sync().map_err(|e| self.io("syncing", e))?;
        let content = segment.content().clone();
        Ok(content)
    }

    // ---- gaps ----

    fn not_repaired(&self, from: LogPosition, to: LogPosition, refusals: &[(u64, Refusal)], unfit: bool) -> Error {
        let text = |(peer, refusal): &(u64, Refusal)| format!("node {peer}: {refusal}");
        let everywhere = refusals.iter().all(|(_, refusal)| !matches!(refusal, Refusal::NotNow(_)));
        Error::NotRepaired {
            file: self.old.path().to_owned(),
            from,
            to,
            answers: refusals.iter().map(text).collect::<Vec<_>>().join("; "),
            everywhere: everywhere && !refusals.is_empty(),
            unfit,
            purged: everywhere && refusals.iter().any(|(_, refusal)| matches!(refusal, Refusal::Purged)),
        }
    }

    /// Fills `from..to` with records that follow what was put last and, if it is known, lead to a record with this
    /// chain value and index.
    fn fill_gap(&mut self, from: LogPosition, to: LogPosition, right: Option<(u32, LogIndex)>) -> Result<()> {
        let mut refusals = Vec::new();
        let mut unfit = false;
        let (behind, headers) = (self.behind, self.headers.len());
        for peer in self.source.peers() {
            let fetched = self.fetch(peer, from, to)?;
            let refusal = match fetched {
                Ok(at) if at != to => Refusal::Differs(format!("its records end at {at}")),
                Ok(_) => {
                    let fits = self.behind.is_none_or(|behind| {
                        right.is_none_or(|(chain, index)| chain == behind.chain && index == behind.next_index)
                    });
                    if fits {
                        self.note_filled(from, to);
                        return Ok(());
                    }
                    unfit = true;
                    Refusal::Differs("its records do not lead to the one behind the damage".into())
                }
                Err(refusal) => refusal,
            };
            refusals.push((peer, refusal));
            self.flush()?;
            self.behind = behind;
            self.headers.truncate(headers);
        }
        Err(self.not_repaired(from, to, &refusals, unfit))
    }

    fn note_filled(&mut self, from: LogPosition, to: LogPosition) {
        tracing::info!(file = %self.old.path().display(), %from, %to, "fetched from a peer");
        self.repaired.ranges.push((from, to));
        self.repaired.fetched_bytes += to.since(from);
    }

    /// Fetches records from one peer and puts them, up to `to`. Returns where they end.
    fn fetch(
        &mut self,
        peer: u64,
        from: LogPosition,
        to: LogPosition,
    ) -> Result<std::result::Result<LogPosition, Refusal>> {
        let mut at = from;
        while at < to {
            let bytes = match self.source.fetch(peer, at, to) {
                Err(reason) => return Ok(Err(Refusal::NotNow(reason))),
                Ok(answer) => match answer.answer {
                    RangeAnswer::Have(bytes) => bytes,
                    RangeAnswer::NeverHad | RangeAnswer::Other if at > from => return Ok(Ok(at)),
                    RangeAnswer::NeverHad => return Ok(Err(Refusal::Differs("never had it".into()))),
                    RangeAnswer::Other => return Ok(Err(Refusal::Differs("has other records there".into()))),
                    RangeAnswer::Damaged => return Ok(Err(Refusal::Lost("is damaged there too"))),
                    RangeAnswer::Purged => return Ok(Err(Refusal::Purged)),
                },
            };
            let start = at.since(self.base);
            let read = |offset: u64, into: &mut [u8]| {
                let place = offset.checked_sub(start).and_then(|place| usize::try_from(place).ok());
                let found = place.and_then(|place| bytes.get(place..place + into.len()));
                found.map(|found| into.copy_from_slice(found)).ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
            };
            let end = at.plus(bytes.len() as u64).min(to);
            let mut scan = Scan::new(&read, self.layout, self.base, None).starting_at(at, self.behind).within(end);
            let before = at;
            let mut pad = false;
            while let Some(piece) = scan.next() {
                let Piece::Record(header, payload) = piece else {
                    return Ok(Err(Refusal::Differs("its records do not follow those before the damage".into())));
                };
                self.put(&header, &payload)?;
                at = header.end();
                pad = header.kind == Kind::Pad;
            }
            if at == before || pad {
                break;
            }
        }
        Ok(Ok(at))
    }

    /// Completes the segment behind the last record found, at `at`. Returns where it ends.
    fn fill_end(&mut self, at: LogPosition, damaged: bool, right: Right) -> Result<LogPosition> {
        match right {
            Right::End { end, .. } if at == end => Ok(at),
            Right::End { end, chain } => {
                self.fill_gap(at, end, None)?;
                let fits = self.behind.is_some_and(|behind| behind.chain == chain);
                if fits { Ok(end) } else { Err(self.not_repaired(at, end, &[], true)) }
            }
            Right::Next(_) => {
                let records_end = self.layout.records_end(self.base);
                self.fill_to_pad(at, records_end)
            }
            Right::Unknown { flushed } if at >= flushed && !damaged => Ok(at),
            Right::Unknown { .. } => self.fill_open_end(at),
        }
    }

    fn fill_to_pad(&mut self, from: LogPosition, to: LogPosition) -> Result<LogPosition> {
        let mut refusals = Vec::new();
        let (behind, headers) = (self.behind, self.headers.len());
        for peer in self.source.peers() {
            let refusal = match self.fetch(peer, from, to)? {
                Ok(end) if self.headers.last().is_some_and(|last| last.kind == Kind::Pad) => {
                    self.note_filled(from, end);
                    return Ok(end);
                }
                Ok(end) => Refusal::Differs(format!("its records end at {end}, before the segment does")),
                Err(refusal) => refusal,
            };
            refusals.push((peer, refusal));
            self.flush()?;
            self.behind = behind;
            self.headers.truncate(headers);
        }
        Err(self.not_repaired(from, to, &refusals, false))
    }

    /// The end of the log is damaged, and what stood there unknown: see the module's introduction.
    fn fill_open_end(&mut self, from: LogPosition) -> Result<LogPosition> {
        let to = self.layout.records_end(self.base);
        let mut refusals = Vec::new();
        let mut answers = Vec::new();
        for peer in self.source.peers() {
            match self.source.fetch(peer, from, to) {
                Ok(answer) if answer.is_last_certain => answers.push((answer.last, peer)),
                Ok(_) => refusals.push((peer, Refusal::NotNow("does not know where its own log ends".into()))),
                Err(reason) => refusals.push((peer, Refusal::NotNow(reason))),
            }
        }
        // Whoever does not answer may be the only one that has what was chosen with this node's consent.
        let best = answers.iter().map(|(last, _)| *last).max();
        let (true, Some(last)) = (refusals.is_empty(), best) else {
            return Err(self.not_repaired(from, to, &refusals, false));
        };
        let next = self.behind.map(|behind| behind.next_index);
        if last.is_none_or(|last| next.is_some_and(|next| last.index < next)) {
            return Ok(from);
        }
        let (behind, headers) = (self.behind, self.headers.len());
        // Logs that end with the same entry are the same, so any of them will do that is whole there.
        for (_, peer) in answers.into_iter().filter(|(peers_last, _)| *peers_last == last) {
            match self.fetch(peer, from, to)? {
                Ok(end) => {
                    self.note_filled(from, end);
                    return Ok(end);
                }
                // Its log parts from this one before the damage: nothing behind that place was ever chosen.
                Err(Refusal::Differs(_)) => return Ok(from),
                Err(refusal) => refusals.push((peer, refusal)),
            }
            self.flush()?;
            self.behind = behind;
            self.headers.truncate(headers);
        }
        Err(self.not_repaired(from, to, &refusals, false))
    }

    /// Whether the records end as they must.
    fn check_end(&self, at: LogPosition, right: Right) -> Result<()> {
        let behind = self.behind;
        let fits = match right {
            Right::End { end, chain } => at == end && behind.is_none_or(|behind| behind.chain == chain),
            Right::Next(opening) => {
                behind.is_some_and(|behind| behind.chain == opening.chain && behind.next_index == opening.first_index)
            }
            Right::Unknown { .. } => true,
        };
        if fits { Ok(()) } else { Err(self.not_repaired(at, at, &[], true)) }
    }
}

fn behind(header: &Header) -> Behind {
    let next_index = if header.kind == Kind::Pad { header.id.index } else { header.id.index.next() };
    Behind { next_index, term: header.id.term, chain: header.payload_crc }
}
