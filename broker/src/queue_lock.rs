//! Queue locks of orderly consumers.
