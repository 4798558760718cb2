//! The specification of a container that a place is to start: rows are loaded and converted into facts, `det-taskspec`
//! makes the specification, and the container's token is stored.

pub mod identity;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use det_ids::{AllocationId, ClusterId, ContainerId, MasterId, PlaceId, UserId};
use det_lifecycle::object::ObjectKind;
use det_rm::{ContainerStart, Origin, PlacedNamespace};
use det_store::allocations::{self, AllocationRow, ContainerRow};
use det_store::experiments::JobRow;
use det_store::{Conn, task_documents};
use det_taskspec::{
    ClusterFacts, ContainerRequest, DeviceKind, KindFacts, PlaceFacts, RunsIn, SlotGrant,
    SpecError, StorageFacts, TaskFacts, TaskKind, TaskUser, TrialFacts, container_spec,
    service_ports,
};

use crate::app::configs::{Configs, launched_config};
use crate::app::context::Context;
use crate::app::existing;
use crate::app::homes::KnownHomes;
use crate::app::pools::Pools;
use crate::app::specs::identity::TaskUsers;
use crate::app::ssh_keys::LaunchKeys;
use crate::auth::{Auth, User, new_token, token_hash};
use crate::error::{AppError, AppResult};
use crate::live::{Live, StartableContainer};

/// Tokens that were made when their containers were placed, until their places receive them. Only their hashes are
/// stored: after a restart of the master, and for a start that is repeated, another token is made.
#[derive(Clone, Default)]
pub struct FreshTokens {
    inner: Arc<Mutex<HashMap<ContainerId, String>>>,
}

impl FreshTokens {
    fn lock(&self) -> MutexGuard<'_, HashMap<ContainerId, String>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn keep(&self, container_id: ContainerId, token: String) {
        self.lock().insert(container_id, token);
    }

    pub(crate) fn take(&self, container_id: &ContainerId) -> Option<String> {
        self.lock().remove(container_id)
    }
}

/// Identities that tasks are given.
#[derive(Debug, Clone)]
pub struct MasterIdentity {
    /// Of the cluster; never changes.
    pub cluster_id: ClusterId,
    /// Identity of this start of the master: another start has another.
    pub master_id: MasterId,
}

/// Makes the specifications of containers. Cheap to clone.
#[derive(Clone)]
pub struct Specs {
    pub(super) context: Context,
    pub(super) auth: Auth,
    pub(super) live: Live,
    pub(super) homes: KnownHomes,
    pub(super) task_users: TaskUsers,
    pub(super) configs: Configs,
    pub(super) pools: Pools,
    pub(super) fresh_tokens: FreshTokens,
    pub(super) identity: MasterIdentity,
    pub(super) launch_keys: LaunchKeys,
}

impl Specs {
    /// What is needed to start a container on a place, with a token of its own; `None` if it is not to run there any more.
    pub(crate) async fn of(
        &self,
        place: &PlaceId,
        container_id: &ContainerId,
    ) -> AppResult<Option<ContainerStart>> {
        let startable = self
            .live
            .look(&self.context.store, |cache| {
                cache.startable(place, container_id)
            })
            .await?;
        let Some(startable) = startable else {
            return Ok(None);
        };
        let (task, place, job, attempt) = {
            let mut conn = self.context.store.read().await?;
            let conn = &mut conn.conn();
            let task = self.task_facts(&startable.allocation, conn).await?;
            let job = existing::job(conn, &startable.allocation.job_id).await?;
            let attempts = existing::task(conn, &startable.allocation.task_id)
                .await?
                .attempts;
            let runs_in = self.pools.runs_in(&startable.allocation.resource_pool);
            let place = place_facts(&startable, runs_in, conn).await?;
            // What starts is an allocation that lives: the newest of its task.
            (task, place, job, u32::try_from(attempts).unwrap_or(0))
        };
        let known_token = self.fresh_tokens.take(container_id);
        let is_stored = known_token.is_some();
        let token = known_token.unwrap_or_else(new_token);
        let spec = container_spec(&task, &place, &token)?;
        if !is_stored {
            self.store_token(&token, &startable.allocation.id).await?;
        }
        let origin = self.origin(&startable, job, task, (attempt, place.members));
        Ok(Some(ContainerStart { spec, origin }))
    }

    /// The task of a container, and where it belongs.
    fn origin(
        &self,
        startable: &StartableContainer,
        job: JobRow,
        task: TaskFacts,
        (attempt, members): (u32, usize),
    ) -> Origin {
        let allocation = &startable.allocation;
        let homes = self.homes.get();
        let workspace = homes.workspaces.get(&job.workspace_id);
        let service_ports = service_ports(&task);
        Origin {
            job_id: job.id,
            priority: job.priority,
            resource_pool: allocation.resource_pool.clone(),
            workspace_id: job.workspace_id,
            namespace: allocation.namespace.clone().map(|name| PlacedNamespace {
                made: homes.made_for(job.workspace_id) == Some(name.as_str()),
                name,
            }),
            workspace_name: workspace.map_or_else(String::new, |row| row.name.clone()),
            owner_name: task.owner_name,
            experiment_id: allocation.experiment_id,
            trial_id: allocation.trial_id,
            run_id: allocation.run_id,
            attempt,
            preemptible: allocation.preemptible,
            service_ports,
            member: u32::try_from(startable.container.member).unwrap_or(0),
            members,
            pod_spec: task.request.pod_spec,
        }
    }

    /// Stores the hash of a container's token.
    async fn store_token(&self, token: &str, allocation_id: &AllocationId) -> AppResult<()> {
        let (hash, allocation_id) = (token_hash(token), allocation_id.clone());
        self.context
            .write(move |tx| {
                Box::pin(async move {
                    allocations::insert_token(&mut tx.conn(), &hash, &allocation_id).await?;
                    Ok::<_, AppError>(())
                })
            })
            .await
    }

    /// What the rows and the configuration contain of an allocation's task.
    async fn task_facts(
        &self,
        allocation: &AllocationRow,
        conn: &mut Conn<'_>,
    ) -> AppResult<TaskFacts> {
        match allocation.kind {
            TaskKind::Trial => self.trial_facts(allocation, conn).await,
            TaskKind::Notebook
            | TaskKind::Shell
            | TaskKind::Command
            | TaskKind::Tensorboard
            | TaskKind::CheckpointGc
            | TaskKind::Generic => self.launched_facts(allocation, conn).await,
        }
    }

    async fn trial_facts(
        &self,
        allocation: &AllocationRow,
        conn: &mut Conn<'_>,
    ) -> AppResult<TaskFacts> {
        let trial_id = existing::trial_of(&allocation.task_id, allocation.trial_id)?;
        let trial = existing::trial(conn, trial_id).await?;
        let experiment = existing::experiment(conn, trial.experiment_id).await?;
        let owner = self.owner(experiment.owner_id)?;
        let config = self.configs.of(&experiment)?;
        let clusters_own = self.context.config();
        let clusters_own = clusters_own.checkpoint_storage.as_ref();
        let user = self.task_users.in_project(experiment.project_id, &owner);
        let of_kind = OfKind {
            owner,
            user,
            request: config.container_request(),
            storage: Some(config.checkpoint_storage.facts(clusters_own)),
            kind: KindFacts::Trial(TrialFacts {
                trial_id: trial.id,
                experiment_id: experiment.id,
                run_id: allocation.run_id,
                port_step: allocation
                    .port_step
                    .and_then(|step| u16::try_from(step).ok()),
                launch_keys: self.launch_keys.of(&allocation.id)?,
                seed: trial.seed,
                hparams: trial.hparams,
                experiment_config: experiment.config,
                latest_checkpoint: trial.latest_checkpoint,
                latest_checkpoint_steps: trial.latest_checkpoint_steps,
                warm_start_checkpoint: trial.warm_start_checkpoint,
                system_metrics: config.profiling.enabled,
            }),
        };
        Ok(self.facts(allocation, of_kind))
    }

    async fn launched_facts(
        &self,
        allocation: &AllocationRow,
        conn: &mut Conn<'_>,
    ) -> AppResult<TaskFacts> {
        let task_id = &allocation.task_id;
        let task = existing::task(conn, task_id).await?;
        let job = existing::job(conn, &task.job_id).await?;
        let document = task_documents::find(conn, task_id).await?;
        let mut document =
            document.ok_or_else(|| AppError::not_found(ObjectKind::TaskConfiguration, task_id))?;
        if let Some(port) = service_port(allocation) {
            document.details.give_port(port);
        }
        let owner = self.owner(task.owner_id)?;
        let user = self.task_users.in_workspace(job.workspace_id, &owner);
        let config = launched_config(&document)?;
        let of_kind = OfKind {
            owner,
            user,
            request: config.container_request(),
            storage: None,
            kind: KindFacts::Launched(document.details),
        };
        Ok(self.facts(allocation, of_kind))
    }

    fn owner(&self, id: UserId) -> AppResult<User> {
        let owner = self.auth.user(id);
        owner.ok_or_else(|| AppError::not_found(ObjectKind::User, id))
    }

    fn facts(&self, allocation: &AllocationRow, of_kind: OfKind) -> TaskFacts {
        let OfKind {
            owner,
            user,
            request,
            storage,
            kind,
        } = of_kind;
        let service = self.context.config();
        let defaults = self.pools.container_defaults(&allocation.resource_pool);
        TaskFacts {
            task_id: allocation.task_id.clone(),
            allocation_id: allocation.id.clone(),
            description: allocation.label().to_string(),
            owner_id: owner.id,
            user,
            owner_name: owner.username.clone(),
            request,
            defaults: defaults.pool_defaults(),
            storage,
            cluster: ClusterFacts {
                cluster_id: self.identity.cluster_id.clone(),
                master_id: self.identity.master_id.clone(),
                pachyderm_address: service.pachyderm_address().map(str::to_owned),
            },
            kind,
        }
    }
}

/// Port of the service that the kind of an allocation's task brings; `None` = none, or that of the task's document.
pub(crate) fn service_port(allocation: &AllocationRow) -> Option<u16> {
    (allocation.service_port).and_then(|port| u16::try_from(port).ok())
}

/// What is loaded in another way for tasks of different kinds.
struct OfKind {
    owner: User,
    user: TaskUser,
    request: ContainerRequest,
    storage: Option<StorageFacts>,
    kind: KindFacts,
}

/// What the rows contain of a container's place.
async fn place_facts(
    startable: &StartableContainer,
    runs_in: RunsIn,
    conn: &mut Conn<'_>,
) -> AppResult<PlaceFacts> {
    let container = &startable.container;
    let members = members(startable, conn).await?;
    Ok(PlaceFacts {
        container_id: container.id.clone(),
        device_kind: (startable.place.capacity.devices().iter())
            .find(|device| container.slots.contains(&device.id))
            .map_or(DeviceKind::Cpu, |device| device.kind),
        slots: SlotGrant::new(
            container.slots.iter().copied().collect(),
            startable.place.capacity.is_named(),
        ),
        members: members.len(),
        runs_in,
    })
}

/// All containers of an allocation in the order of their ranks, those that have exited among them.
async fn members(
    startable: &StartableContainer,
    conn: &mut Conn<'_>,
) -> AppResult<Vec<Arc<ContainerRow>>> {
    let held: usize = (startable.alive.iter())
        .map(|container| container.slots.len())
        .sum();
    let requested = usize::try_from(startable.allocation.slots).unwrap_or(0);
    if held >= requested {
        return Ok(startable.alive.clone());
    }
    // Ranks may end before others of their gang have started.
    let rows = allocations::containers(conn, &startable.allocation.id).await?;
    Ok(rows.into_iter().map(Arc::new).collect())
}

impl From<SpecError> for AppError {
    fn from(error: SpecError) -> Self {
        Self::invalid(error.to_string())
    }
}
