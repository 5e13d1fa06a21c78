//! A01-A12 and A31: planted in sends, acknowledgements and final reads.

use jepsen::anomaly::Anomaly;
use jepsen::history::{Answer, BodyHash, Call, End, Freshness, History, Nanos, Offset, Refusal, Unique};
use jepsen::seed::Stream;

use crate::Plant;
use crate::tool::{
    acked_offset, append_final, cells, edit_final, got, is_acked, last, make_unknown, pick, pulled, send_of, sent,
    unseen,
};

pub(crate) const PLANTS: &[Plant] = &[
    Plant { anomaly: Anomaly::A01, name: "the queue is cut before an acknowledged message", plant: truncated },
    Plant { anomaly: Anomaly::A01, name: "an acknowledged message is not in its queue", plant: hole },
    Plant { anomaly: Anomaly::A01, name: "another message stands in its place", plant: overwritten },
    Plant { anomaly: Anomaly::A02, name: "a message that nobody sent", plant: foreign },
    Plant { anomaly: Anomaly::A02, name: "another body than was sent", plant: other_body },
    Plant { anomaly: Anomaly::A02, name: "a message in another queue than it was sent to", plant: other_queue },
    Plant { anomaly: Anomaly::A03, name: "a stored message whose send failed", plant: aborted },
    Plant { anomaly: Anomaly::A03, name: "a stored batch whose send failed", plant: aborted_batch },
    Plant { anomaly: Anomaly::A04, name: "a message twice in its queue", plant: duplicate },
    Plant { anomaly: Anomaly::A04, name: "an acknowledgement of another offset than it has", plant: second_offset },
    Plant { anomaly: Anomaly::A05, name: "a reader sees another message at an offset", plant: other_message },
    Plant { anomaly: Anomaly::A05, name: "two acknowledgements of one offset", plant: same_offset },
    Plant { anomaly: Anomaly::A06, name: "an offset moves to another position", plant: moved },
    Plant { anomaly: Anomaly::A06, name: "an offset id leads elsewhere", plant: other_id },
    Plant { anomaly: Anomaly::A06, name: "two offsets share a position", plant: shared_position },
    Plant { anomaly: Anomaly::A07, name: "an unacknowledged message is missing from the middle", plant: hole },
    Plant { anomaly: Anomaly::A07, name: "the maximum is beyond the last message", plant: empty_end },
    Plant {
        anomaly: Anomaly::A08,
        name: "the last message was acknowledged before the first was sent",
        plant: reorder,
    },
    Plant { anomaly: Anomaly::A08, name: "a message comes of a later one in its queue", plant: cycle },
    Plant { anomaly: Anomaly::A09, name: "a producer's offsets are swapped", plant: swapped_offsets },
    Plant { anomaly: Anomaly::A09, name: "a producer is given an offset twice", plant: repeated_offset },
    Plant { anomaly: Anomaly::A10, name: "a message is missing from a batch", plant: torn_batch },
    Plant { anomaly: Anomaly::A10, name: "a batch is out of order", plant: unordered_batch },
    Plant { anomaly: Anomaly::A11, name: "a reader sees what is not stored", plant: dirty },
    Plant { anomaly: Anomaly::A11, name: "a reader sees beyond the end", plant: dirty_end },
    Plant { anomaly: Anomaly::A12, name: "a maximum offset below an acknowledged one", plant: stale_maximum },
    Plant { anomaly: Anomaly::A12, name: "a current pull below an acknowledged offset", plant: stale_pull },
    Plant { anomaly: Anomaly::A31, name: "an acknowledged message is not found", plant: not_found },
    Plant { anomaly: Anomaly::A31, name: "another offset is found", plant: found_elsewhere },
];

fn truncated(history: &mut History, _: &mut Stream) -> Option<()> {
    let at = last(history, is_acked)?;
    let (queue, from) = (send_of(&history.ops[at]).queue, acked_offset(&history.ops[at])?);
    for op in &mut history.ops {
        let is_final = matches!(&op.call, Call::FinalRead(pull) if pull.queue == queue);
        let Some(pulled) = pulled(op).filter(|_| is_final) else { continue };
        pulled.got.retain(|got| got.queue_offset < from);
        (pulled.next, pulled.max) = (pulled.next.min(from), from);
    }
    Some(())
}

fn hole(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, is_acked)?;
    let unique = send_of(&history.ops[at]).unique;
    edit_final(history, |_, got| got.retain(|got| got.unique != unique));
    Some(())
}

fn overwritten(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, is_acked)?;
    let (unique, other) = (send_of(&history.ops[at]).unique, unseen(history));
    edit_final(history, |_, all| {
        for got in all.iter_mut().filter(|got| got.unique == unique) {
            (got.unique, got.hash) = (other.unique, other.hash);
        }
    });
    Some(())
}

fn foreign(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, |op| got(op, 1).is_some())?;
    pulled(&mut history.ops[at])?.got.first_mut()?.unique = Unique::Foreign(7);
    Some(())
}

fn other_body(history: &mut History, stream: &mut Stream) -> Option<()> {
    let (_, chosen) = stream.pick(&cells(history)).cloned()?;
    edit_final(history, |_, all| {
        all.iter_mut().filter(|got| got.unique == chosen.unique).for_each(|got| got.hash = BodyHash(1));
    });
    Some(())
}

fn other_queue(history: &mut History, stream: &mut Stream) -> Option<()> {
    let all = cells(history);
    let (queue, chosen) = stream.pick(&all).cloned()?;
    let (other, _) = all.iter().find(|(other, _)| *other != queue)?;
    append_final(history, other, chosen)
}

fn aborted(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, is_acked)?;
    let ended = history.ops[at].ended()?;
    history.ops[at].end = End::Fail { at: ended, refusal: Refusal::default() };
    Some(())
}

fn aborted_batch(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, |op| matches!(op.call, Call::Batch(_)) && op.ok_at().is_some())?;
    let ended = history.ops[at].ended()?;
    history.ops[at].end = End::Fail { at: ended, refusal: Refusal::default() };
    Some(())
}

fn duplicate(history: &mut History, stream: &mut Stream) -> Option<()> {
    let (queue, chosen) = stream.pick(&cells(history)).cloned()?;
    append_final(history, &queue, chosen)
}

fn second_offset(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, is_acked)?;
    sent(&mut history.ops[at])?.queue_offset += 1;
    Some(())
}

fn other_message(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, |op| got(op, 1).is_some())?;
    let other = unseen(history);
    let first = pulled(&mut history.ops[at])?.got.first_mut()?;
    (first.unique, first.hash) = (other.unique, other.hash);
    Some(())
}

fn same_offset(history: &mut History, stream: &mut Stream) -> Option<()> {
    let first = pick(history, stream, is_acked)?;
    let (queue, offset) = (send_of(&history.ops[first]).queue, acked_offset(&history.ops[first])?);
    let other =
        |op: &jepsen::history::Op| is_acked(op) && send_of(op).queue == queue && acked_offset(op) != Some(offset);
    let second = pick(history, stream, other)?;
    sent(&mut history.ops[second])?.queue_offset = offset;
    Some(())
}

fn moved(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, |op| got(op, 1).is_some())?;
    pulled(&mut history.ops[at])?.got.first_mut()?.physical_offset += 1;
    Some(())
}

fn other_id(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, is_acked)?;
    sent(&mut history.ops[at])?.offset_id = Some("7F00000100002A9F0000000000000001".into());
    Some(())
}

fn shared_position(history: &mut History, _: &mut Stream) -> Option<()> {
    edit_final(history, |_, all| {
        if let [first, second, ..] = all.as_mut_slice() {
            second.physical_offset = first.physical_offset;
        }
    });
    (cells(history).len() > 1).then_some(())
}

fn empty_end(history: &mut History, _: &mut Stream) -> Option<()> {
    let at = last(history, |op| matches!(op.call, Call::FinalRead(_)))?;
    let pulled = pulled(&mut history.ops[at])?;
    pulled.max += 1;
    pulled.next = pulled.max;
    Some(())
}

fn reorder(history: &mut History, _: &mut Stream) -> Option<()> {
    let at = last(history, |op| is_acked(op) && acked_offset(op).is_some_and(|offset| offset > 5))?;
    let op = &mut history.ops[at];
    op.invoked = Nanos(1);
    let End::Ok { at, .. } = &mut op.end else { return None };
    *at = Nanos(2);
    Some(())
}

fn cycle(history: &mut History, stream: &mut Stream) -> Option<()> {
    let first = pick(history, stream, |op| is_acked(op) && acked_offset(op).is_some_and(|offset| offset < 5))?;
    let queue = send_of(&history.ops[first]).queue;
    let later = |op: &jepsen::history::Op| {
        is_acked(op) && send_of(op).queue == queue && acked_offset(op).is_some_and(|offset| offset > 5)
    };
    let cause = send_of(&history.ops[pick(history, stream, later)?]).unique;
    let Call::Send(send) = &mut history.ops[first].call else { return None };
    send.cause = Some(cause);
    Some(())
}

/// Two sends of one process to one queue, both acknowledged, one after the other.
fn successive(history: &History, stream: &mut Stream) -> Option<(usize, usize)> {
    let first = pick(history, stream, is_acked)?;
    let (process, queue) = (history.ops[first].process, send_of(&history.ops[first]).queue);
    let next = |op: &jepsen::history::Op| is_acked(op) && op.process == process && send_of(op).queue == queue;
    let second = (first + 1..history.ops.len()).find(|at| next(&history.ops[*at]))?;
    Some((first, second))
}

fn swapped_offsets(history: &mut History, stream: &mut Stream) -> Option<()> {
    let (first, second) = successive(history, stream)?;
    let (low, high) = (acked_offset(&history.ops[first])?, acked_offset(&history.ops[second])?);
    sent(&mut history.ops[first])?.queue_offset = high;
    sent(&mut history.ops[second])?.queue_offset = low;
    Some(())
}

fn repeated_offset(history: &mut History, stream: &mut Stream) -> Option<()> {
    let (first, second) = successive(history, stream)?;
    sent(&mut history.ops[second])?.queue_offset = acked_offset(&history.ops[first])?;
    Some(())
}

/// The second message of a stored batch of at least three.
fn second_of_batch(history: &History, stream: &mut Stream) -> Option<(Unique, Unique)> {
    let large = |op: &jepsen::history::Op| matches!(&op.call, Call::Batch(batch) if batch.items.len() > 2);
    let at = pick(history, stream, |op| large(op) && op.ok_at().is_some())?;
    let Call::Batch(batch) = &history.ops[at].call else { return None };
    Some((batch.items[0].0, batch.items[1].0))
}

fn torn_batch(history: &mut History, stream: &mut Stream) -> Option<()> {
    let (_, second) = second_of_batch(history, stream)?;
    edit_final(history, |_, all| all.retain(|got| got.unique != second));
    Some(())
}

fn unordered_batch(history: &mut History, stream: &mut Stream) -> Option<()> {
    let (first, second) = second_of_batch(history, stream)?;
    edit_final(history, |_, all| {
        for got in all.iter_mut() {
            if got.unique == first {
                got.unique = second;
            } else if got.unique == second {
                got.unique = first;
            }
        }
    });
    Some(())
}

fn dirty(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, |op| got(op, 1).is_some())?;
    let other = unseen(history);
    let last = pulled(&mut history.ops[at])?.got.last_mut()?;
    (last.unique, last.hash, last.physical_offset) = (other.unique, other.hash, other.physical_offset);
    Some(())
}

fn dirty_end(history: &mut History, _: &mut Stream) -> Option<()> {
    let mut record = unseen(history);
    let at = last(history, |op| got(op, 0).is_some())?;
    let pulled = pulled(&mut history.ops[at])?;
    record.queue_offset = 1_000_000;
    pulled.got.push(record);
    pulled.next = 1_000_001;
    Some(())
}

fn stale_maximum(history: &mut History, _: &mut Stream) -> Option<()> {
    let at = last(history, |op| matches!(op.call, Call::MaxOffset(_)) && op.ok_at().is_some())?;
    let End::Ok { answer: Answer::Offset(offset), .. } = &mut history.ops[at].end else { return None };
    *offset = Offset { queue_offset: Some(1) };
    Some(())
}

fn stale_pull(history: &mut History, _: &mut Stream) -> Option<()> {
    let current = |op: &jepsen::history::Op| matches!(&op.call, Call::Pull(pull) if pull.read == Freshness::Realtime);
    let at = last(history, |op| current(op) && got(op, 0).is_some_and(|pulled| pulled.max > 5))?;
    let pulled = pulled(&mut history.ops[at])?;
    pulled.got.clear();
    (pulled.next, pulled.max) = (1, 1);
    Some(())
}

fn query(history: &History, stream: &mut Stream) -> Option<usize> {
    let acked: std::collections::BTreeSet<Unique> =
        history.ops.iter().filter(|op| is_acked(op)).map(|op| send_of(op).unique).collect();
    pick(history, stream, |op| matches!(&op.call, Call::QueryMsg(query) if acked.contains(&query.unique)))
}

fn not_found(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = query(history, stream)?;
    let End::Ok { answer: Answer::Found(found), .. } = &mut history.ops[at].end else { return None };
    found.found = None;
    Some(())
}

fn found_elsewhere(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = query(history, stream)?;
    let End::Ok { answer: Answer::Found(found), .. } = &mut history.ops[at].end else { return None };
    found.found.as_mut()?.queue_offset += 1;
    Some(())
}

/// Turns acknowledged sends of all kinds into unknown ones.
pub(crate) fn lose_answers(history: &mut History, mut which: impl FnMut(&jepsen::history::Op) -> bool) -> Option<()> {
    let mut lost = 0;
    for op in history.ops.iter_mut().filter(|op| stores_into(op).is_some() && op.ok_at().is_some()) {
        if which(op) {
            make_unknown(op);
            lost += 1;
        }
    }
    (lost > 0).then_some(())
}

/// The queue that a send of any kind goes to.
pub(crate) fn stores_into(op: &jepsen::history::Op) -> Option<&str> {
    match &op.call {
        Call::Batch(batch) => Some(&batch.queue),
        call => call.message().map(|send| &*send.queue),
    }
}
