//! A broker group's Raft: roles, proposals, reads that are current, leadership that moves.
//!
//! ```text
//!  processors -> propose, read_index ->+-----------+<- frames <- peer port
//!  sequencer --> packs --------------->| GroupRaft |-> Network -> peer links and append streams
//!  registration, processors <- Role <--+-----------+-> raft_store, state machine
//! ```
//!
//! - `watch` decides the role: a replica opens its gates when it leads *and* read index proves that it has applied
//!   everything of earlier terms, and closes them when it stops leading or hears no quorum.
//! - `takeover` replaces a leader whose process is proved gone without waiting for a timer.
//! - Nothing relies on a lease: whatever must be current goes through read index.

mod catch_up;
pub(crate) mod digests;
mod error;
mod fitness;
mod hand_over;
mod network;
mod proposal_gate;
mod read_index;
pub(crate) mod repair;
pub(crate) mod replace;
mod role;
mod room;
mod service;
mod takeover;
mod type_config;
mod watch;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{Fatal, RaftError};
use openraft::raft::Precondition;
use openraft::storage::{RaftLogStorage, RaftStateMachine};
use openraft::vote::leader_id_std::CommittedLeaderId;
use openraft::{ChangeMembers, Config, Instant as _, Raft, SnapshotPolicy};
use raft_store::{LogId, LogView, Member, Payload};
use tokio::sync::{oneshot, watch as tokio_watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::catch_up::FarBehind;
pub use self::catch_up::{CatchUpRate, FAR_BEHIND_ENTRIES};
pub use self::error::{AdminError, NotReady, ProposeError};
use self::fitness::Fitness;
pub use self::fitness::Unfit;
use self::hand_over::{HandOver, Urgency};
use self::network::Network;
use self::proposal_gate::ProposalGate;
use self::read_index::ReadIndex;
use self::replace::Replacing;
use self::role::Gaps;
pub use self::role::Role;
use self::room::Room;
use self::service::{Heard, Service, Silence};
use self::takeover::Takeover;
pub use self::type_config::{Done, RaftLogId, RaftVote, SnapshotData, TypeConfig};
use self::watch::Watcher;
use crate::peer::rejoin::{ReplaceRequest, Replaced};
use crate::peer::service::GroupService;
use crate::peer::{GroupIdentity, PeerAddress, PeerHub};
use crate::state_machine::{ApplyReply, Command, StateMachine};

/// Raft's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How often an idle leader shows that it lives.
    pub heartbeat_interval: Duration,
    /// Shortest wait of a follower before it stands for election.
    pub election_timeout_min: Duration,
    /// Longest such wait, and how long a leader is believed after it was last heard.
    pub election_timeout_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_millis(100),
            election_timeout_min: Duration::from_millis(300),
            election_timeout_max: Duration::from_millis(500),
        }
    }
}

/// Everything a replica needs to start.
#[derive(Clone, Debug)]
pub struct GroupRaftOptions {
    /// The group and this replica's identity in it.
    pub identity: GroupIdentity,
    /// The members the group is configured with, this one among them.
    pub members: BTreeMap<u64, Member>,
    /// The node that should lead when everything is well.
    pub preferred_leader: Option<String>,
    /// Whether the store held a vote or entries before this start.
    pub restarted: bool,
    /// When the process started.
    pub started: Instant,
    /// Raft's clocks.
    pub timing: Timing,
    /// How long a proposal may take.
    pub propose_timeout: Duration,
    /// How fast members that are far behind are sent what they lack; as fast as it goes if there is none.
    pub catch_up: Option<Arc<CatchUpRate>>,
}

/// Figures of a replica, for status and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMetrics {
    /// This replica's node id.
    pub node_id: u64,
    /// The newest term known.
    pub term: u64,
    /// Who leads, if known.
    pub leader: Option<u64>,
    /// Last entry in the log.
    pub last: Option<u64>,
    /// Last entry known to be committed.
    pub committed: Option<u64>,
    /// Last entry applied.
    pub applied: Option<u64>,
    /// Last entry known to be flushed here.
    pub flushed: Option<u64>,
    /// Last entry covered by the current snapshot.
    pub snapshot: Option<u64>,
    /// Last entry dropped from the log.
    pub purged: Option<u64>,
    /// The entry that says who the members are.
    pub membership_at: Option<LogId>,
    /// Voters; two sets while membership changes.
    pub voters: Vec<BTreeSet<u64>>,
    /// Every member and its addresses.
    pub members: BTreeMap<u64, Member>,
    /// On a leader: last entry known to be on each other member.
    pub matched: BTreeMap<u64, Option<u64>>,
    /// On a leader: members that are far behind and sent what they lack at a limited rate.
    pub catching_up: BTreeSet<u64>,
}

/// Another member as the leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OtherMember {
    pub(crate) node_id: u64,
    /// The last entry known to be on it.
    pub(crate) matched: Option<u64>,
    /// Whether it was heard of lately.
    pub(crate) healthy: bool,
}

/// A replica of a broker group. Cheap to clone.
///
/// `SM` is the state machine; everything but tests uses the broker's own.
pub struct GroupRaft<SM = StateMachine>(Arc<Inner<SM>>)
where
    SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>;

struct Inner<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> {
    raft: Raft<TypeConfig, SM>,
    hub: PeerHub,
    options: GroupRaftOptions,
    role: tokio_watch::Sender<Role>,
    gaps: Arc<parking_lot::Mutex<Gaps>>,
    read_index: Arc<ReadIndex<SM>>,
    hand_over: HandOver<SM>,
    replacing: Arc<Replacing<SM>>,
    heard: Arc<Heard>,
    fitness: Arc<Fitness>,
    room: Arc<Room>,
    cancel: CancellationToken,
    tasks: TaskTracker,
}

impl<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> Clone for GroupRaft<SM> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> fmt::Debug for GroupRaft<SM> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupRaft").field("identity", &self.0.options.identity).finish_non_exhaustive()
    }
}

impl<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> GroupRaft<SM> {
    /// Starts the replica: announces it to `hub`, recovers Raft's state from `log`, and lets peers in.
    ///
    /// The group may be announced before by [`PeerHub::add_group`], for handlers that are set early.
    ///
    /// # Errors
    /// If the options contradict each other or Raft cannot start from what the stores hold.
    pub async fn start<LS>(
        options: GroupRaftOptions,
        hub: &PeerHub,
        log: LS,
        state_machine: SM,
    ) -> Result<Self, AdminError>
    where
        LS: RaftLogStorage<TypeConfig>,
    {
        let identity = &options.identity;
        let config = Arc::new(config(&options)?);
        if hub.hub().group(&identity.group).is_none_or(|group| group.identity != *identity) {
            hub.add_group(identity.clone(), addresses(&options.members));
        }
        let group = hub
            .hub()
            .group(&identity.group)
            .ok_or_else(|| AdminError::Refused(format!("group {} is not hosted here", identity.group)))?;
        let far_behind = tokio_watch::Sender::new(FarBehind::default());
        let network = Network {
            hub: Arc::clone(hub.hub()),
            group: Arc::clone(&group),
            response_timeout: 2 * options.timing.election_timeout_max,
            catch_up: options.catch_up.clone(),
            far_behind: far_behind.subscribe(),
        };
        let raft = Raft::build(identity.node_id, config, network, log, state_machine)
            .await
            .map_err(|fatal| AdminError::Stopped(fatal.to_string()))?;
        let fitness = Arc::new(Fitness::default());
        let takeover = Arc::new(Takeover {
            raft: raft.clone(),
            hub: Arc::clone(hub.hub()),
            group,
            preferred: options.preferred_leader.clone(),
            fitness: Arc::clone(&fitness),
            streams: tokio_watch::Sender::new(0),
            state: parking_lot::Mutex::default(),
        });
        let silence = Silence::new(options.started, options.restarted, options.timing.election_timeout_max);
        let cancel = CancellationToken::new();
        let tasks = TaskTracker::new();
        let mut reported = raft.metrics();
        raft.run();
        // Before its first report it shows a replica that has nothing. One that ends before shows it to those who watch.
        let _ = reported.changed().await;
        let term = reported.borrow_and_update().current_term;
        let role = tokio_watch::Sender::new(Role::Follower { term, leader: None });
        let heard = Arc::new(Heard::default());
        let room = Arc::new(Room::default());
        let replacing = Arc::new(Replacing {
            raft: raft.clone(),
            hub: hub.clone(),
            group: identity.group.clone(),
            generation: identity.generation,
            timing: options.timing,
        });
        let service: Arc<dyn GroupService> = Arc::new(Service {
            raft: raft.clone(),
            takeover,
            silence,
            fitness: Arc::clone(&fitness),
            replacing: Arc::clone(&replacing),
            heard: Arc::clone(&heard),
            room: Arc::clone(&room),
        });
        hub.set_service(&identity.group, Some(service));
        let gate = Arc::new(ProposalGate::default());
        let hand_over = HandOver { raft: raft.clone(), gate, timing: options.timing };
        let gaps = Arc::new(parking_lot::Mutex::new(Gaps::default()));
        let watcher = Watcher {
            raft: raft.clone(),
            hand_over: hand_over.clone(),
            hub: hub.clone(),
            group: identity.group.clone(),
            timing: options.timing,
            preferred: options.preferred_leader.clone(),
            role: role.clone(),
            gaps: Arc::clone(&gaps),
            fitness: Arc::clone(&fitness),
            far_behind: far_behind.clone(),
        };
        let stop = cancel.clone();
        tasks.spawn(async move {
            let _ = stop.run_until_cancelled(watcher.run()).await;
        });
        let read_index = Arc::new(ReadIndex::new(raft.clone(), options.timing.election_timeout_max));
        let hub = hub.clone();
        Ok(Self(Arc::new(Inner {
            raft,
            hub,
            options,
            role,
            gaps,
            read_index,
            hand_over,
            replacing,
            heard,
            fitness,
            room,
            cancel,
            tasks,
        })))
    }

    /// Makes the configured members a new group. To be called on the member with the lowest id, for a group that has
    /// never been started.
    ///
    /// Done before, it does nothing.
    ///
    /// # Errors
    /// If another member is the one to call it, or Raft refuses.
    pub async fn initialize(&self) -> Result<(), AdminError> {
        if self.0.raft.is_initialized().await.map_err(stopped)? {
            return Ok(());
        }
        let members = &self.0.options.members;
        if members.keys().next() != Some(&self.0.options.identity.node_id) {
            return Err(AdminError::Refused("the member with the lowest id starts a group".to_owned()));
        }
        self.0.raft.initialize(members.clone()).await.map_err(|error| match error {
            RaftError::APIError(error) => AdminError::Refused(error.to_string()),
            RaftError::Fatal(fatal) => stopped(fatal),
        })
    }

    /// The role, now and as it changes.
    #[must_use]
    pub fn role(&self) -> tokio_watch::Receiver<Role> {
        self.0.role.subscribe()
    }

    /// How long there was no leader that answers, the last time there was none, and the term that ended it.
    #[must_use]
    pub fn last_gap(&self) -> Option<(u64, Duration)> {
        self.0.gaps.lock().last()
    }

    /// Whether a leader was heard lately. The role goes by the vote, which may name one that is long gone.
    #[must_use]
    pub fn hears_leader(&self) -> bool {
        self.0.heard.within(2 * self.0.options.timing.election_timeout_max)
    }

    /// This replica's node id.
    #[must_use]
    pub fn node_id(&self) -> u64 {
        self.0.options.identity.node_id
    }

    /// The group's name.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.0.options.identity.group
    }

    /// Proposes one entry and waits until it is applied here.
    ///
    /// # Errors
    /// [`ProposeError`] says whether the entry may still be applied.
    pub async fn propose(&self, payload: Bytes) -> Result<(ApplyReply, LogId), ProposeError> {
        self.propose_and_wait(payload, None).await
    }

    /// Proposes one entry in `term` or not at all, see [`GroupRaft::propose`].
    pub(crate) async fn propose_in(&self, term: u64, payload: Bytes) -> Result<(ApplyReply, LogId), ProposeError> {
        self.propose_and_wait(payload, Some(term)).await
    }

    async fn propose_and_wait(&self, payload: Bytes, term: Option<u64>) -> Result<(ApplyReply, LogId), ProposeError> {
        let (answer, answered) = oneshot::channel();
        self.propose_with(payload, term, move |result| drop(answer.send(result))).await;
        match tokio::time::timeout(self.0.options.propose_timeout, answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(ProposeError::unknown("the proposal was dropped")),
            Err(_) => Err(ProposeError::unknown("not applied in time")),
        }
    }

    /// Proposes a command, see [`GroupRaft::propose`].
    ///
    /// # Errors
    /// [`ProposeError`] says whether the command may still be applied.
    pub async fn propose_command(&self, command: &Command) -> Result<(ApplyReply, LogId), ProposeError> {
        self.propose(command.encode()).await
    }

    /// Hands one entry to Raft; `done` is called once, when it is applied or its fate is known. With `term` it is
    /// proposed in that term or not at all.
    ///
    /// Waits while Raft's queue is full or leadership is being handed over.
    pub(crate) async fn propose_with(
        &self,
        payload: Bytes,
        term: Option<u64>,
        done: impl FnOnce(Result<(ApplyReply, LogId), ProposeError>) + Send + 'static,
    ) {
        let pass = self.0.hand_over.gate.pass().await;
        let responder = Done::new(move |result: Option<openraft::raft::ClientWriteResult<TypeConfig>>| {
            done(match result {
                Some(Ok(response)) => Ok((response.data, LogId::from_raft(&response.log_id))),
                Some(Err(error)) => Err(error.into()),
                None => Err(ProposeError::unknown("the replica stopped")),
            });
            drop(pass);
        });
        let mut write = self.0.raft.write(Payload(payload)).responder(responder);
        if let Some(term) = term {
            write = write.with_leader(CommittedLeaderId { term });
        }
        // An error means that Raft has stopped; the responder has reported by then.
        let _: Result<(), Fatal<TypeConfig>> = write.await;
    }

    /// Waits until this replica has confirmed that it leads and has applied everything committed before the call.
    /// Concurrent calls share a round.
    ///
    /// # Errors
    /// If it does not lead, or no quorum answers within an election time-out.
    pub async fn read_index(&self) -> Result<(), NotReady> {
        self.0.read_index.wait().await
    }

    /// Hands leadership to `to`, or to the voter that misses least, and waits until it has moved. Proposals wait
    /// meanwhile; those before are applied first.
    ///
    /// # Errors
    /// If this replica does not lead, there is nobody to hand over to, what is in flight is not applied everywhere
    /// within an election time-out, or leadership has not moved within two.
    pub async fn transfer_leader(&self, to: Option<u64>) -> Result<u64, AdminError> {
        let to = self.0.hand_over.to(to, Urgency::Calm).await?;
        self.role_follows(to).await;
        Ok(to)
    }

    /// Waits until this replica's role tells of the leader that Raft knows: who asks next is not to be told that the
    /// former one leads, nor that nobody does.
    async fn role_follows(&self, leader: u64) {
        if leader == self.node_id() {
            return;
        }
        let mut role = self.role();
        let follows = role.wait_for(|role| role.leader().is_some());
        let _ = tokio::time::timeout(self.0.hand_over.timing.election_timeout_max, follows).await;
    }

    /// Whom to hand leadership to: `to`, or the voter that misses least, if it says that it would lead.
    ///
    /// # Errors
    /// If this replica does not lead, or there is nobody who would.
    pub async fn next_leader(&self, to: Option<u64>) -> Result<u64, AdminError> {
        let best = self.0.hand_over.successor(to)?;
        let mut candidates = vec![best];
        if to.is_none() {
            let metrics = self.0.raft.metrics().borrow_watched().clone();
            candidates.extend(watch::by_progress(&metrics).into_iter().filter(|voter| *voter != best));
        }
        let mut refused = String::new();
        for candidate in candidates {
            if candidate == self.node_id() {
                return Ok(candidate);
            }
            match watch::would_lead(self.0.hub.hub(), self.group(), candidate).await {
                Ok(true) => return Ok(candidate),
                Ok(false) => {
                    refused = format!(
                        "node {candidate} would not lead: it is drained, about to stop, or its disk or log is in trouble"
                    );
                }
                Err(reason) => refused = format!("node {candidate} does not answer: {reason}"),
            }
        }
        Err(AdminError::Refused(refused))
    }

    /// The voters that could take over at once and would, and how many groups the node of each leads.
    pub(crate) async fn takers(&self) -> Vec<(u64, u32)> {
        let metrics = self.0.raft.metrics().borrow_watched().clone();
        if !metrics.state.is_leader() {
            return Vec::new();
        }
        let asked = watch::close_behind(&metrics).into_iter().map(|voter| async move {
            let leads = watch::would_lead_besides(self.0.hub.hub(), self.group(), voter).await?;
            Some((voter, leads))
        });
        futures::future::join_all(asked).await.into_iter().flatten().collect()
    }

    /// Says whether a reason not to lead holds. While one does, a leader hands over to a voter that would lead, if there
    /// is one, and nobody hands leadership to this replica.
    pub fn set_unfit(&self, reason: Unfit, holds: bool) {
        self.0.fitness.set(reason, holds);
    }

    #[cfg(test)]
    pub(crate) fn is_unfit(&self, reason: Unfit) -> bool {
        self.0.fitness.has(reason)
    }

    /// Lets entries of the leader wait until `log`, which is this replica's, has room for them. Raft hears the leader and
    /// votes meanwhile.
    pub fn wait_for_room_in(&self, log: LogView) {
        self.0.room.watch(log);
    }

    /// Hands leadership over if it is here, as a node does before it stops. New proposals wait meanwhile, and whoever
    /// has one may forward it to the new leader. From now on nobody brings leadership home to this replica.
    pub async fn hand_over(&self) {
        self.set_unfit(Unfit::Leaving, true);
        let is_alone = self.0.raft.metrics().borrow_watched().membership_config.nodes().count() < 2;
        if !self.role().borrow().is_leader() || is_alone {
            return;
        }
        match self.0.hand_over.to(None, Urgency::Leaving).await {
            Ok(to) => {
                tracing::info!(group = self.group(), to, "leadership handed over");
                // A node forwards while it stops, if it knows whom to.
                self.role_follows(to).await;
            }
            Err(error) => tracing::warn!(group = self.group(), %error, "leadership not handed over"),
        }
    }

    /// Tells whether this replica's log is whole. One that is not does not stand for election and is not handed
    /// leadership; if it leads, it hands over on the spot to somebody who would lead. It goes on voting and taking
    /// entries, since the end of its log is certain.
    pub async fn set_complete(&self, complete: bool) {
        let before = self.0.fitness.has(Unfit::Damaged);
        self.set_unfit(Unfit::Damaged, !complete);
        self.0.raft.runtime_config().elect(complete);
        if complete {
            self.0.raft.runtime_config().heartbeat(true);
            if before {
                tracing::info!(group = self.group(), "log is whole again");
            }
            return;
        }
        let server = self.0.raft.server_metrics().borrow_watched().clone();
        if !server.state.is_leader() {
            return;
        }
        for voter in server.membership_config.voter_ids().filter(|voter| *voter != self.node_id()) {
            if watch::would_lead(self.0.hub.hub(), self.group(), voter).await != Ok(true) {
                continue;
            }
            match self.0.hand_over.to(Some(voter), Urgency::Calm).await {
                Ok(to) => return tracing::warn!(group = self.group(), to, "log is damaged: leadership handed over"),
                Err(error) => tracing::warn!(group = self.group(), to = voter, %error, "leadership not handed over"),
            }
        }
        tracing::warn!(group = self.group(), "log is damaged, and nobody else would lead");
    }

    /// Stops leading, although nobody else can: no copy of the log is whole. Heartbeats end, and with them the lease
    /// and the open gates.
    pub(crate) fn stand_still(&self) {
        self.0.raft.runtime_config().elect(false);
        self.0.raft.runtime_config().heartbeat(false);
    }

    /// Adds a member that receives the log and does not vote. Returns when the change is committed; watch
    /// [`GroupMetrics::matched`] until it has caught up.
    ///
    /// # Errors
    /// If this replica does not lead or another change is under way.
    pub async fn add_learner(&self, node_id: u64, member: Member) -> Result<LogId, AdminError> {
        self.0.hub.set_members(self.group(), addresses(&BTreeMap::from([(node_id, member.clone())])));
        let added = self.0.raft.add_learner(node_id, member, false).await.map_err(admin)?;
        Ok(LogId::from_raft(&added.log_id))
    }

    /// Makes exactly `voters` the voters. Members that are no longer voters leave the group.
    ///
    /// # Errors
    /// If this replica does not lead, a voter is no member, or another change is under way.
    pub async fn change_voters(&self, voters: BTreeSet<u64>) -> Result<LogId, AdminError> {
        let change = ChangeMembers::ReplaceAllVoters(voters);
        let changed = self.0.raft.change_membership(change, false).await.map_err(admin)?;
        Ok(LogId::from_raft(&changed.log_id))
    }

    /// Makes exactly `voters` the voters, if the membership is still the one of entry `at`. Members that are no longer
    /// voters leave the group. In the middle of a change this finishes it, or with the voters of before turns it back.
    ///
    /// # Errors
    /// As [`GroupRaft::change_voters`]. It may have got as far as the middle of the change.
    pub(crate) async fn change_voters_if(&self, at: Option<LogId>, voters: BTreeSet<u64>) -> Result<(), AdminError> {
        self.change_members_if(at, ChangeMembers::ReplaceAllVoters(voters)).await
    }

    /// Takes members that do not vote out of the group, if the membership is still the one of entry `at`.
    ///
    /// # Errors
    /// If this replica does not lead, or another change came before.
    pub(crate) async fn remove_learners_if(&self, at: Option<LogId>, ids: BTreeSet<u64>) -> Result<(), AdminError> {
        self.change_members_if(at, ChangeMembers::RemoveNodes(ids)).await
    }

    async fn change_members_if(&self, at: Option<LogId>, change: ChangeMembers<u64, Member>) -> Result<(), AdminError> {
        let last_membership_log_id = at.map(|at| at.to_raft());
        let unchanged = Precondition::LastMembershipLogId { last_membership_log_id };
        self.0.raft.change_membership_if(change, false, [unchanged]).await.map(drop).map_err(admin)
    }

    /// Waits until member `node_id` holds entry `index`, as far as this leader knows.
    ///
    /// # Errors
    /// If that does not happen within `time_max`.
    pub async fn wait_for_member(&self, node_id: u64, index: u64, time_max: Duration) -> Result<(), AdminError> {
        let what = format!("node {node_id} holds entry {index}");
        let holds = |metrics: &openraft::metrics::RaftMetrics<TypeConfig>| {
            let matched = metrics.replication.as_ref().and_then(|all| all.get(&node_id).copied().flatten());
            matched.is_some_and(|matched| matched.index() >= index)
        };
        let waited = self.0.raft.wait(Some(time_max)).metrics(holds, what).await;
        waited.map(drop).map_err(|error| AdminError::Timeout(error.to_string()))
    }

    /// Does the next step of the return of `node`, as its leader does for another node.
    ///
    /// # Errors
    /// Why the step did not succeed.
    pub(crate) async fn replace(&self, node: &str, request: ReplaceRequest) -> Result<Replaced, String> {
        self.0.replacing.step(node, request).await
    }

    /// Asks for a snapshot: the state machine publishes the checkpoint that retention has chosen.
    ///
    /// # Errors
    /// If the replica has stopped.
    pub async fn trigger_snapshot(&self) -> Result<(), AdminError> {
        self.0.raft.trigger().snapshot().await.map_err(stopped)
    }

    /// Asks to drop the log up to and including `index`, never beyond the current snapshot.
    ///
    /// # Errors
    /// If the replica has stopped.
    pub async fn purge_log(&self, index: u64) -> Result<(), AdminError> {
        self.0.raft.trigger().purge_log(index).await.map_err(stopped)
    }

    /// Waits until the current snapshot covers entry `index`; says whether it did in time.
    pub(crate) async fn snapshot_reaches(&self, index: u64, within: Duration) -> bool {
        let wait = self.0.raft.wait(Some(within));
        wait.metrics(|now| now.snapshot.is_some_and(|id| id.index() >= index), "snapshot").await.is_ok()
    }

    /// Waits until the log has been dropped up to entry `index`; says whether it was in time.
    pub(crate) async fn purge_reaches(&self, index: u64, within: Duration) -> bool {
        let wait = self.0.raft.wait(Some(within));
        wait.metrics(|now| now.purged.is_some_and(|id| id.index() >= index), "purge").await.is_ok()
    }

    /// On a leader: what each other member has of the log. A member is in good health if it was heard of at most
    /// `silence_max` ago.
    pub(crate) fn others(&self, silence_max: Duration) -> Vec<OtherMember> {
        let metrics = self.0.raft.metrics().borrow_watched().clone();
        let heard = metrics.heartbeat.unwrap_or_default();
        let matched = metrics.replication.unwrap_or_default();
        matched
            .into_iter()
            .filter(|(id, _)| *id != metrics.id)
            .map(|(id, matched)| OtherMember {
                node_id: id,
                matched: matched.map(|id| id.index()),
                healthy: heard.get(&id).copied().flatten().is_some_and(|at| at.into_inner().elapsed() <= silence_max),
            })
            .collect()
    }

    /// Breaks the append stream to a member, see [`PeerHub::break_stream`].
    pub fn break_stream(&self, node_id: u64) {
        self.0.hub.break_stream(self.group(), node_id);
    }

    /// Figures for status and metrics.
    #[must_use]
    pub fn metrics(&self) -> GroupMetrics {
        let metrics = self.0.raft.metrics().borrow_watched().clone();
        let flushed = self.0.raft.watch_log_progress().get().and_then(|point| point.last_log_id);
        GroupMetrics {
            node_id: metrics.id,
            term: metrics.current_term,
            leader: metrics.current_leader,
            last: metrics.last_log_index,
            committed: metrics.local_committed.map(|id| id.index()),
            applied: metrics.last_applied.map(|id| id.index()),
            flushed: flushed.map(|id| id.index()),
            snapshot: metrics.snapshot.map(|id| id.index()),
            purged: metrics.purged.map(|id| id.index()),
            membership_at: metrics.membership_config.log_id().as_ref().map(LogId::from_raft),
            voters: metrics.membership_config.membership().get_joint_config().clone(),
            members: metrics.membership_config.nodes().map(|(id, member)| (*id, member.clone())).collect(),
            matched: metrics
                .replication
                .iter()
                .flatten()
                .map(|(id, matched)| (*id, matched.as_ref().map(|id| id.index())))
                .collect(),
            catching_up: FarBehind::of(&metrics).members,
        }
    }

    /// Waits until the replica stops and says why: a failed disk ends it for good, and the process with it.
    pub async fn stopped(&self) -> String {
        let mut metrics = self.0.raft.metrics();
        loop {
            if let Err(fatal) = &metrics.borrow_and_update().running_state {
                return fatal.to_string();
            }
            if metrics.changed().await.is_err() {
                return "replica was shut down".to_owned();
            }
        }
    }

    /// Stops the replica. Peers are shut out first; the peer port itself stays open until [`PeerHub::shutdown`].
    ///
    /// Leadership should have been handed over before.
    pub async fn shutdown(&self) {
        self.0.hub.set_service(self.group(), None);
        if let Err(error) = self.0.raft.shutdown().await {
            tracing::warn!(group = self.group(), %error, "replica did not stop cleanly");
        }
        self.0.cancel.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
        let term = self.0.role.borrow().term();
        self.0.role.send_replace(Role::Follower { term, leader: None });
    }
}

fn addresses(members: &BTreeMap<u64, Member>) -> BTreeMap<u64, PeerAddress> {
    members
        .iter()
        .map(|(id, member)| (*id, PeerAddress { node: member.node.clone(), raft_addr: member.raft_addr.clone() }))
        .collect()
}

/// The voter on a node.
fn voter_on(metrics: &openraft::metrics::RaftMetrics<TypeConfig>, node: Option<&str>) -> Option<u64> {
    let membership = metrics.membership_config.membership();
    let is_there = |id: &u64| membership.get_node(id).map(|member| member.node.as_str()) == node;
    node.and_then(|_| membership.voter_ids().find(is_there))
}

fn member(metrics: &openraft::metrics::RaftMetrics<TypeConfig>, id: u64) -> Option<Member> {
    metrics.membership_config.membership().get_node(&id).cloned()
}

fn stopped(fatal: Fatal<TypeConfig>) -> AdminError {
    AdminError::Stopped(fatal.to_string())
}

fn admin(error: RaftError<TypeConfig, openraft::errors::ClientWriteError<TypeConfig>>) -> AdminError {
    match ProposeError::from(error) {
        ProposeError::NotProposed { reason, leader: Some(leader) } => {
            AdminError::NotLeader { reason, leader: Some(leader) }
        }
        ProposeError::NotProposed { reason, leader: None } => AdminError::Refused(reason),
        ProposeError::Unknown { reason } => AdminError::Timeout(reason),
        ProposeError::Stopped => AdminError::Stopped("replica has stopped".to_owned()),
    }
}

/// openraft's settings. Nothing here snapshots or purges by itself: the log is the data.
fn config(options: &GroupRaftOptions) -> Result<Config, AdminError> {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let timing = options.timing;
    let config = Config {
        cluster_name: options.identity.group.clone(),
        heartbeat_interval: millis(timing.heartbeat_interval),
        heartbeat_min_interval: Some(millis(timing.heartbeat_interval)),
        election_timeout_min: millis(timing.election_timeout_min),
        election_timeout_max: millis(timing.election_timeout_max),
        enable_pre_vote: Some(true),
        enable_leader_restore: Some(false),
        allow_log_reversion: Some(false),
        quorum_loss_probe_interval: Some(2 * millis(timing.election_timeout_max)),
        max_payload_entries: 1024,
        max_append_entries: Some(256),
        api_batch_capacity: 256,
        api_channel_size: Some(1024),
        state_machine_channel_size: Some(1024),
        replication_lag_threshold: 1000,
        install_snapshot_timeout: 10_000,
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        purge_batch_size: 1,
        backoff: "50ms 100ms 200ms 500ms ...1s".to_owned(),
        ..Config::default()
    };
    config.validate().map_err(|error| AdminError::Refused(error.to_string()))
}

#[cfg(test)]
pub(crate) mod tests;
