//! Log lines of the serving commands, on standard error.

use std::io::IsTerminal;

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// What to log: a level, or `target=level` pairs separated by commas
    #[arg(long, env = "GANTRY_LOG", default_value = "info")]
    log: String,
    /// How to write log lines
    #[arg(long, value_enum, env = "GANTRY_LOG_FORMAT", default_value_t)]
    log_format: LogFormat,
}

/// Sends log lines to standard error for the rest of the process.
pub(crate) fn start(args: &LogArgs) -> Result<()> {
    let filter = EnvFilter::try_new(&args.log).map_err(|error| anyhow!("--log {}: {error}", args.log))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let started = match args.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    started.map_err(|error| anyhow!("starting the log: {error}"))
}
