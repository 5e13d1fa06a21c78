//! One process of a development cluster.
//!
//! A child has a process group of its own, so that Ctrl-C reaches only the parent, which knows the order of a clean
//! stop. A broker's group is its supervisor, which is the child, and the broker itself; what happens to the machine
//! happens to both. Standard input is a pipe that nothing is written to: when the parent ends, however it ends, the pipe
//! closes and the child stops.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{ChildStdin, Command};
use tokio::sync::watch;

use super::process_group;

/// How soon the end of a process is noticed that is no child of this one.
const GONE_INTERVAL: Duration = Duration::from_millis(5);
const GONE_TIME_MAX: Duration = Duration::from_secs(10);

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

    /// The process that does the work: the broker, not its supervisor.
    pub(super) fn worker(&self) -> Option<u32> {
        let leader = self.pid()?;
        self.workers(leader).first().map_or(Some(leader), |worker| u32::try_from(worker.as_raw_nonzero().get()).ok())
    }

    fn pid(&self) -> Option<u32> {
        match self.activity {
            Activity::Running { pid } | Activity::Paused { pid } => Some(pid),
            Activity::Ended { .. } => None,
        }
    }

    /// Whom the process has started, while they live.
    fn workers(&self, leader: u32) -> Vec<Pid> {
        let Ok(leader) = pid(leader) else { return Vec::new() };
        process_group::members(leader).into_iter().filter(|member| *member != leader).collect()
    }

    /// SIGKILL to all at once, as the loss of a machine.
    pub(super) async fn kill(&mut self) -> Result<()> {
        let workers = self.pid().map(|pid| self.workers(pid)).unwrap_or_default();
        self.signal_all(Signal::KILL)?;
        self.await_end(Duration::from_secs(10)).await?;
        self.await_gone(&workers).await
    }

    /// SIGKILL to the broker alone; its supervisor starts it again.
    pub(super) async fn crash(&mut self) -> Result<()> {
        let Activity::Running { pid } = self.activity else { bail!("{} does not run", self.name) };
        let workers = self.workers(pid);
        if workers.is_empty() {
            bail!("{} has no supervisor that would start it again; `kill` ends it", self.name);
        }
        for worker in &workers {
            kill_process(*worker, Signal::KILL).with_context(|| format!("killing the broker of {}", self.name))?;
        }
        self.await_gone(&workers).await
    }

    async fn await_gone(&self, processes: &[Pid]) -> Result<()> {
        let until = Instant::now() + GONE_TIME_MAX;
        while processes.iter().any(|process| process_group::is_alive(*process)) {
            if Instant::now() > until {
                bail!("the broker of {} still runs after {GONE_TIME_MAX:?}", self.name);
            }
            tokio::time::sleep(GONE_INTERVAL).await;
        }
        Ok(())
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
            self.kill().await?;
            bail!("{} did not stop in {patience:?} and was killed; its log is {}", self.name, self.log.display());
        }
        Ok(())
    }

    pub(super) fn pause(&mut self) -> Result<()> {
        let Activity::Running { pid } = self.activity else { bail!("{} does not run", self.name) };
        self.signal_all(Signal::STOP)?;
        self.activity = Activity::Paused { pid };
        Ok(())
    }

    pub(super) fn resume(&mut self) -> Result<()> {
        let Activity::Paused { .. } = self.activity else { bail!("{} is not paused", self.name) };
        self.wake()
    }

    fn wake(&mut self) -> Result<()> {
        if let Activity::Paused { pid } = self.activity {
            self.signal_all(Signal::CONT)?;
            self.activity = Activity::Running { pid };
        }
        Ok(())
    }

    /// To the child, which passes it on.
    fn signal(&self, signal: Signal) -> Result<()> {
        self.send(signal, kill_process)
    }

    fn signal_all(&self, signal: Signal) -> Result<()> {
        self.send(signal, kill_process_group)
    }

    fn send(&self, signal: Signal, send: fn(Pid, Signal) -> rustix::io::Result<()>) -> Result<()> {
        let Some(leader) = self.pid() else { bail!("{} does not run", self.name) };
        if self.exited.borrow().is_some() {
            return Ok(());
        }
        match send(pid(leader)?, signal) {
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

fn pid(number: u32) -> Result<Pid> {
    i32::try_from(number).ok().and_then(Pid::from_raw).context("a process id that is none")
}
