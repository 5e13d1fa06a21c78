//! Holds proposals back while leadership moves, and tells when those before have met their fate.
//!
//! A proposal that Raft holds when its leader changes may be kept or lost, so its sender must be told that the outcome is
//! unknown. A planned change spares senders that: it closes the gate, waits until nothing is in flight, and only then
//! moves. What waited is proposed to Raft afterwards, which either takes it or names the new leader.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// Proposals that have passed and whose fate is not known.
    inside: usize,
}

/// See the module. Open at first.
#[derive(Debug, Default)]
pub(super) struct ProposalGate {
    state: Mutex<State>,
    opened: Notify,
    emptied: Notify,
}

impl ProposalGate {
    /// Waits while the gate is closed. The proposal counts as in flight until the pass is dropped.
    pub(super) async fn pass(self: &Arc<Self>) -> Pass {
        loop {
            let opened = self.opened.notified();
            {
                let mut state = self.state.lock();
                if !state.closed {
                    state.inside += 1;
                    return Pass(Arc::clone(self));
                }
            }
            opened.await;
        }
    }

    /// Closes the gate until the guard is dropped; `None` if somebody else holds it closed.
    pub(super) fn close(self: &Arc<Self>) -> Option<Closed> {
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        state.closed = true;
        Some(Closed(Arc::clone(self)))
    }
}

/// One proposal in flight.
#[derive(Debug)]
pub(super) struct Pass(Arc<ProposalGate>);

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.inside -= 1;
        if state.inside == 0 && state.closed {
            self.0.emptied.notify_one();
        }
    }
}

/// Keeps the gate closed.
#[derive(Debug)]
pub(super) struct Closed(Arc<ProposalGate>);

impl Closed {
    /// Waits until no proposal is in flight.
    pub(super) async fn emptied(&self) {
        while self.0.state.lock().inside > 0 {
            // One waiter at most, and its permit is kept if it comes between the look and the wait.
            self.0.emptied.notified().await;
        }
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.state.lock().closed = false;
        self.0.opened.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn closed_gate_waits_for_what_is_inside_and_holds_back_the_rest() {
        let gate = Arc::new(ProposalGate::default());
        let first = gate.pass().await;
        let second = gate.pass().await;
        let closed = gate.close().unwrap();
        assert!(gate.close().is_none(), "closed twice");
        let mut emptied = Box::pin(closed.emptied());
        let mut third = Box::pin(gate.pass());
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        assert!(emptied.as_mut().now_or_never().is_none());
        drop(second);
        assert!(emptied.as_mut().now_or_never().is_some());
        assert!(third.as_mut().now_or_never().is_none(), "still closed");
        drop(emptied);
        drop(closed);
        let third = third.as_mut().now_or_never().expect("open again");
        let closed = gate.close().unwrap();
        assert!(closed.emptied().now_or_never().is_none());
        drop(third);
        assert!(closed.emptied().now_or_never().is_some());
    }
}
