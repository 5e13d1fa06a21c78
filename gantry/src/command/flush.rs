//! `gantry flush`: when messages of a group count as acknowledged.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use broker::http::{FlushMode, FlushStatus, NodeStatus, ReplicaRole};
use clap::{Args, ValueEnum};

use crate::exit_code::ExitCode;
use crate::http_get::{get_json, post_json};
use crate::output::{self, Format};

const LOOK_TIME_MAX: Duration = Duration::from_secs(5);
/// Every replica may have to sync its log.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(40);

#[derive(Debug, Args)]
pub(crate) struct FlushArgs {
    /// The group
    group: String,
    /// `sync`: on the disks of a majority; `async`: in the memory of a majority, and on disk soon after
    mode: Mode,
    /// HTTP addresses (`node.http_listen`) of nodes, separated by commas: the leader of the group must be among them
    #[arg(long, value_delimiter = ',', required = true)]
    nodes: Vec<SocketAddr>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    Sync,
    Async,
}

pub(crate) async fn run(args: FlushArgs, format: Format) -> Result<()> {
    let leader = find_leader(&args).await?;
    let mode = match args.mode {
        Mode::Sync => "sync",
        Mode::Async => "async",
    };
    let path = format!("/v1/groups/{}/flush?mode={mode}", args.group);
    let status: FlushStatus = post_json(leader, &path, CHANGE_TIME_MAX).await?;
    if format == Format::Json {
        output::json(&status)?;
    } else {
        let group = &args.group;
        output::line(&match status.mode {
            FlushMode::Async => format!("{group} flushes asynchronously from entry {} on", status.entry),
            FlushMode::Sync => format!(
                "{group} flushes synchronously: entry {} and all before it are on the disk of every replica that answers",
                status.entry
            ),
        })?;
    }
    if !status.waiting_for.is_empty() {
        bail!("not synced yet: {}; what only they and one other hold may be in memory", status.waiting_for.join(", "));
    }
    Ok(())
}

async fn find_leader(args: &FlushArgs) -> Result<SocketAddr> {
    let mut answered = false;
    for addr in &args.nodes {
        let Ok(status) = get_json::<NodeStatus>(*addr, "/v1/status", LOOK_TIME_MAX).await else { continue };
        answered = true;
        if status.groups.iter().any(|group| group.name == args.group && group.role == ReplicaRole::Leader) {
            return Ok(*addr);
        }
    }
    let code = if answered { ExitCode::NotFound } else { ExitCode::Unreachable };
    Err(anyhow::anyhow!("none of these nodes leads {}", args.group)).context(code)
}
