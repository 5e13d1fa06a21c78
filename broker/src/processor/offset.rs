//! Offsets of consumers and queues: codes 14, 15, 29 to 32.
//!
//! All of them are answered by the leader. A read first makes sure of the leadership, so that it is never older than
//! what any replica answered before, and then waits for commits of the same queue that are on their way: a consumer that
//! takes over a queue starts no earlier than the one before it had committed.

use protocol::header::{
    Boundary, GetMaxOffsetRequest, QueryConsumerOffsetRequest, QueueOffsetResponse, QueueRequest, SearchOffsetRequest,
    StoreTimeResponse, UpdateConsumerOffsetRequest,
};
use protocol::{GroupName, RemotingCommand, RequestCode, ResponseCode, TopicName};
use remoting::Responder;
use tokio::time::Instant;

use super::Group;
use super::answer::{Failure, Outcome, success};
use super::offset_buffer::{FLUSH_INTERVAL, Flushed, Key};
use super::send::wire_offset;
use crate::forward::{COMMIT_PATIENCE, Place, Source};
use crate::raft::ProposeError;
use crate::state_machine::{ApplyReply, Command, CommandReply};
use crate::store::TimeBoundary;

/// The words clients know for "nothing is stored".
const NONE_STORED: &str = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first";

impl Group {
    /// Serves code 15. One-way commits, which are most of them, only go into the buffer.
    pub(super) fn serve_offset_update(&self, request: RemotingCommand, responder: Responder, source: Source) {
        if responder.is_oneway() {
            match self.place() {
                Place::Here { .. } => match self.commit_of(&request) {
                    Ok((key, queue_offset)) => self.commit_quietly(key, queue_offset),
                    Err(failure) => {
                        tracing::debug!(?failure, "a one-way commit is dropped");
                        // The next one, seconds later, finds the group.
                        if let Some(group) = self.group_to_create(&request) {
                            self.ensure_group(group);
                        }
                    }
                },
                Place::There { node_id } if source == Source::Client => {
                    let (group, origin) = (&self.0.settings.broker_name, responder.peer_addr());
                    // If it gets lost, the client repeats the latest value within seconds.
                    let _ = self.0.peers.forward_oneway(group, node_id, origin, &request);
                }
                Place::There { .. } | Place::Nowhere => {}
            }
            return;
        }
        self.serve_at_leader(request, responder, source, COMMIT_PATIENCE);
    }

    /// Commits an offset that nobody waits for, wherever the leader is.
    pub(super) fn commit_quietly(&self, key: Key, queue_offset: u64) {
        match self.place() {
            Place::Here { term } => {
                if let Err(why) = self.0.offsets.put(term, key, queue_offset) {
                    tracing::debug!(why = why.reason(), "a one-way commit is dropped");
                }
            }
            Place::There { node_id } => {
                let mut request = commit_request(&key, queue_offset);
                request.mark_oneway();
                let (group, origin) = (&self.0.settings.broker_name, self.0.settings.client_addr);
                let _ = self.0.peers.forward_oneway(group, node_id, origin, &request);
            }
            Place::Nowhere => {}
        }
    }

    /// Reads and checks a commit.
    fn commit_of(&self, request: &RemotingCommand) -> Result<(Key, u64), Failure> {
        let header = UpdateConsumerOffsetRequest::decode(request)?;
        let topic = self.0.state.topic(&header.topic).ok_or_else(|| {
            let remark = format!("Topic {} not exist!", header.topic);
            Failure::refused(ResponseCode::TOPIC_NOT_EXIST, remark)
        })?;
        if self.0.state.group(&header.group).is_none() && !header.group.is_system() {
            let remark = format!("Group {0} not exist! Create it first: mqadmin updateSubGroup -g {0}", header.group);
            return Err(Failure::refused(ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST, remark));
        }
        let queue_id = u32::try_from(header.queue_id).ok().filter(|queue_id| *queue_id < topic.queues());
        let queue_id = queue_id.ok_or_else(|| no_queue(header.queue_id, &header.topic))?;
        // Below the queue's start means its start.
        let wanted = u64::try_from(header.commit_offset).unwrap_or(0);
        let queue_offset = wanted.max(self.0.store.min_offset(&header.topic, queue_id));
        Ok((Key { group: header.group, topic: header.topic, queue_id }, queue_offset))
    }

    /// Stores a consumed offset and waits until it is applied.
    pub(super) async fn update_consumer_offset(&self, request: &RemotingCommand) -> Outcome {
        let Place::Here { term } = self.place() else {
            return Err(Failure::NotLeading("leadership has moved".to_owned()));
        };
        if let Some(group) = self.group_to_create(request) {
            // A group may be created twice, and the commit has not begun.
            self.create_group(&group, None).await.map_err(|failure| match failure {
                Failure::Unknown(why) => Failure::NotLeading(why),
                failure => failure,
            })?;
        }
        let (key, queue_offset) = self.commit_of(request)?;
        if self.0.state.held_reset(&key.group, &key.topic, key.queue_id).is_some() {
            return Ok(success(request).with_remark("Offset has been previously reset"));
        }
        if queue_offset > self.0.store.max_offset(&key.topic, key.queue_id) {
            self.be_sure_to_lead().await?;
            let max_offset = self.0.store.max_offset(&key.topic, key.queue_id);
            if queue_offset > max_offset {
                return Err(Failure::error(format!("offset {queue_offset} is beyond the queue's end {max_offset}")));
            }
        }
        let accepted = self.0.offsets.put_and_wait(term, key, queue_offset);
        let flushed = accepted.map_err(|why| Failure::NotLeading(why.reason().to_owned()))?;
        settle(flushed.await.unwrap_or_else(|_| Flushed::Unknown("the group has stopped".to_owned())))?;
        Ok(success(request))
    }

    /// The group of a commit that comes before the group itself: a consumer's heartbeat is answered before the group
    /// that it creates is applied.
    fn group_to_create(&self, request: &RemotingCommand) -> Option<GroupName> {
        let header = UpdateConsumerOffsetRequest::decode(request).ok()?;
        let wanted = self.live().auto_create_groups
            && !header.group.is_system()
            && self.0.state.group(&header.group).is_none()
            && self.0.state.topic(&header.topic).is_some()
            && self.0.clients.handles(&header.group).is_some();
        wanted.then_some(header.group)
    }

    pub(super) async fn query_consumer_offset(&self, request: &RemotingCommand) -> Outcome {
        let header = QueryConsumerOffsetRequest::decode(request)?;
        let queue_id = u32::try_from(header.queue_id).map_err(|_| no_queue(header.queue_id, &header.topic))?;
        let key = Key { group: header.group, topic: header.topic, queue_id };
        if let Some(settled) = self.0.offsets.settled(&key) {
            // Whatever became of it: the read index below says what is in force.
            let _ = settled.await;
        }
        self.be_sure_to_lead().await?;
        if let Some(queue_offset) = self.0.state.consumer_offset(&key.group, &key.topic, queue_id) {
            // What lies below the queue's start is gone; a consumer that starts there at once is not sent away first.
            let queue_offset = queue_offset.max(self.0.store.min_offset(&key.topic, queue_id));
            return Ok(offset_answer(request, queue_offset));
        }
        if header.set_zero_if_not_found.unwrap_or(true) && self.is_young(&key.topic, queue_id) {
            return Ok(offset_answer(request, 0));
        }
        Err(Failure::refused(ResponseCode::QUERY_NOT_FOUND, NONE_STORED))
    }

    /// The last resort when nobody leads: an offset that is stored here may be old, which repeats messages, where an
    /// error would make some clients skip them.
    pub(crate) fn fall_back(&self, request: &RemotingCommand, answer: RemotingCommand) -> RemotingCommand {
        if request.request_code() != RequestCode::QUERY_CONSUMER_OFFSET
            || answer.response_code() != ResponseCode::SERVICE_NOT_AVAILABLE
        {
            return answer;
        }
        let stored = QueryConsumerOffsetRequest::decode(request).ok().and_then(|header| {
            let queue_id = u32::try_from(header.queue_id).ok()?;
            self.0.state.consumer_offset(&header.group, &header.topic, queue_id)
        });
        stored.map_or(answer, |queue_offset| offset_answer(request, queue_offset))
    }

    /// Whether a queue still has its first message, and in memory. A group that is new to it starts there even if it
    /// asked for the end: it may have subscribed before that message was sent.
    pub(super) fn is_young(&self, topic: &TopicName, queue_id: u32) -> bool {
        let store = &self.0.store;
        store.min_offset(topic, queue_id) == 0
            && store.max_offset(topic, queue_id) > 0
            && store.is_hot(topic, queue_id, 0)
    }

    pub(super) async fn search_offset(&self, request: &RemotingCommand) -> Outcome {
        let header = SearchOffsetRequest::decode(request)?;
        let queue_id = u32::try_from(header.queue_id).map_err(|_| no_queue(header.queue_id, &header.topic))?;
        self.be_sure_to_lead().await?;
        let found = self.offset_by_time(&header.topic, queue_id, header.timestamp, header.boundary).await?;
        Ok(offset_answer(request, found))
    }

    /// The queue offset that was stored at a time.
    pub(super) async fn offset_by_time(
        &self,
        topic: &TopicName,
        queue_id: u32,
        timestamp_ms: i64,
        boundary: Boundary,
    ) -> Result<u64, Failure> {
        let boundary = match boundary {
            Boundary::Lower => TimeBoundary::Lower,
            Boundary::Upper => TimeBoundary::Upper,
        };
        let (group, topic) = (self.clone(), topic.clone());
        // The search reads messages all over the log.
        let search = move || group.0.store.offset_by_time(&topic, queue_id, timestamp_ms, boundary);
        match self.0.tasks.spawn_blocking(search).await {
            Ok(found) => found.map_err(|error| Failure::error(format!("searching the queue: {error}"))),
            Err(error) => Err(Failure::error(format!("searching the queue: {error}"))),
        }
    }

    pub(super) async fn max_offset(&self, request: &RemotingCommand) -> Outcome {
        let header = GetMaxOffsetRequest::decode(request)?;
        let queue_id = u32::try_from(header.queue_id).map_err(|_| no_queue(header.queue_id, &header.topic))?;
        self.be_sure_to_lead().await?;
        Ok(offset_answer(request, self.0.store.max_offset(&header.topic, queue_id)))
    }

    pub(super) async fn min_offset(&self, request: &RemotingCommand) -> Outcome {
        let header = QueueRequest::decode(request)?;
        let queue_id = u32::try_from(header.queue_id).map_err(|_| no_queue(header.queue_id, &header.topic))?;
        self.be_sure_to_lead().await?;
        Ok(offset_answer(request, self.0.store.min_offset(&header.topic, queue_id)))
    }

    pub(super) async fn earliest_store_time(&self, request: &RemotingCommand) -> Outcome {
        let header = QueueRequest::decode(request)?;
        let queue_id = u32::try_from(header.queue_id).map_err(|_| no_queue(header.queue_id, &header.topic))?;
        self.be_sure_to_lead().await?;
        let min_offset = self.0.store.min_offset(&header.topic, queue_id);
        let timestamp = self.store_time_of(&header.topic, queue_id, min_offset).unwrap_or(-1);
        let mut answer = success(request);
        StoreTimeResponse { timestamp }.encode_into(&mut answer.ext);
        Ok(answer)
    }

    /// Store time of a message of a queue, if it is there.
    pub(super) fn store_time_of(&self, topic: &TopicName, queue_id: u32, queue_offset: u64) -> Option<i64> {
        self.0.store.store_time(topic, queue_id, queue_offset).ok().flatten()
    }

    /// On return this replica was sure to lead after the call began, and what was committed then can be read.
    pub(crate) async fn be_sure_to_lead(&self) -> Result<(), Failure> {
        self.0.raft.read_index().await.map_err(|error| Failure::NotLeading(error.reason))?;
        if let Some(applied) = self.0.state.applied_index() {
            let dispatched = self.0.store.wait_dispatched(applied).await;
            dispatched.map_err(|error| Failure::NotLeading(error.to_string()))?;
        }
        Ok(())
    }

    /// Makes an entry of a command and waits until it is applied.
    pub(crate) async fn propose(&self, command: Command) -> Result<CommandReply, Failure> {
        match self.0.raft.propose(command.encode()).await {
            Ok((ApplyReply::Command { reply: CommandReply::Refused(why), .. }, _)) => {
                Err(Failure::error(why.to_string()))
            }
            Ok((ApplyReply::Command { reply, .. }, _)) => Ok(reply),
            Ok((other, _)) => Err(Failure::error(format!("a command was answered with {other:?}"))),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes entries of collected commits, one at most every [`FLUSH_INTERVAL`], until the group stops.
    pub(super) async fn run_offset_flusher(&self) {
        loop {
            tokio::select! {
                () = self.0.stop.cancelled() => return,
                () = self.0.offsets.filled() => {}
            }
            let started = Instant::now();
            self.flush_some_offsets().await;
            tokio::select! {
                () = self.0.stop.cancelled() => return,
                () = tokio::time::sleep_until(started + FLUSH_INTERVAL) => {}
            }
        }
    }

    pub(super) async fn flush_all_offsets(&self) {
        // Commits may go on coming in: those accepted before the call are in the first rounds.
        for _ in 0..64 {
            if self.0.offsets.is_empty() || !self.flush_some_offsets().await {
                return;
            }
        }
    }

    /// Makes one entry; says whether it went well.
    async fn flush_some_offsets(&self) -> bool {
        let _one_at_a_time = self.0.flushing.lock().await;
        let Some(batch) = self.0.offsets.take() else { return true };
        let command = Command::CommitOffsets { commits: batch.commits, stamped_ms: self.stamp_ms() };
        let flushed = match self.0.raft.propose_in(batch.term, command.encode()).await {
            Ok(_) => Flushed::Applied,
            Err(error @ (ProposeError::NotProposed { .. } | ProposeError::Stopped)) => {
                // Those who wait are told; the others are dropped, see `offset_buffer`.
                tracing::debug!(%error, term = batch.term, "offsets were not proposed");
                Flushed::NotProposed
            }
            Err(error) => Flushed::Unknown(error.to_string()),
        };
        self.0.offsets.settle(&flushed);
        flushed == Flushed::Applied
    }
}

fn commit_request(key: &Key, queue_offset: u64) -> RemotingCommand {
    let mut request = RemotingCommand::request(RequestCode::UPDATE_CONSUMER_OFFSET);
    UpdateConsumerOffsetRequest {
        group: key.group.clone(),
        topic: key.topic.clone(),
        queue_id: super::send::wire_queue(key.queue_id),
        commit_offset: wire_offset(queue_offset),
    }
    .encode_into(&mut request.ext);
    request
}

fn settle(flushed: Flushed) -> Result<(), Failure> {
    match flushed {
        Flushed::Applied => Ok(()),
        Flushed::NotProposed => Err(Failure::NotLeading("offsets were not proposed".to_owned())),
        Flushed::Unknown(reason) => Err(Failure::Unknown(reason)),
    }
}

fn offset_answer(request: &RemotingCommand, queue_offset: u64) -> RemotingCommand {
    let mut answer = success(request);
    QueueOffsetResponse { queue_offset: wire_offset(queue_offset) }.encode_into(&mut answer.ext);
    answer
}

fn no_queue(queue_id: i32, topic: &str) -> Failure {
    Failure::refused(ResponseCode::INVALID_PARAMETER, format!("queueId[{queue_id}] is illegal, topic:[{topic}]"))
}
