//! Health, status and metrics over HTTP.
