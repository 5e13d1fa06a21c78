//! What is noted of messages that are followed: see [`trace`](crate::trace).

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use protocol::{GroupName, TopicName};

use super::Group;
use super::pull::PullTask;
use super::send::Target;
use crate::sequencer::AppendError;
use crate::state_machine::MessageOutcome;
use crate::trace::{FollowedMessage, Journey, Passage, Stage, Value};

/// A send of which messages are followed, until it is answered.
pub(super) struct FollowedSend {
    messages: Vec<FollowedMessage>,
    began: Instant,
    /// Its messages were given to the sequencer.
    handed_on: Instant,
    pub(super) passage: Arc<Passage>,
}

/// When a pull or a pop went from one stage to the next.
#[derive(Clone, Copy)]
pub(super) struct PullTimes {
    /// It was parked, if it was.
    pub(super) parked: Option<Instant>,
    /// It began to look for messages.
    pub(super) began: Instant,
    /// It had them.
    pub(super) read: Instant,
    /// A pop: the log said that they are its own.
    pub(super) taken: Option<Instant>,
}

/// What a pop has given, until it is answered.
pub(super) struct GivenPop {
    pub(super) topic: TopicName,
    pub(super) group: GroupName,
    pub(super) records: Bytes,
    pub(super) times: PullTimes,
}

impl FollowedSend {
    /// To be called when its messages go to the sequencer. None if none of them is followed.
    pub(super) fn new(messages: Vec<FollowedMessage>, began: Instant) -> Option<Self> {
        (!messages.is_empty()).then(|| Self { messages, began, handed_on: Instant::now(), passage: Arc::default() })
    }
}

impl Group {
    /// To be called while the entry of a followed send is applied.
    pub(super) fn note_applied(&self, passage: &Passage) {
        passage.applied(self.0.state.apply_began(), Instant::now());
    }

    /// Ends the journey of a send that has been answered.
    pub(super) fn end_send(
        &self,
        send: FollowedSend,
        target: &Target,
        bytes: u64,
        fate: Result<&[MessageOutcome], &AppendError>,
    ) {
        let Some(tracer) = &self.0.tracer else { return };
        let FollowedSend { messages, began, handed_on, passage } = send;
        let ended = Instant::now();
        let mut stages = vec![Stage::new("receive", began, handed_on)];
        let mut attributes = self.attributes(target.queue_id);
        if let Some(proposed) = passage.proposed_at() {
            stages.push(Stage::new("pack", handed_on, proposed));
            if let Some((index, messages)) = passage.entry() {
                attributes.push(("gantry.log_index", index.into()));
                attributes.push(("gantry.entry.messages", u64::from(messages).into()));
                // A majority may have had it before this disk.
                let stored = tracer.stored_at(index);
                stages.extend(stored.map(|stored| Stage::new("append", proposed, stored)));
            }
            if let Some((committed, applied)) = passage.applied_at() {
                stages.push(Stage::new("replicate", proposed, committed));
                stages.push(Stage::new("apply", committed, applied));
                stages.push(Stage::new("answer", applied, ended));
            }
        }
        for message in messages {
            let mut attributes = attributes.clone();
            attributes.push(("messaging.message.envelope.size", message.bytes.unwrap_or(bytes).into()));
            let failed = match fate.map(|outcomes| outcomes.get(message.at)) {
                Ok(Some(MessageOutcome::Appended(appended))) => {
                    attributes.push(("messaging.rocketmq.queue_offset", appended.queue_offset.into()));
                    None
                }
                Ok(Some(MessageOutcome::Refused(why))) => Some(why.to_string()),
                Ok(None) => Some("nothing was stored".to_owned()),
                Err(error) => Some(error.to_string()),
            };
            tracer.take(Journey {
                name: "send",
                topic: target.topic.to_string(),
                parent: message.followed.0,
                began,
                ended,
                stages: stages.clone(),
                attributes,
                failed,
            });
        }
    }

    /// Notes what a pull has delivered, once it is answered. `records` is the answer's body.
    pub(super) fn end_pull(&self, task: &PullTask, records: &[Bytes], times: &PullTimes) {
        self.end_delivery(task.topic(), task.group(), records, times);
    }

    /// Notes what a pop has given, once it is answered.
    pub(super) fn end_pop(&self, given: &GivenPop) {
        self.end_delivery(&given.topic, &given.group, std::slice::from_ref(&given.records), &given.times);
    }

    fn end_delivery(&self, topic: &TopicName, group: &GroupName, records: &[Bytes], times: &PullTimes) {
        let Some(tracer) = &self.0.tracer else { return };
        let ended = Instant::now();
        for record in records.iter().flat_map(|part| tracer.follow_records(part)) {
            let wait = times.parked.map(|parked| Stage::new("wait", parked, times.began));
            let mut stages: Vec<_> = wait.into_iter().collect();
            stages.push(Stage::new("read", times.began, times.read));
            stages.extend(times.taken.map(|taken| Stage::new("take", times.read, taken)));
            stages.push(Stage::new("answer", times.taken.unwrap_or(times.read), ended));
            let mut attributes = self.attributes(record.queue_id);
            attributes.push(("messaging.consumer.group.name", group.to_string().into()));
            attributes.push(("messaging.rocketmq.queue_offset", record.queue_offset.into()));
            tracer.take(Journey {
                name: "deliver",
                topic: topic.to_string(),
                parent: record.followed.0,
                began: times.parked.unwrap_or(times.began),
                ended,
                stages,
                attributes,
                failed: None,
            });
        }
    }

    fn attributes(&self, queue_id: u32) -> Vec<(&'static str, Value)> {
        vec![
            ("gantry.group", self.name().to_owned().into()),
            ("gantry.node_id", self.0.settings.node_id.into()),
            ("messaging.destination.partition.id", queue_id.to_string().into()),
        ]
    }
}
