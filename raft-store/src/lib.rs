//! A segmented, memory-mapped log and openraft log storage over it.
