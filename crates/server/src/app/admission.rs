//! Whether work may come in at all: the pools it asks for, and whether what it asks for at once can ever be had.

pub(crate) mod classes;

use std::collections::BTreeSet;

use det_config::errors::ConfigError;
use det_config::submitted::{Placement, WorkSize};
use det_ids::PriorityOrder;
use det_scheduler::{SlotDemand, WaitReason, can_ever_fit};
use det_store::workspaces::WorkspaceRow;
use det_taskspec::{PlaceRuntime, RuntimeKind};

use crate::app::cluster_access::ClusterAccess;
use crate::app::context::Context;
use crate::app::managers::Managers;
use crate::app::pools::Pools;
use crate::app::snapshots::Snapshots;
use crate::error::AppResult;

/// What admission found in a submission.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// What it is refused for, to be reported together with what is wrong in the rest.
    pub(super) errors: Vec<ConfigError>,
    /// What the user should know although it is accepted.
    pub(super) warnings: Vec<String>,
}

impl Findings {
    fn missing(&mut self, path: &str, message: String, known: &[String]) {
        let hint = format!("choose one of: {}", known.join(", "));
        self.errors
            .push(ConfigError::new(path, None, message).with_hint(hint));
    }

    /// What can never run: an error, with `launch_error: false` a warning.
    pub(super) fn too_large(&mut self, refused: bool, error: ConfigError) {
        if refused {
            self.errors.push(error);
        } else {
            self.warnings.push(sentence(error));
        }
    }
}

/// An error in one line.
fn sentence(error: ConfigError) -> String {
    let ConfigError {
        path,
        message,
        hint,
        ..
    } = error;
    match hint {
        Some(hint) => format!("{path}: {message}; {hint}"),
        None => format!("{path}: {message}"),
    }
}

/// The pools that a submission may run in, the first of them first.
#[derive(Debug)]
pub(super) struct AdmittedPools {
    pub(super) pools: Vec<String>,
    /// Whether all of them are too small for it as they are.
    pub(super) slots_exceeded: bool,
}

/// What may come in at all. Cheap to clone.
#[derive(Clone)]
pub struct Admission {
    context: Context,
    managers: Managers,
    pools: Pools,
    snapshots: Snapshots,
    clusters: ClusterAccess,
}

impl Admission {
    /// Puts the service together.
    pub(crate) fn new(
        context: Context,
        (managers, pools): (Managers, Pools),
        (snapshots, clusters): (Snapshots, ClusterAccess),
    ) -> Self {
        Self {
            context,
            managers,
            pools,
            snapshots,
            clusters,
        }
    }

    /// Which of two priorities goes first in a pool.
    pub(super) fn priority_order(&self, pool: &str) -> PriorityOrder {
        self.pools.priority_order(pool)
    }

    /// The pools of a submission: those that it may choose and that could ever run work of this size. What is
    /// against it is added to `findings`.
    pub(super) async fn admit(
        &self,
        placement: &Placement,
        workspace: &WorkspaceRow,
        size: Option<WorkSize>,
        findings: &mut Findings,
    ) -> AppResult<AdmittedPools> {
        let pools = self.choose_pools(placement, workspace, size, findings);
        let Some(size) = size else {
            return Ok(AdmittedPools {
                pools,
                slots_exceeded: false,
            });
        };
        if let Some(error) = above_limit(workspace, size) {
            findings.too_large(self.context.config().launch_error, error);
        }
        let admitted = self.able(pools, workspace, size, findings).await?;
        if placement.names_image {
            self.warn_of_image(&admitted.pools, findings).await?;
        }
        Ok(admitted)
    }

    /// Warns where all that work may run on runs tasks as processes, for which an image that it names is nothing.
    async fn warn_of_image(&self, pools: &[String], findings: &mut Findings) -> AppResult<()> {
        let process = PlaceRuntime::Agent(RuntimeKind::Process);
        if self.snapshots.runtimes(pools).await? == BTreeSet::from([process]) {
            let pools: Vec<String> = pools.iter().map(|pool| format!("\"{pool}\"")).collect();
            findings.warnings.push(format!(
                "environment.image is not used: the agents of resource pool {} run tasks as processes, with what is \
                 installed on their hosts; use a pool whose agents run containers (Docker or Podman) if the task needs \
                 the image",
                pools.join(", ")
            ));
        }
        Ok(())
    }

    /// Whether tasks see the same files in two pools: their places start containers with the same, or one has no places now.
    pub(super) async fn run_alike(&self, one: &str, other: &str) -> AppResult<bool> {
        // Versions of what the nodes of a cluster run containers with make no difference.
        let kinds = async |pool: &str| -> AppResult<BTreeSet<Option<RuntimeKind>>> {
            let runtimes = self.snapshots.runtimes(&[pool.to_owned()]).await?;
            let kind = |runtime: PlaceRuntime| match runtime {
                PlaceRuntime::Agent(kind) => Some(kind),
                PlaceRuntime::Named(_) => None,
            };
            Ok(runtimes.into_iter().map(kind).collect())
        };
        let (one, other) = (kinds(one).await?, kinds(other).await?);
        Ok(one.is_empty() || other.is_empty() || !one.is_disjoint(&other))
    }

    /// What it names or policies fix, the default of its workspace, the cluster's default; empty if there is none.
    fn choose_pools(
        &self,
        placement: &Placement,
        workspace: &WorkspaceRow,
        size: Option<WorkSize>,
        findings: &mut Findings,
    ) -> Vec<String> {
        let known = self.pools.serving();
        let unknown = |pool: &String| !known.contains(pool);
        let no_such = |pool: &str| {
            let why = self.pools.unusable(pool).unwrap_or_default();
            format!("pool \"{}\" {why}", pool.escape_debug())
        };
        let several = &placement.resource_pools;
        if !several.is_empty() {
            for (index, pool) in several.iter().enumerate().filter(|(_, p)| unknown(p)) {
                let path = format!("resources.resource_pools[{index}]");
                findings.missing(&path, no_such(pool), &known);
            }
            return several.clone();
        }
        if let Some(pool) = &placement.resource_pool {
            if unknown(pool) {
                findings.missing("resources.resource_pool", no_such(pool), &known);
            }
            return vec![pool.clone()];
        }
        let (of_workspace, of_cluster) = if size.is_some_and(|size| size.slots == 0) {
            (&workspace.default_aux_pool, self.pools.default_aux_pool())
        } else {
            (
                &workspace.default_compute_pool,
                self.pools.default_compute_pool(),
            )
        };
        if let Some(pool) = of_workspace {
            if unknown(pool) {
                let name = &workspace.name;
                let message = format!(
                    "{} (it is the default of workspace \"{name}\")",
                    no_such(pool)
                );
                findings.missing("resources.resource_pool", message, &known);
            }
            return vec![pool.clone()];
        }
        if of_cluster.is_none() {
            let message = "is missing, and this cluster has no default pool".to_owned();
            findings.missing("resources.resource_pool", message, &known);
        }
        of_cluster.into_iter().collect()
    }

    /// Those of the pools that could ever run it. Others are left out; only if that is all of them it is refused.
    async fn able(
        &self,
        pools: Vec<String>,
        workspace: &WorkspaceRow,
        size: WorkSize,
        findings: &mut Findings,
    ) -> AppResult<AdmittedPools> {
        let (known, refuse) = (self.pools.serving(), self.context.config().launch_error);
        let (mut usable, mut too_small, mut unfulfillable) = (Vec::new(), Vec::new(), Vec::new());
        let mut slots_exceeded = true;
        // A name that is given twice is reported elsewhere, and there may be very many.
        let mut earlier = BTreeSet::new();
        for pool in &pools {
            if !known.contains(pool) || !earlier.insert(pool) {
                continue;
            }
            if let Some(error) = self.above_limit_of_manager(pool, workspace, size) {
                too_small.push(error);
                if refuse {
                    continue;
                }
            }
            match self.could_hold(pool, size, findings).await? {
                Fits::Yes => slots_exceeded = false,
                Fits::Perhaps => slots_exceeded &= size.slots > 0,
                Fits::OnNoPlace(error) => {
                    unfulfillable.push(error);
                    continue;
                }
                Fits::Never(error) => {
                    too_small.push(error);
                    if refuse {
                        continue;
                    }
                }
            }
            usable.push(pool.clone());
        }
        let always = unfulfillable.into_iter().map(|error| (true, error));
        let configurable = too_small.into_iter().map(|error| (refuse, error));
        for (refused, error) in always.chain(configurable) {
            if refused && !usable.is_empty() {
                let ConfigError { path, message, .. } = error;
                let left_out = format!("{path}: {message}; this pool is left out");
                findings.warnings.push(left_out);
            } else {
                findings.too_large(refused, error);
            }
        }
        Ok(AdmittedPools {
            pools: if usable.is_empty() { pools } else { usable },
            slots_exceeded,
        })
    }

    /// The error for work that is larger than all that the manager of a pool lets its workspace use at a time.
    fn above_limit_of_manager(
        &self,
        pool: &str,
        workspace: &WorkspaceRow,
        size: WorkSize,
    ) -> Option<ConfigError> {
        let (manager, limit) = self.managers.limit_in(pool, workspace.id)?;
        let (slots, name) = (size.slots, &workspace.name);
        (slots > limit).then(|| {
            let message = format!(
                "resource pool \"{pool}\": needs {slots}, and workspace \"{name}\" may use {limit} slots at a time of \
                 resource manager \"{manager}\""
            );
            let hint = format!("ask for at most {limit}, or choose a pool of another resource manager");
            ConfigError::new(size.key, None, message).with_hint(hint)
        })
    }

    /// Whether present or provisionable capacity could ever hold work of this size (`docs/contract/scheduling.md`,
    /// "Requests that can never run").
    async fn could_hold(
        &self,
        pool: &str,
        size: WorkSize,
        findings: &mut Findings,
    ) -> AppResult<Fits> {
        if let Some(trouble) = self.managers.trouble_of(pool) {
            let warning = format!("resource pool \"{pool}\": {trouble}");
            findings.warnings.push(warning);
        }
        let snapshot = self.snapshots.of_pool(pool).await?;
        // Of a pool whose places have not joined yet nothing can be ruled out, unless it is known what it can become: the
        // request waits with its reason.
        if snapshot.places.is_empty() && snapshot.settings.provisionable.is_none() {
            findings.warnings.push(format!(
                "resource pool \"{pool}\" has no places yet that run work; it waits for one"
            ));
            return Ok(Fits::Perhaps);
        }
        let ask = SlotDemand {
            slots: size.slots,
            single_place: size.is_single_node,
            excluded: &BTreeSet::new(),
        };
        let Err(never) = can_ever_fit(&snapshot, &ask) else {
            return Ok(Fits::Yes);
        };
        // Clients match these two words. More places may be added to a pool, but none that is larger than its kind.
        let on_no_place = matches!(
            never.reason,
            WaitReason::NoPlaceLargeEnough { .. } | WaitReason::ContainerTooLarge { .. }
        );
        let unfulfillable = if on_no_place {
            "request unfulfillable: "
        } else {
            ""
        };
        let message = format!("resource pool \"{pool}\": {unfulfillable}{never}");
        let error = ConfigError::new(size.key, None, message);
        let sizes: Vec<String> = never.nearest.iter().map(u32::to_string).collect();
        let mut hints = Vec::new();
        if !sizes.is_empty() {
            hints.push(format!("nearest sizes that fit: {}", sizes.join(", ")));
        }
        if on_no_place && size.is_single_node && size.may_spread {
            hints
                .push("\"resources.is_single_node: false\" lets it have several places".to_owned());
        }
        let error = if hints.is_empty() {
            error
        } else {
            error.with_hint(hints.join("; "))
        };
        Ok(if on_no_place {
            Fits::OnNoPlace(error)
        } else {
            Fits::Never(error)
        })
    }
}

/// Whether a pool could ever run work of a size.
enum Fits {
    Yes,
    /// It has no places yet.
    Perhaps,
    Never(ConfigError),
    /// It must run on one place, and none is that large: refused whatever the value of `launch_error`.
    OnNoPlace(ConfigError),
}

/// The error for work that is larger than all that their workspace may use at a time.
pub(super) fn above_limit(workspace: &WorkspaceRow, size: WorkSize) -> Option<ConfigError> {
    let slots = size.slots;
    let limit = workspace
        .max_slots
        .filter(|limit| i64::from(slots) > *limit)?;
    let name = &workspace.name;
    let message =
        format!("needs {slots}, and workspace \"{name}\" may use {limit} slots at a time");
    let hint = format!(
        "ask for at most {limit}, or have an administrator raise the limit: `det workspace edit \"{name}\" \
         --max-slots N`"
    );
    Some(ConfigError::new(size.key, None, message).with_hint(hint))
}
