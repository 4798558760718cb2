//! Logs that are deleted because they were kept long enough.

use det_ids::{LogLineId, TaskId, TrialId};
use det_lifecycle::log_findings::LogFindings;
use det_store::logs::retention::{self, DeletionStep, EndedLog};
use det_store::logs::{self, LogLine};
use det_store::{allocations, experiments};

use crate::rows::{
    experiment, some_experiment, stored_experiment, stored_task, stored_trial, stored_user, task,
};
use crate::{WITHOUT_PLACES, World};

/// A task of a trial with this many chunks of two lines.
async fn logged(
    world: &World,
    id: &str,
    trial: Option<TrialId>,
    chunks: usize,
    ended: Option<i64>,
) {
    let mut row = task(id, None, trial);
    row.ended_at = ended;
    stored_task(world, row).await;
    for _ in 0..chunks {
        log_lines(world, id).await;
    }
}

async fn log_lines(world: &World, id: &str) {
    let id = TaskId::from(id);
    let lines = ["one\n", "two\n"].map(|text| LogLine {
        log: text.into(),
        ..LogLine::default()
    });
    assert!(change!(world, conn => logs::append(conn, &id, &logs::pack(&lines)?).await));
}

async fn lines(world: &World, id: &str) -> i64 {
    let chunks =
        read!(world, conn => logs::chunks_after(conn, &id.into(), LogLineId::default(), 100).await);
    chunks.iter().map(|chunk| chunk.lines).sum()
}

async fn ended(world: &World) -> Vec<EndedLog> {
    read!(world, conn => retention::page(conn, (i64::MIN, &"".into()), 100).await)
}

fn log(task: &str, ended_at: i64, days: Option<i64>) -> EndedLog {
    EndedLog {
        task_id: task.into(),
        ended_at,
        days,
    }
}

pub(crate) async fn a_log_goes_in_steps_and_others_stay(world: &World) {
    logged(world, "own", None, 5, Some(200)).await;
    change!(world, conn => allocations::set_log_retention(conn, &"own".into(), Some(0)).await);
    logged(world, "none", None, 3, Some(100)).await;
    logged(world, "silent", None, 0, Some(100)).await;
    logged(world, "live", None, 2, None).await;
    // By their ends, page by page; tasks that live or have no log are not among them.
    let all = [log("none", 100, None), log("own", 200, Some(0))];
    assert_eq!(ended(world).await, all);
    let first = read!(world, conn => retention::page(conn, (i64::MIN, &"".into()), 1).await);
    let second = read!(world, conn => retention::page(conn, (100, &"none".into()), 1).await);
    assert_eq!([first, second].concat(), all);
    assert!(read!(world, conn => retention::page(conn, (200, &"own".into()), 1).await).is_empty());

    // Oldest first, and what was not deleted yet is still read, after a restart too.
    let step = change!(world, conn => retention::delete(conn, &"own".into(), 2, 900).await);
    let expected = |chunks, whole| DeletionStep {
        chunks,
        lines: i64::try_from(chunks).unwrap() * 2,
        whole,
    };
    assert_eq!(step, expected(2, false));
    let world = &world.reopened().await;
    let left = read!(world, conn => logs::chunks_after(conn, &"own".into(), LogLineId::default(), 100).await);
    assert_eq!(
        left.iter().map(|c| c.first_line.0).collect::<Vec<_>>(),
        [5, 7, 9]
    );
    assert_eq!(ended(world).await, all, "it is gone on with");
    for (step, left) in [(expected(2, false), 2), (expected(1, true), 0)] {
        assert_eq!(
            change!(world, conn => retention::delete(conn, &"own".into(), 2, 900).await),
            step
        );
        assert_eq!(lines(world, "own").await, left);
    }
    assert_eq!(ended(world).await, all[..1]);
    let row = read!(world, conn => allocations::find_task(conn, &"own".into()).await).unwrap();
    assert_eq!((row.log_lines, row.logs_deleted_at), (10, Some(900)));
    assert_eq!(
        (lines(world, "none").await, lines(world, "live").await),
        (6, 4)
    );
    assert_eq!(
        change!(world, conn => retention::find(conn, &"own".into()).await),
        None
    );
    assert_eq!(
        change!(world, conn => retention::find(conn, &"live".into()).await),
        None
    );
    assert_eq!(
        change!(world, conn => retention::find(conn, &"nobody".into()).await),
        None
    );
    assert_eq!(
        change!(world, conn => retention::find(conn, &"none".into()).await),
        Some(log("none", 100, None))
    );
    world.store.close().await;
}

pub(crate) async fn lines_that_come_after_a_deletion_are_a_log_again(world: &World) {
    logged(world, "t", None, 2, Some(100)).await;
    change!(world, conn => logs::advance_spool(conn, &"s".into(), &"t".into(), 1, 4).await);
    change!(world, conn => retention::delete(conn, &"t".into(), 100, 900).await);
    // The spool is known still: what it repeats is not stored again.
    assert_eq!(
        change!(world, conn => logs::advance_spool(conn, &"s".into(), &"t".into(), 1, 4).await),
        4
    );
    log_lines(world, "t").await;
    let chunks = read!(world, conn => logs::chunks_after(conn, &"t".into(), LogLineId::default(), 100).await);
    assert_eq!(
        chunks.iter().map(|c| c.first_line.0).collect::<Vec<_>>(),
        [5],
        "numbers go on"
    );
    assert_eq!(ended(world).await, [log("t", 100, None)]);
    change!(world, conn => retention::delete(conn, &"t".into(), 100, 950).await);
    assert_eq!(lines(world, "t").await, 0);
    let row = read!(world, conn => allocations::find_task(conn, &"t".into()).await).unwrap();
    assert_eq!(row.logs_deleted_at, Some(950));
    // A line that the master added in the same change goes with the rest.
    let line = LogLine {
        log: "said\n".into(),
        ..LogLine::default()
    };
    let gone = change!(world, conn => {
        logs::append_line(conn, &"t".into(), line)?;
        retention::delete(conn, &"t".into(), 100, 960).await
    });
    assert_eq!((gone.lines, gone.whole), (1, true));
}

pub(crate) async fn a_log_is_kept_as_long_as_its_task_sets(world: &World) {
    let experiment = some_experiment(world).await;
    let owner = stored_user(world, "grace").await;
    let other = stored_experiment(world, crate::rows::experiment("other", owner)).await;
    let ids = ["one", "two", "third"].map(TaskId::from);
    for (id, of) in ids.iter().zip([experiment, experiment, other]) {
        stored_task(world, task(id.as_str(), Some(of), None)).await;
    }
    let days = async || {
        let mut all = Vec::new();
        for id in &ids {
            let row = read!(world, conn => allocations::find_task(conn, id).await).unwrap();
            all.push(row.log_retention_days);
        }
        all
    };
    let [one, two, third] = ids.clone();
    change!(world, conn => allocations::set_log_retention(conn, &one, Some(7)).await);
    assert_eq!(days().await, [Some(7), None, None]);
    change!(world, conn => {
        // Not written yet when the others are changed.
        allocations::set_log_retention(conn, &two, Some(8)).await?;
        allocations::set_log_retention_of_experiment(conn, experiment, Some(-1)).await?;
        allocations::set_log_retention(conn, &third, Some(0)).await
    });
    assert_eq!(days().await, [Some(-1), Some(-1), Some(0)]);
    change!(world, conn => allocations::set_log_retention_of_experiment(conn, experiment, None).await);
    assert_eq!(days().await, [None, None, Some(0)]);
}

pub(crate) async fn what_log_policies_found_is_kept_with_the_task(world: &World) {
    let mut findings = LogFindings::default();
    assert!(findings.add_match("oom") && findings.exclude("a".into(), "out of memory"));
    let mut row = task("t", None, None);
    row.log_findings = Some(findings.clone());
    stored_task(world, row).await;
    let world = world.reopened().await;
    let row = read!(world, conn => allocations::find_task(conn, &"t".into()).await).unwrap();
    assert_eq!(row.log_findings, Some(findings));
    world.store.close().await;
}

/// What a store of the second version is missing.
const BEFORE: &str = "DROP TABLE metric_runs; DROP TABLE agent_tokens; DROP INDEX tasks_with_old_logs; ALTER TABLE tasks DROP COLUMN logs_deleted_at; \
     ALTER TABLE trials DROP COLUMN log_retention_days; \
     DROP TABLE checkpoint_storages; DROP INDEX checkpoints_in_removal; \
     ALTER TABLE checkpoints DROP COLUMN storage_id; ALTER TABLE checkpoints DROP COLUMN owner_uid; \
     ALTER TABLE checkpoints DROP COLUMN removing; \
     DELETE FROM schema_versions WHERE version >= 3;";

pub(crate) async fn an_older_store_keeps_logs_as_its_experiments_set(world: &World) {
    let owner = stored_user(world, "ada").await;
    let mut tasks = Vec::new();
    for (name, config) in [
        ("weeks", r#"{"retention_policy":{"log_retention_days":14}}"#),
        ("ever", r#"{"retention_policy":{"log_retention_days":-1}}"#),
        (
            "null",
            r#"{"retention_policy":null,"name":"log_retention_days"}"#,
        ),
        ("plain", r#"{"name":"x"}"#),
    ] {
        let mut new = experiment(name, owner);
        new.config = config.into();
        let id = stored_experiment(world, new).await;
        let trial = stored_trial(world, id, "r").await;
        logged(world, name, Some(trial), 1, Some(100)).await;
        tasks.push(TaskId::from(name));
    }
    let found = "UPDATE trials SET log_findings = '{\"matched\":[\"oom\"]}' WHERE id = 1; ";
    world.older(&[WITHOUT_PLACES, found, BEFORE].concat()).await;
    let world = world.reopened().await;
    let mut days = Vec::new();
    for id in &tasks {
        let row = read!(world, conn => allocations::find_task(conn, id).await).unwrap();
        days.push(row.log_retention_days);
        let matched = row.log_findings.map(|findings| findings.matched);
        let expected = (id.as_str() == "weeks").then(|| vec!["oom".to_owned()]);
        assert_eq!(matched, expected, "{id}");
    }
    assert_eq!(days, [Some(14), Some(-1), None, None]);
    assert_eq!(ended(&world).await[3], log("weeks", 100, Some(14)));
    assert!(read!(world, conn => experiments::live(conn).await).len() == 4);
    world.store.close().await;
}
