//! A log in memory that outlives its replica, and a state machine that remembers what it applied.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::{Stream, TryStreamExt};
use openraft::alias::{SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, IOFlushed, LogState, RaftLogStorage, RaftStateMachine};
use openraft::{OptionalSend, RaftLogReader, RaftSnapshotBuilder};
use parking_lot::Mutex;
use raft_store::{Body, LogEntry};
use tokio::sync::watch;

use crate::raft::{RaftLogId, RaftVote, SnapshotData, TypeConfig};
use crate::state_machine::{Appended, ApplyReply, MessageOutcome, PackReply};

#[derive(Default)]
struct Log {
    entries: BTreeMap<u64, LogEntry>,
    last: Option<RaftLogId>,
    purged: Option<RaftLogId>,
    vote: Option<RaftVote>,
}

/// Shared by all handles, so a replica that starts again finds what it had.
#[derive(Clone, Default)]
pub(crate) struct MemLog(Arc<Mutex<Log>>);

impl MemLog {
    pub(crate) fn entries(&self) -> Vec<LogEntry> {
        self.0.lock().entries.values().cloned().collect()
    }
}

impl RaftLogReader<TypeConfig> for MemLog {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<LogEntry>> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start + 1,
            Bound::Unbounded => 0,
        };
        let log = self.0.lock();
        if log.purged.is_some_and(|purged| start <= purged.index) {
            return Ok(Vec::new());
        }
        Ok(log.entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> io::Result<Option<RaftVote>> {
        Ok(self.0.lock().vote)
    }
}

impl RaftLogStorage<TypeConfig> for MemLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let log = self.0.lock();
        Ok(LogState { last_purged_log_id: log.purged, last_log_id: log.last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &RaftVote) -> io::Result<()> {
        self.0.lock().vote = Some(*vote);
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        {
            let mut log = self.0.lock();
            for entry in entries {
                let next = log.last.map_or(0, |last| last.index + 1);
                assert_eq!(entry.index(), next, "an append with a hole");
                log.last = Some(entry.id().to_raft());
                log.entries.insert(entry.index(), entry);
            }
        }
        callback.io_completed(Ok(()));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<RaftLogId>) -> io::Result<()> {
        let mut log = self.0.lock();
        log.entries.split_off(&last.map_or(0, |last| last.index + 1));
        log.last = last;
        Ok(())
    }

    async fn purge(&mut self, upto: RaftLogId) -> io::Result<()> {
        let mut log = self.0.lock();
        log.entries = log.entries.split_off(&(upto.index + 1));
        log.purged = Some(upto);
        log.last = log.last.max(Some(upto));
        Ok(())
    }
}

#[derive(Default)]
struct Applied {
    last: Option<RaftLogId>,
    membership: StoredMembershipOf<TypeConfig>,
    records: Vec<u64>,
    snapshot: Option<(SnapshotMetaOf<TypeConfig>, Bytes)>,
}

/// Remembers the ids of the records it applied, in order. A record is its size (u32), its id (u64), and filling.
#[derive(Clone)]
pub(crate) struct MemState {
    applied: Arc<Mutex<Applied>>,
    progress: watch::Sender<usize>,
}

impl Default for MemState {
    fn default() -> Self {
        Self { applied: Arc::default(), progress: watch::Sender::new(0) }
    }
}

pub(crate) fn record(id: u64, bytes: usize) -> Bytes {
    let mut record = BytesMut::with_capacity(bytes.max(12));
    record.put_u32(bytes.max(12) as u32);
    record.put_u64(id);
    record.resize(bytes.max(12), 7);
    record.freeze()
}

impl MemState {
    pub(crate) fn records(&self) -> Vec<u64> {
        self.applied.lock().records.clone()
    }

    /// Waits until `count` records are applied.
    pub(crate) async fn wait_for(&self, count: usize) {
        self.progress.subscribe().wait_for(|records| *records >= count).await.unwrap();
    }

    fn apply_payload(applied: &mut Applied, mut payload: Bytes) -> ApplyReply {
        let mut outcomes = Vec::new();
        while payload.len() >= 12 {
            let size = payload.get_u32() as usize;
            let id = payload.get_u64();
            payload.advance(size - 12);
            let queue_offset = applied.records.len() as u64;
            applied.records.push(id);
            outcomes.push(MessageOutcome::Appended(Appended { queue_offset, physical_offset: id }));
        }
        ApplyReply::Pack(PackReply { outcomes })
    }

    fn encode(applied: &Applied) -> Bytes {
        let mut out = BytesMut::new();
        applied.records.iter().for_each(|id| out.put_u64(*id));
        out.freeze()
    }
}

impl RaftSnapshotBuilder<TypeConfig> for MemState {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, SnapshotData>> {
        let mut applied = self.applied.lock();
        let meta =
            SnapshotMetaOf::<TypeConfig> { last_log_id: applied.last, last_membership: applied.membership.clone() };
        let snapshot = Self::encode(&applied);
        applied.snapshot = Some((meta.clone(), snapshot.clone()));
        Ok(SnapshotOf::<TypeConfig, SnapshotData> { meta, snapshot })
    }
}

impl RaftStateMachine<TypeConfig> for MemState {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<RaftLogId>, StoredMembershipOf<TypeConfig>)> {
        let applied = self.applied.lock();
        Ok((applied.last, applied.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let reply = {
                let mut applied = self.applied.lock();
                assert_eq!(entry.index(), applied.last.map_or(0, |last| last.index + 1), "an entry is not the next");
                applied.last = Some(entry.id().to_raft());
                match &entry.body {
                    Body::Blank => ApplyReply::None,
                    Body::Membership(membership) => {
                        applied.membership =
                            openraft::StoredMembership::new(Some(entry.id().to_raft()), membership.clone());
                        ApplyReply::None
                    }
                    Body::Normal(payload) => Self::apply_payload(&mut applied, payload.0.clone()),
                }
            };
            let count = self.applied.lock().records.len();
            self.progress.send_replace(count);
            if let Some(responder) = responder {
                responder.send(reply);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMetaOf<TypeConfig>, snapshot: Bytes) -> io::Result<()> {
        let count = {
            let mut applied = self.applied.lock();
            applied.last = meta.last_log_id;
            applied.membership = meta.last_membership.clone();
            applied.records = snapshot.chunks(8).map(|id| u64::from_be_bytes(id.try_into().unwrap())).collect();
            applied.snapshot = Some((meta.clone(), snapshot));
            applied.records.len()
        };
        self.progress.send_replace(count);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<TypeConfig, SnapshotData>>> {
        let snapshot = self.applied.lock().snapshot.clone();
        Ok(snapshot.map(|(meta, snapshot)| SnapshotOf::<TypeConfig, SnapshotData> { meta, snapshot }))
    }
}
