//! Reading and writing JSON where a general library is too slow or too strict: headers, and the dialect of Java clients.

use crate::error::JsonError;

type Result<T> = std::result::Result<T, JsonError>;

/// Deepest nesting that is read. Real senders stay below ten.
pub(crate) const DEPTH_MAX: usize = 32;

/// A place in a JSON text.
pub(crate) struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    pub(crate) const fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    /// The next byte, blanks skipped.
    pub(crate) fn peek(&mut self) -> Result<u8> {
        loop {
            match self.rest.as_bytes().first() {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.advance(1)?,
                Some(byte) => return Ok(*byte),
                None => return Err(JsonError::Truncated),
            }
        }
    }

    /// Takes `byte` if it comes next, blanks skipped.
    pub(crate) fn take_if(&mut self, byte: u8) -> Result<bool> {
        if self.peek()? != byte {
            return Ok(false);
        }
        self.advance(1)?;
        Ok(true)
    }

    /// Takes `byte`, which must come next, blanks skipped.
    pub(crate) fn expect(&mut self, byte: u8) -> Result<()> {
        if self.take_if(byte)? { Ok(()) } else { Err(JsonError::Unexpected) }
    }

    /// Whether another member of an object or array follows, which closes with `close`. `first` before the first one.
    pub(crate) fn next_member(&mut self, first: bool, close: u8) -> Result<bool> {
        if self.take_if(close)? {
            return Ok(false);
        }
        if !first {
            self.expect(b',')?;
        }
        Ok(true)
    }

    /// Nothing but blanks may follow.
    pub(crate) fn finish(&mut self) -> Result<()> {
        match self.peek() {
            Err(JsonError::Truncated) => Ok(()),
            _ => Err(JsonError::Trailing),
        }
    }

    /// Appends the text of the string that comes next to `out`.
    pub(crate) fn string(&mut self, out: &mut String) -> Result<()> {
        self.expect(b'"')?;
        loop {
            let end = memchr::memchr2(b'"', b'\\', self.rest.as_bytes()).ok_or(JsonError::Truncated)?;
            out.push_str(self.split(end)?);
            if self.byte()? == b'"' {
                return Ok(());
            }
            out.push(self.escape()?);
        }
    }

    /// The string that comes next, as it stands between its quotes.
    pub(crate) fn raw_string(&mut self) -> Result<&'a str> {
        self.expect(b'"')?;
        let start = self.rest;
        let mut length = 0_usize;
        loop {
            let end = memchr::memchr2(b'"', b'\\', self.rest.as_bytes()).ok_or(JsonError::Truncated)?;
            self.advance(end)?;
            length = length.checked_add(end).ok_or(JsonError::Truncated)?;
            if self.byte()? == b'"' {
                return start.get(..length).ok_or(JsonError::Truncated);
            }
            let before = self.rest.len();
            self.escape()?;
            let taken = before.saturating_sub(self.rest.len()).saturating_add(1);
            length = length.checked_add(taken).ok_or(JsonError::Truncated)?;
        }
    }

    /// The number, `true`, `false` or `null` that comes next, as it stands.
    pub(crate) fn scalar(&mut self) -> Result<&'a str> {
        self.peek()?;
        let inside = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
        let length = self.rest.as_bytes().iter().take_while(|byte| inside(byte)).count();
        let text = self.split(length)?;
        if matches!(text, "true" | "false" | "null") || is_number(text) { Ok(text) } else { Err(JsonError::Unexpected) }
    }

    /// The number or word without quotes that comes next, used as a key.
    fn bare_key(&mut self) -> Result<&'a str> {
        let inside = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let length = self.rest.as_bytes().iter().take_while(|byte| inside(byte)).count();
        if length == 0 { Err(JsonError::Unexpected) } else { self.split(length) }
    }

    /// The whole number that comes next; some senders put quotes around it.
    pub(crate) fn integer(&mut self) -> Result<i64> {
        let text = if self.peek()? == b'"' { self.raw_string()? } else { self.scalar()? };
        text.parse().map_err(|_| JsonError::Number)
    }

    /// Skips the value that comes next, at most `depth` levels deep.
    pub(crate) fn skip(&mut self, depth: usize) -> Result<()> {
        let depth = depth.checked_sub(1).ok_or(JsonError::Depth)?;
        match self.peek()? {
            b'"' => self.raw_string().map(drop),
            b'{' => {
                self.advance(1)?;
                let mut first = true;
                while self.next_member(first, b'}')? {
                    first = false;
                    self.raw_string()?;
                    self.expect(b':')?;
                    self.skip(depth)?;
                }
                Ok(())
            }
            b'[' => {
                self.advance(1)?;
                let mut first = true;
                while self.next_member(first, b']')? {
                    first = false;
                    self.skip(depth)?;
                }
                Ok(())
            }
            _ => self.scalar().map(drop),
        }
    }

    fn advance(&mut self, count: usize) -> Result<()> {
        self.split(count).map(drop)
    }

    fn split(&mut self, count: usize) -> Result<&'a str> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(JsonError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8> {
        let byte = *self.rest.as_bytes().first().ok_or(JsonError::Truncated)?;
        self.advance(1)?;
        Ok(byte)
    }

    /// The character of an escape whose backslash is taken.
    fn escape(&mut self) -> Result<char> {
        // The byte after a backslash may start a longer character, which is no escape either.
        let byte = *self.rest.as_bytes().first().ok_or(JsonError::Truncated)?;
        let plain = match byte {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                self.advance(1)?;
                return self.unicode_escape();
            }
            _ => return Err(JsonError::Escape),
        };
        self.advance(1)?;
        Ok(plain)
    }

    fn unicode_escape(&mut self) -> Result<char> {
        let unit = self.hex4()?;
        let Ok(character) = char::try_from(u32::from(unit)) else {
            // The first half of a pair; a half alone is no character.
            if !self.rest.starts_with("\\u") {
                return Err(JsonError::Escape);
            }
            self.advance(2)?;
            let second = self.hex4()?;
            let mut decoded = char::decode_utf16([unit, second]);
            return match (decoded.next(), decoded.next()) {
                (Some(Ok(character)), None) => Ok(character),
                _ => Err(JsonError::Escape),
            };
        };
        Ok(character)
    }

    fn hex4(&mut self) -> Result<u16> {
        let digits = self.split(4).map_err(|_| JsonError::Escape)?;
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(JsonError::Escape);
        }
        u16::from_str_radix(digits, 16).map_err(|_| JsonError::Escape)
    }
}

/// Whether `text` is a JSON number.
fn is_number(text: &str) -> bool {
    fn digits(text: &str) -> Option<&str> {
        let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
        (rest.len() < text.len()).then_some(rest)
    }
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let Some(mut rest) = digits(unsigned) else {
        return false;
    };
    if let Some(fraction) = rest.strip_prefix('.') {
        let Some(after) = digits(fraction) else {
            return false;
        };
        rest = after;
    }
    if let Some(exponent) = rest.strip_prefix(['e', 'E']) {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        let Some(after) = digits(exponent) else {
            return false;
        };
        rest = after;
    }
    rest.is_empty()
}

/// How much a body may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    pub(crate) bytes_max: usize,
    /// Entries of any one array or object.
    pub(crate) entries_max: usize,
}

/// First character of a string that stands for an object used as a key.
pub(crate) const OBJECT_KEY: char = '\u{0}';

/// Rewrites the dialect of clients as plain JSON.
///
/// Java prints numeric keys without quotes and maps with object keys as `{{..}:..}`. A numeric key gets its quotes; an object
/// becomes a string: [`OBJECT_KEY`], then its text. Blanks go. Nesting and counts are checked on the way.
pub(crate) fn normalize(text: &str, limits: &BodyLimits) -> Result<String> {
    let mut cursor = Cursor::new(text);
    let mut out = String::with_capacity(text.len());
    normalize_value(&mut cursor, &mut out, DEPTH_MAX, limits)?;
    cursor.finish()?;
    Ok(out)
}

fn normalize_value(cursor: &mut Cursor<'_>, out: &mut String, depth: usize, limits: &BodyLimits) -> Result<()> {
    let depth = depth.checked_sub(1).ok_or(JsonError::Depth)?;
    let (open, close) = match cursor.peek()? {
        b'"' => {
            push_quoted(out, cursor.raw_string()?);
            return Ok(());
        }
        b'{' => ('{', '}'),
        b'[' => ('[', ']'),
        _ => {
            out.push_str(cursor.scalar()?);
            return Ok(());
        }
    };
    cursor.advance(1)?;
    out.push(open);
    let mut entries = 0_usize;
    while cursor.next_member(entries == 0, if open == '{' { b'}' } else { b']' })? {
        if entries > 0 {
            out.push(',');
        }
        entries = entries.saturating_add(1);
        if entries > limits.entries_max {
            return Err(JsonError::Count);
        }
        if open == '{' {
            normalize_key(cursor, out, depth, limits)?;
            cursor.expect(b':')?;
            out.push(':');
        }
        normalize_value(cursor, out, depth, limits)?;
    }
    out.push(close);
    Ok(())
}

fn normalize_key(cursor: &mut Cursor<'_>, out: &mut String, depth: usize, limits: &BodyLimits) -> Result<()> {
    match cursor.peek()? {
        b'"' => push_quoted(out, cursor.raw_string()?),
        b'{' => {
            let mut key = String::from(OBJECT_KEY);
            normalize_value(cursor, &mut key, depth, limits)?;
            let mut quoted = Vec::with_capacity(key.len());
            write_string(&mut quoted, &key);
            out.push_str(std::str::from_utf8(&quoted).unwrap_or_default());
        }
        _ => push_quoted(out, cursor.bare_key()?),
    }
    Ok(())
}

fn push_quoted(out: &mut String, raw: &str) {
    out.push('"');
    out.push_str(raw);
    out.push('"');
}

/// Something that bytes of JSON can be written to.
pub(crate) trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for bytes::BytesMut {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Writes `text` as a JSON string.
pub(crate) fn write_string(out: &mut impl Sink, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.put(b"\"");
    let mut rest = text.as_bytes();
    while let Some(place) = rest.iter().position(|byte| *byte < 0x20 || matches!(byte, b'"' | b'\\')) {
        let (plain, special) = rest.split_at_checked(place).unwrap_or((rest, &[]));
        out.put(plain);
        let Some((byte, after)) = special.split_first() else {
            break;
        };
        match byte {
            b'"' => out.put(b"\\\""),
            b'\\' => out.put(b"\\\\"),
            b'\n' => out.put(b"\\n"),
            b'\r' => out.put(b"\\r"),
            b'\t' => out.put(b"\\t"),
            _ => {
                let digit = |nibble: u8| HEX.get(usize::from(nibble)).copied().unwrap_or(b'0');
                out.put(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte & 15)]);
            }
        }
        rest = after;
    }
    out.put(rest);
    out.put(b"\"");
}
