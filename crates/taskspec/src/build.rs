//! From facts to a specification.

mod capabilities;

use thiserror::Error;

use crate::environment::environment;
use crate::facts::{BindMount, KindFacts, PlaceFacts, RunsIn, TaskFacts, TrialFacts};
use crate::ports::{RENDEZVOUS_PORT, TrainingPort, training_ports};
use crate::variables::DTRAIN_SSH_PORT;
use crate::{
    ContainerSpec, DeviceMapping, Mount, RegistryAuth, SHARED_FS_DIR, Sampling, Script,
    SharedDirectories, SystemMetrics, TaskDetails, TaskFile, WORK_DIR, tensorboard_directory,
};

use capabilities::kept;

/// Seconds between SIGTERM and SIGKILL when a task is ended gracefully.
const GRACE_SECONDS: u32 = 10;
/// Docker network mode of containers that must reach each other across hosts. Places that only count their slots give
/// each container an address of its own, as Kubernetes does.
const HOST_NETWORK: &str = "host";

/// Why a specification cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SpecError {
    /// The configuration names nothing to run.
    #[error("{task} has no entrypoint; name a command in \"entrypoint\" of its configuration")]
    NoEntrypoint {
        /// Description of the task for users.
        task: String,
    },
    /// Every port that could be given is in use or reserved.
    #[error(
        "no ports are left for the traffic between the processes of the trial: other trials on its hosts use them, or they \
         are among \"reserved_ports\" of the master's configuration; reserve fewer, or run fewer trials on a host at once"
    )]
    NoFreePorts,
    /// Every port that its service could be given is in use or reserved.
    #[error(
        "no port is left for the service of the task: services of other tasks on its host have all from {first} to {last}, or \
         they are among \"reserved_ports\" of the master's configuration; end some that are not used, or reserve fewer"
    )]
    NoFreeServicePort {
        /// The first port of its kind.
        first: u16,
        /// The last port of its kind.
        last: u16,
    },
    /// A variable of the configuration is longer than a process can be given.
    #[error(
        "variable \"{name}\" of \"environment.environment_variables\" is longer than {most} bytes once the variables in \
         it have their values; make it shorter, or put it into a file of the context directory"
    )]
    VariableTooLong {
        /// Its name, cut where it is long.
        name: String,
        /// Bytes of name and value at most.
        most: usize,
    },
    /// The variables of the configuration together are longer than a process can be given.
    #[error(
        "\"environment.environment_variables\" have more than {most} bytes once the variables in them have their values; \
         make them shorter, or put them into a file of the context directory"
    )]
    VariablesTooLong {
        /// Bytes of names and values at most.
        most: usize,
    },
}

/// The specification of one container of a task. `token` is the container's bearer token.
///
/// # Errors
/// The facts do not give one; the error is for the task's owner.
pub fn container_spec(
    task: &TaskFacts,
    place: &PlaceFacts,
    token: &str,
) -> Result<ContainerSpec, SpecError> {
    let (request, defaults) = (&task.request, &task.defaults);
    let trial = match &task.kind {
        KindFacts::Trial(trial) => Some(trial),
        KindFacts::Launched(_) => None,
    };
    let training_ports = match trial {
        Some(trial) => training_ports(trial.port_step)?.to_vec(),
        None => Vec::new(),
    };
    if let KindFacts::Launched(details) = &task.kind
        && let Some(ports) = details.service_ports()
        && details.service_port() == Some(0)
    {
        return Err(SpecError::NoFreeServicePort {
            first: *ports.start(),
            last: *ports.end(),
        });
    }
    Ok(ContainerSpec {
        container_id: place.container_id.clone(),
        allocation_id: task.allocation_id.clone(),
        task_id: task.task_id.clone(),
        description: task.description.clone(),
        image: request.image.get(place.device_kind).clone(),
        force_pull_image: request.force_pull_image,
        registry_auth: login(task, request.image.get(place.device_kind)),
        user: task.user.clone(),
        owner_id: task.owner_id,
        slots: place.slots.clone(),
        mounts: mounts(task),
        shm_size_bytes: request.shm_size_bytes,
        network_mode: if place.members > 1 && place.runs_in == RunsIn::Machine {
            HOST_NETWORK.to_owned()
        } else {
            defaults.network_mode.clone()
        },
        ports: ports(task, &training_ports),
        devices: devices(&request.devices, &defaults.devices),
        add_capabilities: kept(&request.add_capabilities, &request.drop_capabilities),
        default_capabilities: kept(&defaults.add_capabilities, &request.drop_capabilities),
        drop_capabilities: request.drop_capabilities.clone(),
        script: script(task, trial, place, &training_ports, token)?,
    })
}

/// The login for the registry of an image: the task's own, else one of its pool.
fn login(task: &TaskFacts, image: &str) -> Option<RegistryAuth> {
    let own = task.request.registry_auth.iter();
    let mut logins = own.chain(&task.defaults.logins);
    logins.find(|login| login.is_for(image)).cloned()
}

fn script(
    task: &TaskFacts,
    trial: Option<&TrialFacts>,
    place: &PlaceFacts,
    training_ports: &[TrainingPort],
    token: &str,
) -> Result<Script, SpecError> {
    let (request, defaults) = (&task.request, &task.defaults);
    let of_trial = task.kind.kind().works_for_trial();
    let storage = task.storage.as_ref().filter(|_| of_trial);
    let hook = &defaults.startup_hook;
    let details = match &task.kind {
        KindFacts::Trial(_) => None,
        KindFacts::Launched(details) => Some(details),
    };
    Ok(Script {
        task_type: task.kind.kind(),
        allocation_id: task.allocation_id.clone(),
        task_id: task.task_id.clone(),
        container_id: place.container_id.clone(),
        env: environment(task, trial, place, training_ports, token)?,
        work_dir: work_dir(task),
        context: details.is_none_or(TaskDetails::has_context),
        startup_hook: details.is_none_or(TaskDetails::has_startup_hook),
        pool_startup_hook: hook
            .clone()
            .filter(|hook| !hook.trim().is_empty())
            .filter(|_| details.is_none_or(TaskDetails::has_pool_hook)),
        rendezvous: of_trial,
        storage_probe: storage.map(|storage| storage.document.clone()),
        entrypoint: details
            .and_then(TaskDetails::entrypoint)
            .or_else(|| request.entrypoint.clone())
            .ok_or_else(|| SpecError::NoEntrypoint {
                task: task.description.clone(),
            })?,
        readiness: details.map_or_else(Vec::new, TaskDetails::readiness),
        readiness_port: details.and_then(TaskDetails::readiness_port),
        idle_check: details.and_then(TaskDetails::idle_check),
        system_metrics: trial
            .filter(|trial| trial.system_metrics)
            .map(system_metrics),
        task_metrics: Some(SAMPLING).filter(|_| !of_trial && request.system_metrics),
        files: files(&task.kind, place, training_ports),
        token: token.to_owned(),
        grace_seconds: GRACE_SECONDS,
        // What ends containers of machines is the master, or ends their agent with them.
        save_seconds: None,
    })
}

/// What only tasks of this kind have: trials of several containers what launchers need to reach all of them.
fn files(kind: &KindFacts, place: &PlaceFacts, training_ports: &[TrainingPort]) -> Vec<TaskFile> {
    let port = training_ports
        .iter()
        .find(|(variable, _)| *variable == DTRAIN_SSH_PORT);
    match (kind, port) {
        (KindFacts::Launched(details), _) => details.files(),
        (KindFacts::Trial(trial), Some((_, port))) if place.members > 1 => {
            trial.launch_keys.launch_files(*port)
        }
        (KindFacts::Trial(_), _) => Vec::new(),
    }
}

/// How often the PyPI package's own profiler measures and reports, unless its caller wants it otherwise.
const SAMPLING: Sampling = Sampling {
    sample_seconds: 1,
    samples_per_report: 10,
};

fn system_metrics(trial: &TrialFacts) -> SystemMetrics {
    SystemMetrics {
        trial_id: trial.trial_id,
        run_id: trial.run_id,
        sample_seconds: SAMPLING.sample_seconds,
        samples_per_report: SAMPLING.samples_per_report,
    }
}

/// The working directory with the owner's name in it. Which Unix user the task is, and so what `$AGENT_USER` is, can depend
/// on the place. The configuration of a launched task has that of its pool, unless it was dropped there for files that come
/// along, or cleared.
fn work_dir(task: &TaskFacts) -> String {
    let of_trial = task.kind.kind().works_for_trial();
    let own = task.request.work_dir.as_deref();
    let of_pool = task.defaults.work_dir.as_deref();
    own.or(of_pool.filter(|_| of_trial))
        .unwrap_or(WORK_DIR)
        .replace("$DET_USER", &task.owner_name)
}

/// The ports to publish: those of a trial or of the kind's service, then the task's own.
fn ports(task: &TaskFacts, training_ports: &[TrainingPort]) -> Vec<u16> {
    let rendezvous = (!training_ports.is_empty()).then_some(RENDEZVOUS_PORT);
    let training = training_ports.iter().map(|(_, port)| *port);
    let first = rendezvous.into_iter().chain(training);
    let own = task.request.ports.iter().copied();
    first.chain(service_of_kind(task)).chain(own).collect()
}

/// The ports of the services that users reach through the master: that of the kind, then the task's own. Others that its
/// configuration names are not among them.
pub fn service_ports(task: &TaskFacts) -> Vec<u16> {
    let own = task.request.proxied_ports.iter().copied();
    service_of_kind(task).into_iter().chain(own).collect()
}

fn service_of_kind(task: &TaskFacts) -> Option<u16> {
    match &task.kind {
        KindFacts::Trial(_) => None,
        KindFacts::Launched(details) => details.service_port(),
    }
}

/// The configuration's devices, then those of the pool whose place in the container is free. Most of the pool's are in the
/// configuration already, since it was completed with them; the task may have moved to another pool since.
fn devices(own: &[DeviceMapping], of_pool: &[DeviceMapping]) -> Vec<DeviceMapping> {
    let is_free = |device: &&DeviceMapping| {
        !own.iter()
            .any(|taken| taken.container_path == device.container_path)
    };
    own.iter()
        .chain(of_pool.iter().filter(is_free))
        .cloned()
        .collect()
}

/// What the configuration mounts, then the checkpoint storage, then what the task's kind needs.
fn mounts(task: &TaskFacts) -> Vec<Mount> {
    let storage = (task.storage.as_ref())
        .and_then(|storage| storage.shared_fs.as_ref())
        .map(|shared| Mount {
            host_path: shared.host_path.clone(),
            container_path: SHARED_FS_DIR.to_owned(),
            read_only: false,
            propagation: shared.propagation.clone(),
            create: true,
            trusted: shared.is_clusters_own,
            shared: (shared.clusters_directory.as_deref()).map(|own| shared_directories(task, own)),
        });
    let of_kind = match &task.kind {
        KindFacts::Trial(_) => &[],
        KindFacts::Launched(details) => details.mounts(),
    };
    let own = task.request.bind_mounts.iter().map(BindMount::untrusted);
    own.chain(storage).chain(of_kind.iter().cloned()).collect()
}

/// What tasks of all users share in the cluster's own storage, which is in this directory of its mount.
fn shared_directories(task: &TaskFacts, own: &str) -> SharedDirectories {
    let tensorboard = tensorboard_directory(&task.cluster.cluster_id);
    SharedDirectories {
        checkpoints: own.to_owned(),
        tensorboard: match own {
            "" => tensorboard,
            own => format!("{own}/{tensorboard}"),
        },
    }
}

#[cfg(test)]
mod tests;
