//! Whatever is written reads back as it was.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is what it is for"
)]

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use protocol::body::*;
use protocol::header::*;
use protocol::message::*;
use protocol::*;

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![".{0,40}", any::<String>(), "[\u{0}-\u{7f}]{0,40}"]
}

fn any_ext() -> impl Strategy<Value = ExtFields> {
    let key = any_text().prop_filter("keys are limited", |key| key.len() <= 255);
    prop::collection::btree_map(key, any_text(), 0..20)
        .prop_map(|fields| fields.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect())
}

prop_compose! {
    fn any_command()(
        code in any::<i16>(), language in 0..14_u8, version in any::<i16>(), opaque: i32, flag: i32,
        remark in prop::option::of(any_text()), ext in any_ext(),
        body in prop::collection::vec(any::<u8>(), 0..100), binary: bool,
    ) -> RemotingCommand {
        let mut command = RemotingCommand::request(RequestCode(i32::from(code)));
        command.language = LanguageCode::from_ordinal(language);
        command.version = i32::from(version);
        command.opaque = opaque;
        command.flag = flag;
        command.remark = remark.filter(|remark| !remark.is_empty());
        command.ext = ext;
        command.body = Bytes::from(body);
        if binary {
            command.form = HeaderForm::RocketMq;
            command.code = RequestCode::from_binary(code).0;
            command.ext = command.ext.iter().filter(|(_, value)| !value.is_empty()).collect();
            // An answer keeps the short code.
            if command.is_response() {
                command.code = i32::from(code);
            }
        }
        command
    }
}

prop_compose! {
    fn any_host()(v6: bool, address: u128, port: u16) -> SocketAddr {
        let ip = if v6 { std::net::Ipv6Addr::from(address).into() } else { std::net::Ipv4Addr::from(address as u32).into() };
        SocketAddr::new(ip, port)
    }
}

fn any_properties() -> impl Strategy<Value = Vec<(String, String)>> {
    let word = "[^\u{1}\u{2}]{1,12}";
    prop::collection::vec((word, word), 0..10)
}

fn properties_text(properties: &[(String, String)]) -> PropertiesBuilder {
    let mut builder = PropertiesBuilder::new();
    for (name, value) in properties {
        builder.set(name, value).unwrap();
    }
    builder
}

proptest! {
    #[test]
    fn a_command_survives_its_frame(command in any_command(), cut in any::<prop::sample::Index>()) {
        let mut out = BytesMut::new();
        encode_frame(&command, &mut out);
        let whole = out.clone();
        let cut = cut.index(out.len());
        let mut part = BytesMut::from(&whole[..cut]);
        prop_assert_eq!(decode_frame(&mut part, &FrameLimits::STANDARD), Ok(None));
        prop_assert_eq!(decode_frame(&mut out, &FrameLimits::STANDARD), Ok(Some(command)));
        prop_assert!(out.is_empty());
    }

    #[test]
    fn json_headers_are_json_to_others(mut command in any_command()) {
        command.form = HeaderForm::Json;
        let mut out = BytesMut::new();
        encode_frame(&command, &mut out);
        let header_end = out.len() - command.body.len();
        let header: serde_json::Value = serde_json::from_slice(&out[8..header_end]).unwrap();
        prop_assert_eq!(&header["opaque"], command.opaque);
        for (key, value) in command.ext.iter() {
            prop_assert_eq!(&header["extFields"][key], value);
        }
    }

    #[test]
    fn a_json_header_of_others_reads_the_same(ext in prop::collection::btree_map(any_text(), any_text(), 0..10)) {
        let ext: BTreeMap<_, _> = ext.into_iter().filter(|(key, _)| key.len() <= 255).collect();
        let header = serde_json::json!({ "code": 1, "extFields": ext.clone(), "x": { "y": [ext.clone()] } });
        let header = if ext.len() % 2 == 0 { header.to_string() } else { serde_json::to_string_pretty(&header).unwrap() };
        let mut frame = Vec::new();
        frame.extend_from_slice(&u32::try_from(header.len() + 4).unwrap().to_be_bytes());
        frame.extend_from_slice(&u32::try_from(header.len()).unwrap().to_be_bytes());
        frame.extend_from_slice(header.as_bytes());
        let command = decode_frame(&mut BytesMut::from(&frame[..]), &FrameLimits::STANDARD).unwrap().unwrap();
        prop_assert_eq!(command.ext, ext.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect());
    }

    #[test]
    fn a_message_survives_its_record(
        topic in "[a-zA-Z0-9_%|-]{1,200}", properties in any_properties(),
        body in prop::collection::vec(any::<u8>(), 0..200), born_host in any_host(), store_host in any_host(),
        numbers: (i32, i32, i32, i32), longs: (i64, i64, i64, i64, i64),
    ) {
        let text = properties_text(&properties);
        let message = NewMessage {
            topic: &topic, queue_id: numbers.0, flag: numbers.1,
            sys_flag: SysFlag(numbers.2).without(SysFlag::BORN_HOST_V6 | SysFlag::STORE_HOST_V6),
            born_timestamp: longs.0, born_host, store_timestamp: longs.1, store_host,
            reconsume_times: numbers.3, prepared_transaction_offset: longs.2, body: &body, properties: text.as_str(),
        };
        let mut out = BytesMut::new();
        let size = encode_record(&message, &mut out).unwrap();
        prop_assert_eq!(size, out.len());
        patch_offsets(&mut out, longs.3, longs.4).unwrap();
        let view = RecordView::parse(&out).unwrap();
        prop_assert_eq!((view.queue_offset(), view.physical_offset()), (longs.3, longs.4));
        prop_assert!(view.body_crc_agrees());
        let mut read = view.to_new_message();
        read.sys_flag = read.sys_flag.without(SysFlag::BORN_HOST_V6 | SysFlag::STORE_HOST_V6);
        prop_assert_eq!(read, message);
    }

    #[test]
    fn a_batch_survives_its_body(
        items in prop::collection::vec((any::<i32>(), prop::collection::vec(any::<u8>(), 0..50), any_properties()), 1..10),
    ) {
        let texts: Vec<_> = items.iter().map(|(_, _, properties)| properties_text(properties)).collect();
        let items: Vec<_> = items
            .iter()
            .zip(&texts)
            .map(|((flag, body, _), text)| BatchItem { flag: *flag, body, properties: text.as_str() })
            .collect();
        let mut out = BytesMut::new();
        for item in &items {
            encode_batch_item(item, &mut out).unwrap();
        }
        let read: Result<Vec<_>, _> = decode_batch(&out).collect();
        prop_assert_eq!(read.unwrap(), items);
    }

    #[test]
    fn properties_survive_their_text(properties in any_properties()) {
        let mut expected = BTreeMap::new();
        for (name, value) in &properties {
            expected.insert(name.as_str(), value.as_str());
        }
        let text = properties_text(&properties).into_text();
        let read: BTreeMap<_, _> = Properties::new(&text).iter().collect();
        prop_assert_eq!(&read, &expected);
        // A missing end is no difference.
        let read: BTreeMap<_, _> = Properties::new(text.trim_end_matches('\u{2}')).iter().collect();
        prop_assert_eq!(&read, &expected);
        for (name, value) in &expected {
            prop_assert_eq!(Properties::new(&text).get(name), Some(*value));
        }
    }

    #[test]
    fn a_send_survives_both_forms(
        topic in "[a-zA-Z0-9_%|-]{1,127}", properties in any_text(), numbers: (i32, i32, i32, i32, i32), born: i64,
        limit: Option<i32>, unit_mode: bool, batch: bool,
    ) {
        let request = SendRequest {
            producer_group: "g", topic: TopicName::parse(&topic).unwrap(), default_topic: TopicName::AUTO_CREATE,
            default_topic_queue_nums: numbers.0, queue_id: numbers.1, sys_flag: numbers.2, born_timestamp: born,
            flag: numbers.3, properties: &properties, reconsume_times: numbers.4, unit_mode, batch,
            max_reconsume_times: limit, broker_name: Some("b"),
        };
        for code in [RequestCode::SEND_MESSAGE, RequestCode::SEND_MESSAGE_V2] {
            let mut command = RemotingCommand::request(code);
            request.encode_into(code, &mut command.ext);
            prop_assert_eq!(SendRequest::decode(&command), Ok(request.clone()));
        }
    }

    #[test]
    fn queue_tables_survive_their_dialect(
        entries in prop::collection::vec((any_text(), any::<i32>(), any_text(), any::<i64>()), 0..8),
    ) {
        let table = ResetOffsetTable {
            offset_table: entries
                .into_iter()
                .map(|(broker_name, queue_id, topic, offset)| (MessageQueue { broker_name, queue_id, topic }, offset))
                .collect(),
        };
        prop_assert_eq!(ResetOffsetTable::decode(&table.encode()).unwrap(), table);
    }

    #[test]
    fn java_hash_codes_do_not_depend_on_the_path_taken(text in any_text()) {
        let slow = text.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
        prop_assert_eq!(java_hash_code(&text), slow);
        prop_assert!(index_key_hash(&text, "k") >= 0);
    }
}
