//! The verdict as text for people and as JSON for programs, with the operations that prove each finding.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::anomaly::{Anomaly, Severity};
use crate::checker::{Outcome, Report, Verdict};
use crate::contract::Promise;
use crate::history::{End, History, Nanos, Note, Op};

/// Records of a pull and items of a batch make lines long; a proof shows this much of each.
const PROOF_BYTES_MAX: usize = 300;

/// What `results.json` holds.
#[derive(Serialize)]
pub struct Results<'a> {
    pub outcome: Outcome,
    pub operations: usize,
    pub lasted_ns: Nanos,
    pub findings: Vec<Proven<'a>>,
    pub unknown: Vec<&'a str>,
    pub checkers: &'a [Report],
}

/// A finding with its meaning and its proof.
#[derive(Serialize)]
pub struct Proven<'a> {
    pub anomaly: Anomaly,
    pub name: &'static str,
    pub severity: Severity,
    pub promise: Promise,
    pub promised: &'static str,
    pub what: &'a str,
    pub proof: Vec<String>,
}

impl<'a> Results<'a> {
    pub fn new(history: &History, verdict: &'a Verdict) -> Self {
        let by_number: BTreeMap<u64, &Op> = history.ops.iter().map(|op| (op.op, op)).collect();
        let findings = verdict.findings().map(|finding| Proven {
            anomaly: finding.anomaly,
            name: finding.anomaly.name(),
            severity: finding.anomaly.severity(),
            promise: finding.anomaly.promise(),
            promised: finding.anomaly.promise().text(),
            what: &finding.what,
            proof: finding.ops.iter().filter_map(|op| by_number.get(op)).map(|op| line(op)).collect(),
        });
        Self {
            outcome: verdict.outcome,
            operations: history.ops.len(),
            lasted_ns: history.end(),
            findings: findings.collect(),
            unknown: verdict.unknown().map(String::as_str).collect(),
            checkers: &verdict.reports,
        }
    }

    /// The report for people: verdict first, then what was found, then what was looked at.
    pub fn text(&self, history: &History) -> String {
        let mut out = String::new();
        let verdict = match self.outcome {
            Outcome::Pass => "pass",
            Outcome::Fail => "FAIL",
            Outcome::Unknown => "UNKNOWN, which is not a pass",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "verdict     {verdict}");
        let _ = writeln!(out, "operations  {} in {}", self.operations, self.lasted_ns);
        for (name, [ok, fail, info]) in outcomes(history) {
            let _ = writeln!(out, "  {name:<16} {ok:>9} ok {fail:>7} failed {info:>7} unknown");
        }
        let faults = faults(history);
        if !faults.is_empty() {
            let _ = writeln!(out, "faults");
        }
        for (kind, [installed, other]) in faults {
            let _ = writeln!(out, "  {kind:<16} {installed:>9} installed {other:>4} not");
        }
        for finding in &self.findings {
            let _ = writeln!(out, "\n{:?} {}: {}", finding.anomaly, finding.name, finding.what);
            let _ = writeln!(out, "  breaks {}: {}", finding.promise, finding.promised);
            for line in &finding.proof {
                let _ = writeln!(out, "  {line}");
            }
        }
        for why in &self.unknown {
            let _ = writeln!(out, "\nundecided: {why}");
        }
        let _ = writeln!(out, "\nchecker      compared  found");
        for report in self.checkers {
            let found: Vec<String> = report.found.iter().map(|(anomaly, n)| format!("{n} {anomaly:?}")).collect();
            let found = if found.is_empty() { "-".into() } else { found.join(", ") };
            let _ = writeln!(out, "{:<10} {:>10}  {found}", report.checker, report.checked);
        }
        out
    }
}

/// Of each operation how many ended well, failed, and are unknown.
fn outcomes(history: &History) -> BTreeMap<&'static str, [u64; 3]> {
    let mut all: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    for op in &history.ops {
        let [ok, fail, info] = all.entry(op.call.name()).or_default();
        match op.end {
            End::Ok { .. } => *ok += 1,
            End::Fail { .. } => *fail += 1,
            End::Info { .. } | End::Open => *info += 1,
        }
    }
    all
}

/// Of each kind of fault how many were installed, and how many were not.
fn faults(history: &History) -> BTreeMap<&str, [u64; 2]> {
    use crate::history::FaultState;

    let mut all: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    for (_, note) in &history.notes {
        let Note::Fault(fault) = note else { continue };
        let [installed, other] = all.entry(&fault.kind).or_default();
        match fault.state {
            FaultState::Installed => *installed += 1,
            FaultState::Skipped | FaultState::Indeterminate => *other += 1,
            FaultState::Healed => {}
        }
    }
    all
}

/// An operation in one line: number, process, times, what was asked and what became of it.
fn line(op: &Op) -> String {
    let call = serde_json::to_string(&op.call).unwrap_or_else(|error| error.to_string());
    let end = match &op.end {
        End::Ok { at, answer } => format!("ok at {at}: {answer:?}"),
        End::Fail { at, refusal } => format!("failed at {at}: {refusal:?}"),
        End::Info { at, refusal } => format!("unknown at {at}: {refusal:?}"),
        End::Open => "never ended".into(),
    };
    format!("op {} of {} at {}: {} -> {}", op.op, op.process, op.invoked, shortened(call), shortened(end))
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(PROOF_BYTES_MAX) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::Results;
    use crate::checker::judge;
    use crate::history::read_from;

    #[test]
    fn a_report_names_the_promise_and_the_operations() {
        let file = concat!(
            r#"{"i":0,"t":0,"ev":"phase","name":"final"}"#,
            "\n",
            r#"{"i":1,"t":5,"ev":"invoke","op":1,"proc":"c1.p2","f":"send","q":"t/b/0","u":"c1.p2:0:0","h":"00000000000000ff","mode":"sync"}"#,
            "\n",
            r#"{"i":2,"t":9000,"ev":"ok","op":1,"qo":0}"#,
            "\n",
            r#"{"i":3,"t":10000,"ev":"invoke","op":2,"proc":"c2.p0","f":"final-read","q":"t/b/0","from":0,"sess":1,"read":"realtime"}"#,
            "\n",
            r#"{"i":4,"t":19000,"ev":"ok","op":2,"next":0,"min":0,"max":0}"#,
            "\n",
        );
        let history = read_from(file.as_bytes()).unwrap();
        let verdict = judge(&history);
        let text = Results::new(&history, &verdict).text(&history);
        let (head, _) = text.split_once("\nchecker ").unwrap();
        expect![[r#"
            verdict     FAIL
            operations  2 in 0.000019 s
              final-read               1 ok       0 failed       0 unknown
              send                     1 ok       0 failed       0 unknown

            A01 lost acked write: c1.p2:0:0 was acknowledged at t/b/0 offset 0; truncated: the queue ends before offset 0
              breaks K1: a send answered SEND_OK is committed: a voter majority synced it, and the leader applied it
              op 1 of c1.p2 at 0.000000 s: {"f":"send","q":"t/b/0","u":"c1.p2:0:0","h":"00000000000000ff","mode":"sync"} -> ok at 0.000009 s: Sent(Sent { queue_offset: 0, physical_offset: None, offset_id: None, by: None, term: None })
        "#]]
        .assert_eq(head);
    }
}
