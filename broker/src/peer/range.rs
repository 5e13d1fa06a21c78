//! Stretches of the log that one replica asks of another to repair itself.
//!
//! They have a class of connection of their own, and need no running replica: a store that is damaged and does not start
//! still gives to others what it has.
//!
//! | Field of `FetchRange` | Form |
//! | --- | --- |
//! | first position | u64 |
//! | position to stop before | u64 |
//!
//! | Field of its answer | Form |
//! | --- | --- |
//! | verdict: have, never had, other records there, damaged too, purged | u8, 1 to 5 |
//! | whether the end of the log is certain | bool |
//! | last log id | bool, then term and index u64 |
//!
//! The tail of an answer that has something is whole records as they are stored.
//!
//! | Field of `FetchCheckpoint` | Form |
//! | --- | --- |
//! | first index it may be of | u64 |
//! | first position the log may go on at behind it | u64 |
//!
//! The answer has no fields. Its tail is the first such checkpoint, as it is stored, or nothing.
//!
//! `FetchDigests` has one field, the start of a segment as u64. The tail of its answer is the SHA-256 of each mebibyte of
//! that segment, or nothing.

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use raft_store::{LogId, LogIndex, LogPosition, PeerRange, RangeAnswer, Term};

use super::error::FrameError;
use super::frame::Frame;
use super::handshake::{LogMark, log_mark, put_log_mark};
use super::service::Answer;

/// Serves stretches of a log.
pub(crate) trait RangeHandler: Send + Sync + 'static {
    /// What this store has from `from` on, up to `to`. The error is told to the peer.
    fn fetch(&self, from: LogPosition, to: LogPosition) -> BoxFuture<'static, Result<PeerRange, String>>;

    /// The first sound checkpoint here that is wanted; empty if there is none. The error is told to the peer.
    fn checkpoint(&self, wanted: CheckpointWanted) -> BoxFuture<'static, Result<Bytes, String>>;

    /// The digests of the segment at `base`, one after the other; empty if there are none. The error is told to the peer.
    fn digests(&self, base: LogPosition) -> BoxFuture<'static, Result<Bytes, String>>;
}

/// Which checkpoint a peer may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointWanted {
    /// Of this entry, or a later one.
    pub(crate) index: u64,
    /// One behind which the log goes on here, or later.
    pub(crate) resume: LogPosition,
}

pub(crate) fn put_checkpoint_request(out: &mut BytesMut, wanted: CheckpointWanted) {
    out.put_u64(wanted.index);
    out.put_u64(wanted.resume.get());
}

pub(super) fn checkpoint_request(frame: &Frame) -> Result<CheckpointWanted, FrameError> {
    let mut fields = frame.fields();
    let index = fields.u64("checkpoint's index")?;
    let resume = LogPosition::new(fields.u64("checkpoint's position")?);
    fields.finish("end of a checkpoint request")?;
    Ok(CheckpointWanted { index, resume })
}

pub(crate) fn put_request(out: &mut BytesMut, from: LogPosition, to: LogPosition) {
    out.put_u64(from.get());
    out.put_u64(to.get());
}

pub(super) fn request(frame: &Frame) -> Result<(LogPosition, LogPosition), FrameError> {
    let mut fields = frame.fields();
    let from = LogPosition::new(fields.u64("first position")?);
    let to = LogPosition::new(fields.u64("last position")?);
    fields.finish("end of a range request")?;
    if from >= to { Err(FrameError::Field("range")) } else { Ok((from, to)) }
}

pub(crate) fn put_digest_request(out: &mut BytesMut, base: LogPosition) {
    out.put_u64(base.get());
}

pub(super) fn digest_request(frame: &Frame) -> Result<LogPosition, FrameError> {
    let mut fields = frame.fields();
    let base = LogPosition::new(fields.u64("segment")?);
    fields.finish("end of a digest request")?;
    Ok(base)
}

pub(super) fn encode(range: PeerRange) -> Answer {
    let mut answer = Answer::default();
    let (verdict, bytes) = match range.answer {
        RangeAnswer::Have(bytes) => (1, bytes),
        RangeAnswer::NeverHad => (2, Bytes::new()),
        RangeAnswer::Other => (3, Bytes::new()),
        RangeAnswer::Damaged => (4, Bytes::new()),
        RangeAnswer::Purged => (5, Bytes::new()),
    };
    answer.fields.put_u8(verdict);
    answer.fields.put_u8(u8::from(range.is_last_certain));
    put_log_mark(&mut answer.fields, range.last.map(|id| LogMark { term: id.term.get(), index: id.index.get() }));
    answer.tail = vec![bytes];
    answer
}

pub(crate) fn decode(frame: &Frame) -> Result<PeerRange, FrameError> {
    let mut fields = frame.fields();
    let verdict = fields.u8("verdict")?;
    let is_last_certain = fields.bool("certainty")?;
    let last = log_mark(&mut fields)?;
    fields.finish("end of a range answer")?;
    let answer = match verdict {
        1 => RangeAnswer::Have(frame.tail.clone()),
        2 => RangeAnswer::NeverHad,
        3 => RangeAnswer::Other,
        4 => RangeAnswer::Damaged,
        5 => RangeAnswer::Purged,
        _ => return Err(FrameError::Field("verdict")),
    };
    let last = last.map(|mark| LogId::new(Term::new(mark.term), LogIndex::new(mark.index)));
    Ok(PeerRange { answer, last, is_last_certain })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::frame::{Envelope, Kind};

    #[test]
    fn answers_come_back_as_they_were_given() {
        let last = Some(LogId::new(Term::new(3), LogIndex::new(9)));
        let answers = [
            RangeAnswer::Have(Bytes::from_static(b"records")),
            RangeAnswer::NeverHad,
            RangeAnswer::Other,
            RangeAnswer::Damaged,
            RangeAnswer::Purged,
        ];
        for (number, answer) in answers.into_iter().enumerate() {
            let range = PeerRange { answer, last: last.filter(|_| number > 0), is_last_certain: number % 2 == 0 };
            let Answer { fields, tail } = encode(range.clone());
            let envelope = Envelope { cluster_id: [0; 16], group: Bytes::new(), sender: 1, target: 2 };
            let tail = Bytes::from(tail.concat());
            let mut frame = Frame { kind: Kind::Answer, sequence: 1, envelope, fields: fields.freeze(), tail };
            assert_eq!(range, decode(&frame).unwrap());
            frame.fields = frame.fields.slice(1..);
            assert!(decode(&frame).is_err());
        }
    }
}
