//! Work that goes on by itself: each file one task, woken by changes, without input.
//!
//! Each looks at the rows, decides what they lack, does it, and waits to be woken. The path after a crash is the path of
//! every day.

pub mod clean_up;
pub mod deadlines;
pub(crate) mod fallback;
mod limits;
mod planners;
pub mod schedule;
