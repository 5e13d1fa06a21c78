//! What a node saw in the last hour, for those who look after the fact.
//!
//! Elections are noted as they happen, so that their gaps are exact. Everything else is seen by comparing what the node
//! looks like now and then.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::MissedTickBehavior;

use super::Shared;
use crate::http::{Admin, Event, EventKind, GroupStatus, NodeStatus, ReplicaRole};
use crate::processor::now;
use crate::raft::Role;

const KEEP_MS: i64 = 3_600_000;
const EVENTS_MAX: usize = 1_024;
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// The events of a node, the newest so many. Cheap to clone.
#[derive(Clone)]
pub(super) struct EventLog {
    node: String,
    events: Arc<Mutex<VecDeque<Event>>>,
}

/// What an event is about, without when and by whom it was seen.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    kind: EventKind,
    group: Option<String>,
    node: Option<String>,
    term: Option<u64>,
    gap_ms: Option<u64>,
    text: String,
}

impl Seen {
    fn new(kind: EventKind, text: String) -> Self {
        Self { kind, group: None, node: None, term: None, gap_ms: None, text }
    }

    fn of(mut self, group: &str, node: &str) -> Self {
        (self.group, self.node) = (Some(group.to_owned()), Some(node.to_owned()));
        self
    }

    fn about(mut self, node: &str) -> Self {
        self.node = Some(node.to_owned());
        self
    }
}

impl EventLog {
    pub(super) fn new(node: &str) -> Self {
        let log = Self { node: node.to_owned(), events: Arc::default() };
        log.note(Seen::new(EventKind::Started, format!("process of {node} started")).about(node));
        log
    }

    pub(super) fn note(&self, seen: Seen) {
        self.note_at(now().wall_ms, seen);
    }

    fn note_at(&self, at_ms: i64, seen: Seen) {
        let Seen { kind, group, node, term, gap_ms, text } = seen;
        let mut events = self.events.lock();
        while events.len() >= EVENTS_MAX || events.front().is_some_and(|oldest| oldest.at_ms < at_ms - KEEP_MS) {
            events.pop_front();
        }
        events.push_back(Event { at_ms, seen_by: self.node.clone(), kind, group, node, term, gap_ms, text });
    }

    /// The events of the last hour.
    pub(super) fn list(&self) -> Vec<Event> {
        let since = now().wall_ms - KEEP_MS;
        self.events.lock().iter().filter(|event| event.at_ms >= since).cloned().collect()
    }

    /// Says that the node is drained, or no more.
    pub(super) fn note_drained(&self, drained: bool) {
        let word = if drained { "is drained" } else { "is drained no more" };
        let text = format!("{} {word}", self.node);
        self.note(Seen::new(EventKind::Drained, text).about(&self.node));
    }
}

/// Follows who leads a group.
#[derive(Debug, Default)]
pub(super) struct Leadership {
    leader: Option<(u64, String)>,
}

impl Leadership {
    /// What a change of this replica's role means. `gap` is the last time without a leader, and the term that ended it.
    pub(super) fn follow(&mut self, group: &str, own: &str, role: &Role, gap: Option<(u64, Duration)>) -> Option<Seen> {
        let leader = match role {
            Role::Leader { term, ready: true } => Some((*term, own.to_owned())),
            Role::Leader { ready: false, .. } => None,
            Role::Follower { term, leader } => leader.as_ref().map(|(_, member)| (*term, member.node.clone())),
        };
        if leader == self.leader {
            return None;
        }
        let before = std::mem::replace(&mut self.leader, leader.clone());
        match (before, leader) {
            (Some((term, former)), None) => {
                let text = format!("{group} has no leader; {former} led it in term {term}");
                Some(Seen::new(EventKind::LeaderLost, text).of(group, &former))
            }
            (_, Some((term, leader))) => {
                let gap = gap.filter(|(ended_by, _)| *ended_by == term).map(|(_, gap)| gap);
                let after = gap.map_or_else(String::new, |gap| format!(", after {gap:.1?} without a leader"));
                let seen = Seen::new(EventKind::Elected, format!("{leader} leads {group} in term {term}{after}"));
                let gap_ms = gap.map(|gap| u64::try_from(gap.as_millis()).unwrap_or(u64::MAX));
                Some(Seen { term: Some(term), gap_ms, ..seen.of(group, &leader) })
            }
            (None, None) => None,
        }
    }
}

/// Looks at the node now and then, and notes what is otherwise than before, for ever.
pub(super) async fn watch(shared: Arc<Shared>) -> Infallible {
    let mut tick = tokio::time::interval(LOOK_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before = (shared.status(), shared.hub.reachable());
    loop {
        tick.tick().await;
        let now = (shared.status(), shared.hub.reachable());
        for seen in differences(&before.0, &now.0).into_iter().chain(moved(&before.1, &now.1)) {
            shared.events.note(seen);
        }
        before = now;
    }
}

/// Which nodes have gone or come.
fn moved(before: &BTreeMap<String, bool>, now: &BTreeMap<String, bool>) -> Vec<Seen> {
    let changed =
        now.iter().filter_map(|(node, reachable)| match (before.get(node).copied().unwrap_or(false), *reachable) {
            (true, false) => Some(Seen::new(EventKind::NodeLost, format!("{node} cannot be reached")).about(node)),
            (false, true) => Some(Seen::new(EventKind::NodeBack, format!("{node} can be reached")).about(node)),
            _ => None,
        });
    changed.collect()
}

fn differences(before: &NodeStatus, now: &NodeStatus) -> Vec<Seen> {
    let of = |name: &str| before.groups.iter().find(|group| group.name == name);
    let pairs = now.groups.iter().filter_map(|group| Some((of(&group.name)?, group)));
    pairs.flat_map(|(before, group)| group_differences(&now.node, before, group)).collect()
}

fn group_differences(node: &str, before: &GroupStatus, now: &GroupStatus) -> Vec<Seen> {
    let group = &now.name;
    let mut seen = Vec::new();
    let mut note = |kind, text: String| seen.push(Seen::new(kind, text).of(group, node));
    if now.role == ReplicaRole::Failed && before.role != ReplicaRole::Failed {
        let why = now.repair_error.as_deref().unwrap_or("its storage or Raft has failed");
        note(EventKind::ReplicaFailed, format!("the replica of {group} on {node} works no more: {why}"));
    }
    match (before.damaged.first(), now.damaged.first()) {
        (None, Some(damage)) => note(
            EventKind::Damaged,
            format!("the log of {group} on {node} is damaged from {}: {}", damage.from, damage.found),
        ),
        (Some(_), None) => note(EventKind::Repaired, format!("the log of {group} on {node} is whole again")),
        _ => {}
    }
    match (before.returning, now.returning) {
        (false, true) => note(
            EventKind::IdentityLost,
            format!("the replica of {group} on {node} gave up its identity and does not vote"),
        ),
        (true, false) => {
            note(EventKind::IdentityBack, format!("the replica of {group} on {node} votes as {}", now.id));
        }
        _ => {}
    }
    let level = |status: &GroupStatus| status.disk.as_ref().map(|disk| disk.level.clone());
    if let (Some(was), Some(is)) = (level(before), level(now))
        && was != is
    {
        note(EventKind::Disk, format!("the disk of {group} on {node} was {was} and is {is}"));
    }
    // Only the leader tells of members, and only of changes of a group that it led before.
    if now.role == ReplicaRole::Leader && before.role == ReplicaRole::Leader {
        let members = |status: &GroupStatus| -> BTreeMap<u64, (String, bool)> {
            status.members.iter().map(|member| (member.id, (member.node.clone(), member.voter))).collect()
        };
        let (was, is) = (members(before), members(now));
        for (id, (member, voter)) in &is {
            let word = match (was.get(id).map(|(_, voter)| *voter), *voter) {
                (None, true) => "came as a voter",
                (None, false) => "came as a learner",
                (Some(false), true) => "votes now",
                (Some(true), false) => "votes no more",
                _ => continue,
            };
            let text = format!("{member} ({id}) {word} in {group}");
            seen.push(Seen::new(EventKind::MemberChanged, text).of(group, member));
        }
        for (id, (member, _)) in was.iter().filter(|(id, _)| !is.contains_key(id)) {
            let text = format!("{member} ({id}) is no member of {group} any more");
            seen.push(Seen::new(EventKind::MemberChanged, text).of(group, member));
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use raft_store::Member;

    use super::*;

    fn follower(term: u64, leader: Option<&str>) -> Role {
        let member = |node: &str| Member { node: node.to_owned(), ..Member::default() };
        Role::Follower { term, leader: leader.map(|node| (1, member(node))) }
    }

    #[test]
    fn an_election_is_told_of_with_its_gap() {
        let mut leadership = Leadership::default();
        let mut follow = |role: Role, gap: Option<(u64, u64)>| {
            let gap = gap.map(|(term, gap_ms)| (term, Duration::from_millis(gap_ms)));
            let seen = leadership.follow("a", "n2", &role, gap)?;
            Some((seen.kind, seen.node.unwrap(), seen.term, seen.gap_ms))
        };
        let elected = |node: &str, term, gap| Some((EventKind::Elected, node.to_owned(), Some(term), gap));
        let lost = |node: &str| Some((EventKind::LeaderLost, node.to_owned(), None, None));
        assert_eq!(follow(follower(1, None), None), None);
        assert_eq!(follow(follower(1, Some("n1")), None), elected("n1", 1, None));
        assert_eq!(follow(follower(1, Some("n1")), None), None);
        assert_eq!(follow(follower(2, None), None), lost("n1"));
        assert_eq!(follow(Role::Leader { term: 2, ready: false }, None), None, "it does not answer yet");
        assert_eq!(follow(Role::Leader { term: 2, ready: true }, Some((2, 50))), elected("n2", 2, Some(50)));
        assert_eq!(follow(Role::Leader { term: 2, ready: false }, Some((2, 50))), lost("n2"));
        assert_eq!(follow(Role::Leader { term: 2, ready: true }, Some((2, 30))), elected("n2", 2, Some(30)));
        assert_eq!(follow(follower(3, Some("n1")), Some((2, 30))), elected("n1", 3, None), "that gap is an older one");
    }

    #[test]
    fn events_are_bounded_in_number_and_age() {
        let log = EventLog { node: "n1".to_owned(), events: Arc::default() };
        let seen = || Seen::new(EventKind::NodeLost, String::new());
        log.note_at(0, seen());
        log.note_at(KEEP_MS + 1, seen());
        assert_eq!(log.events.lock().len(), 1, "an hour is over");
        for _ in 0..2 * EVENTS_MAX {
            log.note_at(KEEP_MS + 1, seen());
        }
        assert_eq!(log.events.lock().len(), EVENTS_MAX);
    }

    #[test]
    fn nodes_that_go_and_come_are_told_of() {
        let seen = |n2: bool, n3: bool| BTreeMap::from([("n2".to_owned(), n2), ("n3".to_owned(), n3)]);
        let kinds = |before: BTreeMap<String, bool>, now: BTreeMap<String, bool>| {
            moved(&before, &now).into_iter().map(|seen| seen.kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds(seen(true, true), seen(true, false)), [EventKind::NodeLost]);
        assert_eq!(kinds(seen(false, true), seen(true, true)), [EventKind::NodeBack]);
        assert_eq!(kinds(seen(true, false), seen(true, false)), []);
        assert_eq!(kinds(BTreeMap::new(), seen(true, false)), [EventKind::NodeBack]);
    }
}
