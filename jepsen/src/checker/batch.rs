//! A10 batch torn: a batch stands in its queue only in part, not contiguous, or out of order.

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::Call;
use crate::index::Index;

pub(super) const CHECKER: Checker = Checker { name: "batch", finds: &[Anomaly::A10], run: check };

fn check(index: &Index<'_>, report: &mut Report) {
    for op in &index.history.ops {
        let Call::Batch(batch) = &op.call else { continue };
        let Some(queue) = index.queue(&batch.queue).filter(|queue| queue.complete) else { continue };
        report.checked += 1;
        let places: Vec<Option<u64>> =
            batch.items.iter().map(|(unique, _)| index.message(*unique).and_then(|message| message.place)).collect();
        let Some(last) = places.iter().rposition(Option::is_some) else { continue };
        let in_order = places.windows(2).all(|pair| match pair {
            [Some(first), Some(second)] => first.checked_add(1) == Some(*second),
            // Retention drops a prefix of the queue, so a prefix of a batch.
            [None, Some(second)] => queue.min > 0 && *second == queue.min,
            [Some(_), None] => false,
            _ => true,
        });
        if last + 1 == places.len() && in_order {
            continue;
        }
        report.find(Anomaly::A10, [op.op], || {
            let seen: Vec<String> =
                places.iter().map(|place| place.map_or_else(|| "-".into(), |at| at.to_string())).collect();
            format!("a batch of {} in {} stands at offsets {}", places.len(), queue.name, seen.join(" "))
        });
    }
}
