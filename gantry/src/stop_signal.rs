//! What asks a serving process to stop.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;

use anyhow::{Context, Result};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf, pipe};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::supervise::EVERYTHING_STOPS;

/// Who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// SIGTERM, SIGINT or SIGHUP: this process alone.
    Process,
    /// The end of standard input, where that was asked for: the parent is gone or stops everything.
    Everything,
    /// The supervisor is gone: nobody would look after this process any more.
    Orphaned,
}

/// Waits for any of them. Make it early: from then on a signal no longer ends the process by itself.
pub(crate) struct StopSignal {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    stdin: Option<pipe::Receiver>,
    supervisor: Option<OwnedReadHalf>,
}

impl StopSignal {
    /// Takes over the signals; and, if `watch_stdin`, the end of standard input, which must be a pipe.
    pub(crate) fn new(watch_stdin: bool) -> Result<Self> {
        let stdin = if watch_stdin {
            let fd = std::io::stdin().as_fd().try_clone_to_owned().context("taking standard input")?;
            Some(pipe::Receiver::from_owned_fd(fd).context("--stop-with-stdin needs a pipe as standard input")?)
        } else {
            None
        };
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("handling SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("handling SIGINT")?,
            hangup: signal(SignalKind::hangup()).context("handling SIGHUP")?,
            stdin,
            supervisor: None,
        })
    }

    /// For a process whose standard input is the socket of its supervisor; also returns the way to talk to that. SIGINT
    /// and SIGHUP, which a terminal sends to both, are the supervisor's to pass on, as SIGTERM.
    pub(crate) fn supervised() -> Result<(Self, OwnedWriteHalf)> {
        let fd = std::io::stdin().as_fd().try_clone_to_owned().context("taking standard input")?;
        let socket = StdUnixStream::from(fd);
        socket.set_nonblocking(true).context("--supervised is for brokers that a supervisor starts")?;
        let (reader, writer) = UnixStream::from_std(socket).context("using the supervisor's socket")?.into_split();
        Ok((Self { supervisor: Some(reader), ..Self::new(false)? }, writer))
    }

    /// The next request to stop.
    pub(crate) async fn recv(&mut self) -> Stop {
        let is_supervised = self.supervisor.is_some();
        tokio::select! {
            _ = self.terminate.recv() => Stop::Process,
            _ = self.interrupt.recv(), if !is_supervised => Stop::Process,
            _ = self.hangup.recv(), if !is_supervised => Stop::Process,
            () = end_of(&mut self.stdin) => Stop::Everything,
            why = word_of(&mut self.supervisor) => why,
        }
    }
}

/// Resolves once the pipe has ended; never without one.
async fn end_of(stdin: &mut Option<pipe::Receiver>) {
    let Some(pipe) = stdin else { return std::future::pending().await };
    let mut bytes = [0; 64];
    // An error means that nobody can ask any more, which is the same.
    while matches!(pipe.read(&mut bytes).await, Ok(read) if read > 0) {}
}

/// What the supervisor asks for, by a word or by its end; never without one.
async fn word_of(supervisor: &mut Option<OwnedReadHalf>) -> Stop {
    let Some(socket) = supervisor else { return std::future::pending().await };
    match socket.read_u8().await {
        Ok(EVERYTHING_STOPS) => Stop::Everything,
        Ok(_) | Err(_) => Stop::Orphaned,
    }
}
