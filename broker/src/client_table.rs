//! Live producers and consumers, learned from heartbeats.
