//! Health, status and metrics over HTTP.

mod status;

pub use status::{
    GroupStatus, LeaderStatus, MemberStatus, NameServerStatus, NodeState, NodeStatus, ReplicaRole,
};
