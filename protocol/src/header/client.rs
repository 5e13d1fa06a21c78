//! Clients and their groups: codes 35, 38, 40, 203, 204, 220, 221, 223, 307, 309.

use crate::name::{GroupName, TopicName};

header! {
    /// A client leaves its groups (35).
    pub struct UnregisterClientRequest {
        /// The client.
        client_id: String = "clientID";
        /// Group it produced in.
        producer_group: Option<GroupName> = "producerGroup";
        /// Group it consumed in.
        consumer_group: Option<GroupName> = "consumerGroup";
    }
}

header! {
    /// One consumer group: the argument of 38, 40 and 203.
    pub struct ConsumerGroupRequest {
        /// The group.
        group: GroupName = "consumerGroup";
    }
}

header! {
    /// Who produces in a group (204).
    pub struct ProducerGroupRequest {
        /// The group.
        group: GroupName = "producerGroup";
    }
}

header! {
    /// How a consumer is doing (307).
    pub struct ConsumerRunningInfoRequest {
        /// The group.
        group: GroupName = "consumerGroup";
        /// The client.
        client_id: String = "clientId";
        /// Whether to add the stacks of its threads.
        jstack_enable: bool = "jstackEnable", default false;
    }
}

header! {
    /// Hands one message to one consumer (309).
    pub struct ConsumeDirectlyRequest {
        /// The group.
        group: GroupName = "consumerGroup";
        /// The client.
        client_id: Option<String> = "clientId";
        /// Offset message id or the client's own id.
        msg_id: Option<String> = "msgId";
        /// Broker that stored it.
        broker_name: Option<String> = "brokerName";
        /// Topic of the message.
        topic: Option<TopicName> = "topic";
    }
}

header! {
    /// Moves the consumed offsets of clients (220, sent to them).
    pub struct ResetClientOffsetRequest {
        /// The topic.
        topic: TopicName = "topic";
        /// The group.
        group: GroupName = "group";
        /// Store time in milliseconds.
        timestamp: i64 = "timestamp";
        /// Whether to move forward too.
        is_force: bool = "isForce";
    }
}

header! {
    /// What clients have consumed (221, sent to them, and 223).
    pub struct ConsumerStatusRequest {
        /// The topic.
        topic: TopicName = "topic";
        /// The group.
        group: GroupName = "group";
        /// One client, or all.
        client_addr: Option<String> = "clientAddr";
    }
}
