//! Messages come back as they were sent, and nothing that is damaged gets through or panics.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use raft_store::{Member, Payload};

use super::*;
use crate::peer::frame::{self, Envelope, FrameWriter, Kind};

fn log_id_at(term: u64, index: u64) -> RaftLogId {
    log_from_mark(LogMark { term, index })
}

fn vote_for(term: u64, node_id: u64, committed: bool) -> RaftVote {
    vote_from_mark(VoteMark { term, node_id, committed })
}

fn frame_of(kind: Kind, fields: impl FnOnce(&mut BytesMut) -> Vec<Bytes>) -> Frame {
    frame::decode(bytes_of(kind, fields)).unwrap()
}

fn bytes_of(kind: Kind, fields: impl FnOnce(&mut BytesMut) -> Vec<Bytes>) -> Bytes {
    let envelope = Envelope { cluster_id: [9; 16], group: Bytes::from_static(b"g"), sender: 1, target: 2 };
    let mut writer = FrameWriter::new(kind, 3, &envelope, 100);
    let tail = fields(writer.fields());
    let mut out: Vec<Bytes> = Vec::new();
    writer.finish(tail, &mut out).unwrap();
    Bytes::from(out.concat())
}

fn members() -> Membership {
    let nodes: BTreeMap<u64, Member> = (1..=3)
        .map(|id| {
            let raft_addr = format!("127.0.0.1:1100{id}");
            (id, Member { node: format!("n{id}"), raft_addr, client_addr: String::new() })
        })
        .collect();
    Membership::new(vec![BTreeSet::from([1, 2, 3])], nodes).unwrap()
}

fn request() -> AppendEntriesRequest<TypeConfig> {
    let body = |index, body| LogEntry::new(LogId::new(Term::new(4), LogIndex::new(index)), body);
    AppendEntriesRequest {
        vote: vote_for(4, 1, true),
        prev_log_id: Some(log_id_at(3, 6)),
        entries: vec![
            body(7, Body::Blank),
            body(8, Body::Normal(Payload(Bytes::from(vec![1; 5000])))),
            body(9, Body::Membership(members())),
            body(10, Body::Normal(Payload(Bytes::new()))),
        ],
        leader_commit: Some(log_id_at(4, 7)),
    }
}

#[test]
fn append_comes_back_and_its_bodies_are_slices_of_the_frame() {
    let bytes = bytes_of(Kind::Append, |out| put_append(out, &request()));
    let range = bytes.as_ptr_range();
    let back = append(frame::decode(bytes.clone()).unwrap()).unwrap();
    let sent = request();
    assert_eq!((back.vote, back.prev_log_id, back.leader_commit), (sent.vote, sent.prev_log_id, sent.leader_commit));
    assert_eq!(back.entries, sent.entries);
    let Body::Normal(payload) = &back.entries[1].body else { panic!() };
    assert!(range.contains(&payload.0.as_ptr()));
}

#[test]
fn append_with_a_hole_is_refused() {
    let mut holed = request();
    holed.entries.remove(1);
    let frame = frame_of(Kind::Append, |out| put_append(out, &holed));
    assert!(append(frame).is_err());
    let mut late = request();
    late.prev_log_id = Some(log_id_at(3, 5));
    let frame = frame_of(Kind::Append, |out| put_append(out, &late));
    assert!(append(frame).is_err());
}

#[test]
fn every_result_and_call_comes_back() {
    let results: [StreamAppendResult<TypeConfig>; 4] = [
        Ok(None),
        Ok(Some(log_id_at(4, 9))),
        Err(StreamAppendError::Conflict(log_id_at(4, 2))),
        Err(StreamAppendError::HigherVote(vote_for(5, 2, false))),
    ];
    for result in results {
        let frame = frame_of(Kind::Appended, |out| {
            put_append_result(out, &result);
            Vec::new()
        });
        assert_eq!(append_result(&frame).unwrap(), result);
    }
    let mut asked = VoteRequest::new(vote_for(5, 2, false), Some(log_id_at(4, 9)));
    asked.leadership_transfer = true;
    let frame = frame_of(Kind::Vote, |out| {
        put_vote_request(out, &asked);
        Vec::new()
    });
    assert_eq!(vote_request(&frame).unwrap(), asked);
    let answered = VoteResponse::new(vote_for(5, 2, false), None, true);
    let frame = frame_of(Kind::Answer, |out| {
        put_vote_response(out, &answered);
        Vec::new()
    });
    assert_eq!(vote_response(&frame).unwrap(), answered);
    let moved = TransferLeaderRequest::new(vote_for(5, 2, true), 3, Some(log_id_at(4, 9)));
    let frame = frame_of(Kind::TransferLeader, |out| {
        put_transfer(out, &moved);
        Vec::new()
    });
    assert_eq!(transfer(&frame).unwrap(), moved);
    let refusals: [TransferLeaderResponse<TypeConfig>; 3] = [
        Ok(()),
        Err(TransferLeaderError::VoteChanged { expected: vote_for(5, 2, true), actual: vote_for(6, 3, false) }),
        Err(TransferLeaderError::LogNotFlushed { expected: Some(log_id_at(4, 9)), actual: None }),
    ];
    for refusal in refusals {
        let frame = frame_of(Kind::Answer, |out| {
            put_transfer_response(out, &refusal);
            Vec::new()
        });
        assert_eq!(transfer_response(&frame).unwrap(), refusal);
    }
    let notice = DeathNotice {
        leader: VoteMark { term: 4, node_id: 1, committed: true },
        gone: true,
        last_log: Some(LogMark { term: 4, index: 9 }),
    };
    let frame = frame_of(Kind::DeathNotice, |out| {
        put_death_notice(out, &notice);
        Vec::new()
    });
    assert_eq!(death_notice(&frame).unwrap(), notice);
}

#[test]
fn snapshot_comes_back_with_its_membership() {
    for (at, membership) in [(Some(log_id_at(1, 2)), members()), (None, Membership::default())] {
        let meta = SnapshotMetaOf::<TypeConfig> {
            last_log_id: Some(log_id_at(4, 9)),
            last_membership: openraft::StoredMembership::new(at, membership),
        };
        let frame = frame_of(Kind::Snapshot, |out| {
            put_snapshot(out, &vote_for(4, 1, true), &meta);
            vec![Bytes::from_static(b"state")]
        });
        let (vote, back) = snapshot(frame).unwrap();
        assert_eq!((vote, back.meta, &back.snapshot[..]), (vote_for(4, 1, true), meta, &b"state"[..]));
    }
}

fn decode_as_everything(frame: Frame) {
    let _ = append_result(&frame);
    let _ = vote_request(&frame);
    let _ = vote_response(&frame);
    let _ = transfer(&frame);
    let _ = transfer_response(&frame);
    let _ = death_notice(&frame);
    let _ = crate::peer::handshake::Greeting::decode(&frame);
    let _ = snapshot(frame.clone());
    let _ = append(frame);
}

proptest! {
    #[test]
    fn noise_in_fields_and_tail_is_refused_without_a_panic(
        fields in proptest::collection::vec(any::<u8>(), 0..200),
        tail in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        decode_as_everything(frame_of(Kind::Append, |out| {
            out.extend_from_slice(&fields);
            vec![Bytes::from(tail)]
        }));
    }

    #[test]
    fn damaged_appends_are_refused_without_a_panic(at in 0usize..200, value: u8, cut in 0usize..200) {
        let mut fields = BytesMut::new();
        let tail = put_append(&mut fields, &request());
        fields.truncate(cut);
        if let Some(byte) = fields.get_mut(at) { *byte = value; }
        decode_as_everything(frame_of(Kind::Append, |out| {
            out.extend_from_slice(&fields);
            tail
        }));
    }
}
