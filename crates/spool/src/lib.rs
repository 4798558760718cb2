//! The on-disk log spool between a task and the master.
