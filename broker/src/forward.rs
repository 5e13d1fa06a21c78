//! Requests that only the leader may answer, passed on to it.
