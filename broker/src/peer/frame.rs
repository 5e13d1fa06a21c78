//! The layout of a peer frame, and the bounded reader and writer of its fields.
//!
//! Every frame between two nodes has this form. Integers are big-endian.
//!
//! | Bytes | Field |
//! | --- | --- |
//! | 0-3 | length of everything after this field |
//! | 4-7 | head length: bytes from 16 to the end of the kind's fields |
//! | 8-11 | CRC-32 of the head |
//! | 12-15 | CRC-32 of the tail, zero if the tail is empty |
//! | 16 | version |
//! | 17 | kind |
//! | 18 | length `g` of the group name |
//! | 19 | zero |
//! | 20-27 | sequence: request id on a call, session on an append stream |
//! | 28-43 | cluster id |
//! | 44-51 | sender's node id in the group, zero outside a group |
//! | 52-59 | target's node id in the group, zero outside a group |
//! | 60..60+g | group name |
//! | ..16+head length | fields of the kind, see the module that owns the kind |
//! | rest | tail: payload bytes that are never parsed here |
//!
//! A frame is refused by its lengths before anything is allocated for it, and by its checksums before a field is read.
//! Nothing in this module panics on any input.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::error::FrameError;

/// The one version there is.
pub(crate) const VERSION: u8 = 1;
/// Length, head length and the two checksums.
pub(crate) const PREFIX_BYTES: usize = 16;
/// The fixed part of the head.
const HEAD_FIXED_BYTES: usize = 44;
/// A head holds field tables, never payload.
pub(crate) const HEAD_BYTES_MAX: usize = 1 << 20;
/// Largest frame after the handshake.
pub(crate) const FRAME_BYTES_MAX: usize = 64 << 20;
/// Largest frame before the handshake is done.
pub(crate) const HELLO_BYTES_MAX: usize = 16 << 10;
/// A group or node name.
pub(crate) const NAME_BYTES_MAX: usize = 127;

/// What a frame is. Unknown kinds are refused by whoever receives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// First frame of a connection, from the side that dialled.
    Hello = 1,
    /// The answer that admits the dialler.
    Welcome = 2,
    /// The answer that turns the dialler away, with the reason.
    Refused = 3,
    /// A liveness question; answered by `Answer`.
    Ping = 4,
    /// One request of an append stream.
    Append = 16,
    /// The result of one `Append`, in order.
    Appended = 17,
    /// An append outside a stream: a heartbeat.
    Heartbeat = 18,
    /// A vote request.
    Vote = 19,
    /// A question whether a vote would be granted.
    PreVote = 20,
    /// The leader hands over.
    TransferLeader = 21,
    /// A whole snapshot.
    Snapshot = 22,
    /// A voter saw the leader's process gone.
    DeathNotice = 23,
    /// A question whether a replica would take over the lead.
    WouldLead = 24,
    /// A stretch of the log is asked for, to repair the asker's.
    FetchRange = 25,
    /// A checkpoint is asked for, in place of one that is damaged.
    FetchCheckpoint = 26,
    /// The digests of a segment are asked for, to compare.
    FetchDigests = 27,
    /// A client request for the leader.
    Forward = 32,
    /// The same, and nobody waits for an answer.
    ForwardOneway = 33,
    /// A copy of the client table is asked for.
    CopyClientTable = 34,
    /// A node whose identity was retired asks the leader for the next step of its return.
    Replace = 40,
    /// A node that is no member yet asks the leader to be let in.
    Join = 41,
    /// A call of the HTTP side that another node must answer.
    Admin = 44,
    /// The answer to a call, by sequence.
    Answer = 48,
    /// A call that was not served, by sequence, with the reason.
    Failed = 49,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Hello,
            2 => Self::Welcome,
            3 => Self::Refused,
            4 => Self::Ping,
            16 => Self::Append,
            17 => Self::Appended,
            18 => Self::Heartbeat,
            19 => Self::Vote,
            20 => Self::PreVote,
            21 => Self::TransferLeader,
            22 => Self::Snapshot,
            23 => Self::DeathNotice,
            24 => Self::WouldLead,
            25 => Self::FetchRange,
            26 => Self::FetchCheckpoint,
            27 => Self::FetchDigests,
            32 => Self::Forward,
            33 => Self::ForwardOneway,
            34 => Self::CopyClientTable,
            40 => Self::Replace,
            41 => Self::Join,
            44 => Self::Admin,
            48 => Self::Answer,
            49 => Self::Failed,
            _ => return None,
        })
    }
}

/// Who speaks to whom about what; repeated in every frame, so that a reused address never receives a stranger's traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) cluster_id: [u8; 16],
    /// Empty outside a group.
    pub(crate) group: Bytes,
    pub(crate) sender: u64,
    pub(crate) target: u64,
}

/// A received frame whose lengths and checksums have been verified.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) sequence: u64,
    pub(crate) envelope: Envelope,
    pub(crate) fields: Bytes,
    pub(crate) tail: Bytes,
}

impl Frame {
    /// A reader over the fields of the kind.
    pub(crate) fn fields(&self) -> Fields {
        Fields(self.fields.clone())
    }
}

/// How many bytes the frame at the start of `prefix` has, prefix included; `None` while the prefix is incomplete.
pub(crate) fn frame_bytes(prefix: &[u8], bytes_max: usize) -> Result<Option<usize>, FrameError> {
    let Some(length) = read_u32(prefix, 0) else { return Ok(None) };
    let Some(head) = read_u32(prefix, 4) else { return Ok(None) };
    let total = length.saturating_add(4);
    if total > bytes_max {
        return Err(FrameError::TooLarge { bytes: total, bytes_max });
    }
    if !(HEAD_FIXED_BYTES..=HEAD_BYTES_MAX).contains(&head) || head.saturating_add(PREFIX_BYTES) > total {
        return Err(FrameError::HeadLength { head, total });
    }
    Ok(Some(total))
}

/// Decodes one whole frame, as measured by [`frame_bytes`]. The fields and the tail are slices of `frame`.
pub(crate) fn decode(mut frame: Bytes) -> Result<Frame, FrameError> {
    let total = frame_bytes(&frame, FRAME_BYTES_MAX)?.ok_or(FrameError::Short)?;
    if frame.len() != total {
        return Err(FrameError::Short);
    }
    frame.advance(4);
    let head_len = frame.get_u32() as usize;
    let head_crc = frame.get_u32();
    let tail_crc = frame.get_u32();
    let mut head = frame.split_to(head_len);
    let tail = frame;
    if crc32fast::hash(&head) != head_crc {
        return Err(FrameError::Checksum("head"));
    }
    if checksum(std::slice::from_ref(&tail)) != tail_crc {
        return Err(FrameError::Checksum("tail"));
    }
    // `frame_bytes` admitted at least the fixed part.
    let version = head.get_u8();
    if version != VERSION {
        return Err(FrameError::Version(version));
    }
    let kind = head.get_u8();
    let kind = Kind::from_byte(kind).ok_or(FrameError::Kind(kind))?;
    let group_len = usize::from(head.get_u8());
    if head.get_u8() != 0 {
        return Err(FrameError::Field("reserved byte"));
    }
    let sequence = head.get_u64();
    let mut cluster_id = [0; 16];
    head.copy_to_slice(&mut cluster_id);
    let sender = head.get_u64();
    let target = head.get_u64();
    if group_len > NAME_BYTES_MAX || head.len() < group_len {
        return Err(FrameError::Field("group name"));
    }
    let group = head.split_to(group_len);
    Ok(Frame { kind, sequence, envelope: Envelope { cluster_id, group, sender, target }, fields: head, tail })
}

/// A frame being written: the head in one buffer, the tail as slices that are not copied.
#[derive(Debug)]
pub(crate) struct FrameWriter {
    head: BytesMut,
}

impl FrameWriter {
    /// Starts a frame. Fields are then put into [`FrameWriter::fields`].
    ///
    /// # Panics
    /// If the group's name is longer than a name may be; names are checked when a group is configured.
    pub(crate) fn new(kind: Kind, sequence: u64, envelope: &Envelope, fields_bytes: usize) -> Self {
        assert!(envelope.group.len() <= NAME_BYTES_MAX);
        let mut head = BytesMut::with_capacity(PREFIX_BYTES + HEAD_FIXED_BYTES + envelope.group.len() + fields_bytes);
        head.put_bytes(0, PREFIX_BYTES);
        head.put_u8(VERSION);
        head.put_u8(kind as u8);
        head.put_u8(envelope.group.len() as u8);
        head.put_u8(0);
        head.put_u64(sequence);
        head.put_slice(&envelope.cluster_id);
        head.put_u64(envelope.sender);
        head.put_u64(envelope.target);
        head.put_slice(&envelope.group);
        Self { head }
    }

    /// Where the fields of the kind go.
    pub(crate) fn fields(&mut self) -> &mut BytesMut {
        &mut self.head
    }

    /// Finishes the frame and hands its slices to `out`, in order.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`] if the receiver would refuse the frame.
    pub(crate) fn finish(mut self, tail: Vec<Bytes>, out: &mut impl Extend<Bytes>) -> Result<(), FrameError> {
        let tail_bytes: usize = tail.iter().map(Bytes::len).sum();
        let head_len = self.head.len() - PREFIX_BYTES;
        let total = self.head.len() + tail_bytes;
        if total > FRAME_BYTES_MAX {
            return Err(FrameError::TooLarge { bytes: total, bytes_max: FRAME_BYTES_MAX });
        }
        if head_len > HEAD_BYTES_MAX {
            return Err(FrameError::HeadLength { head: head_len, total });
        }
        let (prefix, head) = self.head.split_at_mut(PREFIX_BYTES);
        let mut prefix: &mut [u8] = prefix;
        prefix.put_u32((total - 4) as u32);
        prefix.put_u32(head_len as u32);
        prefix.put_u32(crc32fast::hash(head));
        prefix.put_u32(checksum(&tail));
        out.extend(std::iter::once(self.head.freeze()));
        out.extend(gather(tail));
        Ok(())
    }
}

/// Copies runs of small slices together, so that a system call moves few ranges; large ones go as they are.
fn gather(slices: Vec<Bytes>) -> Vec<Bytes> {
    let mut gathered: Vec<Bytes> = Vec::with_capacity(slices.len());
    let mut run = BytesMut::new();
    let small = slices.iter().filter(|slice| slice.len() <= COPY_BYTES_MAX).map(Bytes::len).sum();
    for (at, slice) in slices.iter().enumerate() {
        let alone = slice.len() > COPY_BYTES_MAX
            || run.is_empty() && slices.get(at + 1).is_none_or(|next| next.len() > COPY_BYTES_MAX);
        if !alone {
            if run.capacity() == 0 {
                run.reserve(small);
            }
            run.put_slice(slice);
            continue;
        }
        if !run.is_empty() {
            gathered.push(run.split().freeze());
        }
        if !slice.is_empty() {
            gathered.push(slice.clone());
        }
    }
    if !run.is_empty() {
        gathered.push(run.freeze());
    }
    gathered
}

/// Up to this many bytes copying is cheaper than one more slice in a vectored write.
const COPY_BYTES_MAX: usize = 4 << 10;

fn checksum(tail: &[Bytes]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    let mut any = false;
    for slice in tail {
        any |= !slice.is_empty();
        hasher.update(slice);
    }
    if any { hasher.finalize() } else { 0 }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<usize> {
    let field: [u8; 4] = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(field)).ok()
}

/// Reads fields one after another; every read is bounded by what is left.
#[derive(Clone, Debug)]
pub(crate) struct Fields(Bytes);

impl Fields {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, FrameError> {
        self.0.try_get_u8().map_err(|_| FrameError::Field(field))
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, FrameError> {
        self.0.try_get_u16().map_err(|_| FrameError::Field(field))
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, FrameError> {
        self.0.try_get_u32().map_err(|_| FrameError::Field(field))
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, FrameError> {
        self.0.try_get_u64().map_err(|_| FrameError::Field(field))
    }

    /// A byte that must be zero or one.
    pub(crate) fn bool(&mut self, field: &'static str) -> Result<bool, FrameError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FrameError::Field(field)),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], FrameError> {
        let mut array = [0; N];
        self.0.try_copy_to_slice(&mut array).map_err(|_| FrameError::Field(field))?;
        Ok(array)
    }

    /// `bytes` bytes, as a slice of the frame.
    pub(crate) fn slice(&mut self, bytes: usize, field: &'static str) -> Result<Bytes, FrameError> {
        if bytes > self.0.len() {
            return Err(FrameError::Field(field));
        }
        Ok(self.0.split_to(bytes))
    }

    /// A length byte and that many bytes of UTF-8.
    pub(crate) fn name(&mut self, field: &'static str) -> Result<String, FrameError> {
        let length = usize::from(self.u8(field)?);
        if length > NAME_BYTES_MAX {
            return Err(FrameError::Field(field));
        }
        let bytes = self.slice(length, field)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| FrameError::Field(field))
    }

    /// Two length bytes and that many bytes of UTF-8.
    pub(crate) fn text(&mut self, field: &'static str) -> Result<String, FrameError> {
        let length = usize::from(self.u16(field)?);
        let bytes = self.slice(length, field)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| FrameError::Field(field))
    }

    /// How many bytes are left.
    pub(crate) fn remaining(&self) -> usize {
        self.0.len()
    }

    /// # Errors
    /// If bytes are left over: both sides must agree on every field.
    /// Whether nothing is left.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn finish(self, what: &'static str) -> Result<(), FrameError> {
        if self.0.is_empty() { Ok(()) } else { Err(FrameError::Field(what)) }
    }
}

/// Writes a length byte and the name, cut to what a name may be.
pub(crate) fn put_name(out: &mut BytesMut, name: &str) {
    let bytes = &name.as_bytes()[..name.floor_char_boundary(NAME_BYTES_MAX)];
    out.put_u8(bytes.len() as u8);
    out.put_slice(bytes);
}

/// Writes two length bytes and the text, cut to 1 KiB: it is for a log line.
pub(crate) fn put_text(out: &mut BytesMut, text: &str) {
    let bytes = &text.as_bytes()[..text.floor_char_boundary(1024)];
    out.put_u16(bytes.len() as u16);
    out.put_slice(bytes);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn envelope() -> Envelope {
        Envelope { cluster_id: *b"0123456789abcdef", group: Bytes::from_static(b"broker-a"), sender: 1, target: 2 }
    }

    fn encoded(tail: Vec<Bytes>) -> Bytes {
        let mut writer = FrameWriter::new(Kind::Append, 7, &envelope(), 8);
        writer.fields().put_u64(42);
        let mut out: Vec<Bytes> = Vec::new();
        writer.finish(tail, &mut out).unwrap();
        Bytes::from(out.concat())
    }

    #[test]
    fn frame_comes_back_as_it_was_written() {
        let bytes = encoded(vec![Bytes::from_static(b"abc"), Bytes::new(), Bytes::from(vec![9; 8000])]);
        assert_eq!(frame_bytes(&bytes, FRAME_BYTES_MAX).unwrap(), Some(bytes.len()));
        let frame = decode(bytes).unwrap();
        assert_eq!((frame.kind, frame.sequence), (Kind::Append, 7));
        assert_eq!(frame.envelope, envelope());
        let mut fields = frame.fields();
        assert_eq!(fields.u64("number").unwrap(), 42);
        fields.finish("append").unwrap();
        assert_eq!(frame.tail.len(), 8003);
        assert_eq!(&frame.tail[..4], b"abc\x09");
    }

    #[test]
    fn small_slices_are_gathered_and_large_ones_are_not_copied() {
        let check = |lengths: &[usize], expected: &[usize]| {
            let slices: Vec<Bytes> = lengths.iter().map(|length| Bytes::from(vec![*length as u8; *length])).collect();
            let gathered = gather(slices.clone());
            assert_eq!(gathered.iter().map(Bytes::len).collect::<Vec<_>>(), expected);
            assert_eq!(gathered.concat(), slices.concat());
        };
        check(&[], &[]);
        check(&[0], &[]);
        check(&[10], &[10]);
        check(&[10, 20, 0, 30], &[60]);
        check(&[9000, 10, 20, 9000, 10, 9000], &[9000, 30, 9000, 10, 9000]);
        check(&[10, 9000, 10], &[10, 9000, 10]);
        check(&[4096; 100], &[4096 * 100]);
    }

    #[test]
    fn length_is_refused_before_the_frame_is_there() {
        let mut prefix = BytesMut::new();
        prefix.put_u32(u32::MAX);
        prefix.put_u32(44);
        assert!(matches!(frame_bytes(&prefix, FRAME_BYTES_MAX), Err(FrameError::TooLarge { .. })));
        let mut prefix = BytesMut::new();
        prefix.put_u32(100);
        prefix.put_u32(99);
        assert!(matches!(frame_bytes(&prefix, FRAME_BYTES_MAX), Err(FrameError::HeadLength { .. })));
        assert_eq!(frame_bytes(&[0, 0, 0, 100, 0], FRAME_BYTES_MAX).unwrap(), None);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = encoded(vec![Bytes::from_static(b"payload")]);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(Bytes::from(damaged)).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn texts_are_cut_at_a_character() {
        let mut out = BytesMut::new();
        put_name(&mut out, &"\u{e9}".repeat(100));
        assert_eq!(Fields::new(out.freeze()).name("name").unwrap().chars().count(), 63);
    }

    proptest! {
        #[test]
        fn noise_is_refused_without_a_panic(noise in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = frame_bytes(&noise, FRAME_BYTES_MAX);
            let _ = decode(Bytes::from(noise));
        }

        #[test]
        fn damaged_frames_are_refused_without_a_panic(at in 0usize..90, value: u8, cut in 0usize..90) {
            let mut bytes = encoded(vec![Bytes::from_static(b"payload")]).to_vec();
            if let Some(byte) = bytes.get_mut(at) { *byte = value; }
            bytes.truncate(cut);
            let _ = frame_bytes(&bytes, FRAME_BYTES_MAX);
            let _ = decode(Bytes::from(bytes));
        }
    }
}
