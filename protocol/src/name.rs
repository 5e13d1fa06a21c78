//! Topic and group names. The one parser for each: a value of these types may become part of a path.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::NameError;

/// Prefix of the topic that holds a group's messages to be consumed again.
pub(crate) const RETRY_PREFIX: &str = "%RETRY%";
/// Prefix of the topic that holds messages a group gave up on.
pub(crate) const DLQ_PREFIX: &str = "%DLQ%";

const TOPIC_BYTES_MAX: usize = 127;
const GROUP_BYTES_MAX: usize = 120;
// So that a group's derived topics always fit the one length byte of a stored record.
const _: () = assert!(GROUP_BYTES_MAX + RETRY_PREFIX.len() <= TOPIC_BYTES_MAX);
const _: () = assert!(GROUP_BYTES_MAX + DLQ_PREFIX.len() <= TOPIC_BYTES_MAX);

/// Topics that no client may write to.
const SEND_FORBIDDEN: [&str; 6] = [
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
];

/// Topics the broker owns, beside those of [`SEND_FORBIDDEN`], those that start with [`SYSTEM_PREFIX`] and reply topics.
const SYSTEM_TOPICS: [&str; 4] = ["TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC"];
const SYSTEM_PREFIX: &str = "rmq_sys_";
const REPLY_SUFFIX: &str = "_REPLY_TOPIC";

/// Groups that clients and tools use without registering them.
const SYSTEM_GROUPS: [&str; 11] = [
    "DEFAULT_CONSUMER",
    "TOOLS_CONSUMER",
    "SCHEDULE_CONSUMER",
    "FILTERSRV_CONSUMER",
    "__MONITOR_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_ONSAPI_PULL",
    "CID_RMQ_SYS_TRANS",
];
const SYSTEM_GROUP_PREFIX: &str = "CID_RMQ_SYS_";

macro_rules! name_type {
    ($(#[$doc:meta])* $type:ident, $max:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(Arc<str>);

        impl $type {
            /// Longest name in bytes.
            pub const BYTES_MAX: usize = $max;

            /// Checks `text` and keeps a copy of it.
            ///
            /// # Errors
            /// The rule that `text` breaks.
            pub fn parse(text: &str) -> Result<Self, NameError> {
                check(text, $max)?;
                Ok(Self(Arc::from(text)))
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Deref for $type {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl PartialEq<str> for $type {
            fn eq(&self, other: &str) -> bool {
                &*self.0 == other
            }
        }

        impl PartialEq<&str> for $type {
            fn eq(&self, other: &&str) -> bool {
                &*self.0 == *other
            }
        }

        impl FromStr for $type {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::parse(text)
            }
        }

        impl TryFrom<&str> for $type {
            type Error = NameError;

            fn try_from(text: &str) -> Result<Self, NameError> {
                Self::parse(text)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

name_type! {
    /// A topic: 1 to 127 letters, digits, `_`, `-`, `%`, `|`. Cloning is cheap.
    TopicName, TOPIC_BYTES_MAX
}

name_type! {
    /// A producer or consumer group: 1 to 120 letters, digits, `_`, `-`, `%`, `|`. Cloning is cheap.
    GroupName, GROUP_BYTES_MAX
}

/// Admits no separator, dot, blank or control character, so no name leaves the directory it is joined to.
fn check(text: &str, bytes_max: usize) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if text.len() > bytes_max {
        return Err(NameError::Length { found: text.len(), max: bytes_max });
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'%' | b'|');
    if !text.bytes().all(allowed) {
        return Err(NameError::Character);
    }
    Ok(())
}

impl TopicName {
    /// The topic whose settings a topic created by its first message inherits.
    pub const AUTO_CREATE: &str = "TBW102";

    /// Whether this holds a group's messages to be consumed again.
    #[must_use]
    pub fn is_retry(&self) -> bool {
        self.0.starts_with(RETRY_PREFIX)
    }

    /// Whether this holds messages a group gave up on.
    #[must_use]
    pub fn is_dlq(&self) -> bool {
        self.0.starts_with(DLQ_PREFIX)
    }

    /// The group whose retry topic this is.
    #[must_use]
    pub fn retry_group(&self) -> Option<GroupName> {
        self.0.strip_prefix(RETRY_PREFIX).and_then(|group| GroupName::parse(group).ok())
    }

    /// The group whose dead-letter topic this is.
    #[must_use]
    pub fn dlq_group(&self) -> Option<GroupName> {
        self.0.strip_prefix(DLQ_PREFIX).and_then(|group| GroupName::parse(group).ok())
    }

    /// Whether the broker owns this topic, so that no tool may change or delete it.
    ///
    /// Retry and dead-letter topics are not among them. Topics named like the cluster or the broker are, but only the
    /// broker can tell.
    #[must_use]
    pub fn is_system(&self) -> bool {
        SYSTEM_TOPICS.contains(&&*self.0)
            || SEND_FORBIDDEN.contains(&&*self.0)
            || self.0.starts_with(SYSTEM_PREFIX)
            || self.0.ends_with(REPLY_SUFFIX)
    }

    /// Whether a client's message to this topic is refused.
    #[must_use]
    pub fn is_send_forbidden(&self) -> bool {
        SEND_FORBIDDEN.contains(&&*self.0)
    }

    /// The topic for replies to requests within `cluster`.
    ///
    /// # Errors
    /// If `cluster` is not fit to be part of a topic.
    pub fn reply_of(cluster: &str) -> Result<Self, NameError> {
        Self::parse(&format!("{cluster}{REPLY_SUFFIX}"))
    }
}

impl GroupName {
    /// The topic that holds this group's messages to be consumed again.
    #[must_use]
    pub fn retry_topic(&self) -> TopicName {
        TopicName(Arc::from(format!("{RETRY_PREFIX}{}", self.0)))
    }

    /// The topic that holds the messages this group gave up on.
    #[must_use]
    pub fn dlq_topic(&self) -> TopicName {
        TopicName(Arc::from(format!("{DLQ_PREFIX}{}", self.0)))
    }

    /// Whether this is a group that clients and tools use without registering it.
    #[must_use]
    pub fn is_system(&self) -> bool {
        SYSTEM_GROUPS.contains(&&*self.0) || self.0.starts_with(SYSTEM_GROUP_PREFIX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_a_directory_are_refused() {
        for text in ["", ".", "..", "a/b", "a\\b", "a.b", "a b", "a\0", "a\n", "\u{e4}", "a:b", "*"] {
            assert!(TopicName::parse(text).is_err(), "{text:?}");
            assert!(GroupName::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn derived_topics_of_the_longest_group_are_topics() {
        let group = GroupName::parse(&"g".repeat(120)).unwrap();
        assert!(GroupName::parse(&"g".repeat(121)).is_err());
        let retry = group.retry_topic();
        assert_eq!(TopicName::parse(&retry), Ok(retry.clone()));
        assert!(retry.is_retry() && !retry.is_dlq() && !retry.is_system());
        assert_eq!(retry.retry_group(), Some(group.clone()));
        assert_eq!(group.dlq_topic().dlq_group(), Some(group));
    }

    #[test]
    fn topic_length_is_limited_to_one_byte() {
        assert!(TopicName::parse(&"t".repeat(127)).is_ok());
        assert_eq!(TopicName::parse(&"t".repeat(128)), Err(NameError::Length { found: 128, max: 127 }));
    }

    #[test]
    fn system_names_are_known() {
        for text in ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "DefaultCluster_REPLY_TOPIC"] {
            assert!(TopicName::parse(text).unwrap().is_system(), "{text}");
        }
        for text in ["T", "%RETRY%g", "%DLQ%g"] {
            assert!(!TopicName::parse(text).unwrap().is_system(), "{text}");
        }
        assert!(TopicName::parse("SELF_TEST_TOPIC").unwrap().is_send_forbidden());
        assert!(!TopicName::parse("TBW102").unwrap().is_send_forbidden());
        assert!(GroupName::parse("TOOLS_CONSUMER").unwrap().is_system());
        assert!(!GroupName::parse("g").unwrap().is_system());
    }
}
