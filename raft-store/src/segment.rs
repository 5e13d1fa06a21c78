//! One segment file: a header, records, a footer.
//!
//! The header is one page of two sectors that are written at different times, so that a segment can
//! be created long before it is known which entry comes first in it:
//!
//! | Bytes | Field | Written |
//! | --- | --- | --- |
//! | 0-7 | magic | when the file is created |
//! | 8-9 | version | |
//! | 10-15 | zero | |
//! | 16-31 | cluster id | |
//! | 32-39 | base position | |
//! | 40-47 | segment size | |
//! | 508-511 | CRC over 0-507 | |
//! | 512-515 | magic of the opening | before the first record |
//! | 516-519 | CRC over 520-1023, seeded | |
//! | 520-527 | index of the first record | |
//! | 528-531 | offset of the first record | |
//! | 532-535 | chain value carried over | |
//!
//! A segment without an opening holds no record. Records follow from byte 4096 on; in a replica that
//! joined by snapshot the first one may lie further in.
//!
//! The footer is written when the segment is sealed, behind room that no record may use:
//!
//! | Bytes | Field |
//! | --- | --- |
//! | 0-7 | magic |
//! | 8-9 | version |
//! | 10-11 | kind of digest: 0 none, 1 SHA-256 |
//! | 12-15 | CRC over everything else in the footer, seeded |
//! | 16-23 | number of entries |
//! | 24-31, 32-39 | term and index of the last entry |
//! | 40-43 | offset of the pad, which is the records' end |
//! | 44-47 | chain value behind the pad |
//! | 64.. | for each MiB: digest (32), index (8) and offset (4) of the first record that starts in it |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use parking_lot::RwLock;
use sha2::{Digest, Sha256};

use crate::entry::{Body, LogEntry};
use crate::error::{Error, Result};
use crate::ids::{ClusterId, LogId, LogIndex, LogPosition, Term};
use crate::log_index::LogIndexMap;
use crate::options::Layout;
use crate::record::{self, Fault, Header, HeaderBytes, Kind, Seed};
use crate::region::Region;
use crate::scan::Read;

/// The size of a segment's header.
pub(crate) const HEADER_BYTES: u64 = 4096;
/// The smallest segment.
pub(crate) const BYTES_MIN: u64 = 16 << 10;
/// The largest segment: offsets inside it fit 32 bits.
pub(crate) const BYTES_MAX: u64 = 2 << 30;
/// What one footer entry describes.
const CHUNK_BYTES: u64 = 1 << 20;
/// The size of one footer entry, and of the footer's own head.
const FOOTER_ENTRY_BYTES: u64 = 64;
const OPENING_AT: u64 = 512;

const MAGIC: [u8; 8] = *b"gantSEGM";
const OPENING_MAGIC: [u8; 4] = *b"open";
const FOOTER_MAGIC: [u8; 8] = *b"gantSEAL";
/// Kinds of digest in a footer.
const DIGEST_NONE: u16 = 0;
const DIGEST_SHA256: u16 = 1;
/// Version of header, records and footer together.
pub(crate) const VERSION: u16 = 1;

/// Room for the footer at the end of a segment.
pub(crate) const fn footer_bytes(segment_bytes: u64) -> u64 {
    let entries = segment_bytes.div_ceil(CHUNK_BYTES) + 1;
    (entries * FOOTER_ENTRY_BYTES).next_multiple_of(HEADER_BYTES)
}

/// The file name of the segment at `base`.
pub(crate) fn file_name(base: LogPosition) -> String {
    format!("{base:020}")
}

/// Reads a segment's file name.
pub(crate) fn parse_file_name(name: &str) -> Option<LogPosition> {
    let digits = name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| name.parse().ok().map(LogPosition::new))?
}

/// The first sector of a new segment.
pub(crate) fn encode_head(cluster: &ClusterId, base: LogPosition, segment_bytes: u64) -> BytesMut {
    let mut out = BytesMut::with_capacity(512);
    out.put_slice(&MAGIC);
    out.put_u16(VERSION);
    out.put_bytes(0, 6);
    out.put_slice(cluster.bytes());
    out.put_u64(base.get());
    out.put_u64(segment_bytes);
    out.put_bytes(0, 508 - out.len());
    let crc = crc32fast::hash(&out);
    out.put_u32(crc);
    out
}

/// Where the records of a segment start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Opening {
    pub(crate) first_index: LogIndex,
    pub(crate) first_offset: u32,
    pub(crate) chain: u32,
}

fn encode_opening(seed: Seed, opening: &Opening) -> BytesMut {
    let mut rest = BytesMut::with_capacity(504);
    rest.put_u64(opening.first_index.get());
    rest.put_u32(opening.first_offset);
    rest.put_u32(opening.chain);
    rest.put_bytes(0, 504 - rest.len());
    let mut out = BytesMut::with_capacity(512);
    out.put_slice(&OPENING_MAGIC);
    out.put_u32(seed.crc(&rest));
    out.put_slice(&rest);
    out
}

/// The digests of a segment's chunks, in order.
pub(crate) type Digests = Vec<[u8; 32]>;

/// Offsets of one chunk: a mebibyte, the last one up to the footer.
pub(crate) fn chunk(layout: &Layout, number: u64) -> (u64, u64) {
    let end = layout.segment_bytes - footer_bytes(layout.segment_bytes);
    ((number * CHUNK_BYTES).min(end), ((number + 1) * CHUNK_BYTES).min(end))
}

/// How many chunks a segment has.
pub(crate) fn chunks(layout: &Layout) -> u64 {
    layout.segment_bytes.div_ceil(CHUNK_BYTES)
}

/// The digest of the bytes from `from` to `to`.
pub(crate) fn digest_of(read: &Read<'_>, from: u64, to: u64) -> std::io::Result<[u8; 32]> {
    let mut bytes = vec![0; usize::try_from(to - from).expect("a chunk fits memory")];
    if !bytes.is_empty() {
        read(from, &mut bytes)?;
    }
    Ok(Sha256::digest(&bytes).into())
}

/// What the second sector of a segment holds.
pub(crate) enum OpeningFound {
    /// Nothing: no record was ever written.
    None,
    Opening(Opening),
    /// Neither zeros nor an opening.
    Damaged,
}

/// What is known of a segment's records.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    pub(crate) opening: Option<Opening>,
    pub(crate) last: Option<LogId>,
    /// End of the written records.
    pub(crate) end: LogPosition,
    /// Chain value behind the last record.
    pub(crate) chain: u32,
    pub(crate) entries: u64,
    /// Whether a pad closes the segment, at `end - 64`.
    pub(crate) sealed: bool,
    pub(crate) index: LogIndexMap,
}

/// One segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) base: LogPosition,
    pub(crate) seed: Seed,
    pub(crate) region: Arc<dyn Region>,
    /// Changed by the writer only.
    content: RwLock<Content>,
    /// Whether it is closed and its footer not written yet, by the one who will.
    owes_footer: AtomicBool,
}

impl Segment {
    /// A segment that holds no record yet.
    pub(crate) fn empty(layout: &Layout, base: LogPosition, region: Arc<dyn Region>) -> Self {
        let content = Content {
            opening: None,
            last: None,
            end: base.plus(HEADER_BYTES),
            chain: 0,
            entries: 0,
            sealed: false,
            index: LogIndexMap::default(),
        };
        let (seed, content) = (Seed::new(&layout.cluster_id, base), RwLock::new(content));
        Self { base, seed, region, content, owes_footer: AtomicBool::new(false) }
    }

    pub(crate) fn content(&self) -> parking_lot::RwLockReadGuard<'_, Content> {
        self.content.read()
    }

    pub(crate) fn set_content(&self, content: Content) {
        *self.content.write() = content;
    }

    /// Offset of a position in this segment's file.
    pub(crate) fn offset(&self, position: LogPosition) -> u64 {
        position.since(self.base)
    }

    /// Index of the first record, if there is one.
    pub(crate) fn first_index(&self) -> Option<LogIndex> {
        self.content.read().opening.map(|opening| opening.first_index)
    }

    fn io(&self, doing: &'static str, error: std::io::Error) -> Error {
        Error::io(doing, self.region.path(), error)
    }

    pub(crate) fn damaged(&self, position: LogPosition, expected: impl ToString, found: impl ToString) -> Error {
        Error::Damaged {
            file: self.region.path().to_owned(),
            position,
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Reads and checks the first sector against what this store expects of its segments.
    pub(crate) fn check_head(&self, layout: &Layout) -> Result<()> {
        let file = || self.region.path().to_owned();
        let mut head = vec![0; 512];
        self.region.read(0, &mut head).map_err(|e| self.read_failed(0, e))?;
        let (fields, crc) = head.split_at(508);
        if !fields.starts_with(&MAGIC) {
            return Err(Error::ForeignFile { file: file() });
        }
        let mut fields_left = &fields[8..];
        let version = fields_left.get_u16();
        if version != VERSION {
            return Err(Error::FormatVersion { file: file(), found: version, expected: VERSION });
        }
        if crc != crc32fast::hash(fields).to_be_bytes() {
            return Err(self.damaged(self.base, "a segment header", "a checksum that does not hold"));
        }
        fields_left.advance(6);
        let mut cluster = [0; 16];
        fields_left.copy_to_slice(&mut cluster);
        let found = ClusterId::new(cluster);
        if found != layout.cluster_id {
            return Err(Error::ForeignCluster { file: file(), found, expected: layout.cluster_id });
        }
        let base = LogPosition::new(fields_left.get_u64());
        if base != self.base {
            return Err(self.damaged(self.base, format!("the segment of {}", self.base), format!("that of {base}")));
        }
        let bytes = fields_left.get_u64();
        if bytes != layout.segment_bytes || self.region.bytes() != layout.segment_bytes {
            let (found, expected) = (self.region.bytes(), layout.segment_bytes);
            return Err(Error::WrongSize { file: file(), found, expected });
        }
        Ok(())
    }

    pub(crate) fn read_opening(&self, layout: &Layout) -> Result<OpeningFound> {
        let mut sector = vec![0; 512];
        match self.region.read(OPENING_AT, &mut sector) {
            Err(error) if is_lost(&error) => return Ok(OpeningFound::Damaged),
            read => read.map_err(|e| self.io("reading", e))?,
        }
        if sector.iter().all(|byte| *byte == 0) {
            return Ok(OpeningFound::None);
        }
        let mut fields = sector.as_slice();
        let mut magic = [0; 4];
        fields.copy_to_slice(&mut magic);
        let crc = fields.get_u32();
        if magic != OPENING_MAGIC || crc != self.seed.crc(fields) {
            return Ok(OpeningFound::Damaged);
        }
        let opening = Opening {
            first_index: LogIndex::new(fields.get_u64()),
            first_offset: fields.get_u32(),
            chain: fields.get_u32(),
        };
        let first = u64::from(opening.first_offset);
        let records_end = self.offset(layout.records_end(self.base));
        if first < HEADER_BYTES || first >= records_end || !first.is_multiple_of(record::ALIGN) {
            return Ok(OpeningFound::Damaged);
        }
        Ok(OpeningFound::Opening(opening))
    }

    /// Writes where the records start. Called before the first one.
    pub(crate) fn write_opening(&self, opening: Opening) -> std::io::Result<()> {
        self.region.write(OPENING_AT, &encode_opening(self.seed, &opening))?;
        let mut content = self.content.write();
        assert!(content.opening.is_none());
        content.opening = Some(opening);
        content.end = self.base.plus(u64::from(opening.first_offset));
        content.chain = opening.chain;
        Ok(())
    }

    /// Takes note of records that have been written.
    pub(crate) fn note_written(&self, headers: &[Header]) {
        let mut content = self.content.write();
        for header in headers {
            content.note(self.base, header);
        }
    }

    /// Forgets everything from `end` on. `last` and `chain` describe the record before.
    pub(crate) fn note_cut(&self, end: LogPosition, last: Option<LogId>, chain: u32) {
        let mut content = self.content.write();
        assert!(end <= content.end);
        let opening = content.opening;
        if last.is_none() {
            content.opening = None;
            content.entries = 0;
        } else if let (Some(last), Some(opening)) = (last, opening) {
            content.entries = last.index.get() + 1 - opening.first_index.get();
        }
        content.end = end;
        content.last = last;
        content.chain = chain;
        content.sealed = false;
        let offset = self.offset(end);
        content.index.cut(offset);
    }

    /// Whether somebody is going to write the footer. Nobody else does meanwhile.
    pub(crate) fn owes_footer(&self) -> bool {
        self.owes_footer.load(Ordering::Acquire)
    }

    pub(crate) fn set_owes_footer(&self, owes: bool) {
        self.owes_footer.store(owes, Ordering::Release);
    }

    /// Writes the footer of a sealed segment, without digests: those are added once the segment is on disk.
    pub(crate) fn write_footer(&self, layout: &Layout) -> std::io::Result<()> {
        let footer = self.encode_footer_with(layout, None);
        self.region.write(layout.segment_bytes - footer.len() as u64, &footer)
    }

    /// The footer of a sealed segment.
    fn encode_footer_with(&self, layout: &Layout, digests: Option<&Digests>) -> BytesMut {
        let content = self.content.read();
        assert!(content.sealed);
        let bytes = footer_bytes(layout.segment_bytes);
        let mut out = BytesMut::with_capacity(usize::try_from(bytes).expect("a footer is small"));
        let last = content.last;
        out.put_slice(&FOOTER_MAGIC);
        out.put_u16(VERSION);
        out.put_u16(if digests.is_some() { DIGEST_SHA256 } else { DIGEST_NONE });
        out.put_u32(0);
        out.put_u64(content.entries);
        out.put_u64(last.map_or(0, |last| last.term.get()));
        out.put_u64(last.map_or(0, |last| last.index.get()));
        out.put_u32(small(self.offset(content.end) - record::HEADER_BYTES));
        out.put_u32(content.chain);
        out.put_bytes(0, 16);
        for (at, first) in content.index.first_of_each(CHUNK_BYTES, chunks(layout)).enumerate() {
            let (index, offset) = first.unwrap_or_default();
            out.put_slice(digests.and_then(|digests| digests.get(at)).unwrap_or(&[0; 32]));
            out.put_u64(index.get());
            out.put_u32(offset);
            out.put_bytes(0, 20);
        }
        out.put_bytes(0, usize::try_from(bytes).expect("a footer is small") - out.len());
        let crc = footer_crc(self.seed, &out);
        out[12..16].copy_from_slice(&crc.to_be_bytes());
        out
    }

    /// Writes the footer of a sealed segment with the digests of what `read` returns.
    pub(crate) fn write_footer_with_digests(&self, layout: &Layout, read: &Read<'_>) -> std::io::Result<()> {
        let digests = (0..chunks(layout)).map(|number| {
            let (from, to) = chunk(layout, number);
            digest_of(read, from, to)
        });
        let digests = digests.collect::<std::io::Result<Digests>>()?;
        let footer = self.encode_footer_with(layout, Some(&digests));
        self.region.write(layout.segment_bytes - footer.len() as u64, &footer)
    }

    /// A failed read of the file: damage, if the disk cannot return what it should have.
    pub(crate) fn read_failed(&self, offset: u64, error: std::io::Error) -> Error {
        if is_lost(&error) { self.damaged(self.base.plus(offset), "bytes", error) } else { self.io("reading", error) }
    }

    /// Reads the footer, and from it what the segment holds. `None` if there is no valid one.
    pub(crate) fn read_footer(&self, layout: &Layout, opening: Opening) -> Result<Option<Content>> {
        Ok(self.read_footer_digests(layout, opening)?.map(|(content, _)| content))
    }

    /// Whether no footer was ever written.
    pub(crate) fn footer_is_blank(&self, layout: &Layout) -> bool {
        let bytes = footer_bytes(layout.segment_bytes);
        let mut footer = vec![0; usize::try_from(bytes).expect("a footer is small")];
        self.region.read(layout.segment_bytes - bytes, &mut footer).is_ok() && footer.iter().all(|byte| *byte == 0)
    }

    /// The same, and the digests if the footer has them. A footer written before there were digests has none.
    pub(crate) fn read_footer_digests(
        &self,
        layout: &Layout,
        opening: Opening,
    ) -> Result<Option<(Content, Option<Digests>)>> {
        self.read_footer_with(layout, opening, &|offset, into| self.region.read(offset, into))
    }

    /// The same from wherever `read` reads.
    pub(crate) fn read_footer_with(
        &self,
        layout: &Layout,
        opening: Opening,
        read: &Read<'_>,
    ) -> Result<Option<(Content, Option<Digests>)>> {
        let bytes = footer_bytes(layout.segment_bytes);
        let mut footer = vec![0; usize::try_from(bytes).expect("a footer is small")];
        match read(layout.segment_bytes - bytes, &mut footer) {
            // The records tell what it told.
            Err(error) if is_lost(&error) => return Ok(None),
            read => read.map_err(|e| self.io("reading", e))?,
        }
        let stored = u32::from_be_bytes([footer[12], footer[13], footer[14], footer[15]]);
        if !footer.starts_with(&FOOTER_MAGIC) || stored != footer_crc(self.seed, &footer) {
            return Ok(None);
        }
        let mut fields = &footer[8..];
        let version = fields.get_u16();
        if version != VERSION {
            let file = self.region.path().to_owned();
            return Err(Error::FormatVersion { file, found: version, expected: VERSION });
        }
        let kind = fields.get_u16();
        fields.advance(4);
        let entries = fields.get_u64();
        let term = Term::new(fields.get_u64());
        let last = LogId::new(term, LogIndex::new(fields.get_u64()));
        let pad = u64::from(fields.get_u32());
        let chain = fields.get_u32();
        fields.advance(16);
        let mut index = LogIndexMap::default();
        let mut digests = Digests::new();
        for _ in 0..chunks(layout) {
            let mut digest = [0; 32];
            fields.copy_to_slice(&mut digest);
            digests.push(digest);
            let first = LogIndex::new(fields.get_u64());
            let offset = fields.get_u32();
            fields.advance(20);
            if offset != 0 {
                index.note(first, offset);
            }
        }
        let content = Content {
            opening: Some(opening),
            last: (entries > 0).then_some(last),
            end: self.base.plus(pad + record::HEADER_BYTES),
            chain,
            entries,
            sealed: true,
            index,
        };
        Ok(Some((content, (kind == DIGEST_SHA256).then_some(digests))))
    }

    /// Reads records one after the other, from the one at `offset` on.
    pub(crate) fn cursor(&self, offset: u64, end: LogPosition, stable_end: LogPosition, ahead: u64) -> Cursor<'_> {
        // Only what is written can be stable: the committed end may be far ahead of this file.
        let stable_end = stable_end.min(end).get().saturating_sub(self.base.get());
        Cursor { segment: self, offset, end: self.offset(end), stable_end, ahead, block: Bytes::new(), block_at: 0 }
    }

    /// Bytes `offset..offset + bytes`: a slice of the mapping if that is possible, else a copy.
    pub(crate) fn block(&self, offset: u64, bytes: u64, stable_end: u64) -> std::io::Result<Bytes> {
        if let Some(slice) = self.region.lend(offset, bytes, stable_end)? {
            return Ok(slice);
        }
        let mut copy = BytesMut::zeroed(usize::try_from(bytes).map_err(std::io::Error::other)?);
        self.region.read(offset, &mut copy)?;
        Ok(copy.freeze())
    }

    /// Finds the record of entry `index`.
    ///
    /// # Errors
    /// [`Error::Damaged`] if a record on the way does not verify, or the entry is not there.
    pub(crate) fn find(&self, index: LogIndex, stable_end: LogPosition) -> Result<Header> {
        let (start, end) = {
            let content = self.content.read();
            (content.index.at_or_before(index), content.end)
        };
        let Some((_, offset)) = start else {
            return Err(self.damaged(self.base, format!("entry {index}"), "a segment that starts behind it"));
        };
        let mut cursor = self.cursor(u64::from(offset), end, stable_end, 16 << 10);
        while let Some(header) = cursor.header()? {
            if header.id.index == index && header.kind != Kind::Pad {
                return Ok(header);
            }
            if header.id.index > index {
                break;
            }
            cursor.skip(&header);
        }
        Err(self.damaged(end, format!("entry {index}"), "the end of the segment"))
    }

    /// Finds the record that covers `position`.
    pub(crate) fn find_at(&self, position: LogPosition, stable_end: LogPosition) -> Result<Option<Header>> {
        let (start, end) = {
            let content = self.content.read();
            (content.index.offset_at_or_before(self.offset(position)), content.end)
        };
        let Some(offset) = start else { return Ok(None) };
        let mut cursor = self.cursor(u64::from(offset), end, stable_end, 16 << 10);
        while let Some(header) = cursor.header()? {
            if position < header.position {
                break;
            }
            if position < header.end() {
                return Ok((header.kind != Kind::Pad).then_some(header));
            }
            cursor.skip(&header);
        }
        Ok(None)
    }
}

impl Content {
    /// Takes note of one more record.
    pub(crate) fn note(&mut self, base: LogPosition, header: &Header) {
        assert!(!self.sealed);
        assert_eq!(header.position, self.end);
        assert_eq!(header.chain, self.chain);
        self.end = header.end();
        self.chain = header.payload_crc;
        match header.kind {
            Kind::Pad => self.sealed = true,
            Kind::Body(_) => {
                self.index.note(header.id.index, small(header.position.since(base)));
                self.last = Some(header.id);
                self.entries += 1;
            }
        }
    }
}

/// Reads records in order. What it returns has been verified.
pub(crate) struct Cursor<'a> {
    segment: &'a Segment,
    offset: u64,
    end: u64,
    stable_end: u64,
    ahead: u64,
    block: Bytes,
    block_at: u64,
}

impl Cursor<'_> {
    /// The header of the record the cursor stands before. `None` at the end.
    pub(crate) fn header(&mut self) -> Result<Option<Header>> {
        if self.offset >= self.end {
            return Ok(None);
        }
        let position = self.position();
        let bytes = self.need(self.offset, record::HEADER_BYTES)?;
        let bytes: &HeaderBytes = bytes.as_ref().try_into().expect("as many bytes as were asked for");
        let header = Header::decode(self.segment.seed, position, bytes)
            .map_err(|fault: Fault| self.segment.damaged(position, "a record", fault))?;
        if self.offset + header.stored_bytes() > self.end {
            return Err(self.segment.damaged(position, "a record before the end", "one that reaches beyond it"));
        }
        Ok(Some(header))
    }

    /// The payload of the record whose `header` was returned last, and moves on behind it.
    pub(crate) fn payload(&mut self, header: &Header) -> Result<Bytes> {
        let payload = self.need(self.offset + record::HEADER_BYTES, u64::from(header.payload_bytes))?;
        if !header.verifies(self.segment.seed, &payload) {
            let position = self.position();
            return Err(self.segment.damaged(position, "a payload", "one whose checksum does not hold"));
        }
        self.skip(header);
        Ok(payload)
    }

    /// Moves on behind the record whose `header` was returned last.
    pub(crate) fn skip(&mut self, header: &Header) {
        self.offset += header.stored_bytes();
    }

    /// The entry of the record whose `header` was returned last, and moves on behind it.
    pub(crate) fn entry(&mut self, header: &Header) -> Result<Option<LogEntry>> {
        let Kind::Body(kind) = header.kind else {
            self.skip(header);
            return Ok(None);
        };
        let payload = self.payload(header)?;
        let mut entry = LogEntry::new(header.id, Body::decode(kind, payload)?);
        entry.position = Some(header.position);
        Ok(Some(entry))
    }

    fn position(&self) -> LogPosition {
        self.segment.base.plus(self.offset)
    }

    fn need(&mut self, offset: u64, bytes: u64) -> Result<Bytes> {
        let have = self.block.len() as u64;
        if offset < self.block_at || offset + bytes > self.block_at + have {
            let limit = if offset + bytes <= self.stable_end { self.stable_end.min(self.end) } else { self.end };
            let ahead = self.ahead.max(bytes).min(limit.saturating_sub(offset)).max(bytes);
            self.block =
                self.segment.block(offset, ahead, self.stable_end).map_err(|e| self.segment.read_failed(offset, e))?;
            self.block_at = offset;
        }
        let start = usize::try_from(offset - self.block_at).expect("inside a block");
        let end = start + usize::try_from(bytes).expect("inside a block");
        Ok(self.block.slice(start..end))
    }
}

fn footer_crc(seed: Seed, footer: &[u8]) -> u32 {
    let mut covered = BytesMut::with_capacity(footer.len());
    covered.put_slice(&footer[..12]);
    covered.put_slice(&footer[16..]);
    seed.crc(&covered)
}

fn small(offset: u64) -> u32 {
    u32::try_from(offset).expect("an offset in a segment fits 32 bits")
}
/// Whether a read failed because the disk, or the file, no longer has the bytes.
pub(crate) fn is_lost(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EFAULT | libc::EUCLEAN | libc::EILSEQ))
        || error.kind() == std::io::ErrorKind::UnexpectedEof
}
