//! The path of a message as an OpenTelemetry collector sees it.

use std::collections::BTreeMap;

use protocol::header::{PullRequest, PullSysFlag};
use protocol::{GroupName, RemotingCommand, ResponseCode, TopicName};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::metrics::{ask, send};
use super::*;
use crate::state_machine::command::PutMode;
use crate::state_machine::topic::{PERM_READ, PERM_WRITE};
use crate::state_machine::{Command, TopicConfig};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT_SPAN: &str = "00f067aa0ba902b7";

/// A collector that answers every export with success and passes on what it holds.
async fn collector() -> (SocketAddr, mpsc::Receiver<Value>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (exports, exported) = mpsc::channel(64);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let exports = exports.clone();
            tokio::spawn(async move {
                let mut stream = tokio::io::BufReader::new(stream);
                while let Some((head, body)) = request(&mut stream).await {
                    assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
                    assert!(head.to_lowercase().contains("content-type: application/json"), "{head}");
                    exports.send(serde_json::from_slice(&body).unwrap()).await.unwrap();
                    let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
    });
    (addr, exported)
}

/// One request with its body; none once the connection is closed.
async fn request(stream: &mut (impl AsyncReadExt + Unpin)) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse().unwrap())
    });
    let mut body = vec![0; length.expect("bodies have a length")];
    stream.read_exact(&mut body).await.ok()?;
    Some((head, body))
}

/// A span as far as tests look at it.
#[derive(Debug)]
struct Span {
    name: String,
    trace_id: String,
    span_id: String,
    parent: String,
    kind: u64,
    began: u64,
    ended: u64,
    attributes: BTreeMap<String, String>,
    status: u64,
}

fn attributes(of: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let pair = |attribute: &Value| {
        let (_, value) = attribute["value"].as_object().unwrap().iter().next().unwrap();
        (text(&attribute["key"]), text(value))
    };
    of["attributes"].as_array().into_iter().flatten().map(pair).collect()
}

fn spans(export: &Value) -> Vec<Span> {
    let resources = export["resourceSpans"].as_array().unwrap();
    let scopes = resources.iter().flat_map(|resource| resource["scopeSpans"].as_array().unwrap());
    let spans = scopes.flat_map(|scope| scope["spans"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let time = |value: &Value| value.as_str().unwrap().parse().unwrap();
    spans
        .map(|span| Span {
            name: text(&span["name"]),
            trace_id: text(&span["traceId"]),
            span_id: text(&span["spanId"]),
            parent: text(&span["parentSpanId"]),
            kind: span["kind"].as_u64().unwrap(),
            began: time(&span["startTimeUnixNano"]),
            ended: time(&span["endTimeUnixNano"]),
            attributes: attributes(span),
            status: span["status"]["code"].as_u64().unwrap_or(0),
        })
        .collect()
}

fn parent(sampled: &str) -> String {
    format!("traceparent\u{1}00-{TRACE}-{CLIENT_SPAN}-{sampled}\u{2}")
}

fn pull_request(topic: &TopicName, queue_offset: i64) -> RemotingCommand {
    let mut request = RemotingCommand::request(RequestCode::PULL_MESSAGE);
    let header = PullRequest {
        group: GroupName::parse("readers").unwrap(),
        topic: topic.clone(),
        queue_id: 0,
        queue_offset,
        max_msg_nums: 32,
        sys_flag: PullSysFlag::SUBSCRIPTION | PullSysFlag::SUSPEND,
        commit_offset: 0,
        suspend_timeout_millis: 20_000,
        subscription: Some("*".to_owned()),
        sub_version: 0,
        expression_type: None,
        max_msg_bytes: None,
        broker_name: None,
    };
    header.encode_into(&mut request.ext);
    request
}

/// Sends one message that is to be followed and one that is not, reads both, and returns what the collector got.
async fn follow(sample_ratio: f64, messages: &[&str]) -> (Vec<Span>, BTreeMap<String, String>) {
    let (addr, mut exported) = collector().await;
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.tracing.endpoint = Some(format!("http://{addr}"));
    options.tracing.sample_ratio = sample_ratio;
    let node = start(options, true).await.unwrap();
    let group = &node.shared.groups[0];
    group.led().await;
    let running = group.running().unwrap();
    running.group.serving().await;
    let topic = TopicName::parse("orders").unwrap();
    let config = TopicConfig::new(topic.clone(), 1, PERM_READ | PERM_WRITE);
    let put = Command::PutTopics { topics: vec![config], mode: PutMode::CreateOnly, stamped_ms: 1 };
    running.raft.propose_command(&put).await.unwrap();
    for (queue_offset, properties) in (0..).zip(messages) {
        // The pull is held until the message is there.
        let pulling = tokio::spawn({
            let (running, request) = (Arc::clone(&running), pull_request(&topic, queue_offset));
            async move { ask(&running, request).await }
        });
        while running.group.held_pulls() == 0 {
            tokio::task::yield_now().await;
        }
        send(&running, &topic, properties).await;
        let answer = pulling.await.unwrap();
        assert_eq!(answer.response_code(), ResponseCode::SUCCESS, "{answer:?}");
    }
    drop(running);
    stop(node).await;
    // What was collected was sent before the node had stopped.
    let (mut all, mut resource) = (Vec::new(), BTreeMap::new());
    while let Ok(export) = exported.try_recv() {
        resource = attributes(&export["resourceSpans"][0]["resource"]);
        all.extend(spans(&export));
    }
    (all, resource)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_path_of_a_message_is_told_under_the_span_of_its_client() {
    let (spans, resource) = follow(0.0, &[&parent("01"), &parent("00"), ""]).await;
    assert_eq!(resource["service.name"], "gantry");
    assert_eq!(resource["service.instance.id"], "n1");
    assert!(spans.iter().all(|span| span.trace_id == TRACE), "{spans:#?}");
    let mut roots: Vec<_> = spans.iter().filter(|span| span.parent == CLIENT_SPAN).collect();
    // Either may be over first.
    roots.sort_by(|a, b| a.name.cmp(&b.name));
    let [deliver, send] = roots[..] else { panic!("{spans:#?}") };
    assert_eq!((send.name.as_str(), deliver.name.as_str()), ("send orders", "deliver orders"));
    for (root, stages) in [
        (send, &["receive", "pack", "append", "replicate", "apply", "answer"][..]),
        (deliver, &["wait", "read", "answer"]),
    ] {
        assert_eq!((root.kind, root.status), (2, 0), "a server's, and well: {root:?}");
        let expected = [
            ("gantry.group", "broker-a"),
            ("gantry.node_id", "1"),
            ("messaging.destination.name", "orders"),
            ("messaging.destination.partition.id", "0"),
            ("messaging.rocketmq.queue_offset", "0"),
            ("messaging.system", "rocketmq"),
        ];
        for (name, value) in expected {
            assert_eq!(root.attributes.get(name).map(String::as_str), Some(value), "{name} of {root:?}");
        }
        let parts: Vec<_> = spans.iter().filter(|span| span.parent == root.span_id).collect();
        assert_eq!(parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>(), stages);
        for part in &parts {
            assert!(root.began <= part.began && part.began <= part.ended && part.ended <= root.ended, "{part:?}");
        }
        // One after the other, but for the append, which replication does not wait for.
        let in_order: Vec<_> = parts.iter().filter(|part| part.name != "append").collect();
        for pair in in_order.windows(2) {
            assert_eq!(pair[0].ended, pair[1].began, "{pair:?}");
        }
    }
    assert_eq!(send.attributes["gantry.entry.messages"], "1");
    assert!(send.attributes["gantry.log_index"].parse::<u64>().unwrap() > 0);
    assert_eq!(deliver.attributes["messaging.consumer.group.name"], "readers");
    // Nothing of those that are not followed.
    assert_eq!(spans.len(), 2 + 6 + 3, "{spans:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_silent_clients_are_followed_by_the_ratio() {
    let (spans, _) = follow(1.0, &["", &parent("00")]).await;
    let mut roots: Vec<_> = spans.iter().filter(|s| s.parent.is_empty()).map(|span| span.name.as_str()).collect();
    roots.sort_unstable();
    assert_eq!(roots, ["deliver orders", "send orders"]);
    assert!(spans.iter().all(|span| span.trace_id != TRACE && span.trace_id.len() == 32), "{spans:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_gone_is_in_nobodys_way() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.tracing.endpoint = Some("http://127.0.0.1:1".to_owned());
    options.tracing.sample_ratio = 1.0;
    let node = start(options, true).await.unwrap();
    let group = &node.shared.groups[0];
    group.led().await;
    let running = group.running().unwrap();
    running.group.serving().await;
    let topic = TopicName::parse("orders").unwrap();
    let config = TopicConfig::new(topic.clone(), 1, PERM_READ | PERM_WRITE);
    let put = Command::PutTopics { topics: vec![config], mode: PutMode::CreateOnly, stamped_ms: 1 };
    running.raft.propose_command(&put).await.unwrap();
    for _ in 0..10 {
        send(&running, &topic, "").await;
    }
    drop(running);
    stop(node).await;
}
