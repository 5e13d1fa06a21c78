//! Where a request that only the leader may answer is served.
