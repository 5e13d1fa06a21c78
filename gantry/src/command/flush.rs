//! `gantry flush`: when messages of a group count as acknowledged.

use std::time::Duration;

use anyhow::{Result, bail};
use broker::http::{FlushMode, FlushStatus};
use clap::{Args, ValueEnum};

use crate::http_get::NodesArgs;
use crate::output::{self, Format};

/// Every replica may have to sync its log.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(40);

#[derive(Debug, Args)]
pub(crate) struct FlushArgs {
    /// The group
    group: String,
    /// `sync`: on the disks of a majority; `async`: in the memory of a majority, and on disk soon after
    mode: Mode,
    #[command(flatten)]
    nodes: NodesArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    Sync,
    Async,
}

pub(crate) async fn run(args: FlushArgs, format: Format) -> Result<()> {
    let mode = match args.mode {
        Mode::Sync => "sync",
        Mode::Async => "async",
    };
    let path = format!("/v1/groups/{}/flush?mode={mode}", args.group);
    let status: FlushStatus = args.nodes.post(&path, CHANGE_TIME_MAX).await?;
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
