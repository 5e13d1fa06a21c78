//! Frames and headers, byte by byte: known vectors, quirks of clients, limits.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "a test that panics has failed, which is what it is for"
)]

use std::fmt::Write as _;

use bytes::{BufMut, BytesMut};
use expect_test::{Expect, expect};
use protocol::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// A frame around a header of the given form.
fn frame(form: u8, header: &[u8], body: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    out.put_u32((4 + header.len() + body.len()) as u32);
    out.put_u32(u32::from(form) << 24 | header.len() as u32);
    out.put_slice(header);
    out.put_slice(body);
    out
}

fn decode(mut bytes: BytesMut) -> Result<RemotingCommand, DecodeError> {
    decode_frame(&mut bytes, &FrameLimits::STANDARD).map(|command| command.expect("a whole frame"))
}

fn decode_json(header: &str) -> Result<RemotingCommand, DecodeError> {
    decode(frame(0, header.as_bytes(), b""))
}

/// Decodes a JSON header and prints what it holds.
fn check(header: &str, expected: Expect) {
    let text = match decode_json(header) {
        Err(error) => error.to_string(),
        Ok(command) => {
            let RemotingCommand { code, language, version, opaque, flag, remark, ext, .. } = command;
            let mut text = format!("{code} {language} v{version} #{opaque} flag {flag}");
            if let Some(remark) = remark {
                write!(text, " {remark:?}").unwrap();
            }
            if !ext.is_empty() {
                write!(text, " {ext:?}").unwrap();
            }
            text
        }
    };
    let ascii = |c: char| if c.is_ascii() { c.to_string() } else { c.escape_unicode().to_string() };
    expected.assert_eq(&text.chars().map(ascii).collect::<String>());
}

fn route_request() -> RemotingCommand {
    let mut command = RemotingCommand::request(RequestCode::GET_ROUTEINFO_BY_TOPIC).with_ext("topic", "T");
    command.opaque = 7;
    command
}

#[test]
fn json_frame_of_a_route_request() {
    let mut out = BytesMut::new();
    encode_frame(&route_request(), &mut out);
    let header = br#"{"code":105,"language":"JAVA","version":479,"opaque":7,"flag":0,"extFields":{"topic":"T"}}"#;
    assert_eq!(out[..8], hex("0000005e 0000005a"));
    assert_eq!(out[8..], header[..]);
    assert_eq!(decode(out).unwrap(), route_request());
}

#[test]
fn binary_frame_of_a_route_request() {
    let mut command = route_request();
    command.form = HeaderForm::RocketMq;
    let mut out = BytesMut::new();
    encode_frame(&command, &mut out);
    let expected = "00000025 01000021 0069 00 01df 00000007 00000000 00000000 0000000c 0005 746f706963 00000001 54";
    assert_eq!(out[..], hex(expected));
    assert_eq!(decode(out).unwrap(), command);
}

#[test]
fn a_body_follows_the_header_and_shares_its_memory() {
    let command = route_request().with_body(&b"body"[..]);
    let mut out = BytesMut::new();
    encode_frame(&command, &mut out);
    let mut apart = BytesMut::new();
    encode_head(&command, 4, &mut apart);
    apart.put_slice(b"body");
    assert_eq!(out, apart);
    let place = out.as_ptr() as usize + out.len() - 4;
    let decoded = decode(out).unwrap();
    assert_eq!(decoded.body.as_ptr() as usize, place);
    assert_eq!(decoded, command);
}

#[test]
fn answers_keep_opaque_and_form_and_always_have_ext_fields() {
    let mut request = route_request();
    request.form = HeaderForm::RocketMq;
    let answer = RemotingCommand::response_to(&request, ResponseCode::TOPIC_NOT_EXIST);
    assert_eq!((answer.opaque, answer.form, answer.is_response()), (7, HeaderForm::RocketMq, true));
    request.form = HeaderForm::Json;
    let answer = RemotingCommand::response_to(&request, ResponseCode::SUCCESS).with_remark("a \"b\"\n\u{1}");
    let mut out = BytesMut::new();
    encode_frame(&answer, &mut out);
    let header = std::str::from_utf8(&out[8..]).unwrap();
    expect![[
        r#"{"code":0,"language":"JAVA","version":479,"opaque":7,"flag":1,"remark":"a \"b\"\n\u0001","extFields":{}}"#
    ]]
    .assert_eq(header);
    assert_eq!(decode(out).unwrap(), answer);
}

#[test]
fn ext_values_of_any_scalar_type_become_text() {
    check(
        r#"{"code":310,"extFields":{"a":"x","d":4,"e":-1,"g":1796006334701,"k":false,"m":true,"n":null,"z":1.50e3}}"#,
        expect![[
            r#"310 JAVA v0 #0 flag 0 {"a": "x", "d": "4", "e": "-1", "g": "1796006334701", "k": "false", "m": "true", "z": "1.50e3"}"#
        ]],
    );
}

#[test]
fn missing_null_and_empty_parts_are_absent() {
    check(r#"{"code":1}"#, expect!["1 JAVA v0 #0 flag 0"]);
    check(r#"{"code":1,"remark":null,"extFields":null,"language":null}"#, expect!["1 OTHER v0 #0 flag 0"]);
    check(r#"{"code":1,"remark":"","extFields":{}}"#, expect!["1 JAVA v0 #0 flag 0"]);
}

#[test]
fn blanks_unknown_keys_and_any_order_are_fine() {
    check(
        "{ \"serializeTypeCurrentRPC\" : \"JSON\", \"x\":[1,{\"y\":[]},\"\\u00e4\"],\n\"extFields\": { \"a\" : \"b\" } ,\"opaque\":2,\"flag\":2,\"language\":\"GO\",\"version\":317,\"code\":34 }\n",
        expect![[r#"34 GO v317 #2 flag 2 {"a": "b"}"#]],
    );
}

#[test]
fn escapes_are_undone() {
    check(
        r#"{"code":1,"remark":"\"\\\/\b\f\n\r\t\u00e4\ud83d\ude00","extFields":{"i":"KEYS\u0001k\u0002","\u0061":"\u8ba2"}}"#,
        expect![[
            r#"1 JAVA v0 #0 flag 0 "\"\\/\u{8}\u{c}\n\r\t\u{e4}\u{1f600}" {"i": "KEYS\u{1}k\u{2}", "a": "\u{8ba2}"}"#
        ]],
    );
    check(r#"{"code":1,"remark":"\ud83d"}"#, expect!["json header: bad escape"]);
    check(r#"{"code":1,"remark":"\ud83d\u0041"}"#, expect!["json header: bad escape"]);
    check(r#"{"code":1,"remark":"\u12"}"#, expect!["json header: bad escape"]);
    check(r#"{"code":1,"remark":"\x"}"#, expect!["json header: bad escape"]);
    check(r#"{"code":1,"remark":"\u+123"}"#, expect!["json header: bad escape"]);
}

#[test]
fn malformed_json_headers_are_refused() {
    check("", expect!["json header: ends inside a value"]);
    check("{", expect!["json header: ends inside a value"]);
    check("[]", expect!["json header: unexpected character"]);
    check("{}", expect!["json header: ends inside a value"]);
    check(r#"{"code":1}x"#, expect!["json header: text after the value"]);
    check(r#"{"code":1,}"#, expect!["json header: unexpected character"]);
    check(r#"{"code":1 "flag":0}"#, expect!["json header: unexpected character"]);
    check(r#"{"code":1.5}"#, expect!["json header: number out of range"]);
    check(r#"{"code":4294967296}"#, expect!["json header: number out of range"]);
    check(r#"{"code":tru}"#, expect!["json header: unexpected character"]);
    check(r#"{"code":1,"remark":5}"#, expect!["json header: unexpected character"]);
    check(r#"{"code":1,"extFields":{"a":{}}}"#, expect!["json header: unexpected character"]);
    check(r#"{"code":1,"extFields":{"a":[]}}"#, expect!["json header: unexpected character"]);
    check(r#"{"code":1,"extFields":["a"]}"#, expect!["json header: unexpected character"]);
    check(r#"{"code":1,"code":2}"#, expect!["json header: duplicate key"]);
    check(r#"{"code":1,"extFields":{"a":"1","a":"2"}}"#, expect!["ext fields: duplicate key"]);
    check(r#"{"code":1,"extFields":{"a":"1","\u0061":"2"}}"#, expect!["ext fields: duplicate key"]);
}

#[test]
fn nesting_is_limited() {
    let nested = |depth: usize| format!(r#"{{"code":1,"x":{}1{}}}"#, "[".repeat(depth), "]".repeat(depth));
    assert!(decode_json(&nested(31)).is_ok());
    assert_eq!(decode_json(&nested(32)), Err(DecodeError::Json(JsonError::Depth)));
    assert_eq!(decode_json(&nested(100_000)), Err(DecodeError::Json(JsonError::Depth)));
}

#[test]
fn ext_fields_are_limited_in_number_and_length() {
    let fields = |count: usize| {
        let fields: Vec<String> = (0..count).map(|i| format!(r#""k{i}":"v""#)).collect();
        format!(r#"{{"code":1,"extFields":{{{}}}}}"#, fields.join(","))
    };
    assert_eq!(decode_json(&fields(128)).unwrap().ext.len(), 128);
    assert_eq!(decode_json(&fields(129)), Err(DecodeError::ExtFields("too many")));
    let field = |key: usize, value: usize| {
        format!(r#"{{"code":1,"extFields":{{"{}":"{}"}}}}"#, "k".repeat(key), "v".repeat(value))
    };
    assert!(decode_json(&field(255, 65536)).is_ok());
    assert_eq!(decode_json(&field(256, 1)), Err(DecodeError::ExtFields("key too long")));
    assert_eq!(decode_json(&field(1, 65537)), Err(DecodeError::ExtFields("value too long")));
}

#[test]
fn invalid_utf8_is_refused() {
    let header = b"{\"code\":1,\"remark\":\"\xff\"}";
    assert_eq!(decode(frame(0, header, b"")), Err(DecodeError::Utf8("header")));
    let header = hex("0001 00 0000 00000000 00000000 00000001 ff 00000000");
    assert_eq!(decode(frame(1, &header, b"")), Err(DecodeError::Utf8("remark")));
    let header = hex("0001 00 0000 00000000 00000000 00000000 00000008 0001 ff 00000001 41");
    assert_eq!(decode(frame(1, &header, b"")), Err(DecodeError::Utf8("ext key")));
}

/// A binary header with the given ext fields, as hexadecimal digits.
fn binary(ext: &str) -> Result<RemotingCommand, DecodeError> {
    let ext = hex(ext);
    let mut header = hex("0001 00 0000 00000000 00000000 00000000");
    header.extend_from_slice(&(ext.len() as u32).to_be_bytes());
    header.extend_from_slice(&ext);
    decode(frame(1, &header, b""))
}

#[test]
fn malformed_binary_headers_are_refused() {
    let too_short = Err(DecodeError::Binary("ends too early"));
    let negative = Err(DecodeError::Binary("negative length"));
    assert!(binary("").is_ok());
    assert_eq!(binary("0001 41 00000002 41"), too_short);
    assert_eq!(binary("0001 41 7fffffff 41"), too_short);
    assert_eq!(binary("0001 41 ffffffff 41"), negative);
    assert_eq!(binary("ffff 41 00000001 41"), negative);
    assert_eq!(binary("0001 41 0000"), too_short);
    assert_eq!(binary("0001 41 00000001 41 0001 41 00000001 42"), Err(DecodeError::ExtFields("duplicate key")));
    assert_eq!(decode(frame(1, &hex("0001 00 0000"), b"")), too_short);
    let header = hex("0001 00 0000 00000000 00000000 ffffffff 00000000");
    assert_eq!(decode(frame(1, &header, b"")), negative);
    let header = hex("0001 00 0000 00000000 00000000 00000000 ffffffff");
    assert_eq!(decode(frame(1, &header, b"")), negative);
    let header = hex("0001 00 0000 00000000 00000000 00000000 00000000 00");
    assert_eq!(decode(frame(1, &header, b"")), Err(DecodeError::Binary("bytes after the ext fields")));
}

#[test]
fn zero_length_text_in_a_binary_header_is_absent() {
    let command = binary("0001 41 00000000 0001 42 00000001 58").unwrap();
    assert_eq!(command.ext, [("B", "X")].into_iter().collect());
    assert_eq!(command.remark, None);
}

#[test]
fn pop_codes_survive_a_binary_header() {
    let mut command = RemotingCommand::request(RequestCode::POP_MESSAGE);
    command.form = HeaderForm::RocketMq;
    let mut out = BytesMut::new();
    encode_frame(&command, &mut out);
    assert_eq!(out[8..10], 3442_u16.to_be_bytes());
    assert_eq!(decode(out).unwrap().request_code(), RequestCode::POP_MESSAGE);
}

#[test]
fn length_fields_are_checked_before_the_frame_is_there() {
    let refused = |bytes: &[u8]| decode_frame(&mut BytesMut::from(bytes), &FrameLimits::STANDARD);
    let max = FrameLimits::STANDARD.frame_bytes_max();
    assert_eq!(refused(&hex("00000003")), Err(DecodeError::FrameLength { found: 7, max }));
    assert_eq!(refused(&hex("00fffffd")), Err(DecodeError::FrameLength { found: 16_777_217, max }));
    assert_eq!(refused(&hex("00fffffc")), Ok(None));
    assert_eq!(refused(&hex("ffffffff")), Err(DecodeError::FrameLength { found: 0x1_0000_0003, max }));
    assert_eq!(refused(&hex("80000000")), Err(DecodeError::FrameLength { found: 0x8000_0004, max }));
    // A header longer than its frame, or than the limit.
    assert_eq!(refused(&hex("00000005 00000002")), Err(DecodeError::HeaderLength { found: 2, max: 1 }));
    let max = FrameLimits::STANDARD.header_bytes_max();
    assert_eq!(refused(&hex("00100000 00040001")), Err(DecodeError::HeaderLength { found: 262_145, max }));
    assert_eq!(refused(&hex("00000008 02000004")), Err(DecodeError::HeaderForm(2)));
}

#[test]
fn an_incomplete_frame_is_left_alone() {
    let mut out = BytesMut::new();
    encode_frame(&route_request(), &mut out);
    for length in 0..out.len() {
        let mut part = BytesMut::from(&out[..length]);
        assert_eq!(decode_frame(&mut part, &FrameLimits::STANDARD), Ok(None));
        assert_eq!(part[..], out[..length]);
    }
}

#[test]
fn oneway_and_response_are_bits_of_the_flag() {
    assert!(RemotingCommand::oneway(RequestCode::HEART_BEAT).is_oneway());
    let command = decode_json(r#"{"code":1,"flag":3}"#).unwrap();
    assert!(command.is_oneway() && command.is_response());
}
