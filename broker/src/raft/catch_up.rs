//! Catching up without getting in the way: what a replica that is far behind may be sent, and how fast.
//!
//! A new replica reads the whole log from the leader. Sent as fast as it goes, that takes disk, network and processor
//! away from producers. So append streams to members that are far behind share a rate, on top of what the log grows by:
//! they come closer at that rate however much is being written. A member without which there would be no majority is
//! not slowed down: writes wait for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use openraft::metrics::RaftMetrics;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::type_config::TypeConfig;

/// A member that lacks more entries than this is far behind.
pub const FAR_BEHIND_ENTRIES: u64 = 1000;

/// The rate that all streams of a node to members far behind share.
#[derive(Debug)]
pub struct CatchUpRate {
    bytes_per_second: u64,
    /// When what was taken so far has been paid for.
    free_at: Mutex<Option<Instant>>,
}

impl CatchUpRate {
    /// A rate above zero.
    #[must_use]
    pub fn new(bytes_per_second: u64) -> Self {
        assert!(bytes_per_second > 0, "a rate of nothing would never end");
        Self { bytes_per_second, free_at: Mutex::new(None) }
    }

    /// Takes so many bytes at `now`; says when the taker may take again.
    fn take(&self, now: Instant, bytes: u64) -> Instant {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let mut free_at = self.free_at.lock();
        let after = free_at.map_or(now, |free_at| free_at.max(now)) + cost;
        *free_at = Some(after);
        after
    }
}

/// Who is far behind, as the replica's watcher last saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FarBehind {
    /// The members that are slowed down.
    pub(super) members: BTreeSet<u64>,
    /// All members that were looked at; none unless this replica leads.
    pub(super) known: BTreeSet<u64>,
    /// The last entry of the log.
    pub(super) last: u64,
}

impl FarBehind {
    pub(super) fn of(metrics: &RaftMetrics<TypeConfig>) -> Self {
        let last = metrics.last_log_index.unwrap_or(0);
        let Some(replication) = metrics.replication.as_ref().filter(|_| metrics.state.is_leader()) else {
            return Self { last, ..Self::default() };
        };
        let is_close = |id: &u64| {
            let next = replication.get(id).copied().flatten().map_or(0, |id| id.index() + 1);
            *id == metrics.id || next + FAR_BEHIND_ENTRIES > last
        };
        let configs = metrics.membership_config.membership().get_joint_config();
        let can_do_without = |id: &u64| {
            let has_majority = |voters: &BTreeSet<u64>| {
                let close = voters.iter().filter(|voter| *voter != id && is_close(voter)).count();
                !voters.contains(id) || close > voters.len() / 2
            };
            configs.iter().all(has_majority)
        };
        let members = replication.keys().filter(|id| !is_close(id) && can_do_without(id)).copied().collect();
        Self { members, known: replication.keys().copied().collect(), last }
    }

    /// Whether a member is far behind that is being sent entries up to `sent`.
    ///
    /// One that has come since the others were looked at is new, so nobody waits for it.
    fn includes(&self, member: u64, sent: u64) -> bool {
        let is_new = !self.known.is_empty() && !self.known.contains(&member);
        self.members.contains(&member) || is_new && sent + FAR_BEHIND_ENTRIES <= self.last
    }
}

/// Slows one append stream down while its target is far behind.
#[derive(Debug)]
pub(super) struct Pace {
    rate: Option<Arc<CatchUpRate>>,
    far_behind: watch::Receiver<FarBehind>,
    target: u64,
    /// The last entry of the log when the stream took last.
    seen: Option<u64>,
}

impl Pace {
    pub(super) fn new(rate: Option<Arc<CatchUpRate>>, far_behind: watch::Receiver<FarBehind>, target: u64) -> Self {
        Self { rate, far_behind, target, seen: None }
    }

    /// The stream takes a request of so many bytes, with so many entries up to the one at `sent`; says until when it takes
    /// no more.
    pub(super) fn take(&mut self, now: Instant, entries: usize, sent: u64, bytes: usize) -> Option<Instant> {
        let rate = self.rate.as_ref()?;
        let last = {
            let far_behind = self.far_behind.borrow();
            far_behind.includes(self.target, sent).then_some(far_behind.last)
        };
        let Some(last) = last else {
            self.seen = None;
            return None;
        };
        let entries = entries as u64;
        let grown = last.saturating_sub(self.seen.replace(last).unwrap_or(last)).min(entries);
        // What the log grew by meanwhile is free.
        let charged = bytes as u64 * (entries - grown) / entries.max(1);
        Some(rate.take(now, charged))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::peer::LogMark;
    use crate::raft::wire::log_from_mark;

    /// Node 1 leads with entries up to 9999; others have entries up to those given. Voters are 1 to `voters`.
    #[track_caller]
    fn check_slowed(voters: u64, matched: &[(u64, Option<u64>)], expected: &[u64]) {
        let mut metrics = RaftMetrics::<TypeConfig>::new_initial(1);
        metrics.state = openraft::ServerState::Leader;
        metrics.last_log_index = Some(9999);
        let nodes: BTreeMap<u64, raft_store::Member> =
            (1..=voters).chain(matched.iter().map(|(id, _)| *id)).map(|id| (id, Default::default())).collect();
        let membership = openraft::Membership::new(vec![(1..=voters).collect()], nodes).unwrap();
        metrics.membership_config = Arc::new(openraft::StoredMembership::new(None, membership));
        let at = |index: Option<u64>| index.map(|index| log_from_mark(LogMark { term: 1, index }));
        metrics.replication = Some(matched.iter().map(|(id, index)| (*id, at(*index))).collect());
        let slowed = FarBehind::of(&metrics);
        assert_eq!(slowed.members, expected.iter().copied().collect(), "{matched:?}");
        assert_eq!(slowed.last, 9999);
        metrics.state = openraft::ServerState::Follower;
        assert!(FarBehind::of(&metrics).members.is_empty());
    }

    #[test]
    fn who_is_far_behind_is_slowed_down_unless_writes_wait_for_it() {
        check_slowed(3, &[(2, Some(9999)), (3, Some(9000)), (4, None)], &[4]);
        check_slowed(3, &[(2, Some(9999)), (3, Some(8000)), (4, Some(9990))], &[3]);
        check_slowed(3, &[(2, None), (3, Some(8000)), (4, Some(8998))], &[4]);
        check_slowed(5, &[(2, Some(9999)), (3, Some(9998)), (4, Some(5)), (5, Some(5))], &[4, 5]);
        check_slowed(5, &[(2, Some(9999)), (3, Some(5)), (4, Some(5)), (5, Some(5))], &[]);
        check_slowed(1, &[(2, None)], &[2]);
    }

    #[tokio::test(start_paused = true)]
    async fn streams_share_the_rate() {
        let rate = CatchUpRate::new(1000);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(rate.take(start, 2000), at(2));
        assert_eq!(rate.take(start, 1000), at(3), "another stream waits behind the first");
        assert_eq!(rate.take(at(2), 1000), at(4));
        assert_eq!(rate.take(at(10), 1000), at(11), "what was not taken is not saved up");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slowed_stream_comes_closer_however_much_is_written() {
        let known = BTreeSet::from([1, 2, 3, 4]);
        let far_behind = |members: &[u64], last| {
            let members = members.iter().copied().collect();
            FarBehind { members, known: known.clone(), last }
        };
        let (seen, watched) = watch::channel(far_behind(&[], 100));
        let mut pace = Pace::new(Some(Arc::new(CatchUpRate::new(1000))), watched.clone(), 4);
        let start = Instant::now();
        assert_eq!(pace.take(start, 10, 50, 10_000), None, "not far behind");
        seen.send_replace(far_behind(&[4], 100));
        assert_eq!(pace.take(start, 10, 50, 10_000), Some(start + Duration::from_secs(10)));
        // Four entries were written meanwhile.
        seen.send_replace(far_behind(&[4], 104));
        let next = start + Duration::from_secs(10);
        assert_eq!(pace.take(next, 10, 50, 10_000), Some(next + Duration::from_secs(6)));
        // More than it took: all of it was free.
        seen.send_replace(far_behind(&[4], 200));
        let next = start + Duration::from_secs(16);
        assert_eq!(pace.take(next, 10, 50, 10_000), Some(next));
        seen.send_replace(far_behind(&[3], 300));
        assert_eq!(pace.take(next, 10, 50, 10_000), None);
        assert_eq!(Pace::new(None, watched, 3).take(next, 10, 50, 10_000), None, "no rate is set");
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_that_has_just_come_is_slowed_down_before_anybody_has_looked_at_it() {
        let start = Instant::now();
        let take = |known: &[u64], sent| {
            let far_behind = FarBehind { members: BTreeSet::new(), known: known.iter().copied().collect(), last: 5000 };
            let mut pace = Pace::new(Some(Arc::new(CatchUpRate::new(1000))), watch::channel(far_behind).1, 4);
            pace.take(start, 10, sent, 10_000)
        };
        assert_eq!(take(&[1, 2, 3], 9), Some(start + Duration::from_secs(10)));
        assert_eq!(take(&[1, 2, 3], 4001), None, "close enough");
        assert_eq!(take(&[1, 2, 3, 4], 9), None, "writes may wait for it");
        assert_eq!(take(&[], 9), None, "nobody was looked at: writes may wait for it");
    }
}
