//! Trials, allocations, containers, tokens and agents.

use det_ids::{CheckpointId, ExperimentId, JobId, RunId, SlotId, TrialId};
use det_lifecycle::allocation::{AllocationExit, AllocationState};
use det_lifecycle::container::{DesiredState, ObservedState};
use det_lifecycle::place::Capacity;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_lifecycle::state_name::StateName;
use det_lifecycle::task::{Demand, Stop, TaskEnd, TaskState};
use det_lifecycle::trial::{Stop as TrialStop, TrialState};
use det_scheduler::{Service, Services};
use det_store::agent_tokens;
use det_store::allocations::{self, AllocationRow, TaskRow};
use det_store::events::{self, NewEvent};
use det_store::places::{self, PlaceRow};
use det_store::trials::{self, Sort};
use det_store::{StoreError, checkpoints, experiments, metrics, workspaces};
use det_taskspec::TaskKind;
use serde_json::json;

use crate::rows::{
    add_allocation, add_container, allocation, checkpoint, container, edit_allocation, edit_task,
    edit_trial, report_step, running_trial, some_experiment, start_run, stored_task, stored_trial,
    task, trial, waits_because,
};
use crate::{WITHOUT_PLACES, World};

#[expect(clippy::too_many_lines, reason = "one history, step by step")]
pub(crate) async fn trials_move_through_their_runs(world: &World) {
    let experiment_id = some_experiment(world).await;
    let mut new = trial(experiment_id, "r1");
    new.warm_start_checkpoint = Some("c-0".into());
    let id = change!(world, conn => trials::insert(conn, &new).await);
    let row = read!(world, conn => trials::find(conn, id).await).unwrap();
    assert_eq!(
        (row.run_id.0, row.restarts, row.total_batches, row.seed),
        (0, 0, 0, 7)
    );
    assert_eq!(
        (row.metadata.as_str(), row.runner_state.as_str()),
        ("{}", "")
    );
    assert_eq!(row.warm_start_checkpoint, Some("c-0".into()));

    change_live!(world, tx => {
        edit_trial(tx, id, |row| row.task_id = "task-2".into()).await?;
        start_run(tx, id, RunId(1), 0).await
    });
    change!(world, conn => {
        trials::set_runner_state(conn, id, "training").await?;
        report_step(conn, id, RunId(1), 100).await?;
        report_step(conn, id, RunId(1), 50).await?;
        trials::set_progress(conn, id, 0.5).await?;
        trials::set_metadata(conn, id, r#"{"k":1}"#).await?;
        trials::set_notice(conn, id, Some("no searcher metric")).await?;
        trials::set_validations(conn, id, (Some(0.1), Some("{}")), (Some(0.2), Some("{}"))).await
    });
    let row = read!(world, conn => trials::find(conn, id).await).unwrap();
    assert_eq!(
        (row.run_id.0, row.total_batches, row.task_id.as_str()),
        (1, 100, "task-2")
    );
    assert_eq!(
        (row.progress, row.best_metric, row.latest_metric),
        (0.5, Some(0.1), Some(0.2))
    );
    assert_eq!(row.runner_state, "training");
    assert_eq!(
        (row.metadata.as_str(), row.notice.as_deref()),
        (r#"{"k":1}"#, Some("no searcher metric"))
    );

    // The next run counts anew from its checkpoint.
    change_live!(world, tx => start_run(tx, id, RunId(2), 40).await);
    change_live!(world, tx => {
        edit_trial(tx, id, |row| {
            (row.state, row.restarts, row.ended_at) = (TrialState::Errored, 3, Some(99));
        })
        .await
    });
    let row = read!(world, conn => trials::find(conn, id).await).unwrap();
    assert_eq!((row.run_id.0, row.total_batches, row.restarts), (2, 40, 3));
    assert_eq!(
        (row.state, row.ended_at, row.runner_state.as_str()),
        (TrialState::Errored, Some(99), "")
    );

    assert_eq!(
        read!(world, conn => trials::count_live(conn, experiment_id).await),
        0
    );
    let other = stored_trial(world, experiment_id, "r2").await;
    assert_eq!(
        read!(world, conn => trials::count_live(conn, experiment_id).await),
        1
    );
    let live = read!(world, conn => trials::live_of_experiment(conn, experiment_id).await);
    assert_eq!(live.iter().map(|t| t.id).collect::<Vec<_>>(), [other]);
    let third = stored_trial(world, experiment_id, "r3").await;
    let fourth = stored_trial(world, experiment_id, "r4").await;
    let stopping = TrialState::Stopping(TrialStop::Killed);
    change_live!(world, tx => {
        edit_trial(tx, fourth, |row| row.state = stopping).await
    });
    let states = |most: i64| async move {
        let live = read!(world, conn => trials::live_states(conn, experiment_id, most).await);
        live.into_iter()
            .map(|trial| (trial.id, trial.state))
            .collect::<Vec<_>>()
    };
    let active = TrialState::Active;
    assert_eq!(
        states(2).await,
        [(other, active), (third, active), (fourth, stopping)]
    );
    assert_eq!(states(1).await, [(other, active), (fourth, stopping)]);
    let large =
        async |least: i64| read!(world, conn => experiments::live_with_trials(conn, least).await);
    assert_eq!(large(0).await, [experiment_id]);
    assert_eq!(large(5).await, []);
    let all = read!(world, conn => trials::of_experiment(conn, experiment_id).await);
    assert_eq!(
        all.iter().map(|t| t.id).collect::<Vec<_>>(),
        [id, other, third, fourth]
    );
    assert_eq!(
        read!(world, conn => trials::ids_of_experiment(conn, experiment_id).await),
        [id, other, third, fourth]
    );
    let found =
        read!(world, conn => trials::find_by_request(conn, experiment_id, &"r2".into()).await);
    assert_eq!(found.map(|t| t.id), Some(other));
    // The searcher's name for a trial is one trial, also when a decision is made twice.
    let again = trial(experiment_id, "r2");
    let outcome = world
        .write(move |tx| Box::pin(async move { trials::insert(&mut tx.conn(), &again).await }))
        .await;
    assert!(outcome.is_err(), "{outcome:?}");
}

pub(crate) async fn trials_are_listed_by_every_column(world: &World) {
    let experiment_id = some_experiment(world).await;
    let mut ids = Vec::new();
    for n in 0..3 {
        let mut new = trial(experiment_id, &format!("r{n}"));
        new.created_at = if n == 1 { 9_000 } else { 1_000 };
        ids.push(change!(world, conn => trials::insert(conn, &new).await));
    }
    let (first, second, third) = (ids[0], ids[1], ids[2]);
    for (id, n, ended_at) in [(first, 1_i32, 2_000), (second, 2, 20_000)] {
        change_live!(world, tx => {
            let metric = (Some(f64::from(n)), None);
            trials::set_validations(&mut tx.conn(), id, metric, metric).await?;
            edit_trial(tx, id, |row| {
                (row.state, row.restarts) = if n == 1 { (TrialState::Active, 0) } else { (TrialState::Completed, 2) };
                row.ended_at = Some(ended_at);
            })
            .await?;
            report_step(&mut tx.conn(), id, RunId(0), if n == 1 { 0 } else { 10 }).await
        });
    }
    for (id, name, days) in [(first, "r0", -1), (second, "r1", 30), (third, "r2", 0)] {
        let mut row = task(
            &format!("{experiment_id}.{name}"),
            Some(experiment_id),
            Some(id),
        );
        row.log_retention_days = Some(days);
        stored_task(world, row).await;
    }
    let row = checkpoint("c", experiment_id, second, 1);
    change!(world, conn => {
        checkpoints::insert(conn, &row).await?;
        trials::recount_checkpoints(conn, second).await
    });
    for sort in [
        Sort::Id,
        Sort::StartTime,
        Sort::EndTime,
        Sort::State,
        Sort::BestValidation,
        Sort::LatestValidation,
        Sort::BatchesProcessed,
        Sort::Duration,
        Sort::Restarts,
        Sort::CheckpointSize,
        Sort::LogRetentionDays,
    ] {
        let order = async |descending: bool| -> Vec<TrialId> {
            let (rows, total) = read!(world, conn => trials::list(conn, experiment_id, None, sort, descending, 0, -1).await);
            assert_eq!(total, 3);
            rows.into_iter().map(|row| row.id).collect()
        };
        let (up, down) = match sort {
            Sort::Id => (vec![first, second, third], vec![third, second, first]),
            Sort::EndTime | Sort::Duration | Sort::BestValidation | Sort::LatestValidation => {
                (vec![first, second, third], vec![second, first, third])
            }
            _ => (vec![first, third, second], vec![second, third, first]),
        };
        assert_eq!(order(false).await, up, "{sort:?} ascending");
        assert_eq!(order(true).await, down, "{sort:?} descending");
    }
    let states = [StateName::Completed];
    let (rows, total) = read!(world, conn => trials::list(conn, experiment_id, Some(&states), Sort::Id, false, 0, 10).await);
    assert_eq!((rows.len(), total), (1, 1));
    let (rows, total) =
        read!(world, conn => trials::list(conn, experiment_id, None, Sort::Id, false, 2, 10).await);
    assert_eq!((rows.len(), total), (1, 3));
}

pub(crate) async fn a_metric_that_is_not_a_number_is_no_best_metric(world: &World) {
    let experiment_id = some_experiment(world).await;
    let id = stored_trial(world, experiment_id, "r").await;
    let validation = r#"{"t":1,"m":{"loss":"NaN"}}"#;
    change!(world, conn => {
        trials::set_validations(conn, id, (Some(f64::NAN), Some(validation)), (Some(f64::INFINITY), Some(validation)))
            .await?;
        experiments::set_best(conn, experiment_id, Some(id), Some(f64::NAN)).await
    });
    let row = read!(world, conn => trials::find(conn, id).await).unwrap();
    assert_eq!(
        (row.best_metric, row.latest_metric),
        (None, Some(f64::INFINITY))
    );
    assert_eq!(row.best_validation.as_deref(), Some(validation));
    let row = read!(world, conn => experiments::find(conn, experiment_id).await).unwrap();
    assert_eq!((row.best_trial_id, row.best_metric), (Some(id), None));
}

pub(crate) async fn a_job_that_cannot_be_read_is_an_error_that_names_it(world: &World) {
    let experiment_id = some_experiment(world).await;
    for (change, column) in [
        ("fallback = 'here and there'", "fallback"),
        ("fallback = NULL, demands = 'much'", "demands"),
        ("demands = NULL, priority = 300", "priority"),
        ("priority = 42, max_slots = -1", "max_slots"),
    ] {
        world.older(&format!("UPDATE jobs SET {change};")).await;
        let world = world.reopened().await;
        let mut held = world.store.read().await.unwrap();
        let row = experiments::find(&mut held.conn(), experiment_id).await;
        let id = row.unwrap().unwrap().job_id;
        match experiments::job(&mut held.conn(), &id).await.unwrap_err() {
            StoreError::Corrupt { what, .. } => assert_eq!(what, format!("{column} of job {id}")),
            other => panic!("{other:?}"),
        }
        drop(held);
        // It is opened again in the next round.
        world.store.close().await;
    }
}

pub(crate) async fn slots_and_reasons_that_no_version_has_written_are_errors_of_their_rows(
    world: &World,
) {
    let experiment_id = some_experiment(world).await;
    let (_, _, allocation_id) = running_trial(world, experiment_id, "r").await;
    world
        .older(
            "UPDATE containers SET slots = '[\"one\"]'; \
             UPDATE allocations SET wait_reason = '{\"kind\":\"bad_weather\",\"message\":\"it rains\"}';",
        )
        .await;
    let world = world.reopened().await;
    let mut held = world.store.read().await.unwrap();
    let conn = &mut held.conn();
    match allocations::containers(conn, &allocation_id).await {
        Err(StoreError::Corrupt { what, .. }) => {
            assert_eq!(
                what,
                format!("slots of container container-{allocation_id}")
            );
        }
        other => panic!("{other:?}"),
    }
    match allocations::find(conn, &allocation_id).await {
        Err(StoreError::Corrupt { what, message }) => {
            assert_eq!(what, format!("wait_reason of allocation {allocation_id}"));
            assert!(message.contains("bad_weather"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    drop(held);
    world.store.close().await;
}

pub(crate) async fn what_no_version_has_written_is_an_error_that_names_its_row(world: &World) {
    let experiment_id = some_experiment(world).await;
    let (trial_id, _, allocation_id) = running_trial(world, experiment_id, "r").await;
    let row = checkpoint("c-1", experiment_id, trial_id, 1);
    change!(world, conn => checkpoints::insert(conn, &row).await);
    let place = place("a");
    change!(world, conn => places::save(conn, &place).await);
    world
        .older(
            "UPDATE containers SET desired = 'destroy'; UPDATE allocations SET machine = '\"asleep\"'; \
             UPDATE trials SET machine = 'no JSON'; UPDATE experiments SET machine = '{}'; \
             UPDATE checkpoints SET state = 'LOST'; UPDATE jobs SET kind = 'dance'; \
             UPDATE workspaces SET state = 'GONE'; UPDATE projects SET state = 'GONE'; \
             UPDATE agents SET draining_slots = 'all';",
        )
        .await;
    let world = world.reopened().await;
    let corrupt = |error: det_store::StoreError| match error {
        det_store::StoreError::Corrupt { what, message } => (what, message),
        other => panic!("{other:?}"),
    };
    let mut held = world.store.read().await.unwrap();
    let conn = &mut held.conn();
    let (what, message) = corrupt(
        allocations::containers(conn, &allocation_id)
            .await
            .unwrap_err(),
    );
    assert_eq!(
        what,
        format!("desired of container container-{allocation_id}")
    );
    assert_eq!(message, "\"destroy\" is none of run, stop, kill");
    let (what, message) = corrupt(allocations::find(conn, &allocation_id).await.unwrap_err());
    assert_eq!(what, format!("machine of allocation {allocation_id}"));
    assert!(message.contains("asleep"), "{message}");
    let (what, _) = corrupt(trials::find(conn, trial_id).await.unwrap_err());
    assert_eq!(what, format!("machine of trial {trial_id}"));
    let (what, _) = corrupt(experiments::find(conn, experiment_id).await.unwrap_err());
    assert_eq!(what, format!("machine of experiment {experiment_id}"));
    let (what, _) = corrupt(places::list(conn).await.unwrap_err());
    assert_eq!(what, "draining_slots of place a");
    let (what, message) = corrupt(checkpoints::find(conn, &"c-1".into()).await.unwrap_err());
    assert_eq!(what, "state of checkpoint c-1");
    assert!(
        message.starts_with("\"LOST\" is none of ACTIVE, COMPLETED, "),
        "{message}"
    );
    let (what, message) = corrupt(
        experiments::job(conn, &"job-some".into())
            .await
            .unwrap_err(),
    );
    assert_eq!(what, "kind of job job-some");
    assert_eq!(message, "\"dance\" is none of experiment, task");
    let (what, message) = corrupt(workspaces::list(conn).await.unwrap_err());
    assert_eq!(what, "state of workspace 1");
    assert_eq!(message, "\"GONE\" is none of DELETING, DELETE_FAILED");
    let (what, _) = corrupt(workspaces::projects(conn).await.unwrap_err());
    assert_eq!(what, "state of project 1");
    drop(held);
    world.store.close().await;
}

#[expect(clippy::too_many_lines, reason = "one history, step by step")]
pub(crate) async fn allocations_live_and_end(world: &World) {
    let experiment_id = some_experiment(world).await;
    let (trial_id, task_id, allocation_id) = running_trial(world, experiment_id, "r").await;
    let row = read!(world, conn => allocations::find(conn, &allocation_id).await).unwrap();
    assert_eq!(
        crate::shown(&row),
        crate::shown(&allocation(
            allocation_id.as_str(),
            task_id.as_str(),
            Some(trial_id)
        ))
    );

    let ended = AllocationRow {
        state: AllocationState::Terminated {
            exit: AllocationExit::Released,
        },
        resource_pool: "gpu".into(),
        placed_at: Some(1),
        started_at: Some(2),
        ended_at: Some(3),
        preempt_deadline: Some(4),
        preempted_for: Some("other.1".into()),
        port_step: Some(3),
        service_port: Some(2901),
        namespace: Some("research".into()),
        exit_reason: Some("exit code 1".into()),
        status_code: Some(1),
        wait_reason: Some(waits_because("others hold all slots")),
        wait_since: Some(5),
        ..row
    };
    let waiting = AllocationRow {
        ended_at: None,
        ..ended.clone()
    };
    let change = waiting.clone();
    change!(world, conn => allocations::update(conn, &change).await);
    let live = read!(world, conn => allocations::live_of_task(conn, &task_id).await);
    assert_eq!(crate::shown(&live), crate::shown(&Some(waiting)));
    assert_eq!(
        read!(world, conn => allocations::with_deadline(conn).await).len(),
        1
    );
    let states = read!(world, conn => allocations::live_states_of_experiments(conn, &[experiment_id, ExperimentId(999)]).await);
    let [state] = &states[..] else {
        panic!("{states:?}");
    };
    assert_eq!(
        (&state.id, state.experiment_id),
        (&allocation_id, experiment_id)
    );
    assert_eq!(state.state.stored_name(), "TERMINATED");
    assert_eq!(
        read!(world, conn => allocations::live_of_trials(conn, &[trial_id]).await).len(),
        1
    );
    let id = allocation_id.clone();
    change_live!(world, tx => {
        edit_allocation(tx, &id, |row| (row.wait_reason, row.wait_since) = (None, None)).await
    });
    let row = read!(world, conn => allocations::find(conn, &allocation_id).await).unwrap();
    assert_eq!((row.wait_reason, row.wait_since), (None, None));

    let change = ended.clone();
    change!(world, conn => allocations::update(conn, &change).await);
    assert!(read!(world, conn => allocations::live(conn).await).is_empty());
    assert!(read!(world, conn => allocations::live_of_task(conn, &task_id).await).is_none());
    assert!(read!(world, conn => allocations::with_deadline(conn).await).is_empty());

    // The next attempts: running ones first, then the newest.
    for (n, ended_at) in [(2_i64, Some(9_i64)), (3, None)] {
        let row = AllocationRow {
            run_id: RunId(n),
            requested_at: 4_000 + n,
            ..allocation(&format!("{task_id}.{n}"), task_id.as_str(), Some(trial_id))
        };
        change_live!(world, tx => {
            let id = row.id.clone();
            add_allocation(tx, row).await?;
            edit_allocation(tx, &id, |row| row.ended_at = ended_at).await
        });
    }
    let order: Vec<i64> = read!(world, conn => allocations::of_task(conn, &task_id).await)
        .into_iter()
        .map(|a| a.run_id.0)
        .collect();
    assert_eq!(order, [3, 2, 1]);

    let id = task_id.clone();
    change_live!(world, tx => {
        edit_task(tx, &id, |row| (row.attempts, row.losses, row.ended_at) = (1, 3, Some(50))).await
    });
    let task = read!(world, conn => allocations::find_task(conn, &task_id).await).unwrap();
    assert_eq!(
        (task.ended_at, task.attempts, task.losses, task.trial_id),
        (Some(50), 1, 3, Some(trial_id))
    );
    // The end can be taken back.
    let id = task_id.clone();
    change_live!(world, tx => edit_task(tx, &id, |row| row.ended_at = None).await);
    let tasks = read!(world, conn => allocations::tasks_of_trial(conn, trial_id).await);
    assert_eq!(tasks.iter().map(|t| t.ended_at).collect::<Vec<_>>(), [None]);
}

pub(crate) async fn containers_hold_slots_until_they_end(world: &World) {
    let experiment_id = some_experiment(world).await;
    let (_, _, allocation_id) = running_trial(world, experiment_id, "r").await;
    let second = container("c-2", allocation_id.as_str(), "agent-b", 1);
    change_live!(world, tx => add_container(tx, second).await);
    let members: Vec<i64> =
        read!(world, conn => allocations::containers(conn, &allocation_id).await)
            .into_iter()
            .map(|c| c.member)
            .collect();
    assert_eq!(members, [0, 1]);
    let asked = ["unknown".into(), allocation_id.clone()];
    let found: Vec<i64> = read!(world, conn => allocations::containers_of(conn, &asked).await)
        .into_iter()
        .map(|c| c.member)
        .collect();
    assert_eq!(found, members);

    let mut row =
        read!(world, conn => allocations::find_container(conn, &"c-2".into()).await).unwrap();
    row.desired = DesiredState::Stop;
    row.observed = Some(ObservedState::Starting);
    (row.daemon, row.joined) = (true, true);
    row.accelerators = Some("[]".into());
    let change = row.clone();
    change!(world, conn => allocations::update_container(conn, &change).await);
    let stored =
        read!(world, conn => allocations::live_containers_of_place(conn, &"agent-b".into()).await);
    assert_eq!(crate::shown(&stored), crate::shown(&vec![row.clone()]));
    assert_eq!(
        read!(world, conn => allocations::live_containers(conn).await).len(),
        2
    );

    row.ended_at = Some(10);
    change!(world, conn => allocations::update_container(conn, &row).await);
    assert!(
        read!(world, conn => allocations::live_containers_of_place(conn, &"agent-b".into()).await)
            .is_empty()
    );
    assert_eq!(
        read!(world, conn => allocations::live_containers(conn).await).len(),
        1
    );
}

pub(crate) async fn what_a_live_row_belongs_to_is_loaded_before_it_is_added(world: &World) {
    let experiment_id = some_experiment(world).await;
    let (_, task_id, _) = running_trial(world, experiment_id, "r").await;
    for stray in [true, false] {
        let id = format!("{task_id}.9");
        let outcome = world
            .write(move |tx| {
                Box::pin(async move {
                    if stray {
                        add_container(tx, container("s", "none", "a", 0)).await
                    } else {
                        add_allocation(tx, allocation(&id, "none", None)).await
                    }
                })
            })
            .await;
        assert!(matches!(outcome, Err(StoreError::Panicked)), "{outcome:?}");
    }
}

pub(crate) async fn tokens_act_for_their_allocation_until_they_expire(world: &World) {
    let experiment_id = some_experiment(world).await;
    let (trial_id, task_id, allocation_id) = running_trial(world, experiment_id, "r").await;
    let (first, second) = ([0_u8, 1, 255], [2_u8; 32]);
    let id = allocation_id.clone();
    change!(world, conn => {
        allocations::insert_token(conn, &first, &id).await?;
        allocations::insert_token(conn, &second, &id).await
    });
    let owner = read!(world, conn => allocations::find_token(conn, &first).await).unwrap();
    assert_eq!(
        (
            owner.allocation_id.as_str(),
            owner.task_id.as_str(),
            owner.kind,
            owner.trial_id,
            owner.expires_at
        ),
        (
            allocation_id.as_str(),
            task_id.as_str(),
            TaskKind::Trial,
            Some(trial_id),
            None
        )
    );
    assert!(read!(world, conn => allocations::find_token(conn, &[9]).await).is_none());
    // The first end counts: a repeated one moves nothing.
    for at in [100, 200] {
        let id = allocation_id.clone();
        change!(world, conn => allocations::expire_tokens(conn, &id, at).await);
    }
    let owner = read!(world, conn => allocations::find_token(conn, &second).await).unwrap();
    assert_eq!(owner.expires_at, Some(100));
    assert_eq!(
        change!(world, conn => allocations::delete_expired_tokens(conn, 99).await),
        0
    );
    assert_eq!(
        change!(world, conn => allocations::delete_expired_tokens(conn, 100).await),
        2
    );
    assert!(read!(world, conn => allocations::find_token(conn, &first).await).is_none());
}

fn place(id: &str) -> PlaceRow {
    PlaceRow {
        id: id.into(),
        resource_pool: "default".into(),
        instance_id: "i-1".into(),
        services: Services::default(),
        capacity: Capacity::Devices(Vec::new()),
        addresses: Vec::new(),
        version: "0.1.0".into(),
        runtime: "process".into(),
        registered_at: 5,
        disconnected_at: None,
    }
}

pub(crate) async fn the_places_that_were_given_up_are_known(world: &World) {
    let gone = |id: &str, kind| NewEvent::new(ActorName::Master, Subject::Place(id.into()), kind);
    let of_places = [
        gone("a", EventKind::Removed).detail(json!({"slots": 4})),
        gone("a", EventKind::Connected),
        gone("b", EventKind::Removed),
    ];
    for event in of_places {
        world
            .write(move |tx| Box::pin(async move { events::append(tx, event).await }))
            .await
            .unwrap();
    }
    let lost = read!(world, conn => events::lost_places(conn, 10).await);
    let lost_ids: Vec<String> = lost.iter().map(|e| e.subject.to_string()).collect();
    assert_eq!(lost_ids, ["b", "a"]);
    assert_eq!(lost[1].detail.as_deref(), Some(r#"{"slots":4}"#));
    assert_eq!(
        read!(world, conn => events::lost_places(conn, 1).await).len(),
        1
    );
}

pub(crate) async fn places_are_replaced_and_removed(world: &World) {
    for id in ["b", "a"] {
        let row = place(id);
        change!(world, conn => places::save(conn, &row).await);
    }
    let mut services = Services {
        place: Service::Draining,
        ..Services::default()
    };
    services.set(Some(SlotId(0)), Service::Disabled);
    services.set(Some(SlotId(3)), Service::Draining);
    services.note_faults(&[(SlotId(11), "it is \"hot\"".to_owned())].into());
    services.fault = Some("its disk is \"full\"".to_owned());
    let changed = PlaceRow {
        services,
        capacity: Capacity::Count {
            slots: 2,
            kind: det_taskspec::DeviceKind::Cuda,
            others: 1,
        },
        addresses: vec!["10.0.0.1".into()],
        resource_pool: "gpu".into(),
        instance_id: "i-2".into(),
        ..place("a")
    };
    // It was registered when it first came.
    let again = PlaceRow {
        registered_at: 99,
        ..changed.clone()
    };
    change!(world, conn => places::save(conn, &again).await);
    let stored = read!(world, conn => places::find(conn, &"a".into()).await);
    assert_eq!(crate::shown(&stored), crate::shown(&Some(changed)));

    let away = PlaceRow {
        disconnected_at: Some(7),
        ..place("b")
    };
    change!(world, conn => places::save(conn, &away).await);
    let listed: Vec<_> = read!(world, conn => places::list(conn).await)
        .into_iter()
        .map(|place| (place.id, place.disconnected_at))
        .collect();
    assert_eq!(listed, [("a".into(), None), ("b".into(), Some(7))]);
    change!(world, conn => places::delete(conn, &"a".into()).await);
    assert!(read!(world, conn => places::find(conn, &"a".into()).await).is_none());
}

pub(crate) async fn long_lists_of_ids_are_answered(world: &World) {
    let experiment_id = some_experiment(world).await;
    let (trial_id, task_id, _) = running_trial(world, experiment_id, "r").await;
    let extra = task("another", Some(experiment_id), Some(trial_id));
    stored_task(world, extra).await;
    // More ids than either database takes parameters in one statement.
    let ids: Vec<_> = (0..70_000).map(|n| TrialId(trial_id.0 + n)).collect();
    let tasks = read!(world, conn => allocations::tasks_of_trials(conn, &ids).await);
    assert_eq!(
        tasks.iter().map(|t| t.id.as_str()).collect::<Vec<_>>(),
        [task_id.as_str(), "another"]
    );
    assert_eq!(
        read!(world, conn => allocations::live_of_trials(conn, &ids).await).len(),
        1
    );
    assert!(read!(world, conn => metrics::summaries_of(conn, &ids).await).is_empty());
    let experiments: Vec<_> = (0..70_000)
        .map(|n| ExperimentId(experiment_id.0 + n))
        .collect();
    let states =
        read!(world, conn => allocations::live_states_of_experiments(conn, &experiments).await);
    let states: Vec<_> = states
        .into_iter()
        .map(|s| (s.experiment_id, s.state))
        .collect();
    assert_eq!(states, [(experiment_id, AllocationState::Pending)]);
    let uuids: Vec<CheckpointId> = (0..70_000).map(|n| n.to_string().into()).collect();
    assert!(read!(world, conn => checkpoints::find_all(conn, &uuids).await).is_empty());
}

pub(crate) async fn an_agent_has_one_token(world: &World) {
    let find = |id: &'static str| async move {
        read!(world, conn => agent_tokens::find(conn, &id.into()).await)
            .map(|row| (row.token_hash, row.joined_at, row.revoked_at))
    };
    assert_eq!(find("a").await, None);
    assert!(!change!(world, conn => agent_tokens::revoke(conn, &"a".into(), 1).await));
    change!(world, conn => agent_tokens::accept(conn, &"a".into(), &[1], 5).await);
    change!(world, conn => agent_tokens::accept(conn, &"b".into(), &[2], 6).await);
    assert_eq!(find("a").await, Some((vec![1], 5, None)));
    let by_hash = read!(world, conn => agent_tokens::find_by_hash(conn, &[2]).await);
    assert_eq!(by_hash.unwrap().agent_id, "b".into());

    assert!(change!(world, conn => agent_tokens::revoke(conn, &"a".into(), 7).await));
    assert!(
        !change!(world, conn => agent_tokens::revoke(conn, &"a".into(), 8).await),
        "it is revoked since it first was"
    );
    assert_eq!(find("a").await, Some((vec![1], 5, Some(7))));
    // A token that comes under another id leaves the first one; the id has only the new one.
    change!(world, conn => agent_tokens::accept(conn, &"a".into(), &[2], 9).await);
    assert_eq!(find("a").await, Some((vec![2], 9, None)));
    assert_eq!(find("b").await, None);
}

pub(crate) async fn an_older_store_knows_where_its_containers_run(world: &World) {
    let experiment_id = some_experiment(world).await;
    let (.., id) = running_trial(world, experiment_id, "r").await;
    let mut row = read!(world, conn => allocations::find(conn, &id).await).unwrap();
    row.excluded_places = Some(["agent-b".into()].into());
    let changed = row.clone();
    change!(world, conn => allocations::update(conn, &changed).await);
    // It had no such time.
    row.not_before = None;
    world
        .older(
            &[
                WITHOUT_PLACES,
                "DELETE FROM schema_versions WHERE version >= 7;",
            ]
            .concat(),
        )
        .await;
    let world = world.reopened().await;
    let found = read!(world, conn => allocations::find(conn, &id).await).unwrap();
    assert_eq!(found, row);
    let live =
        read!(world, conn => allocations::live_containers_of_place(conn, &"agent-a".into()).await);
    let of: Vec<&str> = live.iter().map(|c| c.allocation_id.as_str()).collect();
    assert_eq!(of, [id.as_str()]);
    world.store.close().await;
}

pub(crate) async fn an_older_store_knows_the_states_of_its_tasks(world: &World) {
    let experiment_id = some_experiment(world).await;
    let (_, waiting, _) = running_trial(world, experiment_id, "r").await;
    for (id, status_code) in [("done", 0), ("failed", 3)] {
        let ended = TaskRow {
            attempts: 1,
            losses: 1,
            ended_at: Some(9),
            ..task(id, None, None)
        };
        let last = AllocationRow {
            status_code: Some(status_code),
            ended_at: Some(9),
            ..allocation(&format!("{id}.1"), id, None)
        };
        stored_task(world, ended).await;
        change_live!(world, tx => add_allocation(tx, last).await);
    }
    let older = "DELETE FROM schema_versions WHERE version >= 7;";
    world.older(&[WITHOUT_PLACES, older].concat()).await;
    let world = world.reopened().await;
    for (id, state) in [
        (waiting.as_str(), TaskState::Queued),
        ("done", TaskState::Ended(TaskEnd::Completed)),
        ("failed", TaskState::Ended(TaskEnd::Failed)),
    ] {
        let found = read!(world, conn => allocations::find_task(conn, &id.into()).await).unwrap();
        assert_eq!((found.state, found.demand), (state, None), "{id}");
    }
    world.store.close().await;
}

pub(crate) async fn the_task_of_a_job_is_no_experiments(world: &World) {
    let of_experiment = TaskRow {
        job_id: "job-e".into(),
        ..task("e", Some(ExperimentId(1)), Some(TrialId(1)))
    };
    let alone = TaskRow {
        job_id: "job-t".into(),
        state: TaskState::Stopping(Stop::Kill),
        demand: Some(Demand {
            slots: 2,
            single_place: true,
            preemption_timeout: 60,
            preemptible: None,
        }),
        ..task("t", None, None)
    };
    stored_task(world, of_experiment).await;
    stored_task(world, alone.clone()).await;
    let found = |job| async move {
        read!(world, conn => allocations::task_of_job(conn, &JobId::from(job)).await)
    };
    assert_eq!(found("job-t").await, Some(alone));
    assert_eq!(found("job-e").await, None);
    assert_eq!(found("nothing").await, None);
}
