//! The environment variables that every task, or every trial, is promised: their names, and what sets them
//! (`docs/contract/task-environment.md`, "Variables").
//!
//! One declaration for each. [`VARIABLES`] is the list of all; tests of the master's part (here), of the agent, of pods
//! (`crates/pods`) and of the supervisor hold each of them to its rows. Two rules decide who sets a variable: whatever follows from facts that the
//! master has is set here, once, for every resource manager; agent and supervisor set what they find out on the host and
//! in the container, and the manager of pods what only a pod has. Users override whatever is not reserved ([`is_reserved`]).

/// Variables that begin like this are the platform's, but for [`KNOBS`]; a task's configuration cannot set them.
pub const RESERVED_PREFIX: &str = "DET_";

/// How long the lines of a task's log may be shipped after its end, in seconds.
pub const LOG_WAIT_TIME: &str = "DET_LOG_WAIT_TIME";

/// Variables that begin like the platform's, and that a task's configuration can set: what runs in the task reads them, and
/// the platform sets none of them (`docs/contract/task-environment.md`, "Variables"). Sorted.
pub const KNOBS: &[&str] = &[
    "DET_DEBUG_CONFIG_PATH",
    "DET_DEEPSPEED_HOSTFILE_PATH",
    "DET_LOG_LEVEL",
    LOG_WAIT_TIME,
    "DET_MANUAL_INIT_DISTRIBUTED",
    "DET_PYTHON_EXECUTABLE",
    "DET_RETRY_CONFIG",
    "DET_S3_ENDPOINT_URL",
    "DET_SKIP_PIP_INSTALL",
];

/// Whether a task's configuration cannot set a variable of this name.
pub fn is_reserved(name: &str) -> bool {
    name.starts_with(RESERVED_PREFIX) && !KNOBS.contains(&name)
}

/// A variable of the environment of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable {
    /// Its name in the environment.
    pub name: &'static str,
    /// The program that sets it.
    pub set_by: SetBy,
    /// The tasks that have it, by their kind.
    pub tasks: Tasks,
    /// Whether each of these has it, of those that its setter has a part in.
    pub presence: Presence,
}

/// The program that sets a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetBy {
    /// The master, in the specification.
    Master,
    /// The agent, when it completes the specification on its host.
    Agent,
    /// The manager of pods, where the container is one of a pod.
    Pod,
    /// The supervisor, in the container.
    Supervisor,
}

/// Which tasks have a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tasks {
    /// Tasks of every kind.
    All,
    /// Only tasks of trials.
    Trials,
    /// Only tasks of notebooks.
    Notebooks,
    /// Only tasks of `TensorBoards`.
    TensorBoards,
}

/// Whether a variable is in the environment of each of its tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It is set in each of them.
    Always,
    /// It is absent, not empty, where there is nothing to set it to.
    WhenKnown,
}

/// Declares each variable as a constant and as a row of [`VARIABLES`].
macro_rules! variables {
    ($($(#[$doc:meta])* $name:ident: $set_by:ident, $tasks:ident, $presence:ident;)*) => {
        $($(#[$doc])* pub const $name: &str = stringify!($name);)*

        /// Every variable that tasks are promised.
        pub const VARIABLES: &[Variable] = &[$(Variable {
            name: $name,
            set_by: SetBy::$set_by,
            tasks: Tasks::$tasks,
            presence: Presence::$presence,
        }),*];
    };
}

variables! {
    /// Address of the master as the task reaches it, with scheme and port.
    DET_MASTER: Agent, All, Always;
    /// Host of the address in `DET_MASTER`.
    DET_MASTER_HOST: Agent, All, Always;
    /// The same under its older name.
    DET_MASTER_ADDR: Agent, All, Always;
    /// Port of the address in `DET_MASTER`.
    DET_MASTER_PORT: Agent, All, Always;
    /// `true` where the address begins with `https`, else `false`.
    DET_USE_TLS: Agent, All, Always;
    /// File with certificates that the master's may be signed by, or `noverify`; absent = those of the image.
    DET_MASTER_CERT_FILE: Agent, All, WhenKnown;
    /// Name on the master's certificate where it is not the host of the address.
    DET_MASTER_CERT_NAME: Agent, All, WhenKnown;
    /// Name of the agent that runs the container.
    DET_AGENT_ID: Agent, All, Always;
    /// The agent's proxy for HTTP, unless the task brings one.
    HTTP_PROXY: Agent, All, WhenKnown;
    /// The agent's proxy for HTTPS, unless the task brings one.
    HTTPS_PROXY: Agent, All, WhenKnown;
    /// The agent's proxy for FTP, unless the task brings one.
    FTP_PROXY: Agent, All, WhenKnown;
    /// Hosts that the agent's proxies are not used for, unless the task brings such a list.
    NO_PROXY: Agent, All, WhenKnown;

    /// Identity of the cluster, a UUID.
    DET_CLUSTER_ID: Master, All, Always;
    /// Identity of the start of the master that made the specification, a UUID.
    DET_MASTER_ID: Master, All, Always;
    /// Id of the task.
    DET_TASK_ID: Master, All, Always;
    /// Id of the attempt: `<task>.<n>`.
    DET_ALLOCATION_ID: Master, All, Always;
    /// Id of the container, as the API's resource.
    DET_RESOURCES_ID: Master, All, Always;
    /// Id of the container.
    DET_CONTAINER_ID: Master, All, Always;
    /// What the container runs on, in the harness's words.
    DET_RESOURCES_TYPE: Master, All, Always;
    /// JSON list of the container's slots.
    DET_SLOT_IDS: Master, All, Always;
    /// Bearer token of the container.
    DET_SESSION_TOKEN: Master, All, Always;
    /// The token that the client library logs in with inside the task.
    DET_USER_TOKEN: Master, All, Always;
    /// Name of the task's owner.
    DET_USER: Master, All, Always;
    /// Kind of the task, a name of [`TaskKind`](crate::TaskKind).
    DET_TASK_TYPE: Master, All, Always;
    /// Directory with the files that the system gives the task.
    DET_RUN_DIR: Master, All, Always;
    /// JSON map that is added to every record of the task's log.
    DET_TASK_LOGGING_METADATA: Master, All, Always;
    /// Where `pip install --user` installs.
    PYTHONUSERBASE: Master, All, Always;
    /// `1`: what Python prints is in the log at once, and none of it is lost with a process that is killed.
    PYTHONUNBUFFERED: Master, All, Always;
    /// Whether the harness sends telemetry: `false`.
    DET_SEGMENT_ENABLED: Master, All, Always;
    /// `true` where the configuration asks for detailed logs of scripts and harness; the agent's may ask for it as well.
    DET_DEBUG: Master, All, WhenKnown;
    /// Network interface for traffic between containers.
    DET_INTER_NODE_NETWORK_INTERFACE: Master, All, WhenKnown;
    /// Ports that Gloo may use between containers, `low:high`.
    GLOO_PORT_RANGE: Master, All, WhenKnown;
    /// Ports that NCCL may use between containers, `low:high`.
    NCCL_PORT_RANGE: Master, All, WhenKnown;
    /// Address of the cluster's Pachyderm server.
    PACHD_ADDRESS: Master, All, WhenKnown;

    /// Number of the experiment.
    DET_EXPERIMENT_ID: Master, Trials, Always;
    /// Number of the trial.
    DET_TRIAL_ID: Master, Trials, Always;
    /// Number of the trial's run.
    DET_TRIAL_RUN_ID: Master, Trials, Always;
    /// Seed of the trial's random values, 0 to 2^31 - 1.
    DET_TRIAL_SEED: Master, Trials, Always;
    /// Effective configuration of the experiment, a JSON object.
    DET_EXPERIMENT_CONFIG: Master, Trials, Always;
    /// Hyperparameters of the trial, a JSON object.
    DET_HPARAMS: Master, Trials, Always;
    /// Steps that the checkpoint to resume from has completed; `0` without one, and for a warm start.
    DET_STEPS_COMPLETED: Master, Trials, Always;
    /// UUID of the checkpoint to start from.
    DET_LATEST_CHECKPOINT: Master, Trials, WhenKnown;
    /// Port of the ssh servers that launchers start in containers.
    DTRAIN_SSH_PORT: Master, Trials, Always;
    /// First port for messages between the processes of a trial.
    INTER_TRAIN_PROCESS_COMM_PORT_1: Master, Trials, Always;
    /// Second port for messages between the processes of a trial.
    INTER_TRAIN_PROCESS_COMM_PORT_2: Master, Trials, Always;
    /// Port at which the processes of torch meet.
    C10D_PORT: Master, Trials, Always;

    /// Port that the notebook's server listens on.
    NOTEBOOK_PORT: Master, Notebooks, Always;
    /// The notebook's configuration as JSON, for its programs to look at; a very long one is left out.
    NOTEBOOK_CONFIG: Master, Notebooks, WhenKnown;
    /// What keeps the notebook from being idle, as in its configuration.
    NOTEBOOK_IDLE_TYPE: Master, Notebooks, Always;
    /// What the notebook's server asks clients for.
    DET_NOTEBOOK_TOKEN: Master, Notebooks, Always;
    /// Port that TensorBoard listens on.
    TENSORBOARD_PORT: Master, TensorBoards, Always;
    /// How much TensorFlow writes: errors only.
    TF_CPP_MIN_LOG_LEVEL: Master, TensorBoards, Always;

    /// IP address of the pod.
    DET_KUBERNETES_POD_IP: Pod, All, Always;
    /// Number of pods of the allocation.
    DET_KUBERNETES_JOB_PARALLELISM: Pod, All, Always;
    /// Pool that the allocation's slots are in.
    DET_K8S_RESOURCE_POOL: Pod, All, Always;
    /// File that becomes the container's termination message.
    DET_TERMINATION_MESSAGE: Pod, All, Always;
    /// Bytes that the kubelet keeps of that file.
    DET_TERMINATION_MESSAGE_BYTES: Pod, All, Always;
    /// `void` where the container has no GPU: images that ask for all would see those of other pods.
    NVIDIA_VISIBLE_DEVICES: Pod, All, WhenKnown;

    /// Directory that the task's program starts in.
    DET_WORKDIR: Supervisor, All, Always;
    /// Home directory of the task's user; the working directory where the container knows none.
    HOME: Supervisor, All, Always;
    /// Where programs are searched: first `bin` of [`PYTHONUSERBASE`].
    PATH: Supervisor, All, Always;
    /// Where Python modules are searched; absent where the image has the package.
    PYTHONPATH: Supervisor, All, WhenKnown;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knobs_are_none_of_the_platforms_variables() {
        assert!(KNOBS.is_sorted());
        for knob in KNOBS {
            assert!(knob.starts_with(RESERVED_PREFIX), "{knob}");
            assert!(!VARIABLES.iter().any(|v| v.name == *knob), "{knob}");
            assert!(!is_reserved(knob));
        }
        assert!(is_reserved("DET_MASTER") && is_reserved("DET_OF_MINE"));
        assert!(!is_reserved("DETAIL") && !is_reserved("PATH"));
    }
}
