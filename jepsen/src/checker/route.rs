//! A27 stale route: what name servers say, against who leads.
//!
//! Found when a name server that nothing cuts off goes on naming one node that does not lead, longer than the limit, with
//! the true leader seen to lead before all of it; when the term it names goes backwards; or when it names two masters at
//! once.
//!
//! Replicas are looked at now and then, so one that led for a moment may never be seen to lead. A name server that
//! named it was right and does so for a moment too: only a wrong name that stays is held against it.

use std::collections::{BTreeMap, HashMap};

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Nanos, Note};
use crate::index::Index;

pub(super) const CHECKER: Checker = Checker { name: "route", finds: &[Anomaly::A27], run: check };

/// A leader of one group, since when it was seen to lead its term.
#[derive(Clone)]
struct Lead<'h> {
    since: Nanos,
    term: u64,
    node: &'h str,
}

/// A wrong name that a name server gives for a group, again and again.
struct Wrong<'h> {
    since: Nanos,
    master: &'h str,
    /// The term whose leader it should have named all the while.
    term: u64,
    is_reported: bool,
}

fn check(index: &Index<'_>, report: &mut Report) {
    let leads = leads(index);
    let faults = index.faults();
    let slack = index.limits.route();
    let mut terms: HashMap<(&str, &str), u64> = HashMap::new();
    let mut wrongs: HashMap<(&str, &str), Wrong<'_>> = HashMap::new();
    for (at, note) in &index.history.notes {
        if let Note::Exit(exit) = note {
            terms.retain(|(namesrv, _), _| *namesrv != &*exit.node);
            wrongs.retain(|(namesrv, _), _| *namesrv != &*exit.node);
        }
        let Note::Route(route) = note else { continue };
        report.checked += 1;
        let asked = (&*route.namesrv, &*route.group);
        let who = || format!("{} at {at}", route.namesrv);
        if route.masters.len() > 1 {
            report.find(Anomaly::A27, [], || format!("{} named two masters: {}", who(), route.masters.join(" and ")));
        }
        let term = terms.entry(asked).or_insert(route.term);
        if route.term < *term {
            let before = *term;
            report.find(Anomaly::A27, [], || format!("{} went back from term {before} to {}", who(), route.term));
        }
        *term = route.term;
        let leads = leads.get(&*route.group).map_or(&[][..], |leads| leads);
        let lead = leads.partition_point(|lead| lead.since <= *at).checked_sub(1).and_then(|nth| leads.get(nth));
        let disturbed = |lead: &Lead<'_>| {
            faults.iter().any(|(since, until, fault)| {
                let touches = fault.target.iter().any(|node| **node == *route.namesrv || **node == *lead.node);
                touches && *since <= *at && until.plus(slack) >= *at
            })
        };
        let named = lead.and_then(|lead| {
            let master = route.masters.iter().find(|master| ***master != *lead.node)?;
            (!disturbed(lead)).then_some((lead, &**master))
        });
        let Some((lead, master)) = named else {
            wrongs.remove(&asked);
            continue;
        };
        let fresh = || Wrong { since: *at, master, term: lead.term, is_reported: false };
        let wrong = wrongs.entry(asked).or_insert_with(fresh);
        if (wrong.master, wrong.term) != (master, lead.term) {
            *wrong = fresh();
        }
        if wrong.since.plus(slack) < *at && !wrong.is_reported {
            wrong.is_reported = true;
            let since = wrong.since;
            report.find(Anomaly::A27, [], || {
                let (node, term, leads_since) = (lead.node, lead.term, lead.since);
                format!(
                    "{} still named {master}, as since {since}, but {node} leads term {term} since {leads_since}",
                    who()
                )
            });
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{History, Observation, Route};

    const MASTER: &str = "b1";

    /// One name server is asked every 500 ms for 10 s; `named` says what it answers at each. The first node is seen to
    /// lead at the beginning, and no other ever is.
    fn findings(named: impl Fn(u64) -> &'static str) -> usize {
        let node = || MASTER.into();
        let lead = Observation { node: node(), leader: Some(node()), term: 1, ..Observation::default() };
        let mut history = History::default();
        history.notes.push((Nanos(0), Note::Obs(lead)));
        for ms in (500..10_000).step_by(500) {
            let (namesrv, group, masters) = ("ns1".into(), "".into(), vec![named(ms).into()]);
            history.notes.push((Nanos(ms * 1_000_000), Note::Route(Route { namesrv, group, masters, term: 0 })));
        }
        let mut report = Report::default();
        check(&Index::new(&history), &mut report);
        report.found.get(&Anomaly::A27).map_or(0, |found| *found as usize)
    }

    #[test]
    fn a_leader_of_a_moment_that_nobody_saw_was_named_rightly() {
        assert_eq!(findings(|_| MASTER), 0);
        assert_eq!(findings(|ms| if (4_000..=5_000).contains(&ms) { "b2" } else { MASTER }), 0);
        // Two of them, one after the other.
        let two = |ms| match ms {
            4_000..5_000 => "b2",
            5_000..6_000 => "b3",
            _ => MASTER,
        };
        assert_eq!(findings(two), 0);
    }

    #[test]
    fn a_wrong_name_that_stays_is_found_once() {
        assert_eq!(findings(|ms| if (4_000..=5_500).contains(&ms) { "b2" } else { MASTER }), 1);
        assert_eq!(findings(|_| "b2"), 1);
        assert_eq!(findings(|ms| if ms == 5_000 { MASTER } else { "b2" }), 2);
    }
}
