//! A server in a process that has no descriptor left. A test of its own, because the limit holds for the process.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use protocol::RemotingCommand;
use protocol::RequestCode;
use remoting::Channel;
use remoting::ChannelOptions;
use remoting::Ignore;
use remoting::Options;
use remoting::Server;
use tokio::net::TcpStream;

/// Descriptors left to the sockets of this test.
const SPARE: usize = 24;

#[tokio::test]
async fn oldest_silent_connection_makes_room_when_descriptors_run_out() {
    let listener = remoting::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let server = Server::new(Options::default(), Arc::new(Ignore)).start(listener).unwrap();
    let address = server.local_addr();
    let channel = || Channel::new(address.to_string(), ChannelOptions::default(), Arc::new(Ignore));
    let request = || RemotingCommand::request(RequestCode(1));
    let long = Duration::from_secs(20);

    let used = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let limit = format!("--nofile={}:", used + SPARE);
    let limited = Command::new("prlimit").args(["--pid", &std::process::id().to_string(), &limit]).status();
    if !limited.is_ok_and(|status| status.success()) {
        eprintln!("skipped: prlimit cannot set a limit here");
        return;
    }
    // One that has spoken must stay.
    let busy = channel();
    busy.call(request(), long).await.unwrap();
    let mut silent = Vec::new();
    while let Ok(stream) = TcpStream::connect(address).await {
        silent.push(stream);
        // The server takes its half of the descriptors too.
        tokio::task::yield_now().await;
    }
    assert!(silent.len() >= SPARE / 2 - 4, "{} connections used up {SPARE} descriptors", silent.len());

    // This descriptor goes to the new connection, so there is none to accept it with.
    silent.pop();
    let new = channel();
    assert_eq!(new.call(request(), long).await.unwrap().code, 3);
    assert_eq!(busy.call(request(), long).await.unwrap().code, 3);
    let open = |stream: &TcpStream| matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
    assert!(!silent.iter().all(open), "a silent connection was given up");
}
