//! Offsets of queues and consumers: codes 14, 15, 29 to 32.

use crate::error::FieldError;
use crate::ext_fields::{ExtFields, ExtValue};
use crate::name::{GroupName, TopicName};

header! {
    /// What a group has consumed of a queue (14).
    pub struct QueryConsumerOffsetRequest {
        /// The group.
        group: GroupName = "consumerGroup";
        /// The topic.
        topic: TopicName = "topic";
        /// The queue.
        queue_id: i32 = "queueId";
        /// Whether 0 may be answered for a young queue of which nothing was consumed.
        set_zero_if_not_found: Option<bool> = "setZeroIfNotFound";
    }
}

header! {
    /// A group has consumed everything before `commit_offset` (15).
    pub struct UpdateConsumerOffsetRequest {
        /// The group.
        group: GroupName = "consumerGroup";
        /// The topic.
        topic: TopicName = "topic";
        /// The queue.
        queue_id: i32 = "queueId";
        /// Queue offset to consume next.
        commit_offset: i64 = "commitOffset";
    }
}

/// Which end of a run of equal timestamps is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Boundary {
    /// The first message at or after the time.
    #[default]
    Lower,
    /// The last message at or before the time.
    Upper,
}

impl ExtValue for Boundary {
    fn read(field: &'static str, text: Option<&str>) -> Result<Self, FieldError> {
        let text = text.ok_or(FieldError::Missing { field })?;
        if text.eq_ignore_ascii_case("upper") { Ok(Self::Upper) } else { Ok(Self::Lower) }
    }

    fn write(&self, field: &'static str, ext: &mut ExtFields) {
        ext.push(
            field,
            match self {
                Self::Lower => "LOWER",
                Self::Upper => "UPPER",
            },
        );
    }
}

header! {
    /// Which queue offset was stored at a time (29).
    pub struct SearchOffsetRequest {
        /// The topic.
        topic: TopicName = "topic";
        /// The queue.
        queue_id: i32 = "queueId";
        /// Store time in milliseconds.
        timestamp: i64 = "timestamp";
        /// Which of several.
        boundary: Boundary = "boundaryType", default Boundary::Lower;
    }
}

header! {
    /// The queue offset that the next message will get (30).
    pub struct GetMaxOffsetRequest {
        /// The topic.
        topic: TopicName = "topic";
        /// The queue.
        queue_id: i32 = "queueId";
        /// Whether only committed messages count.
        committed: bool = "committed", default true;
    }
}

header! {
    /// One queue: the argument of 31 and 32.
    pub struct QueueRequest {
        /// The topic.
        topic: TopicName = "topic";
        /// The queue.
        queue_id: i32 = "queueId";
    }
}

header! {
    /// The answer of 14, 29, 30 and 31.
    pub struct QueueOffsetResponse {
        /// A queue offset.
        queue_offset: i64 = "offset";
    }
}

header! {
    /// The answer of 32.
    pub struct StoreTimeResponse {
        /// Store time in milliseconds; -1 if there is no message.
        timestamp: i64 = "timestamp";
    }
}
