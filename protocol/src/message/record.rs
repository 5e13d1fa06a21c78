//! The stored message: the bytes in the CommitLog, in pull answers and wherever else a whole message travels.
//!
//! Big-endian:
//!
//! | Bytes | Field |
//! | --- | --- |
//! | 4 | size of the record, itself included |
//! | 4 | magic: topic length in one byte (V1) or two (V2) |
//! | 4 | CRC-32 of the body, sign bit cleared |
//! | 4 | queue id |
//! | 4 | flag |
//! | 8 | queue offset |
//! | 8 | physical offset |
//! | 4 | sysFlag |
//! | 8 | born timestamp |
//! | 8 or 20 | born host: address, port in four bytes |
//! | 8 | store timestamp |
//! | 8 or 20 | store host |
//! | 4 | reconsume times |
//! | 8 | prepared transaction offset |
//! | 4 + n | body |
//! | 1 or 2 + n | topic |
//! | 2 + n | properties |

use std::net::SocketAddr;

use bytes::{BufMut as _, BytesMut};

use super::hash::{body_crc, tags_code};
use super::properties::Properties;
use super::sys_flag::SysFlag;
use crate::reader::{Reader, put_host};

const MAGIC_V1: i32 = i32::from_be_bytes(0xdaa3_20a7_u32.to_be_bytes());
const MAGIC_V2: i32 = i32::from_be_bytes(0xdaa3_20ab_u32.to_be_bytes());

/// Everything but hosts, body, topic and properties, in a V1 record.
const FIXED_BYTES: usize = 75;
/// A record of nothing, with short hosts.
const RECORD_BYTES_MIN: usize = 91;
/// Queue offset and physical offset, next to each other.
const OFFSETS_AT: std::ops::Range<usize> = 20..36;
const SYS_FLAG_AT: usize = OFFSETS_AT.end;

/// A message to be stored. Its offsets are not known yet and stay zero in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewMessage<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The queue.
    pub queue_id: i32,
    /// Bits that only users interpret.
    pub flag: i32,
    /// How it is stored. The bits for the kinds of host are set by the encoder.
    pub sys_flag: SysFlag,
    /// When the sender made it, in milliseconds.
    pub born_timestamp: i64,
    /// Where it was sent from.
    pub born_host: SocketAddr,
    /// When the broker got it, in milliseconds.
    pub store_timestamp: i64,
    /// Where clients find it again.
    pub store_host: SocketAddr,
    /// How often it was delivered before.
    pub reconsume_times: i32,
    /// Physical offset of the half message it was made of; else 0.
    pub prepared_transaction_offset: i64,
    /// The payload.
    pub body: &'a [u8],
    /// Properties as text.
    pub properties: &'a str,
}

/// Why bytes are no record, or a message cannot become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The size field is less than any record or more than there is.
    #[error("record of {found} bytes where there are {available}")]
    Size {
        /// The size field.
        found: i32,
        /// Bytes there.
        available: usize,
    },
    /// Neither V1 nor V2.
    #[error("record magic {0:#010x}")]
    Magic(i32),
    /// A length inside the record is negative or leads beyond its end, or the fields do not fill it.
    #[error("record field {0} does not fit")]
    Field(&'static str),
    /// Text that is not UTF-8.
    #[error("record field {0} is not utf-8")]
    Utf8(&'static str),
    /// A message part is too long for its length field.
    #[error("message {field} of {found} bytes, more than {max}")]
    TooLong {
        /// Which part.
        field: &'static str,
        /// Its length.
        found: usize,
        /// The limit.
        max: usize,
    },
}

/// Appends `message` as a record and returns its size. Nothing is appended on an error.
///
/// # Errors
/// [`RecordError::TooLong`] if the topic, the properties or the whole are longer than a record can say.
pub fn encode_record(message: &NewMessage<'_>, out: &mut BytesMut) -> Result<usize, RecordError> {
    let too_long = |field, found, max| RecordError::TooLong { field, found, max };
    let NewMessage { topic, body, properties, .. } = message;
    let properties_length =
        i16::try_from(properties.len()).map_err(|_| too_long("properties", properties.len(), Properties::BYTES_MAX))?;
    let topic_length = i16::try_from(topic.len()).map_err(|_| too_long("topic", topic.len(), Properties::BYTES_MAX))?;
    // A signed byte, for all that clients make of it.
    let short_topic = u8::try_from(topic_length).ok().filter(|length| *length <= 127);
    let mut sys_flag = message.sys_flag.without(SysFlag::BORN_HOST_V6 | SysFlag::STORE_HOST_V6);
    if message.born_host.is_ipv6() {
        sys_flag = sys_flag.with(SysFlag::BORN_HOST_V6);
    }
    if message.store_host.is_ipv6() {
        sys_flag = sys_flag.with(SysFlag::STORE_HOST_V6);
    }
    let host_bytes = |host: SocketAddr| if host.is_ipv6() { 20_usize } else { 8 };
    let size = [
        FIXED_BYTES,
        usize::from(short_topic.is_none()),
        host_bytes(message.born_host),
        host_bytes(message.store_host),
        body.len(),
        topic.len(),
        properties.len(),
    ]
    .into_iter()
    .fold(0_usize, usize::saturating_add);
    let size_field = i32::try_from(size).map_err(|_| too_long("record", size, i32::MAX as usize))?;
    let body_length = i32::try_from(body.len()).map_err(|_| too_long("body", body.len(), i32::MAX as usize))?;

    let start = out.len();
    out.reserve(size);
    out.put_i32(size_field);
    out.put_i32(if short_topic.is_some() { MAGIC_V1 } else { MAGIC_V2 });
    out.put_i32(body_crc(body));
    out.put_i32(message.queue_id);
    out.put_i32(message.flag);
    out.put_i64(0);
    out.put_i64(0);
    out.put_i32(sys_flag.0);
    out.put_i64(message.born_timestamp);
    put_host(out, message.born_host);
    out.put_i64(message.store_timestamp);
    put_host(out, message.store_host);
    out.put_i32(message.reconsume_times);
    out.put_i64(message.prepared_transaction_offset);
    out.put_i32(body_length);
    out.put_slice(body);
    match short_topic {
        Some(length) => out.put_u8(length),
        None => out.put_i16(topic_length),
    }
    out.put_slice(topic.as_bytes());
    out.put_i16(properties_length);
    out.put_slice(properties.as_bytes());
    assert_eq!(out.len().saturating_sub(start), size);
    Ok(size)
}

/// Fills in both offsets of the record at the start of `record`.
///
/// # Errors
/// [`RecordError::Size`] if there are fewer bytes than any record has.
pub fn patch_offsets(record: &mut [u8], queue_offset: i64, physical_offset: i64) -> Result<(), RecordError> {
    let available = record.len();
    let place = record.get_mut(OFFSETS_AT).and_then(|place| place.first_chunk_mut::<16>());
    let place = place.ok_or(RecordError::Size { found: 0, available })?;
    let (queue, physical) = place.split_at_mut(8);
    queue.copy_from_slice(&queue_offset.to_be_bytes());
    physical.copy_from_slice(&physical_offset.to_be_bytes());
    Ok(())
}

/// Fills in how often the record at the start of `record` was delivered before.
///
/// # Errors
/// [`RecordError::Size`] if there are fewer bytes than any record has.
pub fn patch_reconsume_times(record: &mut [u8], reconsume_times: i32) -> Result<(), RecordError> {
    let available = record.len();
    let short = RecordError::Size { found: 0, available };
    let flag = record.get(SYS_FLAG_AT..).and_then(|rest| rest.first_chunk::<4>()).ok_or(short)?;
    let sys_flag = SysFlag(i32::from_be_bytes(*flag));
    let host_bytes = |bit| if sys_flag.has(bit) { 20_usize } else { 8 };
    // Two hosts and two times lie between.
    let at = [SYS_FLAG_AT, 4, 16, host_bytes(SysFlag::BORN_HOST_V6), host_bytes(SysFlag::STORE_HOST_V6)];
    let at = at.into_iter().fold(0_usize, usize::saturating_add);
    let place = record.get_mut(at..).and_then(|place| place.first_chunk_mut::<4>());
    let place = place.ok_or(RecordError::Size { found: 0, available })?;
    *place = reconsume_times.to_be_bytes();
    Ok(())
}

/// A record, checked as a whole and read in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'a> {
    bytes: &'a [u8],
    body_crc: i32,
    queue_id: i32,
    flag: i32,
    queue_offset: i64,
    physical_offset: i64,
    sys_flag: SysFlag,
    born_timestamp: i64,
    born_host: SocketAddr,
    store_timestamp: i64,
    store_host: SocketAddr,
    reconsume_times: i32,
    prepared_transaction_offset: i64,
    body: &'a [u8],
    topic: &'a str,
    properties: &'a str,
}

impl<'a> RecordView<'a> {
    /// Reads the record at the start of `bytes`; more may follow it.
    ///
    /// On return every length inside fits and topic and properties are UTF-8. The body's checksum is not compared: see
    /// [`RecordView::body_crc_agrees`].
    ///
    /// # Errors
    /// The first [`RecordError`] found.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, RecordError> {
        let available = bytes.len();
        let found = Reader::new(bytes).i32().ok_or(RecordError::Size { found: 0, available })?;
        let size = usize::try_from(found).ok().filter(|size| *size >= RECORD_BYTES_MIN);
        let bytes = size.and_then(|size| bytes.get(..size)).ok_or(RecordError::Size { found, available })?;
        let mut reader = Reader::new(bytes);
        let field = |name| move || RecordError::Field(name);
        reader.i32().ok_or_else(field("size"))?;
        let magic = reader.i32().ok_or_else(field("magic"))?;
        if !matches!(magic, MAGIC_V1 | MAGIC_V2) {
            return Err(RecordError::Magic(magic));
        }
        let body_crc = reader.i32().ok_or_else(field("body crc"))?;
        let queue_id = reader.i32().ok_or_else(field("queue id"))?;
        let flag = reader.i32().ok_or_else(field("flag"))?;
        let queue_offset = reader.i64().ok_or_else(field("queue offset"))?;
        let physical_offset = reader.i64().ok_or_else(field("physical offset"))?;
        let sys_flag = SysFlag(reader.i32().ok_or_else(field("sys flag"))?);
        let born_timestamp = reader.i64().ok_or_else(field("born timestamp"))?;
        let born_host = reader.host(sys_flag.has(SysFlag::BORN_HOST_V6)).ok_or_else(field("born host"))?;
        let store_timestamp = reader.i64().ok_or_else(field("store timestamp"))?;
        let store_host = reader.host(sys_flag.has(SysFlag::STORE_HOST_V6)).ok_or_else(field("store host"))?;
        let reconsume_times = reader.i32().ok_or_else(field("reconsume times"))?;
        let prepared_transaction_offset = reader.i64().ok_or_else(field("prepared transaction offset"))?;
        let length = reader.i32().and_then(|length| usize::try_from(length).ok());
        let body = length.and_then(|length| reader.bytes(length)).ok_or_else(field("body"))?;
        let length = match magic {
            MAGIC_V1 => reader.u8().map(usize::from),
            _ => reader.i16().and_then(|length| usize::try_from(length).ok()),
        };
        let topic = length.and_then(|length| reader.bytes(length)).ok_or_else(field("topic"))?;
        let length = reader.i16().and_then(|length| usize::try_from(length).ok());
        let properties = length.and_then(|length| reader.bytes(length)).ok_or_else(field("properties"))?;
        if !reader.is_empty() {
            return Err(RecordError::Field("end"));
        }
        Ok(Self {
            bytes,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            body,
            topic: std::str::from_utf8(topic).map_err(|_| RecordError::Utf8("topic"))?,
            properties: std::str::from_utf8(properties).map_err(|_| RecordError::Utf8("properties"))?,
        })
    }

    /// The record's own bytes, without what follows.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Size of the record.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The checksum field.
    #[must_use]
    pub const fn body_crc(&self) -> i32 {
        self.body_crc
    }

    /// Whether the checksum field is that of the body.
    #[must_use]
    pub fn body_crc_agrees(&self) -> bool {
        self.body_crc == body_crc(self.body)
    }

    /// The queue.
    #[must_use]
    pub const fn queue_id(&self) -> i32 {
        self.queue_id
    }

    /// Bits that only users interpret.
    #[must_use]
    pub const fn flag(&self) -> i32 {
        self.flag
    }

    /// Number in the queue; 0 as long as nobody filled it in.
    #[must_use]
    pub const fn queue_offset(&self) -> i64 {
        self.queue_offset
    }

    /// Place in the CommitLog; 0 as long as nobody filled it in.
    #[must_use]
    pub const fn physical_offset(&self) -> i64 {
        self.physical_offset
    }

    /// How it is stored.
    #[must_use]
    pub const fn sys_flag(&self) -> SysFlag {
        self.sys_flag
    }

    /// When the sender made it, in milliseconds.
    #[must_use]
    pub const fn born_timestamp(&self) -> i64 {
        self.born_timestamp
    }

    /// Where it was sent from.
    #[must_use]
    pub const fn born_host(&self) -> SocketAddr {
        self.born_host
    }

    /// When the broker got it, in milliseconds.
    #[must_use]
    pub const fn store_timestamp(&self) -> i64 {
        self.store_timestamp
    }

    /// Where clients find it again.
    #[must_use]
    pub const fn store_host(&self) -> SocketAddr {
        self.store_host
    }

    /// How often it was delivered before.
    #[must_use]
    pub const fn reconsume_times(&self) -> i32 {
        self.reconsume_times
    }

    /// Physical offset of the half message it was made of; else 0.
    #[must_use]
    pub const fn prepared_transaction_offset(&self) -> i64 {
        self.prepared_transaction_offset
    }

    /// The payload.
    #[must_use]
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    /// The topic as it stands there; it was a topic when it was stored.
    #[must_use]
    pub const fn topic(&self) -> &'a str {
        self.topic
    }

    /// The properties.
    #[must_use]
    pub const fn properties(&self) -> Properties<'a> {
        Properties::new(self.properties)
    }

    /// What the ConsumeQueue holds for its tag; 0 for none.
    #[must_use]
    pub fn tags_code(&self) -> i64 {
        tags_code(&self.properties())
    }

    /// A message with the same content, to be stored again with changes.
    #[must_use]
    pub const fn to_new_message(&self) -> NewMessage<'a> {
        NewMessage {
            topic: self.topic,
            queue_id: self.queue_id,
            flag: self.flag,
            sys_flag: self.sys_flag,
            born_timestamp: self.born_timestamp,
            born_host: self.born_host,
            store_timestamp: self.store_timestamp,
            store_host: self.store_host,
            reconsume_times: self.reconsume_times,
            prepared_transaction_offset: self.prepared_transaction_offset,
            body: self.body,
            properties: self.properties,
        }
    }
}

/// The records of a pack, a pull answer or any other run of records.
pub const fn iter_records(bytes: &[u8]) -> Records<'_> {
    Records { rest: bytes }
}

/// See [`iter_records`]. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<RecordView<'a>, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = RecordView::parse(self.rest);
        self.rest = match &record {
            Ok(view) => self.rest.get(view.size()..).unwrap_or_default(),
            Err(_) => &[],
        };
        Some(record)
    }
}
