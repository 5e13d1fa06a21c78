//! A01-A07 and A11: every place where a message was seen, against the final content of the queues.
//!
//! | Anomaly | Found when |
//! | --- | --- |
//! | A01 lost acked write | an acknowledged offset does not hold its message in the final read |
//! | A02 phantom | a message that no client sent, or not with this body, tag, key or queue |
//! | A03 aborted read | a message whose send surely failed is seen anywhere |
//! | A04 log duplicate | one attempt stands at two offsets |
//! | A05 inconsistent offset | two messages were seen at one offset |
//! | A06 inconsistent position | one offset has two physical offsets, or the other way round |
//! | A07 queue hole | an offset below the maximum holds nothing |
//! | A11 dirty read | a reader was given what the final read does not have at that offset |

use std::collections::HashMap;

use protocol::message::OffsetMessageId;

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Answer, Call, Got, Op, Unique, topic_of};
use crate::index::{Index, Kind, Queue, Sighting};

pub(super) const CHECKER: Checker = Checker {
    name: "log",
    finds: &[
        Anomaly::A01,
        Anomaly::A02,
        Anomaly::A03,
        Anomaly::A04,
        Anomaly::A05,
        Anomaly::A06,
        Anomaly::A07,
        Anomaly::A11,
    ],
    run: check,
};

fn check(index: &Index<'_>, report: &mut Report) {
    check_sightings(index, report);
    check_offset_ids(index, report);
    check_acked(index, report);
    check_holes(index, report);
    check_reads(index, report);
}

/// What was seen first at a place.
#[derive(Clone, Copy)]
struct First {
    unique: Unique,
    physical_offset: Option<u64>,
    op: u64,
}

fn check_sightings(index: &Index<'_>, report: &mut Report) {
    let mut by_offset: HashMap<(usize, u64), First> = HashMap::with_capacity(index.messages.len());
    let mut by_position: HashMap<(usize, u64), First> = HashMap::with_capacity(index.messages.len());
    let mut places: Vec<Option<(usize, u64, u64)>> = vec![None; index.messages.len()];
    index.each_sighting(|seen| {
        report.checked += 1;
        let queue = &index.queues[seen.queue];
        // A retry or dead-letter topic holds copies of messages by design.
        let is_copy = topic_of(queue.name).starts_with('%');
        check_origin(index, report, &seen, queue, is_copy);
        let this = First { unique: seen.unique, physical_offset: seen.physical_offset, op: seen.op.op };
        let first = by_offset.entry((seen.queue, seen.queue_offset)).or_insert(this);
        if first.unique != seen.unique {
            report.find(Anomaly::A05, [first.op, seen.op.op], || {
                let (name, at) = (queue.name, seen.queue_offset);
                format!("{name} offset {at} was seen to hold {} and {}", first.unique, seen.unique)
            });
        }
        if let Some(position) = seen.physical_offset {
            let earlier = *first.physical_offset.get_or_insert(position);
            if earlier != position {
                report.find(Anomaly::A06, [first.op, seen.op.op], || {
                    let (name, at) = (queue.name, seen.queue_offset);
                    format!("{name} offset {at} was seen at physical offsets {earlier} and {position}")
                });
            }
            let owner = by_position.entry((queue.broker, position)).or_insert(this);
            if owner.unique != seen.unique {
                report.find(Anomaly::A06, [owner.op, seen.op.op], || {
                    format!("physical offset {position} was seen to hold {} and {}", owner.unique, seen.unique)
                });
            }
        }
        let Some(number) = index.message_number(seen.unique).filter(|_| !is_copy) else { return };
        let (first_queue, first_offset, op) =
            *places[number].get_or_insert((seen.queue, seen.queue_offset, seen.op.op));
        if (first_queue, first_offset) != (seen.queue, seen.queue_offset) {
            report.find(Anomaly::A04, [op, seen.op.op], || {
                let first_name = index.queues[first_queue].name;
                let (unique, name, at) = (seen.unique, queue.name, seen.queue_offset);
                format!("{unique} stands at {first_name} offset {first_offset} and at {name} offset {at}")
            });
        }
    });
}

/// A02 and A03: whether a client sent this, here, and could have succeeded.
fn check_origin(index: &Index<'_>, report: &mut Report, seen: &Sighting<'_>, queue: &Queue<'_>, is_copy: bool) {
    let place = || format!("{} offset {}", queue.name, seen.queue_offset);
    let Some(message) = index.message(seen.unique) else {
        report.find(Anomaly::A02, [seen.op.op], || format!("{} at {}: nobody sent it", seen.unique, place()));
        return;
    };
    let proof = [message.op.op, seen.op.op];
    if message.hash != seen.hash {
        report.find(Anomaly::A02, proof, || {
            format!("{} at {}: hash {} was read, {} was sent", seen.unique, place(), seen.hash, message.hash)
        });
    }
    if message.queue != seen.queue && !is_copy {
        report.find(Anomaly::A02, proof, || {
            format!("{} at {}: it was sent to {}", seen.unique, place(), index.queues[message.queue].name)
        });
    }
    if message.op.failed() {
        report.find(Anomaly::A03, proof, || format!("{} at {}: its send had failed", seen.unique, place()));
    }
}

fn check_offset_ids(index: &Index<'_>, report: &mut Report) {
    for op in &index.history.ops {
        let Some((_, Answer::Sent(sent))) = op.ok() else { continue };
        let (Some(text), Some(position)) = (&sent.offset_id, sent.physical_offset) else { continue };
        let decoded = text.parse::<OffsetMessageId>().ok().map(|id| id.physical_offset);
        if decoded.and_then(|at| u64::try_from(at).ok()) != Some(position) {
            report.find(Anomaly::A06, [op.op], || {
                format!("offset message id {text} does not lead to physical offset {position}")
            });
        }
    }
}

fn check_acked(index: &Index<'_>, report: &mut Report) {
    for message in &index.messages {
        let Some(acked) = message.acked else { continue };
        debug_assert!(matches!(message.kind, Kind::Plain | Kind::Batch(_)));
        let queue = &index.queues[message.queue];
        report.checked += 1;
        if !queue.complete || acked < queue.min || message.place == Some(acked) {
            continue;
        }
        let found = queue.cell(acked);
        if found.is_some_and(|got| got.unique == message.unique) {
            continue;
        }
        report.find(Anomaly::A01, [message.op.op], || {
            let kind = match found {
                Some(got) => format!("overwritten: {} stands there", got.unique),
                None if acked >= queue.max => format!("truncated: the queue ends before offset {}", queue.max),
                None => "hole: nothing can be read there".into(),
            };
            format!("{} was acknowledged at {} offset {acked}; {kind}", message.unique, queue.name)
        });
    }
    for queue in index.queues.iter().filter(|queue| !queue.complete) {
        report.undecided(format!("the final reads do not cover {}", queue.name));
    }
    if index.queues.is_empty() {
        report.undecided("no queue was written or read".into());
    }
}

fn check_holes(index: &Index<'_>, report: &mut Report) {
    for queue in index.queues.iter().filter(|queue| queue.complete) {
        let mut expected = queue.min;
        let ends = queue.cells().map(|got| got.queue_offset).filter(|at| *at < queue.max).chain([queue.max]);
        for at in ends {
            report.checked += 1;
            if at > expected {
                report.find(Anomaly::A07, final_reads(index, queue, expected), || {
                    let last = at - 1;
                    format!(
                        "{} holds nothing at offsets {expected}..={last}, below its maximum {}",
                        queue.name, queue.max
                    )
                });
            }
            expected = at + 1;
        }
    }
}

/// The final reads that should have returned `queue_offset`.
fn final_reads<'a>(index: &'a Index<'_>, queue: &'a Queue<'_>, queue_offset: u64) -> impl Iterator<Item = u64> + 'a {
    index.history.ops.iter().filter_map(move |op| match (&op.call, op.ok()) {
        (Call::FinalRead(pull), Some((_, Answer::Pulled(pulled)))) => {
            let covers = (pull.from..pulled.next).contains(&queue_offset);
            (&*pull.queue == queue.name && covers).then_some(op.op)
        }
        _ => None,
    })
}

fn check_reads(index: &Index<'_>, report: &mut Report) {
    let mut dirty = |queue: &Queue<'_>, queue_offset: u64, unique: Unique, op: &Op| {
        report.checked += 1;
        let found = queue.cell(queue_offset);
        if !queue.complete || queue_offset < queue.min || found.is_some_and(|got: &Got| got.unique == unique) {
            return;
        }
        report.find(Anomaly::A11, [op.op], || {
            let there = found.map_or_else(|| "nothing".into(), |got| got.unique.to_string());
            format!("a reader was given {unique} at {} offset {queue_offset}, where {there} stands", queue.name)
        });
    };
    for op in &index.history.ops {
        match (&op.call, op.ok()) {
            (Call::Pull(pull), Some((_, Answer::Pulled(pulled)))) => {
                let Some(queue) = index.queue(&pull.queue) else { continue };
                for got in &pulled.got {
                    dirty(queue, got.queue_offset, got.unique, op);
                }
            }
            (Call::Consume(consume), _) => {
                let Some(queue) = index.queue(&consume.queue) else { continue };
                dirty(queue, consume.queue_offset, consume.unique, op);
            }
            _ => {}
        }
    }
}
