//! A producer and consumers written in Rust.
