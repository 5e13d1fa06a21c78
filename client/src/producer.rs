//! Sends messages: to any queue, to a chosen one, in batches; waits, calls back, or does not care.
//!
//! An attempt that fails is repeated on another broker name if there is one, within the time of the send. Once every
//! broker has failed there is a pause that grows, for failover takes a moment. What was refused for good is not
//! repeated. A repeated message may be stored twice: nobody can tell whether the first attempt was.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::SystemTime;

use bytes::Bytes;
use bytes::BytesMut;
use protocol::GroupName;
use protocol::RemotingCommand;
use protocol::RequestCode;
use protocol::ResponseCode;
use protocol::TopicName;
use protocol::header::SendRequest;
use protocol::header::SendResponse;
use protocol::message::BatchItem;
use protocol::message::SysFlag;
use protocol::message::UniqueKeyParts;
use protocol::message::encode_batch_item;
use protocol::message::property;
use protocol::message::unique_key;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::Client;
use crate::Error;
use crate::Message;
use crate::Queue;
use crate::Result;
use crate::instance::NEW_TOPIC_QUEUES;
use crate::message::compress;
use crate::route_cache::PublishQueue;

const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// How a [`Producer`] sends.
#[derive(Debug, Clone)]
pub struct ProducerOptions {
    /// A send takes at most this long, all attempts together.
    pub timeout: Duration,
    /// One attempt takes at most this long.
    pub attempt_timeout: Duration,
    /// Attempts of one send; 1 never repeats.
    pub attempts_max: u32,
    /// Bodies of at least this many bytes are compressed; `None` leaves all as they are.
    pub compress_bytes_min: Option<usize>,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            attempt_timeout: Duration::from_secs(3),
            attempts_max: 64,
            compress_bytes_min: None,
        }
    }
}

/// How well a message is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendStatus {
    /// As well as the cluster is set to.
    Ok,
    /// Stored, but not yet synced in time. RocketMQ only: Gantry never answers this.
    FlushDiskTimeout,
    /// Stored, but not yet replicated in time. RocketMQ only.
    FlushSlaveTimeout,
    /// Stored, but there is no replica. RocketMQ only.
    SlaveNotAvailable,
}

/// A message is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendReceipt {
    /// How well.
    pub status: SendStatus,
    /// The id that we gave it; of a batch, that of its first message.
    pub message_id: String,
    /// The id that says where it is stored; of a batch, all of them, joined by commas.
    pub offset_message_id: String,
    /// The queue it was stored in.
    pub queue: Queue,
    /// Its number there; of a batch, that of its first message.
    pub queue_offset: i64,
    /// Attempts that it took. With more than one it may be stored twice.
    pub attempts: u32,
}

/// Sends messages. Clones are the same producer.
#[derive(Debug, Clone)]
pub struct Producer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    group: GroupName,
    options: ProducerOptions,
    next_queue: AtomicUsize,
    keys: UniqueKeys,
}

/// Called once with the outcome of a send.
type Done = Box<dyn FnOnce(Result<SendReceipt>) + Send>;

/// A message as it goes into each attempt.
struct Prepared {
    topic: TopicName,
    body: Bytes,
    properties: String,
    message_id: String,
    flag: i32,
    sys_flag: i32,
    code: RequestCode,
    born_timestamp: i64,
}

/// Where a message may go.
enum Target {
    Any,
    Queue(Queue),
}

/// A send under way.
struct Sending {
    producer: Producer,
    message: Prepared,
    target: Target,
    deadline: Instant,
    attempts: u32,
    may_be_stored: bool,
    failed_broker: Option<Arc<str>>,
    last: Option<Error>,
    done: Done,
}

impl Producer {
    /// A producer in `group`.
    #[must_use]
    pub fn new(client: &Client, group: GroupName, options: ProducerOptions) -> Self {
        client.add_producer(&group);
        let inner = Inner {
            keys: UniqueKeys::new(client.address()),
            client: client.clone(),
            group,
            options,
            next_queue: AtomicUsize::new(rand::random_range(0..1_024)),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Leaves the group.
    pub async fn shutdown(self) {
        self.inner.client.remove_producer(&self.inner.group).await;
    }

    /// Sends `message` to a queue of its topic, round robin.
    ///
    /// # Errors
    /// [`Error::GaveUp`] tells whether the message may be stored; anything else means that it is not.
    pub async fn send(&self, message: Message) -> Result<SendReceipt> {
        let message = self.prepare(message);
        self.send_prepared(message, Target::Any).await
    }

    /// Sends `message` to `queue`. Attempts are repeated there and nowhere else.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn send_to(&self, message: Message, queue: &Queue) -> Result<SendReceipt> {
        let message = self.prepare(message);
        self.send_prepared(message, Target::Queue(queue.clone())).await
    }

    /// Sends `message` to the queue that `select` picks out of those of its topic, by index.
    ///
    /// # Errors
    /// As [`Self::send`]; [`Error::NoQueue`] if the index is that of no queue.
    pub async fn send_selected(
        &self,
        message: Message,
        select: impl FnOnce(&[&Queue]) -> usize,
    ) -> Result<SendReceipt> {
        let route = self.inner.client.publish_route(&message.topic).await?;
        let queues: Vec<_> = route.publish_queues().collect();
        let queue = queues.get(select(&queues)).ok_or_else(|| Error::NoQueue(message.topic.to_string()))?;
        let queue = (*queue).clone();
        self.send_to(message, &queue).await
    }

    /// Sends messages of one topic in one request; all of them end up in one queue, in order.
    ///
    /// # Errors
    /// As [`Self::send`]; [`Error::Message`] if there is none or they are of several topics.
    pub async fn send_batch(&self, messages: Vec<Message>) -> Result<SendReceipt> {
        let message = self.prepare_batch(messages)?;
        self.send_prepared(message, Target::Any).await
    }

    /// Sends messages of one topic in one request to `queue`.
    ///
    /// # Errors
    /// As [`Self::send_batch`].
    pub async fn send_batch_to(&self, messages: Vec<Message>, queue: &Queue) -> Result<SendReceipt> {
        let message = self.prepare_batch(messages)?;
        self.send_prepared(message, Target::Queue(queue.clone())).await
    }

    /// Sends `message` and calls `done` with the outcome, on the task that learns of it.
    ///
    /// Never waits and, as long as nothing fails, starts no task. `done` must not block; it may send again.
    pub fn start_send(&self, message: Message, done: impl FnOnce(Result<SendReceipt>) + Send + 'static) {
        let message = self.prepare(message);
        self.sending(message, Target::Any, Box::new(done)).go();
    }

    /// As [`Self::start_send`], to `queue`.
    pub fn start_send_to(
        &self,
        message: Message,
        queue: &Queue,
        done: impl FnOnce(Result<SendReceipt>) + Send + 'static,
    ) {
        let message = self.prepare(message);
        self.sending(message, Target::Queue(queue.clone()), Box::new(done)).go();
    }

    /// As [`Self::start_send`], for a batch.
    pub fn start_send_batch(&self, messages: Vec<Message>, done: impl FnOnce(Result<SendReceipt>) + Send + 'static) {
        match self.prepare_batch(messages) {
            Ok(message) => self.sending(message, Target::Any, Box::new(done)).go(),
            Err(error) => done(Err(error)),
        }
    }

    /// Sends `message` and does not wait for an answer.
    ///
    /// # Errors
    /// The message did not get as far as a connection. Without an error nothing is promised.
    pub async fn send_oneway(&self, message: Message) -> Result<()> {
        let message = self.prepare(message);
        let route = self.inner.client.publish_route(&message.topic).await?;
        let queue = self.pick(route.publish(), None).ok_or_else(|| Error::NoQueue(message.topic.to_string()))?;
        let request = self.request(&message, &queue.queue);
        match queue.leader.send_oneway(request, self.inner.options.attempt_timeout).await {
            Ok(()) => Ok(()),
            Err(error) => {
                self.inner.client.route_failed(&message.topic);
                Err(error.into())
            }
        }
    }

    async fn send_prepared(&self, message: Prepared, target: Target) -> Result<SendReceipt> {
        let (sender, receiver) = oneshot::channel();
        self.sending(message, target, Box::new(move |result| drop(sender.send(result)))).go();
        receiver.await.unwrap_or(Err(Error::Stopped))
    }

    fn sending(&self, message: Prepared, target: Target, done: Done) -> Box<Sending> {
        Box::new(Sending {
            producer: self.clone(),
            message,
            target,
            deadline: Instant::now() + self.inner.options.timeout,
            attempts: 0,
            may_be_stored: false,
            failed_broker: None,
            last: None,
            done,
        })
    }

    fn prepare(&self, message: Message) -> Prepared {
        let Message { topic, mut body, flag, mut properties } = message;
        let now = now_ms();
        let message_id = self.inner.keys.next(now);
        properties.set(property::UNIQ_KEY, &message_id).expect("an id is made of digits");
        let mut sys_flag = 0;
        if self.inner.options.compress_bytes_min.is_some_and(|min| body.len() >= min) {
            let compressed = compress(&body);
            if compressed.len() < body.len() {
                body = compressed;
                sys_flag = SysFlag::COMPRESSED;
            }
        }
        Prepared {
            topic,
            body,
            properties: properties.into_text(),
            message_id,
            flag,
            sys_flag,
            code: RequestCode::SEND_MESSAGE_V2,
            born_timestamp: now,
        }
    }

    fn prepare_batch(&self, messages: Vec<Message>) -> Result<Prepared> {
        let topic = messages.first().ok_or(Error::Message("a batch holds at least one"))?.topic.clone();
        let now = now_ms();
        let mut body = BytesMut::with_capacity(messages.iter().map(|message| message.body.len() + 128).sum());
        let mut first_id = None;
        for mut message in messages {
            if message.topic != topic {
                return Err(Error::Message("a batch has one topic"));
            }
            let message_id = self.inner.keys.next(now);
            message.properties.set(property::UNIQ_KEY, &message_id).expect("an id is made of digits");
            first_id.get_or_insert(message_id);
            let item = BatchItem { flag: message.flag, body: &message.body, properties: message.properties.as_str() };
            encode_batch_item(&item, &mut body)?;
        }
        Ok(Prepared {
            topic,
            body: body.freeze(),
            properties: String::new(),
            message_id: first_id.unwrap_or_default(),
            flag: 0,
            sys_flag: 0,
            code: RequestCode::SEND_BATCH_MESSAGE,
            born_timestamp: now,
        })
    }

    /// The next queue in turn, of another broker than `avoid` if there is one.
    fn pick<'a>(&self, queues: &'a [PublishQueue], avoid: Option<&Arc<str>>) -> Option<&'a PublishQueue> {
        if queues.is_empty() {
            return None;
        }
        let first = self.inner.next_queue.fetch_add(1, Ordering::Relaxed);
        let turn = |step: usize| &queues[first.wrapping_add(step) % queues.len()];
        let other = avoid.and_then(|avoid| (0..queues.len()).map(turn).find(|queue| queue.queue.broker_name != *avoid));
        Some(other.unwrap_or_else(|| turn(0)))
    }

    fn request(&self, message: &Prepared, queue: &Queue) -> RemotingCommand {
        let mut request = self.inner.client.request(message.code);
        SendRequest {
            producer_group: &self.inner.group,
            topic: message.topic.clone(),
            default_topic: TopicName::AUTO_CREATE,
            default_topic_queue_nums: NEW_TOPIC_QUEUES,
            queue_id: queue.queue_id,
            sys_flag: message.sys_flag,
            born_timestamp: message.born_timestamp,
            flag: message.flag,
            properties: &message.properties,
            reconsume_times: 0,
            unit_mode: false,
            batch: message.code == RequestCode::SEND_BATCH_MESSAGE,
            max_reconsume_times: None,
            broker_name: Some(&queue.broker_name),
        }
        .encode_into(message.code, &mut request.ext);
        request.body = message.body.clone();
        request
    }
}

impl Sending {
    /// Makes the next attempt, or starts a task for what has to come before it.
    fn go(self: Box<Self>) {
        let client = &self.producer.inner.client;
        let queue = match client.cached_route(&self.message.topic) {
            None => return self.prepare_route(),
            Some(route) => match &self.target {
                Target::Any => self.producer.pick(route.publish(), self.failed_broker.as_ref()).cloned(),
                Target::Queue(queue) => {
                    // By broker name: a queue that was just added may be missing from the route that we know.
                    let known = route.publish().iter().find(|known| known.queue.broker_name == queue.broker_name);
                    known.map(|known| PublishQueue { queue: queue.clone(), leader: known.leader.clone() })
                }
            },
        };
        let Some(queue) = queue else {
            let error = match &self.target {
                Target::Any => Error::NoQueue(self.message.topic.to_string()),
                Target::Queue(queue) => Error::NoBroker(queue.broker_name.to_string()),
            };
            return self.failed(error, None);
        };
        if queue.leader.connected().is_none() {
            return self.connect(queue);
        }
        self.attempt(queue);
    }

    fn attempt(mut self: Box<Self>, queue: PublishQueue) {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return self.give_up();
        }
        self.attempts += 1;
        let timeout = left.min(self.producer.inner.options.attempt_timeout);
        let request = self.producer.request(&self.message, &queue.queue);
        let PublishQueue { queue, leader } = queue;
        let address = leader.clone();
        leader.call_with(request, timeout, move |result| match result {
            Err(remoting::Error::OutboundFull { .. }) => {
                self.attempts -= 1;
                self.wait_for_room(PublishQueue { queue, leader: address });
            }
            result => self.answered(result, queue, address.address()),
        });
    }

    fn answered(mut self: Box<Self>, result: remoting::Result<RemotingCommand>, queue: Queue, address: &str) {
        let answer = match result {
            Ok(answer) => answer,
            Err(error) => {
                self.may_be_stored |= !error.not_sent();
                return self.failed(error.into(), Some(queue.broker_name));
            }
        };
        let status = match answer.response_code() {
            ResponseCode::SUCCESS => SendStatus::Ok,
            ResponseCode::FLUSH_DISK_TIMEOUT => SendStatus::FlushDiskTimeout,
            ResponseCode::FLUSH_SLAVE_TIMEOUT => SendStatus::FlushSlaveTimeout,
            ResponseCode::SLAVE_NOT_AVAILABLE => SendStatus::SlaveNotAvailable,
            code => {
                let error = Error::refused(&answer, address);
                self.may_be_stored |= !error.not_sent();
                return if is_worth_repeating(code) {
                    self.failed(error, Some(queue.broker_name))
                } else {
                    (self.done)(Err(error))
                };
            }
        };
        let receipt = SendResponse::decode(&answer).map(|response| SendReceipt {
            status,
            message_id: std::mem::take(&mut self.message.message_id),
            offset_message_id: response.msg_id.to_owned(),
            queue: Queue { queue_id: response.queue_id, ..queue },
            queue_offset: response.queue_offset,
            attempts: self.attempts,
        });
        (self.done)(receipt.map_err(Error::from));
    }

    /// An attempt failed, or could not be made: goes on elsewhere, at once or after a pause.
    fn failed(mut self: Box<Self>, error: Error, broker: Option<Arc<str>>) {
        let client = self.producer.inner.client.clone();
        client.route_failed(&self.message.topic);
        tracing::debug!(topic = %self.message.topic, broker = broker.as_deref(), %error, "attempt to send failed");
        self.last = Some(error);
        if self.attempts >= self.producer.inner.options.attempts_max {
            return self.give_up();
        }
        // The first failure of each broker is followed by an attempt elsewhere at once, if there is an elsewhere.
        let elsewhere = broker.is_some()
            && self.failed_broker.is_none()
            && matches!(self.target, Target::Any)
            && client.cached_route(&self.message.topic).is_some_and(|route| {
                route.publish().iter().any(|queue| Some(&queue.queue.broker_name) != broker.as_ref())
            });
        self.failed_broker = broker.or(self.failed_broker);
        if elsewhere {
            return self.go();
        }
        let doublings = self.attempts.min(10);
        let pause = (BACKOFF_MIN * 2_u32.pow(doublings)).min(BACKOFF_MAX);
        let pause = pause.mul_f64(rand::random_range(0.5..1.0));
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left <= pause {
            return self.give_up();
        }
        self.spawn(async move |sending| {
            tokio::time::sleep(pause).await;
            sending.go();
        });
    }

    fn give_up(self: Box<Self>) {
        let Self { attempts, may_be_stored, last, done, .. } = *self;
        done(Err(Error::GaveUp { attempts, may_be_stored, last: last.map(Box::new) }));
    }

    fn prepare_route(self: Box<Self>) {
        self.spawn(async move |mut sending| {
            let client = sending.producer.inner.client.clone();
            let left = sending.deadline.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left, client.publish_route(&sending.message.topic)).await {
                Ok(Ok(_)) => sending.go(),
                // That there is no such topic will not change in a moment.
                Ok(Err(error @ Error::NoRoute(_))) => (sending.done)(Err(error)),
                Ok(Err(error)) => {
                    sending.attempts += 1;
                    sending.failed(error, None);
                }
                Err(_) => sending.give_up(),
            }
        });
    }

    fn connect(self: Box<Self>, queue: PublishQueue) {
        self.spawn(async move |mut sending| {
            let left = sending.deadline.saturating_duration_since(Instant::now());
            let timeout = left.min(sending.producer.inner.options.attempt_timeout);
            match queue.leader.connect(timeout).await {
                Ok(_) => sending.attempt(queue),
                Err(error) => {
                    sending.attempts += 1;
                    sending.failed(error.into(), Some(queue.queue.broker_name));
                }
            }
        });
    }

    fn wait_for_room(self: Box<Self>, queue: PublishQueue) {
        self.spawn(async move |sending| {
            let left = sending.deadline.saturating_duration_since(Instant::now());
            let waited = match queue.leader.connected() {
                Some(connection) => connection.wait_for_room(left).await,
                None => Ok(()),
            };
            match waited {
                Ok(()) => sending.attempt(queue),
                Err(error) => sending.failed(error.into(), Some(queue.queue.broker_name)),
            }
        });
    }

    fn spawn<F>(self: Box<Self>, work: impl FnOnce(Box<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let client = self.producer.inner.client.clone();
        client.tasks().spawn(work(self));
    }
}

/// Whether another attempt may succeed where this code was answered.
fn is_worth_repeating(code: ResponseCode) -> bool {
    matches!(
        code,
        ResponseCode::SYSTEM_ERROR
            | ResponseCode::SYSTEM_BUSY
            | ResponseCode::SERVICE_NOT_AVAILABLE
            | ResponseCode::NO_PERMISSION
            | ResponseCode::TOPIC_NOT_EXIST
            | ResponseCode::GO_AWAY
    )
}

/// Makes ids for messages, in the shape that all clients give them.
#[derive(Debug)]
struct UniqueKeys {
    address: IpAddr,
    process: u16,
    instance: u32,
    counter: AtomicU16,
}

impl UniqueKeys {
    fn new(address: IpAddr) -> Self {
        let [high, low, ..] = std::process::id().to_le_bytes();
        Self { address, process: u16::from_le_bytes([high, low]), instance: rand::random(), counter: AtomicU16::new(0) }
    }

    fn next(&self, now_ms: i64) -> String {
        unique_key(&UniqueKeyParts {
            address: self.address,
            process: self.process,
            instance: self.instance,
            month_millis: month_millis(now_ms),
            counter: self.counter.fetch_add(1, Ordering::Relaxed),
        })
    }
}

/// Milliseconds since the month (UTC) began.
fn month_millis(now_ms: i64) -> u32 {
    const DAY_MS: i64 = 86_400_000;
    let days = now_ms.div_euclid(DAY_MS);
    // Day of the month in the proleptic Gregorian calendar, by eras of 400 years that begin in March.
    let day_of_era = (days + 719_468).rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5;
    u32::try_from(day_of_month * DAY_MS + now_ms.rem_euclid(DAY_MS)).expect("a month is shorter than 2^32 ms")
}

pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn month_begins_at_midnight_of_its_first_day() {
        let check = |day: i64, day_of_month: i64| {
            let ms = day * 86_400_000 + 1;
            assert_eq!(i64::from(month_millis(ms)), (day_of_month - 1) * 86_400_000 + 1, "day {day}");
        };
        // Days since 1970-01-01.
        check(0, 1);
        check(30, 31);
        check(31, 1);
        // 2024-02-29, 2024-03-01, 2023-12-31, 2024-01-01.
        check(19_782, 29);
        check(19_783, 1);
        check(19_722, 31);
        check(19_723, 1);
    }

    #[test]
    fn ids_of_one_millisecond_differ() {
        let keys = UniqueKeys::new("10.0.0.9".parse().unwrap());
        let (a, b) = (keys.next(5), keys.next(5));
        assert_ne!(a, b);
        assert_eq!(a.len(), 32);
        assert!(a.starts_with("0A000009"));
    }
}
