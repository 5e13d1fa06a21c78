//! Tells every name server who leads and which topics there are.
//!
//! Each name server has a task and a connection of its own, so a dead one delays nobody. A task compares what its name
//! server has confirmed with what is true now: after a change it sends at once and only the topics that changed, every
//! 30 s it says which version of the topics it has, and a lost connection is dialled again each second. A name server
//! that does not know that version asks for all topics.
//!
//! ```text
//!  role, topics ---- changed() ----> generation ----> task per name server ---- 103 ----> name server
//!                                                          |
//!  registered() <------------ generation confirmed --------+
//! ```

mod request;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use protocol::body::TopicRouteData;
use protocol::header::RouteRequest;
use protocol::{RemotingCommand, RequestCode, ResponseCode, TopicName};
use remoting::{Channel, ChannelOptions, Ignore};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::request::Confirmed;
pub use self::request::{GroupRecord, RegisteredGroup};
use crate::http::NameServerStatus;
use crate::processor::Registrar;

/// As RocketMQ's brokers do. A name server forgets a broker after four times this.
const INTERVAL: Duration = Duration::from_secs(30);
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const CALL_TIME_MAX: Duration = Duration::from_secs(3);
/// Clients wait 3 s for what they asked a route for.
const ROUTE_TIME_MAX: Duration = Duration::from_millis(800);

/// What does not change while the node runs.
#[derive(Clone, Debug)]
pub struct RegistrationOptions {
    /// RocketMQ's cluster name.
    pub cluster: String,
    /// `host:port` of every name server.
    pub name_servers: Vec<String>,
}

/// The tasks that register. Ended by [`Registration::stop`].
pub struct Registration {
    handle: RegistrationHandle,
    tasks: TaskTracker,
}

/// Says that something changed, and waits until it is known. Cheap to clone.
#[derive(Clone)]
pub struct RegistrationHandle {
    /// Counts the changes.
    generation: watch::Sender<u64>,
    servers: Arc<[Server]>,
    stop: CancellationToken,
}

struct Server {
    addr: String,
    channel: Channel,
    state: watch::Sender<ServerState>,
    last_error: Mutex<Option<String>>,
}

/// Generations start at 1, so 0 is "never".
#[derive(Clone, Copy, Default)]
struct ServerState {
    /// The last generation that this name server confirmed.
    confirmed: u64,
    /// The last generation for which the call failed.
    failed: u64,
}

impl Registration {
    /// Starts to register `groups`, which are asked anew at every registration.
    #[must_use]
    pub fn start(options: &RegistrationOptions, groups: Vec<Arc<dyn RegisteredGroup>>) -> Self {
        let servers: Arc<[Server]> = options
            .name_servers
            .iter()
            .map(|addr| Server {
                addr: addr.clone(),
                channel: Channel::new(addr.clone(), ChannelOptions::default(), Arc::new(Ignore)),
                state: watch::Sender::new(ServerState::default()),
                last_error: Mutex::new(None),
            })
            .collect();
        let handle = RegistrationHandle { generation: watch::Sender::new(1), servers, stop: CancellationToken::new() };
        let tasks = TaskTracker::new();
        for index in 0..handle.servers.len() {
            let task = Task {
                channel: handle.servers[index].channel.clone(),
                cluster: options.cluster.clone(),
                confirmed: groups.iter().map(|_| None).collect(),
                groups: groups.clone(),
                generation: handle.generation.subscribe(),
                handle: handle.clone(),
                index,
                connection: None,
                takes_changes: AtomicBool::new(false),
            };
            tasks.spawn(task.run(handle.stop.clone()));
        }
        tasks.close();
        Self { handle, tasks }
    }

    /// The handle.
    #[must_use]
    pub fn handle(&self) -> RegistrationHandle {
        self.handle.clone()
    }

    /// Takes this node out of the routes and ends the tasks. Name servers that do not answer in time keep the entry
    /// until it expires.
    pub async fn stop(self) {
        self.handle.withdraw();
        self.tasks.wait().await;
    }
}

impl RegistrationHandle {
    /// Tells every name server soon.
    pub fn changed(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// Takes this node out of the routes, for good: name servers are told soon, and hear nothing of it again.
    pub fn withdraw(&self) {
        self.stop.cancel();
    }

    /// Waits until every name server that answers knows what is true at the time of the call, `limit` at most.
    ///
    /// Says whether at least one knows it. A name server whose call has failed is not waited for.
    pub async fn registered(&self, limit: Duration) -> bool {
        let generation = *self.generation.borrow();
        let deadline = Instant::now() + limit;
        let mut any = false;
        for server in self.servers.iter() {
            let mut state = server.state.subscribe();
            let settled = state.wait_for(|state| state.confirmed >= generation || state.failed >= generation);
            if let Ok(Ok(state)) = tokio::time::timeout_at(deadline, settled).await {
                any |= state.confirmed >= generation;
            }
        }
        any
    }

    /// Whether any name server has ever confirmed anything.
    #[must_use]
    pub fn was_registered(&self) -> bool {
        self.servers.iter().any(|server| server.state.borrow().confirmed > 0)
    }

    /// How registration goes, by name server.
    #[must_use]
    pub fn status(&self) -> Vec<NameServerStatus> {
        let generation = *self.generation.borrow();
        self.servers
            .iter()
            .map(|server| NameServerStatus {
                addr: server.addr.clone(),
                registered: server.state.borrow().confirmed >= generation,
                last_error: server.last_error.lock().clone(),
            })
            .collect()
    }
}

impl RegistrationHandle {
    /// The route of a topic, from the first name server that has one. Those that answer registrations come first.
    async fn ask_route(&self, topic: &TopicName) -> Option<TopicRouteData> {
        let (good, bad): (Vec<&Server>, Vec<&Server>) =
            self.servers.iter().partition(|server| server.last_error.lock().is_none());
        for server in good.into_iter().chain(bad) {
            let mut request = RemotingCommand::request(RequestCode::GET_ROUTEINFO_BY_TOPIC);
            RouteRequest { topic: topic.as_str().to_owned(), accept_standard_json_only: true }
                .encode_into(&mut request.ext);
            match server.channel.call(request, ROUTE_TIME_MAX).await {
                Ok(answer) if answer.response_code() == ResponseCode::SUCCESS => {
                    if let Ok(route) = TopicRouteData::decode(&answer.body) {
                        return Some(route);
                    }
                }
                // Another one may know it already.
                Ok(_) => {}
                Err(error) => tracing::debug!(name_server = server.addr, %error, "cannot ask for a route"),
            }
        }
        None
    }
}

impl Registrar for RegistrationHandle {
    fn topics_changed(&self) -> BoxFuture<'static, ()> {
        let handle = self.clone();
        Box::pin(async move {
            handle.changed();
            handle.registered(CALL_TIME_MAX).await;
        })
    }

    fn route(&self, topic: &TopicName) -> BoxFuture<'static, Option<TopicRouteData>> {
        let (handle, topic) = (self.clone(), topic.clone());
        Box::pin(async move { handle.ask_route(&topic).await })
    }
}

impl fmt::Debug for RegistrationHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistrationHandle").field("generation", &*self.generation.borrow()).finish_non_exhaustive()
    }
}

/// One name server.
struct Task {
    channel: Channel,
    cluster: String,
    groups: Vec<Arc<dyn RegisteredGroup>>,
    /// What the name server has confirmed of each group, on the present connection.
    confirmed: Vec<Option<Confirmed>>,
    generation: watch::Receiver<u64>,
    handle: RegistrationHandle,
    index: usize,
    connection: Option<remoting::ConnectionId>,
    /// Whether it can be told changes: RocketMQ's own name servers cannot.
    takes_changes: AtomicBool,
}

impl Task {
    async fn run(mut self, stop: CancellationToken) {
        let mut periodic_at = Instant::now() + INTERVAL;
        loop {
            let generation = *self.generation.borrow_and_update();
            let result = tokio::select! {
                result = self.register() => result,
                () = stop.cancelled() => break,
            };
            self.note(generation, result);
            // After a failure, and when the connection was lost meanwhile, the next turn dials again.
            tokio::select! {
                () = stop.cancelled() => break,
                changed = self.generation.changed() => if changed.is_err() { break },
                () = tokio::time::sleep_until(periodic_at.min(Instant::now() + RETRY_INTERVAL)) => {}
            }
            if Instant::now() >= periodic_at {
                // A sign of life, and a question whether what was confirmed is still there.
                self.confirmed.fill(None);
                periodic_at = Instant::now() + INTERVAL;
            }
        }
        let goodbyes = self.groups.iter().map(|group| {
            let request = request::unregister(&self.cluster, &group.record());
            self.channel.call(request, RETRY_INTERVAL)
        });
        if self.channel.connected().is_some() {
            for result in futures::future::join_all(goodbyes).await {
                if let Err(error) = result {
                    tracing::debug!(name_server = self.channel.address(), %error, "could not unregister");
                }
            }
        }
        self.channel.close(RETRY_INTERVAL).await;
    }

    /// Brings the name server up to date.
    async fn register(&mut self) -> Result<(), String> {
        let connection = self.channel.connect(CALL_TIME_MAX).await.map_err(|error| error.to_string())?;
        if self.connection != Some(connection.id()) {
            // It may be another process, which knows nothing.
            self.connection = Some(connection.id());
            self.confirmed.fill(None);
        }
        let channel = &self.channel;
        let (cluster, takes_changes) = (&self.cluster, &self.takes_changes);
        let calls = self.groups.iter().zip(&mut self.confirmed).map(|(group, confirmed)| async move {
            request::bring_up_to_date(channel, cluster, &**group, confirmed, takes_changes, CALL_TIME_MAX).await
        });
        futures::future::join_all(calls).await.into_iter().collect()
    }

    fn note(&self, generation: u64, result: Result<(), String>) {
        let server = &self.handle.servers[self.index];
        let (was_good, is_good) = (server.last_error.lock().is_none(), result.is_ok());
        match &result {
            Ok(()) if !was_good => tracing::info!(name_server = server.addr, "name server answers again"),
            Err(error) if was_good => tracing::warn!(name_server = server.addr, %error, "cannot register"),
            _ => {}
        }
        *server.last_error.lock() = result.err();
        server.state.send_modify(|state| {
            if is_good {
                state.confirmed = state.confirmed.max(generation);
            } else {
                state.failed = state.failed.max(generation);
            }
        });
    }
}

#[cfg(test)]
mod tests;
