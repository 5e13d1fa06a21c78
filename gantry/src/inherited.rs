//! Listening sockets that this process was started with.
//!
//! By the convention of systemd's socket activation: they are descriptors 3 and up, `LISTEN_FDS` says how many, and
//! `LISTEN_PID`, where it is set, whose they are. The broker finds out by their addresses which group each is for.

use std::net::TcpListener;

use anyhow::{Context, Result, bail};
use listenfd::ListenFd;

/// Takes them; a second call finds none.
///
/// # Errors
/// If one of them is no TCP socket.
pub(crate) fn take() -> Result<Vec<TcpListener>> {
    let mut passed = ListenFd::from_env();
    (0..passed.len())
        .map(|index| {
            let taken = passed.take_tcp_listener(index).with_context(|| format!("inherited socket {index}"))?;
            match taken {
                Some(listener) => Ok(listener),
                None => bail!("inherited socket {index} was taken already"),
            }
        })
        .collect()
}
