//! What `GET /v1/status` answers.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::FlushMode;

/// Where a node is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// Clients are accepted, logs are being recovered.
    Starting,
    /// Every group has been started.
    Running,
    /// Leaderships move away and requests are forwarded.
    Stopping,
    /// A disk failed; the process is about to end.
    Failed,
}

/// One node.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NodeStatus {
    /// RocketMQ's cluster name.
    pub cluster: String,
    /// The cluster's identity in hex.
    pub cluster_id: String,
    /// The node's name.
    pub node: String,
    /// Version of the program.
    pub version: String,
    /// Where the node is in its life.
    pub state: NodeState,
    /// Whether `/health/ready` says yes, and else why not.
    pub ready: bool,
    /// One sentence.
    pub health: String,
    /// Since the process started.
    pub uptime_ms: u64,
    /// From the start of the process until every group had a known leader, once it had.
    pub start_to_ready_ms: Option<u64>,
    /// One entry for each replica on this node.
    pub groups: Vec<GroupStatus>,
    /// One entry for each name server this node tells who leads.
    pub name_servers: Vec<NameServerStatus>,
    /// How long messages stay.
    pub retention: RetentionStatus,
    /// It leads nothing as long as others can.
    #[serde(default)]
    pub drained: bool,
    /// The number of its process.
    #[serde(default)]
    pub pid: u32,
}

/// How long syncs of a log took since it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SyncStatus {
    /// How many there were.
    pub count: u64,
    /// On average, in microseconds.
    pub mean_us: u64,
    /// 99 of 100 took at most so long, in microseconds; none if that is longer than 2.5 s.
    pub p99_us: Option<u64>,
}

/// How long messages stay on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RetentionStatus {
    /// Segments go when their newest message is older than this.
    pub time_ms: u64,
    /// The hours of the day, UTC, in which they go; none: at any hour.
    pub delete_hours: Vec<u8>,
    /// What the disk asks for.
    pub pressure: RetentionPressure,
    /// By how much the node's clock ran ahead, while nothing is dropped for its age because of that.
    pub clock_ahead_ms: Option<i64>,
}

/// What a disk asks of retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RetentionPressure {
    /// Nothing.
    None,
    /// To drop what is old enough at any hour.
    Early,
    /// To drop the oldest segment, however young.
    Forced,
}

/// What the log of a replica holds, as of the last look of retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogStatus {
    /// The first entry held.
    pub first: Option<u64>,
    /// Where it starts.
    pub start_position: u64,
    /// Where the last one ends.
    pub end_position: u64,
    /// Segment files.
    pub segments: u64,
    /// What they take on the disk.
    pub file_bytes: u64,
    /// When the first message held was stored.
    pub earliest_message_ms: Option<i64>,
    /// The entry whose checkpoint a new replica starts from.
    pub snapshot: Option<u64>,
    /// Segments dropped since the process started.
    pub dropped_segments: u64,
}

/// One replica as its node sees it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct GroupStatus {
    /// RocketMQ's broker name.
    pub name: String,
    /// Where clients reach this replica.
    #[schema(value_type = String)]
    pub client_addr: SocketAddr,
    /// Raft identity of this replica.
    pub id: u64,
    /// Identities it has given up.
    #[serde(default)]
    pub retired: Vec<u64>,
    /// It has given up its identity and does not vote under the next one yet: the group has one replica less.
    #[serde(default)]
    pub returning: bool,
    /// Why this node holds no replica: it waits to be let in, or was removed.
    #[serde(default)]
    pub outside: Option<String>,
    /// The members are in the middle of a change: a majority of those before and of those after must agree.
    #[serde(default)]
    pub joint: bool,
    /// How often the group has gone on without its majority.
    #[serde(default)]
    pub generation: u64,
    /// When a message counts as acknowledged; none while the log is being recovered.
    #[serde(default)]
    pub flush: Option<FlushMode>,
    /// What the replica is.
    pub role: ReplicaRole,
    /// A leader that answers clients: it has applied everything of earlier terms.
    pub gates_open: bool,
    /// The term of the vote.
    pub term: u64,
    /// Who leads, if known.
    pub leader: Option<LeaderStatus>,
    /// The node that leads whenever it can.
    #[serde(default)]
    pub preferred_leader: Option<String>,
    /// How long syncs of the log take.
    #[serde(default)]
    pub sync: Option<SyncStatus>,
    /// Last entry in the log.
    pub last: Option<u64>,
    /// Last entry known to be on this node's disk.
    pub flushed: Option<u64>,
    /// Last entry that a majority has, as far as this replica knows.
    pub committed: Option<u64>,
    /// Last entry that the state machine has seen.
    pub applied: Option<u64>,
    /// How far the start is with applying the log again, until everything that was in it can be read.
    #[serde(default)]
    pub replay: Option<ReplayStatus>,
    /// How full the disk is that holds the replica; `None` while it is being recovered.
    #[serde(default)]
    pub disk: Option<DiskStatus>,
    /// The derived file that waits for room on the disk: consumers see nothing new meanwhile.
    #[serde(default)]
    pub derived_files_wait: Option<String>,
    /// All replicas.
    pub members: Vec<MemberStatus>,
    /// What the log holds, once the replica runs.
    pub log: Option<LogStatus>,
    /// Parts of this replica's log that are damaged and not repaired yet. While there is one it does not lead.
    #[serde(default)]
    pub damaged: Vec<DamageStatus>,
    /// Why the repair has not succeeded yet, or what the start waits for.
    #[serde(default)]
    pub repair_error: Option<String>,
    /// No member has a good copy of what is damaged: the group stands still until a person acts.
    #[serde(default)]
    pub damaged_everywhere: bool,
    /// Damaged ranges repaired from peers since the start of the process.
    #[serde(default)]
    pub repaired_ranges: u64,
    /// How re-reading the log from the disk goes, unless it is switched off.
    #[serde(default)]
    pub scrub: Option<ScrubStatus>,
}

/// Applying the log again at a start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplayStatus {
    /// ConsumeQueue and IndexFile are built from nothing. If not, only what they lack is added to them.
    pub rebuilds: bool,
    /// How much is done, of a hundred.
    pub percent: u8,
    /// Bytes of the log gone through.
    pub done_bytes: u64,
    /// Bytes of the log still to go through.
    pub left_bytes: u64,
    /// Messages put into their queues.
    pub messages: u64,
    /// On average so far.
    pub messages_per_second: u64,
    /// How long the rest takes at the rate so far, once there is one.
    pub left_ms: Option<u64>,
    /// The same in one sentence.
    pub text: String,
}

/// A damaged part of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DamageStatus {
    /// The segment's file.
    pub file: String,
    /// First damaged position.
    pub from: u64,
    /// End of the damage, as far as it is known.
    pub to: u64,
    /// What was found.
    pub found: String,
}

/// Passes over the sealed segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubStatus {
    /// When the present pass began, in milliseconds since 1970.
    pub pass_started_ms: Option<u64>,
    /// When the last complete pass ended.
    pub last_pass_ms: Option<u64>,
    /// Damaged places found since the start of the process.
    pub faults: u64,
}

/// How full a disk is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskStatus {
    /// `calm`, `early`, `forced` or `full`.
    pub level: String,
    /// What is used and what is free together.
    pub total_bytes: u64,
    /// What this process can still use.
    pub free_bytes: u64,
    /// Why messages of clients are refused, if they are.
    pub refusal: Option<String>,
}

/// What a replica is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReplicaRole {
    /// Not started yet: its log is being recovered.
    Recovering,
    /// Recovered, and waiting for another identity: what it had acknowledged may be gone.
    Returning,
    /// Not a member yet: it waits to be let in.
    Joining,
    /// No member any more: it has stopped.
    Removed,
    /// It leads.
    Leader,
    /// It follows a leader.
    Follower,
    /// It knows of no leader.
    Electing,
    /// Its storage or Raft has failed.
    Failed,
}

/// Who leads a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaderStatus {
    /// Raft identity.
    pub id: u64,
    /// Node name.
    pub node: String,
    /// Where clients reach it.
    pub client_addr: String,
}

/// One member of a group; `matched` is known to the leader only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberStatus {
    /// Raft identity.
    pub id: u64,
    /// Node name.
    pub node: String,
    /// Where clients reach it.
    pub client_addr: String,
    /// It votes; a learner does not.
    pub voter: bool,
    /// Last entry that the leader knows this member has.
    pub matched: Option<u64>,
    /// It is far behind, and the leader sends it what it lacks at the rate for that.
    pub catching_up: bool,
}

/// How registration with one name server goes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NameServerStatus {
    /// `host:port`.
    pub addr: String,
    /// The last registration was answered, and nothing newer waits.
    pub registered: bool,
    /// Why the last try failed.
    pub last_error: Option<String>,
}
