//! Fault injection against real processes.
fn main() {}
