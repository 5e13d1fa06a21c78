//! `gantry health`: what a node says about itself, as an exit code. An image without a shell has nothing else to ask with.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::exit_code::ExitCode;
use crate::http_get;
use crate::output::{self, Format};

const CALL_TIME_MAX: Duration = Duration::from_secs(3);

#[derive(Debug, Args)]
pub(crate) struct HealthArgs {
    /// HTTP address of the broker or name server
    #[arg(default_value = "127.0.0.1:8081")]
    node: SocketAddr,
    /// Only whether the process can do its work at all: 0 also while it starts, drains or waits for a majority
    #[arg(long)]
    live: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Health {
    health: String,
}

pub(crate) async fn run(args: HealthArgs, format: Format) -> Result<()> {
    let path = if args.live { "/health/live" } else { "/health/ready" };
    let answer = http_get::request("GET", args.node, path, CALL_TIME_MAX).await;
    let (status, body) = answer.context(ExitCode::Unreachable)?;
    let told: Health = serde_json::from_slice(&body)
        .with_context(|| format!("http://{}{path} answered {status}, not as Gantry does", args.node))?;
    if status != 200 {
        return Err(anyhow!("{}", told.health).context(ExitCode::NotHealthy));
    }
    if format == Format::Json { output::json(&told) } else { output::line(&told.health) }
}
