//! A23: delayed messages come early, late, twice or not at all.
//!
//! Early is measured from the invocation of the send, less what clocks were moved. Late is proven only by a maximum
//! offset that, long after the message was due, did not cover its place yet.

use std::time::Duration;

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Answer, Call, Nanos, Note};
use crate::index::{Index, Kind};

pub(super) const CHECKER: Checker = Checker { name: "delay", finds: &[Anomaly::A23], run: check };

/// Brokers keep times in milliseconds, so one may be lost at either end.
const ROUNDING: Duration = Duration::from_millis(2);

fn check(index: &Index<'_>, report: &mut Report) {
    let moved = clocks_moved(index);
    index.each_sighting(|seen| {
        let Some(message) = index.message(seen.unique) else { return };
        let Kind::Delayed(delay) = message.kind else { return };
        report.checked += 1;
        let due = message.op.invoked.plus(delay.saturating_sub(moved + ROUNDING));
        let at = match seen.op.call {
            Call::Consume(_) => seen.op.invoked,
            _ => seen.op.ended().unwrap_or(seen.op.invoked),
        };
        if at < due {
            report.find(Anomaly::A23, [message.op.op, seen.op.op], || {
                format!("early: {} was there at {at}, not due before {due}", message.unique)
            });
        }
    });
    let absent = absent(index);
    let healed = index.history.last_heal();
    let late = index.limits.delay_late();
    for message in &index.messages {
        let Kind::Delayed(delay) = message.kind else { continue };
        let queue = &index.queues[message.queue];
        report.checked += 1;
        if let (Some(first), Some(second)) = (message.place, message.second_place) {
            report.find(Anomaly::A23, [message.op.op], || {
                format!("twice: {} stands at offsets {first} and {second} of {}", message.unique, queue.name)
            });
        }
        let latest = message.op.invoked.plus(delay).max(healed).plus(late + moved);
        let Some(ended) = message.op.ok_at() else { continue };
        let latest = latest.max(ended.plus(late));
        match message.place {
            None if queue.complete && queue.min == 0 && last_read(index, queue.name) > latest => {
                report.find(Anomaly::A23, [message.op.op], || {
                    format!("lost: {} was due before {latest} and is not in {}", message.unique, queue.name)
                });
            }
            Some(place) => {
                let reads = &absent[message.queue];
                let still = reads.get(reads.partition_point(|(at, ..)| *at <= latest));
                if let Some((at, max, op)) = still.filter(|(_, max, _)| *max <= place) {
                    report.find(Anomaly::A23, [message.op.op, *op], || {
                        let unique = message.unique;
                        format!("late: {unique} at offset {place} was due before {latest}; from {at} on a maximum of {max} was read")
                    });
                }
            }
            None => {}
        }
    }
}

/// How far all clocks together were moved.
fn clocks_moved(index: &Index<'_>) -> Duration {
    let jumps = index.history.notes.iter().filter_map(|(_, note)| match note {
        Note::Fault(fault) => fault.jump_ms,
        _ => None,
    });
    jumps.map(|jump| Duration::from_millis(jump.unsigned_abs())).sum()
}

/// Per queue the current maximum offsets that were read: when asked, and the lowest that was told then or later, with
/// the operation that was told so.
fn absent(index: &Index<'_>) -> Vec<Vec<(Nanos, u64, u64)>> {
    let mut all: Vec<Vec<_>> = index.queues.iter().map(|_| Vec::new()).collect();
    for op in &index.history.ops {
        if let (Call::MaxOffset(read), Some((_, Answer::Offset(answer)))) = (&op.call, op.ok())
            && let (Some(queue), Some(max)) = (index.queue_number(&read.queue), answer.queue_offset)
        {
            all[queue].push((op.invoked, max, op.op));
        }
    }
    for reads in &mut all {
        reads.sort_unstable();
        let mut lowest: Option<(u64, u64)> = None;
        for read in reads.iter_mut().rev() {
            let kept = lowest.filter(|(max, _)| *max < read.1).unwrap_or((read.1, read.2));
            lowest = Some(kept);
            (read.1, read.2) = kept;
        }
    }
    all
}

/// When the last final read of the queue began.
fn last_read(index: &Index<'_>, queue: &str) -> Nanos {
    let reads = index.history.ops.iter().rev().filter_map(|op| match &op.call {
        Call::FinalRead(pull) if &*pull.queue == queue => Some(op.invoked),
        _ => None,
    });
    reads.into_iter().next().unwrap_or_default()
}
