//! Frames: a length, a header with its form and length, a body.
//!
//! | Bytes | Field |
//! | --- | --- |
//! | 4 | bytes that follow |
//! | 1 | header form: 0 JSON, 1 ROCKETMQ |
//! | 3 | header length |
//! | n | header |
//! | rest | body |

use bytes::{BufMut as _, BytesMut};

use crate::codec;
use crate::command::{HeaderForm, RemotingCommand};
use crate::error::DecodeError;
use crate::ext_fields::ExtLimits;

/// Both length fields.
const PREFIX_BYTES: usize = 8;
/// The first length field, which does not count itself.
const LENGTH_BYTES: usize = 4;
const HEADER_BYTES_FORM: usize = 0x00ff_ffff;

/// What a peer may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    frame_bytes_max: usize,
    header_bytes_max: usize,
    ext: ExtLimits,
}

impl FrameLimits {
    /// The limits of a broker or name server, which are those of RocketMQ or, for headers, far above what clients send.
    pub const STANDARD: Self = Self {
        frame_bytes_max: 16 * 1024 * 1024,
        header_bytes_max: 256 * 1024,
        ext: ExtLimits { fields_max: 128, key_bytes_max: 255, value_bytes_max: 64 * 1024 },
    };

    /// The limits for answers of a broker: the ids of all messages of a batch stand in one field.
    pub const ANSWERS: Self = Self {
        frame_bytes_max: 16 * 1024 * 1024,
        header_bytes_max: 1024 * 1024,
        ext: ExtLimits { fields_max: 128, key_bytes_max: 255, value_bytes_max: 1024 * 1024 },
    };

    /// The same limits, with frames of at most `bytes` (their length field included).
    #[must_use]
    pub const fn with_frame_bytes_max(mut self, bytes: usize) -> Self {
        self.frame_bytes_max = bytes;
        self
    }

    /// Longest frame, its length field included.
    #[must_use]
    pub const fn frame_bytes_max(&self) -> usize {
        self.frame_bytes_max
    }

    /// Longest header.
    #[must_use]
    pub const fn header_bytes_max(&self) -> usize {
        self.header_bytes_max
    }
}

impl Default for FrameLimits {
    fn default() -> Self {
        Self::STANDARD
    }
}

/// Takes one whole frame off the front of `buffer`.
///
/// Returns `None`, and leaves the buffer as it is, while the frame is incomplete; a length field beyond the limits is refused as
/// soon as it is there. The body is a slice of the buffer, so it keeps that memory alive. Nothing is allocated by an announced
/// size: the caller grows the buffer as bytes arrive.
///
/// # Errors
/// [`DecodeError`]: the connection cannot be read any further.
pub fn decode_frame(buffer: &mut BytesMut, limits: &FrameLimits) -> Result<Option<RemotingCommand>, DecodeError> {
    let Some(length) = buffer.first_chunk().copied().map(u32::from_be_bytes) else {
        return Ok(None);
    };
    let frame_bytes = u64::from(length).saturating_add(LENGTH_BYTES as u64);
    let refused = DecodeError::FrameLength { found: frame_bytes, max: limits.frame_bytes_max };
    let Ok(frame_bytes) = usize::try_from(frame_bytes) else {
        return Err(refused);
    };
    if !(PREFIX_BYTES..=limits.frame_bytes_max).contains(&frame_bytes) {
        return Err(refused);
    }
    let Some([_, _, _, _, form, length @ ..]) = buffer.first_chunk::<PREFIX_BYTES>().copied() else {
        return Ok(None);
    };
    let [a, b, c] = length;
    let header_bytes = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
    let header_bytes_max = limits.header_bytes_max.min(frame_bytes.saturating_sub(PREFIX_BYTES));
    if header_bytes > header_bytes_max {
        return Err(DecodeError::HeaderLength { found: header_bytes, max: header_bytes_max });
    }
    let form = match form {
        0 => HeaderForm::Json,
        1 => HeaderForm::RocketMq,
        _ => return Err(DecodeError::HeaderForm(form)),
    };
    if buffer.len() < frame_bytes {
        return Ok(None);
    }
    let mut frame = buffer.split_to(frame_bytes).freeze();
    let header_end = PREFIX_BYTES.saturating_add(header_bytes);
    let body = frame.split_off(header_end);
    let header = frame.get(PREFIX_BYTES..).unwrap_or_default();
    match form {
        HeaderForm::Json => codec::decode_json(header, body, &limits.ext),
        HeaderForm::RocketMq => codec::decode_binary(header, body, &limits.ext),
    }
    .map(Some)
}

/// Appends the frame of `command` to `out`.
///
/// # Panics
/// If the header is 16 MiB or more, or the frame 4 GiB or more; what is built from what was let in is far smaller.
pub fn encode_frame(command: &RemotingCommand, out: &mut BytesMut) {
    encode_head(command, command.body.len(), out);
    out.put_slice(&command.body);
}

/// Appends a frame without its body, which is `body_bytes` long and is sent after it by other means.
///
/// # Panics
/// As [`encode_frame`].
pub fn encode_head(command: &RemotingCommand, body_bytes: usize, out: &mut BytesMut) {
    let remark_bytes = command.remark.as_ref().map_or(0, String::len);
    let guess = command.ext.text_bytes().saturating_add(remark_bytes).saturating_add(256);
    out.reserve(guess);
    let start = out.len();
    out.put_slice(&[0; PREFIX_BYTES]);
    match command.form {
        HeaderForm::Json => codec::encode_json(command, out),
        HeaderForm::RocketMq => codec::encode_binary(command, out),
    }
    let header_bytes = out.len().saturating_sub(start).saturating_sub(PREFIX_BYTES);
    assert!(header_bytes <= HEADER_BYTES_FORM);
    let length = header_bytes.checked_add(body_bytes).and_then(|bytes| bytes.checked_add(LENGTH_BYTES));
    let length = length.and_then(|bytes| u32::try_from(bytes).ok()).expect("a frame is shorter than 4 GiB");
    let packed = u32::try_from(header_bytes).expect("checked above");
    let packed = match command.form {
        HeaderForm::Json => packed,
        HeaderForm::RocketMq => packed | 1 << 24,
    };
    let [a, b, c, d] = length.to_be_bytes();
    let [e, f, g, h] = packed.to_be_bytes();
    let prefix = out.get_mut(start..).and_then(|frame| frame.first_chunk_mut()).expect("written above");
    *prefix = [a, b, c, d, e, f, g, h];
}
