//! `gantry broker`: one node in the foreground.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use broker::config::Options;
use broker::node::{Node, StartError, StartOptions, StopKind};
use clap::Args;

use crate::exit_code::ExitCode;
use crate::logging::{self, LogArgs};
use crate::stop_signal::{Stop, StopSignal};

#[derive(Debug, Args)]
pub(crate) struct BrokerArgs {
    /// Configuration file; see conf/broker.toml
    #[arg(short, long)]
    config: PathBuf,
    /// Allow to begin with an empty directory: for the very first start of a new cluster only. A replica that has voted
    /// and starts empty can lose acknowledged messages
    #[arg(long, env = "GANTRY_BOOTSTRAP", value_parser = clap::builder::BoolishValueParser::new(),
          num_args = 0, default_missing_value = "true", default_value = "false")]
    bootstrap: bool,
    /// Let an empty directory come back as a new member: this node's disk was lost. It asks the leader for another identity,
    /// is sent everything, and takes the place of what it was
    #[arg(long, conflicts_with = "bootstrap")]
    rejoin: bool,
    /// Stop when standard input, a pipe, ends
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
    #[command(flatten)]
    log: LogArgs,
}

pub(crate) fn run(args: BrokerArgs, started: Instant) -> Result<()> {
    logging::start(&args.log)?;
    let options = Options::load(&args.config).context(ExitCode::BadConfig)?;
    let runtime = crate::runtime()?;
    let result = runtime.block_on(async {
        let mut stop = StopSignal::new(args.stop_with_stdin)?;
        let start = StartOptions { bootstrap: args.bootstrap, rejoin: args.rejoin, started };
        let node = tokio::select! {
            node = Node::start(options, start) => node.map_err(explain)?,
            _ = stop.recv() => bail!("stopped while starting"),
        };
        let why = tokio::select! {
            why = stop.recv() => why,
            reason = node.failed() => {
                node.abandon().await;
                return Err(anyhow::anyhow!(reason).context(ExitCode::StorageFailed));
            }
        };
        tracing::info!(?why, "stopping");
        let kind = match why {
            Stop::Process => StopKind::Node,
            Stop::Everything => StopKind::Cluster,
        };
        let again = async {
            stop.recv().await;
        };
        node.stop(kind, again).await;
        Ok(())
    });
    // A thread that hangs in a broken disk must not keep a dead node's ports open.
    runtime.shutdown_background();
    result
}

fn explain(error: StartError) -> anyhow::Error {
    // A missing store is the operator's to settle; anything else a log or a file refuses is a disk's fault.
    let failed_disk = match &error {
        StartError::Log { source, .. } => !matches!(source, raft_store::Error::NoStore { .. }),
        StartError::Store { .. } => true,
        _ => false,
    };
    let error = anyhow::Error::new(error).context("the node did not start");
    if failed_disk { error.context(ExitCode::StorageFailed) } else { error }
}
