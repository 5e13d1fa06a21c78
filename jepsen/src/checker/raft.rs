//! A29, A32, A33, and the watermarks of A30: what replicas say about themselves.
//!
//! | Anomaly | Found when |
//! | --- | --- |
//! | A29 split brain | two nodes lead one term; or the term of one identity goes backwards |
//! | A30 replica divergence | committed or applied goes backwards within one life of a process |
//! | A32 membership anomaly | a removed node acknowledges; an acknowledged change is undone; two successive memberships have disjoint quorums; a wiped node votes under its old identity |
//! | A33 ack after failed sync | a node acknowledges, or its log grows on disk, after it said that a sync failed |

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Answer, Call, FaultState, Nanos, NodeName, Note, Observation, Op};
use crate::index::Index;

pub(super) const CHECKER: Checker =
    Checker { name: "raft", finds: &[Anomaly::A29, Anomaly::A30, Anomaly::A32, Anomaly::A33], run: check };

fn check(index: &Index<'_>, report: &mut Report) {
    check_leaders(index, report);
    check_lives(index, report);
    check_removed(index, report);
    check_changes(index, report);
    check_quorums(index, report);
    check_wiped(index, report);
    check_latched(index, report);
}

/// The operation, if it was one that `node` acknowledged in some term.
fn acknowledged(op: &Op) -> Option<(&str, u64)> {
    match op.ok() {
        Some((_, Answer::Sent(sent))) => Some((sent.by.as_deref()?, sent.term?)),
        _ => None,
    }
}

/// The broker group in the name of the queue that an operation writes to.
fn group_of(op: &Op) -> &str {
    let queue = op.call.message().map(|send| &*send.queue).unwrap_or_default();
    queue.split('/').nth(1).unwrap_or_default()
}

fn check_leaders(index: &Index<'_>, report: &mut Report) {
    let mut leaders: HashMap<(&str, u64), (&str, Option<u64>)> = HashMap::new();
    let mut see = |group, term, node, op: Option<u64>| {
        report.checked += 1;
        let (first, proof) = *leaders.entry((group, term)).or_insert((node, op));
        if first != node {
            report.find(Anomaly::A29, proof.into_iter().chain(op), || {
                format!("{first} and {node} both led term {term} of group {group:?}")
            });
        }
    };
    let one_group = index.observations().all(|(_, seen)| seen.group.is_empty());
    for (_, seen) in index.observations() {
        if seen.leader.as_ref() == Some(&seen.node) {
            see(&seen.group, seen.term, &seen.node, None);
        }
    }
    for op in &index.history.ops {
        if let Some((node, term)) = acknowledged(op) {
            see(if one_group { "" } else { group_of(op) }, term, node, Some(op.op));
        }
    }
}

fn check_lives(index: &Index<'_>, report: &mut Report) {
    let mut last: HashMap<(&str, &str), &Observation> = HashMap::new();
    for (at, seen) in index.observations() {
        report.checked += 1;
        let Some(before) = last.insert((&seen.node, &seen.group), seen) else { continue };
        let node = &seen.node;
        if before.identity == seen.identity && seen.term < before.term {
            report.find(Anomaly::A29, [], || {
                format!("{node} at {at} went back from term {} to {}", before.term, seen.term)
            });
        }
        if before.life != seen.life {
            continue;
        }
        let marks = [("committed", before.committed, seen.committed), ("applied", before.applied, seen.applied)];
        for (mark, before, now) in marks {
            if now < before {
                report.find(Anomaly::A30, [], || format!("{node} at {at} went back from {mark} {before} to {now}"));
            }
        }
    }
}

/// What the administrator asked for, in order: the node, when it was asked, when answered, and whether it is then in.
fn changes<'h>(index: &Index<'h>) -> Vec<(&'h str, &'h Op, bool)> {
    let all = index.history.ops.iter().filter(|op| !op.failed()).filter_map(|op| match &op.call {
        Call::Promote(call) => Some((&*call.node, op, true)),
        Call::AddLearner(call) => Some((&*call.node, op, true)),
        Call::Remove(call) => Some((&*call.node, op, false)),
        _ => None,
    });
    all.collect()
}

fn check_removed(index: &Index<'_>, report: &mut Report) {
    let changes = changes(index);
    if changes.iter().all(|(.., into)| *into) {
        return;
    }
    for op in &index.history.ops {
        let Some((node, _)) = acknowledged(op) else { continue };
        report.checked += 1;
        let last = changes.iter().filter(|(changed, ..)| *changed == node);
        let removal = last.clone().rfind(|(_, change, into)| !into && change.ok_at().is_some_and(|at| at < op.invoked));
        let Some((_, removal, _)) = removal else { continue };
        // What was asked for earlier and never answered may still bring it back.
        let back = last.clone().any(|(_, change, into)| {
            let over = change.ok_at().is_some_and(|at| at < removal.invoked);
            *into && !over && op.ended().is_none_or(|at| change.invoked < at)
        });
        if !back {
            report.find(Anomaly::A32, [removal.op, op.op], || format!("{node} acknowledged after it was removed"));
        }
    }
}

fn check_changes(index: &Index<'_>, report: &mut Report) {
    let last = index.observations().filter(|(_, seen)| seen.leader.as_ref() == Some(&seen.node)).last();
    let Some((at, seen)) = last else { return };
    let Some((_, sets)) = &seen.members else { return };
    let all = changes(index);
    let voters: BTreeSet<&str> = sets.iter().flatten().map(|node| &**node).collect();
    // A learner votes only once it is promoted.
    let all: Vec<_> = all.into_iter().filter(|(_, op, _)| !matches!(op.call, Call::AddLearner(_))).collect();
    let latest: BTreeMap<&str, (&Op, bool)> = all.iter().map(|(node, op, into)| (*node, (*op, *into))).collect();
    for (node, (op, into)) in latest {
        report.checked += 1;
        // Nothing that was asked for before may still come.
        let others = all.iter().filter(|(changed, other, _)| *changed == node && other.op != op.op);
        let mut before = others.map(|(_, other, _)| other.ok_at().is_some_and(|at| at < op.invoked));
        let settled = op.ok_at().is_some_and(|ended| ended < *at) && before.all(|over| over);
        if settled && voters.contains(node) != into {
            report.find(Anomaly::A32, [op.op], || {
                let is = if into { "was made a voter and is none" } else { "was removed and still votes" };
                format!("{node} {is} at {at}")
            });
        }
    }
}

fn check_quorums(index: &Index<'_>, report: &mut Report) {
    let mut memberships: BTreeMap<(&str, u64), &Vec<Vec<NodeName>>> = BTreeMap::new();
    for (_, seen) in index.observations() {
        if let Some((number, sets)) = &seen.members {
            memberships.insert((&seen.group, *number), sets);
        }
    }
    for ((group, number), sets) in &memberships {
        let Some(next) = memberships.get(&(*group, number + 1)) else { continue };
        report.checked += 1;
        // A quorum of a joint membership is one of each of its sets, so any pair of sets that must meet is enough.
        let meet = sets.iter().any(|old| next.iter().any(|new| quorums_meet(old, new)));
        if !meet {
            report.find(Anomaly::A32, [], || {
                format!("memberships {number} and {} of group {group:?} have disjoint quorums", number + 1)
            });
        }
    }
}

/// Whether every majority of `old` has a node in common with every majority of `new`.
fn quorums_meet(old: &[NodeName], new: &[NodeName]) -> bool {
    let both = old.iter().filter(|node| new.contains(node)).count();
    let needed = |all: usize| (all / 2 + 1).saturating_sub(all - both);
    needed(old.len()) + needed(new.len()) > both
}

fn check_wiped(index: &Index<'_>, report: &mut Report) {
    let mut identities: HashMap<(&str, &str), (u64, u32)> = HashMap::new();
    let mut wiped: HashMap<&str, Vec<(&str, u64, u32)>> = HashMap::new();
    for (at, note) in &index.history.notes {
        match note {
            Note::Fault(fault) if &*fault.kind == "wipe" && fault.state == FaultState::Installed => {
                for node in &fault.target {
                    let known = identities.iter().filter(|((known, _), _)| *known == &**node);
                    let lost = known.map(|((_, group), (identity, life))| (*group, *identity, *life)).collect();
                    wiped.insert(node, lost);
                }
            }
            Note::Obs(seen) => {
                identities.insert((&seen.node, &seen.group), (seen.identity, seen.life));
                let lost = wiped.get(&*seen.node).into_iter().flatten();
                let again = |(group, identity, life): &&(&str, u64, u32)| {
                    *group == &*seen.group && *identity == seen.identity && seen.life > *life && *identity != 0
                };
                report.checked += 1;
                let votes =
                    seen.members.as_ref().is_some_and(|(_, sets)| sets.iter().flatten().any(|n| *n == seen.node));
                if lost.into_iter().any(|lost| again(&lost)) && votes {
                    report.find(Anomaly::A32, [], || {
                        format!("{} was wiped and votes at {at} as identity {} again", seen.node, seen.identity)
                    });
                }
            }
            _ => {}
        }
    }
}

fn check_latched(index: &Index<'_>, report: &mut Report) {
    let mut latched: BTreeMap<&str, (Nanos, u32, u64)> = BTreeMap::new();
    let mut ended: Vec<(&str, Nanos, Nanos)> = Vec::new();
    for (at, seen) in index.observations() {
        report.checked += 1;
        if let Some((since, life, flushed)) = latched.get(&*seen.node).copied() {
            if life != seen.life {
                latched.remove(&*seen.node);
                ended.push((&seen.node, since, *at));
            } else if seen.flushed > flushed {
                report.find(Anomaly::A33, [], || {
                    format!("{} at {at} flushed up to {} after its sync failed at {since}", seen.node, seen.flushed)
                });
            }
        }
        if seen.latched {
            latched.entry(&seen.node).or_insert((*at, seen.life, seen.flushed));
        }
    }
    let end = index.history.end();
    ended.extend(latched.into_iter().map(|(node, (since, ..))| (node, since, end)));
    if ended.is_empty() {
        return;
    }
    for op in &index.history.ops {
        let (Some((node, _)), Some(ok)) = (acknowledged(op), op.ok_at()) else { continue };
        let during = ended.iter().find(|(failed, since, until)| *failed == node && *since < op.invoked && ok < *until);
        if let Some((_, since, _)) = during {
            report.find(Anomaly::A33, [op.op], || format!("{node} acknowledged after its sync failed at {since}"));
        }
    }
}
