//! Records, batches and ids, byte by byte.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "a test that panics has failed, which is what it is for"
)]

use bytes::BytesMut;
use protocol::message::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// A message with body `hello` and a tag, and its bytes.
const STORED: &str = "
    0000006b daa320a7 3610a686 00000001 00000000 0000000000000005 00000000000004d2 00000000
    0000018bcfe56800 0a000009 0000c350 0000018bcfe56801 0a000001 00002a9f 00000000 0000000000000000
    00000005 68656c6c6f 01 54 000a 54414753 01 54616741 02";

fn hello() -> NewMessage<'static> {
    NewMessage {
        topic: "T",
        queue_id: 1,
        flag: 0,
        sys_flag: SysFlag(0),
        born_timestamp: 1_700_000_000_000,
        born_host: "10.0.0.9:50000".parse().unwrap(),
        store_timestamp: 1_700_000_000_001,
        store_host: "10.0.0.1:10911".parse().unwrap(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"hello",
        properties: "TAGS\u{1}TagA\u{2}",
    }
}

fn encoded(message: &NewMessage<'_>) -> BytesMut {
    let mut out = BytesMut::new();
    assert_eq!(encode_record(message, &mut out), Ok(out.len()));
    out
}

#[test]
fn stored_message_has_the_known_bytes() {
    let mut record = encoded(&hello());
    let view = RecordView::parse(&record).unwrap();
    assert_eq!((view.queue_offset(), view.physical_offset()), (0, 0));
    patch_offsets(&mut record, 5, 1234).unwrap();
    assert_eq!(record[..], hex(STORED));

    let view = RecordView::parse(&record).unwrap();
    assert_eq!((view.queue_offset(), view.physical_offset(), view.size()), (5, 1234, 107));
    assert_eq!(view.to_new_message(), hello());
    assert_eq!(view.tags_code(), 0x27_a807);
    assert_eq!(view.body_crc(), 907_060_870);
    assert!(view.body_crc_agrees());
}

#[test]
fn long_topics_need_the_second_version_and_ipv6_hosts_longer_fields() {
    let topic = "t".repeat(128);
    let message = NewMessage {
        topic: &topic,
        born_host: "[2001:db8::1]:1".parse().unwrap(),
        store_host: "[::1]:65535".parse().unwrap(),
        ..hello()
    };
    let record = encoded(&message);
    assert_eq!(record[4..8], hex("daa320ab"));
    assert_eq!(record.len(), 107 + 127 + 1 + 24);
    let view = RecordView::parse(&record).unwrap();
    assert_eq!(view.topic(), topic);
    assert!(view.sys_flag().has(SysFlag::BORN_HOST_V6 | SysFlag::STORE_HOST_V6));
    assert_eq!((view.born_host(), view.store_host()), (message.born_host, message.store_host));
}

#[test]
fn what_a_record_cannot_hold_is_refused_and_nothing_written() {
    let long = "p".repeat(32_768);
    for message in [NewMessage { properties: &long, ..hello() }, NewMessage { topic: &long, ..hello() }] {
        let mut out = BytesMut::from(&b"before"[..]);
        assert!(matches!(encode_record(&message, &mut out), Err(RecordError::TooLong { .. })));
        assert_eq!(out, "before");
    }
    let longest = "p".repeat(32_767);
    let record = encoded(&NewMessage { properties: &longest, ..hello() });
    assert_eq!(RecordView::parse(&record).unwrap().properties().as_str(), longest);
}

#[test]
fn damaged_records_are_refused() {
    let good = hex(STORED);
    let damaged = |at: usize, bytes: &str| {
        let mut record = good.clone();
        let bytes = hex(bytes);
        record[at..at + bytes.len()].copy_from_slice(&bytes);
        RecordView::parse(&record).map(|_| ()).unwrap_err()
    };
    assert_eq!(damaged(0, "0000006c"), RecordError::Size { found: 108, available: 107 });
    assert_eq!(damaged(0, "ffffffff"), RecordError::Size { found: -1, available: 107 });
    assert_eq!(damaged(0, "00000000"), RecordError::Size { found: 0, available: 107 });
    assert_eq!(damaged(0, "0000006a"), RecordError::Field("properties"));
    assert_eq!(damaged(4, "cbd43194"), RecordError::Magic(-875_286_124));
    assert_eq!(damaged(84, "ffffffff"), RecordError::Field("body"));
    assert_eq!(damaged(84, "7fffffff"), RecordError::Field("body"));
    assert_eq!(damaged(93, "ff"), RecordError::Field("topic"));
    assert_eq!(damaged(94, "ff"), RecordError::Utf8("topic"));
    assert_eq!(damaged(95, "ffff"), RecordError::Field("properties"));
    assert_eq!(damaged(95, "0009"), RecordError::Field("end"));
    assert_eq!(damaged(97, "ff"), RecordError::Utf8("properties"));
    // A port that is none.
    assert_eq!(damaged(52, "00010000"), RecordError::Field("born host"));
    for length in 0..good.len() {
        assert!(RecordView::parse(&good[..length]).is_err());
    }
}

#[test]
fn records_walk_to_the_first_error() {
    let mut pack = encoded(&hello());
    pack.extend_from_slice(&encoded(&NewMessage { body: b"", properties: "", ..hello() }));
    let bodies: Vec<_> = iter_records(&pack).map(|record| record.unwrap().body().len()).collect();
    assert_eq!(bodies, [5, 0]);
    pack.extend_from_slice(&[0, 0, 0, 1]);
    let outcomes: Vec<_> = iter_records(&pack).map(|record| record.is_ok()).collect();
    assert_eq!(outcomes, [true, true, false]);
    assert_eq!(iter_records(b"").count(), 0);
}

#[test]
fn offsets_are_not_patched_into_less_than_a_record() {
    assert_eq!(patch_offsets(&mut [0; 35], 1, 2), Err(RecordError::Size { found: 0, available: 35 }));
}

#[test]
fn batch_has_the_known_bytes() {
    let items = [
        BatchItem { flag: 0, body: b"a", properties: "TAGS\u{1}x\u{2}" },
        BatchItem { flag: 0, body: b"bc", properties: "" },
    ];
    let mut out = BytesMut::new();
    for item in &items {
        encode_batch_item(item, &mut out).unwrap();
    }
    let expected = "
        0000001e 00000000 00000000 00000000 00000001 61 0007 54414753 01 78 02
        00000018 00000000 00000000 00000000 00000002 6263 0000";
    assert_eq!(out[..], hex(expected));
    let decoded: Result<Vec<_>, _> = decode_batch(&out).collect();
    assert_eq!(decoded.unwrap(), items);
}

#[test]
fn damaged_batches_are_refused() {
    let first = |bytes: &str| decode_batch(&hex(bytes)).next().unwrap().map(|_| ()).unwrap_err();
    assert_eq!(first("000000"), RecordError::Size { found: 0, available: 3 });
    assert_eq!(first("00000015 00000000"), RecordError::Size { found: 21, available: 8 });
    assert_eq!(first("ffffffff 00000000"), RecordError::Size { found: -1, available: 8 });
    assert_eq!(first("00000017 00000000 00000000 00000000 00000001 61 0001"), RecordError::Field("properties"));
    assert_eq!(first("00000017 00000000 00000000 00000000 ffffffff 61 0000"), RecordError::Field("body"));
    assert_eq!(first("00000017 00000000 00000000 00000000 00000000 0000 61"), RecordError::Field("end"));
    assert_eq!(first("00000017 00000000 00000000 00000000 00000000 0001 ff"), RecordError::Utf8("properties"));
    // Nothing is read after the first error.
    assert_eq!(decode_batch(&hex("0000001600000000")).count(), 1);
}

#[test]
fn sys_flag_names_its_bits() {
    let flag = SysFlag(0x304 | SysFlag::COMPRESSED);
    assert!(flag.is_compressed());
    assert_eq!(flag.transaction_type(), TransactionType::Prepared);
    assert_eq!(flag.without_transaction(), SysFlag(0x301));
    assert_eq!(SysFlag(0xc).transaction_type(), TransactionType::Rollback);
    assert_eq!(SysFlag(0x8).transaction_type(), TransactionType::Commit);
    assert_eq!(SysFlag(0x3).transaction_type(), TransactionType::None);
}
