//! Fault injection against real processes, and the checkers that judge what happened.
//!
//! Three things are kept apart: an *outcome* is what a client or a fault saw, a *harness failure* is our own, and a
//! *verdict* is what a checker concludes from the outcomes. Checkers are pure functions from a history to a verdict
//! and need no cluster; a model of a broker shows that they accept everything legal, and planted anomalies that they
//! find everything illegal.

pub mod anomaly;
pub mod checker;
pub mod cluster;
pub mod contract;
pub mod generator;
pub mod history;
pub mod index;
pub mod model;
pub mod nemesis;
pub mod observer;
pub mod recorder;
pub mod report;
pub mod run;
pub mod seed;
pub mod workload;
