//! What the broker answers: every request of clients and tools to one broker group.
//!
//! A [`Group`] is one replica of a broker group as its clients see it. [`GroupHandler`] takes each request off a
//! connection and hands it to its family, by the request code:
//!
//! | Family | Requests | Served by |
//! | --- | --- | --- |
//! | `send` | 10 310 320 | the leader; encoded, handed to the sequencer, answered when applied |
//! | `send_back` | 36 | the leader |
//! | `timer` | 370 | the leader |
//! | `transaction` | 37 323, and 39 to producers | the leader; a producer may be connected to another replica |
//! | `reply` | 324 325, and 326 to requesters | the leader; a requester may be connected to another replica |
//! | `pull` | 11 361 | any replica within what it has applied, once it has caught up; the leader beyond |
//! | `pop` | 200050 to 200055, 200151 | the leader, through the log |
//! | `assignment` | 400 402; 401 | any replica, from heartbeats and name servers; the leader, through the log |
//! | `offset` | 14 15 29 30 31 32 | the leader, behind a read index |
//! | `lock` | 41 42 | the leader, through the log |
//! | `client` | 34 35 38 46 203 204 328, relays 221 223 307 309 | any replica, from heartbeats |
//! | `query` | 12 33 321 | any replica that finds it; the leader says what is not there |
//! | `admin_topic`, `admin_group`, `live_settings` | 17 18 25 200 207 215 222 225 314 | the leader, through the log |
//! | `admin_topic`, `admin_group`, `consume_stats`, `runtime` | what tools read | any replica |
//! | `refused` | what there is another way for | any replica |
//!
//! What only the leader may answer goes through [`forward`](crate::forward): another replica passes it on, or holds it
//! while nobody leads. Nothing here blocks the task that reads a connection.

mod admin_group;
mod admin_topic;
pub(crate) mod answer;
mod assignment;
mod carry;
mod caught_up;
mod client;
mod consume_stats;
mod delay;
pub(crate) mod filter;
mod follower_read;
mod journey;
mod live_settings;
mod lock;
pub(crate) mod metrics;
mod offset;
mod offset_buffer;
mod pop;
mod pull;
mod query;
mod refused;
mod reply;
mod runtime;
mod send;
mod send_back;
mod stats;
mod tasks;
mod timer;
mod transaction;
mod waiting;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU16, AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use protocol::body::TopicRouteData;
use protocol::message::{UniqueKeyParts, unique_key};
use protocol::{GroupName, RemotingCommand, RequestCode, TopicName};
use remoting::{Connection, Handler, Responder};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::answer::unsupported;
use self::caught_up::{CaughtUp, READ_INDEX, READ_INDEX_PATIENCE};
use self::live_settings::LiveCache;
use self::offset_buffer::OffsetBuffer;
use self::pop::{BusyQueues, PopSteps};
use self::pull::Held;
use self::refused::refused;
use self::stats::Stats;
use crate::client_table::{ClientTable, Now, TableLimits};
use crate::delay_levels::DelayLevels;
use crate::disk::DiskState;
use crate::forward::{Patience, Place, Source};
use crate::peer::{CopyHandler, ForwardHandler, ForwardReply, Forwarder, PeerHub};
use crate::pull_hold::{HoldLimits, PullHold};
use crate::queue_lock::LeaseClock;
use crate::raft::GroupRaft;
use crate::sequencer::Sequencer;
use crate::state_machine::{StateMachine, StateReader};
use crate::store::{ArrivalListener, MessageStore};
use crate::trace::GroupTracer;

pub(crate) use self::admin_group::Reset;
pub use self::filter::{MessageFilter, SqlFilter};
#[cfg(test)]
pub(crate) use self::live_settings::live_names;
pub use self::transaction::TransactionSettings;
pub use self::waiting::DelayedMessages;

/// What an operator sets about one group.
#[derive(Debug, Clone)]
pub struct GroupSettings {
    /// The cluster's name.
    pub cluster_name: String,
    /// The group's name: RocketMQ's broker name.
    pub broker_name: String,
    /// Identity of this replica in the group.
    pub node_id: u64,
    /// Where clients reach this replica: in routes, and as the store host of messages it accepts.
    pub client_addr: SocketAddr,
    /// Whether the first send to an unknown topic creates it.
    pub auto_create_topics: bool,
    /// Whether the first heartbeat of an unknown group creates it.
    pub auto_create_groups: bool,
    /// Most queues of a topic created by a send.
    pub auto_create_queues: u32,
    /// Largest body of a message or batch.
    pub message_bytes_max: usize,
    /// How long messages wait on each delay level.
    pub delay_levels: DelayLevels,
    /// No message waits longer for a time of its own.
    pub timer_delay_max: Duration,
    /// How producers are asked about their transactions.
    pub transactions: TransactionSettings,
    /// How long messages stay.
    pub retention_time: Duration,
    /// Most topics, and most pairs of topic and consumer group, that metrics name.
    pub metric_names_max: usize,
}

/// Tells the name servers about topics without waiting for the next round.
pub trait Registrar: Send + Sync + 'static {
    /// Registers what this node leads with every name server; resolves when all have answered or failed.
    fn topics_changed(&self) -> BoxFuture<'static, ()>;

    /// The route of a topic over all broker groups, as a name server has it; none if no name server answers.
    fn route(&self, topic: &TopicName) -> BoxFuture<'static, Option<TopicRouteData>>;
}

/// Everything a group is made of.
pub struct GroupParts {
    /// What an operator set.
    pub settings: GroupSettings,
    /// The replicated state.
    pub state: StateReader,
    /// The stored messages.
    pub store: MessageStore,
    /// The Raft replica.
    pub raft: GroupRaft<StateMachine>,
    /// Where messages enter the log.
    pub sequencer: Sequencer,
    /// The same holds that the message store wakes.
    pub holds: Holds,
    /// The way to other replicas.
    pub peers: PeerHub,
    /// The way to the name servers.
    pub registrar: Arc<dyn Registrar>,
    /// How full the disk is that holds the log.
    pub disk: watch::Receiver<DiskState>,
    /// Told when a tool wants old segments dropped, whatever the hour.
    pub drop_expired: Arc<Notify>,
    /// Who follows messages, if anybody does.
    pub tracer: Option<GroupTracer>,
}

/// The parked pulls of a group. Made before the message store, which wakes them.
#[derive(Clone)]
pub struct Holds(pub(crate) Arc<PullHold<Held>>);

impl Holds {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(PullHold::new(HoldLimits::default())))
    }
}

impl Default for Holds {
    fn default() -> Self {
        Self::new()
    }
}

impl ArrivalListener for Holds {
    fn arrived(&self, topic: &TopicName, queue_id: u32, max_offset: u64, tags_code: i64) {
        self.0.arrived(topic, queue_id, max_offset, tags_code);
    }
}

/// One replica of a broker group, as its clients see it. Cheap to clone.
#[derive(Clone)]
pub struct Group(pub(crate) Arc<Shared>);

/// What all clones of a [`Group`] share.
pub(crate) struct Shared {
    pub(crate) settings: GroupSettings,
    pub(crate) state: StateReader,
    pub(crate) store: MessageStore,
    pub(crate) raft: GroupRaft<StateMachine>,
    pub(crate) sequencer: Sequencer,
    pub(crate) holds: Arc<PullHold<Held>>,
    pub(crate) peers: PeerHub,
    pub(crate) registrar: Arc<dyn Registrar>,
    pub(crate) disk: watch::Receiver<DiskState>,
    pub(crate) drop_expired: Arc<Notify>,
    pub(crate) tracer: Option<GroupTracer>,
    pub(crate) clients: ClientTable<Connection>,
    pub(crate) offsets: OffsetBuffer,
    pub(crate) pop_steps: PopSteps,
    pub(crate) busy_queues: BusyQueues,
    pub(crate) stats: Stats,
    live: LiveCache,
    /// Where leader's work is done now.
    pub(crate) place: watch::Sender<Place>,
    /// Whether this replica has caught up with whoever leads.
    caught_up: CaughtUp,
    /// Consumer groups whose members will be told of a change.
    pub(crate) noticing: Mutex<std::collections::HashSet<GroupName>>,
    /// Groups whose creation is under way.
    pub(crate) creating: Mutex<std::collections::HashSet<GroupName>>,
    /// The latest store time given out: messages of one leader never go back in time.
    last_store_ms: AtomicI64,
    /// By which the leases of queues end.
    pub(crate) lease_clock: LeaseClock,
    next_queue: AtomicU32,
    key_instance: u32,
    key_counter: AtomicU16,
    pub(crate) boot_ms: i64,
    /// Ends the tasks of the group.
    pub(crate) stop: CancellationToken,
    /// Every task that works for the group.
    pub(crate) tasks: TaskTracker,
    /// Held while one entry with offsets is on its way.
    pub(crate) flushing: tokio::sync::Mutex<()>,
}

/// How long a request for a changed topic waits for the name servers to know it.
const REGISTRATION_WAIT: Duration = Duration::from_secs(1);

impl Group {
    /// Starts the tasks of a group: it follows its role, wakes held pulls, expires clients and flushes offsets.
    ///
    /// Must be called within a tokio runtime. [`Group::shutdown`] ends what this starts.
    #[must_use]
    pub fn start(parts: GroupParts) -> Self {
        let now = now();
        let (place, _) = watch::channel(Place::Nowhere);
        let metric_names_max = parts.settings.metric_names_max;
        let shared = Shared {
            settings: parts.settings,
            state: parts.state,
            store: parts.store,
            raft: parts.raft,
            sequencer: parts.sequencer,
            holds: parts.holds.0,
            peers: parts.peers,
            registrar: parts.registrar,
            disk: parts.disk,
            drop_expired: parts.drop_expired,
            tracer: parts.tracer,
            clients: ClientTable::new(TableLimits::default(), now.instant),
            offsets: OffsetBuffer::default(),
            pop_steps: PopSteps::default(),
            busy_queues: BusyQueues::default(),
            stats: Stats::new(now.instant, metric_names_max),
            live: LiveCache::default(),
            place,
            caught_up: CaughtUp::default(),
            noticing: Mutex::default(),
            creating: Mutex::default(),
            last_store_ms: AtomicI64::new(0),
            lease_clock: LeaseClock::new(now.wall_ms, now.instant),
            next_queue: AtomicU32::new(rand::random()),
            key_instance: rand::random(),
            key_counter: AtomicU16::new(0),
            boot_ms: now.wall_ms,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            flushing: tokio::sync::Mutex::new(()),
        };
        let group = Self(Arc::new(shared));
        tasks::spawn_all(&group);
        group
    }

    /// The name of the broker group.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.settings.broker_name
    }

    /// Resolves once this replica serves as leader.
    pub async fn serving(&self) {
        let mut place = self.0.place.subscribe();
        // The sender lives as long as the group.
        let _ = place.wait_for(|place| matches!(place, Place::Here { .. })).await;
    }

    /// Puts every accepted consumer offset into the log. To be called before leadership is given away.
    pub async fn flush_offsets(&self) {
        self.flush_all_offsets().await;
    }

    /// How many producers and consumers are connected, counted once in each of their groups.
    #[must_use]
    pub fn client_counts(&self) -> (usize, usize) {
        self.0.clients.counts()
    }

    /// How many pulls are held.
    #[must_use]
    pub fn held_pulls(&self) -> usize {
        self.0.holds.len()
    }

    /// How many transactions are pending.
    #[must_use]
    pub fn pending_transactions(&self) -> usize {
        self.0.state.half_count()
    }

    /// How many messages consumers in POP mode have and did not acknowledge yet.
    #[must_use]
    pub fn popped_messages(&self) -> usize {
        self.0.state.pops().taken_count()
    }

    /// Messages and bytes put here since the start.
    #[must_use]
    pub fn put_totals(&self) -> (u64, u64) {
        (self.0.stats.put.total(), self.0.stats.put_bytes.total())
    }

    /// Messages given to consumers since the start.
    #[must_use]
    pub fn got_total(&self) -> u64 {
        self.0.stats.got.total()
    }

    /// Answers what is held and ends the tasks of the group.
    pub async fn shutdown(&self) {
        self.0.stop.cancel();
        for held in self.0.holds.release_all() {
            self.resume(held);
        }
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    /// Serves one request, which a client sent or a replica passed on.
    pub(crate) fn serve(&self, request: RemotingCommand, responder: Responder, source: Source) {
        match request.request_code() {
            RequestCode::SEND_MESSAGE | RequestCode::SEND_MESSAGE_V2 | RequestCode::SEND_BATCH_MESSAGE => {
                self.serve_send(request, responder, source);
            }
            RequestCode::PULL_MESSAGE | RequestCode::LITE_PULL_MESSAGE => self.serve_pull(request, responder, source),
            RequestCode::POP_MESSAGE | RequestCode::NOTIFICATION => self.serve_pop(request, responder, source),
            RequestCode::UPDATE_CONSUMER_OFFSET => self.serve_offset_update(request, responder, source),
            RequestCode::QUERY_ASSIGNMENT => self.serve_assignment(request, responder),
            RequestCode::QUERY_MESSAGE | RequestCode::VIEW_MESSAGE_BY_ID | RequestCode::QUERY_CONSUME_QUEUE => {
                self.serve_query(request, responder, source);
            }
            READ_INDEX if source.is_node() => self.serve_at_leader(request, responder, source, READ_INDEX_PATIENCE),
            RequestCode::CHECK_TRANSACTION_STATE | RequestCode::PUSH_REPLY_MESSAGE_TO_CLIENT if source.is_node() => {
                self.pass_to_client(request, responder);
            }
            code => {
                if let Some(patience) = Patience::of(code, request.language) {
                    self.serve_at_leader(request, responder, source, patience);
                } else {
                    self.serve_here(request, responder);
                }
            }
        }
    }

    /// Hands a client of this replica what the leader has for it.
    fn pass_to_client(&self, request: RemotingCommand, responder: Responder) {
        let group = self.clone();
        self.0.tasks.spawn(async move {
            let outcome = match request.request_code() {
                RequestCode::CHECK_TRANSACTION_STATE => group.pass_check_on(&request),
                _ => group.pass_reply_on(&request).await,
            };
            group.reply(&request, responder, outcome);
        });
    }

    /// Serves what every replica answers by itself.
    fn serve_here(&self, request: RemotingCommand, responder: Responder) {
        if Self::is_relayed(request.request_code()) {
            let group = self.clone();
            self.0.tasks.spawn(async move {
                let outcome = group.relay(&request).await;
                group.reply(&request, responder, outcome);
            });
            return;
        }
        if Self::reads_files(request.request_code()) {
            let group = self.clone();
            self.0.tasks.spawn_blocking(move || group.answer_here(&request, responder));
        } else {
            self.answer_here(&request, responder);
        }
    }

    /// Whether answering a request may wait for the disk.
    fn reads_files(code: RequestCode) -> bool {
        matches!(
            code,
            RequestCode::GET_BROKER_RUNTIME_INFO
                | RequestCode::GET_TOPIC_STATS_INFO
                | RequestCode::GET_CONSUME_STATS
                | RequestCode::GET_BROKER_CONSUME_STATS
                | RequestCode::QUERY_CONSUME_TIME_SPAN
        )
    }

    fn answer_here(&self, request: &RemotingCommand, responder: Responder) {
        let outcome = match request.request_code() {
            RequestCode::HEART_BEAT => self.heartbeat(request, &responder),
            RequestCode::UNREGISTER_CLIENT => self.unregister_client(request),
            RequestCode::GET_CONSUMER_LIST_BY_GROUP => self.consumer_list(request),
            RequestCode::CHECK_CLIENT_CONFIG => self.check_client_config(request),
            RequestCode::GET_CONSUMER_CONNECTION_LIST => self.consumer_connections(request),
            RequestCode::GET_PRODUCER_CONNECTION_LIST => self.producer_connections(request),
            RequestCode::GET_ALL_PRODUCER_INFO => self.all_producers(request),
            RequestCode::GET_ALL_TOPIC_CONFIG => self.all_topics(request),
            RequestCode::GET_TOPIC_CONFIG => self.one_topic(request),
            RequestCode::GET_SYSTEM_TOPIC_LIST_FROM_BROKER => self.system_topics(request),
            RequestCode::GET_TOPIC_STATS_INFO => self.topic_stats(request),
            RequestCode::GET_ALL_SUBSCRIPTIONGROUP_CONFIG => self.all_groups(request),
            RequestCode::GET_SUBSCRIPTIONGROUP_CONFIG => self.one_group(request),
            RequestCode::QUERY_TOPIC_CONSUME_BY_WHO => self.readers_of_topic(request),
            RequestCode::QUERY_TOPICS_BY_CONSUMER => self.topics_of_group(request),
            RequestCode::QUERY_SUBSCRIPTION_BY_CONSUMER => self.subscription_of_group(request),
            RequestCode::GET_ALL_CONSUMER_OFFSET => self.all_consumer_offsets(request),
            RequestCode::GET_ALL_DELAY_OFFSET => self.all_delay_offsets(request),
            RequestCode::GET_ALL_MESSAGE_REQUEST_MODE => self.all_request_modes(request),
            RequestCode::GET_CONSUME_STATS => self.consume_stats(request),
            RequestCode::GET_BROKER_CONSUME_STATS => self.all_consume_stats(request),
            RequestCode::QUERY_CONSUME_TIME_SPAN => self.consume_time_span(request),
            RequestCode::QUERY_CORRECTION_OFFSET => self.correction_offsets(request),
            RequestCode::GET_BROKER_RUNTIME_INFO => self.runtime_info(request),
            RequestCode::GET_BROKER_CONFIG => self.broker_config(request),
            RequestCode::VIEW_BROKER_STATS_DATA => self.view_stats(request),
            // Queue files go with their segments and with their topics.
            RequestCode::CLEAN_EXPIRED_CONSUMEQUEUE | RequestCode::CLEAN_UNUSED_TOPIC => Ok(answer::success(request)),
            RequestCode::DELETE_EXPIRED_COMMITLOG => {
                self.0.drop_expired.notify_one();
                Ok(answer::success(request))
            }
            _ => Ok(refused(request).unwrap_or_else(|| unsupported(request))),
        };
        self.reply(request, responder, outcome);
    }

    /// Does on the leader what only the leader may do.
    pub(crate) async fn perform(&self, request: &RemotingCommand, origin: SocketAddr) -> answer::Outcome {
        match request.request_code() {
            RequestCode::SEND_MESSAGE | RequestCode::SEND_MESSAGE_V2 | RequestCode::SEND_BATCH_MESSAGE => {
                self.send_patiently(request, origin).await
            }
            RequestCode::CONSUMER_SEND_MSG_BACK => self.send_back(request).await,
            RequestCode::SEND_REPLY_MESSAGE | RequestCode::SEND_REPLY_MESSAGE_V2 => {
                self.send_reply(request, origin).await
            }
            RequestCode::END_TRANSACTION => self.end_transaction(request).await,
            RequestCode::RECALL_MESSAGE => self.recall_message(request).await,
            RequestCode::RESUME_CHECK_HALF_MESSAGE => self.resume_check(request).await,
            RequestCode::PULL_MESSAGE | RequestCode::LITE_PULL_MESSAGE => self.pull_for_certain(request).await,
            RequestCode::QUERY_MESSAGE | RequestCode::VIEW_MESSAGE_BY_ID | RequestCode::QUERY_CONSUME_QUEUE => {
                self.query_for_certain(request).await
            }
            READ_INDEX => self.say_read_index(request).await,
            RequestCode::POP_MESSAGE | RequestCode::NOTIFICATION => self.pop(request).await,
            RequestCode::ACK_MESSAGE => self.acknowledge(request).await,
            RequestCode::BATCH_ACK_MESSAGE => self.acknowledge_batch(request).await,
            RequestCode::CHANGE_MESSAGE_INVISIBLETIME => self.change_invisible(request).await,
            RequestCode::PEEK_MESSAGE => self.peek(request).await,
            RequestCode::POLLING_INFO => self.polling_info(request),
            RequestCode::SET_MESSAGE_REQUEST_MODE => self.set_request_mode(request).await,
            RequestCode::QUERY_CONSUMER_OFFSET => self.query_consumer_offset(request).await,
            RequestCode::UPDATE_CONSUMER_OFFSET => self.update_consumer_offset(request).await,
            RequestCode::SEARCH_OFFSET_BY_TIMESTAMP => self.search_offset(request).await,
            RequestCode::GET_MAX_OFFSET => self.max_offset(request).await,
            RequestCode::GET_MIN_OFFSET => self.min_offset(request).await,
            RequestCode::GET_EARLIEST_MSG_STORETIME => self.earliest_store_time(request).await,
            RequestCode::LOCK_BATCH_MQ => self.lock_queues(request).await,
            RequestCode::UNLOCK_BATCH_MQ => self.unlock_queues(request).await,
            RequestCode::UPDATE_AND_CREATE_TOPIC => self.put_topic(request).await,
            RequestCode::UPDATE_AND_CREATE_TOPIC_LIST => self.put_topics(request).await,
            RequestCode::DELETE_TOPIC_IN_BROKER => self.delete_topic(request).await,
            RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP => self.put_group(request).await,
            RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST => self.put_groups(request).await,
            RequestCode::DELETE_SUBSCRIPTIONGROUP => self.delete_group(request).await,
            RequestCode::INVOKE_BROKER_TO_RESET_OFFSET => self.reset_offset(request).await,
            RequestCode::CLONE_GROUP_OFFSET => self.clone_offsets(request).await,
            RequestCode::UPDATE_BROKER_CONFIG => self.update_config(request).await,
            _ => Ok(unsupported(request)),
        }
    }

    /// Answers a request with what became of it.
    pub(crate) fn reply(&self, request: &RemotingCommand, responder: Responder, outcome: answer::Outcome) {
        match self.answer_of(request, outcome) {
            Some(answer) => responder.send(answer),
            None => responder.forget(),
        }
    }

    /// The answer that an outcome amounts to; none when silence is the better answer.
    pub(crate) fn answer_of(&self, request: &RemotingCommand, outcome: answer::Outcome) -> Option<RemotingCommand> {
        use answer::Failure;
        match outcome {
            Ok(answer) => Some(answer),
            Err(Failure::Refused(code, remark)) => Some(answer::refusal(request, code, remark)),
            Err(Failure::NotLeading(reason)) => Some(answer::not_proposed(request, &reason)),
            Err(Failure::Unknown(reason)) => Some(answer::unknown_outcome(request, &reason)),
            Err(Failure::Silence) => None,
        }
    }

    /// The leader's time for a message or command: wall time that never goes back while this process lives.
    pub(crate) fn stamp_ms(&self) -> i64 {
        let now_ms = now().wall_ms;
        self.0.last_store_ms.fetch_max(now_ms, Ordering::Relaxed).max(now_ms)
    }

    /// The leader's time for a lease.
    pub(crate) fn lease_ms(&self) -> i64 {
        self.0.lease_clock.ms(now().instant)
    }

    /// Makes [`Group::stamp_ms`] start after a time that another leader has given out.
    pub(crate) fn stamp_after(&self, stamped_ms: i64) {
        self.0.last_store_ms.fetch_max(stamped_ms, Ordering::Relaxed);
    }

    /// One of `queues` queues, in turn.
    pub(crate) fn next_queue(&self, queues: u32) -> u32 {
        self.0.next_queue.fetch_add(1, Ordering::Relaxed) % queues.max(1)
    }

    /// A message id in the clients' form, for a message that came without one.
    pub(crate) fn new_unique_key(&self, now_ms: i64) -> String {
        const MONTH_MS: i64 = 31 * 24 * 3_600 * 1_000;
        unique_key(&UniqueKeyParts {
            address: match self.0.settings.client_addr.ip() {
                IpAddr::V6(address) => address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4),
                address => address,
            },
            process: (std::process::id() & 0xffff) as u16,
            instance: self.0.key_instance,
            month_millis: u32::try_from(now_ms.rem_euclid(MONTH_MS)).unwrap_or(0),
            counter: self.0.key_counter.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Waits until the name servers know the topics of this node, or for a second.
    pub(crate) async fn wait_for_registration(&self) {
        let _ = tokio::time::timeout(REGISTRATION_WAIT, self.0.registrar.topics_changed()).await;
    }

    /// Tells the name servers about the topics of this node, and waits for nothing.
    pub(crate) fn register_topics(&self) {
        self.0.tasks.spawn(self.0.registrar.topics_changed());
    }
}

/// Hands the requests of client connections to a group.
#[derive(Clone)]
pub struct GroupHandler(Group);

impl GroupHandler {
    /// For the connections of `group`'s client port.
    #[must_use]
    pub fn new(group: Group) -> Self {
        Self(group)
    }
}

impl Handler for GroupHandler {
    fn handle(&self, request: RemotingCommand, responder: Responder) {
        self.0.serve(request, responder, Source::Client);
    }

    fn closed(&self, connection: &Connection) {
        self.0.connection_closed(connection);
    }
}

impl ForwardHandler for GroupHandler {
    fn forwarded(&self, origin: SocketAddr, request: RemotingCommand, from: Forwarder, reply: ForwardReply) {
        let responder = Responder::detached(&request, origin, move |answer| reply.send(&answer));
        let source = match from {
            Forwarder::Replica => Source::Replica,
            Forwarder::Starting => Source::Starting,
        };
        self.0.serve(request, responder, source);
    }
}

impl CopyHandler for GroupHandler {
    fn copy(&self, _request: Bytes) -> BoxFuture<'static, Bytes> {
        let copy = self.0.export_clients();
        Box::pin(std::future::ready(copy))
    }
}

/// The time on both clocks.
pub(crate) fn now() -> Now {
    let wall_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    Now { instant: tokio::time::Instant::now().into_std(), wall_ms: i64::try_from(wall_ms).unwrap_or(i64::MAX) }
}
