//! What a trial's container runs: the experiment's configuration, made into a container specification.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use det_config::container::TaskContainerDefaults;
use det_config::experiment::{Entrypoint as ConfiguredEntrypoint, ExperimentConfig};
use det_config::storage::{CheckpointStorage, StorageLocation};
use det_ids::{AllocationId, ContainerId, SlotId, TaskId};
use det_store::Conn;
use det_store::allocations::{self, AllocationRow, ContainerRow};
use det_store::experiments::{self, ExperimentRow};
use det_store::trials::{self, TrialRow};
use det_store::workspaces::WorkspaceRow;
use det_taskspec::{
    ContainerSpec, DeviceKind, Entrypoint, Mount, RUN_DIR, SHARED_FS_DIR, Script, TaskKind,
    TaskUser,
};
use serde_json::json;

use crate::app::Master;
use crate::app::agents::{devices, slot_set};
use crate::auth::{User, new_token, token_hash};
use crate::error::{AppError, AppResult};
use crate::live::Startable;

/// Seconds between SIGTERM and SIGKILL when a task is ended gracefully.
const GRACE_SECONDS: u32 = 10;
/// Port that every trial container publishes; marks its host address (`docs/contract/task-environment.md`, "Ports").
const RENDEZVOUS_PORT: u16 = 1734;
/// First ports of the four kinds that training uses, and the step between two allocations on one host. With this step
/// no two kinds of two allocations meet.
const SSH_PORT: u16 = 12_350;
const PROCESS_PORT_1: u16 = 12_360;
const PROCESS_PORT_2: u16 = 12_365;
const C10D_PORT: u16 = 29_400;
const PORT_STEP: u16 = 20;

/// What a container's specification is made from.
struct Parts<'a> {
    container: &'a ContainerRow,
    allocation: &'a AllocationRow,
    trial: &'a TrialRow,
    experiment: &'a ExperimentRow,
    config: &'a ExperimentConfig,
    defaults: &'a TaskContainerDefaults,
    owner: &'a User,
    /// Who the task is for the operating system.
    user: TaskUser,
    members: usize,
    kind: DeviceKind,
    slots: &'a BTreeSet<u32>,
    port_offset: u16,
}

/// Tokens made when their containers were placed, until the agents are told. Only their hashes are stored: after a
/// restart, and for a start that is repeated, another token is made.
#[derive(Clone, Default)]
pub struct FreshTokens {
    inner: Arc<Mutex<HashMap<String, String>>>,
}

impl FreshTokens {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn keep(&self, container_id: String, token: String) {
        self.lock().insert(container_id, token);
    }

    pub(crate) fn take(&self, container_id: &str) -> Option<String> {
        self.lock().remove(container_id)
    }
}

impl Master {
    /// The specification of a container that is to run on an agent, with a token of its own; `None` if it is not to run
    /// there any more.
    pub(crate) async fn container_spec(
        &self,
        agent_id: &str,
        container_id: &str,
    ) -> AppResult<Option<ContainerSpec>> {
        let startable = self
            .live
            .look(&self.store, |image| image.startable(agent_id, container_id))
            .await?;
        let Some(startable) = startable else {
            return Ok(None);
        };
        let (container, allocation) = (&*startable.container, &*startable.allocation);
        let mut conn = self.store.read().await?;
        let conn = &mut conn.conn();
        let Some(trial_id) = allocation.trial_id else {
            return Ok(None);
        };
        let Some(trial) = trials::find(conn, trial_id).await? else {
            return Ok(None);
        };
        let Some(experiment) = experiments::find(conn, trial.experiment_id).await? else {
            return Ok(None);
        };
        let config = self.config_for(&experiment)?;
        let defaults = self.container_defaults(&allocation.resource_pool);
        let owner = self
            .auth
            .user(experiment.owner_id)
            .ok_or_else(|| AppError::not_found("user", experiment.owner_id))?;
        let slots = slot_set(&container.slots)?;
        let kind = devices(&startable.agent)?
            .iter()
            .find(|d| slots.contains(&d.id.0))
            .map_or(DeviceKind::Cpu, |d| d.kind);
        let members = self.members(&startable, conn).await?;
        // All members use the same ports: those of the chief's lowest slot on its agent.
        let chief = members.first().map_or("[]", |chief| chief.slots.as_str());
        let chief = slot_set(chief)?;
        let port_offset = self.port_offset(chief.first().copied(), &allocation.id);
        let known_token = self.fresh_tokens.take(container_id);
        let is_stored = known_token.is_some();
        let token = known_token.unwrap_or_else(new_token);
        let parts = Parts {
            container,
            allocation,
            trial: &trial,
            experiment: &experiment,
            config: &config,
            defaults: &defaults,
            owner: &owner,
            user: self.task_user_in(experiment.project_id, &owner),
            members: members.len(),
            kind,
            slots: &slots,
            port_offset,
        };
        let spec = self.build(&parts, token.clone())?;
        if is_stored {
            return Ok(Some(spec));
        }
        let (hash, allocation_id) = (token_hash(&token), allocation.id.clone());
        self.store
            .write(move |tx| {
                Box::pin(async move {
                    allocations::insert_token(&mut tx.conn(), &hash, &allocation_id).await?;
                    Ok::<_, AppError>(())
                })
            })
            .await?;
        Ok(Some(spec))
    }

    /// All containers of an allocation in the order of their ranks, those that have exited among them.
    async fn members(
        &self,
        startable: &Startable,
        conn: &mut Conn<'_>,
    ) -> AppResult<Vec<Arc<ContainerRow>>> {
        let mut held = 0;
        for container in &startable.alive {
            held += slot_set(&container.slots)?.len();
        }
        let asked = usize::try_from(startable.allocation.slots).unwrap_or(0);
        if held >= asked {
            return Ok(startable.alive.clone());
        }
        // Ranks may end before others of their gang have started.
        let rows = allocations::containers(conn, &startable.allocation.id).await?;
        Ok(rows.into_iter().map(Arc::new).collect())
    }

    /// Distance of this allocation's ports from the first ones, free of reserved ports.
    fn port_offset(&self, lowest_slot: Option<u32>, allocation_id: &str) -> u16 {
        let start = match lowest_slot {
            Some(slot) => u16::try_from(slot % 400).unwrap_or(0),
            // Without slots nothing is exclusive: spread by name.
            None => {
                400 + u16::try_from(
                    allocation_id
                        .bytes()
                        .fold(0_u32, |h, b| (h * 31 + u32::from(b)) % 100),
                )
                .unwrap_or(0)
            }
        };
        let configured = self.config();
        (start..start + 100)
            .map(|n| n * PORT_STEP)
            .find(|offset| {
                let ports = trial_ports(*offset).map(|(_, port)| port);
                !configured
                    .reserved_ports
                    .iter()
                    .any(|reserved| ports.contains(reserved))
            })
            .unwrap_or(start * PORT_STEP)
    }

    fn build(&self, parts: &Parts<'_>, token: String) -> AppResult<ContainerSpec> {
        let Parts {
            container,
            allocation,
            trial,
            experiment,
            config,
            defaults,
            ..
        } = parts;
        let environment = &config.environment;
        let work_dir = environment
            .work_dir
            .clone()
            .or_else(|| defaults.work_dir.clone())
            .unwrap_or_else(|| format!("{RUN_DIR}/workdir"));
        let mut ports = vec![RENDEZVOUS_PORT];
        ports.extend(trial_ports(parts.port_offset).map(|(_, port)| port));
        ports.extend(environment.proxy_ports.iter().map(|p| p.proxy_port));
        ports.extend(environment.ports.values().copied());
        let user = parts.user.clone();
        let devices = config
            .resources
            .devices
            .iter()
            .chain(defaults.devices.iter());
        Ok(ContainerSpec {
            container_id: ContainerId(container.id.clone()),
            allocation_id: AllocationId(allocation.id.clone()),
            task_id: TaskId(trial.task_id.clone()),
            description: format!("trial {} of experiment {}", trial.id, experiment.id),
            image: environment.image.get(parts.kind).clone(),
            force_pull_image: environment.force_pull_image,
            registry_auth: environment.registry_auth.clone(),
            user,
            owner_id: experiment.owner_id,
            slots: parts.slots.iter().copied().map(SlotId).collect(),
            mounts: mounts(config, self.config().checkpoint_storage.as_ref()),
            shm_size_bytes: config.resources.shm_size,
            network_mode: if parts.members > 1 {
                "host".into()
            } else {
                defaults.effective_network_mode().to_owned()
            },
            ports,
            devices: devices.cloned().collect(),
            add_capabilities: environment.add_capabilities.clone(),
            default_capabilities: defaults.add_capabilities.clone(),
            drop_capabilities: environment.drop_capabilities.clone(),
            script: Script {
                task_type: TaskKind::Trial,
                allocation_id: AllocationId(allocation.id.clone()),
                task_id: TaskId(trial.task_id.clone()),
                container_id: ContainerId(container.id.clone()),
                env: self.environment(parts, &token, &work_dir),
                work_dir,
                context: true,
                pool_startup_hook: defaults
                    .startup_hook
                    .clone()
                    .filter(|h| !h.trim().is_empty()),
                rendezvous: true,
                storage_probe: Some(
                    serde_json::to_value(&config.checkpoint_storage).map_err(AppError::internal)?,
                ),
                entrypoint: entrypoint(config)?,
                files: Vec::new(),
                token,
                grace_seconds: GRACE_SECONDS,
            },
        })
    }

    /// Environment variables that do not depend on the agent; the user's own come last but cannot be `DET_*`.
    fn environment(&self, parts: &Parts<'_>, token: &str, work_dir: &str) -> Vec<(String, String)> {
        let Parts {
            container,
            allocation,
            trial,
            experiment,
            config,
            defaults,
            owner,
            ..
        } = parts;
        let mut env: Vec<(String, String)> = Vec::new();
        let user = config.environment.environment_variables.get(parts.kind);
        for variable in user {
            let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
            if name.starts_with("DET_") {
                continue;
            }
            let value = expand(value, &env);
            env.push((name.to_owned(), value));
        }
        if let Some(address) = self.config().pachyderm_address()
            && !env.iter().any(|(name, _)| name == "PACHD_ADDRESS")
        {
            env.push(("PACHD_ADDRESS".to_owned(), address.to_owned()));
        }
        let mut set = |name: &str, value: String| env.push((name.to_owned(), value));
        set("DET_CLUSTER_ID", self.cluster_id.clone());
        set("DET_MASTER_ID", self.master_id.clone());
        set("DET_TASK_ID", trial.task_id.clone());
        set("DET_ALLOCATION_ID", allocation.id.clone());
        set("DET_RESOURCES_ID", container.id.clone());
        set("DET_CONTAINER_ID", container.id.clone());
        set("DET_RESOURCES_TYPE", "docker-container".into());
        set("DET_SESSION_TOKEN", token.to_owned());
        // The client inside a task acts as the owner, but as this task: no login of its own outlives it.
        set("DET_USER_TOKEN", token.to_owned());
        set("DET_USER", owner.username.clone());
        set("DET_TASK_TYPE", TaskKind::Trial.name().into());
        set("DET_WORKDIR", work_dir.to_owned());
        set("DET_RUN_DIR", RUN_DIR.into());
        set(
            "DET_TASK_LOGGING_METADATA",
            json!({"task_id": trial.task_id, "allocation_id": allocation.id}).to_string(),
        );
        set("PYTHONUSERBASE", format!("{RUN_DIR}/pythonuserbase"));
        set("DET_SEGMENT_ENABLED", "false".into());
        set("DET_EXPERIMENT_ID", experiment.id.to_string());
        set("DET_TRIAL_ID", trial.id.to_string());
        set("DET_TRIAL_RUN_ID", allocation.run_id.to_string());
        set("DET_TRIAL_SEED", trial.seed.to_string());
        set("DET_EXPERIMENT_CONFIG", experiment.config.clone());
        set("DET_HPARAMS", trial.hparams.clone());
        set(
            "DET_STEPS_COMPLETED",
            trial.latest_checkpoint_steps.unwrap_or(0).to_string(),
        );
        if let Some(checkpoint) = trial
            .latest_checkpoint
            .as_ref()
            .or(trial.warm_start_checkpoint.as_ref())
        {
            set("DET_LATEST_CHECKPOINT", checkpoint.clone());
        }
        for (name, port) in trial_ports(parts.port_offset) {
            set(name, port.to_string());
        }
        if let Some(interface) = &defaults.dtrain_network_interface {
            set("DET_INTER_NODE_NETWORK_INTERFACE", interface.clone());
        }
        if let Some(range) = &defaults.gloo_port_range {
            set("GLOO_PORT_RANGE", range.clone());
        }
        if let Some(range) = &defaults.nccl_port_range {
            set("NCCL_PORT_RANGE", range.clone());
        }
        if config.debug {
            set("DET_DEBUG", "true".into());
        }
        env
    }
}

/// The training ports of an allocation with their variables.
fn trial_ports(offset: u16) -> [(&'static str, u16); 4] {
    [
        ("DTRAIN_SSH_PORT", SSH_PORT + offset),
        ("INTER_TRAIN_PROCESS_COMM_PORT_1", PROCESS_PORT_1 + offset),
        ("INTER_TRAIN_PROCESS_COMM_PORT_2", PROCESS_PORT_2 + offset),
        ("C10D_PORT", C10D_PORT + offset / PORT_STEP),
    ]
}

/// Replaces `$NAME` and `${NAME}` by earlier variables; an unknown one stays as it is.
fn expand(value: &str, earlier: &[(String, String)]) -> String {
    let look_up = |name: &str| {
        earlier
            .iter()
            .rev()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.clone())
    };
    let mut out = String::with_capacity(value.len());
    let mut rest = value;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let (name, whole) = match after.strip_prefix('{').and_then(|a| a.split_once('}')) {
            Some((name, _)) => (name, name.len() + 2),
            None => {
                let end = after
                    .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .unwrap_or(after.len());
                (&after[..end], end)
            }
        };
        match look_up(name) {
            Some(value) => out.push_str(&value),
            None => out.push_str(&rest[at..=at + whole]),
        }
        rest = &after[whole..];
    }
    out.push_str(rest);
    out
}

fn entrypoint(config: &ExperimentConfig) -> AppResult<Entrypoint> {
    match &config.entrypoint {
        Some(ConfiguredEntrypoint::Shell(text)) if config.is_trial_class() => {
            Ok(Entrypoint::TrialClass(text.clone()))
        }
        Some(ConfiguredEntrypoint::Shell(text)) => Ok(Entrypoint::Shell(text.clone())),
        Some(ConfiguredEntrypoint::Argv(argv)) => Ok(Entrypoint::Argv(argv.clone())),
        None => Err(AppError::invalid("the experiment has no entrypoint")),
    }
}

/// The mounts of a trial's containers. `own_storage` is the storage of the master's configuration: an administrator chose
/// its path, so agents create it.
fn mounts(config: &ExperimentConfig, own_storage: Option<&CheckpointStorage>) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = config
        .bind_mounts
        .iter()
        .map(|m| Mount {
            host_path: m.host_path.clone(),
            container_path: m.container_path.clone(),
            read_only: m.read_only,
            propagation: m.propagation.clone(),
            create: false,
            trusted: false,
        })
        .collect();
    if let StorageLocation::SharedFs {
        host_path,
        propagation,
        ..
    } = &config.checkpoint_storage.location
    {
        mounts.push(Mount {
            host_path: host_path.clone(),
            container_path: SHARED_FS_DIR.into(),
            read_only: false,
            propagation: propagation.clone(),
            create: true,
            trusted: matches!(
                own_storage.map(|storage| &storage.location),
                Some(StorageLocation::SharedFs { host_path: own, .. }) if own == host_path
            ),
        });
    }
    mounts
}

impl Master {
    /// The Unix identity of a user's tasks in a project: the workspace's, the user's, the cluster's. A workspace may set
    /// the user or the group alone.
    pub(crate) fn task_user_in(&self, project_id: i64, owner: &User) -> TaskUser {
        let places = self.places.get();
        let own = task_user(owner, &self.config().security.default_task);
        match places.home(project_id) {
            Some((_, workspace)) => in_workspace(workspace, own),
            None => own,
        }
    }
}

/// The Unix identity `own` with what a workspace sets in its place.
fn in_workspace(workspace: &WorkspaceRow, own: TaskUser) -> TaskUser {
    let set = |number: Option<i64>, name: &Option<String>| {
        Some((u32::try_from(number?).ok()?, name.clone()?))
    };
    let user = set(workspace.agent_uid, &workspace.agent_user);
    let group = set(workspace.agent_gid, &workspace.agent_group);
    let (uid, user) = user.unwrap_or((own.uid, own.user));
    let (gid, group) = group.unwrap_or((own.gid, own.group));
    TaskUser {
        user,
        uid,
        group,
        gid,
    }
}

/// The Unix identity of a user's tasks.
fn task_user(owner: &User, default: &det_config::master::DefaultTask) -> TaskUser {
    let number = |n: i64| u32::try_from(n).ok();
    match (
        owner.agent_uid.and_then(number),
        owner.agent_gid.and_then(number),
    ) {
        (Some(uid), Some(gid)) => TaskUser {
            user: owner
                .agent_user
                .clone()
                .unwrap_or_else(|| owner.username.clone()),
            uid,
            group: owner
                .agent_group
                .clone()
                .unwrap_or_else(|| owner.username.clone()),
            gid,
        },
        _ => TaskUser {
            user: default.user.clone(),
            uid: default.uid,
            group: default.group.clone(),
            gid: default.gid,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_may_set_the_user_or_the_group_alone() {
        let own = || TaskUser {
            user: "ada".into(),
            uid: 10,
            group: "staff".into(),
            gid: 20,
        };
        let group = WorkspaceRow {
            agent_gid: Some(7),
            agent_group: Some("lab".into()),
            ..WorkspaceRow::default()
        };
        let made = in_workspace(&group, own());
        assert_eq!((made.uid, made.user.as_str()), (10, "ada"));
        assert_eq!((made.gid, made.group.as_str()), (7, "lab"));
        let user = WorkspaceRow {
            agent_uid: Some(5),
            agent_user: Some("runner".into()),
            ..WorkspaceRow::default()
        };
        let made = in_workspace(&user, own());
        assert_eq!((made.uid, made.user.as_str()), (5, "runner"));
        assert_eq!((made.gid, made.group.as_str()), (20, "staff"));
    }

    #[test]
    fn variables_refer_to_earlier_ones() {
        let earlier = [
            ("A".to_owned(), "1".to_owned()),
            ("A".to_owned(), "2".to_owned()),
        ];
        for (given, expected) in [
            ("$A", "2"),
            ("${A}x", "2x"),
            ("$B", "$B"),
            ("a$", "a$"),
            ("$A$A-", "22-"),
            ("${B}", "${B}"),
            ("plain", "plain"),
        ] {
            assert_eq!(expand(given, &earlier), expected, "{given}");
        }
    }

    #[test]
    fn ports_of_neighbours_do_not_meet() {
        let mut seen = BTreeSet::new();
        for n in 0..400 {
            for (name, port) in trial_ports(n * PORT_STEP) {
                assert!(seen.insert(port), "{name} {port} of allocation {n}");
            }
        }
    }
}
