//! What decisions ask for, carried out in their transaction or after its commit.

use det_config::experiment::ExperimentConfig;
use det_failpoints::failpoint;
use det_ids::{CheckpointId, ExperimentId};
use det_lifecycle::object::ObjectKind;
use det_orchestrator::{Effect, NewTrial, Record, Topic};
use det_store::events::NewEvent;
use det_store::{
    StoreError, WriteTx, allocations, checkpoints, experiments, places, searches, trials,
};
use det_taskspec::TaskKind;

use super::loading::Facts;
use super::{Orchestration, PlacedRequest};
use crate::app::configs::Configs;
use crate::app::context::Context;
use crate::app::orchestration::searched_metric;
use crate::auth::{new_token, token_hash};
use crate::error::{AppError, AppResult};
use crate::hub;

/// Tokens of a task work this long after its end, so that late lines still arrive.
const TOKEN_GRACE_MICROS: i64 = 60 * 1_000_000;

impl Orchestration {
    /// Carries out one effect of a decision within its transaction.
    #[expect(clippy::too_many_lines, reason = "one match over the effects")]
    pub(super) async fn carry_out(
        &self,
        tx: &mut WriteTx,
        effect: Effect,
        facts: &mut Facts,
        placed: &mut Vec<PlacedRequest>,
    ) -> AppResult<()> {
        match effect {
            Effect::Record(record) => append(&self.context, tx, &record).await?,
            Effect::Log {
                task_id,
                allocation_id,
                level,
                text,
            } => {
                let of = allocation_id.as_ref();
                self.context.write_line(tx, &task_id, of, (level, &text))?;
            }
            Effect::Wake(topic) => {
                if let Topic::Backlog(id) = topic {
                    self.backlog.add(tx, id);
                }
                self.context.wake(tx, hub_topic(topic));
            }
            Effect::InsertTrial(new) => insert_trial(&self.configs, tx, new, facts).await?,
            Effect::AppendSearchEvent {
                experiment_id,
                number,
                text,
            } => searches::append_event(&mut tx.conn(), experiment_id, number, &text).await?,
            Effect::SaveSearch {
                experiment_id,
                through,
                snapshot,
            } => {
                searches::save_snapshot(&mut tx.conn(), experiment_id, through, &snapshot).await?;
            }
            Effect::EndSearch(id) => {
                searches::delete(&mut tx.conn(), id).await?;
                self.searches.evict(id);
            }
            Effect::ExperimentEnded { id, completed } => {
                store_last_progress(tx, id, completed).await?;
                self.configs.evict(id);
            }
            Effect::ExperimentContinued(id) => experiments::clear_end(&mut tx.conn(), id).await?,
            Effect::RunStarted(id) => (self.run_changed)(id),
            Effect::TrialEnded(id) => {
                searched_metric::note_if_never_reported(&self.context, tx, id).await?;
                (self.run_changed)(id);
                // Stored, and those who wait for it are not woken.
                tx.after_commit(|| failpoint!("server::lifecycle::end_trial::after_commit"));
                failpoint!("server::lifecycle::end_trial::before_commit");
            }
            Effect::ContainerPlaced { id, allocation_id } => {
                // Its token is stored here, so that starting it on its place needs no change of its own.
                let token = new_token();
                let hash = token_hash(&token);
                allocations::insert_token(&mut tx.conn(), &hash, &allocation_id).await?;
                let rows = tx.live_rows();
                let row = rows.allocation(&allocation_id);
                if row.is_some_and(|row| row.kind == TaskKind::CheckpointGc) {
                    // From now on its time runs.
                    self.context.wake(tx, hub::Topic::Deadlines);
                }
                let tokens = self.memory.fresh_tokens.clone();
                tx.after_commit(move || tokens.keep(id, token));
            }
            Effect::ContainerEnded(id) => {
                let tokens = self.memory.fresh_tokens.clone();
                tx.after_commit(move || {
                    tokens.take(&id);
                });
            }
            Effect::RemovePlace(id) => places::delete(&mut tx.conn(), &id).await?,
            Effect::Placed {
                resource_pool,
                requested_at,
                placed_at,
            } => placed.push(PlacedRequest {
                resource_pool,
                requested_at,
                placed_at,
            }),
            Effect::Preempted(_) => {
                // Before the deadlines are woken, and after the cause has woken the task.
                tx.after_commit(|| failpoint!("server::lifecycle::preempt::after_commit"));
                failpoint!("server::lifecycle::preempt::before_commit");
            }
            Effect::AllocationEnded(id) => {
                let expiry = det_store::steady_now() + TOKEN_GRACE_MICROS;
                allocations::expire_tokens(&mut tx.conn(), &id, expiry).await?;
                let (all_gathers, auth) =
                    (self.memory.all_gathers.clone(), self.memory.auth.clone());
                tx.after_commit(move || {
                    all_gathers.remove(&id);
                    auth.evict_allocation(&id);
                });
            }
        }
        Ok(())
    }
}

fn hub_topic(topic: Topic) -> hub::Topic {
    match topic {
        Topic::Schedule => hub::Topic::Schedule,
        Topic::Deadlines => hub::Topic::Deadlines,
        Topic::CleanUp => hub::Topic::CleanUp,
        Topic::Backlog(_) => hub::Topic::Backlog,
        Topic::Place(id) => hub::Topic::Place(id),
        Topic::Allocation(id) => hub::Topic::Allocation(id),
        Topic::TaskLog(id) => hub::Topic::TaskLog(id),
        Topic::Trial(id) => hub::Topic::Trial(id),
    }
}

async fn append(context: &Context, tx: &mut WriteTx, record: &Record) -> Result<(), StoreError> {
    let event = NewEvent {
        detail: record.detail.clone(),
        ..NewEvent::new(&record.cause.actor, record.subject.clone(), record.kind)
            .states(record.from.clone(), record.to.clone())
            .reason(record.cause.reason.as_deref())
    };
    context.record(tx, event).await
}

async fn insert_trial(
    configs: &Configs,
    tx: &mut WriteTx,
    new: NewTrial,
    facts: &mut Facts,
) -> AppResult<()> {
    let name = (new.experiment_id, new.request_id.clone());
    let rows = tx.live_rows();
    let experiment = rows
        .experiment(new.experiment_id)
        .ok_or_else(|| AppError::not_found(ObjectKind::Experiment, new.experiment_id))?;
    let config = configs.of(experiment)?;
    let warm_start = warm_start_checkpoint(tx, &config).await?;
    let row = trials::NewTrial {
        experiment_id: new.experiment_id,
        request_id: new.request_id,
        task_id: new.task_id,
        state: new.state,
        hparams: new.hparams,
        seed: i64::from(new.seed),
        warm_start_checkpoint: warm_start,
        created_at: det_store::now(),
        unmanaged: new.unmanaged,
    };
    let id = trials::insert(&mut tx.conn(), &row).await?;
    // The event that follows finds it without asking the database for its name.
    facts.named.insert(name, id);
    Ok(())
}

/// Stores how far an experiment that has ended came. Of an unmanaged one nothing is known but what its code has reported.
async fn store_last_progress(tx: &mut WriteTx, id: ExperimentId, completed: bool) -> AppResult<()> {
    let experiment = experiments::find(&mut tx.conn(), id).await?;
    if experiment.is_none_or(|row| row.unmanaged) {
        return Ok(());
    }
    let progress = if completed {
        1.0
    } else {
        // The search counts what ended as done; users want to know how far the code came.
        trials::mean_progress(&mut tx.conn(), id).await?
    };
    Ok(experiments::set_progress(&mut tx.conn(), id, progress).await?)
}

/// The checkpoint that a new trial starts from, if its configuration names one.
async fn warm_start_checkpoint(
    tx: &mut WriteTx,
    config: &ExperimentConfig,
) -> AppResult<Option<CheckpointId>> {
    if let Some(uuid) = &config.searcher.source_checkpoint_uuid {
        let found = checkpoints::find(&mut tx.conn(), uuid).await?;
        return match found {
            Some(c)
                if c.state == checkpoints::CheckpointState::Completed && c.removing.is_none() =>
            {
                Ok(Some(uuid.clone()))
            }
            Some(_) => Err(AppError::invalid(format!(
                "searcher.source_checkpoint_uuid: checkpoint \"{uuid}\" is not complete any more"
            ))),
            None => Err(AppError::invalid(format!(
                "searcher.source_checkpoint_uuid: checkpoint \"{uuid}\" not found"
            ))),
        };
    }
    let Some(id) = config.searcher.source_trial_id else {
        return Ok(None);
    };
    let trial = trials::find(&mut tx.conn(), id).await?.ok_or_else(|| {
        AppError::invalid(format!("searcher.source_trial_id: trial {id} not found"))
    })?;
    match trial.latest_checkpoint {
        Some(uuid) => Ok(Some(uuid)),
        None => Err(AppError::invalid(format!(
            "searcher.source_trial_id: trial {id} has no complete checkpoint"
        ))),
    }
}
