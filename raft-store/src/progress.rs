//! Lower bounds of the watermarks, and the purged mark.
//!
//! `progress` is written after each group commit without a sync of its own, so it lags. What it says
//! to be flushed certainly is. It also carries the one intention that must survive a crash: a
//! truncation that has begun. `purged` is synced before any segment is unlinked.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::error::{Error, Result};
use crate::ids::{LogId, LogIndex, LogPosition, Term};
use crate::region::Files;
use crate::slots::{SlotFile, SlotKind};
use crate::view::ResumePoint;

/// The file of hints.
pub(crate) const PROGRESS: SlotKind = SlotKind {
    name: "progress",
    magic: *b"gantPROG",
    version: 1,
    if_unreadable: "how much of the log is proven durable is unknown: replace this replica under a new id",
};

/// The purged mark.
pub(crate) const PURGED: SlotKind = SlotKind {
    name: "purged",
    magic: *b"gantPURG",
    version: 1,
    if_unreadable: "where the log starts is unknown: replace this replica under a new id",
};

/// What `progress` holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Hints {
    /// The disk has everything below.
    pub(crate) flushed_end: LogPosition,
    pub(crate) committed: Option<LogId>,
    pub(crate) applied: Option<LogId>,
    /// A truncation to this end has begun and may not be complete.
    pub(crate) cut: Option<LogPosition>,
}

/// What `purged` holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Purged {
    /// The last entry no longer held.
    pub(crate) id: LogId,
    /// Where the log goes on behind it.
    pub(crate) resume: ResumePoint,
    /// Whether all segments are to be thrown away first: none of them leads up to `id`.
    pub(crate) reset: bool,
}

/// The open file of hints.
#[derive(Debug)]
pub(crate) struct Progress {
    file: SlotFile,
    hints: Hints,
    /// Flushed end at the last sync of this file.
    synced_end: LogPosition,
}

impl Progress {
    pub(crate) fn create(files: &dyn Files, hints: Hints) -> Result<Self> {
        let file = SlotFile::create(files, PROGRESS, &encode_hints(&hints))?;
        Ok(Self { file, hints, synced_end: hints.flushed_end })
    }

    pub(crate) fn open(files: &dyn Files) -> Result<Self> {
        let (file, contents) = SlotFile::open(files, PROGRESS)?;
        let hints = decode_hints(contents).ok_or_else(|| shape(files, &PROGRESS))?;
        Ok(Self { file, hints, synced_end: hints.flushed_end })
    }

    pub(crate) fn hints(&self) -> Hints {
        self.hints
    }

    /// Writes new hints without a sync.
    pub(crate) fn note(&mut self, hints: Hints) -> Result<()> {
        if hints == self.hints {
            return Ok(());
        }
        self.hints = hints;
        self.file.write(&encode_hints(&hints))
    }

    /// Writes new hints and makes them durable.
    pub(crate) fn save(&mut self, hints: Hints) -> Result<()> {
        self.note(hints)?;
        self.sync()
    }

    /// The same, even if they are what was found: after a lost write-back that may be in memory only.
    pub(crate) fn save_again(&mut self, hints: Hints) -> Result<()> {
        self.hints = hints;
        self.file.write(&encode_hints(&hints))?;
        self.sync()
    }

    pub(crate) fn sync(&mut self) -> Result<()> {
        self.file.sync()?;
        self.synced_end = self.hints.flushed_end;
        Ok(())
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.file.is_dirty()
    }

    /// How far the durable hint lags behind what is known to be flushed.
    pub(crate) fn lag_bytes(&self) -> u64 {
        self.hints.flushed_end.get().saturating_sub(self.synced_end.get())
    }
}

/// The open purged mark.
#[derive(Debug)]
pub(crate) struct PurgedFile(SlotFile);

impl PurgedFile {
    pub(crate) fn create(files: &dyn Files) -> Result<Self> {
        SlotFile::create(files, PURGED, &encode_purged(None)).map(Self)
    }

    pub(crate) fn open(files: &dyn Files) -> Result<(Self, Option<Purged>)> {
        let (file, contents) = SlotFile::open(files, PURGED)?;
        let purged = decode_purged(contents).ok_or_else(|| shape(files, &PURGED))?;
        Ok((Self(file), purged))
    }

    /// See [`HardState::save_again`](crate::hard_state::HardState::save_again).
    pub(crate) fn save_again(&mut self, purged: Option<Purged>) -> Result<()> {
        self.0.save(&encode_purged(purged))
    }

    pub(crate) fn save(&mut self, purged: Purged) -> Result<()> {
        self.0.save(&encode_purged(Some(purged)))
    }
}

fn shape(files: &dyn Files, kind: &SlotKind) -> Error {
    Error::UnreadableSlots {
        file: files.path(kind.name),
        found: "contents of another shape".into(),
        consequence: kind.if_unreadable,
    }
}

fn put_id(out: &mut BytesMut, id: Option<LogId>) {
    out.put_u8(u8::from(id.is_some()));
    out.put_u64(id.map_or(0, |id| id.term.get()));
    out.put_u64(id.map_or(0, |id| id.index.get()));
}

fn take_id(from: &mut Bytes) -> Option<Option<LogId>> {
    let present = from.try_get_u8().ok()?;
    let term = Term::new(from.try_get_u64().ok()?);
    let index = LogIndex::new(from.try_get_u64().ok()?);
    match present {
        0 => Some(None),
        1 => Some(Some(LogId::new(term, index))),
        _ => None,
    }
}

fn encode_hints(hints: &Hints) -> BytesMut {
    let mut out = BytesMut::with_capacity(64);
    out.put_u64(hints.flushed_end.get());
    put_id(&mut out, hints.committed);
    put_id(&mut out, hints.applied);
    out.put_u8(u8::from(hints.cut.is_some()));
    out.put_u64(hints.cut.map_or(0, LogPosition::get));
    out
}

fn decode_hints(mut from: Bytes) -> Option<Hints> {
    let flushed_end = LogPosition::new(from.try_get_u64().ok()?);
    let committed = take_id(&mut from)?;
    let applied = take_id(&mut from)?;
    let present = from.try_get_u8().ok()?;
    let cut = LogPosition::new(from.try_get_u64().ok()?);
    Some(Hints { flushed_end, committed, applied, cut: (present != 0).then_some(cut) })
}

fn encode_purged(purged: Option<Purged>) -> BytesMut {
    let mut out = BytesMut::with_capacity(32);
    put_id(&mut out, purged.map(|purged| purged.id));
    let resume = purged.map_or_else(ResumePoint::default, |purged| purged.resume);
    out.put_u64(resume.position.get());
    out.put_u32(resume.chain);
    out.put_u8(u8::from(purged.is_some_and(|purged| purged.reset)));
    out
}

fn decode_purged(mut from: Bytes) -> Option<Option<Purged>> {
    let id = take_id(&mut from)?;
    let position = LogPosition::new(from.try_get_u64().ok()?);
    let chain = from.try_get_u32().ok()?;
    let reset = from.try_get_u8().ok()? != 0;
    Some(id.map(|id| Purged { id, resume: ResumePoint { position, chain }, reset }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Directory;

    #[test]
    fn both_files_survive_a_reopen() {
        let dir = tempfile::tempdir().unwrap();
        let files = Directory::new(dir.path().to_owned());
        let id = LogId::new(Term::new(3), LogIndex::new(9));
        let hints = Hints {
            flushed_end: LogPosition::new(70_000),
            committed: Some(id),
            applied: None,
            cut: Some(LogPosition::new(0)),
        };
        Progress::create(&files, Hints::default()).unwrap().save(hints).unwrap();
        assert_eq!(hints, Progress::open(&files).unwrap().hints());

        let purged = Purged { id, resume: ResumePoint { position: LogPosition::new(4096), chain: 77 }, reset: false };
        PurgedFile::create(&files).unwrap().save(purged).unwrap();
        assert_eq!(Some(purged), PurgedFile::open(&files).unwrap().1);
    }
}
