//! What each client process of the model does next, and what it learns from an end.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Fate, Model};
use crate::generator::{Draft, Intent, Operations};
use crate::history::{
    Answer, BodyHash, Call, Commit, Decision, End, EndTx, Freshness, GroupQueue, Lock, Nanos, Node, Note, OneQueue,
    Process, Pull, QueueName, Seek, Send, Subscribe, Topic, Unique,
};

/// How long an orderly member's lock holds.
const LEASE_MS: u64 = 5_000;
/// Of its open half messages a producer looks at so many, the latest first.
const OPEN_SEEN_MAX: usize = 8;

pub(super) struct Actor {
    pub(super) process: Process,
    pub(super) role: Role,
    pub(super) dead: bool,
}

/// The two groups of the model: the second is orderly and takes one tag only.
pub(super) const GROUPS: [&str; 2] = ["g0", "g1"];

pub(super) enum Role {
    Producer(Box<Operations>),
    /// A pull session per queue.
    Reader {
        sess: u64,
        next: BTreeMap<QueueName, u64>,
    },
    /// Commits and reads offsets of a group that consumes nothing.
    Registrar,
    Admin {
        step: u32,
    },
    Member(Member),
}

#[derive(Default)]
pub(super) struct Member {
    group: usize,
    subscribed: bool,
    /// What it works on, and until when an orderly member may.
    queue: Option<QueueName>,
    until: Nanos,
    next: u64,
    uncommitted: u64,
    reading: bool,
}

impl Role {
    pub(super) fn reader(sess: u64) -> Self {
        Self::Reader { sess, next: BTreeMap::new() }
    }

    pub(super) fn member(group: usize) -> Self {
        Self::Member(Member { group, ..Member::default() })
    }

    pub(super) fn group(&self) -> Option<usize> {
        match self {
            Self::Member(member) => Some(member.group),
            _ => None,
        }
    }
}

impl Model {
    /// The next operation of an actor; none if it has nothing to do now.
    pub(super) fn choose(&mut self, actor: usize) -> Option<Call> {
        let mut role = std::mem::replace(&mut self.actors[actor].role, Role::Registrar);
        let process = self.actors[actor].process;
        let call = match &mut role {
            Role::Producer(operations) => self.produce(process, operations),
            Role::Reader { sess, next } => Some(self.read(*sess, next)),
            Role::Registrar => Some(self.register()),
            Role::Admin { step } => Some(self.administrate(step)),
            Role::Member(member) => self.consume(member),
        };
        self.actors[actor].role = role;
        call
    }

    fn produce(&mut self, process: Process, operations: &mut Operations) -> Option<Call> {
        // What the producer decided hangs on the message alone, so that a check-back later gives the same answer.
        let first = |sequence| Unique::Sent { process, sequence, attempt: 0 };
        let own = self.state.halves.range(first(0)..=first(u32::MAX)).rev().take(OPEN_SEEN_MAX);
        let open = own.map(|(unique, _)| *unique).find(|unique| decision(*unique).is_some());
        if let Some(unique) = open.filter(|_| self.stream.chance(50)) {
            return decision(unique).map(|decision| Call::EndTx(EndTx { unique, decision }));
        }
        let queue = |id: u32| QueueName::from(format!("t1/broker-a/{id}"));
        Some(match operations.next() {
            Intent::Send(draft) => Call::Send(send(process, &queue(draft.queue), draft)),
            Intent::SendDelay(draft, delay_ms) => {
                let send = send(process, &queue(draft.queue), draft);
                Call::SendDelay(Send { delay_ms: Some(delay_ms), ..send })
            }
            Intent::SendHalf(draft, _) => Call::SendHalf(send(process, &queue(draft.queue), draft)),
            Intent::Batch(drafts) => {
                let queue = queue(drafts.first()?.queue);
                let items = drafts.into_iter().map(|draft| send(process, &queue, draft));
                let items = items.map(|send| (send.unique, send.hash)).collect();
                Call::Batch(crate::history::Batch { queue, items })
            }
            Intent::MaxOffset(id) => Call::MaxOffset(OneQueue { queue: queue(id) }),
        })
    }

    fn read(&mut self, sess: u64, next: &mut BTreeMap<QueueName, u64>) -> Call {
        let queues = self.state.queues_of("t1");
        let nth = self.stream.below(queues.len() as u64);
        let queue = queues[usize::try_from(nth).unwrap_or_default()].clone();
        let from = next.get(&queue).copied().unwrap_or_default();
        let sess = sess * 100 + nth;
        if self.stream.chance(3) {
            let queue_offset = self.stream.between(0, from);
            next.insert(queue.clone(), queue_offset);
            return Call::Seek(Seek { sess: Some(sess), group: None, queue, queue_offset });
        }
        // Each session keeps to one filter.
        let tag = sess.is_multiple_of(3).then(|| "tag0".into());
        let read = if self.stream.chance(30) { Freshness::Realtime } else { Freshness::Prefix };
        Call::Pull(Pull { queue, from, sess, tag, read })
    }

    fn register(&mut self) -> Call {
        let queue = QueueName::from("t1/broker-a/0");
        let group = "registers".into();
        if self.stream.chance(50) {
            return Call::QueryOffset(GroupQueue { group, queue });
        }
        let queue_offset = self.stream.between(0, self.state.queue(&queue).len() as u64);
        Call::Commit(Commit { group, queue, queue_offset, oneway: self.stream.chance(10) })
    }

    fn administrate(&mut self, step: &mut u32) -> Call {
        *step += 1;
        let node = || Node { node: "b4".into() };
        match *step {
            5 => return Call::AddLearner(node()),
            8 => return Call::Promote(node()),
            13 => return Call::Remove(node()),
            _ => {}
        }
        let topic = |queues| Topic { topic: "changing".into(), queues };
        match self.stream.below(10) {
            0 => Call::DeleteTopic(topic(0)),
            1 => Call::CreateTopic(topic(4)),
            2 | 3 => Call::UpdateTopic(topic(u32::try_from(self.stream.between(4, 9)).unwrap_or(4))),
            _ => Call::ReadTopic(topic(0)),
        }
    }

    fn consume(&mut self, member: &mut Member) -> Option<Call> {
        let group = GROUPS[member.group];
        let orderly = member.group == 1;
        if !member.subscribed {
            let tag = self.filter_of(member.group);
            return Some(Call::Subscribe(Subscribe { group: group.into(), topic: "t1".into(), tag }));
        }
        if member.until <= self.now || self.stream.chance(5) {
            member.reading = false;
            if let Some(queue) = member.queue.take() {
                member.until = Nanos(0);
                let left = GroupQueue { group: group.into(), queue };
                return Some(if orderly { Call::Unlock(left) } else { Call::QueryOffset(left) });
            }
            let queues = self.state.queues_of("t1");
            let queue = self.stream.pick(&queues)?.clone();
            return Some(Call::Lock(Lock { group: group.into(), queue, lease_ms: LEASE_MS }));
        }
        let queue = member.queue.clone()?;
        // A new owner goes on where the group stands.
        if member.reading {
            return Some(Call::QueryOffset(GroupQueue { group: group.into(), queue }));
        }
        if member.uncommitted > 0 && (orderly || self.stream.chance(40)) {
            let (queue_offset, oneway) = (member.next, !orderly && self.stream.chance(50));
            member.uncommitted = 0;
            return Some(Call::Commit(Commit { group: group.into(), queue, queue_offset, oneway }));
        }
        let tag = self.filter_of(member.group);
        self.state.next_delivery(group, &queue, member.next, tag.as_deref(), orderly).map(Call::Consume)
    }

    /// The orderly group takes one tag only.
    pub(super) fn filter_of(&self, group: usize) -> Option<Box<str>> {
        (group == 1 && self.size.queues.is_multiple_of(2)).then(|| "tag0".into())
    }

    /// What an actor learns when an operation of its own ends.
    pub(super) fn learn(&mut self, actor: usize, number: usize, fate: Fate) {
        let (process, now) = (self.actors[actor].process, self.now);
        let op = &self.history.ops[number];
        let ok = fate == Fate::Ok;
        let mut assigned = None;
        match (&mut self.actors[actor].role, &op.call, &op.end) {
            (Role::Reader { next, .. }, Call::Pull(pull), End::Ok { answer: Answer::Pulled(pulled), .. }) => {
                next.insert(pull.queue.clone(), pulled.next);
            }
            (Role::Member(member), call, end) => match (call, end) {
                (Call::Subscribe(_), _) => member.subscribed = ok,
                (Call::Lock(lock), _) if ok => {
                    member.queue = Some(lock.queue.clone());
                    member.until = op.invoked.plus(Duration::from_millis(LEASE_MS - 1_000));
                    (member.reading, member.uncommitted) = (true, 0);
                    assigned = Some(lock.queue.clone());
                }
                (Call::QueryOffset(_), End::Ok { answer: Answer::Offset(offset), .. }) if member.reading => {
                    member.next = offset.queue_offset.unwrap_or_default();
                    member.reading = false;
                }
                (Call::Consume(consume), _) if ok => {
                    member.next = consume.queue_offset + 1;
                    member.uncommitted += 1;
                }
                _ => {}
            },
            _ => {}
        }
        if let (Some(queue), Role::Member(member)) = (assigned, &self.actors[actor].role) {
            let group = GROUPS[member.group].into();
            self.history.notes.push((now, Note::Assign { group, queue, member: Some(process) }));
        }
    }
}

/// What the producer of a half message decides: for every seventh nothing, for every third to roll back.
pub(super) fn decision(unique: Unique) -> Option<Decision> {
    let Unique::Sent { sequence, .. } = unique else { return None };
    match sequence {
        _ if sequence.is_multiple_of(7) => None,
        _ if sequence.is_multiple_of(3) => Some(Decision::Rollback),
        _ => Some(Decision::Commit),
    }
}

fn send(process: Process, queue: &str, draft: Draft) -> Send {
    let unique = Unique::Sent { process, sequence: draft.sequence, attempt: 0 };
    let body = vec![7; usize::try_from(draft.body_bytes).unwrap_or_default()];
    let hash = BodyHash::of(&body, draft.tag.as_deref(), draft.key.as_deref());
    let Draft { mode, tag, key, .. } = draft;
    Send { queue: queue.into(), unique, hash, mode, tag, key, delay_ms: None, cause: None }
}
