//! The name server: an in-memory directory of brokers, topics and a few settings.
//!
//! Brokers register with every name server; clients ask any of them. Name servers do not know each other and keep
//! nothing on disk: one that starts is complete once every broker has registered, within one registration interval.
//! `route_table` decides what a client gets to see; `processor` turns requests into calls of it; `liveness`
//! removes who is no longer heard of.
#![warn(missing_docs)]

mod figures;
mod kv_config;
mod liveness;
mod options;
mod processor;
mod route_table;
mod service;

pub use figures::Figures;
pub use options::Options;
pub use options::Settings;
pub use remoting::Error;
pub use remoting::Result;
pub use service::NamesrvHandle;
pub use service::serve;
