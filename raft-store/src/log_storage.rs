//! The openraft adapter. Thin: what it promises is kept by the writer.

use std::fmt::Debug;
use std::io;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use futures::Stream;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::vote::leader_id_std::LeaderId;
use openraft::{OptionalSend, RaftLogReader, RaftTypeConfig};

use crate::entry::{Body, LogEntry, Member, Payload};
use crate::error::{Error, Result};
use crate::ids::{LogId, RaftLogId};
use crate::options::Options;
use crate::view::{LogView, StopClass, Vote};

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
    let (options, _layout) = options.check()?;
    Err(Error::NoStore { dir: options.dir })
}

/// openraft's log storage.
pub struct LogStorage<C> {
    _config: PhantomData<fn() -> C>,
}

/// openraft's log reader. Each overlaps everything else.
pub struct LogReader<C> {
    _config: PhantomData<fn() -> C>,
}

impl<C: StoreConfig> RaftLogReader<C> for LogReader<C> {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        _range: RB,
    ) -> io::Result<Vec<LogEntry>> {
        Err(Error::Closed.into())
    }

    async fn entries_stream<RB>(&mut self, _range: RB) -> impl Stream<Item = io::Result<LogEntry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        futures::stream::empty()
    }

    async fn read_vote(&mut self) -> io::Result<Option<C::Vote>> {
        Err(Error::Closed.into())
    }
}

impl<C: StoreConfig> RaftLogStorage<C> for LogStorage<C> {
    type LogReader = LogReader<C>;

    async fn get_log_state(&mut self) -> io::Result<LogState<C>> {
        Err(Error::Closed.into())
    }

    async fn get_log_reader(&mut self) -> LogReader<C> {
        LogReader { _config: PhantomData }
    }

    async fn save_vote(&mut self, _vote: &C::Vote) -> io::Result<()> {
        Err(Error::Closed.into())
    }

    async fn append<I>(&mut self, _entries: I, _callback: IOFlushed<C>) -> io::Result<()>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        Err(Error::Closed.into())
    }

    async fn truncate_after(&mut self, _last: Option<RaftLogId>) -> io::Result<()> {
        Err(Error::Closed.into())
    }

    async fn purge(&mut self, _id: RaftLogId) -> io::Result<()> {
        Err(Error::Closed.into())
    }
}
