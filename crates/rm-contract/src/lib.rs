//! What every resource manager must do, as tests that a manager's crate runs on itself. For tests only.
//!
//! A manager is between the core of the master ([`det_rm::Core`]) and an outside world: agents, or the API of another
//! system's cluster. Here the core is [`TestCore`], which keeps its rows in memory, and the outside world a double that the
//! manager's crate brings together with the manager, as a [`Subject`]. The scenarios ([`scenarios`]) place and end
//! containers in the core, have the outside world observe, lose and repeat what it likes, and restart the master.
//!
//! A manager's crate runs them all with [`contract!`]:
//!
//! ```text
//! det_rm_contract::contract!(MySubject);
//! ```
//!
//! [`FakePlace`] is a place whose slots are only counted, over [`det_rm::Core`] alone: the double of every manager in tests
//! of the core. [`FakeManager`], made of such places, passes the contract itself.

mod core;
mod fake;
mod growth;
pub mod scenarios;
mod subject;

use std::time::Duration;

pub use crate::core::{Row, TestCore, Unavailable, offer_services};
pub use fake::{FakeManager, FakePlace, Task};
pub use growth::TestGrowth;
pub use subject::{StartOrder, Subject};

/// How long anything that is expected may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Waits for something that must happen.
///
/// # Panics
/// It does not happen for half a minute.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let outcome = tokio::time::timeout(LIMIT, future).await;
    outcome.unwrap_or_else(|_| panic!("{what}: nothing for {} s", LIMIT.as_secs()))
}

/// Makes a test of each scenario for a [`Subject`].
#[macro_export]
macro_rules! contract {
    ($subject:ty) => {
        $crate::contract! { $subject:
            what_is_placed_starts_once_and_ends_with_its_exit_code
            what_is_reported_twice_late_or_out_of_order_changes_nothing
            what_is_killed_is_ended_at_once
            what_is_stopped_is_asked_first_and_killed_later
            a_start_that_the_place_refuses_ends_with_the_reason
            a_start_that_the_core_withdraws_reaches_no_place
            what_is_not_wanted_before_it_has_started_never_starts
            a_place_comes_back_with_what_it_holds
            what_ended_while_its_place_was_away_has_ended
            what_a_place_does_not_hold_any_more_is_lost
            what_no_row_wants_is_removed
            a_newer_connection_of_a_place_replaces_the_older
            each_place_has_its_own_containers
            a_restart_of_the_master_starts_nothing_twice
            what_is_decided_while_the_master_is_away_is_carried_out
        }
    };
    ($subject:ty: $($scenario:ident)*) => {
        $(#[tokio::test]
        async fn $scenario() {
            $crate::scenarios::$scenario::<$subject>().await;
        })*
    };
}
