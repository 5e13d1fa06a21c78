//! Administration of a broker: topics, groups, statistics.

use crate::name::{GroupName, TopicName};

/// Bits of a topic's permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Perm;

impl Perm {
    /// New topics may inherit from it.
    pub const INHERIT: i32 = 1;
    /// Messages may be sent.
    pub const WRITE: i32 = 2;
    /// Messages may be pulled.
    pub const READ: i32 = 4;

    /// Whether `perm` allows sending.
    #[must_use]
    pub const fn is_writable(perm: i32) -> bool {
        perm & Self::WRITE != 0
    }

    /// Whether `perm` allows pulling.
    #[must_use]
    pub const fn is_readable(perm: i32) -> bool {
        perm & Self::READ != 0
    }

    /// Whether `perm` allows inheriting.
    #[must_use]
    pub const fn is_inherited(perm: i32) -> bool {
        perm & Self::INHERIT != 0
    }
}

header! {
    /// Creates or changes a topic (17).
    pub struct CreateTopicRequest {
        /// The topic.
        topic: TopicName = "topic";
        /// Not used.
        default_topic: Option<String> = "defaultTopic";
        /// Queues to read.
        read_queue_nums: i32 = "readQueueNums";
        /// Queues to write.
        write_queue_nums: i32 = "writeQueueNums";
        /// [`Perm`] bits.
        perm: i32 = "perm";
        /// `SINGLE_TAG` or `MULTI_TAG`.
        topic_filter_type: Option<String> = "topicFilterType";
        /// Unit bits.
        topic_sys_flag: i32 = "topicSysFlag", default 0;
        /// Whether the topic is ordered.
        order: bool = "order", default false;
        /// Changes of attributes: `+key=value` and `-key`, separated by commas.
        attributes: Option<String> = "attributes";
    }
}

header! {
    /// One topic: the argument of 202, 215, 300 and 351.
    pub struct TopicRequest {
        /// The topic.
        topic: TopicName = "topic";
    }
}

header! {
    /// A page of topic configs (21).
    pub struct AllTopicConfigRequest {
        /// Number of the first topic of the page.
        topic_seq: Option<i32> = "topicSeq";
        /// Data version that the client pages through.
        data_version: Option<String> = "dataVersion";
        /// Most topics in a page.
        max_topic_num: Option<i32> = "maxTopicNum";
    }
}

header! {
    /// The answer of 21.
    pub struct AllTopicConfigResponse {
        /// Topics there are.
        total_topic_num: Option<i32> = "totalTopicNum";
    }
}

header! {
    /// A page of subscription groups (201).
    pub struct AllSubscriptionGroupRequest {
        /// Number of the first group of the page.
        group_seq: Option<i32> = "groupSeq";
        /// Data version that the client pages through.
        data_version: Option<String> = "dataVersion";
        /// Most groups in a page.
        max_group_num: Option<i32> = "maxGroupNum";
    }
}

header! {
    /// The answer of 201.
    pub struct AllSubscriptionGroupResponse {
        /// Groups there are.
        total_group_num: Option<i32> = "totalGroupNum";
    }
}

header! {
    /// One group: the argument of 343 and 352.
    pub struct GroupRequest {
        /// The group.
        group: GroupName = "group";
    }
}

header! {
    /// Deletes a group's configuration (207).
    pub struct DeleteSubscriptionGroupRequest {
        /// The group.
        group: GroupName = "groupName";
        /// Whether its consumed offsets go too.
        clean_offset: bool = "cleanOffset", default false;
    }
}

header! {
    /// One counter (315).
    pub struct ViewBrokerStatsRequest {
        /// Kind of counter.
        stats_name: String = "statsName";
        /// What is counted.
        stats_key: String = "statsKey";
    }
}

header! {
    /// Progress of a group (208).
    pub struct ConsumeStatsRequest {
        /// The group.
        group: GroupName = "consumerGroup";
        /// One topic, or all.
        topic: Option<TopicName> = "topic";
        /// Several topics, joined by semicolons.
        topic_list: Option<String> = "topicList";
    }
}

header! {
    /// Progress of all groups (317).
    pub struct BrokerConsumeStatsRequest {
        /// Whether ordered consumers are meant.
        is_order: bool = "isOrder", default false;
    }
}

header! {
    /// A topic and a group: the argument of 303.
    pub struct ConsumeTimeSpanRequest {
        /// The topic.
        topic: TopicName = "topic";
        /// The group.
        group: GroupName = "group";
    }
}

header! {
    /// Subscriptions of a group (345).
    pub struct SubscriptionRequest {
        /// The group.
        group: GroupName = "group";
        /// One topic.
        topic: Option<TopicName> = "topic";
    }
}

header! {
    /// Smallest offsets over several groups (308).
    pub struct CorrectionOffsetRequest {
        /// Groups to leave out, joined by commas.
        filter_groups: Option<String> = "filterGroups";
        /// Group to compare with.
        compare_group: GroupName = "compareGroup";
        /// The topic.
        topic: TopicName = "topic";
    }
}

header! {
    /// Moves the consumed offsets of a group (222).
    pub struct ResetOffsetRequest {
        /// The group.
        group: GroupName = "group";
        /// The topic.
        topic: TopicName = "topic";
        /// Store time in milliseconds; -1 means the end.
        timestamp: i64 = "timestamp";
        /// Whether to move forward too.
        is_force: bool = "isForce", default false;
        /// One queue; -1 means all.
        queue_id: i32 = "queueId", default -1;
        /// A queue offset instead of a time; -1 means none.
        queue_offset: i64 = "offset", default -1;
    }
}

header! {
    /// Copies the consumed offsets of a group to another (314).
    pub struct CloneGroupOffsetRequest {
        /// From this group.
        src_group: GroupName = "srcGroup";
        /// To this group.
        dest_group: GroupName = "destGroup";
        /// One topic, or all.
        topic: Option<TopicName> = "topic";
        /// Whether the target may be online.
        offline: bool = "offline", default false;
    }
}

header! {
    /// The answer of 26.
    pub struct BrokerConfigResponse {
        /// Data version as JSON.
        version: String = "version";
    }
}
