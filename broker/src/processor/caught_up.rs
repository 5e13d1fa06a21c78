//! Whether this replica has caught up with its leader.
//!
//! Any replica shows what it has applied, and all of that is committed. But one that has just started, or was cut off,
//! may have far to go: what it shows can have been hidden, changed or deleted since. So each time that it begins to follow
//! a leader it asks that leader how far the group is, and until it has applied as much it lets the leader answer. From
//! then on it is behind by no more than what is on its way.
//!
//! While nobody leads, a replica that has caught up before shows what it has.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use protocol::{RemotingCommand, RequestCode, ResponseCode};
use tokio::sync::watch;

use super::Group;
use super::answer::{Failure, Outcome, success};
use crate::forward::{Patience, Place, Repeat, Source};

/// Asks the leader up to which entry all is applied that was committed when it was asked. Only replicas may.
pub(super) const READ_INDEX: RequestCode = RequestCode(-11);

/// Nobody waits for it but the replica, which asks again.
pub(super) const READ_INDEX_PATIENCE: Patience =
    Patience { hold: Duration::from_secs(2), total: Duration::from_secs(5), repeat: Repeat::Harmless };

/// Pause before a leader is asked again that gave no answer.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The answer's entry.
const INDEX: &str = "index";

/// How often this replica began to follow a leader, and when it had last caught up with one.
#[derive(Debug, Default)]
pub(super) struct CaughtUp {
    followed: AtomicU64,
    /// The value of `followed` then; 0 if it never had.
    caught_up: watch::Sender<u64>,
}

impl CaughtUp {
    /// It begins to follow a leader.
    pub(super) fn follow_another(&self) {
        self.followed.fetch_add(1, Ordering::AcqRel);
    }

    /// It leads, and has all. When it loses leadership, nobody has had more until the next one leads.
    pub(super) fn lead(&self) {
        self.follow_another();
        self.reached(self.followed());
    }

    fn followed(&self) -> u64 {
        self.followed.load(Ordering::Acquire)
    }

    /// It has caught up with the leader that it began to follow when `followed` was this.
    fn reached(&self, followed: u64) {
        self.caught_up.send_modify(|caught_up| *caught_up = followed.max(*caught_up));
    }

    fn shows_all(&self, place: Place) -> bool {
        let caught_up = *self.caught_up.borrow();
        match place {
            Place::Here { .. } => true,
            Place::There { .. } => caught_up == self.followed(),
            Place::Nowhere => caught_up > 0,
        }
    }
}

impl Group {
    /// Resolves once this replica shows all that its leader showed when it began to follow it, or leads itself.
    pub async fn caught_up(&self) {
        let mut places = self.0.place.subscribe();
        let mut caught_up = self.0.caught_up.caught_up.subscribe();
        loop {
            places.mark_unchanged();
            caught_up.mark_unchanged();
            if self.shows_all() {
                return;
            }
            // The senders live as long as the group.
            tokio::select! {
                _ = places.changed() => {}
                _ = caught_up.changed() => {}
            }
        }
    }

    /// Whether what this replica shows is as new as what its leader shows, but for what is on its way.
    pub(super) fn shows_all(&self) -> bool {
        self.0.caught_up.shows_all(self.place())
    }

    /// Catches up with one leader after the other.
    pub(super) async fn catch_up(&self) {
        let mut places = self.0.place.subscribe();
        loop {
            let place = *places.borrow_and_update();
            let followed = self.0.caught_up.followed();
            let reaching = async {
                match place {
                    Place::There { .. } if !self.shows_all() => {
                        self.reach_leader().await;
                        self.0.caught_up.reached(followed);
                    }
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.0.stop.cancelled() => return,
                changed = places.changed() => if changed.is_err() { return },
                () = reaching => {}
            }
        }
    }

    /// Returns once all is applied here, and can be read, that whoever leads had applied after the call began.
    async fn reach_leader(&self) {
        let question = RemotingCommand::request(READ_INDEX);
        let origin = self.0.settings.client_addr;
        loop {
            let answer = Box::pin(self.at_leader(&question, origin, Source::Client, READ_INDEX_PATIENCE)).await;
            match answer {
                // An older version leads, which cannot be asked.
                Some(answer) if answer.response_code() == ResponseCode::REQUEST_CODE_NOT_SUPPORTED => return,
                Some(answer) if answer.is_success() => {
                    let index = answer.ext.get(INDEX).and_then(|index| index.parse().ok());
                    if let Some(index) = index
                        && self.0.store.wait_dispatched(index).await.is_ok()
                    {
                        return;
                    }
                }
                _ => {}
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Says, as the leader, how far the group is.
    pub(super) async fn say_read_index(&self, request: &RemotingCommand) -> Outcome {
        self.be_sure_to_lead().await?;
        let applied = self.0.state.applied_index();
        let applied = applied.ok_or_else(|| Failure::NotLeading("nothing is applied yet".to_owned()))?;
        let mut answer = success(request);
        answer.ext.push_display(INDEX, applied);
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_shows_all_once_it_has_caught_up_with_the_leader_it_follows() {
        let state = CaughtUp::default();
        let (here, there, nowhere) = (Place::Here { term: 1 }, Place::There { node_id: 2 }, Place::Nowhere);
        let shows = |state: &CaughtUp| [here, there, nowhere].map(|place| state.shows_all(place));
        state.follow_another();
        assert_eq!(shows(&state), [true, false, false], "it has just started");
        state.reached(state.followed());
        assert_eq!(shows(&state), [true, true, true]);
        let former = state.followed();
        state.follow_another();
        assert_eq!(shows(&state), [true, false, true], "without a leader, what it had is shown");
        state.reached(former);
        assert_eq!(shows(&state), [true, false, true], "that was the former leader");
        state.reached(state.followed());
        assert_eq!(shows(&state), [true, true, true]);
    }

    #[test]
    fn a_former_leader_shows_what_it_had_until_there_is_another() {
        let state = CaughtUp::default();
        state.lead();
        assert!(state.shows_all(Place::Nowhere));
        state.follow_another();
        assert!(!state.shows_all(Place::There { node_id: 2 }));
    }
}
