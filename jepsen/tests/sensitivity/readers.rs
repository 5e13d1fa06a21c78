//! A13-A15, A23-A26, A34, A39: planted in pull sessions, delayed and transactional messages, and answers.

use std::time::Duration;

use jepsen::anomaly::Anomaly;
use jepsen::history::{
    Answer, Call, Decision, End, Gauge, History, Nanos, Note, Offset, OneQueue, Op, Refusal, Unique,
};
use jepsen::seed::Stream;

use crate::Plant;
use crate::tool::{STRANGER, add, append_final, cells, edit_final, edit_last_note, got, pick, pulled};

pub(crate) const PLANTS: &[Plant] = &[
    Plant { anomaly: Anomaly::A13, name: "a pull leaves out its last message", plant: skip_last },
    Plant { anomaly: Anomaly::A13, name: "a session goes on behind where it was sent", plant: skip_between },
    Plant { anomaly: Anomaly::A14, name: "a session is given the same again", plant: same_again },
    Plant { anomaly: Anomaly::A14, name: "a session is sent back", plant: sent_back },
    Plant { anomaly: Anomaly::A15, name: "two messages of a pull are swapped", plant: swapped },
    Plant { anomaly: Anomaly::A15, name: "a pull leaves out a message in its middle", plant: skip_middle },
    Plant { anomaly: Anomaly::A15, name: "the minimum is above the maximum", plant: crossed },
    Plant { anomaly: Anomaly::A23, name: "a delayed message comes early", plant: early },
    Plant { anomaly: Anomaly::A23, name: "a delayed message comes twice", plant: delayed_twice },
    Plant { anomaly: Anomaly::A23, name: "a delayed message never comes", plant: delayed_lost },
    Plant { anomaly: Anomaly::A23, name: "a delayed message comes late", plant: delayed_late },
    Plant { anomaly: Anomaly::A24, name: "a half message is seen undecided", plant: undecided },
    Plant { anomaly: Anomaly::A24, name: "a half message is seen before its commit", plant: before_commit },
    Plant { anomaly: Anomaly::A25, name: "a message that was rolled back is seen", plant: rolled_back },
    Plant { anomaly: Anomaly::A25, name: "a committed message is not delivered", plant: commit_lost },
    Plant { anomaly: Anomaly::A25, name: "a message is committed twice", plant: committed_twice },
    Plant { anomaly: Anomaly::A25, name: "both outcomes are acknowledged", plant: both_outcomes },
    Plant { anomaly: Anomaly::A26, name: "nobody asks about one open half message", plant: unasked },
    Plant { anomaly: Anomaly::A26, name: "nobody asks about any half message", plant: none_asked },
    Plant { anomaly: Anomaly::A34, name: "a reader is given a wrong checksum", plant: corrupt_read },
    Plant { anomaly: Anomaly::A34, name: "an undamaged replica holds a wrong checksum", plant: corrupt_replica },
    Plant { anomaly: Anomaly::A39, name: "a send is answered with a soft status", plant: soft_answer },
    Plant { anomaly: Anomaly::A39, name: "a send is answered with busy", plant: busy_answer },
];

/// A pull without a filter that returned at least `least` messages.
fn unfiltered(op: &Op, least: usize) -> bool {
    got(op, least).is_some() && op.call.pull().is_some_and(|pull| pull.tag.is_none())
}

fn skip_last(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, |op| unfiltered(op, 2))?;
    pulled(&mut history.ops[at])?.got.pop();
    Some(())
}

fn skip_middle(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, |op| unfiltered(op, 3))?;
    pulled(&mut history.ops[at])?.got.remove(1);
    Some(())
}

/// A pull that went on where another of its session had ended.
fn following(history: &History, stream: &mut Stream) -> Option<usize> {
    let at = pick(history, stream, |op| unfiltered(op, 2))?;
    let pull = history.ops[at].call.pull()?.clone();
    let before = history.ops[..at].iter().any(|op| {
        got(op, 1).is_some_and(|pulled| pulled.next == pull.from) && op.call.pull().is_some_and(|p| p.sess == pull.sess)
    });
    before.then_some(at)
}

fn skip_between(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = following(history, stream)?;
    pulled(&mut history.ops[at])?.got.remove(0);
    let Call::Pull(pull) = &mut history.ops[at].call else { return None };
    pull.from += 1;
    Some(())
}

fn same_again(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, |op| unfiltered(op, 1))?;
    let mut again = history.ops[at].clone();
    let End::Ok { at: ended, .. } = &mut again.end else { return None };
    (again.op, again.invoked, *ended) = (2_000_000, Nanos(ended.0 + 1), Nanos(ended.0 + 2));
    history.ops.push(again);
    Some(())
}

fn sent_back(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = following(history, stream)?;
    let Call::Pull(pull) = &mut history.ops[at].call else { return None };
    pull.from -= 1;
    Some(())
}

fn swapped(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, |op| got(op, 2).is_some())?;
    pulled(&mut history.ops[at])?.got.swap(0, 1);
    Some(())
}

fn crossed(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, |op| got(op, 1).is_some())?;
    let pulled = pulled(&mut history.ops[at])?;
    pulled.min = pulled.max + 1;
    Some(())
}

/// A stored message whose send `wanted` accepts, with its queue.
fn stored(history: &History, stream: &mut Stream, wanted: fn(&Op) -> bool) -> Option<(usize, Unique)> {
    let cells = cells(history);
    let is_stored = |op: &Op| {
        let send = op.call.message();
        send.is_some_and(|send| cells.iter().any(|(_, got)| got.unique == send.unique))
    };
    let at = pick(history, stream, |op| wanted(op) && is_stored(op))?;
    Some((at, history.ops[at].call.message()?.unique))
}

fn delayed(op: &Op) -> bool {
    matches!(op.call, Call::SendDelay(_)) && op.ok_at().is_some()
}

fn half(op: &Op) -> bool {
    matches!(op.call, Call::SendHalf(_)) && op.ok_at().is_some()
}

fn early(history: &mut History, stream: &mut Stream) -> Option<()> {
    let (at, _) = stored(history, stream, delayed)?;
    let Call::SendDelay(send) = &mut history.ops[at].call else { return None };
    send.delay_ms = Some(10_000_000);
    Some(())
}

fn twice(history: &mut History, stream: &mut Stream, wanted: fn(&Op) -> bool) -> Option<()> {
    let (_, unique) = stored(history, stream, wanted)?;
    let (queue, record) = cells(history).into_iter().find(|(_, got)| got.unique == unique)?;
    append_final(history, &queue, record)
}

fn delayed_twice(history: &mut History, stream: &mut Stream) -> Option<()> {
    twice(history, stream, delayed)
}

fn delayed_lost(history: &mut History, stream: &mut Stream) -> Option<()> {
    let (at, unique) = stored(history, stream, delayed)?;
    // Sent early enough to be surely due.
    history.ops[at].invoked = Nanos(1);
    let healed = history.last_heal();
    let late = history.ops[at].ended()?.max(healed).plus(Duration::from_secs(20));
    edit_final(history, |_, all| all.retain(|got| got.unique != unique));
    for op in history.ops.iter_mut().filter(|op| matches!(op.call, Call::FinalRead(_))) {
        op.invoked = op.invoked.max(late);
        let End::Ok { at, .. } = &mut op.end else { continue };
        *at = (*at).max(op.invoked);
    }
    Some(())
}

fn delayed_late(history: &mut History, stream: &mut Stream) -> Option<()> {
    let (_, unique) = stored(history, stream, delayed)?;
    let (queue, record) = cells(history).into_iter().find(|(_, got)| got.unique == unique)?;
    let end = history.end().plus(Duration::from_secs(60));
    let at = add(history, STRANGER, Call::MaxOffset(OneQueue { queue }), Answer::Done);
    history.ops[at].invoked = end;
    let answer = Answer::Offset(Offset { queue_offset: Some(record.queue_offset) });
    history.ops[at].end = End::Ok { at: Nanos(end.0 + 1), answer };
    Some(())
}

fn ends(op: &Op, unique: Unique) -> bool {
    matches!(&op.call, Call::EndTx(end) if end.unique == unique)
}

fn undecided(history: &mut History, stream: &mut Stream) -> Option<()> {
    let (_, unique) = stored(history, stream, half)?;
    history.ops.retain(|op| !ends(op, unique));
    Some(())
}

fn before_commit(history: &mut History, stream: &mut Stream) -> Option<()> {
    let (_, unique) = stored(history, stream, half)?;
    let end = history.end();
    history.ops.iter_mut().filter(|op| ends(op, unique)).for_each(|op| {
        op.invoked = Nanos(end.0 + 1);
        op.end = End::Open;
    });
    Some(())
}

fn rolled_back(history: &mut History, stream: &mut Stream) -> Option<()> {
    let (_, unique) = stored(history, stream, half)?;
    for op in history.ops.iter_mut().filter(|op| ends(op, unique)) {
        if let Call::EndTx(end) = &mut op.call {
            end.decision = Decision::Rollback;
        }
    }
    Some(())
}

fn commit_lost(history: &mut History, stream: &mut Stream) -> Option<()> {
    let (_, unique) = stored(history, stream, half)?;
    edit_final(history, |_, all| all.retain(|got| got.unique != unique));
    Some(())
}

fn committed_twice(history: &mut History, stream: &mut Stream) -> Option<()> {
    twice(history, stream, half)
}

fn both_outcomes(history: &mut History, stream: &mut Stream) -> Option<()> {
    let (_, unique) = stored(history, stream, half)?;
    for decision in [Decision::Commit, Decision::Rollback] {
        add(history, STRANGER, Call::EndTx(jepsen::history::EndTx { unique, decision }), Answer::Done);
    }
    Some(())
}

fn unasked(history: &mut History, stream: &mut Stream) -> Option<()> {
    let asked: Vec<Unique> = history.notes.iter().filter_map(|(_, note)| asked_about(note)).collect();
    let open = |op: &Op| {
        let unique = op.call.message().map(|send| send.unique);
        half(op) && unique.is_some_and(|unique| asked.contains(&unique))
    };
    let at = pick(history, stream, open)?;
    let unique = history.ops[at].call.message()?.unique;
    history.notes.retain(|(_, note)| asked_about(note) != Some(unique));
    history.ops.retain(|op| !ends(op, unique));
    lasts_longer(history);
    Some(())
}

fn none_asked(history: &mut History, _: &mut Stream) -> Option<()> {
    history.ops.iter().any(half).then_some(())?;
    history.notes.retain(|(_, note)| asked_about(note).is_none());
    history.ops.retain(|op| !matches!(op.call, Call::EndTx(_)));
    lasts_longer(history);
    Some(())
}

fn asked_about(note: &Note) -> Option<Unique> {
    match note {
        Note::CheckBack { unique } => Some(*unique),
        _ => None,
    }
}

fn lasts_longer(history: &mut History) {
    let at = history.end().plus(Duration::from_secs(120));
    history.notes.push((at, Note::Gauge(Gauge::default())));
}

fn corrupt_read(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, |op| got(op, 1).is_some())?;
    let pulled = pulled(&mut history.ops[at])?;
    pulled.corrupt = vec![pulled.got.first()?.queue_offset];
    Some(())
}

fn corrupt_replica(history: &mut History, _: &mut Stream) -> Option<()> {
    let damaged = |node: &str, note: &Note| matches!(note, Note::Fault(f) if f.target.iter().any(|n| &**n == node));
    let damaged: Vec<bool> =
        ["b1", "b2", "b3"].iter().map(|node| history.notes.iter().any(|(_, note)| damaged(node, note))).collect();
    edit_last_note(history, |note| match note {
        Note::Dump(dump) if !damaged[["b1", "b2", "b3"].iter().position(|node| **node == *dump.node)?] => {
            dump.corrupt = vec![dump.records.first()?.0];
            Some(())
        }
        _ => None,
    })
}

fn answered(history: &mut History, stream: &mut Stream, code: i32) -> Option<()> {
    let at = pick(history, stream, |op| matches!(op.call, Call::Send(_)) && op.ok_at().is_none())?;
    let ended = history.ops[at].ended()?;
    history.ops[at].end = End::Info { at: ended, refusal: Refusal { code: Some(code), why: "soft".into() } };
    Some(())
}

fn soft_answer(history: &mut History, stream: &mut Stream) -> Option<()> {
    answered(history, stream, 10)
}

fn busy_answer(history: &mut History, stream: &mut Stream) -> Option<()> {
    answered(history, stream, 2)
}
