//! What is left behind when the disk cannot read a page of a mapping.
//!
//! The kernel then sends SIGBUS, and the process ends: a page that cannot be read has no contents to go on with. The
//! handler writes which segment it was, and where in it, to a file that is open for that, and to standard error; then it
//! gives the signal its default action back and returns, so that the same access ends the process. The next start reads
//! the notes, reads the page by a call that can fail, and maps a segment no more that did it again and again.
//!
//! A handler may call next to nothing. It looks through a table of atomics that says which addresses are which segment,
//! formats into a buffer on its stack, and calls `write`, `pwrite`, `clock_gettime` and `sigaction`, which are allowed.
//! The table has as many places as the process may have mappings, so it also keeps their number in bounds.
#![expect(unsafe_code, reason = "a signal handler; every block says why it is sound")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::ids::LogPosition;

/// The most mappings of a process. The kernel's own limit is 65,530, of everything.
pub(crate) const MAPPINGS_MAX: usize = 1024;
/// The file of notes in the directory of a store.
pub(crate) const NOTES: &str = "sigbus";
/// Each note has this many bytes: `segment, offset, seconds` and spaces, and a line feed.
const NOTE_BYTES: usize = 64;
const NOTES_MAX: usize = 32;
/// The size of the file. It never changes, so that a note needs no room on the disk.
pub(crate) const NOTES_BYTES: u64 = (NOTE_BYTES * NOTES_MAX) as u64;

/// A segment that did it so often within so long is not mapped any more.
const TIMES_MAX: usize = 3;
const WITHIN: Duration = Duration::from_secs(600);

// ---- the table ----

struct Place {
    /// First address; 0 while the place is free, 1 while it is being filled.
    start: AtomicUsize,
    bytes: AtomicUsize,
    base: AtomicU64,
    notes: AtomicI32,
    /// Where in the file of notes the next one goes.
    notes_at: AtomicU64,
}

const FREE: usize = 0;
const TAKEN: usize = 1;

static TABLE: [Place; MAPPINGS_MAX] = [const {
    Place {
        start: AtomicUsize::new(FREE),
        bytes: AtomicUsize::new(0),
        base: AtomicU64::new(0),
        notes: AtomicI32::new(-1),
        notes_at: AtomicU64::new(0),
    }
}; MAPPINGS_MAX];

/// A place in the table, reserved before a file is mapped and given back when it is unmapped.
#[derive(Debug)]
pub(crate) struct Registered {
    place: usize,
    /// Keeps the descriptor of the notes open.
    _notes: Option<Arc<NotesFile>>,
}

impl Registered {
    /// Reserves a place. `None` if the process has as many mappings as it may have.
    pub(crate) fn reserve(base: LogPosition, notes: Option<Arc<NotesFile>>) -> Option<Self> {
        install();
        let place = TABLE
            .iter()
            .position(|place| place.start.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok())?;
        let entry = &TABLE[place];
        entry.base.store(base.get(), Ordering::Relaxed);
        entry.notes.store(notes.as_ref().map_or(-1, |notes| notes.file.as_raw_fd()), Ordering::Relaxed);
        entry.notes_at.store(notes.as_ref().map_or(0, |notes| notes.next_at), Ordering::Relaxed);
        Some(Self { place, _notes: notes })
    }

    /// Tells the handler which addresses are meant.
    pub(crate) fn mapped_at(&self, start: usize, bytes: usize) {
        let entry = &TABLE[self.place];
        entry.bytes.store(bytes, Ordering::Relaxed);
        entry.start.store(start, Ordering::Release);
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        TABLE[self.place].start.store(FREE, Ordering::Release);
    }
}

// ---- the handler ----

fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
        // SAFETY: zeros are a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: `action` is complete, and the handler keeps to what a handler may do.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
    });
}

extern "C" fn handle(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel hands over a valid `siginfo_t`.
    let info = unsafe { &*info };
    // SAFETY: SIGBUS fills the address field.
    let address = unsafe { info.si_addr() } as usize;
    for place in &TABLE {
        let start = place.start.load(Ordering::Acquire);
        let bytes = place.bytes.load(Ordering::Relaxed);
        if start <= TAKEN || address < start || address - start >= bytes {
            continue;
        }
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is valid for one `timespec`.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
        let mut note = [b' '; NOTE_BYTES];
        put_note(&mut note, place.base.load(Ordering::Relaxed), (address - start) as u64, now.tv_sec.unsigned_abs());
        let notes = place.notes.load(Ordering::Relaxed);
        let at = libc::off_t::try_from(place.notes_at.load(Ordering::Relaxed)).unwrap_or(0);
        const TEXT: &[u8] = b"gantry: the disk cannot read a page of the log: segment, offset, time: ";
        // SAFETY: both buffers are valid for their lengths; a bad descriptor is an error that changes nothing.
        unsafe { libc::pwrite(notes, note.as_ptr().cast(), NOTE_BYTES, at) };
        // SAFETY: as above.
        unsafe { libc::write(2, TEXT.as_ptr().cast(), TEXT.len()) };
        // SAFETY: as above.
        unsafe { libc::write(2, note.as_ptr().cast(), NOTE_BYTES) };
        break;
    }
    // SAFETY: zeros are a valid `sigaction`: the default action, no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = libc::SIG_DFL;
    // SAFETY: `action` is complete. The access that led here is repeated on return, and ends the process.
    unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
}

/// Formats without anything that could allocate or panic.
fn put_note(note: &mut [u8; NOTE_BYTES], base: u64, offset: u64, seconds: u64) {
    put_number(note, 0, base);
    put_number(note, 21, offset);
    put_number(note, 42, seconds);
    if let Some(last) = note.last_mut() {
        *last = b'\n';
    }
}

/// Writes 20 digits from `at` on.
fn put_number(note: &mut [u8; NOTE_BYTES], at: usize, mut number: u64) {
    for digit in (at..at + 20).rev() {
        if let Some(byte) = note.get_mut(digit) {
            *byte = b'0' + u8::try_from(number % 10).unwrap_or(0);
        }
        number /= 10;
    }
}

// ---- the notes ----

/// One note.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Note {
    pub(crate) base: LogPosition,
    pub(crate) offset: u64,
    /// Seconds since 1970.
    pub(crate) at: u64,
}

/// The open file of notes of one store.
#[derive(Debug)]
pub(crate) struct NotesFile {
    file: File,
    next_at: u64,
    notes: Vec<Note>,
}

impl NotesFile {
    /// Reads the notes of earlier runs. `file` is as large as it will ever be.
    pub(crate) fn open(file: File) -> io::Result<Self> {
        let mut bytes = vec![0; NOTE_BYTES * NOTES_MAX];
        file.read_exact_at(&mut bytes, 0)?;
        let notes: Vec<Note> = bytes.chunks(NOTE_BYTES).map_while(parse_note).collect();
        // Of a full file the oldest go. One note is written by each run at the most.
        let kept = if notes.len() == NOTES_MAX { notes[NOTES_MAX / 2..].to_vec() } else { notes.clone() };
        if kept.len() < notes.len() {
            let mut fresh = vec![0; bytes.len()];
            fresh[..kept.len() * NOTE_BYTES].copy_from_slice(&bytes[(NOTES_MAX / 2) * NOTE_BYTES..]);
            file.write_all_at(&fresh, 0)?;
        }
        Ok(Self { file, next_at: (kept.len() * NOTE_BYTES) as u64, notes: kept })
    }

    /// All notes, the oldest first.
    pub(crate) fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Whether the segment at `base` must not be mapped any more: it did it three times within ten minutes.
    pub(crate) fn must_not_map(&self, base: LogPosition) -> bool {
        let times: Vec<u64> = self.notes.iter().filter(|note| note.base == base).map(|note| note.at).collect();
        times.windows(TIMES_MAX).any(|times| match times {
            [first, .., last] => last.saturating_sub(*first) <= WITHIN.as_secs(),
            _ => false,
        })
    }
}

fn parse_note(bytes: &[u8]) -> Option<Note> {
    let number = |at: usize| std::str::from_utf8(bytes.get(at..at + 20)?).ok()?.parse().ok();
    Some(Note { base: LogPosition::new(number(0)?), offset: number(21)?, at: number(42)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_with(notes: &[(u64, u64, u64)]) -> NotesFile {
        let file = tempfile::tempfile().unwrap();
        file.set_len(NOTES_BYTES).unwrap();
        for (number, (base, offset, at)) in notes.iter().enumerate() {
            let mut note = [b' '; NOTE_BYTES];
            put_note(&mut note, *base, *offset, *at);
            file.write_all_at(&note, (number * NOTE_BYTES) as u64).unwrap();
        }
        NotesFile::open(file).unwrap()
    }

    #[test]
    fn notes_come_back_and_the_oldest_go_when_the_file_is_full() {
        let found = file_with(&[(0, 4096, 1), (u64::MAX, 7, 2)]);
        let note = |base, offset, at| Note { base: LogPosition::new(base), offset, at };
        assert_eq!(&[note(0, 4096, 1), note(u64::MAX, 7, 2)], found.notes());
        assert_eq!(2 * NOTE_BYTES as u64, found.next_at);

        let many: Vec<_> = (0..NOTES_MAX as u64).map(|at| (1, 1, at)).collect();
        let found = file_with(&many);
        assert_eq!(16, found.notes().first().unwrap().at);
        let again = NotesFile::open(found.file).unwrap();
        assert_eq!((16, 16 * NOTE_BYTES as u64), (again.notes().len(), again.next_at));
    }

    #[test]
    fn three_times_within_ten_minutes_is_too_often() {
        let base = |base| LogPosition::new(base);
        let found = file_with(&[(1, 0, 100), (1, 0, 400), (2, 0, 500), (1, 0, 699), (2, 0, 5000), (2, 0, 5001)]);
        assert!(found.must_not_map(base(1)));
        assert!(!found.must_not_map(base(2)));
        assert!(!file_with(&[(1, 0, 100), (1, 0, 400), (1, 0, 701)]).must_not_map(base(1)));
    }
}
