//! Small requests to the management address of a node, which no fault touches.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What nodes of a lab, whose addresses are not loopback, want to be told.
pub(super) const TOKEN: &str = "the-harness-and-nobody-else-may-call";
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// The JSON that `addr` answers to a GET of `path`.
///
/// # Errors
/// No answer within `limit`, or another one than 200 with JSON.
pub async fn get_json(addr: SocketAddr, path: &str, limit: Duration) -> Result<Value> {
    let body = request("GET", addr, path, limit).await?;
    serde_json::from_str(&body).with_context(|| format!("reading the answer of http://{addr}{path}"))
}

/// Posts nothing to `path`.
///
/// # Errors
/// No answer within `limit`, or another one than 200.
pub async fn post(addr: SocketAddr, path: &str, limit: Duration) -> Result<()> {
    request("POST", addr, path, limit).await.map(drop)
}

async fn request(method: &str, addr: SocketAddr, path: &str, limit: Duration) -> Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(addr).await?;
        // HTTP/1.0 has no chunks, so what follows the empty line is the body.
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: {addr}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let asking = || format!("asking http://{addr}{path}");
    let answer = tokio::time::timeout(limit, exchange).await.with_context(asking)?.with_context(asking)?;
    let answer = String::from_utf8_lossy(&answer);
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { bail!("{}: no HTTP answer", asking()) };
    if head.split(' ').nth(1) != Some("200") {
        bail!("{}: {} {body}", asking(), head.lines().next().unwrap_or_default());
    }
    Ok(body.to_owned())
}
