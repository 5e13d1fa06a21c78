//! What the broker answers: every request of clients and tools to one broker group.

pub mod filter;
pub mod stats;
