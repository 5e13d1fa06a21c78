//! What committed entries mean: topics, groups, offsets, queues.
