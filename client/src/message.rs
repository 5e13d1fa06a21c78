//! Messages to send and messages received.

use std::io::Read as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use protocol::TopicName;
use protocol::message::OffsetMessageId;
use protocol::message::Properties;
use protocol::message::PropertiesBuilder;
use protocol::message::RecordView;
use protocol::message::SysFlag;
use protocol::message::iter_records;
use protocol::message::property;

use crate::Error;
use crate::Queue;
use crate::Result;

/// Most that a body may inflate to, and most times its own length.
const INFLATED_BYTES_MAX: usize = 16 << 20;
const INFLATED_RATIO_MAX: usize = 100;
/// The usual limit on a body, before compression.
const BODY_BYTES_MAX: usize = 4 << 20;
/// The level that other clients use.
const ZLIB_LEVEL: u32 = 5;

/// A message to send.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    pub(crate) topic: TopicName,
    pub(crate) body: Bytes,
    pub(crate) flag: i32,
    pub(crate) properties: PropertiesBuilder,
}

impl Message {
    /// A message without tag, keys or other properties.
    pub fn new(topic: TopicName, body: impl Into<Bytes>) -> Self {
        Self { topic, body: body.into(), flag: 0, properties: PropertiesBuilder::new() }
    }

    /// The same message with a tag, by which consumers can filter.
    ///
    /// # Errors
    /// [`Error::Property`] if the text cannot be a property.
    pub fn with_tag(self, tag: &str) -> Result<Self> {
        self.with_property(property::TAGS, tag)
    }

    /// The same message with keys, separated by blanks, by which it can be found.
    ///
    /// # Errors
    /// [`Error::Property`] if the text cannot be a property.
    pub fn with_keys(self, keys: &str) -> Result<Self> {
        self.with_property(property::KEYS, keys)
    }

    /// The same message, delivered after the delay of `level` (1 to 18).
    ///
    /// # Errors
    /// [`Error::Message`] for a level that is none.
    pub fn with_delay_level(self, level: u8) -> Result<Self> {
        if !(1..=18).contains(&level) {
            return Err(Error::Message("delay levels are 1 to 18"));
        }
        self.with_property(property::DELAY, &level.to_string())
    }

    /// The same message with one more property.
    ///
    /// # Errors
    /// [`Error::Property`] if the name or the value is empty or holds a separator.
    pub fn with_property(mut self, name: &str, value: &str) -> Result<Self> {
        self.properties.set(name, value)?;
        Ok(self)
    }

    /// The same message with `flag`, whose bits only users interpret.
    #[must_use]
    pub fn with_flag(mut self, flag: i32) -> Self {
        self.flag = flag;
        self
    }

    /// Where it goes.
    #[must_use]
    pub fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// The payload.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }
}

/// A message as a broker stored it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedMessage {
    /// The topic it was sent to; for a retried one that is not the topic it was pulled from.
    pub topic: String,
    /// The broker it came from; empty when it was looked up.
    pub broker_name: Arc<str>,
    /// Its queue.
    pub queue_id: i32,
    /// Its number in the queue.
    pub queue_offset: i64,
    /// Its place in the broker's log.
    pub physical_offset: i64,
    /// Bytes that it takes in the log.
    pub store_bytes: usize,
    /// When the sender made it, in milliseconds.
    pub born_timestamp: i64,
    /// Where it was sent from.
    pub born_host: SocketAddr,
    /// When it was stored, in milliseconds.
    pub store_timestamp: i64,
    /// Who stored it.
    pub store_host: SocketAddr,
    /// How often it was delivered before.
    pub reconsume_times: i32,
    /// Bits that only users interpret.
    pub flag: i32,
    /// How it was stored.
    pub sys_flag: SysFlag,
    /// The payload, decompressed.
    pub body: Bytes,
    properties: String,
}

impl ReceivedMessage {
    /// All messages in `body`, which is made of stored records. Payloads are slices of it.
    ///
    /// # Errors
    /// The first record that cannot be read.
    pub(crate) fn read_all(body: &Bytes, broker_name: &Arc<str>) -> Result<Vec<Self>> {
        iter_records(body).map(|record| Self::read(body, &record?, broker_name)).collect()
    }

    fn read(whole: &Bytes, record: &RecordView<'_>, broker_name: &Arc<str>) -> Result<Self> {
        let sys_flag = record.sys_flag();
        let body = whole.slice_ref(record.body());
        let body = if sys_flag.is_compressed() { decompress(&body, sys_flag)? } else { body };
        let properties = record.properties();
        Ok(Self {
            topic: properties
                .get(property::RETRY_TOPIC)
                .filter(|_| record.topic().starts_with("%RETRY%"))
                .unwrap_or_else(|| record.topic())
                .to_owned(),
            broker_name: Arc::clone(broker_name),
            queue_id: record.queue_id(),
            queue_offset: record.queue_offset(),
            physical_offset: record.physical_offset(),
            store_bytes: record.size(),
            born_timestamp: record.born_timestamp(),
            born_host: record.born_host(),
            store_timestamp: record.store_timestamp(),
            store_host: record.store_host(),
            reconsume_times: record.reconsume_times(),
            flag: record.flag(),
            sys_flag,
            body,
            properties: properties.as_str().to_owned(),
        })
    }

    /// The id that its sender gave it, else its offset id.
    #[must_use]
    pub fn message_id(&self) -> String {
        self.property(property::UNIQ_KEY).map_or_else(|| self.offset_message_id(), str::to_owned)
    }

    /// The id that says where it is stored.
    #[must_use]
    pub fn offset_message_id(&self) -> String {
        OffsetMessageId { store_host: self.store_host, physical_offset: self.physical_offset }.to_string()
    }

    /// The value of a property.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&str> {
        Properties::new(&self.properties).get(name)
    }

    /// All properties.
    pub fn properties(&self) -> impl Iterator<Item = (&str, &str)> {
        Properties::new(&self.properties).iter()
    }

    /// Its tag.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.property(property::TAGS)
    }

    /// Its keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        Properties::new(&self.properties).keys()
    }

    /// The queue it was pulled from, by the topic it belongs to.
    ///
    /// # Errors
    /// [`Error::Name`] if the stored topic is no name.
    pub fn queue(&self) -> Result<Queue> {
        Ok(Queue {
            topic: TopicName::parse(&self.topic)?,
            broker_name: Arc::clone(&self.broker_name),
            queue_id: self.queue_id,
        })
    }
}

/// The zlib stream of `body`.
pub(crate) fn compress(body: &[u8]) -> Bytes {
    let mut encoder = ZlibEncoder::new(Vec::with_capacity(body.len() / 2), Compression::new(ZLIB_LEVEL));
    encoder.write_all(body).expect("a vector takes any bytes");
    encoder.finish().expect("a vector takes any bytes").into()
}

fn decompress(body: &[u8], sys_flag: SysFlag) -> Result<Bytes> {
    const ZLIB: [i32; 2] = [0, 0x300];
    if !ZLIB.contains(&(sys_flag.0 & SysFlag::COMPRESSION_MASK)) {
        return Err(Error::Compression("neither none nor zlib"));
    }
    // The ratio is a guard against hostile streams; it must not refuse a body of zeros that was legal to send.
    let inflated_max = body.len().saturating_mul(INFLATED_RATIO_MAX).clamp(BODY_BYTES_MAX, INFLATED_BYTES_MAX);
    let mut inflated = Vec::with_capacity(body.len().saturating_mul(2).min(inflated_max));
    ZlibDecoder::new(body)
        .take(u64::try_from(inflated_max).unwrap_or(u64::MAX) + 1)
        .read_to_end(&mut inflated)
        .map_err(|_| Error::Compression("damaged stream"))?;
    if inflated.len() > inflated_max {
        return Err(Error::Compression("too large"));
    }
    Ok(inflated.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_body_comes_back() {
        let body = b"abc".repeat(10_000);
        let packed = compress(&body);
        assert!(packed.len() < body.len() / 10);
        assert_eq!(decompress(&packed, SysFlag(0x1)).unwrap(), body);
        assert_eq!(decompress(&packed, SysFlag(0x301)).unwrap(), body);
    }

    #[test]
    fn bombs_and_foreign_formats_are_refused() {
        let packed = compress(&vec![0; 17 << 20]);
        assert!(matches!(decompress(&packed, SysFlag(1)), Err(Error::Compression("too large"))));
        assert!(matches!(decompress(b"junk", SysFlag(1)), Err(Error::Compression("damaged stream"))));
        assert!(matches!(decompress(&packed, SysFlag(0x201)), Err(Error::Compression("neither none nor zlib"))));
    }

    #[test]
    fn properties_that_cannot_be_written_are_refused() {
        let message = || Message::new(TopicName::parse("T").unwrap(), "x");
        assert!(message().with_tag("a").is_ok());
        assert!(message().with_tag("").is_err());
        assert!(message().with_property("k", "a\u{1}b").is_err());
        assert!(message().with_delay_level(19).is_err());
    }
}
