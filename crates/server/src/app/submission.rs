//! Checking a submission: its configuration completed, and held against what this cluster has.

use std::sync::Arc;

use det_authz::{Kind, Permission};
use det_config::errors::{ConfigError, ConfigErrors};
use det_config::experiment::ExperimentConfig;
use det_config::origin::{Layer, Source};
use det_config::policies::{Policies, Workload};
use det_config::secrets::MASK;
use det_config::submitted::{CompletionDefaults, Experiment, SubmittedDocument};
use det_ids::{ExperimentId, ExternalExperimentId, ProjectId, WorkspaceId};
use det_lifecycle::object::ObjectKind;
use det_searcher::Search;
use det_store::experiments::{self};
use det_store::workspaces::{ProjectRow, UNCATEGORIZED_PROJECT, WorkspaceRow};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::app::admission::classes::priority_limit;
use crate::app::admission::{Admission, AdmittedPools, Findings};
use crate::app::config_policies::ConfigPolicies;
use crate::app::context::Context;
use crate::app::documents::{
    check_capabilities, check_names, check_size, config_error, known_documents, may_use_secrets,
    takes_long, warning_of_variables,
};
use crate::app::entrypoint_script;
use crate::app::generated_name::generated;
use crate::app::homes::{Homes, KnownHomes};
use crate::app::model_archive::ContextFile;
use crate::app::offload;
use crate::app::ownership::Ownership;
use crate::app::pools::Pools;
use crate::app::renewal::Renewals;
use crate::app::templates::Templates;
use crate::auth::Actor;
use crate::error::{AppError, AppResult, ErrorKind};

/// An experiment that can be created: its configuration is complete and allowed.
pub(crate) struct CheckedSubmission {
    pub(crate) config: ExperimentConfig,
    pub(crate) warnings: Vec<String>,
    pub(crate) slots_exceeded: bool,
    /// `None` = it is unmanaged: what is searched is searched elsewhere.
    pub(crate) search: Option<Search>,
    /// The document to keep as the original, where it is not the text that came.
    pub(crate) original: Option<String>,
    /// Number of the project that it goes into.
    pub(crate) project_id: ProjectId,
    /// Number of the workspace of that project.
    pub(crate) workspace_id: WorkspaceId,
}

/// An experiment as it is submitted.
#[derive(Debug, Clone, Default)]
pub struct NewExperimentRequest {
    /// Configuration, YAML or JSON.
    pub config: String,
    /// Files of the model definition; none = those of the parent, if there is one.
    pub files: Vec<ContextFile>,
    /// Whether its trials may start.
    pub activate: bool,
    /// Project; overrides the configuration's when above 1.
    pub project_id: Option<ProjectId>,
    /// Experiment it is forked from; without files, its files are used.
    pub parent_id: Option<ExperimentId>,
    /// Templates to lay the configuration over; a later one is stronger than an earlier one.
    pub templates: Vec<String>,
    /// Whether the request is only checked, and nothing is stored.
    pub validate_only: bool,
    /// Whether it only reports, and something else runs it.
    pub unmanaged: bool,
    /// The name by which its code finds it again; only of an unmanaged one.
    pub external_id: Option<ExternalExperimentId>,
}

/// Where a submission goes: the project that the request names, the one that the document names, else Uncategorized. What
/// does not exist is noted.
fn home_of<'p>(
    homes: &'p Homes,
    project_id: Option<ProjectId>,
    named: &(Option<String>, Option<String>),
    findings: &mut Findings,
) -> AppResult<(&'p ProjectRow, &'p WorkspaceRow)> {
    if let Some(id) = project_id.filter(|id| *id > UNCATEGORIZED_PROJECT) {
        return homes.require_open(id);
    }
    let mut missing = |path: &str, refusal: AppError| {
        let mut error = ConfigError::new(path, None, refusal.message);
        error.hint = refusal.hint;
        findings.errors.push(error);
    };
    let no_such = |what: &str, name: &str| {
        AppError::invalid(format!("{what} \"{}\" does not exist", name.escape_debug()))
    };
    // One without the other is reported with the other errors of the document.
    if let (Some(workspace), Some(project)) = (&named.0, &named.1) {
        match homes.workspace_named(workspace) {
            None => missing(
                "workspace",
                no_such("workspace", workspace)
                    .hint("`det workspace list` shows the workspaces there are"),
            ),
            Some(row) => match homes.project_named(row.id, project) {
                Some(found) => match homes.require_open(found.id) {
                    Err(closed) if closed.kind == ErrorKind::Precondition => {
                        missing("project", closed);
                    }
                    open => return open,
                },
                None => missing(
                    "project",
                    no_such("project", project).hint(format!(
                        "`det project list \"{workspace}\"` shows the projects there are"
                    )),
                ),
            },
        }
    }
    homes.project(UNCATEGORIZED_PROJECT)
}

/// A document over the checkpoint storage of its workspace.
fn over_workspace(
    submitted: SubmittedDocument,
    workspace: &WorkspaceRow,
) -> AppResult<SubmittedDocument> {
    let Some(storage) = &workspace.checkpoint_storage else {
        return Ok(submitted);
    };
    let source = Source::layer(Layer::Workspace(workspace.name.clone()));
    let text = format!("{{\"checkpoint_storage\": {storage}}}");
    let under = SubmittedDocument::read_from(Experiment, source, &text).map_err(config_error)?;
    Ok(submitted.over(under))
}

/// A document over its templates: the first of the phases of a check, each of which takes the result of the one before.
struct LayeredDocument {
    submitted: SubmittedDocument,
    /// Whether it is so long that it is worked on on a blocking thread.
    long: bool,
    /// What is reported together with the errors of the completed document.
    findings: Findings,
}

/// A document whose project is known, and with it the policies that apply.
struct ProjectDocument<'p> {
    document: LayeredDocument,
    project: &'p ProjectRow,
    workspace: &'p WorkspaceRow,
}

/// A document with the secrets that its caller may use.
struct RevealedDocument<'p> {
    homed: ProjectDocument<'p>,
    /// The document to keep as the original, where it is not the text that came.
    original: Option<String>,
}

/// A document under the policies of its workspace.
struct PolicedDocument<'p> {
    revealed: RevealedDocument<'p>,
    policies: Vec<Policies>,
}

/// A document whose resource pools are known.
struct PlacedDocument<'p> {
    governed: PolicedDocument<'p>,
    admitted: AdmittedPools,
}

/// A complete configuration that nothing speaks against.
struct CompletedConfig {
    config: ExperimentConfig,
    long: bool,
    warnings: Vec<String>,
    slots_exceeded: bool,
    original: Option<String>,
    project_id: ProjectId,
    workspace_id: WorkspaceId,
}

impl LayeredDocument {
    /// Finds the project that it goes into, by the request or by its own keys.
    fn home(
        mut self,
        homes: &Homes,
        project_id: Option<ProjectId>,
    ) -> AppResult<ProjectDocument<'_>> {
        let named = self.submitted.home();
        let (project, workspace) = home_of(homes, project_id, &named, &mut self.findings)?;
        Ok(ProjectDocument {
            document: self,
            project,
            workspace,
        })
    }
}

impl<'p> RevealedDocument<'p> {
    /// Lays the policies of its workspace and of the cluster over it.
    fn govern(mut self, policies: Vec<Policies>) -> PolicedDocument<'p> {
        let document = &mut self.homed.document;
        let mut warnings = document.submitted.under(&policies).drawn();
        warnings.extend(document.submitted.under(&policies).replaced());
        let warnings = warnings.iter().map(ToString::to_string);
        document.findings.warnings.extend(warnings);
        PolicedDocument {
            revealed: self,
            policies,
        }
    }
}

impl<'p> PlacedDocument<'p> {
    /// What runs outside the cluster asks for no pool.
    fn nowhere(governed: PolicedDocument<'p>) -> Self {
        let admitted = AdmittedPools {
            pools: Vec::new(),
            slots_exceeded: false,
        };
        Self { governed, admitted }
    }
}

/// Who runs the trials of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runner {
    /// The master starts and stops them in the cluster.
    Master,
    /// Something outside the cluster starts them, and they only report.
    Outside,
}

impl CompletedConfig {
    /// Leaves its search to what runs it.
    fn without_search(self) -> CheckedSubmission {
        CheckedSubmission {
            config: self.config,
            warnings: self.warnings,
            slots_exceeded: self.slots_exceeded,
            search: None,
            original: self.original,
            project_id: self.project_id,
            workspace_id: self.workspace_id,
        }
    }

    /// Makes the search that creates its trials.
    async fn search(self) -> AppResult<CheckedSubmission> {
        let config = self.config;
        let seed = config.reproducibility.experiment_seed;
        let (config, search) = offload(self.long, move || {
            let search = Search::new(&config.searcher, &config.hyperparameters, seed);
            (config, search)
        })
        .await?;
        let search = search.map_err(|e| {
            config_error(ConfigErrors::one(ConfigError::new(
                "searcher",
                None,
                e.to_string(),
            )))
        })?;
        Ok(CheckedSubmission {
            config,
            warnings: self.warnings,
            slots_exceeded: self.slots_exceeded,
            search: Some(search),
            original: self.original,
            project_id: self.project_id,
            workspace_id: self.workspace_id,
        })
    }
}

/// Checks what users submit. Cheap to clone.
#[derive(Clone)]
pub struct Submissions {
    pub(super) context: Context,
    pub(super) homes: KnownHomes,
    pub(super) pools: Pools,
    pub(super) ownership: Ownership,
    pub(super) templates: Templates,
    pub(super) policies: ConfigPolicies,
    pub(super) admission: Admission,
    pub(super) renewals: Renewals,
    pub(super) long_documents: Arc<Semaphore>,
}

impl Submissions {
    /// Parses, completes and checks a submission against the cluster.
    pub(crate) async fn check(
        &self,
        actor: &Actor,
        request: &NewExperimentRequest,
    ) -> AppResult<CheckedSubmission> {
        actor.require(Permission::Create, Kind::Experiment, "create experiments")?;
        // Templates are not known yet, and may be as long.
        let long = takes_long(&request.config) || !request.templates.is_empty();
        // A large document takes some 30 MB until it is judged: one after another, no matter which users send them.
        let _turn = if long {
            Some(
                self.long_documents
                    .acquire()
                    .await
                    .map_err(AppError::internal)?,
            )
        } else {
            None
        };
        let homes = self.homes.get();
        let layered = self.layer(request, long).await?;
        let homed = layered.home(&homes, request.project_id)?;
        let revealed = self.reveal_known(actor, request, homed).await?;
        let policies = self
            .policies
            .over(revealed.homed.workspace.id, Workload::Experiment)
            .await?;
        let governed = revealed.govern(policies);
        if request.unmanaged {
            let placed = PlacedDocument::nowhere(governed);
            let completed = self.complete_placed(placed, Runner::Outside).await?;
            return Ok(completed.without_search());
        }
        let placed = self.place(governed).await?;
        let mut completed = self.complete_placed(placed, Runner::Master).await?;
        // Without files those of the parent are used, and a check may come without any.
        if !request.files.is_empty() || (request.parent_id.is_none() && !request.validate_only) {
            let missing = entrypoint_script::warning(&completed.config, &request.files);
            completed.warnings.extend(missing);
        }
        completed.search().await
    }

    /// Reads a document and lays it over its templates. Its errors are reported all at once, together with those that
    /// show when the layers have come together.
    async fn layer(
        &self,
        request: &NewExperimentRequest,
        long: bool,
    ) -> AppResult<LayeredDocument> {
        let text = request.config.clone();
        let submitted = offload(long, move || SubmittedDocument::read(Experiment, &text))
            .await?
            .map_err(config_error)?;
        let submitted = self.over_known_templates(submitted, request).await?;
        let findings = Findings {
            warnings: submitted.warnings.iter().map(ToString::to_string).collect(),
            ..Findings::default()
        };
        Ok(LayeredDocument {
            submitted,
            long,
            findings,
        })
    }

    /// Puts known secrets in place of what hides them, if anything does.
    async fn reveal_known<'p>(
        &self,
        actor: &Actor,
        request: &NewExperimentRequest,
        mut homed: ProjectDocument<'p>,
    ) -> AppResult<RevealedDocument<'p>> {
        let LayeredDocument {
            submitted,
            findings,
            ..
        } = &mut homed.document;
        let revealed = request.config.contains(MASK)
            && self
                .reveal(actor, request, homed.project.id, submitted, findings)
                .await?;
        let original = revealed.then(|| format!("{:#}\n", submitted.own_value()));
        Ok(RevealedDocument { homed, original })
    }

    /// Finds the resource pools that it may run in.
    async fn place<'p>(&self, mut governed: PolicedDocument<'p>) -> AppResult<PlacedDocument<'p>> {
        let policies = &governed.policies;
        let homed = &mut governed.revealed.homed;
        let document = &mut homed.document;
        let size = document.submitted.under(policies).size();
        let placement = document.submitted.under(policies).placement();
        let admitted = self
            .admission
            .admit(&placement, homed.workspace, size, &mut document.findings)
            .await?;
        Ok(PlacedDocument { governed, admitted })
    }

    /// Completes it for its first pool, or reports everything that was found wrong with it.
    async fn complete_placed(
        &self,
        placed: PlacedDocument<'_>,
        runner: Runner,
    ) -> AppResult<CompletedConfig> {
        let PlacedDocument { governed, admitted } = placed;
        let PolicedDocument { revealed, policies } = governed;
        let RevealedDocument { homed, original } = revealed;
        let ProjectDocument {
            document,
            project,
            workspace,
        } = homed;
        let LayeredDocument {
            submitted,
            long,
            findings,
        } = document;
        let pool = admitted.pools.first().cloned().unwrap_or_default();
        let admission_errors = submitted.under(&policies).placed(findings.errors);
        let submitted = over_workspace(submitted, workspace)?;
        let limit = priority_limit(&policies);
        let priority_class = submitted.under(&policies).placement().priority_class;
        let completed = self
            .complete(submitted, policies, (&pool, runner), long)
            .await?;
        let mut config = match completed {
            Ok(config) if admission_errors.is_empty() => config,
            completed => {
                let mut errors = completed.err().map_or_else(Vec::new, |errors| errors.0);
                errors.extend(admission_errors);
                return Err(config_error(ConfigErrors::together(errors)));
            }
        };
        check_size(&config)?;
        check_capabilities(&config.environment)?;
        check_names(&config)?;
        let mut warnings = findings.warnings;
        warnings.extend(warning_of_variables(
            &config.environment.environment_variables,
        ));
        config.resources.resource_pool = pool;
        if !config.resources.resource_pools.is_empty() {
            // Of an unmanaged one none is left: it is in no queue.
            config.resources.resource_pools = admitted.pools;
        }
        if let Some(class) = &priority_class {
            let pool = &config.resources.resource_pool;
            let of_class = self.admission.priority_of_class(class, pool, limit).await;
            warnings.extend(of_class.warning);
            config.resources.priority = of_class.priority.or(config.resources.priority);
        }
        Ok(CompletedConfig {
            config,
            long,
            warnings,
            slots_exceeded: admitted.slots_exceeded,
            original,
            project_id: project.id,
            workspace_id: workspace.id,
        })
    }

    /// Puts the secrets of the parent in place of what hid them when its configuration was shown, for a caller whose own
    /// they are, and credentials that the cluster gives all experiments. What stays hidden is added to `findings`.
    /// Whether something was put in.
    async fn reveal(
        &self,
        actor: &Actor,
        request: &NewExperimentRequest,
        project_id: ProjectId,
        submitted: &mut SubmittedDocument,
        findings: &mut Findings,
    ) -> AppResult<bool> {
        let mut known = Vec::new();
        let mut hint =
            "give the secret itself; it is taken from the experiment of \"parentId\" where a request names one"
                .to_owned();
        if let Some(parent) = request.parent_id {
            let row = {
                let mut conn = self.context.store.read().await?;
                experiments::find(&mut conn.conn(), parent).await?
            };
            let row = row.ok_or_else(|| AppError::not_found(ObjectKind::Experiment, parent))?;
            if may_use_secrets(actor, row.owner_id) {
                known = known_documents(&row)?;
                "give the secret itself: the parent has none there".clone_into(&mut hint);
            } else {
                hint = format!(
                    "give a value of your own: those of experiment {parent} are for {} and administrators",
                    self.ownership.name_of(row.owner_id)
                );
            }
        }
        for storage in self.renewals.storage_of_the_cluster(project_id)? {
            known.push(json!({ "checkpoint_storage": storage }));
        }
        let mut any = false;
        let (mut hidden, _) = submitted.clone().reveal(&[]);
        for document in known {
            let (left, revealed) = submitted.reveal(&[document]);
            (hidden, any) = (left, any | revealed);
        }
        findings.errors.extend(
            hidden
                .into_iter()
                .map(|error| error.with_hint(hint.clone())),
        );
        Ok(any)
    }

    /// A submission over its templates. Where one does not exist, that is reported together with what is wrong in the
    /// document by itself; what else is, cannot be known without it.
    async fn over_known_templates(
        &self,
        submitted: SubmittedDocument,
        request: &NewExperimentRequest,
    ) -> AppResult<SubmittedDocument> {
        if request.templates.is_empty() {
            return Ok(submitted);
        }
        let own = submitted.clone().checked().err();
        let templates = self.templates.texts(&request.templates).await;
        match (templates, own) {
            (Err(missing), Some(own)) if missing.kind == ErrorKind::NotFound => {
                let mut error = ConfigError::new("", None, missing.message);
                error.hint = missing.hint;
                let errors = std::iter::once(error).chain(own.0).collect();
                Err(config_error(ConfigErrors::together(errors)))
            }
            (Ok(templates), _) => offload(true, move || submitted.over_templates(&templates))
                .await?
                .map_err(config_error),
            (Err(error), _) => Err(error),
        }
    }

    /// A submission over what this cluster gives where it is silent, under the policies of its place.
    async fn complete(
        &self,
        submitted: SubmittedDocument,
        policies: Vec<Policies>,
        (pool, runner): (&str, Runner),
        long: bool,
    ) -> AppResult<Result<ExperimentConfig, ConfigErrors>> {
        let container_defaults = self.pools.container_defaults(pool);
        let storage = self
            .context
            .config()
            .checkpoint_storage
            .as_ref()
            .map(serde_json::to_value)
            .transpose();
        let storage = storage.map_err(AppError::internal)?;
        let default_priority = Some(self.pools.default_priority(pool));
        let order = self.pools.priority_order(pool);
        offload(long, move || {
            let defaults = CompletionDefaults {
                name: generated("Experiment"),
                experiment_seed: u32::try_from(
                    (det_store::now() / 1_000_000) & i64::from(u32::MAX),
                )
                .unwrap_or(0),
                checkpoint_storage: storage,
                task_container_defaults: &container_defaults,
                default_priority,
                managed: runner == Runner::Master,
            };
            let policies = Policies::all_with_order(policies, order);
            submitted.under(&policies).complete(&defaults)
        })
        .await
    }
}
