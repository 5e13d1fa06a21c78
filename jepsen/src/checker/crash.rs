//! A35 crash: a process of the cluster panicked, or ended although the nemesis did not end it.
//!
//! Two ends are right: a node whose sync failed leaves with a code of its own, and a node that finds its own store
//! damaged, after somebody damaged it, may refuse to start.

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Exit, Nanos, Note};
use crate::index::Index;

pub(super) const CHECKER: Checker = Checker { name: "crash", finds: &[Anomaly::A35], run: check };

/// With this code a node leaves whose storage failed.
const STORAGE_FAILED: i32 = 74;

fn check(index: &Index<'_>, report: &mut Report) {
    for (at, note) in &index.history.notes {
        let Note::Exit(exit) = note else { continue };
        report.checked += 1;
        let panicked = exit.said.as_ref().is_some_and(|said| said.contains("panicked"));
        if !panicked && (exit.ordered || may_leave(index, *at, exit)) {
            continue;
        }
        report.find(Anomaly::A35, [], || {
            let how = match (exit.code, exit.signal) {
                (Some(code), _) => format!("code {code}"),
                (None, Some(signal)) => format!("signal {signal}"),
                (None, None) => "an unknown status".into(),
            };
            let said = exit.said.as_deref().unwrap_or("nothing of note in its log");
            format!("{} ended at {at} with {how}: {said}", exit.node)
        });
    }
}

fn may_leave(index: &Index<'_>, at: Nanos, exit: &Exit) -> bool {
    let hit = |kinds: &[&str]| {
        let before = index.faults().into_iter().filter(|(since, ..)| *since <= at);
        before
            .into_iter()
            .any(|(.., fault)| fault.target.contains(&exit.node) && kinds.iter().any(|kind| fault.kind.contains(kind)))
    };
    match exit.code {
        Some(STORAGE_FAILED) => hit(&["sync", "disk"]),
        Some(_) => exit.said.is_some() && hit(&["rot", "truncate", "zero", "misdirect"]),
        None => false,
    }
}
