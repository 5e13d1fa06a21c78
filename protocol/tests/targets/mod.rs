//! What must hold for any bytes at all. Run over mutated frames by a test, and by the fuzzer in `fuzz/`.

use bytes::BytesMut;
use protocol::body::{
    CheckClientConfig, ConsumeDirectlyResult, ConsumerRunningInfo, ConsumerStatus, HeartbeatData, LockRequest,
    RegisterBrokerBody, SubscriptionGroupConfig, TopicConfigList, TopicRouteData, decode_config_text,
};
use protocol::header::{PullRequest, SendRequest};
use protocol::message::{
    NewMessage, Properties, PropertiesBuilder, RecordView, SysFlag, decode_batch, encode_batch_item, encode_record,
    iter_records, tags_code,
};
use protocol::{FrameLimits, HeaderForm, RemotingCommand, decode_frame, encode_frame};

/// A stream of frames, cut in two wherever the first byte says.
pub(crate) fn frame(data: &[u8]) {
    let Some((cut, stream)) = data.split_first() else { return };
    let (first, second) = stream.split_at(usize::from(*cut).min(stream.len()));
    let mut buffer = BytesMut::new();
    for piece in [first, second] {
        buffer.extend_from_slice(piece);
        loop {
            let before = buffer.len();
            match decode_frame(&mut buffer, &FrameLimits::STANDARD) {
                Err(_) => return,
                Ok(None) => {
                    assert_eq!(buffer.len(), before);
                    break;
                }
                Ok(Some(command)) => {
                    assert!(buffer.len() + 8 + command.body.len() <= before);
                    survives(&command);
                }
            }
        }
    }
}

/// Writing a command and reading it again changes nothing.
fn survives(command: &RemotingCommand) {
    let mut out = BytesMut::new();
    encode_frame(command, &mut out);
    assert_eq!(decode_frame(&mut out, &FrameLimits::STANDARD), Ok(Some(command.clone())));
    assert!(out.is_empty());
    // Typed headers do not panic either, whatever the code.
    let _ = SendRequest::decode(command);
    let _ = PullRequest::decode(command);
}

fn header(form: u8, header: &[u8]) -> Option<RemotingCommand> {
    let mut frame = BytesMut::new();
    let length = u32::try_from(header.len()).ok()?;
    frame.extend_from_slice(&(length + 4).to_be_bytes());
    frame.extend_from_slice(&(length | u32::from(form) << 24).to_be_bytes());
    frame.extend_from_slice(header);
    decode_frame(&mut frame, &FrameLimits::STANDARD).ok().flatten()
}

/// A JSON header. Where a general parser reads it too, both read the same.
pub(crate) fn json_header(data: &[u8]) {
    let Some(command) = header(0, data) else { return };
    assert_eq!(command.form, HeaderForm::Json);
    survives(&command);
    let Ok(serde_json::Value::Object(object)) = serde_json::from_slice(data) else { return };
    // Others read -0 as a fraction.
    if let Some(code) = object["code"].as_i64() {
        assert_eq!(code, i64::from(command.code));
    }
    let remark = object.get("remark").and_then(serde_json::Value::as_str).unwrap_or_default();
    assert_eq!(command.remark.as_deref().unwrap_or_default(), remark);
    if let Some(serde_json::Value::Object(fields)) = object.get("extFields") {
        for (key, value) in fields {
            match value {
                serde_json::Value::String(text) => assert_eq!(command.ext.get(key), Some(text.as_str())),
                serde_json::Value::Null => assert_eq!(command.ext.get(key), None),
                _ => assert!(command.ext.get(key).is_some()),
            }
        }
    }
}

/// A binary header.
pub(crate) fn binary_header(data: &[u8]) {
    let Some(command) = header(1, data) else { return };
    assert_eq!(command.form, HeaderForm::RocketMq);
    survives(&command);
}

/// A run of stored messages.
pub(crate) fn message_record(data: &[u8]) {
    let mut taken = 0;
    for record in iter_records(data) {
        let Ok(record) = record else { break };
        taken += record.size();
        assert!(taken <= data.len());
        let _ = (record.body_crc_agrees(), record.tags_code());
        let message = record.to_new_message();
        let mut out = BytesMut::new();
        let size = encode_record(&message, &mut out).expect("what was read fits");
        let again = RecordView::parse(&out).expect("what was written reads");
        assert_eq!((again.size(), again.to_new_message()), (size, message));
        if record.body_crc_agrees() {
            assert!(again.body_crc() == record.body_crc());
        }
    }
}

/// The body of a batch.
pub(crate) fn batch(data: &[u8]) {
    let mut out = BytesMut::new();
    for item in decode_batch(data) {
        let Ok(item) = item else { break };
        encode_batch_item(&item, &mut out).expect("what was read fits");
        let message = NewMessage {
            topic: "T",
            queue_id: 0,
            flag: item.flag,
            sys_flag: SysFlag(0),
            born_timestamp: 0,
            born_host: ([127, 0, 0, 1], 1).into(),
            store_timestamp: 0,
            store_host: ([127, 0, 0, 1], 2).into(),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: item.body,
            properties: item.properties,
        };
        encode_record(&message, &mut BytesMut::new()).expect("an item fits a record");
    }
    assert!(out.len() <= data.len());
    let again: Result<Vec<_>, _> = decode_batch(&out).collect();
    assert!(again.is_ok());
}

/// The text of properties.
pub(crate) fn properties(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let properties = Properties::new(text);
    let _ = (tags_code(&properties), properties.keys().count());
    let mut builder = PropertiesBuilder::from_text(text);
    for (name, value) in properties.iter() {
        assert!(!value.is_empty() && !name.contains(['\u{1}', '\u{2}']) && !value.contains('\u{2}'));
        assert_eq!(builder.get(name), properties.get(name));
    }
    builder.set("UNIQ_KEY", "x").expect("both are plain");
    assert_eq!(builder.get("UNIQ_KEY"), Some("x"));
    for (name, _) in properties.iter().filter(|(name, _)| *name != "UNIQ_KEY") {
        assert_eq!(builder.get(name), properties.get(name));
        let mut less = builder.clone();
        less.remove(name);
        assert_eq!(less.get(name), None);
        assert_eq!(less.get("UNIQ_KEY"), Some("x"));
    }
}

/// Bodies that clients send, heartbeats first of all.
pub(crate) fn heartbeat_body(data: &[u8]) {
    macro_rules! check {
        ($($type:ident),*) => {
            $(
                if let Ok(body) = $type::decode(data) {
                    let bytes = body.encode();
                    assert_eq!($type::decode(&bytes).expect("what was written reads"), body);
                }
            )*
        };
    }
    check!(HeartbeatData, CheckClientConfig, LockRequest, ConsumerStatus, ConsumerRunningInfo);
    check!(ConsumeDirectlyResult, SubscriptionGroupConfig, TopicConfigList, TopicRouteData, RegisterBrokerBody);
    let _ = RegisterBrokerBody::decode_compressed(data);
    let _ = decode_config_text(data);
}
