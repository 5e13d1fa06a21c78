//! Frames that real clients and brokers sent: all of them decode, and nothing they hold is lost on the way.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "a test that panics has failed, which is what it is for"
)]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::Path;

use bytes::{BufMut, BytesMut};
use protocol::body::*;
use protocol::header::*;
use protocol::message::*;
use protocol::*;
use serde_json::Value;

struct Golden {
    file: &'static str,
    line: Value,
    /// The frame; bytes of the body that were not recorded are zero.
    frame: Vec<u8>,
    /// Whether some were not.
    partial: bool,
}

const FILES: [&str; 7] = [
    "java-5.3.3.jsonl",
    "java-5.3.3-binary.jsonl",
    "java-4.9.8.jsonl",
    "go.jsonl",
    "python.jsonl",
    "mqadmin.jsonl",
    "broker.jsonl",
];

impl Golden {
    fn name(&self) -> String {
        format!("{}#{} {}", self.file, self.line["n"], self.line["code_name"])
    }

    fn command(&self) -> RemotingCommand {
        let mut buffer = BytesMut::from(&self.frame[..]);
        let command =
            decode_frame(&mut buffer, &FrameLimits::STANDARD).unwrap_or_else(|e| panic!("{}: {e}", self.name()));
        assert!(buffer.is_empty());
        command.unwrap_or_else(|| panic!("{}: incomplete", self.name()))
    }

    fn is_response(&self) -> bool {
        self.line["dir"] == "response"
    }

    /// The code of the request, also for an answer.
    fn request_code(&self) -> RequestCode {
        let key = if self.is_response() { "request_code" } else { "code" };
        let code = self.line[key].as_i64().unwrap() as i32;
        if self.file.contains("binary") { RequestCode::from_binary(code as i16) } else { RequestCode(code) }
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn load() -> Vec<Golden> {
    let mut all = Vec::new();
    for file in FILES {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let mut frame = hex(line["frame"].as_str().unwrap());
            let whole = u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize + 4;
            let partial = frame.len() < whole;
            assert_eq!(partial, line.get("frame_truncated").is_some() || line.get("body_omitted").is_some());
            frame.resize(whole, 0);
            all.push(Golden { file, line, frame, partial });
        }
    }
    assert_eq!(all.len(), 4553);
    all
}

#[test]
fn every_frame_decodes_to_what_was_recorded() {
    for golden in load() {
        let command = golden.command();
        let name = golden.name();
        let header = &golden.line["header"];
        let binary = golden.line["header_encoding"] == "binary";
        assert_eq!(command.form == HeaderForm::RocketMq, binary, "{name}");
        if !(binary && command.code > i32::from(i16::MAX)) {
            assert_eq!(Value::from(command.code), header["code"], "{name}");
        }
        assert_eq!(Value::from(command.opaque), header["opaque"], "{name}");
        assert_eq!(Value::from(command.flag), header["flag"], "{name}");
        assert_eq!(Value::from(command.version), header["version"], "{name}");
        assert_eq!(Value::from(command.language.name()), header["language"], "{name}");
        let remark = header.get("remark").and_then(Value::as_str).filter(|remark| !remark.is_empty());
        assert_eq!(command.remark.as_deref(), remark, "{name}");
        assert_eq!(command.body.len() as u64, golden.line["body_len"], "{name}");
        assert_eq!(command.is_response(), golden.line["dir"] == "response", "{name}");
        assert_eq!(command.is_oneway(), golden.line["dir"] == "oneway", "{name}");
        let recorded: BTreeMap<String, String> = match header.get("extFields") {
            Some(Value::Object(fields)) => {
                fields.iter().map(|(key, value)| (key.clone(), scalar_text(value))).collect()
            }
            _ => BTreeMap::new(),
        };
        let decoded: BTreeMap<String, String> =
            command.ext.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        assert_eq!(decoded, recorded, "{name}");
    }
}

fn scalar_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        other => panic!("{other}"),
    }
}

#[test]
fn encoding_again_gives_an_equal_command_and_for_binary_headers_equal_bytes() {
    for golden in load() {
        let command = golden.command();
        let mut out = BytesMut::new();
        encode_frame(&command, &mut out);
        if command.form == HeaderForm::RocketMq {
            assert_eq!(&out[..], &golden.frame[..], "{}", golden.name());
        }
        let again = decode_frame(&mut out, &FrameLimits::STANDARD).unwrap().unwrap();
        assert_eq!(again, command, "{}", golden.name());
        assert!(out.is_empty());

        // And in the other form.
        if i16::try_from(command.code).is_ok() {
            let mut other = command.clone();
            other.form = match command.form {
                HeaderForm::Json => HeaderForm::RocketMq,
                HeaderForm::RocketMq => HeaderForm::Json,
            };
            // A binary header cannot tell an empty value from none.
            other.ext = command.ext.iter().filter(|(_, value)| !value.is_empty()).collect();
            encode_frame(&other, &mut out);
            assert_eq!(decode_frame(&mut out, &FrameLimits::STANDARD).unwrap().unwrap(), other, "{}", golden.name());
        }
    }
}

#[test]
fn frames_come_out_of_a_stream_cut_anywhere() {
    let frames = load();
    let mut buffer = BytesMut::new();
    let mut decoded = 0;
    let stream: Vec<u8> = frames.iter().flat_map(|golden| golden.frame.iter().copied()).collect();
    // Pieces of odd sizes, so that cuts fall into every field.
    let mut rest = &stream[..];
    let mut size = 1;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(size.min(rest.len()));
        rest = after;
        size = size % 1021 + 1;
        buffer.put_slice(piece);
        while let Some(command) = decode_frame(&mut buffer, &FrameLimits::STANDARD).unwrap() {
            assert_eq!(Value::from(command.opaque), frames[decoded].line["header"]["opaque"]);
            decoded += 1;
        }
    }
    assert_eq!(decoded, frames.len());
    assert!(buffer.is_empty());
}

/// Reads a header, writes it, and reads it again.
macro_rules! check_header {
    ($command:expr, $name:expr, $type:ty) => {{
        let header = <$type>::decode($command).unwrap_or_else(|error| panic!("{}: {error}", $name));
        let mut copy = (*$command).clone();
        copy.ext = ExtFields::new();
        header.encode_into(&mut copy.ext);
        assert_eq!(<$type>::decode(&copy).unwrap(), header, "{}", $name);
        // Whatever is written was there before, with the same value; defaults aside.
        for (key, value) in copy.ext.iter() {
            if let Some(before) = $command.ext.get(key) {
                assert_eq!(value.to_lowercase(), before.to_lowercase(), "{} {key}", $name);
            }
        }
    }};
}

#[test]
fn every_request_header_reads_into_its_type() {
    let mut unread = BTreeMap::new();
    let mut read = 0;
    // What was sent to see it refused may lack anything.
    let whole = |golden: &&Golden| !golden.is_response() && golden.line["scenario"] != "unknown_code";
    for golden in load().iter().filter(whole) {
        let command = &golden.command();
        let name = &golden.name();
        let code = golden.request_code();
        read += 1;
        match code {
            RequestCode::SEND_MESSAGE
            | RequestCode::SEND_MESSAGE_V2
            | RequestCode::SEND_BATCH_MESSAGE
            | RequestCode::SEND_REPLY_MESSAGE
            | RequestCode::SEND_REPLY_MESSAGE_V2 => match SendRequest::decode(command) {
                Ok(header) => check_send(&header, command, name),
                // Some of what the clients sent was meant to be refused.
                Err(error) => assert_eq!(golden.line["scenario"], "send_errors", "{name}: {error}"),
            },
            RequestCode::PULL_MESSAGE | RequestCode::LITE_PULL_MESSAGE => check_header!(command, name, PullRequest),
            RequestCode::QUERY_MESSAGE => check_header!(command, name, QueryMessageRequest),
            RequestCode::QUERY_CONSUMER_OFFSET => check_header!(command, name, QueryConsumerOffsetRequest),
            RequestCode::UPDATE_CONSUMER_OFFSET => check_header!(command, name, UpdateConsumerOffsetRequest),
            RequestCode::UPDATE_AND_CREATE_TOPIC => check_header!(command, name, CreateTopicRequest),
            RequestCode::GET_ALL_TOPIC_CONFIG => check_header!(command, name, AllTopicConfigRequest),
            RequestCode::SEARCH_OFFSET_BY_TIMESTAMP => check_header!(command, name, SearchOffsetRequest),
            RequestCode::GET_MAX_OFFSET => check_header!(command, name, GetMaxOffsetRequest),
            RequestCode::GET_MIN_OFFSET | RequestCode::GET_EARLIEST_MSG_STORETIME => {
                check_header!(command, name, QueueRequest);
            }
            RequestCode::VIEW_MESSAGE_BY_ID => check_header!(command, name, ViewMessageRequest),
            RequestCode::UNREGISTER_CLIENT => check_header!(command, name, UnregisterClientRequest),
            RequestCode::CONSUMER_SEND_MSG_BACK => check_header!(command, name, SendBackRequest),
            RequestCode::END_TRANSACTION => check_header!(command, name, EndTransactionRequest),
            RequestCode::CHECK_TRANSACTION_STATE => check_header!(command, name, CheckTransactionRequest),
            RequestCode::GET_CONSUMER_LIST_BY_GROUP
            | RequestCode::NOTIFY_CONSUMER_IDS_CHANGED
            | RequestCode::GET_CONSUMER_CONNECTION_LIST => check_header!(command, name, ConsumerGroupRequest),
            RequestCode::PUT_KV_CONFIG => check_header!(command, name, PutKvRequest),
            RequestCode::GET_KV_CONFIG | RequestCode::DELETE_KV_CONFIG => check_header!(command, name, KvRequest),
            RequestCode::REGISTER_BROKER => check_header!(command, name, RegisterBrokerRequest),
            RequestCode::UNREGISTER_BROKER | RequestCode::QUERY_DATA_VERSION => {
                check_header!(command, name, BrokerIdentityRequest);
            }
            RequestCode::GET_ROUTEINFO_BY_TOPIC => check_header!(command, name, RouteRequest),
            RequestCode::GET_ALL_SUBSCRIPTIONGROUP_CONFIG => check_header!(command, name, AllSubscriptionGroupRequest),
            RequestCode::GET_TOPIC_STATS_INFO
            | RequestCode::DELETE_TOPIC_IN_BROKER
            | RequestCode::QUERY_TOPIC_CONSUME_BY_WHO
            | RequestCode::GET_TOPIC_CONFIG => check_header!(command, name, TopicRequest),
            RequestCode::GET_PRODUCER_CONNECTION_LIST => check_header!(command, name, ProducerGroupRequest),
            RequestCode::WIPE_WRITE_PERM_OF_BROKER | RequestCode::ADD_WRITE_PERM_OF_BROKER => {
                check_header!(command, name, BrokerNameRequest);
            }
            RequestCode::DELETE_SUBSCRIPTIONGROUP => check_header!(command, name, DeleteSubscriptionGroupRequest),
            RequestCode::GET_CONSUME_STATS => check_header!(command, name, ConsumeStatsRequest),
            RequestCode::DELETE_TOPIC_IN_NAMESRV => check_header!(command, name, DeleteTopicInNamesrvRequest),
            RequestCode::GET_KVLIST_BY_NAMESPACE => check_header!(command, name, KvListRequest),
            RequestCode::RESET_CONSUMER_CLIENT_OFFSET => check_header!(command, name, ResetClientOffsetRequest),
            RequestCode::GET_CONSUMER_STATUS_FROM_CLIENT | RequestCode::INVOKE_BROKER_TO_GET_CONSUMER_STATUS => {
                check_header!(command, name, ConsumerStatusRequest);
            }
            RequestCode::INVOKE_BROKER_TO_RESET_OFFSET => check_header!(command, name, ResetOffsetRequest),
            RequestCode::GET_TOPICS_BY_CLUSTER => check_header!(command, name, ClusterRequest),
            RequestCode::QUERY_CONSUME_TIME_SPAN => check_header!(command, name, ConsumeTimeSpanRequest),
            RequestCode::GET_CONSUMER_RUNNING_INFO => check_header!(command, name, ConsumerRunningInfoRequest),
            RequestCode::CONSUME_MESSAGE_DIRECTLY => check_header!(command, name, ConsumeDirectlyRequest),
            RequestCode::VIEW_BROKER_STATS_DATA => check_header!(command, name, ViewBrokerStatsRequest),
            RequestCode::GET_BROKER_CONSUME_STATS => check_header!(command, name, BrokerConsumeStatsRequest),
            RequestCode::QUERY_CONSUME_QUEUE => check_header!(command, name, QueryConsumeQueueRequest),
            RequestCode::PUSH_REPLY_MESSAGE_TO_CLIENT => check_header!(command, name, PushReplyRequest),
            RequestCode::QUERY_TOPICS_BY_CONSUMER => check_header!(command, name, GroupRequest),
            RequestCode::QUERY_SUBSCRIPTION_BY_CONSUMER => check_header!(command, name, SubscriptionRequest),
            RequestCode::RECALL_MESSAGE => check_header!(command, name, RecallMessageRequest),
            RequestCode::BROKER_HEARTBEAT if golden.line["to"] == "namesrv" => {
                check_header!(command, name, BrokerHeartbeatRequest);
            }
            _ => {
                read -= 1;
                *unread.entry(code.to_string()).or_insert(0) += 1;
            }
        }
    }
    assert!(read > 2000, "{read}");
    // Requests whose headers nobody here reads: no fields, or not served.
    let names: Vec<_> = unread.keys().map(String::as_str).collect();
    expect_test::expect![[r#"
        ACK_MESSAGE(200051)
        AUTH_CREATE_ACL(3006)
        AUTH_CREATE_USER(3001)
        AUTH_DELETE_ACL(3008)
        AUTH_DELETE_USER(3003)
        AUTH_GET_ACL(3009)
        AUTH_GET_USER(3004)
        AUTH_LIST_ACL(3010)
        AUTH_LIST_USER(3005)
        BATCH_ACK_MESSAGE(200151)
        BROKER_HEARTBEAT(904)
        CHANGE_MESSAGE_INVISIBLETIME(200053)
        CHECK_CLIENT_CONFIG(46)
        CLEAN_EXPIRED_CONSUMEQUEUE(306)
        CLEAN_UNUSED_TOPIC(316)
        CONTROLLER_ALTER_SYNC_STATE_SET(1001)
        CONTROLLER_APPLY_BROKER_ID(1013)
        CONTROLLER_ELECT_MASTER(1002)
        CONTROLLER_GET_METADATA_INFO(1005)
        CONTROLLER_GET_NEXT_BROKER_ID(1012)
        CONTROLLER_GET_REPLICA_INFO(1004)
        CONTROLLER_GET_SYNC_STATE_DATA(1006)
        CONTROLLER_REGISTER_BROKER(1003)
        DELETE_EXPIRED_COMMITLOG(329)
        GET_ALL_CONSUMER_OFFSET(43)
        GET_ALL_DELAY_OFFSET(45)
        GET_ALL_MESSAGE_REQUEST_MODE(402)
        GET_ALL_PRODUCER_INFO(328)
        GET_ALL_TOPIC_LIST_FROM_NAMESERVER(206)
        GET_BROKER_CLUSTER_INFO(106)
        GET_BROKER_CONFIG(26)
        GET_BROKER_HA_STATUS(907)
        GET_BROKER_RUNTIME_INFO(28)
        GET_COLD_DATA_FLOW_CTR_INFO(2003)
        GET_NAMESRV_CONFIG(319)
        GET_SYSTEM_TOPIC_LIST_FROM_BROKER(305)
        GET_TIMER_CHECK_POINT(60)
        GET_TIMER_METRICS(61)
        HEART_BEAT(34)
        LOCK_BATCH_MQ(41)
        NOTIFICATION(200054)
        PEEK_MESSAGE(200052)
        POLLING_INFO(200055)
        POP_MESSAGE(200050)
        QUERY_ASSIGNMENT(400)
        SET_MESSAGE_REQUEST_MODE(401)
        UNLOCK_BATCH_MQ(42)
        UPDATE_AND_CREATE_SUBSCRIPTIONGROUP(200)
        UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST(225)
        UPDATE_AND_CREATE_TOPIC_LIST(18)
        UPDATE_BROKER_CONFIG(25)
        UPDATE_NAMESRV_CONFIG(318)"#]]
    .assert_eq(&names.join("\n"));
}

fn check_send(header: &SendRequest<'_>, command: &RemotingCommand, name: &str) {
    let mut copy = command.clone();
    copy.ext = ExtFields::new();
    header.encode_into(command.request_code(), &mut copy.ext);
    assert_eq!(SendRequest::decode(&copy).as_ref(), Ok(header), "{name}");
}

#[test]
fn every_answer_header_reads_into_its_type() {
    let mut counts = BTreeMap::new();
    for golden in load().iter().filter(|golden| golden.is_response()) {
        let command = &golden.command();
        let name = &golden.name();
        let code = golden.request_code();
        let stored = matches!(command.code, 0 | 10 | 11 | 12);
        let kind = match code {
            RequestCode::SEND_MESSAGE
            | RequestCode::SEND_MESSAGE_V2
            | RequestCode::SEND_BATCH_MESSAGE
            | RequestCode::SEND_REPLY_MESSAGE_V2
                if stored =>
            {
                let answer = SendResponse::decode(command).unwrap_or_else(|error| panic!("{name}: {error}"));
                for id in answer.msg_id.split(',') {
                    let parsed: OffsetMessageId = id.parse().unwrap_or_else(|error| panic!("{name}: {error} {id}"));
                    assert_eq!(parsed.to_string(), id, "{name}");
                }
                let mut ext = ExtFields::new();
                answer.encode_into(&mut ext);
                for (key, value) in ext.iter() {
                    assert_eq!(command.ext.get(key), Some(value), "{name}");
                }
                "send"
            }
            RequestCode::PULL_MESSAGE | RequestCode::LITE_PULL_MESSAGE if matches!(command.code, 0 | 19..=21) => {
                check_header!(command, name, PullResponse);
                "pull"
            }
            RequestCode::QUERY_CONSUMER_OFFSET
            | RequestCode::SEARCH_OFFSET_BY_TIMESTAMP
            | RequestCode::GET_MAX_OFFSET
            | RequestCode::GET_MIN_OFFSET
                if command.is_success() =>
            {
                check_header!(command, name, QueueOffsetResponse);
                "offset"
            }
            RequestCode::GET_EARLIEST_MSG_STORETIME if command.is_success() => {
                check_header!(command, name, StoreTimeResponse);
                "store time"
            }
            RequestCode::QUERY_MESSAGE => {
                check_header!(command, name, QueryMessageResponse);
                "query message"
            }
            RequestCode::GET_KV_CONFIG if command.is_success() => {
                check_header!(command, name, KvResponse);
                "kv"
            }
            RequestCode::WIPE_WRITE_PERM_OF_BROKER if command.is_success() => {
                check_header!(command, name, WipeWritePermResponse);
                "wipe"
            }
            RequestCode::ADD_WRITE_PERM_OF_BROKER if command.is_success() => {
                check_header!(command, name, AddWritePermResponse);
                "add"
            }
            RequestCode::REGISTER_BROKER if command.is_success() => {
                check_header!(command, name, RegisterBrokerResponse);
                "register"
            }
            RequestCode::GET_BROKER_CONFIG if command.is_success() => {
                check_header!(command, name, BrokerConfigResponse);
                "broker config"
            }
            RequestCode::RECALL_MESSAGE if command.is_success() => {
                check_header!(command, name, RecallMessageResponse);
                "recall"
            }
            _ => continue,
        };
        *counts.entry(kind).or_insert(0) += 1;
    }
    expect_test::expect![[r#"
        {
            "add": 1,
            "broker config": 1,
            "kv": 2,
            "offset": 160,
            "pull": 211,
            "query message": 14,
            "recall": 2,
            "register": 18,
            "send": 189,
            "store time": 4,
            "wipe": 1,
        }
    "#]]
    .assert_debug_eq(&counts);
}

/// Reads a body, writes it, and reads it again; what is written holds nothing that was not there.
macro_rules! check_body {
    ($command:expr, $name:expr, $type:ty) => {{
        let body = <$type>::decode(&$command.body).unwrap_or_else(|error| panic!("{}: {error}", $name));
        let bytes = body.encode();
        assert!(!bytes.contains(&b' ') || $command.body.contains(&b' '), "{}", $name);
        let again = <$type>::decode(&bytes).unwrap_or_else(|error| panic!("{}: {error}\n{bytes:?}", $name));
        assert_same(&again, &body, $name);
        note_lost_keys(stringify!($type), &$command.body, &bytes);
    }};
}

thread_local! {
    /// Keys that were in a body and are not in what we write instead, by type.
    static LOST_KEYS: RefCell<BTreeMap<&'static str, BTreeSet<String>>> = const { RefCell::new(BTreeMap::new()) };
}

fn note_lost_keys(kind: &'static str, before: &[u8], after: &[u8]) {
    let lost: Vec<_> = keys(before).difference(&keys(after)).cloned().collect();
    if !lost.is_empty() {
        LOST_KEYS.with_borrow_mut(|all| all.entry(kind).or_default().extend(lost));
    }
}

/// Whatever stands in quotes before a colon.
fn keys(body: &[u8]) -> BTreeSet<String> {
    let text = std::str::from_utf8(body).unwrap();
    let mut keys = BTreeSet::new();
    for (place, _) in text.match_indices(':') {
        let before = text[..place].trim_end();
        if let Some(quoted) = before.strip_suffix('"')
            && let Some((_, key)) = quoted.rsplit_once('"')
        {
            keys.insert(key.to_owned());
        }
    }
    keys
}

fn assert_same<T: PartialEq + Debug>(left: &T, right: &T, name: &str) {
    assert_eq!(left, right, "{name}");
}

#[test]
fn every_json_body_reads_into_its_type() {
    let mut unread = BTreeMap::new();
    let mut read = 0;
    for golden in load().iter().filter(|golden| !golden.partial) {
        let command = &golden.command();
        let name = &golden.name();
        let code = golden.request_code();
        if command.body.is_empty() {
            continue;
        }
        read += 1;
        if !golden.is_response() {
            match code {
                RequestCode::HEART_BEAT => check_body!(command, name, HeartbeatData),
                RequestCode::CHECK_CLIENT_CONFIG => check_body!(command, name, CheckClientConfig),
                RequestCode::LOCK_BATCH_MQ | RequestCode::UNLOCK_BATCH_MQ => check_body!(command, name, LockRequest),
                RequestCode::UPDATE_AND_CREATE_TOPIC_LIST => check_body!(command, name, TopicConfigList),
                RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP => check_body!(command, name, SubscriptionGroupConfig),
                RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST => {
                    check_body!(command, name, SubscriptionGroupList);
                }
                RequestCode::REGISTER_BROKER => {
                    let header = RegisterBrokerRequest::decode(command).unwrap();
                    let body = if header.compressed {
                        RegisterBrokerBody::decode_compressed(&command.body).unwrap()
                    } else {
                        RegisterBrokerBody::decode(&command.body).unwrap()
                    };
                    assert!(!body.topics.topic_config_table.is_empty());
                    if header.body_crc32 != 0 {
                        assert_eq!(body_crc(&command.body), header.body_crc32, "{name}");
                    }
                    // Compressed topics carry neither order nor unit bits.
                    let compressed = RegisterBrokerBody::decode_compressed(&body.encode_compressed()).unwrap();
                    assert_eq!(
                        compressed.topics.topic_config_table.keys().collect::<Vec<_>>(),
                        body.topics.topic_config_table.keys().collect::<Vec<_>>()
                    );
                    assert_eq!(RegisterBrokerBody::decode(&body.encode()).unwrap(), body);
                }
                RequestCode::QUERY_DATA_VERSION => check_body!(command, name, DataVersion),
                RequestCode::RESET_CONSUMER_CLIENT_OFFSET => check_body!(command, name, ResetOffsetTable),
                RequestCode::UPDATE_BROKER_CONFIG | RequestCode::UPDATE_NAMESRV_CONFIG => {
                    assert_eq!(decode_config_text(&command.body).unwrap().len(), 1, "{name}");
                }
                _ => {
                    read -= 1;
                    *unread.entry(format!("request {code}")).or_insert(0) += 1;
                }
            }
        } else {
            match code {
                RequestCode::GET_ROUTEINFO_BY_TOPIC => check_body!(command, name, TopicRouteData),
                RequestCode::GET_BROKER_CLUSTER_INFO => check_body!(command, name, ClusterInfo),
                RequestCode::GET_ALL_TOPIC_LIST_FROM_NAMESERVER
                | RequestCode::GET_TOPICS_BY_CLUSTER
                | RequestCode::GET_SYSTEM_TOPIC_LIST_FROM_BROKER
                | RequestCode::QUERY_TOPICS_BY_CONSUMER => check_body!(command, name, TopicList),
                RequestCode::GET_CONSUMER_LIST_BY_GROUP => check_body!(command, name, ConsumerList),
                RequestCode::LOCK_BATCH_MQ => check_body!(command, name, LockResponse),
                RequestCode::GET_ALL_TOPIC_CONFIG => check_body!(command, name, TopicConfigTable),
                RequestCode::GET_TOPIC_CONFIG => check_body!(command, name, TopicConfig),
                RequestCode::GET_ALL_SUBSCRIPTIONGROUP_CONFIG => check_body!(command, name, SubscriptionGroupTable),
                RequestCode::GET_TOPIC_STATS_INFO => check_body!(command, name, TopicStats),
                RequestCode::GET_CONSUME_STATS => check_body!(command, name, ConsumeStats),
                RequestCode::GET_BROKER_CONSUME_STATS => check_body!(command, name, BrokerConsumeStats),
                RequestCode::QUERY_CONSUME_TIME_SPAN => check_body!(command, name, ConsumeTimeSpans),
                RequestCode::VIEW_BROKER_STATS_DATA => check_body!(command, name, BrokerStatsData),
                RequestCode::GET_CONSUMER_CONNECTION_LIST => check_body!(command, name, ConsumerConnection),
                RequestCode::GET_PRODUCER_CONNECTION_LIST => check_body!(command, name, ProducerConnection),
                RequestCode::GET_ALL_PRODUCER_INFO => check_body!(command, name, ProducerTable),
                RequestCode::QUERY_TOPIC_CONSUME_BY_WHO => check_body!(command, name, GroupList),
                RequestCode::QUERY_SUBSCRIPTION_BY_CONSUMER => check_body!(command, name, QuerySubscription),
                RequestCode::INVOKE_BROKER_TO_RESET_OFFSET => check_body!(command, name, ResetOffsetTable),
                RequestCode::GET_CONSUMER_STATUS_FROM_CLIENT | RequestCode::INVOKE_BROKER_TO_GET_CONSUMER_STATUS => {
                    check_body!(command, name, ConsumerStatus);
                }
                RequestCode::GET_ALL_CONSUMER_OFFSET => check_body!(command, name, ConsumerOffsets),
                RequestCode::GET_CONSUMER_RUNNING_INFO => check_body!(command, name, ConsumerRunningInfo),
                RequestCode::CONSUME_MESSAGE_DIRECTLY => check_body!(command, name, ConsumeDirectlyResult),
                RequestCode::QUERY_CONSUME_QUEUE => check_body!(command, name, QueryConsumeQueueBody),
                RequestCode::GET_BROKER_RUNTIME_INFO
                | RequestCode::REGISTER_BROKER
                | RequestCode::GET_KVLIST_BY_NAMESPACE => check_body!(command, name, KvTable),
                RequestCode::QUERY_DATA_VERSION => check_body!(command, name, DataVersion),
                RequestCode::GET_BROKER_CONFIG | RequestCode::GET_NAMESRV_CONFIG => {
                    assert!(decode_config_text(&command.body).unwrap().len() > 10, "{name}");
                }
                _ => {
                    read -= 1;
                    *unread.entry(format!("answer to {code}")).or_insert(0) += 1;
                }
            }
        }
    }
    assert!(read > 500, "{read}");
    // What is read but not written: nothing that a client of ours needs.
    let lost = LOST_KEYS.with_borrow(|all| all.iter().map(|entry| format!("{entry:?}\n")).collect::<String>());
    expect_test::expect![[r#"
        ("ConsumeTimeSpans", {"consumeTimeStampStr", "maxTimeStampStr", "minTimeStampStr"})
        ("ConsumerOffsets", {"groupTopicMap"})
        ("ConsumerRunningInfo", {"dropped"})
        ("TopicConfigTable", {"topicQueueMappingDetailMap", "topicQueueMappingInfoMap"})
    "#]]
    .assert_eq(&lost);
    let names: Vec<_> = unread.keys().map(String::as_str).collect();
    expect_test::expect![[r#"
        answer to CONTROLLER_ALTER_SYNC_STATE_SET(1001)
        answer to CONTROLLER_ELECT_MASTER(1002)
        answer to CONTROLLER_GET_REPLICA_INFO(1004)
        answer to CONTROLLER_GET_SYNC_STATE_DATA(1006)
        answer to CONTROLLER_REGISTER_BROKER(1003)
        answer to GET_ALL_DELAY_OFFSET(45)
        answer to GET_ALL_MESSAGE_REQUEST_MODE(402)
        answer to GET_BROKER_HA_STATUS(907)
        answer to GET_COLD_DATA_FLOW_CTR_INFO(2003)
        answer to GET_TIMER_CHECK_POINT(60)
        answer to GET_TIMER_METRICS(61)
        answer to LITE_PULL_MESSAGE(361)
        answer to PEEK_MESSAGE(200052)
        answer to POP_MESSAGE(200050)
        answer to PULL_MESSAGE(11)
        answer to QUERY_ASSIGNMENT(400)
        answer to QUERY_MESSAGE(12)
        answer to VIEW_MESSAGE_BY_ID(33)
        request AUTH_CREATE_ACL(3006)
        request AUTH_CREATE_USER(3001)
        request BATCH_ACK_MESSAGE(200151)
        request CHECK_TRANSACTION_STATE(39)
        request CONSUME_MESSAGE_DIRECTLY(309)
        request CONTROLLER_ALTER_SYNC_STATE_SET(1001)
        request CONTROLLER_GET_SYNC_STATE_DATA(1006)
        request PUSH_REPLY_MESSAGE_TO_CLIENT(326)
        request QUERY_ASSIGNMENT(400)
        request SEND_BATCH_MESSAGE(320)
        request SEND_MESSAGE(10)
        request SEND_MESSAGE_V2(310)
        request SEND_REPLY_MESSAGE(324)
        request SEND_REPLY_MESSAGE_V2(325)
        request SET_MESSAGE_REQUEST_MODE(401)"#]]
    .assert_eq(&names.join("\n"));
}

/// Bodies that are runs of stored messages.
fn holds_records(golden: &Golden) -> bool {
    match golden.request_code() {
        RequestCode::PULL_MESSAGE
        | RequestCode::LITE_PULL_MESSAGE
        | RequestCode::QUERY_MESSAGE
        | RequestCode::VIEW_MESSAGE_BY_ID
        | RequestCode::POP_MESSAGE
        | RequestCode::PEEK_MESSAGE => golden.is_response(),
        RequestCode::CHECK_TRANSACTION_STATE | RequestCode::CONSUME_MESSAGE_DIRECTLY => !golden.is_response(),
        _ => false,
    }
}

#[test]
fn every_stored_message_walks_and_encodes_to_the_same_bytes() {
    let mut records = 0;
    let mut tagged = 0;
    for golden in load().iter().filter(|golden| holds_records(golden) && !golden.partial) {
        let command = golden.command();
        let name = golden.name();
        for record in iter_records(&command.body) {
            let record = record.unwrap_or_else(|error| panic!("{name}: {error}"));
            records += 1;
            assert!(record.body_crc_agrees(), "{name}");
            let properties = record.properties();
            if let Some(tag) = properties.get(property::TAGS) {
                tagged += 1;
                assert_eq!(record.tags_code(), i64::from(java_hash_code(tag)), "{name}");
            }
            assert!(TopicName::parse(record.topic()).is_ok(), "{name}");

            let mut again = BytesMut::new();
            encode_record(&record.to_new_message(), &mut again).unwrap();
            patch_offsets(&mut again, record.queue_offset(), record.physical_offset()).unwrap();
            assert_eq!(&again[..], record.bytes(), "{name}");

            // The properties survive a round through the builder. Some brokers wrote a name twice.
            let mut builder = PropertiesBuilder::new();
            for (key, value) in properties.iter() {
                builder.set(key, value).unwrap();
            }
            for (key, _) in properties.iter() {
                assert_eq!(builder.get(key), properties.get(key), "{name}");
            }
        }
    }
    assert!(records > 500 && tagged > 100, "{records} {tagged}");
}

#[test]
fn the_id_in_a_transaction_check_is_the_place_of_its_message() {
    let mut checks = 0;
    for golden in load().iter().filter(|golden| golden.request_code() == RequestCode::CHECK_TRANSACTION_STATE) {
        let command = golden.command();
        let header = CheckTransactionRequest::decode(&command).unwrap();
        let id: OffsetMessageId = header.offset_msg_id.unwrap().parse().unwrap();
        assert_eq!(id.physical_offset, header.half_physical_offset, "{}", golden.name());
        let record = RecordView::parse(&command.body).unwrap();
        assert_eq!(record.queue_offset(), header.half_queue_offset, "{}", golden.name());
        assert_eq!(record.physical_offset(), header.half_physical_offset, "{}", golden.name());
        assert_eq!(record.store_host(), id.store_host, "{}", golden.name());
        assert!(record.properties().get(property::PGROUP).is_some());
        checks += 1;
    }
    assert!(checks > 5);
}

#[test]
fn every_batch_takes_apart_and_encodes_to_the_same_bytes() {
    let mut batches = 0;
    for golden in load().iter().filter(|golden| !golden.is_response()) {
        let command = golden.command();
        let Ok(header) = SendRequest::decode(&command) else { continue };
        let is_send = matches!(
            golden.request_code(),
            RequestCode::SEND_MESSAGE | RequestCode::SEND_MESSAGE_V2 | RequestCode::SEND_BATCH_MESSAGE
        );
        if !is_send || !header.batch {
            continue;
        }
        let mut again = BytesMut::new();
        let mut items = 0;
        for item in decode_batch(&command.body) {
            let item = item.unwrap_or_else(|error| panic!("{}: {error}", golden.name()));
            encode_batch_item(&item, &mut again).unwrap();
            items += 1;
        }
        assert!(items > 1, "{}", golden.name());
        assert_eq!(again, command.body, "{}", golden.name());
        batches += 1;
    }
    // One of each Java client, Go, and the Python client, which calls it a plain send with the text 1 in a field.
    assert_eq!(batches, 5);
}
