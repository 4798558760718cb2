//! Checking a submission: its configuration completed, and held against what this cluster has.

use std::collections::BTreeSet;

use det_config::errors::{ConfigError, ConfigErrors};
use det_config::experiment::{CompletionDefaults, ExperimentConfig, Submitted};
use det_ids::{AllocationId, JobId, Micros, TaskId};
use det_scheduler::{Request, can_ever_fit};
use det_searcher::Search;
use serde_json::json;

use crate::app::experiments::NewExperimentRequest;
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
}

impl Master {
    /// Parses, completes and checks a submission against the cluster.
    pub(crate) async fn check(&self, request: &NewExperimentRequest) -> AppResult<Checked> {
        let (text, long) = (request.config.clone(), request.config.len() >= LONG_CONFIG);
        let submitted = beside(long, move || Submitted::parse(&text))
            .await?
            .map_err(config_error)?;
        let mut warnings = submitted.warnings.clone();
        let placement = submitted.placement();
        for (what, given) in [
            ("workspace", &placement.workspace),
            ("project", &placement.project),
        ] {
            if let Some(name) = given
                && name != "Uncategorized"
            {
                return Err(AppError::not_found(what, name).hint(format!(
                    "this version has one {what}: Uncategorized; leave \"{what}\" out"
                )));
            }
        }
        let pool = match &placement.resource_pool {
            Some(pool) => pool.clone(),
            None => {
                let default = if placement.slots_per_trial == 0 {
                    self.default_aux_pool()
                } else {
                    self.default_compute_pool()
                };
                default.ok_or_else(|| {
                    AppError::invalid(
                        "resources.resource_pool is missing, and this cluster has no default pool",
                    )
                    .hint(format!("choose one of: {}", self.pool_names().join(", ")))
                })?
            }
        };
        // Said together with what is wrong in the rest.
        let no_such_pool = !self.pool_names().contains(&pool);
        let container_defaults = self.container_defaults(&pool);
        let storage = self
            .config
            .checkpoint_storage
            .as_ref()
            .map(serde_json::to_value)
            .transpose();
        let storage = storage.map_err(AppError::internal)?;
        let default_priority = Some(self.default_priority(&pool));
        let completed = beside(long, move || {
            submitted.complete(&CompletionDefaults {
                name: generated_name(),
                experiment_seed: u32::try_from(
                    (det_store::now() / 1_000_000) & i64::from(u32::MAX),
                )
                .unwrap_or(0),
                checkpoint_storage: storage,
                task_container_defaults: &container_defaults,
                default_priority,
                managed: true,
            })
        })
        .await?;
        let mut config = match (completed, no_such_pool) {
            (Ok(config), false) => config,
            (completed, no_such_pool) => {
                let mut errors = completed.err().unwrap_or_else(|| ConfigErrors(Vec::new()));
                if no_such_pool {
                    let message = format!("pool \"{pool}\" does not exist");
                    let hint = format!("choose one of: {}", self.pool_names().join(", "));
                    errors.0.push(
                        ConfigError::new("resources.resource_pool", None, message).with_hint(hint),
                    );
                }
                return Err(config_error(errors));
            }
        };
        config.resources.resource_pool.clone_from(&pool);
        check_size(&config)?;
        check_mounts(&config)?;
        let slots_exceeded = self.check_capacity(&pool, &config, &mut warnings).await?;
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
        })
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
        if self.config.launch_error {
            let error = AppError::invalid(message);
            return Err(if never.nearest.is_empty() {
                error
            } else {
                let sizes: Vec<String> = never.nearest.iter().map(u32::to_string).collect();
                error.hint(format!("sizes that fit: {}", sizes.join(", ")))
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

/// Mounts that cannot work in any container.
fn check_mounts(config: &ExperimentConfig) -> AppResult<()> {
    let mut targets = BTreeSet::new();
    for (index, mount) in config.bind_mounts.iter().enumerate() {
        let refuse = |key: &str, value: &str, why: &str| {
            Err(AppError::invalid(format!(
                "bind_mounts[{index}].{key}: \"{value}\" {why}"
            )))
        };
        let climbs = |path: &str| path.split('/').any(|part| part == "..");
        if climbs(&mount.host_path) {
            return refuse("host_path", &mount.host_path, "must not contain \"..\"");
        }
        if climbs(&mount.container_path) {
            return refuse(
                "container_path",
                &mount.container_path,
                "must not contain \"..\"",
            );
        }
        let target = mount.container_path.trim_end_matches('/');
        if target == det_taskspec::RUN_DIR
            || target.starts_with(&format!("{}/", det_taskspec::RUN_DIR))
        {
            return refuse(
                "container_path",
                &mount.container_path,
                "is where the task's own files lie",
            );
        }
        if !targets.insert(target.to_owned()) {
            return refuse(
                "container_path",
                &mount.container_path,
                "is used by another bind mount already",
            );
        }
    }
    Ok(())
}

/// Mistakes in a configuration as one answer: the text lists all, and each is there by itself.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the shape that map_err wants"
)]
pub fn config_error(errors: ConfigErrors) -> AppError {
    let mut error = AppError::invalid(format!(
        "the experiment's configuration cannot be used:\n{errors}"
    ));
    error.details = errors
        .0
        .iter()
        .map(|e| json!({"path": e.path, "message": e.message, "line": e.line, "column": e.column, "hint": e.hint}))
        .collect();
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
