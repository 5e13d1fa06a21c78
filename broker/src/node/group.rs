//! One broker group on this node, from the first accepted client to the clean mark.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use raft_store::{
    ClusterId, FlushMode, LogPosition, LogView, Member, Pace, ReadBudget, Recovered, ScrubOptions, StoppedStore,
};
use remoting::Handler;
use tokio::sync::watch;

use super::late_handler::LateHandler;
use super::{StartError, StartOptions};
use crate::config::{
    BrokerOptions, ClusterOptions, FlushOptions, GroupOptions, NodeOptions, RaftOptions, StorageOptions,
};
use crate::disk::DiskWatch;
use crate::peer::{GroupIdentity, PeerAddress, PeerHub};
use crate::processor::{Group, GroupHandler, GroupParts, GroupSettings, Holds};
use crate::raft::repair::{Peers, Ranges, Repairer, repair_stopped};
use crate::raft::{CatchUpRate, GroupRaft, GroupRaftOptions, Role, Timing, TypeConfig, Unfit};
use crate::registration::{GroupRecord, RegisteredGroup, RegistrationHandle};
use crate::retention::GroupRetention;
use crate::sequencer::{Sequencer, SequencerOptions};
use crate::state_machine::command::COMMAND_MAGIC;
use crate::state_machine::{StateMachine, StateReader, StoreControl};
use crate::store::StoreOptions;

/// What a group's start needs from its node.
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
}

pub(super) struct NodeGroup {
    options: GroupOptions,
    late: Arc<LateHandler>,
    running: OnceLock<Running>,
    /// Turns true when `running` is there.
    started: watch::Sender<bool>,
    /// Why the start waits for a repair.
    repairing: Mutex<Option<String>>,
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
    control: StoreControl,
    hub: PeerHub,
}

impl NodeGroup {
    pub(super) fn new(options: GroupOptions) -> Self {
        Self {
            options,
            late: Arc::new(LateHandler::default()),
            running: OnceLock::new(),
            started: watch::Sender::new(false),
            repairing: Mutex::default(),
        }
    }

    pub(super) fn options(&self) -> &GroupOptions {
        &self.options
    }

    pub(super) fn name(&self) -> &str {
        &self.options.name
    }

    pub(super) fn running(&self) -> Option<&Running> {
        self.running.get()
    }

    /// For the client port: takes requests from now on.
    pub(super) fn handler(&self) -> Arc<dyn Handler> {
        Arc::clone(&self.late) as _
    }

    /// Answers requests that have waited too long for the start.
    pub(super) fn expire_waiting(&self, now: Instant) {
        self.late.expire(now);
    }

    /// Recovers the replica, starts it, and hands it the requests that wait.
    pub(super) async fn start(&self, context: Context) -> Result<(), StartError> {
        let holds = Holds::new();
        let (log, store) = self.recover(&context, holds.clone()).await?;
        let recovered = log.recovered;
        for line in &recovered.report {
            tracing::info!(group = self.name(), "{line}");
        }
        tracing::info!(
            group = self.name(), stop = ?recovered.stop, last = ?recovered.last, replay_from = ?store.started_behind,
            after = ?context.start.started.elapsed(), "log recovered"
        );
        let failed = |source| StartError::Raft { group: self.name().to_owned(), source: Box::new(source) };
        let identity = GroupIdentity {
            group: self.name().to_owned(),
            node_id: self.options.own_id,
            store_uuid: recovered.store_uuid,
            start_counter: recovered.start_counter,
        };
        let raft_options = GroupRaftOptions {
            identity,
            members: self.options.members.iter().map(|member| (member.id, to_member(member))).collect(),
            preferred_leader: self.options.preferred_leader,
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
        let raft =
            GroupRaft::start(raft_options, &context.hub, log.storage, store.state_machine).await.map_err(failed)?;
        let retention = GroupRetention::new(
            self.name().to_owned(),
            raft.clone(),
            log.view.clone(),
            store.control.clone(),
            store.store.clone(),
            store.state.clone(),
        );
        context.hub.set_range_handler(self.name(), Ranges::running(log.view.clone()));
        let repairer = Repairer::start(raft.clone(), log.view.clone(), self.peers(&context));
        self.repairing.lock().take();
        let sequencer = Sequencer::start(SequencerOptions::default(), raft.clone());
        let disk =
            DiskWatch::start(self.dir(&context.node.data_dir), context.storage.disk, log.view.is_short_of_room());
        let group = Group::start(GroupParts {
            settings: GroupSettings {
                cluster_name: context.cluster.name.clone(),
                broker_name: self.name().to_owned(),
                node_id: self.options.own_id,
                client_addr: self.options.own_member().client_addr,
                auto_create_topics: context.broker.auto_create_topics,
                auto_create_groups: context.broker.auto_create_groups,
                auto_create_queues: context.broker.auto_create_queues,
                message_bytes_max: context.broker.message_bytes_max,
                delay_levels: context.broker.delay_levels.clone(),
            },
            state: store.state.clone(),
            store: store.store,
            raft: raft.clone(),
            sequencer: sequencer.clone(),
            holds,
            peers: context.hub.clone(),
            registrar: Arc::new(context.registration.clone()),
            disk: disk.subscribe(),
        });
        let handler = Arc::new(GroupHandler::new(group.clone()));
        context.hub.set_forward_handler(self.name(), Arc::clone(&handler) as _);
        context.hub.set_copy_handler(self.name(), Arc::clone(&handler) as _);
        let running = Running {
            group,
            raft,
            sequencer,
            state: store.state,
            log: log.view,
            recovered,
            disk,
            retention: Arc::new(retention),
            repairer,
            control: store.control,
            hub: context.hub.clone(),
        };
        assert!(self.running.set(running).is_ok(), "a group is started once");
        self.started.send_replace(true);
        self.late.install(handler);
        if context.start.bootstrap
            && self.options.initializes()
            && let Some(running) = self.running()
        {
            running.raft.initialize().await.map_err(failed)?;
        }
        Ok(())
    }

    fn dir(&self, data_dir: &Path) -> PathBuf {
        data_dir.join(self.name())
    }

    /// Opens log and derived files. Off the runtime: it reads up to a segment.
    async fn recover(
        &self,
        context: &Context,
        holds: Holds,
    ) -> Result<(raft_store::Opened<TypeConfig>, crate::state_machine::Opened), StartError> {
        let dir = self.dir(&context.node.data_dir);
        let mut log_options =
            raft_store::Options::new(dir.join("log"), ClusterId::new(context.cluster.id), self.options.own_id);
        log_options.cold_reads = Arc::clone(&context.cold_reads);
        log_options.runtime_dir.clone_from(&context.storage.runtime_dir);
        log_options.group = self.name().to_owned();
        log_options.node_name = context.node.name.clone();
        log_options.create = context.start.bootstrap;
        log_options.segment_bytes = context.storage.segment_bytes;
        log_options.mount_identity = context.storage.mount_identity;
        log_options.allow_unproven_fs = context.storage.allow_unproven_filesystem;
        log_options.flush = match context.storage.flush {
            FlushOptions::Sync => FlushMode::Sync,
            FlushOptions::Async { interval } => FlushMode::Async { interval },
        };
        // What a command changes is on disk before it is acknowledged, whatever the flush mode.
        log_options.must_sync = |payload| payload.first() == Some(&COMMAND_MAGIC);
        // A group of one has nobody to repair it.
        log_options.repaired = self.options.members.len() > 1;
        log_options.scrub = (context.storage.scrub_rate > 0).then_some(ScrubOptions {
            bytes_per_second: context.storage.scrub_rate,
            interval: context.storage.scrub_interval,
        });
        let hot_log_bytes = log_options.maps_hot as u64 * log_options.segment_bytes;
        let mut store_options = StoreOptions::new(&dir, context.cluster.id, hot_log_bytes);
        store_options.delay_levels = context.broker.delay_levels.clone();
        store_options.open_files_max = context.derived_files_max;
        let mut repaired = None;
        loop {
            let error = match self.open(log_options.clone(), store_options.clone(), holds.clone()).await {
                Err(StartError::Log { source, .. }) if log_options.repaired => source,
                opened => return opened,
            };
            let base = StoppedStore::damaged_segment(&error).filter(|base| Some(*base) != repaired);
            let Some(base) = base else { return Err(StartError::Log { group: self.name().to_owned(), source: error }) };
            self.repair(context, &log_options, base, &error).await?;
            repaired = Some(base);
        }
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
    pub(super) async fn follow_pace(&self) {
        let Some(running) = self.running() else { return };
        let mut pace = running.log.pace();
        loop {
            let is_slow = *pace.borrow_and_update() == Pace::Slow;
            running.raft.set_unfit(Unfit::DiskSlow, is_slow);
            if pace.changed().await.is_err() {
                return;
            }
        }
    }

    /// Fetches what keeps the log from starting from the other members. There is no Raft meanwhile, so this replica
    /// neither votes nor leads.
    async fn repair(
        &self,
        context: &Context,
        options: &raft_store::Options,
        base: LogPosition,
        error: &raft_store::Error,
    ) -> Result<(), StartError> {
        tracing::error!(group = self.name(), %error, "log is damaged: asking the other members for what is missing");
        *self.repairing.lock() = Some(error.to_string());
        let failed = |source| StartError::Log { group: self.name().to_owned(), source };
        let store = StoppedStore::open(options).map_err(failed)?;
        let identity = GroupIdentity {
            group: self.name().to_owned(),
            node_id: self.options.own_id,
            store_uuid: store.store_uuid(),
            start_counter: store.start_counter(),
        };
        let addresses = self.options.members.iter().map(|member| {
            let address = PeerAddress { node: member.node.clone(), raft_addr: member.raft_addr.clone() };
            (member.id, address)
        });
        context.hub.add_group(identity, addresses.collect());
        let note = |error: &raft_store::Error| {
            let text = error.to_string();
            let before = self.repairing.lock().replace(text.clone());
            if before.as_ref() != Some(&text) {
                tracing::warn!(group = self.name(), error = text, "not repaired yet");
            }
        };
        let result = repair_stopped(store, base, &self.peers(context), note).await;
        context.hub.remove_group(self.name());
        let repaired = result.map_err(failed)?;
        tracing::info!(group = self.name(), ?repaired, "log is repaired");
        Ok(())
    }

    fn peers(&self, context: &Context) -> Peers {
        let members = self.options.members.iter().map(|member| member.id);
        Peers::new(context.hub.clone(), self.name(), self.options.own_id, members)
    }

    /// Why the start waits for a repair, if it does.
    pub(super) fn repairing(&self) -> Option<String> {
        self.repairing.lock().clone()
    }

    /// Tells the name servers whenever the role changes.
    pub(super) async fn follow_role(&self, registration: RegistrationHandle) {
        let Some(running) = self.running() else { return };
        let mut role = running.raft.role();
        loop {
            let now = role.borrow_and_update().clone();
            tracing::info!(group = self.name(), role = %describe(&now), "role");
            registration.changed();
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

    /// Stops the replica, writes everything and marks the data as clean.
    pub(super) async fn close(&self) {
        let Some(running) = self.running() else { return };
        running.sequencer.shutdown().await;
        if *running.log.is_short_of_room().borrow() {
            running.log.stop_waiting_for_room();
        }
        running.repairer.shutdown().await;
        running.raft.shutdown().await;
        // The port holds handlers, which hold the group, which holds the port.
        running.hub.remove_group(self.name());
        if let Err(error) = running.control.stop().await {
            tracing::error!(group = self.name(), %error, "derived files are not saved; the next start builds them again");
        }
        let log = running.log.clone();
        match tokio::task::spawn_blocking(move || log.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(group = self.name(), %error, "log is not closed cleanly"),
            Err(error) => tracing::error!(group = self.name(), %error, "closing the log panicked"),
        }
    }
}

impl RegisteredGroup for NodeGroup {
    fn record(&self) -> GroupRecord {
        let mut record = GroupRecord {
            name: self.name().to_owned(),
            client_addr: self.options.own_member().client_addr,
            id: self.options.own_id,
            leads: false,
            term: 0,
            leader: None,
            topics: Vec::new(),
            version: Default::default(),
        };
        let Some(running) = self.running() else { return record };
        let role = running.raft.role().borrow().clone();
        record.term = role.term();
        match role {
            Role::Leader { ready: true, .. } => {
                record.leads = true;
                record.leader = Some(self.options.own_id);
                // The version first: topics that are newer than it are sent again with the next one.
                record.version = running.state.topic_version();
                record.topics = running.state.topics();
            }
            Role::Leader { ready: false, .. } => {}
            Role::Follower { leader, .. } => record.leader = leader.map(|(id, _)| id),
        }
        record
    }
}

fn to_member(member: &crate::config::MemberOptions) -> Member {
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
