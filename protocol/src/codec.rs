//! The two forms of a header: a JSON object, and the binary layout called ROCKETMQ.
//!
//! The binary layout, big-endian:
//!
//! | Bytes | Field |
//! | --- | --- |
//! | 2 | code, cut to 16 bits |
//! | 1 | language ordinal |
//! | 2 | version |
//! | 4 | opaque |
//! | 4 | flag |
//! | 4 + n | remark; a length of 0 means none |
//! | 4 + n | ext fields: key (2 + n), value (4 + n), repeated; a value of length 0 means none |

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::code::{LanguageCode, RequestCode};
use crate::command::{HeaderForm, RemotingCommand};
use crate::error::{DecodeError, JsonError};
use crate::ext_fields::{ExtFields, ExtLimits, FIELDS_EXPECTED, push_decimal};
use crate::json::{Cursor, DEPTH_MAX, RawString, Sink as _, write_string};
use crate::reader::Reader;

type Result<T> = std::result::Result<T, DecodeError>;

/// Reads a JSON header. `body` is not looked at.
pub(crate) fn decode_json(header: &[u8], body: Bytes, limits: &ExtLimits) -> Result<RemotingCommand> {
    let text = std::str::from_utf8(header).map_err(|_| DecodeError::Utf8("header"))?;
    let mut cursor = Cursor::new(text);
    let mut code = None;
    let mut language = None;
    let mut version = None;
    let mut opaque = None;
    let mut flag = None;
    let mut remark = None;
    let mut ext = None;

    cursor.expect(b'{')?;
    let mut first = true;
    while cursor.next_member(first, b'}')? {
        first = false;
        let key = cursor.string()?.raw;
        cursor.expect(b':')?;
        match key {
            "code" => set(&mut code, integer(&mut cursor)?)?,
            "version" => set(&mut version, integer(&mut cursor)?)?,
            "opaque" => set(&mut opaque, integer(&mut cursor)?)?,
            "flag" => set(&mut flag, integer(&mut cursor)?)?,
            "language" => set(&mut language, decode_language(&mut cursor)?)?,
            "remark" => set(&mut remark, decode_remark(&mut cursor)?)?,
            "extFields" => set(&mut ext, decode_json_ext(&mut cursor, text, limits)?)?,
            _ => cursor.skip(DEPTH_MAX)?,
        }
    }
    cursor.finish()?;

    Ok(RemotingCommand {
        code: code.ok_or(DecodeError::Json(JsonError::Truncated))?,
        language: language.unwrap_or(LanguageCode::Java),
        version: version.unwrap_or(0),
        opaque: opaque.unwrap_or(0),
        flag: flag.unwrap_or(0),
        remark: remark.flatten(),
        ext: ext.unwrap_or_default(),
        body,
        form: HeaderForm::Json,
    })
}

fn set<T>(slot: &mut Option<T>, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(JsonError::Duplicate.into()),
    }
}

fn integer(cursor: &mut Cursor<'_>) -> Result<i32> {
    i32::try_from(cursor.integer()?).map_err(|_| JsonError::Number.into())
}

fn decode_language(cursor: &mut Cursor<'_>) -> Result<LanguageCode> {
    match cursor.peek()? {
        b'"' => Ok(LanguageCode::from_name(cursor.string()?.raw)),
        b'n' => {
            cursor.scalar()?;
            Ok(LanguageCode::Other)
        }
        _ => {
            let ordinal = cursor.integer()?;
            Ok(u8::try_from(ordinal).map_or(LanguageCode::Other, LanguageCode::from_ordinal))
        }
    }
}

fn decode_remark(cursor: &mut Cursor<'_>) -> Result<Option<String>> {
    if cursor.peek()? != b'"' {
        return match cursor.scalar()? {
            "null" => Ok(None),
            _ => Err(JsonError::Unexpected.into()),
        };
    }
    let mut remark = String::new();
    cursor.string()?.push_to(&mut remark)?;
    Ok((!remark.is_empty()).then_some(remark))
}

/// Reads the object of ext fields. Values of any scalar type become text; null means absent.
fn decode_json_ext(cursor: &mut Cursor<'_>, text: &str, limits: &ExtLimits) -> Result<ExtFields> {
    if cursor.peek()? == b'n' {
        cursor.scalar()?;
        return Ok(ExtFields::new());
    }
    cursor.expect(b'{')?;
    if cursor.take_if(b'}')? {
        return Ok(ExtFields::new());
    }
    // The header is copied at once, and only what is escaped is copied again: unescaped it is never longer.
    let mut ext = ExtFields::received_in(text);
    let mut first = true;
    while cursor.next_member(first, b'}')? {
        first = false;
        let key = cursor.string()?;
        cursor.expect(b':')?;
        let value = if cursor.peek()? == b'"' {
            let value = cursor.string()?;
            place(&value, &mut ext)?
        } else {
            match cursor.scalar()? {
                "null" => continue,
                scalar => ext.append_received(|text| {
                    text.push_str(scalar);
                    Ok::<_, DecodeError>(())
                })?,
            }
        };
        let key = place(&key, &mut ext)?;
        ext.add_received(key, value, limits)?;
    }
    Ok(ext)
}

/// Where the string stands in the text of `ext`, which starts with the text of the header.
fn place(string: &RawString<'_>, ext: &mut ExtFields) -> Result<Range<usize>> {
    if string.is_escaped {
        return Ok(ext.append_received(|text| string.push_to(text))?);
    }
    Ok(string.start..string.start.saturating_add(string.raw.len()))
}

/// Writes a JSON header.
pub(crate) fn encode_json(command: &RemotingCommand, out: &mut BytesMut) {
    let mut number = String::with_capacity(20);
    let mut integer = |out: &mut BytesMut, name: &[u8], value: i32| {
        out.put(name);
        number.clear();
        push_decimal(&mut number, i64::from(value));
        out.put(number.as_bytes());
    };
    integer(out, b"{\"code\":", command.code);
    out.put(b",\"language\":\"");
    out.put(command.language.name().as_bytes());
    out.put(b"\"");
    integer(out, b",\"version\":", command.version);
    integer(out, b",\"opaque\":", command.opaque);
    integer(out, b",\"flag\":", command.flag);
    if let Some(remark) = &command.remark {
        out.put(b",\"remark\":");
        write_string(out, remark);
    }
    // CPP clients trip over an answer without this object, even where it would be empty.
    if command.is_response() || !command.ext.is_empty() {
        out.put(b",\"extFields\":{");
        let mut first = true;
        for (key, value) in command.ext.iter() {
            if !first {
                out.put(b",");
            }
            first = false;
            write_string(out, key);
            out.put(b":");
            write_string(out, value);
        }
        out.put(b"}");
    }
    out.put(b"}");
}

/// Text led by a length of four bytes.
fn text32<'a>(reader: &mut Reader<'a>, what: &'static str) -> Result<&'a str> {
    let length = reader.i32().ok_or(TOO_SHORT)?;
    text(reader, i64::from(length), what)
}

/// Text led by a length of two bytes.
fn text16<'a>(reader: &mut Reader<'a>, what: &'static str) -> Result<&'a str> {
    let length = reader.i16().ok_or(TOO_SHORT)?;
    text(reader, i64::from(length), what)
}

fn text<'a>(reader: &mut Reader<'a>, length: i64, what: &'static str) -> Result<&'a str> {
    let length = usize::try_from(length).map_err(|_| DecodeError::Binary("negative length"))?;
    let bytes = reader.bytes(length).ok_or(TOO_SHORT)?;
    std::str::from_utf8(bytes).map_err(|_| DecodeError::Utf8(what))
}

const TOO_SHORT: DecodeError = DecodeError::Binary("ends too early");

/// Reads a binary header. `body` is not looked at.
pub(crate) fn decode_binary(header: &[u8], body: Bytes, limits: &ExtLimits) -> Result<RemotingCommand> {
    let mut reader = Reader::new(header);
    let short_code = reader.i16().ok_or(TOO_SHORT)?;
    let language = reader.u8().ok_or(TOO_SHORT)?;
    let version = i32::from(reader.i16().ok_or(TOO_SHORT)?);
    let opaque = reader.i32().ok_or(TOO_SHORT)?;
    let flag = reader.i32().ok_or(TOO_SHORT)?;
    let remark = text32(&mut reader, "remark")?;
    let ext_bytes =
        usize::try_from(reader.i32().ok_or(TOO_SHORT)?).map_err(|_| DecodeError::Binary("negative length"))?;
    let mut fields = Reader::new(reader.bytes(ext_bytes).ok_or(TOO_SHORT)?);
    if !reader.is_empty() {
        return Err(DecodeError::Binary("bytes after the ext fields"));
    }
    let mut ext = ExtFields::new();
    while !fields.is_empty() {
        let key = text16(&mut fields, "ext key")?;
        let value = text32(&mut fields, "ext value")?;
        if value.is_empty() {
            continue;
        }
        if ext.is_empty() {
            ext = ExtFields::with_capacity(FIELDS_EXPECTED, ext_bytes);
        }
        let mut append = |piece: &str| {
            ext.append_received(|text| {
                text.push_str(piece);
                Ok::<_, DecodeError>(())
            })
        };
        let (key, value) = (append(key)?, append(value)?);
        ext.add_received(key, value, limits)?;
    }
    let mut command = RemotingCommand {
        code: i32::from(short_code),
        language: LanguageCode::from_ordinal(language),
        version,
        opaque,
        flag,
        remark: (!remark.is_empty()).then(|| remark.to_owned()),
        ext,
        body,
        form: HeaderForm::RocketMq,
    };
    if !command.is_response() {
        command.code = RequestCode::from_binary(short_code).0;
    }
    Ok(command)
}

/// Writes a binary header.
pub(crate) fn encode_binary(command: &RemotingCommand, out: &mut BytesMut) {
    let [_, _, code @ ..] = command.code.to_be_bytes();
    let [_, _, version @ ..] = command.version.to_be_bytes();
    out.put(&code);
    out.put(&[command.language.ordinal()]);
    out.put(&version);
    out.put(&command.opaque.to_be_bytes());
    out.put(&command.flag.to_be_bytes());
    let remark = command.remark.as_deref().unwrap_or_default();
    out.put(&length32(remark.len()));
    out.put(remark.as_bytes());
    // An empty value reads as absent, so it is left out.
    let present = || command.ext.iter().filter(|(_, value)| !value.is_empty());
    let ext_bytes = present()
        .fold(0_usize, |sum, (key, value)| sum.saturating_add(6).saturating_add(key.len()).saturating_add(value.len()));
    out.put(&length32(ext_bytes));
    for (key, value) in present() {
        let key_length = i16::try_from(key.len()).expect("our keys, and those let in, are shorter than 32 KiB");
        out.put(&key_length.to_be_bytes());
        out.put(key.as_bytes());
        out.put(&length32(value.len()));
        out.put(value.as_bytes());
    }
}

fn length32(length: usize) -> [u8; 4] {
    i32::try_from(length).expect("a header is shorter than 2 GiB").to_be_bytes()
}
