//! Connections, routes and heartbeats: what producers, consumers and tools of one client share.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::net::IpAddr;
use std::net::Ipv4Addr;
use std::net::ToSocketAddrs as _;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use protocol::GroupName;
use protocol::RemotingCommand;
use protocol::RequestCode;
use protocol::ResponseCode;
use protocol::TopicName;
use protocol::body::ConsumeDirectlyResult;
use protocol::body::ConsumerData;
use protocol::body::ConsumerRunningInfo;
use protocol::body::ConsumerStatus;
use protocol::body::HeartbeatData;
use protocol::body::ProducerData;
use protocol::body::ResetOffsetTable;
use protocol::body::TopicRouteData;
use protocol::header::ConsumeDirectlyRequest;
use protocol::header::ConsumerGroupRequest;
use protocol::header::ConsumerRunningInfoRequest;
use protocol::header::ConsumerStatusRequest;
use protocol::header::Perm;
use protocol::header::ResetClientOffsetRequest;
use protocol::header::RouteRequest;
use protocol::header::UnregisterClientRequest;
use remoting::Channel;
use remoting::ChannelOptions;
use remoting::Connection;
use remoting::Handler;
use remoting::Responder;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::ClientOptions;
use crate::Error;
use crate::Queue;
use crate::ReceivedMessage;
use crate::Result;
use crate::Route;
use crate::route_cache::RouteCache;

/// A route that just proved wrong is fetched again at most so often.
const STALE_ROUTE_INTERVAL: Duration = Duration::from_millis(200);
/// Queues of a topic that its first message creates.
pub(crate) const NEW_TOPIC_QUEUES: i32 = 4;
/// Channels that are kept; those that no route names any more are dropped when there are more.
const CHANNELS_MAX: usize = 1_024;

static INSTANCES: AtomicUsize = AtomicUsize::new(0);

/// What a client does for the producers, consumers and tools on top of it. Clones share it.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    options: ClientOptions,
    client_id: String,
    address: IpAddr,
    routes: RouteCache,
    channels: Mutex<HashMap<String, Channel>>,
    pushes: Arc<Pushes>,
    /// Index of the name server that answered last.
    name_server: AtomicUsize,
    producers: Mutex<BTreeMap<GroupName, usize>>,
    consumers: Mutex<HashMap<GroupName, Weak<dyn Consumer>>>,
    refreshed_at: Mutex<HashMap<TopicName, Instant>>,
    heartbeat_wanted: Notify,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// A consumer, as far as brokers ask for it.
pub(crate) trait Consumer: Send + Sync {
    fn data(&self) -> ConsumerData;
    fn rebalance_soon(&self);
    fn reset_offsets(&self, offsets: Vec<(Queue, i64)>);
    fn offsets(&self, topic: &TopicName) -> Vec<(Queue, i64)>;
    fn running_info(&self) -> ConsumerRunningInfo;
    fn consume_directly(&self, message: ReceivedMessage, done: Box<dyn FnOnce(ConsumeDirectlyResult) + Send>);
}

impl Client {
    /// Starts a client, inside a tokio runtime. It connects when it is used.
    #[must_use]
    pub fn start(options: ClientOptions) -> Self {
        let address = local_address(&options.name_servers[0]);
        let instance = if options.instance.is_empty() {
            format!("{}-{}", std::process::id(), INSTANCES.fetch_add(1, Ordering::Relaxed))
        } else {
            options.instance.clone()
        };
        let inner = Arc::new_cyclic(|inner| Inner {
            client_id: format!("{address}@{instance}"),
            address,
            options,
            routes: RouteCache::default(),
            channels: Mutex::new(HashMap::new()),
            pushes: Arc::new(Pushes { client: inner.clone() }),
            name_server: AtomicUsize::new(0),
            producers: Mutex::new(BTreeMap::new()),
            consumers: Mutex::new(HashMap::new()),
            refreshed_at: Mutex::new(HashMap::new()),
            heartbeat_wanted: Notify::new(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        inner.tasks.spawn(inner.stop.clone().run_until_cancelled_owned(poll_routes(Arc::downgrade(&inner))));
        inner.tasks.spawn(inner.stop.clone().run_until_cancelled_owned(send_heartbeats(Arc::downgrade(&inner))));
        Self { inner }
    }

    /// The name by which brokers know this client.
    #[must_use]
    pub fn client_id(&self) -> &str {
        &self.inner.client_id
    }

    /// The time-out of calls that have none of their own.
    #[must_use]
    pub fn call_timeout(&self) -> Duration {
        self.inner.options.call_timeout
    }

    /// The addresses of the name servers.
    #[must_use]
    pub fn name_servers(&self) -> &[String] {
        &self.inner.options.name_servers
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.inner.address
    }

    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.inner.tasks
    }

    /// A request of `code`, in the header form of this client.
    pub(crate) fn request(&self, code: RequestCode) -> RemotingCommand {
        let mut request = RemotingCommand::request(code);
        request.form = self.inner.options.form;
        request
    }

    /// Leaves all groups, ends all connections and tasks. Producers and consumers must be shut down before.
    pub async fn shutdown(self) {
        let inner = &self.inner;
        let producers: Vec<_> = std::mem::take(&mut *inner.producers.lock()).into_keys().collect();
        for group in producers {
            self.unregister(Some(group), None).await;
        }
        inner.stop.cancel();
        inner.tasks.close();
        inner.tasks.wait().await;
        let channels: Vec<_> = inner.channels.lock().drain().map(|(_, channel)| channel).collect();
        join_all(channels.iter().map(|channel| channel.close(Duration::from_secs(1)))).await;
    }

    // Calls.

    /// The channel to `address`, which is connected when it is used.
    #[must_use]
    pub fn channel(&self, address: &str) -> Channel {
        let mut channels = self.inner.channels.lock();
        if let Some(channel) = channels.get(address) {
            return channel.clone();
        }
        if channels.len() >= CHANNELS_MAX {
            channels.retain(|_, channel| channel.connected().is_some());
        }
        let channel = Channel::new(address, ChannelOptions::default(), self.inner.pushes.clone());
        channels.insert(address.to_owned(), channel.clone());
        channel
    }

    /// Asks the server at `address`, and takes success for granted.
    ///
    /// # Errors
    /// [`Error::Transport`], or [`Error::Refused`] if the answer is another code than 0.
    pub async fn call(&self, address: &str, request: RemotingCommand, timeout: Duration) -> Result<RemotingCommand> {
        let answer = self.channel(address).call(request, timeout).await?;
        if answer.is_success() { Ok(answer) } else { Err(Error::refused(&answer, address)) }
    }

    /// Asks the name server that answered last, and then each of the others, until one answers.
    ///
    /// # Errors
    /// [`Error::NameServers`], or [`Error::Refused`] if the answer is another code than 0.
    pub async fn call_name_server(&self, request: RemotingCommand) -> Result<RemotingCommand> {
        let inner = &self.inner;
        let servers = &inner.options.name_servers;
        let first = inner.name_server.load(Ordering::Relaxed);
        let mut last = None;
        for at in (0..servers.len()).map(|step| (first + step) % servers.len()) {
            match self.channel(&servers[at]).call(request.clone(), inner.options.call_timeout).await {
                Ok(answer) => {
                    inner.name_server.store(at, Ordering::Relaxed);
                    return if answer.is_success() { Ok(answer) } else { Err(Error::refused(&answer, &servers[at])) };
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or(Error::NoNameServer, Error::NameServers))
    }

    // Routes.

    /// The route of `topic`, fetched if it is not known.
    ///
    /// # Errors
    /// [`Error::NoRoute`] if the name servers do not know the topic, or why they could not be asked.
    pub async fn route(&self, topic: &TopicName) -> Result<Arc<Route>> {
        match self.inner.routes.get(topic) {
            Some(route) => Ok(route),
            None => self.refresh_route(topic).await,
        }
    }

    /// Fetches the route of `topic`.
    ///
    /// # Errors
    /// As [`Self::route`].
    pub async fn refresh_route(&self, topic: &TopicName) -> Result<Arc<Route>> {
        let data = self.route_data(topic).await?;
        Ok(self.inner.routes.put(topic, Route::new(topic, &data, |address| self.channel(address))))
    }

    /// The route of `topic` to send to: that of the template if the topic does not exist yet.
    pub(crate) async fn publish_route(&self, topic: &TopicName) -> Result<Arc<Route>> {
        match self.route(topic).await {
            Err(Error::NoRoute(_)) => {}
            result => return result,
        }
        let template = TopicName::parse(TopicName::AUTO_CREATE)?;
        let mut data = match self.route_data(&template).await {
            Err(Error::NoRoute(_)) => return Err(Error::NoRoute(topic.to_string())),
            result => result?,
        };
        for queues in &mut data.queue_datas {
            queues.write_queue_nums = queues.read_queue_nums.min(NEW_TOPIC_QUEUES);
            queues.read_queue_nums = queues.write_queue_nums;
            queues.perm &= !Perm::INHERIT;
        }
        let route = Route::new(topic, &data, |address| self.channel(address)).borrowed();
        Ok(self.inner.routes.put(topic, route))
    }

    /// The known route of `topic`.
    pub(crate) fn cached_route(&self, topic: &TopicName) -> Option<Arc<Route>> {
        self.inner.routes.get(topic)
    }

    async fn route_data(&self, topic: &TopicName) -> Result<TopicRouteData> {
        let mut request = self.request(RequestCode::GET_ROUTEINFO_BY_TOPIC);
        RouteRequest { topic: topic.to_string(), accept_standard_json_only: true }.encode_into(&mut request.ext);
        match self.call_name_server(request).await {
            Ok(answer) => Ok(TopicRouteData::decode(&answer.body)?),
            Err(error) if error.code() == Some(ResponseCode::TOPIC_NOT_EXIST) => Err(Error::NoRoute(topic.to_string())),
            Err(error) => Err(error),
        }
    }

    /// The route of `topic` let somebody down: fetches it again soon, unless that just happened.
    pub(crate) fn route_failed(&self, topic: &TopicName) {
        let now = Instant::now();
        {
            let mut refreshed_at = self.inner.refreshed_at.lock();
            match refreshed_at.get_mut(topic) {
                Some(at) if now.duration_since(*at) < STALE_ROUTE_INTERVAL => return,
                Some(at) => *at = now,
                None => {
                    refreshed_at.insert(topic.clone(), now);
                }
            }
        }
        let client = self.clone();
        let topic = topic.clone();
        let refresh = async move {
            if let Err(error) = client.refresh_route(&topic).await {
                tracing::debug!(%topic, %error, "route stays as it is");
            }
        };
        self.inner.tasks.spawn(self.inner.stop.clone().run_until_cancelled_owned(refresh));
    }

    /// The address of a replica of `broker_name`: `id`, else the leader, else any.
    ///
    /// # Errors
    /// [`Error::NoBroker`] if no route named it.
    pub(crate) fn broker_address(&self, broker_name: &str, id: i64) -> Result<String> {
        self.inner.routes.address(broker_name, id).ok_or_else(|| Error::NoBroker(broker_name.to_owned()))
    }

    // Groups.

    pub(crate) fn add_producer(&self, group: &GroupName) {
        *self.inner.producers.lock().entry(group.clone()).or_default() += 1;
        self.inner.heartbeat_wanted.notify_one();
    }

    pub(crate) async fn remove_producer(&self, group: &GroupName) {
        {
            let mut producers = self.inner.producers.lock();
            match producers.get_mut(group) {
                Some(count) if *count > 1 => {
                    *count -= 1;
                    return;
                }
                Some(_) => drop(producers.remove(group)),
                None => return,
            }
        }
        self.unregister(Some(group.clone()), None).await;
    }

    pub(crate) fn add_consumer(&self, group: &GroupName, consumer: Weak<dyn Consumer>) {
        self.inner.consumers.lock().insert(group.clone(), consumer);
    }

    pub(crate) async fn remove_consumer(&self, group: &GroupName) {
        if self.inner.consumers.lock().remove(group).is_some() {
            self.unregister(None, Some(group.clone())).await;
        }
    }

    async fn unregister(&self, producer_group: Option<GroupName>, consumer_group: Option<GroupName>) {
        let header =
            UnregisterClientRequest { client_id: self.inner.client_id.clone(), producer_group, consumer_group };
        let calls = self.inner.routes.brokers().into_iter().flat_map(|(_, addresses)| addresses.into_values());
        let calls = calls.filter_map(|address| {
            // A broker that we are not connected to does not know us.
            let channel = self.channel(&address);
            channel.connected()?;
            let mut request = self.request(RequestCode::UNREGISTER_CLIENT);
            header.encode_into(&mut request.ext);
            Some(async move { channel.call(request, Duration::from_secs(1)).await })
        });
        for result in join_all(calls).await {
            if let Err(error) = result {
                tracing::debug!(%error, "a broker was not told that a group is left");
            }
        }
    }

    /// Tells all brokers now who we are; returns how many accepted it.
    pub(crate) async fn heartbeat(&self) -> usize {
        let producers: Vec<_> = self.inner.producers.lock().keys().cloned().collect();
        let consumers: Vec<_> = {
            let mut consumers = self.inner.consumers.lock();
            consumers.retain(|_, consumer| consumer.strong_count() > 0);
            consumers.values().filter_map(Weak::upgrade).collect()
        };
        if producers.is_empty() && consumers.is_empty() {
            return 0;
        }
        let body = HeartbeatData {
            client_id: self.inner.client_id.clone(),
            producers: producers.iter().map(|group| ProducerData { group: group.to_string() }).collect(),
            consumers: consumers.iter().map(|consumer| consumer.data()).collect(),
            fingerprint: 0,
            without_subscriptions: false,
        }
        .encode();
        let calls = self.inner.routes.brokers().into_iter().flat_map(|(_, addresses)| {
            // Only consumers have business with replicas that do not lead.
            addresses.into_iter().filter(|(id, _)| *id == 0 || !consumers.is_empty())
        });
        let calls = calls.map(|(_, address)| {
            let request = self.request(RequestCode::HEART_BEAT).with_body(body.clone());
            let timeout = self.inner.options.call_timeout;
            async move { self.call(&address, request, timeout).await }
        });
        let results = join_all(calls).await;
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            tracing::debug!(%error, "heartbeat failed");
        }
        results.iter().filter(|result| result.is_ok()).count()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("client_id", &self.inner.client_id).finish_non_exhaustive()
    }
}

async fn poll_routes(client: Weak<Inner>) {
    loop {
        let Some(interval) = client.upgrade().map(|inner| inner.options.route_poll_interval) else { return };
        tokio::time::sleep(interval).await;
        let Some(client) = client.upgrade().map(|inner| Client { inner }) else { return };
        for topic in client.inner.routes.topics() {
            match client.refresh_route(&topic).await {
                Ok(_) => {}
                Err(Error::NoRoute(_)) => {
                    // The topic is gone. One that does not exist yet has no route to lose.
                    if client.cached_route(&topic).is_some_and(|route| !route.is_borrowed()) {
                        client.inner.routes.remove(&topic);
                    }
                }
                Err(error) => {
                    tracing::debug!(%topic, %error, "routes stay as they are");
                    break;
                }
            }
        }
    }
}

async fn send_heartbeats(client: Weak<Inner>) {
    loop {
        let Some(inner) = client.upgrade() else { return };
        let interval = inner.options.heartbeat_interval;
        let wanted = async {
            inner.heartbeat_wanted.notified().await;
            // Several groups that start together need one heartbeat.
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        drop(tokio::time::timeout(interval, wanted).await);
        Client { inner }.heartbeat().await;
    }
}

/// Requests from brokers.
struct Pushes {
    client: Weak<Inner>,
}

impl Pushes {
    fn consumer(&self, group: &GroupName) -> Option<Arc<dyn Consumer>> {
        self.client.upgrade()?.consumers.lock().get(group)?.upgrade()
    }

    /// The answer to `request`; `None` if there is none, or none yet.
    fn process(&self, request: &RemotingCommand, responder: Responder) -> Result<()> {
        let success = || RemotingCommand::response_to(request, ResponseCode::SUCCESS);
        let unknown_group = |responder: Responder, group: &GroupName| {
            let answer = RemotingCommand::response_to(request, ResponseCode::SYSTEM_ERROR);
            responder.send(answer.with_remark(format!("the consumer group {group} is not here")));
        };
        match request.request_code() {
            RequestCode::NOTIFY_CONSUMER_IDS_CHANGED => {
                let group = ConsumerGroupRequest::decode(request)?.group;
                if let Some(consumer) = self.consumer(&group) {
                    consumer.rebalance_soon();
                }
                responder.forget();
            }
            RequestCode::RESET_CONSUMER_CLIENT_OFFSET => {
                let group = ResetClientOffsetRequest::decode(request)?.group;
                let table = ResetOffsetTable::decode(&request.body)?;
                if let Some(consumer) = self.consumer(&group) {
                    let offsets: Result<_> = table
                        .offset_table
                        .iter()
                        .map(|(queue, offset)| Ok((Queue::from_wire(queue)?, *offset)))
                        .collect();
                    consumer.reset_offsets(offsets?);
                }
                responder.forget();
            }
            RequestCode::GET_CONSUMER_STATUS_FROM_CLIENT => {
                let ConsumerStatusRequest { topic, group, .. } = ConsumerStatusRequest::decode(request)?;
                let mut status = ConsumerStatus::default();
                if let Some(consumer) = self.consumer(&group) {
                    let offsets = consumer.offsets(&topic).into_iter();
                    status.message_queue_table = offsets.map(|(queue, offset)| (queue.to_wire(), offset)).collect();
                }
                responder.send(success().with_body(status.encode()));
            }
            RequestCode::GET_CONSUMER_RUNNING_INFO => {
                let group = ConsumerRunningInfoRequest::decode(request)?.group;
                match (self.consumer(&group), self.client.upgrade()) {
                    (Some(consumer), Some(client)) => {
                        let mut info = consumer.running_info();
                        info.properties.insert(
                            ConsumerRunningInfo::NAMESERVER_ADDR.to_owned(),
                            client.options.name_servers.join(";"),
                        );
                        responder.send(success().with_body(info.encode()));
                    }
                    _ => unknown_group(responder, &group),
                }
            }
            RequestCode::CONSUME_MESSAGE_DIRECTLY => {
                let ConsumeDirectlyRequest { group, broker_name, .. } = ConsumeDirectlyRequest::decode(request)?;
                let broker_name = Arc::from(broker_name.unwrap_or_default());
                let message = ReceivedMessage::read_all(&request.body, &broker_name)?.pop();
                match (self.consumer(&group), message) {
                    (Some(consumer), Some(message)) => {
                        let answer = success();
                        consumer.consume_directly(
                            message,
                            Box::new(move |result| responder.send(answer.with_body(result.encode()))),
                        );
                    }
                    _ => unknown_group(responder, &group),
                }
            }
            _ => {
                let answer = RemotingCommand::response_to(request, ResponseCode::REQUEST_CODE_NOT_SUPPORTED);
                responder.send(answer.with_remark(format!(" request type {} not supported", request.code)));
            }
        }
        Ok(())
    }
}

impl Handler for Pushes {
    fn handle(&self, request: RemotingCommand, responder: Responder) {
        if let Err(error) = self.process(&request, responder) {
            tracing::debug!(code = request.code, %error, "request of a broker is not understood");
        }
    }

    fn closed(&self, _connection: &Connection) {
        // The broker forgot us with the connection, so it has to be told again; unless we are ending.
        if let Some(client) = self.client.upgrade()
            && !client.stop.is_cancelled()
        {
            client.heartbeat_wanted.notify_one();
        }
    }
}

/// The address of this machine that leads to the name server. No packet is sent.
fn local_address(name_server: &str) -> IpAddr {
    let find = || {
        let target = name_server.to_socket_addrs().ok()?.next()?;
        let any: IpAddr =
            if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(target).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    find().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}
