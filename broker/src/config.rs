//! The configuration file, read once into checked options.
//!
//! `conf/broker.toml` in the repository lists every key with its default. [`Options::load`] refuses what it does not
//! know, with file, line and the nearest name, and checks the rules that span keys, so nothing after it checks again.

mod file;
pub mod reference;
pub mod rocketmq;
mod shown;
mod unit;

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::delay_levels::DelayLevels;
use crate::processor::TransactionSettings;

pub use file::parse_toml;
pub use shown::{Origin, Shown};
pub use unit::{parse_bytes, parse_duration};

use crate::disk::DiskLimits;
use crate::http::{Role, TokenHash, Tokens, hash_token};

/// Why a configuration file was refused.
#[derive(Debug)]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// The line, if the problem has one.
    pub line: Option<usize>,
    /// What is wrong, and if possible what would be right.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.path.display(), self.message),
            None => write!(f, "{}: {}", self.path.display(), self.message),
        }
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
    /// What is logged, and how.
    pub log: LogOptions,
}

/// `[http]`.
#[derive(Clone, Debug, Default)]
pub struct HttpOptions {
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

/// The longest that a message may wait for a time of its own.
const TIMER_DELAY_MAX: Duration = Duration::from_secs(40 * 86_400);

/// Smallest segment: a segment must hold the largest record with room to spare.
const SEGMENT_BYTES_MIN: u64 = 16 << 20;
const SEGMENT_BYTES_MAX: u64 = 16 << 30;
const BALLAST_BYTES_MAX: u64 = 16 << 30;
const MESSAGE_BYTES_MAX: u64 = 8 << 20;
const RETENTION_TIME_MAX: Duration = Duration::from_secs(3_650 * 86_400);
const CATCH_UP_RATE_MIN: u64 = 1 << 20;
const QUEUES_MAX: u32 = 1_024;
const METRIC_NAMES_MAX: usize = 100_000;
const MEMBERS_MAX: usize = 9;
const NAME_BYTES_MAX: usize = 64;

impl Options {
    /// Reads and checks the file at `path`. A relative `data_dir` is taken from the directory of the process.
    ///
    /// # Errors
    /// [`ConfigError`]: unreadable, not TOML, an unknown key, a wrong value, or values that contradict each other.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError {
            path: path.to_owned(),
            line: None,
            message: format!("cannot be read: {error}"),
        })?;
        Self::parse(path, &text)
    }

    /// As [`Options::load`], with the text of the file; `path` is for messages.
    ///
    /// # Errors
    /// As [`Options::load`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let file = parse_toml::<file::File>(path, text)?;
        check(file).map_err(|message| ConfigError { path: path.to_owned(), line: None, message })
    }
}

fn check(file: file::File) -> Result<Options, String> {
    let id = parse_cluster_id(&file.cluster.id)?;
    check_name("cluster.name", &file.cluster.name)?;
    check_name("node.name", &file.node.name)?;
    let raft_listen = parse_addr("node.raft_listen", &file.node.raft_listen)?;
    let http_listen = parse_addr("node.http_listen", &file.node.http_listen)?;
    if file.node.namesrv.is_empty() {
        return Err("node.namesrv is empty; without a name server no client finds this node".to_owned());
    }
    for namesrv in &file.node.namesrv {
        check_host_port("node.namesrv", namesrv)?;
    }
    if file.groups.is_empty() {
        return Err("there is no [[group]]; a node needs at least one".to_owned());
    }
    let groups =
        file.groups.into_iter().map(|group| check_group(group, &file.node.name)).collect::<Result<Vec<_>, _>>()?;

    let mut names = HashSet::new();
    let mut listeners = HashSet::from([raft_listen]);
    if !listeners.insert(http_listen) {
        return Err(format!("node.http_listen and node.raft_listen are both {http_listen}"));
    }
    let mut own_raft_addr = None;
    let mut client_addrs = HashSet::new();
    for group in &groups {
        if !names.insert(group.name.as_str()) {
            return Err(format!("two groups are named `{}`", group.name));
        }
        if group.client_listen.port() != 0 && !listeners.insert(group.client_listen) {
            return Err(format!(
                "group `{}`: client_listen {} is used twice; each group needs a port of its own, because many client \
                 requests do not say which group they mean",
                group.name, group.client_listen
            ));
        }
        for member in &group.members {
            if !client_addrs.insert(member.client_addr) {
                return Err(format!("group `{}`: client_addr {} is used twice", group.name, member.client_addr));
            }
        }
        let raft_addr = &group.own_member().raft_addr;
        if *own_raft_addr.get_or_insert(raft_addr) != raft_addr {
            return Err(format!(
                "group `{}`: node `{}` has raft_addr {raft_addr} here and another one elsewhere; a node has one",
                group.name, file.node.name
            ));
        }
    }
    let http = check_http(file.http)?;
    if http.tokens.0.is_empty() && !http_listen.ip().is_loopback() {
        return Err(format!(
            "node.http_listen is {http_listen}, which is not a loopback address, and there is no [[http.token]]: anyone \
             who reaches it could administer everything; `gantry token` makes one"
        ));
    }
    if !file.node.insecure_public
        && let Some(public) = listeners.iter().find(|addr| !addr.ip().is_loopback())
    {
        return Err(format!(
            "{public} is not a loopback address, and this version has neither authentication nor encryption: anyone \
             who reaches it can read, write and administer everything; if the network is trusted, set \
             node.insecure_public = true"
        ));
    }

    Ok(Options {
        cluster: ClusterOptions { name: file.cluster.name, id },
        node: NodeOptions {
            name: file.node.name,
            join_tokens: file.node.join_tokens.unwrap_or_else(|| file.node.data_dir.join("join-tokens")),
            data_dir: file.node.data_dir,
            raft_listen,
            http_listen,
            namesrv: file.node.namesrv,
            insecure_public: file.node.insecure_public,
            stop_forward_time: file.node.stop_forward_time,
        },
        groups,
        storage: check_storage(&file.storage, file.broker.message_bytes_max)?,
        retention: check_retention(file.retention)?,
        http,
        raft: check_raft(&file.raft)?,
        broker: check_broker(&file.broker)?,
        metrics: check_metrics(&file.metrics)?,
        log: check_log(file.log)?,
    })
}

/// A token of 128 bits in hex has as many characters.
const TOKEN_CHARS_MIN: usize = 32;

fn check_http(http: file::Http) -> Result<HttpOptions, String> {
    let mut names = HashSet::new();
    let mut tokens = Vec::with_capacity(http.tokens.len());
    for token in http.tokens {
        check_name("http.token.name", &token.name)?;
        if !names.insert(token.name.clone()) {
            return Err(format!("two [[http.token]] are named `{}`", token.name));
        }
        let at = format!("http.token `{}`", token.name);
        let sha256 = match (&token.sha256, &token.file) {
            (Some(hex), None) => parse_hex(hex)
                .ok_or_else(|| format!("{at}: sha256 is not 64 hex digits; `gantry token` prints them"))?,
            (None, Some(path)) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("{at}: {} cannot be read: {error}", path.display()))?;
                let text = text.trim();
                if text.len() < TOKEN_CHARS_MIN {
                    return Err(format!(
                        "{at}: {} holds less than {TOKEN_CHARS_MIN} characters, which can be guessed; `gantry token` \
                         makes a good one",
                        path.display()
                    ));
                }
                hash_token(text)
            }
            _ => return Err(format!("{at}: give either sha256 or file")),
        };
        let role = match token.role {
            file::TokenRole::Read => Role::Read,
            file::TokenRole::Admin => Role::Admin,
        };
        tokens.push(TokenHash { name: token.name, role, sha256 });
    }
    Ok(HttpOptions { tokens: Tokens(tokens.into()) })
}

fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

fn check_group(group: file::Group, own_node: &str) -> Result<GroupOptions, String> {
    let name = group.name;
    check_name("group.name", &name)?;
    let at = |key: &str| format!("group `{name}`: {key}");
    let client_listen = parse_addr(&at("client_listen"), &group.client_listen)?;
    if group.members.is_empty() || group.members.len() > MEMBERS_MAX {
        return Err(format!(
            "group `{name}` has {} [[group.member]], allowed are 1 to {MEMBERS_MAX}",
            group.members.len()
        ));
    }
    let mut members = Vec::with_capacity(group.members.len());
    let (mut nodes, mut ids, mut raft_addrs) = (HashSet::new(), HashSet::new(), HashSet::new());
    for member in group.members {
        check_name(&at("member.node"), &member.node)?;
        check_host_port(&at("member.raft_addr"), &member.raft_addr)?;
        let client_addr = parse_addr(&at("member.client_addr"), &member.client_addr)?;
        if client_addr.ip().is_unspecified() {
            return Err(format!(
                "group `{name}`: client_addr {client_addr} cannot be connected to; clients are told it"
            ));
        }
        let id = match member.id {
            None if member.node == own_node => 0,
            None => {
                return Err(format!(
                    "group `{name}`: member `{}` has no id; only this node's own entry may have none, on a node that joins",
                    member.node
                ));
            }
            Some(0) => return Err(format!("group `{name}`: member ids start at 1; 0 names the leader in routes")),
            Some(id) => id,
        };
        if !nodes.insert(member.node.clone()) {
            return Err(format!("group `{name}`: node `{}` is listed twice", member.node));
        }
        if !ids.insert(id) {
            return Err(format!("group `{name}`: member id {id} is used twice"));
        }
        if !raft_addrs.insert(member.raft_addr.clone()) {
            return Err(format!("group `{name}`: raft_addr {} is used twice", member.raft_addr));
        }
        members.push(MemberOptions { node: member.node, id, raft_addr: member.raft_addr, client_addr });
    }
    members.sort_by_key(|member| member.id);
    let id_of = |node: &str| members.iter().find(|member| member.node == node).map(|member| member.id);
    let own_id =
        id_of(own_node).ok_or_else(|| format!("group `{name}`: this node, `{own_node}`, is not among the members"))?;
    if own_id == 0 && members.len() == 1 {
        return Err(format!("group `{name}`: a node that joins needs an entry of at least one member that it can ask"));
    }
    let preferred_leader = match &group.preferred_leader {
        None => None,
        Some(node) => Some(
            id_of(node).ok_or_else(|| format!("group `{name}`: preferred_leader `{node}` is not among the members"))?,
        ),
    };
    Ok(GroupOptions { name, client_listen, preferred_leader, own_id, members })
}

fn check_storage(storage: &file::Storage, message_bytes_max: u64) -> Result<StorageOptions, String> {
    let bytes = storage.segment_bytes;
    if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes) {
        return Err(format!("storage.segment_bytes is {bytes} bytes, allowed are 16MiB to 16GiB"));
    }
    if !bytes.is_multiple_of(4_096) {
        return Err(format!("storage.segment_bytes is {bytes} bytes, not a multiple of 4KiB"));
    }
    if bytes < 2 * message_bytes_max {
        return Err(format!("storage.segment_bytes ({bytes}) must be at least twice broker.message_bytes_max"));
    }
    let flush = match storage.flush {
        file::Flush::Sync => FlushOptions::Sync,
        file::Flush::Async => FlushOptions::Async { interval: storage.flush_interval },
    };
    if !(Duration::from_millis(10)..=Duration::from_secs(1)).contains(&storage.flush_interval) {
        return Err(format!("storage.flush_interval is {:?}, allowed are 10ms to 1s", storage.flush_interval));
    }
    if storage.ballast_bytes > BALLAST_BYTES_MAX {
        return Err(format!("storage.ballast_bytes is {} bytes, allowed are 0 to 16GiB", storage.ballast_bytes));
    }
    let day = Duration::from_secs(24 * 3_600);
    if !(Duration::from_secs(60)..=7 * day).contains(&storage.scrub_interval) {
        return Err(format!("storage.scrub_interval is {:?}, allowed are 1m to 7d", storage.scrub_interval));
    }
    if (1..1 << 20).contains(&storage.scrub_rate) {
        let rate = storage.scrub_rate;
        return Err(format!("storage.scrub_rate is {rate} bytes, allowed are 1MiB and more, or 0B to scrub nothing"));
    }
    Ok(StorageOptions {
        segment_bytes: bytes,
        flush,
        flush_interval: storage.flush_interval,
        allow_unproven_filesystem: storage.allow_unproven_filesystem,
        mount_identity: storage.mount_identity,
        disk: check_disk(storage)?,
        ballast_bytes: storage.ballast_bytes,
        cold_read_rate: storage.cold_read_rate,
        runtime_dir: runtime_dir(storage.runtime_dir.clone()),
        scrub_rate: storage.scrub_rate,
        scrub_interval: storage.scrub_interval,
    })
}

/// What is configured, else what a service manager has made for this process.
fn runtime_dir(configured: Option<PathBuf>) -> Option<PathBuf> {
    configured.or_else(|| {
        let given = std::env::var("RUNTIME_DIRECTORY").ok()?;
        Some(PathBuf::from(given.split(':').next()?))
    })
}

fn check_disk(storage: &file::Storage) -> Result<DiskLimits, String> {
    let (early, forced, free) =
        (storage.disk_early_percent, storage.disk_forced_percent, storage.disk_free_percent_min);
    if !(1..=99).contains(&early) || !(1..=99).contains(&forced) || early >= forced {
        return Err(format!(
            "storage.disk_early_percent ({early}) must be below storage.disk_forced_percent ({forced}), both 1 to 99"
        ));
    }
    if !(1..=50).contains(&free) || u32::from(forced) + u32::from(free) > 100 {
        return Err(format!(
            "storage.disk_free_percent_min is {free}, allowed are 1 to 50, and at most {} with \
             storage.disk_forced_percent = {forced}: retention must make room before messages are refused",
            100 - forced
        ));
    }
    Ok(DiskLimits {
        early_percent: early,
        forced_percent: forced,
        free_percent_min: free,
        segment_bytes: storage.segment_bytes,
    })
}

fn check_retention(retention: file::Retention) -> Result<RetentionOptions, String> {
    let file::Retention { time, delete_hours, check_interval } = retention;
    if !(Duration::from_secs(1)..=RETENTION_TIME_MAX).contains(&time) {
        return Err(format!("retention.time is {time:?}, allowed are 1s to 3650d"));
    }
    if !(Duration::from_millis(100)..=Duration::from_secs(3_600)).contains(&check_interval) {
        return Err(format!("retention.check_interval is {check_interval:?}, allowed are 100ms to 1h"));
    }
    if let Some(hour) = delete_hours.iter().find(|hour| **hour > 23) {
        return Err(format!("retention.delete_hours has {hour}, allowed are the hours 0 to 23 (UTC)"));
    }
    Ok(RetentionOptions { time, delete_hours, check_interval })
}

fn check_raft(raft: &file::Raft) -> Result<RaftOptions, String> {
    let (heartbeat, min, max) = (raft.heartbeat_interval, raft.election_timeout_min, raft.election_timeout_max);
    if !(Duration::from_millis(10)..=Duration::from_secs(10)).contains(&heartbeat) {
        return Err(format!("raft.heartbeat_interval is {heartbeat:?}, allowed are 10ms to 10s"));
    }
    if min < 2 * heartbeat {
        return Err(format!(
            "raft.election_timeout_min ({min:?}) must be at least twice raft.heartbeat_interval ({heartbeat:?})"
        ));
    }
    if max <= min || max > Duration::from_secs(60) {
        return Err(format!(
            "raft.election_timeout_max ({max:?}) must be longer than raft.election_timeout_min ({min:?}), and at most 60s"
        ));
    }
    let rate = raft.catch_up_rate;
    if rate != 0 && rate < CATCH_UP_RATE_MIN {
        return Err(format!("raft.catch_up_rate is {rate} bytes, allowed are 1MiB and more, or 0B for no limit"));
    }
    Ok(RaftOptions {
        heartbeat_interval: heartbeat,
        election_timeout_min: min,
        election_timeout_max: max,
        catch_up_rate: (rate != 0).then_some(rate),
    })
}

fn check_broker(broker: &file::Broker) -> Result<BrokerOptions, String> {
    if !(1..=QUEUES_MAX).contains(&broker.auto_create_queues) {
        return Err(format!(
            "broker.auto_create_queues is {}, allowed are 1 to {QUEUES_MAX}",
            broker.auto_create_queues
        ));
    }
    if !(1_024..=MESSAGE_BYTES_MAX).contains(&broker.message_bytes_max) {
        return Err(format!(
            "broker.message_bytes_max is {} bytes, allowed are 1KiB to {}MiB",
            broker.message_bytes_max,
            MESSAGE_BYTES_MAX >> 20
        ));
    }
    Ok(BrokerOptions {
        auto_create_topics: broker.auto_create_topics,
        auto_create_groups: broker.auto_create_groups,
        auto_create_queues: broker.auto_create_queues,
        message_bytes_max: usize::try_from(broker.message_bytes_max).expect("limited above"),
        delay_levels: DelayLevels::parse(&broker.delay_levels).map_err(|why| format!("broker.delay_levels: {why}"))?,
        timer_delay_max: check_timer_delay(broker.timer_delay_max)?,
        transactions: check_transactions(broker)?,
    })
}

fn check_metrics(metrics: &file::Metrics) -> Result<MetricsOptions, String> {
    let names_max = metrics.names_max;
    if names_max > METRIC_NAMES_MAX {
        return Err(format!("metrics.names_max is {names_max}, allowed are 0 to {METRIC_NAMES_MAX}"));
    }
    Ok(MetricsOptions { names_max })
}

fn check_log(log: file::Log) -> Result<LogOptions, String> {
    if log.filter.trim().is_empty() {
        return Err("log.filter is empty; write `off` to log nothing".to_owned());
    }
    let format = match log.format {
        file::LogFormat::Text => LogFormat::Text,
        file::LogFormat::Json => LogFormat::Json,
    };
    Ok(LogOptions { filter: log.filter, format })
}

fn check_timer_delay(max: Duration) -> Result<Duration, String> {
    if (Duration::from_secs(1)..=TIMER_DELAY_MAX).contains(&max) {
        return Ok(max);
    }
    Err(format!("broker.timer_delay_max is {max:?}, allowed are 1s to 40d"))
}

fn check_transactions(broker: &file::Broker) -> Result<TransactionSettings, String> {
    let file::Broker { transaction_timeout: timeout, transaction_check_interval: check_interval, .. } = *broker;
    let check_max = broker.transaction_check_max;
    for (key, value) in [("timeout", timeout), ("check_interval", check_interval)] {
        if !(Duration::from_millis(100)..=Duration::from_secs(3_600)).contains(&value) {
            return Err(format!("broker.transaction_{key} is {value:?}, allowed are 100ms to 1h"));
        }
    }
    if !(1..=1_000).contains(&check_max) {
        return Err(format!("broker.transaction_check_max is {check_max}, allowed are 1 to 1000"));
    }
    Ok(TransactionSettings { timeout, check_interval, check_max })
}

fn parse_cluster_id(text: &str) -> Result<[u8; 16], String> {
    let wrong = || format!("cluster.id is `{text}`, expected 32 hex digits; `gantry cluster-id` prints a new one");
    if text.len() != 32 || !text.is_ascii() {
        return Err(wrong());
    }
    let mut id = [0; 16];
    for (byte, digits) in id.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).map_err(|_| wrong())?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
    }
    if id == [0; 16] {
        return Err("cluster.id is all zeros; `gantry cluster-id` prints a new one".to_owned());
    }
    Ok(id)
}

/// Names become directories and text on the wire, so they admit letters, digits, `_` and `-` only.
fn check_name(key: &str, name: &str) -> Result<(), String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(allowed) {
        return Err(format!("{key} is `{name}`, allowed are 1 to {NAME_BYTES_MAX} letters, digits, `_` and `-`"));
    }
    Ok(())
}

fn parse_addr(key: &str, text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{key} is `{text}`, expected an address and a port such as 127.0.0.1:10911"))
}

fn check_host_port(key: &str, text: &str) -> Result<(), String> {
    let valid = text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains(char::is_whitespace) && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    if valid { Ok(()) } else { Err(format!("{key} is `{text}`, expected host:port")) }
}

#[cfg(test)]
mod tests;
