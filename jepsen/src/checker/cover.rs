//! Whether the run did what was planned. A run that did not is unknown, whatever else was found.

use std::collections::{BTreeMap, HashMap};

use super::{Checker, Report};
use crate::history::{Call, FaultState, Note, Phase, SendMode};
use crate::index::Index;

pub(super) const CHECKER: Checker = Checker { name: "cover", finds: &[], run: check };

fn check(index: &Index<'_>, report: &mut Report) {
    let mut faults: BTreeMap<&str, u64> = BTreeMap::new();
    let mut leaders: HashMap<&str, (u64, &str)> = HashMap::new();
    let mut changes = 0;
    let mut plan = None;
    for (_, note) in &index.history.notes {
        report.checked += 1;
        match note {
            Note::Plan(found) => plan = Some(found),
            Note::Fault(fault) if fault.state == FaultState::Installed => {
                *faults.entry(&fault.kind).or_default() += 1;
            }
            Note::Fault(fault) if fault.state == FaultState::Indeterminate => {
                report.undecided(format!("no probe saw fault {} of kind {}: {}", fault.id, fault.kind, fault.why));
            }
            Note::Obs(seen) if seen.leader.as_ref() == Some(&seen.node) => {
                let known = leaders.entry(&seen.group).or_insert((seen.term, &seen.node));
                if known.0 < seen.term && known.1 != &*seen.node {
                    changes += 1;
                }
                if known.0 < seen.term {
                    *known = (seen.term, &seen.node);
                }
            }
            _ => {}
        }
    }
    let mut done: BTreeMap<&str, u64> = BTreeMap::new();
    for op in &index.history.ops {
        report.checked += 1;
        if op.ok_at().is_some() {
            *done.entry(op.call.name()).or_default() += 1;
        }
        if let Call::Send(send) = &op.call
            && send.mode == SendMode::Oneway
            && op.ok_at().is_some()
        {
            report.undecided(format!("operation {}: nobody can know that a one-way send succeeded", op.op));
        }
    }
    if let (Some(from), Some(to)) = (index.history.phase(Phase::WarmUp), index.history.phase(Phase::Main)) {
        let warm = index.history.ops.iter().filter(|op| (from..to).contains(&op.invoked));
        let bad = warm.filter(|op| op.ok_at().is_none() && op.ended().is_some_and(|at| at < to)).count();
        if bad > 0 {
            report.undecided(format!("{bad} operations of the warm-up did not end well"));
        }
    }
    if index.history.phase(Phase::Final).is_none() {
        report.undecided("the run has no final phase".into());
    }
    let Some(plan) = plan else { return };
    let short = |what: &str, wanted: &BTreeMap<Box<str>, u64>, had: &BTreeMap<&str, u64>, report: &mut Report| {
        for (name, wanted) in wanted {
            let had = had.get(&**name).copied().unwrap_or_default();
            if had < *wanted {
                report.undecided(format!("{what} {name}: {had}, {wanted} were planned"));
            }
        }
    };
    short("fault", &plan.faults, &faults, report);
    short("successful", &plan.ops, &done, report);
    if changes < plan.leader_changes {
        report.undecided(format!("changes of leader: {changes}, {} were planned", plan.leader_changes));
    }
}
