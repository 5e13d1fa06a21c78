//! What a node says under `/metrics`, read by a parser that is not ours.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;

use prometheus_parse::{Sample, Scrape, Value};
use protocol::header::{PullSysFlag, SendRequest};
use protocol::{RemotingCommand, ResponseCode, TopicName};
use remoting::Responder;

use super::*;
use crate::node::group::Running;
use crate::processor::GroupHandler;
use crate::state_machine::command::PutMode;
use crate::state_machine::topic::{PERM_READ, PERM_WRITE};
use crate::state_machine::{Command, TopicConfig};

const TOPICS: usize = 7;
const NAMES_MAX: usize = 3;

pub(super) async fn ask(replica: &Running, request: RemotingCommand) -> RemotingCommand {
    let (answer, answered) = oneshot::channel();
    let responder = Responder::detached(&request, ([127, 0, 0, 1], 1).into(), move |got| drop(answer.send(got)));
    remoting::Handler::handle(&GroupHandler::new(replica.group.clone()), request, responder);
    retire::soon("an answer", answered).await.unwrap()
}

pub(super) async fn send(replica: &Running, topic: &TopicName, properties: &str) {
    send_body(replica, RequestCode::SEND_MESSAGE_V2, topic, properties, vec![b'x'; 100]).await;
}

/// Sends a message, or by the code of a batch its messages.
pub(super) async fn send_body(
    replica: &Running,
    code: RequestCode,
    topic: &TopicName,
    properties: &str,
    body: Vec<u8>,
) {
    let mut request = RemotingCommand::request(code).with_body(body);
    let header = SendRequest {
        producer_group: "producers",
        topic: topic.clone(),
        default_topic: "TBW102",
        default_topic_queue_nums: 1,
        queue_id: 0,
        sys_flag: 0,
        born_timestamp: 1,
        flag: 0,
        properties,
        reconsume_times: 0,
        unit_mode: false,
        batch: code == RequestCode::SEND_BATCH_MESSAGE,
        max_reconsume_times: None,
        broker_name: None,
    };
    header.encode_into(code, &mut request.ext);
    let answer = ask(replica, request).await;
    assert_eq!(answer.response_code(), ResponseCode::SUCCESS, "{answer:?}");
}

/// Reads one message from the beginning, and commits that offset 1 is next.
async fn pull(replica: &Running, topic: &TopicName) {
    for (queue_offset, sys_flag) in
        [(0, PullSysFlag::SUBSCRIPTION), (1, PullSysFlag::SUBSCRIPTION | PullSysFlag::COMMIT_OFFSET)]
    {
        let answer = ask(replica, pull_request(topic, queue_offset, 1, sys_flag)).await;
        assert_eq!(answer.response_code(), ResponseCode::SUCCESS, "{answer:?}");
    }
}

/// A node that has led a few topics for a moment, and what it says.
async fn scrape() -> (Node, tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.metrics.names_max = NAMES_MAX;
    let node = start(options, true).await.unwrap();
    let group = &node.shared.groups[0];
    group.led().await;
    let running = group.running().unwrap();
    running.group.serving().await;
    for number in 0..TOPICS {
        let topic = TopicName::parse(&format!("topic-{number}")).unwrap();
        let config = TopicConfig::new(topic.clone(), 1, PERM_READ | PERM_WRITE);
        let put = Command::PutTopics { topics: vec![config], mode: PutMode::CreateOnly, stamped_ms: 1 };
        running.raft.propose_command(&put).await.unwrap();
        send(&running, &topic, "").await;
        send(&running, &topic, "__SHARDINGKEY\u{1}k\u{2}").await;
        let applied = running.state.applied_index().unwrap();
        running.store.wait_dispatched(applied).await.unwrap();
        pull(&running, &topic).await;
    }
    running.group.flush_offsets().await;
    let mut metrics = MetricsText::default();
    node.shared.collect(&mut metrics);
    (node, dir, metrics.into_text())
}

fn running(node: &Node) -> Arc<Running> {
    node.shared.groups[0].running().unwrap()
}

/// Name, kind and help of each family, in the order of the text.
fn families(text: &str) -> Vec<(String, String, String)> {
    let mut families = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let help = line.strip_prefix("# HELP ").unwrap_or_else(|| panic!("no HELP where a family begins: {line}"));
        let (name, help) = help.split_once(' ').unwrap();
        let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).expect("its TYPE follows").to_owned();
        while let Some(sample) = lines.next_if(|line| !line.starts_with('#')) {
            let sample = sample.split(['{', ' ']).next().unwrap();
            let base = if kind == "histogram" {
                ["_bucket", "_sum", "_count"].iter().find_map(|suffix| sample.strip_suffix(suffix)).unwrap_or(sample)
            } else {
                sample
            };
            assert_eq!(base, name, "a sample stands in another family");
        }
        families.push((name.to_owned(), kind, help.to_owned()));
    }
    families
}

fn parse(text: &str) -> Vec<Sample> {
    Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap().samples
}

fn named<'a>(samples: &'a [Sample], name: &str, labels: &[(&str, &str)]) -> Vec<&'a Sample> {
    let fits = |sample: &&Sample| {
        sample.metric == name && labels.iter().all(|(label, value)| sample.labels.get(label) == Some(*value))
    };
    samples.iter().filter(fits).collect()
}

fn number(sample: &Sample) -> f64 {
    match sample.value {
        Value::Counter(value) | Value::Gauge(value) | Value::Untyped(value) => value,
        ref other => panic!("{other:?} is no number"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_parser_reads_what_is_exported_and_it_adds_up() {
    let (node, _dir, text) = scrape().await;
    let families = families(&text);
    let names: HashSet<_> = families.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names.len(), families.len(), "a family appears twice");
    let samples = parse(&text);
    let known: HashMap<_, _> = families.iter().map(|(name, kind, _)| (name.as_str(), kind.as_str())).collect();
    for sample in &samples {
        let kind = match sample.value {
            Value::Counter(_) => "counter",
            Value::Gauge(_) => "gauge",
            Value::Histogram(_) => "histogram",
            // This parser does not put the last two lines of a histogram to the others.
            Value::Untyped(_) if sample.metric.ends_with("_sum") || sample.metric.ends_with("_count") => continue,
            ref other => panic!("{}: {other:?}", sample.metric),
        };
        assert_eq!(known.get(sample.metric.as_str()), Some(&kind), "{}", sample.metric);
    }
    // No label value and no sample line twice.
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let series: HashSet<_> = lines.iter().map(|line| line.rsplit_once(' ').unwrap().0).collect();
    assert_eq!(series.len(), lines.len(), "a series appears twice");

    let total =
        |name: &str, labels: &[(&str, &str)]| named(&samples, name, labels).into_iter().map(number).sum::<f64>();
    let sent = (2 * TOPICS) as f64;
    assert_eq!(total("rocketmq_messages_in_total", &[("node_id", "broker-a")]), sent);
    assert_eq!(total("rocketmq_messages_in_total", &[("message_type", "fifo")]), TOPICS as f64);
    assert!(total("rocketmq_throughput_in_total", &[]) > 100.0 * sent);
    assert_eq!(total("rocketmq_messages_out_total", &[("node_id", "broker-a")]), sent, "each was pulled once");
    assert_eq!(total("rocketmq_consumer_lag_messages", &[]), TOPICS as f64, "one of two is committed");
    assert_eq!(total("rocketmq_group_diff", &[("cluster", "DefaultCluster")]), TOPICS as f64);
    assert_eq!(total("rocketmq_producer_offset", &[("broker", "broker-a")]), sent);
    assert_eq!(total("gantry_raft_has_leader", &[("group", "broker-a")]), 1.0);
    for (name, at_least) in [
        ("gantry_send_seconds", sent),
        ("gantry_commit_seconds", sent),
        ("gantry_apply_seconds", sent),
        ("gantry_log_sync_seconds", 1.0),
        ("gantry_pull_seconds", sent),
        ("rocketmq_message_size", sent),
        ("rocketmq_finish_message_latency", 0.0),
    ] {
        let label = if name.starts_with("gantry") { "group" } else { "node_id" };
        let [sample] = named(&samples, name, &[(label, "broker-a")])[..] else { panic!("{name} is not there once") };
        let Value::Histogram(buckets) = &sample.value else { panic!("{name} is no histogram") };
        assert!(buckets.is_sorted_by(|a, b| a.less_than < b.less_than && a.count <= b.count), "{name}: {buckets:?}");
        let last = buckets.last().unwrap();
        assert!(last.less_than.is_infinite() && last.count >= at_least, "{name}: {buckets:?}");
    }
    for (name, value) in [
        ("msg_put_total_today_now", sent),
        ("msg_gettotal_today_now", sent),
        ("putmessage_times_total", sent),
        ("put_message_size_total", total("rocketmq_throughput_in_total", &[])),
    ] {
        assert_eq!(total(&format!("rocketmq_brokeruntime_{name}"), &[("broker", "broker-a")]), value, "{name}");
    }
    let runtime = |name: &str| total(&format!("rocketmq_brokeruntime_{name}"), &[("broker", "broker-a")]);
    let of_node = |name: &str| total(name, &[("node_id", "broker-a")]);
    let of_group = |name: &str| total(name, &[("group", "broker-a")]);
    assert_eq!(runtime("put_message_average_size"), runtime("put_message_size_total") / sent);
    let (from, to) = (runtime("commitlog_minoffset"), runtime("commitlog_maxoffset"));
    assert_eq!(from, of_group("gantry_log_start_bytes"));
    assert!(to > from + runtime("put_message_size_total"), "{from} {to}");
    // The end of the log may not be seen by consumers yet, its beginning is.
    assert!(runtime("dispatch_behind_bytes") < to / 2.0);
    let (free, all) = (of_group("gantry_disk_free_bytes"), of_group("gantry_disk_total_bytes"));
    assert_eq!((runtime("commitlogdir_capacity_free"), runtime("commitlogdir_capacity_total")), (free, all));
    assert!((runtime("commitlog_disk_ratio") - (1.0 - free / all)).abs() < 1e-6);
    let known = running(&node).state.topic_count() as f64;
    assert_eq!((of_node("rocketmq_topic_number"), known >= TOPICS as f64), (known, true));
    assert_eq!(of_node("rocketmq_consumer_group_number"), running(&node).state.group_count() as f64);
    assert_ne!(of_node("rocketmq_consumer_group_number"), known);
    assert_eq!(of_node("rocketmq_broker_permission"), 6.0);
    assert!(of_node("rocketmq_throughput_out_total") > 100.0 * sent);
    for nothing in ["rocketmq_timing_messages", "rocketmq_half_messages", "rocketmq_consumer_inflight_messages"] {
        assert_eq!(of_node(nothing), 0.0, "{nothing}");
    }
    assert_eq!(of_node("rocketmq_consumer_ready_messages"), TOPICS as f64, "nothing is under way");
    assert_eq!(total("rocketmq_consumer_offset", &[("broker", "broker-a")]), TOPICS as f64, "one in each is consumed");
    assert!(named(&samples, "rocketmq_group_retrydiff", &[]).is_empty(), "there is no retry topic");
    let (lag, queueing) = ("rocketmq_consumer_lag_latency", "rocketmq_consumer_queueing_latency");
    assert_eq!(named(&samples, lag, &[]).len(), named(&samples, queueing, &[]).len());
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_bounded_and_the_rest_is_summed() {
    let (node, _dir, text) = scrape().await;
    let mut topics: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for sample in parse(&text) {
        let broker = sample.labels.get("node_id").or_else(|| sample.labels.get("broker"));
        if let Some(topic) = sample.labels.get("topic").filter(|_| broker == Some("broker-a")) {
            topics.entry(sample.metric).or_default().insert(topic.to_owned());
        }
    }
    assert!(topics.len() > 8, "{topics:?}");
    for (metric, topics) in &topics {
        assert!(topics.len() <= NAMES_MAX + 1, "{metric} names {topics:?}");
    }
    let summed = topics.iter().filter(|(_, topics)| topics.contains("(other)")).map(|(metric, _)| metric.as_str());
    let expected = [
        "rocketmq_consumer_inflight_messages",
        "rocketmq_consumer_lag_messages",
        "rocketmq_consumer_offset",
        "rocketmq_consumer_ready_messages",
        "rocketmq_group_diff",
        "rocketmq_message_accumulation",
        "rocketmq_messages_in_total",
        "rocketmq_messages_out_total",
        "rocketmq_producer_offset",
        "rocketmq_throughput_in_total",
        "rocketmq_throughput_out_total",
    ];
    assert_eq!(summed.collect::<Vec<_>>(), expected);
    stop(node).await;
}

/// `UPDATE_DOCS=1` writes the table anew.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_lists_what_is_exported() {
    let (node, _dir, text) = scrape().await;
    let mut rows: Vec<_> =
        families(&text).into_iter().map(|(name, kind, help)| format!("| `{name}` | {kind} | {help} |\n")).collect();
    rows.sort();
    let table = format!("| Metric | Kind | Meaning |\n| --- | --- | --- |\n{}", rows.concat());
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once("<!-- broker -->\n").expect("the mark before the table");
    let (shown, after) = rest.split_once("<!-- end -->").expect("the mark after the table");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let page = format!("{before}<!-- broker -->\n{table}<!-- end -->{after}");
        raft_store::durable::write_file(&path, page.as_bytes()).unwrap();
    } else {
        assert_eq!(shown, table, "UPDATE_DOCS=1 writes the table anew");
    }
    stop(node).await;
}
