//! A30, A34: what is on the disks of the replicas.
//!
//! | Anomaly | Found when |
//! | --- | --- |
//! | A30 replica divergence | one committed position has different bytes, or one applied index different states; or a derived store leads where the log does not |
//! | A34 corruption served | a reader was given bytes with a wrong checksum, or a replica that nobody damaged has them |

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Answer, BodyHash, Dump, Note};
use crate::index::Index;

pub(super) const CHECKER: Checker = Checker { name: "replica", finds: &[Anomaly::A30, Anomaly::A34], run: check };

fn check(index: &Index<'_>, report: &mut Report) {
    check_dumps(index, report);
    check_states(index, report);
    check_derived(index, report);
    check_corruption(index, report);
}

/// A replica's log as one map; it may come in several notes.
#[derive(Default)]
struct Log {
    committed: u64,
    records: BTreeMap<u64, BodyHash>,
}

/// Logs by broker group (the part of the node's name behind a slash, if any) and node.
fn logs<'h>(index: &Index<'h>) -> BTreeMap<&'h str, BTreeMap<&'h str, Log>> {
    let mut all: BTreeMap<&str, BTreeMap<&str, Log>> = BTreeMap::new();
    for (_, note) in &index.history.notes {
        let Note::Dump(Dump { node, committed, records, .. }) = note else { continue };
        let group = node.split_once('/').map_or("", |(_, group)| group);
        let log = all.entry(group).or_default().entry(node).or_default();
        log.committed = log.committed.max(*committed);
        log.records.extend(records.iter().copied());
    }
    all
}

fn check_dumps(index: &Index<'_>, report: &mut Report) {
    for replicas in logs(index).into_values() {
        let mut replicas = replicas.into_iter();
        let Some((first_node, first)) = replicas.next() else { continue };
        for (node, log) in replicas {
            let committed = first.committed.min(log.committed);
            let start = |log: &Log| log.records.keys().next().copied().unwrap_or(u64::MAX);
            let from = start(&first).max(start(&log));
            if from >= committed {
                continue;
            }
            let mut here = first.records.range(from..committed).peekable();
            let mut there = log.records.range(from..committed).peekable();
            while let Some(at) = here.peek().into_iter().chain(there.peek()).map(|(at, _)| **at).min() {
                let one = here.next_if(|(position, _)| **position == at).map(|(_, hash)| *hash);
                let other = there.next_if(|(position, _)| **position == at).map(|(_, hash)| *hash);
                report.checked += 1;
                if one != other {
                    report.find(Anomaly::A30, [], || {
                        let text = |hash: Option<BodyHash>| hash.map_or_else(|| "nothing".into(), |h| h.to_string());
                        let (one, other) = (text(one), text(other));
                        format!("position {at} below committed {committed}: {one} on {first_node}, {other} on {node}")
                    });
                }
            }
        }
    }
}

fn check_states(index: &Index<'_>, report: &mut Report) {
    let mut states: HashMap<(&str, u64), (BodyHash, &str)> = HashMap::new();
    for (at, seen) in index.observations() {
        let Some((applied, hash)) = seen.state else { continue };
        report.checked += 1;
        let (first, node) = *states.entry((&seen.group, applied)).or_insert((hash, &seen.node));
        if first != hash {
            report.find(Anomaly::A30, [], || {
                format!("the state after entry {applied} is {first} on {node} and {hash} on {} at {at}", seen.node)
            });
        }
    }
}

fn check_derived(index: &Index<'_>, report: &mut Report) {
    for (_, note) in &index.history.notes {
        let Note::Derived(derived) = note else { continue };
        report.checked += derived.log.len() as u64;
        let differs = derived.entries.iter().zip(&derived.log).position(|(entry, log)| entry != log);
        let differs = differs.or_else(|| {
            let shorter = derived.entries.len().min(derived.log.len());
            (derived.entries.len() != derived.log.len()).then_some(shorter)
        });
        let Some(nth) = differs else { continue };
        report.find(Anomaly::A30, [], || {
            let text = |list: &[u64]| list.get(nth).map_or_else(|| "nothing".into(), |at| format!("position {at}"));
            let (node, store) = (&derived.node, &derived.store);
            let (entry, log) = (text(&derived.entries), text(&derived.log));
            format!("{node}: entry {nth} of {store} leads to {entry}, the log has {log}")
        });
    }
}

fn check_corruption(index: &Index<'_>, report: &mut Report) {
    for op in &index.history.ops {
        let (Some(pull), Some((_, Answer::Pulled(pulled)))) = (op.call.pull(), op.ok()) else { continue };
        report.checked += 1;
        if let Some(at) = pulled.corrupt.first() {
            report.find(Anomaly::A34, [op.op], || {
                format!("offset {at} of {} reached a reader with a wrong checksum", pull.queue)
            });
        }
    }
    let faults = index.faults();
    let damaged: HashSet<&str> = faults
        .iter()
        .filter(|(.., fault)| fault.kind.contains("rot"))
        .flat_map(|(.., fault)| &fault.target)
        .map(|n| &**n)
        .collect();
    for (_, note) in &index.history.notes {
        let Note::Dump(dump) = note else { continue };
        let node = dump.node.split_once('/').map_or(&*dump.node, |(node, _)| node);
        if let Some(at) = dump.corrupt.first().filter(|_| !damaged.contains(node)) {
            report.find(Anomaly::A34, [], || {
                format!("position {at} has a wrong checksum on {}, which nobody damaged", dump.node)
            });
        }
    }
}
