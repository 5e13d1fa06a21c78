//! See `properties` in the targets.
#![no_main]

#[allow(dead_code, reason = "one of several targets is used here")]
#[path = "../../protocol/tests/targets/mod.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::properties(data));
