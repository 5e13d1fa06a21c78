//! A13-A15: what pull sessions were given, replayed.
//!
//! | Anomaly | Found when |
//! | --- | --- |
//! | A13 poll skip | the next offset lies behind a message of the queue that the filter accepts and nobody got |
//! | A14 non-monotonic poll | without a seek, an offset comes that is not above the last one |
//! | A15 internal skip or inversion | the same within one answer; or a next or maximum offset that cannot be |

use std::collections::HashMap;

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Answer, Call, Op, Pull, Pulled};
use crate::index::{Index, Queue};

pub(super) const CHECKER: Checker =
    Checker { name: "poll", finds: &[Anomaly::A13, Anomaly::A14, Anomaly::A15], run: check };

/// Where a session stands.
#[derive(Default)]
struct Session {
    /// The next offset of the last answer, and the operation that gave it.
    next: Option<(u64, u64)>,
    last_got: Option<(u64, u64)>,
}

fn check(index: &Index<'_>, report: &mut Report) {
    let mut sessions: HashMap<u64, Session> = HashMap::new();
    for op in &index.history.ops {
        if let Call::Seek(seek) = &op.call
            && let Some(sess) = seek.sess
        {
            sessions.remove(&sess);
        }
        let (Call::Pull(pull), Some((_, Answer::Pulled(pulled)))) = (&op.call, op.ok()) else { continue };
        report.checked += 1 + pulled.got.len() as u64;
        check_answer(op, pull, pulled, report);
        let session = sessions.entry(pull.sess).or_default();
        check_session(op, pull, pulled, session, report);
        if let Some(queue) = index.queue(&pull.queue) {
            check_skips(index, queue, op, pull, pulled, session, report);
        }
        session.next = Some((pulled.next, op.op));
        if let Some(last) = pulled.got.last() {
            session.last_got = Some((last.queue_offset, op.op));
        }
    }
}

/// What one answer alone shows.
fn check_answer(op: &Op, pull: &Pull, pulled: &Pulled, report: &mut Report) {
    let name = &pull.queue;
    if pulled.min > pulled.max {
        report.find(Anomaly::A15, [op.op], || format!("{name}: minimum {} above maximum {}", pulled.min, pulled.max));
    }
    for pair in pulled.got.windows(2) {
        if let [first, second] = pair
            && first.queue_offset >= second.queue_offset
        {
            report.find(Anomaly::A15, [op.op], || {
                format!("{name}: offset {} came before {}", first.queue_offset, second.queue_offset)
            });
        }
    }
    let Some(last) = pulled.got.last() else { return };
    // A filter may have looked at more than it let through; without one, everything examined was returned.
    let exact = last.queue_offset.checked_add(1) == Some(pulled.next);
    if pulled.next <= last.queue_offset || (pull.tag.is_none() && !exact) {
        report.find(Anomaly::A15, [op.op], || {
            format!("{name}: the last offset was {}, the next to ask for is {}", last.queue_offset, pulled.next)
        });
    }
}

fn check_session(op: &Op, pull: &Pull, pulled: &Pulled, session: &Session, report: &mut Report) {
    let name = &pull.queue;
    if let Some((next, before)) = session.next
        && pull.from < next
    {
        report.find(Anomaly::A14, [before, op.op], || {
            format!("session {} of {name} had come to {next} and asked from {}", pull.sess, pull.from)
        });
    }
    let first = pulled.got.first().map(|got| got.queue_offset);
    if let (Some(first), Some((last, before))) = (first, session.last_got)
        && first <= last
    {
        report.find(Anomaly::A14, [before, op.op], || {
            format!("session {} of {name} was given {first} after {last}", pull.sess)
        });
    }
    let backwards = first.is_some_and(|first| first < pull.from);
    let turned_back = first.is_none() && pulled.next < pull.from && pull.from <= pulled.max;
    if backwards || turned_back {
        report.find(Anomaly::A14, [op.op], || {
            format!(
                "{name}: asked from {}, given {} and sent on to {}",
                pull.from,
                first.unwrap_or_default(),
                pulled.next
            )
        });
    }
}

/// Offsets that were passed over although the queue holds something there that was wanted.
fn check_skips(
    index: &Index<'_>,
    queue: &Queue<'_>,
    op: &Op,
    pull: &Pull,
    pulled: &Pulled,
    session: &Session,
    report: &mut Report,
) {
    let filter = pull.tag.as_deref();
    let wanted = |from: u64, to: u64| {
        let from = from.max(pulled.min).max(queue.min);
        (from..to.min(queue.max)).find(|at| queue.cell(*at).is_some_and(|got| index.accepted(got, filter)))
    };
    let mut skip = |anomaly: Anomaly, from: u64, to: u64, proof: &[u64]| {
        if let Some(missed) = wanted(from, to) {
            report.find(anomaly, proof.iter().copied(), || {
                format!("session {} of {} passed over offset {missed} between {from} and {to}", pull.sess, queue.name)
            });
        }
    };
    if let Some((next, before)) = session.next {
        skip(Anomaly::A13, next, pull.from, &[before, op.op]);
    }
    let mut from = pull.from;
    for got in &pulled.got {
        let anomaly = if from == pull.from { Anomaly::A13 } else { Anomaly::A15 };
        skip(anomaly, from, got.queue_offset, &[op.op]);
        from = got.queue_offset.saturating_add(1);
    }
    skip(Anomaly::A13, from, pulled.next, &[op.op]);
}
