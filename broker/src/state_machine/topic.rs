//! Topic configurations as the log keeps them, and the topics that exist from the start.

use std::collections::BTreeMap;
use std::time::Duration;

use bincode::{Decode, Encode};
use protocol::{NameError, TopicName, body};

use crate::config::parse_duration;

/// Readable.
pub const PERM_READ: u32 = 4;
/// Writable.
pub const PERM_WRITE: u32 = 2;
/// Other topics may be created after this one.
pub const PERM_INHERIT: u32 = 1;

/// All permissions.
pub const PERM_ALL: u32 = PERM_READ | PERM_WRITE | PERM_INHERIT;

const MULTI_TAG: &str = "MULTI_TAG";

/// The attribute that says how long messages of a topic are kept, as RocketMQ's tools set it.
pub const RETENTION_ATTRIBUTE: &str = "reserve.time";
/// Longest retention of a topic.
const RETENTION_MAX: Duration = Duration::from_secs(3650 * 24 * 3600);

/// The most queues a topic may have.
pub const QUEUES_MAX: u32 = 8192;

/// One topic of this broker group.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TopicConfig {
    /// Its name.
    #[bincode(with_serde)]
    pub name: TopicName,
    /// Queues that may be read, from 0.
    pub read_queues: u32,
    /// Queues that may be written, from 0.
    pub write_queues: u32,
    /// [`PERM_READ`] | [`PERM_WRITE`] | [`PERM_INHERIT`].
    pub perm: u32,
    /// Whether one message has one tag or several.
    pub filter: TopicFilter,
    /// Bits for clients; the broker stores them.
    pub sys_flag: i32,
    /// Whether the topic is meant for ordered messages.
    pub order: bool,
    /// Attributes, for example `message.type`.
    pub attributes: BTreeMap<String, String>,
}

/// `SINGLE_TAG` or `MULTI_TAG`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum TopicFilter {
    /// One tag a message.
    SingleTag,
    /// Several tags a message.
    MultiTag,
}

/// Why a configuration in a request is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopicConfigError {
    /// The name.
    #[error("topic name: {0}")]
    Name(#[from] NameError),
    /// The number of queues.
    #[error("{0} queues, allowed are 0 to {QUEUES_MAX}")]
    Queues(i32),
    /// The permission.
    #[error("permission {0}, allowed are 0 to {PERM_ALL}")]
    Perm(i32),
    /// The time that messages are kept.
    #[error(
        "attribute {RETENTION_ATTRIBUTE} is `{0}`, expected a number of hours or a time with its unit, such as 24 or 90m, \
         from 1s to 3650d; -1 keeps messages as long as the log does"
    )]
    Retention(String),
}

impl TopicConfig {
    /// A topic with equally many read and write queues and nothing special about it.
    pub fn new(name: TopicName, queues: u32, perm: u32) -> Self {
        Self {
            name,
            read_queues: queues,
            write_queues: queues,
            perm,
            filter: TopicFilter::SingleTag,
            sys_flag: 0,
            order: false,
            attributes: BTreeMap::new(),
        }
    }

    /// Reads a configuration from a request.
    ///
    /// # Errors
    /// A name, a number of queues or a permission that no topic has.
    pub fn from_body(body: &body::TopicConfig) -> Result<Self, TopicConfigError> {
        let queues = |found: i32| {
            u32::try_from(found).ok().filter(|queues| *queues <= QUEUES_MAX).ok_or(TopicConfigError::Queues(found))
        };
        let perm = u32::try_from(body.perm).ok().filter(|perm| *perm <= PERM_ALL);
        if let Some(text) = body.attributes.get(RETENTION_ATTRIBUTE)
            && parse_retention(text).is_none()
        {
            return Err(TopicConfigError::Retention(text.clone()));
        }
        Ok(Self {
            name: TopicName::parse(&body.topic_name)?,
            read_queues: queues(body.read_queue_nums)?,
            write_queues: queues(body.write_queue_nums)?,
            perm: perm.ok_or(TopicConfigError::Perm(body.perm))?,
            filter: match body.topic_filter_type.as_str() {
                MULTI_TAG => TopicFilter::MultiTag,
                _ => TopicFilter::SingleTag,
            },
            sys_flag: body.topic_sys_flag,
            order: body.order,
            attributes: body.attributes.clone(),
        })
    }

    /// The configuration as answers and registrations have it.
    pub fn to_body(&self) -> body::TopicConfig {
        body::TopicConfig {
            attributes: self.attributes.clone(),
            order: self.order,
            perm: self.perm.cast_signed(),
            read_queue_nums: self.read_queues.cast_signed(),
            topic_filter_type: match self.filter {
                TopicFilter::SingleTag => body::TopicConfig::SINGLE_TAG.to_owned(),
                TopicFilter::MultiTag => MULTI_TAG.to_owned(),
            },
            topic_name: self.name.to_string(),
            topic_sys_flag: self.sys_flag,
            write_queue_nums: self.write_queues.cast_signed(),
        }
    }

    /// How long its messages are kept, if that is not as long as the log keeps them.
    pub fn retention(&self) -> Option<Duration> {
        parse_retention(self.attributes.get(RETENTION_ATTRIBUTE)?)?
    }

    /// Queue ids are below this number.
    pub fn queues(&self) -> u32 {
        self.read_queues.max(self.write_queues)
    }

    /// Whether messages may be pulled.
    pub fn is_readable(&self) -> bool {
        self.perm & PERM_READ != 0
    }

    /// Whether messages may be sent.
    pub fn is_writable(&self) -> bool {
        self.perm & PERM_WRITE != 0
    }

    /// Whether other topics may be created after this one.
    pub fn is_inheritable(&self) -> bool {
        self.perm & PERM_INHERIT != 0
    }
}

/// A time to keep messages: hours, a duration with its unit, or -1 for none. The outer none: it is neither.
fn parse_retention(text: &str) -> Option<Option<Duration>> {
    if text == "-1" {
        return Some(None);
    }
    let is_hours = text.bytes().all(|byte| byte.is_ascii_digit());
    let time = if is_hours { parse_duration(&format!("{text}h")) } else { parse_duration(text) }.ok()?;
    (Duration::from_secs(1)..=RETENTION_MAX).contains(&time).then_some(Some(time))
}

/// The topics every broker has from its start.
///
/// # Errors
/// A cluster or broker name that cannot be a topic name.
pub(super) fn system_topics(cluster_name: &str, broker_name: &str) -> Result<Vec<TopicConfig>, NameError> {
    const READ_WRITE: u32 = PERM_READ | PERM_WRITE;
    let reply = format!("{cluster_name}_REPLY_TOPIC");
    let topics: [(&str, u32, u32); 13] = [
        ("TBW102", 8, PERM_ALL),
        ("SELF_TEST_TOPIC", 1, READ_WRITE),
        ("BenchmarkTest", 16, READ_WRITE),
        (cluster_name, 16, PERM_ALL),
        (broker_name, 1, PERM_ALL),
        ("OFFSET_MOVED_EVENT", 1, READ_WRITE),
        ("SCHEDULE_TOPIC_XXXX", 18, READ_WRITE),
        ("RMQ_SYS_TRACE_TOPIC", 1, READ_WRITE),
        (&reply, 1, READ_WRITE),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 1, READ_WRITE),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, READ_WRITE),
        ("TRANS_CHECK_MAX_TIME_TOPIC", 1, READ_WRITE),
        (super::timer::TIMER_TOPIC, 1, READ_WRITE),
    ];
    // A cluster may be named like its only group: the first of two equal names stays.
    let mut by_name: Vec<TopicConfig> = Vec::with_capacity(topics.len());
    for (name, queues, perm) in topics {
        let name = TopicName::parse(name)?;
        if by_name.iter().all(|topic| topic.name != name) {
            by_name.push(TopicConfig::new(name, queues, perm));
        }
    }
    Ok(by_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_may_keep_messages_for_a_time_of_its_own() {
        let with = |text: &str| {
            let attributes = BTreeMap::from([(RETENTION_ATTRIBUTE.to_owned(), text.to_owned())]);
            let body = body::TopicConfig { attributes, ..body::TopicConfig::new("t", 1, 6) };
            TopicConfig::from_body(&body).map(|topic| topic.retention().map(|time| time.as_secs()))
        };
        assert_eq!(with("24"), Ok(Some(24 * 3600)));
        assert_eq!(with("90m"), Ok(Some(90 * 60)));
        assert_eq!(with("1s"), Ok(Some(1)));
        assert_eq!(with("-1"), Ok(None));
        for bad in ["", "0", "0s", "-2", "soon", "999ms", "1.5h", "3651d", "99999999999999999999"] {
            let error = with(bad).unwrap_err();
            assert!(error.to_string().contains(&format!("reserve.time is `{bad}`")), "{error}");
        }
        assert_eq!(TopicConfig::new("t".parse().unwrap(), 1, 6).retention(), None);
    }
}
