//! Log lines of the serving commands, on standard error.

use std::io::IsTerminal;

use anyhow::{Result, anyhow};
use broker::config::LogOptions;
use broker::http::{LogControl, install_log_control};
use clap::{Args, ValueEnum};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::exit_code::ExitCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// What to log: a level, or `target=level` pairs separated by commas [default: as the file says, else info]
    #[arg(long, env = "GANTRY_LOG")]
    pub(crate) log: Option<String>,
    /// How to write log lines [default: as the file says, else text]
    #[arg(long, value_enum, env = "GANTRY_LOG_FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
}

/// Reads a filter.
///
/// # Errors
/// A sentence that names what is wrong.
pub(crate) fn parse_filter(text: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(text).map_err(|error| format!("`{text}` is no log filter: {error}"))
}

/// Sends log lines to standard error for the rest of the process: what the command line or the environment says, else
/// what the file does.
///
/// # Errors
/// [`ExitCode::BadConfig`] if a filter is none.
pub(crate) fn start(args: &LogArgs, file: &LogOptions) -> Result<()> {
    let text = args.log.as_ref().unwrap_or(&file.filter);
    let filter = parse_filter(text).map_err(|why| anyhow!(why).context(ExitCode::BadConfig))?;
    let format = args.log_format.unwrap_or(match file.format {
        broker::config::LogFormat::Text => LogFormat::Text,
        broker::config::LogFormat::Json => LogFormat::Json,
    });
    let (filter, handle) = reload::Layer::new(filter);
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    let started = tracing_subscriber::registry().with(filter).with(lines).try_init();
    started.map_err(|error| anyhow!("starting the log: {error}"))?;
    install_log_control(Control(handle));
    Ok(())
}

/// The filter that is in force, behind the lock that the subscriber reads it through.
struct Control(reload::Handle<EnvFilter, Registry>);

impl LogControl for Control {
    fn filter(&self) -> String {
        self.0.with_current(ToString::to_string).unwrap_or_default()
    }

    fn check(&self, filter: &str) -> Result<(), String> {
        parse_filter(filter).map(drop)
    }

    fn set(&self, filter: &str) -> Result<(), String> {
        let filter = parse_filter(filter)?;
        self.0.reload(filter).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_levels_or_pairs() {
        for good in ["info", "off", "warn,broker::raft=debug", "info,broker=trace,openraft=error"] {
            assert!(parse_filter(good).is_ok(), "{good}");
        }
        for bad in ["broker=loud", "a=b=c", "[", "info,broker=nothing"] {
            assert!(parse_filter(bad).unwrap_err().contains("is no log filter"), "{bad}");
        }
    }
}
