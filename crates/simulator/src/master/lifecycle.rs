//! Mirrors `app/lifecycle.rs`, `app/searches.rs` and `app/experiments.rs`.

use std::rc::Rc;

use det_ids::RequestId;
use det_lifecycle::allocation::{
    AllocationEffect, AllocationEvent, AllocationState, Member, MemberProgress,
};
use det_lifecycle::container::Desired;
use det_lifecycle::experiment::{
    ExperimentEffect, ExperimentEvent, ExperimentState, SearchOutcome,
};
use det_lifecycle::trial::{History, TrialEffect, TrialEvent, TrialState};
use det_searcher::{Action, Event as SearchEvent, ExitReason, Outcome, Search};

use super::{EARLY_EXIT, Loaded, Refused, SNAPSHOT_EVERY, Topic, Tx};
use crate::history::{Submission, Wish};
use crate::mutant::Mutant;
use crate::rows::{Allocation, Experiment, SECOND, StoredSearch, Trial};

fn absent(what: &str, id: impl std::fmt::Display) -> Refused {
    format!("{what} {id} not found")
}

fn search_of(submission: &Submission, seed: u32) -> Result<Search, Refused> {
    Search::new(&submission.searcher(), &Submission::space(), seed).map_err(|e| e.to_string())
}

fn seed_of(experiment_id: i64) -> u32 {
    u32::try_from(experiment_id).unwrap_or(0)
}

impl Tx<'_> {
    pub(crate) fn create_experiment(
        &mut self,
        submission: &Rc<Submission>,
    ) -> Result<i64, Refused> {
        if let Err(never) = super::can_ever_fit(self.rows, submission) {
            return Err(never.to_string());
        }
        let id = self.rows.last_experiment + 1;
        let mut search = search_of(submission, seed_of(id))?;
        self.rows.last_experiment = id;
        self.rows.experiments.insert(
            id,
            Experiment {
                id,
                state: ExperimentState::Active,
                submission: submission.clone(),
                priority: submission.priority,
                weight: 2,
                max_slots: None,
                submitted_at: self.now,
                ended_at: None,
                trial_count: 0,
            },
        );
        self.rows.experiment_mut(id);
        self.record("experiment", id, "created", Some("ACTIVE"));
        let actions = search.start();
        self.store_new_search(id, search);
        self.carry_out(id, ExperimentState::Active, actions)?;
        self.wake(Topic::Schedule);
        Ok(id)
    }

    /// A person's wish.
    pub(crate) fn steer(&mut self, id: i64, wish: Wish) -> Result<(), Refused> {
        let event = match wish {
            Wish::Pause => ExperimentEvent::Pause,
            Wish::Activate => ExperimentEvent::Activate,
            Wish::Cancel => ExperimentEvent::Cancel,
            Wish::Kill => ExperimentEvent::Kill,
            Wish::Delete => ExperimentEvent::Delete,
            Wish::Continue => return self.continue_in(id),
        };
        if self.is(Mutant::DirtyRefusal)
            && let Some(experiment) = self.rows.experiment_mut(id)
        {
            experiment.priority = experiment.priority.wrapping_add(1);
        }
        self.experiment_event(id, event)
    }

    fn continue_in(&mut self, id: i64) -> Result<(), Refused> {
        use det_config::hyperparameters::SearchMethod as Method;
        let submission = self
            .rows
            .experiments
            .get(&id)
            .ok_or_else(|| absent("experiment", id))?
            .submission
            .clone();
        let single = matches!(submission.search, Method::Single);
        if !matches!(
            submission.search,
            Method::Single | Method::Random { .. } | Method::Grid { .. }
        ) {
            return Err("only single, random and grid searches can be continued".to_owned());
        }
        self.experiment_event(id, ExperimentEvent::Continue)?;
        if let Some(experiment) = self.rows.experiment_mut(id) {
            experiment.ended_at = None;
        }
        let mut search = search_of(&submission, seed_of(id))?;
        let mut waiting = search.start();
        let (mut new, mut resumed) = (Vec::new(), 0);
        while let Some(action) = waiting.pop() {
            let Action::Create { request_id, .. } = &action else {
                continue;
            };
            let known = self
                .rows
                .live
                .requests
                .get(&(id, request_id.as_str().to_owned()));
            let Some(trial) = known.and_then(|t| self.rows.trials.get(t)).cloned() else {
                new.push(action);
                continue;
            };
            if trial.state == TrialState::Completed && !single {
                waiting.extend(search.on(SearchEvent::Ended {
                    request_id: request_id.clone(),
                }));
            } else {
                self.continue_trial(&trial)?;
                resumed += 1;
            }
        }
        if resumed == 0 && new.is_empty() {
            return Err("all its trials have completed".to_owned());
        }
        self.store_new_search(id, search);
        self.carry_out(id, ExperimentState::Active, new)
    }

    fn continue_trial(&mut self, trial: &Trial) -> Result<(), Refused> {
        let earlier = self
            .rows
            .tasks
            .values()
            .filter(|(owner, _)| *owner == trial.id)
            .count();
        let task_id = format!("{}.{}-{earlier}", trial.experiment_id, trial.request_id);
        self.rows.tasks.insert(task_id.clone(), (trial.id, 0));
        if let Some(row) = self.rows.trial_mut(trial.id) {
            row.task_id = task_id;
        }
        self.trial_event(trial.id, TrialEvent::Continue)
    }

    pub(crate) fn experiment_event(
        &mut self,
        id: i64,
        event: ExperimentEvent,
    ) -> Result<(), Refused> {
        let now = self.now;
        let row = self
            .rows
            .experiments
            .get(&id)
            .ok_or_else(|| absent("experiment", id))?;
        let before = row.state;
        let step = before.on(event).map_err(|refused| refused.message)?;
        if step.state != before {
            let ends = step.effects.contains(&ExperimentEffect::End);
            if let Some(row) = self.rows.experiment_mut(id) {
                row.state = step.state;
                row.ended_at = if ends { Some(now) } else { row.ended_at };
            }
            self.record("experiment", id, "state", Some(step.state.stored_name()));
            self.wake(Topic::Schedule);
        }
        for effect in step.effects {
            self.experiment_effect(id, effect)?;
        }
        Ok(())
    }

    fn experiment_effect(&mut self, id: i64, effect: ExperimentEffect) -> Result<(), Refused> {
        let each = match effect {
            ExperimentEffect::PauseTrials => TrialEvent::Pause,
            ExperimentEffect::ActivateTrials => TrialEvent::Activate,
            ExperimentEffect::CancelTrials => TrialEvent::Cancel,
            ExperimentEffect::KillTrials => TrialEvent::Kill,
            ExperimentEffect::CloseSearch => return self.advance_search(id, SearchEvent::Close),
            ExperimentEffect::End => {
                self.rows.version += 1;
                self.rows.searches.remove(&id);
                self.memory.searches.remove(&id);
                self.searches.insert(id);
                self.wake(Topic::CleanUp);
                return Ok(());
            }
            ExperimentEffect::Remove => {
                self.wake(Topic::CleanUp);
                return Ok(());
            }
        };
        for trial in self.rows.live_trials_of(id) {
            self.trial_event(trial, each.clone())?;
        }
        if self.rows.live_trials_of(id).is_empty()
            && matches!(
                effect,
                ExperimentEffect::CancelTrials | ExperimentEffect::KillTrials
            )
        {
            // It may have ended on the way.
            let _ = self.experiment_event(id, ExperimentEvent::TrialsEnded);
        }
        Ok(())
    }

    pub(crate) fn trial_event(&mut self, id: i64, event: TrialEvent) -> Result<(), Refused> {
        let row = self
            .rows
            .trials
            .get(&id)
            .ok_or_else(|| absent("trial", id))?;
        let experiment = self
            .rows
            .experiments
            .get(&row.experiment_id)
            .ok_or_else(|| absent("experiment", row.experiment_id))?;
        let before = row.state;
        let history = History {
            restarts: row.restarts,
            max_restarts: experiment.submission.max_restarts,
            experiment_stops: experiment.state.is_stopping(),
            restarts_forbidden: false,
        };
        let step = before.on(event, history).map_err(|r| r.message)?;
        let charged = step.effects.contains(&TrialEffect::ChargeRestart);
        if step.state != before || charged {
            let now = self.now;
            if let Some(row) = self.rows.trial_mut(id) {
                row.state = step.state;
                row.restarts += u32::from(charged);
                if step.effects.contains(&TrialEffect::ResetRestarts) {
                    row.restarts = 0;
                }
                row.ended_at = step.state.is_terminal().then_some(now);
            }
            if step.state.is_terminal() {
                self.rows.live.trials.remove(&id);
            } else {
                self.rows.live.trials.insert(id);
            }
            self.record("trial", id, "state", Some(step.state.stored_name()));
        }
        for effect in step.effects {
            self.trial_effect(id, effect)?;
        }
        Ok(())
    }

    fn trial_effect(&mut self, id: i64, effect: TrialEffect) -> Result<(), Refused> {
        let row = self
            .rows
            .trials
            .get(&id)
            .ok_or_else(|| absent("trial", id))?;
        let (experiment_id, task_id) = (row.experiment_id, row.task_id.clone());
        let request_id = RequestId(row.request_id.clone());
        let early = |reason| SearchEvent::EarlyExit {
            request_id: request_id.clone(),
            reason,
        };
        match effect {
            TrialEffect::Request => self.request_run(id),
            TrialEffect::Preempt => self.live_allocation_event(&task_id, AllocationEvent::Preempt),
            TrialEffect::Kill => self.live_allocation_event(&task_id, AllocationEvent::Kill),
            TrialEffect::KillSoon => {
                let due = self.now + EARLY_EXIT;
                let live = self.rows.live_of_task(&task_id).map(|a| a.id.clone());
                if let Some(live) = live.and_then(|id| self.rows.allocation_mut(&id)) {
                    live.preempt_deadline = Some(due);
                    self.wake(Topic::Deadlines);
                    // Its room will be free soon: what waits for it may have another reason now.
                    if !self.is(Mutant::UntoldEnd) {
                        self.wake(Topic::Schedule);
                    }
                }
                Ok(())
            }
            TrialEffect::ChargeRestart | TrialEffect::ResetRestarts => Ok(()),
            TrialEffect::TellErrored => {
                self.advance_search(experiment_id, early(ExitReason::Errored))
            }
            TrialEffect::TellCanceled => {
                self.advance_search(experiment_id, early(ExitReason::Canceled))
            }
            TrialEffect::TellInvalid => {
                self.advance_search(experiment_id, early(ExitReason::InvalidHyperparameters))
            }
            TrialEffect::End => {
                self.advance_search(experiment_id, SearchEvent::Ended { request_id })?;
                if self.rows.live_trials_of(experiment_id).is_empty() {
                    // It may have ended on the way.
                    let _ = self.experiment_event(experiment_id, ExperimentEvent::TrialsEnded);
                }
                Ok(())
            }
        }
    }

    fn live_allocation_event(
        &mut self,
        task_id: &str,
        event: AllocationEvent,
    ) -> Result<(), Refused> {
        match self.rows.live_of_task(task_id).map(|a| a.id.clone()) {
            Some(live) => self.allocation_event(&live, event),
            None => Ok(()),
        }
    }

    fn store_new_search(&mut self, id: i64, search: Search) {
        self.rows.version += 1;
        self.rows.searches.insert(
            id,
            StoredSearch {
                through: 0,
                snapshot: search.snapshot().to_string(),
                events: Vec::new(),
            },
        );
        self.keep(
            id,
            Loaded {
                search,
                through: 0,
                snapshot: 0,
            },
        );
    }

    fn keep(&mut self, id: i64, loaded: Loaded) {
        self.searches.insert(id);
        self.memory.searches.insert(id, loaded);
    }

    pub(crate) fn load_search(&mut self, id: i64) -> Result<Loaded, Refused> {
        if let Some(loaded) = self.memory.searches.remove(&id) {
            return Ok(loaded);
        }
        let experiment = self
            .rows
            .experiments
            .get(&id)
            .ok_or_else(|| absent("experiment", id))?;
        let stored = self
            .rows
            .searches
            .get(&id)
            .ok_or_else(|| absent("search of experiment", id))?;
        let (search, through) = replay(&experiment.submission, stored)?;
        Ok(Loaded {
            search,
            through,
            snapshot: stored.through,
        })
    }

    fn tell_search(&mut self, id: i64, event: SearchEvent) -> Result<Vec<Action>, Refused> {
        let mut loaded = self.load_search(id)?;
        let text = serde_json::to_string(&event).map_err(|e| e.to_string())?;
        loaded.through += 1;
        self.rows.version += 1;
        let forgets =
            self.is(Mutant::ForgetsSearchEvents) && matches!(event, SearchEvent::Validation { .. });
        let stored = self
            .rows
            .searches
            .get_mut(&id)
            .ok_or_else(|| absent("search of experiment", id))?;
        if !forgets {
            stored.events.push((loaded.through, text));
        }
        let actions = loaded.search.on(event);
        if loaded.through - loaded.snapshot >= SNAPSHOT_EVERY {
            stored.snapshot = loaded.search.snapshot().to_string();
            stored.through = loaded.through;
            stored.events.clear();
            loaded.snapshot = loaded.through;
        }
        self.keep(id, loaded);
        Ok(actions)
    }

    pub(crate) fn advance_search(&mut self, id: i64, event: SearchEvent) -> Result<(), Refused> {
        let Some(experiment) = self.rows.experiments.get(&id) else {
            return Ok(());
        };
        let state = experiment.state;
        if !state.is_live() {
            return Ok(());
        }
        let actions = self.tell_search(id, event)?;
        self.carry_out(id, state, actions)
    }

    /// `state` = the experiment's when the search was asked.
    fn carry_out(
        &mut self,
        id: i64,
        state: ExperimentState,
        actions: Vec<Action>,
    ) -> Result<(), Refused> {
        for action in actions {
            match action {
                Action::Create {
                    request_id, seed, ..
                } => {
                    let named = (id, request_id.as_str().to_owned());
                    let known = self.rows.live.requests.get(&named).copied();
                    match known.filter(|_| !self.is(Mutant::CreatesTwice)) {
                        Some(trial) => self.take_up_trial(id, state, trial)?,
                        None => self.create_trial(id, state, request_id.0, seed)?,
                    }
                }
                Action::Stop { request_id } => {
                    let named = (id, request_id.as_str().to_owned());
                    if let Some(trial) = self.rows.live.requests.get(&named).copied() {
                        self.trial_event(trial, TrialEvent::StopBySearch)?;
                    }
                }
                Action::Shutdown(outcome) => {
                    let trials_live = !self.rows.live_trials_of(id).is_empty();
                    let outcome = match outcome {
                        Outcome::Completed => SearchOutcome::Completed,
                        Outcome::Canceled => SearchOutcome::Canceled,
                        Outcome::Failed => SearchOutcome::Failed,
                    };
                    self.experiment_event(
                        id,
                        ExperimentEvent::SearchOver {
                            outcome,
                            trials_live,
                        },
                    )?;
                }
            }
        }
        Ok(())
    }

    /// The search of a continued experiment comes to a trial of before: one that completed counts, any other goes on.
    fn take_up_trial(
        &mut self,
        experiment_id: i64,
        experiment: ExperimentState,
        trial_id: i64,
    ) -> Result<(), Refused> {
        let trial = self
            .rows
            .trials
            .get(&trial_id)
            .cloned()
            .ok_or_else(|| absent("trial", trial_id))?;
        if trial.state == TrialState::Completed {
            let request_id = RequestId(trial.request_id);
            return self.advance_search(experiment_id, SearchEvent::Ended { request_id });
        }
        self.continue_trial(&trial)?;
        if experiment != ExperimentState::Active {
            self.trial_event(trial_id, TrialEvent::Pause)?;
        }
        Ok(())
    }

    fn create_trial(
        &mut self,
        experiment_id: i64,
        experiment: ExperimentState,
        request_id: String,
        seed: u32,
    ) -> Result<(), Refused> {
        let state = match experiment {
            ExperimentState::Active => TrialState::Active,
            _ => TrialState::Paused,
        };
        let id = self.rows.last_trial + 1;
        self.rows.last_trial = id;
        let task_id = format!("{experiment_id}.{request_id}");
        self.rows.tasks.insert(task_id.clone(), (id, 0));
        self.rows.insert_trial(Trial {
            id,
            experiment_id,
            request_id,
            task_id,
            state,
            seed,
            run_id: 0,
            restarts: 0,
            latest_checkpoint: None,
            ended_at: None,
        });
        if let Some(experiment) = self.rows.experiment_mut(experiment_id) {
            experiment.trial_count += 1;
        }
        self.record("trial", id, "created", Some(state.stored_name()));
        if state == TrialState::Active {
            self.request_run(id)?;
        }
        Ok(())
    }

    fn request_run(&mut self, trial_id: i64) -> Result<(), Refused> {
        let trial = self
            .rows
            .trial_mut(trial_id)
            .ok_or_else(|| absent("trial", trial_id))?;
        trial.run_id += 1;
        let trial = trial.clone();
        let submission = self
            .rows
            .experiments
            .get(&trial.experiment_id)
            .ok_or_else(|| absent("experiment", trial.experiment_id))?
            .submission
            .clone();
        let (_, attempts) = self
            .rows
            .tasks
            .get_mut(&trial.task_id)
            .ok_or_else(|| absent("task", &trial.task_id))?;
        *attempts += 1;
        let id = format!("{}.{attempts}", trial.task_id);
        self.record("allocation", &id, "created", Some("PENDING"));
        self.rows.insert_allocation(Allocation {
            id,
            task_id: trial.task_id,
            experiment_id: trial.experiment_id,
            trial_id,
            run_id: trial.run_id,
            state: AllocationState::Pending,
            slots: submission.slots,
            single_agent: submission.single_agent,
            requested_at: self.now,
            placed_at: None,
            ended_at: None,
            preempt_deadline: None,
            preempted_for: None,
            wait_reason: None,
        });
        self.wake(Topic::Schedule);
        Ok(())
    }

    pub(crate) fn allocation_event(
        &mut self,
        id: &str,
        event: AllocationEvent,
    ) -> Result<(), Refused> {
        let row = self
            .rows
            .allocations
            .get(id)
            .ok_or_else(|| absent("allocation", id))?;
        let members: Vec<Member> = self
            .rows
            .members(id)
            .into_iter()
            .map(|c| Member {
                container: c.id.as_str().into(),
                daemon: false,
                progress: MemberProgress::of(c.observed.as_ref()),
            })
            .collect();
        let before = row.state.clone();
        let (trial_id, submission) = (
            row.trial_id,
            self.rows
                .experiments
                .get(&row.experiment_id)
                .map(|e| e.submission.clone()),
        );
        let step = before.clone().on(event, &members);
        if step.state != before {
            if let Some(row) = self.rows.allocation_mut(id) {
                row.state = step.state.clone();
                if before == AllocationState::Pending {
                    row.wait_reason = None;
                }
            }
            if before != AllocationState::Pending && !step.state.is_terminal() {
                self.record("allocation", id, "state", Some(step.state.name()));
            }
            self.wake(Topic::Schedule);
        }
        for effect in step.effects {
            match effect {
                AllocationEffect::RaisePreemption => {
                    let timeout = submission.as_ref().map_or(3600, |s| s.preemption_timeout);
                    let due = self.now + timeout * SECOND;
                    if let Some(row) = self.rows.allocation_mut(id) {
                        row.preempt_deadline = Some(due);
                    }
                    self.wake(Topic::Deadlines);
                }
                AllocationEffect::KillMembers => {
                    let live: Vec<(String, String)> = self
                        .rows
                        .members(id)
                        .into_iter()
                        .filter(|c| c.ended_at.is_none())
                        .map(|c| (c.id.clone(), c.agent_id.clone()))
                        .collect();
                    for (container, agent) in live {
                        if let Some(row) = self.rows.container_mut(&container) {
                            row.desired = Desired::Kill;
                        }
                        self.wake_agent(&agent);
                    }
                }
                AllocationEffect::End => {
                    let AllocationState::Terminated { exit } = &step.state else {
                        continue;
                    };
                    let now = self.now;
                    if let Some(row) = self.rows.allocation_mut(id) {
                        row.ended_at = Some(now);
                        row.preempt_deadline = None;
                    }
                    self.rows.live.allocations.remove(id);
                    self.record("allocation", id, "ended", Some(step.state.name()));
                    self.wake(Topic::Schedule);
                    self.trial_event(trial_id, TrialEvent::AllocationEnded(exit.clone()))?;
                }
            }
        }
        Ok(())
    }
}

/// The search that rows lead to, and the number of the last event.
pub(crate) fn replay(
    submission: &Submission,
    stored: &StoredSearch,
) -> Result<(Search, i64), Refused> {
    let snapshot = serde_json::from_str(&stored.snapshot).map_err(|e| e.to_string())?;
    let mut search = Search::restore(&submission.searcher(), &Submission::space(), &snapshot)
        .map_err(|e| e.to_string())?;
    let mut through = stored.through;
    for (number, event) in &stored.events {
        // What it asked for then was carried out in the transaction that stored the event.
        search.on(serde_json::from_str(event).map_err(|e| e.to_string())?);
        through = *number;
    }
    Ok((search, through))
}
