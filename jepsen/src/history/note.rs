//! What the harness itself did and saw, beside the operations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::value::{BodyHash, Process, Unique};
use crate::contract::Limits;

/// The name of a node: a broker process of the lab, a name server, or a replica of a broker group.
pub type NodeName = Box<str>;

/// One line that is no part of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ev", rename_all = "kebab-case")]
pub enum Note {
    Run(Run),
    /// What this run must have exercised to count.
    Plan(Plan),
    Phase {
        name: Phase,
    },
    Fault(Fault),
    /// What a replica said about itself over the management interface.
    Obs(Observation),
    /// What a name server answered.
    Route(Route),
    Exit(Exit),
    /// A client process ended without ending its operations.
    ClientCrash {
        client: u16,
    },
    /// A queue of a group has another owner from now on.
    Assign {
        group: Box<str>,
        #[serde(rename = "q")]
        queue: Box<str>,
        member: Option<Process>,
    },
    /// A broker asked a producer about its half message.
    CheckBack {
        #[serde(rename = "u")]
        unique: Unique,
    },
    /// A stopped replica's log.
    Dump(Dump),
    /// A stopped replica's derived store, beside what its log justifies.
    Derived(Derived),
    Gauge(Gauge),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub run: Box<str>,
    pub seed: u64,
    #[serde(default)]
    pub commit: Box<str>,
    #[serde(default)]
    pub wall: Box<str>,
    #[serde(default)]
    pub limits: Limits,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Fault kind, and how often it must have been installed.
    #[serde(default)]
    pub faults: BTreeMap<Box<str>, u64>,
    /// Operation, and how often it must have ended well.
    #[serde(default)]
    pub ops: BTreeMap<Box<str>, u64>,
    /// How often another node must have become leader.
    #[serde(default)]
    pub leader_changes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    WarmUp,
    Main,
    /// No faults any more; the load goes on.
    QuietHeal,
    /// The load has stopped; fresh clients read everything.
    Final,
    /// Every group had the time to receive all there is.
    Drained,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub id: Box<str>,
    pub kind: Box<str>,
    pub state: FaultState,
    #[serde(default)]
    pub target: Vec<NodeName>,
    /// Whether a majority stays able to serve meanwhile.
    #[serde(default)]
    pub tolerable: bool,
    /// How far a clock was moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jump_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub why: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultState {
    /// Installed, and a probe saw it.
    Installed,
    Skipped,
    /// Asked for, but no probe saw it.
    Indeterminate,
    Healed,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    pub node: NodeName,
    /// The broker group; a lab with one group leaves it empty.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub group: Box<str>,
    /// Counts the starts of the node's process.
    pub life: u32,
    /// The identity under which the node takes part.
    #[serde(default)]
    pub identity: u64,
    pub term: u64,
    pub leader: Option<NodeName>,
    pub last: u64,
    pub committed: u64,
    pub applied: u64,
    pub flushed: u64,
    /// The hash of the state after an entry, and that entry's index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<(u64, BodyHash)>,
    /// The membership: its number in the sequence of all memberships, and its sets of voters (two while joint).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<(u64, Vec<Vec<NodeName>>)>,
    /// A sync failed: the node must not acknowledge anything any more in this life.
    #[serde(default)]
    pub latched: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    pub namesrv: NodeName,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub group: Box<str>,
    pub masters: Vec<NodeName>,
    pub term: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub node: NodeName,
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Whether the nemesis ended the process.
    pub ordered: bool,
    /// A line of its log that tells of a panic or of a refusal to start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<Box<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    pub node: NodeName,
    pub committed: u64,
    /// Position and hash of each log record.
    pub records: Vec<(u64, BodyHash)>,
    /// Positions of records with a wrong checksum.
    #[serde(default)]
    pub corrupt: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Derived {
    pub node: NodeName,
    /// For instance `queue t1/broker-a/0`, or `keys t1`.
    pub store: Box<str>,
    /// The positions that the store leads to, in its order.
    pub entries: Vec<u64>,
    /// The positions to which the log says it should lead.
    pub log: Vec<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gauge {
    pub node: NodeName,
    pub rss: u64,
    pub files: u64,
    pub threads: u64,
    pub disk: u64,
    pub parked: u64,
}
