//! `gantry operation`: long work that an operator has begun.

use std::time::Duration;

use anyhow::{Result, bail};
use broker::http::{OperationState, OperationStatus, Operations};
use clap::Subcommand;

use super::cluster::change;
use crate::exit_code::ExitCode;
use crate::http_get::NodesArgs;
use crate::output::{self, Format};

const LOOK_TIME_MAX: Duration = Duration::from_secs(5);
const WATCH_INTERVAL: Duration = Duration::from_millis(500);
/// Nobody answers for so long: there is nothing to watch.
const SILENCE_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Subcommand)]
pub(crate) enum OperationCommand {
    /// Show all operations that are remembered
    List {
        #[command(flatten)]
        nodes: NodesArgs,
    },
    /// Show one operation
    Show {
        /// Its name, such as `broker-a-812`
        operation: String,
        #[command(flatten)]
        nodes: NodesArgs,
    },
    /// Show how far one operation is, until it has ended
    Watch {
        /// Its name, such as `broker-a-812`
        operation: String,
        #[command(flatten)]
        nodes: NodesArgs,
    },
    /// Turn an operation back
    Cancel {
        /// Its name, such as `broker-a-812`
        operation: String,
        /// Say what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        nodes: NodesArgs,
    },
}

pub(crate) async fn run(command: OperationCommand, format: Format) -> Result<()> {
    match command {
        OperationCommand::List { nodes } => list(&nodes, format).await,
        OperationCommand::Show { operation, nodes } => {
            let status = find(&operation, &nodes).await?;
            if format == Format::Json { output::json(&status) } else { output::line(&in_one_line(&status)) }
        }
        OperationCommand::Watch { operation, nodes } => watch(&operation, &nodes, format).await,
        OperationCommand::Cancel { operation, dry_run, nodes } => {
            let path = format!("/v1/operations/{operation}/cancel?dry_run={dry_run}");
            change::<OperationStatus>(&nodes, &path, dry_run, format, in_one_line).await.map(drop)
        }
    }
}

async fn list(nodes: &NodesArgs, format: Format) -> Result<()> {
    let found: Operations = nodes.call("GET", "/v1/operations", None, LOOK_TIME_MAX).await?;
    let mut all = found.operations;
    all.sort_by_key(|status| status.started_ms);
    if format == Format::Json {
        return output::json(&all);
    }
    let rows = all.iter().map(|status| {
        [status.id.clone(), state(status).to_owned(), status.what.clone(), status.started_by.clone(), step(status)]
    });
    output::line(&output::table(&["operation", "state", "what", "by", "step"], rows))
}

async fn find(operation: &str, nodes: &NodesArgs) -> Result<OperationStatus> {
    nodes.call("GET", &format!("/v1/operations/{operation}"), None, LOOK_TIME_MAX).await
}

/// Shows how far an operation is, until it has ended. Fails if it was turned back.
pub(super) async fn watch(operation: &str, nodes: &NodesArgs, format: Format) -> Result<()> {
    let mut shown = String::new();
    let mut heard = tokio::time::Instant::now();
    loop {
        match find(operation, nodes).await {
            Ok(status) => {
                heard = tokio::time::Instant::now();
                let line = in_one_line(&status);
                if status.ended_ms.is_some() {
                    if format == Format::Json {
                        output::json(&status)?
                    } else {
                        output::line(&line)?
                    }
                    if status.state == OperationState::Undone {
                        bail!("operation {operation} was turned back: {}", status.result.unwrap_or_default());
                    }
                    return Ok(());
                }
                if line != shown {
                    if format == Format::Json {
                        output::json(&status)?
                    } else {
                        output::line(&line)?
                    }
                    shown = line;
                }
            }
            // An election may be under way, or a node restart.
            Err(error) if ExitCode::of(&error) == ExitCode::NotFound.number() || heard.elapsed() > SILENCE_MAX => {
                return Err(error);
            }
            Err(_) => {}
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

fn state(status: &OperationStatus) -> &'static str {
    match status.state {
        OperationState::Running => "running",
        OperationState::Returning => "returning",
        OperationState::Done => "done",
        OperationState::Undone => "undone",
    }
}

fn step(status: &OperationStatus) -> String {
    let mut text = match (&status.waits_for, &status.result) {
        (Some(waits_for), _) => format!("waits for {waits_for}"),
        (None, Some(result)) => result.clone(),
        (None, None) => String::new(),
    };
    if let Some(progress) = status.progress {
        let mib = |bytes: u64| bytes >> 20;
        let percent = (progress.done_bytes * 100).checked_div(progress.total_bytes).unwrap_or(100);
        let left = progress.left_ms.map_or_else(String::new, |left| format!(", about {} s left", left.div_ceil(1_000)));
        text += &format!(
            "; log {percent} % of {} MiB, {} MiB/s{left}",
            mib(progress.total_bytes),
            mib(progress.bytes_per_second)
        );
    }
    text
}

/// An operation in one line.
pub(super) fn in_one_line(status: &OperationStatus) -> String {
    let step = step(status);
    let separator = if step.is_empty() { "" } else { ": " };
    format!("operation {} ({}, {}){separator}{step}", status.id, status.what, state(status))
}
