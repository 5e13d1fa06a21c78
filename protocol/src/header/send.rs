//! Sending: codes 10, 310, 320 and, for replies, 324, 325 and 326.

use std::fmt::Display;

use crate::code::RequestCode;
use crate::command::RemotingCommand;
use crate::error::{FieldError, NameError};
use crate::ext_fields::{ExtFields, ExtValue};
use crate::name::{GroupName, TopicName};

/// A message or a batch of messages to store. The payload is the body of the command.
///
/// Read from the long form (full field names) or the short one (letters), whichever the request code says.
#[derive(Clone, Debug, PartialEq)]
pub struct SendRequest<'a> {
    /// Group of the sender. Only transactions need it to be a well-formed name.
    pub producer_group: &'a str,
    /// Where to store.
    pub topic: TopicName,
    /// Topic whose settings are inherited if `topic` is created now.
    pub default_topic: &'a str,
    /// Queues wanted if `topic` is created now.
    pub default_topic_queue_nums: i32,
    /// Queue to store in; -1 leaves the choice to the broker.
    pub queue_id: i32,
    /// [`SysFlag`](crate::message::SysFlag) bits.
    pub sys_flag: i32,
    /// When the sender made the message, in milliseconds.
    pub born_timestamp: i64,
    /// Bits that only users interpret.
    pub flag: i32,
    /// Properties as text; see [`Properties`](crate::message::Properties).
    pub properties: &'a str,
    /// How often the message was delivered before, if it is a retry.
    pub reconsume_times: i32,
    /// Unit mode, a feature of one large installation.
    pub unit_mode: bool,
    /// Whether the body holds several messages. Also set for code 320.
    pub batch: bool,
    /// Limit on deliveries, if this is a retry.
    pub max_reconsume_times: Option<i32>,
    /// The broker that the sender thinks it talks to.
    pub broker_name: Option<&'a str>,
}

/// What the field of a name or letter is.
#[derive(Clone, Copy)]
enum Field {
    ProducerGroup,
    Topic,
    DefaultTopic,
    DefaultTopicQueueNums,
    QueueId,
    SysFlag,
    BornTimestamp,
    Flag,
    Properties,
    ReconsumeTimes,
    UnitMode,
    MaxReconsumeTimes,
    Batch,
    BrokerName,
}

impl Field {
    fn of_letter(key: &str) -> Option<Self> {
        let [letter] = key.as_bytes() else {
            return None;
        };
        Some(match letter {
            b'a' => Self::ProducerGroup,
            b'b' => Self::Topic,
            b'c' => Self::DefaultTopic,
            b'd' => Self::DefaultTopicQueueNums,
            b'e' => Self::QueueId,
            b'f' => Self::SysFlag,
            b'g' => Self::BornTimestamp,
            b'h' => Self::Flag,
            b'i' => Self::Properties,
            b'j' => Self::ReconsumeTimes,
            b'k' => Self::UnitMode,
            b'l' => Self::MaxReconsumeTimes,
            b'm' => Self::Batch,
            b'n' => Self::BrokerName,
            _ => return None,
        })
    }

    fn of_name(key: &str) -> Option<Self> {
        Some(match key {
            "producerGroup" => Self::ProducerGroup,
            "topic" => Self::Topic,
            "defaultTopic" => Self::DefaultTopic,
            "defaultTopicQueueNums" => Self::DefaultTopicQueueNums,
            "queueId" => Self::QueueId,
            "sysFlag" => Self::SysFlag,
            "bornTimestamp" => Self::BornTimestamp,
            "flag" => Self::Flag,
            "properties" => Self::Properties,
            "reconsumeTimes" => Self::ReconsumeTimes,
            "unitMode" => Self::UnitMode,
            "maxReconsumeTimes" => Self::MaxReconsumeTimes,
            "batch" => Self::Batch,
            "bname" => Self::BrokerName,
            _ => return None,
        })
    }
}

/// An old C++ library, still inside the Python client, writes 1 where others write true.
fn is_true(value: &str) -> bool {
    value == "1" || value.eq_ignore_ascii_case("true")
}

fn number<T: ExtValue>(field: &'static str, value: &str) -> Result<T, FieldError> {
    T::read(field, Some(value))
}

fn required<T>(value: Option<T>, field: &'static str) -> Result<T, FieldError> {
    value.ok_or(FieldError::Missing { field })
}

impl<'a> SendRequest<'a> {
    /// Whether requests of `code` carry letters instead of full names.
    #[must_use]
    pub const fn is_short_form(code: RequestCode) -> bool {
        matches!(
            code,
            RequestCode::SEND_MESSAGE_V2 | RequestCode::SEND_BATCH_MESSAGE | RequestCode::SEND_REPLY_MESSAGE_V2
        )
    }

    /// Reads the ext fields of `command`.
    ///
    /// # Errors
    /// [`FieldError`] names the field that is missing or malformed.
    pub fn decode(command: &'a RemotingCommand) -> Result<Self, FieldError> {
        let code = command.request_code();
        let field_of = if Self::is_short_form(code) { Field::of_letter } else { Field::of_name };
        let mut producer_group = None;
        let mut topic = None;
        let mut default_topic = None;
        let mut default_topic_queue_nums = None;
        let mut queue_id = None;
        let mut sys_flag = None;
        let mut born_timestamp = None;
        let mut flag = None;
        let mut properties = "";
        let mut reconsume_times = 0;
        let mut unit_mode = false;
        let mut batch = code == RequestCode::SEND_BATCH_MESSAGE;
        let mut max_reconsume_times = None;
        let mut broker_name = None;
        for (key, value) in command.ext.iter() {
            let Some(field) = field_of(key) else { continue };
            match field {
                Field::ProducerGroup => producer_group = Some(value),
                Field::Topic => topic = Some(value),
                Field::DefaultTopic => default_topic = Some(value),
                Field::DefaultTopicQueueNums => {
                    default_topic_queue_nums = Some(number("defaultTopicQueueNums", value)?)
                }
                Field::QueueId => queue_id = Some(number("queueId", value)?),
                Field::SysFlag => sys_flag = Some(number("sysFlag", value)?),
                Field::BornTimestamp => born_timestamp = Some(number("bornTimestamp", value)?),
                Field::Flag => flag = Some(number("flag", value)?),
                Field::Properties => properties = value,
                Field::ReconsumeTimes => reconsume_times = number::<Option<_>>("reconsumeTimes", value)?.unwrap_or(0),
                Field::UnitMode => unit_mode = is_true(value),
                Field::MaxReconsumeTimes => max_reconsume_times = number("maxReconsumeTimes", value)?,
                Field::Batch => batch |= is_true(value),
                Field::BrokerName => broker_name = (!value.is_empty()).then_some(value),
            }
        }
        let topic = required(topic, "topic")?;
        Ok(Self {
            producer_group: required(producer_group, "producerGroup")?,
            topic: TopicName::parse(topic).map_err(|source: NameError| FieldError::Name { field: "topic", source })?,
            default_topic: required(default_topic, "defaultTopic")?,
            default_topic_queue_nums: required(default_topic_queue_nums, "defaultTopicQueueNums")?,
            queue_id: required(queue_id, "queueId")?,
            sys_flag: required(sys_flag, "sysFlag")?,
            born_timestamp: required(born_timestamp, "bornTimestamp")?,
            flag: required(flag, "flag")?,
            properties,
            reconsume_times,
            unit_mode,
            batch,
            max_reconsume_times,
            broker_name,
        })
    }

    /// Adds the fields in the form that requests of `code` have.
    pub fn encode_into(&self, code: RequestCode, ext: &mut ExtFields) {
        let short = Self::is_short_form(code);
        let mut put = |letter: &'static str, name: &'static str, value: &dyn Display| {
            ext.push_display(if short { letter } else { name }, value);
        };
        put("a", "producerGroup", &self.producer_group);
        put("b", "topic", &self.topic);
        put("c", "defaultTopic", &self.default_topic);
        put("d", "defaultTopicQueueNums", &self.default_topic_queue_nums);
        put("e", "queueId", &self.queue_id);
        put("f", "sysFlag", &self.sys_flag);
        put("g", "bornTimestamp", &self.born_timestamp);
        put("h", "flag", &self.flag);
        put("i", "properties", &self.properties);
        put("j", "reconsumeTimes", &self.reconsume_times);
        put("k", "unitMode", &self.unit_mode);
        if let Some(times) = self.max_reconsume_times {
            put("l", "maxReconsumeTimes", &times);
        }
        put("m", "batch", &self.batch);
        if let Some(name) = self.broker_name {
            put("n", "bname", &name);
        }
    }
}

/// Where a message was stored. Present in answers 0, 10, 11 and 12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendResponse<'a> {
    /// The offset message id, or those of a batch joined by commas.
    pub msg_id: &'a str,
    /// Queue it was stored in.
    pub queue_id: i32,
    /// Its number in that queue; the first one of a batch.
    pub queue_offset: i64,
    /// The client's own id of the message.
    pub transaction_id: Option<&'a str>,
    /// Region of the broker, for message traces.
    pub region: Option<&'a str>,
    /// Whether the sender should trace the message.
    pub trace_on: Option<bool>,
    /// Takes a timer message back: see [`RecallHandle`](crate::message::RecallHandle).
    pub recall_handle: Option<&'a str>,
}

/// The region of a broker that was not given another.
pub const DEFAULT_REGION: &str = "DefaultRegion";

impl<'a> SendResponse<'a> {
    /// Reads the ext fields of `command`.
    ///
    /// # Errors
    /// [`FieldError`] names the field that is missing or malformed.
    pub fn decode(command: &'a RemotingCommand) -> Result<Self, FieldError> {
        let ext = &command.ext;
        Ok(Self {
            msg_id: ext.get("msgId").ok_or(FieldError::Missing { field: "msgId" })?,
            queue_id: ext.read("queueId")?,
            queue_offset: ext.read("queueOffset")?,
            transaction_id: ext.get_non_empty("transactionId"),
            region: ext.get_non_empty("MSG_REGION"),
            trace_on: ext.read("TRACE_ON")?,
            recall_handle: ext.get_non_empty("recallHandle"),
        })
    }

    /// Adds the fields to `ext`.
    pub fn encode_into(&self, ext: &mut ExtFields) {
        ext.push("msgId", self.msg_id);
        ext.push_integer("queueId", i64::from(self.queue_id));
        ext.push_integer("queueOffset", self.queue_offset);
        if let Some(id) = self.transaction_id {
            ext.push("transactionId", id);
        }
        if let Some(region) = self.region {
            ext.push("MSG_REGION", region);
        }
        ext.write("TRACE_ON", &self.trace_on);
        if let Some(handle) = self.recall_handle {
            ext.push("recallHandle", handle);
        }
    }
}

header! {
    /// A reply to be handed to the client that asked (326). The payload is the body of the command.
    pub struct PushReplyRequest {
        /// Group of the replying client.
        producer_group: String = "producerGroup";
        /// Reply topic.
        topic: TopicName = "topic";
        /// As in [`SendRequest`].
        default_topic: String = "defaultTopic";
        /// As in [`SendRequest`].
        default_topic_queue_nums: i32 = "defaultTopicQueueNums";
        /// As in [`SendRequest`].
        queue_id: i32 = "queueId";
        /// As in [`SendRequest`].
        sys_flag: i32 = "sysFlag";
        /// As in [`SendRequest`].
        born_timestamp: i64 = "bornTimestamp";
        /// As in [`SendRequest`].
        flag: i32 = "flag";
        /// As in [`SendRequest`].
        properties: Option<String> = "properties";
        /// As in [`SendRequest`].
        reconsume_times: i32 = "reconsumeTimes", default 0;
        /// As in [`SendRequest`].
        unit_mode: bool = "unitMode", default false;
        /// `ip:port` of the replying client.
        born_host: String = "bornHost";
        /// `ip:port` of the broker.
        store_host: String = "storeHost";
        /// When the broker got the reply, in milliseconds.
        store_timestamp: i64 = "storeTimestamp";
    }
}

header! {
    /// A message that a consumer could not handle, to be delivered again (36).
    pub struct SendBackRequest {
        /// Physical offset of the message.
        physical_offset: i64 = "offset";
        /// The consumer's group.
        group: GroupName = "group";
        /// 0: the broker decides; negative: dead-letter topic at once; else the level.
        delay_level: i32 = "delayLevel";
        /// Id of the message.
        origin_msg_id: Option<String> = "originMsgId";
        /// Topic it was consumed from.
        origin_topic: Option<String> = "originTopic";
        /// Unit mode.
        unit_mode: bool = "unitMode", default false;
        /// The client's limit on deliveries.
        max_reconsume_times: Option<i32> = "maxReconsumeTimes";
    }
}
