//! The cluster-wide invariants, held against a test's master at its end: rows of either database, and what the master
//! remembers.

use std::collections::{BTreeMap, BTreeSet};

use det_ids::{EventId, ExperimentId, TaskId};
use det_invariants::{
    Allocation, Checkpoint, Container, Event, Experiment, Place, Search, Snapshot, Task, Trial,
    check,
};
use det_lifecycle::record::{EventKind, Subject};
use det_lifecycle::task::RestartPolicy;
use det_searcher::TrialState as SearchTrial;
use det_server::app::Master;
use det_server::app::searches::{config_of, replay};
use det_store::allocations::TaskRow;
use det_store::experiments::ExperimentRow;
use det_store::task_documents::{self, LaunchedFilter};
use det_store::{
    StoreError, WriteTx, allocations, checkpoints, events, experiments, places, searches, trials,
};

/// Events read at once.
const PAGE: i64 = 1000;

/// Panics with everything that does not hold.
pub(crate) async fn assert_hold(master: &Master) {
    let handler = master.clone();
    // Changes never overlap: inside one, nothing moves.
    let snapshot = master
        .context
        .store
        .write(move |tx| Box::pin(async move { load(&handler, tx).await }))
        .await
        .unwrap();
    let found = check(&snapshot);
    assert!(
        found.is_empty(),
        "{}\n{snapshot:#?}",
        found
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")
    );
}

async fn load(master: &Master, tx: &mut WriteTx) -> Result<Snapshot, StoreError> {
    let mut snapshot = Snapshot::default();
    let recorded = recorded(tx).await?;
    let ids: BTreeSet<ExperimentId> = recorded
        .iter()
        .filter(|e| e.kind == EventKind::Created)
        .filter_map(|e| match e.subject {
            Subject::Experiment(id) => Some(id),
            _ => None,
        })
        .collect();
    snapshot.events = Some(recorded);
    for id in ids {
        if let Some(row) = experiments::find(&mut tx.conn(), id).await? {
            load_experiment(master, tx, &row, &mut snapshot).await?;
        }
    }
    let launched = task_documents::launched(&mut tx.conn(), &LaunchedFilter::default()).await?;
    for launched in launched {
        if let Some(task) = allocations::find_task(&mut tx.conn(), &launched.id).await? {
            load_task(tx, task, launched.parent_id, &mut snapshot).await?;
        }
    }
    for row in places::list(&mut tx.conn()).await? {
        snapshot.places.push(Place {
            slots: row.capacity.slots().into_iter().collect(),
            connected: row.disconnected_at.is_none(),
            connection: Some(master.places.connected.has(&row.id)),
            holds: None,
            id: row.id,
        });
    }
    Ok(snapshot)
}

async fn recorded(tx: &mut WriteTx) -> Result<Vec<Event>, StoreError> {
    let (mut all, mut after) = (Vec::new(), EventId::default());
    loop {
        let page = events::list(&mut tx.conn(), after, None, PAGE, i64::MAX).await?;
        let Some(last) = page.last() else {
            return Ok(all);
        };
        after = last.id;
        all.extend(page.into_iter().map(|row| Event {
            subject: row.subject,
            kind: row.kind,
            to: row.to,
        }));
    }
}

async fn load_task(
    tx: &mut WriteTx,
    task: TaskRow,
    parent: Option<TaskId>,
    snapshot: &mut Snapshot,
) -> Result<(), StoreError> {
    let mut started = 0;
    for allocation in allocations::of_task(&mut tx.conn(), &task.id).await? {
        started += usize::from(allocation.started_at.is_some());
        let containers = allocations::containers(&mut tx.conn(), &allocation.id).await?;
        for container in containers {
            snapshot.containers.push(Container {
                slots: container.slots.iter().copied().collect(),
                ended: container.ended_at.is_some(),
                id: container.id,
                allocation_id: container.allocation_id,
                place_id: container.place_id,
            });
        }
        snapshot.allocations.push(Allocation {
            state: allocation.state,
            preemptible: allocation.preemptible,
            asked: allocation.preempt_deadline.is_some() || allocation.preempted_for.is_some(),
            port_step: allocation
                .port_step
                .and_then(|step| u16::try_from(step).ok()),
            service_port: allocation
                .service_port
                .and_then(|port| u16::try_from(port).ok()),
            placed: allocation.placed_at.is_some(),
            ended: allocation.ended_at.is_some(),
            true_reason: None,
            id: allocation.id,
            task_id: allocation.task_id,
            trial_id: allocation.trial_id,
            run_id: allocation.run_id,
            slots: allocation.slots,
            wait_reason: allocation.wait_reason.map(|reason| reason.message),
        });
    }
    let preemptible = task.demand.and_then(|demand| demand.preemptible);
    snapshot.tasks.push(Task {
        parent,
        policy: RestartPolicy::of(task.kind, preemptible),
        losses: u32::try_from(task.losses).unwrap_or(u32::MAX),
        state: task.state,
        ended: task.ended_at.is_some(),
        started_attempts: Some(started),
        id: task.id,
    });
    Ok(())
}

async fn load_experiment(
    master: &Master,
    tx: &mut WriteTx,
    row: &ExperimentRow,
    snapshot: &mut Snapshot,
) -> Result<(), StoreError> {
    let state = row.state;
    snapshot.experiments.push(Experiment {
        id: row.id,
        state,
        ended: row.ended_at.is_some(),
        trial_count: row.trial_count,
        unmanaged: row.unmanaged,
    });
    for trial in trials::of_experiment(&mut tx.conn(), row.id).await? {
        for task in allocations::tasks_of_trial(&mut tx.conn(), trial.id).await? {
            load_task(tx, task, None, snapshot).await?;
        }
        snapshot.trials.push(Trial {
            state: trial.state,
            ended: trial.ended_at.is_some(),
            id: trial.id,
            experiment_id: trial.experiment_id,
            request_id: trial.request_id,
            task_id: trial.task_id,
            run_id: trial.run_id,
            restarts: trial.restarts,
            latest_checkpoint: trial.latest_checkpoint,
            unmanaged: trial.unmanaged,
        });
    }
    for checkpoint in checkpoints::of_experiment(&mut tx.conn(), row.id).await? {
        let manifest: BTreeMap<String, i64> =
            serde_json::from_str(&checkpoint.resources).map_err(|e| StoreError::Corrupt {
                what: format!("files of checkpoint {}", checkpoint.uuid),
                message: e.to_string(),
            })?;
        snapshot.checkpoints.push(Checkpoint {
            complete: checkpoint.state == det_store::checkpoints::CheckpointState::Completed,
            manifest,
            files: None,
            uuid: checkpoint.uuid,
            trial_id: checkpoint.trial_id,
        });
    }
    if let Some(stored) = searches::find(&mut tx.conn(), row.id).await? {
        let search = replay(&config_of(row)?, row.id, &stored)?.search;
        let remembered = master.searches.remembered(row.id);
        snapshot.searches.push(Search {
            experiment_id: row.id,
            remembered: remembered.map(|s| s.to_string()),
            replayed: search.snapshot().to_string(),
            asked_for: search
                .trials()
                .map(|(name, state)| {
                    let ended = matches!(state, SearchTrial::Ended(_));
                    (name.clone(), ended)
                })
                .collect(),
        });
    } else {
        assert!(
            row.unmanaged || !state.is_live(),
            "experiment {} lives without a search",
            row.id
        );
    }
    Ok(())
}
