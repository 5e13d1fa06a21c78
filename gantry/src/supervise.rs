//! `gantry broker --supervise`: keeps the client ports open over the death of the broker process.
//!
//! This process holds the listening sockets of the client ports and starts the broker, which inherits them. When the
//! broker dies, connections wait in the kernel's queue until the next one, started at once, accepts them; so a client
//! whose connection broke is not refused. The Raft port is the broker's own: that it refuses is how peers learn of a
//! death.
//!
//! A queue that nobody will accept is worse than a refusal, so the ports are closed as soon as that may be the case: when
//! a broker does not accept in time, and when it dies again and again. From then on they open for each further try.
//!
//! Broker and supervisor talk over a socket that is the broker's standard input. Its end tells the broker that the
//! supervisor is gone; the broker then hands over and ends as well.

use std::ffi::OsString;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use broker::config::Options;
use command_fds::{CommandFdExt, FdMapping};
use rustix::process::{Pid, Signal, kill_process};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::broker_command::BrokerArgs;
use crate::exit_code::ExitCode;
use crate::stop_signal::{Stop, StopSignal};
use crate::{inherited, logging};

/// From the supervisor: everything stops, nobody takes over.
pub(crate) const EVERYTHING_STOPS: u8 = b'E';
/// From the broker: it accepts clients.
pub(crate) const ACCEPTS: u8 = b'A';

/// A broker that has not accepted clients after this is killed.
const ACCEPT_TIME_MAX: Duration = Duration::from_secs(5);
/// Who lived for so long died of something new.
const STEADY_AFTER: Duration = Duration::from_secs(10);
/// A second death soon after the first.
const SECOND_PAUSE: Duration = Duration::from_millis(100);
/// From the third death in a row on, doubling.
const CLOSED_PAUSE_MIN: Duration = Duration::from_secs(1);
const CLOSED_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Supervises one broker until it is to stop, or refuses to start.
///
/// # Errors
/// As the broker: its exit code becomes this process's.
pub(crate) fn run(args: &BrokerArgs) -> Result<()> {
    // The file is read again by every broker; a mistake in it should show here and now.
    let options = Options::load(&args.config).context(ExitCode::BadConfig)?;
    logging::start(&args.log, &options.log)?;
    let program = std::env::current_exe().context("finding this program")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    runtime.block_on(async {
        let mut stop = StopSignal::new(args.stop_with_stdin)?;
        let addrs = options.groups.iter().map(|group| group.client_listen).collect();
        let mut ports = Ports { addrs, open: inherited::take()? };
        let mut deaths = Deaths::default();
        let mut is_first = true;
        loop {
            let started = Instant::now();
            let end = match spawn(&program, is_first, &mut ports) {
                Ok(broker) => broker.attend(&mut stop, &mut ports).await?,
                Err(error) => {
                    tracing::error!("cannot start the broker: {error:#}");
                    End::Died
                }
            };
            is_first = false;
            match end {
                End::Over(result) => return result,
                End::Died => {}
            }
            let next = deaths.next(started.elapsed());
            if next.close {
                ports.refuse();
            }
            tracing::warn!(pause = ?next.pause, ports = if next.close { "closed" } else { "open" }, "starting it again");
            tokio::select! {
                () = tokio::time::sleep(next.pause) => {}
                _ = stop.recv() => return Ok(()),
            }
        }
    })
}

/// How soon, and with what ports, a broker is started again.
#[derive(Debug, PartialEq, Eq)]
struct Next {
    pause: Duration,
    close: bool,
}

/// Deaths soon after a start, without a steady life in between.
#[derive(Debug, Default)]
struct Deaths {
    in_a_row: u32,
}

impl Deaths {
    fn next(&mut self, lived: Duration) -> Next {
        if lived >= STEADY_AFTER {
            self.in_a_row = 0;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        match self.in_a_row {
            1 => Next { pause: Duration::ZERO, close: false },
            2 => Next { pause: SECOND_PAUSE, close: false },
            more => {
                let doubled = CLOSED_PAUSE_MIN.saturating_mul(2_u32.saturating_pow(more - 3));
                Next { pause: doubled.min(CLOSED_PAUSE_MAX), close: true }
            }
        }
    }
}

/// The listening sockets of the client ports.
struct Ports {
    addrs: Vec<SocketAddr>,
    /// All of them, or none.
    open: Vec<TcpListener>,
}

impl Ports {
    /// Opens what is not open.
    fn ensure_open(&mut self) -> Result<&[TcpListener]> {
        if self.open.is_empty() {
            let bind = |addr: &SocketAddr| remoting::bind(*addr).with_context(|| format!("listening on {addr}"));
            self.open = self.addrs.iter().map(bind).collect::<Result<_>>()?;
        }
        Ok(&self.open)
    }

    /// Leaves the sockets to the broker.
    fn let_go(&mut self) {
        self.open.clear();
    }

    /// Ends the queues, whoever else holds the sockets: who waits in them is refused, as is who comes.
    fn refuse(&mut self) {
        for listener in self.open.drain(..) {
            if let Err(error) = SockRef::from(&listener).shutdown(std::net::Shutdown::Both) {
                tracing::debug!(%error, "closing a client port");
            }
        }
    }
}

/// How the life of one broker ended.
enum End {
    /// There is to be no other.
    Over(Result<()>),
    /// By accident.
    Died,
}

/// A broker process.
struct Broker {
    child: Child,
    control: UnixStream,
}

/// Starts a broker with the same arguments as this process, its ports and its control socket.
fn spawn(program: &PathBuf, is_first: bool, ports: &mut Ports) -> Result<Broker> {
    let listeners = ports.ensure_open()?;
    let (control, theirs) = StdUnixStream::pair().context("making the control socket")?;
    control.set_nonblocking(true).context("preparing the control socket")?;
    let mappings = (3..)
        .zip(listeners)
        .map(|(child_fd, listener)| {
            let parent_fd = listener.try_clone().context("duplicating a listening socket")?.into();
            Ok(FdMapping { parent_fd, child_fd })
        })
        .collect::<Result<Vec<_>>>()?;
    let mut command = std::process::Command::new(program);
    command
        .args(broker_args(std::env::args_os().skip(1), is_first))
        .env("LISTEN_FDS", mappings.len().to_string())
        .env_remove("LISTEN_PID")
        .stdin(Stdio::from(OwnedFd::from(theirs)));
    if !is_first {
        command.env_remove("GANTRY_BOOTSTRAP");
    }
    command.fd_mappings(mappings).context("passing the listening sockets on")?;
    let child = Command::from(command).spawn().with_context(|| format!("running {}", program.display()))?;
    Ok(Broker { child, control: UnixStream::from_std(control).context("using the control socket")? })
}

/// The broker's arguments, made of the supervisor's. Only the first broker may begin with an empty directory: when a
/// later one finds that, its disk was lost meanwhile.
fn broker_args(own: impl Iterator<Item = OsString>, is_first: bool) -> Vec<OsString> {
    let is_for_broker = |arg: &OsString| {
        let name = arg.to_string_lossy();
        match name.split_once('=').map_or(&*name, |(name, _)| name) {
            "--supervise" | "--stop-with-stdin" => false,
            "--bootstrap" => is_first,
            _ => true,
        }
    };
    let mut args: Vec<_> = own.filter(is_for_broker).collect();
    args.push("--supervised".into());
    args
}

impl Broker {
    /// Waits for the broker's end, passes stop requests on, and ends a broker that does not come to accept clients.
    async fn attend(mut self, stop: &mut StopSignal, ports: &mut Ports) -> Result<End> {
        let mut accept_by = Some(Instant::now() + ACCEPT_TIME_MAX);
        let mut stopping = false;
        loop {
            let mut said = [0_u8; 1];
            let late = accept_by.unwrap_or_else(Instant::now);
            tokio::select! {
                status = self.child.wait() => return judge(status.context("waiting for the broker")?, stopping),
                said = read_one(&mut self.control, &mut said), if accept_by.is_some() => {
                    // A broker that closes its end without this word is about to end.
                    if said? {
                        accept_by = None;
                    } else {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
                () = tokio::time::sleep_until(late), if accept_by.is_some() => {
                    tracing::error!(after = ?ACCEPT_TIME_MAX, "the broker does not accept clients: killing it");
                    accept_by = None;
                    ports.refuse();
                    self.child.start_kill().context("killing the broker")?;
                }
                why = stop.recv() => {
                    stopping = true;
                    ports.let_go();
                    self.pass_on(why).await?;
                }
            }
        }
    }

    async fn pass_on(&mut self, why: Stop) -> Result<()> {
        match why {
            Stop::Everything => {
                // It may have ended just now.
                let _ = self.control.write_all(&[EVERYTHING_STOPS]).await;
                Ok(())
            }
            Stop::Process | Stop::Orphaned => {
                let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) else {
                    return Ok(());
                };
                match kill_process(pid, Signal::TERM) {
                    Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
                    Err(error) => Err(error).context("stopping the broker"),
                }
            }
        }
    }
}

/// Whether the broker has said that it accepts.
async fn read_one(control: &mut UnixStream, said: &mut [u8; 1]) -> io::Result<bool> {
    match control.read(said).await {
        Ok(read) => Ok(read == 1 && said[0] == ACCEPTS),
        // It died with something unread.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(false),
        Err(error) => Err(error),
    }
}

/// What an end means: a broker that says by its exit code why it does not run is not started again.
fn judge(status: ExitStatus, stopping: bool) -> Result<End> {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    let is_accident = !matches!(code, Some(0..=3));
    if is_accident && !stopping {
        tracing::error!(%status, "the broker has died");
        return Ok(End::Died);
    }
    Ok(End::Over(match code {
        Some(0) => Ok(()),
        Some(code) if code == ExitCode::BadConfig.number() => Err(ExitCode::BadConfig.into()),
        Some(code) if code == ExitCode::StorageFailed.number() => Err(ExitCode::StorageFailed.into()),
        _ => Err(anyhow!("the broker has ended: {status}")),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_dies_again_and_again_has_its_ports_closed() {
        let mut deaths = Deaths::default();
        let next = |pause_ms, close| Next { pause: Duration::from_millis(pause_ms), close };
        let soon = Duration::from_secs(1);
        assert_eq!(deaths.next(STEADY_AFTER), next(0, false));
        assert_eq!(deaths.next(soon), next(100, false));
        assert_eq!(deaths.next(soon), next(1_000, true));
        assert_eq!(deaths.next(soon), next(2_000, true));
        let many = (0..100).map(|_| deaths.next(soon)).last();
        assert_eq!(many, Some(next(30_000, true)));
        assert_eq!(deaths.next(STEADY_AFTER), next(0, false));
    }

    #[test]
    fn only_the_first_broker_may_begin_with_an_empty_directory() {
        let own = ["broker", "--supervise", "--config", "a.toml", "--bootstrap=true", "--stop-with-stdin", "--rejoin"];
        let args = |is_first| broker_args(own.iter().map(OsString::from), is_first);
        assert_eq!(args(true), ["broker", "--config", "a.toml", "--bootstrap=true", "--rejoin", "--supervised"]);
        assert_eq!(args(false), ["broker", "--config", "a.toml", "--rejoin", "--supervised"]);
    }

    #[test]
    fn a_refused_port_is_refused_whoever_else_holds_it() {
        let mut ports = Ports { addrs: vec!["127.0.0.1:0".parse().unwrap()], open: Vec::new() };
        let held = ports.ensure_open().unwrap()[0].try_clone().unwrap();
        let addr = held.local_addr().unwrap();
        std::net::TcpStream::connect(addr).unwrap();
        ports.refuse();
        std::net::TcpStream::connect(addr).unwrap_err();
        ports.addrs = vec![addr];
        ports.ensure_open().unwrap();
        std::net::TcpStream::connect(addr).unwrap();
    }
}
