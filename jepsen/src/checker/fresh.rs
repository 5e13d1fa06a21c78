//! A12 stale read: a read that promises to be current misses what was acknowledged before it was invoked.
//!
//! Maximum offsets promise that always, pulls only if they ask for it. Group offsets are judged by `offsets`.

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Answer, Call, Freshness, Nanos};
use crate::index::Index;

pub(super) const CHECKER: Checker = Checker { name: "fresh", finds: &[Anomaly::A12], run: check };

/// Of one queue: when an acknowledgement raised the highest acknowledged offset, to what, and by which operation.
type Raises = Vec<(Nanos, u64, u64)>;

fn check(index: &Index<'_>, report: &mut Report) {
    let raises = raises(index);
    for op in &index.history.ops {
        let (queue, max) = match (&op.call, op.ok()) {
            (Call::MaxOffset(read), Some((_, Answer::Offset(answer)))) => {
                (&read.queue, answer.queue_offset.unwrap_or_default())
            }
            (Call::Pull(pull), Some((_, Answer::Pulled(pulled)))) if pull.read == Freshness::Realtime => {
                (&pull.queue, pulled.max)
            }
            _ => continue,
        };
        let Some(raises) = index.queue_number(queue).and_then(|at| raises.get(at)) else { continue };
        report.checked += 1;
        let before = raises.partition_point(|(at, ..)| *at < op.invoked);
        let Some((at, acked, sent)) = before.checked_sub(1).and_then(|nth| raises.get(nth)) else { continue };
        if *acked >= max {
            report.find(Anomaly::A12, [*sent, op.op], || {
                let asked = op.invoked;
                format!("{queue}: offset {acked} was acknowledged at {at}; asked at {asked}, the maximum was {max}")
            });
        }
    }
}

fn raises(index: &Index<'_>) -> Vec<Raises> {
    let mut all: Vec<Raises> = index.queues.iter().map(|_| Vec::new()).collect();
    for message in &index.messages {
        if let (Some(acked), Some(at)) = (message.acked, message.op.ok_at()) {
            all[message.queue].push((at, acked, message.op.op));
        }
    }
    for raises in &mut all {
        raises.sort_unstable();
        let mut highest = None;
        raises.retain(|(_, acked, _)| {
            let higher = highest.is_none_or(|known| *acked > known);
            if higher {
                highest = Some(*acked);
            }
            higher
        });
    }
    all
}
