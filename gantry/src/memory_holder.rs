//! A broker that is killed closes its sockets at once, not when its memory is free.
//!
//! The kernel gives back the memory of a process before it closes its descriptors. For a busy broker that takes 10 to 25
//! ms, in which requests arrive that nobody will read, and no peer sees that the leader is gone. A second process that
//! shares the memory, and nothing else, takes that work over: memory that somebody else still has is not given back, so
//! the sockets close within a millisecond, and the second process ends, with the memory, once a pipe tells it so.
//!
//! It runs no code of the broker: it closes its copies of the descriptors, leaves the process group, so that a signal to
//! the group does not end it first, and reads from the pipe.
#![expect(unsafe_code, reason = "clone(2) with shared memory; every block says why it is sound")]

use std::ffi::{c_int, c_uint, c_void};
use std::io::{self, PipeReader};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use std::{ptr, thread};

/// The second process calls a handful of system calls.
const STACK_BYTES: usize = 64 << 10;

/// Starts the second process. Without it, all works as well, and a kill is noticed a little later.
///
/// # Errors
/// If there is no descriptor or no thread left.
pub(crate) fn start() -> io::Result<()> {
    let (end, kept) = io::pipe()?;
    thread::Builder::new().name("memory-holder".to_owned()).spawn(move || {
        if let Err(error) = share_memory_until(&end) {
            tracing::warn!(%error, "a kill of this broker is noticed later than it could be");
        }
    })?;
    // It is the kernel that closes this one, with all others, when the process has ended.
    let _ = kept.into_raw_fd();
    Ok(())
}

/// Returns when the second process has ended while this one lives, or could not be made.
fn share_memory_until(end: &PipeReader) -> io::Result<()> {
    let mut stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
    block_signals();
    let (top, end) = (stack.as_mut_ptr_range().end, ptr::without_provenance_mut(end.as_raw_fd() as usize));
    // SAFETY: the stack is aligned to 16 bytes, is nobody else's, and lives until the process that runs on it has ended:
    // this function waits for that. `wait_for_end` allocates nothing, takes no lock and returns.
    let process = unsafe { libc::clone(wait_for_end, top.cast(), libc::CLONE_VM, end) };
    if process < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the status may be null.
    while unsafe { libc::waitpid(process, ptr::null_mut(), libc::__WALL) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Err(io::Error::other("the process that shares the memory has ended"))
}

/// Signals are for the broker's other threads. The second process inherits this, so no handler ever runs in it.
fn block_signals() {
    let mut all = MaybeUninit::uninit();
    // SAFETY: this fills the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the set is filled, the former one is not asked for, and only this thread's mask changes.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut()) };
}

/// What the second process does. It has the memory of the broker, also the thread-local storage of the thread that made
/// it, which sleeps meanwhile.
extern "C" fn wait_for_end(end: *mut c_void) -> c_int {
    let end = end.addr() as c_uint;
    let others = [(0, end.wrapping_sub(1)), (end + 1, c_uint::MAX)];
    for (first, last) in others.into_iter().filter(|(first, last)| first <= last) {
        // SAFETY: these are this process's copies; the broker's stay open.
        if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } != 0 {
            // A socket must not stay open here.
            return 1;
        }
    }
    // A signal to the broker's process group would end this process before its time.
    let _ = rustix::process::setpgid(None, None);
    let _ = rustix::thread::set_name(c"memory-holder");
    // SAFETY: it is open, and nobody else has this copy.
    let end = unsafe { BorrowedFd::borrow_raw(end as RawFd) };
    let _ = rustix::io::read(end, &mut [0_u8; 1]);
    0
}
