//! Hands for planting: finding places in a history and changing them.

use jepsen::history::{
    Answer, Call, End, Got, History, Nanos, Note, Op, Process, Pulled, Refusal, Send, SendMode, Unique,
};
use jepsen::seed::Stream;

/// Operations that `wanted` accepts, one of them drawn.
pub(crate) fn pick(history: &History, stream: &mut Stream, wanted: impl Fn(&Op) -> bool) -> Option<usize> {
    let all: Vec<usize> = (0..history.ops.len()).filter(|at| wanted(&history.ops[*at])).collect();
    stream.pick(&all).copied()
}

/// The last operation that `wanted` accepts.
pub(crate) fn last(history: &History, wanted: impl Fn(&Op) -> bool) -> Option<usize> {
    history.ops.iter().rposition(wanted)
}

pub(crate) fn is_acked(op: &Op) -> bool {
    matches!(&op.call, Call::Send(send) if send.mode == SendMode::Sync) && op.ok_at().is_some()
}

pub(crate) fn send_of(op: &Op) -> Send {
    op.call.message().cloned().unwrap()
}

/// The offset in the answer to a send.
pub(crate) fn acked_offset(op: &Op) -> Option<u64> {
    match op.ok() {
        Some((_, Answer::Sent(sent))) => Some(sent.queue_offset),
        _ => None,
    }
}

pub(crate) fn sent(op: &mut Op) -> Option<&mut jepsen::history::Sent> {
    match &mut op.end {
        End::Ok { answer: Answer::Sent(sent), .. } => Some(sent),
        _ => None,
    }
}

pub(crate) fn pulled(op: &mut Op) -> Option<&mut Pulled> {
    match &mut op.end {
        End::Ok { answer: Answer::Pulled(pulled), .. } => Some(pulled),
        _ => None,
    }
}

/// What an ordinary pull returned, if it is one and returned at least `least` records.
pub(crate) fn got(op: &Op, least: usize) -> Option<&Pulled> {
    match (&op.call, op.ok()) {
        (Call::Pull(_), Some((_, Answer::Pulled(pulled)))) if pulled.got.len() >= least => Some(pulled),
        _ => None,
    }
}

/// All records that final reads found, with their queue.
pub(crate) fn cells(history: &History) -> Vec<(Box<str>, Got)> {
    let reads = history.ops.iter().filter_map(|op| match (&op.call, op.ok()) {
        (Call::FinalRead(pull), Some((_, Answer::Pulled(pulled)))) => Some((pull, pulled)),
        _ => None,
    });
    reads.flat_map(|(pull, pulled)| pulled.got.iter().map(|got| (pull.queue.clone(), *got))).collect()
}

/// Changes the records of all final reads of all queues.
pub(crate) fn edit_final(history: &mut History, edit: impl Fn(&str, &mut Vec<Got>)) {
    for op in &mut history.ops {
        if let (Call::FinalRead(pull), End::Ok { answer: Answer::Pulled(pulled), .. }) = (&op.call, &mut op.end) {
            edit(&pull.queue, &mut pulled.got);
        }
    }
}

/// Appends a record to what the last final read of a queue found.
pub(crate) fn append_final(history: &mut History, queue: &str, mut record: Got) -> Option<()> {
    let at = last(history, |op| matches!(&op.call, Call::FinalRead(pull) if &*pull.queue == queue))?;
    let pulled = pulled(&mut history.ops[at])?;
    record.queue_offset = pulled.max;
    record.physical_offset = 1 << 40;
    pulled.got.push(record);
    pulled.max += 1;
    pulled.next = pulled.max;
    Some(())
}

/// A message whose send is unknown and that is in no queue; a foreign one if there is none.
pub(crate) fn unseen(history: &History) -> Got {
    let cells = cells(history);
    let absent = |send: &&Send| !cells.iter().any(|(_, got)| got.unique == send.unique);
    let unknown = history.ops.iter().filter(|op| op.ok_at().is_none() && !op.failed());
    let send = unknown.filter_map(|op| op.call.message()).find(absent);
    let (unique, hash) =
        send.map_or((Unique::Foreign(1), jepsen::history::BodyHash(1)), |send| (send.unique, send.hash));
    Got { queue_offset: 0, unique, hash, physical_offset: 1 << 41 }
}

/// Adds an operation that ended well, at the very end of the history.
pub(crate) fn add(history: &mut History, process: Process, call: Call, answer: Answer) -> usize {
    let invoked = Nanos(history.end().0 + 1_000);
    let op = 1_000_000 + history.ops.len() as u64;
    let end = End::Ok { at: Nanos(invoked.0 + 1_000), answer };
    history.ops.push(Op { op, process, invoked, call, end });
    history.ops.len() - 1
}

pub(crate) fn note(history: &mut History, note: Note) {
    let at = Nanos(history.end().0 + 1_000);
    history.notes.push((at, note));
}

/// Makes an operation's end unknown.
pub(crate) fn make_unknown(op: &mut Op) {
    if let Some(at) = op.ended() {
        op.end = End::Info { at, refusal: Refusal::default() };
    }
}

/// Changes the first note that `edit` accepts, from the end.
pub(crate) fn edit_last_note(history: &mut History, edit: impl FnMut(&mut Note) -> Option<()>) -> Option<()> {
    history.notes.iter_mut().rev().map(|(_, note)| note).find_map(edit)
}

pub(crate) const STRANGER: Process = Process { client: 99, worker: 0 };
