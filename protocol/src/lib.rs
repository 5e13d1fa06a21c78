//! The RocketMQ remoting protocol as bytes and types. No I/O, no clock.
//!
//! A frame is cut from a buffer and decoded by [`decode_frame`] into a [`RemotingCommand`]. Its ext fields become a typed
//! request through the types of [`header`], its body through those of [`body`]; stored messages are written and read by
//! [`message`]. Everything that comes from a peer is checked here, once: the types cannot hold what the checks refuse.
#![warn(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    missing_docs
)]
#![cfg_attr(
    test,
    allow(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a test that panics has failed, which is what it is for"
    )
)]

mod allocation;
pub mod body;
mod code;
mod codec;
mod command;
mod error;
mod ext_fields;
mod frame;
pub mod header;
mod json;
pub mod message;
mod name;
mod pop_handle;
mod reader;

pub use allocation::{allocate_average, allocate_by_circle};
pub use code::{LanguageCode, RequestCode, ResponseCode};
pub use command::{HeaderForm, PROTOCOL_VERSION, RemotingCommand};
pub use error::{BodyError, DecodeError, FieldError, JsonError, NameError};
pub use ext_fields::{ExtFields, ExtValue};
pub use frame::{FrameLimits, decode_frame, encode_frame, encode_head};
pub use name::{GroupName, TopicName};
pub use pop_handle::{PopHandle, PopHandleError, PoppedQueue, msg_offset_info, order_count_info, start_offset_info};
