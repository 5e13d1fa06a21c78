//! The layout of one log record. Pure: bytes in, values out.
//!
//! A record starts at a multiple of 64 and is padded with zeros to one, so a header never straddles
//! a disk sector and cannot tear. All integers are big-endian.
//!
//! | Bytes | Field |
//! | --- | --- |
//! | 0-3 | magic, no zero byte in it |
//! | 4-7 | header CRC over 8-63, seeded with [`Seed`] |
//! | 8-15 | position of this record |
//! | 16-23 | index |
//! | 24-31 | term |
//! | 32-39 | zero |
//! | 40-43 | payload length |
//! | 44-47 | payload CRC, seeded with the CRC over 8-43 |
//! | 48-51 | chain: payload CRC of the record before |
//! | 52-53 | kind |
//! | 54-55 | version |
//! | 56-63 | zero |
//! | 64.. | payload, zeros up to a multiple of 64 |
//!
//! So a record proves its own place: the seed names cluster and segment, the header the position,
//! index and term, and the chain the record before it. The chain is not optional. Records that were
//! cut off and overwritten leave valid remnants behind, at the right position, with a plausible
//! index and term; only the chain tells that they do not follow what now stands before them.
//!
//! A pad is a record without payload that says: this segment ends here, go on in the next.

use crc32fast::Hasher;

use crate::entry::BodyKind;
use crate::ids::{ClusterId, LogId, LogIndex, LogPosition, Term};

/// The size of a record header.
pub(crate) const HEADER_BYTES: u64 = 64;
/// Records start at multiples of this.
pub(crate) const ALIGN: u64 = 64;
/// First four bytes of every record of this format version.
pub(crate) const MAGIC: [u8; 4] = *b"gLr1";
const VERSION: u16 = 1;

const _: () = assert!(HEADER_BYTES == crate::entry::RECORD_HEADER_BYTES);
const _: () = assert!(MAGIC[0] != 0 && MAGIC[1] != 0 && MAGIC[2] != 0 && MAGIC[3] != 0);

/// One header as stored.
pub(crate) type HeaderBytes = [u8; 64];

/// Start value of all checksums in one segment. Bytes copied from another segment or another cluster
/// do not verify.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seed(u32);

impl Seed {
    pub(crate) fn new(cluster: &ClusterId, base: LogPosition) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(cluster.bytes());
        hasher.update(&base.get().to_be_bytes());
        Self(hasher.finalize())
    }

    /// Checksum of other parts of the same segment.
    pub(crate) fn crc(self, bytes: &[u8]) -> u32 {
        let mut hasher = Hasher::new_with_initial(self.0);
        hasher.update(bytes);
        hasher.finalize()
    }
}

/// What a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Body(BodyKind),
    Pad,
}

impl Kind {
    const fn code(self) -> u16 {
        match self {
            Self::Body(BodyKind::Normal) => 1,
            Self::Body(BodyKind::Blank) => 2,
            Self::Body(BodyKind::Membership) => 3,
            Self::Pad => 4,
        }
    }

    const fn from_code(code: u16) -> Option<Self> {
        match code {
            1 => Some(Self::Body(BodyKind::Normal)),
            2 => Some(Self::Body(BodyKind::Blank)),
            3 => Some(Self::Body(BodyKind::Membership)),
            4 => Some(Self::Pad),
            _ => None,
        }
    }
}

/// A verified header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) position: LogPosition,
    pub(crate) id: LogId,
    pub(crate) kind: Kind,
    pub(crate) payload_bytes: u32,
    pub(crate) payload_crc: u32,
    pub(crate) chain: u32,
}

/// A record about to be written, its checksums not yet known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) position: LogPosition,
    pub(crate) id: LogId,
    pub(crate) kind: Kind,
    pub(crate) chain: u32,
    pub(crate) payload: &'a [u8],
}

/// Why 64 bytes are not the header expected at their place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// All zero: nothing was ever written here, or it was cut.
    Zero,
    /// Not the magic of this format.
    Magic,
    /// The header's checksum does not hold.
    HeaderCrc,
    /// A valid header of another position.
    Position(LogPosition),
    /// A kind or a version from another program, or a reserved field in use.
    Unknown,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Zero => f.write_str("zeros"),
            Self::Magic => f.write_str("no record magic"),
            Self::HeaderCrc => f.write_str("a header checksum that does not hold"),
            Self::Position(position) => write!(f, "the header of position {position}"),
            Self::Unknown => f.write_str("a record kind or version that is unknown"),
        }
    }
}

/// A payload's size in the log, without its header.
pub(crate) const fn padded(payload_bytes: u64) -> u64 {
    payload_bytes.next_multiple_of(ALIGN)
}

impl Draft<'_> {
    /// The pad that closes a segment behind the record of `last`.
    pub(crate) fn pad(position: LogPosition, last: LogId, chain: u32) -> Self {
        let id = LogId::new(last.term, last.index.next());
        Self { position, id, kind: Kind::Pad, chain, payload: &[] }
    }

    /// Computes both checksums and lays out the header.
    pub(crate) fn seal(&self, seed: Seed) -> (Header, HeaderBytes) {
        let payload_bytes = u32::try_from(self.payload.len()).expect("a payload fits a segment, which is below 4 GiB");
        let mut header = Header {
            position: self.position,
            id: self.id,
            kind: self.kind,
            payload_bytes,
            payload_crc: 0,
            chain: self.chain,
        };
        header.payload_crc = header.crc_of(seed, self.payload);
        let bytes = header.encode(seed);
        (header, bytes)
    }
}

impl Header {
    /// The record's size in the log: header, payload and padding.
    pub(crate) fn stored_bytes(&self) -> u64 {
        padded(u64::from(self.payload_bytes)).saturating_add(HEADER_BYTES)
    }

    /// Where the next record can start.
    pub(crate) fn end(&self) -> LogPosition {
        self.position.plus(self.stored_bytes())
    }

    /// Whether `payload` is the one this header was made for.
    pub(crate) fn verifies(&self, seed: Seed, payload: &[u8]) -> bool {
        u64::try_from(payload.len()) == Ok(u64::from(self.payload_bytes))
            && self.crc_of(seed, payload) == self.payload_crc
    }

    fn crc_of(&self, seed: Seed, payload: &[u8]) -> u32 {
        let mut hasher = Hasher::new_with_initial(seed.0);
        self.place_fields(|field| hasher.update(field));
        hasher.update(payload);
        hasher.finalize()
    }

    /// Feeds bytes 8 to 43 in order.
    fn place_fields(&self, mut feed: impl FnMut(&[u8])) {
        feed(&self.position.get().to_be_bytes());
        feed(&self.id.index.get().to_be_bytes());
        feed(&self.id.term.get().to_be_bytes());
        feed(&[0; 8]);
        feed(&self.payload_bytes.to_be_bytes());
    }

    /// The header as it is stored.
    pub(crate) fn encode(&self, seed: Seed) -> HeaderBytes {
        let mut out = [0; 64];
        let mut fields = Fields { rest: &mut out };
        fields.put(&MAGIC);
        fields.put(&[0; 4]);
        self.place_fields(|field| fields.put(field));
        fields.put(&self.payload_crc.to_be_bytes());
        fields.put(&self.chain.to_be_bytes());
        fields.put(&self.kind.code().to_be_bytes());
        fields.put(&VERSION.to_be_bytes());
        let crc = header_crc(seed, &out);
        if let Some(place) = out.first_chunk_mut::<8>().and_then(|head| head.last_chunk_mut::<4>()) {
            *place = crc.to_be_bytes();
        }
        out
    }

    /// Reads the header that should stand at `position`.
    ///
    /// # Errors
    /// A [`Fault`] that says what stands there instead.
    pub(crate) fn decode(seed: Seed, position: LogPosition, bytes: &HeaderBytes) -> Result<Self, Fault> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Err(Fault::Zero);
        }
        let mut fields = Reader { rest: bytes };
        if fields.array::<4>() != MAGIC {
            return Err(Fault::Magic);
        }
        if u32::from_be_bytes(fields.array()) != header_crc(seed, bytes) {
            return Err(Fault::HeaderCrc);
        }
        let found = LogPosition::new(u64::from_be_bytes(fields.array()));
        if found != position {
            return Err(Fault::Position(found));
        }
        let index = LogIndex::new(u64::from_be_bytes(fields.array()));
        let term = Term::new(u64::from_be_bytes(fields.array()));
        let reserved = fields.array::<8>();
        let payload_bytes = u32::from_be_bytes(fields.array());
        let payload_crc = u32::from_be_bytes(fields.array());
        let chain = u32::from_be_bytes(fields.array());
        let kind = Kind::from_code(u16::from_be_bytes(fields.array()));
        let version = u16::from_be_bytes(fields.array());
        let tail = fields.array::<8>();
        let Some(kind) = kind else {
            return Err(Fault::Unknown);
        };
        let empty = matches!(kind, Kind::Pad | Kind::Body(BodyKind::Blank));
        if version != VERSION || reserved != [0; 8] || tail != [0; 8] || (empty && payload_bytes != 0) {
            return Err(Fault::Unknown);
        }
        Ok(Self { position, id: LogId::new(term, index), kind, payload_bytes, payload_crc, chain })
    }
}

fn header_crc(seed: Seed, bytes: &HeaderBytes) -> u32 {
    let mut hasher = Hasher::new_with_initial(seed.0);
    hasher.update(bytes.last_chunk::<56>().map_or(&[], |rest| rest));
    hasher.finalize()
}

/// Fills a fixed header front to back.
struct Fields<'a> {
    rest: &'a mut [u8],
}

impl Fields<'_> {
    fn put(&mut self, field: &[u8]) {
        let rest = std::mem::take(&mut self.rest);
        let (place, rest) = rest.split_at_mut(field.len());
        place.copy_from_slice(field);
        self.rest = rest;
    }
}

/// Reads a fixed header front to back. Beyond its end there are only zeros.
struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        match self.rest.split_first_chunk::<N>() {
            Some((field, rest)) => {
                self.rest = rest;
                *field
            }
            None => [0; N],
        }
    }
}

#[cfg(test)]
mod tests;
