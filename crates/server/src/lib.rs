//! The master: HTTP API, use cases and background work.
