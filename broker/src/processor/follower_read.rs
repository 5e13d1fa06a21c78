//! Which replica a group should pull from next: the hint in each answer to a pull.
//!
//! The leader, id 0, unless an operator wants otherwise. `brokerId` of a subscription group names a replica that its
//! members read from. `whichBrokerWhenConsumeSlowly` names one for as long as what they read next has left the memory;
//! every group has that, so it counts only while `slaveReadEnable` is set. Leadership moves, so the replica named may be
//! the leader: then the next one in the order of ids is meant, as clients read a route that lacks an id.
//!
//! A follower answers from what it has applied, so it shows committed messages only, and asks the leader about all else.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Group;
use crate::forward::Place;
use crate::state_machine::GroupConfig;

/// A follower that was silent for so long is not named.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// The replicas that an operator has named for a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadFrom {
    always: u64,
    when_slow: u64,
}

impl ReadFrom {
    /// For the members of a group, which may not exist yet.
    pub(super) fn of(group: Option<&GroupConfig>) -> Self {
        let id = |id: i64| u64::try_from(id).unwrap_or(0);
        group.map_or(Self { always: 0, when_slow: 0 }, |group| Self {
            always: id(group.broker_id),
            when_slow: id(group.which_broker_when_consume_slowly),
        })
    }
}

/// The replica that is meant by `wanted` among those that may be read from; none means the leader.
fn choose(wanted: u64, followers: &BTreeSet<u64>) -> Option<u64> {
    if wanted == 0 {
        return None;
    }
    followers.range(wanted..).next().or_else(|| followers.first()).copied()
}

impl Group {
    /// The id, as routes have it, of the replica to pull from next. `is_slow` says whether what is read next is no longer
    /// in memory.
    pub(super) fn suggested_replica(&self, from: ReadFrom, is_slow: impl FnOnce() -> bool) -> i64 {
        let by_lag = from.when_slow != 0 && self.live().follower_reads && is_slow();
        let wanted = if by_lag { from.when_slow } else { from.always };
        if wanted == 0 {
            return 0;
        }
        let metrics = self.0.raft.metrics();
        let leads = matches!(self.place(), Place::Here { .. });
        let mut followers: BTreeSet<u64> = metrics.voters.iter().flatten().copied().collect();
        followers.retain(|id| Some(*id) != metrics.leader && !metrics.catching_up.contains(id));
        if leads {
            let others = self.0.raft.others(SILENCE_MAX);
            followers.retain(|id| others.iter().any(|other| other.node_id == *id && other.healthy));
        }
        // A follower knows nothing of the others: whoever should not read here is sent to the leader.
        let chosen = choose(wanted, &followers).filter(|id| leads || *id == self.0.settings.node_id);
        chosen.and_then(|id| i64::try_from(id).ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_follower_is_meant_or_the_next_one() {
        let followers = BTreeSet::from([1, 3]);
        let cases = [(0, None), (1, Some(1)), (2, Some(3)), (3, Some(3)), (4, Some(1)), (99, Some(1))];
        for (wanted, expected) in cases {
            assert_eq!(choose(wanted, &followers), expected, "{wanted}");
        }
        assert_eq!(choose(1, &BTreeSet::new()), None, "alone, the leader serves everything");
    }
}
