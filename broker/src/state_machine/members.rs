//! Changes of a group's members that an operator has ordered.
//!
//! Who the members are says Raft's own membership, in entries of its own. What stands here is the order: which change is
//! wanted, which nodes may come, and how it ended. The leader compares the two and does the next step that is missing, so
//! any leader can go on where the one before stopped.
//!
//! At most one change is under way. A node that is to join proves that it was meant by a token, of which the log holds a
//! hash: it is good for one store, and for [`JOIN_TOKEN_TIME_MS`] of the leader's time.

use std::collections::BTreeMap;

use bincode::{Decode, Encode};

use super::command::IdentityRecord;
use super::reply::{CommandRefused, CommandReply};
use super::state::{MemberImage, MembershipImage};

/// How long a join token is good for.
pub const JOIN_TOKEN_TIME_MS: i64 = 3_600_000;
/// Changes that are remembered.
const CHANGES_MAX: usize = 64;
/// Identities that were removed and are remembered.
const REMOVED_MAX: usize = 4_096;
/// Nodes that one change may add.
pub const JOINERS_MAX: usize = 8;

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum MemberChange {
    /// These nodes become voters, all by one change of membership.
    Add {
        /// The nodes.
        joiners: Vec<Joiner>,
    },
    /// A node leaves.
    Remove {
        /// Its name.
        node: String,
    },
    /// A node leaves and another takes its place, by one change of membership.
    Replace {
        /// The name of the one that leaves.
        node: String,
        /// The one that comes.
        joiner: Joiner,
    },
}

/// A node that may join.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Joiner {
    /// Its name.
    pub node: String,
    /// Where its peers reach it.
    pub raft_addr: String,
    /// Where clients reach it.
    pub client_addr: String,
    /// SHA-256 of its token.
    pub token_hash: [u8; 32],
    /// Its identity and its store, once it has come.
    pub admitted: Option<Admitted>,
}

/// What a node was given when it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Admitted {
    /// Its identity.
    pub node_id: u64,
    /// The store that the identity belongs to.
    pub store_uuid: [u8; 16],
}

/// One change, from its order to its end.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Change {
    /// Index of the entry that ordered it.
    pub id: u64,
    /// What is wanted.
    pub change: MemberChange,
    /// The identities, at that time, of the node that leaves.
    pub leaving: Vec<u64>,
    /// Who ordered it, in that person's words.
    pub started_by: String,
    /// The leader's time.
    pub started_ms: i64,
    /// Why it is being turned back, if it is.
    pub turned_back: Option<String>,
    /// When it ended, and how.
    pub ended: Option<Ended>,
}

/// The end of a change.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Ended {
    /// The leader's time.
    pub at_ms: i64,
    /// Whether what was wanted is so; if not, everything is as it was before.
    pub done: bool,
}

/// An identity that is no member any more.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Removed {
    /// The node it belonged to.
    pub node: String,
    /// The change that removed it.
    pub change: u64,
    /// The node that took its place.
    pub replaced_by: Option<String>,
}

/// A step of a change that is told to every replica.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum MemberStep {
    /// A change begins.
    Begin {
        /// What is wanted.
        change: MemberChange,
        /// Who ordered it.
        started_by: String,
    },
    /// A node has come with its token. Answered with its identity; asked again for the same store, with the same one.
    Admit {
        /// The node's name.
        node: String,
        /// Where it says that peers and clients reach it.
        addrs: (String, String),
        /// The store that gets the identity.
        store_uuid: [u8; 16],
        /// SHA-256 of what it showed.
        token_hash: [u8; 32],
    },
    /// The change is given up: what was done of it is undone.
    TurnBack {
        /// The change.
        change: u64,
        /// Why.
        reason: String,
    },
    /// The change has ended, and these identities are no members any more.
    End {
        /// The change.
        change: u64,
        /// Whether what was wanted is so.
        done: bool,
        /// Identities and the nodes they belonged to.
        removed: Vec<(u64, String)>,
    },
}

/// All changes that are remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(crate) struct Changes {
    by_id: BTreeMap<u64, Change>,
    removed: BTreeMap<u64, Removed>,
}

impl MemberChange {
    /// The nodes that come.
    pub fn joiners(&self) -> &[Joiner] {
        match self {
            Self::Add { joiners } => joiners,
            Self::Remove { .. } => &[],
            Self::Replace { joiner, .. } => std::slice::from_ref(joiner),
        }
    }

    fn joiners_mut(&mut self) -> &mut [Joiner] {
        match self {
            Self::Add { joiners } => joiners,
            Self::Remove { .. } => &mut [],
            Self::Replace { joiner, .. } => std::slice::from_mut(joiner),
        }
    }

    /// The name of the node that leaves.
    pub fn leaver(&self) -> Option<&str> {
        match self {
            Self::Add { .. } => None,
            Self::Remove { node } | Self::Replace { node, .. } => Some(node),
        }
    }
}

impl Changes {
    /// The change under way, if there is one.
    pub(crate) fn running(&self) -> Option<&Change> {
        self.by_id.values().rev().find(|change| change.ended.is_none())
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Change> {
        self.by_id.get(&id)
    }

    /// Oldest first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Change> {
        self.by_id.values()
    }

    pub(crate) fn removed(&self, node_id: u64) -> Option<&Removed> {
        self.removed.get(&node_id)
    }

    /// The node that may join at `now_ms`, or why it may not.
    pub(crate) fn may_admit(
        &self,
        node: &str,
        addrs: &(String, String),
        store_uuid: [u8; 16],
        token_hash: [u8; 32],
        now_ms: i64,
    ) -> Result<&Joiner, &'static str> {
        let change = self.running().ok_or("no node is to be added now")?;
        if change.turned_back.is_some() {
            return Err("the change that was to add it is being turned back");
        }
        let joiner = change.change.joiners().iter().find(|joiner| joiner.node == node);
        let joiner = joiner.ok_or("a node of this name is not to be added")?;
        if joiner.token_hash != token_hash {
            return Err("the join token is not the one that was given out for it");
        }
        match joiner.admitted {
            Some(admitted) if admitted.store_uuid == store_uuid => return Ok(joiner),
            Some(_) => return Err("the join token was used, with another store"),
            None if now_ms.saturating_sub(change.started_ms) > JOIN_TOKEN_TIME_MS => {
                return Err("the join token has expired");
            }
            None => {}
        }
        if (&joiner.raft_addr, &joiner.client_addr) != (&addrs.0, &addrs.1) {
            return Err("its addresses are not those that were given when it was added");
        }
        Ok(joiner)
    }

    pub(super) fn apply(
        &mut self,
        identities: &mut BTreeMap<u64, IdentityRecord>,
        membership: &MembershipImage,
        step: MemberStep,
        index: u64,
        stamped_ms: i64,
    ) -> Result<CommandReply, CommandRefused> {
        match step {
            MemberStep::Begin { change, started_by } => {
                self.begin(membership, change, started_by, index, stamped_ms)?;
                Ok(CommandReply::Done)
            }
            MemberStep::Admit { node, addrs, store_uuid, token_hash } => {
                let joiner = self.may_admit(&node, &addrs, store_uuid, token_hash, stamped_ms);
                let joiner = joiner.map_err(CommandRefused::NotAdmitted)?;
                if let Some(admitted) = joiner.admitted {
                    return Ok(CommandReply::Identity { node_id: admitted.node_id });
                }
                if identities.values().any(|identity| identity.store_uuid == store_uuid) {
                    return Err(CommandRefused::IdentityTaken);
                }
                let members = membership.nodes.iter().map(|(id, _)| *id);
                let highest = identities.keys().copied().chain(members).chain(self.removed.keys().copied()).max();
                let node_id = index.max(highest.unwrap_or(0) + 1);
                let record = IdentityRecord { node_id, node_name: node.clone(), store_uuid, stamped_ms };
                identities.insert(node_id, record);
                let running = self.by_id.values_mut().rev().find(|change| change.ended.is_none());
                let joiners = running.into_iter().flat_map(|change| change.change.joiners_mut());
                for joiner in joiners.filter(|joiner| joiner.node == node) {
                    joiner.admitted = Some(Admitted { node_id, store_uuid });
                }
                Ok(CommandReply::Identity { node_id })
            }
            MemberStep::TurnBack { change, reason } => {
                let change = self.running_mut(change)?;
                let votes = |joiner: &Joiner| {
                    let id = joiner.admitted.map(|admitted| admitted.node_id);
                    membership.configs.len() == 1 && id.is_some_and(|id| membership.configs[0].contains(&id))
                };
                if change.change.joiners().iter().any(votes) {
                    return Err(CommandRefused::Invalid("the new voters vote already: it is too late to turn back"));
                }
                change.turned_back.get_or_insert(reason);
                Ok(CommandReply::Done)
            }
            MemberStep::End { change, done, removed } => {
                let ended = self.running_mut(change)?;
                ended.ended = Some(Ended { at_ms: stamped_ms, done });
                let replaced_by = match &ended.change {
                    MemberChange::Replace { joiner, .. } if done => Some(joiner.node.clone()),
                    _ => None,
                };
                for (node_id, node) in removed {
                    self.removed.insert(node_id, Removed { node, change, replaced_by: replaced_by.clone() });
                }
                while self.removed.len() > REMOVED_MAX {
                    self.removed.pop_first();
                }
                Ok(CommandReply::Done)
            }
        }
    }

    fn running_mut(&mut self, id: u64) -> Result<&mut Change, CommandRefused> {
        let found = self.by_id.get_mut(&id).filter(|change| change.ended.is_none());
        found.ok_or(CommandRefused::Invalid("no such change of members is under way"))
    }

    fn begin(
        &mut self,
        membership: &MembershipImage,
        change: MemberChange,
        started_by: String,
        index: u64,
        stamped_ms: i64,
    ) -> Result<(), CommandRefused> {
        if let Some(running) = self.running() {
            return Err(CommandRefused::ChangeRunning { change: running.id });
        }
        if membership.configs.len() > 1 {
            return Err(CommandRefused::Invalid("the members are in the middle of another change"));
        }
        let is_member = |node: &str| membership.nodes.iter().any(|(_, member)| member.node == node);
        if change.leaver().is_some_and(|node| !is_member(node)) {
            return Err(CommandRefused::Invalid("the node that is to leave is no member"));
        }
        let joiners = change.joiners();
        if joiners.len() > JOINERS_MAX || matches!(change, MemberChange::Add { .. }) && joiners.is_empty() {
            return Err(CommandRefused::Invalid("it adds no node, or too many"));
        }
        for (at, joiner) in joiners.iter().enumerate() {
            let takes_own_place = change.leaver() == Some(joiner.node.as_str());
            if is_member(&joiner.node) && !takes_own_place {
                return Err(CommandRefused::Invalid("the node that is to join is a member"));
            }
            if joiners.iter().take(at).any(|other| other.node == joiner.node) {
                return Err(CommandRefused::Invalid("a node is named twice"));
            }
        }
        let leaves = |member: &MemberImage| change.leaver() == Some(member.node.as_str());
        let leaving = membership.nodes.iter().filter(|(_, member)| leaves(member)).map(|(id, _)| *id).collect();
        let started_ms = stamped_ms;
        let change = Change { id: index, change, leaving, started_by, started_ms, turned_back: None, ended: None };
        self.by_id.insert(index, change);
        while self.by_id.len() > CHANGES_MAX {
            self.by_id.pop_first();
        }
        Ok(())
    }
}
