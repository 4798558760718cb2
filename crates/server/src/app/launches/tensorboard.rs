//! What only `TensorBoards` have: experiments and trials whose files they show, in storage that they mount.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use det_authz::Kind;
use det_config::MasterConfig;
use det_config::experiment::ExperimentConfig;
use det_config::policies::{Policies, Workload};
use det_config::storage::StorageLocation;
use det_config::task::{LaunchKind, TaskConfig};
use det_ids::{ClusterId, ExperimentId, TrialId, WorkspaceId};
use det_store::experiments::ExperimentRow;
use det_store::trials::{self, Sort};
use det_taskspec::{
    BindMount, Mount, SHARED_FS_DIR, SharedFs, TensorBoardDetails, TensorBoardSource,
};
use serde_json::json;

use super::{LaunchRequest, Launches, idle_seconds};
use crate::app::{existing, reads};
use crate::auth::{Actor, new_token};
use crate::error::{AppError, AppResult, ErrorKind};

/// Trials that one TensorBoard shows at most: it reads all their files, again and again.
const MOST_TRIALS: usize = 100;
/// Experiments that one TensorBoard shows at most.
const MOST_EXPERIMENTS: usize = 100;

/// Bytes of the storage path of an experiment at most: the longest that Linux takes.
const LONGEST_PATH: usize = 4096;
/// Bytes of the paths and options of a TensorBoard at most: they are read with every list of tasks.
const MOST_BYTES: usize = 256 << 10;

/// What a TensorBoard is to show.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TensorBoardRequest {
    /// Experiments, with all their trials, or the best of very many.
    pub experiment_ids: Vec<ExperimentId>,
    /// Trials to show in addition to those of the experiments.
    pub trial_ids: Vec<TrialId>,
}

/// One experiment, of which something is shown.
struct ShownExperiment {
    row: ExperimentRow,
    config: Arc<ExperimentConfig>,
    /// The trials; `None` = all.
    trials: Option<Vec<TrialId>>,
    /// Whether everything of it that is shown has ended.
    has_ended: bool,
    /// Whether it belongs to the user who launches the TensorBoard. The image and the mounts of others are theirs to choose:
    /// they would bring code into the task of a user who looks at their metrics.
    is_own: bool,
}

/// What a TensorBoard is to show, loaded.
pub(super) struct Exhibits {
    asked: TensorBoardRequest,
    /// By experiment and whether all of it was asked for.
    shown: Vec<ShownExperiment>,
}

impl Launches {
    /// Loads what a TensorBoard is to show; `None` = the task is of another kind.
    pub(super) async fn exhibits(
        &self,
        actor: &Actor,
        request: &LaunchRequest,
    ) -> AppResult<Option<Exhibits>> {
        if request.kind != LaunchKind::Tensorboard {
            return Ok(None);
        }
        reads::require(actor, Kind::Experiment, "experiments")?;
        let mut asked = request.tensorboard.clone();
        asked.experiment_ids.sort_unstable();
        asked.experiment_ids.dedup();
        asked.trial_ids.sort_unstable();
        asked.trial_ids.dedup();
        let (experiments, single) = (asked.experiment_ids.len(), asked.trial_ids.len());
        if experiments + single == 0 {
            return Err(AppError::invalid(
                "a TensorBoard needs something to show: name one experiment or trial at least",
            ));
        }
        if experiments > MOST_EXPERIMENTS || single > MOST_TRIALS {
            return Err(AppError::invalid(format!(
                "a TensorBoard shows {MOST_EXPERIMENTS} experiments and {MOST_TRIALS} single trials at most, and this asks for \
                 {experiments} and {single}"
            ))
            .hint("launch several TensorBoards"));
        }
        let mut conn = self.context.store.read().await?;
        let conn = &mut conn.conn();
        let mut shown = Vec::new();
        for id in &asked.experiment_ids {
            let row = existing::experiment(conn, *id).await?;
            let config = self.configs.of(&row)?;
            let descending = !config.searcher.config.smaller_is_better;
            let limit = i64::try_from(MOST_TRIALS).unwrap_or(i64::MAX);
            let sort = Sort::BestValidation;
            let best = trials::list(conn, *id, None, sort, descending, 0, limit).await?;
            let all = usize::try_from(best.1).unwrap_or(usize::MAX);
            let best = best.0.into_iter().map(|trial| trial.id).collect();
            let trials = (all > MOST_TRIALS).then_some(best);
            shown.push(ShownExperiment {
                has_ended: !row.state.is_live(),
                is_own: row.owner_id == actor.user().id,
                row,
                config,
                trials,
            });
        }
        let mut of_experiments: BTreeMap<ExperimentId, Vec<TrialId>> = BTreeMap::new();
        let mut live = BTreeSet::new();
        for id in &asked.trial_ids {
            let trial = existing::trial(conn, *id).await?;
            if trial.ended_at.is_none() {
                live.insert(trial.experiment_id);
            }
            of_experiments
                .entry(trial.experiment_id)
                .or_default()
                .push(*id);
        }
        for (id, trials) in of_experiments {
            let row = existing::experiment(conn, id).await?;
            let config = self.configs.of(&row)?;
            shown.push(ShownExperiment {
                has_ended: !live.contains(&id),
                is_own: row.owner_id == actor.user().id,
                row,
                config,
                trials: Some(trials),
            });
        }
        Ok(Some(Exhibits { asked, shown }))
    }
}

impl Launches {
    /// Refuses to mount what today's policies over the experiments no longer allow their storage to be: an experiment may
    /// be older than they are.
    pub(super) async fn require_allowed_storage(&self, exhibits: &Exhibits) -> AppResult<()> {
        let homes = self.homes.get();
        let mut of_workspaces: BTreeMap<WorkspaceId, Vec<Policies>> = BTreeMap::new();
        for shown in &exhibits.shown {
            let workspace = homes.project(shown.row.project_id)?.1.id;
            let policies = match of_workspaces.entry(workspace) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    new.insert(self.policies.over(workspace, Workload::Experiment).await?)
                }
            };
            let location = &shown.config.checkpoint_storage.location;
            let refused = |path: &str, value: &str| {
                let by = policies.iter().rev().find_map(|policies| {
                    let fixed = policies.fixes_otherwise(path, &json!(value))?;
                    Some((policies, fixed))
                });
                by.map(|(policies, fixed)| {
                    not_allowed(
                        shown.row.id,
                        path,
                        value,
                        &policies.scope,
                        &fixed.to_string(),
                    )
                })
            };
            let refusal = match location {
                StorageLocation::SharedFs { host_path, .. } => {
                    refused("checkpoint_storage.type", location.type_name())
                        .or_else(|| refused("checkpoint_storage.host_path", host_path))
                }
                StorageLocation::Directory { container_path } => {
                    let mounts = shown.config.bind_mounts.iter();
                    let mut covering = mounts.filter(|mount| {
                        Path::new(container_path).starts_with(&mount.container_path)
                    });
                    covering.find_map(|mount| {
                        let (place, host) = (&mount.container_path, &mount.host_path);
                        let mut by = policies.iter().rev();
                        let (policies, fixed) =
                            by.find_map(|by| Some((by, by.mounts_otherwise(place, host)?)))?;
                        let path = format!("bind_mounts at \"{place}\"");
                        Some(not_allowed(
                            shown.row.id,
                            &path,
                            host,
                            &policies.scope,
                            &fixed,
                        ))
                    })
                }
                StorageLocation::S3 { .. }
                | StorageLocation::Gcs { .. }
                | StorageLocation::Azure { .. } => None,
            };
            if let Some(refusal) = refusal {
                return Err(refusal);
            }
        }
        Ok(())
    }
}

/// The storage of an experiment is not what policies allow today.
fn not_allowed(id: ExperimentId, path: &str, value: &str, scope: &str, fixed: &str) -> AppError {
    AppError::new(
        ErrorKind::Forbidden,
        format!(
            "the files of experiment {id} cannot be shown: its {path} is \"{value}\", and the policies of {scope} fix it to \
             {fixed}"
        ),
    )
    .hint(
        "`det config-policies describe experiment` shows the policies of the cluster; an administrator can change them, or \
         have the files moved",
    )
}

impl Exhibits {
    /// What the configuration of the TensorBoard is laid over: the image of the actor's own newest experiment, the
    /// credentials for its registry, and these mounts.
    pub(super) fn underlay(&self, mounts: &[BindMount]) -> Option<(String, String)> {
        let own = self.shown.iter().filter(|shown| shown.is_own);
        let newest = own.max_by_key(|shown| shown.row.id)?;
        let environment = &newest.config.environment;
        let mut under = json!({"environment": {"image": environment.image}});
        if !mounts.is_empty() {
            under["bind_mounts"] = json!(mounts);
        }
        if let Some(auth) = &environment.registry_auth {
            under["environment"]["registry_auth"] = json!(auth);
        }
        Some((format!("experiment {}", newest.row.id), under.to_string()))
    }

    /// The mounts of the actor's own experiments, if the configuration of the TensorBoard wants them. Policies are laid
    /// over them as over its own, those of today.
    ///
    /// # Errors
    /// Two experiments have different host directories at one path.
    pub(super) fn inherited(&self, config: &TaskConfig) -> AppResult<Vec<BindMount>> {
        let mut mounts: Vec<BindMount> = Vec::new();
        if !config.inherit_mounts {
            return Ok(mounts);
        }
        let own = self.shown.iter().filter(|shown| shown.is_own);
        for mount in own.flat_map(|shown| &shown.config.bind_mounts) {
            let known = mounts
                .iter()
                .find(|known| known.container_path == mount.container_path);
            match known {
                None => mounts.push(mount.clone()),
                Some(known) if known.host_path == mount.host_path => {}
                Some(known) => {
                    return Err(at_one_place(
                        &known.host_path,
                        &mount.host_path,
                        &mount.container_path,
                    ));
                }
            }
        }
        Ok(mounts)
    }

    /// The details of the TensorBoard, whose port is given to it when it is stored, and what its owner should know.
    pub(super) fn details(
        self,
        config: &TaskConfig,
        master: &MasterConfig,
        cluster_id: &ClusterId,
    ) -> AppResult<(TensorBoardDetails, Vec<String>)> {
        let mut storage = Storage::new(master);
        let mut sources = Vec::new();
        let mut warnings = Vec::new();
        for shown in &self.shown {
            let id = shown.row.id;
            if config.inherit_mounts && !shown.is_own && !shown.config.bind_mounts.is_empty() {
                warnings.push(format!(
                    "experiment {id} belongs to another user: its host directories are not taken along"
                ));
            }
            let root = storage.root_of(id, &shown.config, config, &mut warnings)?;
            if root.len() > LONGEST_PATH {
                return Err(AppError::invalid(format!(
                    "the path of the files of experiment {id} has {} bytes; {LONGEST_PATH} are allowed",
                    root.len()
                )));
            }
            let experiment = format!("{root}/{cluster_id}/tensorboard/experiment/{id}");
            let source = |name: String, path: String| TensorBoardSource { name, path };
            match &shown.trials {
                None => sources.push(source(format!("experiment_{id}"), experiment)),
                Some(trials) => sources.extend(trials.iter().map(|trial| {
                    source(
                        format!("trial_{trial}"),
                        format!("{experiment}/trial/{trial}"),
                    )
                })),
            }
        }
        sources.sort_by(|a, b| a.name.cmp(&b.name));
        sources.dedup();
        require_small(&sources, &storage.mounts, &config.tensorboard_args)?;
        let details = TensorBoardDetails {
            all_ended: self.shown.iter().all(|shown| shown.has_ended),
            port: 0,
            key: new_token(),
            experiment_ids: self.asked.experiment_ids,
            trial_ids: self.asked.trial_ids,
            sources,
            mounts: storage.mounts,
            args: config.tensorboard_args.clone(),
            idle_timeout: idle_seconds(config, LaunchKind::Tensorboard, master),
        };
        Ok((details, warnings))
    }
}

/// The storage of several experiments, in one container.
struct Storage<'a> {
    master: &'a MasterConfig,
    mounts: Vec<Mount>,
}

impl<'a> Storage<'a> {
    fn new(master: &'a MasterConfig) -> Self {
        Self {
            master,
            mounts: Vec::new(),
        }
    }

    /// The path in the container of an experiment's storage, which is mounted there if it is not yet.
    fn root_of(
        &mut self,
        id: ExperimentId,
        config: &ExperimentConfig,
        own: &TaskConfig,
        warnings: &mut Vec<String>,
    ) -> AppResult<String> {
        let location = &config.checkpoint_storage.location;
        match location {
            StorageLocation::SharedFs { host_path, .. } => {
                let below = location.shared_fs_subdirectory().ok_or_else(|| {
                    AppError::precondition(format!(
                        "the checkpoint storage of experiment {id} leads out of \"{host_path}\""
                    ))
                })?;
                let mount = self.shared_fs(config)?;
                Ok(Path::new(&mount).join(below).display().to_string())
            }
            StorageLocation::Directory { container_path } => {
                let covers = |mount: &&BindMount| {
                    Path::new(container_path).starts_with(&mount.container_path)
                };
                if own.bind_mounts.iter().any(|mount| covers(&mount)) {
                    // What the user mounts there counts.
                    return Ok(container_path.clone());
                }
                let of_experiment = config.bind_mounts.iter().filter(covers);
                let nearest = of_experiment.max_by_key(|mount| mount.container_path.len());
                let Some(mount) = nearest else {
                    warnings.push(format!(
                        "the files of experiment {id} are in its directory \"{container_path}\", and neither its configuration \
                         nor this one mounts a host directory there: a TensorBoard that does not share the directory by \
                         itself shows nothing"
                    ));
                    return Ok(container_path.clone());
                };
                let below = Path::new(container_path).strip_prefix(&mount.container_path);
                let host = SharedFs {
                    host_path: mount.host_path.clone(),
                    propagation: mount.propagation.clone(),
                    is_clusters_own: false,
                    clusters_directory: None,
                };
                let root = self.neutral(host, false)?;
                let below = below.unwrap_or_else(|_| Path::new(""));
                Ok(Path::new(&root).join(below).display().to_string())
            }
            StorageLocation::S3 { .. }
            | StorageLocation::Gcs { .. }
            | StorageLocation::Azure { .. } => {
                let kind = location.type_name();
                Err(AppError::new(
                    ErrorKind::NotBuilt,
                    format!(
                        "the files of experiment {id} are in checkpoint storage of type \"{kind}\", which TensorBoards of this \
                         version do not read"
                    ),
                )
                .hint("they read shared_fs and directory storage"))
            }
        }
    }

    fn shared_fs(&mut self, config: &ExperimentConfig) -> AppResult<String> {
        let clusters_own = self.master.checkpoint_storage.as_ref();
        let facts = config.checkpoint_storage.facts(clusters_own);
        let shared = facts.shared_fs.ok_or_else(|| {
            AppError::internal(anyhow::anyhow!(
                "shared_fs storage without a host directory"
            ))
        })?;
        self.neutral(shared, true)
    }

    /// Mounts a host directory for reading only, at a path that no experiment chooses. The first one has the path that all
    /// tasks know. `create`: whether it is made where it does not exist yet.
    fn neutral(&mut self, shared: SharedFs, create: bool) -> AppResult<String> {
        let is_storage = |mount: &&Mount| mount.container_path.starts_with(SHARED_FS_DIR);
        let known = self.mounts.iter().filter(is_storage);
        if let Some(mount) = known.clone().find(|m| m.host_path == shared.host_path) {
            return Ok(mount.container_path.clone());
        }
        let container_path = match known.count() {
            0 => SHARED_FS_DIR.to_owned(),
            others => format!("{SHARED_FS_DIR}_{}", others + 1),
        };
        self.add(Mount {
            host_path: shared.host_path,
            container_path: container_path.clone(),
            read_only: true,
            propagation: shared.propagation,
            create,
            trusted: shared.is_clusters_own,
            shared: None,
        })?;
        Ok(container_path)
    }

    fn add(&mut self, mount: Mount) -> AppResult<()> {
        let place = &mount.container_path;
        match self
            .mounts
            .iter()
            .find(|known| known.container_path == *place)
        {
            None => self.mounts.push(mount),
            Some(known) if known.host_path == mount.host_path => {}
            Some(known) => {
                return Err(at_one_place(&known.host_path, &mount.host_path, place));
            }
        }
        Ok(())
    }
}

/// Two host directories are to be mounted at one path.
fn at_one_place(one: &str, other: &str, place: &str) -> AppError {
    AppError::invalid(format!(
        "what the TensorBoard is to show has \"{one}\" and \"{other}\" of the hosts at the same path \"{place}\""
    ))
    .hint("show it in several TensorBoards")
}

/// Refuses what would take much memory, and paths that the list of sources cannot hold.
fn require_small(
    sources: &[TensorBoardSource],
    mounts: &[Mount],
    args: &[String],
) -> AppResult<()> {
    if let Some(bad) = sources.iter().find(|source| source.path.contains('\n')) {
        return Err(AppError::invalid(format!(
            "a TensorBoard cannot show files in \"{}\": the path has a line end",
            bad.path.escape_debug()
        )));
    }
    let sources = sources.iter().map(|source| source.path.len());
    let mounts = mounts
        .iter()
        .map(|mount| mount.host_path.len() + mount.container_path.len());
    let bytes: usize = sources
        .chain(mounts)
        .chain(args.iter().map(String::len))
        .sum();
    if bytes > MOST_BYTES {
        return Err(AppError::invalid(format!(
            "the paths and options of this TensorBoard have {bytes} bytes; {MOST_BYTES} are allowed"
        ))
        .hint("show fewer experiments at once"));
    }
    Ok(())
}
