//! A18, A19: a group's offset of a queue is a register whose last write wins.
//!
//! | Anomaly | Found when |
//! | --- | --- |
//! | A18 offset lost or regressed | no order of the commits and reads that agrees with real time explains a read |
//! | A19 offset phantom or overrun | a read returns what nobody committed, or more than the queue holds |
//!
//! One-way and unanswered commits may take effect at any time after they began, so their value may be read at any time
//! from then on; that is weaker than the truth and never wrong. Reads while there was no leader may lag and are left
//! out. The search for an order goes depth first and remembers what it has tried; its cost is linear in the operations
//! as long as few of them overlap, and it gives up after [`STATES_PER_STEP`] states for each.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Answer, Call, End, Nanos};
use crate::index::Index;

pub(super) const CHECKER: Checker = Checker { name: "offsets", finds: &[Anomaly::A18, Anomaly::A19], run: check };

/// States that the search for an order visits, for each operation and in all.
const STATES_PER_STEP: usize = 200;
const STATES_MIN: usize = 100_000;
/// How far ahead of the first open operation the search looks: so many may overlap it.
const WINDOW: usize = 128;

type Value = Option<u64>;

#[derive(Clone, Copy)]
struct Step {
    op: u64,
    begun: Nanos,
    ended: Nanos,
    value: Value,
    is_read: bool,
}

/// Everything that happened to one group's offset of one queue.
#[derive(Default)]
struct Register {
    /// Answered commits and reads, by their beginning.
    steps: Vec<Step>,
    /// Commits whose outcome is unknown: value and earliest beginning.
    unknown: BTreeMap<u64, Nanos>,
    committed: BTreeSet<u64>,
}

fn check(index: &Index<'_>, report: &mut Report) {
    for ((group, queue), register) in registers(index) {
        report.checked += register.steps.len() as u64;
        let max = index.queue(queue).filter(|queue| queue.complete).map(|queue| queue.max);
        let name = || format!("{group} in {queue}");
        for read in register.steps.iter().filter(|step| step.is_read) {
            let Some(value) = read.value else { continue };
            if !register.committed.contains(&value) {
                report.find(Anomaly::A19, [read.op], || format!("{}: {value} was read, nobody committed it", name()));
            } else if let Some(max) = max.filter(|max| value > *max) {
                report
                    .find(Anomaly::A19, [read.op], || format!("{}: {value} was read, the queue ends at {max}", name()));
            }
        }
        check_register(&register, &name, report);
    }
}

fn registers<'h>(index: &Index<'h>) -> BTreeMap<(&'h str, &'h str), Register> {
    let leaderless = index.leaderless();
    let mut all: BTreeMap<(&str, &str), Register> = BTreeMap::new();
    for op in &index.history.ops {
        match (&op.call, &op.end) {
            (Call::Commit(_), End::Fail { .. }) => {}
            (Call::Commit(commit), end) => {
                let register = all.entry((&commit.group, &commit.queue)).or_default();
                register.committed.insert(commit.queue_offset);
                match end {
                    End::Ok { at, .. } if !commit.oneway => {
                        let value = Some(commit.queue_offset);
                        register.steps.push(Step { op: op.op, begun: op.invoked, ended: *at, value, is_read: false });
                    }
                    _ => {
                        register.unknown.entry(commit.queue_offset).or_insert(op.invoked);
                    }
                }
            }
            // An administrator's reset of the offset, of which no answer says when it took effect.
            (Call::Seek(seek), _) => {
                let Some(group) = &seek.group else { continue };
                let register = all.entry((group, &seek.queue)).or_default();
                register.committed.insert(seek.queue_offset);
                register.unknown.entry(seek.queue_offset).or_insert(op.invoked);
            }
            (Call::QueryOffset(query), End::Ok { at, answer: Answer::Offset(answer) }) => {
                if leaderless.iter().any(|(since, until)| *since <= *at && op.invoked <= *until) {
                    continue;
                }
                let register = all.entry((&query.group, &query.queue)).or_default();
                let value = answer.queue_offset;
                register.steps.push(Step { op: op.op, begun: op.invoked, ended: *at, value, is_read: true });
            }
            _ => {}
        }
    }
    all
}

/// Where the search stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    /// Everything before this step is placed,
    first: usize,
    /// and of those from it on the ones whose bit is set; never the first.
    placed: u128,
    /// What the register then holds.
    value: Value,
}

impl Place {
    fn with(self, nth: usize, value: Value) -> Self {
        let mut next = Self { value, placed: self.placed | 1 << (nth - self.first), ..self };
        let done = next.placed.trailing_ones();
        next.placed = next.placed.checked_shr(done).unwrap_or_default();
        next.first += done as usize;
        next
    }

    fn has(self, nth: usize) -> bool {
        self.placed & 1 << (nth - self.first) != 0
    }

    fn count(self) -> usize {
        self.first + self.placed.count_ones() as usize
    }
}

enum Found {
    /// An order of everything.
    Order,
    /// No order: at the furthest place this read fits nowhere.
    Stuck(Place, usize),
    GaveUp,
}

fn check_register(register: &Register, name: &dyn Fn() -> String, report: &mut Report) {
    let mut from = Place { first: 0, placed: 0, value: None };
    loop {
        match search(register, from) {
            Found::Order => return,
            Found::GaveUp => {
                report.undecided(format!("{}: too many concurrent operations to find their order", name()));
                return;
            }
            Found::Stuck(place, nth) => {
                let read = register.steps[nth];
                let before = register.steps[..nth].iter().rfind(|step| !step.is_read && step.ended < read.begun);
                report.find(Anomaly::A18, before.map(|step| step.op).into_iter().chain([read.op]), || {
                    let text = |value: Value| value.map_or_else(|| "none".into(), |at| at.to_string());
                    let (name, was) = (name(), text(place.value));
                    format!("{name}: {} was read at {}, where {was} must stand", text(read.value), read.ended)
                });
                // Go on from what was read, so that one loss is one finding.
                from = place.with(nth, read.value);
            }
        }
    }
}

fn search(register: &Register, from: Place) -> Found {
    let steps = &register.steps;
    let states_max = STATES_MIN + STATES_PER_STEP * steps.len();
    let mut known = HashSet::from([from]);
    let mut todo = vec![from];
    let mut furthest: Option<(Place, usize)> = None;
    while let Some(place) = todo.pop() {
        if place.first == steps.len() {
            return Found::Order;
        }
        if known.len() > states_max {
            return Found::GaveUp;
        }
        let mut first_end = Nanos(u64::MAX);
        // What ended before another began comes before it; steps are sorted by their beginning.
        for (nth, step) in steps.iter().enumerate().skip(place.first) {
            if step.begun > first_end {
                break;
            }
            if nth - place.first >= WINDOW {
                return Found::GaveUp;
            }
            if !place.has(nth) {
                first_end = first_end.min(step.ended);
            }
        }
        let mut blocked: Option<usize> = None;
        let mut went_on = false;
        for (nth, step) in steps.iter().enumerate().skip(place.first).take_while(|(_, step)| step.begun <= first_end) {
            if place.has(nth) {
                continue;
            }
            if !step.is_read || step.value == place.value || may_appear(register, *step) {
                went_on = true;
                let next = place.with(nth, step.value);
                if known.insert(next) {
                    todo.push(next);
                }
            } else if blocked.is_none_or(|other| step.ended < steps[other].ended) {
                blocked = Some(nth);
            }
        }
        if let Some(nth) = blocked.filter(|_| !went_on && furthest.is_none_or(|(p, _)| place.count() > p.count())) {
            furthest = Some((place, nth));
        }
    }
    furthest.map_or(Found::GaveUp, |(place, nth)| Found::Stuck(place, nth))
}

/// Whether an unknown commit may have put the value of `read` there.
fn may_appear(register: &Register, read: Step) -> bool {
    read.value.and_then(|value| register.unknown.get(&value)).is_some_and(|begun| *begun <= read.ended)
}
