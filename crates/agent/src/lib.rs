//! The agent: devices, container runtimes, and the connection to the master.
