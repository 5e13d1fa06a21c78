//! A24-A26: transactions, each a small state machine of half message, decision, check-backs and visibility.
//!
//! | Anomaly | Found when |
//! | --- | --- |
//! | A24 half visible | a half message is seen before its commit was invoked, or without any decision |
//! | A25 transaction torn | committed and not delivered; rolled back and delivered; both; twice |
//! | A26 check-back missing | an open half message was never asked about, though its producer lives |
//!
//! Ending a transaction is one-way on the wire, so what became of it is settled by what is seen.

use std::collections::{HashMap, HashSet};

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Call, Decision, End, Nanos, Note, Op, Phase, Process, Unique};
use crate::index::{Index, Kind};

pub(super) const CHECKER: Checker =
    Checker { name: "tx", finds: &[Anomaly::A24, Anomaly::A25, Anomaly::A26], run: check };

/// What was decided about one half message.
#[derive(Default)]
struct Decided<'h> {
    commit: Option<&'h Op>,
    rollback: Option<&'h Op>,
    committed: Option<&'h Op>,
    rolled_back: Option<&'h Op>,
}

fn check(index: &Index<'_>, report: &mut Report) {
    let mut decided: HashMap<Unique, Decided<'_>> = HashMap::new();
    for op in &index.history.ops {
        let Call::EndTx(end) = &op.call else { continue };
        if matches!(op.end, End::Fail { .. }) {
            continue;
        }
        let decided = decided.entry(end.unique).or_default();
        let (invoked, ended) = match end.decision {
            Decision::Commit => (&mut decided.commit, &mut decided.committed),
            Decision::Rollback => (&mut decided.rollback, &mut decided.rolled_back),
        };
        invoked.get_or_insert(op);
        if op.ok_at().is_some() {
            ended.get_or_insert(op);
        }
    }
    check_visible(index, report, &decided);
    check_settled(index, report, &decided);
}

fn check_visible(index: &Index<'_>, report: &mut Report, decided: &HashMap<Unique, Decided<'_>>) {
    index.each_sighting(|seen| {
        let Some(message) = index.message(seen.unique).filter(|message| message.kind == Kind::Half) else { return };
        report.checked += 1;
        let decided = decided.get(&seen.unique);
        let at = match seen.op.call {
            Call::Consume(_) => seen.op.invoked,
            _ => seen.op.ended().unwrap_or(seen.op.invoked),
        };
        let place = || format!("{} at {} offset {}", seen.unique, index.queues[seen.queue].name, seen.queue_offset);
        let (half, sight) = (message.op.op, seen.op.op);
        match decided.and_then(|decided| decided.commit) {
            Some(commit) if commit.invoked <= at => {}
            Some(commit) => report.find(Anomaly::A24, [half, commit.op, sight], || {
                format!("{} was seen at {at}, its commit was invoked at {}", place(), commit.invoked)
            }),
            None => match decided.and_then(|decided| decided.rollback) {
                Some(rollback) => report.find(Anomaly::A25, [half, rollback.op, sight], || {
                    format!("{} was seen, although it was only ever rolled back", place())
                }),
                None => report.find(Anomaly::A24, [half, sight], || format!("{} was seen undecided", place())),
            },
        }
    });
}

fn check_settled(index: &Index<'_>, report: &mut Report, decided: &HashMap<Unique, Decided<'_>>) {
    let drained = index.history.phase(Phase::Drained);
    let asked: HashSet<Unique> = index.history.notes.iter().filter_map(check_back).collect();
    let gone = crashed(index);
    let end = index.history.end();
    let nothing = Decided::default();
    for message in index.messages.iter().filter(|message| message.kind == Kind::Half) {
        report.checked += 1;
        let decided = decided.get(&message.unique).unwrap_or(&nothing);
        let queue = &index.queues[message.queue];
        if let (Some(first), Some(second)) = (decided.committed, decided.rolled_back) {
            report.find(Anomaly::A25, [message.op.op, first.op, second.op], || {
                format!("{} was both committed and rolled back", message.unique)
            });
        }
        if let (Some(first), Some(second)) = (message.place, message.second_place) {
            report.find(Anomaly::A25, [message.op.op], || {
                format!("{} was committed twice, to offsets {first} and {second} of {}", message.unique, queue.name)
            });
        }
        let Some(stored) = message.op.ok_at() else { continue };
        let only_commit = decided.commit.filter(|_| decided.rollback.is_none());
        if let Some(commit) = only_commit
            && (drained.is_some() || decided.committed.is_some())
            && queue.complete
            && queue.min == 0
            && message.place.is_none()
        {
            report.find(Anomaly::A25, [message.op.op, commit.op], || {
                format!("{} was committed and is not in {}", message.unique, queue.name)
            });
        }
        let undecided = decided.commit.is_none() && decided.rollback.is_none();
        let lives = !gone.contains_key(&message.op.process.client);
        let overdue = stored.max(index.history.last_heal()).plus(index.limits.tx_check() * 2) < end;
        if undecided && lives && overdue && !asked.contains(&message.unique) {
            report.find(Anomaly::A26, [message.op.op], || {
                let process: Process = message.op.process;
                format!("{} is open since {stored}, and {process} was never asked about it", message.unique)
            });
        }
    }
}

fn check_back((_, note): &(Nanos, Note)) -> Option<Unique> {
    match note {
        Note::CheckBack { unique } => Some(*unique),
        _ => None,
    }
}

fn crashed(index: &Index<'_>) -> HashMap<u16, Nanos> {
    let crashes = index.history.notes.iter().filter_map(|(at, note)| match note {
        Note::ClientCrash { client } => Some((*client, *at)),
        _ => None,
    });
    crashes.collect()
}
