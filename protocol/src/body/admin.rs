//! Entries of consume queues (321) and configuration as text (25, 26, 318, 319).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::dialect::{integer, or_default};
use super::heartbeat::SubscriptionData;
use super::json_body;
use crate::error::BodyError;

/// Part of a consume queue (321).
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueryConsumeQueueBody {
    /// The group's filter as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter_data: Option<String>,
    /// Queue offset that the next message gets.
    #[serde(deserialize_with = "integer")]
    pub max_queue_index: i64,
    /// First queue offset there is.
    #[serde(deserialize_with = "integer")]
    pub min_queue_index: i64,
    /// The entries.
    #[serde(deserialize_with = "or_default")]
    pub queue_data: Vec<ConsumeQueueEntry>,
    /// The group's subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription_data: Option<SubscriptionData>,
}

/// One entry of a consume queue.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumeQueueEntry {
    /// Whether the group's filter lets it pass.
    pub eval: bool,
    /// What went wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub msg: Option<String>,
    /// Physical offset of the message.
    #[serde(rename = "physicOffset", deserialize_with = "integer")]
    pub physical_offset: i64,
    /// Size of the message.
    #[serde(rename = "physicSize", deserialize_with = "integer")]
    pub message_bytes: i32,
    /// Hash of its tag.
    #[serde(deserialize_with = "integer")]
    pub tags_code: i64,
}

json_body!(QueryConsumeQueueBody: SERVER);

/// Longest text of settings that is read.
const CONFIG_BYTES_MAX: usize = 1024 * 1024;

/// Writes settings as lines of `key=value`.
#[must_use]
pub fn encode_config_text<'a>(settings: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::new();
    for (key, value) in settings {
        text.push_str(key);
        text.push('=');
        // A line ends the value, whatever it holds.
        text.push_str(value.lines().next().unwrap_or_default());
        text.push('\n');
    }
    text
}

/// Reads lines of `key=value`; empty lines and comments are skipped.
///
/// # Errors
/// [`BodyError`] if the text is too long or not UTF-8.
pub fn decode_config_text(body: &[u8]) -> Result<BTreeMap<String, String>, BodyError> {
    if body.len() > CONFIG_BYTES_MAX {
        return Err(BodyError::Length { found: body.len(), max: CONFIG_BYTES_MAX });
    }
    let text = std::str::from_utf8(body).map_err(|_| BodyError::Layout("not utf-8"))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', '!']));
    let entry = |line: &str| {
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        (key.trim().to_owned(), value.trim().to_owned())
    };
    Ok(lines.map(entry).collect())
}
