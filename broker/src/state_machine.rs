//! What committed entries mean: topics, groups, offsets, queues.

mod reply;

pub use self::reply::{Appended, ApplyReply, CommandRefused, CommandReply, MessageOutcome, MessageRefused, PackReply};
