//! One broker group on this node, from the first accepted client to the clean mark.
//!
//! Its supervisor owns the replica and takes it through its states: recovered without an identity, and asking for one;
//! running; stopped for a moment, to be edited and started again.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use raft_store::{ClusterId, DamagedRange, FlushMode, LogView, Member, Pace, ReadBudget, Recovered, ScrubOptions};
use remoting::Handler;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::damaged::{Halted, describe_failure};
use super::events::{EventLog, Leadership};
use super::known_members::{KnownMembers, MembersFile};
use super::late_handler::LateHandler;
use super::members::{self, CatchUp, Doorkeeper};
use super::rejoin::{self, Former, Given};
use super::{Bootstrap, StartError, StartOptions, failure, flush, join, recover, replay};
use crate::config::{
    BrokerOptions, ClusterOptions, FlushOptions, GroupOptions, MemberOptions, NodeOptions, RaftOptions, StorageOptions,
};
use crate::disk::DiskWatch;
use crate::forward::Relay;
use crate::http;
use crate::peer::handshake::Outcast;
use crate::peer::{GroupIdentity, PeerHub};
use crate::processor::{Group, GroupHandler, GroupParts, GroupSettings, Holds};
use crate::raft::digests::Comparer;
use crate::raft::repair::{Peers, Ranges, Repairer};
use crate::raft::{CatchUpRate, GroupRaft, GroupRaftOptions, Role, Timing, TypeConfig, Unfit};
use crate::registration::{GroupRecord, RegisteredGroup, RegistrationHandle};
use crate::retention::GroupRetention;
use crate::sequencer::{Sequencer, SequencerOptions};
use crate::state_machine::command::{COMMAND_MAGIC, starts_sync};
use crate::state_machine::{StateMachine, StateReader, StoreControl, TopicChanges, TopicConfig};
use crate::store::{MessageStore, Replay, ReplayProgress, StoreOptions};
use crate::trace::Tracer;

/// Orders to a replica that wait; an operator gives one at a time.
const ORDERS_MAX: usize = 4;

/// How long after its time a flush may be before an asynchronous leader acknowledges no more.
const FLUSH_LATE_MAX: Duration = Duration::from_secs(1);

/// What a group's start needs from its node.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) cluster: ClusterOptions,
    pub(super) node: NodeOptions,
    pub(super) storage: StorageOptions,
    pub(super) cold_reads: Arc<ReadBudget>,
    pub(super) derived_files_max: usize,
    pub(super) raft: RaftOptions,
    pub(super) broker: BrokerOptions,
    pub(super) start: StartOptions,
    pub(super) hub: PeerHub,
    pub(super) catch_up: Option<Arc<CatchUpRate>>,
    pub(super) registration: RegistrationHandle,
    pub(super) retention_time: Duration,
    pub(super) metric_names_max: usize,
    pub(super) drop_expired: Arc<Notify>,
    pub(super) events: EventLog,
    pub(super) drained: watch::Receiver<bool>,
    pub(super) tracer: Option<Tracer>,
}

pub(super) struct NodeGroup {
    options: GroupOptions,
    /// Holds what the group has on the disk.
    dir: PathBuf,
    /// The members as of the last look.
    known: RwLock<KnownMembers>,
    members_file: MembersFile,
    /// Why this node holds no replica: it was not let in yet, or was removed.
    outside: Mutex<Option<String>>,
    /// What a change of the members waits for, on the leader.
    change_waits: Mutex<Option<String>>,
    /// How far new members are, on the leader.
    catch_up: Mutex<Option<CatchUp>>,
    late: Arc<LateHandler>,
    running: RwLock<Option<Arc<Running>>>,
    /// Turns true when `running` is there.
    started: watch::Sender<bool>,
    /// Why the replica cannot start, while its bytes are damaged.
    halted: Mutex<Option<Halted>>,
    /// The damage that the supervisor is to mend.
    damaged: Mutex<Option<StartError>>,
    /// From the recovery of the log until its files are closed.
    replay: Mutex<Option<Replay>>,
    /// A replica that is recovered and has no identity.
    waiting: Mutex<Option<Recovering>>,
    /// What closes the files, whoever uses them.
    files: Mutex<Option<(StoreControl, LogView)>>,
    /// What is known of the store, for status.
    recovered: RwLock<Option<Recovered>>,
    /// Whether the replica counts as missing until it votes again.
    returning: watch::Sender<bool>,
    orders: mpsc::Sender<Order>,
    /// Taken by the supervisor.
    ordered: Mutex<Option<mpsc::Receiver<Order>>>,
}

/// Log and derived files, recovered.
pub(super) struct Recovering {
    pub(super) log: raft_store::Opened<TypeConfig>,
    store: crate::state_machine::Opened,
    holds: Holds,
}

/// What an operator wants done with a replica.
pub(super) enum Order {
    /// Stop it, give up its identity, and let it come back under another.
    Retire {
        /// Answered once it has stopped and has no identity.
        done: oneshot::Sender<Result<(), http::AdminError>>,
    },
    /// Stop it and go on from its log without a majority.
    Recover {
        /// What the operator has seen and agreed to.
        order: http::RecoverOrder,
        /// Answered once the replica leads.
        done: oneshot::Sender<Result<http::LossReport, http::AdminError>>,
    },
}

/// The parts of a replica that runs.
pub(super) struct Running {
    pub(super) group: Group,
    pub(super) raft: GroupRaft<StateMachine>,
    pub(super) sequencer: Sequencer,
    pub(super) state: StateReader,
    pub(super) log: LogView,
    pub(super) recovered: Recovered,
    pub(super) disk: DiskWatch,
    pub(super) retention: Arc<GroupRetention>,
    pub(super) repairer: Repairer,
    pub(super) comparer: Comparer,
    pub(super) store: MessageStore,
    handler: Arc<GroupHandler>,
    hub: PeerHub,
}

impl Order {
    /// Answers that it cannot be carried out.
    pub(super) fn refuse(self, error: http::AdminError) {
        match self {
            Self::Retire { done } => drop(done.send(Err(error))),
            Self::Recover { done, .. } => drop(done.send(Err(error))),
        }
    }
}

impl Running {
    pub(super) fn node_id(&self) -> u64 {
        self.raft.node_id()
    }

    pub(super) fn hub(&self) -> &PeerHub {
        &self.hub
    }
}

impl NodeGroup {
    pub(super) fn new(options: GroupOptions, data_dir: &Path) -> Self {
        let (orders, ordered) = mpsc::channel(ORDERS_MAX);
        let dir = data_dir.join(&options.name);
        let known = KnownMembers::read(&dir, &options);
        Self {
            members_file: MembersFile::new(dir.clone()),
            dir,
            outside: Mutex::new(known.removed.clone()),
            known: RwLock::new(known),
            change_waits: Mutex::default(),
            catch_up: Mutex::default(),
            options,
            late: Arc::new(LateHandler::default()),
            running: RwLock::default(),
            started: watch::Sender::new(false),
            halted: Mutex::default(),
            damaged: Mutex::default(),
            replay: Mutex::default(),
            waiting: Mutex::default(),
            files: Mutex::default(),
            recovered: RwLock::default(),
            returning: watch::Sender::new(false),
            orders,
            ordered: Mutex::new(Some(ordered)),
        }
    }

    pub(super) fn options(&self) -> &GroupOptions {
        &self.options
    }

    pub(super) fn name(&self) -> &str {
        &self.options.name
    }

    /// Whether there is anything in the group's directory. One that cannot be read counts as full.
    pub(super) fn has_files(&self) -> bool {
        match std::fs::read_dir(&self.dir) {
            Ok(mut found) => found.next().is_some(),
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        }
    }

    pub(super) fn running(&self) -> Option<Arc<Running>> {
        self.running.read().clone()
    }

    /// What the last recovery of the store found.
    pub(super) fn recovered(&self) -> Option<Recovered> {
        self.recovered.read().clone()
    }

    /// The log as it is now, with or without a running replica.
    pub(super) fn log(&self) -> Option<LogView> {
        self.files.lock().as_ref().map(|(_, log)| log.clone())
    }

    /// The derived file that waits for room on the disk, if one does.
    pub(super) fn derived_files_wait(&self) -> Option<String> {
        self.files.lock().as_ref().and_then(|(control, _)| control.waits_for_room().borrow().clone())
    }

    /// The identity of the replica; the configured one before anything else is known.
    pub(super) fn node_id(&self) -> u64 {
        let known = self.running().map(|running| running.node_id());
        known.or_else(|| self.recovered()?.node_id).unwrap_or(self.options.own_id)
    }

    /// Whether the replica has lost its identity and does not vote under the next one yet.
    pub(super) fn is_returning(&self) -> bool {
        *self.returning.borrow()
    }

    pub(super) fn set_returning(&self, returning: bool) {
        self.returning.send_replace(returning);
    }

    /// The members as they were last known here.
    pub(super) fn known_members(&self) -> KnownMembers {
        self.known.read().clone()
    }

    /// Notes who the members are, durably, for what happens before the log is read.
    pub(super) async fn note_members(
        &self,
        members: std::collections::BTreeMap<u64, Member>,
    ) -> raft_store::Result<()> {
        let is_noted = |known: &KnownMembers| known.members == members && !known.may_lack;
        if is_noted(&self.known.read()) {
            return Ok(());
        }
        self.note(KnownMembers { members, may_lack: false, removed: None }).await
    }

    async fn note(&self, known: KnownMembers) -> raft_store::Result<()> {
        self.members_file.write(known.clone()).await?;
        *self.known.write() = known;
        Ok(())
    }

    /// Why this node holds no replica of the group, if it does not.
    pub(super) fn outside(&self) -> Option<String> {
        self.outside.lock().clone()
    }

    /// Says whether that is news.
    pub(super) fn set_outside(&self, reason: Option<String>) -> bool {
        let mut outside = self.outside.lock();
        let is_news = *outside != reason;
        *outside = reason;
        is_news
    }

    pub(super) fn was_removed(&self) -> bool {
        self.known.read().removed.is_some()
    }

    pub(super) fn change_waits(&self) -> Option<String> {
        self.change_waits.lock().clone()
    }

    pub(super) fn set_change_waits(&self, waits_for: Option<String>) {
        *self.change_waits.lock() = waits_for;
    }

    pub(super) fn catch_up(&self) -> Option<CatchUp> {
        *self.catch_up.lock()
    }

    pub(super) fn note_catch_up(&self, next: impl FnOnce(Option<CatchUp>) -> CatchUp) {
        let mut catch_up = self.catch_up.lock();
        *catch_up = Some(next(*catch_up));
    }

    /// Leaves a recovered replica without an identity to the supervisor.
    pub(super) fn set_waiting(&self, recovering: Recovering) {
        *self.waiting.lock() = Some(recovering);
    }

    /// Hands an order to the supervisor.
    pub(super) async fn order(&self, order: Order) -> Result<(), http::AdminError> {
        let busy = |_| http::AdminError::Unavailable(format!("group {} is stopping", self.name()));
        self.orders.send(order).await.map_err(busy)
    }

    /// The preferred leader, by its node's name.
    pub(super) fn preferred_node(&self) -> Option<String> {
        let id = self.options.preferred_leader?;
        self.options.members.iter().find(|member| member.id == id).map(|member| member.node.clone())
    }

    /// For the client port: takes requests from now on.
    pub(super) fn handler(&self) -> Arc<dyn Handler> {
        Arc::clone(&self.late) as _
    }

    /// Answers requests that have waited too long for the start.
    pub(super) fn expire_waiting(&self, now: Instant) {
        self.late.expire(now);
    }

    /// Recovers the replica and starts it. One without an identity, or with damaged bytes, is left to the supervisor: the
    /// node runs without it.
    pub(super) async fn start(&self, context: &Context) -> Result<(), StartError> {
        self.late.relay_by(|| self.relay(context));
        if let Some(reason) = self.known.read().removed.clone() {
            self.stay_out(context, &reason);
            return Ok(());
        }
        match self.start_once(context).await {
            Err(error) if error.is_damage(self.has_peers()) => {
                *self.damaged.lock() = Some(error);
                Ok(())
            }
            started => started,
        }
    }

    /// The way to the members on other nodes.
    fn relay(&self, context: &Context) -> Option<Relay> {
        let others = self.known.read().others(&self.options.own_member().node);
        Relay::new(&context.hub, self.name(), others)
    }

    /// Stops the replica for good: the node was removed from the group. Clients that do not know yet are passed on.
    async fn leave(&self, context: &Context, reason: String) -> Result<(), StartError> {
        tracing::warn!(group = self.name(), reason, "no member any more: the replica stops");
        let known = KnownMembers { removed: Some(reason.clone()), ..self.known_members() };
        let noted = self.note(known).await;
        noted.map_err(|source| StartError::Log { group: self.name().to_owned(), source })?;
        self.set_outside(Some(reason.clone()));
        self.stop().await;
        self.stay_out(context, &reason);
        Ok(())
    }

    fn stay_out(&self, context: &Context, reason: &str) {
        let dir = self.dir.display().to_string();
        tracing::warn!(
            group = self.name(),
            reason,
            dir,
            "this directory belongs to nobody any more, and may be deleted"
        );
        self.set_outside(Some(reason.to_owned()));
        self.late.leave(self.relay(context), reason);
        context.registration.changed();
        self.started.send_replace(true);
    }

    /// Recovers the replica and starts it. After an error everything is closed again.
    pub(super) async fn start_once(&self, context: &Context) -> Result<(), StartError> {
        let started = self.try_start(context).await;
        if started.is_err() {
            self.close().await;
        }
        started
    }

    async fn try_start(&self, context: &Context) -> Result<(), StartError> {
        let recovering = self.recover(context, false).await?;
        match recovering.log.recovered.node_id {
            Some(node_id) => {
                let running = self.run(context, recovering, node_id).await?;
                recover::report_alone(self, context, &running).await;
                self.open_to_clients(&running);
                if context.start.bootstrap == Bootstrap::Allowed && self.options.initializes() {
                    let failed = |source| StartError::Raft { group: self.name().to_owned(), source: Box::new(source) };
                    running.raft.initialize().await.map_err(failed)?;
                }
            }
            None => self.set_waiting(recovering),
        }
        Ok(())
    }

    pub(super) fn has_peers(&self) -> bool {
        !self.known.read().is_only(&self.options.own_member().node)
    }

    /// Why the replica cannot start, if its bytes are damaged.
    pub(super) fn halted(&self) -> Option<Halted> {
        self.halted.lock().clone()
    }

    /// Notes why the replica cannot start. Clients wait no longer once nothing is left to be tried.
    pub(super) fn halt(&self, halted: Halted) {
        let failed = halted.failed;
        let reason = halted.reason.clone();
        let before = self.halted.lock().replace(halted);
        if before.is_none_or(|before| (before.failed, &before.reason) != (failed, &reason)) {
            if failed {
                tracing::error!(reason, "group has failed; the other groups of this node go on");
            } else {
                tracing::error!(reason, "log is damaged: the other members are asked for what is missing");
            }
        }
        if failed {
            self.late.refuse(&reason);
        }
    }

    /// Looks after the replica until it fails or the node stops. Returns why it has failed.
    pub(super) async fn supervise(&self, context: Context) -> String {
        let Some(mut ordered) = self.ordered.lock().take() else { return std::future::pending().await };
        loop {
            if self.was_removed() {
                // Nothing is left to be done.
                match ordered.recv().await {
                    Some(order) => order.refuse(http::AdminError::Conflict(self.outside().unwrap_or_default())),
                    None => std::future::pending().await,
                }
                continue;
            }
            let damaged = self.damaged.lock().take();
            if let Some(damaged) = damaged {
                match self.mend(&context, damaged, &mut ordered).await {
                    Ok(()) => continue,
                    Err(error) => return describe_failure(&error),
                }
            }
            let waiting = self.waiting.lock().take();
            let order = match (waiting, self.running()) {
                (Some(recovering), _) => match self.wait_for_identity(&context, recovering, &mut ordered).await {
                    Ok(order) => order,
                    Err(error) if self.stays_here(&error) => {
                        self.halt_for(error).await;
                        continue;
                    }
                    Err(error) => return describe_failure(&error),
                },
                (None, Some(running)) => {
                    tokio::select! {
                        reason = failure::of(&running) => match damage_of(&running, self.name()) {
                            Some(error) => {
                                tracing::error!(group = self.name(), reason, "replica has stopped at damage");
                                drop(running);
                                self.halt_for(error).await;
                                continue;
                            }
                            None => return reason,
                        },
                        never = self.follow_pace(&running) => match never {},
                        never = follow_drain(&running, context.drained.clone()) => match never {},
                        () = self.follow_role(&running, &context) => return "replica has stopped".to_owned(),
                        never = rejoin::until_voter(self, &context, &running) => match never {},
                        never = flush::follow(self, &context, &running) => match never {},
                        never = members::look_after(self, &running) => match never {},
                        reason = context.hub.outcast(self.name()) => {
                            if Outcast::of(&reason) == Some(Outcast::Removed) {
                                drop(running);
                                match self.leave(&context, reason).await {
                                    Ok(()) => continue,
                                    Err(error) => return describe_failure(&error),
                                }
                            }
                            tracing::error!(group = self.name(), reason, "identity is not accepted any more: retiring it");
                            Some(Order::Retire { done: oneshot::channel().0 })
                        }
                        order = ordered.recv() => order,
                    }
                }
                // Stopped by an order that could not be carried out.
                (None, None) => match self.start(&context).await {
                    Ok(()) => continue,
                    Err(error) => return describe_failure(&error),
                },
            };
            let result = match order {
                None => continue,
                Some(Order::Retire { done }) => self.retire(&context, done).await,
                Some(Order::Recover { order, done }) => recover::carry_out(self, &context, order, done).await,
            };
            match result {
                Ok(()) => {}
                Err(error) if self.stays_here(&error) => self.halt_for(error).await,
                Err(error) => return describe_failure(&error),
            }
        }
    }

    fn stays_here(&self, error: &StartError) -> bool {
        error.is_damage(self.has_peers())
    }

    /// Closes what is open, and leaves the damage to be mended.
    async fn halt_for(&self, error: StartError) {
        self.late.uninstall();
        self.quiesce().await;
        self.close().await;
        *self.damaged.lock() = Some(error);
    }

    /// Asks for an identity and runs under it; or returns with an order that came before.
    async fn wait_for_identity(
        &self,
        context: &Context,
        recovering: Recovering,
        ordered: &mut mpsc::Receiver<Order>,
    ) -> Result<Option<Order>, StartError> {
        let log_failed = |source| StartError::Log { group: self.name().to_owned(), source };
        let former = Former::of(&recovering.log.recovered, self.name());
        self.set_returning(former.is_some());
        let store_uuid = recovering.log.recovered.store_uuid;
        let given = tokio::select! {
            given = self.ask_for_identity(context, former, store_uuid) => given.map_err(log_failed)?,
            order = ordered.recv() => {
                drop(recovering);
                self.stop().await;
                return Ok(order);
            }
        };
        let view = recovering.log.view.clone();
        let adopted = tokio::task::spawn_blocking(move || view.adopt_identity(given.node_id, given.generation)).await;
        adopted.map_err(|_| StartError::Panicked { group: self.name().to_owned() })?.map_err(log_failed)?;
        let mut recovering = recovering;
        recovering.log.recovered.generation = given.generation;
        let running = self.run(context, recovering, given.node_id).await?;
        self.open_to_clients(&running);
        Ok(None)
    }

    /// Asks for another identity in place of a former one, or to be let in.
    async fn ask_for_identity(
        &self,
        context: &Context,
        former: Option<Former>,
        store_uuid: [u8; 16],
    ) -> raft_store::Result<Given> {
        if let Some(former) = former {
            return Ok(rejoin::ask(self, context, &former).await);
        }
        let place = join::ask(self, context, store_uuid).await;
        // Without it the next start would not know whom to believe.
        self.note_members(place.members).await?;
        Ok(Given { node_id: place.node_id, generation: place.generation })
    }

    /// Stops the replica and gives up its identity.
    async fn retire(
        &self,
        context: &Context,
        done: oneshot::Sender<Result<(), http::AdminError>>,
    ) -> Result<(), StartError> {
        self.stop().await;
        let recovering = self.recover(context, true).await?;
        self.set_waiting(recovering);
        let _ = done.send(Ok(()));
        Ok(())
    }

    /// Starts Raft under `node_id` and everything above it. Clients are let in by [`Self::open_to_clients`].
    pub(super) async fn run(
        &self,
        context: &Context,
        recovering: Recovering,
        node_id: u64,
    ) -> Result<Arc<Running>, StartError> {
        let Recovering { log, store, holds } = recovering;
        let recovered = log.recovered;
        let failed = |source| StartError::Raft { group: self.name().to_owned(), source: Box::new(source) };
        let identity = GroupIdentity {
            group: self.name().to_owned(),
            node_id,
            store_uuid: recovered.store_uuid,
            start_counter: recovered.start_counter,
            generation: recovered.generation,
        };
        let mut members = self.known_members().members;
        members.entry(node_id).or_insert_with(|| to_member(self.options.own_member()));
        let raft_options = GroupRaftOptions {
            identity,
            members,
            preferred_leader: self.preferred_node(),
            restarted: recovered.vote.is_some() || recovered.last.is_some(),
            started: tokio::time::Instant::from_std(context.start.started),
            timing: Timing {
                heartbeat_interval: context.raft.heartbeat_interval,
                election_timeout_min: context.raft.election_timeout_min,
                election_timeout_max: context.raft.election_timeout_max,
            },
            propose_timeout: SequencerOptions::default().timeout,
            catch_up: context.catch_up.clone(),
        };
        // Raft reads the log while it starts, and where it is damaged that never ends.
        let mut damage = log.view.damage();
        let started = tokio::select! {
            biased;
            started = GroupRaft::start(raft_options, &context.hub, log.storage, store.state_machine) => {
                started.map_err(failed)
            }
            found = damage.wait_for(|damaged| !damaged.is_empty()), if self.has_peers() => match found {
                Ok(found) => Err(damage_error(self.name(), &found)),
                Err(_) => Err(StartError::Log { group: self.name().to_owned(), source: raft_store::Error::Closed }),
            },
        };
        let raft = match started {
            Ok(raft) => raft,
            Err(error) => {
                context.hub.remove_group(self.name());
                let damaged = damage.borrow();
                return Err(if damaged.is_empty() { error } else { damage_error(self.name(), &damaged) });
            }
        };
        raft.wait_for_room_in(log.view.clone());
        let state = store.state.clone();
        context.hub.set_successors(self.name(), Arc::new(move |node_id| state.successor_of(node_id)));
        let state = store.state.clone();
        context.hub.set_removals(self.name(), Arc::new(move |node_id| state.removed(node_id)));
        let retention = GroupRetention::new(
            self.name().to_owned(),
            raft.clone(),
            log.view.clone(),
            store.control.clone(),
            store.store.clone(),
            store.state.clone(),
        );
        let retention = Arc::new(retention);
        let checkpoints = self.checkpoints();
        context.hub.set_range_handler(self.name(), Ranges::running(log.view.clone(), checkpoints));
        let drops = Arc::clone(&retention) as _;
        let repairer = Repairer::start(raft.clone(), log.view.clone(), self.peers(context), drops);
        let comparer = Comparer::start(self.name().to_owned(), log.view.clone(), self.peers(context));
        self.halted.lock().take();
        let sequencer = Sequencer::start(SequencerOptions::default(), raft.clone());
        let disk = DiskWatch::start(self.dir.clone(), context.storage.disk, log.view.is_short_of_room());
        let group = Group::start(GroupParts {
            settings: GroupSettings {
                cluster_name: context.cluster.name.clone(),
                broker_name: self.name().to_owned(),
                node_id,
                client_addr: self.options.own_member().client_addr,
                auto_create_topics: context.broker.auto_create_topics,
                auto_create_groups: context.broker.auto_create_groups,
                auto_create_queues: context.broker.auto_create_queues,
                message_bytes_max: context.broker.message_bytes_max,
                delay_levels: context.broker.delay_levels.clone(),
                timer_delay_max: context.broker.timer_delay_max,
                transactions: context.broker.transactions,
                retention_time: context.retention_time,
                metric_names_max: context.metric_names_max,
            },
            state: store.state.clone(),
            store: store.store.clone(),
            raft: raft.clone(),
            sequencer: sequencer.clone(),
            holds,
            peers: context.hub.clone(),
            registrar: Arc::new(context.registration.clone()),
            disk: disk.subscribe(),
            drop_expired: Arc::clone(&context.drop_expired),
            tracer: context.tracer.as_ref().map(|tracer| tracer.for_group(&log.view)),
        });
        retention.carry_by(Arc::new(group.clone()));
        let handler = Arc::new(GroupHandler::new(group.clone()));
        let running = Arc::new(Running {
            group,
            raft,
            sequencer,
            state: store.state,
            log: log.view,
            recovered,
            disk,
            retention,
            repairer,
            comparer,
            store: store.store,
            handler,
            hub: context.hub.clone(),
        });
        *self.running.write() = Some(Arc::clone(&running));
        let generation = running.recovered.generation;
        let doorkeeper = Doorkeeper { running: Arc::clone(&running), generation };
        context.hub.set_join_handler(self.name(), Arc::new(doorkeeper));
        Ok(running)
    }

    /// Hands over the requests that wait, and everything from now on.
    pub(super) fn open_to_clients(&self, running: &Running) {
        let hub = &running.hub;
        hub.set_forward_handler(self.name(), Arc::clone(&running.handler) as _);
        hub.set_copy_handler(self.name(), Arc::clone(&running.handler) as _);
        self.late.install(Arc::clone(&running.handler) as _);
        self.started.send_replace(true);
    }

    /// Where the checkpoints are.
    pub(super) fn checkpoints(&self) -> PathBuf {
        self.dir.join("checkpoints")
    }

    /// What the log is opened with.
    pub(super) fn log_options(&self, context: &Context) -> raft_store::Options {
        let dir = self.dir.clone();
        let mut log_options =
            raft_store::Options::new(dir.join("log"), ClusterId::new(context.cluster.id), self.options.own_id);
        log_options.cold_reads = Arc::clone(&context.cold_reads);
        log_options.runtime_dir.clone_from(&context.storage.runtime_dir);
        log_options.group = self.name().to_owned();
        log_options.node_name = context.node.name.clone();
        log_options.create = context.start.bootstrap == Bootstrap::Allowed;
        log_options.rejoin = context.start.rejoin && self.has_peers();
        log_options.segment_bytes = context.storage.segment_bytes;
        log_options.mount_identity = context.storage.mount_identity;
        log_options.allow_unproven_fs = context.storage.allow_unproven_filesystem;
        log_options.alone = !self.has_peers();
        log_options.flush_interval = context.storage.flush_interval;
        // A disk that takes this much longer than it is given stops acknowledgements.
        log_options.flush_lag_max = context.storage.flush_interval + FLUSH_LATE_MAX;
        log_options.starts_sync = starts_sync;
        log_options.flush = match context.storage.flush {
            FlushOptions::Sync => FlushMode::Sync,
            FlushOptions::Async { interval } => FlushMode::Async { interval },
        };
        // What a command changes is on disk before it is acknowledged, whatever the flush mode.
        log_options.must_sync = |payload| payload.first() == Some(&COMMAND_MAGIC);
        // A group of one has nobody to repair it.
        log_options.repaired = self.has_peers();
        log_options.scrub = (context.storage.scrub_rate > 0).then_some(ScrubOptions {
            bytes_per_second: context.storage.scrub_rate,
            interval: context.storage.scrub_interval,
        });
        log_options
    }

    /// Opens log and derived files. Off the runtime: it reads up to a segment.
    pub(super) async fn recover(&self, context: &Context, retire: bool) -> Result<Recovering, StartError> {
        let holds = Holds::new();
        let dir = self.dir.clone();
        let mut log_options = self.log_options(context);
        log_options.retire = retire;
        let hot_log_bytes = log_options.maps_hot as u64 * log_options.segment_bytes;
        let mut store_options = StoreOptions::new(&dir, context.cluster.id, hot_log_bytes);
        store_options.delay_levels = context.broker.delay_levels.clone();
        store_options.open_files_max = context.derived_files_max;
        let (log, store) = self.open(log_options, store_options, holds.clone()).await?;
        let recovered = &log.recovered;
        for line in &recovered.report {
            tracing::info!(group = self.name(), "{line}");
        }
        tracing::info!(
            group = self.name(), stop = ?recovered.stop, last = ?recovered.last, replay_from = ?store.started_behind,
            after = ?context.start.started.elapsed(), "log recovered"
        );
        if recovered.node_id.is_none() {
            tracing::warn!(
                group = self.name(), stop = ?recovered.stop, former = ?recovered.retired.last().map(|former| former.node_id),
                "what this replica acknowledged may be gone: it comes back under another identity"
            );
        }
        *self.recovered.write() = Some(recovered.clone());
        *self.replay.lock() = Some(store.replay.clone());
        *self.files.lock() = Some((store.control.clone(), log.view.clone()));
        Ok(Recovering { log, store, holds })
    }

    async fn open(
        &self,
        log_options: raft_store::Options,
        store_options: StoreOptions,
        holds: Holds,
    ) -> Result<(raft_store::Opened<TypeConfig>, crate::state_machine::Opened), StartError> {
        let group = self.name().to_owned();
        let opened = tokio::task::spawn_blocking(move || {
            let log = raft_store::open::<TypeConfig>(log_options)
                .map_err(|source| StartError::Log { group: group.clone(), source })?;
            let store = crate::state_machine::open(&store_options, &log.view, Arc::new(holds))
                .map_err(|source| StartError::Store { group, source })?;
            Ok((log, store))
        });
        opened.await.unwrap_or_else(|_| Err(StartError::Panicked { group: self.name().to_owned() }))
    }

    /// Lets others lead while this replica's disk is slow.
    async fn follow_pace(&self, running: &Running) -> Infallible {
        let mut pace = running.log.pace();
        loop {
            let is_slow = *pace.borrow_and_update() == Pace::Slow;
            running.raft.set_unfit(Unfit::DiskSlow, is_slow);
            if pace.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    pub(super) fn peers(&self, context: &Context) -> Peers {
        Peers::new(context.hub.clone(), self.name())
    }

    /// How far a start is with applying the log again, while it is.
    pub(super) fn replaying(&self) -> Option<ReplayProgress> {
        self.replay.lock().as_ref()?.progress(Instant::now())
    }

    /// Says in the node's log how far each start is.
    pub(super) async fn follow_replay(&self) -> Infallible {
        replay::announce(|| self.replaying(), |line| tracing::info!(group = self.name(), "{line}")).await
    }

    /// Tells the name servers whenever the role changes, and keeps it as an event, until the replica stops.
    async fn follow_role(&self, running: &Running, context: &Context) {
        let mut role = running.raft.role();
        let mut leadership = Leadership::default();
        loop {
            let now = role.borrow_and_update().clone();
            tracing::info!(group = self.name(), role = %describe(&now), "role");
            context.registration.changed();
            let gap = running.raft.last_gap();
            let seen = leadership.follow(self.name(), &context.node.name, &now, gap);
            if let Some(seen) = seen {
                context.events.note(seen);
            }
            if role.changed().await.is_err() {
                return;
            }
        }
    }

    /// Resolves once the replica runs and knows a leader that answers.
    pub(super) async fn led(&self) {
        let _ = self.started.subscribe().wait_for(|started| *started).await;
        if let Some(running) = self.running() {
            let _ = running.raft.role().wait_for(|role| role.is_ready_leader() || role.leader().is_some()).await;
        }
    }

    pub(super) fn is_led_elsewhere(&self) -> bool {
        self.running().is_some_and(|running| running.raft.role().borrow().leader().is_some())
    }

    pub(super) async fn flush_offsets(&self) {
        if let Some(running) = self.running()
            && running.raft.role().borrow().is_ready_leader()
        {
            running.group.flush_offsets().await;
        }
    }

    pub(super) async fn hand_over(&self) {
        if let Some(running) = self.running() {
            running.raft.hand_over().await;
        }
    }

    /// Answers what is held and takes no more work.
    pub(super) async fn quiesce(&self) {
        if let Some(running) = self.running() {
            running.group.shutdown().await;
        }
    }

    /// Stops the replica, running or not, so that it can be edited and started again. Requests wait meanwhile.
    pub(super) async fn stop(&self) {
        self.late.uninstall();
        self.quiesce().await;
        self.close().await;
    }

    /// Stops the replica, writes everything and marks the data as clean.
    pub(super) async fn close(&self) {
        let waiting = self.waiting.lock().take();
        let running = self.running.write().take();
        if let Some((control, _)) = &*self.files.lock() {
            control.stop_waiting_for_room();
        }
        if let Some(running) = &running {
            running.sequencer.shutdown().await;
            if *running.log.is_short_of_room().borrow() {
                running.log.stop_waiting_for_room();
            }
            running.repairer.shutdown().await;
            running.comparer.shutdown().await;
            running.raft.shutdown().await;
            // The port holds handlers, which hold the group, which holds the port.
            running.hub.remove_group(self.name());
        }
        drop(waiting);
        self.replay.lock().take();
        let Some((control, log)) = self.files.lock().take() else { return };
        if let Err(error) = control.stop().await {
            tracing::error!(group = self.name(), %error, "derived files are not saved; the next start builds them again");
        }
        match tokio::task::spawn_blocking(move || log.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(group = self.name(), %error, "log is not closed cleanly"),
            Err(error) => tracing::error!(group = self.name(), %error, "closing the log panicked"),
        }
    }
}

/// Lets others lead while the node is drained.
async fn follow_drain(running: &Running, mut drained: watch::Receiver<bool>) -> Infallible {
    loop {
        running.raft.set_unfit(Unfit::Drained, *drained.borrow_and_update());
        if drained.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Takes from topics what the broker does not allow at all.
fn limit_permissions(topics: &mut [Arc<TopicConfig>], group: &Group) {
    for topic in topics {
        let perm = group.route_permission(topic.perm);
        if perm != topic.perm {
            *topic = Arc::new(TopicConfig { perm, ..TopicConfig::clone(topic) });
        }
    }
}

impl RegisteredGroup for NodeGroup {
    fn record(&self) -> GroupRecord {
        let mut record = GroupRecord {
            name: self.name().to_owned(),
            client_addr: self.options.own_member().client_addr,
            id: self.node_id(),
            leads: false,
            term: 0,
            leader: None,
            version: Default::default(),
        };
        let Some(running) = self.running() else { return record };
        let role = running.raft.role().borrow().clone();
        record.term = role.term();
        match role {
            Role::Leader { ready: true, .. } => {
                record.leads = true;
                record.leader = Some(running.node_id());
                record.version = running.state.topic_version();
            }
            Role::Leader { ready: false, .. } => {}
            Role::Follower { leader, .. } => record.leader = leader.map(|(id, _)| id),
        }
        record
    }

    fn is_member(&self) -> bool {
        self.outside().is_none() && self.node_id() != 0
    }

    fn topics(&self) -> Option<Vec<Arc<TopicConfig>>> {
        let running = self.running()?;
        let mut topics = running.state.topics();
        limit_permissions(&mut topics, &running.group);
        Some(topics)
    }

    fn topic_changes(&self, counter: u64) -> Option<TopicChanges> {
        let running = self.running()?;
        let mut changes = running.state.topic_changes(counter)?;
        limit_permissions(&mut changes.put, &running.group);
        Some(changes)
    }
}

/// What stopped a replica that met damage and has nobody to be repaired by.
fn damage_of(running: &Running, group: &str) -> Option<StartError> {
    let damaged = running.log.damage().borrow().clone();
    let good = *running.log.health().borrow() == raft_store::Health::Good;
    (good && !damaged.is_empty()).then(|| damage_error(group, &damaged))
}

fn damage_error(group: &str, damaged: &[DamagedRange]) -> StartError {
    let first = damaged.first().cloned().map_or(raft_store::Error::Closed, DamagedRange::into_error);
    StartError::Log { group: group.to_owned(), source: first }
}

pub(super) fn to_member(member: &MemberOptions) -> Member {
    Member {
        node: member.node.clone(),
        raft_addr: member.raft_addr.clone(),
        client_addr: member.client_addr.to_string(),
    }
}

fn describe(role: &Role) -> String {
    match role {
        Role::Leader { term, ready: true } => format!("leads term {term}"),
        Role::Leader { term, ready: false } => format!("leads term {term}, not ready yet"),
        Role::Follower { term, leader: Some((id, member)) } => format!("follows {id} ({}) in term {term}", member.node),
        Role::Follower { term, leader: None } => format!("knows no leader in term {term}"),
    }
}
