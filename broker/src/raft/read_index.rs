//! Reads that must be current: one round of the quorum serves everybody who waits for it.

use std::sync::Arc;
use std::time::Duration;

use openraft::Raft;
use openraft::raft::ReadPolicy;
use openraft::storage::RaftStateMachine;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::error::NotReady;
use super::type_config::{SnapshotData, TypeConfig};

/// Confirms that this replica leads and waits until it has applied everything committed by then.
pub(super) async fn confirm<SM>(raft: &Raft<TypeConfig, SM>, timeout: Duration) -> Result<(), NotReady>
where
    SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>,
{
    let linearizer = tokio::time::timeout(timeout, raft.get_read_linearizer(ReadPolicy::ReadIndex))
        .await
        .map_err(|_| NotReady::new("no quorum answered in time"))??;
    match linearizer.try_await_ready(raft, Some(timeout)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) => Err(NotReady::new("entries are not applied in time")),
        Err(fatal) => Err(NotReady::new(fatal.to_string())),
    }
}

#[derive(Default)]
struct Waiting {
    running: bool,
    next_round: Vec<oneshot::Sender<Result<(), NotReady>>>,
}

/// Shares rounds among callers. A caller never joins a round that began before it asked.
pub(super) struct ReadIndex<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> {
    raft: Raft<TypeConfig, SM>,
    timeout: Duration,
    waiting: Mutex<Waiting>,
}

impl<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> ReadIndex<SM> {
    pub(super) fn new(raft: Raft<TypeConfig, SM>, timeout: Duration) -> Self {
        Self { raft, timeout, waiting: Mutex::default() }
    }

    pub(super) async fn wait(self: &Arc<Self>) -> Result<(), NotReady> {
        let (answer, answered) = oneshot::channel();
        let start = {
            let mut waiting = self.waiting.lock();
            waiting.next_round.push(answer);
            !std::mem::replace(&mut waiting.running, true)
        };
        if start {
            // A round outlives the caller that started it, because others wait for it too; it is bounded by its time-out.
            let rounds = Arc::clone(self);
            tokio::spawn(async move { rounds.run().await });
        }
        answered.await.unwrap_or_else(|_| Err(NotReady::new("replica has stopped")))
    }

    async fn run(&self) {
        loop {
            let round = {
                let mut waiting = self.waiting.lock();
                if waiting.next_round.is_empty() {
                    waiting.running = false;
                    return;
                }
                std::mem::take(&mut waiting.next_round)
            };
            let result = confirm(&self.raft, self.timeout).await;
            for caller in round {
                let _ = caller.send(result.clone());
            }
        }
    }
}
