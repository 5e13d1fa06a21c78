//! What this replica is just now, as the rest of the broker sees it.

use raft_store::Member;

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
