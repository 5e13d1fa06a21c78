//! A36-A38: that the cluster goes on.
//!
//! | Anomaly | Found when |
//! | --- | --- |
//! | A36 no recovery | after the last heal a queue that is written to gets no acknowledgement within the limit |
//! | A37 availability lost | sends stall longer than the limit while a majority is well |
//! | A38 metastable | long after the last heal the rate of acknowledgements is below 80 % of what it was |

use std::time::Duration;

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Call, Nanos, Op, Phase, SendMode};
use crate::index::Index;

pub(super) const CHECKER: Checker =
    Checker { name: "live", finds: &[Anomaly::A36, Anomaly::A37, Anomaly::A38], run: check };

/// Fewer acknowledgements than this before the first fault give no rate to compare with.
const RATE_SAMPLES_MIN: u64 = 100;

fn check(index: &Index<'_>, report: &mut Report) {
    let end = index.history.phase(Phase::Final).unwrap_or_else(|| index.history.end());
    let sends: Vec<&Op> = index.history.ops.iter().filter(|op| op.invoked < end && queue_of(op).is_some()).collect();
    let mut acks: Vec<(Nanos, u64)> = sends.iter().filter_map(|op| Some((op.ok_at()?, op.op))).collect();
    acks.sort_unstable();
    check_recovery(index, report, &sends, end);
    check_gaps(index, report, &sends, &acks, end);
    check_rate(index, report, &acks, end);
}

/// Where an operation stores something, if whoever asks for it hears how it ends; of a one-way send nobody does.
fn queue_of(op: &Op) -> Option<&str> {
    match &op.call {
        Call::Batch(batch) => Some(&batch.queue),
        call => call.message().filter(|send| send.mode != SendMode::Oneway).map(|send| &*send.queue),
    }
}

fn check_recovery(index: &Index<'_>, report: &mut Report, sends: &[&Op], end: Nanos) {
    let healed = index.history.last_heal();
    let open = index.faults().into_iter().any(|(_, until, _)| until > healed && until >= end);
    let limit = healed.plus(index.limits.recover());
    if open || limit > end {
        return;
    }
    for queue in &index.queues {
        let after = || sends.iter().filter(|op| queue_of(op) == Some(queue.name) && op.invoked >= healed);
        // Somebody must have tried early enough, and be known to have waited.
        let half = healed.plus(index.limits.recover() / 2);
        let Some(tried) = after().find(|op| op.invoked <= half) else { continue };
        report.checked += 1;
        if !after().any(|op| op.ok_at().is_some_and(|at| at <= limit)) {
            let proof: Vec<u64> = after().take(3).map(|op| op.op).collect();
            report.find(Anomaly::A36, proof, || {
                let (name, from) = (queue.name, tried.invoked);
                format!("{name}: the last fault was healed at {healed}, sends from {from} on were not acknowledged by {limit}")
            });
        }
    }
}

fn check_gaps(index: &Index<'_>, report: &mut Report, sends: &[&Op], acks: &[(Nanos, u64)], end: Nanos) {
    let limit = index.limits.available();
    let beyond: Vec<(Nanos, Nanos)> = index
        .faults()
        .into_iter()
        .filter(|(.., fault)| !fault.tolerable)
        .map(|(since, until, _)| (since, until.plus(index.limits.recover())))
        .collect();
    let mut last: Option<(Nanos, u64)> = None;
    for (at, op) in acks.iter().copied().chain([(end, 0)]) {
        report.checked += 1;
        let before = last.replace((at, op));
        let Some((from, previous)) = before.filter(|(from, _)| at.since(*from) > limit) else { continue };
        let excused = beyond.iter().any(|(since, until)| *since <= at && from <= *until);
        // Only a stall of those who tried all the while: from the first send in it to the last one's end.
        let begun = sends.partition_point(|op| op.invoked <= from);
        let tries = || sends[begun..].iter().take_while(|op| op.invoked < at);
        let until = tries().map(|op| op.ended().unwrap_or(at).min(at)).max().unwrap_or_default();
        let tried = tries().next().filter(|first| until.since(first.invoked) > limit);
        if let Some(tried) = tried.filter(|_| !excused) {
            report.find(Anomaly::A37, [previous, tried.op].into_iter().chain((op != 0).then_some(op)), || {
                let gap = at.since(from);
                format!("no send was acknowledged for {gap:?} from {from} on, while a majority was well")
            });
        }
    }
}

fn check_rate(index: &Index<'_>, report: &mut Report, acks: &[(Nanos, u64)], end: Nanos) {
    let faults = index.faults();
    let Some((first, ..)) = faults.first() else { return };
    let from = index.history.last_heal().plus(index.limits.throughput());
    if from >= end {
        return;
    }
    let rate = |from: Nanos, to: Nanos| {
        let count = acks.partition_point(|(at, _)| *at < to) - acks.partition_point(|(at, _)| *at < from);
        (count as u64, to.since(from))
    };
    let begun = acks.first().map(|(at, _)| *at).unwrap_or_default();
    let (before, time_before) = rate(begun, *first);
    let (after, time_after) = rate(from, end);
    if before < RATE_SAMPLES_MIN || time_after < Duration::from_secs(5) || time_before.is_zero() {
        return;
    }
    report.checked += before + after;
    let expected = before as f64 * time_after.as_secs_f64() / time_before.as_secs_f64();
    // Four standard deviations of a count keep chance out of it.
    if (after as f64) < 0.8 * expected - 4.0 * expected.sqrt() {
        report.find(Anomaly::A38, [], || {
            format!(
                "{after} acknowledgements in the last {time_after:?}, as before the faults it would be {expected:.0}"
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::checker::{Outcome, judge};
    use crate::model::{Size, legal_history};
    use crate::seed::Seed;

    #[test]
    fn a_run_that_ends_soon_after_its_last_heal_has_no_rate_to_compare() {
        let lasts = std::time::Duration::from_secs(20);
        for seed in 0..20 {
            let verdict = judge(&legal_history(Seed(seed), &Size { lasts, ..Size::SMALL }));
            assert_eq!(verdict.outcome, Outcome::Pass, "seed {seed}");
        }
    }
}
