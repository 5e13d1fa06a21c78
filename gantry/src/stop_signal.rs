//! What asks a serving process to stop.

use std::os::fd::AsFd;

use anyhow::{Context, Result};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// SIGTERM, SIGINT or SIGHUP: this process alone.
    Process,
    /// The end of standard input, where that was asked for: the parent is gone or stops everything.
    Everything,
}

/// Waits for any of them. Make it early: from then on a signal no longer ends the process by itself.
pub(crate) struct StopSignal {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    stdin: Option<pipe::Receiver>,
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
        })
    }

    /// The next request to stop.
    pub(crate) async fn recv(&mut self) -> Stop {
        tokio::select! {
            _ = self.terminate.recv() => Stop::Process,
            _ = self.interrupt.recv() => Stop::Process,
            _ = self.hangup.recv() => Stop::Process,
            () = end_of(&mut self.stdin) => Stop::Everything,
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
