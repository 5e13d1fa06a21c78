//! The saved vote. Always synced, by the writer thread, after the log bytes before it are synced.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::error::{Error, Result};
use crate::region::Files;
use crate::slots::{SlotFile, SlotKind};
use crate::view::Vote;

/// The file.
pub(crate) const KIND: SlotKind = SlotKind {
    name: "hard_state",
    magic: *b"gantHARD",
    version: 1,
    if_unreadable: "this node may have voted and must not forget it: replace this replica under a new id",
};

/// The open file.
#[derive(Debug)]
pub(crate) struct HardState(SlotFile);

impl HardState {
    pub(crate) fn create(files: &dyn Files) -> Result<Self> {
        SlotFile::create(files, KIND, &encode(None)).map(Self)
    }

    pub(crate) fn open(files: &dyn Files) -> Result<(Self, Option<Vote>)> {
        let (file, contents) = SlotFile::open(files, KIND)?;
        let vote = decode(contents).ok_or_else(|| Error::UnreadableSlots {
            file: files.path(KIND.name),
            found: "contents of another shape".into(),
            consequence: KIND.if_unreadable,
        })?;
        Ok((Self(file), vote))
    }

    /// Saves what was found once more: after a lost write-back it may be in memory only, although it reads back well.
    pub(crate) fn save_again(&mut self, vote: Option<Vote>) -> Result<()> {
        self.0.save(&encode(vote))
    }

    /// On return the vote is on disk.
    pub(crate) fn save(&mut self, vote: Vote) -> Result<()> {
        self.0.save(&encode(Some(vote)))
    }
}

fn encode(vote: Option<Vote>) -> BytesMut {
    let mut out = BytesMut::with_capacity(18);
    out.put_u8(u8::from(vote.is_some()));
    if let Some(vote) = vote {
        out.put_u8(u8::from(vote.committed));
        out.put_u64(vote.term);
        out.put_u64(vote.node_id);
    }
    out
}

fn decode(mut contents: Bytes) -> Option<Option<Vote>> {
    match contents.try_get_u8().ok()? {
        0 => Some(None),
        1 => {
            let committed = contents.try_get_u8().ok()? != 0;
            let term = contents.try_get_u64().ok()?;
            let node_id = contents.try_get_u64().ok()?;
            Some(Some(Vote { term, node_id, committed }))
        }
        _ => None,
    }
}
