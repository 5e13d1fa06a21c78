//! What messages have in common that wait in a topic of the broker before they reach their own: on a delay level, for
//! their time, or for the end of their transaction.

use std::sync::Arc;

use bytes::BytesMut;
use protocol::message::{NewMessage, RecordView, encode_record, property};

use super::answer::Failure;
use super::send::{PROPERTIES_BYTES_MAX, wire_queue};
use super::{Group, now};
use crate::state_machine::TopicConfig;
use crate::store;

/// Most messages of one entry, and of one look at them.
pub(super) const BATCH_MAX: usize = 256;
/// An entry is closed once it has so many bytes.
pub(super) const BATCH_BYTES_MAX: usize = 1 << 20;

/// Longest properties of a message that waits, in bytes. Its copies may say when it is due, or how often its producer was
/// asked.
pub(super) const WAITING_PROPERTIES_BYTES_MAX: usize = PROPERTIES_BYTES_MAX - 64;

/// Topic and queue that a message which waits is for.
pub(super) fn real_place<'a>(record: &RecordView<'a>) -> Result<(&'a str, u32), Failure> {
    let properties = record.properties();
    let topic = properties.get(property::REAL_TOPIC);
    let topic = topic.ok_or_else(|| Failure::error("the message does not say where it is to go"))?;
    Ok((topic, properties.get(property::REAL_QID).and_then(|id| id.parse().ok()).unwrap_or(0)))
}

impl Group {
    /// Topic and queue where a message that waits goes now.
    pub(super) fn target_of(&self, record: &RecordView<'_>) -> Result<(Arc<TopicConfig>, u32), Failure> {
        let (topic, queue_id) = real_place(record)?;
        let config = self.0.state.topic(topic).ok_or_else(|| Failure::no_topic(topic))?;
        // The topic may have fewer queues by now.
        let queue_id = queue_id % config.queues().max(1);
        Ok((config, queue_id))
    }

    /// Adds the copy of a message that is due, for the topic and queue it names. Returns false, and says so, if it has
    /// nowhere to go.
    pub(super) fn copy_due(&self, waiting: &[u8], records: &mut BytesMut) -> bool {
        let copied = (|| {
            let record = RecordView::parse(waiting).map_err(|error| Failure::error(error.to_string()))?;
            let (config, queue_id) = self.target_of(&record)?;
            self.copy(&record, &config.name, queue_id, record.properties().as_str(), records)
        })();
        match copied {
            Ok(()) => true,
            Err(failure) => {
                tracing::warn!(group = self.name(), ?failure, "a delayed message is dropped");
                false
            }
        }
    }

    /// Adds a copy of a message for a queue, stored now and with these properties.
    pub(super) fn copy(
        &self,
        record: &RecordView<'_>,
        topic: &str,
        queue_id: u32,
        properties: &str,
        records: &mut BytesMut,
    ) -> Result<(), Failure> {
        let message = NewMessage {
            topic,
            queue_id: wire_queue(queue_id),
            store_timestamp: self.stamp_ms(),
            store_host: self.0.settings.client_addr,
            properties,
            ..record.to_new_message()
        };
        encode_record(&message, records).map_err(|error| Failure::error(error.to_string()))?;
        Ok(())
    }

    /// Runs `read` where it may wait for the disk, once all can be read that was applied before.
    pub(super) async fn read_applied<T: Send + 'static>(
        &self,
        what: &str,
        read: impl FnOnce(&Self) -> store::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        // It was applied; that it can be read comes a moment later.
        if let Some(applied) = self.0.state.applied_index() {
            let dispatched = self.0.store.wait_dispatched(applied).await;
            dispatched.map_err(|error| Failure::NotLeading(error.to_string()))?;
        }
        let group = self.clone();
        let read = tokio::task::spawn_blocking(move || read(&group)).await;
        read.map_err(|error| Failure::error(format!("{what}: {error}")))?
            .map_err(|error| Failure::error(format!("{what}: {error}")))
    }

    /// How many messages wait on delay levels and for their time, and for how long one of the latter is overdue.
    #[must_use]
    pub fn delayed_messages(&self) -> DelayedMessages {
        let overdue_ms = self.0.state.next_timer_ms().map_or(0, |due_ms| now().wall_ms.saturating_sub(due_ms));
        DelayedMessages {
            on_levels: self.delay_progress().map(|(_, next, end)| end.saturating_sub(next)).sum(),
            timers: self.0.state.timer_count() as u64,
            timer_overdue_ms: u64::try_from(overdue_ms).unwrap_or(0),
        }
    }
}

/// How many messages wait for their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayedMessages {
    /// On delay levels.
    pub on_levels: u64,
    /// For a time of their own.
    pub timers: u64,
    /// For so long the first of the latter is overdue.
    pub timer_overdue_ms: u64,
}
