//! Experiments: creating, steering, changing, ending them.

use det_authz::{Kind, Permission, Target};
use det_config::errors::ConfigErrors;
use det_config::experiment::{ExperimentConfig, mask_for_others};
use det_config::hyperparameters::{Continuation, SearchMethod};
use det_config::submitted::{Experiment, SubmittedDocument};
use det_failpoints::failpoint;
use det_ids::{ExperimentId, ExternalExperimentId, UserId};
use det_lifecycle::experiment::{ExperimentEvent, ExperimentState};
use det_lifecycle::object::ObjectKind;
use det_lifecycle::record::{ActorName, EventKind, Subject};
use det_orchestrator::{Event, LogLevel};
use det_searcher::Search;
use det_store::archives::{self, ArchiveOf, NewArchive};
use det_store::events::NewEvent;
use det_store::experiments::{ExperimentRow, JobKind, JobRow, NewExperiment, SearcherKind};
use det_store::workspaces::UNCATEGORIZED_PROJECT;
use det_store::{Store, WriteTx, experiments, trials};
use serde_json::Value;

use crate::app::config_policies::ConfigPolicies;
use crate::app::configs::Configs;
use crate::app::context::Context;
use crate::app::documents::{config_error, known_documents, takes_long};
use crate::app::existing;
use crate::app::homes::{Homes, KnownHomes};
use crate::app::job_changes::JobChanges;
use crate::app::model_archive::{self};
use crate::app::offload;
use crate::app::orchestration::{Cause, Orchestration};
use crate::app::ownership::Ownership;
use crate::app::pools::Pools;
use crate::app::renewal::{ATTEMPTS, Renewal, Renewals, RenewedConfig, overtaken};
use crate::app::scheduling::fallback::fallback_of;
use crate::app::submission::{CheckedSubmission, NewExperimentRequest, Submissions};
use crate::auth::Actor;
use crate::error::{AppError, AppResult};

mod patch;

pub use patch::ExperimentPatch;

/// What came of a submission.
#[derive(Debug, Clone)]
pub struct CreatedExperiment {
    /// Its number; `None` when it was only checked.
    pub id: Option<ExperimentId>,
    /// Effective configuration, secrets hidden.
    pub config: Value,
    /// What the user should know.
    pub warnings: Vec<String>,
    /// Whether it asks for more slots than there are now.
    pub slots_exceeded: bool,
}

impl CreatedExperiment {
    /// Of an experiment that existed, whose configuration is shown with it.
    pub(crate) fn existing(id: ExperimentId) -> Self {
        Self {
            id: Some(id),
            config: Value::Null,
            warnings: Vec::new(),
            slots_exceeded: false,
        }
    }
}

/// Experiments: created, steered, continued, changed. Cheap to clone.
#[derive(Clone)]
pub struct Experiments {
    pub(super) context: Context,
    pub(super) homes: KnownHomes,
    pub(super) pools: Pools,
    pub(super) configs: Configs,
    pub(super) ownership: Ownership,
    pub(super) policies: ConfigPolicies,
    pub(super) submissions: Submissions,
    pub(super) renewals: Renewals,
    pub(super) job_changes: JobChanges,
    pub(super) orchestration: Orchestration,
}

impl Experiments {
    /// Checks a submission and, unless only that is asked, stores it with its search and first trials.
    pub async fn create(
        &self,
        actor: &Actor,
        mut request: NewExperimentRequest,
    ) -> AppResult<CreatedExperiment> {
        let mut checked = self.submissions.check(actor, &request).await?;
        let own = Target::of(Kind::Experiment).owned_by(actor.user().id);
        let shown = if actor.may(Permission::ReadUnmasked, &own) {
            checked.config.masked_json()
        } else {
            // What templates and policies add is not a task's to see.
            mask_for_others(&checked.config.to_json())
        };
        if request.validate_only {
            return Ok(CreatedExperiment {
                id: None,
                config: shown,
                warnings: checked.warnings,
                slots_exceeded: checked.slots_exceeded,
            });
        }
        let archive = match (request.parent_id, request.files.is_empty()) {
            (Some(parent), true) => {
                self.require_forkable(parent).await?;
                NewArchive::CopyOf(parent)
            }
            _ => {
                let files = std::mem::take(&mut request.files);
                let pack = move || model_archive::pack("modelDefinition", &files);
                let packed = tokio::task::spawn_blocking(pack).await;
                NewArchive::Packed(packed.map_err(AppError::internal)??)
            }
        };
        let (warnings, slots_exceeded) = (checked.warnings.clone(), checked.slots_exceeded);
        let search = checked.search.take();
        // The code of an unmanaged one has not reported yet, whatever the request contains.
        let state = if request.activate && !request.unmanaged {
            ExperimentState::Active
        } else {
            ExperimentState::Paused
        };
        let new = self.row(actor.user().id, checked, request, state, archive)?;
        let (service, actor, noted) = (self.clone(), actor.clone(), warnings.clone());
        let id = self
            .context
            .write(move |tx| {
                Box::pin(async move {
                    let known = service.known_external(tx, &new, &actor).await?;
                    if let Some(id) = known {
                        return Ok(id);
                    }
                    let id = service.store(tx, new, search, state, &actor.name()).await?;
                    service.log_warnings(tx, id, &noted).await?;
                    failpoint!("server::experiments::create::before_commit");
                    Ok::<_, AppError>(id)
                })
            })
            .await?;
        failpoint!("server::experiments::create::after_commit");
        Ok(CreatedExperiment {
            id: Some(id),
            config: shown,
            warnings,
            slots_exceeded,
        })
    }

    /// A checked submission as rows. `archive` = its model definition.
    fn row(
        &self,
        owner_id: UserId,
        checked: CheckedSubmission,
        request: NewExperimentRequest,
        state: ExperimentState,
        archive: NewArchive<ExperimentId>,
    ) -> AppResult<NewExperiment> {
        let config = &checked.config;
        Ok(NewExperiment {
            job: JobRow {
                id: uuid::Uuid::new_v4().to_string().into(),
                kind: JobKind::Experiment,
                owner_id,
                resource_pool: config.resources.resource_pool.clone(),
                priority: config.resources.priority.unwrap_or_else(|| {
                    self.pools.default_priority(&config.resources.resource_pool)
                }),
                weight: config.resources.weight,
                max_slots: config.resources.max_slots,
                position: None,
                moved: false,
                fallback: fallback_of(config),
                demands: self.pools.demands.of(&config.environment),
                submitted_at: det_store::now(),
                workspace_id: checked.workspace_id,
            },
            project_id: checked.project_id,
            parent_id: request.parent_id,
            name: config.name.clone(),
            description: config.description.clone().unwrap_or_default(),
            labels: serde_json::to_string(&config.labels).map_err(AppError::internal)?,
            state,
            config: config.to_json().to_string(),
            original_config: checked.original.unwrap_or(request.config),
            searcher_name: searcher_kind(&config.searcher.method),
            searcher_metric: config.searcher.metric.clone(),
            smaller_is_better: config.searcher.smaller_is_better,
            model_definition: archive,
            unmanaged: request.unmanaged,
            external_id: request.external_id,
        })
    }

    /// What is remarkable about a configuration, for the user who follows the first trial with whatever client.
    async fn log_warnings(
        &self,
        tx: &mut WriteTx,
        id: ExperimentId,
        warnings: &[String],
    ) -> AppResult<()> {
        let first = trials::live_of_experiment(&mut tx.conn(), id)
            .await?
            .into_iter()
            .next();
        if let Some(trial) = first {
            for warning in warnings {
                let text = format!("Note on the configuration: {warning}");
                self.context
                    .write_line(tx, &trial.task_id, None, (LogLevel::Warning, &text))?;
            }
        }
        Ok(())
    }

    async fn store(
        &self,
        tx: &mut WriteTx,
        mut new: NewExperiment,
        search: Option<Search>,
        state: ExperimentState,
        actor: &ActorName,
    ) -> AppResult<ExperimentId> {
        // It may have gone since the configuration was checked.
        if !new.unmanaged {
            self.pools.require(&new.job.resource_pool)?;
        }
        let fallback = new.job.fallback.iter();
        for pool in fallback.flat_map(|fallback| &fallback.pools) {
            self.pools.require(pool)?;
        }
        if new.project_id != UNCATEGORIZED_PROJECT {
            let homes = Homes::load(&mut tx.conn()).await?;
            new.job.workspace_id = homes.require_open(new.project_id)?.1.id;
        }
        let id = experiments::insert(&mut tx.conn(), &new).await?;
        self.context
            .record(
                tx,
                NewEvent::new(actor, Subject::Experiment(id), EventKind::Created)
                    .states(None, Some(state.state_name().into())),
            )
            .await?;
        let begins = search.map(|search| Event::SearchBegins {
            id,
            search: Box::new(search),
            actions: Vec::new(),
        });
        self.orchestration.advance(tx, begins).await?;
        Ok(id)
    }

    /// The experiment that was given the external id of a new one in the meantime.
    async fn known_external(
        &self,
        tx: &mut WriteTx,
        new: &NewExperiment,
        actor: &Actor,
    ) -> AppResult<Option<ExperimentId>> {
        let Some(external_id) = &new.external_id else {
            return Ok(None);
        };
        let found = experiments::find_by_external_id(&mut tx.conn(), external_id).await?;
        if let Some(row) = &found {
            self.require_own_external(actor, row)?;
        }
        Ok(found.map(|row| row.id))
    }

    /// Refuses to hand the experiment of an external id to a user who could not report for it. The refusal names only its
    /// owner.
    pub(crate) fn require_own_external(&self, actor: &Actor, row: &ExperimentRow) -> AppResult<()> {
        let target = Target::of(Kind::Trial).owned_by(row.owner_id);
        let name = row.external_id.as_ref();
        let name = name.map_or("", ExternalExperimentId::as_str);
        let to_do = format!(
            "use external experiment id \"{}\", which experiment {} has",
            name.escape_debug(),
            row.id
        );
        let refused = self
            .ownership
            .require_of(actor, Permission::Report, &target, &to_do);
        refused.map_err(|refusal| {
            refusal.hint("choose another external id: they are unique over the cluster")
        })
    }

    /// Refuses a fork of an experiment that is archived, or whose model definition is gone.
    async fn require_forkable(&self, parent: ExperimentId) -> AppResult<()> {
        let mut conn = self.context.store.read().await?;
        let row = existing::experiment(&mut conn.conn(), parent).await?;
        if row.archived {
            return Err(AppError::precondition(format!(
                "experiment {parent} is archived and cannot be forked"
            ))
            .hint(format!(
                "unarchive it first: det experiment unarchive {parent}"
            )));
        }
        match archives::size(&mut conn.conn(), &ArchiveOf::Experiment(parent)).await? {
            Some(_) => Ok(()),
            None => Err(AppError::not_found(ObjectKind::ModelDefinition, parent)),
        }
    }

    /// Starts, pauses, ends or deletes it.
    pub async fn steer(
        &self,
        actor: &Actor,
        id: ExperimentId,
        event: ExperimentEvent,
    ) -> AppResult<()> {
        match event {
            ExperimentEvent::Delete => {
                self.ownership
                    .require_deletion(actor, id, &format!("experiment {id}"))
                    .await?;
            }
            _ => self.ownership.require_steering(actor, id).await?,
        }
        let cause = Cause::actor(actor.name());
        if matches!(event, ExperimentEvent::Activate) {
            return self.activate_renewed(id, &cause).await;
        }
        self.orchestration
            .commit(Event::Experiment { id, event, cause })
            .await
    }

    /// What was paused goes on with its configuration under today's policies, in pools that can run it.
    async fn activate_renewed(&self, id: ExperimentId, cause: &Cause) -> AppResult<()> {
        for _ in 0..ATTEMPTS {
            let row = experiment_row(&self.context.store, id).await?;
            if row.unmanaged {
                let (event, cause) = (ExperimentEvent::Activate, cause.clone());
                let activated = Event::Experiment { id, event, cause };
                return self.orchestration.commit(activated).await;
            }
            let renewed = match row.state {
                ExperimentState::Paused => {
                    let homes = self.homes.get();
                    let (_, workspace) = homes.project(row.project_id)?;
                    let renewed = self
                        .renewals
                        .renew(&row, None, workspace, Renewal::Activate)
                        .await?;
                    Some(renewed)
                }
                _ => None,
            };
            let (service, cause) = (self.clone(), cause.clone());
            let done = self
                .context
                .write(move |tx| {
                    Box::pin(async move {
                        let row = existing::experiment(&mut tx.conn(), id).await?;
                        let is_paused = row.state == ExperimentState::Paused;
                        match renewed.filter(|renewed| renewed.is_about(&row)) {
                            Some(renewed) if is_paused => {
                                service.renewals.store(tx, &row, &renewed, &cause).await?;
                            }
                            None if is_paused => return Ok(false),
                            _ => {}
                        }
                        let event = ExperimentEvent::Activate;
                        service
                            .orchestration
                            .advance(tx, [Event::Experiment { id, event, cause }])
                            .await?;
                        Ok::<_, AppError>(true)
                    })
                })
                .await?;
            if done {
                return Ok(());
            }
        }
        Err(overtaken(id))
    }

    /// Hides or shows an ended experiment.
    pub async fn archive(&self, actor: &Actor, id: ExperimentId, archived: bool) -> AppResult<()> {
        self.ownership.require_steering(actor, id).await?;
        let (service, actor) = (self.clone(), actor.name());
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    let row = existing::experiment(&mut tx.conn(), id).await?;
                    // An unmanaged one that never ran has no other end.
                    let rests = row.unmanaged && row.state == ExperimentState::Paused;
                    if archived && !rests {
                        row.state
                            .may_archive()
                            .map_err(|r| AppError::precondition(r.message))?;
                    }
                    if row.archived == archived {
                        return Ok(());
                    }
                    experiments::set_archived(&mut tx.conn(), id, archived).await?;
                    service
                        .context
                        .record(
                            tx,
                            NewEvent::new(
                                &actor,
                                Subject::Experiment(id),
                                if archived {
                                    EventKind::Archived
                                } else {
                                    EventKind::Unarchived
                                },
                            ),
                        )
                        .await?;
                    Ok(())
                })
            })
            .await
    }

    /// Goes on with an ended experiment: trials that did not complete run again from their newest checkpoints. Only
    /// single, random and grid searches can, and only a single one takes changed settings.
    pub async fn continue_ended(
        &self,
        actor: &Actor,
        id: ExperimentId,
        override_config: &str,
    ) -> AppResult<()> {
        let (long, text) = (takes_long(override_config), override_config.to_owned());
        let over = offload(long, move || parse_override(&text)).await??;
        if over.is_some() {
            // What runs would be the caller's, with the owner's identity, secrets and files.
            let to_do = format!("continue experiment {id} with another configuration");
            self.ownership.require_owner(actor, id, &to_do).await?;
        } else {
            self.ownership.require_steering(actor, id).await?;
        }
        let cause = Cause::actor(actor.name());
        for _ in 0..ATTEMPTS {
            let row = experiment_row(&self.context.store, id).await?;
            if row.unmanaged {
                // Refused, with what to do instead.
                let (event, cause) = (ExperimentEvent::Continue, cause.clone());
                let continued = Event::Experiment { id, event, cause };
                return self.orchestration.commit(continued).await;
            }
            let config = self.configs.of(&row)?;
            require_continuable(&row, &config, over.is_some())?;
            let over = revealed_override(over.clone(), &row)?;
            let homes = self.homes.get();
            let (_, workspace) = homes.require_open(row.project_id)?;
            let renewed = self
                .renewals
                .renew(&row, over, workspace, Renewal::Continue)
                .await?;
            let (service, cause) = (self.clone(), cause.clone());
            let done = self
                .context
                .write(move |tx| {
                    Box::pin(async move {
                        let row = existing::experiment(&mut tx.conn(), id).await?;
                        if !renewed.is_about(&row) {
                            return Ok(false);
                        }
                        service.continue_in(tx, row, renewed, &cause).await?;
                        Ok::<_, AppError>(true)
                    })
                })
                .await?;
            if done {
                return Ok(());
            }
        }
        Err(overtaken(id))
    }

    async fn continue_in(
        &self,
        tx: &mut WriteTx,
        row: ExperimentRow,
        renewed: RenewedConfig,
        cause: &Cause,
    ) -> AppResult<()> {
        let id = row.id;
        self.renewals.store(tx, &row, &renewed, cause).await?;
        let config = &renewed.config;
        let row = existing::experiment(&mut tx.conn(), id).await?;
        let homes = Homes::load(&mut tx.conn()).await?;
        homes.require_open(row.project_id)?;
        if row.archived {
            return Err(AppError::precondition(format!(
                "experiment {id} is archived and cannot be continued"
            ))
            .hint(format!(
                "take it out again with `det experiment unarchive {id}`"
            )));
        }
        // Nothing kept it there since the experiment ended.
        self.pools.require(&row.resource_pool)?;
        // The search runs again from its seed; its trials are found by the names that it gives them: see
        // `docs/contract/searchers.md`, "Reproducibility".
        let search = Search::new(
            &config.searcher,
            &config.hyperparameters,
            config.reproducibility.experiment_seed,
        )
        .map_err(|e| AppError::invalid(format!("searcher: {e}")))?;
        let continued = Event::Continue {
            id,
            search: Box::new(search),
            single: config.searcher.method.continuation() == Continuation::Trial,
            cause: cause.clone(),
        };
        self.orchestration.advance(tx, [continued]).await?;
        self.log_warnings(tx, id, &renewed.warnings).await
    }
}

/// An experiment's row.
pub(crate) async fn experiment_row(store: &Store, id: ExperimentId) -> AppResult<ExperimentRow> {
    let mut conn = store.read().await?;
    existing::experiment(&mut conn.conn(), id).await
}

/// The document that overrides the configuration of a continued experiment; `None` when it is empty.
fn parse_override(text: &str) -> AppResult<Option<SubmittedDocument>> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let over = SubmittedDocument::parse(Experiment, text).map_err(config_error)?;
    let value = over.own_value();
    for key in ["workspace", "project"] {
        if value.get(key).is_some_and(|v| !v.is_null()) {
            return Err(AppError::invalid(format!(
                "{key} cannot be changed when an experiment is continued"
            )));
        }
    }
    let says_something = value.as_object().is_some_and(|keys| !keys.is_empty());
    Ok(says_something.then_some(over))
}

/// An override with the experiment's own secrets in place of what hid them when its configuration was shown.
fn revealed_override(
    over: Option<SubmittedDocument>,
    row: &ExperimentRow,
) -> AppResult<Option<SubmittedDocument>> {
    let Some(mut over) = over else {
        return Ok(None);
    };
    let mut hidden = Vec::new();
    for document in known_documents(row)? {
        (hidden, _) = over.reveal(&[document]);
    }
    if hidden.is_empty() {
        Ok(Some(over))
    } else {
        Err(config_error(ConfigErrors::together(hidden)))
    }
}

/// Refuses to continue what cannot be: only single, random and grid searches can begin again, and only a single one with
/// another configuration.
fn require_continuable(
    row: &ExperimentRow,
    config: &ExperimentConfig,
    is_changed: bool,
) -> AppResult<()> {
    match config.searcher.method.continuation() {
        Continuation::Trial => Ok(()),
        Continuation::Search if is_changed => Err(AppError::invalid(
            "only experiments with a single search can be continued with another configuration",
        )
        .hint(format!(
                "leave the override out, or create a new experiment from what `det experiment config {}` prints",
                row.id
            ))),
        Continuation::Search => Ok(()),
        Continuation::Never => Err(AppError::precondition(format!(
            "experiment {} cannot be continued: only single, random and grid searches can, and its search is {}",
            row.id, row.searcher_name
        ))),
    }
}

fn searcher_kind(method: &SearchMethod) -> SearcherKind {
    match method {
        SearchMethod::Single => SearcherKind::Single,
        SearchMethod::Random { .. } => SearcherKind::Random,
        SearchMethod::Grid { .. } => SearcherKind::Grid,
        SearchMethod::AsyncHalving { .. } => SearcherKind::AsyncHalving,
        SearchMethod::AdaptiveAsha { .. } => SearcherKind::AdaptiveAsha,
    }
}
