//! What can be wrong with bytes from a peer.

/// A frame or its header cannot be read. The connection it came on is useless: the next frame cannot be found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The length field names less than a header length or more than the limit.
    #[error("frame of {found} bytes, outside 8..={max}")]
    FrameLength {
        /// Whole frame, its length field included.
        found: u64,
        /// The limit in force.
        max: usize,
    },
    /// The header is longer than the frame or the limit.
    #[error("header of {found} bytes, more than the {max} possible here")]
    HeaderLength {
        /// What the frame names.
        found: usize,
        /// The smaller of the limit and what the frame can hold.
        max: usize,
    },
    /// The serialization byte is neither JSON nor ROCKETMQ.
    #[error("unknown header form {0}")]
    HeaderForm(u8),
    /// Text that is not UTF-8.
    #[error("{0} is not utf-8")]
    Utf8(&'static str),
    /// The binary header ends too early, or a length inside it is negative or too large.
    #[error("binary header: {0}")]
    Binary(&'static str),
    /// The JSON header is malformed.
    #[error("json header: {0}")]
    Json(JsonError),
    /// More ext fields than allowed, a key or value too long, or a key given twice.
    #[error("ext fields: {0}")]
    ExtFields(&'static str),
}

impl From<JsonError> for DecodeError {
    fn from(error: JsonError) -> Self {
        Self::Json(error)
    }
}

/// Malformed JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    /// The text ends inside a value.
    #[error("ends inside a value")]
    Truncated,
    /// A character that cannot stand where it does.
    #[error("unexpected character")]
    Unexpected,
    /// A number that is no integer, or too large for its field.
    #[error("number out of range")]
    Number,
    /// An escape that names no character.
    #[error("bad escape")]
    Escape,
    /// Nested deeper than any real sender does.
    #[error("nested too deep")]
    Depth,
    /// An array or object with more entries than allowed.
    #[error("too many entries")]
    Count,
    /// A key of the header given twice.
    #[error("duplicate key")]
    Duplicate,
    /// Something follows the value.
    #[error("text after the value")]
    Trailing,
}

/// An ext field that a request needs is missing or malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldError {
    /// The field is not there.
    #[error("field {field} is missing")]
    Missing {
        /// Name on the wire.
        field: &'static str,
    },
    /// The field is there but cannot be read.
    #[error("field {field} cannot be {value:?}")]
    Malformed {
        /// Name on the wire.
        field: &'static str,
        /// The first characters of the value.
        value: String,
    },
    /// The field holds a topic or group name that breaks the rules for names.
    #[error("field {field}: {source}")]
    Name {
        /// Name on the wire.
        field: &'static str,
        /// Which rule.
        source: NameError,
    },
}

impl FieldError {
    /// A malformed `value`, cut to what is fit for a remark.
    #[must_use]
    pub fn malformed(field: &'static str, value: &str) -> Self {
        Self::Malformed { field, value: value.chars().take(64).collect() }
    }
}

/// Why a text is no topic or group name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Nothing there.
    #[error("name is empty")]
    Empty,
    /// Longer than the limit.
    #[error("name of {found} bytes, more than {max}")]
    Length {
        /// Bytes given.
        found: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// A character outside letters, digits, `_`, `-`, `%` and `|`.
    #[error("name holds characters other than letters, digits, '_', '-', '%' and '|'")]
    Character,
}

/// A body cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// Longer than bodies of this kind may be.
    #[error("body of {found} bytes, more than {max}")]
    Length {
        /// Bytes given.
        found: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// Not even the tolerant reading of JSON makes sense of it.
    #[error("body: {0}")]
    Dialect(#[from] JsonError),
    /// JSON, but not of this shape.
    #[error("body: {0}")]
    Shape(#[from] serde_json::Error),
    /// A compressed body does not inflate.
    #[error("body: {0}")]
    Inflate(#[from] crate::message::InflateError),
    /// A binary body ends too early or holds an impossible length.
    #[error("body: {0}")]
    Layout(&'static str),
}
