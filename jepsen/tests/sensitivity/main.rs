//! The checkers find every anomaly: each is planted in legal histories in at least two ways, and must be found.
#![expect(clippy::unwrap_used, reason = "a test fails loudly")]

mod cluster;
mod groups;
mod messages;
mod readers;
mod tool;

use std::collections::BTreeMap;
use std::time::Duration;

use jepsen::anomaly::Anomaly;
use jepsen::checker::{Outcome, judge};
use jepsen::history::History;
use jepsen::model::{Size, legal_history};
use jepsen::seed::{Seed, Stream};

/// Changes a legal history so that it shows `anomaly`.
struct Plant {
    anomaly: Anomaly,
    name: &'static str,
    /// None if the history has no place for it.
    plant: fn(&mut History, &mut Stream) -> Option<()>,
}

/// Histories in which each one is planted, and those that may be tried for it.
const PLANTED: usize = 3;
const SEEDS: u64 = 40;

fn plants() -> Vec<&'static Plant> {
    let all = [messages::PLANTS, readers::PLANTS, groups::PLANTS, cluster::PLANTS];
    all.into_iter().flatten().collect()
}

#[test]
fn every_planted_anomaly_is_found() {
    let size = Size { lasts: Duration::from_secs(60), think_max: Duration::from_millis(400), ..Size::SMALL };
    let mut legal: BTreeMap<u64, History> = BTreeMap::new();
    let mut missed = Vec::new();
    for plant in plants() {
        let mut planted = 0;
        for seed in 0..SEEDS {
            let history = legal.entry(seed).or_insert_with(|| legal_history(Seed(seed), &size));
            let mut history = history.clone();
            if (plant.plant)(&mut history, &mut Seed(seed).stream(plant.name)).is_none() {
                continue;
            }
            history.ops.sort_by_key(|op| op.invoked);
            history.notes.sort_by_key(|(at, _)| *at);
            planted += 1;
            let verdict = judge(&history);
            let found = verdict.reports.iter().any(|report| report.found.contains_key(&plant.anomaly));
            if !found || verdict.outcome != Outcome::Fail {
                missed.push(format!("{}, {}, seed {seed}", plant.anomaly, plant.name));
            }
            if planted == PLANTED {
                break;
            }
        }
        if planted < PLANTED {
            missed.push(format!(
                "{}, {}: only {planted} of {SEEDS} histories have a place for it",
                plant.anomaly, plant.name
            ));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
    println!("{} ways to plant an anomaly, {PLANTED} histories each", plants().len());
}

#[test]
fn every_anomaly_is_planted_in_two_ways() {
    for anomaly in Anomaly::ALL {
        let ways = plants().iter().filter(|plant| plant.anomaly == anomaly).count();
        assert!(ways >= 2, "{anomaly} is planted in {ways} ways");
    }
}

#[test]
fn a_finding_names_operations_that_prove_it() {
    let history = legal_history(Seed(0), &Size::SMALL);
    for plant in messages::PLANTS {
        let mut history = history.clone();
        if (plant.plant)(&mut history, &mut Seed(0).stream(plant.name)).is_none() {
            continue;
        }
        history.ops.sort_by_key(|op| op.invoked);
        let verdict = judge(&history);
        let finding = verdict.findings().find(|finding| finding.anomaly == plant.anomaly).unwrap();
        assert!(!finding.ops.is_empty(), "{}: {}", plant.name, finding.what);
        for named in &finding.ops {
            assert!(history.ops.iter().any(|op| op.op == *named), "{}: no operation {named}", plant.name);
        }
    }
}
