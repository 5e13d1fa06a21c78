//! When a replica has failed for good.

use raft_store::Health;

use super::group::Running;

/// Resolves when the replica's log has latched or its Raft has stopped by itself, and says why.
pub(super) async fn of(running: &Running) -> String {
    let mut health = running.log.health();
    let latched = async {
        loop {
            if let Health::Latched { reason } = &*health.borrow_and_update() {
                return reason.clone();
            }
            if health.changed().await.is_err() {
                break;
            }
        }
        // The log was closed in order.
        std::future::pending().await
    };
    tokio::select! {
        reason = latched => reason,
        reason = running.raft.stopped() => reason,
    }
}
