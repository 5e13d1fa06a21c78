//! A client of Gantry, and of any RocketMQ.
//!
//! A [`Client`] is the connections, routes and heartbeats that everything else shares. On top of it: [`Producer`],
//! [`PushConsumer`], [`PullConsumer`] and [`Admin`]. All of them follow leaders by refreshing routes as soon as
//! something fails, not only when the next poll is due.
#![warn(missing_docs)]

mod admin;
mod error;
mod instance;
mod message;
mod offset_store;
mod options;
mod process_queue;
mod producer;
mod pull_consumer;
mod push_consumer;
mod queue;
mod route_cache;

pub use admin::Admin;
pub use admin::MessageQuery;
pub use admin::NewTopic;
pub use admin::TOPICS_MAX;
pub use error::Error;
pub use error::Result;
pub use instance::Client;
pub use message::Message;
pub use message::ReceivedMessage;
pub use options::ClientOptions;
pub use producer::Producer;
pub use producer::ProducerOptions;
pub use producer::SendReceipt;
pub use producer::SendStatus;
pub use protocol::allocate_average;
pub use pull_consumer::PullConsumer;
pub use pull_consumer::PullOptions;
pub use pull_consumer::PullStatus;
pub use pull_consumer::Pulled;
pub use pull_consumer::PulledRecords;
pub use push_consumer::ConsumeFrom;
pub use push_consumer::Listener;
pub use push_consumer::Mode;
pub use push_consumer::Order;
pub use push_consumer::Outcome;
pub use push_consumer::PushConsumer;
pub use push_consumer::PushOptions;
pub use queue::Queue;
pub use route_cache::Route;
