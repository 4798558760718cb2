//! What tasks report: logs, metrics, checkpoints; and what the master keeps of searches and events.

use det_ids::{
    EventId, ExperimentId, JournalId, LogLevel, LogLineId, MetricChunkId, RunId, TrialId,
};
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_lifecycle::state_name::StateName;
use det_store::checkpoints::{self, CheckpointRow, CheckpointState};
use det_store::events::{self, NewEvent};
use det_store::journal::{self, Entry};
use det_store::logs::{self, LogLine};
use det_store::metrics::{self, GroupSummary, StoredReport, ValueKind};
use det_store::{allocations, experiments, searches, trials};
use serde_json::json;
use serde_json::value::RawValue;

use crate::rows::{
    checkpoint, newest_event, some_experiment, start_run, stored_task, stored_trial, task,
};
use crate::{WITHOUT_PLACES, World};

fn line(n: i64) -> LogLine {
    LogLine {
        at: 1_000 + n,
        log: format!("line {n}\n"),
        level: Some(LogLevel::Info),
        rank_id: Some(n % 2),
        ..LogLine::default()
    }
}

async fn append(
    world: &World,
    task_id: &'static str,
    lines: std::ops::RangeInclusive<i64>,
) -> bool {
    let lines: Vec<LogLine> = lines.map(line).collect();
    change!(world, conn => logs::append(conn, &task_id.into(), &logs::pack(&lines)?).await)
}

pub(crate) async fn a_log_is_read_forwards_and_backwards(world: &World) {
    stored_task(world, task("t", None, None)).await;
    stored_task(world, task("other", None, None)).await;
    // Chunks of very different sizes, with another task's between them.
    for lines in [1..=1, 2..=500, 501..=502, 503..=1500] {
        assert!(append(world, "t", lines).await);
        assert!(append(world, "other", 1..=3).await);
    }
    let expected: Vec<(LogLineId, LogLine)> = (1..=1500).map(|n| (LogLineId(n), line(n))).collect();
    let row = read!(world, conn => allocations::find_task(conn, &"t".into()).await).unwrap();
    assert_eq!(row.log_lines, 1500);

    // Forwards, a chunk at a time, going on after any line.
    for after in [0, 1, 250, 499, 500, 501, 1499, 1500, 9_999] {
        let mut seen = Vec::new();
        let mut position = LogLineId(after);
        loop {
            let chunks =
                read!(world, conn => logs::chunks_after(conn, &"t".into(), position, 1).await);
            let Some(chunk) = chunks.first() else { break };
            seen.extend(
                chunk
                    .unpack()
                    .unwrap()
                    .into_iter()
                    .filter(|(id, _)| *id > position),
            );
            position = chunk.last_line();
        }
        let from = usize::try_from(after.min(1500)).unwrap();
        assert_eq!(seen, expected[from..], "after {after}");
    }
    // Backwards.
    for before in [1, 2, 501, 502, 1501, i64::MAX] {
        let mut seen = Vec::new();
        let mut position = LogLineId(before);
        loop {
            let chunks =
                read!(world, conn => logs::chunks_before(conn, &"t".into(), position, 1).await);
            let Some(chunk) = chunks.first() else { break };
            seen.extend(
                chunk
                    .unpack()
                    .unwrap()
                    .into_iter()
                    .rev()
                    .filter(|(id, _)| *id < position),
            );
            position = chunk.first_line;
        }
        seen.reverse();
        let to = usize::try_from(before.min(1501) - 1).unwrap();
        assert_eq!(seen, expected[..to], "before {before}");
    }
    let none = change!(world, conn => logs::append(conn, &"t".into(), &logs::pack(&[])?).await);
    assert!(none, "no lines are no error");
    assert!(read!(world, conn => logs::chunks_after(conn, &"none".into(), LogLineId::default(), 5).await).is_empty());
}

pub(crate) async fn a_repeated_batch_of_a_spool_is_taken_once(world: &World) {
    stored_task(world, task("t", None, None)).await;
    // First sequence number, lines in the batch, lines of it that were stored before.
    for (first, count, known) in [
        (1, 10, 0),
        // The answer was lost and the batch came again.
        (1, 10, 10),
        // It came again with more.
        (6, 10, 5),
        (16, 1, 0),
        // An old part once more: it removes nothing.
        (2, 3, 3),
        (16, 2, 1),
        // A gap: lines were dropped on the way, and what has arrived is taken.
        (100, 5, 0),
        (90, 5, 5),
        (1, 0, 0),
    ] {
        let stored = change!(world, conn => logs::advance_spool(conn, &"s".into(), &"t".into(), first, count).await);
        assert_eq!(stored, known, "{count} lines from {first}");
    }
    // Another spool of the same task counts for itself.
    assert_eq!(
        change!(world, conn => logs::advance_spool(conn, &"s2".into(), &"t".into(), 1, 4).await),
        0
    );
}

pub(crate) async fn lines_of_an_unknown_task_are_refused(world: &World) {
    assert!(!append(world, "absent", 1..=2).await);
    assert!(
        read!(world, conn => logs::chunks_after(conn, &"absent".into(), LogLineId::default(), 5).await).is_empty()
    );
}

fn report(step: Option<i64>, metrics: &serde_json::Value) -> StoredReport {
    StoredReport {
        step,
        at: 17,
        metrics: metrics.as_object().cloned().unwrap(),
        batches: None,
        report_id: step.map(|s| format!("id-{s}").into()),
    }
}

pub(crate) async fn metric_chunks_come_back_in_order(world: &World) {
    let experiment_id = some_experiment(world).await;
    let trial_id = stored_trial(world, experiment_id, "r").await;
    let all: Vec<StoredReport> = (0..40)
        .map(|n| StoredReport {
            batches: (n == 3)
                .then(|| RawValue::from_string("[{\"loss\":0.1}]".to_owned()).unwrap()),
            // A number that needs every digit.
            ..report(
                Some(n),
                &json!({"loss": 0.1 + f64::from(u32::try_from(n).unwrap()) / 3.0, "name": "é\n"}),
            )
        })
        .collect();
    for part in all.chunks(15) {
        let part = part.to_vec();
        change!(world, conn => metrics::append(conn, trial_id, "training", RunId::FIRST, &part).await);
    }
    let profiler = vec![report(None, &json!({"cpu": 1}))];
    let stored = profiler.clone();
    change!(world, conn => metrics::append(conn, trial_id, "cpu", RunId::FIRST, &stored).await);

    let mut seen = Vec::new();
    let mut after = MetricChunkId::default();
    loop {
        let chunks =
            read!(world, conn => metrics::chunks(conn, trial_id, Some("training"), after, 2).await);
        let Some(last) = chunks.last() else { break };
        after = last.id;
        for chunk in &chunks {
            assert_eq!(
                (chunk.trial_id, chunk.run_id, chunk.group_name.as_str()),
                (trial_id, RunId::FIRST, "training")
            );
            let reports = chunk.unpack().unwrap();
            assert_eq!(usize::try_from(chunk.reports).unwrap(), reports.len());
            seen.extend(reports);
        }
    }
    assert_eq!(seen, all);
    let every = read!(world, conn => metrics::chunks(conn, trial_id, None, MetricChunkId::default(), 100).await);
    assert_eq!(every.len(), 4);
    assert_eq!(
        (every[3].first_step, every[3].unpack().unwrap()),
        (-1, profiler)
    );
    // Only the chunk that may hold the step.
    let chunks = read!(world, conn => metrics::chunks_with_step(conn, trial_id, "training", RunId::FIRST, 20).await);
    assert_eq!(
        chunks
            .iter()
            .map(|c| (c.first_step, c.last_step))
            .collect::<Vec<_>>(),
        [(15, 29)]
    );
    for (group, run_id, step) in [
        ("training", 2, 20),
        ("validation", 1, 20),
        ("training", 1, 40),
    ] {
        let chunks = read!(world, conn => metrics::chunks_with_step(conn, trial_id, group, RunId(run_id), step).await);
        assert!(chunks.is_empty(), "{group} run {run_id} step {step}");
    }
}

pub(crate) async fn non_finite_metrics_travel_as_strings(world: &World) {
    let experiment_id = some_experiment(world).await;
    let trial_id = stored_trial(world, experiment_id, "r").await;
    let reports = vec![
        report(Some(1), &json!({"loss": "NaN", "bound": "-Infinity"})),
        report(Some(2), &json!({"loss": 3.0, "bound": "Infinity"})),
        report(Some(3), &json!({"loss": 1.0, "bound": "Infinity"})),
    ];
    let mut summary = GroupSummary::new();
    for report in &reports {
        summary.add(report);
    }
    let (stored, document) = (reports.clone(), summary.clone());
    change!(world, conn => {
        metrics::append(conn, trial_id, "validation", RunId::FIRST, &stored).await?;
        metrics::save_summary(conn, trial_id, "validation", &document).await
    });
    let chunks = read!(world, conn => metrics::chunks(conn, trial_id, None, MetricChunkId::default(), 10).await);
    assert_eq!(chunks[0].unpack().unwrap(), reports);
    let read = read!(world, conn => metrics::summaries(conn, trial_id).await);
    assert_eq!(read["validation"], summary);
    let loss = &read["validation"].metrics["loss"];
    assert_eq!(
        (loss.kind, loss.count, loss.non_finite),
        (ValueKind::Number, 3, 1)
    );
    assert_eq!(
        (loss.min, loss.max, loss.mean()),
        (Some(1.0), Some(3.0), Some(2.0))
    );
    let bound = &read["validation"].metrics["bound"];
    assert_eq!(
        (bound.kind, bound.sum, bound.min, bound.mean()),
        (ValueKind::Number, None, None, None)
    );
    assert_eq!(bound.last, json!("Infinity"));
}

pub(crate) async fn a_newer_run_outdates_what_it_repeats(world: &World) {
    let experiment_id = some_experiment(world).await;
    let trial_id = stored_trial(world, experiment_id, "r").await;
    // Run 1 went to step 30, run 2 began again after step 20.
    for (group, run_id, steps) in [
        ("training", 1, vec![Some(10), Some(20), Some(30)]),
        ("validation", 1, vec![Some(20), Some(30)]),
        ("cpu", 1, vec![None]),
        // A report without a step does not show where its run starts.
        ("training", 2, vec![None, Some(21), Some(31)]),
        ("training", 2, vec![None]),
        ("cpu", 2, vec![None]),
    ] {
        let reports: Vec<StoredReport> = steps
            .into_iter()
            .map(|s| report(s, &json!({"x": 1})))
            .collect();
        change!(world, conn => metrics::append(conn, trial_id, group, RunId(run_id), &reports).await);
    }
    let starts = read!(world, conn => metrics::run_starts(conn, trial_id).await);
    let expected = [
        ("cpu", 1, -1),
        ("cpu", 2, -1),
        ("training", 1, 10),
        ("training", 2, 21),
        ("validation", 1, 20),
    ];
    assert_eq!(
        starts,
        expected.map(|(group, run, step)| (group.to_owned(), RunId(run), step))
    );
    for (group, run, step, counts) in [
        ("training", 1, Some(20), true),
        ("training", 1, Some(21), false),
        ("training", 1, Some(30), false),
        ("training", 2, Some(31), true),
        ("validation", 1, Some(20), true),
        // In another group only what is after the new run's first step is outdated.
        ("validation", 1, Some(21), true),
        ("validation", 1, Some(30), false),
        ("training", 1, None, true),
    ] {
        let outdated = metrics::outdated_from(&starts, group);
        assert_eq!(
            metrics::counts(&outdated, RunId(run), step),
            counts,
            "{group} run {run} step {step:?}"
        );
    }
}

/// Every page holds what comes next, wherever a page ends and whichever run that is in.
pub(crate) async fn pages_of_a_group_go_on_from_run_to_run(world: &World) {
    let experiment_id = some_experiment(world).await;
    let trial_id = stored_trial(world, experiment_id, "r").await;
    let other = stored_trial(world, experiment_id, "other").await;
    // Chunks of other groups and trials are between.
    for (run_id, step) in [(1, 10), (1, 20), (1, 30), (2, 21), (4, 22), (4, 32)] {
        change!(world, conn => {
            for (trial_id, group) in [(trial_id, "training"), (trial_id, "validation"), (other, "training")] {
                metrics::append(conn, trial_id, group, RunId(run_id), &[report(Some(step), &json!({"x": step}))]).await?;
            }
            Ok(())
        });
    }
    let whole = read!(world, conn => metrics::chunks(conn, trial_id, Some("training"), MetricChunkId::default(), 100).await);
    let places = |chunks: &[metrics::ChunkRow]| -> Vec<(i64, i64)> {
        chunks.iter().map(|c| (c.run_id.0, c.first_step)).collect()
    };
    assert_eq!(
        places(&whole),
        [(1, 10), (1, 20), (1, 30), (2, 21), (4, 22), (4, 32)]
    );
    for size in 1..=whole.len() {
        for from in 0..=whole.len() {
            let after = from
                .checked_sub(1)
                .map_or(MetricChunkId::default(), |last| whole[last].id);
            let limit = i64::try_from(size).unwrap();
            let expected = &whole[from..whole.len().min(from + size)];
            let page = read!(world, conn => metrics::chunks(conn, trial_id, Some("training"), after, limit).await);
            assert_eq!(places(&page), places(expected), "{size} after {from}");
            let marks = read!(world, conn => metrics::marks(conn, trial_id, "training", after, limit).await);
            assert_eq!(
                marks.iter().map(|mark| mark.id).collect::<Vec<_>>(),
                expected.iter().map(|chunk| chunk.id).collect::<Vec<_>>()
            );
        }
        let mut between = Vec::new();
        let mut after = MetricChunkId::default();
        loop {
            let limit = i64::try_from(size).unwrap();
            let page = read!(world, conn => metrics::chunks_between(conn, trial_id, "training", 21..=30, after, limit).await);
            let Some(last) = page.last() else { break };
            after = last.id;
            between.extend(places(&page));
        }
        assert_eq!(between, [(1, 30), (2, 21), (4, 22)], "pages of {size}");
    }
}

/// A store of a version that kept no runs: they are found in its chunks once.
pub(crate) async fn an_older_store_knows_where_its_runs_began(world: &World) {
    let experiment_id = some_experiment(world).await;
    let trial_id = stored_trial(world, experiment_id, "r").await;
    for (group, run_id, steps) in [
        ("training", 1, vec![Some(10), Some(20)]),
        ("training", 2, vec![None, Some(16)]),
        ("training", 2, vec![Some(15)]),
        ("cpu", 2, vec![None]),
    ] {
        let reports: Vec<StoredReport> = steps
            .into_iter()
            .map(|s| report(s, &json!({"x": 1})))
            .collect();
        change!(world, conn => metrics::append(conn, trial_id, group, RunId(run_id), &reports).await);
    }
    let known = read!(world, conn => metrics::run_starts(conn, trial_id).await);
    let expected = [("cpu", 2, -1), ("training", 1, 10), ("training", 2, 15)];
    assert_eq!(
        known,
        expected.map(|(group, run, step)| (group.to_owned(), RunId(run), step))
    );
    world
        .older(
            &[
                WITHOUT_PLACES,
                "DROP TABLE metric_runs; DELETE FROM schema_versions WHERE version >= 6;",
            ]
            .concat(),
        )
        .await;
    let world = world.reopened().await;
    let found = read!(world, conn => metrics::run_starts(conn, trial_id).await);
    assert_eq!(found, known);
    // And it goes on from there.
    change!(world, conn => {
        metrics::append(conn, trial_id, "cpu", RunId(2), &[report(Some(3), &json!({"x": 1}))]).await?;
        metrics::append(conn, trial_id, "training", RunId(2), &[report(Some(40), &json!({"x": 1}))]).await
    });
    let later = read!(world, conn => metrics::run_starts(conn, trial_id).await);
    let steps: Vec<i64> = later.iter().map(|(_, _, step)| *step).collect();
    assert_eq!(steps, [3, 10, 15]);
    world.store.close().await;
}

pub(crate) async fn summaries_are_replaced(world: &World) {
    let mut summary = GroupSummary::new();
    for step in [5, 9] {
        summary.add(&report(Some(step), &json!({"loss": step, "note": "text"})));
        let stored = summary.clone();
        change!(world, conn => metrics::save_summary(conn, TrialId(1), "training", &stored).await);
    }
    let other = GroupSummary::new();
    change!(world, conn => metrics::save_summary(conn, TrialId(2), "training", &other).await);
    let all = read!(world, conn => metrics::summaries_of(conn, &[1, 2, 3].map(TrialId)).await);
    assert_eq!(all.keys().copied().collect::<Vec<_>>(), [1, 2].map(TrialId));
    assert_eq!(all[&TrialId(1)]["training"], summary);
    assert_eq!(
        (summary.last_step, summary.metrics["loss"].mean()),
        (9, Some(7.0))
    );
    assert_eq!(all[&TrialId(2)]["training"].last_step, -1);
}

fn entry(trial_id: TrialId, run_id: RunId, group: &str, report: &StoredReport) -> Entry {
    Entry {
        trial_id,
        run_id,
        group: group.into(),
        line: serde_json::to_vec(report).unwrap(),
    }
}

/// Compacts all of the journal, as the master does.
async fn compact(world: &World) {
    loop {
        let rows = read!(world, conn => journal::read(conn, JournalId::default()).await);
        if rows.is_empty() {
            return;
        }
        let sorted = journal::SortedReports::of(&rows).unwrap();
        let trials = sorted.trials();
        let stored = read!(world, conn => metrics::summaries_of(conn, &trials).await);
        let compaction = sorted.prepare(stored).unwrap();
        change!(world, conn => journal::apply(conn, compaction).await);
    }
}

pub(crate) async fn the_journal_may_be_compacted_at_any_moment(world: &World) {
    let experiment_id = some_experiment(world).await;
    let mut ids = Vec::new();
    for name in ["a", "b", "c"] {
        ids.push(stored_trial(world, experiment_id, name).await);
    }
    // Numbers that need every digit: sums must come out the same to the last bit, however often they are stored.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut reported: std::collections::BTreeMap<(TrialId, &str), Vec<StoredReport>> =
        std::collections::BTreeMap::new();
    let mut id = JournalId::default();
    for step in 0..120 {
        let mut entries = Vec::new();
        for _ in 0..=next(4) {
            let trial_id = ids[usize::try_from(next(3)).unwrap()];
            let group =
                ["training", "validation", "mine", "cpu"][usize::try_from(next(4)).unwrap()];
            #[expect(clippy::cast_precision_loss, reason = "any float will do")]
            let loss = next(1 << 53) as f64 / 7e12;
            let report = report((group != "cpu").then_some(step), &json!({"loss": loss}));
            entries.push(entry(trial_id, RunId::default(), group, &report));
            reported.entry((trial_id, group)).or_default().push(report);
        }
        id = id.next();
        let data = journal::pack(&entries).unwrap();
        let row = id;
        change!(world, conn => journal::append(conn, row, &data).await);
        assert_eq!(read!(world, conn => journal::newest(conn).await), id);
        if next(10) == 0 {
            compact(world).await;
        }
    }
    compact(world).await;
    assert_eq!(
        read!(world, conn => journal::newest(conn).await),
        JournalId::default()
    );
    for trial_id in ids {
        let summaries = read!(world, conn => metrics::summaries(conn, trial_id).await);
        let mut highest = 0;
        for ((_, group), reports) in reported.range((trial_id, "")..(TrialId(trial_id.0 + 1), "")) {
            let chunks = read!(world, conn => metrics::chunks(conn, trial_id, Some(group), MetricChunkId::default(), 999).await);
            let stored: Vec<StoredReport> =
                chunks.iter().flat_map(|c| c.unpack().unwrap()).collect();
            assert_eq!(&stored, reports, "{group} of trial {trial_id}");
            for chunk in &chunks {
                let steps = || chunk.unpack().unwrap().into_iter().filter_map(|r| r.step);
                assert_eq!(
                    (chunk.first_step, chunk.last_step),
                    (steps().min().unwrap_or(-1), steps().max().unwrap_or(-1))
                );
                let at = chunk.unpack_at(stored[0].step).unwrap();
                assert!(at.iter().all(|r| r.step == stored[0].step));
            }
            let mut wanted = GroupSummary::new();
            for report in reports {
                wanted.add(report);
            }
            assert_eq!(summaries[*group], wanted, "{group} of trial {trial_id}");
            if ["training", "validation"].contains(group) {
                highest = highest.max(wanted.last_step);
            }
        }
        let row = read!(world, conn => trials::find(conn, trial_id).await).unwrap();
        assert_eq!(row.total_batches, highest);
    }
}

pub(crate) async fn older_runs_are_not_changed_by_compaction(world: &World) {
    let experiment_id = some_experiment(world).await;
    let trial_id = stored_trial(world, experiment_id, "a").await;
    let report = report(Some(50), &json!({"loss": 1}));
    let entries = [
        // Of a run that is over when it is compacted, and of a trial that was deleted by then.
        entry(trial_id, RunId::FIRST, "training", &report),
        entry(TrialId(trial_id.0 + 1), RunId::FIRST, "training", &report),
        entry(
            trial_id,
            RunId(2),
            "training",
            &StoredReport {
                step: Some(20),
                ..report.clone()
            },
        ),
    ];
    let data = journal::pack(&entries).unwrap();
    assert_eq!(
        journal::JournalRow {
            id: JournalId(1),
            data: data.clone()
        }
        .entries()
        .unwrap(),
        entries
    );
    change_live!(world, tx => {
        journal::append(&mut tx.conn(), JournalId(1), &data).await?;
        start_run(tx, trial_id, RunId(2), 10).await
    });
    compact(world).await;
    let row = read!(world, conn => trials::find(conn, trial_id).await).unwrap();
    assert_eq!(row.total_batches, 20);
    let chunks = read!(world, conn => metrics::chunks(conn, trial_id, None, MetricChunkId::default(), 10).await);
    assert_eq!(
        chunks
            .iter()
            .map(|c| (c.run_id.0, c.last_step))
            .collect::<Vec<_>>(),
        [(1, 50), (2, 20)],
        "chunks are in the order of the runs"
    );
    let summary = read!(world, conn => metrics::summaries(conn, trial_id).await);
    assert_eq!(
        (summary["training"].run_id.0, summary["training"].last_step),
        (2, 20)
    );
    let gone = TrialId(trial_id.0 + 1);
    assert!(
        read!(world, conn => metrics::chunks(conn, gone, None, MetricChunkId::default(), 10).await)
            .is_empty()
    );
    assert!(read!(world, conn => metrics::summaries(conn, gone).await).is_empty());
}

pub(crate) async fn checkpoints_are_counted_and_the_newest_complete_one_is_found(world: &World) {
    let experiment_id = some_experiment(world).await;
    let trial_id = stored_trial(world, experiment_id, "r").await;
    for (uuid, steps, state, bytes) in [
        ("c-3", 300, CheckpointState::Completed, 1_i64 << 40),
        ("c-1", 100, CheckpointState::Completed, 1),
        ("c-4", 400, CheckpointState::Error, 2),
        ("c-2", 200, CheckpointState::Deleted, 1_000_000),
    ] {
        let row = CheckpointRow {
            state,
            bytes,
            ..checkpoint(uuid, experiment_id, trial_id, steps)
        };
        assert!(
            change!(world, conn => checkpoints::insert(conn, &row).await),
            "{uuid}"
        );
    }
    // A repeated report is the same checkpoint and changes nothing.
    let again = CheckpointRow {
        bytes: 77,
        ..checkpoint("c-1", experiment_id, trial_id, 1)
    };
    assert!(!change!(world, conn => checkpoints::insert(conn, &again).await));
    change!(world, conn => {
        trials::recount_checkpoints(conn, trial_id).await?;
        experiments::recount_checkpoints(conn, experiment_id).await
    });
    let row = read!(world, conn => trials::find(conn, trial_id).await).unwrap();
    assert_eq!(
        (row.checkpoint_count, row.checkpoint_bytes),
        (3, (1 << 40) + 3)
    );
    assert_eq!(
        (row.latest_checkpoint.clone(), row.latest_checkpoint_steps),
        (Some("c-3".into()), Some(300))
    );
    let row = read!(world, conn => experiments::find(conn, experiment_id).await).unwrap();
    assert_eq!(
        (row.checkpoint_count, row.checkpoint_bytes),
        (3, (1 << 40) + 3)
    );

    let order = |rows: Vec<CheckpointRow>| {
        rows.into_iter()
            .map(|c| c.uuid.into())
            .collect::<Vec<String>>()
    };
    assert_eq!(
        order(read!(world, conn => checkpoints::of_trial(conn, trial_id).await)),
        ["c-1", "c-2", "c-3", "c-4"]
    );
    assert_eq!(
        order(read!(world, conn => checkpoints::of_experiment(conn, experiment_id).await)).len(),
        4
    );
    let wanted = ["c-4".into(), "nothing".into()];
    assert_eq!(
        order(read!(world, conn => checkpoints::find_all(conn, &wanted).await)),
        ["c-4"]
    );

    let mut row = read!(world, conn => checkpoints::find(conn, &"c-3".into()).await).unwrap();
    row.state = CheckpointState::Deleted;
    row.metadata = r#"{"note":"x"}"#.into();
    (row.resources, row.bytes) = ("{}".into(), 0);
    let change = row.clone();
    change!(world, conn => {
        checkpoints::update(conn, &change).await?;
        trials::recount_checkpoints(conn, trial_id).await
    });
    let stored = read!(world, conn => checkpoints::find(conn, &"c-3".into()).await);
    assert_eq!(crate::shown(&stored), crate::shown(&Some(row)));
    let row = read!(world, conn => trials::find(conn, trial_id).await).unwrap();
    assert_eq!(row.latest_checkpoint, Some("c-1".into()));
    sources_of_warm_starts_are_found(world, experiment_id).await;
}

async fn sources_of_warm_starts_are_found(world: &World, experiment_id: ExperimentId) {
    let mut warm = crate::rows::trial(experiment_id, "warm");
    warm.warm_start_checkpoint = Some("c-1".into());
    change!(world, conn => trials::insert(conn, &warm).await);
    assert_eq!(
        read!(world, conn => checkpoints::warm_start_sources(conn).await),
        ["c-1".into()]
    );
}

pub(crate) async fn a_search_is_its_snapshot_and_the_events_since(world: &World) {
    assert!(read!(world, conn => searches::find(conn, ExperimentId(1)).await).is_none());
    change!(world, conn => searches::save_snapshot(conn, ExperimentId(1), 0, "start").await);
    for seq in 1..=4 {
        change!(world, conn => searches::append_event(conn, ExperimentId(1), seq, &format!("e{seq}")).await);
    }
    // Number 4 exists: a decision cannot be stored twice.
    let outcome = world
        .write(|tx| {
            Box::pin(async move {
                searches::append_event(&mut tx.conn(), ExperimentId(1), 4, "again").await
            })
        })
        .await;
    assert!(outcome.is_err());
    let search = read!(world, conn => searches::find(conn, ExperimentId(1)).await).unwrap();
    assert_eq!(
        (
            search.through,
            search.snapshot.as_str(),
            search.events.len()
        ),
        (0, "start", 4)
    );

    change!(world, conn => searches::save_snapshot(conn, ExperimentId(1), 3, "later").await);
    let search = read!(world, conn => searches::find(conn, ExperimentId(1)).await).unwrap();
    assert_eq!((search.through, search.snapshot.as_str()), (3, "later"));
    assert_eq!(search.events, [(4, "e4".to_owned())]);

    change!(world, conn => searches::delete(conn, ExperimentId(1)).await);
    assert!(read!(world, conn => searches::find(conn, ExperimentId(1)).await).is_none());
}

#[expect(clippy::too_many_lines, reason = "one history, step by step")]
pub(crate) async fn events_are_numbered_in_the_order_of_their_changes(world: &World) {
    let record = |subject: i64, kind: EventKind, refuse: bool| {
        world.write(move |tx| {
            Box::pin(async move {
                let subject = Subject::Experiment(ExperimentId(subject));
                let event = NewEvent::new(ActorName::user("ada"), subject, kind)
                    .states(
                        Some(StateName::Active.into()),
                        Some(StateName::Paused.into()),
                    )
                    .detail(json!({"n": 1}));
                events::append(tx, event).await?;
                if refuse {
                    return Err(det_store::StoreError::Closed);
                }
                Ok(())
            })
        })
    };
    let (first, refused, second, third) = futures::join!(
        record(1, EventKind::Created, false),
        record(1, EventKind::Changed, true),
        record(2, EventKind::Created, false),
        record(1, EventKind::State, false),
    );
    first.and(second).and(third).unwrap();
    refused.unwrap_err();

    let all =
        read!(world, conn => events::list(conn, EventId::default(), None, 10, i64::MAX).await);
    let found = all.iter().map(|e| (e.subject.to_string(), e.kind));
    let found: Vec<(String, EventKind)> = found.collect();
    let expected = [
        (1, EventKind::Created),
        (2, EventKind::Created),
        (1, EventKind::State),
    ];
    assert_eq!(found, expected.map(|(id, kind)| (id.to_string(), kind)));
    assert!(
        all.windows(2).all(|pair| pair[0].id < pair[1].id),
        "numbers grow"
    );
    let event = &all[0];
    assert_eq!(
        (&event.actor, event.subject.kind()),
        (&ActorName::user("ada"), "experiment")
    );
    assert_eq!(
        (event.from.clone(), event.to.clone()),
        (
            Some(StateName::Active.into()),
            Some(StateName::Paused.into())
        )
    );
    assert_eq!(
        (event.reason.as_deref(), event.detail.as_deref()),
        (None, Some(r#"{"n":1}"#))
    );

    assert_eq!(read!(world, conn => newest_event(conn).await), all[2].id);
    let page = read!(world, conn => events::list(conn, all[0].id, None, 1, i64::MAX).await);
    assert_eq!(page.iter().map(|e| e.id).collect::<Vec<_>>(), [all[1].id]);
    let one = Subject::Experiment(ExperimentId(1));
    let of_one = read!(world, conn => events::list(conn, EventId::default(), Some(&one), 10, i64::MAX).await);
    assert_eq!(
        of_one.iter().map(|e| e.kind).collect::<Vec<_>>(),
        [EventKind::Created, EventKind::State]
    );
    let other = Subject::Trial(TrialId(1));
    assert!(
        read!(world, conn => events::list(conn, EventId::default(), Some(&other), 10, i64::MAX).await).is_empty()
    );

    let large = async |bytes: usize| {
        let subject = Subject::Template("t".to_owned());
        let event = NewEvent {
            detail: Some("x".repeat(bytes)),
            ..NewEvent::new(ActorName::Master, subject, EventKind::Deleted)
        };
        world
            .write(move |tx| Box::pin(async move { events::append(tx, event).await }))
            .await
            .unwrap();
    };
    for bytes in [100, 60, 40, 1] {
        large(bytes).await;
    }
    let template = Subject::Template("t".to_owned());
    let mut pages = Vec::new();
    let mut after = all[2].id;
    loop {
        let page = read!(world, conn => events::list(conn, after, None, 10, 100).await);
        let same = read!(world, conn => events::list(conn, after, Some(&template), 10, 100).await);
        assert_eq!(page.len(), same.len());
        let Some(last) = page.last() else { break };
        after = last.id;
        pages.push(page.len());
    }
    assert_eq!(
        pages,
        [1, 2, 1],
        "a page ends before the event that is too much for it"
    );
    let alone = read!(world, conn => events::list(conn, all[2].id, None, 10, 1).await);
    assert_eq!(alone.len(), 1, "one that has more than a page comes alone");
}
