//! `gantry namesrv`: one name server in the foreground.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use broker::config::{ConfigError, parse_toml};
use clap::Args;
use serde::Deserialize;

use crate::exit_code::ExitCode;
use crate::logging::{self, LogArgs};
use crate::stop_signal::StopSignal;

/// Calls in flight at a stop are answered within this time.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct NamesrvArgs {
    /// Configuration file; see conf/namesrv.toml
    #[arg(short, long)]
    config: Option<PathBuf>,
    /// Address to listen on, instead of the file's [default: 127.0.0.1:9876]
    #[arg(short, long)]
    listen: Option<SocketAddr>,
    /// Listen on an address that is not loopback, though nothing is authenticated
    #[arg(long)]
    insecure_public: bool,
    /// Stop when standard input, a pipe, ends
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    listen: SocketAddr,
    insecure_public: bool,
}

impl Default for File {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 9876)), insecure_public: false }
    }
}

pub(crate) fn run(args: NamesrvArgs) -> Result<()> {
    logging::start(&args.log)?;
    let file = match &args.config {
        Some(path) => load(path).context(ExitCode::BadConfig)?,
        None => File::default(),
    };
    let listen = args.listen.unwrap_or(file.listen);
    let public = !listen.ip().is_loopback();
    if public && !(file.insecure_public || args.insecure_public) {
        bail!(
            "{listen} is not a loopback address, and this version has neither authentication nor encryption; if the \
             network is trusted, say --insecure-public"
        );
    }
    if public {
        tracing::warn!(%listen, "listening on a public address without authentication, as insecure_public says");
    }
    crate::runtime()?.block_on(async {
        let mut stop = StopSignal::new(args.stop_with_stdin)?;
        let listener = remoting::bind(listen).with_context(|| format!("listening on {listen}"))?;
        let server = namesrv::serve(listener, namesrv::Options::default()).context("starting the name server")?;
        let why = stop.recv().await;
        tracing::info!(?why, "stopping");
        server.shutdown(DRAIN_TIME_MAX).await;
        Ok(())
    })
}

fn load(path: &Path) -> Result<File, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|error| ConfigError {
        path: path.to_owned(),
        line: None,
        message: format!("cannot be read: {error}"),
    })?;
    parse_toml(path, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_file_shows_the_defaults() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf/namesrv.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let shown: String = text
            .lines()
            .filter_map(|line| line.strip_prefix("# "))
            .filter(|line| line.contains(" = "))
            .fold(String::new(), |text, line| text + line + "\n");
        let (file, default): (File, File) = (parse_toml(&path, &shown).unwrap(), File::default());
        assert_eq!((file.listen, file.insecure_public), (default.listen, default.insecure_public));
        assert!(load(&path).is_ok());
    }
}
