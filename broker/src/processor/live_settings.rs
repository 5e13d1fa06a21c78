//! Settings that a tool may change while the broker runs: code 25.
//!
//! A change is an entry of the log: every replica of the group has it, whoever leads, and a restart keeps it. What was
//! never changed is as each node's file says. The names are RocketMQ's; an empty value takes a change back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use protocol::body::decode_config_text;
use protocol::{RemotingCommand, ResponseCode};

use super::answer::{Failure, Outcome, success};
use super::{Group, GroupSettings, TransactionSettings};
use crate::state_machine::Command;
use crate::state_machine::command::PERMISSION_SETTING;
use crate::state_machine::topic::{PERM_READ, PERM_WRITE};

/// Before the name of each setting in the replicated state.
const PREFIX: &str = "broker.";

/// The settings in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LiveSettings {
    /// Whether the first send to an unknown topic creates it.
    pub(crate) auto_create_topics: bool,
    /// Whether the first use of an unknown group creates it.
    pub(crate) auto_create_groups: bool,
    /// Most queues of a topic created by a send.
    pub(crate) auto_create_queues: u32,
    /// Largest body of a message or batch.
    pub(crate) message_bytes_max: usize,
    /// How producers are asked about their transactions.
    pub(crate) transactions: TransactionSettings,
    /// What routes allow at most: [`PERM_READ`] and [`PERM_WRITE`].
    pub(crate) permission: u32,
    /// Whether groups that lag far behind are sent to a follower.
    pub(crate) follower_reads: bool,
}

/// One setting: its name, what it may be, and how it is written and read.
struct Knob {
    key: &'static str,
    allowed: &'static str,
    /// Sets it; says whether the value is one.
    set: fn(&mut LiveSettings, &str) -> bool,
    get: fn(&LiveSettings) -> String,
}

const KNOBS: [Knob; 9] = [
    Knob {
        key: "autoCreateTopicEnable",
        allowed: "true or false",
        set: |live, value| put(&mut live.auto_create_topics, flag(value)),
        get: |live| live.auto_create_topics.to_string(),
    },
    Knob {
        key: "autoCreateSubscriptionGroup",
        allowed: "true or false",
        set: |live, value| put(&mut live.auto_create_groups, flag(value)),
        get: |live| live.auto_create_groups.to_string(),
    },
    Knob {
        key: "defaultTopicQueueNums",
        allowed: "1 to 1024",
        set: |live, value| put(&mut live.auto_create_queues, number(value, 1, 1_024)),
        get: |live| live.auto_create_queues.to_string(),
    },
    Knob {
        key: "maxMessageSize",
        allowed: "1024 to 8388608, in bytes",
        set: |live, value| put(&mut live.message_bytes_max, number(value, 1_024, 8 << 20)),
        get: |live| live.message_bytes_max.to_string(),
    },
    Knob {
        key: "brokerPermission",
        allowed: "2 (write), 4 (read) or 6 (both)",
        set: |live, value| put(&mut live.permission, number(value, 2, 6).filter(|perm| perm % 2 == 0)),
        get: |live| live.permission.to_string(),
    },
    Knob {
        key: "slaveReadEnable",
        allowed: "true or false",
        set: |live, value| put(&mut live.follower_reads, flag(value)),
        get: |live| live.follower_reads.to_string(),
    },
    Knob {
        key: "transactionTimeOut",
        allowed: "100 to 3600000, in milliseconds",
        set: |live, value| put(&mut live.transactions.timeout, millis(value)),
        get: |live| live.transactions.timeout.as_millis().to_string(),
    },
    Knob {
        key: "transactionCheckInterval",
        allowed: "100 to 3600000, in milliseconds",
        set: |live, value| put(&mut live.transactions.check_interval, millis(value)),
        get: |live| live.transactions.check_interval.as_millis().to_string(),
    },
    Knob {
        key: "transactionCheckMax",
        allowed: "1 to 1000",
        set: |live, value| put(&mut live.transactions.check_max, number(value, 1, 1_000)),
        get: |live| live.transactions.check_max.to_string(),
    },
];

/// The names of all settings that are changed while a broker runs. No other is.
#[cfg(test)]
pub(crate) fn live_names() -> impl Iterator<Item = &'static str> {
    KNOBS.iter().map(|knob| knob.key)
}

fn put<T>(place: &mut T, value: Option<T>) -> bool {
    let is_one = value.is_some();
    if let Some(value) = value {
        *place = value;
    }
    is_one
}

fn flag(value: &str) -> Option<bool> {
    value.to_ascii_lowercase().parse().ok()
}

fn number<T: TryFrom<u64>>(value: &str, min: u64, max: u64) -> Option<T> {
    value.parse().ok().filter(|number| (min..=max).contains(number)).and_then(|number: u64| T::try_from(number).ok())
}

fn millis(value: &str) -> Option<Duration> {
    number(value, 100, 3_600_000).map(Duration::from_millis)
}

impl LiveSettings {
    /// What the file says, and what was changed since.
    fn new(settings: &GroupSettings, changed: &BTreeMap<String, String>) -> Self {
        let mut live = Self {
            auto_create_topics: settings.auto_create_topics,
            auto_create_groups: settings.auto_create_groups,
            auto_create_queues: settings.auto_create_queues,
            message_bytes_max: settings.message_bytes_max,
            transactions: settings.transactions,
            permission: PERM_READ | PERM_WRITE,
            follower_reads: false,
        };
        for knob in &KNOBS {
            let Some(value) = changed.get(&format!("{PREFIX}{}", knob.key)) else { continue };
            if !(knob.set)(&mut live, value) {
                tracing::warn!(key = knob.key, value, "another version's value of a setting is left out");
            }
        }
        live
    }

    /// Something to try a value on.
    fn scratch() -> Self {
        Self {
            auto_create_topics: false,
            auto_create_groups: false,
            auto_create_queues: 1,
            message_bytes_max: 1_024,
            transactions: TransactionSettings::default(),
            permission: PERM_READ | PERM_WRITE,
            follower_reads: false,
        }
    }

    /// Names and values, as tools print them.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'static str, String)> + use<'_> {
        KNOBS.iter().map(|knob| (knob.key, (knob.get)(self)))
    }
}

/// The settings last made.
#[derive(Default)]
pub(super) struct LiveCache(parking_lot::Mutex<Option<Made>>);

struct Made {
    of: Arc<BTreeMap<String, String>>,
    live: Arc<LiveSettings>,
}

impl Group {
    /// The settings in force as of the last entry applied here.
    pub(crate) fn live(&self) -> Arc<LiveSettings> {
        let changed = self.0.state.settings();
        let mut cache = self.0.live.0.lock();
        match &*cache {
            Some(made) if Arc::ptr_eq(&made.of, &changed) => Arc::clone(&made.live),
            _ => {
                let live = Arc::new(LiveSettings::new(&self.0.settings, &changed));
                *cache = Some(Made { of: changed, live: Arc::clone(&live) });
                live
            }
        }
    }

    /// The permission of a topic as routes show it.
    #[must_use]
    pub fn route_permission(&self, perm: u32) -> u32 {
        let live = self.live();
        if live.permission == PERM_READ | PERM_WRITE { perm } else { perm & live.permission }
    }

    pub(super) async fn update_config(&self, request: &RemotingCommand) -> Outcome {
        let settings = checked(&decode_config_text(&request.body)?)?;
        tracing::info!(?settings, "settings are changed");
        let routes_change = settings.contains_key(PERMISSION_SETTING);
        self.propose(Command::PutSettings { settings, stamped_ms: self.stamp_ms() }).await?;
        if routes_change {
            self.wait_for_registration().await;
        }
        Ok(success(request))
    }
}

/// The entry's settings for a request's; all of them or none.
fn checked(wanted: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Failure> {
    if wanted.is_empty() {
        return Err(Failure::refused(ResponseCode::INVALID_PARAMETER, "there is no line `key=value`"));
    }
    let mut settings = BTreeMap::new();
    for (key, value) in wanted {
        let Some(knob) = KNOBS.iter().find(|knob| knob.key == key) else { return Err(not_changed(key)) };
        if !value.is_empty() && !(knob.set)(&mut LiveSettings::scratch(), value) {
            let remark = format!("{key} is [{value}], allowed are {}", knob.allowed);
            return Err(Failure::refused(ResponseCode::INVALID_PARAMETER, remark));
        }
        settings.insert(format!("{PREFIX}{key}"), value.clone());
    }
    Ok(settings)
}

/// Why a setting is not changed, and what changes it.
fn not_changed(key: &str) -> Failure {
    let instead = match key {
        "flushDiskType" => "run `gantry flush`".to_owned(),
        "brokerName" | "brokerClusterName" | "brokerId" | "listenPort" | "brokerIP1" | "namesrvAddr" => {
            "what a node is called and where it listens is in conf/broker.toml: restart it with another file".to_owned()
        }
        "fileReservedTime" | "deleteWhen" => {
            "change [retention] in conf/broker.toml and restart one node after the other".to_owned()
        }
        "timerMaxDelaySec" => {
            "change broker.timer_delay_max in conf/broker.toml on all nodes and restart one after the other".to_owned()
        }
        "messageDelayLevel" => {
            "change broker.delay_levels in conf/broker.toml on all nodes and restart one after the other".to_owned()
        }
        _ => {
            let keys: Vec<_> = KNOBS.iter().map(|knob| knob.key).collect();
            format!(
                "these are changed while the broker runs: {}; for all others change conf/broker.toml and restart one \
                 node after the other",
                keys.join(", ")
            )
        }
    };
    Failure::refused(ResponseCode::NO_PERMISSION, format!("{key} is not changed while the broker runs; {instead}"))
}
