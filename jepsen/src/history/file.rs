//! History files: JSON lines in order of receipt.
//!
//! | Field | In | Meaning |
//! | --- | --- | --- |
//! | `i` | every line | number of the line, from 0 without a gap |
//! | `t` | every line | nanoseconds of the harness's monotonic clock since the run began |
//! | `ev` | every line | `invoke`, `ok`, `fail`, `info`, or the name of a note |
//! | `op` | operations | links an invocation to its end |
//! | `proc`, `f` | `invoke` | who asks, and what |
//! | `code`, `why` | `fail`, `info` | the broker's response code if it gave one, and the reason |
//!
//! The other fields are those of the call, its answer or the note. An `info` may be followed by nothing; an operation
//! without an end counts as unknown.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::call::{Answer, Call, Refusal};
use super::note::Note;
use super::value::{Nanos, Process};
use super::{End, History, Op};

/// The longest line that is read: a dump of a replica's log is cut into lines below this.
const LINE_BYTES_MAX: usize = 64 << 20;

/// Why a file is no history.
#[derive(Debug)]
pub struct ReadError {
    /// Of the line, from 1.
    pub line: usize,
    pub why: String,
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for ReadError {}

/// What each line is read for first; the rest depends on it.
#[derive(Deserialize)]
struct Head<'a> {
    i: u64,
    t: Nanos,
    ev: &'a str,
    op: Option<u64>,
    proc: Option<Process>,
    f: Option<&'a str>,
}

/// Reads the history in `path`.
///
/// # Errors
/// When the file cannot be opened, or [`read_from`] fails.
pub fn read(path: &Path) -> Result<History, ReadError> {
    let file = File::open(path).map_err(|error| ReadError { line: 0, why: format!("opening the file: {error}") })?;
    read_from(BufReader::with_capacity(1 << 20, file))
}

/// Reads a history.
///
/// # Errors
/// When a line cannot be read, is missing, is no line of a history, or ends an operation that is not open.
pub fn read_from(mut input: impl BufRead) -> Result<History, ReadError> {
    let mut history = History::default();
    let mut open: HashMap<u64, usize> = HashMap::new();
    let mut text = String::new();
    for number in 1.. {
        text.clear();
        let fail = |why: String| ReadError { line: number, why };
        if input.read_line(&mut text).map_err(|error| fail(format!("reading: {error}")))? == 0 {
            break;
        }
        if text.len() > LINE_BYTES_MAX {
            return Err(fail(format!("{} bytes, at most {LINE_BYTES_MAX} are read", text.len())));
        }
        let Some(line) = text.strip_suffix('\n') else {
            return Err(fail("the line is cut off: the harness ended while it wrote it".into()));
        };
        let head: Head<'_> = serde_json::from_str(line).map_err(|error| fail(error.to_string()))?;
        if head.i != number as u64 - 1 {
            return Err(fail(format!("it is number {} of the history, but {} was expected", head.i, number - 1)));
        }
        read_line(&mut history, &mut open, &head, line).map_err(fail)?;
    }
    history.ops.sort_by_key(|op| op.invoked);
    Ok(history)
}

fn read_line(history: &mut History, open: &mut HashMap<u64, usize>, head: &Head<'_>, line: &str) -> Result<(), String> {
    let text = |error: serde_json::Error| error.to_string();
    if !matches!(head.ev, "invoke" | "ok" | "fail" | "info") {
        history.notes.push((head.t, serde_json::from_str(line).map_err(text)?));
        return Ok(());
    }
    let op = head.op.ok_or("an operation's line needs `op`")?;
    if head.ev == "invoke" {
        let process = head.proc.ok_or("an invocation needs `proc`")?;
        let name = head.f.ok_or("an invocation needs `f`")?;
        let call = Call::parse(name, line).map_err(text)?.ok_or_else(|| format!("no operation is called `{name}`"))?;
        if open.insert(op, history.ops.len()).is_some() {
            return Err(format!("operation {op} is invoked twice"));
        }
        history.ops.push(Op { op, process, invoked: head.t, call, end: End::Open });
        return Ok(());
    }
    let found = open.get(&op).and_then(|at| history.ops.get_mut(*at)).filter(|op| op.end == End::Open);
    let Some(found) = found else {
        return Err(format!("operation {op} ends, but it is not open"));
    };
    let at = head.t;
    found.end = match head.ev {
        "ok" => End::Ok { at, answer: found.call.parse_answer(line).map_err(text)? },
        "fail" => End::Fail { at, refusal: serde_json::from_str(line).map_err(text)? },
        _ => End::Info { at, refusal: serde_json::from_str(line).map_err(text)? },
    };
    Ok(())
}

/// Writes a history as it happens.
pub struct Writer<W> {
    out: W,
    lines: u64,
}

#[derive(Serialize)]
struct Line<'a, T: Serialize> {
    i: u64,
    t: Nanos,
    #[serde(skip_serializing_if = "Option::is_none")]
    ev: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    op: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proc: Option<Process>,
    #[serde(flatten)]
    rest: T,
}

#[derive(Serialize)]
struct Nothing {}

impl<W: Write> Writer<W> {
    pub fn new(out: W) -> Self {
        Self { out, lines: 0 }
    }

    /// Writes the beginning of an operation.
    ///
    /// # Errors
    /// When the output fails.
    pub fn invoke(&mut self, at: Nanos, op: u64, process: Process, call: &Call) -> std::io::Result<()> {
        self.line(at, Some("invoke"), Some(op), Some(process), call)
    }

    /// Writes the end of an operation; of one that never ended there is nothing to write.
    ///
    /// # Errors
    /// When the output fails.
    pub fn end(&mut self, op: u64, end: &End) -> std::io::Result<()> {
        match end {
            End::Ok { at, answer } => match answer {
                Answer::Sent(sent) => self.line(*at, Some("ok"), Some(op), None, sent),
                Answer::Pulled(pulled) => self.line(*at, Some("ok"), Some(op), None, pulled),
                Answer::Offset(offset) => self.line(*at, Some("ok"), Some(op), None, offset),
                Answer::Queues(queues) => self.line(*at, Some("ok"), Some(op), None, queues),
                Answer::Found(found) => self.line(*at, Some("ok"), Some(op), None, found),
                Answer::Done => self.line(*at, Some("ok"), Some(op), None, Nothing {}),
            },
            End::Fail { at, refusal } => self.line::<&Refusal>(*at, Some("fail"), Some(op), None, refusal),
            End::Info { at, refusal } => self.line::<&Refusal>(*at, Some("info"), Some(op), None, refusal),
            End::Open => Ok(()),
        }
    }

    /// Writes a note.
    ///
    /// # Errors
    /// When the output fails.
    pub fn note(&mut self, at: Nanos, note: &Note) -> std::io::Result<()> {
        self.line(at, None, None, None, note)
    }

    /// Hands everything written so far to the system.
    ///
    /// # Errors
    /// When the output fails.
    pub fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }

    fn line<T: Serialize>(
        &mut self,
        t: Nanos,
        ev: Option<&str>,
        op: Option<u64>,
        proc: Option<Process>,
        rest: T,
    ) -> std::io::Result<()> {
        let line = Line { i: self.lines, t, ev, op, proc, rest };
        serde_json::to_writer(&mut self.out, &line)?;
        self.lines += 1;
        self.out.write_all(b"\n")
    }
}

/// Writes a whole history in the order of its times.
///
/// # Errors
/// When the output fails.
pub fn write_to(history: &History, out: impl Write) -> std::io::Result<()> {
    enum Event<'a> {
        Note(&'a Note),
        Invoke(&'a Op),
        End(&'a Op),
    }

    let notes = history.notes.iter().map(|(at, note)| (*at, Event::Note(note)));
    let invokes = history.ops.iter().map(|op| (op.invoked, Event::Invoke(op)));
    let ends = history.ops.iter().filter_map(|op| Some((op.ended()?, Event::End(op))));
    let mut events: Vec<_> = notes.chain(invokes).chain(ends).collect();
    events.sort_by_key(|(at, _)| *at);
    let mut writer = Writer::new(out);
    for (at, event) in events {
        match event {
            Event::Note(note) => writer.note(at, note)?,
            Event::Invoke(op) => writer.invoke(at, op.op, op.process, &op.call)?,
            Event::End(op) => writer.end(op.op, &op.end)?,
        }
    }
    writer.flush()
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::{read_from, write_to};
    use crate::history::End;

    const SEND: &str = r#"{"i":0,"t":5,"ev":"invoke","op":1,"proc":"c1.p2","f":"send","q":"t/b/0","u":"c1.p2:0:0","h":"00000000000000ff","mode":"sync"}"#;

    fn check_error(lines: &[&str], expected: Expect) {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        expected.assert_eq(&read_from(text.as_bytes()).unwrap_err().to_string());
    }

    #[test]
    fn an_operation_reads_back_as_it_was_written() {
        let text = format!("{SEND}\n{}\n", r#"{"i":1,"t":9,"ev":"ok","op":1,"qo":4711,"po":918273}"#);
        let history = read_from(text.as_bytes()).unwrap();
        assert!(matches!(history.ops[0].end, End::Ok { .. }));
        let mut written = Vec::new();
        write_to(&history, &mut written).unwrap();
        assert_eq!(read_from(written.as_slice()).unwrap(), history);
        assert_eq!(String::from_utf8(written).unwrap(), text);
    }

    #[test]
    fn lines_that_cannot_be_trusted_are_refused_by_number() {
        check_error(&[SEND, SEND], expect!["line 2: it is number 0 of the history, but 1 was expected"]);
        check_error(&[r#"{"i":0,"t":5,"ev":"ok","op":1}"#], expect!["line 1: operation 1 ends, but it is not open"]);
        check_error(
            &[r#"{"i":0,"t":5,"ev":"invoke","op":1,"proc":"c1.p2","f":"sned"}"#],
            expect!["line 1: no operation is called `sned`"],
        );
        check_error(
            &[SEND, r#"{"i":1,"t":5,"ev":"ok","op":1}"#],
            expect!["line 2: missing field `qo` at line 1 column 30"],
        );
        let cut = read_from(&SEND.as_bytes()[..40]).unwrap_err().to_string();
        assert_eq!(cut, "line 1: the line is cut off: the harness ended while it wrote it");
    }
}
