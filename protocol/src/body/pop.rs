//! POP and the assignment of queues by the broker: codes 400, 401, 402, 200151.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::dialect::{integer, or_default};
use super::heartbeat::MessageModel;
use super::json_body;
use super::queue::MessageQueue;

/// Asks which queues a client is to read, and how (400).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssignmentRequest {
    /// The topic.
    pub topic: String,
    /// The client's group.
    pub consumer_group: String,
    /// The client.
    pub client_id: String,
    /// How queues are shared out: `AVG` or `AVG_BY_CIRCLE`.
    #[serde(default, deserialize_with = "or_default")]
    pub strategy_name: String,
    /// Whether the members share the messages.
    pub message_model: MessageModel,
}

/// The queues of a client.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Assignments {
    /// The queues.
    #[serde(deserialize_with = "or_default")]
    pub message_queue_assignments: Vec<Assignment>,
}

/// A queue, and how it is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Assignment {
    /// The queue; -1 stands for all queues of the broker.
    pub message_queue: MessageQueue,
    /// How.
    pub mode: MessageRequestMode,
}

/// How consumers get messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum MessageRequestMode {
    /// By pulling from queues of their own.
    Pull,
    /// By popping from queues they share.
    Pop,
}

/// Sets how members of a group get the messages of a topic (401).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestModeSetting {
    /// The topic.
    pub topic: String,
    /// The group.
    pub consumer_group: String,
    /// How.
    pub mode: MessageRequestMode,
    /// With how many others a member shares queues; 0: with all.
    #[serde(default, deserialize_with = "integer")]
    pub pop_share_queue_num: i32,
}

/// Every setting there is, by topic and group (402).
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RequestModes {
    /// The settings.
    #[serde(deserialize_with = "or_default")]
    pub message_request_mode_map: BTreeMap<String, BTreeMap<String, RequestModeSetting>>,
}

/// Messages that are consumed (200151).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchAck {
    /// The broker that gave them.
    #[serde(default, deserialize_with = "or_default")]
    pub broker_name: String,
    /// The messages.
    #[serde(default, deserialize_with = "or_default")]
    pub acks: Vec<QueueAcks>,
}

/// Messages of one giving and one queue that are consumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueAcks {
    /// The group.
    #[serde(rename = "c")]
    pub group: String,
    /// The topic.
    #[serde(rename = "t")]
    pub topic: String,
    /// Which kind of topic: `0` for the topic itself.
    #[serde(rename = "r", default, deserialize_with = "or_default")]
    pub retry_flag: String,
    /// The queue offset that bit 0 stands for.
    #[serde(rename = "so", deserialize_with = "integer")]
    pub start_offset: i64,
    /// The queue.
    #[serde(rename = "q", deserialize_with = "integer")]
    pub queue_id: i32,
    /// As the answer to the pop had it.
    #[serde(rename = "rq", default, deserialize_with = "integer")]
    pub revive_queue_id: i32,
    /// When they were given.
    #[serde(rename = "pt", deserialize_with = "integer")]
    pub pop_time: i64,
    /// For how long.
    #[serde(rename = "it", default, deserialize_with = "integer")]
    pub invisible_time: i64,
    /// A bit for each message, lowest first, in Base64.
    #[serde(rename = "b", default, deserialize_with = "or_default")]
    pub bits: String,
}

json_body!(
    AssignmentRequest: CLIENT,
    Assignments: SERVER,
    RequestModeSetting: CLIENT,
    RequestModes: SERVER,
    BatchAck: CLIENT,
);

impl QueueAcks {
    /// The queue offsets meant, ascending; none if `bits` is no Base64, or an offset cannot be.
    #[must_use]
    pub fn queue_offsets(&self) -> Option<Vec<u64>> {
        let start = u64::try_from(self.start_offset).ok()?;
        let mut offsets = Vec::new();
        for (at, byte) in from_base64(&self.bits)?.into_iter().enumerate() {
            for bit in 0..8_u64 {
                if byte >> bit & 1 == 1 {
                    let number = u64::try_from(at).ok()?.checked_mul(8)?.checked_add(bit)?;
                    offsets.push(start.checked_add(number)?);
                }
            }
        }
        Some(offsets)
    }
}

/// The bytes of a standard Base64 text, padded or not.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut out = Vec::with_capacity(text.len());
    let (mut held, mut bits) = (0_u32, 0_u32);
    for letter in text.bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter.wrapping_sub(b'A'),
            b'a'..=b'z' => letter.wrapping_sub(b'a').wrapping_add(26),
            b'0'..=b'9' => letter.wrapping_sub(b'0').wrapping_add(52),
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = held << 6 & 0xffff | u32::from(value);
        bits = bits.wrapping_add(6);
        if bits >= 8 {
            bits = bits.wrapping_sub(8);
            out.push(u8::try_from(held >> bits & 0xff).ok()?);
        }
    }
    // Six bits alone are no byte.
    (bits < 6).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acks(start_offset: i64, bits: &str) -> QueueAcks {
        QueueAcks {
            group: "g".to_owned(),
            topic: "T".to_owned(),
            retry_flag: "0".to_owned(),
            start_offset,
            queue_id: 0,
            revive_queue_id: 0,
            pop_time: 1,
            invisible_time: 1,
            bits: bits.to_owned(),
        }
    }

    #[test]
    fn bits_name_queue_offsets() {
        assert_eq!(acks(0, "Bg==").queue_offsets(), Some(vec![1, 2]));
        assert_eq!(acks(7, "AQAB").queue_offsets(), Some(vec![7, 23]));
        assert_eq!(acks(7, "gIA").queue_offsets(), Some(vec![14, 22]));
        assert_eq!(acks(0, "").queue_offsets(), Some(vec![]));
        for bad in ["A", "====A", "A?==", "\u{e9}"] {
            assert_eq!(acks(0, bad).queue_offsets(), None, "{bad}");
        }
        assert_eq!(acks(-1, "AQ==").queue_offsets(), None);
        assert_eq!(acks(i64::MAX, "/+8=").queue_offsets().map(|offsets| offsets.len()), Some(15));
    }

    #[test]
    fn bodies_read_as_java_writes_them() {
        let body = br#"{"acks":[{"b":"Bg==","c":"g","it":20000,"pt":1796006285482,"q":0,"r":"0","rq":0,"so":0,"t":"T"}],"brokerName":"broker-a"}"#;
        let batch = BatchAck::decode(body).unwrap();
        assert_eq!(batch.acks[0], QueueAcks { pop_time: 1_796_006_285_482, invisible_time: 20_000, ..acks(0, "Bg==") });
        let setting =
            RequestModeSetting::decode(br#"{"consumerGroup":"g","mode":"POP","popShareQueueNum":8,"topic":"T"}"#)
                .unwrap();
        assert_eq!((setting.mode, setting.pop_share_queue_num), (MessageRequestMode::Pop, 8));
        let queue = MessageQueue { broker_name: "b".to_owned(), queue_id: -1, topic: "T".to_owned() };
        let answer = Assignments {
            message_queue_assignments: vec![Assignment { message_queue: queue, mode: MessageRequestMode::Pop }],
        };
        assert_eq!(
            answer.encode(),
            r#"{"messageQueueAssignments":[{"messageQueue":{"brokerName":"b","queueId":-1,"topic":"T"},"mode":"POP"}]}"#
        );
        let asked = AssignmentRequest::decode(
            br#"{"clientId":"c","consumerGroup":"g","messageModel":"CLUSTERING","strategyName":"AVG","topic":"T"}"#,
        )
        .unwrap();
        assert_eq!(asked.message_model, MessageModel::Clustering);
    }
}
