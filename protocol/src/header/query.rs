//! Looking messages up: codes 12, 33, 321.

use crate::name::{GroupName, TopicName};

header! {
    /// Messages with a key (12).
    pub struct QueryMessageRequest {
        /// The topic.
        topic: TopicName = "topic";
        /// The key, or the client's own id.
        key: String = "key";
        /// Most messages wanted. Clamp before use.
        max_num: i32 = "maxNum";
        /// Earliest store time in milliseconds.
        begin_timestamp: i64 = "beginTimestamp";
        /// Latest store time in milliseconds.
        end_timestamp: i64 = "endTimestamp";
        /// Whether `key` is a client's own id.
        unique_key_query: bool = "_UNIQUE_KEY_QUERY", default false;
    }
}

header! {
    /// The answer of 12.
    pub struct QueryMessageResponse {
        /// Store time of the newest message in the index.
        index_last_update_timestamp: i64 = "indexLastUpdateTimestamp";
        /// Physical offset of the newest message in the index.
        index_last_update_physical_offset: i64 = "indexLastUpdatePhyoffset";
    }
}

header! {
    /// The message at a physical offset (33).
    pub struct ViewMessageRequest {
        /// Physical offset.
        physical_offset: i64 = "offset";
    }
}

header! {
    /// Entries of a consume queue (321).
    pub struct QueryConsumeQueueRequest {
        /// The topic.
        topic: TopicName = "topic";
        /// The queue.
        queue_id: i32 = "queueId";
        /// First queue offset.
        queue_offset: i64 = "index";
        /// Most entries wanted. Clamp before use.
        count: i32 = "count";
        /// Group whose filter is tried on the entries.
        group: Option<GroupName> = "consumerGroup";
    }
}
