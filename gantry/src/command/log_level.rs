//! `gantry log-level`: what processes log, shown or changed while they run.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use broker::http::LogFilter;
use clap::Args;
use serde::Serialize;

use crate::exit_code::ExitCode;
use crate::http_get::{get_json, post_json};
use crate::logging;
use crate::output::{self, Format};

const CALL_TIME_MAX: Duration = Duration::from_secs(3);

#[derive(Debug, Args)]
pub(crate) struct LogLevelArgs {
    /// What to log from now on, until the process ends: a level (error, warn, info, debug, trace, off) or `target=level`
    /// pairs separated by commas, such as info,broker::raft=debug [default: show what is logged]
    filter: Option<String>,
    /// HTTP addresses of brokers and name servers, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:8081")]
    nodes: Vec<SocketAddr>,
}

#[derive(Serialize)]
struct NodeLine {
    node: SocketAddr,
    #[serde(flatten)]
    log: Option<LogFilter>,
    error: Option<String>,
}

pub(crate) async fn run(args: LogLevelArgs, format: Format) -> Result<()> {
    let path = match &args.filter {
        Some(filter) => {
            // A mistake should not reach some nodes and not others.
            if let Err(why) = logging::parse_filter(filter) {
                bail!(why);
            }
            Some(format!("/v1/log?filter={}", encoded(filter)))
        }
        None => None,
    };
    let calls = args.nodes.iter().map(|&node| {
        let path = path.as_deref();
        async move {
            let answer = match path {
                Some(path) => post_json(node, path, CALL_TIME_MAX).await,
                None => get_json(node, "/v1/log", CALL_TIME_MAX).await,
            };
            match answer {
                Ok(log) => NodeLine { node, log: Some(log), error: None },
                Err(error) => NodeLine { node, log: None, error: Some(format!("{error:#}")) },
            }
        }
    });
    let lines = futures::future::join_all(calls).await;
    if format == Format::Json {
        output::json(&lines)?;
    } else {
        let rows = lines.iter().map(|line| {
            let said = |value: fn(&LogFilter) -> Option<String>| {
                line.log.as_ref().and_then(value).unwrap_or_else(|| "-".to_owned())
            };
            [
                line.node.to_string(),
                line.error.clone().unwrap_or_else(|| said(|log| Some(log.filter.clone()))),
                said(|log| log.was.clone()),
            ]
        });
        output::line(&output::table(&["node", "logs", "before"], rows))?;
    }
    let silent = lines.iter().filter(|line| line.error.is_some()).count();
    if silent > 0 {
        return Err(anyhow::anyhow!("{silent} of {} nodes did not do it", lines.len())).context(ExitCode::Unreachable);
    }
    Ok(())
}

/// `filter` as the value of a query.
fn encoded(filter: &str) -> String {
    let mut text = String::new();
    for byte in filter.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~,:=".contains(&byte) {
            text.push(char::from(byte));
        } else {
            use std::fmt::Write as _;
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_becomes_one_query_value() {
        assert_eq!(encoded("info,broker::raft=debug"), "info,broker::raft=debug");
        assert_eq!(encoded("a[b]&x=1 \u{e4}"), "a%5Bb%5D%26x=1%20%C3%A4");
    }
}
