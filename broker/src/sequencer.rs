//! Packs the messages that wait into log entries, and gives each sender its part of the answer.
//!
//! ```text
//!  append() from any thread          one task per group              Raft
//!  [a][b][c] ...  -- swap -->  pack: a b c (up to 64 KiB)  -->  entry, entry, entry (<= 64 in flight)
//!                                                                  | applied
//!  done(a) done(b) done(c)  <------  parts of the pack's reply  <--+
//! ```
//!
//! A pack takes what is there and never waits for more, so a lone message travels at once and a crowd shares an entry.
//! Messages enter the log in the order in which `append` was called. A pack is proposed in the term in which the gates
//! were open; if leadership has moved it is refused, never reordered.
//!
//! Per message there is one entry in a vector and one boxed callback; no task, no channel, and at most one wake-up.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use openraft::storage::RaftStateMachine;
use parking_lot::Mutex;
use raft_store::{LogId, TimeHistogram, Times};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::raft::{GroupRaft, ProposeError, Role, SnapshotData, TypeConfig};
use crate::state_machine::{ApplyReply, MessageOutcome};
use crate::trace::Passage;

/// How often the time limit of packs in flight is looked at.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// Sizes and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequencerOptions {
    /// A pack grows up to this. A larger message travels alone.
    pub pack_bytes_max: usize,
    /// Packs proposed and not yet applied.
    pub packs_in_flight_max: usize,
    /// Bytes accepted and not yet answered; beyond, `append` refuses.
    pub bytes_in_flight_max: usize,
    /// A sender is told that the outcome is unknown after this.
    pub timeout: Duration,
}

impl Default for SequencerOptions {
    fn default() -> Self {
        Self {
            pack_bytes_max: 64 << 10,
            packs_in_flight_max: 64,
            bytes_in_flight_max: 64 << 20,
            timeout: Duration::from_millis(2500),
        }
    }
}

/// Why messages were not appended. The same two fates as a proposal has: surely not, or unknown.
pub type AppendError = ProposeError;

/// What becomes of the records of one `append`: one outcome each, in their order.
pub type AppendResult<'a> = Result<&'a [MessageOutcome], AppendError>;

type DoneFn = Box<dyn for<'a> FnOnce(AppendResult<'a>) + Send>;

struct Waiting {
    records: Bytes,
    count: u32,
    /// Told how it goes on, if these messages are followed.
    passage: Option<Arc<Passage>>,
    done: DoneFn,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// Bytes of everything accepted and not yet answered.
    bytes_in_flight: usize,
    /// The task sleeps and wants a wake-up.
    idle: bool,
    closed: bool,
}

/// One part of a pack: how many records, and who waits.
struct Part {
    count: u32,
    passage: Option<Arc<Passage>>,
    done: DoneFn,
}

struct InFlight {
    parts: Vec<Part>,
    proposed: Instant,
    deadline: Instant,
}

struct Shared {
    options: SequencerOptions,
    queue: Mutex<Queue>,
    wake: Notify,
    /// Senders of packs that are proposed, by pack number. Whoever takes a pack out answers it.
    flight: Mutex<BTreeMap<u64, InFlight>>,
    /// Packs that Raft holds, answered or not.
    packs: Mutex<usize>,
    landed: Notify,
    commit_times: Times,
}

/// Appends messages to the log of one group. Cheap to clone.
#[derive(Clone)]
pub struct Sequencer {
    shared: Arc<Shared>,
    cancel: CancellationToken,
    tasks: TaskTracker,
}

impl fmt::Debug for Sequencer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequencer").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Sequencer {
    /// Starts the task that packs and proposes on `raft`.
    #[must_use]
    pub fn start<SM>(options: SequencerOptions, raft: GroupRaft<SM>) -> Self
    where
        SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>,
    {
        let role = raft.role();
        Self::start_with(options, role, Propose(raft))
    }

    fn start_with(options: SequencerOptions, role: watch::Receiver<Role>, log: impl Log) -> Self {
        let shared = Arc::new(Shared {
            options,
            queue: Mutex::default(),
            wake: Notify::new(),
            flight: Mutex::default(),
            packs: Mutex::new(0),
            landed: Notify::new(),
            commit_times: Times::default(),
        });
        let cancel = CancellationToken::new();
        let tasks = TaskTracker::new();
        let running = Arc::clone(&shared);
        let stop = cancel.clone();
        tasks.spawn(run(running, role, log, stop));
        let sweeping = Arc::clone(&shared);
        let stop = cancel.clone();
        tasks.spawn(async move {
            let _ = stop.run_until_cancelled(sweep(sweeping)).await;
        });
        Self { shared, cancel, tasks }
    }

    /// Appends `count` encoded message records, back to back, with both offsets zero. They become part of one entry.
    ///
    /// Never blocks. `done` is called exactly once: here if the records are refused, else on the task that applies the
    /// entry, so it must be quick. Records are appended in the order of the calls.
    pub fn append(&self, records: Bytes, count: u32, done: impl for<'a> FnOnce(AppendResult<'a>) + Send + 'static) {
        self.append_followed(records, count, None, done);
    }

    /// [`Sequencer::append`] of messages whose way is noted in `passage`.
    pub(crate) fn append_followed(
        &self,
        records: Bytes,
        count: u32,
        passage: Option<Arc<Passage>>,
        done: impl for<'a> FnOnce(AppendResult<'a>) + Send + 'static,
    ) {
        let bytes = records.len();
        let reason = {
            let mut queue = self.shared.queue.lock();
            let bytes_in_flight = queue.bytes_in_flight + bytes;
            if queue.closed {
                "the sequencer has stopped"
            } else if queue.bytes_in_flight > 0 && bytes_in_flight > self.shared.options.bytes_in_flight_max {
                "busy: too many bytes in flight"
            } else {
                queue.bytes_in_flight = bytes_in_flight;
                queue.waiting.push(Waiting { records, count, passage, done: Box::new(done) });
                if std::mem::take(&mut queue.idle) {
                    self.shared.wake.notify_one();
                }
                return;
            }
        };
        done(Err(ProposeError::not_proposed(reason)));
    }

    /// Bytes accepted and not yet answered.
    #[must_use]
    pub fn bytes_in_flight(&self) -> usize {
        self.shared.queue.lock().bytes_in_flight
    }

    /// How long packs took from their proposal until a majority had them and they were applied here.
    #[must_use]
    pub fn commit_times(&self) -> TimeHistogram {
        self.shared.commit_times.histogram()
    }

    /// Stops. What waits is refused; what is proposed is answered as its fate becomes known or its time is up.
    pub async fn shutdown(&self) {
        self.cancel.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Where packs go.
trait Log: Send + 'static {
    /// Proposes `payload` in `term` or not at all, and calls `done` once.
    fn propose(
        &self,
        payload: Bytes,
        term: u64,
        done: impl FnOnce(Result<(ApplyReply, LogId), ProposeError>) + Send + 'static,
    ) -> impl Future<Output = ()> + Send;
}

struct Propose<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>>(GroupRaft<SM>);

impl<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> Log for Propose<SM> {
    async fn propose(
        &self,
        payload: Bytes,
        term: u64,
        done: impl FnOnce(Result<(ApplyReply, LogId), ProposeError>) + Send + 'static,
    ) {
        self.0.propose_with(payload, Some(term), done).await;
    }
}

async fn run(shared: Arc<Shared>, role: watch::Receiver<Role>, log: impl Log, stop: CancellationToken) {
    let mut batch: VecDeque<Waiting> = VecDeque::new();
    let mut number = 0_u64;
    let mut buffer = BytesMut::new();
    loop {
        let nothing_left = batch.is_empty();
        let waited = async {
            if nothing_left {
                shared.wait_for_work().await;
            }
            shared.wait_for_room().await;
        };
        if stop.run_until_cancelled(waited).await.is_none() {
            break;
        }
        // Taken as late as possible, so that a pack holds everything that waits when it goes.
        shared.take_waiting(&mut batch);
        let term = match &*role.borrow() {
            Role::Leader { term, ready: true } => Ok(*term),
            Role::Leader { .. } => Err(ProposeError::not_proposed("leadership is not confirmed")),
            Role::Follower { leader, .. } => Err(ProposeError::NotProposed {
                reason: "this replica does not lead".to_owned(),
                leader: leader.clone(),
            }),
        };
        let term = match term {
            Ok(term) => term,
            Err(error) => {
                shared.refuse(batch.drain(..), &error);
                continue;
            }
        };
        let Some(pack) = take_pack(&mut batch, shared.options.pack_bytes_max, &mut buffer) else { continue };
        let bytes = pack.payload.len();
        number += 1;
        let proposed = Instant::now();
        let deadline = proposed + shared.options.timeout;
        for passage in pack.parts.iter().filter_map(|part| part.passage.as_ref()) {
            passage.proposed(proposed.into_std());
        }
        shared.flight.lock().insert(number, InFlight { parts: pack.parts, proposed, deadline });
        *shared.packs.lock() += 1;
        let landing = Arc::clone(&shared);
        let proposed = log.propose(pack.payload, term, move |result| landing.land(number, bytes, result));
        if stop.run_until_cancelled(proposed).await.is_none() {
            break;
        }
    }
    shared.close(batch);
}

struct Pack {
    payload: Bytes,
    parts: Vec<Part>,
}

/// Takes as many waiting records as fit one pack, at least one sender's.
fn take_pack(batch: &mut VecDeque<Waiting>, pack_bytes_max: usize, buffer: &mut BytesMut) -> Option<Pack> {
    let mut bytes = 0;
    let mut taken = 0;
    for waiting in batch.iter() {
        if taken > 0 && bytes + waiting.records.len() > pack_bytes_max {
            break;
        }
        bytes += waiting.records.len();
        taken += 1;
    }
    let mut parts = Vec::with_capacity(taken);
    if taken <= 1 {
        let waiting = batch.pop_front()?;
        parts.push(Part { count: waiting.count, passage: waiting.passage, done: waiting.done });
        return Some(Pack { payload: waiting.records, parts });
    }
    buffer.reserve(bytes);
    for waiting in batch.drain(..taken) {
        buffer.extend_from_slice(&waiting.records);
        parts.push(Part { count: waiting.count, passage: waiting.passage, done: waiting.done });
    }
    Some(Pack { payload: buffer.split().freeze(), parts })
}

impl Shared {
    async fn wait_for_work(&self) {
        loop {
            {
                let mut queue = self.queue.lock();
                if !queue.waiting.is_empty() {
                    return;
                }
                queue.idle = true;
            }
            self.wake.notified().await;
        }
    }

    fn take_waiting(&self, batch: &mut VecDeque<Waiting>) {
        batch.extend(self.queue.lock().waiting.drain(..));
    }

    async fn wait_for_room(&self) {
        loop {
            if *self.packs.lock() < self.options.packs_in_flight_max {
                return;
            }
            self.landed.notified().await;
        }
    }

    /// A pack's fate is known.
    fn land(&self, number: u64, bytes: usize, result: Result<(ApplyReply, LogId), ProposeError>) {
        let flight = self.flight.lock().remove(&number);
        if let Some(InFlight { parts, proposed, .. }) = flight {
            if result.is_ok() {
                self.commit_times.note(proposed.elapsed());
            }
            match result {
                Ok((ApplyReply::Pack(reply), log_id)) => {
                    let messages = u32::try_from(reply.outcomes.len()).unwrap_or(u32::MAX);
                    for passage in parts.iter().filter_map(|part| part.passage.as_ref()) {
                        passage.landed(log_id.index.get(), messages);
                    }
                    // The answers of one pack that go to one client leave in one write.
                    remoting::cork(|| split(parts, &reply.outcomes));
                }
                Ok((reply, log_id)) => {
                    tracing::error!(%log_id, ?reply, "a pack was not applied as a pack");
                    fail(parts, &ProposeError::unknown("the entry was not applied as a pack"));
                }
                Err(error) => fail(parts, &error),
            }
        }
        self.queue.lock().bytes_in_flight -= bytes;
        {
            let mut packs = self.packs.lock();
            *packs -= 1;
        }
        self.landed.notify_one();
    }

    fn refuse(&self, waiting: impl Iterator<Item = Waiting>, error: &ProposeError) {
        for waiting in waiting {
            self.queue.lock().bytes_in_flight -= waiting.records.len();
            (waiting.done)(Err(error.clone()));
        }
    }

    fn close(&self, batch: VecDeque<Waiting>) {
        let waiting = {
            let mut queue = self.queue.lock();
            queue.closed = true;
            std::mem::take(&mut queue.waiting)
        };
        self.refuse(batch.into_iter().chain(waiting), &ProposeError::Stopped);
        let flight = std::mem::take(&mut *self.flight.lock());
        for pack in flight.into_values() {
            fail(pack.parts, &ProposeError::unknown("the broker is stopping"));
        }
    }
}

/// Gives each sender the outcomes of its own records.
fn split(parts: Vec<Part>, outcomes: &[MessageOutcome]) {
    let mut rest = outcomes;
    for part in parts {
        match rest.split_at_checked(part.count as usize) {
            Some((mine, others)) => {
                rest = others;
                (part.done)(Ok(mine));
            }
            None => (part.done)(Err(ProposeError::unknown("the entry holds fewer messages than were sent"))),
        }
    }
    if !rest.is_empty() {
        tracing::error!(left = rest.len(), "an entry holds more messages than were sent");
    }
}

fn fail(parts: Vec<Part>, error: &ProposeError) {
    for part in parts {
        (part.done)(Err(error.clone()));
    }
}

/// Tells senders whose time is up that the outcome is unknown; their bytes count until Raft lets go of them.
async fn sweep(shared: Arc<Shared>) {
    let mut tick = tokio::time::interval(SWEEP_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let now = Instant::now();
        let expired: Vec<InFlight> = {
            let mut flight = shared.flight.lock();
            // Packs are numbered in the order of their deadlines.
            let alive = flight.iter().find(|(_, pack)| pack.deadline > now).map(|(number, _)| *number);
            let keep = match alive {
                Some(number) => flight.split_off(&number),
                None => BTreeMap::new(),
            };
            std::mem::replace(&mut *flight, keep).into_values().collect()
        };
        for pack in expired {
            fail(pack.parts, &ProposeError::unknown("not applied in time"));
        }
    }
}

#[cfg(test)]
mod tests;
