//! `gantry broker`: one node in the foreground.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use broker::config::Options;
use broker::node::{Bootstrap, ClientPorts, Node, StartError, StartOptions, StopKind};
use clap::Args;
use tokio::io::AsyncWriteExt;
use tokio::sync::oneshot;

use crate::closer::Closer;
use crate::exit_code::ExitCode;
use crate::logging::{self, LogArgs};
use crate::stop_signal::{Stop, StopSignal};
use crate::{inherited, supervise};

#[derive(Debug, Args)]
pub(crate) struct BrokerArgs {
    /// Configuration file; see conf/broker.toml
    #[arg(short, long)]
    pub(crate) config: PathBuf,
    /// Stay in front of the broker: keep its client ports open when it crashes, and start it again at once
    #[arg(long)]
    supervise: bool,
    /// Standard input is the socket of a supervisor
    #[arg(long, hide = true, conflicts_with = "supervise")]
    supervised: bool,
    /// Allow to begin with an empty directory: for the very first start of a new cluster only. A replica that has voted
    /// and starts empty can lose acknowledged messages
    #[arg(long, env = "GANTRY_BOOTSTRAP", value_parser = clap::builder::BoolishValueParser::new(),
          num_args = 0, default_missing_value = "true", default_value = "false")]
    bootstrap: bool,
    /// If the directory is empty, wait until `gantry cluster bootstrap` has looked at all nodes and lets them begin. Without
    /// effect once it holds anything
    #[arg(long, conflicts_with_all = ["bootstrap", "rejoin"])]
    await_bootstrap: bool,
    /// Let an empty directory come back as a new member: this node's disk was lost. It asks the leader for another identity,
    /// is sent everything, and takes the place of what it was
    #[arg(long, conflicts_with = "bootstrap")]
    rejoin: bool,
    /// Stop when standard input, a pipe, ends
    #[arg(long, hide = true)]
    pub(crate) stop_with_stdin: bool,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

pub(crate) fn run(args: BrokerArgs, started: Instant) -> Result<()> {
    if args.supervise {
        return supervise::run(&args);
    }
    let options = Options::load(&args.config).context(ExitCode::BadConfig)?;
    logging::start(&args.log, &options.log)?;
    let inherited = inherited::take()?;
    let client_ports = options.groups.iter().map(|group| group.client_listen.port()).collect();
    let _closer = Closer::start(client_ports)
        .inspect_err(|error| tracing::warn!(%error, "a kill of this broker will be noticed later than it could be"));
    let runtime = crate::runtime()?;
    let result = runtime.block_on(async {
        let (accepting, accepts) = oneshot::channel();
        let mut stop = if args.supervised {
            let (stop, mut supervisor) = StopSignal::supervised()?;
            tokio::spawn(async move {
                if accepts.await.is_ok() {
                    // A supervisor that is gone is noticed elsewhere.
                    let _ = supervisor.write_all(&[supervise::ACCEPTS]).await;
                }
                // Kept open: its end would tell the supervisor that this process ends.
                std::future::pending::<()>().await;
            });
            stop
        } else {
            StopSignal::new(args.stop_with_stdin)?
        };
        let ports = ClientPorts { inherited, accepting: Some(accepting) };
        let bootstrap = match (args.bootstrap, args.await_bootstrap) {
            (true, _) => Bootstrap::Allowed,
            (false, true) => Bootstrap::WhenCalled,
            (false, false) => Bootstrap::Forbidden,
        };
        let start = StartOptions { bootstrap, rejoin: args.rejoin, started };
        let node = tokio::select! {
            node = Node::start(options, start, ports) => node.map_err(explain)?,
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
            Stop::Process | Stop::Orphaned => StopKind::Node,
            Stop::Everything => StopKind::Cluster,
        };
        let again = async {
            if why != Stop::Orphaned {
                stop.recv().await;
            }
        };
        node.stop(kind, again).await;
        Ok(())
    });
    // A thread that hangs in a broken disk must not keep a dead node's ports open.
    runtime.shutdown_background();
    result
}

fn explain(error: StartError) -> anyhow::Error {
    use raft_store::Error;
    // What somebody else wrote, and what is missing, is the operator's to settle, and another try changes nothing. Anything
    // else that a log or a file refuses is a disk's fault.
    let failed_disk = match &error {
        StartError::Log { source, .. } => !matches!(
            source,
            Error::Options(_)
                | Error::NoStore { .. }
                | Error::UnprovenFileSystem { .. }
                | Error::ForeignCluster { .. }
                | Error::ForeignNode { .. }
                | Error::ForeignGroup { .. }
                | Error::ForeignFile { .. }
                | Error::FormatVersion { .. }
                | Error::NoPermission { .. }
        ),
        StartError::Store { source, .. } => !matches!(source, broker::store::Error::Foreign { .. }),
        _ => false,
    };
    let error = anyhow::Error::new(error).context("the node did not start");
    if failed_disk { error.context(ExitCode::StorageFailed) } else { error }
}
