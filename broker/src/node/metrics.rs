//! Everything a node says under `/metrics`.
//!
//! Three families of names: `gantry_` for Raft, log, disk and how long things take; `rocketmq_` as the brokers of
//! RocketMQ 5 have them, with their labels; and those of the older exporter for RocketMQ 4, which its dashboards ask
//! for. Counters are of this process and replica. What describes a group as a whole (lags, ends of topics, connections)
//! comes from the replica that leads, so that a sum over all nodes counts nothing twice.
//!
//! Topics and consumer groups are named up to `metrics.names_max`; see `processor::metrics`.

use std::sync::Arc;

use super::Shared;
use super::group::Running;
use crate::http::{Admin, GroupStatus, LogStatus, MetricsText, NodeStatus, ReplicaRole, collect_process};
use crate::processor::metrics::{Lag, OTHER, Runtime};

/// A replica that runs, and its broker name.
type Replica<'a> = (&'a str, Arc<Running>);

pub(super) fn collect(shared: &Shared, metrics: &mut MetricsText) {
    let status = shared.status();
    let groups = shared.groups.iter();
    let running: Vec<Replica<'_>> =
        groups.filter_map(|group| group.running().map(|running| (group.name(), running))).collect();
    node(&status, metrics);
    shared.refused_calls.collect(metrics);
    raft(&status, metrics);
    log(&status, &running, metrics);
    work(&running, metrics);
    let cluster = shared.options.cluster.name.as_str();
    messages(cluster, &running, metrics);
    broker(cluster, &status, &running, metrics);
    let leading: Vec<Leading<'_>> = running.iter().filter_map(Leading::of).collect();
    consumers(cluster, &leading, metrics);
    exporter(cluster, &status, &leading, metrics);
    collect_process(metrics);
}

fn node(status: &NodeStatus, metrics: &mut MetricsText) {
    metrics
        .gauge("gantry_build_info", "Always 1; what runs here.")
        .sample(&[("version", &status.version), ("node", &status.node), ("cluster", &status.cluster)], 1);
    metrics.gauge("gantry_ready", "Whether every group on this node has a leader.").sample(&[], u8::from(status.ready));
    metrics.gauge("gantry_uptime_seconds", "Since the process started.").sample(&[], status.uptime_ms / 1_000);
    metrics
        .gauge("gantry_retention_clock_ahead", "Whether nothing is dropped for its age: the clock ran ahead.")
        .sample(&[], u8::from(status.retention.clock_ahead_ms.is_some()));
    let mut name_servers = metrics.gauge("gantry_name_server_registered", "Whether a name server is up to date.");
    for server in &status.name_servers {
        name_servers.sample(&[("address", &server.addr)], u8::from(server.registered));
    }
}

/// One gauge with a value for each replica that has one.
fn by_group(
    status: &NodeStatus,
    metrics: &mut MetricsText,
    name: &str,
    help: &str,
    value: impl Fn(&GroupStatus) -> Option<u64>,
) {
    let mut family = metrics.gauge(name, help);
    for group in &status.groups {
        if let Some(value) = value(group) {
            family.sample(&[("group", &group.name)], value);
        }
    }
}

fn raft(status: &NodeStatus, metrics: &mut MetricsText) {
    let mut gauge =
        |name: &str, help: &str, value: fn(&GroupStatus) -> Option<u64>| by_group(status, metrics, name, help, value);
    gauge("gantry_raft_is_leader", "Whether this replica leads and answers clients.", |group| {
        Some(u64::from(group.gates_open))
    });
    gauge("gantry_raft_has_leader", "Whether this replica leads or follows a leader.", |group| {
        Some(u64::from(matches!(group.role, ReplicaRole::Leader | ReplicaRole::Follower)))
    });
    gauge("gantry_raft_term", "The newest term known.", |group| Some(group.term));
    gauge("gantry_raft_last_index", "Last entry in the log.", |group| group.last);
    gauge("gantry_raft_flushed_index", "Last entry on this disk.", |group| group.flushed);
    gauge("gantry_raft_committed_index", "Last entry known to be committed.", |group| group.committed);
    gauge("gantry_raft_applied_index", "Last entry applied.", |group| group.applied);
    gauge("gantry_raft_snapshot_index", "The entry that a new replica starts from.", |group| {
        group.log.as_ref()?.snapshot
    });
    gauge("gantry_raft_voters", "Members that vote.", |group| {
        Some(group.members.iter().filter(|member| member.voter).count() as u64)
    });
    gauge("gantry_redundancy_reduced", "Whether this replica has lost its identity and does not vote yet.", |group| {
        Some(u64::from(group.returning))
    });
    gauge("gantry_group_failed", "Whether this replica does not run and waits for a person.", |group| {
        Some(u64::from(group.role == ReplicaRole::Failed))
    });
    let mut behind =
        metrics.gauge("gantry_raft_member_lag_entries", "Entries that a member lacks, as its leader knows.");
    for group in status.groups.iter().filter(|group| group.role == ReplicaRole::Leader) {
        for member in &group.members {
            if let (Some(last), Some(matched)) = (group.last, member.matched) {
                let labels = [("group", group.name.as_str()), ("member", member.node.as_str())];
                behind.sample(&labels, last.saturating_sub(matched));
            }
        }
    }
}

fn log(status: &NodeStatus, running: &[Replica<'_>], metrics: &mut MetricsText) {
    let mut gauge =
        |name: &str, help: &str, value: fn(&GroupStatus) -> Option<u64>| by_group(status, metrics, name, help, value);
    gauge("gantry_disk_total_bytes", "Used and free bytes of the disk with the log.", |group| {
        Some(group.disk.as_ref()?.total_bytes)
    });
    gauge("gantry_disk_free_bytes", "Free bytes of the disk with the log.", |group| {
        Some(group.disk.as_ref()?.free_bytes)
    });
    gauge("gantry_disk_refuses", "Whether messages would be refused because the disk is full.", |group| {
        Some(u64::from(group.disk.as_ref()?.refusal.is_some()))
    });
    gauge("gantry_derived_files_wait_for_room", "Whether derived files wait for room on the disk.", |group| {
        Some(u64::from(group.derived_files_wait.is_some()))
    });
    gauge("gantry_replay_left_bytes", "What a start still has to apply of the log; 0: nothing.", |group| {
        Some(group.replay.as_ref().map_or(0, |replay| replay.left_bytes))
    });
    gauge("gantry_replay_messages_per_second", "How fast a start applies the log again, while it does.", |group| {
        Some(group.replay.as_ref()?.messages_per_second)
    });
    gauge("gantry_log_first_index", "First entry in the log.", |group| held(group, |log| log.first));
    gauge("gantry_log_start_bytes", "Position of the first record in the log.", |group| {
        held(group, |log| Some(log.start_position))
    });
    gauge("gantry_log_segments", "Segment files.", |group| held(group, |log| Some(log.segments)));
    gauge("gantry_log_file_bytes", "What segment files take on the disk.", |group| {
        held(group, |log| Some(log.file_bytes))
    });
    gauge("gantry_log_earliest_message_seconds", "When the first message in the log was stored.", |group| {
        held(group, |log| u64::try_from(log.earliest_message_ms? / 1000).ok())
    });
    gauge("gantry_log_damaged_ranges", "Damaged ranges that are not repaired yet.", |group| {
        Some(group.damaged.len() as u64)
    });
    let mut counter = |name: &str, help: &str, value: fn(&Running) -> u64| {
        let mut family = metrics.counter(name, help);
        for (name, running) in running {
            family.sample(&[("group", *name)], value(running));
        }
    };
    counter("gantry_log_end_bytes", "Position of the end of the log.", |r| r.log.watermarks().end.get());
    counter("gantry_retention_dropped_segments_total", "Segments dropped by retention.", |r| {
        r.retention.figures().dropped
    });
    counter("gantry_log_repaired_ranges_total", "Damaged ranges fetched from other members.", |r| {
        r.repairer.status().repaired_ranges
    });
    counter("gantry_log_repaired_bytes_total", "Their bytes.", |r| r.repairer.status().repaired_bytes);
    counter("gantry_scrub_bytes_total", "Bytes of sealed segments re-read from the disk.", |r| {
        r.log.scrub().unwrap_or_default().bytes
    });
    counter("gantry_scrub_segments_total", "Sealed segments compared with their digests.", |r| {
        r.log.scrub().unwrap_or_default().segments
    });
    counter("gantry_scrub_faults_total", "Damaged places found by scrubbing.", |r| {
        r.log.scrub().unwrap_or_default().faults
    });
    counter("gantry_digests_compared_total", "Sealed segments compared with another node.", |r| {
        r.comparer.compared().segments
    });
    counter("gantry_log_cuts_total", "Whether this start cut off an end of the log that was not whole.", |r| {
        u64::from(r.recovered.has_cut)
    });
    counter(
        "gantry_log_disk_lost_flushed_total",
        "Whether the disk has lost what it said it had, seen at this start.",
        |r| u64::from(r.recovered.disk_lost_flushed),
    );
    counter("gantry_starts_total", "How often this replica was started.", |r| r.recovered.start_counter);
    let mut differs = metrics.gauge("gantry_digest_differences", "Chunks of the log that another node has otherwise.");
    for (name, running) in running {
        differs.sample(&[("group", *name)], running.comparer.compared().differences.len());
    }
    let mut passes = metrics.gauge("gantry_scrub_last_pass_timestamp_seconds", "When the last complete pass ended.");
    for (name, running) in running {
        if let Some(ended) = running.log.scrub().and_then(|scrub| scrub.last_pass_ms) {
            passes.sample(&[("group", *name)], ended / 1_000);
        }
    }
}

fn held(group: &GroupStatus, value: fn(&LogStatus) -> Option<u64>) -> Option<u64> {
    group.log.as_ref().and_then(value)
}

/// How long things take, and what is under way.
fn work(running: &[Replica<'_>], metrics: &mut MetricsText) {
    let mut times = |name: &str, help: &str, value: fn(&Running) -> raft_store::TimeHistogram| {
        let mut family = metrics.histogram(name, help);
        for (name, running) in running {
            family.times(&[("group", *name)], &value(running));
        }
    };
    times("gantry_send_seconds", "From the request of a producer to its answer, on the leader.", |r| {
        r.group.send_times()
    });
    times(
        "gantry_commit_seconds",
        "From the proposal of an entry with messages until a majority has it and it is applied, on the leader.",
        |r| r.sequencer.commit_times(),
    );
    times("gantry_log_sync_seconds", "Time that each sync of the log took.", |r| r.log.sync_times());
    times("gantry_apply_seconds", "Time that applying each entry took.", |r| r.state.apply_times());
    times("gantry_pull_seconds", "From a pull that could be answered, or was woken, to its answer.", |r| {
        r.group.pull_times()
    });
    let mut failed = metrics.counter("gantry_failed_sends_total", "Sends that were answered with an error.");
    for (name, running) in running {
        failed.sample(&[("group", *name)], running.group.failed_sends());
    }
    let mut gauge = |name: &str, help: &str, value: fn(&Running) -> usize| {
        let mut family = metrics.gauge(name, help);
        for (name, running) in running {
            family.sample(&[("group", *name)], value(running));
        }
    };
    gauge("gantry_bytes_in_flight", "Bytes accepted and not yet answered.", |r| r.sequencer.bytes_in_flight());
    gauge("gantry_held_pulls", "Pulls that wait for messages.", |r| r.group.held_pulls());
    gauge("gantry_half_messages", "Messages whose transaction is pending.", |r| r.group.pending_transactions());
    gauge("gantry_popped_messages", "Messages popped and not acknowledged yet.", |r| r.group.popped_messages());
    let mut clients = metrics.gauge("gantry_clients", "Connected clients, once in each of their groups.");
    for (name, running) in running {
        let (producers, consumers) = running.group.client_counts();
        clients.sample(&[("group", *name), ("kind", "producer")], producers);
        clients.sample(&[("group", *name), ("kind", "consumer")], consumers);
    }
    let mut delayed = metrics.gauge("gantry_delayed_messages", "Messages that wait for their time.");
    for (name, running) in running {
        let waiting = running.group.delayed_messages();
        delayed.sample(&[("group", *name), ("kind", "level")], waiting.on_levels);
        delayed.sample(&[("group", *name), ("kind", "timer")], waiting.timers);
    }
    let mut overdue = metrics.gauge(
        "gantry_timer_overdue_seconds",
        "For how long a message has been due that waited for a time of its own, and is not delivered yet.",
    );
    for (name, running) in running {
        overdue.sample(&[("group", name)], running.group.delayed_messages().timer_overdue_ms as f64 / 1_000.0);
    }
}

/// The labels that RocketMQ puts on everything: cluster, kind of node, and the broker's name.
fn of<'a>(cluster: &'a str, broker: &'a str) -> [(&'a str, &'a str); 3] {
    [("cluster", cluster), ("node_type", "broker"), ("node_id", broker)]
}

fn is_system(topic: &protocol::TopicName) -> &'static str {
    if topic.is_system() { "true" } else { "false" }
}

/// What went in and out, by topic.
fn messages(cluster: &str, running: &[Replica<'_>], metrics: &mut MetricsText) {
    let put: Vec<_> = running.iter().map(|(name, r)| (*name, r.group.put_by_topic())).collect();
    for (name, help) in [
        ("rocketmq_messages_in_total", "Messages that producers put into topics."),
        ("rocketmq_throughput_in_total", "Bytes that they take in the log."),
    ] {
        let mut family = metrics.counter(name, help);
        for (broker, total) in put.iter().flat_map(|(name, all)| all.iter().map(move |total| (*name, total))) {
            let topic = total.topic.as_deref().unwrap_or(OTHER);
            let system = total.topic.as_ref().map_or("false", is_system);
            let [cluster, node_type, node_id] = of(cluster, broker);
            let kind = ("message_type", total.kind.word());
            let value = if name == "rocketmq_messages_in_total" { total.messages } else { total.bytes };
            family.sample(&[cluster, node_type, node_id, ("topic", topic), kind, ("is_system", system)], value);
        }
    }
    let got: Vec<_> = running.iter().map(|(name, r)| (*name, r.group.got_by_reader())).collect();
    for (name, help) in [
        ("rocketmq_messages_out_total", "Messages given to consumers, those given again included."),
        ("rocketmq_throughput_out_total", "Bytes given to consumers."),
    ] {
        let mut family = metrics.counter(name, help);
        for (broker, total) in got.iter().flat_map(|(name, all)| all.iter().map(move |total| (*name, total))) {
            let (topic, group) = total.of.as_ref().map_or((OTHER, OTHER), |(topic, group)| (topic, group));
            let retry = total.of.as_ref().is_some_and(|(topic, _)| topic.is_retry());
            let system = total.of.as_ref().map_or("false", |(topic, _)| is_system(topic));
            let [cluster, node_type, node_id] = of(cluster, broker);
            let labels = [
                cluster,
                node_type,
                node_id,
                ("topic", topic),
                ("consumer_group", group),
                ("is_retry", if retry { "true" } else { "false" }),
                ("is_system", system),
            ];
            let value = if name == "rocketmq_messages_out_total" { total.messages } else { total.bytes };
            family.sample(&labels, value);
        }
    }
    let mut dead =
        metrics.counter("rocketmq_send_to_dlq_messages_total", "Messages moved to the dead letters of a group.");
    for (broker, total) in put.iter().flat_map(|(name, all)| all.iter().map(move |total| (*name, total))) {
        let Some(topic) = total.topic.as_ref().filter(|topic| topic.is_dlq()) else { continue };
        let group = topic.as_str().trim_start_matches("%DLQ%");
        let [cluster, node_type, node_id] = of(cluster, broker);
        dead.sample(&[cluster, node_type, node_id, ("topic", topic), ("consumer_group", group)], total.messages);
    }
    let mut sizes = metrics.histogram("rocketmq_message_size", "Bytes of messages in the log.");
    for (broker, running) in running {
        let seen = running.group.sizes();
        let at_most = seen.at_most.iter().map(|(bound, count)| (*bound as f64, *count));
        sizes.buckets(&of(cluster, broker), at_most, seen.count, seen.sum as f64);
    }
    let mut finished = metrics.histogram(
        "rocketmq_finish_message_latency",
        "Seconds from the birth of a transaction's message until it was committed.",
    );
    for (broker, running) in running {
        let seen = running.group.commit_seconds();
        let at_most = seen.at_most.iter().map(|(bound, count)| (*bound as f64, *count));
        finished.buckets(&of(cluster, broker), at_most, seen.count, seen.sum as f64);
    }
    let mut committed = metrics.counter("rocketmq_commit_messages_total", "Transactions committed.");
    for (broker, running) in running {
        committed.sample(&of(cluster, broker), running.group.transaction_totals().0);
    }
    let mut rolled_back = metrics.counter("rocketmq_rollback_messages_total", "Transactions rolled back.");
    for (broker, running) in running {
        rolled_back.sample(&of(cluster, broker), running.group.transaction_totals().1);
    }
}

/// What RocketMQ says about a broker as a whole.
fn broker(cluster: &str, status: &NodeStatus, running: &[Replica<'_>], metrics: &mut MetricsText) {
    let mut size = metrics.gauge("rocketmq_storage_size", "What segment files take on the disk.");
    for group in &status.groups {
        if let Some(log) = &group.log {
            let [cluster, node_type, node_id] = of(cluster, &group.name);
            let (kind, medium) = (("storage_type", "local"), ("storage_medium", "disk"));
            size.sample(&[cluster, node_type, node_id, kind, medium], log.file_bytes);
        }
    }
    let mut reserved =
        metrics.gauge("rocketmq_storage_message_reserve_time", "Age of the oldest message, in milliseconds.");
    let now_ms = crate::processor::now().wall_ms;
    for group in &status.groups {
        if let Some(earliest) = group.log.as_ref().and_then(|log| log.earliest_message_ms) {
            reserved.sample(&of(cluster, &group.name), now_ms.saturating_sub(earliest).max(0));
        }
    }
    let mut gauge = |name: &str, help: &str, value: fn(&Running) -> u64| {
        let mut family = metrics.gauge(name, help);
        for (broker, running) in running {
            family.sample(&of(cluster, broker), value(running));
        }
    };
    gauge("rocketmq_storage_flush_behind_bytes", "Bytes of the log that are not known to be on this disk.", |r| {
        let marks = r.log.watermarks();
        marks.end.get().saturating_sub(marks.flushed_end.get())
    });
    gauge("rocketmq_storage_dispatch_behind_bytes", "Committed bytes of the log that consumers do not see yet.", |r| {
        r.log.watermarks().committed_end.get().saturating_sub(r.store.physical_end())
    });
    gauge("rocketmq_broker_permission", "What the broker allows: 2 writing, 4 reading, 6 both.", |r| {
        u64::from(r.group.permission())
    });
    gauge("rocketmq_half_messages", "Messages whose transaction is pending.", |r| {
        r.group.pending_transactions() as u64
    });
    gauge("rocketmq_timing_messages", "Messages that wait for a time of their own.", |r| {
        r.group.delayed_messages().timers
    });
    gauge("rocketmq_topic_number", "Topics.", |r| r.state.topic_count() as u64);
    gauge("rocketmq_consumer_group_number", "Consumer groups.", |r| r.state.group_count() as u64);
    let mut producers = metrics.gauge("rocketmq_producer_connections", "Producers, once in each of their groups.");
    for (broker, running) in running {
        for kind in running.group.producer_kinds() {
            let [cluster, node_type, node_id] = of(cluster, broker);
            let (language, version) = (kind.language.to_lowercase(), kind.version.as_str());
            let labels = [cluster, node_type, node_id, ("language", language.as_str()), ("version", version)];
            producers.sample(&labels, kind.count);
        }
    }
}

/// A replica that serves as leader, and how far behind its consumers are.
struct Leading<'a> {
    name: &'a str,
    running: &'a Running,
    lags: Vec<Lag>,
}

impl<'a> Leading<'a> {
    fn of(replica: &'a Replica<'_>) -> Option<Self> {
        let (name, running) = replica;
        running.group.serves().then(|| Self { name, running, lags: running.group.lags() })
    }

    /// Topic and group of each lag, or the word for all others.
    fn named(&self) -> impl Iterator<Item = (&str, &str, bool, &Lag)> {
        self.lags.iter().map(|lag| match &lag.of {
            Some((topic, group)) => (topic.as_str(), group.as_str(), topic.is_retry(), lag),
            None => (OTHER, OTHER, false, lag),
        })
    }
}

/// How far consumers are.
fn consumers(cluster: &str, leading: &[Leading<'_>], metrics: &mut MetricsText) {
    let mut connected = metrics.gauge("rocketmq_consumer_connections", "Members of consumer groups.");
    for leader in leading {
        for kind in leader.running.group.consumer_kinds() {
            let [cluster, node_type, node_id] = of(cluster, leader.name);
            let language = kind.language.to_lowercase();
            let system = kind.group.as_ref().is_some_and(|group| group.is_system());
            let labels = [
                cluster,
                node_type,
                node_id,
                ("consumer_group", kind.group.as_deref().unwrap_or(OTHER)),
                ("language", language.as_str()),
                ("version", kind.version.as_str()),
                ("consume_mode", kind.consume_mode),
                ("is_system", if system { "true" } else { "false" }),
            ];
            connected.sample(&labels, kind.count);
        }
    }
    let mut gauge = |name: &str, help: &str, value: fn(&Lag) -> Option<u64>| {
        let mut family = metrics.gauge(name, help);
        for leader in leading {
            for (topic, group, retry, lag) in leader.named() {
                let Some(value) = value(lag) else { continue };
                let [cluster, node_type, node_id] = of(cluster, leader.name);
                let retry = ("is_retry", if retry { "true" } else { "false" });
                let labels = [cluster, node_type, node_id, ("topic", topic), ("consumer_group", group), retry];
                family.sample(&labels, value);
            }
        }
    };
    gauge("rocketmq_consumer_lag_messages", "Messages that a group has not consumed.", |lag| Some(lag.messages));
    gauge("rocketmq_consumer_inflight_messages", "Messages taken in POP mode and not acknowledged.", |lag| {
        Some(lag.in_flight)
    });
    gauge("rocketmq_consumer_ready_messages", "Messages that a group was never given.", |lag| {
        Some(lag.messages.saturating_sub(lag.in_flight))
    });
    gauge(
        "rocketmq_consumer_lag_latency",
        "Age of the oldest message that a group has not consumed, in milliseconds, of the hundred furthest behind.",
        |lag| match lag.waits_ms {
            Some(waits_ms) => u64::try_from(waits_ms).ok(),
            None => (lag.messages == 0).then_some(0),
        },
    );
    gauge(
        "rocketmq_consumer_queueing_latency",
        "Age of the oldest message that a group was never given, in milliseconds, of the hundred furthest behind.",
        |lag| match lag.queues_ms {
            Some(queues_ms) => u64::try_from(queues_ms).ok(),
            None => (lag.messages == lag.in_flight).then_some(0),
        },
    );
}

/// What the exporter for RocketMQ 4 calls these things.
fn exporter(cluster: &str, status: &NodeStatus, leading: &[Leading<'_>], metrics: &mut MetricsText) {
    let mut put = metrics.gauge("rocketmq_broker_tps", "Messages put a second, over the last minute.");
    for leader in leading {
        put.sample(&[("cluster", cluster), ("broker", leader.name)], leader.running.group.rates().0);
    }
    let mut got = metrics.gauge("rocketmq_broker_qps", "Messages given a second, over the last minute.");
    for leader in leading {
        got.sample(&[("cluster", cluster), ("broker", leader.name)], leader.running.group.rates().1);
    }
    let ends: Vec<_> = leading.iter().map(|leader| (leader, leader.running.group.topic_ends())).collect();
    let mut tps = metrics.gauge("rocketmq_producer_tps", "Messages put into a topic a second, over the last minute.");
    for (leader, ends) in &ends {
        for topic in ends.iter().filter_map(|end| end.topic.as_ref()) {
            let labels = [("cluster", cluster), ("broker", leader.name), ("topic", topic.as_str())];
            tps.sample(&labels, leader.running.group.put_rate(topic).0);
        }
    }
    let mut sizes =
        metrics.gauge("rocketmq_producer_message_size", "Bytes put into a topic a second, over the last minute.");
    for (leader, ends) in &ends {
        for topic in ends.iter().filter_map(|end| end.topic.as_ref()) {
            let labels = [("cluster", cluster), ("broker", leader.name), ("topic", topic.as_str())];
            sizes.sample(&labels, leader.running.group.put_rate(topic).1);
        }
    }
    for (name, help, prefix) in [
        ("rocketmq_topic_retry_offset", "Ends of the queues of a group's retry topic, added together.", "%RETRY%"),
        ("rocketmq_topic_dlq_offset", "Ends of the queues of a group's dead letters, added together.", "%DLQ%"),
    ] {
        let mut family = metrics.gauge(name, help);
        for (leader, ends) in &ends {
            for end in ends {
                let Some(group) = end.topic.as_ref().and_then(|topic| topic.as_str().strip_prefix(prefix)) else {
                    continue;
                };
                family.sample(&[("cluster", cluster), ("broker", leader.name), ("group", group)], end.end);
            }
        }
    }
    let mut members = metrics.gauge("rocketmq_group_count", "Members of a consumer group.");
    for leader in leading {
        for (group, count) in leader.running.group.consumer_counts() {
            let group = group.as_deref().unwrap_or(OTHER);
            members.sample(&[("cluster", cluster), ("broker", leader.name), ("group", group)], count);
        }
    }
    let mut offsets = metrics.gauge("rocketmq_producer_offset", "Ends of a topic's queues, added together.");
    for (leader, ends) in &ends {
        for end in ends {
            let topic = end.topic.as_deref().unwrap_or(OTHER);
            offsets.sample(&[("cluster", cluster), ("broker", leader.name), ("topic", topic)], end.end);
        }
    }
    let mut by_reader = |name: &str, help: &str, value: &dyn Fn(&Leading<'_>, &Lag) -> Option<f64>| {
        let mut family = metrics.gauge(name, help);
        for leader in leading {
            for (topic, group, _, lag) in leader.named() {
                let labels = [("cluster", cluster), ("broker", leader.name), ("topic", topic), ("group", group)];
                if let Some(value) = value(leader, lag) {
                    family.sample(&labels, value);
                }
            }
        }
    };
    by_reader(
        "rocketmq_consumer_tps",
        "Messages of a topic given to a group a second, over the last minute.",
        &|leader, lag| lag.of.as_ref().map(|(topic, group)| leader.running.group.got_rate(topic, group).0),
    );
    by_reader(
        "rocketmq_consumer_message_size",
        "Bytes of a topic given to a group a second, over the last minute.",
        &|leader, lag| lag.of.as_ref().map(|(topic, group)| leader.running.group.got_rate(topic, group).1),
    );
    by_reader("rocketmq_group_retrydiff", "Messages of its retry topic that a group has not consumed.", &|_, lag| {
        lag.of.as_ref().filter(|(topic, _)| topic.is_retry()).map(|_| lag.messages as f64)
    });
    by_reader("rocketmq_consumer_offset", "Offsets committed in a topic's queues, added together.", &|_, lag| {
        Some(lag.committed as f64)
    });
    for name in ["rocketmq_group_diff", "rocketmq_message_accumulation"] {
        by_reader(name, "Messages that a group has not consumed.", &|_, lag| Some(lag.messages as f64));
    }
    by_reader(
        "rocketmq_group_get_latency_by_storetime",
        "Age of the oldest message that a group has not consumed, in milliseconds.",
        &|_, lag| lag.waits_ms.map(|waits_ms| waits_ms as f64).or_else(|| (lag.messages == 0).then_some(0.0)),
    );
    runtime(cluster, status, leading, metrics);
    let serves = |group: &&GroupStatus| leading.iter().any(|leader| leader.name == group.name);
    let mut used = metrics.gauge("rocketmq_brokeruntime_commitlog_disk_ratio", "Used part of the disk with the log.");
    for group in status.groups.iter().filter(serves) {
        if let Some(disk) = group.disk.as_ref().filter(|disk| disk.total_bytes > 0) {
            let free = disk.free_bytes as f64 / disk.total_bytes as f64;
            used.sample(&[("cluster", cluster), ("broker", &group.name)], 1.0 - free);
        }
    }
}

/// What the exporter reads from the table that a broker shows to tools.
fn runtime(cluster: &str, status: &NodeStatus, leading: &[Leading<'_>], metrics: &mut MetricsText) {
    let figures: Vec<(&Leading<'_>, Runtime)> =
        leading.iter().map(|leader| (leader, leader.running.group.runtime())).collect();
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&Leading<'_>, &Runtime) -> Option<f64>| {
        let mut family = metrics.gauge(&format!("rocketmq_brokeruntime_{name}"), help);
        for (leader, figures) in &figures {
            if let Some(value) = value(leader, figures) {
                family.sample(&[("cluster", cluster), ("broker", leader.name)], value);
            }
        }
    };
    let mut rates = |name: &str, help: &str, rate: fn(&Runtime) -> [f64; 3]| {
        for (at, seconds) in [10, 60, 600].into_iter().enumerate() {
            let help = format!("{help}, over the last {seconds} s.");
            gauge(&format!("{name}_tps{seconds}"), &help, &|_, figures| Some(rate(figures)[at]));
        }
    };
    rates("put", "Messages put a second", |figures| figures.put);
    rates("gettransfered", "Messages given a second", |figures| figures.got);
    rates("getfound", "Pulls a second that found something", |figures| figures.found);
    rates("getmiss", "Pulls a second that found nothing", |figures| figures.missed);
    rates("gettotal", "Pulls a second", |figures| figures.pulled);
    gauge("msg_put_total_today_now", "Messages put since the start.", &|_, figures| Some(figures.now.put as f64));
    gauge("msg_gettotal_today_now", "Messages given since the start.", &|_, figures| Some(figures.now.got as f64));
    for (at, day, words) in [(0, "yesterdaymorning", "yesterday"), (1, "todaymorning", "today")] {
        let help = |what: &str| format!("Messages {what} since the start, when {words} began, UTC.");
        gauge(&format!("msg_puttotal_{day}"), &help("put"), &|_, figures| Some(figures.mornings[at].put as f64));
        gauge(&format!("msg_gettotal_{day}"), &help("given"), &|_, figures| Some(figures.mornings[at].got as f64));
    }
    gauge("putmessage_times_total", "Messages put since the start.", &|_, figures| Some(figures.now.put as f64));
    gauge("put_message_size_total", "Bytes put since the start.", &|_, figures| Some(figures.put_bytes as f64));
    gauge("put_message_average_size", "Bytes of a message put, on average since the start.", &|_, figures| {
        Some(figures.put_bytes as f64 / figures.now.put.max(1) as f64)
    });
    gauge("commitlog_maxoffset", "Where the next message goes in the log.", &|leader, _| {
        Some(leader.running.store.physical_end() as f64)
    });
    gauge("commitlog_minoffset", "Where the log begins.", &|leader, _| {
        Some(leader.running.store.physical_start().ok()? as f64)
    });
    gauge("dispatch_behind_bytes", "Committed bytes of the log that consumers do not see yet.", &|leader, _| {
        let committed = leader.running.log.watermarks().committed_end.get();
        Some(committed.saturating_sub(leader.running.store.physical_end()) as f64)
    });
    let of = |leader: &Leading<'_>| status.groups.iter().find(|group| group.name == leader.name);
    gauge("earliest_message_timestamp", "When the oldest message was stored, in milliseconds.", &|leader, _| {
        Some(of(leader)?.log.as_ref()?.earliest_message_ms? as f64)
    });
    gauge("commitlogdir_capacity_total", "Bytes of the file system with the log.", &|leader, _| {
        Some(of(leader)?.disk.as_ref()?.total_bytes as f64)
    });
    gauge("commitlogdir_capacity_free", "Free bytes of the file system with the log.", &|leader, _| {
        Some(of(leader)?.disk.as_ref()?.free_bytes as f64)
    });
}
