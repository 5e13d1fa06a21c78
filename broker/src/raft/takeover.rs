//! A leader whose process is gone is replaced at once, not after a timer.
//!
//! Proof is local: the connection to the leader's process ended and its port refuses, or a new process answers there.
//! Voters tell each other; once a majority of them has proof for the same leader, each calls the same successor on its
//! own Raft: the longest log, then the preferred replica, then the lowest id. On the successor this starts an election
//! that voters grant in spite of the lease; on the others it lifts the lease. The vote rule decides as ever, so a wrong
//! proof costs an election and never a committed entry. Without a majority the timers of Raft do their work.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use openraft::Raft;
use openraft::async_runtime::WatchReceiver;
use openraft::metrics::RaftMetrics;
use openraft::raft::TransferLeaderRequest;
use openraft::storage::RaftStateMachine;
use parking_lot::Mutex;

use super::type_config::{SnapshotData, TypeConfig};
use super::wire::{self, DeathNotice};
use crate::peer::frame::Kind;
use crate::peer::handshake::Class;
use crate::peer::{Group, Hub, LogMark, VoteMark};

/// How long a voter waits for the notice of another.
const NOTICE_TIMEOUT: Duration = Duration::from_millis(500);
/// With a majority agreed and voters still silent, a better successor may be among them: wait so long.
const GATHER_TIMEOUT: Duration = Duration::from_millis(10);

/// What this replica knows about its leader's death.
pub(super) struct Takeover<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> {
    pub(super) raft: Raft<TypeConfig, SM>,
    pub(super) hub: Arc<Hub>,
    pub(super) group: Arc<Group>,
    pub(super) preferred: Option<u64>,
    pub(super) state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// The leader, by its vote, whose process this replica has proof is gone.
    proof: Option<VoteMark>,
    /// Others with proof for one leader, and their last log ids.
    heard: Option<(VoteMark, BTreeMap<u64, Option<LogMark>>)>,
    /// The leader a successor has been called for.
    decided: Option<VoteMark>,
}

impl<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> Takeover<SM> {
    /// The process on `node` is proved gone.
    pub(super) fn peer_gone(self: &Arc<Self>, node: &str) {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let me = self.group.identity.node_id;
        let leader = metrics.vote.leader_id.voted_for;
        if !metrics.vote.committed || leader == me {
            return;
        }
        if metrics.membership_config.membership().get_node(&leader).is_none_or(|member| member.node != node) {
            return;
        }
        let vote = wire::vote_to_mark(&metrics.vote);
        {
            let mut state = self.state.lock();
            if state.proof == Some(vote) {
                return;
            }
            state.proof = Some(vote);
        }
        tracing::info!(group = self.group.identity.group, leader, term = vote.term, "process of the leader is gone");
        let takeover = Arc::clone(self);
        self.hub.spawn(async move { takeover.announce(vote).await });
    }

    /// A connection to `node` stands again: replication to it need not wait for its next attempt.
    pub(super) fn peer_back(self: &Arc<Self>, node: &str) {
        let metrics = self.raft.metrics().borrow_watched().clone();
        if !metrics.state.is_leader() {
            return;
        }
        let ids: Vec<u64> = metrics
            .membership_config
            .nodes()
            .filter(|(id, member)| member.node == node && **id != metrics.id)
            .map(|(id, _)| *id)
            .collect();
        let raft = self.raft.clone();
        self.hub.spawn(async move {
            if let Err(error) = raft.trigger().reset_backoff(ids).await {
                tracing::debug!(%error, "cannot reset the pauses of replication");
            }
        });
    }

    /// Another voter has told what it knows; returns what this replica knows.
    pub(super) fn noticed(self: &Arc<Self>, from: u64, notice: DeathNotice) -> DeathNotice {
        self.hear(from, notice);
        let gone = self.state.lock().proof == Some(notice.leader);
        if gone {
            self.evaluate();
        } else if let Some(address) = self.group.address(notice.leader.node_id) {
            // Nothing is dialled while a connection to it stands: a live connection is no proof of death.
            self.hub.probe(&address.node);
        }
        DeathNotice { leader: notice.leader, gone, last_log: self.last_log() }
    }

    fn last_log(&self) -> Option<LogMark> {
        self.raft.data_metrics().borrow_watched().last_log.as_ref().map(wire::log_to_mark)
    }

    fn hear(&self, from: u64, notice: DeathNotice) {
        if !notice.gone {
            return;
        }
        let mut state = self.state.lock();
        match &mut state.heard {
            Some((leader, voters)) if *leader == notice.leader => {
                voters.insert(from, notice.last_log);
            }
            Some((leader, _)) if leader.term > notice.leader.term => {}
            heard => *heard = Some((notice.leader, BTreeMap::from([(from, notice.last_log)]))),
        }
    }

    /// Tells the other voters and takes in what they answer.
    async fn announce(self: Arc<Self>, vote: VoteMark) {
        self.evaluate();
        let notice = DeathNotice { leader: vote, gone: true, last_log: self.last_log() };
        let mut fields = bytes::BytesMut::with_capacity(64);
        wire::put_death_notice(&mut fields, &notice);
        let me = self.group.identity.node_id;
        let voters: Vec<u64> = self.raft.metrics().borrow_watched().membership_config.voter_ids().collect();
        let mut answers: FuturesUnordered<_> = voters
            .into_iter()
            .filter(|voter| *voter != me && *voter != vote.node_id)
            .filter_map(|voter| {
                let link = self.hub.link(&self.group.identity.group, voter, Class::Rpc).ok()?;
                let fields = &fields;
                Some(async move { (voter, link.ask(Kind::DeathNotice, fields, Vec::new(), NOTICE_TIMEOUT).await) })
            })
            .collect();
        while let Some((voter, answer)) = answers.next().await {
            match answer.map(|frame| wire::death_notice(&frame)) {
                Ok(Ok(theirs)) if theirs.leader == vote => {
                    self.hear(voter, theirs);
                    self.evaluate();
                }
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::debug!(voter, %error, "answer to a death notice is not understood"),
                Err(error) => tracing::debug!(voter, %error, "no answer to a death notice"),
            }
        }
    }

    /// Calls the successor if enough voters agree.
    fn evaluate(self: &Arc<Self>) {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let last_log = self.last_log();
        let verdict = {
            let state = self.state.lock();
            let vote = wire::vote_to_mark(&metrics.vote);
            if state.proof != Some(vote) || state.decided == Some(vote) {
                return;
            }
            verdict(&metrics, last_log, &state, self.preferred)
        };
        match verdict {
            Verdict::Wait => {}
            Verdict::Gather => {
                let takeover = Arc::clone(self);
                self.hub.spawn(async move {
                    tokio::time::sleep(GATHER_TIMEOUT).await;
                    takeover.decide();
                });
            }
            Verdict::Decide(_) => self.decide(),
        }
    }

    fn decide(self: &Arc<Self>) {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let last_log = self.last_log();
        let vote = wire::vote_to_mark(&metrics.vote);
        let successor = {
            let mut state = self.state.lock();
            if state.proof != Some(vote) || state.decided == Some(vote) {
                return;
            }
            match verdict(&metrics, last_log, &state, self.preferred) {
                Verdict::Wait => return,
                Verdict::Gather | Verdict::Decide(_) => {}
            }
            state.decided = Some(vote);
            let agreeing = agreeing(&metrics, last_log, &state);
            match successor(&agreeing, self.preferred) {
                Some(successor) => successor,
                None => return,
            }
        };
        let group = self.group.identity.group.clone();
        tracing::info!(group, term = vote.term, successor, "a majority saw the leader gone");
        let raft = self.raft.clone();
        self.hub.spawn(async move {
            let request = TransferLeaderRequest::new(metrics.vote, successor, None);
            match raft.handle_transfer_leader(request).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::info!(group, %error, "the successor cannot stand for election"),
                Err(error) => tracing::warn!(group, %error, "cannot call a successor"),
            }
        });
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// No majority.
    Wait,
    /// A majority, but others may still agree.
    Gather,
    /// Everybody who can agree has, or enough.
    Decide(u64),
}

/// The voters with proof, this replica first of all, and their last log ids.
fn agreeing(
    metrics: &RaftMetrics<TypeConfig>,
    last_log: Option<LogMark>,
    state: &State,
) -> BTreeMap<u64, Option<LogMark>> {
    let mut agreeing = match &state.heard {
        Some((leader, voters)) if Some(*leader) == state.proof => voters.clone(),
        _ => BTreeMap::new(),
    };
    agreeing.insert(metrics.id, last_log);
    agreeing.retain(|voter, _| metrics.membership_config.voter_ids().any(|id| id == *voter));
    agreeing
}

fn verdict(
    metrics: &RaftMetrics<TypeConfig>,
    last_log: Option<LogMark>,
    state: &State,
    preferred: Option<u64>,
) -> Verdict {
    let agreeing = agreeing(metrics, last_log, state);
    let configs = metrics.membership_config.membership().get_joint_config();
    let majority = !configs.is_empty()
        && configs.iter().all(|config| {
            let count = config.iter().filter(|voter| agreeing.contains_key(voter)).count();
            count > config.len() / 2
        });
    if !majority {
        return Verdict::Wait;
    }
    let leader = metrics.vote.leader_id.voted_for;
    let everybody = metrics.membership_config.voter_ids().all(|voter| voter == leader || agreeing.contains_key(&voter));
    match successor(&agreeing, preferred) {
        Some(successor) if everybody => Verdict::Decide(successor),
        _ => Verdict::Gather,
    }
}

/// The same on every voter that knows the same: longest log, then preferred, then lowest id.
fn successor(agreeing: &BTreeMap<u64, Option<LogMark>>, preferred: Option<u64>) -> Option<u64> {
    agreeing.iter().max_by_key(|(id, last_log)| (**last_log, Some(**id) == preferred, Reverse(**id))).map(|(id, _)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(term: u64, index: u64) -> Option<LogMark> {
        Some(LogMark { term, index })
    }

    #[test]
    fn successor_has_the_longest_log_then_is_preferred_then_has_the_lowest_id() {
        let cases = [
            (vec![(2, mark(1, 9)), (3, mark(1, 10))], Some(2), Some(3)),
            (vec![(2, mark(2, 1)), (3, mark(1, 10))], None, Some(2)),
            (vec![(2, mark(1, 9)), (3, mark(1, 9))], Some(3), Some(3)),
            (vec![(2, mark(1, 9)), (3, mark(1, 9))], Some(1), Some(2)),
            (vec![(2, None), (3, mark(1, 0))], Some(2), Some(3)),
            (vec![], None, None),
        ];
        for (agreeing, preferred, expected) in cases {
            let agreeing = agreeing.into_iter().collect();
            assert_eq!(successor(&agreeing, preferred), expected, "{agreeing:?}");
        }
    }
}
