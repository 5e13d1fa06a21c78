//! Pops, acknowledgements and the like on their way into the log.
//!
//! Each is a step of a few dozen bytes, and each is waited for. So what comes while entries are under way is collected
//! and becomes one entry: alone, a step costs one trip through the log; under load many share it.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, oneshot};

use crate::processor::Group;
use crate::processor::answer::Failure;
use crate::state_machine::pop::{PopAction, PopOutcome, PopStep};
use crate::state_machine::{ApplyReply, Command, CommandReply};

/// Entries with steps that are under way at a time.
const ENTRIES_MAX: usize = 4;
/// Steps of one entry, whose names have 250 bytes at most.
const STEPS_MAX: usize = 1_024;
/// Offsets in the steps of one entry: a take of 32 messages, an acknowledgement of a batch.
const OFFSETS_MAX: usize = 65_536;
/// Steps waiting; beyond it new ones are refused.
const WAITING_MAX: usize = 65_536;

type Outcomes = Result<Vec<PopOutcome>, Failure>;

/// Steps that belong together, and who waits for them.
struct Waiting {
    steps: Vec<PopStep>,
    done: oneshot::Sender<Outcomes>,
}

#[derive(Default)]
struct Inner {
    waiting: Vec<Waiting>,
    count: usize,
    /// Nothing is put into the log any more.
    is_closed: bool,
}

/// The steps of one broker group that are not in the log yet.
#[derive(Default)]
pub(crate) struct PopSteps {
    inner: Mutex<Inner>,
    filled: Notify,
}

impl PopSteps {
    fn put(&self, steps: Vec<PopStep>) -> Result<oneshot::Receiver<Outcomes>, Failure> {
        let (done, wait) = oneshot::channel();
        let mut inner = self.inner.lock();
        if inner.is_closed {
            return Err(Failure::NotLeading("this replica stops".to_owned()));
        }
        if inner.count + steps.len() > WAITING_MAX {
            return Err(Failure::NotLeading("too many pops and acknowledgements wait".to_owned()));
        }
        inner.count += steps.len();
        inner.waiting.push(Waiting { steps, done });
        drop(inner);
        self.filled.notify_one();
        Ok(wait)
    }

    /// Takes what goes into the next entry, at least one step if there is one.
    fn take(&self) -> Vec<Waiting> {
        let inner = &mut *self.inner.lock();
        let (mut steps, mut offsets) = (0, 0);
        let fits = inner.waiting.iter().take_while(|waiting| {
            steps += waiting.steps.len();
            offsets += waiting.steps.iter().map(offsets_in).sum::<usize>();
            steps <= STEPS_MAX && offsets <= OFFSETS_MAX
        });
        let count = fits.count().max(1).min(inner.waiting.len());
        let taken: Vec<Waiting> = inner.waiting.drain(..count).collect();
        inner.count -= taken.iter().map(|waiting| waiting.steps.len()).sum::<usize>();
        taken
    }

    /// Lets nobody wait any more.
    fn close(&self) {
        let mut inner = self.inner.lock();
        inner.is_closed = true;
        for Waiting { done, .. } in inner.waiting.drain(..) {
            let _ = done.send(Err(Failure::NotLeading("this replica stops".to_owned())));
        }
    }

    async fn filled(&self) {
        while self.inner.lock().waiting.is_empty() {
            self.filled.notified().await;
        }
    }
}

fn offsets_in(step: &PopStep) -> usize {
    match &step.action {
        PopAction::Take(take) => take.fresh.len() + take.again.len(),
        PopAction::Acknowledge { queue_offsets, .. } => queue_offsets.len(),
        PopAction::Hide { .. } => 1,
    }
}

impl Group {
    /// Puts steps into one entry of the log and waits until it is applied. One outcome a step.
    pub(super) async fn do_steps(&self, steps: Vec<PopStep>) -> Outcomes {
        let wait = self.0.pop_steps.put(steps)?;
        wait.await.unwrap_or_else(|_| Err(Failure::Unknown("the group has stopped".to_owned())))
    }

    /// Makes entries of what is collected until the group stops.
    pub(in crate::processor) async fn run_pop_steps(&self) {
        let entries = Arc::new(Semaphore::new(ENTRIES_MAX));
        loop {
            tokio::select! {
                () = self.0.stop.cancelled() => return self.0.pop_steps.close(),
                () = self.0.pop_steps.filled() => {}
            }
            // Waiting for a place is what lets steps collect.
            let Ok(place) = Arc::clone(&entries).acquire_owned().await else { return self.0.pop_steps.close() };
            let mut steps = Vec::new();
            let mut waiting = Vec::new();
            for Waiting { steps: own, done } in self.0.pop_steps.take() {
                waiting.push((own.len(), done));
                steps.extend(own);
            }
            if steps.is_empty() {
                continue;
            }
            let group = self.clone();
            self.0.tasks.spawn(async move {
                let count = steps.len();
                let command = Command::Pop { steps, stamped_ms: group.stamp_ms() };
                match group.0.raft.propose(command.encode()).await {
                    Ok((ApplyReply::Command { reply: CommandReply::Popped { outcomes }, .. }, _))
                        if outcomes.len() == count =>
                    {
                        let mut outcomes = outcomes.into_iter();
                        for (own, done) in waiting {
                            let own: Vec<PopOutcome> = outcomes.by_ref().take(own).collect();
                            // Whoever waited may have gone.
                            let _ = done.send(Ok(own));
                        }
                    }
                    Ok((other, _)) => {
                        for (_, done) in waiting {
                            let _ = done.send(Err(Failure::error(format!("pops were answered with {other:?}"))));
                        }
                    }
                    Err(error) => {
                        for (_, done) in waiting {
                            let _ = done.send(Err(error.clone().into()));
                        }
                    }
                }
                drop(place);
            });
        }
    }
}
