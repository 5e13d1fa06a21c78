//! The tables of the TOML file as they are written: names, types and defaults, nothing checked across keys.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::unit;
use crate::delay_levels::DEFAULT_LEVELS;
use crate::processor::TransactionSettings;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cluster {
    #[serde(default = "default_cluster_name")]
    pub(super) name: String,
    pub(super) id: String,
}

fn default_cluster_name() -> String {
    "DefaultCluster".to_owned()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) data_dir: PathBuf,
    pub(super) raft_listen: String,
    #[serde(default = "default_http_listen")]
    pub(super) http_listen: String,
    pub(super) namesrv: Vec<String>,
    #[serde(default)]
    pub(super) insecure_public: bool,
    pub(super) join_tokens: Option<PathBuf>,
    #[serde(default = "default_stop_forward_time", deserialize_with = "unit::duration")]
    pub(super) stop_forward_time: Duration,
}

fn default_http_listen() -> String {
    "127.0.0.1:8081".to_owned()
}

fn default_stop_forward_time() -> Duration {
    Duration::from_secs(35)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Http {
    pub(super) requests_per_second: u32,
    pub(super) watch_listen: Option<String>,
}

impl Default for Http {
    fn default() -> Self {
        Self { requests_per_second: 50, watch_listen: None }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Token {
    pub(super) name: String,
    pub(super) role: TokenRole,
    pub(super) sha256: Option<String>,
    pub(super) file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TokenRole {
    Read,
    Admin,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) client_listen: String,
    pub(super) preferred_leader: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Member {
    pub(super) node: String,
    pub(super) id: Option<u64>,
    pub(super) raft_addr: String,
    pub(super) client_addr: String,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Flush {
    Sync,
    Async,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Storage {
    #[serde(deserialize_with = "unit::bytes")]
    pub(super) segment_bytes: u64,
    pub(super) flush: Flush,
    #[serde(deserialize_with = "unit::duration")]
    pub(super) flush_interval: Duration,
    pub(super) allow_unproven_filesystem: bool,
    pub(super) mount_identity: bool,
    pub(super) disk_early_percent: u8,
    pub(super) disk_forced_percent: u8,
    pub(super) disk_free_percent_min: u8,
    #[serde(deserialize_with = "unit::bytes")]
    pub(super) ballast_bytes: u64,
    pub(super) runtime_dir: Option<PathBuf>,
    #[serde(deserialize_with = "unit::bytes")]
    pub(super) cold_read_rate: u64,
    #[serde(deserialize_with = "unit::bytes")]
    pub(super) scrub_rate: u64,
    #[serde(deserialize_with = "unit::duration")]
    pub(super) scrub_interval: Duration,
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            segment_bytes: 1 << 30,
            flush: Flush::Sync,
            flush_interval: Duration::from_millis(200),
            allow_unproven_filesystem: false,
            mount_identity: true,
            disk_early_percent: 75,
            disk_forced_percent: 85,
            disk_free_percent_min: 10,
            ballast_bytes: 256 << 20,
            runtime_dir: None,
            cold_read_rate: 256 << 20,
            scrub_rate: 16 << 20,
            scrub_interval: Duration::from_secs(24 * 3_600),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Retention {
    #[serde(deserialize_with = "unit::duration")]
    pub(super) time: Duration,
    pub(super) delete_hours: Vec<u8>,
    #[serde(deserialize_with = "unit::duration")]
    pub(super) check_interval: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(72 * 3_600),
            delete_hours: Vec::new(),
            check_interval: Duration::from_secs(10),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Raft {
    #[serde(deserialize_with = "unit::duration")]
    pub(super) heartbeat_interval: Duration,
    #[serde(deserialize_with = "unit::duration")]
    pub(super) election_timeout_min: Duration,
    #[serde(deserialize_with = "unit::duration")]
    pub(super) election_timeout_max: Duration,
    #[serde(deserialize_with = "unit::bytes")]
    pub(super) catch_up_rate: u64,
    #[serde(deserialize_with = "unit::duration")]
    pub(super) balance_after: Duration,
}

impl Default for Raft {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_millis(100),
            election_timeout_min: Duration::from_millis(300),
            election_timeout_max: Duration::from_millis(500),
            catch_up_rate: 32 << 20,
            balance_after: Duration::from_secs(30),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Broker {
    pub(super) auto_create_topics: bool,
    pub(super) auto_create_groups: bool,
    pub(super) auto_create_queues: u32,
    #[serde(deserialize_with = "unit::bytes")]
    pub(super) message_bytes_max: u64,
    pub(super) delay_levels: String,
    #[serde(deserialize_with = "unit::duration")]
    pub(super) timer_delay_max: Duration,
    #[serde(deserialize_with = "unit::duration")]
    pub(super) transaction_timeout: Duration,
    #[serde(deserialize_with = "unit::duration")]
    pub(super) transaction_check_interval: Duration,
    pub(super) transaction_check_max: u32,
}

impl Default for Broker {
    fn default() -> Self {
        let transactions = TransactionSettings::default();
        Self {
            auto_create_topics: false,
            auto_create_groups: true,
            auto_create_queues: 8,
            message_bytes_max: 4 << 20,
            delay_levels: DEFAULT_LEVELS.to_owned(),
            timer_delay_max: super::check::TIMER_DELAY_MAX,
            transaction_timeout: transactions.timeout,
            transaction_check_interval: transactions.check_interval,
            transaction_check_max: transactions.check_max,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Metrics {
    pub(super) names_max: usize,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { names_max: 1_000 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Tracing {
    pub(super) endpoint: Option<String>,
    pub(super) sample_ratio: f64,
    pub(super) service_name: String,
}

impl Default for Tracing {
    fn default() -> Self {
        Self { endpoint: None, sample_ratio: 0.01, service_name: "gantry".to_owned() }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Log {
    pub(super) filter: String,
    pub(super) format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self { filter: "info".to_owned(), format: LogFormat::Text }
    }
}
