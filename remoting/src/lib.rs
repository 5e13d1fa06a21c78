//! The wire over tokio: framed connections, a server, a client channel.
