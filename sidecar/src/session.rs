//! One connection of a client to a broker's port, and its connections to the replicas behind it.
//!
//! ```text
//! client -> handle -> choose a replica -> link -> replica     a request waits in `flights` for its answer
//! client <- answer <--------------------- link <- replica
//! client <- push   <--------------------- link <- replica     and back
//! ```
//!
//! Each session has links of its own, because brokers know clients by their connections. Heartbeats go to every replica,
//! as those of a consumer do that is connected to the cluster itself, and the last one is replayed on a link that is new.
//!
//! A flight ends with an answer, or with the loss of its link, or when its replica proves silent: then it is sent to
//! another one, if it was not sent yet or may be sent twice. Requests leave a link in the order in which they came.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use protocol::body::HeartbeatData;
use protocol::header::{ConsumerGroupRequest, UnregisterClientRequest};
use protocol::{GroupName, RemotingCommand, RequestCode, ResponseCode};
use remoting::{Channel, ChannelOptions, Connection, Handler, Responder};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Broker, Why};
use crate::figures::Counters;
use crate::repeat;

/// Longer than any client waits for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Clients answer pushes within this time or not at all.
const PUSH_TIMEOUT: Duration = Duration::from_secs(15);
/// Between two tries when every replica has been tried.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How often a session looks after its flights, and after its links while nothing flies.
const BUSY_TICK: Duration = Duration::from_millis(100);
const IDLE_TICK: Duration = Duration::from_millis(500);
/// Between two dials of one replica.
const DIAL_PAUSE: Duration = Duration::from_millis(500);
/// Between two questions whether a replica lives.
const PROBE_PAUSE: Duration = Duration::from_millis(500);

/// What all sessions of a broker's port share.
pub(crate) struct Context {
    pub(crate) broker: Arc<Broker>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) quiet_max: Duration,
    pub(crate) probe_timeout: Duration,
}

pub(crate) struct Session {
    context: Arc<Context>,
    client: Connection,
    links: Mutex<HashMap<String, Arc<Link>>>,
    flights: Mutex<HashMap<u64, Flight>>,
    next_flight: AtomicU64,
    heartbeat: Mutex<Option<RemotingCommand>>,
    /// Something happened that the caretaker should look at.
    look: Notify,
    stop: CancellationToken,
}

/// A request on its way.
struct Flight {
    request: RemotingCommand,
    /// `None` for a one-way request, which nobody waits for.
    responder: Option<Responder>,
    began: Instant,
    tries: usize,
    /// The replica that has it.
    target: String,
    sent: Instant,
}

/// The connection to one replica.
struct Link {
    address: String,
    channel: Channel,
    state: Mutex<LinkState>,
}

struct LinkState {
    /// Whether it is being dialled.
    dialling: bool,
    /// Requests that wait for that, in their order.
    waiting: Vec<Flight>,
    dialled: Option<Instant>,
    /// The last sign of life.
    heard: Instant,
    probed: Option<Instant>,
}

impl Session {
    pub(crate) fn start(context: Arc<Context>, client: Connection) -> Arc<Self> {
        let session = Arc::new(Self {
            context,
            client,
            links: Mutex::default(),
            flights: Mutex::default(),
            next_flight: AtomicU64::new(0),
            heartbeat: Mutex::default(),
            look: Notify::new(),
            stop: CancellationToken::new(),
        });
        tokio::spawn(session.stop.clone().run_until_cancelled_owned(Arc::clone(&session).take_care()));
        session
    }

    /// Ends it: the client has gone.
    pub(crate) fn end(&self) {
        self.stop.cancel();
        self.flights.lock().clear();
        // Closes the connections.
        self.links.lock().clear();
    }

    /// Takes a request of the client.
    pub(crate) fn take(self: &Arc<Self>, request: RemotingCommand, responder: Responder) {
        self.context.counters.relayed.add();
        match request.request_code() {
            RequestCode::HEART_BEAT => self.note_heartbeat(&request),
            RequestCode::UNREGISTER_CLIENT => {
                self.forget_group(&request);
                self.tell_others(&request);
            }
            _ => {}
        }
        let now = Instant::now();
        let responder = (!request.is_oneway()).then_some(responder);
        self.send(Flight { request, responder, began: now, tries: 0, target: String::new(), sent: now });
    }

    /// Sends a request to the best replica.
    fn send(self: &Arc<Self>, mut flight: Flight) {
        let avoid = (flight.tries > 0).then_some(flight.target.as_str());
        if repeat::is_for_leader(flight.request.request_code()) && self.context.broker.silent_leader_until().is_some() {
            return self.keep(flight);
        }
        let Some(target) = self.context.broker.choose(avoid) else { return self.try_later(flight) };
        flight.target = target;
        flight.tries += 1;
        let link = self.link(&flight.target);
        {
            let mut state = link.state.lock();
            if state.dialling || link.channel.connected().is_none() {
                state.waiting.push(flight);
                self.dial(&link, &mut state);
                return;
            }
        }
        self.send_on(&link, flight);
    }

    fn send_on(self: &Arc<Self>, link: &Arc<Link>, mut flight: Flight) {
        flight.sent = Instant::now();
        if flight.responder.is_none() {
            let connection = link.channel.connected();
            if connection.is_none_or(|to| to.send_oneway(flight.request.clone()).is_err()) {
                self.try_later(flight);
            }
            return;
        }
        let request = flight.request.clone();
        let id = self.next_flight.fetch_add(1, Ordering::Relaxed);
        self.flights.lock().insert(id, flight);
        let session = Arc::downgrade(self);
        let on = Arc::clone(link);
        link.channel.call_with(request, ANSWER_TIMEOUT, move |answer| {
            if let Some(session) = session.upgrade() {
                session.landed(id, &on, answer);
            }
        });
    }

    /// An answer came, or the reason why there is none.
    fn landed(self: &Arc<Self>, id: u64, link: &Arc<Link>, answer: remoting::Result<RemotingCommand>) {
        let flight = self.flights.lock().remove(&id);
        match answer {
            Ok(answer) => {
                link.state.lock().heard = Instant::now();
                self.context.broker.trust(&link.address);
                let Some(flight) = flight else { return };
                if repeat::is_refusal_to_repeat(flight.request.request_code(), &answer) && self.has_time(&flight) {
                    return self.try_later(flight);
                }
                if let Some(responder) = flight.responder {
                    responder.send(answer);
                }
            }
            Err(error) => {
                if !matches!(error, remoting::Error::Timeout { .. } | remoting::Error::OutboundFull { .. }) {
                    self.context.broker.doubt(&link.address, Why::Gone);
                }
                let Some(flight) = flight else { return };
                if error.not_sent() || repeat::is_repeatable(flight.request.request_code()) {
                    self.try_later(flight);
                } else {
                    self.give_up(flight, &format!("it is unknown whether this was done: {error}"));
                }
            }
        }
    }

    /// Sends a request once a leader is known that is not silent.
    fn keep(self: &Arc<Self>, flight: Flight) {
        let session = Arc::clone(self);
        tokio::spawn(self.stop.clone().run_until_cancelled_owned(async move {
            session.context.broker.succession().await;
            session.send(flight);
        }));
    }

    fn has_time(&self, flight: &Flight) -> bool {
        flight.began.elapsed() + RETRY_PAUSE < repeat::time(flight.request.request_code())
    }

    /// Sends a request again, or for the first time, as soon as there is another replica to try.
    fn try_later(self: &Arc<Self>, flight: Flight) {
        if !self.has_time(&flight) {
            return self.give_up(flight, "no replica of this broker answers");
        }
        if flight.tries > 0 {
            self.context.counters.repeated.add();
        }
        let all_tried = flight.tries >= self.context.broker.replicas().len();
        let session = Arc::clone(self);
        tokio::spawn(self.stop.clone().run_until_cancelled_owned(async move {
            if all_tried {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            session.send(flight);
        }));
    }

    fn give_up(&self, flight: Flight, why: &str) {
        let Some(responder) = flight.responder else {
            self.context.counters.dropped.add();
            return;
        };
        self.context.counters.failed.add();
        let answer = RemotingCommand::response_to(&flight.request, ResponseCode::SERVICE_NOT_AVAILABLE);
        responder.send(answer.with_remark(format!("sidecar, broker {}: {why}", self.context.broker.name)));
    }

    // Links.

    fn link(self: &Arc<Self>, address: &str) -> Arc<Link> {
        let mut links = self.links.lock();
        let link = links.entry(address.to_owned()).or_insert_with(|| {
            let options = ChannelOptions { connect_timeout: self.context.probe_timeout, ..ChannelOptions::default() };
            let pushes = Pushes { session: Arc::downgrade(self) };
            let state =
                LinkState { dialling: false, waiting: Vec::new(), dialled: None, heard: Instant::now(), probed: None };
            Arc::new(Link {
                address: address.to_owned(),
                channel: Channel::new(address, options, Arc::new(pushes)),
                state: Mutex::new(state),
            })
        });
        Arc::clone(link)
    }

    fn dial(self: &Arc<Self>, link: &Arc<Link>, state: &mut LinkState) {
        if std::mem::replace(&mut state.dialling, true) {
            return;
        }
        state.dialled = Some(Instant::now());
        let (session, link) = (Arc::clone(self), Arc::clone(link));
        tokio::spawn(self.stop.clone().run_until_cancelled_owned(async move {
            let connected = link.channel.connect(session.context.probe_timeout).await;
            match connected {
                Ok(_) => {
                    session.replay(&link);
                    // Requests that come meanwhile line up behind.
                    loop {
                        let waiting = {
                            let mut state = link.state.lock();
                            state.heard = Instant::now();
                            state.dialling = !state.waiting.is_empty();
                            std::mem::take(&mut state.waiting)
                        };
                        if waiting.is_empty() {
                            break;
                        }
                        remoting::cork(|| waiting.into_iter().for_each(|flight| session.send_on(&link, flight)));
                    }
                }
                Err(error) => {
                    tracing::debug!(address = %link.address, %error, "dialling failed");
                    session.context.broker.doubt(&link.address, Why::Gone);
                    let waiting = {
                        let mut state = link.state.lock();
                        state.dialling = false;
                        std::mem::take(&mut state.waiting)
                    };
                    waiting.into_iter().for_each(|flight| session.try_later(flight));
                }
            }
        }));
    }

    /// Tells a replica that was turned to which groups the client is in.
    fn replay(&self, link: &Arc<Link>) {
        let Some(heartbeat) = self.heartbeat.lock().clone() else { return };
        self.context.counters.replayed.add();
        link.channel.call_with(heartbeat, PUSH_TIMEOUT, |_| {});
    }

    // Heartbeats.

    fn note_heartbeat(self: &Arc<Self>, request: &RemotingCommand) {
        // The short form says nothing to a replica that does not know the long one.
        let is_short = HeartbeatData::decode(&request.body).is_ok_and(|data| data.without_subscriptions);
        if !is_short {
            // A copy: the body is a slice of what was read, and would keep all of that.
            let body = request.body.to_vec();
            *self.heartbeat.lock() = Some(request.clone().with_body(body));
        }
        self.tell_others(request);
        self.look.notify_one();
    }

    /// Gives a request to the replicas that are connected, but for the one that answers it.
    fn tell_others(self: &Arc<Self>, request: &RemotingCommand) {
        let answering = self.context.broker.choose(None);
        let links: Vec<_> = self.links.lock().values().cloned().collect();
        for link in links {
            if Some(&link.address) != answering.as_ref() && link.channel.connected().is_some() {
                link.channel.call_with(request.clone(), PUSH_TIMEOUT, |_| {});
            }
        }
    }

    /// A group that the client has left must not be replayed.
    fn forget_group(&self, request: &RemotingCommand) {
        let mut heartbeat = self.heartbeat.lock();
        let Some(command) = &mut *heartbeat else { return };
        let left = UnregisterClientRequest::decode(request);
        let data = HeartbeatData::decode(&command.body);
        let (Ok(left), Ok(mut data)) = (left, data) else { return };
        let is = |group: &Option<GroupName>, name: &str| group.as_ref().is_some_and(|group| group.as_str() == name);
        data.producers.retain(|producer| !is(&left.producer_group, &producer.group));
        data.consumers.retain(|consumer| !is(&left.consumer_group, &consumer.group));
        if data.producers.is_empty() && data.consumers.is_empty() {
            *heartbeat = None;
        } else {
            command.body = data.encode();
        }
    }

    // What has to be looked after.

    async fn take_care(self: Arc<Self>) {
        loop {
            let tick = if self.flights.lock().is_empty() { IDLE_TICK } else { BUSY_TICK };
            tokio::select! {
                () = tokio::time::sleep(tick) => {}
                () = self.look.notified() => {}
            }
            self.keep_links();
            self.find_silent();
        }
    }

    /// Who is in a group is known to every replica, and stays so.
    fn keep_links(self: &Arc<Self>) {
        let replicas = self.context.broker.replicas();
        self.links.lock().retain(|address, link| {
            replicas.contains(address) || link.channel.connected().is_some() || link.state.lock().dialling
        });
        if self.heartbeat.lock().is_none() {
            return;
        }
        for address in replicas {
            let link = self.link(&address);
            let mut state = link.state.lock();
            let waits = state.dialled.is_some_and(|at| at.elapsed() < DIAL_PAUSE);
            if link.channel.connected().is_none() && !waits {
                self.dial(&link, &mut state);
            }
        }
    }

    /// Asks replicas that owe an answer and say nothing whether they live.
    fn find_silent(self: &Arc<Self>) {
        let mut owing: HashMap<String, Instant> = HashMap::new();
        for flight in self.flights.lock().values() {
            let since = owing.entry(flight.target.clone()).or_insert(flight.sent);
            *since = (*since).min(flight.sent);
        }
        for (address, since) in owing {
            let Some(link) = self.links.lock().get(&address).cloned() else { continue };
            {
                let mut state = link.state.lock();
                let quiet = since.max(state.heard).elapsed();
                if quiet < self.context.quiet_max || state.probed.is_some_and(|at| at.elapsed() < PROBE_PAUSE) {
                    continue;
                }
                state.probed = Some(Instant::now());
            }
            self.probe(&link);
        }
    }

    /// Asks what every replica answers at once by itself.
    fn probe(self: &Arc<Self>, link: &Arc<Link>) {
        let mut question = RemotingCommand::request(RequestCode::GET_CONSUMER_LIST_BY_GROUP);
        let group = GroupName::parse("gantry_sidecar_probe").expect("a good name");
        ConsumerGroupRequest { group }.encode_into(&mut question.ext);
        let session = Arc::downgrade(self);
        let asked = Arc::clone(link);
        link.channel.call_with(question, self.context.probe_timeout, move |answer| {
            let Some(session) = session.upgrade() else { return };
            match answer {
                Ok(_) => {
                    asked.state.lock().heard = Instant::now();
                    session.context.broker.trust(&asked.address);
                }
                Err(remoting::Error::Timeout { .. }) => session.leave(&asked),
                // The flights were told as well.
                Err(_) => {}
            }
        });
    }

    /// Turns away from a replica that does not answer: its connection stays for what must not be sent twice.
    fn leave(self: &Arc<Self>, link: &Arc<Link>) {
        self.context.counters.stalled.add();
        self.context.broker.doubt(&link.address, Why::Silent);
        let repeatable =
            |flight: &Flight| flight.target == link.address && repeat::is_repeatable(flight.request.request_code());
        let moved: Vec<_> =
            self.flights.lock().extract_if(|_, flight| repeatable(flight)).map(|(_, flight)| flight).collect();
        moved.into_iter().for_each(|flight| self.try_later(flight));
    }
}

/// Takes what a replica asks of the client.
struct Pushes {
    session: std::sync::Weak<Session>,
}

impl Handler for Pushes {
    fn handle(&self, request: RemotingCommand, responder: Responder) {
        let Some(session) = self.session.upgrade() else { return responder.forget() };
        session.context.counters.pushed.add();
        if request.is_oneway() {
            if let Err(error) = session.client.send_oneway(request) {
                tracing::debug!(%error, "a push did not reach the client");
            }
            return;
        }
        tokio::spawn(async move {
            match session.client.call(request, PUSH_TIMEOUT).await {
                Ok(answer) => responder.send(answer),
                Err(_) => responder.forget(),
            }
        });
    }

    fn closed(&self, _: &Connection) {
        // A quiet connection may end for no worse reason than that; who had a request on it doubts the replica.
        if let Some(session) = self.session.upgrade() {
            session.look.notify_one();
        }
    }
}
