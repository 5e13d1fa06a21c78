//! A16, A17, A20: what groups were given.
//!
//! | Anomaly | Found when |
//! | --- | --- |
//! | A16 unseen | after the drain, a message of a subscribed topic reached no member of a living group |
//! | A17 group skip | an offset below the group's final one was delivered to no member |
//! | A20 duplicate delivery | something came twice and nothing explains it; or more often than events can explain |
//!
//! A message may come again after a rebalance, crash, failed delivery, fault or change of leader.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Answer, Call, Nanos, Note, Op, Phase, Process, topic_of};
use crate::index::Index;

pub(super) const CHECKER: Checker =
    Checker { name: "delivery", finds: &[Anomaly::A16, Anomaly::A17, Anomaly::A20], run: check };

/// A member may go on with what it holds for this long after its queue was moved: one rebalance interval.
const EXPLAINS_LATER: Duration = Duration::from_secs(20);

/// A group's subscription of a topic.
#[derive(Default)]
struct Subscription<'h> {
    tag: Option<&'h str>,
    members: BTreeSet<Process>,
    op: u64,
}

/// What one group was given of one queue.
#[derive(Default)]
struct Given<'h> {
    last: HashMap<u64, &'h Op>,
    /// Nothing below the highest seek is owed.
    owed_from: u64,
    committed: Option<(u64, u64)>,
}

fn check(index: &Index<'_>, report: &mut Report) {
    let subscriptions = subscriptions(index);
    let mut given: BTreeMap<(&str, &str), Given<'_>> = BTreeMap::new();
    let final_phase = index.history.phase(Phase::Final);
    let events = events(index);
    let mut repeats = 0_u64;
    for op in &index.history.ops {
        match (&op.call, op.ok()) {
            (Call::Consume(consume), _) => {
                report.checked += 1;
                let given = given.entry((&consume.group, &consume.queue)).or_default();
                let Some(before) = given.last.insert(consume.queue_offset, op) else { continue };
                repeats += 1;
                if before.ok_at().is_some() && !explained(&events, &consume.group, before.invoked, op.invoked) {
                    report.find(Anomaly::A20, [before.op, op.op], || {
                        let (group, name, at) = (&consume.group, &consume.queue, consume.queue_offset);
                        format!("{group} was given offset {at} of {name} twice, and nothing happened in between")
                    });
                }
            }
            (Call::Seek(seek), _) => {
                let Some(group) = &seek.group else { continue };
                let given = given.entry((group, &seek.queue)).or_default();
                given.owed_from = given.owed_from.max(seek.queue_offset);
            }
            (Call::QueryOffset(query), Some((_, Answer::Offset(answer)))) => {
                let is_final = final_phase.is_some_and(|at| op.invoked >= at);
                if let Some(at) = answer.queue_offset.filter(|_| is_final) {
                    given.entry((&query.group, &query.queue)).or_default().committed = Some((at, op.op));
                }
            }
            _ => {}
        }
    }
    check_repeats(index, report, repeats, events.len() as u64);
    check_owed(index, report, &subscriptions, &given);
}

fn check_repeats(index: &Index<'_>, report: &mut Report, repeats: u64, events: u64) {
    let failed = index.history.ops.iter().filter(|op| matches!(op.call, Call::Consume(_)) && op.ok_at().is_none());
    let bound = (events + failed.count() as u64).saturating_mul(index.limits.repeats_per_event);
    if repeats > bound {
        report.find(Anomaly::A20, [], || format!("{repeats} repeated deliveries; {bound} could be explained"));
    }
}

fn subscriptions<'h>(index: &Index<'h>) -> BTreeMap<(&'h str, &'h str), Subscription<'h>> {
    let mut all: BTreeMap<(&str, &str), Subscription<'_>> = BTreeMap::new();
    for op in &index.history.ops {
        match (&op.call, op.ok_at()) {
            (Call::Subscribe(subscribe), Some(_)) => {
                let entry = all.entry((&subscribe.group, &subscribe.topic)).or_default();
                entry.tag = subscribe.tag.as_deref();
                entry.op = op.op;
                entry.members.insert(op.process);
            }
            (Call::Unsubscribe(subscribe), _) => {
                if let Some(entry) = all.get_mut(&(&*subscribe.group, &*subscribe.topic)) {
                    entry.members.remove(&op.process);
                }
            }
            _ => {}
        }
    }
    for (_, note) in &index.history.notes {
        if let Note::ClientCrash { client } = note {
            all.values_mut().for_each(|entry| entry.members.retain(|member| member.client != *client));
        }
    }
    all
}

/// A16 and A17: everything below the group's offset, and after the drain everything there is.
fn check_owed(
    index: &Index<'_>,
    report: &mut Report,
    subscriptions: &BTreeMap<(&str, &str), Subscription<'_>>,
    given: &BTreeMap<(&str, &str), Given<'_>>,
) {
    let drained = index.history.phase(Phase::Drained).is_some();
    let nothing = Given::default();
    for ((group, topic), subscription) in subscriptions {
        let queues = index.queues.iter().filter(|queue| queue.complete && topic_of(queue.name) == *topic);
        for queue in queues {
            let given = given.get(&(*group, queue.name)).unwrap_or(&nothing);
            for got in queue.cells() {
                let at = got.queue_offset;
                if at < given.owed_from || given.last.contains_key(&at) || !index.accepted(got, subscription.tag) {
                    continue;
                }
                report.checked += 1;
                let sent = index.message(got.unique).map_or(subscription.op, |message| message.op.op);
                if let Some((committed, op)) = given.committed.filter(|(committed, _)| at < *committed) {
                    report.find(Anomaly::A17, [sent, op], || {
                        let name = queue.name;
                        format!("{group} stands at offset {committed} of {name}, but no member was given {at}")
                    });
                }
                if drained && !subscription.members.is_empty() {
                    report.find(Anomaly::A16, [subscription.op, sent], || {
                        format!("no member of {group} was ever given {} at offset {at} of {}", got.unique, queue.name)
                    });
                }
            }
        }
    }
}

/// When something happened that may repeat deliveries, and to which group if only to one.
fn events<'h>(index: &Index<'h>) -> Vec<(Nanos, Option<&'h str>)> {
    let mut all = Vec::new();
    let mut leaders: HashMap<&str, &str> = HashMap::new();
    for (at, note) in &index.history.notes {
        match note {
            Note::Fault(_) | Note::ClientCrash { .. } | Note::Exit(_) => all.push((*at, None)),
            Note::Assign { group, .. } => all.push((*at, Some(&**group))),
            Note::Obs(seen) => {
                let Some(leader) = &seen.leader else { continue };
                if leaders.insert(&seen.group, leader).is_some_and(|before| before != &**leader) {
                    all.push((*at, None));
                }
            }
            _ => {}
        }
    }
    for op in &index.history.ops {
        let group = match &op.call {
            Call::Subscribe(subscribe) | Call::Unsubscribe(subscribe) => Some(&*subscribe.group),
            Call::Seek(seek) => seek.group.as_deref(),
            _ => None,
        };
        if group.is_some() {
            all.push((op.invoked, group));
            all.extend(op.ended().map(|at| (at, group)));
        }
    }
    all.sort_unstable();
    all
}

fn explained(events: &[(Nanos, Option<&str>)], group: &str, before: Nanos, now: Nanos) -> bool {
    let start = events.partition_point(|(at, _)| at.plus(EXPLAINS_LATER) < before);
    let between = events.iter().skip(start).take_while(|(at, _)| *at <= now);
    between.into_iter().any(|(_, whose)| whose.is_none_or(|whose| whose == group))
}
