//! How openraft reaches the other replicas of the group.
//!
//! A client for replication owns the append stream to its target: one connection for the life of the client, over which
//! sessions follow each other. Each call of `stream_append` is a session with a number of its own. A response that
//! belongs to an older session is skipped, so a session can be abandoned at any point without giving up the connection.
//! The stream that openraft polls does everything itself: it takes requests, writes them, and reads responses, all on
//! the task that polls it; nothing is left behind when it is dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{FutureExt, Stream, StreamExt};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, OptionalSend, RaftNetworkV2};
use raft_store::Member;
use tokio::sync::watch;
use tokio::time::Instant;

use super::catch_up::{CatchUpRate, FarBehind, Pace};
use super::type_config::{RaftVote, SnapshotData, TypeConfig};
use super::wire;
use crate::peer::frame::{Envelope, Frame, FrameWriter, Kind};
use crate::peer::handshake::Class;
use crate::peer::link::CallError;
use crate::peer::stream::PeerStream;
use crate::peer::{Group, Hub, PeerError};

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
type BoxStream<'a, T> = Pin<Box<dyn Stream<Item = T> + Send + 'a>>;
type Snapshot = openraft::alias::SnapshotOf<TypeConfig, SnapshotData>;
type AppendRequest = AppendEntriesRequest<TypeConfig>;
type AppendResult = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>;

/// Requests without a response on one stream; the receiver takes as many.
const IN_FLIGHT_REQUESTS_MAX: usize = 64;
/// Bytes without a response on one stream.
const IN_FLIGHT_BYTES_MAX: usize = 8 << 20;
/// Bytes encoded before they are written: what is ready leaves together.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// Makes the clients of one group.
pub(super) struct Network {
    pub(super) hub: Arc<Hub>,
    pub(super) group: Arc<Group>,
    /// No response for this long while requests are open: the stream is broken.
    pub(super) response_timeout: Duration,
    /// How fast members that are far behind are sent what they lack.
    pub(super) catch_up: Option<Arc<CatchUpRate>>,
    pub(super) far_behind: watch::Receiver<FarBehind>,
}

impl Network {
    fn client(&self, target: u64, class: Class) -> Client {
        Client {
            hub: Arc::clone(&self.hub),
            group: Arc::clone(&self.group),
            target,
            class,
            response_timeout: self.response_timeout,
            breaks: self.group.breaks(target),
            pace: Pace::new(self.catch_up.clone(), self.far_behind.clone(), target),
            connection: None,
            session: 0,
        }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Client;

    async fn new_client(&mut self, target: u64, _node: &Member) -> Client {
        self.client(target, Class::Append)
    }

    async fn new_heartbeat_client(&mut self, target: u64, _node: &Member) -> Client {
        self.client(target, Class::Rpc)
    }

    async fn new_snapshot_client(&mut self, target: u64, _node: &Member) -> Client {
        self.client(target, Class::Snapshot)
    }
}

/// A client for one target and one purpose.
pub(super) struct Client {
    hub: Arc<Hub>,
    group: Arc<Group>,
    target: u64,
    class: Class,
    response_timeout: Duration,
    breaks: watch::Receiver<u64>,
    pace: Pace,
    connection: Option<PeerStream>,
    session: u64,
}

impl Client {
    async fn ask(
        &self,
        class: Class,
        kind: Kind,
        fields: &[u8],
        tail: Vec<Bytes>,
        timeout: Duration,
    ) -> Result<Frame, RPCError<TypeConfig>> {
        let link = self.hub.link(&self.group.identity.group, self.target, class).map_err(unreachable)?;
        link.ask(kind, fields, tail, timeout).await.map_err(|error| match error {
            // Nothing was sent: the target cannot be reached just now.
            CallError::NotSent(_) => unreachable(error),
            CallError::Unknown(_) => network(error),
        })
    }

    async fn heartbeat(&self, request: &AppendRequest, timeout: Duration) -> AppendResult {
        let mut fields = BytesMut::with_capacity(wire::append_fields_bytes(request.entries.len()));
        let tail = wire::put_append(&mut fields, request);
        let answer = self.ask(Class::Rpc, Kind::Heartbeat, &fields, tail, timeout).await?;
        wire::append_result(&answer).map_err(network)
    }

    /// Asks for a vote, or by [`Kind::PreVote`] whether one would be granted.
    async fn ask_for_vote(
        &self,
        kind: Kind,
        request: &VoteRequest<TypeConfig>,
        timeout: Duration,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let mut fields = BytesMut::with_capacity(64);
        wire::put_vote_request(&mut fields, request);
        let answer = self.ask(Class::Rpc, kind, &fields, Vec::new(), timeout).await?;
        wire::vote_response(&answer).map_err(network)
    }
}

impl RaftNetworkV2<TypeConfig> for Client {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        rpc: AppendRequest,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        Ok(self.heartbeat(&rpc, option.hard_ttl()).await?.into())
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, AppendResult>, RPCError<TypeConfig>>>
    where
        S: Stream<Item = AppendRequest> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            if self.class == Class::Rpc {
                // A heartbeat: one request, one response.
                let responses = futures::stream::unfold((&*self, input), move |(client, mut input)| {
                    let timeout = option.hard_ttl();
                    async move {
                        let request = input.next().await?;
                        Some((client.heartbeat(&request, timeout).await, (client, input)))
                    }
                });
                let responses: BoxStream<'s, AppendResult> = Box::pin(responses);
                return Ok(responses);
            }
            // A stop of the stream that was asked for before this session is not meant for it.
            self.breaks.mark_unchanged();
            self.session += 1;
            let envelope = self.group.envelope(&self.hub, self.target);
            let session = Session {
                number: self.session,
                client: self,
                envelope,
                in_flight: Default::default(),
                in_flight_bytes: 0,
                oldest_since: Instant::now(),
                take_after: None,
                input_ended: false,
            };
            let responses = futures::stream::unfold(Some((session, input)), |state| async move {
                let (mut session, mut input) = state?;
                match session.next(&mut input).await {
                    Ok(None) => None,
                    Ok(Some(result)) => {
                        let ended = result.is_err();
                        Some((Ok(result), (!ended).then_some((session, input))))
                    }
                    Err(error) => {
                        session.client.connection = None;
                        Some((Err(error), None))
                    }
                }
            });
            let responses: BoxStream<'s, AppendResult> = Box::pin(responses);
            Ok(responses)
        })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask_for_vote(Kind::Vote, &rpc, option.hard_ttl()).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask_for_vote(Kind::PreVote, &rpc, option.hard_ttl()).await
    }

    async fn full_snapshot(
        &mut self,
        vote: RaftVote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let mut fields = BytesMut::with_capacity(512);
        wire::put_snapshot(&mut fields, &vote, &snapshot.meta);
        let sent = self.ask(Class::Snapshot, Kind::Snapshot, &fields, vec![snapshot.snapshot], option.hard_ttl());
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            answer = sent => {
                let mut fields = answer?.fields();
                let vote = wire::vote(&mut fields).map_err(network)?;
                Ok(SnapshotResponse::new(vote))
            }
        }
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        let mut fields = BytesMut::with_capacity(64);
        wire::put_transfer(&mut fields, &req);
        let answer = self.ask(Class::Rpc, Kind::TransferLeader, &fields, Vec::new(), option.hard_ttl()).await?;
        wire::transfer_response(&answer).map_err(network)
    }
}

/// One run of an append stream.
struct Session<'s> {
    client: &'s mut Client,
    number: u64,
    envelope: Envelope,
    /// Bytes of each request without a response, oldest first.
    in_flight: std::collections::VecDeque<usize>,
    in_flight_bytes: usize,
    /// When the oldest open request became the oldest.
    oldest_since: Instant,
    /// No request is taken before: the target is far behind, and has had its share.
    take_after: Option<Instant>,
    input_ended: bool,
}

impl Session<'_> {
    /// Connects, if need be, once there is a request: openraft's pause after a failure lies in its request stream, so a
    /// target that refuses connections is not dialled in a tight loop.
    async fn connect<S>(&mut self, input: &mut S) -> Result<(), RPCError<TypeConfig>>
    where
        S: Stream<Item = AppendRequest> + Unpin,
    {
        let request = input.next().await;
        if request.is_some() {
            let Client { hub, group, target, connection, .. } = &mut *self.client;
            let (stream, _) = hub.dial_group(group, *target, Class::Append).await.map_err(unreachable)?;
            *connection = Some(stream);
        }
        self.take(request)
    }

    /// The next response; `None` when the input has ended and everything is answered.
    async fn next<S>(&mut self, input: &mut S) -> Result<Option<StreamAppendResult<TypeConfig>>, RPCError<TypeConfig>>
    where
        S: Stream<Item = AppendRequest> + Unpin,
    {
        if self.client.connection.is_none() {
            self.connect(input).await?;
        }
        loop {
            if self.input_ended && self.in_flight.is_empty() {
                return Ok(None);
            }
            if self.take_after.is_some_and(|at| at <= Instant::now()) {
                self.take_after = None;
            }
            let take_after = self.take_after;
            let room = !self.input_ended
                && take_after.is_none()
                && self.in_flight.len() < IN_FLIGHT_REQUESTS_MAX
                && self.in_flight_bytes < IN_FLIGHT_BYTES_MAX;
            let Client { connection, breaks, response_timeout, target, .. } = &mut *self.client;
            let connection = connection.as_mut().ok_or_else(|| network_text("append stream was closed"))?;
            let PeerStream { reader, sender } = connection;
            let deadline = self.oldest_since + *response_timeout;
            tokio::select! {
                biased;
                frame = reader.next() => {
                    let frame = frame.map_err(broken)?;
                    if let Some(result) = self.response(&frame)? {
                        return Ok(Some(result));
                    }
                }
                written = sender.write_some(), if !sender.queue.is_empty() => written.map_err(broken)?,
                request = input.next(), if room && sender.queue.bytes() < WRITE_BYTES_MAX => {
                    self.take(request)?;
                    // What else is ready leaves in the same write.
                    while self.may_take() {
                        let Some(request) = input.next().now_or_never() else { break };
                        self.take(request)?;
                    }
                }
                _ = breaks.changed() => {
                    return Err(network_text(&format!("append stream to node {target} was told to break")));
                }
                () = tokio::time::sleep_until(take_after.unwrap_or(deadline)), if take_after.is_some() => {}
                () = tokio::time::sleep_until(deadline), if !self.in_flight.is_empty() => {
                    return Err(network_text(&format!("node {target} does not answer on its append stream")));
                }
            }
        }
    }

    fn may_take(&self) -> bool {
        !self.input_ended
            && self.take_after.is_none()
            && self.in_flight.len() < IN_FLIGHT_REQUESTS_MAX
            && self.in_flight_bytes < IN_FLIGHT_BYTES_MAX
            && self.client.connection.as_ref().is_some_and(|stream| stream.sender.queue.bytes() < WRITE_BYTES_MAX)
    }

    fn take(&mut self, request: Option<AppendRequest>) -> Result<(), RPCError<TypeConfig>> {
        let Some(request) = request else {
            self.input_ended = true;
            return Ok(());
        };
        let connection = self.client.connection.as_mut().ok_or_else(|| network_text("append stream was closed"))?;
        let queue = &mut connection.sender.queue;
        let before = queue.bytes();
        let fields_bytes = wire::append_fields_bytes(request.entries.len());
        let mut writer = FrameWriter::new(Kind::Append, self.number, &self.envelope, fields_bytes);
        let tail = wire::put_append(writer.fields(), &request);
        queue.push(writer, tail).map_err(network)?;
        let bytes = queue.bytes() - before;
        if self.in_flight.is_empty() {
            self.oldest_since = Instant::now();
        }
        let sent = request.entries.last().map_or(0, |entry| entry.log_index().get());
        self.take_after = self.client.pace.take(Instant::now(), request.entries.len(), sent, bytes);
        self.in_flight.push_back(bytes);
        self.in_flight_bytes += bytes;
        Ok(())
    }

    fn response(&mut self, frame: &Frame) -> Result<Option<StreamAppendResult<TypeConfig>>, RPCError<TypeConfig>> {
        if frame.kind != Kind::Appended || frame.envelope.sender != self.client.target {
            return Err(network_text("a frame that is no response came on an append stream"));
        }
        if frame.sequence != self.number {
            return Ok(None); // an abandoned session's
        }
        let Some(bytes) = self.in_flight.pop_front() else {
            return Err(network_text("a response without a request came on an append stream"));
        };
        self.in_flight_bytes -= bytes;
        self.oldest_since = Instant::now();
        wire::append_result(frame).map(Some).map_err(network)
    }
}

fn unreachable(error: impl std::fmt::Display) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::new(&AnyError::error(error)))
}

fn network(error: impl std::fmt::Display) -> RPCError<TypeConfig> {
    RPCError::Network(NetworkError::new(&AnyError::error(error)))
}

fn network_text(text: &str) -> RPCError<TypeConfig> {
    network(text)
}

/// A connection that ended: the process behind it may be gone, so try again with pauses.
fn broken(error: PeerError) -> RPCError<TypeConfig> {
    unreachable(error)
}
