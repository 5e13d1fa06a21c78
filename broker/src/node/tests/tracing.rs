//! The path of a message as an OpenTelemetry collector sees it.

use std::collections::BTreeMap;

use bytes::BytesMut;
use protocol::header::{ANY_QUEUE, PopRequest, PullSysFlag};
use protocol::message::{BatchItem, encode_batch_item};
use protocol::{GroupName, RemotingCommand, ResponseCode, TopicName};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::metrics::{ask, send, send_body};
use super::retire::soon;
use super::*;
use crate::node::group::Running;
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

/// A node that follows messages, and a topic of one queue on it.
struct Traced {
    node: Node,
    running: Arc<Running>,
    topic: TopicName,
    _dir: tempfile::TempDir,
}

impl Traced {
    async fn start(endpoint: String, sample_ratio: f64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = options(dir.path());
        options.tracing.endpoint = Some(endpoint);
        options.tracing.sample_ratio = sample_ratio;
        options.broker.auto_create_topics = true;
        let node = start(options, true).await.unwrap();
        let group = &node.shared.groups[0];
        group.led().await;
        let running = group.running().unwrap();
        running.group.serving().await;
        let topic = TopicName::parse("orders").unwrap();
        let config = TopicConfig::new(topic.clone(), 1, PERM_READ | PERM_WRITE);
        let put = Command::PutTopics { topics: vec![config], mode: PutMode::CreateOnly, stamped_ms: 1 };
        running.raft.propose_command(&put).await.unwrap();
        Self { node, running, topic, _dir: dir }
    }

    async fn send(&self, properties: &str) {
        send(&self.running, &self.topic, properties).await;
    }

    /// Sends messages with these properties as a batch that has some itself.
    async fn send_batch(&self, properties: &str, messages: &[&str]) {
        let mut body = BytesMut::new();
        for &properties in messages {
            encode_batch_item(&BatchItem { flag: 0, body: b"one of many", properties }, &mut body).unwrap();
        }
        let code = RequestCode::SEND_BATCH_MESSAGE;
        send_body(&self.running, code, &self.topic, properties, body.to_vec()).await;
    }

    /// Asks for messages before they are there, has them `sent`, and waits for the answer.
    async fn ask_before(&self, request: RemotingCommand, sent: impl Future<Output = ()>) {
        let asking = tokio::spawn({
            let running = Arc::clone(&self.running);
            async move { ask(&running, request).await }
        });
        let held = async {
            while self.running.group.held_pulls() == 0 {
                tokio::task::yield_now().await;
            }
        };
        soon("it is held", held).await;
        sent.await;
        let answer = soon("an answer", asking).await.unwrap();
        assert_eq!(answer.response_code(), ResponseCode::SUCCESS, "{answer:?}");
    }

    fn pull(&self, queue_offset: i64) -> RemotingCommand {
        pull_request(&self.topic, queue_offset, 64, PullSysFlag::SUBSCRIPTION | PullSysFlag::SUSPEND)
    }

    /// Waits until what was sent can be read.
    async fn is_readable(&self) {
        let applied = self.running.state.applied_index().unwrap();
        soon("it can be read", self.running.store.wait_dispatched(applied)).await.unwrap();
    }

    /// Reads everything from an offset on, which is there.
    async fn read(&self, queue_offset: i64) {
        self.is_readable().await;
        let answer = ask(&self.running, self.pull(queue_offset)).await;
        assert_eq!(answer.response_code(), ResponseCode::SUCCESS, "{answer:?}");
    }

    async fn stop(self) {
        drop(self.running);
        soon("it stops", stop(self.node)).await;
    }
}

/// All spans that the collector was sent, and what they say of their node.
fn received(mut exported: mpsc::Receiver<Value>) -> (Vec<Span>, BTreeMap<String, String>) {
    let (mut all, mut resource) = (Vec::new(), BTreeMap::new());
    while let Ok(export) = exported.try_recv() {
        resource = attributes(&export["resourceSpans"][0]["resource"]);
        all.extend(spans(&export));
    }
    (all, resource)
}

/// What is told of all that a node does in `work`. What was collected was sent before it had stopped.
async fn told(sample_ratio: f64, work: impl AsyncFnOnce(&Traced)) -> (Vec<Span>, BTreeMap<String, String>) {
    let (addr, exported) = collector().await;
    let traced = Traced::start(format!("http://{addr}"), sample_ratio).await;
    work(&traced).await;
    traced.stop().await;
    received(exported)
}

/// Sends messages one by one, each to a reader that waits for it, and returns what the collector got.
async fn follow(sample_ratio: f64, messages: &[&str]) -> (Vec<Span>, BTreeMap<String, String>) {
    let work = async |traced: &Traced| {
        for (queue_offset, properties) in (0..).zip(messages) {
            traced.ask_before(traced.pull(queue_offset), traced.send(properties)).await;
        }
    };
    told(sample_ratio, work).await
}

/// The names of a span's parts, in order.
fn parts<'a>(spans: &'a [Span], of: &Span) -> Vec<&'a str> {
    spans.iter().filter(|span| span.parent == of.span_id).map(|span| span.name.as_str()).collect()
}

/// Name, parent and place in the queue of each message that is told, sorted.
fn messages(spans: &[Span]) -> Vec<(&str, &str, &str)> {
    let is_message = |span: &&Span| span.attributes.contains_key("messaging.system");
    let mut told: Vec<_> = spans
        .iter()
        .filter(is_message)
        .map(|span| {
            (span.name.as_str(), span.parent.as_str(), span.attributes["messaging.rocketmq.queue_offset"].as_str())
        })
        .collect();
    told.sort_unstable();
    told
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
        assert!(root.began < root.ended, "it took some time: {root:?}");
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
    assert_eq!(messages(&spans), [("deliver orders", "", "0"), ("send orders", "", "0")]);
    assert!(spans.iter().all(|span| span.trace_id != TRACE && span.trace_id.len() == 32), "{spans:#?}");
}

/// A `traceparent` under another span of the client.
fn parent_of(span: &str, sampled: &str) -> String {
    format!("traceparent\u{1}00-{TRACE}-{span}-{sampled}\u{2}")
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_batch_are_followed_by_what_each_of_them_says() {
    let (first, last, whole) = ("00000000000000a1", "00000000000000a4", "00000000000000aa");
    let batch = [parent_of(first, "01"), parent("00"), "KEYS\u{1}k\u{2}".to_owned(), parent_of(last, "01")];
    let batch: Vec<&str> = batch.iter().map(String::as_str).collect();
    // What a client says comes before the dice, which would have everything followed.
    let work = async |traced: &Traced| {
        traced.send_batch("", &batch).await;
        traced.read(0).await;
        traced.send_batch(&parent_of(whole, "01"), &[&parent("00"), ""]).await;
        traced.read(4).await;
        traced.send_batch("", &[&parent("00"), ""]).await;
        traced.send_batch("", &["", ""]).await;
    };
    let (spans, _) = told(1.0, work).await;
    let expected = [
        ("deliver orders", first, "0"),
        ("deliver orders", last, "3"),
        ("send orders", "", "8"),
        ("send orders", first, "0"),
        ("send orders", last, "3"),
        ("send orders", whole, "4"),
    ];
    assert_eq!(messages(&spans), expected, "{spans:#?}");
    let size = |parent: &str| -> u64 {
        let send = spans.iter().find(|span| span.name == "send orders" && span.parent == parent).unwrap();
        assert_eq!(parts(&spans, send), ["receive", "pack", "append", "replicate", "apply", "answer"]);
        assert!(["2", "4"].contains(&send.attributes["gantry.entry.messages"].as_str()), "{send:?}");
        send.attributes["messaging.message.envelope.size"].parse().unwrap()
    };
    // Its own bytes, not those of all.
    assert!(size(first) == size(last) && size(first) < size(whole), "{} {}", size(first), size(whole));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_few_messages_of_a_batch_and_of_an_answer_are_followed_and_not_all() {
    let one = parent("01");
    let many = vec![one.as_str(); 40];
    let work = async |traced: &Traced| {
        traced.send_batch("", &many).await;
        traced.read(0).await;
    };
    let (spans, _) = told(0.0, work).await;
    let count = |name: &str| spans.iter().filter(|span| span.name == name).count();
    assert_eq!((count("send orders"), count("deliver orders")), (32, 32));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_popped_is_told_with_the_log_that_gives_it() {
    let work = async |traced: &Traced| {
        let pop = || {
            let mut request = RemotingCommand::request(RequestCode::POP_MESSAGE);
            let header = PopRequest {
                group: GroupName::parse("workers").unwrap(),
                topic: traced.topic.clone(),
                queue_id: ANY_QUEUE,
                max_msg_nums: 32,
                invisible_time: 60_000,
                poll_time: 20_000,
                born_time: 0,
                init_mode: 0,
                expression_type: None,
                expression: None,
                order: false,
                attempt_id: None,
            };
            header.encode_into(&mut request.ext);
            request
        };
        traced.ask_before(pop(), traced.send(&parent("01"))).await;
        traced.send(&parent("01")).await;
        traced.is_readable().await;
        let answer = ask(&traced.running, pop()).await;
        assert_eq!(answer.response_code(), ResponseCode::SUCCESS, "{answer:?}");
        traced.ask_before(pop(), traced.send("")).await;
    };
    let (spans, _) = told(0.0, work).await;
    let deliveries: Vec<_> = spans.iter().filter(|span| span.name == "deliver orders").collect();
    let [held, quick] = deliveries[..] else { panic!("{spans:#?}") };
    for (delivery, queue_offset, stages) in
        [(held, "0", &["wait", "read", "take", "answer"][..]), (quick, "1", &["read", "take", "answer"])]
    {
        let attributes = &delivery.attributes;
        assert_eq!(attributes["messaging.consumer.group.name"], "workers");
        assert_eq!(attributes["messaging.destination.partition.id"], "0");
        assert_eq!(attributes["messaging.rocketmq.queue_offset"], queue_offset);
        assert_eq!((delivery.parent.as_str(), delivery.trace_id.as_str()), (CLIENT_SPAN, TRACE));
        assert_eq!(parts(&spans, delivery), stages, "{spans:#?}");
        let parts: Vec<_> = spans.iter().filter(|span| span.parent == delivery.span_id).collect();
        assert_eq!(parts[0].began, delivery.began);
        for pair in parts.windows(2) {
            assert!(pair[0].ended == pair[1].began && pair[1].ended <= delivery.ended, "{pair:?} of {delivery:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_that_creates_its_topic_is_followed_too() {
    let work = async |traced: &Traced| {
        let topic = TopicName::parse("new").unwrap();
        send(&traced.running, &topic, &parent("01")).await;
    };
    let (spans, _) = told(0.0, work).await;
    assert_eq!(messages(&spans), [("send new", CLIENT_SPAN, "0")], "{spans:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_gone_or_silent_is_in_nobodys_way() {
    // Whoever connects waits in the queue of the listener for ever.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for addr in ["127.0.0.1:1".to_owned(), silent.local_addr().unwrap().to_string()] {
        let traced = Traced::start(format!("http://{addr}"), 1.0).await;
        for _ in 0..10 {
            traced.send("").await;
        }
        traced.stop().await;
    }
}
