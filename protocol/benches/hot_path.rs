//! What one send costs: reading the request, writing the record, writing the answer.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and fails loudly")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use protocol::header::{PullRequest, SendRequest, SendResponse};
use protocol::message::{NewMessage, RecordView, SysFlag, encode_record, patch_offsets};
use protocol::{FrameLimits, RemotingCommand, RequestCode, ResponseCode, decode_frame, encode_frame};

const PROPERTIES: &str = "UNIQ_KEY\u{1}7F0000017DF54E0E2F2A95E869BE0002\u{2}KEYS\u{1}key1\u{2}TAGS\u{1}TagA\u{2}\
                          CLUSTER\u{1}DefaultCluster\u{2}TRACE_ON\u{1}true\u{2}MSG_REGION\u{1}DefaultRegion\u{2}WAIT\u{1}true";

/// Runs `work` for a while and prints the time of one run: the best of several rounds, since the machine is shared.
fn measure(name: &str, mut work: impl FnMut()) {
    const ROUNDS: u32 = 100;
    const RUNS: u32 = 2_000;
    // Fewer for a tool that counts instructions.
    let rounds = if std::env::var_os("ONE_ROUND").is_some() { 1 } else { ROUNDS };
    let mut best = Duration::MAX;
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..RUNS {
            work();
        }
        best = best.min(start.elapsed());
    }
    println!("{name:<44} {:>7} ns", (best / RUNS).as_nanos());
}

fn main() {
    let body = vec![7_u8; 1024];
    let mut stream = BytesMut::new();
    let mut request = RemotingCommand::request(RequestCode::SEND_MESSAGE_V2).with_body(body.clone());
    let send = SendRequest {
        producer_group: "bench_producer_group",
        topic: "bench_topic".parse().unwrap(),
        default_topic: "TBW102",
        default_topic_queue_nums: 4,
        queue_id: 3,
        sys_flag: 0,
        born_timestamp: 1_796_006_236_606,
        flag: 0,
        properties: PROPERTIES,
        reconsume_times: 0,
        unit_mode: false,
        batch: false,
        max_reconsume_times: None,
        broker_name: Some("broker-a"),
    };
    send.encode_into(RequestCode::SEND_MESSAGE_V2, &mut request.ext);
    encode_frame(&request, &mut stream);
    let frame = stream.split().freeze();
    println!("send frame: {} bytes, header {}", frame.len(), frame.len() - body.len() - 8);

    let mut buffer = BytesMut::with_capacity(1 << 20);
    measure("copy the frame into a buffer", || {
        buffer.extend_from_slice(&frame);
        black_box(buffer.split_to(frame.len()));
        if buffer.capacity() < frame.len() {
            buffer = BytesMut::with_capacity(1 << 20);
        }
    });
    measure("  and decode it", || {
        buffer.extend_from_slice(&frame);
        black_box(decode_frame(&mut buffer, &FrameLimits::STANDARD).unwrap().unwrap());
        if buffer.capacity() < frame.len() {
            buffer = BytesMut::with_capacity(1 << 20);
        }
    });
    measure("  and its send header", || {
        buffer.extend_from_slice(&frame);
        let command = decode_frame(&mut buffer, &FrameLimits::STANDARD).unwrap().unwrap();
        black_box(SendRequest::decode(&command).unwrap());
        if buffer.capacity() < frame.len() {
            buffer = BytesMut::with_capacity(1 << 20);
        }
    });

    let message = NewMessage {
        topic: "bench_topic",
        queue_id: 3,
        flag: 0,
        sys_flag: SysFlag(0),
        born_timestamp: 1_796_006_236_606,
        born_host: "127.0.0.1:38088".parse().unwrap(),
        store_timestamp: 1_796_006_236_617,
        store_host: "127.0.0.1:10911".parse().unwrap(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &body,
        properties: PROPERTIES,
    };
    let mut out = BytesMut::with_capacity(1 << 16);
    measure("encode a record of 1 KiB", || {
        out.clear();
        black_box(encode_record(&message, &mut out).unwrap());
    });
    measure("read it and its tag", || {
        let view = RecordView::parse(&out).unwrap();
        black_box(view.tags_code());
    });
    measure("patch its offsets", || patch_offsets(black_box(&mut out), 1, 2).unwrap());

    let answer = SendResponse {
        msg_id: "7F00000100002A9F000000000000196C",
        queue_id: 3,
        queue_offset: 123_456,
        transaction_id: Some("7F0000017DF54E0E2F2A95E869BE0002"),
        region: Some("DefaultRegion"),
        trace_on: Some(true),
        recall_handle: None,
    };
    measure("build and encode a send answer", || {
        out.clear();
        let mut response = RemotingCommand::response_to(&request, ResponseCode::SUCCESS);
        answer.encode_into(&mut response.ext);
        encode_frame(black_box(&response), &mut out);
    });

    let mut pull = RemotingCommand::request(RequestCode::PULL_MESSAGE);
    let header = PullRequest {
        group: "bench_group".parse().unwrap(),
        topic: "bench_topic".parse().unwrap(),
        queue_id: 3,
        queue_offset: 123_456,
        max_msg_nums: 32,
        sys_flag: 2,
        commit_offset: 0,
        suspend_timeout_millis: 15_000,
        subscription: None,
        sub_version: 1_796_006_236_606,
        expression_type: Some("TAG".to_owned()),
        max_msg_bytes: Some(262_144),
        broker_name: Some("broker-a".to_owned()),
    };
    header.encode_into(&mut pull.ext);
    out.clear();
    encode_frame(&pull, &mut out);
    let frame = out.split().freeze();
    measure("decode a pull request and its header", || {
        buffer.extend_from_slice(&frame);
        let command = decode_frame(&mut buffer, &FrameLimits::STANDARD).unwrap().unwrap();
        black_box(PullRequest::decode(&command).unwrap());
        if buffer.capacity() < frame.len() {
            buffer = BytesMut::with_capacity(1 << 20);
        }
    });
}
