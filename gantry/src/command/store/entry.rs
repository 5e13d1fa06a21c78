//! What a log record holds, taken apart.

use broker::state_machine::command::{Parsed, parse_payload};
use protocol::message::{RecordView, iter_records};
use raft_store::{BodyKind, RECORD_HEADER_BYTES, RecordSeen};
use serde::Serialize;

/// A record's content.
#[derive(Debug)]
pub(super) struct Content<'a> {
    /// `messages`, `command`, `blank`, `membership`, or `pad`.
    pub(super) kind: &'static str,
    /// The command's name.
    pub(super) command: Option<String>,
    /// Messages, with their places in the log.
    pub(super) messages: Vec<(u64, RecordView<'a>)>,
    /// What could not be understood.
    pub(super) problem: Option<String>,
}

/// One message, as `dump` prints it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MessageLine {
    pub(super) physical_offset: u64,
    pub(super) topic: String,
    pub(super) queue: i32,
    pub(super) bytes: usize,
    pub(super) body_bytes: usize,
    pub(super) stored_ms: i64,
    pub(super) unique_key: Option<String>,
    pub(super) keys: Vec<String>,
    pub(super) tags: Option<String>,
    pub(super) body_crc_agrees: bool,
}

impl<'a> Content<'a> {
    pub(super) fn of(record: &'a RecordSeen) -> Self {
        let mut content = Self { kind: "pad", command: None, messages: Vec::new(), problem: None };
        match record.kind {
            None => {}
            Some(BodyKind::Blank) => content.kind = "blank",
            Some(BodyKind::Membership) => content.kind = "membership",
            Some(BodyKind::Normal) => content.take_apart(record),
        }
        content
    }

    fn take_apart(&mut self, record: &'a RecordSeen) {
        self.kind = "command";
        let records_at = match parse_payload(&record.payload) {
            Ok(Parsed::Pack) => {
                self.kind = "messages";
                0
            }
            Ok(Parsed::Command { command, records_at }) => {
                let text = format!("{command:?}");
                self.command = text.split(|c: char| !c.is_alphanumeric()).next().map(ToOwned::to_owned);
                records_at
            }
            Err(error) => {
                self.problem = Some(error.to_string());
                return;
            }
        };
        let mut at = record.position.get() + RECORD_HEADER_BYTES + records_at as u64;
        for message in iter_records(record.payload.get(records_at..).unwrap_or_default()) {
            match message {
                Ok(message) => {
                    let bytes = message.size() as u64;
                    self.messages.push((at, message));
                    at += bytes;
                }
                Err(error) => {
                    self.problem = Some(format!("message at {at}: {error}"));
                    return;
                }
            }
        }
    }
}

impl MessageLine {
    pub(super) fn of(physical_offset: u64, record: &RecordView<'_>) -> Self {
        let properties = record.properties();
        let keys = properties.get("KEYS").unwrap_or_default();
        Self {
            physical_offset,
            topic: record.topic().to_owned(),
            queue: record.queue_id(),
            bytes: record.size(),
            body_bytes: record.body().len(),
            stored_ms: record.store_timestamp(),
            unique_key: properties.get("UNIQ_KEY").map(ToOwned::to_owned),
            keys: keys.split(' ').filter(|key| !key.is_empty()).map(ToOwned::to_owned).collect(),
            tags: properties.get("TAGS").map(ToOwned::to_owned),
            body_crc_agrees: record.body_crc_agrees(),
        }
    }

    pub(super) fn has_key(&self, key: &str) -> bool {
        self.unique_key.as_deref() == Some(key) || self.keys.iter().any(|known| known == key)
    }
}
