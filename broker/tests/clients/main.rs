//! Requests of clients, over real sockets, against groups with a real log in a temporary directory.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that panics has failed, which is what it is for"
)]

mod admin;
mod behind;
mod cluster;
mod compatibility;
mod delay;
mod dropped;
mod failover;
mod full_disk;
mod golden;
mod kills;
mod link;
mod longest_properties;
mod pop;
mod reply;
mod requests;
mod timer;
mod transaction;
mod worst_moment;
