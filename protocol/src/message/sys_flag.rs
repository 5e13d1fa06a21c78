//! The sysFlag of a message.

/// Bits that say how a message is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct SysFlag(pub i32);

/// What a message has to do with a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransactionType {
    /// Nothing.
    None,
    /// A half message: not to be delivered yet.
    Prepared,
    /// The delivered copy of a half message.
    Commit,
    /// A half message taken back.
    Rollback,
}

impl SysFlag {
    /// The body is compressed.
    pub const COMPRESSED: i32 = 0x1;
    /// The topic filters by several tags.
    pub const MULTI_TAGS: i32 = 0x2;
    /// Half message.
    pub const TRANSACTION_PREPARED: i32 = 0x4;
    /// Committed message.
    pub const TRANSACTION_COMMIT: i32 = 0x8;
    /// Both transaction bits: rolled back.
    pub const TRANSACTION_ROLLBACK: i32 = 0xc;
    /// The born host has sixteen bytes.
    pub const BORN_HOST_V6: i32 = 0x10;
    /// The store host has sixteen bytes.
    pub const STORE_HOST_V6: i32 = 0x20;
    /// The body is a batch that the client takes apart.
    pub const NEED_UNWRAP: i32 = 0x40;
    /// The body is a batch stored as one message.
    pub const INNER_BATCH: i32 = 0x80;
    /// Three bits that name the compression; 0 means zlib.
    pub const COMPRESSION_MASK: i32 = 0x700;
    /// Compressed by LZ4.
    pub const COMPRESSION_LZ4: i32 = 0x100;
    /// Compressed by ZSTD.
    pub const COMPRESSION_ZSTD: i32 = 0x200;
    /// Compressed by zlib.
    pub const COMPRESSION_ZLIB: i32 = 0x300;

    /// Whether all of `bits` are set.
    #[must_use]
    pub const fn has(self, bits: i32) -> bool {
        self.0 & bits == bits
    }

    /// The same flag with `bits` set.
    #[must_use]
    pub const fn with(self, bits: i32) -> Self {
        Self(self.0 | bits)
    }

    /// The same flag with `bits` cleared.
    #[must_use]
    pub const fn without(self, bits: i32) -> Self {
        Self(self.0 & !bits)
    }

    /// Whether the body is compressed.
    #[must_use]
    pub const fn is_compressed(self) -> bool {
        self.has(Self::COMPRESSED)
    }

    /// What the two transaction bits say.
    #[must_use]
    pub const fn transaction_type(self) -> TransactionType {
        match self.0 & Self::TRANSACTION_ROLLBACK {
            0 => TransactionType::None,
            Self::TRANSACTION_PREPARED => TransactionType::Prepared,
            Self::TRANSACTION_COMMIT => TransactionType::Commit,
            _ => TransactionType::Rollback,
        }
    }

    /// The same flag, no longer part of a transaction.
    #[must_use]
    pub const fn without_transaction(self) -> Self {
        self.without(Self::TRANSACTION_ROLLBACK)
    }
}
