//! A stored message, as tools print it.

use protocol::message::{OffsetMessageId, RecordView};
use serde::Serialize;

/// The parts of a message that a person asks for.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MessageView {
    pub(crate) topic: String,
    pub(crate) queue: i32,
    pub(crate) queue_offset: i64,
    /// Names the message for ever: the address it was stored at and its place in the log.
    pub(crate) offset_id: String,
    /// The sender's own id.
    pub(crate) unique_key: Option<String>,
    pub(crate) stored_ms: i64,
    pub(crate) born_ms: i64,
    pub(crate) born_host: String,
    pub(crate) reconsume_times: i32,
    pub(crate) properties: Vec<(String, String)>,
    pub(crate) body_bytes: usize,
    /// The body, if it is text.
    pub(crate) body: Option<String>,
    pub(crate) body_crc_agrees: bool,
}

impl MessageView {
    pub(crate) fn of(record: &RecordView<'_>) -> Self {
        let id = OffsetMessageId { store_host: record.store_host(), physical_offset: record.physical_offset() };
        Self {
            topic: record.topic().to_owned(),
            queue: record.queue_id(),
            queue_offset: record.queue_offset(),
            offset_id: id.to_string(),
            unique_key: record.properties().get("UNIQ_KEY").map(ToOwned::to_owned),
            stored_ms: record.store_timestamp(),
            born_ms: record.born_timestamp(),
            born_host: record.born_host().to_string(),
            reconsume_times: record.reconsume_times(),
            properties: record.properties().iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            body_bytes: record.body().len(),
            body: std::str::from_utf8(record.body()).ok().map(ToOwned::to_owned),
            body_crc_agrees: record.body_crc_agrees(),
        }
    }

    /// The body on one line, other control characters than tabs escaped, so that a message cannot steer the terminal.
    pub(crate) fn body_line(&self) -> String {
        match &self.body {
            Some(text) => text.chars().fold(String::new(), |mut line, c| {
                if c.is_control() && c != '\t' {
                    line.extend(c.escape_default())
                } else {
                    line.push(c)
                }
                line
            }),
            None => format!("({} bytes that are not text)", self.body_bytes),
        }
    }

    pub(crate) fn to_text(&self) -> String {
        let mut lines = vec![
            format!("topic           {}", self.topic),
            format!("queue           {}, offset {}", self.queue, self.queue_offset),
            format!("offset id       {}", self.offset_id),
            format!("unique key      {}", self.unique_key.as_deref().unwrap_or("-")),
            format!("stored          {} ms ({})", self.stored_ms, crate::command::ago(self.stored_ms)),
            format!("born            {} ms at {}", self.born_ms, self.born_host),
            format!("reconsumed      {} times", self.reconsume_times),
        ];
        lines.extend(self.properties.iter().map(|(name, value)| format!("property        {name} = {value}")));
        let damage = if self.body_crc_agrees { "" } else { ", DAMAGED: checksum differs" };
        lines.push(format!("body            {} bytes{damage}", self.body_bytes));
        lines.push(String::new());
        lines.push(self.body_line());
        lines.join("\n")
    }
}
