//! Several messages in the body of one send request.
//!
//! Big-endian, repeated:
//!
//! | Bytes | Field |
//! | --- | --- |
//! | 4 | size of the item, itself included |
//! | 4 | magic, 0 |
//! | 4 | CRC, 0 |
//! | 4 | flag |
//! | 4 + n | body |
//! | 2 + n | properties |

use bytes::{BufMut as _, BytesMut};

use super::properties::Properties;
use super::record::RecordError;
use crate::reader::Reader;

/// An item without body and properties.
const FIXED_BYTES: usize = 22;

/// One message of a batch. Topic, queue and times are those of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchItem<'a> {
    /// Bits that only users interpret.
    pub flag: i32,
    /// The payload.
    pub body: &'a [u8],
    /// Properties as text.
    pub properties: &'a str,
}

/// The messages of the batch in `body`.
pub const fn decode_batch(body: &[u8]) -> BatchItems<'_> {
    BatchItems { rest: body }
}

/// See [`decode_batch`]. Ends after the first error.
#[derive(Clone, Debug)]
pub struct BatchItems<'a> {
    rest: &'a [u8],
}

impl<'a> BatchItems<'a> {
    fn take(&mut self) -> Result<BatchItem<'a>, RecordError> {
        let available = self.rest.len();
        let found = Reader::new(self.rest).i32().ok_or(RecordError::Size { found: 0, available })?;
        let size = usize::try_from(found).ok().filter(|size| *size >= FIXED_BYTES);
        let split = size.and_then(|size| self.rest.split_at_checked(size));
        let (item, rest) = split.ok_or(RecordError::Size { found, available })?;
        let item = parse(item)?;
        self.rest = rest;
        Ok(item)
    }
}

fn parse(item: &[u8]) -> Result<BatchItem<'_>, RecordError> {
    let mut reader = Reader::new(item);
    // Size, and two fields that senders leave zero and nobody reads.
    reader.bytes(12).ok_or(RecordError::Field("size"))?;
    let flag = reader.i32().ok_or(RecordError::Field("flag"))?;
    let length = reader.i32().and_then(|length| usize::try_from(length).ok());
    let body = length.and_then(|length| reader.bytes(length)).ok_or(RecordError::Field("body"))?;
    let length = reader.i16().and_then(|length| usize::try_from(length).ok());
    let properties = length.and_then(|length| reader.bytes(length)).ok_or(RecordError::Field("properties"))?;
    if !reader.is_empty() {
        return Err(RecordError::Field("end"));
    }
    let properties = std::str::from_utf8(properties).map_err(|_| RecordError::Utf8("properties"))?;
    Ok(BatchItem { flag, body, properties })
}

impl<'a> Iterator for BatchItems<'a> {
    type Item = Result<BatchItem<'a>, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let item = self.take();
        if item.is_err() {
            self.rest = &[];
        }
        Some(item)
    }
}

/// Appends `item` to a batch. Nothing is appended on an error.
///
/// # Errors
/// [`RecordError::TooLong`] if the body or the properties are longer than an item can say.
pub fn encode_batch_item(item: &BatchItem<'_>, out: &mut BytesMut) -> Result<(), RecordError> {
    let BatchItem { flag, body, properties } = item;
    let too_long = |field, found, max| RecordError::TooLong { field, found, max };
    let size = FIXED_BYTES.saturating_add(body.len()).saturating_add(properties.len());
    let size = i32::try_from(size).map_err(|_| too_long("body", body.len(), i32::MAX as usize))?;
    let body_length = i32::try_from(body.len()).map_err(|_| too_long("body", body.len(), i32::MAX as usize))?;
    let properties_length =
        i16::try_from(properties.len()).map_err(|_| too_long("properties", properties.len(), Properties::BYTES_MAX))?;
    out.put_i32(size);
    out.put_i32(0);
    out.put_i32(0);
    out.put_i32(*flag);
    out.put_i32(body_length);
    out.put_slice(body);
    out.put_i16(properties_length);
    out.put_slice(properties.as_bytes());
    Ok(())
}
