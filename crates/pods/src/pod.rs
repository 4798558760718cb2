//! What is known of a pod, from its status.

use serde_json::Value;

use crate::json;
use crate::record::PORTS_ANNOTATION;
use crate::user_spec::TASK_CONTAINER;

/// The part of a pod, as the Kubernetes API returns it, that decisions depend on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodFacts {
    /// Kubernetes namespace of the pod (`metadata.namespace`).
    pub namespace: String,
    /// Name of the pod, unique in its namespace at a time (`metadata.name`).
    pub name: String,
    /// Identity of the pod (`metadata.uid`): a later pod of the same name has another one.
    pub uid: String,
    /// Phase of the pod (`status.phase`).
    pub phase: PodPhase,
    /// Why it is in this phase, a word of Kubernetes: `Evicted`, `NodeLost`.
    pub reason: Option<String>,
    /// Why it is in this phase, as a sentence of Kubernetes for users (`status.message`).
    pub message: Option<String>,
    /// Its node; `None` = it has none yet.
    pub node: Option<String>,
    /// IP address of the pod (`status.podIP`); `None` = it has none yet.
    pub pod_ip: Option<String>,
    /// IP address of its node (`status.hostIP`); `None` = it has no node yet.
    pub host_ip: Option<String>,
    /// What the scheduler reports; `None` = nothing yet.
    pub scheduled: Option<SchedulingStatus>,
    /// Names of the gates that hold it back from the scheduler.
    pub gates: Vec<String>,
    /// The container that runs the task's code.
    pub task: ContainerFacts,
    /// Init containers, in the order in which Kubernetes starts them.
    pub init: Vec<ContainerFacts>,
    /// The containers that the user's `pod_spec` adds beside that of the task.
    pub others: Vec<ContainerFacts>,
    /// When it is to be gone, RFC 3339; `None` = it is not being deleted.
    pub deletion: Option<String>,
    /// Why Kubernetes ends it; `None` = it does not.
    pub disruption: Option<Disruption>,
    /// TCP ports that the task listens on, read from an annotation that the manager writes at the start.
    pub ports: Vec<u16>,
}

/// Where a pod is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PodPhase {
    /// Not all of its containers have started.
    #[default]
    Pending,
    /// Its containers have started, and some of them run.
    Running,
    /// All its containers have ended with exit code 0.
    Succeeded,
    /// All its containers have ended, or it was refused by its node.
    Failed,
    /// Its state cannot be obtained, as a rule because its node does not answer.
    Unknown,
}

/// What the scheduler reports of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulingStatus {
    /// Whether the scheduler has given the pod a node.
    pub done: bool,
    /// Why it has no node, a word of Kubernetes: `Unschedulable`, `SchedulingGated`.
    pub reason: Option<String>,
    /// Why it has no node, as a sentence of the scheduler for users.
    pub message: Option<String>,
}

/// Why Kubernetes ends a pod: its condition `DisruptionTarget`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disruption {
    /// The reason, a word of Kubernetes: `PreemptionByScheduler`, `EvictionByEvictionAPI`, `DeletionByTaintManager`,
    /// `DeletionByPodGC`, `TerminationByKubelet`.
    pub reason: String,
    /// The reason as a sentence of Kubernetes for users; may be empty.
    pub message: String,
}

/// The name and state of one container of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerFacts {
    /// Name of the container, unique in its pod.
    pub name: String,
    /// Its state, as its kubelet reports it.
    pub state: ContainerState,
}

/// State of a container, as its kubelet reports it (`status.containerStatuses[].state`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ContainerState {
    /// The kubelet has reported no state.
    #[default]
    Unknown,
    /// The container has not started.
    Waiting {
        /// `ContainerCreating`, `PodInitializing`, `ImagePullBackOff`; empty = none is reported.
        reason: String,
        /// Why it waits, as a sentence for users; may be empty.
        message: String,
    },
    /// The container has started and has not ended.
    Running,
    /// The container has ended.
    Terminated {
        /// Exit code; 128 and more by signals.
        exit_code: i32,
        /// Signal that ended it, where the runtime reports one.
        signal: Option<i32>,
        /// How it ended, a word of Kubernetes: `Completed`, `Error`, `OOMKilled`, `StartError`.
        reason: String,
        /// What the container left as its termination message, or the runtime's error; may be empty.
        message: String,
    },
}

impl PodFacts {
    /// Whether a container of the user's own runs, an init container that goes on beside the task included.
    pub fn has_others_running(&self) -> bool {
        let mut others = self.init.iter().chain(&self.others);
        others.any(|container| container.state == ContainerState::Running)
    }
}

impl ContainerState {
    /// Whether the container runs or has ended, as opposed to waiting for its start.
    pub fn has_started(&self) -> bool {
        matches!(self, Self::Running | Self::Terminated { .. })
    }
}

/// An image that cannot be pulled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageError {
    /// Class of the error, by which it is decided whether further attempts can help.
    pub kind: ImageErrorKind,
    /// Which container it is of, and what the kubelet reports.
    pub message: String,
    /// Whether an attempt has just failed; else the kubelet pauses before the next one.
    pub is_attempt: bool,
}

/// Class of an error in pulling an image, recognised in the message of the kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageErrorKind {
    /// The registry has no image of this name and tag.
    NotFound,
    /// The registry refuses the credentials, or demands some.
    Auth,
    /// The registry limits the rate of requests and has refused one.
    RateLimit,
    /// The registry cannot be reached: no address, no connection, or no answer in time.
    Network,
    /// The name is no name of an image.
    Invalid,
    /// The message matches none of the known classes.
    Other,
}

impl ImageErrorKind {
    /// Whether it will be the same when the image is pulled again.
    pub fn is_lasting(self) -> bool {
        match self {
            Self::NotFound | Self::Auth | Self::Invalid => true,
            Self::RateLimit | Self::Network | Self::Other => false,
        }
    }
}

/// Words of kubelets, container runtimes and registries, by the kind of error they are of. The first kind counts.
const PULL_ERRORS: &[(ImageErrorKind, &[&str])] = &[
    (
        ImageErrorKind::RateLimit,
        &["toomanyrequests", "too many requests", "rate limit"],
    ),
    (
        ImageErrorKind::Auth,
        &[
            "unauthorized",
            "authentication required",
            "authorization failed",
            "no basic auth credentials",
            "pull access denied",
            "access denied",
            "permission denied",
            "403 forbidden",
            "denied:",
        ],
    ),
    (
        ImageErrorKind::Network,
        &[
            "dial tcp",
            "i/o timeout",
            "no such host",
            "connection refused",
            "connection reset",
            "tls handshake",
            "deadline exceeded",
            "client.timeout",
            "unexpected eof",
            "x509",
            "502 bad gateway",
            "503 service unavailable",
            "504 gateway",
            "registryunavailable",
        ],
    ),
    (
        ImageErrorKind::NotFound,
        &[
            "not found",
            "manifest unknown",
            "name unknown",
            "no such image",
            "does not exist",
            "no match for platform",
            "no matching manifest",
        ],
    ),
];

impl PodFacts {
    /// The error with which an image of the pod cannot be pulled; `None` = none is reported at this moment. It is the
    /// caller's to decide how long the kubelet may try again.
    pub fn image_error(&self) -> Option<ImageError> {
        self.containers().find_map(image_error)
    }

    /// Why a container cannot be created although its image is available, for users: the kubelet tries it again for ever.
    pub fn start_error(&self) -> Option<String> {
        self.containers().find_map(|container| {
            let ContainerState::Waiting { reason, message } = &container.state else {
                return None;
            };
            let is_error = matches!(
                reason.as_str(),
                "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError"
            );
            is_error.then(|| reported(&container.name, reason, message))
        })
    }

    fn containers(&self) -> impl Iterator<Item = &ContainerFacts> {
        let first = self.init.iter().chain([&self.task]);
        first.chain(&self.others)
    }
}

fn image_error(container: &ContainerFacts) -> Option<ImageError> {
    let ContainerState::Waiting { reason, message } = &container.state else {
        return None;
    };
    let kind = match reason.as_str() {
        "InvalidImageName" => ImageErrorKind::Invalid,
        // The kubelet does not pull it, and it is not on the node.
        "ErrImageNeverPull" => ImageErrorKind::NotFound,
        "RegistryUnavailable" => ImageErrorKind::Network,
        "ErrImagePull" | "ImagePullBackOff" | "ImageInspectError" | "SignatureValidationFailed" => {
            pull_error(message)
        }
        _ => return None,
    };
    Some(ImageError {
        kind,
        message: reported(&container.name, reason, message),
        is_attempt: reason != "ImagePullBackOff",
    })
}

fn pull_error(message: &str) -> ImageErrorKind {
    let message = message.to_lowercase();
    let mut kinds = PULL_ERRORS.iter();
    let found = kinds.find(|(_, words)| words.iter().any(|word| message.contains(word)));
    found.map_or(ImageErrorKind::Other, |(kind, _)| *kind)
}

fn reported(container: &str, reason: &str, message: &str) -> String {
    let colon = if message.is_empty() { "" } else { ": " };
    format!("container \"{container}\": {reason}{colon}{message}")
}

/// What is known of a pod, from the API's object.
pub fn pod_facts(pod: &Value) -> PodFacts {
    let text = |path: &[&str]| json::text(pod, path).unwrap_or_default().to_owned();
    let word = |path: &[&str]| json::word(pod, path);
    let statuses = |key: &str| -> Vec<ContainerFacts> {
        let statuses = json::list(pod, &["status", key]);
        statuses.iter().map(container_facts).collect()
    };
    let (task, others): (Vec<_>, Vec<_>) = statuses("containerStatuses")
        .into_iter()
        .partition(|container| container.name == TASK_CONTAINER);
    PodFacts {
        namespace: text(&["metadata", "namespace"]),
        name: text(&["metadata", "name"]),
        uid: text(&["metadata", "uid"]),
        phase: match json::text(pod, &["status", "phase"]) {
            Some("Running") => PodPhase::Running,
            Some("Succeeded") => PodPhase::Succeeded,
            Some("Failed") => PodPhase::Failed,
            Some("Unknown") => PodPhase::Unknown,
            _ => PodPhase::Pending,
        },
        reason: word(&["status", "reason"]),
        message: word(&["status", "message"]),
        node: word(&["spec", "nodeName"]),
        pod_ip: word(&["status", "podIP"]),
        host_ip: word(&["status", "hostIP"]),
        scheduled: condition(pod, "PodScheduled").map(|condition| SchedulingStatus {
            done: json::text(condition, &["status"]) == Some("True"),
            reason: json::word(condition, &["reason"]),
            message: json::word(condition, &["message"]),
        }),
        gates: json::list(pod, &["spec", "schedulingGates"])
            .iter()
            .filter_map(|gate| json::word(gate, &["name"]))
            .collect(),
        task: task.into_iter().next().unwrap_or_default(),
        init: statuses("initContainerStatuses"),
        others,
        deletion: word(&["metadata", "deletionTimestamp"]),
        disruption: condition(pod, "DisruptionTarget")
            .filter(|condition| json::text(condition, &["status"]) == Some("True"))
            .map(|condition| Disruption {
                reason: json::word(condition, &["reason"]).unwrap_or_default(),
                message: json::word(condition, &["message"]).unwrap_or_default(),
            }),
        ports: ports(pod),
    }
}

fn condition<'p>(pod: &'p Value, kind: &str) -> Option<&'p Value> {
    let conditions = json::list(pod, &["status", "conditions"]);
    conditions
        .iter()
        .find(|condition| json::text(condition, &["type"]) == Some(kind))
}

fn ports(pod: &Value) -> Vec<u16> {
    let annotations = json::texts(pod, &["metadata", "annotations"]);
    let ports = annotations.get(PORTS_ANNOTATION).map(String::as_str);
    let ports = ports.unwrap_or_default().split(',');
    ports.filter_map(|port| port.trim().parse().ok()).collect()
}

fn container_facts(status: &Value) -> ContainerFacts {
    let text = |path: &[&str]| json::text(status, path).unwrap_or_default().to_owned();
    let number = |path: &[&str]| {
        let number = json::at(status, path).and_then(Value::as_i64);
        number.and_then(|number| i32::try_from(number).ok())
    };
    let state = if json::at(status, &["state", "terminated"]).is_some_and(Value::is_object) {
        ContainerState::Terminated {
            exit_code: number(&["state", "terminated", "exitCode"]).unwrap_or(0),
            signal: number(&["state", "terminated", "signal"]).filter(|signal| *signal != 0),
            reason: text(&["state", "terminated", "reason"]),
            message: text(&["state", "terminated", "message"]),
        }
    } else if json::at(status, &["state", "running"]).is_some_and(Value::is_object) {
        ContainerState::Running
    } else if json::at(status, &["state", "waiting"]).is_some_and(Value::is_object) {
        ContainerState::Waiting {
            reason: text(&["state", "waiting", "reason"]),
            message: text(&["state", "waiting", "message"]),
        }
    } else {
        ContainerState::Unknown
    };
    ContainerFacts {
        name: text(&["name"]),
        state,
    }
}
