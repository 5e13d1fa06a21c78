//! The name server: routes, key-value settings, registration.

use crate::name::TopicName;

header! {
    /// Where a topic lives (105).
    pub struct RouteRequest {
        /// The topic. One that breaks the rules for names simply has no route.
        topic: String = "topic";
        /// Whether the client reads standard JSON only. We write nothing else.
        accept_standard_json_only: bool = "acceptStandardJsonOnly", default false;
    }
}

header! {
    /// Topics of a cluster (224).
    pub struct ClusterRequest {
        /// The cluster.
        cluster: String = "cluster";
    }
}

header! {
    /// Sets a value (100).
    pub struct PutKvRequest {
        /// Namespace of the key.
        namespace: String = "namespace";
        /// The key.
        key: String = "key";
        /// The value.
        value: String = "value";
    }
}

header! {
    /// One key: the argument of 101 and 102.
    pub struct KvRequest {
        /// Namespace of the key.
        namespace: String = "namespace";
        /// The key.
        key: String = "key";
    }
}

header! {
    /// The answer of 101.
    pub struct KvResponse {
        /// The value.
        value: Option<String> = "value";
    }
}

header! {
    /// All values of a namespace (219).
    pub struct KvListRequest {
        /// The namespace.
        namespace: String = "namespace";
    }
}

header! {
    /// One broker: the argument of 205 and 327.
    pub struct BrokerNameRequest {
        /// The broker name.
        broker_name: String = "brokerName";
    }
}

header! {
    /// The answer of 205.
    pub struct WipeWritePermResponse {
        /// Topics changed.
        wipe_topic_count: i32 = "wipeTopicCount";
    }
}

header! {
    /// The answer of 327.
    pub struct AddWritePermResponse {
        /// Topics changed.
        add_topic_count: i32 = "addTopicCount";
    }
}

header! {
    /// Forgets a topic (216).
    pub struct DeleteTopicInNamesrvRequest {
        /// The topic.
        topic: TopicName = "topic";
        /// In one cluster, or everywhere.
        cluster_name: Option<String> = "clusterName";
    }
}

header! {
    /// A broker announces itself (103). The body says what it holds.
    pub struct RegisterBrokerRequest {
        /// The broker name.
        broker_name: String = "brokerName";
        /// Where clients reach it.
        broker_addr: String = "brokerAddr";
        /// Its cluster.
        cluster_name: String = "clusterName";
        /// Where RocketMQ slaves would copy from.
        ha_server_addr: Option<String> = "haServerAddr";
        /// 0: it leads.
        broker_id: i64 = "brokerId";
        /// How long it may be silent, in milliseconds.
        heartbeat_timeout_millis: Option<i64> = "heartbeatTimeoutMillis";
        /// Whether another replica may be shown as id 0.
        enable_acting_master: Option<bool> = "enableActingMaster";
        /// Whether the body is compressed.
        compressed: bool = "compressed", default false;
        /// CRC-32 of the body without its sign bit; 0: not checked.
        body_crc32: i32 = "bodyCrc32", default 0;
        /// The latest Raft term in which `gantryLeader` led, by the sender's knowledge. The five fields from here on are ours
        /// alone: RocketMQ's brokers do not send them and its name servers ignore them.
        gantry_term: Option<u64> = "gantryTerm";
        /// The sender's member number in its group, at least 1 and the same for ever: its id in routes while it does not lead.
        gantry_node: Option<u64> = "gantryNode";
        /// The member that leads in `gantryTerm`; 0: the sender knows of no leader yet.
        gantry_leader: Option<u64> = "gantryLeader";
        /// The body holds only topics added or changed since the table with this counter; absent: it holds the whole table.
        /// The counter of the body's own version, and no topics: nothing has changed, and the sender asks whether it is known.
        gantry_base: Option<i64> = "gantryBase";
        /// Names, separated by commas, of topics deleted since the table that `gantryBase` names.
        gantry_gone: Option<String> = "gantryGone";
    }
}

header! {
    /// The answer of 103.
    pub struct RegisterBrokerResponse {
        /// Where a slave copies from.
        ha_server_addr: Option<String> = "haServerAddr";
        /// Address of id 0.
        master_addr: Option<String> = "masterAddr";
        /// True: the name server does not know the table that `gantryBase` names: register with the whole table now. A name
        /// server that does not understand `gantryBase` does not answer with this field.
        gantry_whole_table: Option<bool> = "gantryWholeTable";
    }
}

header! {
    /// A broker leaves, or asks whether its data is known (104, 322).
    pub struct BrokerIdentityRequest {
        /// The broker name.
        broker_name: String = "brokerName";
        /// Where clients reach it.
        broker_addr: String = "brokerAddr";
        /// Its cluster.
        cluster_name: String = "clusterName";
        /// 0: it leads.
        broker_id: i64 = "brokerId";
    }
}

header! {
    /// The answer of 322.
    pub struct QueryDataVersionResponse {
        /// Whether the broker should register again.
        changed: bool = "changed";
    }
}

header! {
    /// A broker is alive (904).
    pub struct BrokerHeartbeatRequest {
        /// Its cluster.
        cluster_name: String = "clusterName";
        /// Where clients reach it.
        broker_addr: String = "brokerAddr";
        /// The broker name.
        broker_name: String = "brokerName";
        /// 0: it leads.
        broker_id: Option<i64> = "brokerId";
        /// How long it may be silent, in milliseconds.
        heartbeat_timeout_millis: Option<i64> = "heartbeatTimeoutMills";
    }
}

header! {
    /// Who shares a broker name (901).
    pub struct BrokerMemberGroupRequest {
        /// The cluster.
        cluster_name: String = "clusterName";
        /// The broker name.
        broker_name: String = "brokerName";
    }
}

header! {
    /// Adds one topic (217). The body says where it lives.
    pub struct RegisterTopicRequest {
        /// The topic.
        topic: TopicName = "topic";
    }
}
