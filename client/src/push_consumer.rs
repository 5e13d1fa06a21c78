//! Consumes in the name of a group: shares queues with the other members, pulls, hands messages to a listener, retries,
//! commits offsets.
//!
//! One task decides who consumes what (`rebalance`), one task for each queue pulls (`pull_queue`), and each delivery is
//! a task of its own, limited in number; in order, the queue's task delivers itself, under a lock at the broker.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use protocol::GroupName;
use protocol::RequestCode;
use protocol::TopicName;
use protocol::body::ConsumeDirectlyResult;
use protocol::body::ConsumeFromWhere;
use protocol::body::ConsumeResult;
use protocol::body::ConsumeType;
use protocol::body::ConsumerData;
use protocol::body::ConsumerList;
use protocol::body::ConsumerRunningInfo;
use protocol::body::LockRequest;
use protocol::body::LockResponse;
use protocol::body::MessageModel;
use protocol::body::ProcessQueueInfo;
use protocol::body::SubscriptionData;
use protocol::header::ConsumerGroupRequest;
use protocol::header::SendBackRequest;
use tokio::sync::Notify;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Client;
use crate::Error;
use crate::PullConsumer;
use crate::PullOptions;
use crate::PullStatus;
use crate::Queue;
use crate::ReceivedMessage;
use crate::Result;
use crate::instance::Consumer;
use crate::offset_store::OffsetStore;
use crate::offset_store::Place;
use crate::process_queue::ProcessQueue;
use crate::producer::now_ms;

/// Before the queues are shared out again when some could not be had.
const UNSETTLED_INTERVAL: Duration = Duration::from_secs(2);
/// After a failed pull.
const PULL_ERROR_PAUSE: Duration = Duration::from_secs(1);
/// Between two tries to hand over a message that could not be sent back.
const LOCAL_RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Between two deliveries of a message that must not be overtaken.
const ORDERLY_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// A lock is renewed so often, and counts as lost when it was not renewed for so long.
const LOCK_RENEW_INTERVAL: Duration = Duration::from_secs(20);
const LOCK_LIVE: Duration = Duration::from_secs(30);
/// What one queue may hold before it is no longer pulled.
const QUEUE_MESSAGES_MAX: usize = 1_000;
const QUEUE_BYTES_MAX: usize = 64 << 20;
const QUEUE_SPAN_MAX: i64 = 2_000;

/// What a listener did with messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// They are consumed.
    Done,
    /// They are to be delivered again later; in order, before anything else of their queue.
    Later,
}

/// Gets messages of one queue, and says what became of them.
pub type Listener = Arc<dyn Fn(Vec<ReceivedMessage>) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// Whether members of a group share messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// Each message goes to one member. Brokers keep the offsets.
    Cluster,
    /// Each message goes to every member, once. Offsets are in this file, or gone with the process.
    Broadcast(Option<PathBuf>),
}

/// Whether messages of a queue are delivered one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// At the same time, in no order.
    Concurrent,
    /// One by one, in the order of the queue.
    Orderly,
}

/// Where a group begins in a queue of which it has consumed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsumeFrom {
    /// At its end.
    Last,
    /// At its beginning.
    First,
    /// At the first message stored at this time (ms) or later.
    Timestamp(i64),
}

/// How a [`PushConsumer`] consumes.
#[derive(Debug, Clone)]
pub struct PushOptions {
    /// Whether members share messages.
    pub mode: Mode,
    /// Whether queues are consumed in order.
    pub order: Order,
    /// Where a new group begins.
    pub from: ConsumeFrom,
    /// Deliveries at the same time.
    pub deliveries_max: usize,
    /// Messages in one delivery.
    pub batch_max: usize,
    /// Messages in one pull.
    pub pull_max: i32,
    /// How often the members share the queues anew when nothing changes.
    pub rebalance_interval: Duration,
    /// How often offsets are committed.
    pub commit_interval: Duration,
    /// Deliveries of one message before it becomes a dead letter; the broker decides if this is `None`.
    pub reconsume_max: Option<i32>,
}

impl Default for PushOptions {
    fn default() -> Self {
        Self {
            mode: Mode::Cluster,
            order: Order::Concurrent,
            from: ConsumeFrom::Last,
            deliveries_max: 20,
            batch_max: 1,
            pull_max: 32,
            rebalance_interval: Duration::from_secs(20),
            commit_interval: Duration::from_secs(5),
            reconsume_max: None,
        }
    }
}

/// A member of a consumer group. It consumes until [`Self::shutdown`].
#[derive(Clone)]
pub struct PushConsumer {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    group: GroupName,
    options: PushOptions,
    listener: Listener,
    subscriptions: BTreeMap<TopicName, SubscriptionData>,
    puller: PullConsumer,
    offsets: OffsetStore,
    queues: Mutex<HashMap<Queue, Arc<Assigned>>>,
    rebalance: Arc<Notify>,
    deliveries: Arc<Semaphore>,
    started_ms: i64,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// A queue that this member consumes.
struct Assigned {
    queue: Queue,
    process: Mutex<ProcessQueue>,
    /// Something was consumed.
    drained: Notify,
    stop: CancellationToken,
    tasks: TaskTracker,
    locked_at: Mutex<Option<Instant>>,
    pulled_ms: Mutex<i64>,
    /// The offset was reset: what is still being delivered says nothing about it.
    is_discarded: AtomicBool,
}

impl PushConsumer {
    /// Joins `group` and consumes `subscriptions`: topics with tags joined by `||`, or `*`.
    ///
    /// On return the brokers know of the member, and the first queues are shared out.
    ///
    /// # Errors
    /// A topic is not known to any name server, or no name server answers.
    pub async fn start(
        client: &Client,
        group: GroupName,
        subscriptions: impl IntoIterator<Item = (TopicName, String)>,
        options: PushOptions,
        listener: Listener,
    ) -> Result<Self> {
        let version = now_ms();
        let subscribe = |topic: TopicName, tags: &str| {
            let data = SubscriptionData::by_tags(&topic, tags, version);
            (topic, data)
        };
        let mut all: BTreeMap<_, _> = subscriptions.into_iter().map(|(topic, tags)| subscribe(topic, &tags)).collect();
        for topic in all.keys() {
            client.route(topic).await?;
        }
        let puller = PullConsumer::new(client, group.clone());
        let place = match &options.mode {
            Mode::Cluster => {
                all.extend([subscribe(group.retry_topic(), "*")]);
                Place::Brokers(puller.clone())
            }
            Mode::Broadcast(Some(path)) => Place::File(path.clone()),
            Mode::Broadcast(None) => Place::Memory,
        };
        let inner = Arc::new(Inner {
            client: client.clone(),
            deliveries: Arc::new(Semaphore::new(options.deliveries_max.max(1))),
            offsets: OffsetStore::new(place),
            puller,
            group,
            options,
            listener,
            subscriptions: all,
            queues: Mutex::new(HashMap::new()),
            rebalance: Arc::new(Notify::new()),
            started_ms: version,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        let weak = Arc::downgrade(&inner);
        client.add_consumer(&inner.group, weak);
        client.heartbeat().await;
        let is_settled = inner.share_queues().await;
        let stop = || inner.stop.clone();
        inner.tasks.spawn(stop().run_until_cancelled_owned(Arc::clone(&inner).rebalance_loop(is_settled)));
        inner.tasks.spawn(stop().run_until_cancelled_owned(Arc::clone(&inner).commit_loop()));
        if inner.options.order == Order::Orderly && inner.is_cluster() {
            inner.tasks.spawn(stop().run_until_cancelled_owned(Arc::clone(&inner).lock_loop()));
        }
        Ok(Self { inner })
    }

    /// The queues that this member consumes now.
    #[must_use]
    pub fn queues(&self) -> Vec<Queue> {
        let mut queues: Vec<_> = self.inner.queues.lock().keys().cloned().collect();
        queues.sort_unstable();
        queues
    }

    /// Shares the queues anew, without waiting for the next turn.
    pub fn rebalance_soon(&self) {
        self.inner.rebalance.notify_one();
    }

    /// Waits for the deliveries under way, commits offsets, leaves the group.
    pub async fn shutdown(self) {
        let inner = &self.inner;
        inner.stop.cancel();
        inner.tasks.close();
        inner.tasks.wait().await;
        let queues: Vec<_> = inner.queues.lock().drain().map(|(_, assigned)| assigned).collect();
        futures::future::join_all(queues.iter().map(|assigned| inner.release(assigned))).await;
        inner.client.remove_consumer(&inner.group).await;
    }
}

impl std::fmt::Debug for PushConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PushConsumer").field("group", &self.inner.group).finish_non_exhaustive()
    }
}

impl Inner {
    fn is_cluster(&self) -> bool {
        self.options.mode == Mode::Cluster
    }

    async fn rebalance_loop(self: Arc<Self>, mut is_settled: bool) {
        loop {
            let wanted = self.rebalance.notified();
            let interval = self.options.rebalance_interval;
            let interval = if is_settled { interval } else { interval.min(UNSETTLED_INTERVAL) };
            if tokio::time::timeout(interval, wanted).await.is_ok() {
                // Members come and go in crowds.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            is_settled = self.share_queues().await;
        }
    }

    async fn commit_loop(self: Arc<Self>) {
        loop {
            tokio::time::sleep(self.options.commit_interval).await;
            self.offsets.write_all().await;
        }
    }

    async fn lock_loop(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOCK_RENEW_INTERVAL).await;
            let queues: Vec<_> = self.queues.lock().keys().cloned().collect();
            self.lock(&queues).await;
        }
    }

    /// Takes over the queues that fall to this member and gives up those that do not. False if some could not be had.
    async fn share_queues(self: &Arc<Self>) -> bool {
        let mut is_settled = true;
        for topic in self.subscriptions.keys() {
            match self.mine(topic).await {
                Ok(mine) => is_settled &= self.assign(topic, &mine).await,
                Err(error) => {
                    is_settled = false;
                    tracing::debug!(%topic, %error, "queues stay as they are shared out");
                }
            }
        }
        is_settled
    }

    async fn mine(&self, topic: &TopicName) -> Result<Vec<Queue>> {
        let route = self.client.route(topic).await?;
        if !self.is_cluster() {
            return Ok(route.subscribe_queues().to_vec());
        }
        let mut last = Error::NoRoute(topic.to_string());
        for (broker_name, _) in route.brokers() {
            match self.members(broker_name).await {
                Ok(mut members) => {
                    members.sort_unstable();
                    members.dedup();
                    let mine = protocol::allocate_average(route.subscribe_queues(), &members, self.client.client_id());
                    return Ok(mine.to_vec());
                }
                Err(error) => last = error,
            }
        }
        self.client.route_failed(topic);
        Err(last)
    }

    async fn members(&self, broker_name: &str) -> Result<Vec<String>> {
        let address = self.client.broker_address(broker_name, 0)?;
        let mut request = self.client.request(RequestCode::GET_CONSUMER_LIST_BY_GROUP);
        ConsumerGroupRequest { group: self.group.clone() }.encode_into(&mut request.ext);
        let answer = self.client.call(&address, request, self.client.call_timeout()).await?;
        let members = ConsumerList::decode(&answer.body)?.consumer_id_list;
        // A list without ourselves is older than our heartbeat: nothing can be concluded from it.
        if members.iter().any(|member| member == self.client.client_id()) {
            Ok(members)
        } else {
            self.client.heartbeat().await;
            Err(Error::Message("this member is not in the list of its group yet"))
        }
    }

    async fn assign(self: &Arc<Self>, topic: &TopicName, mine: &[Queue]) -> bool {
        let lost: Vec<Arc<Assigned>> = {
            let mut queues = self.queues.lock();
            let lost: Vec<_> =
                queues.keys().filter(|queue| queue.topic == *topic && !mine.contains(queue)).cloned().collect();
            lost.iter().filter_map(|queue| queues.remove(queue)).collect()
        };
        futures::future::join_all(lost.iter().map(|assigned| self.release(assigned))).await;
        let mut new: Vec<Queue> = {
            let queues = self.queues.lock();
            mine.iter().filter(|queue| !queues.contains_key(queue)).cloned().collect()
        };
        let mut is_settled = true;
        if self.options.order == Order::Orderly && self.is_cluster() {
            let locked = self.lock(&new).await;
            is_settled = locked.len() == new.len();
            new.retain(|queue| locked.contains(queue));
        }
        for queue in new {
            match self.first_offset(&queue).await {
                Ok(offset) => self.take(queue, offset),
                Err(error) => {
                    // Rather late than from the wrong place.
                    is_settled = false;
                    tracing::debug!(%queue, %error, "queue is not consumed yet");
                }
            }
        }
        is_settled
    }

    fn take(self: &Arc<Self>, queue: Queue, offset: i64) {
        tracing::debug!(%queue, offset, group = %self.group, "consuming a queue");
        self.offsets.reset(&queue, offset);
        let assigned = Arc::new(Assigned {
            process: Mutex::new(ProcessQueue::new(offset)),
            drained: Notify::new(),
            stop: self.stop.child_token(),
            tasks: TaskTracker::new(),
            locked_at: Mutex::new(Some(Instant::now())),
            pulled_ms: Mutex::new(0),
            is_discarded: AtomicBool::new(false),
            queue: queue.clone(),
        });
        self.queues.lock().insert(queue, Arc::clone(&assigned));
        assigned.tasks.spawn(Arc::clone(self).pull_queue(Arc::clone(&assigned), offset));
    }

    /// Stops to consume a queue: waits for its deliveries, commits, unlocks.
    async fn release(&self, assigned: &Assigned) {
        assigned.stop.cancel();
        assigned.tasks.close();
        assigned.tasks.wait().await;
        self.offsets.write(&assigned.queue).await;
        self.offsets.remove(&assigned.queue);
        if self.options.order == Order::Orderly && self.is_cluster() {
            self.unlock(&assigned.queue).await;
        }
    }

    async fn first_offset(&self, queue: &Queue) -> Result<i64> {
        if let Some(offset) = self.offsets.read(queue).await? {
            return Ok(offset);
        }
        match self.options.from {
            ConsumeFrom::Last | ConsumeFrom::First if queue.topic.is_retry() => Ok(0),
            ConsumeFrom::First => self.puller.min_offset(queue).await,
            ConsumeFrom::Last => self.puller.max_offset(queue).await,
            ConsumeFrom::Timestamp(_) if queue.topic.is_retry() => self.puller.max_offset(queue).await,
            ConsumeFrom::Timestamp(timestamp) => self.puller.offset_at(queue, timestamp).await,
        }
    }

    async fn pull_queue(self: Arc<Self>, assigned: Arc<Assigned>, mut offset: i64) {
        let queue = &assigned.queue;
        let expression = self.subscriptions.get(&queue.topic).map_or("*", |data| &data.expression);
        let options = PullOptions {
            messages_max: self.options.pull_max,
            expression: expression.to_owned(),
            ..PullOptions::default()
        };
        let mut replica = 0;
        while !assigned.stop.is_cancelled() {
            if assigned.stop.run_until_cancelled(assigned.wait_for_room()).await.is_none() {
                return;
            }
            let consumed = self.is_cluster().then(|| self.offsets.get(queue)).flatten();
            let pull = self.puller.pull_from(queue, offset, &options, replica, consumed);
            let Some(result) = assigned.stop.run_until_cancelled(pull).await else { return };
            *assigned.pulled_ms.lock() = now_ms();
            match result {
                Ok(pulled) => {
                    replica = pulled.suggested_broker_id;
                    match pulled.status {
                        PullStatus::Found => {
                            assigned.put(&pulled.messages);
                            assigned.process.lock().advance(pulled.next_offset);
                            if !self.deliver(&assigned, pulled.messages).await {
                                return;
                            }
                        }
                        PullStatus::NoNewMessage | PullStatus::NoMatchedMessage => {
                            assigned.process.lock().advance(pulled.next_offset);
                            self.consumed(&assigned);
                        }
                        PullStatus::OffsetIllegal => {
                            tracing::warn!(%queue, offset, next = pulled.next_offset, "queue does not have this offset");
                            *assigned.process.lock() = ProcessQueue::new(pulled.next_offset);
                            self.offsets.reset(queue, pulled.next_offset);
                        }
                    }
                    offset = pulled.next_offset;
                }
                Err(error) => {
                    tracing::debug!(%queue, %error, "pull failed");
                    replica = 0;
                    let pause = tokio::time::sleep(PULL_ERROR_PAUSE);
                    if assigned.stop.run_until_cancelled(pause).await.is_none() {
                        return;
                    }
                }
            }
        }
    }

    /// Hands messages over; in order, waits for each. False when the queue is given up.
    async fn deliver(self: &Arc<Self>, assigned: &Arc<Assigned>, messages: Vec<ReceivedMessage>) -> bool {
        let mut messages = messages.into_iter();
        loop {
            let batch: Vec<_> = messages.by_ref().take(self.options.batch_max.max(1)).collect();
            if batch.is_empty() {
                return true;
            }
            match self.options.order {
                Order::Concurrent => {
                    let permit = Arc::clone(&self.deliveries).acquire_owned();
                    let Some(Ok(permit)) = assigned.stop.run_until_cancelled(permit).await else { return false };
                    assigned.tasks.spawn(Arc::clone(self).deliver_concurrently(Arc::clone(assigned), batch, permit));
                }
                Order::Orderly => {
                    if !self.deliver_in_order(assigned, batch).await {
                        return false;
                    }
                }
            }
        }
    }

    async fn deliver_concurrently(
        self: Arc<Self>,
        assigned: Arc<Assigned>,
        mut batch: Vec<ReceivedMessage>,
        mut permit: OwnedSemaphorePermit,
    ) {
        loop {
            let outcome = (self.listener)(batch.clone()).await;
            drop(permit);
            let mut left = Vec::new();
            for message in batch {
                let is_handled = outcome == Outcome::Done || !self.is_cluster() || self.send_back(&message).await;
                if is_handled {
                    assigned.process.lock().done(message.queue_offset);
                } else {
                    left.push(message);
                }
            }
            self.consumed(&assigned);
            assigned.drained.notify_one();
            if left.is_empty() {
                return;
            }
            // The broker does not take them back, so they are kept here and tried again.
            batch = left;
            let again = async {
                tokio::time::sleep(LOCAL_RETRY_PAUSE).await;
                Arc::clone(&self.deliveries).acquire_owned().await
            };
            match assigned.stop.run_until_cancelled(again).await {
                Some(Ok(new)) => permit = new,
                _ => return,
            }
        }
    }

    /// Notes how far a queue is consumed, unless somebody moved its offset elsewhere meanwhile.
    fn consumed(&self, assigned: &Assigned) {
        if !assigned.is_discarded.load(Ordering::Acquire) {
            self.offsets.update(&assigned.queue, assigned.process.lock().consumed_offset());
        }
    }

    async fn deliver_in_order(&self, assigned: &Assigned, batch: Vec<ReceivedMessage>) -> bool {
        loop {
            if self.is_cluster() && !assigned.is_locked() {
                // The lock may be somebody else's by now: what is not consumed is pulled again by its owner.
                if assigned.stop.run_until_cancelled(self.lock(std::slice::from_ref(&assigned.queue))).await.is_none() {
                    return false;
                }
                if !assigned.is_locked() {
                    let pause = tokio::time::sleep(ORDERLY_RETRY_PAUSE);
                    if assigned.stop.run_until_cancelled(pause).await.is_none() {
                        return false;
                    }
                    continue;
                }
            }
            let outcome = {
                let Ok(_permit) = self.deliveries.acquire().await else { return false };
                (self.listener)(batch.clone()).await
            };
            if outcome == Outcome::Done {
                for message in &batch {
                    assigned.process.lock().done(message.queue_offset);
                }
                self.consumed(assigned);
                return true;
            }
            let pause = tokio::time::sleep(ORDERLY_RETRY_PAUSE);
            if assigned.stop.run_until_cancelled(pause).await.is_none() {
                return false;
            }
        }
    }

    /// Asks the broker to deliver `message` again later.
    async fn send_back(&self, message: &ReceivedMessage) -> bool {
        let sent = async {
            let address = self.client.broker_address(&message.broker_name, 0)?;
            let mut request =
                self.client.request(RequestCode::CONSUMER_SEND_MSG_BACK).with_ext("bname", &message.broker_name);
            SendBackRequest {
                physical_offset: message.physical_offset,
                group: self.group.clone(),
                delay_level: 0,
                origin_msg_id: Some(message.message_id()),
                origin_topic: Some(message.topic.clone()),
                unit_mode: false,
                max_reconsume_times: self.options.reconsume_max,
            }
            .encode_into(&mut request.ext);
            self.client.call(&address, request, Duration::from_secs(5)).await
        };
        match sent.await {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(id = message.message_id(), %error, "message cannot be sent back");
                false
            }
        }
    }

    /// Locks queues and returns those that are ours now.
    async fn lock(&self, queues: &[Queue]) -> Vec<Queue> {
        let mut locked = Vec::new();
        for (broker_name, queues) in by_broker(queues) {
            let body = self.lock_body(&queues);
            let call = async {
                let address = self.client.broker_address(&broker_name, 0)?;
                let request = self.client.request(RequestCode::LOCK_BATCH_MQ).with_body(body);
                let answer = self.client.call(&address, request, Duration::from_secs(1)).await?;
                Ok::<_, Error>(LockResponse::decode(&answer.body)?.locked)
            };
            match call.await {
                Ok(ours) => {
                    let now = Instant::now();
                    for queue in queues {
                        let is_ours = ours.contains(&queue.to_wire());
                        if let Some(assigned) = self.queues.lock().get(queue) {
                            *assigned.locked_at.lock() = is_ours.then_some(now);
                        }
                        if is_ours {
                            locked.push(queue.clone());
                        }
                    }
                }
                Err(error) => tracing::debug!(broker = %broker_name, %error, "queues are not locked"),
            }
        }
        locked
    }

    async fn unlock(&self, queue: &Queue) {
        let Ok(address) = self.client.broker_address(&queue.broker_name, 0) else { return };
        let request = self.client.request(RequestCode::UNLOCK_BATCH_MQ).with_body(self.lock_body(&[queue]));
        if let Err(error) = self.client.channel(&address).send_oneway(request, Duration::from_secs(1)).await {
            tracing::debug!(%queue, %error, "queue stays locked until its lease ends");
        }
    }

    fn lock_body(&self, queues: &[&Queue]) -> bytes::Bytes {
        LockRequest {
            client_id: self.client.client_id().to_owned(),
            consumer_group: self.group.to_string(),
            mq_set: queues.iter().map(|queue| queue.to_wire()).collect(),
            only_this_broker: false,
        }
        .encode()
    }
}

fn by_broker(queues: &[Queue]) -> BTreeMap<Arc<str>, Vec<&Queue>> {
    let mut brokers = BTreeMap::<_, Vec<_>>::new();
    for queue in queues {
        brokers.entry(Arc::clone(&queue.broker_name)).or_default().push(queue);
    }
    brokers
}

impl Assigned {
    fn put(&self, messages: &[ReceivedMessage]) {
        let mut process = self.process.lock();
        for message in messages {
            process.put(message.queue_offset, message.body.len());
        }
    }

    async fn wait_for_room(&self) {
        loop {
            let drained = self.drained.notified();
            {
                let process = self.process.lock();
                if process.len() < QUEUE_MESSAGES_MAX
                    && process.bytes() < QUEUE_BYTES_MAX
                    && process.span() < QUEUE_SPAN_MAX
                {
                    return;
                }
            }
            drained.await;
        }
    }

    fn is_locked(&self) -> bool {
        self.locked_at.lock().is_some_and(|at| at.elapsed() < LOCK_LIVE)
    }
}

impl Consumer for Inner {
    fn data(&self) -> ConsumerData {
        ConsumerData {
            group: self.group.to_string(),
            consume_type: ConsumeType::Passively,
            message_model: if self.is_cluster() { MessageModel::Clustering } else { MessageModel::Broadcasting },
            consume_from_where: match self.options.from {
                ConsumeFrom::Last => ConsumeFromWhere::LastOffset,
                ConsumeFrom::First => ConsumeFromWhere::FirstOffset,
                ConsumeFrom::Timestamp(_) => ConsumeFromWhere::Timestamp,
            },
            subscriptions: self.subscriptions.values().cloned().collect(),
            unit_mode: false,
        }
    }

    fn rebalance_soon(&self) {
        self.rebalance.notify_one();
    }

    fn reset_offsets(&self, offsets: Vec<(Queue, i64)>) {
        let offsets: Vec<_> = {
            let mut queues = self.queues.lock();
            let mut discard = |queue: &Queue| {
                let assigned = queues.remove(queue)?;
                assigned.is_discarded.store(true, Ordering::Release);
                assigned.stop.cancel();
                self.offsets.remove(queue);
                Some(())
            };
            offsets.into_iter().filter(|(queue, _)| discard(queue).is_some()).collect()
        };
        let puller = self.puller.clone();
        let rebalance = Arc::clone(&self.rebalance);
        self.client.tasks().spawn(async move {
            for (queue, offset) in offsets {
                if let Err(error) = puller.commit(&queue, offset).await {
                    tracing::warn!(%queue, %error, "reset offset is not committed");
                }
            }
            // The queues come back with the next sharing out, from where they were reset to.
            rebalance.notify_one();
        });
    }

    fn offsets(&self, topic: &TopicName) -> Vec<(Queue, i64)> {
        let queues: Vec<_> = self.queues.lock().keys().filter(|queue| queue.topic == *topic).cloned().collect();
        queues.into_iter().filter_map(|queue| Some((queue.clone(), self.offsets.get(&queue)?))).collect()
    }

    fn running_info(&self) -> ConsumerRunningInfo {
        let info = |assigned: &Arc<Assigned>| {
            let process = assigned.process.lock();
            let (first, last) = process.range().unwrap_or((0, 0));
            ProcessQueueInfo {
                cached_msg_count: i64::try_from(process.len()).unwrap_or(i64::MAX),
                cached_msg_max_offset: last,
                cached_msg_min_offset: first,
                cached_msg_size_in_mi_b: i64::try_from(process.bytes() >> 20).unwrap_or(i64::MAX),
                commit_offset: process.consumed_offset(),
                locked: self.options.order == Order::Orderly && assigned.is_locked(),
                last_pull_timestamp: *assigned.pulled_ms.lock(),
                ..ProcessQueueInfo::default()
            }
        };
        let is_orderly = self.options.order == Order::Orderly;
        let properties = [
            (ConsumerRunningInfo::CONSUME_TYPE, "CONSUME_PASSIVELY".to_owned()),
            (ConsumerRunningInfo::CONSUME_ORDERLY, is_orderly.to_string()),
            (ConsumerRunningInfo::THREADPOOL_CORE_SIZE, self.options.deliveries_max.to_string()),
            (ConsumerRunningInfo::CONSUMER_START_TIMESTAMP, self.started_ms.to_string()),
            (ConsumerRunningInfo::CLIENT_VERSION, "V5_3_3".to_owned()),
        ];
        ConsumerRunningInfo {
            jstack: None,
            mq_table: self.queues.lock().iter().map(|(queue, assigned)| (queue.to_wire(), info(assigned))).collect(),
            properties: properties.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            status_table: BTreeMap::new(),
            subscription_set: self.subscriptions.values().cloned().collect(),
        }
    }

    fn consume_directly(&self, message: ReceivedMessage, done: Box<dyn FnOnce(ConsumeDirectlyResult) + Send>) {
        let delivery = (self.listener)(vec![message]);
        let order = self.options.order == Order::Orderly;
        let started = Instant::now();
        self.client.tasks().spawn(async move {
            let consume_result = match delivery.await {
                Outcome::Done => ConsumeResult::Success,
                Outcome::Later => ConsumeResult::Later,
            };
            let spent_millis = i64::try_from(started.elapsed().as_millis()).unwrap_or(i64::MAX);
            done(ConsumeDirectlyResult { auto_commit: true, consume_result, order, remark: None, spent_millis });
        });
    }
}
