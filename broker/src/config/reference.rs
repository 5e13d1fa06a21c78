//! Every key of the configuration file: its kind, its default and its meaning, once.
//!
//! From here come `conf/broker.toml`, the JSON schema, and what `gantry config show` prints. Tests compare it with what
//! the file's types accept and with the defaults that a file without a key gets, so none of them can be ahead of another.

use std::fmt::Write as _;

use serde_json::{Value, json};

use self::Fallback::{None as Unset, Required, Value as Default};

/// One table of the file.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// As it stands between brackets.
    pub name: &'static str,
    /// Its keys, in the order of the file.
    pub keys: &'static [Key],
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it may be.
    pub kind: Kind,
    /// What it is if the file does not say.
    pub fallback: Fallback,
    /// Its meaning, in a few words; a line each.
    pub meaning: &'static str,
    /// The name under which `updateBrokerConfig` changes it while the cluster runs.
    pub live: Option<&'static str>,
}

/// What a value may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// A size with its unit.
    Bytes,
    /// A time span with its unit.
    Duration,
    /// `true` or `false`.
    Bool,
    /// A whole number within bounds.
    Number(u64, u64),
    /// One of some words.
    Word(&'static [&'static str]),
    /// A number from 0 to 1.
    Fraction,
    /// A list of texts.
    Texts,
    /// A list of whole numbers within bounds.
    Numbers(u64, u64),
}

/// What a key is if the file does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// The file must say; this is an example, as TOML has it.
    Required(&'static str),
    /// This, as TOML has it.
    Value(&'static str),
    /// Nothing; this is an example.
    None(&'static str),
}

const fn key(name: &'static str, kind: Kind, fallback: Fallback, meaning: &'static str) -> Key {
    Key { name, kind, fallback, meaning, live: None }
}

const fn live(name: &'static str, kind: Kind, fallback: Fallback, meaning: &'static str, live: &'static str) -> Key {
    Key { name, kind, fallback, meaning, live: Some(live) }
}

/// The tables that a file has once.
pub const SECTIONS: &[Section] = &[
    Section {
        name: "cluster",
        keys: &[
            key("name", Kind::Text, Default("\"DefaultCluster\""), "RocketMQ's cluster name, as tools show it"),
            key(
                "id",
                Kind::Text,
                Required("\"6f2a9c41d07e4b53a8e1f09b7c35d284\""),
                "make your own with `gantry cluster-id`; equal on all nodes, never changed",
            ),
        ],
    },
    Section {
        name: "node",
        keys: &[
            key("name", Kind::Text, Required("\"n1\""), "unique in the cluster"),
            key(
                "data_dir",
                Kind::Text,
                Required("\"data/n1\""),
                "one directory per group inside; on a disk that honours flush",
            ),
            key("raft_listen", Kind::Text, Required("\"127.0.0.1:11001\""), "peers connect here, for all groups"),
            key(
                "http_listen",
                Kind::Text,
                Default("\"127.0.0.1:8081\""),
                "administration, health, metrics: docs/http.md",
            ),
            key("namesrv", Kind::Texts, Required("[\"127.0.0.1:9876\"]"), "all of them; each is told on its own"),
            key(
                "join_tokens",
                Kind::Text,
                Unset("\"data/n1/join-tokens\""),
                "tokens by which this node joins groups, one line each; default: in data_dir",
            ),
            key(
                "insecure_public",
                Kind::Bool,
                Default("false"),
                "true: listen on addresses that are not loopback, though nothing is authenticated",
            ),
            key(
                "stop_forward_time",
                Kind::Duration,
                Default("\"35s\""),
                "after a stop, requests are forwarded this long: longer than clients' route poll",
            ),
        ],
    },
    Section {
        name: "storage",
        keys: &[
            key("segment_bytes", Kind::Bytes, Default("\"1GiB\""), "one file of the log; all nodes alike"),
            key(
                "flush",
                Kind::Word(&["sync", "async"]),
                Default("\"sync\""),
                "of a new group; \"sync\": a majority has it on disk before the answer; \"async\":\n\
                 flush_interval later. An existing group has its own, see `gantry flush`",
            ),
            key("flush_interval", Kind::Duration, Default("\"200ms\""), "async only"),
            key(
                "scrub_rate",
                Kind::Bytes,
                Default("\"16MiB\""),
                "sealed segments are re-read from the disk this fast, at most, and compared; \"0B\": not",
            ),
            key(
                "scrub_interval",
                Kind::Duration,
                Default("\"24h\""),
                "from the start of one pass over all of them to that of the next; at most 7d",
            ),
            key(
                "allow_unproven_filesystem",
                Kind::Bool,
                Default("false"),
                "true: accept others than ext4 and xfs, for tests",
            ),
            key(
                "mount_identity",
                Kind::Bool,
                Default("true"),
                "false in a container, which gets a new mount with each start of its process",
            ),
            key(
                "disk_early_percent",
                Kind::Number(1, 99),
                Default("75"),
                "a disk this full: retention may run before its hour",
            ),
            key(
                "disk_forced_percent",
                Kind::Number(1, 99),
                Default("85"),
                "this full: retention makes room, whatever the retention time",
            ),
            key(
                "disk_free_percent_min",
                Kind::Number(1, 50),
                Default("10"),
                "less free than this, or than 4 segments and 64MiB: messages are refused",
            ),
            key(
                "cold_read_rate",
                Kind::Bytes,
                Default("\"256MiB\""),
                "a second, of history that is no longer mapped, all groups together; \"0B\": no limit",
            ),
            key(
                "runtime_dir",
                Kind::Text,
                Unset("\"/run/gantry\""),
                "in memory, made by you: a failed disk is noted there too; default: $RUNTIME_DIRECTORY",
            ),
            key(
                "ballast_bytes",
                Kind::Bytes,
                Default("\"256MiB\""),
                "size of data_dir/ballast, a file to delete when the disk is full; \"0B\": none",
            ),
        ],
    },
    Section {
        name: "retention",
        keys: &[
            key(
                "time",
                Kind::Duration,
                Default("\"72h\""),
                "a segment goes, whole, once its newest message is this old",
            ),
            key(
                "delete_hours",
                Kind::Numbers(0, 23),
                Default("[]"),
                "hours of the day (UTC) in which segments go; [] is any, [4] as RocketMQ does",
            ),
            key("check_interval", Kind::Duration, Default("\"10s\""), "how often it is looked at"),
        ],
    },
    Section {
        name: "http",
        keys: &[
            key(
                "requests_per_second",
                Kind::Number(1, 10_000),
                Default("50"),
                "of each token, and of all who have none; more are refused with 429",
            ),
            key(
                "watch_listen",
                Kind::Text,
                Unset("\"127.0.0.1:8082\""),
                "health and metrics once more, without a token and without names of topics; default: nowhere",
            ),
        ],
    },
    Section {
        name: "raft",
        keys: &[
            key("heartbeat_interval", Kind::Duration, Default("\"100ms\""), "how often a leader is heard of"),
            key(
                "election_timeout_min",
                Kind::Duration,
                Default("\"300ms\""),
                "a silent leader is replaced after this; a dead process is noticed sooner",
            ),
            key("election_timeout_max", Kind::Duration, Default("\"500ms\""), "each wait is a random one up to this"),
            key(
                "catch_up_rate",
                Kind::Bytes,
                Default("\"32MiB\""),
                "a second, to replicas far behind, all together; \"0B\": as fast as it goes",
            ),
            key(
                "balance_after",
                Kind::Duration,
                Default("\"30s\""),
                "leaders of groups without a preferred_leader are spread once nodes have differed so long; \"0s\": never",
            ),
        ],
    },
    Section {
        name: "broker",
        keys: &[
            live(
                "auto_create_topics",
                Kind::Bool,
                Default("false"),
                "true: the first send to an unknown topic creates it, as RocketMQ does by default",
                "autoCreateTopicEnable",
            ),
            live(
                "auto_create_groups",
                Kind::Bool,
                Default("true"),
                "the first use of a consumer group creates it",
                "autoCreateSubscriptionGroup",
            ),
            live(
                "auto_create_queues",
                Kind::Number(1, 1_024),
                Default("8"),
                "most queues of a topic that a send created",
                "defaultTopicQueueNums",
            ),
            live("message_bytes_max", Kind::Bytes, Default("\"4MiB\""), "largest message body", "maxMessageSize"),
            key(
                "delay_levels",
                Kind::Text,
                Default("\"1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h\""),
                "at most 18; the same on all nodes",
            ),
            key(
                "timer_delay_max",
                Kind::Duration,
                Default("\"40d\""),
                "the longest that a message may wait for a delivery time of its own; 40d at most",
            ),
            live(
                "transaction_timeout",
                Kind::Duration,
                Default("\"6s\""),
                "a transaction this old is asked about, unless its message says another time",
                "transactionTimeOut",
            ),
            live(
                "transaction_check_interval",
                Kind::Duration,
                Default("\"30s\""),
                "how often producers are asked",
                "transactionCheckInterval",
            ),
            live(
                "transaction_check_max",
                Kind::Number(1, 1_000),
                Default("15"),
                "after so many checks it is given up: see docs/operations.md",
                "transactionCheckMax",
            ),
        ],
    },
    Section {
        name: "metrics",
        keys: &[key(
            "names_max",
            Kind::Number(0, 100_000),
            Default("1000"),
            "topics, and pairs of topic and consumer group, that /metrics names; others are summed",
        )],
    },
    Section {
        name: "tracing",
        keys: &[
            key(
                "endpoint",
                Kind::Text,
                Unset("\"http://127.0.0.1:4318\""),
                "OpenTelemetry collector (OTLP over HTTP) that spans of messages go to: docs/tracing.md",
            ),
            key(
                "sample_ratio",
                Kind::Fraction,
                Default("0.01"),
                "part of the messages to follow whose clients do not say; a client's traceparent comes first",
            ),
            key("service_name", Kind::Text, Default("\"gantry\""), "what spans name as their service"),
        ],
    },
    Section {
        name: "log",
        keys: &[
            key(
                "filter",
                Kind::Text,
                Default("\"info\""),
                "a level, or target=level pairs separated by commas; --log and GANTRY_LOG come first",
            ),
            key("format", Kind::Word(&["text", "json"]), Default("\"text\""), "\"json\": one object a line"),
        ],
    },
];

/// `[[group]]`, as often as there are broker groups.
pub const GROUP: Section = Section {
    name: "group",
    keys: &[
        key("name", Kind::Text, Required("\"broker-a\""), "RocketMQ's broker name"),
        key("client_listen", Kind::Text, Required("\"127.0.0.1:10911\""), "each group has its own port"),
        key("preferred_leader", Kind::Text, Unset("\"n1\""), "leads whenever it can"),
    ],
};

/// `[[group.member]]`, one to nine in each group.
pub const MEMBER: Section = Section {
    name: "group.member",
    keys: &[
        key("node", Kind::Text, Required("\"n1\""), "the node that holds this replica"),
        key(
            "id",
            Kind::Number(1, u64::MAX),
            Unset("1"),
            "its Raft identity, never used again with another disk; left out where a node joins: in its own entry",
        ),
        key("raft_addr", Kind::Text, Required("\"127.0.0.1:11001\""), "host:port of that node's raft_listen"),
        key("client_addr", Kind::Text, Required("\"127.0.0.1:10911\""), "clients are told this address"),
    ],
};

/// `[[http.token]]`, one for each of those who may call over HTTP.
pub const TOKEN: Section = Section {
    name: "http.token",
    keys: &[
        key("name", Kind::Text, Required("\"ops\""), "stands in the log beside what was changed"),
        key("role", Kind::Word(&["read", "admin"]), Required("\"admin\""), "or \"read\""),
        key(
            "sha256",
            Kind::Text,
            Unset("\"...\""),
            "of the token; or file = \"/etc/gantry/ops.token\", which holds the token itself",
        ),
        key("file", Kind::Text, Unset("\"/etc/gantry/ops.token\""), "a file that holds the token itself"),
    ],
};

/// Where comments begin.
const COMMENT_COLUMN: usize = 38;

/// The commented reference, a valid file for the first of three nodes: what `conf/broker.toml` is.
#[must_use]
pub fn commented_file() -> String {
    let mut text = "\
        # A Gantry broker node. Every key is here; a commented one shows its default.\n\
        # Sizes and durations carry a unit: \"4MiB\", \"200ms\". An unknown key is refused.\n\
        # This is node n1 of three. n2 and n3 have the same [cluster] and the same members; [node] and client_listen are \
        theirs.\n\
        # Written by `gantry config reference`.\n"
        .to_owned();
    for section in SECTIONS {
        let _ = write!(text, "\n[{}]\n", section.name);
        for key in section.keys {
            let line = match key.fallback {
                Required(example) => format!("{} = {example}", key.name),
                Default(value) | Unset(value) => format!("# {} = {value}", key.name),
            };
            commented(&mut text, &line, key.meaning);
        }
        if section.name == "http" {
            text.push_str(
                "\n# Who may call over HTTP; `gantry token` makes one. Without any, everybody who reaches http_listen, which \
                 must be loopback\n# then. All nodes should have the same.\n# [[http.token]]\n",
            );
            for key in TOKEN.keys.iter().filter(|key| key.name != "file") {
                let (Required(value) | Default(value) | Unset(value)) = key.fallback;
                commented(&mut text, &format!("# {} = {value}", key.name), key.meaning);
            }
        }
    }
    text.push_str(
        "\n# Three broker groups, each with a replica on every node and each preferring another leader: when a node dies, \
         clients\n# turn to the other two groups at once. One group alone works too.\n",
    );
    for (number, name) in (0..).zip(["broker-a", "broker-b", "broker-c"]) {
        text.push_str("\n[[group]]\n");
        let port = 10_911 + 10 * number;
        let values = [format!("\"{name}\""), format!("\"127.0.0.1:{port}\""), format!("\"n{}\"", number + 1)];
        with_values(&mut text, GROUP, values);
        for member in 1..=3 {
            text.push_str("\n[[group.member]]\n");
            let client_port = 10_811 + 100 * member + 10 * number;
            let values = [
                format!("\"n{member}\""),
                member.to_string(),
                format!("\"127.0.0.1:{}\"", 11_000 + member),
                format!("\"127.0.0.1:{client_port}\""),
            ];
            with_values(&mut text, MEMBER, values);
        }
    }
    text
}

/// Writes all keys of a section with these values; the meaning stands at the first of many only.
fn with_values<const N: usize>(text: &mut String, section: Section, values: [String; N]) {
    for (key, value) in section.keys.iter().zip(values) {
        let line = format!("{} = {value}", key.name);
        let is_first = !text.contains(&format!("# {}\n", key.meaning));
        if is_first {
            commented(text, &line, key.meaning);
        } else {
            let _ = writeln!(text, "{line}");
        }
    }
}

fn commented(text: &mut String, line: &str, meaning: &str) {
    for (number, meaning) in (0..).zip(meaning.lines()) {
        let line = if number == 0 { line } else { "#" };
        let _ = match line.len() < COMMENT_COLUMN {
            true => writeln!(text, "{line:COMMENT_COLUMN$}# {meaning}"),
            false => writeln!(text, "{line}  # {meaning}"),
        };
    }
}

/// The JSON schema (draft 2020-12) of the file, for editors and programs that write one.
#[must_use]
pub fn schema() -> Value {
    let mut properties = serde_json::Map::new();
    for section in SECTIONS {
        properties.insert(section.name.to_owned(), section_schema(section, None));
    }
    properties["http"]["properties"]["token"] = json!({
        "type": "array",
        "description": "Who may call over HTTP.",
        "items": section_schema(&TOKEN, None),
    });
    let members = json!({
        "type": "array",
        "description": "The replicas of the group.",
        "minItems": 1,
        "maxItems": 9,
        "items": section_schema(&MEMBER, None),
    });
    properties.insert(
        "group".to_owned(),
        json!({
            "type": "array",
            "description": "The broker groups with a replica on this node.",
            "minItems": 1,
            "items": section_schema(&GROUP, Some(("member", members))),
        }),
    );
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Gantry broker node",
        "type": "object",
        "additionalProperties": false,
        "required": ["cluster", "node", "group"],
        "properties": properties,
    })
}

fn section_schema(section: &Section, more: Option<(&str, Value)>) -> Value {
    let mut properties: serde_json::Map<String, Value> =
        section.keys.iter().map(|key| (key.name.to_owned(), key_schema(key))).collect();
    let mut required: Vec<&str> =
        section.keys.iter().filter(|key| matches!(key.fallback, Required(_))).map(|key| key.name).collect();
    if let Some((name, schema)) = more {
        properties.insert(name.to_owned(), schema);
        required.push(name);
    }
    json!({ "type": "object", "additionalProperties": false, "required": required, "properties": properties })
}

fn key_schema(key: &Key) -> Value {
    let mut schema = match key.kind {
        Kind::Text => json!({ "type": "string" }),
        Kind::Bytes => json!({ "type": "string", "pattern": "^[0-9]+ *(B|[KMGT]iB|[kKMGT]B)$" }),
        Kind::Duration => json!({ "type": "string", "pattern": "^[0-9]+ *(us|ms|s|m|h|d)$" }),
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Number(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Word(words) => json!({ "type": "string", "enum": words }),
        Kind::Fraction => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        Kind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        Kind::Numbers(min, max) => {
            json!({ "type": "array", "items": { "type": "integer", "minimum": min, "maximum": max } })
        }
    };
    schema["description"] = key.meaning.replace('\n', " ").into();
    if let Default(text) = key.fallback {
        schema["default"] = default_value(text);
    }
    if let Some(name) = key.live {
        schema["x-changed-while-running-as"] = name.into();
    }
    schema
}

/// A default as JSON.
fn default_value(text: &str) -> Value {
    let table: toml::Table =
        toml::from_str(&format!("value = {text}")).expect("defaults are TOML; a test reads them all");
    serde_json::to_value(&table["value"]).expect("TOML without dates is JSON")
}
