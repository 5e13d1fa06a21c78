//! Compares the digests of sealed segments with another member, once a day.
//!
//! The bytes of a segment are the same on every replica, and so are the digests in its footer. Scrubbing tells whether a
//! segment still is what it was when it was closed; this tells whether two replicas closed the same one. If they did not,
//! no disk is to blame: whoever runs the cluster must know, and nothing is repaired by guessing.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use raft_store::{LogPosition, LogView};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::repair::Peers;

/// From one comparison to the next.
const INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// The first one leaves a starting node alone.
const FIRST_AFTER: Duration = Duration::from_secs(600);
/// The bytes that one digest stands for, the last one of a segment perhaps for less.
const CHUNK_BYTES: u64 = 1 << 20;
const DIGEST_BYTES: usize = 32;

/// A part of the log that differs between two replicas, although each has what it closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The other member.
    pub(crate) peer: u64,
    /// The part.
    pub(crate) from: LogPosition,
    pub(crate) to: LogPosition,
}

/// How the comparisons of one replica go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Compared {
    /// Segments compared since the start of the process.
    pub(crate) segments: u64,
    /// What differed in the last comparison.
    pub(crate) differences: Vec<Difference>,
    /// When the last one ended, in milliseconds since 1970.
    pub(crate) last_ms: Option<u64>,
}

/// Compares again and again until it is shut down.
pub(crate) struct Comparer {
    compared: watch::Receiver<Compared>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Comparer {
    pub(crate) fn start(group: String, log: LogView, peers: Peers) -> Self {
        let (sender, compared) = watch::channel(Compared::default());
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let stopped = stop.clone();
        tasks.spawn(async move {
            let _ = stopped.run_until_cancelled(run(group, log, peers, sender)).await;
        });
        Self { compared, stop, tasks }
    }

    pub(crate) fn compared(&self) -> Compared {
        self.compared.borrow().clone()
    }

    pub(crate) async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

async fn run(group: String, log: LogView, peers: Peers, compared: watch::Sender<Compared>) {
    tokio::time::sleep(FIRST_AFTER).await;
    for pass in 0.. {
        if let Some((segments, differences)) = compare(&group, &log, &peers, pass).await {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            compared.send_modify(|compared| {
                compared.segments += segments;
                compared.differences = differences;
                compared.last_ms = u64::try_from(since.as_millis()).ok();
            });
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Compares all sealed segments that have digests on both sides with one other member: each pass with the next one.
/// Returns how many, and what differs; nothing if nobody is there to compare with.
pub(crate) async fn compare(group: &str, log: &LogView, peers: &Peers, pass: usize) -> Option<(u64, Vec<Difference>)> {
    let others = peers.others();
    let peer = *others.get(pass.checked_rem(others.len())?)?;
    let (mut segments, mut differences) = (0, Vec::new());
    for sealed in log.sealed_segments() {
        let (view, base) = (log.clone(), sealed.base);
        let Ok(Ok(Some(ours))) = tokio::task::spawn_blocking(move || view.digests(base)).await else { continue };
        let theirs = match peers.digests(peer, base).await {
            Ok(theirs) => theirs,
            Err(error) => {
                tracing::warn!(group, peer, error, "digests are not compared");
                break;
            }
        };
        // It has dropped the segment, or not digested it yet.
        if theirs.is_empty() {
            continue;
        }
        segments += 1;
        let theirs = theirs.chunks(DIGEST_BYTES);
        for (chunk, _) in (0..).zip(ours.iter().map(|digest| &digest[..]).zip(theirs)).filter(|(_, (a, b))| a != b) {
            let from = base.plus(chunk * CHUNK_BYTES);
            let to = from.plus(CHUNK_BYTES).min(base.plus(log.segment_bytes()));
            tracing::error!(group, peer, %from, %to, "this part of the log is another one on another node");
            differences.push(Difference { peer, from, to });
        }
    }
    Some((segments, differences))
}

/// For a peer that compares: the digests of a segment, one after the other; nothing if there are none.
pub(super) fn serve(log: &LogView, base: LogPosition) -> raft_store::Result<Vec<u8>> {
    Ok(log.digests(base)?.map_or_else(Vec::new, |digests| digests.concat()))
}
