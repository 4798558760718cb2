//! Work that goes on by itself: each file one task, woken by changes, without input.
//!
//! Each looks at the rows, decides what they lack, does it, and waits to be woken. The path after a crash is the path of
//! every day.

pub mod clean_up;
pub mod deadlines;
pub(crate) mod fallback;
mod limits;
pub mod log_sweep;
mod planners;
pub mod schedule;

use std::time::Duration;

/// `None` = until something else happens.
async fn sleep_or_forever(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}
