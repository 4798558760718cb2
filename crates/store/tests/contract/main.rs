//! The contract of the store, tested over both databases by the same scenarios.
//!
//! Each scenario is written once, as an `async fn name(world: &World)`, and run twice: as `sqlite::name` in a directory
//! of its own, and as `postgres::name` in a database of its own on the server that `DET_TEST_POSTGRES_URL` names (a
//! superuser's URL, such as `postgres://postgres@127.0.0.1:5432/postgres`). Without that variable the second half is
//! skipped, and each skipped scenario prints a line that begins with `SKIPPED:`.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of tests fails by panicking, as the tests do"
)]

use std::fmt::Debug;
use std::io::Write as _;
use std::str::FromStr as _;

use det_store::{DatabaseAccess, Store, StoreError, StoreUrl, WriteTx};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _};

/// Reads with a connection of its own: `read!(world, conn => users::list(conn).await)`.
macro_rules! read {
    ($world:expr, $conn:ident => $body:expr) => {{
        let mut held = $world.store.read().await.unwrap();
        let $conn = &mut held.conn();
        $body.unwrap()
    }};
}

/// Makes one change: `change!(world, conn => users::insert(conn, &user).await)`. Panics if it is refused.
macro_rules! change {
    ($world:expr, $conn:ident => $body:expr) => {
        $world
            .write(move |tx| {
                Box::pin(async move {
                    let $conn = &mut tx.conn();
                    $body
                })
            })
            .await
            .unwrap()
    };
}

/// Makes one change of live rows, as decisions do: `change_live!(world, tx => edit_trial(tx, id, |row| ...).await)`.
macro_rules! change_live {
    ($world:expr, $tx:ident => $body:expr) => {
        $world
            .write(move |$tx| Box::pin(async move { $body }))
            .await
            .unwrap()
    };
}

mod experiments;
mod launched;
mod memory;
mod opening;
mod reports;
mod retention;
mod rows;
mod running;
mod unmanaged;
mod users;
mod workspaces;
mod writing;

/// An open, empty database of its own.
struct World {
    store: Store,
    url: StoreUrl,
    kind: Kind,
}

enum Kind {
    Sqlite(Option<tempfile::TempDir>),
    Postgres {
        server: Box<PgConnectOptions>,
        name: String,
    },
}

/// What undoes the versions of the schema from the seventh on.
const WITHOUT_PLACES: &str = "ALTER TABLE experiments DROP COLUMN checkpoint_failure; ALTER TABLE agents DROP COLUMN fault; ALTER TABLE allocations DROP COLUMN not_before; DROP INDEX events_of_lost_places; DROP TABLE task_metrics; ALTER TABLE jobs DROP COLUMN demands; ALTER TABLE allocations DROP COLUMN namespace; DROP TABLE workspace_namespace_bindings; DROP TABLE made_namespaces; DROP INDEX experiments_unmanaged; DROP TABLE checkpoint_removals; ALTER TABLE agents DROP COLUMN slot_faults; ALTER TABLE allocations DROP COLUMN port_step; ALTER TABLE allocations DROP COLUMN service_port; DROP INDEX experiments_by_external_id; DROP INDEX trials_unmanaged; \
     ALTER TABLE experiments DROP COLUMN unmanaged; ALTER TABLE experiments DROP COLUMN external_id; \
     ALTER TABLE trials DROP COLUMN unmanaged; DROP TABLE task_documents; DROP TABLE task_contexts; DROP INDEX tasks_launched; \
     ALTER TABLE tasks DROP COLUMN losses; ALTER TABLE tasks DROP COLUMN log_findings; \
     ALTER TABLE tasks DROP COLUMN log_retention_days; ALTER TABLE trials ADD COLUMN log_findings TEXT; \
     ALTER TABLE trials ADD COLUMN log_retention_days BIGINT; \
     DROP INDEX tasks_by_job; ALTER TABLE tasks DROP COLUMN machine; \
     ALTER TABLE tasks DROP COLUMN demand; ALTER TABLE containers RENAME COLUMN place_id TO agent_id; \
     ALTER TABLE allocations RENAME COLUMN single_place TO single_agent; \
     ALTER TABLE allocations RENAME COLUMN excluded_places TO excluded_agents; \
     DROP INDEX containers_by_place; CREATE INDEX containers_by_agent ON containers (agent_id, ended_at); ";

impl World {
    async fn sqlite() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = StoreUrl::Sqlite(directory.path().join("data/det.db"));
        Self {
            store: Store::open(&url).await.unwrap(),
            url,
            kind: Kind::Sqlite(Some(directory)),
        }
    }

    async fn postgres(server: &str) -> Self {
        let server = PgConnectOptions::from_str(server)
            .expect("DET_TEST_POSTGRES_URL is a postgres:// URL")
            .disable_statement_logging();
        let name = format!("contract_{}", uuid::Uuid::new_v4().simple());
        // A template database must not be in use by another connection; `template0` never is.
        run_on_server(
            &server,
            &format!("CREATE DATABASE {name} TEMPLATE template0"),
        )
        .await;
        let url = StoreUrl::Postgres(server.clone().database(&name).to_url_lossy().to_string());
        Self {
            store: Store::open(&url).await.unwrap(),
            url,
            kind: Kind::Postgres {
                server: Box::new(server),
                name,
            },
        }
    }

    /// Changes the database as the master does.
    async fn write<T, F>(&self, change: F) -> Result<T, StoreError>
    where
        F: for<'t> FnOnce(&'t mut WriteTx) -> BoxFuture<'t, Result<T, StoreError>> + Send + 'static,
        T: Send + 'static,
    {
        self.store.write(change).await
    }

    /// Closes it and runs statements that leave it as an older program would have.
    async fn older(&self, statements: &str) {
        self.store.close().await;
        match (&self.url, &self.kind) {
            (StoreUrl::Sqlite(path), _) => {
                let conn = rusqlite::Connection::open(path).unwrap();
                conn.execute_batch(statements).unwrap();
            }
            (_, Kind::Postgres { server, name }) => {
                run_on_server(&server.clone().database(name), statements).await;
            }
            (StoreUrl::Postgres(_), Kind::Sqlite(_)) => {
                panic!("a SQLite world has a SQLite address")
            }
        }
    }

    /// What a restart of the master does.
    async fn reopened(&self) -> Self {
        self.store.close().await;
        Self {
            store: Store::open(&self.url).await.unwrap(),
            url: self.url.clone(),
            kind: match &self.kind {
                // The first world keeps the directory.
                Kind::Sqlite(_) => Kind::Sqlite(None),
                Kind::Postgres { server, name } => Kind::Postgres {
                    server: server.clone(),
                    name: name.clone(),
                },
            },
        }
    }

    async fn remove(self) {
        self.store.close().await;
        match self.kind {
            Kind::Sqlite(directory) => drop(directory),
            Kind::Postgres { server, name } => {
                run_on_server(&server, &format!("DROP DATABASE {name} WITH (FORCE)")).await;
            }
        }
    }
}

async fn run_on_server(server: &PgConnectOptions, sql: &str) {
    let mut conn: PgConnection = server.connect().await.unwrap();
    conn.execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
}

/// Runs a scenario in `world`, and removes the world also when the scenario fails.
async fn run<F>(world: World, scenario: F)
where
    F: for<'w> FnOnce(&'w World) -> BoxFuture<'w, ()>,
{
    let outcome = std::panic::AssertUnwindSafe(scenario(&world))
        .catch_unwind()
        .await;
    world.remove().await;
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// The server's URL, or `None` after a line that names the scenario skipped. The line goes past the test runner's capture.
fn postgres_or_skip(scenario: &str) -> Option<String> {
    let url = std::env::var("DET_TEST_POSTGRES_URL")
        .ok()
        .filter(|url| !url.is_empty());
    if url.is_none() {
        let line = format!(
            "SKIPPED: store contract on PostgreSQL, {scenario}: DET_TEST_POSTGRES_URL is not set\n"
        );
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    url
}

/// Names the scenarios of the suite, each a function of one of the modules.
macro_rules! suite {
    ($($module:ident: $($scenario:ident),+ $(,)?;)+) => {
        mod sqlite {
            use super::*;
            $($(
                #[tokio::test]
                async fn $scenario() {
                    run(World::sqlite().await, |world| Box::pin($module::$scenario(world))).await;
                }
            )+)+
        }
        mod postgres {
            use super::*;
            $($(
                #[tokio::test]
                async fn $scenario() {
                    if let Some(server) = postgres_or_skip(stringify!($scenario)) {
                        run(World::postgres(&server).await, |world| Box::pin($module::$scenario(world))).await;
                    }
                }
            )+)+
        }
    };
}

suite! {
    opening:
        an_empty_database_gets_the_whole_schema,
        a_second_master_is_kept_out_until_the_first_lets_go,
        a_restarted_master_sees_everything_that_was_acknowledged,
        a_store_made_before_a_comment_was_corrected_opens_and_a_changed_schema_does_not,
        a_closed_store_refuses_further_work;
    writing:
        a_refused_change_leaves_nothing_and_its_neighbours_stay,
        many_changes_at_once_are_all_there,
        changes_never_overlap,
        a_full_disk_refuses_changes_and_its_end_is_an_event,
        an_event_with_an_unknown_word_is_an_error_that_names_it,
        effects_run_after_the_commit_and_repairs_after_a_refusal,
        a_failed_statement_that_is_ignored_costs_only_its_own_change,
        a_panicking_change_costs_only_itself,
        a_disk_that_does_not_confirm_a_change_ends_all_writing,
        a_panic_after_a_commit_ends_all_writing,
        a_change_goes_on_when_its_caller_stops_waiting,
        readers_see_only_what_is_committed;
    memory:
        rows_in_memory_never_differ_from_the_stored_ones,
        rows_in_memory_are_those_of_a_restarted_master;
    users:
        users_keep_every_field,
        two_users_cannot_share_a_name,
        sessions_end_one_by_one_all_together_or_by_time,
        settings_are_replaced;
    experiments:
        a_model_definition_is_read_in_parts,
        an_experiment_comes_back_as_it_was_stored,
        filters_narrow_the_list,
        names_are_found_in_any_case_and_any_alphabet,
        labels_match_whole_and_exactly,
        every_sort_puts_missing_values_last_and_ties_by_number,
        pages_cover_the_list_once,
        changes_of_an_experiment_are_kept,
        jobs_follow_their_experiments,
        a_list_shows_every_change_that_was_made_before_it,
        descriptions_are_searched_as_a_whole_and_held_in_part,
        what_the_queue_shows_of_experiments,
        odd_text_survives,
        deleting_one_experiment_leaves_nothing_of_it_and_all_of_the_other;
    launched:
        launched_tasks_are_found_with_their_documents,
        removals_of_checkpoints_are_open_until_they_are_finished,
        a_task_is_the_root_of_what_belongs_to_it,
        the_files_of_a_task_are_read_in_parts,
        files_that_are_gone_are_not_copied,
        what_was_measured_of_a_task_is_kept_once_in_order_and_within_its_bound;
    running:
        trials_move_through_their_runs,
        trials_are_listed_by_every_column,
        a_metric_that_is_not_a_number_is_no_best_metric,
        allocations_live_and_end,
        slots_and_reasons_that_no_version_has_written_are_errors_of_their_rows,
        what_no_version_has_written_is_an_error_that_names_its_row,
        a_job_that_cannot_be_read_is_an_error_that_names_it,
        containers_hold_slots_until_they_end,
        what_a_live_row_belongs_to_is_loaded_before_it_is_added,
        tokens_act_for_their_allocation_until_they_expire,
        places_are_replaced_and_removed,
        the_places_that_were_given_up_are_known,
        an_agent_has_one_token,
        long_lists_of_ids_are_answered,
        an_older_store_knows_where_its_containers_run,
        an_older_store_knows_the_states_of_its_tasks,
        the_task_of_a_job_is_no_experiments;
    unmanaged:
        an_experiment_is_found_by_its_external_id_until_it_is_deleted,
        the_code_of_trials_is_waited_for_until_they_end,
        the_trials_of_an_experiment_are_counted_by_state,
        an_older_store_has_nothing_unmanaged;
    reports:
        a_log_is_read_forwards_and_backwards,
        a_repeated_batch_of_a_spool_is_taken_once,
        lines_of_an_unknown_task_are_refused,
        metric_chunks_come_back_in_order,
        non_finite_metrics_travel_as_strings,
        pages_of_a_group_go_on_from_run_to_run,
        a_newer_run_outdates_what_it_repeats,
        an_older_store_knows_where_its_runs_began,
        summaries_are_replaced,
        the_journal_may_be_compacted_at_any_moment,
        older_runs_are_not_changed_by_compaction,
        checkpoints_are_counted_and_the_newest_complete_one_is_found,
        a_search_is_its_snapshot_and_the_events_since,
        events_are_numbered_in_the_order_of_their_changes;
    retention:
        a_log_goes_in_steps_and_others_stay,
        lines_that_come_after_a_deletion_are_a_log_again,
        a_log_is_kept_as_long_as_its_task_sets,
        what_log_policies_found_is_kept_with_the_task,
        an_older_store_keeps_logs_as_its_experiments_set;
    workspaces:
        everything_begins_uncategorized,
        an_older_store_comes_up_with_everything_uncategorized,
        workspaces_and_projects_keep_every_field,
        pins_are_a_persons_own,
        a_workspace_has_a_namespace_in_each_cluster,
        namespaces_that_were_made_outlive_their_workspace,
        experiments_and_their_jobs_go_with_their_project;
}

/// On PostgreSQL alone: the connection is lost between two changes, as when the server restarts.
#[tokio::test]
async fn postgres_connection_lost_between_changes() {
    let Some(server) = postgres_or_skip("connection lost between changes") else {
        return;
    };
    let world = World::postgres(&server).await;
    change!(world, conn => det_store::settings::set(conn, "before", "1").await);
    if let Kind::Postgres { server, name } = &world.kind {
        let sql = format!(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'"
        );
        run_on_server(server, &sql).await;
    }
    change!(world, conn => det_store::settings::set(conn, "after", "2").await);
    let after = read!(world, conn => det_store::settings::find(conn, "after").await);
    assert_eq!(after.as_deref(), Some("2"));
    world.remove().await;
}

/// Ends all connections to a world's database, as a server that restarts does.
async fn cut_connections(world: &World) {
    if let Kind::Postgres { server, name } = &world.kind {
        let sql = format!(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'"
        );
        run_on_server(server, &sql).await;
    }
}

/// Waits until the store's access is the one that is wanted.
async fn until_access(world: &World, wanted: impl Fn(&DatabaseAccess) -> bool) -> DatabaseAccess {
    let mut access = world.store.access();
    let waited = access.wait_for(|access| wanted(access));
    tokio::time::timeout(std::time::Duration::from_secs(60), waited)
        .await
        .expect("the store's access changes in time")
        .unwrap()
        .clone()
}

/// On PostgreSQL alone: a lost connection is noticed without any change, and nothing is read until it is back.
#[tokio::test]
async fn postgres_lost_connection_is_noticed_by_an_idle_master() {
    let Some(server) = postgres_or_skip("lost connection of an idle master") else {
        return;
    };
    let world = World::postgres(&server).await;
    let mut access = world.store.access();
    access.mark_unchanged();
    cut_connections(&world).await;
    access.changed().await.unwrap();
    until_access(&world, |access| *access == DatabaseAccess::Held).await;
    world.store.check().unwrap();
    change!(world, conn => det_store::settings::set(conn, "after", "2").await);
    world.remove().await;
}

/// On PostgreSQL alone: a master that finds that another one has had the database stops using it.
#[tokio::test]
async fn postgres_taken_by_another_master_meanwhile() {
    let Some(server) = postgres_or_skip("taken by another master meanwhile") else {
        return;
    };
    let world = World::postgres(&server).await;
    if let Kind::Postgres { server, name } = &world.kind {
        // What another master does when it takes the lock.
        let term = "UPDATE settings SET value = '99' WHERE key = 'master_term'";
        run_on_server(&server.clone().database(name), term).await;
    }
    cut_connections(&world).await;
    let ended = until_access(&world, |access| matches!(access, DatabaseAccess::Ended(_))).await;
    let text = ended.refusal().unwrap().to_string();
    assert!(
        text.contains("another master has had the database"),
        "{text}"
    );
    assert!(matches!(
        world.store.read().await,
        Err(StoreError::Ended(_))
    ));
    let refused: Result<(), StoreError> = world
        .write(|tx| {
            Box::pin(async move { det_store::settings::set(&mut tx.conn(), "k", "v").await })
        })
        .await;
    assert!(matches!(refused, Err(StoreError::Ended(_))), "{refused:?}");
    world.remove().await;
}

/// On PostgreSQL alone: commits wait for the disk also in a database that is set not to.
#[tokio::test]
async fn postgres_commits_wait_for_the_disk() {
    let Some(server) = postgres_or_skip("commits wait for the disk") else {
        return;
    };
    let world = World::postgres(&server).await;
    if let Kind::Postgres { server, name } = &world.kind {
        let lax = format!("ALTER DATABASE {name} SET synchronous_commit = off");
        run_on_server(server, &lax).await;
    }
    let world = world.reopened().await;
    let outcome: Result<(), StoreError> = world
        .write(|tx| {
            Box::pin(async move {
                tx.run_script(
                    "DO $$ BEGIN IF current_setting('synchronous_commit') = 'off' THEN \
                     RAISE EXCEPTION 'commits do not wait'; END IF; END $$",
                )
                .await
            })
        })
        .await;
    outcome.unwrap();
    world.remove().await;
}

/// `{:?}` of anything that is the same on both sides, for comparing rows without `PartialEq`.
fn shown(value: &impl Debug) -> String {
    format!("{value:?}")
}
