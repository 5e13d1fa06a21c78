//! A queue as this crate names it: cheap to clone, ordered as all clients order queues.

use std::fmt;
use std::sync::Arc;

use protocol::TopicName;
use protocol::body::MessageQueue;

use crate::Result;

/// One queue of a topic at a broker. Ordered by topic, broker name and number, as every client must.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Queue {
    /// The topic.
    pub topic: TopicName,
    /// The broker name.
    pub broker_name: Arc<str>,
    /// The number.
    pub queue_id: i32,
}

impl Queue {
    /// The queue as it stands in bodies.
    #[must_use]
    pub fn to_wire(&self) -> MessageQueue {
        MessageQueue {
            broker_name: self.broker_name.to_string(),
            queue_id: self.queue_id,
            topic: self.topic.to_string(),
        }
    }

    /// Reads a queue from a body.
    ///
    /// # Errors
    /// [`Error::Name`](crate::Error::Name) if the topic is none.
    pub fn from_wire(queue: &MessageQueue) -> Result<Self> {
        Ok(Self {
            topic: TopicName::parse(&queue.topic)?,
            broker_name: Arc::from(queue.broker_name.as_str()),
            queue_id: queue.queue_id,
        })
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.topic, self.broker_name, self.queue_id)
    }
}
