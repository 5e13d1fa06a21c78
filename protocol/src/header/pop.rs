//! POP: codes 200050 to 200055.

use crate::name::{GroupName, TopicName};

header! {
    /// A wish for messages that nobody else gets for some time (200050).
    pub struct PopRequest {
        /// The consumer's group.
        group: GroupName = "consumerGroup";
        /// Topic to read.
        topic: TopicName = "topic";
        /// Queue to read, or [`ANY_QUEUE`].
        queue_id: i32 = "queueId";
        /// Most messages wanted.
        max_msg_nums: i32 = "maxMsgNums";
        /// For how long nobody else gets them, in milliseconds.
        invisible_time: i64 = "invisibleTime";
        /// How long the broker may hold the request, in milliseconds.
        poll_time: i64 = "pollTime", default 0;
        /// When it was sent, by the client's clock.
        born_time: i64 = "bornTime", default 0;
        /// Where a new group starts: see [`PopStart`].
        init_mode: i32 = "initMode", default 0;
        /// `TAG` or `SQL92`; absent means `TAG`.
        expression_type: Option<String> = "expType";
        /// Filter expression.
        expression: Option<String> = "exp";
        /// Whether nothing is to be given while an earlier message of the queue is under way.
        order: bool = "order", default false;
        /// The same when a consumer asks again for want of an answer.
        attempt_id: Option<String> = "attemptId";
    }
}

/// [`PopRequest::queue_id`] that leaves the queue to the broker.
pub const ANY_QUEUE: i32 = -1;

/// Values of [`PopRequest::init_mode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PopStart;

impl PopStart {
    /// A new group starts with the first message.
    pub const FIRST: i32 = 0;
    /// A new group starts with the next message.
    pub const NEXT: i32 = 1;
}

header! {
    /// What was given. Present in answers 0 and 210.
    pub struct PopResponse {
        /// When it was given.
        pop_time: i64 = "popTime";
        /// For how long nobody else gets it, in milliseconds.
        invisible_time: i64 = "invisibleTime";
        /// [`ORDER_REVIVE_QUEUE`] if it was given in order.
        revive_queue_id: i32 = "reviveQid";
        /// Messages that were never given.
        rest_num: i64 = "restNum";
        /// First message of each queue.
        start_offset_info: Option<String> = "startOffsetInfo";
        /// Messages of each queue.
        msg_offset_info: Option<String> = "msgOffsetInfo";
        /// How often they were given before, for those given in order.
        order_count_info: Option<String> = "orderCountInfo";
    }
}

/// [`PopResponse::revive_queue_id`] of messages given in order.
pub const ORDER_REVIVE_QUEUE: i32 = 999;

header! {
    /// A message is consumed (200051).
    pub struct AckRequest {
        /// The consumer's group.
        group: GroupName = "consumerGroup";
        /// Topic of the message.
        topic: TopicName = "topic";
        /// Queue of the message.
        queue_id: i32 = "queueId";
        /// The giving it belongs to: a [`PopHandle`](crate::PopHandle).
        extra_info: String = "extraInfo";
        /// Queue offset of the message.
        queue_offset: i64 = "offset";
    }
}

header! {
    /// A message is to stay hidden for another time from now on (200053).
    pub struct ChangeInvisibleRequest {
        /// The consumer's group.
        group: GroupName = "consumerGroup";
        /// Topic of the message.
        topic: TopicName = "topic";
        /// Queue of the message.
        queue_id: i32 = "queueId";
        /// The giving it belongs to: a [`PopHandle`](crate::PopHandle).
        extra_info: String = "extraInfo";
        /// Queue offset of the message.
        queue_offset: i64 = "offset";
        /// For how long, in milliseconds.
        invisible_time: i64 = "invisibleTime";
    }
}

header! {
    /// What names the giving from now on.
    pub struct ChangeInvisibleResponse {
        /// When the message was hidden.
        pop_time: i64 = "popTime";
        /// For how long, in milliseconds.
        invisible_time: i64 = "invisibleTime";
        /// As in [`PopResponse`].
        revive_queue_id: i32 = "reviveQid";
    }
}

header! {
    /// A look at the messages that would be given (200052).
    pub struct PeekRequest {
        /// The consumer's group.
        group: GroupName = "consumerGroup";
        /// Topic to read.
        topic: TopicName = "topic";
        /// Queue to read, or [`ANY_QUEUE`].
        queue_id: i32 = "queueId";
        /// Most messages wanted.
        max_msg_nums: i32 = "maxMsgNums";
    }
}

header! {
    /// Asks whether there is a message, and waits for one (200054).
    pub struct NotificationRequest {
        /// The consumer's group.
        group: GroupName = "consumerGroup";
        /// Topic to read.
        topic: TopicName = "topic";
        /// Queue to read, or [`ANY_QUEUE`].
        queue_id: i32 = "queueId";
        /// How long the broker may hold the request, in milliseconds.
        poll_time: i64 = "pollTime", default 0;
        /// When it was sent, by the client's clock.
        born_time: i64 = "bornTime", default 0;
        /// As in [`PopRequest`].
        order: bool = "order", default false;
        /// As in [`PopRequest`].
        attempt_id: Option<String> = "attemptId";
    }
}

header! {
    /// Whether there is one.
    pub struct NotificationResponse {
        /// There is.
        has_msg: bool = "hasMsg";
        /// The request was not held, for too many are.
        polling_full: bool = "pollingFull";
    }
}

header! {
    /// Asks how many requests are held (200055).
    pub struct PollingInfoRequest {
        /// The consumer's group.
        group: GroupName = "consumerGroup";
        /// Topic to read.
        topic: TopicName = "topic";
        /// Queue to read, or [`ANY_QUEUE`].
        queue_id: i32 = "queueId";
    }
}

header! {
    /// How many there are.
    pub struct PollingInfoResponse {
        /// So many.
        polling_num: i32 = "pollingNum";
    }
}
