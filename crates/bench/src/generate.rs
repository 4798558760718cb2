//! `det-bench generate`: fills a database with what a busy cluster leaves behind in some years.
//!
//! The same arguments give the same contents, except that PostgreSQL keeps timestamps of its own. Everything has ended:
//! a master started on such a store has nothing to schedule and nothing to clean up.

mod draw;
mod rows;

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use det_ids::{ExperimentId, RunId, TrialId, UserId};
use det_store::logs::{self, LogLine};
use det_store::metrics::{GroupSummary, StoredReport};
use det_store::users::UserRow;
use det_store::{Store, StoreError, StoreUrl, allocations, bulk, experiments, metrics, users};
use serde_json::{Value, json};

use crate::generate::draw::Draw;
use crate::generate::rows::{Shape, experiment, trials_of};

/// Experiments at scale 1.
const EXPERIMENTS: f64 = 100_000.0;
/// Trials at scale 1.
const TRIALS: f64 = 1_000_000.0;
/// Trials of the largest experiment at scale 1.
const LARGEST: f64 = 10_000.0;
/// Users at scale 1.
const USERS: f64 = 500.0;
/// Values of the long metric at scale 1.
const POINTS: f64 = 1_000_000.0;
/// Lines of the long log at scale 1.
const LINES: f64 = 10_000_000.0;
/// Reports in one chunk, as a busy trial leaves them.
const REPORTS_PER_CHUNK: usize = 1000;
/// Lines in one chunk, as the agents ship them.
const LINES_PER_CHUNK: usize = 1000;
/// Trials in one transaction.
const TRIALS_PER_WRITE: usize = 10_000;
/// The text that one line in a hundred thousand of the long log has.
pub const NEEDLE: &str = "gradient overflow";

/// Fills a SQLite file or a PostgreSQL database; it must be empty of experiments, and no master may use it.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// The SQLite file to fill (`DATA-DIR/det.db` of a master); made when absent.
    #[arg(long, conflicts_with = "db_url")]
    pub file: Option<PathBuf>,
    /// The PostgreSQL database to fill, as a `postgres://` URL.
    #[arg(long)]
    pub db_url: Option<String>,
    /// How much of it: 1 = 100,000 experiments with a million trials, a metric of a million values, ten million lines.
    #[arg(long, default_value_t = 1.0)]
    pub scale: f64,
    /// Where the contents come from.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// How many rows of each kind were made.
#[derive(Debug, Clone, serde::Serialize)]
pub struct GenerationReport {
    /// Number of experiments made.
    pub experiments: usize,
    /// Number of trials made.
    pub trials: usize,
    /// Number of users, with those of a fresh database.
    pub users: usize,
    /// Number of checkpoints made.
    pub checkpoints: usize,
    /// The experiment with the most trials.
    pub largest_experiment: ExperimentId,
    /// Number of trials that this experiment has.
    pub largest_experiment_trials: usize,
    /// The trial with the long metric and the long log.
    pub long_trial: TrialId,
    /// Values of metric `loss` in its group `training`.
    pub points: usize,
    /// Lines of its log.
    pub log_lines: usize,
    /// Text that few of these lines have.
    pub needle: &'static str,
    /// Lines that have it.
    pub needle_lines: usize,
}

/// Fills a database as the subcommand's arguments ask for, and reports what was made.
pub async fn run(arguments: Arguments) -> anyhow::Result<Value> {
    let url = match (&arguments.file, &arguments.db_url) {
        (Some(file), None) => StoreUrl::Sqlite(file.clone()),
        (None, Some(url)) => url.parse()?,
        _ => bail!("name what to fill with --file or with --db-url"),
    };
    let began = std::time::Instant::now();
    let store = Store::open(&url).await?;
    let made = fill(&store, arguments.scale, arguments.seed).await?;
    store.close().await;
    let mut document = serde_json::to_value(made)?;
    document["seconds"] = json!(began.elapsed().as_secs_f64());
    Ok(document)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a scale is small and was checked to be above 0"
)]
fn scaled(full: f64, scale: f64, least: usize) -> usize {
    ((full * scale).round() as usize).max(least)
}

/// Fills an open store. `scale` must be above 0 and at most 10.
pub async fn fill(store: &Store, scale: f64, seed: u64) -> anyhow::Result<GenerationReport> {
    if !(scale > 0.0 && scale <= 10.0) {
        bail!("the scale must be above 0 and at most 10, found {scale}");
    }
    {
        let mut conn = store.read().await?;
        if !experiments::live(&mut conn.conn()).await?.is_empty()
            || experiments::find(&mut conn.conn(), ExperimentId(1))
                .await?
                .is_some()
        {
            bail!("the database has experiments already: fill an empty one");
        }
    }
    let mut draw = Draw::new(seed);
    let owners = add_users(store, scaled(USERS, scale, 5)).await?;
    let shape = Shape {
        experiments: scaled(EXPERIMENTS, scale, 20),
        trials: scaled(TRIALS, scale, 200),
        largest: scaled(LARGEST, scale, 50),
    };
    let filled = add_experiments(store, &shape, &owners, &mut draw).await?;
    let points = scaled(POINTS, scale, 2000);
    add_points(store, filled.long_trial, points, &mut draw).await?;
    let log_lines = scaled(LINES, scale, 2000);
    let needle_lines = add_lines(store, filled.long_trial, log_lines, &mut draw).await?;
    write(store, move |tx| {
        Box::pin(async move { bulk::analyze(&mut tx.conn()).await })
    })
    .await?;
    Ok(GenerationReport {
        experiments: shape.experiments,
        trials: filled.trials,
        users: owners.len(),
        checkpoints: filled.checkpoints,
        largest_experiment: filled.largest_experiment,
        largest_experiment_trials: shape.largest,
        long_trial: filled.long_trial,
        points,
        log_lines,
        needle: NEEDLE,
        needle_lines,
    })
}

async fn write<T, F>(store: &Store, change: F) -> Result<T, StoreError>
where
    F: for<'t> FnOnce(
            &'t mut det_store::WriteTx,
        ) -> futures::future::BoxFuture<'t, Result<T, StoreError>>
        + Send
        + 'static,
    T: Send + 'static,
{
    store.write(change).await
}

/// The two users of a fresh database, and others without a password; gives the numbers of all.
async fn add_users(store: &Store, count: usize) -> anyhow::Result<Vec<UserId>> {
    let known = {
        let mut conn = store.read().await?;
        users::list(&mut conn.conn()).await?
    };
    let ids = write(store, move |tx| {
        Box::pin(async move {
            let mut ids: Vec<UserId> = known.iter().map(|user| user.id).collect();
            let names = ["admin", "determined"].map(str::to_owned).into_iter();
            for name in names.chain((1..=count).map(|n| format!("user{n:03}"))) {
                if known.iter().any(|user| user.username == name) {
                    continue;
                }
                let user = UserRow {
                    id: UserId::default(),
                    admin: name == "admin",
                    display_name: name
                        .strip_prefix("user")
                        .map_or_else(String::new, |number| format!("User {number}")),
                    username: name,
                    password_hash: None,
                    active: true,
                    agent_uid: None,
                    agent_user: None,
                    agent_gid: None,
                    agent_group: None,
                    modified_at: rows::EPOCH,
                    last_auth_at: None,
                };
                ids.push(users::insert(&mut tx.conn(), &user).await?);
            }
            Ok(ids)
        })
    })
    .await?;
    Ok(ids)
}

struct ExperimentTotals {
    trials: usize,
    checkpoints: usize,
    largest_experiment: ExperimentId,
    long_trial: TrialId,
}

async fn add_experiments(
    store: &Store,
    shape: &Shape,
    owners: &[UserId],
    draw: &mut Draw,
) -> anyhow::Result<ExperimentTotals> {
    let mut filled = ExperimentTotals {
        trials: 0,
        checkpoints: 0,
        largest_experiment: ExperimentId(0),
        long_trial: TrialId(0),
    };
    let mut number = 0;
    while number < shape.experiments {
        // As many experiments as make one transaction of trials.
        let mut some = Vec::new();
        let mut trials = 0;
        while number < shape.experiments && trials < TRIALS_PER_WRITE {
            let past = experiment(number, shape, owners, draw);
            trials += usize::try_from(past.trial_count)?;
            some.push(past);
            number += 1;
        }
        let first = number - some.len();
        let seed = draw.next();
        let made = write(store, move |tx| {
            Box::pin(async move {
                let conn = &mut tx.conn();
                let ids = bulk::experiments(conn, &some).await?;
                let mut draw = Draw::new(seed);
                let mut made = Vec::with_capacity(some.len());
                let mut all = Vec::new();
                for (past, id) in some.iter().zip(&ids) {
                    let trials = trials_of(*id, past, &mut draw);
                    made.push((*id, trials.len()));
                    all.extend(trials);
                }
                let rows: Vec<_> = all.iter().map(|trial| trial.row.clone()).collect();
                let trial_ids = bulk::trials(conn, &rows).await?;
                let mut summaries = Vec::with_capacity(all.len() * 2);
                let mut checkpoints = Vec::new();
                for (trial, id) in all.into_iter().zip(&trial_ids) {
                    metrics::append(conn, *id, "validation", RunId::FIRST, &trial.validations)
                        .await?;
                    for (group, last_step, document) in trial.summaries {
                        summaries.push((*id, group, last_step, document));
                    }
                    for mut checkpoint in trial.checkpoints {
                        checkpoint.trial_id = Some(*id);
                        checkpoints.push(checkpoint);
                    }
                }
                bulk::summaries(conn, &summaries).await?;
                bulk::checkpoints(conn, &checkpoints).await?;
                Ok((made, trial_ids, checkpoints.len()))
            })
        })
        .await?;
        let (experiments, trial_ids, checkpoints) = made;
        filled.trials += trial_ids.len();
        filled.checkpoints += checkpoints;
        for (index, (id, count)) in experiments.iter().enumerate() {
            if first + index == shape.largest_number() && *count > 0 {
                filled.largest_experiment = *id;
            }
        }
        if filled.long_trial.0 == 0 {
            filled.long_trial = *trial_ids.first().context("no trial was made")?;
        }
        progress("trials", filled.trials, shape.trials);
    }
    Ok(filled)
}

/// One trial's long metric, as training that reports each step leaves it.
async fn add_points(
    store: &Store,
    trial_id: TrialId,
    points: usize,
    draw: &mut Draw,
) -> anyhow::Result<()> {
    let mut summary = GroupSummary::new();
    summary.run_id = RunId::FIRST;
    let mut step = 0_i64;
    let mut left = points;
    while left > 0 {
        // A hundred chunks in one transaction.
        let mut chunks = Vec::new();
        while left > 0 && chunks.len() < 100 {
            let count = left.min(REPORTS_PER_CHUNK);
            left -= count;
            let reports: Vec<StoredReport> = (0..count)
                .map(|_| {
                    step += 1;
                    let report = rows::report(step, draw);
                    summary.add(&report);
                    report
                })
                .collect();
            chunks.push(reports);
        }
        write(store, move |tx| {
            Box::pin(async move {
                for reports in &chunks {
                    metrics::append(&mut tx.conn(), trial_id, "training", RunId::FIRST, reports)
                        .await?;
                }
                Ok(())
            })
        })
        .await?;
        progress("points", points - left, points);
    }
    write(store, move |tx| {
        Box::pin(async move {
            metrics::save_summary(&mut tx.conn(), trial_id, "training", &summary).await
        })
    })
    .await?;
    Ok(())
}

/// One trial's long log; gives how many of its lines have the needle.
async fn add_lines(
    store: &Store,
    trial_id: TrialId,
    lines: usize,
    draw: &mut Draw,
) -> anyhow::Result<usize> {
    let task = {
        let mut conn = store.read().await?;
        allocations::tasks_of_trial(&mut conn.conn(), trial_id)
            .await?
            .pop()
            .context("the long trial has no task")?
            .id
    };
    let mut number = 0;
    let mut needles = 0;
    while number < lines {
        let mut batches = Vec::new();
        while number < lines && batches.len() < 32 {
            let count = (lines - number).min(LINES_PER_CHUNK);
            let batch: Vec<LogLine> = (0..count)
                .map(|n| rows::line(number + n, &task, draw))
                .collect();
            needles += batch.iter().filter(|l| l.log.contains(NEEDLE)).count();
            number += count;
            batches.push(batch);
        }
        // Packing is what takes the time, and each chunk is packed by itself.
        let packing: Vec<_> = batches
            .into_iter()
            .map(|batch| tokio::task::spawn_blocking(move || logs::pack(&batch)))
            .collect();
        let mut packed = Vec::with_capacity(packing.len());
        for one in packing {
            packed.push(one.await??);
        }
        let task = task.clone();
        write(store, move |tx| {
            Box::pin(async move {
                for chunk in &packed {
                    logs::append(&mut tx.conn(), &task, chunk).await?;
                }
                Ok(())
            })
        })
        .await?;
        progress("lines", number, lines);
    }
    Ok(needles)
}

/// Reports now and then how far it is.
fn progress(what: &str, done: usize, all: usize) {
    use std::io::Write as _;
    let tenth = (all / 10).max(1);
    if done / tenth != done.saturating_sub(tenth / 10 + 1) / tenth {
        // Nothing is lost when no one reads along.
        let _ = writeln!(std::io::stderr(), "{what}: {done} of {all}");
    }
}
