//! A small file of two slots: whatever happens, one of them holds the last synced contents.
//!
//! A write goes to the slot that does *not* hold the newest synced contents, as often as it likes;
//! only a sync makes that slot the one to be spared. So no crash, and no number of writes before it,
//! can take the synced contents along.
//!
//! Each slot is one page, big-endian:
//!
//! | Bytes | Field |
//! | --- | --- |
//! | 0-7 | magic of the file |
//! | 8-9 | version |
//! | 10-11 | zero |
//! | 12-15 | CRC over everything else up to the contents' end |
//! | 16-23 | sequence number, higher is newer |
//! | 24-27 | length of the contents |
//! | 28-31 | zero |
//! | 32.. | contents |

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::error::{Error, Result};
use crate::options::Preparation;
use crate::region::{Files, Region};

const SLOT_BYTES: u64 = 4096;
const HEAD_BYTES: usize = 32;
/// The size of every file of this kind.
pub(crate) const FILE_BYTES: u64 = 2 * SLOT_BYTES;
/// The most that fits a slot.
pub(crate) const CONTENTS_MAX: usize = 4096 - HEAD_BYTES;

/// What makes one small file different from another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotKind {
    pub(crate) name: &'static str,
    pub(crate) magic: [u8; 8],
    pub(crate) version: u16,
    /// Why the store does not start without it, and the way out.
    pub(crate) if_unreadable: &'static str,
}

/// An open small file.
#[derive(Debug)]
pub(crate) struct SlotFile {
    kind: SlotKind,
    region: Arc<dyn Region>,
    sequence: u64,
    /// The slot that holds the newest synced contents.
    synced: u64,
    /// Whether the other slot holds newer contents that are not synced.
    dirty: bool,
}

impl SlotFile {
    /// Creates the file with its first contents, durably.
    pub(crate) fn create(files: &dyn Files, kind: SlotKind, contents: &[u8]) -> Result<Self> {
        let first = encode(&kind, 1, contents);
        let region = files.create(kind.name, FILE_BYTES, &first, Preparation::Prewrite)?;
        Ok(Self { kind, region, sequence: 1, synced: 0, dirty: false })
    }

    /// Opens the file and returns its newest readable contents.
    ///
    /// What the operating system still holds back is synced first, so what is returned is durable.
    pub(crate) fn open(files: &dyn Files, kind: SlotKind) -> Result<(Self, Bytes)> {
        let region = files.open(kind.name)?;
        if region.bytes() != FILE_BYTES {
            return Err(Error::WrongSize {
                file: region.path().to_owned(),
                found: region.bytes(),
                expected: FILE_BYTES,
            });
        }
        region.sync().map_err(|e| Error::io("syncing", region.path(), e))?;
        let mut newest: Option<(u64, u64, Bytes)> = None;
        let mut found = Vec::new();
        for slot in 0..2 {
            match read_slot(&kind, &*region, slot) {
                Ok((sequence, contents)) => {
                    if newest.as_ref().is_none_or(|(newest, ..)| sequence > *newest) {
                        newest = Some((sequence, slot, contents));
                    }
                }
                Err(SlotFault::Version(version)) => {
                    return Err(Error::FormatVersion {
                        file: region.path().to_owned(),
                        found: version,
                        expected: kind.version,
                    });
                }
                Err(SlotFault::Text(text)) => found.push(text),
            }
        }
        let Some((sequence, synced, contents)) = newest else {
            return Err(Error::UnreadableSlots {
                file: region.path().to_owned(),
                found: found.join("; "),
                consequence: kind.if_unreadable,
            });
        };
        Ok((Self { kind, region, sequence, synced, dirty: false }, contents))
    }

    /// Writes contents that the next [`SlotFile::sync`] makes durable.
    pub(crate) fn write(&mut self, contents: &[u8]) -> Result<()> {
        self.sequence += 1;
        let slot = encode(&self.kind, self.sequence, contents);
        let other = 1 - self.synced;
        self.dirty = true;
        self.region.write(other * SLOT_BYTES, &slot).map_err(|e| Error::io("writing", self.region.path(), e))
    }

    /// Makes the last written contents durable.
    ///
    /// Never called again after it failed: the kernel reports a failed write-back once.
    pub(crate) fn sync(&mut self) -> Result<()> {
        if self.dirty {
            self.region.sync().map_err(|e| Error::io("syncing", self.region.path(), e))?;
            self.synced = 1 - self.synced;
            self.dirty = false;
        }
        Ok(())
    }

    /// Writes contents and makes them durable.
    pub(crate) fn save(&mut self, contents: &[u8]) -> Result<()> {
        self.write(contents)?;
        self.sync()
    }

    /// Whether something is written and not synced.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty
    }
}

fn encode(kind: &SlotKind, sequence: u64, contents: &[u8]) -> BytesMut {
    assert!(contents.len() <= CONTENTS_MAX);
    let mut out = BytesMut::with_capacity(HEAD_BYTES + contents.len());
    out.put_slice(&kind.magic);
    out.put_u16(kind.version);
    out.put_u16(0);
    out.put_u32(0);
    out.put_u64(sequence);
    out.put_u32(u32::try_from(contents.len()).expect("contents fit a page"));
    out.put_u32(0);
    out.put_slice(contents);
    let crc = crc_without_itself(&out);
    out[12..16].copy_from_slice(&crc.to_be_bytes());
    out
}

fn crc_without_itself(slot: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&slot[..12]);
    hasher.update(&slot[16..]);
    hasher.finalize()
}

enum SlotFault {
    Version(u16),
    Text(String),
}

fn read_slot(kind: &SlotKind, region: &dyn Region, slot: u64) -> std::result::Result<(u64, Bytes), SlotFault> {
    let text = |text: &str| SlotFault::Text(format!("slot {slot}: {text}"));
    let mut page = vec![0; 4096];
    region.read(slot * SLOT_BYTES, &mut page).map_err(|e| text(&e.to_string()))?;
    let page = Bytes::from(page);
    let mut fields = page.clone();
    let mut magic = [0; 8];
    fields.copy_to_slice(&mut magic);
    if page.iter().all(|byte| *byte == 0) {
        return Err(text("never written"));
    }
    if magic != kind.magic {
        return Err(text("another kind of file"));
    }
    let version = fields.get_u16();
    let reserved = fields.get_u16();
    let crc = fields.get_u32();
    let sequence = fields.get_u64();
    let bytes = usize::try_from(fields.get_u32()).unwrap_or(usize::MAX);
    if bytes > CONTENTS_MAX {
        return Err(text("a length that does not fit"));
    }
    if crc != crc_without_itself(&page[..HEAD_BYTES + bytes]) {
        return Err(text("a checksum that does not hold"));
    }
    if version != kind.version || reserved != 0 {
        return Err(SlotFault::Version(version));
    }
    Ok((sequence, page.slice(HEAD_BYTES..HEAD_BYTES + bytes)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::region::Directory;

    const KIND: SlotKind = SlotKind { name: "small", magic: *b"testtest", version: 3, if_unreadable: "a test" };

    fn poke(files: &dyn Files, offset: u64, byte: u8) {
        let file = std::fs::File::options().write(true).open(files.path(KIND.name)).unwrap();
        file.write_all_at(&[byte], offset).unwrap();
    }

    #[test]
    fn the_newest_readable_slot_counts() {
        let dir = tempfile::tempdir().unwrap();
        let files = Directory::new(dir.path().to_owned());
        let mut file = SlotFile::create(&files, KIND, b"one").unwrap();
        file.save(b"two").unwrap();
        file.save(b"three").unwrap();
        assert_eq!(b"three".as_slice(), SlotFile::open(&files, KIND).unwrap().1);
        poke(&files, 33, 0xff);
        assert_eq!(b"two".as_slice(), SlotFile::open(&files, KIND).unwrap().1);
        poke(&files, 4096 + 33, 0xff);
        let error = SlotFile::open(&files, KIND).unwrap_err();
        assert!(matches!(error, Error::UnreadableSlots { .. }), "{error}");
    }

    #[test]
    fn writes_without_a_sync_spare_the_synced_slot() {
        let dir = tempfile::tempdir().unwrap();
        let files = Directory::new(dir.path().to_owned());
        let mut file = SlotFile::create(&files, KIND, b"one").unwrap();
        for _ in 0..3 {
            file.write(b"lazy").unwrap();
        }
        poke(&files, 4096 + 33, 0xff);
        assert_eq!(b"one".as_slice(), SlotFile::open(&files, KIND).unwrap().1);
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let files = Directory::new(dir.path().to_owned());
        SlotFile::create(&files, SlotKind { version: 4, ..KIND }, b"one").unwrap();
        let error = SlotFile::open(&files, KIND).unwrap_err();
        assert!(matches!(error, Error::FormatVersion { found: 4, expected: 3, .. }), "{error}");
    }
}
