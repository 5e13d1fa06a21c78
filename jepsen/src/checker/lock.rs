//! A21 split ownership: two members own one queue of an orderly group at one time.
//!
//! A member surely owns a queue from the answer to its lock until it begins to unlock, or until the lease ends that
//! began no earlier than the request. An unlock of unknown end may come into effect later and end any of its later locks,
//! so none of those is sure.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Call, Nanos, Process};
use crate::index::Index;

pub(super) const CHECKER: Checker = Checker { name: "lock", finds: &[Anomaly::A21], run: check };

#[derive(Clone, Copy)]
struct Owned {
    from: Nanos,
    until: Nanos,
    member: Process,
    op: u64,
}

/// When members began to process something of each group's queue.
type Used<'h> = BTreeMap<(&'h str, &'h str), Vec<(Nanos, Process, u64)>>;

fn check(index: &Index<'_>, report: &mut Report) {
    let mut owned: BTreeMap<(&str, &str), Vec<Owned>> = BTreeMap::new();
    let mut unsure: HashSet<(&str, &str, Process)> = HashSet::new();
    let mut used: Used<'_> = BTreeMap::new();
    for op in &index.history.ops {
        match &op.call {
            Call::Lock(lock) => {
                let Some(from) = op.ok_at() else { continue };
                if unsure.contains(&(&*lock.group, &*lock.queue, op.process)) {
                    continue;
                }
                let until = op.invoked.plus(Duration::from_millis(lock.lease_ms));
                let entry = owned.entry((&lock.group, &lock.queue)).or_default();
                entry.push(Owned { from, until, member: op.process, op: op.op });
            }
            Call::Unlock(unlock) => {
                if op.ok_at().is_none() && !op.failed() {
                    unsure.insert((&unlock.group, &unlock.queue, op.process));
                }
                let Some(entry) = owned.get_mut(&(&*unlock.group, &*unlock.queue)) else { continue };
                for owned in entry.iter_mut().filter(|owned| owned.member == op.process) {
                    owned.until = owned.until.min(op.invoked);
                }
            }
            Call::Consume(consume) if consume.orderly => {
                // Such a member may have lost its lock without knowing.
                if unsure.contains(&(&*consume.group, &*consume.queue, op.process)) {
                    continue;
                }
                let entry = used.entry((&consume.group, &consume.queue)).or_default();
                entry.push((op.invoked, op.process, op.op));
            }
            _ => {}
        }
    }
    for ((group, queue), mut intervals) in owned {
        intervals.retain(|owned| owned.from < owned.until);
        intervals.sort_by_key(|owned| owned.from);
        report.checked += intervals.len() as u64;
        check_overlaps(group, queue, &intervals, report);
        for (at, member, op) in used.get(&(group, queue)).into_iter().flatten() {
            report.checked += 1;
            let begun = intervals.partition_point(|owned| owned.from < *at);
            // Leases are renewed long before they end, so the last few locks are all that can still hold.
            let holds = |owned: &&Owned| owned.until > *at && owned.member != *member;
            if let Some(other) = intervals.iter().take(begun).rev().take(8).find(holds) {
                report.find(Anomaly::A21, [other.op, *op], || {
                    format!("{member} of {group} processed {queue} at {at}, which {} owned then", other.member)
                });
            }
        }
    }
}

/// Sweeps over intervals sorted by their beginning, with the two members whose ownership lasts longest.
fn check_overlaps(group: &str, queue: &str, intervals: &[Owned], report: &mut Report) {
    let mut longest: Option<Owned> = None;
    let mut other: Option<Owned> = None;
    for owned in intervals {
        let rival = [longest, other].into_iter().flatten().find(|held| held.member != owned.member);
        if let Some(rival) = rival.filter(|rival| rival.until > owned.from) {
            report.find(Anomaly::A21, [rival.op, owned.op], || {
                let (first, second, at) = (rival.member, owned.member, owned.from);
                format!("{first} and {second} of {group} both own {queue} at {at}")
            });
        }
        match longest {
            Some(held) if held.member == owned.member => {
                if owned.until > held.until {
                    longest = Some(*owned);
                }
            }
            Some(held) if owned.until > held.until => {
                other = Some(held);
                longest = Some(*owned);
            }
            Some(_) if other.is_none_or(|held| owned.until > held.until) => other = Some(*owned),
            Some(_) => {}
            None => longest = Some(*owned),
        }
    }
}
