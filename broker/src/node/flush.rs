//! The flush mode is the group's: it stands in the log, and every replica follows it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use raft_store::LogIndex;

use super::group::{Context, NodeGroup, Running};
use crate::config::FlushOptions;
use crate::http::{AdminError, FlushMode, FlushStatus};
use crate::raft::Role;
use crate::state_machine::command::{FLUSH_ASYNC, FLUSH_SETTING, FLUSH_SYNC};
use crate::state_machine::{ApplyReply, Command, CommandReply, FlushSetting};

/// Pause before a failed proposal is tried again.
const PROPOSE_RETRY: Duration = Duration::from_millis(200);
/// How long every replica may take to have synced what a change to synchronous asks for.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(20);

/// Keeps the replica's log in the mode of the group, for ever. The first leader of a group makes its own mode the
/// group's.
pub(super) async fn follow(group: &NodeGroup, context: &Context, running: &Running) -> Infallible {
    // What stands in the log at the start has been obeyed before; only what comes behind it is news.
    if let Some(last) = running.recovered.last {
        let _ = running.store.wait_dispatched(last.index.get()).await;
    }
    let mut settings = running.state.flush();
    let mut warned = None;
    loop {
        let setting = *settings.borrow_and_update();
        let Some(FlushSetting { is_sync, said_at }) = setting else {
            say_first(group, running, &mut settings).await;
            continue;
        };
        if is_sync != (context.storage.flush == FlushOptions::Sync) && warned != Some(is_sync) {
            warned = Some(is_sync);
            tracing::warn!(
                group = group.name(),
                "storage.flush in the configuration is another mode than the cluster's, which is {}: the cluster decides; \
                 it is changed by `gantry flush`",
                name(is_sync)
            );
        }
        if is_sync != running.log.flush_is_sync() {
            let log = running.log.clone();
            let changed = tokio::task::spawn_blocking(move || log.set_flush_is_sync(is_sync, LogIndex::new(said_at)));
            match changed.await {
                Ok(Ok(())) => tracing::info!(group = group.name(), mode = name(is_sync), "flush mode changed"),
                // A failed disk ends the replica by itself.
                Ok(Err(error)) => tracing::error!(group = group.name(), %error, "flush mode not changed"),
                Err(error) => tracing::error!(group = group.name(), %error, "changing the flush mode panicked"),
            }
        }
        if settings.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Waits until somebody says how the group flushes; says it itself if it comes to lead before.
async fn say_first(
    group: &NodeGroup,
    running: &Running,
    settings: &mut tokio::sync::watch::Receiver<Option<FlushSetting>>,
) {
    let mut role = running.raft.role();
    let leads = async {
        if role.wait_for(Role::is_ready_leader).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        _ = settings.changed() => return,
        () = leads => {}
    }
    if let Err(error) = propose(running, running.log.flush_is_sync()).await {
        tracing::debug!(group = group.name(), error, "the flush mode is not in the log yet");
        tokio::time::sleep(PROPOSE_RETRY).await;
    }
}

/// Changes the mode of the group from its leader. To synchronous: waits until every replica has synced its log.
pub(super) async fn change(running: &Running, mode: FlushMode) -> Result<FlushStatus, AdminError> {
    let is_sync = mode == FlushMode::Sync;
    let leader = running.raft.role().borrow().leader().map(|(_, member)| member.node.clone());
    if let Some(leader) = leader {
        return Err(AdminError::Conflict(format!("node {leader} leads: ask it")));
    }
    let entry = propose(running, is_sync).await.map_err(AdminError::Unavailable)?;
    let mut waiting_for = Vec::new();
    if is_sync {
        let metrics = running.raft.metrics();
        let others: Vec<_> = metrics.members.iter().filter(|(id, _)| **id != metrics.node_id).collect();
        let waits = others.iter().map(|(id, _)| running.raft.wait_for_member(**id, entry, SETTLE_TIME_MAX));
        let results = futures::future::join_all(waits).await;
        let missing = others.iter().zip(results).filter(|(_, result)| result.is_err());
        waiting_for.extend(missing.map(|((_, member), _)| member.node.clone()));
    }
    Ok(FlushStatus { mode, entry, waiting_for })
}

/// Returns the entry that says so.
async fn propose(running: &Running, is_sync: bool) -> Result<u64, String> {
    let settings = BTreeMap::from([(FLUSH_SETTING.to_owned(), name(is_sync).to_owned())]);
    let command = Command::PutSettings { settings, stamped_ms: running.group.stamp_ms() };
    match running.raft.propose_command(&command).await {
        Ok((ApplyReply::Command { reply: CommandReply::Done, .. }, id)) => Ok(id.index.get()),
        Ok((other, _)) => Err(format!("{other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

fn name(is_sync: bool) -> &'static str {
    if is_sync { FLUSH_SYNC } else { FLUSH_ASYNC }
}
