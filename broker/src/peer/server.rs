//! The accepting side: admits peers, then hands their frames to the group they are for.

use std::sync::Arc;
use std::time::Duration;

use bytes::BufMut;
use tokio::net::{TcpListener, TcpStream};

use super::admin;
use super::error::PeerError;
use super::forward::{self, ForwardReply, Forwarder};
use super::frame::{Envelope, Frame, FrameWriter, Kind, put_text};
use super::handshake::{Class, Greeting, Outcast};
use super::join::JoinRequest;
use super::link::put_failure;
use super::outbox::Outbox;
use super::range;
use super::service::Answer;
use super::stream::PeerStream;
use super::{Group, HANDSHAKE_TIMEOUT, Hub, chunk_bytes};

/// After a failed accept: long enough not to spin when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that have not introduced themselves yet.
const GREETING_CONNECTIONS_MAX: usize = 256;

/// Why a peer is turned away.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// It passes by itself: a replica that is still starting, or has stopped.
    NotNow(String),
    /// A person should look.
    Misfit(String),
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self::Misfit(reason)
    }
}

impl Refusal {
    fn reason(&self) -> &str {
        match self {
            Self::NotNow(reason) | Self::Misfit(reason) => reason,
        }
    }

    fn log(&self) {
        let reason: String = self.reason().chars().filter(|c| !c.is_control()).collect();
        match self {
            Self::NotNow(_) => tracing::info!(reason, "peer turned away for now"),
            Self::Misfit(_) => tracing::warn!(reason, "peer turned away"),
        }
    }
}

/// Accepts until the listener is cancelled. Connections end with the hub, the listener after them.
pub(super) async fn accept(hub: Arc<Hub>, listener: TcpListener) {
    let greeting = Arc::new(tokio::sync::Semaphore::new(GREETING_CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            () = hub.cancel_listener.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let (socket, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a peer connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&greeting).try_acquire_owned() else {
            tracing::warn!(%from, "too many peer connections without a greeting");
            continue;
        };
        let serving = Arc::clone(&hub);
        hub.spawn(async move {
            if let Err(error) = serve(serving, socket, permit).await {
                tracing::debug!(%from, %error, "peer connection ended");
            }
        });
    }
}

async fn serve(hub: Arc<Hub>, socket: TcpStream, permit: tokio::sync::OwnedSemaphorePermit) -> Result<(), PeerError> {
    let mut stream = PeerStream::new(socket);
    let frame = tokio::time::timeout(HANDSHAKE_TIMEOUT, stream.reader.next())
        .await
        .map_err(|_| PeerError::Timeout("waiting for a greeting"))??;
    let (hello, group) = match admit(&hub, &frame) {
        Ok(admitted) => admitted,
        Err(refusal) => {
            refusal.log();
            // The envelope carries our own cluster id, so that the reason is believed.
            let envelope = Envelope { cluster_id: hub.options.cluster_id, ..frame.envelope };
            let mut refused = FrameWriter::new(Kind::Refused, 0, &envelope, 256);
            put_text(refused.fields(), refusal.reason());
            tokio::time::timeout(HANDSHAKE_TIMEOUT, stream.send(refused))
                .await
                .map_err(|_| PeerError::Timeout("turning a peer away"))??;
            return Err(PeerError::Refused(refusal.reason().to_owned()));
        }
    };
    drop(permit);
    let envelope = Envelope {
        cluster_id: hub.options.cluster_id,
        group: frame.envelope.group.clone(),
        sender: frame.envelope.target,
        target: frame.envelope.sender,
    };
    let ours = match &group {
        Some(group) => vec![group.greeting()],
        None => hub.all_groups().iter().map(|group| group.greeting()).collect(),
    };
    let mut welcome = FrameWriter::new(Kind::Welcome, 0, &envelope, 256);
    hub.greeting(hello.class, &hello.node, &ours).encode(welcome.fields());
    stream.send(welcome).await?;
    stream.admitted(chunk_bytes(hello.class));
    match group {
        None if hello.class == Class::Admin => admin::serve(&hub, stream, &envelope).await,
        None => control(&hub, stream, &envelope).await,
        Some(group) => {
            let cancel = group.cancel.clone();
            let served = async {
                if hello.class == Class::Rejoin {
                    rejoin(&group, stream, &hello.node, &envelope).await
                } else if hello.class == Class::Join {
                    join(&group, stream, &hello.node, &envelope).await
                } else if hello.class == Class::Append {
                    match group.service() {
                        Some(service) => Err(service.serve_append(stream, envelope).await),
                        None => Err(PeerError::Unavailable("replica has stopped".to_owned())),
                    }
                } else {
                    calls(&hub, &group, stream, hello.class, envelope).await
                }
            };
            cancel.run_until_cancelled(served).await.unwrap_or(Ok(()))
        }
    }
}

/// Decides from its greeting whether a peer is let in, and for which group.
fn admit(hub: &Hub, frame: &Frame) -> Result<(Greeting, Option<Arc<Group>>), Refusal> {
    if frame.kind != Kind::Hello {
        return Err(format!("{:?} instead of a greeting", frame.kind).into());
    }
    if frame.envelope.cluster_id != hub.options.cluster_id {
        return Err("another cluster".to_owned().into());
    }
    let hello = Greeting::decode(frame).map_err(|error| error.to_string())?;
    if hello.target_node != hub.options.node {
        return Err(format!("node {} is not {}", hub.options.node, hello.target_node).into());
    }
    if hello.class == Class::Control {
        return Ok((hello, None));
    }
    if hello.class == Class::Admin {
        let shares_group = || hub.all_groups().iter().any(|group| group.hosts(&hello.node));
        return match hub.expected.read().contains_key(&hello.node) || shares_group() {
            true => Ok((hello, None)),
            false => Err(Refusal::NotNow(format!("node {} shares no group that runs here", hello.node))),
        };
    }
    let name = String::from_utf8_lossy(&frame.envelope.group).into_owned();
    let not_now = || Refusal::NotNow(format!("replica of group {name} does not run"));
    let Some(group) = hub.group(&name) else {
        let hosted = hub.options.groups.contains(&name);
        return Err(if hosted { not_now() } else { format!("group {name} is not hosted here").into() });
    };
    if hello.class == Class::Relay {
        // A client could ask the same: the sender's identity does not matter.
        return match group.hosts(&hello.node) {
            true => Ok((hello, Some(group))),
            false => Err(format!("node {} holds no replica of group {name}", hello.node).into()),
        };
    }
    let (sender, target) = (frame.envelope.sender, frame.envelope.target);
    let theirs = hello.group(&name).ok_or_else(|| format!("greeting says nothing about group {name}"))?;
    if hello.class == Class::Rejoin {
        group.check_rejoin(&hello.node, &theirs.identity)?;
        return Ok((hello, Some(group)));
    }
    if hello.class == Class::Repair {
        // It only reads, and that helps a damaged replica under whatever identity it has, had, or believes us to have.
        return match group.hosts(&hello.node) {
            true => Ok((hello, Some(group))),
            false => Err(format!("node {} holds no replica of group {name}", hello.node).into()),
        };
    }
    if hello.class == Class::Join {
        // Its token says whether it may come, and that is the leader's to know.
        return match group.join_handler.read().is_some() {
            true => Ok((hello, Some(Arc::clone(&group)))),
            false => Err(not_now()),
        };
    }
    if let Some(removal) = group.removal(sender) {
        return Err(removal.into());
    }
    if let Some(successor) = group.successor(sender) {
        let word = Outcast::Retired.word();
        return Err(format!(
            "{word}: node {sender} of group {name} lost what it may have acknowledged, and goes on as node {successor}"
        )
        .into());
    }
    group.check_generation(&theirs.identity)?;
    if target != group.identity.node_id {
        return Err(format!("replica of group {name} is node {}, not {target}", group.identity.node_id).into());
    }
    match group.address(sender) {
        Some(member) if member.node != hello.node => {
            return Err(format!("member {sender} of group {name} is {}, not {}", member.node, hello.node).into());
        }
        Some(_) => {}
        // A leader may have come under a new identity that this log does not reach yet.
        None if group.hosts(&hello.node) => {}
        None => return Err(format!("node {sender} is no member of group {name}").into()),
    }
    if theirs.identity.node_id != sender {
        return Err(format!("greeting of node {} comes from node {sender}", theirs.identity.node_id).into());
    }
    if hello.class != Class::Forward && group.service().is_none() {
        return Err(not_now());
    }
    group.remember(&theirs.identity, hello.incarnation)?;
    Ok((hello, Some(group)))
}

/// An idle connection: its end tells the peer that this process has ended.
async fn control(hub: &Hub, mut stream: PeerStream, envelope: &Envelope) -> Result<(), PeerError> {
    loop {
        let frame = stream.reader.next().await?;
        if frame.envelope.cluster_id != hub.options.cluster_id || frame.kind != Kind::Ping {
            return Err(PeerError::Protocol(format!("{:?} on a control connection", frame.kind)));
        }
        stream.send(FrameWriter::new(Kind::Answer, frame.sequence, envelope, 0)).await?;
    }
}

/// Serves a node that wants to come back under another identity, one question after the other.
async fn rejoin(group: &Group, mut stream: PeerStream, node: &str, envelope: &Envelope) -> Result<(), PeerError> {
    loop {
        let frame = stream.reader.next().await?;
        if frame.kind != Kind::Replace {
            return Err(PeerError::Protocol(format!("{:?} on a connection to rejoin", frame.kind)));
        }
        let sequence = frame.sequence;
        let served = match group.service() {
            Some(service) => service.replace(node.to_owned(), frame).await,
            None => Err("replica has stopped".to_owned()),
        };
        let mut writer = match &served {
            Ok(answer) => FrameWriter::new(Kind::Answer, sequence, envelope, answer.fields.len()),
            Err(_) => FrameWriter::new(Kind::Failed, sequence, envelope, 64),
        };
        match served {
            Ok(answer) => writer.fields().extend_from_slice(&answer.fields),
            Err(reason) => put_failure(writer.fields(), true, &reason),
        }
        stream.send(writer).await?;
    }
}

/// Serves a node that wants to be let in: one question a connection.
async fn join(group: &Group, mut stream: PeerStream, node: &str, envelope: &Envelope) -> Result<(), PeerError> {
    let frame = tokio::time::timeout(HANDSHAKE_TIMEOUT, stream.reader.next())
        .await
        .map_err(|_| PeerError::Timeout("waiting for a wish to join"))??;
    if frame.kind != Kind::Join {
        return Err(PeerError::Protocol(format!("{:?} on a connection to join", frame.kind)));
    }
    let sequence = frame.sequence;
    let request = JoinRequest::decode(&frame)?;
    let handler = group.join_handler.read().clone();
    let served = match handler {
        Some(handler) => handler.join(node.to_owned(), request).await,
        None => Err("replica has stopped".to_owned()),
    };
    let kind = if served.is_ok() { Kind::Answer } else { Kind::Failed };
    let mut writer = FrameWriter::new(kind, sequence, envelope, 256);
    match served {
        Ok(joined) => joined.encode(writer.fields()),
        Err(reason) => {
            tracing::warn!(group = group.identity.group, node, reason, "node is not let in");
            put_failure(writer.fields(), true, &reason);
        }
    }
    stream.send(writer).await
}

/// Serves calls in any order until the connection ends.
async fn calls(
    hub: &Arc<Hub>,
    group: &Arc<Group>,
    stream: PeerStream,
    class: Class,
    envelope: Envelope,
) -> Result<(), PeerError> {
    let outbox = Arc::new(Outbox::default());
    let caller = Caller { hub: Arc::clone(hub), group: Arc::clone(group), class, envelope };
    let result = pump(&caller, stream, &outbox).await;
    outbox.close();
    result
}

/// A connection that calls come from.
struct Caller {
    hub: Arc<Hub>,
    group: Arc<Group>,
    class: Class,
    /// Of the answers.
    envelope: Envelope,
}

async fn pump(caller: &Caller, stream: PeerStream, outbox: &Arc<Outbox>) -> Result<(), PeerError> {
    let PeerStream { mut reader, mut sender } = stream;
    loop {
        if sender.queue.is_empty() {
            outbox.take(&mut sender.queue)?;
        }
        tokio::select! {
            biased;
            frame = reader.next() => {
                dispatch(caller, outbox, frame?)?;
                // What has arrived together is handled together, and its answers leave together.
                while let Some(frame) = reader.next_ready()? {
                    dispatch(caller, outbox, frame)?;
                }
            }
            written = sender.write_some(), if !sender.queue.is_empty() => written?,
            () = outbox.ready(), if sender.queue.is_empty() => {}
        }
    }
}

fn dispatch(caller: &Caller, outbox: &Arc<Outbox>, frame: Frame) -> Result<(), PeerError> {
    let Caller { hub, group, class, envelope } = caller;
    let expected = Envelope { sender: envelope.target, target: envelope.sender, ..envelope.clone() };
    if frame.envelope != expected {
        return Err(PeerError::Protocol("a frame for somebody else".to_owned()));
    }
    if !class.serves(frame.kind) {
        return Err(PeerError::Protocol(format!("{:?} on a connection of class {class:?}", frame.kind)));
    }
    match frame.kind {
        Kind::Ping => {
            outbox.push(FrameWriter::new(Kind::Answer, frame.sequence, envelope, 0), Vec::new())?;
        }
        Kind::Forward | Kind::ForwardOneway => {
            let oneway = frame.kind == Kind::ForwardOneway;
            let mut fields = frame.fields();
            let origin = forward::address(&mut fields)?;
            fields.finish("end of forwarded request")?;
            let handler = group.forward_handler.read().clone();
            match handler {
                Some(handler) => {
                    let request = forward::decode_command(frame.tail)?;
                    let reply = ForwardReply {
                        outbox: Arc::clone(outbox),
                        envelope: envelope.clone(),
                        sequence: frame.sequence,
                        oneway,
                        sent: false,
                    };
                    let from = if *class == Class::Relay { Forwarder::Starting } else { Forwarder::Replica };
                    handler.forwarded(origin, request, from, reply);
                }
                None if oneway => {}
                None => fail(outbox, envelope, frame.sequence, false, "nobody handles client requests yet"),
            }
        }
        Kind::CopyClientTable => {
            let handler = group.copy_handler.read().clone();
            let (outbox, envelope) = (Arc::clone(outbox), envelope.clone());
            let Some(handler) = handler else {
                fail(&outbox, &envelope, frame.sequence, false, "no client table yet");
                return Ok(());
            };
            hub.spawn(async move {
                let copy = handler.copy(frame.tail).await;
                answer(&outbox, &envelope, frame.sequence, Answer { tail: vec![copy], ..Answer::default() });
            });
        }
        Kind::FetchRange => {
            let (from, to) = range::request(&frame)?;
            let handler = group.range_handler.read().clone();
            let (outbox, envelope, sequence) = (Arc::clone(outbox), envelope.clone(), frame.sequence);
            let Some(handler) = handler else {
                fail(&outbox, &envelope, sequence, false, "the log is not open yet");
                return Ok(());
            };
            hub.spawn(async move {
                match handler.fetch(from, to).await {
                    Ok(found) => answer(&outbox, &envelope, sequence, range::encode(found)),
                    Err(reason) => fail(&outbox, &envelope, sequence, false, &reason),
                }
            });
        }
        Kind::FetchCheckpoint | Kind::FetchDigests => {
            let handler = group.range_handler.read().clone();
            let (outbox, envelope, sequence) = (Arc::clone(outbox), envelope.clone(), frame.sequence);
            let Some(handler) = handler else {
                fail(&outbox, &envelope, sequence, false, "the log is not open yet");
                return Ok(());
            };
            let found = match frame.kind {
                Kind::FetchDigests => handler.digests(range::digest_request(&frame)?),
                _ => handler.checkpoint(range::checkpoint_request(&frame)?),
            };
            hub.spawn(async move {
                match found.await {
                    Ok(found) => {
                        answer(&outbox, &envelope, sequence, Answer { tail: vec![found], ..Answer::default() })
                    }
                    Err(reason) => fail(&outbox, &envelope, sequence, false, &reason),
                }
            });
        }
        Kind::Heartbeat
        | Kind::Vote
        | Kind::PreVote
        | Kind::TransferLeader
        | Kind::Snapshot
        | Kind::DeathNotice
        | Kind::WouldLead => {
            let (outbox, envelope, sequence) = (Arc::clone(outbox), envelope.clone(), frame.sequence);
            let Some(service) = group.service() else {
                fail(&outbox, &envelope, sequence, false, "replica has stopped");
                return Ok(());
            };
            // A replica knows of its own group only.
            let leads = (frame.kind == Kind::WouldLead && !frame.fields().is_over()).then(|| hub.leads.read().clone());
            hub.spawn(async move {
                let served = service.call(frame).await.map(|mut served| {
                    if let Some(leads) = leads.flatten() {
                        served.fields.put_u32(leads());
                    }
                    served
                });
                match served {
                    Ok(served) => answer(&outbox, &envelope, sequence, served),
                    Err(reason) => fail(&outbox, &envelope, sequence, true, &reason),
                }
            });
        }
        kind => return Err(PeerError::Protocol(format!("{kind:?} on a connection for calls"))),
    }
    Ok(())
}

fn answer(outbox: &Outbox, envelope: &Envelope, sequence: u64, answer: Answer) {
    let mut writer = FrameWriter::new(Kind::Answer, sequence, envelope, answer.fields.len());
    writer.fields().extend_from_slice(&answer.fields);
    if let Err(error) = outbox.push(writer, answer.tail) {
        fail(outbox, envelope, sequence, true, &error.to_string());
    }
}

fn fail(outbox: &Outbox, envelope: &Envelope, sequence: u64, unknown: bool, reason: &str) {
    let mut writer = FrameWriter::new(Kind::Failed, sequence, envelope, 64);
    put_failure(writer.fields(), unknown, reason);
    if let Err(error) = outbox.push(writer, Vec::new()) {
        tracing::debug!(%error, "cannot tell a peer that its call failed");
    }
}
