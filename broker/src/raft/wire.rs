//! Raft's messages as the fields and tails of peer frames.
//!
//! | Kind | Fields | Tail |
//! | --- | --- | --- |
//! | `Append`, `Heartbeat` | vote, previous log id, commit log id, count (u32), then per entry: term (u64), index (u64), body kind (u8), body bytes (u32) | the bodies, back to back |
//! | `Appended`, answer of `Heartbeat` | code (u8): 0 nothing matches yet, 1 matches up to a log id, 2 conflict at a log id, 3 a higher vote; then that log id or vote | |
//! | `Vote`, `PreVote` | vote, last log id, leadership transfer (bool) | |
//! | their answer | vote, granted (bool), last log id | |
//! | `TransferLeader` | leader's vote, target node id (u64), last log id | |
//! | its answer | code (u8): 0 accepted, 1 vote changed: expected and actual vote, 2 log not flushed: expected and actual log id | |
//! | `Snapshot` | vote, last log id, membership log id, membership bytes (u32, bytes) | the snapshot |
//! | its answer | vote | |
//! | `DeathNotice`, its answer | leader's vote, gone for me too (bool), last log id | |
//! | `WouldLead` | none, or one byte: how many groups does your node lead? | |
//! | its answer | yes (bool); if asked, the number (u32) | |
//!
//! A vote is term (u64), node id (u64), committed (bool). A log id in a message is optional: present (bool), then term
//! and index (u64), except after a code, where it is always there. Bodies travel in their stored form and become slices
//! of the received frame; the frame's tail checksum has been verified by then.

use bytes::{BufMut, Bytes, BytesMut};
use openraft::alias::{SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, StreamAppendResult, TransferLeaderError, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::vote::leader_id_std::{CommittedLeaderId, LeaderId};
use raft_store::{Body, BodyKind, LogEntry, LogId, LogIndex, Membership, Term};

use super::type_config::{RaftLogId, RaftVote, SnapshotData, TypeConfig};
use crate::peer::frame::{Fields, Frame};
use crate::peer::handshake::{log_mark, put_log_mark, put_vote_mark, vote_mark};
use crate::peer::{FrameError, LogMark, VoteMark};

/// Bytes of an entry in the table of an append.
const ENTRY_BYTES: usize = 21;

pub(crate) fn vote_to_mark(vote: &RaftVote) -> VoteMark {
    VoteMark { term: vote.leader_id.term, node_id: vote.leader_id.voted_for, committed: vote.committed }
}

pub(crate) fn vote_from_mark(mark: VoteMark) -> RaftVote {
    RaftVote { leader_id: LeaderId { term: mark.term, voted_for: mark.node_id }, committed: mark.committed }
}

pub(crate) fn log_to_mark(log_id: &RaftLogId) -> LogMark {
    LogMark { term: log_id.leader_id.term, index: log_id.index }
}

pub(crate) fn log_from_mark(mark: LogMark) -> RaftLogId {
    RaftLogId::new(CommittedLeaderId { term: mark.term }, mark.index)
}

pub(super) fn put_vote(out: &mut BytesMut, vote: &RaftVote) {
    put_vote_mark(out, vote_to_mark(vote));
}

pub(super) fn vote(fields: &mut Fields) -> Result<RaftVote, FrameError> {
    Ok(vote_from_mark(vote_mark(fields)?))
}

pub(super) fn put_log_id(out: &mut BytesMut, log_id: Option<&RaftLogId>) {
    put_log_mark(out, log_id.map(log_to_mark));
}

pub(super) fn log_id(fields: &mut Fields) -> Result<Option<RaftLogId>, FrameError> {
    Ok(log_mark(fields)?.map(log_from_mark))
}

fn put_some_log_id(out: &mut BytesMut, log_id: &RaftLogId) {
    out.put_u64(log_id.leader_id.term);
    out.put_u64(log_id.index);
}

fn some_log_id(fields: &mut Fields) -> Result<RaftLogId, FrameError> {
    Ok(log_from_mark(LogMark { term: fields.u64("log term")?, index: fields.u64("log index")? }))
}

/// How many bytes of fields an append with `entries` entries needs.
pub(super) fn append_fields_bytes(entries: usize) -> usize {
    17 + 2 * 17 + 4 + entries * ENTRY_BYTES
}

/// Writes the fields of an append and returns its tail.
pub(super) fn put_append(out: &mut BytesMut, request: &AppendEntriesRequest<TypeConfig>) -> Vec<Bytes> {
    put_vote(out, &request.vote);
    put_log_id(out, request.prev_log_id.as_ref());
    put_log_id(out, request.leader_commit.as_ref());
    out.put_u32(request.entries.len() as u32);
    let mut tail = Vec::with_capacity(request.entries.len());
    for entry in &request.entries {
        let (kind, bytes) = entry.body.encode();
        out.put_u64(entry.log_term().get());
        out.put_u64(entry.log_index().get());
        out.put_u8(body_kind_byte(kind));
        out.put_u32(bytes.len() as u32);
        tail.push(bytes);
    }
    tail
}

/// Reads an append. The bodies are slices of the frame.
pub(super) fn append(frame: Frame) -> Result<AppendEntriesRequest<TypeConfig>, FrameError> {
    let mut fields = frame.fields();
    let mut tail = Fields::new(frame.tail);
    let vote = vote(&mut fields)?;
    let prev_log_id = log_id(&mut fields)?;
    let leader_commit = log_id(&mut fields)?;
    let count = fields.u32("entry count")? as usize;
    // Checked before anything is allocated for the count.
    if count.checked_mul(ENTRY_BYTES) != Some(fields.remaining()) {
        return Err(FrameError::Field("entry count"));
    }
    let mut entries: Vec<LogEntry> = Vec::with_capacity(count);
    for _ in 0..count {
        let term = fields.u64("entry term")?;
        let index = fields.u64("entry index")?;
        let kind = body_kind(fields.u8("body kind")?)?;
        let bytes = tail.slice(fields.u32("body bytes")? as usize, "body")?;
        let follows = match (entries.last(), &prev_log_id) {
            (Some(last), _) => last.log_index().get().checked_add(1) == Some(index),
            (None, Some(prev)) => prev.index.checked_add(1) == Some(index),
            (None, None) => index == 0,
        };
        if !follows {
            return Err(FrameError::Field("entry index"));
        }
        let body = Body::decode(kind, bytes).map_err(|_| FrameError::Field("body"))?;
        entries.push(LogEntry::new(LogId::new(Term::new(term), LogIndex::new(index)), body));
    }
    tail.finish("end of bodies")?;
    Ok(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
}

fn body_kind_byte(kind: BodyKind) -> u8 {
    match kind {
        BodyKind::Normal => 1,
        BodyKind::Blank => 2,
        BodyKind::Membership => 3,
    }
}

fn body_kind(byte: u8) -> Result<BodyKind, FrameError> {
    match byte {
        1 => Ok(BodyKind::Normal),
        2 => Ok(BodyKind::Blank),
        3 => Ok(BodyKind::Membership),
        _ => Err(FrameError::Field("body kind")),
    }
}

pub(super) fn put_append_result(out: &mut BytesMut, result: &StreamAppendResult<TypeConfig>) {
    match result {
        Ok(None) => out.put_u8(0),
        Ok(Some(log_id)) => {
            out.put_u8(1);
            put_some_log_id(out, log_id);
        }
        Err(StreamAppendError::Conflict(log_id)) => {
            out.put_u8(2);
            put_some_log_id(out, log_id);
        }
        Err(StreamAppendError::HigherVote(vote)) => {
            out.put_u8(3);
            put_vote(out, vote);
        }
    }
}

pub(super) fn append_result(frame: &Frame) -> Result<StreamAppendResult<TypeConfig>, FrameError> {
    let mut fields = frame.fields();
    let result = match fields.u8("append result")? {
        0 => Ok(None),
        1 => Ok(Some(some_log_id(&mut fields)?)),
        2 => Err(StreamAppendError::Conflict(some_log_id(&mut fields)?)),
        3 => Err(StreamAppendError::HigherVote(vote(&mut fields)?)),
        _ => return Err(FrameError::Field("append result")),
    };
    fields.finish("end of append result")?;
    Ok(result)
}

pub(super) fn put_vote_request(out: &mut BytesMut, request: &VoteRequest<TypeConfig>) {
    put_vote(out, &request.vote);
    put_log_id(out, request.last_log_id.as_ref());
    out.put_u8(u8::from(request.leadership_transfer));
}

pub(super) fn vote_request(frame: &Frame) -> Result<VoteRequest<TypeConfig>, FrameError> {
    let mut fields = frame.fields();
    let mut request = VoteRequest::new(vote(&mut fields)?, log_id(&mut fields)?);
    request.leadership_transfer = fields.bool("leadership transfer")?;
    fields.finish("end of vote request")?;
    Ok(request)
}

pub(super) fn put_vote_response(out: &mut BytesMut, response: &VoteResponse<TypeConfig>) {
    put_vote(out, &response.vote);
    out.put_u8(u8::from(response.vote_granted));
    put_log_id(out, response.last_log_id.as_ref());
}

pub(super) fn vote_response(frame: &Frame) -> Result<VoteResponse<TypeConfig>, FrameError> {
    let mut fields = frame.fields();
    let vote = vote(&mut fields)?;
    let granted = fields.bool("granted")?;
    let last_log_id = log_id(&mut fields)?;
    fields.finish("end of vote response")?;
    Ok(VoteResponse { vote, vote_granted: granted, last_log_id })
}

pub(super) fn put_transfer(out: &mut BytesMut, request: &TransferLeaderRequest<TypeConfig>) {
    put_vote(out, request.from_leader());
    out.put_u64(*request.to_node_id());
    put_log_id(out, request.last_log_id());
}

pub(super) fn transfer(frame: &Frame) -> Result<TransferLeaderRequest<TypeConfig>, FrameError> {
    let mut fields = frame.fields();
    let from = vote(&mut fields)?;
    let to = fields.u64("target of transfer")?;
    let last_log_id = log_id(&mut fields)?;
    fields.finish("end of transfer")?;
    Ok(TransferLeaderRequest::new(from, to, last_log_id))
}

pub(super) fn put_transfer_response(out: &mut BytesMut, response: &TransferLeaderResponse<TypeConfig>) {
    match response {
        Ok(()) => out.put_u8(0),
        Err(TransferLeaderError::VoteChanged { expected, actual }) => {
            out.put_u8(1);
            put_vote(out, expected);
            put_vote(out, actual);
        }
        Err(TransferLeaderError::LogNotFlushed { expected, actual }) => {
            out.put_u8(2);
            put_log_id(out, expected.as_ref());
            put_log_id(out, actual.as_ref());
        }
    }
}

pub(super) fn transfer_response(frame: &Frame) -> Result<TransferLeaderResponse<TypeConfig>, FrameError> {
    let mut fields = frame.fields();
    let response = match fields.u8("transfer result")? {
        0 => Ok(()),
        1 => Err(TransferLeaderError::VoteChanged { expected: vote(&mut fields)?, actual: vote(&mut fields)? }),
        2 => Err(TransferLeaderError::LogNotFlushed { expected: log_id(&mut fields)?, actual: log_id(&mut fields)? }),
        _ => return Err(FrameError::Field("transfer result")),
    };
    fields.finish("end of transfer result")?;
    Ok(response)
}

/// Writes the fields of a snapshot; its tail is the body.
pub(super) fn put_snapshot(out: &mut BytesMut, vote: &RaftVote, meta: &SnapshotMetaOf<TypeConfig>) {
    put_vote(out, vote);
    put_log_id(out, meta.last_log_id.as_ref());
    put_log_id(out, meta.last_membership.log_id().as_ref());
    let (_, membership) = Body::Membership(meta.last_membership.membership().clone()).encode();
    out.put_u32(membership.len() as u32);
    out.put_slice(&membership);
}

pub(super) fn snapshot(frame: Frame) -> Result<(RaftVote, SnapshotOf<TypeConfig, SnapshotData>), FrameError> {
    let mut fields = frame.fields();
    let vote = vote(&mut fields)?;
    let last_log_id = log_id(&mut fields)?;
    let membership_log_id = log_id(&mut fields)?;
    let length = fields.u32("membership bytes")? as usize;
    let bytes = fields.slice(length, "membership")?;
    fields.finish("end of snapshot")?;
    let Ok(Body::Membership(membership)) = Body::decode(BodyKind::Membership, bytes) else {
        return Err(FrameError::Field("membership"));
    };
    let last_membership: StoredMembershipOf<TypeConfig> = openraft::StoredMembership::new(
        membership_log_id,
        if membership_log_id.is_none() { Membership::default() } else { membership },
    );
    let meta = SnapshotMetaOf::<TypeConfig> { last_log_id, last_membership };
    Ok((vote, SnapshotOf::<TypeConfig, SnapshotData> { meta, snapshot: frame.tail }))
}

/// What a voter tells the others about the leader's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeathNotice {
    /// The leader, by its vote.
    pub(crate) leader: VoteMark,
    /// Whether the speaker itself has proof.
    pub(crate) gone: bool,
    /// The speaker's last log id.
    pub(crate) last_log: Option<LogMark>,
}

pub(super) fn put_death_notice(out: &mut BytesMut, notice: &DeathNotice) {
    put_vote_mark(out, notice.leader);
    out.put_u8(u8::from(notice.gone));
    put_log_mark(out, notice.last_log);
}

pub(super) fn death_notice(frame: &Frame) -> Result<DeathNotice, FrameError> {
    let mut fields = frame.fields();
    let notice =
        DeathNotice { leader: vote_mark(&mut fields)?, gone: fields.bool("gone")?, last_log: log_mark(&mut fields)? };
    fields.finish("end of death notice")?;
    Ok(notice)
}

/// Whether a replica would lead, and how many groups its node leads, if it was asked and knows the question.
pub(super) fn would_lead(frame: &Frame) -> Result<(bool, Option<u32>), FrameError> {
    let mut fields = frame.fields();
    let yes = fields.bool("would lead")?;
    let leads = if fields.is_over() { None } else { Some(fields.u32("groups led")?) };
    fields.finish("end of the answer")?;
    Ok((yes, leads))
}

#[cfg(test)]
mod tests;
