//! Derived files and reads: ConsumeQueue, IndexFile, reput, checkpoints.
