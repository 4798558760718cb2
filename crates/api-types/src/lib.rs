//! Request and response types of the HTTP API, with the wire dialect.
