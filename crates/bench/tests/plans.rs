//! No listing reads a big table whole: asked of both databases, filled as by a busy cluster, for every sort and filter
//! that is offered.
//!
//! The second half needs a server that `DET_TEST_POSTGRES_URL` names, and is skipped aloud without it.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of tests fails by panicking, as the tests do"
)]

use std::io::Write as _;
use std::str::FromStr as _;

use det_bench::generate::{GenerationReport, fill};
use det_store::plans::{self, Plan, Sample};
use det_store::{Store, StoreUrl, allocations};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _};

/// Tables with a row for each user, agent or setting, and what is not a table: these may be read whole.
const SMALL: [&str; 7] = ["users", "u", "settings", "agents", "n", "w", "CONSTANT"];
/// Indexes of few rows of a big table: reading all of one is what they are for.
const PARTIAL: [&str; 7] = [
    "checkpoints_in_removal",
    "events_of_lost_places",
    "experiments_uncollected",
    "experiments_unmanaged",
    "trials_live",
    "trials_unmanaged",
    "trials_warm_started",
];

async fn filled(url: &StoreUrl) -> (Store, GenerationReport) {
    let store = Store::open(url).await.unwrap();
    let made = fill(&store, 0.001, 7).await.unwrap();
    (store, made)
}

async fn plans_of(store: &Store, made: &GenerationReport) -> Vec<Plan> {
    let mut conn = store.read().await.unwrap();
    let conn = &mut conn.conn();
    let task = allocations::tasks_of_trial(conn, made.long_trial)
        .await
        .unwrap()
        .pop()
        .unwrap();
    let sample = Sample {
        experiment_id: made.largest_experiment,
        trial_id: made.long_trial,
        task_id: task.id,
    };
    plans::all(conn, &sample).await.unwrap()
}

fn has_word(step: &str, words: &[&str]) -> bool {
    step.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .any(|word| words.contains(&word))
}

/// Whether a step of SQLite's reads a big table or an index of it from end to end.
fn sqlite_reads_all(step: &str) -> bool {
    step.starts_with("SCAN ") && !has_word(step, &SMALL) && !has_word(step, &PARTIAL)
}

/// The steps of PostgreSQL's that read a big table or an index of it from end to end.
fn postgres_reads_all(steps: &[String]) -> Vec<String> {
    let is_node = |line: &str| line.contains("(cost=");
    let mut found = Vec::new();
    for (index, step) in steps.iter().enumerate().filter(|(_, step)| is_node(step)) {
        let by_index = step.contains("Index Scan") || step.contains("Index Only Scan");
        let bounded = steps[index + 1..]
            .iter()
            .take_while(|line| !is_node(line))
            .any(|line| line.contains("Index Cond:"));
        let whole = step.contains("Seq Scan") || (by_index && !bounded);
        if whole && !has_word(step, &SMALL) && !has_word(step, &PARTIAL) {
            found.push(step.clone());
        }
    }
    found
}

/// Statements that read a page of a long history.
const PAGES: [&str; 3] = [
    "metrics: chunks of a group",
    "metrics: marks",
    "metrics: chunks between",
];

/// A page of a group's chunks begins at its place in the index, not at the first chunk of its run, and nothing is sorted.
fn assert_pages_begin_in_their_place(plans: &[Plan], begins: impl Fn(&str) -> bool, sorts: &str) {
    for name in PAGES {
        let plan = plans.iter().find(|plan| plan.name == name).unwrap();
        assert!(plan.steps.iter().any(|step| begins(step)), "{plan:#?}");
        assert!(
            !plan.steps.iter().any(|step| step.contains(sorts)),
            "{plan:#?}"
        );
    }
}

#[tokio::test]
async fn sqlite_answers_every_listing_by_an_index() {
    let directory = tempfile::tempdir().unwrap();
    let (store, made) = filled(&StoreUrl::Sqlite(directory.path().join("det.db"))).await;
    let plans = plans_of(&store, &made).await;
    assert!(plans.len() > 60, "{} statements", plans.len());
    store.close().await;
    assert_pages_begin_in_their_place(
        &plans,
        |step| step.contains("(trial_id=? AND group_name=? AND run_id=? AND id>?"),
        "TEMP B-TREE",
    );
    let mut bad = Vec::new();
    for plan in plans {
        assert!(!plan.steps.is_empty(), "{}", plan.name);
        if plan.steps.iter().any(|step| sqlite_reads_all(step)) {
            bad.push(plan);
        }
    }
    assert!(bad.is_empty(), "these read a big table whole: {bad:#?}");
}

#[tokio::test]
async fn postgres_answers_every_listing_by_an_index() {
    let Ok(server) = std::env::var("DET_TEST_POSTGRES_URL") else {
        let line = b"SKIPPED: plans of listings on PostgreSQL: DET_TEST_POSTGRES_URL is not set\n";
        std::io::stderr().write_all(line).unwrap();
        return;
    };
    let server = PgConnectOptions::from_str(&server).unwrap();
    let name = format!("plans_{}", uuid::Uuid::new_v4().simple());
    let run = async |sql: String| {
        let mut conn = server.connect().await.unwrap();
        conn.execute(AssertSqlSafe(sql)).await.unwrap();
    };
    run(format!("CREATE DATABASE {name} TEMPLATE template0")).await;
    let url = server.clone().database(&name).to_url_lossy().to_string();
    let (store, made) = filled(&StoreUrl::Postgres(url)).await;
    // As the server does by itself before long: otherwise it takes any moment for one in the middle of all ends.
    let mut conn = server.clone().database(&name).connect().await.unwrap();
    conn.execute("ANALYZE tasks").await.unwrap();
    drop(conn);
    let plans = plans_of(&store, &made).await;
    store.close().await;
    run(format!("DROP DATABASE {name} WITH (FORCE)")).await;
    assert!(plans.len() > 60, "{} statements", plans.len());
    assert_pages_begin_in_their_place(
        &plans,
        |step| step.contains("Index Cond:") && step.contains("ROW(run_id, id) > ROW("),
        "Sort ",
    );
    let bad: Vec<Plan> = plans
        .into_iter()
        .filter(|plan| !postgres_reads_all(&plan.steps).is_empty())
        .collect();
    assert!(bad.is_empty(), "these read a big table whole: {bad:#?}");
}

#[test]
fn full_scans_are_recognised() {
    assert!(sqlite_reads_all("SCAN trials"));
    assert!(sqlite_reads_all(
        "SCAN e USING COVERING INDEX experiments_by_state"
    ));
    assert!(!sqlite_reads_all(
        "SCAN e USING INDEX experiments_uncollected"
    ));
    assert!(!sqlite_reads_all(
        "SEARCH trials USING INDEX trials_by_experiment (experiment_id=?)"
    ));
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let seq =
        lines("Sort  (cost=1..2)\n  ->  Seq Scan on trials  (cost=0..1)\n        Filter: (id > 3)");
    assert_eq!(postgres_reads_all(&seq).len(), 1);
    let index = "Index Scan using trials_pkey on trials  (cost=0..1)\n  Index Cond: (id = 3)";
    assert!(postgres_reads_all(&lines(index)).is_empty());
    let disguised = "Index Scan using trials_pkey on trials  (cost=0..1)\n  Filter: (state = 'x')";
    assert_eq!(postgres_reads_all(&lines(disguised)).len(), 1);
}
