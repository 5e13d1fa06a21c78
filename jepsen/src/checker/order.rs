//! A08, A09, A22: the order of a queue against real time, producers and sharding keys.
//!
//! | Anomaly | Found when |
//! | --- | --- |
//! | A08 real-time reorder | one send ended before another began, and yet has the higher offset |
//! | A09 non-monotonic send | a producer's next acknowledgement has no higher offset than its last |
//! | A22 ordered-key inversion | an orderly group first got a later message of a key, then an earlier one |

use std::collections::{HashMap, HashSet};

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Call, Nanos, Process, SendMode};
use crate::index::{Index, Kind, Message};

pub(super) const CHECKER: Checker =
    Checker { name: "order", finds: &[Anomaly::A08, Anomaly::A09, Anomaly::A22], run: check };

fn check(index: &Index<'_>, report: &mut Report) {
    check_real_time(index, report);
    check_producers(index, report);
    check_keys(index, report);
}

/// Walks each queue from its end with the earliest end of a send seen so far.
fn check_real_time(index: &Index<'_>, report: &mut Report) {
    let mut queues: Vec<Vec<(u64, &Message<'_>)>> = index.queues.iter().map(|_| Vec::new()).collect();
    for message in &index.messages {
        if !matches!(message.kind, Kind::Plain | Kind::Batch(_)) {
            continue;
        }
        if let Some(at) = message.acked.or(message.place) {
            queues[message.queue].push((at, message));
        }
    }
    for (queue, mut placed) in index.queues.iter().zip(queues) {
        placed.sort_unstable_by_key(|(at, _)| *at);
        let mut earliest: Option<(Nanos, u64, &Message<'_>)> = None;
        for (at, message) in placed.into_iter().rev() {
            report.checked += 1;
            if let Some((ok, higher, later)) = earliest
                && ok < message.op.invoked
                && higher > at
            {
                report.find(Anomaly::A08, [later.op.op, message.op.op], || {
                    let (name, begun) = (queue.name, message.op.invoked);
                    let (first, second) = (later.unique, message.unique);
                    format!(
                        "{name}: {first} at offset {higher} ended at {ok}, before {second} at {at} began at {begun}"
                    )
                });
            }
            let ok = message.op.ok_at().filter(|_| message.acked.is_some());
            if let Some(ok) = ok.filter(|ok| earliest.is_none_or(|(known, ..)| *ok < known)) {
                earliest = Some((ok, at, message));
            }
        }
    }
}

fn check_producers(index: &Index<'_>, report: &mut Report) {
    let mut last: HashMap<(Process, usize), (u64, Nanos, u64)> = HashMap::new();
    for message in &index.messages {
        let Call::Send(send) = &message.op.call else { continue };
        let (Some(acked), Some(ok)) = (message.acked, message.op.ok_at()) else { continue };
        if send.mode != SendMode::Sync {
            continue;
        }
        report.checked += 1;
        let before = last.insert((message.op.process, message.queue), (acked, ok, message.op.op));
        let Some((before, ended, op)) = before else { continue };
        if ended <= message.op.invoked && before >= acked {
            report.find(Anomaly::A09, [op, message.op.op], || {
                let (process, name) = (message.op.process, index.queues[message.queue].name);
                format!("{process} was given offset {before} of {name} and then {acked}")
            });
        }
    }
}

/// The highest offset of a key that a group was first given, with its delivery.
type Highest<'h> = HashMap<(&'h str, usize, &'h str), (u64, u64)>;

fn check_keys(index: &Index<'_>, report: &mut Report) {
    let mut highest: Highest<'_> = HashMap::new();
    let mut given: HashSet<(&str, usize, u64)> = HashSet::new();
    for op in &index.history.ops {
        match &op.call {
            Call::Consume(consume) if consume.orderly => {
                let Some(queue) = index.queue_number(&consume.queue) else { continue };
                let Some(key) = index.message(consume.unique).and_then(|message| message.key) else { continue };
                report.checked += 1;
                if !given.insert((&consume.group, queue, consume.queue_offset)) {
                    continue;
                }
                let this = (consume.queue_offset, op.op);
                let highest = highest.entry((&consume.group, queue, key)).or_insert(this);
                if highest.0 > consume.queue_offset {
                    report.find(Anomaly::A22, [highest.1, op.op], || {
                        let (group, name) = (&consume.group, &consume.queue);
                        let (later, earlier) = (highest.0, consume.queue_offset);
                        format!("{group} was given offset {later} of {name} before {earlier}, both of key {key}")
                    });
                } else {
                    *highest = this;
                }
            }
            // A group that is moved back is given what it has skipped, however late.
            Call::Seek(seek) => {
                let (Some(group), Some(queue)) = (&seek.group, index.queue_number(&seek.queue)) else { continue };
                highest.retain(|(known, at, _), _| *known != &**group || *at != queue);
            }
            _ => {}
        }
    }
}
