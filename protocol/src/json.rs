//! Reading and writing JSON where a general library is too slow or too strict: headers, and the dialect of Java clients.

use crate::error::JsonError;

type Result<T> = std::result::Result<T, JsonError>;

/// Deepest nesting that is read. Real senders stay below ten.
pub(crate) const DEPTH_MAX: usize = 32;

/// A place in a JSON text.
pub(crate) struct Cursor<'a> {
    text: &'a str,
    /// Never beyond the end, and always between two characters once a method is done.
    at: usize,
}

/// A string of a JSON text, as it stands between its quotes.
#[derive(Clone, Copy)]
pub(crate) struct RawString<'a> {
    /// Where `raw` starts in the text.
    pub(crate) start: usize,
    pub(crate) raw: &'a str,
    /// Whether there is something to undo by [`unescape`].
    pub(crate) is_escaped: bool,
}

impl RawString<'_> {
    /// Appends the string to `out`.
    pub(crate) fn push_to(&self, out: &mut String) -> Result<()> {
        if self.is_escaped {
            return unescape(self.raw, out);
        }
        out.push_str(self.raw);
        Ok(())
    }
}

impl<'a> Cursor<'a> {
    pub(crate) const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The next byte, blanks skipped.
    #[inline]
    pub(crate) fn peek(&mut self) -> Result<u8> {
        loop {
            match self.text.as_bytes().get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.advance(1),
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
        self.advance(1);
        Ok(true)
    }

    /// Takes `byte`, which must come next, blanks skipped.
    pub(crate) fn expect(&mut self, byte: u8) -> Result<()> {
        if self.take_if(byte)? { Ok(()) } else { Err(JsonError::Unexpected) }
    }

    /// Whether another member of an object or array follows, which closes with `close`. `first` before the first one.
    pub(crate) fn next_member(&mut self, first: bool, close: u8) -> Result<bool> {
        match self.peek()? {
            byte if byte == close => {
                self.advance(1);
                Ok(false)
            }
            b',' if !first => {
                self.advance(1);
                // No comma before the end.
                if self.peek()? == close { Err(JsonError::Unexpected) } else { Ok(true) }
            }
            _ if first => Ok(true),
            _ => Err(JsonError::Unexpected),
        }
    }

    /// Nothing but blanks may follow.
    pub(crate) fn finish(&mut self) -> Result<()> {
        match self.peek() {
            Err(JsonError::Truncated) => Ok(()),
            _ => Err(JsonError::Trailing),
        }
    }

    /// The string that comes next. Its escapes are not looked at yet.
    pub(crate) fn string(&mut self) -> Result<RawString<'a>> {
        self.expect(b'"')?;
        let start = self.at;
        let mut is_escaped = false;
        loop {
            let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
            self.advance(plain_prefix(rest));
            match self.text.as_bytes().get(self.at) {
                None => return Err(JsonError::Truncated),
                Some(b'\\') => {
                    is_escaped = true;
                    // Whatever follows a backslash does not end the string.
                    self.advance(2);
                }
                Some(_) => break,
            }
        }
        let raw = self.text.get(start..self.at).ok_or(JsonError::Truncated)?;
        self.advance(1);
        Ok(RawString { start, raw, is_escaped })
    }

    /// The number, `true`, `false` or `null` that comes next, as it stands.
    pub(crate) fn scalar(&mut self) -> Result<&'a str> {
        self.peek()?;
        let text = self.take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.'))?;
        if is_number(text) || matches!(text, "true" | "false" | "null") { Ok(text) } else { Err(JsonError::Unexpected) }
    }

    /// The number or word without quotes that comes next, used as a key.
    fn bare_key(&mut self) -> Result<&'a str> {
        let text = self.take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))?;
        if text.is_empty() { Err(JsonError::Unexpected) } else { Ok(text) }
    }

    /// The whole number that comes next; some senders put quotes around it.
    pub(crate) fn integer(&mut self) -> Result<i64> {
        let text = if self.peek()? == b'"' { self.string()?.raw } else { self.scalar()? };
        text.parse().map_err(|_| JsonError::Number)
    }

    /// Skips the value that comes next, at most `depth` levels deep.
    pub(crate) fn skip(&mut self, depth: usize) -> Result<()> {
        let depth = depth.checked_sub(1).ok_or(JsonError::Depth)?;
        let close = match self.peek()? {
            b'"' => return self.string().map(drop),
            b'{' => b'}',
            b'[' => b']',
            _ => return self.scalar().map(drop),
        };
        self.advance(1);
        let mut first = true;
        while self.next_member(first, close)? {
            first = false;
            if close == b'}' {
                self.string()?;
                self.expect(b':')?;
            }
            self.skip(depth)?;
        }
        Ok(())
    }

    fn take_while(&mut self, inside: impl Fn(u8) -> bool) -> Result<&'a str> {
        let start = self.at;
        let rest = self.text.as_bytes().get(start..).unwrap_or_default();
        self.advance(rest.iter().take_while(|byte| inside(**byte)).count());
        self.text.get(start..self.at).ok_or(JsonError::Truncated)
    }

    /// Goes on; an end that is overrun is noticed by the next read.
    #[inline]
    const fn advance(&mut self, count: usize) {
        // An end that is overrun is never far away, so nothing wraps.
        self.at = self.at.wrapping_add(count);
    }
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// The high bit of each byte of `word` that is less than `limit`, up to 128. Bytes above the first such one may be marked wrongly.
const fn bytes_below(word: u64, limit: u8) -> u64 {
    word.wrapping_sub(ONES.wrapping_mul(limit as u64)) & !word & HIGHS
}

/// The same for bytes equal to `byte`.
const fn bytes_equal(word: u64, byte: u8) -> u64 {
    bytes_below(word ^ ONES.wrapping_mul(byte as u64), 1)
}

/// Number of bytes before the first quote or backslash.
fn plain_prefix(bytes: &[u8]) -> usize {
    prefix_before(bytes, |word| bytes_equal(word, b'"') | bytes_equal(word, b'\\'), |byte| matches!(byte, b'"' | b'\\'))
}

/// Number of bytes before the first that has to be escaped.
fn unescaped_prefix(bytes: &[u8]) -> usize {
    prefix_before(
        bytes,
        |word| bytes_equal(word, b'"') | bytes_equal(word, b'\\') | bytes_below(word, 0x20),
        |byte| byte < 0x20 || matches!(byte, b'"' | b'\\'),
    )
}

/// Eight bytes at a time: the strings in headers are too short for wider steps to pay. No count exceeds the length.
#[inline]
fn prefix_before(bytes: &[u8], marks: impl Fn(u64) -> u64, is_marked: impl Fn(u8) -> bool) -> usize {
    let (words, tail) = bytes.as_chunks::<8>();
    let mut before = 0_usize;
    for word in words {
        let marks = marks(u64::from_le_bytes(*word));
        if marks != 0 {
            return before.wrapping_add((marks.trailing_zeros() / 8) as usize);
        }
        before = before.wrapping_add(8);
    }
    before.wrapping_add(tail.iter().take_while(|byte| !is_marked(**byte)).count())
}

/// Appends `raw` to `out`, its escapes undone.
pub(crate) fn unescape(raw: &str, out: &mut String) -> Result<()> {
    let mut rest = raw;
    loop {
        let (plain, escape) = rest.split_at_checked(plain_prefix(rest.as_bytes())).ok_or(JsonError::Escape)?;
        out.push_str(plain);
        rest = match escape.as_bytes() {
            [] => return Ok(()),
            // What separates properties, and so the escape there is most of.
            [b'\\', b'u', b'0', b'0', b'0', digit @ b'0'..=b'9', ..] => {
                out.push(char::from(digit & 15));
                escape.get(6..)
            }
            [b'\\', b'u', ..] => {
                let (character, after) = unicode_escape(escape)?;
                out.push(character);
                Some(after)
            }
            [b'\\', letter, ..] => {
                out.push(match letter {
                    b'"' => '"',
                    b'\\' => '\\',
                    b'/' => '/',
                    b'b' => '\u{8}',
                    b'f' => '\u{c}',
                    b'n' => '\n',
                    b'r' => '\r',
                    b't' => '\t',
                    _ => return Err(JsonError::Escape),
                });
                escape.get(2..)
            }
            _ => None,
        }
        .ok_or(JsonError::Escape)?;
    }
}

/// The character of the escape by number at the start of `text`, or of two that form a pair, and what follows.
fn unicode_escape(text: &str) -> Result<(char, &str)> {
    let (unit, after) = utf16_unit(text)?;
    if let Ok(character) = char::try_from(u32::from(unit)) {
        return Ok((character, after));
    }
    // Half a pair; alone it is no character.
    let (second, after) = utf16_unit(after)?;
    let mut decoded = char::decode_utf16([unit, second]);
    match (decoded.next(), decoded.next()) {
        (Some(Ok(character)), None) => Ok((character, after)),
        _ => Err(JsonError::Escape),
    }
}

fn utf16_unit(text: &str) -> Result<(u16, &str)> {
    let digits = text.strip_prefix("\\u").ok_or(JsonError::Escape)?;
    let (digits, after) = digits.split_at_checked(4).ok_or(JsonError::Escape)?;
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(JsonError::Escape);
    }
    u16::from_str_radix(digits, 16).map(|unit| (unit, after)).map_err(|_| JsonError::Escape)
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
            push_quoted(out, cursor.string()?.raw);
            return Ok(());
        }
        b'{' => ('{', '}'),
        b'[' => ('[', ']'),
        _ => {
            out.push_str(cursor.scalar()?);
            return Ok(());
        }
    };
    cursor.advance(1);
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
        b'"' => push_quoted(out, cursor.string()?.raw),
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
    loop {
        let (plain, special) = rest.split_at_checked(unescaped_prefix(rest)).unwrap_or((rest, &[]));
        out.put(plain);
        let Some((byte, after)) = special.split_first() else { break };
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
    out.put(b"\"");
}
