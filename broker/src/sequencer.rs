//! Packs waiting sends into log entries.
