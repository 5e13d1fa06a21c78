//! A16-A22 and A28: planted in groups, offsets, locks and topics.

use std::collections::BTreeSet;
use std::time::Duration;

use jepsen::anomaly::Anomaly;
use jepsen::history::{
    Answer, Call, Commit, Consume, End, GroupQueue, History, Lock, Nanos, Note, Offset, Op, Phase, Process, Queues,
    Topic,
};
use jepsen::seed::Stream;

use crate::Plant;
use crate::tool::{STRANGER, add, last, pick};

pub(crate) const PLANTS: &[Plant] = &[
    Plant { anomaly: Anomaly::A16, name: "a message reaches no member", plant: unseen },
    Plant { anomaly: Anomaly::A16, name: "a group is given nothing of a queue", plant: unseen_queue },
    Plant { anomaly: Anomaly::A17, name: "a group passes over a message", plant: skipped },
    Plant { anomaly: Anomaly::A17, name: "a group's offset is ahead of what it was given", plant: ahead },
    Plant { anomaly: Anomaly::A18, name: "a committed offset is forgotten", plant: forgotten },
    Plant { anomaly: Anomaly::A18, name: "a committed offset is set back", plant: set_back },
    Plant { anomaly: Anomaly::A19, name: "an offset that nobody committed", plant: phantom_offset },
    Plant { anomaly: Anomaly::A19, name: "an offset beyond the end of the queue", plant: overrun },
    Plant { anomaly: Anomaly::A20, name: "a delivery is repeated although nothing happened", plant: repeated },
    Plant { anomaly: Anomaly::A20, name: "one event repeats more than it can", plant: too_many },
    Plant { anomaly: Anomaly::A21, name: "two members are given one lock", plant: two_locks },
    Plant { anomaly: Anomaly::A21, name: "a member processes what another has locked", plant: intruder },
    Plant { anomaly: Anomaly::A22, name: "the last message of a key is processed first", plant: last_first },
    Plant { anomaly: Anomaly::A22, name: "two messages of a key are swapped", plant: swapped_keys },
    Plant { anomaly: Anomaly::A28, name: "a created topic is gone", plant: topic_gone },
    Plant { anomaly: Anomaly::A28, name: "a topic lost queues", plant: fewer_queues },
];

fn consume(op: &Op) -> Option<&Consume> {
    match &op.call {
        Call::Consume(consume) => Some(consume),
        _ => None,
    }
}

fn unseen(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, |op| consume(op).is_some())?;
    let gone = consume(&history.ops[at])?.clone();
    history.ops.retain(|op| {
        consume(op)
            .is_none_or(|c| c.group != gone.group || c.queue != gone.queue || c.queue_offset != gone.queue_offset)
    });
    Some(())
}

fn unseen_queue(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, |op| consume(op).is_some())?;
    let gone = consume(&history.ops[at])?.clone();
    history.ops.retain(|op| consume(op).is_none_or(|c| c.group != gone.group || c.queue != gone.queue));
    Some(())
}

fn skipped(history: &mut History, stream: &mut Stream) -> Option<()> {
    // Without a drain only what lies below the group's offset is owed.
    history.notes.retain(|(_, note)| !matches!(note, Note::Phase { name: Phase::Drained }));
    unseen(history, stream)
}

fn ahead(history: &mut History, _: &mut Stream) -> Option<()> {
    history.notes.retain(|(_, note)| !matches!(note, Note::Phase { name: Phase::Drained }));
    let final_phase = history.phase(Phase::Final)?;
    let before = history.ops.len();
    history.ops.retain(|op| consume(op).is_none() || op.invoked < final_phase);
    (history.ops.len() < before).then_some(())
}

fn answer_offset(history: &mut History, at: usize, queue_offset: Option<u64>) -> Option<()> {
    let End::Ok { answer: Answer::Offset(offset), .. } = &mut history.ops[at].end else { return None };
    *offset = Offset { queue_offset };
    Some(())
}

/// The final read of the register, if something was surely committed to it before.
fn final_query(history: &History) -> Option<usize> {
    history
        .ops
        .iter()
        .position(|op| matches!(&op.call, Call::Commit(c) if &*c.group == "registers") && op.ok_at().is_some())?;
    last(history, |op| matches!(&op.call, Call::QueryOffset(q) if &*q.group == "registers" && q.queue.ends_with("/0")))
}

fn forgotten(history: &mut History, _: &mut Stream) -> Option<()> {
    let at = final_query(history)?;
    answer_offset(history, at, None)
}

fn set_back(history: &mut History, _: &mut Stream) -> Option<()> {
    let at = final_query(history)?;
    let queue = "t1/broker-a/0".into();
    let commit = |queue_offset| Commit { group: "registers".into(), queue, queue_offset, oneway: false };
    // The queue has more than two messages, so both are possible values.
    let first = add(history, STRANGER, Call::Commit(commit(1)), Answer::Done);
    let Call::Commit(mut second) = history.ops[first].call.clone() else { return None };
    second.queue_offset = 2;
    add(history, STRANGER, Call::Commit(second), Answer::Done);
    // No unknown commit of that value may excuse it.
    history.ops.retain(|op| !matches!(&op.call, Call::Commit(c) if c.queue_offset == 1 && op.ok_at().is_none()));
    let queue = GroupQueue { group: "registers".into(), queue: "t1/broker-a/0".into() };
    add(history, STRANGER, Call::QueryOffset(queue), Answer::Offset(Offset { queue_offset: Some(1) }));
    (at > 0).then_some(())
}

fn phantom_offset(history: &mut History, _: &mut Stream) -> Option<()> {
    let at = final_query(history)?;
    answer_offset(history, at, Some(123_456))
}

fn overrun(history: &mut History, _: &mut Stream) -> Option<()> {
    final_query(history)?;
    let queue: Box<str> = "t1/broker-a/0".into();
    let group: Box<str> = "registers".into();
    let commit = Commit { group: group.clone(), queue: queue.clone(), queue_offset: 99_999, oneway: false };
    add(history, STRANGER, Call::Commit(commit), Answer::Done);
    let read = Call::QueryOffset(GroupQueue { group, queue });
    add(history, STRANGER, read, Answer::Offset(Offset { queue_offset: Some(99_999) }));
    Some(())
}

fn repeated(history: &mut History, stream: &mut Stream) -> Option<()> {
    let at = pick(history, stream, |op| consume(op).is_some_and(|c| &*c.group == "g0") && op.ok_at().is_some())?;
    let (call, process) = (history.ops[at].call.clone(), history.ops[at].process);
    // Long after everything else, so that no event explains it.
    let quiet = history.end().plus(Duration::from_secs(120));
    for nth in 0..2 {
        let at = add(history, process, call.clone(), Answer::Done);
        history.ops[at].invoked = quiet.plus(Duration::from_millis(nth));
        history.ops[at].end = End::Ok { at: Nanos(history.ops[at].invoked.0 + 1), answer: Answer::Done };
    }
    Some(())
}

fn too_many(history: &mut History, stream: &mut Stream) -> Option<()> {
    history.notes.iter_mut().for_each(|(_, note)| {
        if let Note::Run(run) = note {
            run.limits.repeats_per_event = 1;
        }
    });
    let at = pick(history, stream, |op| consume(op).is_some() && op.ok_at().is_some())?;
    let (call, process) = (history.ops[at].call.clone(), history.ops[at].process);
    for _ in 0..history.ops.len() {
        add_cheaply(history, process, call.clone());
    }
    Some(())
}

/// As [`add`], at the time of the last operation and without looking for the end.
fn add_cheaply(history: &mut History, process: Process, call: Call) {
    let op = 3_000_000 + history.ops.len() as u64;
    let invoked = history.ops.last().map(|op| op.invoked).unwrap_or_default();
    history.ops.push(Op { op, process, invoked, call, end: End::Ok { at: invoked, answer: Answer::Done } });
}

fn lock(history: &History, stream: &mut Stream) -> Option<(usize, Lock)> {
    let at =
        pick(history, stream, |op| matches!(&op.call, Call::Lock(l) if &*l.group == "g1") && op.ok_at().is_some())?;
    let Call::Lock(lock) = history.ops[at].call.clone() else { return None };
    Some((at, lock))
}

fn two_locks(history: &mut History, stream: &mut Stream) -> Option<()> {
    let (at, lock) = lock(history, stream)?;
    let ok = history.ops[at].ok_at()?;
    let op = Op {
        op: 4_000_000,
        process: STRANGER,
        invoked: Nanos(ok.0 + 1),
        call: Call::Lock(lock),
        end: End::Ok { at: Nanos(ok.0 + 2), answer: Answer::Done },
    };
    history.ops.push(op);
    Some(())
}

fn intruder(history: &mut History, stream: &mut Stream) -> Option<()> {
    let (at, lock) = lock(history, stream)?;
    let owner = history.ops[at].process;
    let ok = history.ops[at].ok_at()?;
    let next = |op: &Op| {
        op.process == owner && op.invoked > ok && consume(op).is_some_and(|c| c.orderly && c.queue == lock.queue)
    };
    let used = (at..history.ops.len()).find(|at| next(&history.ops[*at]))?;
    // Still within the lease, and before the owner unlocks.
    let left = |op: &Op| op.process == owner && matches!(op.call, Call::Unlock(_));
    let unlocked = history.ops[at..used].iter().any(left);
    let in_time = history.ops[used].invoked.since(history.ops[at].invoked) < Duration::from_millis(lock.lease_ms);
    (!unlocked && in_time).then_some(())?;
    history.ops[used].process = STRANGER;
    Some(())
}

/// The first orderly deliveries of one key in one queue, in order.
fn deliveries_of_key(history: &History) -> Option<Vec<usize>> {
    let keyed = |consume: &Consume| {
        let sent = history.ops.iter().filter_map(|op| op.call.message()).find(|send| send.unique == consume.unique);
        sent.and_then(|send| send.key.clone())
    };
    let orderly = |op: &&Op| consume(op).is_some_and(|c| c.orderly);
    let first = history.ops.iter().filter(orderly).find_map(|op| Some((consume(op)?, keyed(consume(op)?)?)))?;
    let mut seen = BTreeSet::new();
    let same = |op: &Op| {
        consume(op).is_some_and(|c| c.orderly && c.queue == first.0.queue && keyed(c).as_ref() == Some(&first.1))
    };
    let all: Vec<usize> = (0..history.ops.len())
        .filter(|at| same(&history.ops[*at]) && consume(&history.ops[*at]).is_some_and(|c| seen.insert(c.queue_offset)))
        .collect();
    (all.len() >= 3).then_some(all)
}

fn last_first(history: &mut History, _: &mut Stream) -> Option<()> {
    let all = deliveries_of_key(history)?;
    let mut early = history.ops[*all.last()?].clone();
    (early.op, early.invoked) = (5_000_000, Nanos(1));
    history.ops.push(early);
    Some(())
}

fn swapped_keys(history: &mut History, _: &mut Stream) -> Option<()> {
    let all = deliveries_of_key(history)?;
    let (first, second) = (all[0], all[1]);
    let call = history.ops[first].call.clone();
    history.ops[first].call = std::mem::replace(&mut history.ops[second].call, call);
    Some(())
}

fn created(history: &mut History, read: Option<u32>) -> Option<()> {
    let topic = Topic { topic: "made".into(), queues: 8 };
    add(history, STRANGER, Call::CreateTopic(topic.clone()), Answer::Done);
    add(history, STRANGER, Call::ReadTopic(topic), Answer::Queues(Queues { queues: read }));
    Some(())
}

fn topic_gone(history: &mut History, _: &mut Stream) -> Option<()> {
    created(history, None)
}

fn fewer_queues(history: &mut History, _: &mut Stream) -> Option<()> {
    created(history, Some(7))
}
