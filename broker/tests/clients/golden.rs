//! What recorded clients asked, and how alike the answers are.
//!
//! Every frame that a recorded client sent to its broker is sent again, byte by byte, in its order and on connections
//! like its own, except that pulls get no leave to wait and that transactions are ended, and timers recalled, where
//! they are. Each answer is compared with the recorded one: code, remark and names of ext fields. A time that was
//! recorded is over by now, so that its message waits for nothing and gets no handle. The recordings hold only some
//! exchanges of each kind, so that offsets differ from theirs and now and then an answer with them; the summary names
//! every kind of difference.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use bytes::BytesMut;
use expect_test::{Expect, expect};
use futures::future::join_all;
use protocol::body::HeartbeatData;
use protocol::message::{OffsetMessageId, RecallHandle};
use protocol::{FrameLimits, GroupName, RemotingCommand, RequestCode, ResponseCode, decode_frame, encode_frame};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::cluster::{Client, Cluster, Node, soon};
use crate::requests::{heartbeat, message, offsets, pull, request, settled};

#[derive(Deserialize)]
struct Recorded {
    n: u64,
    conn: u64,
    to: String,
    dir: String,
    code: i32,
    frame: String,
    #[serde(default)]
    frame_truncated: bool,
    #[serde(default)]
    request_n: u64,
}

impl Recorded {
    fn command(&self) -> RemotingCommand {
        let digits: Vec<u8> = self.frame.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
        let mut bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        // Some recorded frames lack the end of their body; what is there is enough to compare with.
        let length = u32::try_from(bytes.len() - 4).unwrap();
        bytes[..4].copy_from_slice(&length.to_be_bytes());
        decode_frame(&mut BytesMut::from(&bytes[..]), &FrameLimits::STANDARD).unwrap().unwrap()
    }
}

/// A connection that sends frames as they are.
struct Wire {
    stream: TcpStream,
    received: BytesMut,
}

impl Wire {
    async fn open(node: &Node) -> Self {
        Self { stream: TcpStream::connect(node.addr).await.unwrap(), received: BytesMut::new() }
    }

    async fn send(&mut self, command: &RemotingCommand) {
        let mut out = BytesMut::new();
        encode_frame(command, &mut out);
        self.stream.write_all(&out).await.unwrap();
    }

    /// The answer with this opaque; none when the one with `marker` comes instead.
    async fn answer(&mut self, opaque: i32, marker: Option<i32>) -> Option<RemotingCommand> {
        loop {
            while let Some(command) = decode_frame(&mut self.received, &FrameLimits::STANDARD).unwrap() {
                if command.is_response() && command.opaque == opaque {
                    return Some(command);
                }
                if command.is_response() && Some(command.opaque) == marker {
                    return None;
                }
            }
            assert_ne!(self.stream.read_buf(&mut self.received).await.unwrap(), 0, "the broker closed the connection");
        }
    }
}

impl Wire {
    /// Takes the replies that are pushed to this client, for ever.
    async fn take_replies(&mut self) {
        while self.stream.read_buf(&mut self.received).await.unwrap() > 0 {
            while let Some(command) = decode_frame(&mut self.received, &FrameLimits::STANDARD).unwrap() {
                if command.request_code() == RequestCode::PUSH_REPLY_MESSAGE_TO_CLIENT {
                    self.send(&RemotingCommand::response_to(&command, ResponseCode::SUCCESS)).await;
                }
            }
        }
        std::future::pending().await
    }
}

/// Names a half message as it was stored here, and a timer message by the handle it got here.
fn at_its_place(mut command: RemotingCommand, waiting: &BTreeMap<String, RemotingCommand>) -> RemotingCommand {
    if let Some(handle) = command.ext.get("recallHandle") {
        let sent = &waiting[&RecallHandle::decode(handle).unwrap().unique_key];
        command.ext.push("recallHandle", sent.ext.get("recallHandle").unwrap());
    }
    if command.request_code() == RequestCode::END_TRANSACTION
        && let Some(sent) = command.ext.get("msgId").and_then(|key| waiting.get(key))
    {
        let id: OffsetMessageId = sent.ext.get("msgId").unwrap().parse().unwrap();
        command.ext.push("tranStateTableOffset", sent.ext.get("queueOffset").unwrap());
        command.ext.push_display("commitLogOffset", id.physical_offset);
    }
    command
}

/// Takes the leave to wait from a pull: nothing else goes on here that could end the wait.
fn without_wait(mut command: RemotingCommand) -> RemotingCommand {
    if matches!(command.request_code(), RequestCode::PULL_MESSAGE | RequestCode::LITE_PULL_MESSAGE)
        && let Ok(flags) = command.ext.get("sysFlag").unwrap_or_default().parse::<i32>()
    {
        command.ext.push_display("sysFlag", flags & !2);
    }
    command
}

/// Waits for what a heartbeat creates on its way.
async fn created(client: &Client, beat: &RemotingCommand) {
    let Ok(beat) = HeartbeatData::decode(&beat.body) else { return };
    let groups = beat.consumers.iter().map(|consumer| GroupName::parse(&consumer.group).unwrap());
    for group in groups.filter(|group| !group.is_system()) {
        let topic = group.retry_topic().to_string();
        let wait = async {
            while !client.call(request(RequestCode::GET_TOPIC_CONFIG, &[("topic", &topic)])).await.is_success() {
                tokio::task::yield_now().await;
            }
        };
        soon("the group is created", wait).await;
    }
}

fn fields(command: &RemotingCommand) -> Vec<String> {
    let mut keys: Vec<String> = command.ext.iter().map(|(key, _)| key.to_owned()).collect();
    keys.sort();
    keys
}

/// Names at the top of a JSON object, whatever stands below; what is no object has one name for all of it.
fn body_keys(body: &[u8]) -> Vec<String> {
    let Some(text) = std::str::from_utf8(body).ok().filter(|text| text.starts_with('{')) else {
        return if body.is_empty() { Vec::new() } else { vec!["bytes".to_owned()] };
    };
    let (mut keys, mut depth, mut string, mut last) = (Vec::new(), 0, None, "");
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match (c, string) {
            _ if escaped => escaped = false,
            ('\\', Some(_)) => escaped = true,
            ('"', Some(start)) => {
                last = &text[start..at];
                string = None;
            }
            (_, Some(_)) => {}
            ('"', None) => string = Some(at + 1),
            ('{' | '[', None) => depth += 1,
            ('}' | ']', None) => depth -= 1,
            (':', None) if depth == 1 => keys.push(last.to_owned()),
            _ => {}
        }
    }
    keys.sort();
    keys
}

/// One line for what is different; empty when nothing is.
fn difference(recorded: &RemotingCommand, found: Option<&RemotingCommand>) -> String {
    let Some(found) = found else { return format!("{} -> no answer", recorded.code) };
    let mut text = String::new();
    if recorded.code != found.code {
        write!(text, "{} -> {}", recorded.code, found.code).unwrap();
        if let Some(remark) = &found.remark {
            write!(text, " ({})", remark.chars().take(60).collect::<String>()).unwrap();
        }
        return text;
    }
    let (before, after) = (fields(recorded), fields(found));
    for key in before.iter().filter(|key| !after.contains(key)) {
        write!(text, " -{key}").unwrap();
    }
    for key in after.iter().filter(|key| !before.contains(key)) {
        write!(text, " +{key}").unwrap();
    }
    let (before, after) = (body_keys(&recorded.body), body_keys(&found.body));
    for key in before.iter().filter(|key| !after.contains(key)) {
        write!(text, " -body.{key}").unwrap();
    }
    for key in after.iter().filter(|key| !before.contains(key)) {
        write!(text, " +body.{key}").unwrap();
    }
    if text.is_empty() { text } else { format!("{}:{text}", recorded.code) }
}

/// What the tools found when they were recorded: topics with messages, and consumers that are online.
async fn furnish(node: &Node) -> Vec<Client> {
    let client = node.client();
    for topic in ["adm_topic", "jb_base", "jb_rpc", "py_retry", "j4_base"] {
        for queue_id in 0..4 {
            for _ in 0..5 {
                let sent = client.call(message(topic, queue_id, "x", "TAGS\u{1}TagA\u{2}")).await;
                assert!(sent.is_success(), "{sent:?}");
            }
        }
    }
    let mut online = vec![client];
    for (group, client_id, topic) in [
        ("go_cg_adm", "10.0.0.9@c_adm", "adm_topic"),
        ("goh_cg_adm", "@c_adm", "adm_topic"),
        ("j4_cg_adm", "10.0.0.9@c_adm", "adm_topic"),
        ("j4h_cg_adm", "10.0.0.9@c_adm", "adm_topic"),
        ("j5h_cg_adm", "10.0.0.9@c_adm", "adm_topic"),
        ("py_cg_adm", "1441-127.0.0.1@c_adm", "adm_topic"),
        ("jb_cg_rpc", "10.0.0.9@c_rpc", "jb_rpc"),
        ("jb_cg_retry", "10.0.0.9@c_retry", "jb_base"),
    ] {
        let consumer = node.client();
        let beat = heartbeat(client_id, group, topic);
        assert!(consumer.call(beat.clone()).await.is_success());
        created(&consumer, &beat).await;
        for queue_id in 0..4 {
            let commit = offsets(RequestCode::UPDATE_CONSUMER_OFFSET, group, topic, queue_id);
            assert!(consumer.call(commit.with_ext("commitOffset", 3)).await.is_success());
        }
        settled(&consumer).await;
        let pulled = consumer.call(pull(topic, 0, 0, 4, 0).with_ext("consumerGroup", group)).await;
        assert!(pulled.is_success());
        online.push(consumer);
    }
    online
}

fn sys_flag(sent: &RemotingCommand) -> Option<&str> {
    let name = if sent.request_code() == RequestCode::SEND_MESSAGE { "sysFlag" } else { "f" };
    sent.ext.get(name)
}

fn is_reply(code: RequestCode) -> bool {
    matches!(code, RequestCode::SEND_REPLY_MESSAGE | RequestCode::SEND_REPLY_MESSAGE_V2)
}

async fn replay(file: &str, expected: Expect) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../protocol/tests/golden").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let frames: Vec<Recorded> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let answers: BTreeMap<u64, &Recorded> =
        frames.iter().filter(|frame| frame.dir == "response").map(|frame| (frame.request_n, frame)).collect();

    let cluster = Cluster::start(1).await;
    let node = cluster.leader().await;
    let observer = node.client();
    let online = if file == "mqadmin.jsonl" { furnish(node).await } else { Vec::new() };
    let mut wires: BTreeMap<u64, Wire> = BTreeMap::new();
    let mut waiting: BTreeMap<String, RemotingCommand> = BTreeMap::new();
    let mut summary: BTreeMap<(i32, String), usize> = BTreeMap::new();
    for frame in frames.iter().filter(|frame| frame.to == "broker" && frame.dir != "response" && !frame.frame_truncated)
    {
        let command = at_its_place(without_wait(frame.command()), &waiting);
        let code = command.request_code();
        let mut wire = match wires.remove(&frame.conn) {
            Some(wire) => wire,
            None => Wire::open(node).await,
        };
        // Reads see everything before them, as they did when people-sized pauses lay between.
        settled(&observer).await;
        wire.send(&command).await;
        let Some(recorded) = answers.get(&frame.n).map(|answer| answer.command()) else {
            wires.insert(frame.conn, wire);
            continue;
        };
        // Lists of members are answered at once or not at all, and the request after them is answered anyway.
        let marker =
            (code == RequestCode::GET_CONSUMER_LIST_BY_GROUP).then(|| i32::MIN + i32::try_from(frame.n).unwrap());
        if let Some(opaque) = marker {
            let mut request = RemotingCommand::request(RequestCode::GET_BROKER_CONFIG);
            request.opaque = opaque;
            wire.send(&request).await;
        }
        let found = tokio::select! {
            found = soon("an answer", wire.answer(command.opaque, marker)) => found,
            _ = join_all(wires.values_mut().map(Wire::take_replies)), if is_reply(code) => unreachable!(),
        };
        wires.insert(frame.conn, wire);
        let waits =
            |found: &&RemotingCommand| sys_flag(&command) == Some("4") || found.ext.get("recallHandle").is_some();
        if let Some(found) = found.as_ref().filter(waits)
            && let Some(key) = found.ext.get("transactionId")
        {
            waiting.insert(key.to_owned(), found.clone());
        }
        if code == RequestCode::HEART_BEAT {
            created(&observer, &command).await;
        }
        let difference = difference(&recorded, found.as_ref());
        *summary.entry((frame.code, difference)).or_default() += 1;
    }
    let mut lines = String::new();
    for ((code, difference), count) in summary {
        let same = if difference.is_empty() { "same" } else { &difference };
        writeln!(lines, "{} x{count}: {}", RequestCode(code), same.replace(|c: char| !c.is_ascii(), "?")).unwrap();
    }
    expected.assert_eq(&lines);
    drop((wires, online));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_5_gets_the_answers_it_knows() {
    replay(
        "java-5.3.3.jsonl",
        expect![[r#"
        PULL_MESSAGE(11) x22: same
        PULL_MESSAGE(11) x1: 0 -> 19 (OFFSET_OVERFLOW_ONE)
        PULL_MESSAGE(11) x1: 0 -> 23 (the expression is not understood at character 4: expected a )
        PULL_MESSAGE(11) x15: 0 -> 25 (the consumer's subscription not latest)
        PULL_MESSAGE(11) x12: 19 -> 25 (the consumer's subscription not latest)
        QUERY_MESSAGE(12) x3: same
        QUERY_MESSAGE(12) x1: 0 -> 22 (can not find message, maybe time range not correct)
        QUERY_CONSUMER_OFFSET(14) x40: same
        QUERY_CONSUMER_OFFSET(14) x1: 0 -> 22 (Not found, V3_0_6_SNAPSHOT maybe this group consumer boot fi)
        UPDATE_CONSUMER_OFFSET(15) x2: same
        SEARCH_OFFSET_BY_TIMESTAMP(29) x3: same
        GET_MAX_OFFSET(30) x6: same
        GET_MIN_OFFSET(31) x1: same
        GET_EARLIEST_MSG_STORETIME(32) x1: same
        VIEW_MESSAGE_BY_ID(33) x1: same
        VIEW_MESSAGE_BY_ID(33) x1: 0 -> 1 (can not find message by the offset, 53399)
        HEART_BEAT(34) x57: same
        UNREGISTER_CLIENT(35) x41: same
        CONSUMER_SEND_MSG_BACK(36) x1: 0 -> 1 (look message by offset failed, 21385)
        CONSUMER_SEND_MSG_BACK(36) x1: 0 -> 1 (look message by offset failed, 21628)
        CONSUMER_SEND_MSG_BACK(36) x1: 0 -> 1 (look message by offset failed, 21873)
        GET_CONSUMER_LIST_BY_GROUP(38) x39: same
        LOCK_BATCH_MQ(41) x3: same
        UNLOCK_BATCH_MQ(42) x2: same
        CHECK_CLIENT_CONFIG(46) x2: same
        GET_ROUTEINFO_BY_TOPIC(105) x1: same
        SEND_MESSAGE_V2(310) x48: same
        SEND_MESSAGE_V2(310) x2: 0: -recallHandle
        SEND_BATCH_MESSAGE(320) x1: same
        SEND_REPLY_MESSAGE_V2(325) x1: same
        LITE_PULL_MESSAGE(361) x3: same
        RECALL_MESSAGE(370) x1: same
        QUERY_ASSIGNMENT(400) x2: same
        SET_MESSAGE_REQUEST_MODE(401) x1: 0 -> 26 (subscription group [j5_cg_pop] does not exist)
        9999 x1: same
        POP_MESSAGE(200050) x4: same
        POP_MESSAGE(200050) x1: 0 -> 210 (NO_MESSAGE_IN_QUEUE)
        POP_MESSAGE(200050) x1: 29: -invisibleTime -popTime -restNum -reviveQid
        ACK_MESSAGE(200051) x1: same
        ACK_MESSAGE(200051) x1: 0 -> 208 (offset is illegal: 0 of j5_pop@0 was not popped, or its time)
        ACK_MESSAGE(200051) x1: 0 -> 208 (offset is illegal: 0 of j5_pop@2 was not popped, or its time)
        ACK_MESSAGE(200051) x1: 0 -> 208 (offset is illegal: 0 of j5_pop@3 was not popped, or its time)
        PEEK_MESSAGE(200052) x1: same
        CHANGE_MESSAGE_INVISIBLETIME(200053) x1: 0 -> 208 (offset is illegal: 0 of j5_pop@1 was not popped, or its time)
        CHANGE_MESSAGE_INVISIBLETIME(200053) x1: 0 -> 208 (offset is illegal: 0 of j5_popd@0 was not popped, or its tim)
        NOTIFICATION(200054) x2: same
        POLLING_INFO(200055) x1: same
        BATCH_ACK_MESSAGE(200151) x1: same
    "#]],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_5_with_binary_headers_gets_the_answers_it_knows() {
    replay(
        "java-5.3.3-binary.jsonl",
        expect![[r#"
        PULL_MESSAGE(11) x17: same
        PULL_MESSAGE(11) x1: 0 -> 19 (OFFSET_OVERFLOW_ONE)
        PULL_MESSAGE(11) x1: 0 -> 23 (the expression is not understood at character 4: expected a )
        PULL_MESSAGE(11) x15: 0 -> 25 (the consumer's subscription not latest)
        PULL_MESSAGE(11) x9: 19 -> 25 (the consumer's subscription not latest)
        QUERY_MESSAGE(12) x3: same
        QUERY_MESSAGE(12) x1: 0 -> 22 (can not find message, maybe time range not correct)
        QUERY_CONSUMER_OFFSET(14) x36: same
        QUERY_CONSUMER_OFFSET(14) x1: 0 -> 22 (Not found, V3_0_6_SNAPSHOT maybe this group consumer boot fi)
        UPDATE_CONSUMER_OFFSET(15) x2: same
        SEARCH_OFFSET_BY_TIMESTAMP(29) x3: same
        GET_MAX_OFFSET(30) x6: same
        GET_MIN_OFFSET(31) x1: same
        GET_EARLIEST_MSG_STORETIME(32) x1: same
        VIEW_MESSAGE_BY_ID(33) x1: same
        VIEW_MESSAGE_BY_ID(33) x1: 0 -> 1 (can not find message by the offset, 56300)
        HEART_BEAT(34) x52: same
        UNREGISTER_CLIENT(35) x41: same
        CONSUMER_SEND_MSG_BACK(36) x1: 0 -> 1 (look message by offset failed, 15469)
        CONSUMER_SEND_MSG_BACK(36) x1: 0 -> 1 (look message by offset failed, 15712)
        CONSUMER_SEND_MSG_BACK(36) x1: 0 -> 1 (look message by offset failed, 15957)
        GET_CONSUMER_LIST_BY_GROUP(38) x34: same
        LOCK_BATCH_MQ(41) x3: same
        UNLOCK_BATCH_MQ(42) x2: same
        CHECK_CLIENT_CONFIG(46) x2: same
        GET_ROUTEINFO_BY_TOPIC(105) x1: same
        SEND_MESSAGE_V2(310) x45: same
        SEND_MESSAGE_V2(310) x2: 0: -recallHandle
        SEND_BATCH_MESSAGE(320) x1: same
        SEND_REPLY_MESSAGE_V2(325) x1: same
        LITE_PULL_MESSAGE(361) x3: same
        RECALL_MESSAGE(370) x1: same
        QUERY_ASSIGNMENT(400) x2: same
        SET_MESSAGE_REQUEST_MODE(401) x1: 0 -> 26 (subscription group [jb_cg_pop] does not exist)
        3442 x3: 3 -> 0 (FOUND)
        3442 x2: 3 -> 210 (NO_MESSAGE_IN_QUEUE)
        3442 x1: 3 -> 29 (the number of messages to pop, 99, is greater than 32)
        3444 x1: 3 -> 0 (FOUND)
        3446 x2: 3 -> 0
        3447 x1: 3 -> 0
        9999 x1: same
    "#]],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_4_gets_the_answers_it_knows() {
    replay(
        "java-4.9.8.jsonl",
        expect![[r#"
        PULL_MESSAGE(11) x46: same
        PULL_MESSAGE(11) x2: 0 -> 19 (NO_MESSAGE_IN_QUEUE)
        PULL_MESSAGE(11) x1: 0 -> 19 (OFFSET_OVERFLOW_ONE)
        PULL_MESSAGE(11) x1: 0 -> 21 (OFFSET_OVERFLOW_BADLY)
        PULL_MESSAGE(11) x1: 0 -> 23 (the expression is not understood at character 4: expected a )
        PULL_MESSAGE(11) x2: 19 -> 0 (FOUND)
        PULL_MESSAGE(11) x5: 19 -> 25 (the consumer's subscription not latest)
        PULL_MESSAGE(11) x2: 25 -> 0 (FOUND)
        PULL_MESSAGE(11) x1: 25 -> 17 (topic[%RETRY%j4_cg_adm] not exist, apply first please!
        See h)
        PULL_MESSAGE(11) x1: 25 -> 24 (the consumer's group info not exist)
        QUERY_MESSAGE(12) x3: same
        QUERY_MESSAGE(12) x1: 0 -> 22 (can not find message, maybe time range not correct)
        QUERY_CONSUMER_OFFSET(14) x42: same
        UPDATE_CONSUMER_OFFSET(15) x3: same
        UPDATE_CONSUMER_OFFSET(15) x1: 26 -> 0
        SEARCH_OFFSET_BY_TIMESTAMP(29) x3: same
        GET_MAX_OFFSET(30) x5: same
        GET_MIN_OFFSET(31) x2: same
        GET_EARLIEST_MSG_STORETIME(32) x2: same
        VIEW_MESSAGE_BY_ID(33) x1: same
        VIEW_MESSAGE_BY_ID(33) x1: 0 -> 1 (can not find message by the offset, 2897)
        HEART_BEAT(34) x40: same
        UNREGISTER_CLIENT(35) x37: same
        CONSUMER_SEND_MSG_BACK(36) x1: 0 -> 1 (look message by offset failed, 20650)
        CONSUMER_SEND_MSG_BACK(36) x1: 0 -> 1 (look message by offset failed, 20893)
        CONSUMER_SEND_MSG_BACK(36) x1: 0 -> 1 (look message by offset failed, 21138)
        CONSUMER_SEND_MSG_BACK(36) x1: 0 -> 1 (look message by offset failed, 50307)
        GET_CONSUMER_LIST_BY_GROUP(38) x26: same
        LOCK_BATCH_MQ(41) x3: same
        UNLOCK_BATCH_MQ(42) x1: same
        CHECK_CLIENT_CONFIG(46) x2: same
        SEND_MESSAGE_V2(310) x40: same
        SEND_MESSAGE_V2(310) x1: 0: -recallHandle
        SEND_BATCH_MESSAGE(320) x1: same
        SEND_REPLY_MESSAGE_V2(325) x1: same
    "#]],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn go_gets_the_answers_it_knows() {
    replay(
        "go.jsonl",
        expect![[r#"
        SEND_MESSAGE(10) x35: same
        SEND_MESSAGE(10) x1: 0: -recallHandle
        PULL_MESSAGE(11) x35: same
        PULL_MESSAGE(11) x4: 0 -> 19 (NO_MESSAGE_IN_QUEUE)
        PULL_MESSAGE(11) x1: 0 -> 21 (OFFSET_OVERFLOW_BADLY)
        PULL_MESSAGE(11) x1: 27 -> 0 (FOUND)
        QUERY_CONSUMER_OFFSET(14) x32: same
        QUERY_CONSUMER_OFFSET(14) x1: 0 -> 22 (Not found, V3_0_6_SNAPSHOT maybe this group consumer boot fi)
        UPDATE_CONSUMER_OFFSET(15) x13: same
        UPDATE_CONSUMER_OFFSET(15) x1: 0 -> 1 (offset 2 is beyond the queue's end 0)
        UPDATE_AND_CREATE_TOPIC(17) x1: same
        SEARCH_OFFSET_BY_TIMESTAMP(29) x3: same
        HEART_BEAT(34) x33: same
        CONSUMER_SEND_MSG_BACK(36) x1: 0 -> 1 (look message by offset failed, 7124)
        CONSUMER_SEND_MSG_BACK(36) x1: 0 -> 1 (look message by offset failed, 7357)
        CONSUMER_SEND_MSG_BACK(36) x1: 0 -> 1 (look message by offset failed, 7592)
        END_TRANSACTION(37) x4: same
        END_TRANSACTION(37) x1: 0 -> 1 (no transaction is pending at offset 0: it was decided or mov)
        GET_CONSUMER_LIST_BY_GROUP(38) x21: same
        LOCK_BATCH_MQ(41) x3: same
        UNLOCK_BATCH_MQ(42) x1: same
        GET_ALL_SUBSCRIPTIONGROUP_CONFIG(201) x1: same
        DELETE_TOPIC_IN_BROKER(215) x1: same
        SEND_BATCH_MESSAGE(320) x1: same
        SEND_REPLY_MESSAGE(324) x2: 1 -> 0
    "#]],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_gets_the_answers_it_knows() {
    replay(
        "python.jsonl",
        expect![[r#"
        SEND_MESSAGE(10) x13: same
        SEND_MESSAGE(10) x1: 0: -transactionId
        PULL_MESSAGE(11) x17: same
        PULL_MESSAGE(11) x3: 0 -> 17 (topic[adm_topic] not exist, apply first please!
        See https://)
        PULL_MESSAGE(11) x1: 19 -> 17 (topic[adm_topic] not exist, apply first please!
        See https://)
        PULL_MESSAGE(11) x1: 19 -> 21 (OFFSET_OVERFLOW_BADLY)
        QUERY_CONSUMER_OFFSET(14) x15: same
        QUERY_CONSUMER_OFFSET(14) x3: 0 -> 22 (Not found, V3_0_6_SNAPSHOT maybe this group consumer boot fi)
        UPDATE_CONSUMER_OFFSET(15) x9: same
        UPDATE_CONSUMER_OFFSET(15) x2: 0 -> 1 (offset 3 is beyond the queue's end 2)
        UPDATE_CONSUMER_OFFSET(15) x3: 0 -> 17 (Topic adm_topic not exist!)
        GET_MAX_OFFSET(30) x6: same
        HEART_BEAT(34) x8: same
        UNREGISTER_CLIENT(35) x8: same
        CONSUMER_SEND_MSG_BACK(36) x1: 0 -> 1 (look message by offset failed, 33995)
        GET_CONSUMER_LIST_BY_GROUP(38) x9: same
        LOCK_BATCH_MQ(41) x3: same
        UNLOCK_BATCH_MQ(42) x1: same
    "#]],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_get_the_answers_they_know() {
    replay("mqadmin.jsonl", expect![[r#"
        PULL_MESSAGE(11) x3: same
        PULL_MESSAGE(11) x2: 0 -> 21 (OFFSET_OVERFLOW_BADLY)
        QUERY_MESSAGE(12) x2: 0 -> 22 (can not find message, maybe time range not correct)
        UPDATE_CONSUMER_OFFSET(15) x2: same
        UPDATE_CONSUMER_OFFSET(15) x1: 0 -> 1 (offset 17 is beyond the queue's end 5)
        UPDATE_CONSUMER_OFFSET(15) x1: 0 -> 1 (offset 18 is beyond the queue's end 5)
        UPDATE_AND_CREATE_TOPIC(17) x6: same
        UPDATE_AND_CREATE_TOPIC_LIST(18) x1: same
        GET_ALL_TOPIC_CONFIG(21) x2: same
        UPDATE_BROKER_CONFIG(25) x1: 0 -> 16 (flushDelayOffsetInterval is not changed while the broker run)
        UPDATE_BROKER_CONFIG(25) x1: 0 -> 16 (useServerSideResetOffset is not changed while the broker run)
        GET_BROKER_CONFIG(26) x1: 0: +body.bytes
        GET_BROKER_RUNTIME_INFO(28) x12: 0: +body.table
        GET_MAX_OFFSET(30) x4: same
        GET_MIN_OFFSET(31) x4: same
        VIEW_MESSAGE_BY_ID(33) x1: 0 -> 1 (can not find message by the offset, 20031)
        VIEW_MESSAGE_BY_ID(33) x2: 0 -> 1 (can not find message by the offset, 3199)
        HEART_BEAT(34) x13: same
        UNREGISTER_CLIENT(35) x20: same
        UPDATE_AND_CREATE_SUBSCRIPTIONGROUP(200) x1: same
        GET_ALL_SUBSCRIPTIONGROUP_CONFIG(201) x4: same
        GET_TOPIC_STATS_INFO(202) x3: same
        GET_CONSUMER_CONNECTION_LIST(203) x20: same
        GET_PRODUCER_CONNECTION_LIST(204) x1: 0 -> 1 (the producer group[j4h_pg_adm] not exist)
        DELETE_SUBSCRIPTIONGROUP(207) x1: same
        GET_CONSUME_STATS(208) x17: same
        DELETE_TOPIC_IN_BROKER(215) x3: same
        INVOKE_BROKER_TO_RESET_OFFSET(222) x5: same
        INVOKE_BROKER_TO_RESET_OFFSET(222) x1: 1 -> 26 (Group j4_cg_retry does not exist)
        INVOKE_BROKER_TO_GET_CONSUMER_STATUS(223) x1: same
        INVOKE_BROKER_TO_GET_CONSUMER_STATUS(223) x1: 0 -> 1 (no member of the consumer group <go_cg_adm> has answered)
        INVOKE_BROKER_TO_GET_CONSUMER_STATUS(223) x1: 0 -> 1 (no member of the consumer group <j4_cg_adm> has answered)
        UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST(225) x1: same
        QUERY_TOPIC_CONSUME_BY_WHO(300) x9: same
        QUERY_CONSUME_TIME_SPAN(303) x1: same
        GET_SYSTEM_TOPIC_LIST_FROM_BROKER(305) x2: same
        CLEAN_EXPIRED_CONSUMEQUEUE(306) x1: same
        GET_CONSUMER_RUNNING_INFO(307) x2: same
        GET_CONSUMER_RUNNING_INFO(307) x1: 0: -AccessKey -OnsChannel -Signature -body.jstack -body.mqTable -body.properties -body.subscriptionSet +body.bytes
        GET_CONSUMER_RUNNING_INFO(307) x2: 0: -body.jstack -body.mqTable -body.properties -body.statusTable -body.subscriptionSet +body.bytes
        GET_CONSUMER_RUNNING_INFO(307) x1: 0: -body.mqPopTable -body.mqTable -body.properties +body.bytes
        GET_CONSUMER_RUNNING_INFO(307) x3: 0: -body.mqTable -body.properties -body.statusTable -body.subscriptionSet +body.bytes
        CONSUME_MESSAGE_DIRECTLY(309) x2: 0 -> 1 (can not find message by the offset, 20031)
        CONSUME_MESSAGE_DIRECTLY(309) x1: 0 -> 1 (can not find message by the offset, 3199)
        SEND_MESSAGE_V2(310) x8: same
        VIEW_BROKER_STATS_DATA(315) x4: same
        VIEW_BROKER_STATS_DATA(315) x1: 0 -> 1 (The stats <GROUP_GET_NUMS> <jb_base@jb_cg_hb2> not exist)
        VIEW_BROKER_STATS_DATA(315) x1: 0 -> 1 (The stats <GROUP_GET_NUMS> <jb_base@jb_cg_lite> not exist)
        CLEAN_UNUSED_TOPIC(316) x1: same
        GET_BROKER_CONSUME_STATS(317) x1: 0: +body.totalDiff +body.totalInflightDiff
        QUERY_CONSUME_QUEUE(321) x1: same
        GET_ALL_PRODUCER_INFO(328) x1: same
        DELETE_EXPIRED_COMMITLOG(329) x1: same
        QUERY_TOPICS_BY_CONSUMER(343) x1: same
        QUERY_SUBSCRIPTION_BY_CONSUMER(345) x1: same
        GET_TOPIC_CONFIG(351) x22: same
        SET_MESSAGE_REQUEST_MODE(401) x1: 0 -> 26 (subscription group [adm_clone] does not exist)
        GET_BROKER_HA_STATUS(907) x3: 0 -> 16 (there are no slaves: replicas agree through one log, with te)
        GET_COLD_DATA_FLOW_CTR_INFO(2003) x1: 0 -> 16 (reads of old messages are limited for all groups together: s)
        AUTH_CREATE_USER(3001) x1: 1 -> 16 (this broker has no users and no access control: who reaches )
        AUTH_DELETE_USER(3003) x1: 1 -> 16 (this broker has no users and no access control: who reaches )
        AUTH_GET_USER(3004) x1: 1 -> 16 (this broker has no users and no access control: who reaches )
        AUTH_LIST_USER(3005) x1: 1 -> 16 (this broker has no users and no access control: who reaches )
        AUTH_CREATE_ACL(3006) x1: 1 -> 16 (this broker has no users and no access control: who reaches )
        AUTH_DELETE_ACL(3008) x1: 1 -> 16 (this broker has no users and no access control: who reaches )
        AUTH_GET_ACL(3009) x1: 1 -> 16 (this broker has no users and no access control: who reaches )
        AUTH_LIST_ACL(3010) x1: 1 -> 16 (this broker has no users and no access control: who reaches )
    "#]]).await;
}
