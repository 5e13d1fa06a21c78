//! What consumers do with messages they popped: codes 200051, 200053, 200151.

use std::collections::BTreeSet;

use protocol::body::BatchAck;
use protocol::header::{AckRequest, ChangeInvisibleRequest, ChangeInvisibleResponse, ORDER_REVIVE_QUEUE};
use protocol::{GroupName, PopHandle, PopHandleError, RemotingCommand, ResponseCode, TopicName};

use super::{HOLD_MAX, revive_queue};
use crate::processor::Group;
use crate::processor::answer::{Failure, Outcome, success};
use crate::state_machine::command::GroupQueue;
use crate::state_machine::pop::{PopAction, PopOutcome, PopStep};

/// Most messages of one acknowledgement.
const BATCH_MAX: usize = 4_096;
/// Most queues and givings of one acknowledgement.
const BATCH_STEPS_MAX: usize = 512;

impl Group {
    /// A message is consumed: code 200051.
    pub(in crate::processor) async fn acknowledge(&self, request: &RemotingCommand) -> Outcome {
        let header = AckRequest::decode(request)?;
        let handle: PopHandle = header.extra_info.parse().map_err(bad_handle)?;
        let queue = self.popped_queue(header.group, header.topic, header.queue_id)?;
        let queue_offset =
            u64::try_from(header.queue_offset).map_err(|_| not_under_way(&queue, header.queue_offset))?;
        let queue_offsets = vec![queue_offset];
        let step = PopStep {
            queue: queue.clone(),
            action: PopAction::Acknowledge { popped_ms: handle.pop_time, queue_offsets },
        };
        let outcomes = self.do_steps(vec![step]).await?;
        self.stir(&queue.group, &queue.topic);
        settled(&outcomes, || not_under_way(&queue, header.queue_offset))?;
        Ok(success(request))
    }

    /// Messages of several queues and givings are consumed: code 200151.
    pub(in crate::processor) async fn acknowledge_batch(&self, request: &RemotingCommand) -> Outcome {
        let body = BatchAck::decode(&request.body)?;
        let mut steps = Vec::with_capacity(body.acks.len());
        let mut count = 0;
        for acks in &body.acks {
            let queue =
                self.popped_queue(GroupName::parse(&acks.group)?, TopicName::parse(&acks.topic)?, acks.queue_id)?;
            let offsets = acks.queue_offsets();
            let queue_offsets =
                offsets.ok_or_else(|| invalid("the bits of an acknowledgement are not Base64".to_owned()))?;
            count += queue_offsets.len();
            let action = PopAction::Acknowledge { popped_ms: acks.pop_time, queue_offsets };
            steps.push(PopStep { queue, action });
        }
        if count > BATCH_MAX || steps.len() > BATCH_STEPS_MAX {
            return Err(invalid(format!(
                "a batch acknowledges {count} messages in {} parts, allowed are {BATCH_MAX} and {BATCH_STEPS_MAX}",
                steps.len()
            )));
        }
        if steps.is_empty() {
            return Ok(success(request));
        }
        let named: BTreeSet<(GroupName, TopicName)> =
            steps.iter().map(|step| (step.queue.group.clone(), step.queue.topic.clone())).collect();
        // Those that were given again in the meantime stay with whoever has them now.
        self.do_steps(steps).await?;
        for (group, topic) in named {
            self.stir(&group, &topic);
        }
        Ok(success(request))
    }

    /// A message stays hidden for another time: code 200053.
    pub(in crate::processor) async fn change_invisible(&self, request: &RemotingCommand) -> Outcome {
        let header = ChangeInvisibleRequest::decode(request)?;
        let handle: PopHandle = header.extra_info.parse().map_err(bad_handle)?;
        let queue = self.popped_queue(header.group, header.topic, header.queue_id)?;
        let queue_offset =
            u64::try_from(header.queue_offset).map_err(|_| not_under_way(&queue, header.queue_offset))?;
        let hidden_ms = self.stamp_ms();
        let invisible_ms = header.invisible_time.max(1);
        let action = PopAction::Hide { queue_offset, popped_ms: handle.pop_time, hidden_ms, invisible_ms };
        let outcomes = self.do_steps(vec![PopStep { queue: queue.clone(), action }]).await?;
        settled(&outcomes, || not_under_way(&queue, header.queue_offset))?;
        if invisible_ms < i64::try_from(HOLD_MAX.as_millis()).unwrap_or(i64::MAX) {
            // Someone waits who has to look again sooner than it thought.
            self.0.holds.wake_one(&queue.topic, &queue.group);
        }
        let mut answer = success(request);
        ChangeInvisibleResponse {
            pop_time: hidden_ms,
            invisible_time: invisible_ms,
            revive_queue_id: revive_queue(handle.revive_queue_id == ORDER_REVIVE_QUEUE),
        }
        .encode_into(&mut answer.ext);
        Ok(answer)
    }

    fn popped_queue(&self, group: GroupName, topic: TopicName, queue_id: i32) -> Result<GroupQueue, Failure> {
        let config = self.0.state.topic(&topic).ok_or_else(|| Failure::no_topic(&topic))?;
        let queue_id =
            u32::try_from(queue_id).ok().filter(|queue_id| *queue_id < config.queues()).ok_or_else(|| {
                invalid(format!("queueId[{queue_id}] is illegal, topic:[{topic}] has {} queues", config.queues()))
            })?;
        Ok(GroupQueue { group, topic, queue_id })
    }
}

fn settled(outcomes: &[PopOutcome], stale: impl FnOnce() -> Failure) -> Result<(), Failure> {
    if outcomes.iter().all(|outcome| *outcome == PopOutcome::Done) { Ok(()) } else { Err(stale()) }
}

fn not_under_way(queue: &GroupQueue, queue_offset: i64) -> Failure {
    let GroupQueue { topic, queue_id, .. } = queue;
    Failure::refused(
        ResponseCode::NO_MESSAGE,
        format!(
            "offset is illegal: {queue_offset} of {topic}@{queue_id} was not popped, or its time was over and it was popped again"
        ),
    )
}

fn invalid(remark: String) -> Failure {
    Failure::refused(ResponseCode::INVALID_PARAMETER, remark)
}

fn bad_handle(error: PopHandleError) -> Failure {
    invalid(error.to_string())
}
