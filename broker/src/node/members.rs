//! What every replica does about the members of its group: knows them, changes them if it leads, and leaves when it is none.
//!
//! ```text
//!  order (HTTP) --> entry: a change begins --> leader: next step, again and again --> entry: it has ended
//!                                                |  lets nodes in that show their token (join_handler)
//!                                                |  makes them learners, waits until they hold the log
//!                                                `- one change of membership
//! ```
//!
//! Which step is missing follows from the order and the membership, both of which stand in the log. So it does not matter
//! which leader does the next, or whether the one before has died in the middle, be it of the change itself: a membership
//! that is still joint is brought to the same end.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use raft_store::{LogIndex, LogView, Member};

use super::group::{NodeGroup, Running};
use crate::peer::join::{JoinHandler, JoinRequest, Joined};
use crate::raft::{GroupMetrics, ProposeError};
use crate::state_machine::members::{Change, MemberChange, MemberStep};
use crate::state_machine::{ApplyReply, Command, CommandReply};

/// How often a replica looks at its members.
const TICK: Duration = Duration::from_millis(200);
/// A member that was not heard for longer counts as dead.
pub(super) const DEAD_AFTER: Duration = Duration::from_secs(3);
/// How long one step may take before it is looked at anew.
const STEP_TIME_MAX: Duration = Duration::from_secs(10);
/// How often a replica that hears nobody asks whether it is still a member.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// How far the new members of a change are, on the leader.
#[derive(Clone, Copy, Debug)]
pub(super) struct CatchUp {
    /// The change.
    pub(super) change: u64,
    /// Bytes of the log that the new members are to hold, together.
    pub(super) total: u64,
    /// Bytes that they lack.
    pub(super) left: u64,
    first_left: u64,
    since: Instant,
}

impl CatchUp {
    /// How fast they come closer, in bytes a second.
    pub(super) fn rate(&self) -> u64 {
        let millis = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        self.first_left.saturating_sub(self.left).saturating_mul(1_000) / millis
    }

    /// How long the rest takes at that rate.
    pub(super) fn time_left(&self) -> Option<Duration> {
        if self.left == 0 {
            return Some(Duration::ZERO);
        }
        let rate = self.rate();
        (rate > 0).then(|| Duration::from_millis(self.left.saturating_mul(1_000) / rate))
    }
}

/// Looks after the members of a group until the replica stops.
pub(super) async fn look_after(group: &NodeGroup, running: &Running) -> Infallible {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut asked = Instant::now();
    loop {
        tick.tick().await;
        let metrics = running.raft.metrics();
        note(group, &metrics).await;
        let role = running.raft.role().borrow().clone();
        if role.is_ready_leader() {
            match running.state.running_change() {
                Some(change) => {
                    let waits_for = advance(group, running, &metrics, &change).await;
                    group.set_change_waits(waits_for);
                }
                None => group.set_change_waits(None),
            }
        } else {
            group.set_change_waits(None);
            let is_member = metrics.members.is_empty() || metrics.members.contains_key(&metrics.node_id);
            let is_in = role.is_leader() || is_member && running.raft.hears_leader();
            if !is_in && asked.elapsed() >= ASK_INTERVAL {
                ask_whether_member(group, running, &metrics).await;
                asked = Instant::now();
            }
        }
    }
}

/// Notes who the members are, for starts to come. A new member that is still reading the log finds those of long ago in it,
/// and has been told better ones when it was let in.
async fn note(group: &NodeGroup, metrics: &GroupMetrics) {
    if !metrics.members.contains_key(&metrics.node_id) {
        return;
    }
    if let Err(error) = group.note_members(metrics.members.clone()).await {
        tracing::warn!(group = group.name(), %error, "members are not noted");
    }
}

/// A replica that was removed is told nothing any more. So one that hears nobody asks.
async fn ask_whether_member(group: &NodeGroup, running: &Running, metrics: &GroupMetrics) {
    let mut others: BTreeSet<u64> = metrics.members.keys().copied().collect();
    others.extend(group.known_members().members.into_keys());
    others.remove(&metrics.node_id);
    for id in others {
        running.hub().ask_whether_member(group.name(), id).await;
    }
}

/// Does what a change needs next. Returns what it waits for, in words.
async fn advance(group: &NodeGroup, running: &Running, metrics: &GroupMetrics, change: &Change) -> Option<String> {
    let step = step(group, running, metrics, change);
    match tokio::time::timeout(STEP_TIME_MAX, step).await {
        Ok(Ok(waits_for)) => waits_for,
        Ok(Err(reason)) => {
            tracing::debug!(group = group.name(), change = change.id, reason, "change of members: tried again");
            Some(reason)
        }
        Err(_) => Some("a step that takes long".to_owned()),
    }
}

async fn step(
    group: &NodeGroup,
    running: &Running,
    metrics: &GroupMetrics,
    change: &Change,
) -> Result<Option<String>, String> {
    if change.turned_back.is_some() {
        return turn_back(group, running, metrics, change).await;
    }
    let joiners = change.change.joiners();
    let mut missing = Vec::new();
    for joiner in joiners {
        let Some(admitted) = joiner.admitted else {
            missing.push(joiner.node.clone());
            continue;
        };
        if !metrics.members.contains_key(&admitted.node_id) {
            let member = Member {
                node: joiner.node.clone(),
                raft_addr: joiner.raft_addr.clone(),
                client_addr: joiner.client_addr.clone(),
            };
            // A group of one is one no more, whatever becomes of this: its next start must not think so.
            let mut known = metrics.members.clone();
            known.insert(admitted.node_id, member.clone());
            group.note_members(known).await.map_err(|error| error.to_string())?;
            running.raft.add_learner(admitted.node_id, member).await.map_err(|error| error.to_string())?;
            tracing::info!(group = group.name(), node = joiner.node, node_id = admitted.node_id, "learner added");
            return Ok(Some("the new member to be sent the log".to_owned()));
        }
    }
    if !missing.is_empty() {
        let age_ms = running.group.stamp_ms().saturating_sub(change.started_ms);
        if age_ms > crate::state_machine::members::JOIN_TOKEN_TIME_MS {
            let reason = format!("node {} has not come before its join token expired", missing.join(", "));
            propose(running, MemberStep::TurnBack { change: change.id, reason }).await?;
            return Ok(Some("to be turned back".to_owned()));
        }
        return Ok(Some(format!("node {} to come with its join token", missing.join(", "))));
    }
    let joined: BTreeSet<u64> =
        joiners.iter().filter_map(|joiner| joiner.admitted).map(|admitted| admitted.node_id).collect();
    let leaving: BTreeSet<u64> = match change.change.leaver() {
        Some(node) => {
            let ids = metrics.members.iter().filter(|(id, member)| member.node == node && !joined.contains(id));
            ids.map(|(id, _)| *id).collect()
        }
        None => BTreeSet::new(),
    };
    let mut target = metrics.voters.last().cloned().unwrap_or_default();
    target.extend(&joined);
    target.retain(|id| !leaving.contains(id));
    let others: BTreeSet<u64> = metrics.voters.iter().flatten().copied().filter(|id| !leaving.contains(id)).collect();
    if leaving.contains(&metrics.node_id) && !others.is_empty() {
        running.group.flush_offsets().await;
        let to = others.into_iter().find(|id| is_close(metrics, *id));
        return match running.raft.transfer_leader(to).await {
            Ok(to) => Ok(Some(format!("leader {to} to go on"))),
            Err(error) => Err(format!("leadership to be handed over: {error}")),
        };
    }
    let lacking = match metrics.voters.as_slice() {
        [voters] if *voters == target => None,
        _ => lacking(group, running, metrics, change.id, &joined).await,
    };
    match next_step(&metrics.voters, &target, &leaving, lacking) {
        NextStep::Wait(lacking) => return Ok(Some(lacking)),
        NextStep::Vote => {
            let changed = running.raft.change_voters_if(metrics.membership_at, target.clone()).await;
            changed.map_err(|error| error.to_string())?;
            tracing::info!(group = group.name(), change = change.id, voters = ?target, "members changed");
            return Ok(Some("the last step".to_owned()));
        }
        NextStep::Leave => {
            let removed = running.raft.remove_learners_if(metrics.membership_at, leaving).await;
            removed.map_err(|error| error.to_string())?;
            return Ok(Some("the last step".to_owned()));
        }
        NextStep::End => {}
    }
    end(running, change, true).await?;
    tracing::info!(group = group.name(), change = change.id, "change of members is done");
    Ok(None)
}

/// What a change needs whose nodes have all come.
#[derive(Debug, PartialEq, Eq)]
enum NextStep {
    /// Nothing yet: new members lack this.
    Wait(String),
    /// The voters change.
    Vote,
    /// Who left is taken out of the group.
    Leave,
    /// All is done.
    End,
}

/// `lacking`: what the new members lack before they may vote.
fn next_step(
    voters: &[BTreeSet<u64>],
    target: &BTreeSet<u64>,
    leaving: &BTreeSet<u64>,
    lacking: Option<String>,
) -> NextStep {
    match (voters, lacking) {
        // New members vote. One that dies now is a dead member, and must not be in the way of the next change.
        ([voters], _) if voters == target && leaving.is_empty() => NextStep::End,
        ([voters], _) if voters == target => NextStep::Leave,
        (_, Some(lacking)) => NextStep::Wait(lacking),
        (_, None) => NextStep::Vote,
    }
}

/// Undoes what was done of a change, and ends it.
async fn turn_back(
    group: &NodeGroup,
    running: &Running,
    metrics: &GroupMetrics,
    change: &Change,
) -> Result<Option<String>, String> {
    if let [before, _, ..] = metrics.voters.as_slice() {
        let turned = running.raft.change_voters_if(metrics.membership_at, before.clone()).await;
        turned.map_err(|error| error.to_string())?;
        return Ok(Some("the members of before to be alone again".to_owned()));
    }
    let joined = change.change.joiners().iter().filter_map(|joiner| joiner.admitted).map(|admitted| admitted.node_id);
    let learners: BTreeSet<u64> = joined.filter(|id| metrics.members.contains_key(id)).collect();
    if !learners.is_empty() {
        let removed = running.raft.remove_learners_if(metrics.membership_at, learners).await;
        removed.map_err(|error| error.to_string())?;
        return Ok(Some("the new members to be gone".to_owned()));
    }
    end(running, change, false).await?;
    tracing::info!(
        group = group.name(),
        change = change.id,
        reason = change.turned_back,
        "change of members turned back"
    );
    Ok(None)
}

/// Says that a change has ended, and which identities went with it.
async fn end(running: &Running, change: &Change, done: bool) -> Result<(), String> {
    let admitted = change.change.joiners().iter().filter_map(|joiner| Some((joiner.admitted?.node_id, &joiner.node)));
    let admitted: Vec<(u64, String)> = admitted.map(|(id, node)| (id, node.clone())).collect();
    let removed = match (&change.change, done) {
        (_, false) => admitted,
        (MemberChange::Add { .. }, true) => Vec::new(),
        (MemberChange::Remove { node } | MemberChange::Replace { node, .. }, true) => {
            let members = running.raft.metrics().members;
            // All that the node ever had: who does not know of a later one must not come back either.
            let identities = running.state.identities().into_iter();
            let others = identities.filter(|identity| identity.node_name == *node).map(|identity| identity.node_id);
            let ids: BTreeSet<u64> = change.leaving.iter().copied().chain(others).collect();
            ids.into_iter().filter(|id| !members.contains_key(id)).map(|id| (id, node.clone())).collect()
        }
    };
    propose(running, MemberStep::End { change: change.id, done, removed }).await.map(drop)
}

/// Whether the new members hold what the leader holds now. Notes how far they are.
async fn has_caught_up(group: &NodeGroup, running: &Running, change: u64, joined: &BTreeSet<u64>) -> bool {
    let metrics = running.raft.metrics();
    let last = metrics.last.unwrap_or(0);
    let log = running.log.clone();
    let matched: Vec<Option<u64>> = joined.iter().map(|id| metrics.matched.get(id).copied().flatten()).collect();
    let measured = tokio::task::spawn_blocking(move || measure(&log, &matched)).await;
    if let Ok((total, left)) = measured {
        group.note_catch_up(|before| match before {
            Some(before) if before.change == change => CatchUp { total, left, ..before },
            _ => CatchUp { change, total, left, first_left: left, since: Instant::now() },
        });
    }
    for id in joined {
        if running.raft.wait_for_member(*id, last, TICK).await.is_err() {
            return false;
        }
    }
    true
}

/// What new members lack before they may vote: the log, or that they answer.
async fn lacking(
    group: &NodeGroup,
    running: &Running,
    metrics: &GroupMetrics,
    change: u64,
    joined: &BTreeSet<u64>,
) -> Option<String> {
    let has_caught_up = has_caught_up(group, running, change, joined).await;
    let heard = running.raft.others(DEAD_AFTER).into_iter().filter(|other| other.healthy);
    let heard: BTreeSet<u64> = heard.map(|other| other.node_id).collect();
    let silent: Vec<&str> =
        joined.difference(&heard).filter_map(|id| Some(metrics.members.get(id)?.node.as_str())).collect();
    match (silent.as_slice(), has_caught_up) {
        ([], true) => None,
        ([], false) => Some("the new member to hold the log".to_owned()),
        (silent, _) => Some(format!(
            "node {}, which was let in and does not answer now; if it is gone for good, turn the operation back",
            silent.join(", ")
        )),
    }
}

/// Bytes of the log for so many members, and how many of them they lack.
fn measure(log: &LogView, matched: &[Option<u64>]) -> (u64, u64) {
    let end = log.watermarks().end.get();
    let start = log.extent().map_or(0, |extent| extent.start.get());
    let lacks = matched.iter().map(|matched| {
        let next = matched.map_or(0, |index| index + 1);
        let at = match log.start_position_of(LogIndex::new(next)) {
            Ok(Some(at)) => at.get(),
            // Behind the end, or what is there has been dropped and comes as a snapshot.
            Ok(None) if matched.is_some() => end,
            Ok(None) | Err(_) => start,
        };
        end.saturating_sub(at)
    });
    (end.saturating_sub(start) * matched.len() as u64, lacks.sum())
}

fn is_close(metrics: &GroupMetrics, id: u64) -> bool {
    let matched = metrics.matched.get(&id).copied().flatten();
    id != metrics.node_id && matched >= metrics.committed
}

/// Tells every replica a step of a change. Returns what the state machine answers.
pub(super) async fn propose(running: &Running, step: MemberStep) -> Result<(CommandReply, u64), String> {
    let command = Command::ChangeMembers { step, stamped_ms: running.group.stamp_ms() };
    match running.raft.propose_command(&command).await {
        Ok((ApplyReply::Command { reply: CommandReply::Refused(refused), .. }, _)) => Err(refused.to_string()),
        Ok((ApplyReply::Command { reply, .. }, id)) => Ok((reply, id.index.get())),
        Ok((other, _)) => Err(format!("{other:?}")),
        Err(ProposeError::NotProposed { reason, .. }) => Err(reason),
        Err(error) => Err(error.to_string()),
    }
}

/// Lets nodes in whose tokens are right, as the leader.
pub(super) struct Doorkeeper {
    pub(super) running: Arc<Running>,
    pub(super) generation: u64,
}

impl JoinHandler for Doorkeeper {
    fn join(self: Arc<Self>, node: String, request: JoinRequest) -> BoxFuture<'static, Result<Joined, String>> {
        async move {
            let running = &self.running;
            let role = running.raft.role().borrow().clone();
            if !role.is_ready_leader() {
                let leader = role.leader().map(|(_, member)| member.node.clone());
                return Ok(Joined::NotLeader { node: leader.unwrap_or_default() });
            }
            let JoinRequest { token, store_uuid, raft_addr, client_addr } = request;
            let (addrs, token_hash) = ((raft_addr, client_addr), token.hash());
            let now_ms = running.group.stamp_ms();
            // Whoever has no token writes nothing into the log.
            running.state.may_admit(&node, &addrs, store_uuid, token_hash, now_ms)?;
            let (reply, _) = propose(running, MemberStep::Admit { node, addrs, store_uuid, token_hash }).await?;
            let CommandReply::Identity { node_id } = reply else { return Err(format!("{reply:?} is no identity")) };
            let members = running.raft.metrics().members.into_iter().collect();
            Ok(Joined::Admitted { node_id, generation: self.generation, members })
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_votes_and_dies_is_not_in_the_way_of_the_next_change() {
        let set = |ids: &[u64]| ids.iter().copied().collect::<BTreeSet<u64>>();
        let next = |voters: &[&[u64]], leaving: &[u64], lacking: Option<&str>| {
            let voters: Vec<_> = voters.iter().map(|ids| set(ids)).collect();
            next_step(&voters, &set(&[1, 2, 4]), &set(leaving), lacking.map(str::to_owned))
        };
        let silent = Some("node n4");
        assert_eq!(next(&[&[1, 2, 3]], &[3], silent), NextStep::Wait("node n4".to_owned()));
        assert_eq!(next(&[&[1, 2, 3]], &[3], None), NextStep::Vote);
        // In the middle it can still be turned back.
        assert_eq!(next(&[&[1, 2, 3], &[1, 2, 4]], &[3], silent), NextStep::Wait("node n4".to_owned()));
        assert_eq!(next(&[&[1, 2, 3], &[1, 2, 4]], &[3], None), NextStep::Vote);
        for lacking in [None, silent] {
            assert_eq!(next(&[&[1, 2, 4]], &[3], lacking), NextStep::Leave);
            assert_eq!(next(&[&[1, 2, 4]], &[], lacking), NextStep::End);
        }
    }
}
