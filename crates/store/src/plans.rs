//! The query plans of lists and histories: for the test that none of them reads a big table whole.
//!
//! Lists of experiments are filtered and sorted in memory ([`crate::catalogue`]); what they query is the
//! same whatever they are sorted by, and is here as well.

use det_ids::{ExperimentId, MetricChunkId, TaskId, TrialId};
use det_lifecycle::state_name::StateName;

use crate::db::Link;
use crate::query::{Query, Value};
use crate::{
    Conn, StoreError, allocations, catalogue, checkpoints, events, experiments, logs, metrics,
    series, trials,
};

/// Things that statements are explained with.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Number of an experiment that is stored.
    pub experiment_id: ExperimentId,
    /// Number of a trial of that experiment.
    pub trial_id: TrialId,
    /// Id of a task of that trial.
    pub task_id: TaskId,
}

/// A statement and how it is answered.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What the statement is for, in words for messages of tests.
    pub name: String,
    /// The database's words, line by line.
    pub steps: Vec<String>,
}

/// The plans of all statements of listings, each with every sort and filter that is offered.
///
/// On PostgreSQL plans that go without an index are made dear on this connection, so that one that is chosen all the
/// same is the only index, however small the tables are.
pub async fn all(conn: &mut Conn<'_>, sample: &Sample) -> Result<Vec<Plan>, StoreError> {
    if matches!(conn.link, Link::Pg(_)) {
        execute!(conn, "SET enable_seqscan = off")?;
    }
    let mut plans = Vec::new();
    for (name, query) in statements(conn, sample) {
        let steps = query.explained(conn).await?;
        plans.push(Plan { name, steps });
    }
    if matches!(conn.link, Link::Pg(_)) {
        execute!(conn, "RESET enable_seqscan")?;
    }
    Ok(plans)
}

fn statements(conn: &Conn<'_>, sample: &Sample) -> Vec<(String, Query)> {
    let mut all = trial_lists(sample.experiment_id);
    all.extend(experiment_lists(sample.experiment_id));
    all.extend(histories(conn, sample));
    all
}

fn experiment_lists(id: ExperimentId) -> Vec<(String, Query)> {
    let number = |n: i64| vec![Value::Integer(n)];
    let named = |name: &str, query: Query| (format!("experiments: {name}"), query);
    let [uncollected, deleting] = experiments::clean_up_queries();
    vec![
        named("changed", Query::fixed(catalogue::CHANGED, number(5))),
        named("deleted", Query::fixed(catalogue::DELETED, number(5))),
        named(
            "page",
            experiments::page_query(&[0, 1, 2].map(|n| ExperimentId(id.0 + n))),
        ),
        named("live", experiments::live_query()),
        named("queued", Query::fixed(experiments::QUEUED, Vec::new())),
        named(
            "queued jobs",
            Query::fixed(experiments::QUEUED_JOBS, Vec::new()),
        ),
        named("uncollected", uncollected),
        named("deleting", deleting),
        named("phases", Query::fixed(allocations::LIVE_STATES, Vec::new())),
        named(
            "unmanaged, running",
            Query::fixed(experiments::UNMANAGED_RUNNING, Vec::new()),
        ),
        named(
            "trials of a user's unmanaged ones",
            Query::fixed(experiments::UNMANAGED_TRIALS_OF, number(1)),
        ),
        named(
            "of an external id",
            Query::fixed(
                experiments::OF_EXTERNAL_ID,
                vec![Value::Text("x".to_owned())],
            ),
        ),
    ]
}

fn trial_lists(experiment_id: ExperimentId) -> Vec<(String, Query)> {
    let mut all = Vec::new();
    let states = [StateName::Completed, StateName::Error];
    for states in [None, Some(&states[..])] {
        let filtered = if states.is_some() { ", by state" } else { "" };
        for sort in trials::Sort::ALL {
            for descending in [false, true] {
                let name = format!("trials: by {sort:?}, descending {descending}{filtered}");
                let query = trials::page_query(experiment_id, states, sort, descending, 100, 100);
                all.push((name, query));
            }
        }
        let count = trials::count_query(experiment_id, states);
        all.push((format!("trials: count{filtered}"), count));
    }
    all.push((
        "trials: page".into(),
        trials::rows_query(&[1, 2, 3].map(TrialId)),
    ));
    for (name, sql, rest) in [
        ("trials: stopping", trials::STOPPING, Vec::new()),
        (
            "trials: live of a state",
            trials::LIVE_OF_STATE,
            vec![Value::from(StateName::Active), Value::Integer(3)],
        ),
    ] {
        let values = [vec![experiment_id.into()], rest].concat();
        all.push((name.to_owned(), Query::fixed(sql, values)));
    }
    all.push((
        "trials: unmanaged".into(),
        Query::fixed(trials::UNMANAGED, Vec::new()),
    ));
    all.push((
        "trials: by state".into(),
        Query::fixed(trials::COUNTS, vec![experiment_id.into()]),
    ));
    all.push((
        "metrics: chunks by number".into(),
        metrics::rows_query(&[1, 2, 3].map(MetricChunkId)),
    ));
    all
}

#[expect(clippy::too_many_lines, reason = "a table of queries")]
fn histories(conn: &Conn<'_>, sample: &Sample) -> Vec<(String, Query)> {
    let (trial, number) = (sample.trial_id, Value::Integer);
    let next = TrialId(trial.0 + 1);
    let text = |text: &str| Value::Text(text.to_owned());
    let group = || vec![trial.into(), text("training")];
    let page = || [group(), vec![number(3), number(64)]].concat();
    let fixed =
        |name: &str, sql: &str, values: Vec<Value>| (name.to_owned(), Query::fixed(sql, values));
    let of_task = |n: i64| vec![Value::from(&sample.task_id), number(n), number(64)];
    let subject = vec![number(3), text("trial"), text("7"), number(100)];
    vec![
        (
            "checkpoints: of trials".into(),
            checkpoints::of_trials_query(&[trial, next]),
        ),
        fixed(
            "checkpoints: of experiment",
            checkpoints::OF_EXPERIMENT,
            vec![sample.experiment_id.into()],
        ),
        fixed(
            "checkpoints: warm starts",
            checkpoints::WARM_STARTED,
            Vec::new(),
        ),
        fixed(
            "checkpoints: in removal",
            checkpoints::IN_REMOVAL,
            Vec::new(),
        ),
        fixed(
            "metrics: chunks of a group",
            metrics::GROUP_CHUNKS.on(conn),
            page(),
        ),
        fixed("metrics: marks", metrics::MARKS.on(conn), page()),
        fixed(
            "metrics: chunks of a trial",
            metrics::TRIAL_CHUNKS,
            vec![trial.into(), number(3), number(64)],
        ),
        fixed(
            "metrics: chunks between",
            metrics::BETWEEN.on(conn),
            [page(), vec![number(5), number(9)]].concat(),
        ),
        (
            "metrics: chunks at steps".into(),
            metrics::at_steps_query("training", &[(trial, 5), (next, 7)]),
        ),
        (
            "metrics: starts of runs".into(),
            metrics::run_starts_query(&[trial, next]),
        ),
        (
            "metrics: summaries".into(),
            metrics::summaries_query(&[trial, next]),
        ),
        (
            "series: of metrics".into(),
            series::load_query(trial, "training", Some(&["loss".into()])),
        ),
        (
            "series: of a group".into(),
            series::load_query(trial, "training", None),
        ),
        fixed("series: through", series::THROUGH, group()),
        fixed("logs: forwards", logs::AFTER, of_task(5)),
        fixed("logs: backwards", logs::BEFORE, of_task(i64::MAX)),
        fixed(
            "logs: of ended tasks",
            logs::retention::ENDED,
            vec![number(i64::MAX), Value::from(&sample.task_id), number(64)],
        ),
        fixed("tasks: of a job", allocations::TASK_OF_JOB, vec![text("7")]),
        fixed("events: sizes", events::SIZES, vec![number(3), number(100)]),
        fixed("events: all", events::ALL, vec![number(3), number(100)]),
        fixed(
            "events: sizes of a subject",
            events::SIZES_OF_SUBJECT,
            subject.clone(),
        ),
        fixed("events: of a subject", events::OF_SUBJECT, subject),
        fixed(
            "events: of lost places",
            events::LOST_PLACES,
            vec![number(100)],
        ),
    ]
}
