//! A broker that is killed closes its sockets at once, and so that its clients notice every call that is lost.
//!
//! Left to the kernel, a killed process first gives back its memory, which takes a busy broker 10 to 25 ms in which peers
//! and clients still think that it lives. Then its sockets are closed, and where requests lie unread, clients are sent
//! resets.
//!
//! So a second process shares the broker's memory and descriptors, and sleeps. Nothing is given back or closed while
//! somebody else has it. When the broker has ended, the second process closes all that is no client's, and tells every
//! client with [`LAST_WORD`] and the end of the stream. It reads away what clients have sent, so that no connection is
//! reset, and ends once they have closed their side.
//!
//! It runs no code of the broker, allocates nothing, takes no lock and uses no thread-local storage: threads may have died
//! in the middle of such things. It leaves the process group, so that a signal to the group does not end it first.
#![expect(unsafe_code, reason = "clone(2) with shared memory and descriptors; every block says why it is sound")]

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{CWD, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use rustix::process::{PidfdFlags, Signal, WaitId, WaitIdOptions};

const STACK_BYTES: usize = 64 << 10;
/// Bytes that are read away at a time, and of a listing.
const BUFFER_BYTES: usize = 8 << 10;
const BUFFERS_IN_A_ROW_MAX: usize = 64;
/// A frame that no client can read: a header of two bytes that are no JSON, and no body. Its lengths are true, since C++
/// believes them.
///
/// RocketMQ's Java client fails the calls that wait for an answer, so that they are tried again, when it closes a
/// connection itself, as it does after such a frame. When the connection just ends, be it in order or by a reset, one of
/// its threads first says so in its log, and if another wants to send in that moment, it takes the dead connection out of
/// their table: then nobody fails the calls, and they wait for their whole 3 s. Go and C++ pass over the frame, and
/// see the end of the stream behind it.
const LAST_WORD: &[u8] = b"\0\0\0\x06\0\0\0\x02][";
/// How often what clients have sent is read away, and how many times. They close their side within milliseconds.
const READ_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
const READS_MAX: usize = 100;

/// The second process. Dropped, it ends, and leaves everything as it is.
#[derive(Debug)]
pub(crate) struct Closer {
    process: Arc<OwnedFd>,
    dropped: Arc<AtomicBool>,
    waits: Option<JoinHandle<()>>,
}

impl Closer {
    /// Starts the second process, for a broker whose clients come to these ports.
    ///
    /// # Errors
    /// If there is no descriptor, thread or process left.
    pub(crate) fn start(client_ports: Vec<u16>) -> io::Result<Self> {
        let broker = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
        let shared = Shared { broker, client_ports };
        let dropped = Arc::new(AtomicBool::new(false));
        let (process_sent, process) = mpsc::sync_channel(1);
        let is_dropped = Arc::clone(&dropped);
        let waits = thread::Builder::new().name("closer".to_owned()).spawn(move || {
            share_until_it_ends(&shared, &process_sent);
            if !is_dropped.load(Ordering::Acquire) {
                tracing::warn!(
                    "the process that closes what a killed broker leaves has ended: a kill is noticed later"
                );
            }
        })?;
        let process = process.recv().map_err(io::Error::other)??;
        Ok(Self { process, dropped, waits: Some(waits) })
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Release);
        // It may have ended before.
        let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
        let _ = self.waits.take().map(JoinHandle::join);
    }
}

/// What the second process reads of the memory that it shares.
struct Shared {
    /// Readable once the broker has ended.
    broker: OwnedFd,
    client_ports: Vec<u16>,
}

/// Makes the second process, sends a handle of it, and returns when it has ended.
fn share_until_it_ends(shared: &Shared, process_sent: &SyncSender<io::Result<Arc<OwnedFd>>>) {
    let mut stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
    block_signals();
    let top = stack.as_mut_ptr_range().end.cast();
    let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_PIDFD;
    let mut process: RawFd = -1;
    let arg = std::ptr::from_ref(shared).cast_mut().cast();
    // SAFETY: the stack is aligned to 16 bytes, is nobody else's, and lives with `shared` until the process that uses them
    // has ended: this function waits for that, and if it is killed, the memory stays. `run` returns and does not unwind.
    let made = unsafe { libc::clone(run, top, flags, arg, &raw mut process) };
    if made < 0 {
        let _ = process_sent.send(Err(io::Error::last_os_error()));
        return;
    }
    // SAFETY: the kernel has just opened it for this call.
    let process = Arc::new(unsafe { OwnedFd::from_raw_fd(process) });
    let _ = process_sent.send(Ok(Arc::clone(&process)));
    let options = WaitIdOptions::EXITED | WaitIdOptions::from_bits_retain(libc::__WALL.cast_unsigned());
    while matches!(rustix::process::waitid(WaitId::PidFd(process.as_fd()), options), Err(Errno::INTR)) {}
}

/// Signals are for the broker's other threads. The second process inherits this, so no handler ever runs in it.
fn block_signals() {
    let mut all = MaybeUninit::uninit();
    // SAFETY: this fills the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the set is filled, the former one is not asked for, and only this thread's mask changes.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) };
}

/// What the second process does.
extern "C" fn run(shared: *mut c_void) -> c_int {
    // SAFETY: whoever made this process keeps it until this process has ended.
    let shared = unsafe { &*shared.cast::<Shared>() };
    let _ = rustix::process::setpgid(None, None);
    let _ = rustix::thread::set_name(c"gantry-closer");
    let Ok(open) = rustix::fs::openat(CWD, c"/proc/self/fd", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else {
        return 1;
    };
    let mut broker = [PollFd::new(&shared.broker, PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut broker, None) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(_) => return 1,
        }
    }
    close_what_is_left(shared, &open);
    0
}

fn close_what_is_left(shared: &Shared, open: &OwnedFd) {
    let each = |call: &mut dyn FnMut(BorrowedFd<'_>)| each_open(open, &shared.broker, call);
    // Peers look for the leader's death where their connections end, and dial at once: a listener must be gone by then.
    each(&mut |socket| {
        if is_listener(socket) {
            close(socket);
        }
    });
    each(&mut |other| {
        if !is_client(other, &shared.client_ports) {
            close(other);
        }
    });
    each(&mut |client| {
        let _ = rustix::net::send(client, LAST_WORD, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        let _ = rustix::net::shutdown(client, Shutdown::Write);
    });
    let mut buffer = [0; BUFFER_BYTES];
    for _ in 0..READS_MAX {
        let mut is_any_open = false;
        each(&mut |client| {
            if has_ended(client, &mut buffer) {
                close(client);
            } else {
                is_any_open = true;
            }
        });
        if !is_any_open {
            break;
        }
        let _ = rustix::event::poll(&mut [], Some(&READ_INTERVAL));
    }
    // What is still open is closed as this process ends.
}

/// Calls for each open descriptor but these two. A listing that can't be read is at its end.
fn each_open(open: &OwnedFd, broker: &OwnedFd, call: &mut dyn FnMut(BorrowedFd<'_>)) {
    let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
    let _ = rustix::fs::seek(open, SeekFrom::Start(0));
    let mut listing = RawDir::new(open, &mut buffer);
    while let Some(Ok(entry)) = listing.next() {
        // "." and ".." are none.
        let Some(fd) = entry.file_name().to_str().ok().and_then(|name| name.parse::<RawFd>().ok()) else { continue };
        if fd != open.as_raw_fd() && fd != broker.as_raw_fd() {
            // SAFETY: it was open a moment ago, and nobody but this thread opens or closes any more.
            call(unsafe { BorrowedFd::borrow_raw(fd) });
        }
    }
}

fn is_listener(fd: BorrowedFd<'_>) -> bool {
    rustix::net::sockopt::socket_acceptconn(fd) == Ok(true)
}

/// Whether this is a connection that a client has opened.
fn is_client(fd: BorrowedFd<'_>, ports: &[u16]) -> bool {
    let local = rustix::net::getsockname(fd).ok().and_then(|addr| SocketAddr::try_from(addr).ok());
    local.is_some_and(|local| ports.contains(&local.port()))
}

/// Reads away what has come, but not for ever. Returns whether the other side has closed, or is gone.
fn has_ended(client: BorrowedFd<'_>, buffer: &mut [u8]) -> bool {
    for _ in 0..BUFFERS_IN_A_ROW_MAX {
        match rustix::net::recv(client, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return true,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return error != Errno::AGAIN,
        }
    }
    false
}

fn close(fd: BorrowedFd<'_>) {
    // SAFETY: its owner has ended, and it is not used after this.
    unsafe { rustix::io::close(fd.as_raw_fd()) }
}
