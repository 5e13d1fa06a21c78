//! Pulling: codes 11 and 361.

use crate::name::{GroupName, TopicName};

header! {
    /// A wish for messages of one queue.
    pub struct PullRequest {
        /// The consumer's group.
        group: GroupName = "consumerGroup";
        /// Topic to read.
        topic: TopicName = "topic";
        /// Queue to read.
        queue_id: i32 = "queueId";
        /// First queue offset wanted.
        queue_offset: i64 = "queueOffset";
        /// Most messages wanted. Clamp before use.
        max_msg_nums: i32 = "maxMsgNums";
        /// [`PullSysFlag`] bits.
        sys_flag: i32 = "sysFlag";
        /// Consumed offset to store on the way, if the flag says so.
        commit_offset: i64 = "commitOffset", default 0;
        /// How long the broker may hold the request, in milliseconds.
        suspend_timeout_millis: i64 = "suspendTimeoutMillis", default 0;
        /// Filter expression, if the flag says so.
        subscription: Option<String> = "subscription";
        /// Version of the client's subscription. Its unit differs by client.
        sub_version: i64 = "subVersion", default 0;
        /// `TAG` or `SQL92`; absent means `TAG`.
        expression_type: Option<String> = "expressionType";
        /// Most bytes wanted.
        max_msg_bytes: Option<i32> = "maxMsgBytes";
        /// The broker that the client thinks it talks to.
        broker_name: Option<String> = "bname";
    }
}

/// Bits of [`PullRequest::sys_flag`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullSysFlag;

impl PullSysFlag {
    /// `commit_offset` counts.
    pub const COMMIT_OFFSET: i32 = 1;
    /// The broker may hold the request until there is something.
    pub const SUSPEND: i32 = 2;
    /// The expression in the request counts, not that of the heartbeat.
    pub const SUBSCRIPTION: i32 = 4;
    /// Retired.
    pub const CLASS_FILTER: i32 = 8;
    /// A lite pull consumer asks.
    pub const LITE_PULL: i32 = 16;
}

impl PullRequest {
    /// Whether `commit_offset` is to be stored.
    #[must_use]
    pub const fn commits_offset(&self) -> bool {
        self.sys_flag & PullSysFlag::COMMIT_OFFSET != 0
    }

    /// Whether the broker may hold the request.
    #[must_use]
    pub const fn may_suspend(&self) -> bool {
        self.sys_flag & PullSysFlag::SUSPEND != 0
    }

    /// Whether the request's own expression counts.
    #[must_use]
    pub const fn has_subscription(&self) -> bool {
        self.sys_flag & PullSysFlag::SUBSCRIPTION != 0
    }
}

header! {
    /// Where to go on. Present in answers 0, 19, 20 and 21.
    pub struct PullResponse {
        /// Replica to ask next time.
        suggest_which_broker_id: i64 = "suggestWhichBrokerId";
        /// Queue offset to ask for next time.
        next_begin_offset: i64 = "nextBeginOffset";
        /// First queue offset there is.
        min_offset: i64 = "minOffset";
        /// Queue offset that the next message will get.
        max_offset: i64 = "maxOffset";
    }
}
