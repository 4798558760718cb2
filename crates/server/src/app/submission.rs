//! Checking a submission: its configuration completed, and held against what this cluster has.

use std::collections::BTreeSet;

use det_config::errors::{ConfigError, ConfigErrors};
use det_config::experiment::{CompletionDefaults, ExperimentConfig, Placement, Submitted};
use det_config::origin::{Layer, Source};
use det_config::policies::{Policies, Workload, fixed_pool};
use det_ids::{AllocationId, JobId, Micros, TaskId};
use det_scheduler::{Request, can_ever_fit};
use det_searcher::Search;
use det_store::workspaces::{ProjectRow, UNCATEGORIZED_ID, WorkspaceRow};

use crate::app::experiments::NewExperimentRequest;
use crate::app::workspaces::Places;
use crate::app::{Master, beside};
use crate::error::{AppError, AppResult};

/// Bytes of a configuration from which on it is read beside the runtime's other work.
const LONG_CONFIG: usize = 16 << 10;

/// A checked submission.
pub(crate) struct Checked {
    pub(crate) config: ExperimentConfig,
    pub(crate) warnings: Vec<String>,
    pub(crate) slots_exceeded: bool,
    pub(crate) search: Search,
    /// Project it goes into.
    pub(crate) project_id: i64,
    /// Workspace of that project.
    pub(crate) workspace_id: i64,
}

/// Where a submission goes: the project that the request names, the one that the document names, else Uncategorized. What
/// does not exist is noted.
fn home_of<'p>(
    places: &'p Places,
    project_id: Option<i64>,
    placement: &Placement,
    mistakes: &mut Vec<ConfigError>,
) -> AppResult<(&'p ProjectRow, &'p WorkspaceRow)> {
    if let Some(id) = project_id.filter(|id| *id > UNCATEGORIZED_ID) {
        return places.require_open(id);
    }
    let mut missing = |what: &str, name: &str, hint: String| {
        let message = format!("{what} \"{}\" does not exist", name.escape_debug());
        mistakes.push(ConfigError::new(what, None, message).with_hint(hint));
    };
    // One without the other is told with the other mistakes of the document.
    if let (Some(workspace), Some(project)) = (&placement.workspace, &placement.project) {
        match places.workspace_named(workspace) {
            None => missing(
                "workspace",
                workspace,
                "`det workspace list` shows the workspaces there are".to_owned(),
            ),
            Some(row) => match places.project_named(row.id, project) {
                Some(found) => return places.require_open(found.id),
                None => missing(
                    "project",
                    project,
                    format!("`det project list \"{workspace}\"` shows the projects there are"),
                ),
            },
        }
    }
    places.project(UNCATEGORIZED_ID)
}

/// A document over the checkpoint storage of its workspace.
fn over_workspace(submitted: Submitted, workspace: &WorkspaceRow) -> AppResult<Submitted> {
    let Some(storage) = &workspace.checkpoint_storage else {
        return Ok(submitted);
    };
    let source = Source::layer(Layer::Workspace(workspace.name.clone()));
    let text = format!("{{\"checkpoint_storage\": {storage}}}");
    let under = Submitted::read_from(source, &text).map_err(config_error)?;
    Ok(submitted.over(under))
}

impl Master {
    /// Parses, completes and checks a submission against the cluster.
    pub(crate) async fn check(&self, request: &NewExperimentRequest) -> AppResult<Checked> {
        let (text, long) = (request.config.clone(), request.config.len() >= LONG_CONFIG);
        // Mistakes are told all at once, together with those that show when the layers have come together.
        let submitted = beside(long, move || Submitted::read(&text))
            .await?
            .map_err(config_error)?;
        let submitted = self.over_templates(submitted, &request.templates).await?;
        let mut warnings: Vec<String> =
            submitted.warnings.iter().map(ToString::to_string).collect();
        let placement = submitted.placement();
        let places = self.places.get();
        // Said together with what is wrong in the rest.
        let mut mistakes = Vec::new();
        let (project, workspace) = home_of(&places, request.project_id, &placement, &mut mistakes)?;
        let policies = self
            .policies_over(workspace.id, Workload::Experiment)
            .await?;
        let replaced = submitted.replaced_by(&policies);
        warnings.extend(replaced.iter().map(ToString::to_string));
        let pool = self.choose_pool(&placement, &policies, workspace, &mut mistakes)?;
        let mistakes = submitted.placed(mistakes);
        let submitted = over_workspace(submitted, workspace)?;
        let container_defaults = self.container_defaults(&pool);
        let storage = self
            .config()
            .checkpoint_storage
            .as_ref()
            .map(serde_json::to_value)
            .transpose();
        let storage = storage.map_err(AppError::internal)?;
        let default_priority = Some(self.default_priority(&pool));
        let completed = beside(long, move || {
            let defaults = CompletionDefaults {
                name: generated_name(),
                experiment_seed: u32::try_from(
                    (det_store::now() / 1_000_000) & i64::from(u32::MAX),
                )
                .unwrap_or(0),
                checkpoint_storage: storage,
                task_container_defaults: &container_defaults,
                default_priority,
                managed: true,
            };
            submitted.complete_under(&defaults, &policies)
        })
        .await?;
        let mut config = match completed {
            Ok(config) if mistakes.is_empty() => config,
            completed => {
                let mut errors = completed.err().map_or_else(Vec::new, |told| told.0);
                errors.extend(mistakes);
                return Err(config_error(ConfigErrors::together(errors)));
            }
        };
        check_size(&config)?;
        config.resources.resource_pool.clone_from(&pool);
        let slots_exceeded = self.check_pools(&mut config, &mut warnings).await?;
        self.check_limit(workspace, config.resources.slots_per_trial, &mut warnings)?;
        let seed = config.reproducibility.experiment_seed;
        let (config, search) = beside(long, move || {
            let search = Search::new(&config.searcher, &config.hyperparameters, seed);
            (config, search)
        })
        .await?;
        let search = search.map_err(|e| AppError::invalid(format!("searcher: {e}")))?;
        Ok(Checked {
            config,
            warnings,
            slots_exceeded,
            search,
            project_id: project.id,
            workspace_id: workspace.id,
        })
    }

    /// The pool that an experiment begins in: what policies fix, what it names, the default of its workspace, the
    /// cluster's default. Pools that do not exist are noted.
    fn choose_pool(
        &self,
        placement: &Placement,
        policies: &[Policies],
        workspace: &WorkspaceRow,
        mistakes: &mut Vec<ConfigError>,
    ) -> AppResult<String> {
        let fixed = fixed_pool(policies);
        let several: &[String] = match fixed {
            Some(_) => &[],
            None => &placement.resource_pools,
        };
        let chosen = fixed.as_ref().or(placement.resource_pool.as_ref());
        if let Some(pool) = chosen.or(several.first()) {
            mistakes.extend(self.unknown_pools(pool, several));
            return Ok(pool.clone());
        }
        let (of_workspace, of_cluster) = if placement.slots_per_trial == 0 {
            (&workspace.default_aux_pool, self.default_aux_pool())
        } else {
            (&workspace.default_compute_pool, self.default_compute_pool())
        };
        if let Some(pool) = of_workspace {
            mistakes.extend(
                self.unknown_pools(pool, &[])
                    .into_iter()
                    .map(|mistake| ConfigError {
                        message: format!(
                            "{} (it is the default of workspace \"{}\")",
                            mistake.message, workspace.name
                        ),
                        ..mistake
                    }),
            );
            return Ok(pool.clone());
        }
        of_cluster.ok_or_else(|| {
            AppError::invalid(
                "resources.resource_pool is missing, and this cluster has no default pool",
            )
            .hint(format!("choose one of: {}", self.pool_names().join(", ")))
        })
    }

    /// A mistake for each pool that does not exist: the one chosen, and those to fall back to.
    fn unknown_pools(&self, chosen: &str, several: &[String]) -> Vec<ConfigError> {
        let known = self.pool_names();
        let mistake = |path: &str, pool: &str| {
            let hint = format!("choose one of: {}", known.join(", "));
            ConfigError::new(path, None, format!("pool \"{pool}\" does not exist")).with_hint(hint)
        };
        let is_known = |pool: &str| known.iter().any(|name| name == pool);
        let mut mistakes = Vec::new();
        for (index, pool) in several.iter().enumerate().filter(|(_, p)| !is_known(p)) {
            mistakes.push(mistake(&format!("resources.resource_pools[{index}]"), pool));
        }
        if several.is_empty() && !is_known(chosen) {
            mistakes.push(mistake("resources.resource_pool", chosen));
        }
        mistakes
    }

    /// Refuses trials that are larger than all that their workspace may use; with `launch_error: false` it is a warning.
    pub(crate) fn check_limit(
        &self,
        workspace: &WorkspaceRow,
        slots: u32,
        warnings: &mut Vec<String>,
    ) -> AppResult<()> {
        let Some(limit) = workspace
            .max_slots
            .filter(|limit| i64::from(slots) > *limit)
        else {
            return Ok(());
        };
        let name = &workspace.name;
        let message = format!(
            "resources.slots_per_trial: needs {slots}, and workspace \"{name}\" may use {limit} at a time"
        );
        let hint = format!(
            "ask for at most {limit}, or have an administrator raise the limit: `det workspace edit \"{name}\" \
             --max-slots N`"
        );
        if self.config().launch_error {
            return Err(AppError::invalid(message).hint(hint));
        }
        warnings.push(format!("{message}; {hint}"));
        Ok(())
    }

    /// [`Self::check_capacity`] for all pools that a configuration names. Those that could never run it are left out;
    /// only if that is all of them the submission is refused.
    async fn check_pools(
        &self,
        config: &mut ExperimentConfig,
        warnings: &mut Vec<String>,
    ) -> AppResult<bool> {
        if config.resources.resource_pools.len() < 2 {
            let pool = config.resources.resource_pool.clone();
            return self.check_capacity(&pool, config, warnings).await;
        }
        let (mut usable, mut refusals) = (Vec::new(), Vec::new());
        let mut slots_exceeded = true;
        for pool in config.resources.resource_pools.clone() {
            match self.check_capacity(&pool, config, warnings).await {
                Ok(exceeded) => {
                    slots_exceeded &= exceeded;
                    usable.push(pool);
                }
                Err(refusal) => refusals.push(refusal),
            }
        }
        let Some(first) = usable.first() else {
            let messages: Vec<&str> = refusals.iter().map(|r| r.message.as_str()).collect();
            let refusal = AppError::invalid(messages.join("\n"));
            return Err(
                match refusals.into_iter().find_map(|refusal| refusal.hint) {
                    Some(hint) => refusal.hint(hint),
                    None => refusal,
                },
            );
        };
        warnings.extend(
            refusals
                .into_iter()
                .map(|refusal| format!("{}; this pool is left out", refusal.message)),
        );
        config.resources.resource_pool.clone_from(first);
        config.resources.resource_pools = usable;
        Ok(slots_exceeded)
    }

    /// Refuses what no present or provisionable capacity can ever hold (design, settled point 9); with
    /// `launch_error: false` it is a warning.
    async fn check_capacity(
        &self,
        pool: &str,
        config: &ExperimentConfig,
        warnings: &mut Vec<String>,
    ) -> AppResult<bool> {
        let snapshot = self.pool_snapshot(pool).await?;
        // A pool whose agents have not joined yet cannot say no: the request waits with its reason.
        if snapshot.agents.is_empty() {
            warnings.push(format!(
                "resource pool \"{pool}\" has no agents yet; the trials wait for one"
            ));
            return Ok(config.resources.slots_per_trial > 0);
        }
        let request = Request {
            allocation_id: AllocationId("submission".into()),
            task_id: TaskId("submission".into()),
            job_id: JobId("submission".into()),
            slots: config.resources.slots_per_trial,
            single_agent: config.resources.is_single_node.unwrap_or(false),
            preemptible: true,
            excluded_agents: BTreeSet::new(),
            requested_at: Micros(0),
        };
        let Err(never) = can_ever_fit(&snapshot, &request) else {
            return Ok(false);
        };
        let message = format!("resources.slots_per_trial: resource pool \"{pool}\": {never}");
        if self.config().launch_error {
            let error = AppError::invalid(message);
            return Err(if never.nearest.is_empty() {
                error
            } else {
                let sizes: Vec<String> = never.nearest.iter().map(u32::to_string).collect();
                error.hint(format!("nearest sizes that fit: {}", sizes.join(", ")))
            });
        }
        warnings.push(message);
        Ok(true)
    }
}

/// Largest effective configuration: tasks get it as one variable of their environment, and the kernel takes no longer
/// one than 128 KiB, name included.
const CONFIG_LIMIT_BYTES: usize = 128 * 1024 - 64;

fn check_size(config: &ExperimentConfig) -> AppResult<()> {
    let size = config.to_json().to_string().len();
    if size <= CONFIG_LIMIT_BYTES {
        return Ok(());
    }
    Err(AppError::invalid(format!(
        "the effective configuration has {size} bytes as JSON; tasks can be given at most {CONFIG_LIMIT_BYTES}"
    ))
    .hint("put large values into a file of the context directory and name the file in the configuration"))
}

/// Mistakes in a configuration as one answer: the text lists all, and each is there by itself.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the shape that map_err wants"
)]
pub fn config_error(errors: ConfigErrors) -> AppError {
    document_error("the experiment's configuration", &errors)
}

/// As [`config_error`], for another kind of document.
pub(crate) fn document_error(what: &str, errors: &ConfigErrors) -> AppError {
    let mut error = AppError::invalid(format!("{what} cannot be used:\n{errors}"));
    error.details = errors.0.iter().map(ConfigError::to_json).collect();
    error
}

/// A name for an experiment that brings none: `Experiment (adjective-colour-animal)`.
fn generated_name() -> String {
    const FIRST: [&str; 16] = [
        "brave", "calm", "clever", "eager", "fair", "fond", "gentle", "glad", "keen", "kind",
        "lively", "merry", "neat", "proud", "quick", "wise",
    ];
    const SECOND: [&str; 16] = [
        "amber", "azure", "bronze", "coral", "crimson", "emerald", "golden", "indigo", "ivory",
        "jade", "lilac", "ochre", "pearl", "ruby", "silver", "teal",
    ];
    const THIRD: [&str; 16] = [
        "badger", "crane", "dolphin", "falcon", "fox", "heron", "ibex", "lynx", "marten", "otter",
        "owl", "panda", "raven", "seal", "tern", "wren",
    ];
    let bits: [u8; 3] = rand::random();
    let pick = |words: [&'static str; 16], byte: u8| words[usize::from(byte) % words.len()];
    format!(
        "Experiment ({}-{}-{})",
        pick(FIRST, bits[0]),
        pick(SECOND, bits[1]),
        pick(THIRD, bits[2])
    )
}
