//! Carries out what the life cycle of an allocation decides: a trial's run is requested, asked to make room, and ends.

use std::collections::BTreeSet;

use det_failpoints::failpoint;
use det_lifecycle::allocation::{
    AllocationEffect, AllocationEvent, AllocationExit, AllocationState,
};
use det_lifecycle::container::Desired;
use det_lifecycle::trial::TrialEvent;
use det_store::allocations::{AllocationRow, ContainerRow};
use det_store::events::NewEvent;
use det_store::experiments::ExperimentRow;
use det_store::trials::TrialRow;
use det_store::{WriteTx, allocations, trials};
use futures::future::BoxFuture;

use crate::app::Master;
use crate::app::containers::members;
use crate::app::lifecycle::Cause;
use crate::app::log_policies::{LogFindings, excluded_text};
use crate::error::{AppError, AppResult};
use crate::hub::Topic;

/// Why an allocation ended whose code came to its end; scripts look for it in logs.
const EXITED_WELL: &str = "resources exited successfully with a zero exit code";

/// Tokens of a task work this long after its end, so that late lines still arrive.
const TOKEN_GRACE_MICROS: i64 = 60 * 1_000_000;

/// The line that opens each run of a trial; scripts look for its first words.
fn runner_text(row: &AllocationRow, containers: &[ContainerRow]) -> String {
    let agents: BTreeSet<&str> = containers.iter().map(|c| c.agent_id.as_str()).collect();
    let agents: Vec<&str> = agents.into_iter().collect();
    format!(
        "New trial runner: allocation {} (run {}) runs on {} {}",
        row.id,
        row.run_id,
        if agents.len() == 1 { "agent" } else { "agents" },
        agents.join(", ")
    )
}

impl Master {
    /// Requests the trial's next run.
    pub(super) async fn request_run(
        &self,
        tx: &mut WriteTx,
        trial: &TrialRow,
        experiment: &ExperimentRow,
    ) -> AppResult<()> {
        let config = self.config_for(experiment)?;
        let attempt = allocations::next_attempt(&mut tx.conn(), &trial.task_id).await?;
        let run_id = trial.run_id + 1;
        self.metric_intake.forget(trial.id);
        trials::start_run(
            &mut tx.conn(),
            trial.id,
            &trial.task_id,
            run_id,
            trial.latest_checkpoint_steps.unwrap_or(0),
        )
        .await?;
        let row = AllocationRow {
            id: format!("{}.{attempt}", trial.task_id),
            task_id: trial.task_id.clone(),
            job_id: experiment.job_id.clone(),
            trial_id: Some(trial.id),
            run_id,
            state: AllocationState::Pending,
            resource_pool: experiment.resource_pool.clone(),
            slots: i64::from(config.resources.slots_per_trial),
            single_agent: config.resources.is_single_node.unwrap_or(false),
            preemptible: true,
            requested_at: det_store::now(),
            placed_at: None,
            started_at: None,
            ended_at: None,
            preempt_deadline: None,
            preempted_for: None,
            exit_reason: None,
            status_code: None,
            excluded_agents: excluded_text(&LogFindings::of(trial)?)?,
            wait_reason: None,
            wait_since: None,
        };
        allocations::insert(&mut tx.conn(), &row).await?;
        let text = format!(
            "Scheduling trial {} (run {run_id}) of experiment {} in resource pool {}",
            trial.id, experiment.id, row.resource_pool
        );
        self.log_line(tx, &trial.task_id, Some(&row.id), &text)?;
        self.record(
            tx,
            NewEvent {
                actor: "master",
                subject_kind: "allocation",
                subject_id: row.id.clone(),
                kind: "created",
                to: Some(row.state.name()),
                ..Default::default()
            },
        )
        .await?;
        let (hub, trial_id) = (self.hub.clone(), trial.id);
        tx.after_commit(move || hub.notify(&Topic::Trial(trial_id)));
        self.wake_scheduler(tx);
        Ok(())
    }

    /// Something happens to an allocation.
    pub(crate) fn allocation_event<'a>(
        &'a self,
        tx: &'a mut WriteTx,
        id: &'a str,
        event: AllocationEvent,
        cause: &'a Cause,
    ) -> BoxFuture<'a, AppResult<()>> {
        Box::pin(async move {
            let mut row = allocations::find(&mut tx.conn(), id)
                .await?
                .ok_or_else(|| AppError::not_found("allocation", id))?;
            let containers = allocations::containers(&mut tx.conn(), id).await?;
            let before = row.state.clone();
            let mut started = false;
            let step = before.clone().on(event, &members(&containers));
            if step.state != before {
                row.state.clone_from(&step.state);
                if before == AllocationState::Pending {
                    row.wait_reason = None;
                    row.wait_since = None;
                }
                if row.started_at.is_none() && row.state.stored_name() == "RUNNING" {
                    row.started_at = Some(det_store::now());
                    started = true;
                }
                allocations::update(&mut tx.conn(), &row).await?;
                if started && row.trial_id.is_some() {
                    self.log_line(
                        tx,
                        &row.task_id,
                        Some(&row.id),
                        &runner_text(&row, &containers),
                    )?;
                }
                // A placement and an end have events of their own, which say more.
                if before != AllocationState::Pending && !step.state.is_terminal() {
                    let event = NewEvent {
                        actor: &cause.actor,
                        subject_kind: "allocation",
                        subject_id: row.id.clone(),
                        kind: "state",
                        from: Some(before.name()),
                        to: Some(step.state.name()),
                        reason: cause.reason.as_deref(),
                        ..Default::default()
                    };
                    self.record(tx, event).await?;
                }
                let (hub, topic) = (self.hub.clone(), Topic::Allocation(row.id.clone()));
                tx.after_commit(move || hub.notify(&topic));
                self.wake_scheduler(tx);
            }
            for effect in step.effects {
                match effect {
                    AllocationEffect::RaisePreemption => {
                        self.raise_preemption(tx, &mut row, cause).await?;
                    }
                    AllocationEffect::KillMembers => {
                        for mut container in
                            containers.iter().filter(|c| c.ended_at.is_none()).cloned()
                        {
                            container.desired = Desired::Kill;
                            allocations::update_container(&mut tx.conn(), &container).await?;
                            self.wake_agent(tx, &container.agent_id);
                        }
                    }
                    AllocationEffect::End => {
                        self.end_allocation(tx, &mut row, &before, cause).await?;
                    }
                }
            }
            Ok(())
        })
    }

    async fn raise_preemption(
        &self,
        tx: &mut WriteTx,
        row: &mut AllocationRow,
        cause: &Cause,
    ) -> AppResult<()> {
        let timeout = match row.trial_id {
            Some(trial_id) => self.preemption_timeout(tx, trial_id).await?,
            None => 3600,
        };
        row.preempt_deadline = Some(det_store::steady_now() + i64::from(timeout) * 1_000_000);
        allocations::update(&mut tx.conn(), row).await?;
        let why = cause.reason.as_deref().unwrap_or("a person asked for it");
        let text = format!("Asked to save and exit within {timeout} s: {why}");
        self.log_line(tx, &row.task_id, Some(&row.id), &text)?;
        // Before the deadlines are woken, and after whoever asked for it has woken the task.
        tx.after_commit(|| failpoint!("server::lifecycle::preempt::after_commit"));
        self.wake_deadlines(tx);
        failpoint!("server::lifecycle::preempt::before_commit");
        Ok(())
    }

    async fn end_allocation(
        &self,
        tx: &mut WriteTx,
        row: &mut AllocationRow,
        before: &AllocationState,
        cause: &Cause,
    ) -> AppResult<()> {
        let (gatherings, id) = (self.gatherings.clone(), row.id.clone());
        tx.after_commit(move || gatherings.remove(&id));
        let AllocationState::Terminated { exit } = row.state.clone() else {
            return Ok(());
        };
        let now = det_store::now();
        row.ended_at = Some(now);
        row.preempt_deadline = None;
        let text = match &exit {
            AllocationExit::Completed => EXITED_WELL.to_owned(),
            AllocationExit::Released => match &cause.reason {
                Some(reason) => format!("its slots were given back: {reason}"),
                None => "its slots were given back".to_owned(),
            },
            // Texts of agents: what the database cannot hold must not keep an end from being stored.
            AllocationExit::Failed { reason } => reason.replace('\0', "\\0"),
            AllocationExit::Infrastructure { reason } => {
                format!("{} (not charged to the trial)", reason.replace('\0', "\\0"))
            }
        };
        row.exit_reason = Some(text.clone());
        allocations::update(&mut tx.conn(), row).await?;
        let expiry = det_store::steady_now() + TOKEN_GRACE_MICROS;
        allocations::expire_tokens(&mut tx.conn(), &row.id, expiry).await?;
        let (auth, allocation_id) = (self.auth.clone(), row.id.clone());
        tx.after_commit(move || auth.forget_allocation(&allocation_id));
        self.log_line(
            tx,
            &row.task_id,
            Some(&row.id),
            &format!("Allocation {} ended: {text}", row.id),
        )?;
        self.record(
            tx,
            NewEvent {
                actor: &cause.actor,
                subject_kind: "allocation",
                subject_id: row.id.clone(),
                kind: "ended",
                from: Some(before.name()),
                to: Some(row.state.name()),
                reason: Some(&text),
                ..Default::default()
            },
        )
        .await?;
        self.wake_scheduler(tx);
        if let Some(trial_id) = row.trial_id {
            let cause = Cause {
                actor: cause.actor.clone(),
                reason: Some(text),
            };
            self.trial_event(tx, trial_id, TrialEvent::AllocationEnded(exit), &cause)
                .await?;
        }
        Ok(())
    }
}
