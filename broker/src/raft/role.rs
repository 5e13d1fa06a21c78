//! What this replica is just now, as the rest of the broker sees it.

use std::time::Duration;

use raft_store::Member;
use tokio::time::Instant;

/// The role of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It leads.
    Leader {
        /// Since this term.
        term: u64,
        /// Whether it has applied everything of earlier terms and still hears a quorum. Only then are sends, offset
        /// reads and locks served.
        ready: bool,
    },
    /// It follows, or takes part in an election.
    Follower {
        /// The newest term it knows.
        term: u64,
        /// Who leads that term; `None` while nobody is known to.
        leader: Option<(u64, Member)>,
    },
}

/// How long there was no leader that answers, as a replica saw it. Whoever watches roles may miss short ones.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    without_since: Option<Instant>,
    /// The term that ended the last one.
    last: Option<(u64, Duration)>,
}

impl Gaps {
    pub(super) fn note(&mut self, role: &Role, now: Instant) {
        if !role.is_ready_leader() && role.leader().is_none() {
            self.without_since.get_or_insert(now);
        } else if let Some(since) = self.without_since.take() {
            self.last = Some((role.term(), now.duration_since(since)));
        }
    }

    pub(super) fn last(&self) -> Option<(u64, Duration)> {
        self.last
    }
}

impl Role {
    /// The newest term known.
    #[must_use]
    pub fn term(&self) -> u64 {
        match self {
            Self::Leader { term, .. } | Self::Follower { term, .. } => *term,
        }
    }

    /// Whether the gates are open.
    #[must_use]
    pub fn is_ready_leader(&self) -> bool {
        matches!(self, Self::Leader { ready: true, .. })
    }

    /// Whether it leads, ready or not.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        matches!(self, Self::Leader { .. })
    }

    /// Whom a follower forwards to.
    #[must_use]
    pub fn leader(&self) -> Option<(u64, &Member)> {
        match self {
            Self::Follower { leader: Some((id, member)), .. } => Some((*id, member)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_lasts_until_a_leader_answers() {
        let mut gaps = Gaps::default();
        let start = Instant::now();
        let mut note = |role: Role, at_ms: u64| {
            gaps.note(&role, start + Duration::from_millis(at_ms));
            gaps.last().map(|(term, gap)| (term, gap.as_millis()))
        };
        let follows = |term| Role::Follower { term, leader: Some((1, Member::default())) };
        assert_eq!(note(follows(1), 0), None);
        assert_eq!(note(Role::Follower { term: 2, leader: None }, 100), None);
        assert_eq!(note(Role::Leader { term: 2, ready: false }, 130), None);
        assert_eq!(note(Role::Leader { term: 2, ready: true }, 150), Some((2, 50)));
        assert_eq!(note(Role::Leader { term: 2, ready: true }, 160), Some((2, 50)));
        assert_eq!(note(Role::Leader { term: 2, ready: false }, 200), Some((2, 50)));
        assert_eq!(note(follows(3), 270), Some((3, 70)));
    }
}
