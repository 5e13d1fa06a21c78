//! One process of a development cluster.
//!
//! A child has a process group of its own, so that Ctrl-C reaches only the parent, which knows the order of a clean
//! stop. Its standard input is a pipe that nothing is written to: when the parent ends, however it ends, the pipe
//! closes and the child stops.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{ChildStdin, Command};
use tokio::sync::watch;

/// What a child is doing, as far as the parent knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    Running {
        pid: u32,
    },
    Paused {
        pid: u32,
    },
    /// Ended; whether the parent asked for it.
    Ended {
        wanted: bool,
    },
}

/// How to start a process, and the process while there is one.
pub(super) struct Child {
    pub(super) name: String,
    args: Vec<String>,
    log: PathBuf,
    activity: Activity,
    stdin: Option<ChildStdin>,
    exited: watch::Receiver<Option<ExitStatus>>,
}

impl Child {
    /// A process that has not been started yet.
    pub(super) fn new(name: String, args: Vec<String>, log: PathBuf) -> Self {
        let (_, exited) = watch::channel(None);
        Self { name, args, log, activity: Activity::Ended { wanted: true }, stdin: None, exited }
    }

    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    pub(super) fn activity(&self) -> Activity {
        self.activity
    }

    /// Starts the process; `extra` is added to its arguments this time only.
    pub(super) fn start(&mut self, extra: &[&str]) -> Result<()> {
        if !matches!(self.activity, Activity::Ended { .. }) {
            bail!("{} runs already", self.name);
        }
        if let Some(parent) = self.log.parent() {
            fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
        }
        let open_log = || OpenOptions::new().create(true).append(true).open(&self.log);
        let program = std::env::current_exe().context("finding this program")?;
        let mut child = Command::new(program)
            .args(&self.args)
            .args(extra)
            .stdin(Stdio::piped())
            .stdout(open_log().with_context(|| format!("opening {}", self.log.display()))?)
            .stderr(open_log().with_context(|| format!("opening {}", self.log.display()))?)
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {}", self.name))?;
        let pid = child.id().with_context(|| format!("{} ended at once", self.name))?;
        self.stdin = child.stdin.take();
        let (sender, exited) = watch::channel(None);
        self.exited = exited;
        tokio::spawn(async move {
            let status = child.wait().await.ok();
            sender.send_replace(status);
        });
        self.activity = Activity::Running { pid };
        Ok(())
    }

    /// Resolves when the process has ended; never while there is none.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut exited = self.exited.clone();
        async move {
            // An error means that the sender is gone, which it is only after its last word.
            let _ = exited.wait_for(Option::is_some).await;
        }
    }

    /// Notices the end of the process. Says how it ended if that was not asked for.
    pub(super) fn reap(&mut self) -> Option<String> {
        let Activity::Running { .. } = self.activity else { return None };
        let over = self.exited.has_changed().is_err() || self.exited.borrow().is_some();
        if !over {
            return None;
        }
        let how = self.exited.borrow().map_or_else(|| "in an unknown way".to_owned(), |status| status.to_string());
        self.activity = Activity::Ended { wanted: false };
        self.stdin = None;
        Some(format!("{} ended: {how}; its log is {}", self.name, self.log.display()))
    }

    pub(super) async fn kill(&mut self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.await_end(Duration::from_secs(10)).await
    }

    /// SIGTERM, and SIGKILL after `patience`.
    pub(super) async fn stop(&mut self, patience: Duration) -> Result<()> {
        self.wake()?;
        self.signal(Signal::TERM)?;
        self.end_within(patience).await
    }

    /// Tells the process that its whole cluster stops, and does not wait.
    pub(super) fn release(&mut self) -> Result<()> {
        if !matches!(self.activity, Activity::Ended { .. }) {
            self.wake()?;
            self.stdin = None;
        }
        Ok(())
    }

    /// Waits for the end; SIGKILL after `patience`.
    pub(super) async fn end_within(&mut self, patience: Duration) -> Result<()> {
        if matches!(self.activity, Activity::Ended { .. }) {
            return Ok(());
        }
        if self.await_end(patience).await.is_err() {
            self.signal(Signal::KILL)?;
            self.await_end(Duration::from_secs(10)).await?;
            bail!("{} did not stop in {patience:?} and was killed; its log is {}", self.name, self.log.display());
        }
        Ok(())
    }

    pub(super) fn pause(&mut self) -> Result<()> {
        let Activity::Running { pid } = self.activity else { bail!("{} does not run", self.name) };
        self.signal(Signal::STOP)?;
        self.activity = Activity::Paused { pid };
        Ok(())
    }

    pub(super) fn resume(&mut self) -> Result<()> {
        let Activity::Paused { .. } = self.activity else { bail!("{} is not paused", self.name) };
        self.wake()
    }

    fn wake(&mut self) -> Result<()> {
        if let Activity::Paused { pid } = self.activity {
            self.signal(Signal::CONT)?;
            self.activity = Activity::Running { pid };
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let (Activity::Running { pid } | Activity::Paused { pid }) = self.activity else {
            bail!("{} does not run", self.name)
        };
        if self.exited.borrow().is_some() {
            return Ok(());
        }
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a process id that is none")?;
        match kill_process(pid, signal) {
            // It ended by itself meanwhile; the wait after this finds out.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("sending {signal:?} to {}", self.name)),
        }
    }

    async fn await_end(&mut self, limit: Duration) -> Result<()> {
        let started = Instant::now();
        tokio::time::timeout(limit, self.ended())
            .await
            .with_context(|| format!("{} still runs after {:?}", self.name, started.elapsed()))?;
        self.activity = Activity::Ended { wanted: true };
        self.stdin = None;
        Ok(())
    }
}
