//! Checkers: pure functions from a history to findings.
//!
//! Each one reports how much it looked at, what it found and what it could not decide. A finding names the operations
//! that prove it.

mod answers;
mod batch;
mod causal;
mod cover;
mod crash;
mod delay;
mod delivery;
mod fresh;
mod leak;
mod live;
mod lock;
mod log;
mod offsets;
mod order;
mod poll;
mod query;
mod raft;
mod replica;
mod route;
mod topic;
mod tx;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::anomaly::Anomaly;
use crate::history::History;
use crate::index::Index;

/// Findings of one kind that a report shows in full; the rest are counted.
const SHOWN_MAX: u64 = 20;

/// One checker and what it can find.
pub struct Checker {
    pub name: &'static str,
    pub finds: &'static [Anomaly],
    run: fn(&Index<'_>, &mut Report),
}

/// All checkers.
pub const CHECKERS: &[Checker] = &[
    log::CHECKER,
    order::CHECKER,
    batch::CHECKER,
    poll::CHECKER,
    fresh::CHECKER,
    delivery::CHECKER,
    offsets::CHECKER,
    lock::CHECKER,
    delay::CHECKER,
    tx::CHECKER,
    route::CHECKER,
    topic::CHECKER,
    raft::CHECKER,
    replica::CHECKER,
    query::CHECKER,
    causal::CHECKER,
    crash::CHECKER,
    answers::CHECKER,
    leak::CHECKER,
    live::CHECKER,
    cover::CHECKER,
];

/// One anomaly, found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub anomaly: Anomaly,
    pub what: String,
    /// The operations that prove it, by their number in the history.
    pub ops: Vec<u64>,
}

/// What one checker did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub checker: &'static str,
    /// How many things it compared. A checker that compared nothing has shown nothing.
    pub checked: u64,
    pub findings: Vec<Finding>,
    /// How many findings there are of each kind, shown or not.
    pub found: BTreeMap<Anomaly, u64>,
    /// Why it cannot say that all is well.
    pub unknown: Vec<String>,
}

impl Report {
    fn find(&mut self, anomaly: Anomaly, ops: impl IntoIterator<Item = u64>, what: impl FnOnce() -> String) {
        let count = self.found.entry(anomaly).or_default();
        *count += 1;
        if *count <= SHOWN_MAX {
            self.findings.push(Finding { anomaly, what: what(), ops: ops.into_iter().collect() });
        }
    }

    fn undecided(&mut self, why: String) {
        self.unknown.push(why);
    }
}

/// What the history shows. Unknown is not a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Pass,
    Fail,
    Unknown,
}

/// The reports of all checkers, and what follows from them.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    pub outcome: Outcome,
    pub reports: Vec<Report>,
}

impl Verdict {
    /// Everything that was found.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.reports.iter().flat_map(|report| &report.findings)
    }

    /// Everything that could not be decided.
    pub fn unknown(&self) -> impl Iterator<Item = &String> {
        self.reports.iter().flat_map(|report| &report.unknown)
    }
}

/// Judges a history with every checker.
pub fn judge(history: &History) -> Verdict {
    let index = Index::new(history);
    let reports: Vec<Report> = CHECKERS
        .iter()
        .map(|checker| {
            let mut report = Report { checker: checker.name, ..Report::default() };
            (checker.run)(&index, &mut report);
            for anomaly in report.found.keys() {
                assert!(checker.finds.contains(anomaly), "{} does not say that it finds {anomaly}", checker.name);
            }
            report
        })
        .collect();
    let outcome = if reports.iter().any(|report| !report.found.is_empty()) {
        Outcome::Fail
    } else if reports.iter().any(|report| !report.unknown.is_empty()) {
        Outcome::Unknown
    } else {
        Outcome::Pass
    };
    Verdict { outcome, reports }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{CHECKERS, Outcome, judge};
    use crate::anomaly::Anomaly;
    use crate::history::History;

    #[test]
    fn every_anomaly_has_a_checker() {
        let found: BTreeSet<Anomaly> = CHECKERS.iter().flat_map(|checker| checker.finds.iter().copied()).collect();
        assert_eq!(found, Anomaly::ALL.into_iter().collect());
    }

    #[test]
    fn an_empty_history_proves_nothing() {
        assert_eq!(judge(&History::default()).outcome, Outcome::Unknown);
    }
}
