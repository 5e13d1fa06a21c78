//! The configuration file, read once into checked options.
//!
//! `conf/broker.toml` in the repository lists every key with its default. [`Options::load`] refuses what it does not
//! know, with file, line and the nearest name, and checks the rules that span keys, so nothing after it checks again. It
//! names everything that is wrong, not the first thing only. [`across`] checks what the files of several nodes say of
//! each other.

pub mod across;
mod check;
mod file;
mod reader;
pub mod reference;
pub mod rocketmq;
mod shown;
mod unit;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

pub use reader::{line_of, read_whole};
pub use shown::{Origin, Shown};
pub use unit::{parse_bytes, parse_duration};

use crate::delay_levels::DelayLevels;
use crate::disk::DiskLimits;
use crate::http::Tokens;
use crate::processor::TransactionSettings;

/// Why a configuration file was refused.
#[derive(Debug)]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// Everything that was found wrong, in the order of the file; at least one.
    pub mistakes: Vec<Mistake>,
}

/// One thing that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mistake {
    /// The line, if it has one.
    pub line: Option<usize>,
    /// What is wrong, and if possible what would be right.
    pub message: String,
}

impl ConfigError {
    fn new(path: &Path, mistakes: Vec<Mistake>) -> Self {
        Self { path: path.to_owned(), mistakes }
    }

    /// One mistake.
    #[must_use]
    pub fn one(path: &Path, line: Option<usize>, message: impl Into<String>) -> Self {
        Self::new(path, vec![Mistake { line, message: message.into() }])
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// That it cannot be read, and why.
    pub fn read(path: &Path) -> Result<String, Self> {
        std::fs::read_to_string(path).map_err(|error| Self::one(path, None, format!("cannot be read: {error}")))
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, mistake) in self.mistakes.iter().enumerate() {
            let break_before = if at == 0 { "" } else { "\n" };
            let path = self.path.display();
            match mistake.line {
                Some(line) => write!(f, "{break_before}{path}:{line}: {}", mistake.message)?,
                None => write!(f, "{break_before}{path}: {}", mistake.message)?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// Everything one node is told by its file. Every value has been checked.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster this node belongs to.
    pub cluster: ClusterOptions,
    /// This node.
    pub node: NodeOptions,
    /// The broker groups that have a replica here; at least one.
    pub groups: Vec<GroupOptions>,
    /// The log.
    pub storage: StorageOptions,
    /// How long messages stay.
    pub retention: RetentionOptions,
    /// The HTTP side.
    pub http: HttpOptions,
    /// Raft's timers.
    pub raft: RaftOptions,
    /// What clients may do.
    pub broker: BrokerOptions,
    /// What `/metrics` says.
    pub metrics: MetricsOptions,
    /// Where spans of messages go.
    pub tracing: TracingOptions,
    /// What is logged, and how.
    pub log: LogOptions,
}

/// `[http]`.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// How often each of those who call may, in a second.
    pub requests_per_second: u32,
    /// Where health and metrics are served once more, to anybody; nowhere, if there is none.
    pub watch_listen: Option<SocketAddr>,
    /// Who may call; anybody, if there are none.
    pub tokens: Tokens,
}

/// `[cluster]`.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// RocketMQ's cluster name, shown to clients and tools.
    pub name: String,
    /// Random; a node never talks to, or reads files of, a cluster with another id.
    pub id: [u8; 16],
}

/// `[node]`.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Unique in the cluster; members refer to it.
    pub name: String,
    /// Holds one directory per group.
    pub data_dir: PathBuf,
    /// Where peers connect, for all groups of this node.
    pub raft_listen: SocketAddr,
    /// Health, status and metrics.
    pub http_listen: SocketAddr,
    /// Every name server that is told who leads; at least one.
    pub namesrv: Vec<String>,
    /// Some listener is not on loopback, and the operator said that this is wanted.
    pub insecure_public: bool,
    /// The file with the tokens by which this node joins groups.
    pub join_tokens: PathBuf,
    /// How long a stopping node forwards requests after its groups were handed over.
    pub stop_forward_time: Duration,
}

/// One `[[group]]`.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// RocketMQ's broker name.
    pub name: String,
    /// Where clients of this group connect on this node.
    pub client_listen: SocketAddr,
    /// The member that should lead when it can, by its id.
    pub preferred_leader: Option<u64>,
    /// The id of this node's own replica, one of `members`; 0 if it joins the group and is given one.
    pub own_id: u64,
    /// The replicas that are configured, in the order of their ids. Who the members are stands in the log.
    pub members: Vec<MemberOptions>,
}

impl GroupOptions {
    /// This node's own replica.
    #[must_use]
    pub fn own_member(&self) -> &MemberOptions {
        self.members.iter().find(|member| member.id == self.own_id).expect("checked when the options were made")
    }

    /// The member that creates the group on the first start: the one with the lowest id.
    #[must_use]
    pub fn initializes(&self) -> bool {
        !self.joins() && self.members.first().is_some_and(|member| member.id == self.own_id)
    }

    /// Whether this node has no identity of its own and joins the group, which exists.
    #[must_use]
    pub fn joins(&self) -> bool {
        self.own_id == 0
    }
}

/// One `[[group.member]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberOptions {
    /// The node that holds the replica.
    pub node: String,
    /// Raft identity of the replica, unique in its group and never used again with another disk; 0 on a node that joins.
    pub id: u64,
    /// `host:port` of the node's Raft listener.
    pub raft_addr: String,
    /// What the route tells clients; a literal address, because some clients do not resolve names.
    pub client_addr: SocketAddr,
}

/// When an acknowledged message is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushOptions {
    /// Before the acknowledgement, on a majority.
    Sync,
    /// At most this much later.
    Async {
        /// Time between two flushes.
        interval: Duration,
    },
}

/// `[storage]`.
#[derive(Clone, Debug)]
pub struct StorageOptions {
    /// Size of one segment file of the log.
    pub segment_bytes: u64,
    /// When an acknowledged message is on disk, in a new cluster. An existing one says so itself.
    pub flush: FlushOptions,
    /// Time between two flushes whenever the cluster flushes asynchronously.
    pub flush_interval: Duration,
    /// Accept file systems that are not known to keep what they promised.
    pub allow_unproven_filesystem: bool,
    /// A new mount counts as a new start of the operating system, which loses what was not flushed.
    pub mount_identity: bool,
    /// At which fullness of the disk what happens.
    pub disk: DiskLimits,
    /// Size of a file that an operator may delete when the disk is full; 0 for none.
    pub ballast_bytes: u64,
    /// A directory in memory for what must outlive the process when the data directory has failed.
    pub runtime_dir: Option<PathBuf>,
    /// Bytes a second that may be read from segments that are not mapped, by all groups together; 0: no limit.
    pub cold_read_rate: u64,
    /// Bytes of sealed segments re-read from the disk in a second, at most; 0: none.
    pub scrub_rate: u64,
    /// From the start of one pass over all sealed segments to that of the next.
    pub scrub_interval: Duration,
}

/// `[retention]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionOptions {
    /// Segments go when their newest message is older than this.
    pub time: Duration,
    /// The hours of the day, UTC, in which they go; none: at any hour.
    pub delete_hours: Vec<u8>,
    /// How often it is looked at.
    pub check_interval: Duration,
}

/// `[raft]`.
#[derive(Clone, Debug)]
pub struct RaftOptions {
    /// Time between two heartbeats of a leader.
    pub heartbeat_interval: Duration,
    /// A follower that heard nothing for a random time from here ...
    pub election_timeout_min: Duration,
    /// ... to here stands for election.
    pub election_timeout_max: Duration,
    /// Bytes a second that members far behind are sent together, on top of what is being written; as fast as it goes if
    /// there is none.
    pub catch_up_rate: Option<u64>,
    /// Leaders of groups that prefer no node are spread once a difference has lasted for so long; none: they stay.
    pub balance_after: Option<Duration>,
}

/// `[broker]`.
#[derive(Clone, Debug)]
pub struct BrokerOptions {
    /// The first send to an unknown topic creates it.
    pub auto_create_topics: bool,
    /// The first use of an unknown consumer group creates it.
    pub auto_create_groups: bool,
    /// Most queues of a topic created by a send.
    pub auto_create_queues: u32,
    /// Largest message body.
    pub message_bytes_max: usize,
    /// How long messages wait on each delay level.
    pub delay_levels: DelayLevels,
    /// No message waits longer for a time of its own.
    pub timer_delay_max: Duration,
    /// How producers are asked about their transactions.
    pub transactions: TransactionSettings,
}

/// `[metrics]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsOptions {
    /// Most topics, and most pairs of topic and consumer group, that metrics of a group name.
    pub names_max: usize,
}

/// `[tracing]`.
#[derive(Clone, Debug, PartialEq)]
pub struct TracingOptions {
    /// Address of an OpenTelemetry collector; none: nothing is followed.
    pub endpoint: Option<String>,
    /// How many of the messages are followed whose clients do not say, from 0 to 1.
    pub sample_ratio: f64,
    /// What spans name as their service.
    pub service_name: String,
}

/// `[log]`. What a command line or the environment says comes before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// A level, or `target=level` pairs separated by commas. Checked where logs are started.
    pub filter: String,
    /// How lines are written.
    pub format: LogFormat,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Options {
    /// Reads and checks the file at `path`. A relative `data_dir` is taken from the directory of the process.
    ///
    /// # Errors
    /// [`ConfigError`], with every mistake: unreadable, not TOML, unknown keys, wrong values, values that contradict each
    /// other.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(path, &ConfigError::read(path)?)
    }

    /// As [`Options::load`], with the text of the file; `path` is for messages.
    ///
    /// # Errors
    /// As [`Options::load`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        check::check(path, text)
    }
}

#[cfg(test)]
mod tests;
