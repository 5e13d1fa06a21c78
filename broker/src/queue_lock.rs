//! Leases on queues for orderly consumers.
