//! A model of a cluster that keeps every promise, to show that the checkers accept whatever is legal.
//!
//! It runs no code of the broker: it is a list of events in simulated time. Each operation begins, has its effect on
//! the state at one moment, and ends; some fail, some end unknown with their effect earlier, later or never. Around
//! them replicas are observed, leaders change, members crash, queues move between members.

mod actor;
mod cluster;
mod ending;
mod state;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use actor::{Actor, Role};
use cluster::Cluster;
use state::State;

use crate::generator::{Mix, Operations};
use crate::history::{Answer, Call, End, History, Nanos, Note, Op, Phase, Process, Refusal, SendMode};
use crate::seed::{Seed, Stream};

/// How large a history to make.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// For how long clients work before the end.
    pub lasts: Duration,
    /// The longest pause between two operations of one process.
    pub think_max: Duration,
    pub producers: u16,
    pub readers: u16,
    pub queues: u32,
}

impl Size {
    /// A few hundred operations.
    pub const SMALL: Self = Self {
        lasts: Duration::from_secs(60),
        think_max: Duration::from_millis(1_500),
        producers: 3,
        readers: 2,
        queues: 3,
    };
}

/// Makes the history of a run that keeps every promise.
pub fn legal_history(seed: Seed, size: &Size) -> History {
    Model::new(seed, size).run()
}

/// What happens at a moment of simulated time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// An actor begins its next operation.
    Begin(usize),
    /// An operation takes effect.
    Effect(usize),
    /// An operation ends.
    Finish(usize),
    /// A delayed message is due.
    Due(usize),
    Observe,
    /// The next fault of the plan begins, and ends.
    Fault(usize),
    Heal(usize),
    /// A group member's process dies.
    Crash,
}

/// How an operation is going to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Ok,
    Fail,
    Info,
}

struct Model {
    size: Size,
    stream: Stream,
    now: Nanos,
    /// Begun operations have a number of their own here: their place in the history.
    history: History,
    fates: Vec<(Fate, usize, Answer)>,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    scheduled: u64,
    actors: Vec<Actor>,
    state: State,
    cluster: Cluster,
}

impl Model {
    fn new(seed: Seed, size: &Size) -> Self {
        let mut mix = Mix::drawn(seed, size.queues);
        mix.body_bytes_max = 64;
        let mut model = Self {
            size: *size,
            stream: seed.stream("model"),
            now: Nanos(0),
            history: History::default(),
            fates: Vec::new(),
            events: BinaryHeap::new(),
            scheduled: 0,
            actors: Vec::new(),
            state: State::new(size.queues),
            cluster: Cluster::new(seed),
        };
        for worker in 0..size.producers {
            let process = Process { client: 1, worker };
            model.add(process, Role::Producer(Box::new(Operations::new(seed, process, mix.clone()))));
        }
        for worker in 0..size.readers {
            model.add(Process { client: 2, worker }, Role::reader(u64::from(worker)));
        }
        for worker in 0..3 {
            model.add(Process { client: 3, worker }, Role::Registrar);
        }
        model.add(Process { client: 4, worker: 0 }, Role::Admin { step: 0 });
        for (client, group) in [(10, 0), (11, 0), (12, 1), (13, 1)] {
            model.add(Process { client, worker: 0 }, Role::member(group));
        }
        model
    }

    fn add(&mut self, process: Process, role: Role) {
        self.actors.push(Actor { process, role, dead: false });
    }

    fn run(mut self) -> History {
        self.begin();
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            self.step(event);
        }
        self.finish_all();
        self.history.ops.sort_by_key(|op| op.invoked);
        self.history.notes.sort_by_key(|(at, _)| *at);
        self.history
    }

    fn begin(&mut self) {
        self.note(Note::Run(crate::history::Run { run: "model".into(), ..Default::default() }));
        self.note(Note::Phase { name: Phase::Main });
        for actor in 0..self.actors.len() {
            let at = self.soon(1_000);
            self.schedule(at, Event::Begin(actor));
        }
        self.schedule(Nanos(1), Event::Observe);
        for (nth, (at, until)) in self.cluster.plan(self.size.lasts).into_iter().enumerate() {
            self.schedule(at, Event::Fault(nth));
            self.schedule(until, Event::Heal(nth));
        }
        if self.stream.chance(50) {
            self.schedule(self.part_of_run(40), Event::Crash);
        }
    }

    /// The moment when `percent` of the run is over.
    fn part_of_run(&self, percent: u32) -> Nanos {
        Nanos(0).plus(self.size.lasts * percent / 100)
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Begin(actor) => {
                if self.now < self.part_of_run(100) && !self.actors[actor].dead {
                    self.begin_operation(actor);
                }
            }
            Event::Effect(number) => self.take_effect(number),
            Event::Finish(number) => self.finish(number),
            Event::Due(unique) => self.state.deliver_delayed(unique),
            Event::Observe => {
                if self.now < self.part_of_run(100) {
                    let notes = self.cluster.observe(self.now);
                    notes.into_iter().for_each(|note| self.note(note));
                    self.schedule(self.now.plus(Duration::from_millis(400)), Event::Observe);
                }
            }
            Event::Fault(nth) => {
                let notes = self.cluster.install(nth, self.now);
                notes.into_iter().for_each(|note| self.note(note));
            }
            Event::Heal(nth) => {
                let notes = self.cluster.heal(nth, self.now);
                notes.into_iter().for_each(|note| self.note(note));
            }
            Event::Crash => self.crash_a_member(),
        }
    }

    fn begin_operation(&mut self, actor: usize) {
        let Some(call) = self.choose(actor) else {
            let at = self.soon(200);
            self.schedule(at, Event::Begin(actor));
            return;
        };
        let fate = self.fate(&call);
        // While there is no leader nothing is answered.
        let start = self.now.max(self.cluster.leader_again());
        let end = start.plus(Duration::from_micros(if self.stream.chance(3) {
            self.stream.between(5_000, 400_000)
        } else {
            self.stream.between(200, 5_000)
        }));
        let within = self.stream.below(end.since(start).as_nanos().max(1) as u64);
        let (effect, happens) = match fate {
            Fate::Ok => (Nanos(start.0 + within), true),
            Fate::Fail => (start, false),
            // What is unknown may have happened, may happen later, or never.
            Fate::Info if self.stream.chance(40) => (end.plus(Duration::from_millis(self.stream.below(2_000))), true),
            Fate::Info => (Nanos(start.0 + within), self.stream.chance(50)),
        };
        let process = self.actors[actor].process;
        let number = self.push(process, call, fate, actor);
        if happens {
            self.schedule(effect, Event::Effect(number));
        }
        self.schedule(end, Event::Finish(number));
    }

    fn push(&mut self, process: Process, call: Call, fate: Fate, actor: usize) -> usize {
        let number = self.history.ops.len();
        let op = number as u64;
        self.history.ops.push(Op { op, process, invoked: self.now, call, end: End::Open });
        self.fates.push((fate, actor, Answer::Done));
        number
    }

    fn fate(&mut self, call: &Call) -> Fate {
        let oneway = match call {
            Call::Send(send) => send.mode == SendMode::Oneway,
            Call::Commit(commit) => commit.oneway,
            Call::EndTx(_) => true,
            _ => false,
        };
        // Once everything is healed, every queue must take messages again.
        let stores = call.message().is_some() || matches!(call, Call::Batch(_));
        match self.stream.below(100) {
            _ if oneway => Fate::Info,
            _ if stores && self.cluster.is_healed() => Fate::Ok,
            0..3 => Fate::Fail,
            3..7 if !matches!(call, Call::Subscribe(_)) => Fate::Info,
            _ => Fate::Ok,
        }
    }

    fn take_effect(&mut self, number: usize) {
        let Op { process, call, invoked, .. } = &self.history.ops[number];
        let call = call.clone();
        let answer = match &call {
            Call::AddLearner(_) | Call::Promote(_) | Call::Remove(_) => {
                self.cluster.change(&call);
                Some(Answer::Done)
            }
            _ => {
                let leader = self.cluster.leader();
                self.state.apply(&call, *process, *invoked, self.now, leader)
            }
        };
        if let Call::SendDelay(send) = &call {
            let due = self.now.plus(Duration::from_millis(send.delay_ms.unwrap_or_default()));
            let nth = self.state.delayed.len() - 1;
            let at = due.plus(Duration::from_millis(self.stream.below(300)));
            self.schedule(at, Event::Due(nth));
        }
        match answer {
            Some(answer) => self.fates[number].2 = answer,
            // The state refuses it, so it fails, unless its end is unknown anyway.
            None if self.fates[number].0 == Fate::Ok => self.fates[number].0 = Fate::Fail,
            None => {}
        }
    }

    fn finish(&mut self, number: usize) {
        let (fate, actor, answer) = self.fates[number].clone();
        if self.actors[actor].dead {
            return;
        }
        let at = self.now;
        self.history.ops[number].end = match fate {
            Fate::Ok => End::Ok { at, answer },
            Fate::Fail => End::Fail { at, refusal: Refusal { code: Some(14), why: "not proposed: no leader".into() } },
            Fate::Info => End::Info { at, refusal: Refusal { code: None, why: "timed out".into() } },
        };
        self.learn(actor, number, fate);
        let think = self.size.think_max.as_micros() as u64;
        let pause = self.stream.between(0, think.max(1));
        self.schedule(self.now.plus(Duration::from_micros(pause)), Event::Begin(actor));
    }

    fn crash_a_member(&mut self) {
        let members = self.actors.iter().enumerate().filter(|(_, actor)| actor.role.group().is_some() && !actor.dead);
        let members: Vec<usize> = members.map(|(at, _)| at).collect();
        let Some(victim) = self.stream.pick(&members).copied() else { return };
        self.actors[victim].dead = true;
        let client = self.actors[victim].process.client;
        self.note(Note::ClientCrash { client });
        if let Some(group) = self.actors[victim].role.group() {
            self.add(Process { client: client + 100, worker: 0 }, Role::member(group));
            let at = self.soon(3_000);
            self.schedule(at, Event::Begin(self.actors.len() - 1));
        }
    }

    fn note(&mut self, note: Note) {
        self.history.notes.push((self.now, note));
    }

    fn schedule(&mut self, at: Nanos, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at.max(self.now), self.scheduled, event)));
    }

    fn soon(&mut self, within_ms: u64) -> Nanos {
        self.now.plus(Duration::from_millis(self.stream.between(1, within_ms)))
    }
}
