//! The broker: a replicated message store and the RocketMQ request processors over it.

pub mod client_table;
pub mod config;
pub mod delay_levels;
pub mod disk;
pub mod forward;
pub mod http;
pub mod node;
pub mod peer;
pub mod processor;
pub mod pull_hold;
pub mod queue_lock;
pub mod raft;
pub mod registration;
pub mod retention;
pub mod sequencer;
pub mod state_machine;
pub mod store;
pub mod trace;
