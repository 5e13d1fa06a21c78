//! How a second terminal talks to a running `gantry dev`: one line of JSON each way over a socket in the data directory.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

use super::view::View;

const REQUEST_BYTES_MAX: u64 = 64 << 10;
/// Longer than the longest stop of a node.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(90);
/// Requests that wait for the one before them.
pub(super) const REQUESTS_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Request {
    Status,
    Act { action: Action, target: Target },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Action {
    /// SIGKILL, as the loss of the machine would do it.
    Kill,
    /// SIGKILL to the broker only: its supervisor starts it again.
    Crash,
    /// SIGTERM: leadership moves away first.
    Stop,
    Start,
    /// Start; an empty directory comes back as a new member.
    Rejoin,
    /// SIGSTOP: the process is there, and silent.
    Pause,
    /// SIGCONT.
    Resume,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Target {
    Process(String),
    LeaderOf(String),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Status(View),
    Done(String),
    Refused(String),
}

/// A request from a second terminal, and where its answer goes.
pub(super) struct Call {
    pub(super) request: Request,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// The socket's path by way of an open directory: the path of a socket may have 107 bytes, a data directory's more.
struct SocketPath {
    _dir: File,
    path: PathBuf,
}

impl SocketPath {
    fn new(dir: &Path) -> Result<Self> {
        let dir = File::open(dir).with_context(|| format!("opening {}", dir.display()))?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/control.sock", dir.as_raw_fd()));
        Ok(Self { _dir: dir, path })
    }
}

/// Listens in `dir` and passes every request on to `calls`, until the receiver is gone.
///
/// The caller holds the directory's lock, so a socket that is there was left by a process that died.
pub(super) fn listen(dir: &Path, calls: mpsc::Sender<Call>) -> Result<tokio::task::JoinHandle<()>> {
    let socket = SocketPath::new(dir)?;
    let _ = std::fs::remove_file(&socket.path);
    let listener =
        tokio::net::UnixListener::bind(&socket.path).with_context(|| format!("listening in {}", dir.display()))?;
    Ok(tokio::spawn(async move {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = calls.closed() => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    let calls = calls.clone();
                    tokio::spawn(async move {
                        if let Err(error) = serve(stream, calls).await {
                            tracing::debug!(%error, "control connection ended");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "accepting a control connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        let _ = std::fs::remove_file(&socket.path);
    }))
}

async fn serve(stream: tokio::net::UnixStream, calls: mpsc::Sender<Call>) -> Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    tokio::io::BufReader::new(reader.take(REQUEST_BYTES_MAX)).read_line(&mut line).await?;
    let request = serde_json::from_str(&line).context("reading the request")?;
    let (answer, answered) = oneshot::channel();
    let answer = match calls.send(Call { request, answer }).await {
        Ok(()) => answered.await.unwrap_or_else(|_| Answer::Refused("`gantry dev` is stopping".to_owned())),
        Err(_) => Answer::Refused("`gantry dev` is stopping".to_owned()),
    };
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    writer.write_all(&text).await?;
    Ok(())
}

/// Sends `request` to the `gantry dev` that runs in `dir`, and waits for its answer.
pub(super) fn call(dir: &Path, request: &Request) -> Result<Answer> {
    let hint = || format!("no `gantry dev` runs in {}; start one, or name its directory with --data", dir.display());
    let socket = SocketPath::new(dir).with_context(hint)?;
    let mut stream = UnixStream::connect(&socket.path).with_context(hint)?;
    stream.set_read_timeout(Some(ANSWER_TIME_MAX)).context("limiting the wait")?;
    let mut text = serde_json::to_vec(request).context("encoding the request")?;
    text.push(b'\n');
    stream.write_all(&text).context("sending the request")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).context("waiting for `gantry dev`")?;
    if line.is_empty() {
        bail!("`gantry dev` closed the connection without an answer");
    }
    serde_json::from_str(&line).context("reading the answer of `gantry dev`")
}
