//! The end of a model's run: what is pending is settled, groups drain, fresh readers read everything.

use std::collections::BTreeSet;
use std::time::Duration;

use super::actor::{GROUPS, decision};
use super::{Fate, Model};
use crate::history::{
    Answer, BodyHash, Call, Commit, Decision, Derived, Dump, End, EndTx, Freshness, GroupQueue, LookUp, Note, OneQueue,
    Phase, Process, Pull, QueryMsg, QueueName, Unique,
};

/// Messages that are looked up; a model finds each by searching all.
const LOOKED_UP_MAX: usize = 100;
/// The client of the final phase.
const READER: Process = Process { client: 50, worker: 0 };

impl Model {
    pub(super) fn finish_all(&mut self) {
        self.now = self.now.max(self.part_of_run(100));
        self.note(Note::Phase { name: Phase::Final });
        self.end_transactions();
        self.drain_groups();
        self.note(Note::Phase { name: Phase::Drained });
        self.read_everything();
        self.look_up();
        self.dump();
    }

    /// Performs one operation that nothing disturbs.
    fn perform(&mut self, process: Process, call: Call) -> Answer {
        self.now = self.now.plus(Duration::from_micros(self.stream.between(50, 500)));
        let number = self.push(process, call.clone(), Fate::Ok, 0);
        let leader = self.cluster.leader();
        let answer = self.state.apply(&call, process, self.now, self.now, leader).unwrap_or(Answer::Done);
        self.now = self.now.plus(Duration::from_micros(self.stream.between(50, 500)));
        self.history.ops[number].end = End::Ok { at: self.now, answer: answer.clone() };
        answer
    }

    /// Brokers ask about every half message that is still open. A producer says what it has decided; of a message
    /// whose end was lost on the way it decides again.
    fn end_transactions(&mut self) {
        let open: Vec<Unique> = self.state.halves.keys().copied().collect();
        for unique in open {
            self.now = self.now.plus(Duration::from_millis(1));
            self.note(Note::CheckBack { unique });
            let Some(decision) = decision(unique) else { continue };
            let Unique::Sent { process, .. } = unique else { continue };
            let end = EndTx { unique, decision };
            let number = self.push(process, Call::EndTx(end), Fate::Info, 0);
            let leader = self.cluster.leader();
            let call = self.history.ops[number].call.clone();
            self.state.apply(&call, process, self.now, self.now, leader);
            let refusal = crate::history::Refusal { code: None, why: "one-way".into() };
            self.history.ops[number].end = End::Info { at: self.now, refusal };
            debug_assert!(matches!(decision, Decision::Commit | Decision::Rollback));
        }
    }

    /// One living member of each group is given all that is left.
    fn drain_groups(&mut self) {
        for (number, group) in GROUPS.iter().enumerate() {
            let member = self.actors.iter().find(|actor| actor.role.group() == Some(number) && !actor.dead);
            let Some(process) = member.map(|actor| actor.process) else { continue };
            let orderly = number == 1;
            // The locks of others run out first.
            self.now = self.now.plus(Duration::from_secs(6));
            for queue in self.state.queues_of("t1") {
                self.note(Note::Assign { group: (*group).into(), queue: queue.clone(), member: Some(process) });
                let tag = self.filter_of(number);
                let mut next = self.committed(group, &queue);
                while let Some(consume) = self.state.next_delivery(group, &queue, next, tag.as_deref(), orderly) {
                    next = consume.queue_offset + 1;
                    self.perform(process, Call::Consume(consume));
                }
                let commit = Commit { group: (*group).into(), queue, queue_offset: next, oneway: false };
                self.perform(process, Call::Commit(commit));
            }
        }
    }

    fn committed(&mut self, group: &str, queue: &QueueName) -> u64 {
        self.state.offsets.get(&(group.into(), queue.clone())).copied().unwrap_or_default()
    }

    fn read_everything(&mut self) {
        for queue in self.state.queues_of("t1") {
            let mut from = 0;
            loop {
                let pull = Pull { queue: queue.clone(), from, sess: 0, tag: None, read: Freshness::Realtime };
                let Answer::Pulled(pulled) = self.perform(READER, Call::FinalRead(pull)) else { break };
                from = pulled.next;
                if pulled.next >= pulled.max {
                    break;
                }
            }
            self.perform(READER, Call::MaxOffset(OneQueue { queue: queue.clone() }));
            for group in GROUPS.iter().chain(&["registers"]) {
                self.perform(READER, Call::QueryOffset(GroupQueue { group: (*group).into(), queue: queue.clone() }));
            }
        }
    }

    fn look_up(&mut self) {
        let acked = self.history.ops.iter().filter(|op| op.ok_at().is_some());
        let acked: Vec<Unique> = acked
            .filter_map(|op| match &op.call {
                Call::Send(send) => Some(send.unique),
                _ => None,
            })
            .collect();
        let every = (acked.len() / LOOKED_UP_MAX).max(10);
        for unique in acked.into_iter().step_by(every) {
            for by in [LookUp::OffsetId, LookUp::Key, LookUp::Time, LookUp::QueueOffset] {
                self.perform(READER, Call::QueryMsg(QueryMsg { unique, by }));
            }
        }
    }

    fn dump(&mut self) {
        let mut records: Vec<(u64, BodyHash)> = self
            .state
            .queues
            .iter()
            .flat_map(|(_, stored)| stored)
            .map(|stored| (stored.position, stored.hash))
            .collect();
        records.sort_unstable();
        let committed = records.last().map_or(0, |(at, _)| at + 1);
        for node in ["b1", "b2", "b3"] {
            // A replica may be short of what is not committed yet.
            self.note(Note::Dump(Dump { node: node.into(), committed, records: records.clone(), corrupt: vec![] }));
            let queues: BTreeSet<QueueName> = self.state.queues_of("t1").into_iter().collect();
            for queue in queues {
                let log: Vec<u64> = self.state.queue(&queue).iter().map(|stored| stored.position).collect();
                let store = format!("queue {queue}").into();
                self.note(Note::Derived(Derived { node: node.into(), store, entries: log.clone(), log }));
            }
        }
    }
}
