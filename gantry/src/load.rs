//! Load: generators and what they cost.

pub(crate) mod cpu;
pub(crate) mod memory;
pub(crate) mod produce;

/// Printable bytes that do not compress to nothing.
pub(crate) fn made_up_body(size: usize) -> bytes::Bytes {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let bytes = (0..size).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        b'!' + u8::try_from(state % 94).expect("below 94")
    });
    bytes.collect()
}
