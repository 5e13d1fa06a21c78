//! One segment file: a header, records, a footer.

/// The size of a segment's header.
pub(crate) const HEADER_BYTES: u64 = 4096;
/// The smallest segment.
pub(crate) const BYTES_MIN: u64 = 16 << 10;
/// The largest segment: offsets inside it fit 32 bits.
pub(crate) const BYTES_MAX: u64 = 2 << 30;
/// What one footer entry describes.
pub(crate) const CHUNK_BYTES: u64 = 1 << 20;
/// The size of one footer entry, and of the footer's own head.
pub(crate) const FOOTER_ENTRY_BYTES: u64 = 64;

/// Room for the footer at the end of a segment.
pub(crate) const fn footer_bytes(segment_bytes: u64) -> u64 {
    let entries = segment_bytes.div_ceil(CHUNK_BYTES) + 1;
    (entries * FOOTER_ENTRY_BYTES).next_multiple_of(HEADER_BYTES)
}
