//! A `broker.conf` of RocketMQ, read for people who move: what each line becomes here.
//!
//! `rocketmq_keys.txt` holds the names of all settings of a RocketMQ 5.3 broker, its store, its network side and its
//! authentication. Each gets one of four answers; a test goes through all of them.

use std::fmt;

use serde::Serialize;

/// Names of RocketMQ's settings, one a line, sorted.
const KNOWN: &str = include_str!("rocketmq_keys.txt");

/// What a line of a `broker.conf` becomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "becomes")]
pub enum Verdict {
    /// A setting here.
    Setting {
        /// Its table and key.
        key: String,
        /// The value, as TOML has it; none if it is not a value there.
        value: Option<String>,
        /// What differs, if anything does.
        note: &'static str,
    },
    /// Something that is set in another way.
    Elsewhere {
        /// How.
        how: &'static str,
    },
    /// Nothing: what it tunes is not there, or takes care of itself.
    NotNeeded {
        /// Why.
        why: &'static str,
    },
    /// Nothing, and it would be missed.
    Missing {
        /// What is not there.
        what: &'static str,
    },
    /// RocketMQ does not know it either.
    Unknown {
        /// The nearest name that it knows.
        nearest: Option<String>,
    },
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting { key, value: Some(value), note } => {
                write!(f, "{key} = {value}")?;
                if note.is_empty() { Ok(()) } else { write!(f, "  ({note})") }
            }
            Self::Setting { key, value: None, note } => write!(f, "{key}, but this is not a value for it {note}"),
            Self::Elsewhere { how } => f.write_str(how),
            Self::NotNeeded { why } => write!(f, "not needed: {why}"),
            Self::Missing { what } => write!(f, "no counterpart: {what}"),
            Self::Unknown { nearest: Some(nearest) } => {
                write!(f, "RocketMQ 5.3 does not know it; did it mean {nearest}?")
            }
            Self::Unknown { nearest: None } => f.write_str("RocketMQ 5.3 does not know it"),
        }
    }
}

/// One line of a `broker.conf`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Its number.
    pub line: usize,
    /// RocketMQ's name.
    pub key: String,
    /// Its value there.
    pub was: String,
    /// What it becomes.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Reads a `broker.conf`: a line each `key = value`, or a comment.
///
/// # Errors
/// The number of the first line that is neither, and what it says.
pub fn read(text: &str) -> Result<Vec<Line>, (usize, String)> {
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let (key, value) = line.split_once(['=', ':']).ok_or_else(|| (number, line.to_owned()))?;
        let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
        let verdict = verdict(&key, &value);
        lines.push(Line { line: number, key, was: value, verdict });
    }
    Ok(lines)
}

/// Whether a text is a `broker.conf` rather than TOML: it assigns, without quotes, a name that RocketMQ has.
#[must_use]
pub fn looks_like_one(text: &str) -> bool {
    let mut assigned =
        text.lines().filter_map(|line| Some(line.split_once('=')?.0.trim())).filter(|key| !key.is_empty());
    assigned.any(is_known)
}

fn is_known(key: &str) -> bool {
    KNOWN.lines().any(|known| known == key)
}

/// How a value is carried over.
type Carry = fn(&str) -> Option<String>;

/// RocketMQ's name, the key here, how the value is carried over, and what differs.
const SETTINGS: [(&str, &str, Carry, &str); 24] = [
    ("brokerClusterName", "cluster.name", text, ""),
    ("brokerName", "group.name", text, "a group; a node may hold a replica of several"),
    ("brokerIP1", "group.member.client_addr", text, "with the port, of this node's member"),
    ("listenPort", "group.client_listen", port, "each group has its own port"),
    ("namesrvAddr", "node.namesrv", addresses, ""),
    ("storePathRootDir", "node.data_dir", text, "a directory of its own: the files of RocketMQ are not read"),
    ("mappedFileSizeCommitLog", "storage.segment_bytes", bytes, ""),
    ("flushDiskType", "storage.flush", flush, "a majority, not one disk"),
    ("flushIntervalCommitLog", "storage.flush_interval", millis, "async only"),
    ("fileReservedTime", "retention.time", hours, ""),
    ("deleteWhen", "retention.delete_hours", delete_hours, "UTC"),
    ("cleanResourceInterval", "retention.check_interval", millis, ""),
    ("diskMaxUsedSpaceRatio", "storage.disk_early_percent", number, ""),
    ("diskSpaceCleanForciblyRatio", "storage.disk_forced_percent", percent, ""),
    ("diskSpaceWarningLevelRatio", "storage.disk_free_percent_min", free_percent, "what must stay free"),
    ("maxMessageSize", "broker.message_bytes_max", bytes, ""),
    ("autoCreateTopicEnable", "broker.auto_create_topics", flag, "false unless it is set"),
    ("autoCreateSubscriptionGroup", "broker.auto_create_groups", flag, ""),
    ("defaultTopicQueueNums", "broker.auto_create_queues", number, ""),
    ("messageDelayLevel", "broker.delay_levels", text, "at most 18, the same on all nodes"),
    ("timerMaxDelaySec", "broker.timer_delay_max", seconds, "40d at most"),
    ("transactionTimeOut", "broker.transaction_timeout", millis, ""),
    ("transactionCheckInterval", "broker.transaction_check_interval", millis, ""),
    ("transactionCheckMax", "broker.transaction_check_max", number, ""),
];

/// Set in another way.
const ELSEWHERE: [(&str, &str); 9] = [
    ("bindAddress", "group.client_listen, node.raft_listen and node.http_listen name their addresses"),
    ("brokerPermission", "run `mqadmin updateBrokerConfig -k brokerPermission`: it is changed while the broker runs"),
    ("slaveReadEnable", "run `mqadmin updateBrokerConfig -k slaveReadEnable`: it is changed while the broker runs"),
    ("metricsExporterType", "node.http_listen: /metrics is always there"),
    ("metricsPromExporterPort", "node.http_listen: /metrics is served there"),
    ("metricsPromExporterHost", "node.http_listen: /metrics is served there"),
    ("metricsOtelCardinalityLimit", "metrics.names_max bounds how many topics and groups are named"),
    ("preferredLeaderId", "group.preferred_leader, by the name of a node"),
    ("dLegerPeers", "the [[group.member]] tables: one a replica"),
];

/// What would be missed, by the beginning of its name.
const MISSING: [(&str, &str); 19] = [
    ("acl", "there is no access control yet: let the ports be reached from a trusted network only"),
    (
        "auth",
        "there is no authentication and no authorisation yet: let the ports be reached from a trusted network only",
    ),
    ("initAuthenticationUser", "there is no authentication yet"),
    ("innerClientAuthentication", "there is no authentication yet"),
    ("stateful", "there is no authentication yet"),
    ("userCache", "there is no authentication yet"),
    ("migrateAuth", "there is no authentication yet"),
    ("messageStorePlugIn", "no store can be plugged in, tiered storage is not there"),
    ("enableCompaction", "topics are not compacted by key"),
    ("compaction", "topics are not compacted by key"),
    ("maxOffsetMapSize", "topics are not compacted by key"),
    ("enableLmq", "there are no light message queues"),
    ("maxLmq", "there are no light message queues"),
    ("enableMultiDispatch", "a message goes to one queue"),
    ("readOnlyCommitLogStorePaths", "a node has one data directory; spread groups over nodes instead"),
    ("rejectTransactionMessage", "transactions cannot be switched off"),
    ("rejectPullConsumerEnable", "pulling cannot be forbidden"),
    ("metricsGrpcExporter", "metrics are pulled from /metrics, not pushed"),
    ("metricsLabel", "labels are added by whoever scrapes /metrics"),
];

/// What nobody needs here, by a part of its name; the first that fits counts.
const NOT_NEEDED: [(Part, &str, &str); 57] = [
    (Part::Is, "brokerId", "the leader is elected, so no replica is the master by its number"),
    (Part::Is, "brokerRole", "the leader is elected; every replica may lead"),
    (Part::Is, "brokerIP2", "replicas reach each other at group.member.raft_addr"),
    (Part::Starts, "ha", "replicas follow the leader's log; there is no second port and no master address"),
    (Part::Starts, "dLeger", "every group is a Raft group; its members stand in [[group.member]]"),
    (Part::Starts, "enableDLeger", "every group is a Raft group"),
    (Part::Contains, "ontroller", "leaders are elected by the replicas themselves"),
    (Part::Contains, "InSync", "a majority has every acknowledged message"),
    (Part::Contains, "inSync", "a majority has every acknowledged message"),
    (Part::Contains, "SyncStateSet", "a majority has every acknowledged message"),
    (Part::Is, "totalReplicas", "the members stand in [[group.member]]"),
    (Part::Contains, "lave", "replicas are equal; the leader is elected"),
    (Part::Contains, "RemoteEscape", "a leader is elected in place of a dead one"),
    (Part::Is, "brokerElectionPriority", "group.preferred_leader names the node that leads when it can"),
    (Part::Is, "asyncLearner", "replicas vote"),
    (Part::Contains, "MemberGroup", "members of a group know each other"),
    (Part::Contains, "EpochFile", "the log carries its terms itself"),
    (Part::Contains, "BrokerIdentity", "the identity is in the data directory"),
    (Part::Ends, "ThreadPoolNums", "requests need no thread pools"),
    (Part::Ends, "ThreadNum", "requests need no thread pools"),
    (Part::Contains, "Threads", "requests need no thread pools"),
    (Part::Ends, "QueueCapacity", "requests need no queues; what is in flight is bounded in bytes"),
    (Part::Starts, "waitTimeMills", "requests need no queues; a leader answers within its time or says that it cannot"),
    (Part::Contains, "astFail", "too much in flight is refused at once"),
    (Part::Starts, "server", "connections have fixed limits, see docs/operations.md"),
    (Part::Contains, "Poll", "requests that wait have fixed limits, see docs/operations.md"),
    (Part::Starts, "writeBuffer", "connections have fixed limits, see docs/operations.md"),
    (Part::Starts, "useEpoll", "the runtime uses what the system has"),
    (Part::Contains, "ransientStore", "there is one copy of the log, written in the page cache"),
    (Part::Contains, "ommitLog", "the log is written and read in one way, and checked at each start"),
    (Part::Contains, "onsumeQueue", "queues are derived from the log, and rebuilt if they differ"),
    (Part::Contains, "Cq", "queues are derived from the log, and rebuilt if they differ"),
    (Part::Contains, "CQ", "queues are derived from the log, and rebuilt if they differ"),
    (Part::Contains, "ogicQueue", "queues are derived from the log, and rebuilt if they differ"),
    (Part::Contains, "ogicMinOffset", "queues are derived from the log, and rebuilt if they differ"),
    (Part::Contains, "ispatch", "queues are derived from the log, and rebuilt if they differ"),
    (Part::Contains, "eput", "queues are derived from the log, and rebuilt if they differ"),
    (Part::Contains, "ndex", "the index is always built"),
    (Part::Contains, "HashSlot", "the index sizes itself"),
    (Part::Contains, "ocksdb", "metadata and offsets are entries of the log"),
    (Part::Contains, "ocksDB", "metadata and offsets are entries of the log"),
    (Part::Contains, "emTable", "metadata and offsets are entries of the log"),
    (Part::Contains, "imer", "timers are entries of the log and need no files of their own"),
    (Part::Contains, "chedule", "delayed messages are entries of the log and are delivered exactly once"),
    (Part::Contains, "elayOffset", "delivery and progress are one entry of the log"),
    (Part::Contains, "onsumerOffset", "offsets are entries of the log, within 100 ms"),
    (Part::Contains, "ransaction", "ends of transactions are entries of the log"),
    (Part::Starts, "pop", "what consumers in POP mode take and acknowledge are entries of the log"),
    (Part::Contains, "Pop", "what consumers in POP mode take and acknowledge are entries of the log"),
    (Part::Contains, "eviv", "what consumers in POP mode take and acknowledge are entries of the log"),
    (Part::Contains, "cold", "old segments are read apart from the mapped ones; storage.cold_read_rate bounds it"),
    (Part::Contains, "Cold", "old segments are read apart from the mapped ones; storage.cold_read_rate bounds it"),
    (Part::Contains, "wap", "old segments are not mapped"),
    (Part::Contains, "etrics", "/metrics is always there"),
    (Part::Contains, "tats", "counters are always kept"),
    (Part::Contains, "egister", "nodes tell every name server at once when a leader changes, and every 30 s"),
    (Part::Contains, "amesrv", "name servers are a list of addresses"),
];

/// Everything else: a switch or a size of how RocketMQ works inside.
const INSIDE: &str = "it tunes how RocketMQ works inside";

#[derive(Clone, Copy)]
enum Part {
    Is,
    Starts,
    Ends,
    Contains,
}

impl Part {
    fn fits(self, part: &str, key: &str) -> bool {
        match self {
            Self::Is => key == part,
            Self::Starts => key.starts_with(part),
            Self::Ends => key.ends_with(part),
            Self::Contains => key.contains(part),
        }
    }
}

fn verdict(key: &str, value: &str) -> Verdict {
    if let Some((_, target, carry, note)) = SETTINGS.iter().find(|(name, ..)| *name == key) {
        return Verdict::Setting { key: (*target).to_owned(), value: carry(value), note };
    }
    if let Some((_, how)) = ELSEWHERE.iter().find(|(name, _)| *name == key) {
        return Verdict::Elsewhere { how };
    }
    if !is_known(key) {
        let distances = KNOWN.lines().map(|known| (strsim::damerau_levenshtein(key, known), known));
        let nearest = distances.min().filter(|(far, _)| *far <= 1 + key.len() / 4);
        return Verdict::Unknown { nearest: nearest.map(|(_, known)| known.to_owned()) };
    }
    if let Some((_, what)) = MISSING.iter().find(|(start, _)| key.starts_with(start)) {
        return Verdict::Missing { what };
    }
    let why = NOT_NEEDED.iter().find(|(how, part, _)| how.fits(part, key)).map_or(INSIDE, |(.., why)| why);
    Verdict::NotNeeded { why }
}

fn text(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| format!("{value:?}"))
}

fn number(value: &str) -> Option<String> {
    value.parse::<u64>().ok().map(|number| number.to_string())
}

fn flag(value: &str) -> Option<String> {
    value.to_ascii_lowercase().parse::<bool>().ok().map(|flag| flag.to_string())
}

fn port(value: &str) -> Option<String> {
    value.parse::<u16>().ok().map(|port| format!("\"0.0.0.0:{port}\""))
}

fn addresses(value: &str) -> Option<String> {
    let all: Vec<_> = value.split([';', ',']).map(str::trim).filter(|addr| !addr.is_empty()).collect();
    (!all.is_empty()).then(|| format!("{all:?}"))
}

/// In the largest unit that divides it.
fn bytes(value: &str) -> Option<String> {
    let bytes: u64 = value.parse().ok()?;
    let unit = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")];
    let (factor, unit) = unit.into_iter().find(|(factor, _)| bytes >= *factor && bytes.is_multiple_of(*factor))?;
    Some(format!("\"{}{unit}\"", bytes / factor))
}

fn flush(value: &str) -> Option<String> {
    match value {
        "SYNC_FLUSH" => Some("\"sync\"".to_owned()),
        "ASYNC_FLUSH" => Some("\"async\"".to_owned()),
        _ => None,
    }
}

fn millis(value: &str) -> Option<String> {
    value.parse::<u64>().ok().map(|millis| format!("\"{millis}ms\""))
}

fn seconds(value: &str) -> Option<String> {
    value.parse::<u64>().ok().map(|seconds| format!("\"{seconds}s\""))
}

fn hours(value: &str) -> Option<String> {
    value.parse::<u64>().ok().map(|hours| format!("\"{hours}h\""))
}

fn delete_hours(value: &str) -> Option<String> {
    let hours: Option<Vec<u8>> =
        value.split(';').map(|hour| hour.trim().parse().ok().filter(|hour| *hour < 24)).collect();
    hours.map(|hours| format!("{hours:?}"))
}

fn percent(value: &str) -> Option<String> {
    let ratio: f64 = value.parse().ok()?;
    let percent = if ratio <= 1.0 { ratio * 100.0 } else { ratio };
    (1.0..=99.0).contains(&percent).then(|| format!("{}", percent.round()))
}

fn free_percent(value: &str) -> Option<String> {
    let used: f64 = percent(value)?.parse().ok()?;
    Some(format!("{}", 100.0 - used))
}

/// Whether a key here exists.
#[cfg(test)]
fn exists(key: &str) -> bool {
    use super::reference::{GROUP, MEMBER, SECTIONS};
    let mut sections = SECTIONS.iter().chain([&GROUP, &MEMBER]);
    let Some((section, name)) = key.rsplit_once('.') else { return false };
    sections.any(|known| known.name == section && known.keys.iter().any(|key| key.name == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: &str) {
        let lines = read(line).unwrap();
        assert_eq!(lines[0].verdict.to_string(), expected, "{line}");
    }

    #[test]
    fn values_are_carried_over_with_their_units() {
        check("brokerClusterName = prod", "cluster.name = \"prod\"");
        check("namesrvAddr=10.0.0.1:9876;10.0.0.2:9876", "node.namesrv = [\"10.0.0.1:9876\", \"10.0.0.2:9876\"]");
        check("mappedFileSizeCommitLog=1073741824", "storage.segment_bytes = \"1GiB\"");
        check("maxMessageSize=4194305", "broker.message_bytes_max = \"4194305B\"");
        check("flushDiskType=ASYNC_FLUSH", "storage.flush = \"async\"  (a majority, not one disk)");
        check("fileReservedTime=48", "retention.time = \"48h\"");
        check("deleteWhen=04;16", "retention.delete_hours = [4, 16]  (UTC)");
        check("diskSpaceWarningLevelRatio=0.90", "storage.disk_free_percent_min = 10  (what must stay free)");
        check("autoCreateTopicEnable=TRUE", "broker.auto_create_topics = true  (false unless it is set)");
        check("transactionTimeOut=6000", "broker.transaction_timeout = \"6000ms\"");
        let text = read("deleteWhen=26").unwrap()[0].verdict.to_string();
        assert!(text.starts_with("retention.delete_hours, but this is not a value for it"), "{text}");
    }

    #[test]
    fn what_is_not_carried_over_says_why() {
        check("brokerId=0", "not needed: the leader is elected, so no replica is the master by its number");
        check("sendMessageThreadPoolNums=16", "not needed: requests need no thread pools");
        check("aclEnable=true", &format!("no counterpart: {}", MISSING[0].1));
        check("brokerPermision=6", "RocketMQ 5.3 does not know it; did it mean brokerPermission?");
        check("colour=red", "RocketMQ 5.3 does not know it");
    }

    #[test]
    fn lines_are_numbered_and_comments_left_out() {
        let lines = read("# a comment\n\nbrokerName = a\n! another\nbrokerId: 0\n").unwrap();
        let seen: Vec<_> = lines.iter().map(|line| (line.line, line.key.as_str(), line.was.as_str())).collect();
        assert_eq!(seen, [(3, "brokerName", "a"), (5, "brokerId", "0")]);
        assert_eq!(read("brokerName = a\njunk\n").unwrap_err(), (2, "junk".to_owned()));
        assert!(looks_like_one("brokerName = a\n") && !looks_like_one("[node]\nname = \"a\"\n"));
    }

    #[test]
    fn every_setting_of_rocketmq_gets_an_answer_and_every_answer_is_used() {
        let known: Vec<_> = KNOWN.lines().collect();
        assert!(known.len() > 400 && known.is_sorted());
        for key in &known {
            assert!(!matches!(verdict(key, "1"), Verdict::Unknown { .. }), "{key}");
        }
        for (name, target, ..) in SETTINGS {
            assert!(known.contains(&name) && exists(target), "{name} becomes {target}");
        }
        for (name, how) in ELSEWHERE {
            assert!(known.contains(&name), "{name}");
            // What begins with the name of a table is a key of it.
            if let Some(key) = how.split([':', ',', ' ']).next().filter(|word| word.contains('.')) {
                assert!(exists(key), "{name}: {key}");
            }
        }
        for (start, _) in MISSING {
            assert!(known.iter().any(|key| key.starts_with(start)), "{start}");
        }
        for (how, part, why) in NOT_NEEDED {
            let used = known.iter().any(|key| verdict(key, "1") == Verdict::NotNeeded { why } && how.fits(part, key));
            assert!(used, "nothing needs the rule for {part}");
        }
    }
}
