//! What a power cut leaves of a store in the worst case: nothing that was not synced, and another boot.
//!
//! Works on the files of a stopped store, by the layouts that `progress`, `node` and the segments have on disk.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

const SLOT_BYTES: usize = 4096;
const SLOT_HEAD_BYTES: usize = 32;
/// In a slot of `node`, behind its head: segment size, the clean mark, the boot id.
const SEGMENT_BYTES_AT: usize = SLOT_HEAD_BYTES + 56;
const CLEAN_AT: usize = SLOT_HEAD_BYTES + 65;
const BOOT_ID_AT: usize = SLOT_HEAD_BYTES + 84;
/// Where records start in a segment, and where what opens it lies.
const RECORDS_AT: u64 = 4096;
const OPENING: std::ops::Range<u64> = 512..1024;

/// Makes the store in `dir` what a power cut may leave, and returns how many bytes of records were lost.
///
/// `survivors` is told up to where the log is proven to be on disk, and says up to where it is.
pub(crate) fn power_cut(dir: &Path, survivors: impl FnOnce(u64) -> u64) -> u64 {
    let progress = newest_slot(&fs::read(dir.join("progress")).unwrap()).1;
    let flushed_end = u64::from_be_bytes(progress[SLOT_HEAD_BYTES..SLOT_HEAD_BYTES + 8].try_into().unwrap());
    let kept_end = survivors(flushed_end);
    let segment_bytes = boot_again(&dir.join("node"));
    let mut lost = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let Ok(base) = name.parse::<u64>() else { continue };
        if base + segment_bytes <= kept_end {
            continue;
        }
        let file = File::options().read(true).write(true).open(&path).unwrap();
        if base > kept_end {
            lost += zero(&file, OPENING);
        }
        lost += zero(&file, kept_end.saturating_sub(base).max(RECORDS_AT)..segment_bytes);
    }
    lost
}

/// Zeroes a range, and returns how many bytes were not zero.
fn zero(file: &File, range: std::ops::Range<u64>) -> u64 {
    let mut lost = 0;
    let mut at = range.start;
    while at < range.end {
        let mut bytes = vec![0; usize::try_from((range.end - at).min(1 << 20)).unwrap()];
        file.read_exact_at(&mut bytes, at).unwrap();
        let set = bytes.iter().filter(|byte| **byte != 0).count() as u64;
        if set > 0 {
            lost += set;
            file.write_all_at(&vec![0; bytes.len()], at).unwrap();
        }
        at += bytes.len() as u64;
    }
    lost
}

/// Changes the boot id under which the store was last started, takes the clean mark away, and returns the segment size.
fn boot_again(node: &Path) -> u64 {
    let (at, mut slot) = newest_slot(&fs::read(node).unwrap());
    slot[CLEAN_AT] = 0;
    slot[BOOT_ID_AT] ^= 1;
    let contents = u32::from_be_bytes(slot[24..28].try_into().unwrap()) as usize;
    let mut covered = slot[..12].to_vec();
    covered.extend_from_slice(&slot[16..SLOT_HEAD_BYTES + contents]);
    slot[12..16].copy_from_slice(&crc32(&covered).to_be_bytes());
    File::options().write(true).open(node).unwrap().write_all_at(&slot, at as u64).unwrap();
    u64::from_be_bytes(slot[SEGMENT_BYTES_AT..SEGMENT_BYTES_AT + 8].try_into().unwrap())
}

/// The slot with the highest sequence number, and where it is.
fn newest_slot(file: &[u8]) -> (usize, Vec<u8>) {
    let sequence = |at: usize| u64::from_be_bytes(file[at + 16..at + 24].try_into().unwrap());
    let at = if sequence(SLOT_BYTES) > sequence(0) { SLOT_BYTES } else { 0 };
    (at, file[at..at + SLOT_BYTES].to_vec())
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}
