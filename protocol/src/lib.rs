//! The RocketMQ remoting protocol as bytes and types. No I/O.
