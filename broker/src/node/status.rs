//! What a node tells about itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::oneshot;

use super::Shared;
use super::group::{NodeGroup, Order};
use super::{begin, flush, member_orders, recover, topics};
use crate::disk::DiskState;
use crate::http::{
    Admin, AdminError, BeginStatus, Changed, ConsumerGroupDetails, ConsumerGroupSpec, ConsumerGroupView, DamageStatus,
    DiskStatus, DrainStatus, Event, FlushMode, FlushStatus, GroupStatus, LeaderStatus, ListQuery, LogStatus,
    LossReport, MemberAnswer, MemberOrder, MemberQuery, MemberStatus, MembersStatus, MetricsText, NodeState,
    NodeStatus, OperationStatus, Page, Place, RecoverOrder, RecoveryStatus, RefusedCalls, ReplayStatus, ReplicaRole,
    ResetOrder, ResetPlan, RetentionStatus, ScrubStatus, Settle, SyncStatus, TopicDetails, TopicSpec, TopicView,
};
use crate::peer::{AdminCall, AdminReply, ForwardError};
use crate::raft::{self, GroupMetrics, Role, Unfit};
use crate::store::ReplayProgress;

/// How long a call to drain the node waits for its leaderships to move, and how often it looks.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);
const DRAIN_LOOK: Duration = Duration::from_millis(20);

impl Admin for Shared {
    fn node(&self) -> String {
        self.options.node.name.clone()
    }

    fn other_nodes(&self) -> Vec<String> {
        self.hub.other_nodes()
    }

    fn place_of(&self, group: String, wait: Duration) -> BoxFuture<'static, Result<Place, AdminError>> {
        let running = self.groups.iter().find(|found| found.name() == group).and_then(|found| found.running());
        Box::pin(async move {
            let Some(running) = running else { return Ok(Place::Unknown) };
            let mut role = running.raft.role();
            let led = role.wait_for(|role| role.is_ready_leader() || role.leader().is_some());
            match tokio::time::timeout(wait, led).await {
                Ok(Ok(role)) => Ok(role.leader().map_or(Place::Here, |(_, member)| Place::Node(member.node.clone()))),
                _ => Err(AdminError::NotHere(format!("nobody leads group {group} just now"))),
            }
        })
    }

    fn ask(
        &self,
        node: String,
        call: AdminCall,
        limit: Duration,
    ) -> BoxFuture<'static, Result<AdminReply, ForwardError>> {
        let hub = self.hub.clone();
        Box::pin(async move { hub.pass_on(&node, &call, limit).await })
    }

    fn status(&self) -> NodeStatus {
        let groups: Vec<_> = self.groups.iter().map(|group| group_status(group)).collect();
        let failure = self.failure.borrow().clone();
        // The process is about to end, whatever it was doing.
        let state = if failure.is_some() { NodeState::Failed } else { *self.state.lock() };
        let unknown = || {
            let text = "no name server knows this node yet, so no client finds it".to_owned();
            (!self.registration.was_registered()).then_some(text)
        };
        let waits =
            || self.begin.is_waiting().then(|| "waits for `gantry cluster bootstrap`: it has no data".to_owned());
        let problem = waits().or_else(|| problem(state, &groups, failure.as_deref())).or_else(unknown);
        NodeStatus {
            cluster: self.options.cluster.name.clone(),
            cluster_id: self.options.cluster.id.iter().map(|byte| format!("{byte:02x}")).collect(),
            node: self.options.node.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state,
            ready: problem.is_none(),
            health: problem.unwrap_or_else(|| "every group has a leader".to_owned()),
            uptime_ms: millis(self.started.elapsed()),
            start_to_ready_ms: self.ready_after.load(Ordering::Acquire).checked_sub(1),
            groups,
            name_servers: self.registration.status(),
            retention: self.retention.status(),
            drained: self.drain.is_on(),
            pid: std::process::id(),
        }
    }

    fn refused_calls(&self) -> &RefusedCalls {
        &self.refused_calls
    }

    fn topics(&self, group: &str, query: &ListQuery) -> Result<Page<TopicView>, AdminError> {
        Ok(topics::list(&*self.running(group)?, query))
    }

    fn topic_names(&self, group: &str, query: &ListQuery) -> Result<Vec<String>, AdminError> {
        Ok(topics::names(&*self.running(group)?, query))
    }

    fn topic(&self, group: String, topic: String) -> BoxFuture<'static, Result<TopicDetails, AdminError>> {
        let running = self.running(&group);
        Box::pin(async move { topics::details(&*running?, &topic) })
    }

    fn put_topic(
        &self,
        group: String,
        topic: String,
        spec: TopicSpec,
    ) -> BoxFuture<'static, Result<TopicDetails, AdminError>> {
        let running = self.running(&group);
        Box::pin(async move { topics::put(&*running?, &topic, spec).await })
    }

    fn delete_topic(&self, group: String, topic: String) -> BoxFuture<'static, Result<(), AdminError>> {
        let running = self.running(&group);
        Box::pin(async move { topics::delete(&*running?, &topic).await })
    }

    fn consumer_groups(&self, group: &str, query: &ListQuery) -> Result<Page<ConsumerGroupView>, AdminError> {
        Ok(topics::list_groups(&*self.running(group)?, query))
    }

    fn consumer_group(&self, group: &str, consumer: &str) -> Result<ConsumerGroupDetails, AdminError> {
        topics::group_details(&*self.running(group)?, consumer)
    }

    fn put_consumer_group(
        &self,
        group: String,
        consumer: String,
        spec: ConsumerGroupSpec,
    ) -> BoxFuture<'static, Result<ConsumerGroupDetails, AdminError>> {
        let running = self.running(&group);
        Box::pin(async move { topics::put_group(&*running?, &consumer, &spec).await })
    }

    fn delete_consumer_group(&self, group: String, consumer: String) -> BoxFuture<'static, Result<(), AdminError>> {
        let running = self.running(&group);
        Box::pin(async move { topics::delete_group(&*running?, &consumer).await })
    }

    fn reset(
        &self,
        group: String,
        consumer: String,
        order: ResetOrder,
        dry_run: bool,
    ) -> BoxFuture<'static, Result<ResetPlan, AdminError>> {
        let running = self.running(&group);
        Box::pin(async move { topics::reset(&*running?, &consumer, order, dry_run).await })
    }

    fn begin_status(&self) -> BeginStatus {
        BeginStatus {
            node: self.options.node.name.clone(),
            state: self.begin.state(&self.groups),
            groups: self.groups.iter().map(|group| begin::configured(group)).collect(),
        }
    }

    fn begin(&self) -> BoxFuture<'static, Result<BeginStatus, AdminError>> {
        let own = self.own.clone();
        Box::pin(async move {
            let stopping = || AdminError::Unavailable("the node is stopping".to_owned());
            let shared = own.upgrade().ok_or_else(stopping)?;
            shared.begin.tell(&shared.options.node.name).await?;
            Ok(shared.begin_status())
        })
    }

    fn events(&self) -> Vec<Event> {
        self.events.list()
    }

    fn leads(&self) -> Vec<String> {
        let leads =
            |group: &&Arc<NodeGroup>| group.running().is_some_and(|running| running.raft.role().borrow().is_leader());
        self.groups.iter().filter(leads).map(|group| group.name().to_owned()).collect()
    }

    fn set_drained(&self, drained: bool) -> BoxFuture<'static, Result<DrainStatus, AdminError>> {
        let Some(shared) = self.own.upgrade() else {
            return Box::pin(async { Err(AdminError::Unavailable("the node is stopping".to_owned())) });
        };
        Box::pin(async move { set_drained(&shared, drained).await })
    }

    fn collect(&self, metrics: &mut MetricsText) {
        super::metrics::collect(self, metrics);
    }

    fn transfer_leader(
        &self,
        group: String,
        to: Option<String>,
        dry_run: bool,
    ) -> BoxFuture<'static, Result<LeaderStatus, AdminError>> {
        let found = self.group(&group);
        Box::pin(async move { transfer_leader(&*found?, to, dry_run).await })
    }

    fn recovery(&self, group: &str) -> Result<RecoveryStatus, AdminError> {
        recover::status(&*self.group(group)?, &self.options.node.name)
    }

    fn retire(&self, group: String) -> BoxFuture<'static, Result<RecoveryStatus, AdminError>> {
        let (found, node) = (self.group(&group), self.options.node.name.clone());
        Box::pin(async move {
            let found = found?;
            let (done, answer) = oneshot::channel();
            found.order(Order::Retire { done }).await?;
            answer.await.unwrap_or_else(|_| Err(AdminError::Unavailable("the node has stopped".to_owned())))?;
            recover::status(&found, &node)
        })
    }

    fn accept_clock(&self) -> BoxFuture<'static, RetentionStatus> {
        let retention = Arc::clone(&self.retention);
        Box::pin(async move {
            retention.accept_clock().await;
            retention.status()
        })
    }

    fn check_recover(&self, group: &str, order: &RecoverOrder) -> Result<(), AdminError> {
        recover::check(&*self.group(group)?, &self.options.node.name, order)
    }

    fn recover(&self, group: String, order: RecoverOrder) -> BoxFuture<'static, Result<LossReport, AdminError>> {
        let (found, node) = (self.group(&group), self.options.node.name.clone());
        Box::pin(async move {
            let found = found?;
            recover::check(&found, &node, &order)?;
            let (done, answer) = oneshot::channel();
            found.order(Order::Recover { order, done }).await?;
            answer.await.unwrap_or_else(|_| Err(AdminError::Unavailable("the node has stopped".to_owned())))
        })
    }

    fn members(&self, group: &str) -> Result<MembersStatus, AdminError> {
        member_orders::status(&*self.group(group)?)
    }

    fn change_members(
        &self,
        group: String,
        order: MemberOrder,
        query: MemberQuery,
        dry_run: bool,
    ) -> BoxFuture<'static, Result<Changed<MemberAnswer>, AdminError>> {
        let found = self.group(&group);
        Box::pin(async move { member_orders::change(&*found?, order, query, dry_run).await })
    }

    fn settle_members(
        &self,
        group: String,
        to: Settle,
        dry_run: bool,
    ) -> BoxFuture<'static, Result<Changed<MembersStatus>, AdminError>> {
        let found = self.group(&group);
        Box::pin(async move { member_orders::settle(&*found?, to, dry_run).await })
    }

    fn operations(&self) -> Vec<OperationStatus> {
        self.groups.iter().flat_map(|group| member_orders::operations(group)).collect()
    }

    fn operation(&self, id: &str) -> Result<OperationStatus, AdminError> {
        let (group, change) = self.operation_of(id)?;
        member_orders::operation(&group, change)
    }

    fn cancel_operation(
        &self,
        id: String,
        dry_run: bool,
    ) -> BoxFuture<'static, Result<Changed<OperationStatus>, AdminError>> {
        let found = self.operation_of(&id);
        Box::pin(async move {
            let (group, change) = found?;
            member_orders::cancel(&group, change, dry_run).await
        })
    }

    fn set_flush(&self, group: String, mode: FlushMode) -> BoxFuture<'static, Result<FlushStatus, AdminError>> {
        let found = self.group(&group);
        Box::pin(async move {
            let found = found?;
            let starting = || AdminError::Unavailable(format!("group {} does not run here yet", found.name()));
            flush::change(&*found.running().ok_or_else(starting)?, mode).await
        })
    }
}

impl Shared {
    fn running(&self, group: &str) -> Result<Arc<super::group::Running>, AdminError> {
        let found = self.group(group)?.running();
        found.ok_or_else(|| AdminError::NotHere(format!("group {group} does not run here yet")))
    }

    fn group(&self, name: &str) -> Result<Arc<NodeGroup>, AdminError> {
        let found = self.groups.iter().find(|found| found.name() == name).map(Arc::clone);
        found.ok_or_else(|| AdminError::NotFound(format!("there is no group {name} on this node")))
    }

    /// The group of an operation, and its number there.
    fn operation_of(&self, id: &str) -> Result<(Arc<NodeGroup>, u64), AdminError> {
        let shown: String = id.chars().take(200).collect();
        let unknown = || AdminError::NotFound(format!("there is no operation {shown} on this node"));
        let (group, change) = member_orders::split_id(id).ok_or_else(unknown)?;
        Ok((self.group(group).map_err(|_| unknown())?, change))
    }
}

async fn set_drained(shared: &Shared, drained: bool) -> Result<DrainStatus, AdminError> {
    if shared.drain.is_on() != drained {
        shared.drain.set(drained).await.map_err(|error| {
            AdminError::Unavailable(format!("cannot write down that the node is drained or not: {error}"))
        })?;
        // Whoever hears that it is drained can rely on it: no replica takes leadership after that.
        shared.drain.tell(|on| {
            for running in shared.groups.iter().filter_map(|group| group.running()) {
                running.raft.set_unfit(Unfit::Drained, on);
            }
        });
        shared.events.note_drained(drained);
        tracing::warn!(drained, "an operator has said whether this node leads");
    }
    if drained {
        let given_away = async {
            while !shared.leads().is_empty() {
                tokio::time::sleep(DRAIN_LOOK).await;
            }
        };
        // Whatever is left goes as soon as somebody can take it.
        let _ = tokio::time::timeout(DRAIN_TIME_MAX, given_away).await;
    }
    let still_leads = if drained { shared.leads() } else { Vec::new() };
    Ok(DrainStatus { node: shared.options.node.name.clone(), drained, still_leads })
}

async fn transfer_leader(group: &NodeGroup, to: Option<String>, dry_run: bool) -> Result<LeaderStatus, AdminError> {
    let running =
        group.running().ok_or_else(|| AdminError::Unavailable(format!("group {} is being recovered", group.name())))?;
    let members = running.raft.metrics().members;
    let to =
        match &to {
            None => None,
            Some(node) => {
                let found = members.iter().find(|(_, member)| member.node == *node).map(|(&id, _)| id);
                Some(found.ok_or_else(|| {
                    AdminError::NotFound(format!("group {} has no member on node {node}", group.name()))
                })?)
            }
        };
    let status = |leader: u64| {
        let member = members.get(&leader).cloned().unwrap_or_default();
        LeaderStatus { id: leader, node: member.node, client_addr: member.client_addr }
    };
    let to = running.raft.next_leader(to).await.map_err(transfer_error)?;
    if dry_run {
        return Ok(status(to));
    }
    // A handed-over group forgets nothing that a client was told.
    group.flush_offsets().await;
    running.raft.transfer_leader(Some(to)).await.map(status).map_err(transfer_error)
}

fn transfer_error(error: raft::AdminError) -> AdminError {
    match error {
        raft::AdminError::NotLeader { .. } | raft::AdminError::Refused(_) => AdminError::Conflict(error.to_string()),
        _ => AdminError::Unavailable(error.to_string()),
    }
}

/// Why the node is not ready, in one sentence.
pub(super) fn problem(state: NodeState, groups: &[GroupStatus], failure: Option<&str>) -> Option<String> {
    if let Some(failure) = failure {
        return Some(failure.to_owned());
    }
    match state {
        NodeState::Starting => {
            let recovering = groups.iter().filter(|group| group.role == ReplicaRole::Recovering).count();
            let starting = format!("starting: {recovering} of {} groups are being recovered", groups.len());
            return Some(replaying(groups).map_or_else(|| starting.clone(), |replay| format!("{starting}; {replay}")));
        }
        NodeState::Stopping => return Some("stopping: requests are forwarded".to_owned()),
        NodeState::Failed => return Some("failed".to_owned()),
        NodeState::Running => {}
    }
    if let Some(damage) = damage(groups) {
        return Some(damage);
    }
    let joining = groups.iter().find(|group| group.role == ReplicaRole::Joining);
    if let Some(group) = joining {
        return Some(format!("group {} {}", group.name, group.outside.as_deref().unwrap_or("waits to be let in")));
    }
    let leaderless: Vec<_> = groups
        .iter()
        .filter(|group| match group.role {
            ReplicaRole::Leader => !group.gates_open,
            ReplicaRole::Follower | ReplicaRole::Joining | ReplicaRole::Removed => false,
            ReplicaRole::Recovering | ReplicaRole::Returning | ReplicaRole::Electing | ReplicaRole::Failed => true,
        })
        .map(|group| group.name.as_str())
        .collect();
    if !leaderless.is_empty() {
        return Some(format!("no leader that answers: {}", leaderless.join(", ")));
    }
    if let Some(replay) = replaying(groups) {
        return Some(replay);
    }
    // A follower with a full disk hinders nobody.
    groups.iter().filter(|group| group.role == ReplicaRole::Leader).find_map(|group| {
        if let Some(file) = &group.derived_files_wait {
            return Some(format!("group {} shows consumers nothing new until the disk has room: {file}", group.name));
        }
        let refusal = group.disk.as_ref()?.refusal.as_ref()?;
        Some(format!("group {} takes no messages: {refusal}", group.name))
    })
}

/// What damage keeps a group from serving, if any does.
fn damage(groups: &[GroupStatus]) -> Option<String> {
    groups.iter().find_map(|group| {
        let reason = group.repair_error.as_ref()?;
        match group.role {
            ReplicaRole::Failed => Some(format!("failed: {reason}")),
            ReplicaRole::Recovering | ReplicaRole::Returning => Some(format!("waits for a repair: {reason}")),
            _ if group.damaged_everywhere => Some(format!("group {} stands still: {reason}", group.name)),
            _ => None,
        }
    })
}

/// How far groups are with applying their logs again, if any is.
fn replaying(groups: &[GroupStatus]) -> Option<String> {
    let each = groups.iter().filter_map(|group| Some(format!("group {}: {}", group.name, group.replay.as_ref()?.text)));
    let all = each.collect::<Vec<_>>().join("; ");
    (!all.is_empty()).then_some(all)
}

fn group_status(group: &NodeGroup) -> GroupStatus {
    let own = group.options().own_member();
    let recovered = group.recovered();
    let known = group.known_members().members.into_iter().map(|(id, member)| MemberStatus {
        id,
        node: member.node,
        client_addr: member.client_addr,
        voter: true,
        matched: None,
        catching_up: false,
    });
    let mut status = GroupStatus {
        name: group.name().to_owned(),
        client_addr: own.client_addr,
        id: group.node_id(),
        retired: recovered.as_ref().map_or_else(Vec::new, |found| found.retired.iter().map(|id| id.node_id).collect()),
        returning: group.is_returning(),
        generation: recovered.map_or(0, |recovered| recovered.generation),
        outside: group.outside(),
        joint: false,
        flush: group.log().map(|log| if log.flush_is_sync() { FlushMode::Sync } else { FlushMode::Async }),
        role: ReplicaRole::Recovering,
        gates_open: false,
        term: 0,
        leader: None,
        preferred_leader: group.preferred_node(),
        sync: None,
        last: None,
        flushed: None,
        committed: None,
        applied: None,
        replay: group.replaying().as_ref().map(replay_status),
        disk: None,
        derived_files_wait: None,
        members: known.collect(),
        log: None,
        damaged: Vec::new(),
        repair_error: None,
        damaged_everywhere: false,
        repaired_ranges: 0,
        scrub: None,
    };
    if status.outside.is_some() {
        // It may still be stopping.
        status.role = if group.was_removed() { ReplicaRole::Removed } else { ReplicaRole::Joining };
        return status;
    }
    let Some(running) = group.running() else {
        if group.is_returning() {
            status.role = ReplicaRole::Returning;
        }
        if let Some(halted) = group.halted() {
            status.damaged = halted.damaged.iter().map(damage_status).collect();
            status.repair_error = Some(halted.reason);
            status.damaged_everywhere = halted.failed && !status.damaged.is_empty();
            if halted.failed {
                status.role = ReplicaRole::Failed;
            }
        }
        return status;
    };
    status.disk = Some(disk_status(*running.disk.subscribe().borrow()));
    let own_id = running.node_id();
    status.derived_files_wait = group.derived_files_wait();
    let metrics = running.raft.metrics();
    let role = running.raft.role().borrow().clone();
    status.term = role.term();
    status.gates_open = role.is_ready_leader();
    (status.last, status.flushed) = (metrics.last, metrics.flushed);
    (status.committed, status.applied) = (metrics.committed, metrics.applied);
    status.role = match &role {
        Role::Leader { .. } => ReplicaRole::Leader,
        Role::Follower { leader: Some(_), .. } => ReplicaRole::Follower,
        Role::Follower { leader: None, .. } => ReplicaRole::Electing,
    };
    let repair = running.repairer.status();
    status.damaged = repair.damaged.iter().map(damage_status).collect();
    (status.repair_error, status.damaged_everywhere) = (repair.last_error, repair.hopeless);
    status.repaired_ranges = repair.repaired_ranges;
    status.scrub = running.log.scrub().map(|scrub| ScrubStatus {
        pass_started_ms: scrub.pass_started_ms,
        last_pass_ms: scrub.last_pass_ms,
        faults: scrub.faults,
    });
    if *running.log.health().borrow() != raft_store::Health::Good {
        status.role = ReplicaRole::Failed;
    }
    status.leader = match &role {
        Role::Leader { .. } => {
            Some(LeaderStatus { id: own_id, node: own.node.clone(), client_addr: own.client_addr.to_string() })
        }
        Role::Follower { leader, .. } => leader.as_ref().map(|(id, member)| LeaderStatus {
            id: *id,
            node: member.node.clone(),
            client_addr: member.client_addr.clone(),
        }),
    };
    status.sync = Some(sync_status(&running.log.sync_times()));
    let figures = running.retention.figures();
    status.log = Some(LogStatus {
        first: figures.extent.first.map(raft_store::LogIndex::get),
        start_position: figures.extent.start.get(),
        end_position: running.log.watermarks().end.get(),
        segments: figures.extent.segments,
        file_bytes: figures.extent.file_bytes,
        earliest_message_ms: figures.earliest_ms,
        snapshot: metrics.snapshot,
        dropped_segments: figures.dropped,
    });
    status.joint = metrics.voters.len() > 1;
    if !metrics.members.is_empty() {
        status.members = members(&metrics, own_id);
    }
    status
}

fn sync_status(syncs: &raft_store::TimeHistogram) -> SyncStatus {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let most = |count: u64| u128::from(count) * 100 >= u128::from(syncs.count) * 99;
    let p99 = syncs.at_most.iter().find(|(_, count)| syncs.count > 0 && most(*count));
    SyncStatus {
        count: syncs.count,
        mean_us: micros(syncs.total).checked_div(syncs.count).unwrap_or(0),
        p99_us: p99.map(|(bound, _)| micros(*bound)),
    }
}

fn disk_status(disk: DiskState) -> DiskStatus {
    DiskStatus {
        level: disk.level.word().to_owned(),
        total_bytes: disk.space.map_or(0, |space| space.total_bytes),
        free_bytes: disk.space.map_or(0, |space| space.free_bytes),
        refusal: disk.refusal(),
    }
}

fn replay_status(progress: &ReplayProgress) -> ReplayStatus {
    ReplayStatus {
        rebuilds: progress.rebuilds,
        percent: progress.percent(),
        done_bytes: progress.done_bytes,
        left_bytes: progress.left_bytes(),
        messages: progress.messages,
        messages_per_second: progress.messages_per_second(),
        left_ms: progress.left().map(millis),
        text: progress.to_string(),
    }
}

fn damage_status(range: &raft_store::DamagedRange) -> DamageStatus {
    DamageStatus {
        file: range.file.display().to_string(),
        from: range.from.get(),
        to: range.to.get(),
        found: range.found.clone(),
    }
}

fn members(metrics: &GroupMetrics, own_id: u64) -> Vec<MemberStatus> {
    metrics
        .members
        .iter()
        .map(|(&id, member)| MemberStatus {
            id,
            node: member.node.clone(),
            client_addr: member.client_addr.clone(),
            voter: metrics.voters.iter().any(|voters| voters.contains(&id)),
            matched: if id == own_id { metrics.last } else { metrics.matched.get(&id).copied().flatten() },
            catching_up: metrics.catching_up.contains(&id),
        })
        .collect()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
