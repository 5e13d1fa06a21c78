//! The named text values of a command, and their typed access.
//!
//! All names and values of one command lie in a single text, one after the other, and each field is a pair of ranges in it.
//! So a header of a dozen fields costs two allocations however it arrived, and unescaped values need no care of their own.

use std::fmt::{self, Display, Write as _};
use std::ops::Range;

use crate::error::{DecodeError, FieldError, NameError};
use crate::name::{GroupName, TopicName};

/// A range of the text.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    start: u32,
    end: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Span,
    value: Span,
}

/// The named text values of a command, in the order in which they were added. No name occurs twice.
#[derive(Clone, Default)]
pub struct ExtFields {
    text: String,
    entries: Vec<Entry>,
    /// The filter bits of all keys: a cheap proof that a key is not there.
    seen: u64,
}

/// Fields that a request usually has at most, and the bytes of an answer's; more only cost one more allocation.
pub(crate) const FIELDS_EXPECTED: usize = 16;
const TEXT_BYTES_EXPECTED: usize = 192;

/// Limits on fields that come from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtLimits {
    pub(crate) fields_max: usize,
    pub(crate) key_bytes_max: usize,
    pub(crate) value_bytes_max: usize,
}

impl ExtFields {
    /// No fields.
    #[must_use]
    pub const fn new() -> Self {
        Self { text: String::new(), entries: Vec::new(), seen: 0 }
    }

    /// No fields, with room for some.
    #[must_use]
    pub fn with_capacity(fields: usize, text_bytes: usize) -> Self {
        Self { text: String::with_capacity(text_bytes), entries: Vec::with_capacity(fields), seen: 0 }
    }

    /// Whether there is no field.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of fields.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        let key = key.as_bytes();
        if self.seen & filter_bit(key) == 0 {
            return None;
        }
        let entry = self.entries.iter().find(|entry| bytes(&self.text, entry.key) == key);
        entry.map(|entry| self.slice(entry.value))
    }

    /// The value of `key`, unless it is empty.
    #[must_use]
    pub fn get_non_empty(&self, key: &str) -> Option<&str> {
        self.get(key).filter(|value| !value.is_empty())
    }

    /// All fields, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().map(|entry| (self.slice(entry.key), self.slice(entry.value)))
    }

    /// Adds a field, or gives it a new value.
    pub fn push(&mut self, key: &str, value: &str) {
        self.remove(key);
        self.make_room();
        let key = self.append(key);
        let value = self.append(value);
        self.add(key, value);
    }

    /// Adds a field that is not there yet, its value printed.
    pub fn push_display(&mut self, key: &str, value: impl Display) {
        self.remove(key);
        self.make_room();
        let key = self.append(key);
        let start = self.end();
        // Writing to a `String` fails only if the value's own `Display` does.
        let _ = write!(self.text, "{value}");
        let value = Span { start, end: self.end() };
        self.add(key, value);
    }

    /// Adds or replaces a whole number.
    pub(crate) fn push_integer(&mut self, key: &str, value: i64) {
        self.remove(key);
        self.make_room();
        let key = self.append(key);
        let start = self.end();
        push_decimal(&mut self.text, value);
        let value = Span { start, end: self.end() };
        self.add(key, value);
    }

    /// Removes a field if it is there.
    pub fn remove(&mut self, key: &str) {
        if self.get(key).is_none() {
            return;
        }
        let Self { text, entries, .. } = self;
        entries.retain(|entry| slice(text, entry.key) != key);
    }

    /// The value of `key` as `T`.
    ///
    /// # Errors
    /// [`FieldError`] if it is missing or malformed.
    pub fn read<T: ExtValue>(&self, key: &'static str) -> Result<T, FieldError> {
        T::read(key, self.get(key))
    }

    /// Sets the value of `key`; an absent value adds nothing.
    pub fn write<T: ExtValue>(&mut self, key: &'static str, value: &T) {
        value.write(key, self);
    }

    /// Bytes of all names and values, and a few more.
    pub(crate) const fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// No fields yet, but all of `text`, which holds most names and values somewhere. There is room for as much again.
    pub(crate) fn received_in(text: &str) -> Self {
        let mut ext = Self::with_capacity(FIELDS_EXPECTED, text.len().saturating_mul(2));
        ext.text.push_str(text);
        ext
    }

    /// Lets `write` append to the text and returns where.
    pub(crate) fn append_received<E>(
        &mut self,
        write: impl FnOnce(&mut String) -> Result<(), E>,
    ) -> Result<Range<usize>, E> {
        let start = self.text.len();
        write(&mut self.text)?;
        Ok(start..self.text.len())
    }

    /// Adds a field whose key and value stand in the text.
    pub(crate) fn add_received(
        &mut self,
        key: Range<usize>,
        value: Range<usize>,
        limits: &ExtLimits,
    ) -> Result<(), DecodeError> {
        if self.entries.len() >= limits.fields_max {
            return Err(DecodeError::ExtFields("too many"));
        }
        if key.len() > limits.key_bytes_max {
            return Err(DecodeError::ExtFields("key too long"));
        }
        if value.len() > limits.value_bytes_max {
            return Err(DecodeError::ExtFields("value too long"));
        }
        let key = span(key).ok_or(DecodeError::ExtFields("too much text"))?;
        let value = span(value).ok_or(DecodeError::ExtFields("too much text"))?;
        let name = bytes(&self.text, key);
        let bit = filter_bit(name);
        if self.seen & bit != 0 && self.entries.iter().any(|entry| bytes(&self.text, entry.key) == name) {
            return Err(DecodeError::ExtFields("duplicate key"));
        }
        self.seen |= bit;
        self.entries.push(Entry { key, value });
        Ok(())
    }

    fn add(&mut self, key: Span, value: Span) {
        self.seen |= filter_bit(bytes(&self.text, key));
        self.entries.push(Entry { key, value });
    }

    /// The first field makes room for those that usually follow.
    fn make_room(&mut self) {
        if self.text.capacity() == 0 {
            self.text.reserve(TEXT_BYTES_EXPECTED);
            self.entries.reserve(FIELDS_EXPECTED);
        }
    }

    fn append(&mut self, piece: &str) -> Span {
        let start = self.end();
        self.text.push_str(piece);
        Span { start, end: self.end() }
    }

    fn end(&self) -> u32 {
        u32::try_from(self.text.len()).expect("the fields we build are far below 4 GiB")
    }

    fn slice(&self, span: Span) -> &str {
        slice(&self.text, span)
    }
}

fn slice(text: &str, span: Span) -> &str {
    text.get(span.start as usize..span.end as usize).unwrap_or_default()
}

fn bytes(text: &str, span: Span) -> &[u8] {
    text.as_bytes().get(span.start as usize..span.end as usize).unwrap_or_default()
}

fn span(range: Range<usize>) -> Option<Span> {
    Some(Span { start: u32::try_from(range.start).ok()?, end: u32::try_from(range.end).ok()? })
}

/// A bit for a key. The factors are those under which the keys of common requests hardly share one.
fn filter_bit(key: &[u8]) -> u64 {
    let [first, last] = [key.first(), key.last()].map(|byte| u64::from(*byte.unwrap_or(&0)));
    let mixed = first ^ last.wrapping_mul(19) ^ (key.len() as u64).wrapping_mul(10);
    1_u64 << (mixed & 63)
}

/// Appends `value` in decimal.
pub(crate) fn push_decimal(text: &mut String, value: i64) {
    let mut digits = [0_u8; 20];
    let mut rest = value.unsigned_abs();
    let mut used = 0_usize;
    for slot in digits.iter_mut().rev() {
        // A remainder below 10 always fits.
        *slot = b'0' | u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        used = used.saturating_add(1);
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        text.push('-');
    }
    let tail = digits.get(digits.len().saturating_sub(used)..).unwrap_or_default();
    text.push_str(std::str::from_utf8(tail).unwrap_or_default());
}

impl PartialEq for ExtFields {
    /// Order does not matter.
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().all(|(key, value)| other.get(key) == Some(value))
    }
}

impl Eq for ExtFields {}

impl fmt::Debug for ExtFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for ExtFields {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(fields: I) -> Self {
        let mut ext = Self::new();
        for (key, value) in fields {
            ext.push(key, value);
        }
        ext
    }
}

/// A type that a field's text can be read as.
pub trait ExtValue: Sized {
    /// Reads the text of `field`, if there is one.
    ///
    /// # Errors
    /// [`FieldError`] if the text is missing or malformed.
    fn read(field: &'static str, text: Option<&str>) -> Result<Self, FieldError>;

    /// Adds `field` with this value.
    fn write(&self, field: &'static str, ext: &mut ExtFields);
}

macro_rules! integer_values {
    ($($type:ty),*) => {
        $(
            impl ExtValue for $type {
                fn read(field: &'static str, text: Option<&str>) -> Result<Self, FieldError> {
                    let text = text.ok_or(FieldError::Missing { field })?;
                    text.parse().map_err(|_| FieldError::malformed(field, text))
                }

                fn write(&self, field: &'static str, ext: &mut ExtFields) {
                    ext.push_integer(field, i64::from(*self));
                }
            }
        )*
    };
}

integer_values!(i32, u32, i64);

impl ExtValue for u64 {
    fn read(field: &'static str, text: Option<&str>) -> Result<Self, FieldError> {
        let text = text.ok_or(FieldError::Missing { field })?;
        text.parse().map_err(|_| FieldError::malformed(field, text))
    }

    fn write(&self, field: &'static str, ext: &mut ExtFields) {
        ext.push_display(field, self);
    }
}

impl ExtValue for bool {
    /// As Java reads it: anything but "true", in whatever case, is false.
    fn read(field: &'static str, text: Option<&str>) -> Result<Self, FieldError> {
        let text = text.ok_or(FieldError::Missing { field })?;
        Ok(text.eq_ignore_ascii_case("true"))
    }

    fn write(&self, field: &'static str, ext: &mut ExtFields) {
        ext.push(field, if *self { "true" } else { "false" });
    }
}

impl ExtValue for String {
    fn read(field: &'static str, text: Option<&str>) -> Result<Self, FieldError> {
        text.map(str::to_owned).ok_or(FieldError::Missing { field })
    }

    fn write(&self, field: &'static str, ext: &mut ExtFields) {
        ext.push(field, self);
    }
}

macro_rules! name_values {
    ($($type:ty),*) => {
        $(
            impl ExtValue for $type {
                fn read(field: &'static str, text: Option<&str>) -> Result<Self, FieldError> {
                    let text = text.ok_or(FieldError::Missing { field })?;
                    Self::parse(text).map_err(|source: NameError| FieldError::Name { field, source })
                }

                fn write(&self, field: &'static str, ext: &mut ExtFields) {
                    ext.push(field, self);
                }
            }
        )*
    };
}

name_values!(TopicName, GroupName);

impl<T: ExtValue> ExtValue for Option<T> {
    /// Some clients write an empty text for what they leave out.
    fn read(field: &'static str, text: Option<&str>) -> Result<Self, FieldError> {
        match text {
            None | Some("") => Ok(None),
            Some(text) => T::read(field, Some(text)).map(Some),
        }
    }

    fn write(&self, field: &'static str, ext: &mut ExtFields) {
        if let Some(value) = self {
            value.write(field, ext);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_as_the_standard_library_does() {
        for value in [0, 1, 9, 10, 12345, -1, -10, i64::MAX, i64::MIN, 1_700_000_000_000] {
            let mut text = String::new();
            push_decimal(&mut text, value);
            assert_eq!(text, value.to_string());
        }
    }

    #[test]
    fn a_second_value_replaces_the_first() {
        let mut ext: ExtFields = [("a", "1"), ("b", "2")].into_iter().collect();
        ext.push("a", "3");
        assert_eq!(ext.get("a"), Some("3"));
        assert_eq!(ext.len(), 2);
        ext.remove("a");
        assert_eq!(ext.get("a"), None);
        assert_eq!(ext, [("b", "2")].into_iter().collect());
    }

    #[test]
    fn booleans_are_read_as_java_does() {
        let ext: ExtFields = [("a", "TRUE"), ("b", "1"), ("c", "false")].into_iter().collect();
        assert_eq!(ext.read("a"), Ok(true));
        assert_eq!(ext.read("b"), Ok(false));
        assert_eq!(ext.read("c"), Ok(false));
        assert_eq!(ext.read::<bool>("d"), Err(FieldError::Missing { field: "d" }));
        assert_eq!(ext.read::<Option<bool>>("d"), Ok(None));
    }

    #[test]
    fn errors_name_the_field() {
        let ext: ExtFields = [("queueId", "x"), ("topic", "a/b")].into_iter().collect();
        let text = ext.read::<i32>("queueId").unwrap_err().to_string();
        assert_eq!(text, "field queueId cannot be \"x\"");
        assert_eq!(
            ext.read::<TopicName>("topic"),
            Err(FieldError::Name { field: "topic", source: NameError::Character })
        );
        assert_eq!(ext.read::<i64>("offset").unwrap_err().to_string(), "field offset is missing");
    }
}
