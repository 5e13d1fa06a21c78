//! A40 resource leak: something of a node grows from quarter to quarter of a long run, while the load does not.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Gauge, Nanos, Note};
use crate::index::Index;

pub(super) const CHECKER: Checker = Checker { name: "leak", finds: &[Anomaly::A40], run: check };

/// Shorter runs say nothing: caches are still filling.
const RUN_MIN: Duration = Duration::from_secs(300);
const SAMPLES_MIN: usize = 40;

/// A resource, how to read it, and growth that no leak is needed to explain.
type Resource = (&'static str, fn(&Gauge) -> u64, u64);

const RESOURCES: [Resource; 5] = [
    ("resident memory", |gauge| gauge.rss, 64 << 20),
    ("open files", |gauge| gauge.files, 64),
    ("threads", |gauge| gauge.threads, 16),
    ("disk", |gauge| gauge.disk, 4 << 30),
    ("parked pulls", |gauge| gauge.parked, 256),
];

fn check(index: &Index<'_>, report: &mut Report) {
    let mut nodes: BTreeMap<&str, Vec<(Nanos, &Gauge)>> = BTreeMap::new();
    for (at, note) in &index.history.notes {
        if let Note::Gauge(gauge) = note {
            report.checked += 1;
            nodes.entry(&gauge.node).or_default().push((*at, gauge));
        }
    }
    for (node, samples) in nodes {
        let (Some((first, _)), Some((last, _))) = (samples.first(), samples.last()) else { continue };
        if last.since(*first) < RUN_MIN || samples.len() < SAMPLES_MIN {
            continue;
        }
        for (name, read, slack) in RESOURCES {
            let quarters: Vec<u64> = samples
                .chunks(samples.len().div_ceil(4))
                .map(|part| median(part.iter().map(|(_, g)| read(g))))
                .collect();
            // The first quarter is warm-up.
            let [_, second, third, fourth] = quarters[..] else { continue };
            let grows = second < third && third < fourth;
            if grows && fourth - second > slack && fourth > second + second / 4 {
                report.find(Anomaly::A40, [], || {
                    format!("{name} of {node} grew by quarters of the run: {second}, {third}, {fourth}")
                });
            }
        }
    }
}

fn median(values: impl Iterator<Item = u64>) -> u64 {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
