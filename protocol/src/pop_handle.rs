//! The texts by which clients name what they popped.
//!
//! | Text | Form |
//! | --- | --- |
//! | handle (`extraInfo`, property `POP_CK`) | start offset, pop time, invisible time, revive queue, kind of topic, broker name, queue, queue offset, with blanks between |
//! | start offsets | `KIND QUEUE OFFSET`, with `;` between |
//! | message offsets | `KIND QUEUE OFFSET,OFFSET`, with `;` between |
//! | counts | `KIND QUEUE COUNT` or `KIND qoQUEUE%OFFSET COUNT`, with `;` between |
//!
//! The kind of a topic is 0, or 1 and 2 for the topics in which RocketMQ keeps messages to be given again.

use std::fmt::{self, Write};
use std::str::FromStr;

/// Names one giving of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PopHandle {
    /// First message of the same queue that was given along.
    pub start_offset: i64,
    /// When it was given.
    pub pop_time: i64,
    /// For how long, in milliseconds.
    pub invisible_time: i64,
    /// As the answer to the pop had it.
    pub revive_queue_id: i32,
    /// Kind of the topic.
    pub topic_kind: u8,
    /// Which broker gave it.
    pub broker_name: String,
    /// Its queue.
    pub queue_id: i32,
    /// Its queue offset; absent in old forms.
    pub queue_offset: Option<i64>,
}

/// A text is no handle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("extraInfo `{text}` is not of the form `start popTime invisibleTime reviveQid kind broker queue offset`")]
pub struct PopHandleError {
    text: String,
}

impl FromStr for PopHandle {
    type Err = PopHandleError;

    fn from_str(text: &str) -> Result<Self, PopHandleError> {
        let read = || {
            let mut fields = text.split(' ');
            let handle = Self {
                start_offset: fields.next()?.parse().ok()?,
                pop_time: fields.next()?.parse().ok()?,
                invisible_time: fields.next()?.parse().ok()?,
                revive_queue_id: fields.next()?.parse().ok()?,
                topic_kind: fields.next()?.parse().ok()?,
                broker_name: fields.next()?.to_owned(),
                queue_id: fields.next()?.parse().ok()?,
                queue_offset: fields.next().map(str::parse).transpose().ok()?,
            };
            fields.next().is_none().then_some(handle)
        };
        read().ok_or_else(|| PopHandleError { text: text.chars().take(200).collect() })
    }
}

impl fmt::Display for PopHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start_offset, pop_time, invisible_time, revive_queue_id, topic_kind, broker_name, queue_id, .. } =
            self;
        write!(
            f,
            "{start_offset} {pop_time} {invisible_time} {revive_queue_id} {topic_kind} {broker_name} {queue_id}"
        )?;
        self.queue_offset.map_or(Ok(()), |queue_offset| write!(f, " {queue_offset}"))
    }
}

/// What was given of one queue: offsets, and how often each had been given before, in the order of the messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoppedQueue {
    /// The queue.
    pub queue_id: i32,
    /// The messages.
    pub messages: Vec<(i64, i32)>,
}

/// The start offsets of an answer.
#[must_use]
pub fn start_offset_info(queues: &[PoppedQueue]) -> String {
    join(queues, |queue, out| {
        let start = queue.messages.iter().map(|(offset, _)| *offset).min().unwrap_or(0);
        write!(out, "0 {} {start}", queue.queue_id)
    })
}

/// The message offsets of an answer.
#[must_use]
pub fn msg_offset_info(queues: &[PoppedQueue]) -> String {
    join(queues, |queue, out| {
        let offsets: Vec<String> = queue.messages.iter().map(|(offset, _)| offset.to_string()).collect();
        write!(out, "0 {} {}", queue.queue_id, offsets.join(","))
    })
}

/// The counts of an answer, for messages given in order.
#[must_use]
pub fn order_count_info(queues: &[PoppedQueue]) -> String {
    join(queues, |queue, out| {
        let least = queue.messages.iter().map(|(_, times)| *times).min().unwrap_or(0);
        write!(out, "0 {} {least}", queue.queue_id)?;
        let mut messages = queue.messages.iter();
        messages.try_for_each(|(offset, times)| write!(out, ";0 qo{}%{offset} {times}", queue.queue_id))
    })
}

fn join(queues: &[PoppedQueue], mut write_one: impl FnMut(&PoppedQueue, &mut String) -> fmt::Result) -> String {
    let mut out = String::new();
    for queue in queues {
        if !out.is_empty() {
            out.push(';');
        }
        write_one(queue, &mut out).expect("writing into memory cannot fail");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_read_as_java_writes_them() {
        let text = "0 1796006281387 60000 0 0 broker-a 1 0";
        let handle: PopHandle = text.parse().unwrap();
        assert_eq!((handle.pop_time, handle.queue_id, handle.queue_offset), (1_796_006_281_387, 1, Some(0)));
        assert_eq!(handle.to_string(), text);
        let short = "7 1 2 999 1 b 3";
        assert_eq!(short.parse::<PopHandle>().unwrap().to_string(), short);
        for bad in
            ["", "1 2 3", "0 x 60000 0 0 broker-a 1 0", "0 1 60000 0 0 broker-a 1 0 9", "0 1 60000 0 0 broker-a 1 "]
        {
            assert!(bad.parse::<PopHandle>().is_err(), "{bad}");
        }
    }

    #[test]
    fn answers_name_their_messages_by_queue() {
        let queues = [
            PoppedQueue { queue_id: 1, messages: vec![(4, 2), (6, 0)] },
            PoppedQueue { queue_id: 0, messages: vec![(9, 0)] },
        ];
        assert_eq!(start_offset_info(&queues), "0 1 4;0 0 9");
        assert_eq!(msg_offset_info(&queues), "0 1 4,6;0 0 9");
        assert_eq!(order_count_info(&queues), "0 1 0;0 qo1%4 2;0 qo1%6 0;0 0 0;0 qo0%9 0");
        assert_eq!(start_offset_info(&[]), "");
    }
}
