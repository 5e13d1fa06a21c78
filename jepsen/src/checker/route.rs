//! A27 stale route: what name servers say, against who leads.
//!
//! Found when a name server that nothing cuts off names a node that does not lead, longer than the limit after the new
//! leader was first seen to lead; when the term it names goes backwards; or when it names two masters at once.

use std::collections::{BTreeMap, HashMap};

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Nanos, Note, Route};
use crate::index::Index;

pub(super) const CHECKER: Checker = Checker { name: "route", finds: &[Anomaly::A27], run: check };

/// A leader of one group, since when it was seen to lead its term.
#[derive(Clone)]
struct Lead<'h> {
    since: Nanos,
    term: u64,
    node: &'h str,
}

fn check(index: &Index<'_>, report: &mut Report) {
    let leads = leads(index);
    let faults = index.faults();
    let slack = index.limits.route();
    let mut terms: HashMap<(&str, &str), u64> = HashMap::new();
    for (at, note) in &index.history.notes {
        if let Note::Exit(exit) = note {
            terms.retain(|(namesrv, _), _| *namesrv != &*exit.node);
        }
        let Note::Route(route) = note else { continue };
        report.checked += 1;
        let who = || format!("{} at {at}", route.namesrv);
        if route.masters.len() > 1 {
            report.find(Anomaly::A27, [], || format!("{} named two masters: {}", who(), route.masters.join(" and ")));
        }
        let term = terms.entry((&route.namesrv, &route.group)).or_insert(route.term);
        if route.term < *term {
            let before = *term;
            report.find(Anomaly::A27, [], || format!("{} went back from term {before} to {}", who(), route.term));
        }
        *term = route.term;
        let leads = leads.get(&*route.group).map_or(&[][..], |leads| leads);
        let begun = leads.partition_point(|lead| lead.since <= *at);
        let lead = begun.checked_sub(1).and_then(|nth| leads.get(nth));
        let Some(lead) = lead.filter(|lead| lead.since.plus(slack) < *at) else { continue };
        // Replicas are looked at now and then, so a name server may know of a leader before it is seen to lead.
        let next = leads.get(begun).filter(|next| next.since <= at.plus(slack));
        if next.is_some_and(|next| route.masters.iter().all(|master| **master == *next.node)) {
            continue;
        }
        let disturbed = faults.iter().any(|(since, until, fault)| {
            let touches = fault.target.iter().any(|node| **node == *route.namesrv || **node == *lead.node);
            touches && *since <= *at && until.plus(slack) >= *at
        });
        if let Some(stale) = stale(route, lead).filter(|_| !disturbed) {
            report.find(Anomaly::A27, [], || {
                let (node, term, since) = (lead.node, lead.term, lead.since);
                format!("{} named {stale}, but {node} leads term {term} since {since}", who())
            });
        }
    }
}

fn stale<'r>(route: &'r Route, lead: &Lead<'_>) -> Option<&'r str> {
    route.masters.iter().find(|master| ***master != *lead.node).map(|master| &**master)
}

/// Per group its leaders by the moment from which each led; of two at one time the one of the higher term.
fn leads<'h>(index: &Index<'h>) -> BTreeMap<&'h str, Vec<Lead<'h>>> {
    let mut all: BTreeMap<&str, Vec<Lead<'_>>> = BTreeMap::new();
    for (at, seen) in index.observations() {
        if seen.leader.as_ref() != Some(&seen.node) {
            continue;
        }
        let leads = all.entry(&seen.group).or_default();
        if leads.last().is_none_or(|last| last.term < seen.term) {
            leads.push(Lead { since: *at, term: seen.term, node: &seen.node });
        }
    }
    all
}
