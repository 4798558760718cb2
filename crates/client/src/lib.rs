//! Typed access to the HTTP API for the command line and tests.
