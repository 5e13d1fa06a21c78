//! The openraft adapter. Thin: what it promises is kept by the writer.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, OnceLock};

use futures::Stream;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::vote::leader_id_std::LeaderId;
use openraft::{OptionalSend, RaftLogReader, RaftTypeConfig};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::durable;
use crate::entry::{Body, BodyKind, LogEntry, Member, Payload};
use crate::error::{Error, Result};
use crate::identity::{self, Evidence, Retired};
use crate::ids::{LogId, LogIndex, RaftLogId};
use crate::options::Options;
use crate::progress::Purged;
use crate::recovery;
use crate::region::{Directory, Files};
use crate::scrub::Scrubber;
use crate::segmented_log::Log;
use crate::stall::{Timed, UnderWay};
use crate::view::{LogView, Shared, StopClass, Vote};
use crate::writer::{self, Op, Queue, Reply, Write};

/// The type configurations this store serves.
pub trait StoreConfig:
    RaftTypeConfig<
        D = Payload,
        NodeId = u64,
        Node = Member,
        Term = u64,
        LeaderId = LeaderId<u64, u64>,
        Vote = openraft::Vote<LeaderId<u64, u64>>,
        Payload = Body,
        Entry = LogEntry,
    >
{
}

impl<C> StoreConfig for C where
    C: RaftTypeConfig<
            D = Payload,
            NodeId = u64,
            Node = Member,
            Term = u64,
            LeaderId = LeaderId<u64, u64>,
            Vote = openraft::Vote<LeaderId<u64, u64>>,
            Payload = Body,
            Entry = LogEntry,
        >
{
}

/// A store that is ready for use.
pub struct Opened<C> {
    /// For `Raft::build`.
    pub storage: LogStorage<C>,
    /// For everything else.
    pub view: LogView,
    /// What was found.
    pub recovered: Recovered,
}

/// What a start found.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// How the store was stopped.
    pub stop: StopClass,
    /// The last entry.
    pub last: Option<LogId>,
    /// The last entry known to be chosen, never above `last`.
    pub committed: Option<LogId>,
    /// The last entry no longer held.
    pub purged: Option<LogId>,
    /// The saved vote.
    pub vote: Option<Vote>,
    /// Names this directory for ever: peers refuse the same node id with another one.
    pub store_uuid: [u8; 16],
    /// How often this store has been started, this start included.
    pub start_counter: u64,
    /// The Raft identity. `None` if it was retired, now or at an earlier start: this replica takes part in nothing
    /// until it has been given another one, see [`LogView::adopt_identity`].
    pub node_id: Option<u64>,
    /// The identities that were retired, oldest first.
    pub retired: Vec<Retired>,
    /// How often the cluster has gone on without its majority, as far as this store knows.
    pub generation: u64,
    /// Whether something behind the end was cut off.
    pub has_cut: bool,
    /// Whether the log ends below what its disk had once: the disk has lost it.
    pub disk_lost_flushed: bool,
    /// What recovery cut off or rewrote, for people.
    pub report: Vec<String>,
}

/// Opens the store in `options.dir`, or creates it if that is allowed.
///
/// On return the log is recovered, what it holds is on disk, and its writer runs. `committed` never
/// exceeds the end of the log, which openraft relies on.
///
/// # Errors
/// A refusal that names what was found and what to do. Nothing has been changed then.
pub fn open<C: StoreConfig>(options: Options) -> Result<Opened<C>> {
    let dir = options.dir.clone();
    if options.may_begin() {
        durable::create_directory(&dir)?;
    } else if !dir.is_dir() {
        return Err(Error::NoStore { dir });
    }
    let lock = identity::lock(&dir)?;
    if !options.allow_unproven_fs {
        identity::check_file_system(&dir)?;
    }
    let mut evidence = identity::evidence(&dir)?;
    if !options.mount_identity {
        evidence.mount_id = 0;
    }
    let directory = Arc::new(Directory::with_budget(dir, Arc::clone(&options.cold_reads)));
    let (report, suspects) = directory.read_notes();
    let files = Arc::clone(&directory) as Arc<dyn Files>;
    let mut opened = open_locked(options, files, evidence, Some(lock))?;
    opened.recovered.report.extend(report);
    // What ended an earlier process may end this one, or come back as other bytes: it is looked for before it is read.
    for base in suspects {
        opened.view.shared.log.look_for_damage(base);
    }
    match directory.make_notes() {
        Ok(true) => opened.view.shared.log.map_again(),
        Ok(false) => {}
        // It tells more about a death by an unreadable page, and nothing rests on it.
        Err(error) => tracing::warn!(%error, "there is no file for notes about unreadable pages"),
    }
    Ok(opened)
}

/// Opens a store on the disk behind `files`.
pub(crate) fn open_locked<C: StoreConfig>(
    options: Options,
    files: Arc<dyn Files>,
    evidence: Evidence,
    lock: Option<identity::DirLock>,
) -> Result<Opened<C>> {
    let (options, layout) = options.check()?;
    let under_way = UnderWay::new();
    let files: Arc<dyn Files> = Timed::new(files, Arc::clone(&under_way));
    let found = recovery::recover(options, layout, files, evidence)?;
    let recovered = {
        let state = found.log.state();
        Recovered {
            stop: found.stop,
            last: state.last,
            committed: state.committed,
            purged: state.purged,
            vote: found.vote,
            store_uuid: found.store_uuid,
            start_counter: found.start_counter,
            node_id: found.node_id,
            retired: found.retired,
            generation: found.generation,
            has_cut: found.has_cut,
            disk_lost_flushed: found.disk_lost_flushed,
            report: found.report,
        }
    };
    let queue = Arc::new(Queue::default());
    let threads = writer::spawn(Arc::clone(&found.log), Arc::clone(&queue), found.start, Arc::clone(&under_way))?;
    let scrub = found.log.options.scrub;
    let scrubber = scrub.map(|scrub| Scrubber::spawn(Arc::clone(&found.log), scrub)).transpose()?;
    let (scrubber, threads) = (Mutex::new(scrubber), Mutex::new(Some(threads)));
    let shared = Arc::new(Shared {
        log: found.log,
        queue,
        scrubber,
        threads,
        lock: Mutex::new(lock),
        stored: OnceLock::new(),
        #[cfg(feature = "faults")]
        under_way,
    });
    let storage = LogStorage { shared: Arc::clone(&shared), _config: PhantomData };
    Ok(Opened { storage, view: LogView { shared }, recovered })
}

/// openraft's log storage.
pub struct LogStorage<C> {
    shared: Arc<Shared>,
    _config: PhantomData<fn() -> C>,
}

/// openraft's log reader. Each overlaps everything else.
pub struct LogReader<C> {
    shared: Arc<Shared>,
    _config: PhantomData<fn() -> C>,
}

/// A half-open range of indexes.
fn bounds(range: &impl RangeBounds<u64>) -> (LogIndex, LogIndex) {
    let from = match range.start_bound() {
        Bound::Included(index) => *index,
        Bound::Excluded(index) => index.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let until = match range.end_bound() {
        Bound::Included(index) => index.saturating_add(1),
        Bound::Excluded(index) => *index,
        Bound::Unbounded => u64::MAX,
    };
    (LogIndex::new(from), LogIndex::new(until))
}

/// Runs a read where it may wait for a disk, and again once what it found damaged has been repaired.
async fn read<T: Send + 'static>(
    log: &Arc<Log>,
    from: LogIndex,
    read: impl Fn(&Log) -> Result<T> + Clone + Send + 'static,
) -> io::Result<T> {
    loop {
        let mut damage = log.damage.subscribe();
        let result = if log.is_cold(from) {
            let (log, read) = (Arc::clone(log), read.clone());
            tokio::task::spawn_blocking(move || read(&log)).await.map_err(io::Error::other)?
        } else {
            read(log)
        };
        match result {
            Err(Error::Damaged { position, .. }) if log.options.repaired => {
                let base = log.layout.segment_base(position);
                let whole = damage.wait_for(|known| known.iter().all(|range| range.base != base)).await;
                whole.map_err(|_| Error::Closed)?;
            }
            result => return Ok(result?),
        }
    }
}

impl<C: StoreConfig> RaftLogReader<C> for LogReader<C> {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<LogEntry>> {
        let (from, until) = bounds(&range);
        read(&self.shared.log, from, move |log| log.read_all(from, until)).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<LogEntry>> {
        let (from, until) = bounds(&(start..end));
        read(&self.shared.log, from, move |log| log.read_some(from, until, log.options.read_bytes_max)).await
    }

    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<LogEntry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, until) = bounds(&range);
        let log = Arc::clone(&self.shared.log);
        let (next, end) = log.held(from, until);
        let state = Streaming { log, next, end, read: VecDeque::new() };
        futures::stream::unfold(state, |mut state| async move { state.next().await.map(|entry| (entry, state)) })
    }

    async fn read_vote(&mut self) -> io::Result<Option<C::Vote>> {
        Ok(self.shared.log.vote().map(to_raft_vote))
    }
}

/// A range that is read piece by piece.
struct Streaming {
    log: Arc<Log>,
    next: LogIndex,
    end: LogIndex,
    read: VecDeque<LogEntry>,
}

impl Streaming {
    async fn next(&mut self) -> Option<io::Result<LogEntry>> {
        if let Some(entry) = self.read.pop_front() {
            return Some(Ok(entry));
        }
        let (from, until) = (self.next, self.end);
        if from >= until {
            return None;
        }
        let entries = read(&self.log, from, move |log| log.read_some(from, until, log.options.read_bytes_max)).await;
        // After an error there is nothing more to say.
        self.next = self.end;
        match entries {
            Err(error) => Some(Err(error)),
            Ok(entries) => match entries.last() {
                None => Some(Err(io::Error::other(format!("entry {from} went away while it was read")))),
                Some(last) => {
                    self.next = last.log_index().next();
                    self.read = entries.into();
                    self.read.pop_front().map(Ok)
                }
            },
        }
    }
}

impl<C: StoreConfig> LogStorage<C> {
    /// Has the writer do something, and waits for it.
    async fn ask(&self, op: impl FnOnce(Reply) -> Op) -> io::Result<()> {
        let (answer, answered) = oneshot::channel();
        let reply = Box::new(move |result| {
            let _ = answer.send(result);
        });
        self.shared.queue.push(op(reply));
        Ok(answered.await.unwrap_or(Err(Error::Closed))?)
    }
}

impl<C: StoreConfig> RaftLogStorage<C> for LogStorage<C> {
    type LogReader = LogReader<C>;

    async fn get_log_state(&mut self) -> io::Result<LogState<C>> {
        let (purged, last) = self.shared.log.purged_and_last();
        Ok(LogState { last_purged_log_id: purged.map(LogId::to_raft), last_log_id: last.map(LogId::to_raft) })
    }

    async fn get_log_reader(&mut self) -> LogReader<C> {
        LogReader { shared: Arc::clone(&self.shared), _config: PhantomData }
    }

    /// On return the vote is on disk, and so is every entry appended before: openraft takes a saved
    /// vote as proof of both.
    async fn save_vote(&mut self, vote: &C::Vote) -> io::Result<()> {
        let vote = Vote { term: vote.leader_id.term, node_id: vote.leader_id.voted_for, committed: vote.committed };
        self.ask(|reply| Op::SaveVote(vote, reply)).await
    }

    /// Awaited by Raft's core before every apply, so it only stores a number.
    async fn save_committed(&mut self, committed: Option<RaftLogId>) -> io::Result<()> {
        Ok(self.shared.log.commit(committed.as_ref().map(LogId::from_raft))?)
    }

    async fn read_committed(&mut self) -> io::Result<Option<RaftLogId>> {
        let state = self.shared.log.state();
        // What a purge implies is the state machine's to know: it has applied it.
        let committed = state.committed.filter(|committed| state.purged.is_none_or(|purged| purged < *committed));
        Ok(committed.map(LogId::to_raft))
    }

    /// # Panics
    /// If the entries would leave a hole in the log.
    async fn append<I>(&mut self, entries: I, callback: IOFlushed<C>) -> io::Result<()>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let log = &self.shared.log;
        let (mut must_sync, mut starts_sync) = (false, None);
        let encoded: Vec<_> = entries
            .into_iter()
            .map(|entry| {
                let (kind, payload) = entry.body.encode();
                must_sync |= kind != BodyKind::Normal || (log.options.must_sync)(&payload);
                if kind == BodyKind::Normal && (log.options.starts_sync)(&payload) {
                    starts_sync = Some(entry.log_index());
                }
                (entry.id(), kind, payload)
            })
            .collect();
        self.shared.queue.room(log.options.queued_bytes_max).await;
        log.reserve(&encoded).await?;
        let last = encoded.last().map(|(id, ..)| id.index);
        let records = log.take(encoded)?;
        // Not by way of the store: the writer must never be the last to hold it.
        let told = self.shared.stored.get().map(Arc::clone);
        let done = Box::new(move |result: io::Result<()>| {
            if let (Ok(()), Some(told), Some(last)) = (&result, told, last) {
                told(last);
            }
            callback.io_completed(result);
        });
        if self.shared.queue.push(Op::Write(Write {
            records,
            must_sync: must_sync || starts_sync.is_some(),
            starts_sync,
            done,
        })) {
            Ok(())
        } else {
            Err(Error::Closed.into())
        }
    }

    async fn truncate_after(&mut self, last: Option<RaftLogId>) -> io::Result<()> {
        let keep = last.map(|last| LogIndex::new(last.index));
        let (_, end) = self.shared.log.purged_and_last();
        if end.is_none_or(|end| keep.is_some_and(|keep| keep >= end.index)) {
            return Ok(());
        }
        self.ask(|reply| Op::Truncate(keep, reply)).await
    }

    /// Readers see it on return. The disk follows: a purge that is lost in a crash only leaves more.
    async fn purge(&mut self, id: RaftLogId) -> io::Result<()> {
        let log = &self.shared.log;
        let id = LogId::from_raft(&id);
        let (purged, last) = log.purged_and_last();
        if purged.is_some_and(|purged| purged.index >= id.index) {
            return Ok(());
        }
        if last.is_some_and(|last| last.index >= id.index) {
            log.hide_through(id);
            self.shared.queue.push(Op::Purge(id));
            return Ok(());
        }
        let resume = log.resume_point_for(id);
        self.ask(|reply| Op::Reset(Purged { id, resume, reset: false }, reply)).await
    }
}

fn to_raft_vote(vote: Vote) -> openraft::Vote<LeaderId<u64, u64>> {
    openraft::Vote { leader_id: LeaderId { term: vote.term, voted_for: vote.node_id }, committed: vote.committed }
}
