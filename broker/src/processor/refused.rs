//! Requests of tools that this broker does not serve on purpose, and what to use instead.

use protocol::{RemotingCommand, RequestCode, ResponseCode};

use super::answer::refusal;

/// What the sender of a request can do instead; `None` if nobody here knows the request.
fn instead(code: RequestCode) -> Option<&'static str> {
    Some(match code {
        RequestCode::UPDATE_AND_CREATE_ACL_CONFIG
        | RequestCode::DELETE_ACL_CONFIG
        | RequestCode::GET_BROKER_CLUSTER_ACL_INFO
        | RequestCode::UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
        | RequestCode::AUTH_CREATE_USER
        | RequestCode::AUTH_UPDATE_USER
        | RequestCode::AUTH_DELETE_USER
        | RequestCode::AUTH_GET_USER
        | RequestCode::AUTH_LIST_USER
        | RequestCode::AUTH_CREATE_ACL
        | RequestCode::AUTH_UPDATE_ACL
        | RequestCode::AUTH_DELETE_ACL
        | RequestCode::AUTH_GET_ACL
        | RequestCode::AUTH_LIST_ACL => {
            "this broker has no users and no access control: who reaches its ports may do everything, so let only \
             trusted hosts reach them (listen addresses in conf/broker.toml, a firewall)"
        }
        RequestCode::UPDATE_AND_GET_GROUP_FORBIDDEN => {
            "a group is not shut out of single topics: `mqadmin updateSubGroup -s false` stops all of its consuming, \
             `mqadmin updateTopicPerm -p 2` that of a topic"
        }
        RequestCode::CHECK_ROCKSDB_CQ_WRITE_PROGRESS
        | RequestCode::EXPORT_ROCKSDB_CONFIG_TO_JSON
        | RequestCode::POP_ROLLBACK => {
            "there is no RocksDB: queues are files built from the log, topics, groups and offsets are entries of it; \
             `mqadmin exportMetadata` prints them"
        }
        RequestCode::UPDATE_AND_CREATE_STATIC_TOPIC => {
            "there are no static topics: a queue stays in its broker group, which outlives the loss of nodes; create \
             the topic with `mqadmin updateTopic`"
        }
        RequestCode::ADD_BROKER | RequestCode::REMOVE_BROKER => {
            "there is no broker container: one process, `gantry broker`, holds a replica of each group named in its \
             conf/broker.toml; groups and members are changed there"
        }
        RequestCode::GET_BROKER_HA_STATUS
        | RequestCode::GET_BROKER_EPOCH_CACHE
        | RequestCode::RESET_MASTER_FLUSH_OFFSET => {
            "there are no slaves: replicas agree through one log, with terms in place of epochs and nothing to reset; \
             `gantry status` and /v1/status of each node show how far each replica is"
        }
        RequestCode::CONTROLLER_ELECT_MASTER
        | RequestCode::CONTROLLER_GET_REPLICA_INFO
        | RequestCode::CONTROLLER_GET_METADATA_INFO
        | RequestCode::CONTROLLER_GET_SYNC_STATE_DATA
        | RequestCode::UPDATE_CONTROLLER_CONFIG
        | RequestCode::GET_CONTROLLER_CONFIG
        | RequestCode::CLEAN_BROKER_DATA => {
            "there is no controller: the replicas of a broker group elect their leader themselves; `gantry status` \
             shows who leads, preferred_leader in conf/broker.toml who should"
        }
        RequestCode::UPDATE_COLD_DATA_FLOW_CTR_CONFIG
        | RequestCode::REMOVE_COLD_DATA_FLOW_CTR_CONFIG
        | RequestCode::GET_COLD_DATA_FLOW_CTR_INFO
        | RequestCode::SET_COMMITLOG_READ_MODE => {
            "reads of old messages are limited for all groups together: storage.cold_read_rate in conf/broker.toml"
        }
        RequestCode::SWITCH_TIMER_ENGINE => {
            "there is one timer engine: messages that wait are entries of the log, and there is nothing to switch"
        }
        RequestCode::GET_BROKER_LITE_INFO
        | RequestCode::GET_PARENT_TOPIC_INFO
        | RequestCode::GET_LITE_TOPIC_INFO
        | RequestCode::GET_LITE_CLIENT_INFO
        | RequestCode::GET_LITE_GROUP_INFO
        | RequestCode::TRIGGER_LITE_DISPATCH => {
            "there are no lite topics: use ordinary ones, or tags and SQL92 filters within one"
        }
        _ => return None,
    })
}

/// The answer to a request that is refused on purpose.
pub(super) fn refused(request: &RemotingCommand) -> Option<RemotingCommand> {
    instead(request.request_code()).map(|why| refusal(request, ResponseCode::NO_PERMISSION, why))
}
