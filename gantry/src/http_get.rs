//! Small HTTP requests to a node's admin address.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use broker::http::ErrorBody;
use clap::Args;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::exit_code::ExitCode;

/// What every request of this process says about who asks.
static TOKEN: OnceLock<String> = OnceLock::new();

/// `--token` and the like, on every command.
#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// Bearer token for the HTTP addresses of nodes; better GANTRY_TOKEN or --token-file, which others cannot see
    #[arg(long, env = "GANTRY_TOKEN", hide_env_values = true, global = true, value_name = "TOKEN")]
    token: Option<String>,
    /// File that holds the bearer token
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
}

impl TokenArgs {
    /// Has every request of this process carry the token.
    pub(crate) fn apply(&self) -> Result<()> {
        let token = match &self.token_file {
            Some(path) => std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?,
            None => self.token.clone().unwrap_or_default(),
        };
        let token = token.trim();
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            bail!("a token has visible ASCII characters only");
        }
        let _ = TOKEN.set(token.to_owned());
        Ok(())
    }
}

const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// `--nodes`: where calls are made that any node takes.
#[derive(Debug, Args)]
pub(crate) struct NodesArgs {
    /// HTTP addresses (`node.http_listen`) of nodes, separated by commas; the first that answers is asked
    #[arg(long, value_delimiter = ',', env = "GANTRY_NODES", default_value = "127.0.0.1:8081")]
    pub(crate) nodes: Vec<SocketAddr>,
}

impl NodesArgs {
    /// POSTs to `path` at the first node that can be reached.
    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, limit: Duration) -> Result<T> {
        self.call("POST", path, None, limit).await
    }

    /// Makes a call at the first node that can be reached. A change is made under a key, so that it is safe to make it
    /// again at the next node when the connection to one breaks.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<&serde_json::Value>,
        limit: Duration,
    ) -> Result<T> {
        let body = body.map(ToString::to_string).unwrap_or_default();
        let key = (method != "GET").then(|| format!("{:032x}", rand::random::<u128>()));
        let mut failed = None;
        for addr in &self.nodes {
            match send(method, *addr, path, key.as_deref(), &body, limit).await {
                Ok((200, answer)) => {
                    return serde_json::from_slice(&answer)
                        .with_context(|| format!("reading the answer of http://{addr}{path}"));
                }
                Ok((status, answer)) => return Err(refusal(status, &answer)),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| anyhow::anyhow!("no node was named"))).context(ExitCode::Unreachable)
    }
}

/// A refusal in its own words.
fn refusal(status: u16, answer: &[u8]) -> anyhow::Error {
    let error = match serde_json::from_slice::<ErrorBody>(answer) {
        Ok(body) => anyhow::anyhow!("{} ({}; {})", body.message, body.code, body.advice),
        Err(_) => anyhow::anyhow!("answered {status}: {}", String::from_utf8_lossy(answer)),
    };
    if status == 404 { error.context(ExitCode::NotFound) } else { error }
}

/// The JSON that `addr` answers to a GET of `path`.
///
/// # Errors
/// No answer within `limit`, a status other than 200, or another body than expected.
pub(crate) async fn get_json<T: DeserializeOwned>(addr: SocketAddr, path: &str, limit: Duration) -> Result<T> {
    let (status, body) = request("GET", addr, path, limit).await?;
    if status != 200 {
        bail!("http://{addr}{path} answered {status}: {}", String::from_utf8_lossy(&body));
    }
    serde_json::from_slice(&body).with_context(|| format!("reading the answer of http://{addr}{path}"))
}

/// The JSON that `addr` answers to a POST of `path`.
///
/// # Errors
/// As [`get_json`]; a refusal's own words are in the error.
pub(crate) async fn post_json<T: DeserializeOwned>(addr: SocketAddr, path: &str, limit: Duration) -> Result<T> {
    let (status, body) = request("POST", addr, path, limit).await?;
    if status != 200 {
        bail!("http://{addr}{path} answered {status}: {}", String::from_utf8_lossy(&body));
    }
    serde_json::from_slice(&body).with_context(|| format!("reading the answer of http://{addr}{path}"))
}

/// Status and body that `addr` answers; one request a connection, no body sent.
pub(crate) async fn request(method: &str, addr: SocketAddr, path: &str, limit: Duration) -> Result<(u16, Vec<u8>)> {
    send(method, addr, path, None, "", limit).await
}

async fn send(
    method: &str,
    addr: SocketAddr,
    path: &str,
    key: Option<&str>,
    body: &str,
    limit: Duration,
) -> Result<(u16, Vec<u8>)> {
    let exchange = async {
        let mut stream = TcpStream::connect(addr).await?;
        let token = TOKEN.get().filter(|token| !token.is_empty());
        let authorization = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
        let key = key.map_or_else(String::new, |key| format!("Idempotency-Key: {key}\r\n"));
        let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n{authorization}{key}{kind}\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = tokio::time::timeout(limit, exchange)
        .await
        .with_context(|| format!("no answer from http://{addr}{path} in {limit:?}"))?
        .with_context(|| format!("asking http://{addr}{path}"))?;
    split_answer(&answer).with_context(|| format!("http://{addr}{path} did not answer in HTTP"))
}

fn split_answer(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(answer.get(..end)?).ok()?;
    let body = answer.get(end + 4..)?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let chunked = head.lines().any(|line| line.eq_ignore_ascii_case("transfer-encoding: chunked"));
    Some((status, if chunked { join_chunks(body)? } else { body.to_vec() }))
}

fn join_chunks(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line_end = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(rest.get(..line_end)?).ok()?.trim(), 16).ok()?;
        rest = rest.get(line_end + 2..)?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size..)?.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_split_with_and_without_chunks() {
        let plain = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(split_answer(plain), Some((200, b"{}".to_vec())));
        let chunked = b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
        assert_eq!(split_answer(chunked), Some((503, b"abc".to_vec())));
        assert_eq!(split_answer(b"SSH-2.0"), None);
        assert_eq!(split_answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"), None);
    }
}
