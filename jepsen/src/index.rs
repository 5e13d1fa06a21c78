//! A history turned around: messages by their unique name, queues by what the final reads found in them.
//!
//! Built once in time linear in the history and shared by all checkers.

use std::collections::HashMap;
use std::time::Duration;

use crate::contract::Limits;
use crate::history::{
    Answer, BodyHash, Call, FaultState, Got, History, Nanos, Note, Observation, Op, SendMode, Unique,
};

/// A final read may name any offset; cells further than this beyond the first are not laid out.
const CELLS_MAX: u64 = 1 << 27;

/// What one attempt to send carried, and what is known of it.
pub struct Message<'h> {
    pub unique: Unique,
    pub op: &'h Op,
    pub queue: usize,
    pub hash: BodyHash,
    pub tag: Option<&'h str>,
    pub key: Option<&'h str>,
    pub kind: Kind,
    /// Where the broker said it is: only of acknowledged messages, and not of delayed and half ones.
    pub acked: Option<u64>,
    pub position: Option<u64>,
    /// Where the final reads found it in its queue, and a second place if there is one.
    pub place: Option<u64>,
    pub second_place: Option<u64>,
}

/// How a message comes into its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Plain,
    /// By its place in a batch.
    Batch(usize),
    Delayed(Duration),
    Half,
}

/// The final content of a queue.
pub struct Queue<'h> {
    pub name: &'h str,
    /// The broker group, by number.
    pub broker: usize,
    pub min: u64,
    pub max: u64,
    /// Whether the final reads covered all of `min..max`; otherwise absence proves nothing.
    pub complete: bool,
    cells: Vec<Option<Got>>,
    reads: Vec<(u64, u64)>,
}

impl Queue<'_> {
    /// What the final reads found at `queue_offset`.
    pub fn cell(&self, queue_offset: u64) -> Option<&Got> {
        let at = usize::try_from(queue_offset.checked_sub(self.min)?).ok()?;
        self.cells.get(at)?.as_ref()
    }

    /// Everything the final reads found, by offset.
    pub fn cells(&self) -> impl Iterator<Item = &Got> {
        self.cells.iter().flatten()
    }

    fn covered(&mut self) -> bool {
        self.reads.sort_unstable();
        let mut to = self.min;
        for (from, next) in &self.reads {
            if *from > to {
                break;
            }
            to = to.max(*next);
        }
        to >= self.max
    }
}

/// One place where one message was seen.
pub struct Sighting<'h> {
    pub queue: usize,
    pub queue_offset: u64,
    pub unique: Unique,
    pub hash: BodyHash,
    pub physical_offset: Option<u64>,
    pub op: &'h Op,
}

/// A history made ready for the checkers.
pub struct Index<'h> {
    pub history: &'h History,
    pub limits: Limits,
    pub messages: Vec<Message<'h>>,
    pub queues: Vec<Queue<'h>>,
    numbers: HashMap<Unique, usize>,
    queue_numbers: HashMap<&'h str, usize>,
}

impl<'h> Index<'h> {
    pub fn new(history: &'h History) -> Self {
        let mut index = Self {
            history,
            limits: history.limits(),
            messages: Vec::new(),
            queues: Vec::new(),
            numbers: HashMap::new(),
            queue_numbers: HashMap::new(),
        };
        let mut brokers = HashMap::new();
        for op in &history.ops {
            index.learn_messages(op, &mut brokers);
        }
        index.learn_final_reads(&mut brokers);
        index
    }

    /// The message called `unique`, if a client invoked it.
    pub fn message(&self, unique: Unique) -> Option<&Message<'h>> {
        self.numbers.get(&unique).and_then(|at| self.messages.get(*at))
    }

    /// The number of a message, dense from 0.
    pub fn message_number(&self, unique: Unique) -> Option<usize> {
        self.numbers.get(&unique).copied()
    }

    /// The number of the queue called `name`, if anything was sent to it or finally read from it.
    pub fn queue_number(&self, name: &str) -> Option<usize> {
        self.queue_numbers.get(name).copied()
    }

    /// The final content of the queue called `name`.
    pub fn queue(&self, name: &str) -> Option<&Queue<'h>> {
        self.queue_number(name).and_then(|at| self.queues.get(at))
    }

    /// Whether a reader with `filter` is given what `got` is; unknown messages count as unwanted.
    pub fn accepted(&self, got: &Got, filter: Option<&str>) -> bool {
        self.message(got.unique).is_some_and(|message| crate::history::accepts(filter, message.tag))
    }

    /// Calls `see` with every place where a message was seen: acknowledgements, reads, deliveries, look-ups.
    pub fn each_sighting(&self, mut see: impl FnMut(Sighting<'h>)) {
        for op in &self.history.ops {
            match (&op.call, op.ok().map(|(_, answer)| answer)) {
                (Call::Send(send), Some(Answer::Sent(sent))) => {
                    let Some(queue) = self.queue_number(&send.queue) else { continue };
                    see(Sighting {
                        queue,
                        queue_offset: sent.queue_offset,
                        unique: send.unique,
                        hash: send.hash,
                        physical_offset: sent.physical_offset,
                        op,
                    });
                }
                (Call::Batch(batch), Some(Answer::Sent(sent))) => {
                    let Some(queue) = self.queue_number(&batch.queue) else { continue };
                    for ((unique, hash), nth) in batch.items.iter().zip(0..) {
                        let queue_offset = sent.queue_offset.saturating_add(nth);
                        see(Sighting { queue, queue_offset, unique: *unique, hash: *hash, physical_offset: None, op });
                    }
                }
                (Call::Pull(pull) | Call::FinalRead(pull), Some(Answer::Pulled(pulled))) => {
                    let Some(queue) = self.queue_number(&pull.queue) else { continue };
                    for got in &pulled.got {
                        see(Sighting {
                            queue,
                            queue_offset: got.queue_offset,
                            unique: got.unique,
                            hash: got.hash,
                            physical_offset: Some(got.physical_offset),
                            op,
                        });
                    }
                }
                (Call::Consume(consume), _) => {
                    let Some(queue) = self.queue_number(&consume.queue) else { continue };
                    see(Sighting {
                        queue,
                        queue_offset: consume.queue_offset,
                        unique: consume.unique,
                        hash: consume.hash,
                        physical_offset: None,
                        op,
                    });
                }
                (Call::QueryMsg(_), Some(Answer::Found(found))) => {
                    let Some(found) = &found.found else { continue };
                    let Some(queue) = self.queue_number(&found.queue) else { continue };
                    see(Sighting {
                        queue,
                        queue_offset: found.queue_offset,
                        unique: found.unique,
                        hash: found.hash,
                        physical_offset: Some(found.physical_offset),
                        op,
                    });
                }
                _ => {}
            }
        }
    }

    /// The stretches of time in which the observer saw a replica without a leader.
    pub fn leaderless(&self) -> Vec<(Nanos, Nanos)> {
        let mut stretches = Vec::new();
        let mut since: HashMap<&str, Nanos> = HashMap::new();
        for (at, seen) in self.observations() {
            if seen.leader.is_none() {
                since.entry(&seen.group).or_insert(*at);
            } else if let Some(since) = since.remove(&*seen.group) {
                stretches.push((since, *at));
            }
        }
        stretches.extend(since.into_values().map(|since| (since, self.history.end())));
        stretches
    }

    /// What replicas said about themselves, by time.
    pub fn observations(&self) -> impl Iterator<Item = (&'h Nanos, &'h Observation)> {
        self.history.notes.iter().filter_map(|(at, note)| match note {
            Note::Obs(seen) => Some((at, seen)),
            _ => None,
        })
    }

    /// The stretches of time in which faults were installed, each with its fault; one not healed lasts to the end.
    pub fn faults(&self) -> Vec<(Nanos, Nanos, &'h crate::history::Fault)> {
        let mut open = Vec::new();
        let mut all = Vec::new();
        for (at, note) in &self.history.notes {
            let Note::Fault(fault) = note else { continue };
            match fault.state {
                FaultState::Installed | FaultState::Indeterminate => open.push((*at, fault)),
                FaultState::Healed => {
                    if let Some(nth) = open.iter().position(|(_, earlier)| earlier.id == fault.id) {
                        let (since, earlier) = open.swap_remove(nth);
                        all.push((since, *at, earlier));
                    }
                }
                FaultState::Skipped => {}
            }
        }
        let end = self.history.end();
        all.extend(open.into_iter().map(|(since, fault)| (since, end, fault)));
        all.sort_by_key(|(since, ..)| *since);
        all
    }

    fn number_of_queue(&mut self, name: &'h str, brokers: &mut HashMap<&'h str, usize>) -> usize {
        if let Some(number) = self.queue_numbers.get(name) {
            return *number;
        }
        let broker = name.split('/').nth(1).unwrap_or_default();
        let next = brokers.len();
        let broker = *brokers.entry(broker).or_insert(next);
        let number = self.queues.len();
        let (cells, reads) = (Vec::new(), Vec::new());
        self.queues.push(Queue { name, broker, min: 0, max: 0, complete: false, cells, reads });
        self.queue_numbers.insert(name, number);
        number
    }

    fn learn_messages(&mut self, op: &'h Op, brokers: &mut HashMap<&'h str, usize>) {
        let sent = match op.ok() {
            Some((_, Answer::Sent(sent))) => Some(sent),
            _ => None,
        };
        match &op.call {
            Call::Send(send) | Call::SendDelay(send) | Call::SendHalf(send) => {
                let queue = self.number_of_queue(&send.queue, brokers);
                let kind = match &op.call {
                    Call::SendDelay(_) => Kind::Delayed(Duration::from_millis(send.delay_ms.unwrap_or_default())),
                    Call::SendHalf(_) => Kind::Half,
                    _ => Kind::Plain,
                };
                let placed = sent.filter(|_| kind == Kind::Plain && send.mode != SendMode::Oneway);
                self.add(Message {
                    unique: send.unique,
                    op,
                    queue,
                    hash: send.hash,
                    tag: send.tag.as_deref(),
                    key: send.key.as_deref(),
                    kind,
                    acked: placed.map(|sent| sent.queue_offset),
                    position: placed.and_then(|sent| sent.physical_offset),
                    place: None,
                    second_place: None,
                });
            }
            Call::Batch(batch) => {
                let queue = self.number_of_queue(&batch.queue, brokers);
                for (nth, (unique, hash)) in batch.items.iter().enumerate() {
                    self.add(Message {
                        unique: *unique,
                        op,
                        queue,
                        hash: *hash,
                        tag: None,
                        key: None,
                        kind: Kind::Batch(nth),
                        acked: sent.map(|sent| sent.queue_offset.saturating_add(nth as u64)),
                        position: None,
                        place: None,
                        second_place: None,
                    });
                }
            }
            _ => {}
        }
    }

    fn add(&mut self, message: Message<'h>) {
        self.numbers.insert(message.unique, self.messages.len());
        self.messages.push(message);
    }

    fn learn_final_reads(&mut self, brokers: &mut HashMap<&'h str, usize>) {
        let reads = self.history.ops.iter().filter_map(|op| match (&op.call, op.ok()) {
            (Call::FinalRead(pull), Some((_, Answer::Pulled(pulled)))) => Some((pull, pulled)),
            _ => None,
        });
        let reads: Vec<_> = reads.collect();
        for (pull, pulled) in &reads {
            let number = self.number_of_queue(&pull.queue, brokers);
            let queue = &mut self.queues[number];
            queue.min = queue.min.max(pulled.min);
            queue.max = queue.max.max(pulled.max);
            queue.reads.push((pull.from, pulled.next));
        }
        for (pull, pulled) in &reads {
            let number = self.queue_numbers[&*pull.queue];
            for got in &pulled.got {
                self.lay_out(number, got);
            }
        }
        for queue in &mut self.queues {
            queue.complete = !queue.reads.is_empty() && queue.covered();
        }
    }

    fn lay_out(&mut self, number: usize, got: &Got) {
        let queue = &mut self.queues[number];
        let Some(at) = got.queue_offset.checked_sub(queue.min).filter(|at| *at < CELLS_MAX) else { return };
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        if at >= queue.cells.len() {
            queue.cells.resize(at + 1, None);
        }
        if queue.cells[at].is_some() {
            return;
        }
        queue.cells[at] = Some(*got);
        let Some(message) = self.numbers.get(&got.unique).and_then(|at| self.messages.get_mut(*at)) else { return };
        if message.queue != number {
            return;
        }
        if message.place.is_none() {
            message.place = Some(got.queue_offset);
        } else {
            message.second_place.get_or_insert(got.queue_offset);
        }
    }
}
