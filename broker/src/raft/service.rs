//! What this replica does for its peers: appends, votes, snapshots, transfers, notices.

use std::sync::Arc;
use std::time::Duration;

use bytes::BufMut;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use openraft::Raft;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::{AppendEntriesRequest, StreamAppendError, VoteRequest, VoteResponse};
use openraft::storage::RaftStateMachine;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::fitness::{Fitness, Unfit};
use super::replace::Replacing;
use super::room::{Room, StreamRoom};
use super::takeover::{OpenStream, Takeover};
use super::type_config::{SnapshotData, TypeConfig};
use super::wire;
use crate::peer::frame::{Envelope, Frame, FrameWriter, Kind};
use crate::peer::rejoin::ReplaceRequest;
use crate::peer::service::{Answer, GroupService};
use crate::peer::stream::{FrameReader, PeerStream};
use crate::peer::{FrameError, LogMark, PeerError, VoteMark};

/// A term this far above ours comes from a disturbed node, and is believed only if a pre-vote would be.
const TERM_JUMP_MAX: u64 = 1_000;

/// Answers peers on behalf of one replica.
pub(super) struct Service<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> {
    pub(super) raft: Raft<TypeConfig, SM>,
    pub(super) takeover: Arc<Takeover<SM>>,
    pub(super) silence: Silence,
    /// Told to those who would hand leadership over.
    pub(super) fitness: Arc<Fitness>,
    pub(super) replacing: Arc<Replacing<SM>>,
    /// When a leader was last heard, and believed.
    pub(super) heard: Arc<Heard>,
    /// Whether there is room for what a leader sends.
    pub(super) room: Arc<Room>,
}

/// When a leader was last heard. A saved vote names one that may be long gone.
#[derive(Debug, Default)]
pub(super) struct Heard(parking_lot::Mutex<Option<Instant>>);

impl Heard {
    fn note(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    pub(super) fn within(&self, time: Duration) -> bool {
        self.0.lock().is_some_and(|at| at.elapsed() < time)
    }
}

/// When a restarted replica begins to vote.
///
/// A replica remembers its vote but not when it last heard its leader, so right after a restart it would help to depose
/// a leader that is alive. It therefore grants no vote and no pre-vote until one election time-out after its start.
/// Votes for an election that the leader itself or a majority's proof of its death has authorised are excepted: the
/// vote rule alone keeps them safe, and nothing here relies on a lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    until: Option<Instant>,
}

impl Silence {
    /// `started` is the start of the process; `restarted` whether the replica had state then.
    pub(super) fn new(started: Instant, restarted: bool, election_timeout_max: Duration) -> Self {
        Self { until: restarted.then(|| started + election_timeout_max) }
    }

    fn holds(&self, request: &VoteRequest<TypeConfig>) -> bool {
        !request.leadership_transfer && self.until.is_some_and(|until| Instant::now() < until)
    }
}

impl<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> Service<SM> {
    async fn serve(&self, frame: Frame) -> Result<Answer, String> {
        let mut answer = Answer::default();
        let out = &mut answer.fields;
        match frame.kind {
            Kind::Heartbeat => {
                let request = wire::append(frame).map_err(text)?;
                let prev = request.prev_log_id;
                let last = request.entries.last().map(|entry| entry.id().to_raft()).or(prev);
                let response = self.raft.append_entries(request).await.map_err(text)?;
                let result = response.into_stream_result(prev, last);
                if !matches!(result, Err(StreamAppendError::HigherVote(_))) {
                    self.heard.note();
                }
                wire::put_append_result(out, &result);
            }
            Kind::Vote => {
                let request = wire::vote_request(&frame).map_err(text)?;
                let response = match self.refuse_vote(&request, frame.envelope.sender) {
                    Some(refused) => refused,
                    None => self.raft.vote(request).await.map_err(text)?,
                };
                wire::put_vote_response(out, &response);
            }
            Kind::PreVote => {
                let request = wire::vote_request(&frame).map_err(text)?;
                let response = match self.silence.holds(&request) {
                    true => self.no_vote(),
                    false => self.raft.pre_vote(request).await.map_err(text)?,
                };
                wire::put_vote_response(out, &response);
            }
            Kind::TransferLeader => {
                let request = wire::transfer(&frame).map_err(text)?;
                if self.fitness.has(Unfit::Damaged) && *request.to_node_id() == frame.envelope.target {
                    return Err("this replica's log is damaged".to_owned());
                }
                let response = self.raft.handle_transfer_leader(request).await.map_err(text)?;
                wire::put_transfer_response(out, &response);
            }
            Kind::Snapshot => {
                let (vote, snapshot) = wire::snapshot(frame).map_err(text)?;
                let response = self.raft.install_full_snapshot(vote, snapshot).await.map_err(text)?;
                wire::put_vote(out, &response.vote);
            }
            Kind::DeathNotice => {
                let notice = wire::death_notice(&frame).map_err(text)?;
                let ours = self.takeover.noticed(frame.envelope.sender, notice);
                wire::put_death_notice(out, &ours);
            }
            Kind::WouldLead => out.put_u8(u8::from(self.fitness.would_lead())),
            kind => return Err(format!("{kind:?} is no call to a replica")),
        }
        Ok(answer)
    }

    fn refuse_vote(&self, request: &VoteRequest<TypeConfig>, sender: u64) -> Option<VoteResponse<TypeConfig>> {
        let term = self.raft.metrics().borrow_watched().current_term;
        if request.vote.leader_id.term > term.saturating_add(TERM_JUMP_MAX) {
            tracing::error!(sender, term, asked = request.vote.leader_id.term, "vote for an absurd term refused");
            return Some(self.no_vote());
        }
        self.silence.holds(request).then(|| self.no_vote())
    }

    fn no_vote(&self) -> VoteResponse<TypeConfig> {
        let last = self.raft.data_metrics().borrow_watched().last_log;
        let vote = self.raft.metrics().borrow_watched().vote;
        VoteResponse::new(vote, last, false)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl<SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>> GroupService for Service<SM> {
    fn marks(&self) -> (Option<LogMark>, Option<VoteMark>) {
        let last = self.raft.data_metrics().borrow_watched().last_log;
        let vote = self.raft.metrics().borrow_watched().vote;
        (last.as_ref().map(wire::log_to_mark), Some(wire::vote_to_mark(&vote)))
    }

    fn call(self: Arc<Self>, frame: Frame) -> BoxFuture<'static, Result<Answer, String>> {
        async move { self.serve(frame).await }.boxed()
    }

    fn replace(self: Arc<Self>, node: String, frame: Frame) -> BoxFuture<'static, Result<Answer, String>> {
        async move {
            let request = ReplaceRequest::decode(&frame).map_err(text)?;
            let mut answer = Answer::default();
            self.replacing.step(&node, request).await?.encode(&mut answer.fields);
            Ok(answer)
        }
        .boxed()
    }

    fn serve_append(self: Arc<Self>, stream: PeerStream, envelope: Envelope) -> BoxFuture<'static, PeerError> {
        async move {
            match serve_append(&self.raft, stream, &envelope, self.takeover.stream_opened(), self.room.stream()).await {
                Ok(()) => PeerError::Closed,
                Err(error) => error,
            }
        }
        .boxed()
    }

    fn peer_gone(self: Arc<Self>, node: &str) {
        self.takeover.peer_gone(node);
    }

    fn peer_back(self: Arc<Self>, node: &str) {
        self.takeover.peer_back(node);
    }
}

/// The reading half of an append stream, handed from session to session.
struct Input {
    reader: FrameReader,
    envelope: Envelope,
    /// First frame of the next session, read by the one before.
    stashed: Option<Frame>,
    ended: Option<PeerError>,
    /// Dropped when everything that arrived has been handed to Raft.
    open: Option<OpenStream>,
    room: StreamRoom,
}

impl Input {
    /// The next request of session `number`. `None` when another session begins, the connection ends, or the session is
    /// `abandoned`.
    async fn next(&mut self, number: u64, abandoned: &CancellationToken) -> Option<AppendEntriesRequest<TypeConfig>> {
        let frame = match self.stashed.take() {
            Some(frame) => frame,
            None => match abandoned.run_until_cancelled(self.reader.next()).await? {
                Ok(frame) => frame,
                Err(error) => {
                    self.ended = Some(error);
                    self.open = None;
                    return None;
                }
            },
        };
        if number != frame.sequence {
            self.stashed = Some(frame);
            return None;
        }
        match self.decode(frame) {
            Ok(request) => {
                abandoned.run_until_cancelled(self.room.admit(&request)).await?;
                Some(request)
            }
            Err(error) => {
                self.ended = Some(error.into());
                None
            }
        }
    }

    fn decode(&self, frame: Frame) -> Result<AppendEntriesRequest<TypeConfig>, FrameError> {
        let expected = Envelope { sender: self.envelope.target, target: self.envelope.sender, ..self.envelope.clone() };
        if frame.kind != Kind::Append || frame.envelope != expected {
            return Err(FrameError::Field("envelope of an append"));
        }
        wire::append(frame)
    }
}

/// Feeds the requests of an append stream to Raft and writes the responses, in order, coalesced.
///
/// Each session becomes one stream of openraft. A session ends with an error of its own (a conflict, a higher vote) or
/// when the leader begins another one; its remaining requests are then skipped.
async fn serve_append<SM>(
    raft: &Raft<TypeConfig, SM>,
    stream: PeerStream,
    envelope: &Envelope,
    open: OpenStream,
    room: StreamRoom,
) -> Result<(), PeerError>
where
    SM: RaftStateMachine<TypeConfig, SnapshotData = SnapshotData>,
{
    let PeerStream { reader, mut sender } = stream;
    let input = Arc::new(Mutex::new(Input {
        reader,
        envelope: envelope.clone(),
        stashed: None,
        ended: None,
        open: Some(open),
        room,
    }));
    let mut skip: Option<u64> = None;
    loop {
        // Waits for the session before to let go of the reader.
        let mut guard = Arc::clone(&input).lock_owned().await;
        if let Some(error) = guard.ended.take() {
            return Err(error);
        }
        let first = match guard.stashed.take() {
            Some(frame) => frame,
            None => guard.reader.next().await?,
        };
        if Some(first.sequence) == skip {
            continue;
        }
        let number = first.sequence;
        guard.stashed = Some(first);
        // Raft reads the requests on a task of its own, which this ends together with the session.
        let abandoned = CancellationToken::new();
        let requests = futures::stream::unfold(
            (guard, abandoned.clone()),
            move |(mut guard, abandoned): (OwnedMutexGuard<Input>, CancellationToken)| async move {
                let request = guard.next(number, &abandoned).await?;
                Some((request, (guard, abandoned)))
            },
        );
        let _abandon = abandoned.drop_guard();
        let mut responses = std::pin::pin!(raft.stream_append(requests).fuse());
        let mut next = responses.next().await;
        loop {
            let mut failed = false;
            // Everything that is answered by now leaves in one write.
            while let Some(response) = next.take() {
                let result = response.map_err(|fatal| PeerError::Unavailable(fatal.to_string()))?;
                failed |= result.is_err();
                let mut writer = FrameWriter::new(Kind::Appended, number, envelope, 24);
                wire::put_append_result(writer.fields(), &result);
                sender.queue.push(writer, Vec::new())?;
                if failed {
                    break;
                }
                match responses.next().now_or_never() {
                    Some(ready) => next = ready,
                    None => break,
                }
            }
            sender.flush().await?;
            if failed {
                // The rest of the session answers nothing that the leader still waits for.
                skip = Some(number);
                break;
            }
            next = responses.next().await;
            if next.is_none() {
                break;
            }
        }
    }
}
