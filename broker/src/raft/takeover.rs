//! A leader whose process is gone is replaced at once, not after a timer.
//!
//! Proof is local: the connection to the leader's process ended and its port refuses, or a new process answers there.
//! Voters tell each other, each with its last log id once everything that the dead leader had sent is taken in. Once a
//! majority of them has proof for the same leader, each calls the same successor on its own Raft: the longest log, then
//! the preferred replica, then the lowest id. On the successor this starts an election
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
use tokio::sync::watch;

use super::fitness::{Fitness, Unfit};
use super::type_config::{SnapshotData, TypeConfig};
use super::voter_on;
use super::wire::{self, DeathNotice};
use crate::peer::frame::Kind;
use crate::peer::handshake::Class;
use crate::peer::{Group, Hub, LogMark, VoteMark};

/// How long a voter waits for the notice of another.
const NOTICE_TIMEOUT: Duration = Duration::from_millis(500);
/// With a majority agreed and voters still silent, a better successor may be among them: wait so long.
const GATHER_TIMEOUT: Duration = Duration::from_millis(10);
/// How long what the dead leader has sent may take to be read.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(20);

/// What this replica knows about its leader's death.
pub(super) struct Takeover<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> {
    pub(super) raft: Raft<TypeConfig, SM>,
    pub(super) hub: Arc<Hub>,
    pub(super) group: Arc<Group>,
    pub(super) preferred: Option<String>,
    /// A replica whose log is damaged tells no log, so that another one is chosen.
    pub(super) fitness: Arc<Fitness>,
    /// Append streams that are still being read.
    pub(super) streams: watch::Sender<usize>,
    pub(super) state: Mutex<State>,
}

/// Counts an append stream while it is being read.
pub(super) struct OpenStream(watch::Sender<usize>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// The leader, by its vote, whose process this replica has proof is gone.
    proof: Option<VoteMark>,
    /// The same, with the last log id this replica tells about itself. It is told to all alike and never changed, so that
    /// all decide alike.
    told: Option<(VoteMark, Option<LogMark>)>,
    /// Others with proof for one leader, and their last log ids.
    heard: Option<(VoteMark, BTreeMap<u64, Option<LogMark>>)>,
    /// The leader a successor has been called for.
    decided: Option<VoteMark>,
}

impl<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> Takeover<SM> {
    fn preferred(&self) -> Option<u64> {
        voter_on(&self.raft.metrics().borrow_watched(), self.preferred.as_deref())
    }

    /// An append stream begins to be read.
    pub(super) fn stream_opened(&self) -> OpenStream {
        self.streams.send_modify(|open| *open += 1);
        OpenStream(self.streams.clone())
    }

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
        let (proof, told) = {
            let state = self.state.lock();
            (state.proof, state.told)
        };
        if proof != Some(notice.leader)
            && let Some(address) = self.group.address(notice.leader.node_id)
        {
            // Nothing is dialled while a connection to it stands: a live connection is no proof of death.
            self.hub.probe(&address.node);
        }
        match told {
            Some((leader, last_log)) if leader == notice.leader => {
                self.evaluate();
                DeathNotice { leader, gone: true, last_log }
            }
            _ => DeathNotice { leader: notice.leader, gone: false, last_log: None },
        }
    }

    /// The last log id once everything that has arrived is in the log.
    async fn settled_last_log(&self) -> Option<LogMark> {
        let mut streams = self.streams.subscribe();
        if tokio::time::timeout(DRAIN_TIMEOUT, streams.wait_for(|open| *open == 0)).await.is_err() {
            tracing::debug!(group = self.group.identity.group, "an append stream is still being read");
        }
        // Raft answers this after the appends that were handed to it before.
        let last = self.raft.with_raft_state(|state| state.log_ids.last().copied()).await;
        last.unwrap_or(None).as_ref().map(wire::log_to_mark)
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
        let last_log = self.settled_last_log().await.filter(|_| !self.fitness.has(Unfit::Damaged));
        {
            let mut state = self.state.lock();
            if state.proof != Some(vote) {
                return;
            }
            state.told = Some((vote, last_log));
        }
        self.evaluate();
        let notice = DeathNotice { leader: vote, gone: true, last_log };
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
        let verdict = {
            let state = self.state.lock();
            let vote = wire::vote_to_mark(&metrics.vote);
            if state.proof != Some(vote) || state.decided == Some(vote) {
                return;
            }
            verdict(&metrics, &state, self.preferred())
        };
        match verdict {
            Verdict::Wait => {}
            Verdict::Gather(_) => {
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
        let vote = wire::vote_to_mark(&metrics.vote);
        let successor = {
            let mut state = self.state.lock();
            if state.proof != Some(vote) || state.decided == Some(vote) {
                return;
            }
            let (Verdict::Gather(successor) | Verdict::Decide(successor)) = verdict(&metrics, &state, self.preferred())
            else {
                return;
            };
            state.decided = Some(vote);
            successor
        };
        let group = self.group.identity.group.clone();
        if successor == metrics.id && self.fitness.has(Unfit::Damaged) {
            return tracing::warn!(group, "called to lead with a damaged log: somebody else must");
        }
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
    /// A majority, but a better successor may still be heard of.
    Gather(u64),
    /// Everybody who can agree has.
    Decide(u64),
}

/// The voters with proof, and the last log ids they told.
fn agreeing(metrics: &RaftMetrics<TypeConfig>, state: &State) -> BTreeMap<u64, Option<LogMark>> {
    let mut agreeing = match &state.heard {
        Some((leader, voters)) if Some(*leader) == state.proof => voters.clone(),
        _ => BTreeMap::new(),
    };
    if let Some((leader, last_log)) = state.told
        && Some(leader) == state.proof
    {
        agreeing.insert(metrics.id, last_log);
    }
    agreeing.retain(|voter, _| metrics.membership_config.voter_ids().any(|id| id == *voter));
    agreeing
}

fn verdict(metrics: &RaftMetrics<TypeConfig>, state: &State, preferred: Option<u64>) -> Verdict {
    let agreeing = agreeing(metrics, state);
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
        Some(successor) => Verdict::Gather(successor),
        None => Verdict::Wait,
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
