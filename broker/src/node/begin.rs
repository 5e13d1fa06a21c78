//! A node that waits, with empty directories, to be told that it may begin a new cluster.

use std::time::Duration;

use tokio::sync::watch;

use super::group::NodeGroup;
use crate::http::{AdminError, BeginGroup, BeginMember, BeginState, not_waiting};

/// Its files are made within this time.
const BEGIN_TIME_MAX: Duration = Duration::from_secs(30);

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// It does not wait.
    No,
    Waiting,
    Told,
    /// Every replica runs.
    Done,
    /// And why it did not begin.
    Failed(String),
}

/// Whether the node waits.
pub(super) struct Begin(watch::Sender<Step>);

impl Begin {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(Step::No))
    }

    /// Waits until it is told.
    pub(super) async fn wait(&self) {
        self.0.send_replace(Step::Waiting);
        let mut told = self.0.subscribe();
        // The sender is here, so this does not fail.
        let _ = told.wait_for(|step| *step != Step::Waiting).await;
    }

    pub(super) fn is_waiting(&self) -> bool {
        *self.0.borrow() == Step::Waiting
    }

    /// Says what has come of it, if the node was told.
    pub(super) fn ended(&self, why_not: Option<String>) {
        self.0.send_if_modified(|step| {
            let was_told = *step == Step::Told;
            if was_told {
                *step = why_not.map_or(Step::Done, Step::Failed);
            }
            was_told
        });
    }

    /// Tells the node to begin, and waits until it has. Once it was told, this waits only.
    pub(super) async fn tell(&self, node: &str) -> Result<(), AdminError> {
        self.0.send_if_modified(|step| {
            let waits = *step == Step::Waiting;
            if waits {
                *step = Step::Told;
            }
            waits
        });
        let mut ends = self.0.subscribe();
        let ended = ends.wait_for(|step| *step != Step::Told);
        match tokio::time::timeout(BEGIN_TIME_MAX, ended).await.map(|step| step.map(|step| step.clone())) {
            Ok(Ok(Step::Done)) => Ok(()),
            Ok(Ok(Step::Failed(reason))) => {
                Err(AdminError::Unavailable(format!("node {node} did not begin: {reason}")))
            }
            Ok(_) => Err(not_waiting(node)),
            Err(_) => Err(AdminError::Unknown(format!("node {node} has not begun within {BEGIN_TIME_MAX:?}"))),
        }
    }

    /// How far the node with these groups is.
    pub(super) fn state(&self, groups: &[std::sync::Arc<NodeGroup>]) -> BeginState {
        let step = self.0.borrow().clone();
        // A group that runs and has no members was never begun by anybody.
        let is_bare = |group: &std::sync::Arc<NodeGroup>| match group.running() {
            Some(running) => {
                let metrics = running.raft.metrics();
                metrics.members.is_empty() && metrics.last.is_none()
            }
            None => step == Step::Told,
        };
        match step {
            Step::Waiting => BeginState::Waiting,
            _ if groups.iter().all(is_bare) => BeginState::Begun,
            _ => BeginState::Data,
        }
    }
}

/// A group as the configuration of its node has it.
pub(super) fn configured(group: &NodeGroup) -> BeginGroup {
    let options = group.options();
    let members = options.members.iter().map(|member| BeginMember {
        id: member.id,
        node: member.node.clone(),
        raft_addr: member.raft_addr.clone(),
        client_addr: member.client_addr.to_string(),
    });
    BeginGroup { name: options.name.clone(), members: members.collect() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn a_node_begins_once_and_only_if_it_waits() {
        let begin = Arc::new(Begin::new());
        assert!(begin.tell("n1").await.unwrap_err().to_string().contains("does not wait"));
        let waiting = Arc::clone(&begin);
        let waits = tokio::spawn(async move { waiting.wait().await });
        let mut step = begin.0.subscribe();
        step.wait_for(|step| *step == Step::Waiting).await.unwrap();
        assert!(begin.is_waiting());
        let told = Arc::clone(&begin);
        let told = tokio::spawn(async move { told.tell("n1").await });
        waits.await.unwrap();
        begin.ended(None);
        assert_eq!(told.await.unwrap(), Ok(()));
        // Told again, it has.
        assert_eq!(begin.tell("n1").await, Ok(()));
        begin.ended(Some("too late".to_owned()));
        assert_eq!(begin.tell("n1").await, Ok(()));
    }
}
