//! `gantry namesrv`: one name server in the foreground.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use broker::config::reference::{Fallback, Key, Kind, Section};
use broker::config::{ConfigError, LogFormat, LogOptions, Mistake, line_of, read_whole};
use clap::Args;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::exit_code::ExitCode;
use crate::logging::{self, LogArgs};
use crate::namesrv_http;
use crate::stop_signal::StopSignal;

/// Calls in flight at a stop are answered within this time.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);
/// Calls over HTTP before that, within this time.
const HTTP_TIME_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct NamesrvArgs {
    /// Configuration file; see conf/namesrv.toml
    #[arg(short, long)]
    config: Option<PathBuf>,
    /// Address to listen on, instead of the file's [default: 127.0.0.1:9876]
    #[arg(short, long)]
    listen: Option<SocketAddr>,
    /// Address for health, metrics and the log over HTTP, instead of the file's [default: none]
    #[arg(long)]
    http: Option<SocketAddr>,
    /// Listen on an address that is not loopback, though nothing is authenticated
    #[arg(long)]
    insecure_public: bool,
    /// Stop when standard input, a pipe, ends
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    listen: SocketAddr,
    insecure_public: bool,
    http_listen: Option<SocketAddr>,
    log: String,
    log_format: FileLogFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FileLogFormat {
    #[default]
    Text,
    Json,
}

const fn key(name: &'static str, kind: Kind, value: &'static str, meaning: &'static str) -> Key {
    Key { name, kind, fallback: Fallback::Value(value), meaning, live: None }
}

/// What the file may say.
const KEYS: Section = Section {
    name: "namesrv",
    keys: &[
        key("listen", Kind::Text, "\"127.0.0.1:9876\"", "where nodes and clients connect"),
        key("http_listen", Kind::Text, "\"127.0.0.1:9877\"", "health, metrics and the log"),
        key("insecure_public", Kind::Bool, "false", "listen on addresses that are not loopback"),
        key("log", Kind::Text, "\"info\"", "a level, or target=level pairs"),
        key("log_format", Kind::Word(&["text", "json"]), "\"text\"", "how lines are written"),
    ],
};

impl Default for File {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 9876)),
            insecure_public: false,
            http_listen: None,
            log: "info".to_owned(),
            log_format: FileLogFormat::Text,
        }
    }
}

pub(crate) fn run(args: NamesrvArgs) -> Result<()> {
    let file = match &args.config {
        Some(path) => load(path).context(ExitCode::BadConfig)?,
        None => File::default(),
    };
    let format = match file.log_format {
        FileLogFormat::Text => LogFormat::Text,
        FileLogFormat::Json => LogFormat::Json,
    };
    logging::start(&args.log, &LogOptions { filter: file.log.clone(), format })?;
    let listen = args.listen.unwrap_or(file.listen);
    let http_listen = args.http.or(file.http_listen);
    for addr in [Some(listen), http_listen].into_iter().flatten().filter(|addr| !addr.ip().is_loopback()) {
        if !(file.insecure_public || args.insecure_public) {
            bail!(
                "{addr} is not a loopback address, and this version has neither authentication nor encryption; if the \
                 network is trusted, say --insecure-public"
            );
        }
        tracing::warn!(%addr, "listening on a public address without authentication, as insecure_public says");
    }
    crate::runtime()?.block_on(async {
        let mut stop = StopSignal::new(args.stop_with_stdin)?;
        let listener = remoting::bind(listen).with_context(|| format!("listening on {listen}"))?;
        let server = namesrv::serve(listener, namesrv::Options::default()).context("starting the name server")?;
        let server = Arc::new(server);
        let http_stop = CancellationToken::new();
        let http = match http_listen {
            Some(addr) => {
                let listener =
                    TcpListener::bind(addr).await.with_context(|| format!("listening on {addr} for HTTP"))?;
                tokio::spawn(namesrv_http::serve(listener, Arc::clone(&server), http_stop.clone()))
            }
            None => tokio::spawn(std::future::ready(Ok(()))),
        };
        let why = stop.recv().await;
        tracing::info!(?why, "stopping");
        http_stop.cancel();
        if tokio::time::timeout(HTTP_TIME_MAX, http).await.is_err() {
            tracing::warn!("a request over HTTP was cut off");
        }
        // A connection that was cut off may hold it for a moment longer; the process ends all the same.
        if let Some(server) = Arc::into_inner(server) {
            server.shutdown(DRAIN_TIME_MAX).await;
        }
        Ok(())
    })
}

/// Checks the text of a file; `path` is for messages.
///
/// # Errors
/// As a name server that reads it would say.
pub(crate) fn check(path: &Path, text: &str) -> Result<(), ConfigError> {
    let file: File = read_whole(path, text, &KEYS)?;
    let mut mistakes = Vec::new();
    let mut wrong = |place: &str, message| mistakes.push(Mistake { line: line_of(text, place), message });
    if let Err(why) = logging::parse_filter(&file.log) {
        wrong("log", format!("log: {why}"));
    }
    let addrs = [("listen", Some(file.listen)), ("http_listen", file.http_listen)];
    let addrs = addrs.into_iter().filter_map(|(key, addr)| Some((key, addr?)));
    for (key, addr) in addrs.filter(|(_, addr)| !addr.ip().is_loopback() && !file.insecure_public) {
        wrong(key, format!("{key} is {addr}, which is not a loopback address, and insecure_public is not true"));
    }
    match mistakes.is_empty() {
        true => Ok(()),
        false => Err(ConfigError { path: path.to_owned(), mistakes }),
    }
}

fn load(path: &Path) -> Result<File, ConfigError> {
    read_whole(path, &ConfigError::read(path)?, &KEYS)
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
        let (file, default): (File, File) = (read_whole(&path, &shown, &KEYS).unwrap(), File::default());
        // The one without a default shows an example.
        assert_eq!(File { http_listen: None, ..file }, default);
        assert!(load(&path).is_ok());
    }
}
