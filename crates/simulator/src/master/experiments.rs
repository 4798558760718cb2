//! What users request of experiments.

use std::rc::Rc;

use det_config::hyperparameters::Continuation;
use det_ids::{ExperimentId, JobId, TrialId, UserId};
use det_lifecycle::experiment::{ExperimentEvent, ExperimentState};
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_lifecycle::state_name::StateName;
use det_lifecycle::trial::TrialEvent;
use det_orchestrator::{Cause, Event, SearchState};
use det_searcher::Search;

use super::{RefusalText, Tx};
use crate::history::{Submission, Wish};
use crate::rows::{Experiment, StoredSearch};

fn search_of(submission: &Submission, experiment_id: ExperimentId) -> Result<Search, RefusalText> {
    let seed = u32::try_from(experiment_id.0).unwrap_or(0);
    Search::new(&submission.searcher(), &Submission::space(), seed).map_err(|e| e.to_string())
}

/// The search that rows lead to.
pub(crate) fn replay(
    submission: &Submission,
    stored: &StoredSearch,
) -> Result<SearchState, RefusalText> {
    SearchState::replay(
        &submission.searcher(),
        &Submission::space(),
        (&stored.snapshot, stored.through),
        &stored.events,
    )
}

impl Tx<'_> {
    pub(crate) fn create_experiment(
        &mut self,
        submission: &Rc<Submission>,
    ) -> Result<ExperimentId, RefusalText> {
        if let Err(never) =
            super::can_ever_fit(self.rows, submission.slots, submission.single_place)
        {
            return Err(never.to_string());
        }
        let id = ExperimentId(self.rows.last_experiment + 1);
        let search = search_of(submission, id)?;
        self.rows.last_experiment = id.0;
        self.rows.experiments.insert(
            id,
            Experiment {
                row: det_orchestrator::Experiment {
                    id,
                    state: ExperimentState::Active,
                    job_id: JobId(id.to_string()),
                    owner_id: UserId(1),
                    resource_pool: String::new(),
                    progress: 0.0,
                    trial_count: 0,
                    unmanaged: false,
                    ended_at: None,
                },
                submission: submission.clone(),
                priority: submission.priority,
                weight: 2,
                max_slots: None,
                submitted_at: self.now,
            },
        );
        self.rows.experiment_mut(id);
        self.rows.record(
            Subject::Experiment(id),
            EventKind::Created,
            Some(StateName::Active.into()),
        );
        self.advance([Event::SearchBegins {
            id,
            search: Box::new(search),
            actions: Vec::new(),
        }])?;
        Ok(id)
    }

    /// Carries out what a user requests of an experiment.
    pub(crate) fn steer(&mut self, id: ExperimentId, wish: Wish) -> Result<(), RefusalText> {
        let event = match wish {
            Wish::Pause => ExperimentEvent::Pause,
            Wish::Activate => ExperimentEvent::Activate,
            Wish::Cancel => ExperimentEvent::Cancel,
            Wish::Kill => ExperimentEvent::Kill,
            Wish::Delete => ExperimentEvent::Delete,
            Wish::Continue => return self.continue_in(id),
        };
        self.advance([Event::Experiment {
            id,
            event,
            cause: Cause::actor(ActorName::user("admin")),
        }])
    }

    pub(crate) fn kill_trial(&mut self, id: TrialId) -> Result<(), RefusalText> {
        self.advance([Event::Trial {
            id,
            event: TrialEvent::Kill,
            cause: Cause::actor(ActorName::user("admin")),
        }])
    }

    fn continue_in(&mut self, id: ExperimentId) -> Result<(), RefusalText> {
        let experiment = self.rows.experiments.get(&id);
        let submission = experiment
            .ok_or_else(|| format!("experiment {id} not found"))?
            .submission
            .clone();
        let single = match submission.search.continuation() {
            Continuation::Trial => true,
            Continuation::Search => false,
            Continuation::Never => return Err("its search cannot be continued".to_owned()),
        };
        self.advance([Event::Continue {
            id,
            search: Box::new(search_of(&submission, id)?),
            single,
            cause: Cause::actor(ActorName::user("admin")),
        }])
    }
}
