//! The one port between nodes: handshake, Raft frames, forwarded requests.
