//! Small HTTP requests to a node's admin address.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const ANSWER_BYTES_MAX: u64 = 16 << 20;

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
    let exchange = async {
        let mut stream = TcpStream::connect(addr).await?;
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
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
