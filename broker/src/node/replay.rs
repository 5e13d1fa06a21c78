//! Says in the node's log how far applying a group's log again has come.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::store::ReplayProgress;

/// There is a line at most so often, and none for a replay that is quicker.
const INTERVAL: Duration = Duration::from_secs(2);

/// Says how far a replay is whenever it has moved, and when it is done: the last entries of a log may wait for a leader.
/// A group may be started more than once, so this has no end. `look` finds none before and after a replay.
pub(super) async fn announce(
    mut look: impl FnMut() -> Option<ReplayProgress>,
    mut say: impl FnMut(String),
) -> Infallible {
    let mut tick = interval_at(Instant::now() + INTERVAL, INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut said = None;
    loop {
        tick.tick().await;
        match look() {
            Some(progress) => {
                if said.replace(progress.done_bytes) != Some(progress.done_bytes) {
                    say(progress.to_string());
                }
            }
            None => {
                if said.take().is_some() {
                    say("log is applied: everything in it can be read".to_owned());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(done_bytes: u64) -> Option<ReplayProgress> {
        let (total_bytes, elapsed) = (100 << 20, Duration::from_secs(1));
        Some(ReplayProgress { rebuilds: true, done_bytes, total_bytes, messages: 7, elapsed })
    }

    /// The lines for what is seen look by look, each with the seconds since the start.
    async fn lines(looks: Vec<Option<ReplayProgress>>) -> Vec<String> {
        let (started, mut said) = (Instant::now(), Vec::new());
        let mut looks = looks.into_iter();
        let say = |line| said.push(format!("{} s: {line}", started.elapsed().as_secs()));
        let ended = tokio::time::timeout(Duration::from_secs(60), announce(|| looks.next().flatten(), say)).await;
        assert!(ended.is_err());
        said
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_replay_is_told_of_every_two_seconds() {
        let said = lines(vec![None, at(10 << 20), at(60 << 20), at(60 << 20), None, at(90 << 20)]).await;
        let what = "queues and index are built again from the log";
        let expected = [
            format!("4 s: {what}: 10 %, 7 messages/s, 10 MiB/s, 90 MiB left, about 9 s"),
            format!("6 s: {what}: 60 %, 7 messages/s, 60 MiB/s, 40 MiB left, about 1 s"),
            "10 s: log is applied: everything in it can be read".to_owned(),
            format!("12 s: {what}: 90 %, 7 messages/s, 90 MiB/s, 10 MiB left, about 1 s"),
            "14 s: log is applied: everything in it can be read".to_owned(),
        ];
        assert_eq!(said, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_quick_one_is_not_told_of() {
        assert_eq!(lines(vec![None, None]).await, Vec::<String>::new());
    }
}
