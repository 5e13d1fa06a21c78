//! The model's replicas: who leads, who is a member, which faults there are, and what an observer sees of it.

use std::time::Duration;

use crate::history::{Call, Exit, Fault, FaultState, Gauge, Nanos, NodeName, Note, Observation, Phase, Route};
use crate::seed::{Seed, Stream};

const NODES: [&str; 4] = ["b1", "b2", "b3", "b4"];
/// How long name servers may name the old leader.
const ROUTE_LAG: Duration = Duration::from_millis(900);

/// Who leads, and in which term.
#[derive(Clone, Copy)]
pub(super) struct Leader {
    pub(super) node: &'static str,
    pub(super) term: u64,
}

/// One replica.
#[derive(Clone, Copy, Default)]
struct Replica {
    life: u32,
    down: bool,
    latched: bool,
}

/// A fault of the plan.
struct Planned {
    kind: &'static str,
    node: usize,
}

pub(super) struct Cluster {
    stream: Stream,
    leader: usize,
    term: u64,
    /// Since when the leader leads; before that there is none.
    since: Nanos,
    previous: Leader,
    replicas: [Replica; 4],
    /// The memberships, by number; the last one holds.
    memberships: Vec<Vec<Vec<NodeName>>>,
    applied: u64,
    planned: Vec<Planned>,
    healed: usize,
}

impl Cluster {
    pub(super) fn new(seed: Seed) -> Self {
        let first: Vec<NodeName> = NODES.iter().take(3).map(|node| (*node).into()).collect();
        Self {
            stream: seed.stream("model.cluster"),
            leader: 0,
            term: 1,
            since: Nanos(0),
            previous: Leader { node: NODES[0], term: 1 },
            replicas: [Replica { life: 1, ..Replica::default() }; 4],
            memberships: vec![vec![first]],
            applied: 10,
            planned: Vec::new(),
            healed: 0,
        }
    }

    pub(super) fn leader(&self) -> Leader {
        Leader { node: NODES[self.leader], term: self.term }
    }

    /// From when on there is a leader.
    pub(super) fn leader_again(&self) -> Nanos {
        self.since
    }

    /// Whether no fault is left.
    pub(super) fn is_healed(&self) -> bool {
        self.healed == self.planned.len()
    }

    /// Draws the faults of a run that lasts so long: when each begins and ends, none while another lasts.
    pub(super) fn plan(&mut self, lasts: Duration) -> Vec<(Nanos, Nanos)> {
        let count = u32::try_from(self.stream.between(0, 3)).unwrap_or_default();
        let slot = lasts / 2 / count.max(1);
        let mut times = Vec::new();
        for nth in 0..count {
            let kinds = ["kill", "pause", "clock", "sync-error", "bit-rot"];
            let kind = self.stream.pick(&kinds).copied().unwrap_or("kill");
            // Faults begin after a third of the run, and the last tenth is quiet.
            let begin = Nanos(0).plus(lasts / 3 + slot * nth);
            times.push((begin, begin.plus(slot / 2)));
            let node = usize::try_from(self.stream.below(3)).unwrap_or_default();
            self.planned.push(Planned { kind, node });
        }
        times
    }

    pub(super) fn install(&mut self, nth: usize, now: Nanos) -> Vec<Note> {
        let Planned { kind, node } = self.planned[nth];
        let mut notes = vec![Note::Fault(self.fault(nth, FaultState::Installed))];
        match kind {
            "kill" => {
                self.replicas[node].down = true;
                notes.push(self.exit(node, None, Some(9), true));
            }
            "pause" => self.replicas[node].down = true,
            "sync-error" => {
                self.replicas[node].latched = true;
                notes.push(self.observe_node(node, now));
                self.replicas[node].down = true;
                notes.push(self.exit(node, Some(74), None, false));
            }
            _ => {}
        }
        if self.replicas[node].down && node == self.leader {
            self.elect(now);
        }
        notes
    }

    pub(super) fn heal(&mut self, nth: usize, _now: Nanos) -> Vec<Note> {
        let Planned { kind, node } = self.planned[nth];
        let replica = &mut self.replicas[node];
        replica.down = false;
        if kind == "kill" || kind == "sync-error" {
            replica.life += 1;
            replica.latched = false;
        }
        self.healed += 1;
        let mut notes = vec![Note::Fault(self.fault(nth, FaultState::Healed))];
        if self.is_healed() {
            notes.push(Note::Phase { name: Phase::QuietHeal });
        }
        notes
    }

    fn elect(&mut self, now: Nanos) {
        self.previous = self.leader();
        self.leader = (self.leader + 1) % 3;
        self.term += 1;
        self.since = now.plus(Duration::from_millis(self.stream.between(20, 900)));
    }

    /// An administrator's change of the members takes effect.
    pub(super) fn change(&mut self, call: &Call) {
        let (node, into) = match call {
            Call::Promote(call) => (&call.node, true),
            Call::Remove(call) => (&call.node, false),
            _ => return,
        };
        let Some(old) = self.memberships.last().and_then(|sets| sets.first()).cloned() else { return };
        let mut new: Vec<NodeName> = old.iter().filter(|known| *known != node).cloned().collect();
        if into {
            new.push(node.clone());
        }
        self.memberships.push(vec![old, new.clone()]);
        self.memberships.push(vec![new]);
    }

    pub(super) fn observe(&mut self, now: Nanos) -> Vec<Note> {
        self.applied += self.stream.below(50);
        let mut notes: Vec<Note> = (0..NODES.len())
            .filter(|node| !self.replicas[*node].down)
            .map(|node| self.observe_node(node, now))
            .collect();
        let named = if now > self.since.plus(ROUTE_LAG) { self.leader() } else { self.previous };
        for namesrv in ["ns1", "ns2"] {
            let (group, masters, term) = ("".into(), vec![named.node.into()], named.term);
            notes.push(Note::Route(Route { namesrv: namesrv.into(), group, masters, term }));
        }
        for (node, name) in NODES.iter().enumerate().filter(|(node, _)| !self.replicas[*node].down) {
            let rss = (200 << 20) + self.stream.below(30 << 20);
            let (files, threads) = (100 + node as u64, 20);
            notes.push(Note::Gauge(Gauge { node: (*name).into(), rss, files, threads, disk: 1 << 30, parked: 5 }));
        }
        notes
    }

    fn observe_node(&self, node: usize, now: Nanos) -> Note {
        let elected = now >= self.since;
        let term = if elected { self.term } else { self.previous.term };
        let state = crate::history::BodyHash(self.applied.wrapping_mul(0x9e37_79b9));
        let number = self.memberships.len() as u64 - 1;
        Note::Obs(Observation {
            node: NODES[node].into(),
            group: "".into(),
            life: self.replicas[node].life,
            identity: 100 + node as u64,
            term,
            leader: elected.then(|| NODES[self.leader].into()),
            last: self.applied + 3,
            committed: self.applied + 1,
            applied: self.applied,
            flushed: self.applied + 2,
            state: Some((self.applied, state)),
            members: self.memberships.last().map(|sets| (number, sets.clone())),
            latched: self.replicas[node].latched,
        })
    }

    fn fault(&self, nth: usize, state: FaultState) -> Fault {
        let Planned { kind, node } = self.planned[nth];
        Fault {
            id: format!("n{nth}").into(),
            kind: kind.into(),
            state,
            target: vec![NODES[node].into()],
            tolerable: true,
            jump_ms: (kind == "clock").then_some(-2_000),
            why: "".into(),
        }
    }

    fn exit(&self, node: usize, code: Option<i32>, signal: Option<i32>, ordered: bool) -> Note {
        Note::Exit(Exit { node: NODES[node].into(), code, signal, ordered, said: None })
    }
}
