//! The name server: a stateless directory of routes.
