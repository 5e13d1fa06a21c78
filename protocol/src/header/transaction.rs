//! Transactions and recalls: codes 37, 39, 323, 370.

use crate::name::TopicName;

/// Values of [`EndTransactionRequest::commit_or_rollback`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionEnd;

impl TransactionEnd {
    /// The client does not know yet.
    pub const UNKNOWN: i32 = 0;
    /// The message is to be delivered.
    pub const COMMIT: i32 = 8;
    /// The message is to be dropped.
    pub const ROLLBACK: i32 = 12;
}

header! {
    /// How a transaction ended (37).
    pub struct EndTransactionRequest {
        /// Group that sent the half message.
        producer_group: String = "producerGroup";
        /// Queue offset of the half message.
        half_queue_offset: i64 = "tranStateTableOffset";
        /// Physical offset of the half message.
        half_physical_offset: i64 = "commitLogOffset";
        /// See [`TransactionEnd`].
        commit_or_rollback: i32 = "commitOrRollback";
        /// Whether this answers a check.
        from_transaction_check: bool = "fromTransactionCheck", default false;
        /// The client's own id of the message.
        msg_id: Option<String> = "msgId";
        /// Mostly the same.
        transaction_id: Option<String> = "transactionId";
        /// Topic of the message.
        topic: Option<String> = "topic";
    }
}

header! {
    /// Asks a producer how a transaction ended (39). The message is the body of the command.
    pub struct CheckTransactionRequest {
        /// Topic of the message.
        topic: Option<String> = "topic";
        /// Queue offset of the half message.
        half_queue_offset: i64 = "tranStateTableOffset";
        /// Physical offset of the half message.
        half_physical_offset: i64 = "commitLogOffset";
        /// The client's own id of the message.
        msg_id: Option<String> = "msgId";
        /// Mostly the same.
        transaction_id: Option<String> = "transactionId";
        /// Offset message id of the half message.
        offset_msg_id: Option<String> = "offsetMsgId";
    }
}

header! {
    /// Checks a half message again that was given up (323).
    pub struct ResumeCheckRequest {
        /// Topic of the message.
        topic: Option<String> = "topic";
        /// Id of the message.
        msg_id: Option<String> = "msgId";
    }
}

header! {
    /// Takes back a delayed message (370).
    pub struct RecallMessageRequest {
        /// Group that sent it.
        producer_group: Option<String> = "producerGroup";
        /// Topic it was sent to.
        topic: TopicName = "topic";
        /// What the send was answered.
        recall_handle: String = "recallHandle";
    }
}

header! {
    /// The answer of 370.
    pub struct RecallMessageResponse {
        /// Id of the message taken back.
        msg_id: String = "msgId";
    }
}
