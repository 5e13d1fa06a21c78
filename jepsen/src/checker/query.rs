//! A31 derived store incoherent: an acknowledged message is not found in one of the four ways of looking it up, or
//! another one is found in its place.
//!
//! Look-ups are judged from the final phase on, when derived stores had the time to catch up.

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Answer, Call, Phase};
use crate::index::Index;

pub(super) const CHECKER: Checker = Checker { name: "query", finds: &[Anomaly::A31], run: check };

fn check(index: &Index<'_>, report: &mut Report) {
    let Some(from) = index.history.phase(Phase::Final) else { return };
    for op in index.history.ops.iter().filter(|op| op.invoked >= from) {
        let (Call::QueryMsg(query), Some((_, Answer::Found(answer)))) = (&op.call, op.ok()) else { continue };
        let Some(message) = index.message(query.unique) else { continue };
        let Some(acked) = message.acked.filter(|acked| *acked >= index.queues[message.queue].min) else { continue };
        report.checked += 1;
        let queue = index.queues[message.queue].name;
        let proof = [message.op.op, op.op];
        let Some(found) = &answer.found else {
            report.find(Anomaly::A31, proof, || {
                format!("{} at {queue} offset {acked} is not found by {:?}", query.unique, query.by)
            });
            continue;
        };
        if found.unique != query.unique || &*found.queue != queue || found.queue_offset != acked {
            report.find(Anomaly::A31, proof, || {
                let (unique, by) = (query.unique, query.by);
                let there = format!("{} at {} offset {}", found.unique, found.queue, found.queue_offset);
                format!("{unique} at {queue} offset {acked}: by {by:?} there is {there}")
            });
        }
    }
}
