//! A28 topic regress: a created or updated topic is later absent, or has fewer queues.
//!
//! A read may return what any change left that was not surely overwritten before the read began.

use std::collections::BTreeMap;

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Answer, Call, Nanos, Op};
use crate::index::Index;

pub(super) const CHECKER: Checker = Checker { name: "topic", finds: &[Anomaly::A28], run: check };

/// A change of a topic: the queues that it leaves, none if it deletes the topic.
struct Change<'h> {
    op: &'h Op,
    leaves: Option<u32>,
}

fn check(index: &Index<'_>, report: &mut Report) {
    let mut changes: BTreeMap<&str, Vec<Change<'_>>> = BTreeMap::new();
    for op in &index.history.ops {
        let (topic, leaves) = match &op.call {
            Call::CreateTopic(topic) | Call::UpdateTopic(topic) => (&topic.topic, Some(topic.queues)),
            Call::DeleteTopic(topic) => (&topic.topic, None),
            _ => continue,
        };
        if !op.failed() {
            changes.entry(topic).or_default().push(Change { op, leaves });
        }
    }
    for op in &index.history.ops {
        let (Call::ReadTopic(read), Some((answered, Answer::Queues(answer)))) = (&op.call, op.ok()) else { continue };
        let Some(changes) = changes.get(&*read.topic) else { continue };
        report.checked += 1;
        check_read(op, answered, answer.queues, changes, report);
    }
}

fn check_read(read: &Op, answered: Nanos, told: Option<u32>, changes: &[Change<'_>], report: &mut Report) {
    let ended_before = |change: &Change<'_>, at: Nanos| change.op.ok_at().filter(|ended| *ended < at);
    // The last change that surely came before the read; whatever ended before that one began is overwritten.
    let last =
        changes.iter().filter(|change| ended_before(change, read.invoked).is_some()).max_by_key(|c| c.op.invoked);
    let Some(last) = last else { return };
    let possible = changes.iter().filter(|change| {
        let begun = change.op.invoked <= answered;
        begun && change.op.ok_at().is_none_or(|ended| ended >= last.op.invoked)
    });
    let least = possible.map(|change| change.leaves).min().unwrap_or_default();
    if told < least {
        report.find(Anomaly::A28, [last.op.op, read.op], || {
            let text = |queues: Option<u32>| queues.map_or_else(|| "no topic".into(), |n| format!("{n} queues"));
            format!("{} was left, {} was read", text(least), text(told))
        });
    }
}
