//! The only `unsafe` code of the store: mappings, and the few system calls that std lacks.
//!
//! A mapping is read, never written: bytes get into the file by `pwrite`, through the page cache or past it, and the
//! kernel keeps all views the same. A slice of the mapping is handed out only below the *stable mark*, and
//! [`region`](crate::region), which makes all writes, refuses to touch anything below it. So bytes that
//! somebody can see through a slice never change. The file is never shortened, so a slice never
//! outlives its pages; it may be unlinked, since the mapping lives until its last slice is dropped.
#![expect(unsafe_code, reason = "mappings and system calls; every block says why it is sound")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use bytes::Bytes;
use memmap2::MmapRaw;

use crate::sigbus::Registered;

/// A file mapped for reading.
pub(crate) struct MappedFile {
    whole: Bytes,
    address: usize,
}

/// Owns the mapping on behalf of all slices.
struct Mapping(MmapRaw, #[expect(dead_code, reason = "gives its place back when the mapping goes")] Registered);

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the mapping is valid for its whole length as long as `self` lives, since nobody
        // shortens the file. `Bytes::from_owner` calls this once to learn address and length; the
        // bytes are then looked at only through slices below the stable mark, where they no longer
        // change (see `MappedFile::lend`).
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }
    }
}

impl MappedFile {
    /// Maps all of `file`, known to the handler of SIGBUS as `registered`.
    ///
    /// # Errors
    /// If the operating system refuses, for instance because there are too many mappings.
    pub(crate) fn map(file: &File, registered: Registered) -> io::Result<Self> {
        let map: MmapRaw = memmap2::MmapOptions::new().map_raw_read_only(file)?;
        let address = map.as_ptr() as usize;
        let bytes = map.len();
        registered.mapped_at(address, bytes);
        let this = Self { whole: Bytes::from_owner(Mapping(map, registered)), address };
        // Not worth failing for: the pages would only be part of a core dump.
        let _ = this.advise(0, bytes, libc::MADV_DONTDUMP);
        Ok(this)
    }

    /// A slice of the mapping, without copying.
    ///
    /// The caller sees to it that nobody changes the file below `stable_end` any more.
    ///
    /// # Panics
    /// If the range does not lie below `stable_end`, or that not inside the file.
    pub(crate) fn lend(&self, offset: u64, bytes: u64, stable_end: u64) -> Bytes {
        let start = usize::try_from(offset).expect("an offset in a mapping fits the address space");
        let end = usize::try_from(offset + bytes).expect("an offset in a mapping fits the address space");
        assert!(offset + bytes <= stable_end);
        assert!(end <= self.whole.len());
        self.whole.slice(start..end)
    }

    /// Brings a range into memory, so that looking at it cannot fail later.
    ///
    /// # Errors
    /// If the disk cannot read it. Looking at it without this call would kill the process.
    pub(crate) fn populate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        const PAGE: u64 = 4096;
        let start = offset / PAGE * PAGE;
        let end = (offset + bytes).next_multiple_of(PAGE).min(self.whole.len() as u64);
        let start = usize::try_from(start).map_err(io::Error::other)?;
        let end = usize::try_from(end).map_err(io::Error::other)?;
        match self.advise(start, end.saturating_sub(start), libc::MADV_POPULATE_READ) {
            // Kernels before 5.14 do not know the call.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            result => result,
        }
    }

    /// Reads of the whole file are here and there from now on: no page is read ahead.
    pub(crate) fn advise_random(&self) {
        // It costs time at most.
        let _ = self.advise(0, self.whole.len(), libc::MADV_RANDOM);
    }

    fn advise(&self, start: usize, bytes: usize, advice: libc::c_int) -> io::Result<()> {
        assert!(start + bytes <= self.whole.len().next_multiple_of(4096));
        let address = self.address + start;
        // SAFETY: the range lies inside our own mapping, and the advice changes no contents.
        let result = unsafe { libc::madvise(address as *mut libc::c_void, bytes, advice) };
        check(result)
    }
}

/// Reserves blocks for all of `file`, which then has `bytes` bytes of zeros.
///
/// # Errors
/// `StorageFull` if the disk has not that much left, `Unsupported` if the file system cannot reserve.
pub(crate) fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    fallocate(file, 0, 0, bytes)
}

/// What is going to be done with the pages of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileAdvice {
    /// They are read one after the other.
    Sequential,
    /// They are not read again soon.
    DontNeed,
}

/// Tells the kernel what to do with a range of its cache. It may forget about it.
pub(crate) fn advise_file(file: &File, offset: u64, bytes: u64, advice: FileAdvice) {
    let (Ok(offset), Ok(bytes)) = (libc::off_t::try_from(offset), libc::off_t::try_from(bytes)) else { return };
    let advice = match advice {
        FileAdvice::Sequential => libc::POSIX_FADV_SEQUENTIAL,
        FileAdvice::DontNeed => libc::POSIX_FADV_DONTNEED,
    };
    // SAFETY: the descriptor is open while `file` is borrowed; no memory is passed, no contents change.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, bytes, advice) };
}

/// How many bytes of a range of `file` are in the kernel's cache.
#[cfg(test)]
pub(crate) fn cached_bytes(file: &File, bytes: u64) -> io::Result<u64> {
    let map = memmap2::MmapOptions::new().map_raw_read_only(file)?;
    let mut pages = vec![0_u8; usize::try_from(bytes.div_ceil(4096)).map_err(io::Error::other)?];
    // SAFETY: the range lies inside the mapping, and there is a byte for each of its pages.
    check(unsafe { libc::mincore(map.as_mut_ptr().cast(), bytes as usize, pages.as_mut_ptr()) })?;
    Ok(pages.iter().filter(|page| **page & 1 != 0).count() as u64 * 4096)
}

/// Makes a range read as zeros without giving up its blocks.
///
/// # Errors
/// `Unsupported` if the file system cannot, and whatever else it refuses.
pub(crate) fn zero_range(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    fallocate(file, libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE, offset, bytes)
}

fn fallocate(file: &File, mode: libc::c_int, offset: u64, bytes: u64) -> io::Result<()> {
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    let bytes = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    loop {
        // SAFETY: the descriptor is open while `file` is borrowed; no memory is passed.
        let result = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, bytes) };
        match check(result) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Where the next byte lies that may be other than zero, at or behind `offset`.
///
/// `None` if everything from `offset` on is a hole or was allocated and never written. A file system
/// that does not know says `offset`.
pub(crate) fn next_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    let Ok(start) = libc::off_t::try_from(offset) else { return Ok(None) };
    // SAFETY: the descriptor is open while `file` is borrowed; no memory is passed.
    let found = unsafe { libc::lseek(file.as_raw_fd(), start, libc::SEEK_DATA) };
    match u64::try_from(found) {
        Ok(found) => Ok(Some(found)),
        Err(_) => match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            e if e.raw_os_error() == Some(libc::EINVAL) => Ok(Some(offset)),
            e => Err(e),
        },
    }
}

/// The number by which the kernel knows the kind of file system that `file` is on.
pub(crate) fn file_system_magic(file: &File) -> io::Result<i64> {
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the pointer is valid for one `statfs`, which the call fills when it returns 0.
    check(unsafe { libc::fstatfs(file.as_raw_fd(), found.as_mut_ptr()) })?;
    // SAFETY: the call returned 0, so the value is initialised.
    let found = unsafe { found.assume_init() };
    #[allow(clippy::unnecessary_cast, reason = "the field's type differs between platforms")]
    Ok(found.f_type as i64)
}

/// A number that a mount keeps for its life and that no later mount gets, if the kernel has one.
pub(crate) fn mount_id(file: &File) -> Option<u64> {
    const STATX_MNT_ID_UNIQUE: libc::c_uint = 0x4000;
    let mut found = std::mem::MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is an empty C string, the pointer is valid for one `statx`.
    let result = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, STATX_MNT_ID_UNIQUE, found.as_mut_ptr())
    };
    check(result).ok()?;
    // SAFETY: zero-initialised, and filled by a call that returned 0.
    let found = unsafe { found.assume_init() };
    (found.stx_mask & STATX_MNT_ID_UNIQUE != 0).then_some(found.stx_mnt_id)
}

/// Cuts off the file system that `dir` is on from its disk, as a power cut does: what it holds back is gone, and all that
/// is left to do is to unmount it.
#[cfg(test)]
pub(crate) fn shut_down(dir: &File) -> io::Result<()> {
    // `EXT4_IOC_SHUTDOWN` and `XFS_IOC_GOINGDOWN` are the same number, and so is "do not flush the journal".
    const SHUTDOWN: libc::Ioctl = 0x8004_587d;
    let no_log_flush: u32 = 2;
    // SAFETY: the descriptor is open while `dir` is borrowed; the call reads four bytes, which live as long as it.
    check(unsafe { libc::ioctl(dir.as_raw_fd(), SHUTDOWN, &raw const no_log_flush) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::ids::LogPosition;

    fn registered() -> Registered {
        // Another test may have taken all places for a moment.
        loop {
            match Registered::reserve(LogPosition::ZERO, None) {
                Some(registered) => return registered,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn a_slice_sees_what_was_written_and_outlives_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        allocate(&file, 1 << 16).unwrap();
        let mapped = MappedFile::map(&file, registered()).unwrap();
        file.write_all_at(b"hello", 5000).unwrap();
        let slice = mapped.lend(5000, 5, 6000);
        std::fs::remove_file(&path).unwrap();
        drop(mapped);
        drop(file);
        assert_eq!(b"hello".as_slice(), slice);
    }

    #[test]
    #[should_panic(expected = "stable_end")]
    fn nothing_is_lent_above_the_stable_mark() {
        let file = tempfile::tempfile().unwrap();
        allocate(&file, 1 << 16).unwrap();
        MappedFile::map(&file, registered()).unwrap().lend(100, 100, 150);
    }

    #[test]
    fn a_zeroed_range_keeps_its_blocks() {
        let file = tempfile::tempfile().unwrap();
        allocate(&file, 1 << 16).unwrap();
        file.write_all_at(&[7; 1 << 16], 0).unwrap();
        zero_range(&file, 100, 9000).unwrap();
        let mut bytes = vec![0; 1 << 16];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes[100..9100].iter().all(|byte| *byte == 0));
        assert_eq!((7, 7), (bytes[99], bytes[9100]));
        assert_eq!(1 << 16, file.metadata().unwrap().len());
    }
}
