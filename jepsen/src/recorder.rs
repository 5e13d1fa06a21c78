//! Writes the history of a run as it happens: one writer, lines in order of receipt, flushed each second.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::history::{Answer, Call, End, Nanos, Note, Process, Refusal, Writer};

/// Lines that wait for the writer; whoever records more waits with them.
const LINES_MAX: usize = 65_536;
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

enum Line {
    Invoke(Nanos, u64, Process, Call),
    End(u64, End),
    Note(Nanos, Note),
}

/// Records what happens. Clones record into the same history.
#[derive(Clone)]
pub struct Recorder {
    begun: Instant,
    ops: Arc<AtomicU64>,
    lines: SyncSender<Line>,
}

/// The thread that writes.
pub struct RecorderThread {
    thread: JoinHandle<Result<()>>,
}

/// How an operation ended, without the time.
pub enum Outcome {
    Ok(Answer),
    Fail(Refusal),
    Info(Refusal),
}

impl Recorder {
    /// Begins a history in a new file.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn start(path: &Path) -> Result<(Self, RecorderThread)> {
        let file = File::create_new(path).with_context(|| format!("creating {}", path.display()))?;
        let (lines, received) = sync_channel(LINES_MAX);
        let thread = std::thread::Builder::new().name("history".into()).spawn(move || write(file, &received));
        let recorder = Self { begun: Instant::now(), ops: Arc::new(AtomicU64::new(0)), lines };
        Ok((recorder, RecorderThread { thread: thread.context("starting the writer of the history")? }))
    }

    /// The time since the run began.
    pub fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Records the beginning of an operation, and names it.
    ///
    /// # Errors
    /// When the history can no longer be written.
    pub fn invoke(&self, process: Process, call: Call) -> Result<u64> {
        let op = self.ops.fetch_add(1, Ordering::Relaxed);
        self.send(Line::Invoke(self.now(), op, process, call))?;
        Ok(op)
    }

    /// Records the end of an operation.
    ///
    /// # Errors
    /// When the history can no longer be written.
    pub fn end(&self, op: u64, outcome: Outcome) -> Result<()> {
        let at = self.now();
        let end = match outcome {
            Outcome::Ok(answer) => End::Ok { at, answer },
            Outcome::Fail(refusal) => End::Fail { at, refusal },
            Outcome::Info(refusal) => End::Info { at, refusal },
        };
        self.send(Line::End(op, end))
    }

    /// Records a note.
    ///
    /// # Errors
    /// When the history can no longer be written.
    pub fn note(&self, note: Note) -> Result<()> {
        self.send(Line::Note(self.now(), note))
    }

    fn send(&self, line: Line) -> Result<()> {
        self.lines.send(line).map_err(|_| anyhow!("the history is no longer written"))
    }
}

impl RecorderThread {
    /// Waits until everything is written, which it is once every recorder is gone.
    ///
    /// # Errors
    /// When something was not written.
    pub fn finish(self) -> Result<()> {
        self.thread.join().map_err(|_| anyhow!("the writer of the history panicked"))?
    }
}

fn write(file: File, lines: &Receiver<Line>) -> Result<()> {
    let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, file));
    let mut flushed = Instant::now();
    loop {
        match lines.recv_timeout(FLUSH_INTERVAL) {
            Ok(Line::Invoke(at, op, process, call)) => writer.invoke(at, op, process, &call),
            Ok(Line::End(op, end)) => writer.end(op, &end),
            Ok(Line::Note(at, note)) => writer.note(at, &note),
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => return writer.flush().context("writing the history"),
        }
        .context("writing the history")?;
        if flushed.elapsed() >= FLUSH_INTERVAL {
            writer.flush().context("writing the history")?;
            flushed = Instant::now();
        }
    }
}
