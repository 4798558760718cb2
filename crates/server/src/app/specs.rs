//! The specification of a container that a place is to start: rows are loaded and converted into facts, `det-taskspec`
//! makes the specification, and the container's token is stored.

pub mod identity;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use det_ids::{AllocationId, ContainerId, PlaceId, SlotId};
use det_store::Conn;
use det_store::allocations::{self, AllocationRow, ContainerRow};
use det_taskspec::{
    ClusterFacts, ContainerSpec, DeviceKind, Granted, KindFacts, PlaceFacts, SpecError, TaskFacts,
    TaskKind, TrialFacts, container_spec,
};

use crate::app::configs::Configs;
use crate::app::context::Context;
use crate::app::existing;
use crate::app::pools::Pools;
use crate::app::specs::identity::TaskUsers;
use crate::auth::{Auth, new_token, token_hash};
use crate::error::{AppError, AppResult};
use crate::labels::TaskLabel;
use crate::live::{Live, Startable};
use crate::slots::{capacity, devices, slot_set};

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
    pub cluster_id: String,
    /// Of this start of the master.
    pub master_id: String,
}

/// Makes the specifications of containers. Cheap to clone.
#[derive(Clone)]
pub struct Specs {
    pub(super) context: Context,
    pub(super) auth: Auth,
    pub(super) live: Live,
    pub(super) task_users: TaskUsers,
    pub(super) configs: Configs,
    pub(super) pools: Pools,
    pub(super) fresh_tokens: FreshTokens,
    pub(super) identity: MasterIdentity,
}

impl Specs {
    /// The specification of a container that is to run on a place, with a token of its own; `None` if it is not to run
    /// there any more.
    pub(crate) async fn of(
        &self,
        place: &PlaceId,
        container_id: &ContainerId,
    ) -> AppResult<Option<ContainerSpec>> {
        let startable = self
            .live
            .look(&self.context.store, |cache| {
                cache.startable(place, container_id)
            })
            .await?;
        let Some(startable) = startable else {
            return Ok(None);
        };
        let (task, place) = {
            let mut conn = self.context.store.read().await?;
            let conn = &mut conn.conn();
            let task = self.task_facts(&startable.allocation, conn).await?;
            (task, place_facts(&startable, conn).await?)
        };
        let known_token = self.fresh_tokens.take(container_id);
        let is_stored = known_token.is_some();
        let token = known_token.unwrap_or_else(new_token);
        let spec = container_spec(&task, &place, &token)?;
        if !is_stored {
            self.store_token(&token, &startable.allocation.id).await?;
        }
        Ok(Some(spec))
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
        let trial_id = match (allocation.kind, allocation.trial_id) {
            (TaskKind::Trial, Some(trial_id)) => trial_id,
            (TaskKind::Trial, None) => {
                return Err(AppError::invalid(format!(
                    "task \"{}\" is of the kind TRIAL and names no trial",
                    allocation.task_id
                )));
            }
            (
                kind @ (TaskKind::Notebook
                | TaskKind::Shell
                | TaskKind::Command
                | TaskKind::Tensorboard
                | TaskKind::CheckpointGc
                | TaskKind::Generic),
                _,
            ) => {
                return Err(AppError::invalid(format!(
                    "the task is of the kind {}, and this master starts tasks of the kind TRIAL only",
                    kind.name()
                )));
            }
        };
        let trial = existing::trial(conn, trial_id).await?;
        let experiment = existing::experiment(conn, trial.experiment_id).await?;
        let owner = self
            .auth
            .user(experiment.owner_id)
            .ok_or_else(|| AppError::not_found("user", experiment.owner_id))?;
        let config = self.configs.of(&experiment)?;
        let service = self.context.config();
        Ok(TaskFacts {
            task_id: allocation.task_id.clone(),
            allocation_id: allocation.id.clone(),
            description: TaskLabel::from(allocation).to_string(),
            owner_id: experiment.owner_id,
            user: self.task_users.in_project(experiment.project_id, &owner),
            owner_name: owner.username.clone(),
            request: config.container_request(),
            defaults: self
                .pools
                .container_defaults(&allocation.resource_pool)
                .pool_defaults(),
            storage: Some(
                config
                    .checkpoint_storage
                    .facts(service.checkpoint_storage.as_ref()),
            ),
            cluster: ClusterFacts {
                cluster_id: self.identity.cluster_id.clone(),
                master_id: self.identity.master_id.clone(),
                pachyderm_address: service.pachyderm_address().map(str::to_owned),
                reserved_ports: service.reserved_ports.clone(),
            },
            kind: KindFacts::Trial(TrialFacts {
                trial_id: trial.id,
                experiment_id: experiment.id,
                run_id: allocation.run_id,
                seed: trial.seed,
                hparams: trial.hparams,
                experiment_config: experiment.config,
                latest_checkpoint: trial.latest_checkpoint,
                latest_checkpoint_steps: trial.latest_checkpoint_steps,
                warm_start_checkpoint: trial.warm_start_checkpoint,
            }),
        })
    }
}

/// What the rows contain of a container's place.
async fn place_facts(startable: &Startable, conn: &mut Conn<'_>) -> AppResult<PlaceFacts> {
    let container = &startable.container;
    let slots = slot_set(&container.slots)?;
    let members = members(startable, conn).await?;
    let chief_slots = members.first().map_or("[]", |chief| chief.slots.as_str());
    Ok(PlaceFacts {
        container_id: container.id.clone(),
        device_kind: devices(&startable.place)?
            .iter()
            .find(|device| slots.contains(&device.id.0))
            .map_or(DeviceKind::Cpu, |device| device.kind),
        slots: Granted::new(
            slots.into_iter().map(SlotId).collect(),
            capacity(&startable.place)?.is_named(),
        ),
        members: members.len(),
        chief_slot: slot_set(chief_slots)?.first().copied().map(SlotId),
    })
}

/// All containers of an allocation in the order of their ranks, those that have exited among them.
async fn members(startable: &Startable, conn: &mut Conn<'_>) -> AppResult<Vec<Arc<ContainerRow>>> {
    let mut held = 0;
    for container in &startable.alive {
        held += slot_set(&container.slots)?.len();
    }
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
