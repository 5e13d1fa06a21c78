//! What a broker registers (103).
//!
//! A compressed body is a zlib stream of (big-endian, each text led by its length in four bytes):
//!
//! | Field | |
//! | --- | --- |
//! | data version | JSON |
//! | number of topics | 4 bytes |
//! | each topic | `name readQueues writeQueues perm filterType attributes`, attributes as JSON or missing |
//! | filter servers | JSON |
//! | number of mappings | 4 bytes; missing from older senders |
//! | each mapping | JSON; not read |

use std::collections::BTreeMap;
use std::io::Write as _;

use bytes::{BufMut as _, Bytes};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde::{Deserialize, Serialize};

use super::dialect::or_default;
use super::json_body;
use super::topic_config::{DataVersion, TopicConfig, TopicConfigTable};
use super::{SERVER, decode, encode};
use crate::error::BodyError;
use crate::message::inflate_zlib;
use crate::reader::Reader;

/// Everything a broker holds.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RegisterBrokerBody {
    /// Retired, always empty.
    #[serde(deserialize_with = "or_default")]
    pub filter_server_list: Vec<String>,
    /// Its topics.
    #[serde(rename = "topicConfigSerializeWrapper", deserialize_with = "or_default")]
    pub topics: TopicConfigTable,
}

json_body!(RegisterBrokerBody: SERVER);

impl RegisterBrokerBody {
    /// Reads a compressed body.
    ///
    /// # Errors
    /// [`BodyError`], also if it inflates to far more than any broker's topics.
    pub fn decode_compressed(body: &[u8]) -> Result<Self, BodyError> {
        let inflated = inflate_zlib(body)?;
        Self::decode_fields(&mut Reader::new(&inflated))
    }

    fn decode_fields(reader: &mut Reader<'_>) -> Result<Self, BodyError> {
        let data_version: DataVersion = decode(sized(reader)?, &SERVER)?;
        let mut topic_config_table = BTreeMap::new();
        for _ in 0..count(reader)? {
            let text = std::str::from_utf8(sized(reader)?).map_err(|_| BodyError::Layout("topic is not utf-8"))?;
            let topic = decode_topic(text)?;
            topic_config_table.insert(topic.topic_name.clone(), topic);
        }
        let filter_server_list: Option<Vec<String>> = decode(sized(reader)?, &SERVER)?;
        Ok(Self {
            filter_server_list: filter_server_list.unwrap_or_default(),
            topics: TopicConfigTable { data_version, mapping_data_version: None, topic_config_table },
        })
    }

    /// Writes a compressed body.
    #[must_use]
    pub fn encode_compressed(&self) -> Bytes {
        let mut plain = Vec::new();
        put_sized(&mut plain, &self.topics.data_version.encode());
        plain.put_i32(length(self.topics.topic_config_table.len()));
        for topic in self.topics.topic_config_table.values() {
            put_sized(&mut plain, encode_topic(topic).as_bytes());
        }
        put_sized(&mut plain, &encode(&self.filter_server_list));
        plain.put_i32(0);
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&plain).expect("a vector takes any bytes");
        encoder.finish().expect("a vector takes any bytes").into()
    }
}

/// A text led by its length.
fn sized<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], BodyError> {
    let length = reader.i32().and_then(|length| usize::try_from(length).ok());
    length.and_then(|length| reader.bytes(length)).ok_or(BodyError::Layout("text does not fit"))
}

fn put_sized(out: &mut Vec<u8>, text: &[u8]) {
    out.put_i32(length(text.len()));
    out.put_slice(text);
}

fn count(reader: &mut Reader<'_>) -> Result<u32, BodyError> {
    let count = reader.i32().and_then(|count| u32::try_from(count).ok());
    count.ok_or(BodyError::Layout("count does not fit"))
}

fn length(length: usize) -> i32 {
    i32::try_from(length).expect("a broker's topics take less than 2 GiB")
}

fn decode_topic(text: &str) -> Result<TopicConfig, BodyError> {
    let mut words = text.splitn(6, ' ');
    let mut word = || words.next().ok_or(BodyError::Layout("topic lacks a word"));
    let topic_name = word()?;
    let number = |word: &str| word.parse().map_err(|_| BodyError::Layout("topic with a bad number"));
    let read_queue_nums = number(word()?)?;
    let write_queue_nums = number(word()?)?;
    let perm = number(word()?)?;
    let topic_filter_type = word()?;
    let attributes = match words.next().map(str::trim) {
        None | Some("") => BTreeMap::new(),
        Some(json) => decode::<Option<_>>(json.as_bytes(), &SERVER)?.unwrap_or_default(),
    };
    Ok(TopicConfig {
        attributes,
        perm,
        read_queue_nums,
        write_queue_nums,
        topic_filter_type: topic_filter_type.to_owned(),
        ..TopicConfig::new(topic_name, 0, 0)
    })
}

fn encode_topic(topic: &TopicConfig) -> String {
    let TopicConfig { topic_name, read_queue_nums, write_queue_nums, perm, topic_filter_type, attributes, .. } = topic;
    let attributes = encode(attributes);
    let attributes = String::from_utf8_lossy(&attributes);
    format!("{topic_name} {read_queue_nums} {write_queue_nums} {perm} {topic_filter_type} {attributes}")
}
