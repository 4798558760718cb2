//! Rows for scenarios: complete, with plain values, changed by the scenario where it matters.

use std::collections::BTreeSet;

use det_ids::{
    AllocationId, EventId, ExperimentId, JournalId, RunId, SlotId, TaskId, TrialId, UserId,
};
use det_lifecycle::allocation::AllocationState;
use det_lifecycle::container::DesiredState;
use det_lifecycle::experiment::ExperimentState;
use det_lifecycle::task::TaskState;
use det_lifecycle::trial::TrialState;
use det_scheduler::{WaitExplanation, WaitKind};
use det_store::allocations::{AllocationRow, ContainerRow, TaskRow};
use det_store::archives::NewArchive;
use det_store::checkpoints::{CheckpointRow, CheckpointState};
use det_store::experiments::{ExperimentRow, JobKind, JobRow, NewExperiment, SearcherKind};
use det_store::journal::{self, Entry};
use det_store::metrics::{self, NewReport};
use det_store::trials::{NewTrial, TrialRow};
use det_store::users::UserRow;
use det_store::workspaces::{UNCATEGORIZED_PROJECT, UNCATEGORIZED_WORKSPACE};
use det_store::{Conn, StoreError, WriteTx, events, experiments, trials, users};

use crate::World;

pub(crate) fn user(username: &str) -> UserRow {
    UserRow {
        id: UserId(0),
        username: username.into(),
        display_name: String::new(),
        password_hash: None,
        admin: false,
        active: true,
        agent_uid: None,
        agent_user: None,
        agent_gid: None,
        agent_group: None,
        modified_at: 1,
        last_auth_at: None,
    }
}

pub(crate) async fn stored_user(world: &World, username: &str) -> UserId {
    let row = user(username);
    change!(world, conn => users::insert(conn, &row).await)
}

pub(crate) fn job(id: &str, owner_id: UserId) -> JobRow {
    JobRow {
        id: id.into(),
        kind: JobKind::Experiment,
        owner_id,
        resource_pool: "default".into(),
        priority: 42,
        weight: 1.0,
        max_slots: None,
        position: None,
        moved: false,
        fallback: None,
        demands: None,
        submitted_at: 1_000,
        workspace_id: UNCATEGORIZED_WORKSPACE,
    }
}

/// An experiment called `name`, with a job of the same name.
pub(crate) fn experiment(name: &str, owner_id: UserId) -> NewExperiment {
    NewExperiment {
        unmanaged: false,
        external_id: None,
        job: job(&format!("job-{name}"), owner_id),
        project_id: UNCATEGORIZED_PROJECT,
        parent_id: None,
        name: name.into(),
        description: String::new(),
        labels: "[]".into(),
        state: ExperimentState::Active,
        config: r#"{"name":"x"}"#.into(),
        original_config: "name: x\n".into(),
        searcher_name: SearcherKind::Single,
        searcher_metric: "loss".into(),
        smaller_is_better: true,
        model_definition: NewArchive::Packed(vec![0x1f, 0x8b, 0, 255]),
    }
}

pub(crate) async fn stored_experiment(world: &World, new: NewExperiment) -> ExperimentId {
    change!(world, conn => experiments::insert(conn, &new).await)
}

/// A user and one experiment of theirs.
pub(crate) async fn some_experiment(world: &World) -> ExperimentId {
    let owner = stored_user(world, "ada").await;
    stored_experiment(world, experiment("some", owner)).await
}

pub(crate) fn trial(experiment_id: ExperimentId, request_id: &str) -> NewTrial {
    NewTrial {
        unmanaged: None,
        experiment_id,
        request_id: request_id.into(),
        task_id: format!("{experiment_id}.{request_id}").into(),
        state: TrialState::Active,
        hparams: r#"{"lr":0.1}"#.into(),
        seed: 7,
        warm_start_checkpoint: None,
        created_at: 2_000,
    }
}

pub(crate) async fn stored_trial(
    world: &World,
    experiment_id: ExperimentId,
    request_id: &str,
) -> TrialId {
    let new = trial(experiment_id, request_id);
    change!(world, conn => trials::insert(conn, &new).await)
}

pub(crate) fn task(
    id: &str,
    experiment_id: Option<ExperimentId>,
    trial_id: Option<TrialId>,
) -> TaskRow {
    TaskRow {
        id: id.into(),
        kind: det_taskspec::TaskKind::Trial,
        job_id: "job".into(),
        owner_id: UserId(1),
        experiment_id,
        trial_id,
        state: TaskState::Suspended,
        demand: None,
        attempts: 0,
        losses: 0,
        log_lines: 0,
        created_at: 3_000,
        ended_at: None,
        logs_deleted_at: None,
        log_findings: None,
        log_retention_days: None,
    }
}

pub(crate) fn allocation(id: &str, task_id: &str, trial_id: Option<TrialId>) -> AllocationRow {
    AllocationRow {
        id: id.into(),
        task_id: task_id.into(),
        kind: det_taskspec::TaskKind::Trial,
        job_id: "job".into(),
        experiment_id: trial_id.map(|_| ExperimentId(1)),
        trial_id,
        run_id: RunId::FIRST,
        state: AllocationState::Pending,
        resource_pool: "default".into(),
        slots: 1,
        single_place: false,
        preemptible: true,
        requested_at: 4_000,
        not_before: Some(4_500),
        placed_at: None,
        started_at: None,
        ended_at: None,
        preempt_deadline: None,
        preempted_for: None,
        port_step: None,
        service_port: None,
        namespace: None,
        exit_reason: None,
        status_code: None,
        excluded_places: None,
        wait_reason: None,
        wait_since: None,
    }
}

/// A reason to wait.
pub(crate) fn waits_because(message: &str) -> WaitExplanation {
    WaitExplanation {
        kind: WaitKind::NotEnoughFreeSlots,
        message: message.to_owned(),
        details: serde_json::Map::from_iter([("free".to_owned(), 3.into())]),
    }
}

pub(crate) fn container(
    id: &str,
    allocation_id: &str,
    place_id: &str,
    member: i64,
) -> ContainerRow {
    ContainerRow {
        id: id.into(),
        allocation_id: allocation_id.into(),
        place_id: place_id.into(),
        member,
        slots: BTreeSet::from([SlotId(0)]),
        desired: DesiredState::Run,
        observed: None,
        daemon: false,
        joined: false,
        accelerators: None,
        ended_at: None,
    }
}

pub(crate) fn checkpoint(
    uuid: &str,
    experiment_id: ExperimentId,
    trial_id: TrialId,
    steps: i64,
) -> CheckpointRow {
    CheckpointRow {
        uuid: uuid.into(),
        experiment_id: Some(experiment_id),
        trial_id: Some(trial_id),
        task_id: "task".into(),
        allocation_id: None,
        state: CheckpointState::Completed,
        steps,
        metadata: "{}".into(),
        resources: r#"{"model.bin":10}"#.into(),
        bytes: 10,
        reported_at: 5_000 + steps,
        storage_id: None,
        owner_uid: None,
        removing: None,
    }
}

/// A trial with its task and one live allocation on an agent: the ids are `<experiment>.<request>` and that with `.1`.
pub(crate) async fn running_trial(
    world: &World,
    experiment_id: ExperimentId,
    request_id: &str,
) -> (TrialId, TaskId, AllocationId) {
    let trial_id = stored_trial(world, experiment_id, request_id).await;
    let task_id = TaskId(format!("{experiment_id}.{request_id}"));
    let allocation_id = task_id.allocation(1);
    let new_task = task(task_id.as_str(), Some(experiment_id), Some(trial_id));
    let new_allocation = AllocationRow {
        experiment_id: Some(experiment_id),
        ..allocation(allocation_id.as_str(), task_id.as_str(), Some(trial_id))
    };
    let new_container = container(
        &format!("container-{allocation_id}"),
        allocation_id.as_str(),
        "agent-a",
        0,
    );
    change_live!(world, tx => {
        let mut live = tx.live_rows();
        live.add_task(new_task);
        live.add_allocation(new_allocation);
        live.add_container(new_container);
        Ok(())
    });
    (trial_id, task_id, allocation_id)
}

pub(crate) async fn stored_task(world: &World, row: TaskRow) {
    change_live!(world, tx => {
        tx.live_rows().add_task(row);
        Ok(())
    });
}

/// Adds an allocation of a task, which is loaded first.
pub(crate) async fn add_allocation(tx: &mut WriteTx, row: AllocationRow) -> Result<(), StoreError> {
    tx.load_task(&row.task_id).await?;
    tx.live_rows().add_allocation(row);
    Ok(())
}

/// Adds a container of an allocation, which is loaded first.
pub(crate) async fn add_container(tx: &mut WriteTx, row: ContainerRow) -> Result<(), StoreError> {
    tx.load_allocation(&row.allocation_id).await?;
    tx.live_rows().add_container(row);
    Ok(())
}

/// Changes an experiment, which is loaded first.
pub(crate) async fn edit_experiment(
    tx: &mut WriteTx,
    id: ExperimentId,
    change: impl FnOnce(&mut ExperimentRow),
) -> Result<(), StoreError> {
    tx.load_experiment(id).await?;
    tx.live_rows().edit_experiment(id, change);
    Ok(())
}

/// Changes a trial, which is loaded first.
pub(crate) async fn edit_trial(
    tx: &mut WriteTx,
    id: TrialId,
    change: impl FnOnce(&mut TrialRow),
) -> Result<(), StoreError> {
    tx.load_trial(id).await?;
    tx.live_rows().edit_trial(id, change);
    Ok(())
}

/// Changes a task, which is loaded first.
pub(crate) async fn edit_task(
    tx: &mut WriteTx,
    id: &TaskId,
    change: impl FnOnce(&mut TaskRow),
) -> Result<(), StoreError> {
    tx.load_task(id).await?;
    tx.live_rows().edit_task(id, change);
    Ok(())
}

/// Changes an allocation, which is loaded first.
pub(crate) async fn edit_allocation(
    tx: &mut WriteTx,
    id: &AllocationId,
    change: impl FnOnce(&mut AllocationRow),
) -> Result<(), StoreError> {
    tx.load_allocation(id).await?;
    tx.live_rows().edit_allocation(id, change);
    Ok(())
}

/// Starts the next run of a trial, which counts its steps anew from `total_batches`.
pub(crate) async fn start_run(
    tx: &mut WriteTx,
    id: TrialId,
    run_id: RunId,
    total_batches: i64,
) -> Result<(), StoreError> {
    edit_trial(tx, id, |row| {
        row.run_id = run_id;
        row.total_batches = total_batches;
        row.runner_state.clear();
    })
    .await
}

/// The newest event; the default when there is none.
pub(crate) async fn newest_event(conn: &mut Conn<'_>) -> Result<EventId, StoreError> {
    let all = events::list(conn, EventId::default(), None, i64::MAX, i64::MAX).await?;
    Ok(all.last().map_or(EventId::default(), |event| event.id))
}

/// Lets a run of a trial report a step, compacted at once.
pub(crate) async fn report_step(
    conn: &mut Conn<'_>,
    trial_id: TrialId,
    run_id: RunId,
    step: i64,
) -> Result<(), StoreError> {
    let report = NewReport {
        step: Some(step),
        at: 1,
        metrics: &serde_json::Map::new(),
        batches: None,
        report_id: None,
    };
    let entry = Entry {
        trial_id,
        run_id,
        group: "training".into(),
        line: report.encode()?,
    };
    let id = journal::newest(conn).await?.next();
    journal::append(conn, id, &journal::pack([&entry])?).await?;
    let sorted = journal::SortedReports::of(&journal::read(conn, JournalId::default()).await?)?;
    let stored = metrics::summaries_of(conn, &sorted.trials()).await?;
    journal::apply(conn, sorted.prepare(stored)?).await
}
