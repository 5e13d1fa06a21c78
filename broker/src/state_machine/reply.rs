//! What apply answers to whoever proposed an entry.

use super::pop::PopOutcome;

/// The answer to one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ApplyReply {
    /// A blank or membership entry.
    #[default]
    None,
    /// A pack of messages.
    Pack(PackReply),
    /// A command and the messages in its entry.
    Command {
        /// What became of the command.
        reply: CommandReply,
        /// What became of its messages.
        messages: PackReply,
    },
}

/// One outcome a message, in the order of the records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackReply {
    /// The outcomes.
    pub outcomes: Vec<MessageOutcome>,
}

/// What became of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageOutcome {
    /// It is in its queue.
    Appended(Appended),
    /// It is in the log but in no queue: no consumer will see it.
    Refused(MessageRefused),
}

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Its number in its queue.
    pub queue_offset: u64,
    /// Its place in the log.
    pub physical_offset: u64,
}

/// Why a message went into no queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageRefused {
    /// Its topic was deleted before the entry was applied.
    #[error("the topic does not exist")]
    NoTopic,
    /// The topic's queues were reduced before the entry was applied.
    #[error("the topic has no such queue")]
    NoQueue,
    /// The command in front of it was refused.
    #[error("its command was refused")]
    CommandRefused,
}

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandReply {
    /// It took effect.
    Done,
    /// Topics or groups were put: for each, in order, whether it is new.
    Put {
        /// Whether the name did not exist before.
        created: Vec<bool>,
    },
    /// Offsets were committed, apart from some.
    Committed {
        /// How many named no queue, lay beyond its end, or are held by a reset.
        ignored: u32,
    },
    /// For each queue asked for, in order, whether the client holds it now.
    Locked {
        /// The answers.
        held: Vec<bool>,
    },
    /// The node has this identity.
    Identity {
        /// The identity.
        node_id: u64,
    },
    /// What became of each step, in order.
    Popped {
        /// The outcomes.
        outcomes: Vec<PopOutcome>,
    },
    /// Nothing changed.
    Refused(CommandRefused),
}

/// Why a command changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandRefused {
    /// The group is already named, and so are its first topics.
    #[error("the broker group has been started before")]
    AlreadyBootstrapped,
    /// There is no such topic.
    #[error("topic does not exist")]
    NoTopic,
    /// There is no such subscription group.
    #[error("subscription group does not exist")]
    NoGroup,
    /// The configuration is not allowed.
    #[error("not allowed: {0}")]
    Invalid(&'static str),
    /// A progress mark does not stand where the command says.
    #[error("progress mark {mark} stands at {stands}, not at {expected}")]
    MarkMoved {
        /// The mark.
        mark: String,
        /// Where it stands.
        stands: u64,
        /// Where the command expected it.
        expected: u64,
    },
    /// A message that was to move has no queue to go to.
    #[error("a message's topic or queue does not exist")]
    NoQueue,
    /// A half message is not pending where the command says.
    #[error("no transaction is pending at offset {queue_offset}: it was decided or moved before")]
    NotPending {
        /// Its number in the topic of half messages.
        queue_offset: u64,
    },
    /// A timer is not pending.
    #[error("no timer of {due_ms} is pending at {physical_offset}: it was delivered, recalled or moved before")]
    TimerNotPending {
        /// When it was due.
        due_ms: i64,
        /// Its place in the log.
        physical_offset: u64,
    },
    /// The message given up was resumed before, or is not known any more.
    #[error("the message is not among those given up, or was resumed before")]
    NotGivenUp,
    /// A message to be buried is not under way, or its time is not over.
    #[error("a message is not under way any more, or was given again")]
    NotDue,
    /// The identity belongs to another store, or the store to another identity.
    #[error("identity is taken")]
    IdentityTaken,
    /// Another change of members is under way.
    #[error("change {change} of the members is under way")]
    ChangeRunning {
        /// The change.
        change: u64,
    },
    /// A node that wants to join is not let in.
    #[error("not admitted: {0}")]
    NotAdmitted(&'static str),
}
