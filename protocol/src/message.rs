//! Messages: stored records, properties, ids, flags, batches, hashes.

mod batch;
mod compression;
mod hash;
mod id;
mod properties;
mod recall;
mod record;
mod sys_flag;

pub use batch::{BatchItem, BatchItems, decode_batch, encode_batch_item};
pub(crate) use compression::inflate_zlib;
pub use compression::{InflateError, inflate};
pub use hash::{body_crc, index_key_hash, java_hash_code, tags_code};
pub use id::{OffsetMessageId, OffsetMessageIdError, UniqueKeyParts, unique_key};
pub use properties::{Properties, PropertiesBuilder, PropertiesError, property};
pub use recall::{RecallHandle, RecallHandleError};
pub use record::{
    NewMessage, RecordError, RecordView, Records, encode_record, iter_records, patch_offsets, patch_reconsume_times,
};
pub use sys_flag::{SysFlag, TransactionType};
