//! One process of the cluster, and everything that may be done to it.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpStream;
use tokio::process::{ChildStdin, Command};
use tokio::sync::watch;

use crate::history::{Exit, Note};
use crate::recorder::Recorder;

const END_TIME_MAX: Duration = Duration::from_secs(10);
const PROBE_TIME_MAX: Duration = Duration::from_secs(1);
/// Of a log that grew, so much is searched for a panic.
const LOG_BYTES_MAX: u64 = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    NameServer,
    Broker,
}

/// One process, running or not.
pub struct Node {
    pub name: String,
    pub kind: NodeKind,
    /// Counts the starts of its process.
    pub life: Arc<AtomicU32>,
    /// The program and its arguments.
    command: Vec<OsString>,
    log: PathBuf,
    /// Somebody listens there exactly while the process lives.
    probe: SocketAddr,
    recorder: Recorder,
    running: Option<Running>,
}

struct Running {
    pid: Pid,
    /// The process ends when this is closed.
    stdin: Option<ChildStdin>,
    /// Set before the harness ends the process.
    ordered: Arc<AtomicBool>,
    ended: watch::Receiver<Option<ExitStatus>>,
}

impl Node {
    pub(super) fn new(
        name: String,
        kind: NodeKind,
        mut command: Vec<OsString>,
        log: PathBuf,
        probe: SocketAddr,
        recorder: &Recorder,
    ) -> Self {
        command.push("--stop-with-stdin".into());
        let (life, recorder) = (Arc::new(AtomicU32::new(0)), recorder.clone());
        Self { name, kind, life, command, log, probe, recorder, running: None }
    }

    /// Whether there is a process, paused or not.
    pub fn is_running(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.ended.borrow().is_none())
    }

    /// Starts the process; `extra` is added to its arguments this time only.
    ///
    /// # Errors
    /// It runs already, or cannot be started.
    pub fn start(&mut self, extra: &[&str]) -> Result<()> {
        ensure!(!self.is_running(), "{} runs already", self.name);
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.with_context(|| format!("opening {}", self.log.display()))?;
        let begins_at = log.metadata().map(|meta| meta.len()).unwrap_or_default();
        // Before the process can say anything.
        self.life.fetch_add(1, Ordering::SeqCst);
        let (program, args) = self.command.split_first().context("a node without a program")?;
        let mut child = Command::new(program)
            .args(args)
            .args(extra)
            .env_remove("GANTRY_BOOTSTRAP")
            .stdin(Stdio::piped())
            .stdout(log.try_clone().context("sharing a log")?)
            .stderr(log)
            .kill_on_drop(true)
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {}", self.name))?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{} ended at once", self.name))?;
        let stdin = child.stdin.take();
        let ordered = Arc::new(AtomicBool::new(false));
        let (sender, ended) = watch::channel(None);
        let (name, log, recorder, asked) =
            (self.name.clone(), self.log.clone(), self.recorder.clone(), ordered.clone());
        tokio::spawn(async move {
            let status = child.wait().await.ok();
            let exit = Exit {
                node: name.into(),
                code: status.and_then(|status| status.code()),
                signal: status.and_then(|status| status.signal()),
                ordered: asked.load(Ordering::SeqCst),
                said: panic_in(&log, begins_at).map(Into::into),
            };
            // If the history is over, nobody asks for this end any more.
            let _ = recorder.note(Note::Exit(exit));
            sender.send_replace(Some(status.unwrap_or_default()));
        });
        self.running = Some(Running { pid, stdin, ordered, ended });
        Ok(())
    }

    /// SIGKILL. On return the process is gone, and a probe was refused: says how long that took.
    ///
    /// # Errors
    /// There is no process, it does not end, or its port still answers.
    pub async fn kill(&mut self) -> Result<Duration> {
        self.end_by(Signal::KILL).await
    }

    /// SIGTERM: the process hands over, and ends when it is done. The same as [`Node::kill`] otherwise.
    ///
    /// # Errors
    /// There is no process, it does not end, or its port still answers.
    pub async fn terminate(&mut self) -> Result<Duration> {
        self.end_by(Signal::TERM).await
    }

    async fn end_by(&mut self, signal: Signal) -> Result<Duration> {
        let begun = Instant::now();
        let running = self.running.as_ref().filter(|running| running.ended.borrow().is_none());
        let running = running.with_context(|| format!("{} does not run", self.name))?;
        running.ordered.store(true, Ordering::SeqCst);
        kill_process(running.pid, signal).with_context(|| format!("sending {signal:?} to {}", self.name))?;
        self.await_end(END_TIME_MAX).await?;
        match tokio::time::timeout(PROBE_TIME_MAX, TcpStream::connect(self.probe)).await {
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => Ok(begun.elapsed()),
            Ok(Err(error)) => bail!("{} has ended, but {} answers {error}", self.name, self.probe),
            Ok(Ok(_)) => bail!("{} has ended, but somebody accepts on {}", self.name, self.probe),
            Err(_) => bail!("{} has ended, but {} does not refuse", self.name, self.probe),
        }
    }

    /// SIGSTOP. On return the process is seen to be stopped.
    ///
    /// # Errors
    /// There is no process, or it goes on.
    pub async fn pause(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        let pid = self.signal(Signal::STOP)?;
        let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
        while begun.elapsed() < PROBE_TIME_MAX {
            let text = std::fs::read_to_string(&stat).with_context(|| format!("reading {stat}"))?;
            // The state follows the name, which stands in parentheses.
            if text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')) {
                return Ok(begun.elapsed());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        bail!("{} is not stopped {PROBE_TIME_MAX:?} after SIGSTOP", self.name)
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// There is no process.
    pub fn resume(&mut self) -> Result<()> {
        self.signal(Signal::CONT).map(drop)
    }

    fn signal(&self, signal: Signal) -> Result<Pid> {
        let running = self.running.as_ref().filter(|running| running.ended.borrow().is_none());
        let running = running.with_context(|| format!("{} does not run", self.name))?;
        kill_process(running.pid, signal).with_context(|| format!("sending {signal:?} to {}", self.name))?;
        Ok(running.pid)
    }

    /// Ends the process: it is asked to, and killed if it does not.
    pub(super) async fn stop(&mut self) {
        let Some(running) = self.running.as_mut() else { return };
        running.ordered.store(true, Ordering::SeqCst);
        drop(running.stdin.take());
        // The signals of a process that has ended meanwhile have no effect.
        let _ = self.signal(Signal::CONT);
        if self.await_end(END_TIME_MAX).await.is_err() {
            let _ = self.signal(Signal::KILL);
            let _ = self.await_end(END_TIME_MAX).await;
        }
        self.running = None;
    }

    async fn await_end(&self, limit: Duration) -> Result<()> {
        let Some(running) = &self.running else { return Ok(()) };
        let mut ended = running.ended.clone();
        let end = tokio::time::timeout(limit, ended.wait_for(Option::is_some)).await;
        ensure!(end.is_ok(), "{} still runs after {limit:?}", self.name);
        Ok(())
    }
}

/// The first line about a panic in what a process wrote.
fn panic_in(log: &Path, begins_at: u64) -> Option<String> {
    let mut file = std::fs::File::open(log).ok()?;
    file.seek(SeekFrom::Start(begins_at)).ok()?;
    let mut text = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines().find(|line| line.contains("panicked")).map(ToOwned::to_owned)
}
