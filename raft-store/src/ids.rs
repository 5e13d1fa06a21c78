//! The numbers of a log. They look alike and mean different things, so each is a type of its own.
//!
//! None of them converts from `u64` by `From`: a conversion is always a named call.

use std::fmt;

use openraft::vote::leader_id_std::CommittedLeaderId;

/// openraft's log id in the configuration this store serves.
pub type RaftLogId = openraft::LogId<CommittedLeaderId<u64>>;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(u64);

        impl $name {
            /// The smallest one.
            pub const ZERO: Self = Self(0);

            /// Names a plain number.
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// The plain number.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

number! {
    /// A byte address in the log, the same on every replica.
    ///
    /// The address space includes segment headers and footers: segment `n` covers the positions
    /// from `n * segment_bytes` up to the next multiple.
    LogPosition
}
number! {
    /// The number of a log entry. Consecutive entries have consecutive numbers.
    LogIndex
}
number! {
    /// A Raft term: at most one leader in each.
    Term
}

impl LogPosition {
    /// The position `bytes` further on.
    ///
    /// # Panics
    /// If the sum leaves the 64-bit range, which no log can reach.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0.checked_add(bytes).expect("a log position stays below 2^64"))
    }

    /// How many bytes lie between `earlier` and this position.
    ///
    /// # Panics
    /// If `earlier` is the later one.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.checked_sub(earlier.0).expect("the earlier position comes first")
    }
}

impl LogIndex {
    /// The number of the entry that follows.
    ///
    /// # Panics
    /// If this is the last 64-bit number, which no log can reach.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("a log index stays below 2^64"))
    }
}

/// The identity of one log entry: equal ids mean equal entries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId {
    /// The term of the leader that proposed it.
    pub term: Term,
    /// Its number.
    pub index: LogIndex,
}

impl LogId {
    /// An id from its two parts.
    pub const fn new(term: Term, index: LogIndex) -> Self {
        Self { term, index }
    }

    /// The same id as openraft writes it.
    pub fn to_raft(self) -> RaftLogId {
        RaftLogId::new(CommittedLeaderId { term: self.term.get() }, self.index.get())
    }

    /// Reads openraft's id.
    pub fn from_raft(id: &RaftLogId) -> Self {
        Self::new(Term::new(id.leader_id.term), LogIndex::new(id.index))
    }
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.term, self.index)
    }
}

impl fmt::Debug for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Which cluster a store belongs to. Part of every checksum in the log.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClusterId([u8; 16]);

impl ClusterId {
    /// Names sixteen plain bytes.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The plain bytes.
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
