//! Pulls that the caller drives, and the offsets that go with them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::GroupName;
use protocol::RequestCode;
use protocol::ResponseCode;
use protocol::TopicName;
use protocol::body::SubscriptionData;
use protocol::body::SubscriptionGroupConfig;
use protocol::header::Boundary;
use protocol::header::GetMaxOffsetRequest;
use protocol::header::PullRequest;
use protocol::header::PullResponse;
use protocol::header::PullSysFlag;
use protocol::header::QueryConsumerOffsetRequest;
use protocol::header::QueueOffsetResponse;
use protocol::header::QueueRequest;
use protocol::header::SearchOffsetRequest;
use protocol::header::UpdateConsumerOffsetRequest;

use crate::Client;
use crate::Error;
use crate::Queue;
use crate::ReceivedMessage;
use crate::Result;

/// Room for the way there and back, on top of the time that a broker may hold a pull.
const PULL_GRACE: Duration = Duration::from_secs(10);

/// What a pull asks for.
#[derive(Debug, Clone)]
pub struct PullOptions {
    /// Most messages.
    pub messages_max: i32,
    /// How long the broker may hold the pull until there is something; zero answers at once.
    pub hold: Duration,
    /// Tags joined by `||`, or `*`.
    pub expression: String,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self { messages_max: 32, hold: Duration::from_secs(15), expression: "*".to_owned() }
    }
}

/// How a pull went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullStatus {
    /// There are messages.
    Found,
    /// There is nothing new.
    NoNewMessage,
    /// There is something, but nothing that the expression wants.
    NoMatchedMessage,
    /// The queue does not have this offset: it ends before, or begins behind it.
    OffsetIllegal,
}

/// The answer to a pull.
#[derive(Debug, Clone)]
pub struct Pulled {
    /// How it went.
    pub status: PullStatus,
    /// Where to go on.
    pub next_offset: i64,
    /// First offset of the queue.
    pub min_offset: i64,
    /// The offset that the next message will get.
    pub max_offset: i64,
    /// The messages.
    pub messages: Vec<ReceivedMessage>,
    /// The replica to pull from next time.
    pub suggested_broker_id: i64,
}

/// The answer to a pull as it came, for those who want to see damaged messages too.
#[derive(Debug, Clone)]
pub struct PulledRecords {
    /// How it went.
    pub status: PullStatus,
    /// Where to go on.
    pub next_offset: i64,
    /// First offset of the queue.
    pub min_offset: i64,
    /// The offset that the next message will get.
    pub max_offset: i64,
    /// Message records back to back. Some may have tags that the expression does not want: brokers compare hashes.
    pub records: Bytes,
    /// The replica to pull from next time.
    pub suggested_broker_id: i64,
}

/// Pulls from the queues it is told to, in the name of a group. Clones are the same.
#[derive(Debug, Clone)]
pub struct PullConsumer {
    client: Client,
    group: GroupName,
}

impl PullConsumer {
    /// A consumer that commits offsets for `group`. It is no member of the group: it shares nothing with others.
    #[must_use]
    pub fn new(client: &Client, group: GroupName) -> Self {
        Self { client: client.clone(), group }
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &GroupName {
        &self.group
    }

    /// All queues of `topic` that can be read.
    ///
    /// # Errors
    /// [`Error::NoRoute`], or why nobody could be asked.
    pub async fn queues(&self, topic: &TopicName) -> Result<Vec<Queue>> {
        Ok(self.client.refresh_route(topic).await?.subscribe_queues().to_vec())
    }

    /// Messages of `queue` from `queue_offset` on.
    ///
    /// # Errors
    /// [`Error::Refused`] for answers that say nothing about the offset, [`Error::Transport`].
    pub async fn pull(&self, queue: &Queue, queue_offset: i64, options: &PullOptions) -> Result<Pulled> {
        self.pull_from(queue, queue_offset, options, 0, None).await
    }

    /// As [`Self::pull`], without reading the messages.
    ///
    /// # Errors
    /// As [`Self::pull`].
    pub async fn pull_records(&self, queue: &Queue, queue_offset: i64, options: &PullOptions) -> Result<PulledRecords> {
        self.pull_records_from(queue, queue_offset, options, 0, None).await
    }

    /// As [`Self::pull`], from the replica `broker_id`, with a commit on the way.
    pub(crate) async fn pull_from(
        &self,
        queue: &Queue,
        queue_offset: i64,
        options: &PullOptions,
        broker_id: i64,
        commit_offset: Option<i64>,
    ) -> Result<Pulled> {
        let pulled = self.pull_records_from(queue, queue_offset, options, broker_id, commit_offset).await?;
        let mut messages = ReceivedMessage::read_all(&pulled.records, &queue.broker_name)?;
        // Brokers filter by hash codes, which collide.
        let subscription = SubscriptionData::by_tags(&queue.topic, &options.expression, 0);
        if !subscription.matches_all() {
            messages.retain(|message| message.tag().is_some_and(|tag| subscription.tags.iter().any(|t| t == tag)));
        }
        let nothing = pulled.status == PullStatus::Found && messages.is_empty();
        Ok(Pulled {
            status: if nothing { PullStatus::NoMatchedMessage } else { pulled.status },
            next_offset: pulled.next_offset,
            min_offset: pulled.min_offset,
            max_offset: pulled.max_offset,
            messages,
            suggested_broker_id: pulled.suggested_broker_id,
        })
    }

    async fn pull_records_from(
        &self,
        queue: &Queue,
        queue_offset: i64,
        options: &PullOptions,
        broker_id: i64,
        commit_offset: Option<i64>,
    ) -> Result<PulledRecords> {
        let address = self.address(queue, broker_id).await?;
        let mut sys_flag = PullSysFlag::SUBSCRIPTION;
        if !options.hold.is_zero() {
            sys_flag |= PullSysFlag::SUSPEND;
        }
        if commit_offset.is_some() && broker_id == 0 {
            sys_flag |= PullSysFlag::COMMIT_OFFSET;
        }
        let mut request = self.client.request(RequestCode::PULL_MESSAGE);
        PullRequest {
            group: self.group.clone(),
            topic: queue.topic.clone(),
            queue_id: queue.queue_id,
            queue_offset,
            max_msg_nums: options.messages_max,
            sys_flag,
            commit_offset: commit_offset.unwrap_or(0),
            suspend_timeout_millis: i64::try_from(options.hold.as_millis()).unwrap_or(i64::MAX),
            subscription: Some(options.expression.clone()),
            sub_version: 0,
            expression_type: Some("TAG".to_owned()),
            max_msg_bytes: None,
            broker_name: Some(queue.broker_name.to_string()),
        }
        .encode_into(&mut request.ext);
        let answer = match self.client.channel(&address).call(request, options.hold + PULL_GRACE).await {
            Ok(answer) => answer,
            Err(error) => {
                self.client.route_failed(&queue.topic);
                return Err(error.into());
            }
        };
        let status = match answer.response_code() {
            ResponseCode::SUCCESS => PullStatus::Found,
            ResponseCode::PULL_NOT_FOUND => PullStatus::NoNewMessage,
            ResponseCode::PULL_RETRY_IMMEDIATELY => PullStatus::NoMatchedMessage,
            ResponseCode::PULL_OFFSET_MOVED => PullStatus::OffsetIllegal,
            _ => {
                self.client.route_failed(&queue.topic);
                return Err(Error::refused(&answer, &address));
            }
        };
        let response = PullResponse::decode(&answer)?;
        Ok(PulledRecords {
            status,
            next_offset: response.next_begin_offset,
            min_offset: response.min_offset,
            max_offset: response.max_offset,
            records: answer.body,
            suggested_broker_id: response.suggest_which_broker_id,
        })
    }

    /// What the group has consumed of `queue`; `None` if nothing was ever committed.
    ///
    /// # Errors
    /// Why the leader could not say.
    pub async fn committed_offset(&self, queue: &Queue) -> Result<Option<i64>> {
        let mut request = self.client.request(RequestCode::QUERY_CONSUMER_OFFSET).with_ext("bname", &queue.broker_name);
        QueryConsumerOffsetRequest {
            group: self.group.clone(),
            topic: queue.topic.clone(),
            queue_id: queue.queue_id,
            set_zero_if_not_found: None,
        }
        .encode_into(&mut request.ext);
        // Brokers hold this one longer than others while they elect.
        match self.ask(queue, request, self.client.call_timeout().max(Duration::from_secs(5))).await {
            Ok(answer) => Ok(Some(QueueOffsetResponse::decode(&answer)?.queue_offset)),
            Err(error) if error.code() == Some(ResponseCode::QUERY_NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The group has consumed everything of `queue` before `queue_offset`. A group that does not exist is created.
    ///
    /// # Errors
    /// It may not be known: commit again.
    pub async fn commit(&self, queue: &Queue, queue_offset: i64) -> Result<()> {
        let commit = || {
            let request = self.commit_request(queue, queue_offset);
            self.ask(queue, request, self.client.call_timeout())
        };
        match commit().await {
            Err(error) if error.code() == Some(ResponseCode::SUBSCRIPTION_GROUP_NOT_EXIST) => {
                // Brokers create a group when they hear of a member; this consumer is none.
                let body = SubscriptionGroupConfig::new(&self.group).encode();
                let request = self.client.request(RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP).with_body(body);
                self.ask(queue, request, self.client.call_timeout()).await?;
                commit().await.map(drop)
            }
            result => result.map(drop),
        }
    }

    /// As [`Self::commit`], without an answer.
    ///
    /// # Errors
    /// Nothing was sent.
    pub(crate) async fn commit_oneway(&self, queue: &Queue, queue_offset: i64) -> Result<()> {
        let address = self.address(queue, 0).await?;
        let request = self.commit_request(queue, queue_offset);
        Ok(self.client.channel(&address).send_oneway(request, self.client.call_timeout()).await?)
    }

    fn commit_request(&self, queue: &Queue, commit_offset: i64) -> protocol::RemotingCommand {
        let mut request =
            self.client.request(RequestCode::UPDATE_CONSUMER_OFFSET).with_ext("bname", &queue.broker_name);
        UpdateConsumerOffsetRequest {
            group: self.group.clone(),
            topic: queue.topic.clone(),
            queue_id: queue.queue_id,
            commit_offset,
        }
        .encode_into(&mut request.ext);
        request
    }

    /// The first offset of `queue`.
    ///
    /// # Errors
    /// Why the leader could not say.
    pub async fn min_offset(&self, queue: &Queue) -> Result<i64> {
        let mut request = self.client.request(RequestCode::GET_MIN_OFFSET).with_ext("bname", &queue.broker_name);
        QueueRequest { topic: queue.topic.clone(), queue_id: queue.queue_id }.encode_into(&mut request.ext);
        self.ask_offset(queue, request).await
    }

    /// The offset that the next message of `queue` will get.
    ///
    /// # Errors
    /// Why the leader could not say.
    pub async fn max_offset(&self, queue: &Queue) -> Result<i64> {
        let mut request = self.client.request(RequestCode::GET_MAX_OFFSET).with_ext("bname", &queue.broker_name);
        GetMaxOffsetRequest { topic: queue.topic.clone(), queue_id: queue.queue_id, committed: true }
            .encode_into(&mut request.ext);
        self.ask_offset(queue, request).await
    }

    /// The offset of the first message of `queue` stored at `timestamp` (ms) or later; its end if there is none.
    ///
    /// # Errors
    /// Why the leader could not say.
    pub async fn offset_at(&self, queue: &Queue, timestamp: i64) -> Result<i64> {
        let mut request =
            self.client.request(RequestCode::SEARCH_OFFSET_BY_TIMESTAMP).with_ext("bname", &queue.broker_name);
        SearchOffsetRequest {
            topic: queue.topic.clone(),
            queue_id: queue.queue_id,
            timestamp,
            boundary: Boundary::Lower,
        }
        .encode_into(&mut request.ext);
        self.ask_offset(queue, request).await
    }

    async fn ask_offset(&self, queue: &Queue, request: protocol::RemotingCommand) -> Result<i64> {
        let answer = self.ask(queue, request, self.client.call_timeout()).await?;
        Ok(QueueOffsetResponse::decode(&answer)?.queue_offset)
    }

    /// Asks the leader of `queue`.
    async fn ask(
        &self,
        queue: &Queue,
        request: protocol::RemotingCommand,
        timeout: Duration,
    ) -> Result<protocol::RemotingCommand> {
        let address = self.address(queue, 0).await?;
        let result = self.client.call(&address, request, timeout).await;
        if matches!(result, Err(Error::Transport(_))) {
            self.client.route_failed(&queue.topic);
        }
        result
    }

    async fn address(&self, queue: &Queue, broker_id: i64) -> Result<Arc<str>> {
        match self.client.broker_address(&queue.broker_name, broker_id) {
            Ok(address) => Ok(address.into()),
            Err(_) => {
                self.client.refresh_route(&queue.topic).await?;
                Ok(self.client.broker_address(&queue.broker_name, broker_id)?.into())
            }
        }
    }
}
