//! Which waiting request starts where, what must stop for it, and why the rest waits.
