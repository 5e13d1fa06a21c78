//! A27, A29, A30, A32, A33, A35-A38, A40: planted in what the harness saw, and in when answers came.

use std::time::Duration;

use jepsen::anomaly::Anomaly;
use jepsen::history::{
    Answer, BodyHash, Call, Exit, Fault, FaultState, Gauge, History, Nanos, Node, Note, Observation, Op, Phase,
};
use jepsen::seed::Stream;

use crate::Plant;
use crate::messages::{lose_answers, stores_into};
use crate::tool::{STRANGER, add, edit_last_note, is_acked, last, note, sent};

pub(crate) const PLANTS: &[Plant] = &[
    Plant { anomaly: Anomaly::A27, name: "a name server names a follower", plant: wrong_master },
    Plant { anomaly: Anomaly::A27, name: "a name server goes back to an older term", plant: older_term },
    Plant { anomaly: Anomaly::A27, name: "a name server names two masters", plant: two_masters },
    Plant { anomaly: Anomaly::A29, name: "two nodes say that they lead one term", plant: two_leaders },
    Plant { anomaly: Anomaly::A29, name: "two nodes acknowledge in one term", plant: two_acknowledge },
    Plant { anomaly: Anomaly::A29, name: "a node forgets a term", plant: term_forgotten },
    Plant { anomaly: Anomaly::A30, name: "other bytes on one replica", plant: other_bytes },
    Plant { anomaly: Anomaly::A30, name: "a record is missing on one replica", plant: missing_record },
    Plant { anomaly: Anomaly::A30, name: "another state after the same entry", plant: other_state },
    Plant { anomaly: Anomaly::A30, name: "a queue file leads where the log does not", plant: other_entry },
    Plant { anomaly: Anomaly::A32, name: "a removed node acknowledges", plant: removed_acknowledges },
    Plant { anomaly: Anomaly::A32, name: "a removed node still votes", plant: removed_votes },
    Plant { anomaly: Anomaly::A32, name: "memberships with disjoint quorums", plant: disjoint },
    Plant { anomaly: Anomaly::A32, name: "a wiped node votes as before", plant: wiped_votes },
    Plant { anomaly: Anomaly::A33, name: "a node acknowledges after a failed sync", plant: latched_acknowledges },
    Plant { anomaly: Anomaly::A33, name: "a log grows after a failed sync", plant: latched_grows },
    Plant { anomaly: Anomaly::A35, name: "a node aborts", plant: aborts },
    Plant { anomaly: Anomaly::A35, name: "a node panicked before it was killed", plant: panicked },
    Plant { anomaly: Anomaly::A36, name: "one queue does not recover", plant: one_queue_dead },
    Plant { anomaly: Anomaly::A36, name: "nothing recovers", plant: all_dead },
    Plant { anomaly: Anomaly::A37, name: "sends stall without any fault", plant: stall },
    Plant { anomaly: Anomaly::A37, name: "sends stall while a minority is bad", plant: stall_under_fault },
    Plant { anomaly: Anomaly::A38, name: "hardly anything is acknowledged after the heal", plant: slow },
    Plant { anomaly: Anomaly::A38, name: "half is acknowledged after the heal", plant: half_as_fast },
    Plant { anomaly: Anomaly::A40, name: "memory grows", plant: memory_grows },
    Plant { anomaly: Anomaly::A40, name: "open files grow", plant: files_grow },
];

fn edit_route(history: &mut History, edit: impl Fn(&mut jepsen::history::Route)) -> Option<()> {
    edit_last_note(history, |note| match note {
        Note::Route(route) => {
            edit(route);
            Some(())
        }
        _ => None,
    })
}

/// One name server names another node at last, longer than it may.
fn wrong_master(history: &mut History, _: &mut Stream) -> Option<()> {
    let is_route = |note: &Note| matches!(note, Note::Route(route) if &*route.namesrv == "ns2");
    let last = history.notes.iter().rev().find_map(|(at, note)| is_route(note).then_some(at.0))?;
    let from = last.saturating_sub(6_000_000_000);
    let mut edited = None;
    for (_, note) in history.notes.iter_mut().filter(|(at, _)| at.0 >= from) {
        if let Note::Route(route) = note
            && &*route.namesrv == "ns2"
        {
            let other = if &*route.masters[0] == "b1" { "b2" } else { "b1" };
            route.masters = vec![other.into()];
            edited = Some(());
        }
    }
    edited
}

fn older_term(history: &mut History, _: &mut Stream) -> Option<()> {
    edit_route(history, |route| route.term -= 1)
}

fn two_masters(history: &mut History, _: &mut Stream) -> Option<()> {
    edit_route(history, |route| route.masters.push("b9".into()))
}

/// The last observation that `wanted` accepts.
fn last_seen(history: &History, wanted: impl Fn(&Observation) -> bool) -> Option<Observation> {
    history.notes.iter().rev().find_map(|(_, note)| match note {
        Note::Obs(seen) if wanted(seen) => Some(seen.clone()),
        _ => None,
    })
}

fn leads(seen: &Observation) -> bool {
    seen.leader.as_ref() == Some(&seen.node)
}

fn two_leaders(history: &mut History, _: &mut Stream) -> Option<()> {
    let mut seen = last_seen(history, |seen| seen.leader.is_some() && !leads(seen))?;
    let another = last_seen(history, leads)?;
    (seen.term == another.term).then_some(())?;
    seen.leader = Some(seen.node.clone());
    note(history, Note::Obs(seen));
    Some(())
}

fn two_acknowledge(history: &mut History, _: &mut Stream) -> Option<()> {
    let at = last(history, is_acked)?;
    sent(&mut history.ops[at])?.by = Some("b9".into());
    Some(())
}

fn term_forgotten(history: &mut History, _: &mut Stream) -> Option<()> {
    let mut seen = last_seen(history, |seen| !leads(seen))?;
    (seen.term, seen.leader, seen.life) = (seen.term - 1, None, seen.life + 1);
    note(history, Note::Obs(seen));
    Some(())
}

fn edit_dump(history: &mut History, edit: impl Fn(&mut Vec<(u64, BodyHash)>)) -> Option<()> {
    edit_last_note(history, |note| match note {
        Note::Dump(dump) if dump.records.len() > 2 => {
            edit(&mut dump.records);
            Some(())
        }
        _ => None,
    })
}

fn other_bytes(history: &mut History, _: &mut Stream) -> Option<()> {
    edit_dump(history, |records| records[1].1 = BodyHash(1))
}

fn missing_record(history: &mut History, _: &mut Stream) -> Option<()> {
    edit_dump(history, |records| {
        records.remove(1);
    })
}

fn other_state(history: &mut History, _: &mut Stream) -> Option<()> {
    let mut seen = last_seen(history, |seen| seen.state.is_some())?;
    seen.node = "b3".into();
    let (applied, _) = seen.state?;
    seen.state = Some((applied, BodyHash(1)));
    note(history, Note::Obs(seen));
    Some(())
}

fn other_entry(history: &mut History, _: &mut Stream) -> Option<()> {
    edit_last_note(history, |note| match note {
        Note::Derived(derived) => {
            *derived.entries.first_mut()? += 1;
            Some(())
        }
        _ => None,
    })
}

fn removed(op: &Op) -> bool {
    matches!(&op.call, Call::Remove(node) if &*node.node == "b4") && op.ok_at().is_some()
}

fn removed_acknowledges(history: &mut History, _: &mut Stream) -> Option<()> {
    let at = last(history, removed)?;
    let after = history.ops[at].ok_at()?;
    // What was added without an answer may be added later.
    let adds = |op: &&Op| matches!(&op.call, Call::Promote(_) | Call::AddLearner(_));
    history.ops.iter().filter(adds).all(|op| op.ok_at().is_some() || op.failed()).then_some(())?;
    let acked = last(history, |op| is_acked(op) && op.invoked > after)?;
    let answer = sent(&mut history.ops[acked])?;
    (answer.by, answer.term) = (Some("b4".into()), Some(77));
    Some(())
}

fn removed_votes(history: &mut History, _: &mut Stream) -> Option<()> {
    let mut seen = last_seen(history, leads)?;
    let (number, sets) = seen.members.clone()?;
    add(history, STRANGER, Call::Remove(Node { node: "b2".into() }), Answer::Done);
    seen.members = Some((number, sets));
    note(history, Note::Obs(seen));
    Some(())
}

fn disjoint(history: &mut History, _: &mut Stream) -> Option<()> {
    let mut seen = last_seen(history, leads)?;
    let (number, _) = seen.members.clone()?;
    seen.members = Some((number + 1, vec![vec!["b7".into(), "b8".into(), "b9".into()]]));
    note(history, Note::Obs(seen));
    Some(())
}

fn wiped_votes(history: &mut History, _: &mut Stream) -> Option<()> {
    let mut seen = last_seen(history, |seen| &*seen.node == "b2")?;
    let fault = |state| Fault {
        id: "w".into(),
        kind: "wipe".into(),
        state,
        target: vec!["b2".into()],
        tolerable: true,
        jump_ms: None,
        why: "".into(),
    };
    note(history, Note::Fault(fault(FaultState::Installed)));
    note(history, Note::Fault(fault(FaultState::Healed)));
    seen.life += 1;
    note(history, Note::Obs(seen));
    Some(())
}

fn latched_acknowledges(history: &mut History, _: &mut Stream) -> Option<()> {
    let at = last(history, is_acked)?;
    let by = sent(&mut history.ops[at])?.by.clone()?;
    let before = history.ops[at].invoked;
    // The node's last observation before this acknowledgement tells of a failed sync.
    let seen = history.notes.iter_mut().rev().find_map(|(when, note)| match note {
        Note::Obs(seen) if seen.node == by && *when < before => Some(seen),
        _ => None,
    })?;
    seen.latched = true;
    Some(())
}

fn latched_grows(history: &mut History, _: &mut Stream) -> Option<()> {
    let mut seen = last_seen(history, |seen| !leads(seen))?;
    seen.latched = true;
    note(history, Note::Obs(seen.clone()));
    seen.flushed += 1;
    note(history, Note::Obs(seen));
    Some(())
}

fn exit(history: &mut History, ordered: bool, signal: i32, said: Option<&str>) -> Option<()> {
    let said = said.map(Into::into);
    note(history, Note::Exit(Exit { node: "b2".into(), code: None, signal: Some(signal), ordered, said }));
    Some(())
}

fn aborts(history: &mut History, _: &mut Stream) -> Option<()> {
    exit(history, false, 6, None)
}

fn panicked(history: &mut History, _: &mut Stream) -> Option<()> {
    exit(history, true, 9, Some("thread 'apply' panicked at a place"))
}

fn one_queue_dead(history: &mut History, _: &mut Stream) -> Option<()> {
    let healed = history.last_heal();
    let half = healed.plus(Duration::from_millis(2_500));
    let tried = |op: &&Op| is_acked(op) && (healed..half).contains(&op.invoked);
    let queue = stores_into(history.ops.iter().find(tried)?)?.to_owned();
    lose_answers(history, |op| op.invoked >= healed && stores_into(op) == Some(&queue))
}

fn all_dead(history: &mut History, _: &mut Stream) -> Option<()> {
    let healed = history.last_heal();
    lose_answers(history, |op| op.invoked >= healed)
}

/// Nothing that was invoked in these seconds is acknowledged.
fn stall_at(history: &mut History, from: Nanos) -> Option<()> {
    let until = from.plus(Duration::from_secs(8));
    (history.phase(Phase::Final)? > until).then_some(())?;
    lose_answers(history, |op| (from..until).contains(&op.invoked))
}

fn stall(history: &mut History, _: &mut Stream) -> Option<()> {
    stall_at(history, Nanos(5_000_000_000))
}

fn stall_under_fault(history: &mut History, _: &mut Stream) -> Option<()> {
    let begun = history.notes.iter().find_map(|(at, note)| match note {
        Note::Fault(fault) if fault.state == FaultState::Installed => Some(*at),
        _ => None,
    })?;
    stall_at(history, begun)
}

/// Keeps one of `kept` acknowledgements after the heal.
fn slower(history: &mut History, kept: usize) -> Option<()> {
    let first_fault = history.notes.iter().find_map(|(at, note)| matches!(note, Note::Fault(_)).then_some(*at))?;
    let acked = |op: &&Op| stores_into(op).is_some() && op.ok_at().is_some();
    let before = history.ops.iter().filter(acked).filter(|op| op.invoked < first_fault).count();
    (before > 120).then_some(())?;
    let healed = history.last_heal();
    history.notes.iter_mut().for_each(|(_, note)| {
        if let Note::Run(run) = note {
            run.limits.throughput_ms = 500;
        }
    });
    let mut nth = 0_usize;
    lose_answers(history, |op| {
        nth += 1;
        op.invoked >= healed && !nth.is_multiple_of(kept)
    })
}

fn slow(history: &mut History, _: &mut Stream) -> Option<()> {
    slower(history, 20)
}

fn half_as_fast(history: &mut History, _: &mut Stream) -> Option<()> {
    slower(history, 3)
}

fn grows(history: &mut History, gauge: fn(u64) -> Gauge) -> Option<()> {
    let from = history.end();
    for nth in 0..100 {
        let at = from.plus(Duration::from_secs(5 * nth));
        history.notes.push((at, Note::Gauge(Gauge { node: "b9".into(), ..gauge(nth) })));
    }
    Some(())
}

fn memory_grows(history: &mut History, _: &mut Stream) -> Option<()> {
    grows(history, |nth| Gauge { rss: (100 + 10 * nth) << 20, ..Gauge::default() })
}

fn files_grow(history: &mut History, _: &mut Stream) -> Option<()> {
    grows(history, |nth| Gauge { files: 50 + 10 * nth, ..Gauge::default() })
}
