//! One Raft group: type configuration, network, role.
