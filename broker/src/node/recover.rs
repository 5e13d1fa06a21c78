//! A majority is gone for good: one replica goes on from its log, because an operator says so.
//!
//! The replica is stopped, its identity is retired, one membership entry that names it alone is appended in a term above
//! everything seen, and it is started again under a fresh identity. It elects itself. The other nodes stand in that entry
//! as learners, by name: when they come, each is given an identity and votes again, as after a crash of its system.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use raft_store::{LogId, Membership, StopClass, durable};
use tokio::sync::oneshot;

use super::StartError;
use super::group::{Context, NodeGroup, Running, to_member};
use crate::http::{AdminError, EntryStatus, LossReport, QueueLoss, RecoverOrder, RecoveryStatus};
use crate::raft::Role;

/// How long the replica may take to lead: it needs no vote but its own.
const LEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// Identities of a generation start here, above every log index that an identity can have come from before.
const GENERATION_SHIFT: u32 = 40;
/// A raised generation must leave the identity below what RocketMQ's signed ids hold.
const GENERATION_MAX: u64 = 1 << 20;

/// What an operator looks at before anything is decided.
pub(super) fn status(group: &NodeGroup, node: &str) -> Result<RecoveryStatus, AdminError> {
    let (Some(recovered), Some(log)) = (group.recovered(), group.log()) else {
        return Err(AdminError::Unavailable(format!("group {} is being recovered", group.name())));
    };
    let running = group.running();
    let marks = log.watermarks();
    Ok(RecoveryStatus {
        group: group.name().to_owned(),
        node: node.to_owned(),
        nodes: group.known_members().members.into_values().map(|member| member.node).collect(),
        node_id: running.as_ref().map(|running| running.node_id()),
        retired: recovered.retired.iter().map(|retired| retired.node_id).collect(),
        generation: recovered.generation,
        term: log.vote().map_or(0, |vote| vote.term),
        last: marks.last.map(entry_status),
        committed: marks.committed.map(entry_status),
        leader: running.and_then(|running| known_leader(&running, node)),
    })
}

fn known_leader(running: &Running, own: &str) -> Option<String> {
    match &*running.raft.role().borrow() {
        Role::Leader { ready: true, .. } => Some(own.to_owned()),
        Role::Leader { .. } => None,
        Role::Follower { leader, .. } => {
            leader.as_ref().filter(|_| running.raft.hears_leader()).map(|(_, member)| member.node.clone())
        }
    }
}

fn entry_status(id: LogId) -> EntryStatus {
    EntryStatus { term: id.term.get(), index: id.index.get() }
}

/// Why the order must not be carried out, if anything has changed since it was given.
pub(super) fn check(group: &NodeGroup, node: &str, order: &RecoverOrder) -> Result<(), AdminError> {
    let conflict = |text: String| Err(AdminError::Conflict(text));
    if !order.accept_loss {
        return conflict("entries may be lost: accept_loss must be set".to_owned());
    }
    let status = status(group, node)?;
    if let Some(leader) = status.leader {
        return conflict(format!("group {} is led by {leader}: there is nothing to recover", group.name()));
    }
    let last = EntryStatus { term: order.last_term, index: order.last_index };
    if status.last != Some(last) {
        let found = status.last.map_or_else(|| "nothing".to_owned(), |last| last.to_string());
        return conflict(format!("the log of node {node} ends with {found} and not with {last}: look again"));
    }
    let above = status.term.max(last.term);
    if order.term <= above {
        return conflict(format!("term {} is not above {above}", order.term));
    }
    if order.generation <= status.generation || order.generation >= GENERATION_MAX {
        return conflict(format!("generation {} does not follow {}", order.generation, status.generation));
    }
    Ok(())
}

/// Carries an order out that was checked. The error ends the node, the answer goes to the operator.
pub(super) async fn carry_out(
    group: &NodeGroup,
    context: &Context,
    order: RecoverOrder,
    done: oneshot::Sender<Result<LossReport, AdminError>>,
) -> Result<(), StartError> {
    tracing::warn!(group = group.name(), ?order, "going on without a majority, as ordered");
    group.stop().await;
    let mut recovering = group.recover(context, true).await?;
    let view = recovering.log.view.clone();
    let last = view.watermarks().last.map(entry_status);
    if last != Some(EntryStatus { term: order.last_term, index: order.last_index }) {
        group.set_waiting(recovering);
        let _ = done.send(Err(AdminError::Conflict("the log has moved since it was looked at: look again".to_owned())));
        return Ok(());
    }
    let node_id = (order.generation << GENERATION_SHIFT) + order.last_index + 1;
    let own = group.options().own_member();
    let others = group.known_members().members.into_iter();
    let mut nodes: BTreeMap<_, _> = others.filter(|(_, member)| member.node != own.node).collect();
    nodes.insert(node_id, to_member(own));
    let membership = Membership::new(vec![BTreeSet::from([node_id])], nodes).expect("the one voter is a member");
    let failed = |source| StartError::Log { group: group.name().to_owned(), source };
    let generation = order.generation;
    let begun = view.begin_configuration(node_id, generation, order.term, &membership).await.map_err(failed)?;
    recovering.log.recovered.generation = generation;
    recovering.log.recovered.vote = recovering.log.view.vote();
    let running = group.run(context, recovering, node_id).await?;
    // Clients wait outside: what is reported is what the log held, and nothing newer.
    let report = match lead(&running, begun.index.get()).await {
        Ok(()) => {
            let report = LossReport {
                group: group.name().to_owned(),
                node: context.node.name.clone(),
                node_id: running.node_id(),
                generation: order.generation,
                last: EntryStatus { term: order.last_term, index: order.last_index },
                goes_on_at: entry_status(begun),
                file: report_path(group, context, &order.generation.to_string()).display().to_string(),
                queues: queue_ends(&running),
            };
            keep(group, &report).await;
            Ok(report)
        }
        Err(reason) => Err(AdminError::Unavailable(reason)),
    };
    group.set_returning(false);
    group.open_to_clients(&running);
    let _ = done.send(report);
    Ok(())
}

/// A group of one whose memory is gone goes on with what its disk has: nobody has more. Says what may be lost, before
/// anybody can add to it.
pub(super) async fn report_alone(group: &NodeGroup, context: &Context, running: &Running) {
    let is_gone = matches!(running.recovered.stop, StopClass::Os | StopClass::Latched) && !running.log.flush_is_sync();
    let Some(last) = running.recovered.last.filter(|_| is_gone && !group.has_peers()) else { return };
    if let Err(reason) = lead(running, last.index.get()).await {
        tracing::error!(group = group.name(), reason, "what may be lost cannot be told");
        return;
    }
    let report = LossReport {
        group: group.name().to_owned(),
        node: context.node.name.clone(),
        node_id: running.node_id(),
        generation: running.recovered.generation,
        last: entry_status(last),
        goes_on_at: entry_status(running.log.watermarks().last.unwrap_or(last)),
        file: report_path(group, context, &format!("start-{}", running.recovered.start_counter)).display().to_string(),
        queues: queue_ends(running),
    };
    keep(group, &report).await;
}

/// Waits until the replica leads and has applied everything up to an entry, which it holds.
async fn lead(running: &Running, index: u64) -> Result<(), String> {
    let mut role = running.raft.role();
    let led = async {
        let _ = role.wait_for(Role::is_ready_leader).await;
        running.store.wait_dispatched(index).await
    };
    match tokio::time::timeout(LEAD_TIME_MAX, led).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the replica has not been elected in time; it goes on trying".to_owned()),
    }
}

fn queue_ends(running: &Running) -> Vec<QueueLoss> {
    let mut queues = Vec::new();
    for topic in running.state.topics() {
        for queue_id in 0..topic.queues() {
            let first_offset_at_risk = running.store.max_offset(&topic.name, queue_id);
            queues.push(QueueLoss { topic: topic.name.to_string(), queue_id, first_offset_at_risk });
        }
    }
    queues
}

fn report_path(group: &NodeGroup, context: &Context, name: &str) -> PathBuf {
    context.node.data_dir.join(group.name()).join(format!("loss-report-{name}.json"))
}

/// Writes the report beside the log.
async fn keep(group: &NodeGroup, report: &LossReport) {
    let path = PathBuf::from(&report.file);
    let text = serde_json::to_vec_pretty(report).unwrap_or_default();
    match tokio::task::spawn_blocking(move || durable::write_file(&path, &text)).await {
        Ok(Ok(())) => tracing::warn!(group = group.name(), file = report.file, "what may be lost is listed there"),
        Ok(Err(error)) => tracing::error!(group = group.name(), %error, "the loss report cannot be written"),
        Err(error) => tracing::error!(group = group.name(), %error, "writing the loss report panicked"),
    }
}
