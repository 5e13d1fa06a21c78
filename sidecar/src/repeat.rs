//! Which requests may be sent again when it is unknown what became of them, and how long they are tried.
//!
//! The measure is the client: what it would send again by itself, the sidecar may, and nothing else. One-way requests,
//! acknowledgements and changes are sent once. What certainly was not sent is always tried elsewhere.

use std::time::Duration;

use protocol::{RemotingCommand, RequestCode, ResponseCode};

/// A request that nobody answers is given up a little before the clients' own default time of 3 s ends.
const TIME: Duration = Duration::from_millis(2_800);
/// Clients wait 5 s for a group's offsets (Go 3 s).
const OFFSET_TIME: Duration = Duration::from_millis(4_500);
/// A pull is held by brokers for up to 20 s, and clients wait 30 s for it.
const PULL_TIME: Duration = Duration::from_secs(25);

/// Whether a client sends such a request again, on its own account, when it gets no answer.
pub(crate) fn is_repeatable(code: RequestCode) -> bool {
    is_send(code)
        || matches!(
            code,
            // Asked again by the next turn of a loop.
            RequestCode::PULL_MESSAGE
                | RequestCode::LITE_PULL_MESSAGE
                | RequestCode::POP_MESSAGE
                | RequestCode::HEART_BEAT
                | RequestCode::UNREGISTER_CLIENT
                | RequestCode::GET_CONSUMER_LIST_BY_GROUP
                | RequestCode::LOCK_BATCH_MQ
                | RequestCode::UNLOCK_BATCH_MQ
                | RequestCode::QUERY_CONSUMER_OFFSET
                | RequestCode::UPDATE_CONSUMER_OFFSET
                | RequestCode::QUERY_ASSIGNMENT
                // Sent as a message of its own when it fails.
                | RequestCode::CONSUMER_SEND_MSG_BACK
                // Questions: a second one changes nothing.
                | RequestCode::GET_MAX_OFFSET
                | RequestCode::GET_MIN_OFFSET
                | RequestCode::SEARCH_OFFSET_BY_TIMESTAMP
                | RequestCode::GET_EARLIEST_MSG_STORETIME
                | RequestCode::QUERY_MESSAGE
                | RequestCode::VIEW_MESSAGE_BY_ID
                | RequestCode::CHECK_CLIENT_CONFIG
        )
}

pub(crate) fn is_send(code: RequestCode) -> bool {
    matches!(code, RequestCode::SEND_MESSAGE | RequestCode::SEND_MESSAGE_V2 | RequestCode::SEND_BATCH_MESSAGE)
}

/// Whether a client tries again after such an answer.
pub(crate) fn is_refusal_to_repeat(request: RequestCode, answer: &RemotingCommand) -> bool {
    is_send(request) && answer.response_code() == ResponseCode::SERVICE_NOT_AVAILABLE
}

/// Whether replicas hold such a request for long because there is nothing to answer yet.
pub(crate) fn may_be_held(code: RequestCode) -> bool {
    matches!(code, RequestCode::PULL_MESSAGE | RequestCode::LITE_PULL_MESSAGE | RequestCode::POP_MESSAGE)
}

/// Whether replicas pass such a request on to their leader. Pulls too, but only those of what they do not have.
pub(crate) fn is_for_leader(code: RequestCode) -> bool {
    !matches!(
        code,
        RequestCode::PULL_MESSAGE
            | RequestCode::LITE_PULL_MESSAGE
            | RequestCode::HEART_BEAT
            | RequestCode::UNREGISTER_CLIENT
            | RequestCode::GET_CONSUMER_LIST_BY_GROUP
            | RequestCode::CHECK_CLIENT_CONFIG
    )
}

/// How long a request is tried before it is answered with an error.
pub(crate) fn time(code: RequestCode) -> Duration {
    match code {
        _ if may_be_held(code) => PULL_TIME,
        RequestCode::QUERY_CONSUMER_OFFSET => OFFSET_TIME,
        _ => TIME,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_does_once_is_done_once() {
        for once in [
            RequestCode::END_TRANSACTION,
            RequestCode::ACK_MESSAGE,
            RequestCode::BATCH_ACK_MESSAGE,
            RequestCode::CHANGE_MESSAGE_INVISIBLETIME,
            RequestCode::RECALL_MESSAGE,
            RequestCode::SEND_REPLY_MESSAGE,
            RequestCode::UPDATE_AND_CREATE_TOPIC,
            RequestCode::DELETE_TOPIC_IN_BROKER,
            RequestCode::INVOKE_BROKER_TO_RESET_OFFSET,
        ] {
            assert!(!is_repeatable(once), "{once}");
        }
        for again in [RequestCode::SEND_MESSAGE_V2, RequestCode::PULL_MESSAGE, RequestCode::LOCK_BATCH_MQ] {
            assert!(is_repeatable(again), "{again}");
        }
    }

    #[test]
    fn only_a_send_is_tried_again_after_an_answer() {
        let refusal = RemotingCommand::response(1, protocol::HeaderForm::Json, ResponseCode::SERVICE_NOT_AVAILABLE);
        assert!(is_refusal_to_repeat(RequestCode::SEND_MESSAGE, &refusal));
        assert!(!is_refusal_to_repeat(RequestCode::QUERY_CONSUMER_OFFSET, &refusal));
        let full = RemotingCommand::response(1, protocol::HeaderForm::Json, ResponseCode::MESSAGE_ILLEGAL);
        assert!(!is_refusal_to_repeat(RequestCode::SEND_MESSAGE, &full));
    }
}
