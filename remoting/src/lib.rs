//! The RocketMQ remoting protocol over tokio.
//!
//! A [`Connection`] is one framed stream, used alike on both ends: one task reads it and hands every request to a
//! [`Handler`], one task writes everything that is queued with as few system calls as possible. A [`Server`] accepts
//! connections within limits and drains them on shutdown; a [`Channel`] is the side that dials, and dials again when
//! it has to.
//!
//! What costs here is wake-ups and system calls, not copies. So all complete frames of a read are handled before
//! the writers they concern are woken ([`cork`]), and an answer is encoded straight into the buffer that the writer
//! takes whole.
#![warn(missing_docs)]

mod admission;
mod channel;
mod connection;
mod error;
mod handler;
mod log_limit;
mod options;
mod outbound;
mod pending;
mod server;
mod stream;

pub use admission::Admission;
pub use channel::Channel;
pub use channel::ChannelOptions;
pub use connection::Connection;
pub use connection::ConnectionId;
pub use error::Error;
pub use error::Result;
pub use handler::Handler;
pub use handler::Ignore;
pub use handler::Responder;
pub use log_limit::LogLimit;
pub use options::Options;
pub use options::Settings;
pub use outbound::cork;
pub use server::Server;
pub use server::ServerHandle;
pub use server::bind;
pub use stream::Acceptor;
pub use stream::Stream;
pub use stream::Transport;
